//! Every byte right, no error: the random program and the Intel MPI benchmarks, plain and while rails break.

use super::{Campaign, KINDS, Scale};
use crate::lab::{Run, Transport};
use anyhow::Result;
use std::time::Duration;
use xtask::mpi::Mpi;

/// What the programs print when all was well.
pub const RIGHT: &str = "every byte right";

/// The kernels of tests/mpi/nas.c.
pub const NAS_KERNELS: [&str; 5] = ["cg", "ft", "is", "lu", "mg"];

/// A check that has never failed proves nothing: with planted faults the programs must fail, without they must not.
pub fn checkers(campaign: &mut Campaign) -> Result<()> {
    for (plant, program) in [
        ("none", "checked"),
        ("flip", "checked"),
        ("late", "checked"),
        ("swap", "checked"),
        ("beside", "checked"),
        ("flip", "stream"),
    ] {
        let (library, path) = (campaign.program("libplant.so"), campaign.program(program));
        let (library, plant_text) = (format!("LD_PRELOAD={library}"), format!("RERAIL_PLANT={plant}"));
        let length: &[&str] =
            if program == "stream" { &["--seconds", "2"] } else { &["--rounds", "400", "--watchdog", "60"] };
        // By `env`, so that the library is loaded into the ranks and not into the launcher.
        let arguments = [&["env", &plant_text, &library, &path][..], length].concat();
        let mut run = campaign.new_run(&format!("{program}-{plant}"), &arguments);
        (run.nodes, run.per_node, run.transport) = (1, 2, Transport::Own);
        let code = run.run()?.code;
        let (holds, wanted) =
            if plant == "none" { (code == Some(0), 0) } else { (notices(campaign, code), 3) };
        let what = match plant {
            "none" => format!("{program} finds nothing wrong where nothing is"),
            _ => format!("{program} notices a planted fault: {plant}"),
        };
        campaign.check(&what, holds, format!("exit code {code:?} instead of {wanted}"));
    }
    for kernel in NAS_KERNELS {
        let program = campaign.program("nas");
        let mut codes = Vec::new();
        for plant in [&[][..], &["--plant", "3"]] {
            let arguments = [&[program.as_str(), kernel, "--iterations", "6"][..], plant].concat();
            let mut run = campaign.new_run(kernel, &arguments);
            (run.nodes, run.per_node, run.transport) = (1, 4, Transport::Own);
            codes.push(run.run()?.code);
        }
        let what = format!("nas {kernel} notices a spoilt value, and finds nothing wrong where nothing is");
        campaign.check(
            &what,
            codes[0] == Some(0) && notices(campaign, codes[1]),
            format!("exit codes {codes:?} instead of 0 and 3"),
        );
    }
    Ok(())
}

/// Whether an exit code is that of wrong data. Intel's launcher may put a code of its own in its place.
fn notices(campaign: &Campaign, code: Option<i32>) -> bool {
    code == Some(3) || campaign.mpi == Mpi::Intel && code.is_some_and(|code| code != 0)
}

/// A schedule that begins `start` seconds after the program, breaks a rail in each kind for `cut` seconds, and leaves `whole`
/// seconds in between. Rails take turns.
fn every_kind(start: f64, cut: f64, whole: f64) -> String {
    let mut at = start;
    let mut items = Vec::new();
    for (i, kind) in KINDS.iter().enumerate() {
        let rail = (i + 1) % 2;
        items.push(format!("{at:.3}s cut rail{rail} {kind}; {:.3}s heal rail{rail}", at + cut));
        at += cut + whole;
    }
    items.join("; ")
}

/// (name, schedule, seconds that the program must run)
fn disturbances(campaign: &Campaign) -> Vec<(String, String, f64)> {
    match campaign.scale {
        Scale::Quick => vec![("all-kinds".into(), every_kind(0.5, 1.0, 0.8), 10.0)],
        Scale::Normal => vec![("all-kinds".into(), every_kind(1.0, 2.0, 2.0), 22.0)],
        Scale::Long => KINDS
            .iter()
            .flat_map(|kind| {
                ["rail0", "rail1"].map(|rail| {
                    (format!("{rail}-{kind}"), format!("3s cut {rail} {kind}; 8s heal {rail}"), 12.0)
                })
            })
            .chain([("all-kinds".into(), every_kind(1.0, 2.0, 2.0), 22.0)])
            .collect(),
    }
}

