//! Port groups: an adapter and an interface on one physical port are two rails and one cable.

use super::policy::{options, rounds, sent_by};
use super::{Story, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::{Config, Family, World};
use rerail_core::{EventKind, Health, MigrationCause};

const MIB: usize = 1 << 20;
/// An adapter (network 0) and an interface (network 1) on one port; the same on a second one (2 and 3).
const TWO_PORTS: &[usize] = &[0, 0, 1, 1];
/// One port.
const ONE_PORT: &[usize] = &[0, 0];

/// Two processes whose networks go through these ports: adapters and interfaces by turns. `last_first`: the order of rails is reversed.
fn world(story: &Story, ports: &[usize], set: &[(&str, &str)], last_first: bool) -> World {
    world_of(story, ports, set, last_first, 20_000)
}

/// The same with a latency.
fn world_of(
    story: &Story,
    ports: &[usize],
    set: &[(&str, &str)],
    last_first: bool,
    latency_ns: u64,
) -> World {
    let mut w = story.world(config(ports, set, last_first, latency_ns));
    warm_up(&mut w);
    w
}

fn config(ports: &[usize], set: &[(&str, &str)], last_first: bool, latency_ns: u64) -> Config {
    let mut cfg = Config::quiet(ports.len() as u64, ports.len());
    cfg.ports = ports.to_vec();
    cfg.adapters = [4, 0].repeat(ports.len() / 2);
    cfg.nets.iter_mut().for_each(|net| net.latency_ns = latency_ns);
    cfg.nets.iter_mut().step_by(2).for_each(|net| net.family = Family::Foreign);
    if last_first {
        cfg.hosts.iter_mut().for_each(|nets| nets.reverse());
    }
    cfg.options = vec![options(set)];
    cfg
}

/// Bytes that process 0 sends over each network meanwhile.
fn carried(w: &mut World, traffic: impl FnOnce(&mut World)) -> Vec<u64> {
    let before = sent_by(w);
    traffic(w);
    sent_by(w).iter().zip(&before).map(|(after, before)| after - before).collect()
}

/// The state of the paths of process 0, by network.
fn health(w: &World) -> Vec<Health> {
    let mut by = vec![Health::Idle; w.nets.len()];
    w.paths(0).iter().for_each(|x| by[w.procs[0].nets[usize::from(x.rail.0)]] = x.health);
    by
}

/// More large messages than half of the turns, so that no order in which grants come gives all of them to one of two rails.
fn traffic(w: &mut World) {
    rounds(w, 2, &[2 * MIB, 100_000, 2 * MIB, 20_000, 500, 2 * MIB]);
}

/// Also when adapters have no streams yet, because nothing large was sent.
pub fn stands_by_without_streams(story: &Story) {
    let mut cfg = config(TWO_PORTS, &[], false, 20_000);
    cfg.streams_on_demand = true;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    let small = carried(&mut w, |w| rounds(w, 20, &[500]));
    assert_eq!((small[1], small[3]), (0, 0), "port: both kinds carry: {small:?}");
    assert!(
        w.paths(0).iter().all(|x| x.streams == usize::from(x.health == Health::Standby)),
        "port: adapters have no stream, and interfaces stand by"
    );
    let h = health(&w);
    assert_eq!((h[1], h[3]), (Health::Standby, Health::Standby));
    let large = carried(&mut w, traffic);
    assert_eq!((large[1], large[3]), (0, 0), "port: both kinds carry: {large:?}");
    assert!(w.paths(0).iter().all(|x| x.streams > 0), "live: no stream was opened for them");
    w.heal_and_finish();
}

/// Under every policy that leaves the choice to the engine; and where the user names rails as carriers, these carry.
pub fn stands_by(story: &Story) {
    let sets: &[&[(&str, &str)]] = &[
        &[],
        &[("policy", "even")],
        &[("policy", "weighted")],
        &[("policy", "round-robin")],
        &[("policy", "primary-standby")],
        &[("policy", "binding"), ("local_rank", "1")],
        &[("bulk", "udp")],
    ];
    for (set, last_first) in sets.iter().flat_map(|set| [(set, false), (set, true)]) {
        let mut w = world(story, TWO_PORTS, set, last_first);
        let sent = carried(&mut w, traffic);
        assert_eq!((sent[1], sent[3]), (0, 0), "port: {set:?}: both kinds carry: {sent:?}");
        assert!(sent[0] + sent[2] > 4 * MIB as u64, "{set:?}: {sent:?}");
        let single = set.iter().any(|o| matches!(o.1, "primary-standby" | "binding"));
        assert_eq!(sent[0] > MIB as u64 && sent[2] > MIB as u64, !single, "{set:?}: {sent:?}");
        let h = health(&w);
        assert_eq!((h[1], h[3]), (Health::Standby, Health::Standby), "{set:?}");
        for c in w.procs[0].engine.as_ref().expect("it runs").carriers() {
            let (home, alternate) = (usize::from(c.home.0), c.alternate.expect("two ports work").1);
            let kind = |rail: usize| w.procs[0].nets[rail] % 2;
            assert_eq!(
                kind(home),
                kind(alternate.0.into()),
                "port: {set:?}: a slower kind is to crowd a port: {c:?}"
            );
        }
        w.heal_and_finish();
    }
    let weights = [("policy", "weighted"), ("weights", "net0=1,net1=1")];
    let sent = carried(&mut world(story, ONE_PORT, &weights, false), traffic);
    assert!(sent.iter().all(|&s| s > MIB as u64), "weights: both were to carry: {sent:?}");
    let sent = carried(&mut world(story, ONE_PORT, &[("alternate", "net1>net0")], false), traffic);
    assert!(sent[0] == 0 && sent[1] > MIB as u64, "alternate: net1 was to carry alone: {sent:?}");
}

/// An adapter goes silent, or its link goes down, while its port is well and messages are under way.
pub fn device(story: &Story) {
    let faults = [
        Fault::Dark { host: 1, net: 0, inward: true, outward: true },
        Fault::Dark { host: 0, net: 0, inward: false, outward: true },
        Fault::IfDown { host: 0, net: 0, peers: false },
    ];
    for (fault, ports) in faults.iter().flat_map(|&fault| [(fault, ONE_PORT), (fault, TWO_PORTS)]) {
        // long enough that nothing else happens while the answer is on its way, and well before the next attempt
        let latency = if matches!(fault, Fault::IfDown { .. }) { 4 * MS } else { 20_000 };
        let mut w = world_of(story, ports, &[], false, latency);
        for len in [MIB, 3 * MIB, 60_000, 900] {
            w.recv(RecvSpec::class(1, 1, len));
            w.send_soon(SendSpec::tagged(0, 1, 1, len));
        }
        w.run_for(MS / 2);
        let (from, events) = (w.now, w.events.len());
        let fault = w.begin(fault);
        let silent = matches!(w.active[fault].fault, Fault::Dark { .. });
        if silent {
            assert!(w.run_finely(100 * MS, |w| health(w)[0] == Health::Suspect), "live: {}", w.describe());
            w.run_for(MS);
            assert_eq!(
                health(&w)[1],
                Health::Up,
                "port: nothing stands in for the suspect: {}",
                w.describe()
            );
        }
        let taken = w.run_finely(200 * MS, |w| {
            let h = health(w);
            h[1] == Health::Up && !matches!(h[0], Health::Up | Health::Suspect)
        });
        assert!(taken, "port: the other kind does not take over: {}", w.describe());
        let mut news = w.events[events..].iter().filter(|e| e.1 == 0);
        let down = news.find(|e| matches!(e.2.kind, EventKind::PathDown { .. })).expect("it broke").0;
        let moved = |e: &&(u64, usize, rerail_core::Event)| matches!(e.2.kind, EventKind::Migrated { .. });
        let moves: Vec<u8> = news.filter(moved).map(|e| e.2.path.expect("of a path").1.0).collect();
        // what its answers have shown before the verdict need not be found out again
        assert!(!silent || moves == [1], "port: the traffic moves to {moves:?}");
        let late = w.now - down;
        assert!(late < 2 * latency + 5 * MS, "port: it takes over {late} ns after the verdict");
        let sent = carried(&mut w, traffic);
        assert!(
            sent[0] == 0 && sent[1] > MIB as u64,
            "port: {sent:?} {} ms after the fault",
            (w.now - from) / MS
        );
        if ports == TWO_PORTS {
            assert!(sent[2] > MIB as u64 && sent[3] == 0, "port: the other port has no fault: {sent:?}");
        }
        w.end_fault(fault);
        let back = w.run_finely(3_000 * MS, |w| {
            health(w)[..2] == [Health::Up, Health::Standby] && w.paths(0).iter().all(|x| x.streams > 0)
        });
        assert!(back, "port: the better kind does not come back: {}", w.describe());
        let sent = carried(&mut w, traffic);
        assert!(sent[0] > MIB as u64 && sent[1] == 0, "port: both kinds carry after the repair: {sent:?}");
        w.heal_and_finish();
    }
}

/// What process `p` has reported of broken paths since event `from`: the network, and that of the path that broke with it before.
fn broken(w: &World, p: usize, from: usize) -> Vec<(usize, Option<usize>)> {
    let net = |rail: rerail_core::RailId| w.procs[p].nets[usize::from(rail.0)];
    let down = |e: &rerail_core::Event| match e.kind {
        EventKind::PathDown { with, .. } => Some((net(e.path.expect("of a path").1), with.map(net))),
        _ => None,
    };
    w.events[from..].iter().filter(|e| e.1 == p).filter_map(|e| down(&e.2)).collect()
}

/// A port fails under load, in every way in which a cable can: both paths of it break, one fault is counted, and no traffic moves to the
/// interface of the dead port. When the port is back, the adapter carries again.
pub fn one_verdict(story: &Story) {
    let dark = |host, net| Fault::Dark { host, net, inward: true, outward: true };
    let pulled = |host, net| Fault::IfDown { host, net, peers: true };
    let one_way = |host, net| Fault::Dark { host, net, inward: false, outward: true };
    // the paths need not fall silent at one moment; a link that is down for one kind only is the device's
    type Way = fn(usize, usize) -> Fault;
    let ways: [(Way, u64); 5] = [(dark, 0), (dark, 3 * MS), (one_way, 0), (one_way, 3 * MS), (pulled, 0)];
    for (way, apart) in ways {
        for order in [[0, 1], [1, 0]] {
            let mut w = world(story, TWO_PORTS, &[], false);
            for len in [MIB, 3 * MIB, 60_000, 900] {
                w.recv(RecvSpec::class(1, 1, len));
                w.send_soon(SendSpec::tagged(0, 1, 1, len));
            }
            w.run_for(MS / 2);
            let (from, counted) = (w.events.len(), [0, 1].map(|p| w.counters(p).paths_down));
            let first = w.begin(way(0, order[0]));
            w.run_for(apart);
            let second = w.begin(way(0, order[1]));
            // an idle path is found by its probe
            let both = w.run_finely(2_000 * MS, |w| (0..2).all(|p| broken(w, p, from).len() == 2));
            assert!(both, "live: {}", w.describe());
            for (p, before) in counted.into_iter().enumerate() {
                let mut nets = broken(&w, p, from);
                let with = nets.iter().filter(|x| x.1.is_some()).count();
                let told = w.counters(p).paths_down - before;
                assert_eq!(
                    (nets.len(), with, told),
                    (2, 1, 1),
                    "port: p{p} counts {nets:?}: {}",
                    w.describe()
                );
                nets.sort_unstable();
                assert_eq!((nets[0].0, nets[1].0), (0, 1));
            }
            let moved = |e: &EventKind| matches!(e, EventKind::Migrated { cause: MigrationCause::Fault, .. });
            let moves = w.events[from..].iter().filter(|e| e.1 == 0 && moved(&e.2.kind));
            let to: Vec<usize> = moves.map(|e| usize::from(e.2.path.expect("of a path").1.0)).collect();
            assert_eq!(to, [2], "port: traffic moved onto the dead port");
            let sent = carried(&mut w, traffic);
            assert!(sent[2] > MIB as u64 && sent[0] + sent[1] + sent[3] == 0, "port: {sent:?}");
            w.end_fault(first);
            w.end_fault(second);
            let back = w.run_finely(3_000 * MS, |w| {
                health(w)[..2] == [Health::Up, Health::Standby] && w.paths(0).iter().all(|x| x.streams > 0)
            });
            assert!(back, "port: the better kind does not come back: {}", w.describe());
            let sent = carried(&mut w, traffic);
            assert!(
                sent[0] > MIB as u64 && sent[1] == 0,
                "port: both kinds carry after the repair: {sent:?}"
            );
            w.heal_and_finish();
        }
    }
}

/// An adapter hangs, the interface of its port stands in, and breaks a while later: two faults.
pub fn two_verdicts(story: &Story) {
    let mut w = world(story, TWO_PORTS, &[], false);
    let from = w.events.len();
    w.begin(Fault::Dark { host: 1, net: 0, inward: true, outward: true });
    traffic(&mut w);
    assert!(
        w.run_finely(500 * MS, |w| health(w)[..2] == [Health::Down, Health::Up]),
        "live: {}",
        w.describe()
    );
    w.begin(Fault::Dark { host: 1, net: 1, inward: true, outward: true });
    traffic(&mut w);
    assert!(w.run_finely(500 * MS, |w| broken(w, 0, from).len() == 2), "live: {}", w.describe());
    assert_eq!(broken(&w, 0, from), [(0, None), (1, None)], "port: two faults are taken for one");
    assert_eq!(w.counters(0).paths_down, 2);
    w.heal_and_finish();
}
