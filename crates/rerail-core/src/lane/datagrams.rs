//! The datagrams of one lane that carry small messages and control: their numbers, and those that are not acknowledged.
//!
//! Owns: both, and the window. Invariants: a number is used once in an epoch; the window is cut once for what was in flight together. A datagram
//! without items is not recorded: nothing has to arrive.

use super::sent::{Sent, Taking, take_acked, take_lost};
use crate::message::item::Item;
use crate::rest::give_back;
use crate::types::Time;
use std::collections::VecDeque;

/// Unacknowledged datagrams at the start: half of what a default kernel buffer surely takes.
const WINDOW_START: u32 = 64;
/// Fewest unacknowledged datagrams after losses.
const WINDOW_MIN: u32 = 8;
/// Most unacknowledged datagrams ("a bounded number in flight per peer").
const WINDOW_MAX: u32 = 256;

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Datagrams {
    number_next: u64,
    inflight: VecDeque<Sent>,
    window: u32,
    /// Losses of earlier numbers have cut the window already.
    window_cut_at: u64,
}

impl Default for Datagrams {
    fn default() -> Self {
        Self { number_next: 0, inflight: VecDeque::new(), window: WINDOW_START, window_cut_at: 0 }
    }
}

impl Datagrams {
    /// The number of the next datagram.
    #[inline]
    pub fn take_number(&mut self) -> u64 {
        let number = self.number_next;
        self.number_next += 1;
        number
    }

    /// A datagram that carries something went out.
    #[inline]
    pub fn record(&mut self, sent: Sent) {
        self.inflight.push_back(sent);
    }

    /// Whether the window lets another one out.
    #[inline]
    pub fn has_window(&self) -> bool {
        (self.inflight.len() as u32) < self.window
    }

    /// Whether there ever was one of this number.
    #[inline]
    pub fn was_sent(&self, number: u64) -> bool {
        number < self.number_next
    }

    /// The oldest that is not acknowledged.
    #[inline]
    pub fn oldest(&self) -> Option<&Sent> {
        self.inflight.front()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inflight.is_empty()
    }

    /// How many are in flight, and how many may be.
    pub fn flight(&self) -> (usize, u32) {
        (self.inflight.len(), self.window)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.inflight.iter()
    }

    /// What of them the budget allows goes over another path too.
    pub fn hedge(&mut self, budget: &mut u64, copies: &mut Vec<Item>) {
        self.inflight.iter_mut().for_each(|s| s.hedge(budget, copies));
    }

    /// Takes the oldest out, if it is so.
    #[inline]
    pub fn take_if(&mut self, is_so: impl FnOnce(&Sent) -> bool) -> Option<Sent> {
        self.inflight.front().filter(|s| is_so(s))?;
        self.inflight.pop_front()
    }

    /// Takes out those that went out before that time.
    pub fn take_older(&mut self, than: Time) -> Vec<Sent> {
        std::iter::from_fn(|| self.take_if(|s| s.at() < than)).collect()
    }

    /// Takes all of them out.
    pub fn take_all(&mut self) -> Vec<Sent> {
        self.inflight.drain(..).collect()
    }

    /// Takes out what an acknowledgement names.
    pub fn take_acked(&mut self, ranges: &[(u64, u64)]) -> Taking {
        take_acked(&mut self.inflight, ranges)
    }

    /// Takes out those that `largest` has overtaken too far. Losses cut the window; without any it grows if something was acknowledged.
    pub fn take_lost(&mut self, largest: u64, any_acked: bool) -> Taking {
        let lost = take_lost(&mut self.inflight, largest);
        if !lost.is_empty() && lost[0].number() >= self.window_cut_at {
            self.window = (self.window / 2).max(WINDOW_MIN);
            self.window_cut_at = self.number_next;
        } else if any_acked {
            self.grow();
        }
        lost
    }

    /// Everything up to something was acknowledged, and nothing was lost.
    #[inline]
    pub fn grow(&mut self) {
        if self.window < WINDOW_MAX {
            self.window += 1;
        }
    }

    pub fn rest(&mut self) {
        give_back(&mut self.inflight);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sent::Items;
    use super::*;

    fn send(d: &mut Datagrams, n: u64) {
        for _ in 0..n {
            let number = d.take_number();
            d.record(Sent::new(number, Items::One(Item::Config), 1, Time::from_ns(number + 1)));
        }
    }

    #[test]
    fn losses_of_one_flight_cut_the_window_once_and_acknowledgements_open_it() {
        let mut d = Datagrams::default();
        send(&mut d, 20);
        assert_eq!(d.take_acked(&[(8, 8)]).len(), 1);
        assert_eq!(d.take_lost(8, true).len(), 6);
        assert_eq!(d.flight(), (13, WINDOW_START / 2));
        assert_eq!(d.take_acked(&[(12, 12)]).len(), 1);
        assert_eq!(d.take_lost(12, true).len(), 3, "6, 7 and 9");
        assert_eq!(d.flight().1, WINDOW_START / 2 + 1, "they were in flight together with the first");
        assert_eq!(d.take_acked(&[(10, 19)]).len(), 9);
        send(&mut d, 10);
        assert_eq!(d.take_acked(&[(29, 29)]).len(), 1);
        d.take_lost(29, true);
        assert_eq!(d.flight().1, 16, "half of it");
    }

    #[test]
    fn the_window_has_bounds_and_holds_back() {
        let mut d = Datagrams::default();
        send(&mut d, u64::from(WINDOW_START) - 1);
        assert!(d.has_window());
        send(&mut d, 1);
        assert!(!d.has_window() && d.was_sent(63) && !d.was_sent(64));
        assert_eq!(d.take_older(Time::from_ns(3)).iter().map(Sent::number).collect::<Vec<_>>(), [0, 1]);
        assert!(d.has_window());
        for _ in 0..2 * WINDOW_MAX {
            d.grow();
        }
        assert_eq!((d.flight().1, d.take_all().len(), d.is_empty()), (WINDOW_MAX, 62, true));
    }
}
