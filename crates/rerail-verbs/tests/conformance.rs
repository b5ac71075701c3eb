//! Rails over RoCE meet the contract. Needs a node with adapters, such as a guest of the lab; elsewhere it is skipped.

use rerail_rail::{Rails, conformance_tests};

fn two_sides() -> (Rails, Rails) {
    (rerail_verbs::attach().unwrap(), rerail_verbs::attach().unwrap())
}

/// Why there are no adapters here.
fn adapters() -> Result<(), rerail_verbs::VerbsError> {
    rerail_verbs::discover().map(|_| ())
}

conformance_tests!(two_sides, needs: adapters);
