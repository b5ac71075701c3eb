//! A ring of bytes in shared memory, one way. Owns: the bytes between the positions that [`Control`] has.
//!
//! One process writes, the other reads. In the writing process one thread at a time writes (its callers see to that); in the
//! reading one several threads may take datagrams at once: each copies what it finds and then claims it, and a thread
//! that comes too late discards its copy. Positions only ever grow; a position that makes no sense comes from a broken
//! neighbour, and is an error.

use crate::control::Control;
use crate::lent;
use crate::segment::{RING_BYTES, Segment};
use rerail_rail::IoVec;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(RING_BYTES.is_power_of_two());
const MASK: u64 = RING_BYTES as u64 - 1;
/// Room that is worth waking a writer for.
pub(crate) const ROOM_BYTES: usize = RING_BYTES / 4;

/// All that both sides see of a ring, but its bytes. All zeros at first.
#[repr(C)]
pub(crate) struct Words {
    control: Control,
    /// What the writer lends, instead of copying it into the ring.
    loan: lent::Words,
}

/// Bytes that the [`Words`] of a ring take: those of both rings share a page.
pub(crate) const CONTROL_BYTES: usize = 2048;
const _: () = assert!(size_of::<Words>() <= CONTROL_BYTES);

/// The other side has written what makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// One side's view of one ring.
pub(crate) struct Ring {
    /// Keeps the memory.
    _segment: Arc<Segment>,
    words: NonNull<Words>,
    data: NonNull<u8>,
    /// How far the reader was when the writer last looked. The writer looks only when that is not enough: each look
    /// takes the cache line away from the reader, which has to fetch it back before its next step.
    seen: AtomicU64,
}

