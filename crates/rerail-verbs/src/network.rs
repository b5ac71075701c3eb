//! How a peer is addressed on an adapter's network. Owns: the layout of a place, and what an address vector has of it.
//!
//! Over RoCE a place is an IP address, which is also the GID. Over InfiniBand it is what a packet of the same subnet needs: the LID.
//! Peers of another subnet are not reached: that takes the LID of a router, which only the subnet manager's database knows. So the
//! prefix need not travel, only a check of it. Where the subnet demands a global header on every packet (several virtual ports may
//! share a LID then), the interface half of the GID stands behind it, and the prefix is this port's own.

use crate::abi::*;
use crate::place::{gid, ip_of_gid};
use rerail_rail::{Affinity, Kind, Locator, Reach};
use std::net::IpAddr;

/// In front of what a queue pair for datagrams receives: the global header.
pub const GRH_BYTES: usize = 40;
/// Routers that a packet may pass.
const HOPS_MAX: u8 = 64;
/// Half of a GID.
const HALF: usize = 8;

/// The network of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Ethernet: places are IP addresses.
    Ethernet,
    /// A subnet of InfiniBand.
    Subnet(Subnet),
}

/// What all ports of a subnet have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    /// The first half of every GID.
    pub prefix: [u8; HALF],
    /// Every packet has a global header.
    pub global: bool,
}

impl Subnet {
    /// Of a prefix, what a place has of it: two subnets of a cluster differ in it but for bad luck, and then a path between them is
    /// tried in vain.
    fn check(&self) -> [u8; 2] {
        let fold =
            |sum: u16, word: &[u8]| sum.wrapping_mul(31).wrapping_add(u16::from_be_bytes([word[0], word[1]]));
        self.prefix.chunks(2).fold(0, fold).to_be_bytes()
    }

    /// The place of a port of this subnet.
    pub fn place(&self, lid: u16, interface: [u8; HALF]) -> Vec<u8> {
        let mut place = [lid.to_be_bytes(), self.check()].concat();
        if self.global {
            place.extend(interface);
        }
        place
    }

    /// LID, and the interface half of the GID if packets need one. `None`: no place of this subnet.
    fn read(&self, place: &[u8]) -> Option<(u16, Option<[u8; HALF]>)> {
        let (lid, rest) = place.split_first_chunk::<2>()?;
        let (check, interface) = rest.split_first_chunk::<2>()?;
        let interface = match (self.global, interface) {
            (false, []) => None,
            (true, interface) => Some(<[u8; HALF]>::try_from(interface).ok()?),
            _ => return None,
        };
        let lid = u16::from_be_bytes(*lid);
        (*check == self.check() && lid != 0).then_some((lid, interface))
    }

    /// Which places are reached from a port of this subnet.
    pub fn reach(self, kind: Kind) -> Reach {
        Reach::new(move |to| match to.kind() == kind && self.read(to.place()).is_some() {
            true => Affinity::SameNetwork,
            false => Affinity::Unreachable,
        })
    }
}

impl Network {
    /// The address vector of a place, for a port and an entry of its table of GIDs. `None`: there is no such place here.
    pub fn address_vector(&self, place: &[u8], port: u8, gid_index: u8) -> Option<ibv_ah_attr> {
        let (lid, to) = match self {
            Network::Ethernet => (0, Some(gid(ip(place)?))),
            Network::Subnet(subnet) => {
                let (lid, interface) = subnet.read(place)?;
                let whole = |interface: [u8; HALF]| {
                    let mut gid = [0; 2 * HALF];
                    gid[..HALF].copy_from_slice(&subnet.prefix);
                    gid[HALF..].copy_from_slice(&interface);
                    gid
                };
                (lid, interface.map(whole))
            }
        };
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: to.unwrap_or_default() },
            flow_label: 0,
            sgid_index: if to.is_some() { gid_index } else { 0 },
            hop_limit: if to.is_some() { HOPS_MAX } else { 0 },
            traffic_class: 0,
        };
        Some(ibv_ah_attr {
            grh,
            dlid: lid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: to.is_some().into(),
            port_num: port,
        })
    }

    /// Where a datagram came from, by its completion and what stands in front of it. The service is the number of the queue pair
    /// that sent it. `None`: it comes from no place of this network.
    pub fn sender(&self, kind: Kind, entry: &ibv_wc, header: &[u8; GRH_BYTES]) -> Option<Locator> {
        let with_header = entry.wc_flags & IBV_WC_GRH != 0;
        match self {
            Network::Ethernet => {
                // The header of IPv4 has the second half of the room (RoCE v2, annex A17.4.5.1).
                let from = match header[0] >> 4 {
                    6 => ip_of_gid(*header[8..].first_chunk().expect("16 more")),
                    _ => IpAddr::from(*header[32..].first_chunk::<4>().expect("8 more")),
                };
                with_header.then(|| Locator::of_ip(kind, from, entry.src_qp))
            }
            Network::Subnet(subnet) => {
                let (prefix, interface) = (&header[8..16], *header[16..].first_chunk().expect("8 more"));
                let known = !subnet.global || with_header && *prefix == subnet.prefix;
                known
                    .then(|| Locator::new(kind, &subnet.place(entry.slid, interface), entry.src_qp))
                    .flatten()
            }
        }
    }
}

