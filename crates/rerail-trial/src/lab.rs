//! One run of `rerail lab run`: what to start, what it printed, which events it left.

use crate::record::{Event, read_events};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use xtask::mpi::Mpi;
use xtask::workspace::{release_dir, rerail};

/// Description of a run; `dir` gets its files (stdout, stderr, events.jsonl and what the program writes).
#[derive(Clone, Debug)]
pub struct Run {
    /// The directory of this run, emptied before it.
    pub dir: PathBuf,
    /// The rate of each rail, such as `1gbit`.
    pub rails: Vec<&'static str>,
    /// The fabric behind each rail, such as `leaf-spine:2x4,200mbit`.
    pub fabric: Option<&'static str>,
    /// What RDMA devices the nodes have, which then are guests: `roce` or `iwarp`.
    pub rdma: Option<&'static str>,
    /// Number of nodes.
    pub nodes: usize,
    /// Ranks per node.
    pub per_node: usize,
    /// The MPI that starts the program; `None` runs it once in each node.
    pub mpi: Option<Mpi>,
    /// Further arguments of its launcher.
    pub mpi_arguments: Vec<&'static str>,
    /// What carries the MPI's messages.
    pub transport: Transport,
    /// What the lab breaks and repairs.
    pub schedule: String,
    /// Whether the schedule counts from the moment that the program announces (otherwise from the launch).
    pub on_start: bool,
    /// Whether the schedule is longer than any run is to be: a program that ends before it has done well.
    pub unending: bool,
    /// Variables for the program.
    pub env: Vec<(String, String)>,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// After this long the run counts as hung and is ended.
    pub patience: Duration,
}

/// What carries an MPI's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Rerail.
    Rerail,
    /// What the MPI chooses by itself.
    Own,
    /// Another provider of the MPI's libfabric, such as `tcp`.
    Fabric(&'static str),
}

/// What became of a run.
#[derive(Debug)]
pub struct Ran {
    /// The program's exit code, if it ended by itself.
    pub code: Option<i32>,
    /// Whether it was ended because it took too long.
    pub hung: bool,
    /// How long it took.
    pub took: Duration,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
    /// What lab and provider reported.
    pub events: Vec<Event>,
    /// The command, to do it again by hand.
    pub command: String,
}

impl Run {
    /// Two nodes with two rails of 1 Gbit/s each.
    pub fn new(dir: PathBuf, program: &[&str]) -> Run {
        Run {
            dir,
            rails: vec!["1gbit", "1gbit"],
            fabric: None,
            rdma: None,
            nodes: 2,
            per_node: 1,
            mpi: Some(Mpi::Mpich),
            mpi_arguments: Vec::new(),
            transport: Transport::Rerail,
            schedule: String::new(),
            on_start: true,
            unending: false,
            env: Vec::new(),
            program: program.iter().map(ToString::to_string).collect(),
            patience: Duration::from_secs(120),
        }
    }

    /// Adds a variable.
    pub fn env(mut self, name: &str, value: impl ToString) -> Run {
        self.env.push((name.into(), value.to_string()));
        self
    }

    /// The command of this run.
    pub fn command(&self) -> Command {
        let mut command = Command::new(rerail());
        command.args(["lab", "run", "--nodes", &self.nodes.to_string()]);
        for rate in &self.rails {
            command.args(["--rail", rate]);
        }
        command.args(self.fabric.into_iter().flat_map(|fabric| ["--fabric", fabric]));
        command.args(self.rdma.into_iter().flat_map(|device| ["--rdma", device]));
        if let Some(mpi) = self.mpi {
            command.args([
                "-n",
                &(self.nodes * self.per_node).to_string(),
                "--ppn",
                &self.per_node.to_string(),
            ]);
            command.args(["--mpi", option(mpi), "--mpi-prefix"]).arg(mpi.prefix());
            command.args(self.mpi_arguments.iter().map(|a| format!("--mpi-arg={a}")));
        } else {
            command.args(["--mpi", "none"]);
        }
        match self.transport {
            Transport::Rerail => {}
            Transport::Own => {
                command.arg("--no-provider");
            }
            Transport::Fabric(name) => {
                command.args(["--libfabric", name]);
            }
        }
        if !self.schedule.is_empty() {
            command.args(["--schedule", &self.schedule]);
            if self.on_start {
                command.arg("--schedule-on-start");
            }
        }
        command.arg("--events").arg(self.dir.join("events.jsonl"));
        for (name, value) in &self.env {
            command.args(["--env", &format!("{name}={value}")]);
        }
        command.arg("--").args(&self.program);
        command
    }

