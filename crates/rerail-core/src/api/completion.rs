//! Completions: what the application reads when an operation is over.

use crate::types::{EndpointId, EpId, Protocol};

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// A send.
    Send,
    /// A receive.
    Recv,
    /// A look into the unexpected messages found one.
    Peek,
    /// A write to a peer's memory.
    Write,
    /// A read of a peer's memory.
    Read,
    /// An atomic operation that gives nothing back.
    AtomicWrite,
    /// An atomic operation that gives the former values back.
    AtomicRead,
    /// A peer has written to our memory, and sent remote CQ data with it.
    RemoteWrite,
    /// A collective operation, or a group is made.
    Collective,
}

/// Why a peer refused to have its memory read or written. No byte was touched, unless a region was given up while a large write was
/// arriving in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// It has no region of that key.
    Key,
    /// The range is not inside the region.
    Bounds,
    /// The region may not be read, or not be written.
    Permission,
    /// Datatype and operation do not go together, or the operands are too few.
    Operation,
}

/// Why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompletionError {
    /// The message was longer than the receive; the buffer holds its beginning.
    Truncated {
        /// Bytes that did not fit.
        over: usize,
    },
    /// The peer's process ended without a goodbye.
    PeerDied,
    /// Cancelled.
    Canceled,
    /// No message matched a look.
    NoMessage,
    /// The peer was unreachable for longer than the partition deadline.
    PeerUnreachable,
    /// The peer closed before the operation was done.
    PeerClosed,
    /// The peer refused to have its memory read or written.
    Access(AccessError),
    /// The members of a group began collective operations that do not fit each other.
    Mismatch,
}

/// One completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// What completed.
    pub kind: CompletionKind,
    /// In which queue of the endpoint.
    pub protocol: Protocol,
    /// At which endpoint.
    pub ep: EpId,
    /// Context of the operation.
    pub context: usize,
    /// Bytes received (or found by a look).
    pub len: usize,
    /// Where the message begins: only for multi-receives.
    pub buf: usize,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Tag of the message.
    pub tag: u64,
    /// The endpoint that sent it.
    pub src: Option<EndpointId>,
    /// This completion concerns a multi-receive.
    pub multi: bool,
    /// The multi-receive buffer is given back (FI_MULTI_RECV). When `kind` is Recv and `released_only` is set there is no
    /// message, only the buffer.
    pub multi_released: bool,
    /// See `multi_released`.
    pub released_only: bool,
    /// What went wrong.
    pub error: Option<CompletionError>,
}

impl Completion {
    /// Of an operation that succeeded, without a message.
    pub(crate) fn new(kind: CompletionKind, protocol: Protocol, ep: EpId, context: usize) -> Self {
        Self {
            kind,
            protocol,
            ep,
            context,
            len: 0,
            buf: 0,
            data: None,
            tag: 0,
            src: None,
            multi: false,
            multi_released: false,
            released_only: false,
            error: None,
        }
    }
}
