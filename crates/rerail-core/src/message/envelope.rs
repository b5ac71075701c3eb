//! What a message is, without its payload: its source and destination, its purpose, and its length. Also what it counts
//! against the bounds of memory.

use crate::types::Protocol;
use rerail_wire::frame::flags;
use rerail_wire::{FrameHeader, FrameType};

/// Payload up to this size counts as part of its envelope: a receiver never refuses it, and it may grow without bound there,
/// because a correct MPI program may send any number of small messages before the one that is received first (hazard H4b).
/// The sender's copies have a bound of their own, as large as that of all other payload: a live receiver acknowledges them
/// whatever else waits, so they never wait for each other; without a bound a dark peer would cost all memory.
pub const ENVELOPE_BYTES: usize = 1024;
/// What a retained envelope counts beyond its payload: its record, with its places in the map and in the queue.
pub(crate) const RECORD_BYTES: usize = 256;
/// Largest message.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 48;

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Something for a posted receive.
    Message,
    /// An order for the peer's engine (`onesided`).
    Order,
    /// An order that answers one of the peer's. Only of messages that are sent: to its receiver it is an order.
    Answer,
    /// The bytes of a write or a read, beside an order.
    Data,
}

impl Role {
    pub fn of_flags(f: u8) -> Self {
        match (f & flags::ONE_SIDED != 0, f & flags::TAGGED != 0) {
            (false, _) => Role::Message,
            (true, false) => Role::Order,
            (true, true) => Role::Data,
        }
    }
}

/// What is known of a message before its payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub src_ep: u16,
    pub dst_ep: u16,
    pub protocol: Protocol,
    pub role: Role,
    pub tag: u64,
    /// Remote CQ data; of [`Role::Data`]: it is the answer to a read.
    pub data: Option<u64>,
    pub total: u64,
    /// Bytes of a fragment, fixed when the message is announced (hazard H9).
    pub granule: u32,
}

impl Envelope {
    /// It is the answer to a read: its bytes are in registered memory.
    pub fn is_read(&self) -> bool {
        self.role == Role::Data && self.data.is_some()
    }

    /// It serves the peer: an answer, or the bytes of a read.
    pub fn serves(&self) -> bool {
        self.role == Role::Answer || self.is_read()
    }

    /// Header of the frame of an eager message, or of an announcement.
    #[inline(always)]
    pub fn header(&self, seq: u64, eager: bool, delivery: bool) -> FrameHeader {
        let mut flag = match self.protocol {
            Protocol::Msg => 0,
            Protocol::Tagged => flags::TAGGED,
            Protocol::Collective => flags::COLLECTIVE,
        };
        flag |= match self.role {
            Role::Message => 0,
            Role::Order | Role::Answer => flags::ONE_SIDED,
            Role::Data => flags::ONE_SIDED | flags::TAGGED,
        };
        if self.data.is_some() {
            flag |= flags::CQ_DATA;
        }
        if delivery {
            flag |= flags::DELIVERY;
        }
        FrameHeader {
            flags: flag,
            dst_ep: self.dst_ep,
            src_ep: self.src_ep,
            seq,
            a: self.tag,
            b: self.data.unwrap_or(0),
            total: self.total,
            len: if eager { self.total as u32 } else { 0 },
            x: self.granule,
            ..FrameHeader::new(if eager { FrameType::Eager } else { FrameType::Rts })
        }
    }
}

/// Payload bytes that count against the memory bounds.
pub(crate) fn counted(bytes: usize) -> usize {
    if bytes <= ENVELOPE_BYTES { 0 } else { bytes }
}

/// What a retained message counts against the bound of envelopes, in bytes; 0 when its payload counts by itself.
pub(crate) fn envelope_cost(bytes: usize) -> usize {
    if bytes <= ENVELOPE_BYTES { RECORD_BYTES + bytes } else { 0 }
}
