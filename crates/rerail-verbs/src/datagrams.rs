//! Datagrams: an unreliable datagram queue pair on each rail. Owns: these, their slots, and the address handles.
//!
//! An address handle holds the Ethernet address of a peer, for which the kernel may ask the network for a second. So a
//! thread makes them; meanwhile the last few datagrams for the peer wait.

use crate::abi::*;
use crate::adapter::{
    Adapter, Completions, Slots, done, inline_flag, made, post_receive, post_send, with_inline,
};
use crate::place::{gid, ip_of_gid};
use crate::sleep::{Sleep, any_of};
use parking_lot::{Mutex, RwLock};
use rerail_rail::thread::spawn;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome, receive_one,
    send_one_by_one,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Datagrams that may wait for this process on a rail. More are dropped, as by any network.
const RECEIVES: usize = 256;
/// Datagrams that may wait in the adapter to be sent.
const SENDS: usize = 128;
/// Sends until one reports its end.
const SIGNAL_EVERY: u32 = 16;
/// Datagrams that wait for an address handle, per peer.
const WAITING_MAX: usize = 8;
/// Address handles of a rail. The engine sends to its peers only, of which it has no more.
const HANDLES_MAX: usize = 1 << 16;
/// In front of what is received: the header of the network.
const GRH_BYTES: usize = 40;
/// Sender and receiver must name the same. It is no secret; frames carry tokens of their own.
const QKEY: u32 = 0x7265_7261;

/// An address handle.
struct Handle {
    adapter: Arc<Adapter>,
    handle: *mut ibv_ah,
}

// SAFETY: libibverbs allows every call from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// May take a second.
    fn new(adapter: &Arc<Adapter>, to: IpAddr) -> io::Result<Handle> {
        let mut attributes = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: gid(to) },
                flow_label: 0,
                sgid_index: adapter.gid_index,
                hop_limit: 64,
                traffic_class: 0,
            },
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: adapter.port,
        };
        // SAFETY: the domain lives.
        let handle = made(unsafe { (adapter.library.ibv_create_ah)(adapter.domain, &raw mut attributes) })?;
        Ok(Handle { adapter: adapter.clone(), handle })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nothing is sent by it any more: each send holds the lock of its table.
        unsafe { (self.adapter.library.ibv_destroy_ah)(self.handle) };
    }
}

/// What is known of the way to a peer.
enum Way {
    /// It is being asked for. Datagrams with the queue pairs that they go to.
    Asked(VecDeque<(u32, Vec<u8>)>),
    Known(Handle),
}

struct Sending {
    slots: Slots,
    free: Vec<usize>,
    /// Slots that are with the adapter, in order, and the numbers of their sends.
    sent: VecDeque<(u32, usize)>,
    next: u32,
}

struct Receiving {
    slots: Slots,
    /// Found by a thread that was going to sleep.
    early: VecDeque<ibv_wc>,
}

/// The datagrams of one rail.
pub struct Port {
    adapter: Arc<Adapter>,
    qp: *mut ibv_qp,
    /// Bytes of a datagram that fit into the work itself.
    inline_max: usize,
    outgoing: Completions,
    incoming: Completions,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    ways: RwLock<FxHashMap<IpAddr, Way>>,
    bytes_max: usize,
}

// SAFETY: as for `Handle`.
unsafe impl Send for Port {}
// SAFETY: as for `Handle`.
unsafe impl Sync for Port {}

