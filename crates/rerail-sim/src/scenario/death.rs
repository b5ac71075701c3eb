//! H6, H7: a process that ended, one that is stopped, and a network that lies about either.

use super::{Story, received, until_event, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::oracle::Fate;
use crate::world::{Config, Verdict, World};
use rerail_core::{CompletionLevel, EventKind, Health};
use rerail_wire::packet::{PacketKind, peek};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The error must be there within this time after the survivors can know.
const KNOWN_NS: u64 = 5 * SEC;

/// Three processes on three hosts that have all talked to each other.
fn three(story: &Story, seed: u64, rails: usize) -> World {
    three_with_deadline(story, seed, rails, None)
}

/// The same with a deadline for partitions.
fn three_with_deadline(story: &Story, seed: u64, rails: usize, deadline: Option<Duration>) -> World {
    let mut cfg = Config::quiet(seed, rails);
    cfg.hosts = vec![(0..rails).collect(); 3];
    cfg.procs = vec![0, 1, 2];
    cfg.options[0].partition_timeout = deadline;
    let mut w = story.world(cfg);
    for (a, b) in [(0, 2), (2, 0), (1, 2), (2, 1)] {
        w.recv(RecvSpec::class(b, 201, 64));
        w.send(SendSpec::tagged(a, b, 201, 10)).expect("the first message is accepted");
    }
    warm_up(&mut w);
    w
}

fn knows_death(e: &EventKind) -> bool {
    matches!(e, EventKind::PeerDied { .. })
}

/// Process 2 was killed: operations with it end in errors at both survivors, which go on with each other.
fn survivors_go_on(w: &mut World, waiting: &[usize]) {
    let told = w.run_finely(KNOWN_NS, |w| {
        [0, 1].iter().all(|&p| w.events.iter().any(|e| e.1 == p && knows_death(&e.2.kind)))
    });
    assert!(told, "live: a process was killed, and the survivors do not know it: {}", w.describe());
    w.run_for(MS);
    for &r in waiting {
        assert!(
            w.oracle.recvs[r].fate == Fate::Cancelled,
            "live: a receive still waits for a process that was killed: {:?}",
            w.oracle.recvs[r]
        );
    }
    assert!(w.send(SendSpec::tagged(0, 2, 1, 10)).is_none(), "a dead peer takes no message");
    // a receive that is posted for it now ends at once
    let late = w.recv(RecvSpec { src: Some(2), ..RecvSpec::class(1, 7, 64) });
    w.run_for(MS);
    assert!(w.oracle.recvs[late].fate == Fate::Cancelled, "live: a receive waits for a dead peer");
    let id = w.send(SendSpec::tagged(0, 1, 3, 300_000)).expect("there is room");
    w.recv(RecvSpec::class(1, 3, 300_000));
    assert!(w.run_finely(2 * SEC, |w| received(w, id)), "live: the survivors do not go on: {}", w.describe());
    w.heal_and_finish();
}

/// H6, H8. A process proposes an epoch, is answered, and is killed before it sends a packet in it. The other side has
/// accepted, has no proposal of its own, and must not wait for ever. (Found by seed 393.)
pub fn killed_in_handshake(story: &Story) {
    for seed in 0..4 {
        let mut w = story.world(Config::quiet(seed, 1));
        w.send(SendSpec::tagged(1, 0, 1, 10)).expect("there is room");
        assert!(w.run_finely(SEC, |w| !w.paths(0).is_empty()), "simulator: nobody connects");
        w.kill(1);
        let id = w
            .send(SendSpec { level: CompletionLevel::Delivered, ..SendSpec::tagged(0, 1, 2, 10) })
            .expect("the death is not known yet");
        assert!(
            w.run_finely(2 * KNOWN_NS, |w| w.oracle.msgs[id as usize].failed),
            "live: who was killed in the middle of a handshake is waited for: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H6. A process is killed before its peer has met it: no stream can end, and refused connections are the only evidence. A first handshake
/// lasts two seconds; its attempts over streams must not wait for the next one. (Seen in the lab: 5.2 s.)
pub fn killed_unmet(story: &Story) {
    for seed in 0..6 {
        let mut w = story.world(Config::quiet(seed, 1 + seed as usize % 2));
        w.kill(1);
        let level = CompletionLevel::Delivered;
        let id =
            w.send(SendSpec { level, ..SendSpec::tagged(0, 1, 2, 10) }).expect("the death is not known yet");
        assert!(
            w.run_finely(4 * SEC, |w| w.oracle.msgs[id as usize].failed),
            "live: a process killed before it was met is waited for: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H8. A process that its peer has not named proposes an epoch and is answered. Then everything goes dark until the
/// peer has stopped waiting for the first packet in it. Only the first side has something to send, so only it can
/// begin. (Regression: Open MPI, which names its peers when it first sends to them; three of nineteen runs hung when
/// the rails were cut at the first message.)
pub fn accepted_and_cut(story: &Story) {
    for seed in 0..6 {
        let rails = 1 + seed as usize % 2;
        let mut w = story.world(Config::quiet(seed, rails));
        let answered = Rc::new(Cell::new(0));
        let seen = Rc::clone(&answered);
        w.filter = Some(Box::new(move |d| {
            let accept = matches!(peek(d.bytes), Some((_, PacketKind::Accept)));
            seen.set(seen.get() + usize::from(accept && d.src == 0));
            // nothing that the first side sends in the new epoch arrives
            let hello = matches!(peek(d.bytes), Some((_, PacketKind::Hello)));
            if d.src == 1 && !hello { Verdict::Drop } else { Verdict::Pass }
        }));
        w.recv(RecvSpec::class(0, 1, 10));
        let id = w.send(SendSpec::tagged(1, 0, 1, 10)).expect("there is room");
        assert!(w.run_finely(SEC, |_| answered.get() == rails), "simulator: nobody answers");
        let dark = w.begin(Fault::Blackout { host: 1 });
        w.filter = None;
        w.run_for((300 + 1200 * seed) * MS);
        w.end_fault(dark);
        assert!(
            w.run_finely(2 * SEC, |w| received(w, id)),
            "live: who was accepted and cut off is not heard any more: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H6. A process is killed while nothing, little, or much is under way; with all rails working, one of them dark, or all of
/// them dark until some seconds later.
pub fn killed(story: &Story) {
    for (seed, (rails, traffic, dark)) in
        [(2, 0, 0), (1, 1, 0), (2, 1, 0), (2, 2, 0), (2, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 1)]
            .into_iter()
            .enumerate()
    {
        let mut w = three(story, seed as u64, rails);
        let waiting: Vec<usize> =
            (0..2).map(|p| w.recv(RecvSpec { src: Some(2), ..RecvSpec::class(p, 9, 64) })).collect();
        let faults: Vec<usize> =
            (0..dark).map(|net| w.begin(Fault::Dark { host: 2, net, inward: true, outward: true })).collect();
        for k in 0..20 * traffic {
            let len = if traffic == 2 { 200_000 } else { 100 };
            w.recv(RecvSpec::class(0, 1, len));
            w.recv(RecvSpec::class(2, 1, len));
            w.send_soon(SendSpec::tagged(2, 0, 1, len - k));
            w.send_soon(SendSpec::tagged(0, 2, 1, len - k));
        }
        w.run_for(300_000);
        w.kill(2);
        if dark == rails {
            w.run_for(3 * SEC);
            for f in faults {
                w.end_fault(f);
            }
        }
        survivors_go_on(&mut w, &waiting);
    }
}

/// H6. A firewall refuses every connection and drops every datagram for three seconds, in the middle of streams: the process
/// lives, and everything goes on afterwards. And for ten seconds on one rail, while the process is stopped.
pub fn firewall(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        let stopped = seed >= 2;
        cfg.options[0].refused_timeout =
            if stopped { Some(Duration::from_secs(1)) } else { Some(Duration::from_secs(4)) };
        let mut w = story.world(cfg);
        warm_up(&mut w);
        for k in 0..4 {
            w.recv(RecvSpec::class(1, 1, 100_000));
            w.send(SendSpec::tagged(0, 1, 1, 100_000 - k)).expect("there is room");
        }
        w.run_for(100_000);
        let nets = if stopped { 1 } else { 2 };
        let ns = if stopped { 10 * SEC } else { 3 * SEC };
        for net in 0..nets {
            w.begin_for(Fault::Reset { host: 1, net, percent: 100 }, 10 * MS);
            w.begin_for(Fault::TcpRefused { host: 1, net }, ns);
            w.begin_for(Fault::UdpBlocked { host: 1, net }, ns);
        }
        if stopped {
            w.begin_for(Fault::Stop { p: 1 }, ns);
        }
        w.run_for(ns + 500 * MS);
        w.heal_and_finish();
    }
}

/// H6. A process is stopped; its kernel accepts connections on one rail, and a firewall refuses them on two others, where one
/// stream stands and one was reset. Each acceptance makes the next refusal the first one, and is no reason to retry at
/// once. (Found by seed 317: thousands of connections a second.)
pub fn refused_and_accepted(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 3);
        // a refusal comes after an acceptance
        cfg.nets[0].latency_ns *= 1 + seed;
        cfg.nets[1].latency_ns *= 1 + seed;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.begin_for(Fault::Reset { host: 1, net: 1, percent: 100 }, 10 * MS);
        for net in 0..2 {
            w.begin_for(Fault::TcpRefused { host: 1, net }, 4 * SEC);
        }
        w.begin_for(Fault::Stop { p: 1 }, 4 * SEC);
        w.recv(RecvSpec::class(1, 1, 100));
        let id = w.send(SendSpec::tagged(0, 1, 1, 100)).expect("there is room");
        let before = w.conns.len();
        w.run_for(4 * SEC);
        let tried = w.conns.len() - before;
        // in turn, out of turn, and to replace what was reset: each every quarter of a second on each path at most
        let most = 4 * 4 * 3 * 3;
        assert!(tried <= most, "bounded: {tried} connections were tried in 4 s, {most} at most");
        w.run_for(SEC);
        assert!(received(&w, id), "live: a stopped process does not go on: {}", w.describe());
        w.heal_and_finish();
    }
}

/// H6. A firewall refuses connections on one rail for seconds and lets datagrams pass. No process has anything to send,
/// and two processes share the host behind it. No query was sent, so missing answers prove nothing. (Regression: Open
/// MPI with two ranks per node.)
pub fn idle_behind_firewall(story: &Story) {
    for seed in 0..6 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.procs = vec![0, 1, 1];
        let mut w = story.world(cfg);
        for (a, b) in [(0, 2), (2, 0), (1, 2), (2, 1)] {
            w.recv(RecvSpec::class(b, 201, 64));
            w.send(SendSpec::tagged(a, b, 201, 10)).expect("the first message is accepted");
        }
        warm_up(&mut w);
        w.run_for(seed * 61 * MS);
        let net = seed as usize % 2;
        w.begin_for(Fault::Reset { host: 1, net, percent: 100 }, 10 * MS);
        w.begin_for(Fault::TcpRefused { host: 1, net }, 5 * SEC);
        if seed >= 4 {
            // and one of them is stopped meanwhile
            w.begin_for(Fault::Stop { p: 2 }, 2 * SEC);
        }
        w.run_for(6 * SEC);
        w.heal_and_finish();
    }
}

/// H6. One of two processes on a host is silent for seconds, because it is stopped or gets no core, and a firewall begins to reset
/// and refuse on one rail in the middle of that. The stream of its neighbour has nothing to carry and stands. The kernel had
/// answered for the process just before. (Regression: mpi4py's tests under unceasing cuts, Open MPI, three ranks on two loaded cores.)
pub fn starved_behind_firewall(story: &Story) {
    for seed in 0..12 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.procs = vec![0, 1, 1];
        let mut w = story.world(cfg);
        for (a, b) in [(0, 2), (2, 0), (0, 1), (1, 0)] {
            w.recv(RecvSpec::class(b, 201, 64));
            w.send(SendSpec::tagged(a, b, 201, 10)).expect("the first message is accepted");
        }
        warm_up(&mut w);
        w.recv(RecvSpec { src: Some(2), ..RecvSpec::class(0, 9, 64) });
        w.begin_for(Fault::Stop { p: 2 }, 4 * SEC);
        w.run_for((1_000 + 60 * seed) * MS);
        let net = seed as usize % 2;
        w.begin_for(Fault::Reset { host: 1, net, percent: 50 }, 10 * MS);
        w.begin_for(Fault::TcpRefused { host: 1, net }, 2 * SEC);
        w.run_for(4 * SEC);
        w.recv(RecvSpec::class(2, 1, 100_000));
        w.send(SendSpec::tagged(0, 2, 1, 100_000)).expect("it is not dead");
        w.send(SendSpec::tagged(2, 0, 9, 64)).expect("nor has it been told so");
        w.heal_and_finish();
    }
}

/// H6. A process is stopped for longer than the deadline of a partition: it is reported as stopped, its peer waits, and goes on.
/// The same for a peer from which only a message is awaited.
pub fn stopped(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 1 + seed as usize % 2);
        cfg.options[0].partition_timeout = Some(Duration::from_secs(3));
        cfg.no_path_down = true;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.begin_for(Fault::Stop { p: 1 }, 20 * SEC);
        if seed < 2 {
            w.send(SendSpec::tagged(0, 1, 1, 200_000)).expect("there is room");
        }
        w.recv(RecvSpec { src: Some(1), ..RecvSpec::class(0, 2, 64) });
        assert!(
            until_event(&mut w, 0, 2 * SEC, |e| matches!(e, EventKind::PeerStopped)),
            "live: a stopped peer is not reported: {}",
            w.describe()
        );
        w.run_for(20 * SEC);
        let wrong = w.events_of(0, |e| matches!(e, EventKind::Partition));
        assert!(wrong.is_empty(), "evidence: a stopped peer was called a partition: {wrong:?}");
        w.recv(RecvSpec::class(1, 1, 200_000));
        w.send(SendSpec::tagged(1, 0, 2, 64)).expect("there is room");
        w.cfg.no_path_down = false;
        w.heal_and_finish();
    }
}

/// H6. Idle paths are queried every five seconds only, and a process waits for a message that comes after four: no
/// partition is reported. A cut in the middle of traffic is reported as soon as ever.
pub fn left_alone(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 1 + seed as usize % 2);
        cfg.options.iter_mut().for_each(|o| o.idle_probe = Duration::from_secs(5));
        let mut w = story.world(cfg);
        warm_up(&mut w);
        for round in 0..3 {
            w.recv(RecvSpec { src: Some(1), ..RecvSpec::class(0, 2, 64) });
            w.run_for((4_000 + 300 * round) * MS);
            w.send(SendSpec::tagged(1, 0, 2, 64)).expect("there is room");
            w.run_for(100 * MS);
        }
        for p in 0..2 {
            let wrong = w.events_of(p, |e| matches!(e, EventKind::Partition | EventKind::PeerStopped));
            assert!(wrong.is_empty(), "evidence: p{p} was left alone and calls its peer silent: {wrong:?}");
        }
        for net in 0..w.nets.len() {
            w.begin(Fault::Dark { host: 0, net, inward: true, outward: true });
        }
        w.recv(RecvSpec::class(1, 1, 100));
        w.send(SendSpec::tagged(0, 1, 1, 100)).expect("there is room");
        assert!(
            until_event(&mut w, 0, 1_600 * MS, |e| matches!(e, EventKind::Partition)),
            "live: a partition is not reported: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H6. A process is stopped in the middle of a large message, for longer than a short deadline of a partition: its streams are full, and
/// full streams give no signs, so fresh ones are tried well before the deadline. (Regression: seed 2308632.)
pub fn stopped_when_full(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 1 + seed as usize % 2);
        cfg.options[0].partition_timeout = Some(Duration::from_secs(1 + seed / 2));
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.recv(RecvSpec::class(1, 1, 20_000_000));
        w.send(SendSpec::tagged(0, 1, 1, 20_000_000)).expect("there is room");
        w.run_for(2 * MS);
        w.begin_for(Fault::Stop { p: 1 }, 10 * SEC);
        w.run_for(10 * SEC);
        let wrong = w.events_of(0, |e| matches!(e, EventKind::PeerLost { .. }));
        assert!(wrong.is_empty(), "evidence: a stopped peer was given up: {wrong:?}");
        w.heal_and_finish();
    }
}

/// H6. A process is stopped from its beginning until its peer has given up the first handshakes, runs for long enough to agree on new epochs, and
/// is stopped once more, for longer than the deadline of a partition. No path has ever been in service. (Regression: seed
/// 91188.)
pub fn stopped_when_met(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 1 + seed as usize % 2);
        cfg.options[0].partition_timeout = Some(Duration::from_secs(3));
        let mut w = story.world(cfg);
        w.begin_for(Fault::Stop { p: 1 }, 4 * SEC);
        w.recv(RecvSpec::class(1, 1, 100));
        w.send(SendSpec::tagged(0, 1, 1, 100)).expect("there is room");
        w.run_for(3 * SEC);
        let met = |w: &World| w.paths(0).iter().any(|x| x.health == Health::Probation && x.streams > 0);
        assert!(w.run_finely(2 * SEC, met), "live: they do not meet: {}", w.describe());
        w.begin_for(Fault::Stop { p: 1 }, 10 * SEC);
        w.run_for(10 * SEC);
        let wrong = w.events_of(0, |e| matches!(e, EventKind::PeerLost { .. }));
        assert!(wrong.is_empty(), "evidence: a stopped peer was given up: {wrong:?}");
        w.heal_and_finish();
    }
}

