//! Datagrams of a path on a dead route: they are led over another, on either side, before the path is suspected.
//!
//! Which step comes when is `path/detour`. No verdict follows from a step, and none is put off by one: `query` judges as ever.

use super::Engine;
use crate::event::EventKind;
use crate::path::Path;
use crate::path::detour::{Limits, Step};
use crate::types::{Action, PeerId, Time, ms};
use std::time::Duration;

/// An answer that takes longer may be lost, when something else has come from the peer since.
const ROUTE_PATIENCE: Duration = ms(4);
/// The same when nothing has: the peer may be busy.
const SILENT_PATIENCE: Duration = ms(8);

/// A path that waits for an idle moment looks so often.
const IDLE_EVERY: Duration = ms(400);

impl Engine {
    /// What bounds the steps of a path, on which an answer takes at least so long. `None`: there is one route only, or this process was away, and
    /// what arrived meanwhile is drained first (hazard H12). What others took meanwhile does not count: a wrong step is undone by the answer itself.
    fn route_limits(&self, path: &Path, least: Duration) -> Option<Limits> {
        let routes = self.rails[path.rail()].routes_max;
        let away = self.absent_until.is_some_and(|t| self.clock.now() < t);
        (routes > 1 && !away).then(|| Limits::new(path.lane.rtt().timeout(least), routes))
    }

    /// Leads datagrams of those paths over another route that do not answer. Returns when the next step is due.
    pub(crate) fn detour_timer(&mut self, peer: PeerId) -> Time {
        let now = self.clock.now();
        let mut next = Time::NEVER;
        if !self.options.protection {
            return next;
        }
        for index in 0..self.peers[peer].paths.len() {
            let path = &self.peers[peer].paths[index];
            if !path.health().connected() {
                continue;
            }
            let asked = path.evidence.open_since();
            let heard_since = asked.is_some_and(|t| self.peers[peer].hearing.at() > t);
            let least = if heard_since { ROUTE_PATIENCE } else { SILENT_PATIENCE };
            let Some(limits) = self.route_limits(path, least) else { continue };
            let Some(asked) = asked else {
                next = next.min(self.tries_home(peer, index));
                continue;
            };
            let heard = path.evidence.datagram_at();
            match self.peers[peer].paths[index].detour.unanswered(asked, limits, heard, now) {
                Step::Wait(at) => next = next.min(at),
                // the next round of queries shows what comes of it: more of them would be more evidence than there is
                Step::Take(route) => self.lead(peer, index, route),
                Step::Report => {}
            }
        }
        next
    }

    /// A path on another route than the usual one tries that now and then: datagrams that go by it are cheaper, and need no sockets of their own. It does
    /// so when it is idle, or where that never comes, at the latest then. Returns when.
    fn tries_home(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        let Some((at, at_the_latest)) = path.detour.home_at() else { return Time::NEVER };
        if now < at {
            return at;
        }
        let is_busy = self.has_under_way(path) || self.peers[peer].has_business();
        if is_busy && now < at_the_latest {
            return at_the_latest.min(now + IDLE_EVERY);
        }
        self.peers[peer].paths[index].detour.tries_home(now);
        self.lead(peer, index, 0);
        Time::NEVER
    }

    /// A hello, or an answer to one, was repeated because it was time: the next goes by another route.
    pub(crate) fn seeks_route(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        let routes = self.rails[path.rail()].routes_max;
        if routes > 1 {
            let route = path.detour.seeks(routes, now);
            self.lead(peer, index, route);
        }
    }

    /// A handshake succeeded. If it sought its route, the usual one is tried first.
    pub(crate) fn finds_route(&mut self, peer: PeerId, index: usize) {
        if self.peers[peer].paths[index].detour.finds() {
            self.lead(peer, index, 0);
        }
    }

    /// Nothing more goes to a peer that is gone: what its datagrams were led by is given back.
    pub(crate) fn leads_no_more(&mut self, peer: PeerId) {
        for index in 0..self.peers[peer].paths.len() {
            if self.peers[peer].paths[index].detour.ends() {
                self.lead(peer, index, 0);
            }
        }
    }

    fn lead(&mut self, peer: PeerId, index: usize, route: u8) {
        let path = &self.peers[peer].paths[index];
        self.counters.detours += 1;
        self.output.act(Action::Lead { rail: path.rail(), to: path.remote(), route });
    }

    /// A query that was sent then is answered by a datagram.
    pub(crate) fn route_answers(&mut self, peer: PeerId, index: usize, sent_at: Time) {
        let now = self.clock.now();
        let (steps, back) = self.peers[peer].paths[index].detour.answered(sent_at, now);
        match back {
            Some(route) => self.lead(peer, index, route),
            None if steps > 0 => self.event(EventKind::DatagramsLed { steps }, peer, Some(index)),
            None => {}
        }
    }

    /// A query reports whether those of the peer are answered.
    pub(crate) fn report_received(&mut self, peer: PeerId, index: usize, unanswered: bool) {
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        if !unanswered {
            return self.peers[peer].paths[index].detour.not_reported();
        }
        let Some(limits) = self.route_limits(path, ROUTE_PATIENCE) else { return };
        if let Some(route) = self.peers[peer].paths[index].detour.reported(limits, now) {
            self.lead(peer, index, route);
            self.event(EventKind::DatagramsLed { steps: 0 }, peer, Some(index));
        }
    }
}
