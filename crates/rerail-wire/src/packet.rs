//! The datagram: a 32-byte header, then frames (data packets), a piece of bulk, padding (queries), or a table and padding
//! (answers).
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..8 | secret connection id of the direction |
//! | 8 | version |
//! | 9 | [`PacketKind`] |
//! | 10..12 | path |
//! | 12..16 | epoch of the path |
//! | 16..24 | packet number (data, bulk) or query id (ping, pong), below [`NUMBER_MAX`]; it cannot wrap in a life |
//! | 24..28 | CRC32C of the datagram without this field, as far as the flags say; zero when nothing is covered |
//! | 28 | flags ([`PONG_BYPASS`], [`SUM_HEADER`], [`SUM_NONE`], [`PING_UNANSWERED`], [`ACK_NOW`]) |
//! | 29 | entries of the pong table |
//! | 30 | lane: zero, because datagrams go on the first lane of their path |
//! | 31 | zero |
//!
//! A ping has padding for the table of its answer at least: an answer is never longer than its query, so a process
//! cannot be made to send more than was sent to it.

use crate::bulk::BULK_HEADER_BYTES;
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::frame::FRAME_HEADER_BYTES;
use crate::{Coverage, FrameType, WireError};

/// Bytes of a packet header.
pub const PACKET_HEADER_BYTES: usize = 32;
/// The pong was given by the service thread without the engine: it proves the path, not the engine (hazards H3, H17).
pub const PONG_BYPASS: u8 = 1;
/// The checksum of a data packet covers everything but the payload of the user ([`Coverage::Header`]).
pub const SUM_HEADER: u8 = 2;
/// A data packet without a checksum ([`Coverage::None`]).
pub const SUM_NONE: u8 = 4;
/// The sender of a ping has no answer to any of its last ones on this path: they may be lost on the way back, so the answer should take another
/// route through the fabric (Protective ReRoute §3.2).
pub const PING_UNANSWERED: u8 = 8;
/// The sender of a bulk packet waits for its acknowledgement: do not delay it (as IMMEDIATE_ACK of QUIC's ack frequency).
pub const ACK_NOW: u8 = 0x80;
/// Bytes of one entry of the pong table: path u16, wish u16, epoch u32, query id u64.
pub const PONG_ENTRY_BYTES: usize = 16;
/// Most entries of a pong table.
pub const PONG_ENTRIES_MAX: usize = 16;
/// Packet numbers (and frame numbers on streams) are below this. At 10^8 a second it is reached in 1,400 years; a
/// larger one is invalid, and could make arithmetic with it overflow.
pub const NUMBER_MAX: u64 = 1 << 62;

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
    /// A query: answered at once by the thread that reads it. What follows the header is padding.
    Ping = 4,
    /// The answer, with a table of the newest query received on each path: shows the direction of a fault. Padded to
    /// the length of the query, so that a long query proves both directions for long datagrams.
    Pong = 5,
    /// A piece of a fragment ([`crate::bulk`]), with a packet number of the bulk channel.
    Bulk = 6,
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
            6 => Self::Bulk,
            _ => return None,
        })
    }

    /// Whether payload of the user may be in it.
    pub fn carries_data(self) -> bool {
        matches!(self, Self::Data | Self::Bulk)
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
    /// See [`PONG_BYPASS`], [`PING_UNANSWERED`] and [`ACK_NOW`].
    pub flags: u8,
    /// Entries of the pong table.
    pub entries: u8,
    /// What the checksum covers; queries and answers are always covered in full.
    pub coverage: Coverage,
}

/// Reads connection id and kind without checking anything else: enough to route a datagram or to refuse a stranger's.
pub fn peek(b: &[u8]) -> Option<(u64, PacketKind)> {
    if b.len() < PACKET_HEADER_BYTES || b[8] != crate::VERSION {
        return None;
    }
    Some((get_u64(b, 0), PacketKind::from_u8(b[9])?))
}

/// Path, epoch and number of a datagram whose checksum does not match: they may be wrong.
pub fn claims(b: &[u8]) -> Option<(u16, u32, u64)> {
    (b.len() >= PACKET_HEADER_BYTES).then(|| (get_u16(b, 10), get_u32(b, 12), get_u64(b, 16)))
}

