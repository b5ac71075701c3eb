//! One stream connection: frames being written and read, piece by piece.
//!
//! Owns: frames that are not written in full, records of frames that are not acknowledged, bytes that were read and not yet
//! understood. What it took to open it, and what is being read, has memory only as long as it lasts: an idle stream needs neither. Partial writes and reads are events here, so that the simulator sees half-written and half-read frames
//! (hazards H1, H2). Invariant: `bytes_in_flight` is the sum of the records.

use crate::lane::name::LaneName;
use crate::lane::sent::Sent;
use crate::marks::Mark;
use crate::memory::spare::Spare;
use crate::message::item::Item;
use crate::rest::{OnDemand, give_back, rests};
use crate::types::{Epoch, LaneId, Locator, PathId, PeerId, RailId, RemoteKey, Time, WorkId};
use rerail_wire::FrameHeader;
use rerail_wire::frame::FRAME_PAYLOAD_MAX;
use rerail_wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES};
use std::collections::VecDeque;

/// Bytes of the buffer for what was read: one whole frame of the largest kind, and the header of the next.
pub(crate) const READ_BUFFER_BYTES: usize = FRAME_PAYLOAD_MAX + 2 * (STREAM_HEADER_BYTES + TRAILER_BYTES);
/// The same for who has not said who it is: a hello.
const STRANGER_BUFFER_BYTES: usize = 256;
/// Buffers that are kept for the next streams that read, at most.
const SPARE_BUFFERS: usize = 8;
/// Bytes of frames that are cut for one write.
pub(crate) const WRITE_BATCH_BYTES: usize = 1024 * 1024;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// We connect; nothing is sent yet.
    Connecting,
    /// Our hello is sent; the accept is awaited.
    HelloSent,
    /// A stranger connected; its hello is awaited.
    Stranger,
    /// Attached to a path: frames flow.
    Attached,
    /// To be closed; nothing is read or written any more.
    Closing,
}

/// Where the payload of a frame being written is.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// In the message with this number, from this offset.
    Message { seq: u64, at: u64 },
    /// In the frame itself: acknowledgements, configuration.
    Owned(Vec<u8>),
}

/// A fragment that an adapter writes into the peer's memory, and that its frame only tells of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedFrame {
    pub at: u64,
    pub len: u32,
    pub key: RemoteKey,
    /// Once it is posted.
    pub work: Option<WorkId>,
}

/// A frame that is not written in full.
#[derive(Debug, Clone)]
pub(crate) struct TxFrame {
    pub header: [u8; STREAM_HEADER_BYTES],
    pub number: u64,
    pub item: Option<Item>,
    pub payload: Payload,
    pub len: usize,
    pub placed: Option<PlacedFrame>,
    pub trailer: Option<[u8; TRAILER_BYTES]>,
    /// Bytes of header, payload and trailer that are written.
    pub written: usize,
    /// Its memory was given back: the rest of the payload is zeros and the trailer says so.
    pub aborted: bool,
    pub hedged: bool,
    /// The trailer sums the payload.
    pub summed: bool,
    /// No record of it is kept.
    pub unprotected: bool,
}

impl TxFrame {
    pub fn total(&self) -> usize {
        STREAM_HEADER_BYTES + self.len + TRAILER_BYTES
    }

    /// Bytes of the payload, wherever they are.
    pub fn payload_bytes(&self) -> usize {
        self.placed.map_or(self.len, |p| p.len as usize)
    }

    /// An adapter has been asked to write its payload.
    pub fn is_posted(&self) -> bool {
        self.placed.is_some_and(|p| p.work.is_some())
    }
}

/// Where the payload of a frame being read goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Straight into the user's memory, under the lease of this fragment.
    Lease { seq: u64, frag: u64 },
    /// Beside the user's memory, and there only when it is whole and checked: pieces of the fragment came as datagrams and
    /// were acknowledged, so they must not be written over by a stream that may break or lie.
    Side { seq: u64, frag: u64 },
    /// Nowhere: a duplicate, or nobody wants it.
    Scratch,
}

/// What is expected next on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A hello or an accept.
    Handshake,
    /// A frame header.
    Header,
    /// The payload of a fragment; without `summed` nobody asked for its checksum.
    Payload { frame: FrameHeader, number: u64, done: usize, crc: u32, place: Place, summed: bool },
    /// The trailer of a fragment.
    Trailer { frame: FrameHeader, number: u64, crc: u32, place: Place, summed: bool },
}

/// What a connection needs until it is attached to a path, and has said its first words.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Opening {
    /// Only to see whether this peer's kernel accepts it.
    pub asks: Option<PeerId>,
    /// Who is at the other end: a connection, unlike a datagram, proves its source.
    pub from: Option<Locator>,
    pub nonce: [u8; 16],
    pub deadline: Option<Time>,
    /// Raw bytes before any frame: hello or accept.
    pub preamble: Vec<u8>,
    pub preamble_written: usize,
}

/// What is being read from a connection. Between two frames nothing is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reader {
    /// Empty while nothing is to be read.
    pub buf: Vec<u8>,
    pub start: usize,
    pub end: usize,
    pub reading: Reading,
    /// Payload of a fragment that is read beside the user's memory.
    pub side: Vec<u8>,
    /// Bytes of the last window that go to the payload.
    pub window_payload: usize,
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
    Opening = Opening {
        asks: None,
        from: None,
        nonce: [0; 16],
        deadline: None,
        preamble: Vec::new(),
        preamble_written: 0,
    };
    Reader = Reader::IDLE;
}

