//! One-sided operations: reads and writes of a peer's memory, and atomic operations on it.
//!
//! An operation is an *order*: a message that its receiver's engine carries out itself when its turn in the sequence of messages comes. The
//! answer is an order too, the other way. So both inherit from messages what is hard: each takes effect exactly once whatever is
//! lost, repeated or re-routed (invariant 1; hazards H7, H11), and orders of one process to another take effect in the order in
//! which they were posted. The target keeps an answer until it is acknowledged, as the sender of any message does; the asker bounds
//! how many there are ([`ORDERS_MAX`]).
//!
//! Large amounts travel as messages beside the orders, striped and granted like any other: the bytes of a write follow their
//! order, those of a read take the place of the answer. They are placed straight into the registered memory, or the reader's.
//!
//! Owns: registered regions, operations that were not answered, writes that were allowed and have not arrived.
//! Invariant 4: when [`Engine::unregister`] returns nothing reads or writes the region any more.
//! Invariant 10: the ids of orders are the peer's choice. An order gives its memory to one message, the first that names it, and an
//! operation that has one takes no second answer (hazard H30).

use crate::api::completion::{AccessError, Completion, CompletionError, CompletionKind};
use crate::atomic;
use crate::engine::{Engine, RECORD_BYTES};
use crate::peer::Peer;
use crate::rendezvous::{Body, Iov, Item, Landing, Receiving, Role, RxBody, Target, TxMsg, TxState};
use crate::rest::OnDemand;
use crate::served::Served;
use crate::types::*;
use rerail_wire::onesided::{Order, OrderKind, OrderPiece, PIECES_MAX, Status, pieces};

/// Operations on one peer that may wait for their answers. It bounds what the peer keeps for us.
pub(crate) const ORDERS_MAX: usize = 1024;
/// Writes up to this size travel inside their order: copied once here and once there, and no grant is waited for. They take
/// effect in their turn; larger ones do when their bytes are there.
pub const INLINE_MAX: usize = 8192;

/// Longest write with `inject`: it travels inside its order, too.
const INJECT_MAX: usize = 32 * 1024;

/// A domain, and a key in it.
pub(crate) type RegionId = (u32, u64);

/// Registered memory.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    memory: Iov,
    bytes: u64,
    origin: u64,
    readable: bool,
    writable: bool,
}

/// An operation that was not answered.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub ep: EpId,
    kind: CompletionKind,
    context: usize,
    completion: bool,
    bytes: usize,
    /// Where what comes back goes.
    result: Option<Iov>,
    /// The message with the bytes of a write.
    body: Option<u64>,
    /// The peer's message that brings the bytes of a read. No other is taken.
    landing: Option<u64>,
}

/// A write that was allowed: its bytes are on the way.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    memory: Iov,
    regions: Box<[RegionId]>,
    /// For whom it is, and from whom.
    ep: EpId,
    asker: u16,
    data: Option<u64>,
    bytes: u64,
    /// The peer's message that has got the memory. No other does.
    landing: Option<u64>,
}

fn access_error(s: Status) -> Option<CompletionError> {
    Some(match s {
        Status::Done => return None,
        Status::Key => CompletionError::Access(AccessError::Key),
        Status::Bounds => CompletionError::Access(AccessError::Bounds),
        Status::Permission => CompletionError::Access(AccessError::Permission),
        Status::Operation => CompletionError::Access(AccessError::Operation),
        Status::Closed => CompletionError::PeerClosed,
    })
}

/// Whether the bytes of an order are those of an answer.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    bytes.first() == Some(&(OrderKind::Answer as u8))
}

fn is_read(kind: CompletionKind) -> bool {
    matches!(kind, CompletionKind::Read | CompletionKind::AtomicRead)
}

fn bytes_of(v: &[IoVec]) -> usize {
    v.iter().fold(0, |sum, p| sum.saturating_add(p.len))
}

fn form(kind: AtomicKind) -> u8 {
    match kind {
        AtomicKind::Update => 0,
        AtomicKind::Fetch => 1,
        AtomicKind::Compare => 2,
    }
}

fn kind_of(form: u8) -> AtomicKind {
    match form {
        0 => AtomicKind::Update,
        1 => AtomicKind::Fetch,
        _ => AtomicKind::Compare,
    }
}

impl Engine {
    // ---- registered memory -------------------------------------------------------------------------------------

