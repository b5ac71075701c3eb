//! Which CRC32C is the quickest here: every candidate over sizes from a packet header to 1 MiB, with the bytes in the cache (hot) and out of
//! it (cold). Prints tables in Markdown: nanoseconds for each call, the best of many batches, because a loaded machine only ever adds.
//!
//! `cargo run --release -p rerail-wire --example checksums`

use std::hint::black_box;
use std::time::Instant;

/// A candidate: continues a checksum.
type Sum = fn(u32, &[u8]) -> u32;

const CANDIDATES: [(&str, Sum); 3] = [
    ("crc32c", crc32c::crc32c_append),
    ("crc-fast", |seed, b| {
        // it keeps its state before the final complement
        let mut d =
            crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!seed));
        d.update(b);
        d.finalize() as u32
    }),
    ("rerail", rerail_wire::crc32c_append),
];
/// Sizes that matter: header of a packet, of a stream frame, small messages, a datagram, a fragment, a message.
const SIZES: [usize; 12] = [24, 48, 56, 84, 128, 256, 512, 1472, 4096, 16_384, 65_536, 1 << 20];
/// Memory that is larger than the caches.
const COLD_BYTES: usize = 512 << 20;
/// Batches; the best one counts.
const BATCHES: usize = 40;

fn main() {
    let big: Vec<u8> =
        (0..COLD_BYTES).map(|i| (i as u32).wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
    for (_, sum) in CANDIDATES {
        // RFC 3720 appendix B.4, in one piece and in two
        assert_eq!(sum(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(sum(sum(0, &[0xff; 7]), &[0xff; 25]), 0x62a8_ab43);
    }
    for cold in [false, true] {
        println!("{}, ns for each call (GB/s):\n", if cold { "Cold" } else { "Hot" });
        println!("| bytes | {} |", CANDIDATES.map(|c| c.0).join(" | "));
        println!("|---|{}", "---|".repeat(CANDIDATES.len()));
        for size in SIZES {
            // the candidates take turns, so that a disturbance meets all of them
            let mut best = [f64::INFINITY; CANDIDATES.len()];
            let mut at = 0;
            for _ in 0..BATCHES {
                for (i, (_, sum)) in CANDIDATES.iter().enumerate() {
                    best[i] = best[i].min(if cold {
                        cold_ns(*sum, &big, size, &mut at)
                    } else {
                        hot_ns(*sum, &big, size)
                    });
                }
            }
            let cells = best.map(|ns| format!("{ns:.1} ({:.1})", size as f64 / ns));
            println!("| {size} | {} |", cells.join(" | "));
        }
        println!();
    }
}

/// The same bytes again and again.
fn hot_ns(sum: Sum, big: &[u8], size: usize) -> f64 {
    let calls = (1 << 20) / size.max(256);
    let start = Instant::now();
    for _ in 0..calls {
        black_box(sum(0, black_box(&big[..size])));
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// Bytes that were not looked at for as long as the whole memory takes.
fn cold_ns(sum: Sum, big: &[u8], size: usize, at: &mut usize) -> f64 {
    // small pieces lie a page apart, so that the processor's prefetcher does not warm them
    let step = size.next_multiple_of(4096);
    let calls = ((2 << 20) / step).max(1);
    let start = Instant::now();
    for _ in 0..calls {
        if *at + size > big.len() {
            *at = 0;
        }
        black_box(sum(0, black_box(&big[*at..*at + size])));
        *at += step;
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}
