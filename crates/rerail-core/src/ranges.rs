//! Sets of numbers as sorted, disjoint, half-open ranges: packet numbers received, bytes of a fragment covered.
//!
//! The newest range is nearly always the only one, and the one that grows. It stands in the set itself, and only what lies below a gap takes
//! memory: an idle path has none.
//! Invariant: ranges are non-empty, ascending, and neither overlap nor touch; older ones exist only below a newest.

/// A set of `u64` as ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// Empty in an empty set only.
    newest: (u64, u64),
    /// What is below the newest.
    older: Option<Box<Older>>,
}

/// Ranges, ascending; never none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Older(Vec<(u64, u64)>);

impl RangeSet {
    pub const EMPTY: Self = Self { newest: (0, 0), older: None };

    fn is_empty(&self) -> bool {
        self.newest.0 == self.newest.1
    }

    fn older(&self) -> &[(u64, u64)] {
        self.older.as_deref().map_or(&[], |o| &o.0)
    }

    /// Adds `[low, high)`; returns whether anything was new.
    #[inline]
    pub fn insert(&mut self, low: u64, high: u64) -> bool {
        debug_assert!(low < high);
        // the common case first: the next number
        if low == self.newest.1 && !self.is_empty() {
            self.newest.1 = high;
            return true;
        }
        self.insert_beside(low, high)
    }

    /// The same where a gap begins, or may close.
    fn insert_beside(&mut self, low: u64, high: u64) -> bool {
        if self.is_empty() {
            self.newest = (low, high);
            return true;
        }
        if low > self.newest.1 {
            let gap = std::mem::replace(&mut self.newest, (low, high));
            self.older.get_or_insert_with(|| Box::new(Older(Vec::new()))).0.push(gap);
            return true;
        }
        if low >= self.newest.0 && high <= self.newest.1 {
            return false;
        }
        let all = &mut self.older.get_or_insert_with(|| Box::new(Older(Vec::new()))).0;
        all.push(self.newest);
        let fresh = insert_among(all, low, high);
        self.newest = all.pop().expect("one was put in");
        if all.is_empty() {
            self.older = None;
        }
        fresh
    }

    /// Whether `n` is in the set.
    #[inline]
    pub fn contains(&self, n: u64) -> bool {
        if n >= self.newest.0 {
            return n < self.newest.1;
        }
        self.covers(n, n + 1)
    }

    /// Whether the whole of `[low, high)` is in the set.
    pub fn covers(&self, low: u64, high: u64) -> bool {
        if low >= self.newest.0 {
            return low < self.newest.1 && high <= self.newest.1;
        }
        let older = self.older();
        let i = older.partition_point(|r| r.1 <= low);
        older.get(i).is_some_and(|r| r.0 <= low && r.1 >= high)
    }

    /// Largest number in the set.
    #[inline]
    pub fn max(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.newest.1 - 1)
    }

    /// Ranges from the newest to the oldest.
    pub fn newest_first(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut next = (!self.is_empty()).then_some(self.newest);
        let mut older = self.older().iter().rev();
        std::iter::from_fn(move || {
            let range = next?;
            next = older.next().copied();
            Some(range)
        })
    }

    /// Keeps the newest `most` ranges, at least one. Returns the number below which all are forgotten.
    #[inline]
    pub fn forget_old(&mut self, most: usize) -> Option<u64> {
        let older = &mut self.older.as_deref_mut()?.0;
        let cut = (older.len() + 1).checked_sub(most).filter(|&n| n > 0)?;
        let floor = older[cut - 1].1;
        older.drain(..cut);
        if older.is_empty() {
            self.older = None;
        }
        Some(floor)
    }
}

/// Adds `[low, high)` to ascending ranges; returns whether anything was new.
fn insert_among(ranges: &mut Vec<(u64, u64)>, low: u64, high: u64) -> bool {
    let first = ranges.partition_point(|r| r.1 < low);
    let mut end = first;
    let (mut new_low, mut new_high) = (low, high);
    while end < ranges.len() && ranges[end].0 <= high {
        new_low = new_low.min(ranges[end].0);
        new_high = new_high.max(ranges[end].1);
        end += 1;
    }
    if end == first + 1 && ranges[first].0 <= low && ranges[first].1 >= high {
        return false;
    }
    ranges.splice(first..end, [(new_low, new_high)]);
    true
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
                let ranges: Vec<_> = r.newest_first().collect();
                for w in ranges.windows(2) {
                    prop_assert!(w[0].0 > w[1].1);
                }
                prop_assert_eq!(r.older.is_some(), ranges.len() > 1);
                for n in 0..70 {
                    prop_assert_eq!(r.contains(n), s.contains(&n));
                    prop_assert_eq!(r.covers(n, n + 3), (n..n + 3).all(|m| s.contains(&m)));
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
