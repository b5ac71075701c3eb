//! A program: what one node of a job does, step by step. Owns: the node, and what the program knows.

use super::plan::Plan;
use super::reference::{BlockId, Fate, Reference, WriteId};
use crate::link::{MS, US};
use crate::rng::Rng;
use crate::world::World;
use crate::world::app::Phase;
use rerail_core::wire::Address;
use rerail_core::{Engine, Time};
use rerail_rwapi::{Failure, Net, Node, Port, Received, Refused, Sid};

/// Kinds of deeds: those below, and one that is none, for a program that receives and asks after its writes.
pub const DEEDS: usize = 10;
/// A new block.
pub const ALLOCATE: usize = 0;
/// A block is given back.
pub const FREE: usize = 1;
/// The address of a block is sent to a node.
pub const PUBLISH: usize = 2;
/// A write.
pub const WRITE: usize = 3;
/// A write with a message behind it.
pub const NOTIFY: usize = 4;
/// A message.
pub const SEND: usize = 5;
/// Many messages to one node.
pub const FLOOD: usize = 6;
/// For a while the program receives nothing.
pub const DEAF: usize = 7;
/// A call that must be refused.
pub const WRONG: usize = 8;
/// Longest pause of a program that has nothing to do.
const IDLE_NS: u64 = 4 * MS;

/// See the module.
pub struct Program {
    rank: usize,
    pub(super) node: Node,
    rng: Rng,
    /// When it does something next.
    pub(super) next_at: u64,
    deaf_until: u64,
    steps: u32,
    barriers: u32,
    /// The barrier that it waits for.
    waits: Option<u64>,
    /// Messages that it still has to send to a node.
    flood: Option<(usize, u64)>,
    open: Vec<(Sid, WriteId)>,
    ended: Vec<(Sid, WriteId, Result<bool, Option<Failure>>)>,
    /// Blocks of its own that it has not freed.
    own: Vec<BlockId>,
    /// Blocks that it was told of.
    known: Vec<BlockId>,
    /// Pauses grow while nothing happens.
    idle_ns: u64,
    changes: u64,
    /// It has arrived at the last barrier.
    last: bool,
}

impl Program {
    pub(super) fn join(
        seed: u64,
        rank: usize,
        port: Port,
        engine: &mut Engine,
        addresses: &[Address],
        plan: &Plan,
        now: Time,
    ) -> Self {
        let node = Node::join(engine, port, rank, addresses, now).expect("the job is well formed");
        let mut rng = Rng::new(seed, 0x12a2_0000 + rank as u64);
        let next_at = rng.below(plan.think_ns);
        Self {
            rank,
            node,
            rng,
            next_at,
            deaf_until: 0,
            steps: plan.steps,
            barriers: plan.barriers,
            waits: None,
            flood: None,
            open: Vec::new(),
            ended: Vec::new(),
            own: Vec::new(),
            known: Vec::new(),
            idle_ns: 0,
            changes: 0,
            last: false,
        }
    }

    /// Whether it has done what it had to do before the end.
    pub(super) fn is_done(&self) -> bool {
        self.steps == 0
    }

    /// What it waits for, in words.
    pub(super) fn describe(&self, job: &Reference) -> String {
        let rooms: Vec<u64> = (0..job.nodes()).map(|to| job.room(self.rank, to)).collect();
        format!(
            "\n  node {}: rooms {rooms:?}, to {:?}, waits for barrier {:?} (passed {}), {} barriers to come, {} writes open ({} under way), {} messages to send, flushed {}",
            self.rank,
            self.flood,
            self.waits,
            self.node.passed(),
            self.barriers,
            self.open.len(),
            self.node.writes_under_way(),
            self.flood.map_or(0, |f| f.1),
            self.node.is_flushed()
        )
    }

