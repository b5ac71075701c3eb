//! One-sided operations: reads and writes of a peer's memory, atomic operations, and what becomes of them when something breaks.

use super::{Story, until_event, warm_up};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::onesided::{AskSpec, RegionSpec, State};
use crate::region::Deed;
use crate::world::{Config, World};
use rerail_core::{BulkMode, EventKind};

const MIB: usize = 1 << 20;

fn state(w: &World, a: usize) -> State {
    w.asks.list[a].state
}

fn all_are(w: &World, list: &[usize], s: State) -> bool {
    list.iter().all(|&a| state(w, a) == s)
}

/// Two processes that have met, over rails of 1 Gbit/s.
fn pair(story: &Story, seed: u64, rails: usize) -> World {
    let mut cfg = Config::quiet(seed, rails);
    cfg.nets.iter_mut().for_each(|n| n.mbps = 1000);
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w
}

fn finished(w: &mut World, list: &[usize]) {
    assert!(
        w.run_finely(5 * SEC, |w| all_are(w, list, State::Done)),
        "live: an operation is not done: {}",
        w.describe()
    );
}

/// A large write and a large read are striped over two rails when one is cut: both are done, the bytes are there when that is
/// reported, and a later read finds them.
pub fn striped(story: &Story) {
    for seed in 0..4 {
        let mut w = pair(story, seed, 2);
        let there = w.open_region(1, &RegionSpec { pieces: 3, ..RegionSpec::slots(&[2 * MIB, 2 * MIB]) });
        let s = AskSpec { pieces: 3, data: true, ..AskSpec::plain(0, 1) };
        let (before, read_before) = ([0, 1].map(|n| w.delivered(0, n)), [0, 1].map(|n| w.delivered(1, n)));
        let write = w.write(s, &[(there, 0)]).expect("there is room");
        let read = w.read(s, &[(there, 1)]).expect("there is room");
        let grown = |w: &World, n: usize| {
            w.delivered(0, n) > before[n] + 300_000 && w.delivered(1, n) > read_before[n] + 300_000
        };
        w.run_finely(SEC, |w| state(w, write) == State::Done || (grown(w, 0) && grown(w, 1)));
        if state(&w, write) == State::Done {
            w.check_region(there);
            panic!("simulator: it was faster than the fault");
        }
        w.begin_for(Fault::Dark { host: 0, net: seed as usize % 2, inward: true, outward: true }, 300 * MS);
        w.run_finely(5 * SEC, |w| state(w, write) == State::Done);
        w.check_region(there);
        let again = w.read(AskSpec::plain(0, 1), &[(there, 0)]).expect("there is room");
        finished(&mut w, &[write, read, again]);
        assert!(w.run_finely(SEC, |w| w.asks.list[write].told), "live: the data of the write never came");
        w.heal_and_finish();
    }
}

/// Writes one after the other, of sizes that go as datagrams and over streams, while each rail in turn is dark for 300 ms: none waits for
/// the repair.
pub fn one_by_one(story: &Story) {
    for len in [64, 32 * 1024, 256 * 1024] {
        for net in 0..2 {
            let mut w = pair(story, net as u64, 2);
            let there = w.open_region(1, &RegionSpec::slots(&[len; 60]));
            let write = |w: &mut World, slot: usize| {
                let before = w.now;
                let ask = w.write(AskSpec::plain(0, 1), &[(there, slot)]).expect("there is room");
                finished(w, &[ask]);
                w.now - before
            };
            for slot in 0..30 {
                write(&mut w, slot);
            }
            w.begin_for(Fault::Dark { host: 0, net, inward: true, outward: true }, 300 * MS);
            let longest = (30..60).map(|slot| write(&mut w, slot)).max().expect("there were some");
            assert!(
                longest < 100 * MS,
                "live: a write of {len} bytes took {} ms without net{net}",
                longest / MS
            );
            w.heal_and_finish();
        }
    }
}

/// A write of 30,000 bytes while nothing else waits travels inside its order, which is one message; a second one, posted behind it, beside its
/// own, which are two.
pub fn alone(story: &Story) {
    let mut w = pair(story, 0, 2);
    let there = w.open_region(1, &RegionSpec::slots(&[30_000; 4]));
    let writes = |w: &mut World, slots: std::ops::Range<usize>, messages: usize| {
        let asks: Vec<usize> =
            slots.map(|s| w.write(AskSpec::plain(0, 1), &[(there, s)]).expect("there is room")).collect();
        let sent = w.with_engine(0, |_, e, _| e.remains(|_| 0));
        assert!(
            sent.contains(&format!(": {messages} sent messages")),
            "one-sided: {} writes are not {messages} messages{sent}",
            asks.len()
        );
        finished(w, &asks);
        w.run_for(SEC);
    };
    writes(&mut w, 0..1, 1);
    writes(&mut w, 1..3, 3);
    writes(&mut w, 3..4, 1);
    w.heal_and_finish();
}

