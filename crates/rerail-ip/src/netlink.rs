//! Reading rtnetlink messages. Owns: nothing; a checked view of bytes from the kernel.
//!
//! Only links and addresses, only what rails need (rtnetlink(7)).

use crate::sys;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

/// A link, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Link {
    pub index: u32,
    pub flags: u32,
    pub name: String,
    pub mtu: u32,
    /// `ARPHRD_*`: what the hardware below speaks.
    pub hardware: u16,
    /// `IFLA_INFO_KIND`: "veth", "bridge", "tun", …; empty for hardware.
    pub kind: String,
    /// `IFLA_INFO_SLAVE_KIND`: "bond", "bridge", "vrf", …; empty when it has no master.
    pub slave_of: String,
}

impl Link {
    /// Interface up and carrier present. The peer's side of a broken cable keeps IFF_UP, so that alone says nothing.
    pub fn running(&self) -> bool {
        running(self.flags)
    }
}

/// See [`Link::running`].
pub(crate) fn running(flags: u32) -> bool {
    let want = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
    flags & want == want
}

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkAddress {
    pub index: u32,
    pub addr: IpAddr,
    pub prefix_bits: u8,
    /// Usable for others to reach this host: of universal scope and neither tentative nor deprecated.
    pub usable: bool,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Link(Link),
    LinkGone(u32),
    Address(LinkAddress),
    AddressGone(LinkAddress),
    Done,
    Error(i32),
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn text(b: &[u8]) -> String {
    let end = b.iter().position(|&c| c == 0).unwrap_or(b.len());
    String::from_utf8_lossy(&b[..end]).into_owned()
}

/// The attributes in `b`: (type, value).
fn attributes(mut b: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(b, 0)?);
        let kind = u16_at(b, 2)? & 0x3fff; // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
        let value = b.get(4..len)?;
        b = b.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn ip(b: &[u8]) -> Option<IpAddr> {
    match b.len() {
        4 => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(b).ok()?))),
        16 => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(b).ok()?))),
        _ => None,
    }
}

const IFLA_MTU: u16 = 4;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_SLAVE_KIND: u16 = 4;

