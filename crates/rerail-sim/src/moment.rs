//! Moments of a world that an aim may wait for: of a datagram, a stream, an engine, an application.

use rerail_core::wire::hello::{ACCEPT_BYTES, HELLO_BYTES};
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PacketKind, peek};
use rerail_core::wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, parse_header};
use rerail_core::wire::{FrameHeader, FrameType, frame};
use std::collections::VecDeque;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A datagram of this kind leaves.
    Packet(PacketKind),
    /// A hello or an acceptance of a path that was in service before.
    Again,
    /// A frame of this type leaves, in a datagram or on a stream.
    Frame(FrameType),
    /// A datagram leaves that holds nothing but acknowledgements.
    Ack,
    /// An order, an answer, or the bytes of a one-sided operation leave.
    Order,
    /// A process connects.
    Connect,
    /// A process is told of a connection that its kernel has accepted.
    Accepted,
    /// The hello of a stream is written, or its acceptance.
    Greeting,
    /// The first frame of a stream is written.
    FirstFrame,
    /// A fragment is written in part.
    HalfWritten,
    /// A fragment is read in part, and the rest has not arrived.
    HalfRead,
    /// The trailer of a frame is written, and says ABORT.
    Aborted,
    /// An engine reports an event of this name.
    Event(&'static str),
    /// An application stops sending, and only takes what it is still sent.
    Drains,
    /// An application closes its endpoints.
    Closes,
}

/// Where the frames of one direction of a stream are.
#[derive(Debug, Default)]
pub struct Follower {
    greeting: usize,
    head: Vec<u8>,
    /// Bytes of payload and trailer that are missing, and whether they are of a fragment.
    missing: usize,
    frag: bool,
    frames: u64,
    written: u64,
    read: u64,
    /// Fragments that are not read in full: where they begin and end.
    unread: VecDeque<(u64, u64)>,
}

impl Follower {
    /// Bytes that are written to direction `dir`; tells what was completed by them.
    pub(crate) fn write(&mut self, dir: usize, mut b: &[u8], mut each: impl FnMut(Moment)) {
        let greeting = [HELLO_BYTES, ACCEPT_BYTES][dir];
        while !b.is_empty() {
            let n;
            if self.greeting < greeting {
                n = b.len().min(greeting - self.greeting);
                self.greeting += n;
                if self.greeting == greeting {
                    each(Moment::Greeting);
                }
            } else if self.missing > TRAILER_BYTES {
                n = b.len().min(self.missing - TRAILER_BYTES);
                self.missing -= n;
            } else if self.missing > 0 {
                n = b.len().min(self.missing);
                self.head.extend_from_slice(&b[..n]);
                self.missing -= n;
                if self.missing == 0 {
                    if Trailer::parse(&self.head).is_ok_and(|t| !t.valid) {
                        each(Moment::Aborted);
                    }
                    self.head.clear();
                }
            } else {
                n = b.len().min(STREAM_HEADER_BYTES - self.head.len());
                self.head.extend_from_slice(&b[..n]);
                if self.head.len() == STREAM_HEADER_BYTES {
                    let (_, f, _) = parse_header(&self.head).expect("simulator: an engine writes frames");
                    self.head.clear();
                    self.missing = f.len as usize + TRAILER_BYTES;
                    self.frag = f.kind == FrameType::Frag;
                    self.frames += 1;
                    if self.frames == 1 {
                        each(Moment::FirstFrame);
                    }
                    each(Moment::Frame(f.kind));
                    if is_order(&f) {
                        each(Moment::Order);
                    }
                    if self.frag {
                        let begin = self.written + n as u64;
                        self.unread.push_back((begin, begin + u64::from(f.len)));
                    }
                }
            }
            self.written += n as u64;
            b = &b[n..];
        }
    }

    /// Whether a fragment is written in part.
    pub(crate) fn is_half_written(&self) -> bool {
        self.frag && self.missing > TRAILER_BYTES
    }

    /// `n` bytes are read; whether a fragment is read in part then.
    pub(crate) fn reads(&mut self, n: usize) -> bool {
        self.read += n as u64;
        while self.unread.front().is_some_and(|f| f.1 <= self.read) {
            self.unread.pop_front();
        }
        self.unread.front().is_some_and(|f| f.0 < self.read)
    }
}

fn is_order(f: &FrameHeader) -> bool {
    matches!(f.kind, FrameType::Eager | FrameType::Rts) && f.flags & frame::flags::ONE_SIDED != 0
}

impl Moment {
    /// Whether it is a moment of a stream's bytes.
    pub(crate) fn is_of_bytes(self) -> bool {
        use Moment::*;
        matches!(self, Frame(_) | Order | Greeting | FirstFrame | HalfWritten | HalfRead | Aborted)
    }

    /// Whether this is the moment of a datagram that leaves.
    pub(crate) fn is_of(self, b: &[u8]) -> bool {
        use PacketKind::{Accept, Data, Hello};
        let Some((_, kind)) = peek(b) else { return false };
        match self {
            Moment::Packet(k) => return k == kind,
            // epochs count from 1 or 2: the low bit is the side that proposed it
            Moment::Again => {
                return matches!(kind, Hello | Accept)
                    && u32::from_le_bytes([b[12], b[13], b[14], b[15]]) > 3;
            }
            Moment::Frame(_) | Moment::Ack | Moment::Order if kind == Data => {}
            _ => return false,
        }
        let mut rest = &b[PACKET_HEADER_BYTES..];
        let mut acks = true;
        while let Ok(f) = FrameHeader::parse(rest) {
            acks &= matches!(f.kind, FrameType::Ack | FrameType::Vack);
            if self == Moment::Frame(f.kind) || self == Moment::Order && is_order(&f) {
                return true;
            }
            let Some(r) = rest.get(frame::FRAME_HEADER_BYTES + f.len as usize..) else { break };
            rest = r;
        }
        self == Moment::Ack && acks
    }
}
