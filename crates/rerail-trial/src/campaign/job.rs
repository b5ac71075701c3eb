//! Runs a case in a lab of its own, and says how it ended.

use super::case::{Case, Planned};
use super::{evidence, mpi4py};
use crate::child::end_with_us;
use crate::lab::{fresh_dir, last_lines, option};
use crate::record::{Event, read_events};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use xtask::mpi::Mpi;
use xtask::workspace::rerail;

/// Exit code of tests/mpi when data was wrong.
const WRONG_DATA: i32 = 3;
/// Words with which the programs of tests/mpi tell wrong data: some launchers lose the exit code.
const WRONG_WORDS: [&str; 4] = ["wrong byte", "wrong sum", "wrong data", " instead of "];

/// What a wire counts of the frames that it harmed.
const HARM: [&str; 4] = ["lost", "corrupted", "duplicated", "reordered"];

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran to its end, over Rerail, met its fault, and verified what it computed.
    Passed,
    /// The same without its fault, which proves nothing.
    Unproved,
    /// It found wrong data.
    Wrong,
    /// It ended with an error.
    Aborted,
    /// It had not ended long after it should have.
    Hung,
}

impl Outcome {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Unproved => "UNPROVED",
            Outcome::Wrong => "WRONG",
            Outcome::Aborted => "ABORTED",
            Outcome::Hung => "HUNG",
        }
    }
}

/// What became of a case.
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// Why, or what is to be remarked; may be empty.
    pub reason: String,
    /// How long it took, the lab included.
    pub took: Duration,
    /// How many cuts the lab made, each rail of each counted.
    pub cuts: usize,
    /// Where its files are, if they were kept.
    pub files: Option<PathBuf>,
}

impl Ended {
    /// The reason, as an appendix to a line.
    pub fn told(&self) -> String {
        let files = self.files.as_ref().filter(|_| self.outcome != Outcome::Passed);
        let files = files.map_or(String::new(), |files| format!(" [{}]", files.display()));
        if self.reason.is_empty() { files } else { format!(": {}{files}", self.reason) }
    }
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Rerail.
    Rerail,
    /// libfabric's own `tcp` with the same MPI, on rail0.
    Tcp,
}

/// What starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// That of the MPI.
    Own,
    /// `rerail launch`, which knows no Open MPI 4.
    Rerail,
}

impl Launcher {
    /// Both.
    pub const ALL: [Launcher; 2] = [Launcher::Own, Launcher::Rerail];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Own => "own",
            Launcher::Rerail => "rerail",
        }
    }

    /// Whether it starts programs of that MPI.
    pub fn starts(self, mpi: Mpi) -> bool {
        self == Launcher::Own || mpi != Mpi::Open4
    }
}

/// A program to be run in a lab.
pub struct Job<'a> {
    /// The lab's name.
    pub name: String,
    /// The MPI.
    pub mpi: Mpi,
    /// What carries its messages.
    pub fabric: Fabric,
    /// What starts it.
    pub launcher: Launcher,
    /// Ranks, dealt out to two nodes.
    pub ranks: usize,
    /// The rates of the rails.
    pub rails: &'a [&'a str],
    /// The lab's schedule.
    pub schedule: &'a str,
    /// Variables of the program.
    pub env: Vec<(String, String)>,
    /// The program and its arguments.
    pub arguments: &'a [String],
}

impl Job<'_> {
    /// The command, with its events in `dir`.
    pub fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(rerail());
        command.args(["lab", "run", "--nodes", "2", "--name", &self.name]);
        for rate in self.rails {
            command.args(["--rail", rate]);
        }
        let per_node = self.ranks.div_ceil(2).to_string();
        command.args(["-n", &self.ranks.to_string(), "--ppn", &per_node]);
        command.args(["--mpi", option(self.mpi), "--mpi-prefix"]).arg(self.mpi.prefix());
        if self.fabric == Fabric::Tcp {
            command.args(["--libfabric", "tcp"]);
        }
        if self.launcher == Launcher::Rerail {
            command.arg("--by-rerail");
        }
        if !self.schedule.is_empty() {
            command.args(["--schedule", self.schedule]);
        }
        command.arg("--events").arg(dir.join("events.jsonl"));
        for (name, value) in yielding(self.mpi) {
            command.args(["--env", &format!("{name}={value}")]);
        }
        for (name, value) in &self.env {
            command.args(["--env", &format!("{name}={value}")]);
        }
        command.arg("--").args(self.arguments);
        command
    }

    /// Starts it, with its output in files. It ends with this process, however that ends.
    pub fn start(&self, dir: &Path) -> Result<Child> {
        fresh_dir(dir)?;
        let mut command = self.command(dir);
        std::fs::write(dir.join("command"), format!("{command:?}\n"))
            .with_context(|| format!("could not write in {}", dir.display()))?;
        let file = |name: &str| {
            File::create(dir.join(name))
                .with_context(|| format!("could not write {name} in {}", dir.display()))
        };
        command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?).process_group(0);
        end_with_us(&mut command);
        command.spawn().with_context(|| format!("could not start {}", rerail().display()))
    }
}

