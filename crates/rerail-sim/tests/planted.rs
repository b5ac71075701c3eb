//! The seeds find planted bugs: each recorded seed breaks a promise with its bug and keeps all without it.
//!
//! The seeds are among the first that find each bug (`cargo xtask swarm --planted`). A change of what seeds mean moves them: then run that
//! command and write its table down here and in docs/simulator.md.

use rerail_core::Remedies;
use rerail_sim::case::Case;
use rerail_sim::planted::FOUND;
use rerail_sim::run::{FRAMES_MIN, breaks, run_case};
use std::sync::Mutex;

/// Bugs that random seeds must find, at least.
const BUGS_MIN: usize = 25;
/// Seeds below which each must be found.
const SEEDS_MAX: u64 = 1_000;

/// Seeds that are tried when the recorded one finds nothing any more.
const OTHERS: u64 = 150;

/// Whether a seed finds a bug: it must break the promise that is recorded, and no other.
fn finds(without: &'static str, seed: u64, promise: &str) -> bool {
    run_case(&Case::whole(seed, FRAMES_MIN, Some(without)), false).is_err_and(|f| breaks(&f.message, promise))
}

#[test]
fn a_seed_that_breaks_another_promise_is_no_finding() {
    let (name, seed, promise) = FOUND.iter().find(|f| f.0 == "watermarks").expect("it is found");
    assert!(finds(name, *seed, promise), "{promise}");
    assert!(!finds(name, *seed, "live"));
}

#[test]
#[cfg_attr(not(feature = "planted-bugs"), ignore = "needs --features planted-bugs")]
fn seeds_find_the_planted_bugs_and_nothing_else() {
    let wrong = Mutex::new(Vec::new());
    let next = Mutex::new(FOUND.iter());
    let work = || {
        loop {
            let Some(&(name, seed, promise)) = next.lock().unwrap().next() else { break };
            let without = Remedies::NAMES.iter().find(|n| **n == name).copied();
            let without = without.unwrap_or_else(|| panic!("no remedy is called {name}"));
            if !finds(without, seed, promise) {
                match (0..OTHERS).find(|&s| finds(without, s, promise)) {
                    Some(s) => eprintln!("{name} is found by seed {s} now, not by {seed}"),
                    None => wrong.lock().unwrap().push(format!("nothing finds {name} by `{promise}`")),
                }
            }
            if let Err(f) = run_case(&Case::whole(seed, FRAMES_MIN, None), false) {
                wrong.lock().unwrap().push(format!("seed {seed} breaks without a bug: {f}"));
            }
        }
    };
    std::thread::scope(|s| {
        s.spawn(work);
        s.spawn(work);
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "run `cargo xtask swarm --planted` and record its table: {wrong:#?}");
}

#[test]
fn enough_bugs_are_found_and_every_other_has_its_story() {
    assert!(FOUND.len() >= BUGS_MIN, "random seeds find only {} bugs", FOUND.len());
    assert!(FOUND.iter().all(|f| f.1 < SEEDS_MAX));
    for name in Remedies::NAMES {
        let found = FOUND.iter().any(|f| f.0 == *name);
        let told = rerail_sim::scenario::ALL.iter().any(|s| s.remedies.iter().any(|r| r.0 == *name));
        assert!(found || told, "nothing shows that {name} is needed: no seed, no story");
    }
}
