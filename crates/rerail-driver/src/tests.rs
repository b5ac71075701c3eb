//! The driver between a scripted engine and scripted ports: what is called, and in which order.

use crate::*;
use rerail_core::{
    Action, CloseReason, CqId, Datagram, Event, EventKind, FarKernel, IoVec, KeysUpdate, Locator, MemId,
    PeerId, RailEvent, RailId, RemoteKey, ResponderUpdate, SessionIds, StreamId, Time, Train, Window, WorkId,
};
use rerail_rail::{Closing, Posted};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// A call that the driver made, of the engine or of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    LookAtLinks,
    Link(RailId, RailEvent),
    /// First byte of the datagram.
    Datagram(u8),
    Damaged(u64),
    Unsealed,
    Rail(RailId, RailEvent),
    /// Microseconds since the driver was made.
    Timeout(u64),
    PollStreams,
    Accepted,
    Connected(u32),
    Closed(u32, CloseReason),
    Inspected(u32),
    Read(u32),
    ReadDone(u32, usize),
    Write(u32),
    WriteDone(u32, usize),
    Writable(u32),
    WantWritable(u32),
    Send(RailId),
    SendTrain,
    TrainRefused(usize, bool),
    Open(u32),
    Close(u32),
    Report,
    Keys,
    Place(u64),
    Placed(u64),
    Unreadable(u32, Vec<u64>),
    Register(u32),
    Registered(u32, u128),
    Invalidate(u32),
    Invalidated(u32),
    LoadAlternate(u32, bool),
    Migrate(u32),
    StreamArmed(u32, RailId),
    StreamUnloaded(u32),
    StreamMigrated(u32, RailId),
}
use Call::*;

type Log = Rc<RefCell<Vec<Call>>>;

/// An engine that has a given amount of everything to send.
#[derive(Default)]
struct MockEngine {
    log: Log,
    deadline: Option<Time>,
    expects_streams: bool,
    /// Bytes of the window for reading; `None`: nothing is wanted.
    read_window: Option<usize>,
    write_window: usize,
    datagrams: Vec<RailId>,
    trains: usize,
    /// Asking for a train makes a datagram sendable, and there is no train.
    train_becomes_datagram: bool,
    actions: VecDeque<Action>,
    writable: VecDeque<u32>,
    events: VecDeque<Event>,
    keys: VecDeque<KeysUpdate>,
    /// After so many datagrams there is a completion.
    completes_after: usize,
    /// Each written window makes a datagram sendable, and each datagram a window.
    goes_round: bool,
    /// Names of the works that each window asks for.
    places: Vec<u64>,
}

static BYTES: [u8; 4096] = [0; 4096];

impl MockEngine {
    fn log(&self, call: Call) {
        self.log.borrow_mut().push(call);
    }
}

