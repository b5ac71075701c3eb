//! Hot spots of a fabric: how fast processes communicate over it in patterns, with one lane and with several.
//!
//! One process for each host, each with the engine of the provider. A step of a pattern is a world of its own, so steps can
//! run at the same time and say nothing about each other. Source: A. Vishnu and others, "Hot-Spot Avoidance With
//! Multi-Pathing Over InfiniBand" (CCGrid 2007): displaced ring communication, and Alltoall personalized.

use crate::app::{RecvSpec, SendSpec};
use crate::fabric::routing::{Flow, Routing};
use crate::fabric::shares::shares;
use crate::fabric::topology::{LinkId, Topology};
use crate::fabric::{Fabric, FabricSpec};
use crate::link::{MS, SEC, US};
use crate::rng::Rng;
use crate::world::one_lane;
use crate::world::{Config, Family, NetSpec, World};
use rerail_core::{Options, Policy};
use std::collections::VecDeque;

/// Latency of a network between two hosts at one switch.
const LATENCY_NS: u64 = 5 * US;
/// Kernel's send and receive buffer of a connection.
const BUFFERS_BYTES: (usize, usize) = (256 * 1024, 512 * 1024);
/// Connecting takes at most this long, and a step after it.
const CONNECT_NS_MAX: u64 = 5 * SEC;
/// See [`CONNECT_NS_MAX`].
const STEP_NS_MAX: u64 = 60 * SEC;
/// Messages of a pair that are under way at once.
const WINDOW_MESSAGES: usize = 4;
/// Time between two looks at what has arrived.
const LOOK_NS: u64 = 20 * US;
/// Permutations that are drawn.
const DRAWS: usize = 16;

/// Which processes communicate with which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Displaced ring: in step d every process sends to the one d places further on.
    Ring,
    /// Every process sends to all others, in one step.
    Alltoall,
    /// Every process sends to one other and receives from one other, drawn anew in each step.
    Permutation,
    /// Several processes send to one: 2, 4, 8 and so on, and in the last step all others.
    Incast,
}

impl Pattern {
    /// All of them, with their names.
    pub const NAMES: [(&'static str, Pattern); 4] = [
        ("ring", Pattern::Ring),
        ("alltoall", Pattern::Alltoall),
        ("permutation", Pattern::Permutation),
        ("incast", Pattern::Incast),
    ];

    /// The number of each step, and what it means: a displacement, a draw, or the senders of an incast.
    pub fn steps(self, hosts: usize) -> Vec<usize> {
        match self {
            Pattern::Ring => (1..hosts).collect(),
            Pattern::Alltoall => vec![0],
            Pattern::Permutation => (0..DRAWS).collect(),
            Pattern::Incast => {
                let powers = (1..).map(|x| 1 << x).take_while(|senders| *senders < hosts - 1);
                powers.chain([hosts - 1]).collect()
            }
        }
    }

    /// Senders and receivers of a step.
    fn pairs(self, hosts: usize, step: usize, seed: u64) -> Vec<(usize, usize)> {
        match self {
            Pattern::Ring => (0..hosts).map(|i| (i, (i + step) % hosts)).collect(),
            // in the order of the ring, as MPI libraries do it
            Pattern::Alltoall => {
                (1..hosts).flat_map(|d| (0..hosts).map(move |i| (i, (i + d) % hosts))).collect()
            }
            Pattern::Permutation => {
                // one cycle through all, in an order that is drawn: no process sends to itself
                let mut order: Vec<usize> = (0..hosts).collect();
                let mut r = Rng::new(seed, 0x9e00 + step as u64);
                (1..hosts).rev().for_each(|i| order.swap(i, r.index(i + 1)));
                (0..hosts).map(|i| (order[i], order[(i + 1) % hosts])).collect()
            }
            // evenly spread over the fabric
            Pattern::Incast => (1..=step).map(|i| (1 + (i - 1) * (hosts - 1) / step, 0)).collect(),
        }
    }
}

/// Most processes that have an engine each: those of 1,024 take 8 GB.
const ENGINES_MAX: usize = 2048;

/// How a step is found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// The engine sends messages in virtual time.
    Engine,
    /// Max-min fair shares of the lanes: no engine, no policy, and pairs send all the time.
    Flows,
}

