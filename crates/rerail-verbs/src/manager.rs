//! The connection manager: a thread that makes, ends and destroys connections and registers memory, which all take
//! system calls. Owns: the identifiers of RDMA-CM, and the life of every queue pair.
//!
//! A lane belongs to [`VerbsStreams`](crate::streams::VerbsStreams) from [`News::Made`] until it is given back
//! ([`Order::Return`]). It is dropped here, when its queue pair is destroyed: after that call no adapter touches memory
//! for it, neither its own slots nor what was lent. That makes [`News::Destroyed`] a fence.
//!
//! Connections are made by RDMA-CM, or by messages (`manager/by_messages.rs`).

mod by_messages;
mod lanes;

use crate::abi::*;
use crate::adapter::{Adapter, Registration, descriptors, done};
use crate::agreement::Message;
use crate::alternate::{Alternates, Effect, PathEvents, Port};
use crate::blocking::BlockingCalls;
use crate::connector::Connector;
use crate::failures::{Failed, Failures};
use crate::hello::{Hello, Purpose};
use crate::identifier::{Event, Events, Identifier, RETRIES};
use crate::lane::{Greeting, Lane, LaneNumber};
use crate::mailbox::{Mailbox, News};
use crate::place::{from_kernel, port, socket_address};
use crate::queue_pair::QueuePair;
use crate::registrations::Registrations;
use crate::shared::Pool;
use crate::watcher::WatchError;
use rerail_rail::thread::spawn;
use rerail_rail::{Alternate, CloseReason, IoVec, Kind, Locator, MemId, RailId, RemoteKey};
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long addresses and routes may take, ms. The engine gives up sooner.
const RESOLVE_MS: i32 = 4000;
/// Entries of a rail's completion queue. The kernel's software adapter takes 32767.
pub const ENTRIES_MAX: usize = 32_000;

/// How long a process that ends waits for drivers to close its connections.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The first number of the lanes that this process opens for a purpose, and the next after one of them. Those that a peer
/// opens have odd numbers.
pub fn first_number(purpose: Purpose) -> LaneNumber {
    2 * purpose as LaneNumber
}

/// See [`first_number`].
pub fn next_number(number: LaneNumber) -> LaneNumber {
    number.wrapping_add(4)
}

/// The purpose of a lane that this process opened.
fn purpose_of(number: LaneNumber) -> Purpose {
    if number & 2 == 0 { Purpose::Stream } else { Purpose::Datagrams }
}

pub use lanes::Lanes;

/// What belongs to one rail.
pub struct Rail {
    pub adapter: Arc<Adapter>,
    own: Locator,
    greeting: Greeting,
    /// Null where there is no RDMA-CM.
    listener: *mut rdma_cm_id,
    streams: Lanes,
    /// `None`: the network has datagrams of its own.
    datagrams: Option<Lanes>,
}

/// How connections are made.
pub enum Connecting {
    /// By RDMA-CM: its events, and the listener of each rail.
    Rdmacm(Arc<Events>, Vec<Identifier>),
    /// By messages.
    ByMessages(Box<Connector>),
}

/// What [`VerbsStreams`](crate::streams::VerbsStreams) wants.
pub enum Order {
    /// Connect.
    Open {
        lane: LaneNumber,
        rail: RailId,
        to: Locator,
    },
    /// End it. The lane comes with [`Order::Return`] if it was made.
    Close {
        lane: LaneNumber,
    },
    /// A lane is over, and is returned later; its peer is told now.
    HangUp {
        lane: LaneNumber,
    },
    /// A lane that is used no more.
    Return(Box<Lane>),
    Register {
        rail: RailId,
        region: MemId,
        memory: IoVec,
    },
    Invalidate {
        region: MemId,
    },
    /// An alternate path is to be loaded, or none.
    LoadAlternate {
        lane: LaneNumber,
        number: u32,
        alternate: Option<Alternate>,
    },
    /// A lane is to migrate.
    Migrate {
        lane: LaneNumber,
    },
    /// The peer has sent this about them.
    PeerMessage {
        lane: LaneNumber,
        message: Message,
    },
}

/// The handle of the thread. When it is dropped everything is closed.
pub struct Manager {
    orders: Option<Sender<Order>>,
    wake: Arc<OwnedFd>,
    mailboxes: Arc<Mailboxes>,
    /// By which news of connections come.
    channels: Vec<RawFd>,
    registrations: Arc<Registrations>,
    adapters: Vec<Arc<Adapter>>,
    path_events: Arc<PathEvents>,
    failures: Arc<Failures>,
    thread: Option<JoinHandle<()>>,
}

