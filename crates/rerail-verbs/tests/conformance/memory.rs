//! What a connection costs in memory that is locked: its slots, whatever the number of connections (the HSAM slides' formula, "Scalability
//! Aspects": for each path a context, and an element for each entry of its queues).

use rerail_rail::Rails;
use rerail_rail::conformance::{connect, eventually, poll};

/// More than share the memory of connections that are busy.
const STREAMS: u32 = 40;
/// From this number on each costs the same.
const MANY: u32 = 16;
/// Messages of a connection, with and without bytes, that may be under way in each direction, and when it begins; 8 KiB each.
const SLOTS_KIB: u64 = 2 * 18 * 8;
const FIRST_SLOTS_KIB: u64 = 2 * 4 * 8;

/// Memory of this process that adapters have locked, KiB.
pub fn locked_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("since Linux 3.2");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What is locked with 0 and more connections whose ends are both here, KiB. All of it is given back.
fn locked_by_connections((mut from, mut to): (Rails, Rails), streams: u32) -> Vec<u64> {
    let mut locked = vec![locked_kib()];
    let streams: Vec<_> = (1..=streams)
        .map(|name| {
            let ends = connect(&mut from, &mut to, 0, name);
            locked.push(locked_kib());
            ends
        })
        .collect();
    for (out, into) in streams {
        from.streams.close(out);
        to.streams.close(into);
    }
    eventually("all of it is given back", || {
        poll(&mut from);
        poll(&mut to);
        (locked_kib() == locked[0]).then_some(())
    });
    locked
}

/// With a shared receive queue, and without.
pub fn a_connection_locks_its_slots(shared: (Rails, Rails), own: (Rails, Rails)) {
    let locked = locked_by_connections(own, 8);
    println!("locked with 0 to 8 connections that share nothing: {locked:?} KiB");
    // the memory begins and ends in pages
    let each = (locked[8] - locked[0]) / 8;
    assert!((2 * SLOTS_KIB..2 * SLOTS_KIB + 32).contains(&each), "{each} KiB for both ends");
    let locked = locked_by_connections(shared, STREAMS);
    println!("locked with 0 to {STREAMS} connections that share a receive queue: {locked:?} KiB");
    let first = locked[1] - locked[0];
    assert!(first < 2 * SLOTS_KIB + 32, "the first costs no more than before: {first} KiB for both ends");
    // registered in blocks
    let each = (locked[STREAMS as usize] - locked[MANY as usize]) / u64::from(STREAMS - MANY);
    assert!(each < 2 * FIRST_SLOTS_KIB + 32, "{each} KiB for both ends");
}
