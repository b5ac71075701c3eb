//! Streams: bulk, reliable and in order while they live.

#[cfg(doc)]
use crate::DatagramPort;
use crate::{IoVec, Locator, MemId, Posted, RailId, RemoteKey, StreamId, WorkId};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// What a read or a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This many bytes, from the beginning of the pieces; at least one.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    /// Nothing any more; as [`StreamEvent::Closed`], which does not come as well.
    Closed(CloseReason),
}

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// [`StreamPort::close`] was called.
    Requested,
    /// Connection refused.
    Refused,
    /// Connection could not be made in time, or no route.
    Unreachable,
    /// Reset by the peer or the network.
    Reset,
    /// End of stream.
    Eof,
    /// What came on it was damaged or forged: its tag does not match.
    Damaged,
}

/// What is known of the kernel at the other end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FarKernel {
    /// Time since its last sign of life, such as an acknowledgement.
    pub heard: Duration,
    /// It has acknowledged every byte that was written.
    pub has_all: bool,
    /// Segments that are on the way to it: sent, and not acknowledged. 0 where that is not known, or where it does not acknowledge by itself.
    pub segments: u32,
    /// Bytes that it has acknowledged since the stream began; two reports of the same number have nothing between them. 0 where that is not known.
    pub acked: u64,
    /// Time since the last of them was sent. Zero where that is not known.
    pub sent: Duration,
    /// How long the acknowledgement of a segment takes at most as a rule: what TCP's retransmission time-out (RFC 6298 §2) would be without
    /// its lower bound. Zero where that is not known.
    pub usual: Duration,
}

impl FarKernel {
    /// One of which nothing but this is known.
    pub fn new(heard: Duration, has_all: bool) -> Self {
        Self { heard, has_all, segments: 0, acked: 0, sent: Duration::ZERO, usual: Duration::ZERO }
    }
}

/// Whether a stream is closed when [`StreamPort::close`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// It is, and touches no memory any more.
    Done,
    /// Not yet: [`StreamEvent::Closed`] with [`CloseReason::Requested`] comes from [`StreamPort::poll`].
    Pending,
}

/// A write that an adapter makes into a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its name; never used twice by a process.
    pub work: WorkId,
    /// The bytes.
    pub source: IoVec,
    /// The memory of the message that they belong to: `source` lies in it, and all of it is lent for as long as `source` is.
    /// So an adapter can register it once for all its parts.
    pub whole: IoVec,
    /// The region of the peer that they go into.
    pub key: RemoteKey,
    /// Where in it, in bytes from its beginning.
    pub offset: u64,
}

/// Another path between the two ends of a stream, over which its adapters could lead it (APM §3.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alternate {
    /// The own rail: another one of the adapter whose rail the stream goes over.
    pub rail: RailId,
    /// The peer's rail, of the adapter at the other end.
    pub to: Locator,
}

/// Something to be done about a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEvent {
    /// A peer connects: call [`StreamPort::accept`].
    Incoming,
    /// The connection is made.
    Connected(StreamId),
    /// A read would find bytes, the end of the stream or an error. Reported again at every poll while that holds.
    Readable(StreamId),
    /// There is room again, after [`StreamPort::want_writable`]. Reported once.
    Writable(StreamId),
    /// It ended: the connection could not be made, or broke. The stream is closed, and its name forgotten. On a rail
    /// that places, a stream that was connected is closed only with [`CloseReason::Requested`]. With another reason it
    /// carries nothing any more, what was placed by it may still be under way, and [`StreamPort::close`] must be
    /// called.
    Closed(StreamId, CloseReason),
    /// What was lent by [`StreamPort::place`] is given back. Whether the peer has the bytes, only its answer shows.
    Placed(WorkId),
    /// The region can be written by peers that know the key.
    Registered(MemId, RemoteKey),
    /// Nothing writes into the region any more.
    Invalidated(MemId),
    /// Both adapters have loaded an alternate path over this own rail: each of them may move the stream to it, by itself
    /// when the present path is dark, or on request. Reported at both ends.
    Armed(StreamId, RailId),
    /// The stream has no alternate path, or none any more: one of the adapters or the peer refused it, or the peer unloaded it.
    Unloaded(StreamId),
    /// The adapter has moved the stream to the alternate path, over this own rail. What was under way goes on over it. Whether
    /// that path carries anything is not known. There is no alternate now. An end may learn of it late, or not at all.
    Migrated(StreamId, RailId),
}

impl StreamEvent {
    /// The stream that it is about.
    pub fn stream(&self) -> Option<StreamId> {
        match *self {
            StreamEvent::Connected(s)
            | StreamEvent::Readable(s)
            | StreamEvent::Writable(s)
            | StreamEvent::Closed(s, _)
            | StreamEvent::Armed(s, _)
            | StreamEvent::Unloaded(s)
            | StreamEvent::Migrated(s, _) => Some(s),
            StreamEvent::Incoming
            | StreamEvent::Placed(_)
            | StreamEvent::Registered(..)
            | StreamEvent::Invalidated(_) => None,
        }
    }
}

