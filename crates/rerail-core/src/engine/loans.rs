//! Writes straight into a peer's memory, by rails whose adapter moves memory by itself.
//!
//! How it stays right: see `docs/loans.md`. In short: a fragment is written once; its notice follows on the same
//! stream; when a stream breaks on which fragments are unresolved, the peer is requested over another path to fence it,
//! and only its answer lets them go again; a source is given back when its own adapter has let go of it.

use super::deliver::Taken;
use crate::api::completion::CompletionError;
use crate::engine::Engine;
use crate::event::Witness;
use crate::lane::name::LaneName;
use crate::memory::grants::GRANT_PATIENCE;
use crate::memory::loans::{EndingReceive, EndingSend, LOAN_PATIENCE};
use crate::message::body::Body;
use crate::message::envelope::{Envelope, Role};
use crate::message::item::Item;
use crate::message::receiving::Piece;
use crate::message::target::{Landing, Target};
use crate::message::tx::TxMsg;
use crate::stream::{Payload, Phase};
use crate::types::*;
use rerail_wire::{FrameHeader, crc32c_append};
use smallvec::SmallVec;

/// A message of one fragment that is no longer than this goes as a copy: to copy it costs less than to register its memory, and to wait for that
/// (measured between guests: docs/notes/rdma.md).
const COPIED_BYTES_MAX: usize = 64 * 1024;
/// Fences of one peer that wait, or whose answer does: more than it has streams (invariant 7).
const FENCES_MAX: usize = 256;

impl Engine {
    /// How many writes may be under way on a stream of this rail; 0: its rail makes none.
    pub(crate) fn places_max(&self, rail: RailId) -> usize {
        usize::from(self.rails[rail].places_max)
    }

    // ---- the sender --------------------------------------------------------------------------------------------

    /// How a fragment is written by the adapter of a stream, if it can be, and the sum of its bytes.
    pub(crate) fn to_be_placed(
        &self,
        stream: StreamId,
        seq: u64,
        at: u64,
        len: u32,
        summed: bool,
    ) -> Option<(Payload, u32)> {
        let s = &self.streams[stream];
        let room = self.places_max(s.rail());
        if room == 0 || s.outbox().places() >= room {
            return None;
        }
        let (peer, name) = s.link()?;
        let p = &self.peers[peer];
        let m = p.outgoing.get(seq).filter(|m| is_steady(m))?;
        let key = m.key(name.path())?;
        let lane = p.path_index(name.path()).and_then(|index| p.paths[index].lane_of(name.lane()))?;
        if lane.placing().is_paused(self.clock.now()) && self.remedies.broken_writes_pause() {
            return None;
        }
        if m.was_copied(at) && self.remedies.fragments_are_placed_once() {
            return None;
        }
        let (mut pieces, mut crc) = (0, 0);
        m.body().pieces(at as usize, len as usize, |p, n| {
            pieces += 1;
            if summed {
                // SAFETY: the sender's memory is valid until the completion, which has not been reported.
                crc = crc32c_append(crc, unsafe { std::slice::from_raw_parts(p, n) });
            }
        });
        (pieces == 1).then_some((Payload::Placed { seq, at, len, key, work: None }, crc))
    }

    /// A fragment goes by a way on which the receiver's engine puts it into its place. A copy may arrive at any time and complete the message,
    /// and no adapter may be writing it then: it is not placed any more.
    pub(crate) fn goes_as_a_copy(&mut self, peer: PeerId, item: &Item) {
        if let (Item::Frag { seq, at, .. }, true) = (*item, self.rails.any_places()) {
            self.peers[peer].outgoing.set_copied(seq, at);
        }
    }

    /// The receiver's memory for a message may be written on a path.
    pub(crate) fn on_key(&mut self, peer: PeerId, f: &FrameHeader) -> Taken {
        let path = PathId(f.aux);
        let Some(index) = self.peers[peer].path_index(path) else { return Taken::Malformed };
        let whole = |m: &TxMsg| f.total <= m.envelope().total && m.envelope().role == Role::Message;
        match self.peers[peer].outgoing.get(f.seq) {
            Some(m) if !whole(m) => return Taken::Malformed,
            // only ours to use where our own rail writes
            Some(_) if self.places_max(self.peers[peer].paths[index].rail()) > 0 => {}
            _ => return Taken::Yes,
        }
        self.peers[peer].outgoing.set_key(f.seq, path, RemoteKey::of(f.a, f.b));
        Taken::Yes
    }

