//! The address an endpoint publishes: 56 bytes, fixed, self-describing.
//!
//! aws-ofi-nccl and NIXL pass addresses of at most 56 bytes, zero-padded and without a length, so the size is fixed and
//! each rail has a tag that says what follows.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | version |
//! | 1 | flags ([`ADDRESS_ENCRYPTS`]) |
//! | 2..4 | tags of up to 8 rails, 2 bits each, the first rail in the lowest bits; 0: no more rails |
//! | 4..6 | UDP and TCP port, shared by the rails over IP; 0 without such rails |
//! | 6..8 | index of the endpoint in its process |
//! | 8..24 | token of the process |
//! | 24..56 | the rails, one behind the other, then zeros |
//!
//! | tag | rail |
//! |---|---|
//! | 1 | IPv4: 4 bytes, at the shared port |
//! | 2 | IPv6: 16 bytes, at the shared port |
//! | 3 | any kind: kind, length of the place (low 5 bits) and of the service (high 3 bits), place, service |
//!
//! So it holds 8 rails over IPv4, or 2 over IPv6, or one over IPv6 and 4 over IPv4, or what else has 32 bytes in all. There is one
//! way only to write a rail: tag 3 is for what tags 1 and 2 cannot say, and a service has no leading zeros.

use crate::WireError;
use crate::auth::{TOKEN_BYTES, Token};
use crate::bytes::{get_u16, put_u16};
use rerail_rail::{Kind, Locator, PLACE_BYTES_MAX};

/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 56;
/// The process encrypts, and talks only to those that do.
pub const ADDRESS_ENCRYPTS: u8 = 1;
/// Most rails that one address can name.
pub const RAILS_MAX: usize = 8;
/// Where the rails begin.
const RAILS_AT: usize = 24;
/// Bytes for rails.
const RAILS_BYTES: usize = ADDRESS_BYTES - RAILS_AT;
const IPV4: u16 = 1;
const IPV6: u16 = 2;
const ANY: u16 = 3;
/// The length of a place has 5 bits.
const _: () = assert!(PLACE_BYTES_MAX < 32);

/// The rails of an address, as they are written in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rails {
    tags: u16,
    port: u16,
    bytes: [u8; RAILS_BYTES],
}

impl Rails {
    /// As many of these as fit, from the first.
    pub fn of(all: &[Locator]) -> Rails {
        let mut packed = Rails { tags: 0, port: 0, bytes: [0; RAILS_BYTES] };
        let mut shared = None;
        let mut at = 0;
        for (i, rail) in all.iter().take(RAILS_MAX).enumerate() {
            let (kind, place, service) = (rail.kind(), rail.place(), rail.service());
            let port = u16::try_from(service).ok();
            let (tag, head, tail): (u16, &[u8], &[u8]) = match (kind, place.len(), port) {
                (Kind::IP, 4 | 16, Some(port)) if shared.is_none_or(|s| s == port) => {
                    shared = Some(port);
                    (if place.len() == 4 { IPV4 } else { IPV6 }, &[], &[])
                }
                _ => {
                    let digits = 4 - service.leading_zeros() as usize / 8;
                    let lengths = place.len() as u8 | (digits as u8) << 5;
                    (ANY, &[kind.0, lengths], &service.to_le_bytes()[..digits])
                }
            };
            let end = at + head.len() + place.len() + tail.len();
            let Some(room) = packed.bytes.get_mut(at..end) else { break };
            let (a, rest) = room.split_at_mut(head.len());
            let (b, c) = rest.split_at_mut(place.len());
            a.copy_from_slice(head);
            b.copy_from_slice(place);
            c.copy_from_slice(tail);
            packed.tags |= tag << (2 * i);
            packed.port = shared.unwrap_or(0);
            at = end;
        }
        packed
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        (0..RAILS_MAX).take_while(|&i| self.tag(i) != 0).count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tags == 0
    }

