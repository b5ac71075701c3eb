//! All the endpoints of one process: the face of the engine, and what ties its parts together.
//!
//! Owns: the parts, each of which owns its state, and the clock. What joins several parts is a chapter in `engine/`, which adds methods to
//! [`Engine`]; a chapter uses parts, a part never a chapter.

mod alternates;
mod blocked;
mod bulk;
pub(crate) mod collective;
pub(crate) mod deliver;
mod detours;
mod expect;
mod farewell;
mod handshake;
mod inflow;
mod integrity;
mod keys;
mod lanes;
mod levels;
mod liveness;
pub(crate) mod loans;
mod migration;
mod moves;
pub(crate) mod onesided;
mod pmtu;
mod ports;
mod post;
mod probes;
mod query;
mod receive;
mod recovery;
mod report;
mod routes;
mod sched;
pub(crate) mod serving;
pub(crate) mod suspicion;
mod tidy;
mod transmit;
mod unprotected;

use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::api::endpoint::OpCounts;
use crate::api::endpoints::Endpoints;
use crate::api::queues::Queues;
use crate::cipher::Identity;
use crate::clock::Clock;
use crate::event::{Event, EventKind};
use crate::health::{Health, HealthEvent};
use crate::memory::copies::Copies;
use crate::memory::grants::HeldGrants;
use crate::memory::loans::Loans;
use crate::memory::regions::Regions;
use crate::memory::served::ServedAll;
use crate::message::body::Body;
use crate::message::envelope::Role;
use crate::message::fragments::Fragments;
use crate::message::item::Item;
use crate::message::rx::RxState;
use crate::message::tx::{Report, TxMsg};
use crate::options::Options;
use crate::output::Output;
use crate::pairing::pair_rails;
use crate::path::Path;
use crate::peer::Peer;
use crate::peers::{Peers, Room};
use crate::policy::Plan;
use crate::rails::LocalRails;
use crate::remedies::Remedies;
use crate::report::Counters;
use crate::responder::{Responder, ResponderUpdate};
use crate::rng::Rng;
use crate::stream::SpareBuffers;
use crate::streams::Streams;
use crate::timers::Timers;
use crate::types::*;
use collective::Collectives;
use probes::Probes;
use rerail_wire::address;
use rerail_wire::{Address, Token};
use std::time::Duration;
use suspicion::Sweep;

/// After an absence nothing is judged for this long: what arrived meanwhile is drained first.
const GRACE: Duration = ms(25);

/// What an engine is made from.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The key pair of this process, and with it its token.
    pub identity: Identity,
    /// Rails, in the order of the address: as many as fit into it ([`rerail_wire::address`]).
    pub rails: Vec<RailDesc>,
    /// Options.
    pub options: Options,
    /// Whether it encrypts.
    pub encrypts: bool,
    /// Seed of everything random (jitter, nonces).
    pub seed: u64,
    /// Hash of the host's identity, and of its boot.
    pub host: u64,
    /// See `host`.
    pub boot: u64,
    /// Remedies that are on.
    pub remedies: Remedies,
}

/// All the endpoints of one process.
///
/// A clone goes on from the same state and shares the memory of what is posted and registered; see the safety sections of
/// [`Engine::send`] and its likes. The fuzz targets begin with clones of a pair that has connected.
#[derive(Clone)]
pub struct Engine {
    token: Token,
    rails: LocalRails,
    /// See `suspicion`.
    sweeps: Vec<Sweep>,
    probes: Probes,
    options: Options,
    plan: Plan,
    remedies: Remedies,
    identity: Identity,
    encrypts: bool,
    rng: Rng,
    host: u64,
    boot: u64,
    clock: Clock,
    absent_until: Option<Time>,
    /// Some rail works, as far as this process knows.
    has_reached_another_host: bool,

    peers: Peers,
    streams: Streams,
    endpoints: Endpoints,
    queues: Queues,
    /// Registered memory, by domain and key.
    regions: Regions,
    collectives: Collectives,
    /// What the orders of all peers cost (`engine::serving`).
    served: ServedAll,

