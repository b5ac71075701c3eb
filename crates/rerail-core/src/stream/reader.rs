//! What is being read from a stream. Between two frames nothing is.
//!
//! Owns: the bytes that were read and not yet understood, how far the present frame is, and where its payload goes. Invariants: a buffer
//! has room for a whole frame; what goes beside the user's memory has as much room as its fragment has bytes; the checksum is computed over
//! each piece as it comes, while it is in the cache (PML DR §3.4).

use crate::memory::spare::Spare;
use crate::message::iov::Iov;
use crate::rest::rests;
use crate::types::Window;
use rerail_wire::frame::FRAME_PAYLOAD_MAX;
use rerail_wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer};
use rerail_wire::{FrameHeader, WireError, crc32c_append};

/// Bytes of the buffer for what was read: one whole frame of the largest kind, and the header of the next.
const READ_BUFFER_BYTES: usize = FRAME_PAYLOAD_MAX + 2 * (STREAM_HEADER_BYTES + TRAILER_BYTES);
/// The same for a stranger: a hello.
const STRANGER_BUFFER_BYTES: usize = 256;
/// Buffers that are kept for the next streams that read, at most.
const SPARE_BUFFERS: usize = 8;

/// Where the payload of a frame being read goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Straight into the user's memory, under the lease of this fragment.
    Lease { seq: u64, frag: u64 },
    /// Beside the user's memory, and there only when it is whole and checked: pieces of the fragment came as datagrams
    /// and were acknowledged, so a stream that may break or be damaged must not write over them.
    Side { seq: u64, frag: u64 },
    /// Nowhere: a duplicate, or no receive wants it.
    Scratch,
}

/// What is expected next on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A hello or an accept.
    Handshake,
    /// A frame header.
    Header,
    /// The payload of a fragment; without `summed` it has no checksum.
    Payload { frame: FrameHeader, number: u64, done: usize, crc: u32, place: Place, summed: bool },
    /// The trailer of a fragment.
    Trailer { frame: FrameHeader, number: u64, crc: u32, place: Place, summed: bool },
}

/// See above.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reader {
    /// Empty while nothing is to be read.
    buf: Vec<u8>,
    start: usize,
    end: usize,
    reading: Reading,
    /// Payload of a fragment that is read beside the user's memory.
    side: Vec<u8>,
    /// Bytes of the last window that go to the payload.
    window_payload: usize,
}

impl Reader {
    const IDLE: Self = Self {
        buf: Vec::new(),
        start: 0,
        end: 0,
        reading: Reading::Header,
        side: Vec::new(),
        window_payload: 0,
    };
}

impl Default for Reader {
    fn default() -> Self {
        Self::IDLE
    }
}

rests! {
    Reader = Reader::IDLE;
}

/// A whole frame. It was taken out of the buffer, so that it can be looked at while the engine changes.
#[derive(Debug)]
pub(crate) struct WholeFrame {
    buf: Vec<u8>,
    at: usize,
    len: usize,
}

impl WholeFrame {
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buf[self.at..self.at + self.len]
    }

    #[inline]
    pub fn trailer(&self) -> Result<Trailer, WireError> {
        Trailer::parse(&self.buf[self.at + self.len..])
    }
}

impl Reader {
    /// Of a connection whose hello or accept is expected.
    pub(super) fn handshake() -> Self {
        Self { reading: Reading::Handshake, ..Self::IDLE }
    }

    /// What is expected next.
    #[inline]
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Bytes that were read and not understood yet.
    #[inline]
    pub fn unread(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    // ---- windows -----------------------------------------------------------------------------------------------

    /// Moves what was read to the front of the buffer. Without one it gets one of `spare`, or a new one, which is of full size for an
    /// authenticated peer (`known`) only: a stranger's has room for its hello.
    pub(super) fn compact(&mut self, known: bool, spare: &mut SpareBuffers) {
        let size = if known { READ_BUFFER_BYTES } else { STRANGER_BUFFER_BYTES };
        if self.buf.len() < size {
            let pooled = if known { spare.take() } else { None };
            let mut b = pooled.unwrap_or_else(|| vec![0; size]);
            b[..self.end - self.start].copy_from_slice(&self.buf[self.start..self.end]);
            self.buf = b;
        } else if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
        }
        self.end -= self.start;
        self.start = 0;
    }

