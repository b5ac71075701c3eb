//! Which lane a completion of a shared receive queue belongs to: the adapter names the queue pair, and the lane is written into the name of the
//! work, as all other completions have it. Owns: the lanes over such queue pairs, and completions that were taken off a queue
//! before a queue pair was made or forgotten.
//!
//! An adapter uses the number of a queue pair again, and completions of the last one with it may still lie in the queue. So all
//! that lies there is taken off, for the old lane, before a number is forgotten and before it means another lane. It is handed
//! out first, so each lane's completions keep their order.

use crate::abi::ibv_wc;
use crate::shared::Pool;
use crate::work::{LaneNumber, RECEIVE, SHARED};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Completions that are taken off at once.
const AT_ONCE: usize = 32;

/// See the module.
#[derive(Default)]
pub struct Desk {
    /// By the number of the queue pair.
    lanes: FxHashMap<u32, (LaneNumber, Arc<Pool>)>,
    /// By their own numbers.
    pools: FxHashMap<u32, Weak<Pool>>,
    /// Taken off, and not handed out.
    early: VecDeque<ibv_wc>,
}

impl Desk {
    /// Hands out completions, those first that were taken off before. `poll` takes some off the queue, and returns how many.
    pub fn poll(&mut self, entries: &mut [ibv_wc], poll: impl FnOnce(&mut [ibv_wc]) -> usize) -> usize {
        let early = entries.len().min(self.early.len());
        entries.iter_mut().zip(self.early.drain(..early)).for_each(|(to, from)| *to = from);
        if early == entries.len() {
            return early;
        }
        let n = poll(&mut entries[early..]);
        entries[early..][..n].iter_mut().for_each(|entry| self.address(entry));
        early + n
    }

    fn take_all(&mut self, mut poll: impl FnMut(&mut [ibv_wc]) -> usize) {
        loop {
            let mut entries = [ibv_wc::default(); AT_ONCE];
            let n = poll(&mut entries);
            for mut entry in entries.into_iter().take(n) {
                self.address(&mut entry);
                self.early.push_back(entry);
            }
            if n < AT_ONCE {
                return;
            }
        }
    }

    /// Writes the lane into the name of what was received from a shared queue, and tells the queue.
    fn address(&self, entry: &mut ibv_wc) {
        if entry.wr_id & (RECEIVE | SHARED) != RECEIVE | SHARED {
            return;
        }
        let (slot, pool) = (entry.wr_id & (SHARED - 1), (entry.wr_id >> 32) as u32);
        match self.lanes.get(&entry.qp_num) {
            Some((lane, shared)) if shared.number() == pool => {
                shared.taken(slot as usize, Some(*lane));
                entry.wr_id = u64::from(*lane) << 32 | RECEIVE | slot;
            }
            _ => {
                let pool = self.pools.get(&pool).and_then(Weak::upgrade);
                pool.into_iter().for_each(|pool| pool.taken(slot as usize, None));
                entry.wr_id = u64::from(NO_LANE) << 32 | RECEIVE | slot;
            }
        }
    }

    /// A queue pair was made for a lane, and has received nothing.
    pub fn admit(
        &mut self,
        queue_pair: u32,
        (lane, pool): (LaneNumber, &Arc<Pool>),
        poll: impl FnMut(&mut [ibv_wc]) -> usize,
    ) {
        self.take_all(poll);
        self.pools.retain(|_, pool| pool.strong_count() > 0);
        self.pools.insert(pool.number(), Arc::downgrade(pool));
        self.lanes.insert(queue_pair, (lane, pool.clone()));
    }

    /// A queue pair of a lane is or will be destroyed: what it has reported until now is taken off.
    pub fn collect(&mut self, poll: impl FnMut(&mut [ibv_wc]) -> usize) {
        self.take_all(poll);
    }

    /// The queue pair of a lane was destroyed.
    pub fn dismiss(&mut self, queue_pair: u32, lane: LaneNumber, poll: impl FnMut(&mut [ibv_wc]) -> usize) {
        self.take_all(poll);
        if self.lanes.get(&queue_pair).is_some_and(|(of, _)| *of == lane) {
            self.lanes.remove(&queue_pair);
        }
    }
}

