//! Invariant 3: a rail that corrupts is found, named, and kept away from traffic; checksums cover what was agreed.

use super::order::holds;
use super::{Story, received, until_event, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::oracle::Fate;
use crate::world::{Config, Verdict, World};
use rerail_core::{Checksums, Direction, EventKind, Health, PathReport, Witness};
use rerail_wire::Coverage;
use rerail_wire::frame::{FRAME_HEADER_BYTES, FrameType};
use rerail_wire::packet::{PACKET_HEADER_BYTES, PacketHeader, SUM_NONE};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Datagrams that a filter took away, with their senders.
type Caught = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

/// Messages of many sizes in both directions.
fn traffic(w: &mut World, rounds: usize) {
    for k in 0..rounds {
        let len = [100, 1_000, 20_000, 300_000][k % 4];
        for (a, b) in [(0, 1), (1, 0)] {
            w.recv(RecvSpec::class(b, 1, len));
            w.send_soon(SendSpec::tagged(a, b, 1, len));
        }
    }
}

/// Path of process `p` on a network.
fn path(w: &World, p: usize, net: usize) -> PathReport {
    let on = |x: &PathReport| w.procs[p].nets[x.rail.0 as usize] == net;
    w.paths(p).into_iter().find(on).expect("two processes have a path on every network")
}

/// What rail 0 and rail 1 were accused of by process `p`: events of corruption, and quarantines.
fn accusations(w: &World, p: usize, net: usize) -> (usize, usize) {
    let mut n = (0, 0);
    for (_, q, e) in &w.events {
        let EventKind::Corruption { held, .. } = &e.kind else { continue };
        if *q == p && e.path.is_some_and(|x| w.procs[p].nets[x.1.0 as usize] == net) {
            n = (n.0 + 1, n.1 + usize::from(held.is_some()));
        }
    }
    n
}

/// Rail 0 corrupts what goes over it. Both sides must name it and take it out of service, the receiver by what it saw and
/// the sender by the receiver's report, and neither may blame rail 1. Repaired, it proves itself and carries again.
pub fn quarantined(story: &Story) {
    for seed in 0..3 {
        let mut w = story.world(Config::quiet(seed, 2));
        warm_up(&mut w);
        let faults = [
            w.begin(Fault::Corrupt { host: 0, net: 0, ppm: 100_000 }),
            w.begin(Fault::StreamCorrupt { host: 0, net: 0, ppm: 100_000 }),
        ];
        // of what an adapter writes nothing is corrupted: there it takes longer until the faults are enough
        for round in 0..120 {
            traffic(&mut w, 4);
            w.run_for(5 * MS);
            if round >= 40 && (0..2).all(|p| accusations(&w, p, 0).1 > 0) {
                break;
            }
        }
        for p in 0..2 {
            assert!(
                accusations(&w, p, 0).1 > 0,
                "intact: p{p} does not keep the corrupting rail away from traffic"
            );
            assert_eq!(accusations(&w, p, 1), (0, 0), "intact: p{p} blames the good rail");
            assert_eq!(path(&w, p, 1).corrupt, 0);
            let x = path(&w, p, 0);
            assert!(x.quarantined && !x.health.carries(), "intact: p{p} uses the corrupting rail: {x:?}");
        }
        assert!(
            path(&w, 0, 0).corrupt + path(&w, 1, 0).corrupt >= 8,
            "evidence: the faults are not in the report"
        );
        let by_word = |direction: Direction| {
            w.events.iter().any(|(_, _, e)| {
                matches!(e.kind, EventKind::Corruption { direction: d, held: Some(_), .. } if d == direction)
            })
        };
        assert!(by_word(Direction::In) && by_word(Direction::Out), "evidence: the verdict did not travel");
        for f in faults {
            w.end_fault(f);
        }
        let back = w.run_until(120 * SEC, |w| (0..2).all(|p| path(w, p, 0).health == Health::Up));
        assert!(back, "live: a repaired rail stays in quarantine: {}", w.describe());
        assert!((0..2).all(|p| !path(&w, p, 0).quarantined));
        traffic(&mut w, 8);
        w.heal_and_finish();
    }
}

/// For two seconds something ends every stream of the only rail as soon as it carries anything. A fresh one each time, as quickly as it can be
/// made, would keep both processes and their logs busy with nothing else; afterwards the rail carries at once. (Found by the fuzzer
/// `insider`: what a broken peer had made a process send was taken for damaged each time.)
pub fn for_nothing(story: &Story) {
    for seed in 0..3 {
        let mut w = story.world(Config::quiet(seed, 1));
        warm_up(&mut w);
        let from = w.events.len();
        traffic(&mut w, 4);
        let (end, mut streams) = (w.now + 2 * SEC, 0);
        while w.now < end {
            let left = end - w.now;
            if w.run_finely(left, |w| path(w, 0, 0).streams > 0 && path(w, 1, 0).streams > 0) {
                w.begin(Fault::Reset { host: 0, net: 0, percent: 100 });
                w.run_finely(2 * MS, |w| path(w, 0, 0).streams == 0 && path(w, 1, 0).streams == 0);
                streams += 1;
            }
        }
        assert!((5..60).contains(&streams), "bounded: {streams} streams were made for nothing");
        let said = w.events[from..].len();
        assert!(said < 200, "bounded: {said} events");
        let quick = w.run_until(SEC, |w| w.oracle.pending_count() == 0);
        assert!(quick, "live: a healed rail is not used: {}", w.describe());
        w.heal_and_finish();
    }
}

/// Rail 0 damages one datagram in thirty, for longer than its quarantine lasts. Short queries get through; it must not carry.
pub fn proof(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].quarantine = Duration::from_millis(100);
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.begin(Fault::Corrupt { host: 0, net: 0, ppm: 30_000 });
        let convicted = |w: &World| accusations(w, 0, 0).1 > 0 && accusations(w, 1, 0).1 > 0;
        for _ in 0..2_000 {
            if convicted(&w) {
                break;
            }
            traffic(&mut w, 4);
            w.run_for(5 * MS);
        }
        assert!(convicted(&w), "intact: a rail that damages one datagram in thirty is not noticed");
        let from = w.events.len();
        for _ in 0..100 {
            traffic(&mut w, 2);
            w.run_for(20 * MS);
        }
        let up = w.events[from..].iter().find(|e| matches!(e.2.kind, EventKind::PathUp { .. }));
        assert!(up.is_none(), "intact: a rail carries again while it corrupts: {up:?}");
        w.heal_and_finish();
    }
}

