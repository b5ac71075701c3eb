//! The connection manager: a thread that makes, ends and destroys connections and registers memory, which all take
//! system calls. Owns: the identifiers of RDMA-CM, and the life of every queue pair.
//!
//! A lane belongs to [`VerbsStreams`](crate::streams::VerbsStreams) from [`News::Made`] until it is given back
//! ([`Order::Return`]). It is dropped here, when its queue pair is destroyed: after that call no adapter touches memory
//! for it, neither its own slots nor what was lent. That makes [`News::Destroyed`] a fence.

use crate::abi::*;
use crate::adapter::{Adapter, Completions, Registration, descriptors, done, made};
use crate::hello::Hello;
use crate::lane::{self, Greeting, Lane, LaneNumber};
use crate::library::Library;
use crate::place::{from_kernel, ip, locator, port, socket_address};
use parking_lot::Mutex;
use rerail_rail::thread::{Signal, spawn};
use rerail_rail::{CloseReason, IoVec, Locator, MemId, RailId, RemoteKey};
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::mem::take;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// How long addresses and routes may take, ms. The engine gives up sooner.
const RESOLVE_MS: i32 = 4000;
/// The adapter's own patience: 4.096 µs × 2^14 = 67 ms for an acknowledgement (the kernel adds to it) …
const ACK_TIMEOUT: u8 = 14;
/// … and so many attempts: a dead path ends the queue pair after some 0.4 s. 7 is for ever on some adapters.
const RETRIES: u8 = 6;
/// Connections that wait to be accepted by this process, at most.
const BACKLOG: i32 = 256;

/// Entries of a rail's completion queue. The kernel's software adapter takes 32767.
pub const ENTRIES_MAX: usize = 32_000;
/// Lanes of a rail: what they may report fits its completion queue.
const LANES_MAX: usize = ENTRIES_MAX / lane::ENTRIES;

/// What belongs to one rail.
pub struct Rail {
    pub adapter: Arc<Adapter>,
    /// Of all its lanes.
    pub completions: Arc<Completions>,
    pub own: Locator,
    greeting: Greeting,
    listener: *mut rdma_cm_id,
    /// Lanes that there are.
    lanes: usize,
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
}

/// What became of it.
pub enum News {
    /// A lane, not connected yet. `from`: who connects to this process.
    Made {
        lane: Box<Lane>,
        from: Option<Locator>,
    },
    /// A lane that this process opened is connected.
    Established {
        lane: LaneNumber,
    },
    /// It is not, or is over.
    Ended {
        lane: LaneNumber,
        why: CloseReason,
    },
    /// Nothing touches memory for the lane any more.
    Destroyed {
        lane: LaneNumber,
    },
    Registered {
        region: MemId,
        key: RemoteKey,
    },
    Invalidated {
        region: MemId,
    },
}

/// News, and a descriptor that is readable while there are some for which a sleeper is to wake up.
pub struct Mailbox {
    news: Mutex<Vec<News>>,
    some: AtomicBool,
    signal: Signal,
}

impl Mailbox {
    fn put(&self, news: News) {
        let mut all = self.news.lock();
        // A lane that is not connected concerns nobody yet.
        let wakes = !matches!(news, News::Made { .. });
        all.push(news);
        self.some.store(true, Ordering::Release);
        if wakes {
            self.signal.set(true);
        }
    }

    /// Wakes sleepers without news, until they are taken.
    pub fn ring(&self) {
        let _all = self.news.lock();
        self.some.store(true, Ordering::Release);
        self.signal.set(true);
    }

    /// All that is there. Cheap when there is nothing.
    pub fn take(&self) -> Vec<News> {
        if !self.some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut all = self.news.lock();
        self.some.store(false, Ordering::Relaxed);
        self.signal.set(false);
        take(&mut all)
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// The handle of the thread. When it is dropped everything is closed.
pub struct Manager {
    orders: Option<Sender<Order>>,
    wake: Arc<OwnedFd>,
    mailbox: Arc<Mailbox>,
    channel: RawFd,
    adapters: Vec<Arc<Adapter>>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    pub fn order(&self, order: Order) {
        // The thread ends only when the sender is dropped.
        let _ = self.orders.as_ref().expect("until it is dropped").send(order);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.wake.as_raw_fd(), self.mailbox.as_fd().as_raw_fd(), self.channel]);
        self.adapters.iter().for_each(|a| descriptors(a, out));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.orders = None;
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // One that panicked has printed why.
            drop(thread.join());
        }
    }
}

/// The channel on which the kernel reports what becomes of connections.
pub struct Events {
    library: &'static Library,
    channel: *mut rdma_event_channel,
}