/// A schedule with a cut of every kind, and the seconds that a program must run for it.
pub fn every_kind_once(campaign: &Campaign) -> (String, f64) {
    campaign.by_scale(
        (every_kind(0.5, 1.0, 0.8), 10.0),
        (every_kind(1.0, 2.0, 2.0), 22.0),
        (every_kind(1.0, 2.0, 2.0), 22.0),
    )
}

pub fn checked(campaign: &mut Campaign) -> Result<()> {
    let program = campaign.program("checked");
    let plain_seconds = campaign.by_scale(4.0, 10.0, 60.0);
    let mut plans = vec![("plain".to_string(), String::new(), plain_seconds)];
    plans.extend(disturbances(campaign));
    for per_node in [1, 2] {
        for (index, (name, schedule, seconds)) in plans.iter().enumerate() {
            let seed = (campaign.seed * 1000 + (per_node * 100 + index) as u64).to_string();
            let seconds_text = seconds.to_string();
            // Up to 4 MiB in the short runs, so that they have many rounds in spite of shaped rails.
            let max = if *seconds < 12.0 { "4MiB" } else { "16MiB" };
            let arguments = [
                program.as_str(),
                "--seconds",
                &seconds_text,
                "--seed",
                &seed,
                "--max",
                max,
                "--watchdog",
                "60",
            ];
            let mut run = campaign.new_run(&format!("{name}-{per_node}ppn"), &arguments);
            run.per_node = per_node;
            run.schedule = schedule.clone();
            run.patience = Duration::from_secs_f64(seconds + 120.0);
            let ran = run.run()?;
            campaign.check_run(&format!("checked, {name}, {per_node} ranks per node"), &run, &ran, RIGHT);
        }
    }
    Ok(())
}

/// MPICH's pipelined rendezvous for all messages of more than 16 KiB. It sends whole chunks with FI_MATCH_COMPLETE.
const PIPELINE: [(&str, &str); 2] =
    [("MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL", "pipeline"), ("MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD", "16384")];
/// Chunks that messages of the kernels fill; by default they have 1 MiB.
const SMALL_CHUNKS: (&str, &str) = ("MPIR_CVAR_CH4_OFI_PIPELINE_CHUNK_SZ", "16384");
/// The NAS-like kernels whose messages are larger than that.
const CHUNKED_KERNELS: [&str; 3] = ["is", "cg", "ft"];

/// Sends that complete when a receive has matched. Not with `checked`: with these settings MPICH 5.0.2 hangs in its third round over
/// libfabric's `tcp` too.
pub fn pipelined(campaign: &mut Campaign) -> Result<()> {
    if campaign.mpi != Mpi::Mpich {
        println!("  (only MPICH has a pipelined rendezvous)");
        return Ok(());
    }
    let stream = campaign.program("stream");
    let mut plans = vec![("plain".to_string(), String::new(), campaign.by_scale(3.0, 6.0, 20.0))];
    plans.extend(disturbances(campaign));
    for (name, schedule, seconds) in plans {
        let arguments = [stream.as_str(), "--size", "3MiB", "--seconds", &seconds.to_string()];
        let mut run = campaign.new_run(&format!("stream-{name}"), &arguments);
        run.schedule = schedule;
        check_pipelined(campaign, &format!("stream of 3 MiB messages, {name}"), run)?;
    }
    let nas = campaign.program("nas");
    let kernels = campaign.by_scale(&CHUNKED_KERNELS[..1], &CHUNKED_KERNELS, &CHUNKED_KERNELS);
    let seconds = campaign.by_scale("2", "4", "20");
    for kernel in kernels {
        let run = campaign.new_run(kernel, &[&nas, kernel, "--seconds", seconds]);
        check_pipelined(campaign, &format!("nas {kernel}"), run.env(SMALL_CHUNKS.0, SMALL_CHUNKS.1))?;
    }
    Ok(())
}

fn check_pipelined(campaign: &mut Campaign, what: &str, mut run: Run) -> Result<()> {
    run.env.extend(PIPELINE.map(|(name, value)| (name.into(), value.into())));
    let ran = run.run()?;
    campaign.check_run(&format!("{what}, pipelined"), &run, &ran, RIGHT);
    Ok(())
}

