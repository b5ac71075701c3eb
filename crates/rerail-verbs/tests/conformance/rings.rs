//! Small datagrams that adapters write into rings.

use crate::memory::locked_kib;
use rerail_rail::Rails;
use rerail_rail::conformance::{at, eventually};
use rerail_verbs::ring_datagrams;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;

/// Datagrams there and back until rings are in use.
const WARM: u32 = 200;

fn send(from: &Rails, to: &Rails, bytes: &[u8]) {
    let (rail, to) = (from.rails[0].locator, at(to, 0));
    assert_eq!(rail.kind(), to.kind());
    eventually("there is room", || {
        let sent = from.datagrams.send(rerail_rail::RailId(0), to, bytes);
        (sent == rerail_rail::SendOutcome::Sent).then_some(())
    });
}

fn receive(side: &Rails) -> Option<Vec<u8>> {
    let mut buf = [0; 4096];
    let arrived = side.datagrams.recv(&mut buf).unwrap()?;
    Some(buf[..arrived.len].to_vec())
}

fn there_and_back(a: &Rails, b: &Rails, n: u32) {
    let bytes = n.to_le_bytes().repeat(1 + n as usize % 70);
    send(a, b, &bytes);
    assert_eq!(eventually("it arrives", || receive(b)), bytes);
    send(b, a, &bytes);
    assert_eq!(eventually("it comes back", || receive(a)), bytes);
}

/// A thread of `side`, which has gone to sleep, is woken. The other side makes progress meanwhile, as a process that runs.
fn is_woken(side: &Rails, other: &Rails) {
    let fd = side.datagrams.fd();
    eventually("the sleeper is woken", || {
        assert_eq!(receive(other), None);
        let mut ready = [PollFd::new(&fd, PollFlags::IN)];
        let most = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        (poll(&mut ready, Some(&most)).unwrap() > 0).then_some(())
    });
}

/// `with`: adapters write into rings.
pub fn datagrams_go_by_rings_and_no_sleeper_is_forgotten((a, b): (Rails, Rails), with: bool) {
    let before = ring_datagrams();
    (0..WARM).for_each(|n| there_and_back(&a, &b, n));
    let by_rings = ring_datagrams() - before;
    println!("{by_rings} of {} datagrams went by rings", 2 * WARM);
    assert_eq!(by_rings > u64::from(WARM), with);
    assert!(with || by_rings == 0);
    for n in 0..90 {
        (0..70).for_each(|m| there_and_back(&a, &b, m));
        // One that is sent before the other side knows of the sleep: before it begins, at once behind, and later.
        let number = [n; 4];
        if n % 3 == 0 {
            send(&a, &b, &number);
        }
        let found = b.datagrams.before_sleep(false);
        match n % 3 {
            0 => {}
            1 => send(&a, &b, &number),
            _ => {
                assert!(!found, "nothing is there");
                std::thread::sleep(Duration::from_millis(2));
                send(&a, &b, &number);
            }
        }
        if !found {
            is_woken(&b, &a);
        }
        b.datagrams.after_sleep();
        assert_eq!(eventually("it arrives", || receive(&b)), number);
    }
}

/// What a peer with a ring locks beside one without: `with` and `without` send one datagram each.
pub fn a_ring_locks_its_slots(without: (Rails, Rails), with: (Rails, Rails)) {
    let locks = |(a, b): &(Rails, Rails)| {
        let before = locked_kib();
        there_and_back(a, b, 1);
        locked_kib() - before
    };
    let (without, with) = (locks(&without), locks(&with));
    println!(
        "locked for both ends of a lane for datagrams: {without} KiB without rings, {with} KiB with rings"
    );
    // 32 slots of 256 bytes each; the memory of each ring and of each lane begins and ends somewhere in a page
    let rings = with - without;
    assert!((2 * 8 - 8..=2 * 8 + 16).contains(&rings), "{rings} KiB for two rings");
}
