//! The private data of a connection request: the processes at both ends. A request without it gets no queue pair.

/// Bytes of the private data. InfiniBand leaves 56 to a connection that names IP addresses.
pub const HELLO_BYTES: usize = 16;

const MAGIC: [u8; 7] = *b"rerail\x02";

/// What a connection carries. The number is that of the private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A stream.
    Stream = 0,
    /// Datagrams, because the network has no others.
    Datagrams = 1,
}

/// What it carries, and the services of both sides; the places are the addresses of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// See there.
    pub purpose: Purpose,
    /// Of the side that connects.
    pub from: u32,
    /// Of the side that is meant: another process may have taken its port.
    pub to: u32,
}

impl Hello {
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = self.purpose as u8;
        bytes[8..12].copy_from_slice(&self.from.to_le_bytes());
        bytes[12..].copy_from_slice(&self.to.to_le_bytes());
        bytes
    }

    /// `None`: a stranger. More bytes may follow: some networks pad it.
    pub fn read(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("four more"));
        let purpose = match bytes[7] {
            0 => Purpose::Stream,
            1 => Purpose::Datagrams,
            _ => return None,
        };
        (bytes[..7] == MAGIC).then(|| Hello { purpose, from: word(8), to: word(12) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_strangers_are_not() {
        for purpose in [Purpose::Stream, Purpose::Datagrams] {
            let hello = Hello { purpose, from: 0x0102_0304, to: 17 };
            assert_eq!(Hello::read(&hello.to_bytes()), Some(hello));
        }
        let hello = Hello { purpose: Purpose::Stream, from: 0x0102_0304, to: 17 };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::read(&[&bytes[..], &[0; 40]].concat()), Some(hello));
        for len in 0..HELLO_BYTES {
            assert_eq!(Hello::read(&bytes[..len]), None);
        }
        for at in 0..8 {
            let mut wrong = bytes;
            wrong[at] ^= 2;
            assert_eq!(Hello::read(&wrong), None);
        }
    }
}
