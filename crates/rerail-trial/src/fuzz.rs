//! `rerail-trial fuzz`: coverage-guided fuzzing of everything that reads bytes from others.
//!
//! The bodies of the targets are in `crates/rerail-hostile`, the programs in `fuzz`, outside the workspace: only they need a
//! nightly compiler and `cargo-fuzz` (installed when it is missing). Inputs that are worth keeping are in `fuzz/seeds`; what a
//! run finds besides stays in `fuzz/corpus`, which git does not know.

use crate::options::{self, time};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use xtask::workspace::{cargo, has_program, output, root, run as run_command, state_dir, target_dir};

/// Fuzz every parser and whole conversations (needs a nightly compiler)
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seconds, or with s, m or h: for all targets together
    #[arg(long, value_name = "T", default_value = "5m", value_parser = time)]
    time: Duration,
    /// Only this target; may be repeated
    #[arg(long = "target", value_name = "NAME", value_parser = target)]
    targets: Vec<String>,
    /// End a target after so many, if it has not run out of time before
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    executions: Option<u64>,
    /// What watches over memory; none is for long runs, several times as fast
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Sanitizer::Address)]
    sanitizer: Sanitizer,
    /// Seconds; an input that takes longer is a finding (more where the fuzzer gets only what others leave)
    #[arg(long, value_name = "S", default_value_t = INPUT_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
    /// The longest input of a conversation (with 256 twice as many in the same time)
    #[arg(long, value_name = "BYTES", default_value_t = CONVERSATION_BYTES,
          value_parser = clap::value_parser!(u32).range(1..=CONVERSATION_BYTES as i64))]
    length: u32,
    /// Targets that run at the same time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// With planted bugs, in a parser and in the engine, which must be found (--target: only the one of that target)
    #[arg(long)]
    planted: bool,
    /// Afterwards keep in fuzz/seeds the smallest inputs that reach everything reached, and those with a name
    #[arg(long)]
    minimize: bool,
    /// One input through one target, with any compiler
    #[arg(long, num_args = 2, value_names = ["NAME", "FILE"])]
    replay: Option<Vec<String>>,
    /// Print the names of the targets
    #[arg(long)]
    list: bool,
    /// Build the targets, and run none
    #[arg(long)]
    build: bool,
}

fn target(name: &str) -> Result<String, String> {
    let all = targets().map_err(|why| format!("{why:#}"))?;
    if all.iter().any(|t| t == name) {
        Ok(name.into())
    } else {
        Err(format!("choose from {}", all.join(" ")))
    }
}

/// Memory of one run: a few times what the engines and the sanitizer need, so growth without bound is a finding.
const MEMORY_MIB: u32 = 1024;
/// The largest single allocation: nothing that a peer says makes a process ask for more.
const ALLOCATION_MIB: u32 = 64;
/// One input that takes longer is a finding, unless told.
const INPUT_SECONDS: u64 = 10;
/// What is planted: the target that must find it, the remedy of the engine that is off (none: the bug is in a parser), and how many
/// executions it may take.
const PLANTED: [(&str, Option<&str>, Option<u64>); 2] =
    [("config", None, None), ("insider", Some("one_message_per_order"), Some(1_000_000))];
/// What the line begins with in which a target says how many frames or messages of each kind it got past the first look at them.
const TALLY: &str = "taken:";
/// The targets in which two engines talk.
const CONVERSATIONS: [&str; 2] = ["outsider", "insider"];
/// Largest input, in bytes, of a conversation; parsers get the fuzzer's own choice.
const CONVERSATION_BYTES: u32 = 2048;
/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(60);
/// Most seeds that are kept for a target.
const SEEDS_MAX: usize = 64;

/// What watches over memory while a target runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    Address,
    None,
}

/// Where a run ends, and an input.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// For all targets together; what is left of it for each when it runs.
    time: Duration,
    /// Of each target.
    executions: Option<u64>,
    /// Seconds for an input; one that takes longer is a finding.
    patience: u64,
    /// Bytes of an input of a conversation.
    length: u32,
}

impl Limits {
    fn of(options: &Options) -> Self {
        let Options { time, executions, patience, length, .. } = *options;
        Self { time, executions, patience, length }
    }
}

