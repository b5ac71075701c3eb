//! What a connection costs in memory that is locked: its slots, whatever the number of connections (the HSAM slides' formula, "Scalability
//! Aspects": for each path a context, and an element for each entry of its queues).

use rerail_rail::Rails;
use rerail_rail::conformance::{connect, eventually, poll};

const STREAMS: u32 = 8;
/// 18 slots to send from and 18 to receive in, 8 KiB each.
const SLOTS_KIB: u64 = 2 * 18 * 8;

/// Memory of this process that adapters have locked, KiB.
pub fn locked_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("since Linux 3.2");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

pub fn a_connection_locks_its_slots((mut from, mut to): (Rails, Rails)) {
    let mut locked = vec![locked_kib()];
    let streams: Vec<_> = (1..=STREAMS)
        .map(|name| {
            let ends = connect(&mut from, &mut to, 0, name);
            locked.push(locked_kib());
            ends
        })
        .collect();
    println!("locked with 0 to {STREAMS} connections whose ends are both here: {locked:?} KiB");
    // the memory begins and ends in pages
    let each = (locked[STREAMS as usize] - locked[0]) / u64::from(STREAMS);
    assert!((2 * SLOTS_KIB..2 * SLOTS_KIB + 32).contains(&each), "{each} KiB for both ends");
    for (out, into) in streams {
        from.streams.close(out);
        to.streams.close(into);
    }
    eventually("all of it is given back", || {
        poll(&mut from);
        poll(&mut to);
        (locked_kib() == locked[0]).then_some(())
    });
}
