//! Rails over RDMA meet the contract: those of each kind that is here. Where this machine has no adapter, the lab boots a node
//! with two soft-RoCE devices, and then one with soft-iWARP if there is the module, and this program runs in it.
//!
//! Arguments: parts of the names of tests that are to run; `--rounds=N` for the test of buffers.

#[path = "conformance/buffers.rs"]
mod buffers;

#[path = "conformance/guest.rs"]
mod guest;
#[path = "conformance/many.rs"]
mod many;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/mute.rs"]
mod mute;
#[path = "conformance/rings.rs"]
mod rings;

use rerail_rail::conformance::REQUIREMENTS;
use rerail_rail::{Kind, Rails};
use rerail_verbs::{InOrderPlacement, Settings};
use std::env::{args, current_exe};
use std::panic::catch_unwind;
use std::process::{Command, ExitCode};

/// Rounds of the test of buffers, without an argument.
const ROUNDS: u64 = 1000;
/// Runs this program with little memory that may be locked, and without the right to lock more.
const LITTLE_LOCKED: &str = "--little-locked";

/// As where an adapter has no shared receive queues.
const OWN_RECEIVES: Settings =
    Settings { keep_registrations: true, in_order_placement: InOrderPlacement::Auto, shared_receives: false };

type TwoSides = fn() -> (Rails, Rails);

fn two_sides(kind: Kind) -> (Rails, Rails) {
    with_settings(kind, &Settings { keep_registrations: true, ..Settings::default() })
}

fn with_settings(kind: Kind, settings: &Settings) -> (Rails, Rails) {
    let side = || rerail_verbs::attach(kind, settings, &|_| true).unwrap();
    (side(), side())
}

fn of_roce() -> (Rails, Rails) {
    two_sides(Kind::ROCE)
}

fn of_roce_no_cm() -> (Rails, Rails) {
    two_sides(Kind::ROCE_NO_CM)
}

fn of_iwarp() -> (Rails, Rails) {
    two_sides(Kind::IWARP)
}

/// Also without shared receive queues, so that a kind of all requirements runs without them.
fn of_iwarp_with_rings() -> (Rails, Rails) {
    with_settings(Kind::IWARP, &Settings { in_order_placement: InOrderPlacement::On, ..OWN_RECEIVES })
}

type Test = (&'static str, Box<dyn Fn(TwoSides) + std::panic::RefUnwindSafe>);

fn with_rings(two_sides: TwoSides) -> bool {
    std::ptr::fn_addr_eq(two_sides, of_iwarp_with_rings as TwoSides)
}

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
    if let Some(code) = guest::role() {
        return code;
    }
    // `cargo test` adds options of its own harness.
    let wanted: Vec<String> = args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    let requirements = REQUIREMENTS.iter().map(|(name, test)| -> Test { (*name, Box::new(test)) });
    let own: [Test; 9] = [
        (
            "no_byte_is_wrong_when_buffers_are_mapped_and_unmapped",
            Box::new(|two_sides| buffers::rounds(two_sides(), rounds())),
        ),
        (
            "a_large_message_registers_its_blocks_once",
            Box::new(|two_sides| buffers::a_large_message_registers_its_blocks_once(two_sides())),
        ),
        (
            "a_connection_locks_its_slots",
            Box::new(|two_sides| {
                if with_rings(two_sides) {
                    return;
                }
                let shared = two_sides();
                let own = with_settings(shared.0.rails[0].locator.kind(), &OWN_RECEIVES);
                memory::a_connection_locks_its_slots(shared, own);
            }),
        ),
        (
            "a_burst_of_many_loses_nothing_and_a_busy_one_gets_all",
            Box::new(|two_sides| many::a_burst_of_many_loses_nothing_and_a_busy_one_gets_all(two_sides())),
        ),
        (
            "what_a_connection_does_is_measured",
            Box::new(|two_sides| {
                let kind = two_sides().0.rails[0].locator.kind();
                for turn in 0..6 {
                    let shared_receives = turn % 2 == 0;
                    let settings = Settings { shared_receives, ..OWN_RECEIVES };
                    let figures = many::what_a_connection_does(with_settings(kind, &settings));
                    println!("receives are shared: {shared_receives:5}; {figures}");
                }
            }),
        ),
        (
            "a_peer_that_does_not_answer_holds_up_its_own_connection_only",
            Box::new(|two_sides| mute::a_peer_that_does_not_answer(two_sides())),
        ),
        (
            "datagrams_go_by_rings_and_no_sleeper_is_forgotten",
            Box::new(|two_sides| {
                rings::datagrams_go_by_rings_and_no_sleeper_is_forgotten(two_sides(), with_rings(two_sides))
            }),
        ),
        (
            "a_ring_locks_its_slots",
            Box::new(|two_sides| {
                if with_rings(two_sides) {
                    rings::a_ring_locks_its_slots(of_iwarp(), two_sides());
                }
            }),
        ),
        ("a_process_that_may_lock_little_gets_one_sentence", Box::new(|_| little_locked())),
    ];
    let tests: Vec<Test> = requirements.chain(own).filter(|(name, _)| is_wanted(name)).collect();
    let found = match rerail_verbs::discover() {
        Ok(discovery) => discovery.found,
        Err(why) => {
            return guest::run_in_guests(&wanted, rounds()).unwrap_or_else(|reason| {
                eprintln!("SKIPPED: {why}; and there is no guest: {reason}");
                println!("test result: ok. 0 passed; 0 failed; {} ignored", tests.len());
                ExitCode::SUCCESS
            });
        }
    };
    let kinds: [(&str, Kind, TwoSides); 4] = [
        ("roce", Kind::ROCE, of_roce),
        ("roce-nocm", Kind::ROCE_NO_CM, of_roce_no_cm),
        ("iwarp", Kind::IWARP, of_iwarp),
        ("iwarp with rings", Kind::IWARP, of_iwarp_with_rings),
    ];
    let kinds = kinds.into_iter().filter(|(_, kind, _)| found.iter().any(|f| f.kind == *kind));
    if args().any(|a| a == LITTLE_LOCKED) {
        kinds.for_each(|(_, kind, _)| buffers::little_may_be_locked(kind));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for (kind, _, two_sides) in kinds {
        for (name, test) in &tests {
            let went = catch_unwind(|| test(two_sides)).is_ok();
            println!("test {kind}::{name} ... {}", if went { "ok" } else { "FAILED" });
            *(if went { &mut passed } else { &mut failed }) += 1;
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
