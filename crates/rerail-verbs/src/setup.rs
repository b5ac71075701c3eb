//! Messages by which two processes connect queue pairs without RDMA-CM. They travel as datagrams between queue pairs of their own.
//!
//! All have a head of 16 bytes: `rerail`, the version, what it is, and the token of the connection, a random number of the side that
//! connects. Numbers are little-endian, reserved bytes are 0, and a message is exactly as long as it is to be.
//!
//! | number | message | behind the head |
//! |---|---|---|
//! | 1 | request | the [`Hello`] of 16 bytes, an [`End`] of 16 |
//! | 2 | accept | an [`End`] of 16 |
//! | 3 | refuse | why: a number, and 7 reserved bytes |
//! | 4 | bye: the sender has no such connection any more | |
//! | 5 | gone: the answer to it | |

use crate::hello::{HELLO_BYTES, Hello};

/// Bytes of the longest message.
pub const SETUP_BYTES_MAX: usize = HEAD_BYTES + HELLO_BYTES + END_BYTES;

const HEAD_BYTES: usize = 16;
const END_BYTES: usize = 16;
const MAGIC: [u8; 7] = *b"rerail\x02";
/// Numbers of queue pairs and of packets have 24 bits.
pub const NUMBER_MAX: u32 = 0xff_ffff;
/// The codes of MTUs: 256 to 4096 bytes (InfiniBand specification, PathRecord).
pub const MTU_CODES: std::ops::RangeInclusive<u8> = 1..=5;

/// What one side of a connection has to know of the other's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Its number.
    pub queue_pair: u32,
    /// The number of the first packet that it sends.
    pub packet: u32,
    /// The code of the largest packet that its port carries.
    pub mtu: u8,
}

/// Why a request is not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The process that is meant is not here: the queue pair is another's now.
    NoSuchProcess = 1,
    /// This process has no room for one more, or cannot make it.
    NoRoom = 2,
}

const REFUSAL_BYTES: usize = 8;

/// A message, without its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// The sender connects.
    Request(Hello, End),
    /// The receiver's request is granted.
    Accept(End),
    /// It is not.
    Refuse(Refusal),
    /// The connection is over.
    Bye,
    /// The sender of a bye need not repeat it.
    Gone,
}

impl End {
    fn to_bytes(self) -> [u8; END_BYTES] {
        let mut bytes = [0; END_BYTES];
        bytes[..4].copy_from_slice(&self.queue_pair.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.packet.to_le_bytes());
        bytes[8] = self.mtu;
        bytes
    }

    fn read(bytes: &[u8]) -> Option<End> {
        let (q, rest) = bytes.split_first_chunk::<4>()?;
        let (p, rest) = rest.split_first_chunk::<4>()?;
        let (&mtu, reserved) = rest.split_first()?;
        let end = End { queue_pair: u32::from_le_bytes(*q), packet: u32::from_le_bytes(*p), mtu };
        // 0 and 1 are those of the adapter's own management
        let valid = (2..=NUMBER_MAX).contains(&end.queue_pair)
            && end.packet <= NUMBER_MAX
            && MTU_CODES.contains(&mtu)
            && *reserved == [0; END_BYTES - 9];
        valid.then_some(end)
    }
}

