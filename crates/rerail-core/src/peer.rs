//! One peer process: message sequences, queues, memory held for it, paths to it.
//!
//! Owns: what waits to be sent, the paths, and what is known of the process. Its messages and one-sided operations are parts of their own
//! ([`Outgoing`], [`Incoming`], [`Orders`]).

pub(crate) mod backlog;
mod carriers;
mod credentials;
mod farewell;
mod fences;
mod hearing;
pub(crate) mod questions;
pub(crate) mod signs;
pub(crate) mod turns;

use crate::api::completion::CompletionError;
use crate::health::Health;
use crate::marks::Mark;
use crate::memory::orders::Orders;
use crate::memory::served::Served;
use crate::message::incoming::Incoming;
use crate::message::item::Item;
use crate::message::outgoing::Outgoing;
use crate::message::tx::TxMsg;
use crate::node::{FarRail, Node};
use crate::options::BulkMode;
use crate::path::{Carry, Path};
use crate::rest::OnDemand;
use crate::timers::Wakeup;
use crate::types::{PathId, PeerId, Time, ms};
use backlog::Backlog;
use carriers::Carriers;
use credentials::Credentials;
use farewell::Farewell;
use fences::Fences;
use hearing::Hearing;
use questions::Questions;
use rerail_wire::Address;
use rerail_wire::frame::FRAME_HEADER_BYTES;
use rerail_wire::packet::PACKET_HEADER_BYTES;
use signs::{Acceptance, Signs};
use std::time::Duration;
use turns::Turns;

/// Silence of a peer that something waits for, until it is called a partition.
pub(crate) const PARTITION: Duration = ms(1000);
/// Bytes that may go out a second time whatever else went out.
const HEDGE_FREE: u64 = 1 << 20;

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
    /// A verdict on an incarnation, which nothing that arrives can change (hazard H7). A peer that said goodbye may
    /// come back for its acknowledgement.
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

#[derive(Clone)]
pub(crate) struct Peer {
    id: PeerId,
    address: Address,
    name: u32,
    is_self: bool,
    own_is_high: bool,
    /// Something was posted to it, or it connected to us.
    wanted: bool,
    /// Known only from a hello, which may be a replay: only the answer to it is sent to its addresses.
    unproven: bool,
    gone: Option<Gone>,
    node: Option<Node>,
    config_sent: bool,
    config_acked: bool,
    /// A path broke, and nothing protects what was on it.
    broken_at: Option<Time>,
    /// What its orders cost, as it was added up last.
    served: Served,
    /// It is among those because of which streams are polled (`engine/expect`).
    listed: bool,
    primary: Option<usize>,
    bytes_sent: u64,
    bytes_hedged: u64,

    pub credentials: Credentials,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    pub orders: Orders,
    pub backlog: Backlog,
    pub paths: Box<[Path]>,
    pub carriers: Carriers,
    pub turns: Turns,
    pub questions: Questions,
    pub hearing: Hearing,
    pub signs: OnDemand<Signs>,
    pub acceptance: OnDemand<Acceptance>,
    pub farewell: Farewell,
    pub fences: Fences,
    /// A datagram may be built for it.
    pub dirty: Mark,
    /// Trains of bulk datagrams may be due.
    pub train_due: Mark,
    /// When it is called next.
    pub timer: Wakeup,
}

impl Peer {
    /// Bulk of it is expected to arrive, or waits to go out.
    pub fn has_bulk(&self) -> bool {
        self.incoming.receiving_count() > 0 || self.backlog.has_new_bulk()
    }

    /// Which rail of the peer a path leads to, in the order of its address.
    pub fn far_rail(&self, path: &Path) -> usize {
        usize::from(if self.own_is_high { path.id().0 >> 8 } else { path.id().0 & 0xff })
    }

    /// What the peer has reported about that rail.
    pub fn far(&self, path: &Path) -> Option<&FarRail> {
        self.node.as_ref()?.rail(self.far_rail(path))
    }