/// The only rail corrupts. What is damaged is dropped and sent again; without another rail it stays in service.
pub fn last_rail(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 1);
        cfg.no_path_down = true;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.begin(Fault::Corrupt { host: 0, net: 0, ppm: 50_000 });
        w.begin(Fault::StreamCorrupt { host: 0, net: 0, ppm: 5_000 });
        for _ in 0..20 {
            traffic(&mut w, 4);
            w.run_for(10 * MS);
        }
        assert!(
            accusations(&w, 0, 0).0 > 0 && accusations(&w, 0, 0).1 == 0,
            "evidence: faults are counted and told"
        );
        w.cfg.no_path_down = false;
        w.heal_and_finish();
    }
}

/// Both rails damage one datagram and one segment in a thousand.
pub fn both_rails(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].corrupt_threshold = 2;
        cfg.options[0].quarantine = Duration::from_millis(50);
        let mut w = story.world(cfg);
        warm_up(&mut w);
        for net in 0..2 {
            w.begin(Fault::Corrupt { host: 0, net, ppm: 1_000 });
            w.begin(Fault::StreamCorrupt { host: 0, net, ppm: 1_000 });
        }
        for _ in 0..40 {
            traffic(&mut w, 4);
            w.recv(RecvSpec::class(1, 1, 4_000_000));
            w.send_soon(SendSpec::tagged(0, 1, 1, 4_000_000));
            w.run_for(10 * MS);
        }
        assert!(w.corrupted.iter().all(|&n| n > 0), "simulator: the story did not come about");
        let done = w.run_until(30 * SEC, |w| w.oracle.pending_count() == 0);
        assert!(done, "live: traffic does not get through two rails that corrupt a little: {}", w.describe());
        w.heal_and_finish();
    }
}

/// Rail 0 damages fragments, and the receiver has no threshold: the sender finds out by what it has to send again, sends it
/// over rail 1, and takes rail 0 out when one vfrag reaches the level.
pub fn level(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].corrupt_threshold = 0;
        cfg.options[0].retransmit_level = 4;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.begin(Fault::StreamCorrupt { host: 0, net: 0, ppm: 200_000 });
        for _ in 0..20 {
            w.recv(RecvSpec::class(1, 1, 4_000_000));
            let id = w.send_soon(SendSpec::tagged(0, 1, 1, 4_000_000));
            assert!(w.run_finely(5_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        }
        let out = w.events_of(0, |e| matches!(e, EventKind::PathDown { .. }));
        let by_level = |e: &EventKind| matches!(e, EventKind::PathDown { witness: Witness::Level, .. });
        let c = w.counters(1);
        assert!(
            out.iter().any(|e| by_level(&e.1)),
            "evidence: {} faults, and no level took the rail out: {out:?}",
            c.corrupt
        );
        w.heal_and_finish();
    }
}