// SAFETY: the scripted ports do not touch the pieces.
unsafe impl Machine for MockEngine {
    fn handle_datagram(&mut self, _: RailId, _: Locator, bytes: &[u8], _: Time) {
        self.completes_after = self.completes_after.saturating_sub(1);
        self.log(Datagram(bytes[0]));
    }
    fn handle_damaged(&mut self, _: RailId, _: Locator, cid: u64, _: Time) {
        self.log(Damaged(cid));
    }
    fn handle_unsealed(&mut self, _: Time) {
        self.log(Unsealed);
    }
    fn handle_rail(&mut self, rail: RailId, event: RailEvent, _: Time) {
        self.log(Rail(rail, event));
    }
    fn handle_timeout(&mut self, now: Time) {
        self.log(Timeout(now.ns() / 1000));
        self.deadline = None;
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.deadline
    }
    fn expects_streams(&mut self) -> bool {
        self.expects_streams
    }
    fn stream_accepted(&mut self, _: RailId, _: Locator, _: Time) -> StreamId {
        self.log(Accepted);
        StreamId(1)
    }
    fn stream_connected(&mut self, s: StreamId, _: Time) {
        self.log(Connected(s.0));
    }
    fn stream_closed(&mut self, s: StreamId, why: CloseReason, _: Time) {
        self.log(Closed(s.0, why));
    }
    fn stream_inspected(&mut self, s: StreamId, _: Option<FarKernel>, _: Time) {
        self.log(Inspected(s.0));
    }
    fn stream_rx_window(&mut self, _: StreamId, window: &mut Window) -> bool {
        if let Some(n) = self.read_window {
            window.push(BYTES.as_ptr(), n);
        }
        self.read_window.is_some()
    }
    fn stream_rx_done(&mut self, s: StreamId, bytes: usize, _: Time) {
        self.log(ReadDone(s.0, bytes));
    }
    fn stream_tx_window(&mut self, _: StreamId, window: &mut Window, _: Time) -> bool {
        window.push(BYTES.as_ptr(), self.write_window);
        for &work in &self.places {
            let source = IoVec::from_ref(&BYTES[..1]);
            let (work, key) = (WorkId(work), RemoteKey(1));
            window.place(rerail_core::Place { work, source, whole: source, key, offset: 0 });
        }
        self.write_window > 0
    }
    fn stream_tx_done(&mut self, s: StreamId, bytes: usize, _: Time) {
        self.log(WriteDone(s.0, bytes));
        if self.goes_round {
            self.datagrams.push(RailId(0));
        }
    }
    fn stream_writable(&mut self, s: StreamId) {
        self.log(Writable(s.0));
    }
    fn placed(&mut self, work: WorkId, _: Time) {
        self.log(Placed(work.0));
    }
    fn unreadable(&mut self, s: StreamId, places: &[rerail_core::Place], _: Time) {
        self.log(Unreadable(s.0, places.iter().map(|place| place.work.0).collect()));
    }
    fn registered(&mut self, region: MemId, key: RemoteKey, _: Time) {
        self.log(Registered(region.0, key.0));
    }
    fn invalidated(&mut self, region: MemId, _: Time) {
        self.log(Invalidated(region.0));
    }
    fn stream_armed(&mut self, s: StreamId, rail: RailId, _: Time) {
        self.log(StreamArmed(s.0, rail));
    }
    fn stream_unloaded(&mut self, s: StreamId, _: Time) {
        self.log(StreamUnloaded(s.0));
    }
    fn stream_migrated(&mut self, s: StreamId, rail: RailId, _: Time) {
        self.log(StreamMigrated(s.0, rail));
    }
    fn has_output(&self) -> bool {
        !(self.datagrams.is_empty()
            && self.trains == 0
            && self.actions.is_empty()
            && self.writable.is_empty()
            && self.events.is_empty())
    }
    fn poll_datagram(&mut self, _: Time, out: &mut Datagram) -> bool {
        let Some(rail) = self.datagrams.pop() else { return false };
        out.rail = rail;
        if self.goes_round {
            self.writable.push_back(1);
        }
        true
    }
    fn poll_train(&mut self, _: Time, out: &mut Train) -> bool {
        if self.trains == 0 {
            return false;
        }
        self.trains -= 1;
        if std::mem::take(&mut self.train_becomes_datagram) {
            self.datagrams.push(RailId(0));
            return false;
        }
        out.bytes = vec![0; 30];
        out.segment = 10;
        true
    }
    fn train_refused(&mut self, _: &Train, sent: usize, broken: bool, _: Time) {
        self.log(TrainRefused(sent, broken));
    }
    fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }
    fn poll_keys(&mut self) -> Option<KeysUpdate> {
        self.keys.pop_front()
    }
    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
    fn poll_writable(&mut self, _: Time) -> Option<StreamId> {
        self.writable.pop_front().map(StreamId)
    }
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    fn has_completion(&self, _: CqId) -> bool {
        self.completes_after == 0
    }
}

/// Ports with given things in them.
struct MockPorts {
    log: Log,
    /// First bytes of what waits, or of what was read by another thread.
    stash: VecDeque<u8>,
    links: VecDeque<(RailId, RailEvent)>,
    arrived: VecDeque<(Vec<u8>, usize, Condition)>,
    eagerly: Cell<usize>,
    ready: Vec<StreamEvent>,
    incoming: usize,
    /// What reads and writes answer; the last answer stays.
    moved: VecDeque<Moved>,
    goes_on: bool,
    send: SendOutcome,
    train: TrainOutcome,
    closing: Closing,
    posted: Posted,
}

impl MockPorts {
    fn log(&self, call: Call) {
        self.log.borrow_mut().push(call);
    }

    fn moved(&mut self) -> Moved {
        if self.moved.len() > 1 { self.moved.pop_front().unwrap() } else { self.moved[0] }
    }
}

fn anywhere() -> Locator {
    Locator::ip([10, 0, 0, 1].into(), 4000)
}

