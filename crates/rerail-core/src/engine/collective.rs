//! Collective operations of a group of endpoints. Owns: the groups, and the operations that are under way in them.
//!
//! An operation is a [`plan`] of messages between the members, which go as all messages do, over every rail and exactly
//! once, but in a queue of their own: no receive of the program matches them. It advances whenever the engine does, so
//! that a member that computes delays no other member.
//!
//! Each member names a group by a number of its own, and learns the others' numbers when the group is made: a message
//! carries the number of its receiver and that of the operation, so it cannot be taken for one of another group or
//! operation. While a group is being made, its messages carry instead a hash of its members and of how often this group
//! was made before.
//!
//! No member waits for ever. A member whose operation has failed continues its plan, and sends a failure message in
//! place of each message, until all members that depend on it have received one. A member that cannot make a group
//! reports this to all others, some of which may have made it: they treat it as gone. Messages for a group that is not
//! there, or could not be made, are discarded.

mod plan;

use super::Engine;
use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::matching::matcher::{Posted, Unexpected};
use crate::memory::atomic;
use crate::message::envelope::MESSAGE_BYTES_MAX;
use crate::peer::Gone;
use crate::types::*;
use plan::{Buffer, Place, Plan, Shape, Step};
use rustc_hash::FxHashMap;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most members of a group.
pub const MEMBERS_MAX: usize = 1 << 20;
/// Bytes of the number by which a member knows a group.
const NUMBER_BYTES: usize = 4;
/// Tags of messages that make a group have this bit, others have not.
const JOIN: u64 = 1 << 63;
/// Of these, a report that the sender could not make the group has this bit as well.
const FAILED: u64 = 1 << 62;

/// Memory of an operation that is the engine's own. Shared, because messages that are under way point into it, in every clone of
/// the engine.
#[derive(Clone)]
struct Scratch(Arc<[UnsafeCell<u8>]>);