    /// A step. True: it has left.
    pub(super) fn step(
        &mut self,
        w: &mut World,
        e: &mut Engine,
        now: Time,
        plan: &Plan,
        job: &mut Reference,
        ending: bool,
    ) -> bool {
        self.node.advance(e, now);
        job.tally.held += u64::from(self.node.holds_messages());
        self.collect_memory(w, job);
        job.passed(self.rank, self.node.passed());
        if self.waits.is_some_and(|barrier| self.node.passed() >= barrier) {
            w.trace(|| format!("node {} passes barrier {:?}", self.rank, self.waits));
            self.waits = None;
        }
        if ending || w.now >= self.deaf_until {
            let most = if ending || self.rng.percent(50) { u64::MAX } else { self.rng.range(0, 8) };
            self.receive(w, e, now, job, most);
        }
        self.ask(w, job);
        let left = if ending {
            self.end(w, e, now, plan, job)
        } else {
            self.act(w, e, now, plan, job);
            false
        };
        self.pause(w, plan);
        left
    }

    fn pause(&mut self, w: &World, plan: &Plan) {
        let quiet = self.node.changes() == self.changes && self.steps == 0 || self.last;
        self.changes = self.node.changes();
        self.idle_ns = if quiet { (self.idle_ns * 2).clamp(20 * US, IDLE_NS) } else { 0 };
        let mean = self.idle_ns.max(plan.think_ns);
        self.next_at = w.now + self.rng.range(mean / 2, mean * 3 / 2) + 1;
    }

    fn collect_memory(&mut self, w: &mut World, job: &mut Reference) {
        for unused in self.node.take_unused() {
            let until = w.now + self.rng.below(20 * MS);
            let node = &mut self.node;
            let under_way = |sid| node.is_sent(sid) == Ok(false);
            job.unused(&mut w.memory, self.rank, unused.ptr, unused.bytes, false, under_way, until);
        }
    }

    fn receive(&mut self, w: &mut World, e: &mut Engine, now: Time, job: &mut Reference, most: u64) {
        for _ in 0..most {
            match self.node.receive(e, now) {
                None => break,
                Some(Received::Message(from, small)) => {
                    w.note(0x3a1 ^ (from as u64) << 16 ^ (self.rank as u64) << 24);
                    job.received(&w.memory, self.rank, from, &small);
                    let net = u64::from_le_bytes(small[8..].try_into().expect("eight bytes"));
                    if net != 0 {
                        self.known.push(job.at(Net(net)));
                    }
                }
                Some(Received::Gone(node)) => {
                    w.trace(|| format!("node {} is told of the end of node {node}", self.rank));
                    w.note(0x3a2 ^ (node as u64) << 16 ^ (self.rank as u64) << 24);
                    job.gone(self.rank, node);
                }
            }
        }
    }

    /// Asks after its writes, and after some that have ended.
    fn ask(&mut self, w: &mut World, job: &mut Reference) {
        for i in (0..self.open.len()).rev() {
            let (sid, write) = self.open[i];
            let seen = self.node.is_sent(sid);
            let end = match seen {
                Ok(false) => continue,
                Ok(true) => Ok(()),
                Err(Some(failure)) => Err(failure),
                Err(None) => panic!("names: {sid:?} of node {} names no write", self.rank),
            };
            w.note(0x3a3 ^ sid.0 << 16 ^ (self.rank as u64) << 8 ^ u64::from(end.is_ok()));
            job.ended(&mut w.memory, write, end);
            self.open.swap_remove(i);
            self.ended.push((sid, write, seen));
        }
        for _ in 0..self.ended.len().min(2) {
            let (sid, write, _) = self.ended[self.rng.index(self.ended.len())];
            job.check_end(write, self.node.is_sent(sid));
        }
    }

