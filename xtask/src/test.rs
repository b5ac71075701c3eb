//! `cargo xtask test`: the tests of the workspace, then the short acceptance campaign and
//! the short fault campaign and a short round of fuzzing; the last line counts everything.

use crate::accept::{Scale, Tally, campaign};
use crate::mpi::Mpi;
use crate::workspace::cargo;
use crate::{build, setup};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// Fuzzing in a test run, all targets together: enough to meet again what is easily met.
const FUZZ: Duration = Duration::from_secs(40);

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// What is run on each MPI in the quick form: everything on MPICH, and on the others what has a way of its own there, as far as
/// there is time. The short fault campaign covers them all besides.
const ACCEPTANCE: [(Mpi, &[&str]); 4] = [
    (Mpi::Mpich, &[]),
    (Mpi::Open5, &["options", "data", "lossy", "encrypt", "blackout", "stopped", "killed"]),
    (Mpi::Intel, &["options", "data", "lossy", "encrypt", "blackout", "stopped", "killed"]),
    (Mpi::Open4, &["options", "blackout"]),
];

impl Counts {
    fn add(&mut self, what: &str, result: Result<Tally>) {
        match result {
            Ok(tally) => {
                self.passed += tally.passed;
                self.failed += tally.failed;
                self.skipped += tally.skipped;
            }
            Err(error) => {
                println!("{what} FAILED: {error:#}");
                self.failed += 1;
            }
        }
    }
}

/// Runs everything, even after a failure.
pub fn run() -> Result<()> {
    setup::run()?;
    build::run()?;
    let mut counts = workspace_tests()?;
    for (mpi, only) in ACCEPTANCE {
        counts.add("acceptance", campaign(mpi, Scale::Quick, only, true, 1));
    }
    match crate::fuzz::short(FUZZ) {
        Ok(Some(targets)) => counts.passed += targets,
        Ok(None) => {
            println!(
                "skipped: no nightly compiler here, so nothing is fuzzed; the seeds were replayed above"
            );
            counts.skipped += 1;
        }
        Err(error) => {
            println!("fuzz FAILED: {error:#}");
            counts.failed += 1;
        }
    }
    let short = crate::campaign::short();
    counts.add(
        "campaign",
        short.map(|t| Tally { passed: t.passed, failed: t.failed, skipped: t.skipped, missed: 0 }),
    );
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    if counts.failed > 0 {
        bail!("{} tests failed", counts.failed);
    }
    Ok(())
}

/// `cargo test --workspace`, echoed and counted. A test that cannot run here says `skipped: reason` and returns; it counts as
/// skipped, not as passed.
fn workspace_tests() -> Result<Counts> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    // With this variable set, tests fail where no lab can be made; this command is for any machine.
    command.env_remove("RERAIL_REQUIRE_LAB");
    command.env("RERAIL_PROVIDER", crate::workspace::release_dir().join("librerail-fi.so"));
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
    let count = |word: &str| {
        rest.split(['.', ';']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
    };
    Some((count("passed")?, count("failed")?, count("ignored")?))
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
    }

    #[test]
    fn a_skip_is_recognized() {
        assert!(is_skip("SKIPPED: no user namespaces here"));
        assert!(!is_skip("test it_can_be_skipped ... ok"));
    }
}
