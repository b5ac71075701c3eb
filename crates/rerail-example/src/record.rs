//! The layout of a record on a stream: a header, and as many bytes as the header states.
//!
//! | bytes | of the header |
//! |---|---|
//! | 0..4 | 0: bytes of the stream, 1: a part of a write |
//! | 4..8 | bytes that follow, at most [`PART_BYTES_MAX`] |
//! | 8..16 | key of the region |
//! | 16..24 | where in the region this part goes |
//! | 24..32 | bytes of the write from this part to its end |
//!
//! Little endian. All fields of a header that are not used are 0.

use rerail_rail::RemoteKey;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Most bytes of a record: what the adapter reads of a source at once.
pub(crate) const PART_BYTES_MAX: usize = 16 << 10;

/// What follows a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// Bytes of the stream.
    Bytes { len: usize },
    /// A part of a write. `rest` counts it and what follows it, so that a write which does not fit is refused before its first byte.
    Part { len: usize, key: RemoteKey, offset: u64, rest: u64 },
}

impl Record {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let (kind, len, key, offset, rest) = match self {
            Record::Bytes { len } => (0, len, 0, 0, 0),
            Record::Part { len, key, offset, rest } => (1, len, key.0, offset, rest),
        };
        let words = [kind | (len as u64) << 32, key, offset, rest].map(u64::to_le_bytes);
        *words.as_flattened().first_chunk().expect("four words of 8 bytes")
    }

    /// `None`: no header of ours.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Record> {
        let word =
            |at: usize| u64::from_le_bytes(*bytes[8 * at..].first_chunk().expect("four words of 8 bytes"));
        let (kind, len) = (word(0) as u32, (word(0) >> 32) as usize);
        match (kind, word(1), word(2), word(3)) {
            (0, 0, 0, 0) if (1..=PART_BYTES_MAX).contains(&len) => Some(Record::Bytes { len }),
            (1, key, offset, rest) if len <= PART_BYTES_MAX && len as u64 <= rest => {
                Some(Record::Part { len, key: RemoteKey(key), offset, rest })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_what_is_none_is_refused() {
        let part = Record::Part { len: 5, key: RemoteKey(u64::MAX), offset: 1 << 40, rest: 1 << 50 };
        for record in [part, Record::Bytes { len: PART_BYTES_MAX }] {
            assert_eq!(Record::parse(&record.to_bytes()), Some(record));
        }
        let broken = |at: usize, to: u8, mut bytes: [u8; HEADER_BYTES]| {
            bytes[at] = to;
            Record::parse(&bytes)
        };
        let bytes = Record::Bytes { len: 1 }.to_bytes();
        for (at, to) in [(0, 2), (3, 1), (4, 0), (6, 1), (8, 1), (31, 1)] {
            assert_eq!(broken(at, to, bytes), None, "byte {at}");
        }
        assert_eq!(broken(6, 1, part.to_bytes()), None, "a part is short");
        assert_eq!(broken(30, 0, part.to_bytes()), None, "a part is not longer than its write");
    }
}