    fn act(&mut self, w: &mut World, e: &mut Engine, now: Time, plan: &Plan, job: &mut Reference) {
        if self.waits.is_some() || self.steps == 0 {
            return;
        }
        self.steps -= 1;
        if self.barriers > 0 && self.rng.below(u64::from(self.steps) + 1) < u64::from(self.barriers) {
            self.arrive(w, e, now, job);
            return;
        }
        if let Some((to, left)) = self.flood {
            return self.flood(e, now, job, to, left);
        }
        match self.rng.weighted(&plan.weights) {
            ALLOCATE if self.own.len() < plan.blocks_max && !w.memory.is_short() => {
                self.allocate(w, e, plan, job)
            }
            FREE if self.own.len() > 1 => self.free(w, e, now, job),
            PUBLISH if !self.own.is_empty() => {
                let block = self.own[self.rng.index(self.own.len())];
                let mut to = self.rng.index(job.nodes());
                if to == self.rank && self.rng.percent(80) {
                    to = (to + 1) % job.nodes();
                }
                let (_, net, ..) = job.of_block(block);
                self.send(e, now, job, to, net.0);
            }
            WRITE => (0..self.rng.range(1, 4)).for_each(|_| self.write(w, e, now, plan, job, false)),
            NOTIFY => self.write(w, e, now, plan, job, true),
            SEND => {
                for _ in 0..self.rng.range(1, 4) {
                    let to = self.rng.index(job.nodes());
                    self.send(e, now, job, to, 0);
                }
            }
            FLOOD => {
                let (to, left) = (self.rng.index(job.nodes()), self.rng.log_range(20, 1_500));
                self.flood(e, now, job, to, left);
            }
            DEAF => self.deaf_until = w.now + self.rng.log_range(100 * US, 60 * MS),
            WRONG => self.mistake(w, e, now, job),
            _ => {
                if let Some(block) = self.own.first() {
                    job.verify(&w.memory, *block);
                }
            }
        }
    }

    fn allocate(&mut self, w: &mut World, e: &mut Engine, plan: &Plan, job: &mut Reference) {
        let most = plan.bytes_max.0 as u64;
        let bytes = if plan.bulk || self.rng.percent(50) {
            self.rng.range(most / 2, most)
        } else {
            self.rng.log_range(1, most)
        };
        let bytes = bytes as usize;
        let buf = w.memory.take(bytes);
        let ptr = w.memory.ptr(buf);
        // SAFETY: buffers live as long as the world, and this one is given back only when the node gives it back.
        let net = unsafe { self.node.add_block(e, ptr, bytes) }.expect("there is room for blocks");
        self.own.push(job.block(&mut w.memory, self.rank, net, buf, bytes));
    }

    fn free(&mut self, w: &mut World, e: &mut Engine, now: Time, job: &mut Reference) {
        let block = self.own.swap_remove(self.rng.index(self.own.len()));
        let (_, _, _, buf) = job.of_block(block);
        let ptr = w.memory.ptr(buf);
        assert_eq!(self.node.free(e, ptr, now), Ok(()), "names: block {block} is one");
        assert_eq!(self.node.free(e, ptr, now), Err(Refused::Block), "names: a block is freed once");
        job.freed(&mut w.memory, block);
        self.collect_memory(w, job);
    }

    /// Whether a well-formed call may be refused in this way.
    fn check_refused(&self, job: &mut Reference, to: usize, why: Refused) {
        match why {
            Refused::Again => job.tally.again += 1,
            Refused::Gone if matches!(job.fate(to), Fate::Died(_)) => {}
            _ => panic!("live: a call of node {} for node {to} is refused: {why}", self.rank),
        }
    }

    /// Sends a message that carries an address, or none. False: it was refused.
    fn send(&mut self, e: &mut Engine, now: Time, job: &mut Reference, to: usize, payload: u64) -> bool {
        let small = job.next_message(self.rank, to, payload);
        match self.node.send(e, to, &small, now) {
            Ok(()) => job.sent(self.rank, to, small),
            Err(why) => {
                job.tally.again_full += u64::from(why == Refused::Again && job.room(self.rank, to) == 0);
                self.check_refused(job, to, why);
                return why == Refused::Gone;
            }
        }
        true
    }

    fn flood(&mut self, e: &mut Engine, now: Time, job: &mut Reference, to: usize, mut left: u64) {
        while left > 0 && self.send(e, now, job, to, 0) {
            left -= 1;
        }
        self.flood = Some((to, left)).filter(|f| f.1 > 0);
    }

    /// A range of a block, other than this one.
    fn range_of(
        &mut self,
        job: &Reference,
        block: BlockId,
        most: usize,
        other: Option<(BlockId, usize, usize)>,
        bulk: bool,
    ) -> Option<(usize, usize)> {
        let (_, _, size, _) = job.of_block(block);
        let most = most.min(size) as u64;
        if other.is_none() && bulk {
            let bytes = self.rng.range(most / 4 + 1, most) as usize;
            return job.free_range(block, bytes, &mut self.rng).map(|at| (at, bytes));
        }
        let near = 8192u64.saturating_add_signed(self.rng.below(5) as i64 - 2);
        let bytes = if self.rng.percent(15) { near.min(most) } else { self.rng.log_range(1, most) };
        let bytes = other.map_or(bytes as usize, |(.., bytes)| bytes);
        let at = job.free_range(block, bytes, &mut self.rng)?;
        let meets = |(b, from, n): (BlockId, usize, usize)| b == block && at < from + n && from < at + bytes;
        (!other.is_some_and(meets)).then_some((at, bytes))
    }

