//! Names and small values of the engine: identities, time, memory of the user, requests to the world.

pub use rerail_rail::{
    Alternate, CloseReason, FarKernel, IoVec, Kind, Locator, MemId, Place, RailDesc, RailId, Reach,
    RemoteKey, StreamId, WorkId,
};
use smallvec::SmallVec;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::time::Duration;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Monotonic time in nanoseconds from an origin of the world's choice.
///
/// One more than that is stored, and never 0, so that an optional time takes no more room than a time: an idle peer has dozens of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZeroU64);

impl Time {
    /// The origin.
    pub const ORIGIN: Time = Time(NonZeroU64::MIN);
    /// Later than everything that happens.
    pub const NEVER: Time = Time(NonZeroU64::MAX);

    /// So many nanoseconds after the origin.
    pub const fn from_ns(ns: u64) -> Time {
        Time(NonZeroU64::MIN.saturating_add(ns))
    }

    /// Nanoseconds since the origin.
    pub const fn ns(self) -> u64 {
        self.0.get() - 1
    }

    /// Time since `earlier`, zero when `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Default for Time {
    fn default() -> Self {
        Time::ORIGIN
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Time({})", self.ns())
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time::from_ns(self.ns().saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A peer process, as this engine numbers it. Never reused in the life of an engine (hazard H18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// A path between two processes, the same number on both sides: the rail of the process with the lower token in the high
/// byte, the rail of the other in the low byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u16);

/// A lane of a path: one of its connections, the same number on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneId(pub u8);

impl LaneId {
    /// The one that every path has.
    pub const FIRST: LaneId = LaneId(0);
}

/// One agreed incarnation of a path. The lowest bit names the side that proposed it (1: the one with the higher token),
/// so that two proposals can never be equal (hazard H8). 2^31 reconnections cannot be used up at one per millisecond in
/// 24 days; the engine refuses to wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

/// A local endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpId(pub u16);

/// A completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub u32);

/// An endpoint of a peer process (or of this one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    /// The process.
    pub peer: PeerId,
    /// The index of the endpoint in it.
    pub ep: u16,
}

/// Which queue of an endpoint an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Untagged messages.
    Msg,
    /// Tagged messages.
    Tagged,
    /// Messages of collective operations, which are the engine's own.
    Collective,
}

impl Protocol {
    /// All of them, in the order of the queues.
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Msg, Protocol::Tagged, Protocol::Collective];
}

/// When a send completes, from the weakest promise to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompletionLevel {
    /// Its memory may be reused.
    Buffered,
    /// The message has reached the peer's engine (FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE).
    Delivered,
    /// A receive of the peer's application has taken the message (FI_MATCH_COMPLETE).
    Matched,
}

/// A message to be sent.
#[derive(Debug, Clone, Copy)]
pub struct SendOp<'a> {
    /// Endpoint that sends.
    pub ep: EpId,
    /// Endpoint that receives.
    pub dest: EndpointId,
    /// Queue at the receiver.
    pub protocol: Protocol,
    /// Tag; 0 for [`Protocol::Msg`].
    pub tag: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// The bytes, in order.
    pub iov: &'a [IoVec],
    /// Comes back in the completion.
    pub context: usize,
    /// Whether success is reported through the CQ. Errors always are.
    pub completion: bool,
    /// The memory may be reused when the call returns: the engine copies, whatever the size.
    pub inject: bool,
    /// When it completes.
    pub level: CompletionLevel,
}

/// A receive to be posted.
#[derive(Debug, Clone, Copy)]
pub struct RecvOp<'a> {
    /// Endpoint that receives.
    pub ep: EpId,
    /// Queue.
    pub protocol: Protocol,
    /// Tag to match, outside the ignored bits.
    pub tag: u64,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
    /// Only from this endpoint; `None`: from any.
    pub src: Option<EndpointId>,
    /// Where the bytes go, in order.
    pub iov: &'a [IoVec],
    /// Comes back in the completion.
    pub context: usize,
    /// Whether success is reported through the CQ. Errors always are.
    pub completion: bool,
    /// The buffer takes messages until less than the endpoint's `multi_recv_min` is left (FI_MULTI_RECV). One piece only.
    pub multi: bool,
}

