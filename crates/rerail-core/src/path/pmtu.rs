//! Path MTU: how long a datagram may be on a path (RFC 8899, Datagram Packetization Layer Path MTU Discovery).
//!
//! A path begins with what both interfaces take, and verifies at once that this passes: by a query padded to the full
//! length, whose answer is padded as well, so one query proves both directions. When such queries stay unanswered while
//! short ones are answered, long datagrams vanish (a black hole: a narrower link that nothing reports). The path then
//! falls back to what every network takes, and searches upward from there. If long datagrams are lost again and again,
//! without one arriving, it verifies again. Differs from RFC 8899 §5.1: the search begins at the top, because an MTU
//! below the interfaces' is rare among the nodes of a cluster, and the first messages should not be short on its
//! account. Invariants: a query about length is no evidence about the path's health; `datagram_bytes_max` is between
//! base and full.

use crate::rest::{OnDemand, rests};
use crate::types::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Length that passes everywhere (RFC 8899 §5.1.2, BASE_PLPMTU), UDP payload.
pub(crate) const BASE: usize = 1200;
/// Queries about one length before it counts as too long (RFC 8899 §5.1.2, MAX_PROBES).
const PROBES: u32 = 3;
/// The search ends when it is this precise.
const PRECISION: usize = 32;
/// How long an answer is waited for at least.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);
/// When short queries stay unanswered as well, the query is repeated after this long.
const PAUSE: Duration = Duration::from_millis(200);
/// A path that is narrower than its interfaces tries a longer datagram after this long (RFC 8899 §5.1.1 has 600 s).
const RAISE: Duration = Duration::from_secs(60);
/// Answers in a row that showed long datagrams as lost, without one that arrived, until the length is doubted.
const VANISHED: u32 = 2;
/// Queries whose answers may still arrive.
const ASKED_MAX: usize = 8;

/// What is being found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Whether the length in use passes.
    Confirm,
    /// What passes between `low`, which does, and `high`, which does not, or was not tried (`untried`).
    Search { low: usize, high: usize, untried: bool },
    /// Nothing, until then.
    Settled { again: Option<Time> },
}

/// What is being found out about a path's MTU, at rest when that is nothing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pmtu {
    stage: Stage,
    /// Queries: id, length, when.
    asked: VecDeque<(u64, usize, Time)>,
    /// The newest of them is open since then.
    open: Option<Time>,
    tries: u32,
    pause_until: Option<Time>,
    vanished: u32,
}

/// What is to be done about a path's MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing before then.
    Wait(Time),
    /// A query of this length is to be sent.
    Ask(usize),
    /// The queried length does not pass.
    GiveUp,
}

impl Pmtu {
    const SETTLED: Self = Self {
        stage: Stage::Settled { again: None },
        asked: VecDeque::new(),
        open: None,
        tries: 0,
        pause_until: None,
        vanished: 0,
    };

    fn turn_to(&mut self, stage: Stage) {
        self.stage = stage;
        (self.open, self.tries, self.pause_until) = (None, 0, None);
    }

    /// A new epoch: the way may be another. In use are `bytes`, and the interfaces take `full`.
    pub fn renew(&mut self, bytes: usize, full: usize) {
        self.asked.clear();
        self.vanished = 0;
        self.turn_to(if bytes < full {
            Stage::Search { low: bytes, high: full, untried: true }
        } else {
            Stage::Confirm
        });
    }

