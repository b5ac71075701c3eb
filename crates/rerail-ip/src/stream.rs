//! Streams over TCP. Owns: every connection of the process, the listeners, and the epoll instance over them.
//!
//! Epoll is level-triggered: what was left unread for fairness is reported again at the next poll. EPOLLOUT is
//! requested only while a connection is being made and while the engine has bytes that found no room, which is two
//! calls for each half megabyte at most.

use crate::congestion::{self, Congestion, Lossless};
use crate::door::{Door, leaves_enough};
use crate::shared::{Families, Shared, socket};
use crate::sys::{self, Bell, Epoll};
use crate::unsent::Unsent;
use crate::window::Window;
use rerail_rail::{
    Alternate, CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId,
    StreamEvent, StreamId, StreamPort,
};
use rustc_hash::FxHashMap;
use socket2::{Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

/// Send buffer of a connection as asked for, in bytes (the kernel doubles it for its own book-keeping).
///
/// Bounds what is lost in a dark rail and how late a full buffer shows. Unshaped, between two veth pairs, 128 KiB to 4 MiB
/// made no difference beyond the noise (3.9 to 5.4 GB/s over two rails, checksums on both sides, writes of 256 KiB under BBR): the
/// engine itself keeps no more than some milliseconds of its measured rate in flight.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// Bytes that the kernel takes beyond those it has sent. What waits behind a slow or dark rail stays with the engine, which
/// can still give it to another one; a write of a fast rail is never cut by it, because there the kernel sends at once.
const NOT_SENT_BYTES: libc::c_int = 128 * 1024;

const BELL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
/// Connections that wait to be accepted. At start-up all peers may come at once.
const BACKLOG: i32 = 4096;
/// Events taken in one poll.
const EVENTS_MAX: usize = 64;

/// A listener on every address of the host, and on one device or all.
///
/// Without a device the kernel would answer a connection on the route it prefers; where two rails share a network that is
/// the wrong rail, and the peer's socket, which is bound to the right one, would never see the answer. So each rail has a
/// listener bound to its device, and what it accepts stays on that device; one more without a device serves peers on this
/// very host.
///
/// `SO_REUSEPORT` lets them share the port. No other Rerail process gets the same port: its UDP socket is bound before
/// that socket allows sharing.
pub(crate) fn listener(families: Families, port: u16, device: Option<&str>) -> io::Result<Socket> {
    let s = socket(families.domain(), Type::STREAM, Protocol::TCP)?;
    if families != Families::V4 {
        s.set_only_v6(families == Families::V6)?;
    }
    s.set_reuse_port(true)?;
    if let Some(device) = device {
        s.bind_device(Some(device.as_bytes()))?;
    }
    s.bind(&SocketAddr::new(families.any(), port).into())?;
    s.listen(BACKLOG)?;
    Ok(s)
}

struct Connection {
    rail: RailId,
    socket: Socket,
    /// The connection is still being made.
    connecting: bool,
    /// The engine waits for room.
    wants_room: bool,
    /// Among those whose bytes the kernel may not have sent.
    unsent: bool,
    lossless: Option<Lossless>,
    window: Window,
}

impl Connection {
    fn new(rail: RailId, socket: Socket, connecting: bool, lossless: Option<Lossless>) -> Self {
        Self {
            rail,
            socket,
            connecting,
            wants_room: false,
            unsent: false,
            lossless,
            window: Window::default(),
        }
    }
}

pub(crate) struct TcpPort {
    shared: Arc<Shared>,
    port: u16,
    congestion: Congestion,
    /// Without a device, then those of the rails.
    listeners: Vec<Socket>,
    /// Generation of the rails' devices that the listeners are bound to.
    generation: u32,
    /// While it is closed epoll does not watch the listeners, or a connection that is not accepted would wake every
    /// poll.
    door: Door,
    epoll: Epoll,
    connections: FxHashMap<StreamId, Connection>,
    unsent: Unsent,
    /// Ends that were known at once, for the next poll.
    failed: Vec<(StreamId, CloseReason)>,
    /// Makes the epoll instance readable while `failed` has something.
    bell: Bell,
    room: Box<[libc::epoll_event; EVENTS_MAX]>,
}

fn reason(e: &io::Error) -> CloseReason {
    match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => CloseReason::Refused,
        Some(
            libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ETIMEDOUT
            | libc::EADDRNOTAVAIL
            | libc::ENODEV
            | libc::ENXIO
            | libc::EACCES
            | libc::EPERM
            | libc::EINVAL
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EMFILE
            | libc::ENFILE
            | libc::ENOBUFS
            | libc::ENOMEM
            | libc::EADDRINUSE
            | libc::EAGAIN,
        ) => CloseReason::Unreachable,
        _ => CloseReason::Reset,
    }
}