/// What is tried.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The fabric.
    pub topology: Topology,
    /// How it leads.
    pub routing: Routing,
    /// Rate of every link, in Mbit/s.
    pub mbps: u64,
    /// Processes, each on a host of its own.
    pub hosts: usize,
    /// The pattern.
    pub pattern: Pattern,
    /// How steps are found out.
    pub model: Model,
    /// Lanes of each path.
    pub lanes: u8,
    /// See [`Policy`].
    pub policy: Policy,
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages of each pair that are measured.
    pub messages: usize,
    /// Draws hashes, tables and permutations.
    pub seed: u64,
}

/// What came of a step.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Megabytes per second that each process sent, by its number; of an incast those that send.
    pub rates: Vec<f64>,
    /// Share of its capacity that each link inside the fabric carried until the slowest pair was done, of those that
    /// carried anything.
    pub loads: Vec<(LinkId, f64)>,
    /// Connections that were open at its end.
    pub connections: usize,
    /// Connections that were given up for others, since the beginning.
    pub replaced: u64,
    /// Lanes that left a crowded route, since the beginning.
    pub moved: u64,
}

impl Outcome {
    /// Mean of the processes' rates.
    pub fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }

    /// The slowest process.
    pub fn slowest(&self) -> f64 {
        self.rates.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

impl Trial {
    /// Checks that there is room for it.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        if !(2..=self.topology.hosts()).contains(&self.hosts) {
            return Err(format!(
                "{} hosts do not fit: {} has ports for 2 to {}",
                self.hosts,
                self.topology,
                self.topology.hosts()
            ));
        }
        if self.model == Model::Engine && self.hosts > ENGINES_MAX {
            return Err(format!(
                "{} engines are too many: {ENGINES_MAX} run, more hosts need the model of flows",
                self.hosts
            ));
        }
        Ok(())
    }

    /// Runs a step of the pattern.
    pub fn step(&self, step: usize) -> Outcome {
        let pairs = self.pattern.pairs(self.hosts, step, self.seed);
        match self.model {
            Model::Engine => self.run(&pairs),
            Model::Flows => self.share(&pairs),
        }
    }

    /// What one pair has when it is alone, across the fabric and with one lane: the most that each could have.
    pub fn alone(&self) -> f64 {
        let alone = Self { lanes: 1, ..self.clone() };
        match self.model {
            Model::Engine => alone.run(&[(0, self.hosts / 2)]).mean(),
            Model::Flows => alone.share(&[(0, self.hosts / 2)]).mean(),
        }
    }

    fn fabric(&self) -> FabricSpec {
        let (mbps, ports_mbps) = (self.mbps, self.mbps);
        FabricSpec { topology: self.topology, routing: self.routing, mbps, ports_mbps, salt: self.seed }
    }

    /// Without an engine: the first connection of each pair is its first lane, and so on.
    fn share(&self, pairs: &[(usize, usize)]) -> Outcome {
        let lanes = usize::from(self.lanes);
        let flow = |number: usize| {
            let ((src, dst), lane) = (pairs[number / lanes], (number % lanes) as u32);
            Flow { src, dst, ports: number as u64, lane }
        };
        let flows: Vec<Flow> = (0..pairs.len() * lanes).map(flow).collect();
        let found = shares(&Fabric::new(&self.fabric()), &flows);
        let mut rates = vec![0.0; self.hosts];
        for (flow, share) in flows.iter().zip(&found.flows) {
            rates[flow.src] += share * self.mbps as f64 / 8.0;
        }
        let inside = (0..).map(LinkId).zip(found.links).skip(self.topology.hosts());
        Outcome {
            rates: rates.into_iter().filter(|rate| *rate > 0.0).collect(),
            loads: inside.filter(|(_, load)| *load > 0.0).collect(),
            connections: flows.len(),
            replaced: 0,
            moved: 0,
        }
    }

    fn world(&self) -> World {
        let mut cfg = Config::quiet(self.seed, 1);
        cfg.nets = vec![NetSpec { latency_ns: LATENCY_NS, mbps: self.mbps, mtu: 9000, family: Family::V4 }];
        cfg.hosts = vec![vec![0]; self.hosts];
        cfg.procs = (0..self.hosts).collect();
        cfg.fabrics = vec![Some(self.fabric())];
        (cfg.sndbuf, cfg.rcvbuf) = BUFFERS_BYTES;
        // the engine's promises are checked by seeds; here only the bytes of messages are
        (cfg.chop, cfg.check_every) = (0, 0);
        cfg.options = vec![Options { lanes: self.lanes, policy: self.policy, ..one_lane() }];
        World::new(cfg)
    }

    /// Sends so many messages from each pair's first process to its second, a few at a time, and waits for all.
    fn exchange(w: &mut World, pairs: &[(usize, usize)], messages: usize, bytes: usize) {
        let limit = w.now + STEP_NS_MAX;
        let mut under_way: Vec<VecDeque<u64>> = vec![VecDeque::new(); pairs.len()];
        let mut left: Vec<usize> = vec![messages; pairs.len()];
        loop {
            for _ in 0..WINDOW_MESSAGES {
                for (i, &(src, dst)) in pairs.iter().enumerate() {
                    let (under_way, left) = (&mut under_way[i], &mut left[i]);
                    under_way.retain(|id| w.oracle.msgs[*id as usize].taken.is_none());
                    if under_way.len() < WINDOW_MESSAGES && *left > 0 {
                        *left -= 1;
                        w.recv(RecvSpec { src: Some(src), ..RecvSpec::class(dst, 1, bytes) });
                        under_way.push_back(w.send_soon(SendSpec::tagged(src, dst, 1, bytes)));
                    }
                }
            }
            if under_way.iter().all(VecDeque::is_empty) {
                return;
            }
            assert!(w.now < limit, "live: a step does not end: {}", w.describe());
            w.run_for(LOOK_NS);
        }
    }

    fn run(&self, pairs: &[(usize, usize)]) -> Outcome {
        let mut w = self.world();
        Self::exchange(&mut w, pairs, 1, 64);
        let limit = w.now + CONNECT_NS_MAX;
        let lanes = usize::from(self.lanes);
        let connected = |w: &World| {
            let paths = (0..w.procs.len()).flat_map(|p| w.paths(p));
            paths.filter(|x| x.peer_name != 0).all(|x| x.streams >= lanes)
        };
        while !connected(&w) {
            assert!(w.now < limit, "live: not all lanes have a stream: {}", w.describe());
            w.run_for(MS);
        }
        // the first message of a pair lets the rates of its lanes be measured, as the first rounds of a benchmark do
        Self::exchange(&mut w, pairs, 1, self.bytes);
        w.run_for(5 * MS);
        let loads = |w: &World| -> Vec<(LinkId, u64)> {
            w.nets[0].fabric().map_or_else(Vec::new, |f| f.loads().collect())
        };
        let (begin, first, before) = (w.now, w.oracle.msgs.len(), loads(&w));
        Self::exchange(&mut w, pairs, self.messages, self.bytes);
        let measured = &w.oracle.msgs[first..];
        let took_ns = measured.iter().map(|m| m.times.1 - begin).max().unwrap_or(0);
        let mut sent = vec![(0_u64, 0_u64); self.hosts];
        for m in measured {
            let (bytes, ns) = &mut sent[m.src];
            *bytes += m.len as u64;
            *ns = (*ns).max(m.times.1 - begin);
        }
        let capacity = took_ns as f64 * self.mbps as f64 / 8_000.0;
        let inside = self.topology.hosts() as u32;
        Outcome {
            rates: sent
                .iter()
                .filter(|s| s.0 > 0)
                .map(|(bytes, ns)| *bytes as f64 * 1_000.0 / *ns as f64)
                .collect(),
            loads: loads(&w)
                .into_iter()
                .zip(before)
                .map(|((id, after), (_, before))| (id, (after - before) as f64 / capacity))
                .filter(|(id, load)| id.0 >= inside && *load > 0.0)
                .collect(),
            connections: w.procs.iter().map(|p| p.streams.len()).sum::<usize>() / 2,
            replaced: (0..self.hosts).map(|p| w.counters(p).streams_replaced).sum(),
            moved: (0..self.hosts).map(|p| w.counters(p).lanes_moved).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::topology::PORTS_144;

    #[test]
    fn patterns_have_the_pairs_that_they_promise() {
        assert_eq!(Pattern::Ring.steps(5), [1, 2, 3, 4]);
        assert_eq!(Pattern::Incast.steps(9), [2, 4, 8]);
        assert_eq!(Pattern::Incast.steps(12), [2, 4, 8, 11]);
        assert_eq!(Pattern::Ring.pairs(4, 3, 0), [(0, 3), (1, 0), (2, 1), (3, 2)]);
        assert_eq!(Pattern::Alltoall.pairs(9, 0, 0).len(), 72);
        for (_, pattern) in Pattern::NAMES {
            for step in pattern.steps(9) {
                let pairs = pattern.pairs(9, step, 1);
                assert!(pairs.iter().all(|(a, b)| a != b), "{pattern:?} {step}: {pairs:?}");
                let mut receivers: Vec<usize> = pairs.iter().map(|p| p.1).collect();
                let mut senders: Vec<usize> = pairs.iter().map(|p| p.0).collect();
                for list in [&mut receivers, &mut senders] {
                    list.sort_unstable();
                    list.dedup();
                }
                let many = if pattern == Pattern::Incast { (step, 1) } else { (9, 9) };
                assert_eq!((senders.len(), receivers.len()), many, "{pattern:?} {step}");
            }
        }
        let draw = |step| Pattern::Permutation.pairs(9, step, 1);
        assert_ne!(draw(0), draw(1));
    }

    /// The finding of the HSAM paper: with one lane routes meet on a link and halve each other; four lanes leave the hot spot.
    #[test]
    fn a_hot_spot_halves_one_lane_and_not_four() {
        let trial = |lanes| Trial {
            topology: PORTS_144,
            routing: Routing::Ecmp,
            mbps: 1_000,
            hosts: 24,
            pattern: Pattern::Ring,
            model: Model::Engine,
            lanes,
            policy: Policy::Adaptive,
            bytes: 1 << 20,
            messages: 12,
            seed: 1,
        };
        let alone = trial(1).alone();
        assert!((110.0..125.0).contains(&alone), "a pair alone has the rate of its link: {alone}");
        let (one, four) = (trial(1).step(12), trial(4).step(12));
        assert!(one.slowest() < 0.55 * alone, "no two connections met on a link: {:?}", one.rates);
        assert!(four.mean() > 1.1 * one.mean(), "{} against {}", four.mean(), one.mean());
        assert!(four.slowest() > 1.1 * one.slowest(), "{:?}", four.rates);
        let crowded = |o: &Outcome| o.loads.iter().map(|l| l.1).fold(0.0, f64::max);
        assert!(crowded(&one) > 0.9 && one.loads.iter().all(|l| l.1 <= 1.01), "{:?}", one.loads);
        // what fair shares of the same routes come to, the engine comes to, but for its beginning and its end
        let fair = |lanes| Trial { model: Model::Flows, ..trial(lanes) }.step(12).mean();
        assert!((0.85..1.05).contains(&(one.mean() / fair(1))), "{} and {}", one.mean(), fair(1));
        assert!((0.8..1.1).contains(&(four.mean() / fair(4))), "{} and {}", four.mean(), fair(4));
        // within a block no link inside is used
        assert!(trial(1).run(&[(0, 1)]).loads.is_empty());
    }
}