// SAFETY: librdmacm allows every call from any thread.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    /// # Errors
    /// The kernel has no RDMA-CM, or this process no permission.
    pub fn new(library: &'static Library) -> io::Result<Events> {
        // SAFETY: no arguments.
        let channel = made(unsafe { (library.rdma_create_event_channel)() })?;
        let events = Events { library, channel };
        rustix::io::ioctl_fionbio(events.fd(), true)?;
        rustix::io::fcntl_setfd(events.fd(), rustix::io::FdFlags::CLOEXEC)?;
        Ok(events)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// A new identifier, bound to an address. That finds the adapter of the address, if it has one.
    ///
    /// # Errors
    /// No adapter has the address, or the port is taken.
    pub fn bind(&self, at: SocketAddr, context: usize) -> io::Result<Identifier> {
        let mut id = null_mut();
        let context = context as *mut _;
        // SAFETY: the channel lives; the identifier is written to.
        done(unsafe { (self.library.rdma_create_id)(self.channel, &raw mut id, context, RDMA_PS_TCP) })?;
        let id = Identifier { library: self.library, id };
        let mut at = socket_address(at);
        // SAFETY: a new identifier, and an address as the kernel wants it.
        done(unsafe { (self.library.rdma_bind_addr)(id.id, (&raw mut at).cast()) })?;
        // SAFETY: as above.
        if unsafe { (*id.id).verbs.is_null() } {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        Ok(id)
    }

    /// What has happened next.
    fn next(&self) -> Option<Event> {
        let mut event = null_mut();
        // SAFETY: the channel lives and does not block.
        if unsafe { (self.library.rdma_get_cm_event)(self.channel, &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: an event, valid until it is acknowledged; the private data is as long as it says.
        unsafe {
            let e = &*event;
            let conn = e.conn;
            let private = match e.event {
                RDMA_CM_EVENT_CONNECT_REQUEST if !conn.private_data.is_null() => {
                    std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into())
                }
                _ => &[],
            };
            let next = Event { id: e.id, listener: e.listen_id, kind: e.event, hello: Hello::read(private) };
            // At once: an identifier cannot be destroyed before.
            (self.library.rdma_ack_cm_event)(event);
            Some(next)
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: every identifier is gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel) };
    }
}

/// What has happened to an identifier.
struct Event {
    id: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    kind: u32,
    hello: Option<Hello>,
}

/// An identifier of RDMA-CM: a listener, or one end of a connection.
pub struct Identifier {
    library: &'static Library,
    pub id: *mut rdma_cm_id,
}

// SAFETY: as for `Events`.
unsafe impl Send for Identifier {}

impl Identifier {
    /// The adapter of its address, and the port of that.
    pub fn device(&self) -> (*mut ibv_context, u8) {
        // SAFETY: it lives.
        unsafe { ((*self.id).verbs, (*self.id).port_num) }
    }

    /// Accepts connections from now on.
    pub fn listen(&self) -> io::Result<()> {
        // SAFETY: it lives and is bound.
        done(unsafe { (self.library.rdma_listen)(self.id, BACKLOG) })
    }

    /// A path that is dead ends its queue pair soon, and not after the half-minute that some kernels choose.
    fn be_impatient(&self) {
        let mut timeout = ACK_TIMEOUT;
        // It fails where the adapter has no such time (iWARP).
        // SAFETY: one byte, as the option wants.
        unsafe {
            (self.library.rdma_set_option)(
                self.id,
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_ACK_TIMEOUT,
                (&raw mut timeout).cast(),
                1,
            )
        };
    }

    fn make_queue_pair(&self, rail: &Rail) -> io::Result<*mut ibv_qp> {
        let mut attributes = lane::attributes(&rail.completions);
        // SAFETY: it lives, and so do domain and completion queue.
        done(unsafe { (self.library.rdma_create_qp)(self.id, rail.adapter.domain, &raw mut attributes) })?;
        // SAFETY: as above.
        Ok(unsafe { (*self.id).qp })
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: the queue pair is used by nobody: its lane is here, or was never made. All events are acknowledged.
        unsafe {
            if !(*self.id).qp.is_null() {
                (self.library.rdma_destroy_qp)(self.id);
            }
            (self.library.rdma_destroy_id)(self.id);
        }
    }
}

/// A connection, from the first order or request until its queue pair is destroyed.
struct Connection {
    // before the lane: dropped first
    id: Identifier,
    rail: RailId,
    hello: Hello,
    /// The lane is with the streams, or on the way to them.
    lent: bool,
}

/// The thread's own.
struct Work {
    // The connections go before the rails, and these before the channel.
    connections: FxHashMap<LaneNumber, Connection>,
    regions: FxHashMap<MemId, Registration>,
    rails: Vec<Rail>,
    listeners: Vec<Identifier>,
    mailbox: Arc<Mailbox>,
    /// The last number of a lane that a peer opened. Those have odd numbers.
    last: LaneNumber,
    events: Arc<Events>,
}

// SAFETY: the pointers of the listeners are only compared.
unsafe impl Send for Work {}

impl Rail {
    pub fn new(
        adapter: Arc<Adapter>,
        completions: Arc<Completions>,
        own: Locator,
        listener: &Identifier,
    ) -> io::Result<Rail> {
        let greeting = Greeting::new(&adapter)?;
        Ok(Rail { adapter, completions, own, greeting, listener: listener.id, lanes: 0 })
    }
}

/// Starts the thread.
///
/// # Errors
/// The system gives no thread, or no descriptor.
pub fn start(events: Arc<Events>, rails: Vec<Rail>, listeners: Vec<Identifier>) -> io::Result<Manager> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let mailbox =
        Arc::new(Mailbox { news: Mutex::default(), some: AtomicBool::new(false), signal: Signal::new()? });
    let (orders, ordered) = channel();
    let adapters = rails.iter().map(|r| r.adapter.clone()).collect();
    let channel = events.fd().as_raw_fd();
    let mut work = Work {
        connections: FxHashMap::default(),
        regions: FxHashMap::default(),
        rails,
        listeners,
        mailbox: mailbox.clone(),
        last: 1,
        events,
    };
    let woken = wake.clone();
    let thread = spawn("rerail-verbs", move || work.run(&ordered, &woken))?;
    Ok(Manager { orders: Some(orders), wake, mailbox, channel, adapters, thread: Some(thread) })
}

