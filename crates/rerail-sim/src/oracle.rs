//! What was sent, what was received, and whether it should have been. Owns: the history of every message and receive.
//!
//! The engine is not asked. A message carries its number in its tag, its remote CQ data or its first bytes; each
//! completion is held against what was posted: exactly once, to a receive that matches, the length and data that were
//! sent, every byte. The order of matching is checked at the end ([`Oracle::check_order`]):
//!
//! 1. For one sender, one receiver and one queue, if a receive `r` took message `m2` and an earlier message `m1` matches `r`
//!    too, then `m1` was taken by a receive posted before `r`. Otherwise `r` should have got `m1`: it either stood there when
//!    `m1` arrived, or found `m1` unexpected. (Equal for a multi-receive, which takes several.)
//! 2. If `m` was taken by `r2`, no matching receive posted before `r2` stands unmatched, or was cancelled after that.
//!
//! Both hold under every order of arrival, so the check is sound whatever the network does; for one sender and exact
//! receives it fixes the matching completely.

use crate::memory::BufId;
use rerail_core::{CompletionLevel, Protocol};
use std::fmt::Write;

/// Bits of a tag below the number of the message: its class.
pub const TAG_CLASS_BITS: u32 = 8;
/// Remote CQ data is the message's number under this mask.
pub const DATA_MASK: u64 = 0x5eed_0000_0000_0000;

/// A message.
#[derive(Debug, Clone)]
pub struct Msg {
    /// Sending endpoint.
    pub src: usize,
    /// Receiving endpoint.
    pub dst: usize,
    /// Queue.
    pub proto: Protocol,
    /// Tag.
    pub tag: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Bytes.
    pub len: usize,
    /// The send has completed.
    pub sent: bool,
    /// When that was, counted in completions.
    pub sent_at: u64,
    /// When its completion was promised.
    pub level: CompletionLevel,
    /// Its sender or receiver was killed: it may arrive or not.
    pub buried: bool,
    /// Its send ended in an error, because the peer was given up.
    pub failed: bool,
    /// The receive that took it: its order of posting.
    pub taken: Option<u64>,
    /// For a multi-receive where in the buffer it begins.
    pub offset: usize,
    /// When its receive completed, counted in completions.
    pub seen: u64,
    /// Virtual time of its posting, and of its receive's completion.
    pub times: (u64, u64),
    place: u32,
}

/// What became of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stands.
    Posted,
    /// The engine has agreed to cancel it.
    Cancelling,
    /// It took a message (all it could, if a multi-receive).
    Taken,
    /// It is cancelled.
    Cancelled,
}

/// A receive.
#[derive(Debug, Clone)]
pub struct Recv {
    /// Endpoint.
    pub ep: usize,
    /// Queue.
    pub proto: Protocol,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// Only from this endpoint.
    pub src: Option<usize>,
    /// Order of posting (of the look, if it receives a claimed message).
    pub order: u64,
    /// Its memory.
    pub buf: BufId,
    /// Pieces of the buffer: offset, length.
    pub pieces: Vec<(usize, usize)>,
    /// Bytes of all pieces.
    pub cap: usize,
    /// Takes many messages.
    pub multi: bool,
    /// Receives the message that this look reserved.
    pub claim: Option<usize>,
    /// Its context.
    pub context: usize,
    /// What became of it.
    pub fate: Fate,
    /// When it was posted, counted in completions.
    pub posted_at: u64,
    /// When it was cancelled, counted in completions.
    pub cancelled_at: u64,
}

impl Recv {
    /// Whether message `m` may match.
    pub fn matches(&self, m: &Msg) -> bool {
        self.proto == m.proto
            && self.ep == m.dst
            && self.src.is_none_or(|s| s == m.src)
            && (self.proto == Protocol::Msg || (self.tag ^ m.tag) & !self.ignore == 0)
    }
}

/// A look into the unexpected messages.
#[derive(Debug, Clone)]
pub struct Peek {
    /// What it looks for, as a receive without memory.
    pub like: Recv,
    /// It reserves.
    pub claim: bool,
    /// It throws away.
    pub discard: bool,
    /// The message that was found, if it can be told from the answer.
    pub found: Option<u64>,
    /// It was answered.
    pub answered: bool,
}

