//! Whether the streams are worth a look in every piece of progress: which peers and streams make them so.
//!
//! A poll of the streams is a system call, and a small message must not pay for it. Nor may it pay for looking at all peers: a process
//! with thousands of idle ones keeps lists of the few that are busy (`peers`, `streams`), which are pruned when they are read.

use super::Engine;

impl Engine {
    /// Whether bulk is expected to arrive or is under way, so that streams are worth polling at once. Takes as long as
    /// there are peers and streams that were busy at the last call, or became so since.
    pub fn expects_streams(&mut self) -> bool {
        // both lists are pruned
        let peers = self.peers.any_bulk();
        self.streams.any_busy() || peers
    }
}
