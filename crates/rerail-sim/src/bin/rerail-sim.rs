//! Runs seeds and named scenarios of the simulator; hunts, makes failures smaller, replays them.

use clap::Parser;
use rerail_core::{PLANTED_BUGS, Remedies};
use rerail_sim::case::{Case, PLAIN};
use rerail_sim::planted;
use rerail_sim::rng::mix;
use rerail_sim::run::{RunOptions, first_line, quietly, run_case, run_seed, run_seeds};
use rerail_sim::rwapi;
use rerail_sim::scenario;
use rerail_sim::swarm::{Hunt, hunt, keep};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

/// Runs the engine in virtual time.
#[derive(Parser)]
#[command(name = "rerail-sim", arg_required_else_help = true)]
struct Wanted {
    /// Hunt: seed after seed until one breaks a promise, which is then made smaller
    #[arg(long, group = "what")]
    swarm: bool,
    /// Run a case that was written by a hunt
    #[arg(long, value_name = "FILE", group = "what")]
    replay: Option<PathBuf>,
    /// Make a failing seed smaller
    #[arg(long, value_name = "S", value_parser = number, group = "what")]
    shrink: Option<u64>,
    /// For every planted bug, find the first seed that meets it
    #[arg(long, group = "what")]
    planted: bool,
    /// Run a named story; "list" names them all
    #[arg(long, value_name = "NAME", group = "what")]
    scenario: Option<String>,
    /// Run programs of RWAPI on the worlds of the seeds
    #[arg(long, group = "what")]
    rwapi: bool,
    /// Run one seed; of a hunt, the first [default of a hunt: from the clock, and printed]
    #[arg(long, value_name = "S", value_parser = number)]
    seed: Option<u64>,
    /// Run many seeds; the last line is one hash of all their histories
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with = "seed")]
    seeds: Option<(u64, u64)>,
    /// Of a hunt: for so long, such as 90, 90s, 15m, 2h [default: 60s; with --count, without a limit]
    #[arg(long, value_name = "T", value_parser = duration)]
    time: Option<Duration>,
    /// Of a hunt: at most so many seeds; of --planted: for each bug [default there: 1000]
    #[arg(long, value_name = "N", value_parser = number)]
    count: Option<u64>,
    /// Of a hunt: go on after a failure, and print them all
    #[arg(long)]
    keep_going: bool,
    /// Of a hunt and of --planted: only seeds that have an aimed fault
    #[arg(long)]
    aimed: bool,
    /// Of a hunt: where the smaller cases go [default: target/swarm]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Of --planted: only this bug; may be repeated
    #[arg(long, value_name = "NAME", value_parser = remedy)]
    only: Vec<&'static str>,
    /// With one remedy switched off
    #[arg(long, value_name = "NAME", value_parser = remedy)]
    without: Option<&'static str>,
    /// With every world made plain in one respect, such as no-migration
    #[arg(long, value_name = "WHAT", value_parser = plain)]
    plain: Option<&'static str>,
    /// Print what happens
    #[arg(long)]
    trace: bool,
    /// Frames under faults
    #[arg(long, value_name = "N", value_parser = number, default_value = "10000")]
    frames: u64,
    /// Threads [default: 2; of a hunt and of --planted: all cores]
    #[arg(long, alias = "threads", value_name = "N", value_parser = number)]
    jobs: Option<u64>,
}

impl Wanted {
    fn options(&self) -> RunOptions {
        let mut options =
            RunOptions { trace: self.trace, frames: self.frames, plain: self.plain, ..RunOptions::default() };
        if let Some(name) = self.without {
            options.without = Some(name);
            options.remedies = Remedies::without(name).unwrap_or_default();
        }
        options
    }

    /// Threads, or so many.
    fn jobs(&self, usual: usize) -> usize {
        self.jobs.map_or(usual, |jobs| jobs as usize)
    }
}

fn main() -> ExitCode {
    match run(&Wanted::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get())
}

/// `3..90`.
fn seeds(s: &str) -> Result<(u64, u64), String> {
    let (from, to) = s.split_once("..").ok_or("write A..B")?;
    Ok((number(from)?, number(to)?))
}

fn number(s: &str) -> Result<u64, String> {
    s.replace('_', "").parse::<u64>().map_err(|_| format!("\"{s}\" is not a number"))
}

/// `90`, `90s`, `15m`, `2h`.
fn duration(s: &str) -> Result<Duration, String> {
    let (n, unit) = s.split_at(s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len()));
    let scale = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(format!("\"{s}\" is not a time: write 90s, 15m or 2h")),
    };
    Ok(Duration::from_secs(number(n)? * scale))
}

