//! The datagram: a 32-byte header, then frames (data packets) or a query.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | secret connection id of the direction |
//! | 8 | version |
//! | 9 | [`PacketKind`] |
//! | 10..12 | path |
//! | 12..16 | epoch of the path |
//! | 16..24 | packet number (data) or query id (ping, pong); 64 bits, so it cannot wrap in a life |
//! | 24..28 | CRC32C of the whole datagram with this field zero |
//! | 28 | flags ([`PONG_BYPASS`]) |
//! | 29 | entries of the pong table |
//! | 30..32 | zero |

use crate::WireError;
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};

/// Bytes of a packet header.
pub const PACKET_HEADER_BYTES: usize = 32;
/// The pong was given by the service thread without the engine: it proves the path, not the engine (hazards H3, H17).
pub const PONG_BYPASS: u8 = 1;
/// Bytes of one entry of the pong table: path u16, zero u16, epoch u32, query id u64.
pub const PONG_ENTRY_BYTES: usize = 16;
/// Most entries of a pong table.
pub const PONG_ENTRIES_MAX: usize = 16;

/// What a datagram is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// Frames, with a packet number.
    Data = 1,
    /// Start of a handshake ([`crate::hello`]).
    Hello = 2,
    /// Answer of a handshake ([`crate::hello`]).
    Accept = 3,
    /// A query: answered at once by whoever reads it.
    Ping = 4,
    /// The answer, with a table of the newest query heard on each path: tells the direction of a fault.
    Pong = 5,
}

impl PacketKind {
    /// The kind with number `v`.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            1 => Self::Data,
            2 => Self::Hello,
            3 => Self::Accept,
            4 => Self::Ping,
            5 => Self::Pong,
            _ => return None,
        })
    }
}

/// A packet header, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// Secret connection id.
    pub cid: u64,
    /// What the datagram is.
    pub kind: PacketKind,
    /// Path the packet was sent on.
    pub path: u16,
    /// Epoch of that path.
    pub epoch: u32,
    /// Packet number, or query id.
    pub number: u64,
    /// See [`PONG_BYPASS`].
    pub flags: u8,
    /// Entries of the pong table.
    pub entries: u8,
}

/// Reads connection id and kind without checking anything else: enough to route a datagram or to refuse a stranger's.
pub fn peek(b: &[u8]) -> Option<(u64, PacketKind)> {
    if b.len() < PACKET_HEADER_BYTES || b[8] != crate::VERSION {
        return None;
    }
    Some((get_u64(b, 0), PacketKind::from_u8(b[9])?))
}

impl PacketHeader {
    /// Parses and checks a whole datagram; returns the header and what follows it. Not for [`PacketKind::Hello`] and
    /// [`PacketKind::Accept`], which have a keyed hash in place of the checksum.
    ///
    /// # Errors
    /// Truncated input, wrong version or kind, non-zero reserved bytes, checksum.
    pub fn parse(b: &[u8]) -> Result<(Self, &[u8]), WireError> {
        if b.len() < PACKET_HEADER_BYTES {
            return Err(WireError::Truncated { need: PACKET_HEADER_BYTES, have: b.len() });
        }
        if b[8] != crate::VERSION {
            return Err(WireError::Version(b[8]));
        }
        let kind = PacketKind::from_u8(b[9]).ok_or(WireError::Field("packet kind"))?;
        if get_u32(b, 24) != checksum(b) {
            return Err(WireError::Checksum("datagram"));
        }
        if get_u16(b, 30) != 0 || b[28] & !PONG_BYPASS != 0 {
            return Err(WireError::Field("packet reserved bytes"));
        }
        let h = Self {
            cid: get_u64(b, 0),
            kind,
            path: get_u16(b, 10),
            epoch: get_u32(b, 12),
            number: get_u64(b, 16),
            flags: b[28],
            entries: b[29],
        };
        let rest = &b[PACKET_HEADER_BYTES..];
        match kind {
            PacketKind::Hello | PacketKind::Accept => return Err(WireError::Field("packet kind")),
            PacketKind::Ping if !rest.is_empty() || h.entries != 0 => {
                return Err(WireError::Field("ping length"));
            }
            PacketKind::Pong if rest.len() != usize::from(h.entries) * PONG_ENTRY_BYTES => {
                return Err(WireError::Field("pong table"));
            }
            _ => {}
        }
        Ok((h, rest))
    }

    /// Writes the header over the first [`PACKET_HEADER_BYTES`] of the finished datagram `b`, checksum included.
    pub fn seal(&self, b: &mut [u8]) {
        put_u64(b, 0, self.cid);
        b[8] = crate::VERSION;
        b[9] = self.kind as u8;
        put_u16(b, 10, self.path);
        put_u32(b, 12, self.epoch);
        put_u64(b, 16, self.number);
        put_u32(b, 24, 0);
        b[28] = self.flags;
        b[29] = self.entries;
        put_u16(b, 30, 0);
        let c = checksum(b);
        put_u32(b, 24, c);
    }
}

fn checksum(b: &[u8]) -> u32 {
    let c = crate::crc32c_append(0, &b[..24]);
    let c = crate::crc32c_append(c, &[0; 4]);
    crate::crc32c_append(c, &b[28..])
}

/// One entry of a pong table: the newest query heard on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PongEntry {
    /// Path the query was heard on.
    pub path: u16,
    /// Epoch it named.
    pub epoch: u32,
    /// Its id.
    pub id: u64,
}

impl PongEntry {
    /// Writes the entry to the first [`PONG_ENTRY_BYTES`] of `b`.
    pub fn write(&self, b: &mut [u8]) {
        put_u16(b, 0, self.path);
        put_u16(b, 2, 0);
        put_u32(b, 4, self.epoch);
        put_u64(b, 8, self.id);
    }

    /// Reads the entries of a table whose length [`PacketHeader::parse`] has checked.
    pub fn read_all(b: &[u8]) -> impl Iterator<Item = Self> + '_ {
        b.chunks_exact(PONG_ENTRY_BYTES).map(|c| Self {
            path: get_u16(c, 0),
            epoch: get_u32(c, 4),
            id: get_u64(c, 8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Vec<u8> {
        let mut b = vec![0; PACKET_HEADER_BYTES];
        b.extend_from_slice(b"hello");
        PacketHeader { cid: 1, kind: PacketKind::Data, path: 2, epoch: 3, number: 4, flags: 0, entries: 0 }
            .seal(&mut b);
        b
    }

    #[test]
    fn round_trip_and_every_flipped_bit_is_noticed() {
        let b = sample();
        let (h, rest) = PacketHeader::parse(&b).unwrap();
        assert_eq!((h.path, h.epoch, h.number, rest), (2, 3, 4, &b"hello"[..]));
        for bit in 0..b.len() * 8 {
            let mut c = b.clone();
            c[bit / 8] ^= 1 << (bit % 8);
            assert!(PacketHeader::parse(&c).is_err(), "bit {bit}");
        }
        for n in 0..b.len() {
            assert!(PacketHeader::parse(&b[..n]).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(b in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = PacketHeader::parse(&b);
            let _ = peek(&b);
        }
    }
}
