//! A thousand seeds in every test run, with ten thousand frames under faults each, or nearly.

use rerail_core::{MIGRATION_STEPS, TRANSITIONS};
use rerail_sim::run::{FRAMES_MIN, RunOptions, run_seed, run_seeds};
use std::sync::Mutex;

/// Seeds of a test run.
const SEEDS: u64 = 1_000;
/// Seeds that broke a promise once, each by a defect of its own that is mended (what they mean moves when the simulator draws more).
/// 669, 899, 907486, 414854 and 13413 are of another sort: for them the simulator was changed, not the engine.
const ONCE: &[u64] = &[
    317, 449, 572, 914, 1013, 2417, 2643, 13154, 13586, 14079, 14323, 22471, 24915, 31479, 52992, 57861,
    66347, 74343, 101_173, 101_383, 106_310, 200_623, 250_246, 250_661, 302_124, 407_364, 414_674, 418_380,
    456_961, 501_205, 502_391, 502_741, 610_149, 610_220, 611_412, 612_822, 613_384, 614_034, 615_546,
    620_350, 623_446, 634_155, 715_966, 724_035, 669, 899, 907_486, 805_267, 805_798, 811_397, 819_417,
    821_401, 2_012_665, 2_308_632, 2_405_721, 3_008_188, 3_043_636, 3_051_121, 3_051_582, 9316, 56_027,
    63_950, 23_667, 414_854, 872, 1536, 2031, 13_413,
];
/// One-sided operations of a seed, on the average; two seeds in five have any.
const ASKS_MIN: u64 = 100;
/// Operations of groups of a seed, at all members, on the average; one seed in seven has any.
const SHARES_MIN: u64 = 20;
const THREADS: usize = 2;

#[derive(Default)]
struct Sum {
    kept: u64,
    broken: Vec<String>,
    frames: u64,
    asks: u64,
    shares: u64,
    transitions: u64,
    migration_steps: u64,
}

#[test]
fn a_thousand_seeds_keep_every_promise_and_visit_every_transition() {
    let sum = Mutex::new(Sum::default());
    run_seeds(0, SEEDS, THREADS, &RunOptions::default(), |r| {
        let mut s = sum.lock().unwrap();
        match r {
            Ok(r) => {
                s.kept += 1;
                s.transitions |= r.transitions;
                s.migration_steps |= r.migration_steps;
                s.frames += r.frames;
                s.asks += r.asks;
                s.shares += r.shares;
            }
            Err(f) => s.broken.push(f.to_string()),
        }
    });
    let s = sum.into_inner().unwrap();
    for b in s.broken.iter().take(5) {
        eprintln!("{b}\n");
    }
    assert!(s.broken.is_empty(), "{} of {SEEDS} seeds broke a promise", s.broken.len());
    assert_eq!(s.kept, SEEDS);
    // a seed in which a process leaves early, or which lasts its minute, has fewer; others have more
    assert!(s.frames > SEEDS * FRAMES_MIN * 9 / 10, "only {} frames under faults", s.frames);
    assert!(s.asks > SEEDS * ASKS_MIN, "only {} one-sided operations", s.asks);
    assert!(s.shares > SEEDS * SHARES_MIN, "only {} operations of groups", s.shares);
    let missing: Vec<_> =
        TRANSITIONS.iter().enumerate().filter(|(i, _)| s.transitions >> i & 1 == 0).map(|(_, t)| t).collect();
    assert!(missing.is_empty(), "transitions that no seed visited: {missing:?}");
    let steps = MIGRATION_STEPS.len();
    assert_eq!(s.migration_steps, (1 << steps) - 1, "steps of carriers that no seed visited");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [3, 17, 49, 164, 361] {
        let o = RunOptions::default();
        let (a, b) = (run_seed(seed, &o), run_seed(seed, &o));
        assert!(a.is_ok(), "{a:?}");
        assert_eq!(a, b, "seed {seed} gave two histories");
    }
}

#[test]
fn seeds_that_broke_a_promise_once_keep_it() {
    for &seed in ONCE {
        if let Err(f) = run_seed(seed, &RunOptions::default()) {
            panic!("{f}");
        }
    }
}
