//! The header of a message on a lane, 8 bytes: the version, its kind, the credits that the message returns, the bytes
//! behind it. Numbers are little-endian.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

const VERSION: u8 = 1;

/// What a message says besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Messages with bytes that the sender has room for again.
    pub credits: u16,
    /// Bytes behind the header.
    pub bytes: u32,
    /// It says that datagrams have arrived, and takes a credit although it has no bytes.
    pub answers: bool,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut b = [VERSION, self.answers.into(), 0, 0, 0, 0, 0, 0];
        b[2..4].copy_from_slice(&self.credits.to_le_bytes());
        b[4..].copy_from_slice(&self.bytes.to_le_bytes());
        b
    }

    /// Of a whole message. `None`: it is malformed, or not as long as it says.
    pub fn read(message: &[u8]) -> Option<Header> {
        let (header, bytes) = message.split_first_chunk::<HEADER_BYTES>()?;
        let [VERSION, answers @ 0..=1, c0, c1, b0, b1, b2, b3] = *header else { return None };
        let header = Header {
            credits: u16::from_le_bytes([c0, c1]),
            bytes: u32::from_le_bytes([b0, b1, b2, b3]),
            answers: answers == 1,
        };
        (header.bytes as usize == bytes.len() && !(header.answers && header.bytes > 0)).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let header = Header { credits: 0x0102, bytes: 3, answers: false };
        let whole = [&header.to_bytes()[..], b"abc"].concat();
        assert_eq!(Header::read(&whole), Some(header));
        for answers in [false, true] {
            let bare = Header { answers, ..Header::default() };
            assert_eq!(Header::read(&bare.to_bytes()), Some(bare));
        }
        let answer = Header { answers: true, ..header };
        assert_eq!(Header::read(&[&answer.to_bytes()[..], b"abc"].concat()), None, "an answer has no bytes");
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
