//! Random numbers of the campaign, which follow from its seed and a case's place alone.

/// A source of random numbers: splitmix64.
pub struct Draw(u64);

impl Draw {
    /// The numbers of (seed, index).
    pub fn new(seed: u64, index: u64) -> Draw {
        let mut draw = Draw(seed);
        let mixed = draw.next() ^ index.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Draw(mixed)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// One below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// One of [low, high).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of several.
    pub fn one_of<T: Copy>(&mut self, several: &[T]) -> T {
        several[self.below(several.len())]
    }
}
