//! A large piece of the writer's memory that the reader copies out of it by itself: one copy where the ring takes two. Owns: the words by
//! which the two agree on it, both sides' steps, and the proof that a process is the one it is taken for.
//!
//! The writer lends one piece at a time and writes nothing behind it until it is given back, so what it says next (that the bytes
//! count, or that they are void) is always about bytes that were read before. It may call the loan in at any moment without waiting: a
//! reader that was stopped in the middle of the copy finds that out at the end, and what it has is void.
//!
//! The kernel lets a process read another's memory where it would let it trace that process (process_vm_readv(2), ptrace(2)). Where
//! it does not, or does not for some memory, the piece goes through the ring.

use crate::ring::{Broken, Ring};
use rerail_transport::IoVec;
use rustix::process::Pid;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pieces from here on are lent: below it two copies are cheaper than a system call.
pub(crate) const LOAN_BYTES_MIN: usize = 16 << 10;

/// What both sides see. All zeros at first; on cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct Words {
    /// [`State`], the number of the loan, and how much of it was read.
    word: AtomicU64,
    /// Where the piece is in the writer's memory, and its length.
    at: AtomicU64,
    len: AtomicU64,
    /// Where the writer's mark is in its memory; 0: not said yet. And what is to be found there.
    mark_at: AtomicU64,
    mark: AtomicU64,
    /// The reader can read the writer's memory.
    accepted: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
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

/// What this process has at a place that it tells its neighbours: nobody else has the same there. None where the system has no
/// random numbers: then nothing is lent.
fn own_mark() -> Option<&'static u64> {
    static MARK: OnceLock<Option<u64>> = OnceLock::new();
    let made = MARK.get_or_init(|| {
        let mut bytes = [0; 8];
        let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        (got == Ok(bytes.len())).then(|| u64::from_ne_bytes(bytes))
    });
    made.as_ref()
}

impl Words {
    // --- the writer's side ---

    /// Says where the mark of this process is.
    pub fn publish(&self) {
        if let Some(mark) = own_mark() {
            self.mark.store(*mark, Ordering::Relaxed);
            self.mark_at.store(std::ptr::from_ref(mark) as u64, Ordering::Release);
        }
    }

    /// Whether the reader is to be waited for.
    pub fn is_out(&self) -> bool {
        matches!(state_of(self.word.load(Ordering::Acquire)), State::Lent | State::Reading)
    }

    /// Ends whatever there is; how much was read of it. What is read from now on is void.
    pub fn call_in(&self) -> usize {
        read_of(self.word.swap(0, Ordering::AcqRel))
    }

    // --- the reader's side ---

    /// Whether there is a piece to be read.
    pub fn is_lent(&self) -> bool {
        state_of(self.word.load(Ordering::Acquire)) == State::Lent
    }
}

/// A piece that is lent.
#[derive(Debug, Clone, Copy)]
struct Loan {
    at: usize,
    len: usize,
    /// What the caller knows to be read.
    told: usize,
}

/// The writer's side of a stream.
#[derive(Default)]
pub(crate) struct Lender {
    loan: Option<Loan>,
    number: u64,
    /// The reader could not read something: it is not asked again.
    refused: bool,
    small: Vec<IoVec>,
}

// SAFETY: `small` is empty between calls.
unsafe impl Send for Lender {}

impl Lender {
    /// Writes from `pieces` into `ring`; with `lend`, lends what is large. Bytes that the reader has, or will find in the ring.
    ///
    /// # Safety
    /// Every piece is valid for reads during the call; with `lend`, what [`rerail_transport::StreamPort::write_lasting`] says.
    pub unsafe fn write(&mut self, ring: &Ring, pieces: &[IoVec], lend: bool) -> Result<usize, Broken> {
        let words = ring.loan();
        let mut done = 0;
        if let Some(mut loan) = self.loan.take() {
            let word = words.word.load(Ordering::Acquire);
            let mut read = read_of(word);
            let next = pieces.first().map(|p| (p.ptr as usize, p.len));
            let same = lend && next == Some((loan.at + loan.told, loan.len - loan.told));
            let wait = same && matches!(state_of(word), State::Lent | State::Reading) && read < loan.len;
            if !wait {
                self.refused |= state_of(word) == State::Refused;
                read = words.call_in();
            }
            if read < loan.told || read > loan.len {
                return Err(Broken);
            }
            done = read - loan.told;
            if wait {
                loan.told = read;
                self.loan = Some(loan);
                return Ok(done);
            }
        }
        let lend = lend && !self.refused && words.accepted.load(Ordering::Acquire) != 0;
        if !lend && done == 0 {
            // SAFETY: the caller's promise.
            return unsafe { ring.write(pieces) };
        }
        let mut skip = done;
        for piece in pieces {
            let over = skip.min(piece.len);
            skip -= over;
            // SAFETY: `over` is at most the piece's length.
            let (ptr, len) = (unsafe { piece.ptr.add(over) }, piece.len - over);
            if lend && len >= LOAN_BYTES_MIN {
                // SAFETY: the caller's promise.
                let (written, all) = unsafe { self.flush(ring)? };
                done += written;
                if all {
                    self.number += 1;
                    words.at.store(ptr as u64, Ordering::Relaxed);
                    words.len.store(len as u64, Ordering::Relaxed);
                    words.word.store(pack(State::Lent, self.number, 0), Ordering::Release);
                    self.loan = Some(Loan { at: ptr as usize, len, told: 0 });
                }
                return Ok(done);
            }
            if len > 0 {
                self.small.push(IoVec { ptr, len });
            }
        }
        // SAFETY: the caller's promise.
        Ok(done + unsafe { self.flush(ring)? }.0)
    }

