//! What job a seed means. Owns: the draws, all of sources of their own. The world is that of the same seed, without its own traffic.

use crate::app::Traffic;
use crate::draw::config_of;
use crate::fault::kind;
use crate::link::{MS, SEC, US};
use crate::rng::Rng;
use crate::world::Config;
use rerail_core::{Options, Remedies};

/// Most nodes of a job.
const NODES_MAX: usize = 6;

/// A job to be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Mean time between two steps of a program.
    pub think_ns: u64,
    /// Steps of each program.
    pub steps: u32,
    /// Weights of what a program does at a step, by [`super::program::DEEDS`].
    pub weights: [u32; super::program::DEEDS],
    /// Largest block, and largest write.
    pub bytes_max: (usize, usize),
    /// Blocks of each program, at most.
    pub blocks_max: usize,
    /// Barriers before the last one.
    pub barriers: u32,
    /// Nodes that are killed, when, and whether the time counts from the healing.
    pub deaths: Vec<(usize, u64, bool)>,
    /// Most writes are large.
    pub bulk: bool,
    /// Programs arrive at the last barrier without waiting for the messages of others.
    pub ragged: bool,
    /// Programs end for so long before everything is healed.
    pub ends_early_ns: u64,
}

/// The world and the job of a seed.
pub fn draw(seed: u64) -> (Config, Plan) {
    let mut c = config_of(seed, Remedies::default());
    c.procs.truncate(NODES_MAX);
    let hosts = c.procs.iter().max().map_or(0, |last| last + 1);
    c.hosts.truncate(hosts);
    c.eps = 1;
    (c.traffic, c.one_sided, c.collective) = (Traffic::none(), None, None);
    (c.kill, c.exit, c.leaves, c.alone, c.aim) = (None, None, None, None, None);
    (c.peers_may_be_lost, c.together, c.strict) = (false, false, false);
    // a host that refuses connections for long looks like one whose processes are gone
    c.faults.weights[kind("tcp-refused")] = 0;
    let usual = Options::default();
    for o in &mut c.options {
        // no outage of a world is as long as that
        (o.partition_timeout, o.linger) = (usual.partition_timeout, usual.linger);
        // as the library sets it
        o.silent_probe_max = rerail_rwapi::SILENT_PROBE_MAX;
    }
    let mut r = Rng::new(seed, 0x12a1);
    let nodes = c.procs.len();
    let mut weights = [0; super::program::DEEDS];
    for w in &mut weights {
        *w = if r.percent(25) { 0 } else { r.range(1, 10) as u32 };
    }
    // without blocks and writes there is little to see
    for deed in [super::program::ALLOCATE, super::program::PUBLISH, super::program::WRITE] {
        weights[deed] = weights[deed].max(2);
    }
    let think_ns = r.log_range(5 * US, MS);
    let steps = r.log_range(100, 1_500) as u32;
    let active_ns = think_ns * u64::from(steps);
    let mut deaths = Vec::new();
    if r.percent(40) {
        let mut living: Vec<usize> = (0..nodes).collect();
        for _ in 0..r.range(1, nodes as u64 - 1) {
            let victim = living.swap_remove(r.index(living.len()));
            let late = r.percent(25);
            deaths.push((victim, if late { r.log_range(US, 20 * MS) } else { r.below(active_ns) }, late));
        }
        c.no_path_down = false;
    }
    let plan = Plan {
        think_ns,
        steps,
        weights,
        bytes_max: if r.percent(60) {
            (r.range(50_000, 600_000) as usize, r.range(20_000, 300_000) as usize)
        } else {
            (r.log_range(64, 600_000) as usize, r.log_range(16, 300_000) as usize)
        },
        blocks_max: r.range(2, 5) as usize,
        barriers: r.pick(&[0, 0, 1, 2, 4]),
        deaths,
        bulk: r.percent(30),
        ragged: r.percent(40),
        ends_early_ns: if r.percent(40) { r.log_range(MS, SEC) } else { 0 },
    };
    (c, plan)
}