    /// A work is over: its memory is not read any more.
    pub fn placed(&mut self, work: WorkId, now: Time) {
        self.tick(now);
        let Some((stream, ended)) = self.loans.done(work) else { return };
        if let Some(s) = self.streams.get_mut(stream) {
            s.place_ended();
            self.mark_stream(stream);
        }
        if let Some((peer, send)) = ended {
            self.send_is_over(peer, send.seq, send.message, send.error);
        }
    }

    /// The adapter of a stream cannot read the sources of these writes, and nothing of them is lent: they go as copies, and for a while so
    /// does everything on this lane, because it costs a system call to find out. That is so too for the writes that wait behind them.
    pub fn unreadable(&mut self, stream: StreamId, places: &[Place], now: Time) {
        self.tick(now);
        let now = self.clock.now();
        for place in places {
            self.placed(place.work, now);
        }
        let Some(s) = self.streams.get_mut(stream) else { return };
        let mut items = Vec::new();
        s.take_unplaced(places, &mut items);
        let Some((peer, name)) = s.link() else { return };
        let index = self.peers[peer].path_index(name.path());
        if let Some(lane) = index.and_then(|index| self.peers[peer].paths[index].lane_of_mut(name.lane())) {
            lane.placing_mut().read_nothing(now);
        }
        for (item, hedged) in items {
            self.goes_as_a_copy(peer, &item);
            self.requeue_item(peer, item, hedged);
        }
        self.counters.pieces_placed -= places.len() as u64;
        self.counters.pieces_unreadable += places.len() as u64;
        // nothing was taken, and not for want of room
        self.stream_writable(stream);
        self.mark_streams(peer);
    }

    /// Whether an adapter still reads the memory of a message that is over.
    #[inline]
    pub(crate) fn is_read(&self, peer: PeerId, seq: u64) -> bool {
        self.loans.is_read(self.peers[peer].id(), seq) && self.remedies.sources_are_waited_for()
    }

    /// A send is over, and reported when no adapter reads its memory any more.
    pub(crate) fn defer_send(
        &mut self,
        peer: PeerId,
        seq: u64,
        message: TxMsg,
        error: Option<CompletionError>,
    ) {
        let (peer, since) = (self.peers[peer].id(), self.clock.now());
        self.loans.end_send(peer, EndingSend { seq, message, error, since });
        self.schedule(peer, since + LOAN_PATIENCE);
        if error.is_some() {
            self.recall(peer, seq);
        }
    }

    /// The memory of a send that is over is wanted back: what reads it is closed.
    pub(crate) fn recall(&mut self, peer: PeerId, seq: u64) {
        for stream in self.loans.readers(self.peers[peer].id(), seq) {
            // one that is being closed ends its loans when that is done
            if self.streams.get(stream).is_some_and(|s| s.phase() == Phase::Attached) {
                self.fail_stream(stream, Witness::Fence, true);
            }
        }
    }

    /// Recalls what has been over for too long; returns when it looks again.
    pub(crate) fn loan_timer(&mut self, peer: PeerId) -> Time {
        let (late, next) = self.loans.overdue(self.peers[peer].id(), self.clock.now());
        for seq in late {
            self.recall(peer, seq);
        }
        next.min(self.grant_timer(peer))
    }

    /// A stream is given up on which these items were written and are not acknowledged: they go again when its other end is fenced.
    pub(crate) fn doubt(&mut self, peer: PeerId, lane: LaneName, items: Vec<Item>) {
        let now = self.clock.now();
        let p = &mut self.peers[peer];
        if items.is_empty() || p.gone().is_some() {
            return;
        }
        // refused writes look like this, too
        let index = p.path_index(lane.path());
        if let Some(l) = index.and_then(|index| p.paths[index].lane_of_mut(lane.lane())) {
            l.placing_mut().breaks(now);
        }
        p.fences.doubt(lane, items);
        p.backlog.tell(Item::Fence { lane });
        let id = p.id();
        self.counters.fences_asked += 1;
        self.mark(id);
    }

    /// Nothing that was written on a stream reaches the peer's memory any more.
    pub(crate) fn on_fenced(&mut self, peer: PeerId, f: &FrameHeader) -> Taken {
        let Some(lane) = LaneName::of(f) else { return Taken::Malformed };
        let Some(items) = self.peers[peer].fences.take_doubt(lane) else { return Taken::Yes };
        for item in items {
            // its notice may have come, and the message be over: then nothing may write there, however soon the region is closed (seed 1109)
            self.goes_as_a_copy(peer, &item);
            self.requeue_item(peer, item, false);
        }
        self.mark_streams(self.peers[peer].id());
        self.mark(self.peers[peer].id());
        Taken::Yes
    }

