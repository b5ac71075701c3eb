//! The reference: what must be true of a job of RWAPI programs, whatever breaks. Owns: every message and every write of the job, and what each
//! byte of every block must be.
//!
//! Each write owns its range of the target and of the source until its program has seen it end, and has bytes of its own. So every byte of a
//! block has one or two values that it may have: what was there before, and, while a write is under way, what the write brings. A failure begins
//! with the promise that was broken, as [`crate::run`] names them.

use super::Tally;
use crate::memory::{BufId, CANARY, Memory, SCRIBBLE, Use, all, fill_message, message_differs};
use crate::rng::{Rng, mix};
use rerail_rwapi::{Failure, Net, Sid, Small, WINDOW};
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, VecDeque};

/// A block, by its number in the reference.
pub type BlockId = usize;
/// A write, by its number in the reference.
pub type WriteId = usize;

/// Placing a range is tried so often.
const TRIES: usize = 6;

/// How far a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Other nodes may write it.
    Live,
    /// The program has given it back; writes may still read it.
    Freed,
    /// Nothing uses it.
    Unused,
}

struct Block {
    owner: usize,
    net: Net,
    buf: BufId,
    bytes: usize,
    life: Life,
    /// What each byte is that no write under way owns; from the time when it was freed on, what each byte was then.
    was: Vec<u8>,
    /// Ranges that belong to writes: from, bytes, the write, whether it writes here.
    busy: Vec<(usize, usize, WriteId, bool)>,
}

struct Write {
    from: usize,
    to: usize,
    source: (BlockId, usize),
    target: (BlockId, usize),
    bytes: usize,
    /// The target must refuse it.
    wrong: bool,
    sid: Sid,
    end: Option<Result<(), Failure>>,
}

/// What one node has sent another.
#[derive(Default)]
struct Pair {
    sent: u64,
    received: u64,
    /// Writes in the order in which they were begun, and how many of them were seen in place at the target.
    writes: Vec<WriteId>,
    verified: usize,
    /// For each message under way: the writes begun before it, and what it says.
    behind: VecDeque<(usize, Small)>,
    gone: bool,
}

/// What a node is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It takes part.
    Lives,
    /// It has arrived at the last barrier.
    Ends,
    /// It has left.
    Left,
    /// It was killed at this time.
    Died(u64),
}

/// See the module.
pub struct Reference {
    pub(super) tally: Tally,
    fates: Vec<Fate>,
    pairs: Vec<Pair>,
    blocks: Vec<Block>,
    by_net: FxHashMap<Net, BlockId>,
    by_ptr: FxHashMap<usize, BlockId>,
    writes: Vec<Write>,
    sids: BTreeSet<(usize, Sid)>,
    arrived: Vec<u64>,
    passed: Vec<u64>,
    /// Faults flip bits: until a sum shows it, a range that a write has not finished may hold anything.
    pub(super) flips: bool,
}

/// What makes the bytes of a write its own.
fn key(write: WriteId) -> u64 {
    mix(write as u64 + 1)
}

