//! Frames of the Rerail protocol: checked views for reading, builders for writing, CRC32C, versions. No I/O.
//!
//! Everything is little-endian and versioned, and every parser takes its input as hostile: it answers with a
//! [`WireError`], never with a panic. Reserved bits are written as zero and must read as zero.
//!
//! Three things travel between two processes:
//!
//! * **datagrams** ([`packet`]): a 32-byte packet header with a secret connection id, a packet number and a checksum
//!   over the whole datagram (or less, see [`coverage`]), then any number of frames;
//! * **streams** ([`stream`]): a hello, then stream frames, each with a 16-byte prefix, one frame and an 8-byte trailer;
//! * **hellos** ([`hello`]): the authenticated handshake, the same bytes on both.
//!
//! A process that knows another by IP address and port only asks it for its address first ([`inquiry`]).
//!
//! A [`frame::FrameHeader`] is 48 bytes whatever carries it, so that one parser serves both channels (hazard H9: a
//! fragment keeps its identity when it moves from one channel to another).

pub mod ack;
pub mod address;
pub mod auth;
pub mod bulk;
pub mod bytes;
pub mod config;
pub mod coverage;
pub mod frame;
pub mod hello;
pub mod inquiry;
pub mod onesided;
pub mod packet;
pub mod sealed;
pub mod stream;

pub use address::Address;
pub use auth::{PublicKey, SessionKeys, Token};
pub use coverage::Coverage;
pub use frame::{FrameHeader, FrameType};

/// Version of everything on the wire. Two processes with different versions refuse each other.
pub const VERSION: u8 = 3;

/// Why bytes from a peer were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than the structure needs.
    #[error("truncated: {need} bytes needed, {have} there")]
    Truncated {
        /// Bytes the structure needs.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// A version this build does not speak.
    #[error("protocol version {0} is not supported (this build speaks {VERSION})")]
    Version(u8),
    /// A field holds a value that has no meaning.
    #[error("field {0} has a value without meaning")]
    Field(&'static str),
    /// A checksum does not fit the bytes.
    #[error("checksum of {0} does not match")]
    Checksum(&'static str),
    /// A keyed hash does not prove what it should.
    #[error("authentication failed")]
    Auth,
}

/// From here on the wide implementation is the quicker one; below it, both take the same few nanoseconds and the narrow one needs no
/// state. Measured by the example `checksums` (docs/performance.md).
const CRC_WIDE_MIN: usize = 64;

/// CRC32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`, continuing from `seed` (0 to start).
///
/// Short pieces use the processor's CRC32 instruction (SSE4.2), longer ones its carry-less multiplication, 512 bits at a time
/// where it can (AVX-512 with VPCLMULQDQ); both choose at run time, and have a table for processors that can neither.
#[inline]
pub fn crc32c_append(seed: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < CRC_WIDE_MIN {
        return crc32c::crc32c_append(seed, bytes);
    }
    // its state is kept before the final complement
    let state = u64::from(!seed);
    let mut d = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    d.update(bytes);
    d.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_implementations_agree_at_every_length_and_place_and_in_pieces() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for len in (0..300).chain([1472, 4096, 4999]) {
            for at in [0, 1, 7] {
                let b = &bytes[at.min(5000 - len)..][..len];
                let whole = crc32c::crc32c(b);
                assert_eq!(crc32c_append(0, b), whole, "{len} bytes");
                let (x, y) = b.split_at(len / 3);
                assert_eq!(crc32c_append(crc32c_append(0, x), y), whole, "{len} bytes in two pieces");
            }
        }
        // RFC 3720 appendix B.4
        assert_eq!(crc32c_append(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c_append(0, &[0xff; 32]), 0x62a8_ab43);
    }
}
