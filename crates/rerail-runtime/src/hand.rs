//! What a forking thread has in hand while it forks. Owns: the order of taking, noting, giving back and closing.
//!
//! A child may close a descriptor only if it was one of its parent's sockets at the moment of the fork. So the parent
//! notes the descriptors under the lock that guards them, and holds the lock until the fork is over. When a lock could
//! not be taken, its descriptors are left alone. `tests/models.rs` tries every order with a thread that changes the
//! descriptors.

use std::os::fd::RawFd;

/// Something with descriptors, and a lock over them.
pub(crate) trait Holding {
    /// Takes the lock, for this thread and beyond this call; `false`: it cannot be had soon.
    fn take(&self) -> bool;
    /// Gives back what [`Holding::take`] took, on the same thread.
    fn give_back(&self);
    /// Appends the descriptors. With the lock in hand.
    fn note(&self, out: &mut Vec<RawFd>);
}

/// From before a fork until after it.
pub(crate) struct Hand<T> {
    held: Vec<T>,
    /// To be closed in the child.
    descriptors: Vec<RawFd>,
}

impl<T: Holding> Hand<T> {
    /// Before the fork.
    pub fn take(all: impl Iterator<Item = T>) -> Self {
        let mut hand = Self { held: Vec::new(), descriptors: Vec::new() };
        for one in all {
            if one.take() {
                one.note(&mut hand.descriptors);
                hand.held.push(one);
            }
        }
        hand
    }

    /// After it, in the parent.
    pub fn in_parent(self) {
        for one in self.held {
            one.give_back();
        }
    }

    /// After it, in the child: closes the noted descriptors. The child's copies in `held` must not be used or dropped
    /// any more.
    pub fn in_child(&self, close: impl FnMut(RawFd)) {
        self.descriptors.iter().copied().for_each(close);
    }
}
