//! Streams between neighbours through memory, all others through the rail. Owns: the streams that go through memory,
//! and the connections that have come in and whose hello has not.

use crate::connection::{Connection, neighbour};
use crate::hello::{Hello, Kind};
use crate::loan::{Borrower, Got, Lender};
use crate::shared::{ConnectionId, Shared, new_epoll, readable, watch};
use rerail_rail::{
    Alternate, CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId,
    StreamEvent, StreamId, StreamPort,
};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the listener and the bells are looked at: bounds how late a neighbour's connection is taken.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// How often the rail's own streams are looked at while streams through memory are there: a look is a system call.
const INNER_EVERY: Duration = Duration::from_micros(2);
/// How long a connection may take until its hello comes, which is sent with the connection.
const HELLO_PATIENCE: Duration = Duration::from_secs(1);
/// How long no connection is accepted when the process has no descriptors left: a sleeper would wake up for nothing
/// again and again.
const DEAF: Duration = Duration::from_millis(20);
/// Connections without a hello, at most.
const GREETINGS_MAX: usize = 256;
/// Connections accepted at once: those of another user's process, which are refused, must not hold up the caller.
const GREETINGS_AT_ONCE: usize = 16;

struct Stream {
    rail: RailId,
    id: ConnectionId,
    c: Arc<Connection>,
    lender: Lender,
    borrower: Borrower,
}

impl Stream {
    fn new(rail: RailId, id: ConnectionId, c: Arc<Connection>, single_copy: bool) -> Self {
        let pid = if single_copy { neighbour(c.socket()) } else { None };
        Self { rail, id, c, lender: Lender::default(), borrower: Borrower::new(pid) }
    }
}

pub(crate) struct ShmStreams {
    shared: Arc<Shared>,
    inner: Box<dyn StreamPort>,
    streams: FxHashMap<StreamId, Stream>,
    /// Connections that were made, for the next poll.
    connected: Vec<StreamId>,
    greetings: Vec<(OwnedFd, Instant)>,
    /// Streams that a poll finds over.
    over: Vec<(StreamId, CloseReason)>,
    /// No connection is accepted until then.
    deaf_until: Option<Instant>,
    /// Over the listener, those without a hello, and the news.
    doors: OwnedFd,
    /// Over the doors, the bells and the rail's own descriptor.
    epoll: OwnedFd,
    looked: Instant,
    inner_looked: Instant,
}

impl ShmStreams {
    pub fn new(shared: Arc<Shared>, inner: Box<dyn StreamPort>, epoll: OwnedFd, doors: OwnedFd) -> Self {
        let now = Instant::now();
        Self {
            shared,
            inner,
            streams: FxHashMap::default(),
            connected: Vec::new(),
            greetings: Vec::new(),
            over: Vec::new(),
            deaf_until: None,
            doors,
            epoll,
            looked: now,
            inner_looked: now,
        }
    }

    /// The descriptor over listener and news, watched by `epoll`.
    pub fn doors(shared: &Shared, epoll: &OwnedFd) -> io::Result<OwnedFd> {
        let doors = new_epoll()?;
        watch(&doors, &shared.listener, 0)?;
        watch(&doors, &shared.news, 1)?;
        watch(epoll, &doors, 2)?;
        Ok(doors)
    }

    /// Opens through memory; `None`: it has to go the long way.
    fn open_near(&mut self, stream: StreamId, rail: RailId, to: Locator) -> Option<()> {
        let from = self.shared.locator(rail)?;
        if !self.shared.is_neighbour(&to) {
            return None;
        }
        let hello = Hello { kind: Kind::Stream, from, to };
        let c = Arc::new(Connection::connect(to.service(), hello).ok()?);
        let id = self.shared.add(&c).ok()?;
        self.streams.insert(stream, Stream::new(rail, id, c, self.shared.single_copy));
        self.connected.push(stream);
        self.shared.link(from, to);
        Some(())
    }