/// What one target did.
#[derive(Debug, Clone, Default, PartialEq)]
struct Report {
    executions: u64,
    coverage: u64,
    corpus: u64,
    /// Seconds into the run at which coverage last grew.
    grew_at: u64,
    seconds: u64,
    /// The input that broke a promise.
    crash: Option<PathBuf>,
    /// Frames of each kind that were taken, in words; empty where none are counted.
    tally: String,
}

/// The names of all targets, as `fuzz/Cargo.toml` has them.
fn targets() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).context("fuzz/Cargo.toml")?;
    let bins = text.split("[[bin]]").skip(1);
    Ok(bins.filter_map(|b| Some(b.split_once("name = \"")?.1.split_once('"')?.0.to_owned())).collect())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    if options.list {
        println!("{}", targets()?.join("\n"));
        return Ok(());
    }
    if let Some(named) = &options.replay {
        let name = target(&named[0]).map_err(anyhow::Error::msg)?;
        // cargo runs in the root of the checkout, the user perhaps elsewhere
        let file = std::path::absolute(&named[1])?;
        let mut c = cargo();
        c.args(["run", "--quiet", "-p", "rerail-hostile", "--", &name]).arg(file);
        return run_command(&mut c);
    }
    if options.planted {
        return planted(options);
    }
    if options.build {
        return build(&chosen(options)?, false, options.sanitizer);
    }
    verdict(&all(options)?)
}

/// The targets that are named; all, if none is.
fn chosen(options: &Options) -> Result<Vec<String>> {
    if options.targets.is_empty() { targets() } else { Ok(options.targets.clone()) }
}

/// What the tests run: all targets for `time` together. `None` when this machine has no nightly compiler, and says so; the
/// seeds are replayed by an ordinary test in any case.
pub fn short(time: Duration) -> Result<Option<usize>> {
    if !has_nightly() {
        return Ok(None);
    }
    let reports = all(&options::of(&["--time", &time.as_secs().to_string()])?)?;
    verdict(&reports)?;
    Ok(Some(reports.len()))
}

/// Builds and runs the wanted targets.
fn all(options: &Options) -> Result<BTreeMap<String, Report>> {
    let chosen = chosen(options)?;
    build(&chosen, false, options.sanitizer)?;
    let reports = fuzz(&chosen, options)?;
    if options.minimize {
        for name in &chosen {
            minimize(name, options.sanitizer)?;
        }
    }
    Ok(reports)
}

fn has_nightly() -> bool {
    has_program("rustup")
        && output(Command::new("rustup").args(["toolchain", "list"])).is_ok_and(|t| t.contains("nightly"))
}

/// How a target's program is made. What is made alike shares a folder, so that no build undoes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Make {
    /// Watched by AddressSanitizer.
    Watched,
    /// Without it.
    Fast,
    /// Also without a look at every comparison: that finds magic numbers in bytes, of which a conversation's input has none, and
    /// takes half of the time there.
    Conversation,
}

impl Make {
    fn of(name: &str, sanitizer: Sanitizer) -> Self {
        match sanitizer {
            Sanitizer::Address => Self::Watched,
            Sanitizer::None if CONVERSATIONS.contains(&name) => Self::Conversation,
            Sanitizer::None => Self::Fast,
        }
    }

    /// Where the programs are.
    fn dir(self) -> PathBuf {
        target_dir().join(match self {
            Self::Watched => "fuzz",
            Self::Fast => "fuzz-unwatched",
            Self::Conversation => "fuzz-conversations",
        })
    }
}

/// `cargo fuzz` with the nightly compiler; installs the tool when it is missing.
fn cargo_fuzz(what: &str, make: Make) -> Result<Command> {
    if !has_nightly() {
        bail!("fuzzing needs a nightly compiler: `rustup toolchain install nightly`");
    }
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let installed = cargo_home.is_some_and(|home| home.join("bin/cargo-fuzz").is_file());
    if !installed && !has_program("cargo-fuzz") {
        println!("fuzz: installing cargo-fuzz");
        run_command(cargo().args(["install", "--quiet", "--locked", "cargo-fuzz"]))?;
    }
    // `cargo +nightly` is the word of rustup's own cargo; what CARGO names is one toolchain's
    let mut c = Command::new("rustup");
    c.args(["run", "nightly", "cargo", "fuzz", what]);
    // libFuzzer looks at the counters of all code after every execution: with what a target never calls a parser is ten times slower.
    // (Newer versions take a value, so another option must follow.)
    c.args(["--strip-dead-code", "--fuzz-dir"]).arg(root().join("fuzz"));
    c.current_dir(root()).env("CARGO_TARGET_DIR", make.dir());
    if make != Make::Watched {
        c.args(["--sanitizer", "none"]);
    }
    if make == Make::Conversation {
        c.arg("--no-trace-compares");
        c.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    }
    for name in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION", "RUSTUP_TOOLCHAIN"] {
        c.env_remove(name);
    }
    Ok(c)
}

