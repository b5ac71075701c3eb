//! Streams that cost much memory are opened only for peers with which something large is exchanged.

mod company;

use company::{Company, rail};
use rerail_core::{Options, RailDesc};
use std::collections::BTreeSet;
use std::time::Duration;

const PEERS: usize = 1_000;
/// Longer than what goes eagerly.
static LARGE: [u8; 200_000] = [3; 200_000];
/// Eager, and longer than a datagram.
static MEDIUM: [u8; 8_000] = [4; 8_000];

fn company(on_demand: bool) -> Company {
    let rails =
        |i| (0..2).map(move |r| RailDesc { places_max: 16, streams_on_demand: on_demand, ..rail(i, r) });
    Company::with_rails(PEERS, |_| Options::default(), |i| rails(i).collect())
}

/// The peers to or from which streams were opened.
fn with_streams(c: &Company) -> BTreeSet<usize> {
    c.opened.iter().map(|o| o.from.max(o.to)).collect()
}

#[test]
fn of_a_thousand_peers_those_with_large_messages_have_streams() {
    let mut c = company(true);
    assert!(c.engines[0].paths().iter().all(|p| p.health.connected()), "small messages connect all paths");
    assert_eq!(with_streams(&c), BTreeSet::new(), "and open no stream");
    for to in 1..=10 {
        c.send_large(to, &LARGE);
        c.send_large(10 + to, &MEDIUM);
    }
    c.lose_bulk();
    c.pass(Duration::from_millis(5));
    assert_eq!(with_streams(&c), (1..=20).collect(), "each side opens some, whatever the message");
    let rails =
        |to| c.opened.iter().filter(|o| o.from.max(o.to) == to).map(|o| o.rail).collect::<BTreeSet<_>>();
    assert!((1..=20).all(|to| rails(to).len() == 2), "over both rails");
    c.pass(Duration::from_millis(300));
    assert_eq!(with_streams(&c).len(), 20);
}

#[test]
fn other_rails_open_them_at_once() {
    let c = company(false);
    assert_eq!(with_streams(&c).len(), PEERS);
}
