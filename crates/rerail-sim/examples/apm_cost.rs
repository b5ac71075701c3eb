//! What each transition of a carrier costs, against the number of peers: figures 5 to 8 of the APM paper, in software.
//!
//! `cargo run --release -p rerail-sim --example apm_cost [-- PEERS…]`
//!
//! One process with N peers, two rails, `primary-standby` with the alternate rail0>rail1. In the simulator: virtual time, datagrams
//! and bytes. With the engines alone, joined by memory: processor time of the one engine that migrates. Virtual time knows nothing of
//! the processor, and processor time nothing of the network; the two tables belong together.

use rerail_core::wire::Token;
use rerail_core::{
    Action, CloseReason, CompletionLevel, Datagram, Engine, EngineConfig, EpId, Identity, IoVec, Migration,
    Options, Protocol, RailDesc, RailEvent, RailId, Remedies, SendOp, Time,
};
use rerail_sim::app::{RecvSpec, SendSpec};
use rerail_sim::fault::Fault;
use rerail_sim::link::MS;
use rerail_sim::world::one_lane;
use rerail_sim::world::{Config, Verdict, World};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Hosts of the peers in the simulator; processes of a host share its links.
const PEER_HOSTS: usize = 16;
/// Time that anything may take.
const NEVER_NS: u64 = 60_000 * MS;

fn options(rails: usize) -> Options {
    let mut o = one_lane();
    let set = [("policy", "primary-standby"), ("alternate", "net0>net1")];
    for (name, value) in set.iter().take(rails) {
        o.set(name, value).expect("valid");
    }
    o
}

// ---- in the simulator ------------------------------------------------------------------------------------------

/// Datagrams and bytes that process 0 has sent and received on each network, headers of UDP and IP not counted.
type Seen = Rc<RefCell<[(u64, u64); 2]>>;

fn world(peers: usize) -> (World, Seen) {
    let mut cfg = Config::quiet(1, 2);
    cfg.hosts = vec![vec![0, 1]; 1 + PEER_HOSTS.min(peers)];
    cfg.procs = std::iter::once(0).chain((0..peers).map(|p| 1 + p % PEER_HOSTS)).collect();
    cfg.options = vec![options(2)];
    cfg.check_every = 0;
    let mut w = World::new(cfg);
    w.keep_events = false;
    let seen = Seen::default();
    let count = seen.clone();
    w.filter = Some(Box::new(move |d| {
        if d.src == 0 || d.dst == 0 {
            let s = &mut count.borrow_mut()[d.net];
            *s = (s.0 + 1, s.1 + d.bytes.len() as u64);
        }
        Verdict::Pass
    }));
    (w, seen)
}

fn all_armed(w: &World, on: u8) -> bool {
    let carriers = w.procs[0].engine.as_ref().map(|e| e.carriers()).unwrap_or_default();
    carriers.len() + 1 == w.procs.len()
        && carriers.iter().all(|c| c.state == Migration::Armed && c.path.1 == RailId(on))
}

fn all_on(w: &World, rail: u8) -> bool {
    w.procs[0].engine.as_ref().is_some_and(|e| e.carriers().iter().all(|c| c.path.1 == RailId(rail)))
}

/// Runs until `done`; the virtual time in milliseconds, and what passed on network `net` meanwhile, for each peer.
fn until(
    w: &mut World,
    seen: &Seen,
    net: usize,
    what: &str,
    done: impl Fn(&World) -> bool,
) -> (f64, f64, f64) {
    let (from, before, peers) = (w.now, seen.borrow()[net], (w.procs.len() - 1) as f64);
    let streams = w.written(0, net);
    assert!(w.run_finely(NEVER_NS, |w| done(w)), "never: {what}: {}", w.describe());
    let after = seen.borrow()[net];
    let bytes = after.1 - before.1 + (w.written(0, net) - streams);
    ((w.now - from) as f64 / 1e6, (after.0 - before.0) as f64 / peers, bytes as f64 / peers)
}

/// One message to each peer, and one back.
fn greet(w: &mut World, len: usize) {
    for p in 1..w.procs.len() {
        for (a, b) in [(0, p), (p, 0)] {
            w.recv(RecvSpec::class(b, 200, len));
            w.send_soon(SendSpec::tagged(a, b, 200, len));
        }
    }
}

