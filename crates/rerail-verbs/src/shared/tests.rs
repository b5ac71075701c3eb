//! Pools over the adapter of tests, which takes any receive that is posted for any lane.

use super::*;
use crate::fake::{self, Work, posted, regions, shared_queues};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const START: usize = Shape::STREAM.start();
const EACH: usize = START + SPARE;

fn receives() -> Vec<usize> {
    posted().iter().map(|w| if let Work::Receive(n) = w { *n as usize } else { panic!("{w:?}") }).collect()
}

#[test]
fn a_lane_costs_as_much_as_one_with_its_own_slots_until_there_are_many_and_little_then() {
    let before = regions();
    let pool = fake::pool(1);
    let registered = |pool: &Pool| pool.state.lock().at.len();
    posted();
    assert_eq!(pool.join(2).unwrap().len(), EACH);
    assert_eq!((receives().len(), registered(&pool)), (EACH, 2 * 18));
    (1..BUSY as u32).for_each(|n| _ = pool.join(2 + 4 * n).unwrap());
    assert_eq!(registered(&pool), BUSY * 2 * 18);
    (BUSY as u32..100).for_each(|n| _ = pool.join(2 + 4 * n).unwrap());
    let wanted = BUSY * 2 * 18 + (100 - BUSY) * 2 * EACH;
    assert!((wanted..wanted + 36).contains(&registered(&pool)), "64 KiB for each that is idle");
    assert_eq!((regions() - before) as usize, registered(&pool) / 36, "in blocks");
    assert!(pool.is_open());
    (100..LANES_MAX as u32).for_each(|n| _ = pool.join(2 + 4 * n).unwrap());
    assert!(!pool.is_open(), "it is full");
    drop(pool);
    assert_eq!((regions(), shared_queues()), (before, 0), "the last lane takes all with it");
}

#[test]
fn a_lane_that_may_not_lock_memory_does_not_join_and_the_others_stay() {
    let pool = fake::pool(1);
    pool.join(2).unwrap();
    let before = pool.counts();
    fake::may_lock(false);
    assert!(pool.join(6).is_err());
    fake::may_lock(true);
    assert_eq!(pool.counts(), before);
    fake::refuses_after(Some(1));
    assert!(pool.join(6).is_err(), "an adapter that takes no receive");
    fake::refuses_after(None);
    assert_eq!(pool.counts().0, before.0, "nothing counts for it");
    assert_eq!(pool.join(10).unwrap().len(), EACH);
}

#[test]
fn a_busy_lane_gets_what_is_free_and_then_what_an_idle_one_gives_back() {
    let pool = fake::pool(1);
    pool.join(2).unwrap();
    pool.join(6).unwrap();
    let grown = pool.grow(2, 100);
    let spare = 2 * 36 - 4 * EACH;
    assert_eq!((grown.posted, grown.slots.len(), grown.recall), (0, spare, None));
    pool.hold(2);
    pool.post(2, &mut grown.slots.clone()).unwrap();
    assert_eq!(pool.grow(6, 2), Grown::default(), "the other was active");
    assert_eq!(pool.grow(6, 2), Grown { recall: Some(2), ..Grown::default() }, "and is idle now");
    assert_eq!(pool.grow(6, 2), Grown::default(), "it is told once");
    pool.shrink(2, 5);
    posted();
    assert_eq!(pool.grow(6, 2), Grown { posted: 2, ..Grown::default() }, "they are posted already");
    assert_eq!(pool.grow(6, 8).posted, 3);
    assert_eq!(posted(), []);
}

#[test]
fn what_the_adapter_may_have_taken_is_not_used_again_and_a_pool_with_much_of_it_takes_no_lane() {
    let pool = fake::pool(1);
    pool.join(2).unwrap();
    let mut gone = 0;
    while pool.is_open() {
        posted();
        pool.join(6).unwrap();
        let own = receives();
        pool.taken(own[0], Some(6));
        pool.leave(6);
        gone += EACH - 1;
        let state = pool.state.lock();
        assert_eq!((state.unsure, state.lanes.len()), (gone, 1));
        assert!(own[1..].iter().all(|slot| state.at[*slot] == At::Posted), "not used again");
        assert_eq!(state.at[own[0]], At::Free, "one that was reported is");
    }
    assert!(gone >= UNSURE_MAX);
    assert!(receives().is_empty(), "the other lane misses nothing");
}

#[test]
fn lanes_that_are_or_were_busy_leave_slots_for_all_that_join_later() {
    let pool = fake::pool(1);
    let registered = || pool.state.lock().at.len();
    for lane in 0..LANES_MAX as u32 {
        pool.join(lane).unwrap_or_else(|why| panic!("{why} after {lane} lanes"));
        // all that its shape allows, in both directions
        let mut slots = pool.grow(lane, 16 - START).slots;
        pool.post(lane, &mut slots).unwrap();
        pool.take(lane, 16 - START);
    }
    let wanted = LANES_MAX * 2 * EACH + BUSY * 28;
    assert!(
        (wanted..wanted + 36).contains(&registered()),
        "{} slots: 64 KiB for each that is idle",
        registered()
    );
    // what they have goes with them, and what was given back is for the next
    let more = || {
        let state = pool.state.lock();
        (state.more, state.surplus)
    };
    assert_eq!(more(), (BUSY * 28, 0));
    pool.shrink(0, 14);
    pool.leave(1);
    assert_eq!(more(), ((BUSY - 1) * 28 - 14, 14));
    assert_eq!(pool.grow(100, 14).posted, 14);
    assert_eq!(pool.take(100, 100).len(), 28);
    assert_eq!(pool.take(101, 1), [] as [usize; 0]);
    assert_eq!(more(), (BUSY * 28, 0));
}

