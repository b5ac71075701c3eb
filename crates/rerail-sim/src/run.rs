//! Seeds: what world a seed means, and how a failure is told.

use crate::aim::{Aim, Blow, Moment};
use crate::app::Traffic;
use crate::case::{Case, Ordinals};
use crate::collective::Collective;
use crate::fault::{FaultPlan, KINDS};
use crate::link::{MS, SEC, US};
use crate::onesided::OneSided;
use crate::rng::Rng;
use crate::theme;
use crate::world::{Config, NetSpec, World};
use rerail_core::wire::Coverage;
use rerail_core::{BulkMode, Options, Policy, Remedies};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Frames that every seed must see under faults.
pub const FRAMES_MIN: u64 = 10_000;
/// Virtual time after which a seed's first phase ends in any case.
const PHASE_NS_MAX: u64 = 60 * SEC;
/// Events after which a seed's world is said to run in circles; a hundred times what the largest needs.
const EVENTS_MAX: u64 = 100_000_000;

/// What came of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Frames received under faults.
    pub frames: u64,
    /// Messages.
    pub messages: u64,
    /// One-sided operations.
    pub asks: u64,
    /// Operations of groups, counted at each member; joins among them.
    pub shares: u64,
    /// Hash of the history.
    pub hash: u64,
    /// Transitions visited.
    pub transitions: u64,
    /// Steps of carriers visited.
    pub migration_steps: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Paths taken out of service.
    pub path_downs: u64,
    /// Things that happened.
    pub happened: u64,
    /// Bytes that adapters wrote, and of those the bytes that landed when their stream was broken.
    pub landed: (u64, u64),
    /// Rounds of processes.
    pub rounds: u64,
    /// The first aim, and how often aims struck.
    pub aim: Option<(Moment, Blow, u64)>,
}

/// What a failing run had done until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Faults begun.
    pub faults: u64,
    /// Sends drawn.
    pub sends: u64,
    /// Messages that engines had accepted.
    pub messages: u64,
    /// Virtual time.
    pub virtual_ns: u64,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Which promise, and how.
    pub message: String,
    /// The command that shows it again.
    pub replay: String,
    /// What had happened.
    pub facts: Facts,
}

/// Promises, as failures begin with them.
const PROMISES: [&str; 11] = [
    "no false completion",
    "exactly once",
    "in order",
    "intact",
    "fenced",
    "live",
    "bounded",
    "names",
    "measured",
    "at rest",
    "simulator",
];

impl Failure {
    /// Which promise was broken: its name, or the place of the assertion.
    pub fn kind(&self) -> String {
        let first = crate::swarm::first_line(&self.message);
        if let Some(p) = PROMISES.iter().find(|p| first.contains(&format!("{p}: "))) {
            return (*p).to_owned();
        }
        if self.message.starts_with("a busy peer is not a broken path") {
            return "busy peer".to_owned();
        }
        let place = self.message.rsplit_once('[').and_then(|(_, p)| p.strip_suffix(']'));
        place
            .and_then(|p| p.rsplit('/').next())
            .map_or_else(|| "panic".to_owned(), |p| format!("assertion {p}"))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\nreplay: {}", self.seed, self.message, self.replay)
    }
}

/// Promises of stories that seeds do not check, and one that has a longer name there.
const TOLD: [&str; 6] = [
    "evidence",
    "never a silent hang",
    "busy peer",
    "a busy peer is not a broken path",
    "authentic",
    "sealed",
];

/// Whether a failure breaks this promise: it says its name, or, for an invariant of the engine or the simulator, its sentence. Any other
/// panic, such as an index out of bounds, is a defect of its own and proves nothing about the promise.
pub fn breaks(message: &str, promise: &str) -> bool {
    let first = crate::swarm::first_line(message);
    if first.starts_with("simulator: ") {
        return false;
    }
    if PROMISES.contains(&promise) || TOLD.contains(&promise) {
        let named = format!("{promise}: ");
        return first.starts_with(&named) || first.contains(&format!(": {named}"));
    }
    let sentence = first.rsplit_once(" [").map_or(first, |(sentence, _)| sentence);
    sentence == promise || sentence.ends_with(&format!(": {promise}"))
}

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
        adapters: Vec::new(),
        one_sided: None,
        collective: Collective::swarm(&mut Rng::new(seed, 15)),
        skip_faults: Ordinals::default(),
        skip_sends: Ordinals::default(),
    };
    let mut ar = Rng::new(seed, 0xada1);
    if ar.percent(60) {
        cfg.adapters =
            cfg.nets.iter().map(|_| if ar.percent(80) { ar.pick(&[1, 2, 4, 16]) } else { 0 }).collect();
    }
    lanes(seed, &mut cfg);
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
    // where only processes misbehave nothing may break
    if !cfg.adapters.is_empty() && !cfg.no_path_down && ar.percent(30) {
        theme::writes(&mut ar, &mut cfg);
    }
    Aim::draw(seed, &mut cfg);
    cfg
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
    if let (true, Some(routes)) = (r.percent(60), KINDS.iter().position(|k| *k == "routes")) {
        cfg.faults.weights[routes] = r.range(1, 20) as u32;
    }
}

