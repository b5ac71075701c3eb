//! Collective operations of the applications, and what came of them. Owns: groups, what their members do, the memory of that.
//!
//! Groups are drawn when the world begins, and another one when a group has done all it was to do. The first member that begins a
//! round draws what it is; the others follow, each at its own time. What a member gives follows from the numbers of the group and
//! the round and from its rank, so every member's result is known to the last byte.
//!
//! An operation may fail only where a process of the group is lost ([`World::may_fail`]); it ends all the same.

use super::World;
use super::app::Phase;
use crate::link::MS;
use crate::memory::{BufId, CANARY, SCRIBBLE, Use, all, fill_message};
use crate::oracle::Op;
use crate::rng::{Rng, mix};
use rerail_core::atomic::{datatype, op};
use rerail_core::{
    CollectiveKind, CollectiveOp, Completion, CompletionError, CompletionKind, EndpointId, Engine, GroupId,
    IoVec, JoinOp, Protocol, Time,
};
use std::rc::Rc;

/// Most operations of a run, counted at each member.
const SHARES_MAX: usize = 20_000;
/// Most bytes of the parts of all members together.
const GATHERED_MAX: usize = 600_000;

/// What the applications do together by themselves.
#[derive(Debug, Clone)]
pub struct Collective {
    /// Groups at a time.
    pub groups: usize,
    /// Steps of an application, in percent, at which it begins something.
    pub share: u32,
    /// Operations of a member under way in one group, at most.
    pub window: usize,
    /// Operations of a group, at most.
    pub length: u64,
    /// Weights of: barrier, broadcast, all-reduce, all-gather, reduce, scatter, gather.
    pub kinds: [u32; 7],
    /// Weights of sizes: nothing, up to 64 B, a datagram, eager, many fragments.
    pub sizes: [u32; 5],
    /// Operations whose result takes the place of the input, in percent.
    pub in_place: u32,
}

impl Collective {
    /// A swarm: every seed another character. `None`: no collective operations.
    pub fn swarm(r: &mut Rng) -> Option<Self> {
        if !r.percent(15) {
            return None;
        }
        let mut p = |most: u32| if r.percent(25) { 0 } else { r.below(u64::from(most) + 1) as u32 };
        let kinds = [1 + p(8), p(8), 1 + p(8), p(8), p(8), p(8), p(8)];
        let sizes = [p(2), 2 + p(8), p(8), p(5), p(2)];
        let in_place = p(60);
        Some(Self {
            groups: r.range(1, 5) as usize,
            share: r.range(5, 100) as u32,
            window: r.log_range(1, 8) as usize,
            length: r.log_range(2, 100),
            kinds,
            sizes,
            in_place,
        })
    }

    fn round(&self, r: &mut Rng, members: usize) -> RoundSpec {
        let root = r.index(members);
        let bytes = (match r.weighted(&self.sizes) {
            0 => 0,
            1 => r.range(1, 64),
            2 => r.range(65, 1_300),
            3 => r.range(1_301, 20_000),
            _ => r.log_range(20_000, 400_000),
        }) as usize;
        let kind = match r.weighted(&self.kinds) {
            0 => CollectiveKind::Barrier,
            1 => CollectiveKind::Broadcast { root },
            2 => CollectiveKind::AllReduce,
            3 => CollectiveKind::AllGather,
            4 => CollectiveKind::Reduce { root },
            5 => CollectiveKind::Scatter { root },
            _ => CollectiveKind::Gather { root },
        };
        RoundSpec { kind, bytes, reduction: r.index(REDUCTIONS.len()) }.that_fits(members)
    }
}

/// How values are combined.
#[derive(Debug)]
struct Reduction {
    datatype: u8,
    op: u8,
    size: usize,
    combine: fn(&mut [u8], &[u8]),
}

macro_rules! reduction {
    ($datatype:ident, $op:ident, $t:ty, $f:expr) => {
        Reduction {
            datatype: datatype::$datatype,
            op: op::$op,
            size: size_of::<$t>(),
            combine: |into, from| {
                let f: fn($t, $t) -> $t = $f;
                let value = |b: &[u8]| <$t>::from_ne_bytes(b.try_into().expect("a whole value"));
                for (a, b) in into.chunks_exact_mut(size_of::<$t>()).zip(from.chunks_exact(size_of::<$t>())) {
                    let x = f(value(a), value(b));
                    a.copy_from_slice(&x.to_ne_bytes());
                }
            },
        }
    };
}

