//! mpi4py's own tests: as a program of the campaign, and compared between Rerail and libfabric's tcp.
//!
//! They are in mpi4py's source package only, so that is fetched, by version and hash. tests/mpi/suite.py runs them.

use super::case::Draw;
use super::job::{Fabric, Job, Met, crowd};
use super::program::Launch;
use super::{directory, evidence};
use crate::record::read_events;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use xtask::mpi::Mpi;
use xtask::workspace::{output, root, run as run_command, state_dir};

/// The words of tests/mpi/suite.py when no test failed.
pub const WELL: &str = "all as they should be";

const VERSION: &str = "4.1.2";
const SHA256: &str = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02";

/// Files that are not run, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("test_dynproc", "joins processes while they run: for a later issue"),
    ("test_spawn", "starts processes while it runs: for a later issue"),
    ("test_util_pool", "its pool starts processes while it runs"),
    ("test_file", "files, no messages"),
    ("test_io", "files, no messages"),
];

/// A test that is not run, because over tcp, too, it does not come out well, or not always.
struct Known {
    pattern: &'static str,
    mpi: Mpi,
    /// From so many ranks on.
    ranks: usize,
    cause: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        pattern: "test_comm_topo.TestTopoWorld*.testDistgraphcomm",
        mpi: Mpi::Mpich,
        ranks: 1,
        cause: "MPICH keeps messages of a rank to itself in another queue than those of other nodes, and asks the two in another \
                order when it probes for any source than when it receives from any source; Create_dist_graph relies on both \
                giving the same message. It goes wrong over tcp as well, only less often",
    },
    Known {
        pattern: "test_comm_inter.TestIntercomm*.testSplitTypeShared",
        mpi: Mpi::Open5,
        ranks: 3,
        cause: "never ends when the groups of an intercommunicator are spread unevenly over two nodes: one rank waits in \
                ompi_comm_set, the others have gone on to ompi_comm_nextcid; over tcp every time as well",
    },
    spin_lock("test_util_sync.TestMutex*World.*", Mpi::Mpich),
    spin_lock("test_util_sync.TestCondition*World.*", Mpi::Mpich),
    spin_lock("test_util_sync.TestSemaphore*World.*", Mpi::Mpich),
    spin_lock("test_util_sync.TestMutex*World.*", Mpi::Intel),
    spin_lock("test_util_sync.TestCondition*World.*", Mpi::Intel),
    spin_lock("test_util_sync.TestSemaphore*World.*", Mpi::Intel),
];

/// What waits in mpi4py's lock over one-sided operations.
const fn spin_lock(pattern: &'static str, mpi: Mpi) -> Known {
    Known {
        pattern,
        mpi,
        ranks: 2,
        cause: "mpi4py's lock empties its own place in the queue by an accumulate that it does not wait for before it says that it waits; \
                where that comes after its follower's entry, both spin for ever. Under MPICH, without a cut, 3 of 60 runs over Rerail and \
                7 of 60 over tcp; over tcp with that accumulate flushed none of 60",
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

/// What the files of the ranks begin with.
const RANKS_FILE: &str = "tests";

/// The variable that tells tests/mpi/suite.py where to write.
pub fn results_in(dir: &Path) -> (String, String) {
    ("RERAIL_SUITE_RESULTS".into(), dir.join(RANKS_FILE).to_string_lossy().into_owned())
}

/// Nothing written for so long by any rank means that a test hangs: with a rank per core, with three ranks, and with more; longer where
/// others use the machine too. The longest test takes a few seconds, some of them without a message; but with five ranks on two cores
/// Open MPI's accumulates, a lock over the network for each, take six minutes, and longer while rails are cut.
const STUCK: [Duration; 3] = [Duration::from_secs(45), Duration::from_secs(120), Duration::from_secs(900)];
/// Runs are begun again behind a test that hung or died, but not for ever.
const RUNS_MAX: usize = 8;

fn source_dir() -> PathBuf {
    state_dir().join(format!("mpi4py-{VERSION}"))
}

fn tests_dir() -> PathBuf {
    source_dir().join("test")
}

/// Fetches the tests, if they are not there.
pub fn setup() -> Result<()> {
    if tests_dir().is_dir() {
        return Ok(());
    }
    let archive = state_dir().join(format!("mpi4py-{VERSION}.tar.gz"));
    eprintln!("campaign: fetching the tests of mpi4py {VERSION}");
    let python = Mpi::Mpich.prefix().join("bin/python");
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        "mpi4py",
    ]);
    run_command(pip.arg("-d").arg(state_dir()).arg(format!("mpi4py=={VERSION}")))
        .context("could not fetch the source of mpi4py; is a Python package index within reach?")?;
    let hash = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())";
    let found = output(Command::new(&python).args(["-c", hash]).arg(&archive))?;
    if found.trim() != SHA256 {
        bail!(
            "{} has the hash {}, and should have {SHA256}: it was not unpacked",
            archive.display(),
            found.trim()
        );
    }
    run_command(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(state_dir()))
}