impl Ports for MockPorts {
    fn look_at_links(&mut self) {
        self.log(LookAtLinks);
    }
    fn has_waiting(&self) -> bool {
        !(self.stash.is_empty() && self.links.is_empty())
    }
    fn take_waiting(&mut self, mut take: impl FnMut(Waiting<'_>)) {
        for (rail, event) in self.links.drain(..) {
            self.log.borrow_mut().push(Link(rail, event));
            take(Waiting::Link(rail, event));
        }
        for b in self.stash.drain(..) {
            take(Waiting::Datagram { rail: RailId(0), from: anywhere(), bytes: &[b] });
        }
    }
    fn receive(&mut self, eagerly: bool, buf: &mut [u8]) -> Option<ArrivedTrain> {
        self.eagerly.set(self.eagerly.get() + usize::from(eagerly));
        let (bytes, segment, condition) = self.arrived.pop_front()?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Some(ArrivedTrain { rail: RailId(0), from: anywhere(), len: bytes.len(), segment, condition })
    }
    fn send(&mut self, rail: RailId, _: Locator, _: &[u8]) -> SendOutcome {
        self.log(Send(rail));
        self.send
    }
    fn send_train(&mut self, _: RailId, _: Locator, _: &[u8], _: usize) -> TrainOutcome {
        self.log(SendTrain);
        self.train
    }
    fn keep_neighbour(&mut self, _: RailId, _: Locator) {}
    fn lead(&mut self, _: RailId, _: Locator, _: u8) {}
    fn poll_streams(&mut self, ready: &mut Vec<StreamEvent>) {
        self.log(PollStreams);
        ready.append(&mut self.ready);
    }
    fn open(&mut self, s: StreamId, _: RailId, _: Locator) {
        self.log(Open(s.0));
    }
    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        if self.incoming == 0 {
            return false;
        }
        self.incoming -= 1;
        name(RailId(0), anywhere());
        true
    }
    unsafe fn read(&mut self, s: StreamId, _: &[IoVec]) -> Moved {
        self.log(Read(s.0));
        self.moved()
    }
    fn goes_on(&mut self, _: StreamId) -> bool {
        self.goes_on
    }
    unsafe fn write(&mut self, s: StreamId, _: &[IoVec]) -> Moved {
        self.log(Write(s.0));
        self.moved()
    }
    fn want_writable(&mut self, s: StreamId) {
        self.log(WantWritable(s.0));
    }
    unsafe fn place(&mut self, _: StreamId, place: &rerail_core::Place) -> Posted {
        self.log(Place(place.work.0));
        self.posted
    }
    unsafe fn register(&mut self, _: RailId, region: MemId, _: IoVec) {
        self.log(Register(region.0));
    }
    fn invalidate(&mut self, region: MemId) {
        self.log(Invalidate(region.0));
    }
    fn load_alternate(&mut self, s: StreamId, alternate: Option<rerail_core::Alternate>) {
        self.log(LoadAlternate(s.0, alternate.is_some()));
    }
    fn migrate(&mut self, s: StreamId) {
        self.log(Migrate(s.0));
    }
    fn close(&mut self, s: StreamId) -> Closing {
        self.log(Close(s.0));
        self.closing
    }
    fn far_kernel(&mut self, _: StreamId) -> Option<FarKernel> {
        None
    }
    fn update_keys(&mut self, updates: &mut dyn Iterator<Item = KeysUpdate>) {
        updates.for_each(|_| self.log(Keys));
    }
    fn update_responder(&mut self, _: ResponderUpdate) {}
    fn report(&mut self, _: Event) {
        self.log(Report);
    }
}

/// A clock that goes by `step` with every look.
struct MockClock {
    now: Cell<Time>,
    step: Duration,
    looks: Cell<u32>,
}

impl Clock for MockClock {
    fn now(&self) -> Time {
        self.looks.set(self.looks.get() + 1);
        let now = self.now.get();
        self.now.set(now + self.step);
        now
    }
}

/// A driver, and what it drives.
struct Fixture {
    driver: Driver,
    engine: MockEngine,
    ports: MockPorts,
    clock: MockClock,
}

const US: Duration = Duration::from_micros(1);