#[test]
fn a_pool_without_slots_for_another_lane_is_not_open() {
    let pool = fake::pool(1);
    let mut lane = 0;
    // as if the bounds of what lanes get and what is unsure did not hold
    while pool.is_open() {
        lane += 1;
        pool.join(lane).unwrap();
        let mut state = pool.state.lock();
        let free = state.free.len();
        take(&mut state, lane, free);
    }
    assert!(lane < LANES_MAX as u32);
    assert_eq!(pool.join(lane + 1).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
}

#[test]
fn what_a_lane_has_used_of_others_is_posted_later_where_the_adapter_takes_it_not_at_once() {
    let pool = fake::pool(1);
    posted();
    pool.join(2).unwrap();
    pool.join(6).unwrap();
    receives().iter().take(EACH + 1).for_each(|slot| pool.taken(*slot, Some(6)));
    fake::refuses_after(Some(0));
    pool.leave(6);
    fake::refuses_after(None);
    assert_eq!((pool.counts().0, pool.counts().1), (EACH as isize, EACH - 1));
    let slots = pool.take(2, 1);
    pool.give_back(2, slots.into_iter());
    assert_eq!((pool.counts().0, pool.counts().1), (EACH as isize, EACH));
    assert_eq!(receives().len(), 1, "once");
}

#[test]
fn a_lane_joins_while_a_busy_one_takes_all_that_is_free() {
    for _ in 0..300 {
        let pool = fake::pool(1);
        pool.join(2).unwrap();
        let (taking, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !over.load(Relaxed) {
                    pool.take(2, 100);
                    taking.store(true, Relaxed);
                }
            });
            while !taking.load(Relaxed) {
                std::hint::spin_loop();
            }
            // a panic must not leave the other thread behind
            let joined = std::panic::catch_unwind(AssertUnwindSafe(|| {
                [6, 10].map(|lane| pool.join(lane).unwrap().len())
            }));
            over.store(true, Relaxed);
            assert_eq!(joined.expect("what was seen to be free is taken"), [EACH; 2]);
        });
    }
}

/// An adapter and its lanes, at random: it takes any receive, reports most and loses some with a lane; lanes take what they have and more.
#[test]
fn no_lane_that_keeps_to_its_credits_meets_an_empty_queue() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = move |most: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) as usize % most
    };
    let (mut overused, mut grown, mut given, mut lost) = (0, 0, 0, 0);
    for _ in 0..60 {
        posted();
        let pool = fake::pool(1);
        // what the adapter has; for each lane what it may still use, and the slots that it has
        let mut has: Vec<usize> = Vec::new();
        let mut lanes: BTreeMap<u32, (isize, Vec<usize>)> = BTreeMap::new();
        let mut grown_by: BTreeMap<u32, usize> = BTreeMap::new();
        let mut next = 2;
        for _ in 0..400 {
            let lane = lanes.keys().nth(number(lanes.len().max(1))).copied();
            match (number(8), lane) {
                (0, _) | (_, None) => {
                    if pool.is_open() && lanes.len() < 12 {
                        pool.join(next).unwrap();
                        lanes.insert(next, (EACH as isize, Vec::new()));
                        next += 4;
                    }
                }
                (1, Some(lane)) => {
                    // some were taken for it, and are not reported
                    let (may, _) = lanes.remove(&lane).unwrap();
                    for _ in 0..number(may.max(0) as usize + 1) {
                        has.swap_remove(number(has.len()));
                        lost += 1;
                    }
                    pool.leave(lane);
                }
                (2, Some(lane)) => {
                    let got = pool.grow(lane, 1 + number(14));
                    let member = lanes.get_mut(&lane).unwrap();
                    member.0 += got.posted as isize;
                    grown += got.posted + got.slots.len();
                    *grown_by.entry(lane).or_default() += got.posted + got.slots.len();
                    member.1.extend(got.slots);
                    pool.hold(lane);
                }
                (3, Some(lane)) => {
                    let member = lanes.get_mut(&lane).unwrap();
                    let most = (member.0 - SPARE as isize).max(0) as usize;
                    let back = number(most.min(grown_by.get(&lane).copied().unwrap_or(0)) + 1);
                    pool.shrink(lane, back);
                    *grown_by.entry(lane).or_default() -= back;
                    member.0 -= back as isize;
                    given += back;
                }
                (4 | 5, Some(lane)) => {
                    let member = lanes.get_mut(&lane).unwrap();
                    let before = member.1.len();
                    pool.post(lane, &mut member.1).unwrap();
                    member.0 += before as isize;
                }
                (_, Some(lane)) => {
                    let member = lanes.get_mut(&lane).unwrap();
                    let breaks = number(40) == 0;
                    for _ in 0..if breaks { 6 } else { 1 } {
                        if has.is_empty() || member.0 <= 0 && !breaks {
                            break;
                        }
                        overused += usize::from(member.0 <= 0);
                        let slot = has.swap_remove(number(has.len()));
                        pool.taken(slot, Some(lane));
                        member.0 -= 1;
                        member.1.push(slot);
                    }
                    if breaks {
                        // it is ended; what it has used of others comes back
                        lanes.remove(&lane);
                        pool.leave(lane);
                    }
                }
            }
            for slot in receives() {
                assert!(!has.contains(&slot), "a slot is posted twice");
                has.push(slot);
            }
            let may: isize = lanes.values().map(|(may, _)| may.max(&0)).sum();
            assert!(has.len() as isize >= may, "{} receives for {may} messages", has.len());
        }
    }
    let least = [overused, grown, given, lost].into_iter().min();
    assert!(least > Some(100), "{overused} {grown} {given} {lost}: little is reached");
}
