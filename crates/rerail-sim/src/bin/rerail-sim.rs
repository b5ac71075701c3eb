//! Runs seeds and named scenarios of the simulator; hunts, makes failures smaller, replays them.

use rerail_core::Remedies;
use rerail_sim::case::Case;
use rerail_sim::planted;
use rerail_sim::rng::mix;
use rerail_sim::run::{RunOptions, quietly, run_case, run_seed, run_seeds};
use rerail_sim::scenario;
use rerail_sim::swarm::{Hunt, first_line, hunt, keep};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

const HELP: &str = "\
Runs the engine in virtual time.

  rerail-sim --swarm             hunts: seed after seed until one breaks a promise, which is then made smaller
      --time T                   for so long: 90, 90s, 15m, 2h (default 60s); with --count, without a limit of time
      --count N                  at most so many seeds
      --seed S                   first seed (default: from the clock, and told)
      --jobs N                   threads (default: all cores)
      --keep-going               go on after a failure, and tell them all
      --aimed                    only seeds that have an aimed fault
      --out DIR                  where the smaller cases go (default target/swarm)
  rerail-sim --replay FILE       runs a case that was written by a hunt
  rerail-sim --shrink S          makes a failing seed smaller
  rerail-sim --planted           for every planted bug, the first seed that finds it
      --only NAME                only this bug; may be repeated
      --count N                  at most so many seeds for each (default 1000)
  rerail-sim --seed S            one seed
  rerail-sim --seeds A..B        many seeds; the last line is one hash of all their histories
  rerail-sim --scenario NAME     a named story; \"list\" names them all
  rerail-sim ... --without NAME  with one remedy switched off
  rerail-sim ... --trace         print what happens
  rerail-sim ... --frames N      frames under faults (default 10000)
  rerail-sim ... --threads N     threads (default 2)
";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// What is asked for.
#[derive(Default)]
struct Asked {
    o: RunOptions,
    swarm: bool,
    planted: bool,
    only: Vec<String>,
    time: Option<Duration>,
    count: Option<u64>,
    seeds: Option<(u64, u64)>,
    shrink: Option<u64>,
    replay: Option<PathBuf>,
    story: Option<String>,
    jobs: Option<usize>,
    keep_going: bool,
    aimed: bool,
    out: Option<PathBuf>,
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

fn parse() -> Result<Option<Asked>, String> {
    let mut q = Asked::default();
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{a} needs a value"));
        match a.as_str() {
            "--swarm" => q.swarm = true,
            "--planted" => q.planted = true,
            "--only" => q.only.push(value()?),
            "--time" => q.time = Some(duration(&value()?)?),
            "--count" => q.count = Some(number(&value()?)?),
            "--seed" => {
                let s = number(&value()?)?;
                q.seeds = Some((s, s + 1));
            }
            "--seeds" => {
                let v = value()?;
                let (x, y) = v.split_once("..").ok_or("--seeds takes A..B")?;
                q.seeds = Some((number(x)?, number(y)?));
            }
            "--shrink" => q.shrink = Some(number(&value()?)?),
            "--replay" => q.replay = Some(value()?.into()),
            "--scenario" => q.story = Some(value()?),
            "--without" => {
                let name = remedy(&value()?)?;
                q.o.without = Some(name);
                q.o.remedies = Remedies::without(name);
            }
            "--trace" => q.o.trace = true,
            "--frames" => q.o.frames = number(&value()?)?,
            "--jobs" | "--threads" => q.jobs = Some(number(&value()?)? as usize),
            "--keep-going" => q.keep_going = true,
            "--aimed" => q.aimed = true,
            "--out" => q.out = Some(value()?.into()),
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("there is no option {a}")),
        }
    }
    Ok(Some(q))
}

fn run() -> Result<bool, String> {
    let Some(q) = parse()? else {
        print!("{HELP}");
        return Ok(true);
    };
    if q.swarm {
        return swarm(&q);
    }
    if q.planted {
        let only: Vec<&'static str> = q.only.iter().map(|n| remedy(n)).collect::<Result<_, _>>()?;
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        return Ok(planted::table(&only, q.count.unwrap_or(1000), q.jobs.unwrap_or(cores), q.aimed));
    }
    if let Some(file) = &q.replay {
        return replay(file, q.o.trace);
    }
    if let Some(seed) = q.shrink {
        let mut h = Hunt::from_seed(seed);
        h.without = q.o.without;
        return match run_case(&Case::whole(seed, q.o.frames, q.o.without), false) {
            Ok(r) => {
                println!("{r:?}: nothing to make smaller");
                Ok(true)
            }
            Err(f) => tell(&h, &f).map(|()| false),
        };
    }
    if let Some(name) = &q.story {
        return story(name, &q.o);
    }
    let (from, to) = q.seeds.ok_or("nothing to do")?;
    if to == from + 1 { one(from, &q.o) } else { many(from, to, &q) }
}

fn swarm(q: &Asked) -> Result<bool, String> {
    let from = match q.seeds {
        Some((from, _)) => from,
        // every hunt its own ground: a thousand new seeds a second
        None => std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs() * 1000),
    };
    let mut h = Hunt::from_seed(from);
    h.jobs = q.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, |n| n.get()));
    h.time = q.time.or_else(|| q.count.is_none().then_some(Duration::from_secs(60)));
    h.to = q.count.map_or(u64::MAX, |n| from.saturating_add(n));
    h.keep_going = q.keep_going;
    h.aimed = q.aimed;
    h.without = q.o.without;
    if let Some(out) = &q.out {
        h.out = out.clone();
    }
    println!("hunting from seed {from} on, {} threads", h.jobs);
    let bag = hunt(&h);
    println!("seeds {from}..{}", bag.end);
    let aims: Vec<String> = bag.aims.iter().map(|(m, n)| format!("{m} {}/{}", n.1, n.0)).collect();
    println!("aims that struck: {}", aims.join(", "));
    if q.keep_going {
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

fn many(from: u64, to: u64, q: &Asked) -> Result<bool, String> {
    let state = Mutex::new((0u64, 0u64, u64::MAX, 0u64, 0u64));
    let history = Mutex::new(0u64);
    run_seeds(from, to, q.jobs.unwrap_or(2), &q.o, |r| {
        let mut s = state.lock().unwrap_or_else(|e| e.into_inner());
        match r {
            Ok(r) => {
                // threads finish in any order, so the sum must not depend on it
                *history.lock().unwrap_or_else(|e| e.into_inner()) ^= mix(mix(r.seed) ^ r.hash);
                s.0 += 1;
                s.2 = s.2.min(r.frames);
                s.3 |= r.transitions;
                s.4 |= r.migration_steps;
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
    println!("history {:016x}", history.into_inner().unwrap_or_else(|e| e.into_inner()));
    Ok(s.1 == 0)
}