/// Both processes want no checksums (on network 1: of headers only), but 1 does not receive the setting of 0 for a
/// while. Nothing may go unprotected while 1 expects protection, and in the end both leave it out.
pub fn agreement(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].checksum = Checksums::parse("net0=off,net1=header").unwrap();
        let mut w = story.world(cfg);
        w.filter = Some(Box::new(move |d| {
            let hidden = d.src == 0 && d.now < 150 * MS && holds(d.bytes, FrameType::Config);
            if hidden { Verdict::Drop } else { Verdict::Pass }
        }));
        for _ in 0..40 {
            traffic(&mut w, 4);
            w.run_for(5 * MS);
        }
        w.filter = None;
        let done = w.run_until(5 * SEC, |w| w.oracle.pending_count() == 0);
        assert!(done, "live: {}", w.describe());
        for p in 0..2 {
            assert_eq!(w.counters(p).downgrades, 0, "intact: p{p} was sent less than it had agreed to");
            assert_eq!(path(&w, p, 0).coverage, Coverage::None, "both wish for nothing");
            assert_eq!(path(&w, p, 1).coverage, Coverage::Header, "both wish for headers");
        }
        w.heal_and_finish();
    }
    // the stronger wish counts
    let mut cfg = Config::quiet(9, 2);
    cfg.options = vec![cfg.options[0].clone(); 2];
    cfg.options[0].checksum = Checksums::parse("off").unwrap();
    cfg.options[1].checksum = Checksums::parse("header,net1=on").unwrap();
    header_on_the_first(story, cfg);
    // by default payload is summed, but not on adapters over a network that does it
    let mut cfg = Config::quiet(11, 2);
    cfg.adapters = vec![16, 0];
    cfg.sums_end_to_end = true;
    header_on_the_first(story, cfg);
}

/// Of two networks the first comes to sum headers only, and the second everything.
fn header_on_the_first(story: &Story, cfg: Config) {
    let mut w = story.world(cfg);
    warm_up(&mut w);
    traffic(&mut w, 8);
    w.run_for(100 * MS);
    for p in 0..2 {
        assert_eq!((path(&w, p, 0).coverage, path(&w, p, 1).coverage), (Coverage::Header, Coverage::Full));
    }
    w.heal_and_finish();
}

