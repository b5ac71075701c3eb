//! What the driver calls of the world: the ports, and the clock.

use rerail_core::{
    Event, FarKernel, IoVec, KeysUpdate, Locator, RailEvent, RailId, ResponderUpdate, StreamId, Time,
};
use rerail_rail::{
    Alternate, ArrivedTrain, Closing, MemId, Moved, Place, Posted, SendOutcome, StreamEvent, TrainOutcome,
};

/// The time of one world: the kernel's monotonic clock, or a simulator's.
pub trait Clock {
    /// The time now. Never earlier than it was.
    fn now(&self) -> Time;
}

/// What another thread has read while the engine was locked.
#[derive(Debug)]
pub enum Waiting<'a> {
    /// The link of a rail changed.
    Link(RailId, RailEvent),
    /// A datagram arrived.
    Datagram {
        /// Rail on which it came.
        rail: RailId,
        /// Its sender.
        from: Locator,
        /// The datagram.
        bytes: &'a [u8],
    },
}

/// The ports of one process, as the driver sees them. The calls mean what those of the same name in the contract of a rail mean
/// (`DatagramPort`, `StreamPort`); nothing here blocks.
///
/// No method has a default: an implementation that wraps another must not lose a call.
pub trait Ports {
    /// Looks for changes of the links. What it finds waits for [`Ports::take_waiting`].
    fn look_at_links(&mut self);

    /// Whether [`Ports::take_waiting`] may have something. Called in every piece, so it must be cheap.
    fn has_waiting(&self) -> bool;

    /// Gives `take` everything that waits: changes of the links first, each in the order in which it came.
    fn take_waiting(&mut self, take: impl FnMut(Waiting<'_>));

    /// Receives a datagram, or several of one sender, into `buf`. `eagerly`: the caller waits for a datagram and for nothing else, so
    /// the port may look several times. `None`: there is nothing, or the port is unusable.
    fn receive(&mut self, eagerly: bool, buf: &mut [u8]) -> Option<ArrivedTrain>;

    /// Sends a datagram.
    fn send(&mut self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome;

    /// Sends a train of bulk.
    fn send_train(&mut self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome;

    /// Keeps the ARP/ND entry for `to` alive.
    fn keep_neighbour(&mut self, rail: RailId, to: Locator);

    /// Leads what goes from `rail` to `to` over another route.
    fn lead(&mut self, rail: RailId, to: Locator, route: u8);

    /// Appends what happened on the streams.
    fn poll_streams(&mut self, ready: &mut Vec<StreamEvent>);

    /// Begins to connect.
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator);

    /// Takes an incoming connection, if there is one, and calls `name` for its number. Returns whether there was one.
    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool;

    /// Reads from a stream.
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it during the call.
    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// Whether the last read ended early although there may be more: the caller should request a new window and read on.
    fn goes_on(&mut self, stream: StreamId) -> bool;

    /// Writes to a stream. What it does not take may still be read until the next call for the stream.
    ///
    /// # Safety
    /// Every piece is valid for reads, and nothing writes to it during the call. When bytes that were offered change, or go away,
    /// before the next call for the stream, then what the caller offers in their place makes the receiver discard what it got.
    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// Requests [`StreamEvent::Writable`].
    fn want_writable(&mut self, stream: StreamId);

    /// Posts a write into the peer's memory.
    ///
    /// # Safety
    /// When it is [`Posted::Lent`], the source stays valid, and nothing writes to it, until [`StreamEvent::Placed`] of the work or the end
    /// of the stream that was asked for.
    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted;

    /// Lets peers on a rail write into `memory`.
    ///
    /// # Safety
    /// The memory stays valid until [`StreamEvent::Invalidated`], or until every peer with the key has written what it will write.
    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec);

    /// Takes that right back.
    fn invalidate(&mut self, region: MemId);

    /// Has both adapters load an alternate path for a stream; see `StreamPort`.
    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>);

    /// Has them move it there.
    fn migrate(&mut self, stream: StreamId);

    /// Closes a stream. A stream that the port does not know is closed.
    fn close(&mut self, stream: StreamId) -> Closing;

    /// State of the peer's kernel on this stream, from its acknowledgements for instance; `None`: not known, or no such
    /// stream.
    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel>;

    /// Changes the table that answers queries while the engine is locked.
    fn update_responder(&mut self, update: ResponderUpdate);

    /// Applies changes of the keys of encrypted sessions: before anything more is sent, and before anything more is read.
    fn update_keys(&mut self, updates: &mut dyn Iterator<Item = KeysUpdate>);

    /// Takes an event of the engine.
    fn report(&mut self, event: Event);
}
