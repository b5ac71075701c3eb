//! Engines in which a remedy is switched off.

use rerail_core::Remedies;

/// How to get a simulator in which bugs can be planted.
pub const HOW: &str = "build it with `--features planted-bugs` to plant bugs";

/// All remedies except the one named. Panics where none can be switched off.
pub fn without(name: &str) -> Remedies {
    Remedies::without(name).unwrap_or_else(|| panic!("simulator: {HOW}"))
}
