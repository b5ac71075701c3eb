//! What idle peers hold: queues and tables that are empty keep room for what was once in them, and with thousands of peers that
//! is most of an engine's memory. A peer that was silent for long enough to be asked whether it is there gives it back, and on that occasion
//! the engine what bursts have left behind in its own queues.
//!
//! Invariant: nothing but memory changes; what rests behaves as what is new.

use crate::engine::Engine;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Duration;

/// Between two times of tidying up what belongs to no peer.
const TIDY: Duration = Duration::from_secs(1);
/// Room that the engine's own queues may keep.
const ROOM: usize = 32;

impl Engine {
    /// Gives back what a silent peer, its paths and their streams hold for nothing.
    pub(crate) fn rest(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        p.rest();
        for id in p.paths.iter().filter_map(|x| x.stream) {
            if let Some(s) = self.streams.get_mut(&id) {
                s.rest();
            }
        }
        self.tidy();
    }

    /// Gives back what is kept for nothing, and belongs to no peer: with thousands of them everything comes in bursts.
    fn tidy(&mut self) {
        let now = self.clock.now();
        if now.since(self.tidied_at) < TIDY {
            return;
        }
        self.tidied_at = now;
        fit(&mut self.outbox);
        fit(&mut self.actions);
        fit(&mut self.events);
        fit(&mut self.dirty);
        fit(&mut self.trains);
        fit(&mut self.writable);
        self.spare_buffers.tidy();
        self.scratch = Vec::new();
    }
}

/// Gives back most of the room of a queue that is nearly empty.
fn fit<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > ROOM && queue.len() < queue.capacity() / 8 {
        queue.shrink_to(ROOM);
    }
}

/// Gives back the memory of a queue if it is empty.
pub(crate) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > 0 {
        *queue = VecDeque::new();
    }
}

/// Gives back the memory of a table if it is empty.
pub(crate) fn give_back_map<K, V>(table: &mut FxHashMap<K, V>) {
    if table.is_empty() && table.capacity() > 0 {
        *table = FxHashMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_gives_its_memory_back_and_what_is_not_keeps_all() {
        let mut q: VecDeque<u32> = (0..100).collect();
        let mut t: FxHashMap<u32, u32> = (0..100).map(|i| (i, i)).collect();
        give_back(&mut q);
        give_back_map(&mut t);
        assert_eq!((q.len(), t.len()), (100, 100));
        q.clear();
        t.clear();
        give_back(&mut q);
        give_back_map(&mut t);
        assert_eq!((q.capacity(), t.capacity()), (0, 0));
    }
}
