//! What the ports of this kind share. Owns: the send sockets of every rail, and the host's own addresses.

use crate::RECV_BUFFER_BYTES;
use crate::discover::Interface;
use crate::sys;
use parking_lot::RwLock;
use rerail_rail::RailId;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Priority in the local queueing discipline (`pfifo_fast` and its like): control never waits behind bulk (hazard H4c).
/// 6 is the highest that needs no privilege; nothing of it is on the wire.
const PRIORITY: libc::c_int = 6;
/// Bytes of bulk datagrams that may wait in this host, as the kernel counts them (it doubles what is asked for): enough
/// to keep a rail busy between two pieces of progress. More would only wait in the queue of the interface, where the
/// flow with more bytes has the larger share, and the kernel bounds those of a TCP flow (`tcp_limit_output_bytes`).
/// With twice as much a TCP flow beside it on 1 Gbit/s got 67 % of its half, with half as much 133, with this 100
/// (docs/notes/performance-2026-11.md).
const BULK_SEND_BUFFER_BYTES: usize = 64 << 10;

/// The families of addresses among the rails. A process whose rails have both receives all by sockets of IPv6, to which the kernel
/// shows IPv4 addresses as IPv6 addresses (RFC 4291 §2.5.5.2): a second wildcard socket would cost every poll a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    V6,
    Both,
}

impl Families {
    /// Of these addresses.
    pub fn of(all: impl IntoIterator<Item = IpAddr>) -> Families {
        let (mut v4, mut v6) = (false, false);
        all.into_iter().for_each(|ip| if ip.is_ipv4() { v4 = true } else { v6 = true });
        match (v4, v6) {
            (_, false) => Families::V4,
            (false, true) => Families::V6,
            (true, true) => Families::Both,
        }
    }

    /// Family of the sockets that receive for all of them.
    pub fn domain(self) -> Domain {
        if self == Families::V4 { Domain::IPV4 } else { Domain::IPV6 }
    }

    /// The wildcard address of those sockets.
    pub fn any(self) -> IpAddr {
        if self == Families::V4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
    }

    /// An address as a socket that receives for all of them wants it.
    fn written(self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(v4) if self == Families::Both => v4.to_ipv6_mapped().into(),
            ip => ip,
        }
    }
}

/// What a send socket is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Small messages and control.
    Quick,
    /// Bulk, behind everything quick.
    Bulk,
    /// Small messages and control, to and from one peer.
    Connected,
}

/// The two sockets that send for one purpose from one rail.
struct Senders {
    /// Bound to device and address. `None`: the kernel refuses to bind to devices, so each datagram names the device.
    out: Option<Socket>,
    /// Bound to the address only, for peers on this very host: a socket bound to a device cannot reach them, because the
    /// kernel sends to its own addresses through `lo`. The routes of a rail share it.
    near: Arc<Socket>,
}

/// One rail's side of the sockets.
pub(crate) struct RailSockets {
    pub name: String,
    pub addr: IpAddr,
    families: Families,
    /// Index of the interface; changes when it is removed and made again.
    pub index: AtomicU32,
    /// The rail is the loopback interface: everything is local, nothing is bound to the device.
    pub loopback: bool,
    quick: Senders,
    /// Buffers of their own, so that what is small never waits behind bulk (hazard H4c).
    bulk: Senders,
    /// The kernel does not cut trains for this rail.
    uncut: AtomicBool,
}

pub(crate) struct Shared {
    pub rails: Vec<RailSockets>,
    pub families: Families,
    /// Addresses of this host.
    own: RwLock<Vec<IpAddr>>,
    /// Counts devices that were removed and made again.
    generation: AtomicU32,
}

pub(crate) fn socket(domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let s = Socket::new(domain, kind, Some(protocol))?;
    s.set_nonblocking(true)?;
    if domain == Domain::IPV6 {
        // Switches that hash the flow label in place of ports (RFC 6438) then see a route of its own behind each port. The usual
        // setting of the kernel does that anyway, `net.ipv6.auto_flowlabels=2` only for sockets that want it, 0 for none.
        let _ = sys::set_int(s.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 1);
    }
    Ok(s)
}

