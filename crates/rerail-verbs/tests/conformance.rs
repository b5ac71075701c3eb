//! Rails over RoCE meet the contract. Where this machine has no adapter, a guest with two soft-RoCE devices runs the
//! tests: `tests/tools/roce-guest` boots it, from Debian's kernel, and this program runs in it.
//!
//! Arguments: parts of the names of tests that are to run; `--rounds=N` for the test of buffers.

#[path = "conformance/buffers.rs"]
mod buffers;

use rerail_rail::Rails;
use rerail_rail::conformance::REQUIREMENTS;
use std::env::{args, current_exe};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Time for the whole suite in the guest, s. It takes half a minute on an idle machine.
const GUEST_S_MAX: u32 = 900;
/// Rounds of the test of buffers, without an argument.
const ROUNDS: u64 = 1000;
/// Runs this program with little memory that may be locked, and without the right to lock more.
const LITTLE_LOCKED: &str = "--little-locked";

fn two_sides() -> (Rails, Rails) {
    (rerail_verbs::attach(true).unwrap(), rerail_verbs::attach(true).unwrap())
}

type Test = (&'static str, Box<dyn Fn() + std::panic::RefUnwindSafe>);

fn rounds() -> u64 {
    let number = |a: String| a.strip_prefix("--rounds=").map(|n| n.parse().expect("a number of rounds"));
    args().find_map(number).unwrap_or(ROUNDS)
}

fn little_locked() {
    let limits = ["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536"];
    let mut command = Command::new("setpriv");
    command.args(limits).arg(current_exe().unwrap()).arg(LITTLE_LOCKED);
    assert!(command.status().unwrap().success());
}

fn main() -> ExitCode {
    // `cargo test` adds options of its own harness.
    let wanted: Vec<String> = args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let requirements =
        REQUIREMENTS.iter().map(|(name, test)| -> Test { (*name, Box::new(|| test(two_sides))) });
    let own: [Test; 3] = [
        ("no_byte_is_wrong_when_buffers_are_mapped_and_unmapped", Box::new(|| buffers::rounds(rounds()))),
        (
            "a_large_message_registers_its_blocks_once",
            Box::new(buffers::a_large_message_registers_its_blocks_once),
        ),
        ("a_process_that_may_lock_little_gets_one_sentence", Box::new(little_locked)),
    ];
    let tests: Vec<Test> = requirements.chain(own).filter(|(name, _)| is_wanted(name)).collect();
    if let Err(why) = rerail_verbs::discover() {
        return match Guest::boot() {
            Ok(guest) => guest.run(&wanted),
            Err(reason) => {
                eprintln!("SKIPPED: {why}; and there is no guest: {reason}");
                println!("test result: ok. 0 passed; 0 failed; {} ignored", tests.len());
                ExitCode::SUCCESS
            }
        };
    }
    if args().any(|a| a == LITTLE_LOCKED) {
        buffers::little_may_be_locked();
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, test) in &tests {
        let went = catch_unwind(test).is_ok();
        println!("test {name} ... {}", if went { "ok" } else { "FAILED" });
        failed += usize::from(!went);
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {} passed; {failed} failed; 0 ignored", tests.len() - failed);
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
        let (wanted, rounds) = (wanted.join(" "), rounds());
        let line = format!("timeout {GUEST_S_MAX} /share/conformance {wanted} --rounds={rounds}");
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