    // ---- the receiver ------------------------------------------------------------------------------------------

    /// Whether an adapter may still write what a stream carried.
    pub(crate) fn is_placing(&self, stream: StreamId) -> bool {
        self.streams[stream].is_placing()
    }

    /// Lets the peer's adapters write into the memory of a message that was granted. Returns whether the grant should wait for a key.
    pub(crate) fn lend_target(&mut self, peer: PeerId, seq: u64) -> bool {
        let p = &self.peers[peer];
        let Some(m) = p.incoming.get(seq) else { return false };
        let Some(r) = m.receiving() else { return false };
        let target = r.target();
        let ([memory], Landing::Receive, Role::Message) =
            (target.iov.as_slice(), &target.landing, m.envelope().role)
        else {
            return false;
        };
        // steps of collective operations go into memory of ours that ends with its group
        if target.protocol == Protocol::Collective {
            return false;
        }
        let memory = IoVec { ptr: memory.ptr, len: r.granted() as usize };
        if memory.len <= (m.envelope().granule as usize).min(COPIED_BYTES_MAX) {
            return false;
        }
        let (peer, now) = (p.id(), self.clock.now());
        let mut waits = false;
        #[cfg(feature = "planted-bugs")]
        if !self.remedies.keys_are_used_once() {
            self.loans.use_names_again();
        }
        for path in &p.paths {
            if self.rails[path.rail()].places_max == 0 || !path.has_stream() {
                continue;
            }
            let region = self.loans.offer(peer, seq, path.id());
            self.output.act(Action::Register { rail: path.rail(), region, memory });
            waits |= self.grants.waits_for(path.rail(), now);
        }
        waits
    }

    /// The grant of a message is to wait for its keys.
    pub(crate) fn hold_grant(&mut self, peer: PeerId, seq: u64) {
        let now = self.clock.now();
        self.grants.hold(peer, seq, now);
        self.schedule(peer, now + GRANT_PATIENCE);
    }

    /// The rails that have not registered the memory of a message yet.
    fn unregistered(&self, peer: PeerId, seq: u64) -> impl Iterator<Item = RailId> {
        let p = &self.peers[peer];
        let rail = |path| p.path_index(path).map(|index| p.paths[index].rail());
        self.loans.unregistered(p.id(), seq).filter_map(rail)
    }

    /// Sends the grants whose keys do not come; returns when it looks again.
    fn grant_timer(&mut self, peer: PeerId) -> Time {
        let (late, next) = self.grants.overdue(self.peers[peer].id(), self.clock.now());
        let now = self.clock.now();
        for seq in late {
            let rails: SmallVec<[RailId; 2]> = self.unregistered(peer, seq).collect();
            rails.into_iter().for_each(|rail| self.grants.pause(rail, now));
            self.peers[peer].backlog.tell(Item::Cts { seq });
            self.mark(peer);
        }
        next
    }

    /// A region can be written by peers that know the key.
    pub fn registered(&mut self, region: MemId, key: RemoteKey, now: Time) {
        self.tick(now);
        let Some((peer, seq, path)) = self.loans.registered(region) else { return };
        let p = &mut self.peers[peer];
        if p.gone().is_none() {
            p.backlog.tell(Item::Key { seq, path, key });
            let now = self.clock.now();
            let waits = self.unregistered(peer, seq).any(|rail| self.grants.waits_for(rail, now));
            if !waits && self.grants.release(peer, seq) {
                self.peers[peer].backlog.tell(Item::Cts { seq });
            }
            self.mark(peer);
        }
    }

    /// The memory of a message that is over is lent no more. Whether something may still write into it.
    pub(crate) fn take_back(&mut self, peer: PeerId, seq: u64) -> bool {
        self.grants.release(self.peers[peer].id(), seq);
        let (regions, known) = self.loans.take_back(self.peers[peer].id(), seq);
        for region in regions {
            self.output.act(Action::Invalidate { region });
        }
        known && self.remedies.targets_are_waited_for()
    }

    /// A receive has failed, or its endpoint is closed. False: something may still write into its memory, and it is reported when that ends.
    pub(crate) fn defer_receive(
        &mut self,
        peer: PeerId,
        seq: u64,
        envelope: &Envelope,
        target: &Target,
        error: Option<CompletionError>,
    ) -> bool {
        if !self.take_back(peer, seq) {
            return false;
        }
        let receive = EndingReceive { envelope: *envelope, target: target.clone(), error };
        self.loans.end_receive(self.peers[peer].id(), seq, receive);
        true
    }

