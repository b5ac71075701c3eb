//! What a kind of rail publishes of each of its rails.

use crate::{Kind, Locator};
use std::fmt;
use std::sync::Arc;

/// A local rail, as its kind found it.
#[derive(Debug, Clone)]
pub struct RailDesc {
    /// Name of the interface.
    pub name: String,
    /// Where peers reach it.
    pub locator: Locator,
    /// The physical port that it goes through, by a name which every kind would give it: rails of one port, whatever their kinds, are a port
    /// group, and break together. Empty: no other rail has its port.
    pub port: String,
    /// Which locators of peers are reached from it.
    pub reach: Reach,
    /// Nominal speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u32,
    /// Bytes of the longest datagram that the interface takes: payload, without the headers of the kind.
    pub datagram_bytes_max: u16,
    /// The same for what every network of the kind carries: what is sent until the path has been measured.
    pub datagram_bytes_safe: u16,
    /// Lanes that a path over it may have: streams that a fabric may lead over different routes; 1 where there is one way only.
    pub lanes_max: u8,
    /// Routes that datagrams to one place may be led over ([`DatagramPort::lead`](crate::DatagramPort::lead)): source ports that a fabric tells
    /// apart; 1 where there is one way only.
    pub routes_max: u8,
    /// Writes into a peer's memory that may be under way on one stream ([`StreamPort::place`](crate::StreamPort::place)); 0: it makes none.
    pub places_max: u16,
    /// A stream costs so much memory that one is opened only when there is something large to send or to receive. Until then large
    /// messages go as datagrams.
    pub streams_on_demand: bool,
    /// The adapter that can lead a stream of this rail over another one of its rails by itself
    /// ([`StreamPort::load_alternate`](crate::StreamPort::load_alternate)), by a name that only rails of one adapter share. Empty: it cannot.
    pub adapter: String,
    /// The network itself sums every byte from one adapter to the other, by at least 32 bits that nothing on the way makes
    /// anew: the invariant CRC of InfiniBand and RoCE, for instance, and not a checksum of Ethernet or TCP. Then the
    /// payload of messages is not summed again, unless the user asks for it.
    pub sums_end_to_end: bool,
    /// Whether it is up now.
    pub up: bool,
}

impl RailDesc {
    /// Whether both go through one physical port.
    pub fn shares_port_with(&self, other: &RailDesc) -> bool {
        !self.port.is_empty() && self.port == other.port
    }

    /// Whether an adapter can lead streams of one of them over the other.
    pub fn shares_adapter_with(&self, other: &RailDesc) -> bool {
        !self.adapter.is_empty() && self.adapter == other.adapter
    }

    /// The kind of rail.
    pub fn kind(&self) -> Kind {
        self.locator.kind()
    }
}

/// How well a locator is reached from a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Affinity {
    /// Not at all: another kind, or another family of addresses.
    Unreachable,
    /// Perhaps, through routers: nothing speaks against it.
    Routed,
    /// On the same network.
    SameNetwork,
}

/// What a kind of rail knows about the way from one of its rails to a locator. The engine asks when it meets a peer.
#[derive(Clone)]
pub struct Reach(Arc<dyn Fn(&Locator) -> Affinity + Send + Sync>);

impl Reach {
    /// As this function says. It is called under the engine's lock, and must be a short computation.
    pub fn new(affinity: impl Fn(&Locator) -> Affinity + Send + Sync + 'static) -> Reach {
        Reach(Arc::new(affinity))
    }

    /// For kinds whose networks are prefixes of places: the same first `bits` bits are the same network, and every place of the same
    /// length may be reached through routers.
    pub fn by_prefix(own: Locator, bits: u8) -> Reach {
        Reach::new(move |to| {
            if to.kind() != own.kind() || to.place().len() != own.place().len() {
                return Affinity::Unreachable;
            }
            if same_prefix(own.place(), to.place(), bits.into()) {
                Affinity::SameNetwork
            } else {
                Affinity::Routed
            }
        })
    }

    /// How well `to` is reached.
    pub fn affinity(&self, to: &Locator) -> Affinity {
        (self.0)(to)
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reach(..)")
    }
}

/// Whether two places of one length begin with the same `bits` bits.
fn same_prefix(a: &[u8], b: &[u8], bits: usize) -> bool {
    a.iter().zip(b).enumerate().all(|(i, (x, y))| {
        let counted = bits.saturating_sub(8 * i).min(8) as u32;
        let mask = 0xff_u8.checked_shl(8 - counted).unwrap_or(0);
        x & mask == y & mask
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_compared_as_far_as_they_go() {
        let at = |text: &str| Locator::ip(text.parse().unwrap(), 1);
        let affinity = |own: &str, to: &str, bits| Reach::by_prefix(at(own), bits).affinity(&at(to));
        let same = |own: &str, to: &str, bits| affinity(own, to, bits) == Affinity::SameNetwork;
        assert!(same("10.1.2.3", "10.1.2.99", 24) && !same("10.1.2.3", "10.1.3.3", 24));
        assert!(same("10.1.2.3", "10.1.3.3", 23) && same("10.1.2.3", "10.1.2.3", 200));
        assert!(same("10.1.2.3", "11.1.2.3", 0) && !same("10.1.2.3", "10.1.2.2", 32));
        assert!(same("fd00::1", "fd00::ffff:1", 64) && !same("fd00::1", "fd00:0:0:1::1", 64));
        assert!(same("fd00::1", "fe00::1", 0) && !same("fd00::1", "fd00::2", 128));
        assert_eq!(affinity("10.1.2.3", "10.2.2.3", 24), Affinity::Routed);
        assert_eq!(affinity("10.1.2.3", "fd00::1", 0), Affinity::Unreachable);
        let other = Locator::new(Kind(9), &[10, 1, 2, 3], 1).unwrap();
        assert_eq!(Reach::by_prefix(at("10.1.2.3"), 0).affinity(&other), Affinity::Unreachable);
    }
}
