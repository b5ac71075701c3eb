//! CRC32C (Castagnoli, RFC 3720 appendix B.4). Owns: which implementation sums what.
//!
//! * Up to [`SHORT_MAX`] bytes, which every small message is: eight bytes at a time by the processor's CRC32 instruction, where it has one (x86 with
//!   SSE4.2), in a loop of a dozen instructions. Both libraries below spend several times as many on choosing, on tables and on alignment.
//! * More: the crate `crc-fast` (carry-less multiplication, 512 bits at a time where the processor can).
//! * Short ones on other processors: the crate `crc32c`, which has a table for those that can nothing.
//!
//! Measured by the example `checksums` (docs/notes/performance-2026-11.md).

/// Longer pieces are quicker by carry-less multiplication.
const SHORT_MAX: usize = 256;

/// CRC32C of `bytes`, continuing from `seed` (0 to start).
#[inline]
pub fn crc32c_append(seed: u32, bytes: &[u8]) -> u32 {
    if bytes.len() > SHORT_MAX { long(seed, bytes) } else { short(seed, bytes) }
}

fn long(seed: u32, bytes: &[u8]) -> u32 {
    // its state is kept before the final complement
    let state = u64::from(!seed);
    let mut d = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    d.update(bytes);
    d.finalize() as u32
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn short(seed: u32, bytes: &[u8]) -> u32 {
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return crc32c::crc32c_append(seed, bytes);
    }
    // SAFETY: the processor has what the function needs.
    unsafe { instruction::append(seed, bytes) }
}

#[cfg(not(target_arch = "x86_64"))]
fn short(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

#[cfg(target_arch = "x86_64")]
mod instruction {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

    /// One CRC32 instruction after the other, each of which waits for the one before (three cycles).
    ///
    /// # Safety
    /// The processor has SSE4.2.
    #[target_feature(enable = "sse4.2")]
    #[allow(unused_unsafe)] // these intrinsics are unsafe before Rust 1.87
    pub unsafe fn append(seed: u32, bytes: &[u8]) -> u32 {
        let mut c = u64::from(!seed);
        let mut rest = bytes;
        while let Some((eight, others)) = rest.split_first_chunk() {
            // SAFETY: the caller's promise, as below.
            c = unsafe { _mm_crc32_u64(c, u64::from_le_bytes(*eight)) };
            rest = others;
        }
        let mut c = c as u32;
        if let Some((four, others)) = rest.split_first_chunk() {
            // SAFETY: as above.
            c = unsafe { _mm_crc32_u32(c, u32::from_le_bytes(*four)) };
            rest = others;
        }
        for one in rest {
            // SAFETY: as above.
            c = unsafe { _mm_crc32_u8(c, *one) };
        }
        !c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_implementations_agree_at_every_length_and_place_and_in_pieces() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for len in (0..600).chain([1472, 4096, 4999]) {
            for at in [0, 1, 7] {
                let b = &bytes[at.min(5000 - len)..][..len];
                let whole = crc32c::crc32c(b);
                assert_eq!(crc32c_append(0, b), whole, "{len} bytes");
                assert_eq!((short(0, b), long(0, b)), (whole, whole), "{len} bytes");
                let (x, y) = b.split_at(len / 3);
                assert_eq!(crc32c_append(crc32c_append(0, x), y), whole, "{len} bytes in two pieces");
            }
        }
        // RFC 3720 appendix B.4
        assert_eq!(crc32c_append(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c_append(0, &[0xff; 32]), 0x62a8_ab43);
    }
}
