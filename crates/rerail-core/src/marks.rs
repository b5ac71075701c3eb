//! A queue in which each member stands at most once: what has to be looked at, in the order in which that was found.
//!
//! Owns: the queue, and the marks of its members. A member keeps its own [`Mark`], which shows without a search whether
//! it is in the queue; only the queue changes it. Invariant: whatever is in the queue is marked, unless it was
//! forgotten meanwhile.

use crate::rest::fit;
use std::collections::VecDeque;

/// Whether a member of a [`Marks`] stands in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark(bool);

impl Mark {
    #[inline]
    pub fn is_set(self) -> bool {
        self.0
    }
}

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Marks<T> {
    queue: VecDeque<T>,
}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new() }
    }
}

impl<T: Copy> Marks<T> {
    /// `id` is to be looked at; its mark shows whether that is known.
    #[inline]
    pub fn add(&mut self, id: T, mark: &mut Mark) {
        if !mark.0 {
            mark.0 = true;
            self.queue.push_back(id);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next one, which stays in the queue until it is [`done`](Self::done) with.
    #[inline]
    pub fn first(&self) -> Option<T> {
        self.queue.front().copied()
    }

    /// The first one is done with; the mark is its own.
    #[inline]
    pub fn done(&mut self, mark: &mut Mark) {
        self.queue.pop_front();
        mark.0 = false;
    }

    /// The first one goes to the end: the others have their turn.
    pub fn turn(&mut self) {
        self.queue.rotate_left(1);
    }

    /// The first one is not there any more, nor is its mark.
    pub fn is_gone(&mut self) {
        self.queue.pop_front();
    }

    /// Gives back what a burst has left behind.
    pub fn tidy(&mut self) {
        fit(&mut self.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_stands_once_until_it_is_done_with() {
        let (mut q, mut marks) = (Marks::default(), [Mark::default(); 3]);
        for id in [2, 0, 2, 0] {
            q.add(id, &mut marks[id]);
        }
        assert_eq!(q.first(), Some(2));
        q.done(&mut marks[2]);
        q.add(2, &mut marks[2]);
        assert_eq!(q.first(), Some(0), "the next one, and not the one that came back");
        q.turn();
        assert_eq!(q.first(), Some(2));
        q.done(&mut marks[2]);
        q.done(&mut marks[0]);
        assert!(q.is_empty() && marks.iter().all(|m| !m.is_set()));
    }

    #[test]
    fn one_that_was_forgotten_is_passed_over() {
        let (mut q, mut marks) = (Marks::default(), [Mark::default(); 2]);
        q.add(0, &mut marks[0]);
        q.add(1, &mut marks[1]);
        q.is_gone();
        assert_eq!(q.first(), Some(1));
    }
}