// SAFETY: the control is all atomics; the bytes are copied by pointer, by the rules in the module's text.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `words` are aligned [`Words`] and `data` are [`RING_BYTES`] bytes, both in the memory that `segment` keeps.
    pub unsafe fn new(segment: Arc<Segment>, words: NonNull<Words>, data: NonNull<u8>) -> Self {
        Self { _segment: segment, words, data, seen: AtomicU64::new(0) }
    }

    fn words(&self) -> &Words {
        // SAFETY: promised at `new`; everything in it is an atomic.
        unsafe { self.words.as_ref() }
    }

    fn control(&self) -> &Control {
        &self.words().control
    }

    /// What is lent behind the last byte of this ring.
    pub fn loan(&self) -> &lent::Words {
        &self.words().loan
    }

    /// Bytes between two positions.
    fn between(head: u64, tail: u64) -> Result<usize, Broken> {
        match tail.wrapping_sub(head) {
            n if n <= RING_BYTES as u64 => Ok(n as usize),
            _ => Err(Broken),
        }
    }

    /// Copies into the ring at position `at`, which is free, and so are as many bytes behind it.
    ///
    /// # Safety
    /// `from` are `len` readable bytes, and `len` is at most [`RING_BYTES`].
    unsafe fn put(&self, at: u64, from: *const u8, len: usize) {
        let start = (at & MASK) as usize;
        let first = len.min(RING_BYTES - start);
        // SAFETY: `start + first` is within the ring, and so is the rest from its beginning.
        unsafe {
            std::ptr::copy_nonoverlapping(from, self.data.as_ptr().add(start), first);
            std::ptr::copy_nonoverlapping(from.add(first), self.data.as_ptr(), len - first);
        }
    }

    /// Copies out of the ring.
    ///
    /// # Safety
    /// `to` are `len` writable bytes, and `len` is at most [`RING_BYTES`].
    unsafe fn get(&self, at: u64, to: *mut u8, len: usize) {
        let start = (at & MASK) as usize;
        let first = len.min(RING_BYTES - start);
        // SAFETY: as in `put`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.data.as_ptr().add(start), to, first);
            std::ptr::copy_nonoverlapping(self.data.as_ptr(), to.add(first), len - first);
        }
    }

    // --- the writer's side ---

    /// Room for at least this many bytes, if there is so much; else how much there is. For the writer.
    pub fn room(&self, wanted: usize) -> Result<usize, Broken> {
        let c = self.control();
        let tail = c.written();
        let room = RING_BYTES - Self::between(self.seen.load(Ordering::Acquire), tail)?;
        if room >= wanted {
            return Ok(room);
        }
        let head = c.freed();
        let used = Self::between(head, tail)?;
        self.seen.store(head, Ordering::Release);
        Ok(RING_BYTES - used)
    }

    /// Writes as much of `pieces` as there is room for. For one writer at a time. After it, [`Ring::reader_to_wake`].
    ///
    /// # Safety
    /// Every piece is valid for reads during the call.
    pub unsafe fn write(&self, pieces: &[IoVec]) -> Result<usize, Broken> {
        let mut room = self.room(pieces.iter().map(|p| p.len).sum())?;
        let from = self.control().written();
        let mut at = from;
        for piece in pieces {
            let len = piece.len.min(room);
            // SAFETY: the piece is valid by the caller's promise, and there is room for `len`.
            unsafe { self.put(at, piece.ptr, len) };
            at += len as u64;
            room -= len;
            if room == 0 {
                break;
            }
        }
        self.control().publish(at);
        Ok((at - from) as usize)
    }

    /// Writes all of `parts`, or nothing: whether there was room. For one writer at a time. After it, [`Ring::reader_to_wake`].
    pub fn push(&self, parts: [&[u8]; 2]) -> Result<bool, Broken> {
        let len = parts[0].len() + parts[1].len();
        if self.room(len)? < len {
            return Ok(false);
        }
        let mut at = self.control().written();
        for part in parts {
            // SAFETY: the bytes are borrowed, and there is room for them.
            unsafe { self.put(at, part.as_ptr(), part.len()) };
            at += part.len() as u64;
        }
        self.control().publish(at);
        Ok(true)
    }

    /// See [`Control::reader_to_wake`].
    pub fn reader_to_wake(&self) -> bool {
        self.control().reader_to_wake()
    }

    /// The writer sleeps from now on, or does not, and is to be woken when there is room.
    pub fn writer_sleeps(&self, sleeps: bool) {
        self.control().writer_sleeps(sleeps);
    }

    /// Whether the other side reads this ring.
    pub fn has_reader(&self) -> bool {
        self.control().has_reader()
    }

    /// Nothing more will be written, and what was is void.
    pub fn close(&self) {
        self.control().close();
    }

    // --- the reader's side ---

    /// Bytes to be read. For the reader.
    pub fn filled(&self) -> Result<usize, Broken> {
        let c = self.control();
        Self::between(c.taken(), c.ready())
    }

    /// Whether there is nothing. A broken ring is not empty, so that a read finds the error.
    pub fn is_empty(&self) -> bool {
        self.filled() == Ok(0)
    }

    /// Reads into `pieces` what there is. For one reader at a time. After it, [`Ring::writer_to_wake`].
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it during the call.
    pub unsafe fn read(&self, pieces: &[IoVec]) -> Result<usize, Broken> {
        let mut left = self.filled()?;
        let from = self.control().taken();
        let mut at = from;
        for piece in pieces {
            let len = piece.len.min(left);
            // SAFETY: the piece is valid by the caller's promise.
            unsafe { self.get(at, piece.ptr, len) };
            at += len as u64;
            left -= len;
            if left == 0 {
                break;
            }
        }
        self.control().release(at);
        Ok((at - from) as usize)
    }

    /// Takes the first record: `HEAD` bytes and as many behind them as `body` makes of these (at most what fits `room`, else the record
    /// is skipped). `None`: there is none. Several threads may do so at once.
    pub fn pop<const HEAD: usize>(
        &self,
        room: &mut [u8],
        body: impl Fn(&[u8; HEAD]) -> usize,
    ) -> Result<Option<([u8; HEAD], usize)>, Broken> {
        let c = self.control();
        loop {
            let head = c.taken();
            let filled = Self::between(head, c.ready());
            if filled == Ok(0) {
                return Ok(None);
            }
            let mut first = [0; HEAD];
            // SAFETY: an array of HEAD bytes.
            unsafe { self.get(head, first.as_mut_ptr(), HEAD) };
            let len = body(&first);
            let sound = filled.is_ok_and(|n| len <= RING_BYTES && n >= HEAD + len);
            let fits = len <= room.len();
            if sound && fits {
                // SAFETY: `room` has `len` bytes.
                unsafe { self.get(head + HEAD as u64, room.as_mut_ptr(), len) };
            }
            // Only the claim proves that no other thread took it meanwhile, and that it was not overwritten while it
            // was copied.
            let end = if sound { head + (HEAD + len) as u64 } else { head };
            match c.claim(head, end) {
                false => {}
                true if !sound => return Err(Broken),
                true if fits => return Ok(Some((first, len))),
                true => {}
            }
        }
    }

    /// Whether the writer sleeps, and there is room now, and nothing lent: ring its bell. True once.
    pub fn writer_to_wake(&self) -> bool {
        let has_room = || !self.loan().is_out() && self.filled().is_ok_and(|n| RING_BYTES - n >= ROOM_BYTES);
        self.control().writer_to_wake(has_room)
    }

    /// The reader sleeps from now on, or does not.
    pub fn reader_sleeps(&self, sleeps: bool) {
        self.control().reader_sleeps(sleeps);
    }

    /// This side reads the ring from now on.
    pub fn begin_to_read(&self) {
        self.control().begin_to_read();
    }

    /// Whether the writer has closed.
    pub fn is_closed(&self) -> bool {
        self.control().is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Side;

    fn ends() -> (Ring, Ring) {
        let (segment, _) = Segment::make().unwrap();
        (segment.ring(Side::Maker), segment.ring(Side::Maker))
    }

    fn record(n: u32) -> Vec<u8> {
        (0..n % 3000).map(|i| (i ^ n) as u8).collect()
    }

    fn pop(r: &Ring, room: &mut [u8]) -> Result<Option<(u32, usize)>, Broken> {
        let found = r.pop::<8>(room, |h| u32::from_le_bytes([h[0], h[1], h[2], h[3]]) as usize)?;
        Ok(found.map(|(h, len)| (u32::from_le_bytes([h[4], h[5], h[6], h[7]]), len)))
    }

    fn push(r: &Ring, n: u32) -> bool {
        let body = record(n);
        let mut head = [0; 8];
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&n.to_le_bytes());
        r.push([&head, &body]).unwrap()
    }

    #[test]
    fn bytes_come_out_as_they_went_in_over_many_rounds() {
        let (w, r) = ends();
        let mut out = vec![0; RING_BYTES * 2];
        let (mut sent, mut got) = (0u64, 0u64);
        for round in 0..200usize {
            let data: Vec<u8> = (0..round * 1511).map(|i| ((sent + i as u64) * 7) as u8).collect();
            let cut = data.len() / 3;
            // SAFETY: borrowed through the call.
            let n =
                unsafe { w.write(&[IoVec::from_ref(&data[..cut]), IoVec::from_ref(&data[cut..])]) }.unwrap();
            sent += n as u64;
            let most = (round * 997).min(out.len());
            // SAFETY: borrowed through the call.
            let n = unsafe { r.read(&[IoVec::from_mut(&mut out[..most])]) }.unwrap();
            assert!(out[..n].iter().enumerate().all(|(i, &b)| b == ((got + i as u64) * 7) as u8));
            got += n as u64;
        }
        assert!(got > 4 * RING_BYTES as u64 && sent - got == r.filled().unwrap() as u64);
    }

    #[test]
    fn several_threads_take_every_record_once_and_whole() {
        const RECORDS: u32 = 40_000;
        let (segment, _) = Segment::make().unwrap();
        let (w, r) = (segment.ring(Side::Guest), Arc::new(segment.ring(Side::Guest)));
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let r = r.clone();
                std::thread::spawn(move || {
                    let (mut room, mut seen) = (vec![0; 4096], Vec::new());
                    loop {
                        match pop(&r, &mut room).unwrap() {
                            Some((u32::MAX, _)) => return seen,
                            Some((n, len)) => {
                                assert!(room[..len] == record(n), "record {n} is whole");
                                seen.push(n);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        for n in (0..RECORDS).chain([u32::MAX; 3]) {
            while !push(&w, n) {
                std::thread::yield_now();
            }
        }
        let mut all: Vec<u32> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..RECORDS));
    }

    #[test]
    fn a_record_that_fits_no_buffer_is_skipped() {
        let (w, r) = ends();
        assert!(push(&w, 2000) && push(&w, 10));
        assert_eq!(pop(&r, &mut [0; 100]), Ok(Some((10, 10))));
        assert_eq!(pop(&r, &mut [0; 100]), Ok(None));
    }

    #[test]
    fn positions_and_lengths_that_make_no_sense_are_errors() {
        let (w, r) = ends();
        assert!(push(&w, 100));
        w.control().publish(50);
        assert_eq!(pop(&r, &mut [0; 4000]), Err(Broken), "shorter than it says");
        w.control().publish(RING_BYTES as u64 + 1);
        assert_eq!(pop(&r, &mut [0; 4000]), Err(Broken), "more than fits");
        // SAFETY: borrowed through the call.
        assert_eq!(unsafe { r.read(&[IoVec::from_mut(&mut [0; 10])]) }, Err(Broken));
        assert!(!r.is_empty(), "a read must find the error");
        w.control().release(1 << 40);
        assert_eq!(w.push([&[0; 4], &[0; 4]]), Err(Broken));
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (w, r) = ends();
        assert!(!w.reader_to_wake());
        r.reader_sleeps(true);
        push(&w, 1);
        assert!(w.reader_to_wake() && !w.reader_to_wake());
        w.writer_sleeps(true);
        while push(&w, 2999) {}
        assert!(!r.writer_to_wake(), "there is no room yet");
        while pop(&r, &mut [0; 3000]).unwrap().is_some() {}
        assert!(r.writer_to_wake() && !r.writer_to_wake());
    }
}
