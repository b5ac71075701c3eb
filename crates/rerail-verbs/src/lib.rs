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
//! | `connector.rs`, `exchange.rs`, `setup.rs`, `queue_pair.rs` | the same without RDMA-CM: messages, what follows from them, their bytes; a queue pair |
//! | `infiniband.rs`, `device.rs`, `network.rs` | ports that are used without RDMA-CM; devices that are open; how peers are addressed |
//! | `lane.rs`, `message.rs` | one queue pair for a stream: its messages, credits and writes; the header of a message |
//! | `alternate.rs`, `agreement.rs` | path migration in the adapter: alternates of lanes; what both ends say about one |
//! | `streams.rs`, `incoming.rs` | the calls of the engine for streams; connections of peers that it has not accepted |
//! | `datagrams.rs`, `connected.rs` | datagrams: by queue pairs for them, and over connections where there are none |
//! | `ways.rs` | address handles, which datagrams need, and the threads that make them |
//! | `ring.rs` | small datagrams that adapters write into rings |
//! | `posting.rs` | work requests that are posted by one call |
//! | `registrations.rs`, `watcher.rs` | sources that are registered; what becomes of the program's memory |
//! | `sleep.rs` | how a thread sleeps until an adapter has something |
//! | `links.rs` | whether ports are up |
//! | `adapter.rs`, `completions.rs` | what belongs to one adapter: registered memory, completion queues |
//! | `work.rs` | the names of work requests |
//! | `unused.rs` | adapters that are there and make no rail |
//! | `hello.rs`, `place.rs` | the private data of a connection; addresses as the kernel has them |
//! | `abi.rs`, `library.rs` | libibverbs and librdmacm |
//! | `fake.rs`, `hostile.rs` | an adapter of tests; a peer that sends anything |

#![warn(missing_docs)]

#[allow(missing_docs)]
mod abi;
mod adapter;
mod agreement;
mod alternate;
mod blocking;
mod completions;
mod connected;
mod connector;
mod datagrams;
mod desk;
mod device;
mod discover;
mod exchange;
mod failures;
#[cfg(any(test, feature = "hostile"))]
mod fake;
mod hello;
#[cfg(any(test, feature = "hostile"))]
pub mod hostile;
mod identifier;
mod incoming;
mod infiniband;
mod lane;
mod library;
mod links;
mod mailbox;
mod manager;
mod message;
mod network;
mod place;
mod posting;
mod queue_pair;
mod registrations;
mod reports;
mod ring;
mod setup;
mod shared;
mod sleep;
mod streams;
mod unused;
mod watcher;
mod ways;
mod work;

pub use discover::{Address, Found};
pub use library::LibraryError;
pub use registrations::{RegistrationCounts, registration_counts};
pub use ring::ring_datagrams;

use adapter::Adapter;
use completions::Completions;

use connected::ConnectedDatagrams;
use connector::Connector;
use datagrams::{Port, SIGNAL_EVERY, VerbsDatagrams};
use hello::Purpose;
use identifier::{Events, Identifier};
use lane::Shape;
use library::Library;
use links::VerbsLinks;
use manager::{Connecting, Lanes, Rail};
use network::Network;
use rerail_rail::{DatagramPort, Locator, RailDesc, Rails, Reach};
pub use rerail_rail::{InOrderPlacement, Kind};
use ring::Ring;
use sleep::Sleep;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use streams::VerbsStreams;

/// The kinds of rail that this crate has.
pub const KINDS: [Kind; 4] = [Kind::IB, Kind::ROCE, Kind::ROCE_NO_CM, Kind::IWARP];