/// Those that peers open have the odd numbers behind it.
const NO_LANE: LaneNumber = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{self, Work, posted};
    use crate::lane::lane_of;

    /// What an adapter reports of a receive that it took from this pool for a queue pair.
    fn entry(pool: u32, slot: u64, qp_num: u32) -> ibv_wc {
        let wr_id = u64::from(pool) << 32 | RECEIVE | SHARED | slot;
        ibv_wc { wr_id, qp_num, ..ibv_wc::default() }
    }

    fn poll_of(queue: &mut Vec<ibv_wc>) -> impl FnMut(&mut [ibv_wc]) -> usize + '_ {
        |room| {
            let n = room.len().min(queue.len());
            room.iter_mut().zip(queue.drain(..n)).for_each(|(to, from)| *to = from);
            n
        }
    }

    /// Lanes and slots, as they are handed out.
    fn handed(desk: &mut Desk, queue: &mut Vec<ibv_wc>) -> Vec<(LaneNumber, u64)> {
        let mut entries = [ibv_wc::default(); 64];
        let n = desk.poll(&mut entries, poll_of(queue));
        entries[..n].iter().map(|e| (lane_of(e), e.wr_id & u64::from(u32::MAX) & !RECEIVE)).collect()
    }

    fn receives() -> Vec<u64> {
        posted().iter().map(|w| if let Work::Receive(n) = w { *n } else { panic!() }).collect()
    }

    #[test]
    fn a_number_that_is_used_again_means_the_lane_that_had_it_when_something_came() {
        let pool = fake::pool(7);
        posted();
        pool.join(2).unwrap();
        pool.join(6).unwrap();
        let slots = receives();
        let (mut desk, mut queue) = (Desk::default(), Vec::new());
        desk.admit(100, (2, &pool), poll_of(&mut queue));
        queue.extend((0..3).map(|i| entry(7, slots[i], 100)));
        assert_eq!(handed(&mut desk, &mut queue), [(2, slots[0]), (2, slots[1]), (2, slots[2])]);
        // the queue pair is destroyed beside something that it has received, and the next has its number
        queue.push(entry(7, slots[3], 100));
        desk.admit(100, (6, &pool), poll_of(&mut queue));
        desk.dismiss(100, 2, poll_of(&mut queue));
        queue.push(entry(7, slots[4], 100));
        let others = ibv_wc { wr_id: 9 << 32 | RECEIVE | 5, ..ibv_wc::default() };
        queue.push(others);
        assert_eq!(handed(&mut desk, &mut queue), [(2, slots[3]), (6, slots[4]), (9, 5)], "in order");
        desk.dismiss(100, 6, poll_of(&mut queue));
        // nothing has it now, nor a pool that is gone
        let free = pool.counts().2;
        queue.extend([entry(7, slots[5], 100), entry(8, 0, 100)]);
        assert_eq!(handed(&mut desk, &mut queue), [(NO_LANE, slots[5]), (NO_LANE, 0)]);
        assert_eq!(pool.counts().2, free + 1, "its slot is free");
    }

    #[test]
    fn what_was_taken_off_early_is_handed_out_first_and_as_many_as_there_is_room_for() {
        let pool = fake::pool(7);
        let (mut desk, mut queue) = (Desk::default(), Vec::new());
        let own = |slot: u64| ibv_wc { wr_id: 4 << 32 | RECEIVE | slot, ..ibv_wc::default() };
        queue.extend((0..100).map(own));
        desk.admit(100, (2, &pool), poll_of(&mut queue));
        assert_eq!(queue.len(), 0);
        queue.extend((100..130).map(own));
        let mut all = Vec::new();
        for expected in [64, 64, 2, 0] {
            let some = handed(&mut desk, &mut queue);
            assert_eq!(some.len(), expected);
            all.extend(some);
        }
        assert_eq!(all, (0..130).map(|slot| (4, slot)).collect::<Vec<_>>());
    }
}
