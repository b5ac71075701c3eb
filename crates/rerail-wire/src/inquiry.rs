//! The question that turns an IP address and a port into the address of an endpoint, and its answer.
//!
//! For programs that know each other by IP address and port only. The answer contains the token with the address. So
//! such an endpoint, and with it its process, is open to every process that reaches the port; only programs that
//! request this kind of address have one.
//!
//! Both are one datagram of the same length, so that the answer cannot be used to amplify:
//!
//! | bytes | question | answer |
//! |---|---|---|
//! | 0..8 | `rerail ?` | `rerail !` |
//! | 8..16 | random number | the same |
//! | 16..72 | zeros | [`Address`] |

use crate::WireError;
use crate::address::{ADDRESS_BYTES, Address};
use crate::bytes::{get_u64, put_u64};

/// Bytes of a question and of an answer.
pub const INQUIRY_BYTES: usize = 16 + ADDRESS_BYTES;
const QUESTION: [u8; 8] = *b"rerail ?";
const ANSWER: [u8; 8] = *b"rerail !";

fn check(b: &[u8], head: [u8; 8]) -> Result<u64, WireError> {
    if b.len() != INQUIRY_BYTES {
        return Err(WireError::Truncated { need: INQUIRY_BYTES, have: b.len() });
    }
    if b[..8] != head {
        return Err(WireError::Field("inquiry"));
    }
    Ok(get_u64(b, 8))
}

fn begin(head: [u8; 8], number: u64) -> [u8; INQUIRY_BYTES] {
    let mut b = [0; INQUIRY_BYTES];
    b[..8].copy_from_slice(&head);
    put_u64(&mut b, 8, number);
    b
}

/// The bytes of a question; `number` is random, so that only a process that has seen the question can answer it.
pub fn question(number: u64) -> [u8; INQUIRY_BYTES] {
    begin(QUESTION, number)
}

/// Reads a question: its number.
///
/// # Errors
/// Another length, or another beginning.
pub fn read_question(b: &[u8]) -> Result<u64, WireError> {
    check(b, QUESTION)
}

/// The bytes of the answer to the question `number`; `address` is a published one.
pub fn answer(number: u64, address: &[u8; ADDRESS_BYTES]) -> [u8; INQUIRY_BYTES] {
    let mut b = begin(ANSWER, number);
    b[16..].copy_from_slice(address);
    b
}

/// Reads an answer: the number of its question, and the address, or why that cannot be read.
///
/// # Errors
/// Another length, or another beginning.
pub fn read_answer(b: &[u8]) -> Result<(u64, Result<Address, WireError>), WireError> {
    Ok((check(b, ANSWER)?, Address::parse(&b[16..])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;

    #[test]
    fn a_question_is_no_answer_and_an_answer_carries_number_and_address() {
        let address = Address {
            token: Token([3; 16]),
            endpoint: 2,
            encrypts: false,
            rails: vec![rerail_rail::Locator::ip([10, 0, 0, 1].into(), 9)],
        };
        let (q, a) = (question(7), answer(7, &address.to_bytes()));
        assert_eq!((read_question(&q), read_answer(&a)), (Ok(7), Ok((7, Ok(address)))));
        assert!(read_question(&a).is_err() && read_answer(&q).is_err());
        assert_eq!(q.len(), a.len());
        for n in 0..INQUIRY_BYTES {
            assert!(read_question(&q[..n]).is_err() && read_answer(&a[..n]).is_err());
        }
    }

    #[test]
    fn an_answer_of_another_version_says_so() {
        let mut blob = [0; ADDRESS_BYTES];
        blob[0] = crate::VERSION + 1;
        let read = read_answer(&answer(1, &blob)).unwrap();
        assert_eq!(read, (1, Err(WireError::Version(crate::VERSION + 1))));
    }
}
