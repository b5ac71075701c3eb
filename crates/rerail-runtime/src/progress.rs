//! Joins the driver with this process's engine and ports. Owns: the engine and the stream port, under one lock, and what comes in
//! without that lock.
//!
//! What a piece of progress does, in which order and within which bounds, is [`rerail_driver`]'s.

use crate::burst::Burst;
use crate::events::Sink;
use crate::flag::Flag;
use crate::sleepers::Sleepers;
use crate::sys::{self, Bell};
use parking_lot::Mutex;
use rerail_core::{
    Engine, Event, FarKernel, IoVec, KeysUpdate, Locator, RailEvent, RailId, Responder, ResponderUpdate,
    StreamId, Time,
};
use rerail_driver::{Clock, Driver, Ports, Progress, ProgressOptions, STASH_MAX, Waiting};
use rerail_fault::{FaultyDatagrams, Injector};
use rerail_rail::{
    Alternate, ArrivedTrain, Closing, DatagramPort, LinkWatch, MemId, Moved, Place, Posted, SendOutcome,
    StreamEvent, StreamPort, TrainOutcome,
};
use rerail_seal::{Keyring, SealedDatagrams};
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A time is good enough for posting a receive when a tick of the kernel's clock is at most this much later: only the
/// start of a handshake depends on it.
const ABOUT: Duration = Duration::from_millis(1);

/// A datagram read by a thread that could not get at the engine.
struct Stashed {
    rail: RailId,
    from: Locator,
    bytes: Box<[u8]>,
}

/// Input that arrives without the engine's lock, and waits for the next thread that takes it.
pub(crate) struct Inbox {
    /// Something is in one of the two queues.
    some: Flag,
    stash: Mutex<VecDeque<Stashed>>,
    link_changes: Mutex<Vec<(RailId, bool)>>,
    links: Mutex<Box<dyn LinkWatch>>,
    /// Descriptor of `links`, to be read without its lock.
    pub links_fd: RawFd,
    /// All descriptors of `links`, in the same way.
    pub links_descriptors: Vec<RawFd>,
}

/// How long a thread without the engine waits for one of the small locks: its holder may have been stopped.
pub(crate) const SMALL_LOCK_PATIENCE: Duration = Duration::from_millis(1);

impl Inbox {
    pub fn new(links: Box<dyn LinkWatch>) -> Self {
        let mut links_descriptors = Vec::new();
        links.descriptors(&mut links_descriptors);
        Self {
            links_fd: links.fd().as_raw_fd(),
            links_descriptors,
            some: Flag::new(),
            stash: Mutex::default(),
            link_changes: Mutex::default(),
            links: Mutex::new(links),
        }
    }

    /// Keeps a datagram; a full stash drops it, as a full socket would.
    pub fn stash(&self, rail: RailId, from: Locator, bytes: &[u8]) {
        let Some(mut q) = self.stash.try_lock_for(SMALL_LOCK_PATIENCE) else { return };
        if q.len() < STASH_MAX {
            q.push_back(Stashed { rail, from, bytes: bytes.into() });
            self.some.raise();
        }
    }

    /// Looks for link changes, unless another thread is just doing so; returns whether there are any.
    pub fn look_at_links(&self) -> bool {
        if let Some(mut links) = self.links.try_lock() {
            // Drained under the lock of the queue, so that changes stay in order whichever thread takes them.
            let Some(mut q) = self.link_changes.try_lock_for(SMALL_LOCK_PATIENCE) else { return false };
            links.drain(&mut q);
            if !q.is_empty() {
                self.some.raise();
                return true;
            }
        }
        false
    }
}

/// The layer over the ports that plants faults.
pub(crate) struct Planted {
    pub injector: Arc<Injector>,
    pub datagrams: Arc<FaultyDatagrams>,
}

