//! A shared receive queue: receives that any lane of it may use, so that an idle peer costs little memory. Owns: the queue, its
//! slots, which are registered in blocks, and how many receives are posted for each lane.
//!
//! A lane has [`Shape::start`] credits at first, and slots to send as many. What more is registered belongs to the lanes
//! that are busy: it is enough for [`BUSY`] of them, and all together get no more. A lane that gets nothing may have one recalled
//! that has more than at first ([`Pool::grow`]).
//!
//! **Invariant**: at least as many receives are posted as the lanes may use together, so no message meets an empty queue. Each
//! completion counts for the lane that received it ([`Pool::taken`]). A lane that uses more than was posted for it breaks its credits
//! and is ended; until then it uses receives of others, which are posted again when its completions are handled.
//!
//! **Slots of a lane that ended**: the adapter may have taken some for it without a report. Which is not known, and no adapter
//! must say it (IBV_EVENT_QP_LAST_WQE_REACHED comes on some, and not on Linux's soft-RoCE 6.1). When its queue pair is
//! destroyed nothing is written into them any more; they count as unsure ([`Pool::leave`]) and are not used again, and each new lane
//! brings receives of its own. A pool with too many of them takes no new lanes ([`Pool::is_open`]), nor does one whose queue is
//! broken. It goes with its last lane, and all of its memory with it.
//!
//! Nothing here waits for a peer, and no lock is held over a system call.

use crate::abi::*;
use crate::adapter::{Adapter, Slots, done, made};
use crate::lane::{SPARE, Shape};
use crate::posting::{AT_ONCE, Receives};
use crate::work::{LaneNumber, RECEIVE, SHARED};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Lanes of a queue, at most.
const LANES_MAX: usize = 128;
/// Lanes that may have all that their shape allows at the same time. When more are busy they share the link as well, and
/// each needs less.
const BUSY: usize = 8;
/// Slots of which it is not known whether they are posted, until no more lanes are taken.
const UNSURE_MAX: usize = 256;
/// Receives of a queue beyond those of its lanes: unsure ones, and those that lanes which were busy have given back.
pub const SURPLUS_MAX: usize = 640;
/// Receives that a queue has room for. Those of [`LANES_MAX`] lanes, of the busy ones among them and the unsure ones are fewer.
const RECEIVES_MAX: u32 = 2048;

/// Where a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Free,
    Posted,
    With(LaneNumber),
}

#[derive(Default)]
struct Member {
    /// Receives that are posted for it. Below 0: it has used those of others.
    posted: isize,
    /// Slots that it has beyond those that each lane has, also those that are posted.
    more: usize,
    /// It is in the list of holders.
    holds: bool,
    /// It has returned credits since the list came to it.
    active: bool,
}

#[derive(Default)]
struct State {
    at: Vec<At>,
    free: Vec<usize>,
    lanes: FxHashMap<LaneNumber, Member>,
    /// Posted, for no lane: they were given back.
    surplus: usize,
    /// Slots that lanes have beyond those that each has.
    more: usize,
    unsure: usize,
    /// The adapter has reported an error of the queue.
    failed: bool,
    /// Receives that lanes which are over have used of others, and that could not be posted yet.
    missing: usize,
    /// Lanes with more credits than at first, in the order in which they are looked at for some to give back.
    holders: VecDeque<LaneNumber>,
}

/// See the module.
pub struct Pool {
    /// By which completions name it.
    number: u32,
    adapter: Arc<Adapter>,
    shape: &'static Shape,
    srq: *mut ibv_srq,
    /// Registered one after the other.
    blocks: Vec<OnceLock<Slots>>,
    state: Mutex<State>,
}

// SAFETY: libibverbs allows every call from any thread; a slot is used by the lane that has it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// What a lane got.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// Receives that are posted already.
    pub posted: usize,
    /// Slots that are to be posted.
    pub slots: Vec<usize>,
    /// Got nothing: this one should give back.
    pub recall: Option<LaneNumber>,
}

