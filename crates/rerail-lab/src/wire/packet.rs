//! Ethernet frames as a wire sees them: destination, payload, and how to spoil it so that the kernel does not notice.

use std::ops::Range;

const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_HOP_BY_HOP: u8 = 0;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
/// Router and neighbour solicitation and advertisement, redirect (RFC 4861), and the reports of multicast listeners without which
/// no node would receive a solicitation (RFC 2710, RFC 3810).
const NEIGHBOUR_DISCOVERY: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];
/// Most bytes that one corruption changes.
const SPOILT_BYTES_MAX: usize = 8;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The last byte of the destination address, if the frame is for one node: the lab numbers its addresses there.
pub(super) fn destination(frame: &[u8]) -> Option<usize> {
    let address = frame.get(..6)?;
    (address[0] & 1 == 0).then_some(usize::from(address[5]))
}

/// Whether the frame belongs to neighbour discovery (ARP, ICMPv6).
pub(super) fn is_neighbour_discovery(frame: &[u8]) -> bool {
    match be16(frame, 12) {
        Some(ETHERTYPE_ARP) => true,
        Some(ETHERTYPE_IPV6) => {
            // Listeners' reports come behind a hop-by-hop header of 8 bytes (RFC 3810 §5).
            let at = ETHERNET_BYTES + 40;
            let (protocol, at) = match frame.get(ETHERNET_BYTES + 6) {
                Some(&PROTOCOL_HOP_BY_HOP) => (frame.get(at), at + 8),
                protocol => (protocol, at),
            };
            protocol == Some(&PROTOCOL_ICMPV6)
                && frame.get(at).is_some_and(|kind| NEIGHBOUR_DISCOVERY.contains(kind))
        }
        _ => false,
    }
}

/// Where TCP or UDP payload and its checksum are.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    payload: Range<usize>,
    /// Place of the checksum; `None`: the sender gave none (UDP over IPv4 may).
    checksum: Option<usize>,
    /// Where the bytes begin that the checksum covers: says which byte of a pair one is.
    from: usize,
    udp: bool,
}

fn layout(frame: &[u8]) -> Option<Layout> {
    let ip = ETHERNET_BYTES;
    let (protocol, from, end) = match be16(frame, 12)? {
        ETHERTYPE_IPV4 => {
            let header = usize::from(frame.get(ip)? & 0x0f) * 4;
            // A fragment holds no whole checksum, and later ones no port: left alone.
            if be16(frame, ip + 6)? & 0x3fff != 0 {
                return None;
            }
            (*frame.get(ip + 9)?, ip + header, ip + usize::from(be16(frame, ip + 2)?))
        }
        ETHERTYPE_IPV6 => {
            let from = ip + 40;
            (*frame.get(ip + 6)?, from, from + usize::from(be16(frame, ip + 4)?))
        }
        _ => return None,
    };
    let (header, checksum) = match protocol {
        PROTOCOL_TCP => (usize::from(frame.get(from + 12)? >> 4) * 4, from + 16),
        PROTOCOL_UDP => (8, from + 6),
        _ => return None,
    };
    // A length of 0 stands for more than 64 KiB (BIG TCP): then the frame itself tells.
    let end = if end <= from { frame.len() } else { end };
    let payload = from + header..end;
    if payload.is_empty() || end > frame.len() {
        return None;
    }
    let udp = protocol == PROTOCOL_UDP;
    let none = udp && be16(frame, checksum)? == 0;
    Some(Layout { payload, checksum: (!none).then_some(checksum), from, udp })
}