    fn write(
        &mut self,
        w: &mut World,
        e: &mut Engine,
        now: Time,
        plan: &Plan,
        job: &mut Reference,
        notify: bool,
    ) {
        let mine = self.rng.percent(8);
        // now and then into a block that is freed
        if !self.rng.percent(10) {
            self.known.retain(|block| job.is_live(*block));
        }
        let targets = if mine { &self.own } else { &self.known };
        if self.own.is_empty() || targets.is_empty() {
            return;
        }
        let target = targets[self.rng.index(targets.len())];
        let source = self.own[self.rng.index(self.own.len())];
        let (to, remote, size, _) = job.of_block(target);
        let Some((from, bytes)) = self.range_of(job, source, plan.bytes_max.1.min(size), None, plan.bulk)
        else {
            return;
        };
        let Some((at, _)) = self.range_of(job, target, bytes, Some((source, from, bytes)), false) else {
            return;
        };
        job.fill_source(&mut w.memory, (source, from), bytes);
        let (_, local, ..) = job.of_block(source);
        let (local, remote) = (Net(local.0 + from as u64), Net(remote.0 + at as u64));
        let small = job.next_message(self.rank, to, 0);
        let begun = if notify {
            self.node.write_notify(e, to, local, remote, bytes, &small, now)
        } else {
            self.node.write(e, to, local, remote, bytes, now)
        };
        match begun {
            Ok(sid) => {
                let write = job.begun(self.rank, (source, from), (target, at), bytes, false, sid);
                self.open.push((sid, write));
                if notify {
                    job.sent(self.rank, to, small);
                }
                w.trace(|| {
                    format!(
                        "node {} writes {write}: {bytes} bytes to node {to}, notifies {notify}, {sid:?}",
                        self.rank
                    )
                });
            }
            Err(why) => self.check_refused(job, to, why),
        }
    }

    /// Calls that must be refused, here or at the target.
    fn mistake(&mut self, w: &mut World, e: &mut Engine, now: Time, job: &mut Reference) {
        let nodes = job.nodes();
        let nowhere = if self.rng.percent(50) { nodes } else { usize::MAX };
        let small = job.next_message(self.rank, 0, 0);
        job.tally.mistakes += 1;
        assert_eq!(
            self.node.send(e, nowhere, &small, now),
            Err(Refused::NoSuchNode),
            "names: node {nowhere}"
        );
        assert_eq!(self.node.is_sent(Sid(0)), Err(None), "names: identifier 0");
        assert_eq!(self.node.is_sent(Sid(u64::MAX)), Err(None), "names: the last identifier");
        let (Some(&source), false) = (self.own.first(), self.known.is_empty()) else { return };
        let target = self.known[self.rng.index(self.known.len())];
        let (_, local, have, buf) = job.of_block(source);
        let (to, remote, size, _) = job.of_block(target);
        let mut refused = |node: &mut Node,
                           to: usize,
                           local: Net,
                           remote: Net,
                           bytes: usize,
                           why: Refused| {
            let got = node.write(e, to, local, remote, bytes, now);
            let dead = to < nodes && matches!(job.fate(to), Fate::Died(_));
            let right = got == Err(why) || (dead && got == Err(Refused::Gone));
            assert!(
                right,
                "names: a write of {bytes} bytes to node {to}, {local:?} to {remote:?}: {got:?}, not {why:?}"
            );
        };
        let node = &mut self.node;
        refused(node, nowhere, local, remote, 1, Refused::NoSuchNode);
        refused(node, to, local, remote, 0, Refused::Empty);
        refused(node, to, Net(local.0 + have as u64), remote, 1, Refused::Local);
        refused(node, to, local, remote, have + 1, Refused::Local);
        refused(node, to, Net(0), remote, 1, Refused::Local);
        if to != self.rank {
            refused(node, to, remote, remote, 1, Refused::Local);
        }
        refused(node, (to + 1) % nodes, local, remote, 1, Refused::Remote);
        // the end of what the name of a small block can name
        let end = Net((remote.0 | ((1 << 20) - 1)) & !1 | 1);
        if size <= 1 << 20 && have > 1 {
            refused(node, to, local, end, 2, Refused::Remote);
        }
        // SAFETY: nothing is added.
        let none = unsafe { node.add_block(e, w.memory.ptr(buf), 0) };
        assert_eq!(none, Err(Refused::Empty), "names: an empty block");
        let inside = w.memory.ptr(buf).wrapping_add(1);
        assert_eq!(node.free(e, inside, now), Err(Refused::Block), "names: no block begins there");
        // beyond the end of the block, and not of its name: the target refuses it
        let bytes = self.rng.log_range(1, have as u64) as usize;
        let beyond = if self.rng.percent(50) { size } else { (size + 1).saturating_sub(bytes) };
        if beyond + bytes > 1 << 20 || size > 1 << 20 {
            return;
        }
        let Some(from) = job.free_range(source, bytes, &mut self.rng) else { return };
        job.fill_source(&mut w.memory, (source, from), bytes);
        let (local, remote) = (Net(local.0 + from as u64), Net(remote.0 + beyond as u64));
        match self.node.write(e, to, local, remote, bytes, now) {
            Ok(sid) => {
                let write = job.begun(self.rank, (source, from), (target, beyond), bytes, true, sid);
                self.open.push((sid, write));
            }
            Err(why) => self.check_refused(job, to, why),
        }
    }

