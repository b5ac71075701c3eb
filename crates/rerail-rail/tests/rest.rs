//! The order in which ports give out what arrived together.

use rerail_rail::rest::Rest;
use rerail_rail::{Arrived, Condition, Locator, RailId};

fn one(bytes: &[u8]) -> (Arrived, &[u8]) {
    let from = Locator::ip([10, 0, 0, 1].into(), 7);
    (Arrived { rail: RailId(0), from, len: bytes.len(), condition: Condition::Whole }, bytes)
}

#[test]
fn what_waits_comes_in_its_order_and_what_is_too_long_not_at_all() {
    let (rest, mut buf) = (Rest::default(), [0; 4]);
    assert_eq!(rest.take(&mut buf), None);
    rest.append([one(b"c"), one(b"too long"), one(b"d")]);
    rest.put_first([one(b"a"), one(b"b")].into_iter());
    let mut all = Vec::new();
    while let Some(a) = rest.take(&mut buf) {
        all.extend_from_slice(&buf[..a.len]);
    }
    assert_eq!(all, b"abcd");
    assert_eq!(rest.take(&mut buf), None);
}
