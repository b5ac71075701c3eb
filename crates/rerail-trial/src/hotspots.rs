//! `rerail-trial hotspots`: hot spots of a simulated fabric, with one lane for each rail and with several.
//!
//! The real engine runs in the simulator, one process for each host: the program `rerail-hotspots` of `rerail-sim`. This
//! command builds it, collects what it prints, and writes a table and two pictures: the bandwidth of each step, and the load
//! of each link inside the fabric. Source of the patterns: the HSAM paper, figures 4, 5 and 8 to 12.

mod figures;
mod loads;
mod steps;
mod table;

use crate::child::end_with_us;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use figures::Figures;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::workspace::{cargo, release_dir, run as run_command, state_dir};

/// Hosts of the paper's switch.
const PORTS_144: u32 = 144;
/// More hosts than this run a few steps only, with small messages, unless options say otherwise: all buffers are real memory.
const HOSTS_OF_ALL_STEPS: u32 = 64;
/// More hosts than this run one step at a time: one of 1,024 hosts takes about 8 GB.
const HOSTS_OF_SEVERAL_JOBS: u32 = 256;
/// See [`HOSTS_OF_ALL_STEPS`].
const FEW_STEPS: u32 = 8;

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Model {
    /// The real engine sends messages in virtual time
    Engine,
    /// Max-min fair shares of the lanes on the routes that switches choose: no engine, no policy, no messages
    Flows,
}

/// Which processes communicate with which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pattern {
    /// Displaced ring: in step d every process sends to the one d places further on
    Ring,
    /// Every process sends to all others at once
    Alltoall,
    /// Every process sends to one other, drawn anew in each of 16 steps
    Permutation,
    /// 2, 4, 8, ... and in the end all other processes send to one
    Incast,
}

impl Model {
    /// What figures stand for.
    fn about(self) -> &'static str {
        match self {
            Self::Engine => {
                "Simulated: the engine of the provider in virtual time, TCP without congestion control"
            }
            Self::Flows => {
                "Calculated, not simulated: max-min fair shares of all lanes on the routes that switches choose; no engine ran"
            }
        }
    }
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Alltoall => "alltoall",
            Self::Permutation => "permutation",
            Self::Incast => "incast",
        }
    }
}

/// Hot spots of a simulated fabric: bandwidth by step and load by link, with one lane and with several; the real engine,
/// in virtual time
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Processes, each on a host of its own: 2 to 2048, with --model flows 20000
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(2..=20_000))]
    hosts: u32,
    /// Lanes for each rail, one after the other: 1 to 64
    #[arg(long, value_name = "N,N,...", default_value = "1,2,4,8", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=64))]
    lanes: Vec<u8>,
    /// Scheduling policy
    #[arg(long, default_value = "adaptive", value_parser = ["adaptive", "even", "weighted", "round-robin", "binding", "primary-standby"])]
    policy: String,
    /// Which processes communicate
    #[arg(long, value_enum, default_value = "ring")]
    pattern: Pattern,
    /// What is run: the engine of each process, or, for large fabrics, a model without it
    #[arg(long, value_enum, default_value = "engine")]
    model: Model,
    /// The fabric: 144-port, leaf-spine:LEAVESxSPINES, leaf-spine:LEAVESxSPINESxHOSTS (of a leaf) or fat-tree:K [default:
    /// 144-port; for more hosts, the smallest fat tree that has ports for them]
    #[arg(long, value_name = "FABRIC")]
    fabric: Option<String>,
    /// How switches choose among links: ecmp (a hash of the connection), or lid:X (by destination, with X path bits of the
    /// lane)
    #[arg(long, value_name = "ROUTING", default_value = "ecmp")]
    routing: String,
    /// Rate of every link in Mbit/s
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(10..=400_000))]
    mbps: u32,
    /// Bytes of a message [default: 1048576; of alltoall and for more than 64 hosts 262144]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=67_108_864))]
    bytes: Option<u32>,
    /// Messages from each process to each of its peers in a step [default: 16; of alltoall 1; for more than 64
    /// hosts 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    messages: Option<u32>,
    /// Most steps that are run, evenly spread [default: all, for more than 64 hosts 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Draws routes and permutations
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Where table and pictures go [default: .rerail/hotspots]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Options {
    fn fabric(&self) -> String {
        let fits = |k: &u32| k * k * k / 4 >= self.hosts;
        match &self.fabric {
            Some(name) => name.clone(),
            None if self.hosts <= PORTS_144 => "144-port".into(),
            None => format!("fat-tree:{}", (2..).step_by(2).find(fits).unwrap_or(2)),
        }
    }

    fn bytes(&self) -> u32 {
        let small = self.pattern == Pattern::Alltoall || self.hosts > HOSTS_OF_ALL_STEPS;
        self.bytes.unwrap_or(if small { 256 << 10 } else { 1 << 20 })
    }

    fn messages(&self) -> u32 {
        // many enough for rates of lanes to be measured
        let many = if self.hosts > HOSTS_OF_ALL_STEPS { 32 } else { 16 };
        self.messages.unwrap_or(if self.pattern == Pattern::Alltoall { 1 } else { many })
    }

    fn steps(&self) -> u32 {
        self.steps.unwrap_or(if self.hosts > HOSTS_OF_ALL_STEPS { FEW_STEPS } else { u32::MAX })
    }

    /// What the program is called with.
    fn words(&self) -> Vec<String> {
        let lanes: Vec<String> = self.lanes.iter().map(u8::to_string).collect();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let jobs = if self.hosts > HOSTS_OF_SEVERAL_JOBS { 1 } else { cores };
        let words = [
            ("fabric", self.fabric()),
            ("routing", self.routing.clone()),
            ("mbps", self.mbps.to_string()),
            ("hosts", self.hosts.to_string()),
            ("lanes", lanes.join(",")),
            ("policy", self.policy.clone()),
            ("pattern", self.pattern.name().into()),
            ("bytes", self.bytes().to_string()),
            ("messages", self.messages().to_string()),
            ("seed", self.seed.to_string()),
            ("steps", self.steps().to_string()),
            ("jobs", jobs.to_string()),
        ];
        let flows = (self.model == Model::Flows).then(|| "--flows".to_owned());
        words.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).chain(flows).collect()
    }

    /// The line below headlines.
    fn about(&self) -> String {
        let what = match self.model {
            Model::Flows => "fair shares of flows, without the engine".into(),
            Model::Engine => {
                let (messages, kib) = (self.messages(), self.bytes().div_ceil(1024));
                format!("{messages} messages of {kib} KiB for each pair, policy {}", self.policy)
            }
        };
        format!(
            "{} hosts, {}, {} routing, links of {} Mbit/s, {what}, seed {}",
            self.hosts,
            self.fabric(),
            self.routing,
            self.mbps,
            self.seed
        )
    }
}

