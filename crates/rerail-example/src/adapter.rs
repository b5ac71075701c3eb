//! The adapter: one thread that moves memory by itself. Owns: the streams, the regions, the requests of the engine, and the
//! events for it.
//!
//! The thread executes a request (a close, a registration, an invalidation) one round of moves later. Until then, moves that are under way go
//! on. A request is executed, and its event queued, with the lock held that every move of memory takes: so no move follows the event.

use crate::connection::{Connection, Region, Regions};
use crate::datagrams::{self, DATAGRAM_BYTES_MAX, Inbox};
use crate::names;
use crate::record::PART_BYTES_MAX;
use crate::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use rerail_rail::{CloseReason, IoVec, Locator, MemId, RailId, RemoteKey, StreamEvent, StreamId};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, listen};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Connections that wait to be accepted by the engine, and as many in each listener.
const INCOMING_MAX: usize = 64;

/// How long the thread rests when it cannot accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);

/// A request of the engine.
pub(crate) enum Request {
    Register(RailId, MemId, IoVec),
    Invalidate(MemId),
    Close(StreamId),
}

/// What the thread and the engine share under a lock.
#[derive(Default)]
pub(crate) struct State {
    pub streams: BTreeMap<StreamId, Connection>,
    pub incoming: VecDeque<(RailId, Locator, OwnedFd)>,
    pub events: Vec<StreamEvent>,
    regions: Regions,
    requests: Vec<Request>,
    /// The port is dropped.
    over: bool,
}

/// All of a process's rails.
pub(crate) struct Shared {
    pub rails: Vec<Locator>,
    /// By rail.
    pub datagrams: Vec<OwnedFd>,
    pub listeners: Vec<OwnedFd>,
    pub inbox: Inbox,
    /// There are datagrams in the inbox.
    pub datagrams_wait: Signal,
    /// There are events of streams.
    pub news: Signal,
    /// The thread must look at the state again.
    wake: Signal,
    state: Mutex<State>,
}

/// What is polled.
enum Polled {
    Datagrams(usize),
    Listener(usize),
    Stream(StreamId),
}

impl Shared {
    pub fn new(rails: Vec<Locator>) -> Result<Shared, Errno> {
        let sockets = |kind, what| -> Result<Vec<OwnedFd>, Errno> {
            let named = |(i, own): (usize, &Locator)| {
                names::socket(kind, &names::name(own.service(), i as u8, what)?)
            };
            rails.iter().enumerate().map(named).collect()
        };
        let (datagrams, listeners) =
            (sockets(SocketType::DGRAM, "datagrams")?, sockets(SocketType::STREAM, "streams")?);
        listeners.iter().try_for_each(|l| listen(l, INCOMING_MAX as i32))?;
        Ok(Shared {
            datagrams,
            listeners,
            inbox: Inbox::default(),
            datagrams_wait: Signal::new()?,
            news: Signal::new()?,
            wake: Signal::new()?,
            state: Mutex::default(),
            rails,
        })
    }

