//! `rerail bench`: how fast an MPI is over Rerail, and over what it would use without it, in one run.
//!
//! Machines are noisy and differ from day to day, so nothing is measured alone: contenders take turns (A B C A B C …), and what counts is
//! the ratio. The program that measures is compiled with the MPI's own compiler and run by its own launcher. With `--rwapi` RWAPI takes its
//! turns too, and so do both over rails that are cut (O. Ben Fredj and E. Renault, section 4).

mod band;
mod contender;
mod cuts;
mod figures;
mod plot;
mod program;
mod report;
mod rwapi;
mod span;
mod test;
mod timeline;

use clap::Args;
use contender::{Faults, Place, Turn};
use figures::{Figures, View};
use rerail_lab::LabError;
use rerail_lab::fabric::FabricPlan;
use rerail_lab::rdma::Rdma;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use test::Test;

/// Options of `rerail bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// What to measure: latency, bandwidth, bidirectional, rate, overlap, barrier, bcast, allreduce, alltoall; or `all` of these; or
    /// failover [default: latency, bandwidth, bidirectional, rate]. With --rwapi: one-way, round-trip, both-ways, put [default: all]
    #[arg(long = "test", value_name = "TEST", value_delimiter = ',')]
    tests: Vec<String>,
    /// Measure RWAPI beside the MPI over Rerail and over the MPI's own transports, between two nodes
    #[arg(long, conflicts_with_all = ["schedule", "stream_s", "interface", "rdma", "ranks", "nodes", "inside_nodes"])]
    rwapi: bool,
    /// Where RWAPI is: its include and lib [default: `rwapi` beside this executable or its prefix, then target/release/rwapi]
    #[arg(long, value_name = "DIR", requires = "rwapi")]
    rwapi_prefix: Option<PathBuf>,
    /// Sizes of messages, in bytes or with K or M [default: each test's own]
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<usize>,
    /// What Rerail is compared with: own (what the MPI chooses by itself), tcp (libfabric's), shm (libfabric's, inside
    /// one node), verbs (libfabric's, over one RDMA adapter), ucx, ob1 (Open MPI), sockets (plain UDP and TCP, without any
    /// MPI), rerail:OPTION=VALUE (Rerail with that setting, such as rerail:bulk=udp), none [default: own and tcp]. With --rwapi
    /// also cut: RWAPI and the MPI over Rerail while each rail of the lab in turn is dark for 300 ms [default: own, tcp and cut]
    #[arg(long = "peer", value_name = "PEER", value_delimiter = ',')]
    peers: Vec<String>,
    /// What happens to the rails in the test failover, as for `rerail lab run --schedule`, from the beginning of its stream on [default: one
    /// rail goes down for 2 s, then another is dark for 2 s]
    #[arg(long, value_name = "TEXT", requires = "lab")]
    schedule: Option<String>,
    /// Length of that stream, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=900))]
    stream_s: u32,
    /// Turns of each contender
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Time for each figure of a turn, in ms; with cuts it is as long as these take, if that is longer
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    ms: u32,
    /// The interface that `sockets` uses, on every node [default: rail0, that of the lab]
    #[arg(long, default_value = "rail0")]
    interface: String,
    /// The MPI's compiler [default: mpicc beside the launcher]
    #[arg(long, value_name = "PATH")]
    mpicc: Option<PathBuf>,
    /// Where the program is put; every node must see it there
    #[arg(long, value_name = "DIR", default_value = "rerail-bench")]
    dir: PathBuf,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures: a picture for each test that has several sizes, and one of failover
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Longest time of one turn, in seconds; what takes longer is ended and reported
    #[arg(long, value_name = "S", default_value_t = 300)]
    patience: u64,
    /// Measure in a lab on this machine, with this MPI: mpich, openmpi or intel
    #[arg(long, value_name = "MPI", conflicts_with = "launcher", required_unless_present = "launcher")]
    lab: Option<String>,
    /// Where that MPI is installed [default: as for `rerail lab run`]
    #[arg(long, value_name = "DIR", requires = "lab")]
    mpi_prefix: Option<PathBuf>,
    /// A rail of the lab and its rate; repeat it for each rail [default: two unshaped rails]
    #[arg(long = "rail", value_name = "RAIL", requires = "lab")]
    rails: Vec<String>,
    /// Nodes of the lab are guests with adapters in software, roce or iwarp, as for `rerail lab run --rdma`. They boot
    /// for each turn
    #[arg(long, value_name = "KIND", requires = "lab")]
    rdma: Option<Rdma>,
    /// A fabric behind each rail of the lab, such as leaf-spine:2x4,200mbit, as for `rerail lab run --fabric`
    #[arg(long, value_name = "FABRIC", requires = "lab", conflicts_with = "rdma")]
    fabric: Option<FabricPlan>,
    /// Congestion control of connections in the lab [default: the machine's]
    #[arg(long, value_name = "NAME", requires = "lab")]
    congctl: Option<String>,
    /// The provider librerail-fi.so [default: as for `rerail run`]
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
    /// Ranks in the lab, an even number
    #[arg(short = 'n', value_name = "RANKS", default_value_t = 2, requires = "lab")]
    ranks: u32,
    /// Nodes of the lab: 1 measures between ranks of one node
    #[arg(long, default_value_t = 2, requires = "lab")]
    nodes: u32,
    /// Ranks on one node use Rerail, tcp or shm among themselves too, in the place of the MPI's own shared memory
    #[arg(long)]
    inside_nodes: bool,
    /// Or measure between real nodes: the launcher and its arguments, without a program: `-- mpiexec -n 2 -hosts a,b`
    #[arg(last = true)]
    launcher: Vec<OsString>,
}

