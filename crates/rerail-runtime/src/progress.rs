//! One bounded piece of progress. Owns: the engine, the stream port, and the buffers between them; all under one lock.
//!
//! The order within a piece: datagrams that others read for us, then datagrams, links, streams; then, with everything that
//! had arrived in hand, timers (hazard H12: after an absence first drain what arrived, then look at the deadlines); then
//! everything that became sendable, control first.

use crate::burst::Burst;
use crate::events::Sink;
use crate::faults::Planted;
use crate::flag::Flag;
use crate::sys::{self, Bell};
use crate::wait::Sleepers;
use parking_lot::Mutex;
use rerail_core::{
    Action, CloseReason, CqId, Datagram, Engine, RailEvent, RailId, Responder, StreamId, Time, Train, Window,
};
use rerail_rail::{Condition, DatagramPort, LinkWatch, Moved, SendOutcome, StreamEvent, StreamPort};
use rerail_seal::SealedDatagrams;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Datagrams (or trains of them) handled in one piece. Enough to make a wake-up worth while, few enough to go on to streams and timers.
const DATAGRAMS_MAX: usize = 32;
/// The same after an absence, when everything that arrived has to be seen before any deadline is. More than a receive buffer
/// holds, so only a bound against a flood.
const DATAGRAMS_MAX_AFTER_ABSENCE: usize = 16_384;
/// A time is good enough for posting a receive when a tick of the kernel's clock is that much later at most: it decides when a handshake began,
/// no more.
const ABOUT: Duration = Duration::from_millis(1);
/// As many are handled within a few microseconds.
const FEW_DATAGRAMS: usize = 4;
/// Not having been here for this long is an absence.
const ABSENCE: Duration = Duration::from_millis(10);
/// After as long without a piece everything that lies there is read, whoever waits for what: on a machine with more ranks than cores one piece is
/// all that a rank gets in a turn, and with one message for each turn all wait for each other.
const READ_ON_AFTER: Duration = Duration::from_micros(50);
/// Bytes read from one stream before others get their turn.
const READ_BYTES_MAX: usize = 1 << 20;
/// Bytes written in one piece, summed over the streams; the stream that passes it still writes its window.
const WRITE_BYTES_MAX: usize = 4 << 20;
/// Datagrams sent in one piece; the rest goes with the next.
const SEND_MAX: usize = 1024;
/// Trains of bulk datagrams sent before control has its turn again.
const TRAINS_MAX: usize = 8;
/// Polls of the datagram port for one of the stream port when no bulk is expected: bounds how late an incoming connection is
/// taken, at a thirty-second of the price of a poll.
const STREAM_POLL_EVERY: u32 = 32;
/// The stream port is polled as well when it was not for this long: where more ranks than cores take turns, pieces are rare, and 32 of
/// them took so long that what lay unread in a connection made it look stuck.
const STREAM_POLL_AFTER: Duration = Duration::from_micros(100);
/// Pieces that go on polling the streams after something came in on one: what comes by stream comes in trains.
const STREAM_WARM: u32 = 256;
/// How often a thread that makes progress looks for link events: their budget is 1 ms, and the service thread may have to
/// wait longer than that for a core.
const LINK_LOOK_EVERY: Duration = Duration::from_micros(500);
/// Connections accepted in one piece.
const ACCEPT_MAX: usize = 64;
/// Datagrams that wait for the engine at most, when it is locked: as many as make a window of several peers.
pub(crate) const STASH_MAX: usize = 4096;
/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// A datagram read by a thread that could not get at the engine.
struct Stashed {
    rail: RailId,
    from: SocketAddr,
    bytes: Box<[u8]>,
}

/// What comes in without the engine's lock, and waits for whoever has it next.
pub(crate) struct Inbox {
    /// Something is in one of the two queues.
    some: Flag,
    stash: Mutex<VecDeque<Stashed>>,
    link_changes: Mutex<Vec<(RailId, bool)>>,
    links: Mutex<Box<dyn LinkWatch>>,
    /// Descriptor of `links`, to be read without its lock.
    pub links_fd: RawFd,
}

/// How long a thread without the engine waits for one of the small locks: its holder may have been stopped.
pub(crate) const SMALL_LOCK_PATIENCE: Duration = Duration::from_millis(1);

impl Inbox {
    pub fn new(links: Box<dyn LinkWatch>) -> Self {
        Self {
            links_fd: links.fd().as_raw_fd(),
            some: Flag::new(),
            stash: Mutex::default(),
            link_changes: Mutex::default(),
            links: Mutex::new(links),
        }
    }

