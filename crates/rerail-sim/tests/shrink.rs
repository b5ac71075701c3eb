//! A failing seed is made smaller, and the smaller case fails in the same way, also after it was a file.

use rerail_sim::case::Case;
use rerail_sim::run::{FRAMES_MIN, run_case};
use rerail_sim::shrink::shrink;
use std::time::Duration;

#[test]
#[cfg_attr(not(feature = "planted-bugs"), ignore = "needs --features planted-bugs")]
fn a_failing_seed_is_made_smaller_and_replays_from_its_text() {
    let without = Some("death_verdict");
    let (case, failure) = (0..200)
        .map(|seed| Case::whole(seed, FRAMES_MIN, without))
        .find_map(|c| run_case(&c, false).err().map(|f| (c, f)))
        .expect("some seed needs the verdict");
    let s = shrink(&case, &failure, Duration::from_secs(3600), 40);
    assert_eq!(s.failure.kind(), failure.kind());
    let (before, after) = (failure.facts, s.failure.facts);
    assert!(after.messages * 2 < before.messages, "{before:?} became {after:?}");
    let again: Case = s.case.to_string().parse().expect("a case is read back");
    let replayed = run_case(&again, false).expect_err("it fails again");
    assert_eq!((replayed.message, replayed.facts), (s.failure.message, after));
    // without the bug there is nothing to find
    let right = Case { without: None, ..again };
    assert!(run_case(&right, false).is_ok());
}
