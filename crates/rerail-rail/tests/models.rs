//! Every order in which two threads can pass through what ports keep between calls (`rest.rs`): the service thread and the application
//! both receive. The file itself is compiled here, with loom's atomics and lock.

mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, Ordering};
}
#[path = "../src/rest.rs"]
#[allow(dead_code)]
mod rest;

use loom::sync::Arc;
use loom::thread;
pub use rerail_rail::{Arrived, Condition, Locator, RailId};
use rest::Rest;

fn one(bytes: &[u8]) -> (Arrived, &[u8]) {
    let from = Locator::ip([10, 0, 0, 1].into(), 7);
    (Arrived { rail: RailId(0), from, len: bytes.len(), condition: Condition::Whole }, bytes)
}

/// What a thread finds in so many looks.
fn look(rest: &Rest, times: usize) -> Vec<u8> {
    let mut buf = [0; 4];
    (0..times).filter_map(|_| rest.take(&mut buf).map(|_| buf[0])).collect()
}

/// One thread puts datagrams there and looks itself, another looks meanwhile: each is found once, and none is left behind a lowered flag.
#[test]
fn what_waits_is_found_once_and_never_forgotten() {
    loom::model(|| {
        let rest = Arc::new(Rest::default());
        let other = {
            let rest = rest.clone();
            thread::spawn(move || look(&rest, 2))
        };
        rest.append([one(b"a")]);
        let mut all = look(&rest, 1);
        rest.append([one(b"b")]);
        all.extend(other.join().unwrap());
        // a later caller finds all that is left
        all.extend(look(&rest, 3));
        all.sort_unstable();
        assert_eq!(all, b"ab");
    });
}
