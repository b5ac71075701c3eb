//! Bulk as datagrams: where TCP is blocked, or because the user wants it.

use super::order::holds_one;
use super::policy::{all_received, rounds, sent_by, world};
use super::{Story, received, sent, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::world::one_lane;
use crate::world::{Config, Passing, Verdict, World};
use rerail_core::{BulkMode, Health, Options};
use rerail_wire::packet::{PacketHeader, PacketKind, peek};
use rerail_wire::{FrameHeader, FrameType};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

const MIB: usize = 1 << 20;
const UDP: &[(&str, &str)] = &[("bulk", "udp")];

/// Megabytes a second of `count` messages of 1 MiB from process 0 to process 1, eight at a time.
fn rate(w: &mut World, count: usize) -> u64 {
    let begin = w.now;
    for _ in 0..count / 8 {
        for _ in 0..8 {
            w.recv(RecvSpec::class(1, 1, MIB));
            w.send_soon(SendSpec::tagged(0, 1, 1, MIB));
        }
        all_received(w);
    }
    (count * MIB) as u64 * 1000 / (w.now - begin)
}

/// With `bulk=udp` a rail is used up, nothing goes over its stream, and no burst is longer than pacing allows.
pub fn fills_the_rail(story: &Story) {
    let mut w = world(story, 1, &[1_000], UDP);
    let written = w.written(0, 0);
    let bursts: Rc<RefCell<HashMap<u64, usize>>> = Rc::default();
    let seen = bursts.clone();
    w.filter = Some(Box::new(move |d| {
        if peek(d.bytes).is_some_and(|(_, k)| k == PacketKind::Bulk) {
            *seen.borrow_mut().entry(d.now).or_default() += d.bytes.len();
        }
        Verdict::Pass
    }));
    rate(&mut w, 16);
    let found = rate(&mut w, 64);
    assert!(found >= 110, "bulk: {found} MB/s of 125: {}", w.describe());
    assert_eq!(w.written(0, 0), written, "nothing goes over the stream");
    // a train, or what a millisecond at twice the rate comes to
    let longest = bursts.borrow().values().copied().max().unwrap_or(0);
    assert!((1..=300_000).contains(&longest), "bulk: a burst of {longest} bytes: {}", w.describe());
    w.filter = None;
    w.heal_and_finish();
}

/// TCP is blocked on one of two rails: both carry all the same.
pub fn tcp_blocked_on_one(story: &Story) {
    let mut w = world(story, 2, &[1_000, 1_000], &[]);
    w.begin(Fault::TcpBlocked { host: 0, net: 1 });
    rounds(&mut w, 30, &[MIB]);
    w.run_for(500 * MS);
    rate(&mut w, 32);
    let before = sent_by(&w);
    let found = rate(&mut w, 64);
    let by: Vec<u64> = sent_by(&w).iter().zip(&before).map(|(a, b)| (a - b) / MIB as u64).collect();
    assert!(by[1] >= 24, "bulk: the rail without TCP carried {by:?} MB: {}", w.describe());
    assert!(found >= 190, "bulk: {found} MB/s of 250 by {by:?}");
    assert!(w.counters(0).trains_sent > 0);
    w.heal_and_finish();
}

/// TCP is blocked everywhere: bulk flows at the rate of the rails, whichever mode the user chose, and when TCP is possible again
/// it is used again.
pub fn tcp_blocked_on_all(story: &Story) {
    for mode in ["auto", "tcp"] {
        let mut w = world(story, 3, &[1_000, 1_000], &[("bulk", mode)]);
        let faults = [0, 1].map(|net| w.begin(Fault::TcpBlocked { host: 0, net }));
        rounds(&mut w, 4, &[MIB, 40_000]);
        w.run_for(500 * MS);
        rate(&mut w, 32);
        let found = rate(&mut w, 64);
        assert!(found >= 190, "bulk: {found} MB/s of 250 with {mode}: {}", w.describe());
        for f in faults {
            w.end_fault(f);
        }
        let back = w.run_finely(3 * SEC, |w| w.paths(0).iter().all(|x| x.streams > 0));
        assert!(back, "live: no stream comes back: {}", w.describe());
        w.run_for(20 * MS);
        let before = w.counters(0).trains_sent;
        rounds(&mut w, 2, &[MIB]);
        assert_eq!(w.counters(0).trains_sent, before, "streams carry again");
        w.heal_and_finish();
    }
}

/// Chance takes datagrams: everything arrives, and the rate stays.
pub fn losses(story: &Story) {
    for (ppm, least) in [(0, 110), (1_000, 96), (10_000, 40)] {
        let mut w = world(story, 4, &[1_000], UDP);
        w.begin(Fault::Loss { host: 0, net: 0, ppm });
        rate(&mut w, 16);
        let found = rate(&mut w, 64);
        assert!(found >= least, "bulk: {found} MB/s with {ppm} ppm lost: {}", w.describe());
        assert!(w.paths(0).iter().all(|x| x.health == Health::Up), "chance is no broken path");
        w.heal_and_finish();
    }
}

/// The last datagrams of a message are lost, all of them at first: it arrives a few milliseconds later.
pub fn lost_tail(story: &Story) {
    for last in 1..4 {
        let mut w = world(story, 5, &[10_000], UDP);
        rounds(&mut w, 2, &[100_000]);
        let len = 100_000u64;
        let mut taken = 0;
        w.filter = Some(Box::new(move |d| {
            let Ok((h, rest)) = rerail_wire::packet::PacketHeader::parse(d.bytes) else {
                return Verdict::Pass;
            };
            if h.kind == PacketKind::Bulk {
                let (b, _) = rerail_wire::bulk::BulkHeader::parse(rest).expect("what is sent is well formed");
                if b.at + last * 1400 >= len && taken < last {
                    taken += 1;
                    return Verdict::Drop;
                }
            }
            Verdict::Pass
        }));
        w.recv(RecvSpec::class(1, 1, len as usize));
        let begin = w.now;
        let id = w.send(SendSpec::tagged(0, 1, 1, len as usize)).expect("there is room");
        assert!(w.run_finely(SEC, |w| received(w, id) && sent(w, id)), "live: {}", w.describe());
        let took = w.now - begin;
        assert!(took < 5 * MS, "bulk: without its last {last} datagrams the message took {took} ns");
        w.filter = None;
        w.heal_and_finish();
    }
}

/// Two senders, one receiver: its link is the bottleneck, with a queue. The later one still gets its share.
pub fn shared_bottleneck(story: &Story) {
    const LEN: usize = 250_000;
    let mut cfg = Config::quiet(6, 1);
    cfg.hosts = vec![vec![0]; 3];
    cfg.procs = vec![0, 1, 2];
    cfg.nets[0].mbps = 100;
    cfg.options = vec![Options { bulk: BulkMode::Udp, ..one_lane() }];
    let mut w = story.world(cfg);
    for a in [0, 1] {
        w.recv(RecvSpec::class(2, 200, 64));
        w.send(SendSpec::tagged(a, 2, 200, 10)).expect("the first message is accepted");
    }
    all_received(&mut w);
    let post = |w: &mut World, a: usize| {
        w.recv(RecvSpec::class(2, 1 + a as u64, LEN));
        (a, w.send_soon(SendSpec::tagged(a, 2, 1 + a as u64, LEN)))
    };
    let mut under_way: Vec<(usize, u64)> = (0..4).map(|_| post(&mut w, 0)).collect();
    let (mut done, mut before) = ([0u64; 2], [0; 2]);
    let begin = w.now;
    while w.now < begin + 20 * SEC {
        w.run_for(5 * MS);
        if w.now > begin + SEC && under_way.len() == 4 {
            under_way.extend((0..4).map(|_| post(&mut w, 1)));
        }
        if w.now < begin + 8 * SEC {
            before = done;
        }
        for u in &mut under_way {
            if received(&w, u.1) && sent(&w, u.1) {
                done[u.0] += 1;
                *u = post(&mut w, u.0);
            }
        }
    }
    let got = [done[0] - before[0], done[1] - before[1]];
    let sum = got[0] + got[1];
    assert!(sum * LEN as u64 >= 12 * 11_000_000, "bulk: two senders got {got:?} messages: {}", w.describe());
    assert!(
        got.iter().all(|g| g * 100 >= sum * 30),
        "bulk: one of two senders starves: {got:?} messages: {}",
        w.describe()
    );
    w.heal_and_finish();
}

/// Bulk datagrams vanish, all of them: small messages and control go on as if nothing were there, and the path stays in service.
pub fn small_beside_bulk(story: &Story) {
    let mut cfg = Config::quiet(7, 1);
    cfg.options = vec![Options { bulk: BulkMode::Udp, ..one_lane() }];
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w.filter = Some(Box::new(|d| {
        if peek(d.bytes).is_some_and(|(_, k)| k == PacketKind::Bulk) { Verdict::Drop } else { Verdict::Pass }
    }));
    w.recv(RecvSpec::class(1, 1, 8 * MIB));
    let large = w.send(SendSpec::tagged(0, 1, 1, 8 * MIB)).expect("there is room");
    w.run_for(5 * MS);
    let mut longest = 0;
    for _ in 0..50 {
        w.recv(RecvSpec::class(1, 2, 500));
        let begin = w.now;
        let id = w.send(SendSpec::tagged(0, 1, 2, 500)).expect("there is room");
        assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
        longest = longest.max(w.now - begin);
        w.run_for(MS);
    }
    assert!(longest < MS, "bulk: a small message took {longest} ns");
    assert!(!received(&w, large));
    assert!(w.paths(0).iter().all(|x| x.health == Health::Up));
    w.filter = None;
    assert!(w.run_finely(5 * SEC, |w| received(w, large) && sent(w, large)), "live: {}", w.describe());
    w.heal_and_finish();
}

/// A rail breaks under bulk datagrams, reported or silently: what it had goes over the other, and it is taken back.
pub fn broken_rail(story: &Story) {
    for (seed, silent) in [(8, false), (9, true)] {
        let mut w = world(story, seed, &[1_000, 1_000], UDP);
        rate(&mut w, 16);
        for _ in 0..16 {
            w.recv(RecvSpec::class(1, 1, MIB));
            w.send_soon(SendSpec::tagged(0, 1, 1, MIB));
        }
        w.run_for(5 * MS);
        let fault = if silent {
            w.begin(Fault::Dark { host: 1, net: 1, inward: true, outward: true })
        } else {
            w.begin(Fault::IfDown { host: 0, net: 1, peers: true })
        };
        all_received(&mut w);
        assert!(w.counters(0).paths_down > 0, "simulator: the story did not come about");
        w.end_fault(fault);
        let back = w.run_finely(3 * SEC, |w| w.paths(0).iter().all(|x| x.health == Health::Up));
        assert!(back, "live: the rail is not taken back: {}", w.describe());
        let found = rate(&mut w, 64);
        assert!(found >= 190, "bulk: {found} MB/s of 250 after the repair: {}", w.describe());
        w.heal_and_finish();
    }
}

/// What is longer than `bytes` as an IP packet vanishes silently between the hosts, on network 0. Gives the length of
/// the longest that was sent.
fn dig_hole(w: &mut World, bytes: usize) -> Rc<RefCell<usize>> {
    let longest: Rc<RefCell<usize>> = Rc::default();
    let seen = longest.clone();
    w.filter = Some(Box::new(move |d| {
        let len = d.bytes.len() + 28;
        let mut l = seen.borrow_mut();
        *l = (*l).max(len);
        if d.net == 0 && len > bytes { Verdict::Drop } else { Verdict::Pass }
    }));
    longest
}

/// A narrower link lies in between, from the beginning or suddenly: long datagrams vanish, short ones pass. The path stays in
/// service, messages of every size arrive, and bulk finds the length that passes.
pub fn black_hole(story: &Story) {
    for (seed, set, sudden) in [(10, UDP, false), (11, UDP, true), (12, &[][..], false), (13, &[][..], true)]
    {
        let mut cfg = Config::quiet(seed, 1);
        cfg.nets[0].mbps = 1_000;
        let mut o = one_lane();
        for (name, value) in set {
            o.set(name, value).expect("the story's options are valid");
        }
        cfg.options = vec![o];
        let mut w = story.world(cfg);
        if !sudden {
            dig_hole(&mut w, 1_330);
        }
        warm_up(&mut w);
        rounds(&mut w, 2, &[1_200, 1_390]);
        dig_hole(&mut w, 1_330);
        // the sizes around what passes, and bulk
        rounds(&mut w, 3, &[900, 1_150, 1_200, 1_220, 1_300, 1_390, 20_000, MIB]);
        w.run_for(2 * SEC);
        assert_eq!(w.counters(0).black_holes, 1, "the hole is found once: {}", w.describe());
        assert_eq!(w.counters(0).paths_down + w.counters(1).paths_down, 0, "the path stays in service");
        let longest = dig_hole(&mut w, 1_330);
        let lost = w.counters(0).datagrams_lost;
        rounds(&mut w, 2, &[1_200, 1_250, MIB]);
        let found = rate(&mut w, 32);
        assert!(found >= 100, "bulk: {found} MB/s of 125: {}", w.describe());
        let longest = *longest.borrow();
        assert!(longest <= 1_330, "nothing goes out that cannot pass: {longest}");
        if !set.is_empty() {
            assert!(longest > 1_290, "the search finds what passes: {longest}");
        }
        assert_eq!(w.counters(0).datagrams_lost, lost, "nothing is lost any more");
        w.filter = None;
        w.heal_and_finish();
    }
}

/// What a script lets pass of datagrams: those for which this holds.
fn let_pass(w: &mut World, mut passes: impl FnMut(&Passing<'_>) -> bool + 'static) {
    w.filter = Some(Box::new(move |d| if passes(d) { Verdict::Pass } else { Verdict::Drop }));
}

fn is_bulk(d: &Passing<'_>) -> bool {
    peek(d.bytes).is_some_and(|(_, k)| k == PacketKind::Bulk)
}

/// Everything that process 0 sent again, and found lost.
fn repeated(w: &World) -> (u64, u64) {
    (w.counters(0).bytes_resent, w.counters(0).datagrams_lost)
}

/// Eight messages of 1 MiB are under way.
fn begin_large(w: &mut World) {
    for _ in 0..8 {
        w.recv(RecvSpec::class(1, 1, MIB));
        w.send_soon(SendSpec::tagged(0, 1, 1, MIB));
    }
    w.run_for(5 * MS);
}

/// Waits until bulk goes as datagrams again.
fn until_trains(w: &mut World) {
    let before = w.counters(0).trains_sent;
    for _ in 0..20 {
        rounds(w, 1, &[MIB]);
        if w.counters(0).trains_sent > before {
            return;
        }
        w.run_for(SEC);
    }
    panic!("bulk: no datagrams although they pass: {}", w.describe());
}

/// UDP is filtered on the only rail in the middle of a transfer, in both directions or in one, and TCP is not: within a second everything
/// goes over the stream, small messages and acknowledgements included, the path stays in service, and nothing is sent again any
/// more. When datagrams pass again they are used again.
pub fn udp_blocked_on_only(story: &Story) {
    for (seed, mode, deaf) in
        [(14, "udp", None), (15, "auto", None), (16, "tcp", None), (17, "udp", Some(0)), (18, "udp", Some(1))]
    {
        let mut w = world(story, seed, &[1_000], &[("bulk", mode)]);
        rate(&mut w, 16);
        begin_large(&mut w);
        let_pass(&mut w, move |d| deaf.is_some_and(|p| d.dst != p));
        let begin = w.now;
        rounds(&mut w, 1, &[200, 30_000]);
        let took = (w.now - begin) / MS;
        assert!(
            took < 1_000,
            "bulk: with {mode} it took {took} ms to find that UDP is blocked: {}",
            w.describe()
        );
        w.run_for(100 * MS);
        assert_eq!(w.counters(0).streams_replaced, 0, "the stream works: {}", w.describe());
        let before = repeated(&w);
        rounds(&mut w, 20, &[200, 5_000, MIB]);
        let found = rate(&mut w, 64);
        assert!(found >= 90, "bulk: {found} MB/s of 125 with {mode} over the stream: {}", w.describe());
        w.run_for(3 * SEC);
        rounds(&mut w, 5, &[200, MIB]);
        assert_eq!(repeated(&w), before, "nothing is sent again for ever: {}", w.describe());
        assert_eq!(w.counters(0).paths_down + w.counters(1).paths_down, 0, "the path stays in service");
        w.filter = None;
        w.run_for(SEC);
        let lost = repeated(&w).1;
        if mode == "udp" {
            until_trains(&mut w);
        }
        let written = w.written(0, 0);
        rounds(&mut w, 20, &[200]);
        assert_eq!(w.written(0, 0), written, "small messages are datagrams again: {}", w.describe());
        assert_eq!(repeated(&w).1, lost);
        w.heal_and_finish();
    }
}

/// UDP is filtered on one of two rails, in one direction or in both: that rail carries on over TCP and is not taken out again and
/// again.
pub fn udp_blocked_on_one(story: &Story) {
    for (seed, mode, deaf) in [
        (19, "udp", None),
        (20, "auto", None),
        (21, "udp", Some(0)),
        (22, "udp", Some(1)),
        (23, "auto", Some(0)),
        (24, "auto", Some(1)),
    ] {
        let mut w = world(story, seed, &[1_000, 1_000], &[("bulk", mode)]);
        rate(&mut w, 16);
        begin_large(&mut w);
        let_pass(&mut w, move |d| d.net != 1 || deaf.is_some_and(|p| d.dst != p));
        all_received(&mut w);
        let back = w.run_finely(3 * SEC, |w| {
            [0, 1].iter().all(|&p| w.paths(p).iter().all(|x| x.health == Health::Up && x.streams > 0))
        });
        assert!(back, "live: the rail without UDP is not taken back with {mode}: {}", w.describe());
        rate(&mut w, 32);
        let (downs, before) = (w.counters(0).paths_down + w.counters(1).paths_down, sent_by(&w));
        for _ in 0..20 {
            rounds(&mut w, 2, &[200, MIB, 4 * MIB]);
            w.run_for(100 * MS);
        }
        let found = rate(&mut w, 64);
        let by: Vec<u64> = sent_by(&w).iter().zip(&before).map(|(a, b)| (a - b) / MIB as u64).collect();
        assert_eq!(
            w.counters(0).paths_down + w.counters(1).paths_down,
            downs,
            "with {mode}, {deaf:?} deaf, the rail is taken out again: {}",
            w.describe()
        );
        assert!(by[1] >= 60, "bulk: with {mode} the rail without UDP carried {by:?} MB: {}", w.describe());
        assert!(found >= 180, "bulk: {found} MB/s of 250 with {mode} by {by:?}: {}", w.describe());
        w.filter = None;
        w.run_for(SEC);
        if mode == "udp" {
            let written = w.written(0, 1);
            until_trains(&mut w);
            rate(&mut w, 32);
            assert!(w.written(0, 1) < written + MIB as u64, "both rails carry datagrams: {}", w.describe());
        }
        w.heal_and_finish();
    }
}

/// Bulk datagrams vanish, and everything else passes: their pieces go over the stream of the path, or over another path where it has
/// none. Now and then they are tried again, which costs little; when they pass they are used.
pub fn bulk_blocked(story: &Story) {
    for (seed, rails, tcp) in [(25, 1, true), (26, 2, true), (27, 2, false)] {
        let mut w = world(story, seed, &[1_000, 1_000][..rails], UDP);
        rate(&mut w, 16);
        let fault = (!tcp).then(|| w.begin(Fault::TcpBlocked { host: 0, net: rails - 1 }));
        begin_large(&mut w);
        let_pass(&mut w, move |d| d.net + 1 != rails || !is_bulk(d));
        let begin = w.now;
        all_received(&mut w);
        let took = (w.now - begin) / MS;
        assert!(
            took < 1_000,
            "bulk: it took {took} ms until bulk that vanished went another way: {}",
            w.describe()
        );
        rounds(&mut w, 3, &[MIB; 4]);
        let found = rate(&mut w, 256);
        let least = 90 * if tcp { rails as u64 } else { 1 };
        assert!(found >= least, "bulk: {found} MB/s, not {least}, while bulk vanishes: {}", w.describe());
        for _ in 0..100 {
            rounds(&mut w, 1, &[MIB]);
            w.run_for(200 * MS);
        }
        let before = repeated(&w).0;
        for _ in 0..100 {
            rounds(&mut w, 1, &[MIB]);
            w.run_for(200 * MS);
        }
        let tries = repeated(&w).0 - before;
        assert!(tries <= 8 * MIB as u64, "bulk: {tries} bytes were sent in vain: {}", w.describe());
        assert_eq!(w.counters(0).paths_down + w.counters(1).paths_down, 0, "the path stays in service");
        w.filter = None;
        if let Some(f) = fault {
            w.end_fault(f);
        }
        w.run_for(SEC);
        for _ in 0..12 {
            rounds(&mut w, 1, &[8 * MIB]);
            w.run_for(SEC);
        }
        let (written, trains) = (w.written(0, rails - 1), w.counters(0).trains_sent);
        rate(&mut w, 32);
        assert!(w.counters(0).trains_sent > trains);
        assert_eq!(w.written(0, rails - 1), written, "datagrams carry again: {}", w.describe());
        w.heal_and_finish();
    }
}

/// Only short datagrams pass, and what counts as short is less than the search for the length goes down to: messages go over the
/// stream.
pub fn only_short_pass(story: &Story) {
    for (seed, set) in [(28, UDP), (29, &[][..])] {
        let mut w = world(story, seed, &[1_000], set);
        rate(&mut w, 16);
        begin_large(&mut w);
        let_pass(&mut w, |d| d.bytes.len() <= 400);
        let begin = w.now;
        rounds(&mut w, 1, &[200, 1_000, 1_400, 30_000]);
        let took = (w.now - begin) / MS;
        assert!(took < 2_000, "bulk: it took {took} ms until long datagrams were given up: {}", w.describe());
        rounds(&mut w, 10, &[200, 1_000, 1_400, MIB]);
        assert_eq!(w.counters(0).paths_down + w.counters(1).paths_down, 0, "the path stays in service");
        w.heal_and_finish();
    }
}

/// Acknowledgements of bulk are lost until the sender queries: the answer reports again what has arrived, so nothing
/// that arrived is taken for lost, and no window shrinks for it.
pub fn lost_last_acknowledgement(story: &Story) {
    for (seed, set, channel) in [(30, UDP, 2), (31, &[][..], 1)] {
        let mut w = world(story, seed, &[10_000], set);
        rounds(&mut w, 2, &[100_000]);
        let (before, replaced) = (repeated(&w), w.counters(0).streams_replaced);
        let dropped: Rc<RefCell<u32>> = Rc::default();
        let seen = dropped.clone();
        let mut asked = false;
        let_pass(&mut w, move |d| {
            let Ok((h, _)) = PacketHeader::parse(d.bytes) else { return true };
            asked |= d.src == 0 && h.kind == PacketKind::Ping;
            let of_bulk = |f: &FrameHeader| f.kind == FrameType::Ack && f.b >> 16 & 0xffff == channel;
            let lost = !asked && d.src == 1 && holds_one(d.bytes, of_bulk);
            *seen.borrow_mut() += u32::from(lost);
            !lost
        });
        rounds(&mut w, 1, &[10_000]);
        w.run_for(300 * MS);
        assert!(*dropped.borrow() > 0, "simulator: the story did not come about");
        assert_eq!(repeated(&w), before, "what has arrived is not sent again: {}", w.describe());
        assert_eq!(w.counters(0).streams_replaced, replaced, "nor is its stream replaced");
        w.filter = None;
        w.heal_and_finish();
    }
}