/// Half the round trips of a ping-pong of `len` bytes with each peer in turn, in microseconds.
fn latencies(w: &mut World, len: usize) -> Vec<f64> {
    (1..w.procs.len())
        .map(|p| {
            let from = w.now;
            for (a, b) in [(0, p), (p, 0)] {
                w.recv(RecvSpec::class(b, 201, len));
                w.send_soon(SendSpec::tagged(a, b, 201, len));
                let there = w.run_finely(NEVER_NS, |w| w.oracle.pending_count() == 0);
                assert!(there, "never: {}", w.describe());
            }
            (w.now - from) as f64 / 2e3
        })
        .collect()
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

fn ready(peers: usize) -> (World, Seen) {
    let (mut w, seen) = world(peers);
    greet(&mut w, 64);
    assert!(w.run_finely(NEVER_NS, |w| w.oracle.pending_count() == 0 && all_armed(w, 0)), "{}", w.describe());
    w.run_for(50 * MS);
    (w, seen)
}

fn simulated(peers: &[usize]) {
    println!(
        "In the simulator: 2 rails of 10 Gbit/s, 20 µs; datagrams and bytes (streams' too) for each peer, both directions\n"
    );
    println!(
        "| peers | load (MIGRATED → ARMED) | request (ARMED → MIGRATED at once) → ARMED again | link down → all migrated | silent cut → all migrated | repair → all ARMED |"
    );
    println!("|---|---|---|---|---|---|");
    for &n in peers {
        let (mut w, seen) = world(n);
        greet(&mut w, 64);
        let load = until(&mut w, &seen, 1, "armed", |w| all_armed(w, 0));
        w.run_for(50 * MS);
        let moved = w.with_engine(0, |_, e, now| e.migrate(None, RailId(0), RailId(1), now));
        assert_eq!(moved.map(|r| r.moved), Ok(n));
        assert!(all_on(&w, 1), "a request is met at once");
        let again = until(&mut w, &seen, 0, "armed", |w| all_armed(w, 1));

        let (mut w, seen) = ready(n);
        let cut = w.begin(Fault::IfDown { host: 0, net: 0, peers: true });
        let down = until(&mut w, &seen, 1, "migrated", |w| all_on(w, 1));
        w.run_for(200 * MS);
        w.end_fault(cut);
        let back = until(&mut w, &seen, 0, "armed again", |w| all_armed(w, 1));

        let (mut w, seen) = ready(n);
        w.begin(Fault::Dark { host: 0, net: 0, inward: true, outward: true });
        greet(&mut w, 64);
        let dark = until(&mut w, &seen, 1, "migrated", |w| all_on(w, 1));
        let show = |(ms, frames, bytes): (f64, f64, f64)| format!("{ms:.2} ms; {frames:.1}, {bytes:.0} B");
        println!(
            "| {n} | {} | {} | {} | {} | {} |",
            show(load),
            show(again),
            show(down),
            show(dark),
            show(back)
        );
    }
    println!(
        "\nHalf round trip of 128 B with each peer in turn, mean (longest), µs of virtual time (figure 7)\n"
    );
    println!("| peers | undisturbed | after a request | link down at the start | silent cut at the start |");
    println!("|---|---|---|---|---|");
    for &n in peers {
        println!("| {n} | {} |", disturbed(n, 128).join(" | "));
    }
    let n = peers.last().copied().unwrap_or(64).min(64);
    println!("\nThe same with {n} peers, by size (figure 8)\n");
    println!("| bytes | undisturbed | after a request | link down at the start | silent cut at the start |");
    println!("|---|---|---|---|---|");
    for len in [8, 128, 1024, 8192, 32_768] {
        println!("| {len} | {} |", disturbed(n, len).join(" | "));
    }
}

fn disturbed(n: usize, len: usize) -> Vec<String> {
    let show = |v: Vec<f64>| {
        let most = v.iter().copied().fold(0.0, f64::max);
        format!("{:.1} ({most:.1})", mean(&v))
    };
    let (mut w, _) = ready(n);
    let rest = show(latencies(&mut w, len));
    w.with_engine(0, |_, e, now| e.migrate(None, RailId(0), RailId(1), now)).expect("both rails work");
    let moved = show(latencies(&mut w, len));
    let (mut w, _) = ready(n);
    w.begin(Fault::IfDown { host: 0, net: 0, peers: true });
    let down = show(latencies(&mut w, len));
    let (mut w, _) = ready(n);
    w.begin(Fault::Dark { host: 0, net: 0, inward: true, outward: true });
    vec![rest, moved, down, show(latencies(&mut w, len))]
}

// ---- the engines alone -----------------------------------------------------------------------------------------

/// Engines joined by memory: what one sends the other has at once. Streams never connect; nothing here needs them.
struct Joined {
    engines: Vec<Engine>,
    endpoints: Vec<EpId>,
    now: Time,
    /// Processor time of engine 0.
    cpu: Duration,
    under_way: VecDeque<(usize, Datagram)>,
    rails: usize,
}

fn address(rail: usize, engine: usize) -> SocketAddr {
    SocketAddr::from(([10, rail as u8, (engine / 250) as u8, (engine % 250 + 1) as u8], 4000))
}

impl Joined {
    fn new(peers: usize, rails: usize) -> Joined {
        let now = Time::from_ns(1_000_000_000);
        let mut j = Joined {
            engines: Vec::new(),
            endpoints: Vec::new(),
            now,
            cpu: Duration::ZERO,
            under_way: VecDeque::new(),
            rails,
        };
        for i in 0..=peers {
            let rail = |r| RailDesc {
                speed_mbps: 10_000,
                ..RailDesc::ip(&format!("net{r}"), address(r, i), 16, 1500)
            };
            let mut token = [7; 16];
            token[..4].copy_from_slice(&(i as u32).to_le_bytes());
            let config = EngineConfig {
                identity: Identity::toy(Token(token)),
                rails: (0..rails).map(rail).collect(),
                options: options(rails),
                encrypts: false,
                seed: i as u64,
                host: i as u64,
                boot: 1,
                remedies: Remedies::default(),
            };
            let mut e = Engine::new(config, now).expect("valid");
            let cq = e.open_cq(1 << 20);
            j.endpoints.push(e.open_endpoint(cq, cq).expect("the first"));
            j.engines.push(e);
        }
        j
    }

    /// Lets engine `i` do something.
    fn run<T>(&mut self, i: usize, f: impl FnOnce(&mut Engine, Time) -> T) -> T {
        let start = Instant::now();
        let e = &mut self.engines[i];
        let out = f(e, self.now);
        let mut d = Datagram::default();
        while e.poll_datagram(self.now, &mut d) {
            self.under_way.push_back((i, std::mem::take(&mut d)));
        }
        while let Some(a) = e.poll_action() {
            if let Action::CloseStream { stream } = a {
                e.stream_closed(stream, CloseReason::Requested, self.now);
            }
        }
        while e.poll_event().is_some() {}
        if i == 0 {
            self.cpu += start.elapsed();
        }
        out
    }

    /// Delivers what is under way and lets time pass until `done`.
    fn settle(&mut self, what: &str, done: impl Fn(&Engine) -> bool) {
        let end = self.now + Duration::from_secs(30);
        loop {
            while let Some((from, d)) = self.under_way.pop_front() {
                let &[_, rail, high, low] = d.to.place() else { unreachable!("only IPv4 here") };
                let to = usize::from(high) * 250 + usize::from(low) - 1;
                let source = address(usize::from(rail), from).into();
                self.run(to, |e, now| {
                    e.handle_datagram(RailId(rail), source, &d.bytes, now);
                    if e.poll_timeout().is_some_and(|t| t <= now) {
                        e.handle_timeout(now);
                    }
                });
            }
            if done(&self.engines[0]) {
                return;
            }
            let next = self.engines.iter().filter_map(Engine::poll_timeout).min().expect("something is due");
            self.now = next.max(self.now + Duration::from_micros(1));
            assert!(self.now < end, "never: {what}: {}", self.engines[0].describe());
            for i in 0..self.engines.len() {
                if self.engines[i].poll_timeout().is_some_and(|t| t <= self.now) {
                    self.run(i, |e, now| e.handle_timeout(now));
                }
            }
        }
    }

    fn carried_by(&self, rail: u8, state: Migration) -> impl Fn(&Engine) -> bool + use<> {
        let peers = self.engines.len() - 1;
        let alone = self.rails == 1;
        move |e: &Engine| {
            let c = e.carriers();
            let fits =
                |c: &rerail_core::CarrierReport| c.path.1 == RailId(rail) && (alone || c.state == state);
            c.len() == peers && c.iter().all(fits) && e.paths().iter().all(|x| x.health.connected())
        }
    }

    fn take_cpu(&mut self) -> f64 {
        std::mem::take(&mut self.cpu).as_secs_f64() * 1e6
    }

    /// A message to each peer, so that all are wanted. No receive takes it, which does not matter here.
    fn greet(&mut self) {
        let payload = [7u8; 8];
        for p in 1..self.engines.len() {
            let a = self.engines[p].address(self.endpoints[p]);
            let dest = self.engines[0].endpoint_of(&a);
            let send = SendOp {
                ep: self.endpoints[0],
                dest,
                protocol: Protocol::Tagged,
                tag: 1,
                data: None,
                iov: &[IoVec::from_ref(&payload)],
                context: 0,
                completion: false,
                inject: true,
                level: CompletionLevel::Buffered,
            };
            // SAFETY: an inject copies before it returns.
            self.run(0, |e, now| unsafe { e.send(&send, now) }).expect("there is room");
        }
    }
}

fn alone(peers: &[usize]) {
    println!(
        "\nThe engines alone: processor time of the engine with N peers, µs for each peer (times the cost with one peer)\n"
    );
    println!("| peers | load an alternate | request | link down, migrate | repair, arm again |");
    println!("|---|---|---|---|---|");
    let mut first: Option<[f64; 4]> = None;
    for &n in peers {
        // few peers are measured many times; the median is taken
        let times = (256 / n).clamp(3, 101);
        let mut all: Vec<[f64; 4]> = (0..times).map(|_| costs(n)).collect();
        let column = |all: &mut Vec<[f64; 4]>, k: usize| {
            all.sort_by(|a, b| a[k].total_cmp(&b[k]));
            all[all.len() / 2][k] / n as f64
        };
        let cost = [0, 1, 2, 3].map(|k| column(&mut all, k));
        let base = *first.get_or_insert(cost);
        let cells: Vec<String> =
            (0..4).map(|k| format!("{:.1} ({:.2})", cost[k], cost[k] / base[k])).collect();
        println!("| {n} | {} |", cells.join(" | "));
    }
}

/// Microseconds of engine 0: loading the alternates of all peers, a request, a link that goes down, its repair.
fn costs(n: usize) -> [f64; 4] {
    let connect = |rails| {
        let mut j = Joined::new(n, rails);
        j.greet();
        let done = j.carried_by(0, Migration::Armed);
        j.settle("connected", done);
        let cpu = j.take_cpu();
        (j, cpu)
    };
    let (_, one) = connect(1);
    let (mut j, two) = connect(2);
    let moved = j.run(0, |e, now| e.migrate(None, RailId(0), RailId(1), now));
    assert_eq!(moved.map(|r| r.moved), Ok(n));
    let request = j.take_cpu();
    let done = j.carried_by(1, Migration::Armed);
    j.settle("armed on the other rail", done);
    j.run(0, |e, now| e.migrate(None, RailId(1), RailId(0), now)).expect("both rails work");
    let done = j.carried_by(0, Migration::Armed);
    j.settle("armed on the first rail", done);
    j.take_cpu();
    j.run(0, |e, now| e.handle_rail(RailId(0), RailEvent::Down, now));
    let fault = j.take_cpu();
    let moved = j.engines[0].carriers().iter().filter(|c| c.path.1 == RailId(1)).count();
    assert_eq!(moved, n, "all migrate at once");
    j.settle("told", |_| true);
    j.take_cpu();
    j.run(0, |e, now| e.handle_rail(RailId(0), RailEvent::Up, now));
    let done = j.carried_by(1, Migration::Armed);
    j.settle("armed again", done);
    [two - one, request, fault, j.take_cpu()]
}

fn main() {
    let mut peers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if peers.is_empty() {
        peers = vec![1, 4, 16, 64, 256];
    }
    simulated(&peers);
    alone(&peers);
}
