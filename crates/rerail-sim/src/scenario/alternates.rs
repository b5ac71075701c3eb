//! APM in the adapter: streams that go on over the other port of their adapter, and what stands behind that.

use super::policy::options;
use super::{Story, received, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::stream::EndState;
use crate::world::{Config, World};
use rerail_core::{EventKind, Health, RailId, Witness};

/// Two processes joined by networks of adapters; those of one number are of one adapter, which migrates by itself after `migrates_after_ns`.
fn world(story: &Story, seed: u64, devices: &[usize], migrates_after_ns: u64) -> World {
    let mut cfg = Config::quiet(seed, devices.len());
    cfg.adapters = vec![16; devices.len()];
    cfg.devices = devices.to_vec();
    cfg.migrates_after_ns = migrates_after_ns;
    cfg.options = vec![options(&[])];
    let mut w = story.world(cfg);
    warm_up(&mut w);
    exchange(&mut w, 1 << 20);
    settle(&mut w, "streams are not armed", |w| {
        (0..w.nets.len()).all(|net| is_armed(w, net) || alone(w, net))
    });
    w
}

/// No other network is of the same adapter.
fn alone(w: &World, net: usize) -> bool {
    w.cfg.devices.iter().filter(|d| **d == w.cfg.devices[net]).count() == 1
}

fn settle(w: &mut World, what: &str, f: impl Fn(&World) -> bool) {
    assert!(w.run_finely(3_000 * MS, |w| f(w)), "live: {what}: {}", w.describe());
}

fn open(w: &World, home: usize) -> impl Iterator<Item = &crate::stream::Conn> {
    w.conns.iter().filter(move |k| k.home == home && k.ends.iter().all(|e| e.state == EndState::Open))
}

/// The adapters of all streams of a network's paths are armed.
fn is_armed(w: &World, home: usize) -> bool {
    open(w, home).count() > 0 && open(w, home).all(|k| k.alternate.armed().is_some())
}

/// Streams of paths over `home` go over this network.
fn goes_over(w: &World, home: usize, net: usize) -> bool {
    open(w, home).count() > 0 && open(w, home).all(|k| k.net == net)
}

fn post(w: &mut World, bytes: usize) -> u64 {
    w.recv(RecvSpec::class(1, 1, bytes));
    w.send_soon(SendSpec::tagged(0, 1, 1, bytes))
}

fn exchange(w: &mut World, bytes: usize) {
    let id = post(w, bytes);
    assert!(w.run_finely(2_000 * MS, |w| received(w, id)), "live: {}", w.describe());
}

fn dark(w: &mut World, net: usize) -> usize {
    w.begin(Fault::Dark { host: 1, net, inward: true, outward: true })
}

/// Sends messages one after the other for `ns`; returns the longest time that one took.
fn stream_for(w: &mut World, ns: u64) -> u64 {
    let (end, mut longest) = (w.now + ns, 0);
    while w.now < end {
        let from = w.now;
        exchange(w, 1 << 20);
        longest = longest.max(w.now - from);
    }
    longest
}

fn moves(w: &World) -> u64 {
    w.conns.iter().map(|k| k.alternate.moves).sum()
}

/// A rail goes dark under load. Its streams go on over the other port, moved by the adapter itself or on the engine's suspicion, whichever is
/// first: no fence is requested, and no message waits for one.
pub fn goes_on(story: &Story) {
    for (seed, after) in (1..9).map(|seed| (seed, [2 * MS, SEC][seed as usize % 2])) {
        let mut w = world(story, seed, &[0, 0], after);
        for k in 0..6 {
            post(&mut w, [3 << 20, 200_000][k % 2]);
        }
        // one that carries nothing is not missed, and not moved
        settle(&mut w, "nothing is written over the rail", |w| w.is_writing(0));
        let before = moves(&w);
        let cut = dark(&mut w, 0);
        let longest = stream_for(&mut w, 300 * MS);
        assert!(moves(&w) > before, "migration: nothing was moved (seed {seed})");
        let fences: u64 = (0..2).map(|p| w.counters(p).fences_asked).sum();
        assert_eq!(fences, 0, "migration: a stream that its adapter had saved was fenced (seed {seed})");
        assert!(longest < 100 * MS, "migration: stood still for {} ms (seed {seed})", longest / MS);
        settle(&mut w, "no verdict on the dark rail", |w| {
            (0..2).all(|p| w.paths(p).iter().any(|x| x.rail == RailId(0) && !x.health.connected()))
        });
        heals(w, cut);
    }
}

/// After the repair all paths are up, and both are armed again.
fn heals(mut w: World, cut: usize) {
    w.end_fault(cut);
    settle(&mut w, "not armed again", |w| {
        exchange_state(w) && (0..2).all(|p| w.paths(p).iter().all(|x| x.health == Health::Up))
    });
    exchange(&mut w, 1 << 20);
    settle(&mut w, "not armed again", |w| (0..2).all(|net| is_armed(w, net)));
    w.heal_and_finish();
}

/// The link of a rail goes down under load, which its process learns at once. Its streams are moved before the path is given up: no fence is
/// requested, and what was under way is not sent again. Then the path goes down all the same, for its link. On a link that is down at the
/// peer no event comes here, and where the alternate is down as well nothing is saved.
pub fn link_down(story: &Story) {
    for seed in 1..13 {
        let mut w = world(story, seed, &[0, 0], [2 * MS, SEC][seed as usize % 2]);
        (0..12).for_each(|_| _ = post(&mut w, 3 << 20));
        begin(&mut w);
        let before = moves(&w);
        let cut = w.begin(Fault::IfDown { host: (seed % 3 / 2) as usize, net: 0, peers: seed % 3 == 1 });
        let longest = stream_for(&mut w, 300 * MS);
        assert!(moves(&w) > before, "migration: nothing was moved (seed {seed})");
        let fences: u64 = (0..2).map(|p| w.counters(p).fences_asked).sum();
        assert_eq!(fences, 0, "migration: a stream that its adapter could save was fenced (seed {seed})");
        assert!(longest < 100 * MS, "migration: stood still for {} ms (seed {seed})", longest / MS);
        let down = |w: &World, p: usize| {
            let links = |e: &EventKind| matches!(e, EventKind::PathDown { witness: Witness::Link, .. });
            !w.events_of(p, links).is_empty()
        };
        assert!(down(&w, 0) || down(&w, 1), "migration: a rail without a link is in service (seed {seed})");
        heals(w, cut);
    }
}

/// The link of a rail goes down, and its streams are moved onto the other port, which is dark: nothing comes there, and the path is given up in
/// some milliseconds. The third rail carries.
pub fn link_down_in_vain(story: &Story) {
    for seed in 0..8 {
        let mut w = world(story, seed, &[0, 0, 1], SEC);
        (0..8).for_each(|_| _ = post(&mut w, 3 << 20));
        begin(&mut w);
        let cuts = [dark(&mut w, 1), w.begin(Fault::IfDown { host: 0, net: 0, peers: true })];
        let began = w.now;
        settle(&mut w, "a rail without a link is in service", |w| {
            w.paths(0).iter().any(|x| x.rail == RailId(0) && !x.health.connected())
        });
        let took = w.now - began;
        assert!(took < 60 * MS, "bounded: a path without a link was kept for {} ms (seed {seed})", took / MS);
        let longest = stream_for(&mut w, 200 * MS);
        assert!(longest < 150 * MS, "failover: stood still for {} ms (seed {seed})", longest / MS);
        cuts.into_iter().for_each(|cut| w.end_fault(cut));
        w.heal_and_finish();
    }
}

/// Until some of what was posted is written, over the first rail too.
fn begin(w: &mut World) {
    let before = w.counters(0).pieces_placed;
    settle(w, "nothing is written over the rail", |w| {
        w.counters(0).pieces_placed > before + 8 && w.is_writing(0)
    });
}

/// Nothing is under way.
fn exchange_state(w: &World) -> bool {
    w.oracle.pending_count() == 0
}

/// The alternate dies while it is idle: it is found by its probes and unloaded, long before it is needed; and when the primary path breaks as
/// well, nothing migrates onto it.
pub fn dead_alternate(story: &Story) {
    for seed in 0..8 {
        let mut w = world(story, seed, &[0, 0, 1], 5 * MS);
        let cut = dark(&mut w, 1);
        w.run_for(1_000 * MS);
        let stale = open(&w, 0).any(|k| k.alternate.armed() == Some(1));
        assert!(!stale, "armed: a path that has been dead for a second is armed (seed {seed})");
        let before = moves(&w);
        post(&mut w, 3 << 20);
        w.run_for(MS / 2);
        let second = dark(&mut w, 0);
        let longest = stream_for(&mut w, 200 * MS);
        assert_eq!(moves(&w), before, "armed: a stream was moved onto a dead path (seed {seed})");
        assert!(longest < 200 * MS, "failover: stood still for {} ms (seed {seed})", longest / MS);
        w.end_fault(cut);
        w.end_fault(second);
        w.heal_and_finish();
    }
}

/// Both ports of an adapter die at once, under load: some streams are moved onto the dead port, which the adapter calls a success. The software's
/// verdicts come all the same, and the third rail carries.
pub fn both_ports(story: &Story) {
    for seed in 0..12 {
        let mut w = world(story, seed, &[0, 0, 1], 3 * MS);
        let id = post(&mut w, 6 << 20);
        w.run_for(MS / 2);
        let cuts = [dark(&mut w, 0), dark(&mut w, 1)];
        assert!(w.run_finely(500 * MS, |w| received(w, id)), "live: {}", w.describe());
        let longest = stream_for(&mut w, 200 * MS);
        assert!(longest < 100 * MS, "failover: stood still for {} ms (seed {seed})", longest / MS);
        cuts.into_iter().for_each(|cut| w.end_fault(cut));
        w.heal_and_finish();
    }
}

/// A stream is moved while it breaks and is fenced, in every order: no write lands in memory that was given back, and nothing comes twice.
pub fn races_with_a_fence(story: &Story) {
    for seed in 0..40 {
        let mut w = world(story, seed, &[0, 0], MS);
        for k in 0..4 {
            post(&mut w, 600_000);
            w.run_for(w.now % 5 * MS / 10);
            let cut = dark(&mut w, k % 2);
            w.run_for((seed * 7 + w.now) % 40 * MS / 10);
            w.begin(Fault::Reset { host: 0, net: k % 2, percent: 100 });
            w.begin(Fault::Reset { host: 0, net: 1 - k % 2, percent: 50 });
            w.run_for(5 * MS);
            w.end_fault(cut);
            assert!(w.run_finely(2_000 * MS, |w| w.oracle.pending_count() == 0), "live: {}", w.describe());
            w.run_for(100 * MS);
        }
        w.heal_and_finish();
    }
}

/// The user moves traffic to the other port: what is under way goes along, so the port can be unplugged at once; and comes home on request.
pub fn on_request(story: &Story) {
    for seed in 0..6 {
        let mut w = world(story, seed, &[0, 0], SEC);
        for k in 0..12 {
            post(&mut w, [3 << 20, 900, 60_000][k % 3]);
        }
        w.run_for(MS);
        let done = w.with_engine(0, |_, e, now| e.migrate(None, RailId(0), RailId(1), now));
        assert_eq!(done.map(|d| d.moved), Ok(1), "{}", w.describe());
        settle(&mut w, "streams were not moved", |w| {
            w.conns.iter().any(|k| k.home == 0 && k.alternate.moves > 0)
        });
        settle(&mut w, "not reported", |w| {
            !w.events_of(0, |e| matches!(e, EventKind::AdapterMigrated { requested: true, .. })).is_empty()
        });
        assert!(w.run_finely(2_000 * MS, |w| w.oracle.pending_count() == 0), "live: {}", w.describe());
        assert_eq!(w.counters(0).bytes_resent, 0, "migration: something was sent twice (seed {seed})");
        w.with_engine(0, |_, e, now| e.migrate_home(now));
        settle(&mut w, "streams did not come home", |w| goes_over(w, 0, 0) && is_armed(w, 0));
        exchange(&mut w, 1 << 20);
        w.heal_and_finish();
    }
}

/// An adapter moves a stream although its path recovers at once: the software finds the path sound, no path goes down, and the stream is
/// brought home.
pub fn comes_home(story: &Story) {
    for seed in 0..6 {
        let mut w = world(story, seed, &[0, 0], MS / 2);
        post(&mut w, 6 << 20);
        w.run_for(MS / 2);
        let before = moves(&w);
        let cut = dark(&mut w, 0);
        let moved = w.run_finely(20 * MS, |w| moves(w) > before);
        w.end_fault(cut);
        assert!(moved, "migration: nothing was moved (seed {seed})");
        settle(&mut w, "it did not come home", |w| w.oracle.pending_count() == 0 && goes_over(w, 0, 0));
        settle(&mut w, "not armed again", |w| is_armed(w, 0));
        w.heal_and_finish();
    }
}

/// Adapters, or the peer, refuse every alternate: software migration as ever, and no stream is loaded again and again.
pub fn refused(story: &Story) {
    let mut cfg = Config::quiet(1, 2);
    cfg.adapters = vec![16; 2];
    cfg.devices = vec![0; 2];
    cfg.refused_loads_percent = 100;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    exchange(&mut w, 1 << 20);
    w.run_for(300 * MS);
    let unloaded = |w: &World| {
        (0..2).map(|p| w.events_of(p, |e| matches!(e, EventKind::AdapterUnloaded)).len()).sum::<usize>()
    };
    let first = unloaded(&w);
    assert!((1..=4).contains(&first), "bounded: {first} refusals of a few streams");
    w.run_for(2_000 * MS);
    assert_eq!(unloaded(&w), first, "bounded: a refused alternate is requested again");
    let cut = dark(&mut w, 0);
    let longest = stream_for(&mut w, 200 * MS);
    assert!(longest < 100 * MS && moves(&w) == 0, "failover: stood still for {} ms", longest / MS);
    w.end_fault(cut);
    w.heal_and_finish();
}
