//! A lab from the outside: the process at the user's terminal, which starts the supervisor and waits for it.
//!
//! Owns: the terminal's signals and the exit code. Invariant: when it dies, by whatever signal, the supervisor dies
//! (parent-death signal, and the mailbox's end as a second thread), and with it everything in the lab.

use crate::control::Server;
use crate::error::Attempt;
use crate::event::Journal;
use crate::guest::Kit;
use crate::launch::Job;
use crate::schedule::Schedule;
use crate::sys::{self, Forked, Mailbox, Signals};
use crate::tool::Tools;
use crate::topology::Topology;
use crate::{EXIT_LAB_FAILED, LabError, supervisor};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a program may take to end after SIGTERM or SIGHUP before the lab ends it.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of a lab may take after that.
const COLLECT_PATIENCE: Duration = Duration::from_secs(2);
/// A second interrupt within this time ends the lab at once, whatever the program does with it.
const INTERRUPT_TWICE: Duration = Duration::from_secs(2);

/// Everything a lab is started with.
pub struct Session {
    /// Nodes and rails.
    pub topology: Topology,
    /// The lab's name; `None` takes the first free one.
    pub name: Option<String>,
    /// The program; `None` keeps the lab up until it is told to end.
    pub job: Option<Job>,
    /// What happens to the rails meanwhile.
    pub schedule: Schedule,
    /// Whether the schedule's clock waits for the program to create the file named by `RERAIL_LAB_START`.
    pub schedule_on_start: bool,
    /// The file that events are appended to.
    pub events: Option<PathBuf>,
    /// The directory for the lab's log and the final counters.
    pub log: Option<PathBuf>,
    /// Whether the lab keeps quiet on the terminal.
    pub quiet: bool,
    /// Whether the lab stays when this process ends.
    pub detach: bool,
    /// Whether each node gets processor cores of its own.
    pub pin: bool,
}

/// From the supervisor to the session.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Ready,
    Ended { code: i32 },
    Failed { message: String },
}

/// From the session to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Pass this signal on to the program.
    Forward { signal: i32 },
    /// End, whatever the program does, with this exit code.
    End { code: i32 },
}

/// What the supervisor takes over from the session.
pub(crate) struct Handover {
    pub name: String,
    pub server: Server,
    pub mailbox: Mailbox,
    pub signals: Signals,
    pub journal: Journal,
    pub tools: Tools,
    pub kit: Option<Kit>,
    pub rootless: bool,
}

impl Session {
    /// Starts the lab and runs it to its end (with `detach`: until it is up). Returns the exit code of the program.
    ///
    /// Must be called while the process has a single thread.
    pub fn run(mut self) -> Result<i32, LabError> {
        self.topology.check()?;
        let tools = Tools::find()?;
        let kit = self.topology.rdma.map(Kit::prepare).transpose()?;
        if let Some(dir) = &self.log {
            fs::create_dir_all(dir).attempt(|| format!("make `{}`", dir.display()))?;
            self.log = Some(absolute(dir)?);
        }
        self.events = self.events.as_deref().map(absolute).transpose()?;
        let log_file = self.log.as_ref().map(|dir| dir.join("lab.log"));
        let journal = Journal::open(self.events.as_deref(), log_file.as_deref(), self.quiet)?;
        let (server, name) = Server::bind(self.name.as_deref())?;
        let what = || "start the lab".to_string();
        let (mailbox, theirs) = Mailbox::pair().attempt(what)?;
        let signals = Signals::block().attempt(what)?;
        let rootless = isolate()?;
        let supervisor = match sys::fork().attempt(what)? {
            Forked::Child => {
                drop(mailbox);
                supervisor::main(
                    &self,
                    Handover { name, server, mailbox: theirs, signals, journal, tools, kit, rootless },
                )
            }
            Forked::Parent(pid) => pid,
        };
        // The supervisor's copies must be the last ones, so that the lab's name and the mailbox end with it.
        drop((server, theirs, journal));
        self.watch(supervisor, &mailbox, &signals)
    }