/// An operation, by context.
#[derive(Debug, Clone)]
pub enum Op {
    /// A send: message, its memory, whether the completion is still to come.
    Send(u64, Option<BufId>, bool),
    /// A receive: index.
    Recv(usize),
    /// A look: index.
    Peek(usize),
    /// A one-sided operation: number.
    Ask(usize),
    /// An operation of a group, at a member: number.
    Share(usize),
}

/// All of it.
#[derive(Debug)]
pub struct Oracle {
    /// Messages that engines have accepted.
    pub msgs: Vec<Msg>,
    /// Receives.
    pub recvs: Vec<Recv>,
    /// Looks.
    pub peeks: Vec<Peek>,
    /// Operations, by context.
    pub ops: Vec<Op>,
    /// Accepted and not received, by endpoint and queue.
    pub pending: Vec<[Vec<u32>; 2]>,
    /// Bytes of those, by endpoint.
    pub pending_bytes: Vec<usize>,
    /// Receives that stand, by endpoint and queue.
    pub posted: Vec<[Vec<usize>; 2]>,
    /// Completions so far.
    pub completions: u64,
    orders: Vec<Placed>,
    /// Endpoints of processes that were killed.
    pub dead: Vec<bool>,
}

/// What has a place in the order of posting.
#[derive(Debug, Clone, Copy)]
enum Placed {
    Recv(usize),
    Peek(usize),
}

/// Index of a queue.
pub fn queue(p: Protocol) -> usize {
    usize::from(p == Protocol::Tagged)
}

impl Oracle {
    pub(crate) fn new(endpoints: usize) -> Self {
        Self {
            msgs: Vec::new(),
            recvs: Vec::new(),
            peeks: Vec::new(),
            ops: Vec::new(),
            pending: vec![[Vec::new(), Vec::new()]; endpoints],
            pending_bytes: vec![0; endpoints],
            posted: vec![[Vec::new(), Vec::new()]; endpoints],
            completions: 0,
            orders: Vec::new(),
            dead: vec![false; endpoints],
        }
    }

    /// Context of the next operation.
    pub fn next_context(&self) -> usize {
        self.ops.len() + 1
    }

    /// Operation of a context.
    pub fn op(&mut self, context: usize) -> &mut Op {
        let n = self.ops.len();
        context.checked_sub(1).and_then(|i| self.ops.get_mut(i)).unwrap_or_else(|| {
            panic!("exactly once: a completion has context {context}, and only {n} operations were posted")
        })
    }

    /// A receive is posted: gives it its place in the order, and returns its index.
    pub fn add_recv(&mut self, mut r: Recv) -> usize {
        let i = self.recvs.len();
        r.order = self.orders.len() as u64;
        r.posted_at = self.completions;
        self.orders.push(Placed::Recv(i));
        self.posted[r.ep][queue(r.proto)].push(i);
        self.recvs.push(r);
        i
    }

    /// A look is posted: gives it its place in the order, and returns its index.
    pub fn add_peek(&mut self, mut p: Peek) -> usize {
        let i = self.peeks.len();
        p.like.order = self.orders.len() as u64;
        self.orders.push(Placed::Peek(i));
        self.peeks.push(p);
        i
    }

    fn by_order(&self, order: u64) -> &Recv {
        match self.orders[order as usize] {
            Placed::Recv(i) => &self.recvs[i],
            Placed::Peek(i) => &self.peeks[i].like,
        }
    }

    /// An engine has accepted a message.
    #[allow(clippy::too_many_arguments)]
    pub fn accepted(
        &mut self,
        src: usize,
        dst: usize,
        proto: Protocol,
        tag: u64,
        data: Option<u64>,
        len: usize,
        now: u64,
    ) -> u64 {
        let id = self.msgs.len() as u64;
        let list = &mut self.pending[dst][queue(proto)];
        let place = list.len() as u32;
        list.push(id as u32);
        self.pending_bytes[dst] += len;
        self.msgs.push(Msg {
            src,
            dst,
            proto,
            tag,
            data,
            len,
            sent: false,
            sent_at: 0,
            level: CompletionLevel::Buffered,
            buried: false,
            failed: false,
            taken: None,
            offset: 0,
            seen: 0,
            times: (now, 0),
            place,
        });
        id
    }

    /// The send of message `id` has completed.
    pub fn sent(&mut self, id: u64) {
        let m = &mut self.msgs[id as usize];
        (m.sent, m.sent_at) = (true, self.completions);
    }

