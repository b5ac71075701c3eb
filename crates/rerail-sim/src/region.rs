//! Registered memory, and what it may hold. Owns: the oracle of one-sided operations.
//!
//! A region is cut into *slots* or *words*. Each write fills a slot with a pattern of its own, and only one process at a time
//! writes it: it holds the last completed write, or one posted since, byte by byte. What one process asks of another in
//! orders takes effect in the order of posting, so after such a write the writer itself reads nothing else. Words are for
//! atomic operations, each of a kind whose outcome shows an operation that took effect twice, not at all, or in another order:
//!
//! * a *counter* is added to: the intervals between former and new value are disjoint, and the end is the sum;
//! * a *toggle* is XORed: the end is the XOR of all masks;
//! * a *ladder* is set to increasing numbers by one process: the former value is always the number before;
//! * a *lock* is swapped from a known value to one never used before: only one operation finds each value.
//!
//! All of it holds under every order of arrival. An operation that ended in an error because its peer is lost may have taken
//! effect, or do so later.

use crate::memory::{BufId, CANARY, Memory, all, fill_message, message_differs};
use rerail_core::atomic::datatype;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Numbers of patterns begin here: no message has them.
const VERSION_FIRST: u64 = 1 << 40;
/// Those of writes too long for their order begin here: their bytes are placed as they come.
const BULK_FIRST: u64 = 1 << 41;
/// With more uncertain masks than this a toggle may hold anything.
const TOGGLES_UNCERTAIN_MAX: usize = 10;

/// Registered memory.
#[derive(Debug)]
pub struct Region {
    /// Process that owns it.
    pub proc: usize,
    /// See [`rerail_core::Region`].
    pub domain: u32,
    /// See `domain`.
    pub key: u64,
    /// See `domain`.
    pub origin: u64,
    /// Peers may read it.
    pub readable: bool,
    /// Peers may write it.
    pub writable: bool,
    /// Its memory.
    pub buf: BufId,
    /// Pieces of the buffer: offset, length.
    pub pieces: Vec<(usize, usize)>,
    /// Bytes of all pieces.
    pub bytes: usize,
    /// Peers may use it.
    pub registered: bool,
    /// What it is cut into.
    pub cells: Cells,
}

/// What a region is cut into.
#[derive(Debug)]
pub enum Cells {
    /// For writes and reads.
    Slots(Vec<Slot>),
    /// For atomic operations.
    Words(Vec<Word>),
}

/// A pattern that a process wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Number of the pattern.
    pub id: u64,
    /// Process that wrote it.
    pub by: usize,
    /// It travels inside its order, so later operations of the same process see it.
    pub ordered: bool,
}

/// A part of a region that is written as a whole.
#[derive(Debug)]
pub struct Slot {
    /// First byte in the region.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// What may be there, in the order of posting: the last that is certain, and what is under way.
    pub held: Vec<Version>,
    /// Of writers that are lost: it may come at any time.
    pub late: Vec<u64>,
    /// Writes under way.
    pub writers: Vec<usize>,
    /// Reads under way.
    pub readers: Vec<usize>,
}

impl Slot {
    /// Whether a write by this process may be posted.
    pub fn is_free(&self, by: usize, ordered: bool) -> bool {
        self.writers.is_empty() || (ordered && self.held.iter().skip(1).all(|v| v.by == by && v.ordered))
    }

    /// What a read by this process may find if it is posted now.
    pub fn readable_by(&self, by: usize) -> Vec<u64> {
        let last = self.held[self.held.len() - 1];
        let own = last.by == by && last.ordered;
        let from = if own { self.held.len() - 1 } else { 0 };
        self.held[from..].iter().map(|v| v.id).chain(self.late.iter().copied()).collect()
    }

    /// The write of this version is complete.
    pub fn settle(&mut self, version: u64) {
        if let Some(i) = self.held.iter().position(|v| v.id == version) {
            self.held.drain(..i);
        }
    }

