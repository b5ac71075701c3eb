//! Barriers over the nodes that live. Owns: how far this node is, and what it knows of the others.
//!
//! The root is the living node with the lowest rank. Each node reports to it how far it is; when all that live have
//! arrived, the root releases them. When a root dies, all report to the next one. That the barrier is over, the new root
//! sees from any node that was released, or from its own count.
//!
//! What this file returns are messages to be sent; it sends nothing.

use crate::word::Kind;

/// How far a node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    arrived: u64,
    passed: u64,
}

/// A message to a node: its kind, value, and what goes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// To which node.
    pub node: usize,
    /// Its kind.
    pub kind: Kind,
    /// See [`Kind`].
    pub value: u64,
    /// See [`Kind`].
    pub more: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Barrier {
    own: usize,
    known: Vec<Progress>,
    gone: Vec<bool>,
}

impl Barrier {
    /// At the beginning of a job.
    pub fn new(own: usize, nodes: usize) -> Self {
        Self { own, known: vec![Progress::default(); nodes], gone: vec![false; nodes] }
    }

    fn root(&self) -> usize {
        // this node lives
        self.gone.iter().position(|gone| !gone).unwrap_or(self.own)
    }

    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.gone.len()).filter(|node| *node != self.own && !self.gone[*node])
    }

    /// Barriers that this node has arrived at.
    pub fn arrived(&self) -> u64 {
        self.known[self.own].arrived
    }

    /// Barriers that this node has passed.
    pub fn passed(&self) -> u64 {
        self.known[self.own].passed
    }

    /// This node arrives at its next barrier.
    pub fn arrive(&mut self, out: &mut Vec<Message>) {
        self.known[self.own].arrived += 1;
        self.report(self.root(), out);
    }

    fn report(&mut self, to: usize, out: &mut Vec<Message>) {
        if to == self.own {
            return self.release(out);
        }
        let Progress { arrived, passed } = self.known[self.own];
        out.push(Message { node: to, kind: Kind::Arrived, value: arrived, more: passed });
    }

    /// As the root: goes on as far as all others are.
    fn release(&mut self, out: &mut Vec<Message>) {
        let own = self.known[self.own];
        let slowest = self.others().map(|node| self.known[node].arrived).min().unwrap_or(u64::MAX);
        let furthest = self.others().map(|node| self.known[node].passed).max().unwrap_or(0);
        let over = slowest.max(furthest).min(own.arrived);
        if over <= own.passed {
            return;
        }
        self.known[self.own].passed = over;
        let release = |node| Message { node, kind: Kind::Release, value: over, more: 0 };
        out.extend(self.others().map(release));
    }

    /// A node reports how far it is.
    pub fn reported(&mut self, node: usize, arrived: u64, passed: u64, out: &mut Vec<Message>) {
        let known = &mut self.known[node];
        known.arrived = known.arrived.max(arrived);
        known.passed = known.passed.max(passed.min(arrived));
        let known = *known;
        if self.root() == self.own {
            self.release(out);
        }
        // it has missed the release, because its root died
        let over = known.arrived.min(self.passed());
        if over > known.passed && !out.iter().any(|m| m.node == node && m.kind == Kind::Release) {
            out.push(Message { node, kind: Kind::Release, value: over, more: 0 });
        }
    }

    /// The root has released this node.
    pub fn released(&mut self, barrier: u64) {
        let own = &mut self.known[self.own];
        own.passed = own.passed.max(barrier.min(own.arrived));
    }

    /// A node that believes to be the root wants to know how far this one is.
    pub fn queried(&mut self, by: usize, out: &mut Vec<Message>) {
        self.report(by, out);
    }

    /// A node is gone.
    pub fn lose(&mut self, node: usize, out: &mut Vec<Message>) {
        let before = self.root();
        self.gone[node] = true;
        let root = self.root();
        if root == self.own {
            if before != root {
                out.extend(self.others().map(|node| Message { node, kind: Kind::Query, value: 0, more: 0 }));
            }
            self.release(out);
        } else if before != root && self.arrived() > 0 {
            self.report(root, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Nodes that send each other what they say, in order per pair.
    struct Net {
        nodes: Vec<Barrier>,
        dead: Vec<bool>,
        wires: VecDeque<(usize, Message)>,
    }

    impl Net {
        fn new(n: usize) -> Self {
            let nodes = (0..n).map(|own| Barrier::new(own, n)).collect();
            Self { nodes, dead: vec![false; n], wires: VecDeque::new() }
        }

        fn act(&mut self, node: usize, f: impl FnOnce(&mut Barrier, &mut Vec<Message>)) {
            let mut out = Vec::new();
            f(&mut self.nodes[node], &mut out);
            self.wires.extend(out.into_iter().map(|m| (node, m)));
        }

        fn run(&mut self, most: usize) {
            for _ in 0..most {
                let Some((from, m)) = self.wires.pop_front() else { return };
                if self.dead[m.node] {
                    continue;
                }
                self.act(m.node, |b, out| match m.kind {
                    Kind::Arrived => b.reported(from, m.value, m.more, out),
                    Kind::Release => b.released(m.value),
                    Kind::Query => b.queried(from, out),
                    _ => unreachable!(),
                });
            }
        }

        fn die(&mut self, node: usize) {
            self.dead[node] = true;
            for other in (0..self.nodes.len()).filter(|n| *n != node) {
                if !self.dead[other] {
                    self.act(other, |b, out| b.lose(node, out));
                }
            }
        }
    }

    #[test]
    fn a_barrier_is_passed_when_all_have_arrived() {
        for n in 1..6 {
            let mut net = Net::new(n);
            for round in 1..4 {
                for node in (0..n).rev() {
                    assert!(net.nodes.iter().all(|b| b.passed() < round));
                    net.act(node, Barrier::arrive);
                    net.run(usize::MAX);
                }
                assert!(net.nodes.iter().all(|b| b.passed() == round));
            }
        }
    }

    #[test]
    fn deaths_at_any_moment_hold_up_nobody_and_let_nobody_through() {
        for n in 2..6usize {
            for steps in 0..12 {
                for victims in 0..(1u32 << n) - 1 {
                    let mut net = Net::new(n);
                    let late = n - 1;
                    let first: Vec<usize> = (0..n - 1).collect();
                    for &node in &first {
                        net.act(node, Barrier::arrive);
                    }
                    net.run(steps.min(n));
                    for victim in (0..n).filter(|v| victims >> v & 1 == 1) {
                        let late_lives = !net.dead[late];
                        let passed = net.nodes.iter().zip(&net.dead).any(|(b, dead)| !dead && b.passed() > 0);
                        assert!(!(passed && late_lives), "passed without the last one");
                        net.die(victim);
                        net.run(steps);
                    }
                    if !net.dead[late] {
                        net.act(late, Barrier::arrive);
                    }
                    net.run(usize::MAX);
                    for (b, dead) in net.nodes.iter().zip(&net.dead) {
                        assert!(*dead || b.passed() == 1, "{n} nodes, {victims:b}, {steps} steps");
                    }
                }
            }
        }
    }

    #[test]
    fn a_root_that_dies_while_it_releases_leaves_the_rest_to_the_next() {
        for steps in 0..20 {
            let mut net = Net::new(5);
            for node in 0..5 {
                net.act(node, Barrier::arrive);
            }
            net.run(steps);
            net.die(0);
            net.run(3);
            net.die(1);
            net.run(usize::MAX);
            assert!((2..5).all(|node| net.nodes[node].passed() == 1), "{steps} steps");
        }
    }
}