impl Pool {
    /// # Errors
    /// The adapter has no shared receive queues, or no more.
    pub fn new(number: u32, adapter: &Arc<Adapter>, shape: &'static Shape) -> io::Result<Arc<Pool>> {
        let attr = ibv_srq_attr { max_wr: RECEIVES_MAX, max_sge: 1, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives.
        let srq = made(unsafe { (adapter.library.ibv_create_srq)(adapter.domain, &raw mut attributes) })?;
        let slots_max = LANES_MAX * base(shape) + BUSY * extra(shape) + UNSURE_MAX + extra(shape);
        let blocks = (0..slots_max.div_ceil(block_slots(shape)) + 1).map(|_| OnceLock::new()).collect();
        Ok(Arc::new(Pool { number, adapter: adapter.clone(), shape, srq, blocks, state: Mutex::default() }))
    }

    /// For the making of queue pairs.
    pub fn queue(&self) -> *mut ibv_srq {
        self.srq
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it takes another lane.
    pub fn is_open(&self) -> bool {
        let state = self.state.lock();
        let has_room = state.free.len() >= base(self.shape)
            || state.at.len() < self.blocks.len() * block_slots(self.shape);
        !state.failed && state.lanes.len() < LANES_MAX && state.unsure < UNSURE_MAX && has_room
    }

    /// The queue is broken: it takes no more lanes, so the next one gets another queue.
    pub fn close(&self) {
        self.state.lock().failed = true;
    }

    /// A lane joins: its receives are posted. Returns the slots that it sends from.
    ///
    /// # Errors
    /// Not enough memory may be locked, for instance.
    pub fn join(&self, lane: LaneNumber) -> io::Result<Vec<usize>> {
        let each = self.shape.start() + SPARE;
        let mut state = self.with_room()?;
        state.lanes.insert(lane, Member::default());
        let sends = take(&mut state, lane, each);
        let mut receives = take(&mut state, lane, each);
        assert!(sends.len() == each && receives.len() == each, "there is room");
        let posted = self.post_from(&mut state, lane, &mut receives);
        drop(state);
        match posted {
            Ok(()) => Ok(sends),
            Err(why) => {
                self.leave(lane);
                Err(why)
            }
        }
    }

    /// The state, with what one more lane needs: what is missing is registered. Called by one thread only, but lanes that are busy take
    /// slots meanwhile, so the slots are to be taken before the state is let go.
    fn with_room(&self) -> io::Result<MutexGuard<'_, State>> {
        loop {
            let state = self.state.lock();
            let lanes = state.lanes.len() + 1;
            let wanted = lanes * base(self.shape) + lanes.min(BUSY) * extra(self.shape) + state.unsure;
            if state.at.len() >= wanted && state.free.len() >= base(self.shape) {
                return Ok(state);
            }
            let block = state.at.len() / block_slots(self.shape);
            drop(state);
            let cell = self.blocks.get(block).ok_or(io::ErrorKind::QuotaExceeded)?;
            let slots = Slots::new(&self.adapter, block_slots(self.shape), self.shape.message_bytes())?;
            assert!(cell.set(slots).is_ok(), "one thread only");
            let mut state = self.state.lock();
            let first = state.at.len();
            state.at.resize(first + block_slots(self.shape), At::Free);
            // the first of them is used first
            state.free.splice(0..0, (first..first + block_slots(self.shape)).rev());
        }
    }

    /// A lane is over, and its queue pair destroyed.
    pub fn leave(&self, lane: LaneNumber) {
        let mut state = self.state.lock();
        let Some(Member { posted, more, .. }) = state.lanes.remove(&lane) else { return };
        state.more -= more;
        state.holders.retain(|n| *n != lane);
        for slot in 0..state.at.len() {
            if state.at[slot] == At::With(lane) {
                state.at[slot] = At::Free;
                state.free.push(slot);
            }
        }
        state.unsure += usize::try_from(posted).unwrap_or(0);
        // It has used receives of others.
        state.missing += usize::try_from(-posted).unwrap_or(0);
        self.post_missing(&mut state);
    }

    /// Posts what lanes that are over have used of others, as far as there are slots and the adapter takes them. The rest is posted
    /// when slots come back.
    fn post_missing(&self, state: &mut State) {
        if state.missing == 0 {
            return;
        }
        let left = state.free.len().saturating_sub(state.missing);
        let mut slots = state.free.split_off(left);
        let before = slots.len();
        // An adapter that takes no receive reports that to all lanes.
        let _ = self.post_to_queue(state, &mut slots);
        state.missing -= before - slots.len();
        state.free.append(&mut slots);
    }

    /// A completion of a receive. `None`: of a lane that is not known any more.
    pub fn taken(&self, slot: usize, lane: Option<LaneNumber>) {
        let mut state = self.state.lock();
        // What an adapter reports that was not posted is not believed.
        if state.at.get(slot) != Some(&At::Posted) {
            return;
        }
        match lane.filter(|lane| state.lanes.contains_key(lane)) {
            Some(lane) => {
                state.at[slot] = At::With(lane);
                state.lanes.get_mut(&lane).expect("it is there").posted -= 1;
            }
            None => {
                state.at[slot] = At::Free;
                state.free.push(slot);
                state.unsure = state.unsure.saturating_sub(1);
            }
        }
    }

    /// Posts receives of slots that the lane has, and takes those that were posted off the list.
    ///
    /// # Errors
    /// The adapter has not taken all.
    pub fn post(&self, lane: LaneNumber, slots: &mut Vec<usize>) -> io::Result<()> {
        self.post_from(&mut self.state.lock(), lane, slots)
    }

    fn post_from(&self, state: &mut State, lane: LaneNumber, slots: &mut Vec<usize>) -> io::Result<()> {
        let before = slots.len();
        let result = self.post_to_queue(state, slots);
        if let Some(member) = state.lanes.get_mut(&lane) {
            member.posted += (before - slots.len()) as isize;
        }
        result
    }

    fn post_to_queue(&self, state: &mut State, slots: &mut Vec<usize>) -> io::Result<()> {
        let name = u64::from(self.number) << 32 | RECEIVE | SHARED;
        while !slots.is_empty() {
            let mut chain = Receives::new();
            for slot in slots.iter().take(AT_ONCE) {
                chain.add(name | *slot as u64, self.element(*slot, self.shape.message_bytes()));
            }
            // SAFETY: the queue lives, and the slots as long as it.
            let (posted, result) = unsafe { chain.post_to_shared(self.srq) };
            // before the state is let go: no completion is looked at earlier
            for slot in slots.drain(..posted) {
                state.at[slot] = At::Posted;
            }
            result?;
        }
        Ok(())
    }

    /// A busy lane gets up to so many receives more. Where there are none, another should give some back.
    pub fn grow(&self, lane: LaneNumber, most: usize) -> Grown {
        let mut state = self.state.lock();
        let posted = most.min(state.surplus);
        state.surplus -= posted;
        let slots = self.take_more(&mut state, lane, most - posted);
        let member = state.lanes.get_mut(&lane).expect("it has joined");
        member.posted += posted as isize;
        member.more += posted;
        state.more += posted;
        let mut grown = Grown { posted, slots, recall: None };
        if posted + grown.slots.len() == 0 {
            grown.recall = state.idle_holder(lane);
        }
        grown
    }

    /// The lane has more credits than at first, and returns some that were used. When it stops to do so it may be told to give
    /// some back.
    pub fn hold(&self, lane: LaneNumber) {
        let mut state = self.state.lock();
        let member = state.lanes.get_mut(&lane).expect("it has joined");
        member.active = true;
        if !std::mem::replace(&mut member.holds, true) {
            state.holders.push_back(lane);
        }
    }

    /// A lane that was to give back could not be told so, or has not given all: it is named again later, if it is not active until then.
    pub fn is_idle(&self, lane: LaneNumber) {
        let mut state = self.state.lock();
        let Some(member) = state.lanes.get_mut(&lane) else { return };
        if !std::mem::replace(&mut member.holds, true) {
            state.holders.push_back(lane);
        }
    }

    /// The peer of a lane has given back so many of its credits.
    pub fn shrink(&self, lane: LaneNumber, credits: usize) {
        let mut state = self.state.lock();
        let member = state.lanes.get_mut(&lane).expect("it has joined");
        member.posted -= credits as isize;
        member.more -= credits;
        state.more -= credits;
        state.surplus += credits;
    }

    /// Up to so many slots for a lane, to send from.
    pub fn take(&self, lane: LaneNumber, most: usize) -> Vec<usize> {
        self.take_more(&mut self.state.lock(), lane, most)
    }

    /// The same. All lanes together get no more than belongs to those that are busy: the others are for lanes that will join.
    fn take_more(&self, state: &mut State, lane: LaneNumber, most: usize) -> Vec<usize> {
        let left = (BUSY * extra(self.shape)).saturating_sub(state.more + state.surplus);
        let slots = take(state, lane, most.min(left));
        state.lanes.get_mut(&lane).expect("it has joined").more += slots.len();
        state.more += slots.len();
        slots
    }

    /// A lane gives slots back that it has taken.
    pub fn give_back(&self, lane: LaneNumber, slots: impl Iterator<Item = usize>) {
        let mut state = self.state.lock();
        for slot in slots {
            state.lanes.get_mut(&lane).expect("it has joined").more -= 1;
            state.more -= 1;
            state.at[slot] = At::Free;
            state.free.push(slot);
        }
        self.post_missing(&mut state);
    }

    fn block(&self, slot: usize) -> (&Slots, usize) {
        let each = block_slots(self.shape);
        (self.blocks[slot / each].get().expect("it is registered"), slot % each)
    }

    /// The bytes of a slot.
    pub fn slot(&self, slot: usize) -> &[u8] {
        let (block, slot) = self.block(slot);
        block.slot(slot)
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// The caller's lane has the slot, and nothing else uses its bytes meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot_mut(&self, slot: usize) -> &mut [u8] {
        let (block, slot) = self.block(slot);
        // SAFETY: the caller's promise.
        unsafe { block.slot_of_owner(slot) }
    }

    /// The first bytes of a slot, for the adapter.
    pub fn element(&self, slot: usize, bytes: usize) -> ibv_sge {
        let (block, slot) = self.block(slot);
        block.element(slot, bytes)
    }

    /// Receives that are posted for all lanes, those that may be, and slots that are free.
    #[cfg(test)]
    pub fn counts(&self) -> (isize, usize, usize) {
        let state = self.state.lock();
        let posted = state.at.iter().filter(|at| **at == At::Posted).count();
        (
            state.lanes.values().map(|m| m.posted).sum::<isize>() + state.surplus as isize,
            posted,
            state.free.len(),
        )
    }
}

impl State {
    /// A holder that is not active, if the next one is not; it is a holder no more. Another than this lane.
    fn idle_holder(&mut self, but: LaneNumber) -> Option<LaneNumber> {
        let at = self.holders.iter().position(|n| *n != but)?;
        let holder = self.holders.remove(at)?;
        let member = self.lanes.get_mut(&holder).expect("those that leave are holders no more");
        if std::mem::take(&mut member.active) {
            self.holders.push_back(holder);
            return None;
        }
        member.holds = false;
        Some(holder)
    }
}

fn take(state: &mut State, lane: LaneNumber, most: usize) -> Vec<usize> {
    let left = state.free.len().saturating_sub(most);
    let slots = state.free.split_off(left);
    slots.iter().for_each(|slot| state.at[*slot] = At::With(lane));
    slots
}

/// Slots of each lane, and how many more one has that is busy.
fn base(shape: &Shape) -> usize {
    2 * (shape.start() + SPARE)
}

fn extra(shape: &Shape) -> usize {
    2 * (shape.messages() - shape.start())
}

/// Slots that are registered together: what the first lane needs.
fn block_slots(shape: &Shape) -> usize {
    base(shape) + extra(shape)
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        if done(unsafe { (self.adapter.library.ibv_destroy_srq)(self.srq) }).is_err() {
            // The adapter may write into what was posted: it stays until the process ends.
            std::mem::take(&mut self.blocks).into_iter().for_each(std::mem::forget);
        }
    }
}

/// The slots of a lane in a pool. When it is dropped the queue pair is destroyed, or has never been connected.
pub struct Share {
    pub pool: Arc<Pool>,
    lane: LaneNumber,
}

impl Share {
    /// A lane joins; also the slots that it sends from.
    ///
    /// # Errors
    /// As [`Pool::join`].
    pub fn new(pool: &Arc<Pool>, lane: LaneNumber) -> io::Result<(Share, Vec<usize>)> {
        let slots = pool.join(lane)?;
        Ok((Share { pool: pool.clone(), lane }, slots))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.leave(self.lane);
    }
}

#[cfg(test)]
mod tests;