/// What is summed, and how soon a rail is blamed. Where bits are flipped everything is summed: the oracle looks at every byte.
fn checksums(seed: u64, cfg: &mut Config) {
    let mut r = Rng::new(seed, 0xc5);
    let flips = |kind: &str| KINDS.iter().position(|k| *k == kind).is_some_and(|i| cfg.faults.weights[i] > 0);
    let flips = flips("corrupt") || flips("stream-corrupt");
    for (p, o) in cfg.options.iter_mut().enumerate() {
        o.corrupt_threshold = r.pick(&[8, 8, 1, 2, 4, 0]);
        o.quarantine = Duration::from_millis(r.log_range(1, 2_000));
        o.retransmit_level = r.pick(&[16, 16, 1, 4, 0]);
        if flips || r.percent(60) {
            continue;
        }
        o.checksum.all = r.pick(&[Coverage::Full, Coverage::Header, Coverage::None]);
        for n in &cfg.hosts[cfg.procs[p]] {
            if r.percent(30) {
                let mode = r.pick(&[Coverage::Full, Coverage::Header, Coverage::None]);
                o.checksum.rails.push((format!("net{n}"), mode));
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
        ..Options::default()
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

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs `f`; a panic in it becomes an error with its message and place, and is not printed.
///
/// # Errors
/// The message of the panic.
pub fn quietly<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.with(|q| *q.borrow()) {
                let what = info
                    .payload()
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| info.payload().downcast_ref::<&str>().map(|s| (*s).to_owned()))
                    .unwrap_or_else(|| "a panic without words".into());
                let place =
                    info.location().map_or(String::new(), |l| format!(" [{}:{}]", l.file(), l.line()));
                LAST_PANIC.with(|p| *p.borrow_mut() = Some(what + &place));
            } else {
                before(info);
            }
        }));
    });
    QUIET.with(|q| *q.borrow_mut() = true);
    let out = catch_unwind(AssertUnwindSafe(f));
    QUIET.with(|q| *q.borrow_mut() = false);
    out.map_err(|_| LAST_PANIC.with(|p| p.borrow_mut().take()).unwrap_or_else(|| "panic".into()))
}

/// How a seed is run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Remedies that are on.
    pub remedies: Remedies,
    /// Name of the one that is off, for the replay command.
    pub without: Option<&'static str>,
    /// Prints what happens.
    pub trace: bool,
    /// Frames under faults.
    pub frames: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { remedies: Remedies::default(), without: None, trace: false, frames: FRAMES_MIN }
    }
}

/// Runs one seed through both phases.
///
/// # Errors
/// The promise that was broken.
pub fn run_seed(seed: u64, o: &RunOptions) -> Result<Report, Failure> {
    let replay = format!(
        "cargo run --release -p rerail-sim --bin rerail-sim -- --seed {seed}{}",
        o.without.map_or(String::new(), |w| format!(" --without {w}"))
    );
    run_config(seed, config_of(seed, o.remedies), o.frames, o.trace, replay)
}

/// Runs one case through both phases.
///
/// # Errors
/// The promise that was broken.
pub fn run_case(case: &Case, trace: bool) -> Result<Report, Failure> {
    let replay = format!("the case\n{case}");
    run_config(case.seed, case.config(), case.frames, trace, replay)
}

