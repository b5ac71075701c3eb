//! Hostile bytes: what is thrown at every parser, and at engines that talk to each other.
//!
//! Owns: the bodies of the fuzz targets, as plain functions of a byte string that panic when a promise is broken. The
//! coverage-guided fuzzer (`cargo xtask fuzz`, needs a nightly compiler) calls them, the tests of this crate replay the
//! seeds in `fuzz/seeds` through them with any compiler, and the program `rerail-hostile` replays one input.
//!
//! * [`parsers`]: one target for each parser. What is taken must come back the same when it is written again; what is
//!   refused is refused with an error, never with a panic.
//! * [`sequence`]: whole conversations. Two engines work, and a third party interferes: first without any secret
//!   ([`sequence::outsider`]), then with all of them ([`sequence::insider`], a peer that is broken or lies).
//! * [`nodes`]: a node of RWAPI between honest programs and nodes that send what they like.
//! * [`join`]: a launcher that answers what it likes.

#![warn(missing_docs)]

mod draw;
pub mod frames;
pub mod join;
mod net;
pub mod nodes;
pub mod parsers;
pub mod sequence;
pub mod tally;

/// A target: takes any bytes, and panics when a promise is broken.
pub type Target = fn(&[u8]);

/// Every target by name; `fuzz/fuzz_targets` has a program for each.
pub const TARGETS: &[(&str, Target)] = &[
    ("address", parsers::address),
    ("hello", parsers::hello),
    ("packet", parsers::packet),
    ("frame", parsers::frame),
    ("stream", parsers::stream),
    ("ack", parsers::ack),
    ("config", parsers::config),
    ("order", parsers::order),
    ("option", parsers::option),
    ("control", parsers::control),
    ("schedule", parsers::schedule),
    ("launch", parsers::launch),
    ("faults", parsers::faults),
    ("plan", parsers::plan),
    ("responder", parsers::responder),
    ("verbs", parsers::verbs),
    ("lane", parsers::lane),
    ("exchange", parsers::exchange),
    ("outsider", sequence::outsider),
    ("insider", sequence::insider),
    ("nodes", nodes::nodes),
    ("join", join::join),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|t| t.0 == name).map(|t| t.1)
}
