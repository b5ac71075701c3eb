//! H4: bounded against live.

use super::{Story, received, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::link::MS;
use crate::world::Config;

/// H4a. A correct program sends far more eager payload of one tag than may be kept unexpected, then another tag, which the
/// receiver takes first.
pub fn payload_over_the_bound(story: &Story) {
    let mut cfg = Config::quiet(1, 2);
    cfg.options[0].unexpected_bytes_max = 131_072;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    for _ in 0..40 {
        w.send(SendSpec::tagged(0, 1, 1, 16_000)).expect("there is room to retain it");
    }
    let first = w.send(SendSpec::tagged(0, 1, 2, 100)).expect("there is room");
    w.run_for(50 * MS);
    w.recv(RecvSpec::class(1, 2, 100));
    assert!(
        w.run_finely(2_000 * MS, |w| received(w, first)),
        "live: a message waits behind payload that is over the bound: {}",
        w.describe()
    );
    assert!(w.counters(1).refused > 0, "simulator: the story did not come about: nothing was refused");
    w.heal_and_finish();
}

/// H4b. A hundred thousand messages of one tag, then another tag, which the receiver takes first.
pub fn many_unexpected(story: &Story) {
    let mut cfg = Config::quiet(1, 2);
    cfg.check_every = 512;
    // a low bound: messages without an acknowledgement must be noticed before they pile up
    cfg.options[0].retained_bytes_max = 1 << 20;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    for k in 0..100_000 {
        w.send_soon(SendSpec { inject: true, ..SendSpec::tagged(0, 1, 1, 4) });
        if k % 200 == 199 {
            w.run_for(MS / 10);
        }
    }
    let first = w.send(SendSpec::tagged(0, 1, 2, 100)).expect("there is room");
    w.run_for(50 * MS);
    w.recv(RecvSpec::class(1, 2, 100));
    assert!(
        w.run_finely(5_000 * MS, |w| received(w, first)),
        "live: a message waits behind others of another tag: {}",
        w.describe()
    );
    w.heal_and_finish();
}

/// H4c. A flood of small messages is under way from 0 to 1 over a slow rail when 1 sends something large, which needs a grant
/// of 0.
pub fn grant_behind_flood(story: &Story) {
    let mut cfg = Config::quiet(1, 1);
    cfg.nets[0].mbps = 100;
    let mut w = story.world(cfg);
    warm_up(&mut w);
    w.recv(RecvSpec::class(0, 3, 200_000));
    for _ in 0..10_000 {
        w.send_soon(SendSpec { inject: true, ..SendSpec::tagged(0, 1, 1, 1000) });
    }
    w.run_for(5 * MS);
    let id = w.send(SendSpec::tagged(1, 0, 3, 200_000)).expect("there is room");
    assert!(
        w.run_finely(200 * MS, |w| received(w, id)),
        "live: a grant waits behind small messages, of which {} are not received",
        w.oracle.pending_count()
    );
    assert!(w.oracle.pending_count() > 5_000, "simulator: the story did not come about: the flood is over");
    w.heal_and_finish();
}
