//! One path to a peer: its epoch, its health, and the evidence about it.
//!
//! Owns: the verdicts and what they rest on. What is sent and received, and counted, is a lane's (`lane`, `path/lanes`).

pub(crate) mod breadth;
mod datagrams;
mod demand;
pub(crate) mod detour;
pub(crate) mod epochs;
pub(crate) mod evidence;
pub(crate) mod integrity;
mod lanes;
pub(crate) mod moves;
mod neighbour;
mod passage;
pub(crate) mod pmtu;
pub(crate) mod retry;
pub(crate) mod round_trips;

use crate::health::{Health, HealthEvent, TRANSITIONS};
use crate::lane::Lane;
use crate::lane::acks::ACK_DELAY;
use crate::rest::OnDemand;
use crate::types::{Epoch, Locator, PathId, RailId, Time};
use breadth::Breadth;
use datagrams::Datagrams;
use demand::Demand;
use detour::Detour;
use epochs::Epochs;
use evidence::Evidence;
use integrity::Integrity;
use moves::Moves;
use neighbour::Neighbour;
use pmtu::Pmtu;
use rerail_wire::Coverage;
use retry::Retry;
use std::time::Duration;

/// What carries the bulk of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// Its streams, each on a lane.
    Streams,
    /// Its bulk datagrams.
    Datagrams,
}

#[derive(Clone)]
pub(crate) struct Path {
    id: PathId,
    rail: RailId,
    remote: Locator,
    /// The first lane.
    pub lane: Lane,
    /// The others; most paths have none.
    others: Vec<Lane>,
    /// How many of them carry.
    pub breadth: Breadth,
    /// How they leave crowded routes.
    pub moves: OnDemand<Moves>,
    health: Health,
    since: Time,
    pub epochs: Epochs,
    /// Newest query of the peer that arrived on this path.
    asked_newest: Option<u64>,
    pub retry: Retry,
    ever_up: bool,
    pub integrity: OnDemand<Integrity>,
    /// The coverage that both sides requested; full, until both have.
    coverage: Coverage,
    pub datagrams: Datagrams,
    pub pmtu: OnDemand<Pmtu>,
    pub neighbour: Neighbour,
    pub demand: Demand,
    /// Which route its datagrams take. It outlives the epoch: the fabric is the same.
    pub detour: Detour,
    pub evidence: Evidence,
    next_probe: Time,
    bytes_sent: u64,
    /// An adapter has led a stream away from it, and it has answered no query since: acknowledgements of that stream take another path.
    strays: bool,
    /// Its link went down then, and it is given up when what its adapters have moved elsewhere is over.
    link_lost: Option<Time>,
}

impl Path {
    pub fn new(
        id: PathId,
        rail: RailId,
        remote: Locator,
        datagram_bytes_max: usize,
        mbps: u32,
        lanes: u8,
        now: Time,
    ) -> Self {
        Self {
            id,
            rail,
            remote,
            lane: Lane::new(datagram_bytes_max, mbps, now),
            others: Vec::new(),
            breadth: Breadth::new(lanes),
            moves: OnDemand::default(),
            health: Health::Idle,
            since: now,
            epochs: Epochs::default(),
            asked_newest: None,
            retry: Retry::new(now),
            ever_up: false,
            neighbour: Neighbour::default(),
            integrity: OnDemand::default(),
            coverage: Coverage::default(),
            datagrams: Datagrams::new(datagram_bytes_max),
            pmtu: OnDemand::default(),
            demand: Demand::default(),
            detour: Detour::default(),
            evidence: Evidence::default(),
            next_probe: now,
            bytes_sent: 0,
            strays: false,
            link_lost: None,
        }
    }

    /// Gives back what nothing needs while the peer is silent.
    pub fn rest(&mut self) {
        self.lanes_mut().for_each(Lane::rest);
        self.evidence.rest();
        self.integrity.rest();
        self.datagrams.rest();
        self.pmtu.rest();
        self.detour.rest();
        self.moves.rest();
    }

    // ---- what it is --------------------------------------------------------------------------------------------

    /// Its name, the same at both ends.
    #[inline]
    pub fn id(&self) -> PathId {
        self.id
    }

    /// The rail of this process that it begins on.
    #[inline]
    pub fn rail(&self) -> RailId {
        self.rail
    }

    /// Where it ends.
    #[inline]
    pub fn remote(&self) -> Locator {
        self.remote
    }

    // ---- health and epochs -------------------------------------------------------------------------------------

    #[inline]
    pub fn health(&self) -> Health {
        self.health
    }

    /// When that began.
    pub fn since(&self) -> Time {
        self.since
    }

    /// Moves by the table. Returns which row that was, if the event changed anything.
    pub fn shift(&mut self, event: HealthEvent, now: Time) -> Option<usize> {
        let row = TRANSITIONS.iter().position(|t| t.from == self.health && t.event == event)?;
        (self.health, self.since) = (TRANSITIONS[row].to, now);
        Some(row)
    }

    /// Both sides have answered in an epoch, over a rail of that nominal speed: everything restarts.
    pub fn begin_epoch(&mut self, epoch: Epoch, mbps: u32, now: Time) {
        self.epochs.agree(epoch);
        self.retry.connected();
        let (bytes, full) = (self.datagrams.bytes_max(), self.datagrams.bytes_full());
        self.lanes_mut().for_each(|l| l.begin_epoch(bytes, mbps, now));
        self.pmtu.renew(bytes, full);
        if let Some(moves) = self.moves.awake_mut() {
            moves.begin_epoch();
        }
        self.breadth.begin_epoch(now);
        self.demand.ends();
        self.evidence = Evidence::begin(now);
        self.datagrams.forget();
        self.next_probe = now;
        if let Some(i) = self.integrity.awake_mut() {
            i.renew(now);
        }
    }

