//! Starts the ranks of a job on its hosts, and serves them PMI.
//!
//! One process, the launcher, starts one *agent* on each host through a remote shell (`rerail launch`, RWAPI §3: an SSH-based spawner and a master
//! process). The agent is the parent of its host's ranks: it gives each a socket pair for PMI and pipes for its standard streams, and is joined to
//! the launcher by a TCP connection of its own, which is made again when it breaks. The remote shell carries the agent's key on its standard
//! input, and nothing else.
//!
//! What is here without system calls: [`hosts`] (which ranks run where), [`pmi`] (what ranks request), [`session`] (messages that
//! outlive their connection), [`proof`] (both ends of a connection prove that they know the job's secret, and seal what they send),
//! [`message`] (messages between launcher and agents), [`exchange`] (what the PMIx servers of hosts exchange). What does: [`link`] (connections),
//! [`rank`] (processes), [`pmix`] (a server for programs of Open MPI), [`guard`] and [`namespace`] (what kills the rest of a host's ranks), [`agent`],
//! [`launcher`].
//!
//! Differs from the paper: processes there have one socket to the master each, and end with it.

#![warn(missing_docs)]

pub mod agent;
pub mod exchange;
pub mod guard;
pub mod hosts;
pub mod launcher;
pub mod link;
pub mod message;
pub mod namespace;
pub mod pmi;
pub mod pmix;
pub mod proof;
pub mod rank;
pub mod session;
