//! `rerail-trial accept`: real MPI programs in the lab, rails really cut, and the figures.
//!
//! A *check* is a matter of right or wrong (data, exit codes, events); a *figure* is measured, has perhaps a target, and is
//! never asserted by `cargo xtask test`, because wall-clock time on a shared machine proves nothing. Everything goes to
//! `.rerail/accept/MPI/results.json`, and each run keeps its files beside it, with the command to repeat it.

mod adapters;
mod busy;
mod collective;
mod data;
mod delivery;
mod encrypt;
mod goodput;
mod hostile;
mod imb;
mod killed;
mod kinds;
mod lanes;
mod lossy;
mod policies;
mod processes;
mod protection;
mod speed;
mod standstill;
mod udp;

use crate::lab::{self, Ran, Run, Transport, fresh_dir, last_lines};
use crate::record::Event;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::str::FromStr;
use std::time::Instant;
use xtask::mpi::Mpi;
use xtask::workspace::{release_dir, root, state_dir};
use xtask::{build, setup};

/// Unit of a ratio.
pub const RATIO: &str = "×";

/// The ways to break a rail, as `rerail lab` names them.
pub const KINDS: [&str; 5] = ["down", "reset", "dark", "dark-in", "dark-out"];

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Scale {
    /// What `cargo xtask test` has time for.
    Quick,
    /// Every case, few repetitions.
    Normal,
    /// Every case as the acceptance list has it.
    Long,
}

/// One entry of the acceptance list.
struct Case {
    name: &'static str,
    promise: &'static str,
    /// Whether it says anything when the MPI's own transport takes Rerail's place.
    without_provider: bool,
    run: fn(&mut Campaign) -> Result<()>,
}

