//! How encrypted traffic looks: a header before each datagram, a length before each record of a stream.
//!
//! A sealed datagram hides everything of a [datagram](crate::packet). The id of the session, in the place of its
//! connection id, names the key that the receiver needs:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | id of the session and direction, derived from its secret |
//! | 8 | version |
//! | 9 | [`SEALED`], which is no [`crate::packet::PacketKind`] |
//! | 10..16 | counter, big-endian: never the same twice under one key |
//! | 16.. | the datagram from its byte 8 on, encrypted |
//! | last 16 | tag, over all of it |
//!
//! On a stream the handshake goes in clear; what follows it, in each direction, is records: the number of encrypted bytes
//! (u32, little-endian, at most [`RECORD_BYTES_MAX`] and not 0), those bytes, and the tag. Records are counted from 0, and the count
//! is not sent.

use crate::bytes::get_u64;

/// In the place of a packet's kind.
pub const SEALED: u8 = 0x80;
/// Bytes of the header of a sealed datagram.
pub const SEALED_HEADER_BYTES: usize = 16;
/// Bytes of the tag.
pub const TAG_BYTES: usize = 16;
/// Bytes at the beginning of a datagram that are not encrypted: its connection id.
pub const CLEAR_BYTES: usize = 8;
/// How much longer a datagram becomes.
pub const SEALED_EXTRA_BYTES: usize = SEALED_HEADER_BYTES - CLEAR_BYTES + TAG_BYTES;
/// Counters are below this: at 10^8 datagrams a second it is reached after a month, and then nothing is sent any more.
pub const COUNTER_MAX: u64 = 1 << 48;
/// Bytes of the length before a record.
pub const RECORD_HEADER_BYTES: usize = 4;
/// Most bytes that one record carries.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;

/// The header of a sealed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedHeader {
    /// Id of the session and direction.
    pub session: u64,
    /// See the table.
    pub counter: u64,
}

impl SealedHeader {
    /// The bytes.
    pub fn to_bytes(self) -> [u8; SEALED_HEADER_BYTES] {
        let mut b = [0; SEALED_HEADER_BYTES];
        b[..8].copy_from_slice(&self.session.to_le_bytes());
        b[8] = crate::VERSION;
        b[9] = SEALED;
        b[10..].copy_from_slice(&self.counter.to_be_bytes()[2..]);
        b
    }

    /// Reads the header of a datagram; `None`: it is not a sealed one.
    pub fn parse(b: &[u8]) -> Option<Self> {
        if b.len() <= SEALED_HEADER_BYTES + TAG_BYTES || b[8] != crate::VERSION || b[9] != SEALED {
            return None;
        }
        let mut counter = [0; 8];
        counter[2..].copy_from_slice(&b[10..SEALED_HEADER_BYTES]);
        Some(Self { session: get_u64(b, 0), counter: u64::from_be_bytes(counter) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketKind;

    #[test]
    fn a_header_comes_back_and_is_no_packet_of_another_kind() {
        let h = SealedHeader { session: 0x0102_0304_0506_0708, counter: COUNTER_MAX - 2 };
        let mut b = h.to_bytes().to_vec();
        assert_eq!(SealedHeader::parse(&b), None, "it seals nothing");
        b.resize(SEALED_HEADER_BYTES + TAG_BYTES + 1, 0);
        assert_eq!(SealedHeader::parse(&b), Some(h));
        assert_eq!(PacketKind::from_u8(SEALED), None);
        assert_eq!(crate::packet::peek(&b), None);
        for kind in 0..=u8::MAX {
            b[9] = kind;
            assert_eq!(SealedHeader::parse(&b).is_some(), kind == SEALED);
        }
    }
}
