//! How often idle paths are asked: a bounded number of questions a second, however many peers there are.
//!
//! A path on which nothing was heard for [`Options::idle_probe`](crate::Options) is asked, so that a fault is found before traffic needs the
//! path. With thousands of peers that would be a flood, so the interval grows with the number of connected paths: what all of them together
//! are asked stays within [`Options::probe_budget`](crate::Options) questions a second. Answers cost as much as questions, and a process with
//! few peers may be one of thousands of its peer. So answers carry the interval of whoever answers, and the longer of both counts.
//!
//! *Who is waited for is asked as ever*: somebody with an operation under way, and the source of a posted receive that nobody else can match.
//! The first is known here at every timer of a peer. Of the second nothing is noted when the receive is posted, for it is matched at once as a
//! rule; all posted receives are looked through once in an interval of old.
//!
//! Long intervals are spread: each process and path has a factor of its own (1 to 1.5), and questions that are due go out one after the other
//! in groups, [`GROUP`] apart. What breaks is asked at once, and what is broken is tried as ever: that is not the business of this file.
//!
//! Owns: the interval, the order of the questions, who is waited for. Invariants: `connected` is the number of connected paths; with a longer
//! interval than of old the questions on idle paths are within the budget. Source: RFC 6298 and the like have nothing on this; gossip protocols
//! (SWIM) bound the load of a process in the same way, by a constant number of probes in a period.

use super::Engine;
use crate::peer::{Gone, Peer};
use crate::types::*;
use std::time::Duration;

/// Questions that are due go out together at multiples of this, so that a process with many idle peers seldom wakes up for them.
const GROUP: Duration = Duration::from_millis(100);
/// What answers count intervals in, so that 16 bits reach eleven minutes.
const WISH_UNIT: Duration = Duration::from_millis(10);

/// What is known of all idle paths together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes {
    /// Connected paths.
    connected: usize,
    /// The next question of a long interval goes out no earlier.
    next: Time,
    /// Peers that a posted receive waits for, in order.
    awaited: Vec<PeerId>,
    /// When that is looked for again; `None`: every interval is as of old.
    look_at: Option<Time>,
    /// Some peer has wished a longer interval.
    wished: bool,
}

impl Probes {
    /// A path was connected or not, and is or not, to a peer that is there or `gone`.
    pub fn count(&mut self, gone: Option<Gone>, was: bool, is: bool) {
        if gone.is_none() {
            self.connected = self.connected + usize::from(is) - usize::from(was);
        }
    }
}

impl Engine {
    /// The interval at which the budget would be spent on all connected paths.
    fn interval_of_budget(&self) -> Duration {
        if !self.remedies.probes_are_bounded() {
            return self.options.idle_probe;
        }
        let each = Duration::from_secs(1) / self.options.probe_budget;
        self.options.idle_probe.max(each * u32::try_from(self.probes.connected).unwrap_or(u32::MAX))
    }

    /// What answers say of that.
    pub(crate) fn wish(&self) -> u16 {
        let i = self.interval_of_budget();
        if i > self.options.idle_probe {
            u16::try_from(i.as_nanos() / WISH_UNIT.as_nanos()).unwrap_or(u16::MAX)
        } else {
            0
        }
    }

    /// An answer of the peer's engine: it wishes to be left alone for so long.
    pub(crate) fn wishes(&mut self, peer: PeerId, wish: u16) {
        self.peers[peer].questions.wishes(wish);
        self.probes.wished |= WISH_UNIT * u32::from(wish) > self.options.idle_probe;
    }

    /// The interval of questions on idle paths of a peer.
    fn interval(&self, p: &Peer) -> Duration {
        let own = self.interval_of_budget();
        if self.remedies.probes_are_bounded() {
            own.max(WISH_UNIT * u32::from(p.questions.wish()))
        } else {
            own
        }
    }

    /// Whether somebody waits for the peer.
    fn is_waited_for(&self, p: &Peer) -> bool {
        let waits = p.has_business() || self.probes.awaited.binary_search(&p.id()).is_ok();
        waits && self.remedies.awaited_are_asked()
    }

