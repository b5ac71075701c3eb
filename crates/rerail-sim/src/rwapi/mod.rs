//! A model check of RWAPI: random programs over the ten calls, on the world of a seed, against a reference.
//!
//! A run has its own kind of seed, `rerail-sim --rwapi --seeds 0..1000`: the networks, hosts, options and faults of the seed of this number, without
//! its traffic, and a job of two to six nodes on it. [`rerail_rwapi::Node`] is what is checked, over the engine of each process; programs act
//! between the events of the world.

mod plan;
mod program;
mod reference;

use crate::fault::kind;
use crate::link::{SEC, US};
use crate::process::Mode;
use crate::rng::{Rng, mix};
use crate::run::quietly;
use crate::world::app::Phase;
use crate::world::{LEAVE_NS, LIVE_NS, World};
use plan::Plan;
use program::Program;
use reference::{Fate, Reference};
use rerail_rwapi::{Node, Port};
use std::fmt;

/// Virtual time after which programs end in any case.
const ACTIVE_NS_MAX: u64 = 10 * SEC;
/// A death is known to all living nodes within this time, once all is healed: the three seconds of `refused_timeout`, and as long as connects to a
/// peer that was never met may be apart (seed 141 needs 5.2 s in all).
const TOLD_NS: u64 = 6 * SEC;
/// All blocks are looked at after so many steps of the world.
const VERIFY_EVERY: u64 = 256;
/// More events than this mean that the world runs in circles.
const EVENTS_MAX: u64 = 50_000_000;

/// How often what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Small messages.
    pub messages: u64,
    /// Writes.
    pub writes: u64,
    /// Of these: larger than what goes with its order.
    pub large_writes: u64,
    /// Of these: to the node itself.
    pub self_writes: u64,
    /// Writes that were under way in the writer's eyes when a message behind them was taken.
    pub notified: u64,
    /// Steps of nodes that held messages back.
    pub held: u64,
    /// Calls that were refused for now.
    pub again: u64,
    /// Of these: with a full window.
    pub again_full: u64,
    /// Steps that made mistakes.
    pub mistakes: u64,
    /// Writes that their target refused.
    pub refused_writes: u64,
    /// Writes to nodes that were gone.
    pub gone_writes: u64,
    /// Nodes killed.
    pub deaths: u64,
    /// Reports of deaths.
    pub gone_reports: u64,
    /// Nodes that saw another leave before they had passed the last barrier.
    pub early_leaves: u64,
    /// Barriers passed.
    pub passes: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Of these: while writes used them.
    pub busy_frees: u64,
}