    /// It is out of service. The last acknowledgements of its epoch go over the paths that are left.
    pub fn end_epoch(&mut self, now: Time) {
        self.epochs.forget_accepted();
        self.datagrams.forget();
        self.evidence.give_up();
        self.strays = false;
        self.link_lost = None;
        let epoch = self.epoch();
        for lane in self.lanes_mut() {
            let stream_number = lane.connection().number() as u16;
            lane.acks_mut().end_epoch(epoch, stream_number, now);
        }
    }

    /// It comes into service. Returns for how long it was not.
    pub fn comes_up(&mut self, now: Time) -> Duration {
        self.ever_up = true;
        if let Some(i) = self.integrity.awake_mut() {
            i.trust();
        }
        self.retry.is_back(now)
    }

    /// Whether it ever was in service.
    pub fn was_ever_up(&self) -> bool {
        self.ever_up
    }

    // ---- queries -----------------------------------------------------------------------------------------------

    /// Newest query of the peer that arrived here.
    pub fn heard_query(&self) -> Option<u64> {
        self.asked_newest
    }

    /// A query of the peer arrived. Returns whether it is newer than all before.
    pub fn hear_query(&mut self, number: u64) -> bool {
        let newer = self.asked_newest.is_none_or(|n| number > n);
        if newer {
            self.asked_newest = Some(number);
        }
        newer
    }

    /// When it is queried next, if no other reason comes before.
    pub fn next_probe(&self) -> Time {
        self.next_probe
    }

    /// It is queried then.
    pub fn probe_at(&mut self, at: Time) {
        self.next_probe = at;
    }

    // ---- what is summed and sent -------------------------------------------------------------------------------

    /// The coverage that both sides requested; full, until both have.
    #[inline]
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Both sides have requested their coverage.
    pub fn agree_coverage(&mut self, coverage: Coverage) {
        self.coverage = coverage;
    }

    /// So many bytes went out over it.
    #[inline]
    pub fn sent(&mut self, bytes: u64) {
        self.bytes_sent += bytes;
    }

    /// Of these so many did not.
    pub fn not_sent(&mut self, bytes: u64) {
        self.bytes_sent -= bytes;
    }

    /// Bytes that went out over it.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    // ---- datagrams and streams ---------------------------------------------------------------------------------

    /// A datagram may have so many bytes from now on.
    pub fn resize(&mut self, bytes: usize) {
        self.datagrams.resize(bytes);
        self.lane.bulk_mut().resize(bytes);
    }

    /// Both interfaces take datagrams of this length.
    pub fn mtu_agreed(&mut self, bytes: usize) {
        if self.datagrams.agree_bytes(bytes) {
            self.resize(bytes);
        }
        self.pmtu.renew(self.datagrams.bytes_max(), bytes);
    }

    /// Whether small messages and control may be sent as datagrams now.
    pub fn datagrams_usable(&self) -> bool {
        self.health.connected() && self.datagrams.work()
    }

    /// Whether acknowledgements of what comes by it may go by it.
    pub fn acks_usable(&self) -> bool {
        self.datagrams_usable() && !self.strays
    }

    /// An adapter has led a stream away from it: what was acknowledged lately may have been lost, and goes elsewhere.
    pub fn strays(&mut self, now: Time) {
        self.strays = true;
        self.lanes_mut().for_each(|lane| lane.acks_mut().tell_again(now, true));
    }

    /// It has answered a query from after that.
    pub fn answers_again(&mut self) {
        self.strays = false;
    }

    /// Its link is down, and it is not given up yet: what is under way goes on over another rail.
    pub fn outlives_link(&mut self, now: Time) {
        self.link_lost.get_or_insert(now);
    }

    /// Its link is up again.
    pub fn link_returns(&mut self) {
        self.link_lost = None;
    }

    /// Since when its link is down while it is not given up.
    pub fn link_lost_at(&self) -> Option<Time> {
        self.link_lost
    }

    /// Whether bulk datagrams may pass.
    pub fn passes_bulk(&self) -> bool {
        self.datagrams_usable() && !self.datagrams.bulk_barred()
    }

    /// Time after which an unacknowledged datagram starts a query.
    pub fn patience(&self, ack_timeout: Duration) -> Duration {
        self.lane.rtt().patience(ack_timeout * 3 / 5) + ACK_DELAY
    }

    /// Something large is to go to the peer, or to come: a stream may be opened, at once if it is for this side to do so `first`.
    pub fn want_streams(&mut self, first: bool, now: Time) {
        self.demand.arises();
        self.lanes_mut().for_each(|l| l.connection_mut().may_open(first, now));
    }

    /// Notes whether bulk waits for a stream here, with bulk that `waits` somewhere or without. Returns until when it does.
    pub fn note_streamless(&mut self, waits: bool, now: Time) -> Option<Time> {
        if self.has_stream() || !self.health.carries() {
            self.demand.ends();
            return None;
        }
        self.demand.note(waits, now)
    }

    /// Whether datagrams carry the bulk, because there is no stream.
    pub fn is_streamless(&self, now: Time) -> bool {
        !self.has_stream() && self.demand.has_waited(now)
    }

    /// The epoch that is agreed, or was last.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        self.epochs.agreed()
    }
}