/// A look into the unexpected messages.
#[derive(Debug, Clone, Copy)]
pub struct PeekOp {
    /// Endpoint to look into.
    pub ep: EpId,
    /// Queue.
    pub protocol: Protocol,
    /// Tag to match, outside the ignored bits.
    pub tag: u64,
    /// Bits of the tag that are not compared.
    pub ignore: u64,
    /// Only from this endpoint; `None`: from any.
    pub src: Option<EndpointId>,
    /// Comes back in the completion; with `claim` it names the claimed message.
    pub context: usize,
    /// Reserve the message for the receive that is posted with [`Engine::recv_claimed`](crate::Engine::recv_claimed).
    pub claim: bool,
    /// Throw the message away.
    pub discard: bool,
}

/// A piece of a peer's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemotePiece {
    /// Where it begins: as the peer's program sees it, or from the beginning of the region ([`Region::origin`]).
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// Key of the region.
    pub key: u64,
}

/// Memory that peers may read and write.
#[derive(Debug, Clone)]
pub struct Region<'a> {
    /// Scope of the key: each domain of a program chooses its own keys.
    pub domain: u32,
    /// What a peer names it by.
    pub key: u64,
    /// The memory, in order.
    pub pieces: &'a [IoVec],
    /// The address by which peers name its first byte: its own address, or 0.
    pub origin: u64,
    /// Peers may read it.
    pub readable: bool,
    /// Peers may write it.
    pub writable: bool,
}

/// A write to, or a read of, a peer's memory.
#[derive(Debug, Clone, Copy)]
pub struct RmaOp<'a> {
    /// Endpoint that issues it.
    pub ep: EpId,
    /// Endpoint whose domain owns the memory.
    pub dest: EndpointId,
    /// A read; otherwise a write.
    pub read: bool,
    /// Memory here, in order.
    pub iov: &'a [IoVec],
    /// Memory there, in order: as many bytes.
    pub remote: &'a [RemotePiece],
    /// Remote CQ data of a write: the peer gets a completion.
    pub data: Option<u64>,
    /// Comes back in the completion.
    pub context: usize,
    /// Whether success is reported through the CQ. Errors always are.
    pub completion: bool,
    /// A write whose memory may be reused when the call returns.
    pub inject: bool,
}

/// What an atomic operation gives back, and what it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicKind {
    /// Nothing comes back.
    Update,
    /// The former values come back.
    Fetch,
    /// The same, and the operation depends on a comparison with values that are sent along.
    Compare,
}

/// An atomic operation on a peer's memory.
#[derive(Debug, Clone, Copy)]
pub struct AtomicOp<'a> {
    /// Endpoint that issues it.
    pub ep: EpId,
    /// Endpoint whose domain owns the memory.
    pub dest: EndpointId,
    /// See [`AtomicKind`].
    pub kind: AtomicKind,
    /// Datatype, as `enum fi_datatype` counts them (fi_atomic(3)).
    pub datatype: u8,
    /// Operation, as `enum fi_op` counts them.
    pub op: u8,
    /// Operands, in order; empty for a read.
    pub operand: &'a [IoVec],
    /// Values to compare with.
    pub compare: &'a [IoVec],
    /// Where the former values go.
    pub result: &'a [IoVec],
    /// Memory there, in order: as many bytes as the operands and the result.
    pub remote: &'a [RemotePiece],
    /// Comes back in the completion.
    pub context: usize,
    /// Whether success is reported through the CQ. Errors always are.
    pub completion: bool,
    /// The operands may be reused when the call returns. Only for [`AtomicKind::Update`].
    pub inject: bool,
}

/// A group of endpoints that do collective operations together, as this process numbers it. Never reused in the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A group to be made.
#[derive(Debug, Clone, Copy)]
pub struct JoinOp<'a> {
    /// Endpoint of this process in it.
    pub ep: EpId,
    /// All members in the order of their ranks, the endpoint among them.
    pub members: &'a [EndpointId],
    /// Queue of the completion that reports that the group is made, or cannot be made.
    pub cq: CqId,
    /// Comes back in the completion.
    pub context: usize,
}

