//! The adapter: threads that move memory by themselves, two for each stream. Owns: the streams, the regions, and the events for the engine.
//!
//! A stream carries records: a header of four words (kind, key, offset, length), and as many bytes. A record is either bytes of the stream
//! or a write into the peer's memory. Its sender reads the source when the socket has room for the next part, and its receiver puts each part into the
//! region when it arrives: both late, and both with the lock of the state held, until the thread has ended or the region is invalid.
//!
//! Bounded: [`STREAM_BYTES_MAX`] bytes each way and [`PLACES_MAX`] writes wait here, more waits with the caller and in the sockets.

use parking_lot::{Condvar, Mutex, MutexGuard};
use rerail_rail::thread::{Signal, spawn};
use rerail_rail::{CloseReason, IoVec, Locator, MemId, Place, RailId, RemoteKey, StreamEvent, StreamId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writes that may be under way on a stream.
pub(crate) const PLACES_MAX: u16 = 16;
/// Bytes of the stream itself that wait, each way.
pub(crate) const STREAM_BYTES_MAX: usize = 256 << 10;
/// Most bytes that are moved with the lock held.
const PART_BYTES_MAX: usize = 16 << 10;
/// About as many parts are in the sockets of a stream: an invalidation is as late as all of them.
const PARTS_UNDER_WAY: u32 = 16;
/// Connections that wait to be accepted by the engine; more are refused.
const INCOMING_MAX: usize = 64;
/// How long a listener rests when it cannot accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);

/// Kinds of records.
const BYTES: u64 = 0;
const WRITE: u64 = 1;

/// Memory that peers may write on a rail by a key.
pub(crate) struct Region {
    pub id: MemId,
    pub rail: RailId,
    pub memory: IoVec,
}

/// What waits to be sent, in the order in which it was written and placed.
pub(crate) enum Outgoing {
    Bytes(VecDeque<u8>),
    Write { place: Place, read: usize },
}

/// One stream.
pub(crate) struct Connection {
    pub rail: RailId,
    pub socket: Arc<UnixStream>,
    pub outgoing: VecDeque<Outgoing>,
    /// Of `outgoing`: bytes of the stream, and writes.
    pub bytes_waiting: usize,
    pub writes_waiting: u16,
    /// All that was written and placed is with the peer's kernel.
    pub idle: bool,
    pub wants_room: bool,
    pub arrived: VecDeque<u8>,
    /// It broke; and the engine knows that.
    pub over: bool,
    pub end_is_reported: bool,
    /// The engine wants it closed.
    pub closing: bool,
    /// Its threads that run; they look again when it changes.
    running: u8,
    pub changed: Arc<Condvar>,
}

impl Connection {
    fn new(rail: RailId, socket: Arc<UnixStream>) -> Self {
        Self {
            rail,
            socket,
            outgoing: VecDeque::new(),
            bytes_waiting: 0,
            writes_waiting: 0,
            idle: true,
            wants_room: false,
            arrived: VecDeque::new(),
            over: false,
            end_is_reported: false,
            closing: false,
            running: 2,
            changed: Arc::default(),
        }
    }

    /// Whether it is readable, whether it is writable and that was requested, and whether its end is to be reported.
    pub fn news(&self) -> [bool; 3] {
        let readable = !self.arrived.is_empty();
        let writable = self.wants_room && !self.over && self.bytes_waiting <= STREAM_BYTES_MAX / 2;
        let ended = self.over && !readable && !self.end_is_reported;
        [readable, writable, ended].map(|news| news && !self.closing)
    }

    /// Ends its threads. What waits to be sent is lent until they have ended. True: they have.
    pub fn close(&mut self) -> bool {
        self.closing = true;
        // It fails for a connection that broke.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.changed.notify_all();
        self.running == 0
    }
}

/// What the threads and the engine share under a lock.
#[derive(Default)]
pub(crate) struct State {
    pub streams: BTreeMap<StreamId, Connection>,
    pub incoming: VecDeque<(RailId, UnixStream)>,
    pub regions: FxHashMap<RemoteKey, Region>,
    /// Regions that are to be invalid, and when they are.
    ending: Vec<(Instant, MemId)>,
    pub events: Vec<StreamEvent>,
    pub threads: Vec<JoinHandle<()>>,
    /// The port is dropped.
    pub over: bool,
}

/// All of a process's rails.
pub(crate) struct Shared {
    pub rails: Vec<Locator>,
    /// By rail.
    pub listeners: Vec<UnixListener>,
    /// How much later than it arrives a part of a write lands.
    late: Duration,
    /// There are events.
    pub news: Signal,
    state: Mutex<State>,
}

/// The state with its lock held. When it is let go, the descriptor of the streams is readable if there are events.
pub(crate) struct Locked<'a>(MutexGuard<'a, State>, &'a Signal);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let state = &self.0;
        let streams = || state.streams.values().any(|c| c.news() != [false; 3]);
        let waits = !state.events.is_empty() || !state.incoming.is_empty() || !state.ending.is_empty();
        self.1.set(waits || streams());
    }
}

