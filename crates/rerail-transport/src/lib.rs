//! The contract of a rail kind and its channels, the conformance suite that every rail must pass, and [faults](fault) that can be
//! planted over any rail. Names no rail.
//!
//! A *rail* is one local attachment to a network; a *kind* of rail (IP, shared memory, verbs, …) brings all rails of that
//! kind into the process as one [`Rails`]: a description of each ([`LocalRail`]), one [`DatagramPort`] and one
//! [`StreamPort`] for all of them together, and one [`LinkWatch`]. So an empty poll costs one call, however many rails and
//! peers there are.
//!
//! # Who may call what, and when
//!
//! * [`DatagramPort`] takes `&self` from any thread at any time: the service thread must be able to answer queries while
//!   an application thread sits on the engine's lock (hazard H17).
//! * [`StreamPort`] takes `&mut self`: it lives under the engine's lock, because the memory that it reads into and writes
//!   from is the engine's to give and take back.
//! * [`LinkWatch`] is driven by whoever looks first, under a lock of its own.
//!
//! Nothing here blocks. To sleep, poll the three file descriptors: each is readable when its owner has something to say. Whoever
//! is going to sleep on the first two says so first ([`DatagramPort::before_sleep`]): a rail over memory is told of nothing by the kernel, and
//! asks to be woken only then.
//!
//! # Memory
//!
//! The bytes behind an [`IoVec`] are touched only *inside* [`StreamPort::read`] and [`StreamPort::write`]: when the call
//! has returned, the rail has forgotten the memory. Closing a stream is therefore a complete fence (invariant 4): after
//! [`StreamPort::close`] nothing that was under way on it can write to the user's memory.
//!
//! A rail whose hardware moves memory by itself (verbs) cannot promise that. When the first one comes, the contract grows:
//! such a rail must keep the pieces until its completion says that the adapter is done with them, and its `close` must
//! report [`StreamEvent::Closed`] only after the queue pair has been flushed *and* the remote side has confirmed that its
//! own queue pair accepts no more writes (APM, "fence"; hazard H2). The engine already waits for that report before it
//! releases memory, so only the port changes.

#![warn(missing_docs)]

pub mod alarm;
pub mod chance;
pub mod conformance;
pub mod fault;
pub mod rest;

/// What [`rest`] needs of the standard library; `tests/models.rs` has loom's in its place.
mod sync {
    pub use std::sync::Mutex;
    pub use std::sync::atomic::{AtomicBool, Ordering};
}

pub use rerail_core::{CloseReason, FarKernel, IoVec, LocalRail, RailId, StreamId};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// All rails of one kind in this process.
pub struct Rails {
    /// The rails, in the order in which the process publishes them; [`RailId`] is the index.
    pub rails: Vec<LocalRail>,
    /// Port number of datagrams and streams, on every rail.
    pub port: u16,
    /// Small messages and control.
    pub datagrams: Arc<dyn DatagramPort>,
    /// Bulk.
    pub streams: Box<dyn StreamPort>,
    /// Changes of the links.
    pub links: Box<dyn LinkWatch>,
    /// Sentences for the log: what was chosen or had to be done otherwise, and why.
    pub notes: Vec<String>,
}

/// What became of a datagram that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// Handed to the network. It may still get lost.
    Sent,
    /// There was no room, or this datagram could not be taken: it counts as lost, which proves nothing against the rail.
    Full,
    /// The rail itself refuses: link or route gone. Nothing sent on it now will arrive.
    RailBroken,
}

/// A datagram that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Rail on which it came.
    pub rail: RailId,
    /// Who sent it. Only the IP address means something; the port is that of a send socket.
    pub from: SocketAddr,
    /// Its length; the bytes are at the beginning of the buffer.
    pub len: usize,
    /// Whether they are to be taken for what they say.
    pub condition: Condition,
}

/// What a port with encryption found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// The bytes are a datagram. Ports without encryption know no other.
    #[default]
    Whole,
    /// Its tag does not match; only the first 8 bytes, its connection id, are given.
    Damaged,
    /// It came in clear, where it must not; no bytes are given.
    Unsealed,
}