    output: Output,
    timers: Timers,
    responder: Responder,
    /// The process exits without having closed: the linger time is all there is.
    hurried: bool,
    /// When the farewell began, and when it ends at the latest.
    shutdown_at: Option<(Time, Time)>,
    counters: Counters,
    transitions: u64,
    migration_steps: u64,
    /// Where unwanted bytes go; empty until there are some.
    scratch: Vec<u8>,
    /// Buffers for streams that have something to read.
    spare_buffers: SpareBuffers,
    copies: Copies,
    /// Memory that rails may touch outside of a call.
    loans: Loans,
    grants: HeldGrants,
    /// When what belongs to no peer was last tidied up (`rest`).
    tidied_at: Time,
}

/// After an absence of this length the answers to earlier queries may be lost in our own kernel: neither they nor their
/// absence prove anything. Shorter ones a socket's buffer survives.
const LONG_ABSENCE: Duration = Duration::from_millis(500);

impl Engine {
    /// Makes an engine without endpoints.
    ///
    /// # Errors
    /// A sentence for the user: no rails, or too many; an option that names a rail that is not there.
    pub fn new(config: EngineConfig, now: Time) -> Result<Self, String> {
        if config.rails.is_empty() {
            return Err("no rail is usable: give at least one interface that is up and has an address".into());
        }
        let locators: Vec<Locator> = config.rails.iter().map(|r| r.locator).collect();
        let most = address::Rails::of(&locators).len();
        if locators.len() > most {
            return Err(format!(
                "{} rails are too many: an address has room for {most} of them",
                locators.len()
            ));
        }
        if locators.iter().any(|l| l.service() == 0) {
            return Err("the port of the rails is not known".into());
        }
        let token = config.identity.token();
        let spread = u16::from_le_bytes([token.0[0], token.0[1]]);
        let plan = Plan::new(&config.options, &config.rails, spread)?;
        Ok(Self {
            token,
            sweeps: vec![Sweep::default(); config.rails.len()],
            probes: Probes::default(),
            rails: LocalRails::new(config.rails),
            options: config.options,
            plan,
            remedies: config.remedies,
            identity: config.identity,
            encrypts: config.encrypts,
            rng: Rng::new(config.seed),
            host: config.host,
            boot: config.boot,
            clock: Clock::new(now),
            absent_until: None,
            has_reached_another_host: false,
            peers: Peers::default(),
            streams: Streams::default(),
            endpoints: Endpoints::default(),
            queues: Queues::default(),
            regions: Regions::default(),
            collectives: Collectives::default(),
            served: ServedAll::default(),
            output: Output::default(),
            timers: Timers::default(),
            responder: Responder::default(),
            hurried: false,
            shutdown_at: None,
            counters: Counters::default(),
            transitions: 0,
            migration_steps: 0,
            scratch: Vec::new(),
            spare_buffers: SpareBuffers::default(),
            copies: Copies::default(),
            loans: Loans::default(),
            grants: HeldGrants::default(),
            tidied_at: now,
        })
    }

    /// Address that endpoint `ep` publishes.
    pub fn address(&self, ep: EpId) -> Address {
        Address {
            token: self.token,
            endpoint: ep.0,
            encrypts: self.encrypts,
            rails: self.rails.iter().map(|r| r.locator).collect(),
        }
    }

    /// Endpoint behind a published address; makes the peer known, connects nothing yet.
    pub fn endpoint_of(&mut self, addr: &Address) -> EndpointId {
        let peer = self.peer_of(addr);
        // the published address counts, not the one in an earlier hello
        self.settle_whereabouts(peer, addr);
        self.peers.is_proven(peer);
        self.part_if_unlike(peer);
        EndpointId { peer, ep: addr.endpoint }
    }

    /// Address of an endpoint id that was obtained from this engine (also from a completion's `src`).
    pub fn address_of(&self, id: EndpointId) -> Address {
        let mut a = self.peers[id.peer].address().clone();
        a.endpoint = id.ep;
        a
    }

    pub(crate) fn peer_of(&mut self, addr: &Address) -> PeerId {
        if let Some(p) = self.peers.of_token(&addr.token) {
            return p;
        }
        let id = self.peers.next_id();
        self.make_peer(id, addr);
        id
    }

    /// The process that sent a hello. One that this process has not named is kept in a bounded list until it has proved
    /// its address; `None`: that list is full.
    pub(crate) fn peer_of_hello(&mut self, addr: &Address) -> Option<PeerId> {
        if let Some(p) = self.peers.of_token(&addr.token) {
            return Some(p);
        }
        let now = self.clock.now();
        let id = match self.peers.room_for_hello(now) {
            Room::Free => self.peers.next_id(),
            Room::Of(id) => {
                self.forget_unproven(id);
                id
            }
            Room::None => return None,
        };
        self.make_peer(id, addr);
        self.peers.is_unproven(id, now);
        Some(id)
    }