const CASES: &[Case] = &[
    Case {
        name: "checkers",
        promise: "the checked programs notice what is planted",
        without_provider: true,
        run: data::checkers,
    },
    Case {
        name: "options",
        promise: "a wrong option is answered with one clear sentence",
        without_provider: false,
        run: hostile::options,
    },
    Case {
        name: "data",
        promise: "every byte is right, whatever breaks",
        without_provider: true,
        run: data::checked,
    },
    Case {
        name: "pipeline",
        promise: "MPICH's pipelined rendezvous, whose sends wait for a match, is right as well, whatever breaks",
        without_provider: true,
        run: data::pipelined,
    },
    Case {
        name: "imb",
        promise: "the Intel MPI benchmarks run to their end, whatever breaks",
        without_provider: true,
        run: data::imb,
    },
    Case {
        name: "imb-all",
        promise: "every benchmark of all five programs of the Intel MPI benchmarks runs to its end, whatever breaks",
        without_provider: true,
        run: imb::all,
    },
    Case {
        name: "collective",
        promise: "collective operations of libfabric are right at every node, whatever breaks",
        without_provider: false,
        run: collective::right,
    },
    Case {
        name: "goodput",
        promise: "several rails carry what each carries",
        without_provider: true,
        run: goodput::goodput,
    },
    Case {
        name: "udp",
        promise: "bulk over UDP uses a rail up, with losses, without TCP, and fairly beside it",
        without_provider: false,
        run: udp::goodput,
    },
    Case {
        name: "lanes",
        promise: "lanes whose route goes dark are led over another, and their path stays in service",
        without_provider: false,
        run: lanes::dark_routes,
    },
    Case {
        name: "standstill",
        promise: "a cut is survived, noticed and repaired, in milliseconds",
        without_provider: true,
        run: standstill::single,
    },
    Case {
        name: "turns",
        promise: "so is it by a ping-pong and by an exchange among all",
        without_provider: false,
        run: standstill::turns,
    },
    Case {
        name: "blackout",
        promise: "when every rail is dark the job waits, and goes on",
        without_provider: true,
        run: standstill::blackout,
    },
    Case {
        name: "policies",
        promise: "every policy survives a cut of the rail that carries",
        without_provider: false,
        run: policies::cuts,
    },
    Case {
        name: "request",
        promise: "traffic of a running program moves when its user asks",
        without_provider: false,
        run: policies::request,
    },
    Case {
        name: "compute",
        promise: "a computing peer is not a broken path; a broken path is found while computing",
        without_provider: true,
        run: busy::compute,
    },
    Case {
        name: "overlap",
        promise: "large messages travel while the ranks compute",
        without_provider: true,
        run: busy::overlap,
    },
    Case {
        name: "stopped",
        promise: "a stopped process is not a broken path",
        without_provider: true,
        run: busy::stopped,
    },
    Case {
        name: "forks",
        promise: "children say nothing in their parent's name, and hold nothing up",
        without_provider: true,
        run: processes::forks,
    },
    Case {
        name: "deadline",
        promise: "a partition past its deadline ends in one clear error",
        without_provider: false,
        run: processes::deadline,
    },
    Case {
        name: "killed",
        promise: "the end of a process is told to the others in seconds",
        without_provider: false,
        run: killed::killed,
    },
    Case {
        name: "delivery",
        promise: "what a promised delivery costs each send",
        without_provider: false,
        run: delivery::cost,
    },
    Case {
        name: "lossy",
        promise: "every byte is right on rails that lose, corrupt, double and reorder, and the bad rail is blamed",
        without_provider: false,
        run: lossy::lossy,
    },
    Case {
        name: "encrypt",
        promise: "encrypted, every byte is right as well; processes with and without encryption refuse each other",
        without_provider: false,
        run: encrypt::encrypt,
    },
    Case {
        name: "kinds",
        promise: "rails of several kinds carry a job, and what their adapters write late is fenced",
        without_provider: false,
        run: kinds::kinds,
    },
    Case {
        name: "adapters-roce",
        promise: "over RDMA adapters (roce), between guests, every byte is right as well, whatever breaks",
        without_provider: false,
        run: |campaign| adapters::mixture(campaign, "roce", "roce"),
    },
    Case {
        name: "adapters-iwarp",
        promise: "over RDMA adapters (iwarp), between guests, every byte is right as well, whatever breaks",
        without_provider: false,
        run: |campaign| adapters::mixture(campaign, "iwarp", "iwarp"),
    },
    Case {
        name: "adapters-ip-roce",
        promise: "over RDMA adapters (ip,roce), between guests, every byte is right as well, whatever breaks",
        without_provider: false,
        run: |campaign| adapters::mixture(campaign, "roce", "ip,roce"),
    },
    Case {
        name: "adapters-ip-iwarp",
        promise: "over RDMA adapters (ip,iwarp), between guests, every byte is right as well, whatever breaks",
        without_provider: false,
        run: |campaign| adapters::mixture(campaign, "iwarp", "ip,iwarp"),
    },
    Case {
        name: "adapters-nocm",
        promise: "over RDMA adapters (roce-nocm), between guests, every byte is right as well, whatever breaks",
        without_provider: false,
        run: |campaign| adapters::mixture(campaign, "roce", "roce-nocm"),
    },
    Case {
        name: "adapters-nas",
        promise: "NAS kernels go on over an adapter and an interface, whichever fails, and when both do",
        without_provider: false,
        run: adapters::kernels,
    },
    Case {
        name: "adapters-dark",
        promise: "a dark rail stops a job for as long over RDMA adapters as over interfaces, or three times that",
        without_provider: false,
        run: standstill::adapters,
    },
    Case {
        name: "protection",
        promise: "without protection the programs run as well, and the difference is its cost",
        without_provider: false,
        run: protection::cost,
    },
    Case {
        name: "fragments",
        promise: "bandwidth by fragment size, with checksums on, of headers and off (PML DR, figure 5)",
        without_provider: false,
        run: protection::fragments,
    },
    Case {
        name: "bench",
        promise: "what Rerail costs and brings beside other transports is measured in turn",
        without_provider: false,
        run: speed::bench,
    },
    Case {
        name: "garbage",
        promise: "garbage on the ports changes nothing",
        without_provider: true,
        run: hostile::garbage,
    },
];

