//! Link state from rtnetlink. Owns: the netlink socket and the last state that was reported of each rail.
//!
//! Messages are lost when the socket's buffer is full. Then the whole state is requested over the same socket, and the
//! answers are read like other messages: [`LinkWatch::drain`] may be called with the engine's lock held, so it never
//! waits ([`Resync`]).
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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Seen {
    running: bool,
    addressed: bool,
    told: bool,
}

/// The answers to the question for everything, as far as they have come. News that come in between belong to them.
#[derive(Default)]
struct Resync {
    stage: Stage,
    /// Messages were lost again: what comes until the end of this stage is worth nothing.
    again: bool,
    links: Vec<u32>,
    addresses: Vec<LinkAddress>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing is missing.
    #[default]
    Idle,
    /// The request was refused, or its answer ended in an error: it is repeated with the next look.
    Refused,
    Links,
    Addresses,
}

impl Resync {
    fn note(&mut self, m: &Message) {
        match m {
            Message::Link(l) => {
                self.links.retain(|i| *i != l.index);
                self.links.push(l.index);
            }
            Message::LinkGone(index) => {
                self.links.retain(|i| i != index);
                self.addresses.retain(|a| a.index != *index);
            }
            Message::Address(a) | Message::AddressGone(a) => {
                self.addresses.retain(|x| (x.index, x.addr) != (a.index, a.addr));
                if matches!(m, Message::Address(_)) {
                    self.addresses.push(a.clone());
                }
            }
            Message::Done | Message::Error(_) => {}
        }
    }
}

pub(crate) struct NetlinkWatch {
    socket: OwnedFd,
    shared: Arc<Shared>,
    seen: Vec<Seen>,
    resync: Resync,
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
        Self { socket, shared, seen, resync: Resync::default(), buf: vec![0; 32 * 1024] }
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

    /// Messages were lost: requests the whole state.
    fn overflowed(&mut self) {
        match self.resync.stage {
            Stage::Idle | Stage::Refused => self.ask(Stage::Links),
            // the kernel answers one question at a time
            Stage::Links | Stage::Addresses => self.resync.again = true,
        }
    }

    fn ask(&mut self, stage: Stage) {
        let kind = match stage {
            Stage::Addresses => libc::RTM_GETADDR,
            _ => {
                self.resync = Resync::default();
                libc::RTM_GETLINK
            }
        };
        let asked = netlink::ask(self.socket.as_raw_fd(), kind);
        self.resync.stage = if asked.is_ok() { stage } else { Stage::Refused };
    }

    /// One answer is complete.
    fn answered(&mut self) {
        match self.resync.stage {
            Stage::Idle | Stage::Refused => {}
            _ if self.resync.again => self.ask(Stage::Links),
            Stage::Links => self.ask(Stage::Addresses),
            Stage::Addresses => self.resynced(),
        }
    }

    /// All answers are here: what is not in them is gone.
    fn resynced(&mut self) {
        let Resync { links, addresses, .. } = std::mem::take(&mut self.resync);
        for i in 0..self.seen.len() {
            let (index, addr) = (self.index(i), self.shared.rails[i].addr);
            self.seen[i].running &= links.contains(&index);
            self.seen[i].addressed = addresses.iter().any(|a| a.index == index && a.addr == addr);
        }
        self.shared.addresses_are(addresses.into_iter().map(|a| a.addr).collect());
    }

