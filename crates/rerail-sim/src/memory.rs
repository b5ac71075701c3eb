//! The users' memory. Owns: every buffer that is ever posted to an engine, and what may touch it now.
//!
//! Invariants 4 and 5 are checked here from outside, three times over: a window of an engine that reaches into memory
//! which was given back is refused before a byte moves; buffers that were given back are filled with one byte value and
//! must still hold it when they are used again; and a buffer is used again by later operations, so that a late access
//! is also seen as wrong contents. Buffers are freed only with the whole world: a faulty engine is reported, it does not
//! crash the simulator.

use crate::rng::mix;
use rerail_core::IoVec;
use std::collections::{BTreeMap, VecDeque};

/// A buffer.
pub type BufId = u32;

/// What may touch a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The application alone.
    Idle,
    /// The engine reads it.
    Send,
    /// The engine writes it.
    Recv,
    /// It is registered: the engine does what peers may.
    Region {
        /// Peers may read it.
        readable: bool,
        /// Peers may write it.
        writable: bool,
    },
}

struct Region {
    ptr: *mut u8,
    cap: usize,
    /// What its present or last user asked for, and a guard behind it: only this much is filled and verified.
    len: usize,
    state: Use,
    /// What all of it must hold while it is idle.
    fill: u8,
    /// Ranges of a multi-receive that were reported already, with their fill.
    done: Vec<(usize, usize)>,
}

/// All buffers.
#[derive(Default)]
pub struct Memory {
    regions: Vec<Region>,
    by_addr: BTreeMap<usize, BufId>,
    free: Vec<Vec<BufId>>,
    quarantine: VecDeque<(u64, BufId)>,
    /// Bytes of all buffers.
    allocated: usize,
}

/// Fill of a send buffer after its completion: what a false completion would send.
pub const SCRIBBLE: u8 = 0xDD;
/// Fill of a receive buffer after its completion, and of the gaps between pieces.
pub const CANARY: u8 = 0xC5;

/// Bytes of buffers that a world may have before its applications post no more.
const MOST_BYTES: usize = 1 << 29;

/// Bytes behind what was asked for that are filled and verified too.
const GUARD_BYTES: usize = 64;

fn class(len: usize) -> usize {
    (len + 16).max(64).next_power_of_two().trailing_zeros() as usize
}

impl Memory {
    /// A buffer of at least `len` bytes, filled with [`CANARY`].
    pub fn take(&mut self, len: usize) -> BufId {
        self.take_written(len, 0)
    }

    /// The same, but for its first `written` bytes, which the application writes at once: they hold anything until then.
    pub fn take_written(&mut self, len: usize, written: usize) -> BufId {
        let c = class(len);
        if self.free.len() <= c {
            self.free.resize_with(c + 1, Vec::new);
        }
        let (id, canary) = match self.free[c].pop() {
            Some(id) => {
                self.verify_idle(id);
                let r = &self.regions[id as usize];
                // what was just verified need not be written again
                (id, if r.fill == CANARY { r.len } else { 0 })
            }
            None => (self.allocate(c), 0),
        };
        let r = &mut self.regions[id as usize];
        r.len = (len + GUARD_BYTES).min(1 << c);
        r.fill = CANARY;
        let begin = canary.max(written).min(r.len);
        self.bytes_mut(id)[begin..].fill(CANARY);
        id
    }

    /// A new buffer of a class. Only as much of its memory is touched as is asked for.
    fn allocate(&mut self, class: usize) -> BufId {
        self.allocated += 1 << class;
        let mut bytes = vec![0; 1 << class].into_boxed_slice();
        let ptr = bytes.as_mut_ptr();
        std::mem::forget(bytes);
        let id = self.regions.len() as BufId;
        self.by_addr.insert(ptr as usize, id);
        self.regions.push(Region {
            ptr,
            cap: 1 << class,
            len: 0,
            state: Use::Idle,
            fill: 0,
            done: Vec::new(),
        });
        id
    }

    /// Hands the buffer to an engine.
    pub fn lend(&mut self, id: BufId, to: Use) {
        let r = &mut self.regions[id as usize];
        assert_eq!(r.state, Use::Idle, "simulator: buffer {id} is lent twice");
        r.state = to;
        r.done.clear();
    }

    /// A buffer that is lent is to be used otherwise from now on.
    pub fn lend_otherwise(&mut self, id: BufId, to: Use) {
        assert_ne!(self.regions[id as usize].state, Use::Idle, "simulator: buffer {id} is not lent");
        self.regions[id as usize].state = to;
    }

    /// The engine has reported it done: overwrite it, and use it again after `until`.
    pub fn give_back(&mut self, id: BufId, fill: u8, until: u64) {
        self.regions[id as usize].state = Use::Idle;
        self.fill(id, fill);
        self.quarantine.push_back((until, id));
    }

    /// Takes the buffer back while a refused post is undone.
    pub fn undo(&mut self, id: BufId) {
        self.regions[id as usize].state = Use::Idle;
        self.fill(id, CANARY);
        let c = self.regions[id as usize].cap.trailing_zeros() as usize;
        self.free[c].push(id);
    }

    /// A part of a multi-receive was reported: the engine must not touch it any more.
    pub fn part_done(&mut self, id: BufId, at: usize, len: usize) {
        let r = &mut self.regions[id as usize];
        for &(a, l) in &r.done {
            assert!(
                at + len <= a || a + l <= at,
                "fenced: two messages share bytes of one multi-receive buffer"
            );
        }
        if len > 0 {
            r.done.push((at, len));
            self.bytes_mut(id)[at..at + len].fill(SCRIBBLE);
        }
    }