/// Their outcome is the same in every order.
const REDUCTIONS: [Reduction; 8] = [
    reduction!(UINT64, SUM, u64, u64::wrapping_add),
    reduction!(UINT8, BXOR, u8, |a, b| a ^ b),
    reduction!(INT32, MIN, i32, i32::min),
    reduction!(INT32, MAX, i32, i32::max),
    reduction!(UINT16, BOR, u16, |a, b| a | b),
    reduction!(INT64, PROD, i64, i64::wrapping_mul),
    reduction!(UINT128, SUM, u128, u128::wrapping_add),
    reduction!(INT8, LXOR, i8, |a, b| i8::from((a != 0) != (b != 0))),
];

/// An operation to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundSpec {
    /// What is done.
    pub kind: CollectiveKind,
    /// Bytes of a member's part.
    pub bytes: usize,
    /// Which of the reductions, where values are combined.
    pub reduction: usize,
}

impl RoundSpec {
    /// Of 64-bit sums, where values are combined.
    pub fn new(kind: CollectiveKind, bytes: usize) -> Self {
        Self { kind, bytes, reduction: 0 }
    }

    fn that_fits(mut self, members: usize) -> Self {
        match self.kind {
            CollectiveKind::Barrier => self.bytes = 0,
            CollectiveKind::AllReduce | CollectiveKind::Reduce { .. } => {
                self.bytes -= self.bytes % REDUCTIONS[self.reduction].size;
            }
            CollectiveKind::Broadcast { .. } => {}
            _ => self.bytes = self.bytes.min(GATHERED_MAX / members),
        }
        self
    }

    /// What a member gives and takes, in bytes.
    fn extents(&self, rank: usize, members: usize) -> (usize, usize) {
        let (one, all) = (self.bytes, self.bytes * members);
        match self.kind {
            CollectiveKind::Barrier => (0, 0),
            CollectiveKind::Broadcast { root } if root == rank => (one, 0),
            CollectiveKind::Broadcast { .. } => (0, one),
            CollectiveKind::AllReduce => (one, one),
            CollectiveKind::AllGather => (one, all),
            CollectiveKind::Reduce { root } => (one, if root == rank { one } else { 0 }),
            CollectiveKind::Scatter { root } => (if root == rank { all } else { 0 }, one),
            CollectiveKind::Gather { root } => (one, if root == rank { all } else { 0 }),
        }
    }
}

/// An operation of a group.
#[derive(Debug)]
struct Round {
    spec: RoundSpec,
    /// A member has begun something else in its place.
    torn: bool,
    /// What all inputs make, combined or one behind the other.
    outcome: Option<Rc<[u8]>>,
}

/// How far a member is with its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// It has not joined.
    None,
    /// It is joining.
    Joining,
    /// The group is made.
    Joined,
    /// It has learnt that the group cannot be made.
    Failed,
    /// It has left.
    Left,
}

/// A member of a group.
#[derive(Debug, Clone)]
pub struct Member {
    /// Endpoint.
    pub ep: usize,
    /// How far it is.
    pub state: Membership,
    /// Operations begun.
    pub begun: usize,
    /// Operations that are over.
    pub over: usize,
    id: Option<GroupId>,
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Members, by rank.
    pub members: Vec<Member>,
    rounds: Vec<Round>,
    /// Operations that it does by itself.
    length: usize,
    /// Another one was drawn in its place.
    followed: bool,
    /// A member has closed in the middle.
    broken: bool,
}

/// How far an operation is at a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Under way.
    Open,
    /// It went well.
    Done,
    /// It ended in an error.
    Failed(CompletionError),
    /// Its outcome is not observed: the member is gone, or has left the group.
    Lost,
}

/// Memory of an operation: buffer, where its part begins, bytes of that.
type Lent = Option<(BufId, usize, usize)>;