    fn take(&mut self, m: Message) {
        if self.resync.stage != Stage::Idle {
            self.resync.note(&m);
        }
        match m {
            Message::Link(l) => self.link(&l),
            Message::LinkGone(index) => self.link_gone(index),
            Message::Address(a) => self.address(&a, true),
            Message::AddressGone(a) => self.address(&a, false),
            Message::Done => self.answered(),
            Message::Error(_) if self.resync.stage != Stage::Idle => self.resync.stage = Stage::Refused,
            Message::Error(_) => {}
        }
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
        if self.resync.stage == Stage::Refused {
            self.ask(Stage::Links);
        }
        loop {
            match sys::recv(self.socket.as_raw_fd(), &mut self.buf, false) {
                Ok(n) => {
                    let found: Vec<Message> = netlink::messages(&self.buf[..n]).collect();
                    for m in found {
                        self.take(m);
                        // After each, so that a link that went and came back at once is reported twice.
                        self.tell(out);
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.overflowed();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.socket.as_raw_fd());
    }
}

/// The addresses of a survey, for [`Shared`].
pub(crate) fn own_addresses(addresses: &[LinkAddress]) -> Vec<IpAddr> {
    addresses.iter().map(|a| a.addr).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interface;
    use std::os::unix::net::UnixDatagram;

    /// A watch over `lo`, and the other end of its socket in the place of the kernel.
    fn watch() -> (NetlinkWatch, UnixDatagram) {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        kernel.set_nonblocking(true).unwrap();
        let lo = Interface {
            name: "lo".into(),
            index: 1,
            addr: [127, 0, 0, 1].into(),
            prefix_bits: 8,
            speed_mbps: 0,
            mtu: 65_535,
            up: true,
        };
        let shared = Arc::new(Shared::new(&[lo], Vec::new(), &mut Vec::new()).unwrap());
        (NetlinkWatch::new(ours.into(), shared, &[true]), kernel)
    }

    /// What the watch requests of the kernel.
    fn asked(kernel: &UnixDatagram) -> Option<u16> {
        let mut b = [0; 64];
        let n = kernel.recv(&mut b).ok()?;
        assert_eq!(n, 20);
        Some(u16::from_ne_bytes([b[4], b[5]]))
    }

    /// A message with a body and one attribute.
    fn message(kind: u16, body: &[u8], attribute: (u16, &[u8])) -> Vec<u8> {
        let mut m = vec![0; 16];
        m.extend_from_slice(body);
        m.extend_from_slice(&(4 + attribute.1.len() as u16).to_ne_bytes());
        m.extend_from_slice(&attribute.0.to_ne_bytes());
        m.extend_from_slice(attribute.1);
        let len = m.len() as u32;
        m[0..4].copy_from_slice(&len.to_ne_bytes());
        m[4..6].copy_from_slice(&kind.to_ne_bytes());
        m
    }

    fn link(index: u32, name: &[u8]) -> Vec<u8> {
        let flags = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let body = [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), [0; 4]].concat();
        message(libc::RTM_NEWLINK, &body, (3, name))
    }

    fn address(index: u32, last: u8) -> Vec<u8> {
        let body = [[2, 8, 0, 0], index.to_ne_bytes()].concat();
        message(libc::RTM_NEWADDR, &body, (2, &[127, 0, 0, last]))
    }

    fn done() -> Vec<u8> {
        message(libc::NLMSG_DONE as u16, &[0; 4], (0, &[]))
    }

    fn drained(w: &mut NetlinkWatch) -> Vec<(RailId, bool)> {
        let mut out = Vec::new();
        w.drain(&mut out);
        out
    }

    #[test]
    fn after_lost_news_everything_is_asked_for_and_nobody_waits_for_the_answer() {
        let (mut w, kernel) = watch();
        w.overflowed();
        assert_eq!(drained(&mut w), [], "the kernel is silent, and a look returns all the same");
        assert_eq!((asked(&kernel), asked(&kernel)), (Some(libc::RTM_GETLINK), None));
        kernel.send(&link(1, b"lo")).unwrap();
        kernel.send(&done()).unwrap();
        assert_eq!(drained(&mut w), []);
        assert_eq!((asked(&kernel), asked(&kernel)), (Some(libc::RTM_GETADDR), None));
        // its address is gone: only another one is left
        kernel.send(&address(1, 2)).unwrap();
        assert_eq!(drained(&mut w), [], "not before the answer is complete");
        kernel.send(&done()).unwrap();
        assert_eq!(drained(&mut w), [(RailId(0), false)]);
        assert!(w.shared.is_near([127, 0, 0, 2].into()));
        assert_eq!(asked(&kernel), None);
        // and news are read as before
        kernel.send(&address(1, 1)).unwrap();
        assert_eq!(drained(&mut w), [(RailId(0), true)]);
    }

    #[test]
    fn news_that_are_lost_while_the_answer_comes_are_asked_for_once_more() {
        let (mut w, kernel) = watch();
        w.overflowed();
        w.overflowed();
        assert_eq!(
            (asked(&kernel), asked(&kernel)),
            (Some(libc::RTM_GETLINK), None),
            "one question at a time"
        );
        kernel.send(&done()).unwrap();
        assert_eq!(drained(&mut w), [], "an answer that may have a hole says nothing");
        assert_eq!(asked(&kernel), Some(libc::RTM_GETLINK));
        for part in [link(1, b"lo"), done(), address(1, 1), done()] {
            kernel.send(&part).unwrap();
        }
        assert_eq!(drained(&mut w), []);
        assert_eq!((asked(&kernel), asked(&kernel)), (Some(libc::RTM_GETADDR), None));
    }

    #[test]
    fn a_question_that_is_refused_is_asked_with_the_next_look() {
        let (mut w, kernel) = watch();
        w.overflowed();
        assert_eq!(asked(&kernel), Some(libc::RTM_GETLINK));
        let busy = (-libc::EBUSY).to_ne_bytes();
        kernel.send(&message(libc::NLMSG_ERROR as u16, &busy, (0, &[]))).unwrap();
        drained(&mut w);
        assert_eq!(asked(&kernel), None);
        drained(&mut w);
        assert_eq!(asked(&kernel), Some(libc::RTM_GETLINK));
    }
}
