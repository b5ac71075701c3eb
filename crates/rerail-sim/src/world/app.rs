//! The applications: what they post, and what they do with completions. Owns: the traffic.
//!
//! An application is random but fair: whatever its receives take, in the end ([`World::app_drain`]) it posts receives for
//! anything until every message is received, cancels what still stands, closes, and exits. A send buffer is overwritten
//! as soon as its completion is read; a receive buffer as soon as it has been checked.

use super::World;
use crate::link::{MS, US};
use crate::memory::{BufId, CANARY, SCRIBBLE, Use, all, fill_message, message_differs};
use crate::moment::Moment;
use crate::oracle::{DATA_MASK, Fate, Op, Peek, Recv, TAG_CLASS_BITS, queue};
use crate::rng::Rng;
use rerail_core::{
    Completion, CompletionError, CompletionKind, CompletionLevel, EndpointId, Engine, IoVec, Options, PeekOp,
    PostError, Protocol, RecvOp, SendOp, Time,
};

/// What the applications do by themselves.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// Anything at all.
    pub on: bool,
    /// Weights of sizes: empty, up to 64 B, a datagram, eager, some fragments, many fragments.
    pub sizes: [u32; 6],
    /// Largest size.
    pub bytes_max: usize,
    /// Messages that may wait at one endpoint.
    pub window: usize,
    /// Bytes that may wait at one endpoint.
    pub window_bytes: usize,
    /// Mean time between two steps of an application.
    pub think_ns: u64,
    /// Sends at one step, at most.
    pub burst: usize,
    /// Percentages of operations.
    pub tagged: u32,
    /// See `tagged`.
    pub multi: u32,
    /// See `tagged`.
    pub peek: u32,
    /// See `tagged`.
    pub cancel: u32,
    /// See `tagged`.
    pub delivery: u32,
    /// Sends that promise a match. They are drawn from a source of their own.
    pub matched: u32,
    /// See `tagged`.
    pub inject: u32,
    /// Several pieces of memory.
    pub pieces: u32,
    /// Receives that are too short.
    pub short: u32,
    /// Receives for anything.
    pub wild: u32,
    /// Receives from one endpoint only.
    pub directed: u32,
    /// Chance that a receive is put off at a step: many messages come unexpected.
    pub lazy: u32,
    /// Receives that stand before their message is sent.
    pub early: usize,
    /// Different tags.
    pub classes: u64,
    /// Steps at which the application computes instead.
    pub compute: u32,
    /// Longest computation.
    pub compute_ns: u64,
    /// Steps in ten thousand at which a migration is asked for.
    pub migrate: u32,
}

impl Traffic {
    /// Nothing by itself.
    pub fn none() -> Self {
        Self {
            on: false,
            sizes: [1, 4, 4, 2, 1, 0],
            bytes_max: 1 << 20,
            window: 64,
            window_bytes: 1 << 20,
            think_ns: 50 * US,
            burst: 4,
            tagged: 60,
            multi: 10,
            peek: 5,
            cancel: 5,
            delivery: 20,
            matched: 0,
            inject: 10,
            pieces: 20,
            short: 5,
            wild: 20,
            directed: 30,
            lazy: 20,
            early: 4,
            classes: 4,
            compute: 0,
            compute_ns: 10 * MS,
            migrate: 0,
        }
    }

    /// A swarm: every seed another character.
    pub fn swarm(rng: &mut Rng) -> Self {
        let mut p = |most: u32| if rng.percent(30) { 0 } else { rng.below(u64::from(most) + 1) as u32 };
        let mut sizes = [p(3), 2 + p(10), 2 + p(12), p(5), p(3), p(1)];
        let tagged = p(100);
        let (multi, peek, cancel) = (p(40), p(15), p(15));
        let (delivery, inject, pieces, short) = (p(60), p(40), p(60), p(15));
        let (wild, directed, lazy) = (p(60), p(80), p(90));
        let compute = if p(100) > 60 { p(4) } else { 0 };
        if rng.percent(30) {
            (sizes[4], sizes[5]) = (0, 0);
        }
        Self {
            on: true,
            sizes,
            bytes_max: if rng.percent(70) { 256 * 1024 } else { 1 << 20 },
            window: rng.log_range(4, 400) as usize,
            window_bytes: rng.log_range(64 * 1024, 2 << 20) as usize,
            think_ns: rng.log_range(5 * US, 400 * US),
            burst: rng.log_range(1, 16) as usize,
            tagged,
            multi,
            peek,
            cancel,
            delivery,
            matched: 0,
            inject,
            pieces,
            short,
            wild,
            directed,
            lazy,
            early: rng.index(8),
            classes: rng.range(1, 5),
            compute,
            compute_ns: rng.log_range(MS, 60 * MS),
            migrate: if rng.percent(20) { rng.range(10, 300) as u32 } else { 0 },
        }
    }

    fn size(&self, rng: &mut Rng) -> usize {
        let n = match rng.weighted(&self.sizes) {
            0 => 0,
            1 => rng.range(1, 64),
            2 => rng.range(65, 1300),
            3 => rng.range(1301, 20_000),
            4 => rng.log_range(20_000, 140_000),
            _ => rng.log_range(140_000, 1 << 20),
        };
        (n as usize).min(self.bytes_max)
    }
}

/// Receives that a lost peer may end, with nothing else happening, before an application takes this for news no more. Each ends as soon as it
/// is posted: a seed whose processes had given each other up posted two million of them, and took two minutes.
const REFUSED_MAX: u64 = 1_000;

/// How far an application is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Does only what a script tells it.
    Idle,
    /// Sends and receives.
    Active,
    /// Sends nothing more, receives everything.
    Draining,
    /// Closes its endpoints.
    Closing,
    /// Exits without closing.
    Exiting,
    /// Says goodbye.
    Leaving,
    /// Has exited.
    Gone,
}

