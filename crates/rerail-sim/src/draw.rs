//! What world a seed means.

use crate::aim::Aim;
use crate::app::Traffic;
use crate::collective::Collective;
use crate::fabric::FabricSpec;
use crate::fabric::routing::Routing;
use crate::fabric::topology::Topology;
use crate::fault::{FaultPlan, kind};
use crate::link::{MS, SEC, US};
use crate::onesided::OneSided;
use crate::ordinals::Ordinals;
use crate::rng::Rng;
use crate::theme;
use crate::world::one_lane;
use crate::world::{CLOSE_NS, Config, Family, LATE_WRITES_NS, MIGRATES_AFTER_NS, NetSpec, REGISTER_NS};
use rerail_core::wire::Coverage;
use rerail_core::{BulkMode, Options, Policy, Remedies};
use std::time::Duration;

/// How large a world is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// Two to four hosts: most seeds, because many small worlds find more than a few large ones.
    Small,
    /// Up to eight hosts on up to eight networks.
    Medium,
    /// Up to 64 endpoints.
    Large,
}

/// Hosts with their networks: two hosts always share one.
fn draw_hosts(r: &mut Rng, hosts: usize, rails: usize) -> Vec<Vec<usize>> {
    let missing = r.pick(&[0, 0, 20, 40]);
    let mut attached: Vec<Vec<usize>> = (0..hosts)
        .map(|_| {
            let mut all: Vec<usize> = (0..rails).filter(|_| !r.percent(missing)).collect();
            if all.is_empty() {
                all.push(r.index(rails));
            }
            // rails come in any order
            if r.percent(20) {
                all.reverse();
            }
            all
        })
        .collect();
    for a in 0..hosts {
        for b in a + 1..hosts {
            if attached[a].iter().any(|n| attached[b].contains(n)) {
                continue;
            }
            let common = attached[a][0];
            attached[b].push(common);
        }
    }
    attached
}

