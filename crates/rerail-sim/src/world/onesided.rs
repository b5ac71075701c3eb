//! What applications ask of each other's memory, and what came of it. Owns: one-sided operations under way.
//!
//! Every process knows all regions of all processes, as if they had told each other. What the memory may hold is in
//! [`crate::region`]. An operation that has no right to be carried out must end in the error that says why, and change
//! nothing.

use super::World;
use super::app::Phase;
use crate::link::MS;
use crate::memory::{BufId, CANARY, SCRIBBLE, Use, all, fill_message};
use crate::oracle::Op;
use crate::region::{Cells, Deed, Region, Slot, Tale, Version, Word, decode, encode, size_of};
use crate::rng::Rng;
use rerail_core::atomic::{datatype, op};
use rerail_core::{
    AccessError, AtomicKind, AtomicOp, Completion, CompletionError, CompletionKind, Engine, INLINE_MAX,
    IoVec, PostError, RemotePiece, RmaOp, Time,
};
use rustc_hash::FxHashMap;

/// Remote CQ data is the operation's number under this mask.
const ASK_MASK: u64 = 0x0a5c_0000_0000_0000;
/// Most operations of a run.
const ASKS_MAX: usize = 50_000;
/// Pieces of remote memory, at most.
const REMOTE_MAX: usize = 8;

/// What the applications do to each other's memory by themselves.
#[derive(Debug, Clone)]
pub struct OneSided {
    /// Steps of an application, in percent, at which it asks something.
    pub share: u32,
    /// Operations of a process under way, at most.
    pub window: usize,
    /// Operations at one step, at most.
    pub burst: u64,
    /// Weights of: write, read, atomic, one that must be refused, store in own memory, another region in the place of one.
    pub kinds: [u32; 6],
    /// Weights of sizes: up to 64 B, a datagram, about what fits an order, many fragments.
    pub sizes: [u32; 4],
    /// Several pieces of memory, here and there, in percent.
    pub pieces: u32,
    /// Percentages of operations.
    pub inject: u32,
    /// See `inject`.
    pub data: u32,
    /// Without a completion when it goes well.
    pub quiet: u32,
    /// Every endpoint has a domain of its own.
    pub domains: bool,
    /// Regions of slots in each domain.
    pub regions: u64,
}

impl OneSided {
    /// A swarm: every seed another character. `None`: no one-sided operations.
    pub fn swarm(r: &mut Rng, processes: usize, endpoints: usize) -> Option<Self> {
        if !r.percent(40) {
            return None;
        }
        let mut p = |most: u32| if r.percent(25) { 0 } else { r.below(u64::from(most) + 1) as u32 };
        let kinds = [2 + p(10), 2 + p(10), p(15), p(4), p(3), p(2)];
        let sizes = [1 + p(10), p(10), p(6), p(4)];
        let (pieces, inject, data, quiet) = (p(60), p(40), p(60), p(30));
        let few = processes * endpoints > 8;
        Some(Self {
            share: r.range(5, 100) as u32,
            window: r.log_range(1, 100) as usize,
            burst: r.log_range(1, 12),
            kinds,
            sizes,
            pieces,
            inject,
            data,
            quiet,
            domains: endpoints > 1 && !few && r.percent(50),
            regions: if few { 1 } else { r.range(1, 3) },
        })
    }

    fn size(&self, r: &mut Rng) -> usize {
        (match r.weighted(&self.sizes) {
            0 => r.range(1, 64),
            1 => r.range(65, 1_400),
            2 => r.range(1_401, 12_000),
            _ => r.log_range(8_000, 200_000),
        }) as usize
    }
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Under way.
    Open,
    /// It has taken effect.
    Done,
    /// It has not.
    Refused,
    /// Its peer, or the process that asked, is lost: it may have, or will.
    Lost,
}

/// What is asked.
#[derive(Debug, Clone)]
pub enum What {
    /// Something that must be refused.
    Wrong(AccessError),
    /// To write a pattern into each slot: region, slot, version.
    Write(Vec<(usize, usize, u64)>),
    /// To read slots: region, slot, versions that may be found.
    Read(Vec<(usize, usize, Vec<u64>)>),
    /// To change words of a region.
    Atomic(usize, Vec<(usize, Deed)>),
}

/// A one-sided operation.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Endpoint that asks.
    pub src: usize,
    /// Endpoint that is asked.
    pub dst: usize,
    /// As what it completes.
    pub kind: CompletionKind,
    /// What is asked.
    pub what: What,
    /// Bytes.
    pub len: usize,
    /// Regions that it names.
    pub regions: Vec<usize>,
    /// Completes only with an error.
    pub quiet: bool,
    /// Carries remote CQ data.
    pub data: bool,
    /// How far it is.
    pub state: State,
    /// It travels inside its order.
    pub inline: bool,
    /// The target has had its data.
    pub told: bool,
    /// Memory here, and its pieces.
    local: Option<(BufId, Vec<(usize, usize)>)>,
}

