//! Runs seeds and named scenarios of the simulator; replays a failure.

use rerail_core::Remedies;
use rerail_sim::run::{RunOptions, quietly, run_seed, run_seeds};
use rerail_sim::scenario;
use std::process::ExitCode;
use std::sync::Mutex;

const HELP: &str = "\
Runs the engine in virtual time.

  rerail-sim --seed S            one seed
  rerail-sim --seeds A..B        many seeds
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

fn run() -> Result<bool, String> {
    let mut o = RunOptions::default();
    let (mut seeds, mut story, mut threads, mut keep_going) = (None, None, 2usize, false);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{a} needs a value"));
        let number = |s: String| s.parse::<u64>().map_err(|_| format!("\"{s}\" is not a number"));
        match a.as_str() {
            "--seed" => {
                let s = number(value()?)?;
                seeds = Some((s, s + 1));
            }
            "--seeds" => {
                let v = value()?;
                let (x, y) = v.split_once("..").ok_or("--seeds takes A..B")?;
                seeds = Some((number(x.into())?, number(y.into())?));
            }
            "--scenario" => story = Some(value()?),
            "--without" => {
                let v = value()?;
                let name = Remedies::NAMES
                    .iter()
                    .find(|n| **n == v)
                    .ok_or_else(|| format!("no remedy is called {v}; there are {:?}", Remedies::NAMES))?;
                o.without = Some(name);
                o.remedies = Remedies::without(name);
            }
            "--trace" => o.trace = true,
            "--frames" => o.frames = number(value()?)?,
            "--threads" => threads = number(value()?)? as usize,
            "--keep-going" => keep_going = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            _ => return Err(format!("there is no option {a}")),
        }
    }
    if let Some(name) = story {
        if name == "list" {
            for s in scenario::ALL {
                println!("{:<8} {:<40} {}", s.hazard, s.name, s.remedies.join(", "));
            }
            return Ok(true);
        }
        let s = scenario::ALL
            .iter()
            .find(|s| s.name == name)
            .ok_or_else(|| format!("no scenario is called {name}"))?;
        return Ok(match quietly(|| (s.run)(&scenario::Story { remedies: o.remedies, trace: o.trace })) {
            Ok(()) => {
                println!("{name}: every promise was kept");
                true
            }
            Err(e) => {
                println!("{name}: {e}");
                false
            }
        });
    }
    let (from, to) = seeds.ok_or("nothing to do")?;
    if to == from + 1 {
        let start = std::time::Instant::now();
        return Ok(match run_seed(from, &o) {
            Ok(r) => {
                println!("{r:?} in {:?}", start.elapsed());
                true
            }
            Err(f) => {
                println!("{f}");
                false
            }
        });
    }
    let state = Mutex::new((0u64, 0u64, u64::MAX, 0u64, 0u64));
    let _ = keep_going;
    run_seeds(from, to, threads, &o, |r| {
        let mut s = state.lock().unwrap_or_else(|e| e.into_inner());
        match r {
            Ok(r) => {
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
    Ok(s.1 == 0)
}