    /// Keeps a datagram; a full stash drops it, as a full socket would.
    pub fn stash(&self, rail: RailId, from: SocketAddr, bytes: &[u8]) {
        let Some(mut q) = self.stash.try_lock_for(SMALL_LOCK_PATIENCE) else { return };
        if q.len() < STASH_MAX {
            q.push_back(Stashed { rail, from, bytes: bytes.into() });
            self.some.raise();
        }
    }

    /// Looks for link changes, unless another thread is just doing so; returns whether there are any to be told.
    pub fn look_at_links(&self) -> bool {
        if let Some(mut links) = self.links.try_lock() {
            // Drained under the lock of the queue, so that changes stay in order whoever takes them.
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

/// What a piece of progress shares with those who have no lock.
pub(crate) struct Outside {
    /// The datagram port; see [`Outside::datagrams`].
    pub plain: Arc<dyn DatagramPort>,
    /// Faults that the user has planted, once that was asked for.
    pub planted: OnceLock<Planted>,
    /// The port that encrypts, if this process does: over the two others, so that a planted fault cannot change what is sealed.
    pub sealed: OnceLock<SealedDatagrams>,
    pub inbox: Inbox,
    /// Answers queries when the engine is locked; the engine's actions keep its table.
    pub responder: Mutex<Responder>,
    pub events: Sink,
    /// Wakes the service thread.
    pub bell: Bell,
}

impl Outside {
    /// The port for datagrams, with faults if there are any. What it costs to ask is one look at a word that is only ever written
    /// when the first fault is planted; a call of the port is a system call.
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
        // What lies over the plain port only ever holds things back, and wakes for them by itself.
        let max = if self.plain.before_sleep(streams) { Duration::ZERO } else { max };
        let woken = sys::sleep_on(fds, Some(max));
        self.plain.after_sleep();
        woken
    }
}

/// What a piece of progress did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Something came in.
    pub input: bool,
    /// A bound was reached: more can be done at once.
    pub more: bool,
}

/// How a piece of progress is made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Poll the streams whether or not bulk is expected.
    pub streams: bool,
    /// Stop reading datagrams as soon as this queue has an entry: whoever waits for it gets it sooner.
    pub until: Option<CqId>,
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

pub(crate) struct State {
    pub engine: Engine,
    pub streams: StreamSlot,
    out: Datagram,
    train: Train,
    window: Window,
    received: Box<[u8]>,
    ready: Vec<StreamEvent>,
    /// Pieces since the streams were polled.
    unpolled: u32,
    /// When that was.
    polled_at: Time,
    /// Pieces that still poll the streams because something came in on one lately.
    warm: u32,
    /// When the last piece was done.
    pub last: Time,
    links_looked: Time,
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
            out: Datagram::default(),
            train: Train::default(),
            window: Window::default(),
            received: vec![0; DATAGRAM_BYTES_MAX].into(),
            ready: Vec::new(),
            unpolled: 0,
            polled_at: now,
            warm: 0,
            last: now,
            links_looked: now,
            pops: 0,
            burst: Burst::default(),
            sleepers: Sleepers::default(),
        }
    }

    /// The time of the last piece of progress, if that is a few milliseconds old at most: for what needs no better.
    pub fn about_now(&self) -> Time {
        if sys::tick_before().since(self.last) < ABOUT { self.last } else { sys::now() }
    }

    /// The next piece polls the streams whatever is expected.
    pub fn look_at_streams(&mut self) {
        self.unpolled = STREAM_POLL_EVERY;
    }

    /// The engine may have changed: rings the bells of those who wait for what is there now.
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
    pub fn progress(&mut self, outside: &Outside, manner: Manner) -> Done {
        let now = sys::now();
        let absent = now.since(self.last) > ABSENCE;
        let mut done = Done::default();

        if now.since(self.links_looked) > LINK_LOOK_EVERY {
            self.links_looked = now;
            outside.inbox.look_at_links();
        }
        if outside.inbox.some.is_up() {
            self.take_inbox(&outside.inbox, now);
            done.input = true;
        }

        let most = if absent { DATAGRAMS_MAX_AFTER_ABSENCE } else { DATAGRAMS_MAX };
        let until = if now.since(self.last) > READ_ON_AFTER { None } else { manner.until };
        // whoever waits for one message, and not for what comes by streams as well
        let mut eagerly = until.is_some() && self.warm == 0 && !self.engine.expects_streams();
        let mut count = 0;
        while count < most {
            let found = match std::mem::take(&mut eagerly) {
                true => outside.datagrams().recv_train_eagerly(&mut self.received),
                false => outside.datagrams().recv_train(&mut self.received),
            };
            let Ok(Some(t)) = found else { break };
            let bytes = &self.received[..t.len];
            match t.condition {
                Condition::Whole => {
                    for one in bytes.chunks(t.segment) {
                        self.engine.handle_datagram(t.rail, t.from, one, now);
                    }
                }
                Condition::Damaged => {
                    let cid = bytes.first_chunk().map_or(0, |cid| u64::from_le_bytes(*cid));
                    self.engine.handle_damaged(t.rail, t.from, cid, now);
                }
                Condition::Unsealed => self.engine.handle_unsealed(now),
            }
            count += 1;
            if until.is_some_and(|cq| self.engine.cq_head(cq).is_some()) {
                break;
            }
        }
        done.input |= count > 0;
        done.more |= count == most;

        self.unpolled += 1;
        if manner.streams
            || absent
            || self.warm > 0
            || self.unpolled >= STREAM_POLL_EVERY
            || now.since(self.polled_at) >= STREAM_POLL_AFTER
            || self.engine.expects_streams()
        {
            self.unpolled = 0;
            self.polled_at = now;
            let streams = self.poll_streams(outside);
            self.warm = if streams.input { STREAM_WARM } else { self.warm.saturating_sub(1) };
            done.input |= streams.input;
            done.more |= streams.more;
        }

        // A few datagrams take no time worth asking for.
        let now = if done.input && (count > FEW_DATAGRAMS || done.more || self.unpolled == 0) {
            sys::now()
        } else {
            now
        };
        if done.input || self.engine.poll_timeout().is_some_and(|t| t <= now) {
            self.engine.handle_timeout(now);
        }
        done.more |= self.flush(outside, now);
        self.last = now;
        done
    }

    fn take_inbox(&mut self, inbox: &Inbox, now: Time) {
        inbox.some.lower();
        // One after the other, never both locks at once.
        let changes = std::mem::take(&mut *inbox.link_changes.lock());
        for (rail, up) in changes {
            self.engine.handle_rail(rail, if up { RailEvent::Up } else { RailEvent::Down }, now);
        }
        let stash = std::mem::take(&mut *inbox.stash.lock());
        for d in stash {
            self.engine.handle_datagram(d.rail, d.from, &d.bytes, now);
        }
    }

    fn poll_streams(&mut self, outside: &Outside) -> Done {
        let mut ready = std::mem::take(&mut self.ready);
        self.streams.poll(&mut ready);
        let mut done = Done { input: !ready.is_empty(), more: false };
        for event in ready.drain(..) {
            let now = sys::now();
            match event {
                StreamEvent::Incoming => {
                    let engine = &mut self.engine;
                    for _ in 0..ACCEPT_MAX {
                        if !self.streams.accept(&mut |rail, from| engine.stream_accepted(rail, from, now)) {
                            break;
                        }
                    }
                }
                StreamEvent::Connected(s) => self.engine.stream_connected(s, now),
                StreamEvent::Writable(s) => self.engine.stream_writable(s),
                StreamEvent::Closed(s, why) => self.engine.stream_closed(s, why, now),
                StreamEvent::Readable(s) => done.more |= self.read(s, outside),
            }
        }
        self.ready = ready;
        done
    }

    /// Reads a stream until it has no more or it is the turn of others; returns whether there may be more.
    fn read(&mut self, s: StreamId, outside: &Outside) -> bool {
        let mut left = READ_BYTES_MAX;
        while left > 0 {
            self.window.clear();
            if !self.engine.stream_rx_window(s, &mut self.window) {
                return false;
            }
            if self.window.bytes() == 0 {
                self.engine.stream_rx_done(s, 0, sys::now());
                return false;
            }
            // SAFETY: the engine has just leased these pieces to this stream, and is told right after the call
            // (stream_rx_done), before anything else can be asked of it.
            match unsafe { self.streams.read(s, self.window.pieces()) } {
                Moved::Bytes(n) => {
                    let now = sys::now();
                    self.engine.stream_rx_done(s, n, now);
                    // Acknowledgements go while we read on: the sender keeps its window moving.
                    self.send_datagrams(outside, now);
                    if n < self.window.bytes() && !self.streams.goes_on(s) {
                        return false;
                    }
                    left = left.saturating_sub(n);
                }
                Moved::Blocked => {
                    self.engine.stream_rx_done(s, 0, sys::now());
                    return false;
                }
                Moved::Closed(why) => {
                    let now = sys::now();
                    self.engine.stream_rx_done(s, 0, now);
                    self.engine.stream_closed(s, why, now);
                    return false;
                }
            }
        }
        true
    }

    /// Sends what became sendable; returns whether a bound was reached and there is more.
    /// The clock is read again only after something was done: an empty piece of progress reads it once.
    pub fn flush(&mut self, outside: &Outside, mut now: Time) -> bool {
        let mut more = false;
        let mut written = 0;
        // An action or a written frame may make the next datagram sendable; two more rounds settle that.
        for _ in 0..3 {
            let sent = self.send_datagrams(outside, now);
            more |= sent == SEND_MAX;
            if !self.engine.has_output() {
                break;
            }
            let mut quiet = sent == 0;
            for n in 1.. {
                if !self.engine.poll_train(now, &mut self.train) {
                    break;
                }
                quiet = false;
                self.send_train(outside, now);
                if n == TRAINS_MAX {
                    more = true;
                    break;
                }
            }
            while let Some(action) = self.engine.poll_action() {
                quiet = false;
                self.act(action, outside);
            }
            while written < WRITE_BYTES_MAX {
                let Some(s) = self.engine.poll_writable(now) else { break };
                quiet = false;
                written += self.write_window(s);
                now = sys::now();
            }
            if quiet {
                break;
            }
        }
        while let Some(event) = self.engine.poll_event() {
            outside.events.push(event);
            outside.bell.ring();
        }
        self.look_for_sleepers();
        more || written >= WRITE_BYTES_MAX
    }

    /// Sends the datagrams that are ready, at most [`SEND_MAX`]; returns how many.
    fn send_datagrams(&mut self, outside: &Outside, now: Time) -> usize {
        let mut broken = 0u16;
        for n in 0..SEND_MAX {
            if !self.engine.poll_datagram(now, &mut self.out) {
                return n;
            }
            let rail = self.out.rail;
            if outside.datagrams().send(rail, self.out.to, &self.out.bytes) == SendOutcome::RailBroken
                && broken & 1 << rail.0 == 0
            {
                // Once for each rail and piece: the engine has more datagrams for it in hand.
                broken |= 1 << rail.0;
                self.engine.handle_rail(rail, RailEvent::SendError, now);
            }
        }
        SEND_MAX
    }

    /// Sends the train at hand.
    fn send_train(&mut self, outside: &Outside, now: Time) {
        let t = &self.train;
        let done = outside.datagrams().send_train(t.rail, t.to, &t.bytes, t.segment);
        if done.rest != SendOutcome::Sent {
            let broken = done.rest == SendOutcome::RailBroken;
            self.engine.train_refused(t, done.sent, broken, now);
            if broken {
                self.engine.handle_rail(t.rail, RailEvent::SendError, now);
            }
        }
    }

    fn act(&mut self, action: Action, outside: &Outside) {
        match action {
            Action::OpenStream { stream, rail, to } => self.streams.open(stream, rail, to),
            Action::CloseStream { stream } => {
                self.streams.close(stream);
                self.engine.stream_closed(stream, CloseReason::Requested, sys::now());
            }
            Action::InspectStream { stream } => {
                let told = self.streams.far_kernel(stream);
                self.engine.stream_inspected(stream, told, sys::now());
            }
            Action::KeepNeighbour { rail, to } => outside.datagrams().keep_neighbour(rail, to),
            Action::Responder(u) => outside.responder.lock().update(u),
        }
    }

    /// Writes one window of a stream; returns the bytes. A stream with more to write queues up again behind the others, so
    /// that all rails are kept busy.
    fn write_window(&mut self, s: StreamId) -> usize {
        self.window.clear();
        if !self.engine.stream_tx_window(s, &mut self.window, sys::now()) {
            return 0;
        }
        // SAFETY: the engine holds these pieces still until stream_tx_done, which comes right after the call; and a frame that was begun, and
        // whose memory is given back before all of it is taken, is brought to its end with ABORT (hazard H1).
        let (taken, closed) = match unsafe { self.streams.write_lasting(s, self.window.pieces()) } {
            Moved::Bytes(n) => (n, None),
            Moved::Blocked => (0, None),
            Moved::Closed(why) => (0, Some(why)),
        };
        let now = sys::now();
        self.engine.stream_tx_done(s, taken, now);
        if let Some(why) = closed {
            self.engine.stream_closed(s, why, now);
        } else if taken < self.window.bytes() {
            self.streams.want_writable(s);
        }
        taken
    }
}
