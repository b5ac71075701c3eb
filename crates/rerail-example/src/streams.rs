//! The calls of the engine. Owns: the streams, as the engine knows them. What takes time is left to the adapter.

use crate::adapter::{BeforeLanding, Line, Outgoing, Rail, Region, Shared, WAITING_MAX};
use parking_lot::Mutex;
use rerail_rail::thread::{Reports, spawn};
use rerail_rail::{
    Alternate, CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId,
    RemoteKey, StreamEvent, StreamId, StreamPort,
};
use rustix::event::epoll;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::{MaybeUninit, replace};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Writes that may be under way on a stream.
pub(crate) const PLACES_MAX: u16 = 16;
/// Bytes that one call of `write` takes.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// What has made the descriptor readable.
const REPORTS: u64 = 0;
const INCOMING: u64 = 1;

/// The name at which a rail listens. The service is a port, and so belongs to one process of the network namespace, as
/// the name does.
fn name(at: &Locator) -> String {
    format!("rerail-example/{}/{:?}", at.service(), at.place().last())
}

fn listen(at: &Locator) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(at))?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A Unix socket is connected at once, or not at all: non-blocking for a listener that is full.
fn dial(to: &Locator) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name(to).as_bytes())?)?;
    ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

/// A stream that the engine has not closed.
struct Connection {
    line: Arc<Line>,
    outgoing: SyncSender<Outgoing>,
    /// The next bytes, and those behind them. Disconnected: nothing comes any more.
    arrived: VecDeque<u8>,
    arriving: Receiver<Vec<u8>>,
    wants_room: bool,
    end_is_reported: bool,
}

impl Connection {
    /// Whether it is over, and all that has arrived is read.
    fn is_over(&mut self) -> bool {
        if self.arrived.is_empty() {
            match self.arriving.try_recv() {
                Ok(bytes) => self.arrived = bytes.into(),
                Err(why) => return why == TryRecvError::Disconnected,
            }
        }
        false
    }

    fn waiting(&self) -> usize {
        self.line.waiting.load(Ordering::Relaxed)
    }

    /// Whether there was room.
    fn send(&self, next: Outgoing) -> bool {
        self.line.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.outgoing.try_send(next).is_ok();
        self.line.waiting.fetch_sub(usize::from(!sent), Ordering::Relaxed);
        sent
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.line.end();
    }
}

/// See the module. The adapter's threads end with it.
pub(crate) struct ExampleStreams {
    shared: Arc<Shared>,
    /// Readable when there are reports, or connections to accept.
    news: OwnedFd,
    streams: BTreeMap<StreamId, Connection>,
    /// Streams that the engine has closed, whose end is not reported.
    closing: BTreeMap<StreamId, Arc<UnixStream>>,
    threads: Vec<JoinHandle<()>>,
}

impl ExampleStreams {
    pub fn new(own: &[Locator], before_landing: BeforeLanding) -> io::Result<Self> {
        let rail = |at: &Locator| Ok(Rail { at: *at, listener: listen(at)?, regions: Mutex::default() });
        let rails: Vec<Rail> = own.iter().map(rail).collect::<io::Result<_>>()?;
        let reports = Arc::new(Reports::new()?);
        let news = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&news, &*reports, epoll::EventData::new_u64(REPORTS), epoll::EventFlags::IN)?;
        for rail in &rails {
            epoll::add(&news, &rail.listener, epoll::EventData::new_u64(INCOMING), epoll::EventFlags::IN)?;
        }
        let shared = Arc::new(Shared { rails, reports, before_landing });
        Ok(Self { shared, news, streams: BTreeMap::new(), closing: BTreeMap::new(), threads: Vec::new() })
    }

    /// A stream that is not over, or else what a call returns.
    fn live(&mut self, stream: StreamId) -> Result<&mut Connection, Moved> {
        let c = self.streams.get_mut(&stream).ok_or(Moved::Closed(CloseReason::Requested))?;
        if c.is_over() {
            c.end_is_reported = true;
            // waits for the thread that wakes the engine for this: the next poll finds nothing, and none follows
            self.shared.reports.update(|_| ());
            return Err(Moved::Closed(CloseReason::Reset));
        }
        Ok(c)
    }

    /// Moves what a stream sends and receives from now on.
    fn begin(&mut self, stream: StreamId, rail: RailId, socket: UnixStream) {
        let (shared, socket) = (self.shared.clone(), Arc::new(socket));
        let end = shared.reports.report_on_drop(StreamEvent::Closed(stream, CloseReason::Requested));
        let line = Arc::new(Line { shared, rail, socket, waiting: AtomicUsize::new(0), _end: end });
        let (outgoing, waiting) = sync_channel(WAITING_MAX + usize::from(PLACES_MAX));
        let (arrives, arriving) = sync_channel(WAITING_MAX);
        let (sender, receiver) = (line.clone(), line.clone());
        let threads = [
            // it fails when the connection is over, which the other thread reports
            spawn("rerail-example", move || {
                let _ = sender.send(&waiting);
            }),
            spawn("rerail-example", move || {
                receiver.receive(&arrives);
                receiver.end();
                receiver.shared.reports.update(|_| drop(arrives));
            }),
        ];
        if threads.iter().any(|t| t.is_err()) {
            line.end();
        }
        self.threads.retain(|t| !t.is_finished());
        self.threads.extend(threads.into_iter().flatten());
        let (arrived, wants_room, end_is_reported) = (VecDeque::new(), false, false);
        let c = Connection { line, outgoing, arrived, arriving, wants_room, end_is_reported };
        self.streams.insert(stream, c);
    }
}