/// A socket that only sends, from a port that the kernel chooses if `port` is 0; or one of those that share the port of the process.
fn sender(addr: IpAddr, port: u16, device: Option<&str>, purpose: Purpose) -> io::Result<Socket> {
    let s = socket(Families::of([addr]).domain(), Type::DGRAM, Protocol::UDP)?;
    if purpose == Purpose::Connected {
        let _ = s.set_recv_buffer_size(RECV_BUFFER_BYTES);
        s.set_reuse_port(true)?;
    } else {
        // No peer sends to this socket; stray datagrams are dropped early.
        let _ = s.set_recv_buffer_size(1);
    }
    if purpose == Purpose::Bulk {
        let _ = s.set_send_buffer_size(BULK_SEND_BUFFER_BYTES);
    } else {
        let _ = sys::set_int(s.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, PRIORITY);
    }
    // The engine finds the path MTU by itself (RFC 8899): nothing is fragmented on the way, and what routers report to
    // the kernel, true or false, is ignored.
    if addr.is_ipv4() {
        sys::set_int(s.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    } else {
        sys::set_int(s.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
    }
    if let Some(device) = device {
        s.bind_device(Some(device.as_bytes()))?;
    }
    s.bind(&SocketAddr::new(addr, port).into())?;
    Ok(s)
}

impl Shared {
    pub fn new(rails: &[Interface], own: Vec<IpAddr>, notes: &mut Vec<String>) -> io::Result<Self> {
        let families = Families::of(rails.iter().map(|r| r.addr));
        let mut sockets = Vec::new();
        for r in rails {
            let loopback = r.addr.is_loopback();
            let mut senders = |purpose| -> io::Result<Senders> {
                let out = match sender(r.addr, 0, Some(&r.name), purpose) {
                    _ if loopback => None,
                    Ok(s) => Some(s),
                    Err(e) => {
                        if purpose == Purpose::Quick {
                            notes.push(format!(
                                "rail {}: the kernel refuses to bind a socket to the interface ({e}); every datagram \
                                 names it",
                                r.name
                            ));
                        }
                        None
                    }
                };
                Ok(Senders { out, near: Arc::new(sender(r.addr, 0, None, purpose)?) })
            };
            let (quick, bulk) = (senders(Purpose::Quick)?, senders(Purpose::Bulk)?);
            sockets.push(RailSockets {
                name: r.name.clone(),
                addr: r.addr,
                families,
                index: AtomicU32::new(r.index),
                loopback,
                quick,
                bulk,
                uncut: AtomicBool::new(false),
            });
        }
        Ok(Self { rails: sockets, families, own: RwLock::new(own), generation: AtomicU32::new(0) })
    }

    pub fn rail(&self, rail: RailId) -> Option<&RailSockets> {
        self.rails.get(usize::from(rail.0))
    }

    /// Appends the descriptors of the send sockets.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        for r in &self.rails {
            r.descriptors(out);
            out.extend([&r.quick, &r.bulk].map(|s| s.near.as_raw_fd()));
        }
    }

    /// Send sockets for a rail beside those that it has, with source ports of their own: these, as [`RailSockets::ports`] told them, if they are free;
    /// 0 and ports that are taken become others. `None`: the kernel refuses.
    pub fn another(&self, rail: RailId, ports: [u16; 2]) -> Option<RailSockets> {
        let r = self.rail(rail)?;
        // where the kernel refuses to bind to devices all datagrams leave by the wildcard socket, whose port is known
        r.quick.out.as_ref()?;
        let senders = |own: &Senders, port, purpose| {
            let at = |port| sender(r.addr, port, Some(&r.name), purpose);
            let out = Some(at(port).or_else(|_| at(0)).ok()?);
            Some(Senders { out, near: own.near.clone() })
        };
        Some(RailSockets {
            name: r.name.clone(),
            addr: r.addr,
            families: r.families,
            index: AtomicU32::new(r.index.load(Ordering::Relaxed)),
            loopback: r.loopback,
            quick: senders(&r.quick, ports[0], Purpose::Quick)?,
            bulk: senders(&r.bulk, ports[1], Purpose::Bulk)?,
            uncut: AtomicBool::new(r.uncut.load(Ordering::Relaxed)),
        })
    }

    /// Whether `ip` belongs to this host.
    pub fn is_near(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.own.read().contains(&ip)
    }

    /// An address came to this host.
    pub fn address_added(&self, ip: IpAddr) {
        let mut own = self.own.write();
        if !own.contains(&ip) {
            own.push(ip);
        }
    }

    /// An address left this host.
    pub fn address_removed(&self, ip: IpAddr) {
        self.own.write().retain(|a| *a != ip);
    }

    /// Replaces all addresses of this host.
    pub fn addresses_are(&self, all: Vec<IpAddr>) {
        *self.own.write() = all;
    }

    /// A socket on `port`, the process's own, that is connected to one peer.
    ///
    /// # Errors
    /// The kernel refuses something, such as to bind to the device.
    pub fn connected(&self, rail: RailId, to: SocketAddr, port: u16) -> io::Result<Socket> {
        let r = self.rail(rail).ok_or(io::ErrorKind::NotFound)?;
        let device = match &r.quick.out {
            _ if r.loopback || self.is_near(to.ip()) => None,
            Some(_) => Some(r.name.as_str()),
            // any other socket would leave the choice of the rail to the routing table
            None => return Err(io::ErrorKind::Unsupported.into()),
        };
        let s = sender(r.addr, port, device, Purpose::Connected)?;
        s.connect(&to.into())?;
        Ok(s)
    }

    /// The rail of a packet that came in on interface `index` for address `to`. The interface decides, because it says what
    /// still works; the address does where the interface is no rail (packets of the host to itself come in on `lo`), or
    /// is several.
    pub fn rail_of(&self, index: u32, to: Option<IpAddr>) -> Option<RailId> {
        let mut by_index = None;
        for (i, r) in self.rails.iter().enumerate() {
            if r.index.load(Ordering::Relaxed) == index {
                if Some(r.addr) == to {
                    return Some(RailId(i as u8));
                }
                by_index = by_index.or(Some(RailId(i as u8)));
            }
        }
        by_index.or_else(|| self.rail_at(to?))
    }

    /// The rail with this address.
    pub fn rail_at(&self, addr: IpAddr) -> Option<RailId> {
        self.rails.iter().position(|r| r.addr == addr).map(|i| RailId(i as u8))
    }

    /// Changes whenever a rail's device was removed and made again.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The interface `rail` was removed and made again: its sockets are bound to the old one, which is gone for ever.
    pub fn rebind(&self, rail: usize, index: u32) {
        let r = &self.rails[rail];
        if r.index.swap(index, Ordering::Relaxed) == index {
            return;
        }
        self.generation.fetch_add(1, Ordering::Release);
        for (senders, purpose) in [(&r.quick, Purpose::Quick), (&r.bulk, Purpose::Bulk)] {
            if let Some(out) = &senders.out {
                if let Ok(fresh) = sender(r.addr, 0, Some(&r.name), purpose) {
                    let _ = sys::replace_fd(out.as_raw_fd(), fresh.into());
                }
            }
        }
    }
}

