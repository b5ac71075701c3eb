//! Sets of ordinal numbers: which faults and which sends of a world do nothing.

use std::fmt;
use std::str::FromStr;

/// A set of ordinal numbers, as text `0-3,7`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ordinals(Vec<(u64, u64)>);

impl Ordinals {
    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        let i = self.0.partition_point(|r| r.1 < n);
        self.0.get(i).is_some_and(|r| r.0 <= n)
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set of these numbers.
    pub fn of(mut numbers: Vec<u64>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        let mut out: Vec<(u64, u64)> = Vec::new();
        for n in numbers {
            match out.last_mut() {
                Some(r) if r.1 + 1 == n => r.1 = n,
                _ => out.push((n, n)),
            }
        }
        Self(out)
    }

    /// The set with everything in `low..high` besides.
    pub fn with(&self, low: u64, high: u64) -> Self {
        if low >= high {
            return self.clone();
        }
        let mut out: Vec<(u64, u64)> = Vec::new();
        let mut all = self.0.clone();
        all.push((low, high - 1));
        all.sort_unstable();
        for (a, b) in all {
            match out.last_mut() {
                Some(r) if a <= r.1.saturating_add(1) => r.1 = r.1.max(b),
                _ => out.push((a, b)),
            }
        }
        Self(out)
    }

    /// Numbers below `n` that are not in the set.
    pub fn missing_below(&self, n: u64) -> Vec<u64> {
        (0..n).filter(|&i| !self.contains(i)).collect()
    }
}

impl fmt::Display for Ordinals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (a, b)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            if a == b { write!(f, "{comma}{a}")? } else { write!(f, "{comma}{a}-{b}")? }
        }
        Ok(())
    }
}

impl FromStr for Ordinals {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let number = |s: &str| s.parse::<u64>().map_err(|_| format!("\"{s}\" is not a number"));
        let mut out = Self::default();
        for part in s.split(',').filter(|p| !p.is_empty()) {
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            out = out.with(number(a)?, number(b)?.saturating_add(1));
        }
        Ok(out)
    }
}