/// An attacker on the path takes a message, changes a byte of it, and marks the packet as one without a checksum.
pub fn downgrade(story: &Story) {
    for seed in 0..3 {
        let mut w = story.world(Config::quiet(seed, 1));
        warm_up(&mut w);
        let caught: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
        let catch = caught.clone();
        w.filter = Some(Box::new(move |d| {
            let first = d.src == 0 && holds(d.bytes, FrameType::Eager) && catch.borrow().is_none();
            if first {
                *catch.borrow_mut() = Some(d.bytes.to_vec());
                return Verdict::Drop;
            }
            Verdict::Pass
        }));
        w.recv(RecvSpec::class(1, 1, 700));
        let id = w.send(SendSpec::tagged(0, 1, 1, 700)).expect("there is room");
        w.run_finely(100 * MS, |_| caught.borrow().is_some());
        w.filter = None;
        let mut forged = caught.borrow_mut().take().expect("a message was caught");
        *forged.last_mut().expect("it has bytes") ^= 0x10;
        forged[24..28].fill(0);
        forged[28] |= SUM_NONE;
        assert_eq!(
            PacketHeader::parse(&forged).map(|h| h.0.coverage),
            Ok(Coverage::None),
            "simulator: forged badly"
        );
        w.inject(0, 1, 0, forged);
        assert!(w.run_finely(1_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        assert_eq!(w.counters(1).downgrades, 1, "intact: a packet without a checksum was not refused");
        w.heal_and_finish();
    }
}

/// Only headers are summed, on both rails: of everything that is sent a copy comes with a flipped bit in a header, and none
/// is taken.
pub fn headers(story: &Story) {
    for seed in 0..2 {
        let mut cfg = Config::quiet(seed, 1);
        cfg.options[0].checksum = Checksums::parse("header").unwrap();
        // faults are injected by hand here: the rail is not to blame
        cfg.options[0].corrupt_threshold = 0;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.corrupted[0] += 1;
        traffic(&mut w, 4);
        w.run_for(100 * MS);
        assert_eq!(path(&w, 0, 0).coverage, Coverage::Header);
        let caught: Caught = Rc::default();
        let catch = caught.clone();
        w.filter = Some(Box::new(move |d| {
            let eager = holds(d.bytes, FrameType::Eager);
            if eager && catch.borrow().len() < 64 {
                catch.borrow_mut().push((d.src, d.bytes.to_vec()));
                return Verdict::Drop;
            }
            Verdict::Pass
        }));
        traffic(&mut w, 8);
        w.run_for(MS);
        w.filter = None;
        // a copy with a damaged number looks like an old packet that is sent again
        let refused =
            |w: &World| -> u64 { (0..2).map(|p| w.counters(p)).map(|c| c.corrupt + c.replays).sum() };
        let before = refused(&w);
        let mut sent = 0;
        for (src, bytes) in caught.borrow().iter() {
            // not in the connection id: the packet would be a stranger's
            for bit in (64..(PACKET_HEADER_BYTES + FRAME_HEADER_BYTES) * 8).step_by(7) {
                let mut b = bytes.clone();
                b[bit / 8] ^= 1 << (bit % 8);
                if b[8..10] == bytes[8..10] {
                    w.inject(*src, 1 - *src, 0, b);
                    sent += 1;
                }
            }
            w.run_for(MS);
        }
        let found = refused(&w) - before;
        assert!(sent > 100, "simulator: the story did not come about");
        assert_eq!(found, sent, "intact: damaged headers were taken");
        w.heal_and_finish();
    }
}

/// The yardstick: nothing is asked, sent twice or kept for streams, and everything arrives as long as nothing breaks, lost datagrams
/// included. When a rail breaks, all that was under way ends in an error on both sides, soon.
pub fn unprotected(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].protection = false;
        cfg.peers_may_be_lost = true;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let before = w.counters(0);
        let loss = w.begin(Fault::Loss { host: 0, net: 0, ppm: 20_000 });
        for _ in 0..20 {
            traffic(&mut w, 4);
            w.run_for(20 * MS);
        }
        w.end_fault(loss);
        let done = w.run_until(5 * SEC, |w| w.oracle.pending_count() == 0);
        assert!(done, "live: {}", w.describe());
        let after = w.counters(0);
        assert_eq!(
            (after.pings, after.bytes_hedged),
            (before.pings, 0),
            "yardstick: something was asked or sent twice"
        );
        assert_eq!((path(&w, 0, 0).coverage, path(&w, 1, 1).coverage), (Coverage::None, Coverage::None));
        let waits = w.recv(RecvSpec { src: Some(0), ..RecvSpec::class(1, 5, 64) });
        w.recv(RecvSpec::class(1, 1, 8_000_000));
        w.send(SendSpec::tagged(0, 1, 1, 8_000_000)).expect("there is room");
        w.run_for(2 * MS);
        w.begin(Fault::IfDown { host: 0, net: seed as usize % 2, peers: false });
        for p in 0..2 {
            assert!(
                until_event(&mut w, p, 2 * SEC, |e| matches!(
                    e,
                    EventKind::Unprotected | EventKind::PeerGaveUp
                )) || !w
                    .events_of(p, |e| matches!(e, EventKind::Unprotected | EventKind::PeerGaveUp))
                    .is_empty(),
                "never a silent hang: p{p} goes on without protection: {}",
                w.describe()
            );
        }
        w.run_for(MS);
        assert!(w.oracle.recvs[waits].fate == Fate::Cancelled, "never a silent hang: a receive still waits");
    }
}

/// Under round-robin the turn may come back to the rail on which a message was lost: it goes over the other, at once, and does not wait
/// for something else to happen. (Regression.)
pub fn lost_in_turn(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].set("policy", "round-robin").expect("it is a policy");
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let mut dropped = false;
        w.filter = Some(Box::new(move |d| {
            let first = d.src == 0 && !dropped && holds(d.bytes, FrameType::Eager);
            dropped |= first;
            if first { Verdict::Drop } else { Verdict::Pass }
        }));
        let mut ids = Vec::new();
        for _ in 0..2 + seed % 2 {
            w.recv(RecvSpec::class(1, 1, 700));
            ids.push(w.send(SendSpec::tagged(0, 1, 1, 700)).expect("there is room"));
            w.run_for(MS / 5);
        }
        let all = w.run_finely(200 * MS, |w| ids.iter().all(|&id| received(w, id)));
        assert!(all, "live: a lost message waits for something else to happen: {}", w.describe());
        w.heal_and_finish();
    }
}
