//! Sockets of their own for the few peers with which most small messages are exchanged. Owns: those sockets, which
//! peers get one, and in which order they and the wildcard socket are looked at.
//!
//! A datagram between two connected sockets saves the look-up of a route on both sides, and the packet information at
//! the receiver: together a sixth to a fifth of half a round trip (docs/notes/performance-2026-11.md). Each is bound to
//! the rail's address and the *port of the process*, and connected to the peer's port. So the two sides need not agree
//! on anything: either sends from its known port, and the receiver's kernel gives the datagram to its connected socket
//! if there is one, else to the wildcard socket. For the same reason a datagram that arrives while a socket is made or
//! closed goes to another socket.
//!
//! Each side chooses the rail that it sends on by itself. A peer that replies on another rail would use the wildcard
//! socket for ever. So datagrams from a peer that has a socket here are counted too, and the path by which they come
//! gets its own socket.
//!
//! They are a shortcut. Where one cannot be made, the other sockets carry everything, and nothing is logged.
//!
//! Looks: a source (each of the sockets here, and the wildcard socket) is *warm* for a while after something came by
//! it. A poll looks at the warm sources until one has something. If none is warm it looks at one of all in turn; every
//! fourth poll does so before the warm ones. So an empty poll still costs about one system call, a datagram at a cold
//! source waits for a few polls, and a flood at one source does not starve the others. No lock is waited for longer
//! than [`PATIENCE`]: the thread that holds it may be stopped anywhere (hazard H17).

use crate::shared::Shared;
use crate::sys::{self, Epoll};
use parking_lot::{Mutex, RwLock};
use rerail_rail::{Arrived, ArrivedTrain, Condition, Locator, RailId};
use socket2::Socket;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Sockets at most. Each costs a look at every poll while it is warm, so that from five or six on the wildcard socket alone is cheaper.
const SOCKETS_MAX: usize = 4;
/// So many datagrams more to one destination than to others make it worth a socket.
const WORTH: u32 = 128;
/// The rest must follow these within [`WORTH_WITHIN`]: probes are not worth a socket.
const WORTH_TIMED: u32 = 16;
const WORTH_WITHIN: Duration = Duration::from_secs(1);
/// Looks that find nothing until a source is cold: some hundred microseconds of polling.
const WARM: u32 = 256;
/// The same for the wildcard socket.
const WARM_WILD: u32 = 64;
/// One poll in so many first looks at one of all sources in turn: sources that always have something do not starve the
/// others, and a cold source waits for a few polls at most.
const OTHERS_EVERY: u32 = 4;
/// Looks at the only warm source in one poll, at most. The caller gives up the processor or looks elsewhere between two polls, and what arrives
/// meanwhile waits for all of that. (8 B half round trip under MPICH, whose every poll ends with sched_yield: 4.82 µs with 3, 4.67 with 8.)
///
/// Where processes share a processor, the peer cannot send while this one looks. So a poll that finds nothing makes the
/// next ones look less often, and one that finds something more often.
const LOOKS: u32 = 8;
const LOOKS_MORE: u32 = 4;
/// How long the small locks are waited for.
const PATIENCE: Duration = Duration::from_millis(1);
/// Wait before the next try after a socket could not be made; it doubles each time.
const TRY_AGAIN: Duration = Duration::from_secs(1);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(64);
/// Polls after which sockets that were not used are closed.
const UNUSED: u32 = 1 << 20;

/// A connected socket, and for what.
struct Connected {
    rail: RailId,
    to: Locator,
    socket: Socket,
    /// It may hold datagrams of other senders, from between bind and connect: each sender's address is read until it
    /// was empty once.
    fresh: AtomicBool,
    warmth: AtomicU32,
    /// Something was sent or came since the last search for unused ones.
    used: AtomicBool,
    /// [`Shared::generation`] when it was made.
    generation: u32,
}