impl RailSockets {
    /// The source ports of small datagrams and of bulk, where sockets are bound to the device; 0 where none is.
    pub fn ports(&self) -> [u16; 2] {
        let port = |socket: &Socket| Some(socket.local_addr().ok()?.as_socket()?.port());
        [&self.quick, &self.bulk].map(|s| s.out.as_ref().and_then(port).unwrap_or(0))
    }

    /// Appends the descriptors of the sockets that are bound to the device.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        let bound = [&self.quick, &self.bulk].into_iter().filter_map(|s| s.out.as_ref());
        out.extend(bound.map(AsRawFd::as_raw_fd));
    }

    /// Sends one small datagram from this rail; `wild` is the socket that serves when no other can.
    pub fn send(&self, near: bool, wild: &Socket, to: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(&self.quick, near, wild, to, bytes)
    }

    fn send_with(
        &self,
        senders: &Senders,
        near: bool,
        wild: &Socket,
        to: SocketAddr,
        bytes: &[u8],
    ) -> io::Result<usize> {
        if near || self.loopback {
            sys::send_to(senders.near.as_raw_fd(), bytes, to)
        } else if let Some(out) = &senders.out {
            sys::send_to(out.as_raw_fd(), bytes, to)
        } else {
            let index = self.index.load(Ordering::Relaxed);
            let (to, from) = self.for_wild(to);
            sys::send_to_via(wild.as_raw_fd(), bytes, to, index, from, 0)
        }
    }

    /// Destination and source as the wildcard socket wants them.
    fn for_wild(&self, to: SocketAddr) -> (SocketAddr, IpAddr) {
        (SocketAddr::new(self.families.written(to.ip()), to.port()), self.families.written(self.addr))
    }

    /// Makes the kernel keep its ARP/ND entry for `to` on this rail.
    pub fn keep_neighbour(&self, wild: &Socket, to: SocketAddr) -> io::Result<()> {
        if let Some(out) = &self.quick.out {
            sys::keep_neighbour(out.as_raw_fd(), to)
        } else {
            let index = self.index.load(Ordering::Relaxed);
            let (to, from) = self.for_wild(to);
            sys::send_to_via(wild.as_raw_fd(), &[], to, index, from, sys::KEEP_NEIGHBOUR).map(drop)
        }
    }

    /// Sends a train from this rail; returns how many of its datagrams went, and why the next did not.
    pub fn send_train(
        &self,
        near: bool,
        wild: &Socket,
        to: SocketAddr,
        bytes: &[u8],
        segment: usize,
    ) -> (usize, io::Result<()>) {
        let one = if near || self.loopback { Some(&*self.bulk.near) } else { self.bulk.out.as_ref() };
        if let (Some(socket), Ok(cut), false) =
            (one, u16::try_from(segment), bytes.len() <= segment || self.uncut.load(Ordering::Relaxed))
        {
            match sys::send_train(socket.as_raw_fd(), bytes, to, cut) {
                Ok(()) => return (bytes.len().div_ceil(segment), Ok(())),
                Err(e) => match e.raw_os_error() {
                    // The adapter computes no checksums (EIO), or the kernel is too old (EINVAL, also returned for a
                    // segment above the MTU): one by one.
                    Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => {
                        self.uncut.store(true, Ordering::Relaxed);
                    }
                    Some(libc::EINVAL | libc::EMSGSIZE) => {}
                    _ => return (0, Err(e)),
                },
            }
        }
        for (i, datagram) in bytes.chunks(segment).enumerate() {
            if let Err(e) = self.send_with(&self.bulk, near, wild, to, datagram) {
                return (i, Err(e));
            }
        }
        (bytes.len().div_ceil(segment), Ok(()))
    }

    /// Whether the link is there and up, asked of the kernel now.
    pub fn is_up(&self) -> bool {
        sys::interface_flags(self.quick.near.as_raw_fd(), &self.name).is_some_and(crate::netlink::running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::process::Command;

    /// The flow labels of all packets of IPv6 that pass the loopback interface.
    struct Labels(Socket);

    impl Labels {
        /// In a network namespace of this thread's own, in which sockets have labels if they want them.
        fn new() -> io::Result<Self> {
            // SAFETY: it takes no pointer, and changes this thread alone.
            sys::check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            std::fs::write("/proc/sys/net/ipv6/auto_flowlabels", "2")?;
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
            if !up.success() {
                return Err(io::Error::other("the loopback interface stays down"));
            }
            let kind = i32::from((libc::ETH_P_IPV6 as u16).to_be());
            let all = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(kind)))?;
            all.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
            Ok(Self(all))
        }

        /// That of the next packet with this source port.
        fn next(&self, port: u16) -> u32 {
            loop {
                let mut room = [std::mem::MaybeUninit::uninit(); 48];
                let n = self.0.recv(&mut room).expect("a packet");
                // SAFETY: so many bytes were written.
                let packet: Vec<u8> = room[..n].iter().map(|b| unsafe { b.assume_init() }).collect();
                if n >= 42 && packet[40..42] == port.to_be_bytes() {
                    return u32::from_be_bytes([0, packet[1] & 15, packet[2], packet[3]]);
                }
            }
        }
    }

    #[test]
    fn every_port_has_a_flow_label_of_its_own() {
        let labels = match Labels::new() {
            Ok(labels) => labels,
            Err(e) => return eprintln!("SKIPPED: no network namespace with IPv6: {e}"),
        };
        let home = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let port_of = |s: &Socket| s.local_addr().unwrap().as_socket().unwrap().port();
        let listener = TcpListener::bind((home, 0)).unwrap();
        let streams: Vec<u32> = (0..4)
            .map(|_| {
                let s = socket(Domain::IPV6, Type::STREAM, Protocol::TCP).unwrap();
                s.bind(&SocketAddr::new(home, 0).into()).unwrap();
                let begun = s.connect(&listener.local_addr().unwrap().into());
                assert!(begun.is_ok() || begun.is_err_and(|e| e.raw_os_error() == Some(libc::EINPROGRESS)));
                labels.next(port_of(&s))
            })
            .collect();
        let to = UdpSocket::bind((home, 0)).unwrap().local_addr().unwrap();
        let datagrams: Vec<u32> = (0..4)
            .map(|_| {
                let s = sender(home, 0, None, Purpose::Quick).unwrap();
                let send = || {
                    s.send_to(b"hello", &to.into()).unwrap();
                    labels.next(port_of(&s))
                };
                let label = send();
                assert_eq!(send(), label, "one route for one port");
                label
            })
            .collect();
        for mut kind in [streams, datagrams] {
            assert!(!kind.contains(&0), "{kind:?}");
            kind.sort_unstable();
            kind.dedup();
            // two of four may meet by chance, once in 200,000 runs
            assert!(kind.len() >= 3, "{kind:?}");
        }
    }
}
