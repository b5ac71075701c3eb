//! STUB while the engine is being written: public face only.
use crate::completion::Completion;
use crate::event::Event;
use crate::health::Health;
use crate::options::Options;
use crate::types::*;
use crate::{Remedies};
use rerail_wire::{Address, Token};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A local rail, as the world found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRail {
    /// Name of the interface.
    pub name: String,
    /// Its address.
    pub addr: IpAddr,
    /// Length of the network prefix: rails are paired with remote addresses on the same network first.
    pub prefix_bits: u8,
    /// Nominal speed in Mbit/s, 0 when unknown.
    pub speed_mbps: u32,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Whether it is up now.
    pub up: bool,
}

/// What an engine is made from.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Identity and capability of this process: 16 random bytes.
    pub token: Token,
    /// Port of the datagram socket and of the listener, on every rail.
    pub port: u16,
    /// Rails, in the order of the address: 1 to 8 of IPv4 or 1 to 2 of IPv6.
    pub rails: Vec<LocalRail>,
    /// Options.
    pub options: Options,
    /// Seed of everything random (jitter, nonces).
    pub seed: u64,
    /// Hash of the host's identity, and of its boot.
    pub host: u64,
    /// See `host`.
    pub boot: u64,
    /// Remedies that are on.
    pub remedies: Remedies,
}

/// Counters of one engine. All only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages posted.
    pub messages_sent: u64,
    /// Messages completed at the receiver.
    pub messages_received: u64,
    /// Payload bytes handed to rails, again-sent ones included.
    pub bytes_sent: u64,
    /// Payload bytes sent again.
    pub bytes_resent: u64,
    /// Payload bytes sent a second time on suspicion.
    pub bytes_hedged: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Frames received on streams.
    pub stream_frames_received: u64,
    /// Frames dropped as duplicates.
    pub duplicates: u64,
    /// Datagrams and streams of strangers, garbage, failed authentication.
    pub strangers: u64,
    /// Replayed or outdated packets and hellos of known peers.
    pub replays: u64,
    /// Payloads refused over the memory bound.
    pub refused: u64,
    /// Frames with a bad payload checksum.
    pub corrupt: u64,
    /// Frames that ended in ABORT.
    pub aborted: u64,
    /// Queries sent.
    pub pings: u64,
    /// Paths taken out of service.
    pub paths_down: u64,
    /// Paths brought into service.
    pub paths_up: u64,
    /// Streams replaced.
    pub streams_replaced: u64,
    /// Partitions.
    pub partitions: u64,
    /// Times this process had been away (hazard H12).
    pub absences: u64,
    /// Datagrams that timed out or were overtaken and were sent again.
    pub datagrams_lost: u64,
}

/// State of one path, for people and tests.
#[derive(Debug, Clone)]
pub struct PathReport {
    /// Peer.
    pub peer: PeerId,
    /// Public name of the peer's token.
    pub peer_name: u32,
    /// Path.
    pub path: PathId,
    /// Own rail.
    pub rail: RailId,
    /// Remote rail's address.
    pub remote: SocketAddr,
    /// Epoch.
    pub epoch: Epoch,
    /// State.
    pub health: Health,
    /// Whether a stream is attached.
    pub stream: bool,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Estimated rate of the stream, bytes per second.
    pub rate: u64,
    /// Payload bytes sent on it.
    pub bytes_sent: u64,
}

/// All the endpoints of one process.
pub struct Engine {}

