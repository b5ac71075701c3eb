//! Endpoints that are known by IP address and port (FI_SOCKADDR_IN), for programs that know nothing else of each other.
//!
//! Rerail's own address has a token and all rails in it, which no port number can stand for. So such an endpoint has a *name*: a
//! UDP port of its own, at which a thread answers whoever asks for the endpoint's address ([`rerail_wire::inquiry`]). Inserting a
//! name into an address vector asks, or else using it, and everything after that is as with Rerail's own addresses: all rails, all promises, and a
//! process that comes back under the same name is another one. The alternative, a token computed from address and port,
//! would let a new process be taken for the one before it.
//!
//! Whoever can ask can also connect: names are given only to programs that ask for this kind of address.

use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::log;
use libc::c_void;
use rerail_wire::Address;
use rerail_wire::address::ADDRESS_BYTES;
use rerail_wire::inquiry::{INQUIRY_BYTES, answer, question, read_answer, read_question};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a `struct sockaddr_in`.
pub const NAME_BYTES: usize = 16;
/// How long is asked for a name that is to be used now: a program that is just starting answers soon.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that is only inserted: it may be used much later.
pub const PATIENCE_TO_INSERT: Duration = Duration::from_millis(200);
/// Waiting time for an answer: the first, the longest.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How often the thread looks whether it is to end, should nothing wake it.
const LOOK: Duration = Duration::from_millis(500);

/// How the endpoints of a domain are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// By Rerail's own addresses.
    Own,
    /// By IP address and port.
    Name,
}

impl Format {
    /// From libfabric's number; `None`: a format that is not there.
    pub fn of(addr_format: u32) -> Option<Self> {
        match addr_format {
            FI_FORMAT_UNSPEC | crate::info::ADDR_FORMAT => Some(Format::Own),
            FI_SOCKADDR | FI_SOCKADDR_IN => Some(Format::Name),
            _ => None,
        }
    }

    /// libfabric's number.
    pub fn number(self) -> u32 {
        match self {
            Format::Own => crate::info::ADDR_FORMAT,
            Format::Name => FI_SOCKADDR_IN,
        }
    }

    /// Bytes of an address.
    pub fn bytes(self) -> usize {
        match self {
            Format::Own => ADDRESS_BYTES,
            Format::Name => NAME_BYTES,
        }
    }
}

/// Reads a `struct sockaddr_in`; `None`: it is too short, or of another family.
pub fn parse(b: &[u8]) -> Option<SocketAddrV4> {
    let b = b.first_chunk::<NAME_BYTES>()?;
    let family = u16::from_ne_bytes([b[0], b[1]]);
    let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
    (family == libc::AF_INET as u16).then(|| SocketAddrV4::new(ip, u16::from_be_bytes([b[2], b[3]])))
}

/// Reads a caller's `struct sockaddr_in`.
///
/// # Safety
/// `at` is null, or has `len` bytes.
pub unsafe fn read(at: *const c_void, len: usize) -> Option<SocketAddrV4> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| parse(unsafe { std::slice::from_raw_parts(at.cast(), len) })).flatten()
}

/// The bytes of a `struct sockaddr_in`.
pub fn to_bytes(name: SocketAddrV4) -> [u8; NAME_BYTES] {
    let mut b = [0; NAME_BYTES];
    b[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    b[2..4].copy_from_slice(&name.port().to_be_bytes());
    b[4..8].copy_from_slice(&name.ip().octets());
    b
}

/// From what a program says of a host and a service: an address or a name that can be resolved, and the number of a port.
///
/// # Errors
/// -FI_ENODATA when that is not so.
pub fn resolve(node: &str, service: Option<&str>) -> Result<SocketAddrV4> {
    let none = |what: &str| {
        log::info(what);
        Errno(FI_ENODATA)
    };
    let port = match service {
        Some(s) => s.parse().map_err(|_| none(&format!("the service {s} is not the number of a port")))?,
        None => 0,
    };
    let found = (node, port).to_socket_addrs().map_err(|e| none(&format!("{node}: {e}")))?;
    let v4 = found.filter_map(|a| match a.ip() {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, a.port())),
        IpAddr::V6(_) => None,
    });
    v4.into_iter().next().ok_or_else(|| none(&format!("{node} has no IPv4 address")))
}

