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
//! A process that knows another only by IP address and port first requests its address ([`inquiry`]).
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
mod crc;
pub mod frame;
pub mod hello;
pub mod inquiry;
pub mod onesided;
pub mod packet;
pub mod sealed;
pub mod stream;

pub use address::Address;
pub use auth::{KeySource, PairKeys, PublicKey, Token};
pub use coverage::Coverage;
pub use crc::crc32c_append;
pub use frame::{FrameHeader, FrameType};

/// Version of everything on the wire. Two processes with different versions refuse each other.
pub const VERSION: u8 = 7;

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
