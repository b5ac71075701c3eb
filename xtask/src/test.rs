//! `cargo xtask test`: the tests of the workspace, then the short campaigns of `rerail-trial`; the last lines name what failed and
//! count everything.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use xtask::workspace::{cargo, release_dir, root, trial};
use xtask::{build, setup};

/// Passed, failed, skipped.
type Counts = [usize; 3];

/// Runs everything, even after a failure.
pub fn run() -> Result<()> {
    setup::run()?;
    build::run()?;
    let mut failures = Vec::new();
    let (built, is_built) = channel();
    let ahead = thread::spawn(move || build_ahead(&is_built));
    let announce = move || {
        // nothing waits for it any more only after a panic there, which is reported below
        let _ = built.send(());
    };
    let first = cargo_test(&["--workspace", "--exclude", "rerail-sim"], announce, &mut failures)?;
    let second = cargo_test(SIMULATOR, || (), &mut failures)?;
    // campaigns look at milliseconds
    if ahead.join().is_err() {
        bail!("the thread that builds ahead has panicked");
    }
    let parts = [first, second, trials(&mut failures)?];
    let [passed, failed, skipped] = parts.into_iter().fold([0; 3], add);
    // Repeated here, because often only the end of a long output is kept.
    failures.iter().for_each(|line| println!("{}", line.trim()));
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    Ok(())
}

/// The simulator's tests: by themselves, because they plant bugs in the engine, which nothing else may have.
const SIMULATOR: &[&str] = &["-p", "rerail-sim", "--features", "planted-bugs"];

/// Builds what comes later, once the first tests are built: many of them wait for rails, so processors are idle. Their builds have the lowest
/// priority. What fails here is built again in its turn, and reported there.
fn build_ahead(is_built: &Receiver<()>) {
    if is_built.recv().is_err() {
        return;
    }
    let later = |arguments: &[&str]| {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]).arg(cargo().get_program()).args(arguments).current_dir(root());
        let _ = nice.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    };
    later(&[&["test", "--quiet", "--no-run"], SIMULATOR].concat());
    later(&["run", "--quiet", "-p", "rerail-trial", "--", "fuzz", "--build"]);
}

fn add(one: Counts, other: Counts) -> Counts {
    std::array::from_fn(|i| one[i] + other[i])
}

/// Runs a command, echoes its output and looks at each line; whether it succeeded.
fn echo(
    command: &mut Command,
    mut complaint: impl FnMut(&str) + Send + 'static,
    mut look: impl FnMut(&str),
) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("could not start cargo")?;
    // The test harness keeps what a passed test prints, so some tests write their word directly to standard error.
    let complaints = child.stderr.take().map(|complaints| {
        let lines = BufReader::new(complaints).lines().map_while(Result::ok);
        thread::spawn(move || {
            let echoed = lines.inspect(|line| {
                eprintln!("{line}");
                complaint(line);
            });
            echoed.collect::<Vec<_>>()
        })
    });
    for line in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        let line = line.context("could not read the output of cargo")?;
        println!("{line}");
        look(&line);
    }
    let is_well = child.wait().context("could not wait for cargo")?.success();
    let complaints = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
    complaints.iter().for_each(|line| look(line));
    Ok(is_well)
}

/// `rerail-trial short`; its last line has the counts. What ends without them has failed.
fn trials(failures: &mut Vec<String>) -> Result<Counts> {
    let mut counts = None;
    let is_well = echo(
        trial().arg("short"),
        |_| (),
        |line| {
            counts = counted(line, "skipped");
            note_failure(line, failures);
        },
    )?;
    let [passed, failed, skipped] = counts.unwrap_or_default();
    Ok([passed, failed.max(usize::from(!is_well)), skipped])
}