/// The host that comes `steps` after `node`, as fi_av(3) counts for `fi_av_insertsym`: an address, or a name that ends in a number, which keeps
/// its width. `None`: there is none.
pub fn later_host(node: &str, steps: usize) -> Option<String> {
    if steps == 0 {
        return Some(node.to_owned());
    }
    if let Ok(ip) = node.parse::<Ipv4Addr>() {
        let later = u32::from(ip).checked_add(u32::try_from(steps).ok()?)?;
        return Some(Ipv4Addr::from(later).to_string());
    }
    let digits = node.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (name, number) = node.split_at(node.len() - digits);
    let later = number.parse::<usize>().ok()?.checked_add(steps)?;
    Some(format!("{name}{later:0digits$}"))
}

/// What the thread shares with its owner.
struct Desk {
    socket: UdpSocket,
    /// Known once the endpoint is enabled; nobody is answered before.
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
    port: u16,
    thread: Option<JoinHandle<()>>,
}

impl Name {
    /// Takes the port (0: any that is free).
    ///
    /// # Errors
    /// -FI_EADDRINUSE when somebody has it, and whatever else the system says.
    pub fn open(port: u16) -> Result<Self> {
        let refused = |e: std::io::Error| {
            log::complain(&format!("UDP port {port} cannot be had: {e}"));
            Errno(e.raw_os_error().unwrap_or(FI_EADDRNOTAVAIL))
        };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(refused)?;
        socket.set_read_timeout(Some(LOOK)).map_err(refused)?;
        let port = socket.local_addr().map_err(refused)?.port();
        let desk = Arc::new(Desk { socket, address: OnceLock::new(), stop: AtomicBool::new(false) });
        let at_work = desk.clone();
        let thread = rerail_runtime::spawn("rerail-name", move || at_work.serve()).map_err(refused)?;
        Ok(Self { desk, port, thread: Some(thread) })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whoever asks is told this from now on.
    pub fn stands_for(&self, address: [u8; ADDRESS_BYTES]) {
        let _ = self.desk.address.set(address);
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::Release);
        // Wakes the thread; where there is no loopback it looks by itself.
        let _ = self.desk.socket.send_to(&[0], (Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The address of the endpoint with this name; `None`: nobody has answered for as long as `patience`.
///
/// # Errors
/// -FI_EINVAL when it is another version of Rerail that answers (the user is told), or what the system says.
pub fn ask(name: SocketAddrV4, patience: Duration) -> Result<Option<Address>> {
    let failed = |e: std::io::Error| Errno(e.raw_os_error().unwrap_or(FI_EHOSTUNREACH));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed)?;
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
        Address { token, port, endpoint: 1, encrypts: false, rails: vec!["10.0.0.1".parse().unwrap()] }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name: SocketAddrV4 = "10.1.2.3:7471".parse().unwrap();
        let bytes = to_bytes(name);
        assert_eq!(parse(&bytes), Some(name));
        assert_eq!(parse(&bytes[..15]), None);
        assert_eq!(parse(&address(9).to_bytes()), None, "one of Rerail's own is none");
    }

    #[test]
    fn hosts_are_counted_as_people_count_them() {
        let later = |node, steps| later_host(node, steps);
        assert_eq!(later("10.1.1.255", 1).as_deref(), Some("10.1.2.0"));
        assert_eq!(later("host10", 1).as_deref(), Some("host11"));
        assert_eq!(later("node-099", 2).as_deref(), Some("node-101"));
        assert_eq!(later("any", 0).as_deref(), Some("any"));
        assert_eq!((later("any", 1), later("255.255.255.255", 1)), (None, None));
    }

    #[test]
    fn a_name_is_answered_for_and_its_port_is_free_afterwards() {
        let name = Name::open(0).unwrap();
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, name.port());
        assert_eq!(Name::open(name.port()).err(), Some(Errno(FI_EADDRINUSE)));
        name.stands_for(address(1).to_bytes());
        assert_eq!(ask(at, PATIENCE), Ok(Some(address(1))));
        drop(name);
        assert_eq!(ask(at, Duration::from_millis(1)), Ok(None));
        let next = Name::open(at.port()).unwrap();
        // Asked before it can say: it is asked again.
        let asked = std::thread::spawn(move || ask(at, PATIENCE));
        std::thread::sleep(Duration::from_millis(5));
        next.stands_for(address(2).to_bytes());
        assert_eq!(asked.join().unwrap(), Ok(Some(address(2))));
    }

    #[test]
    fn hosts_and_services_are_resolved_to_ipv4() {
        assert_eq!(resolve("127.0.0.1", Some("80")), Ok("127.0.0.1:80".parse().unwrap()));
        assert_eq!(resolve("127.0.0.1", None), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(resolve("127.0.0.1", Some("smtp")), Err(Errno(FI_ENODATA)));
        assert_eq!(resolve("::1", Some("80")), Err(Errno(FI_ENODATA)));
    }
}