    /// Makes memory known that peers may read and write.
    ///
    /// # Safety
    /// The memory stays valid until [`Engine::unregister`], here and in every clone; peers read and write it at any time.
    ///
    /// # Errors
    /// [`PostError::Invalid`] when the key is in use in that domain.
    pub unsafe fn register(&mut self, region: &Region<'_>) -> Result<(), PostError> {
        let id = (region.domain, region.key);
        if self.regions.contains_key(&id) {
            return Err(PostError::Invalid("the key of the memory region is in use"));
        }
        // SAFETY: the caller's promise, until the region is closed.
        let memory = unsafe { Iov::new(region.pieces) };
        let bytes = memory.bytes() as u64;
        let Region { origin, readable, writable, .. } = *region;
        self.regions.insert(id, Registered { memory, bytes, origin, readable, writable });
        Ok(())
    }

    /// Forgets a region: when the call returns nothing reads or writes it any more. What was under way ends in an error at the peer.
    pub fn unregister(&mut self, domain: u32, key: u64, now: Time) {
        self.tick(now);
        let id = (domain, key);
        self.regions.remove(&id);
        if !self.remedies.regions_are_fenced() {
            return;
        }
        for pi in 0..self.peers.len() {
            let p = &mut self.peers[pi];
            let mut served: Vec<u64> =
                p.serving.iter().filter(|(_, regions)| regions.contains(&id)).map(|(seq, _)| *seq).collect();
            served.sort_unstable();
            if let Some(serving) = p.serving.awake_mut() {
                serving.retain(|_, regions| !regions.contains(&id));
            }
            for seq in served {
                self.detach_read(pi, seq);
            }
            self.refuse_writes(pi, Status::Key, |e| e.regions.contains(&id));
        }
    }

    /// A read that is being served goes on from a copy of the memory, or ends in an error when there are too many copies.
    fn detach_read(&mut self, pi: usize, seq: u64) {
        let bounded = self.remedies.answers_are_bounded();
        let p = &mut self.peers[pi];
        let Some(m) = p.tx.get_mut(&seq) else { return };
        let Body::User(v) = &m.body else { return };
        let total = m.total as usize;
        if p.served.may_close(&self.served, total) || !bounded {
            let mut copy = Vec::with_capacity(total);
            v.gather(0, total, &mut copy);
            p.order_bytes -= m.order_cost();
            p.served.release(m);
            self.served.release(m);
            m.body = Body::Retained(copy);
            p.order_bytes += m.order_cost();
            p.served.keep(m);
            self.served.keep(m);
            return;
        }
        let (ep, asker, id) = (m.ep, m.dst_ep, m.tag);
        if m.state == TxState::Granted {
            self.finish_tx(pi, seq, None);
        } else {
            // its envelope keeps its place in the sequence
            m.body = Body::Withdrawn;
        }
        self.answer(pi, ep, asker, id, Status::Key, &[]);
    }

    /// The process exits: its memory is not its own any more. Reads that are being served are withdrawn with its sends.
    pub(crate) fn forget_regions(&mut self) {
        self.regions.clear();
        for pi in 0..self.peers.len() {
            self.refuse_writes(pi, Status::Closed, |_| true);
        }
    }

    fn refuse_writes(&mut self, pi: usize, status: Status, which: impl Fn(&Expected) -> bool) {
        let expected = &self.peers[pi].expected;
        let mut coming: Vec<u64> = expected.iter().filter(|(_, e)| which(e)).map(|(id, _)| *id).collect();
        coming.sort_unstable();
        for order in coming {
            self.refuse_expected(pi, order, status);
        }
    }

    /// A write that was allowed is not any more: what has begun to arrive is turned away.
    fn refuse_expected(&mut self, pi: usize, order: u64, status: Status) {
        let p = &mut self.peers[pi];
        let Some(e) = p.expected.remove(&order) else { return };
        if let Some(seq) = e.landing {
            let id = p.id;
            self.drop_message(id, seq);
        }
        self.answer(pi, e.ep, e.asker, order, status, &[]);
    }