    /// The one at this place.
    pub fn get(&self, i: usize) -> Option<Locator> {
        self.iter().nth(i)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Locator> {
        let mut at = 0;
        (0..RAILS_MAX).map_while(move |i| {
            let (rail, end) = self.read(i, at)?;
            at = end;
            Some(rail)
        })
    }

    fn tag(&self, i: usize) -> u16 {
        self.tags >> (2 * i) & 3
    }

    /// The rail that begins at `at`, and where the next one does. `None`: there is none, or it is cut off.
    fn read(&self, i: usize, at: usize) -> Option<(Locator, usize)> {
        let ip = |bytes: usize| {
            let place = self.bytes.get(at..at + bytes)?;
            Some((Locator::new(Kind::IP, place, self.port.into())?, at + bytes))
        };
        match self.tag(i) {
            IPV4 => ip(4),
            IPV6 => ip(16),
            ANY => {
                let (kind, lengths) = (*self.bytes.get(at)?, *self.bytes.get(at + 1)?);
                let place_end = at + 2 + usize::from(lengths & 31);
                let end = place_end + usize::from(lengths >> 5);
                let mut service = [0; 4];
                let digits = self.bytes.get(place_end..end)?;
                service.get_mut(..digits.len())?.copy_from_slice(digits);
                let place = self.bytes.get(at + 2..place_end)?;
                Some((Locator::new(Kind(kind), place, u32::from_le_bytes(service))?, end))
            }
            _ => None,
        }
    }
}

/// Where an endpoint is reached, and the capability to do so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// Identity and capability of the process.
    pub token: Token,
    /// Index of the endpoint in its process.
    pub endpoint: u16,
    /// Whether the process encrypts what it sends.
    pub encrypts: bool,
    /// Where each rail is reached, in the process's own order.
    pub rails: Vec<Locator>,
}

