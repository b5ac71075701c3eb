//! Endpoints that are known by IP address and port (FI_SOCKADDR_IN, FI_SOCKADDR_IN6), for programs that know nothing else of each other.
//!
//! Rerail's own address contains a token and all rails, which a port number cannot express. So such an endpoint has a
//! *name*: a UDP port of its own, at which a thread answers queries for the endpoint's address
//! ([`rerail_wire::inquiry`]). The query is sent when a name is inserted into an address vector and, without an answer,
//! when it is used. Everything after that is as with Rerail's own addresses: all rails, all promises, and a process
//! that comes back under the same name is another one. The alternative, a token computed from address and port, would
//! let a new process be mistaken for its predecessor.
//!
//! A process that can query a name can also connect: names are given only to programs that request this kind of
//! address.

use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::log;
use libc::{c_int, c_void};
use rerail_wire::Address;
use rerail_wire::address::ADDRESS_BYTES;
use rerail_wire::inquiry::{INQUIRY_BYTES, answer, question, read_answer, read_question};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Format of our addresses: a blob that only this provider reads. The high bit says "specific to the provider".
pub const ADDR_FORMAT: u32 = FI_PROV_SPECIFIC | 0x5252;
/// Bytes of a `struct sockaddr_in`.
const SOCKADDR_IN_BYTES: usize = 16;
/// Bytes of a `struct sockaddr_in6`.
const SOCKADDR_IN6_BYTES: usize = 28;
/// How long a name is queried that is to be used now: a program that is just starting answers soon.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that is only inserted: it may be used much later.
pub const PATIENCE_TO_INSERT: Duration = Duration::from_millis(200);
/// Waiting time for an answer: the first, the longest.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How often the thread looks whether it is to end, should nothing wake it.
const LOOK: Duration = Duration::from_millis(500);

/// Which kind of IP address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// That of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Any address of this host.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// This host, for itself.
    pub fn loopback(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// How the endpoints of a domain are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// By Rerail's own addresses.
    Own,
    /// By IP address and port.
    Name(Family),
}

impl Format {
    /// From libfabric's number; `None`: a format that is not there.
    pub fn of(addr_format: u32) -> Option<Self> {
        match addr_format {
            FI_FORMAT_UNSPEC | ADDR_FORMAT => Some(Format::Own),
            FI_SOCKADDR | FI_SOCKADDR_IN => Some(Format::Name(Family::V4)),
            FI_SOCKADDR_IN6 => Some(Format::Name(Family::V6)),
            _ => None,
        }
    }

    /// libfabric's number.
    pub fn number(self) -> u32 {
        match self {
            Format::Own => ADDR_FORMAT,
            Format::Name(Family::V4) => FI_SOCKADDR_IN,
            Format::Name(Family::V6) => FI_SOCKADDR_IN6,
        }
    }

    /// Bytes of an address.
    pub fn bytes(self) -> usize {
        match self {
            Format::Own => ADDRESS_BYTES,
            Format::Name(Family::V4) => SOCKADDR_IN_BYTES,
            Format::Name(Family::V6) => SOCKADDR_IN6_BYTES,
        }
    }

    /// Reads a name of this format; `None`: it is too short, or of another.
    pub fn parse(self, b: &[u8]) -> Option<SocketAddr> {
        parse(b).filter(|name| self == Format::Name(Family::of(name.ip())))
    }
}

/// Reads a `struct sockaddr_in` or `sockaddr_in6`; `None`: it is too short, or of another family. Flow and scope of IPv6 are not looked
/// at: an address that means something on one link only is no name.
fn parse(b: &[u8]) -> Option<SocketAddr> {
    let family = c_int::from(u16::from_ne_bytes(*b.first_chunk()?));
    let port = u16::from_be_bytes([*b.get(2)?, *b.get(3)?]);
    let ip: IpAddr = match family {
        libc::AF_INET => b.first_chunk::<SOCKADDR_IN_BYTES>()?[4..].first_chunk::<4>().copied()?.into(),
        libc::AF_INET6 => b.first_chunk::<SOCKADDR_IN6_BYTES>()?[8..].first_chunk::<16>().copied()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Reads a caller's name.
///
/// # Safety
/// `at` is null, or has `len` bytes.
pub unsafe fn read(at: *const c_void, len: usize) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| parse(unsafe { std::slice::from_raw_parts(at.cast(), len) })).flatten()
}

