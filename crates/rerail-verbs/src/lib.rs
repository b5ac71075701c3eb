//! Rails over RDMA adapters. An adapter moves memory by itself; [`StreamPort`](rerail_rail::StreamPort) says what it may.
//!
//! Source: MN-uDAPL (`papers/mn-udapl.txt`) §4, the multi-network layer over RDMA; the connections of the iWARP paper
//! (`papers/multirail-hsam-checkpoint-iwarp.txt`), over RDMA-CM.
//!
//! | file | owns |
//! |---|---|
//! | `lib.rs` | the rails: which there are, and how they are described |
//! | `discover.rs` | which addresses belong to an adapter |
//! | `manager.rs`, `mailbox.rs` | the thread that makes and ends connections, and registers memory; what it reports |
//! | `identifier.rs` | listeners and ends of connections, as RDMA-CM has them |
//! | `lane.rs`, `message.rs` | one queue pair for a stream: its messages, credits and writes; the header of a message |
//! | `streams.rs` | the calls of the engine for streams |
//! | `datagrams.rs` | queue pairs for datagrams |
//! | `registrations.rs`, `watcher.rs` | sources that are registered; what becomes of the program's memory |
//! | `sleep.rs` | how a thread sleeps until an adapter has something |
//! | `links.rs` | whether ports are up |
//! | `adapter.rs` | what belongs to one adapter: completion queues, registered memory |
//! | `hello.rs`, `place.rs` | the private data of a connection; addresses as the kernel has them |
//! | `abi.rs`, `library.rs` | libibverbs and librdmacm |

#![warn(missing_docs)]

#[allow(missing_docs)]
mod abi;
mod adapter;
mod datagrams;
mod discover;
mod hello;
mod identifier;
mod lane;
mod library;
mod links;
mod mailbox;
mod manager;
mod message;
mod place;
mod registrations;
mod sleep;
mod streams;
mod watcher;

pub use discover::Found;
pub use library::LibraryError;
pub use registrations::{RegistrationCounts, registration_counts};
pub use watcher::{WatchError, check as check_watch};

use adapter::{Adapter, Completions};
use datagrams::{Port, VerbsDatagrams};
use identifier::{Events, Identifier};
use links::VerbsLinks;
use manager::Rail;
use rerail_rail::{Kind, Locator, RailDesc, Rails, Reach};
use sleep::Sleep;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use streams::VerbsStreams;

/// How many services are tried whose port is taken.
const PORTS_TRIED_MAX: usize = 32;

/// Why there are no rails of this kind; each is a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// See [`LibraryError`].
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The kernel has no RDMA-CM, or this process no permission.
    #[error(
        "the kernel's connection manager for RDMA cannot be used ({0}): load the module rdma_ucm, and allow this user to open /dev/infiniband/rdma_cm"
    )]
    Manager(io::Error),
    /// No adapter has an address.
    #[error("no RDMA adapter has an IP address here: `rdma link` lists adapters, `ip address` addresses")]
    None,
    /// An adapter cannot be used.
    #[error("the RDMA adapter {name} cannot be used ({why}); if memory may not be locked, raise `ulimit -l`")]
    Adapter {
        /// Its name.
        name: String,
        /// What the system reports.
        why: io::Error,
    },
}

/// The rails over RoCE that this node has, found without using them.
///
/// # Errors
/// There are none; the sentence says why.
pub fn discover() -> Result<Vec<Found>, VerbsError> {
    let events = Events::new(library::library()?).map_err(VerbsError::Manager)?;
    let found = roce(&events).into_iter().map(|(found, _)| found).collect::<Vec<_>>();
    if found.is_empty() { Err(VerbsError::None) } else { Ok(found) }
}

fn roce(events: &Events) -> Vec<(Found, Identifier)> {
    let mut found = discover::discover(events);
    // SAFETY: librdmacm keeps it open.
    found.retain(|(_, id)| unsafe { discover::transport(id.device().0) } == abi::IBV_TRANSPORT_IB);
    found
}