fn ip(place: &[u8]) -> Option<IpAddr> {
    Locator::new(Kind::ROCE, place, 0)?.place_ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prefix that subnets have unless their manager is given another one.
    const USUAL: [u8; HALF] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
    const INTERFACE: [u8; HALF] = [0, 2, 0xc9, 3, 0, 1, 2, 3];

    fn subnet(prefix: [u8; HALF], global: bool) -> Subnet {
        Subnet { prefix, global }
    }

    fn at(subnet: Subnet, lid: u16) -> Locator {
        Locator::new(Kind::IB, &subnet.place(lid, INTERFACE), 0x45).unwrap()
    }

    #[test]
    fn a_port_of_the_same_subnet_is_reached_by_its_lid_alone() {
        let own = subnet(USUAL, false);
        let to = at(own, 0x1234);
        assert_eq!(to.place().len(), 4, "the address of a process has 32 bytes for all rails");
        let vector = Network::Subnet(own).address_vector(to.place(), 2, 7).unwrap();
        assert_eq!((vector.dlid, vector.is_global, vector.port_num), (0x1234, 0, 2));
        assert_eq!((vector.grh.sgid_index, vector.sl), (0, 0));
    }

    #[test]
    fn where_the_subnet_demands_a_global_header_a_gid_is_built_with_the_own_prefix() {
        let prefix = [0xfe, 0x80, 0, 0, 0, 0, 0, 9];
        let own = subnet(prefix, true);
        let to = at(own, 5);
        let vector = Network::Subnet(own).address_vector(to.place(), 1, 3).unwrap();
        assert_eq!((vector.dlid, vector.is_global, vector.grh.sgid_index), (5, 1, 3));
        assert_eq!(vector.grh.dgid.raw, *[prefix, INTERFACE].as_flattened());
    }

    #[test]
    fn other_subnets_other_forms_and_no_lid_are_not_reached() {
        let own = subnet(USUAL, false);
        let reach = own.reach(Kind::IB);
        assert_eq!(reach.affinity(&at(own, 1)), Affinity::SameNetwork);
        let mut others = vec![at(subnet(USUAL, true), 1), at(own, 0), Locator::NOWHERE];
        // the third word and the fourth changed places
        for prefix in [[0xfe, 0x80, 0, 0, 0, 0, 0, 1], [0xfe, 0x80, 0, 0, 0, 1, 0, 0], [0; HALF]] {
            others.push(at(subnet(prefix, false), 1));
        }
        others.push(Locator::new(Kind::ROCE, at(own, 1).place(), 1).unwrap());
        for to in others {
            assert_eq!(reach.affinity(&to), Affinity::Unreachable, "{to}");
        }
        assert_eq!(subnet(USUAL, true).reach(Kind::IB).affinity(&at(own, 1)), Affinity::Unreachable);
        assert!(Network::Ethernet.address_vector(&[1, 2, 3], 1, 0).is_none());
    }

    #[test]
    fn the_sender_of_a_datagram_is_at_the_place_that_it_publishes() {
        let mut header = [0; GRH_BYTES];
        let entry = ibv_wc { slid: 0x1234, src_qp: 0x45, ..ibv_wc::default() };
        let own = subnet(USUAL, false);
        assert_eq!(Network::Subnet(own).sender(Kind::IB, &entry, &header), Some(at(own, 0x1234)));
        let own = subnet(USUAL, true);
        header[8..16].copy_from_slice(&USUAL);
        header[16..24].copy_from_slice(&INTERFACE);
        assert_eq!(Network::Subnet(own).sender(Kind::IB, &entry, &header), None, "it has no header");
        let entry = ibv_wc { wc_flags: IBV_WC_GRH, ..entry };
        assert_eq!(Network::Subnet(own).sender(Kind::IB, &entry, &header), Some(at(own, 0x1234)));
        header[15] = 1;
        assert_eq!(Network::Subnet(own).sender(Kind::IB, &entry, &header), None, "of another subnet");
    }

    #[test]
    fn over_ethernet_the_place_is_the_address() {
        let mut header = [0; GRH_BYTES];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 1, 2, 3]);
        let entry = ibv_wc { wc_flags: IBV_WC_GRH, src_qp: 9, ..ibv_wc::default() };
        let from = Network::Ethernet.sender(Kind::ROCE, &entry, &header).unwrap();
        assert_eq!(from, Locator::of_ip(Kind::ROCE, [10, 1, 2, 3].into(), 9));
        let vector = Network::Ethernet.address_vector(from.place(), 1, 4).unwrap();
        assert_eq!((vector.is_global, vector.grh.sgid_index, vector.dlid), (1, 4, 0));
        assert_eq!(vector.grh.dgid.raw, gid([10, 1, 2, 3].into()));
    }
}
