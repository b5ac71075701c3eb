//! Rails over RDMA meet the contract: those of each kind that is here. Where this machine has no adapter, a guest with two soft-RoCE devices runs the
//! tests: `tests/tools/roce-guest` boots it, from Debian's kernel, and this program runs in it.
//!
//! Arguments: parts of the names of tests that are to run.

use rerail_rail::conformance::REQUIREMENTS;
use rerail_rail::{Kind, Rails};
use std::env::{args, current_exe};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Time for the whole suite in the guest, s. It takes half a minute on an idle machine.
const GUEST_S_MAX: u32 = 900;

type TwoSides = fn() -> (Rails, Rails);

fn two_sides(kind: Kind) -> (Rails, Rails) {
    (rerail_verbs::attach(kind).unwrap(), rerail_verbs::attach(kind).unwrap())
}

fn of_roce() -> (Rails, Rails) {
    two_sides(Kind::ROCE)
}

fn of_iwarp() -> (Rails, Rails) {
    two_sides(Kind::IWARP)
}

fn main() -> ExitCode {
    // `cargo test` adds options of its own harness.
    let wanted: Vec<String> = args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let tests: Vec<_> = REQUIREMENTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    let found = match rerail_verbs::discover() {
        Ok(found) => found,
        Err(why) => {
            return match Guest::boot() {
                Ok(guest) => guest.run(&wanted),
                Err(reason) => {
                    eprintln!("SKIPPED: {why}; and there is no guest: {reason}");
                    println!("test result: ok. 0 passed; 0 failed; {} ignored", tests.len());
                    ExitCode::SUCCESS
                }
            };
        }
    };
    let (mut passed, mut failed) = (0, 0);
    let kinds: [(Kind, TwoSides); 2] = [(Kind::ROCE, of_roce), (Kind::IWARP, of_iwarp)];
    for (kind, two_sides) in kinds.into_iter().filter(|(kind, _)| found.iter().any(|f| f.kind == *kind)) {
        for (name, test) in &tests {
            let went = catch_unwind(|| test(two_sides)).is_ok();
            println!("test {}::{name} ... {}", kind.name(), if went { "ok" } else { "FAILED" });
            *(if went { &mut passed } else { &mut failed }) += 1;
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A node with two rails, which ends with this value.
struct Guest {
    script: PathBuf,
    dir: PathBuf,
}

impl Guest {
    fn boot() -> Result<Guest, String> {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        let script = project.join("tests/tools/roce-guest");
        let guest = Guest { script, dir: project.join(".rerail/guest") };
        // The first installs and fetches what is missing, once.
        for arguments in [&["build"][..], &["up", "--nodes", "1"]] {
            let out = guest.command(arguments).output().map_err(|e| format!("roce-guest: {e}"))?;
            if !out.status.success() {
                return Err(format!(
                    "roce-guest {arguments:?}: {}",
                    String::from_utf8_lossy(&out.stderr).trim()
                ));
            }
        }
        Ok(guest)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // A guest that hangs as a whole must not hang the tests.
        let mut command = Command::new("timeout");
        command.arg((GUEST_S_MAX + 60).to_string()).arg("python3").arg(&self.script);
        command.args(arguments).env("ROCE_GUEST_DIR", &self.dir).stdin(Stdio::null());
        command
    }

    fn run(&self, wanted: &[String]) -> ExitCode {
        // The share is the part of the disk that the guest does not cache.
        std::fs::copy(current_exe().unwrap(), self.dir.join("share/conformance")).unwrap();
        let line = format!("timeout {GUEST_S_MAX} /share/conformance {}", wanted.join(" "));
        let status = self.command(&["exec", "0", &line]).status().unwrap();
        if status.success() {
            return ExitCode::SUCCESS;
        }
        eprintln!("{status}; the guest's console ends so:");
        let _ = self.command(&["console", "0"]).status();
        ExitCode::FAILURE
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
    }
}
