//! What travels: a part of an operation, with its bytes.

use rerail_rail::{RemotePlace, WorkId};

/// A part of a send or a write.
pub(crate) struct Packet {
    pub bytes: Vec<u8>,
    pub goes: Goes,
    /// It is the last of its operation.
    pub last: Option<Last>,
}

/// Where a packet goes.
#[derive(Clone, Copy)]
pub(crate) enum Goes {
    /// Behind what has come of the message, into its receive.
    ToReceive,
    /// Into registered memory; so many bytes of the write go there and behind. All of it is judged by its first packet.
    ToMemory(RemotePlace, usize),
}

/// What the last packet of an operation brings.
#[derive(Clone, Copy)]
pub(crate) struct Last {
    pub work: WorkId,
    pub notice: Option<u32>,
}
