//! One-sided operations: reads and writes of a peer's memory, and atomic operations on it.
//!
//! An operation is an *order*: a message that its receiver's engine carries out itself when its turn in the sequence of
//! messages comes. The answer is an order too, the other way. So both inherit from messages what is hard: each takes
//! effect exactly once whatever is lost, repeated or re-routed (invariant 1; hazards H7, H11), and orders of one
//! process to another take effect in the order in which they were posted. The target keeps an answer until it is
//! acknowledged, as the sender of any message does; the initiator bounds how many there are
//! ([`ORDERS_MAX`](crate::memory::orders::ORDERS_MAX)), and the target what they may cost
//! ([`serving`](super::serving)).
//!
//! Large amounts travel as messages beside the orders, striped and granted like any other: the bytes of a write follow their
//! order, those of a read take the place of the answer. They are placed straight into the registered memory, or the reader's.
//!
//! What is under way is in [`Orders`](crate::memory::orders::Orders), registered memory in [`Regions`](crate::memory::regions::Regions).
//! Invariant 4: when [`Engine::unregister`] returns nothing reads or writes the region any more.
//! Invariant 10: the ids of orders are the peer's choice. An order gives its memory to one message, the first that names it, and an
//! operation that has one takes no second answer (hazard H30).

use crate::api::completion::{AccessError, Completion, CompletionError, CompletionKind};
use crate::api::endpoint::Endpoint;
use crate::engine::Engine;
use crate::memory::atomic;
use crate::memory::orders::{AllowedWrite, Claim, INJECT_MAX, INLINE_MAX, LONE_INLINE_MAX, Operation};
use crate::memory::regions::{Access, RegionId, regions_of};
use crate::message::body::Body;
use crate::message::envelope::{Envelope, Role};
use crate::message::iov::Iov;
use crate::message::item::Item;
use crate::message::receiving::Receiving;
use crate::message::target::{Landing, Target};
use crate::message::tx::{Draft, Report, Withdrawal};
use crate::peer::Peer;
use crate::types::*;
use rerail_wire::onesided::{Order, OrderKind, OrderPiece, PIECES_MAX, Status, pieces};

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
        // SAFETY: the caller's promise.
        if !unsafe { self.regions.add(region) } {
            return Err(PostError::Invalid("the key of the memory region is in use"));
        }
        Ok(())
    }

    /// Forgets a region: when the call returns nothing reads or writes it any more. What was under way ends in an error at the peer.
    pub fn unregister(&mut self, domain: u32, key: u64, now: Time) {
        self.tick(now);
        let id = (domain, key);
        self.regions.remove(id);
        if !self.remedies.regions_are_fenced() {
            return;
        }
        for peer in self.peers.ids() {
            for seq in self.peers[peer].orders.end_serving_from(id) {
                self.detach_read(peer, seq);
            }
            self.refuse_writes(peer, Status::Key, |e| e.regions.contains(&id));
        }
    }

    /// The process exits: its memory is not its own any more. Reads that are being served are withdrawn with its sends.
    pub(crate) fn forget_regions(&mut self) {
        self.regions.clear();
        for peer in self.peers.ids() {
            self.refuse_writes(peer, Status::Closed, |_| true);
        }
    }

    fn refuse_writes(&mut self, peer: PeerId, status: Status, which: impl Fn(&AllowedWrite) -> bool) {
        for order in self.peers[peer].orders.expected_where(which) {
            self.refuse_expected(peer, order, status);
        }
    }

    /// A write that was allowed is not any more: what has begun to arrive is refused.
    fn refuse_expected(&mut self, peer: PeerId, order: u64, status: Status) {
        let p = &mut self.peers[peer];
        let Some((e, landing)) = p.orders.refuse_expected(order) else { return };
        if let Some(seq) = landing {
            let id = p.id();
            self.drop_message(id, seq);
        }
        self.answer(peer, e.ep, e.asker, order, status, &[]);
    }

    /// The domain whose regions peers reach through an endpoint. 0 until it is set.
    pub fn set_domain(&mut self, ep: EpId, domain: u32) {
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.set_domain(domain);
        }
    }

    /// The memory behind the pieces of an order, which the endpoint's domain has registered.
    fn resolve(&self, ep: EpId, list: &[u8], access: Access) -> Result<Iov, Status> {
        let e = self.endpoints.get(ep).filter(|e| !e.is_closing()).ok_or(Status::Closed)?;
        self.regions.resolve(e.domain(), list, access, self.remedies.bounds_are_checked())
    }

    /// The regions that the pieces of an order lie in.
    fn regions_of(&self, ep: EpId, list: &[u8]) -> Box<[RegionId]> {
        regions_of(self.endpoints.get(ep).map_or(0, Endpoint::domain), list)
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
        let inline = !op.read && (op.inject || total <= INLINE_MAX || self.is_lone(op.dest.peer, total));
        self.may_order(op.ep, op.dest, op.remote, total, if inline { total } else { 0 })?;
        let peer = op.dest.peer;
        let kind = match (op.read, inline) {
            (true, _) => OrderKind::Read,
            (false, true) => OrderKind::Write,
            (false, false) => OrderKind::WriteMessage,
        };
        let order = Order { data: op.data, total: total as u64, ..Order::new(kind, 0) };
        // SAFETY: the caller's promise.
        let iov = unsafe { Iov::new(op.iov) };
        let pending = Operation {
            ep: op.ep,
            kind: if op.read { CompletionKind::Read } else { CompletionKind::Write },
            context: op.context,
            completion: op.completion,
            bytes: total,
            result: op.read.then(|| iov.clone()),
        };
        let id = self.order(op.dest, order, op.remote, pending, |b| {
            if inline {
                iov.gather(0, total, b);
            }
        });
        if kind == OrderKind::WriteMessage && !self.peers[peer].is_self() {
            let seq = self.post(peer, op.ep, op.dest.ep, Role::Data, id, None, Body::User(iov), total);
            self.peers[peer].orders.body_is_posted(id, seq);
        } else if kind == OrderKind::WriteMessage {
            self.write_to_self(peer, id, &iov);
        }
        Ok(())
    }

    /// Whether a write of `total` bytes to a peer travels inside its order although it is not small: nothing else waits for the peer's
    /// answer, and there is room for a copy.
    fn is_lone(&self, peer: PeerId, total: usize) -> bool {
        let most = self.order_bytes_max();
        total <= LONE_INLINE_MAX
            && self.peers.get(peer).is_some_and(|p| {
                !p.is_self() && p.orders.is_idle() && p.outgoing.has_room_for_order(total, most)
            })
    }

    /// Bytes of orders that may be kept for a peer.
    fn order_bytes_max(&self) -> usize {
        self.options.retained_bytes_max.max(2 * 65_536)
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
        let pending = Operation {
            ep: op.ep,
            kind: if fetches { CompletionKind::AtomicRead } else { CompletionKind::AtomicWrite },
            context: op.context,
            completion: op.completion,
            bytes: total,
            // SAFETY: the caller's promise.
            result: fetches.then(|| unsafe { Iov::new(op.result) }),
        };
        self.order(op.dest, order, op.remote, pending, |b| {
            // SAFETY: the caller's promise. Both are read here, and never again.
            let (operands, compared) = unsafe { (Iov::new(op.operand), Iov::new(op.compare)) };
            operands.gather(0, operand, b);
            compared.gather(0, compare, b);
        });
        Ok(())
    }

    /// One-sided operations that this process has posted to a peer so far.
    pub fn operations_begun(&self, peer: PeerId) -> u64 {
        self.peers.get(peer).map_or(0, |p| p.orders.begun())
    }

    /// Whether bytes of a write of this peer are still on the way that was among its first `operations` (as
    /// [`Engine::operations_begun`] counts them there). Operations are carried out in their order with the peer's messages; so a message that
    /// was posted after them, and has arrived, stands behind all of them when this returns false. What a peer that is gone left unfinished stays
    /// awaited for ever.
    pub fn awaits_write(&self, peer: PeerId, operations: u64) -> bool {
        self.peers.get(peer).is_some_and(|p| p.orders.expects_any_of(operations))
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
        let most = self.order_bytes_max();
        let p = self.peers.get(dest.peer).ok_or(PostError::NoSuch)?;
        if p.gone().is_some() {
            return Err(PostError::PeerGone);
        }
        let full = !p.outgoing.has_room_for_order(payload, most);
        if p.orders.is_full() || full { Err(PostError::Again) } else { Ok(()) }
    }

    /// Sends an order; `payload` appends to it. Its id.
    fn order(
        &mut self,
        dest: EndpointId,
        order: Order,
        remote: &[RemotePiece],
        pending: Operation,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        let peer = dest.peer;
        let p = &mut self.peers[peer];
        let ep = pending.ep;
        let id = p.orders.begin(pending);
        self.endpoints.get_mut(ep).expect("checked before").begin();
        let mut list = [OrderPiece { addr: 0, len: 0, key: 0 }; PIECES_MAX];
        for (to, from) in list.iter_mut().zip(remote) {
            *to = OrderPiece { addr: from.addr, len: from.len as u64, key: from.key };
        }
        let mut bytes = Order { id, ..order }.to_bytes(&list[..remote.len()], 0);
        payload(&mut bytes);
        self.counters.orders_sent += 1;
        if self.peers[peer].is_self() {
            self.execute(peer, ep.0, EpId(dest.ep), &bytes);
        } else {
            let total = bytes.len();
            self.post(peer, ep, dest.ep, Role::Order, 0, None, Body::Retained(bytes), total);
        }
        id
    }

    /// Puts a message of a one-sided operation into the sequence. Its number.
    #[allow(clippy::too_many_arguments)]
    fn post(
        &mut self,
        peer: PeerId,
        ep: EpId,
        dst_ep: u16,
        role: Role,
        tag: u64,
        data: Option<u64>,
        body: Body,
        total: usize,
    ) -> u64 {
        let granule = self.options.fragment_bytes as u32;
        let p = &mut self.peers[peer];
        let eager = body.copied().is_some();
        let total = total as u64;
        let protocol = Protocol::Msg;
        let envelope = Envelope { src_ep: ep.0, dst_ep, protocol, role, tag, data, total, granule };
        // the answer reports the outcome
        let report = Report::Never;
        let id = p.id();
        let seq = p.outgoing.post(Draft {
            envelope,
            body,
            eager,
            context: 0,
            report,
            level: CompletionLevel::Buffered,
        });
        self.account(peer);
        self.queue_first(peer, seq);
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.begin();
        }
        self.want(peer);
        self.mark(id);
        seq
    }

    // ---- at the target -----------------------------------------------------------------------------------------

    /// Carries out an order whose turn it is.
    pub(crate) fn execute(&mut self, peer: PeerId, asker: u16, ep: EpId, bytes: &[u8]) {
        // an order that still waited for its turn when the peer was given up is dropped: no answer could reach the peer
        if self.peers[peer].gone().is_some() {
            return;
        }
        let Ok((order, list, payload)) = Order::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.orders_received += 1;
        if order.kind != OrderKind::Answer {
            self.peers[peer].orders.carry_out(order.id);
        }
        let done = match order.kind {
            OrderKind::Write => self.order_write(ep, &order, list, payload).map(|()| Some(Vec::new())),
            OrderKind::WriteMessage => self.order_message(peer, asker, ep, &order, list).map(|()| None),
            OrderKind::Read => self.order_read(peer, asker, ep, &order, list).map(|()| None),
            OrderKind::Atomic => self.order_atomic(ep, &order, list, payload).map(Some),
            OrderKind::Answer => return self.answered(peer, &order, payload),
        };
        match done {
            Ok(Some(former)) => {
                if order.kind == OrderKind::Write {
                    self.written(peer, asker, ep, order.data, order.total);
                }
                self.answer(peer, ep, asker, order.id, Status::Done, &former);
            }
            Ok(None) => {}
            Err(status) => self.answer(peer, ep, asker, order.id, status, &[]),
        }
    }

    fn order_write(&mut self, ep: EpId, order: &Order, list: &[u8], payload: &[u8]) -> Result<(), Status> {
        if payload.len() as u64 != order.total {
            return Err(Status::Operation);
        }
        let memory = self.resolve(ep, list, Access { read: false, write: true })?;
        memory.scatter(0, &payload[..payload.len().min(memory.bytes())]);
        Ok(())
    }

    fn order_message(
        &mut self,
        peer: PeerId,
        asker: u16,
        ep: EpId,
        order: &Order,
        list: &[u8],
    ) -> Result<(), Status> {
        if self.peers[peer].orders.is_expected(order.id) && self.remedies.one_message_per_order() {
            // not even an answer: it would end the operation that has the id
            self.counters.malformed += 1;
            return Ok(());
        }
        let memory = self.resolve(ep, list, Access { read: false, write: true })?;
        let regions = self.regions_of(ep, list);
        let e = AllowedWrite { memory, regions, ep, asker, data: order.data, bytes: order.total };
        self.peers[peer].orders.expect(order.id, e);
        if !self.remedies.writes_are_placed() {
            // planted: answered when it is allowed, not when it is there
            self.answer(peer, ep, asker, order.id, Status::Done, &[]);
        }
        Ok(())
    }

    fn order_read(
        &mut self,
        peer: PeerId,
        asker: u16,
        ep: EpId,
        order: &Order,
        list: &[u8],
    ) -> Result<(), Status> {
        let memory = self.resolve(ep, list, Access { read: true, write: false })?;
        let total = memory.bytes();
        if let Some(e) = self.endpoints.get_mut(ep) {
            e.count_remote_read();
        }
        if self.peers[peer].is_self() || (total <= INLINE_MAX && self.may_copy(peer, total)) {
            let mut copy = Vec::with_capacity(total);
            memory.gather(0, total, &mut copy);
            self.answer(peer, ep, asker, order.id, Status::Done, &copy);
            return Ok(());
        }
        let seq = self.post(peer, ep, asker, Role::Data, order.id, Some(0), Body::User(memory), total);
        let regions = self.regions_of(ep, list);
        self.peers[peer].orders.serve(seq, regions);
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
        let memory = self.resolve(ep, list, Access { read: fetches, write: !takes_none })?;
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
    fn written(&mut self, peer: PeerId, asker: u16, ep: EpId, data: Option<u64>, bytes: u64) {
        let src = Some(EndpointId { peer: self.peers[peer].id(), ep: asker });
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

    pub(super) fn answer(
        &mut self,
        peer: PeerId,
        ep: EpId,
        asker: u16,
        id: u64,
        status: Status,
        former: &[u8],
    ) {
        let order =
            Order { form: status as u8, total: former.len() as u64, ..Order::new(OrderKind::Answer, id) };
        let mut bytes = order.to_bytes(&[], former.len());
        bytes.extend_from_slice(former);
        if self.peers[peer].is_self() {
            self.execute(peer, ep.0, EpId(asker), &bytes);
        } else if self.peers[peer].gone().is_none() {
            let total = bytes.len();
            self.post(peer, ep, asker, Role::Answer, 0, None, Body::Retained(bytes), total);
        }
    }

    /// A write to ourselves that is too large for its order.
    fn write_to_self(&mut self, peer: PeerId, id: u64, from: &Iov) {
        let Some(e) = self.peers[peer].orders.end_expected(id) else { return };
        let mut bytes = Vec::with_capacity(from.bytes());
        from.gather(0, from.bytes(), &mut bytes);
        e.memory.scatter(0, &bytes);
        self.written(peer, e.asker, e.ep, e.data, e.bytes);
        self.answer(peer, e.ep, e.asker, id, Status::Done, &[]);
    }

    // ---- messages beside the orders ----------------------------------------------------------------------------

    /// Where the bytes of message `seq` beside an order go; `None`: they are not wanted. `result`: they are those of a
    /// read. The memory is the message's from now on: another with the same id gets nothing.
    pub(crate) fn landing(
        &mut self,
        peer: PeerId,
        seq: u64,
        id: u64,
        result: bool,
        total: u64,
    ) -> Option<Target> {
        let once = self.remedies.one_message_per_order();
        let (ep, iov, landing) = match self.peers[peer].orders.claim(seq, id, result, total, once) {
            Claim::Memory { ep, iov, landing } => (ep, iov, landing),
            Claim::Unknown => return None,
            Claim::Taken => {
                self.counters.malformed += 1;
                return None;
            }
        };
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
    pub(crate) fn landed(&mut self, peer: PeerId, landing: &Landing) {
        match *landing {
            Landing::Result { order } => self.complete_op(peer, order, None),
            Landing::Placed { order } => {
                let Some(e) = self.peers[peer].orders.end_expected(order) else { return };
                self.written(peer, e.asker, e.ep, e.data, e.bytes);
                if self.remedies.writes_are_placed() {
                    self.answer(peer, e.ep, e.asker, order, Status::Done, &[]);
                }
            }
            Landing::Receive | Landing::Assembly(_) => unreachable!("handled by the caller"),
        }
    }

    /// A message beside an order will not come, or is not taken.
    pub(crate) fn not_landed(&mut self, peer: PeerId, landing: &Landing, error: CompletionError) {
        match *landing {
            Landing::Result { order } => self.complete_op(peer, order, Some(error)),
            Landing::Placed { order } => {
                let p = &mut self.peers[peer];
                if p.orders.end_expected(order).is_some() && p.gone().is_some() {
                    p.orders.lose(order);
                }
            }
            Landing::Receive | Landing::Assembly(_) => {}
        }
    }

    /// An order was announced, because it fitted no datagram any more: it is fetched into memory of our own, at once if there is room,
    /// or else when it is the next. It keeps its place in the sequence, and is carried out when its turn comes.
    pub(crate) fn fetch_order(&mut self, peer: PeerId, seq: u64, next: bool) {
        let p = &self.peers[peer];
        let Some(m) = p.incoming.get(seq) else { return };
        if !m.is_remote() || p.gone().is_some() {
            return;
        }
        let e = *m.envelope();
        if !next && !self.may_fetch(peer, e.total as usize) {
            return;
        }
        let p = &mut self.peers[peer];
        let mut memory = vec![0; e.total as usize].into_boxed_slice();
        // SAFETY: the boxed bytes go into the same target, so they live as long as this value, and nothing else uses them.
        let iov = unsafe { Iov::new(&[IoVec::from_mut(&mut memory)]) };
        let target = Target {
            ep: EpId(e.dst_ep),
            protocol: e.protocol,
            context: 0,
            completion: false,
            iov,
            cap: e.total,
            multi: None,
            landing: Landing::Assembly(memory),
        };
        p.incoming.grant(seq, target, e.total);
        p.backlog.tell(Item::Cts { seq });
        let id = p.id();
        self.account(peer);
        self.peers.expect_bulk(peer);
        self.mark(id);
    }

    // ---- at the asker ------------------------------------------------------------------------------------------

    fn answered(&mut self, peer: PeerId, order: &Order, former: &[u8]) {
        let Some(op) = self.peers[peer].orders.pending(order.id) else { return };
        let mut error = access_error(order.status());
        if let (Some(seq), true) = (op.landing(), self.remedies.one_message_per_order()) {
            if error.is_none() {
                // a second answer: the first is arriving
                self.counters.malformed += 1;
                return;
            }
            // its bytes will not all come
            let id = self.peers[peer].id();
            self.drop_message(id, seq);
            return self.complete_op(peer, order.id, error);
        }
        if let (None, Some(v)) = (error, op.result()) {
            if v.bytes() == former.len() {
                v.scatter(0, former);
            } else {
                error = Some(CompletionError::Access(AccessError::Operation));
            }
        }
        if let Some(seq) = op.body() {
            let p = &mut self.peers[peer];
            match p.outgoing.withdraw(seq) {
                // its bytes are not wanted; the envelope keeps its place in the sequence
                Some(Withdrawal::Announced { .. }) | None => {}
                // it has arrived, on whatever path: acknowledgements that are under way add nothing
                Some(Withdrawal::Granted) => self.finish_tx(peer, seq, None),
            }
        }
        self.complete_op(peer, order.id, error);
    }

    fn complete_op(&mut self, peer: PeerId, id: u64, error: Option<CompletionError>) {
        let Some(op) = self.peers[peer].orders.end(id) else { return };
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
    pub(crate) fn fail_orders(&mut self, peer: PeerId, error: CompletionError) {
        for id in self.peers[peer].orders.pending_ids() {
            self.complete_op(peer, id, Some(error));
        }
        self.peers[peer].orders.abandon_peer();
    }

    /// The endpoint is closed, and its linger time over: nothing comes back into its memory any more.
    pub(crate) fn withdraw_orders(&mut self, peer: PeerId, ep: EpId) {
        let p = &mut self.peers[peer];
        let mut coming: Vec<u64> = Vec::new();
        for (seq, m) in p.incoming.iter() {
            let Some(t) = m.receiving().map(Receiving::target) else { continue };
            if matches!(t.landing, Landing::Result { .. }) && t.ep == ep {
                coming.push(seq);
            }
        }
        let over = p.orders.end_all_of(ep);
        let id = p.id();
        self.endpoints.settle(ep, over);
        coming.sort_unstable();
        for seq in coming {
            self.drop_message(id, seq);
        }
    }

    /// Invariant 10, as far as one side sees it: each message beside an order is the one that its order has given its memory to.
    pub(crate) fn check_landings(&self, p: &Peer) {
        if !self.remedies.one_message_per_order() {
            return;
        }
        for (seq, m) in p.incoming.iter() {
            let landing = m.receiving().map(|r| &r.target().landing);
            let Some(landing @ (Landing::Placed { .. } | Landing::Result { .. })) = landing else { continue };
            let taken = p.orders.landing_of(landing);
            assert_eq!(taken, Some(seq), "invariant 10: an order gives its memory to one message");
        }
        for seq in p.orders.landings() {
            assert!(p.incoming.contains(seq), "invariant 10: a message that has memory is known");
        }
    }
}
