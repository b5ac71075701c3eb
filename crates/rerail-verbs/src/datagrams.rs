//! Datagrams: an unreliable datagram queue pair on each rail. Owns: these, and their slots. Where to is in [`crate::ways`].

use crate::abi::*;
use crate::adapter::{Adapter, Slots, done, inline_flag, made, with_inline};
use crate::completions::Completions;
use crate::network::GRH_BYTES;
use crate::posting::{AT_ONCE, Sends, post_receives, send_work};
use crate::setup::datagrams_of;
use crate::sleep::{Sleep, any_of};
use crate::ways::{Finder, Handle, Later, Ways};
use parking_lot::Mutex;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Kind, Locator, RailId, SendOutcome, TrainOutcome,
    receive_one, send_one_by_one,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Datagrams that may wait for this process on a rail. More are dropped, as by any network.
const RECEIVES: usize = 256;
/// Datagrams that may wait in the adapter to be sent.
const SENDS: usize = 128;
/// Sends until one reports its end.
pub const SIGNAL_EVERY: u32 = 16;
/// Sender and receiver must name the same. It is no secret; frames carry tokens of their own.
const QKEY: u32 = 0x7265_7261;

struct Sending {
    slots: Slots,
    free: Vec<usize>,
    /// Slots that are with the adapter, in order, and the numbers of their sends.
    sent: VecDeque<(u32, usize)>,
    next: u32,
}

struct Receiving {
    slots: Slots,
    /// Those that are to receive again, and are posted together.
    empty: Vec<usize>,
    /// Found by a thread that was going to sleep.
    early: VecDeque<ibv_wc>,
}

/// The datagrams of one rail.
pub struct Port {
    adapter: Arc<Adapter>,
    qp: *mut ibv_qp,
    /// Bytes of a datagram that fit into the work itself.
    inline_max: usize,
    /// Sends until one reports its end.
    signal_every: u32,
    outgoing: Completions,
    incoming: Completions,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    ways: Ways,
    bytes_max: usize,
}

// SAFETY: libibverbs allows every call from any thread.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

impl Port {
    /// For datagrams of at most so many bytes. The end of each `signal_every`th send is reported.
    ///
    /// # Errors
    /// The adapter has none, or not enough memory may be locked.
    pub fn new(adapter: &Arc<Adapter>, bytes_max: usize, signal_every: u32) -> io::Result<Port> {
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
            empty: (0..RECEIVES).collect(),
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
            signal_every,
            outgoing,
            incoming,
            sending: Mutex::new(sending),
            receiving: Mutex::new(receiving),
            ways: Ways::default(),
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
        self.post_receives(&mut self.receiving.lock())
    }

    fn post_receives(&self, receiving: &mut Receiving) -> io::Result<()> {
        let (slots, bytes) = (&receiving.slots, GRH_BYTES + self.bytes_max);
        let request = |slot| (slot as u64, slots.element(slot, bytes));
        // SAFETY: the queue pair lives, and goes before the slots.
        unsafe { post_receives(self.qp, &mut receiving.empty, request) }
    }

    /// Sends by a handle.
    fn send(&self, to: &Handle, number: u32, bytes: &[u8]) -> SendOutcome {
        match self.send_train(to, number, bytes, bytes.len().max(1)) {
            0 => SendOutcome::Full,
            _ => SendOutcome::Sent,
        }
    }