impl PacketHeader {
    /// Parses and checks a whole datagram; returns the header and what follows it. Not for [`PacketKind::Hello`] and
    /// [`PacketKind::Accept`], which have a keyed hash in place of the checksum.
    ///
    /// # Errors
    /// Truncated input, wrong version or kind, non-zero reserved bytes, checksum.
    ///
    /// Always in the caller's code, as [`crate::FrameHeader::parse`].
    #[inline(always)]
    pub fn parse(b: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let Some((head, rest)) = b.split_first_chunk::<PACKET_HEADER_BYTES>() else {
            return Err(WireError::Truncated { need: PACKET_HEADER_BYTES, have: b.len() });
        };
        if head[8] != crate::VERSION {
            return Err(WireError::Version(head[8]));
        }
        let kind = PacketKind::from_u8(head[9]).ok_or(WireError::Field("packet kind"))?;
        let coverage = match head[28] & (SUM_HEADER | SUM_NONE) {
            0 => Coverage::Full,
            SUM_HEADER => Coverage::Header,
            SUM_NONE => Coverage::None,
            _ => return Err(WireError::Checksum("datagram")),
        };
        if checksum(b, coverage) != Some(get_u32(head, 24)) {
            return Err(WireError::Checksum("datagram"));
        }
        if get_u16(head, 30) != 0
            || head[28] & !(PONG_BYPASS | SUM_HEADER | SUM_NONE | PING_UNANSWERED | ACK_NOW) != 0
        {
            return Err(WireError::Field("packet reserved bytes"));
        }
        if coverage != Coverage::Full && !kind.carries_data() {
            return Err(WireError::Field("packet coverage"));
        }
        let h = Self {
            cid: get_u64(head, 0),
            kind,
            path: get_u16(head, 10),
            epoch: get_u32(head, 12),
            number: get_u64(head, 16),
            flags: head[28] & (PONG_BYPASS | PING_UNANSWERED | ACK_NOW),
            entries: head[29],
            coverage,
        };
        if h.flags & PING_UNANSWERED != 0 && kind != PacketKind::Ping {
            return Err(WireError::Field("packet flags"));
        }
        if h.number >= NUMBER_MAX {
            return Err(WireError::Field("packet number"));
        }
        match kind {
            PacketKind::Hello | PacketKind::Accept => return Err(WireError::Field("packet kind")),
            PacketKind::Ping | PacketKind::Data | PacketKind::Bulk if h.entries != 0 => {
                return Err(WireError::Field("packet entries"));
            }
            PacketKind::Pong if rest.len() < h.table_bytes() => {
                return Err(WireError::Field("pong table"));
            }
            _ => {}
        }
        Ok((h, rest))
    }

    /// Bytes of the pong table; padding may follow it.
    pub fn table_bytes(&self) -> usize {
        usize::from(self.entries) * PONG_ENTRY_BYTES
    }

    /// Writes the header over the first [`PACKET_HEADER_BYTES`] of the finished datagram `b`, checksum included.
    #[inline]
    pub fn seal(&self, b: &mut [u8]) {
        let head = b.first_chunk_mut::<PACKET_HEADER_BYTES>().expect("room for a header");
        put_u64(head, 0, self.cid);
        head[8] = crate::VERSION;
        head[9] = self.kind as u8;
        put_u16(head, 10, self.path);
        put_u32(head, 12, self.epoch);
        put_u64(head, 16, self.number);
        head[28] = self.flags
            | match self.coverage {
                Coverage::Full => 0,
                Coverage::Header => SUM_HEADER,
                Coverage::None => SUM_NONE,
            };
        head[29] = self.entries;
        put_u16(head, 30, 0);
        let c = checksum(b, self.coverage).expect("the frames of a finished datagram are whole");
        put_u32(b, 24, c);
    }
}

/// Checksum of a datagram; `None` when its frames do not fit it, which only a damaged one can have.
#[inline]
fn checksum(b: &[u8], coverage: Coverage) -> Option<u32> {
    match coverage {
        Coverage::Full => Some(crate::crc32c_append(crate::crc32c_append(0, &b[..24]), &b[28..])),
        Coverage::Header => checksum_of_headers(b),
        Coverage::None => Some(0),
    }
}

/// Walks the frames by what they claim to be: a damaged length leads elsewhere, and to another sum.
fn checksum_of_headers(b: &[u8]) -> Option<u32> {
    let mut c = crate::crc32c_append(0, &b[..24]);
    c = crate::crc32c_append(c, &b[28..PACKET_HEADER_BYTES]);
    if b[9] == PacketKind::Bulk as u8 {
        let piece = b.get(PACKET_HEADER_BYTES..PACKET_HEADER_BYTES + BULK_HEADER_BYTES)?;
        return Some(crate::crc32c_append(c, piece));
    }
    let mut rest = &b[PACKET_HEADER_BYTES..];
    while !rest.is_empty() {
        let header = rest.get(..FRAME_HEADER_BYTES)?;
        let end = FRAME_HEADER_BYTES.checked_add(get_u32(header, 40) as usize)?;
        let whole = rest.get(..end)?;
        c = crate::crc32c_append(c, if FrameType::raw_carries_data(header[0]) { header } else { whole });
        rest = &rest[end..];
    }
    Some(c)
}

/// One entry of a pong table: the newest query received on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PongEntry {
    /// Path the query was received on.
    pub path: u16,
    /// Interval of queries on an idle path that the responder wishes for, in units of 10 ms; 0: none in particular.
    pub wish: u16,
    /// Epoch it named.
    pub epoch: u32,
    /// Its id.
    pub id: u64,
}