/// What is collected while the cases run.
pub struct Campaign {
    /// How much is run.
    pub scale: Scale,
    /// The MPI that the programs run on.
    pub mpi: Mpi,
    /// Whether Rerail is used.
    pub provider: bool,
    /// The seed of data and of the moments of faults.
    pub seed: u64,
    case: &'static str,
    runs: usize,
    checks: Vec<Value>,
    figures: Vec<Value>,
    /// Counted over all cases.
    pub tally: Tally,
}

/// Counts of checks and of figures with a target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Checks that held.
    pub passed: usize,
    /// Checks that did not.
    pub failed: usize,
    /// Checks that could not be made, each with its reason printed.
    pub skipped: usize,
    /// Figures that missed their target.
    pub missed: usize,
}

impl Tally {
    /// Adds the counts of another campaign.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.missed += other.missed;
    }
}

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// At least this much.
    AtLeast(f64),
    /// At most this much.
    AtMost(f64),
    /// For the record only.
    None,
}

impl Campaign {
    /// One of three values, by scale.
    pub fn by_scale<T>(&self, quick: T, normal: T, long: T) -> T {
        match self.scale {
            Scale::Quick => quick,
            Scale::Normal => normal,
            Scale::Long => long,
        }
    }

    /// The path of an MPI program of tests/mpi.
    pub fn program(&self, name: &str) -> String {
        self.mpi.program(name).to_string_lossy().into_owned()
    }

    /// The path of a tool of tests/tools.
    pub fn tool(&self, name: &str) -> String {
        root().join("tests/tools").join(name).to_string_lossy().into_owned()
    }

    /// A run in a directory of its own; `name` says which of the case's runs it is.
    pub fn new_run(&mut self, name: &str, program: &[&str]) -> Run {
        self.runs += 1;
        let dir = state_dir().join("accept").join(self.mpi.name());
        let mut run = Run::new(dir.join(format!("{}-{:02}-{name}", self.case, self.runs)), program);
        run.mpi = Some(self.mpi);
        run.transport = match (self.provider, self.case) {
            (true, _) => Transport::Rerail,
            // MPICH's default, UCX, was seen to leave matched receives unfinished over TCP in `checked`, without any fault.
            (false, "data" | "garbage") if self.mpi == Mpi::Mpich => Transport::Fabric("tcp"),
            (false, _) => Transport::Own,
        };
        run
    }

    /// Records whether a promise was kept.
    pub fn check(&mut self, what: &str, holds: bool, detail: impl Into<String>) -> bool {
        let detail = detail.into();
        if holds {
            println!("  ok       {what}");
            self.tally.passed += 1;
        } else {
            println!("  FAILED   {what} (case {}, {}): {detail}", self.case, self.mpi.name());
            self.tally.failed += 1;
        }
        self.checks.push(json!({"case": self.case, "check": what, "ok": holds, "detail": detail}));
        holds
    }

    /// Records that something could not be tried.
    pub fn skip(&mut self, what: &str, reason: &str) {
        println!("  SKIPPED  {what}: {reason}");
        self.tally.skipped += 1;
        self.checks.push(json!({"case": self.case, "check": what, "skipped": reason}));
    }

    /// Records what was measured.
    pub fn figure(&mut self, what: &str, value: f64, unit: &str, target: Target) {
        let (met, wanted, limit) = match target {
            Target::AtLeast(limit) => {
                (Some(value >= limit), format!(" (target: at least {limit})"), Some(limit))
            }
            Target::AtMost(limit) => {
                (Some(value <= limit), format!(" (target: at most {limit})"), Some(limit))
            }
            Target::None => (None, String::new(), None),
        };
        let missed = met == Some(false);
        if missed {
            self.tally.missed += 1;
        }
        let word = if missed { "missed" } else { "measured" };
        let digits = if unit == RATIO { 2 } else { 1 };
        println!("  {word:<8} {what}: {value:.digits$} {unit}{wanted}");
        self.figures.push(json!({"case": self.case, "figure": what, "value": value, "unit": unit, "target": limit, "met": met}));
    }