/// What makes ranks that wait give way to each other: here they are more than the cores.
fn yielding(mpi: Mpi) -> &'static [(&'static str, &'static str)] {
    match mpi {
        Mpi::Mpich => &[],
        Mpi::Open5 | Mpi::Open4 => &[("OMPI_MCA_mpi_yield_when_idle", "1")],
        Mpi::Intel => &[("I_MPI_THREAD_YIELD", "3")],
    }
}

/// How long a run may take: a multiple of what it takes without faults, more where others use the machine too, and of the time
/// without a rail.
pub fn patience(fault_free_s: f64, outage_s: f64) -> Duration {
    const START_S: f64 = 30.0;
    Duration::from_secs_f64((START_S + 5.0 * fault_free_s) * crowd() + 4.0 * outage_s)
}

/// How many processes want each core of this machine: at least 1, at most 10.
pub fn crowd() -> f64 {
    let load: f64 = crate::accept::load_average().parse().unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    (load / cores).clamp(1.0, 10.0)
}

/// Runs a case; its files go to `dir`, and stay there if it did not pass or `keep` says so.
pub fn run(case: &Case, dir: &Path, keep: bool) -> Result<Ended> {
    let mut env = vec![("RERAIL_PHASES".to_string(), case.phases.join(",")), mpi4py::results_in(dir)];
    let mut preload: Vec<String> = Vec::new();
    if case.program.preload {
        preload.push(case.mpi.program("libphase.so").to_string_lossy().into_owned());
    }
    for (name, value) in &case.launch.env {
        if *name == "LD_PRELOAD" {
            preload.push(value.clone())
        } else {
            env.push((name.to_string(), value.clone()))
        }
    }
    if !preload.is_empty() {
        env.push(("LD_PRELOAD".into(), preload.join(":")));
    }
    if case.program.name.starts_with("imb") {
        // IMB finds the library by this path, and must find that of this MPI.
        env.push(("LD_LIBRARY_PATH".into(), case.mpi.prefix().join("lib").to_string_lossy().into_owned()));
    }
    let job = Job {
        name: format!("campaign-{}", std::process::id()),
        mpi: case.mpi,
        fabric: Fabric::Rerail,
        launcher: case.launcher,
        ranks: case.launch.ranks,
        rails: &case.rails,
        schedule: &case.schedule,
        env,
        arguments: &case.launch.arguments,
    };
    let begun = Instant::now();
    let mut child = job.start(dir)?;
    std::fs::write(dir.join("case"), format!("{case}\n{}\n", case.replay()))
        .context("could not write the case")?;
    let (code, hung) =
        wait(&mut child, patience(case.launch.seconds, case.outage_s), || evidence::collect(&job.name, dir))?;
    let took = begun.elapsed();
    let text =
        |name: &str| String::from_utf8_lossy(&std::fs::read(dir.join(name)).unwrap_or_default()).into_owned();
    let (stdout, stderr, events) = (text("stdout"), text("stderr"), read_events(&dir.join("events.jsonl")));
    let met = Met::of(&events);
    let (mut outcome, mut reason) = judge(case.program.says, code, hung, &stdout, &stderr, &events);
    if outcome == Outcome::Passed {
        (outcome, reason) = met.prove(&case.planned()?);
    }
    let cuts = met.cuts;
    let kept = keep || outcome != Outcome::Passed;
    if !kept {
        let _ = std::fs::remove_dir_all(dir);
    }
    Ok(Ended { outcome, reason, took, cuts, files: kept.then(|| dir.to_path_buf()) })
}

/// What the lab did to the rails in a run, by its own events.
#[derive(Default)]
pub struct Met {
    /// Cuts, each rail of each counted.
    pub cuts: usize,
    /// Rails whose wires harmed a frame.
    wires: BTreeSet<String>,
}

impl Met {
    /// Reads it from the events of a run.
    pub fn of(events: &[Event]) -> Met {
        let mut met = Met::default();
        for event in events.iter().filter(|event| event.is_lab()) {
            match event.name() {
                "cut" => met.cuts += 1,
                "wire-counts" if HARM.iter().any(|harm| event.number(harm) > 0) => {
                    met.wires.insert(event.text("rail").into());
                }
                _ => {}
            }
        }
        met
    }

    /// Whether a run that went well met what was planned for it: of several cuts at least the first, and each bad wire. A program may end
    /// before the later cuts; that is remarked.
    fn prove(&self, planned: &Planned) -> (Outcome, String) {
        let idle: Vec<&str> = planned.wires.difference(&self.wires).map(String::as_str).collect();
        if !idle.is_empty() {
            return (Outcome::Unproved, format!("the wire of {} harmed no frame", idle.join(" and ")));
        }
        if planned.cuts > 0 && self.cuts == 0 {
            return (Outcome::Unproved, "it ended before the first cut".into());
        }
        let early = self.cuts < planned.cuts;
        let remark = early.then(|| format!("it ended after {} of {} cuts", self.cuts, planned.cuts));
        (Outcome::Passed, remark.unwrap_or_default())
    }
}