/// News of streams, and of lanes for datagrams.
struct Mailboxes {
    streams: Mailbox,
    datagrams: Mailbox,
}

impl Mailboxes {
    fn of(&self, purpose: Purpose) -> &Mailbox {
        match purpose {
            Purpose::Stream => &self.streams,
            Purpose::Datagrams => &self.datagrams,
        }
    }
}

impl Manager {
    /// Without a thread: a test sees what is ordered.
    #[cfg(test)]
    pub fn of_test() -> (Manager, Receiver<Order>) {
        let mailbox = || Mailbox::new().expect("a descriptor");
        let (orders, ordered) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor"));
        let (registrations, _) = Registrations::new(false, &wake);
        let manager = Manager {
            orders: Some(orders),
            path_events: Arc::new(PathEvents::new(wake.clone())),
            failures: Arc::new(Failures::new(wake.clone())),
            wake,
            registrations,
            mailboxes: Arc::new(Mailboxes { streams: mailbox(), datagrams: mailbox() }),
            channels: Vec::new(),
            adapters: Vec::new(),
            thread: None,
        };
        (manager, ordered)
    }

    pub fn order(&self, order: Order) {
        // The thread ends only when the sender is dropped.
        let _ = self.orders.as_ref().expect("until it is dropped").send(order);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Where events of queue pairs go.
    pub fn path_events(&self) -> Arc<PathEvents> {
        self.path_events.clone()
    }

    /// Where errors of queue pairs and shared queues go.
    pub fn failures(&self) -> Arc<Failures> {
        self.failures.clone()
    }

    pub fn mailbox(&self, purpose: Purpose) -> &Mailbox {
        self.mailboxes.of(purpose)
    }

    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        let mailboxes = [&self.mailboxes.streams, &self.mailboxes.datagrams];
        out.extend(mailboxes.map(|m| m.as_fd().as_raw_fd()));
        out.push(self.wake.as_raw_fd());
        out.extend(&self.channels);
        out.extend(self.registrations.fd());
        self.adapters.iter().for_each(|a| descriptors(a, out));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.orders = None;
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + END_PATIENCE;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
        match thread.is_finished() {
            // One that panicked has printed why.
            true => drop(thread.join()),
            // It has everything that it uses, so it may go on. A process must end although a driver does not.
            false => eprintln!(
                "rerail: the driver of an RDMA adapter has not closed all connections within {} s; the process goes on without waiting for it",
                END_PATIENCE.as_secs()
            ),
        }
    }
}

/// What has the queue pair of a connection, and destroys it when it is dropped.
enum ConnectionEnd {
    Identifier(Identifier),
    /// Without RDMA-CM. `None`: it is not made yet.
    QueuePair(Option<QueuePair>),
}

impl ConnectionEnd {
    fn make_queue_pair(
        &mut self,
        adapter: &Arc<Adapter>,
        attributes: ibv_qp_init_attr,
    ) -> io::Result<(*mut ibv_qp, usize)> {
        match self {
            ConnectionEnd::Identifier(id) => id.make_queue_pair(adapter, attributes),
            ConnectionEnd::QueuePair(none) => {
                let (made, inline_max) = QueuePair::new(adapter, attributes, random())?;
                let raw = made.raw();
                *none = Some(made);
                Ok((raw, inline_max))
            }
        }
    }

    /// The identifier, if it has this pointer.
    fn identifier(&self, is: *mut rdma_cm_id) -> Option<&Identifier> {
        match self {
            ConnectionEnd::Identifier(id) if id.id == is => Some(id),
            _ => None,
        }
    }
}

/// A connection, from the first order or request until its queue pair is destroyed.
struct Connection {
    end: ConnectionEnd,
    /// The shared receive queue of its queue pair. Behind it: no queue goes that a queue pair uses.
    pool: Option<Arc<Pool>>,
    rail: RailId,
    hello: Hello,
    /// The lane is with its user, or on the way there; set when it knows that it is over.
    lent: Option<Arc<AtomicBool>>,
    /// Both sides know that it is connected.
    established: bool,
}

impl Connection {
    fn new(end: ConnectionEnd, rail: RailId, hello: Hello) -> Connection {
        Connection { end, pool: None, rail, hello, lent: None, established: false }
    }

