//! A flag that says that a queue has something. Owns: nothing but the flag; the queue and its lock belong to whoever has both.
//!
//! Whoever puts something in raises the flag while it holds the queue's lock; whoever takes everything out lowers it before it takes
//! the lock. So an empty queue may have its flag up, and a queue that has something never has it down, except for the
//! moment in which it is being emptied. `tests/models.rs` tries every order of two threads.

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