    fn forget(&mut self, stream: StreamId) -> bool {
        let Some(s) = self.streams.remove(&stream) else { return false };
        self.shared.remove(s.id);
        true
    }

    fn end(&mut self, stream: StreamId, why: CloseReason) -> Moved {
        self.forget(stream);
        Moved::Closed(why)
    }

    /// # Safety
    /// As [`StreamPort::write`], and with `lasting` as [`StreamPort::write_lasting`].
    unsafe fn put(&mut self, stream: StreamId, pieces: &[IoVec], lasting: bool) -> Moved {
        let lend = lasting && self.shared.single_copy;
        let Some(s) = self.streams.get_mut(&stream) else {
            // SAFETY: the caller's promise is handed on.
            return unsafe {
                if lasting {
                    self.inner.write_lasting(stream, pieces)
                } else {
                    self.inner.write(stream, pieces)
                }
            };
        };
        if s.c.over().is_some() {
            return self.end(stream, CloseReason::Reset);
        }
        // SAFETY: as above.
        let moved = match unsafe { s.lender.write(&s.c.out, pieces, lend) } {
            Ok(0) => Moved::Blocked,
            Ok(n) => Moved::Bytes(n),
            Err(_) => return self.end(stream, CloseReason::Reset),
        };
        // Also when no byte is taken: something may have been lent.
        if s.c.out.reader_to_wake() {
            s.c.ring_bell();
        }
        moved
    }

    /// Accepts connections, and reads the hellos that have come; returns the first stream among them.
    fn greet(&mut self) -> Option<(Hello, Connection)> {
        let most = (self.greetings.len() + GREETINGS_AT_ONCE).min(GREETINGS_MAX);
        while self.greetings.len() < most {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match accept_with(&self.shared.listener, flags) {
                Ok(s) => self.greetings.push((s, Instant::now())),
                Err(Errno::AGAIN) => break,
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    let _ = epoll::delete(&self.doors, &self.shared.listener);
                    self.deaf_until = Some(Instant::now() + DEAF);
                    break;
                }
            }
        }
        let mut i = 0;
        while i < self.greetings.len() {
            let (s, since) = &self.greetings[i];
            match Connection::greet(s) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && since.elapsed() < HELLO_PATIENCE => i += 1,
                Err(_) => drop(self.greetings.swap_remove(i)),
                Ok((hello, segment)) => {
                    let (s, _) = self.greetings.swap_remove(i);
                    let c = Connection::accepted(s, &segment);
                    match hello.kind {
                        Kind::Datagrams => self.shared.add_link(hello.from.service(), Arc::new(c)),
                        Kind::Stream => return Some((hello, c)),
                    }
                }
            }
        }
        None
    }
}