/// Measures; returns the exit code: 0, 1 when a turn failed, 2 for bad input.
pub fn run(args: &BenchArgs) -> i32 {
    match measure(args) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("rerail bench: {error}");
            2
        }
    }
}

/// What is measured, where, and by which turns.
struct Plan {
    tests: Vec<Test>,
    place: Place,
    turns: Vec<Turn>,
    /// How many cuts belong into each figure of a contender with cuts.
    cuts: usize,
}

/// An MPI, by itself.
fn plan(args: &BenchArgs) -> Result<Plan, LabError> {
    let tests = test::chosen(&args.tests, &args.sizes)?;
    let breaks = tests.iter().any(|t| t.kind == test::Kind::Failover);
    let place = Place::of(args)?;
    let schedule = if args.lab.is_some() { contender::schedule(args, breaks)? } else { None };
    let faults = schedule.map(|schedule| Faults { schedule, on_start: true });
    let contenders = contender::chosen(&args.peers, place.family(), args.inside_nodes)?;
    let program = program::build(&place.compiler(args.mpicc.as_deref())?, &args.dir)?;
    let start: Vec<OsString> = vec![
        program.into_os_string(),
        "--ms".into(),
        args.ms.to_string().into(),
        "--stream-s".into(),
        args.stream_s.to_string().into(),
        "--interface".into(),
        args.interface.clone().into(),
    ];
    let turn = |contender: contender::Contender| {
        let asked = tests.iter().filter_map(|test| contender.argument(test).map(OsString::from));
        Turn { words: start.iter().cloned().chain(asked).collect(), contender, faults: faults.clone() }
    };
    let turns = contenders.into_iter().map(turn).collect();
    Ok(Plan { tests, place, turns, cuts: 0 })
}

