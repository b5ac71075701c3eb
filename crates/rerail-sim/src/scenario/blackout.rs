//! Every rail is dark, and comes back.

use super::policy::{all_received, world};
use super::{Story, received};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, Net, SEC};
use crate::world::{Config, World};

const MIB: usize = 1 << 20;

/// A stream of large messages through a blackout. Nothing that failed in the dark may delay what comes after it: the stuck TCP
/// connections are given up 40 ms after the first answer, and the next ones opened at once by one side.
pub fn bulk_goes_on(story: &Story) {
    for seed in 0..12 {
        let mut w = world(story, seed, &[1_000; 2], &[]);
        for _ in 0..16 {
            w.recv(RecvSpec::class(1, 1, MIB));
            w.send_soon(SendSpec::tagged(0, 1, 1, MIB));
        }
        all_received(&mut w);
        let ids: Vec<u64> = (0..32)
            .map(|_| {
                w.recv(RecvSpec::class(1, 1, MIB));
                w.send_soon(SendSpec::tagged(0, 1, 1, MIB))
            })
            .collect();
        w.run_for(40 * MS);
        let dark = w.begin(Fault::Blackout { host: 0 });
        w.run_for((1_500 + 370 * seed) * MS);
        let missing: Vec<u64> = ids.into_iter().filter(|&id| !received(&w, id)).collect();
        assert!(
            !missing.is_empty(),
            "simulator: the story did not come about: all was received before the blackout"
        );
        let replaced = [0, 1].map(|p| w.counters(p).streams_replaced);
        w.end_fault(dark);
        let from = w.now;
        let next = w.run_finely(2_000 * MS, |w| missing.iter().any(|&id| received(w, id)));
        let late = (w.now - from) / MS;
        assert!(
            next && late < 120,
            "evidence: the first message after {} ms of darkness came {late} ms after the repair (seed {seed})",
            1_500 + 370 * seed
        );
        all_received(&mut w);
        let again = [0, 1].map(|p| w.counters(p).streams_replaced - replaced[p]);
        assert!(
            again.iter().all(|&n| n <= 2),
            "evidence: two streams were replaced {again:?} times (seed {seed})"
        );
        w.heal_and_finish();
    }
}

/// Two processes meet while all rails are dark for 400 ms of each second, in step with the kernels that ask for the other's link-layer address
/// once a second.
pub fn first_contact(story: &Story) {
    let meet = |w: &mut World, from: u64| {
        let mut ids = Vec::new();
        for _ in 0..10 {
            let dark = (w.now - from) % SEC < 400 * MS;
            let fault = dark.then(|| w.begin(Fault::Blackout { host: 0 }));
            if ids.is_empty() {
                w.run_for(0);
                ids.extend([(0, 1), (1, 0)].map(|(a, b)| {
                    w.recv(RecvSpec::class(b, 1, 8));
                    w.send_soon(SendSpec::tagged(a, b, 1, 8))
                }));
            }
            let left = if dark { 400 * MS } else { SEC } - (w.now - from) % SEC;
            let done = w.run_finely(left, |w| ids.iter().all(|&id| received(w, id)));
            fault.into_iter().for_each(|f| w.end_fault(f));
            if done {
                break;
            }
        }
    };
    for seed in 0..8 {
        let mut w = strangers(story, seed);
        // somewhere in the darkness
        let begun = w.now;
        meet(&mut w, begun - seed * 50 * MS);
        let late = (w.now - begun) / MS;
        assert!(late <= 1_000, "evidence: two processes met after {late} ms (seed {seed})");
        w.heal_and_finish();
    }
}

/// Processes on two rails whose kernels know nothing of each other.
fn strangers(story: &Story, seed: u64) -> World {
    let mut w = story.world(Config::quiet(seed, 2));
    w.nets.iter_mut().for_each(Net::forget_neighbours);
    w.run_for(SEC);
    w
}
