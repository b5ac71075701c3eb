//! The example of `docs/adding-a-rail.md`: a kind of rail with an adapter, between processes of one host.
//!
//! An RDMA adapter moves memory by itself, outside of the engine's calls. Here one thread for each process takes its part. Datagrams are Unix
//! datagram sockets, streams are Unix stream sockets, both in the abstract namespace. A stream carries [records](record): bytes of
//! the stream, or a part of a write into the peer's memory. The thread reads the source of a write when the socket has room for the next part,
//! and puts what arrives into the memory that its key names.
//!
//! | file | owns |
//! |---|---|
//! | `names.rs` | names of sockets, and where a rail is reached |
//! | `datagrams.rs` | the datagrams that have arrived |
//! | `record.rs` | the layout of a record |
//! | `connection.rs` | what one stream sends and has received |
//! | `adapter.rs` | the thread, the regions, the requests of the engine |
//! | `streams.rs` | the calls of the engine |
//!
//! Invariant: application memory outside of a call is touched by the adapter's thread only, with the lock of the adapter's state held.
//! So an event that was queued under that lock ([`Closed`](rerail_rail::StreamEvent::Closed),
//! [`Invalidated`](rerail_rail::StreamEvent::Invalidated)) is true.

#![warn(missing_docs)]

mod adapter;
mod connection;
mod datagrams;
mod names;
mod record;
mod signal;
mod streams;

use adapter::Shared;
use rerail_rail::{Affinity, Kind, LinkWatch, Locator, RailDesc, RailId, Rails, Reach};
use rustix::io::Errno;
use signal::Signal;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Most rails of a process: as many as an address names. The published address has 32 bytes for all rails of a process, and a rail takes 10.
const RAILS_MAX: usize = 3;
/// Attempts to find a service whose names are free.
const SERVICE_ATTEMPTS: usize = 16;

/// Opens `rails` rails, example0 and so on. Rail *i* reaches rail *i* of the processes in the same network namespace.
///
/// # Errors
/// There can be no such number of rails, or the system gives no sockets or no thread.
pub fn attach(rails: usize) -> io::Result<Rails> {
    if !(1..=RAILS_MAX).contains(&rails) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there may be 1 to 3 example rails"));
    }
    let host = names::host()?;
    let mut made = Err(Errno::ADDRINUSE);
    for _ in 0..SERVICE_ATTEMPTS {
        // 16 bits, because it takes room in the address
        let service = 1 + names::random_number()? % 0xffff;
        let place = |rail| [&host[..], &[rail as u8]].concat();
        let at = |rail| Locator::new(Kind::EXAMPLE, &place(rail), service).expect("a place of 6 bytes");
        made = Shared::new((0..rails).map(at).collect());
        if !matches!(made, Err(Errno::ADDRINUSE)) {
            break;
        }
    }
    let shared = Arc::new(made?);
    let descriptions = shared.rails.iter().enumerate().map(|(i, own)| describe(i, *own)).collect();
    Ok(Rails {
        rails: descriptions,
        datagrams: Arc::new(datagrams::ExampleDatagrams::new(shared.clone())),
        streams: Box::new(streams::ExampleStreams::start(shared)?),
        links: Box::new(NoChanges(Signal::new()?)),
        notes: Vec::new(),
    })
}

fn describe(rail: usize, own: Locator) -> RailDesc {
    let affinity =
        move |to: &Locator| if to.same_place(&own) { Affinity::SameNetwork } else { Affinity::Unreachable };
    RailDesc {
        name: format!("example{rail}"),
        locator: own,
        reach: Reach::new(affinity),
        speed_mbps: 0,
        datagram_bytes_max: datagrams::DATAGRAM_BYTES_MAX,
        datagram_bytes_safe: datagrams::DATAGRAM_BYTES_MAX,
        places_max: connection::PLACES_MAX,
        up: true,
    }
}

/// A host's memory is always there.
struct NoChanges(Signal);

impl LinkWatch for NoChanges {
    fn drain(&mut self, _out: &mut Vec<(RailId, bool)>) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}
