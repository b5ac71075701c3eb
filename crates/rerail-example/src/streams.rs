//! The calls of the engine. Each takes the lock of the adapter's state for a moment, and leaves the rest to its thread.

use crate::adapter::{Request, Shared};
use crate::connection::Connection;
use crate::names;
use rerail_rail::{
    CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId, StreamEvent,
    StreamId, StreamPort,
};
use rustix::io::Errno;
use rustix::net::{SocketType, connect};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// See the module. The adapter's thread ends with it.
pub(crate) struct ExampleStreams {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ExampleStreams {
    pub fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let of_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name("rerail-example".into()).spawn(move || of_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn dial(&self, stream: StreamId, rail: RailId, to: Locator) -> Result<OwnedFd, CloseReason> {
        let own = self.shared.rails.get(usize::from(rail.0)).ok_or(CloseReason::Unreachable)?;
        if !to.same_place(own) {
            return Err(CloseReason::Unreachable);
        }
        let named = |service, what: &str| names::name(service, rail.0, what);
        let dialled = named(own.service(), &stream.0.to_string()).and_then(|from| {
            let socket = names::socket(SocketType::STREAM, &from)?;
            // a Unix socket is connected at once, or not at all
            connect(&socket, &named(to.service(), "streams")?)?;
            Ok(socket)
        });
        dialled.map_err(|why| match why {
            Errno::CONNREFUSED => CloseReason::Refused,
            _ => CloseReason::Unreachable,
        })
    }
}

impl Drop for ExampleStreams {
    fn drop(&mut self) {
        self.shared.stop();
        // A thread that panicked has printed why.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl StreamPort for ExampleStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        let dialled = self.dial(stream, rail, to);
        let mut state = self.shared.lock();
        let event = match dialled {
            Ok(socket) => {
                state.streams.insert(stream, Connection::new(rail, socket));
                StreamEvent::Connected(stream)
            }
            Err(why) => StreamEvent::Closed(stream, why),
        };
        state.events.push(event);
        self.shared.let_go(state, true);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let Some((rail, from, socket)) = self.shared.lock().incoming.pop_front() else { return false };
        let stream = name(rail, from);
        let mut state = self.shared.lock();
        state.streams.insert(stream, Connection::new(rail, socket));
        self.shared.let_go(state, true);
        true
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let mut state = self.shared.lock();
        let Some(c) = state.open_stream(stream) else { return Moved::Closed(CloseReason::Requested) };
        // SAFETY: the caller's promise is handed on.
        let (given, wake) = unsafe { c.read(pieces) };
        let moved = match (given, c.over()) {
            (1.., _) => Moved::Bytes(given),
            (0, None) => Moved::Blocked,
            (0, Some(why)) => {
                c.end_reported();
                Moved::Closed(why)
            }
        };
        self.shared.let_go(state, wake);
        moved
    }

    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let mut state = self.shared.lock();
        let Some(c) = state.open_stream(stream) else { return Moved::Closed(CloseReason::Requested) };
        let moved = match c.over() {
            Some(why) => {
                c.end_reported();
                Moved::Closed(why)
            }
            // SAFETY: the caller's promise is handed on.
            None => match unsafe { c.write(pieces) } {
                0 => Moved::Blocked,
                taken => Moved::Bytes(taken),
            },
        };
        self.shared.let_go(state, true);
        moved
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        let mut state = self.shared.lock();
        state.open_stream(stream).map(Connection::want_room);
        self.shared.let_go(state, false);
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        let mut state = self.shared.lock();
        // SAFETY: the caller's promise is handed on: `Closed` on request is reported after the connection was dropped.
        let lent = state.open_stream(stream).is_some_and(|c| unsafe { c.place(place) });
        self.shared.let_go(state, lent);
        if lent { Posted::Lent } else { Posted::Refused }
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        let mut state = self.shared.lock();
        state.request(Request::Register(rail, region, memory));
        self.shared.let_go(state, true);
    }

    fn invalidate(&mut self, region: MemId) {
        let mut state = self.shared.lock();
        state.request(Request::Invalidate(region));
        self.shared.let_go(state, true);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        let mut state = self.shared.lock();
        // an event that was not reported yet is dropped
        state.events.retain(
            |e| !matches!(e, StreamEvent::Connected(s) | StreamEvent::Closed(s, CloseReason::Refused | CloseReason::Unreachable) if *s == stream),
        );
        let closing = match state.streams.get_mut(&stream) {
            None => Closing::Done,
            Some(c) => {
                if c.request_close() {
                    state.request(Request::Close(stream));
                }
                Closing::Pending
            }
        };
        self.shared.let_go(state, true);
        closing
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.shared.lock().open_stream(stream).map(|c| c.rail())
    }

    /// The kernel of both ends keeps the sockets while the processes exist, running or not.
    fn far_kernel(&self, stream: StreamId) -> Option<FarKernel> {
        let mut state = self.shared.lock();
        let c = state.open_stream(stream).filter(|c| c.over().is_none())?;
        Some(FarKernel { heard: Duration::ZERO, has_all: c.has_sent_all() })
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        let mut state = self.shared.lock();
        if !self.shared.news.is_up() {
            return;
        }
        out.append(&mut state.events);
        if !state.incoming.is_empty() {
            out.push(StreamEvent::Incoming);
        }
        for (&stream, c) in &mut state.streams {
            let (readable, writable, over) = c.news();
            if readable {
                out.push(StreamEvent::Readable(stream));
            }
            if writable {
                c.room_reported();
                out.push(StreamEvent::Writable(stream));
            }
            if let Some(why) = over {
                c.end_reported();
                out.push(StreamEvent::Closed(stream, why));
            }
        }
        self.shared.let_go(state, false);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.news.fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        let state = self.shared.lock();
        out.extend([self.shared.news.fd().as_raw_fd(), self.shared.wake_descriptor()]);
        out.extend(self.shared.listeners.iter().map(AsRawFd::as_raw_fd));
        out.extend(state.streams.values().filter_map(Connection::descriptor));
        out.extend(state.incoming.iter().map(|(_, _, socket)| socket.as_raw_fd()));
    }
}