impl Fixture {
    fn new() -> Self {
        let log = Log::default();
        Self {
            driver: Driver::new(Time::ORIGIN),
            engine: MockEngine { log: log.clone(), completes_after: usize::MAX, ..MockEngine::default() },
            ports: MockPorts {
                log,
                stash: VecDeque::new(),
                links: VecDeque::new(),
                arrived: VecDeque::new(),
                eagerly: Cell::new(0),
                ready: Vec::new(),
                incoming: 0,
                moved: [Moved::Blocked].into(),
                goes_on: false,
                send: SendOutcome::Sent,
                train: TrainOutcome { sent: 3, rest: SendOutcome::Sent },
                closing: Closing::Done,
                posted: Posted::Lent,
            },
            clock: MockClock { now: Cell::new(Time::ORIGIN), step: Duration::ZERO, looks: Cell::new(0) },
        }
    }

    fn later(&self, by: Duration) {
        self.clock.now.set(self.clock.now.get() + by);
    }

    /// Datagrams of one byte arrive: 0, 1, 2, …
    fn arrive(&mut self, count: usize) {
        self.ports.arrived.extend((0..count).map(|i| (vec![i as u8], 1, Condition::Whole)));
    }

    fn progress_with(&mut self, options: ProgressOptions) -> Progress {
        self.driver.progress(&mut self.engine, &mut self.ports, &self.clock, options)
    }

    fn progress(&mut self) -> Progress {
        self.progress_with(ProgressOptions::default())
    }

    fn flush(&mut self) -> bool {
        let now = self.clock.now.get();
        self.driver.flush(&mut self.engine, &mut self.ports, &self.clock, now)
    }

    /// What was called since this was last asked.
    fn calls(&self) -> Vec<Call> {
        self.ports.log.take()
    }

    fn count(&self, call: &Call) -> usize {
        self.ports.log.borrow().iter().filter(|c| *c == call).count()
    }

    /// A stream has something: the calls of the piece that finds it.
    fn ready(&mut self, event: StreamEvent) -> Progress {
        self.ports.ready.push(event);
        self.progress_with(ProgressOptions { streams: true, until: None })
    }
}

#[test]
fn after_an_absence_everything_that_arrived_is_read_before_a_deadline_is_looked_at() {
    let mut b = Fixture::new();
    b.engine.deadline = Some(Time::from_ns(1000));
    b.arrive(200);
    b.later(ABSENCE + US);
    let done = b.progress();
    let calls = b.calls();
    let read = calls.iter().filter(|c| matches!(c, Datagram(_))).count();
    let streams = calls.iter().position(|c| *c == PollStreams).expect("the streams are polled");
    let timer = calls.iter().position(|c| matches!(c, Timeout(_))).expect("the deadline has passed");
    assert_eq!(read, 200);
    assert_eq!(timer, calls.len() - 1, "{calls:?}");
    assert!(streams < timer);
    assert_eq!(done, Progress { input: true, more: false });
}

#[test]
fn even_after_an_absence_a_flood_of_datagrams_ends_in_time() {
    let mut b = Fixture::new();
    b.arrive(DATAGRAMS_MAX_AFTER_ABSENCE + 1);
    b.later(ABSENCE + US);
    assert!(b.progress().more);
    assert_eq!(b.ports.arrived.len(), 1);
}

#[test]
fn what_other_threads_have_read_comes_before_what_arrives_now() {
    let mut b = Fixture::new();
    b.arrive(1);
    b.ports.links.push_back((RailId(2), RailEvent::Down));
    b.ports.stash.push_back(77);
    assert!(b.progress().input);
    let link = [Link(RailId(2), RailEvent::Down), Rail(RailId(2), RailEvent::Down)];
    assert_eq!(b.calls()[..4], [link[0].clone(), link[1].clone(), Datagram(77), Datagram(0)]);
}

#[test]
fn a_piece_reads_a_bounded_number_of_datagrams_and_says_that_there_is_more() {
    let mut b = Fixture::new();
    b.arrive(DATAGRAMS_MAX + 3);
    assert_eq!(b.progress(), Progress { input: true, more: true });
    assert_eq!(b.ports.arrived.len(), 3);
    assert_eq!(b.progress(), Progress { input: true, more: false });
    assert_eq!(b.progress(), Progress::default());
}

#[test]
fn a_train_of_datagrams_is_handed_on_one_by_one_and_what_is_not_whole_is_told() {
    let mut b = Fixture::new();
    b.ports.arrived.push_back((vec![5, 0, 6, 0, 7], 2, Condition::Whole));
    b.ports.arrived.push_back((9u64.to_le_bytes().to_vec(), 8, Condition::Damaged));
    b.ports.arrived.push_back((Vec::new(), 1, Condition::Unsealed));
    b.progress();
    assert_eq!(b.calls()[..5], [Datagram(5), Datagram(6), Datagram(7), Damaged(9), Unsealed]);
}