    /// Writes what was gathered into the ring: how much, and whether that was all.
    ///
    /// # Safety
    /// The pieces are valid for reads.
    unsafe fn flush(&mut self, ring: &Ring) -> Result<(usize, bool), Broken> {
        let all: usize = self.small.iter().map(|p| p.len).sum();
        // SAFETY: the caller's promise.
        let written = unsafe { ring.write(&self.small) };
        self.small.clear();
        let written = written?;
        Ok((written, written == all))
    }
}

/// What the reader got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// So many bytes.
    Bytes(usize),
    /// Nothing: there is nothing, or it was called in, or it goes another way.
    Nothing,
    /// The process is gone, and somebody else may have its number.
    Gone,
}

/// The reader's side of a stream.
pub(crate) struct Borrower {
    /// The process that lends, as the kernel told when the connection was made.
    pid: Option<Pid>,
    /// Whether it was tried to read its memory.
    tried: bool,
}

impl Borrower {
    pub fn new(pid: Option<Pid>) -> Self {
        Self { pid, tried: false }
    }

    /// Finds out, once, whether the writer's memory can be read, and tells it.
    pub fn introduce(&mut self, ring: &Ring) {
        if self.tried {
            return;
        }
        let words = ring.loan();
        let mark_at = words.mark_at.load(Ordering::Acquire);
        if mark_at == 0 {
            return;
        }
        self.tried = true;
        // SAFETY: nothing but the mark is read.
        if self.pid.is_some_and(|pid| unsafe { copy(pid, 0, &[], 0, words) } == Ok(0)) {
            words.accepted.store(1, Ordering::Release);
        } else {
            self.pid = None;
        }
    }

    /// Reads what is lent into `pieces`.
    ///
    /// # Safety
    /// Every piece is valid for writes, and nobody else touches it during the call.
    pub unsafe fn read(&self, ring: &Ring, pieces: &[IoVec]) -> Result<Got, Broken> {
        let words = ring.loan();
        let word = words.word.load(Ordering::Acquire);
        if state_of(word) != State::Lent {
            return Ok(Got::Nothing);
        }
        let (at, len) = (words.at.load(Ordering::Relaxed), words.len.load(Ordering::Relaxed));
        let read = read_of(word);
        let room: usize = pieces.iter().map(|p| p.len).sum();
        let Some(left) = (len as usize).checked_sub(read).filter(|_| len < 1 << READ_BITS) else {
            return Err(Broken);
        };
        let want = left.min(room);
        let turn = |from: u64, to: u64| {
            words.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let reading = become_of(word, State::Reading, read);
        let Some(pid) = self.pid.filter(|_| want > 0) else { return Ok(Got::Nothing) };
        if !turn(word, reading) {
            return Ok(Got::Nothing);
        }
        // SAFETY: the caller's promise.
        match unsafe { copy(pid, at.wrapping_add(read as u64), pieces, want, words) } {
            // given back when it was read to its end
            Ok(n) if read + n == len as usize => {
                Ok(if turn(reading, become_of(word, State::None, read + n)) {
                    Got::Bytes(n)
                } else {
                    Got::Nothing
                })
            }
            Ok(n) => Ok(if turn(reading, become_of(word, State::Lent, read + n)) {
                Got::Bytes(n)
            } else {
                Got::Nothing
            }),
            Err(Unread::Refused) => {
                turn(reading, become_of(word, State::Refused, read));
                Ok(Got::Nothing)
            }
            Err(Unread::Gone) => Ok(Got::Gone),
        }
    }
}

/// Why another's memory was not read.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    /// The kernel forbids it, or there is no such memory, or none that can be read in this way.
    Refused,
    /// There is no such process, or it is another one than it was.
    Gone,
}