    /// Records that a run ended by itself, well, and that its program printed `says`, on the MPI wanted.
    pub fn check_run(&mut self, what: &str, run: &Run, ran: &Ran, says: &str) -> bool {
        let problem = if ran.hung {
            Some(format!("it hung, and was ended after {:.0} s", ran.took.as_secs_f64()))
        } else if ran.code != Some(0) {
            Some(match ran.code {
                Some(code) => format!("exit code {code}"),
                None => "it was killed".into(),
            })
        } else if !run.unending && ran.stderr.contains("items of the schedule were due") {
            Some("it ended before everything in its schedule had happened".into())
        } else if !ran.stdout.contains(says) {
            Some(format!("it did not print `{says}`"))
        } else if says == data::RIGHT && !ran.stdout.contains(&format!("[{}", lab::library(self.mpi))) {
            Some(format!("it did not run on {}", lab::library(self.mpi)))
        } else if run.transport == Transport::Rerail
            && !(0..run.nodes).all(|n| has_path(&ran.events, &format!("n{n}")))
        {
            // Without this, a job that quietly took another transport would pass.
            Some("Rerail did not report a path in use from every node: was it used at all?".into())
        } else {
            None
        };
        let holds = problem.is_none();
        let said = last_lines(&ran.stderr, 3).map_or(String::new(), |text| format!("; it said: {text}"));
        let detail =
            problem.map_or(String::new(), |problem| format!("{problem}{said}; files in {}", shown(&run.dir)));
        self.check(what, holds, detail)
    }

    /// Whether the provider's events can be asked; if not, `what` is recorded as skipped.
    pub fn has_events(&mut self, what: &str) -> bool {
        if !self.provider {
            self.skip(what, "runs without Rerail have no events of it");
        }
        self.provider
    }

    /// A number between 0 and `bound`, from the seed and two more numbers.
    pub fn random(&self, a: u64, b: u64, bound: u64) -> u64 {
        let mut x = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ a.wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ b;
        for _ in 0..3 {
            x ^= x >> 31;
            x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
        }
        (x ^ (x >> 29)) % bound.max(1)
    }
}

/// The provider's events of a name and rail.
pub fn provider_events<'a>(
    events: &'a [Event],
    name: &'a str,
    rail: &'a str,
) -> impl Iterator<Item = &'a Event> {
    events.iter().filter(move |event| !event.is_lab() && event.name() == name && event.concerns(rail))
}

/// The machine's load over the last minute: a figure means little without it.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_string()
}

fn has_path(events: &[Event], host: &str) -> bool {
    events.iter().any(|event| !event.is_lab() && event.name() == "path_up" && event.text("host") == host)
}

