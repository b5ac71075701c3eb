//! How long a stream of 64 KiB messages stands still when a rail breaks, and how soon all is as before.
//!
//! Each cut is a job of its own: a rail that broke ten times in one job is held down longer each time, as it should be, and
//! the tenth cut would hit a rail that is not in use. The moment of the cut is drawn from the seed.

use super::{Campaign, KINDS, Scale, Target, load_average, provider_events};
use crate::lab::{Ran, Run};
use crate::record::{Cut, SLICE_NS, Stream, cuts, median};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Fault-free seconds at the beginning of each run.
const BASELINE_S: f64 = 1.5;

/// Runs the stream, or what `turns` names in its place.
fn stream(
    campaign: &mut Campaign,
    name: &str,
    turns: Option<&str>,
    schedule: String,
    seconds: f64,
) -> Result<(Run, Ran, Option<Stream>)> {
    let run = stream_run(campaign, name, turns, schedule, seconds);
    ran(run)
}

fn stream_run(
    campaign: &mut Campaign,
    name: &str,
    turns: Option<&str>,
    schedule: String,
    seconds: f64,
) -> Run {
    let program = campaign.program("stream");
    let seconds_text = format!("{seconds:.3}");
    let baseline = BASELINE_S.to_string();
    let mut run = campaign.new_run(name, &[]);
    let log = log_of(&run);
    run.program = [
        &program,
        "--size",
        "64KiB",
        "--gap-ms",
        "1",
        "--seconds",
        &seconds_text,
        "--baseline",
        &baseline,
        "--log",
    ]
    .map(String::from)
    .to_vec();
    run.program.push(log.to_string_lossy().into_owned());
    if let Some(turns) = turns {
        run.program.extend(["--turns".into(), turns.into()]);
    }
    run.schedule = schedule;
    run.patience = Duration::from_secs_f64(seconds + 90.0);
    run
}

fn log_of(run: &Run) -> PathBuf {
    run.dir.join("stream.jsonl")
}

/// Does a run, and reads what the stream has logged.
fn ran(run: Run) -> Result<(Run, Ran, Option<Stream>)> {
    let ran = run.run()?;
    let stream = Stream::read(&log_of(&run)).ok().filter(|stream| stream.is_complete);
    Ok((run, ran, stream))
}

/// The cut of a run that has one.
fn first_cut(ran: &Ran) -> Result<Cut> {
    let first = cuts(&ran.events).into_iter().next();
    first.with_context(|| format!("the lab reported no cut; by hand: {}", ran.command))
}

/// What TCP payload two rails of 1 Gbit/s carry, in bytes per second (1448 of every 1538 bytes on the wire).
const BOTH_RAILS: f64 = 2e9 / 8.0 * 1448.0 / 1538.0;

/// Whether a run can give figures: whether the stream had (nearly) all of both rails before the fault. A slower one may have left
/// the cut rail idle, so that a short standstill says nothing, and "the rate is back" would be judged by a rate that was never
/// there. On a busy machine this happens, so it is no failure here; that too few runs gave figures is one in [`enough`].
fn gives_figures(campaign: &mut Campaign, what: &str, full: f64) -> bool {
    let holds = full > 0.9 * BOTH_RAILS;
    if !holds {
        let reason = format!(
            "the stream had {:.0} MB/s before the fault, of {:.0} that both rails carry (load average {})",
            full / 1e6,
            BOTH_RAILS / 1e6,
            load_average()
        );
        campaign.skip(&format!("{what}: figures"), &reason);
    }
    holds
}

/// A campaign for figures has to have some; `cargo xtask test` does not ask for them.
fn enough(campaign: &mut Campaign, what: &str, have: usize, wanted: usize) {
    if campaign.scale != Scale::Quick && campaign.provider {
        campaign.check(
            &format!("{what}: figures from at least half of the runs"),
            2 * have >= wanted,
            format!("{have} of {wanted}; try again on a quiet machine"),
        );
    }
}

/// Bytes per second before the first fault. The first slices are left out: congestion windows open there.
fn full_rate(stream: &Stream, cut: &Cut) -> f64 {
    stream.rate(stream.start_ns + 3 * SLICE_NS, cut.at_ns)
}