/// Waits for a lab. When patience is over `on_hang` looks at it, then it is ended; the lab removes its nodes on SIGTERM.
pub fn wait(child: &mut Child, patience: Duration, on_hang: impl FnOnce()) -> Result<(Option<i32>, bool)> {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if let Some(status) = child.try_wait().context("could not wait for the lab")? {
            return Ok((status.code(), false));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    on_hang();
    let (code, _) = crate::lab::wait(child, Duration::ZERO)?;
    Ok((code, true))
}

fn judge(
    says: &str,
    code: Option<i32>,
    hung: bool,
    stdout: &str,
    stderr: &str,
    events: &[Event],
) -> (Outcome, String) {
    let said =
        || last_lines(&program_lines(stderr), 3).map_or(String::new(), |text| format!("; it said: {text}"));
    if code == Some(WRONG_DATA) || WRONG_WORDS.iter().any(|words| stderr.contains(words)) {
        return (
            Outcome::Wrong,
            program_lines(stderr).lines().find(|line| is_wrong(line)).unwrap_or_default().into(),
        );
    }
    if hung {
        return (Outcome::Hung, format!("patience was over{}", said()));
    }
    if code != Some(0) {
        return (Outcome::Aborted, format!("exit code {}{}", code.unwrap_or(-1), said()));
    }
    if !stdout.contains(says) {
        return (Outcome::Aborted, format!("it did not print `{says}`{}", said()));
    }
    let used = |host: &str| {
        events.iter().any(|event| !event.is_lab() && event.name() == "path_up" && event.text("host") == host)
    };
    // Otherwise a job that quietly took another transport would pass.
    if !["n0", "n1"].into_iter().all(used) {
        return (Outcome::Aborted, "Rerail did not report a path in use from both nodes".into());
    }
    (Outcome::Passed, String::new())
}

fn is_wrong(line: &str) -> bool {
    WRONG_WORDS.iter().any(|words| line.contains(words))
}

/// What the program said, without the lab's own lines.
fn program_lines(stderr: &str) -> String {
    stderr.lines().filter(|line| !line.starts_with("rerail lab: ")).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_up(host: &str) -> Event {
        Event::parse(&format!(r#"{{"t_unix_ns": 1, "event": "path_up", "host": "{host}"}}"#)).unwrap()
    }

    #[test]
    fn a_case_without_its_fault_is_not_passed() {
        let event =
            |text: &str| Event::parse(&format!(r#"{{"t_unix_ns": 1, "source": "lab", {text}}}"#)).unwrap();
        let cut = event(r#""event": "cut", "rail": "rail0", "kind": "dark""#);
        let counts = |lost: u32| {
            event(&format!(r#""event": "wire-counts", "rail": "rail1", "frames": 900, "lost": {lost}"#))
        };
        let planned =
            |cuts, wires: &[&str]| Planned { cuts, wires: wires.iter().map(ToString::to_string).collect() };
        let end = |events: &[Event], planned: Planned| Met::of(events).prove(&planned);
        assert_eq!(end(&[], planned(1, &[])).0, Outcome::Unproved);
        assert_eq!(end(std::slice::from_ref(&cut), planned(1, &[])), (Outcome::Passed, String::new()));
        assert_eq!(end(std::slice::from_ref(&cut), planned(10, &[])).1, "it ended after 1 of 10 cuts");
        assert_eq!(end(&[counts(0)], planned(0, &["rail1"])).0, Outcome::Unproved);
        assert_eq!(end(&[counts(3)], planned(0, &["rail1"])).0, Outcome::Passed);
        assert_eq!(
            end(&[counts(3)], planned(1, &["rail1"])).0,
            Outcome::Unproved,
            "the good rail was not cut"
        );
        assert_eq!(end(&[counts(3), cut], planned(1, &["rail0", "rail1"])).0, Outcome::Unproved);
    }

    #[test]
    fn an_end_is_told_from_another() {
        let used = [path_up("n0"), path_up("n1")];
        let well = "nas: every byte right\n";
        let says = "every byte right";
        let end = |code, hung, out, err, events: &[Event]| judge(says, code, hung, out, err, events).0;
        assert_eq!(end(Some(0), false, well, "rerail lab: +1s cut\n", &used), Outcome::Passed);
        assert_eq!(end(Some(0), false, well, "", &used[..1]), Outcome::Aborted);
        assert_eq!(end(Some(0), false, "", "", &used), Outcome::Aborted);
        assert_eq!(end(Some(1), false, "", "Abort(1)\n", &used), Outcome::Aborted);
        assert_eq!(end(Some(3), false, "", "", &used), Outcome::Wrong);
        assert_eq!(end(Some(1), false, "", "value 3 is 1 instead of 2\n", &used), Outcome::Wrong);
        assert_eq!(end(None, true, well, "", &used), Outcome::Hung);
    }
}