/// Options of every connection. Keep-alive stays off: the engine's own queries are faster and find out more.
fn prepare(s: &Socket, wish: &Congestion) -> io::Result<Option<Lossless>> {
    s.set_tcp_nodelay(true)?;
    s.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    sys::set_int(s.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)?;
    Ok(congestion::choose(s, wish))
}

impl TcpPort {
    /// `near` is the listener without a device, on `port`.
    pub fn new(shared: Arc<Shared>, near: Socket, port: u16, congestion: Congestion) -> io::Result<Self> {
        let (epoll, bell) = (Epoll::new()?, Bell::new()?);
        epoll.add(bell.raw(), libc::EPOLLIN as u32, BELL)?;
        let generation = shared.generation();
        let mut port = Self {
            shared,
            port,
            congestion,
            listeners: vec![near],
            generation,
            door: Door::new(Instant::now()),
            epoll,
            connections: FxHashMap::default(),
            unsent: Unsent::default(),
            failed: Vec::new(),
            bell,
            room: Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX]),
        };
        port.listen_on_rails();
        port.hear()?;
        Ok(port)
    }

    /// Makes the listeners of the rails. Where one cannot be made (a device that is gone just now, a kernel that refuses
    /// to bind) the one without a device takes its connections.
    fn listen_on_rails(&mut self) {
        self.listeners.truncate(1);
        for r in self.shared.rails.iter().filter(|r| !r.loopback) {
            self.listeners.extend(listener(Families::of([r.addr]), self.port, Some(&r.name)));
        }
    }

    /// Has epoll watch the listeners.
    fn hear(&self) -> io::Result<()> {
        self.listeners.iter().try_for_each(|l| self.epoll.add(l.as_raw_fd(), libc::EPOLLIN as u32, LISTENER))
    }

    /// Replaces the listeners when a rail's device was made again (those on the old one accept nothing any more), and
    /// resumes accepting after a pause.
    fn renew_listeners(&mut self) {
        let generation = self.shared.generation();
        if self.generation != generation {
            self.generation = generation;
            if !self.door.is_closed() {
                self.be_deaf();
            }
            self.listen_on_rails();
        }
        if self.door.reopens(Instant::now()) && self.hear().is_err() {
            self.be_deaf();
        }
    }

    fn be_deaf(&mut self) {
        self.door.close(Instant::now());
        for l in &self.listeners {
            self.epoll.remove(l.as_raw_fd());
        }
    }

    fn connect(&mut self, stream: StreamId, rail: RailId, to: SocketAddr) -> io::Result<()> {
        let Some(r) = self.shared.rail(rail) else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let s = socket(Families::of([r.addr]).domain(), Type::STREAM, Protocol::TCP)?;
        let lossless = prepare(&s, &self.congestion)?;
        if !r.loopback && !self.shared.is_near(to.ip()) {
            // A refusal is logged once, by the datagram sockets; the address still chooses the rail where each rail has
            // a network of its own.
            let _ = s.bind_device(Some(r.name.as_bytes()));
        }
        // The port is chosen when the destination is known, so that 28,000 connections are the limit per peer, not in all.
        let _ = sys::set_int(s.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        s.bind(&SocketAddr::new(r.addr, 0).into())?;
        match s.connect(&to.into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(e) => return Err(e),
        }
        self.insert(stream, Connection::new(rail, s, true, lossless))
    }

    fn insert(&mut self, stream: StreamId, c: Connection) -> io::Result<()> {
        let events = if c.connecting { libc::EPOLLOUT } else { libc::EPOLLIN };
        self.epoll.add(c.socket.as_raw_fd(), events as u32, u64::from(stream.0))?;
        self.connections.insert(stream, c);
        Ok(())
    }

    fn drop_connection(&mut self, stream: StreamId) {
        if let Some(c) = self.connections.remove(&stream) {
            // By hand: a copy of the descriptor in a forked child would keep the registration alive.
            self.epoll.remove(c.socket.as_raw_fd());
            sys::disconnect(c.socket.as_raw_fd());
        }
    }

    fn fail(&mut self, stream: StreamId, reason: CloseReason) {
        self.failed.push((stream, reason));
        self.bell.ring();
    }

    fn moved(&mut self, stream: StreamId, result: io::Result<usize>, reading: bool) -> Moved {
        let why = match result {
            Ok(0) if reading => CloseReason::Eof,
            Ok(0) => return Moved::Blocked,
            Ok(n) => return Moved::Bytes(n),
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Moved::Blocked,
                _ if e.raw_os_error() == Some(libc::ENOBUFS) || e.raw_os_error() == Some(libc::ENOMEM) => {
                    return Moved::Blocked;
                }
                _ => match reason(&e) {
                    CloseReason::Refused => CloseReason::Reset,
                    r => r,
                },
            },
        };
        self.drop_connection(stream);
        Moved::Closed(why)
    }

    /// A message header over `pieces`, which is what both directions need.
    fn header(pieces: &[IoVec]) -> libc::msghdr {
        // SAFETY: all zeros is a valid msghdr.
        let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
        // An IoVec has the layout of an iovec (asserted below).
        m.msg_iov = pieces.as_ptr().cast_mut().cast();
        m.msg_iovlen = pieces.len() as _;
        m
    }
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<IoVec>() == size_of::<libc::iovec>());
    assert!(offset_of!(IoVec, ptr) == offset_of!(libc::iovec, iov_base));
    assert!(offset_of!(IoVec, len) == offset_of!(libc::iovec, iov_len));
};