/// The bytes of a `struct sockaddr_in` or `sockaddr_in6`.
pub fn to_bytes(name: SocketAddr) -> Vec<u8> {
    let (family, bytes) = match name {
        SocketAddr::V4(_) => (libc::AF_INET, SOCKADDR_IN_BYTES),
        SocketAddr::V6(_) => (libc::AF_INET6, SOCKADDR_IN6_BYTES),
    };
    let mut b = vec![0; bytes];
    b[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    b[2..4].copy_from_slice(&name.port().to_be_bytes());
    match name.ip() {
        IpAddr::V4(ip) => b[4..8].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => b[8..24].copy_from_slice(&ip.octets()),
    }
    b
}

/// From what a program says of a host and a service: an address or a name that can be resolved, and the number of a port.
///
/// # Errors
/// -FI_ENODATA when that is not so.
pub fn resolve(node: &str, service: Option<&str>, family: Family) -> Result<SocketAddr> {
    let none = |what: &str| {
        log::info(what);
        Errno(FI_ENODATA)
    };
    let port = match service {
        Some(s) => s.parse().map_err(|_| none(&format!("the service {s} is not the number of a port")))?,
        None => 0,
    };
    let mut found = (node, port).to_socket_addrs().map_err(|e| none(&format!("{node}: {e}")))?;
    let fits = found.find(|a| Family::of(a.ip()) == family);
    let fits = fits.ok_or_else(|| none(&format!("{node} has no {} address", family.name())))?;
    Ok(SocketAddr::new(fits.ip(), port))
}

/// The family in which a host is to be named: that of its addresses; the first of `preferred` that it has.
pub fn family_of(node: &str, preferred: [Family; 2]) -> Family {
    let Ok(found) = (node, 0).to_socket_addrs() else { return preferred[0] };
    let found: Vec<Family> = found.map(|a| Family::of(a.ip())).collect();
    preferred.into_iter().find(|f| found.contains(f)).unwrap_or(preferred[0])
}

/// The host that comes `steps` after `node`, as fi_av(3) counts for `fi_av_insertsym`: an address, or a name that ends in a number, which keeps
/// its width. `None`: there is none.
pub fn later_host(node: &str, steps: usize) -> Option<String> {
    if steps == 0 {
        return Some(node.to_owned());
    }
    match node.parse() {
        Ok(IpAddr::V4(ip)) => {
            let later = u32::from(ip).checked_add(u32::try_from(steps).ok()?)?;
            return Some(Ipv4Addr::from(later).to_string());
        }
        Ok(IpAddr::V6(ip)) => {
            let later = u128::from(ip).checked_add(steps as u128)?;
            return Some(Ipv6Addr::from(later).to_string());
        }
        Err(_) => {}
    }
    let digits = node.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (name, number) = node.split_at(node.len() - digits);
    let later = number.parse::<usize>().ok()?.checked_add(steps)?;
    Some(format!("{name}{later:0digits$}"))
}

/// What the thread shares with its owner.
struct Desk {
    socket: UdpSocket,
    /// Known once the endpoint is enabled; queries get no answer before.
    address: OnceLock<[u8; ADDRESS_BYTES]>,
    stop: AtomicBool,
}

impl Desk {
    fn serve(&self) {
        // One byte more than a question has: what is longer is none.
        let mut b = [0; INQUIRY_BYTES + 1];
        while !self.stop.load(Ordering::Acquire) {
            let Ok((n, from)) = self.socket.recv_from(&mut b) else { continue };
            if let (Ok(number), Some(address)) = (read_question(&b[..n]), self.address.get()) {
                let _ = self.socket.send_to(&answer(number, address), from);
            }
        }
    }
}

/// The name of an endpoint. The port is free again when it is dropped.
pub struct Name {
    desk: Arc<Desk>,
    family: Family,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Name {
    /// Takes the port (0: any that is free).
    ///
    /// # Errors
    /// -FI_EADDRINUSE when the port is taken, or another error of the system.
    pub fn open(family: Family, port: u16) -> Result<Self> {
        let refused = |e: std::io::Error| {
            log::complain(&format!("UDP port {port} cannot be had: {e}"));
            Errno(e.raw_os_error().unwrap_or(FI_EADDRNOTAVAIL))
        };
        let socket = UdpSocket::bind((family.unspecified(), port)).map_err(refused)?;
        socket.set_read_timeout(Some(LOOK)).map_err(refused)?;
        let port = socket.local_addr().map_err(refused)?.port();
        let desk = Arc::new(Desk { socket, address: OnceLock::new(), stop: AtomicBool::new(false) });
        let at_work = desk.clone();
        let thread = rerail_runtime::spawn("rerail-name", move || at_work.serve()).map_err(refused)?;
        Ok(Self { desk, family, port, thread: Some(thread) })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Queries are answered with this address from now on.
    pub fn stands_for(&self, address: [u8; ADDRESS_BYTES]) {
        let _ = self.desk.address.set(address);
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::Release);
        // Wakes the thread; where there is no loopback it looks by itself.
        let _ = self.desk.socket.send_to(&[0], (self.family.loopback(), self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The address of the endpoint with this name; `None`: no answer within `patience`.
///
/// # Errors
/// -FI_EINVAL when another version of Rerail answers (the user gets a message), or an error of the system.
pub fn ask(name: SocketAddr, patience: Duration) -> Result<Option<Address>> {
    let failed = |e: std::io::Error| Errno(e.raw_os_error().unwrap_or(FI_EHOSTUNREACH));
    let socket = UdpSocket::bind((Family::of(name.ip()).unspecified(), 0)).map_err(failed)?;
    let number = RandomState::new().hash_one(name);
    let end = Instant::now() + patience;
    let mut pause = ASK_AGAIN.0;
    let mut b = [0; INQUIRY_BYTES + 1];
    while Instant::now() < end {
        // A network that is not there now may be in a moment.
        let _ = socket.send_to(&question(number), name);
        let again = end.min(Instant::now() + pause);
        pause = (pause * 2).min(ASK_AGAIN.1);
        loop {
            let left = again.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left)).map_err(failed)?;
            let Ok((n, _)) = socket.recv_from(&mut b) else { continue };
            match read_answer(&b[..n]) {
                Ok((same, address)) if same == number => {
                    return address.map(Some).map_err(|why| {
                        log::complain(&format!(
                            "the process at {name} has another version of rerail ({why}): install the same one on every node"
                        ));
                        INVALID
                    });
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        let token = rerail_wire::Token([5; 16]);
        Address {
            token,
            endpoint: 1,
            encrypts: false,
            rails: vec![rerail_core::Locator::ip([10, 0, 0, 1].into(), port)],
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, family, other) in
            [("10.1.2.3:7471", Family::V4, Family::V6), ("[fd00::1:2]:7471", Family::V6, Family::V4)]
        {
            let name: SocketAddr = name.parse().unwrap();
            let bytes = to_bytes(name);
            assert_eq!(bytes.len(), Format::Name(family).bytes());
            assert_eq!(Format::Name(family).parse(&bytes), Some(name));
            assert_eq!(Format::Name(other).parse(&bytes), None);
            assert_eq!(Format::Own.parse(&bytes), None);
            (0..bytes.len()).for_each(|n| assert_eq!(parse(&bytes[..n]), None, "{n} bytes are too few"));
        }
        assert_eq!(parse(&address(9).to_bytes()), None, "one of Rerail's own is none");
    }

    #[test]
    fn hosts_are_counted_as_people_count_them() {
        let later = |node, steps| later_host(node, steps);
        assert_eq!(later("10.1.1.255", 1).as_deref(), Some("10.1.2.0"));
        assert_eq!(later("fd00::ffff", 2).as_deref(), Some("fd00::1:1"));
        assert_eq!(later("host10", 1).as_deref(), Some("host11"));
        assert_eq!(later("node-099", 2).as_deref(), Some("node-101"));
        assert_eq!(later("any", 0).as_deref(), Some("any"));
        assert_eq!((later("any", 1), later("255.255.255.255", 1)), (None, None));
        assert_eq!(later("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1), None);
    }

    #[test]
    fn a_name_is_answered_for_and_its_port_is_free_afterwards() {
        for family in [Family::V4, Family::V6] {
            if UdpSocket::bind((family.loopback(), 0)).is_err() {
                eprintln!("SKIPPED: this machine has no {}", family.name());
                continue;
            }
            let name = Name::open(family, 0).unwrap();
            let at = SocketAddr::new(family.loopback(), name.port());
            assert_eq!(Name::open(family, name.port()).err(), Some(Errno(FI_EADDRINUSE)));
            name.stands_for(address(1).to_bytes());
            assert_eq!(ask(at, PATIENCE), Ok(Some(address(1))));
            drop(name);
            assert_eq!(ask(at, Duration::from_millis(1)), Ok(None));
            let next = Name::open(family, at.port()).unwrap();
            // Queried before it has an address: the query is repeated.
            let asked = std::thread::spawn(move || ask(at, PATIENCE));
            std::thread::sleep(Duration::from_millis(5));
            next.stands_for(address(2).to_bytes());
            assert_eq!(asked.join().unwrap(), Ok(Some(address(2))));
        }
    }

    #[test]
    fn hosts_and_services_are_resolved() {
        let (v4, v6) = (Family::V4, Family::V6);
        assert_eq!(resolve("127.0.0.1", Some("80"), v4), Ok("127.0.0.1:80".parse().unwrap()));
        assert_eq!(resolve("127.0.0.1", None, v4), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(resolve("127.0.0.1", Some("smtp"), v4), Err(Errno(FI_ENODATA)));
        assert_eq!(resolve("::1", Some("80"), v4), Err(Errno(FI_ENODATA)));
        assert_eq!(resolve("::1", Some("80"), v6), Ok("[::1]:80".parse().unwrap()));
        assert_eq!((family_of("::1", [v4, v6]), family_of("127.0.0.1", [v6, v4])), (v6, v4));
        assert_eq!(family_of("no-such-host.invalid", [v6, v4]), v6);
    }
}
