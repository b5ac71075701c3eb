//! Evidence from one silent path about its rail: which other paths are queried, and which path small messages take
//! meanwhile.
//!
//! A path is taken out of service only on evidence from its own peer (`query`). But a rail breaks for all peers at
//! once, and a process that found this out with each peer in turn would stand still once for each. So a *sign*, a query
//! that this path has not answered and another has, has consequences long before it is old enough for a suspicion. None
//! of them is a verdict:
//!
//! * *Sweep.* The other peers' paths over the same local rail are queried, each with a path of the same peer over
//!   another rail as its witness: few at first, those with operations under way, then those used last. If most of them
//!   answer, the rail is not at fault, and the sweep stops.
//! * *Steering.* Small messages go over another path until this one answers.
//! * *Query back.* A process that is queried on one path, and not on one beside it, queries that one at once, not only
//!   when it has something to send there.
//!
//! Owns: the sweeps. Invariants: at most one sweep of a rail, [`BATCH`] peers at a time, none within [`SWEEPS_APART`]
//! of the last; these queries are judged like all others. The alternative, to take the paths of a rail down together,
//! was rejected: the fault may be at the far end, in the switch between, or a queue that is full for some destinations.

use super::Engine;
use crate::health::Health;
use crate::path::Path;
use crate::peer::Peer;
use crate::types::*;
use std::cmp::Reverse;
use std::time::Duration;

/// A query that another path has answered is a sign against this one after this long. A fifth of what makes it suspect:
/// a wrong sign costs some queries, and a detour of small messages.
pub(crate) const SIGN_PATIENCE: Duration = ms(2);
/// Peers in the first batch of a sweep, and in the largest; each batch has twice as many as the one before.
const BATCH: (usize, usize) = (8, 64);
/// Least time between the starts of two sweeps of a rail: with a fault at the far end, signs may come from many peers.
const SWEEPS_APART: Duration = ms(100);
/// A process that is queried on one path queries the silent one beside it at most this often.
const ASKED_BESIDE_APART: Duration = ms(10);
/// Queries that are closer to each other are of one series.
const SERIES: Duration = ms(15);

/// The queries to all peers over one of our rails.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sweep {
    begun: Option<Time>,
    /// When the next batch is sent; `None`: there is no sweep.
    at: Option<Time>,
    /// Peers still to be queried, the next one last.
    waiting: Vec<PeerId>,
    /// Peers of the last batch.
    asked: Vec<PeerId>,
    batch: usize,
}

impl Peer {
    /// When data or acknowledgements last came from it, on any path.
    fn used_at(&self) -> Time {
        let newest = self.paths.iter().flat_map(|path| path.lanes().map(|(_, l)| l.acks().newest_at())).max();
        newest.unwrap_or(Time::ORIGIN)
    }

    /// When the first answer arrived on another path than `index` to a query of that time or later.
    pub fn answered_beside(&self, index: usize, asked: Time) -> Option<Time> {
        let answer = |o: &Path| o.evidence.answer_since(asked);
        let others = self.paths.iter().enumerate().filter(|(i, o)| *i != index && o.health().connected());
        others.filter_map(|(_, o)| answer(o)).min()
    }
}

/// Whether a path can be queried in a sweep, or be a witness.
fn answers(path: &Path) -> bool {
    matches!(path.health(), Health::Up | Health::Standby) && path.datagrams.work()
}

impl Engine {
    /// Checks for a sign against a path in service, and schedules the next check for when there may be one.
    pub(crate) fn look_for_sign(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let path = &p.paths[index];
        let Some(asked) = path.evidence.open_since().filter(|_| !path.evidence.is_doubted()) else { return };
        let patience = self.answer_patience(path, SIGN_PATIENCE);
        if self.unanswered(peer, index, patience) > 0 {
            return self.sign_against(peer, index);
        }
        let Some(came) = p.answered_beside(index, asked) else { return };
        let (at, again) = (came + patience, now + path.lane.rtt().expected().max(ms(1)));
        if at > now {
            self.schedule(peer, at);
        } else if now.since(came) < 4 * patience {
            // the witness has not answered a query from the end of the round trip yet
            self.schedule(peer, again);
        }
    }

    /// A query on this path has no answer, and one on another path has: no verdict, and no suspicion yet.
    fn sign_against(&mut self, peer: PeerId, index: usize) {
        let path = &mut self.peers[peer].paths[index];
        path.evidence.doubt();
        let (rail, asked) = (path.rail(), path.evidence.open_since());
        if self.remedies.doubted_paths_are_avoided() {
            self.choose_primary(peer);
        }
        // if another path over the same rail has answered, the rail is not at fault
        let answered = |o: &Path| o.rail() == rail && o.evidence.answered_sent_at() >= asked;
        if self.remedies.rails_are_swept() && !self.peers[peer].paths.iter().any(answered) {
            self.begin_sweep(peer, rail);
        }
    }

    /// Whether small messages should go over another path if there is one.
    pub(crate) fn avoids(&self, path: &Path) -> bool {
        path.evidence.is_doubted()
            && !path.evidence.is_answered()
            && self.remedies.doubted_paths_are_avoided()
    }