    /// What would carry the bulk of a path, whatever its health.
    pub fn carry(&self, path: &Path, mode: BulkMode, now: Time) -> Option<Carry> {
        let stream = path.has_stream().then_some(Carry::Streams);
        let datagrams = |wanted: bool| (wanted && path.datagrams_usable()).then_some(Carry::Datagrams);
        let barred = path.datagrams.bulk_barred();
        // a path on which they vanish, and that has no stream, leaves bulk to the others if there are any
        let elsewhere = || {
            let carries = |o: &Path| o.health() == Health::Up && (o.has_stream() || o.passes_bulk());
            self.paths.iter().any(|o| o.id() != path.id() && carries(o))
        };
        match mode {
            _ if barred && stream.is_none() && elsewhere() => None,
            BulkMode::Udp => datagrams(!barred).or(stream).or_else(|| datagrams(true)),
            BulkMode::Auto => stream.or_else(|| datagrams(path.is_streamless(now))),
            BulkMode::Tcp => stream.or_else(|| {
                datagrams(
                    self.paths
                        .iter()
                        .filter(|path| path.health().carries())
                        .all(|path| path.is_streamless(now)),
                )
            }),
        }
    }

    /// Largest eager message that fits a datagram to it.
    pub fn small_bytes_max(&self) -> usize {
        let room = self
            .paths
            .iter()
            .map(|path| path.datagrams.bytes_max() - PACKET_HEADER_BYTES - FRAME_HEADER_BYTES);
        room.min().unwrap_or(0)
    }

    pub fn new(id: PeerId, address: Address, is_self: bool, own_is_high: bool, now: Time) -> Self {
        Self {
            id,
            name: address.token.public_name(),
            address,
            is_self,
            own_is_high,
            wanted: false,
            unproven: false,
            gone: None,
            node: None,
            config_sent: false,
            config_acked: false,
            broken_at: None,
            served: Served::default(),
            listed: false,
            primary: None,
            bytes_sent: 0,
            bytes_hedged: 0,
            credentials: Credentials::default(),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            orders: Orders::default(),
            backlog: Backlog::default(),
            paths: Box::default(),
            carriers: Carriers::default(),
            turns: Turns::default(),
            questions: Questions::new(),
            hearing: Hearing::new(now),
            signs: OnDemand::default(),
            acceptance: OnDemand::default(),
            farewell: Farewell::default(),
            fences: Fences::default(),
            dirty: Mark::default(),
            train_due: Mark::default(),
            timer: Wakeup::default(),
        }
    }

    // ---- identity ----------------------------------------------------------------------------------------------

    /// Its number in this process.
    #[inline]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Where it is, and its token.
    #[inline]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it is called in messages.
    pub fn name(&self) -> u32 {
        self.name
    }

    /// Whether it is this process itself.
    #[inline]
    pub fn is_self(&self) -> bool {
        self.is_self
    }

    /// Whether our token is the higher of the two.
    #[inline]
    pub fn own_is_high(&self) -> bool {
        self.own_is_high
    }

    /// The paths to it, once they are known.
    pub fn set_paths(&mut self, paths: Box<[Path]>) {
        self.paths = paths;
    }

    /// It has one more path.
    pub fn add_path(&mut self, path: Path) {
        let mut paths = std::mem::take(&mut self.paths).into_vec();
        paths.push(path);
        self.paths = paths.into();
    }

    // ---- how far it is known -----------------------------------------------------------------------------------

    /// Something is posted to it, or it connected to us. Returns whether that is news.
    pub fn want(&mut self, now: Time) -> bool {
        if self.wanted || self.is_self {
            return false;
        }
        self.wanted = true;
        self.hearing.begin(now);
        true
    }

    /// Whether something was.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// It becomes known, from a hello only.
    pub fn meet_by_hello(&mut self) {
        self.unproven = true;
    }

    /// Whether it is known from a hello only.
    #[inline]
    pub fn is_unproven(&self) -> bool {
        self.unproven
    }

    /// Its address is confirmed. Returns whether that is news.
    pub fn confirm(&mut self) -> bool {
        std::mem::take(&mut self.unproven)
    }

    /// Why it is out of reach for good, if it is.
    #[inline]
    pub fn gone(&self) -> Option<Gone> {
        self.gone
    }

    /// It is out of reach for good.
    pub fn goes(&mut self, why: Gone) {
        self.gone = Some(why);
    }

    /// What it has reported about its node.
    #[inline]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// It reports its node.
    pub fn tells(&mut self, node: Node) {
        self.node = Some(node);
    }

    /// Our node is reported to it. Returns whether that is news.
    pub fn begin_telling(&mut self) -> bool {
        !std::mem::replace(&mut self.config_sent, true)
    }

    /// It has acknowledged our node.
    pub fn config_acked(&mut self) {
        self.config_acked = true;
    }

    /// Whether it has acknowledged our node.
    #[inline]
    pub fn has_config(&self) -> bool {
        self.config_acked
    }

    // ---- what is sent ------------------------------------------------------------------------------------------

