//! The rail over IP with the shortcut meets the contract: both sides on one host, so that everything goes through memory.

use rerail_rail::{Rails, conformance_tests};

fn neighbours() -> (Rails, Rails) {
    let side = || {
        let rails = rerail_ip::attach_loopback(1..3).unwrap();
        rerail_shm::over(rails, true).map_err(|(_, why)| why).unwrap()
    };
    (side(), side())
}

conformance_tests!(neighbours);