    /// Gives the buffer back when nothing is in it: an idle stream needs none.
    pub(super) fn give_buffer(&mut self, spare: &mut SpareBuffers) {
        if self.start == self.end {
            spare.put(std::mem::take(&mut self.buf));
            (self.start, self.end) = (0, 0);
        }
    }

    /// Where the next bytes go; `target` is the memory of a message that was granted, and `scratch` takes the rest.
    #[inline]
    pub fn offer<'a>(
        &mut self,
        window: &mut Window,
        scratch: &mut Vec<u8>,
        target: impl FnOnce(u64) -> &'a Iov,
    ) {
        self.window_payload = 0;
        if let Reading::Payload { frame, done, place, .. } = self.reading {
            let rest = frame.len as usize - done;
            let mut given = 0;
            match place {
                Place::Lease { seq, .. } => {
                    target(seq).pieces(frame.a as usize + done, rest, |p, n| {
                        // a vector of many pieces is read in several windows
                        if window.room() > 1 {
                            window.push(p, n);
                            given += n;
                        }
                    });
                }
                Place::Side { .. } => {
                    window.push(self.side[done..].as_ptr(), rest);
                    given = rest;
                }
                Place::Scratch => {
                    scratch.resize(FRAME_PAYLOAD_MAX, 0);
                    window.push(scratch.as_ptr(), rest);
                    given = rest;
                }
            }
            self.window_payload = given;
            if given == rest {
                // the trailer and the next header come along; more would have to be copied afterwards
                let n = (TRAILER_BYTES + STREAM_HEADER_BYTES).min(self.buf.len() - self.end);
                window.push(self.buf[self.end..].as_ptr(), n);
            }
            return;
        }
        let room = self.buf.len() - self.end;
        debug_assert!(room > 0, "a full buffer always holds a whole frame");
        window.push(self.buf[self.end..].as_ptr(), room);
    }

    /// `bytes` of the window were read.
    #[inline]
    pub fn took<'a>(&mut self, bytes: usize, target: impl FnOnce(u64) -> &'a Iov) {
        let to_payload = bytes.min(self.window_payload);
        if let Reading::Payload { frame, done, crc, place, summed, .. } = &mut self.reading {
            if let (Place::Lease { seq, .. }, true) = (place, *summed) {
                let mut c = *crc;
                target(*seq).pieces(frame.a as usize + *done, to_payload, |p, n| {
                    // SAFETY: the bytes were just read into the poster's memory, which is valid until the completion.
                    c = crc32c_append(c, unsafe { std::slice::from_raw_parts(p, n) });
                });
                *crc = c;
            }
            *done += to_payload;
        }
        self.end += bytes - to_payload;
        self.window_payload = 0;
    }

    // ---- frames ------------------------------------------------------------------------------------------------

    /// Takes the hello or accept out; `None`: it is not there in full.
    pub fn take_words(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let words = self.unread().get(..bytes)?.to_vec();
        self.start += bytes;
        Some(words)
    }

    /// The hello or accept was understood: frames follow.
    pub(super) fn frames_follow(&mut self) {
        self.reading = Reading::Header;
    }

    /// Takes out the frame whose header is next, if it is there in full; [`Reader::put_back`] must follow.
    #[inline]
    pub fn take_whole(&mut self, frame: &FrameHeader) -> Option<WholeFrame> {
        let len = frame.len as usize;
        let whole = STREAM_HEADER_BYTES + len + TRAILER_BYTES;
        if self.end - self.start < whole {
            debug_assert!(whole <= READ_BUFFER_BYTES);
            return None;
        }
        let at = self.start + STREAM_HEADER_BYTES;
        self.start += whole;
        Some(WholeFrame { buf: std::mem::take(&mut self.buf), at, len })
    }

    /// The frame is done with.
    #[inline]
    pub fn put_back(&mut self, frame: WholeFrame) {
        self.buf = frame.buf;
    }

    /// The header of a fragment is understood: its payload follows, and goes to `place`.
    #[inline]
    pub fn fragment_follows(&mut self, frame: FrameHeader, number: u64, place: Place, summed: bool) {
        self.start += STREAM_HEADER_BYTES;
        if let Place::Side { .. } = place {
            self.side.resize(frame.len as usize, 0);
        }
        self.reading = Reading::Payload { frame, number, done: 0, crc: 0, place, summed };
    }

    /// Puts what is in the buffer of a fragment's payload into its place. False: more is to come.
    #[inline]
    pub fn fill<'a>(&mut self, target: impl FnOnce(u64) -> &'a Iov) -> bool {
        let Reading::Payload { frame, number, mut done, mut crc, place, summed } = self.reading else {
            return false;
        };
        let n = (frame.len as usize - done).min(self.end - self.start);
        if n > 0 {
            let bytes = &self.buf[self.start..self.start + n];
            if let Place::Lease { seq, .. } = place {
                target(seq).scatter(frame.a as usize + done, bytes);
                if summed {
                    crc = crc32c_append(crc, bytes);
                }
            } else if let Place::Side { .. } = place {
                self.side[done..done + n].copy_from_slice(bytes);
            }
            self.start += n;
            done += n;
        }
        if done < frame.len as usize {
            self.reading = Reading::Payload { frame, number, done, crc, place, summed };
            return false;
        }
        self.reading = Reading::Trailer { frame, number, crc, place, summed };
        true
    }

    /// Takes out the trailer of a fragment, which is there in full; a frame follows.
    #[inline]
    pub fn take_trailer(&mut self) -> Result<Trailer, WireError> {
        let trailer = Trailer::parse(self.unread());
        self.start += TRAILER_BYTES;
        self.reading = Reading::Header;
        trailer
    }

    /// The lease of a fragment is revoked: the rest of it goes to scratch.
    pub(super) fn divert(&mut self, seq: u64, frag: u64) {
        if let Reading::Payload { place, .. } | Reading::Trailer { place, .. } = &mut self.reading {
            if *place == (Place::Lease { seq, frag }) {
                *place = Place::Scratch;
            }
        }
    }

    /// Takes the payload that was read beside the user's memory.
    pub fn take_side(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.side)
    }
}

