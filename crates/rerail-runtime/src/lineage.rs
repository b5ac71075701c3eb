//! Numbers for a process and its descendants (hazard H16). Owns: how threads that request it at the same time agree on
//! one.
//!
//! The word is zero at first, and in every child until the first request. A child inherits the count and continues it,
//! so no number occurs twice in one line of descent. `tests/models.rs` tries every order of the threads.

use crate::sync::{AtomicU32, Ordering};

/// The number in `word`, given now if it has none. Never zero.
pub(crate) fn number(word: &AtomicU32, count: &AtomicU32) -> u32 {
    match word.load(Ordering::Acquire) {
        0 => {
            // A number that loses the race is skipped.
            let fresh = count.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may have been quicker: its number holds for both.
            match word.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => fresh,
                Err(other) => other,
            }
        }
        n => n,
    }
}