fn build(targets: &[String], planted: bool, sanitizer: Sanitizer) -> Result<()> {
    let all = targets.len() == self::targets()?.len();
    let command = |make: Make| -> Result<Command> {
        let mut c = cargo_fuzz("build", make)?;
        if planted {
            c.args(["--features", "planted-bugs"]);
        }
        Ok(c)
    };
    // one at a time is what cargo-fuzz offers besides all
    if all && sanitizer == Sanitizer::Address {
        return run_command(&mut command(Make::Watched)?);
    }
    for t in targets {
        run_command(command(Make::of(t, sanitizer))?.arg(t))?;
    }
    Ok(())
}

fn program(name: &str, sanitizer: Sanitizer) -> Result<PathBuf> {
    let triple = output(Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]))?;
    let triple = triple.lines().find_map(|l| l.strip_prefix("host: ")).context("rustc names no host")?;
    Ok(Make::of(name, sanitizer).dir().join(triple).join("release").join(name))
}

/// Runs the targets, several at a time, and tells of each when it is over.
fn fuzz(targets: &[String], options: &Options) -> Result<BTreeMap<String, Report>> {
    let jobs = options.jobs.map_or_else(processors, |jobs| jobs as usize).min(targets.len());
    let rounds = targets.len().div_ceil(jobs) as u64;
    let each = Duration::from_secs((options.time.as_secs() / rounds).max(1));
    println!("fuzz: {} targets, {} at a time, {} s each", targets.len(), jobs, each.as_secs());
    let (tell, told) = mpsc::channel();
    let mut waiting = targets.iter();
    let mut reports = BTreeMap::new();
    let mut running = 0;
    loop {
        while running < jobs {
            let Some(name) = waiting.next() else { break };
            let (tell, name) = (tell.clone(), name.clone());
            let program = program(&name, options.sanitizer)?;
            running += 1;
            let limits = Limits { time: each, ..Limits::of(options) };
            std::thread::spawn(move || {
                let report = one(&name, &program, &corpus(&name), limits, None);
                let _ = tell.send((name, report));
            });
        }
        if running == 0 {
            return Ok(reports);
        }
        let (name, report) = told.recv().context("a run ended without a word")?;
        running -= 1;
        let report = report.with_context(|| format!("target {name}"))?;
        println!("{}", line(&name, &report));
        for kind in report.tally.split_terminator(';') {
            println!("fuzz: {name}: taken: {}", kind.trim());
        }
        reports.insert(name, report);
    }
}

fn line(name: &str, r: &Report) -> String {
    let quiet = r.seconds.saturating_sub(r.grew_at);
    format!(
        "fuzz: {name:<10} {:>11} executions in {:>4} s, coverage {:>5}, corpus {:>4}, coverage flat for {quiet} s{}",
        r.executions,
        r.seconds,
        r.coverage,
        r.corpus,
        if r.crash.is_some() { ", FOUND SOMETHING" } else { "" }
    )
}

fn verdict(reports: &BTreeMap<String, Report>) -> Result<()> {
    let executions: u64 = reports.values().map(|r| r.executions).sum();
    let found: Vec<_> = reports.iter().filter_map(|(n, r)| Some((n, r.crash.as_ref()?))).collect();
    println!(
        "fuzz: {} targets, {executions} executions, {} findings{}",
        reports.len(),
        found.len(),
        if executions == 0 { " (nothing was run)" } else { "" }
    );
    for (name, file) in &found {
        println!("replay: cargo xtask fuzz --replay {name} {}", file.display());
    }
    if !found.is_empty() || executions == 0 {
        bail!("fuzzing found something, or did not run");
    }
    Ok(())
}

/// The inputs a run begins with and adds to, and the seeds that git knows.
fn corpus(name: &str) -> [PathBuf; 2] {
    [root().join("fuzz/corpus").join(name), root().join("fuzz/seeds").join(name)]
}