/// Copies `want` bytes at `at` of the process's memory into `pieces`, and makes sure in the same call that it is the process that has put
/// its mark where `words` say.
///
/// # Safety
/// Every piece is valid for writes, and nobody else touches it during the call.
unsafe fn copy(pid: Pid, at: u64, pieces: &[IoVec], want: usize, words: &Words) -> Result<usize, Unread> {
    const PIECES_MAX: usize = 15;
    let mut mark = [0u8; 8];
    let mut local = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; PIECES_MAX + 1];
    let (mut n, mut bytes) = (0, 0);
    for piece in pieces.iter().take(PIECES_MAX) {
        let len = piece.len.min(want - bytes);
        if len == 0 {
            break;
        }
        local[n] = libc::iovec { iov_base: piece.ptr.cast(), iov_len: len };
        n += 1;
        bytes += len;
    }
    local[n] = libc::iovec { iov_base: mark.as_mut_ptr().cast(), iov_len: mark.len() };
    let mark_at = words.mark_at.load(Ordering::Relaxed);
    let there = |at: u64, len: usize| libc::iovec { iov_base: at as usize as *mut _, iov_len: len };
    let remote = [there(at, bytes), there(mark_at, mark.len())];
    // no empty piece: an address that means nothing is not looked at then
    let remote = if bytes == 0 { &remote[1..] } else { &remote[..] };
    // SAFETY: the local pieces are the caller's, valid for writes, and the mark's; the remote ones are another process's, which the
    // kernel looks after.
    let got = unsafe {
        libc::process_vm_readv(
            pid.as_raw_pid(),
            local.as_ptr(),
            n as libc::c_ulong + 1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    if got < 0 {
        let gone = std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        return Err(if gone { Unread::Gone } else { Unread::Refused });
    }
    if got as usize != bytes + mark.len() {
        return Err(Unread::Refused);
    }
    // After the bytes: whoever has the number now had it while they were read.
    if u64::from_ne_bytes(mark) != words.mark.load(Ordering::Relaxed) {
        return Err(Unread::Gone);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Segment, Side};

    /// Writer and reader in this process, which has its own number.
    fn ends() -> (Ring, Ring, Borrower) {
        let (segment, _) = Segment::make().unwrap();
        let (w, r) = (segment.ring(Side::Maker), segment.ring(Side::Maker));
        w.loan().publish();
        let mut borrower = Borrower::new(Some(rustix::process::getpid()));
        borrower.introduce(&r);
        (w, r, borrower)
    }

    fn lend(lender: &mut Lender, w: &Ring, bytes: &[u8]) -> Result<usize, Broken> {
        // SAFETY: borrowed through the call; the tests keep it until they have read it.
        unsafe { lender.write(w, &[IoVec::from_ref(bytes)], true) }
    }

    fn read(b: &Borrower, r: &Ring, room: &mut [u8]) -> Result<Got, Broken> {
        // SAFETY: borrowed through the call.
        unsafe { b.read(r, &[IoVec::from_mut(room)]) }
    }

    #[test]
    fn who_has_the_number_now_and_not_the_mark_is_somebody_else() {
        let (w, r, b) = ends();
        let (bytes, mut room) = (vec![5; LOAN_BYTES_MIN], vec![0; LOAN_BYTES_MIN]);
        let mut lender = Lender::default();
        assert_eq!(lend(&mut lender, &w, &bytes), Ok(0));
        assert_eq!(read(&b, &r, &mut room[..100]), Ok(Got::Bytes(100)));
        w.loan().mark.fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&b, &r, &mut room), Ok(Got::Gone));
    }

    #[test]
    fn a_reader_that_was_stopped_in_the_middle_has_nothing_when_it_was_called_in() {
        let (w, r, b) = ends();
        let (bytes, mut room) = (vec![5; LOAN_BYTES_MIN], vec![0; LOAN_BYTES_MIN]);
        let mut lender = Lender::default();
        assert_eq!(lend(&mut lender, &w, &bytes), Ok(0));
        // as the reader leaves it while it copies
        let word = w.loan().word.load(Ordering::Relaxed);
        w.loan().word.store(become_of(word, State::Reading, 0), Ordering::Relaxed);
        assert_eq!(read(&b, &r, &mut room), Ok(Got::Nothing));
        assert_eq!(lend(&mut lender, &w, &bytes), Ok(0), "it is waited for");
        let other = vec![6; LOAN_BYTES_MIN];
        assert_eq!(lend(&mut lender, &w, &other), Ok(0), "called in, and another lent");
        assert_eq!(read(&b, &r, &mut room), Ok(Got::Bytes(LOAN_BYTES_MIN)));
        assert!(room == other);
        assert_eq!(lend(&mut lender, &w, &other), Ok(LOAN_BYTES_MIN));
    }

    #[test]
    fn words_that_make_no_sense_are_errors() {
        let (w, r, b) = ends();
        let (bytes, mut room) = (vec![5; LOAN_BYTES_MIN], vec![0; LOAN_BYTES_MIN]);
        let mut lender = Lender::default();
        assert_eq!(lend(&mut lender, &w, &bytes), Ok(0));
        w.loan().word.store(pack(State::None, 1, LOAN_BYTES_MIN + 1), Ordering::Relaxed);
        assert_eq!(lend(&mut lender, &w, &bytes), Err(Broken), "more was read than lent");
        w.loan().word.store(pack(State::Lent, 1, LOAN_BYTES_MIN + 1), Ordering::Relaxed);
        assert_eq!(read(&b, &r, &mut room), Err(Broken));
        w.loan().len.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(read(&b, &r, &mut room), Err(Broken));
    }
}
