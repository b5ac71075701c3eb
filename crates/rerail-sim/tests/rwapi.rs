//! Programs of RWAPI on the worlds of the seeds; and the proof that they find what is wrong.

use rerail_sim::run::breaks;
use rerail_sim::rwapi::{Sum, run_seed, run_seeds};
use std::sync::Mutex;

/// Seeds of a test run.
const SEEDS: u64 = 150;
const THREADS: usize = 2;

/// Seeds that broke a promise once, each by a defect of its own that is mended (what they mean moves when the simulator draws more).
const ONCE: &[u64] = &[6, 20, 93, 108, 114, 116, 149, 278, 732, 962];

#[test]
fn programs_of_the_ten_calls_keep_every_promise() {
    let sum = Mutex::new((Sum::default(), Vec::new()));
    run_seeds(0, SEEDS, THREADS, |r| {
        let mut s = sum.lock().unwrap();
        match r {
            Ok(r) => s.0.add(&r),
            Err(f) => s.1.push(f),
        }
    });
    let (sum, broken) = sum.into_inner().unwrap();
    for b in broken.iter().take(5) {
        eprintln!("{b}\n");
    }
    assert!(broken.is_empty(), "{} of {SEEDS} seeds broke a promise", broken.len());
    assert_eq!((sum.kept, sum.excused), (SEEDS, 0));
    // a run in which nothing happened proves nothing
    for (name, all, runs) in &sum.rows {
        let by_adapters = *name == "bytes by adapters";
        assert!(by_adapters || *all > 0 && *runs > SEEDS / 20, "{name}: {all} in {runs} runs");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [2, 45] {
        let (a, b) = (run_seed(seed, false, None), run_seed(seed, false, None));
        assert!(a.is_ok(), "{a:?}");
        assert_eq!(a, b, "seed {seed} gave two histories");
    }
}

#[test]
fn seeds_that_broke_a_promise_once_keep_it() {
    for &seed in ONCE {
        if let Err(f) = run_seed(seed, false, None) {
            panic!("{f}");
        }
    }
}

/// Planted bugs, each with the first seed that finds it, and the promise that it breaks.
#[cfg(feature = "planted-bugs")]
const FOUND: &[(&str, rerail_sim::rwapi::Plant, u64, &str)] = &[
    ("overtaking", |node| node.plant_overtaking(), 0, "intact"),
    ("early reuse", |node| node.plant_early_reuse(100), 0, "names"),
];

/// Seeds that are tried when the recorded one finds nothing any more.
#[cfg(feature = "planted-bugs")]
const OTHERS: u64 = 150;

#[test]
#[cfg(feature = "planted-bugs")]
fn seeds_find_the_planted_bugs() {
    // a failure begins with its seed and the time
    let promise_of = |f: &str| f.split_once(" ms: ").map_or(String::new(), |(_, message)| message.to_owned());
    for (name, plant, seed, promise) in FOUND {
        let finds =
            |seed| run_seed(seed, false, Some(*plant)).is_err_and(|f| breaks(&promise_of(&f), promise));
        if !finds(*seed) {
            let now = (0..OTHERS).find(|seed| finds(*seed));
            let now = now.unwrap_or_else(|| panic!("nothing finds {name} by `{promise}`"));
            eprintln!("{name} is found by seed {now} now, not by {seed}");
        }
        assert!(run_seed(*seed, false, None).is_ok(), "seed {seed} breaks without a bug");
    }
}

#[test]
#[cfg(not(feature = "planted-bugs"))]
fn failures_name_their_promise() {
    assert!(breaks("intact: node 1 takes message 3 [a.rs:1]", "intact"));
}
