//! What a lane carries and how much of it, and what its queue pair is to hold.

use crate::abi::*;
use crate::adapter::{Adapter, Slots};
use crate::message::HEADER_BYTES;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

/// What a lane carries, and how much of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// Messages with bytes that may be under way in each direction.
    messages: usize,
    /// Of these, those for which the other side has receives from the beginning. It grants more with what it sends.
    start: usize,
    /// Bytes of a message, header included.
    message_bytes: usize,
    /// Writes that may be under way.
    places: u16,
}

/// Writes that may be under way on a stream.
pub const PLACES_MAX: u16 = 16;
/// Bytes of a datagram.
pub const DATAGRAM_BYTES_MAX: usize = 4096;

impl Shape {
    /// A stream.
    pub const STREAM: Shape = Shape { messages: 16, start: 2, message_bytes: 8 << 10, places: PLACES_MAX };
    /// Datagrams. One that finds no credit is lost, so there are more: as many as a train has.
    pub const DATAGRAMS: Shape =
        Shape { messages: 64, start: 64, message_bytes: HEADER_BYTES + DATAGRAM_BYTES_MAX, places: 0 };

    /// Messages with bytes that may be under way in each direction.
    pub const fn messages(&self) -> usize {
        self.messages
    }

    /// The same when a lane begins.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Writes that may be under way.
    pub const fn places(&self) -> u16 {
        self.places
    }

    /// Bytes of a message, header included.
    pub const fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Slots of a lane with its own memory: half of them are sent from, half receive.
    ///
    /// # Errors
    /// Not enough memory may be locked, for instance.
    pub fn slots(&self, adapter: &Arc<Adapter>) -> io::Result<Slots> {
        Slots::new(adapter, 2 * (self.messages + SPARE), self.message_bytes)
    }

    /// Receives that wait to be posted together, at most.
    pub fn receives_at_once(&self) -> usize {
        self.messages / 4
    }

    /// Entries of the completion queue that a lane may need.
    pub const fn entries(&self) -> usize {
        2 * (self.messages + SPARE) + self.places as usize + GREETINGS + QUESTIONS
    }
}

/// Messages without bytes that may be under way.
pub const SPARE: usize = 2;
/// Greetings on a lane.
const GREETINGS: usize = 1;
/// Questions to the peer's adapter that may be under way.
const QUESTIONS: usize = 1;

/// What a queue pair of a lane is to hold, and where it reports. With a shared receive queue it has no receives of its own.
pub fn attributes(completions: *mut ibv_cq, shape: &Shape, shared: Option<*mut ibv_srq>) -> ibv_qp_init_attr {
    let messages = shape.messages + SPARE;
    let sends = (messages + usize::from(shape.places) + GREETINGS + QUESTIONS) as u32;
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: completions,
        recv_cq: completions,
        srq: shared.unwrap_or(null_mut()),
        cap: ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: if shared.is_some() { 0 } else { messages as u32 },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}
