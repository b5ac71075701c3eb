//! `rerail-trial campaign`: every MPI, every kind of program, every kind of cut, at random moments, until the time is up.
//!
//! Case I of seed S is drawn from these two numbers alone ([`case`]), so it can be repeated by itself. Each ends in one of
//! [`Outcome`]; a case that did not pass keeps its files, with evidence of where it hung ([`evidence`]).

mod case;
mod draw;
mod evidence;
mod fault;
mod job;
mod leaks;
pub(crate) mod mpi4py;
mod program;
mod suite;

use crate::lab;
use crate::options::{self, time};
use anyhow::{Context, Result, bail};
use case::Case;
use fault::Kind;
use job::{Ended, Launcher, Outcome};
use program::{MPIS, PROGRAMS};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use xtask::mpi::Mpi;
use xtask::workspace::state_dir;
use xtask::{build, setup};

/// Random cuts into every program under every MPI, and a table of what became of it
#[derive(Debug, clap::Args)]
pub struct Options {
    /// For about so long, such as 90s, 40min or 1h
    #[arg(long, value_name = "T", default_value = "10min", value_parser = time)]
    time: Duration,
    /// The seed of everything that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Begin at this case of the seed
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    from: u64,
    /// Repeat precisely this case
    #[arg(long = "case", value_name = "SEED:INDEX", value_parser = seed_and_index)]
    one: Option<(u64, u64)>,
    /// Only cases of this MPI; may be repeated
    #[arg(long = "mpi", value_name = "NAME", value_parser = mpi)]
    mpis: Vec<Mpi>,
    /// Only cases of programs whose name contains NAME; may be repeated
    #[arg(long = "program", value_name = "NAME", value_parser = program)]
    programs: Vec<String>,
    /// Only cases that this launcher starts: own (the MPI's) or rerail (`rerail launch`); with --mpi4py-compare: started by it [default there: own]
    #[arg(long, value_name = "NAME", value_parser = launcher)]
    launcher: Option<Launcher>,
    /// Only cases of this kind of cut; may be repeated
    #[arg(long = "cut", value_name = "NAME", value_parser = kind)]
    kinds: Vec<Kind>,
    /// Print the names, and the first cases of the seed
    #[arg(long)]
    list: bool,
    /// Keep the files of cases that passed, too
    #[arg(long)]
    keep: bool,
    /// With what was built last
    #[arg(long)]
    no_build: bool,
    /// N cuts into one job, and whether descriptors, threads or memory grow
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "500")]
    leaks: Option<u32>,
    /// mpi4py's own tests over Rerail and over libfabric's tcp, with 1, 2, 3 and 5 ranks: what differs
    #[arg(long = "mpi4py-compare")]
    compare: bool,
    /// With --mpi4py-compare: only with so many ranks; may be repeated
    #[arg(long, value_name = "N", requires = "compare")]
    ranks: Vec<usize>,
    /// With --mpi4py-compare: only the test files whose names contain NAME; may be repeated
    #[arg(long, value_name = "NAME", requires = "compare")]
    files: Vec<String>,
    /// With --mpi4py-compare: only over Rerail; what fails there is reported
    #[arg(long, requires = "compare")]
    without_tcp: bool,
    /// With --mpi4py-compare: over Rerail once more, while rails are cut every two seconds
    #[arg(long, requires = "compare")]
    cuts: bool,
}

fn seed_and_index(text: &str) -> Result<(u64, u64), String> {
    let pair = text.split_once(':').and_then(|(seed, index)| Some((seed.parse().ok()?, index.parse().ok()?)));
    pair.ok_or_else(|| "write SEED:INDEX, such as 1:42".into())
}

fn mpi(name: &str) -> Result<Mpi, String> {
    let found = MPIS.into_iter().find(|mpi| mpi.name() == name);
    found.ok_or_else(|| format!("choose from {}", MPIS.map(Mpi::name).join(", ")))
}

fn program(name: &str) -> Result<String, String> {
    let known = PROGRAMS.iter().any(|program| program.name.contains(name));
    known.then(|| name.to_string()).ok_or_else(|| "no program is named like it; --list names them".into())
}

fn kind(name: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| format!("choose from {}", Kind::ALL.map(Kind::name).join(", ")))
}

fn launcher(name: &str) -> Result<Launcher, String> {
    let found = Launcher::ALL.into_iter().find(|launcher| launcher.name() == name);
    found.ok_or_else(|| format!("choose from {}", Launcher::ALL.map(Launcher::name).join(", ")))
}

/// A case and its end.
struct Done {
    case: Case,
    ended: Ended,
}

/// Counts over a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Cases that ended well.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases that ended well without their fault.
    pub unproved: usize,
    /// Cases whose MPI is not installed, or whose wires cannot be made.
    pub skipped: usize,
}