/// The world of a seed.
pub fn config_of(seed: u64, remedies: Remedies) -> Config {
    // each part has draws of its own: a new one in the options moves nothing else
    let mut r = Rng::new(seed, 0);
    let scale = match r.below(100) {
        0..2 => Scale::Large,
        2..14 => Scale::Medium,
        _ => Scale::Small,
    };
    let (hosts, rails) = match scale {
        Scale::Small => ([2, 2, 2, 3, 3, 4][r.index(6)], [1, 2, 2, 2, 3, 3, 4][r.index(7)]),
        Scale::Medium => (r.range(2, 8) as usize, r.range(1, 8) as usize),
        Scale::Large => (r.range(4, 16) as usize, r.range(1, 4) as usize),
    };
    let nets = (0..rails)
        .map(|_| NetSpec {
            latency_ns: if r.percent(10) {
                r.log_range(200 * US, 5 * MS)
            } else {
                r.log_range(5 * US, 200 * US)
            },
            mbps: r.log_range(100, 40_000),
            mtu: r.pick(&[1500, 1500, 1500, 9000, 1400]),
            family: Family::V4,
        })
        .collect();
    let attached = draw_hosts(&mut r, hosts, rails);
    let mut procs: Vec<usize> = (0..hosts).collect();
    match scale {
        Scale::Small if hosts < 4 && r.percent(25) => procs.push(r.index(hosts)),
        Scale::Small => {}
        Scale::Medium => (0..r.range(0, 3)).for_each(|_| procs.push(r.index(hosts))),
        Scale::Large => (0..r.range(0, 8)).for_each(|_| procs.push(r.index(hosts))),
    }
    let eps = match scale {
        Scale::Large => r.range(1, (64 / procs.len() as u64).max(1)) as usize,
        _ => [1, 1, 2, 3][r.index(4)],
    };
    let mut or = Rng::new(seed, 10);
    let options = procs.iter().map(|&h| options_of(&mut or, &attached[h])).collect();
    let faults = FaultPlan::swarm(&mut Rng::new(seed, 11));
    let traffic = Traffic::swarm(&mut Rng::new(seed, 12));
    let mut cfg = Config {
        seed,
        nets,
        hosts: attached,
        procs,
        eps,
        options,
        remedies,
        sndbuf: r.log_range(8 * 1024, 512 * 1024) as usize,
        rcvbuf: r.log_range(16 * 1024, 512 * 1024) as usize,
        chop: r.pick(&[0, 5, 20, 50]),
        check_every: if scale == Scale::Large { 512 } else { 64 },
        drift_ppm: r.pick(&[0, 20, 200, 10_000]),
        send_errors: r.percent(70),
        acquainted: Rng::new(seed, 0xac).percent(50),
        no_path_down: false,
        peers_may_be_lost: false,
        leave_under_faults_ns: if r.percent(35) { r.log_range(MS, 800 * MS) } else { 0 },
        cq_size: r.log_range(4, 4096) as usize,
        one_cq: r.percent(50),
        traffic,
        faults,
        aim: None,
        alone: None,
        together: false,
        kill: None,
        exit: None,
        strict: r.percent(30),
        messages_max: u64::MAX,
        // of a source of its own, so that all else of a seed is as it was before there was encryption
        encrypt: Rng::new(seed, 0xe2).percent(15),
        fabrics: Vec::new(),
        adapters: Vec::new(),
        client_first: Vec::new(),
        unreadable_percent: 0,
        register_ns: REGISTER_NS,
        streams_on_demand: false,
        sums_end_to_end: false,
        ports: Vec::new(),
        devices: Vec::new(),
        migrates_after_ns: MIGRATES_AFTER_NS,
        refused_loads_percent: 0,
        leaves: None,
        close_ns: CLOSE_NS,
        late_writes_ns: LATE_WRITES_NS,
        one_sided: None,
        collective: Collective::swarm(&mut Rng::new(seed, 15)),
        skip_faults: Ordinals::default(),
        skip_sends: Ordinals::default(),
    };
    families(seed, &mut cfg);
    lanes(seed, &mut cfg);
    tried_lanes(seed, &mut cfg);
    let mut br = Rng::new(seed, 0xb6);
    for o in &mut cfg.options {
        if br.percent(30) {
            o.probe_budget = br.log_range(1, 50) as u32;
        }
    }
    // of a source of its own too: most seeds are as they were before a send could promise a match
    let mut mr = Rng::new(seed, 0x3a);
    if mr.percent(15) {
        cfg.traffic.matched = mr.range(1, 60) as u32;
    }
    cfg.one_sided = OneSided::swarm(&mut Rng::new(seed, 14), cfg.procs.len(), cfg.eps);
    checksums(seed, &mut cfg);
    if cfg.procs.len() > 2 && r.percent(20) {
        // one process is killed; the others must hear of it and go on with each other
        cfg.kill = Some((r.index(cfg.procs.len()), r.log_range(MS, 2 * SEC)));
    } else if r.percent(10) {
        // one exits in the middle: what it had completed must arrive
        let (p, ns) = (r.index(cfg.procs.len()), r.log_range(MS, 500 * MS));
        cfg.exit = Some((p, if cfg.procs.len() > 2 { ns } else { 0 }));
    }
    if scale == Scale::Small && r.percent(40) {
        theme::draw(&mut Rng::new(seed, 13), &mut cfg);
    }
    adapters(seed, &mut cfg);
    ports(seed, &mut cfg);
    fabrics(seed, &mut cfg);
    Aim::draw(seed, &mut cfg);
    devices(seed, &mut cfg);
    leaves(seed, &mut cfg);
    cfg
}

/// Adapters that take their time to close an end, and a process that exits while its adapters write: what is still written then must meet a key
/// that is over, although the process that gave it registers memory for others meanwhile. Of a source of its own, behind everything else.
fn leaves(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xada7);
    if cfg.no_path_down || cfg.adapters.iter().all(|places| *places == 0) {
        return;
    }
    if r.percent(50) {
        cfg.close_ns.1 = r.log_range(8 * MS, 200 * MS);
    }
    let stays = cfg.kill.is_none() && cfg.exit.is_none() && !cfg.peers_may_be_lost;
    if stays && cfg.procs.len() > 2 && cfg.traffic.sizes[4] + cfg.traffic.sizes[5] > 0 && r.percent(85) {
        cfg.leaves = Some((r.index(cfg.procs.len()), r.log_range(MS, 200 * MS)));
    }
}

/// Adapters with several ports, which migrate streams by themselves. Of a source of its own, behind everything else.
fn devices(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xa941);
    if cfg.adapters.iter().filter(|places| **places > 0).count() < 2 || !r.percent(60) {
        return;
    }
    let adapters = r.range(1, cfg.nets.len().div_ceil(2) as u64 + 1);
    cfg.devices = (0..cfg.nets.len()).map(|_| r.below(adapters) as usize).collect();
    cfg.migrates_after_ns = r.log_range(MS, SEC);
    cfg.refused_loads_percent = r.pick(&[0, 0, 0, 10, 100]);
}

