//! How many threads of this process sleep, or are going to. Owns: their number, and the order in which it is read.
//!
//! The connections are told under the lock of their table, and what they are told is read there. A number that was read before would be
//! old: a thread that wakes up as the last sleeper would take back what one that goes to sleep meanwhile has said, and that one would miss its
//! bell. `tests/models.rs` tries every order of the threads.

use crate::sync::{AtomicU32, Ordering};

#[derive(Default)]
pub(crate) struct Sleepers(AtomicU32);

impl Sleepers {
    /// A thread is going to sleep. Before it takes the lock of the table.
    pub fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// It is awake again. Before it takes the lock of the table.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether any thread sleeps. What is told to a connection is read under the lock of the table.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}