/// Does what the options say.
pub fn run(options: &Options) -> Result<()> {
    if options.list {
        list(options);
        return Ok(());
    }
    setup::run()?;
    mpi4py::setup()?;
    if !options.no_build {
        build::run()?;
    }
    if let Some(reason) = lab::why_impossible(&directory().join("probe")) {
        bail!("no lab can be made on this machine: {reason}");
    }
    if let Some(cuts) = options.leaks {
        return leaks::run(cuts, &installed(&options.mpis)?);
    }
    if options.compare {
        let cuts = options.cuts.then_some(options.seed);
        let (mpis, tcp) = (installed(&options.mpis)?, !options.without_tcp);
        let launcher = options.launcher.unwrap_or(Launcher::Own);
        return suite::compare(&mpis, launcher, &options.ranks, &options.files, cuts, tcp);
    }
    let tally = campaign(options)?;
    let Tally { passed, failed, unproved, .. } = tally;
    if failed > 0 {
        bail!("{failed} of {} cases did not pass", passed + failed + unproved);
    }
    if unproved > 0 && passed == 0 {
        bail!("no case met its fault");
    }
    Ok(())
}

/// The short campaign of `cargo xtask test`, and a short watch for leaks.
pub fn short() -> Result<Tally> {
    if let Some(reason) = lab::why_impossible(&directory().join("probe")) {
        println!("SKIPPED: the fault campaign: no lab on this machine: {reason}");
        return Ok(Tally { skipped: 1, ..Tally::default() });
    }
    mpi4py::setup()?;
    let mut tally = campaign(&options::of(&["--time", "60s"])?)?;
    match leaks::run(60, &[Mpi::Mpich]) {
        Ok(()) => tally.passed += 1,
        Err(error) => {
            println!("leaks FAILED: {error:#}");
            tally.failed += 1;
        }
    }
    Ok(tally)
}

fn installed(wanted: &[Mpi]) -> Result<Vec<Mpi>> {
    let wanted = MPIS.into_iter().filter(|mpi| wanted.is_empty() || wanted.contains(mpi));
    let found: Vec<Mpi> = wanted.filter(|mpi| mpi.is_installed()).collect();
    if found.is_empty() {
        bail!("none of the wanted MPIs is installed: run `cargo xtask setup`");
    }
    Ok(found)
}

fn list(options: &Options) {
    let names = |names: Vec<&str>| names.join(" ");
    println!("MPIs:     {}", names(MPIS.iter().map(|mpi| mpi.name()).collect()));
    println!("programs: {}", names(PROGRAMS.iter().map(|program| program.name).collect()));
    println!("cuts:     {}", names(Kind::ALL.iter().map(|kind| kind.name()).collect()));
    for index in options.from..options.from + 40 {
        println!("{}", Case::draw(options.seed, index));
    }
}

impl Options {
    fn wants(&self, case: &Case) -> bool {
        (self.mpis.is_empty() || self.mpis.contains(&case.mpi))
            && (self.programs.is_empty() || self.programs.iter().any(|name| case.program.name.contains(name)))
            && (self.kinds.is_empty() || self.kinds.contains(&case.kind))
            && self.launcher.is_none_or(|launcher| launcher == case.launcher)
    }
}

fn directory() -> PathBuf {
    state_dir().join("campaign")
}