/// One run of a target; `without`: the remedy of the engine that is off.
fn one(
    name: &str,
    program: &Path,
    corpus: &[PathBuf],
    limits: Limits,
    without: Option<&str>,
) -> Result<Report> {
    let Limits { time, executions, patience, length } = limits;
    for dir in corpus {
        std::fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
    }
    let artifacts = state_dir().join("fuzz").join(name);
    std::fs::create_dir_all(&artifacts).with_context(|| format!("could not make {}", artifacts.display()))?;
    let mut c = Command::new(program);
    c.args(corpus).current_dir(root());
    if let Some(remedy) = without {
        c.env("RERAIL_FUZZ_WITHOUT", remedy);
    }
    c.arg(format!("-artifact_prefix={}/", artifacts.display()));
    c.arg(format!("-max_total_time={}", time.as_secs()));
    if let Some(executions) = executions {
        c.arg(format!("-runs={executions}"));
    }
    c.arg(format!("-rss_limit_mb={MEMORY_MIB}"));
    c.arg(format!("-malloc_limit_mb={ALLOCATION_MIB}"));
    // what is slow is a finding when it is slower than that, and not before
    c.arg(format!("-timeout={patience}")).arg(format!("-report_slow_units={patience}"));
    if CONVERSATIONS.contains(&name) {
        c.arg(format!("-max_len={length}"));
        // a long conversation takes a hundred times as long as a short one: prefer what reaches the same in less time
        c.arg("-entropic_scale_per_exec_time=1");
        // its messages are large enough that each would be a mapping of its own otherwise, with a fault for each page
        c.env("MALLOC_TOP_PAD_", "33554432").env("MALLOC_MMAP_THRESHOLD_", "33554432");
        c.env("MALLOC_TRIM_THRESHOLD_", "134217728");
    }
    let mut child = c
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {}", program.display()))?;
    let begun = Instant::now();
    let mut report = Report::default();
    let mut last = Vec::new();
    let mut told = Duration::ZERO;
    for text in BufReader::new(child.stderr.take().context("no output")?).split(b'\n') {
        let text = String::from_utf8_lossy(&text.context("the output broke off")?).into_owned();
        let now = begun.elapsed();
        read(&mut report, &text, now.as_secs());
        if now >= told + PROGRESS {
            (told, report.seconds) = (now, now.as_secs());
            println!("{}", line(name, &report));
        }
        if report.crash.is_some() || text.contains("ERROR") || text.contains("panicked") {
            last.push(text);
        }
    }
    let status = child.wait().context("could not wait for the fuzzer")?;
    report.seconds = begun.elapsed().as_secs();
    if !status.success() && report.crash.is_none() {
        bail!("the fuzzer ended with {status}: {}", last.join("\n"));
    }
    if report.crash.is_some() {
        for text in last.iter().take(4) {
            println!("fuzz: {name}: {text}");
        }
    }
    Ok(report)
}

/// Takes what one line of libFuzzer's output says, such as `#8192 NEW cov: 310 ft: 402 corp: 17/200b …`.
fn read(report: &mut Report, text: &str, seconds: u64) {
    if let Some(file) = text.split_once("Test unit written to ").map(|x| x.1) {
        report.crash = Some(PathBuf::from(file.trim()));
    }
    if let Some(tally) = text.strip_prefix(TALLY) {
        report.tally = tally.trim().to_owned();
    }
    let Some(rest) = text.strip_prefix('#') else { return };
    let words: Vec<&str> = rest.split_whitespace().collect();
    let Some(executions) = words.first().and_then(|n| n.trim_end_matches(':').parse().ok()) else { return };
    report.executions = report.executions.max(executions);
    let after = |word: &str| words.iter().position(|w| *w == word).and_then(|i| words.get(i + 1));
    if let Some(coverage) = after("cov:").and_then(|n| n.parse::<u64>().ok()) {
        if coverage > report.coverage {
            (report.coverage, report.grew_at) = (coverage, seconds);
        }
    }
    if let Some(n) = after("corp:").and_then(|n| n.split('/').next()?.parse().ok()) {
        report.corpus = n;
    }
}

