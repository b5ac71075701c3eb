//! One stream connection: frames being written and read, piece by piece.
//!
//! Owns: its phase, its peer and lane, and its parts: what it takes to open it ([`Opening`]), what is being read ([`Reader`]), frames that are
//! not written in full ([`Outbox`]), and records of those that are not acknowledged ([`Flight`]). Opening and reading have memory only as long as they
//! last: an idle stream needs neither. Partial writes and reads are events here, so that the simulator sees half-written and half-read frames
//! (hazards H1, H2). Invariants: what is attached belongs to a lane; what is being closed has nothing to write and nothing in flight.

mod alternate;
mod flight;
mod frame;
mod opening;
mod outbox;
mod reader;
pub(crate) mod route;
mod standstill;

pub(crate) use alternate::Loaded;
pub(crate) use flight::{Flight, StreamNews};
pub(crate) use frame::{Payload, TxFrame};
pub(crate) use opening::Opening;
pub(crate) use reader::{Place, Reader, Reading, SpareBuffers};

use crate::lane::name::LaneName;
use crate::lane::sent::Sent;
use crate::marks::Mark;
use crate::message::body::Body;
use crate::message::item::Item;
use crate::output::Output;
use crate::rest::OnDemand;
use crate::types::{
    Epoch, FarKernel, LaneId, Locator, PathId, PeerId, RailId, StreamId, Time, Window, WorkId,
};
use alternate::Alternate;
use frame::Written;
use outbox::Outbox;
use rerail_wire::{Coverage, FrameHeader};
use route::Route;
use standstill::Standstill;
use std::time::Duration;

/// Bytes that the kernel takes are progress for this long after the last acknowledgement; later it may only be filling its buffer.
const WRITE_IS_PROGRESS: Duration = Duration::from_millis(1);

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// We connect; nothing is sent yet.
    Connecting,
    /// Our hello is sent; the accept is awaited.
    HelloSent,
    /// A stranger connected; its hello is awaited.
    Stranger,
    /// Attached to a path: frames flow.
    Attached,
    /// To be closed; nothing is read or written any more.
    Closing,
}

/// The peer and the lane of a connection. Smaller than an `Option` of the pair, and every path of every peer has one.
#[derive(Debug, Clone, Copy)]
enum Link {
    Unknown,
    /// The peer, and the name of the stream, as both sides use it: of one that we open from the beginning, because the peer may write on it
    /// before we know that it is attached.
    Known(PeerId, LaneName),
}

/// See above.
#[derive(Clone)]
pub(crate) struct Stream {
    rail: RailId,
    phase: Phase,
    link: Link,
    opening: OnDemand<Opening>,
    reader: OnDemand<Reader>,
    outbox: Outbox,
    flight: Flight,
    /// It may have something to write.
    queued: Mark,
    /// It stands still, and the kernel's reports on it are requested.
    standstill: Option<Box<Standstill>>,
    route: Route,
    /// This process opened it.
    ours: bool,
    alternate: Alternate,
}

impl Stream {
    fn new(rail: RailId, phase: Phase, opening: Opening, now: Time) -> Self {
        let mut s = Self {
            rail,
            phase,
            link: Link::Unknown,
            opening: OnDemand::default(),
            reader: OnDemand::default(),
            outbox: Outbox::new(now),
            flight: Flight::new(now),
            queued: Mark::default(),
            standstill: None,
            route: Route::default(),
            ours: phase == Phase::Connecting,
            alternate: Alternate::default(),
        };
        *s.opening = opening;
        *s.reader = Reader::handshake();
        s
    }

    // ---- its life ----------------------------------------------------------------------------------------------

    /// A connection that came in.
    pub fn stranger(rail: RailId, from: Locator, now: Time) -> Self {
        Self::new(rail, Phase::Stranger, Opening::stranger(from), now)
    }

    /// A connection that we open for a lane: it sends `hello`, whose answer has its nonce and comes before the
    /// deadline.
    pub fn attempt(
        rail: RailId,
        to: Locator,
        (peer, name): (PeerId, LaneName),
        nonce: [u8; 16],
        hello: Vec<u8>,
        deadline: Time,
        now: Time,
    ) -> Self {
        let opening = Opening::hello(to, nonce, hello, deadline);
        Self { link: Link::Known(peer, name), ..Self::new(rail, Phase::Connecting, opening, now) }
    }

