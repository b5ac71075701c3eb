//! Node configuration, exchanged on the first connection (MN-uDAPL §4.1.2): what a peer's rails are.
//!
//! `host` u64, `boot` u64, rail count u8, then for each rail: kind u8, lanes u8, datagram_bytes u16, speed_mbps u32, checksum
//! ([`Coverage`], low 4 bits) and port (high 4 bits) u8, name length u8, name. Names are for users only.

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::{Coverage, WireError};

/// Longest rail name that travels; longer ones are cut.
pub const RAIL_NAME_MAX: usize = 32;
/// Most rails that travel.
pub const RAILS_MAX: usize = 16;
/// Greatest number of a port.
pub const PORT_MAX: u8 = 15;
/// Bytes of a rail before its name.
const RAIL_BYTES: usize = 10;

/// What one rail is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RailConfig {
    /// Kind of rail, as the contract of rails numbers them: 1 = IP.
    pub kind: u8,
    /// Lanes that a path over this rail may have; of two sides the smaller number counts, and 0 is 1.
    pub lanes: u8,
    /// Bytes of the longest datagram that its interface takes, without the headers of its kind.
    pub datagram_bytes: u16,
    /// Nominal speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u32,
    /// Least that this side wants to be summed on paths over this rail; the stronger wish of the two sides counts.
    pub checksum: Coverage,
    /// Physical port: rails with the same number share one. 0: no other rail has it. At most [`PORT_MAX`].
    pub port: u8,
    /// Name of the interface.
    pub name: String,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeConfig {
    /// Hash of the host's identity.
    pub host: u64,
    /// Hash of the identity of its boot.
    pub boot: u64,
    /// Its rails, in the order of its address.
    pub rails: Vec<RailConfig>,
}

impl NodeConfig {
    /// The bytes of the configuration.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = vec![0; 17];
        put_u64(&mut b, 0, self.host);
        put_u64(&mut b, 8, self.boot);
        let n = self.rails.len().min(RAILS_MAX);
        b[16] = n as u8;
        for r in &self.rails[..n] {
            let mut end = r.name.len().min(RAIL_NAME_MAX);
            while !r.name.is_char_boundary(end) {
                end -= 1;
            }
            let at = b.len();
            b.resize(at + RAIL_BYTES, 0);
            b[at] = r.kind;
            b[at + 1] = r.lanes;
            put_u16(&mut b, at + 2, r.datagram_bytes);
            put_u32(&mut b, at + 4, r.speed_mbps);
            b[at + 8] = r.checksum as u8 | r.port.min(PORT_MAX) << 4;
            b[at + 9] = end as u8;
            b.extend_from_slice(&r.name.as_bytes()[..end]);
        }
        b
    }

    /// Parses a configuration.
    ///
    /// # Errors
    /// Truncated input, too many rails, an unknown coverage, a name too long or not UTF-8, bytes left over.
    pub fn parse(b: &[u8]) -> Result<Self, WireError> {
        let short = |need| WireError::Truncated { need, have: b.len() };
        if b.len() < 17 {
            return Err(short(17));
        }
        let n = b[16] as usize;
        if n > RAILS_MAX {
            return Err(WireError::Field("config rail count"));
        }
        let mut c = Self { host: get_u64(b, 0), boot: get_u64(b, 8), rails: Vec::with_capacity(n) };
        let mut at = 17;
        for _ in 0..n {
            if b.len() < at + RAIL_BYTES {
                return Err(short(at + RAIL_BYTES));
            }
            let checksum = Coverage::from_u8(b[at + 8] & 15).ok_or(WireError::Field("config checksum"))?;
            let len = b[at + 9] as usize;
            // planted: a name may be longer than it can be told on
            if len > RAIL_NAME_MAX + if cfg!(feature = "planted-bugs") { 8 } else { 0 } {
                return Err(WireError::Field("config rail name"));
            }
            let end = at + RAIL_BYTES + len;
            let name = b.get(at + RAIL_BYTES..end).ok_or(short(end))?;
            let name = std::str::from_utf8(name).map_err(|_| WireError::Field("config rail name"))?;
            c.rails.push(RailConfig {
                kind: b[at],
                lanes: b[at + 1],
                datagram_bytes: get_u16(b, at + 2),
                speed_mbps: get_u32(b, at + 4),
                checksum,
                port: b[at + 8] >> 4,
                name: name.to_owned(),
            });
            at = end;
        }
        if at != b.len() {
            return Err(WireError::Field("config length"));
        }
        Ok(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip_and_every_truncation_is_refused() {
        let c = NodeConfig {
            host: 1,
            boot: 2,
            rails: vec![RailConfig {
                kind: 1,
                lanes: 1,
                datagram_bytes: 1472,
                speed_mbps: 1000,
                checksum: Coverage::Header,
                port: PORT_MAX,
                name: "rail0".into(),
            }],
        };
        let b = c.to_bytes();
        assert_eq!(NodeConfig::parse(&b), Ok(c));
        for n in 0..b.len() {
            assert!(NodeConfig::parse(&b[..n]).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(b in proptest::collection::vec(any::<u8>(), 0..128)) {
            if let Ok(c) = NodeConfig::parse(&b) {
                prop_assert_eq!(c.to_bytes(), b);
            }
        }
    }
}