    /// Frees the place of an unproven peer. Its number is unused: it was never wanted, and nothing came from it.
    fn forget_unproven(&mut self, id: PeerId) {
        self.forget_keys(id);
        let p = &mut self.peers[id];
        self.timers.cancel(id, &mut p.timer);
        let accept_cid = p.address().token.accept_cid(&self.token);
        let keys = self.peers.forget_unproven(id, accept_cid);
        if let Some(keys) = keys {
            let u = ResponderUpdate::Remove { cid_in: keys.cid_in };
            self.responder.update(u);
            self.output.act(Action::Responder(u));
        }
    }

    /// A peer known only from a hello, which may be a replay, is where `addr` says. If that is elsewhere, all that was
    /// known of the peer is dropped.
    pub(crate) fn settle_whereabouts(&mut self, id: PeerId, addr: &Address) {
        let p = &self.peers[id];
        if p.is_unproven() && p.address().rails != addr.rails {
            self.forget_unproven(id);
            self.make_peer(id, addr);
            self.peers.is_unproven(id, self.clock.now());
        }
    }

    fn make_peer(&mut self, id: PeerId, addr: &Address) {
        let is_self = addr.token == self.token;
        let mut peer = Peer::new(id, addr.clone(), is_self, self.token > addr.token, self.clock.now());
        if !is_self {
            let pairs = pair_rails(&self.rails, &addr.rails);
            let paths = pairs.into_iter().map(|(own, remote)| self.new_path(&peer, own, remote)).collect();
            peer.set_paths(paths);
        }
        self.peers.add(peer, addr.token.accept_cid(&self.token));
    }

    pub(crate) fn new_path(&self, peer: &Peer, local: usize, remote: usize) -> Path {
        let (high_byte, low_byte) = if peer.own_is_high() { (remote, local) } else { (local, remote) };
        let id = PathId((high_byte as u16) << 8 | low_byte as u16);
        let rail = &self.rails[RailId(local as u8)];
        let to = peer.address().rails[remote];
        let bytes = usize::from(rail.datagram_bytes_safe);
        let lanes = if self.options.lanes_auto { 1 } else { self.options.lanes };
        let mbps = rail.speed_mbps;
        let mut path = Path::new(id, RailId(local as u8), to, bytes, mbps, lanes, self.clock.now());
        if rail.streams_on_demand {
            path.demand.save();
        }
        path
    }

    // ---- objects -----------------------------------------------------------------------------------------------

    /// Makes a completion queue; `size` bounds what multi-receives may put into it, not the completions of single
    /// operations.
    pub fn open_cq(&mut self, size: usize) -> CqId {
        self.queues.open(size)
    }

    /// Makes a queue that the program never reads, for a direction in which it wants no completions: a peer's writes
    /// with data would otherwise fill it without end.
    pub fn open_sink(&mut self) -> CqId {
        self.queues.open_sink()
    }

    /// Forgets a completion queue and what is in it.
    pub fn close_cq(&mut self, cq: CqId) {
        self.queues.close(cq);
    }

    /// Makes an endpoint that reports to these queues. Its number is never used again: a late message for a former endpoint, or one by
    /// an address that a peer has kept, would reach the new one (hazard H18).
    ///
    /// # Errors
    /// [`PostError::Exhausted`] after [`ENDPOINTS_MAX`](crate::ENDPOINTS_MAX).
    pub fn open_endpoint(&mut self, tx_cq: CqId, rx_cq: CqId) -> Result<EpId, PostError> {
        self.endpoints.open(tx_cq, rx_cq, self.remedies)
    }

    /// How many operations of an endpoint are over.
    pub fn op_counts(&self, ep: EpId) -> OpCounts {
        self.endpoints.get(ep).map_or_else(OpCounts::default, |e| e.counts())
    }

