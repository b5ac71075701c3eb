//! A flag that shows that a queue may have entries. Owns: the flag alone; the queue and its lock belong to the user of
//! the flag.
//!
//! A producer raises the flag while it holds the queue's lock. A consumer lowers it before it takes the lock and takes
//! everything out. So the flag of an empty queue may be up, and the flag of a queue with entries is down only while a
//! consumer empties it. (`events` lowers its flag for verdicts under the lock instead, when all of them are in the
//! file.) `tests/models.rs` tries every order of two threads.

use crate::sync::{AtomicBool, Ordering};

pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Something is in the queue. Under the queue's lock.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether there may be something.
    #[inline(always)]
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Everything will be taken out. Before the queue's lock is taken.
    pub fn lower(&self) {
        self.0.store(false, Ordering::Release);
    }
}
