//! How the service thread and applications that sleep on a descriptor synchronise. Owns: which of them watches the
//! network.
//!
//! A sleeper stores that it is armed, then loads whether the thread watches. The thread ends its watch, then loads
//! whether a sleeper is armed. Each has a fence between the two, so one of them sees the other (Dekker's algorithm).
//! The thread begins a watch under the engine's lock, so a thread that brings a deadline forward afterwards sees until
//! when it sleeps. `tests/models.rs` tries every order.

use crate::sync::{AtomicU64, Ordering, fence};

pub(crate) struct Watch {
    /// Pieces of progress the application had made when a sleeper was armed last, plus one; 0: never.
    armed: AtomicU64,
    /// The service thread sleeps on the sockets, until then (ns); 0: it does not.
    watched: AtomicU64,
}

impl Watch {
    pub fn new() -> Self {
        Self { armed: AtomicU64::new(0), watched: AtomicU64::new(0) }
    }

    /// The service thread goes to sleep on the sockets until `end` (ns). Under the engine's lock.
    pub fn begin(&self, end: u64) {
        self.watched.store(end, Ordering::Release);
    }

    /// It sleeps no more, or is woken.
    pub fn end(&self) {
        self.watched.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The application is going to sleep outside, after `moves` pieces of progress. Returns whether the service thread
    /// watches; if it does not, it must be woken.
    #[must_use]
    pub fn arm(&self, moves: u64) -> bool {
        self.armed.store(moves.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        self.watched.load(Ordering::Acquire) != 0
    }

    /// Whether the application sleeps outside, and has made no progress since it began to.
    pub fn is_armed(&self, moves: u64) -> bool {
        let armed = self.armed.load(Ordering::Acquire);
        armed != 0 && armed == moves.wrapping_add(1)
    }

    /// Whether the service thread sleeps beyond `due` (ns). If so the caller must wake it; `true` is returned once for
    /// each watch.
    #[must_use]
    pub fn oversleeps(&self, due: impl FnOnce() -> Option<u64>) -> bool {
        let watched = self.watched.load(Ordering::Acquire);
        let late = watched != 0 && due().is_some_and(|due| due < watched);
        if late {
            self.end();
        }
        late
    }
}
