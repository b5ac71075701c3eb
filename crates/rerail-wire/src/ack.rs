//! Ranges of packet numbers in an [`crate::FrameType::Ack`], newest first, as in RFC 9000 §19.3.1 but of fixed width.
//!
//! The first range ends at `largest` and is `first` numbers long before it (so `first` = 0 names one number). Each
//! further range is a pair of u32: `gap` numbers missing, then `len` numbers present.

use crate::WireError;
use crate::bytes::{get_u32, put_u32};

/// Most ranges after the first in one frame.
pub const RANGES_MAX: usize = 31;
/// Bytes of one range after the first.
pub const RANGE_BYTES: usize = 8;

/// Reads the inclusive ranges of an ack, newest first, calling `each(low, high)`.
///
/// # Errors
/// A payload of odd length, too many ranges, or ranges that fall below zero.
pub fn read_ranges(
    largest: u64,
    first: u32,
    payload: &[u8],
    mut each: impl FnMut(u64, u64),
) -> Result<(), WireError> {
    if payload.len() % RANGE_BYTES != 0 || payload.len() / RANGE_BYTES > RANGES_MAX {
        return Err(WireError::Field("ack ranges"));
    }
    let mut low = largest.checked_sub(u64::from(first)).ok_or(WireError::Field("ack range"))?;
    // checked whole before the first call, so that a malformed frame has no effect at all
    let mut probe = low;
    for c in payload.chunks_exact(RANGE_BYTES) {
        let (gap, len) = (u64::from(get_u32(c, 0)), u64::from(get_u32(c, 4)));
        if gap == 0 || len == 0 {
            return Err(WireError::Field("ack range"));
        }
        probe = probe.checked_sub(gap + len).ok_or(WireError::Field("ack range"))?;
    }
    each(low, largest);
    for c in payload.chunks_exact(RANGE_BYTES) {
        let (gap, len) = (u64::from(get_u32(c, 0)), u64::from(get_u32(c, 4)));
        let high = low - gap - 1;
        low = low - gap - len;
        each(low, high);
    }
    Ok(())
}

/// Writes one further range at the start of `b`.
pub fn write_range(b: &mut [u8], gap: u32, len: u32) {
    put_u32(b, 0, gap);
    put_u32(b, 4, len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_come_back_newest_first() {
        // 10, 9, 8, then 7 and 6 missing, then 5, 4
        let mut p = [0; 8];
        write_range(&mut p, 2, 2);
        let mut got = vec![];
        read_ranges(10, 2, &p, |l, h| got.push((l, h))).unwrap();
        assert_eq!(got, [(8, 10), (4, 5)]);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_or_wrap(largest: u64, first: u32, p in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut below = None::<u64>;
            let _ = read_ranges(largest, first, &p, |l, h| {
                assert!(l <= h && below.is_none_or(|b| h < b));
                below = Some(l);
            });
        }
    }
}
