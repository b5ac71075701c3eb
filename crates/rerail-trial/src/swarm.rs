//! `rerail-trial swarm`: hunts with the simulator, makes what it finds smaller, replays it, and proves that it hunts.
//!
//! The simulator does all of it; this command builds it optimized and hands the arguments on.

use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;
use xtask::workspace::{cargo, run as run_command, state_dir, target_dir};

/// Random worlds in virtual time, until the time is over or one breaks a promise, which is made smaller. The options are those of
/// the simulator; cases that a hunt writes go to .rerail/swarm
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    simulator: Vec<OsString>,
}

/// What the simulator does in place of a hunt.
const OTHER: [&str; 5] = ["--replay", "--shrink", "--planted", "--help", "-h"];

/// Builds and runs.
pub fn run(options: &Options) -> Result<()> {
    // with the bugs that can be planted: `--planted` and `--without` need them, and they change nothing else
    let what = ["-p", "rerail-sim", "--bin", "rerail-sim", "--features", "planted-bugs"];
    // and with the assertions of tests, which a release does not have
    run_command(cargo().args(["build", "--profile", "test", "-q"]).args(what))?;
    let mut command = Command::new(target_dir().join("debug/rerail-sim"));
    if !options.simulator.iter().any(|word| OTHER.iter().any(|other| word == other)) {
        command.arg("--swarm");
    }
    command.arg("--out").arg(state_dir().join("swarm"));
    run_command(command.args(&options.simulator))
}