    /// Message `id` was received by a receive that was posted at `posted_at`, counted in completions. A send that promised a match cannot
    /// have completed before.
    pub fn check_match(&self, id: u64, posted_at: u64) {
        let m = &self.msgs[id as usize];
        assert!(
            m.level < CompletionLevel::Matched || !m.sent || m.failed || posted_at < m.sent_at,
            "no false completion: the send of message {id} promised a match, and completed before the receive was posted that \
             took the message\n  {m:?}"
        );
    }

    /// Message `id` was received (or thrown away by the receiver) by the receive with this order.
    pub fn taken(&mut self, id: u64, order: u64, offset: usize, now: u64) {
        let seen = self.completions;
        let m = &mut self.msgs[id as usize];
        assert!(m.taken.is_none(), "exactly once: message {id} was received twice");
        m.taken = Some(order);
        m.offset = offset;
        m.seen = seen;
        m.times.1 = now;
        if m.buried {
            return;
        }
        self.unlist(id);
    }

    fn unlist(&mut self, id: u64) {
        let m = &self.msgs[id as usize];
        let (dst, q, place, len) = (m.dst, queue(m.proto), m.place as usize, m.len);
        let list = &mut self.pending[dst][q];
        list.swap_remove(place);
        if let Some(&moved) = list.get(place) {
            self.msgs[moved as usize].place = place as u32;
        }
        self.pending_bytes[dst] -= len;
    }

    /// The process of endpoint `ep` was killed: nothing is expected of it any more, and nothing is to reach it.
    pub fn bury(&mut self, ep: usize) {
        self.dead[ep] = true;
        for id in 0..self.msgs.len() {
            let m = &self.msgs[id];
            if (m.src == ep || m.dst == ep) && !m.buried {
                let open = m.taken.is_none();
                if open {
                    self.unlist(id as u64);
                }
                self.msgs[id].buried = true;
            }
        }
        for q in 0..2 {
            for r in std::mem::take(&mut self.posted[ep][q]) {
                self.recvs[r].fate = Fate::Cancelled;
                // it may have taken a message whose completion was never read
                self.recvs[r].cancelled_at = self.recvs[r].posted_at;
            }
        }
    }

    /// There are so many endpoints more.
    pub fn grow(&mut self, eps: usize) {
        let n = self.dead.len() + eps;
        self.pending.resize_with(n, Default::default);
        self.pending_bytes.resize(n, 0);
        self.posted.resize_with(n, Default::default);
        self.dead.resize(n, false);
    }

    /// The process of endpoint `ep` exits without closing: what it had completed must arrive, what it had not may or may not, and
    /// nothing is to reach it.
    pub fn leave(&mut self, ep: usize) {
        self.dead[ep] = true;
        for id in 0..self.msgs.len() {
            let m = &self.msgs[id];
            if m.dst == ep || (m.src == ep && !m.sent) {
                self.give_up(id as u64);
            }
        }
        for q in 0..2 {
            for r in std::mem::take(&mut self.posted[ep][q]) {
                self.recvs[r].fate = Fate::Cancelled;
                self.recvs[r].cancelled_at = self.recvs[r].posted_at;
            }
        }
    }

    /// Message `id` may arrive or not from now on.
    pub fn give_up(&mut self, id: u64) {
        let m = &self.msgs[id as usize];
        if m.buried {
            return;
        }
        if m.taken.is_none() {
            self.unlist(id);
        }
        self.msgs[id as usize].buried = true;
    }

    /// A receive does not stand any more.
    pub fn unpost(&mut self, r: usize) {
        let (ep, q) = (self.recvs[r].ep, queue(self.recvs[r].proto));
        let list = &mut self.posted[ep][q];
        let at = list.iter().position(|&x| x == r).expect("simulator: the receive stands");
        list.remove(at);
    }

    /// Messages sent and not received.
    pub fn pending_count(&self) -> usize {
        self.pending.iter().map(|p| p[0].len() + p[1].len()).sum()
    }

    /// After the liveness phase: nothing is missing.
    pub fn check_all_received(&self) {
        for (id, m) in self.msgs.iter().enumerate() {
            assert!(
                m.taken.is_some() || m.buried || m.failed,
                "exactly once: message {id} was never received: {m:?}"
            );
        }
        for o in &self.ops {
            if let Op::Send(id, _, true) = o {
                let m = &self.msgs[*id as usize];
                if self.dead[m.src] {
                    continue;
                }
                panic!("live: the send of message {id} never completed: {:?}", self.msgs[*id as usize]);
            }
        }
    }