fn remedy(name: &str) -> Result<&'static str, String> {
    let found = Remedies::NAMES.iter().find(|n| **n == name);
    found.copied().ok_or_else(|| format!("no remedy is called {name}; there are {:?}", Remedies::NAMES))
}

fn plain(name: &str) -> Result<&'static str, String> {
    let found = PLAIN.iter().find(|(n, _)| *n == name).map(|(n, _)| *n);
    let names = || PLAIN.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("nothing plain is called {name}; there are {}", names()))
}

fn run(w: &Wanted) -> Result<bool, String> {
    if (w.planted || w.without.is_some()) && !PLANTED_BUGS {
        return Err(rerail_sim::remedy::HOW.into());
    }
    let o = w.options();
    if w.swarm {
        return swarm(w, &o);
    }
    if w.planted {
        return Ok(planted::table(&w.only, w.count.unwrap_or(1000), w.jobs(cores()), w.aimed));
    }
    if let Some(file) = &w.replay {
        return replay(file, w.trace);
    }
    if let Some(seed) = w.shrink {
        let mut h = Hunt::from_seed(seed);
        h.without = o.without;
        return match run_case(&Case::whole(seed, o.frames, o.without), false) {
            Ok(r) => {
                println!("{r:?}: nothing to make smaller");
                Ok(true)
            }
            Err(f) => tell(&h, &f).map(|()| false),
        };
    }
    if let Some(name) = &w.scenario {
        return story(name, &o);
    }
    if w.rwapi {
        return rwapi_programs(w);
    }
    match (w.seed, w.seeds) {
        (Some(seed), _) => one(seed, &o),
        (None, Some((from, to))) if to == from + 1 => one(from, &o),
        (None, Some((from, to))) => many(from, to, w.jobs(2), &o),
        (None, None) => Err("nothing to do: give --swarm, --seed, --seeds or what --help names".into()),
    }
}

fn swarm(w: &Wanted, o: &RunOptions) -> Result<bool, String> {
    let from = match w.seed.or(w.seeds.map(|(from, _)| from)) {
        Some(from) => from,
        // every hunt its own ground: a thousand new seeds a second
        None => std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs() * 1000),
    };
    let mut h = Hunt::from_seed(from);
    h.jobs = w.jobs(cores());
    h.time = w.time.or_else(|| w.count.is_none().then_some(Duration::from_secs(60)));
    h.to = w.count.map_or(u64::MAX, |n| from.saturating_add(n));
    h.keep_going = w.keep_going;
    h.aimed = w.aimed;
    h.without = o.without;
    if let Some(out) = &w.out {
        h.out = out.clone();
    }
    println!("hunting from seed {from} on, {} threads", h.jobs);
    let bag = hunt(&h);
    println!("seeds {from}..{}", bag.end);
    let aims: Vec<String> = bag.aims.iter().map(|(m, n)| format!("{m} {}/{}", n.1, n.0)).collect();
    println!("aims that struck: {}", aims.join(", "));
    if w.keep_going {
        for f in &bag.failures {
            println!("seed {} ({}): {}", f.seed, f.kind(), first_line(&f.message));
        }
    }
    // one of each kind is made smaller
    let mut kinds = Vec::new();
    for f in &bag.failures {
        if !kinds.contains(&f.kind()) {
            kinds.push(f.kind());
            tell(&h, f)?;
        }
    }
    Ok(bag.failures.is_empty())
}

fn tell(h: &Hunt, f: &rerail_sim::Failure) -> Result<(), String> {
    println!("\nseed {}: {}\nmaking it smaller ...", f.seed, first_line(&f.message));
    let (s, file) = keep(h, f)?;
    println!("{}\nsmaller, after {} runs:\n{}", s.failure.message, s.runs, s.case);
    println!("replay it: cargo xtask swarm --replay {} --trace", file.display());
    Ok(())
}

fn replay(file: &Path, trace: bool) -> Result<bool, String> {
    let text =
        std::fs::read_to_string(file).map_err(|e| format!("{} cannot be read: {e}", file.display()))?;
    let case: Case = text.parse().map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(match run_case(&case, trace) {
        Ok(r) => {
            println!("{r:?}: every promise was kept");
            true
        }
        Err(f) => {
            println!("{f}");
            false
        }
    })
}

fn story(name: &str, o: &RunOptions) -> Result<bool, String> {
    if name == "list" {
        for s in scenario::ALL {
            let remedies: Vec<&str> = s.remedies.iter().map(|r| r.0).collect();
            println!("{:<8} {:<40} {}", s.hazard, s.name, remedies.join(", "));
        }
        return Ok(true);
    }
    let s = scenario::ALL
        .iter()
        .find(|s| s.name == name)
        .ok_or_else(|| format!("no scenario is called {name}"))?;
    Ok(match quietly(|| (s.run)(&scenario::Story { remedies: o.remedies, trace: o.trace })) {
        Ok(()) => {
            println!("{name}: every promise was kept");
            true
        }
        Err(e) => {
            println!("{name}: {e}");
            false
        }
    })
}