impl StreamPort for ShmStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        if self.open_near(stream, rail, to).is_none() {
            self.inner.open(stream, rail, to);
        }
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        while let Some((hello, c)) = self.greet() {
            // No rail has this address: the connection is dropped.
            let Some(rail) = self.shared.rail_at(&hello.to) else { continue };
            let c = Arc::new(c);
            let Ok(id) = self.shared.add(&c) else { continue };
            let stream = name(rail, hello.from);
            self.streams.insert(stream, Stream::new(rail, id, c, self.shared.single_copy));
            return true;
        }
        self.inner.accept(name)
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let Some(s) = self.streams.get_mut(&stream) else {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.inner.read(stream, pieces) };
        };
        s.borrower.introduce(&s.c.incoming);
        let over = s.c.over();
        if over == Some(true) {
            return self.end(stream, CloseReason::Reset);
        }
        // SAFETY: as above.
        let moved = match unsafe { s.c.incoming.read(pieces) } {
            // What is lent comes behind what is in the ring. Not in one call: the caller knows where it goes only when
            // it has read what is in front of it.
            // SAFETY: as above.
            Ok(0) => match unsafe { s.borrower.read(&s.c.incoming, pieces) } {
                Ok(got) => got,
                Err(_) => Got::Gone,
            },
            Ok(n) => Got::Bytes(n),
            Err(_) => Got::Gone,
        };
        match moved {
            Got::Bytes(n) => {
                // Void, if the other side closed while it was read.
                if s.c.incoming.is_closed() {
                    return self.end(stream, CloseReason::Reset);
                }
                if s.c.incoming.writer_to_wake() {
                    s.c.ring_bell();
                }
                Moved::Bytes(n)
            }
            Got::Nothing if over.is_some() => self.end(stream, CloseReason::Eof),
            Got::Nothing => Moved::Blocked,
            Got::Gone => self.end(stream, CloseReason::Reset),
        }
    }

    fn goes_on(&self, stream: StreamId) -> bool {
        match self.streams.get(&stream) {
            Some(s) => s.c.has_input(),
            None => self.inner.goes_on(stream),
        }
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.put(stream, pieces, false) }
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.put(stream, pieces, true) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        match self.streams.get(&stream) {
            Some(s) => self.shared.wants_room(&s.c),
            None => self.inner.want_writable(stream),
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        match self.streams.contains_key(&stream) {
            true => Posted::Refused,
            // SAFETY: the caller's promise is handed on.
            false => unsafe { self.inner.place(stream, place) },
        }
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.register(rail, region, memory) }
    }

    fn invalidate(&mut self, region: MemId) {
        self.inner.invalidate(region);
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        self.inner.load_alternate(stream, alternate);
    }

    fn migrate(&mut self, stream: StreamId) {
        self.inner.migrate(stream);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        self.connected.retain(|s| *s != stream);
        if self.forget(stream) { Closing::Done } else { self.inner.close(stream) }
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.streams.get(&stream).map(|s| s.rail).or_else(|| self.inner.rail_of(stream))
    }

    /// The kernel keeps the socket as long as the other process exists, whatever it does; and what was written lies in memory of both.
    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        let Some(s) = self.streams.get(&stream) else { return self.inner.far_kernel(stream) };
        self.shared.look();
        s.c.over().is_none().then_some(FarKernel::new(Duration::ZERO, true))
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        out.extend(self.connected.drain(..).map(StreamEvent::Connected));
        let now = Instant::now();
        if self.streams.is_empty() || now.duration_since(self.inner_looked) >= INNER_EVERY {
            self.inner.poll(out);
            self.inner_looked = now;
        }
        let soon = &self.shared.look_soon;
        let soon = soon.load(Ordering::Relaxed) && soon.swap(false, Ordering::Acquire);
        if soon || now.duration_since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            self.shared.look();
            if self.deaf_until.is_some_and(|t| now >= t)
                && watch(&self.doors, &self.shared.listener, 0).is_ok()
            {
                self.deaf_until = None;
            }
            let mut doors = Vec::new();
            readable(&self.doors, &mut doors);
            if doors.contains(&1) {
                let _ = rustix::io::read(&self.shared.news, &mut [0u8; 8][..]);
                self.shared.reap_links();
            }
            if doors.contains(&0) || !self.greetings.is_empty() {
                out.push(StreamEvent::Incoming);
            }
        }
        for (&name, s) in &self.streams {
            match (s.c.over(), s.c.has_input()) {
                (Some(true), _) => self.over.push((name, CloseReason::Reset)),
                (Some(false), false) => self.over.push((name, CloseReason::Eof)),
                (_, true) => out.push(StreamEvent::Readable(name)),
                (None, false) => {}
            }
            if s.c.wants_room.load(Ordering::Relaxed) && s.c.has_room() {
                s.c.wants_room.store(false, Ordering::Relaxed);
                out.push(StreamEvent::Writable(name));
            }
        }
        for (name, why) in std::mem::take(&mut self.over) {
            self.forget(name);
            out.push(StreamEvent::Closed(name, why));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
        out.extend([self.doors.as_raw_fd(), self.epoll.as_raw_fd()]);
        out.extend(self.greetings.iter().map(|(s, _)| s.as_raw_fd()));
    }
}
