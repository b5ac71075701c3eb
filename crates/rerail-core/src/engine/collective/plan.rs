//! What a member of a group does in a collective operation: messages to and from other members, and work on memory in between.
//!
//! A plan is made by each member from its rank, the number of members and the sizes alone; the plans of all members fit
//! together when these do. Sources: barrier, all-gather: the dissemination algorithm (Hensgen, Finkel, Manber 1988) and that
//! of Bruck et al. 1997; all-reduce: recursive doubling; broadcast, reduce: binomial trees (all in Thakur, Rabenseifner, Gropp:
//! "Optimization of Collective Communication Operations in MPICH", 2005, §§ 4 to 8). Scatter and gather go straight between the
//! root and each member: every byte crosses the root's rails once, and none a third member's.

/// Memory that a plan works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Buffer {
    /// What the program gives.
    Input,
    /// Where the program wants the result.
    Result,
    /// The engine's own.
    Scratch,
}

/// A piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub buffer: Buffer,
    pub at: usize,
    pub len: usize,
}

/// One step. Messages of consecutive steps are under way at the same time; `Wait` is for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Send {
        to: usize,
        from: Place,
    },
    Recv {
        from: usize,
        into: Place,
    },
    Wait,
    Copy {
        from: Place,
        into: Place,
    },
    /// `into = into op from`.
    Reduce {
        from: Place,
        into: Place,
    },
}

/// The steps of one member.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    steps: Vec<Step>,
    /// Bytes of the engine's own memory that they need.
    scratch: usize,
}

fn input(at: usize, len: usize) -> Place {
    Place { buffer: Buffer::Input, at, len }
}

fn result(at: usize, len: usize) -> Place {
    Place { buffer: Buffer::Result, at, len }
}

fn scratch(at: usize, len: usize) -> Place {
    Place { buffer: Buffer::Scratch, at, len }
}

/// What the plans of one operation are made from: this member's rank, the number of members, and the bytes of each member's part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub rank: usize,
    pub members: usize,
    pub bytes: usize,
}

impl Shape {
    /// No member is done before all members have begun.
    pub fn barrier(self) -> Plan {
        let mut plan = Plan::default();
        let mut distance = 1;
        while distance < self.members {
            plan.send(self.after(distance), scratch(0, 0));
            plan.recv(self.before(distance), scratch(0, 0));
            plan.wait();
            distance *= 2;
        }
        plan
    }

    /// The root's input becomes the result of every member.
    pub fn broadcast(self, root: usize) -> Plan {
        let mut plan = Plan::default();
        let relative = self.relative(root);
        let source = if relative == 0 { input(0, self.bytes) } else { result(0, self.bytes) };
        let mut mask = 1;
        while mask < self.members {
            if relative & mask != 0 {
                plan.recv(self.absolute(relative - mask, root), source);
                plan.wait();
                break;
            }
            mask <<= 1;
        }
        mask >>= 1;
        while mask > 0 {
            if relative + mask < self.members {
                plan.send(self.absolute(relative + mask, root), source);
            }
            mask >>= 1;
        }
        plan.wait();
        plan
    }

    /// The inputs of all members, combined, become the root's result.
    pub fn reduce(self, root: usize) -> Plan {
        let mut plan = Plan::default();
        let relative = self.relative(root);
        let sum = if relative == 0 {
            plan.scratch = self.bytes;
            result(0, self.bytes)
        } else {
            plan.scratch = 2 * self.bytes;
            scratch(self.bytes, self.bytes)
        };
        let incoming = scratch(0, self.bytes);
        plan.copy(input(0, self.bytes), sum);
        let mut mask = 1;
        while mask < self.members {
            if relative & mask != 0 {
                plan.send(self.absolute(relative - mask, root), sum);
                break;
            }
            if relative + mask < self.members {
                plan.recv(self.absolute(relative + mask, root), incoming);
                plan.wait();
                plan.reduce(incoming, sum);
            }
            mask <<= 1;
        }
        plan.wait();
        plan
    }