fn campaign(options: &Options) -> Result<Tally> {
    let seed = options.one.map_or(options.seed, |(seed, _)| seed);
    let cases = directory().join("cases");
    std::fs::create_dir_all(&cases).with_context(|| format!("could not make {}", cases.display()))?;
    let name = match options.one {
        Some((seed, index)) => format!("case-{seed}-{index}"),
        None => format!("results-{seed}"),
    };
    let lines = directory().join(format!("{name}.jsonl"));
    let mut results = File::create(&lines).with_context(|| format!("could not write {}", lines.display()))?;
    println!(
        "campaign: seed {seed}, {}",
        options
            .one
            .map_or(format!("{} s", options.time.as_secs()), |(_, index)| format!("case {index} only"))
    );
    let no_wire = lab::why_no_wire(&directory().join("probe"));
    if let Some(reason) = &no_wire {
        println!("SKIPPED: the kinds that need a wire: no wire on this machine: {reason}");
    }
    let begun = Instant::now();
    let mut done: Vec<Done> = Vec::new();
    let mut skipped = 0;
    let first = options.one.map_or(options.from, |(_, index)| index);
    for index in first.. {
        if options.one.is_some() && index > first || options.one.is_none() && begun.elapsed() >= options.time
        {
            break;
        }
        if index - first > 1_000_000 {
            bail!("no case of seed {seed} is as asked for");
        }
        let case = Case::draw(seed, index);
        if options.one.is_none() && !options.wants(&case) {
            continue;
        }
        if !case.mpi.is_installed() || case.kind.needs_wires() && no_wire.is_some() {
            skipped += 1;
            continue;
        }
        let ended =
            job::run(&case, &cases.join(format!("{seed}-{index}")), options.keep || options.one.is_some())?;
        println!("{:<8} {case}  ({:.1} s){}", ended.outcome.name(), ended.took.as_secs_f64(), ended.told());
        let line = json!({
            "seed": seed,
            "index": index,
            "program": case.program.name,
            "mpi": case.mpi.name(),
            "launcher": case.launcher.name(),
            "cut": case.kind.name(),
            "ranks": case.launch.ranks,
            "rails": case.rails,
            "schedule": case.schedule,
            "arguments": case.launch.arguments,
            "outcome": ended.outcome.name(),
            "reason": ended.reason,
            "seconds": ended.took.as_secs_f64(),
            "cuts": ended.cuts,
            "replay": case.replay(),
            "files": ended.files,
        });
        writeln!(results, "{line}").with_context(|| format!("could not write {}", lines.display()))?;
        done.push(Done { case, ended });
    }
    let table = table(seed, begun.elapsed(), skipped, &done);
    print!("\n{table}");
    let markdown = directory().join(format!("{name}.md"));
    std::fs::write(&markdown, &table).with_context(|| format!("could not write {}", markdown.display()))?;
    println!("written to {} and {}", lines.display(), markdown.display());
    let count = |outcome| done.iter().filter(|done| done.ended.outcome == outcome).count();
    let (passed, unproved) = (count(Outcome::Passed), count(Outcome::Unproved));
    Ok(Tally { passed, failed: done.len() - passed - unproved, unproved, skipped })
}

/// The results as Markdown: kinds of cut down, MPIs across; then programs; then every case that did not pass.
fn table(seed: u64, took: Duration, skipped: usize, done: &[Done]) -> String {
    let mut text = String::new();
    let count = |outcome: Outcome| done.iter().filter(|done| done.ended.outcome == outcome).count();
    let line = |text: &mut String, line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(
        &mut text,
        format!(
            "Seed {seed}, {:.0} min, {} cases, {} cuts: {} passed, {} unproved, {} wrong, {} aborted, {} hung{}.\n",
            took.as_secs_f64() / 60.0,
            done.len(),
            done.iter().map(|done| done.ended.cuts).sum::<usize>(),
            count(Outcome::Passed),
            count(Outcome::Unproved),
            count(Outcome::Wrong),
            count(Outcome::Aborted),
            count(Outcome::Hung),
            if skipped > 0 {
                format!("; {skipped} skipped, because their MPI is not installed or wires cannot be made")
            } else {
                String::new()
            },
        ),
    );
    for (title, key) in [
        ("cut", (|case: &Case| case.kind.name()) as fn(&Case) -> &'static str),
        ("program", |case| case.program.name),
    ] {
        let mut rows: BTreeMap<&str, BTreeMap<&str, (usize, usize)>> = BTreeMap::new();
        for Done { case, ended } in done {
            let cell = rows.entry(key(case)).or_default().entry(case.mpi.name()).or_default();
            cell.0 += usize::from(ended.outcome == Outcome::Passed);
            cell.1 += 1;
        }
        let names: Vec<&str> = MPIS.iter().map(|mpi| mpi.name()).collect();
        line(&mut text, format!("| {title}, passed of all | {} |", names.join(" | ")));
        line(&mut text, format!("|---|{}", "---|".repeat(names.len())));
        for (row, cells) in rows {
            let cells: Vec<String> = names
                .iter()
                .map(|name| {
                    cells.get(name).map_or("–".into(), |(passed, all)| format!("{passed} of {all}"))
                })
                .collect();
            line(&mut text, format!("| {row} | {} |", cells.join(" | ")));
        }
        text.push('\n');
    }
    for Done { case, ended } in done.iter().filter(|done| done.ended.outcome != Outcome::Passed) {
        let _ = writeln!(
            text,
            "- **{}**: {case}{}; repeat: `{}`",
            ended.outcome.name(),
            ended.told(),
            case.replay()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_command_names_its_case() {
        assert_eq!(options::of::<Options>(&["--case", "7:12"]).unwrap().one, Some((7, 12)));
        let case = Case::draw(7, 12);
        assert!(case.replay().ends_with("--case 7:12"));
        for wrong in [["--case", "7"], ["--cut", "half"], ["--mpi", "openmpi4"], ["--ranks", "2"]] {
            assert!(options::of::<Options>(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_number_of_leaks_may_be_left_out() {
        let leaks = |words: &[&str]| options::of::<Options>(words).unwrap().leaks;
        assert_eq!(
            [leaks(&[]), leaks(&["--leaks"]), leaks(&["--leaks", "60", "--keep"])],
            [None, Some(500), Some(60)]
        );
    }
}