/// What a collective operation does (fi_collective(3)). A root is a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// No member completes before all members have begun.
    Barrier,
    /// The root's input becomes the result of all other members.
    Broadcast {
        /// The member that gives.
        root: usize,
    },
    /// All inputs, combined, become the result of every member.
    AllReduce,
    /// All inputs, one behind the other, become the result of every member.
    AllGather,
    /// All inputs, combined, become the root's result.
    Reduce {
        /// The member that takes.
        root: usize,
    },
    /// Each part of the root's input becomes a member's result.
    Scatter {
        /// The member that gives.
        root: usize,
    },
    /// All inputs, one behind the other, become the root's result.
    Gather {
        /// The member that takes.
        root: usize,
    },
}

/// A collective operation.
#[derive(Debug, Clone, Copy)]
pub struct CollectiveOp {
    /// Group that does it.
    pub group: GroupId,
    /// What it does.
    pub kind: CollectiveKind,
    /// Bytes of one member's part: of its input or of its result, where these are not the parts of all.
    pub bytes: usize,
    /// Datatype, as `enum fi_datatype` counts them; only where values are combined.
    pub datatype: u8,
    /// Operation, as `enum fi_op` counts them; only where values are combined.
    pub op: u8,
    /// What this member gives; empty if it gives nothing.
    pub input: IoVec,
    /// Where its result goes; empty if it gets none. May be the same memory as the input.
    pub result: IoVec,
    /// Comes back in the completion.
    pub context: usize,
    /// Whether success is reported through the CQ. Errors always are.
    pub completion: bool,
}

/// Why an operation was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// A bound is reached; make progress and try again (-FI_EAGAIN).
    #[error("resources are used up for now; progress and try again")]
    Again,
    /// The peer is entombed: it said goodbye, died, or its partition passed the deadline.
    #[error("the peer is gone for good")]
    PeerGone,
    /// No such endpoint, queue or claimed message.
    #[error("no such object")]
    NoSuch,
    /// The operation makes no sense as posted (for instance more than 2^48 bytes, or a multi-receive of several pieces).
    #[error("invalid operation: {0}")]
    Invalid(&'static str),
    /// All numbers of this kind are used up; each is used once in the life of a process.
    #[error("{0}")]
    Exhausted(&'static str),
}

/// A request to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Connect a stream from a local rail to `to`. Answer with `stream_connected` or `stream_closed`.
    OpenStream {
        /// Its name from now on.
        stream: StreamId,
        /// Rail to bind to.
        rail: RailId,
        /// Where to.
        to: Locator,
    },
    /// Close a stream at once (reset; what is in its buffers is lost). Answer with `stream_closed`: it confirms that the
    /// stream can neither read nor write memory any more (invariant 4).
    CloseStream {
        /// Which.
        stream: StreamId,
    },
    /// Keep the kernel's ARP/ND entry for `to` alive, although nothing may arrive from there. There is no answer.
    KeepNeighbour {
        /// Rail on which.
        rail: RailId,
        /// Address of the neighbour.
        to: Locator,
    },
    /// Lead datagrams that go from a rail to a place over another route. There is no answer.
    Lead {
        /// From which rail.
        rail: RailId,
        /// To which place.
        to: Locator,
        /// Number of the route, below [`RailDesc::routes_max`]; 0: the usual one.
        route: u8,
    },
    /// Change the table of the [`Responder`](crate::Responder).
    Responder(crate::ResponderUpdate),
    /// Let peers on a rail write into memory. Answer with `registered`.
    Register {
        /// Which rail.
        rail: RailId,
        /// Name of the region.
        region: MemId,
        /// The memory.
        memory: IoVec,
    },
    /// Take that right back. Answer with `invalidated`: nothing writes into the region any more (invariant 4).
    Invalidate {
        /// Which.
        region: MemId,
    },
    /// Have the adapters of both ends load an alternate path for a stream, or with `None` none. Answer a path with
    /// `stream_armed` or `stream_unloaded`.
    LoadAlternate {
        /// Which.
        stream: StreamId,
        /// The path.
        alternate: Option<Alternate>,
    },
    /// Have them move a stream to its alternate path. Answer with `stream_migrated`, if it was armed.
    MigrateStream {
        /// Which.
        stream: StreamId,
    },
    /// Report what the kernel at the other end of a stream has acknowledged. Answer with `stream_inspected`.
    InspectStream {
        /// Which.
        stream: StreamId,
    },
}

