//! Datagrams over UDP. Owns: the one wildcard socket that receives for all rails of the process.

use crate::shared::Shared;
use crate::sys;
use rerail_core::RailId;
use rerail_transport::{Arrived, DatagramPort, SendOutcome};
use socket2::Socket;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

pub(crate) struct UdpPort {
    pub shared: Arc<Shared>,
    pub wild: Socket,
}

/// Most datagrams that one call throws away before it says that there is nothing: garbage must not hold up the caller.
const GARBAGE_MAX: usize = 64;

impl DatagramPort for UdpPort {
    fn send(&self, rail: RailId, to: SocketAddr, bytes: &[u8]) -> SendOutcome {
        let Some(r) = self.shared.rail(rail) else { return SendOutcome::Full };
        let near = self.shared.is_near(to.ip());
        let mut result = r.send(near, &self.wild, to, bytes);
        if let Err(e) = &result {
            // A refusal is an ICMP message about an earlier datagram; it has been taken off the socket now.
            if matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::EINTR)) {
                result = r.send(near, &self.wild, to, bytes);
            }
        }
        let Err(e) = result else { return SendOutcome::Sent };
        match e.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
                SendOutcome::RailBroken
            }
            // Also said of a destination without a route, which is no fault of the rail: ask the link.
            Some(libc::ENETUNREACH | libc::EINVAL) if !r.is_up() => SendOutcome::RailBroken,
            _ => SendOutcome::Full,
        }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        for _ in 0..GARBAGE_MAX {
            let p = match sys::recv_packet(self.wild.as_raw_fd(), buf) {
                Ok(Some(p)) => p,
                Ok(None) => return Ok(None),
                Err(e) => match e.raw_os_error() {
                    // The descriptor itself is wrong: nothing will ever come.
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(e),
                    _ => continue,
                },
            };
            let (Some(from), Some(rail)) = (p.from, self.shared.rail_of(p.index, p.to)) else { continue };
            if !p.truncated {
                return Ok(Some(Arrived { rail, from, len: p.len }));
            }
        }
        Ok(None)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wild.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.wild.as_raw_fd());
        self.shared.descriptors(out);
    }
}
