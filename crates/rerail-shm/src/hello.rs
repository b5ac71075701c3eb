//! The first words on a connection between neighbours: what it is for, and which addresses it joins. Everything after them is bells.

use rerail_rail::{Kind as RailKind, Locator, PLACE_BYTES_MAX};

/// Bytes of a [`Hello`].
pub(crate) const HELLO_BYTES: usize = 64;
/// Where the two places are.
const FROM: usize = 16;
const TO: usize = FROM + PLACE_BYTES;
const _: () = assert!(TO + PLACE_BYTES <= HELLO_BYTES);
const MAGIC: [u8; 8] = *b"rerailSM";
/// Grows with every change of the hello, the memory's layout, or of what goes through the rings.
const VERSION: u8 = 2;

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
    /// Rail of the process that connects. The service is that of the process.
    pub from: Locator,
    /// Place of the rail that it connects to.
    pub to: Locator,
}

/// Bytes of a place: kind, length, and room for the longest.
pub(crate) const PLACE_BYTES: usize = 2 + PLACE_BYTES_MAX;

/// The place of a locator.
pub(crate) fn place_bytes(at: &Locator) -> [u8; PLACE_BYTES] {
    let mut b = [0; PLACE_BYTES];
    (b[0], b[1]) = (at.kind().0, at.place().len() as u8);
    b[2..2 + at.place().len()].copy_from_slice(at.place());
    b
}

/// What [`place_bytes`] wrote, with this service; `None`: it is no place.
pub(crate) fn place_of(b: &[u8], service: u32) -> Option<Locator> {
    Locator::new(RailKind(b[0]), b.get(2..2 + usize::from(b[1]))?, service)
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
        b[12..16].copy_from_slice(&self.from.service().to_le_bytes());
        b[FROM..FROM + PLACE_BYTES].copy_from_slice(&place_bytes(&self.from));
        b[TO..TO + PLACE_BYTES].copy_from_slice(&place_bytes(&self.to));
        b
    }

    /// `None`: not ours, or of another version.
    pub fn read(b: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let kind = match b[9] {
            1 => Kind::Stream,
            2 => Kind::Datagrams,
            _ => return None,
        };
        let service = u32::from_le_bytes([b[12], b[13], b[14], b[15]]);
        if b[..8] != MAGIC || b[8] != VERSION || service == 0 {
            return None;
        }
        Some(Hello {
            kind,
            from: place_of(&b[FROM..FROM + PLACE_BYTES], service)?,
            to: place_of(&b[TO..TO + PLACE_BYTES], 0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str) -> Locator {
        Locator::ip(ip.parse().unwrap(), 4711)
    }

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        for (kind, ip) in [(Kind::Stream, "10.0.0.1"), (Kind::Datagrams, "fd00::7")] {
            let h = Hello { kind, from: at(ip), to: at("10.0.0.2").with_service(0) };
            assert_eq!(Hello::read(&h.to_bytes()), Some(h));
        }
    }

    #[test]
    fn what_is_no_hello_is_not_taken_for_one() {
        let good =
            Hello { kind: Kind::Stream, from: at("10.0.0.1").with_service(1), to: at("10.0.0.1") }.to_bytes();
        for (at, value) in
            [(0, b'R'), (8, VERSION + 1), (9, 0), (9, 3), (12, 0), (FROM + 1, 19), (TO + 1, 255)]
        {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Hello::read(&bad), None, "byte {at} is {value}");
        }
    }
}
