//! Which running processes a command is about.

use clap::Args;
use rerail_runtime::control::{self, Process};
use std::io::Write;
use std::path::PathBuf;

/// Which process.
#[derive(Args)]
pub struct Target {
    /// The process, by its number: as you see it, or as it sees itself in a container
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The process, by its socket
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    socket: Option<PathBuf>,
    /// Directory of the sockets, if the process was started with FI_RERAIL_CONTROL=DIR
    #[arg(long, value_name = "DIR", conflicts_with = "socket")]
    dir: Option<PathBuf>,
}

impl Target {
    /// The processes that are meant; all when none is named.
    pub fn processes(&self) -> Result<Vec<Process>, String> {
        if let Some(s) = &self.socket {
            return Ok(vec![Process::at(s.clone())]);
        }
        let found = control::list(self.dir.as_deref());
        let meant = match self.pid {
            Some(pid) => control::of_process(found, pid),
            None => found,
        };
        match (self.pid, meant.is_empty()) {
            (Some(pid), true) => Err(format!(
                "process {pid} does not use rerail, is not yours, or runs with FI_RERAIL_CONTROL=off: `rerail paths` shows those \
                 that can be asked"
            )),
            (None, true) => Err("none of your processes uses rerail now".to_owned()),
            _ => Ok(meant),
        }
    }

    /// The one process that is meant.
    pub fn process(&self) -> Result<Process, String> {
        if self.pid.is_none() && self.socket.is_none() {
            return Err("say which process: --pid PID".to_owned());
        }
        let mut all = self.processes()?;
        match (all.pop(), all.is_empty()) {
            (Some(one), true) => Ok(one),
            // two namespaces of processes may share a directory
            (Some(other), false) => Err(format!(
                "several processes have this number: choose one with --socket, such as {}",
                other.socket.display()
            )),
            (None, _) => unreachable!("an empty list is an error"),
        }
    }
}

/// Prints to standard output.
pub fn say(text: &str) {
    // a closed pipe is the reader's choice, not an error
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Tells the user what went wrong; gives the exit code.
pub fn fail(why: &str) -> i32 {
    eprintln!("rerail: {why}");
    1
}