/// Streams over all rails of a kind: reliable and in order while they live.
///
/// A stream is named by the engine. A name that the port does not know (any more), or that is being closed, is not an error: `close` and
/// `want_writable` ignore it, `read` and `write` answer `Closed(Requested)`. While a rail that places keeps the name of a stream that
/// broke, they answer how it ended.
pub trait StreamPort: Send {
    /// Begins to connect `stream` from `rail` to `to`. The result, [`StreamEvent::Connected`] or
    /// [`StreamEvent::Closed`], comes from [`StreamPort::poll`], never from here. There is no time-out:
    /// to give up, close the stream.
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator);

    /// Takes one incoming connection, if there is one. Calls `name` for its name, with the rail it came on and the
    /// peer's locator. Returns whether it took one.
    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool;

    /// Reads into `pieces`, in order. Never blocks. Fewer bytes than offered: there were no more just now, or
    /// [`StreamPort::goes_on`].
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it during the call.
    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// Whether a read that gave fewer bytes than offered stopped in front of large data. The caller should request a
    /// new window before it reads on: it may know a better place for that data by now.
    fn goes_on(&self, stream: StreamId) -> bool;

    /// Writes from `pieces`, in order. Never blocks. Fewer bytes than offered: there is no more room just now.
    ///
    /// # Safety
    /// Every piece is valid for reads, and nothing writes to it during the call.
    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// As [`StreamPort::write`], for bytes that stay where they are: what it does not take may still be read until the next call for the
    /// stream, without the caller's knowledge. Ports that gain nothing by that do as in
    /// [`StreamPort::write`].
    ///
    /// # Safety
    /// As for [`StreamPort::write`]. Besides, when bytes that were offered change, or go away, before the next call for the stream, then
    /// what the caller offers in their place makes the other side throw away what it got (the engine's ABORT).
    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// Asks for [`StreamEvent::Writable`].
    fn want_writable(&mut self, stream: StreamId);

    /// Posts a write into the peer's memory. When the other side reads a byte that was written to the stream afterwards, the bytes are in
    /// its memory, unless it has invalidated the region. What a lane that broke was to write may still arrive later, until the *other* side has
    /// closed its end, or invalidated the region. A rail may post it with the next [`StreamPort::write`] to the stream, at
    /// the latest with the next [`StreamPort::poll`]. Rails whose [`places_max`](crate::RailDesc::places_max) is 0 refuse.
    ///
    /// # Safety
    /// When it is [`Posted::Lent`], the whole of which the source is a part stays valid and unchanged until [`StreamEvent::Placed`] of the work or
    /// [`StreamEvent::Closed`] with [`CloseReason::Requested`] of the stream.
    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted;

    /// Lets peers on a rail write into `memory`, with the key in [`StreamEvent::Registered`]. Called only for rails
    /// that place.
    ///
    /// # Safety
    /// The memory stays valid until [`StreamEvent::Invalidated`], or until every peer with the key has written what it will write.
    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec);

    /// Takes that right back, after the writes that are in progress; the answer is [`StreamEvent::Invalidated`].
    fn invalidate(&mut self, region: MemId);

    /// Lets the adapters of both ends load an alternate path for a stream, in place of the one that they have (APM §3.1.2), or with `None`
    /// none. Only the side that opened the stream calls it. The answer to a path is [`StreamEvent::Armed`] or
    /// [`StreamEvent::Unloaded`], which may take as long as the peer does not answer; to `None` there is none here, and the peer is
    /// told [`StreamEvent::Unloaded`]. No event about an earlier alternate path follows, except [`StreamEvent::Migrated`]: an adapter
    /// may move a stream until it has unloaded the path. Called only for rails that name an
    /// [`adapter`](crate::RailDesc::adapter).
    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>);

    /// Has the adapters move a stream to its alternate path now (APM §3.1.3); [`StreamEvent::Migrated`] follows. One that is not armed
    /// stays where it is.
    fn migrate(&mut self, stream: StreamId);

    /// Closes at once: what is in buffers is lost, and the other side sees a reset. When it is done, which an adapter
    /// reports later, the stream touches no memory of this process any more: sources that were placed here are not
    /// read, and what the peer has placed by it is not written. A stream that the port does not know is closed.
    fn close(&mut self, stream: StreamId) -> Closing;

    /// Rail of a stream; `None`: no such stream.
    fn rail_of(&self, stream: StreamId) -> Option<RailId>;

    /// What the kernel (or adapter) at the other end has sent on this stream, an acknowledgement for instance; `None`:
    /// not known, or no such stream. It proves that the process at the other end exists, not that it runs. The engine
    /// uses it when that process does not reply (hazard H6), or replies and does not read.
    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel>;

    /// Appends what happened to `out`. Never blocks, and costs one call when nothing did.
    fn poll(&mut self, out: &mut Vec<StreamEvent>);

    /// Readable when [`StreamPort::poll`] has something; as [`DatagramPort::fd`], with the same two calls around a sleep.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Appends every descriptor of this port, connections included; see [`DatagramPort::descriptors`].
    fn descriptors(&self, out: &mut Vec<RawFd>);
}
