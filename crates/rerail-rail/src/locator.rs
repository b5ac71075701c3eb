//! Where a rail is reached. Owns: the table of kinds, and the layout of a locator.
//!
//! To the engine a locator is opaque: it compares, keeps and publishes it, and hands it back to the kind that made it. One thing the engine
//! must see without asking the kind, for each datagram: whether something came from the place of a peer. A datagram leaves by another socket
//! than the one that receives, so the service (a port, a queue pair) differs; therefore a locator has the two in separate fields.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A kind of rail. Rails of two kinds never meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// IP: the place is the address, 4 or 16 bytes; the service is the port of UDP and TCP.
    pub const IP: Kind = Kind(1);

    /// Between processes of one host: the example of `docs/adding-a-rail.md`. The place is 5 bytes that name the host and its network
    /// namespace, and the index of the rail; the service is a port of UDP on the loopback interface.
    pub const EXAMPLE: Kind = Kind(2);

    /// RDMA over Converged Ethernet, version 2. The place is the address of the adapter's port, 4 or 16 bytes; the service is the
    /// number of the queue pair for datagrams.
    pub const ROCE: Kind = Kind(3);

    /// iWARP, RDMA over TCP (RFC 5040 to 5044). The place is the address of the adapter's port, 4 or 16 bytes; the service is a number
    /// from which the port of the connection manager follows.
    pub const IWARP: Kind = Kind(4);

    /// InfiniBand. The place is the port's LID and a check of its subnet prefix, 4 bytes, and behind them the interface half of its GID
    /// where the subnet demands it; the service is the number of the queue pair for datagrams, and in its highest byte where that for
    /// connections is beside it.
    pub const IB: Kind = Kind(5);

    /// RoCE v2 whose connections are made as over InfiniBand, without RDMA-CM. The place is that of [`Kind::ROCE`], the service that of
    /// [`Kind::IB`].
    pub const ROCE_NO_CM: Kind = Kind(6);

    /// Every kind, and its name for users. Numbers are never used again: peers compare them.
    pub const ALL: &[(Kind, &str)] = &[
        (Kind::IP, "ip"),
        (Kind::IB, "ib"),
        (Kind::ROCE, "roce"),
        (Kind::ROCE_NO_CM, "roce-nocm"),
        (Kind::IWARP, "iwarp"),
        (Kind::EXAMPLE, "example"),
    ];

    /// What a user may write for a list of kinds.
    pub const LIST: &str = "ip | ib | roce | roce-nocm | iwarp | example, comma-separated";

    /// Its name, for users.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("unknown", |(_, name)| name)
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Kind> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kind({}, {})", self.0, self.name())
    }
}

/// Most bytes of a place: a GID or an IPv6 address, and two more.
pub const PLACE_BYTES_MAX: usize = 18;

/// Where a rail is reached: a place in a network, and the service of one process there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    kind: Kind,
    len: u8,
    place: [u8; PLACE_BYTES_MAX],
    service: u32,
}

impl Locator {
    /// Of no kind; nothing is reached there.
    pub const NOWHERE: Locator = Locator { kind: Kind(0), len: 0, place: [0; PLACE_BYTES_MAX], service: 0 };

    /// `None`: the place has more than [`PLACE_BYTES_MAX`] bytes.
    pub fn new(kind: Kind, place: &[u8], service: u32) -> Option<Locator> {
        let mut l = Locator { kind, len: place.len() as u8, service, ..Self::NOWHERE };
        l.place.get_mut(..place.len())?.copy_from_slice(place);
        Some(l)
    }

    /// Of the kind [`Kind::IP`]. An IPv4 address that is written as an IPv6 address (RFC 4291 §2.5.5.2) is an IPv4 address.
    pub fn ip(ip: IpAddr, port: u16) -> Locator {
        Self::of_ip(Kind::IP, ip, port.into())
    }

    /// Of a kind whose places are IP addresses; otherwise as [`Locator::ip`].
    pub fn of_ip(kind: Kind, ip: IpAddr, service: u32) -> Locator {
        let made = match ip.to_canonical() {
            IpAddr::V4(v4) => Self::new(kind, &v4.octets(), service),
            IpAddr::V6(v6) => Self::new(kind, &v6.octets(), service),
        };
        made.expect("an address has 4 or 16 bytes")
    }

    /// The place as an IP address; `None`: it has neither 4 nor 16 bytes.
    pub fn place_ip(&self) -> Option<IpAddr> {
        match self.place() {
            &[a, b, c, d] => Some([a, b, c, d].into()),
            place => Some(Ipv6Addr::from(<[u8; 16]>::try_from(place).ok()?).into()),
        }
    }

    /// The kind of rail.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes that name the place.
    pub fn place(&self) -> &[u8] {
        &self.place[..usize::from(self.len)]
    }

    /// Number that names the process at the place.
    pub fn service(&self) -> u32 {
        self.service
    }

    /// The same place with another service.
    pub fn with_service(self, service: u32) -> Locator {
        Locator { service, ..self }
    }

    /// Whether both are at one place.
    pub fn same_place(&self, other: &Locator) -> bool {
        (self.kind, self.len, self.place) == (other.kind, other.len, other.place)
    }

    /// Address and port; `None`: not of the kind [`Kind::IP`], or malformed.
    pub fn socket(&self) -> Option<SocketAddr> {
        let port = u16::try_from(self.service).ok().filter(|_| self.kind == Kind::IP)?;
        Some(SocketAddr::new(self.place_ip()?, port))
    }
}

impl From<SocketAddr> for Locator {
    fn from(at: SocketAddr) -> Locator {
        Locator::ip(at.ip(), at.port())
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.socket() {
            return write!(f, "{at}");
        }
        write!(f, "{}/", self.kind.name())?;
        self.place().iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        write!(f, ":{}", self.service)
    }
}

impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_come_back_and_are_shown_as_usual() {
        for text in ["10.0.0.1:4000", "[fd00::1]:65535"] {
            let at: SocketAddr = text.parse().unwrap();
            let locator = Locator::from(at);
            assert_eq!((locator.socket(), locator.to_string().as_str()), (Some(at), text));
        }
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Locator::ip(mapped, 1), Locator::ip([10, 0, 0, 1].into(), 1));
    }

    #[test]
    fn kinds_have_numbers_and_names_of_their_own() {
        for (i, (kind, name)) in Kind::ALL.iter().enumerate() {
            assert!(Kind::ALL[..i].iter().all(|(k, n)| k != kind && n != name));
            assert_eq!((kind.name(), Kind::named(name)), (*name, Some(*kind)));
        }
        let names: Vec<&str> = Kind::ALL.iter().map(|(_, name)| *name).collect();
        assert_eq!(Kind::LIST, format!("{}, comma-separated", names.join(" | ")));
        assert_eq!((Kind(0).name(), Kind::named("unknown")), ("unknown", None));
    }

    #[test]
    fn the_place_is_compared_without_the_service_and_never_across_kinds() {
        let a = Locator::ip([10, 0, 0, 1].into(), 1);
        assert!(a.same_place(&a.with_service(2)) && a != a.with_service(2));
        assert!(!a.same_place(&Locator::new(Kind(9), &[10, 0, 0, 1], 1).unwrap()));
        assert!(!a.same_place(&Locator::new(Kind::IP, &[10, 0, 0, 1, 0], 1).unwrap()));
        assert_eq!(Locator::new(Kind(9), &[0; 19], 1), None);
        assert_eq!(Locator::new(Kind(9), &[0xab, 0], 7).unwrap().to_string(), "unknown/ab00:7");
        assert_eq!(Locator::NOWHERE.socket(), None);
    }
}
