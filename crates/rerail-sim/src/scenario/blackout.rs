//! Every rail is dark, and comes back.

use super::policy::{all_received, world};
use super::{Story, received};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{MS, Net, SEC};
use crate::world::{Config, World};
use rerail_core::Health;

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

/// A rail has flapped, is whole again and held down for it. Then the other one goes dark: the first is used at once.
pub fn held_down(story: &Story) {
    for seed in 0..6 {
        let mut w = world(story, seed, &[1_000; 2], &[]);
        let exchange = |w: &mut World, most: u64| {
            let from = w.now;
            w.recv(RecvSpec::class(1, 1, 1_000));
            w.send_soon(SendSpec::tagged(0, 1, 1, 1_000));
            w.run_finely(most, |w| w.oracle.pending_count() == 0).then(|| w.now - from)
        };
        let dark = |net| Fault::Dark { host: 0, net, inward: true, outward: true };
        let for_a_while = |w: &mut World, ms: u64| {
            let end = w.now + ms * MS;
            while w.now < end {
                exchange(w, SEC).expect("the other rail is whole");
                w.run_for(MS);
            }
        };
        let whole = |w: &World| w.paths(0).iter().all(|x| matches!(x.health, Health::Up | Health::Suspect));
        for n in 0..10 {
            let fault = w.begin(dark(0));
            while whole(&w) {
                for_a_while(&mut w, 5);
            }
            w.end_fault(fault);
            // the last time not until it is taken back
            let until = w.now + if n < 9 { 10 * SEC } else { 100 * MS };
            while !whole(&w) && w.now < until {
                for_a_while(&mut w, 5);
            }
        }
        assert!(!whole(&w), "simulator: the story did not come about: no rail is held down");
        let fault = w.begin(dark(1));
        let longest = (0..20).map(|_| exchange(&mut w, 5 * SEC).unwrap_or(5 * SEC)).max().unwrap_or(0);
        assert!(
            longest < 200 * MS,
            "live: a message waited {} ms although a rail was whole (seed {seed})",
            longest / MS
        );
        w.end_fault(fault);
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