/// Atomic operations while what comes back over one rail after the other is lost, so that all of it is sent again: each takes
/// effect once, and in order.
pub fn exact(story: &Story) {
    let mut repeated = 0;
    for seed in 0..4 {
        let mut w = pair(story, seed, 2);
        let there = w.open_region(1, &RegionSpec::words(1));
        let ladder = 8 + 6;
        let mut asked = Vec::new();
        for net in [0, 1, 0] {
            let f = w.begin(Fault::Dark { host: 0, net, inward: true, outward: false });
            for k in 0..20 {
                let n = asked.len() as u64 / 2 + 1;
                let fetch = k % 3 > 0;
                let add = Deed::Add { n, floor: 0 };
                asked.extend(w.atomic(AskSpec::plain(0, 1), there, &[(k % 8, add)], fetch));
                asked.extend(w.atomic(AskSpec::plain(0, 1), there, &[(ladder, Deed::Step(n))], fetch));
                w.run_for(100_000);
            }
            w.run_for(200 * MS);
            w.end_fault(f);
            w.run_for(300 * MS);
        }
        finished(&mut w, &asked);
        assert_eq!(w.word_value(there, ladder), Some(60), "in order: the ladder has another end");
        let sum: u64 = (0..8).filter_map(|k| w.word_value(there, k)).sum();
        assert_eq!(sum, 60 * 61 / 2, "exactly once: the counters have another sum");
        repeated += w.counters(1).duplicates;
        w.heal_and_finish();
    }
    assert!(repeated > 0, "simulator: the story did not come about: nothing arrived twice");
}

/// A region is unregistered while a large write into it arrives and a large read of it is served: when the call returns its
/// memory is the owner's alone. The write ends in an error; the read ends with what was there.
pub fn unregistered(story: &Story) {
    for seed in 0..4 {
        let mut w = pair(story, seed, 2);
        let into = w.open_region(1, &RegionSpec::slots(&[2 * MIB]));
        let from = w.open_region(1, &RegionSpec::slots(&[2 * MIB]));
        let (there, back) = (w.delivered(0, 0), w.delivered(1, 0));
        let write = w.write(AskSpec::plain(0, 1), &[(into, 0)]).expect("there is room");
        let read = w.read(AskSpec::plain(0, 1), &[(from, 0)]).expect("there is room");
        let half = |w: &World| w.delivered(0, 0) > there + 200_000 && w.delivered(1, 0) > back + 200_000;
        w.run_finely(SEC, half);
        assert!(
            all_are(&w, &[write, read], State::Open),
            "simulator: the story did not come about: {}",
            w.describe()
        );
        w.close_region(into);
        w.close_region(from);
        let late = w.write(AskSpec::plain(0, 1), &[(into, 0)]).expect("process 0 does not know it yet");
        assert!(
            w.run_finely(5 * SEC, |w| w.asks.open.is_empty()),
            "live: an operation on a region that is gone never ends: {}",
            w.describe()
        );
        assert_eq!([write, read, late].map(|a| state(&w, a)), [State::Refused, State::Done, State::Refused]);
        w.run_for(50 * MS);
        w.memory.verify_all();
        w.heal_and_finish();
    }
}

/// Where no stream is, orders that fit no datagram are announced, and fetched: those behind them wait for their turn.
pub fn fetched(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 1 + seed as usize % 2);
        cfg.nets.iter_mut().for_each(|n| n.mtu = 1400);
        cfg.options[0].bulk = BulkMode::Udp;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        for net in 0..w.nets.len() {
            w.begin(Fault::TcpBlocked { host: 0, net });
        }
        w.run_for(SEC);
        let there = w.open_region(1, &RegionSpec::slots(&[7_000, 20]));
        let words = w.open_region(1, &RegionSpec::words(300));
        let mut asked = Vec::new();
        let large: Vec<_> = (0..300).map(|k| (k, Deed::Add { n: 1 + k as u64, floor: 0 })).collect();
        for _ in 0..5 {
            asked.extend(w.write(AskSpec::plain(0, 1), &[(there, 0), (there, 1)]));
            asked.extend(w.read(AskSpec::plain(0, 1), &[(there, 1)]));
            asked.extend(w.atomic(AskSpec::plain(0, 1), words, &large, true));
            asked.extend(w.read(AskSpec::plain(0, 1), &[(there, 0)]));
        }
        assert_eq!(asked.len(), 20, "there is room");
        finished(&mut w, &asked);
        w.heal_and_finish();
    }
}