impl PongEntry {
    /// Writes the entry to the first [`PONG_ENTRY_BYTES`] of `b`.
    pub fn write(&self, b: &mut [u8]) {
        put_u16(b, 0, self.path);
        put_u16(b, 2, self.wish);
        put_u32(b, 4, self.epoch);
        put_u64(b, 8, self.id);
    }

    /// Reads the entries of a table whose length [`PacketHeader::parse`] has checked.
    pub fn read_all(b: &[u8]) -> impl Iterator<Item = Self> + '_ {
        b.chunks_exact(PONG_ENTRY_BYTES).map(|c| Self {
            path: get_u16(c, 0),
            wish: get_u16(c, 2),
            epoch: get_u32(c, 4),
            id: get_u64(c, 8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameHeader;
    use proptest::prelude::*;

    fn header(kind: PacketKind, coverage: Coverage) -> PacketHeader {
        PacketHeader { cid: 1, kind, path: 2, epoch: 3, number: 4, flags: 0, entries: 0, coverage }
    }

    #[test]
    fn of_a_piece_every_flipped_bit_is_noticed_as_far_as_it_is_covered() {
        let h = crate::bulk::BulkHeader { seq: 9, at: 77, len: 20 };
        for coverage in [Coverage::Full, Coverage::Header] {
            let mut b = vec![0x5a; PACKET_HEADER_BYTES + BULK_HEADER_BYTES + 24];
            h.write(&mut b[PACKET_HEADER_BYTES..]);
            PacketHeader { flags: ACK_NOW, ..header(PacketKind::Bulk, coverage) }.seal(&mut b);
            let (p, rest) = PacketHeader::parse(&b).unwrap();
            assert_eq!((p.kind, p.flags, p.coverage), (PacketKind::Bulk, ACK_NOW, coverage));
            assert_eq!(crate::bulk::BulkHeader::parse(rest).unwrap().0, h);
            let covered =
                if coverage == Coverage::Full { b.len() } else { PACKET_HEADER_BYTES + BULK_HEADER_BYTES };
            for bit in 0..b.len() * 8 {
                let mut c = b.clone();
                c[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(PacketHeader::parse(&c).is_err(), bit / 8 < covered, "bit {bit}");
            }
        }
    }

    /// A packet with an acknowledgement, its ranges, and a message of 5 bytes.
    fn sample(coverage: Coverage) -> Vec<u8> {
        let mut b = vec![0; PACKET_HEADER_BYTES];
        for (h, payload) in [
            (FrameHeader { len: 8, ..FrameHeader::new(FrameType::Ack) }, &[1u8; 8][..]),
            (FrameHeader { len: 5, total: 5, x: 1, ..FrameHeader::new(FrameType::Eager) }, &b"hello"[..]),
        ] {
            let at = b.len();
            b.resize(at + FRAME_HEADER_BYTES, 0);
            h.write(&mut b[at..]);
            b.extend_from_slice(payload);
        }
        header(PacketKind::Data, coverage).seal(&mut b);
        b
    }

    #[test]
    fn round_trip_and_every_flipped_bit_is_noticed() {
        let b = sample(Coverage::Full);
        let (h, rest) = PacketHeader::parse(&b).unwrap();
        assert_eq!((h.path, h.epoch, h.number, rest), (2, 3, 4, &b[PACKET_HEADER_BYTES..]));
        for bit in 0..b.len() * 8 {
            let mut c = b.clone();
            c[bit / 8] ^= 1 << (bit % 8);
            assert!(PacketHeader::parse(&c).is_err(), "bit {bit}");
        }
        for n in 0..b.len() {
            assert!(PacketHeader::parse(&b[..n]).is_err());
        }
    }

    #[test]
    fn a_sum_of_headers_covers_all_but_the_users_bytes() {
        let b = sample(Coverage::Header);
        assert_eq!(PacketHeader::parse(&b).unwrap().0.coverage, Coverage::Header);
        let payload = b.len() - 5;
        for bit in 0..b.len() * 8 {
            let mut c = b.clone();
            c[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PacketHeader::parse(&c).is_ok(), bit / 8 >= payload, "bit {bit}");
        }
    }

    #[test]
    fn without_a_checksum_the_packet_says_so_and_its_field_is_zero() {
        let b = sample(Coverage::None);
        assert_eq!(PacketHeader::parse(&b).unwrap().0.coverage, Coverage::None);
        assert_eq!(b[24..28], [0; 4]);
        let mut both = b.clone();
        both[28] |= SUM_HEADER;
        assert!(PacketHeader::parse(&both).is_err());
    }

    #[test]
    fn queries_are_padded_and_always_covered_in_full() {
        for kind in [PacketKind::Ping, PacketKind::Pong] {
            let mut b = vec![7; 1000];
            header(kind, Coverage::Full).seal(&mut b);
            assert!(PacketHeader::parse(&b).is_ok());
            b[999] ^= 1;
            assert_eq!(PacketHeader::parse(&b), Err(WireError::Checksum("datagram")));
            header(kind, Coverage::None).seal(&mut b);
            assert!(PacketHeader::parse(&b).is_err());
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
