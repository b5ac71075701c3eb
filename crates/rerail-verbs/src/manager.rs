//! The connection manager: a thread that makes, ends and destroys connections and registers memory, which all take
//! system calls. Owns: the identifiers of RDMA-CM, and the life of every queue pair.
//!
//! A lane belongs to [`VerbsStreams`](crate::streams::VerbsStreams) from [`News::Made`] until it is given back
//! ([`Order::Return`]). It is dropped here, when its queue pair is destroyed: after that call no adapter touches memory
//! for it, neither its own slots nor what was lent. That makes [`News::Destroyed`] a fence.

use crate::abi::*;
use crate::adapter::{Adapter, Completions, Registration, descriptors, done};
use crate::hello::Hello;
use crate::identifier::{Event, Events, Identifier};
use crate::lane::{self, Greeting, Lane, LaneNumber};
use crate::mailbox::{Mailbox, News};
use crate::place::{from_kernel, port, socket_address};
use crate::registrations::Registrations;
use crate::watcher::WatchError;
use rerail_rail::thread::spawn;
use rerail_rail::{CloseReason, IoVec, Locator, MemId, RailId, RemoteKey};
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// How long addresses and routes may take, ms. The engine gives up sooner.
const RESOLVE_MS: i32 = 4000;
/// Attempts after the first: with [`crate::identifier::ACK_TIMEOUT`] a dead path ends the queue pair after some 0.4 s. 7 is for ever on some
/// adapters.
const RETRIES: u8 = 6;
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

/// The handle of the thread. When it is dropped everything is closed.
pub struct Manager {
    orders: Option<Sender<Order>>,
    wake: Arc<OwnedFd>,
    mailbox: Arc<Mailbox>,
    channel: RawFd,
    registrations: Arc<Registrations>,
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
        out.extend(self.registrations.fd());
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

/// A connection, from the first order or request until its queue pair is destroyed.
struct Connection {
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
    registrations: Arc<Registrations>,
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
pub fn start(
    events: Arc<Events>,
    rails: Vec<Rail>,
    listeners: Vec<Identifier>,
    keep: bool,
) -> io::Result<(Manager, Option<WatchError>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let mailbox = Arc::new(Mailbox::new()?);
    let (registrations, not_kept) = Registrations::new(keep, &wake);
    let (orders, ordered) = channel();
    let adapters = rails.iter().map(|r| r.adapter.clone()).collect();
    let channel = events.fd().as_raw_fd();
    let mut work = Work {
        connections: FxHashMap::default(),
        regions: FxHashMap::default(),
        registrations: registrations.clone(),
        rails,
        listeners,
        mailbox: mailbox.clone(),
        last: 1,
        events,
    };
    let woken = wake.clone();
    let thread = spawn("rerail-verbs", move || work.run(&ordered, &woken))?;
    let thread = Some(thread);
    let manager = Manager { orders: Some(orders), wake, mailbox, channel, registrations, adapters, thread };
    Ok((manager, not_kept))
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
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.connections.clear();
                        self.regions.clear();
                        self.registrations.close();
                        self.listeners.clear();
                        return;
                    }
                }
            }
            self.registrations.release();
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
        let from = own.place_ip().ok_or_else(unreachable)?;
        let to = SocketAddr::new(
            to.place_ip().filter(|_| to.kind() == own.kind()).ok_or_else(unreachable)?,
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
        let qp = c.id.make_queue_pair(&rail.adapter, lane::attributes(&rail.completions))?;
        // SAFETY: made for it, and destroyed only after the lane has come back.
        let made = unsafe { Lane::new(lane, c.rail, &rail.adapter, &self.registrations, qp) }?;
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
        let id = self.events.accepted(event.id);
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
