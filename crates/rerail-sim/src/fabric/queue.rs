//! The queue of one directed link. Owns: when the link is busy.
//!
//! What is sent is charged for all links of its route at once, so a link is reserved for a time that is still to come. The
//! queue is therefore a list of busy intervals, and not one time until which the link is busy: a packet that comes by a
//! short queue goes through the gaps before another that is held up on its way here. With one number the slowest lane of a
//! pair would hold up all others at the last link.

use std::collections::VecDeque;

/// See above.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// Begin and end of each interval: in order, apart from each other, none of them empty.
    busy: VecDeque<(u64, u64)>,
}

impl Queue {
    /// When a byte that comes at `at` finds the link free.
    pub fn free_at(&self, at: u64) -> u64 {
        let i = self.busy.partition_point(|b| b.1 <= at);
        self.busy.get(i).filter(|b| b.0 <= at).map_or(at, |b| b.1)
    }

    /// Takes the first `took_ns` in which the link is free from `at` on; returns when they are over. What ended before `now` is
    /// forgotten.
    pub fn take(&mut self, at: u64, took_ns: u64, now: u64) -> u64 {
        while self.busy.front().is_some_and(|b| b.1 < now) {
            self.busy.pop_front();
        }
        if took_ns == 0 {
            return self.free_at(at);
        }
        let first = self.busy.partition_point(|b| b.1 < at);
        let (mut i, mut end, mut left) = (first, at, took_ns);
        while let Some(&(from, to)) = self.busy.get(i) {
            let gap = from.saturating_sub(end);
            if gap > left {
                break;
            }
            (end, left) = (to.max(end), left - gap);
            i += 1;
            if left == 0 {
                break;
            }
        }
        let over = if left > 0 { end + left } else { self.busy[i - 1].0 };
        let begin = self.busy.get(first).filter(|_| first < i).map_or(at, |b| b.0.min(at));
        self.busy.drain(first..i);
        self.busy.insert(first, (begin, end + left));
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn packets_wait_for_those_before_them() {
        let mut q = Queue::default();
        assert_eq!(q.take(100, 50, 0), 150);
        assert_eq!((q.free_at(99), q.free_at(100), q.free_at(149), q.free_at(150)), (99, 150, 150, 150));
        assert_eq!(q.take(120, 50, 0), 200);
        assert_eq!(q.take(500, 10, 0), 510);
        assert_eq!(q.busy.len(), 2);
    }

    #[test]
    fn a_packet_that_comes_before_a_reservation_goes_before_it() {
        let mut q = Queue::default();
        assert_eq!(q.take(1000, 100, 0), 1100);
        assert_eq!(q.take(0, 100, 0), 100, "the link is free until 1000");
        // a part of it fits before the reservation, the rest goes behind
        assert_eq!(q.take(950, 100, 0), 1150);
        assert_eq!(q.busy.len(), 2);
        // what fits exactly is over when the gap is
        assert_eq!(q.take(100, 850, 0), 950);
        assert_eq!(q.busy.len(), 1);
        assert_eq!(q.free_at(0), 1150);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut q = Queue::default();
        for i in 0..1000 {
            q.take(i * 10, 5, i * 10);
        }
        assert!(q.busy.len() <= 2, "{} are kept", q.busy.len());
    }

    /// Against a link that is looked at nanosecond by nanosecond.
    #[test]
    fn it_is_busy_for_as_long_as_packets_take() {
        for seed in 0..200 {
            let mut r = Rng::new(seed, 0);
            let (mut q, mut slots) = (Queue::default(), vec![false; 4000]);
            for _ in 0..60 {
                let (at, took) = (r.below(600), r.range(1, 40));
                let free = slots[at as usize..].iter().position(|busy| !busy).expect("it ends") as u64 + at;
                assert_eq!(q.free_at(at), free, "seed {seed}");
                let (mut t, mut left) = (at, took);
                while left > 0 {
                    if !std::mem::replace(&mut slots[t as usize], true) {
                        left -= 1;
                    }
                    t += 1;
                }
                assert_eq!(q.take(at, took, 0), t, "seed {seed}");
            }
            let busy: u64 = q.busy.iter().map(|b| b.1 - b.0).sum();
            assert_eq!(busy, slots.iter().filter(|busy| **busy).count() as u64);
            assert!(q.busy.iter().zip(q.busy.iter().skip(1)).all(|(a, b)| a.1 < b.0), "seed {seed}: {q:?}");
        }
    }
}
