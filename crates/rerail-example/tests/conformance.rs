//! The example meets the contract: both sides in one process, with an adapter each.

use rerail_rail::{Rails, conformance_tests};

fn neighbours() -> (Rails, Rails) {
    (rerail_example::attach(2).unwrap(), rerail_example::attach(2).unwrap())
}

conformance_tests!(neighbours);
