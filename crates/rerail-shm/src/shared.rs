//! What the two ports of the shortcut share. Owns: all connections and their bells, the links (the connections for
//! datagrams), and the number of sleeping threads.

use crate::connection::{Connection, listener};
use crate::hello::{Hello, Kind};
use crate::sleepers::Sleepers;
use parking_lot::{Mutex, RwLock};
use rerail_rail::{Locator, RailId, Rails};
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// Events taken in one look.
const EVENTS_MAX: usize = 64;
/// How long a thread waits for the table of connections: the thread that holds it may have been stopped.
const PATIENCE: Duration = Duration::from_millis(1);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A new epoll instance.
pub(crate) fn new_epoll() -> io::Result<OwnedFd> {
    Ok(epoll::create(CreateFlags::CLOEXEC)?)
}

/// Makes `epoll` readable when `fd` is.
pub(crate) fn watch(epoll: &OwnedFd, fd: impl AsFd, id: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, EventData::new_u64(id), EventFlags::IN)?)
}

/// Ids of what is readable now.
pub(crate) fn readable(epoll: &OwnedFd, found: &mut Vec<u64>) {
    let mut events = Vec::with_capacity(EVENTS_MAX);
    if epoll::wait(epoll, spare_capacity(&mut events), Some(&NOW)).is_ok() {
        found.extend(events.iter().map(|e| e.data.u64()));
    }
}

/// The name of a connection in this process.
pub(crate) type ConnectionId = u64;

#[derive(Default)]
struct Table {
    connections: FxHashMap<ConnectionId, Arc<Connection>>,
    last: ConnectionId,
}

impl Table {
    /// Sets the flags of every connection: whether a thread sleeps. The lock of the table is held.
    fn tell_who_sleeps(&self, sleepers: &Sleepers) {
        let asleep = sleepers.any();
        self.connections.values().for_each(|c| c.we_sleep(asleep));
    }
}

/// The connections for datagrams.
#[derive(Default)]
pub(crate) struct Links {
    /// For sending, by the service of the other process.
    pub by_service: FxHashMap<u32, Arc<Connection>>,
    /// For receiving: two processes that connect at the same time have two.
    pub all: Vec<(ConnectionId, u32, Arc<Connection>)>,
}

pub(crate) struct Shared {
    /// Large pieces are copied out of the neighbour's memory.
    pub single_copy: bool,
    /// Where each rail is reached. `None`: it writes into the memory of peers by itself, which no stream through the
    /// shortcut does, so the shortcut leaves it alone.
    rails: Vec<Option<Locator>>,
    pub listener: OwnedFd,
    /// Readable when a bell was rung, or a connection has ended.
    bells: OwnedFd,
    /// Rung when a connection has ended or was made, for the stream port.
    pub news: OwnedFd,
    table: Mutex<Table>,
    pub links: RwLock<Links>,
    /// There are some. Set and cleared under the lock.
    pub some_links: AtomicBool,
    /// Threads that sleep, or are going to.
    sleepers: Sleepers,
    /// A thread woke up, or there is news: the next poll looks for the cause at once.
    pub look_soon: AtomicBool,
}

impl Shared {
    pub fn new(rails: &Rails, single_copy: bool) -> io::Result<Shared> {
        let rails: Vec<_> = rails.rails.iter().map(|r| (r.places_max == 0).then_some(r.locator)).collect();
        Ok(Shared {
            single_copy,
            listener: listener(rails.iter().flatten().next().map_or(0, Locator::service))?,
            rails,
            bells: new_epoll()?,
            news: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            table: Mutex::default(),
            links: RwLock::default(),
            some_links: AtomicBool::new(false),
            sleepers: Sleepers::default(),
            look_soon: AtomicBool::new(false),
        })
    }

    /// A descriptor that is readable when `fd` is, or a bell was rung.
    pub fn bells_and(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let both = new_epoll()?;
        watch(&both, &self.bells, 0)?;
        watch(&both, fd, 1)?;
        Ok(both)
    }

    /// Where a rail is reached; `None`: there is no such rail, or it is left alone.
    pub fn locator(&self, rail: RailId) -> Option<Locator> {
        self.rails.get(usize::from(rail.0)).copied().flatten()
    }

    /// The rail at the place of `to`.
    pub fn rail_at(&self, to: &Locator) -> Option<RailId> {
        self.rails.iter().position(|own| own.is_some_and(|own| own.same_place(to))).map(|i| RailId(i as u8))
    }

    /// Whether this is a process on the same host: at a place of ours, and not this one.
    pub fn is_neighbour(&self, to: &Locator) -> bool {
        self.rails.iter().flatten().any(|own| own.same_place(to) && own != to)
    }

    // --- connections ---