/// All test files but those of [`LEFT_OUT`]; or of these only the ones whose names contain one of `only`.
fn modules(only: &[String]) -> Result<Vec<String>> {
    let dir = tests_dir();
    let list = fs::read_dir(&dir).with_context(|| format!("could not read {}", dir.display()))?;
    let mut names: Vec<String> = list
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().strip_suffix(".py")?.to_string();
            (name.starts_with("test_") && !LEFT_OUT.iter().any(|(out, _)| *out == name)).then_some(name)
        })
        .collect();
    names.retain(|name| only.is_empty() || only.iter().any(|o| name.contains(o.as_str())));
    if names.is_empty() {
        bail!("no test file of mpi4py's that is run is called so: write such as --files test_rma");
    }
    names.sort();
    Ok(names)
}

fn arguments(mpi: Mpi, modules: &[String], without: &[String]) -> Vec<String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut arguments = vec![
        text(mpi.prefix().join("bin/python")),
        text(root().join("tests/mpi/suite.py")),
        "--tests".into(),
        text(tests_dir()),
        "--modules".into(),
        modules.join(","),
    ];
    for pattern in without {
        arguments.extend(["--without".into(), pattern.clone()]);
    }
    arguments
}

fn known(mpi: Mpi, ranks: usize) -> Vec<String> {
    let here = KNOWN.iter().filter(|known| known.mpi == mpi && ranks >= known.ranks);
    here.map(|known| known.pattern.to_string()).collect()
}

/// As a program of the campaign: files that send messages, drawn until there is enough for the time.
pub fn launch(draw: &mut Draw, mpi: Mpi, seconds: f64) -> Launch {
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
    let arguments = arguments(mpi, &chosen, &known(mpi, ranks));
    Launch { ranks, arguments, env: Vec::new(), seconds: total * crowd }
}

/// What makes an MPI use the provider between ranks of one node as well.
fn no_shared_memory(mpi: Mpi) -> Vec<(String, String)> {
    let (name, value) = match mpi {
        Mpi::Mpich => ("MPIR_CVAR_NOLOCAL", "1"),
        Mpi::Intel => ("I_MPI_FABRICS", "ofi"),
        // mtl ofi carries everything.
        Mpi::Open5 | Mpi::Open4 => return Vec::new(),
    };
    vec![(name.into(), value.into())]
}

/// Worst last.
const OUTCOMES: [&str; 8] = ["ok", "skipped", NOT_RUN, UNPROVED, "failed", "error", "hung", "died"];
const NOT_RUN: &str = "not run";
const UNPROVED: &str = "unproved";

fn badness(outcome: &str) -> Option<usize> {
    OUTCOMES.iter().position(|one| *one == outcome)
}

/// What became of each test, by the worst of its ranks.
type Outcomes = BTreeMap<String, (String, String)>;