    /// The write of this version was refused, because it names another region that is gone.
    pub fn refuse(&mut self, version: u64) {
        self.held.retain(|v| v.id != version);
    }

    /// The write of this version is lost.
    pub fn lose(&mut self, version: u64) {
        self.late.push(version);
    }
}

/// First byte of `got` that no single one of the versions has there.
fn differs(got: &[u8], versions: &[u64]) -> Option<usize> {
    if versions.iter().any(|&v| message_differs(v, got).is_none()) {
        return None;
    }
    let patterns: Vec<Vec<u8>> = versions
        .iter()
        .map(|&v| {
            let mut b = vec![0; got.len()];
            fill_message(v, &mut b);
            b
        })
        .collect();
    (0..got.len()).find(|&i| !patterns.iter().any(|p| p[i] == got[i]))
}

/// What becomes of one word by one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// This much is added; what is fetched is at least `floor`.
    Add {
        /// Addend.
        n: u64,
        /// What was certain when it was posted.
        floor: u64,
    },
    /// These bits are toggled.
    Toggle(u64),
    /// This number is written.
    Step(u64),
    /// `.1` is put in the place of `.0`.
    Swap(u64, u64),
    /// Looks; finds something between, the upper end when it is known beforehand.
    Look(u64, Option<u64>),
}

/// What has been done to a word.
#[derive(Debug)]
pub enum Tale {
    /// Sums of completed, open and lost addends; fetched intervals; the newest fetch of each process.
    Counter {
        /// Completed.
        sure: u64,
        /// Under way.
        open: u64,
        /// Of operations that ended in an error because the peer is lost.
        lost: u64,
        /// Former value, new value and number of fetches.
        spans: BTreeMap<u64, (u64, usize)>,
        /// By process: number of the newest fetch, and what it found.
        newest: FxHashMap<usize, (usize, u64)>,
    },
    /// XOR of completed masks; others.
    Toggle {
        /// Completed.
        sure: u64,
        /// Under way or lost.
        uncertain: Vec<(usize, u64)>,
    },
    /// Numbers that its owner has written.
    Ladder {
        /// The only process that writes it.
        owner: usize,
        /// Highest that is complete.
        done: u64,
        /// Highest that was posted.
        posted: u64,
    },
    /// Swaps that were tried, and those that won.
    Lock {
        /// A value that it had lately.
        known: u64,
        /// Compared, put in its place, number; those that failed are taken out.
        tried: Vec<(u64, u64, usize)>,
        /// By compared value the operation that found it.
        won: FxHashMap<u64, usize>,
    },
}

/// One value for atomic operations.
#[derive(Debug)]
pub struct Word {
    /// First byte in the region.
    pub at: usize,
    /// Datatype, as the engine numbers them.
    pub datatype: u8,
    /// What has been done to it.
    pub tale: Tale,
}

/// Bytes of a value.
pub fn size_of(d: u8) -> usize {
    match d {
        datatype::INT32 | datatype::UINT32 | datatype::FLOAT => 4,
        datatype::INT64 | datatype::UINT64 | datatype::DOUBLE => 8,
        datatype::INT128 | datatype::UINT128 => 16,
        _ => unreachable!("no word has this datatype"),
    }
}

/// A value in memory.
pub fn encode(d: u8, v: u64) -> Vec<u8> {
    match d {
        datatype::FLOAT => (v as f32).to_le_bytes().to_vec(),
        datatype::DOUBLE => (v as f64).to_le_bytes().to_vec(),
        _ => u128::from(v).to_le_bytes()[..size_of(d)].to_vec(),
    }
}

/// The other way round; `None`: no operation makes such a value.
pub fn decode(d: u8, b: &[u8]) -> Option<u64> {
    let v = match d {
        datatype::FLOAT => f32::from_le_bytes(b.try_into().ok()?) as u64,
        datatype::DOUBLE => f64::from_le_bytes(b.try_into().ok()?) as u64,
        _ => {
            let mut x = [0; 16];
            x[..b.len()].copy_from_slice(b);
            u64::try_from(u128::from_le_bytes(x)).ok()?
        }
    };
    (encode(d, v) == b).then_some(v)
}

