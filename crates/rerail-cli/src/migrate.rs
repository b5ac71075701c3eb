//! `rerail paths` and `rerail migrate`: talking to processes that run.

use clap::Args;
use rerail_runtime::control::{self, Request};
use std::io::Write;
use std::path::PathBuf;

/// Which process.
#[derive(Args)]
struct Target {
    /// The process, by its number
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
    /// Sockets of the processes that are meant; all when none is named.
    fn sockets(&self) -> Result<Vec<PathBuf>, String> {
        if let Some(s) = &self.socket {
            return Ok(vec![s.clone()]);
        }
        let found = control::list(self.dir.as_deref());
        let meant: Vec<PathBuf> =
            found.into_iter().filter(|(pid, _)| self.pid.is_none_or(|p| p == *pid)).map(|(_, s)| s).collect();
        match (self.pid, meant.is_empty()) {
            (Some(pid), true) => Err(format!(
                "process {pid} does not use rerail, is not yours, or runs with FI_RERAIL_CONTROL=off: `rerail paths` shows those \
                 that can be asked"
            )),
            (None, true) => Err("no process of yours uses rerail now".to_owned()),
            _ => Ok(meant),
        }
    }

    /// The one process that is meant.
    fn socket(&self) -> Result<PathBuf, String> {
        if self.pid.is_none() && self.socket.is_none() {
            return Err("say which process: --pid PID".to_owned());
        }
        let mut all = self.sockets()?;
        match (all.pop(), all.is_empty()) {
            (Some(one), true) => Ok(one),
            // two namespaces of processes may share a directory
            (Some(other), false) => Err(format!(
                "several processes have this number: choose one with --socket, such as {}",
                other.display()
            )),
            (None, _) => unreachable!("an empty list is an error"),
        }
    }
}

/// What `rerail paths` takes.
#[derive(Args)]
pub struct PathsArgs {
    #[command(flatten)]
    target: Target,
}

/// What `rerail migrate` takes.
#[derive(Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    target: Target,
    /// Rail to leave
    #[arg(long, value_name = "RAIL", required_unless_present = "home", requires = "to")]
    from: Option<String>,
    /// Rail to use instead
    #[arg(long, value_name = "RAIL", requires = "from")]
    to: Option<String>,
    /// Take earlier requests back: traffic returns to the rails that the policy gives it
    #[arg(long, conflicts_with_all = ["from", "to"])]
    home: bool,
}

fn say(text: &str) {
    // a closed pipe is the reader's choice, not an error
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn fail(why: &str) -> i32 {
    eprintln!("rerail: {why}");
    1
}

/// Prints the paths and carriers of one process, or of all that can be reached.
pub fn paths(args: &PathsArgs) -> i32 {
    let sockets = match args.target.sockets() {
        Ok(s) => s,
        Err(why) => return fail(&why),
    };
    let mut code = 0;
    for s in sockets {
        match control::ask(&s, &Request::Paths) {
            Ok(lines) => say(&format!("{}\n{lines}", s.display())),
            Err(why) => code = fail(&why),
        }
    }
    code
}

/// Asks a process to migrate.
pub fn migrate(args: &MigrateArgs) -> i32 {
    let request = match (&args.from, &args.to) {
        (Some(from), Some(to)) => Request::Migrate { from: from.clone(), to: to.clone() },
        _ => Request::Home,
    };
    match args.target.socket().and_then(|s| control::ask(&s, &request)) {
        Ok(lines) => {
            say(&lines);
            0
        }
        Err(why) => fail(&why),
    }
}
