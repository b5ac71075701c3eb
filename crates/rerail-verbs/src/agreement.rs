//! What the two ends of a lane say to each other about alternate paths, 46 bytes: what it is, the LID of a port, the number of the order, the
//! GID of that port, place and service of a rail. Numbers are little-endian.

use rerail_rail::PLACE_BYTES_MAX;

/// The place of a rail, with zeros behind it: places of one network are equally long.
pub type Place = [u8; PLACE_BYTES_MAX];

/// Bytes of a message about alternates.
pub const BYTES: usize = 46;

/// A port, as the other end of a queue pair needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Of the port, where it has one.
    pub lid: u16,
    pub gid: [u8; 16],
}

/// What the two ends of a lane say about alternates. `number` is that of the order which it is about; the opener chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The opener's port is `from`; the peer is to load it as the alternate of its rail at this place and service.
    Load { number: u32, from: Address, to: (Place, u32) },
    /// Loaded; the port of that rail.
    Loaded { number: u32, at: Address },
    /// Not loaded.
    Refused { number: u32 },
    /// To be unloaded, or it could not be loaded at the opener's end.
    Unload { number: u32 },
}

impl Message {
    pub fn to_bytes(self) -> [u8; BYTES] {
        let none = Address { lid: 0, gid: [0; 16] };
        let (what, number, address, to) = match self {
            Message::Load { number, from, to } => (1, number, from, to),
            Message::Loaded { number, at } => (2, number, at, ([0; PLACE_BYTES_MAX], 0)),
            Message::Refused { number } => (3, number, none, ([0; PLACE_BYTES_MAX], 0)),
            Message::Unload { number } => (4, number, none, ([0; PLACE_BYTES_MAX], 0)),
        };
        let mut b = [0; BYTES];
        b[0] = what;
        b[2..4].copy_from_slice(&address.lid.to_le_bytes());
        b[4..8].copy_from_slice(&number.to_le_bytes());
        b[8..24].copy_from_slice(&address.gid);
        b[24..42].copy_from_slice(&to.0);
        b[42..].copy_from_slice(&to.1.to_le_bytes());
        b
    }

    /// `None`: it is malformed.
    pub fn read(b: &[u8; BYTES]) -> Option<Message> {
        let four = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        fn part<const N: usize>(b: &[u8; BYTES], at: usize) -> [u8; N] {
            b[at..].first_chunk().copied().expect("it is as long as that")
        }
        let number = four(4);
        let address = Address { lid: u16::from_le_bytes([b[2], b[3]]), gid: part(b, 8) };
        let message = match b[0] {
            1 => Message::Load { number, from: address, to: (part(b, 24), four(42)) },
            2 => Message::Loaded { number, at: address },
            3 => Message::Refused { number },
            4 => Message::Unload { number },
            _ => return None,
        };
        // what the kind has no use for is zero
        (message.to_bytes() == *b).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_nothing_else_is() {
        let address = Address { lid: 0x0102, gid: [7; 16] };
        let all = [
            Message::Load { number: 0x0304_0506, from: address, to: ([9; PLACE_BYTES_MAX], 0x0a0b) },
            Message::Loaded { number: 1, at: address },
            Message::Refused { number: 2 },
            Message::Unload { number: 3 },
        ];
        for message in all {
            let bytes = message.to_bytes();
            assert_eq!(Message::read(&bytes), Some(message));
            for at in [0, 1] {
                let mut wrong = bytes;
                wrong[at] ^= 0x80;
                assert_eq!(Message::read(&wrong), None);
            }
        }
        let mut wrong = Message::Refused { number: 2 }.to_bytes();
        wrong[30] = 1;
        assert_eq!(Message::read(&wrong), None, "what has no meaning is zero");
    }
}
