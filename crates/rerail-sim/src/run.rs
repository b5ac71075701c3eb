//! How a seed or a case is run, and how a failure is told.

use crate::aim::Blow;
use crate::case::{Case, PLAIN};
use crate::draw::config_of;
use crate::link::SEC;
use crate::moment::Moment;
use crate::world::{Config, Facts, World};
use rerail_core::Remedies;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Times that adapters moved a connection to its alternate network.
    pub moves: u64,
    /// Lanes that left a crowded route.
    pub lanes_moved: u64,
    /// Rounds of processes.
    pub rounds: u64,
    /// The first aim, and how often aims struck.
    pub aim: Option<(Moment, Blow, u64)>,
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
const PROMISES: [&str; 12] = [
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
    "armed",
    "simulator",
];

/// The first line of a message.
pub fn first_line(s: &str) -> &str {
    s.lines().next().unwrap_or(s)
}

impl Failure {
    /// Which promise was broken: its name, or the place of the assertion.
    pub fn kind(&self) -> String {
        let first = first_line(&self.message);
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
const TOLD: [&str; 8] = [
    "evidence",
    "port",
    "migration",
    "never a silent hang",
    "busy peer",
    "a busy peer is not a broken path",
    "authentic",
    "sealed",
];

/// Whether a failure breaks this promise: it says its name, or, for an invariant of the engine or the simulator, its sentence. Any other
/// panic, such as an index out of bounds, is a defect of its own and proves nothing about the promise.
pub fn breaks(message: &str, promise: &str) -> bool {
    let first = first_line(message);
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
    /// What is made plain in the world of the seed, if anything: one of [`PLAIN`].
    pub plain: Option<&'static str>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { remedies: Remedies::default(), without: None, trace: false, frames: FRAMES_MIN, plain: None }
    }
}

/// Runs one seed through both phases.
///
/// # Errors
/// The promise that was broken.
pub fn run_seed(seed: u64, o: &RunOptions) -> Result<Report, Failure> {
    let replay = format!(
        "cargo run --release -p rerail-sim --bin rerail-sim -- --seed {seed}{}",
        [("without", o.without), ("plain", o.plain)]
            .iter()
            .filter_map(|(option, value)| value.map(|value| format!(" --{option} {value}")))
            .collect::<String>()
    );
    let mut cfg = config_of(seed, o.remedies);
    if let Some((_, make_plain)) = PLAIN.iter().find(|(name, _)| Some(*name) == o.plain) {
        make_plain(&mut cfg);
    }
    run_config(seed, cfg, o.frames, o.trace, replay)
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
            moves: w.conns.iter().map(|k| k.alternate.moves).sum(),
            lanes_moved: (0..w.procs.len()).map(|p| w.counters(p).lanes_moved).sum(),
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
    each_seed(from, to, threads, |seed| each(run_seed(seed, o)));
}

/// Calls `run` with each of the seeds `from..to`, on `threads` threads, in any order.
pub(crate) fn each_seed(from: u64, to: u64, threads: usize, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(from);
    std::thread::scope(|s| {
        for _ in 0..threads.max(1) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        break;
                    }
                    run(seed);
                }
            });
        }
    });
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