/// An operation at a member.
#[derive(Debug, Clone)]
pub struct Share {
    /// Group.
    pub group: usize,
    /// The member's rank.
    pub rank: usize,
    /// Which operation of the group; `None`: it joins.
    pub round: Option<usize>,
    /// How far it is.
    pub state: State,
    spec: RoundSpec,
    input: Lent,
    result: Lent,
    /// The input lies where the result goes.
    in_place: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Groups {
    /// Groups.
    pub list: Vec<Group>,
    /// Operations.
    pub shares: Vec<Share>,
    /// Under way.
    pub open: Vec<usize>,
    /// Groups that some member has not left, in their order. In a world that stands still applications look at them without end.
    kept: Vec<usize>,
}

impl Groups {
    /// Whether a member has learnt that its group cannot be made.
    pub(crate) fn some_failed(&self) -> bool {
        self.list.iter().any(|g| g.members.iter().any(|m| m.state == Membership::Failed))
    }
}

/// What a member gives.
fn given(group: usize, round: usize, rank: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill_message(mix((group as u64) << 40 | (round as u64) << 16 | rank as u64), &mut out);
    out
}

impl World {
    /// Makes the groups that the seed says.
    pub(crate) fn open_groups(&mut self) {
        let groups = self.cfg.collective.as_ref().map_or(0, |t| t.groups);
        (0..groups).for_each(|_| self.random_group());
    }

    /// A group that no member has joined yet; its number.
    pub fn open_group(&mut self, eps: &[usize], length: usize) -> usize {
        let new = |&ep: &usize| Member { ep, state: Membership::None, begun: 0, over: 0, id: None };
        let members = eps.iter().map(new).collect();
        self.groups.kept.push(self.groups.list.len());
        self.groups.list.push(Group { members, rounds: Vec::new(), length, followed: false, broken: false });
        self.groups.list.len() - 1
    }

    fn random_group(&mut self) {
        let Some(t) = &self.cfg.collective else { return };
        let length =
            if self.coll_rng.percent(15) { 0 } else { self.coll_rng.log_range(1, t.length) as usize };
        let there = |ep: &usize| self.is_there(self.owner(*ep));
        let mut from: Vec<usize> = (0..self.addresses.len()).filter(there).collect();
        let before = self.groups.list.last().map(|g| g.members.iter().map(|m| m.ep).collect::<Vec<_>>());
        let again = before.filter(|m| m.iter().all(there));
        let r = &mut self.coll_rng;
        // the same members in the same order is another group
        if let Some(eps) = again.filter(|_| r.percent(25)) {
            self.open_group(&eps, length);
            return;
        }
        if from.is_empty() {
            return;
        }
        let size = if r.percent(35) { from.len() } else { r.range(1, from.len() as u64) as usize };
        let eps: Vec<usize> = (0..size).map(|_| from.swap_remove(r.index(from.len()))).collect();
        self.open_group(&eps, length);
    }

    /// Whether a process is there to take part in anything.
    fn is_there(&self, p: usize) -> bool {
        let q = &self.procs[p];
        !q.killed && !q.app.exited && q.app.phase <= Phase::Draining
    }

    /// Whether an operation of a group may fail: a process of it is lost.
    pub(crate) fn may_fail(&self, group: usize) -> bool {
        let lost = |m: &Member| {
            let q = &self.procs[self.owner(m.ep)];
            q.killed || q.app.exited
        };
        let g = &self.groups.list[group];
        self.cfg.peers_may_be_lost || g.broken || g.members.iter().any(lost)
    }

    /// The most operations that a member still there has begun in a group; `None`: none of them has joined.
    fn reached(&self, group: usize) -> Option<usize> {
        let members = self.groups.list[group].members.iter();
        let joined = members.filter(|m| m.state != Membership::None && self.is_there(self.owner(m.ep)));
        joined.map(|m| m.begun).max()
    }

    /// Whether the member has joined every earlier group of the same members: all members must join them in the same
    /// order.
    fn is_next(&self, group: usize, rank: usize) -> bool {
        let eps = |g: usize| self.groups.list[g].members.iter().map(|m| m.ep);
        let before = (0..group).filter(|&g| eps(g).eq(eps(group)));
        before.into_iter().all(|g| self.groups.list[g].members[rank].state != Membership::None)
    }

    // ---- what members do ---------------------------------------------------------------------------------------

    /// A member joins; the number of the operation.
    pub fn join(&mut self, group: usize, rank: usize) -> usize {
        let p = self.owner(self.groups.list[group].members[rank].ep);
        self.with_engine(p, |w, e, now| w.post_join(p, e, now, group, rank))
    }

