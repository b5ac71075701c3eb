//! `cargo xtask campaign`: every MPI, every kind of program, every kind of cut, at random moments, until the time is up.
//!
//! Case I of seed S is drawn from these two numbers alone ([`case`]), so it can be repeated by itself. Each ends in one of
//! [`Outcome`]; a case that did not pass keeps its files, with evidence of where it hung ([`evidence`]).

mod case;
mod evidence;
mod fault;
mod job;
mod leaks;
mod program;
mod suite;

use crate::build;
use crate::lab;
use crate::mpi::Mpi;
use crate::setup;
use crate::workspace::state_dir;
use anyhow::{Context, Result, bail};
use case::Case;
use fault::Kind;
use job::{Ended, Outcome};
use program::PROGRAMS;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The help of this command.
pub const USAGE: &str = "  campaign [OPTIONS]       random cuts into every program under every MPI, and a table of what became of it
      --time T             for about T, such as 90s, 40min or 1h (10min unless told)
      --seed N             the seed of everything that is random (1 unless told)
      --from INDEX         begin at this case of the seed
      --case SEED:INDEX    repeat precisely this case
      --mpi, --program, --cut NAME   only cases of this MPI, program, kind of cut; each may be repeated
      --list               the names, and the first cases of the seed
      --keep               keep the files of cases that passed, too
      --no-build           with what was built last
      --leaks [N]          N cuts (500 unless told) into one job, and whether descriptors, threads or memory grow
      --mpi4py-compare     mpi4py's own tests over Rerail and over libfabric's tcp, with 1, 2, 3 and 5 ranks: what differs
      --ranks N            with --mpi4py-compare: only with so many; may be repeated
      --files NAME         with --mpi4py-compare: only the test files whose names contain NAME; may be repeated
      --without-tcp        with --mpi4py-compare: only over Rerail; what is not well there is told
      --cuts               with --mpi4py-compare: over Rerail once more, while rails are cut every two seconds
";

/// What is to be done.
struct Options {
    time: Duration,
    seed: u64,
    from: u64,
    one: Option<(u64, u64)>,
    mpis: Vec<String>,
    programs: Vec<String>,
    cuts: Vec<String>,
    ranks: Vec<usize>,
    files: Vec<String>,
    list: bool,
    keep: bool,
    build: bool,
    leaks: Option<u32>,
    compare: bool,
    compare_cuts: bool,
    compare_tcp: bool,
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
    /// Cases whose MPI is not installed, or whose wires cannot be made.
    pub skipped: usize,
}

/// Reads the options and does what they say.
pub fn run(arguments: &[String]) -> Result<()> {
    let options = parse(arguments)?;
    if options.list {
        list(&options);
        return Ok(());
    }
    setup::run()?;
    suite::setup()?;
    if options.build {
        build::run()?;
    }
    if let Some(reason) = lab::why_impossible(&directory().join("probe")) {
        bail!("no lab can be made on this machine: {reason}");
    }
    if let Some(cuts) = options.leaks {
        return leaks::run(cuts, &installed(&options.mpis)?);
    }
    if options.compare {
        let cuts = options.compare_cuts.then_some(options.seed);
        return suite::compare(
            &installed(&options.mpis)?,
            &options.ranks,
            &options.files,
            cuts,
            options.compare_tcp,
        );
    }
    let tally = campaign(&options)?;
    if tally.failed > 0 {
        bail!("{} of {} cases did not pass", tally.failed, tally.passed + tally.failed);
    }
    Ok(())
}

/// The short campaign of `cargo xtask test`, and a short watch for leaks.
pub fn short() -> Result<Tally> {
    if let Some(reason) = lab::why_impossible(&directory().join("probe")) {
        println!("SKIPPED: the fault campaign: no lab on this machine: {reason}");
        return Ok(Tally { skipped: 1, ..Tally::default() });
    }
    suite::setup()?;
    let mut tally = campaign(&Options { time: Duration::from_secs(60), ..Options::default() })?;
    match leaks::run(60, &[Mpi::Mpich]) {
        Ok(()) => tally.passed += 1,
        Err(error) => {
            println!("leaks FAILED: {error:#}");
            tally.failed += 1;
        }
    }
    Ok(tally)
}