#[test]
fn reading_stops_at_the_completion_that_the_caller_waits_for_unless_pieces_are_rare() {
    let wait = ProgressOptions { streams: false, until: Some(CqId(0)) };
    let mut b = Fixture::new();
    b.arrive(5);
    b.engine.completes_after = 2;
    let done = b.progress_with(wait);
    assert_eq!((b.ports.arrived.len(), done.more), (3, false));
    assert_eq!(b.ports.eagerly.get(), 1, "only the first look is eager");
    b.later(READ_ON_AFTER + US);
    b.progress_with(wait);
    assert_eq!(b.ports.arrived.len(), 0);
    assert_eq!(b.ports.eagerly.get(), 1);
}

#[test]
fn a_caller_that_bulk_is_expected_for_does_not_look_eagerly() {
    let mut b = Fixture::new();
    b.engine.expects_streams = true;
    b.progress_with(ProgressOptions { streams: false, until: Some(CqId(0)) });
    assert_eq!(b.ports.eagerly.get(), 0);
}

#[test]
fn the_links_are_looked_at_every_half_millisecond() {
    let mut b = Fixture::new();
    b.later(LINK_LOOK_EVERY);
    b.progress();
    assert_eq!(b.count(&LookAtLinks), 0);
    b.later(US);
    b.progress();
    b.progress();
    assert_eq!(b.count(&LookAtLinks), 1);
}

#[test]
fn an_empty_piece_reads_the_clock_once_and_a_small_message_no_more_often() {
    let mut b = Fixture::new();
    b.progress();
    assert_eq!(b.clock.looks.get(), 1);
    b.arrive(FEW_DATAGRAMS);
    b.progress();
    assert_eq!(b.clock.looks.get(), 2);
    b.arrive(FEW_DATAGRAMS + 1);
    b.progress();
    assert_eq!(b.clock.looks.get(), 4);
}

#[test]
fn after_a_longer_read_the_timers_are_looked_at_with_the_time_of_then() {
    let mut b = Fixture::new();
    b.clock.step = Duration::from_micros(7);
    b.arrive(FEW_DATAGRAMS + 1);
    b.progress();
    assert_eq!(b.count(&Timeout(7)), 1, "{:?}", b.calls());
}

#[test]
fn without_input_only_a_deadline_that_has_passed_calls_the_engine() {
    let mut b = Fixture::new();
    b.engine.deadline = Some(Time::from_ns(3000));
    b.later(2 * US);
    b.progress();
    assert_eq!(b.count(&Timeout(2)), 0);
    b.later(US);
    b.progress();
    assert_eq!(b.count(&Timeout(3)), 1);
}

#[test]
fn the_streams_are_polled_rarely_when_nothing_is_expected_of_them() {
    let mut b = Fixture::new();
    for _ in 1..STREAM_POLL_EVERY {
        b.progress();
    }
    assert_eq!(b.count(&PollStreams), 0);
    b.progress();
    assert_eq!(b.count(&PollStreams), 1);
    b.later(STREAM_POLL_AFTER);
    b.progress();
    assert_eq!(b.count(&PollStreams), 2);
}

#[test]
fn the_streams_are_polled_at_once_on_request_when_bulk_is_expected_and_while_they_are_warm() {
    let mut b = Fixture::new();
    b.progress_with(ProgressOptions { streams: true, until: None });
    assert_eq!(b.count(&PollStreams), 1);
    b.driver.look_at_streams();
    b.progress();
    assert_eq!(b.count(&PollStreams), 2);
    b.engine.expects_streams = true;
    b.progress();
    assert_eq!(b.count(&PollStreams), 3);
    b.engine.expects_streams = false;
    b.ready(StreamEvent::Writable(StreamId(4)));
    assert_eq!(b.count(&Writable(4)), 1);
    b.calls();
    for _ in 0..STREAM_WARM {
        b.progress();
    }
    assert_eq!(b.count(&PollStreams), STREAM_WARM as usize);
    b.progress();
    assert_eq!(b.count(&PollStreams), STREAM_WARM as usize, "it has cooled down");
}

#[test]
fn connections_are_accepted_within_a_bound() {
    let mut b = Fixture::new();
    b.ports.incoming = ACCEPT_MAX + 2;
    assert!(b.ready(StreamEvent::Incoming).input);
    assert_eq!((b.count(&Accepted), b.ports.incoming), (ACCEPT_MAX, 2));
}