/// Builds, runs, and writes what came of it.
pub fn run(options: &Options) -> Result<()> {
    let program = ["-p", "rerail-sim", "--bin", "rerail-hotspots"];
    run_command(cargo().args(["build", "--release", "-q"]).args(program))?;
    let figures = collect(&release_dir().join("rerail-hotspots"), options)?;
    let out = options.out.clone().unwrap_or_else(|| state_dir().join("hotspots"));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let model = if options.model == Model::Flows { "-flows" } else { "" };
    let name = format!("{}-{}{model}", options.pattern.name(), options.hosts);
    let about = options.about();
    let title = format!("Hot spots: {}, {} processes", options.pattern.name(), options.hosts);
    let text = table::markdown(&figures, &title, (&about, options.model.about()), &name);
    write(&out, &format!("{name}.md"), &text)?;
    write(&out, &format!("{name}.svg"), &steps::draw(&figures, &title, &about)?)?;
    write(&out, &format!("{name}-links.svg"), &loads::draw(&figures, &title, &about)?)?;
    println!("{}\n{} has the table and the pictures", table::summary(&figures), out.display());
    Ok(())
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs the program; each step is reported as it ends.
fn collect(program: &Path, options: &Options) -> Result<Figures> {
    let mut command = Command::new(program);
    command.args(options.words()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_us(&mut command);
    let mut child = command.spawn().with_context(|| format!("could not start {}", program.display()))?;
    let stderr = child.stderr.take().context("it has a standard error")?;
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        BufReader::new(stderr).read_to_string(&mut text).map(|_| text)
    });
    let mut figures = Figures::new(options.pattern == Pattern::Incast);
    for line in BufReader::new(child.stdout.take().context("it has a standard output")?).lines() {
        if let Some(step) = figures.take(&line?)? {
            eprintln!(
                "lanes {}, step {}: {:.1} MB/s, slowest {:.1}, simulated in {:.1} s",
                step.lanes, step.step, step.mean, step.slowest, step.seconds
            );
        }
    }
    let status = child.wait()?;
    if !status.success() {
        let said = said.join().ok().and_then(Result::ok).unwrap_or_default();
        let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it ended without a word");
        bail!("{}", first.trim_start_matches("error: "));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::of;

    #[test]
    fn a_fabric_is_chosen_that_has_ports_for_all() {
        let fabric = |words: &[&str]| of::<Options>(words).unwrap().fabric();
        assert_eq!(fabric(&[]), "144-port");
        assert_eq!(fabric(&["--hosts", "145"]), "fat-tree:10");
        assert_eq!(fabric(&["--hosts", "1024"]), "fat-tree:16");
        assert_eq!(fabric(&["--hosts", "4096"]), "fat-tree:26");
        assert_eq!(fabric(&["--hosts", "500", "--fabric", "fat-tree:34"]), "fat-tree:34");
    }

    #[test]
    fn alltoall_sends_less_to_each_and_large_fabrics_run_few_steps() {
        let figures = |words: &[&str]| {
            let o = of::<Options>(words).unwrap();
            (o.bytes(), o.messages(), o.steps())
        };
        assert_eq!(figures(&[]), (1 << 20, 16, u32::MAX));
        assert_eq!(figures(&["--pattern", "alltoall", "--hosts", "48"]), (256 << 10, 1, u32::MAX));
        assert_eq!(figures(&["--hosts", "1024", "--bytes", "4096", "--messages", "3"]), (4096, 3, 8));
        assert_eq!(figures(&["--hosts", "1024"]), (256 << 10, 32, 8));
        assert_eq!(figures(&["--hosts", "1024", "--steps", "20"]).2, 20);
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            ["--hosts", "1"],
            ["--hosts", "many"],
            ["--hosts", "20001"],
            ["--lanes", "0"],
            ["--lanes", "1,65"],
            ["--lanes", ""],
            ["--policy", "best"],
            ["--pattern", "star"],
            ["--mbps", "0"],
            ["--steps", "0"],
        ] {
            assert!(of::<Options>(&words).is_err(), "{words:?}");
        }
    }
}
