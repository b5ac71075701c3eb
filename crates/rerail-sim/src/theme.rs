//! Themes: seeds in which one thing happens again and again. A random mix of everything rarely comes to the moments that some
//! hazards need (a frame half-written while its path is suspected and not yet given up; a silence longer than a deadline), and
//! a share of the seeds is therefore drawn around such a moment. Within a theme everything is as random as before.

use crate::fault::{FaultPlan, kind};
use crate::link::{MS, SEC, US};
use crate::rng::Rng;
use crate::world::Config;
use rerail_core::BulkMode;
use std::time::Duration;

/// All of them.
const THEMES: [fn(&mut Rng, &mut Config); 8] =
    [busy, brown_outs, flood, long_silence, lost_peers, firewall, quarrel, small_queues];

/// Gives the seed a theme.
pub fn draw(r: &mut Rng, c: &mut Config) {
    let theme = r.pick(&THEMES);
    theme(r, c);
}

/// Adapters are busy, and their streams break in the middle of writes. Not one of [`THEMES`]: it needs adapters.
pub fn writes(r: &mut Rng, c: &mut Config) {
    let kinds: &[&str] = r.pick(&[
        &["writes"][..],
        &["writes", "reset", "dark"],
        &["writes", "stall", "process"],
        &["dark-in", "dark-out", "writes"],
        &["writes", "handshake", "if-down"],
        // the request of a fence is lost, or its answer, or both sides are cut off meanwhile
        &["writes", "picky"],
        &["writes", "blackout", "pair-dark"],
    ]);
    c.faults = FaultPlan::only(kinds, r.log_range(MS, 30 * MS), (MS / 2, r.log_range(5 * MS, 80 * MS)));
    c.faults.most = 4;
    c.traffic.sizes = [0, 1, 1, 3, 8, r.below(4) as u32];
    (c.traffic.window, c.traffic.window_bytes) = (64, 4 << 20);
    (c.traffic.lazy, c.traffic.compute) = (r.pick(&[0, 0, 20]), 0);
    c.traffic.think_ns = r.log_range(5 * US, 500 * US);
    c.traffic.cancel = r.pick(&[0, 10, 30]);
    if r.percent(50) {
        // endpoints are closed, and processes leave, while adapters write
        c.leave_under_faults_ns = r.log_range(MS, 400 * MS);
    }
    for o in &mut c.options {
        o.eager_bytes_max = r.pick(&[0, 512, 512, 4096]);
        o.fragment_bytes = r.pick(&[65_536, 4096, 16_384]);
        o.bulk = BulkMode::Tcp;
        // what is fenced goes again at once, on a stream beside it
        o.lanes = o.lanes.max(r.pick(&[1, 2, 4]));
    }
    if r.percent(25) {
        // receives fail while their peers write
        let lanes = c.options[0].lanes;
        lost_peers(r, c);
        (c.faults.storm_ns, c.faults.duration_ns) = (4 * SEC, (MS, 3 * SEC));
        for o in &mut c.options {
            (o.lanes, o.partition_timeout) = (lanes, Some(Duration::from_millis(r.range(1_100, 1_600))));
        }
    }
}

/// Only processes and machines misbehave: no path may be called broken (invariant 8).
fn busy(r: &mut Rng, c: &mut Config) {
    let kinds: &[&str] =
        r.pick(&[&["process"][..], &["process"], &["process", "clock"], &["suspend"], &["clock", "suspend"]]);
    c.faults = FaultPlan::only(kinds, c.faults.interval_ns, c.faults.duration_ns);
    c.no_path_down = true;
    if r.percent(40) {
        // stopped for longer than the deadline of a partition, while the kernel answers
        c.faults = FaultPlan::only(&["stop"], 400 * MS, (MS, 4 * SEC));
        (c.faults.storm_ns, c.faults.calm_ns) = (10 * SEC, 500 * MS);
        for o in &mut c.options {
            o.partition_timeout = Some(Duration::from_millis(r.range(1_500, 3_000)));
        }
    }
}

/// Large messages without end, and routes that others crowd for long enough that lanes leave them, while other things break. Not one of
/// [`THEMES`]: it needs several lanes.
pub fn hot_spots(r: &mut Rng, c: &mut Config) {
    let beside: &[&str] = r.pick(&[
        &["crowd"][..],
        &["crowd", "routes", "stop"],
        &["crowd", "dark", "reset"],
        &["crowd", "loss", "handshake"],
        &["crowd", "tcp-blocked", "if-down"],
    ]);
    c.faults = FaultPlan::only(beside, r.log_range(30 * MS, 200 * MS), (30 * MS, 400 * MS));
    c.faults.weights[kind("crowd")] = 10;
    c.traffic.sizes = [0, 0, 0, 1, 4, 8];
    c.traffic.think_ns = r.log_range(US, 20 * US);
    (c.traffic.window, c.traffic.window_bytes) = (64, 8 << 20);
    (c.traffic.lazy, c.traffic.compute) = (0, 0);
    c.nets.iter_mut().for_each(|net| net.mbps = net.mbps.clamp(200, 2_000));
    c.sndbuf = r.log_range(128 * 1024, 512 * 1024) as usize;
    c.rcvbuf = 2 * c.sndbuf;
}