/// An application.
#[derive(Debug, Clone)]
pub struct App {
    /// Options of its engine.
    pub options: Options,
    /// When it does something next.
    pub next_step: u64,
    /// How far it is.
    pub phase: Phase,
    /// Sends that are not complete.
    pub sends: usize,
    /// Reads no completions before this time.
    pub deaf_until: u64,
    /// It closed when everything was done: nothing was missing or under way.
    pub left_in_peace: bool,
    /// It exited without closing.
    pub exited: bool,
    /// Its memory when it exited, while adapters may have some of it, and what will be in it.
    pub left: Vec<(BufId, u8)>,
    /// It would leave, as far as it knows.
    pub ready: bool,
    backlog: Option<SendSpec>,
    claimed: Vec<(usize, usize)>,
    idle_ns: u64,
    /// Receives that ended because their peer is lost, since anything else that is news.
    refused: u64,
    moved: u64,
    moved_before: u64,
}

impl App {
    pub(crate) fn new(options: Options, active: bool) -> Self {
        Self {
            options,
            next_step: 0,
            phase: if active { Phase::Active } else { Phase::Idle },
            sends: 0,
            deaf_until: 0,
            left_in_peace: false,
            exited: false,
            left: Vec::new(),
            ready: false,
            backlog: None,
            claimed: Vec::new(),
            idle_ns: 0,
            refused: 0,
            moved: 0,
            moved_before: 0,
        }
    }

    /// It has posted something.
    pub(crate) fn stirred(&mut self) {
        self.moved += 1;
    }
}

/// A message to be.
#[derive(Debug, Clone, Copy)]
pub struct SendSpec {
    /// Sending endpoint.
    pub src: usize,
    /// Receiving endpoint.
    pub dst: usize,
    /// Queue.
    pub proto: Protocol,
    /// Class: the part of the tag that receives look at.
    pub class: u64,
    /// Bytes.
    pub len: usize,
    /// Pieces of memory.
    pub pieces: usize,
    /// See [`SendOp::inject`].
    pub inject: bool,
    /// See [`SendOp::level`].
    pub level: CompletionLevel,
    /// Carries remote CQ data.
    pub data: bool,
}

impl SendSpec {
    /// A tagged message in one piece.
    pub fn tagged(src: usize, dst: usize, class: u64, len: usize) -> Self {
        Self {
            src,
            dst,
            proto: Protocol::Tagged,
            class,
            len,
            pieces: 1,
            inject: false,
            level: CompletionLevel::Buffered,
            data: true,
        }
    }
}

/// A receive to be.
#[derive(Debug, Clone, Copy)]
pub struct RecvSpec {
    /// Receiving endpoint.
    pub ep: usize,
    /// Queue.
    pub proto: Protocol,
    /// Tag.
    pub tag: u64,
    /// Bits that do not matter.
    pub ignore: u64,
    /// Only from this endpoint.
    pub src: Option<usize>,
    /// Bytes.
    pub cap: usize,
    /// Pieces of memory.
    pub pieces: usize,
    /// Takes many messages.
    pub multi: bool,
}

/// Ignores everything but the class of a tag.
pub const IGNORE_NUMBER: u64 = !((1 << TAG_CLASS_BITS) - 1);

impl RecvSpec {
    /// Tagged, of one class, from any source.
    pub fn class(ep: usize, class: u64, cap: usize) -> Self {
        Self {
            ep,
            proto: Protocol::Tagged,
            tag: class,
            ignore: IGNORE_NUMBER,
            src: None,
            cap,
            pieces: 1,
            multi: false,
        }
    }
}

