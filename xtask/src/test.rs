//! `cargo xtask test`: the tests of the workspace, then the short campaigns of `rerail-trial`; the last line counts everything.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use xtask::workspace::{cargo, release_dir, trial};
use xtask::{build, setup};

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Runs everything, even after a failure.
pub fn run() -> Result<()> {
    setup::run()?;
    build::run()?;
    let mut counts = workspace_tests()?;
    let (passed, failed, skipped) = trials()?;
    counts.passed += passed;
    counts.failed += failed;
    counts.skipped += skipped;
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    if counts.failed > 0 {
        bail!("{} tests failed", counts.failed);
    }
    Ok(())
}

/// `rerail-trial short`, echoed; its last line has the counts. What ends without them has failed.
fn trials() -> Result<(usize, usize, usize)> {
    let mut child =
        trial().arg("short").stdout(Stdio::piped()).spawn().context("could not start rerail-trial")?;
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().context("rerail-trial has no output")?).lines() {
        last = line.context("could not read the output of rerail-trial")?;
        println!("{last}");
    }
    let status = child.wait().context("could not wait for rerail-trial")?;
    let (passed, failed, skipped) = counted(&last).unwrap_or_default();
    Ok((passed, failed.max(usize::from(!status.success())), skipped))
}

/// The tests of the workspace. Those of the simulator by themselves, because they plant bugs in the engine, which nothing else may have.
fn workspace_tests() -> Result<Counts> {
    let mut counts = Counts::default();
    for which in
        [&["--workspace", "--exclude", "rerail-sim"][..], &["-p", "rerail-sim", "--features", "planted-bugs"]]
    {
        let c = cargo_test(which)?;
        counts.passed += c.passed;
        counts.failed += c.failed;
        counts.skipped += c.skipped;
    }
    Ok(counts)
}

/// `cargo test`, echoed and counted. A test that cannot run here says `skipped: reason` and returns; it counts as skipped, not as
/// passed.
fn cargo_test(which: &[&str]) -> Result<Counts> {
    let mut command = cargo();
    command.arg("test").args(which).args(["--no-fail-fast", "--", "--show-output"]);
    // With this variable set, tests fail where no lab can be made; this command is for any machine.
    command.env_remove("RERAIL_REQUIRE_LAB");
    command.env("RERAIL_PROVIDER", release_dir().join("librerail-fi.so"));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("could not start cargo test")?;
    // The test harness keeps what a passed test prints, so some tests write their word directly to standard error.
    let complaints = child.stderr.take().context("cargo test has no standard error")?;
    let complaints = std::thread::spawn(move || {
        let lines = BufReader::new(complaints).lines().map_while(Result::ok);
        lines.inspect(|line| eprintln!("{line}")).filter(|line| is_skip(line)).count()
    });
    let mut counts = Counts::default();
    let mut skips = 0;
    for line in BufReader::new(child.stdout.take().context("cargo test has no output")?).lines() {
        let line = line.context("could not read the output of cargo test")?;
        println!("{line}");
        if let Some((passed, failed, ignored)) = summary(&line) {
            counts.passed += passed;
            counts.failed += failed;
            counts.skipped += ignored;
        }
        skips += usize::from(is_skip(&line));
    }
    let status = child.wait().context("could not wait for cargo test")?;
    skips += complaints.join().unwrap_or_default();
    let skips = skips.min(counts.passed);
    counts.passed -= skips;
    counts.skipped += skips;
    if !status.success() && counts.failed == 0 {
        counts.failed = 1; // it did not compile, or a test program died
    }
    Ok(counts)
}

fn is_skip(line: &str) -> bool {
    let line = line.trim_start().to_lowercase();
    line.starts_with("skipped:") || line.starts_with("skipping:") || line.starts_with("skip:")
}

/// The counts of `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn summary(line: &str) -> Option<(usize, usize, usize)> {
    let rest = line.strip_prefix("test result: ")?;
    Some((count(rest, "passed")?, count(rest, "failed")?, count(rest, "ignored")?))
}

/// The counts of `3 passed, 0 failed, 1 skipped`.
fn counted(line: &str) -> Option<(usize, usize, usize)> {
    Some((count(line, "passed")?, count(line, "failed")?, count(line, "skipped")?))
}

/// The number before a word, among parts divided by `.`, `,` or `;`.
fn count(text: &str, word: &str) -> Option<usize> {
    text.split(['.', ',', ';']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_test_program_is_read() {
        let line =
            "test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(summary(line), Some((12, 0, 2)));
        assert_eq!(
            summary("test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured"),
            Some((1, 3, 0))
        );
        assert_eq!(summary("test a::b ... ok"), None);
        assert_eq!(counted("107 passed, 0 failed, 2 skipped"), Some((107, 0, 2)));
        assert_eq!(counted("rerail-trial: 3 checks failed"), None);
    }

    #[test]
    fn a_skip_is_recognized() {
        assert!(is_skip("SKIPPED: no user namespaces here"));
        assert!(!is_skip("test it_can_be_skipped ... ok"));
    }
}