impl Default for Options {
    fn default() -> Options {
        Options {
            time: Duration::from_secs(600),
            seed: 1,
            from: 0,
            one: None,
            mpis: Vec::new(),
            programs: Vec::new(),
            cuts: Vec::new(),
            ranks: Vec::new(),
            files: Vec::new(),
            list: false,
            keep: false,
            build: true,
            leaks: None,
            compare: false,
            compare_cuts: false,
            compare_tcp: true,
        }
    }
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options::default();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        let mut value = |what: &str| rest.next().cloned().with_context(|| format!("{argument} needs {what}"));
        match argument.as_str() {
            "--time" => options.time = parse_time(&value("a time, such as 40min")?)?,
            "--seed" => options.seed = value("a number")?.parse().context("--seed needs a number")?,
            "--from" => options.from = value("a number")?.parse().context("--from needs a number")?,
            "--case" => {
                let text = value("SEED:INDEX")?;
                let pair = text.split_once(':').and_then(|(s, i)| Some((s.parse().ok()?, i.parse().ok()?)));
                options.one =
                    Some(pair.with_context(|| format!("`{text}` is not SEED:INDEX, such as 1:42"))?);
            }
            "--mpi" => {
                let name = value("the name of an MPI")?;
                if Mpi::named(&name).is_none() {
                    let names: Vec<&str> = case::MPIS.iter().map(|mpi| mpi.name()).collect();
                    bail!("there is no MPI `{name}`: choose {}", names.join(", "));
                }
                options.mpis.push(name);
            }
            "--program" => {
                let name = value("the name of a program")?;
                if !PROGRAMS.iter().any(|program| program.name.contains(&name)) {
                    bail!("no program is named like `{name}`; --list names them");
                }
                options.programs.push(name);
            }
            "--cut" => {
                let name = value("the name of a kind of cut")?;
                if !Kind::ALL.iter().any(|kind| kind.name() == name) {
                    bail!("there is no kind of cut `{name}`; --list names them");
                }
                options.cuts.push(name);
            }
            "--ranks" => options.ranks.push(value("a number")?.parse().context("--ranks needs a number")?),
            "--files" => options.files.push(value("a part of a file's name")?),
            "--list" => options.list = true,
            "--keep" => options.keep = true,
            "--no-build" => options.build = false,
            "--leaks" => {
                let count = rest.peek().and_then(|text| text.parse().ok());
                if count.is_some() {
                    rest.next();
                }
                options.leaks = Some(count.unwrap_or(500));
            }
            "--mpi4py-compare" => options.compare = true,
            "--without-tcp" => options.compare_tcp = false,
            "--cuts" => options.compare_cuts = true,
            other => bail!("campaign has no option `{other}`; see `cargo xtask help`"),
        }
    }
    if (options.compare_cuts || !options.compare_tcp) && !options.compare {
        bail!("--cuts and --without-tcp go with --mpi4py-compare; the cases of a campaign are cut anyhow");
    }
    Ok(options)
}

fn parse_time(text: &str) -> Result<Duration> {
    let wrong = || format!("`{text}` is not a time: write such as 90s, 40min or 1h");
    let split = text.find(|c: char| !c.is_ascii_digit()).with_context(wrong)?;
    let number: u64 = text[..split].parse().ok().with_context(wrong)?;
    let unit = match &text[split..] {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        _ => bail!(wrong()),
    };
    Ok(Duration::from_secs(number * unit))
}

fn installed(names: &[String]) -> Result<Vec<Mpi>> {
    let wanted =
        case::MPIS.iter().copied().filter(|mpi| names.is_empty() || names.iter().any(|n| n == mpi.name()));
    let found: Vec<Mpi> = wanted.filter(|mpi| mpi.is_installed()).collect();
    if found.is_empty() {
        bail!("none of the MPIs asked for is installed: run `cargo xtask setup`");
    }
    Ok(found)
}

fn list(options: &Options) {
    let names = |names: Vec<&str>| names.join(" ");
    println!("MPIs:     {}", names(case::MPIS.iter().map(|mpi| mpi.name()).collect()));
    println!("programs: {}", names(PROGRAMS.iter().map(|program| program.name).collect()));
    println!("cuts:     {}", names(Kind::ALL.iter().map(|kind| kind.name()).collect()));
    for index in options.from..options.from + 40 {
        println!("{}", Case::draw(options.seed, index));
    }
}

impl Options {
    fn wants(&self, case: &Case) -> bool {
        let among = |names: &[String], name: &str| {
            names.is_empty() || names.iter().any(|n| name.contains(n.as_str()))
        };
        let exactly = |names: &[String], name: &str| names.is_empty() || names.iter().any(|n| n == name);
        exactly(&self.mpis, case.mpi.name())
            && among(&self.programs, case.program.name)
            && exactly(&self.cuts, case.kind.name())
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
    let failed = done.iter().filter(|done| done.ended.outcome != Outcome::Passed).count();
    Ok(Tally { passed: done.len() - failed, failed, skipped })
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
            "Seed {seed}, {:.0} min, {} cases, {} cuts: {} passed, {} wrong, {} aborted, {} hung{}.\n",
            took.as_secs_f64() / 60.0,
            done.len(),
            done.iter().map(|done| done.ended.cuts).sum::<usize>(),
            count(Outcome::Passed),
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
        let names: Vec<&str> = case::MPIS.iter().map(|mpi| mpi.name()).collect();
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
    fn times_are_read() {
        assert_eq!(parse_time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_time("2min").unwrap(), Duration::from_secs(120));
        assert!(parse_time("2").unwrap_err().to_string().contains("90s"));
        assert!(parse_time("fast").is_err());
    }

    #[test]
    fn a_replay_command_names_its_case() {
        let options = parse(&["--case".into(), "7:12".into()]).unwrap();
        assert_eq!(options.one, Some((7, 12)));
        let case = Case::draw(7, 12);
        assert!(case.replay().ends_with("--case 7:12"));
        assert!(parse(&["--case".into(), "7".into()]).is_err());
        assert!(parse(&["--cut".into(), "half".into()]).is_err());
    }
}