/// `cargo test`. A test that cannot run here says `skipped: reason` and returns; it counts as skipped, not as passed. `built` is called when
/// the first program of tests begins: then Cargo has built them all, and holds no lock.
fn cargo_test(
    which: &[&str],
    built: impl FnOnce() + Send + 'static,
    failures: &mut Vec<String>,
) -> Result<Counts> {
    let mut command = cargo();
    command.arg("test").args(which).args(["--no-fail-fast", "--", "--show-output"]).stderr(Stdio::piped());
    // With this variable set, tests fail where no lab can be made; this command is for any machine.
    command.env_remove("RERAIL_REQUIRE_LAB");
    command.env("RERAIL_PROVIDER", release_dir().join("librerail-fi.so"));
    let (mut counts, mut skips) = ([0; 3], 0);
    let mut built = Some(built);
    let begins = move |line: &str| {
        if let Some(built) = built.take_if(|_| line.trim_start().starts_with("Running ")) {
            built();
        }
    };
    let is_well = echo(&mut command, begins, |line| {
        counts = add(counts, summary(line).unwrap_or_default());
        skips += usize::from(is_skip(line));
        note_failure(line, failures);
    })?;
    let [passed, failed, ignored] = counts;
    let skips = skips.min(passed);
    // without a failed test: it did not compile, or a test program died
    Ok([passed - skips, failed.max(usize::from(!is_well)), ignored + skips])
}

fn note_failure(line: &str, failures: &mut Vec<String>) {
    if is_failure(line) {
        failures.push(line.to_owned());
    }
}

/// A test, a check or a case of the campaign that failed.
fn is_failure(line: &str) -> bool {
    let case = ["FAILED ", "WRONG ", "ABORTED ", "HUNG "];
    line.strip_prefix("test ").is_some_and(|line| line.ends_with("... FAILED"))
        || case.iter().any(|word| line.trim_start().starts_with(word))
        || line.contains(" FAILED: ")
        || line.starts_with("error: could not compile")
}

fn is_skip(line: &str) -> bool {
    let line = line.trim_start().to_lowercase();
    line.starts_with("skipped:") || line.starts_with("skipping:") || line.starts_with("skip:")
}

/// The counts of `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn summary(line: &str) -> Option<Counts> {
    counted(line.strip_prefix("test result: ")?, "ignored")
}

/// The counts of `3 passed, 0 failed, 1 skipped`, among parts divided by `.`, `,` or `;`.
fn counted(text: &str, skipped: &str) -> Option<Counts> {
    let parts = || text.split(['.', ',', ';']).map(str::trim);
    let count = |word: &str| parts().find_map(|part| part.strip_suffix(word)?.trim().parse().ok());
    Some([count("passed")?, count("failed")?, count(skipped)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_test_program_is_read() {
        assert_eq!(
            summary("test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; 0 fil"),
            Some([12, 0, 2])
        );
        assert_eq!(summary("test result: FAILED. 1 passed; 3 failed; 0 ignored; 0"), Some([1, 3, 0]));
        assert_eq!(summary("test a::b ... ok"), None);
        assert_eq!(counted("107 passed, 0 failed, 2 skipped", "skipped"), Some([107, 0, 2]));
        assert_eq!(counted("rerail-trial: 3 checks failed", "skipped"), None);
    }

    #[test]
    fn a_failure_is_recognized() {
        let failures = [
            "test order::a_test ... FAILED",
            "  FAILED   no byte is lost (case cut, mpich): 3 bytes differ",
            "HUNG     nas-lu on mpich, dark",
            "leaks FAILED: process 7 has more descriptors",
            "error: could not compile `rerail-core` (lib test) due to 1 previous error",
        ];
        assert!(failures.iter().all(|line| is_failure(line)));
        for line in
            ["test result: FAILED. 1 passed; 3 failed", "test a::b ... ok", "  ok       no byte is lost"]
        {
            assert!(!is_failure(line), "{line}");
        }
    }

    #[test]
    fn a_skip_is_recognized() {
        assert!(is_skip("SKIPPED: no user namespaces here"));
        assert!(!is_skip("test it_can_be_skipped ... ok"));
    }
}
