//! Adapters write by themselves, and late: memory is given back when no write can reach it.

use super::{Story, received, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, SEC, US};
use crate::world::{Config, World};
use rerail_core::BulkMode;

/// A message of a fragment for each rail, and one of many.
const SHORT: usize = 100_000;
/// See [`SHORT`].
const LONG: usize = 1 << 20;

/// Two processes joined by two networks with adapters.
fn world(story: &Story, seed: u64) -> World {
    let mut cfg = Config::quiet(seed, 2);
    cfg.adapters = vec![16; 2];
    // most fragments are still to be cut when the key is there
    cfg.options[0].window_bytes_max = 65_536;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w
}

/// A message is on its way, and its writes are under way.
fn begin(w: &mut World, bytes: usize) {
    // the keys may come when all has gone as copies
    for _ in 0..10 {
        w.recv(RecvSpec::class(1, 1, bytes));
        let id = w.send_soon(SendSpec::tagged(0, 1, 1, bytes));
        w.run_finely(20 * MS, |w| w.adapters.is_writing() || received(w, id));
        if w.adapters.is_writing() {
            return;
        }
        w.run_for(MS);
    }
    panic!("live: nothing is written: {}", w.describe());
}

/// A stream breaks in the middle of writes. What it carried goes again over the other rail, and completes the message: by then nothing of the
/// first writes may be left.
pub fn fence(story: &Story) {
    for seed in 0..40 {
        let mut w = world(story, seed);
        for _ in 0..5 {
            begin(&mut w, SHORT);
            w.begin(Fault::Reset { host: 0, net: 0, percent: 100 });
            assert!(w.run_finely(2_000 * MS, |w| w.oracle.pending_count() == 0), "live: {}", w.describe());
            w.run_for(50 * MS);
        }
        w.heal_and_finish();
    }
}

/// A sender exits in the middle of writes. Its receive fails when nothing more can be written, and not when the word comes.
pub fn withdrawn(story: &Story) {
    for seed in 0..40 {
        let mut w = world(story, seed);
        begin(&mut w, LONG);
        w.run_for(w.now % 7 * 10 * US);
        w.exit(0);
        w.run_for(100 * MS);
        w.heal_and_finish();
    }
}

/// A sender exits in the middle of writes while one of its rails is dark, so that nothing closes the other end. Its receive fails, and the memory
/// is registered no more. Another sender's messages are granted at once, one after the other: what the first adapter still writes reaches none of
/// them, because its key opens nothing.
pub fn keys(story: &Story) {
    let mut too_late = 0;
    for seed in 0..20 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.adapters = vec![16; 2];
        cfg.hosts = vec![vec![0, 1]; 3];
        cfg.procs = vec![0, 1, 2];
        cfg.options[0].window_bytes_max = 65_536;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let post = |w: &mut World| {
            w.recv(RecvSpec::class(1, 2, SHORT));
            w.send_soon(SendSpec::tagged(2, 1, 2, SHORT))
        };
        let id = post(&mut w);
        assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
        begin(&mut w, LONG);
        w.run_for(seed % 7 * 10 * US);
        w.begin(Fault::Dark { host: 0, net: 0, inward: true, outward: true });
        w.exit(0);
        // at every moment one has just been granted
        for _ in 0..80 {
            post(&mut w);
            w.run_for(100 * US);
        }
        w.run_for(100 * MS);
        too_late += w.adapters.too_late;
        w.heal_and_finish();
    }
    assert!(too_late > 0, "simulator: no write came when its region was over");
}

/// Adapters that demand that the connecting side sends first, as those for iWARP do. Streams break again and again, packets of handshakes are lost,
/// and every message comes over a stream: the accepting side does not know of a connection before something has come on it.
pub fn client_first(story: &Story) {
    for seed in 0..10 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.adapters = vec![16; 2];
        cfg.client_first = vec![true; 2];
        cfg.options[0].bulk = BulkMode::Tcp;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let connections = w.conns.len();
        w.begin(Fault::Loss { net: 0, host: 0, ppm: 100_000 });
        for k in 0..10 {
            let (a, b) = [(0, 1), (1, 0)][k % 2];
            w.recv(RecvSpec::class(b, 1, LONG));
            let id = w.send_soon(SendSpec::tagged(a, b, 1, LONG));
            w.run_for(seed * 100 * US);
            w.begin(Fault::Reset { host: 0, net: k % 2, percent: 100 });
            let early = |w: &World| w.conns.iter().any(|c| c.ends[1].stream.is_some() && !c.spoke);
            assert!(w.run_finely(2 * SEC, |w| received(w, id) || early(w)), "live: {}", w.describe());
            assert!(!early(&w), "client first: a connection is accepted on which nothing has come");
        }
        assert!(w.conns.len() > connections, "simulator: no stream was replaced");
        w.heal_and_finish();
    }
}