    fn begin_sweep(&mut self, peer: PeerId, rail: RailId) {
        let now = self.clock.now();
        let s = &self.sweeps[usize::from(rail.0)];
        if s.at.is_some() || s.begun.is_some_and(|t| now.since(t) < SWEEPS_APART) {
            return;
        }
        let others = self.peers.iter().filter(|q| q.id() != peer);
        let mut waiting: Vec<(bool, Time, Reverse<PeerId>)> = others
            .filter(|q| self.to_be_swept(q, rail).is_some())
            .map(|q| (q.has_business(), q.used_at(), Reverse(q.id())))
            .collect();
        waiting.sort_unstable();
        let waiting = waiting.into_iter().map(|w| w.2.0).collect();
        self.sweeps[usize::from(rail.0)] = Sweep { begun: Some(now), waiting, ..Sweep::default() };
        self.sweep(rail);
    }

    /// The path of a peer over this rail that has no open query, and its witness. Traffic to our own host does not
    /// leave it.
    fn to_be_swept(&self, q: &Peer, rail: RailId) -> Option<(usize, usize)> {
        if q.is_self() || q.gone().is_some() {
            return None;
        }
        let near = |path: &Path| self.rails.has_place(&path.remote());
        let asked =
            |path: &Path| path.rail() == rail && answers(path) && path.evidence.is_answered() && !near(path);
        let index = q.paths.iter().position(asked)?;
        let fit = |o: &Path| o.rail() != rail && answers(o);
        // one of the same port would be silent too
        let apart = |o: &Path| fit(o) && !self.shares_port(q, o, &q.paths[index]);
        let witness = q.paths.iter().position(apart).or_else(|| q.paths.iter().position(fit))?;
        Some((index, witness))
    }

    /// Evaluates the last batch of queries over a rail, and sends the next.
    fn sweep(&mut self, rail: RailId) {
        let now = self.clock.now();
        let mut s = std::mem::take(&mut self.sweeps[usize::from(rail.0)]);
        let answered = |path: &Path| path.rail() == rail && answers(path) && path.evidence.is_answered();
        let heard = s.asked.iter().filter(|q| self.peers[**q].paths.iter().any(answered)).count();
        if 2 * heard > s.asked.len() {
            // most of them answer: our rail is not at fault
            s.waiting.clear();
        }
        s.asked.clear();
        s.batch = (2 * s.batch).clamp(BATCH.0, BATCH.1);
        let mut patience = SIGN_PATIENCE;
        while s.asked.len() < s.batch {
            let Some(other) = s.waiting.pop() else { break };
            if let Some((index, witness)) = self.to_be_swept(&self.peers[other], rail) {
                self.press(other, index, witness);
                patience = patience.max(self.peers[other].paths[index].lane.rtt().patience(SIGN_PATIENCE));
                s.asked.push(other);
            }
        }
        s.at = (!s.waiting.is_empty()).then_some(now + patience);
        if s.at.is_none() {
            (s.waiting, s.asked) = Default::default();
        }
        self.sweeps[usize::from(rail.0)] = s;
        self.plan_errands();
    }

    /// Queries a path and its witness, and repeats an unanswered query soon.
    fn press(&mut self, peer: PeerId, index: usize, witness: usize) {
        // in their order, as always when all are queried: see `asked_beside`
        self.ping(peer, index.min(witness));
        self.ping(peer, index.max(witness));
        self.peers[peer].paths[index].evidence.press();
        let now = self.clock.now();
        self.schedule(peer, now + SIGN_PATIENCE);
    }

    /// Continues the sweeps that are due.
    pub(crate) fn sweep_rails(&mut self) {
        let now = self.clock.now();
        let away = self.absent_until.filter(|t| now < *t);
        for r in 0..self.sweeps.len() {
            if self.sweeps[r].at.is_none_or(|at| at > now) {
                continue;
            }
            match away {
                // first what arrived meanwhile is drained (hazard H12)
                Some(until) => self.sweeps[r].at = Some(until),
                None => self.sweep(RailId(r as u8)),
            }
        }
    }

    /// Checks the invariant.
    pub(crate) fn check_sweeps(&self) {
        assert!(
            self.sweeps.iter().all(|s| s.asked.len() <= BATCH.1),
            "a sweep asks a bounded number at a time"
        );
    }

    /// When the next batch of a sweep is due.
    pub(crate) fn sweep_at(&self) -> Option<Time> {
        self.sweeps.iter().filter_map(|s| s.at).min()
    }

    /// The peer's query `id` arrived on path `index`, where the one before was `before`. A peer that looks for a fault
    /// queries all paths, with growing numbers. If numbers are missing here within one series of queries, and nothing
    /// arrived on a path beside this one since before it began, that path may be dark, and what is sent there next
    /// would be lost.
    #[cold]
    pub(crate) fn asked_beside(&mut self, peer: PeerId, index: usize, before: Option<u64>, id: u64) {
        let now = self.clock.now();
        let p = &self.peers[peer];
        let (Some(before), Some(heard)) = (before, p.paths[index].evidence.heard_at()) else { return };
        let series = id - before > 1 && now.since(heard) < SERIES && p.gone().is_none();
        if !series || !self.remedies.askers_are_asked() || !answers(&p.paths[index]) {
            return;
        }
        let quiet = |path: &Path| {
            answers(path)
                && path.evidence.is_answered()
                && path.heard_query().is_some_and(|a| a < before)
                && path.evidence.heard_at().is_none_or(|t| t + SIGN_PATIENCE < heard)
                && path.evidence.answered_sent_at().is_none_or(|t| now.since(t) >= ASKED_BESIDE_APART)
        };
        if let Some(silent) = (0..p.paths.len()).find(|&i| i != index && quiet(&p.paths[i])) {
            self.press(peer, silent, index);
        }
    }
}
