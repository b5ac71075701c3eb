//! The address an endpoint publishes: 56 bytes, fixed, self-describing.
//!
//! aws-ofi-nccl and NIXL pass addresses of at most 56 bytes, zero-padded and without a length, so the size is fixed and
//! the first byte says what follows.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | version |
//! | 1 | family of all rails: 4 or 6 |
//! | 2 | number of rails: 1 to 8 (IPv4) or 1 to 2 (IPv6) |
//! | 3 | flags ([`ADDRESS_ENCRYPTS`]) |
//! | 4..6 | UDP and TCP port, shared by all rails |
//! | 6..8 | index of the endpoint in its process |
//! | 8..24 | token of the process |
//! | 24..56 | addresses of the rails, then zeros |

use crate::WireError;
use crate::auth::{TOKEN_BYTES, Token};
use crate::bytes::{get_u16, put_u16};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 56;
/// The process encrypts, and talks only to those that do.
pub const ADDRESS_ENCRYPTS: u8 = 1;
/// Most IPv4 rails one address can name.
pub const RAILS_V4_MAX: usize = 8;
/// Most IPv6 rails one address can name.
pub const RAILS_V6_MAX: usize = 2;
const _: () = assert!(24 + RAILS_V4_MAX * 4 == ADDRESS_BYTES && 24 + RAILS_V6_MAX * 16 == ADDRESS_BYTES);

/// Where an endpoint is reached, and the capability to do so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// Identity and capability of the process.
    pub token: Token,
    /// UDP and TCP port of every rail.
    pub port: u16,
    /// Index of the endpoint in its process.
    pub endpoint: u16,
    /// Whether the process encrypts what it sends.
    pub encrypts: bool,
    /// One address for each rail, in the process's own order. All of one family.
    pub rails: Vec<IpAddr>,
}

impl Address {
    /// Parses a published address; bytes beyond [`ADDRESS_BYTES`] are padding of the carrier and ignored.
    ///
    /// # Errors
    /// Truncated input, an unknown version or family, a rail count out of range, port 0, non-zero reserved bytes.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        if b.len() < ADDRESS_BYTES {
            return Err(WireError::Truncated { need: ADDRESS_BYTES, have: b.len() });
        }
        if b[0] != crate::VERSION {
            return Err(WireError::Version(b[0]));
        }
        let (step, most) = match b[1] {
            4 => (4, RAILS_V4_MAX),
            6 => (16, RAILS_V6_MAX),
            _ => return Err(WireError::Field("address family")),
        };
        let n = b[2] as usize;
        if n == 0 || n > most {
            return Err(WireError::Field("address rail count"));
        }
        let port = get_u16(b, 4);
        if port == 0 {
            return Err(WireError::Field("address port"));
        }
        if b[3] & !ADDRESS_ENCRYPTS != 0 || b[24 + n * step..ADDRESS_BYTES].iter().any(|&x| x != 0) {
            return Err(WireError::Field("address reserved bytes"));
        }
        let rails = b[24..24 + n * step]
            .chunks_exact(step)
            .map(|c| match c.len() {
                4 => IpAddr::V4(Ipv4Addr::new(c[0], c[1], c[2], c[3])),
                _ => {
                    let mut o = [0; 16];
                    o.copy_from_slice(c);
                    IpAddr::V6(Ipv6Addr::from(o))
                }
            })
            .collect();
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&b[8..24]);
        let encrypts = b[3] & ADDRESS_ENCRYPTS != 0;
        Ok(Self { token: Token(token), port, endpoint: get_u16(b, 6), encrypts, rails })
    }

    /// The bytes to publish.
    ///
    /// # Panics
    /// When there are no rails, too many, or of mixed families: whoever chose the rails must have refused that.
    pub fn to_bytes(&self) -> [u8; ADDRESS_BYTES] {
        let v4 = self.rails[0].is_ipv4();
        let most = if v4 { RAILS_V4_MAX } else { RAILS_V6_MAX };
        assert!(self.rails.len() <= most, "too many rails for an address");
        let mut b = [0; ADDRESS_BYTES];
        b[0] = crate::VERSION;
        b[1] = if v4 { 4 } else { 6 };
        b[2] = self.rails.len() as u8;
        b[3] = if self.encrypts { ADDRESS_ENCRYPTS } else { 0 };
        put_u16(&mut b, 4, self.port);
        put_u16(&mut b, 6, self.endpoint);
        b[8..24].copy_from_slice(&self.token.0);
        let mut at = 24;
        for r in &self.rails {
            match (r, v4) {
                (IpAddr::V4(a), true) => {
                    b[at..at + 4].copy_from_slice(&a.octets());
                    at += 4;
                }
                (IpAddr::V6(a), false) => {
                    b[at..at + 16].copy_from_slice(&a.octets());
                    at += 16;
                }
                _ => panic!("rails of one address are of one family"),
            }
        }
        b
    }

    /// Socket address of one rail.
    pub fn socket(&self, rail: usize) -> Option<SocketAddr> {
        self.rails.get(rail).map(|ip| SocketAddr::new(*ip, self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Address {
        Address {
            token: Token([9; 16]),
            port: 4711,
            endpoint: 3,
            encrypts: false,
            rails: vec!["10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap()],
        }
    }

    #[test]
    fn round_trip_v4_and_v6() {
        let a = sample();
        assert_eq!(Address::parse(&a.to_bytes()), Ok(a.clone()));
        let v6 = Address { rails: vec!["fd00::1".parse().unwrap()], encrypts: true, ..a };
        assert_eq!(Address::parse(&v6.to_bytes()), Ok(v6));
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
    }
}
