//! H3, H8, H10, H12, H13, H17: what is blamed, and on what evidence.

use super::order::holds;
use super::{Story, received, sent, until_event, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::{Config, Verdict, World};
use rerail_core::{EventKind, Health, Witness};
use rerail_wire::frame::FrameType;
use rerail_wire::packet::{PacketKind, peek};
use std::time::Duration;

/// Some traffic from 0 to 1, small and large.
fn some_traffic(w: &mut crate::world::World) {
    for k in 0..10 {
        w.recv(RecvSpec::class(1, 1, 100_000));
        w.send(SendSpec::tagged(0, 1, 1, k * 10_000)).expect("there is room");
    }
}

/// H3. The peer is stopped for seconds while messages are under way. Its kernel takes datagrams and acknowledges
/// segments, but the process does not answer. No path may be called broken.
pub fn stopped_peer(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 2 + seed as usize % 2);
        cfg.nets[0].latency_ns = 150_000;
        cfg.no_path_down = true;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        for ms in [60, 300, 3_000] {
            some_traffic(&mut w);
            w.begin_for(Fault::Stop { p: 1 }, ms * MS);
            w.run_for((ms + 200) * MS);
        }
        w.cfg.no_path_down = false;
        w.heal_and_finish();
    }
}

/// H3. One rail of 0 is crowded: what arrives there is delayed more and more, up to 45 ms, as the answers of 2 show, to
/// which 0 sends all the time. A few answers of 1 find no room. That proves nothing against the path to 1. (Found by
/// seeds 9316 and 63950.)
pub fn crowded_rail(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.hosts = vec![vec![0, 1]; 3];
        cfg.procs = vec![0, 1, 2];
        cfg.no_path_down = true;
        let mut w = story.world(cfg);
        for to in [1, 2] {
            w.recv(RecvSpec::class(to, 201, 64));
            w.send(SendSpec::tagged(0, to, 201, 10)).expect("there is room");
        }
        warm_up(&mut w);
        let net = w.primary(0).unwrap_or(0);
        let (mut room_again, begun) = (5, w.now);
        w.filter = Some(Box::new(move |d| {
            if d.dst != 0 || d.net != net {
                return Verdict::Pass;
            }
            let answer = matches!(peek(d.bytes), Some((_, PacketKind::Pong)));
            if d.src == 1 && room_again > 0 {
                room_again -= usize::from(answer);
                return Verdict::Drop;
            }
            Verdict::Delay((15 * MS + (d.now - begun) / 2).min(45 * MS))
        }));
        let talk = |w: &mut crate::world::World, to| {
            w.recv(RecvSpec::class(to, 1, 100));
            w.send(SendSpec::tagged(0, to, 1, 100)).expect("there is room");
        };
        for k in 0..200 {
            talk(&mut w, 2);
            if k == 80 {
                talk(&mut w, 1);
            }
            w.run_for(MS);
        }
        w.cfg.no_path_down = false;
        w.filter = None;
        w.heal_and_finish();
    }
}