impl Reference {
    /// Of a job of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            tally: Tally::default(),
            fates: vec![Fate::Lives; nodes],
            pairs: (0..nodes * nodes).map(|_| Pair::default()).collect(),
            blocks: Vec::new(),
            by_net: FxHashMap::default(),
            by_ptr: FxHashMap::default(),
            writes: Vec::new(),
            sids: BTreeSet::new(),
            arrived: vec![0; nodes],
            passed: vec![0; nodes],
            flips: false,
        }
    }

    /// Nodes of the job.
    pub fn nodes(&self) -> usize {
        self.fates.len()
    }

    fn pair(&mut self, from: usize, to: usize) -> &mut Pair {
        let n = self.nodes();
        &mut self.pairs[from * n + to]
    }

    /// What a node is to the others.
    pub fn fate(&self, node: usize) -> Fate {
        self.fates[node]
    }

    /// A node has arrived at the last barrier, or has left.
    pub fn set_fate(&mut self, node: usize, fate: Fate) {
        self.fates[node] = fate;
    }

    /// A node was killed.
    pub fn died(&mut self, node: usize, at: u64) {
        self.fates[node] = Fate::Died(at);
        self.tally.deaths += 1;
    }

    fn is_dead(&self, node: usize) -> bool {
        matches!(self.fates[node], Fate::Died(_))
    }

    // ---- messages ----------------------------------------------------------------------------------------------

    /// The next message from one node to another, which carries this.
    pub fn next_message(&self, from: usize, to: usize, payload: u64) -> Small {
        let number = self.pairs[from * self.nodes() + to].sent + 1;
        let mut small = [0; 16];
        let head = number << 8 | ((from as u64) << 4 | to as u64);
        small[..8].copy_from_slice(&head.to_le_bytes());
        small[8..].copy_from_slice(&payload.to_le_bytes());
        small
    }

    /// A node has sent a message.
    pub fn sent(&mut self, from: usize, to: usize, small: Small) {
        self.tally.messages += 1;
        let pair = self.pair(from, to);
        pair.sent += 1;
        let (begun, under_way) = (pair.writes.len(), pair.sent - pair.received);
        pair.behind.push_back((begun, small));
        assert!(
            under_way <= WINDOW,
            "bounded: node {from} has sent node {to} {under_way} messages that it has not taken"
        );
    }

    /// Room in the window of a pair, as an observer of both sees it.
    pub fn room(&self, from: usize, to: usize) -> u64 {
        let pair = &self.pairs[from * self.nodes() + to];
        WINDOW - (pair.sent - pair.received)
    }

    /// A program has taken a message.
    pub fn received(&mut self, memory: &Memory, to: usize, from: usize, small: &Small) {
        let pair = self.pair(from, to);
        assert!(!pair.gone, "in order: node {to} takes a message of node {from} after its end was reported");
        let number = pair.received + 1;
        let Some((begun, want)) = pair.behind.pop_front() else {
            panic!(
                "exactly once: node {to} takes message {number} of node {from}, which has sent no more: {small:?}"
            );
        };
        assert_eq!(*small, want, "exactly once: message {number} from node {from} to node {to}");
        pair.received = number;
        let (first, writes) = (pair.verified, &pair.writes);
        let before: Vec<WriteId> = writes.get(first..begun).unwrap_or_default().to_vec();
        pair.verified = first.max(begun);
        for write in before {
            let w = &self.writes[write];
            if w.end.is_some() || w.wrong || self.blocks[w.target.0].life != Life::Live {
                continue;
            }
            self.tally.notified += 1;
            let differs = self.differs(memory, write);
            assert!(
                differs.is_none(),
                "intact: node {to} takes message {number} of node {from} before write {write} of {} bytes is in place: byte {differs:?}",
                self.writes[write].bytes
            );
        }
    }

    /// A program is told that a node is gone.
    pub fn gone(&mut self, at: usize, node: usize) {
        assert!(!self.pair(node, at).gone, "exactly once: node {at} reports the end of node {node} twice");
        self.pair(node, at).gone = true;
        match self.fates[node] {
            Fate::Died(_) => self.tally.gone_reports += 1,
            // it has passed the last barrier before this one, and all have arrived there
            Fate::Left if self.fates[at] == Fate::Ends => self.tally.early_leaves += 1,
            fate => panic!("live: node {at} takes node {node} for gone, which is {fate:?}"),
        }
    }

    /// Whether a program was told that a node is gone.
    pub fn is_told(&self, at: usize, node: usize) -> bool {
        self.pairs[node * self.nodes() + at].gone
    }

    /// Messages of living nodes that a program has not taken.
    pub fn misses_messages(&self, node: usize) -> bool {
        let n = self.nodes();
        let pairs = (0..n).filter(|from| !self.is_dead(*from)).map(|from| &self.pairs[from * n + node]);
        pairs.into_iter().any(|pair| pair.received < pair.sent)
    }

    /// Deaths that a program was not told of.
    pub fn misses_deaths(&self, node: usize) -> bool {
        (0..self.nodes()).any(|dead| self.is_dead(dead) && !self.is_told(node, dead))
    }

    /// A death that a program should know of, if those are known that came before this time.
    pub fn check_told(&self, node: usize, before: u64) {
        for dead in 0..self.nodes() {
            if let Fate::Died(at) = self.fates[dead] {
                assert!(
                    at >= before || self.is_told(node, dead),
                    "live: node {node} was not told of the end of node {dead}, which died at {:.3} ms",
                    at as f64 / 1e6
                );
            }
        }
    }

    // ---- memory ------------------------------------------------------------------------------------------------

    /// A new block, whose memory holds its first contents.
    pub fn block(
        &mut self,
        memory: &mut Memory,
        owner: usize,
        net: Net,
        buf: BufId,
        bytes: usize,
    ) -> BlockId {
        memory.lend(buf, Use::Region { readable: true, writable: true });
        let id = self.blocks.len();
        let was = memory.bytes(buf)[..bytes].to_vec();
        assert_eq!(self.by_net.insert(net, id), None, "names: two blocks at {net:?}");
        assert!(net.0 != 0, "names: a block at address 0");
        self.by_ptr.insert(memory.ptr(buf) as usize, id);
        self.blocks.push(Block { owner, net, buf, bytes, life: Life::Live, was, busy: Vec::new() });
        id
    }

    /// The block that a published address names.
    pub fn at(&self, net: Net) -> BlockId {
        self.by_net[&net]
    }

    /// Owner, address, size and memory of a block.
    pub fn of_block(&self, id: BlockId) -> (usize, Net, usize, BufId) {
        let b = &self.blocks[id];
        (b.owner, b.net, b.bytes, b.buf)
    }

    /// Whether its owner has not freed it.
    pub fn is_live(&self, id: BlockId) -> bool {
        self.blocks[id].life == Life::Live
    }

    /// A range of a block that no write owns.
    pub fn free_range(&self, id: BlockId, bytes: usize, r: &mut Rng) -> Option<usize> {
        let b = &self.blocks[id];
        let spare = b.bytes.checked_sub(bytes)?;
        let mut offsets = (0..TRIES).map(|_| r.below(spare as u64 + 1) as usize);
        offsets.find(|at| b.busy.iter().all(|(from, n, ..)| at + bytes <= *from || from + n <= *at))
    }

    /// The program frees a block.
    pub fn freed(&mut self, memory: &mut Memory, id: BlockId) {
        self.verify(memory, id);
        let (busy, b) = (!self.blocks[id].busy.is_empty(), &mut self.blocks[id]);
        b.life = Life::Freed;
        b.was = memory.bytes(b.buf)[..b.bytes].to_vec();
        // from now on windows of engines may read it, and not write it
        memory.lend_otherwise(b.buf, Use::Send);
        self.tally.frees += 1;
        self.tally.busy_frees += u64::from(busy);
    }

    /// A node gives memory back, freed or, when it `ends`, not. `under_way`: whether a write of the node is.
    #[allow(clippy::too_many_arguments)]
    pub fn unused(
        &mut self,
        memory: &mut Memory,
        node: usize,
        ptr: *mut u8,
        bytes: usize,
        ends: bool,
        mut under_way: impl FnMut(Sid) -> bool,
        until: u64,
    ) {
        let id =
            self.by_ptr.remove(&(ptr as usize)).expect("exactly once: memory that is no block is given back");
        let b = &self.blocks[id];
        let right = if ends { Life::Live } else { Life::Freed };
        assert_eq!(
            (b.owner, b.bytes, b.life),
            (node, bytes, right),
            "exactly once: block {id} is given back"
        );
        for (.., write, writes_here) in &b.busy {
            let w = &self.writes[*write];
            assert!(
                *writes_here || w.end.is_some() || !under_way(w.sid),
                "no false completion: block {id} is given back while write {write} reads it"
            );
        }
        if ends {
            self.verify(memory, id);
        } else {
            let differs = b.was.iter().zip(memory.bytes(b.buf)).position(|(was, is)| was != is);
            assert_eq!(differs, None, "fenced: block {id} was written after it was freed");
        }
        let b = &mut self.blocks[id];
        b.life = Life::Unused;
        memory.give_back(b.buf, SCRIBBLE, until);
    }

    /// Whether a node has blocks that it has not given back.
    pub fn keeps_memory(&self, node: usize) -> bool {
        self.blocks.iter().any(|b| b.owner == node && b.life != Life::Unused)
    }

    /// Every byte of a block is what it may be.
    pub fn verify(&self, memory: &Memory, id: BlockId) {
        let b = &self.blocks[id];
        if b.life != Life::Live {
            return;
        }
        let (is, guard) = memory.bytes(b.buf).split_at(b.bytes);
        assert!(all_or_none(guard, CANARY), "fenced: something was written behind block {id}");
        if is == b.was {
            return;
        }
        let mut allowed = b.was.clone();
        for &(from, n, write, writes_here) in b.busy.iter().filter(|(.., here)| *here) {
            debug_assert!(writes_here);
            let mut new = vec![0; n];
            fill_message(key(write), &mut new);
            for ((a, is), new) in allowed[from..from + n].iter_mut().zip(&is[from..from + n]).zip(&new) {
                if is == new || self.flips {
                    *a = *is;
                }
            }
        }
        if let Some(at) = is.iter().zip(&allowed).position(|(is, a)| is != a) {
            let of = b.busy.iter().find(|(from, n, ..)| (*from..from + n).contains(&at));
            panic!(
                "intact: byte {at} of block {id} of node {} is {:#x}, and not {:#x}; it belongs to write {:?}",
                b.owner, is[at], allowed[at], of
            );
        }
    }

    /// All blocks of living nodes.
    pub fn verify_all(&self, memory: &Memory) {
        (0..self.blocks.len()).for_each(|id| self.verify(memory, id));
    }

    // ---- writes ------------------------------------------------------------------------------------------------

    /// Fills the source of the next write.
    pub fn fill_source(&mut self, memory: &mut Memory, source: (BlockId, usize), bytes: usize) {
        let write = self.writes.len();
        self.put(memory, source, bytes, |out| fill_message(key(write), out));
    }

    fn put(&mut self, memory: &mut Memory, at: (BlockId, usize), bytes: usize, f: impl FnOnce(&mut [u8])) {
        let b = &mut self.blocks[at.0];
        let place = &mut memory.bytes_mut(b.buf)[at.1..at.1 + bytes];
        f(place);
        b.was[at.1..at.1 + bytes].copy_from_slice(place);
    }

    /// A write has begun. `wrong`: the target must refuse it.
    #[allow(clippy::too_many_arguments)]
    pub fn begun(
        &mut self,
        from: usize,
        source: (BlockId, usize),
        target: (BlockId, usize),
        bytes: usize,
        wrong: bool,
        sid: Sid,
    ) -> WriteId {
        assert!(self.sids.insert((from, sid)), "names: node {from} gives identifier {sid:?} twice");
        let id = self.writes.len();
        let to = self.blocks[target.0].owner;
        self.writes.push(Write { from, to, source, target, bytes, wrong, sid, end: None });
        self.blocks[source.0].busy.push((source.1, bytes, id, false));
        if !wrong {
            self.blocks[target.0].busy.push((target.1, bytes, id, true));
        }
        self.pair(from, to).writes.push(id);
        let t = &mut self.tally;
        t.writes += 1;
        t.large_writes += u64::from(bytes > 8192);
        t.self_writes += u64::from(from == to);
        id
    }

    /// First byte of a write that is not in place, or was not when its block was freed.
    fn differs(&self, memory: &Memory, write: WriteId) -> Option<usize> {
        let Write { target: (block, at), bytes, .. } = self.writes[write];
        let b = &self.blocks[block];
        let is = if b.life == Life::Live { memory.bytes(b.buf) } else { &b.was[..] };
        message_differs(key(write), &is[at..at + bytes])
    }

    /// A program has seen a write end.
    pub fn ended(&mut self, memory: &mut Memory, write: WriteId, end: Result<(), Failure>) {
        let Write { from, to, source, target, bytes, wrong, .. } = self.writes[write];
        let live = self.blocks[target.0].life == Life::Live;
        match end {
            Ok(()) => {
                assert!(
                    !wrong,
                    "fenced: write {write} of node {from} to node {to} leaves its block, and is done"
                );
                let differs = self.differs(memory, write);
                assert_eq!(
                    differs, None,
                    "no false completion: write {write} of {bytes} bytes from node {from} to node {to} is done and not in place"
                );
                if live {
                    self.put(memory, target, bytes, |_| {});
                }
                self.blocks[target.0].busy.retain(|(.., w, here)| !(*w == write && *here));
            }
            Err(Failure::Refused) => {
                assert!(wrong || !live, "live: write {write} from node {from} to node {to} was refused");
                self.tally.refused_writes += 1;
            }
            Err(Failure::Gone) => {
                assert!(
                    self.is_dead(to),
                    "live: write {write} from node {from} ends, as if node {to} were gone"
                );
                self.tally.gone_writes += 1;
            }
        }
        self.writes[write].end = Some(end);
        self.blocks[source.0].busy.retain(|(.., w, here)| *w != write || *here);
        if self.blocks[source.0].life == Life::Live {
            // what a late repetition would bring
            self.put(memory, source, bytes, |out| out.fill(SCRIBBLE));
        }
    }

    /// What a write's end must stay.
    pub fn check_end(&self, write: WriteId, seen: Result<bool, Option<Failure>>) {
        let w = &self.writes[write];
        let want = w.end.map(|end| end.map(|()| true).map_err(Some));
        assert_eq!(
            Some(seen),
            want,
            "no false completion: write {write} of node {} ended, and does not stay so",
            w.from
        );
    }

    // ---- barriers ----------------------------------------------------------------------------------------------

    /// A node arrives at a barrier.
    pub fn arrived(&mut self, node: usize, barrier: u64) {
        self.arrived[node] += 1;
        assert_eq!(self.arrived[node], barrier, "in order: barriers count");
    }

    /// A node has passed so many.
    pub fn passed(&mut self, node: usize, passed: u64) {
        let before = std::mem::replace(&mut self.passed[node], passed);
        assert!(before <= passed, "in order: node {node} had passed barrier {before}, and {passed} now");
        if before < passed {
            self.tally.passes += 1;
            for (other, arrived) in self.arrived.iter().enumerate() {
                assert!(
                    *arrived >= passed || self.is_dead(other),
                    "in order: node {node} passes barrier {passed}, and node {other} has arrived at {arrived}"
                );
            }
        }
    }
}

/// Whether all of it has this value, if there is any.
fn all_or_none(bytes: &[u8], value: u8) -> bool {
    bytes.is_empty() || all(bytes, value)
}
