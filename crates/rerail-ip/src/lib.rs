//! The rail over IP: every network interface of the host is a rail, with UDP for small messages and control and TCP for
//! bulk.
//!
//! [`attach`] finds the interfaces ([`discover()`], [`Interface`]) and opens the sockets:
//!
//! * **one wildcard UDP socket** receives for all rails; the packet information names the rail. An empty poll costs one
//!   call however many rails and peers there are (a UDP socket's floor is 1.2 µs below TCP's, and 16 sockets polled in turn
//!   cost 1.4 µs more than one);
//! * **up to four UDP sockets are connected** to the peers with which most small messages are exchanged, and are looked at before that one;
//! * **one UDP socket for each rail** sends, bound to device and address, so that a datagram leaves on the rail that the
//!   engine chose, whatever the routing table prefers; **a second one**, bound to the address only, sends to peers on the
//!   same host; and **two more** do the same for bulk, which must not stand in front of what is small;
//! * **TCP listeners**, one for each rail and one for peers on the same host, have the same port number; each connection is
//!   bound to its rail in the same way;
//! * **one netlink socket** reports links that go down and come up.
//!
//! Everything is non-blocking and closed on exec. Nothing needs a privilege.

#![warn(missing_docs)]

mod congestion;
mod connected;
mod datagram;
mod detours;
mod discover;
mod door;
mod links;
mod netlink;
mod shared;
mod stream;
mod sys;
mod unsent;
mod window;

pub use discover::{Interface, Surveyed};

use congestion::Congestion;
use rerail_rail::{RailDesc, Rails};
use shared::{Families, Shared, socket};
use socket2::{Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Why no rails could be attached. Each is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nothing usable, or the selection makes no sense.
    #[error("{0}")]
    Selection(String),
    /// The system refused something.
    #[error("rerail could not {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        why: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> AttachError {
    move |why| AttachError::System { what, why }
}

/// Receive buffer that is asked for, in bytes; the kernel gives what `net.core.rmem_max` allows. An incast of many peers
/// has to fit, because a datagram that finds no room is lost.
const RECV_BUFFER_BYTES: usize = 8 << 20;
/// Attempts to find a port number that is free for both UDP and TCP.
const PORT_ATTEMPTS: usize = 64;

/// Finds the interfaces to use (`selection` is the option `rails`: names in order, empty to choose) and opens their
/// sockets.
///
/// # Errors
/// See [`AttachError`].
pub fn attach(selection: &[String]) -> Result<Rails, AttachError> {
    attach_with(selection, "auto")
}

/// The same with a congestion control of the user's: `auto`, `system` or a name, as the option `tcp_congestion` has it.
///
/// # Errors
/// As [`attach`].
pub fn attach_with(selection: &[String], congestion: &str) -> Result<Rails, AttachError> {
    let congestion = Congestion::from(congestion);
    congestion::check(&congestion).map_err(AttachError::Selection)?;
    let netlink = links::listen().map_err(system("listen to link changes"))?;
    let (links, addresses) = netlink::survey().map_err(system("list the network interfaces"))?;
    let (mut chosen, notes) = discover::choose(&links, &addresses, selection)?;
    discover::measure(speeds(&mut chosen));
    open(chosen, notes, netlink, links::own_addresses(&addresses), congestion)
}

/// Finds the interfaces that [`attach`] would use, without opening anything.
///
/// # Errors
/// As [`attach`].
pub fn discover(selection: &[String]) -> Result<Vec<Interface>, AttachError> {
    let (links, addresses) = netlink::survey().map_err(system("list the network interfaces"))?;
    let (mut chosen, _) = discover::choose(&links, &addresses, selection)?;
    discover::measure(speeds(&mut chosen));
    Ok(chosen)
}

fn speeds(rails: &mut [Interface]) -> impl Iterator<Item = (&str, &mut u32)> {
    rails.iter_mut().map(|rail| (rail.name.as_str(), &mut rail.speed_mbps))
}

/// What a user may want to know of this host's network.
#[derive(Debug)]
pub struct Survey {
    /// Every interface, in the kernel's order.
    pub interfaces: Vec<Surveyed>,
    /// The names of the rails, in their order.
    pub rails: Vec<String>,
    /// Remarks on the choice, or the one sentence that says why there is none.
    pub notes: Result<Vec<String>, String>,
}