/// A rail is dark for about as long as a verdict takes, again and again, with large messages in small buffers.
fn brown_outs(r: &mut Rng, c: &mut Config) {
    let kinds: &[&str] =
        r.pick(&[&["dark", "delay"][..], &["dark-in", "dark-out", "dark"], &["delay"], &["delay", "stall"]]);
    c.faults = FaultPlan::only(kinds, r.log_range(10 * MS, 50 * MS), (15 * MS, r.range(30, 80) * MS));
    (c.faults.most, c.faults.storm_ns, c.faults.calm_ns) = (1, 2 * SEC, 5 * MS);
    // long enough to be suspected, short enough not to be given up
    c.faults.delay_ns = (20 * MS, 45 * MS);
    c.traffic.sizes = [0, 1, 1, 1, 6, 3];
    c.traffic.think_ns = r.log_range(5 * US, 100 * US);
    (c.traffic.window, c.traffic.window_bytes) = (64, 4 << 20);
    (c.traffic.lazy, c.traffic.compute) = (0, 0);
    c.sndbuf = r.log_range(4 * 1024, 64 * 1024) as usize;
    for o in &mut c.options {
        o.hedge_percent = 100;
        o.fragment_bytes = r.pick(&[65_536, 16_384, 32_768]);
    }
}

/// Many small messages that no receive takes for a while, then exactly the youngest.
fn flood(r: &mut Rng, c: &mut Config) {
    c.traffic.sizes = [1, 8, 4, r.below(4) as u32, 0, 0];
    (c.traffic.window, c.traffic.window_bytes) = (r.log_range(300, 4000) as usize, 4 << 20);
    (c.traffic.lazy, c.traffic.early, c.traffic.burst) = (r.range(97, 100) as u32, 0, 32);
    (c.traffic.tagged, c.traffic.peek, c.traffic.compute) = (100, 0, 0);
    c.strict = true;
    for o in &mut c.options {
        o.unexpected_bytes_max = 131_072;
    }
}

/// Outages that are longer than closing may take.
fn long_silence(r: &mut Rng, c: &mut Config) {
    c.faults = FaultPlan::only(&["blackout", "dark", "process"], 300 * MS, (MS, 5 * SEC));
    (c.faults.storm_ns, c.faults.calm_ns) = (8 * SEC, 300 * MS);
    c.leave_under_faults_ns = r.range(2, 12) * SEC;
    for o in &mut c.options {
        o.linger = Duration::from_millis(r.range(2_000, 4_000));
    }
}

/// Outages that are longer than the deadline of a partition: peers are given up, and both must learn of it.
fn lost_peers(r: &mut Rng, c: &mut Config) {
    c.faults = FaultPlan::only(&["blackout", "pair-dark", "dark"], 300 * MS, (MS, 6 * SEC));
    (c.faults.storm_ns, c.faults.calm_ns) = (10 * SEC, 300 * MS);
    c.peers_may_be_lost = true;
    (c.kill, c.exit) = (None, None);
    for o in &mut c.options {
        let deadline = Duration::from_millis(r.range(1_500, 4_000));
        o.partition_timeout = r.percent(70).then_some(deadline);
    }
}

/// Connections are refused, now and then, for a while.
fn firewall(r: &mut Rng, c: &mut Config) {
    let kinds: &[&str] =
        r.pick(&[&["tcp-refused"][..], &["tcp-refused", "reset"], &["tcp-refused", "process", "reset"]]);
    c.faults = FaultPlan::only(kinds, r.log_range(20 * MS, 200 * MS), (10 * MS, 2 * SEC));
    (c.faults.storm_ns, c.faults.calm_ns) = (3 * SEC, 100 * MS);
    c.traffic.think_ns = r.log_range(100 * US, 20 * MS);
}

/// Handshakes go wrong while paths come and go.
fn quarrel(r: &mut Rng, c: &mut Config) {
    let kinds: &[&str] =
        r.pick(&[&["handshake", "if-down"][..], &["handshake", "dark", "reset"], &["handshake", "flap"]]);
    c.faults = FaultPlan::only(kinds, r.log_range(5 * MS, 50 * MS), (10 * MS, 300 * MS));
    c.faults.most = 5;
}

/// Completion queues of a few entries, many multi-receives, and applications that do not read.
fn small_queues(r: &mut Rng, c: &mut Config) {
    c.cq_size = r.range(1, 8) as usize;
    (c.traffic.multi, c.traffic.tagged, c.traffic.lazy) = (80, 20, 0);
    (c.traffic.compute, c.traffic.compute_ns) = (10, 20 * MS);
    c.traffic.sizes = [1, 6, 6, 1, 1, 0];
    c.traffic.cancel = 10;
}