impl Word {
    /// A word of zero.
    pub fn new(at: usize, datatype: u8, tale: Tale) -> Self {
        Self { at, datatype, tale }
    }

    /// An operation was posted.
    pub fn posted(&mut self, deed: Deed, ask: usize) {
        match (&mut self.tale, deed) {
            (Tale::Counter { open, .. }, Deed::Add { n, .. }) => *open += n,
            (Tale::Toggle { uncertain, .. }, Deed::Toggle(mask)) => uncertain.push((ask, mask)),
            (Tale::Ladder { posted, .. }, Deed::Step(n)) => *posted = n,
            (Tale::Lock { tried, .. }, Deed::Swap(compare, swap)) => tried.push((compare, swap, ask)),
            (_, Deed::Look(..)) => {}
            _ => unreachable!("{deed:?} is not done to {:?}", self.tale),
        }
    }

    /// It is complete, and gave back what was there before.
    pub fn done(&mut self, deed: Deed, ask: usize, by: usize, former: Option<&[u8]>) {
        let former = former.map(|b| {
            decode(self.datatype, b)
                .unwrap_or_else(|| panic!("exactly once: operation {ask} fetched {b:02x?}"))
        });
        let word = format!("{:?}", self.tale.name());
        match (&mut self.tale, deed) {
            (Tale::Counter { sure, open, lost, spans, newest }, Deed::Add { n, floor }) => {
                *open -= n;
                *sure += n;
                let Some(f) = former else { return };
                assert!(
                    f >= floor && f + n <= *sure + *open + *lost,
                    "exactly once: operation {ask} on a {word} fetched {f}: {floor} was certain before it, and {sure} + {open} \
                     + {lost} is all there is"
                );
                let next = spans.range(..f + n).next_back().filter(|(_, (end, _))| *end > f);
                assert!(
                    next.is_none(),
                    "exactly once: operation {ask} on a {word} took {f}..{}, and {next:?} overlaps it",
                    f + n
                );
                spans.insert(f, (f + n, ask));
                let last = newest.entry(by).or_insert((ask, f));
                assert!(
                    (ask < last.0) == (f < last.1) || ask == last.0,
                    "in order: operation {ask} of p{by} on a {word} found {f}, and {} found {}",
                    last.0,
                    last.1
                );
                *last = (*last).max((ask, f));
            }
            (Tale::Toggle { sure, uncertain }, Deed::Toggle(mask)) => {
                *sure ^= mask;
                uncertain.retain(|u| u.0 != ask);
            }
            (Tale::Ladder { done, .. }, Deed::Step(n)) => {
                *done = n.max(*done);
                assert!(
                    former.is_none_or(|f| f + 1 == n),
                    "in order: operation {ask} on a {word} wrote {n} and found {former:?}"
                );
            }
            (Tale::Lock { known, tried, won }, Deed::Swap(compare, swap)) => {
                let f = former.expect("a comparison fetches");
                let made = f == 0 || tried.iter().any(|t| t.1 == f) || won.contains_key(&f);
                assert!(made, "intact: operation {ask} on a {word} found {f}, which nobody put there");
                if f == compare {
                    let other = won.insert(compare, ask);
                    assert!(other.is_none(), "exactly once: operations {ask} and {other:?} both found {f}");
                    *known = swap;
                } else {
                    tried.retain(|t| t.2 != ask);
                    *known = f;
                }
            }
            (tale, Deed::Look(low, high)) => {
                let f = former.expect("a look fetches");
                let high = high.or_else(|| tale.highest());
                assert!(
                    f >= low && high.is_none_or(|h| f <= h),
                    "in order: operation {ask} on a {word} found {f}, and not {low} to {high:?}"
                );
            }
            (_, deed) => unreachable!("{deed:?} is not done to a {word}"),
        }
    }