/// What stands in for IMB on Open MPI, whose ABI its binaries do not follow.
fn kernels(campaign: &mut Campaign) -> Result<()> {
    println!("  (IMB's binaries follow MPICH's ABI; on this MPI the NAS-like kernels run in their place)");
    let program = campaign.program("nas");
    let names: &[&str] = campaign.by_scale(&["ft", "is"], &NAS_KERNELS, &NAS_KERNELS);
    let disturbed = disturbance_of_benchmarks(campaign);
    let lengths = campaign.by_scale(("2", "8.5"), ("5", "22"), ("20", "52"));
    for (index, kernel) in names.iter().enumerate() {
        for (name, schedule, seconds) in
            [("plain", String::new(), lengths.0), ("all-kinds", disturbed.clone(), lengths.1)]
        {
            for per_node in [1, 2] {
                if campaign.scale == Scale::Quick && ((per_node == 2) != schedule.is_empty() || index > 0) {
                    continue; // a part of the combinations
                }
                let arguments = [program.as_str(), kernel, "--seconds", seconds];
                let mut run = campaign.new_run(&format!("{kernel}-{name}-{per_node}ppn"), &arguments);
                run.per_node = per_node;
                run.schedule = schedule.clone();
                run.patience = Duration::from_secs(campaign.by_scale(90, 150, 300));
                let ran = run.run()?;
                let what = format!("nas {kernel}, {name}, {per_node} ranks per node");
                campaign.check_run(&what, &run, &ran, RIGHT);
            }
        }
    }
    Ok(())
}

/// Benchmarks with a pause in between for each rail to come back: the schedule covers the whole run.
fn disturbance_of_benchmarks(campaign: &Campaign) -> String {
    campaign.by_scale(every_kind(0.5, 0.8, 0.6), every_kind(1.0, 2.0, 2.0), every_kind(2.0, 5.0, 5.0))
}

pub fn imb(campaign: &mut Campaign) -> Result<()> {
    if matches!(campaign.mpi, Mpi::Open5 | Mpi::Open4) {
        return kernels(campaign);
    }
    let program = Mpi::Intel.prefix().join("bin/IMB-MPI1").to_string_lossy().into_owned();
    // IMB is built for MPICH's ABI: it finds the library by this path, and must find that of the MPI that starts it.
    let library = campaign.mpi.prefix().join("lib").to_string_lossy().into_owned();
    let selection: &[&str] = campaign.by_scale(
        &["PingPong", "Sendrecv", "Allreduce"],
        &["PingPong", "PingPing", "Sendrecv", "Exchange", "Allreduce", "Bcast", "Alltoall", "Barrier"],
        &[
            "PingPong",
            "PingPing",
            "Sendrecv",
            "Exchange",
            "Allreduce",
            "Reduce",
            "Reduce_scatter",
            "Allgather",
            "Allgatherv",
            "Scatter",
            "Gather",
            "Alltoall",
            "Alltoallv",
            "Bcast",
            "Barrier",
            "Uniband",
            "Biband",
        ],
    );
    let disturbed = disturbance_of_benchmarks(campaign);
    for per_node in [1, 2] {
        for (name, schedule) in [("plain", String::new()), ("all-kinds", disturbed.clone())] {
            if campaign.scale == Scale::Quick && (per_node == 2) != schedule.is_empty() {
                continue; // half of the combinations: 2 ranks per node plain, 1 disturbed
            }
            let ranks = (2 * per_node).to_string();
            // A disturbed run goes by time rather than by iterations: a quick machine must not be through before the schedule
            // is. Where ranks crowd the cores IMB misjudges how many iterations fit its time, so a plain run has few.
            let (iterations, seconds) = if schedule.is_empty() {
                campaign.by_scale(("20", "0.4"), ("50", "1"), ("200", "2"))
            } else {
                campaign.by_scale(("5000", "0.25"), ("5000", "1"), ("5000", "2"))
            };
            let mut arguments = vec![program.as_str()];
            arguments.extend(selection);
            arguments.extend(["-npmin", &ranks, "-iter", iterations, "-time", seconds, "-msglog", "0:22"]);
            let mut run = campaign
                .new_run(&format!("{name}-{per_node}ppn"), &arguments)
                .env("LD_LIBRARY_PATH", &library);
            run.per_node = per_node;
            run.schedule = schedule;
            // IMB does not announce its start: the schedule counts from the launch.
            run.on_start = false;
            run.patience = Duration::from_secs(campaign.by_scale(150, 400, 1200));
            let ran = run.run()?;
            campaign.check_run(
                &format!("IMB-MPI1, {} benchmarks, {name}, {per_node} ranks per node", selection.len()),
                &run,
                &ran,
                "All processes entering MPI_Finalize",
            );
        }
    }
    Ok(())
}
