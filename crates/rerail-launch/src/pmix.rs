//! A PMIx server for the ranks of a host, as programs of Open MPI 5 need one. It is Open MPI's own libpmix, in a process of its own beside the agent.
//!
//! Why not in the agent: the library starts threads, installs handlers and prints as it likes, and a fault in it would take the ranks' parent
//! along. So the agent starts `rerail launch-pmix`, exchanges messages with it over a socket pair ([`message`]), and its end is one sentence.
//!
//! Why Open MPI's own library: client and server of different releases may misunderstand each other, and the ranks use that one.
//!
//! What the servers of several hosts have to exchange (fences, and what one rank wants of another one's server) goes through agents and
//! launcher ([`crate::exchange`]). Served: init, finalize, abort, put, get, fence, groups. Not served, and
//! an error at once: spawn, connect, publish, events.

use std::path::Path;

mod attributes;
mod group;
mod host;
mod library;
pub mod message;
pub mod server;
pub mod serving;

/// Whether a library of PMIx is below a directory of this host.
pub fn is_below(directory: &Path) -> bool {
    rerail_pmix::library::places([directory.to_path_buf()]).iter().any(|file| file.is_file())
}
