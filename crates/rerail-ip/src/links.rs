//! Link state from rtnetlink. Owns: the netlink socket and the last state told of each rail.
//!
//! A rail is up when its interface is up with carrier *and* has the rail's address: an interface that was removed and made
//! again is of no use before its address is back.

use crate::netlink::{self, Link, LinkAddress, Message};
use crate::shared::Shared;
use crate::sys;
use rerail_rail::LinkWatch;
use rerail_rail::RailId;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Seen {
    running: bool,
    addressed: bool,
    told: bool,
}

pub(crate) struct NetlinkWatch {
    socket: OwnedFd,
    shared: Arc<Shared>,
    seen: Vec<Seen>,
    buf: Vec<u8>,
}

/// Opens the socket; to be done before the survey, so that no change falls between the two.
pub(crate) fn listen() -> io::Result<OwnedFd> {
    sys::netlink((libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32)
}

impl NetlinkWatch {
    /// `up` is what the survey said of each rail.
    pub fn new(socket: OwnedFd, shared: Arc<Shared>, up: &[bool]) -> Self {
        let seen = up.iter().map(|&up| Seen { running: up, addressed: true, told: up }).collect();
        Self { socket, shared, seen, buf: vec![0; 32 * 1024] }
    }

    fn index(&self, rail: usize) -> u32 {
        self.shared.rails[rail].index.load(Ordering::Relaxed)
    }

    fn link(&mut self, l: &Link) {
        for i in 0..self.seen.len() {
            if l.index == self.index(i) {
                self.seen[i].running = l.running();
            } else if l.name == self.shared.rails[i].name {
                // Made again under the same name. The address has to come back first.
                self.shared.rebind(i, l.index);
                self.seen[i].running = l.running();
            }
        }
    }

    fn link_gone(&mut self, index: u32) {
        for i in 0..self.seen.len() {
            if index == self.index(i) {
                self.seen[i].running = false;
                self.seen[i].addressed = false;
            }
        }
    }

    fn address(&mut self, a: &LinkAddress, there: bool) {
        for i in 0..self.seen.len() {
            if a.index == self.index(i) && a.addr == self.shared.rails[i].addr {
                self.seen[i].addressed = there;
            }
        }
        if there { self.shared.address_added(a.addr) } else { self.shared.address_removed(a.addr) }
    }

    /// Messages were lost: asks for the whole state.
    fn resync(&mut self) {
        let Ok((links, addresses)) = netlink::survey() else { return };
        for i in 0..self.seen.len() {
            let name = &self.shared.rails[i].name;
            let link = links.iter().find(|l| l.index == self.index(i) || l.name == *name).cloned();
            self.seen[i].running = false;
            if let Some(l) = link {
                self.link(&l);
            }
            let (index, addr) = (self.index(i), self.shared.rails[i].addr);
            self.seen[i].addressed = addresses.iter().any(|a| a.index == index && a.addr == addr);
        }
        self.shared.addresses_are(addresses.into_iter().map(|a| a.addr).collect());
    }

    fn tell(&mut self, out: &mut Vec<(RailId, bool)>) {
        for (i, s) in self.seen.iter_mut().enumerate() {
            let up = s.running && s.addressed;
            if up != s.told {
                s.told = up;
                out.push((RailId(i as u8), up));
            }
        }
    }
}

impl LinkWatch for NetlinkWatch {
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
        loop {
            match sys::recv(self.socket.as_raw_fd(), &mut self.buf, false) {
                Ok(n) => {
                    let found: Vec<Message> = netlink::messages(&self.buf[..n]).collect();
                    for m in found {
                        match m {
                            Message::Link(l) => self.link(&l),
                            Message::LinkGone(index) => self.link_gone(index),
                            Message::Address(a) => self.address(&a, true),
                            Message::AddressGone(a) => self.address(&a, false),
                            Message::Done | Message::Error(_) => {}
                        }
                        // After each, so that a link that went and came back at once is told twice.
                        self.tell(out);
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.resync();
                    self.tell(out);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The addresses of a survey, for [`Shared`].
pub(crate) fn own_addresses(addresses: &[LinkAddress]) -> Vec<IpAddr> {
    addresses.iter().map(|a| a.addr).collect()
}
