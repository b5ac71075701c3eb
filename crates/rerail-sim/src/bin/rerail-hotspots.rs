//! Measures hot spots of simulated fabrics, for `cargo xtask trial hotspots`, which draws what this prints.
//!
//! Lines of words, separated by tabs: `alone RATE`; `step LANES STEP MEAN SLOWEST CONNECTIONS REPLACED SECONDS`, rates in megabytes per
//! second, and seconds of the machine that it ran on; `link LANES STEP NAME SHARE` for each link inside the fabric that carried
//! something.

use clap::Parser;
use rerail_core::Policy;
use rerail_sim::fabric::routing::{LMC_MAX, Routing};
use rerail_sim::fabric::topology::Topology;
use rerail_sim::hotspots::{Model, Pattern, Trial};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Measures hot spots of simulated fabrics.
#[derive(Debug, Parser)]
#[command(name = "rerail-hotspots")]
struct Wanted {
    #[arg(long, value_parser = Topology::parse)]
    fabric: Topology,
    #[arg(long, value_parser = routing)]
    routing: Routing,
    #[arg(long)]
    mbps: u64,
    #[arg(long)]
    hosts: usize,
    #[arg(long, value_delimiter = ',')]
    lanes: Vec<u8>,
    #[arg(long, value_parser = policy)]
    policy: Policy,
    #[arg(long, value_parser = pattern)]
    pattern: Pattern,
    /// Fair shares in place of engines.
    #[arg(long)]
    flows: bool,
    #[arg(long)]
    bytes: usize,
    #[arg(long)]
    messages: usize,
    #[arg(long)]
    seed: u64,
    /// At most so many steps, evenly spread over those of the pattern.
    #[arg(long)]
    steps: usize,
    #[arg(long)]
    jobs: usize,
}

fn routing(name: &str) -> Result<Routing, String> {
    if name == "ecmp" {
        return Ok(Routing::Ecmp);
    }
    let bits = name.strip_prefix("lid:").and_then(|bits| bits.parse().ok()).filter(|bits| *bits <= LMC_MAX);
    let wrong = || format!("no routing is called \"{name}\": write ecmp, or lid:0 to lid:{LMC_MAX}");
    bits.map(|bits| Routing::Lid { bits }).ok_or_else(wrong)
}

fn policy(name: &str) -> Result<Policy, String> {
    let names = || Policy::NAMES.iter().map(|n| n.0).collect::<Vec<_>>().join(", ");
    Policy::named(name).ok_or_else(|| format!("no policy is called \"{name}\"; there are {}", names()))
}

fn pattern(name: &str) -> Result<Pattern, String> {
    let names = || Pattern::NAMES.map(|n| n.0).join(", ");
    let found = Pattern::NAMES.iter().find(|n| n.0 == name).map(|n| n.1);
    found.ok_or_else(|| format!("no pattern is called \"{name}\"; there are {}", names()))
}

/// At most so many of a list, evenly spread, the last one among them.
fn spread(all: &[usize], most: usize) -> Vec<usize> {
    let n = all.len().min(most);
    (1..=n).map(|i| all[i * all.len() / n - 1]).collect()
}

impl Wanted {
    fn trial(&self, lanes: u8) -> Trial {
        Trial {
            topology: self.fabric,
            routing: self.routing,
            mbps: self.mbps,
            hosts: self.hosts,
            pattern: self.pattern,
            model: if self.flows { Model::Flows } else { Model::Engine },
            lanes,
            policy: self.policy,
            bytes: self.bytes,
            messages: self.messages,
            seed: self.seed,
        }
    }

    fn run(&self) -> Result<(), String> {
        self.trial(1).check()?;
        println!("alone\t{:.1}", self.trial(1).alone());
        let steps = spread(&self.pattern.steps(self.hosts), self.steps.max(1));
        let work: Vec<(u8, usize)> =
            self.lanes.iter().flat_map(|lanes| steps.iter().map(move |step| (*lanes, *step))).collect();
        let (next, out) = (AtomicUsize::new(0), Mutex::new(std::io::stdout()));
        std::thread::scope(|threads| {
            for _ in 0..self.jobs.max(1) {
                threads.spawn(|| {
                    while let Some(&(lanes, step)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let text = self.lines(lanes, step);
                        let mut out = out.lock().unwrap_or_else(|e| e.into_inner());
                        // the reader has gone: nothing is left to be said
                        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                    }
                });
            }
        });
        Ok(())
    }

    fn lines(&self, lanes: u8, step: usize) -> String {
        let start = Instant::now();
        let o = self.trial(lanes).step(step);
        let seconds = start.elapsed().as_secs_f64();
        let (mean, slowest) = (o.mean(), o.slowest());
        let mut text = format!(
            "step\t{lanes}\t{step}\t{mean:.1}\t{slowest:.1}\t{}\t{}\t{}\t{seconds:.2}\n",
            o.connections, o.replaced, o.moved
        );
        for (link, load) in &o.loads {
            text += &format!("link\t{lanes}\t{step}\t{}\t{load:.4}\n", self.fabric.name(*link));
        }
        text
    }
}

fn main() -> ExitCode {
    match Wanted::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn options_are_read_and_steps_are_spread() {
        Wanted::command().debug_assert();
        assert_eq!(routing("lid:2"), Ok(Routing::Lid { bits: 2 }));
        for wrong in ["lid", "lid:8", "lid:x", "hash", ""] {
            assert!(routing(wrong).is_err_and(|why| why.contains("lid:7")), "{wrong}");
        }
        assert_eq!(pattern("incast"), Ok(Pattern::Incast));
        assert!(pattern("star").is_err() && policy("best").is_err());
        assert_eq!(spread(&[1, 2, 3, 4, 5, 6, 7], 3), [2, 4, 7]);
        assert_eq!(spread(&[1, 2, 3], 9), [1, 2, 3]);
    }
}
