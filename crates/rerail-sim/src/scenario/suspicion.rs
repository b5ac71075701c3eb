//! H3, H13: what one silent path proves about its rail, and what it does not.

use super::{Story, received};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::{Config, World};
use rerail_core::EventKind;

/// Process 0 and its peers, each on a host of its own with two rails, that have all talked to it.
fn star(story: &Story, seed: u64, peers: usize) -> World {
    let mut cfg = Config::quiet(seed, 2);
    cfg.hosts = vec![vec![0, 1]; peers + 1];
    cfg.procs = (0..=peers).collect();
    let mut w = story.world(cfg);
    for p in 1..=peers {
        exchange(&mut w, p);
    }
    w.run_for(100 * MS);
    w
}

/// A message to `p`, and one back; how long that took.
fn exchange(w: &mut World, p: usize) -> u64 {
    let from = w.now;
    for (a, b) in [(0, p), (p, 0)] {
        w.recv(RecvSpec::class(b, 1, 100));
        let id = w.send_soon(SendSpec::tagged(a, b, 1, 100));
        assert!(w.run_finely(1_000 * MS, |w| received(w, id)), "live: {}", w.describe());
    }
    w.now - from
}

/// H3, H13. The rail on which a process sends goes dark while it talks to one peer after the other. The first has to wait until the rail is
/// suspected. Messages to the others, and their answers, do not wait a second time.
pub fn one_after_the_other(story: &Story) {
    for seed in 0..6 {
        let mut w = star(story, seed, 7);
        let net = w.primary(0).expect("a path is up");
        w.begin(Fault::Dark { host: 0, net, inward: true, outward: true });
        let first = exchange(&mut w, 1);
        assert!(first < 30 * MS, "evidence: a dark rail was suspected after {first} ns only");
        for p in 2..8 {
            let next = exchange(&mut w, p);
            assert!(
                next < MS,
                "evidence: peer {p} had to wait anew for a rail that was known to be dark: {next} ns"
            );
        }
        w.heal_and_finish();
    }
}

/// H3. The rail of one peer goes dark at its end, and another peer is stopped. Some of the others are queried, not all;
/// they answer, and their paths are not blamed.
pub fn at_the_far_end(story: &Story) {
    for seed in 0..4 {
        let mut w = star(story, seed, 40);
        let net = w.primary(0).expect("a path is up");
        let asked = w.counters(0).pings;
        w.events.clear();
        w.begin(Fault::Dark { host: 1, net, inward: true, outward: true });
        w.begin_for(Fault::Stop { p: 2 }, 60 * MS);
        for p in 1..3 {
            w.recv(RecvSpec::class(p, 1, 100));
            w.send_soon(SendSpec::tagged(0, p, 1, 100));
        }
        w.run_for(60 * MS);
        let blamed = |e: &&(u64, usize, rerail_core::Event)| {
            let at_fault =
                w.procs[1].engine.as_ref().map(|e| e.address(w.procs[1].eps[0]).token.public_name());
            e.1 == 0
                && matches!(e.2.kind, EventKind::PathSuspect | EventKind::PathDown { .. })
                && Some(e.2.peer_name) != at_fault
        };
        assert!(w.events.iter().any(|e| e.1 == 0 && matches!(e.2.kind, EventKind::PathDown { .. })));
        let wrong: Vec<_> = w.events.iter().filter(blamed).collect();
        assert!(
            wrong.is_empty(),
            "evidence: a rail that broke at the far end was blamed for others: {wrong:?}"
        );
        // two rounds to each of the first eight, and the rounds to those two
        let asked = w.counters(0).pings - asked;
        assert!(asked < 80, "bounded: {asked} questions because of one peer's rail");
        w.heal_and_finish();
    }
}
