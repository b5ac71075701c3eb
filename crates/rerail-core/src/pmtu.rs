//! Path MTU: how long a datagram may be on a path (RFC 8899, Datagram Packetization Layer Path MTU Discovery).
//!
//! A path begins with what both interfaces take, and asks at once whether that passes: a query padded to the full length, whose
//! answer is padded as well, so one question proves both directions. When such queries go unanswered while short ones are
//! answered, long datagrams vanish (a black hole: a narrower link, and nobody who says so): the path falls back to what every
//! network takes, and searches upward from there. Long datagrams that are lost again and again, without one arriving, make it
//! ask anew. Differs from RFC 8899 §5.1: the search begins at the top, because an MTU below the interfaces' is rare among the nodes
//! of a cluster, and the first messages should not be short on its account.
//! Invariants: a question about length is no evidence about the path's health; `datagram_bytes_max` is between base and full.

use crate::engine::Engine;
use crate::health::Health;
use crate::path::Path;
use crate::rest::{OnDemand, rests};
use crate::types::*;
use rerail_wire::packet::PACKET_HEADER_BYTES;
use std::collections::VecDeque;
use std::time::Duration;

/// Length that passes everywhere (RFC 8899 §5.1.2, BASE_PLPMTU), UDP payload.
const BASE: usize = 1200;
/// Questions about one length before it counts as too long (RFC 8899 §5.1.2, MAX_PROBES).
const PROBES: u32 = 3;
/// The search ends when it is this precise.
const PRECISION: usize = 32;
/// How long an answer is waited for at least.
const PATIENCE: Duration = Duration::from_millis(20);
/// When short queries go unanswered as well, the question is put again after this long.
const PAUSE: Duration = Duration::from_millis(200);
/// A path that is narrower than its interfaces is asked for more after this long (RFC 8899 §5.1.1 has 600 s).
const RAISE: Duration = Duration::from_secs(60);
/// Answers in a row that showed long datagrams as lost, without one that arrived, until the length is doubted.
const VANISHED: u32 = 2;
/// Questions whose answers may still come.
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
    /// Questions: id, length, when.
    asked: VecDeque<(u64, usize, Time)>,
    /// The newest of them is open since then.
    open: Option<Time>,
    tries: u32,
    pause_until: Option<Time>,
    vanished: u32,
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

    /// The length that is asked about now.
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

fn resize(x: &mut Path, bytes: usize) {
    x.datagram_bytes_max = bytes;
    x.lane.bulk_mut().resize(bytes);
    x.bulk_passage.excused();
    x.small_passage.excused();
}

impl Engine {
    /// Both interfaces of a path take datagrams of this length.
    pub(crate) fn mtu_agreed(&mut self, pi: usize, xi: usize, bytes: usize) {
        let x = &mut self.peers[pi].paths[xi];
        let fallen = x.datagram_bytes_max < x.datagram_bytes_full && x.datagram_bytes_max <= bytes;
        x.datagram_bytes_full = bytes;
        if !fallen {
            resize(x, bytes);
        }
        let in_use = x.datagram_bytes_max;
        x.pmtu.renew(in_use, bytes);
        let now = self.clock.now();
        self.schedule(pi, now);
    }

    /// Long datagrams were lost although the peer's engine answered on the path.
    pub(crate) fn mtu_doubt(&mut self, pi: usize, xi: usize, longest: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        if longest <= BASE {
            return;
        }
        x.pmtu.vanished += 1;
        if x.pmtu.vanished >= VANISHED && matches!(x.pmtu.stage, Stage::Settled { .. }) {
            x.pmtu.vanished = 0;
            x.pmtu.turn_to(Stage::Confirm);
            self.schedule(pi, now);
        }
    }