fn run_config(seed: u64, cfg: Config, frames: u64, trace: bool, replay: String) -> Result<Report, Failure> {
    let mut world = None;
    let aim = cfg.aim.as_ref().map(|a| (a.moment, a.blow));
    let done = quietly(|| {
        let w = world.insert(World::new(cfg));
        w.print = trace;
        w.events_max = EVENTS_MAX;
        w.run_under_faults(frames, PHASE_NS_MAX);
        let frames = w.frames();
        w.heal_and_finish();
        Report {
            seed,
            frames,
            messages: w.oracle.msgs.len() as u64,
            asks: w.asks.list.len() as u64,
            shares: w.groups.shares.len() as u64,
            hash: w.hash(),
            transitions: w.transitions(),
            migration_steps: w.migration_steps(),
            virtual_ns: w.now,
            path_downs: w.path_downs,
            happened: w.happened(),
            rounds: w.rounds,
            landed: w.adapters.landed,
            aim: aim.map(|(moment, blow)| (moment, blow, w.struck)),
        }
    });
    let facts = world.as_ref().map_or_else(Facts::default, World::facts);
    // an engine that has broken a promise may break another when it is dropped
    let _ = quietly(|| drop(world));
    done.map_err(|message| Failure { seed, message, replay, facts })
}

/// Runs seeds `from..to` on `threads` threads; calls `each` with every result, in any order.
pub fn run_seeds(
    from: u64,
    to: u64,
    threads: usize,
    o: &RunOptions,
    each: impl Fn(Result<Report, Failure>) + Sync,
) {
    let next = AtomicU64::new(from);
    std::thread::scope(|s| {
        for _ in 0..threads.max(1) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        break;
                    }
                    each(run_seed(seed, o));
                }
            });
        }
    });
}

/// A datagram in words, for a trace.
pub fn packet_text(b: &[u8]) -> String {
    use rerail_wire::frame::FRAME_HEADER_BYTES;
    use rerail_wire::packet::{PacketHeader, PacketKind, peek};
    use std::fmt::Write;
    let Some((_, kind)) = peek(b) else { return format!("{} bytes of garbage", b.len()) };
    if matches!(kind, PacketKind::Hello | PacketKind::Accept) {
        let path = u16::from_le_bytes([b[10], b[11]]);
        let epoch = u32::from_le_bytes([b[12], b[13], b[14], b[15]]);
        return format!("{kind:?} path {path} epoch {epoch}");
    }
    let Ok((h, mut rest)) = PacketHeader::parse(b) else { return "a broken packet".into() };
    let mut s = format!("{kind:?} path {} epoch {} number {}", h.path, h.epoch, h.number);
    if let (PacketKind::Bulk, Ok((b, _))) = (kind, rerail_wire::bulk::BulkHeader::parse(rest)) {
        let _ = write!(s, " [seq {} a {:#x} len {}]", b.seq, b.at, b.len);
    }
    if kind == PacketKind::Data {
        while let Ok(f) = rerail_wire::FrameHeader::parse(rest) {
            let _ = match f.kind {
                rerail_wire::FrameType::Ack => {
                    write!(
                        s,
                        " [Ack path {} epoch {} channel {} up to {} first {}]",
                        f.b as u16,
                        f.b >> 32,
                        f.b >> 16 & 1,
                        f.a,
                        f.x
                    )
                }
                _ => write!(
                    s,
                    " [{:?} seq {} a {:#x} total {} len {} x {}]",
                    f.kind, f.seq, f.a, f.total, f.len, f.x
                ),
            };
            let Some(r) = rest.get(FRAME_HEADER_BYTES + f.len as usize..) else { break };
            rest = r;
        }
    }
    s
}

#[cfg(test)]
mod promises {
    use super::breaks;

    #[test]
    fn a_failure_breaks_the_promise_that_it_names() {
        assert!(breaks("live: a message never comes [a.rs:1]", "live"));
        assert!(breaks("p0 StreamId(2): no false completion: a stream would write", "no false completion"));
        assert!(breaks("assertion `left == right` failed: evidence: taken\n left: 1", "evidence"));
        assert!(breaks("invariant 7: retained payload is bounded [a.rs:1]", "retained payload is bounded"));
        let assertion = "assertion `left == right` failed: range outside the vectors\n  left: 1 [a.rs:1]";
        assert!(breaks(assertion, "range outside the vectors"));
    }

    #[test]
    fn any_other_panic_breaks_none() {
        let others = [
            "index out of bounds: the len is 3 but the index is 7 [crates/rerail-core/src/peer.rs:1]",
            "called `Option::unwrap()` on a `None` value [crates/rerail-core/src/peer.rs:1]",
            "attempt to subtract with overflow [crates/rerail-core/src/peer.rs:1]",
            "live: another promise [a.rs:1]",
            "simulator: in order: the story did not come about [a.rs:1]",
        ];
        for message in others {
            for promise in ["bounded", "in order", "intact", "fenced", "a matched message is known"] {
                assert!(!breaks(message, promise), "{message} is not {promise}");
            }
        }
    }
}