/// Tells for every interface whether [`attach`] would use it, and why not, without opening anything.
///
/// # Errors
/// The system refused to list the interfaces. That none can be used is not an error here, but reported in the survey.
pub fn survey(selection: &[String]) -> Result<Survey, AttachError> {
    let (links, addresses) = netlink::survey().map_err(system("list the network interfaces"))?;
    let (rails, notes) = match discover::choose(&links, &addresses, selection) {
        Ok((rails, notes)) => (rails, Ok(notes)),
        Err(error) => (Vec::new(), Err(error.to_string())),
    };
    let mut interfaces = discover::explain(&links, &addresses, selection, &rails);
    discover::measure(interfaces.iter_mut().map(|i| (i.name.as_str(), &mut i.speed_mbps)));
    Ok(Survey { interfaces, rails: rails.into_iter().map(|rail| rail.name).collect(), notes })
}

/// Rails over the loopback interface, 127.0.0.x for each x of `hosts`: for tests and trials on one host.
///
/// # Errors
/// As [`attach`].
pub fn attach_loopback(hosts: std::ops::Range<u8>) -> Result<Rails, AttachError> {
    let netlink = links::listen().map_err(system("listen to link changes"))?;
    let (links, addresses) = netlink::survey().map_err(system("list the network interfaces"))?;
    let lo = links.iter().find(|l| l.name == "lo" && l.running());
    let lo = lo.ok_or_else(|| AttachError::Selection("the loopback interface is down".into()))?;
    let rails = hosts.map(|i| Interface {
        name: "lo".into(),
        index: lo.index,
        addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, i)),
        prefix_bits: 8,
        speed_mbps: 0,
        mtu: lo.mtu.min(65_535) as u16,
        up: true,
    });
    open(rails.collect(), Vec::new(), netlink, links::own_addresses(&addresses), Congestion::Auto)
}

fn open(
    chosen: Vec<Interface>,
    mut notes: Vec<String>,
    netlink: OwnedFd,
    own: Vec<IpAddr>,
    congestion: Congestion,
) -> Result<Rails, AttachError> {
    let shared = Shared::new(&chosen, own, &mut notes).map_err(system("open a socket for each rail"))?;
    let shared = Arc::new(shared);
    let (wild, listener, port) = pair(shared.families).map_err(system("find a port for UDP and TCP"))?;
    let streams = stream::TcpPort::new(shared.clone(), listener, port, congestion)
        .map_err(system("listen for connections"))?;
    let up: Vec<bool> = chosen.iter().map(|i| i.up).collect();
    Ok(Rails {
        rails: chosen
            .into_iter()
            .map(|i| RailDesc {
                speed_mbps: i.speed_mbps,
                up: i.up,
                ..RailDesc::ip(&i.name, SocketAddr::new(i.addr, port), i.prefix_bits, i.mtu)
            })
            .collect(),
        datagrams: Arc::new(
            datagram::UdpPort::new(shared.clone(), wild).map_err(system("make an epoll instance"))?,
        ),
        streams: Box::new(streams),
        links: Box::new(links::NetlinkWatch::new(netlink, shared, &up)),
        notes,
    })
}

/// The UDP socket and the TCP listener, on the same port number.
fn pair(families: Families) -> io::Result<(Socket, Socket, u16)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORT_ATTEMPTS {
        let udp = socket(families.domain(), Type::DGRAM, Protocol::UDP)?;
        let fd = udp.as_raw_fd();
        if families == Families::V4 {
            sys::set_int(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        } else {
            udp.set_only_v6(families == Families::V6)?;
            sys::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        }
        let _ = udp.set_recv_buffer_size(RECV_BUFFER_BYTES);
        // An old kernel refuses; then each datagram comes by itself.
        let _ = sys::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
        udp.bind(&SocketAddr::new(families.any(), 0).into())?;
        let port = udp.local_addr()?.as_socket().map_or(0, |a| a.port());

        match stream::listener(families, port, None) {
            Ok(tcp) => {
                // Only now, or the kernel might choose a port that another process of this user has. It lets sockets that are
                // connected to one peer share the port (`connected`); without it there are none.
                let _ = udp.set_reuse_port(true);
                return Ok((udp, tcp, port));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}