    /// Asks, and draws the conclusions; returns when to be called again.
    pub(crate) fn mtu_timer(&mut self, pi: usize, xi: usize) -> Time {
        let now = self.clock.now();
        let never = Time::NEVER;
        let x = &mut self.peers[pi].paths[xi];
        let in_use = x.datagram_bytes_max;
        // a path in probation has other questions to answer, unless they are long themselves
        let on_trial = x.health == Health::Probation && x.integrity.proof.is_none();
        if !x.datagrams_usable() || on_trial {
            if let Some(m) = x.pmtu.awake_mut() {
                m.open = None;
            }
            return never;
        }
        if let Stage::Settled { again } = x.pmtu.stage {
            let due = again.is_some_and(|at| at <= now);
            // on a path that is asked seldom there is no hurry
            if let Some(later) = if due { self.left_alone_until(pi, xi) } else { None } {
                return later;
            }
            let x = &mut self.peers[pi].paths[xi];
            match again {
                Some(at) if at <= now => {
                    let high = x.datagram_bytes_full;
                    x.pmtu.turn_to(Stage::Search { low: in_use, high, untried: true });
                }
                Some(at) => return at,
                None => return never,
            }
        }
        let x = &mut self.peers[pi].paths[xi];
        if x.pmtu.stage == Stage::Confirm && in_use <= BASE {
            x.pmtu.turn_to(Stage::Settled { again: None });
            return never;
        }
        if let Some(at) = x.pmtu.pause_until {
            if at > now {
                return at;
            }
            x.pmtu.pause_until = None;
        }
        if let Some(since) = x.pmtu.open {
            let at = since + x.lane.rtt().patience(PATIENCE);
            if at > now {
                return at;
            }
            x.pmtu.open = None;
            if x.evidence.answered_sent_at().is_none_or(|t| t < since) {
                // short ones are not answered either: that is no matter of length
                x.pmtu.pause_until = Some(now + PAUSE);
                return now + PAUSE;
            }
            x.pmtu.tries += 1;
            if x.pmtu.tries >= PROBES {
                self.mtu_too_long(pi, xi);
                return now;
            }
        }
        let Some(bytes) = self.peers[pi].paths[xi].pmtu.target(in_use) else { return now };
        self.mtu_ask(pi, xi, bytes);
        let x = &self.peers[pi].paths[xi];
        now + x.lane.rtt().patience(PATIENCE)
    }

    /// Puts the question, and a short query behind it: the answer to that tells a matter of length from every other.
    fn mtu_ask(&mut self, pi: usize, xi: usize, bytes: usize) {
        let now = self.clock.now();
        let p = &mut self.peers[pi];
        let id = p.ping_next;
        p.ping_next += 1;
        let cid = p.cid_out();
        let x = &mut p.paths[xi];
        x.pmtu.open = Some(now);
        if x.pmtu.asked.len() == ASKED_MAX {
            x.pmtu.asked.pop_front();
        }
        x.pmtu.asked.push_back((id, bytes, now));
        let query = x.query(cid, id, bytes - PACKET_HEADER_BYTES);
        self.output.send(query);
        self.ping(pi, xi);
    }

    /// The length that was asked about does not pass.
    fn mtu_too_long(&mut self, pi: usize, xi: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        match x.pmtu.stage {
            Stage::Confirm => {
                let high = x.datagram_bytes_max;
                self.counters.black_holes += 1;
                resize(x, BASE);
                x.pmtu.narrow(BASE, high, x.datagram_bytes_full, now);
                // what was too long goes again, shorter, or another way
                self.mark(PeerId(pi as u32));
                self.mark_streams(PeerId(pi as u32));
            }
            Stage::Search { low, high, untried } => {
                let failed = if untried { high } else { low + (high - low) / 2 };
                x.pmtu.narrow(low, failed, x.datagram_bytes_full, now);
            }
            Stage::Settled { .. } => {}
        }
    }

    /// A query was answered, perhaps one about length: `bytes` came back.
    pub(crate) fn mtu_answered(&mut self, pi: usize, xi: usize, id: u64, bytes: usize) {
        let now = self.clock.now();
        let x = &mut self.peers[pi].paths[xi];
        let Some(k) = x.pmtu.asked.iter().position(|a| a.0 == id) else { return };
        let (_, asked, _) = x.pmtu.asked.remove(k).expect("it was found");
        if bytes < asked {
            return;
        }
        x.pmtu.vanished = 0;
        match x.pmtu.stage {
            Stage::Confirm if asked >= x.datagram_bytes_max => {
                x.pmtu.turn_to(Stage::Settled { again: None });
            }
            Stage::Search { low, high, .. } if asked > low => {
                let full = x.datagram_bytes_full;
                resize(x, asked.min(full));
                // late answers may be about more than what is searched now
                x.pmtu.narrow(asked.min(full), high.max(asked), full, now);
            }
            _ => {}
        }
        self.schedule(pi, now);
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
    fn a_new_epoch_asks_again_and_for_more_first() {
        let mut p = Pmtu::default();
        p.renew(1472, 1472);
        assert_eq!((p.stage, p.target(1472)), (Stage::Confirm, Some(1472)));
        p.renew(1300, 1472);
        assert_eq!(p.target(1300), Some(1472));
    }
}
