//! The frames of a stream that are written and not acknowledged.
//!
//! Owns: their records, and the times from which silence is measured. Invariant: the bytes in flight are the sum of the records.

use crate::lane::sent::{Sent, Taking, take_acked, take_lost};
use crate::message::item::Item;
use crate::rest::give_back;
use crate::types::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    records: VecDeque<Sent>,
    bytes: u64,
    /// When an acknowledgement last came, or the first frame was written after all were acknowledged.
    progress_at: Time,
    acked_at: Option<Time>,
}

/// What an acknowledgement shows of the frames of a stream.
#[derive(Debug)]
pub(crate) struct StreamNews {
    pub acked: Taking,
    pub lost: Taking,
    /// Acknowledged bytes whose acknowledgement is evidence about this stream.
    pub clear: u64,
    /// How long the stream waited for it, if all acknowledged bytes are such.
    pub waited: Option<Duration>,
}

impl Flight {
    pub fn new(now: Time) -> Self {
        Self { records: VecDeque::new(), bytes: 0, progress_at: now, acked_at: None }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub fn progress_at(&self) -> Time {
        self.progress_at
    }

    /// When an acknowledgement last came.
    #[inline]
    pub fn acked_at(&self) -> Option<Time> {
        self.acked_at
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.records.iter()
    }

    /// Silence before now does not count.
    pub fn begins(&mut self, now: Time) {
        self.progress_at = now;
    }

    /// Something is written: when nothing was in flight, the wait for an acknowledgement begins.
    #[inline]
    pub fn writes(&mut self, now: Time) {
        if self.records.is_empty() {
            self.progress_at = now;
        }
    }

    /// A frame is written in full.
    #[inline]
    pub fn add(&mut self, record: Sent) {
        self.bytes += u64::from(record.bytes());
        self.records.push_back(record);
    }

    /// Takes out what an acknowledgement names, and what `largest` has overtaken too far. Frames that have a copy
    /// elsewhere are no evidence about this stream (hazard H10), unless `copies_count`.
    pub fn acknowledged(
        &mut self,
        ranges: &[(u64, u64)],
        largest: u64,
        copies_count: bool,
        now: Time,
    ) -> StreamNews {
        let acked = take_acked(&mut self.records, ranges);
        let lost = take_lost(&mut self.records, largest);
        let sum = |records: &Taking| records.iter().map(|r| u64::from(r.bytes())).sum::<u64>();
        let bytes = sum(&acked);
        let counts = |r: &&Sent| !r.is_hedged() || copies_count;
        let clear = acked.iter().filter(counts).map(|r| u64::from(r.bytes())).sum();
        self.bytes -= bytes + sum(&lost);
        let mut waited = None;
        if !acked.is_empty() {
            waited = (clear == bytes).then(|| now.since(self.progress_at));
            self.progress_at = now;
            self.acked_at = Some(now);
        }
        StreamNews { acked, lost, clear, waited }
    }

    /// What of it the budget allows goes over another path too.
    pub fn hedge(&mut self, budget: &mut u64, copies: &mut Vec<Item>) {
        self.records.iter_mut().for_each(|r| r.hedge(budget, copies));
    }

    /// Whether an adapter wrote some of it into the peer's memory.
    pub fn is_placed(&self) -> bool {
        self.records.iter().any(Sent::is_placed)
    }

    pub fn carries(&self, item: &Item) -> bool {
        self.records.iter().any(|r| r.items().contains(item))
    }

    /// Takes all records out.
    pub fn take_all(&mut self) -> Vec<Sent> {
        self.bytes = 0;
        self.records.drain(..).collect()
    }

    /// Nothing of it counts any more.
    pub fn clear(&mut self) {
        self.bytes = 0;
        self.records.clear();
    }

    pub fn rest(&mut self) {
        give_back(&mut self.records);
    }

    /// Checks the invariant.
    pub fn check(&self) {
        let sum: u64 = self.records.iter().map(|r| u64::from(r.bytes())).sum();
        assert_eq!(sum, self.bytes, "bytes in flight are the sum of the records");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ORIGIN + Duration::from_millis(ms)
    }

    /// Frames of 10, 20, 30 .. bytes, written at once.
    fn flight(frames: u64) -> Flight {
        let mut f = Flight::new(at(0));
        f.writes(at(1));
        for n in 0..frames {
            f.add(Sent::frame(n, Item::Cts { seq: n }, 10 * (n as u32 + 1), at(1), false, n == 1));
            f.writes(at(2));
        }
        f
    }

    #[test]
    fn bytes_in_flight_are_those_of_frames_neither_acknowledged_nor_lost() {
        let mut f = flight(6);
        assert_eq!((f.bytes(), f.is_placed(), f.carries(&Item::Cts { seq: 1 })), (210, true, true));
        let news = f.acknowledged(&[(5, 5), (1, 1)], 5, false, at(4));
        f.check();
        assert_eq!((news.acked.len(), news.lost.len(), news.clear), (2, 2, 80));
        assert_eq!(f.iter().map(Sent::number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((f.bytes(), f.is_placed(), f.carries(&Item::Cts { seq: 1 })), (90, false, false));
        assert_eq!((f.take_all().len(), f.bytes(), f.is_empty()), (2, 0, true));
        let mut f = flight(2);
        f.clear();
        f.check();
    }

    #[test]
    fn silence_is_measured_from_the_last_acknowledgement_or_the_first_frame_after_it() {
        let mut f = flight(2);
        assert_eq!((f.progress_at(), f.acked_at()), (at(1), None), "the second frame was not waited for");
        assert_eq!(f.acknowledged(&[(0, 0)], 0, false, at(4)).waited, Some(Duration::from_millis(3)));
        assert_eq!((f.progress_at(), f.acked_at()), (at(4), Some(at(4))));
        assert_eq!(f.acknowledged(&[(0, 0)], 0, false, at(5)).waited, None, "the same again");
        assert_eq!(f.acked_at(), Some(at(4)));
        f.acknowledged(&[(1, 1)], 1, false, at(6));
        f.writes(at(9));
        assert_eq!((f.progress_at(), f.acked_at()), (at(9), Some(at(6))));
    }

    #[test]
    fn frames_that_have_a_copy_say_nothing_about_the_stream() {
        let (mut budget, mut copies) = (15, Vec::new());
        let mut f = flight(2);
        f.hedge(&mut budget, &mut copies);
        assert_eq!((budget, &copies[..]), (5, &[Item::Cts { seq: 0 }][..]));
        let mut planted = f.clone();
        let news = f.acknowledged(&[(0, 1)], 1, false, at(4));
        assert_eq!((news.clear, news.waited), (20, None));
        let news = planted.acknowledged(&[(0, 1)], 1, true, at(4));
        assert_eq!((news.clear, news.waited.is_some()), (30, true));
    }
}
