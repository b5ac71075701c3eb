//! The first words on a connection between neighbours: what it is for, and which addresses it joins. Everything after them is bells.

use std::net::{IpAddr, Ipv6Addr};

/// Bytes of a [`Hello`].
pub(crate) const HELLO_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"rerailSM";
/// Grows with every change of the hello, the memory's layout, or of what goes through the rings.
const VERSION: u8 = 1;

/// What a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The bytes of one stream, both ways.
    Stream,
    /// Datagrams between the two processes, both ways.
    Datagrams,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub kind: Kind,
    /// Port number of the rails of the process that connects.
    pub port: u16,
    /// Address of its rail.
    pub from: IpAddr,
    /// Address of the rail that it connects to.
    pub to: IpAddr,
}

/// An address as 16 bytes; those of IPv4 as RFC 4291 §2.5.5.2 maps them.
pub(crate) fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The address that these bytes are.
pub(crate) fn ip_of(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

impl Hello {
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut b = [0; HELLO_BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8] = VERSION;
        b[9] = match self.kind {
            Kind::Stream => 1,
            Kind::Datagrams => 2,
        };
        b[10..12].copy_from_slice(&self.port.to_le_bytes());
        b[16..32].copy_from_slice(&ip_bytes(self.from));
        b[32..48].copy_from_slice(&ip_bytes(self.to));
        b
    }

    /// `None`: not ours, or of another version.
    pub fn read(b: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let ip = |at: usize| ip_of(b[at..at + 16].try_into().expect("16 bytes"));
        let kind = match b[9] {
            1 => Kind::Stream,
            2 => Kind::Datagrams,
            _ => return None,
        };
        let port = u16::from_le_bytes([b[10], b[11]]);
        (b[..8] == MAGIC && b[8] == VERSION && port != 0).then(|| Hello {
            kind,
            port,
            from: ip(16),
            to: ip(32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        for (kind, ip) in [(Kind::Stream, "10.0.0.1"), (Kind::Datagrams, "fd00::7")] {
            let h = Hello { kind, port: 4711, from: ip.parse().unwrap(), to: "10.0.0.2".parse().unwrap() };
            assert_eq!(Hello::read(&h.to_bytes()), Some(h));
        }
    }

    #[test]
    fn what_is_no_hello_is_not_taken_for_one() {
        let ip = "10.0.0.1".parse().unwrap();
        let good = Hello { kind: Kind::Stream, port: 1, from: ip, to: ip }.to_bytes();
        for (at, value) in [(0, b'R'), (8, VERSION + 1), (9, 0), (9, 3), (10, 0)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Hello::read(&bad), None, "byte {at} is {value}");
        }
    }
}