/// Buffers of full size that no stream reads into.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpareBuffers(Spare);

impl SpareBuffers {
    fn take(&mut self) -> Option<Vec<u8>> {
        self.0.take()
    }

    fn put(&mut self, b: Vec<u8>) {
        if b.len() == READ_BUFFER_BYTES {
            self.0.put(b, SPARE_BUFFERS);
        }
    }

    /// Gives back those that were not needed since this was last done.
    pub fn tidy(&mut self) {
        self.0.tidy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::IoVec;
    use rerail_wire::FrameType;

    /// What a kernel does: `bytes` go into the window as far as it has room; the rest is returned.
    fn read<'a>(r: &mut Reader, spare: &mut SpareBuffers, bytes: &'a [u8], target: &Iov) -> &'a [u8] {
        let (mut window, mut scratch) = (Window::default(), Vec::new());
        r.compact(true, spare);
        r.offer(&mut window, &mut scratch, |_| target);
        let mut left = bytes;
        for v in window.pieces() {
            let n = v.len.min(left.len());
            // SAFETY: the piece is memory of the reader, of `scratch`, or of `target`, and nothing else uses it.
            unsafe { std::ptr::copy_nonoverlapping(left.as_ptr(), v.ptr, n) };
            left = &left[n..];
        }
        r.took(bytes.len() - left.len(), |_| target);
        left
    }

    fn fragment(len: u32) -> FrameHeader {
        FrameHeader { len, ..FrameHeader::new(FrameType::Frag) }
    }

    #[test]
    fn a_fragment_is_read_into_its_place_and_summed_whatever_comes_at_a_time() {
        let payload: Vec<u8> = (0..200).map(|n| n as u8).collect();
        let mut wire = vec![0; STREAM_HEADER_BYTES];
        wire.extend_from_slice(&payload);
        wire.extend_from_slice(&Trailer { crc: crc32c_append(0, &payload), valid: true }.to_bytes());
        for (cut, place) in [1, 60, STREAM_HEADER_BYTES, 240, wire.len() - 1].into_iter().flat_map(|cut| {
            [Place::Lease { seq: 1, frag: 0 }, Place::Side { seq: 1, frag: 0 }, Place::Scratch]
                .map(|p| (cut, p))
        }) {
            let mut memory = vec![0; 200];
            // SAFETY: the vector outlives `target`, and is looked at only when nothing is read any more.
            let target = unsafe { Iov::new(&[IoVec { ptr: memory.as_mut_ptr(), len: 200 }]) };
            let (mut r, mut spare) = (Reader::default(), SpareBuffers::default());
            for part in [&wire[..cut], &wire[cut..]] {
                let mut part = part;
                while !part.is_empty() {
                    part = read(&mut r, &mut spare, part, &target);
                    if *r.reading() == Reading::Header && r.unread().len() >= STREAM_HEADER_BYTES {
                        r.fragment_follows(fragment(200), 7, place, true);
                    }
                    r.fill(|_| &target);
                }
            }
            let &Reading::Trailer { crc, .. } = r.reading() else { panic!("{cut}: {:?}", r.reading()) };
            let trailer = r.take_trailer().unwrap();
            let (side, leased) = (r.take_side(), matches!(place, Place::Lease { .. }));
            assert_eq!(crc == trailer.crc, leased, "only what goes straight into its place is summed here");
            assert_eq!(side == payload, matches!(place, Place::Side { .. }), "{cut} {place:?}");
            drop(target);
            assert_eq!(memory == payload, leased, "{cut} {place:?}");
            r.give_buffer(&mut spare);
            assert_eq!((r, spare.0.len()), (Reader::IDLE, 1));
        }
    }

    #[test]
    fn a_reader_that_lost_its_lease_reads_on_into_scratch() {
        let mut r = Reader::default();
        r.fragment_follows(fragment(9), 7, Place::Lease { seq: 1, frag: 4 }, true);
        let place = |r: &Reader| match *r.reading() {
            Reading::Payload { place, .. } | Reading::Trailer { place, .. } => place,
            _ => unreachable!(),
        };
        for other in [(1, 3), (2, 4)] {
            r.divert(other.0, other.1);
            assert_eq!(place(&r), Place::Lease { seq: 1, frag: 4 });
        }
        r.divert(1, 4);
        assert_eq!(place(&r), Place::Scratch);
    }

    #[test]
    fn a_whole_frame_is_lent_with_its_buffer_and_what_follows_it_stays() {
        let (mut r, mut spare, target) = (Reader::handshake(), SpareBuffers::default(), Iov::none());
        let mut wire = vec![9; 3];
        wire.extend_from_slice(&[0; STREAM_HEADER_BYTES]);
        wire.extend_from_slice(&[5; 4]);
        wire.extend_from_slice(&Trailer { crc: 1, valid: true }.to_bytes());
        read(&mut r, &mut spare, &wire, &target);
        assert_eq!((r.take_words(99), r.take_words(3)), (None, Some(vec![9; 3])));
        r.frames_follow();
        assert!(r.take_whole(&fragment(5)).is_none(), "one byte is missing");
        read(&mut r, &mut spare, &[8; 2], &target);
        let whole = r.take_whole(&fragment(4)).unwrap();
        assert_eq!((whole.payload(), whole.trailer().map(|t| t.crc)), (&[5; 4][..], Ok(1)));
        r.put_back(whole);
        assert_eq!(r.unread(), [8; 2]);
    }

    #[test]
    fn a_stranger_gets_a_small_buffer_and_what_it_said_moves_to_a_large_one() {
        let (mut r, mut spare) = (Reader::handshake(), SpareBuffers::default());
        spare.put(vec![0; READ_BUFFER_BYTES]);
        r.compact(false, &mut spare);
        assert_eq!((r.buf.len(), spare.0.len()), (STRANGER_BUFFER_BYTES, 1));
        (r.buf[0], r.end) = (7, 1);
        r.compact(true, &mut spare);
        assert_eq!((r.buf.len(), spare.0.len(), r.unread()), (READ_BUFFER_BYTES, 0, &[7][..]));
        r.give_buffer(&mut spare);
        assert_eq!(r.unread(), [7], "not while something is in it");
    }

    #[test]
    fn buffers_that_nobody_reads_into_are_given_back() {
        let mut spare = SpareBuffers::default();
        for _ in 0..SPARE_BUFFERS + 2 {
            spare.put(vec![0; READ_BUFFER_BYTES]);
        }
        spare.put(vec![0; STRANGER_BUFFER_BYTES]);
        assert_eq!(spare.0.len(), SPARE_BUFFERS);
        spare.tidy();
        for _ in 0..5 {
            let (a, b) = (spare.take().unwrap(), spare.take().unwrap());
            spare.put(a);
            spare.put(b);
        }
        spare.tidy();
        assert_eq!(spare.0.len(), 2, "two were read into at a time");
        spare.tidy();
        assert!(spare.0.len() == 0 && spare.take().is_none());
    }
}
