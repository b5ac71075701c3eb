//! How many threads of this process sleep, or are going to. Owns: their number, and the order in which it is read.
//!
//! The flags of the connections are cleared under the lock of their table, by a number that is read there. A number
//! that was read before would be old: the last sleeper, waking up, would clear the flags that another thread sets
//! meanwhile to sleep, and that thread would miss its bell. `tests/models.rs` tries every order of the threads.

use crate::sync::{AtomicU32, Ordering, fence};

#[derive(Default)]
pub(crate) struct Sleepers(AtomicU32);

impl Sleepers {
    /// A thread is going to sleep. Before it takes the lock of the table.
    pub fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // See `arm`.
        fence(Ordering::SeqCst);
    }

    /// It is awake again. Before it takes the lock of the table.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether any thread sleeps. To clear a connection's flags by it, read it under the lock of the table.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// A thread that is awake has just written that it waits for something. If a thread sleeps, `set_flag` sets the
    /// flag for which the other side rings; `lock` takes the lock of the table, under which another thread may clear
    /// it. Returns true if the caller must wake the sleeper: what is waited for may have come before the other side
    /// could see the flag, or the lock was not to be had.
    pub fn arm<L>(
        &self,
        lock: impl FnOnce() -> Option<L>,
        set_flag: impl FnOnce(),
        has_come: impl FnOnce() -> bool,
    ) -> bool {
        // Either a thread that goes to sleep sees what was written, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if !self.any() {
            return false;
        }
        let Some(_table) = lock() else { return true };
        set_flag();
        // Either the other side sees the flag, or this sees what it did.
        fence(Ordering::SeqCst);
        has_come()
    }
}