fn one(seed: u64, o: &RunOptions) -> Result<bool, String> {
    let start = std::time::Instant::now();
    Ok(match run_seed(seed, o) {
        Ok(r) => {
            println!("{r:?} in {:?}", start.elapsed());
            true
        }
        Err(f) => {
            println!("{f}");
            false
        }
    })
}

fn many(from: u64, to: u64, jobs: usize, o: &RunOptions) -> Result<bool, String> {
    let state = Mutex::new((0u64, 0u64, u64::MAX, 0u64, 0u64));
    let adapters = Mutex::new((0u64, 0u64, 0u64, 0u64));
    let history = Mutex::new(0u64);
    run_seeds(from, to, jobs, o, |r| {
        let mut s = state.lock().unwrap_or_else(|e| e.into_inner());
        match r {
            Ok(r) => {
                // threads finish in any order, so the sum must not depend on it
                *history.lock().unwrap_or_else(|e| e.into_inner()) ^= mix(mix(r.seed) ^ r.hash);
                s.0 += 1;
                s.2 = s.2.min(r.frames);
                s.3 |= r.transitions;
                s.4 |= r.migration_steps;
                let mut a = adapters.lock().unwrap_or_else(|e| e.into_inner());
                a.0 += u64::from(r.landed.0 > 0);
                a.1 += u64::from(r.landed.1 > 0);
                a.2 += u64::from(r.moves > 0);
                a.3 += u64::from(r.lanes_moved > 0);
            }
            Err(f) => {
                s.1 += 1;
                println!("{f}\n");
            }
        }
    });
    let s = state.into_inner().unwrap_or_else(|e| e.into_inner());
    println!(
        "{} seeds kept every promise, {} broke one; fewest frames {}, transitions {:#x}, steps of carriers {:#x}",
        s.0, s.1, s.2, s.3, s.4
    );
    let a = adapters.into_inner().unwrap_or_else(|e| e.into_inner());
    println!(
        "adapters wrote in {} seeds, in {} of them also after a stream broke, and migrated in {}; lanes moved in {}",
        a.0, a.1, a.2, a.3
    );
    println!("history {:016x}", history.into_inner().unwrap_or_else(|e| e.into_inner()));
    Ok(s.1 == 0)
}

fn rwapi_programs(w: &Wanted) -> Result<bool, String> {
    if let Some(seed) = w.seed {
        return Ok(match rwapi::run_seed(seed, w.trace, None) {
            Ok(r) => {
                println!("{r:?}");
                true
            }
            Err(f) => {
                println!("{f}");
                false
            }
        });
    }
    let (from, to) = w.seeds.ok_or("--rwapi needs --seed or --seeds")?;
    let sum = Mutex::new(rwapi::Sum::default());
    rwapi::run_seeds(from, to, w.jobs(2), |r| {
        let mut sum = sum.lock().unwrap_or_else(|e| e.into_inner());
        match &r {
            Ok(r) => sum.add(r),
            Err(f) => {
                sum.broken += 1;
                println!("{f}\n");
            }
        }
    });
    let sum = sum.into_inner().unwrap_or_else(|e| e.into_inner());
    println!("{sum}");
    Ok(sum.broken == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn wanted(words: &str) -> Result<Wanted, clap::Error> {
        Wanted::try_parse_from(std::iter::once("rerail-sim").chain(words.split(' ')))
    }

    #[test]
    fn options_are_read_as_they_were() {
        Wanted::command().debug_assert();
        let w = wanted("--swarm --time 2h --count 1_000 --seed 7 --threads 3 --keep-going --out x").unwrap();
        assert_eq!((w.time, w.count, w.seed), (Some(Duration::from_secs(7200)), Some(1000), Some(7)));
        assert_eq!((w.jobs(2), w.keep_going, w.out), (3, true, Some("x".into())));
        let w = wanted("--seeds 0..300 --frames 20 --trace").unwrap();
        assert_eq!((w.seeds, w.options().frames, w.options().trace), (Some((0, 300)), 20, true));
        let name = Remedies::NAMES[0];
        assert_eq!(wanted(&format!("--shrink 9 --without {name}")).unwrap().options().without, Some(name));
        for wrong in [
            "--seeds 3",
            "--time 5d",
            "--seed x",
            "--without nothing",
            "--swarm --planted",
            "--seed 1 --seeds 1..2",
        ] {
            assert!(wanted(wrong).is_err(), "{wrong}");
        }
    }
}
