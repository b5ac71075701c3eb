//! H15: operations in flight: a full completion queue, cancels, messages that are cut.

use super::{Story, received, sent, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::Config;
use rerail_core::{CompletionLevel, Protocol};

/// A multi-receive owes far more entries than its queue holds, and the application does not read the queue: every send
/// still completes at delivery, and the entries come when the queue is read.
pub fn full_queue(story: &Story) {
    const OWED: usize = 60;
    let mut cfg = Config::quiet(3, 2);
    cfg.cq_size = 4;
    cfg.one_cq = false;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w.recv(RecvSpec { multi: true, proto: Protocol::Msg, tag: 0, ..RecvSpec::class(1, 0, 64 * 1024) });
    w.procs[1].app.deaf_until = u64::MAX;
    let ids: Vec<u64> = (0..OWED)
        .map(|_| {
            w.send_soon(SendSpec {
                proto: Protocol::Msg,
                level: CompletionLevel::Delivered,
                ..SendSpec::tagged(0, 1, 0, 100)
            })
        })
        .collect();
    assert!(
        w.run_finely(2_000 * MS, |w| ids.iter().all(|&id| sent(w, id))),
        "live: a delivery waits for somebody who reads a queue: {}",
        w.describe()
    );
    assert!(
        !ids.iter().any(|&id| received(&w, id)),
        "simulator: the story did not come about: the queue was read"
    );
    w.procs[1].app.deaf_until = 0;
    assert!(
        w.run_finely(2_000 * MS, |w| ids.iter().all(|&id| received(w, id))),
        "live: entries that were owed never came: {}",
        w.describe()
    );
    w.heal_and_finish();
}

/// A large message is half there when its receive is cancelled: the cancel is refused, and the message arrives whole.
pub fn cancel_under_way(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.nets.iter_mut().for_each(|n| n.mbps = 1000);
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let taken = w.recv(RecvSpec { pieces: 2, ..RecvSpec::class(1, 1, 1_000_000) });
        let before = w.delivered(0, 0) + w.delivered(0, 1);
        let id = w.send(SendSpec::tagged(0, 1, 1, 1_000_000)).expect("there is room");
        w.run_finely(100 * MS, |w| w.delivered(0, 0) + w.delivered(0, 1) > before + 200_000);
        let cancelled = w.cancel(taken);
        w.run_finely(2_000 * MS, |w| received(w, id) && sent(w, id));
        assert!(!cancelled && received(&w, id), "a receive was cancelled whose message was under way");
        let unmatched = w.recv(RecvSpec::class(1, 2, 1000));
        assert!(w.cancel(unmatched), "what is unmatched can be cancelled");
        w.heal_and_finish();
    }
}

/// Messages that are longer than their receives, by datagram and by stream, while a rail breaks: what fits arrives before the
/// receiver is notified, the surplus is never owed, and the sender completes.
pub fn cut_messages(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.nets.iter_mut().for_each(|n| n.mbps = 1000);
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let lens = [1_000, 30_000, 400_000, 1_000_000];
        let ids: Vec<u64> = lens
            .iter()
            .zip(1..)
            .map(|(&len, class)| {
                w.recv(RecvSpec { pieces: 3, ..RecvSpec::class(1, class, len / 2 + 7) });
                w.send(SendSpec { level: CompletionLevel::Delivered, ..SendSpec::tagged(0, 1, class, len) })
                    .expect("there is room")
            })
            .collect();
        w.run_for(2 * MS);
        w.begin_for(Fault::Dark { host: 0, net: 0, inward: true, outward: true }, 200 * MS);
        assert!(
            w.run_finely(3_000 * MS, |w| ids.iter().all(|&id| received(w, id) && sent(w, id))),
            "live: a message that was cut is not done: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}
