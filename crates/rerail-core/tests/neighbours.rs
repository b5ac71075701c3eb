//! How long the kernel's ARP/ND entry for a peer that does not answer is kept alive.

mod company;

use company::Company;
use rerail_core::Options;
use std::time::Duration;

/// When process 0 had its neighbour kept on rail 0 in the next `seconds`, in milliseconds from now.
fn kept(c: &mut Company, seconds: u64) -> Vec<u128> {
    c.kept.clear();
    let from = c.now;
    c.pass(Duration::from_secs(seconds));
    let ours = c.kept.iter().filter(|k| k.from == 0 && k.rail == 0);
    ours.map(|k| k.at.since(from).as_millis()).collect()
}

/// The times between them.
fn gaps(kept: &[u128]) -> Vec<u128> {
    kept.windows(2).map(|w| w[1] - w[0]).collect()
}

#[test]
fn neighbours_are_kept_for_ten_minutes_after_the_last_answer() {
    let mut c = Company::new(1, |_| Options::default());
    let well = kept(&mut c, 10);
    assert!((5..=11).contains(&well.len()), "once a second at most while all is well: {well:?}");
    c.dark.extend([(0, 0), (0, 1)]);
    let dark = kept(&mut c, 700);
    assert!(dark[0] < 1_200, "the first after {} ms", dark[0]);
    assert!(gaps(&dark).iter().all(|g| (1_000..3_000).contains(g)), "{:?}", gaps(&dark));
    let last = dark[dark.len() - 1];
    assert!(
        (590_000..602_000).contains(&last),
        "then the kernel finds out by itself; the last was after {last} ms"
    );
    c.dark.clear();
    let again = kept(&mut c, 10);
    assert!(again.len() >= 5, "{again:?}");
}

#[test]
fn so_are_those_on_a_rail_out_of_service() {
    let mut c = Company::new(1, |_| Options::default());
    c.dark.push((0, 0));
    c.send(1);
    let dark = kept(&mut c, 60);
    assert!(!c.engines[0].paths()[0].health.connected());
    assert!(gaps(&dark).iter().all(|g| *g < 3_000), "{:?}", gaps(&dark));
    assert!(dark[dark.len() - 1] > 57_000, "the last after {:?} ms", dark.last());
}
