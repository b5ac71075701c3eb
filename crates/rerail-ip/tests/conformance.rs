//! The rail over IP meets the contract, over the loopback interface.

use rerail_rail::{Rails, conformance_tests};

fn two_rails_each() -> (Rails, Rails) {
    // The second process has other addresses, as on another host.
    (rerail_ip::attach_loopback(1..3).unwrap(), rerail_ip::attach_loopback(11..13).unwrap())
}

conformance_tests!(two_rails_each);