    /// FI_OPT_MIN_MULTI_RECV: a multi-receive buffer with less room than this is given back.
    pub fn set_multi_recv_min(&mut self, ep: EpId, bytes: usize) {
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.matcher_mut().set_multi_bytes_min(bytes);
        }
    }

    /// Forgets a received message that no receive will take. A sender that waits for a grant gets a rejection.
    pub(crate) fn drop_message(&mut self, peer: PeerId, seq: u64) {
        self.end_message(peer, seq, false);
    }

    /// Forgets a received message that the application has looked at and does not want.
    pub(crate) fn discard_message(&mut self, peer: PeerId, seq: u64) {
        self.end_message(peer, seq, true);
    }

    fn end_message(&mut self, peer: PeerId, seq: u64, discarded: bool) {
        self.revoke_leases(peer, seq);
        let p = &mut self.peers[peer];
        let Some(m) = p.incoming.remove(seq) else { return };
        let envelope = *m.envelope();
        let (protocol, role) = (envelope.protocol, envelope.role);
        let taken = discarded || m.receiving().is_some();
        if role == Role::Order {
            self.account(peer);
        }
        let p = &mut self.peers[peer];
        match m.into_state() {
            RxState::Whole(_) | RxState::Withdrawn => {}
            state @ (RxState::Remote | RxState::Receiving(_)) => {
                p.backlog.tell(Item::Reject { seq, taken });
                if !taken && role == Role::Message && protocol != Protocol::Collective {
                    p.incoming.reject_unmatched(seq);
                }
                self.mark(peer);
                if let RxState::Receiving(r) = state {
                    self.defer_receive(peer, seq, &envelope, &r.into_target(), None);
                }
            }
            RxState::Local(l) => {
                let broken = l.promises_match() && !taken;
                let error = broken.then_some(CompletionError::PeerClosed);
                self.complete_send(l.tx_ep(), protocol, l.context(), l.completion(), error);
                self.endpoints.settle(l.tx_ep(), 1);
            }
        }
    }

    // ---- completions -------------------------------------------------------------------------------------------

    /// The next completion of a queue, without taking it.
    pub fn cq_head(&self, cq: CqId) -> Option<&Completion> {
        self.queues.head(cq)
    }

    /// Completions in a queue.
    pub fn cq_len(&self, cq: CqId) -> usize {
        self.queues.len(cq)
    }

    /// Takes the next completion of a queue.
    pub fn cq_pop(&mut self, cq: CqId) -> Option<Completion> {
        let c = self.queues.pop(cq)?;
        if self.endpoints.any_stalled() && self.queues.has_room(cq) && self.remedies.full_queue_resumes() {
            for ep in self.endpoints.take_stalled() {
                self.rematch(ep);
                self.end_hopeless(ep);
            }
        }
        Some(c)
    }

    pub(crate) fn push(&mut self, cq: CqId, c: Completion) {
        if c.protocol == Protocol::Collective && c.kind != CompletionKind::Collective {
            return self.collectives.settle(c);
        }
        self.queues.push(cq, c);
    }

    pub(crate) fn complete_send(
        &mut self,
        ep: EpId,
        protocol: Protocol,
        context: usize,
        wanted: bool,
        error: Option<CompletionError>,
    ) {
        let Some(e) = self.endpoints.get_mut(ep) else { return };
        e.count_send(protocol, error.is_some());
        if !wanted && error.is_none() {
            return;
        }
        let cq = e.tx_cq();
        self.push(cq, Completion { error, ..Completion::new(CompletionKind::Send, protocol, ep, context) });
    }

    /// A send is over: acknowledged in full, rejected, or failed.
    pub(crate) fn finish_tx(&mut self, peer: PeerId, seq: u64, error: Option<CompletionError>) {
        let p = &mut self.peers[peer];
        let Some(m) = p.outgoing.finish(seq) else { return };
        let envelope = *m.envelope();
        if envelope.role != Role::Message {
            p.orders.end_serving(seq);
            self.account(peer);
        }
        let p = &mut self.peers[peer];
        let unsent = m.fragments().map_or(0, Fragments::unsent);
        p.backlog.drop_unsent(seq, unsent);
        if self.is_read(peer, seq) {
            return self.defer_send(peer, seq, m, error);
        }
        self.send_is_over(peer, seq, m, error);
    }

    /// Nothing reads the memory of a send that is over: it is reported.
    #[inline]
    pub(crate) fn send_is_over(&mut self, peer: PeerId, seq: u64, m: TxMsg, error: Option<CompletionError>) {
        #[cfg(not(feature = "planted-bugs"))]
        let _ = (peer, seq);
        let envelope = *m.envelope();
        let ep = EpId(envelope.src_ep);
        // the error of a message that was reported as buffered has no completion to go to; it is in the events
        if m.report() != Report::Never {
            let wanted = m.report() == Report::Always;
            self.complete_send(ep, envelope.protocol, m.context(), wanted, error);
        }
        self.endpoints.settle(ep, 1);
        #[cfg(feature = "planted-bugs")]
        if !self.remedies.abort_trailer() {
            self.peers[peer].outgoing.keep_zombie(seq, m);
            return;
        }
        if let Body::Retained(copy) = m.into_body() {
            self.copies.put(copy);
        }
    }

    // ---- time, work to do --------------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn tick(&mut self, now: Time) {
        // several calls at one moment have the same time
        if self.clock.is_new(now) && !self.clock.advance_a_little(now) {
            self.advance(now);
        }
    }

    fn advance(&mut self, now: Time) {
        let promised = self.next_deadline();
        if let Some(away) = self.clock.advance(now, promised, !self.remedies.absence_is_not_silence()) {
            self.counters.absences += 1;
            self.absent_until = Some(self.clock.now() + GRACE);
            if away >= LONG_ABSENCE {
                // our own kernel had no room for all that came meanwhile, and dropped answers on one rail and not on another
                for path in self.peers.iter_mut().flat_map(|p| &mut p.paths) {
                    path.evidence.forget();
                }
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let mut at = self.timers.first();
        if let Some(due) = self.streams.stranger_due() {
            at = at.min(due);
        }
        (at < Time::NEVER).then_some(at)
    }

    /// Something may have to be sent to a peer.
    pub(crate) fn mark(&mut self, peer: PeerId) {
        let p = &mut self.peers[peer];
        if p.is_self() {
            return;
        }
        self.output.datagram_is_due(peer, &mut p.dirty);
        if p.backlog.has_bulk() || !p.paths.iter().any(Path::datagrams_usable) {
            self.mark_streams(peer);
        }
    }

    /// What carries bulk to a peer, streams and trains of datagrams, may have something to write.
    pub(crate) fn mark_streams(&mut self, peer: PeerId) {
        self.mark_trains(peer);
        for id in self.peers[peer].paths.iter().flat_map(Path::streams) {
            self.streams.mark(id, &mut self.output);
        }
    }

    pub(crate) fn mark_stream(&mut self, id: StreamId) {
        self.streams.mark(id, &mut self.output);
    }

    /// Schedules the timers of a peer for engine time `at`.
    pub(crate) fn schedule(&mut self, peer: PeerId, at: Time) {
        let p = &mut self.peers[peer];
        self.timers.ask(p.id(), at, &mut p.timer);
    }

    /// When [`Engine::handle_timeout`] must be called at the latest, if nothing else happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline().map(|t| self.clock.real_of(t))
    }

    /// A stream that may have something to write and is not full. Call until `None`.
    pub fn poll_writable(&mut self, now: Time) -> Option<StreamId> {
        self.tick(now);
        while let Some(id) = self.output.due_stream() {
            if let Some(s) = self.streams.get_mut(id) {
                s.take_turn(&mut self.output);
                return Some(id);
            }
            self.output.stream_is_gone();
        }
        None
    }

    /// Whether one of the `poll_` functions but [`Engine::poll_timeout`] may have something: when not, none of them needs to be called.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.output.is_empty() || self.collectives.has_settled()
    }

    /// What the world is to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.output.next_action()
    }

    /// What people should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.output.next_event()
    }

    pub(crate) fn event(&mut self, kind: EventKind, peer: PeerId, path: Option<usize>) {
        let p = &self.peers[peer];
        let path = path.map(|i| (p.paths[i].id(), p.paths[i].rail(), p.paths[i].epoch()));
        self.output.tell(Event { kind, peer: p.id(), peer_name: p.name(), path });
    }

    /// Moves a path by the table; returns whether the event changed anything.
    pub(crate) fn shift(&mut self, peer: PeerId, index: usize, event: HealthEvent) -> bool {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        let was = path.health().connected();
        let Some(row) = path.shift(event, now) else { return false };
        self.transitions |= 1 << row;
        let is = path.health().connected();
        if path.health() == Health::Up {
            // shares are counted from now on: a path that was away is owed nothing
            self.peers[peer].turns.begin_shares();
        }
        self.probes.count(self.peers[peer].gone(), was, is);
        self.unsettle(peer);
        true
    }

    /// Which rows of [`TRANSITIONS`](crate::TRANSITIONS) were taken, as bits.
    pub fn transitions_visited(&self) -> u64 {
        self.transitions
    }
}