impl Port {
    /// For datagrams of at most so many bytes.
    ///
    /// # Errors
    /// The adapter has none, or not enough memory may be locked.
    pub fn new(adapter: &Arc<Adapter>, bytes_max: usize) -> io::Result<Port> {
        let (outgoing, incoming) = (Completions::new(adapter, SENDS)?, Completions::new(adapter, RECEIVES)?);
        let attributes = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: outgoing.queue(),
            recv_cq: incoming.queue(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: SENDS as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_UD,
            sq_sig_all: 0,
        };
        let sending = Sending {
            slots: Slots::new(adapter, SENDS, bytes_max)?,
            free: (0..SENDS).collect(),
            sent: VecDeque::new(),
            next: 0,
        };
        let receiving = Receiving {
            slots: Slots::new(adapter, RECEIVES, GRH_BYTES + bytes_max)?,
            early: VecDeque::new(),
        };
        let (qp, inline_max) = with_inline(attributes, |attributes| {
            // SAFETY: domain and queues live.
            made(unsafe { (adapter.library.ibv_create_qp)(adapter.domain, attributes) })
        })?;
        let port = Port {
            adapter: adapter.clone(),
            qp,
            inline_max,
            outgoing,
            incoming,
            sending: Mutex::new(sending),
            receiving: Mutex::new(receiving),
            ways: RwLock::default(),
            bytes_max,
        };
        port.begin()?;
        Ok(port)
    }

    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.qp).qp_num }
    }

    /// Through the states of a queue pair, and all receives posted.
    fn begin(&self) -> io::Result<()> {
        // SAFETY: numbers only, for which 0 is valid.
        let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
        a.port_num = self.adapter.port;
        a.qkey = QKEY;
        let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        let steps =
            [(IBV_QPS_INIT, init), (IBV_QPS_RTR, IBV_QP_STATE), (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN)];
        for (state, mask) in steps {
            a.qp_state = state;
            // SAFETY: it lives.
            done(unsafe { (self.adapter.library.ibv_modify_qp)(self.qp, &raw mut a, mask) })?;
        }
        let receiving = self.receiving.lock();
        (0..RECEIVES).try_for_each(|slot| self.receive_into(&receiving.slots, slot))
    }

    fn receive_into(&self, slots: &Slots, slot: usize) -> io::Result<()> {
        // SAFETY: the queue pair lives, and goes before the slots.
        unsafe { post_receive(self.qp, slot as u64, slots.element(slot, GRH_BYTES + self.bytes_max)) }
    }

    /// Sends by a handle.
    fn send(&self, to: &Handle, number: u32, bytes: &[u8]) -> SendOutcome {
        let mut sending = self.sending.lock();
        if sending.free.is_empty() {
            self.reclaim(&mut sending);
        }
        let Some(slot) = sending.free.pop() else { return SendOutcome::Full };
        sending.slots.slot_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        let mut element = sending.slots.element(slot, bytes.len());
        let n = sending.next;
        let mut work = ibv_send_wr {
            wr_id: n.into(),
            next: null_mut(),
            sg_list: &raw mut element,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: inline_flag(bytes.len(), self.inline_max)
                | if n % SIGNAL_EVERY == 0 { IBV_SEND_SIGNALED } else { 0 },
            imm_data: 0,
            wr: Target { ud: Ud { ah: to.handle, remote_qpn: number, remote_qkey: QKEY } },
            rest: [0; 7],
        };
        // SAFETY: queue pair and handle live, and the slot is the adapter's until its send is over.
        match unsafe { post_send(self.qp, &mut work) } {
            Ok(()) => {
                sending.next = n.wrapping_add(1);
                sending.sent.push_back((n, slot));
                SendOutcome::Sent
            }
            Err(_) => {
                sending.free.push(slot);
                SendOutcome::Full
            }
        }
    }

    /// Takes back the slots of what is sent.
    fn reclaim(&self, sending: &mut Sending) {
        let mut entries = [ibv_wc::default(); 16];
        let n = self.outgoing.poll(&mut entries);
        for entry in &entries[..n] {
            // All that was posted before it is over as well.
            while let Some((number, slot)) = sending.sent.pop_front() {
                sending.free.push(slot);
                if number == entry.wr_id as u32 {
                    break;
                }
            }
        }
    }

    fn recv(&self, kind: rerail_rail::Kind, buf: &mut [u8]) -> Option<(Locator, usize)> {
        let mut receiving = self.receiving.lock();
        loop {
            let entry = match receiving.early.pop_front() {
                Some(entry) => entry,
                None => {
                    let mut entries = [ibv_wc::default(); 1];
                    (self.incoming.poll(&mut entries) > 0).then_some(entries[0])?
                }
            };
            let slot = entry.wr_id as usize;
            let got = Self::datagram(&receiving.slots, slot, &entry, kind, buf);
            // It fails when the adapter is gone; then nothing comes any more.
            let _ = self.receive_into(&receiving.slots, slot);
            if got.is_some() {
                return got;
            }
        }
    }

    fn datagram(
        slots: &Slots,
        slot: usize,
        entry: &ibv_wc,
        kind: rerail_rail::Kind,
        buf: &mut [u8],
    ) -> Option<(Locator, usize)> {
        if entry.status != IBV_WC_SUCCESS || entry.wc_flags & IBV_WC_GRH == 0 {
            return None;
        }
        let whole = slots.slot(slot).get(..entry.byte_len as usize)?;
        let (header, bytes) = whole.split_first_chunk::<GRH_BYTES>()?;
        buf.get_mut(..bytes.len())?.copy_from_slice(bytes);
        // The header of IPv4 has the second half of the room (RoCE v2, annex A17.4.5.1).
        let from = match header[0] >> 4 {
            6 => ip_of_gid(*header[8..].first_chunk().expect("16 more")),
            _ => IpAddr::from(*header[32..].first_chunk::<4>().expect("8 more")),
        };
        Some((Locator::of_ip(kind, from, entry.src_qp), bytes.len()))
    }

    fn before_sleep(&self) -> bool {
        // What it reported before is looked for below.
        self.incoming.silence();
        self.incoming.arm(true);
        let mut receiving = self.receiving.lock();
        let mut entries = [ibv_wc::default(); 1];
        if self.incoming.poll(&mut entries) > 0 {
            receiving.early.push_back(entries[0]);
        }
        !receiving.early.is_empty()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: it is not used any more; the slots and the queues go after it.
        unsafe { (self.adapter.library.ibv_destroy_qp)(self.qp) };
    }
}