fn shown(path: &std::path::Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Real MPI programs in the lab, rails really cut, and the figures
#[derive(Debug, clap::Args)]
pub struct Options {
    /// On which MPI: mpich, openmpi, intel, openmpi4 (Debian's, with libfabric 1.17) or all
    #[arg(long, value_name = "NAME", default_value = "mpich")]
    mpi: Mpis,
    /// Only the cases whose name contains NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Everything, many repetitions (about an hour)
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// What `cargo xtask test` runs (all of it on MPICH, a part on the others)
    #[arg(long)]
    quick: bool,
    /// The MPI's own TCP in place of Rerail: tests the harness, not Rerail
    #[arg(long)]
    no_provider: bool,
    /// With what was built last
    #[arg(long)]
    no_build: bool,
    /// The seed of random data and of the moments of faults
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the names of the cases
    #[arg(long)]
    list: bool,
}

/// One MPI, or all.
#[derive(Clone, Debug)]
struct Mpis(Vec<Mpi>);

impl FromStr for Mpis {
    type Err = String;

    fn from_str(name: &str) -> Result<Mpis, String> {
        if name == "all" {
            return Ok(Mpis(Mpi::ALL.to_vec()));
        }
        name.parse().map(|mpi| Mpis(vec![mpi])).map_err(|why: String| why + " or all")
    }
}

/// Prepares and runs.
pub fn run(options: &Options) -> Result<()> {
    if options.list {
        for case in CASES {
            println!("{:<12} {}", case.name, case.promise);
        }
        return Ok(());
    }
    let scale = match options {
        Options { long: true, .. } => Scale::Long,
        Options { quick: true, .. } => Scale::Quick,
        _ => Scale::Normal,
    };
    let provider = !options.no_provider;
    let only: Vec<&str> = options.only.iter().map(String::as_str).collect();
    setup::run()?;
    if !options.no_build {
        build::for_lab(provider)?;
    }
    let mut tally = Tally::default();
    for &mpi in &options.mpi.0 {
        tally.add(campaign(mpi, scale, &only, provider, options.seed)?);
    }
    println!(
        "{} passed, {} failed, {} skipped; {} figures missed their target",
        tally.passed, tally.failed, tally.skipped, tally.missed
    );
    if tally.failed > 0 {
        bail!("{} checks failed", tally.failed);
    }
    if tally.missed > 0 && scale != Scale::Quick && provider {
        bail!("{} figures missed their target", tally.missed);
    }
    Ok(())
}

/// Runs the cases whose name contains one of `only` on one MPI, or all if that is empty.
pub fn campaign(mpi: Mpi, scale: Scale, only: &[&str], provider: bool, seed: u64) -> Result<Tally> {
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|name| case.name.contains(name));
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("no case is named like `{}`; `cargo xtask accept --list` names them", only.join("` or `"));
    }
    let dir = state_dir().join("accept").join(mpi.name());
    fresh_dir(&dir)?;
    let mut campaign = Campaign {
        scale,
        mpi,
        provider,
        seed,
        case: "",
        runs: 0,
        checks: Vec::new(),
        figures: Vec::new(),
        tally: Tally::default(),
    };
    let with = if provider { "Rerail" } else { "without Rerail" };
    println!("acceptance: {}, {scale:?}, seed {seed}, {with}", mpi.name());
    let no_mpi = (!mpi.is_installed()).then(|| format!("there is no {}", mpi.launcher().display()));
    let no_lab = lab::why_impossible(&dir.join("probe"));
    let no_provider = provider && !release_dir().join("librerail-fi.so").is_file();
    for case in cases {
        println!("{}: {}", case.name, case.promise);
        campaign.case = case.name;
        campaign.runs = 0;
        if let Some(reason) = &no_lab {
            campaign.skip(case.name, &format!("no lab on this machine: {reason}"));
            continue;
        }
        if let Some(reason) = &no_mpi {
            campaign.skip(case.name, reason);
            continue;
        }
        if no_provider {
            campaign.check(case.name, false, "there is no librerail-fi.so; run `cargo xtask build`");
            continue;
        }
        if !provider && !case.without_provider {
            campaign.skip(case.name, "needs Rerail");
            continue;
        }
        let begun = Instant::now();
        if let Err(error) = (case.run)(&mut campaign) {
            campaign.check(case.name, false, format!("{error:#}"));
        }
        println!("  ({:.0} s, load average {})", begun.elapsed().as_secs_f64(), load_average());
        // After each case, so that an interrupted campaign leaves what it has.
        let results = json!({
            "mpi": mpi.name(),
            "scale": format!("{scale:?}").to_lowercase(),
            "seed": seed,
            "provider": provider,
            "load_average_at_end": load_average(),
            "checks": campaign.checks,
            "figures": campaign.figures,
        });
        std::fs::write(dir.join("results.json"), format!("{results:#}\n"))
            .context("could not write results.json")?;
    }
    Ok(campaign.tally)
}