    /// The domain whose regions peers reach through an endpoint. 0 until it is set.
    pub fn set_domain(&mut self, ep: EpId, domain: u32) {
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.set_domain(domain);
        }
    }

    /// The regions that the pieces of an order lie in.
    fn regions_of(&mut self, ep: EpId, list: &[u8]) -> Box<[RegionId]> {
        let domain = self.endpoints.get(ep).map_or(0, |e| e.domain());
        pieces(list).map(|p| (domain, p.key)).collect()
    }

    /// The memory behind the pieces of an order.
    fn resolve(&self, ep: EpId, list: &[u8], read: bool, write: bool) -> Result<Iov, Status> {
        let e = self.endpoints.get(ep).filter(|e| !e.is_closing());
        let domain = e.ok_or(Status::Closed)?.domain();
        let mut memory = Vec::with_capacity(1);
        for piece in pieces(list) {
            let r = self.regions.get(&(domain, piece.key)).ok_or(Status::Key)?;
            if (read && !r.readable) || (write && !r.writable) {
                return Err(Status::Permission);
            }
            let checked = self.remedies.bounds_are_checked();
            let at = piece.addr.wrapping_sub(r.origin);
            let inside =
                piece.addr >= r.origin && at.checked_add(piece.len).is_some_and(|end| end <= r.bytes);
            if !inside {
                if checked || at > r.bytes {
                    return Err(Status::Bounds);
                }
                // planted: what sticks out is cut off in silence
                let len = (r.bytes - at) as usize;
                r.memory.pieces(at as usize, len, |ptr, len| memory.push(IoVec { ptr, len }));
                continue;
            }
            r.memory.pieces(at as usize, piece.len as usize, |ptr, len| memory.push(IoVec { ptr, len }));
        }
        // SAFETY: every piece is a part of a registered region. What an order makes of it is used now, or withdrawn by `unregister`.
        Ok(unsafe { Iov::new(&memory) })
    }

    // ---- posting -----------------------------------------------------------------------------------------------

    /// Reads or writes a peer's memory. Completes when the bytes are placed: at the peer, or here.
    ///
    /// # Safety
    /// The memory of `op.iov` stays valid (for a read: and unshared) until the completion, here and in every clone that is made
    /// before.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was sent.
    pub unsafe fn rma(&mut self, op: &RmaOp<'_>, now: Time) -> Result<(), PostError> {
        self.tick(now);
        let total = bytes_of(op.iov);
        if op.inject && !op.read && total > INJECT_MAX {
            return Err(PostError::Invalid("an injected write has at most 32 KiB"));
        }
        let inline = !op.read && (op.inject || total <= INLINE_MAX);
        self.may_order(op.ep, op.dest, op.remote, total, if inline { total } else { 0 })?;
        let pi = op.dest.peer.0 as usize;
        let kind = match (op.read, inline) {
            (true, _) => OrderKind::Read,
            (false, true) => OrderKind::Write,
            (false, false) => OrderKind::WriteMessage,
        };
        let order = Order { data: op.data, total: total as u64, ..Order::new(kind, 0) };
        // SAFETY: the caller's promise.
        let iov = unsafe { Iov::new(op.iov) };
        let pending = Pending {
            ep: op.ep,
            kind: if op.read { CompletionKind::Read } else { CompletionKind::Write },
            context: op.context,
            completion: op.completion,
            bytes: total,
            result: op.read.then(|| iov.clone()),
            body: None,
            landing: None,
        };
        let id = self.order(op.dest, order, op.remote, pending, |b| {
            if inline {
                iov.gather(0, total, b);
            }
        });
        if kind == OrderKind::WriteMessage && !self.peers[pi].is_self {
            let seq = self.post(pi, op.ep, op.dest.ep, Role::Data, id, None, Body::User(iov), total);
            self.peers[pi].ops.get_mut(&id).expect("just made").body = Some(seq);
        } else if kind == OrderKind::WriteMessage {
            self.write_to_self(pi, id, &iov);
        }
        Ok(())
    }

    /// Carries out an atomic operation on a peer's memory. Operations of one endpoint on one peer take effect in the order in which they
    /// were posted.
    ///
    /// # Safety
    /// As for [`Engine::rma`]; the operands are read before the call returns, whatever `inject` says.
    ///
    /// # Errors
    /// See [`PostError`]; [`PostError::Invalid`] also when datatype and operation do not go together.
    pub unsafe fn atomic(&mut self, op: &AtomicOp<'_>, now: Time) -> Result<(), PostError> {
        self.tick(now);
        let Some(size) = atomic::size_of(op.datatype, op.op, op.kind) else {
            return Err(PostError::Invalid("datatype and operation do not go together"));
        };
        let total = op.remote.iter().fold(0usize, |sum, p| sum.saturating_add(p.len));
        let takes_none = op.op == atomic::op::ATOMIC_READ;
        let operand = if takes_none { 0 } else { bytes_of(op.operand) };
        let compare = bytes_of(op.compare);
        let fits = |n: usize, wanted: bool| n == if wanted { total } else { 0 };
        let right = op.remote.iter().all(|p| p.len % size == 0)
            && total <= atomic::ATOMIC_BYTES_MAX
            && fits(operand, !takes_none)
            && fits(compare, op.kind == AtomicKind::Compare)
            && fits(bytes_of(op.result), op.kind != AtomicKind::Update);
        if !right {
            return Err(PostError::Invalid("the lengths of an atomic operation do not fit each other"));
        }
        self.may_order(op.ep, op.dest, op.remote, total, operand + compare)?;
        let order = Order {
            datatype: op.datatype,
            op: op.op,
            form: form(op.kind),
            total: total as u64,
            ..Order::new(OrderKind::Atomic, 0)
        };
        let fetches = op.kind != AtomicKind::Update;
        let pending = Pending {
            ep: op.ep,
            kind: if fetches { CompletionKind::AtomicRead } else { CompletionKind::AtomicWrite },
            context: op.context,
            completion: op.completion,
            bytes: total,
            // SAFETY: the caller's promise.
            result: fetches.then(|| unsafe { Iov::new(op.result) }),
            body: None,
            landing: None,
        };
        self.order(op.dest, order, op.remote, pending, |b| {
            // SAFETY: the caller's promise; they are read here, and never again.
            let (operands, compared) = unsafe { (Iov::new(op.operand), Iov::new(op.compare)) };
            operands.gather(0, operand, b);
            compared.gather(0, compare, b);
        });
        Ok(())
    }

    fn may_order(
        &mut self,
        ep: EpId,
        dest: EndpointId,
        remote: &[RemotePiece],
        total: usize,
        payload: usize,
    ) -> Result<(), PostError> {
        if !self.endpoints.is_open(ep) {
            return Err(PostError::NoSuch);
        }
        if remote.len() > PIECES_MAX {
            return Err(PostError::Invalid("a one-sided operation has at most 8 remote pieces"));
        }
        if remote.iter().fold(0usize, |sum, p| sum.saturating_add(p.len)) != total {
            return Err(PostError::Invalid("the local and the remote side of an operation differ in length"));
        }
        let most = self.options.retained_bytes_max;
        let p = self.peers.get(dest.peer.0 as usize).ok_or(PostError::NoSuch)?;
        if p.gone.is_some() {
            return Err(PostError::PeerGone);
        }
        let full = p.order_bytes + payload + RECORD_BYTES > most.max(2 * 65_536);
        if p.ops.len() >= ORDERS_MAX || full { Err(PostError::Again) } else { Ok(()) }
    }

    /// Sends an order; `payload` appends to it. Its id.
    fn order(
        &mut self,
        dest: EndpointId,
        order: Order,
        remote: &[RemotePiece],
        pending: Pending,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        let pi = dest.peer.0 as usize;
        let p = &mut self.peers[pi];
        let id = p.op_next;
        p.op_next += 1;
        let ep = pending.ep;
        p.ops.insert(id, pending);
        self.endpoints.get_mut(ep).expect("checked before").begin();
        let mut list = [OrderPiece { addr: 0, len: 0, key: 0 }; PIECES_MAX];
        for (to, from) in list.iter_mut().zip(remote) {
            *to = OrderPiece { addr: from.addr, len: from.len as u64, key: from.key };
        }
        let mut bytes = Order { id, ..order }.to_bytes(&list[..remote.len()], 0);
        payload(&mut bytes);
        self.counters.orders_sent += 1;
        if self.peers[pi].is_self {
            self.execute(pi, ep.0, EpId(dest.ep), &bytes);
        } else {
            let total = bytes.len();
            self.post(pi, ep, dest.ep, Role::Order, 0, None, Body::Retained(bytes), total);
        }
        id
    }

    /// Puts a message of a one-sided operation into the sequence. Its number.
    #[allow(clippy::too_many_arguments)]
    fn post(
        &mut self,
        pi: usize,
        ep: EpId,
        dst_ep: u16,
        role: Role,
        tag: u64,
        data: Option<u64>,
        body: Body,
        total: usize,
    ) -> u64 {
        let granule = self.options.fragment_bytes as u32;
        let p = &mut self.peers[pi];
        let seq = p.tx_next;
        p.tx_next += 1;
        let state = if body.copied().is_some() { TxState::Eager } else { TxState::Announced };
        let m = TxMsg {
            ep,
            dst_ep,
            protocol: Protocol::Msg,
            role,
            tag,
            data,
            total: total as u64,
            body,
            state,
            granule,
            context: 0,
            completion: false,
            // what comes of it is told by the answer
            reported: true,
            delivery: false,
            granted: 0,
            acked_frags: 0,
            next: 0,
            turn: None,
            fragments: None,
            levels: None,
        };
        p.order_bytes += m.order_cost();
        if m.serves() {
            p.served.keep(&m);
            self.served.keep(&m);
        }
        let id = p.id;
        p.tx.insert(seq, m);
        self.queue_first(pi, seq);
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.begin();
        }
        self.want(pi);
        self.mark(id);
        seq
    }

    // ---- at the target -----------------------------------------------------------------------------------------

    /// Carries out an order whose turn it is.
    pub(crate) fn execute(&mut self, pi: usize, asker: u16, ep: EpId, bytes: &[u8]) {
        // what waited for its turn when the peer was given up has none any more, and nobody would hear the answer
        if self.peers[pi].gone.is_some() {
            return;
        }
        let Ok((order, list, payload)) = Order::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.orders_received += 1;
        let done = match order.kind {
            OrderKind::Write => self.order_write(ep, &order, list, payload).map(|()| Some(Vec::new())),
            OrderKind::WriteMessage => self.order_message(pi, asker, ep, &order, list).map(|()| None),
            OrderKind::Read => self.order_read(pi, asker, ep, &order, list).map(|()| None),
            OrderKind::Atomic => self.order_atomic(ep, &order, list, payload).map(Some),
            OrderKind::Answer => return self.answered(pi, &order, payload),
        };
        match done {
            Ok(Some(former)) => {
                if order.kind == OrderKind::Write {
                    self.written(pi, asker, ep, order.data, order.total);
                }
                self.answer(pi, ep, asker, order.id, Status::Done, &former);
            }
            Ok(None) => {}
            Err(status) => self.answer(pi, ep, asker, order.id, status, &[]),
        }
    }

    fn order_write(&mut self, ep: EpId, order: &Order, list: &[u8], payload: &[u8]) -> Result<(), Status> {
        if payload.len() as u64 != order.total {
            return Err(Status::Operation);
        }
        let memory = self.resolve(ep, list, false, true)?;
        memory.scatter(0, &payload[..payload.len().min(memory.bytes())]);
        Ok(())
    }

    fn order_message(
        &mut self,
        pi: usize,
        asker: u16,
        ep: EpId,
        order: &Order,
        list: &[u8],
    ) -> Result<(), Status> {
        if self.peers[pi].expected.contains_key(&order.id) && self.remedies.one_message_per_order() {
            // not even an answer: it would end the operation that has the id
            self.counters.malformed += 1;
            return Ok(());
        }
        let memory = self.resolve(ep, list, false, true)?;
        let regions = self.regions_of(ep, list);
        let e = Expected { memory, regions, ep, asker, data: order.data, bytes: order.total, landing: None };
        self.peers[pi].expected.insert(order.id, e);
        if !self.remedies.writes_are_placed() {
            // planted: answered when it is allowed, not when it is there
            self.answer(pi, ep, asker, order.id, Status::Done, &[]);
        }
        Ok(())
    }

    fn order_read(
        &mut self,
        pi: usize,
        asker: u16,
        ep: EpId,
        order: &Order,
        list: &[u8],
    ) -> Result<(), Status> {
        let memory = self.resolve(ep, list, true, false)?;
        let total = memory.bytes();
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.count_remote_read();
        }
        let p = &self.peers[pi];
        let copied = p.served.may_copy(&self.served, total) || !self.remedies.answers_are_bounded();
        if p.is_self || (total <= INLINE_MAX && copied) {
            let mut copy = Vec::with_capacity(total);
            memory.gather(0, total, &mut copy);
            self.answer(pi, ep, asker, order.id, Status::Done, &copy);
            return Ok(());
        }
        let seq = self.post(pi, ep, asker, Role::Data, order.id, Some(0), Body::User(memory), total);
        let regions = self.regions_of(ep, list);
        self.peers[pi].serving.insert(seq, regions);
        Ok(())
    }

    fn order_atomic(
        &mut self,
        ep: EpId,
        order: &Order,
        list: &[u8],
        payload: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let kind = kind_of(order.form);
        let size = atomic::size_of(order.datatype, order.op, kind).ok_or(Status::Operation)?;
        let total = usize::try_from(order.total).map_err(|_| Status::Operation)?;
        let compared = if kind == AtomicKind::Compare { total } else { 0 };
        let operands = payload.len().checked_sub(compared).ok_or(Status::Operation)?;
        let takes_none = order.op == atomic::op::ATOMIC_READ;
        if total > atomic::ATOMIC_BYTES_MAX
            || operands != if takes_none { 0 } else { total }
            || pieces(list).any(|p| p.len % size as u64 != 0)
        {
            return Err(Status::Operation);
        }
        let fetches = kind != AtomicKind::Update;
        let memory = self.resolve(ep, list, fetches, !takes_none)?;
        // a region of several pieces may cut a value in two
        if memory.as_slice().iter().any(|v| v.len % size != 0) {
            return Err(Status::Operation);
        }
        let (operand, compare) = payload.split_at(operands);
        let mut former = Vec::with_capacity(if fetches { total } else { 0 });
        let mut at = 0;
        memory.pieces(0, memory.bytes(), |ptr, len| {
            let of = |b: &'_ [u8]| if b.is_empty() { 0..0 } else { at..at + len };
            let (o, c) = (&operand[of(operand)], &compare[of(compare)]);
            // SAFETY: the range is inside a registered region, which stays valid until it is unregistered.
            unsafe { atomic::apply(order.datatype, order.op, kind, ptr, len, o, c, &mut former) };
            at += len;
        });
        if let Some(e) = self.endpoints.get_mut(ep) {
            if takes_none {
                e.count_remote_read();
            } else {
                e.count_remote_write();
            }
        }
        Ok(former)
    }

    /// A peer's write is in our memory.
    fn written(&mut self, pi: usize, asker: u16, ep: EpId, data: Option<u64>, bytes: u64) {
        let src = Some(EndpointId { peer: self.peers[pi].id, ep: asker });
        let Some(e) = self.endpoints.get_mut(ep) else { return };
        e.count_remote_write();
        let cq = e.rx_cq();
        if data.is_some() {
            let c = Completion {
                len: bytes as usize,
                data,
                src,
                ..Completion::new(CompletionKind::RemoteWrite, Protocol::Msg, ep, 0)
            };
            self.push(cq, c);
        }
    }

    fn answer(&mut self, pi: usize, ep: EpId, asker: u16, id: u64, status: Status, former: &[u8]) {
        let order =
            Order { form: status as u8, total: former.len() as u64, ..Order::new(OrderKind::Answer, id) };
        let mut bytes = order.to_bytes(&[], former.len());
        bytes.extend_from_slice(former);
        if self.peers[pi].is_self {
            self.execute(pi, ep.0, EpId(asker), &bytes);
        } else if self.peers[pi].gone.is_none() {
            let total = bytes.len();
            self.post(pi, ep, asker, Role::Answer, 0, None, Body::Retained(bytes), total);
        }
    }

    /// Whether no order of a peer is carried out for now: too much is kept for it that it has not acknowledged.
    pub(crate) fn holds_orders(&self, pi: usize) -> bool {
        let p = &self.peers[pi];
        p.served.is_full(&self.served) && p.gone.is_none() && self.remedies.answers_are_bounded()
    }

    /// Whether the next message, which is an order, waits for that. Not an answer: nothing is kept for it.
    pub(crate) fn is_held(&self, pi: usize, body: &RxBody) -> bool {
        self.holds_orders(pi) && !matches!(body, RxBody::Eager(b) if is_answer(b))
    }

    /// Goes on with the peers for which less is kept by now.
    #[inline]
    pub(crate) fn release_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        for peer in std::mem::take(&mut self.held) {
            if self.holds_orders(peer.0 as usize) {
                self.held.push(peer);
            } else {
                self.advance_sequence(peer.0 as usize);
            }
        }
    }

    /// A write to ourselves that is too large for its order.
    fn write_to_self(&mut self, pi: usize, id: u64, from: &Iov) {
        let Some(e) = self.peers[pi].expected.remove(&id) else { return };
        let mut bytes = Vec::with_capacity(from.bytes());
        from.gather(0, from.bytes(), &mut bytes);
        e.memory.scatter(0, &bytes);
        self.written(pi, e.asker, e.ep, e.data, e.bytes);
        self.answer(pi, e.ep, e.asker, id, Status::Done, &[]);
    }

    // ---- messages beside the orders ----------------------------------------------------------------------------

    /// Where the bytes of message `seq` beside an order go; `None`: nobody wants them. `result`: they are those of a read. The memory is
    /// the message's from now on: another with the same id gets nothing.
    pub(crate) fn landing(
        &mut self,
        pi: usize,
        seq: u64,
        id: u64,
        result: bool,
        total: u64,
    ) -> Option<Target> {
        let once = self.remedies.one_message_per_order();
        let p = &mut self.peers[pi];
        let (ep, iov, landing, taken) = if result {
            let op = p.ops.awake_mut()?.get_mut(&id)?;
            if op.kind != CompletionKind::Read || op.bytes as u64 != total {
                return None;
            }
            (op.ep, op.result.clone()?, Landing::Result { order: id }, &mut op.landing)
        } else {
            let e = p.expected.awake_mut()?.get_mut(&id).filter(|e| e.bytes == total)?;
            (e.ep, e.memory.clone(), Landing::Placed { order: id }, &mut e.landing)
        };
        if taken.is_some() && once {
            self.counters.malformed += 1;
            return None;
        }
        *taken = Some(seq);
        let cap = iov.bytes() as u64;
        Some(Target {
            ep,
            protocol: Protocol::Msg,
            context: 0,
            completion: false,
            iov,
            cap,
            multi: None,
            landing,
        })
    }

    /// All the bytes of a message beside an order are in their place.
    pub(crate) fn landed(&mut self, pi: usize, landing: &Landing) {
        match *landing {
            Landing::Result { order } => self.complete_op(pi, order, None),
            Landing::Placed { order } => {
                let Some(e) = self.peers[pi].expected.remove(&order) else { return };
                self.written(pi, e.asker, e.ep, e.data, e.bytes);
                if self.remedies.writes_are_placed() {
                    self.answer(pi, e.ep, e.asker, order, Status::Done, &[]);
                }
            }
            Landing::Receive | Landing::Assembly(_) => unreachable!("handled by the caller"),
        }
    }

    /// A message beside an order will not come, or is not taken.
    pub(crate) fn not_landed(&mut self, pi: usize, landing: &Landing, error: CompletionError) {
        match *landing {
            Landing::Result { order } => self.complete_op(pi, order, Some(error)),
            Landing::Placed { order } => {
                self.peers[pi].expected.remove(&order);
            }
            Landing::Receive | Landing::Assembly(_) => {}
        }
    }

    /// An order was announced, because it fitted no datagram any more: it is fetched into memory of our own, at once if there is room, or
    /// else when it is the next. It keeps its place in the sequence, and is carried out when its turn comes.
    pub(crate) fn fetch_order(&mut self, pi: usize, seq: u64, next: bool) {
        let bounded = self.remedies.answers_are_bounded();
        let p = &mut self.peers[pi];
        let Some(m) = p.rx.get_mut(&seq) else { return };
        if m.receiving.is_some() || !matches!(m.body, RxBody::Remote) || p.gone.is_some() {
            return;
        }
        if bounded && !next && !p.served.may_fetch(&self.served, m.total as usize) {
            return;
        }
        p.served.wait(m.total as usize);
        self.served.wait(m.total as usize);
        let mut memory = vec![0; m.total as usize].into_boxed_slice();
        // SAFETY: the bytes are boxed and go into the same target, so that they live as long as this, and nothing else uses them.
        let iov = unsafe { Iov::new(&[IoVec::from_mut(&mut memory)]) };
        let target = Target {
            ep: EpId(m.dst_ep),
            protocol: m.protocol,
            context: 0,
            completion: false,
            iov,
            cap: m.total,
            multi: None,
            landing: Landing::Assembly(memory),
        };
        m.receiving = Some(Receiving::new(target, m.total, m.granule));
        p.receiving += 1;
        p.control.push_back(Item::Cts { seq });
        let id = p.id;
        self.peers.expect_bulk(pi);
        self.mark(id);
    }

    // ---- at the asker ------------------------------------------------------------------------------------------

    fn answered(&mut self, pi: usize, order: &Order, former: &[u8]) {
        let Some(op) = self.peers[pi].ops.get(&order.id) else { return };
        let mut error = access_error(order.status());
        if let (Some(seq), true) = (op.landing, self.remedies.one_message_per_order()) {
            if error.is_none() {
                // a second answer: the first is arriving
                self.counters.malformed += 1;
                return;
            }
            // its bytes will not all come
            let id = self.peers[pi].id;
            self.drop_message(id, seq);
            return self.complete_op(pi, order.id, error);
        }
        if let (None, Some(v)) = (error, &op.result) {
            if v.bytes() == former.len() {
                v.scatter(0, former);
            } else {
                error = Some(CompletionError::Access(AccessError::Operation));
            }
        }
        if let Some(seq) = op.body {
            let p = &mut self.peers[pi];
            match p.tx.get_mut(&seq) {
                // its bytes are not wanted; the envelope keeps its place in the sequence
                Some(m) if m.state != TxState::Granted => m.body = Body::Withdrawn,
                // it has arrived, on whatever path: acknowledgements that are under way say nothing new
                Some(_) => self.finish_tx(pi, seq, None),
                None => {}
            }
        }
        self.complete_op(pi, order.id, error);
    }

    fn complete_op(&mut self, pi: usize, id: u64, error: Option<CompletionError>) {
        let Some(op) = self.peers[pi].ops.remove(&id) else { return };
        let Some(e) = self.endpoints.get_mut(op.ep) else { return };
        e.settle(1);
        e.count_one_sided(is_read(op.kind), error.is_some());
        let cq = e.tx_cq();
        if op.completion || error.is_some() {
            let len = op.bytes;
            self.push(
                cq,
                Completion { len, error, ..Completion::new(op.kind, Protocol::Msg, op.ep, op.context) },
            );
        }
    }

    /// Ends the operations on a peer that is gone, and what it wanted to write.
    pub(crate) fn fail_orders(&mut self, pi: usize, error: CompletionError) {
        let mut ids: Vec<u64> = self.peers[pi].ops.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.complete_op(pi, id, Some(error));
        }
        let p = &mut self.peers[pi];
        p.expected = OnDemand::default();
        p.serving = OnDemand::default();
    }

    /// The endpoint is closed, and its linger time over: nothing comes back into its memory any more.
    pub(crate) fn withdraw_orders(&mut self, pi: usize, ep: EpId) {
        let p = &mut self.peers[pi];
        let mut coming: Vec<u64> = Vec::new();
        for (seq, m) in &p.rx {
            let Some(r) = &m.receiving else { continue };
            if matches!(r.target.landing, Landing::Result { .. }) && r.target.ep == ep {
                coming.push(*seq);
            }
        }
        let before = p.ops.len();
        if let Some(ops) = p.ops.awake_mut() {
            ops.retain(|_, op| op.ep != ep);
        }
        let over = (before - p.ops.len()) as u64;
        let id = p.id;
        self.endpoints.settle(ep, over);
        coming.sort_unstable();
        for seq in coming {
            self.drop_message(id, seq);
        }
    }

    /// The sums of what is kept for orders are those of the messages.
    pub(crate) fn check_served(&self) {
        let mut all = (0, 0, 0);
        for p in self.peers.iter() {
            let mut sum = Served::default();
            p.tx.values().filter(|m| m.serves()).for_each(|m| sum.keep(m));
            p.rx.values().for_each(|m| sum.wait(m.waiting_cost()));
            assert_eq!(sum, p.served, "what is kept for a peer's orders is the sum of the messages");
            let (kept, copied, waiting) = sum.sums();
            all = (all.0 + kept, all.1 + copied, all.2 + waiting);
        }
        assert_eq!(all, self.served.sums(), "what is kept for all orders is the sum over the peers");
    }

    /// Invariant 10, as far as one side sees it: each message beside an order is the one that its order has given its memory to.
    pub(crate) fn check_landings(&self, p: &Peer) {
        if !self.remedies.one_message_per_order() {
            return;
        }
        for (seq, m) in &p.rx {
            let taken = match m.receiving.as_ref().map(|r| &r.target.landing) {
                Some(Landing::Placed { order }) => p.expected.get(order).and_then(|e| e.landing),
                Some(Landing::Result { order }) => p.ops.get(order).and_then(|op| op.landing),
                Some(Landing::Receive | Landing::Assembly(_)) | None => continue,
            };
            assert_eq!(taken, Some(*seq), "invariant 10: an order gives its memory to one message");
        }
        let landing = p.expected.values().map(|e| e.landing).chain(p.ops.values().map(|op| op.landing));
        for seq in landing.flatten() {
            assert!(p.rx.contains_key(&seq), "invariant 10: a message that has memory is known");
        }
    }
}