/// Opens every rail over RoCE. With `keep`, sources stay registered when their messages are over, where the system lets
/// this process notice that they are unmapped.
///
/// # Errors
/// There are none, or one cannot be used.
pub fn attach(keep: bool) -> Result<Rails, VerbsError> {
    let library = library::library()?;
    let events = Arc::new(Events::new(library).map_err(VerbsError::Manager)?);
    let found = roce(&events);
    if found.is_empty() {
        return Err(VerbsError::None);
    }
    let (mut descriptions, mut rails, mut listeners, mut ports) = (vec![], vec![], vec![], vec![]);
    for (found, id) in found {
        let name = found.name.clone();
        let one = open(library, &events, &found, &id).map_err(|why| VerbsError::Adapter { name, why })?;
        descriptions.push(one.description);
        rails.push(one.rail);
        listeners.push(one.listener);
        ports.push(one.port);
    }
    let names: Vec<&str> = descriptions.iter().map(|d| d.name.as_str()).collect();
    let name = names.join(", ");
    join(events, descriptions, rails, listeners, ports, keep).map_err(|why| VerbsError::Adapter { name, why })
}

/// A rail that is open.
struct Opened {
    description: RailDesc,
    rail: Rail,
    listener: Identifier,
    port: Port,
}

fn join(
    events: Arc<Events>,
    descriptions: Vec<RailDesc>,
    rails: Vec<Rail>,
    listeners: Vec<Identifier>,
    ports: Vec<Port>,
    keep: bool,
) -> io::Result<Rails> {
    let adapters: Vec<Arc<Adapter>> = rails.iter().map(|r| r.adapter.clone()).collect();
    let queues: Vec<Arc<Completions>> = rails.iter().map(|r| r.completions.clone()).collect();
    let own = descriptions.iter().map(|d| d.locator).collect();
    let links = VerbsLinks::new(&adapters)?;
    let (manager, not_kept) = manager::start(events, rails, listeners, keep)?;
    let sleep = Arc::new(Sleep::new(queues, manager.mailbox().as_fd())?);
    Ok(Rails {
        rails: descriptions,
        streams: Box::new(VerbsStreams::new(manager, sleep.clone())),
        datagrams: Arc::new(VerbsDatagrams::new(own, ports, sleep)?),
        links: Box::new(links),
        notes: not_kept.map(|why| why.to_string()).into_iter().collect(),
    })
}

fn open(
    library: &'static library::Library,
    events: &Arc<Events>,
    found: &Found,
    id: &Identifier,
) -> io::Result<Opened> {
    let (context, port) = id.device();
    // SAFETY: librdmacm keeps it open.
    let gid_index = unsafe { discover::gid_index(library, context, port, found.ip) }
        .ok_or_else(|| io::Error::other("its address is not in its own table for RoCE v2"))?;
    // SAFETY: as above.
    let adapter = Arc::new(unsafe { Adapter::new(library, context, port, gid_index) }?);
    let state = adapter.port_state()?;
    let bytes_max = 128_usize << state.active_mtu;
    let completions = Arc::new(Completions::new(&adapter, manager::ENTRIES_MAX)?);
    // The service is the number of a queue pair, and the port of the listener follows from it. Those of which the port is
    // taken are kept until one is found, so that the next has another number.
    let mut others = Vec::new();
    let (datagrams, listener) = loop {
        let datagrams = Port::new(&adapter, bytes_max)?;
        match events.bind(SocketAddr::new(found.ip, place::port(datagrams.number())), 0) {
            Ok(listener) => break (datagrams, listener),
            Err(why) if others.len() == PORTS_TRIED_MAX => return Err(why),
            Err(_) => others.push(datagrams),
        }
    };
    listener.listen()?;
    let own = Locator::of_ip(Kind::ROCE, found.ip, datagrams.number());
    let description = RailDesc {
        name: found.name.clone(),
        locator: own,
        port: found.interface.clone(),
        reach: Reach::by_prefix(own, found.prefix_bits),
        speed_mbps: speed_mbps(&state),
        datagram_bytes_max: bytes_max as u16,
        datagram_bytes_safe: bytes_max as u16,
        lanes_max: u8::MAX,
        places_max: lane::PLACES_MAX,
        up: state.state == abi::IBV_PORT_ACTIVE,
    };
    let rail = Rail::new(adapter, completions, own, &listener)?;
    Ok(Opened { description, rail, listener, port: datagrams })
}

/// Nominal speed: lanes of the cable times the speed of each (InfiniBand specification, PortInfo), Mbit/s; 0: unknown.
fn speed_mbps(state: &abi::ibv_port_attr) -> u32 {
    let width = match state.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let each = match state.active_speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    width * each
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_adapters_says_so_in_one_sentence() {
        // This kernel has no RDMA; on one that has it there may be rails.
        if let Err(why) = discover() {
            let sentence = why.to_string();
            assert!(!sentence.contains('\n') && sentence.len() < 300, "{sentence}");
        }
    }
}