#[derive(Clone)]
pub(crate) struct Stream {
    pub peer: Option<(PeerId, PathId)>,
    pub rail: RailId,
    pub phase: Phase,
    pub opened_by_us: bool,
    lane: LaneId,
    /// Number of this stream within its epoch and lane.
    pub number: u64,
    /// The epoch in which it is attached, or is to be.
    pub epoch: Epoch,
    /// Writes of an adapter that are under way on it.
    pub lent: u16,
    pub opening: OnDemand<Opening>,

    pub tx: VecDeque<TxFrame>,
    pub tx_full: bool,
    /// It may have something to write.
    pub queued: Mark,
    /// It is among those because of which streams are polled (`engine/expect`).
    pub listed: bool,
    pub number_next: u64,
    pub records: VecDeque<Sent>,
    pub bytes_in_flight: u64,
    pub progress_at: Time,

    pub reader: OnDemand<Reader>,
    /// When an acknowledgement of a frame last came.
    pub acked_at: Option<Time>,
    /// Bytes that the last window offered for writing.
    pub window_tx: usize,
    /// When the kernel last took bytes.
    pub written_at: Time,
    /// It stands still since then, and the kernel is asked why.
    pub stuck_since: Option<Time>,
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

impl Stream {
    /// Something is expected of it: room, acknowledgements, or the end of its beginning or of its end.
    pub fn is_busy(&self) -> bool {
        self.tx_full || self.waits() || self.phase != Phase::Attached
    }

    /// Whether something on it waits for the other side: for an acknowledgement, or for room. What was sent counts even when it has no
    /// payload, as a grant: it would wait for TCP's back-off otherwise, which outlasts the fault by far.
    pub fn waits(&self) -> bool {
        !self.records.is_empty() || (self.tx_full && !self.tx.is_empty())
    }

    /// The lane that it is for.
    #[inline]
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// From now on it is stream `number` of that lane.
    pub fn is_for(&mut self, lane: LaneId, number: u64) {
        (self.lane, self.number) = (lane, number);
    }

    /// Its name, as both sides use it: of one that we open from the beginning, because the peer may write on it before we know that it is
    /// attached.
    pub fn name(&self) -> Option<LaneName> {
        self.peer.map(|(_, path)| LaneName::new(path, self.epoch, self.lane, self.number))
    }

    pub fn new(rail: RailId, from: Locator, opened_by_us: bool, now: Time) -> Self {
        let mut s = Self {
            peer: None,
            rail,
            phase: if opened_by_us { Phase::Connecting } else { Phase::Stranger },
            opened_by_us,
            lane: LaneId::FIRST,
            number: 0,
            epoch: Epoch(0),
            lent: 0,
            opening: OnDemand::default(),
            tx: VecDeque::new(),
            tx_full: false,
            queued: Mark::default(),
            listed: false,
            number_next: 0,
            records: VecDeque::new(),
            bytes_in_flight: 0,
            progress_at: now,
            reader: OnDemand::default(),
            acked_at: None,
            window_tx: 0,
            written_at: now,
            stuck_since: None,
        };
        s.opening.from = Some(from);
        s.reader.reading = Reading::Handshake;
        s
    }

    /// Gives back what nothing needs while the other side is silent.
    pub fn rest(&mut self) {
        give_back(&mut self.tx);
        give_back(&mut self.records);
        self.reader.rest();
        if self.phase == Phase::Attached && !self.has_preamble() {
            self.opening = OnDemand::default();
        }
    }

    /// Whether something is to be written before any frame.
    pub fn has_preamble(&self) -> bool {
        self.opening.preamble_written < self.opening.preamble.len()
    }

    /// Bytes of cut frames that are not written.
    pub fn bytes_queued(&self) -> usize {
        self.tx.iter().map(|f| f.total() - f.written + f.payload_bytes() - f.len).sum()
    }

    /// Bytes that were read and not understood yet.
    pub fn unread(&self) -> &[u8] {
        &self.reader.buf[self.reader.start..self.reader.end]
    }

    /// Moves what was read to the front of the buffer. Without one it gets one of `spare`, or a new one, which is of full size for an
    /// authenticated peer only: a stranger's has room for its hello.
    pub fn compact(&mut self, spare: &mut SpareBuffers) {
        let known = self.opened_by_us || self.phase == Phase::Attached;
        let size = if known { READ_BUFFER_BYTES } else { STRANGER_BUFFER_BYTES };
        let r = &mut *self.reader;
        if r.buf.len() < size {
            let pooled = if known { spare.take() } else { None };
            let mut b = pooled.unwrap_or_else(|| vec![0; size]);
            b[..r.end - r.start].copy_from_slice(&r.buf[r.start..r.end]);
            r.buf = b;
        } else if r.start > 0 {
            r.buf.copy_within(r.start..r.end, 0);
        }
        r.end -= r.start;
        r.start = 0;
    }

    /// Gives the buffer back when nothing is in it: an idle stream needs none.
    pub fn give_buffer(&mut self, spare: &mut SpareBuffers) {
        let Some(r) = self.reader.awake_mut() else { return };
        if r.start == r.end {
            spare.put(std::mem::take(&mut r.buf));
            (r.start, r.end) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