#[allow(missing_docs, unused_variables, clippy::new_ret_no_self)]
impl Engine {
    /// Makes an engine without endpoints. Errors: no rails, too many, mixed families.
    pub fn new(config: EngineConfig, now: Time) -> Result<Self, String> { todo!() }
    /// Address that endpoint `ep` publishes.
    pub fn address(&self, ep: EpId) -> Address { todo!() }
    /// Endpoint behind a published address; makes the peer known, connects nothing yet.
    pub fn endpoint_of(&mut self, addr: &Address) -> EndpointId { todo!() }
    /// Address of an endpoint id that was obtained from this engine (also from a completion's `src`).
    pub fn address_of(&self, id: EndpointId) -> Address { todo!() }
    // ---- objects
    pub fn open_cq(&mut self, size: usize) -> CqId { todo!() }
    pub fn close_cq(&mut self, cq: CqId) { todo!() }
    pub fn open_endpoint(&mut self, tx_cq: CqId, rx_cq: CqId) -> EpId { todo!() }
    /// FI_OPT_MIN_MULTI_RECV.
    pub fn set_multi_recv_min(&mut self, ep: EpId, bytes: usize) { todo!() }
    /// Starts closing: posted receives are dropped without completion, sends go on; `linger_done` tells when.
    pub fn close_endpoint(&mut self, ep: EpId, now: Time) { todo!() }
    /// Whether everything endpoint `ep` sent was acknowledged (or its peers are gone, or the linger time has passed).
    pub fn linger_done(&self, ep: EpId, now: Time) -> bool { todo!() }
    /// Last endpoint closed: says goodbye to every peer; `shutdown_done` tells when all have answered or time is up.
    pub fn shutdown(&mut self, now: Time) { todo!() }
    pub fn shutdown_done(&self, now: Time) -> bool { todo!() }
    // ---- operations
    /// # Safety: the memory of `op.iov` stays valid until the completion (or, with `inject`, until the call returns).
    pub unsafe fn send(&mut self, op: &SendOp<'_>, now: Time) -> Result<(), PostError> { todo!() }
    /// # Safety: the memory of `op.iov` stays valid and unshared until the completion.
    pub unsafe fn recv(&mut self, op: &RecvOp<'_>, now: Time) -> Result<(), PostError> { todo!() }
    /// Receives the message that a claiming look with the same context reserved. Tag and source are ignored.
    /// # Safety: as `recv`.
    pub unsafe fn recv_claimed(&mut self, op: &RecvOp<'_>, now: Time) -> Result<(), PostError> { todo!() }
    /// Throws the claimed message away; completes as a Peek.
    pub fn discard_claimed(&mut self, ep: EpId, protocol: Protocol, context: usize, now: Time) -> Result<(), PostError> { todo!() }
    /// The answer comes through the rx CQ: CompletionKind::Peek, or error NoMessage.
    pub fn peek(&mut self, op: &PeekOp, now: Time) -> Result<(), PostError> { todo!() }
    /// Cancels the posted, unmatched receive with this context; its completion says Canceled. False: nothing to cancel.
    pub fn cancel(&mut self, ep: EpId, context: usize) -> bool { todo!() }
    // ---- completions
    pub fn cq_head(&self, cq: CqId) -> Option<&Completion> { todo!() }
    pub fn cq_pop(&mut self, cq: CqId) -> Option<Completion> { todo!() }
    // ---- the world tells
    pub fn handle_datagram(&mut self, rail: RailId, from: SocketAddr, bytes: &[u8], now: Time) { todo!() }
    pub fn handle_rail(&mut self, rail: RailId, event: RailEvent, now: Time) { todo!() }
    /// To be called at `poll_timeout` or earlier, and after every batch of input.
    pub fn handle_timeout(&mut self, now: Time) { todo!() }
    pub fn stream_connected(&mut self, stream: StreamId, now: Time) { todo!() }
    /// A connection came in on the listener, at local address of `rail`.
    pub fn stream_accepted(&mut self, rail: RailId, from: SocketAddr, now: Time) -> StreamId { todo!() }
    pub fn stream_closed(&mut self, stream: StreamId, reason: CloseReason, now: Time) { todo!() }
    /// Where the next bytes of the stream go. False: the stream is not wanted any more (an action closes it).
    /// The window must be read into and `stream_rx_done` called before any other call of the engine.
    pub fn stream_rx_window(&mut self, stream: StreamId, window: &mut Window) -> bool { todo!() }
    pub fn stream_rx_done(&mut self, stream: StreamId, bytes: usize, now: Time) { todo!() }
    /// What is to be written next; false: nothing. `stream_tx_done` must follow before any other call of the engine.
    pub fn stream_tx_window(&mut self, stream: StreamId, window: &mut Window, now: Time) -> bool { todo!() }
    /// `bytes` of the window were taken; fewer than offered: the stream is full until `stream_writable`.
    pub fn stream_tx_done(&mut self, stream: StreamId, bytes: usize, now: Time) { todo!() }
    pub fn stream_writable(&mut self, stream: StreamId) { todo!() }
    // ---- the world asks
    /// A stream that may have something to write and is not full. Ask until None.
    pub fn poll_writable(&mut self, now: Time) -> Option<StreamId> { todo!() }
    pub fn poll_datagram(&mut self, now: Time, out: &mut Datagram) -> bool { todo!() }
    pub fn poll_action(&mut self) -> Option<Action> { todo!() }
    pub fn poll_event(&mut self) -> Option<Event> { todo!() }
    pub fn poll_timeout(&self) -> Option<Time> { todo!() }
    /// Whether bulk is expected to arrive or is under way, so that streams are worth polling at once.
    pub fn expects_streams(&self) -> bool { todo!() }
    pub fn counters(&self) -> Counters { todo!() }
    pub fn paths(&self) -> Vec<PathReport> { todo!() }
    /// Checks every invariant that can be checked from one side. Panics with a description. For tests and the simulator.
    pub fn check(&self) { todo!() }
    /// Bytes of retained copies, unexpected payload and reordering payload held now, for bounds checks (largest peer).
    pub fn memory_of_peer_max(&self) -> (usize, usize) { todo!() }
}