/// Networks of several families of addresses and kinds of rails, as many as an address of a process can name.
fn families(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xfa);
    if !r.percent(40) {
        return;
    }
    // bytes that an address has for rails, less those of IPv4
    let mut room = 32 - 4 * cfg.nets.len();
    for net in &mut cfg.nets {
        let (family, more) = r.pick(&[(Family::V4, 0), (Family::V6, 12), (Family::Foreign, 3)]);
        if more <= room {
            (net.family, room) = (family, room - more);
        }
    }
}

/// Adapters for most networks, messages that they write, and streams that break meanwhile.
fn adapters(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xada1);
    if cfg.encrypt || !r.percent(70) {
        return;
    }
    cfg.adapters = cfg.nets.iter().map(|_| if r.percent(80) { r.pick(&[1, 2, 4, 16]) } else { 0 }).collect();
    if r.percent(50) {
        cfg.traffic.sizes[4] = cfg.traffic.sizes[4].max(r.range(1, 4) as u32);
        for o in cfg.options.iter_mut().filter(|o| o.bulk == BulkMode::Udp) {
            o.bulk = BulkMode::Auto;
        }
    }
    if cfg.no_path_down {
        // where only processes misbehave nothing may break
    } else if r.percent(30) {
        theme::writes(&mut r, cfg);
    } else if r.percent(60) {
        cfg.faults.weights[kind("writes")] = r.range(1, 20) as u32;
    }
    cfg.streams_on_demand = Rng::new(seed, 0xada3).percent(50);
    let mut memory = Rng::new(seed, 0xada4);
    if memory.percent(25) {
        cfg.unreadable_percent = memory.pick(&[1, 5, 20, 100]);
    }
    let mut registering = Rng::new(seed, 0xada5);
    if registering.percent(25) {
        // grants wait for their keys, now and then in vain
        cfg.register_ns.1 = registering.log_range(MS, 50 * MS);
    }
    let mut first = Rng::new(seed, 0xada6);
    if first.percent(50) {
        cfg.client_first = cfg.adapters.iter().map(|places| *places > 0 && first.percent(80)).collect();
    }
    let mut late = Rng::new(seed, 0xada2);
    if late.percent(50) {
        // an adapter that repeats by itself what it got no answer to
        cfg.late_writes_ns = late.log_range(200 * MS, 5 * SEC);
    }
    if !cfg.no_path_down && late.percent(20) {
        cfg.faults.weights[kind("refused-writes")] = late.range(1, 10) as u32;
    }
}

/// Networks of several kinds that go through one physical port, and ports that fail. Of a source of its own too.
fn ports(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0x9027);
    let nets = cfg.nets.len();
    if nets < 2 || !r.percent(40) {
        return;
    }
    cfg.ports = (0..nets).map(|_| r.index(nets.div_ceil(2))).collect();
    // as `families` counts
    let more = |n: &NetSpec| match n.family {
        Family::V4 => 0,
        Family::V6 => 12,
        Family::Foreign => 3,
    };
    let mut room = 32 - 4 * nets - cfg.nets.iter().map(more).sum::<usize>();
    for net in &mut cfg.nets {
        if net.family == Family::V4 && room >= 3 && r.percent(50) {
            (net.family, room) = (Family::Foreign, room - 3);
        }
    }
    if !cfg.no_path_down && r.percent(70) {
        cfg.faults.weights[kind("port")] = r.range(1, 20) as u32;
    }
}

/// Switches between the hosts, whose links are slower than the ports of hosts or as fast, and go dark. Of a source of its own, behind all that it changes.
fn fabrics(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xfab);
    if !cfg.ports.is_empty() || !r.percent(12) {
        return;
    }
    let hosts = cfg.hosts.len();
    for net in &cfg.nets {
        let leaves = r.range(2, 4) as usize;
        let topology = Topology::LeafSpine {
            leaves,
            spines: r.range(1, 5) as usize,
            hosts: hosts.div_ceil(leaves),
            cables: r.pick(&[1, 1, 2]),
        };
        let routing = if r.percent(70) { Routing::Ecmp } else { Routing::Lid { bits: r.range(0, 3) as u32 } };
        let mbps = (net.mbps / r.pick(&[1, 1, 2, 4])).max(50);
        let spec = FabricSpec { topology, routing, mbps, ports_mbps: net.mbps, salt: r.draw() };
        cfg.fabrics.push(r.percent(80).then_some(spec));
    }
    if !cfg.no_path_down && cfg.fabrics.iter().any(Option::is_some) {
        cfg.faults.weights[kind("link")] = r.range(1, 20) as u32;
    }
}