/// Shows that mistakes are found: builds with them, and waits for each.
fn planted(options: &Options) -> Result<()> {
    let wanted = |name: &str| options.targets.is_empty() || options.targets.iter().any(|t| t == name);
    let bugs: Vec<_> = PLANTED.iter().filter(|p| wanted(p.0)).collect();
    if bugs.is_empty() {
        bail!("nothing is planted for {}", options.targets.join(" "));
    }
    for &&(name, without, executions) in &bugs {
        build(&[name.to_owned()], true, options.sanitizer)?;
        // nothing to begin with: what is found is found from nothing
        let empty = state_dir().join("fuzz/planted");
        crate::lab::fresh_dir(&empty)?;
        let limits = Limits { executions, ..Limits::of(options) };
        let report = one(name, &program(name, options.sanitizer)?, &[empty], limits, without);
        // the next run is not to meet the program with the bug
        build(&[name.to_owned()], false, options.sanitizer)?;
        let report = report?;
        let bug = without.map_or("in the parser".to_owned(), |remedy| format!("without {remedy}"));
        let Some(file) = &report.crash else {
            bail!(
                "{name}: {} executions in {} s did not find the bug planted {bug}",
                report.executions,
                report.seconds
            );
        };
        println!(
            "fuzz: {name}: the bug planted {bug} was found after {} executions, {} s, from an empty corpus: {}",
            report.executions,
            report.seconds,
            file.display()
        );
    }
    Ok(())
}

/// Replaces the seeds of a target by the smallest set of inputs that reaches the same.
fn minimize(name: &str, sanitizer: Sanitizer) -> Result<()> {
    let [grown, seeds] = corpus(name);
    let all = state_dir().join("fuzz/minimize").join(name);
    crate::lab::fresh_dir(&all)?;
    let mut c = Command::new(program(name, sanitizer)?);
    c.arg("-merge=1").arg(&all).args([&seeds, &grown]).stdout(Stdio::null()).stderr(Stdio::null());
    run_command(&mut c)?;
    let mut files: Vec<(u64, PathBuf)> = std::fs::read_dir(&all)
        .with_context(|| format!("could not read {}", all.display()))?
        .filter_map(|f| f.ok().map(|f| f.path()))
        .filter_map(|f| Some((std::fs::metadata(&f).ok()?.len(), f)))
        .collect();
    // libFuzzer puts those that reach most first only in memory; the longest reach most
    files.sort_by_key(|f| (std::cmp::Reverse(f.0), f.1.clone()));
    files.truncate(SEEDS_MAX);
    // what has a name, and not only a sum for one, is there for a reason: it once found something
    let named =
        |f: &Path| f.file_name().is_some_and(|n| !n.to_string_lossy().bytes().all(|b| b.is_ascii_hexdigit()));
    for old in std::fs::read_dir(&seeds).with_context(|| format!("could not read {}", seeds.display()))? {
        let old = old.context("a folder's entry")?.path();
        if !named(&old) {
            std::fs::remove_file(&old).with_context(|| format!("could not remove {}", old.display()))?;
        }
    }
    for (_, file) in &files {
        let to = seeds.join(file.file_name().context("a file has a name")?);
        std::fs::copy(file, &to).with_context(|| format!("could not copy to {}", to.display()))?;
    }
    println!("fuzz: {name}: {} seeds", files.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_output_is_understood() {
        let mut r = Report::default();
        read(&mut r, "INFO: seed corpus: files: 3 min: 1b max: 20b total: 40b rss: 30Mb", 0);
        read(&mut r, "#4\tINITED cov: 100 ft: 120 corp: 2/21b exec/s: 0 rss: 33Mb", 1);
        read(&mut r, "#8192\tNEW    cov: 310 ft: 402 corp: 17/200b lim: 80 exec/s: 4000 rss: 35Mb", 3);
        read(&mut r, "#65536\tpulse  cov: 310 ft: 402 corp: 17/200b lim: 80 exec/s: 4000 rss: 35Mb", 9);
        read(&mut r, "taken: grant 3; fragment 5;", 9);
        read(&mut r, "artifact_prefix='x/'; Test unit written to x/crash-17", 9);
        let found = Some(PathBuf::from("x/crash-17"));
        let expected = Report {
            executions: 65_536,
            coverage: 310,
            corpus: 17,
            grew_at: 3,
            seconds: 0,
            crash: found,
            tally: "grant 3; fragment 5;".into(),
        };
        assert_eq!(r, expected);
    }

    #[test]
    fn every_target_is_listed() {
        let all = targets().unwrap();
        assert!(PLANTED.iter().all(|p| all.iter().any(|t| t == p.0)));
        for name in all {
            assert!(root().join(format!("fuzz/fuzz_targets/{name}.rs")).is_file(), "{name}");
        }
    }
}