/// How rails are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Sources stay registered when their messages are over, where the system lets this process notice that they are unmapped.
    pub keep_registrations: bool,
    /// See [`InOrderPlacement`].
    pub in_order_placement: InOrderPlacement,
    /// Connections share their receives, where an adapter has shared receive queues. Off in tests only.
    pub shared_receives: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            keep_registrations: false,
            in_order_placement: InOrderPlacement::default(),
            shared_receives: true,
        }
    }
}

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
        "the kernel's connection manager for RDMA cannot be used ({0}): load the module rdma_ucm, and allow this user to open /dev/infiniband/rdma_cm, or use rails of the kind roce-nocm"
    )]
    Manager(io::Error),
    /// The node has none.
    #[error("this node has no RDMA adapter: `rdma link` lists adapters")]
    NoAdapter,
    /// No adapter has an address.
    #[error("no RDMA adapter has an IP address here: `rdma link` lists adapters, `ip address` addresses")]
    None,
    /// No adapter of this kind has.
    #[error("no RDMA adapter here is of the kind {} and has an address: `rerail info` lists adapters", .0.name())]
    NoneOf(Kind),
    /// There are adapters of this kind, with these names, and none is chosen.
    #[error("FI_RERAIL_RAILS names neither an adapter ({0}) nor the interface of one")]
    NoneChosen(String),
    /// There are adapters, and none can be used.
    #[error("{}", .0.join("; "))]
    Problems(Vec<String>),
    /// An adapter cannot be used.
    #[error("the RDMA adapter {name} cannot be used ({why}); if memory may not be locked, raise `ulimit -l`")]
    Adapter {
        /// Its name.
        name: String,
        /// What the system reports.
        why: io::Error,
    },
}

/// The rails of all [`KINDS`] that this node has, found without using them.
///
/// # Errors
/// There are none; the sentence says why.
pub fn discover() -> Result<Discovery, VerbsError> {
    let library = library::library()?;
    let (own, mut problems) = infiniband::discover(library);
    let mut found: Vec<Found> = own.into_iter().map(|(found, _)| found).collect();
    match Events::new(library) {
        Ok(events) => found.extend(discover::discover(&events).into_iter().map(|(found, _)| found)),
        Err(why) if found.is_empty() && problems.is_empty() => return Err(no_manager(why)),
        Err(why) => problems.push(VerbsError::Manager(why).to_string()),
    }
    problems.extend(unused::sentences(&found));
    if found.is_empty() && problems.is_empty() {
        Err(VerbsError::None)
    } else {
        Ok(Discovery { found, problems })
    }
}

/// Why there is no connection manager: the kernel has none before there is an adapter.
fn no_manager(why: io::Error) -> VerbsError {
    if unused::has_adapter() { VerbsError::Manager(why) } else { VerbsError::NoAdapter }
}

/// What [`discover()`] finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Ports that may be rails. A port for RoCE v2 is there once for each way to connect.
    pub found: Vec<Found>,
    /// A sentence for each that may not be now, but could.
    pub problems: Vec<String>,
}

/// Opens every rail of a kind that is `chosen`. Once in a process at a time: librdmacm opens a device once for all of a process, and what
/// happens to its port is told to one of several that share it.
///
/// # Errors
/// There are none, none is chosen, or one cannot be used.
pub fn attach(kind: Kind, settings: &Settings, chosen: &dyn Fn(&Found) -> bool) -> Result<Rails, VerbsError> {
    let library = library::library()?;
    if matches!(kind, Kind::IB | Kind::ROCE_NO_CM) {
        return attach_without_manager(library, kind, settings, chosen);
    }
    let events = Arc::new(Events::new(library).map_err(no_manager)?);
    let mut found = discover::discover(&events);
    let all: Vec<Found> = found.iter().map(|(found, _)| found.clone()).collect();
    choose(&mut found, kind, chosen).map_err(|why| match (&why, unused::sentences(&all)) {
        (VerbsError::NoneOf(_), unused) if !unused.is_empty() => VerbsError::Problems(unused),
        _ => why,
    })?;
    let mut rails = Vec::new();
    for (found, id) in found {
        let name = found.name.clone();
        rails.push(
            open(library, &events, &found, &id, settings).map_err(|why| VerbsError::Adapter { name, why })?,
        );
    }
    let name = names(&rails);
    join(Some(events), rails, settings.keep_registrations).map_err(|why| VerbsError::Adapter { name, why })
}