    /// Takes a connection into the table.
    pub fn add(&self, c: &Arc<Connection>) -> io::Result<ConnectionId> {
        let mut table = self.table.lock();
        table.last += 1;
        let id = table.last;
        watch(&self.bells, c, id)?;
        table.connections.insert(id, c.clone());
        // A thread that went to sleep before it was there could not set the flags in its rings.
        if self.sleepers.any() {
            c.we_sleep(true);
        }
        drop(table);
        self.tell();
        Ok(id)
    }

    /// Takes it out.
    pub fn remove(&self, id: ConnectionId) {
        if let Some(c) = self.table.lock().connections.remove(&id) {
            // By hand: a copy of the descriptor in a forked child would keep the registration alive.
            let _ = epoll::delete(&self.bells, &c);
        }
    }

    /// Rings for the stream port. Its next poll takes the news at once: a thread that told itself and goes to sleep
    /// after that poll would be woken for nothing.
    pub fn tell(&self) {
        let _ = rustix::io::write(&self.news, &1u64.to_ne_bytes());
        self.look_soon.store(true, Ordering::Release);
    }

    /// The engine waits for room on `c`.
    pub fn wants_room(&self, c: &Connection) {
        c.wants_room.store(true, Ordering::Relaxed);
        let lock = || self.table.try_lock_for(PATIENCE);
        if self.sleepers.arm(lock, || c.out.writer_sleeps(true), || c.has_room()) {
            self.tell();
        }
    }

    /// Takes the bells off the sockets, and finds the connections that have ended.
    pub fn look(&self) {
        let mut found = Vec::new();
        readable(&self.bells, &mut found);
        if found.is_empty() {
            return;
        }
        let Some(table) = self.table.try_lock_for(PATIENCE) else { return };
        for id in found {
            if let Some(c) = table.connections.get(&id) {
                if c.silence() {
                    // Readable for ever from now on.
                    let _ = epoll::delete(&self.bells, c);
                    self.tell();
                }
            }
        }
    }

    // --- links ---

    /// Makes a link to the process at `to`, if there is none.
    pub fn link(&self, from: Locator, to: Locator) {
        let service = to.service();
        if self.links.read().by_service.contains_key(&service) {
            return;
        }
        let hello = Hello { kind: Kind::Datagrams, from, to };
        // Without it datagrams go the long way.
        if let Ok(c) = Connection::connect(service, hello) {
            self.add_link(service, Arc::new(c));
        }
    }

    /// Takes a link.
    pub fn add_link(&self, service: u32, c: Arc<Connection>) {
        let Ok(id) = self.add(&c) else { return };
        let mut links = self.links.write();
        links.by_service.insert(service, c.clone());
        links.all.push((id, service, c));
        self.some_links.store(true, Ordering::Release);
    }

    /// Forgets the links that are over and have been read to their end.
    pub fn reap_links(&self) {
        let over = |c: &Connection| match c.over() {
            None => false,
            Some(closed) => closed || c.incoming.is_empty(),
        };
        if !self.links.read().all.iter().any(|l| over(&l.2)) {
            return;
        }
        let mut links = self.links.write();
        let (gone, left): (Vec<_>, Vec<_>) = links.all.drain(..).partition(|l| over(&l.2));
        links.by_service = left.iter().map(|(_, service, c)| (*service, c.clone())).collect();
        links.all = left;
        self.some_links.store(!links.all.is_empty(), Ordering::Release);
        drop(links);
        for (id, ..) in gone {
            self.remove(id);
        }
    }

    // --- sleep ---

    /// See [`rerail_rail::DatagramPort::before_sleep`].
    pub fn before_sleep(&self, streams: bool) -> bool {
        self.sleepers.enter();
        // Fails only when the thread that holds it was stopped. The flags are not set then, so nothing would end a
        // sleep early.
        let Some(table) = self.table.try_lock_for(PATIENCE) else { return true };
        table.tell_who_sleeps(&self.sleepers);
        // Either the other side sees that we sleep, or we see here what it wrote.
        fence(Ordering::SeqCst);
        if streams {
            return table.connections.values().any(|c| c.has_news());
        }
        drop(table);
        self.links.read().all.iter().any(|(_, _, c)| !c.incoming.is_empty())
    }

    /// See [`rerail_rail::DatagramPort::after_sleep`].
    pub fn after_sleep(&self) {
        self.sleepers.leave();
        self.look();
        self.look_soon.store(true, Ordering::Release);
        let Some(table) = self.table.try_lock_for(PATIENCE) else { return };
        // The bell that was just taken off did not wake threads that still sleep: set their flags again.
        table.tell_who_sleeps(&self.sleepers);
    }

    /// Appends every descriptor.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.listener.as_raw_fd(), self.bells.as_raw_fd(), self.news.as_raw_fd()]);
        // Fails only when the thread that holds it was stopped: then a forked child keeps copies, as with a runtime
        // whose lock it cannot get.
        if let Some(table) = self.table.try_lock_for(PATIENCE) {
            out.extend(table.connections.values().map(|c| c.raw()));
        }
    }
}
