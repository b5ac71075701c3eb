//! Query interval of idle paths: a bounded number of queries a second, however many peers there are.
//!
//! A path on which nothing arrives for [`Options::idle_probe`](crate::Options) is queried, so that a fault is found
//! before traffic needs the path. With thousands of peers that would be a flood. So the interval grows with the number
//! of connected paths: the queries on all of them together stay within [`Options::probe_budget`](crate::Options) a
//! second. Answers cost as much as queries, and a process with few peers may be one of thousands for each of them. So
//! answers carry the interval of their sender, and the longer of both counts.
//!
//! *A peer that is waited for is queried at the usual interval*: one with an operation under way, and the source of a
//! posted receive that no other peer can match. The first is known here at every timer of a peer. The second is not
//! recorded when the receive is posted, because most receives are matched at once; instead, all posted receives are
//! searched once in a usual interval.
//!
//! Long intervals are spread: each process and path has a factor of its own (1 to 1.5), and due queries go out one
//! after the other in groups, [`GROUP`] apart. A path that breaks is queried at once, and a broken path is retried as
//! usual; other files do that.
//!
//! Owns: the interval, the order of the queries, which peers are waited for. Invariants: `connected` is the number of
//! connected paths; above the usual interval, the queries on idle paths are within the budget. Source: RFC 6298 and the
//! like have nothing on this; gossip protocols (SWIM) bound the load of a process in the same way, by a constant number
//! of probes in a period.

use super::Engine;
use crate::peer::{Gone, Peer};
use crate::types::*;
use std::time::Duration;

/// Due queries go out together at multiples of this, so that a process with many idle peers seldom wakes up for them.
const GROUP: Duration = Duration::from_millis(100);
/// Unit of the intervals in answers, so that 16 bits reach eleven minutes.
const WISH_UNIT: Duration = Duration::from_millis(10);

/// What is known of all idle paths together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes {
    /// Connected paths.
    connected: usize,
    /// The next query of a long interval goes out no earlier.
    next: Time,
    /// Peers that a posted receive waits for, in order.
    awaited: Vec<PeerId>,
    /// When posted receives are searched again; `None`: every interval is the usual one.
    look_at: Option<Time>,
    /// Some peer has requested a longer interval.
    wished: bool,
}

impl Probes {
    /// Counts a path that was connected (`was`) and now is (`is`), or not; paths to a peer that is `gone` do not count.
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

    /// That interval as answers carry it; 0: the usual one.
    pub(crate) fn wish(&self) -> u16 {
        let i = self.interval_of_budget();
        if i > self.options.idle_probe {
            u16::try_from(i.as_nanos() / WISH_UNIT.as_nanos()).unwrap_or(u16::MAX)
        } else {
            0
        }
    }

    /// The peer's engine answered, and requested this query interval.
    pub(crate) fn wishes(&mut self, peer: PeerId, wish: u16) {
        self.peers[peer].questions.wishes(wish);
        self.probes.wished |= WISH_UNIT * u32::from(wish) > self.options.idle_probe;
    }

    /// The query interval of idle paths to a peer.
    fn interval(&self, p: &Peer) -> Duration {
        let own = self.interval_of_budget();
        if self.remedies.probes_are_bounded() {
            own.max(WISH_UNIT * u32::from(p.questions.wish()))
        } else {
            own
        }
    }

    /// Whether an operation or a posted receive waits for the peer.
    fn is_waited_for(&self, p: &Peer) -> bool {
        let waits = p.has_business() || self.probes.awaited.binary_search(&p.id()).is_ok();
        waits && self.remedies.awaited_are_asked()
    }

    /// When a connected path, on which datagrams work, is queried if nothing arrives on it. A path that has to wait for
    /// others gets its place.
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
            // a path that has a place keeps it; one that just fell silent is looked at once, to tidy up
            return if heard + usual > now { heard + usual } else { due.max(placed) };
        }
        let place = self.place();
        self.peers[peer].paths[index].probe_at(place);
        place
    }

    /// Until when queries that can wait are postponed on a path, if it is idle and its interval long.
    pub(crate) fn left_alone_until(&self, peer: PeerId, index: usize) -> Option<Time> {
        let p = &self.peers[peer];
        let interval = self.interval(p);
        let long = interval > self.options.idle_probe && !self.is_waited_for(p);
        (long && self.is_left_alone(peer, index)).then(|| self.clock.now() + interval)
    }

    /// Whether a path is idle: nothing has arrived for the usual interval, and no query is open.
    pub(crate) fn is_left_alone(&self, peer: PeerId, index: usize) -> bool {
        let path = &self.peers[peer].paths[index];
        let heard = path.evidence.heard_at().unwrap_or(path.since());
        path.evidence.is_answered() && self.clock.now().since(heard) >= self.options.idle_probe
    }

    /// When the next query on an idle path may go out.
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

    /// A number below 256 that another process or path is unlikely to have: paths that fell silent together are not
    /// queried together.
    fn spread(&self, peer: PeerId, index: usize) -> u32 {
        let own = u32::from_le_bytes(self.token.0[..4].try_into().expect("four bytes"));
        let path = peer.0 << 4 | index as u32;
        (own ^ path).wrapping_mul(0x9e37_79b9) >> 24
    }

    /// Posted receives are searched from now on.
    fn look_again(&mut self) {
        if self.probes.look_at.is_none() {
            self.probes.look_at = Some(self.clock.now() + self.options.idle_probe);
            self.plan_errands();
        }
    }

    /// When the next search is due.
    pub(crate) fn look_at(&self) -> Option<Time> {
        self.probes.look_at
    }

    /// Finds the peers that posted receives wait for: they are queried at the usual interval.
    pub(crate) fn look_for_awaited(&mut self) {
        let now = self.clock.now();
        if self.probes.look_at.is_none_or(|at| at > now) {
            return;
        }
        let mut awaited: Vec<PeerId> = Vec::new();
        for peer in self.endpoints.awaited() {
            // many receives from one peer follow each other
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

    /// A peer is about to be gone: its paths do not count any more.
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