/// Asks for a migration, sensible or not, or takes all requests back.
fn migrate_some(engine: &mut Engine, r: &mut Rng, now: Time) {
    let paths = engine.paths();
    if paths.is_empty() || r.percent(20) {
        engine.migrate_home(now);
        return;
    }
    let (x, y) = (&paths[r.index(paths.len())], &paths[r.index(paths.len())]);
    let peer = r.percent(70).then_some(x.peer);
    match engine.migrate(peer, x.rail, y.rail, now) {
        Ok(done) => {
            assert!(done.moved >= done.peers && done.peers > 0, "a report of what was not done: {done:?}");
            let there = engine.carriers().iter().filter(|c| c.path.1 == y.rail && c.pinned).count();
            assert!(there >= done.moved, "migrated: {done:?}, but {there} carriers are on rail {:?}", y.rail);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn split(rng: &mut Rng, len: usize, pieces: usize, gaps: bool) -> (usize, Vec<(usize, usize)>) {
    let mut out = Vec::with_capacity(pieces);
    let (mut at, mut left) = (0, len);
    for i in 0..pieces {
        let n = if i + 1 == pieces { left } else { rng.index(left + 1) };
        out.push((at, n));
        at += n;
        left -= n;
        if gaps && i + 1 < pieces {
            at += rng.index(24);
        }
    }
    (at, out)
}

impl World {
    /// Endpoint of process `p` with index `e`, as the world counts them.
    pub fn endpoint(&self, p: usize, e: usize) -> usize {
        p * self.cfg.eps + e
    }

    /// Process of an endpoint.
    pub fn owner(&self, ep: usize) -> usize {
        ep / self.cfg.eps
    }

    /// How the engine of `p` calls endpoint `ep`.
    pub(crate) fn id_of(&mut self, p: usize, engine: &mut Engine, ep: usize) -> EndpointId {
        if let Some(id) = self.procs[p].ids[ep] {
            return id;
        }
        let id = engine.endpoint_of(&self.addresses[ep]);
        self.procs[p].ids[ep] = Some(id);
        if let Some(old) = self.procs[p].known.insert(id, ep) {
            assert_eq!(old, ep, "names: p{p} calls two endpoints {id:?}");
        }
        id
    }

    /// All addresses are inserted in every process.
    pub(crate) fn introduce(&mut self) {
        for p in 0..self.procs.len() {
            let mut engine = self.procs[p].engine.take().expect("it has just begun");
            for ep in 0..self.addresses.len() {
                self.id_of(p, &mut engine, ep);
            }
            self.procs[p].engine = Some(engine);
        }
    }

    /// Which endpoint the engine of `p` means (hazard H18: it may have met it before the application did).
    pub(crate) fn endpoint_behind(&mut self, p: usize, engine: &Engine, id: EndpointId) -> usize {
        if let Some(&ep) = self.procs[p].known.get(&id) {
            return ep;
        }
        let a = engine.address_of(id);
        let ep = self
            .addresses
            .iter()
            .position(|x| x.token == a.token && x.endpoint == a.endpoint)
            .unwrap_or_else(|| panic!("names: p{p} received from {id:?}, whose address is nobody's: {a:?}"));
        self.procs[p].known.insert(id, ep);
        ep
    }

    /// Posts a send; the number of the message, or `None` when the engine wants it later.
    pub fn send(&mut self, s: SendSpec) -> Option<u64> {
        let p = self.owner(s.src);
        self.with_engine(p, |w, e, now| w.post_send(p, e, now, &s))
    }

    /// Posts a receive; its index in the oracle.
    pub fn recv(&mut self, r: RecvSpec) -> usize {
        let p = self.owner(r.ep);
        self.with_engine(p, |w, e, now| {
            w.post_recv(p, e, now, &r, None).expect("a receive is always accepted")
        })
    }

    /// Cancels a receive; false when it has matched already.
    pub fn cancel(&mut self, r: usize) -> bool {
        let p = self.owner(self.oracle.recvs[r].ep);
        self.with_engine(p, |w, e, _| w.cancel_recv(p, e, r))
    }

    fn post_send(&mut self, p: usize, engine: &mut Engine, now: Time, s: &SendSpec) -> Option<u64> {
        let dest = self.id_of(p, engine, s.dst);
        let id = self.oracle.msgs.len() as u64;
        let tagged = s.proto == Protocol::Tagged;
        let tag = if tagged { s.class | id << TAG_CLASS_BITS } else { 0 };
        // an untagged message without data is known by its first bytes
        let data = (s.data || (!tagged && s.len < 8)).then_some(id ^ DATA_MASK);
        let buf = self.memory.take_written(s.len, s.len);
        let (_, pieces) = split(&mut self.app_rng, s.len, s.pieces.max(1), false);
        fill_message(id, &mut self.memory.bytes_mut(buf)[..s.len]);
        self.memory.lend(buf, Use::Send);
        let base = self.memory.ptr(buf);
        let iov: Vec<IoVec> = pieces.iter().map(|&(at, n)| IoVec::new(base.wrapping_add(at), n)).collect();
        let context = self.oracle.next_context();
        let local = s.src % self.cfg.eps;
        let op = SendOp {
            ep: self.procs[p].eps[local],
            dest,
            protocol: s.proto,
            tag,
            data,
            iov: &iov,
            context,
            completion: !s.inject,
            inject: s.inject,
            level: s.level,
        };
        // SAFETY: the buffer is lent until the completion is read, and freed only with the world.
        match unsafe { engine.send(&op, now) } {
            Ok(()) => {}
            Err(PostError::Again) => {
                self.memory.undo(buf);
                return None;
            }
            Err(PostError::PeerGone) if self.may_be_given_up(s.dst) => {
                self.memory.undo(buf);
                return None;
            }
            Err(e) => panic!("live: p{p} cannot send to endpoint {}: {e}", s.dst),
        }
        self.note(0x5e ^ id << 8);
        self.procs[p].app.moved += 1;
        let got = self.oracle.accepted(s.src, s.dst, s.proto, tag, data, s.len, self.now);
        debug_assert_eq!(got, id);
        // an inject reports nothing later, so it waits for no match
        let most = if s.inject { CompletionLevel::Delivered } else { CompletionLevel::Matched };
        self.oracle.msgs[id as usize].level = s.level.min(most);
        if self.parted.contains(&(p, self.owner(s.dst))) || self.procs[self.owner(s.dst)].app.exited {
            self.oracle.give_up(id);
        }
        if s.inject {
            self.oracle.ops.push(Op::Send(id, None, false));
            self.oracle.msgs[id as usize].sent = true;
            let until = self.now + self.app_rng.below(20 * MS);
            self.memory.give_back(buf, SCRIBBLE, until);
        } else {
            self.oracle.ops.push(Op::Send(id, Some(buf), true));
            self.procs[p].app.sends += 1;
        }
        Some(id)
    }

    fn post_recv(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        r: &RecvSpec,
        claim: Option<(usize, usize)>,
    ) -> Option<usize> {
        let src = r.src.map(|s| self.id_of(p, engine, s));
        let (bytes, pieces) =
            split(&mut self.app_rng, r.cap, if r.multi { 1 } else { r.pieces.max(1) }, true);
        let buf = self.memory.take(bytes + 1);
        self.memory.lend(buf, Use::Recv);
        let base = self.memory.ptr(buf);
        let iov: Vec<IoVec> = pieces.iter().map(|&(at, n)| IoVec::new(base.wrapping_add(at), n)).collect();
        let context = claim.map_or(self.oracle.next_context(), |c| c.0);
        let op = RecvOp {
            ep: self.procs[p].eps[r.ep % self.cfg.eps],
            protocol: r.proto,
            tag: r.tag,
            ignore: r.ignore,
            src,
            iov: &iov,
            context,
            completion: true,
            multi: r.multi,
        };
        let index = self.oracle.add_recv(Recv {
            ep: r.ep,
            proto: r.proto,
            tag: r.tag,
            ignore: r.ignore,
            src: r.src,
            order: 0,
            buf,
            pieces,
            cap: r.cap,
            multi: r.multi,
            claim: claim.map(|c| c.1),
            context,
            fate: Fate::Posted,
            posted_at: 0,
            cancelled_at: 0,
        });
        match claim {
            Some((context, _)) => *self.oracle.op(context) = Op::Recv(index),
            None => self.oracle.ops.push(Op::Recv(index)),
        }
        // SAFETY: the buffer is lent until the completion is read, only the engine touches it until then, and it is
        // freed only with the world.
        let done =
            unsafe { if claim.is_some() { engine.recv_claimed(&op, now) } else { engine.recv(&op, now) } };
        if let Err(e) = done {
            panic!("p{p} cannot post a receive: {e} ({r:?}, claim {claim:?})");
        }
        Some(index)
    }

    fn cancel_recv(&mut self, p: usize, engine: &mut Engine, r: usize) -> bool {
        let recv = &self.oracle.recvs[r];
        let ep = self.procs[p].eps[recv.ep % self.cfg.eps];
        if recv.fate != Fate::Posted || !engine.cancel(ep, recv.context) {
            return false;
        }
        let at = self.oracle.completions;
        let x = &mut self.oracle.recvs[r];
        x.fate = Fate::Cancelling;
        x.cancelled_at = at;
        true
    }

    /// The application's part of a round.
    pub(crate) fn app_run(&mut self, p: usize, engine: &mut Engine, now: Time) {
        if self.procs[p].app.exited {
            // an exited process reads no completions
        } else if self.now >= self.procs[p].app.deaf_until {
            self.read_completions(p, engine);
        }
        if self.now < self.procs[p].app.next_step {
            return;
        }
        match self.procs[p].app.phase {
            Phase::Idle | Phase::Gone => self.procs[p].app.next_step = u64::MAX,
            Phase::Active => self.app_active(p, engine, now),
            Phase::Draining => self.app_draining(p, engine, now),
            Phase::Closing => {
                self.procs[p].app.next_step = self.now + MS;
                if self.procs[p].eps.iter().all(|&ep| engine.linger_done(ep, now)) {
                    engine.shutdown(now);
                    self.procs[p].app.phase = Phase::Leaving;
                    self.trace(|| format!("p{p} says goodbye"));
                }
            }
            Phase::Exiting => {
                self.procs[p].app.next_step = self.now + MS;
                if !engine.lends(None) {
                    self.leave_memory(p);
                }
                if engine.abandoned(now) {
                    engine.shutdown(now);
                    self.procs[p].app.phase = Phase::Leaving;
                }
            }
            Phase::Leaving => {
                self.procs[p].app.next_step = self.now + MS;
                if !engine.lends(None) {
                    self.leave_memory(p);
                }
                if engine.shutdown_done(now) {
                    self.procs[p].app.phase = Phase::Gone;
                }
            }
        }
        if !self.procs[p].app.exited {
            self.read_completions(p, engine);
        }
    }

    /// The application exits. Its memory is reused at once, or, where an adapter still has some of it, by [`World::leave_memory`].
    pub(crate) fn app_exits(&mut self, p: usize) {
        self.procs[p].app.exited = true;
        for e in 0..self.cfg.eps {
            let ep = self.endpoint(p, e);
            for o in &mut self.oracle.ops {
                if let Op::Send(id, buf, open) = o {
                    if *open && self.oracle.msgs[*id as usize].src == ep {
                        self.procs[p].app.left.extend(buf.take().map(|b| (b, SCRIBBLE)));
                    }
                }
            }
            for r in self.oracle.posted[ep].iter().flatten() {
                self.procs[p].app.left.push((self.oracle.recvs[*r].buf, CANARY));
            }
            self.oracle.leave(ep);
        }
        self.abandon_asks(p);
        self.abandon_shares(p);
        self.end_regions(p);
    }

    /// The memory of an application that has exited is reused from now on.
    pub(crate) fn leave_memory(&mut self, p: usize) {
        for (buf, fill) in std::mem::take(&mut self.procs[p].app.left) {
            self.memory.verify_parts(buf);
            let until = self.now + self.app_rng.below(20 * MS);
            self.memory.give_back(buf, fill, until);
        }
    }

    fn read_completions(&mut self, p: usize, engine: &mut Engine) {
        for i in 0..self.procs[p].cqs.len() {
            let cq = self.procs[p].cqs[i];
            while let Some(c) = engine.cq_pop(cq) {
                self.on_completion(p, engine, &c);
                if c.error == Some(CompletionError::Canceled) || c.kind == CompletionKind::Peek {
                    continue;
                }
                let lost = matches!(
                    c.error,
                    Some(
                        CompletionError::PeerDied
                            | CompletionError::PeerUnreachable
                            | CompletionError::PeerClosed
                    )
                );
                let app = &mut self.procs[p].app;
                app.refused = if lost && c.kind == CompletionKind::Recv { app.refused + 1 } else { 0 };
                if app.refused < REFUSED_MAX {
                    app.moved += 1;
                    app.next_step = app.next_step.saturating_sub(app.idle_ns).max(self.now);
                    app.idle_ns = 0;
                }
            }
        }
        self.settle_quiet(p, engine);
    }

    fn app_active(&mut self, p: usize, engine: &mut Engine, now: Time) {
        let t = self.cfg.traffic.clone();
        let mut r = self.app_rng.clone();
        let before = self.procs[p].app.moved;
        if t.compute > 0 && r.percent(t.compute) {
            let ns = r.log_range(100 * US, t.compute_ns);
            self.procs[p].app.next_step = self.now + ns;
            self.procs[p].app.deaf_until = self.now + ns;
            self.app_rng = r;
            return;
        }
        let endpoints = self.addresses.len();
        let silent = self.cfg.alone.is_some_and(|a| a != p);
        let sends = if silent { 0 } else { r.range(1, t.burst as u64) };
        for _ in 0..sends {
            let spec = match self.procs[p].app.backlog.take() {
                Some(s) if self.procs[self.owner(s.dst)].app.phase > Phase::Draining => continue,
                Some(s) => s,
                None => {
                    let src = self.endpoint(p, r.index(self.cfg.eps));
                    let mut dst = r.index(endpoints);
                    if self.owner(dst) == p && !r.percent(10) {
                        dst = r.index(endpoints);
                    }
                    if self.procs[self.owner(dst)].app.phase != Phase::Active {
                        continue;
                    }
                    let len = t.size(&mut r);
                    let spec = SendSpec {
                        src,
                        dst,
                        proto: if r.percent(t.tagged) { Protocol::Tagged } else { Protocol::Msg },
                        class: r.below(t.classes),
                        len,
                        pieces: if r.percent(t.pieces) { r.range(2, 5) as usize } else { 1 },
                        inject: len <= 16_384 && r.percent(t.inject),
                        level: match (r.percent(t.delivery), self.match_rng.percent(t.matched)) {
                            (_, true) => CompletionLevel::Matched,
                            (true, false) => CompletionLevel::Delivered,
                            (false, false) => CompletionLevel::Buffered,
                        },
                        data: r.percent(70),
                    };
                    let number = self.sends_drawn;
                    self.sends_drawn += 1;
                    if self.cfg.skip_sends.contains(number) {
                        continue;
                    }
                    spec
                }
            };
            let d = spec.dst;
            let waiting = self.oracle.pending[d][0].len() + self.oracle.pending[d][1].len();
            let full = self.memory.is_short()
                || waiting >= t.window
                || self.oracle.pending_bytes[d] + spec.len > t.window_bytes.max(spec.len);
            self.app_rng = r;
            let over = self.enough || self.oracle.msgs.len() as u64 >= self.cfg.messages_max;
            let sent = !full && !over && self.post_send(p, engine, now, &spec).is_some();
            r = self.app_rng.clone();
            if !sent {
                self.procs[p].app.backlog = Some(spec);
                break;
            }
        }
        for e in 0..self.cfg.eps {
            let ep = self.endpoint(p, e);
            for proto in [Protocol::Msg, Protocol::Tagged] {
                let q = queue(proto);
                let mut stand = self.oracle.posted[ep][q].len();
                let mut want = self.oracle.pending[ep][q].len() + t.early;
                while stand < want.min(64) && !r.percent(t.lazy) {
                    let spec = self.random_recv(&t, &mut r, ep, proto);
                    self.app_rng = r;
                    self.post_recv(p, engine, now, &spec, None);
                    r = self.app_rng.clone();
                    stand += 1;
                    want -= usize::from(want > 0 && r.percent(20));
                }
                // receives that nothing matches must not stand for ever in the way of those that something would
                let stuck = self.procs[p].app.idle_ns >= 2 * MS && r.percent(50);
                if (stand > 48 || stuck || r.percent(t.cancel)) && stand > 0 {
                    let list = &self.oracle.posted[ep][q];
                    let x = list[r.index(list.len())];
                    if self.oracle.recvs[x].claim.is_none() {
                        self.cancel_recv(p, engine, x);
                    }
                }
                if r.percent(t.peek) {
                    let like = self.random_recv(&t, &mut r, ep, proto);
                    let claim = r.percent(50);
                    let discard = !claim && proto == Protocol::Tagged && r.percent(10);
                    self.post_peek(p, engine, now, &like, claim, discard);
                }
            }
        }
        if t.migrate > 0 && r.below(10_000) < u64::from(t.migrate) {
            migrate_some(engine, &mut r, now);
        }
        self.app_rng = r;
        self.app_asks(p, engine, now);
        self.app_collects(p, engine, now, true);
        self.resolve_claims(p, engine, now, false);
        let think = self.app_rng.range(t.think_ns / 4, t.think_ns * 2);
        // nothing to do: look again ever more rarely, at once after a completion
        let app = &mut self.procs[p].app;
        app.idle_ns = if before == app.moved && app.moved == app.moved_before {
            (app.idle_ns * 2).clamp(think, think.max(4 * MS))
        } else {
            0
        };
        app.moved_before = app.moved;
        app.next_step = self.now + think + app.idle_ns;
    }

    fn random_recv(&mut self, t: &Traffic, r: &mut Rng, ep: usize, proto: Protocol) -> RecvSpec {
        let list = &self.oracle.pending[ep][queue(proto)];
        let target = (!list.is_empty())
            .then(|| &self.oracle.msgs[list[r.index(list.len())] as usize])
            .map(|m| (m.src, m.tag, m.len));
        // now and then exactly what is waited for, so that no choice of weights stands still
        let sure = r.percent(20);
        let mut cap = match target {
            Some((_, _, len)) if sure || !r.percent(20) => len,
            _ => t.size(r),
        };
        if r.percent(t.short) {
            cap = r.index(cap + 1);
        } else if r.percent(50) {
            cap += r.index(100);
        }
        if proto == Protocol::Msg {
            cap = cap.max(8);
        }
        let src = match target {
            _ if !r.percent(t.directed) => None,
            Some((s, ..)) => Some(s),
            None => Some(r.index(self.addresses.len())),
        }
        // a receive from a process that has left could never match
        .filter(|&s| self.procs[self.owner(s)].app.phase == Phase::Active);
        let (tag, ignore) = match (proto, target) {
            (Protocol::Msg, _) => (0, 0),
            (_, Some((_, tag, _))) if sure => (tag & !IGNORE_NUMBER, IGNORE_NUMBER),
            _ if r.percent(t.wild) => (r.draw(), u64::MAX),
            (_, Some((_, tag, _))) if r.percent(30) => (tag, 0),
            (_, Some((_, tag, _))) => (tag & !IGNORE_NUMBER, IGNORE_NUMBER),
            _ => (r.below(t.classes), IGNORE_NUMBER),
        };
        let multi = proto == Protocol::Msg && r.percent(t.multi);
        if multi {
            cap = r.log_range(4096, 128 * 1024) as usize;
        }
        let pieces = if r.percent(t.pieces) { r.range(2, 5) as usize } else { 1 };
        RecvSpec { ep, proto, tag, ignore, src, cap, pieces, multi }
    }

    /// Posts a look.
    fn post_peek(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        r: &RecvSpec,
        claim: bool,
        discard: bool,
    ) {
        let src = r.src.map(|s| self.id_of(p, engine, s));
        let context = self.oracle.next_context();
        let like = Recv {
            ep: r.ep,
            proto: r.proto,
            tag: r.tag,
            ignore: r.ignore,
            src: r.src,
            order: 0,
            buf: BufId::MAX,
            pieces: Vec::new(),
            cap: 0,
            multi: false,
            claim: None,
            context,
            fate: Fate::Taken,
            posted_at: 0,
            cancelled_at: 0,
        };
        let i = self.oracle.add_peek(Peek { like, claim, discard, found: None, answered: false });
        self.oracle.ops.push(Op::Peek(i));
        let op = PeekOp {
            ep: self.procs[p].eps[r.ep % self.cfg.eps],
            protocol: r.proto,
            tag: r.tag,
            ignore: r.ignore,
            src,
            context,
            claim,
            discard,
        };
        if let Err(e) = engine.peek(&op, now) {
            panic!("p{p} cannot look: {e}");
        }
    }

    /// Receives (or throws away) what looks have reserved.
    fn resolve_claims(&mut self, p: usize, engine: &mut Engine, now: Time, at_once: bool) {
        let mut i = 0;
        while i < self.procs[p].app.claimed.len() {
            if !at_once && !self.app_rng.percent(30) {
                i += 1;
                continue;
            }
            let (context, peek) = self.procs[p].app.claimed.swap_remove(i);
            let like = self.oracle.peeks[peek].like.clone();
            if like.proto == Protocol::Tagged && self.app_rng.percent(25) {
                self.oracle.peeks[peek].answered = false;
                self.oracle.peeks[peek].discard = true;
                let ep = self.procs[p].eps[like.ep % self.cfg.eps];
                if let Err(e) = engine.discard_claimed(ep, like.proto, context, now) {
                    panic!("p{p} cannot throw away what it has claimed: {e}");
                }
                continue;
            }
            let len = self.oracle.peeks[peek].found.map_or(4096, |m| self.oracle.msgs[m as usize].len);
            let cap =
                if self.app_rng.percent(self.cfg.traffic.short) { self.app_rng.index(len + 1) } else { len };
            let spec = RecvSpec {
                ep: like.ep,
                proto: like.proto,
                tag: like.tag,
                ignore: like.ignore,
                src: None,
                cap: if like.proto == Protocol::Msg { cap.max(8) } else { cap },
                pieces: 1 + self.app_rng.index(2),
                multi: false,
            };
            self.post_recv(p, engine, now, &spec, Some((context, peek)));
        }
    }

    fn app_draining(&mut self, p: usize, engine: &mut Engine, now: Time) {
        self.procs[p].app.next_step = self.now + self.app_rng.range(20 * US, 300 * US);
        if let Some(s) = self.procs[p].app.backlog.take() {
            // it was never accepted: forget it
            let _ = s;
        }
        self.resolve_claims(p, engine, now, true);
        self.app_collects(p, engine, now, false);
        let mut missing = 0;
        let mut stand = 0;
        for e in 0..self.cfg.eps {
            let ep = self.endpoint(p, e);
            for proto in [Protocol::Msg, Protocol::Tagged] {
                let q = queue(proto);
                let want = self.oracle.pending[ep][q].len();
                missing += want;
                let catching = self.oracle.posted[ep][q]
                    .iter()
                    .filter(|&&r| {
                        let r = &self.oracle.recvs[r];
                        r.src.is_none() && !r.multi && r.claim.is_none() && (q == 0 || r.ignore == u64::MAX)
                    })
                    .count();
                if self.cfg.strict && proto == Protocol::Tagged {
                    self.drain_strictly(p, engine, now, ep);
                    stand += self.oracle.posted[ep][q].len();
                    continue;
                }
                for _ in catching..want.min(32) {
                    let list = &self.oracle.pending[ep][q];
                    let some = list[self.app_rng.index(list.len())];
                    let cap = self.oracle.msgs[some as usize].len.max(8);
                    let spec = RecvSpec {
                        ep,
                        proto,
                        tag: 0,
                        ignore: u64::MAX,
                        src: None,
                        cap,
                        pieces: 1,
                        multi: false,
                    };
                    self.post_recv(p, engine, now, &spec, None);
                }
                if want == 0 {
                    for x in self.oracle.posted[ep][q].clone() {
                        if self.oracle.recvs[x].fate == Fate::Posted && self.may_leave(p) {
                            self.cancel_recv(p, engine, x);
                        }
                    }
                }
                stand += self.oracle.posted[ep][q].len();
            }
        }
        let quiet = missing == 0
            && stand == 0
            && self.procs[p].app.sends == 0
            && self.procs[p].app.claimed.is_empty()
            && self.asks_by(p) == 0
            && self.asks_at(p) == 0
            && self.collecting(p) == 0;
        self.procs[p].app.ready = quiet;
        let ready = |a: &App| a.ready || a.phase > Phase::Draining;
        if quiet && self.may_leave(p) && (!self.cfg.together || self.procs.iter().all(|q| ready(&q.app))) {
            self.aim_at_app(Moment::Closes, p);
            self.trace(|| format!("p{p} closes its endpoints"));
            self.check_counts(p, engine);
            for i in 0..self.procs[p].eps.len() {
                let ep = self.procs[p].eps[i];
                engine.close_endpoint(ep, now);
            }
            self.procs[p].app.phase = Phase::Closing;
            self.procs[p].app.left_in_peace = true;
        }
    }

    /// Takes exactly the youngest message, then the next: whatever lies before it must not block it (hazard H4).
    fn drain_strictly(&mut self, p: usize, engine: &mut Engine, now: Time, ep: usize) {
        let q = queue(Protocol::Tagged);
        let youngest = self.oracle.pending[ep][q].iter().max().map(|&id| &self.oracle.msgs[id as usize]);
        let exact = youngest.map(|m| (m.src, m.tag, m.len));
        let takes =
            |r: &Recv| exact.is_some_and(|(s, tag, _)| r.src == Some(s) && r.tag == tag && r.ignore == 0);
        let mut there = false;
        for x in self.oracle.posted[ep][q].clone() {
            let r = &self.oracle.recvs[x];
            if r.fate == Fate::Posted && takes(r) {
                there = true;
            } else if r.fate == Fate::Posted && r.claim.is_none() && (exact.is_some() || self.may_leave(p)) {
                // what could take another message must not stand in the way
                self.cancel_recv(p, engine, x);
            }
        }
        let Some((src, tag, cap)) = exact.filter(|_| !there) else { return };
        let spec = RecvSpec {
            ep,
            proto: Protocol::Tagged,
            tag,
            ignore: 0,
            src: Some(src),
            cap,
            pieces: 1,
            multi: false,
        };
        self.post_recv(p, engine, now, &spec, None);
    }

    /// Whether giving up the process of an endpoint breaks no promise.
    pub(crate) fn may_be_given_up(&self, ep: usize) -> bool {
        let q = &self.procs[self.owner(ep)];
        self.cfg.peers_may_be_lost || q.killed || q.app.exited || q.app.phase == Phase::Gone
    }

    /// A process may leave when no process will send any more.
    fn may_leave(&self, p: usize) -> bool {
        let _ = p;
        self.procs.iter().all(|q| !matches!(q.app.phase, Phase::Active | Phase::Idle))
    }

    /// Stops sending, starts receiving everything, then leaves.
    pub fn app_drain(&mut self, p: usize) {
        if matches!(self.procs[p].app.phase, Phase::Active | Phase::Idle) {
            self.aim_at_app(Moment::Drains, p);
            self.procs[p].app.phase = Phase::Draining;
            self.procs[p].app.next_step = self.now;
            self.procs[p].app.deaf_until = 0;
            self.wake(p, self.now);
        }
    }

    /// All its operations are complete.
    pub(crate) fn app_settled(&self, p: usize) -> bool {
        self.procs[p].app.phase > Phase::Draining
    }

    pub(crate) fn app_gone(&self, p: usize) -> bool {
        self.procs[p].app.phase == Phase::Gone
    }

    fn on_completion(&mut self, p: usize, engine: &mut Engine, c: &Completion) {
        self.oracle.completions += 1;
        self.note(0xc0 ^ (c.context as u64) << 8 ^ (c.len as u64) << 32);
        if c.kind == CompletionKind::RemoteWrite {
            return self.on_remote_write(p, engine, c);
        }
        match self.oracle.op(c.context).clone() {
            Op::Send(id, buf, open) => self.on_sent(p, c, id, buf, open),
            Op::Recv(r) => self.on_received(p, engine, c, r),
            Op::Peek(i) => self.on_looked(p, engine, c, i),
            Op::Ask(a) => self.on_asked(p, c, a),
            Op::Share(i) => self.on_collected(p, c, i),
        }
    }

    fn on_sent(&mut self, p: usize, c: &Completion, id: u64, buf: Option<BufId>, open: bool) {
        assert!(open, "exactly once: the send of message {id} completed twice: {c:?}");
        assert_eq!(c.kind, CompletionKind::Send, "a send completes as {c:?}");
        let dst = self.oracle.msgs[id as usize].dst;
        match c.error {
            None => self.check_delivery(id),
            Some(
                CompletionError::PeerDied | CompletionError::PeerUnreachable | CompletionError::PeerClosed,
            ) if self.may_be_given_up(dst) => {
                self.oracle.msgs[id as usize].failed = true;
            }
            Some(_) => panic!("live: the send of message {id} failed: {c:?}"),
        }
        *self.oracle.op(c.context) = Op::Send(id, None, false);
        self.oracle.sent(id);
        self.procs[p].app.sends -= 1;
        if let Some(buf) = buf {
            // what a late retransmission would send
            let until = self.now + self.app_rng.below(20 * MS);
            self.memory.give_back(buf, SCRIBBLE, until);
        }
    }

    /// A promise of delivery cannot be kept before light has been there and back.
    fn check_delivery(&self, id: u64) {
        let m = &self.oracle.msgs[id as usize];
        if m.level < CompletionLevel::Delivered || self.owner(m.src) == self.owner(m.dst) || m.buried {
            return;
        }
        let there = self.nets.iter().map(|n| n.latency_ns).min().unwrap_or(0);
        let took = self.now - m.times.0;
        assert!(
            took >= 2 * there,
            "no false completion: the send of message {id} was promised at delivery, and completed after {took} ns"
        );
    }

    /// Number of the message in a completion, by tag, data, or first bytes; all that are there must agree.
    fn identify(&self, c: &Completion, first: Option<&[u8]>) -> Option<u64> {
        let by_tag = (c.protocol == Protocol::Tagged).then_some(c.tag >> TAG_CLASS_BITS);
        let by_data = c.data.map(|d| d ^ DATA_MASK);
        let by_bytes = first.filter(|b| b.len() >= 8).map(|b| {
            let mut x = [0; 8];
            x.copy_from_slice(&b[..8]);
            u64::from_le_bytes(x)
        });
        if let (Some(a), Some(b)) = (by_tag, by_data) {
            assert_eq!(a, b, "intact: tag and data of one completion belong to two messages: {c:?}");
        }
        let id = by_tag.or(by_data).or(by_bytes)?;
        assert!(
            (id as usize) < self.oracle.msgs.len(),
            "intact: a completion names message {id}, and only {} were sent: {c:?}",
            self.oracle.msgs.len()
        );
        Some(id)
    }

    fn check_envelope(&mut self, p: usize, engine: &Engine, c: &Completion, id: u64, like: &Recv) {
        let src = c.src.unwrap_or_else(|| panic!("a receive completes without a source: {c:?}"));
        let src = self.endpoint_behind(p, engine, src);
        let m = &self.oracle.msgs[id as usize];
        assert_eq!(m.proto, c.protocol, "in order: message {id} came in the wrong queue");
        assert_eq!(m.dst, like.ep, "names: message {id} came to the wrong endpoint");
        assert_eq!(m.src, src, "names: message {id} came from another endpoint than the completion says");
        assert_eq!(m.tag, c.tag, "intact: tag of message {id}");
        assert_eq!(m.data, c.data, "intact: data of message {id}");
        assert!(
            like.matches(m),
            "in order: message {id} went to a receive it does not match\n  {m:?}\n  {like:?}"
        );
    }

    fn on_received(&mut self, p: usize, engine: &mut Engine, c: &Completion, r: usize) {
        assert_eq!(c.kind, CompletionKind::Recv, "a receive completes as {c:?}");
        let recv = self.oracle.recvs[r].clone();
        assert!(
            matches!(recv.fate, Fate::Posted | Fate::Cancelling),
            "exactly once: a receive completed twice: {c:?}\n  {recv:?}"
        );
        match c.error {
            None | Some(CompletionError::Truncated { .. }) => {}
            Some(CompletionError::Canceled) => {
                assert_eq!(
                    recv.fate,
                    Fate::Cancelling,
                    "a receive is cancelled without a call to cancel it: {c:?}"
                );
                self.end_recv(r, Fate::Cancelled);
                return;
            }
            Some(
                CompletionError::PeerDied | CompletionError::PeerUnreachable | CompletionError::PeerClosed,
            ) if match c.src {
                Some(s) => {
                    let ep = self.endpoint_behind(p, engine, s);
                    self.may_be_given_up(ep)
                }
                None => recv.src.is_some_and(|ep| self.may_be_given_up(ep)),
            } =>
            {
                // it may have taken a message of the dead long before, which never came in full
                self.oracle.recvs[r].cancelled_at = self.oracle.recvs[r].posted_at;
                if c.released_only || !recv.multi || c.multi_released {
                    self.end_recv(r, Fate::Cancelled);
                }
                return;
            }
            Some(CompletionError::PeerClosed)
                if recv.src.is_some_and(|s| self.procs[self.owner(s)].app.phase >= Phase::Closing) =>
            {
                self.oracle.recvs[r].cancelled_at = self.oracle.completions;
                self.end_recv(r, Fate::Cancelled);
                return;
            }
            Some(e) => {
                let waiting: Vec<_> = self.oracle.pending[recv.ep][queue(recv.proto)]
                    .iter()
                    .map(|&id| (id, &self.oracle.msgs[id as usize]))
                    .filter(|(_, m)| recv.matches(m))
                    .collect();
                panic!(
                    "live: a receive failed: {e:?}: {c:?}\n  {recv:?}\n  it could still get {waiting:?}\n{}",
                    engine.describe()
                );
            }
        }
        if c.released_only {
            assert!(recv.multi && c.multi_released, "only a multi-receive is given back: {c:?}");
            self.end_recv(r, Fate::Taken);
            return;
        }
        // a multi-receive may have taken messages before it was cancelled that were not read yet
        assert!(
            recv.multi || recv.fate != Fate::Cancelling,
            "a receive took a message after it was cancelled: {c:?}\n  {recv:?}"
        );
        let offset = if recv.multi {
            let at = c.buf.wrapping_sub(self.memory.ptr(recv.buf) as usize);
            assert!(at + c.len <= recv.cap, "fenced: a message lies outside its multi-receive: {c:?}");
            at
        } else {
            0
        };
        assert!(c.len <= recv.cap, "a completion is longer than its receive: {c:?}\n  {recv:?}");
        // gather what was received
        let bytes = self.memory.bytes(recv.buf);
        let gathered: Vec<u8>;
        let got: &[u8] = if recv.pieces.len() == 1 {
            &bytes[offset..offset + c.len]
        } else {
            let mut g = Vec::with_capacity(c.len);
            for &(at, n) in &recv.pieces {
                let k = n.min(c.len - g.len());
                g.extend_from_slice(&bytes[at..at + k]);
            }
            gathered = g;
            &gathered
        };
        let id = self.identify(c, Some(got)).unwrap_or_else(|| {
            panic!("intact: a completion does not tell which message it is: {c:?}\n  {recv:?}")
        });
        let m = &self.oracle.msgs[id as usize];
        let room = if recv.multi { recv.cap - offset } else { recv.cap };
        match c.error {
            None => assert_eq!(c.len, m.len, "intact: length of message {id}\n  {m:?}\n  {recv:?}"),
            Some(CompletionError::Truncated { over }) => {
                assert!(
                    m.len > room,
                    "message {id} is truncated although it fits: {c:?}\n  {m:?}\n  {recv:?}"
                );
                assert_eq!((c.len, over), (room, m.len - room), "truncation of message {id} is not exact");
            }
            _ => {}
        }
        if let Some(at) = message_differs(id, got) {
            panic!(
                "intact: byte {at} of message {id} differs from what was sent ({:#04x}; {SCRIBBLE:#04x} is what its sender \
                 wrote after the completion, {CANARY:#04x} was never received)\n  {m:?}\n  {recv:?}",
                got[at]
            );
        }
        if !recv.multi {
            self.check_gaps(id, &recv, c.len);
        }
        let like = match recv.claim {
            Some(peek) => self.oracle.peeks[peek].like.clone(),
            None => recv.clone(),
        };
        self.check_envelope(p, engine, c, id, &like);
        let order = like.order;
        self.oracle.check_match(id, recv.posted_at);
        self.oracle.taken(id, order, offset, self.now);
        if let Some(peek) = recv.claim {
            if let Some(f) = self.oracle.peeks[peek].found {
                assert_eq!(f, id, "in order: a claimed receive got another message than the look had found");
            }
        }
        if recv.multi {
            self.memory.part_done(recv.buf, offset, c.len);
            if c.multi_released {
                self.end_recv(r, Fate::Taken);
            }
        } else {
            self.end_recv(r, Fate::Taken);
        }
    }

    fn check_gaps(&self, id: u64, recv: &Recv, len: usize) {
        let bytes = self.memory.bytes(recv.buf);
        let mut left = len;
        let mut end = 0;
        for &(at, n) in &recv.pieces {
            assert!(
                all(&bytes[end..at], CANARY),
                "fenced: message {id} was written between the pieces of its receive"
            );
            let k = n.min(left);
            left -= k;
            assert!(all(&bytes[at + k..at + n], CANARY), "fenced: message {id} was written beyond its end");
            end = at + n;
        }
        assert!(all(&bytes[end..], CANARY), "fenced: message {id} was written beyond its receive");
    }

    fn end_recv(&mut self, r: usize, fate: Fate) {
        self.oracle.unpost(r);
        self.oracle.recvs[r].fate = fate;
        let buf = self.oracle.recvs[r].buf;
        self.memory.verify_parts(buf);
        let until = self.now + self.app_rng.below(20 * MS);
        self.memory.give_back(buf, CANARY, until);
    }

    fn on_looked(&mut self, p: usize, engine: &mut Engine, c: &Completion, i: usize) {
        let peek = self.oracle.peeks[i].clone();
        assert!(!peek.answered, "exactly once: a look was answered twice: {c:?}");
        self.oracle.peeks[i].answered = true;
        match c.error {
            Some(CompletionError::NoMessage) => {
                assert!(peek.found.is_none(), "a claimed message is gone: {c:?}");
                return;
            }
            Some(
                CompletionError::PeerClosed | CompletionError::PeerDied | CompletionError::PeerUnreachable,
            ) if peek.like.src.is_some_and(|s| {
                self.cfg.peers_may_be_lost || self.procs[self.owner(s)].app.phase >= Phase::Closing
            }) =>
            {
                return;
            }
            None => {}
            Some(e) => panic!("a look failed: {e:?}: {c:?}"),
        }
        assert_eq!(c.kind, CompletionKind::Peek, "a look completes as {c:?}");
        let id = self.identify(c, None);
        if let Some(id) = id {
            self.check_envelope(p, engine, c, id, &peek.like);
            let m = &self.oracle.msgs[id as usize];
            assert_eq!(m.len, c.len, "intact: a look tells a wrong length of message {id}");
            assert!(m.taken.is_none(), "exactly once: a look found message {id}, which was received before");
        }
        if peek.discard {
            let id = id.expect("simulator: only tagged messages are thrown away");
            self.oracle.taken(id, peek.like.order, 0, self.now);
        } else if peek.claim {
            self.oracle.peeks[i].found = id;
            self.procs[p].app.claimed.push((c.context, i));
        }
    }
}
