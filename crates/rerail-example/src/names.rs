//! Names. Owns: the names of sockets, and what makes two processes neighbours.
//!
//! A socket's name is `rerail-example/SERVICE/RAIL/WHAT` in the abstract namespace, which belongs to a network namespace. `WHAT` is
//! `datagrams`, `streams` for the listener, or the number of the stream at the end that connects: so each end knows by the name of the other
//! which process and rail it has before it.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::os::fd::OwnedFd;

const PREFIX: &str = "rerail-example";

/// Name of a socket.
pub(crate) fn name(service: u32, rail: u8, what: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{PREFIX}/{service}/{rail}/{what}").as_bytes())
}

/// Service and rail of the process that gave a socket this name. `None`: it is not one of ours.
pub(crate) fn parse(from: Option<SocketAddrAny>) -> Option<(u32, u8)> {
    let from = SocketAddrUnix::try_from(from?).ok()?;
    let mut parts = std::str::from_utf8(from.abstract_name()?).ok()?.split('/');
    let (prefix, service, rail) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (prefix == PREFIX && service != 0).then_some((service, rail))
}

/// A socket with a name; non-blocking, closed on exec.
pub(crate) fn socket(kind: SocketType, name: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    bind(&socket, name)?;
    Ok(socket)
}

/// Names this boot of this host and this network namespace: processes that share it meet. Short, because it takes room in the address; should
/// two hosts have the same, a connection is refused, or the handshake finds that it is not the peer's.
pub(crate) fn host() -> io::Result<[u8; 5]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let namespace = rustix::fs::stat("/proc/self/ns/net")?.st_ino;
    let hash = blake3::hash(&[&boot[..], &namespace.to_le_bytes()].concat());
    Ok(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// Not 0, and hard to guess.
pub(crate) fn random_number() -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    loop {
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if bytes != [0; 4] {
            return Ok(u32::from_le_bytes(bytes));
        }
    }
}