    /// Order of matching, over the whole history.
    pub fn check_order(&self) {
        let by_order = |order: u64| self.by_order(order);
        let mut streams: std::collections::BTreeMap<(usize, usize, usize), Vec<usize>> = Default::default();
        for (id, m) in self.msgs.iter().enumerate() {
            streams.entry((m.src, m.dst, queue(m.proto))).or_default().push(id);
        }
        for list in streams.values() {
            // rule 1, for every inversion
            let mut highest = 0;
            for (j, &b) in list.iter().enumerate() {
                let m2 = &self.msgs[b];
                let Some(r2) = m2.taken else { continue };
                if r2 >= highest {
                    if r2 == highest && by_order(r2).multi {
                        let before = list[..j].iter().rev().find(|&&a| self.msgs[a].taken == Some(r2));
                        if let Some(&a) = before {
                            let (x, y) = (&self.msgs[a], m2);
                            assert!(
                                x.offset + x.len.min(1) <= y.offset || x.len == 0,
                                "in order: messages {a} and {b} are the wrong way round in one multi-receive"
                            );
                        }
                    }
                    highest = r2;
                    continue;
                }
                let r = by_order(r2);
                for &a in &list[..j] {
                    let m1 = &self.msgs[a];
                    if m1.taken.is_none_or(|r1| r1 > r2) && r.matches(m1) && !m1.buried {
                        panic!(
                            "in order: receive {r2} took message {b} and not the earlier message {a}, which it matches \
                             too\n  {m1:?}\n  {m2:?}\n  {r:?}"
                        );
                    }
                }
            }
        }
        // rule 2: only messages that were received while the receive stood can have passed it by
        let mut seen: std::collections::BTreeMap<(usize, usize), Vec<usize>> = Default::default();
        for (id, m) in self.msgs.iter().enumerate().filter(|(_, m)| m.taken.is_some()) {
            seen.entry((m.dst, queue(m.proto))).or_default().push(id);
        }
        for list in seen.values_mut() {
            list.sort_by_key(|&id| self.msgs[id].seen);
        }
        for r1 in &self.recvs {
            if r1.multi || r1.claim.is_some() || !matches!(r1.fate, Fate::Cancelled | Fate::Posted) {
                continue;
            }
            let until = if r1.fate == Fate::Cancelled { r1.cancelled_at } else { u64::MAX };
            let Some(list) = seen.get(&(r1.ep, queue(r1.proto))) else { continue };
            let from = list.partition_point(|&id| self.msgs[id].seen < r1.posted_at);
            for &id in &list[from..] {
                let m = &self.msgs[id];
                if m.seen >= until {
                    break;
                }
                if m.taken.is_some_and(|r2| r2 > r1.order) && r1.matches(m) {
                    panic!(
                        "in order: message {id} passed receive {} by, which stood before its own\n  {m:?}\n  {r1:?}",
                        r1.order
                    );
                }
            }
        }
    }

    /// What is missing.
    pub fn describe(&self) -> String {
        let mut s = format!(
            "{} messages, {} not received, {} sends not complete",
            self.msgs.len(),
            self.pending_count(),
            self.ops.iter().filter(|o| matches!(o, Op::Send(_, _, true))).count()
        );
        // what is still expected first: it is what the others wait for
        let due = |id: usize| self.pending.iter().flatten().any(|q| q.iter().any(|&m| m as usize == id));
        let missing = self.msgs.iter().enumerate().filter(|(id, m)| m.taken.is_none() && due(*id)).take(8);
        for (id, m) in missing {
            let _ = write!(
                s,
                "\n  message {id}: {} -> {} {:?} {} bytes, sent {}",
                m.src, m.dst, m.proto, m.len, m.sent
            );
        }
        for o in self.ops.iter().filter(|o| matches!(o, Op::Send(_, _, true))).take(8) {
            let _ = write!(s, "\n  {o:?}");
        }
        for r in self.recvs.iter().filter(|r| matches!(r.fate, Fate::Posted | Fate::Cancelling)).take(3) {
            let _ = write!(s, "\n  receive {r:?}");
        }
        s
    }
}