    /// Starts it, with its output in files. The process leads a group of its own, so that all of it can be ended.
    pub fn start(&self) -> Result<Child> {
        fresh_dir(&self.dir)?;
        let file = |name: &str| {
            File::create(self.dir.join(name))
                .with_context(|| format!("could not write {name} in {}", self.dir.display()))
        };
        self.command()
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?)
            .process_group(0)
            .spawn()
            .with_context(|| {
                format!("could not start {}: has `cargo xtask build` been run?", rerail().display())
            })
    }

    /// Runs it to the end.
    pub fn run(&self) -> Result<Ran> {
        let begun = Instant::now();
        let mut child = self.start()?;
        let (code, hung) = wait(&mut child, self.patience)?;
        Ok(self.collect(code, hung, begun.elapsed()))
    }

    /// Reads what a run that has ended left behind.
    pub fn collect(&self, code: Option<i32>, hung: bool, took: Duration) -> Ran {
        let text = |name: &str| {
            String::from_utf8_lossy(&std::fs::read(self.dir.join(name)).unwrap_or_default()).into_owned()
        };
        let command = format!("{:?}", self.command());
        let _ = std::fs::write(self.dir.join("command"), format!("{command}\n"));
        Ran {
            code,
            hung,
            took,
            stdout: text("stdout"),
            stderr: text("stderr"),
            events: read_events(&self.dir.join("events.jsonl")),
            command,
        }
    }
}

/// Waits for a run; ends its process group when patience is over. The lab removes its nodes on SIGTERM, so that comes first.
pub fn wait(child: &mut Child, patience: Duration) -> Result<(Option<i32>, bool)> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("could not wait for the lab")? {
            return Ok((status.code(), false));
        }
        if begun.elapsed() > patience {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let group = format!("-{}", child.id());
    for (signal, grace) in [("-TERM", 8), ("-KILL", 2)] {
        let _ = Command::new("kill").args([signal, "--", &group]).status();
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(grace) {
            if child.try_wait().context("could not wait for the lab")?.is_some() {
                return Ok((None, true));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok((None, true))
}

/// Why no lab can be had on this machine, or `None` if one can.
pub fn why_impossible(scratch: &Path) -> Option<String> {
    why_no_rail(scratch, "unshaped")
}

/// Why no rail of a lab on this machine can be a wire, or `None` if one can.
pub fn why_no_wire(scratch: &Path) -> Option<String> {
    why_no_rail(scratch, "wire")
}

fn why_no_rail(scratch: &Path, rail: &'static str) -> Option<String> {
    if !rerail().is_file() {
        return Some(format!("there is no command `rerail` in {}", release_dir().display()));
    }
    let mut run = Run::new(scratch.to_path_buf(), &["true"]);
    run.mpi = None;
    run.transport = Transport::Own;
    run.rails = vec![rail];
    run.patience = Duration::from_secs(30);
    match run.run() {
        Ok(ran) if ran.code == Some(0) => None,
        Ok(ran) => Some(
            last_lines(&ran.stderr, 2).unwrap_or_else(|| format!("an empty lab failed with {:?}", ran.code)),
        ),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// What `rerail lab run --mpi` calls an MPI.
pub fn option(mpi: Mpi) -> &'static str {
    match mpi {
        Mpi::Mpich => "mpich",
        Mpi::Open5 | Mpi::Open4 => "openmpi",
        Mpi::Intel => "intel",
    }
}

/// What the test programs print of the library that they run on begins so.
pub fn library(mpi: Mpi) -> &'static str {
    match mpi {
        Mpi::Mpich => "MPICH 5.",
        Mpi::Open5 => "Open MPI v5.",
        Mpi::Intel => "Intel(R) MPI Library 2021",
        Mpi::Open4 => "Open MPI v4.",
    }
}

/// Makes an empty directory; removes what was there.
pub fn fresh_dir(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| format!("could not empty {}", dir.display()))?;
    }
    std::fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))
}

/// The last lines of a text that are not empty, in one.
pub fn last_lines(text: &str, count: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| lines[lines.len().saturating_sub(count)..].join(" / "))
}
