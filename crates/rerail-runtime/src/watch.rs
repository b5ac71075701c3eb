//! How the service thread and those who sleep on a descriptor find each other. Owns: who of them watches the network.
//!
//! A sleeper says that it is armed and then looks whether the thread watches; the thread ends its watch and then looks whether
//! somebody is armed. Each has a fence between the two, so one of them sees the other (Dekker's algorithm). The thread begins a watch under the engine's
//! lock, so that whoever brings a deadline forward afterwards sees until when it sleeps. `tests/models.rs` tries every order.

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

    /// Somebody is going to sleep outside, after `moves` pieces of progress. Returns whether the service thread watches; if it does
    /// not, it must be woken.
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

    /// Something is due at `due` (ns): whether the service thread sleeps longer than that and must be woken. Whoever is told so wakes
    /// it; it is told once.
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