fn names(rails: &[Opened]) -> String {
    let names: Vec<&str> = rails.iter().map(|rail| rail.description.name.as_str()).collect();
    names.join(", ")
}

/// Leaves those of a kind that are chosen, of which there must be one.
fn choose<T>(
    found: &mut Vec<(Found, T)>,
    kind: Kind,
    chosen: &dyn Fn(&Found) -> bool,
) -> Result<(), VerbsError> {
    found.retain(|(found, _)| found.kind == kind);
    if found.is_empty() {
        return Err(VerbsError::NoneOf(kind));
    }
    let names = found.iter().map(|(found, _)| found.name.clone()).collect::<Vec<_>>();
    found.retain(|(found, _)| chosen(found));
    if found.is_empty() { Err(VerbsError::NoneChosen(names.join(", "))) } else { Ok(()) }
}

/// The same as [`attach`] without RDMA-CM.
fn attach_without_manager(
    library: &'static Library,
    kind: Kind,
    settings: &Settings,
    chosen: &dyn Fn(&Found) -> bool,
) -> Result<Rails, VerbsError> {
    let (mut found, mut problems) = infiniband::discover(library);
    match choose(&mut found, kind, chosen) {
        Err(VerbsError::NoneOf(_)) if !problems.is_empty() => return Err(VerbsError::Problems(problems)),
        chosen => chosen?,
    }
    let mut rails = Vec::new();
    for (found, port) in found {
        let name = found.name.clone();
        rails.push(
            open_port(library, &found, port, settings).map_err(|why| VerbsError::Adapter { name, why })?,
        );
    }
    let name = names(&rails);
    let mut rails =
        join(None, rails, settings.keep_registrations).map_err(|why| VerbsError::Adapter { name, why })?;
    rails.notes.append(&mut problems);
    Ok(rails)
}

/// A rail that is open.
struct Opened {
    description: RailDesc,
    /// With RDMA-CM.
    listener: Option<Identifier>,
    /// Without it: for the messages by which connections are made.
    connections: Option<Port>,
    rail: Rail,
    streams: Arc<Completions>,
    datagrams: Datagrams,
}

/// How a rail sends datagrams.
enum Datagrams {
    /// By a queue pair for them.
    Port(Box<Port>),
    /// Over connections, which report here.
    Connected(Arc<Completions>),
}

/// Without the events of RDMA-CM connections are made by messages.
fn join(events: Option<Arc<Events>>, opened: Vec<Opened>, keep: bool) -> io::Result<Rails> {
    let (mut descriptions, mut rails, mut listeners, mut connections) = (vec![], vec![], vec![], vec![]);
    let (mut queues, mut ports, mut connected) = (vec![], vec![], vec![]);
    for one in opened {
        descriptions.push(one.description);
        rails.push(one.rail);
        listeners.extend(one.listener);
        connections.extend(one.connections);
        queues.push(one.streams);
        match one.datagrams {
            Datagrams::Port(port) => ports.push(*port),
            Datagrams::Connected(completions) => connected.push(completions),
        }
    }
    let adapters: Vec<Arc<Adapter>> = rails.iter().map(|r| r.adapter.clone()).collect();
    let own: Vec<Locator> = descriptions.iter().map(|d: &RailDesc| d.locator).collect();
    let (names, refused) = adapters_that_migrate(&rails, &queues);
    descriptions.iter_mut().zip(names).for_each(|(description, name)| description.adapter = name);
    let way = match events {
        Some(events) => Connecting::Rdmacm(events, listeners),
        None => Connecting::ByMessages(Box::new(Connector::new(own.clone(), connections)?)),
    };
    let (manager, not_kept) = manager::start(way, rails, keep)?;
    let manager = Arc::new(manager);
    let links: Vec<_> = adapters.into_iter().zip(descriptions.iter().map(|d| d.up)).collect();
    let links = VerbsLinks::new(&links, manager.path_events(), manager.failures())?;
    let sleep = Arc::new(Sleep::new(queues, manager.mailbox(Purpose::Stream).as_fd())?);
    let streams = Box::new(VerbsStreams::new(manager.clone(), sleep.clone()));
    // the rails of a kind are all of one sort
    let datagrams: Arc<dyn DatagramPort> = match connected.is_empty() {
        true => Arc::new(VerbsDatagrams::new(own, ports, sleep)?),
        false => Arc::new(ConnectedDatagrams::new(own, manager, connected, sleep)?),
    };
    let notes = not_kept.map(|why| why.to_string()).into_iter().chain(refused).collect();
    Ok(Rails { rails: descriptions, streams, datagrams, links: Box::new(links), notes })
}

