//! One peer process: message sequences, queues, memory held for it, paths to it.
//!
//! Owns: what waits to be sent, the paths, and what is known of the process. Its messages and one-sided operations are parts of their own
//! ([`Outgoing`], [`Incoming`], [`Orders`]).

use crate::api::completion::CompletionError;
use crate::cipher::Session;
use crate::health::Health;
use crate::lane::name::LaneName;
use crate::marks::Mark;
use crate::memory::orders::Orders;
use crate::memory::served::Served;
use crate::message::incoming::Incoming;
use crate::message::item::Item;
use crate::message::outgoing::Outgoing;
use crate::message::tx::TxMsg;
use crate::migration::Carrier;
use crate::node::{FarRail, Node};
use crate::options::BulkMode;
use crate::path::{Carry, Path};
use crate::rest::{OnDemand, give_back, give_back_list, rests};
use crate::timers::Wakeup;
use crate::types::{PathId, PeerId, RailId, StreamId, Time, ms};
use rerail_wire::frame::FRAME_HEADER_BYTES;
use rerail_wire::packet::PACKET_HEADER_BYTES;
use rerail_wire::{Address, PairKeys};
use std::collections::VecDeque;
use std::time::Duration;

/// Silence of a peer that we want something of, until it is called a partition.
pub(crate) const PARTITION: Duration = ms(1000);

/// Why a peer is out of reach for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It said goodbye.
    Goodbye,
    /// Its partition passed the deadline, or it gave us up.
    Lost,
    /// Its process ended without a goodbye.
    Died,
}

impl Gone {
    /// A verdict on an incarnation, which nothing that arrives can change (hazard H7). One that said goodbye may come back to
    /// hear that it was heard.
    pub fn is_final(self) -> bool {
        self != Gone::Goodbye
    }

    /// What operations that needed the peer end with.
    pub fn error(self) -> CompletionError {
        match self {
            Gone::Goodbye => CompletionError::PeerClosed,
            Gone::Lost => CompletionError::PeerUnreachable,
            Gone::Died => CompletionError::PeerDied,
        }
    }
}

/// What speaks for the end of a peer's process; all of it forgotten with the next sign of life (see `engine/liveness.rs`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Signs {
    /// A stream ended in order, and without a goodbye: nobody but the kernel of that process does this.
    pub ended_at: Option<Time>,
    /// First and last refused connection, and how many.
    pub refused: Option<(Time, Time)>,
    pub refusals: u32,
    /// How many there were, those that came together counted once, and when the last of these was.
    pub moments: (u32, Time),
    /// The last of them.
    pub refused_last: Option<(RailId, Time)>,
    /// Own rails on which connections were refused.
    pub refused_rails: u16,
    /// The kernel at the other end acknowledged or accepted something: the process exists.
    pub kernel_at: Option<Time>,
    /// A connection was accepted, and ended without an answer: by a process, and not by this peer's, which answers.
    /// The first and the last time of a row.
    pub turned_away: Option<(Time, Time)>,
    /// When another process of its host was accepted between two refusals, for the first time in this row of them.
    pub neighbour_at: Option<Time>,
    /// When fresh streams were first tried on all its paths after the first refusal.
    pub kernels_asked_at: Option<Time>,
    /// When that was last done out of turn, because of a refusal.
    pub urged_at: Option<Time>,
    /// It was reported as stopped.
    pub stopped: bool,
    /// When its kernel is asked next, and a fresh stream is tried next.
    pub inspect_at: Option<Time>,
    pub probe_at: Option<Time>,
    pub probe_interval: Duration,
}

rests! {
    Signs = Signs {
        ended_at: None,
        refused: None,
        refusals: 0,
        moments: (0, Time::ORIGIN),
        refused_last: None,
        refused_rails: 0,
        kernel_at: None,
        turned_away: None,
        neighbour_at: None,
        kernels_asked_at: None,
        urged_at: None,
        stopped: false,
        inspect_at: None,
        probe_at: None,
        probe_interval: Duration::ZERO,
    };
}

/// Whether new connections to a peer are accepted: asked when another process of its host is refused (see `engine/liveness.rs`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Acceptance {
    /// The last one that was, and over which of our rails.
    pub accepted: Option<(RailId, Time)>,
    /// When it was last asked, and by which stream.
    pub asked: Option<(StreamId, Time)>,
}

rests! {
    Acceptance = Acceptance { accepted: None, asked: None };
}

