//! H5, H14: the last message, the last acknowledgement, and what a completion promises.

use super::{Story, received, sent, until_event, warm_up};
use crate::app::{Phase, RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::Config;
use rerail_core::{CompletionLevel, EventKind};

/// H5. Eager sends complete, every rail of the sender goes dark for a while, and the process leaves. And the other way round:
/// only the receiver's last acknowledgements are lost.
pub fn lost_farewell(story: &Story) {
    for outward in [true, false] {
        let mut w = story.world(Config::quiet(1, 2));
        warm_up(&mut w);
        let faults: Vec<usize> =
            (0..2).map(|net| w.begin(Fault::Dark { host: 0, net, inward: true, outward })).collect();
        for k in 0..20 {
            w.send(SendSpec::tagged(0, 1, 1, 100 * k)).expect("there is room");
        }
        w.leave(0);
        w.run_for(700 * MS);
        for f in faults {
            w.end_fault(f);
        }
        w.run_for(500 * MS);
        w.heal_and_finish();
    }
}

/// H5. Everything goes dark when a process leaves, and stays so for longer than closing lingers: what it sent arrives after the
/// repair. Past the deadline of the partition it leaves.
pub fn long_dark(story: &Story) {
    for (inward, outward) in [(true, true), (true, false), (false, true)] {
        let mut w = story.world(Config::quiet(1, 2));
        warm_up(&mut w);
        let mut ids = Vec::new();
        for k in 0..20 {
            ids.push(w.send(SendSpec::tagged(0, 1, 1, 100 * k)).expect("there is room"));
        }
        w.run_for(15_000);
        let faults: Vec<usize> =
            (0..2).map(|net| w.begin(Fault::Dark { host: 0, net, inward, outward })).collect();
        w.run_for(5 * MS);
        w.leave(0);
        w.run_for(100_000 * MS);
        assert!(w.procs[0].app.phase != Phase::Gone, "live: a process leaves while nobody can hear it");
        for f in faults {
            w.end_fault(f);
        }
        for _ in 0..20 {
            w.recv(RecvSpec::class(1, 1, 20_000));
        }
        assert!(
            w.run_finely(5_000 * MS, |w| ids.iter().all(|&id| received(w, id))
                && w.procs[0].app.phase == Phase::Gone),
            "live: the farewell does not end after the repair: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
    let mut cfg = Config::quiet(2, 2);
    cfg.options[0].partition_timeout = Some(std::time::Duration::from_secs(40));
    cfg.peers_may_be_lost = true;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w.begin(Fault::Blackout { host: 0 });
    w.send(SendSpec::tagged(0, 1, 1, 100)).expect("there is room");
    w.leave(0);
    assert!(
        w.run_finely(45_000 * MS, |w| w.procs[0].app.phase == Phase::Gone),
        "never a silent hang: the farewell outlives the deadline of the partition: {}",
        w.describe()
    );
}

/// H5. A process leaves and has to linger for a peer that it cannot reach. Another peer, which has received its
/// goodbye, leaves before it. The end of the streams between these two is no fault of any path, and is not reported as
/// one.
pub fn parted(story: &Story) {
    let mut cfg = Config::quiet(3, 2);
    cfg.hosts = vec![vec![0, 1]; 3];
    cfg.procs = vec![0, 1, 2];
    let mut w = story.world(cfg);
    for (a, b) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        w.recv(RecvSpec::class(b, 201, 300_000));
        w.send(SendSpec::tagged(a, b, 201, 300_000)).expect("the first message is accepted");
    }
    warm_up(&mut w);
    let fault = w.begin(Fault::Blackout { host: 2 });
    w.send(SendSpec::tagged(0, 2, 1, 10)).expect("there is room");
    w.recv(RecvSpec::class(2, 1, 10));
    w.leave(0);
    w.run_for(20 * MS);
    w.leave(1);
    assert!(w.run_finely(500 * MS, |w| w.procs[1].app.phase == Phase::Gone), "{}", w.describe());
    w.run_for(200 * MS);
    assert!(w.procs[0].app.phase != Phase::Gone, "it waits for the repair");
    assert_eq!(w.counters(0).streams_replaced, 0, "a peer that has parted may close: {}", w.describe());
    w.end_fault(fault);
    w.heal_and_finish();
}

/// H5. The goodbye arrives, and its answer is lost with the link, which is back soon. The process must not wait for
/// long: all it sent was acknowledged. (Regression: seed 673.)
pub fn lost_answer(story: &Story) {
    for rails in [1, 2] {
        let mut w = story.world(Config::quiet(1, rails));
        warm_up(&mut w);
        w.leave(0);
        assert!(
            until_event(&mut w, 1, 1_000 * MS, |e| matches!(e, EventKind::PeerGoodbye)),
            "live: the goodbye does not arrive: {}",
            w.describe()
        );
        for net in 0..rails {
            w.begin_for(Fault::IfDown { host: 0, net, peers: false }, 20 * MS);
        }
        assert!(
            w.run_finely(4_000 * MS, |w| w.procs[0].app.phase == Phase::Gone),
            "live: a process whose goodbye was heard does not leave: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H14. A send that promises a match does not complete while the message only lies at the receiver, and completes when a receive
/// takes it; with an endpoint that closes without a receive it fails.
pub fn match_complete(story: &Story) {
    for (seed, (len, inject)) in
        [(0, false), (100, false), (100, true), (1_300, false), (16_000, true), (300_000, false)]
            .into_iter()
            .enumerate()
    {
        let mut w = story.world(Config::quiet(seed as u64, 1 + seed % 2));
        warm_up(&mut w);
        let level = CompletionLevel::Matched;
        let id = w.send(SendSpec { level, inject, ..SendSpec::tagged(0, 1, 1, len) }).expect("there is room");
        w.run_for(80 * MS);
        assert!(inject || !sent(&w, id), "no false completion: a match is reported, and there is no receive");
        w.recv(RecvSpec::class(1, 1, len));
        assert!(w.run_finely(1_000 * MS, |w| sent(w, id) && received(w, id)), "live: {}", w.describe());
        w.heal_and_finish();
    }
}

/// H14. A send that promises delivery does not complete while nothing gets through; and once it has completed, the receiver
/// has the message although nothing gets through any more.
pub fn delivery_complete(story: &Story) {
    for (seed, len) in [0, 100, 1_300, 5_000, 16_000].into_iter().enumerate() {
        let mut w = story.world(Config::quiet(seed as u64, 1 + seed % 2));
        warm_up(&mut w);
        let dark = w.begin(Fault::Blackout { host: 0 });
        let id = w
            .send(SendSpec { level: CompletionLevel::Delivered, ..SendSpec::tagged(0, 1, 1, len) })
            .expect("there is room");
        w.run_for(80 * MS);
        assert!(!sent(&w, id), "no false completion: a delivery is reported while nothing gets through");
        w.end_fault(dark);
        assert!(w.run_finely(2_000 * MS, |w| sent(w, id)), "live: {}", w.describe());
        w.begin(Fault::Blackout { host: 0 });
        w.recv(RecvSpec::class(1, 1, len));
        assert!(
            w.run_finely(50 * MS, |w| received(w, id)),
            "no false completion: a delivery was reported that the receiver does not have: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}
