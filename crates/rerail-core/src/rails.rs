//! The rails of this process: what they are, whether they are up, and how long things take on them of late.
//!
//! Owns: that. A rail's queue is shared by all paths that lead over it, so what one of them measures is evidence about
//! the others. Which rails carry what is the business of `policy`, and what one silent path shows of its rail that of
//! `suspicion`.

use crate::node::FarRail;
use crate::rate::Crowd;
use crate::types::{Locator, RailDesc, RailId, Time};
use rerail_wire::config::PORT_MAX;
use std::cmp::Reverse;
use std::ops::{Deref, Index};
use std::time::Duration;

/// See above. Reads as the list of the rails.
#[derive(Debug, Clone)]
pub(crate) struct LocalRails {
    rails: Vec<RailDesc>,
    /// How crowded each of them is.
    crowds: Vec<Crowd>,
    /// How long acknowledgements took of late.
    waits: Vec<Crowd>,
    any_places: bool,
    any_adapter: bool,
}

impl LocalRails {
    pub fn new(rails: Vec<RailDesc>) -> Self {
        let n = rails.len();
        let any_places = rails.iter().any(|r| r.places_max > 0);
        // an adapter with one rail has nowhere to lead a stream
        let any_adapter =
            rails.iter().enumerate().any(|(i, r)| rails[..i].iter().any(|o| o.shares_adapter_with(r)));
        Self {
            rails,
            any_places,
            any_adapter,
            crowds: vec![Crowd::of_round_trips(); n],
            waits: vec![Crowd::of_waits(); n],
        }
    }

    /// Whether some rail writes into peers' memory.
    #[inline]
    pub fn any_places(&self) -> bool {
        self.any_places
    }

    /// Whether some adapter can lead a stream of one rail over another.
    #[inline]
    pub fn any_adapter(&self) -> bool {
        self.any_adapter
    }

    /// Whether a rail is of a better kind than another one, so that it carries where both have one port: adapters that write
    /// into peers' memory are, then faster rails, then those that the process names first. An order, so that of the rails of a
    /// port one is outranked by none.
    pub fn outranks(&self, rail: RailId, other: RailId) -> bool {
        outranks(&self.rails, usize::from(rail.0), usize::from(other.0))
    }

    /// The number of a rail's physical port, as reported to peers; 0: no other rail has it.
    pub fn port(&self, rail: usize) -> u8 {
        let own = &self.rails[rail];
        let mut group = (0..).zip(&self.rails).filter(|(_, r)| r.shares_port_with(own)).map(|(i, _)| i);
        let (first, second) = (group.next(), group.next());
        first.filter(|_| second.is_some()).map_or(0, |i: u8| (i + 1).min(PORT_MAX))
    }

    /// Nominal speed between a rail and the peer's rail at the other end: that of the slower one, as far as they are known; 0: neither is.
    pub fn speed_mbps(&self, rail: RailId, far: Option<&FarRail>) -> u32 {
        match (self[rail].speed_mbps, far.map_or(0, FarRail::speed_mbps)) {
            (own, 0) => own,
            (0, far) => far,
            (own, far) => own.min(far),
        }
    }

    /// A rail went up or down. False: there is no such rail.
    pub fn set_up(&mut self, rail: RailId, up: bool) -> bool {
        let known = self.rails.get_mut(usize::from(rail.0));
        known.map(|r| r.up = up).is_some()
    }

    /// Whether this is a place of this very host: what goes there does not leave it.
    pub fn has_place(&self, to: &Locator) -> bool {
        self.rails.iter().any(|r| r.locator.same_place(to))
    }

    /// An answer over a rail came after `waited`, of which `round_trip` was not the peer's.
    #[inline]
    pub fn sample(&mut self, rail: RailId, round_trip: Duration, waited: Duration, now: Time) {
        self.crowds[usize::from(rail.0)].sample(round_trip, now);
        self.sample_wait(rail, waited, now);
    }

    /// The same where it is not known how much of it was the peer's.
    #[inline]
    pub fn sample_wait(&mut self, rail: RailId, waited: Duration, now: Time) {
        self.waits[usize::from(rail.0)].sample_wait(waited, now);
    }

    /// Time after which an answer over a rail is late, whatever its own path has measured: by what others needed of
    /// late.
    pub fn answer_patience(&self, rail: RailId, now: Time) -> Duration {
        self.crowds[usize::from(rail.0)].patience(now)
    }

    /// The same for an acknowledgement.
    pub fn wait_patience(&self, rail: RailId, now: Time) -> Duration {
        self.waits[usize::from(rail.0)].patience(now)
    }
}

