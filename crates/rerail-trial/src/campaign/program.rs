//! The programs of the campaign: how each is started, and what it says when all was well.

use super::draw::Draw;
use super::mpi4py;
use xtask::mpi::Mpi;

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
    /// Variables that it wants, besides those of every program.
    pub env: Vec<(&'static str, String)>,
    /// About how long it runs without faults after its first message, in seconds.
    pub seconds: f64,
}

/// The MPIs of the campaign.
pub const MPIS: [Mpi; 3] = [Mpi::Mpich, Mpi::Open5, Mpi::Intel];

/// MPIs with MPICH's ABI, which IMB is compiled for.
const MPICH_ABI: &[Mpi] = &[Mpi::Mpich, Mpi::Intel];
const ALL: &[Mpi] = &MPIS;

/// Every program.
pub const PROGRAMS: &[Program] = &[
    Program { name: "checked", mpis: ALL, launch: checked, says: RIGHT, preload: true },
    Program { name: "imb-mpi1", mpis: MPICH_ABI, launch: imb_mpi1, says: IMB_END, preload: true },
    Program { name: "imb-nbc", mpis: MPICH_ABI, launch: imb_nbc, says: IMB_END, preload: true },
    Program { name: "imb-rma", mpis: MPICH_ABI, launch: imb_rma, says: IMB_END, preload: true },
    Program { name: "imb-p2p", mpis: MPICH_ABI, launch: imb_p2p, says: IMB_END, preload: true },
    Program { name: "imb-mt", mpis: MPICH_ABI, launch: imb_mt, says: THREADS, preload: true },
    Program { name: "mpi4py", mpis: ALL, launch: mpi4py_tests, says: mpi4py::WELL, preload: false },
    Program { name: "nas-cg", mpis: ALL, launch: |d, m, s| nas(d, m, s, "cg"), says: RIGHT, preload: true },
    Program { name: "nas-ft", mpis: ALL, launch: |d, m, s| nas(d, m, s, "ft"), says: RIGHT, preload: true },
    Program { name: "nas-is", mpis: ALL, launch: |d, m, s| nas(d, m, s, "is"), says: RIGHT, preload: true },
    Program { name: "nas-lu", mpis: ALL, launch: |d, m, s| nas(d, m, s, "lu"), says: RIGHT, preload: true },
    Program { name: "nas-mg", mpis: ALL, launch: |d, m, s| nas(d, m, s, "mg"), says: RIGHT, preload: true },
    Program { name: "onesided", mpis: ALL, launch: onesided, says: RIGHT, preload: true },
];

const RIGHT: &str = "every byte right";
const IMB_END: &str = "All processes entering MPI_Finalize";
/// IMB-MT has no last words.
const THREADS: &str = "(threads: 4)";

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn checked(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
    let program = mpi.program("checked").to_string_lossy().into_owned();
    let seed = (draw.next() % 1_000_000).to_string();
    let max = draw.one_of(&["64KiB", "1MiB", "4MiB"]);
    let arguments = words(&[&program, "--seconds", &seconds.to_string(), "--seed", &seed, "--max", max]);
    Launch { ranks: draw.one_of(&[2, 3, 4]), arguments, env: Vec::new(), seconds }
}

fn nas(draw: &mut Draw, mpi: Mpi, seconds: f64, kernel: &str) -> Launch {
    let program = mpi.program("nas").to_string_lossy().into_owned();
    let seed = (draw.next() % 1_000_000).to_string();
    let arguments = words(&[&program, kernel, "--seconds", &seconds.to_string(), "--seed", &seed]);
    Launch { ranks: 4, arguments, env: Vec::new(), seconds }
}