fn size(n: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

impl StreamPort for TcpPort {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        let connected = match to.socket() {
            Some(to) => self.connect(stream, rail, to),
            None => Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
        };
        if let Err(e) = connected {
            let why = match reason(&e) {
                CloseReason::Refused => CloseReason::Refused,
                _ => CloseReason::Unreachable,
            };
            self.fail(stream, why);
        }
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let mut i = 0;
        while let Some(listener) = self.listeners.get(i) {
            if !self.door.admit(Instant::now()) {
                self.be_deaf();
                return false;
            }
            let (s, from) = match listener.accept() {
                Ok(x) => x,
                // It was gone again before it could be accepted.
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO)) =>
                {
                    continue;
                }
                Err(e) => {
                    // no descriptors or no memory: accept again after a pause
                    if e.kind() != io::ErrorKind::WouldBlock {
                        self.be_deaf();
                        return false;
                    }
                    i += 1;
                    continue;
                }
            };
            if !leaves_enough(s.as_raw_fd() as u64, sys::descriptors_max()) {
                self.be_deaf();
                return false;
            }
            let local = s.local_addr().ok().and_then(|a| a.as_socket());
            let (Some(local), Some(from)) = (local, from.as_socket()) else { continue };
            // No rail has this address: the connection is dropped.
            let Some(rail) = self.shared.rail_at(local.ip().to_canonical()) else { continue };
            let Ok(lossless) = s.set_nonblocking(true).and_then(|()| prepare(&s, &self.congestion)) else {
                continue;
            };
            let stream = name(rail, from.into());
            if self.insert(stream, Connection::new(rail, s, false, lossless)).is_err() {
                self.fail(stream, CloseReason::Reset);
            }
            return true;
        }
        false
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let Some(c) = self.connections.get_mut(&stream) else { return Moved::Closed(CloseReason::Requested) };
        let mut m = Self::header(pieces);
        // SAFETY: the caller promises that every piece is valid for writes during the call.
        let n = size(unsafe { libc::recvmsg(c.socket.as_raw_fd(), &raw mut m, libc::MSG_DONTWAIT) });
        c.window.read(c.socket.as_raw_fd());
        self.moved(stream, n, true)
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let Some(c) = self.connections.get_mut(&stream) else { return Moved::Closed(CloseReason::Requested) };
        let m = Self::header(pieces);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the caller promises that every piece is valid for reads during the call.
        let n = size(unsafe { libc::sendmsg(c.socket.as_raw_fd(), &raw const m, flags) });
        if n.is_ok() && !c.unsent {
            c.unsent = true;
            self.unsent.add(stream);
        }
        if let (Ok(n), Some(l)) = (&n, &mut c.lossless) {
            if !l.wrote(&c.socket, *n) {
                c.lossless = None;
            }
        }
        self.moved(stream, n, false)
    }

    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        if let Some(c) = self.connections.get_mut(&stream) {
            if !c.connecting && !c.wants_room {
                c.wants_room = true;
                let both = (libc::EPOLLIN | libc::EPOLLOUT) as u32;
                let _ = self.epoll.modify(c.socket.as_raw_fd(), both, u64::from(stream.0));
            }
        }
    }

    /// The kernel copies what is written: no rail of this kind places.
    unsafe fn place(&mut self, _stream: StreamId, _place: &Place) -> Posted {
        Posted::Refused
    }

    unsafe fn register(&mut self, rail: RailId, _region: MemId, _memory: IoVec) {
        debug_assert!(false, "{rail:?} does not place");
    }

    fn invalidate(&mut self, region: MemId) {
        debug_assert!(false, "nothing was registered as {region:?}");
    }

    fn load_alternate(&mut self, stream: StreamId, _alternate: Option<Alternate>) {
        debug_assert!(false, "no rail of this kind names an adapter that could lead {stream:?} elsewhere");
    }

    fn migrate(&mut self, _stream: StreamId) {}

    fn close(&mut self, stream: StreamId) -> Closing {
        self.failed.retain(|(s, _)| *s != stream);
        self.drop_connection(stream);
        Closing::Done
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.connections.get(&stream).map(|c| c.rail)
    }

    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        let c = self.connections.get(&stream).filter(|c| !c.connecting)?;
        sys::far_kernel(c.socket.as_raw_fd())
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        self.renew_listeners();
        let connections = &self.connections;
        for sent in self.unsent.look(|s| connections.get(&s).map(|c| c.socket.as_raw_fd())) {
            if let Some(c) = self.connections.get_mut(&sent) {
                c.unsent = false;
            }
        }
        // Failures first: the bell is silenced only with the list empty.
        for (stream, why) in self.failed.drain(..) {
            out.push(StreamEvent::Closed(stream, why));
        }
        for i in 0..self.epoll.ready(&mut self.room[..]).len() {
            let libc::epoll_event { events, u64: token } = self.room[i];
            let stream = match token {
                LISTENER => {
                    out.push(StreamEvent::Incoming);
                    continue;
                }
                BELL => {
                    self.bell.silence();
                    continue;
                }
                t => StreamId(t as u32),
            };
            let Some(c) = self.connections.get_mut(&stream) else { continue };
            let broken = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
            if c.connecting {
                let error = c.socket.take_error().ok().flatten();
                if let Some(e) = error {
                    let why = match reason(&e) {
                        CloseReason::Refused => CloseReason::Refused,
                        _ => CloseReason::Unreachable,
                    };
                    self.drop_connection(stream);
                    out.push(StreamEvent::Closed(stream, why));
                } else if broken {
                    self.drop_connection(stream);
                    out.push(StreamEvent::Closed(stream, CloseReason::Unreachable));
                } else {
                    c.connecting = false;
                    let _ = self.epoll.modify(c.socket.as_raw_fd(), libc::EPOLLIN as u32, token);
                    out.push(StreamEvent::Connected(stream));
                }
                continue;
            }
            if events & libc::EPOLLOUT as u32 != 0 && c.wants_room {
                c.wants_room = false;
                let _ = self.epoll.modify(c.socket.as_raw_fd(), libc::EPOLLIN as u32, token);
                out.push(StreamEvent::Writable(stream));
            }
            // The read reports a broken connection, after the bytes that came before it broke.
            if broken || events & libc::EPOLLIN as u32 != 0 {
                out.push(StreamEvent::Readable(stream));
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.epoll.fd().as_raw_fd(), self.bell.raw()]);
        out.extend(self.listeners.iter().map(AsRawFd::as_raw_fd));
        out.extend(self.connections.values().map(|c| c.socket.as_raw_fd()));
    }
}

impl Drop for TcpPort {
    fn drop(&mut self) {
        let all: Vec<StreamId> = self.connections.keys().copied().collect();
        for s in all {
            self.drop_connection(s);
        }
    }
}
