//! Where the bytes of a received message go, and what is done when they are there.

use crate::message::iov::Iov;
use crate::types::{EpId, Protocol};

/// Where a matched message goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub ep: EpId,
    pub protocol: Protocol,
    pub context: usize,
    pub completion: bool,
    pub iov: Iov,
    /// Bytes the buffer takes.
    pub cap: u64,
    /// Multi-receive buffer it is part of.
    pub multi: Option<usize>,
    pub landing: Landing,
}

/// What is done when the bytes of a message are in their place.
#[derive(Debug, Clone)]
pub(crate) enum Landing {
    /// A receive completes.
    Receive,
    /// This memory holds an order, to be carried out when its turn comes.
    Assembly(Box<[u8]>),
    /// A read of ours completes.
    Result { order: u64 },
    /// A write of the peer's is in our memory.
    Placed { order: u64 },
}
