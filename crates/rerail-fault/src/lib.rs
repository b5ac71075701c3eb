//! Faults planted inside a live process: a layer over the ports of any kind of rail that loses, corrupts, doubles, reorders, delays,
//! stalls, darkens and resets.
//!
//! * [`Plan`] – what is to happen, and how it is written ([`FI_RERAIL_FAULTS`](Plan::parse), `rerail faults set`)
//! * [`Injector`] – the plan that is in force in a process, and what was done by it
//! * [`FaultyDatagrams`], [`FaultyStreams`] – the layer over [`DatagramPort`](rerail_rail::DatagramPort) and
//!   [`StreamPort`](rerail_rail::StreamPort)
//!
//! The ports are wrapped only on request, so the layer costs nothing where it is not used. Wrapped and without a plan
//! it passes every call on, after one look at a flag.
//!
//! What it does not do: it sees what the engine hands to its rails and takes from them, not what kernels make of it. Bytes of a
//! stream are never lost, doubled or reordered, because a rail never does that; a lossy network shows itself to a stream as a
//! stall. Link events are not forged. For faults below the kernel there is the lab's wire.

pub mod chance;
mod datagrams;
mod injector;
mod plan;
mod rule;
mod streams;

pub use datagrams::FaultyDatagrams;
pub use injector::{Counts, Injector};
pub use plan::Plan;
pub use streams::FaultyStreams;

use rerail_rail::Rails;
use std::io;
use std::sync::Arc;

/// These rails, with a layer over their ports that does what `injector` says.
///
/// # Errors
/// The system gives no descriptor to sleep on.
pub fn with_faults(rails: Rails, injector: &Arc<Injector>) -> io::Result<Rails> {
    Ok(Rails {
        datagrams: Arc::new(FaultyDatagrams::new(rails.datagrams, injector.clone())?),
        streams: Box::new(FaultyStreams::new(rails.streams, injector.clone()).map_err(|(_, why)| why)?),
        ..rails
    })
}
