//! `fi_cq_signal`: waking whoever waits at a queue although nothing has come. Owns: the word between the two, and in which order it and
//! the bell are touched.
//!
//! The one raises the word and then rings; the other silences the bell, looks at the word and then sleeps. So a signal that comes in
//! between is either seen or heard, and one that comes before anybody waits is there for the next. `tests/models.rs` tries every order.

use crate::sync::{AtomicBool, Ordering};

/// Whether somebody has signalled, and nobody has taken it.
#[derive(Default)]
pub struct Signal(AtomicBool);

impl Signal {
    /// Signals; `ring` rings the bell of the waiting.
    pub fn raise(&self, ring: impl FnOnce()) {
        // Exchanged and not stored: loom does not order a store against exchanges of other threads as processors do.
        self.0.swap(true, Ordering::AcqRel);
        ring();
    }

    /// Takes the signal, if there is one: it wakes one waiting call, once.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    /// Whether there is one. For what is asked between silencing the bell and sleeping.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