    /// A member begins its next operation in a group; the number of the operation at this member.
    pub fn begin_round(&mut self, group: usize, rank: usize, spec: RoundSpec) -> usize {
        let p = self.owner(self.groups.list[group].members[rank].ep);
        self.with_engine(p, |w, e, now| w.post_round(p, e, now, group, rank, Some(spec)))
    }

    /// All members join at once, and the group is made.
    pub fn make_group(&mut self, eps: &[usize]) -> usize {
        let group = self.open_group(eps, 0);
        for rank in 0..eps.len() {
            self.join(group, rank);
        }
        let made = |w: &World| w.groups.list[group].members.iter().all(|m| m.state == Membership::Joined);
        assert!(self.run_finely(5_000 * MS, made), "live: a group is not made: {}", self.describe());
        group
    }

    /// The only endpoint of a process is closed with all that is under way, and its memory may be reused at once.
    pub fn close_member(&mut self, group: usize, rank: usize) {
        let ep = self.groups.list[group].members[rank].ep;
        let p = self.owner(ep);
        self.with_engine(p, |w, e, now| {
            let id = w.procs[p].eps[ep % w.cfg.eps];
            e.close_endpoint(id, now);
            e.withdraw_sends(id, now);
            w.abandon_shares(p);
            w.groups.list[group].broken = true;
            w.groups.list[group].members[rank].state = Membership::Left;
            w.procs[p].app.phase = Phase::Closing;
            w.procs[p].app.next_step = w.now;
        });
    }

    /// How the engine of a member calls a group.
    pub fn group_id(&self, group: usize, rank: usize) -> GroupId {
        self.groups.list[group].members[rank].id.expect("simulator: it has joined")
    }

    fn post_join(&mut self, p: usize, engine: &mut Engine, now: Time, group: usize, rank: usize) -> usize {
        let eps: Vec<usize> = self.groups.list[group].members.iter().map(|m| m.ep).collect();
        let members: Vec<EndpointId> = eps.iter().map(|&ep| self.id_of(p, engine, ep)).collect();
        let ep = self.procs[p].eps[eps[rank] % self.cfg.eps];
        let cq = self.procs[p].cqs[self.coll_rng.index(self.procs[p].cqs.len())];
        let op = JoinOp { ep, members: &members, cq, context: self.oracle.next_context() };
        let id =
            engine.join(&op, now).unwrap_or_else(|e| panic!("live: p{p} cannot join group {group}: {e}"));
        let named = self.groups.list.iter().flat_map(|g| &g.members);
        assert!(
            named.filter(|m| self.owner(m.ep) == p).all(|m| m.id != Some(id)),
            "names: p{p} calls two groups {id:?}"
        );
        assert_eq!(engine.group_shape(id), Some((rank, eps.len())), "names: group {group} in p{p}");
        assert!((0..eps.len()).all(|i| engine.rank_in(id, members[i]) == Some(i)));
        let m = &mut self.groups.list[group].members[rank];
        (m.state, m.id) = (Membership::Joining, Some(id));
        let spec = RoundSpec::new(CollectiveKind::Barrier, 0);
        self.add_share(
            p,
            Share {
                group,
                rank,
                round: None,
                state: State::Open,
                spec,
                input: None,
                result: None,
                in_place: false,
            },
        )
    }

    fn add_share(&mut self, p: usize, s: Share) -> usize {
        let i = self.groups.shares.len();
        self.trace(|| format!("p{p} begins {i}: {s:?}"));
        self.note(0xc7 ^ (i as u64) << 8);
        self.groups.shares.push(s);
        self.groups.open.push(i);
        self.oracle.ops.push(Op::Share(i));
        self.procs[p].app.stirred();
        i
    }

    /// Memory for `len` bytes, somewhere in a buffer.
    fn lay_share(&mut self, len: usize, to: Use) -> (Lent, IoVec) {
        let at = self.coll_rng.index(24);
        let buf = self.memory.take(at + len);
        self.memory.lend(buf, to);
        (Some((buf, at, len)), IoVec::new(self.memory.ptr(buf).wrapping_add(at), len))
    }