rests! {
    empty
    VecDeque<(u64, u64)> = VecDeque::new();
    VecDeque<(Item, bool)> = VecDeque::new();
    VecDeque<u64> = VecDeque::new();
    Vec<u64> = Vec::new();
}

/// A round of queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    pub next: Time,
    pub rounds: u32,
}

/// A stream whose writes are unresolved, and what they carried.
#[derive(Debug, Clone)]
pub(crate) struct Doubt {
    pub lane: LaneName,
    pub items: Vec<Item>,
}

#[derive(Clone)]
pub(crate) struct Peer {
    pub id: PeerId,
    pub address: Address,
    /// The keys that only it and this process have; `None`: its public key is not known yet.
    pub keys: Option<PairKeys>,
    /// It has shown that it has those keys: a hello in its name is believed only if it shows that as well.
    pub proved: bool,
    /// The encrypted session with it.
    pub session: Option<Box<Session>>,
    pub name: u32,
    /// This process itself.
    pub is_self: bool,
    /// Our token is the higher of the two.
    pub own_is_high: bool,
    /// Something was posted to it, or it connected to us.
    pub wanted: bool,
    /// Known only from a hello, which anybody may have sent again: nothing is sent to its addresses but what answers that.
    pub unproven: bool,
    pub gone: Option<Gone>,
    pub node: Option<Node>,
    pub config_sent: bool,
    /// It has our configuration.
    pub config_acked: bool,

    pub outgoing: Outgoing,

    pub incoming: Incoming,

    pub orders: Orders,
    /// What its orders cost, as it was added up last.
    served: Served,

    /// Control: goes first, always (hazard H4c).
    pub control: VecDeque<Item>,
    /// Lost small items.
    pub resend: VecDeque<Item>,
    pub small: VecDeque<Item>,
    /// Eager messages that do not fit a datagram.
    /// Number and bytes of each.
    pub eager_bulk: OnDemand<VecDeque<(u64, u64)>>,
    pub eager_bulk_bytes: u64,
    /// It is among those because of which streams are polled (`engine/expect`).
    pub listed: bool,
    /// Lost fragments.
    pub resend_bulk: OnDemand<VecDeque<(Item, bool)>>,
    /// Granted messages with bytes that were never sent.
    pub bulk: OnDemand<VecDeque<u64>>,
    pub bulk_bytes: u64,

    pub paths: Vec<Path>,
    pub primary: Option<usize>,
    /// What is spread over the paths, and how it may move (`migration`).
    pub carriers: Vec<Carrier>,
    /// Paths there were when the carriers were made.
    pub carriers_for: usize,
    /// Something changed that carriers care about.
    pub unsettled: bool,
    /// Whole messages, and small ones, are given out in turn from here on.
    pub turn: [usize; 2],
    /// Bytes of whole messages given to each path since a path last came into service.
    pub whole: OnDemand<Vec<u64>>,
    pub query: Option<Query>,
    /// A path broke, and nothing protects what was on it.
    pub broken_at: Option<Time>,
    pub ping_next: u64,
    /// Interval of questions that its answers wish for, in the unit of `probes`.
    pub probe_wish: u16,
    pub heard_at: Time,
    /// When an answered query proved the engine, not only the path.
    pub engine_heard_at: Time,
    pub partitioned_at: Option<Time>,
    pub signs: OnDemand<Signs>,
    pub acceptance: OnDemand<Acceptance>,
    /// Silence that ended with the last sign of life.
    pub last_silence: Duration,
    pub last_silence_end: Time,

    /// A datagram may be built for it.
    pub dirty: Mark,
    /// When it is called next.
    pub timer: Wakeup,
    pub bytes_sent: u64,
    pub bytes_hedged: u64,

    pub goodbye_sent: bool,
    pub goodbye_acked: bool,
    /// The first message after it. What follows can only be answers to orders that came later, and nobody takes them.
    pub goodbye_from: u64,
    /// When it went out, and not into a path that broke.
    pub goodbye_at: Option<Time>,
    /// Trains of bulk datagrams may be due, and the path whose turn is next.
    pub train_due: Mark,
    pub train_turn: usize,
    /// Streams whose writes are unresolved here.
    pub doubts: Vec<Doubt>,
    /// Streams that the peer wants to be fenced.
    pub fences: Vec<LaneName>,
}

impl Peer {
    /// Bulk of it is expected to arrive, or waits to go out.
    pub fn has_bulk(&self) -> bool {
        self.incoming.receiving_count() > 0 || !self.bulk.is_at_rest() || !self.eager_bulk.is_at_rest()
    }

