//! `rerail faults`: planting faults in processes that run.

use crate::target::{Target, fail, say};
use clap::{Args, Subcommand};
use rerail_runtime::control::{self, Process, Request};

/// Subcommands of `rerail faults`.
#[derive(Subcommand)]
pub enum FaultsCommand {
    /// Show the faults that are planted, and what they did
    Show {
        #[command(flatten)]
        target: Target,
    },
    /// Plant these faults, in the place of all earlier ones
    ///
    /// FAULTS is RAIL: FAULT… with several of these separated by `;`. RAIL is a rail of the process or all. Faults: loss=1%
    /// corrupt=0.1% dup=1% reorder=1%/2ms delay=5ms stall dark flap=2s/300ms (dark for 300 ms of every 2 s) reset=5s (every stream,
    /// every 5 s). Restricted by: dir=send or dir=recv (one way), on=datagrams or on=streams, from=5s, until=9s or for=10s; times count
    /// from now. seed=7 changes what the shares hit. Corruption is noticed only where checksums are on.
    Set {
        #[command(flatten)]
        which: Which,
        /// Such as "eth0: loss=1%, corrupt=0.1%; all: dark from=5s for=1s"
        #[arg(required = true, value_name = "FAULTS")]
        faults: Vec<String>,
    },
    /// Plant no more faults
    Clear {
        #[command(flatten)]
        which: Which,
    },
}

/// The processes that are changed: one, or expressly all.
#[derive(Args)]
pub struct Which {
    #[command(flatten)]
    target: Target,
    /// All processes of yours that use rerail on this host
    #[arg(long, conflicts_with_all = ["pid", "socket"])]
    all: bool,
}

/// Does what is asked, and gives the exit code.
pub fn run(command: &FaultsCommand) -> i32 {
    let (processes, request) = match command {
        FaultsCommand::Show { target } => (target.processes(), Request::FaultsShow),
        FaultsCommand::Set { which, faults } => (which.processes(), Request::FaultsSet(faults.join(" "))),
        FaultsCommand::Clear { which } => (which.processes(), Request::FaultsClear),
    };
    let processes = match processes {
        Ok(processes) => processes,
        Err(why) => return fail(&why),
    };
    let mut code = 0;
    for process in processes {
        match control::ask(&process.socket, &request) {
            Ok(lines) => say(&format!("{process}\n{lines}")),
            Err(why) => code = fail(&why),
        }
    }
    code
}

impl Which {
    fn processes(&self) -> Result<Vec<Process>, String> {
        if self.all {
            return self.target.processes();
        }
        let or_all = |why: String| why.replace("--pid PID", "--pid PID, or --all");
        self.target.process().map(|one| vec![one]).map_err(or_all)
    }
}
