//! Sets of numbers as sorted, disjoint, half-open ranges: packet numbers received, bytes of a fragment covered.
//!
//! Invariant: ranges are non-empty, ascending, and neither overlap nor touch.

/// A set of `u64` as ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    /// Adds `[low, high)`; returns whether anything was new.
    pub fn insert(&mut self, low: u64, high: u64) -> bool {
        debug_assert!(low < high);
        // the common case first: the next number, or far above everything
        if let Some(last) = self.ranges.last_mut() {
            if low == last.1 {
                last.1 = high;
                return true;
            }
            if low > last.1 {
                self.ranges.push((low, high));
                return true;
            }
        } else {
            self.ranges.push((low, high));
            return true;
        }
        let first = self.ranges.partition_point(|r| r.1 < low);
        let mut end = first;
        let (mut new_low, mut new_high) = (low, high);
        while end < self.ranges.len() && self.ranges[end].0 <= high {
            new_low = new_low.min(self.ranges[end].0);
            new_high = new_high.max(self.ranges[end].1);
            end += 1;
        }
        if end == first + 1 && self.ranges[first].0 <= low && self.ranges[first].1 >= high {
            return false;
        }
        self.ranges.splice(first..end, [(new_low, new_high)]);
        true
    }

    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.1 <= n);
        self.ranges.get(i).is_some_and(|r| r.0 <= n)
    }

    /// Whether the whole of `[low, high)` is in the set.
    pub fn covers(&self, low: u64, high: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.1 <= low);
        self.ranges.get(i).is_some_and(|r| r.0 <= low && r.1 >= high)
    }

    /// Largest number in the set.
    pub fn max(&self) -> Option<u64> {
        self.ranges.last().map(|r| r.1 - 1)
    }

    /// Ranges from the newest to the oldest.
    pub fn newest_first(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().rev().copied()
    }

    /// Keeps the newest `most` ranges and says below which number the set is now silent.
    pub fn forget_old(&mut self, most: usize) -> Option<u64> {
        if self.ranges.len() <= most {
            return None;
        }
        let cut = self.ranges.len() - most;
        let floor = self.ranges[cut - 1].1;
        self.ranges.drain(..cut);
        Some(floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(ops in proptest::collection::vec((0u64..60, 1u64..8), 0..40)) {
            let mut r = RangeSet::default();
            let mut s = BTreeSet::new();
            for (low, len) in ops {
                let fresh = (low..low + len).any(|n| s.insert(n));
                let all: Vec<_> = (low..low + len).collect();
                s.extend(all);
                prop_assert_eq!(r.insert(low, low + len), fresh);
                for w in r.ranges.windows(2) {
                    prop_assert!(w[0].1 < w[1].0);
                }
                for n in 0..70 {
                    prop_assert_eq!(r.contains(n), s.contains(&n));
                }
            }
            prop_assert_eq!(r.max(), s.last().copied());
        }
    }

    #[test]
    fn forgetting_keeps_the_newest() {
        let mut r = RangeSet::default();
        for n in 0..10 {
            r.insert(n * 10, n * 10 + 1);
        }
        assert_eq!(r.forget_old(3), Some(61));
        assert!(!r.contains(60) && r.contains(70) && r.contains(90));
    }
}
