//! The frame: 48 bytes of header and `len` bytes of payload, the same on datagrams and on streams.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0 | `kind` | [`FrameType`] |
//! | 1 | `flags` | [`flags`] |
//! | 2..4 | `dst_ep` | endpoint of the receiver |
//! | 4..6 | `src_ep` | endpoint of the sender |
//! | 6..8 | `aux` | see the type |
//! | 8..16 | `seq` | message number between two processes; 64 bits, one per message, so it cannot wrap in a life |
//! | 16..24 | `a` | see the type |
//! | 24..32 | `b` | see the type |
//! | 32..40 | `total` | see the type |
//! | 40..44 | `len` | bytes of payload that follow |
//! | 44..48 | `x` | see the type |

use crate::WireError;
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 48;
/// Largest payload of one frame: a subframe of at most 64 KiB (hazard H1 bounds what a stalled write can pin down).
pub const FRAME_PAYLOAD_MAX: usize = 64 * 1024;

/// Smallest granule of a message. The receiver keeps a bit for each fragment: a peer that announced a huge message in fragments
/// of a byte would make it keep as much again.
pub const GRANULE_MIN: u32 = 1024;

/// What a frame is for, and what its fields mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameType {
    /// A whole message. `a` tag, `b` CQ data, `total` message length, `x` granule, should it be refused.
    Eager = 1,
    /// Announces a message. `a` tag, `b` CQ data, `total` message length, `x` granule: the size of its fragments,
    /// fixed for the message's life (hazard H9).
    Rts = 2,
    /// Grants the announced message `seq`. `total` bytes the receiver wants (less than announced: truncation). `x`: 1 answers an
    /// announcement of a message that is over or here in full, with `total` 0. It does not prove that a receive has matched.
    Cts = 3,
    /// A fragment of message `seq`, or a piece of one. `a` offset in the message.
    Frag = 4,
    /// Packet numbers received on one channel of one path. `a` largest number, `b` epoch << 32 | lane << 24 | channel << 16 | path (channel 0:
    /// datagrams, 1: streams, 2: bulk datagrams), `aux` the number of the stream,
    /// `total` µs since the largest arrived, `x` length of the first range; payload: ranges ([`crate::ack`]).
    Ack = 5,
    /// Bits of one vfrag that arrived: `a` index of the vfrag, `b` mask. OR it, never replace by it (hazard H10).
    Vack = 6,
    /// The payload of eager message `seq` was dropped over the memory bound, its envelope kept: keep it and wait for
    /// a grant (hazard H4).
    Refuse = 7,
    /// Query on a stream (on datagrams it is a packet of its own). `a` id; the payload, if any, is padding.
    Ping = 8,
    /// Answer to a query on a stream. `a` id; padded as the query was.
    Pong = 9,
    /// Path `aux` is out of service: `a` its epoch, `x` the witness (hazard H13). For corruption, `total` faults were counted,
    /// and the path is to be held down for `b` milliseconds.
    Verdict = 10,
    /// Node configuration ([`crate::config`]).
    Config = 11,
    /// The sender closes for good. `a` how many messages it sent to this peer in all, `b` below which number it has
    /// received the peer's; payload: numbers below `b` of messages whose bytes it did not get (u64 each), and in its last `total`
    /// numbers, those of messages that no receive has matched and whose rejection may be lost. `x`: see [`goodbye`].
    Goodbye = 12,
    /// The receiver of rendezvous message `seq` wants none of its bytes, or no more of them. `x`: 0 when its application has taken the
    /// message (it has discarded it, or closed the receive), 1 when no receive has matched it, because its endpoint is closed.
    Reject = 13,
    /// Message `seq` of the frame's sender was announced, and will not come: its memory is gone.
    Withdraw = 14,
    /// The receiver's memory for message `seq` may be written by the sender's adapter, on every lane of path `aux`: `a` and `b` the low and the
    /// high word of the key of the region, which begins where the message does, `total` its bytes.
    Key = 15,
    /// Only on a stream whose adapter writes memory: the bytes of message `seq` from `a` on, `total` of them, a whole fragment, were written
    /// into the receiver's memory before. `x` their checksum, if payload is summed.
    Placed = 16,
    /// The sender does not know what became of writes on stream `b` of lane `x` of epoch `a` of path `aux`: no more may reach memory. Answered by
    /// [`FrameType::Fenced`].
    Fence = 17,
    /// Nothing that was written on stream `b` of lane `x` of epoch `a` of path `aux` reaches memory any more.
    Fenced = 18,
    /// Lane `x` of path `aux` is to take another route: the sender gives stream `b` of epoch `a` nothing new, and the receiver is to do the same.
    /// Answered by [`FrameType::Left`].
    Leave = 21,
    /// Nothing of the sender's is under way on stream `b` of lane `x` of epoch `a` of path `aux`, and it gives it nothing new.
    Left = 22,
}