impl Address {
    /// Parses a published address; bytes beyond [`ADDRESS_BYTES`] are padding of the carrier and ignored.
    ///
    /// # Errors
    /// Truncated input, another version, no rail, a rail without a service or written in another way than [`Address::to_bytes`] does,
    /// non-zero reserved bytes.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        if b.len() < ADDRESS_BYTES {
            return Err(WireError::Truncated { need: ADDRESS_BYTES, have: b.len() });
        }
        if b[0] != crate::VERSION {
            return Err(WireError::Version(b[0]));
        }
        if b[1] & !ADDRESS_ENCRYPTS != 0 {
            return Err(WireError::Field("address flags"));
        }
        let mut written = Rails { tags: get_u16(b, 2), port: get_u16(b, 4), bytes: [0; RAILS_BYTES] };
        written.bytes.copy_from_slice(&b[RAILS_AT..ADDRESS_BYTES]);
        let rails: Vec<Locator> = written.iter().collect();
        if rails.is_empty() || Rails::of(&rails) != written {
            return Err(WireError::Field("address rails"));
        }
        if rails.iter().any(|r| r.service() == 0) {
            return Err(WireError::Field("address port"));
        }
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&b[8..RAILS_AT]);
        Ok(Self {
            token: Token(token),
            endpoint: get_u16(b, 6),
            encrypts: b[1] & ADDRESS_ENCRYPTS != 0,
            rails,
        })
    }

    /// The bytes to publish.
    ///
    /// # Panics
    /// When the rails do not fit ([`Rails::of`]): the caller must have refused that.
    pub fn to_bytes(&self) -> [u8; ADDRESS_BYTES] {
        let rails = Rails::of(&self.rails);
        assert_eq!(rails.len(), self.rails.len(), "too many rails for an address");
        let mut b = [0; ADDRESS_BYTES];
        b[0] = crate::VERSION;
        b[1] = if self.encrypts { ADDRESS_ENCRYPTS } else { 0 };
        put_u16(&mut b, 2, rails.tags);
        put_u16(&mut b, 4, rails.port);
        put_u16(&mut b, 6, self.endpoint);
        b[8..RAILS_AT].copy_from_slice(&self.token.0);
        b[RAILS_AT..].copy_from_slice(&rails.bytes);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> Locator {
        Locator::ip(text.parse().unwrap(), 4711)
    }

    fn with(rails: Vec<Locator>) -> Address {
        Address { token: Token([9; 16]), endpoint: 3, encrypts: false, rails }
    }

    fn sample() -> Address {
        with(vec![ip("10.1.0.1"), ip("10.2.0.1")])
    }

    #[test]
    fn rails_of_both_families_and_of_any_kind_come_back_together() {
        let other = Locator::new(Kind(200), &[1, 2, 3, 4, 5, 6], 0x12_3456).unwrap();
        for rails in [
            vec![ip("10.1.0.1")],
            (1..9).map(|i| Locator::ip([10, i, 0, 1].into(), 4711)).collect(),
            vec![ip("fd00::1"), ip("fd01::1")],
            vec![ip("fd00::1"), ip("10.1.0.1"), ip("10.2.0.1"), ip("10.3.0.1"), ip("10.4.0.1")],
            vec![ip("10.1.0.1"), other, ip("fd00::1")],
            vec![other],
            // another port than the shared one
            vec![ip("10.1.0.1"), ip("10.2.0.1").with_service(4712), ip("10.3.0.1")],
        ] {
            let a = Address { encrypts: true, ..with(rails) };
            assert_eq!(Address::parse(&a.to_bytes()), Ok(a));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_end() {
        let many: Vec<Locator> = (1..20).map(|i| Locator::ip([10, i, 0, 1].into(), 4711)).collect();
        assert_eq!(Rails::of(&many).len(), 8);
        assert_eq!(Rails::of(&[ip("fd00::1"), ip("fd01::1"), ip("10.0.0.1")]).len(), 2);
        assert_eq!(Rails::of(&[]).len(), 0);
        assert_eq!((Rails::of(&many).get(7), Rails::of(&many).get(8)), (Some(many[7]), None));
    }

    #[test]
    fn an_address_of_another_version_or_form_is_refused() {
        let good = sample().to_bytes();
        let refused = |change: fn(&mut [u8])| {
            let mut b = good;
            change(&mut b);
            Address::parse(&b).unwrap_err()
        };
        assert_eq!(refused(|b| b[0] = 1), WireError::Version(1));
        assert_eq!(refused(|b| b[1] = 2), WireError::Field("address flags"));
        assert_eq!(refused(|b| b[4..6].fill(0)), WireError::Field("address port"));
        for change in [
            |b: &mut [u8]| b[2] = 0,
            // a gap between two rails
            |b: &mut [u8]| b[2] = 0b10001,
            // more than there is room for
            |b: &mut [u8]| b[2] = 0b10_1010,
            |b: &mut [u8]| b[55] = 1,
            // an IPv4 rail at the shared port, written at length
            |b: &mut [u8]| {
                b[2] = 0b1101;
                b[28..36].copy_from_slice(&[1, 4 | 2 << 5, 10, 2, 0, 1, 0x67, 0x12]);
            },
            // a service with a leading zero
            |b: &mut [u8]| {
                b[2] = 0b1101;
                b[28..34].copy_from_slice(&[7, 1 | 3 << 5, 10, 1, 1, 0]);
            },
        ] {
            assert_eq!(refused(change), WireError::Field("address rails"));
        }
    }

    #[test]
    fn zero_padding_of_the_carrier_is_ignored() {
        let mut b = sample().to_bytes().to_vec();
        b.resize(64, 0);
        assert_eq!(Address::parse(&b), Ok(sample()));
    }

    #[test]
    fn every_truncation_is_refused() {
        let b = sample().to_bytes();
        for n in 0..ADDRESS_BYTES {
            assert!(Address::parse(&b[..n]).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(b in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(a) = Address::parse(&b) {
                prop_assert_eq!(&a.to_bytes()[..], &b[..ADDRESS_BYTES]);
            }
        }

        #[test]
        fn tags_of_every_sort_parse_or_are_refused(tags: u16, port: u16, rails in proptest::array::uniform32(0u8..40)) {
            let mut b = sample().to_bytes();
            put_u16(&mut b, 2, tags);
            put_u16(&mut b, 4, port);
            b[RAILS_AT..].copy_from_slice(&rails);
            if let Ok(a) = Address::parse(&b) {
                prop_assert_eq!(a.to_bytes(), b);
            }
        }
    }
}
