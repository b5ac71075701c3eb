//! Whether the streams are worth a look in every piece of progress. Owns: the peers and streams because of which they may be.
//!
//! A poll of the streams is a system call, and a small message must not pay for it. Nor may it pay for looking at all peers: a process
//! with thousands of idle ones keeps a list of the few that are busy, which is pruned when it is read. Invariant: who is busy is listed
//! (`Engine::check`).

use crate::engine::Engine;
use crate::peer::Peer;
use crate::stream::{Phase, Stream};
use crate::types::*;

impl Peer {
    /// Bulk of it is expected to arrive, or waits to go out.
    pub fn has_bulk(&self) -> bool {
        self.receiving > 0 || !self.bulk.is_at_rest() || !self.eager_bulk.is_at_rest()
    }
}

impl Stream {
    /// Something is expected of it: room, acknowledgements, or the end of its beginning or of its end.
    pub fn is_busy(&self) -> bool {
        self.tx_full || self.waits() || self.phase != Phase::Attached
    }
}

impl Engine {
    /// The peer has bulk now, one way or the other.
    pub(crate) fn expect_bulk(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        if !p.listed {
            p.listed = true;
            self.busy_peers.push(p.id);
        }
    }

    /// The stream is busy now.
    pub(crate) fn expect_stream(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get_mut(&stream).filter(|s| !s.listed) {
            s.listed = true;
            self.busy_streams.push(stream);
        }
    }

    /// Whether bulk is expected to arrive or is under way, so that streams are worth polling at once. Takes as long as there are peers and
    /// streams that were busy when it was last asked, or became so since.
    pub fn expects_streams(&mut self) -> bool {
        let peers = &mut self.peers;
        self.busy_peers.retain(|id| {
            let p = &mut peers[id.0 as usize];
            p.listed = p.has_bulk();
            p.listed
        });
        let streams = &mut self.streams;
        self.busy_streams.retain(|id| {
            streams.get_mut(id).is_some_and(|s| {
                s.listed = s.is_busy();
                s.listed
            })
        });
        !self.busy_peers.is_empty() || !self.busy_streams.is_empty()
    }

    /// Checks the invariant.
    pub(crate) fn check_busy(&self) {
        assert!(self.peers.iter().all(|p| p.listed || !p.has_bulk()), "a peer with bulk is listed");
        assert!(self.streams.values().all(|s| s.listed || !s.is_busy()), "a busy stream is listed");
    }
}