    /// A connection that only shows whether the kernel of `peer` accepts it.
    pub fn question(rail: RailId, to: Locator, peer: PeerId, now: Time) -> Self {
        Self::new(rail, Phase::Connecting, Opening::question(to, peer), now)
    }

    /// The rail of its path. Its adapter may lead it over another one ([`Stream::alternate`]).
    #[inline]
    pub fn rail(&self) -> RailId {
        self.rail
    }

    /// Whether this process opened it.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// What its adapter has loaded, and where it leads it.
    pub fn alternate(&self) -> &Alternate {
        &self.alternate
    }

    pub fn alternate_mut(&mut self) -> &mut Alternate {
        &mut self.alternate
    }

    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The peer and the path that it belongs to, once they are known.
    #[inline]
    pub fn peer(&self) -> Option<(PeerId, PathId)> {
        self.link().map(|(peer, name)| (peer, name.path()))
    }

    /// The same, with its name.
    #[inline]
    pub fn link(&self) -> Option<(PeerId, LaneName)> {
        match self.link {
            Link::Known(peer, name) => Some((peer, name)),
            Link::Unknown => None,
        }
    }

    #[inline]
    pub fn name(&self) -> Option<LaneName> {
        self.link().map(|(_, name)| name)
    }

    /// The lane that it is for; the first, as long as that is not known.
    #[inline]
    pub fn lane(&self) -> LaneId {
        self.name().map_or(LaneId::FIRST, LaneName::lane)
    }

    /// The kernel has connected it: our hello goes, and has an answer until then. False: it was connected before.
    pub fn connected(&mut self, deadline: Time) -> bool {
        let connects = self.phase == Phase::Connecting;
        if connects {
            self.phase = Phase::HelloSent;
            self.opening.connects(deadline);
        }
        connects
    }

    /// A stranger has named its peer and lane: it is answered with `accept`.
    pub fn introduce(&mut self, peer: PeerId, name: LaneName, accept: Vec<u8>) {
        self.link = Link::Known(peer, name);
        self.opening.answer(accept);
    }

    /// Its hello is answered, once. False: it was before.
    pub fn answer(&mut self, words: Vec<u8>) -> bool {
        let speaks = !self.opening.has_spoken();
        if speaks {
            self.opening.answer(words);
        }
        speaks
    }

    /// Frames flow from now on, in the present epoch of its path. Returns its name.
    pub fn attach(&mut self, epoch: Epoch, now: Time) -> LaneName {
        let (peer, name) = self.link().expect("what is attached belongs to a lane");
        let name = name.in_epoch(epoch);
        self.link = Link::Known(peer, name);
        self.phase = Phase::Attached;
        self.reader.frames_follow();
        self.opening.succeeds();
        self.flight.begins(now);
        self.outbox.begins(now);
        name
    }

    /// Nothing is read or written any more. False: that was so before.
    pub fn begin_closing(&mut self) -> bool {
        if self.phase == Phase::Closing {
            return false;
        }
        self.phase = Phase::Closing;
        self.outbox.clear();
        self.flight.clear();
        true
    }

    /// Something is expected of it: room, acknowledgements, or the end of its opening or of its closing.
    pub fn is_busy(&self) -> bool {
        self.outbox.is_full() || self.waits() || self.phase != Phase::Attached
    }

    /// Whether something on it waits for the other side: for an acknowledgement, or for room. What was sent counts even when it has no
    /// payload, as a grant: it would wait for TCP's back-off otherwise, which outlasts the fault by far.
    pub fn waits(&self) -> bool {
        !self.flight.is_empty() || (self.outbox.is_full() && !self.outbox.is_empty())
    }

    /// Whether something is under way on it: frames that are not acknowledged, or writes of its adapter.
    pub fn has_under_way(&self) -> bool {
        self.waits() || self.is_placing()
    }

    /// Gives back what nothing needs while the other side is silent.
    pub fn rest(&mut self) {
        self.outbox.rest();
        self.flight.rest();
        self.reader.rest();
        if !self.waits() {
            self.standstill = None;
        }
        if self.phase == Phase::Attached && !self.has_preamble() {
            self.opening = OnDemand::default();
        }
    }