impl Shared {
    pub fn new(rails: Vec<Locator>, late: Duration) -> io::Result<Shared> {
        let listeners = rails.iter().map(crate::streams::listen).collect::<io::Result<_>>()?;
        Ok(Shared { rails, listeners, late, news: Signal::new()?, state: Mutex::default() })
    }

    pub fn lock(&self) -> Locked<'_> {
        Locked(self.state.lock(), &self.news)
    }

    /// Lets a region be invalid, with the next poll at the earliest.
    pub fn end_region(&self, region: MemId) {
        self.lock().ending.push((Instant::now() + PARTS_UNDER_WAY * self.late, region));
    }

    /// Starts what accepts connections.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        for rail in 0..self.rails.len() {
            let shared = self.clone();
            self.lock().threads.push(spawn("rerail-example", move || shared.accept(rail))?);
        }
        Ok(())
    }

    fn accept(&self, rail: usize) {
        loop {
            let accepted = self.listeners[rail].accept();
            let mut state = self.lock();
            match accepted {
                _ if state.over => return,
                Ok((socket, _)) if state.incoming.len() < INCOMING_MAX => {
                    state.incoming.push_back((RailId(rail as u8), socket));
                }
                Ok(_) => {}
                // no descriptors
                Err(_) => {
                    drop(state);
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Moves what a stream sends and receives from now on.
    pub fn begin(self: &Arc<Self>, stream: StreamId, rail: RailId, socket: UnixStream) {
        let socket = Arc::new(socket);
        let mut state = self.lock();
        state.threads.retain(|t| !t.is_finished());
        state.streams.insert(stream, Connection::new(rail, socket.clone()));
        drop(state);
        for direction in [Shared::send, Shared::receive] {
            let (shared, socket) = (self.clone(), socket.clone());
            let moves = move || {
                direction(&shared, stream, rail, &socket);
                shared.ended(stream);
            };
            match spawn("rerail-example", moves) {
                Ok(thread) => self.lock().threads.push(thread),
                Err(_) => self.ended(stream),
            }
        }
    }

    /// One thread of a stream touches no memory any more. When neither does and the engine wants that, it is closed.
    fn ended(&self, stream: StreamId) {
        let mut state = self.lock();
        let c = state.stream(stream);
        c.over = true;
        c.running -= 1;
        c.changed.notify_all();
        if c.closing && c.running == 0 {
            state.streams.remove(&stream);
            state.events.push(StreamEvent::Closed(stream, CloseReason::Requested));
        }
    }

    /// Waits until `ready` of a stream. `None`: it is to be closed.
    fn wait(&self, stream: StreamId, ready: impl Fn(&mut Connection) -> bool) -> Option<Locked<'_>> {
        let mut state = self.lock();
        loop {
            let c = state.stream(stream);
            if c.closing {
                return None;
            } else if ready(c) {
                return Some(state);
            }
            c.changed.clone().wait(&mut state.0);
        }
    }

    /// Hands to the socket what waits, until the stream is over.
    fn send(&self, stream: StreamId, _: RailId, mut socket: &UnixStream) -> Option<()> {
        let mut part = Vec::new();
        loop {
            part.clear();
            let mut state = self.wait(stream, |c| {
                c.idle = c.outgoing.is_empty();
                c.over || !c.idle
            })?;
            let State { streams, events, .. } = &mut *state;
            let c = streams.get_mut(&stream).filter(|c| !c.over)?;
            let done = match c.outgoing.front_mut()? {
                Outgoing::Bytes(queue) => {
                    let len = queue.len().min(PART_BYTES_MAX);
                    part.extend(header(BYTES, RemoteKey(0), 0, len));
                    part.extend(queue.drain(..len));
                    c.bytes_waiting -= len;
                    queue.is_empty()
                }
                Outgoing::Write { place, read } => {
                    if *read == 0 {
                        part.extend(header(WRITE, place.key, place.offset, place.source.len));
                    }
                    let len = (place.source.len - *read).min(PART_BYTES_MAX);
                    // SAFETY: the source is lent until `Placed` is reported or the stream is closed, neither of which has been
                    // while the lock is held, and `read + len` is no more than it has.
                    part.extend(unsafe { std::slice::from_raw_parts(place.source.ptr.add(*read), len) });
                    *read += len;
                    let done = *read == place.source.len;
                    if done {
                        c.writes_waiting -= 1;
                        events.push(StreamEvent::Placed(place.work));
                    }
                    done
                }
            };
            if done {
                c.outgoing.pop_front();
            }
            drop(state);
            socket.write_all(&part).ok()?;
        }
    }

    /// Puts what arrives where it belongs, until the stream is over or the peer breaks a rule; then the peer's end is over too.
    fn receive(&self, stream: StreamId, rail: RailId, socket: &UnixStream) -> Option<()> {
        let end = self.receive_all(stream, rail, socket);
        // It fails for a connection that broke.
        let _ = socket.shutdown(Shutdown::Both);
        end
    }

    fn receive_all(&self, stream: StreamId, rail: RailId, mut socket: &UnixStream) -> Option<()> {
        let mut buffer = vec![0; PART_BYTES_MAX];
        loop {
            let mut header = [0; 32];
            socket.read_exact(&mut header).ok()?;
            let word = |i: usize| u64::from_le_bytes(*header[8 * i..].first_chunk().expect("four words"));
            let (kind, key, offset, len) = (word(0), RemoteKey(word(1)), word(2), word(3));
            let mut got = 0;
            loop {
                let part = &mut buffer[..(len - got).min(PART_BYTES_MAX as u64) as usize];
                socket.read_exact(part).ok()?;
                // a write that has arrived lands although its stream is to be closed: that is over when this thread has ended
                let mut state = match kind {
                    WRITE => {
                        std::thread::sleep(self.late);
                        self.lock()
                    }
                    _ => self.wait(stream, |c| c.arrived.len() < STREAM_BYTES_MAX)?,
                };
                match kind {
                    BYTES => state.stream(stream).arrived.extend(&*part),
                    WRITE => {
                        // the whole write must fit, before its first byte lands
                        let memory = state.regions.get(&key).filter(|r| r.rail == rail)?.memory;
                        offset.checked_add(len).filter(|end| *end <= memory.len as u64)?;
                        // SAFETY: the region is registered, so its memory is valid for writes until `Invalidated` is reported, which
                        // has not been while the lock is held, and the part is inside. No reference is made to it.
                        unsafe {
                            let at = memory.ptr.add((offset + got) as usize);
                            std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                        }
                    }
                    _ => return None,
                }
                got += part.len() as u64;
                if got == len {
                    break;
                }
            }
        }
    }
}

impl State {
    /// One whose threads run.
    fn stream(&mut self, stream: StreamId) -> &mut Connection {
        self.streams.get_mut(&stream).expect("a stream is kept while its threads run")
    }

    /// Reports the regions that are invalid from now on.
    pub fn end_regions(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) = self.ending.drain(..).partition(|(at, _)| *at <= Instant::now());
        self.ending = later;
        for (_, region) in due {
            self.regions.retain(|_, r| r.id != region);
            self.events.push(StreamEvent::Invalidated(region));
        }
    }

    /// A stream that the engine has not closed.
    pub fn open_stream(&mut self, stream: StreamId) -> Option<&mut Connection> {
        self.streams.get_mut(&stream).filter(|c| !c.closing)
    }
}

fn header(kind: u64, key: RemoteKey, offset: u64, len: usize) -> [u8; 32] {
    let words = [kind, key.0, offset, len as u64].map(u64::to_le_bytes);
    *words.as_flattened().first_chunk().expect("four words of 8 bytes")
}
