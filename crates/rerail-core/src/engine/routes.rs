//! Streams on a dead route: the path answers, and the kernel at the other end acknowledges nothing of one of its connections. The next connection has
//! another source port, so a fabric leads it over another route (Protective ReRoute, SIGCOMM 2023). No verdict on the path follows from it.
//!
//! What the kernel's reports show is `stream/route`; which connection replaces it, and when, `handshake`.

use super::Engine;
use crate::event::Witness;
use crate::stream::Stream;
use crate::stream::route::Sight;
use crate::types::{Action, FarKernel, PeerId, StreamId};
use smallvec::SmallVec;

/// So many connections of a lane in a row may be given up for their route alone. Whatever stops all of them is no route: `local_timeout` counts then.
const MOVES_MAX: u32 = 8;

impl Engine {
    /// Requests the kernel's report on those streams of a path that wait, although a query was answered that was sent later than anything on
    /// them was acknowledged.
    pub(crate) fn look_at_routes(&mut self, peer: PeerId, index: usize) {
        let now = self.clock.now();
        let path = &self.peers[peer].paths[index];
        let Some(answered) = path.evidence.answered_sent_at() else { return };
        let stands = |s: &Stream| s.waits() && s.progress() < answered;
        let mut due: SmallVec<[StreamId; 4]> = SmallVec::new();
        for (_, lane) in path.lanes() {
            let Some(sid) = lane.stream() else { continue };
            let waits = self.streams.get(sid).is_some_and(|s| stands(s) && s.route().is_looked_at(now));
            if waits && lane.connection().fruitless() < MOVES_MAX && !self.is_placing(sid) {
                due.push(sid);
            }
        }
        for stream in due {
            self.output.act(Action::InspectStream { stream });
        }
    }

    /// The kernel's report on a stream.
    pub(crate) fn weigh_route(&mut self, sid: StreamId, told: &FarKernel) {
        let now = self.clock.now();
        let Some(s) = self.streams.get_mut(sid) else { return };
        let Some((peer, path)) = s.peer() else { return };
        if !s.waits() {
            return s.route_mut().is_cleared();
        }
        let sight = s.route_mut().report(told, now);
        match sight {
            Sight::Carries(at) | Sight::Doubtful(at) => self.schedule(peer, at),
            Sight::Silent(since) => {
                let Some(index) = self.peers[peer].path_index(path) else { return };
                let answered = self.peers[peer].paths[index].evidence.answered_sent_at();
                if answered.is_some_and(|t| t > since) {
                    self.fail_stream(sid, Witness::Route, true);
                }
            }
        }
    }
}
