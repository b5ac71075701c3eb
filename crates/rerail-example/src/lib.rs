//! The example of `docs/adding-a-rail.md`: a kind of rail with an adapter, between processes of one host.
//!
//! An RDMA adapter moves memory by itself, outside of the engine's calls. Here two threads for each stream take its
//! part. Datagrams are UDP on the loopback interface, and streams are Unix sockets in the abstract namespace.
//!
//! | file | owns |
//! |---|---|
//! | `lib.rs` | the rails, and where they are reached |
//! | `datagrams.rs` | the socket of the datagrams |
//! | `streams.rs` | the calls of the engine |
//! | `adapter.rs` | the threads that move bytes and memory |

#![warn(missing_docs)]

mod adapter;
mod datagrams;
mod streams;

use datagrams::{DATAGRAM_BYTES_MAX, ExampleDatagrams};
use rerail_rail::thread::SteadyLinks;
use rerail_rail::{Affinity, Kind, Locator, RailDesc, RailId, Rails, Reach};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use streams::ExampleStreams;

/// Most rails of a process. The published address has 32 bytes for all rails of a process, and a rail takes 10.
const RAILS_MAX: usize = 3;

/// Opens `rails` rails, example0 and so on. Rail *i* reaches rail *i* of the processes in the same network namespace.
///
/// # Errors
/// There can be no such number of rails, the system gives no sockets or no thread, or the loopback interface is down.
pub fn attach(rails: usize) -> io::Result<Rails> {
    attach_with(rails, |_| {})
}

/// The same with a function that the adapter of a rail calls before a part of a peer's write lands: a test makes writes
/// late with it, or holds them. Writes land, and their fences are answered, when it returns.
///
/// # Errors
/// As [`attach`].
pub fn attach_with(
    rails: usize,
    before_landing: impl Fn(RailId) + Send + Sync + 'static,
) -> io::Result<Rails> {
    if !(1..=RAILS_MAX).contains(&rails) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there may be 1 to 3 example rails"));
    }
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    let (host, service) = (host()?, socket.local_addr()?.port().into());
    let at = |rail: u8| {
        Locator::new(Kind::EXAMPLE, &[&host[..], &[rail]].concat(), service).expect("a place of 6 bytes")
    };
    let own: Vec<Locator> = (0..rails as u8).map(at).collect();
    Ok(Rails {
        rails: own.iter().enumerate().map(|(i, own)| describe(i, *own)).collect(),
        streams: Box::new(ExampleStreams::new(&own, Box::new(before_landing))?),
        datagrams: Arc::new(ExampleDatagrams::new(own, socket)),
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
        routes_max: 1,
        places_max: streams::PLACES_MAX,
        streams_on_demand: false,
        sums_end_to_end: false,
        adapter: String::new(),
        up: true,
    }
}

/// Names this boot of this host and this network namespace: processes that share it meet. Short, because it takes room in the address; should
/// two hosts have the same, a connection is refused, or the handshake finds that it is not the peer's.
fn host() -> io::Result<[u8; 5]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::fs::metadata("/proc/self/ns/net")?.ino();
    let hash = blake3::hash(&[&boot[..], &namespace.to_le_bytes()].concat());
    Ok(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}