    // ---- its hello or accept -----------------------------------------------------------------------------------

    #[inline]
    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// Whether something is to be written before any frame.
    #[inline]
    pub fn has_preamble(&self) -> bool {
        !self.opening.preamble().is_empty()
    }

    /// The kernel took so many bytes of that. False: not all of it.
    pub fn wrote_preamble(&mut self, bytes: usize) -> bool {
        self.opening.wrote(bytes);
        let all = !self.has_preamble();
        self.outbox.wrote_preamble(all);
        all
    }

    // ---- frames going out --------------------------------------------------------------------------------------

    /// Appends a frame that is to be written.
    pub fn push(
        &mut self,
        h: &FrameHeader,
        coverage: Coverage,
        item: Option<Item>,
        payload: Payload,
        hedged: bool,
    ) {
        self.outbox.push(h, coverage, item, payload, hedged);
    }

    #[inline]
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// See [`Outbox::settle`].
    #[inline]
    pub fn settle(&mut self, needs: impl Fn(&Item) -> bool, is_gone: impl Fn(u64) -> bool) {
        self.outbox.settle(needs, is_gone);
    }

    /// See [`Outbox::offer`].
    #[inline]
    pub fn offer<'a>(
        &mut self,
        window: &mut Window,
        body: impl Fn(u64) -> &'a Body,
        lend: impl FnMut(u64) -> WorkId,
    ) -> bool {
        self.outbox.offer(window, body, lend)
    }

    /// The kernel took `bytes` of the window. Returns those of payload whose frame is written in full; `delivered` is what was on frames without
    /// protection.
    #[inline]
    pub fn wrote(&mut self, bytes: usize, now: Time, delivered: &mut Vec<Item>) -> u64 {
        let (mut sent, flight) = (0, &mut self.flight);
        if bytes > 0 {
            flight.writes(now);
        }
        self.outbox.wrote(bytes, now, |frame| match frame.end(now) {
            Written::Recorded(record) => {
                sent += u64::from(record.bytes());
                flight.add(record);
            }
            Written::Unprotected(bytes, item) => {
                sent += bytes;
                delivered.extend(item);
            }
            Written::Nothing => {}
        });
        sent
    }

    /// The kernel takes bytes again.
    pub fn becomes_writable(&mut self) {
        self.outbox.becomes_writable();
    }

    /// A write of an adapter is over.
    pub fn place_ended(&mut self) {
        self.outbox.place_ended();
    }

    /// Whether an adapter may still write what it carried.
    pub fn is_placing(&self) -> bool {
        self.outbox.lent() > 0 || self.flight.is_placed()
    }

    /// It may have something to write.
    #[inline]
    pub fn mark(&mut self, id: StreamId, output: &mut Output) {
        if !self.outbox.is_full() {
            output.stream_is_due(id, &mut self.queued);
        }
    }

    /// It is the first of the writable ones, and leaves the queue.
    #[inline]
    pub fn take_turn(&mut self, output: &mut Output) {
        output.stream_is_taken(&mut self.queued);
    }

    // ---- frames that are not acknowledged ----------------------------------------------------------------------

    #[inline]
    pub fn flight(&self) -> &Flight {
        &self.flight
    }

    /// Bytes that are not written, or not acknowledged.
    #[inline]
    pub fn backlog(&self) -> u64 {
        self.flight.bytes() + self.outbox.bytes() as u64
    }

    /// See [`Flight::acknowledged`].
    pub fn acknowledged(
        &mut self,
        ranges: &[(u64, u64)],
        largest: u64,
        copies_count: bool,
        now: Time,
    ) -> StreamNews {
        self.flight.acknowledged(ranges, largest, copies_count, now)
    }

    /// Whether an item is on its way here.
    pub fn carries(&self, item: &Item) -> bool {
        self.flight.carries(item) || self.outbox.carries(item)
    }

    /// What of the written frames the budget allows goes over another path too.
    pub fn hedge_flight(&mut self, budget: &mut u64, copies: &mut Vec<Item>) {
        self.flight.hedge(budget, copies);
    }

    /// See [`Outbox::hedge`].
    pub fn hedge_outbox(&mut self, budget: &mut u64, moved: &mut Vec<(Item, bool)>, copies: &mut Vec<Item>) {
        self.outbox.hedge(budget, moved, copies);
    }

    /// See [`Outbox::take_unplaced`].
    pub fn take_unplaced(&mut self, works: &[crate::types::Place], items: &mut Vec<(Item, bool)>) {
        self.outbox.take_unplaced(works, items);
    }

    /// Takes out what is not acknowledged, and what is not written.
    pub fn take_all(&mut self) -> (Vec<Sent>, Vec<TxFrame>) {
        (self.flight.take_all(), self.outbox.take_all())
    }

    // ---- standing still ----------------------------------------------------------------------------------------

    /// When it last made progress: something was acknowledged, or the kernel took bytes soon after that.
    pub fn progress(&self) -> Time {
        let acked = self.flight.progress_at();
        acked.max(self.outbox.written_at().min(acked + WRITE_IS_PROGRESS))
    }

    /// Whether its route carries.
    pub fn route(&self) -> &Route {
        &self.route
    }

    pub fn route_mut(&mut self) -> &mut Route {
        &mut self.route
    }

    /// It stands still since then, longer than it may: the kernel's report is requested.
    pub fn inspect(&mut self, since: Time, patience: Duration) {
        match &mut self.standstill {
            Some(standstill) => standstill.goes_on(since, patience),
            None => self.standstill = Some(Box::new(Standstill::new(since, patience))),
        }
    }

    /// The kernel's report is here, if the rail has one. Returns whether it shows that the stream is stuck; false if none was requested.
    /// `unread`: see [`Standstill::is_stuck`].
    pub fn is_stuck(&mut self, told: Option<&FarKernel>, unread: Duration, now: Time) -> bool {
        // what the kernel here does not take may be anything
        let told = told.filter(|told| !(told.has_all && self.outbox.is_full()));
        self.standstill.as_mut().is_some_and(|standstill| standstill.is_stuck(told, unread, now))
    }

    /// Everything on it is acknowledged: what was noted of its kernel's reports does not count any more.
    pub fn forget_reports(&mut self) {
        self.route.is_cleared();
        self.standstill = None;
    }

    // ---- frames coming in --------------------------------------------------------------------------------------

    #[inline]
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    #[inline]
    pub fn reader_mut(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Its buffer has room for what comes next (see [`Reader::compact`]).
    pub fn compact(&mut self, spare: &mut SpareBuffers) {
        self.reader.compact(self.phase != Phase::Stranger, spare);
    }

    /// Gives the buffer back when nothing is in it: an idle stream needs none.
    pub fn give_buffer(&mut self, spare: &mut SpareBuffers) {
        if let Some(r) = self.reader.awake_mut() {
            r.give_buffer(spare);
        }
    }

    /// Its lease of a fragment is revoked, if it has that.
    pub fn divert(&mut self, seq: u64, frag: u64) {
        if let Some(r) = self.reader.awake_mut() {
            r.divert(seq, frag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_wire::FrameType;

    fn at(us: u64) -> Time {
        Time::from_ns(us * 1000)
    }

    fn name(epoch: u32) -> LaneName {
        LaneName::new(PathId(1), Epoch(epoch), LaneId(2), 3)
    }

    fn attempt() -> Stream {
        let to = Locator::ip([10, 0, 0, 1].into(), 1);
        Stream::attempt(RailId(0), to, (PeerId(4), name(5)), [7; 16], vec![1, 2], at(9), at(0))
    }

    fn push(s: &mut Stream, seq: u64) {
        let h = FrameHeader::new(FrameType::Config);
        s.push(&h, Coverage::Full, Some(Item::Cts { seq }), Payload::Owned(Vec::new()), false);
    }

    fn offer(s: &mut Stream) -> usize {
        let mut window = Window::default();
        s.offer(&mut window, |_| &Body::Withdrawn, |_| unreachable!());
        window.bytes()
    }

    #[test]
    fn an_attempt_is_connected_says_hello_and_is_attached_in_the_epoch_that_was_agreed() {
        let mut s = attempt();
        let later = Time::from_ns(9);
        assert!(s.connected(later) && !s.connected(later) && s.phase() == Phase::HelloSent);
        assert!(!s.wrote_preamble(1) && s.outbox().is_full() && s.is_busy());
        assert!(s.wrote_preamble(1) && !s.outbox().is_full() && !s.has_preamble());
        assert_eq!(s.attach(Epoch(6), at(20)), name(6));
        assert_eq!((s.name(), s.opening().deadline(), s.progress()), (Some(name(6)), None, at(20)));
        assert!(*s.reader().reading() == Reading::Header && !s.is_busy());
        s.rest();
        assert!(!s.opening().has_spoken(), "its beginning is over");
        assert_eq!(s.peer(), Some((PeerId(4), PathId(1))));
    }

    #[test]
    fn a_stranger_is_answered_once_until_it_is_introduced() {
        let mut s = Stream::stranger(RailId(0), Locator::ip([10, 0, 0, 1].into(), 1), at(0));
        assert_eq!((s.phase(), s.peer(), s.lane()), (Phase::Stranger, None, LaneId::FIRST));
        assert!(s.answer(vec![1]) && !s.answer(vec![2]));
        assert_eq!(s.opening().preamble(), [1]);
        s.introduce(PeerId(4), name(5), vec![3]);
        assert_eq!((s.opening().preamble(), s.lane()), (&[3][..], LaneId(2)));
    }

    #[test]
    fn what_is_written_is_in_flight_until_it_is_acknowledged_and_nothing_is_when_it_closes() {
        let mut s = attempt();
        s.attach(Epoch(6), at(0));
        (0..3).for_each(|seq| push(&mut s, seq));
        let bytes = offer(&mut s);
        assert_eq!(s.backlog(), bytes as u64);
        let mut delivered = Vec::new();
        assert_eq!(s.wrote(bytes * 2 / 3, at(10), &mut delivered), 0, "they have no payload");
        assert!(s.waits() && s.outbox().is_full() && delivered.is_empty());
        assert_eq!(
            (s.flight().iter().count(), s.outbox().len(), s.carries(&Item::Cts { seq: 2 })),
            (2, 1, true)
        );
        assert_eq!(s.acknowledged(&[(0, 1)], 1, false, at(30)).acked.len(), 2);
        assert!(s.waits(), "for room");
        s.becomes_writable();
        assert!(!s.waits());
        assert!(s.begin_closing() && !s.begin_closing());
        assert!(s.outbox().is_empty() && s.take_all().1.is_empty());
    }

    #[test]
    fn what_the_kernel_takes_is_progress_only_soon_after_an_acknowledgement() {
        let mut s = attempt();
        s.attach(Epoch(6), at(0));
        push(&mut s, 0);
        let bytes = offer(&mut s);
        s.wrote(bytes, at(100), &mut Vec::new());
        assert_eq!(s.progress(), at(100));
        for (written, progress) in [(600, 600), (5000, 1100)] {
            push(&mut s, 1);
            let bytes = offer(&mut s);
            s.wrote(bytes, at(written), &mut Vec::new());
            assert_eq!(s.progress(), at(progress));
        }
    }

    #[test]
    fn a_stream_is_stuck_where_its_kernel_takes_nothing_or_that_of_the_peer_nothing_more() {
        let (mut s, ms) = (attempt(), Duration::from_millis);
        let read = FarKernel::new(ms(0), true);
        assert!(!s.is_stuck(None, ms(900), at(700)), "no report was requested");
        s.inspect(at(7), ms(50));
        assert!(s.is_stuck(None, ms(900), at(700)));
        assert!(!s.is_stuck(None, ms(900), at(700)), "one report for each request");
        s.rest();
        assert!(s.standstill.is_none(), "nothing waits on it");
        s.inspect(at(7), ms(50));
        assert!(!s.is_stuck(Some(&read), ms(900), at(700)));
        s.attach(Epoch(6), at(0));
        push(&mut s, 0);
        offer(&mut s);
        s.wrote(1, at(100), &mut Vec::new());
        s.inspect(at(7), ms(50));
        assert!(s.is_stuck(Some(&read), ms(900), at(700)), "what waits here is not there");
        s.forget_reports();
        assert!(s.standstill.is_none());
    }
}