    /// Makes its queue pair, and keeps the receive queue of that for as long.
    fn make_queue_pair(
        &mut self,
        adapter: &Arc<Adapter>,
        lanes: &mut Lanes,
    ) -> io::Result<(*mut ibv_qp, usize)> {
        self.pool = lanes.pool(adapter);
        self.end.make_queue_pair(adapter, lanes.attributes(self.pool.as_deref()))
    }

    /// The number of its queue pair, if that is made.
    fn pair_number(&self) -> Option<u32> {
        let qp = match &self.end {
            // SAFETY: it lives.
            ConnectionEnd::Identifier(id) => unsafe { (*id.id).qp },
            ConnectionEnd::QueuePair(pair) => pair.as_ref().map_or(null_mut(), QueuePair::raw),
        };
        // SAFETY: it lives as long as the connection, and is null until it is made.
        unsafe { qp.as_ref() }.map(|qp| qp.qp_num)
    }

    /// Whether it cannot go on because of this.
    fn is_hit(&self, by: Failed) -> bool {
        match by {
            Failed::QueuePair(number) => self.pair_number() == Some(number),
            Failed::SharedQueue(queue) => {
                self.pool.as_ref().is_some_and(|pool| pool.queue() as usize == queue)
            }
        }
    }

    /// Its user knows that it is over.
    fn is_known_over(&self) -> bool {
        self.established && self.lent.as_ref().is_some_and(|over| over.load(Ordering::Relaxed))
    }
}

/// The thread's own.
struct Work {
    // The connections go before the rails, and these before the channel.
    connections: FxHashMap<LaneNumber, Connection>,
    regions: FxHashMap<MemId, Registration>,
    registrations: Arc<Registrations>,
    rails: Vec<Rail>,
    mailboxes: Arc<Mailboxes>,
    alternates: Alternates,
    path_events: Arc<PathEvents>,
    failures: Arc<Failures>,
    /// The last number of a lane that a peer opened. Those have odd numbers.
    last: LaneNumber,
    way: Connecting,
    /// For those of RDMA-CM.
    blocking: BlockingCalls,
}

// SAFETY: the pointers of the listeners are only compared.
unsafe impl Send for Work {}

impl Rail {
    pub fn new(
        adapter: Arc<Adapter>,
        own: Locator,
        listener: Option<&Identifier>,
        streams: Lanes,
        datagrams: Option<Lanes>,
    ) -> io::Result<Rail> {
        let greeting = Greeting::new(&adapter)?;
        let listener = listener.map_or(null_mut(), |listener| listener.id);
        Ok(Rail { adapter, own, greeting, listener, streams, datagrams })
    }

    /// What matters of it for alternate paths.
    pub fn port(&self) -> Port {
        Port { adapter: self.adapter.clone(), own: self.own }
    }

    fn lanes(&mut self, purpose: Purpose) -> Option<&mut Lanes> {
        match purpose {
            Purpose::Stream => Some(&mut self.streams),
            Purpose::Datagrams => self.datagrams.as_mut(),
        }
    }
}

/// Starts the thread.
///
/// # Errors
/// The system gives no thread, or no descriptor.
pub fn start(way: Connecting, rails: Vec<Rail>, keep: bool) -> io::Result<(Manager, Option<WatchError>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let mailboxes = Arc::new(Mailboxes { streams: Mailbox::new()?, datagrams: Mailbox::new()? });
    let (registrations, not_kept) = Registrations::new(keep, &wake);
    let (orders, ordered) = channel();
    let adapters = rails.iter().map(|r| r.adapter.clone()).collect();
    let mut channels = Vec::new();
    let blocking = match &way {
        Connecting::Rdmacm(events, _) => {
            channels.push(events.fd().as_raw_fd());
            BlockingCalls::new(rails.len())?
        }
        Connecting::ByMessages(connector) => {
            connector.descriptors(&mut channels);
            BlockingCalls::new(0)?
        }
    };
    let ports = rails.iter().map(Rail::port).collect();
    let path_events = Arc::new(PathEvents::new(wake.clone()));
    let failures = Arc::new(Failures::new(wake.clone()));
    let work = Work {
        connections: FxHashMap::default(),
        regions: FxHashMap::default(),
        registrations: registrations.clone(),
        rails,
        mailboxes: mailboxes.clone(),
        alternates: Alternates::new(ports),
        path_events: path_events.clone(),
        failures: failures.clone(),
        last: 1,
        way,
        blocking,
    };
    let woken = wake.clone();
    let thread = spawn("rerail-verbs", move || to_its_end(work, |work| work.run(&ordered, &woken)))?;
    let thread = Some(thread);
    let manager = Manager {
        orders: Some(orders),
        wake,
        mailboxes,
        channels,
        registrations,
        adapters,
        path_events,
        failures,
        thread,
    };
    Ok((manager, not_kept))
}

