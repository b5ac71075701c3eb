//! How long an Alltoall stands still when a rail goes dark in the middle of it.
//!
//! `cargo run --release -p rerail-sim --example alltoall_dark [-- PROCESSES…]`
//!
//! In the simulator: every process on a host of its own, two rails of 10 Gbit/s, 20 µs. The processes exchange messages with all others, again and
//! again, *in pairs* (process p with p XOR k in step k, as MPICH does with large messages) or *at once*; at a random moment a rail is dark
//! from then on, of one host or of all. Virtual time: the longest exchange, less a usual one; median and longest of the cuts. Processors
//! are never the bottleneck here, as they are with real ranks.

use rerail_sim::app::{RecvSpec, SendSpec};
use rerail_sim::fault::Fault;
use rerail_sim::link::MS;
use rerail_sim::world::{Config, World};

/// Cuts of each kind.
const CUTS: u64 = 25;
/// Virtual time that anything may take.
const NEVER_NS: u64 = 10_000 * MS;
/// Exchanges of each phase before the cut, and after it.
const EXCHANGES: (u64, u64) = (20, 40);

/// Where one process is, since when, and what its exchanges took.
struct Rank {
    exchange: u64,
    step: usize,
    since: u64,
    times: Vec<u64>,
}

/// The partners of each step.
fn plan(p: usize, n: usize, in_pairs: bool) -> Vec<Vec<usize>> {
    if in_pairs { (1..n).map(|k| vec![p ^ k]).collect() } else { vec![(0..n).filter(|q| *q != p).collect()] }
}

/// Messages from one process to another that were sent, and how many of them the receiver has waited for.
#[derive(Clone, Default)]
struct Lane {
    ids: Vec<u64>,
    waited: usize,
}

struct Exchange {
    w: World,
    len: usize,
    plans: Vec<Vec<Vec<usize>>>,
    ranks: Vec<Rank>,
    /// By sender and receiver.
    lanes: Vec<Vec<Lane>>,
}

/// Whether what process `p` waits for in its step is there.
fn is_ready(w: &World, lanes: &[Vec<Lane>], partners: &[usize], p: usize) -> bool {
    partners.iter().all(|&q| {
        let lane = &lanes[q][p];
        lane.ids.get(lane.waited).is_some_and(|&id| w.oracle.msgs[id as usize].taken.is_some())
    })
}

impl Exchange {
    fn new(seed: u64, n: usize, len: usize, in_pairs: bool) -> Exchange {
        let mut cfg = Config::quiet(seed, 2);
        cfg.hosts = vec![vec![0, 1]; n];
        cfg.procs = (0..n).collect();
        cfg.check_every = 0;
        let mut w = World::new(cfg);
        w.keep_events = false;
        let rank = |_| Rank { exchange: 0, step: 0, since: 0, times: Vec::new() };
        let plans = (0..n).map(|p| plan(p, n, in_pairs)).collect();
        let ranks = (0..n).map(rank).collect();
        let mut x = Exchange { w, len, plans, ranks, lanes: vec![vec![Lane::default(); n]; n] };
        x.begin();
        x
    }

    /// All processes begin an exchange now.
    fn begin(&mut self) {
        for p in 0..self.ranks.len() {
            self.ranks[p].since = self.w.now;
            self.ranks[p].times.clear();
            self.begin_step(p);
        }
    }

    fn begin_step(&mut self, p: usize) {
        for q in self.plans[p][self.ranks[p].step].clone() {
            self.w.recv(RecvSpec { src: Some(q), ..RecvSpec::class(p, 1, self.len) });
            let id = self.w.send_soon(SendSpec::tagged(p, q, 1, self.len));
            self.lanes[p][q].ids.push(id);
        }
    }

    /// Goes on until every process has done so many exchanges, and waits.
    fn until(&mut self, exchanges: u64) {
        while self.ranks.iter().any(|r| r.exchange < exchanges) {
            let Exchange { w, plans, ranks, lanes, .. } = self;
            let goes_on = |w: &World| {
                let waits = |&p: &usize| {
                    ranks[p].exchange < exchanges && is_ready(w, lanes, &plans[p][ranks[p].step], p)
                };
                (0..ranks.len()).find(waits)
            };
            assert!(w.run_finely(NEVER_NS, |w| goes_on(w).is_some()), "never: {}", w.describe());
            let p = goes_on(w).expect("a process goes on");
            for &q in &plans[p][ranks[p].step] {
                lanes[q][p].waited += 1;
            }
            let (now, steps) = (w.now, plans[p].len());
            let r = &mut ranks[p];
            r.step += 1;
            if r.step == steps {
                r.times.push(now - r.since);
                (r.step, r.exchange, r.since) = (0, r.exchange + 1, now);
            }
            if r.exchange < exchanges {
                self.begin_step(p);
            }
        }
    }
}

/// A usual exchange, and the longest that a cut makes of one, in milliseconds.
fn cut(seed: u64, n: usize, len: usize, in_pairs: bool, everywhere: bool) -> (f64, f64) {
    let mut x = Exchange::new(seed, n, len, in_pairs);
    x.until(EXCHANGES.0);
    x.w.run_for(60 * MS);
    x.begin();
    x.until(2 * EXCHANGES.0);
    let mut usual: Vec<u64> = x.ranks.iter().flat_map(|r| r.times.clone()).collect();
    usual.sort_unstable();
    let usual = usual[usual.len() / 2] as f64 / 1e6;
    // at some moment of an exchange
    x.begin();
    x.w.run_for(x.w.now % 97 * (usual * 1e4) as u64);
    for host in 0..if everywhere { n } else { 1 } {
        x.w.begin(Fault::Dark { host, net: seed as usize % 2, inward: true, outward: true });
    }
    x.until(2 * EXCHANGES.0 + EXCHANGES.1);
    let longest = x.ranks.iter().flat_map(|r| &r.times).max().copied().unwrap_or(0) as f64 / 1e6;
    (usual, longest - usual)
}

fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![4, 16];
    }
    println!(
        "| processes | bytes | how | usual, ms | one host's rail dark: median (longest), ms | every host's: median (longest), ms |"
    );
    println!("|---|---|---|---|---|---|");
    for &n in &sizes {
        assert!(n.is_power_of_two(), "pairs need a power of two");
        for len in [64, 4096, 65_536] {
            for in_pairs in [true, false] {
                let show = |everywhere| {
                    let mut all: Vec<(f64, f64)> =
                        (0..CUTS).map(|seed| cut(seed, n, len, in_pairs, everywhere)).collect();
                    all.sort_by(|a, b| a.1.total_cmp(&b.1));
                    (all[all.len() / 2], all[all.len() - 1].1)
                };
                let (one, all) = (show(false), show(true));
                println!(
                    "| {n} | {len} | {} | {:.2} | {:.1} ({:.1}) | {:.1} ({:.1}) |",
                    if in_pairs { "in pairs" } else { "at once" },
                    one.0.0,
                    one.0.1,
                    one.1,
                    all.0.1,
                    all.1
                );
            }
        }
    }
}
