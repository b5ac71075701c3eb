//! Several lanes for each path: a fault of one of them leaves the others and the path alone.

use super::Story;
use super::policy::{all_received, rounds, world};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::{DarkRoutes, MS};
use crate::world::World;
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