    /// When a connected path, on which datagrams work, is to be asked if nothing is heard on it. One that has to wait for others gets its place.
    pub(crate) fn probe_turn(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let usual = self.options.idle_probe;
        let p = &self.peers[peer];
        let path = &p.paths[index];
        let heard = path.evidence.heard_at().unwrap_or(path.since());
        let interval = self.interval(p);
        if interval <= usual {
            return path.next_probe().max(heard + usual);
        }
        if self.is_waited_for(p) {
            let asked = path.evidence.last_asked().unwrap_or(heard);
            self.look_again();
            return heard.max(asked) + usual;
        }
        let due = heard + interval + interval / 512 * self.spread(peer, index);
        let placed = path.next_probe();
        self.look_again();
        if due > now || placed >= due {
            // what has its place keeps it, and who just fell silent is looked at once, to tidy up
            return if heard + usual > now { heard + usual } else { due.max(placed) };
        }
        let place = self.place();
        self.peers[peer].paths[index].probe_at(place);
        place
    }

    /// Until when a path is not asked after anything that can wait, if it is idle and its interval a long one.
    pub(crate) fn left_alone_until(&self, peer: PeerId, index: usize) -> Option<Time> {
        let p = &self.peers[peer];
        let interval = self.interval(p);
        let long = interval > self.options.idle_probe && !self.is_waited_for(p);
        (long && self.is_left_alone(peer, index)).then(|| self.clock.now() + interval)
    }

    /// Whether nothing was heard on a path for as long as makes it idle, and nothing is asked.
    pub(crate) fn is_left_alone(&self, peer: PeerId, index: usize) -> bool {
        let path = &self.peers[peer].paths[index];
        let heard = path.evidence.heard_at().unwrap_or(path.since());
        path.evidence.is_answered() && self.clock.now().since(heard) >= self.options.idle_probe
    }

    /// When the next question on an idle path may go out.
    fn place(&mut self) -> Time {
        let now = self.clock.now();
        if self.interval_of_budget() <= self.options.idle_probe {
            return now;
        }
        let next = self.probes.next.max(now);
        self.probes.next = next + Duration::from_secs(1) / self.options.probe_budget;
        let group = GROUP.as_nanos() as u64;
        // not all processes of a host at one moment
        let phase = u64::from(self.token.0[2]) * group / 256;
        Time::from_ns((next.ns() + group - phase).div_ceil(group) * group + phase - group)
    }

    /// A number below 256 that another process or path is unlikely to have: those that fell silent together are not asked together.
    fn spread(&self, peer: PeerId, index: usize) -> u32 {
        let own = u32::from_le_bytes(self.token.0[..4].try_into().expect("four bytes"));
        let path = peer.0 << 4 | index as u32;
        (own ^ path).wrapping_mul(0x9e37_79b9) >> 24
    }

    /// Posted receives are to be looked through from now on.
    fn look_again(&mut self) {
        if self.probes.look_at.is_none() {
            self.probes.look_at = Some(self.clock.now() + self.options.idle_probe);
            self.plan_errands();
        }
    }

    /// When that is due.
    pub(crate) fn look_at(&self) -> Option<Time> {
        self.probes.look_at
    }

    /// Looks for whom somebody waits: their turn comes as of old.
    pub(crate) fn look_for_awaited(&mut self) {
        let now = self.clock.now();
        if self.probes.look_at.is_none_or(|at| at > now) {
            return;
        }
        let mut awaited: Vec<PeerId> = Vec::new();
        for peer in self.endpoints.awaited() {
            // many are from one, one after the other
            if awaited.last() != Some(&peer) {
                awaited.push(peer);
            }
        }
        awaited.sort_unstable();
        awaited.dedup();
        let before = std::mem::take(&mut self.probes.awaited);
        for q in awaited.iter().filter(|q| before.binary_search(q).is_err()) {
            self.schedule(*q, now);
        }
        self.probes.awaited = awaited;
        let long = self.probes.wished || self.interval_of_budget() > self.options.idle_probe;
        self.probes.look_at = long.then(|| now + self.options.idle_probe);
        if !long {
            self.probes.awaited = Vec::new();
        }
    }

    /// A peer is about to be gone: its paths are asked no more.
    pub(crate) fn leaves(&mut self, peer: PeerId) {
        let p = &self.peers[peer];
        for path in &p.paths {
            self.probes.count(p.gone(), path.health().connected(), false);
        }
    }

    /// Checks the invariant.
    pub(crate) fn check_probes(&self) {
        let paths = self.peers.iter().filter(|p| p.gone().is_none()).flat_map(|p| &p.paths);
        let connected = paths.filter(|path| path.health().connected()).count();
        assert_eq!(connected, self.probes.connected, "connected paths are counted");
    }
}