/// Changes payload bytes of a TCP or UDP packet; `source` says which and how. With `partial` the checksum field holds only that of
/// the pseudo header, the kernel takes the data for its own and checks nothing; else it is made to fit what the data is now.
/// Returns whether there was payload to change.
pub(super) fn corrupt(frame: &mut [u8], partial: bool, source: u64) -> bool {
    let Some(layout) = layout(frame) else { return false };
    let length = layout.payload.len();
    let at = layout.payload.start + (source >> 32) as usize % length;
    if source & 1 == 0 {
        // one bit, as memory or a cable does it
        change(frame, &layout, partial, at, 1 << (source >> 1 & 7));
        return true;
    }
    // a few bytes, as a broken adapter or switch does it
    let bytes = 1 + (source >> 1) as usize % SPOILT_BYTES_MAX;
    for i in 0..bytes.min(layout.payload.end - at) {
        let mask = (source >> (4 + 3 * i)) as u8 | 1;
        change(frame, &layout, partial, at + i, mask);
    }
    true
}

fn change(frame: &mut [u8], layout: &Layout, partial: bool, at: usize, mask: u8) {
    let old = frame[at];
    frame[at] ^= mask;
    let (Some(place), false) = (layout.checksum, partial) else { return };
    let shift = if (at - layout.from) % 2 == 0 { 8 } else { 0 };
    let sum = be16(frame, place).expect("the layout lies in the frame");
    let mut new = adjusted(sum, u16::from(old) << shift, u16::from(frame[at]) << shift);
    // UDP writes a sum of 0 as its other zero, because 0 means that there is none (RFC 768).
    if layout.udp && new == 0 {
        new = 0xffff;
    }
    frame[place..place + 2].copy_from_slice(&new.to_be_bytes());
}

/// RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
fn adjusted(sum: u16, old: u16, new: u16) -> u16 {
    let mut x = u32::from(!sum) + u32::from(!old) + u32::from(new);
    while x > 0xffff {
        x = (x & 0xffff) + (x >> 16);
    }
    !(x as u16)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn ethernet(kind: u16, inside: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0x52, 0x52, 1, 0, 2, 2, 0x52, 0x52, 1, 0, 1];
        frame.extend(kind.to_be_bytes());
        frame.extend(inside);
        frame
    }

    /// The Internet checksum of an IP packet's transport part, computed from the ground: what a receiver computes.
    fn whole_sum(frame: &[u8]) -> u16 {
        let v4 = be16(frame, 12) == Some(ETHERTYPE_IPV4);
        let (from, addresses, protocol) = if v4 { (34, 26..34, frame[23]) } else { (54, 22..54, frame[20]) };
        let mut bytes = frame[addresses].to_vec();
        bytes.extend(((frame.len() - from) as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
        bytes.extend(&frame[from..]);
        if bytes.len() % 2 == 1 {
            bytes.push(0);
        }
        let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn is_valid(frame: &[u8]) -> bool {
        whole_sum(frame) == 0
    }

    fn over_ipv4(protocol: u8, transport: &[u8], checksum_at: usize) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2];
        ip[2..4].copy_from_slice(&((20 + transport.len()) as u16).to_be_bytes());
        ip.extend(transport);
        let mut frame = ethernet(ETHERTYPE_IPV4, &ip);
        let sum = whole_sum(&frame);
        frame[34 + checksum_at..36 + checksum_at].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    fn over_ipv6(protocol: u8, transport: &[u8], checksum_at: usize) -> Vec<u8> {
        let mut ip = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
        ip[4..6].copy_from_slice(&(transport.len() as u16).to_be_bytes());
        for last in [1, 2] {
            ip.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        ip.extend(transport);
        let mut frame = ethernet(ETHERTYPE_IPV6, &ip);
        let sum = whole_sum(&frame);
        frame[54 + checksum_at..56 + checksum_at].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    fn udp_part(payload: &[u8]) -> Vec<u8> {
        let mut part = vec![0x10, 0, 0x20, 0, 0, 0, 0, 0];
        part[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
        part.extend(payload);
        part
    }

    fn tcp_part(payload: &[u8]) -> Vec<u8> {
        let mut part = vec![0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x10, 1, 0, 0, 0, 0, 0];
        part.extend([1; 12]); // options
        part.extend(payload);
        part
    }

    pub fn udp(payload: &[u8]) -> Vec<u8> {
        over_ipv4(PROTOCOL_UDP, &udp_part(payload), 6)
    }

    pub fn arp() -> Vec<u8> {
        ethernet(ETHERTYPE_ARP, &[0; 28])
    }

    pub fn solicitation() -> Vec<u8> {
        over_ipv6(PROTOCOL_ICMPV6, &[135, 0, 0, 0, 0, 0, 0, 0], 2)
    }

    #[test]
    fn spoilt_payload_has_a_checksum_that_fits_and_headers_are_left_alone() {
        let payload: Vec<u8> = (0..301u16).map(|i| (i * 7) as u8).collect();
        for (frame, start) in [
            (udp(&payload), 42),
            (over_ipv4(PROTOCOL_TCP, &tcp_part(&payload), 16), 66),
            (over_ipv6(PROTOCOL_UDP, &udp_part(&payload), 6), 62),
            (over_ipv6(PROTOCOL_TCP, &tcp_part(&payload), 16), 86),
        ] {
            assert!(is_valid(&frame));
            let place = layout(&frame).unwrap().checksum.unwrap();
            for source in (0..2000).map(|i| rerail_fault::chance::draw(1, i, 0)) {
                let mut spoilt = frame.clone();
                assert!(corrupt(&mut spoilt, false, source));
                assert!(is_valid(&spoilt) && spoilt[start..] != frame[start..]);
                spoilt[place..place + 2].copy_from_slice(&frame[place..place + 2]);
                assert!(spoilt[..start] == frame[..start], "only payload and checksum change");
                let mut partial = frame.clone();
                assert!(corrupt(&mut partial, true, source));
                assert!(partial[..start] == frame[..start] && partial[start..] == spoilt[start..]);
            }
        }
    }

    #[test]
    fn a_sum_of_zero_is_written_as_its_other_zero() {
        // two bytes chosen so that flipping one bit takes the sum to 0
        let found = (0..=u16::MAX).any(|word| {
            let frame = udp(&word.to_be_bytes());
            (0..8u64).any(|bit| {
                let mut spoilt = frame.clone();
                corrupt(&mut spoilt, false, bit << 1);
                assert_ne!(be16(&spoilt, 40), Some(0));
                is_valid(&spoilt) && be16(&spoilt, 40) == Some(0xffff)
            })
        });
        assert!(found, "the case was met");
    }

    #[test]
    fn what_has_no_payload_is_not_spoilt() {
        let mut fragment = udp(b"some payload");
        fragment[20] |= 0x20;
        let mut short = udp(b"some payload");
        short.truncate(45);
        for mut frame in [
            arp(),
            solicitation(),
            over_ipv4(PROTOCOL_TCP, &tcp_part(b""), 16),
            udp(b""),
            fragment,
            short,
            vec![0; 10],
            Vec::new(),
        ] {
            let before = frame.clone();
            assert!(!corrupt(&mut frame, false, 12345) && frame == before);
        }
        // a UDP sender may leave the checksum out; then there is none to mend
        let mut bare = udp(b"payload");
        bare[40..42].fill(0);
        assert!(corrupt(&mut bare, false, 0) && bare[40..42] == [0, 0]);
    }

    #[test]
    fn who_asks_who_is_there_is_told_from_the_rest() {
        let report = over_ipv6(0, &[PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0], 10);
        let ping = over_ipv6(PROTOCOL_ICMPV6, &[128, 0, 0, 0, 0, 0, 0, 0], 2);
        for (frame, is) in
            [(arp(), true), (solicitation(), true), (report, true), (ping, false), (udp(b"x"), false)]
        {
            assert_eq!(is_neighbour_discovery(&frame), is);
        }
        assert!(!is_neighbour_discovery(&[]));
    }

    #[test]
    fn frames_name_one_node_or_all() {
        assert_eq!(destination(&arp()), Some(2));
        assert_eq!(destination(&[0xff; 14]), None);
        assert_eq!(destination(&[0x33, 0x33, 0, 0, 0, 1]), None);
        assert_eq!(destination(&[]), None);
    }
}