    /// The path on which small messages, and those below the striping threshold, go.
    #[inline]
    pub fn primary(&self) -> Option<usize> {
        self.primary
    }

    /// From now on they go there.
    pub fn prefers(&mut self, path: Option<usize>) {
        self.primary = path;
    }

    /// So many bytes went out to it.
    #[inline]
    pub fn sent(&mut self, bytes: u64) {
        self.bytes_sent += bytes;
    }

    /// Of these so many did not.
    pub fn not_sent(&mut self, bytes: u64) {
        self.bytes_sent -= bytes;
    }

    /// So many bytes go out a second time.
    pub fn hedged(&mut self, bytes: u64) {
        self.bytes_hedged += bytes;
    }

    /// Bytes that may still go out a second time, when that is `percent` of what went out.
    pub fn hedge_budget(&self, percent: u64) -> u64 {
        (self.bytes_sent * percent / 100 + HEDGE_FREE).saturating_sub(self.bytes_hedged)
    }

    /// A path or a stream breaks, and nothing protects what was on it. Returns whether that is the first.
    pub fn breaks(&mut self, now: Time) -> bool {
        let first = self.broken_at.is_none();
        self.broken_at.get_or_insert(now);
        first
    }

    /// When the first did.
    pub fn broken_at(&self) -> Option<Time> {
        self.broken_at
    }

    /// Streams are polled because of it from now on. Returns whether that is news.
    #[inline]
    pub fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    /// Whether streams still have to be polled because of it.
    pub fn stays_listed(&mut self) -> bool {
        self.listed = self.has_bulk();
        self.listed
    }

    /// Whether it is among those because of which streams are polled.
    pub fn is_listed(&self) -> bool {
        self.listed
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

    /// Frees what empty queues and tables hold for more of what was in them: a process with thousands of peers
    /// exchanges data with few at a time.
    pub fn rest(&mut self) {
        self.outgoing.rest();
        self.incoming.rest();
        self.orders.rest();
        self.fences.rest();
        self.backlog.rest();
        self.turns.rest();
        self.signs.rest();
        self.acceptance.rest();
        self.paths.iter_mut().for_each(Path::rest);
    }

    /// Nothing that goes as a datagram waits: no item, and no acknowledgement that is due.
    #[inline]
    pub fn is_quiet(&self, now: Time) -> bool {
        !self.backlog.has_control()
            && !self.backlog.has_small()
            && !self.paths.iter().any(|path| path.acks_are_due(now) || path.old_acks_are_due(now))
    }

    /// Connection id of the packets to it.
    pub fn cid_out(&self) -> u64 {
        self.credentials
            .keys()
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
            Item::Fence { lane } => self.fences.is_in_doubt(lane),
            Item::Leave { lane } | Item::Left { lane } => {
                self.paths.iter().any(|p| p.id() == lane.path() && p.has_stream_of(lane))
            }
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
        self.backlog.take_along(seq, |at| f.whole(at).0 == low);
        Item::Frag { seq, at: low, len: len as u32 }
    }

    /// Whether the peer may be waiting for something besides our goodbye: a grant, a refusal, an acknowledgement.
    pub fn is_owed(&self) -> bool {
        let matters = |i: &Item| !matches!(i, Item::Goodbye | Item::Verdict { .. } | Item::Config);
        self.backlog.control().any(matters)
            || self.paths.iter().any(|path| {
                path.lanes().any(|(_, l)| l.acks().dues().next().is_some())
                    || path.lane.datagrams().iter().any(|s| s.items().iter().any(matters))
            })
    }

    /// When the oldest query that is open on any path was sent.
    pub fn oldest_question(&self) -> Option<Time> {
        self.paths.iter().filter_map(|path| path.evidence.open_since()).min()
    }

    /// Since when no query has been answered on any path, if that is as long as a partition. What still arrives proves
    /// one direction only: all rails may be dark in the other.
    pub fn unanswered_since(&self, now: Time) -> Option<Time> {
        let mut since = None;
        for path in self.paths.iter().filter(|path| path.health().connected()) {
            since = since.max(Some(path.evidence.open_since()?));
        }
        since.filter(|&since| now.since(since) >= PARTITION)
    }

    /// Whether anything waits for this peer: then it is queried, and a partition matters.
    pub fn has_business(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.orders.is_idle()
            || self.incoming.receiving_count() > 0
            || self.backlog.has_control()
            || self.paths.iter().any(|p| !p.lane.datagrams().is_empty())
    }
}