/// The standstill that a cut of this kind may cause: the median, and the longest.
fn limits(campaign: &Campaign, kind: &str) -> (Target, Target) {
    if !campaign.provider {
        return (Target::None, Target::None);
    }
    let (usual, worst) = if matches!(kind, "down" | "reset") { (5.0, 20.0) } else { (30.0, 100.0) };
    (Target::AtMost(usual), Target::AtMost(worst))
}

pub fn single(campaign: &mut Campaign) -> Result<()> {
    let repeats = campaign.by_scale(1, 3, 10);
    for kind in KINDS {
        let mut standstills = Vec::new();
        let mut recoveries = Vec::new();
        let mut kept = Vec::new();
        let mut rates = Vec::new();
        for repeat in 0..repeats {
            let rail = format!("rail{}", (repeat + 1) % 2);
            let phase_ms = campaign.random(repeat as u64, kind.len() as u64 + kind.as_bytes()[0] as u64, 500);
            let cut_at = BASELINE_S + 0.05 + phase_ms as f64 / 1e3;
            let healed_at = cut_at + 1.5;
            let schedule = format!("{cut_at:.3}s cut {rail} {kind}; {healed_at:.3}s heal {rail}");
            let (run, ran, stream) =
                stream(campaign, &format!("{kind}-{repeat}"), None, schedule, healed_at + 2.6)?;
            if !campaign.check_run(
                &format!("{kind} of {rail}: the stream goes on, every byte right"),
                &run,
                &ran,
                super::data::RIGHT,
            ) {
                continue;
            }
            let stream = stream.context("the stream wrote no complete log")?;
            let cut = &first_cut(&ran)?;
            let healed = cut.healed_ns.context("the lab reported no repair")?;
            check_events(campaign, kind, &rail, &ran, cut, healed);
            let full = full_rate(&stream, cut);
            if !gives_figures(campaign, &format!("{kind} of {rail}"), full) {
                continue;
            }
            rates.push(full / 1e6);
            standstills.push(stream.standstill_ms(cut));
            kept.push(100.0 * stream.rate(cut.at_ns + 3 * SLICE_NS, healed) / full);
            // A rate that never came back counts as the time that was watched.
            let watched = stream.slices.last().map_or(0.0, |s| (s.at_ns - healed) as f64 / 1e6);
            recoveries.push(stream.recovered_after_ms(healed, BOTH_RAILS, 0.95).unwrap_or(watched));
        }
        enough(campaign, kind, standstills.len(), repeats);
        if standstills.is_empty() {
            continue;
        }
        let (usual, worst) = limits(campaign, kind);
        let back = if campaign.provider { Target::AtMost(500.0) } else { Target::None };
        campaign.figure(
            &format!("{kind}: rate before the cut, median"),
            median(&rates),
            "MB/s",
            Target::None,
        );
        let longest = standstills.iter().copied().fold(0.0, f64::max);
        campaign.figure(
            &format!("{kind}: standstill, median of {}", standstills.len()),
            median(&standstills),
            "ms",
            usual,
        );
        campaign.figure(&format!("{kind}: standstill, longest"), longest, "ms", worst);
        campaign.figure(
            &format!("{kind}: rate during the cut, of the rate before"),
            median(&kept),
            "%",
            Target::None,
        );
        campaign.figure(
            &format!("{kind}: from repair to 95 % of both rails, median"),
            median(&recoveries),
            "ms",
            back,
        );
    }
    Ok(())
}