impl Connected {
    /// One datagram, if there is one. What does not fit into `buf` is thrown away.
    fn look(&self, buf: &mut [u8]) -> Option<Arrived> {
        let fd = self.socket.as_raw_fd();
        // An error is about an earlier datagram, and this call has cleared it.
        let found = if self.fresh.load(Ordering::Relaxed) {
            match sys::recv_from(fd, buf) {
                Ok(Some((len, from))) => Some((len, from.map_or(self.to, Locator::from))),
                Ok(None) => {
                    self.fresh.store(false, Ordering::Relaxed);
                    None
                }
                Err(_) => None,
            }
        } else {
            sys::recv_connected(fd, buf).ok().flatten().map(|len| (len, self.to))
        };
        let Some((len, from)) = found.filter(|f| f.0 <= buf.len()) else {
            let left = self.warmth.load(Ordering::Relaxed);
            self.warmth.store(left.saturating_sub(1), Ordering::Relaxed);
            return None;
        };
        self.warmth.store(WARM, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        Some(Arrived { rail: self.rail, from, len, condition: Condition::Whole })
    }
}

/// When the next socket may be tried, after some could not be had. An error may pass, such as that of too few descriptors or of a link that is
/// down; where it does not, a try costs a few system calls a minute.
#[derive(Default)]
struct Refusals {
    /// When the next try is due, and how long it was waited for.
    next: Option<(Instant, Duration)>,
}

impl Refusals {
    fn may_try(&self, now: Instant) -> bool {
        self.next.is_none_or(|(at, _)| now >= at)
    }

    fn refused(&mut self, now: Instant) {
        let wait = self.next.map_or(TRY_AGAIN, |(_, waited)| (waited * 2).min(TRY_AGAIN_MAX));
        self.next = Some((now + wait, wait));
    }

    fn had(&mut self) {
        self.next = None;
    }
}

/// Where much is sent: a summary of the stream of destinations (Misra and Gries, 1982). What has a share of more than a fifth keeps its
/// place whatever else is sent.
#[derive(Default)]
struct Frequent([Option<Destination>; SOCKETS_MAX]);

struct Destination {
    rail: RailId,
    to: Locator,
    count: u32,
    /// When it had been met [`WORTH_TIMED`] times.
    since: Option<Instant>,
}

impl Frequent {
    /// Counts a datagram; returns whether its destination is worth a socket, and forgets it then.
    fn count(&mut self, rail: RailId, to: Locator) -> bool {
        let known = self.0.iter_mut().find(|d| d.as_ref().is_some_and(|d| d.to == to && d.rail == rail));
        if let Some(place) = known {
            let d = place.as_mut().expect("found by what is in it");
            d.count += 1;
            if d.count == WORTH_TIMED {
                d.since = Some(Instant::now());
            }
            if d.count < WORTH {
                return false;
            }
            let soon = d.since.is_some_and(|t| t.elapsed() < WORTH_WITHIN);
            *place = None;
            return soon;
        }
        if let Some(place) = self.0.iter_mut().find(|d| d.is_none()) {
            *place = Some(Destination { rail, to, count: 1, since: None });
            return false;
        }
        for place in &mut self.0 {
            if let Some(d) = place {
                d.count -= 1;
                if d.count == 0 {
                    *place = None;
                }
            }
        }
        false
    }
}

pub(crate) struct ConnectedSockets {
    all: RwLock<Vec<Connected>>,
    /// There are any.
    some: AtomicBool,
    frequent: Mutex<Frequent>,
    /// Over the wildcard socket and those here, only while a thread sleeps on it: each datagram that arrives at a
    /// socket in an epoll instance costs its sender's kernel a tenth of a microsecond more.
    epoll: Epoll,
    wild: RawFd,
    /// How many sleep.
    sleepers: AtomicU32,
    /// The sockets are in the epoll instance.
    watched: Mutex<bool>,
    /// Port of the process on all rails.
    port: u16,
    polls: AtomicU32,
    /// The last poll found nothing.
    vain: AtomicBool,
    /// Looks of the next eager poll.
    looks: AtomicU32,
    wild_warmth: AtomicU32,
    refusals: Mutex<Refusals>,
}

impl ConnectedSockets {
    pub fn new(wild: &Socket) -> io::Result<Self> {
        let port = wild.local_addr()?.as_socket().map_or(0, |a| a.port());
        Ok(Self {
            all: RwLock::default(),
            some: AtomicBool::new(false),
            frequent: Mutex::default(),
            epoll: Epoll::new()?,
            wild: wild.as_raw_fd(),
            sleepers: AtomicU32::new(0),
            watched: Mutex::new(false),
            port,
            polls: AtomicU32::new(0),
            vain: AtomicBool::new(false),
            looks: AtomicU32::new(LOOKS),
            wild_warmth: AtomicU32::new(0),
            refusals: Mutex::default(),
        })
    }