#[test]
fn what_happened_on_streams_is_told_to_the_engine() {
    let mut b = Fixture::new();
    b.ready(StreamEvent::Connected(StreamId(3)));
    b.ready(StreamEvent::Closed(StreamId(3), CloseReason::Refused));
    assert_eq!((b.count(&Connected(3)), b.count(&Closed(3, CloseReason::Refused))), (1, 1));
}

#[test]
fn a_stream_is_read_within_a_bound_and_then_there_is_more() {
    let mut b = Fixture::new();
    b.engine.read_window = Some(READ_BYTES_MAX / 4);
    b.ports.moved = [Moved::Bytes(READ_BYTES_MAX / 4)].into();
    assert!(b.ready(StreamEvent::Readable(StreamId(1))).more);
    assert_eq!(b.count(&Read(1)), 4);
}

#[test]
fn a_short_read_ends_the_turn_unless_the_port_goes_on() {
    let mut b = Fixture::new();
    b.engine.read_window = Some(100);
    b.ports.moved = [Moved::Bytes(99)].into();
    assert!(!b.ready(StreamEvent::Readable(StreamId(1))).more);
    assert_eq!(b.count(&Read(1)), 1);
    b.calls();
    b.ports.goes_on = true;
    b.ports.moved = [Moved::Bytes(99), Moved::Blocked].into();
    b.ready(StreamEvent::Readable(StreamId(1)));
    let calls = b.calls();
    let read: Vec<&Call> = calls.iter().filter(|c| matches!(c, Read(_) | ReadDone(..))).collect();
    assert_eq!(read, [&Read(1), &ReadDone(1, 99), &Read(1), &ReadDone(1, 0)]);
}

#[test]
fn acknowledgements_go_out_between_two_reads_of_a_stream() {
    let mut b = Fixture::new();
    b.engine.read_window = Some(100);
    b.engine.datagrams = vec![RailId(0)];
    b.ports.moved = [Moved::Bytes(100), Moved::Blocked].into();
    b.ready(StreamEvent::Readable(StreamId(1)));
    let calls = b.calls();
    let at = |call| calls.iter().rposition(|c| *c == call).unwrap();
    assert!(at(Send(RailId(0))) < at(Read(1)), "{calls:?}");
}

#[test]
fn a_window_without_bytes_is_given_back_and_not_read() {
    let mut b = Fixture::new();
    b.engine.read_window = Some(0);
    b.ready(StreamEvent::Readable(StreamId(1)));
    assert_eq!((b.count(&Read(1)), b.count(&ReadDone(1, 0))), (0, 1));
    b.calls();
    b.engine.read_window = None;
    b.ready(StreamEvent::Readable(StreamId(1)));
    assert_eq!((b.count(&Read(1)), b.count(&ReadDone(1, 0))), (0, 0), "nothing was leased");
}

#[test]
fn a_lease_ends_before_the_engine_is_told_that_the_stream_is_over() {
    let mut b = Fixture::new();
    b.engine.read_window = Some(100);
    b.ports.moved = [Moved::Closed(CloseReason::Eof)].into();
    assert!(!b.ready(StreamEvent::Readable(StreamId(1))).more);
    assert_eq!(b.calls()[1..4], [Read(1), ReadDone(1, 0), Closed(1, CloseReason::Eof)]);
}

#[test]
fn control_goes_out_before_trains_before_actions_before_writes_and_events_come_last() {
    let mut b = Fixture::new();
    b.engine.datagrams = vec![RailId(0)];
    b.engine.trains = 1;
    b.engine.actions = [Action::OpenStream { stream: StreamId(5), rail: RailId(0), to: anywhere() }].into();
    b.engine.writable = [1].into();
    b.engine.write_window = 100;
    b.engine.events =
        [Event { kind: EventKind::PeerGaveUp, peer: PeerId(0), peer_name: 0, path: None }].into();
    b.ports.moved = [Moved::Bytes(100)].into();
    assert!(!b.flush());
    assert_eq!(b.calls(), [Send(RailId(0)), SendTrain, Open(5), Write(1), WriteDone(1, 100), Report]);
}