impl Drop for ExampleStreams {
    fn drop(&mut self) {
        self.streams.clear();
        // One that panicked has printed why.
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}

impl StreamPort for ExampleStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        let own = self.shared.rails.get(usize::from(rail.0)).filter(|own| to.same_place(&own.at));
        let event = match own.map(|_| dial(&to)) {
            Some(Ok(socket)) => {
                self.begin(stream, rail, socket);
                StreamEvent::Connected(stream)
            }
            Some(Err(Errno::CONNREFUSED)) => StreamEvent::Closed(stream, CloseReason::Refused),
            _ => StreamEvent::Closed(stream, CloseReason::Unreachable),
        };
        self.shared.reports.report(event);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        for (i, rail) in self.shared.clone().rails.iter().enumerate() {
            if let Ok((socket, _)) = rail.listener.accept() {
                // every process of this host is at this place
                let rail_id = RailId(i as u8);
                self.begin(name(rail_id, rail.at), rail_id, socket);
                return true;
            }
        }
        false
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        match self.live(stream) {
            // SAFETY: the caller's promise is handed on.
            Ok(c) => match unsafe { IoVec::scatter(&mut c.arrived, pieces) } {
                0 => Moved::Blocked,
                n => Moved::Bytes(n),
            },
            Err(end) => end,
        }
    }

    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        match self.live(stream) {
            Ok(c) if c.waiting() < WAITING_MAX => {
                let mut taken = Vec::new();
                // SAFETY: the caller's promise is handed on.
                unsafe { IoVec::gather(pieces, RECORD_BYTES_MAX, &mut taken) };
                let n = taken.len();
                // It fails when the connection is over, which is reported when all that has arrived is read.
                c.send(Outgoing::Bytes(taken));
                Moved::Bytes(n)
            }
            Ok(_) => Moved::Blocked,
            Err(end) => end,
        }
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        if let Some(c) = self.streams.get_mut(&stream) {
            c.wants_room = true;
            self.shared.reports.update(|_| ());
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        let taken =
            self.streams.get_mut(&stream).is_some_and(|c| !c.is_over() && c.send(Outgoing::Write(*place)));
        if taken { Posted::Lent } else { Posted::Refused }
    }

    unsafe fn register(&mut self, rail: RailId, id: MemId, memory: IoVec) {
        let mut random = [0; 8];
        while getrandom(&mut random, GetRandomFlags::empty()) != Ok(8) {}
        // never used twice, because the name of a region is not; and hard to guess
        let key = RemoteKey::of(id.0.into(), u64::from_le_bytes(random));
        let region =
            Region { id, memory, _end: self.shared.reports.report_on_drop(StreamEvent::Invalidated(id)) };
        self.shared.rails[usize::from(rail.0)].regions.lock().insert(key, Arc::new(region));
        self.shared.reports.report(StreamEvent::Registered(id, key));
    }

    fn invalidate(&mut self, region: MemId) {
        self.shared.rails.iter().for_each(|rail| rail.regions.lock().retain(|_, r| r.id != region));
    }

    fn load_alternate(&mut self, stream: StreamId, _alternate: Option<Alternate>) {
        debug_assert!(false, "no rail of this kind names an adapter that could lead {stream:?} elsewhere");
    }

    fn migrate(&mut self, _stream: StreamId) {}

    fn close(&mut self, stream: StreamId) -> Closing {
        if let Some(c) = self.streams.remove(&stream) {
            self.closing.insert(stream, c.line.socket.clone());
        }
        // what was not reported of it is dropped, except for the promised end
        let end = StreamEvent::Closed(stream, CloseReason::Requested);
        self.shared.reports.update(|events| events.retain(|e| e.stream() != Some(stream) || *e == end));
        if self.closing.contains_key(&stream) { Closing::Pending } else { Closing::Done }
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.streams.get(&stream).map(|c| c.line.rail)
    }

    /// The kernel of both ends keeps the sockets while the processes exist, running or not.
    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        let c = self.streams.get(&stream).filter(|c| !c.end_is_reported)?;
        Some(FarKernel::new(Duration::ZERO, c.waiting() == 0))
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        let mut ready = [MaybeUninit::uninit(); 8];
        let Ok((ready, _)) = epoll::wait(&self.news, &mut ready, Some(&Default::default())) else { return };
        let incoming = ready.iter().any(|event| event.data.u64() == INCOMING);
        out.extend(incoming.then_some(StreamEvent::Incoming));
        self.shared.reports.poll(out, |out| {
            self.closing.retain(|s, _| !out.contains(&StreamEvent::Closed(*s, CloseReason::Requested)));
            for (&stream, c) in &mut self.streams {
                let over = c.is_over();
                let ended = over && !replace(&mut c.end_is_reported, true);
                let writable = c.wants_room && !over && c.waiting() <= WAITING_MAX / 2;
                c.wants_room &= !writable;
                out.extend((!c.arrived.is_empty()).then_some(StreamEvent::Readable(stream)));
                out.extend(writable.then_some(StreamEvent::Writable(stream)));
                out.extend(ended.then_some(StreamEvent::Closed(stream, CloseReason::Reset)));
            }
            self.streams.values().any(|c| !c.arrived.is_empty())
        });
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.news.as_raw_fd(), self.shared.reports.as_fd().as_raw_fd()]);
        out.extend(self.shared.rails.iter().map(|rail| rail.listener.as_raw_fd()));
        out.extend(self.streams.values().map(|c| c.line.socket.as_raw_fd()));
        out.extend(self.closing.values().map(|socket| socket.as_raw_fd()));
    }
}
