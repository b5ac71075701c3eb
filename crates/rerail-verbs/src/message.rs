//! The header of a message on a lane, 16 bytes: the version, its kind, the credits that the message returns, the bytes
//! behind it, and what became of rings (`ring.rs`). Numbers are little-endian.

use crate::agreement;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;

const VERSION: u8 = 3;

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum MessageKind {
    /// Bytes of a stream, or a datagram; without bytes it returns credits only, and takes none.
    #[default]
    Data = 0,
    /// It says that datagrams have arrived. Like the following it takes a credit whether or not it has bytes.
    Answer = 1,
    /// The sender looks into its ring from now on; key and address are its bytes.
    RingOpened = 2,
    /// It does not any more. What it has not taken it finds when the next message comes.
    RingClosed = 3,
    /// Its bytes are about alternate paths (`agreement.rs`), and not of the stream.
    Alternate = 4,
    /// The receiver should give back credits that it does not use.
    Recall = 5,
    /// It does; how many are its bytes.
    GivenBack = 6,
}

/// Bytes of [`MessageKind::GivenBack`].
pub const GIVEN_BACK_BYTES: usize = 2;

/// Bytes of [`MessageKind::RingOpened`].
pub const RING_BYTES: usize = 12;

/// The bytes of [`MessageKind::RingOpened`].
pub fn ring_to_bytes((key, address): (u32, u64)) -> [u8; RING_BYTES] {
    let mut bytes = [0; RING_BYTES];
    bytes[..4].copy_from_slice(&key.to_le_bytes());
    bytes[4..].copy_from_slice(&address.to_le_bytes());
    bytes
}

/// See [`ring_to_bytes`].
pub fn ring_from_bytes(bytes: &[u8]) -> Option<(u32, u64)> {
    let bytes: &[u8; RING_BYTES] = bytes.try_into().ok()?;
    let (key, address) = bytes.split_first_chunk().expect("four, and eight more");
    Some((u32::from_le_bytes(*key), u64::from_le_bytes(*address.first_chunk().expect("eight"))))
}

/// What a message says besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Messages with bytes that the sender has room for again.
    pub credits: u16,
    /// Bytes behind the header.
    pub bytes: u32,
    pub kind: MessageKind,
    /// Slots of the receiver's ring that were written before it.
    pub written: u32,
    /// Slots of the sender's ring that are given back.
    pub given_back: u32,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        b[..2].copy_from_slice(&[VERSION, self.kind as u8]);
        b[2..4].copy_from_slice(&self.credits.to_le_bytes());
        b[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        b[8..12].copy_from_slice(&self.written.to_le_bytes());
        b[12..].copy_from_slice(&self.given_back.to_le_bytes());
        b
    }

    /// Whether it takes a credit.
    pub fn is_counted(&self) -> bool {
        self.bytes > 0 || self.kind != MessageKind::Data
    }

    /// Of a whole message. `None`: it is malformed, or not as long as it says.
    pub fn read(message: &[u8]) -> Option<Header> {
        let (header, bytes) = message.split_first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("four more"));
        let kind = match header[..2] {
            [VERSION, 0] => MessageKind::Data,
            [VERSION, 1] => MessageKind::Answer,
            [VERSION, 2] => MessageKind::RingOpened,
            [VERSION, 3] => MessageKind::RingClosed,
            [VERSION, 4] => MessageKind::Alternate,
            [VERSION, 5] => MessageKind::Recall,
            [VERSION, 6] => MessageKind::GivenBack,
            _ => return None,
        };
        let fits = match kind {
            MessageKind::Data => true,
            MessageKind::RingOpened => bytes.len() == RING_BYTES,
            MessageKind::Alternate => bytes.len() == agreement::BYTES,
            MessageKind::GivenBack => bytes.len() == GIVEN_BACK_BYTES,
            MessageKind::Answer | MessageKind::RingClosed | MessageKind::Recall => bytes.is_empty(),
        };
        let credits = u16::from_le_bytes([header[2], header[3]]);
        let header = Header { credits, bytes: word(4), kind, written: word(8), given_back: word(12) };
        (fits && header.bytes as usize == bytes.len()).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let header =
            Header { credits: 0x0102, bytes: 3, written: 7, given_back: 0x0102_0304, ..Header::default() };
        let whole = [&header.to_bytes()[..], b"abc"].concat();
        assert_eq!(Header::read(&whole), Some(header));
        for kind in [MessageKind::Data, MessageKind::Answer, MessageKind::RingClosed, MessageKind::Recall] {
            let bare = Header { kind, ..Header::default() };
            assert_eq!(Header::read(&bare.to_bytes()), Some(bare));
            assert_eq!(bare.is_counted(), kind != MessageKind::Data);
        }
        let alternate =
            Header { kind: MessageKind::Alternate, bytes: agreement::BYTES as u32, ..Header::default() };
        let whole_one = [&alternate.to_bytes()[..], &[7; agreement::BYTES]].concat();
        assert_eq!(Header::read(&whole_one), Some(alternate));
        let given =
            Header { kind: MessageKind::GivenBack, bytes: GIVEN_BACK_BYTES as u32, ..Header::default() };
        assert_eq!(Header::read(&[&given.to_bytes()[..], &[1, 0]].concat()), Some(given));
        let kinds = [
            MessageKind::Answer,
            MessageKind::RingClosed,
            MessageKind::RingOpened,
            MessageKind::Alternate,
            MessageKind::Recall,
            MessageKind::GivenBack,
        ];
        for kind in kinds {
            let wrong = Header { kind, ..header };
            assert_eq!(
                Header::read(&[&wrong.to_bytes()[..], b"abc"].concat()),
                None,
                "{kind:?} of three bytes"
            );
        }
        let place = (0x0102_0304, 0x0506_0708_090a_0b0c);
        assert_eq!(ring_from_bytes(&ring_to_bytes(place)), Some(place));
        assert_eq!(ring_from_bytes(&[0; 11]), None);
        for len in 0..whole.len() {
            assert_eq!(Header::read(&whole[..len]), None, "{len}");
        }
        assert_eq!(Header::read(&[&whole[..], b"d"].concat()), None);
        for at in [0, 1, 4, 5, 6, 7] {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x80;
            assert_eq!(Header::read(&wrong), None, "{at}");
        }
    }
}
