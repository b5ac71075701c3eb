//! When memory is given back that is kept for nothing: by a silent peer, and by what belongs to no peer.

use crate::engine::Engine;
use crate::types::PeerId;
use std::time::Duration;

/// Between two times of tidying up what belongs to no peer.
const TIDY: Duration = Duration::from_secs(1);

impl Engine {
    /// Gives back what a silent peer, its paths and their streams hold for nothing.
    pub(crate) fn rest(&mut self, peer: PeerId) {
        let p = &mut self.peers[peer];
        p.rest();
        for id in p.paths.iter().flat_map(|path| path.streams()) {
            if let Some(s) = self.streams.get_mut(id) {
                s.rest();
            }
        }
        self.tidy();
    }

    /// Gives back what is kept for nothing, and belongs to no peer: with thousands of them everything comes in bursts.
    fn tidy(&mut self) {
        let now = self.clock.now();
        if now.since(self.tidied_at) < TIDY {
            return;
        }
        self.tidied_at = now;
        self.output.tidy();
        self.endpoints.tidy();
        self.queues.tidy();
        self.spare_buffers.tidy();
        self.copies.tidy();
        self.scratch = Vec::new();
    }
}
