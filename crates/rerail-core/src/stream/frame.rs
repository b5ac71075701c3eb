//! A frame on its way out of a stream, piece by piece.
//!
//! Owns: where its bytes are, and how many of them are written. Invariant (hazard H1): a frame that was begun is
//! written in full; when its memory is given back meanwhile, the rest of its payload is zeros and its trailer is ABORT.

use crate::lane::sent::Sent;
use crate::message::body::Body;
use crate::message::item::Item;
use crate::types::{IoVec, Place, RemoteKey, Time, Window, WorkId};
use rerail_wire::frame::{FRAME_PAYLOAD_MAX, flags};
use rerail_wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, write_header};
use rerail_wire::{Coverage, FrameHeader, crc32c_append};

static ZEROS: [u8; FRAME_PAYLOAD_MAX] = [0; FRAME_PAYLOAD_MAX];

/// Where the payload of a frame being written is.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// In the message with this number, from this offset.
    Message { seq: u64, at: u64 },
    /// There too, but an adapter writes it into the peer's memory, and the frame only reports it. It has a `work` once
    /// it is posted.
    Placed { seq: u64, at: u64, len: u32, key: RemoteKey, work: Option<WorkId> },
    /// In the frame itself: acknowledgements, configuration.
    Owned(Vec<u8>),
}

/// A frame that is not written in full.
#[derive(Debug, Clone)]
pub(crate) struct TxFrame {
    header: [u8; STREAM_HEADER_BYTES],
    number: u64,
    item: Option<Item>,
    payload: Payload,
    len: usize,
    trailer: Option<[u8; TRAILER_BYTES]>,
    /// Bytes of header, payload and trailer that are written.
    written: usize,
    /// Its memory was given back: the rest of the payload is zeros and the trailer is ABORT.
    aborted: bool,
    hedged: bool,
    /// The trailer sums the payload.
    summed: bool,
    /// No record of it is kept.
    unprotected: bool,
}

/// What is left of a frame that is written in full.
#[derive(Debug)]
pub(super) enum Written {
    /// It has to be acknowledged.
    Recorded(Sent),
    /// It was sent without protection: the kernel has so many bytes, and with them what it carried.
    Unprotected(u64, Option<Item>),
    /// Nothing that must arrive.
    Nothing,
}

impl TxFrame {
    pub fn new(
        number: u64,
        h: &FrameHeader,
        coverage: Coverage,
        item: Option<Item>,
        payload: Payload,
        hedged: bool,
    ) -> Self {
        let mut header = [0; STREAM_HEADER_BYTES];
        write_header(&mut header, number, h, coverage);
        Self {
            header,
            number,
            item,
            payload,
            len: h.len as usize,
            trailer: None,
            written: 0,
            aborted: false,
            hedged,
            summed: coverage.sums_payload(h.kind),
            unprotected: h.flags & flags::UNPROTECTED != 0,
        }
    }

    fn total(&self) -> usize {
        STREAM_HEADER_BYTES + self.len + TRAILER_BYTES
    }

    /// Bytes of the payload, wherever they are.
    fn payload_bytes(&self) -> usize {
        match self.payload {
            Payload::Placed { len, .. } => len as usize,
            _ => self.len,
        }
    }

    /// Bytes that are not written, with those that an adapter writes.
    #[inline]
    pub fn bytes_left(&self) -> usize {
        self.total() - self.written + self.payload_bytes() - self.len
    }

    pub fn item(&self) -> Option<Item> {
        self.item
    }

    /// Its payload is in the frame itself.
    pub fn owns_payload(&self) -> bool {
        matches!(self.payload, Payload::Owned(_))
    }

    pub fn is_begun(&self) -> bool {
        self.written > 0
    }

    pub fn is_hedged(&self) -> bool {
        self.hedged
    }

    /// The write of its payload is posted to an adapter.
    pub fn is_posted(&self) -> bool {
        self.work().is_some()
    }

    /// That write.
    pub(super) fn work(&self) -> Option<WorkId> {
        match self.payload {
            Payload::Placed { work, .. } => work,
            _ => None,
        }
    }

    /// The message from which an adapter is to write its payload, when that is not posted yet.
    #[inline]
    pub(super) fn to_be_posted(&self) -> Option<u64> {
        match self.payload {
            Payload::Placed { seq, work: None, .. } => Some(seq),
            _ => None,
        }
    }