/// The same for messages of 64 KiB to and fro, and for an exchange among all (one rank on each node: with more ranks than cores the
/// figure would be that of the machine). Less is to be seen than in a stream, so that the jobs are shorter.
pub fn turns(campaign: &mut Campaign) -> Result<()> {
    let repeats = campaign.by_scale(1, 4, 50);
    for turns in ["pingpong", "alltoall"] {
        // the short form takes one kind each
        let short: &[&str] = if turns == "pingpong" { &["dark"] } else { &["down"] };
        for kind in *campaign.by_scale(&short, &KINDS.as_slice(), &KINDS.as_slice()) {
            let mut standstills = Vec::new();
            for repeat in 0..repeats {
                let rail = format!("rail{}", (repeat + 1) % 2);
                let phase_ms = campaign.random(repeat, (kind.len() + turns.len()) as u64, 300);
                let cut_at = BASELINE_S + 0.05 + phase_ms as f64 / 1e3;
                let healed_at = cut_at + 0.4;
                let schedule = format!("{cut_at:.3}s cut {rail} {kind}; {healed_at:.3}s heal {rail}");
                let name = format!("{turns}-{kind}-{repeat}");
                let (run, ran, stream) = stream(campaign, &name, Some(turns), schedule, healed_at + 0.4)?;
                let what = format!("{kind} of {rail}: {turns} goes on, every byte right");
                if !campaign.check_run(&what, &run, &ran, super::data::RIGHT) {
                    continue;
                }
                let stream = stream.context("the program wrote no complete log")?;
                standstills.push(stream.standstill_ms(&first_cut(&ran)?));
            }
            if standstills.is_empty() {
                continue;
            }
            let (usual, worst) = limits(campaign, kind);
            let longest = standstills.iter().copied().fold(0.0, f64::max);
            let what = format!("{turns}, {kind}: standstill, median of {}", standstills.len());
            campaign.figure(&what, median(&standstills), "ms", usual);
            campaign.figure(&format!("{turns}, {kind}: standstill, longest"), longest, "ms", worst);
        }
    }
    Ok(())
}

/// The fault is reported, and so is the repair. A reset breaks connections, not the rail: a new stream may be the whole answer.
fn check_events(campaign: &mut Campaign, kind: &str, rail: &str, ran: &Ran, cut: &Cut, healed: i64) {
    let what = format!("{kind} of {rail}: the provider reports the fault, and the repair");
    if !campaign.has_events(&what) {
        return;
    }
    let answers: &[&str] = if kind == "reset" { &["path_down", "stream_replaced"] } else { &["path_down"] };
    let noticed = answers
        .iter()
        .flat_map(|name| provider_events(&ran.events, name, rail))
        .find(|e| e.at_ns > cut.at_ns);
    let Some(noticed) = noticed else {
        campaign.check(&what, false, format!("no event {} for {rail} after the cut", answers.join(" or ")));
        return;
    };
    let back = noticed.name() != "path_down"
        || provider_events(&ran.events, "path_up", rail).any(|e| e.at_ns > healed);
    campaign.check(&what, back, format!("no event path_up for {rail} after the repair"));
}

pub fn blackout(campaign: &mut Campaign) -> Result<()> {
    let lengths: &[f64] = campaign.by_scale(&[2.0], &[5.0], &[5.0, 20.0]);
    let repeats = campaign.by_scale(1, 1, 3);
    for &length in lengths {
        let mut resumed = Vec::new();
        let mut recoveries = Vec::new();
        for repeat in 0..repeats {
            let cut_at = BASELINE_S + 0.1 + campaign.random(repeat, length as u64, 400) as f64 / 1e3;
            let healed_at = cut_at + length;
            let schedule = format!("{cut_at:.3}s cut all dark; {healed_at:.3}s heal all");
            let (run, ran, stream) =
                stream(campaign, &format!("{length}s-{repeat}"), None, schedule, healed_at + 4.0)?;
            let what = format!("both rails dark for {length} s: the stream goes on, every byte right");
            if !campaign.check_run(&what, &run, &ran, super::data::RIGHT) {
                continue;
            }
            let what =
                format!("both rails dark for {length} s: the provider reports a partition and its end");
            if campaign.has_events(&what) {
                let has = |name: &str| ran.events.iter().any(|e| !e.is_lab() && e.name() == name);
                campaign.check(
                    &what,
                    has("partition") && has("partition_end"),
                    "an event partition or partition_end is missing",
                );
            }
            let stream = stream.context("the stream wrote no complete log")?;
            let found = cuts(&ran.events);
            let cut = found.first().context("the lab reported no cut")?;
            let healed = cut.healed_ns.context("the lab reported no repair")?;
            if !gives_figures(campaign, &format!("both rails dark for {length} s"), full_rate(&stream, cut)) {
                continue;
            }
            let (begun, ms) = stream.longest_gap(cut.at_ns, healed);
            resumed.push(((begun - healed) as f64 / 1e6 + ms).max(0.0));
            let watched = stream.slices.last().map_or(0.0, |s| (s.at_ns - healed) as f64 / 1e6);
            recoveries.push(stream.recovered_after_ms(healed, BOTH_RAILS, 0.95).unwrap_or(watched));
        }
        enough(campaign, &format!("dark for {length} s"), resumed.len(), repeats as usize);
        if resumed.is_empty() {
            continue;
        }
        let target = if campaign.provider { Target::AtMost(500.0) } else { Target::None };
        let longest = resumed.iter().copied().fold(0.0, f64::max);
        campaign.figure(
            &format!("dark for {length} s: from repair to the next message, longest"),
            longest,
            "ms",
            target,
        );
        campaign.figure(
            &format!("dark for {length} s: from repair to 95 % of both rails"),
            median(&recoveries),
            "ms",
            Target::None,
        );
    }
    Ok(())
}