// SAFETY: only the engine and its ports touch the bytes, as they touch memory of the program.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// One byte more than `len`: for messages that carry nothing.
    fn new(len: usize) -> Self {
        Self((0..=len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn whole(&self) -> IoVec {
        IoVec::new(self.0.as_ptr().cast_mut().cast(), self.0.len() - 1)
    }

    fn pad(&self) -> IoVec {
        IoVec::new(self.0[self.0.len() - 1].get(), 1)
    }
}

#[derive(Clone)]
struct Group {
    ep: EpId,
    members: Arc<[EndpointId]>,
    rank: usize,
    /// Of the messages that make it.
    join: u64,
    /// The numbers by which the others know it; `None` until it is made.
    numbers: Option<Arc<[u32]>>,
    /// It could not be made here.
    failed: bool,
    /// Members that could not make it, by rank, and why.
    lost: Vec<(usize, CompletionError)>,
    /// Operations begun.
    begun: u32,
    /// Operations that are not over.
    running: usize,
}

/// What becomes of an operation when it is over.
#[derive(Clone, Copy)]
enum Report {
    /// The group is made: reported in this queue, unless the program has left the group.
    Joined { cq: Option<CqId>, context: usize },
    /// Reported in the endpoint's queue for sends.
    Done { context: usize, completion: bool },
}

#[derive(Clone)]
struct Running {
    ep: EpId,
    group: GroupId,
    plan: Arc<Plan>,
    next: usize,
    /// Messages that are not done.
    pending: usize,
    input: IoVec,
    result: IoVec,
    scratch: Scratch,
    datatype: u8,
    op: u8,
    /// Of its messages: the number of the operation, or what a group that is being made is known by.
    tag: u64,
    /// `None` for an operation that reports to the others that the group could not be made.
    report: Option<Report>,
    error: Option<CompletionError>,
}

/// A message of an operation.
#[derive(Clone, Copy)]
struct Transfer {
    operation: u64,
    /// Bytes to be received.
    expected: Option<usize>,
}

/// The groups of an engine, and what goes on in them.
#[derive(Clone, Default)]
pub(crate) struct Collectives {
    groups: FxHashMap<GroupId, Group>,
    group_next: u32,
    running: FxHashMap<u64, Running>,
    running_next: u64,
    transfers: FxHashMap<usize, Transfer>,
    transfer_next: usize,
    /// How often each set of members has been made a group, by its hash.
    made: FxHashMap<(EpId, u64), u32>,
    /// Completions of messages that were not looked at yet.
    settled: VecDeque<Completion>,
    /// Memory of operations that were given up while messages were under way, until their endpoint is closed.
    orphaned: Vec<(EpId, Scratch)>,
}

impl Collectives {
    /// Whether messages have completed since [`Engine::run_collectives`].
    #[inline]
    pub fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// A message of ours is done.
    pub fn settle(&mut self, c: Completion) {
        self.settled.push_back(c);
    }

    /// The endpoint closes: its groups and operations are no more.
    pub fn close(&mut self, ep: EpId) {
        self.groups.retain(|_, g| g.ep != ep);
        self.made.retain(|(of, _), _| *of != ep);
        let orphaned = &mut self.orphaned;
        self.running.retain(|_, r| {
            let stays = r.ep != ep;
            if !stays {
                orphaned.push((ep, r.scratch.clone()));
            }
            stays
        });
        let running = &self.running;
        self.transfers.retain(|_, t| running.contains_key(&t.operation));
    }

    /// Nothing touches the memory of the endpoint's messages any more.
    pub fn forget(&mut self, ep: EpId) {
        self.orphaned.retain(|(of, _)| *of != ep);
    }
}

/// The code of a failure, sent in place of a message.
fn word_of(error: CompletionError) -> u64 {
    match error {
        CompletionError::PeerDied => 1,
        CompletionError::PeerUnreachable => 2,
        CompletionError::PeerClosed => 3,
        _ => 0,
    }
}

fn error_of(word: u64) -> CompletionError {
    match word {
        1 => CompletionError::PeerDied,
        2 => CompletionError::PeerUnreachable,
        3 => CompletionError::PeerClosed,
        _ => CompletionError::Mismatch,
    }
}

/// FNV-1a (Fowler, Noll, Vo): every member must compute the same.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

impl Engine {
    /// Begins to make a group of the members in this order, the endpoint among them. Every member must call this with
    /// the same members, and in the same order where several groups have the same members. When all have, it completes
    /// as a [`CompletionKind::Collective`] in `op.cq`, and the group can be used.
    ///
    /// # Errors
    /// [`PostError::NoSuch`]: no such endpoint, or it is closing. [`PostError::Invalid`]: the endpoint is not among the members, one is
    /// named twice, or there are more than [`MEMBERS_MAX`].
    pub fn join(&mut self, op: &JoinOp<'_>, now: Time) -> Result<GroupId, PostError> {
        self.tick(now);
        if !self.endpoints.is_open(op.ep) {
            return Err(PostError::NoSuch);
        }
        if op.members.len() > MEMBERS_MAX {
            return Err(PostError::Invalid("a group has at most 2^20 members"));
        }
        if op.members.iter().any(|m| self.peers.get(m.peer).is_none()) {
            return Err(PostError::NoSuch);
        }
        let own = |m: &EndpointId| self.peers[m.peer].is_self() && m.ep == op.ep.0;
        let Some(rank) = op.members.iter().position(own) else {
            return Err(PostError::Invalid("the endpoint itself is not a member of the group"));
        };
        let mut sorted = op.members.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            return Err(PostError::Invalid("a member is named twice"));
        }
        let names = op.members.iter().flat_map(|m| {
            let token = self.peers[m.peer].address().token.0;
            token.into_iter().chain(m.ep.to_le_bytes())
        });
        let set = hash(names);
        let made = self.collectives.made.entry((op.ep, set)).or_insert(0);
        let tag = JOIN | hash(set.to_le_bytes().into_iter().chain(made.to_le_bytes())) & !FAILED;
        *made = made.wrapping_add(1);

        let id = GroupId(self.collectives.group_next);
        self.collectives.group_next += 1;
        let group = Group {
            ep: op.ep,
            members: op.members.into(),
            rank,
            join: tag,
            numbers: None,
            failed: false,
            lost: Vec::new(),
            begun: 0,
            running: 1,
        };
        self.collectives.groups.insert(id, group);
        // a member that could not make it may have reported this before we joined
        while let Some(m) = self
            .endpoints
            .get_mut(op.ep)
            .and_then(|e| e.matcher_mut().take_unexpected(Protocol::Collective, FAILED | tag, 0, None))
        {
            self.is_for_nobody(&m, op.ep);
            self.drop_message(m.peer, m.seq);
        }
        let shape = Shape { rank, members: op.members.len(), bytes: NUMBER_BYTES };
        let plan = shape.gather_around();
        let scratch = Scratch::new(plan.scratch_bytes());
        // SAFETY: the memory is new, and has room for the number of every member.
        unsafe { scratch.whole().ptr.cast::<[u8; NUMBER_BYTES]>().write(id.0.to_le_bytes()) };
        let nothing = scratch.pad();
        let report = Some(Report::Joined { cq: Some(op.cq), context: op.context });
        self.begin(Running {
            ep: op.ep,
            group: id,
            plan: Arc::new(plan),
            next: 0,
            pending: 0,
            input: nothing,
            result: nothing,
            scratch,
            datatype: 0,
            op: 0,
            tag,
            report,
            error: None,
        });
        self.run_collectives(now);
        Ok(id)
    }

    /// Gives a group up. One that is not made yet is still made, for the other members, and is not reported.
    ///
    /// # Errors
    /// [`PostError::NoSuch`]: no such group. [`PostError::Again`]: operations are under way in it.
    pub fn leave(&mut self, group: GroupId) -> Result<(), PostError> {
        let g = self.collectives.groups.get(&group).ok_or(PostError::NoSuch)?;
        let joining = self.collectives.running.values_mut().find_map(|r| match &mut r.report {
            Some(Report::Joined { cq, .. }) if r.group == group => Some(cq),
            _ => None,
        });
        match joining {
            Some(cq) => *cq = None,
            None if g.running > 0 => return Err(PostError::Again),
            None => {
                let ep = g.ep;
                self.collectives.groups.remove(&group);
                self.drop_unasked(ep, group);
            }
        }
        Ok(())
    }

    /// Discards the messages of a group that no receive will ever match.
    fn drop_unasked(&mut self, ep: EpId, group: GroupId) {
        let Some(e) = self.endpoints.get_mut(ep) else { return };
        let is_for = |m: &Unexpected| m.tag & JOIN == 0 && m.tag >> 32 == u64::from(group.0);
        for m in e.matcher_mut().take_unexpected_where(Protocol::Collective, is_for) {
            self.drop_message(m.peer, m.seq);
        }
    }

    /// Whether no receive will ever match a message of a collective operation, which has just arrived in its turn. A
    /// report that its sender could not make a group takes effect here.
    pub(crate) fn is_for_nobody(&mut self, m: &Unexpected, ep: EpId) -> bool {
        let groups = &mut self.collectives.groups;
        if m.tag & JOIN == 0 {
            let g = groups.get(&GroupId((m.tag >> 32) as u32));
            return g.is_none_or(|g| g.ep != ep || g.failed);
        }
        if m.tag & FAILED == 0 {
            return false;
        }
        let found = groups.iter_mut().find(|(_, g)| g.ep == ep && g.join | FAILED == m.tag);
        // this process may not have joined yet
        let Some((&id, g)) = found else { return false };
        let src = EndpointId { peer: m.peer, ep: m.src_ep };
        let Some(rank) = g.members.iter().position(|path| *path == src) else { return true };
        let word = self.peers[m.peer].incoming.get(m.seq).and_then(|path| path.envelope().data);
        // the peer may repeat the report: the first one counts
        if g.lost.iter().any(|l| l.0 == rank) {
            return true;
        }
        let error = error_of(word.unwrap_or(0));
        g.lost.push((rank, error));
        // what was sent before it is here; nothing comes any more
        let Some(e) = self.endpoints.get_mut(ep) else { return true };
        let rx_cq = e.rx_cq();
        let from_it = |path: &Posted| {
            path.src() == Some(src) && path.tag() & JOIN == 0 && path.tag() >> 32 == u64::from(id.0)
        };
        let error = |path: &Posted| from_it(path).then_some(error);
        for c in e.matcher_mut().end_posted_where(Protocol::Collective, error) {
            self.push(rx_cq, c);
        }
        true
    }

    /// No message is kept that no operation will ever receive, and no message under way is without its operation.
    pub(crate) fn check_groups(&self) {
        let c = &self.collectives;
        for (i, e) in self.endpoints.iter().enumerate() {
            for m in e.matcher().unexpected(Protocol::Collective) {
                let group = c.groups.get(&GroupId((m.tag >> 32) as u32));
                let wanted =
                    m.tag & JOIN != 0 || group.is_some_and(|g| usize::from(g.ep.0) == i && !g.failed);
                assert!(wanted, "invariant 7: a message of a group that is not there is kept: {m:?}");
            }
        }
        for g in c.groups.values() {
            assert!(g.lost.len() < g.members.len(), "invariant 7: a member of a group is lost once");
        }
        for (id, t) in &c.transfers {
            let pending = c.running.get(&t.operation).map(|r| r.pending);
            assert!(pending.is_some_and(|n| n > 0), "message {id} belongs to no operation that waits for it");
        }
    }

    /// What operations are under way, and what each waits for.
    pub(crate) fn describe_groups(&self, out: &mut String) {
        use std::fmt::Write;
        let c = &self.collectives;
        for (id, r) in &c.running {
            let step = r.next.checked_sub(1).and_then(|at| r.plan.step(at));
            let _ = writeln!(
                out,
                "operation {id} of {:?} at {:?}: {} messages pending behind step {} ({step:?}), error {:?}",
                r.group, r.ep, r.pending, r.next, r.error
            );
        }
        for (i, e) in self.endpoints.iter().enumerate() {
            for p in e.matcher().posted(Protocol::Collective) {
                let _ = writeln!(out, "  endpoint {i} waits for {:#x} from {:?}", p.tag(), p.src());
            }
            for m in e.matcher().unexpected(Protocol::Collective) {
                let _ = writeln!(out, "  endpoint {i} has {m:?}");
            }
        }
        if c.has_settled() {
            let _ = writeln!(out, "  {} messages are done and not looked at", c.settled.len());
        }
    }

    /// The rank of an endpoint in a group; `None`: it is no member, or there is no such group.
    pub fn rank_in(&self, group: GroupId, member: EndpointId) -> Option<usize> {
        self.collectives.groups.get(&group)?.members.iter().position(|m| *m == member)
    }

    /// This process's rank in a group, and the number of its members; `None`: no such group.
    pub fn group_shape(&self, group: GroupId) -> Option<(usize, usize)> {
        self.collectives.groups.get(&group).map(|g| (g.rank, g.members.len()))
    }

    /// Begins an operation of a group; every member must begin the same ones in the same order. Completes as a
    /// [`CompletionKind::Collective`] in the queue of the endpoint's sends.
    ///
    /// # Safety
    /// The memory stays valid, that of the result unshared, until the completion, here and in every clone that is made before.
    ///
    /// # Errors
    /// [`PostError::NoSuch`]: no such group. [`PostError::Invalid`]: it is not made yet, a size does not fit, the root is no member, or
    /// datatype and operation do not go together.
    pub unsafe fn collective(&mut self, op: &CollectiveOp, now: Time) -> Result<(), PostError> {
        self.tick(now);
        let g = self.collectives.groups.get(&op.group).ok_or(PostError::NoSuch)?;
        if g.numbers.is_none() {
            return Err(PostError::Invalid("the group is not made yet: wait until the join completes"));
        }
        let members = g.members.len();
        if op.bytes.checked_mul(members).is_none_or(|all| all as u64 > MESSAGE_BYTES_MAX) {
            return Err(PostError::Invalid("a message has at most 2^48 bytes"));
        }
        let (gives, takes) = op.kind.memory(g.rank, members, op.bytes);
        if op.kind.root().is_some_and(|root| root >= members) {
            return Err(PostError::Invalid("the root is no member of the group"));
        }
        if op.input.len < gives || op.result.len < takes {
            return Err(PostError::Invalid("the memory is smaller than the operation needs"));
        }
        if matches!(op.kind, CollectiveKind::AllReduce | CollectiveKind::Reduce { .. }) {
            let size = reduction(op.datatype, op.op);
            if size.is_none_or(|size| op.bytes % size != 0) {
                return Err(PostError::Invalid("datatype and operation do not go together"));
            }
        }
        let shape = Shape { rank: g.rank, members, bytes: op.bytes };
        let plan = match op.kind {
            CollectiveKind::Barrier => shape.barrier(),
            CollectiveKind::Broadcast { root } => shape.broadcast(root),
            CollectiveKind::AllReduce => shape.all_reduce(),
            CollectiveKind::AllGather => shape.all_gather(),
            CollectiveKind::Reduce { root } => shape.reduce(root),
            CollectiveKind::Scatter { root } => shape.scatter(root),
            CollectiveKind::Gather { root } => shape.gather(root),
        };
        let g = self.collectives.groups.get_mut(&op.group).expect("looked up above");
        let ep = g.ep;
        let tag = u64::from(g.begun);
        g.begun = g.begun.wrapping_add(1);
        g.running += 1;
        let scratch = Scratch::new(plan.scratch_bytes());
        self.begin(Running {
            ep,
            group: op.group,
            plan: Arc::new(plan),
            next: 0,
            pending: 0,
            input: op.input,
            result: op.result,
            scratch,
            datatype: op.datatype,
            op: op.op,
            tag,
            report: Some(Report::Done { context: op.context, completion: op.completion }),
            error: None,
        });
        self.run_collectives(now);
        Ok(())
    }

    fn begin(&mut self, running: Running) {
        let id = self.collectives.running_next;
        self.collectives.running_next += 1;
        self.collectives.running.insert(id, running);
        self.advance_collective(id);
    }

    /// Advances the operations whose messages have completed.
    pub(crate) fn run_collectives(&mut self, now: Time) {
        self.tick(now);
        while let Some(c) = self.collectives.settled.pop_front() {
            // of an operation that was given up with its endpoint
            let Some(t) = self.collectives.transfers.remove(&c.context) else { continue };
            let Some(r) = self.collectives.running.get_mut(&t.operation) else { continue };
            r.pending -= 1;
            let error = match (c.error, c.data, t.expected) {
                (Some(CompletionError::Truncated { .. }), None, _) => Some(CompletionError::Mismatch),
                (Some(error), None, _) => Some(error),
                (_, Some(word), Some(_)) => Some(error_of(word)),
                (None, _, Some(expected)) if c.len != expected => Some(CompletionError::Mismatch),
                _ => None,
            };
            r.error = r.error.or(error);
            if r.pending == 0 {
                self.advance_collective(t.operation);
            }
        }
    }

    /// Carries out steps until messages have to be waited for.
    fn advance_collective(&mut self, id: u64) {
        let Some(mut r) = self.collectives.running.remove(&id) else { return };
        let plan = r.plan.clone();
        while let Some(step) = plan.step(r.next) {
            match step {
                Step::Wait if r.pending > 0 => break,
                Step::Wait => {}
                Step::Send { to, from } => self.send_part(id, &mut r, to, from),
                Step::Recv { from, into } => self.recv_part(id, &mut r, from, into),
                // there is nothing to work on
                Step::Copy { .. } | Step::Reduce { .. } if r.error.is_some() => {}
                Step::Copy { from, into } => {
                    let (from, into) = (r.place(from), r.place(into));
                    // SAFETY: both lie in memory that was checked to be large enough, and nothing else uses it now;
                    // they may overlap where the program's input is its result.
                    unsafe { std::ptr::copy(from.ptr, into.ptr, from.len) };
                }
                Step::Reduce { from, into } => r.reduce(from, into),
            }
            r.next += 1;
        }
        if r.next < plan.len() || r.pending > 0 {
            self.collectives.running.insert(id, r);
        } else {
            self.end_collective(r);
        }
    }

    fn send_part(&mut self, id: u64, r: &mut Running, to: usize, from: Place) {
        let Some(g) = self.collectives.groups.get(&r.group) else { return };
        if let Some(error) = g.lost(to) {
            r.error = r.error.or(Some(error));
            return;
        }
        let (ep, dest) = (g.ep, g.members[to]);
        let number = g.numbers.as_ref().map_or(0, |n| u64::from(n[to]) << 32);
        let (place, data) = match r.error {
            None if from.len > 0 => (r.place(from), None),
            error => (r.scratch.pad(), error.map(word_of)),
        };
        let op = SendOp {
            ep,
            dest,
            protocol: Protocol::Collective,
            tag: number | r.tag,
            data,
            iov: &[place],
            context: self.transfer(id, None),
            completion: true,
            inject: false,
            level: CompletionLevel::Buffered,
        };
        r.pending += 1;
        // SAFETY: the program's memory is valid until the operation completes, which it does when this has; ours is kept by the
        // operation, or by the list of orphans.
        if unsafe { self.send(&op, self.clock.real_of(self.clock.now())) }.is_err() {
            r.pending -= 1;
            self.collectives.transfers.remove(&op.context);
            let gone = self.peers[dest.peer].gone().map(Gone::error);
            r.error = r.error.or(gone).or(Some(CompletionError::PeerClosed));
        }
    }

    fn recv_part(&mut self, id: u64, r: &mut Running, from: usize, into: Place) {
        let Some(g) = self.collectives.groups.get(&r.group) else { return };
        if let Some(error) = g.lost(from) {
            r.error = r.error.or(Some(error));
            return;
        }
        let number = if g.numbers.is_some() { u64::from(r.group.0) << 32 } else { 0 };
        let place = if into.len > 0 { r.place(into) } else { r.scratch.pad() };
        let op = RecvOp {
            ep: g.ep,
            protocol: Protocol::Collective,
            tag: number | r.tag,
            ignore: 0,
            src: Some(g.members[from]),
            iov: &[place],
            context: self.transfer(id, Some(place.len)),
            completion: true,
            multi: false,
        };
        r.pending += 1;
        // SAFETY: as in `send_part`.
        if unsafe { self.recv(&op, self.clock.real_of(self.clock.now())) }.is_err() {
            r.pending -= 1;
            self.collectives.transfers.remove(&op.context);
            r.error = r.error.or(Some(CompletionError::PeerClosed));
        }
    }

    fn transfer(&mut self, operation: u64, expected: Option<usize>) -> usize {
        let c = &mut self.collectives;
        c.transfer_next += 1;
        c.transfers.insert(c.transfer_next, Transfer { operation, expected });
        c.transfer_next
    }

    fn end_collective(&mut self, mut r: Running) {
        let Some(report) = r.report else { return };
        let Some(g) = self.collectives.groups.get_mut(&r.group) else { return };
        g.running -= 1;
        let ep = g.ep;
        let (cq, context) = match report {
            Report::Done { context, completion } => {
                if !completion && r.error.is_none() {
                    return;
                }
                let cq = self.endpoints.get(ep).map(|e| e.tx_cq());
                (cq, context)
            }
            Report::Joined { cq, context } => {
                r.error = r.error.or(g.lost.first().map(|l| l.1));
                if r.error.is_none() {
                    let (rank, members) = (g.rank, g.members.len());
                    let mut numbers = vec![0; members];
                    for i in 0..members {
                        // SAFETY: the scratch memory has the number of every member, in turn from this one, and nothing
                        // else uses it.
                        let n = unsafe { r.scratch.whole().ptr.cast::<[u8; NUMBER_BYTES]>().add(i).read() };
                        numbers[(rank + i) % members] = u32::from_le_bytes(n);
                    }
                    g.numbers = Some(numbers.into());
                } else {
                    g.failed = true;
                    let shape = Shape { rank: g.rank, members: g.members.len(), bytes: 0 };
                    self.drop_unasked(ep, r.group);
                    self.begin(Running {
                        plan: Arc::new(shape.tell()),
                        next: 0,
                        tag: FAILED | r.tag,
                        report: None,
                        ..r.clone()
                    });
                }
                if cq.is_none() {
                    self.collectives.groups.remove(&r.group);
                }
                (cq, context)
            }
        };
        if let Some(cq) = cq {
            let c = Completion::new(CompletionKind::Collective, Protocol::Collective, ep, context);
            self.push(cq, Completion { error: r.error, ..c });
        }
    }
}

impl CollectiveKind {
    /// The rank of the root, if the operation has one.
    pub fn root(self) -> Option<usize> {
        match self {
            Self::Barrier | Self::AllReduce | Self::AllGather => None,
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Scatter { root }
            | Self::Gather { root } => Some(root),
        }
    }

    /// Bytes that the member of this rank gives, and bytes that it gets, in a group of so many members whose parts have `bytes` bytes.
    pub fn memory(self, rank: usize, members: usize, bytes: usize) -> (usize, usize) {
        let all = bytes.saturating_mul(members);
        let if_root = |root: usize, there: usize| if root == rank { there } else { 0 };
        match self {
            Self::Barrier => (0, 0),
            Self::Broadcast { root } => (if_root(root, bytes), bytes - if_root(root, bytes)),
            Self::AllReduce => (bytes, bytes),
            Self::AllGather => (bytes, all),
            Self::Reduce { root } => (bytes, if_root(root, bytes)),
            Self::Scatter { root } => (if_root(root, all), bytes),
            Self::Gather { root } => (bytes, if_root(root, all)),
        }
    }
}

impl Group {
    /// Why nothing goes to or comes from a member of a group that was made here.
    fn lost(&self, rank: usize) -> Option<CompletionError> {
        self.numbers.as_ref()?;
        self.lost.iter().find(|l| l.0 == rank).map(|l| l.1)
    }
}

/// Bytes of a value, when `op` can combine values of this datatype; the two are numbered as in [`atomic`].
pub fn reduction(datatype: u8, op: u8) -> Option<usize> {
    if op > atomic::op::BXOR {
        return None;
    }
    atomic::size_of(datatype, op, AtomicKind::Update)
}

impl Running {
    /// Memory of the program, or ours.
    fn place(&self, p: Place) -> IoVec {
        let whole = match p.buffer {
            Buffer::Input => self.input,
            Buffer::Result => self.result,
            Buffer::Scratch => self.scratch.whole(),
        };
        debug_assert!(p.at + p.len <= whole.len, "{p:?} is outside of {whole:?}");
        // SAFETY: the sizes were checked when the operation began.
        IoVec::new(unsafe { whole.ptr.add(p.at) }, p.len)
    }

    fn reduce(&self, from: Place, into: Place) {
        if into.len == 0 {
            return;
        }
        let (from, into) = (self.place(from), self.place(into));
        // SAFETY: two different buffers, both as long as that, and only we use them now; the datatype was checked.
        unsafe {
            let operand = std::slice::from_raw_parts(from.ptr, from.len);
            let (datatype, kind) = (self.datatype, AtomicKind::Update);
            atomic::apply(datatype, self.op, kind, into.ptr, into.len, operand, &[], &mut Vec::new());
        }
    }
}