/// RWAPI beside an MPI.
fn plan_of_rwapi(args: &BenchArgs) -> Result<Plan, LabError> {
    let tests = test::chosen_of_rwapi(&args.tests, &args.sizes)?;
    let place = Place::of(args)?;
    let rails = place.rails_to_cut(args);
    let contenders = contender::chosen_of_rwapi(&args.peers, place.family(), rails.map(|_| ()))?;
    let prefix = rwapi::prefix(args.rwapi_prefix.as_deref())?;
    let programs = rwapi::build(&place.compiler(args.mpicc.as_deref())?, &prefix, &args.dir)?;
    let cuts = rails.unwrap_or(0);
    let turn = |contender: contender::Contender| {
        let ms = if contender.is_cut() { cuts::length_ms(cuts, args.ms) } else { args.ms };
        let words = programs.words(contender.is_rwapi(), &tests, ms, contender.is_cut());
        let faults =
            contender.is_cut().then(|| Faults { schedule: cuts::schedule(&tests, cuts), on_start: false });
        Turn { words, contender, faults }
    };
    let turns = contenders.into_iter().map(turn).collect();
    Ok(Plan { tests, place, turns, cuts })
}

fn measure(args: &BenchArgs) -> Result<bool, LabError> {
    let plan = if args.rwapi { plan_of_rwapi(args)? } else { plan(args)? };
    let names = plan.turns.iter().map(|turn| turn.contender.name.clone()).collect();
    let mut figures = Figures::new(&plan.place.describe(), names);
    for (i, _) in plan.turns.iter().enumerate().filter(|(_, turn)| turn.contender.is_cut()) {
        figures.expect_cuts(i, plan.cuts);
    }
    // the program is there, so the directory is
    let events = args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone()).join("events.jsonl");
    for round in 1..=args.rounds {
        for (i, turn) in plan.turns.iter().enumerate() {
            eprintln!("rerail bench: round {round} of {}: {}", args.rounds, turn.contender.name);
            // a turn's events by themselves; there are none where there is no lab
            let _ = std::fs::remove_file(&events);
            let command = plan.place.command(turn, &events)?;
            match program::measure(command, Duration::from_secs(args.patience)) {
                Ok(output) => figures.add(i, &output, &std::fs::read_to_string(&events).unwrap_or_default()),
                Err(why) => {
                    eprintln!("rerail bench: {}: {why}", turn.contender.name);
                    figures.add_failure(i, &why);
                }
            }
        }
    }
    report::print(&figures, &plan.tests);
    if let Some(file) = &args.json {
        write(file, &report::json(&figures, &plan.tests))?;
    }
    if let Some(dir) = &args.svg {
        draw(&figures, &plan.tests, dir)?;
    }
    Ok(figures.failures.is_empty())
}

fn draw(figures: &Figures, tests: &[Test], dir: &std::path::Path) -> Result<(), LabError> {
    for test in tests.iter().filter(|t| t.sizes.len() > 1) {
        let name = test.kind.name();
        write(&dir.join(format!("{name}.svg")), &plot::draw(figures, test, View::Measured)?)?;
        if test.kind.is_of_rwapi() {
            let svg = plot::draw(figures, test, View::Throughput)?;
            write(&dir.join(format!("{name}-throughput.svg")), &svg)?;
        }
    }
    match timeline::draw(figures)? {
        Some(svg) => write(&dir.join("failover.svg"), &svg),
        None => Ok(()),
    }
}

fn write(file: &std::path::Path, text: &str) -> Result<(), LabError> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(file, text)).map_err(|why| {
        LabError::Input(format!("`{}` cannot be written ({why}): name another place", file.display()))
    })
}

/// `8`, `64K`, `4M`.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let (number, factor) = match text.strip_suffix(['K', 'k']) {
        Some(number) => (number, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 1 << 20),
            None => (text, 1),
        },
    };
    let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(factor));
    bytes
        .filter(|&n| (1..=1 << 30).contains(&n))
        .ok_or_else(|| "write a number of bytes from 1 to 1024M, such as 8, 64K or 4M".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(["8", "64K", "4M"].map(|t| parse_bytes(t).unwrap()), [8, 65_536, 4 << 20]);
        for text in ["", "0", "K", "-1", "2G", "1.5M", "2000M"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