/// H6. A process is gone, and another one has its port. The kernel of the new one accepts connections, and its engine
/// ends them, because it knows no peer. That is no stopped process: the deadline of a partition runs. (Regression: seed
/// 2012665.)
pub fn taken_port(story: &Story) {
    for seed in 0..4 {
        let deadline = Some(Duration::from_secs(4));
        let mut w = three_with_deadline(story, seed, 1 + seed as usize % 2, deadline);
        let waits = w.recv(RecvSpec { src: Some(2), ..RecvSpec::class(0, 5, 64) });
        w.kill(2);
        w.begin_anew(2);
        if seed < 2 {
            w.send(SendSpec::tagged(0, 2, 1, 100_000)).expect("there is room");
        }
        let lost = until_event(&mut w, 0, 6 * SEC, |e| matches!(e, EventKind::PeerLost { .. }));
        assert!(lost, "never a silent hang: whoever has the port is taken for the peer: {}", w.describe());
        w.run_for(MS);
        assert!(w.oracle.recvs[waits].fate == Fate::Cancelled, "never a silent hang: a receive still waits");
        let id = w.send(SendSpec::tagged(0, 1, 3, 300_000)).expect("there is room");
        w.recv(RecvSpec::class(1, 3, 300_000));
        assert!(
            w.run_finely(2 * SEC, |w| received(w, id)),
            "live: the survivors do not go on: {}",
            w.describe()
        );
    }
}

