//! Networks that lose, corrupt, double and reorder: every byte right, nothing aborted, and the rail that is blamed is the bad one.
//!
//! The rails are wires of the lab (`rerail lab run --rail wire:1gbit`), whose corruption carries checksums that fit: the kernel lets
//! it through, and only an own checksum can notice it. What a wire did is counted by itself, so a run in which nothing happened
//! does not pass for one that was survived.

use super::{Campaign, Scale, data, provider_events};
use crate::lab::{Ran, Run, why_no_wire};
use anyhow::Result;
use std::time::Duration;
use xtask::mpi::Mpi;

/// The faults of the acceptance list.
const FAULTS: &str = "loss=1%,corrupt=0.1%,dup=1%,reorder=1%/2ms";
/// What a wire counts of them.
const COUNTED: [&str; 4] = ["lost", "corrupted", "duplicated", "reordered"];

/// Which rails are bad.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// Rail 1; rail 0 is as good as ever.
    One,
    Both,
}

impl Bad {
    fn rail(self) -> &'static str {
        match self {
            Bad::One => "rail1",
            Bad::Both => "all",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Bad::One => "one rail bad",
            Bad::Both => "both rails bad",
        }
    }
}

/// A program, how long it may take, and what it says when all was well.
pub(super) struct Program {
    name: &'static str,
    arguments: Vec<String>,
    pub env: Vec<(&'static str, String)>,
    patience: Duration,
    says: &'static str,
}

/// The case.
pub fn lossy(campaign: &mut Campaign) -> Result<()> {
    let probe = campaign.new_run("probe", &["true"]).dir;
    if let Some(reason) = why_no_wire(&probe) {
        campaign.skip("lossy", &format!("no wire on this machine: {reason}"));
        return Ok(());
    }
    let mut programs = vec![checked(campaign)];
    if campaign.scale != Scale::Quick {
        programs.push(match campaign.mpi {
            Mpi::Mpich | Mpi::Intel => imb(campaign),
            // IMB's binaries follow MPICH's ABI
            Mpi::Open5 | Mpi::Open4 => kernel(campaign),
        });
    }
    for program in &programs {
        for bad in [Bad::One, Bad::Both] {
            let per_nodes: &[usize] = campaign.by_scale(&[1], &[1, 2], &[1, 2]);
            for &per_node in per_nodes {
                one(campaign, program, bad, per_node)?;
            }
        }
    }
    Ok(())
}

pub(super) fn one(campaign: &mut Campaign, program: &Program, bad: Bad, per_node: usize) -> Result<()> {
    let arguments: Vec<&str> = program.arguments.iter().map(String::as_str).collect();
    let mut run = campaign.new_run(&format!("{}-{}-{per_node}ppn", program.name, bad.rail()), &arguments);
    for (name, value) in &program.env {
        run = run.env(name, value);
    }
    run.rails = vec!["wire:1gbit", "wire:1gbit"];
    run.per_node = per_node;
    run.schedule = format!("0s wire {} {FAULTS},seed={}", bad.rail(), campaign.seed);
    // In place before the first message, connections and MPI_Init included.
    run.on_start = false;
    run.patience = program.patience;
    let ran = run.run()?;
    let what = format!("{}, {}, {per_node} ranks per node", program.name, bad.words());
    campaign.check_run(&what, &run, &ran, program.says);
    faults_happened(campaign, &run, &ran, bad, &what);
    blame(campaign, &ran, bad, &what);
    Ok(())
}

/// A check that could not have failed proves nothing: the wires must have done what they were told, and nothing else.
fn faults_happened(campaign: &mut Campaign, run: &Run, ran: &Ran, bad: Bad, what: &str) {
    let mut told = Vec::new();
    let mut as_told = true;
    for rail in ["rail0", "rail1"] {
        let is_bad = bad == Bad::Both || rail == bad.rail();
        let counts =
            ran.events.iter().find(|event| event.name() == "wire-counts" && event.text("rail") == rail);
        let counts: Vec<u64> =
            COUNTED.iter().map(|name| counts.map_or(0, |counts| counts.number(name))).collect();
        as_told &= counts.iter().all(|&count| (count > 0) == is_bad);
        told.push(format!("{rail} {counts:?}"));
    }
    let detail = format!("frames {COUNTED:?}: {}; schedule {}", told.join(", "), run.schedule);
    campaign.check(&format!("{what}: the wires were as bad as they were told to be"), as_told, detail);
}

/// Whether the bad rail was blamed for it.
fn blame(campaign: &mut Campaign, ran: &Ran, bad: Bad, what: &str) {
    if !campaign.has_events(what) {
        return;
    }
    let noticed: u64 =
        ran.events.iter().filter(|event| event.name() == "closed").map(|event| event.number("corrupt")).sum();
    campaign.check(
        &format!("{what}: corruption was noticed"),
        noticed > 0,
        "no process counted a corrupt frame, though the wire made some",
    );
    let told = |rail| provider_events(&ran.events, "corruption", rail).count();
    campaign.check(
        &format!("{what}: the bad rail is blamed for it"),
        told("rail1") > 0,
        "no event `corruption` names rail1, though a corrupt frame was counted",
    );
    if bad == Bad::Both {
        return;
    }
    // A process that leaves resets its connections, and its peer may see that before its goodbye.
    let goodbyes = ran.events.iter().filter(|event| event.name() == "peer_goodbye");
    let leaving_ns = goodbyes.map(|event| event.at_ns).min().unwrap_or(i64::MAX);
    let blamed: Vec<String> = ["corruption", "path_down", "stream_replaced"]
        .into_iter()
        .flat_map(|name| provider_events(&ran.events, name, "rail0"))
        .filter(|event| event.at_ns < leaving_ns)
        .map(|event| format!("{} {}", event.name(), event.text("witness")))
        .collect();
    campaign.check(
        &format!("{what}: the good rail is not blamed"),
        blamed.is_empty(),
        format!("rail0 had {}", blamed.join(", ")),
    );
}

pub(super) fn checked(campaign: &Campaign) -> Program {
    let seconds = campaign.by_scale("5", "15", "60");
    let seed = (campaign.seed * 1000 + 500).to_string();
    let words = [
        "--seconds",
        seconds,
        "--seed",
        &seed,
        "--max",
        campaign.by_scale("1MiB", "4MiB", "16MiB"),
        "--watchdog",
        "60",
    ];
    Program {
        name: "checked",
        arguments: [campaign.program("checked").as_str()]
            .iter()
            .chain(&words)
            .map(ToString::to_string)
            .collect(),
        env: Vec::new(),
        patience: Duration::from_secs(campaign.by_scale(150, 200, 300)),
        says: data::RIGHT,
    }
}

fn imb(campaign: &Campaign) -> Program {
    let program = Mpi::Intel.prefix().join("bin/IMB-MPI1").to_string_lossy().into_owned();
    let names = ["PingPong", "Sendrecv", "Exchange", "Allreduce", "Alltoall", "Bcast"];
    let limits = ["-iter", "100", "-time", campaign.by_scale("0.2", "0.5", "2"), "-msglog", "0:20"];
    Program {
        name: "IMB-MPI1",
        arguments: [program.as_str()].iter().chain(&names).chain(&limits).map(ToString::to_string).collect(),
        // IMB finds the MPI's library by this path.
        env: vec![("LD_LIBRARY_PATH", campaign.mpi.prefix().join("lib").to_string_lossy().into_owned())],
        patience: Duration::from_secs(campaign.by_scale(200, 400, 1200)),
        says: "All processes entering MPI_Finalize",
    }
}

fn kernel(campaign: &Campaign) -> Program {
    let words = ["is", "--seconds", campaign.by_scale("3", "10", "40")];
    Program {
        name: "nas-is",
        arguments: [campaign.program("nas").as_str()].iter().chain(&words).map(ToString::to_string).collect(),
        env: Vec::new(),
        patience: Duration::from_secs(campaign.by_scale(90, 200, 400)),
        says: data::RIGHT,
    }
}