/// What happened to a local rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RailEvent {
    /// Interface up and carrier present.
    Up,
    /// Interface down or carrier lost.
    Down,
    /// A send was refused by the kernel although the link is thought up.
    SendError,
}

/// A datagram to be sent: filled by [`Engine::poll_datagram`](crate::Engine::poll_datagram).
#[derive(Debug, Clone)]
pub struct Datagram {
    /// Rail to send on.
    pub rail: RailId,
    /// Where to.
    pub to: Locator,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Default for Datagram {
    fn default() -> Self {
        Self { rail: RailId(0), to: Locator::NOWHERE, bytes: Vec::with_capacity(2048) }
    }
}

/// Several bulk datagrams of one length to one destination: filled by [`Engine::poll_train`](crate::Engine::poll_train).
#[derive(Debug, Clone)]
pub struct Train {
    /// Rail to send on.
    pub rail: RailId,
    /// Where to.
    pub to: Locator,
    /// The datagrams, one behind the other.
    pub bytes: Vec<u8>,
    /// Bytes of each but the last, which may be shorter.
    pub segment: usize,
    pub(crate) peer: PeerId,
    pub(crate) path: PathId,
    /// Packet number of the first.
    pub(crate) first: u64,
}

impl Train {
    /// Datagrams in it.
    pub fn len(&self) -> usize {
        if self.segment == 0 { 0 } else { self.bytes.len().div_ceil(self.segment) }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Default for Train {
    fn default() -> Self {
        Self {
            rail: RailId(0),
            to: Locator::NOWHERE,
            bytes: Vec::new(),
            segment: 0,
            peer: PeerId(0),
            path: PathId(0),
            first: 0,
        }
    }
}

/// Most pieces of memory in one stream window.
pub const WINDOW_PIECES_MAX: usize = 64;

/// Pieces of memory that a stream reads into or writes from, in order. Valid until the next call of the engine.
#[derive(Debug, Clone)]
pub struct Window {
    pieces: [IoVec; WINDOW_PIECES_MAX],
    used: usize,
    bytes: usize,
    places: SmallVec<[Place; 2]>,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            pieces: [IoVec { ptr: std::ptr::null_mut(), len: 0 }; WINDOW_PIECES_MAX],
            used: 0,
            bytes: 0,
            places: SmallVec::new(),
        }
    }
}

impl Window {
    /// Forgets all pieces.
    pub fn clear(&mut self) {
        self.used = 0;
        self.bytes = 0;
        self.places.clear();
    }

    /// Writes that an adapter is to make before any byte of the pieces is written.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Adds one.
    pub fn place(&mut self, place: Place) {
        self.places.push(place);
    }

    /// Planted: what goes with this window is what is in `held`, and the other way round.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn swap_places(&mut self, held: &mut SmallVec<[Place; 2]>) {
        std::mem::swap(&mut self.places, held);
    }

    /// The pieces.
    pub fn pieces(&self) -> &[IoVec] {
        &self.pieces[..self.used]
    }

    /// Bytes of all pieces together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Room for more pieces.
    pub fn room(&self) -> usize {
        WINDOW_PIECES_MAX - self.used
    }

    /// Appends a piece; one without bytes is left out. There must be [room](Window::room).
    pub fn push(&mut self, ptr: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        self.pieces[self.used] = IoVec { ptr: ptr.cast_mut(), len };
        self.used += 1;
        self.bytes += len;
    }
}
