//! Adapters: rails whose hardware moves memory by itself, outside any call.
//!
//! What is posted on a lane goes on until the adapter says how it ended, so memory is *lent*. A loan begins when an operation is posted, or
//! when a key is handed to a peer, and ends by one of four words of the adapter, and by nothing else, not by time and not by the end of a
//! connection: [`Done`](AdapterEvent::Done), [`Failed`](AdapterEvent::Failed), [`Fenced`](AdapterEvent::Fenced),
//! [`Invalidated`](AdapterEvent::Invalidated). What a peer wrote before may still be in a switch when its lane is long gone
//! (hazard H19).
//!
//! | memory | lent | given back |
//! |---|---|---|
//! | source of a send or a write | by [`AdapterPort::post`] | `Done` or `Failed` of that work |
//! | target of a receive | by `post` | `Done` or `Failed` of that work |
//! | target of a peer's writes | when its key goes to the peer | `Fenced` of every lane of the peer, or `Invalidated` of the region |

use crate::{CloseReason, IoVec, Locator, RailId};
use std::ops::BitOr;

/// What a rail can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Caps(u32);

impl Caps {
    /// Unreliable datagrams ([`DatagramPort`](crate::DatagramPort)).
    pub const DATAGRAMS: Caps = Caps(1);
    /// Streams of bytes ([`StreamPort`](crate::StreamPort)).
    pub const STREAM: Caps = Caps(1 << 1);
    /// Posted sends, receives and writes into a peer's memory ([`AdapterPort`]).
    pub const WRITE: Caps = Caps(1 << 2);
    /// Memory must be registered before it is posted.
    pub const NEEDS_REGISTRATION: Caps = Caps(1 << 3);
    /// The bytes of one write become visible in the order of their addresses. Off unless the adapter guarantees it (hazard H22).
    pub const IN_ORDER_PLACEMENT: Caps = Caps(1 << 4);

    /// Whether it can do all of `other`.
    pub fn contains(self, other: Caps) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Caps {
    type Output = Caps;

    fn bitor(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }
}

/// A physical port. Rails of one port fail together and share its bandwidth (hazard H25).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortGroup(pub u32);

/// A rail of an adapter.
#[derive(Debug, Clone)]
pub struct AdapterRail {
    /// Name of the device and its port.
    pub name: String,
    /// Where peers reach it.
    pub locator: Locator,
    /// What it can do.
    pub caps: Caps,
    /// The physical port that it shares with other rails.
    pub group: PortGroup,
}

/// One attempt at a connection of two adapters, as the caller numbers it. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// One posted operation, as the caller numbers it; never reused on its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// A piece of registered memory, as the caller numbers it. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemId(pub u32);

/// What names registered memory to a peer: chosen by the adapter, hard to guess, never used twice (hazard H21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u64);

/// What may be done with registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Operations of this process may use it.
    Local,
    /// Peers may write it as well.
    RemoteWrite,
}

/// A part of a peer's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemotePlace {
    /// The region.
    pub key: RemoteKey,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// An operation on a lane. Operations of one lane take effect in the order in which they were posted.
#[derive(Debug, Clone, Copy)]
pub enum Op<'a> {
    /// Sends a message, which takes one receive of the other side.
    Send(&'a [IoVec]),
    /// Takes one message of the other side.
    Recv(&'a [IoVec]),
    /// Writes into the peer's memory.
    Write {
        /// The bytes.
        pieces: &'a [IoVec],
        /// Where they go.
        to: RemotePlace,
        /// Told to the peer when all bytes of this write, and of those before it on the lane, are in its memory.
        notice: Option<u32>,
    },
}

/// What became of an operation that was to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The memory is lent from now on.
    Lent,
    /// The queue of the lane is full; try again when something is done. Nothing is lent.
    Full,
    /// No such lane, it is over, or the memory is not registered. Nothing is lent.
    Refused,
}

/// The adapter's word on something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterEvent {
    /// A peer connects: call [`AdapterPort::accept`].
    Incoming,
    /// The lane is connected.
    Connected(LaneId),
    /// The lane carries nothing any more. What was posted on it fails; what the peer wrote before may still land until it is fenced.
    Broken(LaneId, CloseReason),
    /// The region can be used.
    Registered {
        /// Which.
        region: MemId,
        /// What peers name it by.
        key: RemoteKey,
    },
    /// Nothing touches the region any more.
    Invalidated {
        /// Which.
        region: MemId,
    },
    /// An operation is done, and its memory given back. Of a send or a write: the other side's adapter has it.
    Done {
        /// Its lane.
        lane: LaneId,
        /// Which.
        work: WorkId,
        /// Bytes that it moved.
        bytes: usize,
    },
    /// An operation is over, and its memory given back. Whether the other side got anything is not known.
    Failed {
        /// Its lane.
        lane: LaneId,
        /// Which.
        work: WorkId,
    },
    /// A write of the peer with a notice is in memory, with all that it wrote on the lane before.
    Written {
        /// The lane.
        lane: LaneId,
        /// Its notice.
        notice: u32,
    },
    /// Nothing of the lane touches memory of this process any more: neither what was posted here nor what the peer wrote, wherever it
    /// has been until now. Said once for each call of [`AdapterPort::fence`].
    Fenced {
        /// Which.
        lane: LaneId,
    },
}

/// All rails of one kind of adapter in this process. No call blocks, and what happened is told by [`AdapterPort::poll`] only.
pub trait AdapterPort: Send {
    /// The rails, in the order of their ids.
    fn rails(&self) -> &[AdapterRail];

    /// Begins to connect a lane. The answer is `Connected` or `Broken`.
    fn connect(&mut self, lane: LaneId, rail: RailId, to: &Locator);

    /// Takes one incoming connection, if there is one: asks `name` for its lane, given the rail it came on and where from. Returns
    /// whether it took one.
    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> LaneId) -> bool;

    /// Registers memory. The answer is `Registered`.
    ///
    /// # Safety
    /// The memory stays valid until `Invalidated` of the region.
    unsafe fn register(&mut self, region: MemId, memory: IoVec, rights: Rights);

    /// Forbids all use of a region. The answer is `Invalidated`, also for a region that is not known. What is posted from it may fail.
    fn invalidate(&mut self, region: MemId);

    /// Posts an operation.
    ///
    /// # Safety
    /// When it is [`Posted::Lent`], the pieces stay valid until `Done` or `Failed` of the work, or `Fenced` of the lane. Pieces that are
    /// read are not written to meanwhile, and nobody else touches those that are written.
    unsafe fn post(&mut self, lane: LaneId, work: WorkId, op: Op<'_>) -> Posted;

    /// Ends a lane for good, so that nothing of it touches memory of this process. The answer is `Fenced`, after `Failed` of everything
    /// that was posted; also for a lane that is not known or over.
    fn fence(&mut self, lane: LaneId);

    /// Appends what happened to `out`.
    fn poll(&mut self, out: &mut Vec<AdapterEvent>);
}
