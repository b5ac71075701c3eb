//! Orders: requests of a process on the memory of another, and the answers. The payload of a message whose frame
//! carries [`flags::ONE_SIDED`](crate::frame::flags::ONE_SIDED).
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0 | `kind` | [`OrderKind`] |
//! | 1 | `flags` | bit 0: `data` is there |
//! | 2 | `datatype` | of an atomic operation, as `enum fi_datatype` counts them |
//! | 3 | `op` | of an atomic operation, as `enum fi_op` counts them |
//! | 4 | `form` | of an atomic operation: 0 update, 1 fetch, 2 compare; of an answer: [`Status`] |
//! | 5 | `pieces` | number of pieces |
//! | 6..8 | | zero |
//! | 8..16 | `id` | chosen by the requester, for the answer |
//! | 16..24 | `data` | remote CQ data |
//! | 24..32 | `total` | bytes of the operation |
//! | 32.. | | 24 bytes for each piece: address, length, key |
//! | then | `payload` | bytes of a small write; operands, then values to compare with; former values |

use crate::WireError;
use crate::bytes::{get_u64, put_u64};

/// Bytes before the pieces.
pub const ORDER_HEADER_BYTES: usize = 32;
/// Bytes of a piece.
pub const PIECE_BYTES: usize = 24;
/// Most pieces of an order.
pub const PIECES_MAX: usize = 8;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum OrderKind {
    /// Write the payload.
    Write = 1,
    /// Write the message that follows with this id.
    WriteMessage = 2,
    /// Send what is there, as a message with this id.
    Read = 3,
    /// Carry out an atomic operation.
    Atomic = 4,
    /// The answer to all of these but a read that goes well.
    Answer = 5,
}

/// How an order ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Done = 0,
    /// No region of that key.
    Key = 1,
    /// Not inside the region.
    Bounds = 2,
    /// Not allowed.
    Permission = 3,
    /// Datatype and operation do not go together, or the operands are too few.
    Operation = 4,
    /// The endpoint is closed.
    Closed = 5,
}

/// A piece of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderPiece {
    /// Where it begins.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key of its region.
    pub key: u64,
}

/// The fixed part of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// What is asked.
    pub kind: OrderKind,
    /// Datatype of an atomic operation.
    pub datatype: u8,
    /// Its operation.
    pub op: u8,
    /// Its form, or the status of an answer.
    pub form: u8,
    /// For the answer.
    pub id: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Bytes of the operation.
    pub total: u64,
}

/// Whether the bytes of an order are those of an answer.
pub fn is_answer(order: &[u8]) -> bool {
    order.first() == Some(&(OrderKind::Answer as u8))
}

impl Order {
    /// An order of `kind` with every other field zero.
    pub fn new(kind: OrderKind, id: u64) -> Self {
        Self { kind, datatype: 0, op: 0, form: 0, id, data: None, total: 0 }
    }

    /// The bytes of it and its pieces, to which the payload is appended.
    ///
    /// # Panics
    /// With more than [`PIECES_MAX`] pieces.
    pub fn to_bytes(&self, pieces: &[OrderPiece], room: usize) -> Vec<u8> {
        assert!(pieces.len() <= PIECES_MAX, "at most {PIECES_MAX} pieces");
        let head = ORDER_HEADER_BYTES + pieces.len() * PIECE_BYTES;
        let mut b = Vec::with_capacity(head + room);
        b.resize(head, 0);
        b[0] = self.kind as u8;
        b[1] = u8::from(self.data.is_some());
        (b[2], b[3], b[4], b[5]) = (self.datatype, self.op, self.form, pieces.len() as u8);
        put_u64(&mut b, 8, self.id);
        put_u64(&mut b, 16, self.data.unwrap_or(0));
        put_u64(&mut b, 24, self.total);
        for (i, p) in pieces.iter().enumerate() {
            let at = ORDER_HEADER_BYTES + i * PIECE_BYTES;
            put_u64(&mut b, at, p.addr);
            put_u64(&mut b, at + 8, p.len);
            put_u64(&mut b, at + 16, p.key);
        }
        b
    }