    /// It was refused.
    pub fn refused(&mut self, deed: Deed, ask: usize) {
        match (&mut self.tale, deed) {
            (Tale::Counter { open, .. }, Deed::Add { n, .. }) => *open -= n,
            (Tale::Toggle { uncertain, .. }, _) => uncertain.retain(|u| u.0 != ask),
            (Tale::Lock { tried, .. }, _) => tried.retain(|t| t.2 != ask),
            _ => {}
        }
    }

    /// Its peer is lost.
    pub fn lost(&mut self, deed: Deed) {
        if let (Tale::Counter { open, lost, .. }, Deed::Add { n, .. }) = (&mut self.tale, deed) {
            *open -= n;
            *lost += n;
        }
    }

    /// What the memory must hold now.
    fn check(&self, got: &[u8]) {
        let v = decode(self.datatype, got)
            .unwrap_or_else(|| panic!("intact: a {} holds {got:02x?}", self.tale.name()));
        match &self.tale {
            Tale::Counter { sure, open, lost, .. } => assert!(
                *sure <= v && v <= sure + open + lost,
                "exactly once: a counter is {v}, and {sure} was added, at most {open} + {lost} besides"
            ),
            Tale::Toggle { sure, uncertain } => {
                if uncertain.len() <= TOGGLES_UNCERTAIN_MAX {
                    let some = (0..1u32 << uncertain.len()).any(|set| {
                        let chosen = uncertain.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
                        chosen.fold(*sure, |x, (_, u)| x ^ u.1) == v
                    });
                    assert!(
                        some,
                        "exactly once: a toggle is {v:#x} and not {sure:#x}, uncertain: {uncertain:x?}"
                    );
                }
            }
            Tale::Ladder { done, posted, .. } => {
                assert!(
                    (*done..=*posted).contains(&v),
                    "in order: a ladder is {v} and not {done} to {posted}"
                );
            }
            Tale::Lock { tried, won, .. } => {
                let mut reached = vec![0];
                let mut i = 0;
                let mut here = false;
                while let Some(&x) = reached.get(i) {
                    i += 1;
                    let winner = won.get(&x);
                    here |= x == v && winner.is_none();
                    let next = tried.iter().filter(|t| t.0 == x && winner.is_none_or(|w| *w == t.2));
                    reached.extend(next.map(|t| t.1));
                }
                assert!(
                    here,
                    "exactly once: a lock is {v}, which follows from no order of {tried:?}, {won:?}"
                );
            }
        }
    }
}

impl Tale {
    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Tale::Counter { .. } => "counter",
            Tale::Toggle { .. } => "toggle",
            Tale::Ladder { .. } => "ladder",
            Tale::Lock { .. } => "lock",
        }
    }

    /// What is certain, for one that looks.
    pub fn lowest(&self) -> u64 {
        match self {
            Tale::Counter { sure, .. } => *sure,
            Tale::Ladder { done, .. } => *done,
            Tale::Toggle { .. } | Tale::Lock { .. } => 0,
        }
    }

    fn highest(&self) -> Option<u64> {
        match self {
            Tale::Counter { sure, open, lost, .. } => Some(sure + open + lost),
            Tale::Ladder { posted, .. } => Some(*posted),
            Tale::Toggle { .. } | Tale::Lock { .. } => None,
        }
    }
}

/// All regions that ever were.
#[derive(Debug, Default)]
pub struct Regions {
    /// By index.
    pub list: Vec<Region>,
    versions: u64,
    /// Bulk versions whose write was refused or lost in the middle.
    torn: FxHashSet<u64>,
}

impl Regions {
    /// Number of a pattern that was never used. `bulk`: its write is too long for its order.
    pub fn version(&mut self, bulk: bool) -> u64 {
        self.versions += 1;
        self.versions + if bulk { BULK_FIRST } else { VERSION_FIRST }
    }

    /// The write of this version ended in the middle.
    pub fn tear(&mut self, version: u64) {
        if version >= BULK_FIRST {
            self.torn.insert(version);
        }
    }