/// Datagrams of all rails.
pub struct VerbsDatagrams {
    own: Vec<Locator>,
    ports: Arc<Vec<Port>>,
    ask: Option<Mutex<Sender<(usize, IpAddr)>>>,
    thread: Option<JoinHandle<()>>,
    sleep: Arc<Sleep>,
    /// The rail that is looked at first.
    turn: AtomicUsize,
    epoll: OwnedFd,
}

/// Makes handles, and sends what has waited for them.
fn find_ways(ports: &[Port], asked: &Receiver<(usize, IpAddr)>) {
    for (rail, to) in asked {
        let port = &ports[rail];
        let made = Handle::new(&port.adapter, to);
        let mut ways = port.ways.write();
        let waiting = match ways.remove(&to) {
            Some(Way::Asked(waiting)) => waiting,
            _ => VecDeque::new(),
        };
        // Without one the datagrams are lost, and the next asks again.
        let Ok(handle) = made else { continue };
        for (number, bytes) in waiting {
            port.send(&handle, number, &bytes);
        }
        ways.insert(to, Way::Known(handle));
    }
}

impl VerbsDatagrams {
    /// # Errors
    /// The system gives no thread, or no descriptor.
    pub fn new(own: Vec<Locator>, ports: Vec<Port>, sleep: Arc<Sleep>) -> io::Result<VerbsDatagrams> {
        let epoll = any_of(ports.iter().map(|p| p.incoming.fd()))?;
        let ports = Arc::new(ports);
        let (ask, asked) = channel();
        let theirs = ports.clone();
        let thread = spawn("rerail-verbs", move || find_ways(&theirs, &asked))?;
        Ok(VerbsDatagrams {
            own,
            ports,
            ask: Some(Mutex::new(ask)),
            thread: Some(thread),
            sleep,
            turn: AtomicUsize::new(0),
            epoll,
        })
    }

    /// To a peer to which no way is known.
    fn send_later(&self, rail: usize, to: IpAddr, number: u32, bytes: &[u8]) -> SendOutcome {
        let mut ways = self.ports[rail].ways.write();
        let full = ways.len() >= HANDLES_MAX;
        match ways.get_mut(&to) {
            Some(Way::Known(handle)) => return self.ports[rail].send(handle, number, bytes),
            Some(Way::Asked(waiting)) => {
                if waiting.len() == WAITING_MAX {
                    waiting.pop_front();
                }
                waiting.push_back((number, bytes.to_vec()));
            }
            None if full => return SendOutcome::Full,
            None => {
                ways.insert(to, Way::Asked([(number, bytes.to_vec())].into()));
                // The thread ends only when the sender is dropped.
                let _ = self.ask.as_ref().expect("until it is dropped").lock().send((rail, to));
            }
        }
        SendOutcome::Sent
    }
}

impl Drop for VerbsDatagrams {
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has printed why.
            drop(thread.join());
        }
    }
}

impl DatagramPort for VerbsDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        let rail = usize::from(rail.0);
        let Some(port) = self.ports.get(rail) else { return SendOutcome::RailBroken };
        let same = to.kind() == self.own[rail].kind() && to.place().len() == self.own[rail].place().len();
        let Some(ip) = to.place_ip().filter(|_| same && bytes.len() <= port.bytes_max) else {
            return SendOutcome::Full;
        };
        if let Some(Way::Known(handle)) = port.ways.read().get(&ip) {
            return port.send(handle, to.service(), bytes);
        }
        self.send_later(rail, ip, to.service(), bytes)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.ports.len() {
            let rail = (first.wrapping_add(i)) % self.ports.len();
            if let Some((from, len)) = self.ports[rail].recv(self.own[rail].kind(), buf) {
                let (rail, condition) = (RailId(rail as u8), Condition::Whole);
                return Ok(Some(Arrived { rail, from, len, condition }));
            }
        }
        Ok(None)
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        send_one_by_one(self, rail, to, bytes, segment)
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    /// A handle does not expire.
    fn keep_neighbour(&self, _rail: RailId, _to: Locator) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn before_sleep(&self, streams: bool) -> bool {
        self.sleep.enter();
        let found = self.ports.iter().fold(false, |found, p| p.before_sleep() | found);
        (streams && self.sleep.before()) | found
    }

    fn after_sleep(&self) {
        self.sleep.leave();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.as_raw_fd());
        out.extend(self.ports.iter().flat_map(|p| [&p.incoming, &p.outgoing]).map(|c| c.fd().as_raw_fd()));
    }
}
