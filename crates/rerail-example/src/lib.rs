//! The example of `docs/adding-a-rail.md`: a kind of rail with an adapter, between processes of one host.
//!
//! An RDMA adapter moves memory by itself, outside of the engine's calls. Here two threads for each stream take its part. Datagrams are UDP on the
//! loopback interface, and streams are Unix stream sockets in the abstract namespace.
//!
//! | file | owns |
//! |---|---|
//! | `lib.rs` | the rails, and where they are reached |
//! | `datagrams.rs` | the socket of the datagrams |
//! | `adapter.rs` | the state of streams and regions, and the threads that move bytes |
//! | `streams.rs` | the calls of the engine |
//!
//! Invariant: application memory outside of a call is touched by the adapter's threads only, with the lock of the adapter's state held.
//! So an event that was queued under that lock ([`Closed`](rerail_rail::StreamEvent::Closed),
//! [`Invalidated`](rerail_rail::StreamEvent::Invalidated)) is true.

#![warn(missing_docs)]

mod adapter;
mod datagrams;
mod streams;

use adapter::Shared;
use datagrams::DATAGRAM_BYTES_MAX;
use rerail_rail::thread::SteadyLinks;
use rerail_rail::{Affinity, Kind, Locator, RailDesc, Rails, Reach};
use rustix::fs::stat;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Most rails of a process. The published address has 32 bytes for all rails of a process, and a rail takes 10.
const RAILS_MAX: usize = 3;

/// Opens `rails` rails, example0 and so on. Rail *i* reaches rail *i* of the processes in the same network namespace.
///
/// # Errors
/// There can be no such number of rails, the system gives no sockets or no thread, or the loopback interface is down.
pub fn attach(rails: usize) -> io::Result<Rails> {
    attach_late(rails, Duration::ZERO)
}

/// The same with an adapter that takes so long for each 16 KiB which a peer writes into our memory, and 16 times as long for an invalidation: what
/// it has received when a connection breaks lands long afterwards. For tests.
///
/// # Errors
/// As [`attach`].
pub fn attach_late(rails: usize, late: Duration) -> io::Result<Rails> {
    if !(1..=RAILS_MAX).contains(&rails) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there may be 1 to 3 example rails"));
    }
    let datagrams = datagrams::socket()?;
    let (host, service) = (host()?, datagrams.local_addr()?.port());
    let at = |rail: usize| {
        let place = [&host[..], &[rail as u8]].concat();
        Locator::new(Kind::EXAMPLE, &place, service.into()).expect("a place of 6 bytes")
    };
    let own: Vec<Locator> = (0..rails).map(at).collect();
    let shared = Arc::new(Shared::new(own.clone(), late)?);
    Ok(Rails {
        rails: own.iter().enumerate().map(|(i, own)| describe(i, *own)).collect(),
        datagrams: Arc::new(datagrams::ExampleDatagrams::new(own, datagrams)),
        streams: Box::new(streams::ExampleStreams::start(shared)?),
        links: Box::new(SteadyLinks::new()?),
        notes: Vec::new(),
    })
}

/// The name of a rail.
pub fn name(rail: usize) -> String {
    format!("example{rail}")
}

fn describe(rail: usize, own: Locator) -> RailDesc {
    let affinity =
        move |to: &Locator| if to.same_place(&own) { Affinity::SameNetwork } else { Affinity::Unreachable };
    RailDesc {
        name: name(rail),
        locator: own,
        port: String::new(),
        reach: Reach::new(affinity),
        speed_mbps: 0,
        datagram_bytes_max: DATAGRAM_BYTES_MAX,
        datagram_bytes_safe: DATAGRAM_BYTES_MAX,
        lanes_max: 1,
        places_max: adapter::PLACES_MAX,
        up: true,
    }
}

/// Names this boot of this host and this network namespace: processes that share it meet. Short, because it takes room in the address; should
/// two hosts have the same, a connection is refused, or the handshake finds that it is not the peer's.
fn host() -> io::Result<[u8; 5]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let namespace = stat("/proc/self/ns/net")?.st_ino;
    let hash = blake3::hash(&[&boot[..], &namespace.to_le_bytes()].concat());
    Ok(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}
