//! Nodes on this machine, joined by rails that can be cut, healed and shaped. A node is a network namespace, or a
//! [guest] that stands in one.
//!
//! A lab is a tree of processes in a PID namespace of its own. The *supervisor* is its first process, so the
//! kernel itself ends everything inside when the supervisor goes; network, mount, host-name and IPC namespaces
//! are anonymous, held by those processes alone; the control socket is an abstract one; files of the lab live on
//! a tmpfs of the private mount namespace. Hence nothing can be left behind, not even after SIGKILL. Named
//! namespaces (`ip netns add`) with clean-up code were rejected: a killed lab would leave them.
//!
//! ```text
//! session (the user's terminal, host namespaces)
//!  └─ supervisor: PID 1, the switch's network namespace, schedule, control socket
//!      ├─ node holder n0: network, mount, UTS, IPC namespace
//!      ├─ node holder n1
//!      ├─ for each switch of a fabric: its holder, with a network namespace only
//!      ├─ for each rail that is a wire: the process that carries its frames
//!      └─ the program (mpiexec in n0, or one process in each node)
//! ```

pub mod control;
pub mod cut;
mod enter;
mod error;
mod event;
pub mod fabric;
pub mod guest;
mod holder;
pub mod launch;
pub mod link;
pub mod mpi;
mod names;
mod network;
mod node;
pub mod rate;
pub mod rdma;
pub mod schedule;
pub mod session;
mod supervisor;
mod switches;
mod sys;
mod tool;
pub mod topology;
pub mod wire;

pub use enter::{enter_as_ssh, enter_guest, exec_in_lab};
pub use error::LabError;
pub use tool::find_program;

/// Where the lab's own files are seen inside a lab (on a tmpfs that is invisible outside).
pub const RUN_DIR: &str = "/dev/shm/rerail-lab";

/// The exit code of `rerail lab` when the lab itself failed, as against the program in it.
pub const EXIT_LAB_FAILED: i32 = 125;