    /// The inputs of all members, combined, become the result of every member, with the same bits: both partners of an
    /// exchange put the value of the lower rank on the left.
    pub fn all_reduce(self) -> Plan {
        let mut plan = Plan { scratch: self.bytes, ..Plan::default() };
        let (mut mine, mut theirs) = (result(0, self.bytes), scratch(0, self.bytes));
        plan.copy(input(0, self.bytes), mine);
        let exchanging = 1 << self.members.ilog2();
        let extra = self.members - exchanging;
        // the first `2 * extra` members go in pairs, of which the higher one exchanges
        let paired = self.rank < 2 * extra;
        if paired && self.rank % 2 == 0 {
            plan.send(self.rank + 1, mine);
            plan.wait();
            plan.recv(self.rank + 1, mine);
            plan.wait();
            return plan;
        }
        if paired {
            plan.recv(self.rank - 1, theirs);
            plan.wait();
            (mine, theirs) = plan.combine(true, mine, theirs);
        }
        let place = if paired { self.rank / 2 } else { self.rank - extra };
        let mut mask = 1;
        while mask < exchanging {
            let at = place ^ mask;
            let partner = if at < extra { 2 * at + 1 } else { at + extra };
            plan.recv(partner, theirs);
            plan.send(partner, mine);
            plan.wait();
            (mine, theirs) = plan.combine(partner < self.rank, mine, theirs);
            mask <<= 1;
        }
        if paired {
            plan.send(self.rank - 1, mine);
            plan.wait();
        }
        if mine.buffer != Buffer::Result {
            plan.copy(mine, result(0, self.bytes));
        }
        plan
    }

    /// The inputs of all members, in the order of the ranks, become the result of every member.
    pub fn all_gather(self) -> Plan {
        let mut plan = self.gather_around();
        plan.steps.insert(0, Step::Copy { from: input(0, self.bytes), into: scratch(0, self.bytes) });
        let (own, behind) = (self.rank * self.bytes, (self.members - self.rank) * self.bytes);
        plan.copy(scratch(0, behind), result(own, behind));
        plan.copy(scratch(behind, own), result(0, own));
        plan
    }

    /// The parts of all members in the scratch memory, beginning with one's own, which is there already, and going around.
    pub fn gather_around(self) -> Plan {
        let mut plan = Plan { scratch: self.members * self.bytes, ..Plan::default() };
        let mut have = 1;
        while have < self.members {
            let count = have.min(self.members - have);
            plan.send(self.before(have), scratch(0, count * self.bytes));
            plan.recv(self.after(have), scratch(have * self.bytes, count * self.bytes));
            plan.wait();
            have += count;
        }
        plan
    }

    /// The parts of the root's input become the results of the members, in the order of the ranks.
    pub fn scatter(self, root: usize) -> Plan {
        let mut plan = Plan::default();
        if self.rank == root {
            for to in self.others() {
                plan.send(to, input(to * self.bytes, self.bytes));
            }
            // the result may be where the input is: what is under way must not change
            plan.wait();
            plan.copy(input(root * self.bytes, self.bytes), result(0, self.bytes));
        } else {
            plan.recv(root, result(0, self.bytes));
            plan.wait();
        }
        plan
    }

    /// The members' inputs, in the order of the ranks, become the root's result.
    pub fn gather(self, root: usize) -> Plan {
        let mut plan = Plan::default();
        if self.rank == root {
            // before anything arrives, because the result may be where the input is
            plan.copy(input(0, self.bytes), result(root * self.bytes, self.bytes));
            for from in self.others() {
                plan.recv(from, result(from * self.bytes, self.bytes));
            }
        } else {
            plan.send(root, input(0, self.bytes));
        }
        plan.wait();
        plan
    }

    /// A message from this member to every other member.
    pub fn tell(self) -> Plan {
        let mut plan = Plan::default();
        for to in self.others() {
            plan.send(to, scratch(0, 0));
        }
        plan.wait();
        plan
    }

    /// All other members, beginning behind this one, so that not all members begin with the same one.
    fn others(self) -> impl Iterator<Item = usize> {
        (1..self.members).map(move |distance| self.after(distance))
    }

    fn after(self, distance: usize) -> usize {
        (self.rank + distance) % self.members
    }

    fn before(self, distance: usize) -> usize {
        (self.rank + self.members - distance) % self.members
    }

    fn relative(self, root: usize) -> usize {
        (self.rank + self.members - root) % self.members
    }