    /// `spec`: what a script wants; otherwise what the group does, or something by chance.
    fn post_round(
        &mut self,
        p: usize,
        engine: &mut Engine,
        now: Time,
        group: usize,
        rank: usize,
        spec: Option<RoundSpec>,
    ) -> usize {
        let g = &mut self.groups.list[group];
        let (members, round) = (g.members.len(), g.members[rank].begun);
        if round == g.rounds.len() {
            let by_chance = |t: &Collective| t.round(&mut self.coll_rng, members);
            let spec = spec.or_else(|| self.cfg.collective.as_ref().map(by_chance));
            let spec = spec.expect("simulator: a script says what is done first");
            g.rounds.push(Round { spec, torn: false, outcome: None });
        }
        let r = &mut g.rounds[round];
        let spec = spec.unwrap_or(r.spec);
        r.torn |= spec != r.spec;
        let id = g.members[rank].id.expect("simulator: it has joined");
        let (gives, takes) = spec.extents(rank, members);
        let in_place = self.cfg.collective.as_ref().is_some_and(|t| self.coll_rng.percent(t.in_place));
        // what a member takes it may have to hand on
        let both = Use::Region { readable: true, writable: true };
        let nothing = IoVec::new(std::ptr::null_mut(), 0);
        let (mut input, mut result) = ((None, nothing), (None, nothing));
        if in_place {
            result = self.lay_share(gives.max(takes), both);
            input.1 = result.1;
        } else {
            if gives > 0 {
                input = self.lay_share(gives, Use::Send);
            }
            if takes > 0 || self.coll_rng.percent(20) {
                // also memory that nothing is to be written to
                result = self.lay_share(takes.max(self.coll_rng.clone().index(100)), both);
            }
        }
        if let (Some((buf, at, _)), true) = (if in_place { result.0 } else { input.0 }, gives > 0) {
            let bytes = given(group, round, rank, gives);
            self.memory.bytes_mut(buf)[at..at + gives].copy_from_slice(&bytes);
        }
        let by = &REDUCTIONS[spec.reduction];
        let op = CollectiveOp {
            group: id,
            kind: spec.kind,
            bytes: spec.bytes,
            datatype: by.datatype,
            op: by.op,
            input: input.1,
            result: result.1,
            context: self.oracle.next_context(),
            completion: true,
        };
        // SAFETY: the buffers are lent until the completion, and freed only with the world.
        if let Err(e) = unsafe { engine.collective(&op, now) } {
            panic!("live: p{p} cannot begin round {round} of group {group}: {e}: {op:?}");
        }
        self.groups.list[group].members[rank].begun += 1;
        let (input, result, round) = (input.0, result.0, Some(round));
        self.add_share(p, Share { group, rank, round, state: State::Open, spec, input, result, in_place })
    }

    /// The member gives the group up, in which nothing of it is under way.
    fn post_leave(&mut self, engine: &mut Engine, group: usize, rank: usize) {
        let m = &mut self.groups.list[group].members[rank];
        let id = m.id.expect("simulator: it has joined");
        let joining = m.state == Membership::Joining;
        m.state = Membership::Left;
        assert_eq!(engine.leave(id), Ok(()), "live: rank {rank} cannot leave group {group}");
        if joining && engine.group_shape(id).is_some() {
            // the group is still made, without a completion here; otherwise the completion is in its queue
            let own = |s: &Share| s.group == group && s.rank == rank;
            let share = self.groups.open.iter().copied().find(|&i| own(&self.groups.shares[i]));
            self.close_share(share.expect("simulator: it joins"), State::Lost);
        }
    }

    // ---- by chance ---------------------------------------------------------------------------------------------

