//! The words in which the two sides of a ring agree on a piece of the writer's memory that is lent. Owns: their states, and the order in
//! which they are read and written. Every order in which two processes can pass through them is tried in `tests/models.rs`.
//!
//! One word decides everything: its state, the number of the loan and how much of it was read change in one step. So a reader that was
//! stopped for however long can't take what was called in, or lent again elsewhere, for what it began with.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What both sides see. All zeros at first; on cache lines of its own.
#[derive(Default)]
#[repr(C, align(128))]
pub(crate) struct Words {
    /// [`State`], the number of the loan, and how much of it was read.
    word: AtomicU64,
    /// Where the piece is in the writer's memory, and its length.
    at: AtomicU64,
    len: AtomicU64,
    /// Where the writer's mark is in its memory; 0: not published yet. And what is to be found there.
    mark_at: AtomicU64,
    mark: AtomicU64,
    /// The reader can read the writer's memory.
    accepted: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is lent, or it was given back.
    None = 0,
    /// The reader may begin, or go on.
    Lent = 1,
    /// The reader is at it.
    Reading = 2,
    /// The reader can't: the piece goes another way.
    Refused = 3,
}

const READ_BITS: u32 = 40;
const STATE_SHIFT: u32 = 62;

fn pack(state: State, number: u64, read: usize) -> u64 {
    (state as u64) << STATE_SHIFT
        | (number << READ_BITS) & !(3 << STATE_SHIFT)
        | read as u64 & ((1 << READ_BITS) - 1)
}

fn state_of(word: u64) -> State {
    match word >> STATE_SHIFT {
        0 => State::None,
        1 => State::Lent,
        2 => State::Reading,
        _ => State::Refused,
    }
}

fn read_of(word: u64) -> usize {
    (word & ((1 << READ_BITS) - 1)) as usize
}

/// The same word in another state, with so much read.
fn become_of(word: u64, state: State, read: usize) -> u64 {
    let number = (word & !(3 << STATE_SHIFT)) >> READ_BITS;
    pack(state, number, read)
}

/// What the reader was offered. The other process wrote it: check it before it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// Where the piece is in the writer's memory.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// How much of it was read before.
    pub read: usize,
    word: u64,
}

impl Offer {
    /// Bytes that are still to be read; none when what it says makes no sense.
    pub fn left(&self) -> Option<usize> {
        (self.len as usize).checked_sub(self.read).filter(|_| self.len < 1 << READ_BITS)
    }
}

impl Words {
    // --- the writer's side ---

    /// The writer's mark is `mark`, at `at`.
    pub fn set_mark(&self, at: u64, mark: u64) {
        self.mark.store(mark, Ordering::Relaxed);
        self.mark_at.store(at, Ordering::Release);
    }

    /// Whether the reader has found that it can read.
    pub fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire) != 0
    }

    /// Lends `len` bytes at `at`. Nothing is lent now, and no loan had this number lately.
    pub fn lend(&self, number: u64, at: u64, len: u64) {
        self.at.store(at, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.word.store(pack(State::Lent, number, 0), Ordering::Release);
    }

    /// How it stands, and how much was read.
    pub fn look(&self) -> (State, usize) {
        let word = self.word.load(Ordering::Acquire);
        (state_of(word), read_of(word))
    }

    /// Whether the reader is to be waited for.
    pub fn is_out(&self) -> bool {
        matches!(self.look().0, State::Lent | State::Reading)
    }

    /// Ends whatever there is; how much was read of it. What is read from now on is void.
    pub fn call_in(&self) -> usize {
        read_of(self.word.swap(0, Ordering::AcqRel))
    }

    // --- the reader's side ---

    /// Where the writer's mark is, and what is to be there, if that is published.
    pub fn mark(&self) -> Option<(u64, u64)> {
        let at = self.mark_at.load(Ordering::Acquire);
        (at != 0).then(|| (at, self.mark.load(Ordering::Relaxed)))
    }

    /// The writer's memory can be read.
    pub fn accept(&self) {
        self.accepted.store(1, Ordering::Release);
    }

    /// Whether there is a piece to be read.
    pub fn is_lent(&self) -> bool {
        self.look().0 == State::Lent
    }

    /// What there is to be read.
    pub fn offer(&self) -> Option<Offer> {
        let word = self.word.load(Ordering::Acquire);
        if state_of(word) != State::Lent {
            return None;
        }
        // Of a later loan, perhaps: then the word is another by now, and the offer can't be taken.
        let (at, len) = (self.at.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        Some(Offer { at, len, read: read_of(word), word })
    }

    /// The reader begins; not if the offer does not hold any more.
    pub fn begin(&self, offer: &Offer) -> bool {
        self.turn(offer.word, become_of(offer.word, State::Reading, offer.read))
    }

    /// The reader that has begun is through with `n` bytes more; whether they count.
    pub fn end(&self, offer: &Offer, n: usize) -> bool {
        let read = offer.read + n;
        // given back when it was read to its end
        let state = if read == offer.len as usize { State::None } else { State::Lent };
        self.turn(become_of(offer.word, State::Reading, offer.read), become_of(offer.word, state, read))
    }

    /// The reader that has begun can't read it.
    pub fn refuse(&self, offer: &Offer) {
        let (from, to) = (State::Reading, State::Refused);
        self.turn(become_of(offer.word, from, offer.read), become_of(offer.word, to, offer.read));
    }

    fn turn(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Words {
        /// As a reader leaves them that was stopped while it copied.
        pub fn leave_reading(&self) {
            let word = self.word.load(Ordering::Relaxed);
            self.word.store(become_of(word, State::Reading, 0), Ordering::Relaxed);
        }

        /// As a broken reader leaves them.
        pub fn say(&self, state: State, read: usize) {
            self.word.store(pack(state, 1, read), Ordering::Relaxed);
        }

        /// As a broken writer leaves them.
        pub fn say_len(&self, len: u64) {
            self.len.store(len, Ordering::Relaxed);
        }

        /// As if another process had the number now.
        pub fn change_mark(&self) {
            self.mark.fetch_add(1, Ordering::Relaxed);
        }
    }
}