impl Ask {
    fn is_read(&self) -> bool {
        matches!(self.kind, CompletionKind::Read | CompletionKind::AtomicRead)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Asks {
    /// By number.
    pub list: Vec<Ask>,
    /// Under way.
    pub open: Vec<usize>,
    /// Writes and updates that were posted, by endpoint.
    writes: FxHashMap<usize, u64>,
}

/// How an operation is posted.
#[derive(Debug, Clone, Copy)]
pub struct AskSpec {
    /// Endpoint that asks.
    pub src: usize,
    /// Endpoint that is asked.
    pub dst: usize,
    /// Pieces of memory here.
    pub pieces: usize,
    /// Pieces there are cut in two.
    pub split: bool,
    /// See [`RmaOp::inject`].
    pub inject: bool,
    /// See [`Ask::quiet`].
    pub quiet: bool,
    /// Carries remote CQ data.
    pub data: bool,
}

impl AskSpec {
    /// In one piece, with a completion, without data.
    pub fn plain(src: usize, dst: usize) -> Self {
        Self { src, dst, pieces: 1, split: false, inject: false, quiet: false, data: false }
    }
}

/// A region to be.
#[derive(Debug, Clone)]
pub struct RegionSpec {
    /// See [`Region::domain`].
    pub domain: u32,
    /// Peers may read it.
    pub readable: bool,
    /// Peers may write it.
    pub writable: bool,
    /// Bytes of its slots; empty: words.
    pub slots: Vec<usize>,
    /// Counters of each datatype, if it has words.
    pub counters: usize,
    /// Pieces of memory.
    pub pieces: usize,
}

impl RegionSpec {
    /// Readable and writable by every peer, in one piece.
    pub fn slots(sizes: &[usize]) -> Self {
        Self { domain: 0, readable: true, writable: true, slots: sizes.to_vec(), counters: 0, pieces: 1 }
    }

    /// Words for atomic operations.
    pub fn words(counters: usize) -> Self {
        Self { counters, ..Self::slots(&[]) }
    }
}

/// What is handed to the engine.
enum Form {
    Write(Vec<u8>),
    Read(usize),
    Atomic { kind: AtomicKind, datatype: u8, op: u8, operand: Vec<u8>, compare: Vec<u8>, total: usize },
}

const DATATYPES: [u8; 8] = [
    datatype::UINT64,
    datatype::INT64,
    datatype::UINT32,
    datatype::INT32,
    datatype::DOUBLE,
    datatype::FLOAT,
    datatype::UINT128,
    datatype::INT128,
];

/// Cuts `len` bytes into pieces: offset, length. Gives the end, too.
fn cut(r: &mut Rng, len: usize, pieces: usize, gaps: bool) -> (usize, Vec<(usize, usize)>) {
    let (mut at, mut left) = (0, len);
    let mut out = Vec::with_capacity(pieces);
    for i in 0..pieces.max(1) {
        let n = if i + 1 >= pieces { left } else { r.index(left + 1) };
        out.push((at, n));
        at += n;
        left -= n;
        if gaps && i + 1 < pieces {
            at += r.index(24);
        }
    }
    (at, out)
}

/// Whether a write takes effect in its turn or is refused together with what is asked of its slots later: not when another region
/// may be the reason.
fn ordered(inject: bool, len: usize, slots: &[(usize, usize)]) -> bool {
    (inject || len <= INLINE_MAX) && slots.iter().all(|s| s.0 == slots[0].0)
}

/// Patterns of these lengths, one behind the other.
fn patterns(parts: impl Iterator<Item = (u64, usize)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (id, len) in parts {
        let at = out.len();
        out.resize(at + len, 0);
        fill_message(id, &mut out[at..]);
    }
    out
}

impl World {
    /// Domain of an endpoint.
    fn domain_of(&self, ep: usize) -> u32 {
        let own = self.cfg.one_sided.as_ref().is_some_and(|t| t.domains);
        if own { (ep % self.cfg.eps) as u32 } else { 0 }
    }

    /// Gives process `p` the regions that its seed says.
    pub(crate) fn open_regions(&mut self, p: usize) {
        let Some(t) = self.cfg.one_sided.clone() else { return };
        let mut engine = self.procs[p].engine.take().expect("it was just made");
        for e in 0..self.cfg.eps {
            let ep = self.endpoint(p, e);
            let domain = self.domain_of(ep);
            engine.set_domain(self.procs[p].eps[e], domain);
            if e > 0 && !t.domains {
                continue;
            }
            for _ in 0..t.regions {
                let spec = self.random_region(&t, domain);
                self.register(p, &mut engine, &spec);
            }
            let counters = if self.ask_rng.percent(20) { 150 } else { self.ask_rng.range(1, 6) as usize };
            self.register(p, &mut engine, &RegionSpec { domain, ..RegionSpec::words(counters) });
        }
        self.procs[p].engine = Some(engine);
    }

    fn random_region(&mut self, t: &OneSided, domain: u32) -> RegionSpec {
        let r = &mut self.ask_rng;
        let slots = (0..r.range(1, 5)).map(|_| t.size(r)).collect();
        let (readable, writable) = [(true, true), (true, false), (false, true)][r.weighted(&[8, 1, 1])];
        let pieces = if r.percent(t.pieces) { r.range(2, 4) as usize } else { 1 };
        RegionSpec { domain, readable, writable, slots, counters: 0, pieces }
    }

    /// Registers a region; its index.
    pub fn open_region(&mut self, p: usize, spec: &RegionSpec) -> usize {
        self.with_engine(p, |w, e, _| w.register(p, e, spec))
    }

    /// Unregisters a region: from now on only its owner touches its memory, which is checked later.
    pub fn close_region(&mut self, region: usize) {
        let p = self.regions.list[region].proc;
        self.with_engine(p, |w, e, now| w.unregister(e, region, now));
    }

    fn cells(&mut self, p: usize, spec: &RegionSpec) -> (usize, Cells) {
        let mut at = 0;
        if !spec.slots.is_empty() {
            let mut slots = Vec::new();
            for &len in &spec.slots {
                let id = self.regions.version(false);
                let held = vec![Version { id, by: p, ordered: false }];
                let (late, writers, readers) = (Vec::new(), Vec::new(), Vec::new());
                slots.push(Slot { at, len, held, late, writers, readers });
                at += len + self.ask_rng.index(24);
            }
            return (at, Cells::Slots(slots));
        }
        let mut words = Vec::new();
        let mut add = |datatype: u8, tale: Tale| {
            words.push(Word::new(at, datatype, tale));
            at += size_of(datatype);
        };
        for d in DATATYPES {
            for _ in 0..spec.counters {
                let (spans, newest) = Default::default();
                add(d, Tale::Counter { sure: 0, open: 0, lost: 0, spans, newest });
            }
        }
        for _ in 0..3 {
            add(datatype::UINT64, Tale::Toggle { sure: 0, uncertain: Vec::new() });
            add(datatype::UINT64, Tale::Lock { known: 0, tried: Vec::new(), won: Default::default() });
        }
        for owner in 0..self.cfg.procs.len() {
            add(datatype::UINT64, Tale::Ladder { owner, done: 0, posted: 0 });
        }
        (at, Cells::Words(words))
    }

    fn register(&mut self, p: usize, engine: &mut Engine, spec: &RegionSpec) -> usize {
        let (bytes, cells) = self.cells(p, spec);
        let index = self.regions.list.len();
        let r = &mut self.ask_rng;
        let (end, pieces) = cut(r, bytes, spec.pieces, true);
        let buf = self.memory.take(end + 1);
        let ptr = self.memory.ptr(buf);
        let key = if r.percent(50) { index as u64 } else { r.draw() << 16 | index as u64 };
        let origin = match r.below(4) {
            0 => 0,
            1 => ptr as u64,
            2 => r.below(1 << 40),
            _ => u64::MAX - bytes as u64,
        };
        let region = Region {
            proc: p,
            domain: spec.domain,
            key,
            origin,
            readable: spec.readable,
            writable: spec.writable,
            buf,
            pieces,
            bytes,
            registered: true,
            cells,
        };
        match &region.cells {
            Cells::Slots(slots) => {
                for s in slots {
                    let b = patterns(std::iter::once((s.held[0].id, s.len)));
                    region.store(&mut self.memory, s.at, &b);
                }
            }
            Cells::Words(words) => {
                for w in words {
                    region.store(&mut self.memory, w.at, &encode(w.datatype, 0));
                }
            }
        }
        self.memory.lend(buf, Use::Region { readable: spec.readable, writable: spec.writable });
        let iov: Vec<IoVec> =
            region.pieces.iter().map(|&(at, n)| IoVec::new(ptr.wrapping_add(at), n)).collect();
        let asked = rerail_core::Region {
            domain: spec.domain,
            key,
            pieces: &iov,
            origin,
            readable: spec.readable,
            writable: spec.writable,
        };
        // SAFETY: the memory is lent until the region is unregistered, and freed only with the world.
        unsafe { engine.register(&asked) }.expect("no other region has this key");
        self.regions.list.push(region);
        index
    }

    fn unregister(&mut self, engine: &mut Engine, region: usize, now: Time) {
        let r = &self.regions.list[region];
        if !r.registered {
            return;
        }
        engine.unregister(r.domain, r.key, now);
        self.end_region(region);
    }

    /// The engine has promised not to touch the region any more.
    fn end_region(&mut self, region: usize) {
        self.check_region(region);
        let r = &mut self.regions.list[region];
        r.registered = false;
        let (buf, p, key) = (r.buf, r.proc, r.key);
        let until = self.now + self.ask_rng.below(20 * MS);
        self.memory.give_back(buf, CANARY, until);
        self.trace(|| format!("p{p} has unregistered region {region}, key {key:#x}"));
    }

    /// It holds what it may hold.
    pub fn check_region(&self, region: usize) {
        self.regions.check(region, &self.memory, self.flipped());
    }

    fn flipped(&self) -> bool {
        self.corrupted.iter().any(|&n| n > 0)
    }

    /// The process is over, or its memory is: what was registered is not any more.
    pub(crate) fn end_regions(&mut self, p: usize) {
        for i in 0..self.regions.list.len() {
            if self.regions.list[i].proc == p && self.regions.list[i].registered {
                self.end_region(i);
            }
        }
    }

    // ---- posting -----------------------------------------------------------------------------------------------

    /// Writes slots of regions, each with a pattern of its own; the number of the operation, or `None` when the engine wants it
    /// later.
    pub fn write(&mut self, s: AskSpec, slots: &[(usize, usize)]) -> Option<usize> {
        let p = self.owner(s.src);
        self.with_engine(p, |w, e, now| w.post_write(p, e, now, &s, slots))
    }

    /// Reads slots of regions.
    pub fn read(&mut self, s: AskSpec, slots: &[(usize, usize)]) -> Option<usize> {
        let p = self.owner(s.src);
        self.with_engine(p, |w, e, now| w.post_read(p, e, now, &s, slots))
    }

    /// Does something to words of a region. Those of one operation have one datatype and one kind of deed.
    pub fn atomic(
        &mut self,
        s: AskSpec,
        region: usize,
        words: &[(usize, Deed)],
        fetch: bool,
    ) -> Option<usize> {
        let p = self.owner(s.src);
        self.with_engine(p, |w, e, now| w.post_atomic(p, e, now, &s, region, words, fetch))
    }

    /// Writes to the end of a region, and `over` bytes more: must be refused.
    pub fn overrun(&mut self, s: AskSpec, region: usize, over: usize) -> Option<usize> {
        let p = self.owner(s.src);
        let r = &self.regions.list[region];
        let len = r.bytes.min(1_000) + over;
        let at = (r.bytes + over - len) as u64;
        let remote = [RemotePiece { addr: r.origin.wrapping_add(at), len, key: r.key }];
        let bytes = patterns(std::iter::once((self.regions.version(false), len)));
        let what = What::Wrong(AccessError::Bounds);
        self.with_engine(p, |w, e, now| w.post_ask(p, e, now, &s, Form::Write(bytes), &remote, what))
    }

    /// The owner writes a slot itself.
    pub fn store(&mut self, region: usize, slot: usize) {
        let id = self.regions.version(false);
        let r = &mut self.regions.list[region];
        let by = r.proc;
        let Cells::Slots(slots) = &mut r.cells else { return };
        let s = &mut slots[slot];
        s.held = vec![Version { id, by, ordered: false }];
        let (at, len) = (s.at, s.len);
        let readers = s.readers.clone();
        self.regions.list[region].store(&mut self.memory, at, &patterns(std::iter::once((id, len))));
        self.found_by_readers(&readers, region, slot, id);
    }

    /// A version may be found by reads that are under way.
    fn found_by_readers(&mut self, readers: &[usize], region: usize, slot: usize, version: u64) {
        for &a in readers {
            let What::Read(cells) = &mut self.asks.list[a].what else { continue };
            cells.iter_mut().filter(|c| (c.0, c.1) == (region, slot)).for_each(|c| c.2.push(version));
        }
    }

    fn lens(&mut self, slots: &[(usize, usize)]) -> Vec<usize> {
        slots.iter().map(|&(r, s)| self.regions.slot(r, s).len).collect()
    }

    fn remote(
        &mut self,
        split: bool,
        region: usize,
        at: usize,
        len: usize,
        whole: usize,
    ) -> Vec<RemotePiece> {
        let r = &self.regions.list[region];
        let one =
            |at: usize, len: usize| RemotePiece { addr: r.origin.wrapping_add(at as u64), len, key: r.key };
        if split && len > whole {
            let n = self.ask_rng.index(len / whole) * whole;
            return vec![one(at, n), one(at + n, len - n)];
        }
        vec![one(at, len)]
    }

    fn remotes(&mut self, split: bool, slots: &[(usize, usize)]) -> Vec<RemotePiece> {
        let mut out = Vec::new();
        for &(r, s) in slots {
            let (at, len) = (self.regions.slot(r, s).at, self.regions.slot(r, s).len);
            out.extend(self.remote(split && slots.len() <= REMOTE_MAX / 2, r, at, len, 1));
        }
        out
    }

    fn post_write(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        s: &AskSpec,
        slots: &[(usize, usize)],
    ) -> Option<usize> {
        let lens = self.lens(slots);
        let bulk = !s.inject && lens.iter().sum::<usize>() > INLINE_MAX;
        let ids: Vec<u64> = slots.iter().map(|_| self.regions.version(bulk)).collect();
        let bytes = patterns(ids.iter().copied().zip(lens));
        let ordered = ordered(s.inject, bytes.len(), slots);
        let remote = self.remotes(s.split, slots);
        let what: Vec<_> = slots.iter().zip(&ids).map(|(&(r, c), &id)| (r, c, id)).collect();
        let a = self.post_ask(p, engine, now, s, Form::Write(bytes), &remote, What::Write(what))?;
        for (&(r, c), id) in slots.iter().zip(ids) {
            let slot = self.regions.slot(r, c);
            slot.held.push(Version { id, by: p, ordered });
            slot.writers.push(a);
            let readers = slot.readers.clone();
            self.found_by_readers(&readers, r, c, id);
        }
        Some(a)
    }

    fn post_read(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        s: &AskSpec,
        slots: &[(usize, usize)],
    ) -> Option<usize> {
        let total = self.lens(slots).iter().sum();
        let remote = self.remotes(s.split, slots);
        let what: Vec<_> =
            slots.iter().map(|&(r, c)| (r, c, self.regions.slot(r, c).readable_by(p))).collect();
        let a = self.post_ask(p, engine, now, s, Form::Read(total), &remote, What::Read(what))?;
        for &(r, c) in slots {
            self.regions.slot(r, c).readers.push(a);
        }
        Some(a)
    }

    #[allow(clippy::too_many_arguments)] // one caller by chance, one by script
    fn post_atomic(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        s: &AskSpec,
        region: usize,
        words: &[(usize, Deed)],
        fetch: bool,
    ) -> Option<usize> {
        let datatype = self.regions.word(region, words[0].0).datatype;
        let size = size_of(datatype);
        let (mut operand, mut compare) = (Vec::new(), Vec::new());
        let mut kind = if fetch { AtomicKind::Fetch } else { AtomicKind::Update };
        let mut code = op::ATOMIC_READ;
        let mut remote: Vec<RemotePiece> = Vec::new();
        for &(w, deed) in words {
            let o = match deed {
                Deed::Add { n, .. } => (op::SUM, n),
                Deed::Toggle(mask) => (op::BXOR, mask),
                Deed::Step(n) if fetch && s.split => {
                    // the same in other words
                    kind = AtomicKind::Compare;
                    compare.extend_from_slice(&[0xff; 8]);
                    (op::MSWAP, n)
                }
                Deed::Step(n) => (op::ATOMIC_WRITE, n),
                Deed::Swap(expected, new) => {
                    kind = AtomicKind::Compare;
                    compare.extend(encode(datatype, expected));
                    (op::CSWAP, new)
                }
                Deed::Look(..) => (op::ATOMIC_READ, 0),
            };
            code = o.0;
            if code != op::ATOMIC_READ {
                operand.extend(encode(datatype, o.1));
            }
            let at = self.regions.word(region, w).at;
            let next = self.remote(false, region, at, size, size)[0];
            match remote.last_mut() {
                Some(last) if last.addr.wrapping_add(last.len as u64) == next.addr => last.len += size,
                _ => remote.push(next),
            }
        }
        if s.split && remote.len() == 1 && words.len() > 1 {
            let at = self.regions.word(region, words[0].0).at;
            remote = self.remote(true, region, at, words.len() * size, size);
        }
        let form = Form::Atomic { kind, datatype, op: code, operand, compare, total: words.len() * size };
        let a = self.post_ask(p, engine, now, s, form, &remote, What::Atomic(region, words.to_vec()))?;
        for &(w, deed) in words {
            self.regions.word(region, w).posted(deed, a);
        }
        Some(a)
    }

    fn lay(&mut self, len: usize, pieces: usize, to: Use) -> (BufId, Vec<(usize, usize)>, Vec<IoVec>) {
        let (end, pieces) = cut(&mut self.ask_rng, len, pieces, to == Use::Recv);
        let buf = self.memory.take(end + 1);
        self.memory.lend(buf, to);
        let base = self.memory.ptr(buf);
        let iov = pieces.iter().map(|&(at, n)| IoVec::new(base.wrapping_add(at), n)).collect();
        (buf, pieces, iov)
    }

    fn lay_out(&mut self, bytes: &[u8], pieces: usize) -> (BufId, Vec<(usize, usize)>, Vec<IoVec>) {
        let out = self.lay(bytes.len(), pieces, Use::Send);
        self.memory.bytes_mut(out.0)[..bytes.len()].copy_from_slice(bytes);
        out
    }

    #[allow(clippy::too_many_arguments)] // the one place where operations are handed over
    fn post_ask(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        s: &AskSpec,
        form: Form,
        remote: &[RemotePiece],
        what: What,
    ) -> Option<usize> {
        let dest = self.id_of(p, engine, s.dst);
        let id = self.asks.list.len();
        let ep = self.procs[p].eps[s.src % self.cfg.eps];
        let context = self.oracle.next_context();
        let is_write = matches!(form, Form::Write(_));
        let data = (s.data && is_write).then_some(id as u64 ^ ASK_MASK);
        // buffers that are free again at once, and the one that is not
        let mut brief: Vec<BufId> = Vec::new();
        let mut local = None;
        let (kind, len, quiet, done);
        match &form {
            Form::Write(bytes) => {
                let (buf, pieces, iov) = self.lay_out(bytes, s.pieces);
                (kind, len, quiet) = (CompletionKind::Write, bytes.len(), s.quiet);
                if s.inject {
                    brief.push(buf)
                } else {
                    local = Some((buf, pieces))
                }
                let (read, inject, completion) = (false, s.inject, !quiet);
                let o = RmaOp { ep, dest, read, iov: &iov, remote, data, context, completion, inject };
                // SAFETY: the buffer is lent until the completion, and freed only with the world.
                done = unsafe { engine.rma(&o, now) };
            }
            Form::Read(total) => {
                let (buf, pieces, iov) = self.lay(*total, s.pieces, Use::Recv);
                (kind, len, quiet) = (CompletionKind::Read, *total, false);
                local = Some((buf, pieces));
                let (read, inject, completion) = (true, false, true);
                let o = RmaOp { ep, dest, read, iov: &iov, remote, data, context, completion, inject };
                // SAFETY: as above.
                done = unsafe { engine.rma(&o, now) };
            }
            Form::Atomic { kind: form, datatype, op, operand, compare, total } => {
                let fetches = *form != AtomicKind::Update;
                (kind, len) = if fetches {
                    (CompletionKind::AtomicRead, *total)
                } else {
                    (CompletionKind::AtomicWrite, *total)
                };
                quiet = s.quiet && !fetches;
                let (o, _, operand) = self.lay_out(operand, s.pieces);
                let (c, _, compare) = self.lay_out(compare, s.pieces);
                brief.extend([o, c]);
                let (buf, pieces, result) = self.lay(if fetches { *total } else { 0 }, s.pieces, Use::Recv);
                local = Some((buf, pieces));
                let o = AtomicOp {
                    ep,
                    dest,
                    kind: *form,
                    datatype: *datatype,
                    op: *op,
                    operand: &operand,
                    compare: &compare,
                    result: &result,
                    remote,
                    context,
                    completion: !quiet,
                    inject: s.inject && !fetches,
                };
                // SAFETY: as above.
                done = unsafe { engine.atomic(&o, now) };
            }
        }
        if let Err(e) = done {
            for buf in brief.into_iter().chain(local.map(|l| l.0)) {
                self.memory.undo(buf);
            }
            match e {
                PostError::Again => return None,
                PostError::PeerGone if self.may_be_given_up(s.dst) => return None,
                e => panic!("live: p{p} cannot ask endpoint {}: {e}", s.dst),
            }
        }
        for buf in brief {
            let until = self.now + self.ask_rng.below(20 * MS);
            self.memory.give_back(buf, SCRIBBLE, until);
        }
        self.note(0x1a ^ (id as u64) << 8);
        self.trace(|| format!("p{p} asks {id} of endpoint {}: {kind:?} {len} bytes {what:?}", s.dst));
        let mut regions: Vec<usize> = Vec::new();
        match &what {
            What::Wrong(_) => {}
            What::Write(v) => regions.extend(v.iter().map(|c| c.0)),
            What::Read(v) => regions.extend(v.iter().map(|c| c.0)),
            What::Atomic(r, _) => regions.push(*r),
        }
        self.asks.list.push(Ask {
            src: s.src,
            dst: s.dst,
            kind,
            what,
            len,
            regions,
            quiet,
            data: data.is_some(),
            state: State::Open,
            inline: s.inject || len <= INLINE_MAX,
            told: false,
            local,
        });
        self.asks.open.push(id);
        if !self.asks.list[id].is_read() {
            *self.asks.writes.entry(s.src).or_default() += 1;
        }
        self.oracle.ops.push(Op::Ask(id));
        self.procs[p].app.stirred();
        Some(id)
    }

    // ---- by chance ---------------------------------------------------------------------------------------------

    /// What an application asks of the others' memory at a step, or does with its own.
    pub(crate) fn app_asks(&mut self, p: usize, engine: &mut Engine, now: Time) {
        let Some(t) = self.cfg.one_sided.clone() else { return };
        if self.cfg.alone.is_some_and(|a| a != p) {
            return;
        }
        let mut r = self.ask_rng.clone();
        if !r.percent(t.share) || self.enough {
            self.ask_rng = r;
            return;
        }
        for _ in 0..r.range(1, t.burst) {
            let open = self.asks_by(p);
            if open >= t.window || self.asks.list.len() >= ASKS_MAX {
                break;
            }
            let src = self.endpoint(p, r.index(self.cfg.eps));
            let mut dst = r.index(self.addresses.len());
            if self.owner(dst) == p && !r.percent(10) {
                dst = r.index(self.addresses.len());
            }
            if self.procs[self.owner(dst)].app.phase != Phase::Active {
                continue;
            }
            let many = r.percent(t.pieces);
            let s = AskSpec {
                src,
                dst,
                pieces: if many { r.range(2, 5) as usize } else { 1 },
                split: many && r.percent(50),
                inject: r.percent(t.inject),
                quiet: r.percent(t.quiet),
                data: r.percent(t.data),
            };
            let kind = r.weighted(&t.kinds);
            self.ask_rng = r;
            match kind {
                0 => self.random_write(p, engine, now, s, many),
                1 => self.random_read(p, engine, now, &s, many),
                2 => self.random_atomic(p, engine, now, &s, many),
                3 => self.random_wrong(p, engine, now, &s),
                4 => self.random_store(p),
                _ => self.random_renewal(p, engine, now, &t),
            }
            r = self.ask_rng.clone();
        }
        self.ask_rng = r;
    }

    /// Operations of a process that are under way.
    pub(crate) fn asks_by(&self, p: usize) -> usize {
        self.asks.open.iter().filter(|&&a| self.owner(self.asks.list[a].src) == p).count()
    }

    /// Operations on the memory of a process that are under way.
    pub(crate) fn asks_at(&self, p: usize) -> usize {
        let here = |a: &Ask| self.owner(a.dst) == p && !self.parted.contains(&(self.owner(a.src), p));
        self.asks.open.iter().filter(|&&a| here(&self.asks.list[a])).count()
    }

    /// Slots behind an endpoint in regions that `which` selects.
    fn slots_behind(&self, dst: usize, which: impl Fn(&Region) -> bool) -> Vec<(usize, usize)> {
        let (p, domain) = (self.owner(dst), self.domain_of(dst));
        let mut out = Vec::new();
        for (i, r) in self.regions.list.iter().enumerate() {
            if r.proc == p && r.domain == domain && r.registered && which(r) {
                if let Cells::Slots(v) = &r.cells {
                    out.extend((0..v.len()).map(|s| (i, s)));
                }
            }
        }
        out
    }

    fn some_of(&mut self, mut all: Vec<(usize, usize)>, many: bool) -> Vec<(usize, usize)> {
        let want = if many { self.ask_rng.range(0, 4) as usize } else { 1 };
        let mut out = Vec::new();
        while out.len() < want && !all.is_empty() {
            let i = self.ask_rng.index(all.len());
            out.push(all.swap_remove(i));
        }
        out
    }

    fn random_write(&mut self, p: usize, engine: &mut Engine, now: Time, mut s: AskSpec, many: bool) {
        let all = self.slots_behind(s.dst, |r| r.writable);
        let slots = self.some_of(all, many);
        let total: usize = self.lens(&slots).iter().sum();
        s.inject &= total <= 16_384;
        let ordered = ordered(s.inject, total, &slots);
        if slots.iter().all(|&(r, c)| self.regions.slot(r, c).is_free(p, ordered)) {
            self.post_write(p, engine, now, &s, &slots);
        }
    }

    fn random_read(&mut self, p: usize, engine: &mut Engine, now: Time, s: &AskSpec, many: bool) {
        let all = self.slots_behind(s.dst, |r| r.readable);
        let slots = self.some_of(all, many);
        self.post_read(p, engine, now, s, &slots);
    }

    fn random_atomic(&mut self, p: usize, engine: &mut Engine, now: Time, s: &AskSpec, many: bool) {
        let (owner, domain) = (self.owner(s.dst), self.domain_of(s.dst));
        let mut r = self.ask_rng.clone();
        let all: Vec<usize> = (0..self.regions.list.len())
            .filter(|&i| {
                let x = &self.regions.list[i];
                x.proc == owner && x.domain == domain && x.registered && matches!(x.cells, Cells::Words(_))
            })
            .collect();
        if all.is_empty() {
            return;
        }
        let region = all[r.index(all.len())];
        let Cells::Words(words) = &self.regions.list[region].cells else { return };
        // half of them where others are at work, too
        let first =
            if r.percent(50) { r.index(words.len()) } else { words.len() - 1 - r.index(words.len().min(8)) };
        let alike =
            |w: &Word| w.datatype == words[first].datatype && w.tale.name() == words[first].tale.name();
        let run = words[first..].iter().take_while(|w| alike(w)).count();
        let count = if many { r.log_range(1, run as u64) as usize } else { 1 };
        let look = r.percent(15);
        let mut fetch = r.percent(70);
        let next = self.asks.list.len() as u64 + 1;
        let mut deeds = Vec::new();
        for (i, word) in words.iter().enumerate().skip(first).take(count) {
            let tale = &word.tale;
            let deed = match tale {
                Tale::Ladder { owner, posted, .. } if look || *owner != p => {
                    let own = *owner == p;
                    Deed::Look(if own { *posted } else { tale.lowest() }, own.then_some(*posted))
                }
                _ if look => Deed::Look(tale.lowest(), None),
                Tale::Counter { sure, .. } => {
                    let most = if word.datatype == datatype::FLOAT { 3 } else { 1000 };
                    Deed::Add { n: r.range(1, most), floor: *sure }
                }
                Tale::Toggle { .. } => Deed::Toggle(r.draw()),
                Tale::Lock { known, .. } => Deed::Swap(*known, next << 10 | (i - first) as u64),
                Tale::Ladder { posted, .. } => Deed::Step(posted + 1),
            };
            if matches!(deed, Deed::Look(..) | Deed::Swap(..)) {
                fetch = true;
            }
            deeds.push((i, deed));
            // neighbours may be other people's: one deed for one operation
            if matches!(tale, Tale::Ladder { .. }) {
                break;
            }
        }
        self.ask_rng = r;
        self.post_atomic(p, engine, now, s, region, &deeds, fetch);
    }

    /// Something that must be refused.
    fn random_wrong(&mut self, p: usize, engine: &mut Engine, now: Time, s: &AskSpec) {
        let mut r = self.ask_rng.clone();
        let (owner, domain) = (self.owner(s.dst), self.domain_of(s.dst));
        // write, read, fetch and add
        let act = r.index(3);
        let len = if act == 2 { 8 } else { r.log_range(1, 40_000) as usize };
        let there = |x: &&Region| x.proc == owner;
        let fits = |x: &Region| match act {
            0 => x.writable,
            1 => x.readable,
            _ => x.readable && x.writable,
        };
        let (chosen, error): (Vec<&Region>, _) = match r.below(4) {
            0 => (Vec::new(), AccessError::Key),
            1 => {
                let stale = |x: &&Region| !x.registered || x.domain != domain;
                (self.regions.list.iter().filter(there).filter(stale).collect(), AccessError::Key)
            }
            2 => {
                let good = |x: &&Region| x.registered && x.domain == domain && fits(x);
                (self.regions.list.iter().filter(there).filter(good).collect(), AccessError::Bounds)
            }
            _ => {
                let bad = |x: &&Region| x.registered && x.domain == domain && !fits(x);
                (self.regions.list.iter().filter(there).filter(bad).collect(), AccessError::Permission)
            }
        };
        let mut piece = RemotePiece { addr: r.draw(), len, key: r.draw() | 1 << 15 };
        if chosen.is_empty() && error != AccessError::Key {
            self.ask_rng = r;
            return;
        }
        let mut named = None;
        if !chosen.is_empty() {
            let x = chosen[r.index(chosen.len())];
            let end = x.bytes as u64;
            let inside = (x.bytes.saturating_sub(len)) as u64;
            piece.key = x.key;
            let at = match error {
                AccessError::Bounds => match r.below(4) {
                    // by one byte, by some, by all, and before the beginning
                    0 => inside + 1,
                    1 => end - r.below(end.min(len as u64)),
                    2 => end + r.below(1 << 20),
                    _ => 0u64.wrapping_sub(r.range(1, 1 + len as u64)),
                },
                _ => r.below(inside + 1),
            };
            piece.addr = x.origin.wrapping_add(at);
            named = self.regions.list.iter().position(|y| y.key == x.key && y.proc == x.proc);
        }
        let mut remote = vec![piece];
        self.ask_rng = r;
        if act != 2 && self.ask_rng.percent(30) {
            // a piece before it that would do
            let all = self.slots_behind(s.dst, |x| if act == 0 { x.writable } else { x.readable });
            if !all.is_empty() {
                let one = all[self.ask_rng.index(all.len())];
                remote.insert(0, self.remotes(false, &[one])[0]);
            }
        }
        let total: usize = remote.iter().map(|x| x.len).sum();
        let mut s = *s;
        s.inject &= total <= 16_384;
        let form = match act {
            0 => {
                let id = self.regions.version(false);
                Form::Write(patterns(std::iter::once((id, total))))
            }
            1 => Form::Read(total),
            _ => Form::Atomic {
                kind: AtomicKind::Fetch,
                datatype: datatype::UINT64,
                op: op::SUM,
                operand: encode(datatype::UINT64, 1),
                compare: Vec::new(),
                total,
            },
        };
        if let Some(a) = self.post_ask(p, engine, now, &s, form, &remote, What::Wrong(error)) {
            let keys: Vec<usize> = remote
                .iter()
                .filter_map(|x| self.regions.list.iter().position(|y| y.key == x.key && y.proc == owner))
                .chain(named)
                .collect();
            self.asks.list[a].regions = keys;
        }
    }

    fn random_store(&mut self, p: usize) {
        let mut all = Vec::new();
        for (i, r) in self.regions.list.iter().enumerate().filter(|(_, r)| r.proc == p && r.registered) {
            if let Cells::Slots(v) = &r.cells {
                all.extend((0..v.len()).filter(|&s| v[s].writers.is_empty()).map(|s| (i, s)));
            }
        }
        if !all.is_empty() {
            let (region, slot) = all[self.ask_rng.index(all.len())];
            self.store(region, slot);
        }
    }

    fn random_renewal(&mut self, p: usize, engine: &mut Engine, now: Time, t: &OneSided) {
        let all: Vec<usize> = (0..self.regions.list.len())
            .filter(|&i| self.regions.list[i].proc == p && self.regions.list[i].registered)
            .collect();
        if all.is_empty() {
            return;
        }
        let region = all[self.ask_rng.index(all.len())];
        self.unregister(engine, region, now);
        let domain = self.regions.list[region].domain;
        let spec = match &self.regions.list[region].cells {
            Cells::Slots(_) => self.random_region(t, domain),
            Cells::Words(_) => RegionSpec { domain, ..RegionSpec::words(2) },
        };
        self.register(p, engine, &spec);
    }

    // ---- what came of it ---------------------------------------------------------------------------------------

    /// A completion of an operation that was asked here.
    pub(crate) fn on_asked(&mut self, p: usize, c: &Completion, a: usize) {
        let ask = self.asks.list[a].clone();
        assert_eq!(ask.state, State::Open, "exactly once: operation {a} completed twice: {c:?}\n  {ask:?}");
        assert_eq!(c.kind, ask.kind, "an operation completes as {c:?}\n  {ask:?}");
        assert_eq!(c.ep, self.procs[p].eps[ask.src % self.cfg.eps], "names: {c:?} is of another endpoint");
        let gone = self.regions_gone(&ask);
        match c.error {
            None => {
                assert!(!ask.quiet, "exactly once: operation {a} was to be quiet: {c:?}");
                assert_eq!(c.len, ask.len, "intact: length of operation {a}");
                self.ask_done(a);
            }
            Some(CompletionError::Access(e)) => {
                let right = match ask.what {
                    What::Wrong(why) => e == why || (gone && e == AccessError::Key),
                    _ => gone && e == AccessError::Key,
                };
                assert!(right, "live: operation {a} was refused: {e:?}\n  {ask:?}");
                self.ask_refused(a);
            }
            Some(
                CompletionError::PeerDied | CompletionError::PeerUnreachable | CompletionError::PeerClosed,
            ) if self.may_be_given_up(ask.dst) => self.ask_lost(a),
            Some(e) => panic!("live: operation {a} failed: {e:?}\n  {ask:?}"),
        }
    }

    fn regions_gone(&self, ask: &Ask) -> bool {
        ask.regions.iter().any(|&r| !self.regions.list[r].registered)
    }

    fn close_ask(&mut self, a: usize, state: State) -> Ask {
        self.asks.open.retain(|o| *o != a);
        self.asks.list[a].state = state;
        let ask = self.asks.list[a].clone();
        match &ask.what {
            What::Write(v) => {
                v.iter().for_each(|c| self.regions.slot(c.0, c.1).writers.retain(|w| *w != a));
            }
            What::Read(v) => {
                v.iter().for_each(|c| self.regions.slot(c.0, c.1).readers.retain(|w| *w != a));
            }
            What::Wrong(_) | What::Atomic(..) => {}
        }
        ask
    }

    /// What came back into the memory here; what lies between its pieces was not touched.
    fn result(&self, ask: &Ask, a: usize) -> Vec<u8> {
        let Some((buf, pieces)) = &ask.local else { return Vec::new() };
        let bytes = self.memory.bytes(*buf);
        let (mut out, mut end) = (Vec::new(), 0);
        for &(at, n) in pieces {
            assert!(
                all(&bytes[end..at], CANARY),
                "fenced: operation {a} wrote between the pieces of its result"
            );
            out.extend_from_slice(&bytes[at..at + n]);
            end = at + n;
        }
        assert!(all(&bytes[end..], CANARY), "fenced: operation {a} wrote beyond its result");
        out
    }

    fn free_local(&mut self, ask: &Ask) {
        if let Some((buf, _)) = ask.local {
            let fill = if ask.kind == CompletionKind::Write { SCRIBBLE } else { CANARY };
            let until = self.now + self.ask_rng.below(20 * MS);
            self.memory.give_back(buf, fill, until);
        }
    }

    fn ask_done(&mut self, a: usize) {
        let ask = self.close_ask(a, State::Done);
        let by = self.owner(ask.src);
        match &ask.what {
            What::Wrong(e) => {
                panic!("fenced: operation {a} is done, and had to be refused: {e:?}\n  {ask:?}")
            }
            What::Write(v) => v.iter().for_each(|c| self.regions.slot(c.0, c.1).settle(c.2)),
            What::Read(v) => {
                let got = self.result(&ask, a);
                let mut at = 0;
                for (r, s, may) in v {
                    let len = self.regions.slot(*r, *s).len;
                    if let Some(i) = self.regions.differs(&got[at..at + len], may, self.flipped()) {
                        panic!(
                            "intact: operation {a} read {:#04x} at byte {i} of a slot of {len} bytes, which is of none of {may:x?} \
                             ({CANARY:#04x}: nothing came)\n  {:?}",
                            got[at + i],
                            self.regions.slot(*r, *s)
                        );
                    }
                    at += len;
                }
            }
            What::Atomic(r, words) => {
                let fetched = (ask.kind == CompletionKind::AtomicRead).then(|| self.result(&ask, a));
                let size = size_of(self.regions.word(*r, words[0].0).datatype);
                for (i, &(w, deed)) in words.iter().enumerate() {
                    let former = fetched.as_ref().map(|b| &b[i * size..(i + 1) * size]);
                    self.regions.word(*r, w).done(deed, a, by, former);
                }
            }
        }
        self.free_local(&ask);
    }

    fn ask_refused(&mut self, a: usize) {
        let ask = self.close_ask(a, State::Refused);
        assert!(!ask.told, "fenced: operation {a} was refused, and its data told: {ask:?}");
        if ask.is_read() {
            let got = self.result(&ask, a);
            assert!(all(&got, CANARY), "fenced: operation {a} was refused, and something came back: {ask:?}");
        }
        match &ask.what {
            What::Atomic(r, words) => {
                words.iter().for_each(|&(w, deed)| self.regions.word(*r, w).refused(deed, a));
            }
            // what is too long for its order may have come in part when the region of another slot was unregistered
            What::Write(v) if ask.inline => {
                v.iter().for_each(|c| self.regions.slot(c.0, c.1).refuse(c.2));
            }
            What::Write(v) => v.iter().for_each(|c| self.regions.tear(c.2)),
            What::Wrong(_) | What::Read(_) => {}
        }
        self.free_local(&ask);
    }

    fn ask_lost(&mut self, a: usize) {
        let ask = self.close_ask(a, State::Lost);
        match &ask.what {
            What::Write(v) => {
                for c in v {
                    self.regions.slot(c.0, c.1).lose(c.2);
                    self.regions.tear(c.2);
                }
            }
            What::Atomic(r, words) => {
                words.iter().for_each(|&(w, deed)| self.regions.word(*r, w).lost(deed));
            }
            What::Wrong(_) | What::Read(_) => {}
        }
        self.free_local(&ask);
    }

    /// The process is killed, or exits: the outcome of its operations is not observed.
    pub(crate) fn abandon_asks(&mut self, p: usize) {
        for a in self.asks.open.clone() {
            if self.owner(self.asks.list[a].src) == p {
                self.ask_lost(a);
            }
        }
    }

    /// Completes what completes without an entry: an endpoint's counters show when all of it is over.
    pub(crate) fn settle_quiet(&mut self, p: usize, engine: &Engine) {
        for e in 0..self.cfg.eps {
            let ep = self.endpoint(p, e);
            let quiet: Vec<usize> = self
                .asks
                .open
                .iter()
                .copied()
                .filter(|&a| {
                    let ask = &self.asks.list[a];
                    ask.src == ep && ask.quiet
                })
                .collect();
            if quiet.is_empty() {
                continue;
            }
            let n = engine.op_counts(self.procs[p].eps[e]);
            if n.written + n.writes_failed == self.asks.writes[&ep] {
                quiet.iter().for_each(|&a| self.ask_done(a));
            }
        }
    }

    /// The target has had the data of a write.
    pub(crate) fn on_remote_write(&mut self, p: usize, engine: &Engine, c: &Completion) {
        assert!(c.error.is_none(), "a remote write ends in an error: {c:?}");
        let data = c.data.unwrap_or_else(|| panic!("a remote write without data: {c:?}"));
        let a = usize::try_from(data ^ ASK_MASK).ok().filter(|&a| a < self.asks.list.len());
        let a = a.unwrap_or_else(|| panic!("intact: data of a remote write that nobody posted: {c:?}"));
        let src = c.src.unwrap_or_else(|| panic!("a remote write without a source: {c:?}"));
        let src = self.endpoint_behind(p, engine, src);
        let ask = &mut self.asks.list[a];
        assert!(!ask.told, "exactly once: the data of operation {a} came twice: {c:?}");
        ask.told = true;
        let ep = self.procs[p].eps[ask.dst % self.cfg.eps];
        assert!(ask.data && ask.dst / self.cfg.eps == p && c.ep == ep, "names: {c:?} is not of {ask:?}");
        assert_eq!(ask.src, src, "names: operation {a} came from another endpoint");
        assert_eq!(ask.len, c.len, "intact: length of operation {a}");
        let may = !matches!(ask.what, What::Wrong(_)) && ask.state != State::Refused;
        assert!(may, "fenced: operation {a} was refused, and its data came: {ask:?}");
    }

    /// Before an application that has finished closes: the engine has counted what it was told.
    pub(crate) fn check_counts(&self, p: usize, engine: &Engine) {
        for e in 0..self.cfg.eps {
            let ep = self.endpoint(p, e);
            let n = engine.op_counts(self.procs[p].eps[e]);
            let of = |read: bool, done: bool| {
                let hit = |a: &&Ask| a.src == ep && a.is_read() == read && (a.state == State::Done) == done;
                self.asks.list.iter().filter(hit).count() as u64
            };
            let told = [of(false, true), of(false, false), of(true, true), of(true, false)];
            let counted = [n.written, n.writes_failed, n.read, n.reads_failed];
            assert_eq!(counted, told, "exactly once: endpoint {ep} counts its operations otherwise: {n:?}");
            let here = || self.asks.list.iter().filter(|a| a.dst == ep);
            // what is still open comes from a process that this one has given up, and that has not learned of it
            if here().any(|a| matches!(a.state, State::Lost | State::Open)) {
                continue;
            }
            let looks = |a: &Ask| match &a.what {
                What::Read(_) => true,
                What::Atomic(_, w) => matches!(w[0].1, Deed::Look(..)),
                What::Wrong(_) | What::Write(_) => false,
            };
            let done = |looking: bool| {
                here().filter(|a| a.state == State::Done && looks(a) == looking).count() as u64
            };
            assert_eq!(
                (n.remote_written, n.remote_read),
                (done(false), done(true)),
                "exactly once: endpoint {ep} counts what was asked of it otherwise: {n:?}"
            );
        }
    }

    /// After the liveness phase: nothing is missing.
    pub(crate) fn check_all_asked(&self) {
        if let Some(&a) = self.asks.open.first() {
            panic!("live: operation {a} never completed: {:?}", self.asks.list[a]);
        }
        for (a, ask) in self.asks.list.iter().enumerate() {
            let q = &self.procs[self.owner(ask.dst)];
            let reads = !q.killed && !q.app.exited;
            assert!(
                !ask.data || ask.told || ask.state != State::Done || !reads,
                "exactly once: the data of operation {a} never came: {ask:?}"
            );
        }
    }

    /// What is missing.
    pub(crate) fn describe_asks(&self) -> String {
        use std::fmt::Write;
        let mut s =
            format!("\n  {} one-sided operations, {} open", self.asks.list.len(), self.asks.open.len());
        for &a in self.asks.open.iter().take(8) {
            let _ = write!(s, "\n  operation {a}: {:?}", self.asks.list[a]);
        }
        s
    }

    /// What a word holds, for a story.
    pub fn word_value(&self, region: usize, word: usize) -> Option<u64> {
        let r = &self.regions.list[region];
        let Cells::Words(words) = &r.cells else { return None };
        let w = &words[word];
        decode(w.datatype, &r.bytes(&self.memory, w.at, size_of(w.datatype)))
    }
}
