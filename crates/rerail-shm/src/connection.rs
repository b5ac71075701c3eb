//! A connection between two neighbours. Owns: its socket, which carries the hello, bells, and the news that the other process is
//! gone; its two rings.

use crate::hello::{HELLO_BYTES, Hello};
use crate::loan;
use crate::ring::{ROOM_BYTES, Ring};
use crate::segment::{Segment, Side};
use parking_lot::Mutex;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, recv, recvmsg, send, sendmsg, shutdown, socket_with,
};
use rustix::process::{Pid, geteuid};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections that wait to be accepted; those that find no place go the long way.
const BACKLOG: i32 = 1024;

/// The name at which the process with this service is found by its neighbours.
fn name(service: u32) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("rerail/{service}").as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Listens for neighbours.
pub(crate) fn listener(service: u32) -> io::Result<OwnedFd> {
    let s = socket()?;
    bind(&s, &name(service)?)?;
    listen(&s, BACKLOG)?;
    Ok(s)
}

/// Whether the other end is a process of the same user. Others can reach the name too, and could have taken it.
fn is_ours(socket: &OwnedFd) -> io::Result<bool> {
    Ok(socket_peercred(socket)?.uid == geteuid())
}

/// The process at the other end; `None`: it has no number in our namespace of processes.
pub(crate) fn neighbour(socket: &OwnedFd) -> Option<Pid> {
    // rustix's type has no 0, which is what the kernel says then
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the place has the size that is given with it.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    Pid::from_raw(cred.pid).filter(|_| done == 0)
}

/// See the module.
pub(crate) struct Connection {
    socket: OwnedFd,
    /// What is sent.
    pub out: Ring,
    /// What comes.
    pub incoming: Ring,
    /// One thread at a time sends datagrams.
    pub sending: Mutex<()>,
    /// The engine waits for room.
    pub wants_room: AtomicBool,
    /// The other side has let go of the socket.
    ended: AtomicBool,
}

impl Connection {
    fn new(socket: OwnedFd, segment: &Arc<Segment>, side: Side) -> Self {
        let other = if side == Side::Maker { Side::Guest } else { Side::Maker };
        let incoming = segment.ring(other);
        incoming.begin_to_read();
        let out = segment.ring(side);
        loan::publish(out.loan());
        Self {
            socket,
            out,
            incoming,
            sending: Mutex::new(()),
            wants_room: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Connects to the neighbour with this service. As with TCP, it is made when the other side's kernel has queued it; what is written
    /// before the other process takes it waits in the ring.
    pub fn connect(service: u32, hello: Hello) -> io::Result<Connection> {
        let s = socket()?;
        connect(&s, &name(service)?)?;
        if !is_ours(&s)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (segment, file) = Segment::make()?;
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let bytes = hello.to_bytes();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if sendmsg(&s, &[IoSlice::new(&bytes)], &mut control, flags)? < HELLO_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(Self::new(s, &segment, Side::Maker))
    }

    /// Reads the hello on a connection that was accepted. `WouldBlock`: it has not come yet; any other error is final.
    pub fn greet(s: &OwnedFd) -> io::Result<(Hello, Arc<Segment>)> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        if !is_ours(s)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut bytes = [0; HELLO_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let n = recvmsg(s, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?.bytes;
        let files = control.drain().filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        // All are taken, so that none is left open.
        let files: Vec<OwnedFd> = files.flatten().collect();
        let hello = Hello::read(&bytes).filter(|_| n == HELLO_BYTES).ok_or_else(odd)?;
        Ok((hello, Segment::join(files.first().ok_or_else(odd)?)?))
    }

    /// The connection after [`Connection::greet`].
    pub fn accepted(s: OwnedFd, segment: &Arc<Segment>) -> Connection {
        Self::new(s, segment, Side::Guest)
    }

    /// Wakes the other side. When there is no room for one more byte, enough bells wait for it.
    #[cold]
    pub fn ring_bell(&self) {
        let _ = send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the bells off the socket; whether the other side has let go of it.
    pub fn silence(&self) -> bool {
        let mut bells = [0; 64];
        loop {
            match recv(&self.socket, &mut bells[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(_) => break,
            }
        }
        self.ended.store(true, Ordering::Release);
        true
    }

    /// Whether the other side has closed (`Some(true)`), or its process is gone (`Some(false)`).
    pub fn over(&self) -> Option<bool> {
        if self.incoming.is_closed() {
            return Some(true);
        }
        self.ended.load(Ordering::Acquire).then_some(false)
    }

    /// The other side is broken: both sides take the connection for ended.
    pub fn give_up(&self) {
        self.out.close();
        self.out.loan().call_in();
        self.ended.store(true, Ordering::Release);
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Whether there is something to be read from the stream.
    pub fn has_input(&self) -> bool {
        !self.incoming.is_empty() || self.incoming.loan().is_lent()
    }

    /// Whether a wait for room is over: there is room, or the connection has ended.
    pub fn has_room(&self) -> bool {
        !self.out.loan().is_out() && self.out.room(ROOM_BYTES).is_ok_and(|n| n >= ROOM_BYTES)
            || self.over().is_some()
    }

    /// Whether a look would find anything: something to read, or room that is waited for.
    pub fn has_news(&self) -> bool {
        self.has_input()
            || self.over().is_some()
            || self.wants_room.load(Ordering::Relaxed) && self.has_room()
    }

    /// This process sleeps from now on, or does not.
    pub fn we_sleep(&self, sleep: bool) {
        self.incoming.reader_sleeps(sleep);
        self.out.writer_sleeps(sleep && self.wants_room.load(Ordering::Relaxed));
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // What was lent is not ours any more from here on, and what the other side has of it is void.
        self.out.loan().call_in();
        self.out.close();
    }
}
