//! When something last arrived from a peer, and its last silence.
//!
//! Owns: the time of its last sign, the silence before that, and whether the present one was reported as a partition.

use crate::types::{Time, ms};
use std::time::Duration;

/// A longer silence is recorded: while no sign of life arrives, a stream that stands still is not at fault.
const SILENCE_NOTED: Duration = ms(300);

/// What a packet from a peer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heard {
    /// A silence that counts.
    pub silence: bool,
    /// A partition, which was reported, and since when it lasted.
    pub partition: Option<Time>,
}

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Hearing {
    at: Time,
    partitioned_at: Option<Time>,
    /// The last silence that counted: how long it was, and when it ended.
    last_silence: (Duration, Time),
}

impl Hearing {
    pub fn new(now: Time) -> Self {
        Self { at: now, partitioned_at: None, last_silence: (Duration::ZERO, now) }
    }

    /// From now on something waits for the peer: the silence before does not count.
    pub fn begin(&mut self, now: Time) {
        self.at = now;
    }

    /// When something last arrived.
    #[inline]
    pub fn at(&self) -> Time {
        self.at
    }

    /// Something authentic arrived. Returns what that ends.
    pub fn hear(&mut self, now: Time) -> Heard {
        let silence = now.since(self.at);
        let counts = silence > SILENCE_NOTED;
        if counts {
            self.last_silence = (silence, now);
        }
        self.at = now;
        Heard { silence: counts, partition: self.partitioned_at.take() }
    }

    /// It has been silent since then, for long enough to be called partitioned. Returns whether that is news.
    pub fn partition(&mut self, since: Time) -> bool {
        let news = self.partitioned_at.is_none();
        self.partitioned_at.get_or_insert(since);
        news
    }

    /// Whether it is.
    pub fn is_partitioned(&self) -> bool {
        self.partitioned_at.is_some()
    }

    /// The last silence that counted: how long it was, and when it ended.
    pub fn last_silence(&self) -> (Duration, Time) {
        self.last_silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_ends_a_silence_that_counts_and_a_partition_once() {
        let at = |t: u64| Time::from_ns(t * 1_000_000);
        let mut h = Hearing::new(at(0));
        assert_eq!(h.hear(at(300)), Heard { silence: false, partition: None });
        assert!(h.partition(at(310)) && !h.partition(at(900)) && h.is_partitioned());
        assert_eq!(h.hear(at(2000)), Heard { silence: true, partition: Some(at(310)) });
        assert_eq!((h.last_silence(), h.at()), ((ms(1700), at(2000)), at(2000)));
        assert_eq!(h.hear(at(2001)), Heard { silence: false, partition: None });
        assert_eq!(h.last_silence().1, at(2000));
        h.begin(at(9000));
        assert!(!h.hear(at(9001)).silence && !h.is_partitioned());
    }
}
