//! Streams on a dead route: the path answers queries, and the kernel at the other end acknowledges nothing of one of its connections. The next connection has
//! another source port, so a fabric leads it over another route (Protective ReRoute, SIGCOMM 2023). No verdict on the path follows from it.
//!
//! What the kernel's reports show is `stream/route`; which connection replaces it, and when, `handshake`.

use super::Engine;
use crate::event::Witness;
use crate::stream::route::Sight;
use crate::types::{Action, FarKernel, PeerId, StreamId, Time};
use smallvec::SmallVec;

/// So many connections of a lane in a row may be given up for their route alone. Whatever stops all of them is no route: `local_timeout` counts then.
const MOVES_MAX: u32 = 8;

impl Engine {
    /// Requests the kernel's report on those streams of a path that wait for longer than `ack_timeout`. Returns when the next one is due.
    pub(crate) fn look_at_routes(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        let mut next = Time::NEVER;
        let mut due: SmallVec<[StreamId; 4]> = SmallVec::new();
        for (_, lane) in path.lanes() {
            let Some((sid, s)) = lane.stream().and_then(|sid| Some((sid, self.streams.get(sid)?))) else {
                continue;
            };
            if !s.waits() || s.is_placing() || lane.connection().fruitless() >= MOVES_MAX {
                continue;
            }
            let since = s.progress();
            let at = s.route().look_at(since, path.evidence.answered_sent_at());
            let at = at.max(since + self.options.ack_timeout);
            if at <= now {
                due.push(sid);
            } else {
                next = next.min(at);
            }
        }
        for stream in due {
            self.output.act(Action::InspectStream { stream });
        }
        next
    }

    /// The kernel's report on a stream.
    pub(crate) fn weigh_route(&mut self, sid: StreamId, told: &FarKernel) {
        let now = self.clock.now();
        let Some(s) = self.streams.get_mut(sid) else { return };
        let Some((peer, path)) = s.peer() else { return };
        if !s.waits() {
            return s.forget_reports();
        }
        let Some(index) = self.peers[peer].path_index(path) else { return };
        let round_trip = self.peers[peer].paths[index].lane.rtt().expected();
        let stood_since = s.progress();
        let sight = s.route_mut().report(told, round_trip, stood_since, now);
        match sight {
            Sight::Carries(at) | Sight::Doubtful(at) => self.schedule(peer, at),
            Sight::Silent(since) => {
                let evidence = &self.peers[peer].paths[index].evidence;
                if evidence.answered_sent_at().is_some_and(|t| t > since) {
                    self.fail_stream(sid, Witness::Route, true);
                } else if evidence.last_asked().is_none_or(|t| t <= since) {
                    // the answer shows whether it is the path or the route
                    self.ping(peer, index);
                }
            }
        }
    }
}
