//! RWAPI, the remote-write interface, over the engine: what its ten calls do, without I/O, threads or a clock.
//!
//! [`Node`] is one process of a job. Its owner hands it the engine with each call, and calls [`Node::advance`] after each piece of
//! progress: the library `rwapi` with a runtime, the simulator with a world in virtual time.
//!
//! | file | owns |
//! |---|---|
//! | `node.rs` | what the calls do, what completions mean, which nodes are gone |
//! | `net.rs` | the layout of network addresses |
//! | `blocks.rs` | the memory that others may write |
//! | `sids.rs` | writes under way, and those that failed |
//! | `inbox.rs` | small messages that have arrived; windows |
//! | `barrier.rs` | barriers over the nodes that live |
//! | `word.rs` | the kinds of messages |
//!
//! Source: O. Ben Fredj, E. Renault, "Performance Evaluation of Distributed Computing over Heterogeneous Networks" ("the RWAPI paper"),
//! sections 2 and 3. What it leaves open is decided here:
//!
//! * **A small message arrives after the bytes of all writes that its sender made to the same node before it.** The sender says how many
//!   operations came before; the engine carries operations out in their order, and [`rerail_core::Engine::awaits_write`] says which large ones
//!   are not in place.
//! * **A receiver that does not look slows its senders down** (`inbox.rs`): nothing is lost, and nothing grows.
//! * **The death of a node is reported to all.** Each node watches those at the distances 1, 2, 4, …; what one of them notices, it
//!   passes on. A node that can only not be reached is not reported to others: they may reach it.

#![warn(missing_docs)]

mod barrier;
mod blocks;
mod inbox;
mod net;
mod node;
mod sids;
mod word;

pub use blocks::Unused;
pub use inbox::{Small, WINDOW};
pub use net::{NODES_MAX, Net};
pub use node::{Left, Node, Port, Received, Refused};
pub use sids::{FAILURES_MAX, Sid};
pub use word::SMALL_BYTES;
#[cfg(feature = "hostile")]
pub use word::{Kind, word};

/// For the engine's option `silent_probe_max`. A node that dies before others have a stream to it leaves nothing but refused connections
/// as evidence: eight, within the three seconds of `FI_RERAIL_REFUSED_TIMEOUT`. With the usual half a second between them the eighth comes
/// late.
pub const SILENT_PROBE_MAX: std::time::Duration = std::time::Duration::from_millis(375);

/// Why a write failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The target has no such block, or the range leaves it: no byte was touched.
    Refused,
    /// The target is gone: some bytes may be in place.
    Gone,
}
