//! Seeded randomness that stays the same for ever: xoshiro256++ (Blackman and Vigna), seeded by splitmix64. A crate would
//! do as well, but a seed in an old failure report must replay after every upgrade.

/// A generator.
#[derive(Debug, Clone)]
pub struct Rng {
    s: [u64; 4],
}

/// One step of splitmix64: a good mixer of integers.
#[inline]
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator of its own for every `(seed, stream)`.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut x = mix(seed ^ mix(stream));
        let s = [(); 4].map(|()| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(x)
        });
        Self { s }
    }

    /// 64 random bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        let s = &mut self.s;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Below `n`; 0 when `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }

    /// Index below `n`.
    #[inline]
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// In `low..=high`.
    #[inline]
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// In `low..=high`, every order of magnitude equally likely.
    pub fn log_range(&mut self, low: u64, high: u64) -> u64 {
        let (l, h) = ((low.max(1) as f64).ln(), (high.max(1) as f64).ln());
        let x = (self.draw() >> 11) as f64 / (1u64 << 53) as f64;
        ((l + (h - l) * x).exp() as u64).clamp(low, high)
    }

    /// True in `ppm` of a million cases.
    #[inline]
    pub fn ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// True in `percent` of a hundred cases.
    #[inline]
    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// Index drawn by weight; 0 when all are zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let sum: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut x = self.below(sum);
        for (i, &w) in weights.iter().enumerate() {
            if x < u64::from(w) {
                return i;
            }
            x -= u64::from(w);
        }
        0
    }
}
