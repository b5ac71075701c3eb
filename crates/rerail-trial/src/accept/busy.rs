//! A busy peer is not a broken path: computing ranks and stopped processes are left alone; a rail that breaks meanwhile is found.

use super::data::RIGHT;
use super::{Campaign, Target, provider_events};
use crate::lab::{Ran, Transport};
use crate::record::cuts;
use anyhow::{Context, Result};
use std::time::Duration;

/// Nothing was given up, and nothing called a partition: a stopped process is silent on every path, but its kernel is not.
fn check_no_verdict(campaign: &mut Campaign, what: &str, ran: &Ran) {
    if !campaign.has_events(what) {
        return;
    }
    let wrong: Vec<String> = ran
        .events
        .iter()
        .filter(|e| !e.is_lab() && matches!(e.name(), "path_down" | "peer_lost" | "peer_died" | "partition"))
        .map(|e| e.words())
        .collect();
    campaign.check(what, wrong.is_empty(), wrong.join("; "));
}

pub fn compute(campaign: &mut Campaign) -> Result<()> {
    let seconds = campaign.by_scale(5, 30, 30);
    let rounds = campaign.by_scale(1, 1, 3);
    let (seconds_text, rounds_text) = (seconds.to_string(), rounds.to_string());
    let program = campaign.program("compute");
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    // Twice as many ranks as cores, over two nodes: the service threads have to fight for their time.
    let arguments = [program.as_str(), "--seconds", &seconds_text, "--rounds", &rounds_text];
    let patience = Duration::from_secs(seconds * rounds * 3 + 90);

    let mut run = campaign.new_run("undisturbed", &arguments);
    run.per_node = cores;
    run.patience = patience;
    let ran = run.run()?;
    campaign.check_run(
        &format!("{} ranks compute for {seconds} s between calls", 2 * cores),
        &run,
        &ran,
        RIGHT,
    );
    check_no_verdict(campaign, "no path of a computing rank is given up", &ran);

    let kinds: &[&str] =
        campaign.by_scale(&["dark"], &["down", "dark"], &["down", "dark", "dark-in", "dark-out"]);
    for kind in kinds {
        let mut run = campaign.new_run(kind, &arguments);
        run.per_node = cores;
        run.patience = patience;
        run.schedule = format!("1.5s cut rail1 {kind}");
        let ran = run.run()?;
        campaign.check_run(&format!("a rail goes {kind} while all compute"), &run, &ran, RIGHT);
        let what = format!("{kind} while all compute: found before the next call");
        if !campaign.has_events(&what) {
            continue;
        }
        let found = cuts(&ran.events);
        let cut = found.first().context("the lab reported no cut")?;
        let computing_until = cut.at_ns - 1_500_000_000 + seconds as i64 * 1_000_000_000;
        let first = provider_events(&ran.events, "path_down", "rail1").find(|e| e.at_ns >= cut.at_ns);
        let in_time = first.filter(|e| e.at_ns < computing_until);
        campaign.check(&what, in_time.is_some(), "no event path_down for rail1 while the ranks computed");
        if let Some(event) = in_time {
            let ms = (event.at_ns - cut.at_ns) as f64 / 1e6;
            campaign.figure(
                &format!("{kind} while all compute: found after"),
                ms,
                "ms",
                Target::AtMost(1000.0),
            );
        }
    }
    Ok(())
}

pub fn stopped(campaign: &mut Campaign) -> Result<()> {
    let length = campaign.by_scale(4, 10, 10);
    let repeats = campaign.by_scale(1, 1, 3);
    for repeat in 0..repeats {
        // Once the receiver, once the sender.
        let rank = (repeat + 1) % 2;
        let tool = campaign.tool("stop.py");
        let program = campaign.program("stream");
        let (length_text, seconds) = (length.to_string(), (length + 6).to_string());
        let arguments = ["python3", &tool, "3", &length_text, &program, "--seconds", &seconds];
        let run = campaign.new_run(&format!("rank{rank}"), &arguments).env("RERAIL_STOP_RANK", rank);
        let ran = run.run()?;
        let what = format!("rank {rank} is stopped for {length} s: the stream goes on, every byte right");
        campaign.check_run(&what, &run, &ran, RIGHT);
        let was = ran.stderr.contains("stopped for") || ran.stdout.contains("stopped for");
        campaign.check("the rank was really stopped", was, "the tool did not say so");
        check_no_verdict(campaign, "no path of a stopped rank is given up", &ran);
        if campaign.has_events("the stop is reported as such") {
            let seen = ran.events.iter().any(|e| !e.is_lab() && e.name() == "peer_stopped");
            campaign.check("the stop is reported as such", seen, "no event peer_stopped");
        }
    }
    Ok(())
}

/// How much of an exchange happens while both ranks compute: over Rerail, and over libfabric's tcp in the same run.
pub fn overlap(campaign: &mut Campaign) -> Result<()> {
    let iterations = campaign.by_scale("5", "20", "50");
    for size in ["256KiB", "1MiB", "4MiB"] {
        for (name, transport) in [("Rerail", None), ("libfabric tcp", Some(Transport::Fabric("tcp")))] {
            let program = campaign.program("overlap");
            let label = format!("{size}-{}", if transport.is_some() { "tcp" } else { "rerail" });
            let mut run = campaign.new_run(&label, &[&program, "--size", size, "--iterations", iterations]);
            run.transport = transport.unwrap_or(run.transport);
            let ran = run.run()?;
            if !campaign.check_run(&format!("{size} over {name}: runs to its end"), &run, &ran, "overlap: ") {
                continue;
            }
            let share = ran
                .stdout
                .split_once(": overlap ")
                .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            let share = share.context("overlap prints a share")?;
            campaign.figure(
                &format!("{size}, exchange that computing hides, {name}"),
                share,
                "%",
                Target::None,
            );
        }
    }
    Ok(())
}