#[test]
fn a_piece_sends_a_bounded_number_of_datagrams_and_says_that_there_is_more() {
    let mut b = Fixture::new();
    b.engine.datagrams = vec![RailId(0); OUTPUT_ROUNDS_MAX * SEND_MAX + 1];
    assert!(b.progress().more);
    assert_eq!(b.engine.datagrams.len(), 1);
    assert!(!b.flush());
}

#[test]
fn control_has_its_turn_between_trains() {
    let mut b = Fixture::new();
    b.engine.trains = TRAINS_MAX + 1;
    assert!(b.flush());
    assert_eq!(b.count(&SendTrain), TRAINS_MAX + 1);
    b.calls();
    b.engine.trains = OUTPUT_ROUNDS_MAX * TRAINS_MAX + 1;
    assert!(b.flush());
    assert_eq!(b.engine.trains, 1);
}

#[test]
fn a_piece_writes_a_bounded_number_of_bytes_and_says_that_there_is_more() {
    let mut b = Fixture::new();
    b.engine.writable = (0..10).collect();
    b.engine.write_window = WRITE_BYTES_MAX / 2;
    b.ports.moved = [Moved::Bytes(WRITE_BYTES_MAX / 2)].into();
    assert!(b.flush());
    assert_eq!(b.engine.writable.len(), 8);
}

#[test]
fn a_refused_train_is_told_with_what_was_sent_of_it() {
    let mut b = Fixture::new();
    b.engine.trains = 1;
    b.ports.train = TrainOutcome { sent: 2, rest: SendOutcome::Full };
    b.flush();
    assert_eq!(b.calls(), [SendTrain, TrainRefused(2, false)]);
    b.engine.trains = 1;
    b.ports.train = TrainOutcome { sent: 0, rest: SendOutcome::RailBroken };
    b.flush();
    assert_eq!(b.calls(), [SendTrain, TrainRefused(0, true), Rail(RailId(0), RailEvent::SendError)]);
}

#[test]
fn a_broken_rail_is_told_once_in_a_piece_and_again_in_the_next() {
    let mut b = Fixture::new();
    b.ports.send = SendOutcome::RailBroken;
    b.ports.train = TrainOutcome { sent: 0, rest: SendOutcome::RailBroken };
    for _ in 0..2 {
        b.engine.datagrams = vec![RailId(0), RailId(3), RailId(0), RailId(3)];
        b.engine.trains = 2;
        b.flush();
        let told = |rail| b.count(&Rail(RailId(rail), RailEvent::SendError));
        assert_eq!((told(0), told(3), b.count(&TrainRefused(0, true))), (1, 1, 2));
        b.calls();
    }
    b.engine.datagrams = vec![RailId(0), RailId(0)];
    b.progress();
    assert_eq!(b.count(&Rail(RailId(0), RailEvent::SendError)), 1);
}

#[test]
fn what_the_last_round_made_sendable_is_not_forgotten() {
    let mut b = Fixture::new();
    b.engine.goes_round = true;
    b.engine.write_window = 1;
    b.engine.datagrams = vec![RailId(0)];
    b.ports.moved = [Moved::Bytes(1)].into();
    assert!(b.flush(), "the engine has output left");
    assert_eq!(b.count(&Write(1)), OUTPUT_ROUNDS_MAX);
}

#[test]
fn a_datagram_that_the_search_for_a_train_made_sendable_goes_at_once() {
    let mut b = Fixture::new();
    b.engine.trains = 1;
    b.engine.train_becomes_datagram = true;
    assert!(!b.flush());
    assert_eq!(b.calls(), [Send(RailId(0))]);
}

#[test]
fn a_short_write_asks_for_room_and_a_broken_one_does_not() {
    let mut b = Fixture::new();
    b.engine.write_window = 100;
    for (moved, then) in [
        (Moved::Bytes(100), vec![WriteDone(1, 100)]),
        (Moved::Bytes(40), vec![WriteDone(1, 40), WantWritable(1)]),
        (Moved::Blocked, vec![WriteDone(1, 0), WantWritable(1)]),
        (Moved::Closed(CloseReason::Reset), vec![WriteDone(1, 0), Closed(1, CloseReason::Reset)]),
    ] {
        b.engine.writable = [1].into();
        b.ports.moved = [moved].into();
        b.flush();
        assert_eq!(b.calls(), [&[Write(1)], &then[..]].concat());
    }
}