fn note(outcomes: &mut Outcomes, test: &str, outcome: &str, detail: &str) {
    let entry = outcomes.entry(test.into()).or_insert_with(|| (outcome.into(), detail.into()));
    if badness(outcome) > badness(&entry.0) {
        *entry = (outcome.into(), detail.into());
    }
}

/// For how long a run of the suite is cut at, in seconds: longer than any takes.
const CUTS_S: f64 = 1500.0;

/// Runs the tests on one MPI, fabric and number of ranks; with the seed of cuts, while rails are cut every two seconds.
fn suite(
    mpi: Mpi,
    fabric: Fabric,
    ranks: usize,
    files: &[String],
    cuts: Option<u64>,
    dir: &Path,
) -> Result<Outcomes> {
    let mut outcomes = Outcomes::new();
    let mut left = modules(files)?;
    let mut without = known(mpi, ranks);
    for attempt in 0..RUNS_MAX {
        let under = if cuts.is_some() { "-cuts" } else { "" };
        let dir = dir.join(format!("{}-{fabric:?}{under}-{ranks}-{attempt}", mpi.name()).to_lowercase());
        let schedule = cuts.map_or(String::new(), |seed| {
            super::fault::unceasing(&mut Draw::new(seed, attempt as u64), CUTS_S)
        });
        let phases = cuts.map(|_| ("RERAIL_PHASES".to_string(), "message-1".to_string()));
        let results = dir.join(RANKS_FILE);
        let arguments = arguments(mpi, &left, &without);
        let job = Job {
            name: format!("suite-{}", std::process::id()),
            mpi,
            fabric,
            ranks,
            rails: &["unshaped", "unshaped"],
            schedule: &schedule,
            env: [no_shared_memory(mpi), vec![results_in(&dir)], phases.into_iter().collect()].concat(),
            arguments: &arguments,
        };
        let mut child = job.start(&dir)?;
        let stuck = wait_while_it_writes(&mut child, &job.name, &dir, &results, ranks)?;
        let unfinished = take_in(&mut outcomes, &dir, ranks, cuts.is_some());
        // Ranks that had gone further only wait for the one that is furthest behind.
        let Some(first) = unfinished.iter().min_by_key(|name| module_place(&left, name)).cloned() else {
            return Ok(outcomes);
        };
        let module = first.split('.').next().unwrap_or_default().to_string();
        for test in &unfinished {
            note(&mut outcomes, test, if stuck { "hung" } else { "died" }, &format!("see {}", dir.display()));
            without.push(test.clone());
        }
        // The second time it is the file that cannot be run.
        if left.first() == Some(&module) {
            without.push(format!("{module}.*"));
        }
        left = left.into_iter().skip_while(|name| *name != module).collect();
    }
    Ok(outcomes)
}

/// Takes in what a run left behind; returns the tests that began and did not end. What passed without the cuts that it was to meet proves
/// nothing.
fn take_in(outcomes: &mut Outcomes, dir: &Path, ranks: usize, is_to_be_cut: bool) -> BTreeSet<String> {
    let is_proved = !is_to_be_cut || Met::of(&read_events(&dir.join("events.jsonl"))).cuts > 0;
    let mut unfinished = BTreeSet::new();
    for rank in 0..ranks {
        let text = fs::read_to_string(dir.join(format!("{RANKS_FILE}.{rank}"))).unwrap_or_default();
        let mut begun = None;
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let field = |name: &str| line[name].as_str().unwrap_or_default();
            if line["begin"].is_string() {
                begun = Some(field("begin").to_string());
            }
            if line["test"].is_string() {
                match field("outcome") {
                    "ok" if !is_proved => {
                        note(
                            outcomes,
                            field("test"),
                            UNPROVED,
                            &format!("no cut was made: see {}", dir.display()),
                        );
                    }
                    outcome => note(outcomes, field("test"), outcome, field("detail")),
                }
                begun = begun.filter(|name| name != field("test"));
            }
        }
        unfinished.extend(begun);
    }
    unfinished
}