    /// First byte of `got` that is of none of these versions. An incomplete bulk write may hold other bytes: damaged
    /// ones (`flipped`: bits were flipped) stay until they are sent again, and a frame that is broken off ends in
    /// zeros.
    pub fn differs(&self, got: &[u8], versions: &[u64], flipped: bool) -> Option<usize> {
        let loose = |v: &u64| *v >= BULK_FIRST && (flipped || self.torn.contains(v));
        if versions.len() > 1 && versions.iter().any(loose) {
            return None;
        }
        differs(got, versions)
    }

    /// Region `i` holds what it may hold.
    pub fn check(&self, i: usize, memory: &Memory, flipped: bool) {
        self.list[i].check(memory, |got, may| self.differs(got, may, flipped));
    }

    /// A slot.
    pub fn slot(&mut self, region: usize, slot: usize) -> &mut Slot {
        match &mut self.list[region].cells {
            Cells::Slots(v) => &mut v[slot],
            Cells::Words(_) => unreachable!("region {region} has words"),
        }
    }

    /// A word.
    pub fn word(&mut self, region: usize, word: usize) -> &mut Word {
        match &mut self.list[region].cells {
            Cells::Words(v) => &mut v[word],
            Cells::Slots(_) => unreachable!("region {region} has slots"),
        }
    }
}

impl Region {
    /// Its bytes from `at` on.
    pub fn bytes(&self, memory: &Memory, mut at: usize, mut len: usize) -> Vec<u8> {
        let b = memory.bytes(self.buf);
        let mut out = Vec::with_capacity(len);
        for &(start, n) in &self.pieces {
            if at >= n {
                at -= n;
                continue;
            }
            let k = (n - at).min(len);
            out.extend_from_slice(&b[start + at..start + at + k]);
            len -= k;
            at = 0;
        }
        out
    }

    /// Writes into it, as its owner.
    pub fn store(&self, memory: &mut Memory, mut at: usize, mut bytes: &[u8]) {
        let b = memory.bytes_mut(self.buf);
        for &(start, n) in &self.pieces {
            if at >= n {
                at -= n;
                continue;
            }
            let k = (n - at).min(bytes.len());
            b[start + at..start + at + k].copy_from_slice(&bytes[..k]);
            bytes = &bytes[k..];
            at = 0;
        }
    }

    /// It holds what it may hold, as `differs` sees it, and nothing beside it was touched.
    fn check(&self, memory: &Memory, differs: impl Fn(&[u8], &[u64]) -> Option<usize>) {
        let whole = memory.bytes(self.buf);
        let mut end = 0;
        for &(at, n) in &self.pieces {
            assert!(
                all(&whole[end..at], CANARY),
                "fenced: something was written between the pieces of a region"
            );
            end = at + n;
        }
        assert!(all(&whole[end..], CANARY), "fenced: something was written beyond a region");
        let mut end = 0;
        let mut gap = |at: usize, len: usize| {
            let b = self.bytes(memory, end, at - end);
            assert!(all(&b, CANARY), "fenced: something was written between the cells of a region");
            end = at + len;
        };
        match &self.cells {
            Cells::Slots(v) => {
                for s in v {
                    gap(s.at, s.len);
                    let got = self.bytes(memory, s.at, s.len);
                    let mut may: Vec<u64> = s.held.iter().map(|v| v.id).collect();
                    may.extend(&s.late);
                    if let Some(at) = differs(&got, &may) {
                        panic!(
                            "intact: byte {at} of a slot of {} bytes is {:#04x}, which is of none of {may:x?}; key {} of p{}",
                            s.len, got[at], self.key, self.proc
                        );
                    }
                }
            }
            Cells::Words(v) => {
                for w in v {
                    let size = size_of(w.datatype);
                    gap(w.at, size);
                    w.check(&self.bytes(memory, w.at, size));
                }
            }
        }
        gap(self.bytes, 0);
    }
}