/// H7. A verdict that was wrong (the firewall refused for longer than the option allows) is still final, and both sides
/// learn of it. The entombed process does not wait for ever for the peer that gave it up, and nothing that it sends
/// takes effect.
pub fn wrong_verdict(story: &Story) {
    let mut cfg = Config::quiet(1, 2);
    cfg.options = vec![cfg.options[0].clone(); 2];
    cfg.options[0].refused_timeout = Some(Duration::from_secs(1));
    cfg.options[1].refused_timeout = None;
    cfg.peers_may_be_lost = true;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    let waits = w.recv(RecvSpec { src: Some(0), ..RecvSpec::class(1, 5, 64) });
    for net in 0..2 {
        w.begin_for(Fault::Reset { host: 1, net, percent: 100 }, 10 * MS);
        w.begin_for(Fault::TcpRefused { host: 1, net }, 3 * SEC);
        w.begin_for(Fault::UdpBlocked { host: 1, net }, 3 * SEC);
    }
    let id = w.send(SendSpec::tagged(1, 0, 6, 100)).expect("there is room");
    let never = w.recv(RecvSpec::class(0, 6, 100));
    assert!(
        until_event(&mut w, 0, 2_900 * MS, knows_death),
        "simulator: there is no verdict: {}",
        w.describe()
    );
    assert!(
        until_event(&mut w, 1, 8 * SEC, |e| matches!(e, EventKind::PeerGaveUp)),
        "never a silent hang: the entombed process does not learn that it was given up: {}",
        w.describe()
    );
    w.run_for(MS);
    assert!(w.oracle.recvs[waits].fate == Fate::Cancelled, "never a silent hang: a receive still waits");
    assert!(!received(&w, id) && w.oracle.recvs[never].fate == Fate::Posted, "final: the dead took effect");
}