/// See [`LocalRails::outranks`].
pub(crate) fn outranks(rails: &[RailDesc], rail: usize, other: usize) -> bool {
    let rank = |i: usize| (rails[i].places_max > 0, rails[i].speed_mbps, Reverse(i));
    rails[rail].kind() != rails[other].kind() && rank(rail) > rank(other)
}

impl Deref for LocalRails {
    type Target = [RailDesc];

    fn deref(&self) -> &[RailDesc] {
        &self.rails
    }
}

impl Index<RailId> for LocalRails {
    type Output = RailDesc;

    fn index(&self, rail: RailId) -> &RailDesc {
        &self.rails[usize::from(rail.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_rail::Kind;
    use rerail_wire::config::RailConfig;

    fn two() -> LocalRails {
        let rail = |name: &str, addr: [u8; 4]| RailDesc::ip(name, (addr, 4000).into(), 24, 1500);
        LocalRails::new(vec![rail("a", [10, 0, 0, 1]), rail("b", [10, 0, 1, 1])])
    }

    #[test]
    fn what_an_answer_takes_makes_patient_with_its_own_rail_only() {
        let (ms, now) = (Duration::from_millis, Time::from_ns(1_000_000_000));
        let mut r = two();
        r.sample(RailId(1), ms(10), ms(30), now);
        assert_eq!((r.answer_patience(RailId(0), now), r.wait_patience(RailId(0), now)), Default::default());
        assert_eq!((r.answer_patience(RailId(1), now), r.wait_patience(RailId(1), now)), (ms(15), ms(45)));
        r.sample_wait(RailId(1), ms(32), now);
        assert_eq!((r.answer_patience(RailId(1), now), r.wait_patience(RailId(1), now)), (ms(15), ms(48)));
    }

    #[test]
    fn rails_of_one_port_have_its_number_and_a_path_is_as_fast_as_its_slower_rail() {
        let rail = |port: &str, speed_mbps| {
            let ip = RailDesc::ip("eth", ([10, 0, 0, 1], 4000).into(), 24, 1500);
            RailDesc { port: port.to_owned(), speed_mbps, ..ip }
        };
        let r = LocalRails::new(vec![rail("a", 100), rail("b", 0), rail("", 5), rail("b", 5), rail("", 5)]);
        assert_eq!([0, 1, 2, 3, 4].map(|i| r.port(i)), [0, 2, 0, 2, 0]);
        let speed = |i, far: u32| {
            r.speed_mbps(
                RailId(i),
                Some(&FarRail::new(&RailConfig { speed_mbps: far, ..RailConfig::default() })),
            )
        };
        assert_eq!((speed(0, 10), speed(0, 1000), speed(0, 0), speed(1, 10)), (10, 100, 100, 10));
        assert_eq!((r.speed_mbps(RailId(0), None), r.speed_mbps(RailId(1), None)), (100, 0));
    }

    #[test]
    fn of_two_kinds_adapters_are_better_then_faster_rails_then_the_first() {
        let rail = |kind: u8, places_max, speed_mbps| {
            let locator = Locator::new(Kind(kind), &[10, 0, 0, 1], 4000).expect("a short place");
            let ip = RailDesc::ip("eth", ([10, 0, 0, 1], 4000).into(), 24, 1500);
            RailDesc { locator, places_max, speed_mbps, ..ip }
        };
        let outranked = |rails: &[RailDesc]| {
            let r = LocalRails::new(rails.to_vec());
            let by = |i: u8, to: u8| r.outranks(RailId(to), RailId(i));
            (0..rails.len() as u8).map(|i| (0..rails.len() as u8).any(|to| by(i, to))).collect::<Vec<_>>()
        };
        assert_eq!(outranked(&[rail(1, 0, 400_000), rail(2, 1, 10)]), [true, false]);
        assert_eq!(outranked(&[rail(1, 0, 10), rail(2, 0, 100)]), [true, false]);
        assert_eq!(outranked(&[rail(1, 0, 0), rail(2, 0, 0)]), [false, true]);
        assert_eq!(outranked(&[rail(1, 0, 10), rail(1, 0, 100)]), [false, false], "VLANs of one kind");
        // one of them is outranked by none, whatever is not known
        assert_eq!(
            outranked(&[rail(1, 0, 0), rail(2, 0, 10), rail(3, 0, 0), rail(4, 0, 100)]),
            [true, true, true, false]
        );
    }

    #[test]
    fn a_rail_goes_up_and_down_and_one_that_is_not_there_does_not() {
        let mut r = two();
        assert!(r.set_up(RailId(1), false) && !r.set_up(RailId(2), false));
        assert_eq!((r[RailId(0)].up, r[RailId(1)].up, r.len()), (true, false, 2));
        assert!(
            r.has_place(&Locator::ip([10, 0, 1, 1].into(), 7))
                && !r.has_place(&Locator::ip([10, 0, 1, 2].into(), 4000))
        );
    }
}