/// H3. Process 1 is overloaded: it answers queries and leaves its streams unread for a third of a second. Its kernel
/// has every byte, so a fresh stream would be read no sooner. (Found with 64 MPI ranks on two cores: hundreds of
/// streams were replaced.)
pub fn unread_streams(story: &Story) {
    for seed in 0..4 {
        let mut w = story.world(Config::quiet(seed, 2));
        warm_up(&mut w);
        let ends: Vec<_> = (0..2).filter_map(|net| w.stream_of(1, net)).collect();
        assert!(!ends.is_empty(), "simulator: there is no stream");
        for &(c, side) in &ends {
            w.conns[c].ends[side].rest_until = u64::MAX;
        }
        w.events.clear();
        let mut sends = Vec::new();
        for _ in 0..4 {
            w.recv(RecvSpec::class(1, 1, 40_000));
            sends.push(w.send(SendSpec::tagged(0, 1, 1, 40_000)).expect("there is room"));
        }
        w.run_for(330 * MS);
        let replaced =
            w.events.iter().filter(|e| matches!(e.2.kind, EventKind::StreamReplaced { .. })).count();
        assert!(replaced == 0, "busy peer: {replaced} streams were replaced because they were not read");
        for &(c, side) in &ends {
            w.conns[c].ends[side].rest_until = 0;
            w.list_readable(c, side);
        }
        assert!(
            w.run_finely(1_000 * MS, |w| sends.iter().all(|&id| received(w, id) && sent(w, id))),
            "live: a message does not arrive although its stream is read again: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H8. Both sides begin at once, the link fails, both begin again at once; and every hello is repeated by the network
/// long after its time. Both must stay in the one epoch that they have agreed on.
pub fn epoch_collision(story: &Story) {
    for seed in 0..6 {
        let mut w = story.world(Config::quiet(seed, 1 + seed as usize % 2));
        w.filter = Some(Box::new(|d| match peek(d.bytes) {
            Some((_, PacketKind::Hello)) => Verdict::Again(600 * MS),
            _ => Verdict::Pass,
        }));
        warm_up(&mut w);
        for round in 0..3 {
            for net in 0..w.nets.len() {
                w.begin_for(Fault::IfDown { host: round % 2, net, peers: true }, 30 * MS);
            }
            w.run_for(75 * MS);
            // the repetitions of the round before come from here on, and change nothing
            w.cfg.no_path_down = true;
            w.run_for(175 * MS);
            some_traffic(&mut w);
            w.run_for(300 * MS);
            w.cfg.no_path_down = false;
        }
        w.heal_and_finish();
    }
}

/// H8. One side begins, and the other has nothing to send; or it begins a little later, when the first hello is under way. They agree on an epoch
/// without waiting, whether the side with the larger name began or the other.
pub fn first_meeting(story: &Story) {
    let mut high_began = [0; 2];
    for seed in 0..12 {
        for (begins, acquainted) in [(0, false), (1, false), (0, true), (1, true)] {
            for later in [None, Some(5), Some(15), Some(30), Some(60)] {
                let mut w = story.world(Config { acquainted, ..Config::quiet(seed, 1) });
                let (a, b) = (begins, 1 - begins);
                w.recv(RecvSpec { src: None, ..RecvSpec::class(b, 1, 64) });
                w.send_soon(SendSpec::tagged(a, b, 1, 64));
                if let Some(us) = later {
                    w.run_for(us * 1_000);
                    w.recv(RecvSpec { src: None, ..RecvSpec::class(a, 1, 64) });
                    w.send_soon(SendSpec::tagged(b, a, 1, 64));
                }
                let up = |w: &World| (0..2).all(|p| w.paths(p).iter().all(|x| x.health == Health::Up));
                assert!(
                    w.run_finely(100 * MS, |w| w.oracle.pending_count() == 0 && up(w)),
                    "live: two processes that are there do not agree: seed {seed}, {begins} begins, the other {later:?} µs later: {}",
                    w.describe()
                );
                high_began[w.paths(0)[0].epoch.0 as usize % 2] += 1;
                w.heal_and_finish();
            }
        }
    }
    assert!(high_began.iter().all(|&n| n > 10), "either side's epoch is agreed on: {high_began:?}");
}

/// H10. Over rail 0 answers are lost and acknowledgements late, until it is suspected and everything is sent again over
/// rail 1; then the acknowledgement arrives. It must not be taken for the rail's round-trip time.
pub fn ambiguous_sample(story: &Story) {
    let mut seen = 0;
    for seed in 0..6 {
        let mut w = story.world(Config::quiet(seed, 2));
        warm_up(&mut w);
        let Some(used) = w.primary(0) else { panic!("live: no path is up: {}", w.describe()) };
        let start = w.now;
        w.filter = Some(Box::new(move |d| {
            let early = d.now < start + 40 * MS;
            match peek(d.bytes) {
                Some((_, PacketKind::Pong)) if d.src == 1 && d.net == used && early => Verdict::Drop,
                _ if d.src == 1 && d.net == used && early && holds(d.bytes, FrameType::Ack) => {
                    Verdict::Delay(start + 36 * MS - d.now.min(start + 36 * MS))
                }
                _ => Verdict::Pass,
            }
        }));
        for _ in 0..4 {
            w.recv(RecvSpec::class(1, 1, 1000));
            w.send(SendSpec::tagged(0, 1, 1, 1000)).expect("there is room");
        }
        if until_event(&mut w, 0, 60 * MS, |e| matches!(e, EventKind::PathSuspect)) {
            seen += 1;
        }
        w.run_to(start + 37 * MS);
        for p in w.paths(0) {
            assert!(
                p.rtt < Duration::from_millis(1),
                "evidence: an acknowledgement of what was sent twice made the round trip {:?}, it is 40 µs",
                p.rtt
            );
        }
        w.filter = None;
        w.heal_and_finish();
    }
    assert!(seen > 0, "simulator: the story did not come about: no path was suspected");
}

/// H12. The machine of 0 is suspended for longer than its own deadline for partitions, with messages unacknowledged.
pub fn suspended_machine(story: &Story) {
    let mut cfg = Config::quiet(1, 2);
    cfg.no_path_down = true;
    cfg.options = vec![cfg.options[0].clone(); 2];
    cfg.options[0].partition_timeout = Some(Duration::from_secs(2));
    let mut w = story.world(cfg);
    warm_up(&mut w);
    for ms in [100, 1_500, 20_000] {
        let dark = w.begin(Fault::Blackout { host: 0 });
        some_traffic(&mut w);
        // queries are under way: the time without a reply counts from them
        w.run_for(30 * MS);
        w.begin_for(Fault::Stop { p: 0 }, ms * MS);
        w.run_for(ms * MS);
        w.end_fault(dark);
        w.run_for(300 * MS);
    }
    w.cfg.no_path_down = false;
    w.heal_and_finish();
}

/// H13. The interface of 1 goes down, and only 1 is notified. 0 must stop using the path at once, not when its own
/// queries find out.
pub fn shared_verdict(story: &Story) {
    for net in 0..2 {
        let mut w = story.world(Config::quiet(1 + net as u64, 2));
        warm_up(&mut w);
        some_traffic(&mut w);
        w.run_for(MS / 2);
        w.begin(Fault::IfDown { host: 1, net, peers: false });
        assert!(
            until_event(&mut w, 1, 20 * MS, |e| matches!(e, EventKind::PathDown { .. })),
            "evidence: the link is down and the path is not"
        );
        let at = w.now;
        let told = until_event(&mut w, 0, 200 * MS, |e| matches!(e, EventKind::PathDown { .. }));
        let late = w.now - at;
        assert!(
            told && late < 2 * MS,
            "evidence: the other side gave the path up {late} ns later: {:?}",
            w.events.last()
        );
        let down = w.events_of(0, |e| matches!(e, EventKind::PathDown { .. }));
        assert!(
            matches!(down.last(), Some((_, EventKind::PathDown { witness: Witness::Peer, .. }))),
            "evidence: the peer's word was not heard: {down:?}"
        );
        w.heal_and_finish();
    }
}

/// H17. The engine of 1 is locked by a thread that does not run; its service thread answers queries. Nothing may be taken for
/// lost, and no stream replaced, because those answers do not come from the engine.
pub fn locked_engine(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 1 + seed as usize % 2);
        cfg.no_path_down = true;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let before = w.counters(0);
        some_traffic(&mut w);
        w.begin_for(Fault::Lock { p: 1 }, 900 * MS);
        let id = w.send(SendSpec::tagged(0, 1, 1, 700)).expect("there is room");
        w.run_for(1_000 * MS);
        let c = w.counters(0);
        assert_eq!(
            (c.datagrams_lost, c.streams_replaced, c.bytes_resent),
            (before.datagrams_lost, before.streams_replaced, before.bytes_resent),
            "evidence: answers without the engine were taken for the engine's (datagrams lost, streams replaced, bytes sent again)"
        );
        w.recv(RecvSpec::class(1, 1, 1000));
        assert!(w.run_finely(1_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        w.cfg.no_path_down = false;
        w.heal_and_finish();
    }
}