impl Work {
    fn run(&mut self, orders: &Receiver<Order>, wake: &OwnedFd) {
        let events = self.events.clone();
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(events.fd(), PollFlags::IN),
            ];
            let _ = poll(&mut ready, None);
            let _ = rustix::io::read(wake, &mut [0; 8][..]);
            loop {
                match orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                        self.connections.clear();
                        self.regions.clear();
                        self.listeners.clear();
                        return;
                    }
                }
            }
            while let Some(event) = events.next() {
                self.handle(&event);
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Open { lane, rail, to } => self.open(lane, rail, to),
            Order::Close { lane } => self.close(lane),
            Order::Return(lane) => self.take_back(lane),
            Order::Register { rail, region, memory } => self.register(rail, region, memory),
            Order::Invalidate { region } => {
                // It is over when the adapter's driver has returned from the call.
                self.regions.remove(&region);
                self.mailbox.put(News::Invalidated { region });
            }
        }
    }

    fn open(&mut self, lane: LaneNumber, rail: RailId, to: Locator) {
        match self.resolve(lane, rail, &to) {
            Ok((id, hello)) => {
                self.connections.insert(lane, Connection { id, rail, hello, lent: false });
            }
            Err(_) => self.mailbox.put(News::Ended { lane, why: CloseReason::Unreachable }),
        }
    }

    fn resolve(&self, lane: LaneNumber, rail: RailId, to: &Locator) -> io::Result<(Identifier, Hello)> {
        let unreachable = || io::Error::from(io::ErrorKind::HostUnreachable);
        let own = &self.rails.get(usize::from(rail.0)).ok_or_else(unreachable)?.own;
        let hello = Hello { from: own.service(), to: to.service() };
        let from = ip(own).ok_or_else(unreachable)?;
        let to = SocketAddr::new(
            ip(to).filter(|_| to.kind() == own.kind()).ok_or_else(unreachable)?,
            port(to.service()),
        );
        let id = self.events.bind(SocketAddr::new(from, 0), lane as usize)?;
        id.be_impatient();
        let mut to = socket_address(to);
        // SAFETY: it lives and is bound; an address as the kernel wants it.
        done(unsafe { (id.library.rdma_resolve_addr)(id.id, null_mut(), (&raw mut to).cast(), RESOLVE_MS) })?;
        Ok((id, hello))
    }

    fn close(&mut self, lane: LaneNumber) {
        // One that is lent comes back, which ends it.
        if self.connections.get(&lane).is_none_or(|c| !c.lent) {
            self.connections.remove(&lane);
            self.mailbox.put(News::Destroyed { lane });
        }
    }

    fn take_back(&mut self, lane: Box<Lane>) {
        let number = lane.number;
        if let Some(c) = self.connections.get_mut(&number) {
            c.lent = false;
            // The peer's adapter is told; it fails when the connection is over or was never made.
            // SAFETY: it lives.
            unsafe { (c.id.library.rdma_disconnect)(c.id.id) };
        }
        self.rails[usize::from(lane.rail.0)].lanes -= 1;
        // destroys the queue pair
        self.connections.remove(&number);
        // only now: its memory was the adapter's until the queue pair was destroyed
        drop(lane);
        self.mailbox.put(News::Destroyed { lane: number });
    }

    fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        let mut random = [0; 8];
        while getrandom(&mut random, GetRandomFlags::empty()) != Ok(8) {}
        // What the first byte is called: unpredictable but for its place in the page, and never near the end, so that no
        // offset wraps.
        let Some(rail) = self.rails.get(usize::from(rail.0)) else { return };
        let page = rustix::param::page_size() as u64;
        let base = (u64::from_le_bytes(random) >> 2) & !(page - 1) | memory.ptr as u64 & (page - 1);
        // SAFETY: the caller's promise of `StreamPort::register`.
        let made = unsafe { rail.adapter.register(memory, base, true) };
        // Without a key, because no more memory may be locked for instance, the peer sends copies.
        if let Ok(registration) = made {
            let key = RemoteKey::of(registration.remote_key().into(), base);
            self.regions.insert(region, registration);
            self.mailbox.put(News::Registered { region, key });
        }
    }

    fn handle(&mut self, event: &Event) {
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            self.accept(event);
            return;
        }
        // SAFETY: the identifier of an event lives until it is destroyed, which also takes back its events.
        let lane = unsafe { (*event.id).context } as usize as LaneNumber;
        let Some(c) = self.connections.get_mut(&lane).filter(|c| c.id.id == event.id) else { return };
        let id = &c.id;
        let went = match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                // SAFETY: it lives.
                done(unsafe { (id.library.rdma_resolve_route)(id.id, RESOLVE_MS) })
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.connect(lane),
            // Of a lane that a peer opened it is the first message that counts.
            RDMA_CM_EVENT_ESTABLISHED if lane % 2 == 1 => Ok(()),
            RDMA_CM_EVENT_ESTABLISHED => {
                self.mailbox.put(News::Established { lane });
                // SAFETY: made for a lane, and destroyed by this thread.
                unsafe { self.rails[usize::from(c.rail.0)].greeting.send((*id.id).qp) }
            }
            RDMA_CM_EVENT_ADDR_CHANGE | RDMA_CM_EVENT_TIMEWAIT_EXIT => Ok(()),
            RDMA_CM_EVENT_REJECTED => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        };
        if let Err(why) = went {
            let why = match why.kind() {
                io::ErrorKind::ConnectionRefused => CloseReason::Refused,
                io::ErrorKind::ConnectionReset => CloseReason::Reset,
                _ => CloseReason::Unreachable,
            };
            self.mailbox.put(News::Ended { lane, why });
        }
    }

    /// Makes the lane over an identifier, and gives it to the streams.
    fn make(&mut self, lane: LaneNumber, from: Option<Locator>) -> io::Result<()> {
        let c = self.connections.get_mut(&lane).expect("the caller has it");
        let rail = &mut self.rails[usize::from(c.rail.0)];
        if rail.lanes >= LANES_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let qp = c.id.make_queue_pair(rail)?;
        // SAFETY: made for it, and destroyed only after the lane has come back.
        let made = unsafe { Lane::new(lane, c.rail, &rail.adapter, qp) }?;
        c.lent = true;
        rail.lanes += 1;
        // before the peer can send: so the lane is known when its first message is found
        self.mailbox.put(News::Made { lane: Box::new(made), from });
        Ok(())
    }

    fn connect(&mut self, lane: LaneNumber) -> io::Result<()> {
        self.make(lane, None)?;
        let c = &self.connections[&lane];
        let hello = c.hello.to_bytes();
        let mut parameters = parameters(&hello);
        // SAFETY: it lives; the private data is copied.
        done(unsafe { (c.id.library.rdma_connect)(c.id.id, &raw mut parameters) })
    }

    /// A peer connects. A stranger gets no queue pair.
    fn accept(&mut self, event: &Event) {
        let id = Identifier { library: self.events.library, id: event.id };
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
        let from = locator(kind, from.ip().to_canonical(), hello.from);
        self.last = self.last.wrapping_add(2);
        let lane = self.last;
        // SAFETY: it lives; events are told apart by it.
        unsafe { (*id.id).context = lane as usize as *mut _ };
        id.be_impatient();
        let rail = RailId(rail as u8);
        self.connections.insert(lane, Connection { id, rail, hello, lent: false });
        if self.make(lane, Some(from)).is_err() {
            // dropping the identifier rejects
            self.connections.remove(&lane);
            return;
        }
        let mut parameters = parameters(&[]);
        let id = &self.connections[&lane].id;
        // SAFETY: it lives and has a queue pair.
        if done(unsafe { (id.library.rdma_accept)(id.id, &raw mut parameters) }).is_err() {
            self.mailbox.put(News::Ended { lane, why: CloseReason::Reset });
        }
    }
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