impl Setup {
    /// The message for a token.
    pub fn to_bytes(self, token: u64) -> Vec<u8> {
        let number = match self {
            Setup::Request(..) => 1,
            Setup::Accept(_) => 2,
            Setup::Refuse(_) => 3,
            Setup::Bye => 4,
            Setup::Gone => 5,
        };
        let mut bytes = [&MAGIC[..], &[number], &token.to_le_bytes()].concat();
        if let Setup::Request(hello, _) = self {
            bytes.extend(hello.to_bytes());
        }
        if let Setup::Request(_, end) | Setup::Accept(end) = self {
            bytes.extend(end.to_bytes());
        }
        if let Setup::Refuse(why) = self {
            bytes.extend([why as u8, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    /// The token, and the message. `None`: it comes from a stranger.
    pub fn read(bytes: &[u8]) -> Option<(u64, Setup)> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let token = u64::from_le_bytes(*head[8..].first_chunk()?);
        let setup = match (head[7], rest.len()) {
            (1, n) if n == HELLO_BYTES + END_BYTES => {
                let (hello, end) = rest.split_at(HELLO_BYTES);
                Setup::Request(Hello::read(hello)?, End::read(end)?)
            }
            (2, END_BYTES) => Setup::Accept(End::read(rest)?),
            (3, REFUSAL_BYTES) => match *rest {
                [1, 0, 0, 0, 0, 0, 0, 0] => Setup::Refuse(Refusal::NoSuchProcess),
                [2, 0, 0, 0, 0, 0, 0, 0] => Setup::Refuse(Refusal::NoRoom),
                _ => return None,
            },
            (4, 0) => Setup::Bye,
            (5, 0) => Setup::Gone,
            _ => return None,
        };
        (head[..7] == MAGIC).then_some((token, setup))
    }
}

/// The service of a process: the number of the queue pair for datagrams, and in the highest byte where that for these messages is
/// beside it, less 1: with neighbours that byte is 0, and takes no room in an address. `None`: it is too far away.
pub fn service(datagrams: u32, connections: u32) -> Option<u32> {
    let beside = i64::from(connections) - i64::from(datagrams) - 1;
    let byte = i8::try_from(beside).ok().filter(|_| connections != datagrams)?;
    Some(datagrams | u32::from(byte as u8) << 24)
}

/// The queue pair for these messages. `None`: no process has such a service.
pub fn connections_of(service: u32) -> Option<u32> {
    let (datagrams, beside) = (service & NUMBER_MAX, (service >> 24) as u8 as i8);
    let number = datagrams.checked_add_signed(i32::from(beside) + 1)?;
    (number != datagrams && (2..=NUMBER_MAX).contains(&number)).then_some(number)
}

/// The queue pair for datagrams.
pub fn datagrams_of(service: u32) -> u32 {
    service & NUMBER_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Purpose;

    fn all() -> [Setup; 6] {
        let hello = Hello { purpose: Purpose::Stream, from: 0x0102_0304, to: 17 };
        let end = End { queue_pair: 0x00ab_cdef, packet: 0x0012_3456, mtu: 3 };
        let refusals = [Refusal::NoSuchProcess, Refusal::NoRoom].map(Setup::Refuse);
        [Setup::Request(hello, end), Setup::Accept(end), refusals[0], refusals[1], Setup::Bye, Setup::Gone]
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        for setup in all() {
            let bytes = setup.to_bytes(0x0123_4567_89ab_cdef);
            assert!(bytes.len() <= SETUP_BYTES_MAX);
            assert_eq!(Setup::read(&bytes), Some((0x0123_4567_89ab_cdef, setup)));
            for len in 0..bytes.len() {
                assert_eq!(Setup::read(&bytes[..len]), None, "{setup:?} of {len} bytes");
            }
            assert_eq!(Setup::read(&[&bytes[..], &[0]].concat()), None);
            for at in 0..8 {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0x40;
                assert_eq!(Setup::read(&wrong), None, "{setup:?}, byte {at}");
            }
        }
    }

    #[test]
    fn numbers_that_no_adapter_has_are_refused() {
        let accept = all()[1].to_bytes(1);
        for (at, byte) in [(19, 1), (23, 1), (24, 0), (24, 6), (25, 1), (31, 1)] {
            let mut wrong = accept.clone();
            wrong[at] = byte;
            assert_eq!(Setup::read(&wrong), None, "byte {at} is {byte}");
        }
        for queue_pair in [0, 1] {
            let end = End { queue_pair, packet: 0, mtu: 1 };
            assert_eq!(Setup::read(&Setup::Accept(end).to_bytes(1)), None);
        }
    }

    #[test]
    fn a_service_names_two_queue_pairs_that_are_close_together() {
        for (datagrams, connections) in
            [(17, 18), (17, 16), (0x45, 0x45 + 128), (0x145, 0x145 - 127), (NUMBER_MAX - 1, NUMBER_MAX)]
        {
            let service = service(datagrams, connections).unwrap();
            assert_eq!(datagrams_of(service), datagrams);
            assert_eq!(connections_of(service), Some(connections));
        }
        assert_eq!(service(17, 18), Some(17), "neighbours take no room");
        for (datagrams, connections) in [(17, 17), (0x45, 0x45 + 129), (0x145, 0x145 - 128)] {
            assert_eq!(service(datagrams, connections), None);
        }
        for invalid in [0, 17 | 0xff << 24, NUMBER_MAX, 3 | 0x80 << 24] {
            assert_eq!(connections_of(invalid), None, "{invalid:#x}");
        }
    }
}