/// Datagrams of one sender that arrived together, in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivedTrain {
    /// Rail on which they came.
    pub rail: RailId,
    /// Who sent them; as in [`Arrived`].
    pub from: SocketAddr,
    /// Bytes of all of them; they are at the beginning of the buffer, one behind the other.
    pub len: usize,
    /// Bytes of each but the last, which may be shorter. Never 0; at least `len` when there is only one.
    pub segment: usize,
    /// As in [`Arrived`]; what is not whole comes alone.
    pub condition: Condition,
}

impl From<Arrived> for ArrivedTrain {
    fn from(a: Arrived) -> Self {
        Self { rail: a.rail, from: a.from, len: a.len, segment: a.len.max(1), condition: a.condition }
    }
}

/// What became of a train that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainOutcome {
    /// Datagrams handed to the network, counted from the first.
    pub sent: usize,
    /// What became of the first that was not; [`SendOutcome::Sent`] when there is none.
    pub rest: SendOutcome,
}

/// Most bytes of a train: what fits the length field of one UDP datagram over IPv4, because the kernel is given a train
/// as one.
pub const TRAIN_BYTES_MAX: usize = 65_507;
/// Most datagrams of a train (Linux's `UDP_MAX_SEGMENTS` before 6.9).
pub const TRAIN_DATAGRAMS_MAX: usize = 64;

/// Datagrams over all rails of a kind: unreliable, unordered, at most the MTU of the rail.
pub trait DatagramPort: Send + Sync {
    /// Sends one datagram from `rail`. Never blocks.
    fn send(&self, rail: RailId, to: SocketAddr, bytes: &[u8]) -> SendOutcome;

    /// Receives one datagram of any rail, or says that there is none. Never blocks. A datagram longer than `buf`, or one
    /// that came on no rail, is dropped, and the next one is looked at.
    ///
    /// # Errors
    /// The port itself is unusable. Errors that belong to one peer or one datagram are swallowed.
    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>>;

    /// Sends a train of bulk to one destination: `bytes` is datagrams of `segment` bytes each, the last may be shorter; at
    /// most [`TRAIN_BYTES_MAX`] and [`TRAIN_DATAGRAMS_MAX`]. Never blocks. What found no room was not sent, and is the
    /// caller's to send later: unlike a lone datagram it does not count as lost. A port that has a cheaper way than one
    /// datagram after the other overrides this, and may use buffers of their own for trains, so that small datagrams do
    /// not wait behind them (hazard H4c).
    fn send_train(&self, rail: RailId, to: SocketAddr, bytes: &[u8], segment: usize) -> TrainOutcome {
        let mut sent = 0;
        for datagram in bytes.chunks(segment) {
            match self.send(rail, to, datagram) {
                SendOutcome::Sent => sent += 1,
                rest => return TrainOutcome { sent, rest },
            }
        }
        TrainOutcome { sent, rest: SendOutcome::Sent }
    }

    /// Receives what [`DatagramPort::recv`] would, or several datagrams of one sender at once. `buf` has room for 64 KiB, or
    /// what is longer is dropped.
    ///
    /// # Errors
    /// As [`DatagramPort::recv`].
    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        Ok(self.recv(buf)?.map(ArrivedTrain::from))
    }

    /// The same for a caller who waits for a datagram and for nothing else just now: a port may look several times before it says that there is
    /// nothing, for a few microseconds in all.
    ///
    /// # Errors
    /// As [`DatagramPort::recv`].
    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.recv_train(buf)
    }

    /// Somebody at `to` answers, or did until minutes ago: what this host knows of the way there, a link-layer address, is to be kept although
    /// nothing may come from there just now. Sends nothing, never blocks. Rails without such knowledge do nothing.
    fn keep_neighbour(&self, rail: RailId, to: SocketAddr) {
        let _ = (rail, to);
    }

    /// Readable when [`DatagramPort::recv`] has something; between [`DatagramPort::before_sleep`] and [`DatagramPort::after_sleep`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// The calling thread is going to sleep on this descriptor, and on that of the streams if `streams`. Whether there is something
    /// already that would not make them readable: then it must not sleep, but look. Speaks for the [`StreamPort`] of the same rails
    /// as well, without the engine's lock. Each call is followed by one of [`DatagramPort::after_sleep`].
    fn before_sleep(&self, streams: bool) -> bool {
        let _ = streams;
        false
    }

    /// The thread is awake again.
    fn after_sleep(&self) {}

    /// Appends every descriptor of this port: a forked child closes its copies of them (hazard H16).
    fn descriptors(&self, out: &mut Vec<RawFd>);
}