impl Tally {
    /// By name.
    pub fn rows(&self) -> [(&'static str, u64); 17] {
        [
            ("messages", self.messages),
            ("writes", self.writes),
            ("large writes", self.large_writes),
            ("writes to self", self.self_writes),
            ("writes proven by a message", self.notified),
            ("steps with held messages", self.held),
            ("Again", self.again),
            ("Again with a full window", self.again_full),
            ("steps with mistakes", self.mistakes),
            ("refused writes", self.refused_writes),
            ("writes to the dead", self.gone_writes),
            ("deaths", self.deaths),
            ("deaths reported", self.gone_reports),
            ("leaves seen early", self.early_leaves),
            ("barriers passed", self.passes),
            ("frees", self.frees),
            ("frees under writes", self.busy_frees),
        ]
    }
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Nodes of the job.
    pub nodes: usize,
    /// What happened.
    pub tally: Tally,
    /// Hash of the history.
    pub hash: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Faults begun.
    pub faults: u64,
    /// Paths taken out of service.
    pub path_downs: u64,
    /// Bytes that adapters wrote.
    pub landed: u64,
    /// Faults made a living node look dead (see `FI_RERAIL_REFUSED_TIMEOUT`): the run was ended there.
    pub excused: bool,
}

/// A bug that is planted in all nodes of a run.
pub type Plant = fn(&mut Node);

/// Runs one seed.
///
/// # Errors
/// The promise that was broken, and the command that shows it again.
pub fn run_seed(seed: u64, trace: bool, plant: Option<Plant>) -> Result<Report, String> {
    let mut job = None;
    let done = quietly(|| {
        let job = job.insert(Job::new(seed, trace, plant));
        job.run();
        job.report(seed)
    });
    let at = job.as_ref().map_or(0, |j| j.world.now);
    let _ = quietly(|| drop(job));
    done.map_err(|message| {
        format!(
            "seed {seed}, at {:.3} ms: {message}\nreplay: cargo run --release -p rerail-sim --bin rerail-sim -- --rwapi --seed {seed}",
            at as f64 / 1e6
        )
    })
}

/// Runs seeds `from..to` on `threads` threads; calls `each` with every result, in any order.
pub fn run_seeds(from: u64, to: u64, threads: usize, each: impl Fn(Result<Report, String>) + Sync) {
    crate::run::each_seed(from, to, threads, |seed| each(run_seed(seed, false, None)));
}

struct Job {
    world: World,
    plan: Plan,
    programs: Vec<Option<Program>>,
    reference: Reference,
    rng: Rng,
    steps: u64,
    healed_at: Option<u64>,
    excused: bool,
}

impl Job {
    fn new(seed: u64, trace: bool, plant: Option<Plant>) -> Self {
        let (cfg, plan) = plan::draw(seed);
        let nodes = cfg.procs.len();
        let mut world = World::new(cfg);
        world.print = trace;
        world.events_max = EVENTS_MAX;
        let mut ports: Vec<Option<Port>> = Vec::new();
        let mut addresses = Vec::new();
        for p in 0..nodes {
            world.with_engine(p, |_, e, _| {
                let port = Port::open(e).expect("there is room for an endpoint");
                addresses.push(e.address(port.endpoint()));
                ports.push(Some(port));
            });
        }
        let programs = (0..nodes).map(|rank| {
            let port = ports[rank].take().expect("opened above");
            world.with_engine(rank, |_, e, now| {
                let mut program = Program::join(seed, rank, port, e, &addresses, &plan, now);
                if let Some(plant) = plant {
                    plant(&mut program.node);
                }
                Some(program)
            })
        });
        let programs = programs.collect();
        let mut reference = Reference::new(nodes);
        let weights = world.cfg.faults.weights;
        reference.flips = ["corrupt", "stream-corrupt"].iter().any(|name| weights[kind(name)] > 0);
        Self {
            world,
            plan,
            programs,
            reference,
            rng: Rng::new(seed, 0x12a0),
            steps: 0,
            healed_at: None,
            excused: false,
        }
    }

    fn run(&mut self) {
        let in_time = |job: &mut Self| job.programs.iter().flatten().all(Program::is_done);
        self.run_until(ACTIVE_NS_MAX, false, in_time);
        let all_left = |job: &mut Self| job.programs.iter().all(Option::is_none);
        self.run_until(self.plan.ends_early_ns, true, all_left);
        self.world.heal();
        self.world.healed = true;
        self.healed_at = Some(self.world.now);
        for death in self.plan.deaths.iter_mut().filter(|d| d.2) {
            (death.1, death.2) = (self.world.now + death.1, false);
        }
        if !self.run_until(LIVE_NS, true, all_left) && !self.excused {
            let programs = self.programs.iter().flatten();
            let waiting: String = programs.map(|p| p.describe(&self.reference)).collect();
            panic!(
                "live: {} s after healing not every node has left: {waiting}{}",
                LIVE_NS / SEC,
                self.world.describe()
            );
        }
        if self.excused {
            return;
        }
        let gone = |w: &mut World| w.procs.iter().all(|p| p.app.phase == Phase::Gone);
        if !self.world.run_until(LEAVE_NS, gone) {
            panic!(
                "live: {} s after the last barrier not every process has left: {}",
                LEAVE_NS / SEC,
                self.world.describe()
            );
        }
        self.world.memory.verify_all();
    }