fn onesided(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
    let program = mpi.program("onesided").to_string_lossy().into_owned();
    let seed = (draw.next() % 1_000_000).to_string();
    let max = draw.one_of(&["4KiB", "64KiB", "1MiB"]);
    let arguments = words(&[&program, "--seconds", &seconds.to_string(), "--seed", &seed, "--max", max]);
    let ranks = draw.one_of(&[2, 3, 4]);
    Launch { ranks, arguments, env: native_rma(draw, mpi), seconds }
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

const RMA: &[&str] = &[
    "Unidir_put",
    "Unidir_get",
    "Bidir_put",
    "Bidir_get",
    "One_put_all",
    "One_get_all",
    "All_put_all",
    "All_get_all",
    "Exchange_put",
    "Exchange_get",
    "Accumulate",
    "Get_accumulate",
    "Fetch_and_op",
    "Compare_and_swap",
    "Truly_passive_put",
];

const P2P: &[&str] = &[
    "PingPong",
    "PingPing",
    "Unirandom",
    "Birandom",
    "Corandom",
    "Stencil2D",
    "Stencil3D",
    "SendRecv_Replace",
];

const MT: &[&str] = &[
    "PingPongMT",
    "PingPingMT",
    "SendRecvMT",
    "ExchangeMT",
    "UniBandMT",
    "BiBandMT",
    "BcastMT",
    "BarrierMT",
    "ReduceMT",
    "AllReduceMT",
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
    Launch { ranks, arguments, env: Vec::new(), seconds }
}

/// Half of Intel MPI's one-sided programs use the provider's own operations, the others messages, which is what it is told by default.
fn native_rma(draw: &mut Draw, mpi: Mpi) -> Vec<(&'static str, String)> {
    let native = draw.one_of(&["0", "1"]);
    if mpi == Mpi::Intel { vec![("MPIR_CVAR_CH4_OFI_ENABLE_RMA", native.into())] } else { Vec::new() }
}

fn imb_rma(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
    let launch = imb(draw, seconds, "IMB-RMA", RMA);
    Launch { env: native_rma(draw, mpi), ..launch }
}

/// It does all its repetitions, whatever `-time` says.
fn imb_p2p(draw: &mut Draw, _: Mpi, seconds: f64) -> Launch {
    let mut launch = imb(draw, seconds, "IMB-P2P", P2P);
    let repeat = ((seconds * 4.0) as u64).max(10).to_string();
    if let Some(at) = launch.arguments.iter().position(|word| word == "-iter") {
        launch.arguments[at + 1] = repeat;
    }
    launch
}

/// MPI_THREAD_MULTIPLE with four threads per rank. It counts repetitions, and has no clock.
fn imb_mt(draw: &mut Draw, _: Mpi, seconds: f64) -> Launch {
    let path = Mpi::Intel.prefix().join("bin/IMB-MT").to_string_lossy().into_owned();
    let repeat = ((seconds * 25.0) as u64).max(10).to_string();
    let mut arguments =
        words(&[&path, "-thread_level", "multiple", "-repeat", &repeat, "-count", "1,256,16384"]);
    for _ in 0..3 {
        arguments.push(draw.one_of(MT).to_string());
    }
    // Only this one library is Intel's: the MPI beside it may be another.
    let openmp = Mpi::Intel.prefix().join("lib/libiomp5.so").to_string_lossy().into_owned();
    Launch {
        ranks: 2,
        arguments,
        env: vec![("OMP_NUM_THREADS", "4".into()), ("LD_PRELOAD", openmp)],
        seconds,
    }
}

/// The files that send messages, with about the seconds that each takes with two ranks.
const MESSAGES: &[(&str, f64)] = &[
    ("test_cco_pr_buf", 6.5),
    ("test_cco_ngh_buf", 4.3),
    ("test_cco_pr_ngh_buf", 3.6),
    ("test_p2p_buf", 2.7),
    ("test_cco_vec", 2.6),
    ("test_cco_pr_vec", 2.4),
    ("test_msgspec", 2.4),
    ("test_p2p_buf_part", 1.7),
    ("test_util_pkl5", 1.1),
    ("test_cco_nb_buf", 1.1),
    ("test_cco_buf", 1.0),
    ("test_cco_nb_vec", 1.0),
    ("test_p2p_buf_matched", 0.9),
    ("test_cco_vec_inter", 0.6),
    ("test_cco_obj_inter", 0.5),
    ("test_cco_obj", 0.3),
    ("test_cco_ngh_obj", 0.3),
    ("test_p2p_obj", 0.3),
    ("test_cco_buf_inter", 0.2),
    ("test_comm_topo", 0.1),
    ("test_comm", 0.1),
    ("test_comm_inter", 0.1),
    ("test_p2p_obj_matched", 0.1),
];

/// How much longer the tests take with three ranks on two cores.
const CROWD: f64 = 4.0;

/// The tests of mpi4py: files that send messages, drawn until there is enough for the time.
fn mpi4py_tests(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
    let ranks = draw.one_of(&[2, 2, 3]);
    // Ranks that wait for each other's turn on a core take several times as long.
    let crowd = if ranks > 2 { CROWD } else { 1.0 };
    let mut left: Vec<(&str, f64)> = MESSAGES.to_vec();
    let mut chosen = Vec::new();
    let mut total = 0.0;
    while total < seconds && !left.is_empty() {
        let (name, takes) = left.swap_remove(draw.below(left.len()));
        chosen.push(name.to_string());
        total += takes;
    }
    // In mpi4py's own order: under Intel MPI the persistent neighbour collectives of `test_cco_pr_ngh_buf` deliver nothing once
    // the persistent messages of `test_p2p_buf` have run, over libfabric's tcp and without a cut as well.
    chosen.sort();
    let arguments = mpi4py::arguments(mpi, &chosen, &mpi4py::known(mpi, ranks));
    Launch { ranks, arguments, env: mpi4py::settings(mpi), seconds: total * crowd }
}