/// What a read or a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This many bytes, from the beginning of the pieces; at least one.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    /// Nothing any more. The stream is closed, and its name forgotten.
    Closed(CloseReason),
}

/// Something to be done about a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEvent {
    /// Somebody connects: call [`StreamPort::accept`].
    Incoming,
    /// The connection is made.
    Connected(StreamId),
    /// A read would find bytes, the end of the stream or an error. Said again at every poll until it does not hold.
    Readable(StreamId),
    /// There is room again, after [`StreamPort::want_writable`]. Said once.
    Writable(StreamId),
    /// It ended: the connection could not be made, or broke. The stream is closed, and its name forgotten.
    Closed(StreamId, CloseReason),
}

/// Streams over all rails of a kind: reliable and in order while they live.
///
/// A stream is named by the engine. A name that the port does not know (any more) is not an error: `close` and
/// `want_writable` ignore it, `read` and `write` answer `Closed(Requested)`.
pub trait StreamPort: Send {
    /// Begins to connect `stream` from `rail` to `to`. The answer, [`StreamEvent::Connected`] or
    /// [`StreamEvent::Closed`], comes from [`StreamPort::poll`], never from here. There is no time-out:
    /// whoever loses patience closes the stream.
    fn open(&mut self, stream: StreamId, rail: RailId, to: SocketAddr);

    /// Takes one incoming connection, if there is one: asks `name` for its name, given the rail it came on and who
    /// connects. Returns whether it took one.
    fn accept(&mut self, name: &mut dyn FnMut(RailId, SocketAddr) -> StreamId) -> bool;

    /// Reads into `pieces`, in order. Never blocks. Fewer bytes than offered: there were no more just now, or
    /// [`StreamPort::goes_on`].
    ///
    /// # Safety
    /// Every piece is valid for writes, and nobody else touches it during the call.
    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// Whether a read that gave fewer bytes than it might ended where the next should begin with a call of its own: what comes now is large,
    /// and the caller may know a better place for it by now.
    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    /// Writes from `pieces`, in order. Never blocks. Fewer bytes than offered: there is no more room just now.
    ///
    /// # Safety
    /// Every piece is valid for reads, and nobody writes to it during the call.
    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved;

    /// As [`StreamPort::write`], for bytes that stay where they are: what it does not take may still be read until the next call for the
    /// stream, without the caller's knowledge. Ports that gain nothing by that leave it as it is.
    ///
    /// # Safety
    /// As for [`StreamPort::write`]. Besides, when bytes that were offered change, or go away, before the next call for the stream, then
    /// what the caller offers in their place makes the other side throw away what it got (the engine's ABORT).
    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    /// Asks for [`StreamEvent::Writable`].
    fn want_writable(&mut self, stream: StreamId);

    /// Closes at once: what is in buffers is lost, and the other side sees a reset. When it returns, the stream touches
    /// no memory any more.
    fn close(&mut self, stream: StreamId);

    /// Rail of a stream; `None`: no such stream.
    fn rail_of(&self, stream: StreamId) -> Option<RailId>;

    /// What the kernel (or adapter) at the other end has told on this stream, by an acknowledgement for instance; `None`: not known, or
    /// no such stream. It tells that the process at the other end exists, not that it runs: the engine asks when that process is silent
    /// (hazard H6), or when it answers and does not read.
    fn far_kernel(&self, stream: StreamId) -> Option<FarKernel>;

    /// Appends what happened to `out`. Never blocks, and costs one call when nothing did.
    fn poll(&mut self, out: &mut Vec<StreamEvent>);

    /// Readable when [`StreamPort::poll`] has something; as [`DatagramPort::fd`], with the same two calls around a sleep.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Appends every descriptor of this port, connections included; see [`DatagramPort::descriptors`].
    fn descriptors(&self, out: &mut Vec<RawFd>);
}

/// Tells when a rail's own link goes away and comes back.
pub trait LinkWatch: Send {
    /// Appends every change since the last call to `out`: the rail, and whether it is up now. Only changes: neither the
    /// same state twice, nor a pair that came and went unseen. Never blocks.
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>);

    /// Readable when [`LinkWatch::drain`] may have something.
    fn fd(&self) -> BorrowedFd<'_>;
}