/// Several lanes, and routes that go dark under them. Of a source of its own, so that the other seeds are as they were before there were any.
fn lanes(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0x1a9e);
    if !r.percent(40) {
        return;
    }
    let most = r.pick(&[2, 3, 4, 4, 8]);
    for o in &mut cfg.options {
        o.lanes = if r.percent(80) { most } else { r.range(1, 5) as u8 };
    }
    if r.percent(60) {
        cfg.faults.weights[kind("routes")] = r.range(1, 20) as u32;
    }
    if r.percent(60) {
        cfg.faults.weights[kind("crowd")] = r.range(1, 20) as u32;
    }
    if r.percent(20) && cfg.procs.len() <= 4 {
        theme::hot_spots(&mut r, cfg);
    }
}

/// Lanes that come and go with the traffic. Of a source of its own as well, which leaves the seeds alone that find planted bugs.
fn tried_lanes(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0x7a17);
    if !r.percent(8) {
        return;
    }
    for o in &mut cfg.options {
        if r.percent(85) {
            (o.lanes, o.lanes_auto) = (4, true);
        }
    }
    if r.percent(60) && cfg.procs.len() <= 4 {
        theme::hot_spots(&mut r, cfg);
    }
}

/// What is summed, and how soon a rail is blamed. Where bits are flipped everything is summed: the oracle looks at every byte.
fn checksums(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xc5);
    let flips = ["corrupt", "stream-corrupt"].iter().any(|k| cfg.faults.weights[kind(k)] > 0);
    cfg.sums_end_to_end = !flips && Rng::new(seed, 0xada6).percent(50);
    for (p, o) in cfg.options.iter_mut().enumerate() {
        o.corrupt_threshold = r.pick(&[8, 8, 1, 2, 4, 0]);
        o.quarantine = Duration::from_millis(r.log_range(1, 2_000));
        o.retransmit_level = r.pick(&[16, 16, 1, 4, 0]);
        if flips || r.percent(60) {
            continue;
        }
        o.checksum.all = Some(r.pick(&Coverage::ALL));
        for n in &cfg.hosts[cfg.procs[p]] {
            if r.percent(30) {
                let mode = r.pick(&Coverage::ALL);
                o.checksum.rails.push((format!("net{n}"), Some(mode)));
            }
        }
    }
}

fn options_of(r: &mut Rng, attached: &[usize]) -> Options {
    let mut o = Options {
        policy: if r.percent(40) { Policy::Adaptive } else { r.pick(Policy::NAMES).1 },
        eager_bytes_max: r.pick(&[16_384, 16_384, 16_384, 0, 512, 4096, 65_536]),
        stripe_bytes_min: r.pick(&[65_536, 65_536, 0, 20_000]),
        fragment_bytes: r.pick(&[65_536, 4096, 4096, 8192, 16_384]),
        copied_bytes_max: r.pick(&[16_384, 16_384, 0, 512, 4096, 65_536]),
        bulk: r.pick(&[BulkMode::Auto, BulkMode::Auto, BulkMode::Udp, BulkMode::Tcp]),
        hedge_percent: r.pick(&[10, 10, 0, 100]),
        ..one_lane()
    };
    if r.percent(50) {
        o.local_rank = Some(r.below(8) as u32);
    }
    let name = |n: &usize| format!("net{n}");
    if r.percent(50) {
        o.weights = attached.iter().map(|n| (name(n), r.log_range(1, 100) as u32)).collect();
    }
    if attached.len() > 1 && r.percent(30) {
        let mut order: Vec<&usize> = attached.iter().collect();
        if r.percent(50) {
            order.reverse();
        }
        let pairs = if r.percent(50) { 1 } else { order.len() - 1 };
        o.alternates = order.windows(2).take(pairs).map(|w| (name(w[0]), name(w[1]))).collect();
    }
    if r.percent(40) {
        o.retained_bytes_max = 131_072;
    }
    if r.percent(40) {
        o.unexpected_bytes_max = 131_072;
    }
    if r.percent(30) {
        o.idle_probe = Duration::from_millis(r.log_range(10, 400));
    }
    o
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_in_eleven_has_fabrics_whose_links_go_dark() {
        let seeds = 1_000;
        let worlds = (0..seeds).map(|seed| config_of(seed, Remedies::default()));
        let with: Vec<Config> = worlds.filter(|c| c.fabrics.iter().any(Option::is_some)).collect();
        assert!((75..=110).contains(&with.len()), "{}", with.len());
        let dark = with.iter().filter(|c| c.faults.weights[kind("link")] > 0).count();
        assert!(dark * 10 > with.len() * 7, "{dark} of {}", with.len());
        assert!(with.iter().all(|c| c.ports.is_empty() && c.fabrics.len() == c.nets.len()));
    }
}
