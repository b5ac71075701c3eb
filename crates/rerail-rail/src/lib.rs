//! The contract of a rail kind and its channels: the names and values that rails and the engine share, the traits, and the
//! conformance suite that every rail must pass. Names no rail, and uses no other crate of the workspace.
//!
//! A *rail* is one local attachment to a network; a *kind* of rail (IP, shared memory, verbs, …) brings all rails of that
//! kind into the process as one [`Rails`]: a description of each ([`RailDesc`]), one [`DatagramPort`] and one
//! [`StreamPort`] for all of them together, and one [`LinkWatch`]. So an empty poll costs one call, however many rails and
//! peers there are.
//!
//! # Which thread may call what
//!
//! * [`DatagramPort`] takes `&self` from any thread at any time: the service thread must be able to answer queries while
//!   an application thread sits on the engine's lock (hazard H17).
//! * [`StreamPort`] takes `&mut self`: it lives under the engine's lock, because the memory that it reads into and writes
//!   from is the engine's to give and take back.
//! * [`LinkWatch`] takes `&mut self`: one thread at a time drains it, under a lock of its own.
//!
//! Nothing here blocks. To sleep, poll the three file descriptors: each is readable when its owner has something to
//! report. Call [`DatagramPort::before_sleep`] before you sleep on the first two: the kernel reports nothing to a rail
//! over memory, which requests wake-ups only then.
//!
//! # Layers
//!
//! Encryption, planted faults and the shortcut over shared memory are layers over these traits. So no call of a trait has a default
//! body: a layer that forgot the call would inherit the default, and lose what the rail below does. What a plain rail would share is a
//! function of its own ([`send_one_by_one`], [`receive_one`]).
//!
//! # Memory
//!
//! The bytes behind an [`IoVec`] are touched only *inside* [`StreamPort::read`] and [`StreamPort::write`]: when the call
//! has returned, the rail has forgotten the memory. Closing a stream is therefore a complete fence (invariant 4): when
//! [`StreamPort::close`] is done nothing that was under way on it can write to the user's memory.
//!
//! An adapter moves memory by itself, outside of calls. [`StreamPort::place`] and [`StreamPort::register`] lend it
//! memory, and it reports when it gives that back. A fence takes time there, and [`StreamPort::close`] returns that.

#![warn(missing_docs)]

pub mod alarm;
pub mod conformance;
mod datagram;
mod desc;
mod id;
mod iovec;
mod ip;
mod join;
mod link;
mod locator;
mod memory;
mod placement;
pub mod rest;
mod stream;
pub mod thread;

/// What [`rest`] needs of the standard library; `tests/models.rs` has loom's in its place.
mod sync {
    pub use std::sync::Mutex;
    pub use std::sync::atomic::{AtomicBool, Ordering};
}

pub use datagram::{
    Arrived, ArrivedTrain, Condition, DatagramPort, SendOutcome, TRAIN_BYTES_MAX, TRAIN_DATAGRAMS_MAX,
    TrainOutcome, receive_one, send_one_by_one,
};
pub use desc::{Affinity, RailDesc, Reach};
pub use id::{RailId, StreamId};
pub use iovec::IoVec;
pub use join::join;
pub use link::LinkWatch;
pub use locator::{Kind, Locator, PLACE_BYTES_MAX};
pub use memory::{MemId, Posted, RemoteKey, WorkId};
pub use placement::InOrderPlacement;
pub use stream::{Alternate, CloseReason, Closing, FarKernel, Moved, Place, StreamEvent, StreamPort};

use std::sync::Arc;

/// All rails of one kind in this process.
pub struct Rails {
    /// The rails, in the order in which the process publishes them; [`RailId`] is the index.
    pub rails: Vec<RailDesc>,
    /// Small messages and control.
    pub datagrams: Arc<dyn DatagramPort>,
    /// Bulk.
    pub streams: Box<dyn StreamPort>,
    /// Changes of the links.
    pub links: Box<dyn LinkWatch>,
    /// Sentences for the log: what was chosen or had to be done otherwise, and why.
    pub notes: Vec<String>,
}