/// The owner of a region goes on writing it while it is read: each byte is old or new, and no rail is blamed for the difference.
pub fn changing(story: &Story) {
    for seed in 0..4 {
        let mut w = pair(story, seed, 2);
        let there = w.open_region(1, &RegionSpec { pieces: 2, ..RegionSpec::slots(&[MIB]) });
        for _ in 0..4 {
            let read = w.read(AskSpec::plain(0, 1), &[(there, 0)]).expect("there is room");
            while state(&w, read) == State::Open {
                w.run_for(50_000);
                w.store(there, 0);
            }
        }
        w.heal_and_finish();
    }
}

/// A range that begins inside a region and ends outside is refused whole; what is inside it is not touched.
pub fn beyond(story: &Story) {
    let mut w = pair(story, 1, 1);
    let there = w.open_region(1, &RegionSpec::slots(&[5_000]));
    for over in [1, 8, 4_000] {
        let a = w.overrun(AskSpec::plain(0, 1), there, over).expect("there is room");
        assert!(w.run_finely(SEC, |w| state(w, a) == State::Refused), "live: {}", w.describe());
        w.check_region(there);
    }
    w.heal_and_finish();
}

/// A process is killed, or exits without closing, while others read and write its memory: their operations end, and those on
/// another process go on.
pub fn lost(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.hosts = vec![vec![0, 1]; 3];
        cfg.procs = vec![0, 1, 2];
        let mut w = story.world(cfg);
        let there = w.open_region(2, &RegionSpec::slots(&[4 * MIB, MIB, 100]));
        let words = w.open_region(2, &RegionSpec::words(2));
        let other = w.open_region(1, &RegionSpec::slots(&[MIB]));
        let met = [0, 1].map(|p| w.read(AskSpec::plain(p, 2), &[(there, 2)]).expect("there is room"));
        finished(&mut w, &met);
        let mut asked = Vec::new();
        asked.extend(w.write(AskSpec::plain(0, 2), &[(there, 0)]));
        asked.extend(w.read(AskSpec::plain(1, 2), &[(there, 1)]));
        asked.extend(w.atomic(AskSpec::plain(1, 2), words, &[(0, Deed::Add { n: 1, floor: 0 })], true));
        w.run_for(400_000);
        if seed % 2 == 0 {
            w.kill(2);
        } else {
            w.exit(2);
        }
        let more = w.write(AskSpec::plain(0, 1), &[(other, 0)]).expect("there is room");
        assert!(
            w.run_finely(10 * SEC, |w| w.asks.open.is_empty()),
            "live: an operation on a process that is gone never ends: {}",
            w.describe()
        );
        assert_eq!(state(&w, more), State::Done);
        assert!(asked.iter().any(|&a| state(&w, a) == State::Lost), "simulator: it was faster than the end");
        w.heal_and_finish();
    }
}

/// A process closes while its operations are under way, and the rails are dark for a while: all are done before it leaves.
pub fn closing(story: &Story) {
    for seed in 0..4 {
        let mut w = pair(story, seed, 2);
        let there = w.open_region(1, &RegionSpec::slots(&[MIB, 100, MIB]));
        let words = w.open_region(1, &RegionSpec::words(2));
        let faults: Vec<usize> = (0..2)
            .map(|net| w.begin(Fault::Dark { host: 0, net, inward: true, outward: seed % 2 == 0 }))
            .collect();
        let s = AskSpec { data: true, ..AskSpec::plain(0, 1) };
        let mut asked = Vec::new();
        asked.extend(w.write(s, &[(there, 0)]));
        asked.extend(w.write(s, &[(there, 1)]));
        asked.extend(w.read(s, &[(there, 2)]));
        asked.extend(w.atomic(s, words, &[(0, Deed::Add { n: 5, floor: 0 })], false));
        w.leave(0);
        w.run_for(700 * MS);
        assert!(all_are(&w, &asked, State::Open), "no false completion: something is done in the dark");
        faults.into_iter().for_each(|f| w.end_fault(f));
        assert!(
            until_event(&mut w, 1, 5 * SEC, |e| matches!(e, EventKind::PeerGoodbye)),
            "live: the process does not leave: {}",
            w.describe()
        );
        assert!(
            all_are(&w, &asked, State::Done),
            "live: it left, and its operations are not done: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}