    /// What an application does in its groups at a step. With `leads` it begins operations; otherwise it follows the
    /// others.
    pub(crate) fn app_collects(&mut self, p: usize, engine: &mut Engine, now: Time, leads: bool) {
        if self.groups.list.is_empty() {
            return;
        }
        let t = self.cfg.collective.clone();
        let (share, window) = t.as_ref().map_or((100, usize::MAX), |t| (t.share, t.window));
        if leads && !self.coll_rng.percent(share) {
            return;
        }
        let few = self.groups.shares.len() < SHARES_MAX && !self.memory.is_short();
        let leads = leads && few && !self.enough && self.cfg.alone.is_none_or(|a| a == p);
        let Groups { list, kept, .. } = &mut self.groups;
        kept.retain(|&g| list[g].members.iter().any(|m| m.state != Membership::Left));
        // one that leads draws for each group
        let groups = if leads { (0..list.len()).collect() } else { kept.clone() };
        for group in groups {
            for rank in 0..self.groups.list[group].members.len() {
                let m = &self.groups.list[group].members[rank];
                if self.owner(m.ep) != p || (leads && self.coll_rng.percent(30)) {
                    continue;
                }
                let (state, begun, over) = (m.state, m.begun, m.over);
                let length = if leads { self.groups.list[group].length } else { 0 };
                match state {
                    Membership::None
                        if (leads || self.reached(group).is_some()) && self.is_next(group, rank) =>
                    {
                        self.post_join(p, engine, now, group, rank);
                        if self.groups.list[group].length == 0 && self.coll_rng.percent(20) {
                            self.post_leave(engine, group, rank);
                        }
                    }
                    Membership::Joined
                        if begun < length.max(self.reached(group).unwrap_or(0)) && begun - over < window =>
                    {
                        self.post_round(p, engine, now, group, rank, None);
                    }
                    Membership::Joined | Membership::Failed if begun == over && leads => {
                        self.post_leave(engine, group, rank);
                        if !std::mem::replace(&mut self.groups.list[group].followed, true) {
                            self.random_group();
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// What is not over in the groups of a process.
    pub(crate) fn collecting(&self, p: usize) -> usize {
        let mut n = 0;
        for &group in &self.groups.kept {
            let g = &self.groups.list[group];
            for m in g.members.iter().filter(|m| self.owner(m.ep) == p) {
                n += match m.state {
                    Membership::None => usize::from(self.reached(group).is_some()),
                    Membership::Joining => 1,
                    Membership::Joined => self.reached(group).unwrap_or(0).max(m.begun) - m.over,
                    Membership::Failed => 0,
                    // it stays until the others have made the group: a closed endpoint takes no part in that
                    Membership::Left => usize::from(g.members.iter().any(|x| {
                        matches!(x.state, Membership::None | Membership::Joining)
                            && self.is_there(self.owner(x.ep))
                    })),
                };
            }
        }
        n
    }

    // ---- what came of it ---------------------------------------------------------------------------------------

    /// A completion of an operation of a group.
    pub(crate) fn on_collected(&mut self, p: usize, c: &Completion, i: usize) {
        let s = self.groups.shares[i].clone();
        let g = &self.groups.list[s.group];
        let m = &g.members[s.rank];
        assert_eq!(s.state, State::Open, "exactly once: operation {i} completed twice: {c:?}\n  {s:?}");
        assert_eq!(
            (c.kind, c.protocol),
            (CompletionKind::Collective, Protocol::Collective),
            "{c:?}\n  {s:?}"
        );
        assert_eq!((self.owner(m.ep), c.ep), (p, self.procs[p].eps[m.ep % self.cfg.eps]), "names: {c:?}");
        let torn = s.round.is_some_and(|r| g.rounds[r].torn);
        use CompletionError::{Mismatch, PeerClosed, PeerDied, PeerUnreachable};
        match c.error {
            None => {
                let (members, round) = (&g.members, s.round);
                let came = |m: &Member| round.map_or(m.state != Membership::None, |r| m.begun > r);
                assert!(
                    s.spec.kind != CollectiveKind::Barrier || members.iter().all(came),
                    "no false completion: not everybody has begun: {s:?}\n  {members:?}"
                );
                self.close_share(i, State::Done);
            }
            Some(e @ (PeerDied | PeerUnreachable | PeerClosed)) if self.may_fail(s.group) => {
                self.close_share(i, State::Failed(e));
            }
            Some(Mismatch) if torn => self.close_share(i, State::Failed(Mismatch)),
            Some(e) => panic!("live: operation {i} of group {} failed: {e:?}\n  {s:?}\n  {g:?}", s.group),
        }
    }

    /// What a member's result must be.
    fn outcome(&mut self, s: &Share, round: usize, takes: usize) -> Rc<[u8]> {
        let g = &mut self.groups.list[s.group];
        let members = g.members.len();
        let Round { spec, outcome, .. } = &mut g.rounds[round];
        let spec = *spec;
        let all = || (0..members).map(|rank| given(s.group, round, rank, spec.bytes));
        match spec.kind {
            _ if takes == 0 => Rc::new([]),
            CollectiveKind::Barrier => Rc::new([]),
            CollectiveKind::Broadcast { root } => given(s.group, round, root, spec.bytes).into(),
            CollectiveKind::Scatter { root } => {
                let parts = given(s.group, round, root, spec.bytes * members);
                parts[s.rank * spec.bytes..][..spec.bytes].into()
            }
            CollectiveKind::AllGather | CollectiveKind::Gather { .. } => {
                outcome.get_or_insert_with(|| all().flatten().collect()).clone()
            }
            CollectiveKind::AllReduce | CollectiveKind::Reduce { .. } => {
                let combine = |mut sum: Vec<u8>, next: Vec<u8>| {
                    (REDUCTIONS[spec.reduction].combine)(&mut sum, &next);
                    sum
                };
                let sum = || all().reduce(combine).unwrap_or_default().into();
                outcome.get_or_insert_with(sum).clone()
            }
        }
    }

    fn close_share(&mut self, i: usize, state: State) {
        self.groups.open.retain(|o| *o != i);
        self.groups.shares[i].state = state;
        let s = self.groups.shares[i].clone();
        let m = &mut self.groups.list[s.group].members[s.rank];
        let Some(round) = s.round else {
            m.state = match (state, m.state) {
                (_, Membership::Left) => Membership::Left,
                (State::Done, _) => Membership::Joined,
                (State::Failed(_), _) => Membership::Failed,
                (_, before) => before,
            };
            return;
        };
        m.over += 1;
        self.check_share(&s, i, round);
        for (lent, fill) in [(s.input, SCRIBBLE), (s.result, CANARY)] {
            if let Some((buf, ..)) = lent {
                let until = self.now + self.coll_rng.below(20 * MS);
                self.memory.give_back(buf, fill, until);
            }
        }
    }

    /// The result is there and nothing else was touched.
    fn check_share(&mut self, s: &Share, i: usize, round: usize) {
        let (gives, takes) = s.spec.extents(s.rank, self.groups.list[s.group].members.len());
        let torn = self.groups.list[s.group].rounds[round].torn;
        let outcome = (s.state == State::Done && !torn).then(|| self.outcome(s, round, takes));
        let gave = given(s.group, round, s.rank, gives);
        // buffer, where in it, what the engine may write, what must lie behind that
        let mut parts = Vec::new();
        if let Some((buf, at, _)) = s.input {
            parts.push((buf, at, 0, &gave[..]));
        }
        if let Some((buf, at, _)) = s.result {
            let behind = if s.in_place { &gave[takes.min(gives)..] } else { &[][..] };
            parts.push((buf, at, takes, behind));
        }
        for (buf, at, may, behind) in parts {
            let bytes = self.memory.bytes(buf);
            let (before, rest) = bytes.split_at(at);
            let (written, rest) = rest.split_at(may);
            let (kept, rest) = rest.split_at(behind.len());
            assert!(
                all(before, CANARY) && kept == behind && all(rest, CANARY),
                "fenced: operation {i} wrote beyond its result: {s:?}"
            );
            let Some(want) = outcome.as_ref().filter(|_| may > 0) else { continue };
            if let Some(x) = (0..may).find(|&x| written[x] != want[x]) {
                panic!(
                    "intact: byte {x} of {may} of the result of operation {i} is {:#04x} and must be {:#04x}: {s:?}",
                    written[x], want[x]
                );
            }
        }
    }

    /// The process is killed, or exits, or closes: the outcome of its operations is not observed.
    pub(crate) fn abandon_shares(&mut self, p: usize) {
        for i in self.groups.open.clone() {
            let s = &self.groups.shares[i];
            if self.owner(self.groups.list[s.group].members[s.rank].ep) == p {
                self.close_share(i, State::Lost);
            }
        }
    }

    /// After the liveness phase: nothing is missing.
    pub(crate) fn check_all_collected(&self) {
        if let Some(&i) = self.groups.open.first() {
            panic!("live: operation {i} of a group never completed: {:?}", self.groups.shares[i]);
        }
    }

    /// What is missing.
    pub(crate) fn describe_groups(&self) -> String {
        use std::fmt::Write;
        let (all, open) = (self.groups.shares.len(), &self.groups.open);
        if all == 0 {
            return String::new();
        }
        let mut s = format!("\n  {all} operations in groups, {} open", open.len());
        for &i in open.iter().take(8) {
            let share = &self.groups.shares[i];
            let _ =
                write!(s, "\n  operation {i}: {share:?} among {:?}", self.groups.list[share.group].members);
        }
        s
    }
}
