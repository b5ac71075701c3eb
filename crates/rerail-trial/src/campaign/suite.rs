//! mpi4py's own tests, compared between Rerail and libfabric's tcp.

use super::draw::Draw;
use super::job::{Fabric, Job, Launcher, Met, crowd};
use super::mpi4py::{RANKS_FILE, VERSION, arguments, known, modules, not_run, results_in, settings};
use super::{directory, evidence};
use crate::record::read_events;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use xtask::mpi::Mpi;

/// Nothing written for so long by any rank means that a test hangs: with a rank per core, with three ranks, and with more; longer where
/// others use the machine too. The longest test takes a few seconds, some of them without a message; but with five ranks on two cores
/// Open MPI's accumulates, a lock over the network for each, take six minutes, and longer while rails are cut.
const STUCK: [Duration; 3] = [Duration::from_secs(45), Duration::from_secs(120), Duration::from_secs(900)];
/// Runs are begun again behind a test that hung or died, but not for ever.
const RUNS_MAX: usize = 8;

/// The settings of the tests, and the provider between ranks of one node as well.
fn environment(mpi: Mpi) -> Vec<(String, String)> {
    let mut list = settings(mpi);
    // Intel MPI's settings include it, and Open MPI's mtl ofi carries everything.
    if mpi == Mpi::Mpich {
        list.push(("MPIR_CVAR_NOLOCAL", "1".into()));
    }
    list.into_iter().map(|(name, value)| (name.into(), value)).collect()
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
    (fabric, launcher): (Fabric, Launcher),
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
            launcher,
            ranks,
            rails: &["unshaped", "unshaped"],
            schedule: &schedule,
            env: [environment(mpi), vec![results_in(&dir)], phases.into_iter().collect()].concat(),
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
pub fn compare(
    mpis: &[Mpi],
    launcher: Launcher,
    ranks: &[usize],
    files: &[String],
    cuts: Option<u64>,
    tcp: bool,
) -> Result<()> {
    const RANKS: [usize; 4] = [1, 2, 3, 5];

    let ranks = if ranks.is_empty() { &RANKS } else { ranks };
    let dir = directory().join("mpi4py");
    let mut text = format!("mpi4py {VERSION}, its own tests, over libfabric's tcp and over Rerail.\n\n");
    text += "| MPI | ranks | over | tests | passed | skipped | other than over tcp |\n|---|---|---|---|---|---|---|\n";
    let mut differences = String::new();
    let mut worse = 0;
    for &mpi in mpis.iter().filter(|mpi| launcher.starts(**mpi)) {
        for &ranks in ranks {
            let over_tcp =
                if tcp { Some(suite(mpi, (Fabric::Tcp, launcher), ranks, files, None, &dir)?) } else { None };
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
            row("Rerail", &suite(mpi, (Fabric::Rerail, launcher), ranks, files, None, &dir)?);
            // a rank alone has no path that could be cut
            if let Some(seed) = cuts.filter(|_| ranks > 1) {
                row(
                    "Rerail, rails cut",
                    &suite(mpi, (Fabric::Rerail, launcher), ranks, files, Some(seed), &dir)?,
                );
            }
        }
    }
    text += &format!(
        "\n{}\nNot run:\n\n",
        if differences.is_empty() { "Nothing differs.\n" } else { &differences }
    );
    text += &not_run();
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
