//! Fabrics behind the rails: links inside them that are crowded, or dark.

use super::Story;
use super::policy::options;
use crate::app::{RecvSpec, SendSpec};
use crate::fabric::FabricSpec;
use crate::fabric::routing::{Flow, Routing};
use crate::fabric::topology::Topology;
use crate::link::MS;
use crate::stream::EndState;
use crate::world::{Config, World};
use rerail_core::{EventKind, Health};

const MIB: usize = 1 << 20;

/// One process for each host of two leaves, joined by so many spines; every link has 1 Gbit/s.
fn world(story: &Story, seed: u64, size: (usize, usize), set: &[(&str, &str)]) -> World {
    wide(story, seed, size, 1_000, set)
}

/// The same, whose ports have so many Mbit/s.
fn wide(story: &Story, seed: u64, (spines, hosts): (usize, usize), mbps: u64, set: &[(&str, &str)]) -> World {
    let mut cfg = Config::quiet(seed, 1);
    cfg.nets[0].mbps = mbps;
    cfg.check_every = 512;
    cfg.hosts = vec![vec![0]; 2 * hosts];
    cfg.procs = (0..2 * hosts).collect();
    cfg.fabrics = vec![Some(FabricSpec {
        topology: Topology::LeafSpine { leaves: 2, spines, hosts, cables: 1 },
        routing: Routing::Ecmp,
        mbps: 1_000,
        ports_mbps: mbps,
        salt: seed,
    })];
    cfg.options = vec![options(set)];
    story.world(cfg)
}

/// Each pair has so many messages of this length under way for this long; returns how many of each pair arrived meanwhile, and the longest time
/// without any arrival.
pub(super) fn stream(
    w: &mut World,
    pairs: &[(usize, usize)],
    (under_way, len): (usize, usize),
    ns: u64,
) -> (Vec<usize>, u64) {
    let (end, mut last, mut longest) = (w.now + ns, w.now, 0);
    let mut pending: Vec<Vec<u64>> = vec![Vec::new(); pairs.len()];
    let mut arrived = vec![0; pairs.len()];
    while w.now < end {
        for (i, (src, dst)) in pairs.iter().enumerate() {
            let before = pending[i].len();
            pending[i].retain(|id| w.oracle.msgs[*id as usize].taken.is_none());
            arrived[i] += before - pending[i].len();
            if pending[i].len() < before {
                last = w.now;
            }
            for _ in pending[i].len()..under_way {
                w.recv(RecvSpec::class(*dst, 1, len));
                pending[i].push(w.send_soon(SendSpec::tagged(*src, *dst, 1, len)));
            }
        }
        longest = longest.max(w.now - last);
        w.run_for(MS / 5);
    }
    (arrived, longest)
}

fn no_path_is_broken(w: &World) {
    for p in 0..w.procs.len() {
        let down = w.events_of(p, |e| matches!(e, EventKind::PathDown { .. }));
        assert!(down.is_empty(), "evidence: p{p} calls a path broken: {down:?}");
        assert!(w.paths(p).iter().all(|x| x.peer_name == 0 || x.health == Health::Up));
    }
}

/// Four pairs meet on the only link between two leaves. Each has a quarter of it, what waits before it shows in the kernels'
/// round trips, and no rail is blamed for it.
pub fn crowded(story: &Story) {
    let mut w = world(story, 1, (1, 4), &[]);
    let pairs = [(0, 4), (1, 5), (2, 6), (3, 7)];
    stream(&mut w, &pairs, (4, MIB / 4), 50 * MS);
    let (arrived, _) = stream(&mut w, &pairs, (4, MIB / 4), 1_000 * MS);
    let mb = arrived.iter().sum::<usize>() / 4;
    assert!((105..=125).contains(&mb), "port: the link carries {mb} MB of 125 in a second: {arrived:?}");
    let mean = arrived.iter().sum::<usize>() / pairs.len();
    let fair = arrived.iter().all(|n| (mean * 85 / 100..=mean * 115 / 100).contains(n));
    assert!(fair, "port: pairs do not share the link evenly: {arrived:?}");
    for (src, _) in pairs {
        let sends = |k: &&crate::stream::Conn| {
            let side = k.ends.iter().position(|e| e.proc == src).unwrap_or(0);
            k.ends[side].state == EndState::Open && k.dirs[side].written > MIB as u64
        };
        let k = w.conns.iter().find(sends).expect("it sent by a stream");
        let usual = k.dirs.iter().map(|d| d.usual_ns()).filter(|ns| *ns < 200 * MS).max().unwrap_or(0);
        assert!((3 * MS..=20 * MS).contains(&usual), "evidence: round trips of p{src}: {usual} ns");
    }
    no_path_is_broken(&w);
    w.heal_and_finish();
}