    /// Lets world and programs go on by turns, until `done`, for at most `ns`. False: it is not.
    fn run_until(&mut self, ns: u64, ending: bool, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let limit = self.world.now + ns;
        while !done(self) {
            if self.world.now >= limit || self.excused {
                return false;
            }
            let programs = self.programs.iter().flatten();
            let next = programs.map(|p| p.next_at).min().unwrap_or(limit);
            let apart = self.rng.log_range(US, 20 * US);
            self.world.run_to(next.max(self.world.now + apart).min(limit));
            self.excused = self.world.cfg.peers_may_be_lost;
            self.kill();
            for p in 0..self.programs.len() {
                self.step(p, ending);
            }
            self.steps += 1;
            if self.steps % VERIFY_EVERY == 0 {
                self.reference.verify_all(&self.world.memory);
            }
        }
        true
    }

    fn kill(&mut self) {
        let now = self.world.now;
        while let Some(i) = self.plan.deaths.iter().position(|(_, at, late)| *at <= now && !late) {
            let (victim, ..) = self.plan.deaths.swap_remove(i);
            if self.programs[victim].take().is_some() {
                self.world.trace(|| format!("node {victim} is killed"));
                self.world.kill(victim);
                self.reference.died(victim, now);
            }
        }
    }

    fn step(&mut self, p: usize, ending: bool) {
        let Self { world, plan, programs, reference, healed_at, .. } = self;
        let Some(program) = &mut programs[p] else { return };
        if program.next_at > world.now || world.procs[p].mode != Mode::Running {
            return;
        }
        let left = world.with_engine(p, |w, e, now| program.step(w, e, now, plan, reference, ending));
        if left {
            programs[p] = None;
        } else if healed_at.is_some_and(|healed| healed + TOLD_NS < world.now) {
            reference.check_told(p, world.now - TOLD_NS);
        }
    }

    fn report(&self, seed: u64) -> Report {
        let deaths = (0..self.programs.len()).filter(|p| matches!(self.reference.fate(*p), Fate::Died(_)));
        debug_assert_eq!(deaths.count() as u64, self.reference.tally.deaths);
        Report {
            seed,
            nodes: self.programs.len(),
            tally: self.reference.tally,
            hash: self.world.hash(),
            virtual_ns: self.world.now,
            faults: self.world.facts().faults,
            path_downs: self.world.path_downs,
            landed: self.world.adapters.landed.0,
            excused: self.excused,
        }
    }
}

/// What came of many runs.
#[derive(Debug, Clone, Default)]
pub struct Sum {
    /// Runs that kept every promise.
    pub kept: u64,
    /// Runs that broke one.
    pub broken: u64,
    /// Runs that were ended because faults made a living node look dead.
    pub excused: u64,
    /// For each row of [`Tally::rows`]: how often in all, and in how many runs.
    pub rows: Vec<(&'static str, u64, u64)>,
    history: u64,
}

impl Sum {
    /// Adds a run.
    pub fn add(&mut self, r: &Report) {
        self.kept += 1;
        self.excused += u64::from(r.excused);
        // threads finish in any order, so the sum must not depend on it
        self.history ^= mix(mix(r.seed) ^ r.hash);
        let more = [("faults", r.faults), ("paths down", r.path_downs), ("bytes by adapters", r.landed)];
        let rows = r.tally.rows();
        let all = rows.iter().chain(&more);
        self.rows.resize(rows.len() + more.len(), ("", 0, 0));
        for (sum, (name, n)) in self.rows.iter_mut().zip(all) {
            *sum = (name, sum.1 + n, sum.2 + u64::from(*n > 0));
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} runs kept every promise ({} of them ended early: a living node looked dead), {} broke one",
            self.kept, self.excused, self.broken
        )?;
        for (name, n, runs) in &self.rows {
            writeln!(f, "{name:<28} {n:>12} in {runs:>6} runs")?;
        }
        write!(f, "history {:016x}", self.history)
    }
}
