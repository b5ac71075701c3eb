//! The hunt: seed after seed on every core until the time is over, and what is done with the first that fails.
//!
//! A seed that does not end (an engine that loops without time passing cannot be interrupted from outside) is told by the clock
//! on the wall, and ends the hunt.

use crate::case::Case;
use crate::draw::config_of;
use crate::run::{FRAMES_MIN, Failure, Report, first_line, run_case};
use crate::shrink::{Shrunk, shrink};
use rerail_core::Remedies;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A seed that takes longer than this on the wall is reported as endless.
const ENDLESS: Duration = Duration::from_secs(600);
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// How to hunt.
#[derive(Debug, Clone)]
pub struct Hunt {
    /// First seed.
    pub from: u64,
    /// One after the last seed.
    pub to: u64,
    /// When no more seeds are begun.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: usize,
    /// Goes on after a failure.
    pub keep_going: bool,
    /// Only seeds that have an aim.
    pub aimed: bool,
    /// Remedy that is switched off.
    pub without: Option<&'static str>,
    /// Time for shrinking one failure.
    pub shrink: Duration,
    /// Where shrunk cases are written.
    pub out: PathBuf,
    /// Says how far it is.
    pub progress: bool,
}

impl Hunt {
    /// Seeds from `from` on, on two threads.
    pub fn from_seed(from: u64) -> Self {
        Self {
            from,
            to: u64::MAX,
            time: None,
            jobs: 2,
            keep_going: false,
            aimed: false,
            without: None,
            shrink: Duration::from_secs(60),
            out: PathBuf::from("target/swarm"),
            progress: true,
        }
    }
}

/// What a hunt came to.
#[derive(Debug, Default)]
pub struct Bag {
    /// Seeds that kept every promise.
    pub kept: u64,
    /// Failures, as they came.
    pub failures: Vec<Failure>,
    /// Frames under faults, messages, and virtual nanoseconds of all seeds.
    pub sums: [u64; 3],
    /// One after the last seed that was begun.
    pub end: u64,
    /// Moments at which faults were aimed: in how many seeds, and in how many the first one struck.
    pub aims: BTreeMap<String, (u64, u64)>,
}

impl Bag {
    fn add(&mut self, r: &Report) {
        self.kept += 1;
        self.sums[0] += r.frames;
        self.sums[1] += r.messages;
        self.sums[2] += r.virtual_ns;
        if let Some((moment, _, struck)) = r.aim {
            let n = self.aims.entry(format!("{moment:?}")).or_default();
            n.0 += 1;
            n.1 += u64::from(struck > 0);
        }
    }
}

/// Runs seeds until one fails, the time is over, or there are no more.
pub fn hunt(h: &Hunt) -> Bag {
    let begun = Instant::now();
    let next = AtomicU64::new(h.from);
    let stop = AtomicBool::new(false);
    let bag = Mutex::new(Bag::default());
    let jobs = h.jobs.max(1);
    // what each thread runs, and since when, in milliseconds
    let busy: Vec<(AtomicU64, AtomicU64)> = (0..jobs).map(|_| (u64::MAX.into(), 0.into())).collect();
    let left = AtomicU64::new(jobs as u64);
    std::thread::scope(|s| {
        for slot in &busy {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) && h.time.is_none_or(|t| begun.elapsed() < t) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= h.to {
                        break;
                    }
                    if h.aimed && config_of(seed, Remedies::default()).aim.is_none() {
                        continue;
                    }
                    slot.1.store(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
                    slot.0.store(seed, Ordering::Relaxed);
                    let done = run_case(&Case::whole(seed, FRAMES_MIN, h.without), false);
                    slot.0.store(u64::MAX, Ordering::Relaxed);
                    let mut bag = bag.lock().unwrap_or_else(|e| e.into_inner());
                    bag.end = bag.end.max(seed + 1);
                    match done {
                        Ok(r) => bag.add(&r),
                        Err(f) => {
                            if h.progress {
                                println!("seed {} broke a promise: {}", f.seed, first_line(&f.message));
                            }
                            bag.failures.push(f);
                            if !h.keep_going {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut said = Instant::now();
        while left.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(20));
            let now = begun.elapsed().as_millis() as u64;
            for (seed, since) in &busy {
                let seed = seed.load(Ordering::Relaxed);
                let since = since.load(Ordering::Relaxed);
                if seed != u64::MAX && now.saturating_sub(since) > ENDLESS.as_millis() as u64 {
                    eprintln!(
                        "seed {seed} broke a promise: live: it has run for {ENDLESS:?} and does not end"
                    );
                    std::process::exit(1);
                }
            }
            if h.progress && said.elapsed() >= PROGRESS {
                said = Instant::now();
                println!("{}", progress(&bag.lock().unwrap_or_else(|e| e.into_inner()), begun.elapsed()));
            }
        }
    });
    let mut bag = bag.into_inner().unwrap_or_else(|e| e.into_inner());
    // the same failure first, whichever thread was quicker
    bag.failures.sort_by_key(|f| f.seed);
    if h.progress {
        println!("{}", progress(&bag, begun.elapsed()));
    }
    bag
}

fn progress(b: &Bag, took: Duration) -> String {
    format!(
        "{} seeds kept every promise, {} broke one; {:.1} seeds/s, {} million frames, {} thousand messages, {:.1} hours of \
         virtual time",
        b.kept,
        b.failures.len(),
        b.kept as f64 / took.as_secs_f64().max(0.001),
        b.sums[0] / 1_000_000,
        b.sums[1] / 1000,
        b.sums[2] as f64 / 3.6e12
    )
}

/// Shrinks a failure, and writes it into a file of `h.out`.
///
/// # Errors
/// When the file cannot be written.
pub fn keep(h: &Hunt, f: &Failure) -> Result<(Shrunk, PathBuf), String> {
    let s = shrink(&Case::whole(f.seed, FRAMES_MIN, h.without), f, h.shrink, u32::MAX);
    let bug = h.without.map_or(String::new(), |w| format!("-{w}"));
    let file = h.out.join(format!("seed-{}{bug}.case", f.seed));
    write_case(&file, f, &s).map_err(|e| format!("{} cannot be written: {e}", file.display()))?;
    Ok((s, file))
}

fn write_case(file: &Path, f: &Failure, s: &Shrunk) -> std::io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let facts = s.failure.facts;
    let quiet = facts.faults - (0..facts.faults).filter(|&i| s.case.skip_faults.contains(i)).count() as u64;
    let text = format!(
        "# seed {} of the simulator, made smaller in {} runs\n# {}\n# {} messages, {} faults, {:.3} ms\n{}",
        f.seed,
        s.runs,
        first_line(&s.failure.message),
        facts.messages,
        quiet,
        facts.virtual_ns as f64 / 1e6,
        s.case
    );
    std::fs::write(file, text)
}