/// What a piece of progress shares with threads that do not hold the lock.
pub(crate) struct Outside {
    /// The datagram port; see [`Outside::datagrams`].
    pub plain: Arc<dyn DatagramPort>,
    /// The layer that plants faults, once the user has planted one; with encryption from the start.
    pub planted: OnceLock<Planted>,
    /// The port that encrypts, if this process does: over the two others, so that a planted fault cannot change what is sealed.
    pub sealed: OnceLock<SealedDatagrams>,
    /// Its keys; the engine updates them.
    pub keys: Option<Arc<Keyring>>,
    pub inbox: Inbox,
    /// Answers queries when the engine is locked; the engine's actions keep its table.
    pub responder: Mutex<Responder>,
    pub events: Sink,
    /// Wakes the service thread.
    pub bell: Bell,
}

impl Outside {
    /// The port for datagrams, with faults if there are any. The check costs one look at two words that are written
    /// once, when their layer is made; a call of the port is a system call.
    pub fn datagrams(&self) -> &dyn DatagramPort {
        match (self.sealed.get(), self.planted.get()) {
            (Some(sealed), _) => sealed,
            (None, None) => &*self.plain,
            (None, Some(planted)) => &*planted.datagrams,
        }
    }

    /// Sleeps until one of `fds` is readable or `max` has passed; bit i of the result says that `fds[i]` is. The descriptors of the
    /// datagrams, and of the streams if `streams`, are among them.
    pub fn sleep_on<const N: usize>(&self, fds: [RawFd; N], max: Duration, streams: bool) -> u32 {
        // The layers over the plain port only delay things, and wake for them by themselves.
        let max = if self.plain.before_sleep(streams) { Duration::ZERO } else { max };
        let woken = sys::sleep_on(fds, Some(max));
        self.plain.after_sleep();
        woken
    }
}

/// The stream port. It can be wrapped while it is in use; apart from that moment it is there.
pub(crate) struct StreamSlot(Option<Box<dyn StreamPort>>);

impl StreamSlot {
    /// Puts a layer over the port.
    pub fn wrap(
        &mut self,
        layer: impl FnOnce(Box<dyn StreamPort>) -> Result<Box<dyn StreamPort>, (Box<dyn StreamPort>, io::Error)>,
    ) -> io::Result<()> {
        let (port, done) = match layer(self.0.take().expect(THERE)) {
            Ok(port) => (port, Ok(())),
            Err((port, why)) => (port, Err(why)),
        };
        self.0 = Some(port);
        done
    }
}

const THERE: &str = "the port is only away while it is being wrapped";

impl Deref for StreamSlot {
    type Target = dyn StreamPort;

    fn deref(&self) -> &Self::Target {
        &**self.0.as_ref().expect(THERE)
    }
}

impl DerefMut for StreamSlot {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut **self.0.as_mut().expect(THERE)
    }
}

/// The kernel's monotonic clock.
pub(crate) struct MonotonicClock;

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Time {
        sys::now()
    }
}

/// The ports of this process, for one call of the driver.
struct Attached<'a> {
    outside: &'a Outside,
    streams: &'a mut StreamSlot,
}