    /// Nothing writes into a region any more.
    pub fn invalidated(&mut self, region: MemId, now: Time) {
        self.tick(now);
        let Some((peer, r)) = self.loans.invalidated(region) else { return };
        if let Some(error) = r.error {
            self.receive_failed(peer, &r.envelope, r.target, error);
        }
    }

    /// The bytes of a fragment are in our memory: the frame that reports it came on the stream of the adapter that
    /// wrote them.
    pub(crate) fn on_placed(&mut self, stream: StreamId, f: &FrameHeader, summed: bool) -> Taken {
        let Some((peer, path)) = self.streams[stream].peer() else { return Taken::Malformed };
        if let Some(index) = self.peers[peer].path_index(path) {
            self.heard(peer, index);
        }
        let p = &mut self.peers[peer];
        let Some(r) = p.incoming.receiving_mut(f.seq) else {
            self.counters.duplicates += 1;
            return if p.incoming.is_past(f.seq) { Taken::Yes } else { Taken::Malformed };
        };
        if !self.loans.is_lent(peer, f.seq, path) {
            // without a key nothing can have been written
            return Taken::Malformed;
        }
        let frag = match r.whole_piece(f.a, f.total) {
            Piece::Malformed => return Taken::Malformed,
            Piece::Duplicate => {
                self.counters.duplicates += 1;
                return Taken::Yes;
            }
            Piece::Wanted { frag } => frag,
        };
        let mut crc = 0;
        if summed {
            r.target().iov.pieces(f.a as usize, f.total as usize, |p, n| {
                // SAFETY: the poster's memory is valid until the completion, which has not been reported; the write is over.
                crc = crc32c_append(crc, unsafe { std::slice::from_raw_parts(p, n) });
            });
        }
        if summed && crc != f.x && self.remedies.payload_is_checked() {
            self.corrupt_stream(stream);
            return Taken::No;
        }
        self.counters.bytes_placed += f.total;
        self.fragment_is_there(peer, f.seq, frag);
        Taken::Yes
    }

    /// The peer requests a confirmation that nothing which it wrote on a stream reaches our memory any more.
    pub(crate) fn on_fence(&mut self, peer: PeerId, f: &FrameHeader) -> Taken {
        let Some(lane) = LaneName::of(f) else { return Taken::Malformed };
        let p = &self.peers[peer];
        let Some(index) = p.path_index(lane.path()) else { return Taken::Malformed };
        let unsent = p.backlog.control().filter(|i| matches!(i, Item::Fenced { .. })).count();
        if p.fences.asked() + unsent >= FENCES_MAX {
            return Taken::No;
        }
        self.peers[peer].fences.ask(lane);
        let path = &self.peers[peer].paths[index];
        let is_it = |s: &StreamId| self.streams[*s].name() == Some(lane);
        let attached = path.streams().find(is_it);
        let attempted = path.lanes().flat_map(|(_, l)| l.connection().attempts()).copied().find(is_it);
        if let Some(s) = attached {
            self.fail_stream(s, Witness::Peer, true);
        } else if let Some(s) = attempted {
            // the accept that would show that the peer had attached it is lost or still to come
            self.close_attempt(peer, index, s);
        }
        self.answer_fences(peer);
        Taken::Yes
    }

    /// Reports to the peer which of the streams that it requested to be fenced are closed now.
    pub(crate) fn answer_fences(&mut self, peer: PeerId) {
        let p = &mut self.peers[peer];
        if p.fences.asked() == 0 {
            return;
        }
        let (id, streams, at_once) = (p.id(), &self.streams, !self.remedies.fences_are_waited_for());
        let closed = p.fences.take_closed(|lane| {
            let open = streams.iter().any(|s| {
                s.link() == Some((id, lane)) && matches!(s.phase(), Phase::Attached | Phase::Closing)
            });
            !open || at_once
        });
        if !closed.is_empty() {
            closed.into_iter().for_each(|lane| p.backlog.tell(Item::Fenced { lane }));
            self.mark(id);
        }
    }

    /// Whether memory of operations that are over may still be touched by an adapter: of endpoint `ep`, or of any. Progress ends that.
    pub fn lends(&self, ep: Option<EpId>) -> bool {
        self.loans.is_ending(ep)
    }

    /// Loans that are open: writes that are under way, and regions that peers may write.
    pub fn loan_counts(&self) -> (usize, usize) {
        self.loans.count()
    }
}

/// Whether the bytes of a message stay what and where they are until it is over, so that an adapter may read them at any time.
fn is_steady(m: &TxMsg) -> bool {
    m.envelope().role == Role::Message && matches!(m.body(), Body::User(_))
}