/// For each rail the name of its adapter, if that leads connections of one of its ports over another; and a sentence for each that does not.
fn adapters_that_migrate(rails: &[Rail], queues: &[Arc<Completions>]) -> (Vec<String>, Vec<String>) {
    let ports: Vec<alternate::Port> = rails.iter().map(Rail::port).collect();
    let (mut names, mut sentences) = (vec![String::new(); ports.len()], Vec::new());
    for first in 0..ports.len() {
        let context = ports[first].adapter.context;
        let same = |i: &usize| ports[*i].adapter.context == context;
        let others: Vec<usize> = (first + 1..ports.len()).filter(same).collect();
        let (true, [other, ..]) = ((0..first).all(|i| !same(&i)), &others[..]) else { continue };
        // SAFETY: librdmacm keeps it open.
        let name = unsafe { discover::name(context) };
        match alternate::probe(&ports[first], &ports[*other], &queues[first]) {
            Ok(()) => [first].iter().chain(&others).for_each(|i| names[*i].clone_from(&name)),
            Err(why) => sentences.push(format!(
                "the RDMA adapter {name} takes no alternate paths ({why}): paths are migrated in software only"
            )),
        }
    }
    (names, sentences)
}

fn open(
    library: &'static Library,
    events: &Arc<Events>,
    found: &Found,
    id: &Identifier,
    settings: &Settings,
) -> io::Result<Opened> {
    let (context, port) = id.device();
    let Address::Ip { ip, prefix_bits } = found.address else {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    };
    let gid_index = match found.kind {
        Kind::ROCE => {
            // SAFETY: librdmacm keeps it open.
            unsafe { discover::gid_index(library, context, port, ip) }
                .ok_or_else(|| io::Error::other("its address is not in its own table for RoCE v2"))?
        }
        // for address handles, of which iWARP has none
        _ => 0,
    };
    // SAFETY: as above.
    let adapter = Arc::new(unsafe { Adapter::new(library, context, port, gid_index, found.kind) }?);
    let state = adapter.port_state()?;
    let streams = Arc::new(Completions::new(&adapter, manager::ENTRIES_MAX)?.of_shared());
    let (service, listener, datagrams, bytes_max) = match found.kind {
        Kind::ROCE => {
            let bytes_max = 128_usize << state.active_mtu;
            let (port, listener) = bind(events, ip, || {
                let port = Port::new(&adapter, bytes_max, SIGNAL_EVERY)?;
                Ok((port.number(), port))
            })?;
            (port.number(), listener, Datagrams::Port(Box::new(port)), bytes_max)
        }
        _ => {
            let any = || {
                let service = manager::random() as u32;
                Ok((service, service))
            };
            let (service, listener) = bind(events, ip, any)?;
            let completions = Arc::new(Completions::new(&adapter, manager::ENTRIES_MAX)?);
            // Where the memory of one peer may not be locked, that is to be known now and not when the peer comes.
            drop((Shape::DATAGRAMS.slots(&adapter)?, Shape::STREAM.slots(&adapter)?, Ring::new(&adapter)?));
            (service, listener, Datagrams::Connected(completions), lane::DATAGRAM_BYTES_MAX)
        }
    };
    listener.listen()?;
    let own = Locator::of_ip(found.kind, ip, service);
    let description = describe(found, own, Reach::by_prefix(own, prefix_bits), &state, bytes_max, bytes_max);
    let of_datagrams = match &datagrams {
        Datagrams::Port(_) => None,
        Datagrams::Connected(completions) => {
            Some(Lanes::new(&Shape::DATAGRAMS, completions.clone(), settings.in_order_placement))
        }
    };
    let of_streams = lanes_of_streams(&streams, settings);
    let rail = Rail::new(adapter, own, Some(&listener), of_streams, of_datagrams)?;
    Ok(Opened { description, listener: Some(listener), connections: None, rail, streams, datagrams })
}

