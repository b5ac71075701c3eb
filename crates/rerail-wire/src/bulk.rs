//! A piece of a fragment in a datagram of its own: what follows the header of a [`crate::packet::PacketKind::Bulk`] packet.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | number of the message |
//! | 8..14 | offset in the message; 48 bits, as long as a message can be |
//! | 14..16 | bytes of the piece |
//!
//! Then the piece, then zeros that the receiver ignores: datagrams that travel as a train are of equal length, so a
//! piece that is a few bytes shorter than its neighbours is filled up. A frame header would take three times as much of
//! every datagram.

use crate::WireError;
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes of the header of a piece.
pub const BULK_HEADER_BYTES: usize = 16;

/// The header of a piece, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkHeader {
    /// Number of the message.
    pub seq: u64,
    /// Offset in the message, below 2^48.
    pub at: u64,
    /// Bytes of the piece, at least 1.
    pub len: u16,
}

impl BulkHeader {
    /// Parses the header at the start of `b`; returns it and the piece.
    ///
    /// # Errors
    /// Truncated input, an empty piece.
    pub fn parse(b: &[u8]) -> Result<(Self, &[u8]), WireError> {
        if b.len() < BULK_HEADER_BYTES {
            return Err(WireError::Truncated { need: BULK_HEADER_BYTES, have: b.len() });
        }
        let h = Self {
            seq: get_u64(b, 0),
            at: u64::from(get_u32(b, 8)) | u64::from(get_u16(b, 12)) << 32,
            len: get_u16(b, 14),
        };
        let end = BULK_HEADER_BYTES + usize::from(h.len);
        if b.len() < end {
            return Err(WireError::Truncated { need: end, have: b.len() });
        }
        if h.len == 0 {
            return Err(WireError::Field("length of a piece"));
        }
        Ok((h, &b[BULK_HEADER_BYTES..end]))
    }

    /// Writes the header to the first [`BULK_HEADER_BYTES`] of `b`.
    pub fn write(&self, b: &mut [u8]) {
        debug_assert!(self.at < 1 << 48);
        put_u64(b, 0, self.seq);
        put_u32(b, 8, self.at as u32);
        put_u16(b, 12, (self.at >> 32) as u16);
        put_u16(b, 14, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip_with_and_without_filling() {
        let h = BulkHeader { seq: 7, at: (1 << 48) - 3, len: 3 };
        let mut b = [0; BULK_HEADER_BYTES + 5];
        h.write(&mut b);
        b[BULK_HEADER_BYTES..][..3].copy_from_slice(b"abc");
        assert_eq!(BulkHeader::parse(&b), Ok((h, &b"abc"[..])));
        assert_eq!(BulkHeader::parse(&b[..BULK_HEADER_BYTES + 3]), Ok((h, &b"abc"[..])));
        for n in 0..BULK_HEADER_BYTES + 3 {
            assert!(BulkHeader::parse(&b[..n]).is_err());
        }
        h.write(&mut b);
        b[14] = 0;
        assert_eq!(BulkHeader::parse(&b), Err(WireError::Field("length of a piece")));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(b in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok((h, piece)) = BulkHeader::parse(&b) {
                prop_assert_eq!(piece.len(), usize::from(h.len));
                let mut out = [0; BULK_HEADER_BYTES];
                h.write(&mut out);
                prop_assert_eq!(&out[..], &b[..BULK_HEADER_BYTES]);
            }
        }
    }
}