    /// Which rail of the peer a path leads to, in the order of its address.
    pub fn far_rail(&self, x: &Path) -> usize {
        usize::from(if self.own_is_high { x.id().0 >> 8 } else { x.id().0 & 0xff })
    }

    /// What the peer has told of that rail.
    pub fn far(&self, x: &Path) -> Option<&FarRail> {
        self.node.as_ref()?.rail(self.far_rail(x))
    }

    /// What would carry the bulk of a path, whatever its health.
    pub fn carry(&self, x: &Path, mode: BulkMode, now: Time) -> Option<Carry> {
        let stream = x.has_stream().then_some(Carry::Streams);
        let datagrams = |wanted: bool| (wanted && x.datagrams_usable()).then_some(Carry::Datagrams);
        let barred = x.datagrams.bulk_barred();
        // a path on which they vanish, and that has no stream, leaves bulk to the others if there are any
        let elsewhere = || {
            let carries = |o: &Path| o.health() == Health::Up && (o.has_stream() || o.passes_bulk());
            self.paths.iter().any(|o| o.id() != x.id() && carries(o))
        };
        match mode {
            _ if barred && stream.is_none() && elsewhere() => None,
            BulkMode::Udp => datagrams(!barred).or(stream).or_else(|| datagrams(true)),
            BulkMode::Auto => stream.or_else(|| datagrams(x.is_streamless(now))),
            BulkMode::Tcp => stream.or_else(|| {
                datagrams(self.paths.iter().filter(|x| x.health().carries()).all(|x| x.is_streamless(now)))
            }),
        }
    }

    /// Largest eager message that fits a datagram to it.
    pub fn small_bytes_max(&self) -> usize {
        let room =
            self.paths.iter().map(|x| x.datagrams.bytes_max() - PACKET_HEADER_BYTES - FRAME_HEADER_BYTES);
        room.min().unwrap_or(0)
    }

    pub fn new(id: PeerId, address: Address, is_self: bool, own_is_high: bool, now: Time) -> Self {
        let name = address.token.public_name();
        Self {
            id,
            address,
            keys: None,
            proved: false,
            session: None,
            name,
            is_self,
            own_is_high,
            wanted: false,
            unproven: false,
            gone: None,
            node: None,
            config_sent: false,
            config_acked: false,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            orders: Orders::default(),
            served: Served::default(),
            control: VecDeque::new(),
            resend: VecDeque::new(),
            small: VecDeque::new(),
            eager_bulk: OnDemand::default(),
            eager_bulk_bytes: 0,
            listed: false,
            resend_bulk: OnDemand::default(),
            bulk: OnDemand::default(),
            bulk_bytes: 0,
            paths: Vec::new(),
            primary: None,
            carriers: Vec::new(),
            carriers_for: 0,
            unsettled: false,
            turn: [0; 2],
            whole: OnDemand::default(),
            query: None,
            broken_at: None,
            ping_next: 1,
            probe_wish: 0,
            heard_at: now,
            engine_heard_at: now,
            partitioned_at: None,
            signs: OnDemand::default(),
            acceptance: OnDemand::default(),
            last_silence: Duration::ZERO,
            last_silence_end: now,
            dirty: Mark::default(),
            timer: Wakeup::default(),
            bytes_sent: 0,
            bytes_hedged: 0,
            goodbye_sent: false,
            goodbye_acked: false,
            goodbye_from: u64::MAX,
            goodbye_at: None,
            train_due: Mark::default(),
            train_turn: 0,
            doubts: Vec::new(),
            fences: Vec::new(),
        }
    }

    /// What its orders cost, as it was added up last.
    #[inline]
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// What its orders cost now.
    #[inline]
    pub fn served_now(&self) -> Served {
        let (kept, copied) = self.outgoing.serving();
        Served::new(kept, copied, self.incoming.waiting())
    }

    /// Adds up what its orders cost: before, and now.
    #[inline]
    pub fn account(&mut self) -> (Served, Served) {
        let now = self.served_now();
        (std::mem::replace(&mut self.served, now), now)
    }

    /// Gives back what empty queues and tables hold for more of what was in them: a process with thousands of peers talks to few
    /// at a time.
    pub fn rest(&mut self) {
        self.outgoing.rest();
        self.incoming.rest();
        self.orders.rest();
        give_back_list(&mut self.doubts);
        give_back_list(&mut self.fences);
        give_back(&mut self.control);
        give_back(&mut self.resend);
        give_back(&mut self.small);
        self.eager_bulk.rest();
        self.resend_bulk.rest();
        self.bulk.rest();
        self.whole.rest();
        self.signs.rest();
        self.acceptance.rest();
        self.paths.iter_mut().for_each(Path::rest);
    }