    fn watch(&self, supervisor: libc::pid_t, mailbox: &Mailbox, signals: &Signals) -> Result<i32, LabError> {
        let mut deadline: Option<(Instant, i32)> = None;
        let mut interrupted: Option<Instant> = None;
        let mut is_up = false;
        // What guests and wires have reported is collected first, if that does not take long.
        let end = |code| {
            mailbox.send(&Order::End { code });
            sys::wait_readable(&[mailbox.as_fd()], Some(COLLECT_PATIENCE));
            sys::kill(supervisor, libc::SIGKILL);
            sys::wait_for(supervisor);
            Ok(code)
        };
        loop {
            let timeout = deadline.map(|(at, _)| at.saturating_duration_since(Instant::now()));
            let ready = sys::wait_readable(&[signals.as_fd(), mailbox.as_fd()], timeout);
            if let Some((at, code)) = deadline
                && Instant::now() >= at
            {
                return end(code);
            }
            while let Some(signal) = signals.next() {
                let code = 128 + signal.number;
                match signal.number {
                    libc::SIGCHLD => continue,
                    // Without a program there is nothing to wait for: the signal ends the lab.
                    libc::SIGINT | libc::SIGTERM | libc::SIGHUP if self.job.is_none() || !is_up => {
                        let asked = signal.number == libc::SIGINT && self.job.is_none();
                        return end(if asked { 0 } else { code });
                    }
                    libc::SIGINT => {
                        if interrupted.is_some_and(|at| at.elapsed() < INTERRUPT_TWICE) {
                            return end(code);
                        }
                        interrupted = Some(Instant::now());
                    }
                    libc::SIGTERM | libc::SIGHUP => {
                        deadline.get_or_insert((Instant::now() + END_PATIENCE, code));
                    }
                    _ => {}
                }
                if !signal.from_terminal {
                    mailbox.send(&Order::Forward { signal: signal.number });
                }
            }
            if !ready[1] {
                continue;
            }
            match mailbox.receive() {
                Some(Report::Ready) if self.detach => return Ok(0),
                Some(Report::Ready) => is_up = true,
                Some(Report::Ended { code }) => {
                    // Once the first process of a PID namespace is reaped, all others are gone.
                    sys::wait_for(supervisor);
                    return Ok(code);
                }
                Some(Report::Failed { message }) => {
                    sys::wait_for(supervisor);
                    return Err(LabError::Refused(message));
                }
                None => {
                    let code = sys::wait_for(supervisor);
                    return Err(LabError::Refused(format!(
                        "the lab's supervisor was killed (exit code {code}): start the lab again"
                    )));
                }
            }
        }
    }
}

/// Makes the next child the first process of a PID namespace; without the privilege for that, in a user namespace
/// of its own. Tells whether the latter was needed.
fn isolate() -> Result<bool, LabError> {
    let (uid, gid) = (sys::effective_uid(), sys::effective_gid());
    if uid == 0 && sys::unshare(libc::CLONE_NEWPID).is_ok() {
        return Ok(false);
    }
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID).map_err(|error| {
        LabError::Refused(format!(
            "this kernel lets you make no user namespace ({error}): {}",
            supervisor::HOW_TO_ALLOW
        ))
    })?;
    fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
        .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
        .map_err(|error| {
            LabError::Refused(format!(
                "the user namespace could not be set up ({error}): {}",
                supervisor::HOW_TO_ALLOW
            ))
        })?;
    Ok(true)
}

fn absolute(path: &Path) -> Result<PathBuf, LabError> {
    std::path::absolute(path).attempt(|| format!("resolve `{}`", path.display()))
}

/// Prints an error the way every command of the lab does, and gives its exit code.
pub fn report(error: &LabError) -> i32 {
    use io::Write;
    let _ = writeln!(io::stderr(), "rerail lab: {error}");
    match error {
        LabError::Input(_) => 2,
        _ => EXIT_LAB_FAILED,
    }
}