/// Runs something to its end and drops it. If it panics nothing of it is dropped: lanes are with the engine, and an adapter would
/// go on to write for a queue pair whose memory is gone, or the engine to use one that is gone.
fn to_its_end<T>(work: T, run: impl FnOnce(&mut T)) {
    let mut work = ManuallyDrop::new(work);
    run(&mut work);
    drop(ManuallyDrop::into_inner(work));
}

impl Work {
    fn run(&mut self, orders: &Receiver<Order>, wake: &OwnedFd) {
        loop {
            let patience = self.alternates.patience(Instant::now());
            match &mut self.way {
                Connecting::Rdmacm(events, _) => {
                    let ready = [wake.as_fd(), events.fd()];
                    let mut ready = ready.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                    // `None`: for ever
                    let _ = poll(&mut ready, patience.map(timespec).as_ref());
                }
                Connecting::ByMessages(connector) => connector.wait(wake.as_fd(), patience),
            }
            let _ = rustix::io::read(wake, &mut [0; 8][..]);
            loop {
                match orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        let all: Vec<Connection> = self.connections.drain().map(|(_, c)| c).collect();
                        all.into_iter().for_each(|c| self.end(c, None));
                        self.regions.clear();
                        self.registrations.close();
                        match &mut self.way {
                            Connecting::Rdmacm(_, listeners) => listeners.clear(),
                            Connecting::ByMessages(connector) => connector.leave(),
                        }
                        return;
                    }
                }
            }
            self.registrations.release();
            self.look_at_alternates();
            self.failures.take().into_iter().for_each(|failed| self.end_all_hit(failed));
            match &self.way {
                Connecting::Rdmacm(events, _) => {
                    let events = events.clone();
                    while let Some(event) = events.next() {
                        self.handle(&event);
                    }
                }
                Connecting::ByMessages(_) => self.exchange(),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Open { lane, rail, to } => self.open(lane, rail, to),
            Order::Close { lane } => self.close(lane),
            Order::HangUp { lane } => self.hang_up(lane),
            Order::Return(lane) => self.take_back(lane),
            Order::Register { rail, region, memory } => self.register(rail, region, memory),
            Order::Invalidate { region } => {
                // It is over when the adapter's driver has returned from the call.
                self.regions.remove(&region);
                self.mailboxes.streams.put(News::Invalidated { region });
            }
            Order::LoadAlternate { lane, number, alternate } => {
                let effects = self.alternates.load(lane, number, alternate);
                self.report_alternates(effects.into_iter().map(|effect| (lane, effect)));
            }
            Order::Migrate { lane } => self.alternates.migrate(lane),
            Order::PeerMessage { lane, message } => {
                let effects = self.alternates.receive(lane, message);
                self.report_alternates(effects.into_iter().map(|effect| (lane, effect)));
            }
        }
    }

    /// Queue pairs that are to be asked, and those of which something was reported.
    fn look_at_alternates(&mut self) {
        let now = Instant::now();
        if let Some(events) = self.path_events.take() {
            let effects = self.alternates.events(events, now);
            self.report_alternates(effects.into_iter());
        }
        let effects = self.alternates.ask(now);
        self.report_alternates(effects.into_iter());
    }

    /// Ends what cannot go on. The queue pairs stay until their lanes come back.
    fn end_all_hit(&self, by: Failed) {
        for (lane, c) in self.connections.iter().filter(|(_, c)| c.is_hit(by)) {
            if let (Failed::SharedQueue(_), Some(pool)) = (by, &c.pool) {
                pool.close();
            }
            self.report_end(*lane, c.hello.purpose, CloseReason::Reset);
        }
    }

    fn report_alternates(&self, effects: impl Iterator<Item = (LaneNumber, Effect)>) {
        effects.for_each(|(lane, effect)| self.mailboxes.streams.put(News::Alternate { lane, effect }));
    }

    fn open(&mut self, lane: LaneNumber, rail: RailId, to: Locator) {
        let opened = match &self.way {
            Connecting::Rdmacm(events, _) => {
                let events = events.clone();
                self.resolve(&events, lane, rail, &to)
            }
            Connecting::ByMessages(_) => self.ask(lane, rail, &to),
        };
        if opened.is_err() {
            self.report(purpose_of(lane), News::Ended { lane, why: CloseReason::Unreachable });
        }
    }

    fn resolve(&mut self, events: &Events, lane: LaneNumber, rail: RailId, to: &Locator) -> io::Result<()> {
        let unreachable = || io::Error::from(io::ErrorKind::HostUnreachable);
        let own = &self.rails.get(usize::from(rail.0)).ok_or_else(unreachable)?.own;
        let hello = Hello { purpose: purpose_of(lane), from: own.service(), to: to.service() };
        let from = own.place_ip().ok_or_else(unreachable)?;
        let to = SocketAddr::new(
            to.place_ip().filter(|_| to.kind() == own.kind()).ok_or_else(unreachable)?,
            port(to.service()),
        );
        let id = events.bind(SocketAddr::new(from, 0), lane as usize)?;
        id.be_impatient();
        let mut to = socket_address(to);
        // SAFETY: it lives and is bound; an address as the kernel wants it.
        done(unsafe { (id.library.rdma_resolve_addr)(id.id, null_mut(), (&raw mut to).cast(), RESOLVE_MS) })?;
        self.connections.insert(lane, Connection::new(ConnectionEnd::Identifier(id), rail, hello));
        Ok(())
    }

    fn close(&mut self, lane: LaneNumber) {
        // One that is lent comes back, which ends it.
        if self.connections.get(&lane).is_none_or(|c| c.lent.is_none()) {
            self.connections.remove(&lane);
            self.report(purpose_of(lane), News::Destroyed { lane });
        }
    }

    /// Its queue pair stays until the lane is returned. A lane that comes back before its user has seen the end of it is not there any
    /// more.
    fn hang_up(&mut self, lane: LaneNumber) {
        let Some(c) = self.connections.get(&lane).filter(|c| c.established) else { return };
        match (&c.end, &mut self.way) {
            // SAFETY: it lives.
            (ConnectionEnd::Identifier(id), _) => _ = unsafe { (id.library.rdma_disconnect)(id.id) },
            (ConnectionEnd::QueuePair(_), Connecting::ByMessages(connector)) => connector.end(lane),
            _ => {}
        }
    }

    fn take_back(&mut self, lane: Box<Lane>) {
        // It is there as long as its lane is lent.
        let Some(c) = self.connections.remove(&lane.number) else { return };
        self.alternates.forget(lane.number);
        if let Connecting::ByMessages(connector) = &mut self.way {
            connector.end(lane.number);
        }
        self.end(c, Some(lane));
    }

    /// Destroys a connection, and then its lane. With RDMA-CM one that is not established may wait for its peer.
    fn end(&mut self, c: Connection, lane: Option<Box<Lane>>) {
        let (rail, purpose) = (c.rail, c.hello.purpose);
        let waits = matches!(c.end, ConnectionEnd::Identifier(_)) && !c.established;
        let lanes = self.rails[usize::from(rail.0)].lanes(purpose);
        // SAFETY: the connection has its queue pair until below.
        let leaving = lanes.zip(lane.as_ref()).map(|(lanes, lane)| unsafe { lanes.leaving(lane) });
        let events = match &self.way {
            Connecting::Rdmacm(events, _) => Some(events.clone()),
            Connecting::ByMessages(_) => None,
        };
        let mailboxes = self.mailboxes.clone();
        let end = move || {
            // The peer's adapter is told; it fails when the connection is over or was never made.
            if let ConnectionEnd::Identifier(id) = &c.end {
                // SAFETY: it lives.
                unsafe { (id.library.rdma_disconnect)(id.id) };
            }
            if let Some((leaving, lane)) = leaving.as_ref().zip(lane.as_ref()) {
                // SAFETY: as above.
                unsafe { leaving.stop(lane) };
            }
            // destroys the queue pair
            match events {
                Some(events) => events.destroy(c),
                None => drop(c),
            }
            if let Some(leaving) = leaving {
                leaving.end();
            }
            let Some(lane) = lane else { return };
            let number = lane.number;
            // only now: its memory was the adapter's until the queue pair was destroyed
            drop(lane);
            mailboxes.of(purpose).put(News::Destroyed { lane: number });
        };
        if waits { self.blocking.make(rail, Box::new(end)) } else { end() }
    }

    fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        let Some(rail) = self.rails.get(usize::from(rail.0)) else { return };
        // What the first byte is called: unpredictable but for its place in the page, and never near the end, so that no
        // offset wraps. Adapters for iWARP need not allow another name than the address.
        let page = rustix::param::page_size() as u64;
        let base = match rail.own.kind() {
            Kind::IWARP => memory.ptr as u64,
            _ => (random() >> 2) & !(page - 1) | memory.ptr as u64 & (page - 1),
        };
        // SAFETY: the caller's promise of `StreamPort::register`.
        let made = unsafe { rail.adapter.register(memory, base, true) };
        // Without a key, because no more memory may be locked for instance, the peer sends copies.
        if let Ok(registration) = made {
            let key = RemoteKey::of(registration.remote_key().into(), base);
            self.regions.insert(region, registration);
            self.mailboxes.streams.put(News::Registered { region, key });
        }
    }

    fn handle(&mut self, event: &Event) {
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            self.accept(event);
            return;
        }
        let lane = event.context as LaneNumber;
        let Some(c) = self.connections.get_mut(&lane) else { return };
        let Some(id) = c.end.identifier(event.id) else { return };
        let purpose = c.hello.purpose;
        let went = match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                // SAFETY: it lives.
                done(unsafe { (id.library.rdma_resolve_route)(id.id, RESOLVE_MS) })
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.connect(lane),
            // Of a lane that a peer opened it is the first message that counts.
            RDMA_CM_EVENT_ESTABLISHED if lane % 2 == 1 => {
                c.established = true;
                Ok(())
            }
            RDMA_CM_EVENT_ESTABLISHED => {
                c.established = true;
                // Before anything of the lane: two messages without bytes may be under way, and the lane knows of its own only.
                // SAFETY: made for a lane, and destroyed by this thread.
                let sent = unsafe { self.rails[usize::from(c.rail.0)].greeting.send((*id.id).qp) };
                self.mailboxes.of(c.hello.purpose).put(News::Established { lane });
                sent
            }
            RDMA_CM_EVENT_ADDR_CHANGE | RDMA_CM_EVENT_TIMEWAIT_EXIT => Ok(()),
            RDMA_CM_EVENT_REJECTED => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        };
        if let Err(why) = went {
            self.report_end(lane, purpose, reason(&why));
        }
    }

    /// Quietly, when its user knows.
    fn report_end(&self, lane: LaneNumber, purpose: Purpose, why: CloseReason) {
        let (mailbox, news) = (self.mailboxes.of(purpose), News::Ended { lane, why });
        match self.connections.get(&lane).is_some_and(Connection::is_known_over) {
            true => mailbox.put_quietly(news),
            false => mailbox.put(news),
        }
    }

    fn report(&self, purpose: Purpose, news: News) {
        self.mailboxes.of(purpose).put(news);
    }

    /// Makes the lane over an identifier, and gives it to its user.
    fn make(&mut self, lane: LaneNumber, from: Option<Locator>) -> io::Result<()> {
        let c = self.connections.get_mut(&lane).expect("the caller has it");
        let purpose = c.hello.purpose;
        let rail = &mut self.rails[usize::from(c.rail.0)];
        let adapter = rail.adapter.clone();
        let lanes = rail.lanes(purpose).filter(|lanes| !lanes.is_full());
        let lanes = lanes.ok_or(io::ErrorKind::QuotaExceeded)?;
        let queue_pair = c.make_queue_pair(&adapter, lanes)?;
        // SAFETY: made for it, and destroyed only after the lane has come back.
        let made = unsafe {
            let rings = lanes.rings(&adapter, queue_pair.0);
            let memory = (lanes.shape(), c.pool.as_ref());
            let made = Lane::new(lane, c.rail, &adapter, &self.registrations, queue_pair, memory, rings)?;
            lanes.add(&made, c.pool.as_ref());
            made
        };
        c.lent = Some(made.is_over());
        if purpose == Purpose::Stream {
            // SAFETY: it is destroyed by this thread or after it, when the lane has come back and is forgotten.
            unsafe { self.alternates.made(lane, c.rail, queue_pair.0) };
        }
        // before the peer can send: so the lane is known when its first message is found
        self.report(purpose, News::Made { lane: Box::new(made), from });
        Ok(())
    }

    fn connect(&mut self, lane: LaneNumber) -> io::Result<()> {
        self.make(lane, None)?;
        let c = &self.connections[&lane];
        let ConnectionEnd::Identifier(id) = &c.end else { return Err(io::ErrorKind::NotConnected.into()) };
        let (id, library, purpose) = (Lent(id.id), id.library, c.hello.purpose);
        let (hello, mailboxes) = (c.hello.to_bytes(), self.mailboxes.clone());
        let connect = move || {
            let Lent(id) = { id };
            let mut parameters = parameters(&hello);
            // SAFETY: it lives: it is destroyed by the same thread as long as it is not established. The private data is copied.
            if let Err(why) = done(unsafe { (library.rdma_connect)(id, &raw mut parameters) }) {
                mailboxes.of(purpose).put(News::Ended { lane, why: reason(&why) });
            }
        };
        self.blocking.make(c.rail, Box::new(connect));
        Ok(())
    }

    /// The number of a lane that a peer opens.
    fn next_lane(&mut self) -> LaneNumber {
        self.last = self.last.wrapping_add(2);
        self.last
    }

    /// A peer connects. A stranger gets no queue pair.
    fn accept(&mut self, event: &Event) {
        let Connecting::Rdmacm(events, _) = &self.way else { return };
        let id = events.accepted(event.id);
        // SAFETY: it lives, and names both addresses.
        let from = unsafe { from_kernel(&(*event.id).dst_addr) };
        let rail = self.rails.iter().position(|r| r.listener == event.listener);
        let known = event
            .hello
            .zip(from)
            .zip(rail)
            .filter(|((hello, _), rail)| hello.to == self.rails[*rail].own.service());
        let Some(((hello, from), rail)) = known else {
            // SAFETY: it lives, and the request has no other answer yet.
            unsafe { (id.library.rdma_reject)(id.id, std::ptr::null(), 0) };
            return;
        };
        let kind = self.rails[rail].own.kind();
        let from = Locator::of_ip(kind, from.ip(), hello.from);
        let lane = self.next_lane();
        // SAFETY: it lives; events are told apart by it.
        unsafe { (*id.id).context = lane as usize as *mut _ };
        id.be_impatient();
        let rail = RailId(rail as u8);
        let purpose = hello.purpose;
        self.connections.insert(lane, Connection::new(ConnectionEnd::Identifier(id), rail, hello));
        if self.make(lane, Some(from)).is_err() {
            // dropping the identifier rejects
            self.connections.remove(&lane);
            return;
        }
        let mut parameters = parameters(&[]);
        let ConnectionEnd::Identifier(id) = &self.connections[&lane].end else { return };
        // SAFETY: it lives and has a queue pair.
        if done(unsafe { (id.library.rdma_accept)(id.id, &raw mut parameters) }).is_err() {
            self.report(purpose, News::Ended { lane, why: CloseReason::Reset });
        }
    }
}