/// All hosts of one leaf send to one host, few with many lanes, or many with one. Streams do not fill the queue of its link
/// beyond what datagrams pass, so queries are answered, and no path is called broken. Each of many streams has a turn in time.
pub fn incast(story: &Story) {
    for (hosts, lanes, ms) in [(12, "8", 400), (48, "1", 400)] {
        let mut w = world(story, 2, (4, hosts), &[("lanes", lanes)]);
        let pairs: Vec<(usize, usize)> = (0..hosts).map(|src| (src, hosts)).collect();
        for _ in 0..ms / 20 {
            stream(&mut w, &pairs, (4, MIB / 4), 20 * MS);
            let flow = Flow { src: 1, dst: hosts, ports: 0, lane: 0 };
            let waits = w.nets[0].fabric().expect("it has one").free_at(&flow, w.now) - w.now;
            assert!(
                waits < 12 * MS,
                "bounded: what comes now waits for {waits} ns, and datagrams are dropped"
            );
        }
        let replaced: u64 = (0..w.procs.len()).map(|p| w.counters(p).streams_replaced).sum();
        assert_eq!(replaced, 0, "evidence: streams that wait their turn are not dead");
        no_path_is_broken(&w);
        // to finish so many messages into one host takes longer than the story
        if lanes != "1" {
            w.heal_and_finish();
        }
    }
}

/// The port has four times what a link inside has: a path gets lanes until it uses all routes that its connections meet, and has one again after the traffic.
pub fn more_lanes(story: &Story) {
    let mut sum = 0;
    for seed in 0..4 {
        let mut w = wide(story, seed, (4, 1), 4_000, &[("lanes", "auto")]);
        let pair = [(0, 1)];
        stream(&mut w, &pair, (8, MIB), 3_000 * MS);
        let c = w.counters(0);
        assert!(c.lanes_added > 0, "port: one route is used of four");
        let told = w.events_of(0, |e| matches!(e, EventKind::LaneAdded { .. })).len() as u64;
        assert_eq!(told, c.lanes_added, "each is reported");
        let (arrived, _) = stream(&mut w, &pair, (8, MIB), 500 * MS);
        sum += arrived[0];
        let all = |w: &World| w.oracle.pending_count() == 0;
        assert!(w.run_finely(1_000 * MS, all), "live: {}", w.describe());
        w.run_for(12_000 * MS);
        for p in 0..2 {
            let c = w.counters(p);
            assert_eq!((c.streams_replaced, c.bytes_resent), (0, 0), "once: none of it is a fault");
            let streams: usize = w.paths(p).iter().filter(|x| x.peer_name != 0).map(|x| x.streams).sum();
            assert_eq!(streams, 1, "bounded: lanes that nothing needs are there still");
        }
        no_path_is_broken(&w);
        w.heal_and_finish();
    }
    // a route carries 60 in this time
    assert!(sum > 4 * 150, "port: {sum} MB in two seconds, over four routes of 125 MB/s");
}

/// A link inside the fabric goes dark under a stream, and no interface reports it: what is led over it is led elsewhere.
pub fn dark(story: &Story) {
    for (seed, lanes) in [(1, "1"), (2, "4"), (3, "4")] {
        let mut w = world(story, seed, (4, 1), &[("lanes", lanes)]);
        let pair = [(0, 1)];
        stream(&mut w, &pair, (4, MIB / 4), 50 * MS);
        let of = |c: usize, w: &World| {
            let fabric = w.nets[0].fabric().expect("it has one");
            let flow = Flow { src: 0, dst: 1, ports: c as u64, lane: 0 };
            fabric.route(&flow).links()[0]
        };
        let carries = |k: &crate::stream::Conn| k.dirs.iter().any(|d| d.written > MIB as u64);
        let c = w.conns.iter().position(carries).expect("a stream carries");
        let victim = of(c, &w);
        let before = w.counters(0).streams_replaced + w.counters(1).streams_replaced;
        w.nets[0].fabric_mut().expect("it has one").darken(victim);
        let (_, stood) = stream(&mut w, &pair, (4, MIB / 4), 500 * MS);
        assert!(stood < 150 * MS, "live: it stands still for {stood} ns");
        let moved = w.counters(0).streams_replaced + w.counters(1).streams_replaced - before;
        assert!(moved > 0, "evidence: no stream was on the dark link");
        let open = |k: &crate::stream::Conn| k.ends.iter().all(|e| e.state == EndState::Open && !e.closing);
        let left = (0..w.conns.len()).filter(|c| open(&w.conns[*c])).filter(|c| of(*c, &w) == victim).count();
        assert_eq!(left, 0, "evidence: a stream stays on the dark link");
        no_path_is_broken(&w);
        w.nets[0].fabric_mut().expect("it has one").lighten(victim);
        w.heal_and_finish();
    }
}