impl Ports for Attached<'_> {
    fn look_at_links(&mut self) {
        self.outside.inbox.look_at_links();
    }

    #[inline]
    fn has_waiting(&self) -> bool {
        self.outside.inbox.some.is_up()
    }

    fn take_waiting(&mut self, mut take: impl FnMut(Waiting<'_>)) {
        let inbox = &self.outside.inbox;
        inbox.some.lower();
        // One after the other, never both locks at once.
        let changes = std::mem::take(&mut *inbox.link_changes.lock());
        for (rail, up) in changes {
            take(Waiting::Link(rail, if up { RailEvent::Up } else { RailEvent::Down }));
        }
        let stash = std::mem::take(&mut *inbox.stash.lock());
        for d in stash {
            take(Waiting::Datagram { rail: d.rail, from: d.from, bytes: &d.bytes });
        }
    }

    #[inline]
    fn receive(&mut self, eagerly: bool, buf: &mut [u8]) -> Option<ArrivedTrain> {
        let found = match eagerly {
            true => self.outside.datagrams().recv_train_eagerly(buf),
            false => self.outside.datagrams().recv_train(buf),
        };
        found.unwrap_or(None)
    }

    #[inline]
    fn send(&mut self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        self.outside.datagrams().send(rail, to, bytes)
    }

    #[inline]
    fn send_train(&mut self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        self.outside.datagrams().send_train(rail, to, bytes, segment)
    }

    fn keep_neighbour(&mut self, rail: RailId, to: Locator) {
        self.outside.datagrams().keep_neighbour(rail, to);
    }

    fn lead(&mut self, rail: RailId, to: Locator, route: u8) {
        self.outside.datagrams().lead(rail, to, route);
    }

    #[inline]
    fn poll_streams(&mut self, ready: &mut Vec<StreamEvent>) {
        self.streams.poll(ready);
    }

    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        self.streams.open(stream, rail, to);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        self.streams.accept(name)
    }

    #[inline]
    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.streams.read(stream, pieces) }
    }

    #[inline]
    fn goes_on(&mut self, stream: StreamId) -> bool {
        self.streams.goes_on(stream)
    }

    #[inline]
    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.streams.write_lasting(stream, pieces) }
    }

    #[inline]
    fn want_writable(&mut self, stream: StreamId) {
        self.streams.want_writable(stream);
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.streams.place(stream, place) }
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.streams.register(rail, region, memory) }
    }

    fn invalidate(&mut self, region: MemId) {
        self.streams.invalidate(region);
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        self.streams.load_alternate(stream, alternate);
    }

    fn migrate(&mut self, stream: StreamId) {
        self.streams.migrate(stream);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        self.streams.close(stream)
    }

    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        self.streams.far_kernel(stream)
    }

    fn update_responder(&mut self, update: ResponderUpdate) {
        self.outside.responder.lock().update(update);
    }

    fn update_keys(&mut self, updates: &mut dyn Iterator<Item = KeysUpdate>) {
        self.outside.keys.as_ref().expect("only a process that encrypts has sessions").apply(updates);
    }

    fn report(&mut self, event: Event) {
        self.outside.events.push(event);
        self.outside.bell.ring();
    }
}

/// What the lock of the process guards.
pub(crate) struct State {
    pub engine: Engine,
    pub streams: StreamSlot,
    driver: Driver,
    /// Reads of completions since the last piece.
    pub pops: u32,
    pub burst: Burst,
    pub sleepers: Sleepers,
}

impl State {
    pub fn new(engine: Engine, streams: Box<dyn StreamPort>, now: Time) -> Self {
        Self {
            engine,
            streams: StreamSlot(Some(streams)),
            driver: Driver::new(now),
            pops: 0,
            burst: Burst::default(),
            sleepers: Sleepers::default(),
        }
    }

    /// The time of the last piece of progress.
    #[inline]
    pub fn last(&self) -> Time {
        self.driver.last()
    }

    /// The same, if that is a few milliseconds old at most: for callers that need no exact time.
    pub fn about_now(&self) -> Time {
        if sys::tick_before().since(self.last()) < ABOUT { self.last() } else { sys::now() }
    }

    /// The next piece polls the streams whatever is expected.
    pub fn look_at_streams(&mut self) {
        self.driver.look_at_streams();
    }

    /// The engine may have changed: rings the bells of the sleepers that have something to read now.
    #[inline]
    pub fn look_for_sleepers(&mut self) {
        self.sleepers.look(&self.engine);
    }

    /// Appends every descriptor of the streams.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.streams.descriptors(out);
    }

    pub fn streams_fd(&self) -> RawFd {
        self.streams.fd().as_raw_fd()
    }

    /// A bounded piece of progress.
    pub fn progress(&mut self, outside: &Outside, options: ProgressOptions) -> Progress {
        let mut ports = Attached { outside, streams: &mut self.streams };
        let done = self.driver.progress(&mut self.engine, &mut ports, &MonotonicClock, options);
        self.look_for_sleepers();
        done
    }

    /// Sends what became sendable.
    pub fn flush(&mut self, outside: &Outside, now: Time) {
        let mut ports = Attached { outside, streams: &mut self.streams };
        self.driver.flush(&mut self.engine, &mut ports, &MonotonicClock, now);
        self.look_for_sleepers();
    }
}