    /// A thread is going to sleep on [`ConnectedSockets::fd`]. True: that would not wake it, so it must look again
    /// instead.
    pub fn before_sleep(&self) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Fails only when the thread that holds the lock was stopped within a few system calls (hazard H17).
        let Some(mut watched) = self.watched.try_lock_for(PATIENCE) else { return true };
        let Some(all) = self.all.try_read_for(PATIENCE) else { return true };
        if !*watched {
            *watched = self.with_wild(&all).all(|fd| self.watch(fd));
        }
        !*watched
    }

    /// The thread is awake again.
    pub fn after_sleep(&self) {
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let Some(mut watched) = self.watched.try_lock_for(PATIENCE) else { return };
        // a thread that calls `before_sleep` after this load waits for the lock, and then watches the sockets again
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            let Some(all) = self.all.try_read_for(PATIENCE) else { return };
            self.with_wild(&all).for_each(|fd| self.epoll.remove(fd));
            *watched = false;
        }
    }

    fn with_wild(&self, all: &[Connected]) -> impl Iterator<Item = RawFd> {
        all.iter().map(|c| c.socket.as_raw_fd()).chain([self.wild])
    }

    /// Watches a socket, which may be watched already.
    fn watch(&self, fd: RawFd) -> bool {
        let added = self.epoll.add(fd, libc::EPOLLIN as u32, 0);
        added.is_ok() || self.epoll.modify(fd, libc::EPOLLIN as u32, 0).is_ok()
    }

    /// Readable when one of the sockets is, between [`ConnectedSockets::before_sleep`] and [`ConnectedSockets::after_sleep`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.fd()
    }

    /// Appends the descriptors. Waits for a thread that makes a socket just now, which takes microseconds.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.fd().as_raw_fd());
        if let Some(all) = self.all.try_read_for(PATIENCE) {
            out.extend(all.iter().map(|c| c.socket.as_raw_fd()));
        }
    }

    /// Sends by a connected socket; `None`: there is none, or it does not serve any more, and the datagram has to go another way.
    pub fn send(
        &self,
        shared: &Shared,
        rail: RailId,
        to: Locator,
        bytes: &[u8],
    ) -> Option<io::Result<usize>> {
        if self.some.load(Ordering::Acquire) {
            let all = self.all.try_read()?;
            if let Some(c) = all.iter().find(|c| c.to == to && c.rail == rail) {
                let sent = sys::send_connected(c.socket.as_raw_fd(), bytes);
                match sent.as_ref().err().and_then(io::Error::raw_os_error) {
                    None => {
                        c.used.store(true, Ordering::Relaxed);
                        return Some(sent);
                    }
                    // No room, or an error of an earlier datagram: the caller handles it.
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ECONNREFUSED | libc::EINTR) => {
                        return Some(sent);
                    }
                    Some(_) => {}
                }
                drop(all);
                self.close(|c| c.to == to && c.rail == rail);
                return None;
            }
        }
        self.count(shared, rail, to);
        None
    }

    /// A datagram goes by the usual way: if many do, a socket is made for its destination.
    fn count(&self, shared: &Shared, rail: RailId, to: Locator) {
        let worth = self.frequent.try_lock().is_some_and(|mut f| f.count(rail, to));
        if let (true, Some(at)) = (worth, to.socket()) {
            let generation = shared.generation();
            self.open(rail, to, generation, Instant::now(), || shared.connected(rail, at, self.port));
        }
    }

    #[cold]
    fn open(
        &self,
        rail: RailId,
        to: Locator,
        generation: u32,
        now: Instant,
        socket: impl FnOnce() -> io::Result<Socket>,
    ) {
        if self.all.try_read().is_none_or(|all| all.len() >= SOCKETS_MAX) {
            return;
        }
        let Some(mut refusals) = self.refusals.try_lock() else { return };
        if !refusals.may_try(now) {
            return;
        }
        let Ok(socket) = socket() else { return refusals.refused(now) };
        refusals.had();
        drop(refusals);
        let fd = socket.as_raw_fd();
        let Some(watched) = self.watched.try_lock() else { return };
        let Some(mut all) = self.all.try_write() else { return };
        if *watched && !self.watch(fd) {
            return;
        }
        all.push(Connected {
            rail,
            to,
            socket,
            fresh: AtomicBool::new(true),
            warmth: AtomicU32::new(WARM),
            used: AtomicBool::new(true),
            generation,
        });
        self.some.store(true, Ordering::Release);
    }

    /// Closes those that `which` names. What still lies in them is lost, as datagrams may be: it is little, because all are looked at often.
    #[cold]
    fn close(&self, which: impl Fn(&Connected) -> bool) {
        let Some(_watched) = self.watched.try_lock() else { return };
        let Some(mut all) = self.all.try_write() else { return };
        // closing takes a socket out of the epoll instance, unless a forked child has a copy of it
        all.iter().filter(|c| which(c)).for_each(|c| self.epoll.remove(c.socket.as_raw_fd()));
        all.retain(|c| !which(c));
        self.some.store(!all.is_empty(), Ordering::Release);
    }

    /// Looks at the sockets here and at the wildcard socket, by `wild`; `eagerly`, several times where that pays.
    #[inline]
    pub fn recv(
        &self,
        shared: &Shared,
        buf: &mut [u8],
        eagerly: bool,
        mut wild: impl FnMut(&mut [u8]) -> io::Result<Option<ArrivedTrain>>,
    ) -> io::Result<Option<ArrivedTrain>> {
        if !self.some.load(Ordering::Acquire) {
            return wild(buf);
        }
        self.look_around(shared, buf, eagerly, wild)
    }

    fn look_around(
        &self,
        shared: &Shared,
        buf: &mut [u8],
        eagerly: bool,
        mut wild: impl FnMut(&mut [u8]) -> io::Result<Option<ArrivedTrain>>,
    ) -> io::Result<Option<ArrivedTrain>> {
        let Some(all) = self.all.try_read() else { return wild(buf) };
        let mut came_by_wild = None;
        // Two threads may count one poll for two, which changes nothing.
        let poll = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(poll, Ordering::Relaxed);

        let mut look_wild = |buf: &mut [u8]| -> io::Result<Option<ArrivedTrain>> {
            let found = wild(buf)?;
            // a train is bulk, which only the wildcard socket takes as a whole
            came_by_wild = found.as_ref().filter(|t| t.segment >= t.len).map(|t| (t.rail, t.from));
            let left = self.wild_warmth.load(Ordering::Relaxed);
            let now = if found.is_some() { WARM_WILD } else { left.saturating_sub(1) };
            self.wild_warmth.store(now, Ordering::Relaxed);
            Ok(found)
        };
        let wild_is_warm = self.wild_warmth.load(Ordering::Relaxed) > 0;
        let is_warm = |c: &Connected| c.warmth.load(Ordering::Relaxed) > 0;
        let warm = all.iter().filter(|c| is_warm(c)).count() + usize::from(wild_is_warm);
        // Before the warm ones, of which one might have something at every poll.
        let sources = all.len() as u32 + 1;
        let turn = match warm {
            0 => Some(poll % sources),
            _ if poll % OTHERS_EVERY == 0 => Some(poll / OTHERS_EVERY % sources),
            _ => None,
        };
        let mut found = match turn.map(|t| all.get(t as usize)) {
            Some(Some(c)) => c.look(buf).map(ArrivedTrain::from),
            Some(None) => look_wild(buf)?,
            None => None,
        };
        let waits = self.vain.load(Ordering::Relaxed);
        self.vain.store(false, Ordering::Relaxed);
        let eager = eagerly && waits && warm == 1 && !wild_is_warm;
        let most = if eager { self.looks.load(Ordering::Relaxed) } else { 1 };
        for _ in 0..most {
            if found.is_some() {
                break;
            }
            found = all.iter().filter(|c| is_warm(c)).find_map(|c| c.look(buf)).map(ArrivedTrain::from);
        }
        if eager {
            let next = match found {
                Some(_) => (most + LOOKS_MORE).min(LOOKS),
                None => (most - 1).max(1),
            };
            self.looks.store(next, Ordering::Relaxed);
        }
        if found.is_none() && wild_is_warm {
            found = look_wild(buf)?;
        }
        if found.is_none() {
            self.vain.store(true, Ordering::Relaxed);
        }
        let unused = poll % UNUSED == 0;
        // Only for peers that have a socket here: the others exchange little with this process, or the source address
        // is forged.
        let came_by_wild =
            came_by_wild.filter(|(_, from)| all.iter().any(|c| c.to.service() == from.service()));
        drop(all);
        if let Some((rail, from)) = came_by_wild {
            self.count(shared, rail, from);
        }
        if unused {
            let generation = shared.generation();
            self.close(|c| !c.used.swap(false, Ordering::Relaxed) || c.generation != generation);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn to(port: u16) -> Locator {
        SocketAddr::from(([10, 0, 0, 1], port)).into()
    }

    #[test]
    fn a_frequent_destination_is_worth_a_socket_among_rare_ones() {
        let mut f = Frequent::default();
        let mut worth = 0;
        for i in 0..400 {
            worth += usize::from(f.count(RailId(0), to(1)));
            assert!(!f.count(RailId(0), to(1000 + i)), "met once");
        }
        assert!(worth >= 1);
    }

    #[test]
    fn many_equal_destinations_are_not() {
        let mut f = Frequent::default();
        for _ in 0..1000 {
            for peer in 0..8 {
                assert!(!f.count(RailId(0), to(peer)));
            }
        }
    }

    #[test]
    fn four_equal_ones_are() {
        let mut f = Frequent::default();
        let mut worth = [0; 4];
        for _ in 0..WORTH {
            for (peer, n) in worth.iter_mut().enumerate() {
                *n += u32::from(f.count(RailId(0), to(peer as u16)));
            }
        }
        assert_eq!(worth, [1; 4]);
    }

    #[test]
    fn an_error_that_passes_costs_a_socket_for_a_while_and_not_for_ever() {
        let udp = || {
            let s = Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
            s.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
            s
        };
        let c = ConnectedSockets::new(&udp()).unwrap();
        let (mut now, mut tries) = (Instant::now(), 0);
        let mut open = |c: &ConnectedSockets, now, works: bool| {
            c.open(RailId(0), to(1), 0, now, || {
                tries += 1;
                if works { Ok(udp()) } else { Err(io::Error::from_raw_os_error(libc::EMFILE)) }
            });
            tries
        };
        assert_eq!(open(&c, now, false), 1);
        assert_eq!(open(&c, now + TRY_AGAIN / 2, true), 1, "too early");
        // each refusal doubles the wait, up to a bound
        for n in 2..20 {
            now += TRY_AGAIN_MAX;
            assert_eq!(open(&c, now, false), n);
            assert_eq!(open(&c, now + TRY_AGAIN, false), n, "too early");
        }
        assert!(!c.some.load(Ordering::Relaxed));
        now += TRY_AGAIN_MAX;
        assert_eq!(open(&c, now, true), 20);
        assert!(c.some.load(Ordering::Relaxed), "the error has passed, and there is a socket");
    }

    #[test]
    fn rails_are_counted_apart() {
        let mut f = Frequent::default();
        for i in 0..WORTH - 1 {
            assert!(!f.count(RailId(0), to(1)), "{i}");
            assert!(!f.count(RailId(1), to(1)), "{i}");
        }
        assert!(f.count(RailId(0), to(1)));
    }
}
