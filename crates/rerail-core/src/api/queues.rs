//! Completion queues of one process.
//!
//! Owns: the queues by their numbers, and the entries that were not read. A number is never used again: the place of a closed queue stays
//! empty, and what is pushed into it is dropped.
//!
//! Invariant 5 is kept by the code that pushes: an entry is pushed only when nothing will touch the operation's memory again.

use crate::api::completion::Completion;
use crate::rest::fit;
use crate::types::CqId;
use std::collections::VecDeque;

/// Entries for which a new queue has room at once, at most.
const ROOM: usize = 4096;

/// The completion queues of an engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues(Vec<Option<Queue>>);

#[derive(Debug, Clone)]
enum Queue {
    /// The application reads it.
    Read {
        entries: VecDeque<Completion>,
        /// Entries from which on it counts as full.
        size: usize,
    },
    /// Nothing reads it, and nothing is kept.
    Sink,
}

impl Queues {
    /// Makes a queue; `size` bounds what multi-receives may put into it, not the completions of single operations.
    pub fn open(&mut self, size: usize) -> CqId {
        self.add(Queue::Read { entries: VecDeque::with_capacity(size.min(ROOM)), size: size.max(1) })
    }

    /// Makes a queue that drops what is pushed into it.
    pub fn open_sink(&mut self) -> CqId {
        self.add(Queue::Sink)
    }

    fn add(&mut self, q: Queue) -> CqId {
        let id = CqId(u32::try_from(self.0.len()).expect("fewer than 2^32 queues in the life of a process"));
        self.0.push(Some(q));
        id
    }

    /// Forgets a queue and what is in it.
    pub fn close(&mut self, cq: CqId) {
        if let Some(place) = self.0.get_mut(cq.0 as usize) {
            *place = None;
        }
    }

    /// Puts an entry in.
    #[inline]
    pub fn push(&mut self, cq: CqId, c: Completion) {
        if let Some(Some(Queue::Read { entries, .. })) = self.0.get_mut(cq.0 as usize) {
            entries.push_back(c);
        }
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn pop(&mut self, cq: CqId) -> Option<Completion> {
        match self.0.get_mut(cq.0 as usize)? {
            Some(Queue::Read { entries, .. }) => entries.pop_front(),
            Some(Queue::Sink) | None => None,
        }
    }

    #[inline]
    fn entries(&self, cq: CqId) -> Option<&VecDeque<Completion>> {
        match self.0.get(cq.0 as usize)? {
            Some(Queue::Read { entries, .. }) => Some(entries),
            Some(Queue::Sink) | None => None,
        }
    }

    /// The oldest entry, which stays.
    #[inline]
    pub fn head(&self, cq: CqId) -> Option<&Completion> {
        self.entries(cq)?.front()
    }

    /// Entries that were not read.
    #[inline]
    pub fn len(&self, cq: CqId) -> usize {
        self.entries(cq).map_or(0, VecDeque::len)
    }

    /// Whether multi-receives may go on producing entries (hazard H15: when a queue is full matching stops, acknowledging never does). A
    /// sink and a closed queue take everything.
    #[inline]
    pub fn has_room(&self, cq: CqId) -> bool {
        match self.0.get(cq.0 as usize) {
            Some(Some(Queue::Read { entries, size })) => entries.len() < *size,
            Some(Some(Queue::Sink) | None) | None => true,
        }
    }

    /// Gives back most of the memory of queues that are nearly empty.
    pub fn tidy(&mut self) {
        for q in self.0.iter_mut().flatten() {
            if let Queue::Read { entries, .. } = q {
                fit(entries);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::completion::CompletionKind;
    use crate::types::{EpId, Protocol};

    fn entry(context: usize) -> Completion {
        Completion::new(CompletionKind::Recv, Protocol::Msg, EpId(0), context)
    }

    #[test]
    fn a_sink_keeps_nothing_and_is_never_full() {
        let mut queues = Queues::default();
        let (read, sink) = (queues.open(4), queues.open_sink());
        for i in 0..100 {
            queues.push(read, entry(i));
            queues.push(sink, entry(i));
        }
        assert_eq!((queues.len(read), queues.len(sink)), (100, 0));
        assert_eq!((queues.has_room(read), queues.has_room(sink)), (false, true));
        assert!(queues.pop(sink).is_none());
    }

    #[test]
    fn a_queue_is_full_at_its_size_and_has_room_when_it_is_read() {
        let mut queues = Queues::default();
        let cq = queues.open(2);
        queues.push(cq, entry(1));
        assert!(queues.has_room(cq));
        queues.push(cq, entry(2));
        assert!(!queues.has_room(cq), "as many as its size");
        assert_eq!(queues.head(cq).map(|c| c.context), Some(1));
        assert_eq!(queues.pop(cq).map(|c| c.context), Some(1), "the oldest first");
        assert!(queues.has_room(cq));
    }

    #[test]
    fn the_number_of_a_closed_queue_is_not_used_again() {
        let mut queues = Queues::default();
        let (first, other) = (queues.open(1), queues.open(1));
        queues.push(first, entry(1));
        queues.close(first);
        queues.push(first, entry(2));
        assert_eq!((queues.len(first), queues.has_room(first)), (0, true));
        assert!(![first, other].contains(&queues.open(1)));
    }
}