    /// The parts of a multi-receive that were reported must be as the application left them.
    pub fn verify_parts(&self, id: BufId) {
        let r = &self.regions[id as usize];
        for &(at, len) in &r.done {
            assert!(
                all(&self.bytes(id)[at..at + len], SCRIBBLE),
                "fenced: a multi-receive buffer was written after its message was reported"
            );
        }
    }

    /// Lets buffers whose quarantine is over be used again.
    pub fn sweep(&mut self, now: u64) {
        while let Some(&(until, id)) = self.quarantine.front() {
            if until > now {
                break;
            }
            self.quarantine.pop_front();
            let c = self.regions[id as usize].cap.trailing_zeros() as usize;
            self.free[c].push(id);
        }
    }

    /// Every idle buffer must hold what the application left in it.
    pub fn verify_all(&self) {
        for id in 0..self.regions.len() {
            if self.regions[id].state == Use::Idle {
                self.verify_idle(id as BufId);
            } else {
                self.verify_parts(id as BufId);
            }
        }
    }

    /// So much is lent that applications had better wait: to a process that does not answer they could post without end.
    pub fn is_short(&self) -> bool {
        self.allocated > MOST_BYTES
    }

    /// Start of the buffer.
    pub fn ptr(&self, id: BufId) -> *mut u8 {
        self.regions[id as usize].ptr
    }

    /// Its bytes.
    pub fn bytes(&self, id: BufId) -> &[u8] {
        let r = &self.regions[id as usize];
        // SAFETY: the region lives as long as `self`, and engines only write to it while the world has no reference.
        unsafe { std::slice::from_raw_parts(r.ptr, r.len) }
    }

    /// Its bytes, to be written by the application.
    pub fn bytes_mut(&mut self, id: BufId) -> &mut [u8] {
        let r = &mut self.regions[id as usize];
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(r.ptr, r.len) }
    }

    /// Whether every piece of a window that lies in users' memory lies in memory that was lent for that use.
    ///
    /// # Errors
    /// A sentence that says which promise is broken.
    pub fn check_window(&self, pieces: &[IoVec], want: Use) -> Result<(), (BufId, String)> {
        for p in pieces {
            let addr = p.ptr as usize;
            let Some((_, &id)) = self.by_addr.range(..=addr).next_back() else { continue };
            let r = &self.regions[id as usize];
            let at = addr - r.ptr as usize;
            if at >= r.cap {
                continue;
            }
            if at + p.len > r.len {
                return Err((id, format!("a window reaches beyond the end of buffer {id}")));
            }
            let allowed = match r.state {
                Use::Region { readable, writable } => {
                    if want == Use::Recv {
                        writable
                    } else {
                        readable
                    }
                }
                state => state == want,
            };
            if !allowed {
                let what = match want {
                    Use::Recv => "fenced: a stream would read into",
                    _ => "no false completion: a stream would write out of",
                };
                return Err((id, format!("{what} buffer {id}, which is {:?}", r.state)));
            }
            if r.done.iter().any(|&(a, l)| at < a + l && a < at + p.len) {
                return Err((id, format!("fenced: a stream would read into a reported part of buffer {id}")));
            }
        }
        Ok(())
    }

    fn fill(&mut self, id: BufId, fill: u8) {
        self.regions[id as usize].fill = fill;
        self.bytes_mut(id).fill(fill);
    }

    fn verify_idle(&self, id: BufId) {
        let r = &self.regions[id as usize];
        if !all(self.bytes(id), r.fill) {
            let at = self.bytes(id).iter().position(|&b| b != r.fill).unwrap_or(0);
            panic!("fenced: buffer {id} was written at byte {at} after its completion");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for r in &self.regions {
            // SAFETY: made in `take` from a boxed slice of this length; freed once, and no engine is left.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(r.ptr, r.cap)) });
        }
    }
}

/// Whether all of `b` is `v`.
pub fn all(b: &[u8], v: u8) -> bool {
    // Each byte with the next one: that is a library's comparison of memory, the fastest there is, and most of what a seed takes is
    // to look at memory. A page at a time, so that the second look finds it in the cache.
    b.chunks(4096).all(|page| page[0] == v && page[1..] == page[..page.len() - 1])
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Writes the beginning of message `id` into `out`: its id, then a pattern of its own.
pub fn fill_message(id: u64, out: &mut [u8]) {
    let (of, last) = (word_of(id), out.len() as u64 / 8);
    let mut words = out.chunks_exact_mut(8);
    for (n, word) in (0..).zip(&mut words) {
        word.copy_from_slice(&of(n).to_le_bytes());
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&of(last).to_le_bytes()[..rest.len()]);
}

/// The `n`th eight bytes of a message.
fn word_of(id: u64) -> impl Fn(u64) -> u64 {
    let key = mix(id);
    move |n| if n == 0 { id } else { key.wrapping_add((n - 1).wrapping_mul(STEP)) }
}

/// First byte where `got`, the beginning of message `id`, differs from what was sent.
pub fn message_differs(id: u64, got: &[u8]) -> Option<usize> {
    let of = word_of(id);
    let mut words = got.chunks_exact(8);
    let differs = (0..).zip(&mut words).fold(0, |differs, (n, word)| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        differs | (u64::from_le_bytes(bytes) ^ of(n))
    });
    let rest = words.remainder();
    if differs == 0 && rest == &of(got.len() as u64 / 8).to_le_bytes()[..rest.len()] {
        return None;
    }
    let mut want = vec![0; got.len()];
    fill_message(id, &mut want);
    got.iter().zip(&want).position(|(a, b)| a != b)
}