impl FrameType {
    fn from_u8(v: u8) -> Option<Self> {
        use FrameType::*;
        Some(match v {
            1 => Eager,
            2 => Rts,
            3 => Cts,
            4 => Frag,
            5 => Ack,
            6 => Vack,
            7 => Refuse,
            8 => Ping,
            9 => Pong,
            10 => Verdict,
            11 => Config,
            12 => Goodbye,
            13 => Reject,
            14 => Withdraw,
            15 => Key,
            16 => Placed,
            17 => Fence,
            18 => Fenced,
            21 => Leave,
            22 => Left,
            _ => return None,
        })
    }

    /// Whether the payload is the user's: the one thing that a checksum of headers leaves out.
    #[inline]
    pub fn carries_data(self) -> bool {
        matches!(self, FrameType::Eager | FrameType::Frag)
    }

    /// Whether the payload of a frame with this first byte would be the user's; for a checksum that is computed before the
    /// frame is trusted enough to be parsed.
    #[inline]
    pub(crate) fn raw_carries_data(kind: u8) -> bool {
        kind == FrameType::Eager as u8 || kind == FrameType::Frag as u8
    }

    /// Whether the receiver must acknowledge the packet that holds this frame.
    pub fn elicits_ack(self) -> bool {
        use FrameType::*;
        !matches!(self, Ack | Vack | Ping | Pong)
    }
}

/// Bits of [`FrameHeader::flags`].
pub mod flags {
    /// The message is tagged.
    pub const TAGGED: u8 = 1;
    /// The message carries remote CQ data.
    pub const CQ_DATA: u8 = 2;
    /// The sender wants a report when the payload has been placed, not only delivered.
    pub const DELIVERY: u8 = 4;
    /// The sender keeps nothing of it and wants no acknowledgement: it has switched the protection off.
    pub const UNPROTECTED: u8 = 8;
    /// On a query on a stream: the sender gets no answer to its queries by datagram.
    pub const NO_DATAGRAMS: u8 = 16;
    /// The message belongs to a one-sided operation. Without TAGGED its payload is an order ([`crate::onesided`]); with it, the bytes of a
    /// write, or, with CQ_DATA, those of a read, and `a` is the id of the operation.
    pub const ONE_SIDED: u8 = 32;
    /// The message belongs to a collective operation. With CQ_DATA it reports a failure instead. Never with TAGGED or
    /// ONE_SIDED.
    pub const COLLECTIVE: u8 = 64;
    /// All bits with a meaning.
    pub const ALL: u8 = 127;
}

/// Bits of `x` in a [`FrameType::Goodbye`].
pub mod goodbye {
    /// The messages whose bytes did not come are too many to list.
    pub const MISSING_UNLISTED: u32 = 1;
    /// The messages without a match are too many to list.
    pub const UNMATCHED_UNLISTED: u32 = 2;
    /// All bits with a meaning.
    pub const ALL: u32 = 3;
}

/// A frame header, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is for.
    pub kind: FrameType,
    /// See [`flags`].
    pub flags: u8,
    /// Endpoint index at the receiver.
    pub dst_ep: u16,
    /// Endpoint index at the sender.
    pub src_ep: u16,
    /// See [`FrameType`].
    pub aux: u16,
    /// Message number.
    pub seq: u64,
    /// See [`FrameType`].
    pub a: u64,
    /// See [`FrameType`].
    pub b: u64,
    /// See [`FrameType`].
    pub total: u64,
    /// Bytes of payload that follow.
    pub len: u32,
    /// See [`FrameType`].
    pub x: u32,
}

impl FrameHeader {
    /// A header of `kind` with every other field zero.
    pub fn new(kind: FrameType) -> Self {
        Self { kind, flags: 0, dst_ep: 0, src_ep: 0, aux: 0, seq: 0, a: 0, b: 0, total: 0, len: 0, x: 0 }
    }