    /// Posts to the adapter, by the name of `work`, the write of the payload out of `body`.
    pub(super) fn post(&mut self, work: WorkId, body: &Body, window: &mut Window) {
        let Payload::Placed { at, len, key, work: posted, .. } = &mut self.payload else { return };
        *posted = Some(work);
        let (offset, key) = (*at, *key);
        let whole = body.around(offset as usize);
        body.pieces(offset as usize, *len as usize, |q, n| {
            let source = IoVec { ptr: q.cast_mut(), len: n };
            window.place(Place { work, source, whole, key, offset });
        });
    }

    /// Offers what is not written for the next write; `body` finds the bytes of a message. False: the window has no room for all of it.
    #[inline]
    pub(super) fn offer<'a>(&mut self, window: &mut Window, body: impl Fn(u64) -> &'a Body) -> bool {
        let mut skip = self.written;
        if skip < STREAM_HEADER_BYTES {
            window.push(self.header[skip..].as_ptr(), STREAM_HEADER_BYTES - skip);
            skip = 0;
        } else {
            skip -= STREAM_HEADER_BYTES;
        }
        let rest = self.len.saturating_sub(skip);
        let mut given = 0;
        if self.aborted {
            window.push(ZEROS.as_ptr(), rest);
            given = rest;
        } else {
            match &self.payload {
                Payload::Owned(v) => {
                    if rest > 0 {
                        window.push(v[skip..].as_ptr(), rest);
                    }
                    given = rest;
                }
                Payload::Message { seq, at } => {
                    if rest > 0 {
                        body(*seq).pieces(*at as usize + skip, rest, |q, n| {
                            if window.room() > 1 {
                                window.push(q, n);
                                given += n;
                            }
                        });
                    }
                }
                // nothing of it is in the stream
                Payload::Placed { .. } => {}
            }
        }
        if given < rest {
            return false;
        }
        let trailer = self.trailer.get_or_insert_with(|| {
            let crc = match &self.payload {
                _ if self.aborted || !self.summed => 0,
                Payload::Owned(v) => crc32c_append(0, v),
                Payload::Message { seq, at } => {
                    let mut c = 0;
                    if self.len > 0 {
                        body(*seq).pieces(*at as usize, self.len, |q, n| {
                            // SAFETY: the sender's memory is valid until the completion, which has not been reported.
                            c = crc32c_append(c, unsafe { std::slice::from_raw_parts(q, n) });
                        });
                    }
                    c
                }
                Payload::Placed { .. } => 0,
            };
            Trailer { crc, valid: !self.aborted }.to_bytes()
        });
        let skip = self.written.saturating_sub(STREAM_HEADER_BYTES + self.len);
        window.push(trailer[skip..].as_ptr(), TRAILER_BYTES - skip);
        true
    }

    /// Takes note of memory that was given back (`is_gone`). False: it was not begun, and nothing needs it.
    #[inline]
    pub(super) fn settle(
        &mut self,
        needs: impl FnOnce(&Item) -> bool,
        is_gone: impl FnOnce(u64) -> bool,
    ) -> bool {
        let (Payload::Message { seq, .. } | Payload::Placed { seq, work: None, .. }) = self.payload else {
            return true;
        };
        if self.aborted {
            return true;
        }
        if self.written == 0 {
            return self.item.as_ref().is_none_or(needs);
        }
        // a trailer that was begun states what was true when it was: all of the payload is written. Half of it VALID
        // and half of it ABORT would look like damage, and count against the rail
        let begun = self.written > STREAM_HEADER_BYTES + self.len;
        if !begun && is_gone(seq) {
            self.aborted = true;
            self.trailer = None;
        }
        true
    }

    /// The kernel took bytes, of which `left` may be this frame's. Whether it is written in full.
    #[inline]
    pub(super) fn write(&mut self, left: &mut usize) -> bool {
        let n = (self.total() - self.written).min(*left);
        self.written += n;
        *left -= n;
        self.written == self.total()
    }

    /// It is written in full.
    #[inline]
    pub(super) fn end(self, now: Time) -> Written {
        if self.unprotected {
            return Written::Unprotected(self.len as u64, self.item.filter(|_| !self.aborted));
        }
        let (Some(item), false) = (self.item, self.aborted) else { return Written::Nothing };
        let placed = matches!(self.payload, Payload::Placed { .. });
        let bytes = self.payload_bytes() as u32;
        Written::Recorded(Sent::frame(self.number, item, bytes, now, self.hedged, placed))
    }

    /// Its item goes over another path too, if that is the first time and `budget` allows as many bytes.
    pub(super) fn hedge(&mut self, budget: &mut u64, copies: &mut Vec<Item>) {
        if let (Some(item), false) = (self.item, self.hedged || self.len as u64 > *budget) {
            *budget -= self.len as u64;
            self.hedged = true;
            copies.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_wire::FrameType;

    const NOW: Time = Time::ORIGIN;

    fn body() -> Body {
        Body::Retained((0..100).collect())
    }

    fn fragment(payload: Payload) -> TxFrame {
        let h = FrameHeader { len: 100, ..FrameHeader::new(FrameType::Frag) };
        TxFrame::new(7, &h, Coverage::Full, Some(Item::Eager { seq: 3 }), payload, false)
    }

    /// The bytes that are offered.
    fn offered(f: &mut TxFrame, body: &Body) -> Vec<u8> {
        let mut window = Window::default();
        assert!(f.offer(&mut window, |_| body));
        // SAFETY: the pieces are of the frame and of `body`, which is unchanged since.
        let bytes = |v: &IoVec| unsafe { std::slice::from_raw_parts(v.ptr, v.len) }.to_vec();
        window.pieces().iter().flat_map(bytes).collect()
    }

    #[test]
    fn a_frame_is_offered_from_where_the_last_write_ended() {
        let (body, mut f) = (body(), fragment(Payload::Message { seq: 3, at: 0 }));
        let whole = offered(&mut f, &body);
        assert_eq!(whole.len(), f.bytes_left());
        assert_eq!(
            Trailer::parse(&whole[whole.len() - TRAILER_BYTES..]).map(|t| (t.valid, t.crc)),
            Ok((true, crc32c_append(0, &(0..100).collect::<Vec<u8>>())))
        );
        for cut in [1, STREAM_HEADER_BYTES, STREAM_HEADER_BYTES + 50, whole.len() - 1] {
            let (mut f, mut left) = (f.clone(), cut);
            assert!(!f.write(&mut left) && left == 0 && f.is_begun());
            assert_eq!(offered(&mut f, &body), whole[cut..]);
        }
        let mut left = whole.len() + 5;
        assert!(f.write(&mut left));
        assert_eq!(left, 5, "the next frame's");
        let Written::Recorded(sent) = f.end(NOW) else { panic!("it has to be acknowledged") };
        assert_eq!((sent.number(), sent.bytes(), sent.is_placed()), (7, 100, false));
    }

    #[test]
    fn a_begun_frame_whose_memory_is_gone_ends_with_zeros_and_abort() {
        let (body, mut f) = (body(), fragment(Payload::Message { seq: 3, at: 0 }));
        let whole = offered(&mut f, &body);
        let mut late = f.clone();
        assert!(f.settle(|_| true, |_| true), "it is needed");
        assert!(!f.clone().settle(|_| false, |_| true), "not begun, not needed");
        f.write(&mut (STREAM_HEADER_BYTES + 40));
        assert!(f.settle(|_| false, |seq| seq == 3), "it was begun");
        let rest = offered(&mut f, &body);
        assert!(rest[..60].iter().all(|b| *b == 0));
        assert_eq!(Trailer::parse(&rest[60..]).map(|t| t.valid), Ok(false));
        f.write(&mut whole.len().clone());
        assert!(matches!(f.end(NOW), Written::Nothing));
        // half of a trailer is VALID, and so is the other half
        late.write(&mut (whole.len() - 1));
        assert!(late.settle(|_| false, |_| true));
        assert_eq!(offered(&mut late, &body), whole[whole.len() - 1..]);
    }

    #[test]
    fn what_an_adapter_writes_is_posted_once_and_counted_like_the_rest() {
        let key = RemoteKey(5);
        let h = FrameHeader { total: 90, ..FrameHeader::new(FrameType::Placed) };
        let payload = Payload::Placed { seq: 3, at: 10, len: 90, key, work: None };
        let mut f = TxFrame::new(7, &h, Coverage::Full, Some(Item::Eager { seq: 3 }), payload, false);
        assert_eq!(f.bytes_left(), STREAM_HEADER_BYTES + 90 + TRAILER_BYTES);
        assert_eq!((f.to_be_posted(), f.is_posted()), (Some(3), false));
        let (mut window, body) = (Window::default(), body());
        f.post(WorkId(1), &body, &mut window);
        assert_eq!((f.to_be_posted(), f.is_posted()), (None, true));
        assert_eq!(offered(&mut f, &body).len(), STREAM_HEADER_BYTES + TRAILER_BYTES);
        f.write(&mut 1);
        assert!(f.settle(|_| false, |_| true) && !f.aborted, "the adapter has read it, or will");
        assert!(f.write(&mut usize::MAX.clone()));
        let Written::Recorded(sent) = f.end(NOW) else { panic!("it has to be acknowledged") };
        assert_eq!((sent.bytes(), sent.is_placed()), (90, true));
    }
}