    /// Where the rail of another process is whose socket has this name. `None`: it is none, or not one that this rail reaches.
    pub fn neighbour(&self, rail: usize, name: Option<SocketAddrAny>) -> Option<Locator> {
        let (service, far) = names::parse(name)?;
        (usize::from(far) == rail).then(|| self.rails[rail].with_service(service))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Lets the thread look again, after a change of what it waits for.
    pub fn wake(&self) {
        let _state = self.lock();
        self.wake.set(true);
    }

    /// Unlocks the state. The descriptor of the streams becomes readable when there are events, and the thread looks again if `wake`.
    pub fn let_go(&self, state: MutexGuard<'_, State>, wake: bool) {
        self.news.set(state.has_news());
        if wake {
            self.wake.set(true);
        }
    }

    /// The descriptor on which the thread is woken.
    pub fn wake_descriptor(&self) -> i32 {
        self.wake.fd().as_raw_fd()
    }

    /// What the thread does until the port is dropped.
    pub fn run(&self) {
        block_signals();
        let mut buffer = vec![0; PART_BYTES_MAX.max(DATAGRAM_BYTES_MAX.into())];
        while let Some((due, mut fds, polled)) = self.plan() {
            let timeout = if due > 0 { 0 } else { -1 };
            // SAFETY: the pollfds are valid for the call. Their descriptors are open: this thread alone closes those of streams, and the others
            // live as long as this.
            unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
            for (fd, what) in fds[1..].iter().zip(polled).filter(|(fd, _)| fd.revents != 0) {
                match what {
                    Polled::Datagrams(rail) => datagrams::take(self, rail, &mut buffer),
                    Polled::Listener(rail) => self.take_connection(rail),
                    Polled::Stream(stream) => {
                        let mut state = self.lock();
                        let State { streams, regions, events, .. } = &mut *state;
                        let Some(c) = streams.get_mut(&stream) else { continue };
                        if fd.revents & !libc::POLLIN != 0 {
                            c.send(events);
                        }
                        if fd.revents & !libc::POLLOUT != 0 {
                            c.receive(regions, &mut buffer);
                        }
                        self.let_go(state, false);
                    }
                }
            }
            let mut state = self.lock();
            state.settle(due);
            self.let_go(state, false);
        }
    }

    /// What is to be polled, after how many requests that were made before. `None`: the port is dropped.
    fn plan(&self) -> Option<(usize, Vec<libc::pollfd>, Vec<Polled>)> {
        let state = self.lock();
        self.wake.set(false);
        let mut polled = Vec::new();
        let mut fds = vec![libc::pollfd { fd: self.wake_descriptor(), events: libc::POLLIN, revents: 0 }];
        let mut poll = |fd, events, what| {
            fds.push(libc::pollfd { fd, events, revents: 0 });
            polled.push(what);
        };
        for i in 0..self.rails.len() {
            if self.inbox.has_room() {
                poll(self.datagrams[i].as_raw_fd(), libc::POLLIN, Polled::Datagrams(i));
            }
            if state.incoming.len() < INCOMING_MAX {
                poll(self.listeners[i].as_raw_fd(), libc::POLLIN, Polled::Listener(i));
            }
        }
        for (&stream, c) in &state.streams {
            // an end that waits for nothing is not polled: poll(2) would report a hang-up again and again
            if let (Some(fd), events @ 1..) = (c.descriptor(), c.waits_for()) {
                poll(fd, events, Polled::Stream(stream));
            }
        }
        (!state.over).then_some((state.requests.len(), fds, polled))
    }

    fn take_connection(&self, rail: usize) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, from) = match acceptfrom_with(&self.listeners[rail], flags) {
            Ok(taken) => taken,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            // no descriptors: the connection waits, and poll(2) would report it again and again
            Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
        };
        let Some(from) = self.neighbour(rail, from) else { return };
        let mut state = self.lock();
        state.incoming.push_back((RailId(rail as u8), from, socket));
        self.let_go(state, false);
    }

    /// The thread is to end.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.over = true;
        self.let_go(state, true);
    }
}

impl State {
    pub fn request(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// A stream that the engine has not closed.
    pub fn open_stream(&mut self, stream: StreamId) -> Option<&mut Connection> {
        self.streams.get_mut(&stream).filter(|c| !c.is_closing())
    }

    fn has_news(&self) -> bool {
        let news = |c: &Connection| c.news() != (false, false, None);
        !self.events.is_empty() || !self.incoming.is_empty() || self.streams.values().any(news)
    }

    /// Executes the first `due` requests.
    fn settle(&mut self, due: usize) {
        for request in self.requests.drain(..due) {
            self.events.push(match request {
                Request::Register(rail, id, memory) => {
                    let key = fresh_key(id);
                    self.regions.insert(key, Region { id, rail, memory });
                    StreamEvent::Registered(id, key)
                }
                Request::Invalidate(id) => {
                    self.regions.retain(|_, r| r.id != id);
                    StreamEvent::Invalidated(id)
                }
                Request::Close(stream) => {
                    self.streams.remove(&stream);
                    StreamEvent::Closed(stream, CloseReason::Requested)
                }
            });
        }
    }
}

/// Never used twice, because the name of a region is not; and hard to guess.
fn fresh_key(id: MemId) -> RemoteKey {
    let random = names::random_number().expect("getrandom(2) fails only for a bad buffer");
    RemoteKey(u64::from(id.0) << 32 | u64::from(random))
}

/// The application's handlers must not run on a thread that holds a lock of ours.
fn block_signals() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}
