//! How often idle paths are queried, and which peers are queried as often as ever.

use super::{Story, received, until_event};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::world::one_lane;
use crate::world::{Config, World};
use rerail_core::{EventKind, Options};
use std::time::Duration;

/// Process 0 and its peers, on these hosts with so many rails each; all have exchanged messages with it. It may send
/// `budget` queries a second.
fn idle(story: &Story, seed: u64, rails: usize, hosts: &[usize], budget: u32) -> World {
    let mut cfg = Config::quiet(seed, rails);
    cfg.hosts = vec![(0..rails).collect(); hosts.iter().max().map_or(1, |h| h + 1)];
    cfg.procs = std::iter::once(0).chain(hosts.iter().copied()).collect();
    cfg.options = vec![Options { probe_budget: budget, ..one_lane() }, one_lane()];
    cfg.options[0].partition_timeout = Some(Duration::from_secs(3));
    cfg.peers_may_be_lost = true;
    let mut w = story.world(cfg);
    for p in 1..=hosts.len() {
        for (a, b) in [(0, p), (p, 0)] {
            w.recv(RecvSpec::class(b, 1, 100));
            let id = w.send_soon(SendSpec::tagged(a, b, 1, 100));
            assert!(w.run_finely(1_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        }
    }
    w.run_for(2 * SEC);
    w
}

fn all_dark(w: &mut World, host: usize) -> Vec<usize> {
    (0..w.nets.len()).map(|net| w.begin(Fault::Dark { host, net, inward: true, outward: true })).collect()
}

/// Queries that process 0 has sent, and that its peers have sent.
fn questions(w: &World) -> (u64, u64) {
    (w.counters(0).pings, (1..w.procs.len()).map(|p| w.counters(p).pings).sum())
}

/// A process with thirty peers may send ten queries a second. Its peers, which have no other peer, query it no more
/// often. A rail that breaks there is still found, later.
pub fn bounded(story: &Story) {
    let hosts: Vec<usize> = (1..=30).collect();
    for seed in 0..2 {
        let mut w = idle(story, seed, 2, &hosts, 10);
        let before = questions(&w);
        w.run_for(20 * SEC);
        let now = questions(&w);
        let (asked, was_asked) = (now.0 - before.0, now.1 - before.1);
        assert!(asked <= 200, "bounded: {asked} questions on idle paths in 20 s");
        assert!(was_asked <= 240, "bounded: {was_asked} questions of idle peers in 20 s");
        // 60 paths in 6 seconds or little more
        assert!(asked + was_asked >= 120, "evidence: only {asked} and {was_asked} questions in 20 s");
        w.begin(Fault::Dark { host: 7, net: seed as usize, inward: true, outward: true });
        assert!(
            until_event(&mut w, 0, 16 * SEC, |e| matches!(e, EventKind::PathDown { .. })),
            "evidence: a rail that broke while nobody used it was not found: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H6. One query a second for twenty idle paths. But a peer that a receive or an unfetched message waits for is queried
/// as often as ever: a dark rail and a partition are found as soon as by a process with a single peer, and the deadline
/// of the partition runs from then on. Meanwhile no peer is reported silent only because it was not queried.
pub fn waited_for(story: &Story) {
    let hosts: Vec<usize> = (1..=10).collect();
    for seed in 0..4 {
        let mut w = idle(story, seed, 2, &hosts, 1);
        w.events.clear();
        let by_receive = seed % 2 == 0;
        if by_receive {
            w.recv(RecvSpec { src: Some(5), ..RecvSpec::class(0, 2, 64) });
        } else {
            w.send(SendSpec::tagged(0, 5, 2, 300_000)).expect("there is room");
        }
        w.run_for(15 * SEC);
        let wrong: Vec<_> = w.events.iter().filter(|e| e.1 == 0).collect();
        assert!(wrong.is_empty(), "evidence: nothing happened, and this was told: {wrong:?}");
        let begun = w.now;
        let dark = w.begin(Fault::Dark { host: 5, net: seed as usize % 2, inward: true, outward: true });
        assert!(
            until_event(&mut w, 0, 550 * MS, |e| matches!(e, EventKind::PathDown { .. })),
            "evidence: a rail to somebody who is waited for is dark for {} ms, and nothing is known",
            (w.now - begun) / MS
        );
        w.end_fault(dark);
        w.run_for(5 * SEC);
        let dark = all_dark(&mut w, 5);
        let begun = w.now;
        assert!(
            until_event(&mut w, 0, 1_600 * MS, |e| matches!(e, EventKind::Partition)),
            "live: a partition is not reported: {}",
            w.describe()
        );
        if seed < 2 {
            assert!(
                until_event(&mut w, 0, 3 * SEC, |e| matches!(e, EventKind::PeerLost { .. })),
                "never a silent hang: the deadline does not come: {}",
                w.describe()
            );
            let after = (w.now - begun) / MS;
            assert!(after > 2_500, "live: a deadline of 3 s was over after {after} ms");
            continue;
        }
        dark.into_iter().for_each(|f| w.end_fault(f));
        w.heal_and_finish();
    }
}

/// H6. A receive waits for a process that ended while its host was cut off, so only refused connections show its death.
/// Its neighbour, whose answers are the proof, is idle, and was not queried for long.
pub fn idle_neighbour(story: &Story) {
    for seed in 0..4 {
        let mut w = idle(story, seed, 1, &[1, 1, 2, 3], 1);
        w.run_for(seed * 300 * MS);
        let waits = w.recv(RecvSpec { src: Some(2), ..RecvSpec::class(0, 2, 64) });
        let dark = all_dark(&mut w, 1);
        w.run_for(100 * MS);
        w.kill(2);
        w.run_for(900 * MS);
        dark.into_iter().for_each(|f| w.end_fault(f));
        assert!(
            until_event(&mut w, 0, 1_500 * MS, |e| matches!(e, EventKind::PeerDied { .. })),
            "live: a process ended, and its neighbour was not asked whether it is refused: {}",
            w.describe()
        );
        w.run_for(MS);
        assert!(w.oracle.recvs[waits].fate == crate::oracle::Fate::Cancelled, "live: a receive still waits");
        w.heal_and_finish();
    }
}