    fn arrive(&mut self, w: &mut World, e: &mut Engine, now: Time, job: &mut Reference) {
        self.barriers = self.barriers.saturating_sub(1);
        // it arrives in the call, and the reference must know before others pass
        let barrier = self.node.arrive(e, now);
        job.arrived(self.rank, barrier);
        self.waits = Some(barrier);
        w.trace(|| format!("node {} arrives at barrier {barrier}", self.rank));
    }

    /// What is left to be done: its barriers, its messages, the last barrier. True: it has left.
    fn end(&mut self, w: &mut World, e: &mut Engine, now: Time, plan: &Plan, job: &mut Reference) -> bool {
        self.steps = 0;
        if self.waits.is_some() {
            return false;
        }
        if let Some((to, left)) = self.flood {
            self.flood(e, now, job, to, left);
        }
        if self.barriers > 0 {
            self.arrive(w, e, now, job);
            return false;
        }
        let flushed = self.flood.is_none() && self.open.is_empty() && self.node.is_flushed();
        if !flushed {
            return false;
        }
        if !self.last {
            let misses = job.misses_messages(self.rank) || job.misses_deaths(self.rank);
            if plan.ragged || !misses {
                self.last = true;
                self.idle_ns = 0;
                job.set_fate(self.rank, Fate::Ends);
                self.arrive(w, e, now, job);
            }
            return false;
        }
        if job.misses_messages(self.rank) {
            return false;
        }
        self.leave(w, e, now, job);
        true
    }

    fn leave(&mut self, w: &mut World, e: &mut Engine, now: Time, job: &mut Reference) {
        w.trace(|| format!("node {} leaves", self.rank));
        job.set_fate(self.rank, Fate::Left);
        self.node.leave();
        let world_ep = w.procs[self.rank].eps[0];
        let left = self.node.end(e, now);
        e.close_endpoint(self.node.endpoint(), now);
        e.close_endpoint(world_ep, now);
        for (sid, write, _) in &self.ended {
            job.check_end(*write, self.node.is_sent(*sid));
        }
        for unused in left.freed.into_iter().chain(left.owned) {
            job.unused(&mut w.memory, self.rank, unused.ptr, unused.bytes, true, |_| false, w.now);
        }
        assert!(
            !job.keeps_memory(self.rank),
            "exactly once: node {} does not give all its blocks back",
            self.rank
        );
        let process = &mut w.procs[self.rank];
        process.eps.push(self.node.endpoint());
        process.app.phase = Phase::Closing;
        process.app.next_step = w.now;
        process.app.left_in_peace = true;
    }
}
