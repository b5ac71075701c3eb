//! `fi_cq_signal`: wakes a call that waits at a queue although nothing has come. Owns: the flag between signaller and
//! waiter, and in which order it and the bell are accessed.
//!
//! The signaller raises the flag, then rings. The waiter silences the bell, checks the flag, then sleeps. So a signal
//! in between is seen in the flag or wakes the waiter, and a signal without a waiter stays for the next one.
//! `tests/models.rs` tries every order.

use crate::sync::{AtomicBool, Ordering};

/// Whether there is a signal that no call has taken.
#[derive(Default)]
pub struct Signal(AtomicBool);

impl Signal {
    /// Signals; `ring` rings the bell of the waiters.
    pub fn raise(&self, ring: impl FnOnce()) {
        // Exchanged and not stored: loom does not order a store against exchanges of other threads as processors do.
        self.0.swap(true, Ordering::AcqRel);
        ring();
    }

    /// Takes the signal, if there is one: it wakes one waiting call, once.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    /// Whether there is one. For the check between silencing the bell and sleeping.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