    fn absolute(self, relative: usize, root: usize) -> usize {
        (relative + root) % self.members
    }
}

impl Plan {
    /// The step in place `at`; `None`: there are no more.
    pub fn step(&self, at: usize) -> Option<Step> {
        self.steps.get(at).copied()
    }

    /// How many steps there are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Bytes of the engine's own memory that the steps need.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    fn send(&mut self, to: usize, from: Place) {
        self.steps.push(Step::Send { to, from });
    }

    fn recv(&mut self, from: usize, into: Place) {
        self.steps.push(Step::Recv { from, into });
    }

    fn wait(&mut self) {
        self.steps.push(Step::Wait);
    }

    fn copy(&mut self, from: Place, into: Place) {
        self.steps.push(Step::Copy { from, into });
    }

    fn reduce(&mut self, from: Place, into: Place) {
        self.steps.push(Step::Reduce { from, into });
    }

    /// Combines both, with `theirs` on the left or on the right; returns where the outcome is, and the place that is free.
    fn combine(&mut self, theirs_left: bool, mine: Place, theirs: Place) -> (Place, Place) {
        let (into, from) = if theirs_left { (theirs, mine) } else { (mine, theirs) };
        self.reduce(from, into);
        (into, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    /// Bytes of a member's part.
    const PART: usize = 3;

    struct Member {
        plan: Plan,
        next: usize,
        buffers: [Vec<u8>; 3],
        /// The result lies where the input is.
        in_place: bool,
        /// Receives that have not got their message.
        open: Vec<(usize, Place)>,
        /// Messages that no member has taken.
        sent: usize,
    }

    impl Member {
        fn slice(&mut self, p: Place) -> &mut [u8] {
            let buffer = if self.in_place && p.buffer == Buffer::Input { Buffer::Result } else { p.buffer };
            &mut self.buffers[buffer as usize][p.at..p.at + p.len]
        }
    }

    /// Lets all members carry out their plans, with messages that stay in order between two of them, and are read from their sender's
    /// memory when they are taken; returns their results. The combination is not commutative, and writes down its operands' order:
    /// `a op b` is `(2a + b) mod 251`.
    fn play(members: usize, plan: impl Fn(Shape) -> Plan, input: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
        try_play(members, false, plan, input)
            .unwrap_or_else(|rank| panic!("{rank} of {members} waits for ever"))
    }

    /// The same, or the rank of a member that waits for ever.
    fn try_play(
        members: usize,
        in_place: bool,
        plan: impl Fn(Shape) -> Plan,
        input: impl Fn(usize) -> Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, usize> {
        let mut all: Vec<Member> = (0..members)
            .map(|rank| {
                let plan = plan(Shape { rank, members, bytes: PART });
                let mut result = if in_place { input(rank) } else { Vec::new() };
                result.resize(members * PART, 0);
                let buffers = [input(rank), result, vec![0; plan.scratch]];
                Member { plan, next: 0, buffers, in_place, open: Vec::new(), sent: 0 }
            })
            .collect();
        let mut wires: HashMap<(usize, usize), VecDeque<Place>> = HashMap::new();
        loop {
            let mut moved = false;
            for rank in 0..members {
                let mut still = Vec::new();
                for (from, into) in std::mem::take(&mut all[rank].open) {
                    match wires.get_mut(&(from, rank)).and_then(VecDeque::pop_front) {
                        Some(message) => {
                            assert_eq!(message.len, into.len, "{rank} of {members} from {from}");
                            let bytes = all[from].slice(message).to_vec();
                            all[rank].slice(into).copy_from_slice(&bytes);
                            all[from].sent -= 1;
                            moved = true;
                        }
                        None => still.push((from, into)),
                    }
                }
                let m = &mut all[rank];
                m.open = still;
                while let Some(&step) = m.plan.steps.get(m.next) {
                    match step {
                        Step::Wait if !m.open.is_empty() || m.sent > 0 => break,
                        Step::Wait => {}
                        Step::Send { to, from } => {
                            wires.entry((rank, to)).or_default().push_back(from);
                            m.sent += 1;
                        }
                        Step::Recv { from, into } => m.open.push((from, into)),
                        Step::Copy { from, into } => {
                            let bytes = m.slice(from).to_vec();
                            m.slice(into).copy_from_slice(&bytes);
                        }
                        Step::Reduce { from, into } => {
                            let right = m.slice(from).to_vec();
                            for (l, r) in m.slice(into).iter_mut().zip(right) {
                                *l = ((2 * u32::from(*l) + u32::from(r)) % 251) as u8;
                            }
                        }
                    }
                    m.next += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        if let Some(stuck) = all.iter().position(|m| m.next < m.plan.steps.len() || !m.open.is_empty()) {
            return Err(stuck);
        }
        assert!(wires.values().all(VecDeque::is_empty), "a message of {members} members is left over");
        Ok(all.into_iter().map(|mut m| std::mem::take(&mut m.buffers[Buffer::Result as usize])).collect())
    }

    fn part(rank: usize) -> Vec<u8> {
        vec![rank as u8 + 1, 100 + rank as u8, 7]
    }

    fn everybodys(members: usize) -> Vec<u8> {
        (0..members).flat_map(part).collect()
    }

    #[test]
    fn a_broadcast_reaches_everybody() {
        for members in 1..20 {
            for root in 0..members {
                let results = play(members, |s| s.broadcast(root), part);
                for (rank, r) in results.iter().enumerate() {
                    assert!(rank == root || r[..PART] == part(root), "{rank} of {members} from {root}");
                }
            }
        }
    }

    #[test]
    fn what_is_gathered_is_in_the_order_of_the_ranks() {
        for members in 1..20 {
            assert!(play(members, Shape::all_gather, part).iter().all(|r| *r == everybodys(members)));
            for root in 0..members {
                assert_eq!(play(members, |s| s.gather(root), part)[root], everybodys(members));
            }
        }
    }

    #[test]
    fn a_scatter_gives_each_its_part() {
        for members in 1..20 {
            for root in 0..members {
                let results = play(members, |s| s.scatter(root), |_| everybodys(members));
                for (rank, r) in results.iter().enumerate() {
                    assert_eq!(r[..PART], part(rank));
                }
            }
        }
    }

    #[test]
    fn a_reduction_takes_every_input_once_and_an_all_reduce_gives_all_the_same_bits() {
        for members in 1..20 {
            let all = play(members, Shape::all_reduce, part);
            assert!(all.iter().all(|r| r == &all[0]), "of {members}");
            // an input of one member changes the result, whichever member it is
            for odd in 0..members {
                let input = |rank| if rank == odd { vec![250, 250, 250] } else { part(rank) };
                assert_ne!(play(members, Shape::all_reduce, input)[0], all[0], "{odd} of {members}");
                for root in [0, members / 2, members - 1] {
                    let usual = &play(members, |s| s.reduce(root), part)[root];
                    assert_ne!(play(members, |s| s.reduce(root), input)[root], *usual, "{odd} of {members}");
                }
            }
        }
    }

    #[test]
    fn the_result_may_lie_where_the_input_is() {
        for members in 1..20 {
            let play = |plan: &dyn Fn(Shape) -> Plan, input: &dyn Fn(usize) -> Vec<u8>| {
                try_play(members, true, plan, input).expect("no member waits for ever")
            };
            assert!(play(&Shape::all_gather, &part).iter().all(|r| *r == everybodys(members)));
            assert_eq!(play(&Shape::all_reduce, &part), super::tests::play(members, Shape::all_reduce, part));
            for root in 0..members {
                assert_eq!(play(&|s| s.gather(root), &part)[root], everybodys(members));
                let scattered = play(&|s| s.scatter(root), &|_| everybodys(members));
                assert!(scattered.iter().enumerate().all(|(rank, r)| r[..PART] == part(rank)), "from {root}");
                let reduced = super::tests::play(members, |s| s.reduce(root), part);
                assert_eq!(play(&|s| s.reduce(root), &part)[root], reduced[root]);
            }
        }
    }

    #[test]
    fn nobody_leaves_a_barrier_before_all_have_come() {
        for members in 2..20 {
            play(members, Shape::barrier, part);
            // a member that does not come delays all others
            for absent in 0..members {
                let came = |s: Shape| if s.rank == absent { Plan::default() } else { s.barrier() };
                assert!(
                    try_play(members, false, came, part).is_err(),
                    "{absent} of {members} was not missed"
                );
            }
        }
    }
}
