//! Datagrams over UDP. Owns: the one wildcard socket that receives for all rails of the process, beside those that are connected to the most
//! frequent peers ([`crate::connected`]).
//!
//! Bulk goes out in trains that the kernel cuts (`UDP_SEGMENT`) and comes in as the kernel put it together (`UDP_GRO`): one
//! call for up to 64 KiB either way. Where the kernel refuses, each datagram goes by itself.

use crate::connected::ConnectedSockets;
use crate::detours::Detours;
use crate::shared::{RailSockets, Shared};
use crate::sys;
use rerail_rail::rest::Rest;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome,
};
use socket2::Socket;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

pub(crate) struct UdpPort {
    pub shared: Arc<Shared>,
    pub wild: Socket,
    connected: ConnectedSockets,
    detours: Detours,
    /// What came together with one that was asked for by itself.
    rest: Rest,
}

/// Most datagrams that one call throws away before it says that there is nothing: garbage must not hold up the caller.
const GARBAGE_MAX: usize = 64;

impl UdpPort {
    pub fn new(shared: Arc<Shared>, wild: Socket) -> io::Result<Self> {
        let connected = ConnectedSockets::new(&wild)?;
        Ok(Self { shared, wild, connected, detours: Detours::default(), rest: Rest::default() })
    }

    /// What an error of a send means.
    fn outcome(r: &RailSockets, e: &io::Error) -> SendOutcome {
        match e.raw_os_error() {
            Some(libc::ENODEV | libc::ENXIO | libc::ENETDOWN | libc::EADDRNOTAVAIL) => {
                SendOutcome::RailBroken
            }
            // Also returned for a destination without a route, which is no fault of the rail: check the link.
            Some(libc::ENETUNREACH | libc::EINVAL) if !r.is_up() => SendOutcome::RailBroken,
            _ => SendOutcome::Full,
        }
    }
}

fn whole(rail: RailId, from: Locator, len: usize) -> Arrived {
    Arrived { rail, from, len, condition: Condition::Whole }
}

/// A refusal is an ICMP message about an earlier datagram; it has been taken off the socket now.
fn again(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::EINTR))
}

impl DatagramPort for UdpPort {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        let Some(r) = self.shared.rail(rail) else { return SendOutcome::Full };
        let send = || {
            if let Some(led) = self.detours.of(&self.shared, rail, to) {
                return Some(led.send(false, &self.wild, to.socket()?, bytes));
            }
            self.connected.send(&self.shared, rail, to, bytes).or_else(|| {
                let to = to.socket()?;
                Some(r.send(self.shared.is_near(to.ip()), &self.wild, to, bytes))
            })
        };
        let mut result = send();
        if matches!(&result, Some(Err(e)) if again(e)) {
            result = send();
        }
        match result {
            Some(Ok(_)) => SendOutcome::Sent,
            Some(Err(e)) => Self::outcome(r, &e),
            None => SendOutcome::Full,
        }
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        let led = self.detours.of(&self.shared, rail, to);
        let (Some(r), Some(to)) = (led.as_deref().or_else(|| self.shared.rail(rail)), to.socket()) else {
            return TrainOutcome { sent: 0, rest: SendOutcome::Full };
        };
        let near = self.shared.is_near(to.ip());
        let (mut sent, mut result) = r.send_train(near, &self.wild, to, bytes, segment);
        if result.as_ref().is_err_and(again) {
            let (more, last) = r.send_train(near, &self.wild, to, &bytes[sent * segment..], segment);
            (sent, result) = (sent + more, last);
        }
        let rest = result.map_or_else(|e| Self::outcome(r, &e), |()| SendOutcome::Sent);
        TrainOutcome { sent, rest }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let Some(t) = self.recv_train(buf)? else { return Ok(None) };
        let first = t.len.min(t.segment);
        if first < t.len {
            let others = buf[first..t.len].chunks(t.segment);
            self.rest.append(others.map(|d| (whole(t.rail, t.from, d.len()), d)));
        }
        Ok(Some(whole(t.rail, t.from, first)))
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.recv_any(buf, false)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.recv_any(buf, true)
    }

    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        if let (Some(r), Some(to)) = (self.shared.rail(rail), to.socket()) {
            if !self.shared.is_near(to.ip()) {
                // where it fails the kernel has no entry to keep
                let _ = r.keep_neighbour(&self.wild, to);
            }
        }
    }

    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        // the kernel's own addresses are reached through no fabric
        if to.socket().is_some_and(|s| !self.shared.is_near(s.ip())) {
            self.detours.lead(&self.shared, rail, to, route);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.connected.fd()
    }

    fn before_sleep(&self, _streams: bool) -> bool {
        self.connected.before_sleep()
    }

    fn after_sleep(&self) {
        self.connected.after_sleep();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.wild.as_raw_fd());
        self.connected.descriptors(out);
        self.detours.descriptors(out);
        self.shared.descriptors(out);
    }
}

impl UdpPort {
    fn recv_any(&self, buf: &mut [u8], eagerly: bool) -> io::Result<Option<ArrivedTrain>> {
        if let Some(a) = self.rest.take(buf) {
            return Ok(Some(a.into()));
        }
        self.connected.recv(&self.shared, buf, eagerly, |buf| self.recv_wild(buf))
    }

    /// What the wildcard socket has.
    fn recv_wild(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
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
            let to = p.to.map(|ip| ip.to_canonical());
            let (Some(from), Some(rail)) = (p.from, self.shared.rail_of(p.index, to)) else { continue };
            if !p.truncated {
                let segment = if p.segment == 0 { p.len.max(1) } else { p.segment };
                return Ok(Some(ArrivedTrain { segment, ..whole(rail, from.into(), p.len).into() }));
            }
        }
        Ok(None)
    }
}