    /// Whether nothing is being found out.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Settled { .. })
    }

    /// When a settled path tries a longer datagram; [`Time::NEVER`]: it does not, or is searching.
    pub fn again(&self) -> Time {
        match self.stage {
            Stage::Settled { again: Some(at) } => at,
            _ => Time::NEVER,
        }
    }

    /// The path cannot be queried now: an open query is no evidence.
    pub fn interrupt(&mut self) {
        self.open = None;
    }

    /// Long datagrams were lost although the path answered. Returns whether the length is verified from now on.
    pub fn doubt(&mut self) -> bool {
        self.vanished += 1;
        let doubted = self.vanished >= VANISHED && self.is_settled();
        if doubted {
            self.vanished = 0;
            self.turn_to(Stage::Confirm);
        }
        doubted
    }

    /// What is to be done now, on a path where `in_use` bytes are sent and the interfaces take `full`; `answered`: when
    /// the newest answered query, of whatever length, was sent.
    pub fn next(
        &mut self,
        in_use: usize,
        full: usize,
        patience: Duration,
        answered: Option<Time>,
        now: Time,
    ) -> Next {
        match self.stage {
            Stage::Settled { again } if again.is_none_or(|at| at > now) => return Next::Wait(self.again()),
            Stage::Settled { .. } => {
                self.turn_to(Stage::Search { low: in_use, high: full, untried: true });
            }
            Stage::Confirm if in_use <= BASE => {
                self.turn_to(Stage::Settled { again: None });
                return Next::Wait(Time::NEVER);
            }
            _ => {}
        }
        if let Some(at) = self.pause_until {
            if at > now {
                return Next::Wait(at);
            }
            self.pause_until = None;
        }
        if let Some(since) = self.open {
            let at = since + patience;
            if at > now {
                return Next::Wait(at);
            }
            self.open = None;
            if answered.is_none_or(|t| t < since) {
                // short queries stay unanswered as well: the length is not the reason
                self.pause_until = Some(now + PAUSE);
                return Next::Wait(now + PAUSE);
            }
            self.tries += 1;
            if self.tries >= PROBES {
                return Next::GiveUp;
            }
        }
        self.target(in_use).map_or(Next::Wait(now), Next::Ask)
    }

    /// Query `id` of such a length goes out.
    pub fn ask(&mut self, id: u64, bytes: usize, now: Time) {
        self.open = Some(now);
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((id, bytes, now));
    }

    /// The queried length does not pass. Returns whether that is the length in use, which is [`BASE`] from now on.
    pub fn give_up(&mut self, in_use: usize, full: usize, now: Time) -> bool {
        match self.stage {
            Stage::Confirm => self.narrow(BASE, in_use, full, now),
            Stage::Search { low, high, untried } => {
                let failed = if untried { high } else { low + (high - low) / 2 };
                self.narrow(low, failed, full, now);
                return false;
            }
            Stage::Settled { .. } => return false,
        }
        true
    }

    /// Query `id` was answered with so many bytes. `None`: it was no query about length, or the answer proves nothing;
    /// otherwise what may be sent from now on.
    pub fn answered(
        &mut self,
        id: u64,
        bytes: usize,
        in_use: usize,
        full: usize,
        now: Time,
    ) -> Option<usize> {
        let k = self.asked.iter().position(|a| a.0 == id)?;
        let (_, asked, _) = self.asked.remove(k)?;
        if bytes < asked {
            return None;
        }
        self.vanished = 0;
        match self.stage {
            Stage::Confirm if asked >= in_use => self.turn_to(Stage::Settled { again: None }),
            Stage::Search { low, high, .. } if asked > low => {
                // late answers may be about more than what is searched now
                self.narrow(asked.min(full), high.max(asked), full, now);
                return Some(asked.min(full));
            }
            _ => {}
        }
        Some(in_use)
    }

    /// The length to query now.
    fn target(&self, in_use: usize) -> Option<usize> {
        match self.stage {
            Stage::Confirm => Some(in_use),
            Stage::Search { high, untried: true, .. } => Some(high),
            Stage::Search { low, high, .. } => Some(low + (high - low) / 2),
            Stage::Settled { .. } => None,
        }
    }

    /// Goes on with the search, or ends it; the interfaces take `full`.
    fn narrow(&mut self, low: usize, high: usize, full: usize, now: Time) {
        let found = high - low < PRECISION;
        self.turn_to(if found {
            Stage::Settled { again: (low < full).then(|| now + RAISE) }
        } else {
            Stage::Search { low, high, untried: false }
        });
    }
}

impl Default for Pmtu {
    fn default() -> Self {
        Self::SETTLED
    }
}

rests! {
    Pmtu = Pmtu::SETTLED;
}

impl OnDemand<Pmtu> {
    /// A datagram of this length was acknowledged.
    #[inline]
    pub fn passed(&mut self, bytes: usize) {
        if let Some(m) = self.awake_mut().filter(|_| bytes > BASE) {
            m.vanished = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_halves_and_ends_within_its_precision() {
        let now = Time::ORIGIN;
        let mut p = Pmtu::default();
        let hole = 1372;
        let full = 8972;
        p.narrow(BASE, full, full, now);
        let mut questions = 0;
        let found = loop {
            match p.stage {
                Stage::Search { low, high, .. } => {
                    let t = p.target(BASE).unwrap();
                    assert!(t > low && t < high);
                    questions += 1;
                    if t <= hole {
                        p.narrow(t, high, full, now)
                    } else {
                        p.narrow(low, t, full, now)
                    }
                    if matches!(p.stage, Stage::Settled { .. }) {
                        break if t <= hole { t } else { low };
                    }
                }
                _ => unreachable!("it begins with a search"),
            }
        };
        assert!(found <= hole && found + PRECISION > hole, "{found}");
        assert!(questions <= 9, "{questions}");
        assert_eq!(p.stage, Stage::Settled { again: Some(now + RAISE) });
    }

    #[test]
    fn a_length_is_given_up_only_when_shorter_ones_are_answered() {
        let at = |n| Time::ORIGIN + n * PATIENCE;
        let mut p = Pmtu::default();
        p.renew(1472, 1472);
        assert_eq!(p.next(1472, 1472, PATIENCE, None, at(0)), Next::Ask(1472));
        p.ask(1, 1472, at(0));
        assert_eq!(p.next(1472, 1472, PATIENCE, None, at(0)), Next::Wait(at(1)));
        assert_eq!(p.next(1472, 1472, PATIENCE, None, at(1)), Next::Wait(at(1) + PAUSE));
        for n in 20..20 + PROBES {
            let again = p.next(1472, 1472, PATIENCE, Some(at(n)), at(n));
            assert_eq!(again, Next::Ask(1472), "{n}");
            p.ask(u64::from(n), 1472, at(n));
        }
        assert_eq!(p.next(1472, 1472, PATIENCE, Some(at(30)), at(30)), Next::GiveUp);
        assert!(p.give_up(1472, 1472, at(30)));
        assert_eq!(p.answered(7, 1472, BASE, 1472, at(30)), None, "no such question was asked");
        // the last query is answered after all
        assert_eq!(p.answered(22, 1472, BASE, 1472, at(31)), Some(1472));
    }

    #[test]
    fn a_new_epoch_asks_again_and_for_more_first() {
        let mut p = Pmtu::default();
        p.renew(1472, 1472);
        assert_eq!((p.stage, p.target(1472)), (Stage::Confirm, Some(1472)));
        p.renew(1300, 1472);
        assert_eq!(p.target(1300), Some(1472));
    }
}
