//! The programs of the campaign: how each is started, and what it says when all was well.

use super::case::Draw;
use super::suite;
use crate::mpi::Mpi;

/// A program.
pub struct Program {
    /// Its name in commands and tables.
    pub name: &'static str,
    /// The MPIs it runs on.
    pub mpis: &'static [Mpi],
    /// How to start it so that it runs about so many seconds.
    pub launch: fn(&mut Draw, Mpi, f64) -> Launch,
    /// What it prints when all was well.
    pub says: &'static str,
    /// Whether tests/mpi/phase.c is to be preloaded; otherwise it announces its phases itself.
    pub preload: bool,
}

/// How a program is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Ranks, over two nodes.
    pub ranks: usize,
    /// The program and its arguments; the first is a path.
    pub arguments: Vec<String>,
    /// About how long it runs without faults after its first message, in seconds.
    pub seconds: f64,
}

/// MPIs with MPICH's ABI, which IMB is compiled for.
const MPICH_ABI: &[Mpi] = &[Mpi::Mpich, Mpi::Intel];
const ALL: &[Mpi] = &super::case::MPIS;

/// Every program.
pub const PROGRAMS: &[Program] = &[
    Program { name: "checked", mpis: ALL, launch: checked, says: RIGHT, preload: true },
    Program { name: "imb-mpi1", mpis: MPICH_ABI, launch: imb_mpi1, says: IMB_END, preload: true },
    Program { name: "imb-nbc", mpis: MPICH_ABI, launch: imb_nbc, says: IMB_END, preload: true },
    Program { name: "mpi4py", mpis: ALL, launch: suite::launch, says: suite::WELL, preload: false },
    Program { name: "nas-cg", mpis: ALL, launch: |d, m, s| nas(d, m, s, "cg"), says: RIGHT, preload: true },
    Program { name: "nas-ft", mpis: ALL, launch: |d, m, s| nas(d, m, s, "ft"), says: RIGHT, preload: true },
    Program { name: "nas-is", mpis: ALL, launch: |d, m, s| nas(d, m, s, "is"), says: RIGHT, preload: true },
    Program { name: "nas-lu", mpis: ALL, launch: |d, m, s| nas(d, m, s, "lu"), says: RIGHT, preload: true },
    Program { name: "nas-mg", mpis: ALL, launch: |d, m, s| nas(d, m, s, "mg"), says: RIGHT, preload: true },
    Program { name: "onesided", mpis: ALL, launch: onesided, says: RIGHT, preload: true },
];

const RIGHT: &str = "every byte right";
const IMB_END: &str = "All processes entering MPI_Finalize";

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn checked(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
    let program = mpi.program("checked").to_string_lossy().into_owned();
    let seed = (draw.next() % 1_000_000).to_string();
    let max = draw.one_of(&["64KiB", "1MiB", "4MiB"]);
    let arguments = words(&[&program, "--seconds", &seconds.to_string(), "--seed", &seed, "--max", max]);
    Launch { ranks: draw.one_of(&[2, 3, 4]), arguments, seconds }
}

fn nas(draw: &mut Draw, mpi: Mpi, seconds: f64, kernel: &str) -> Launch {
    let program = mpi.program("nas").to_string_lossy().into_owned();
    let seed = (draw.next() % 1_000_000).to_string();
    let arguments = words(&[&program, kernel, "--seconds", &seconds.to_string(), "--seed", &seed]);
    Launch { ranks: 4, arguments, seconds }
}

fn onesided(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
    let program = mpi.program("onesided").to_string_lossy().into_owned();
    let seed = (draw.next() % 1_000_000).to_string();
    let max = draw.one_of(&["4KiB", "64KiB", "1MiB"]);
    let arguments = words(&[&program, "--seconds", &seconds.to_string(), "--seed", &seed, "--max", max]);
    Launch { ranks: draw.one_of(&[2, 3, 4]), arguments, seconds }
}

const MPI1: &[&str] = &[
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
    "Scatterv",
    "Gather",
    "Gatherv",
    "Alltoall",
    "Alltoallv",
    "Bcast",
    "Barrier",
    "Uniband",
    "Biband",
];

const NBC: &[&str] = &[
    "Ibcast",
    "Iallgather",
    "Iallgatherv",
    "Igather",
    "Igatherv",
    "Iscatter",
    "Iscatterv",
    "Ialltoall",
    "Ialltoallv",
    "Ireduce",
    "Ireduce_scatter",
    "Iallreduce",
    "Ibarrier",
];

fn imb_mpi1(draw: &mut Draw, _: Mpi, seconds: f64) -> Launch {
    imb(draw, seconds, "IMB-MPI1", MPI1)
}

fn imb_nbc(draw: &mut Draw, _: Mpi, seconds: f64) -> Launch {
    imb(draw, seconds, "IMB-NBC", NBC)
}

/// Three benchmarks with 16 sizes each, by time: IMB stops a size when its time is up, and a disturbed one goes on with the next.
fn imb(draw: &mut Draw, seconds: f64, program: &str, benchmarks: &[&str]) -> Launch {
    const SIZES: f64 = 16.0;
    const BENCHMARKS: usize = 3;
    let path = Mpi::Intel.prefix().join("bin").join(program).to_string_lossy().into_owned();
    let ranks = draw.one_of(&[2, 2, 2, 4]);
    let mut arguments = vec![path];
    for _ in 0..BENCHMARKS {
        arguments.push(draw.one_of(benchmarks).to_string());
    }
    let each = format!("{:.3}", seconds / (BENCHMARKS as f64 * SIZES));
    let count = ranks.to_string();
    arguments.extend(words(&["-npmin", &count, "-iter", "1000", "-time", &each, "-msglog", "3:18"]));
    Launch { ranks, arguments, seconds }
}