fn lanes_of_streams(completions: &Arc<Completions>, settings: &Settings) -> Lanes {
    let lanes = Lanes::new(&Shape::STREAM, completions.clone(), InOrderPlacement::Off);
    if settings.shared_receives { lanes.sharing() } else { lanes }
}

/// The longest datagram that is sent over InfiniBand before the path has been measured: switches and ports that carry no more are older
/// than this program.
const SAFE_BYTES: usize = 2048;

/// Without RDMA-CM.
fn open_port(
    library: &'static Library,
    found: &Found,
    port: infiniband::Port,
    settings: &Settings,
) -> io::Result<Opened> {
    let infiniband::Port { device, number, gid_index, network, place } = port;
    let adapter = Adapter::of_device(library, &device, (number, gid_index), network, found.kind)?;
    let adapter = Arc::new(adapter);
    let state = adapter.port_state()?;
    let bytes_max = 128_usize << state.active_mtu;
    let streams = Arc::new(Completions::new(&adapter, manager::ENTRIES_MAX)?.of_shared());
    let (datagrams, connections, service) = connector::pair(&adapter, bytes_max)?;
    let own = Locator::new(found.kind, &place, service).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let (reach, safe) = match (network, found.address) {
        (Network::Subnet(subnet), _) => (subnet.reach(found.kind), bytes_max.min(SAFE_BYTES)),
        (_, Address::Ip { prefix_bits, .. }) => (Reach::by_prefix(own, prefix_bits), bytes_max),
        (_, Address::Lid(_)) => return Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    let description = describe(found, own, reach, &state, bytes_max, safe);
    let rail = Rail::new(adapter, own, None, lanes_of_streams(&streams, settings), None)?;
    let datagrams = Datagrams::Port(Box::new(datagrams));
    Ok(Opened { description, listener: None, connections: Some(connections), rail, streams, datagrams })
}

fn describe(
    found: &Found,
    own: Locator,
    reach: Reach,
    state: &abi::ibv_port_attr,
    bytes_max: usize,
    bytes_safe: usize,
) -> RailDesc {
    RailDesc {
        name: found.name.clone(),
        locator: own,
        port: found.interface.clone(),
        reach,
        speed_mbps: speed_mbps(state),
        datagram_bytes_max: bytes_max as u16,
        datagram_bytes_safe: bytes_safe as u16,
        lanes_max: u8::MAX,
        routes_max: 1,
        places_max: lane::PLACES_MAX,
        streams_on_demand: true,
        // InfiniBand's and RoCE's invariant CRC. That of iWARP (MPA, RFC 5044 §4) may be switched off at either end, and
        // verbs do not tell.
        sums_end_to_end: found.kind != Kind::IWARP,
        adapter: String::new(),
        up: state.state == abi::IBV_PORT_ACTIVE,
    }
}

/// A listener for a service. The service is what `next` makes, and the port of the listener follows from it; those of which
/// the port is taken are kept until one is found, so that the next has another number.
fn bind<T>(
    events: &Events,
    ip: IpAddr,
    mut next: impl FnMut() -> io::Result<(u32, T)>,
) -> io::Result<(T, Identifier)> {
    let mut others = Vec::new();
    loop {
        let (service, one) = next()?;
        match events.bind(SocketAddr::new(ip, place::port(service)), 0) {
            Ok(listener) => return Ok((one, listener)),
            Err(why) if others.len() == PORTS_TRIED_MAX => return Err(why),
            Err(_) => others.push(one),
        }
    }
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
