//! Rails over RDMA meet the contract: those of each kind that is here. Where this machine has no adapter, a guest with two
//! soft-RoCE devices runs the tests, and then one with soft-iWARP if there is the module: `tests/tools/roce-guest` boots it,
//! from Debian's kernel, and this program runs in it.
//!
//! Arguments: parts of the names of tests that are to run; `--rounds=N` for the test of buffers.

#[path = "conformance/buffers.rs"]
mod buffers;

use rerail_rail::conformance::REQUIREMENTS;
use rerail_rail::{Kind, Rails};
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

/// Gives the guest adapters for iWARP in place of those for RoCE.
const TO_IWARP: &str = "rdma link delete rxe0 && rdma link delete rxe1 && insmod /lib/modules/siw.ko && \
    rdma link add siw0 type siw netdev r0 && rdma link add siw1 type siw netdev r1";

type TwoSides = fn() -> (Rails, Rails);

fn two_sides(kind: Kind) -> (Rails, Rails) {
    (rerail_verbs::attach(kind, true).unwrap(), rerail_verbs::attach(kind, true).unwrap())
}

fn of_roce() -> (Rails, Rails) {
    two_sides(Kind::ROCE)
}

fn of_iwarp() -> (Rails, Rails) {
    two_sides(Kind::IWARP)
}

type Test = (&'static str, Box<dyn Fn(TwoSides) + std::panic::RefUnwindSafe>);

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
    let requirements = REQUIREMENTS.iter().map(|(name, test)| -> Test { (*name, Box::new(test)) });
    let own: [Test; 3] = [
        (
            "no_byte_is_wrong_when_buffers_are_mapped_and_unmapped",
            Box::new(|two_sides| buffers::rounds(two_sides(), rounds())),
        ),
        (
            "a_large_message_registers_its_blocks_once",
            Box::new(|two_sides| buffers::a_large_message_registers_its_blocks_once(two_sides())),
        ),
        ("a_process_that_may_lock_little_gets_one_sentence", Box::new(|_| little_locked())),
    ];
    let tests: Vec<Test> = requirements.chain(own).filter(|(name, _)| is_wanted(name)).collect();
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
    let kinds: [(Kind, TwoSides); 2] = [(Kind::ROCE, of_roce), (Kind::IWARP, of_iwarp)];
    let kinds = kinds.into_iter().filter(|(kind, _)| found.iter().any(|f| f.kind == *kind));
    if args().any(|a| a == LITTLE_LOCKED) {
        kinds.for_each(|(kind, _)| buffers::little_may_be_locked(kind));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for (kind, two_sides) in kinds {
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
        let (wanted, rounds) = (wanted.join(" "), rounds());
        let suite = format!("timeout {GUEST_S_MAX} /share/conformance {wanted} --rounds={rounds}");
        let mut status = self.command(&["exec", "0", &suite]).status().unwrap();
        // Debian's kernel has no soft-iWARP, and building it takes minutes: this test does not.
        if !self.dir.join("kernel/lib/modules/siw.ko").exists() {
            eprintln!("SKIPPED: iWARP: there is no siw.ko; `{} build --siw` makes it", self.script.display());
            println!("test result: ok. 0 passed; 0 failed; 1 ignored");
        } else if status.success() {
            status = self.command(&["exec", "0", &format!("{TO_IWARP} && {suite}")]).status().unwrap();
        }
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