fn link(b: &[u8]) -> Option<Link> {
    // struct ifinfomsg: family u8, pad u8, type u16, index i32, flags u32, change u32
    let mut l =
        Link { index: u32_at(b, 4)?, flags: u32_at(b, 8)?, hardware: u16_at(b, 2)?, ..Link::default() };
    for (kind, value) in attributes(b.get(16..)?) {
        match kind {
            IFLA_IFNAME => l.name = text(value),
            IFLA_MTU => l.mtu = u32_at(value, 0).unwrap_or(0),
            IFLA_LINKINFO => {
                for (kind, value) in attributes(value) {
                    match kind {
                        IFLA_INFO_KIND => l.kind = text(value),
                        IFLA_INFO_SLAVE_KIND => l.slave_of = text(value),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(l)
}

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

fn address(b: &[u8]) -> Option<LinkAddress> {
    // struct ifaddrmsg: family u8, prefixlen u8, flags u8, scope u8, index u32
    let (prefix_bits, scope, index) = (*b.get(1)?, *b.get(3)?, u32_at(b, 4)?);
    let mut flags = u32::from(*b.get(2)?);
    let (mut addr, mut local) = (None, None);
    for (kind, value) in attributes(b.get(8..)?) {
        match kind {
            IFA_ADDRESS => addr = ip(value),
            IFA_LOCAL => local = ip(value), // on a point-to-point link IFA_ADDRESS is the other side
            IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    let bad = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED | libc::IFA_F_DEPRECATED;
    Some(LinkAddress {
        index,
        addr: local.or(addr)?,
        prefix_bits,
        usable: scope == libc::RT_SCOPE_UNIVERSE && flags & bad == 0,
    })
}

/// Every message in `b` that rails care about.
pub(crate) fn messages(mut b: &[u8]) -> impl Iterator<Item = Message> {
    std::iter::from_fn(move || {
        loop {
            // struct nlmsghdr: len u32, type u16, flags u16, seq u32, pid u32
            let len = u32_at(b, 0)? as usize;
            let kind = u16_at(b, 4)?;
            let body = b.get(16..len)?;
            b = b.get(len.next_multiple_of(4)..).unwrap_or(&[]);
            let family = body.first().copied();
            let found = match kind {
                // A bridge reports its ports in messages of its own family; a port that leaves a bridge still exists.
                libc::RTM_NEWLINK if family == Some(0) => link(body).map(Message::Link),
                libc::RTM_DELLINK if family == Some(0) => u32_at(body, 4).map(Message::LinkGone),
                libc::RTM_NEWADDR => address(body).map(Message::Address),
                libc::RTM_DELADDR => address(body).map(Message::AddressGone),
                k if k == libc::NLMSG_DONE as u16 => Some(Message::Done),
                k if k == libc::NLMSG_ERROR as u16 => {
                    u32_at(body, 0).map(|e| Message::Error((e as i32).wrapping_neg()))
                }
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
    })
}

/// Asks the kernel for all links (`RTM_GETLINK`) or addresses (`RTM_GETADDR`). The answers end with [`Message::Done`].
pub(crate) fn ask(socket: RawFd, kind: u16) -> io::Result<()> {
    let mut ask = [0u8; 20]; // nlmsghdr, and a body of which only the family (0: any) is read
    ask[0..4].copy_from_slice(&20u32.to_ne_bytes());
    ask[4..6].copy_from_slice(&kind.to_ne_bytes());
    ask[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    ask[8..12].copy_from_slice(&1u32.to_ne_bytes());
    sys::send(socket, &ask).map(drop)
}

/// Waits for the answers, up to two seconds: not for a thread that makes progress.
fn dump(kind: u16, what: &mut dyn FnMut(Message)) -> io::Result<()> {
    let s = sys::netlink(0)?;
    ask(s.as_raw_fd(), kind)?;
    let mut buf = vec![0u8; 65536];
    loop {
        let n = sys::recv(s.as_raw_fd(), &mut buf, true)?;
        for m in messages(&buf[..n]) {
            match m {
                Message::Done => return Ok(()),
                Message::Error(e) => return Err(io::Error::from_raw_os_error(e)),
                m => what(m),
            }
        }
    }
}

/// All links and addresses of this network namespace.
pub(crate) fn survey() -> io::Result<(Vec<Link>, Vec<LinkAddress>)> {
    let (mut links, mut addresses) = (Vec::new(), Vec::new());
    dump(libc::RTM_GETLINK, &mut |m| {
        if let Message::Link(l) = m {
            links.push(l);
        }
    })?;
    dump(libc::RTM_GETADDR, &mut |m| {
        if let Message::Address(a) = m {
            addresses.push(a);
        }
    })?;
    Ok((links, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_describes_the_loopback_interface() {
        let (links, addresses) = survey().unwrap();
        let lo = links.iter().find(|l| l.name == "lo").expect("every namespace has lo");
        assert!(lo.mtu > 0 && lo.flags & libc::IFF_LOOPBACK as u32 != 0);
        if lo.running() {
            let a = addresses.iter().find(|a| a.index == lo.index && a.addr.is_ipv4()).unwrap();
            assert!(a.addr.is_loopback() && a.prefix_bits == 8);
        }
    }

    #[test]
    fn cut_and_broken_messages_end_quietly() {
        let mut b = vec![0u8; 48];
        b[0..4].copy_from_slice(&48u32.to_ne_bytes());
        b[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        b[32..34].copy_from_slice(&200u16.to_ne_bytes()); // an attribute longer than the message
        assert_eq!(messages(&b).count(), 1);
        for n in 0..48 {
            assert_eq!(messages(&b[..n]).count(), 0);
        }
        b[0..4].copy_from_slice(&3u32.to_ne_bytes()); // a message shorter than its header
        assert_eq!(messages(&b).count(), 0);
    }
}
