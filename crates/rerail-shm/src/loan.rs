//! A large piece of the writer's memory that the reader copies out of it by itself: one copy where the ring takes two. Owns: both
//! sides' steps, and the proof that the writer is the expected process; the words by which they agree are `lent.rs`.
//!
//! The writer lends one piece at a time and writes nothing behind it until it is given back. So what it writes next
//! (that the bytes count, or that they are void) is always about bytes that were read before. It may call the loan in
//! at any moment without waiting: a reader that was stopped in the middle of the copy finds that out at the end, and
//! discards the copy.
//!
//! The kernel lets a process read another's memory where it would let it trace that process (process_vm_readv(2), ptrace(2)). Where
//! it does not, or does not for some memory, the piece goes through the ring.

use crate::lent::{State, Words};
use crate::ring::{Broken, Ring};
use rerail_rail::IoVec;
use rustix::process::Pid;
use std::sync::OnceLock;

/// Pieces from here on are lent: below it two copies are cheaper than a system call.
pub(crate) const LOAN_BYTES_MIN: usize = 16 << 10;

/// A random mark in the memory of this process, whose address its neighbours get: no other process has it there. `None`
/// where the system has no random numbers: then nothing is lent.
fn own_mark() -> Option<&'static u64> {
    static MARK: OnceLock<Option<u64>> = OnceLock::new();
    let made = MARK.get_or_init(|| {
        let mut bytes = [0; 8];
        let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        (got == Ok(bytes.len())).then(|| u64::from_ne_bytes(bytes))
    });
    made.as_ref()
}

/// Publishes where the mark of this process is.
pub(crate) fn publish(words: &Words) {
    if let Some(mark) = own_mark() {
        words.set_mark(std::ptr::from_ref(mark) as u64, *mark);
    }
}

/// A piece that is lent.
#[derive(Debug, Clone, Copy)]
struct Loan {
    at: usize,
    len: usize,
    /// Bytes of it that were returned to the caller as written.
    told: usize,
}

/// The writer's side of a stream.
#[derive(Default)]
pub(crate) struct Lender {
    loan: Option<Loan>,
    number: u64,
    /// The reader could not read something: nothing is lent to it any more.
    refused: bool,
    small: Vec<IoVec>,
}

// SAFETY: `small` is empty between calls.
unsafe impl Send for Lender {}

impl Lender {
    /// Writes from `pieces` into `ring`; with `lend`, lends what is large. Bytes that the reader has, or will find in the ring.
    ///
    /// # Safety
    /// Every piece is valid for reads during the call; with `lend`, what [`rerail_rail::StreamPort::write_lasting`] says.
    pub unsafe fn write(&mut self, ring: &Ring, pieces: &[IoVec], lend: bool) -> Result<usize, Broken> {
        let words = ring.loan();
        let mut done = 0;
        if let Some(mut loan) = self.loan.take() {
            let (state, mut read) = words.look();
            let next = pieces.first().map(|p| (p.ptr as usize, p.len));
            let same = lend && next == Some((loan.at + loan.told, loan.len - loan.told));
            let wait = same && matches!(state, State::Lent | State::Reading) && read < loan.len;
            if !wait {
                self.refused |= state == State::Refused;
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
        let lend = lend && !self.refused && words.is_accepted();
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
                    words.lend(self.number, ptr as u64, len as u64);
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
    /// The process is gone, and another one may have its number.
    Gone,
}

/// The reader's side of a stream.
pub(crate) struct Borrower {
    /// The process that lends, as the kernel reported when the connection was made.
    pid: Option<Pid>,
    /// Whether it was tried to read its memory.
    tried: bool,
}

impl Borrower {
    pub fn new(pid: Option<Pid>) -> Self {
        Self { pid, tried: false }
    }

    /// Finds out once whether the writer's memory can be read; if so, lets the writer lend.
    pub fn introduce(&mut self, ring: &Ring) {
        if self.tried {
            return;
        }
        let words = ring.loan();
        if words.mark().is_none() {
            return;
        }
        self.tried = true;
        // SAFETY: nothing but the mark is read.
        if self.pid.is_some_and(|pid| unsafe { copy(pid, 0, &[], 0, words) } == Ok(0)) {
            words.accept();
        } else {
            self.pid = None;
        }
    }

    /// Reads what is lent into `pieces`.
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it during the call.
    pub unsafe fn read(&self, ring: &Ring, pieces: &[IoVec]) -> Result<Got, Broken> {
        let words = ring.loan();
        let Some(offer) = words.offer() else { return Ok(Got::Nothing) };
        let left = offer.left().ok_or(Broken)?;
        let room: usize = pieces.iter().map(|p| p.len).sum();
        let want = left.min(room);
        let Some(pid) = self.pid.filter(|_| want > 0) else { return Ok(Got::Nothing) };
        if !words.begin(&offer) {
            return Ok(Got::Nothing);
        }
        // SAFETY: the caller's promise.
        Ok(match unsafe { copy(pid, offer.at.wrapping_add(offer.read as u64), pieces, want, words) } {
            Ok(n) if words.end(&offer, n) => Got::Bytes(n),
            Ok(_) => Got::Nothing,
            Err(Unread::Refused) => {
                words.refuse(&offer);
                Got::Nothing
            }
            Err(Unread::Gone) => Got::Gone,
        })
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
/// Every piece is valid for writes, and nothing else touches it during the call.
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
    let Some((mark_at, right)) = words.mark() else { return Err(Unread::Refused) };
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
    // The mark is read after the bytes: a process that has the number at that point had it while they were read.
    if u64::from_ne_bytes(mark) != right {
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
        publish(w.loan());
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
        w.loan().change_mark();
        assert_eq!(read(&b, &r, &mut room), Ok(Got::Gone));
    }

    #[test]
    fn a_reader_that_was_stopped_in_the_middle_has_nothing_when_it_was_called_in() {
        let (w, r, b) = ends();
        let (bytes, mut room) = (vec![5; LOAN_BYTES_MIN], vec![0; LOAN_BYTES_MIN]);
        let mut lender = Lender::default();
        assert_eq!(lend(&mut lender, &w, &bytes), Ok(0));
        // as the reader leaves it while it copies
        w.loan().leave_reading();
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
        w.loan().say(State::None, LOAN_BYTES_MIN + 1);
        assert_eq!(lend(&mut lender, &w, &bytes), Err(Broken), "more was read than lent");
        w.loan().say(State::Lent, LOAN_BYTES_MIN + 1);
        assert_eq!(read(&b, &r, &mut room), Err(Broken));
        w.loan().say_len(u64::MAX);
        assert_eq!(read(&b, &r, &mut room), Err(Broken));
    }
}
