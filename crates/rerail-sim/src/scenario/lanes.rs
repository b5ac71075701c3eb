//! Several lanes for each path: a fault of one of them leaves the others and the path alone.

use super::fabric::stream;
use super::policy::{all_received, options, rounds, world};
use super::{Story, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{Carries, CrowdedRoutes, DarkRoutes, MS};
use crate::stream::EndState;
use crate::world::{Config, World};
use rerail_core::{EventKind, Health};

const MIB: usize = 1 << 20;
const FOUR: &[(&str, &str)] = &[("lanes", "4")];

/// Waits until every path has its four streams.
fn four_each(w: &mut World) {
    let all = |w: &World| (0..2).all(|p| w.paths(p).iter().all(|x| (x.streams, x.lanes) == (4, 4)));
    assert!(w.run_finely(1_000 * MS, all), "live: not all lanes have a stream: {}", w.describe());
}

/// Eight large messages are under way.
fn flood(w: &mut World) {
    for _ in 0..8 {
        w.recv(RecvSpec::class(1, 1, MIB));
        w.send_soon(SendSpec::tagged(0, 1, 1, MIB));
    }
}

/// Some routes of the fabric go dark, without a word: the lanes over them are led over others, and no path is called broken.
pub fn dark_routes(story: &Story) {
    for salt in 0..8 {
        let mut w = world(story, 1, &[1_000], FOUR);
        four_each(&mut w);
        let before = w.counters(0).streams_replaced;
        flood(&mut w);
        w.run_for(10 * MS);
        let fault = w.begin(Fault::Routes { host: 0, net: 0, dark: DarkRoutes { percent: 50, salt } });
        rounds(&mut w, 20, &[MIB]);
        four_each(&mut w);
        w.end_fault(fault);
        assert!(w.paths(0).iter().all(|x| x.health == Health::Up), "one lane is not its path");
        let down = w.events_of(0, |e| matches!(e, EventKind::PathDown { .. }));
        assert!(down.is_empty(), "a path is called broken for one of its lanes: {down:?}");
        // sixteen connections in a hundred thousand worlds are all on one side; not all of these are
        assert!(w.counters(0).streams_replaced > before || salt > 0, "no lane was led elsewhere");
        w.heal_and_finish();
    }
}

/// Longest time between two messages that arrive, in milliseconds, while there are always eight under way for this long.
fn standstill(w: &mut World, ns: u64, len: usize) -> u64 {
    let end = w.now + ns;
    let (mut last, mut longest, mut pending) = (w.now, 0, w.oracle.pending_count());
    while w.now < end {
        for _ in w.oracle.pending_count()..8 {
            w.recv(RecvSpec::class(1, 1, len));
            w.send_soon(SendSpec::tagged(0, 1, 1, len));
        }
        pending = pending.max(w.oracle.pending_count());
        assert!(w.run_finely(5_000 * MS, |w| w.oracle.pending_count() < pending), "live: {}", w.describe());
        pending = w.oracle.pending_count();
        longest = longest.max(w.now - last);
        last = w.now;
    }
    longest / MS
}

/// One route of a fabric in four goes dark, without a word, and it is a matter of milliseconds: what is under way on the connections over them
/// goes again on others, from whichever side they are opened.
pub fn moved_soon(story: &Story) {
    let options: &[&[(&str, &str)]] = &[&[], FOUR];
    for lanes in options {
        let mut stood = Vec::new();
        for salt in 0..30 {
            let mut w = world(story, 1, &[1_000], lanes);
            standstill(&mut w, 30 * MS, MIB / 4);
            let (from, to) = (salt as usize % 2, 1 - salt as usize % 2);
            let fault = w.begin(Fault::Routes { host: from, net: 0, dark: DarkRoutes { percent: 25, salt } });
            stood.push(standstill(&mut w, 300 * MS, MIB / 4));
            w.end_fault(fault);
            for p in [from, to] {
                let down = w.events_of(p, |e| matches!(e, EventKind::PathDown { .. }));
                assert!(down.is_empty(), "a path is called broken for one of its lanes: {down:?}");
            }
            w.heal_and_finish();
        }
        stood.sort_unstable();
        let (median, worst) = (stood[stood.len() / 2], stood[stood.len() - 1]);
        assert!(worst > 10 || lanes.len() == 1, "no connection was on a dark route: {stood:?}");
        assert!(median <= 30 && worst <= 80, "it stands still for too long, in milliseconds: {stood:?}");
    }
}

/// Two routes in five are crowded, and have a tenth of the link. Lanes leave them, in one direction of traffic and in both, and nothing is sent twice for it.
pub fn crowded_routes_are_left(story: &Story) {
    let mut stay = 0;
    for salt in 0..6 {
        let mut cfg = Config::quiet(1, 1);
        cfg.nets[0].mbps = 1_000;
        cfg.options = vec![options(FOUR)];
        // as kernels have them by default: what the engine calls busy has to fit
        (cfg.sndbuf, cfg.rcvbuf) = (512 * 1024, 1024 * 1024);
        let mut w = story.world(cfg);
        warm_up(&mut w);
        four_each(&mut w);
        let ways: &[_] = if salt % 2 == 0 { &[(0, 1)] } else { &[(0, 1), (1, 0)] };
        let routes = DarkRoutes { percent: 40, salt };
        let host = salt as usize / 2 % 2;
        let fault = w.begin(Fault::Crowd { host, net: 0, crowd: CrowdedRoutes { routes, times: 10 } });
        // what becomes ten times as slow at once may be taken for dead
        stream(&mut w, ways, (8, MIB), 100 * MS);
        let sent = |w: &World| [0, 1].map(|p| (w.counters(p).streams_replaced, w.counters(p).bytes_resent));
        let before = sent(&w);
        stream(&mut w, ways, (8, MIB), 1_500 * MS);
        let moved = [0, 1].map(|p| w.counters(p).lanes_moved);
        assert_eq!(sent(&w), before, "once: a lane that moves has nothing under way: {moved:?} moves");
        let open = |c: &usize| w.conns[*c].ends.iter().all(|e| e.state == EndState::Open && !e.closing);
        let crowded = |c: &usize| routes.lead(0, 1, Carries::Tcp(*c));
        let left = (0..w.conns.len()).filter(open).filter(crowded).count();
        stay += left;
        let told = w.events_of(0, |e| matches!(e, EventKind::LaneMoved { .. })).len() as u64;
        assert!((1..=moved[0]).contains(&told) || moved[0] == 0, "{told} of {moved:?} moves are reported");
        assert!(moved[0] + moved[1] > 0 && moved[0] + moved[1] < 30, "bounded: {moved:?} moves");
        w.end_fault(fault);
        four_each(&mut w);
        w.heal_and_finish();
    }
    // where none moves it is ten on average
    assert!(stay <= 7, "port: {stay} of 24 lanes stay on crowded routes");
}

/// Two processes whose port is what limits traffic, and whose lanes come and go.
fn limited_by_port(story: &Story) -> World {
    let mut cfg = Config::quiet(1, 1);
    cfg.nets[0].mbps = 1_000;
    cfg.options = vec![options(&[("lanes", "auto")])];
    (cfg.sndbuf, cfg.rcvbuf) = (512 * 1024, 1024 * 1024);
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w
}

/// The peer stops while a lane is merged, for longer than it may take to be emptied: it goes later.
pub fn merged_late(story: &Story) {
    let mut w = limited_by_port(story);
    while w.counters(0).lanes_merged == 0 {
        for _ in w.oracle.pending_count()..8 {
            w.recv(RecvSpec::class(1, 1, MIB));
            w.send_soon(SendSpec::tagged(0, 1, 1, MIB));
        }
        w.run_for(MS / 5);
        assert!(w.now < 2_000 * MS, "port: no lane is tried");
    }
    assert_eq!(w.paths(0)[0].streams, 2, "it is there still");
    let stopped = w.begin(Fault::Stop { p: 1 });
    w.run_for(350 * MS);
    w.end_fault(stopped);
    let gone = |w: &World| w.paths(0)[0].streams == 1;
    assert!(w.run_finely(300 * MS, gone), "bounded: a lane stays that is not wanted: {}", w.describe());
    w.heal_and_finish();
}

/// The port is what limits traffic, in one direction and in both: lanes that are tried bring nothing, and are merged with the first one. None of it is a
/// fault, and nothing is sent twice for it.
pub fn merged(story: &Story) {
    for ways in [&[(0, 1)][..], &[(0, 1), (1, 0)]] {
        let mut w = limited_by_port(story);
        stream(&mut w, ways, (8, MIB), 4_000 * MS);
        let all = |w: &World| w.oracle.pending_count() == 0;
        assert!(w.run_finely(2_000 * MS, all), "live: {}", w.describe());
        for p in ways.iter().map(|way| way.0) {
            let c = w.counters(p);
            assert!(c.lanes_merged >= 2, "port: {} lanes were tried and merged", c.lanes_merged);
            assert_eq!((c.lanes_added, c.lanes_moved), (0, 0), "port: a lane brings nothing here");
            let told = w.events_of(p, |e| matches!(e, EventKind::LaneMerged { .. })).len() as u64;
            assert_eq!(told, c.lanes_merged, "each is reported");
        }
        // the last trial ends for want of traffic
        w.run_for(12_000 * MS);
        for p in 0..2 {
            let c = w.counters(p);
            assert_eq!(
                (c.streams_replaced, c.bytes_resent),
                (0, 0),
                "once: a lane is merged when it is empty"
            );
            assert!(w.paths(p).iter().all(|x| x.streams == 1), "bounded: {:?}", w.paths(p));
        }
        w.heal_and_finish();
    }
}

/// Small messages to and fro, each answered before the next: longest time that one takes, in milliseconds.
fn slowest_turn(w: &mut World, ns: u64) -> u64 {
    let end = w.now + ns;
    let mut longest = 0;
    while w.now < end {
        let begin = w.now;
        for (from, to) in [(0, 1), (1, 0)] {
            w.recv(RecvSpec::class(to, 1, 64));
            w.send_soon(SendSpec::tagged(from, to, 1, 64));
            all_received(w);
        }
        longest = longest.max(w.now - begin);
        w.run_for(100_000);
    }
    longest / MS
}

/// The same, and small messages. Datagrams go by a route of their own each way, and each side can change one of them: this side its
/// own when a query is not answered, the other side when it is told. After the repair they come back to the usual route in a quiet moment.
pub fn datagrams_are_led(story: &Story) {
    let mut stood = Vec::new();
    for salt in 0..40 {
        let mut w = world(story, 1, &[1_000], &[]);
        slowest_turn(&mut w, 30 * MS);
        let fault = w.begin(Fault::Routes { host: 0, net: 0, dark: DarkRoutes { percent: 25, salt } });
        stood.push(slowest_turn(&mut w, 400 * MS));
        let led = w.counters(0).detours + w.counters(1).detours;
        let down =
            w.events_of(0, |e| matches!(e, EventKind::PathDown { .. } | EventKind::DatagramsBlocked { .. }));
        assert!(down.is_empty(), "more than a route is called broken: {down:?}");
        w.end_fault(fault);
        assert!((led > 0) == (stood[stood.len() - 1] > 2), "{led} steps, {stood:?}");
        w.run_for(12 * 1_000 * MS);
        assert!(
            w.procs.iter().all(|p| p.led.values().all(|route| *route == 0)),
            "it stays on a detour for ever"
        );
        w.heal_and_finish();
    }
    stood.sort_unstable();
    let (median, worst) = (stood[stood.len() / 2], stood[stood.len() - 1]);
    assert!(worst > 5, "no datagram was on a dark route: {stood:?}");
    assert!(median <= 15 && worst <= 40, "it stands still for too long, in milliseconds: {stood:?}");
}

/// Two processes meet for the first time, and one route of the fabric in four is dark: hellos, and the answers to them, come by other routes when they are
/// repeated. Where the peer is only late, that leaves no detour behind.
pub fn met_over_dark_routes(story: &Story) {
    let mut took = Vec::new();
    for salt in 0..60 {
        let mut w = story.world(Config { acquainted: salt % 2 == 0, ..Config::quiet(salt, 1) });
        let (from, to) = (salt as usize / 2 % 2, 1 - salt as usize / 2 % 2);
        let dark = DarkRoutes { percent: 25, salt };
        let fault = w.begin(Fault::Routes { host: 0, net: 0, dark });
        let begin = w.now;
        w.recv(RecvSpec::class(to, 1, 64));
        w.send_soon(SendSpec::tagged(from, to, 1, 64));
        all_received(&mut w);
        took.push((w.now - begin) / MS);
        w.end_fault(fault);
        w.heal_and_finish();
    }
    for late in [60, 130, 400, 1_500] {
        let mut w = story.world(Config::quiet(late, 1));
        w.recv(RecvSpec::class(1, 1, 64));
        w.begin_for(Fault::Stop { p: 1 }, late * MS);
        w.send_soon(SendSpec::tagged(0, 1, 1, 64));
        w.run_for(late * MS);
        let sought = w.counters(0).detours > 0;
        all_received(&mut w);
        w.run_for(30 * MS);
        let led: Vec<u8> = w.procs.iter().flat_map(|p| p.led.values().copied()).collect();
        assert!(sought && led.iter().all(|&route| route == 0), "{late} ms late: {sought}, {led:?}");
        w.heal_and_finish();
    }
    took.sort_unstable();
    assert!(
        took[30] <= 50 && took[54] <= 150 && took[59] <= 400,
        "it takes too long, in milliseconds: {took:?}"
    );
}

/// A path that is never idle comes back to the usual route too, and nothing is kept for a peer that dies or says goodbye while its datagrams take
/// another.
pub fn nothing_stays_led(story: &Story) {
    let led = |w: &World, p: usize| w.procs[p].led.values().any(|route| *route != 0);
    let dark = |w: &mut World, salt| {
        standstill(w, 30 * MS, MIB / 4);
        w.begin(Fault::Routes { host: 0, net: 0, dark: DarkRoutes { percent: 40, salt } })
    };
    let (mut came_home, mut gone) = (0, 0);
    for salt in 0..12 {
        let mut w = world(story, 1, &[100], &[]);
        let fault = dark(&mut w, salt);
        standstill(&mut w, 400 * MS, MIB / 4);
        came_home += usize::from((0..2).any(|p| led(&w, p)));
        w.end_fault(fault);
        standstill(&mut w, 12_000 * MS, MIB / 4);
        assert!((0..2).all(|p| !led(&w, p)), "a busy path stays on a detour: {salt}");
        w.heal_and_finish();

        for says_goodbye in [true, false] {
            let mut w = world(story, 1, &[100], &[]);
            let fault = dark(&mut w, salt);
            flood(&mut w);
            w.run_for(100 * MS);
            if says_goodbye {
                all_received(&mut w);
                w.exit(1);
            } else {
                w.kill(1);
            }
            gone += usize::from(led(&w, 0));
            w.run_for(1_000 * MS);
            w.end_fault(fault);
            w.heal_and_finish();
            assert!(!led(&w, 0), "what goes to a peer that is gone is led still: {salt}, {says_goodbye}");
        }
    }
    assert!(came_home > 2 && gone > 4, "{came_home} and {gone} times something was led elsewhere");
}

/// Only the way back is dark, and its first detour too. The side that waits for acknowledgements cannot change it, and the other waits for nothing: it
/// learns of it by the queries.
pub fn the_way_back_is_dark(story: &Story) {
    let alone = |dark: DarkRoutes| {
        let back = |route| dark.lead(1, 0, Carries::Udp(route));
        let there = (0..8).any(|route| dark.lead(0, 1, Carries::Udp(route)));
        let streams = (0..64).any(|c| dark.lead(0, 1, Carries::Tcp(c)));
        back(0) && back(1) && !back(2) && !there && !streams
    };
    let found = (0..).map(|salt| DarkRoutes { percent: 8, salt }).find(|dark| alone(*dark));
    let dark = found.expect("there is one");
    let mut w = world(story, 1, &[1_000], &[]);
    let send_for = |w: &mut World, ms: u64| {
        for _ in 0..ms {
            w.recv(RecvSpec::class(1, 1, 64));
            w.send_soon(SendSpec::tagged(0, 1, 1, 64));
            w.run_for(MS);
        }
    };
    send_for(&mut w, 30);
    let fault = w.begin(Fault::Routes { host: 0, net: 0, dark });
    send_for(&mut w, 60);
    let good = |route: &u8| !dark.lead(1, 0, Carries::Udp(*route));
    assert!(
        w.procs[1].led.len() == 1 && w.procs[1].led.values().all(good),
        "the acknowledgements are lost still: {:?}",
        w.procs[1].led
    );
    w.end_fault(fault);
    w.heal_and_finish();
}

/// A peer that only stands still for a while is not on a dead route: what was tried in vain is left again with its first answers.
pub fn busy_is_no_dead_route(story: &Story) {
    let mut w = world(story, 2, &[1_000, 1_000], &[]);
    for _ in 0..10 {
        slowest_turn(&mut w, 10 * MS);
        w.begin_for(Fault::Stop { p: 1 }, 200 * MS);
        slowest_turn(&mut w, 300 * MS);
        assert!(w.procs[0].led.values().all(|route| *route == 0), "{:?}", w.procs[0].led);
        assert!(w.procs[1].led.values().all(|route| *route == 0), "{:?}", w.procs[1].led);
    }
    w.heal_and_finish();
}

/// A rail goes dark while all its lanes carry: everything that was on any of them goes over the other rail.
pub fn all_with_the_path(story: &Story) {
    let mut w = world(story, 2, &[1_000, 1_000], FOUR);
    four_each(&mut w);
    flood(&mut w);
    w.run_for(5 * MS);
    w.begin(Fault::Dark { host: 0, net: 0, inward: true, outward: true });
    all_received(&mut w);
    w.heal_and_finish();
}

/// Frames have the same numbers on all lanes: each lane hears of its own. Then connections break one by one, each with frames that are not
/// acknowledged.
pub fn own_numbers(story: &Story) {
    let mut w = world(story, 3, &[100, 1_000], FOUR);
    four_each(&mut w);
    for _ in 0..20 {
        flood(&mut w);
        all_received(&mut w);
    }
    w.run_for(500 * MS);
    let c = w.counters(0);
    assert_eq!((c.streams_replaced, c.bytes_resent), (0, 0), "nothing breaks, and something goes again");
    for _ in 0..20 {
        flood(&mut w);
        w.run_for(3 * MS);
        for net in 0..2 {
            w.begin(Fault::Reset { host: 0, net, percent: 30 });
        }
        all_received(&mut w);
    }
    four_each(&mut w);
    w.heal_and_finish();
}
