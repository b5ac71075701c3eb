//! RWAPI: the smallest set of functions with which parallel programs can be written, over every network interface at once.
//!
//! A program runs as several processes, the *nodes*. Each gives blocks of memory, which the others may write, and names them by network
//! addresses ([`Net`]). Small messages of 16 bytes bring addresses, and the news that something was written: **a small message arrives after
//! the bytes of all writes that its sender made to the same node before it.**
//!
//! ```no_run
//! # fn main() -> Result<(), rwapi::Error> {
//! let job = rwapi::Job::init()?;
//! let block = job.alloc(1 << 20)?;
//! let next = (job.rank() + 1) % job.size();
//! // every node sends the address of its block to the one before it
//! let mut small = [0; 16];
//! small[..8].copy_from_slice(&block.net().0.to_le_bytes());
//! job.send_when_possible((job.rank() + job.size() - 1) % job.size(), &small)?;
//! let (_, small) = job.next_message()?;
//! let there = rwapi::Net(u64::from_le_bytes(small[..8].try_into().unwrap()));
//! block.write_at(0, b"hello");
//! let sid = job.when_possible(|| job.write(next, block.net(), there, 5))?;
//! job.wait_sent(sid)?;
//! job.finalize()
//! # }
//! ```
//!
//! Whole programs are in `examples/`: `ring`, `heat`, `workqueue`.
//!
//! Programs start under `rerail launch`, `mpiexec` of MPICH and Intel MPI, Open MPI's `mpirun`, `srun --mpi=pmi2`, or alone. The same
//! library has a C interface, `rwapi.h`; calls and semantics are in `docs/rwapi.md`.
//!
//! | file | owns |
//! |---|---|
//! | `job.rs` | the process's part of a job: runtime, node, calls |
//! | `block.rs` | memory that others may write |
//! | `error.rs` | why calls do nothing, and their errno |
//! | `capi.rs` | the C interface |
//!
//! Source: the RWAPI paper, sections 2 and 3 (see `rerail-rwapi`).

#![warn(missing_docs)]

mod block;
mod capi;
mod error;
mod job;

pub use block::Block;
pub use error::Error;
pub use job::Job;
pub use rerail_rwapi::{NODES_MAX, Net, Received, Refused, SMALL_BYTES, Sid, Small, WINDOW};
