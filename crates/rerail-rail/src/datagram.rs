//! Datagrams: small messages and control, and bulk in trains.

#[cfg(doc)]
use crate::StreamPort;
use crate::{Locator, RailId};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

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
    /// Where it came from. Only the place means something; the service is that of a send socket.
    pub from: Locator,
    /// Its length; the bytes are at the beginning of the buffer.
    pub len: usize,
    /// What decryption found.
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
    /// Where they came from; as in [`Arrived`].
    pub from: Locator,
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

/// Sends a train as single datagrams, for a port that has no cheaper way.
pub fn send_one_by_one(
    port: &dyn DatagramPort,
    rail: RailId,
    to: Locator,
    bytes: &[u8],
    segment: usize,
) -> TrainOutcome {
    let mut sent = 0;
    for datagram in bytes.chunks(segment) {
        match port.send(rail, to, datagram) {
            SendOutcome::Sent => sent += 1,
            rest => return TrainOutcome { sent, rest },
        }
    }
    TrainOutcome { sent, rest: SendOutcome::Sent }
}

/// Receives one datagram as a train of one, for a port that gets no more at once.
///
/// # Errors
/// As [`DatagramPort::recv`].
pub fn receive_one(port: &dyn DatagramPort, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
    Ok(port.recv(buf)?.map(ArrivedTrain::from))
}

/// Datagrams over all rails of a kind: unreliable, unordered, at most the MTU of the rail.
pub trait DatagramPort: Send + Sync {
    /// Sends one datagram from `rail`. Never blocks.
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome;

    /// Receives one datagram of any rail, or says that there is none. Never blocks. A datagram longer than `buf`, or one
    /// that came on no rail, is dropped, and the next one is looked at.
    ///
    /// # Errors
    /// The port itself is unusable. Errors that belong to one peer or one datagram are swallowed.
    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>>;

    /// Sends a train of bulk to one destination: `bytes` is datagrams of `segment` bytes each, the last may be shorter; at
    /// most [`TRAIN_BYTES_MAX`] and [`TRAIN_DATAGRAMS_MAX`]. Never blocks. What found no room was not sent, and is the
    /// caller's to send later: unlike a lone datagram it does not count as lost. A port may use
    /// buffers of their own for trains, so that small datagrams do not wait behind them (hazard H4c); one without a cheaper
    /// way than one datagram after the other calls [`send_one_by_one`].
    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome;

    /// Receives what [`DatagramPort::recv`] would, or several datagrams of one sender at once. `buf` has room for 64 KiB, or
    /// what is longer is dropped.
    ///
    /// # Errors
    /// As [`DatagramPort::recv`].
    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>>;

    /// The same for a caller that waits only for a datagram: a port may look several times, for a few microseconds in
    /// all, before it reports that there is none.
    ///
    /// # Errors
    /// As [`DatagramPort::recv`].
    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>>;

    /// Keeps the ARP/ND entry for `to` alive, although nothing may arrive from there now. The caller has had a reply
    /// from `to` within the last minutes. Sends nothing, never blocks. Rails without such entries do nothing.
    fn keep_neighbour(&self, rail: RailId, to: Locator);

    /// Leads what goes from `rail` to `to` over route number `route` from now on, small and bulk: another source port, of which a fabric makes
    /// another way. 0 is the usual one, and numbers are below [`RailDesc::routes_max`](crate::RailDesc::routes_max). Where it cannot be done, such as for
    /// want of descriptors, everything goes on as before. Sends nothing, never blocks.
    fn lead(&self, rail: RailId, to: Locator, route: u8);

    /// Readable when [`DatagramPort::recv`] has something; between [`DatagramPort::before_sleep`] and [`DatagramPort::after_sleep`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// The calling thread is going to sleep on this descriptor, and on that of the streams if `streams`. Returns
    /// whether something is there already that does not make them readable: then the thread must poll, not sleep.
    /// Covers the [`StreamPort`] of the same rails too, without the engine's lock. [`DatagramPort::after_sleep`]
    /// follows each call.
    fn before_sleep(&self, streams: bool) -> bool;

    /// The thread is awake again.
    fn after_sleep(&self);

    /// Appends every descriptor of this port: a forked child closes its copies of them (hazard H16).
    fn descriptors(&self, out: &mut Vec<RawFd>);
}
