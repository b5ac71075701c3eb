//! Whether datagrams pass on a path, and bulk datagrams among them, and how long they may be.
//!
//! Owns: what is known of their round trip, what is in the way of each kind, and the lengths. Invariant: a channel that is left alone, or was found
//! blocked, is so only while the path is in service; the next epoch begins without a judgement.

use super::passage::Passage;
use crate::types::Time;

/// What is known of the round trip of datagrams in this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RoundTrip {
    /// Nothing.
    #[default]
    Untried,
    /// They make it.
    Made,
    /// It was found that they do not.
    Blocked,
}

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Datagrams {
    round_trip: RoundTrip,
    small: Passage,
    bulk: Passage,
    /// Bulk datagrams were found to vanish.
    bulk_blocked: bool,
    /// Bytes that one may have, and the same as far as the interfaces at both ends go.
    bytes_max: usize,
    bytes_full: usize,
}

impl Datagrams {
    pub fn new(bytes_max: usize) -> Self {
        Self {
            round_trip: RoundTrip::Untried,
            small: Passage::default(),
            bulk: Passage::default(),
            bulk_blocked: false,
            bytes_max,
            bytes_full: bytes_max,
        }
    }

    // ---- the round trip ----------------------------------------------------------------------------------------

    /// Whether they make the round trip, as far as is known.
    #[inline]
    pub fn work(&self) -> bool {
        self.round_trip == RoundTrip::Made
    }

    /// One made it, or there is nothing that would show that they do not.
    #[inline]
    pub fn are_taken_to_work(&mut self) {
        self.round_trip = RoundTrip::Made;
    }

    /// A query was answered by a datagram, which counts unless they are left alone. `None`: that is no news; otherwise whether they were
    /// found blocked before.
    pub fn answered(&mut self) -> Option<bool> {
        if self.work() || self.small.barred() {
            return None;
        }
        Some(std::mem::replace(&mut self.round_trip, RoundTrip::Made) == RoundTrip::Blocked)
    }

    /// They do not make the round trip.
    pub fn block(&mut self) {
        self.round_trip = RoundTrip::Blocked;
    }

    /// An epoch is over, or begins: nothing is known.
    pub fn forget(&mut self) {
        self.round_trip = RoundTrip::Untried;
        self.bulk_blocked = false;
        (self.small, self.bulk) = Default::default();
    }

    // ---- what carries data -------------------------------------------------------------------------------------

    /// One that carried data was acknowledged.
    #[inline]
    pub fn small_passed(&mut self) {
        self.small.passed();
    }

    /// An answer showed all as lost that carried data before it. Whether they are left alone from now on.
    pub fn small_lost(&mut self, now: Time) -> bool {
        let vanish = self.small.lost(now) && self.work();
        if vanish {
            self.small.bar(now);
        }
        vanish
    }

    /// Bulk datagrams were acknowledged. Whether that ends a block.
    #[inline]
    pub fn bulk_passed(&mut self) -> bool {
        self.bulk.passed();
        std::mem::take(&mut self.bulk_blocked)
    }

    /// An answer showed all bulk datagrams before it as lost. Whether they are left alone from now on.
    pub fn bulk_lost(&mut self, now: Time) -> bool {
        let vanish = self.bulk.lost(now);
        if vanish {
            self.bulk.bar(now);
        }
        vanish
    }

    /// Something else carries the bulk meanwhile.
    pub fn block_bulk(&mut self) {
        self.bulk_blocked = true;
    }

    /// Whether bulk datagrams are left alone.
    #[inline]
    pub fn bulk_barred(&self) -> bool {
        self.bulk.barred()
    }

    /// What was left alone for long enough is tried again. Returns when that is so next, and whether bulk datagrams are tried now.
    pub fn release(&mut self, now: Time) -> (Option<Time>, bool) {
        let (bulk, tried) = self.bulk.release(now);
        let (small, _) = self.small.release(now);
        (bulk.into_iter().chain(small).min(), tried)
    }

    // ---- lengths -----------------------------------------------------------------------------------------------

    /// Bytes that one may have.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The same as far as the interfaces at both ends go.
    pub fn bytes_full(&self) -> usize {
        self.bytes_full
    }

    /// Both interfaces take so many bytes. Whether that is what one may have now: a path on which less passes keeps to it.
    pub fn agree_bytes(&mut self, bytes: usize) -> bool {
        let fallen = self.bytes_max < self.bytes_full && self.bytes_max <= bytes;
        self.bytes_full = bytes;
        !fallen
    }

    /// From now on one may have so many bytes: what was lost before may have been too long.
    pub fn resize(&mut self, bytes: usize) {
        self.bytes_max = bytes;
        self.small.excused();
        self.bulk.excused();
    }

    /// Gives back what nothing needs while the peer is silent.
    pub fn rest(&mut self) {
        self.small.rest();
        self.bulk.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: u64) -> Time {
        Time::from_ns(t * 1_000_000)
    }

    /// Answers that show everything as lost until the channel is left alone.
    fn lose(mut lost: impl FnMut(Time) -> bool) -> bool {
        (0..40).any(|t| lost(at(t * 10)))
    }

    #[test]
    fn an_answer_counts_once_and_not_while_they_are_left_alone() {
        let mut d = Datagrams::new(1400);
        assert!(!lose(|t| d.small_lost(t)), "of what was not known to work nothing vanishes");
        assert_eq!((d.answered(), d.answered(), d.work()), (Some(false), None, true));
        assert!(lose(|t| d.small_lost(t)));
        d.block();
        assert_eq!((d.answered(), d.work()), (None, false), "left alone");
        assert_eq!(d.release(at(10_000)), (None, false));
        assert_eq!((d.answered(), d.work()), (Some(true), true));
    }

    #[test]
    fn the_end_of_an_epoch_ends_all_judgements() {
        let mut d = Datagrams::new(1400);
        d.are_taken_to_work();
        assert!(lose(|t| d.bulk_lost(t)) && d.bulk_barred());
        d.block_bulk();
        d.block();
        d.forget();
        assert!(!d.bulk_barred() && !d.bulk_passed());
        assert_eq!(d.answered(), Some(false));
        assert!(lose(|t| d.bulk_lost(t)));
        d.block_bulk();
        assert_eq!(d.release(at(10_000)), (None, true));
        assert!(d.bulk_passed() && !d.bulk_passed());
    }

    #[test]
    fn a_path_on_which_less_passes_keeps_to_it() {
        let mut d = Datagrams::new(9000);
        assert!(d.agree_bytes(4000));
        d.resize(4000);
        d.resize(1200);
        assert!(!d.agree_bytes(4000), "less was found to pass");
        assert!(d.agree_bytes(1000), "the interfaces take even less");
        d.resize(1000);
        assert!(d.agree_bytes(9000));
        assert_eq!((d.bytes_max(), d.bytes_full()), (1000, 9000));
    }
}