fn module_place(modules: &[String], test: &str) -> Option<usize> {
    modules.iter().position(|module| test.starts_with(&format!("{module}.")))
}

/// Waits for a run; true if it had to be ended because no rank wrote anything any more.
fn wait_while_it_writes(
    child: &mut std::process::Child,
    name: &str,
    dir: &Path,
    results: &Path,
    ranks: usize,
) -> Result<bool> {
    let size = || -> u64 {
        (0..ranks)
            .filter_map(|rank| Some(fs::metadata(format!("{}.{rank}", results.display())).ok()?.len()))
            .sum()
    };
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        if child.try_wait().context("could not wait for the lab")?.is_some() {
            return Ok(false);
        }
        let now = size();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        let stuck = match ranks {
            0..=2 => STUCK[0],
            3 => STUCK[1],
            _ => STUCK[2],
        };
        if since.elapsed() > stuck.mul_f64(crowd()) {
            evidence::collect(name, dir);
            crate::lab::wait(child, Duration::ZERO)?;
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs everything over both fabrics and writes what differs; with a seed, over Rerail once more while rails are cut. Without
/// `tcp`, where that hangs in too many tests to wait for, whatever is not well over Rerail is told.
pub fn compare(mpis: &[Mpi], ranks: &[usize], files: &[String], cuts: Option<u64>, tcp: bool) -> Result<()> {
    const RANKS: [usize; 4] = [1, 2, 3, 5];

    let ranks = if ranks.is_empty() { &RANKS } else { ranks };
    let dir = directory().join("mpi4py");
    let mut text = format!("mpi4py {VERSION}, its own tests, over libfabric's tcp and over Rerail.\n\n");
    text += "| MPI | ranks | over | tests | passed | skipped | other than over tcp |\n|---|---|---|---|---|---|---|\n";
    let mut differences = String::new();
    let mut worse = 0;
    for &mpi in mpis {
        for &ranks in ranks {
            let over_tcp = if tcp { Some(suite(mpi, Fabric::Tcp, ranks, files, None, &dir)?) } else { None };
            let mut row = |over: &str, outcomes: &Outcomes| {
                let count = |outcome: &str| outcomes.values().filter(|o| o.0 == outcome).count();
                let told = compared(over_tcp.as_ref().unwrap_or(&all_well(outcomes)), outcomes);
                let of = format!("{}, {ranks} ranks, {over}", mpi.name());
                for (name, how, is_worse) in &told {
                    differences += &format!("- {of}: `{name}`: {how}\n");
                    worse += usize::from(*is_worse);
                }
                let row = format!(
                    "| {} | {ranks} | {over} | {} | {} | {} | {} |\n",
                    mpi.name(),
                    outcomes.len(),
                    count("ok"),
                    count("skipped"),
                    told.len()
                );
                print!("{row}");
                text += &row;
            };
            if let Some(outcomes) = &over_tcp {
                row("tcp", outcomes);
            }
            row("Rerail", &suite(mpi, Fabric::Rerail, ranks, files, None, &dir)?);
            // a rank alone has no path that could be cut
            if let Some(seed) = cuts.filter(|_| ranks > 1) {
                row("Rerail, rails cut", &suite(mpi, Fabric::Rerail, ranks, files, Some(seed), &dir)?);
            }
        }
    }
    text += &format!(
        "\n{}\nNot run:\n\n",
        if differences.is_empty() { "Nothing differs.\n" } else { &differences }
    );
    for (name, reason) in LEFT_OUT {
        text += &format!("- `{name}`: {reason}\n");
    }
    for Known { pattern, mpi, ranks, cause } in KNOWN {
        text += &format!("- `{pattern}` on {} with {ranks} ranks or more: {cause}\n", mpi.name());
    }
    let file = directory().join("mpi4py.md");
    fs::write(&file, &text).with_context(|| format!("could not write {}", file.display()))?;
    print!("\n{text}");
    println!("written to {}", file.display());
    if worse > 0 {
        bail!(
            "{worse} tests came out worse over Rerail than {}",
            if tcp { "over tcp" } else { "they should" }
        );
    }
    Ok(())
}

/// The same tests, none of them with a complaint.
fn all_well(outcomes: &Outcomes) -> Outcomes {
    let well = |outcome: &str| if outcome == "skipped" { "skipped" } else { "ok" }.to_string();
    outcomes.iter().map(|(name, o)| (name.clone(), (well(&o.0), String::new()))).collect()
}

/// Tests that came out otherwise than over tcp: name, how, and whether worse.
fn compared(tcp: &Outcomes, rerail: &Outcomes) -> Vec<(String, String, bool)> {
    let names: BTreeSet<&String> = tcp.keys().chain(rerail.keys()).collect();
    let mut told = Vec::new();
    for name in names {
        let of = |outcomes: &Outcomes| {
            outcomes
                .get(name)
                .map_or((NOT_RUN.into(), String::new()), |o| (o.0.clone(), last_line(&o.1).into()))
        };
        let ((on_rerail, here), (on_tcp, there)): ((String, String), (String, String)) =
            (of(rerail), of(tcp));
        if on_rerail != on_tcp {
            let how = format!("{on_rerail} over Rerail, {on_tcp} wanted: {here} / {there}");
            told.push((name.clone(), how, badness(&on_rerail) > badness(&on_tcp)));
        }
    }
    told
}

fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_rank_counts() {
        let mut outcomes = Outcomes::new();
        for outcome in ["ok", "error", "failed"] {
            note(&mut outcomes, "t", outcome, outcome);
        }
        assert_eq!(outcomes["t"].0, "error");
    }

    #[test]
    fn tests_that_met_no_cut_have_not_passed() {
        let dir = std::env::temp_dir().join(format!("rerail-suite-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let lines = r#"{"begin": "a"}
            {"test": "a", "outcome": "ok", "detail": ""}
            {"test": "b", "outcome": "skipped", "detail": ""}
            {"begin": "c"}"#;
        fs::write(dir.join("tests.0"), lines).unwrap();
        let heal = r#"{"t_unix_ns": 1, "source": "lab", "event": "heal", "rail": "rail0"}"#;
        for (events, is_to_be_cut, outcome) in [
            (heal.to_string(), true, UNPROVED),
            (heal.to_string(), false, "ok"),
            (heal.replace("heal", "cut"), true, "ok"),
        ] {
            fs::write(dir.join("events.jsonl"), events).unwrap();
            let mut outcomes = Outcomes::new();
            assert_eq!(take_in(&mut outcomes, &dir, 1, is_to_be_cut), BTreeSet::from(["c".to_string()]));
            assert_eq!((outcomes["a"].0.as_str(), outcomes["b"].0.as_str()), (outcome, "skipped"));
            let is_worse = compared(&all_well(&outcomes), &outcomes).iter().any(|(_, _, is_worse)| *is_worse);
            assert_eq!(is_worse, outcome == UNPROVED);
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_what_differs_is_told_and_only_what_is_worse_counts() {
        let outcomes = |list: &[(&str, &str)]| -> Outcomes {
            list.iter().map(|(test, how)| (test.to_string(), (how.to_string(), String::new()))).collect()
        };
        let tcp = outcomes(&[("a", "ok"), ("b", "failed"), ("c", "ok")]);
        let rerail = outcomes(&[("a", "ok"), ("b", "ok"), ("c", "hung")]);
        let told: Vec<(String, bool)> =
            compared(&tcp, &rerail).into_iter().map(|(name, _, worse)| (name, worse)).collect();
        assert_eq!(told, [("b".to_string(), false), ("c".to_string(), true)]);
    }
}
