//! A frame on a stream: prefix, frame header, payload, trailer.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..4 | one of [`MAGICS`], by what the checksums cover: a stream out of step is noticed at the next frame |
//! | 4..8 | CRC32C of bytes 8..64: the header is trusted before a byte of payload is placed; zero when not covered |
//! | 8..16 | frame number on this stream |
//! | 16..64 | [`crate::FrameHeader`] |
//! | … | payload |
//! | 4 bytes | CRC32C of the payload; zero when not covered |
//! | 4 bytes | [`VALID`] or [`ABORT`] |
//!
//! The trailer is the remedy of hazard H1: a frame that was begun must be finished, or the stream is out of step; if its
//! memory was given back meanwhile, the rest is zeros and the trailer is ABORT. The coverage stands before the payload,
//! not in the trailer, so that the receiver does not sum a payload that has no checksum.

use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::{Coverage, WireError};

/// First bytes of every frame on a stream, by [`Coverage`]. Any two differ in at least 16 bits, so that damage to the field
/// is damage, and not another coverage.
pub const MAGICS: [u32; 3] = [0x3146_5252 ^ 0xffff_0000, 0x3146_5252 ^ 0x0000_ffff, 0x3146_5252];
/// Bytes before the frame header.
pub const STREAM_PREFIX_BYTES: usize = 16;
/// Bytes of prefix and frame header.
pub const STREAM_HEADER_BYTES: usize = STREAM_PREFIX_BYTES + FRAME_HEADER_BYTES;
/// Bytes after the payload.
pub const TRAILER_BYTES: usize = 8;
/// The payload is what the sender meant.
pub const VALID: u32 = 0x4449_4c56;
/// The payload is not to be used.
pub const ABORT: u32 = 0x5452_4241;
const _: () = assert!(STREAM_HEADER_BYTES == 64);

/// Writes prefix and header to the first [`STREAM_HEADER_BYTES`] of `b`.
pub fn write_header(b: &mut [u8], number: u64, frame: &FrameHeader, coverage: Coverage) {
    put_u32(b, 0, MAGICS[coverage as usize]);
    put_u64(b, 8, number);
    frame.write(&mut b[STREAM_PREFIX_BYTES..STREAM_HEADER_BYTES]);
    put_u32(b, 4, header_checksum(b, coverage));
}

fn header_checksum(b: &[u8], coverage: Coverage) -> u32 {
    if coverage == Coverage::None { 0 } else { crate::crc32c_append(0, &b[8..STREAM_HEADER_BYTES]) }
}

/// Parses prefix and header; returns the frame number, the frame, and what its checksums cover.
///
/// # Errors
/// Truncated input; a stream out of step or a wrong checksum ([`WireError::Checksum`]); a malformed frame header.
pub fn parse_header(b: &[u8]) -> Result<(u64, FrameHeader, Coverage), WireError> {
    if b.len() < STREAM_HEADER_BYTES {
        return Err(WireError::Truncated { need: STREAM_HEADER_BYTES, have: b.len() });
    }
    let magic = MAGICS.iter().position(|m| get_u32(b, 0) == *m);
    let Some(coverage) = magic.and_then(|m| Coverage::from_u8(m as u8)) else {
        return Err(WireError::Checksum("stream magic"));
    };
    if get_u32(b, 4) != header_checksum(b, coverage) {
        return Err(WireError::Checksum("stream header"));
    }
    let number = get_u64(b, 8);
    if number >= crate::packet::NUMBER_MAX {
        return Err(WireError::Field("frame number"));
    }
    Ok((number, FrameHeader::parse(&b[STREAM_PREFIX_BYTES..])?, coverage))
}

/// What a trailer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// CRC32C of the payload.
    pub crc: u32,
    /// False when the payload is not to be used.
    pub valid: bool,
}

impl Trailer {
    /// Parses the first [`TRAILER_BYTES`] of `b`.
    ///
    /// # Errors
    /// Truncated input, or a state that is neither VALID nor ABORT.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        if b.len() < TRAILER_BYTES {
            return Err(WireError::Truncated { need: TRAILER_BYTES, have: b.len() });
        }
        let valid = match get_u32(b, 4) {
            VALID => true,
            ABORT => false,
            _ => return Err(WireError::Field("trailer state")),
        };
        Ok(Self { crc: get_u32(b, 0), valid })
    }

    /// The bytes of the trailer.
    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        let mut b = [0; TRAILER_BYTES];
        put_u32(&mut b, 0, self.crc);
        put_u32(&mut b, 4, if self.valid { VALID } else { ABORT });
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameType;

    #[test]
    fn header_round_trip_and_every_flipped_bit_is_noticed() {
        let f = FrameHeader { a: 65536, len: 100, ..FrameHeader::new(FrameType::Frag) };
        let mut b = [0; STREAM_HEADER_BYTES];
        for coverage in [Coverage::Full, Coverage::Header] {
            write_header(&mut b, 77, &f, coverage);
            assert_eq!(parse_header(&b), Ok((77, f, coverage)));
            for bit in 0..b.len() * 8 {
                let mut c = b;
                c[bit / 8] ^= 1 << (bit % 8);
                assert!(parse_header(&c).is_err(), "bit {bit}");
            }
        }
        write_header(&mut b, 77, &f, Coverage::None);
        assert_eq!(parse_header(&b), Ok((77, f, Coverage::None)));
        assert_eq!(b[4..8], [0; 4]);
    }

    #[test]
    fn no_few_flipped_bits_make_one_coverage_of_another() {
        for (i, a) in MAGICS.iter().enumerate() {
            for b in &MAGICS[i + 1..] {
                assert!((a ^ b).count_ones() >= 16);
            }
        }
    }

    #[test]
    fn trailer_round_trip() {
        for valid in [true, false] {
            let t = Trailer { crc: 5, valid };
            assert_eq!(Trailer::parse(&t.to_bytes()), Ok(t));
        }
        assert!(Trailer::parse(&[0; 8]).is_err());
    }
}