    /// Parses an order; gives the rest too: its pieces (see [`pieces`]) and its payload.
    ///
    /// # Errors
    /// Truncated input, an unknown kind, flag or status, too many pieces, pieces that are not `total` bytes together.
    pub fn parse(b: &[u8]) -> Result<(Self, &[u8], &[u8]), WireError> {
        if b.len() < ORDER_HEADER_BYTES {
            return Err(WireError::Truncated { need: ORDER_HEADER_BYTES, have: b.len() });
        }
        let kind = match b[0] {
            1 => OrderKind::Write,
            2 => OrderKind::WriteMessage,
            3 => OrderKind::Read,
            4 => OrderKind::Atomic,
            5 => OrderKind::Answer,
            _ => return Err(WireError::Field("kind of an order")),
        };
        if b[1] > 1 || b[6] != 0 || b[7] != 0 {
            return Err(WireError::Field("flags of an order"));
        }
        let count = usize::from(b[5]);
        if count > PIECES_MAX {
            return Err(WireError::Field("pieces of an order"));
        }
        let head = ORDER_HEADER_BYTES + count * PIECE_BYTES;
        if b.len() < head {
            return Err(WireError::Truncated { need: head, have: b.len() });
        }
        let order = Self {
            kind,
            datatype: b[2],
            op: b[3],
            form: b[4],
            id: get_u64(b, 8),
            data: (b[1] == 1).then(|| get_u64(b, 16)),
            total: get_u64(b, 24),
        };
        let (list, payload) = b[ORDER_HEADER_BYTES..].split_at(count * PIECE_BYTES);
        let sum = pieces(list).try_fold(0u64, |sum, p| sum.checked_add(p.len));
        if kind != OrderKind::Answer && sum != Some(order.total) {
            return Err(WireError::Field("length of an order"));
        }
        let most = match kind {
            OrderKind::Atomic => 2,
            OrderKind::Answer => Status::Closed as u8,
            _ => 0,
        };
        if order.form > most {
            return Err(WireError::Field("form of an order"));
        }
        Ok((order, list, payload))
    }

    /// Status of an answer.
    pub fn status(&self) -> Status {
        match self.form {
            0 => Status::Done,
            1 => Status::Key,
            2 => Status::Bounds,
            3 => Status::Permission,
            4 => Status::Operation,
            _ => Status::Closed,
        }
    }
}

/// The pieces in a list that [`Order::parse`] gave.
pub fn pieces(list: &[u8]) -> impl Iterator<Item = OrderPiece> + '_ {
    list.chunks_exact(PIECE_BYTES).map(|p| OrderPiece {
        addr: get_u64(p, 0),
        len: get_u64(p, 8),
        key: get_u64(p, 16),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_trip() {
        let order = Order {
            datatype: 5,
            op: 2,
            form: 1,
            data: Some(77),
            total: 24,
            ..Order::new(OrderKind::Atomic, 9)
        };
        let list =
            [OrderPiece { addr: 1 << 40, len: 16, key: 3 }, OrderPiece { addr: 8, len: 8, key: u64::MAX }];
        let mut b = order.to_bytes(&list, 3);
        b.extend_from_slice(b"abc");
        let (got, rest, payload) = Order::parse(&b).expect("it was written by us");
        assert_eq!((got, payload), (order, &b"abc"[..]));
        assert_eq!(pieces(rest).collect::<Vec<_>>(), list);
        for n in 0..ORDER_HEADER_BYTES + 2 * PIECE_BYTES {
            assert!(Order::parse(&b[..n]).is_err());
        }
    }

    #[test]
    fn an_answer_is_known_by_its_first_byte() {
        use OrderKind::*;
        let answers = [Write, WriteMessage, Read, Atomic, Answer]
            .map(|k| is_answer(&Order::new(k, 1).to_bytes(&[], 0)));
        assert_eq!(answers, [false, false, false, false, true]);
        assert!(!is_answer(&[]));
    }

    #[test]
    fn lengths_must_add_up_and_not_overflow() {
        let order = Order { total: 8, ..Order::new(OrderKind::Read, 1) };
        let piece = |len| OrderPiece { addr: 0, len, key: 0 };
        assert!(Order::parse(&order.to_bytes(&[piece(8)], 0)).is_ok());
        assert!(Order::parse(&order.to_bytes(&[piece(9)], 0)).is_err());
        assert!(Order::parse(&order.to_bytes(&[piece(u64::MAX), piece(9)], 0)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(b in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((order, list, payload)) = Order::parse(&b) {
                let all: Vec<OrderPiece> = pieces(list).collect();
                let mut out = order.to_bytes(&all, payload.len());
                out.extend_from_slice(payload);
                // what is not there is not carried
                if order.data.is_some() {
                    prop_assert_eq!(out, b);
                }
            }
        }
    }
}