    /// Parses the header at the start of `b`.
    ///
    /// # Errors
    /// Truncated input, unknown type or flags, a payload over [`FRAME_PAYLOAD_MAX`], an eager message
    /// that is not whole, a granule out of range, or a grant or rejection whose `x` is neither 0 nor 1.
    ///
    /// Always in the caller's code: a header that is put together in memory and then copied costs more than the parsing.
    #[inline(always)]
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        let Some(b) = b.first_chunk::<FRAME_HEADER_BYTES>() else {
            return Err(WireError::Truncated { need: FRAME_HEADER_BYTES, have: b.len() });
        };
        let kind = FrameType::from_u8(b[0]).ok_or(WireError::Field("frame type"))?;
        let h = Self {
            kind,
            flags: b[1],
            dst_ep: get_u16(b, 2),
            src_ep: get_u16(b, 4),
            aux: get_u16(b, 6),
            seq: get_u64(b, 8),
            a: get_u64(b, 16),
            b: get_u64(b, 24),
            total: get_u64(b, 32),
            len: get_u32(b, 40),
            x: get_u32(b, 44),
        };
        let others = h.flags & (flags::TAGGED | flags::ONE_SIDED);
        if h.flags & !flags::ALL != 0 || (h.flags & flags::COLLECTIVE != 0 && others != 0) {
            return Err(WireError::Field("frame flags"));
        }
        if h.len as usize > FRAME_PAYLOAD_MAX {
            return Err(WireError::Field("frame length"));
        }
        match kind {
            FrameType::Eager if u64::from(h.len) != h.total => Err(WireError::Field("eager length")),
            FrameType::Frag if h.a.checked_add(u64::from(h.len)).is_none() || h.len == 0 => {
                Err(WireError::Field("fragment range"))
            }
            FrameType::Placed
                if h.a.checked_add(h.total).is_none()
                    || h.total == 0
                    || h.total > FRAME_PAYLOAD_MAX as u64
                    || h.len != 0 =>
            {
                Err(WireError::Field("placed range"))
            }
            FrameType::Key | FrameType::Fence | FrameType::Fenced | FrameType::Leave | FrameType::Left
                if h.len != 0 =>
            {
                Err(WireError::Field("payload"))
            }
            FrameType::Rts | FrameType::Eager if h.x < GRANULE_MIN || h.x as usize > FRAME_PAYLOAD_MAX => {
                Err(WireError::Field("granule"))
            }
            FrameType::Cts | FrameType::Reject if h.x > 1 => Err(WireError::Field("end of a message")),
            _ => Ok(h),
        }
    }

    /// Writes the header to the first [`FRAME_HEADER_BYTES`] of `b`.
    #[inline]
    pub fn write(&self, b: &mut [u8]) {
        let b = b.first_chunk_mut::<FRAME_HEADER_BYTES>().expect("room for a header");
        b[0] = self.kind as u8;
        b[1] = self.flags;
        put_u16(b, 2, self.dst_ep);
        put_u16(b, 4, self.src_ep);
        put_u16(b, 6, self.aux);
        put_u64(b, 8, self.seq);
        put_u64(b, 16, self.a);
        put_u64(b, 24, self.b);
        put_u64(b, 32, self.total);
        put_u32(b, 40, self.len);
        put_u32(b, 44, self.x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip() {
        let h = FrameHeader {
            seq: 5,
            a: 1 << 40,
            len: 9,
            total: 9,
            x: 4096,
            ..FrameHeader::new(FrameType::Eager)
        };
        let mut b = [0; FRAME_HEADER_BYTES];
        h.write(&mut b);
        assert_eq!(FrameHeader::parse(&b), Ok(h));
        for n in 0..FRAME_HEADER_BYTES {
            assert!(FrameHeader::parse(&b[..n]).is_err());
        }
    }

    #[test]
    fn an_eager_message_is_whole() {
        let h = FrameHeader { len: 9, total: 8, x: 4096, ..FrameHeader::new(FrameType::Eager) };
        let mut b = [0; FRAME_HEADER_BYTES];
        h.write(&mut b);
        assert_eq!(FrameHeader::parse(&b), Err(WireError::Field("eager length")));
    }

    #[test]
    fn what_an_adapter_has_written_is_a_range_and_no_payload() {
        let parsed = |h: FrameHeader| {
            let mut b = [0; FRAME_HEADER_BYTES];
            h.write(&mut b);
            FrameHeader::parse(&b)
        };
        let placed = FrameHeader { a: 65_536, total: 65_536, ..FrameHeader::new(FrameType::Placed) };
        assert_eq!(parsed(placed), Ok(placed));
        for wrong in [
            FrameHeader { total: 0, ..placed },
            FrameHeader { total: 65_537, ..placed },
            FrameHeader { a: u64::MAX, ..placed },
            FrameHeader { len: 1, ..placed },
        ] {
            assert_eq!(parsed(wrong), Err(WireError::Field("placed range")), "{wrong:?}");
        }
        for kind in [FrameType::Key, FrameType::Fence, FrameType::Fenced, FrameType::Leave, FrameType::Left] {
            assert!(parsed(FrameHeader::new(kind)).is_ok());
            assert_eq!(
                parsed(FrameHeader { len: 1, ..FrameHeader::new(kind) }),
                Err(WireError::Field("payload"))
            );
        }
    }

    #[test]
    fn the_end_of_a_message_is_one_of_two() {
        for kind in [FrameType::Cts, FrameType::Reject] {
            for x in [0, 1, 2, 65_536, u32::MAX] {
                let h = FrameHeader { x, ..FrameHeader::new(kind) };
                let mut b = [0; FRAME_HEADER_BYTES];
                h.write(&mut b);
                let wanted = if x < 2 { Ok(h) } else { Err(WireError::Field("end of a message")) };
                assert_eq!(FrameHeader::parse(&b), wanted, "{kind:?} with {x}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(b in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(h) = FrameHeader::parse(&b) {
                let mut out = [0; FRAME_HEADER_BYTES];
                h.write(&mut out);
                prop_assert_eq!(&out[..], &b[..FRAME_HEADER_BYTES]);
            }
        }
    }
}