/// Between guests: what is cut beside what, as a name, `FI_RERAIL_KINDS` and `FI_RERAIL_RAILS`.
const GUESTS: [(&str, &str, &str); 3] = [
    ("an interface beside another", "ip", "rail0,rail1"),
    ("an adapter beside another", "roce", "rxe0,rxe1"),
    ("an adapter beside an interface", "ip,roce", "rxe0,rail1"),
];
/// How much longer the standstill may be with adapters.
const GUESTS_TARGET: f64 = 3.0;

/// Between guests with RDMA adapters: how long no message comes while a rail is dark. Emulation is slow, so what counts is the ratio to
/// interfaces in the same guests, in turn.
pub fn adapters(campaign: &mut Campaign) -> Result<()> {
    if campaign.scale == Scale::Quick {
        println!("  (not in the short form: each job boots two guests)");
        return Ok(());
    }
    let repeats = campaign.by_scale(0, 3, 10);
    let mut gaps = GUESTS.map(|_| Vec::new());
    for repeat in 0..repeats {
        for (index, (what, kinds, rails)) in GUESTS.into_iter().enumerate() {
            let phase_ms = campaign.random(repeat, index as u64, 500);
            // adapters' paths need their time in emulation
            let cut_at = 3.0 + phase_ms as f64 / 1e3;
            let healed_at = cut_at + 2.5;
            let schedule = format!("{cut_at:.3}s cut rail0 dark; {healed_at:.3}s heal rail0");
            let name = format!("{}-{repeat}", rails.replace(',', "-"));
            let mut run = stream_run(campaign, &name, None, schedule, healed_at + 1.0);
            run = run.env("FI_RERAIL_KINDS", kinds).env("FI_RERAIL_RAILS", rails);
            run.rails = vec!["unshaped", "unshaped"];
            run.rdma = Some("roce");
            run.patience += Duration::from_secs(240);
            let (run, ran, stream) = ran(run)?;
            let what = format!("{what}: rail 0 dark, the stream goes on, every byte right");
            if !campaign.check_run(&what, &run, &ran, super::data::RIGHT) {
                continue;
            }
            let stream = stream.context("the stream wrote no complete log")?;
            let cut = first_cut(&ran)?;
            // Less what is usual it would often be nothing: messages come tens of milliseconds apart there.
            gaps[index].push(stream.longest_gap(cut.at_ns, cut.healed_ns.unwrap_or(i64::MAX)).1);
        }
    }
    let medians = gaps.each_ref().map(|each| median(each));
    for (index, (what, ..)) in GUESTS.into_iter().enumerate() {
        let all: Vec<String> = gaps[index].iter().map(|ms| format!("{ms:.0}")).collect();
        let figure = format!("{what}: longest time without a message, median of {} ms", all.join(", "));
        campaign.figure(&figure, medians[index], "ms", Target::None);
        if index > 0 {
            campaign.figure(
                &format!("{what}: the same, ratio to interfaces"),
                medians[index] / medians[0],
                "",
                Target::AtMost(GUESTS_TARGET),
            );
        }
    }
    Ok(())
}