#[test]
fn a_stream_that_closes_later_is_not_confirmed_at_once() {
    let mut b = Fixture::new();
    let close = || [Action::CloseStream { stream: StreamId(8) }].into();
    b.engine.actions = close();
    b.flush();
    assert_eq!(b.calls(), [Close(8), Closed(8, CloseReason::Requested)]);
    b.engine.actions = close();
    b.ports.closing = Closing::Pending;
    b.flush();
    assert_eq!(b.calls(), [Close(8)]);
}

#[test]
fn an_inspection_is_answered_even_when_nothing_is_known() {
    let mut b = Fixture::new();
    b.engine.actions = [Action::InspectStream { stream: StreamId(8) }].into();
    b.flush();
    assert_eq!(b.calls(), [Inspected(8)]);
}

#[test]
fn keys_are_handed_over_before_what_is_sealed_with_them() {
    let mut f = Fixture::new();
    f.engine.keys.push_back(KeysUpdate::Forget {
        ids: SessionIds { out: 1, incoming: 2, accept_out: 3, accept_in: 4 },
    });
    f.engine.datagrams = vec![RailId(0)];
    f.driver.flush(&mut f.engine, &mut f.ports, &f.clock, Time::ORIGIN);
    let log = f.ports.log.borrow();
    let place = |call: &Call| log.iter().position(|c| c == call);
    assert!(place(&Keys).is_some() && place(&Keys) < place(&Send(RailId(0))), "{log:?}");
}

#[test]
fn what_an_adapter_writes_is_posted_before_the_bytes_that_tell_of_it() {
    let mut b = two_places();
    b.ports.moved = [Moved::Bytes(100)].into();
    b.flush();
    assert_eq!(b.calls(), [Place(7), Place(8), Write(1), WriteDone(1, 100)]);
}

/// A stream has something to write, behind two writes of an adapter.
fn two_places() -> Fixture {
    let mut b = Fixture::new();
    b.engine.writable = [1].into();
    b.engine.write_window = 100;
    b.engine.places = vec![7, 8];
    b
}

#[test]
fn nothing_tells_of_a_write_that_was_refused_and_its_stream_is_over() {
    let mut b = two_places();
    b.ports.posted = Posted::Refused;
    b.flush();
    let expected = [Place(7), WriteDone(1, 0), Placed(7), Placed(8), Closed(1, CloseReason::Reset)];
    assert_eq!(b.calls(), expected, "neither of them was lent");
}

#[test]
fn writes_from_memory_that_an_adapter_cannot_read_are_given_back_and_the_stream_goes_on() {
    let mut b = two_places();
    b.ports.posted = Posted::Unreadable;
    b.flush();
    assert_eq!(b.calls(), [Place(7), WriteDone(1, 0), Unreadable(1, vec![7, 8])]);
}

#[test]
fn an_adapter_is_asked_for_memory_and_its_answers_are_told() {
    let mut b = Fixture::new();
    let (rail, region) = (RailId(0), MemId(3));
    let memory = IoVec::from_ref(&BYTES[..]);
    b.engine.actions = [Action::Register { rail, region, memory }, Action::Invalidate { region }].into();
    b.flush();
    assert_eq!(b.calls(), [Register(3), Invalidate(3)]);
    b.ready(StreamEvent::Registered(region, RemoteKey(5)));
    b.ready(StreamEvent::Invalidated(region));
    b.ready(StreamEvent::Placed(WorkId(9)));
    let calls = b.calls();
    assert!([Registered(3, 5), Invalidated(3), Placed(9)].iter().all(|c| calls.contains(c)), "{calls:?}");
}

#[test]
fn an_adapter_is_asked_to_load_and_to_move_and_what_it_did_is_told() {
    let mut b = Fixture::new();
    let (stream, rail) = (StreamId(4), RailId(1));
    let alternate = Some(rerail_core::Alternate { rail, to: anywhere() });
    b.engine.actions = [
        Action::LoadAlternate { stream, alternate },
        Action::MigrateStream { stream },
        Action::LoadAlternate { stream, alternate: None },
    ]
    .into();
    b.flush();
    assert_eq!(b.calls(), [LoadAlternate(4, true), Migrate(4), LoadAlternate(4, false)]);
    b.ready(StreamEvent::Armed(stream, rail));
    b.ready(StreamEvent::Migrated(stream, rail));
    b.ready(StreamEvent::Unloaded(stream));
    let calls = b.calls();
    let told = [StreamArmed(4, rail), StreamMigrated(4, rail), StreamUnloaded(4)];
    assert!(told.iter().all(|c| calls.contains(c)), "{calls:?}");
}
