//! How much memory a sent message keeps until it is done, by the bounds that it counts against.

use crate::message::body::Body;
use crate::message::envelope::{Envelope, RECORD_BYTES, Role, counted, envelope_cost};
use std::ops::{AddAssign, SubAssign};

/// Bytes that one sent message keeps, or several together. A message counts either as a message or as an order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Copies of messages that count by themselves.
    payload: usize,
    /// Copies of short messages, with their records.
    envelopes: usize,
    /// Orders, answers and the bytes beside them, with their records.
    orders: usize,
    /// Of these, what serves the peer: answers, and the bytes of reads.
    serving: usize,
    /// Of these, the copies.
    serving_copies: usize,
}

impl Kept {
    #[inline]
    pub(super) fn of(envelope: &Envelope, body: &Body) -> Self {
        let copied = body.copied().map(<[u8]>::len);
        if envelope.role == Role::Message {
            // only what we keep a copy of
            return copied.map_or(Self::default(), |_| {
                let total = envelope.total as usize;
                Self { payload: counted(total), envelopes: envelope_cost(total), ..Self::default() }
            });
        }
        let copied = copied.unwrap_or(0);
        let orders = RECORD_BYTES + copied;
        let (serving, serving_copies) = if envelope.serves() { (orders, copied) } else { (0, 0) };
        Self { orders, serving, serving_copies, ..Self::default() }
    }

    /// Bytes of retained payload, and of retained envelopes.
    #[inline]
    pub(super) fn retained(&self) -> (usize, usize) {
        (self.payload, self.envelopes)
    }

    /// Bytes of what serves the peer, with records, and of those the copies.
    #[inline]
    pub(super) fn serving(&self) -> (usize, usize) {
        (self.serving, self.serving_copies)
    }

    /// Whether a copy of a message of `total` bytes may be kept besides, where either sum has the same bound.
    #[inline]
    pub(super) fn has_room(&self, total: usize, bytes_max: usize) -> bool {
        let (payload, envelope) = (counted(total), envelope_cost(total));
        (self.payload + payload <= bytes_max || payload == 0)
            && (self.envelopes + envelope <= bytes_max || envelope == 0)
    }

    /// Whether an order with `payload` bytes may be kept besides.
    pub(super) fn has_room_for_order(&self, payload: usize, bytes_max: usize) -> bool {
        self.orders + payload + RECORD_BYTES <= bytes_max
    }
}

impl AddAssign for Kept {
    #[inline]
    fn add_assign(&mut self, more: Self) {
        self.payload += more.payload;
        self.envelopes += more.envelopes;
        self.orders += more.orders;
        self.serving += more.serving;
        self.serving_copies += more.serving_copies;
    }
}

impl SubAssign for Kept {
    #[inline]
    fn sub_assign(&mut self, less: Self) {
        self.payload -= less.payload;
        self.envelopes -= less.envelopes;
        self.orders -= less.orders;
        self.serving -= less.serving;
        self.serving_copies -= less.serving_copies;
    }
}