    /// The same for datagrams of `segment` bytes each, of which the last may be shorter; how many were sent. [`AT_ONCE`] by
    /// each call of the adapter.
    fn send_train(&self, to: &Handle, number: u32, bytes: &[u8], segment: usize) -> usize {
        let sending = &mut *self.sending.lock();
        let mut count = 0;
        let mut datagrams = bytes.chunks(segment).peekable();
        // a datagram without bytes is one too
        let mut empty = bytes.is_empty().then_some(bytes);
        let mut chain = Sends::new();
        let mut slots = [0; AT_ONCE];
        loop {
            let first = sending.next;
            let mut queued = 0;
            while !chain.is_full() {
                if sending.free.is_empty() {
                    self.reclaim(sending);
                }
                let Some(&slot) = sending.free.last() else { break };
                let Some(datagram) = empty.take().or_else(|| datagrams.next()) else { break };
                sending.free.pop();
                sending.slots.slot_mut(slot)[..datagram.len()].copy_from_slice(datagram);
                let n = first.wrapping_add(queued as u32);
                let reports = if n % self.signal_every == 0 { IBV_SEND_SIGNALED } else { 0 };
                let flags = inline_flag(datagram.len(), self.inline_max) | reports;
                let mut work = send_work(n.into(), flags);
                work.wr = Target { ud: Ud { ah: to.raw(), remote_qpn: number, remote_qkey: QKEY } };
                chain.add(work, sending.slots.element(slot, datagram.len()));
                slots[queued] = slot;
                queued += 1;
            }
            // SAFETY: queue pair and handle live, and the slots are the adapter's until their sends are over.
            let (posted, result) = unsafe { chain.post_to(self.qp) };
            for slot in &slots[..posted] {
                sending.sent.push_back((sending.next, *slot));
                sending.next = sending.next.wrapping_add(1);
            }
            sending.free.extend(slots[posted..queued].iter().rev());
            count += posted;
            if result.is_err() || queued < AT_ONCE || datagrams.peek().is_none() {
                return count;
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

    fn recv(&self, kind: Kind, buf: &mut [u8]) -> Option<(Locator, usize)> {
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
            let got = self.datagram(&receiving.slots, slot, &entry, kind, buf);
            receiving.empty.push(slot);
            if receiving.empty.len() >= AT_ONCE {
                // It fails when the adapter is gone; then nothing comes any more.
                let _ = self.post_receives(&mut receiving);
            }
            if got.is_some() {
                return got;
            }
        }
    }

    fn datagram(
        &self,
        slots: &Slots,
        slot: usize,
        entry: &ibv_wc,
        kind: Kind,
        buf: &mut [u8],
    ) -> Option<(Locator, usize)> {
        if entry.status != IBV_WC_SUCCESS {
            return None;
        }
        let whole = slots.slot(slot).get(..entry.byte_len as usize)?;
        let (header, bytes) = whole.split_first_chunk::<GRH_BYTES>()?;
        buf.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some((self.adapter.network.sender(kind, entry, header)?, bytes.len()))
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

impl AsRef<Ways> for Port {
    fn as_ref(&self) -> &Ways {
        &self.ways
    }
}

/// Queue pairs for datagrams, one on each rail, and the threads that find the ways for them.
pub struct Ports {
    own: Vec<Locator>,
    /// Before the ports: their threads end with them.
    finders: Vec<Mutex<Finder>>,
    ports: Vec<Arc<Port>>,
}

impl Ports {
    /// # Errors
    /// The system gives no thread.
    pub fn new(own: Vec<Locator>, ports: Vec<Port>) -> io::Result<Ports> {
        let ports: Vec<Arc<Port>> = ports.into_iter().map(Arc::new).collect();
        let finder = |port: &Arc<Port>| {
            let send = |port: &Port, handle: &Handle, number, bytes: &[u8]| {
                // one that finds no room is lost, as by any network
                let _ = port.send(handle, number, bytes);
            };
            Finder::new(port.clone(), port.adapter.clone(), send).map(Mutex::new)
        };
        let finders = ports.iter().map(finder).collect::<io::Result<_>>()?;
        Ok(Ports { own, finders, ports })
    }

    /// Sends to this queue pair at the place of a locator.
    pub fn send(&self, rail: usize, to: &Locator, number: u32, bytes: &[u8]) -> SendOutcome {
        let Some(port) = self.ports.get(rail) else { return SendOutcome::RailBroken };
        if bytes.len() > port.bytes_max {
            return SendOutcome::Full;
        }
        let to = to.with_service(0);
        if let Some(outcome) = port.ways.by(&to, |handle| port.send(handle, number, bytes)) {
            return outcome;
        }
        self.send_later(rail, to, number, bytes)
    }

    /// The same for datagrams of `segment` bytes each. `None`: nothing was sent, because there is no such rail or no way is
    /// known.
    fn send_train(
        &self,
        rail: usize,
        to: &Locator,
        number: u32,
        bytes: &[u8],
        segment: usize,
    ) -> Option<TrainOutcome> {
        let port = self.ports.get(rail).filter(|port| segment <= port.bytes_max)?;
        let sent = port.ways.by(&to.with_service(0), |to| port.send_train(to, number, bytes, segment))?;
        let all = sent == bytes.len().div_ceil(segment);
        Some(TrainOutcome { sent, rest: if all { SendOutcome::Sent } else { SendOutcome::Full } })
    }

    /// To a place to which no way is known.
    fn send_later(&self, rail: usize, to: Locator, number: u32, bytes: &[u8]) -> SendOutcome {
        let port = &self.ports[rail];
        let vector = port.adapter.network.address_vector(to.place(), port.adapter.port, 0);
        let own = &self.own[rail];
        if to.kind() != own.kind() || to.place().len() != own.place().len() || vector.is_none() {
            return SendOutcome::Full;
        }
        match port.ways.wait(to, (number, bytes.to_vec())) {
            Later::Known => {
                let sent = port.ways.by(&to, |handle| port.send(handle, number, bytes));
                return sent.unwrap_or(SendOutcome::Full);
            }
            Later::Full => return SendOutcome::Full,
            Later::Waits => {}
            Later::Ask => self.finders[rail].lock().ask(to),
        }
        SendOutcome::Sent
    }

    /// What has come on a rail: where from, and its length. The service of the sender is the number of its queue pair.
    pub fn recv(&self, rail: usize, buf: &mut [u8]) -> Option<(Locator, usize)> {
        self.ports.get(rail)?.recv(self.own[rail].kind(), buf)
    }

    /// How many rails there are.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// The descriptors become readable when something comes; whether something has come already.
    pub fn before_sleep(&self) -> bool {
        self.ports.iter().fold(false, |found, p| p.before_sleep() | found)
    }

    /// Readable when something comes, after [`Ports::before_sleep`].
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|p| p.incoming.fd())
    }

    /// All descriptors of the queue pairs.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.ports.iter().flat_map(|p| [&p.incoming, &p.outgoing]).map(|c| c.fd().as_raw_fd()));
    }

    /// Waits until what was sent has left the adapters, at most this long. The end of every send must be reported.
    pub fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        for port in self.ports.iter() {
            loop {
                let mut sending = port.sending.lock();
                port.reclaim(&mut sending);
                if sending.sent.is_empty() || Instant::now() >= until {
                    break;
                }
                drop(sending);
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

/// Datagrams of all rails.
pub struct VerbsDatagrams {
    ports: Ports,
    sleep: Arc<Sleep>,
    /// The rail that is looked at first.
    turn: AtomicUsize,
    epoll: OwnedFd,
}

impl VerbsDatagrams {
    /// # Errors
    /// The system gives no thread, or no descriptor.
    pub fn new(own: Vec<Locator>, ports: Vec<Port>, sleep: Arc<Sleep>) -> io::Result<VerbsDatagrams> {
        let ports = Ports::new(own, ports)?;
        let epoll = any_of(ports.fds())?;
        Ok(VerbsDatagrams { ports, sleep, turn: AtomicUsize::new(0), epoll })
    }
}

impl DatagramPort for VerbsDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        self.ports.send(rail.0.into(), &to, datagrams_of(to.service()), bytes)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.ports.count() {
            let rail = (first.wrapping_add(i)) % self.ports.count();
            if let Some((from, len)) = self.ports.recv(rail, buf) {
                let (rail, condition) = (RailId(rail as u8), Condition::Whole);
                return Ok(Some(Arrived { rail, from, len, condition }));
            }
        }
        Ok(None)
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        match self.ports.send_train(rail.0.into(), &to, datagrams_of(to.service()), bytes, segment) {
            Some(outcome) => outcome,
            None => send_one_by_one(self, rail, to, bytes, segment),
        }
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    /// Handles are renewed without being asked to.
    fn keep_neighbour(&self, _rail: RailId, _to: Locator) {}

    fn lead(&self, _rail: RailId, _to: Locator, _route: u8) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn before_sleep(&self, streams: bool) -> bool {
        self.sleep.enter();
        let found = self.ports.before_sleep();
        (streams && self.sleep.before()) | found
    }

    fn after_sleep(&self) {
        self.sleep.leave();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.as_raw_fd());
        self.ports.descriptors(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{self, Work};

    fn port() -> (Port, Handle) {
        let port = Port::new(fake::adapter(), 1024, SIGNAL_EVERY).expect("nothing fails here");
        let to = Locator::of_ip(Kind::ROCE, [10, 0, 0, 1].into(), 1);
        (port, Handle::new(fake::adapter(), &to).expect("nothing fails here"))
    }

    fn sent() -> Vec<(Vec<u8>, bool, u32)> {
        let all = fake::posted().into_iter();
        all.map(|w| if let Work::Datagram(b, reports, n) = w { (b, reports, n) } else { panic!("{w:?}") })
            .collect()
    }

    #[test]
    fn a_train_is_posted_by_few_calls_and_only_what_was_posted_counts_as_sent() {
        let (port, to) = port();
        fake::posted();
        let bytes: Vec<u8> = (0..33).flat_map(|n| [n; 100]).collect();
        let before = fake::calls().sends;
        assert_eq!(port.send_train(&to, 1, &bytes[..3250], 100), 33);
        assert_eq!(fake::calls().sends - before, 3, "{AT_ONCE} by each");
        let all = sent();
        assert_eq!(
            all.iter().map(|d| &d.0[..]).collect::<Vec<_>>(),
            bytes[..3250].chunks(100).collect::<Vec<_>>()
        );
        let reported: Vec<u32> = all.iter().filter(|d| d.1).map(|d| d.2).collect();
        assert_eq!(reported, [0, 16, 32]);
        for took in [0, 1, 15, 16, 17] {
            fake::refuses_after(Some(took));
            assert_eq!(port.send_train(&to, 1, &bytes, 100), took);
            fake::refuses_after(None);
            assert_eq!(sent().len(), took);
        }
        // each slot is with the adapter or free
        let under_way = 33 + 1 + 15 + 16 + 17;
        let sending = port.sending.lock();
        assert_eq!((sending.sent.len(), sending.free.len()), (under_way, SENDS - under_way));
        let mut slots: Vec<usize> =
            sending.sent.iter().map(|s| s.1).chain(sending.free.iter().copied()).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..SENDS).collect::<Vec<_>>());
        drop(sending);
        // all that is left, and then nothing until ends are reported
        assert_eq!(port.send_train(&to, 1, &vec![1; 100 * 64], 100), SENDS - under_way);
        assert_eq!(port.send(&to, 1, b"x"), SendOutcome::Full);
        fake::reports(ibv_wc { wr_id: 32, ..ibv_wc::default() });
        assert_eq!(port.send(&to, 1, b""), SendOutcome::Sent);
        assert_eq!(sent().last(), Some(&(vec![], true, 128)));
        assert_eq!(port.sending.lock().free.len(), 32);
    }

    #[test]
    fn receives_are_posted_again_by_few_calls() {
        let (port, _) = port();
        assert_eq!(fake::posted().len(), RECEIVES);
        let before = fake::calls().receives;
        let mut buf = [0; 100];
        let message = [&[0x60][..], &[0; GRH_BYTES - 1], b"abc"].concat();
        for slot in 0..2 * AT_ONCE + 1 {
            port.receiving.lock().slots.slot_mut(slot)[..message.len()].copy_from_slice(&message);
            let byte_len = message.len() as u32;
            let (wr_id, wc_flags) = (slot as u64, IBV_WC_GRH);
            fake::reports(ibv_wc { wr_id, byte_len, wc_flags, ..ibv_wc::default() });
            let got = port.recv(rerail_rail::Kind::ROCE, &mut buf).expect("it has come");
            assert_eq!(&buf[..got.1], b"abc");
        }
        assert_eq!(fake::calls().receives - before, 2);
        let again: Vec<Work> = (0..2 * AT_ONCE as u64).map(Work::Receive).collect();
        assert_eq!(fake::posted(), again);
        // one that the adapter refuses is posted with the next
        (33..48).for_each(|slot| port.receiving.lock().empty.push(slot));
        fake::refuses_after(Some(3));
        assert!(port.post_receives(&mut port.receiving.lock()).is_err());
        fake::refuses_after(None);
        assert_eq!(port.receiving.lock().empty.len(), 13);
    }
}