/// Every write into memory of one process is refused, on one network or on both, as with keys that are wrong. Messages arrive as copies after a
/// few streams in vain, and when writes are taken again, adapters write again.
pub fn refused(story: &Story) {
    for (seed, nets) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
        let mut w = world(story, seed);
        let refusals: Vec<usize> =
            (0..nets).map(|net| w.begin(Fault::WritesRefused { host: 1, net })).collect();
        let (before, began) = (w.counters(0).streams_replaced, w.now);
        for _ in 0..30 {
            w.recv(RecvSpec::class(1, 1, LONG));
            let id = w.send_soon(SendSpec::tagged(0, 1, 1, LONG));
            assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
            w.run_for(20 * MS);
        }
        // three in a row on each path, and one at the end of each pause
        let replaced = w.counters(0).streams_replaced - before;
        let pauses = 1 + (w.now - began) / SEC;
        assert!(replaced >= 3 * nets as u64, "simulator: only {replaced} streams broke by writes in vain");
        assert!(
            replaced <= (3 + pauses) * nets as u64,
            "bounded: {replaced} streams broke by writes in vain"
        );
        refusals.into_iter().for_each(|i| w.end_fault(i));
        // the first trial may be seconds away
        let landed = w.adapters.landed.0;
        let again = |w: &World| w.adapters.landed.0 > landed;
        for _ in 0..100 {
            if again(&w) {
                break;
            }
            w.recv(RecvSpec::class(1, 1, LONG));
            let id = w.send_soon(SendSpec::tagged(0, 1, 1, LONG));
            assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
            w.run_for(100 * MS);
        }
        assert!(again(&w), "live: nothing is written although nothing is refused any more");
        w.run_for(3 * SEC);
        // a break now and then, with writes that succeed in between, takes no trust
        for _ in 0..5 {
            begin(&mut w, LONG);
            for net in 0..2 {
                w.begin(Fault::Reset { host: 0, net, percent: 100 });
            }
            assert!(w.run_finely(2 * SEC, |w| w.oracle.pending_count() == 0), "live: {}", w.describe());
            begin(&mut w, LONG);
            assert!(w.run_finely(2 * SEC, |w| w.oracle.pending_count() == 0), "live: {}", w.describe());
        }
        w.heal_and_finish();
    }
}

/// Adapters cannot read sources, because no more memory may be locked, for instance: these go as copies, and no stream breaks for it. Where it
/// is a few, the others are written.
pub fn unreadable(story: &Story) {
    for percent in [100, 20] {
        let mut cfg = Config::quiet(percent.into(), 2);
        cfg.adapters = vec![16; 2];
        cfg.unreadable_percent = percent;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        for _ in 0..30 {
            w.recv(RecvSpec::class(1, 1, LONG));
            let id = w.send_soon(SendSpec::tagged(0, 1, 1, LONG));
            assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
            w.run_for(200 * MS);
        }
        let c = w.counters(0);
        assert_eq!((c.streams_replaced, c.fences_asked), (0, 0), "no stream breaks for it");
        assert!(c.pieces_unreadable > 0, "simulator: the story did not come about");
        // once a second on each path at the most, however many writes were to follow
        let tried = w.adapters.unreadable;
        assert!(tried <= 2 * (1 + w.now / SEC), "bounded: {tried} times an adapter was asked in vain");
        assert_eq!(w.adapters.landed.0 > 0, percent < 100, "what can be read is written");
        w.heal_and_finish();
    }
}

/// Adapters register so slowly that keys come too late: one message waits for them, a little, and then for a second none does.
pub fn keys_that_come_late(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.adapters = vec![16; 2];
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.cfg.register_ns = (300 * MS, 400 * MS);
        let began = w.now;
        let took: Vec<u64> = (0..20)
            .map(|_| {
                let from = w.now;
                w.recv(RecvSpec::class(1, 1, LONG));
                let id = w.send_soon(SendSpec::tagged(0, 1, 1, LONG));
                assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
                w.now - from
            })
            .collect();
        assert!(w.now - began < 500 * MS, "simulator: it took more than half of a pause");
        let waited = took.iter().filter(|t| **t > 5 * MS).count();
        assert_eq!((took[0] > 5 * MS, waited), (true, 1), "bounded: grants wait in vain: {took:?}");
        assert!(took[0] < 10 * MS, "bounded: a grant waits too long: {took:?}");
        w.run_for(SEC);
        w.heal_and_finish();
    }
}

/// Both rails' adapters write all of every message: the grant comes with the keys, so nothing goes as a copy before.
pub fn keys_with_the_grant(story: &Story) {
    for seed in 0..10 {
        let mut w = world(story, seed);
        let (before, at_receiver) = (w.counters(0).pieces_placed, w.counters(1));
        for _ in 0..20 {
            w.recv(RecvSpec::class(1, 1, LONG));
            let id = w.send_soon(SendSpec::tagged(0, 1, 1, LONG));
            assert!(w.run_finely(SEC, |w| received(w, id)), "live: {}", w.describe());
        }
        let landed = w.adapters.landed.0;
        assert_eq!(landed, 20 * LONG as u64, "in place: the rest went as copies");
        assert!(w.counters(0).pieces_placed > before, "simulator: the story did not come about");
        let c = w.counters(1);
        let (all, placed) =
            (c.bytes_received - at_receiver.bytes_received, c.bytes_placed - at_receiver.bytes_placed);
        assert_eq!((all, placed), (landed, landed), "counted: bytes that were received, and those written");
        w.heal_and_finish();
    }
}