/// As poll(2) wants it; a little longer, so that what is due then is.
fn timespec(wait: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: (i64::from(wait.subsec_nanos()) + 1).min(999_999_999),
    }
}

/// An identifier on the way to another thread.
struct Lent(*mut rdma_cm_id);

// SAFETY: as for `Identifier`.
unsafe impl Send for Lent {}

fn reason(why: &io::Error) -> CloseReason {
    match why.kind() {
        io::ErrorKind::ConnectionRefused => CloseReason::Refused,
        io::ErrorKind::ConnectionReset => CloseReason::Reset,
        _ => CloseReason::Unreachable,
    }
}

/// A number that cannot be predicted.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    while getrandom(&mut bytes, GetRandomFlags::empty()) != Ok(8) {}
    u64::from_le_bytes(bytes)
}

fn parameters(private: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        // for reads and atomics, which no lane makes
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InOrderPlacement;
    use crate::fake;
    use crate::lane::Shape;

    #[test]
    fn a_connection_that_fails_leaves_no_shared_queue_behind() {
        let completions = Arc::new(fake::completions());
        let mut lanes = Lanes::new(&Shape::STREAM, completions, InOrderPlacement::Off).sharing();
        let before = fake::shared_queues();
        for _ in 0..3 {
            let hello = Hello { purpose: Purpose::Stream, from: 1, to: 2 };
            let mut c = Connection::new(ConnectionEnd::QueuePair(None), RailId(0), hello);
            c.make_queue_pair(fake::adapter(), &mut lanes).unwrap();
            assert_eq!(fake::shared_queues(), before + 1);
            // as when its lane could not be made
            drop(c);
            assert_eq!(fake::shared_queues(), before);
        }
    }

    /// A connection for this purpose, with its queue pair.
    fn connection(purpose: Purpose, lanes: &mut Lanes, number: u32) -> Connection {
        let hello = Hello { purpose, from: 1, to: 2 };
        let mut c = Connection::new(ConnectionEnd::QueuePair(None), RailId(0), hello);
        let (qp, _) = c.make_queue_pair(fake::adapter(), lanes).unwrap();
        // SAFETY: just made.
        unsafe { (*qp).qp_num = number };
        c
    }

    #[test]
    fn what_an_adapter_reports_broken_is_ended_and_a_broken_shared_queue_takes_no_more_lanes() {
        let lanes = |shape| Lanes::new(shape, Arc::new(fake::completions()), InOrderPlacement::Off);
        let (mut sharing, mut alone) = (lanes(&Shape::STREAM).sharing(), lanes(&Shape::DATAGRAMS));
        let connector = Connector::new(Vec::new(), Vec::new()).unwrap();
        let own = Locator::new(Kind::IB, &[], 1).unwrap();
        let rail = Rail::new(fake::adapter().clone(), own, None, lanes(&Shape::STREAM), None);
        let (handle, orders) = Manager::of_test();
        let (purposes, mailboxes) = ([Purpose::Stream, Purpose::Datagrams], handle.mailboxes.clone());
        let mut work = Work {
            connections: FxHashMap::default(),
            regions: FxHashMap::default(),
            registrations: handle.registrations.clone(),
            rails: vec![rail.unwrap()],
            mailboxes: mailboxes.clone(),
            alternates: Alternates::new(Vec::new()),
            path_events: handle.path_events(),
            failures: handle.failures(),
            last: 1,
            way: Connecting::ByMessages(Box::new(connector)),
            blocking: BlockingCalls::new(0).unwrap(),
        };
        work.connections.insert(2, connection(Purpose::Stream, &mut sharing, 102));
        work.connections.insert(6, connection(Purpose::Stream, &mut sharing, 106));
        work.connections.insert(4, connection(Purpose::Datagrams, &mut alone, 104));
        let wake = handle.wake.clone();
        // The thread-local adapter of the tests is this thread's, and so is the manager.
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let failures = handle.failures();
                let report = |failed, n: usize| {
                    failures.put(failed);
                    let (mut all, begun) = (Vec::new(), Instant::now());
                    while all.len() < n {
                        assert!(begun.elapsed() < Duration::from_secs(60), "{failed:?} ended {all:?} only");
                        all.extend(purposes.iter().flat_map(|p| mailboxes.of(*p).take()).map(
                            |news| match news {
                                News::Ended { lane, why: CloseReason::Reset } => lane,
                                _ => panic!("other news"),
                            },
                        ));
                        std::thread::yield_now();
                    }
                    all.sort_unstable();
                    all
                };
                failures.put(Failed::QueuePair(999));
                assert_eq!(report(Failed::QueuePair(104), 1), [4]);
                assert_eq!(report(Failed::QueuePair(106), 1), [6]);
                let pool = sharing.pool(fake::adapter()).unwrap();
                assert!(pool.is_open(), "of a single lane the queue is whole");
                assert_eq!(report(Failed::SharedQueue(pool.queue() as usize), 2), [2, 6]);
                assert!(!pool.is_open());
                let next = sharing.pool(fake::adapter()).unwrap();
                assert!(!Arc::ptr_eq(&pool, &next), "the next lanes have another");
            });
            work.run(&orders, &wake);
        });
    }

    #[test]
    fn a_manager_that_panics_destroys_no_queue_pair() {
        let destroyed = Arc::new(());
        to_its_end(destroyed.clone(), |_| ());
        assert_eq!(Arc::strong_count(&destroyed), 1, "one that ends drops what it has");
        let work = destroyed.clone();
        let panics = spawn("test", move || to_its_end(work, |_| panic!("as a test wants"))).unwrap();
        assert!(panics.join().is_err());
        assert_eq!(Arc::strong_count(&destroyed), 2, "it is there, for ever");
    }
}
