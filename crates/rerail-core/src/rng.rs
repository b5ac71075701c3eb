//! Pseudo-random numbers from a seed (SplitMix64): jitter and nonces. Nonces need to be fresh, not secret.

#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn nonce(&mut self) -> [u8; 16] {
        let mut n = [0; 16];
        n[..8].copy_from_slice(&self.next().to_le_bytes());
        n[8..].copy_from_slice(&self.next().to_le_bytes());
        n
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }
}