    /// Nothing that goes as a datagram waits: no item, and no acknowledgement that is due.
    pub fn is_quiet(&self, now: Time) -> bool {
        self.control.is_empty()
            && self.resend.is_empty()
            && self.small.is_empty()
            && !self.paths.iter().any(|x| x.acks_are_due(now) || x.old_acks_are_due(now))
    }

    /// Connection id of the packets to it.
    pub fn cid_out(&self) -> u64 {
        self.keys
            .as_ref()
            .expect("a path is connected after the handshake only, in which the keys became known")
            .cid_out
    }

    pub fn path_index(&self, id: PathId) -> Option<usize> {
        self.paths.iter().position(|p| p.id() == id)
    }

    /// Whether an item still has to arrive.
    pub fn needs(&self, item: &Item) -> bool {
        match *item {
            Item::Eager { seq } => self.outgoing.get(seq).is_some_and(TxMsg::is_eager),
            Item::Rts { seq } => self.outgoing.get(seq).is_some_and(TxMsg::is_announced),
            Item::Frag { seq, at, len } => {
                self.outgoing.get(seq).is_some_and(|m| m.needs(at, u64::from(len)))
            }
            Item::Cts { seq } | Item::Over { seq } => self.incoming.needs_grant(seq),
            Item::Refuse { seq } => self.incoming.needs_refusal(seq),
            Item::Reject { .. } | Item::Withdraw { .. } => true,
            Item::Verdict { path, epoch, .. } => {
                self.paths.iter().any(|p| p.id() == path && p.epoch() == epoch)
            }
            Item::Key { seq, .. } => self.incoming.receiving(seq).is_some(),
            Item::Fence { lane } => self.doubts.iter().any(|d| d.lane == lane),
            Item::Fenced { .. } | Item::Config | Item::Goodbye => true,
        }
    }

    /// What is given to a carrier of bulk for `item`: streams take whole fragments, datagrams what there is.
    pub fn as_carried(&mut self, item: Item, by: Carry) -> Item {
        match by {
            Carry::Streams => self.whole_fragment(item),
            Carry::Datagrams => item,
        }
    }

    /// The whole fragment that a piece belongs to: a stream carries nothing less, because the right to write into memory is
    /// given for a fragment. Other pieces of it that wait are taken along.
    fn whole_fragment(&mut self, item: Item) -> Item {
        let Item::Frag { seq, at, .. } = item else { return item };
        let Some(f) = self.outgoing.get(seq).and_then(TxMsg::fragments) else { return item };
        let (low, len) = f.whole(at);
        if let Some(waiting) = self.resend_bulk.awake_mut() {
            waiting.retain(
                |(i, _)| !matches!(i, Item::Frag { seq: s, at: a, .. } if *s == seq && f.whole(*a).0 == low),
            );
        }
        Item::Frag { seq, at: low, len: len as u32 }
    }

    /// Whether the peer may be waiting for something besides our goodbye: a grant, a refusal, an acknowledgement.
    pub fn is_owed(&self) -> bool {
        let matters = |i: &Item| !matches!(i, Item::Goodbye | Item::Verdict { .. } | Item::Config);
        self.control.iter().any(matters)
            || self.paths.iter().any(|x| {
                x.lanes().any(|(_, l)| l.acks().dues().next().is_some())
                    || x.lane.datagrams().iter().any(|s| s.items.as_slice().iter().any(matters))
            })
    }

    /// When the oldest question was put that is open on any path.
    pub fn oldest_question(&self) -> Option<Time> {
        self.paths.iter().filter_map(|x| x.evidence.open_since()).min()
    }

    /// Since when nothing that we ask has been answered on any path, if that is as long as a partition. What we hear all the same proves one
    /// direction only: all rails may be dark in ours.
    pub fn unanswered_since(&self, now: Time) -> Option<Time> {
        let mut since = None;
        for x in self.paths.iter().filter(|x| x.health().connected()) {
            since = since.max(Some(x.evidence.open_since()?));
        }
        since.filter(|&since| now.since(since) >= PARTITION)
    }

    /// Whether anything waits for this peer: it is worth asking after, and a partition matters.
    pub fn has_business(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.orders.is_idle()
            || self.incoming.receiving_count() > 0
            || !self.control.is_empty()
            || self.paths.iter().any(|p| !p.lane.datagrams().is_empty())
    }
}
