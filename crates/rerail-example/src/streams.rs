//! The calls of the engine. Each takes the lock of the adapter's state for a moment, and leaves the rest to its threads.

use crate::adapter::{Outgoing, PLACES_MAX, Region, STREAM_BYTES_MAX, Shared};
use rerail_rail::{
    CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId, RemoteKey,
    StreamEvent, StreamId, StreamPort,
};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

/// The name at which a rail listens. The service is a port, and so belongs to one process of the network namespace, as the name does.
fn name(at: &Locator) -> String {
    format!("rerail-example/{}/{}", at.service(), at.place().last().copied().unwrap_or_default())
}

pub(crate) fn listen(at: &Locator) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(at))?)
}

/// A Unix socket is connected at once, or not at all: non-blocking for a listener that is full.
fn dial(to: &Locator) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let dialled = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&dialled, &SocketAddrUnix::new_abstract_name(name(to).as_bytes())?)?;
    let stream = UnixStream::from(dialled);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// See the module. The adapter's threads end with it.
pub(crate) struct ExampleStreams(Arc<Shared>);

impl ExampleStreams {
    pub fn start(shared: Arc<Shared>) -> io::Result<Self> {
        // dropped when a thread is missing
        let port = Self(shared);
        port.0.start()?;
        Ok(port)
    }
}

impl Drop for ExampleStreams {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.over = true;
        state.streams.values_mut().for_each(|c| {
            c.close();
        });
        self.0.listeners.iter().for_each(|l| {
            let _ = shutdown(l, Shutdown::Both);
        });
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        // One that panicked has printed why.
        threads.into_iter().for_each(|t| drop(t.join()));
    }
}

impl StreamPort for ExampleStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        let own = self.0.rails.get(usize::from(rail.0)).filter(|own| to.same_place(own));
        let event = match own.map(|_| dial(&to)) {
            Some(Ok(socket)) => {
                self.0.begin(stream, rail, socket);
                StreamEvent::Connected(stream)
            }
            Some(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => {
                StreamEvent::Closed(stream, CloseReason::Refused)
            }
            _ => StreamEvent::Closed(stream, CloseReason::Unreachable),
        };
        self.0.lock().events.push(event);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let Some((rail, socket)) = self.0.lock().incoming.pop_front() else { return false };
        // every process of this host is at this place
        self.0.begin(name(rail, self.0.rails[usize::from(rail.0)]), rail, socket);
        true
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let mut state = self.0.lock();
        let Some(c) = state.open_stream(stream) else { return Moved::Closed(CloseReason::Requested) };
        let mut given = 0;
        for piece in pieces {
            let n = piece.len.min(c.arrived.len());
            for (i, byte) in c.arrived.drain(..n).enumerate() {
                // SAFETY: the caller promises it, and `i` is less than the piece has.
                unsafe { piece.ptr.add(i).write(byte) };
            }
            given += n;
        }
        c.changed.notify_all();
        match given {
            0 if c.over => {
                c.end_is_reported = true;
                Moved::Closed(CloseReason::Reset)
            }
            0 => Moved::Blocked,
            n => Moved::Bytes(n),
        }
    }

    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let mut state = self.0.lock();
        let Some(c) = state.open_stream(stream) else { return Moved::Closed(CloseReason::Requested) };
        if c.over {
            c.end_is_reported = true;
            return Moved::Closed(CloseReason::Reset);
        }
        let mut taken = VecDeque::new();
        for piece in pieces {
            let n = piece.len.min(STREAM_BYTES_MAX - c.bytes_waiting - taken.len());
            // SAFETY: the caller promises it, and `n` is no more than the piece has.
            taken.extend(unsafe { std::slice::from_raw_parts(piece.ptr, n) });
        }
        if taken.is_empty() {
            return Moved::Blocked;
        }
        let n = taken.len();
        c.bytes_waiting += n;
        c.idle = false;
        match c.outgoing.back_mut() {
            Some(Outgoing::Bytes(queue)) => queue.append(&mut taken),
            _ => c.outgoing.push_back(Outgoing::Bytes(taken)),
        }
        c.changed.notify_all();
        Moved::Bytes(n)
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        if let Some(c) = self.0.lock().open_stream(stream) {
            c.wants_room = true;
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        let mut state = self.0.lock();
        let Some(c) = state.open_stream(stream).filter(|c| !c.over && c.writes_waiting < PLACES_MAX) else {
            return Posted::Refused;
        };
        c.writes_waiting += 1;
        c.idle = false;
        c.outgoing.push_back(Outgoing::Write { place: *place, read: 0 });
        c.changed.notify_all();
        Posted::Lent
    }

    unsafe fn register(&mut self, rail: RailId, id: MemId, memory: IoVec) {
        let mut random = [0; 4];
        while rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) != Ok(4) {}
        // never used twice, because the name of a region is not; and hard to guess
        let key = RemoteKey(u64::from(id.0) << 32 | u64::from(u32::from_le_bytes(random)));
        let mut state = self.0.lock();
        state.regions.insert(key, Region { id, rail, memory });
        state.events.push(StreamEvent::Registered(id, key));
    }

    fn invalidate(&mut self, region: MemId) {
        self.0.end_region(region);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        let mut state = self.0.lock();
        // an event that was not reported yet is dropped
        state.events.retain(|e| match *e {
            StreamEvent::Connected(s) => s != stream,
            StreamEvent::Closed(s, why) => s != stream || why == CloseReason::Requested,
            _ => true,
        });
        match state.streams.get_mut(&stream).map(|c| c.close()) {
            Some(false) => Closing::Pending,
            Some(true) => {
                state.streams.remove(&stream);
                Closing::Done
            }
            None => Closing::Done,
        }
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.0.lock().open_stream(stream).map(|c| c.rail)
    }

    /// The kernel of both ends keeps the sockets while the processes exist, running or not.
    fn far_kernel(&self, stream: StreamId) -> Option<FarKernel> {
        let mut state = self.0.lock();
        let c = state.open_stream(stream).filter(|c| !c.over)?;
        Some(FarKernel { heard: Duration::ZERO, has_all: c.idle })
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        if !self.0.news.is_up() {
            return;
        }
        let mut state = self.0.lock();
        state.end_regions();
        out.append(&mut state.events);
        if !state.incoming.is_empty() {
            out.push(StreamEvent::Incoming);
        }
        for (&stream, c) in &mut state.streams {
            let [readable, writable, ended] = c.news();
            c.wants_room &= !writable;
            c.end_is_reported |= ended;
            out.extend(readable.then_some(StreamEvent::Readable(stream)));
            out.extend(writable.then_some(StreamEvent::Writable(stream)));
            out.extend(ended.then_some(StreamEvent::Closed(stream, CloseReason::Reset)));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.news.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        let state = self.0.lock();
        out.push(self.0.news.as_fd().as_raw_fd());
        out.extend(self.0.listeners.iter().map(AsRawFd::as_raw_fd));
        out.extend(state.streams.values().map(|c| c.socket.as_raw_fd()));
        out.extend(state.incoming.iter().map(|(_, socket)| socket.as_raw_fd()));
    }
}
