//! The libfabric provider `rerail` (`librerail-fi.so`): messages, and access to the memory of peers, over every network
//! interface at once.
//!
//! libfabric finds the library in `FI_PROVIDER_PATH`, calls [`fi_prov_ini`](load::fi_prov_ini), and from then on everything
//! goes through tables of functions: one file here for each libfabric object. Where an object's calls need others that keep it, the
//! calls are a file of their own above (`ops.rs`). The provider translates; the engine (`rerail-core`) behind the runtime
//! (`rerail-runtime`) does the work.
//!
//! # What every entry keeps to
//!
//! * **No panic crosses the C ABI.** Each entry runs inside [`object::guard`]: a panic is a bug, what it leaves behind is
//!   unknown, and going on could break a promise about the user's memory, so the process is aborted with one sentence that
//!   says where. Only `fi_prov_ini` and `fi_getinfo`, which touch nothing yet, answer with an error instead.
//! * **Handles are checked.** Every object begins with libfabric's `struct fid`; a null handle or one of another class is
//!   -FI_EINVAL.
//! * **Every pointer in every table is set**, because the inline functions of libfabric's headers call without looking.
//! * **Thread-safe inside**, whatever threading model was asked for; calls that libfabric wants serialised (bind, enable,
//!   close) may rely on it.
//!
//! # Life of the runtime
//!
//! `fi_getinfo` looks at the interfaces and starts nothing. The runtime, with its sockets and its thread, starts when the
//! first endpoint is enabled, is shared by all endpoints of the process (hazard H18), and ends when the last one is closed.
//! Completion queues, address vectors and memory regions therefore hold no engine state of their own: an endpoint attaches them
//! when it is enabled ([`cq`], [`av`], [`regions`]).

mod atomic;
mod av;
mod av_set;
mod caps;
mod cntr;
mod collective;
mod cq;
mod deadline;
mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
mod ffi;
mod info;
mod limits;
mod load;
mod log;
mod mc;
mod mr;
mod msg;
mod names;
mod object;
mod params;
mod pieces;
mod pollset;
mod provider;
mod refused;
mod regions;
mod rma;
mod signal;
mod tagged;
mod transfer;
mod wait;
mod waitset;
mod world;

/// What [`signal`] needs of the standard library; `tests/models.rs` has loom's in its place.
mod sync {
    pub use std::sync::atomic::{AtomicBool, Ordering};
}
