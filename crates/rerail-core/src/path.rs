//! One path to a peer: its epoch, its health, and the evidence about it.
//!
//! Owns: the verdicts and what they rest on. What is sent and received, and counted, is a lane's (`lane`, `path/lanes`).

pub(crate) mod evidence;
pub(crate) mod integrity;
mod lanes;
mod neighbour;
mod passage;
pub(crate) mod pmtu;
pub(crate) mod retry;
pub(crate) mod round_trips;

use crate::health::Health;
use crate::lane::Lane;
use crate::lane::acks::ACK_DELAY;
use crate::rest::OnDemand;
use crate::types::{Epoch, Locator, PathId, RailId, Time};
use evidence::Evidence;
use integrity::Integrity;
use neighbour::Neighbour;
use passage::Passage;
use pmtu::Pmtu;
use rerail_wire::Coverage;
use retry::Retry;
use std::time::Duration;

/// First interval between hellos, and the largest.
pub(crate) const HELLO_INTERVAL: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(100));

/// How long a path goes without a stream before bulk goes over it as datagrams.
pub(crate) const STREAMLESS_PATIENCE: Duration = Duration::from_millis(200);

/// What carries the bulk of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// Its streams, each on a lane.
    Streams,
    /// Its bulk datagrams.
    Datagrams,
}

/// A handshake that we began.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    pub epoch: Epoch,
    pub nonce: [u8; 16],
    pub next_send: Time,
    pub interval: Duration,
    pub give_up: Time,
    pub begun: Time,
    /// A stream was tried as well, because datagrams go unanswered.
    pub stream_tried: bool,
}

impl Proposal {
    /// The next hello goes now: there is reason to think that it is heard.
    pub fn hurry(&mut self, now: Time) {
        self.next_send = now;
        self.interval = HELLO_INTERVAL.0;
    }
}

#[derive(Clone)]
pub(crate) struct Path {
    pub id: PathId,
    pub rail: RailId,
    pub remote: Locator,
    /// The first lane.
    pub lane: Lane,
    /// The others; most paths have none.
    others: Vec<Lane>,
    pub health: Health,
    pub since: Time,
    pub epoch: Epoch,
    /// Largest epoch that either side ever proposed.
    pub epoch_max: Epoch,
    /// Nonce of the last hello that went out on a stream: the answer may be a datagram, and come when the stream is over.
    pub asked: Option<[u8; 16]>,
    /// An epoch that we accepted and in which nothing has arrived yet (hazard H8), and until when we wait for that before we begin
    /// one ourselves.
    pub half_open: Option<(Epoch, Time)>,
    /// Newest query of the peer that was heard on this path.
    pub asked_newest: Option<u64>,
    pub proposal: Option<Box<Proposal>>,
    pub retry: Retry,
    pub ever_up: bool,
    pub integrity: OnDemand<Integrity>,
    /// What both sides want summed; everything, until both have said.
    pub coverage: Coverage,

    // datagrams
    /// They make the round trip.
    pub datagrams_work: bool,
    /// That was found to be over.
    pub datagrams_blocked: bool,
    pub small_passage: Passage,
    pub datagram_bytes_max: usize,
    /// The same as far as the interfaces at both ends go.
    pub datagram_bytes_full: usize,
    pub pmtu: OnDemand<Pmtu>,

    pub neighbour: Neighbour,

    // bulk
    pub bulk_passage: Passage,
    /// They were found to vanish.
    pub bulk_blocked: bool,
    /// Since when bulk waits although this path works, and it has no stream.
    pub streamless_since: Option<Time>,

    pub evidence: Evidence,
    pub next_probe: Time,
    pub bytes_sent: u64,
}

impl Path {
    pub fn new(
        id: PathId,
        rail: RailId,
        remote: Locator,
        datagram_bytes_max: usize,
        mbps: u32,
        now: Time,
    ) -> Self {
        Self {
            id,
            rail,
            remote,
            lane: Lane::new(datagram_bytes_max, mbps, now),
            others: Vec::new(),
            health: Health::Idle,
            since: now,
            epoch: Epoch(0),
            epoch_max: Epoch(0),
            asked: None,
            half_open: None,
            asked_newest: None,
            proposal: None,
            retry: Retry::new(now),
            ever_up: false,
            neighbour: Neighbour::default(),
            integrity: OnDemand::default(),
            coverage: Coverage::default(),
            datagrams_work: false,
            datagrams_blocked: false,
            small_passage: Passage::default(),
            datagram_bytes_max,
            datagram_bytes_full: datagram_bytes_max,
            pmtu: OnDemand::default(),
            bulk_passage: Passage::default(),
            bulk_blocked: false,
            streamless_since: None,
            evidence: Evidence::default(),
            next_probe: now,
            bytes_sent: 0,
        }
    }

    /// Gives back what nothing needs while the peer is silent.
    pub fn rest(&mut self) {
        self.lanes_mut().for_each(Lane::rest);
        self.evidence.rest();
        self.integrity.rest();
        self.small_passage.rest();
        self.bulk_passage.rest();
        self.pmtu.rest();
    }

    /// Whether small messages and control may be sent as datagrams now.
    pub fn datagrams_usable(&self) -> bool {
        self.health.connected() && self.datagrams_work
    }

    /// Whether bulk datagrams may pass.
    pub fn passes_bulk(&self) -> bool {
        self.datagrams_usable() && !self.bulk_passage.barred()
    }

    /// Whether this epoch was accepted, and nothing has arrived in it yet.
    pub fn is_half_open(&self, epoch: Epoch) -> bool {
        self.half_open.is_some_and(|h| h.0 == epoch)
    }

    /// Time after which an unacknowledged datagram makes us ask.
    pub fn patience(&self, ack_timeout: Duration) -> Duration {
        self.lane.rtt().patience(ack_timeout * 3 / 5) + ACK_DELAY
    }

    /// Whether bulk has waited for a stream for long enough.
    pub fn is_streamless(&self, now: Time) -> bool {
        !self.has_stream() && self.streamless_since.is_some_and(|t| now.since(t) >= STREAMLESS_PATIENCE)
    }

    /// Next epoch that this side may propose: above every known one, its lowest bit naming the side.
    pub fn next_epoch(&self, own_is_high: bool) -> Epoch {
        let bit = u32::from(own_is_high);
        let mut e = (self.epoch_max.0 | 1) + 1 + bit;
        if self.epoch_max.0 == 0 {
            e = 2 + bit;
        }
        assert!(e < u32::MAX - 4, "epochs of a path are used up");
        Epoch(e)
    }
}
