//! `cargo xtask swarm`: hunts with the simulator, makes what it finds smaller, replays it, and proves that it hunts.
//!
//! The simulator does all of it; this command builds it optimized and hands the arguments on.

use crate::workspace::{cargo, release_dir, run as run_command, state_dir};
use anyhow::Result;
use std::process::Command;

/// How to call it.
pub const USAGE: &str = "\
  swarm [OPTIONS]          random worlds in virtual time, until the time is over or one breaks a promise, which is made smaller
      --time T             for so long: 90s, 15m, 2h (default 60s); --count N: so many seeds
      --seed S             the first seed (default: from the clock, and told)
      --jobs N             threads (default: all cores); --keep-going: past failures
      --replay FILE        runs a case that was written by a hunt (with --trace: and prints what happens)
      --shrink SEED        makes a failing seed smaller
      --planted            for every planted bug, the first seed that finds it (--only NAME for one)
";

/// Builds and runs.
pub fn run(arguments: &[String]) -> Result<()> {
    run_command(cargo().args(["build", "--release", "-q", "-p", "rerail-sim", "--bin", "rerail-sim"]))?;
    let other = ["--replay", "--shrink", "--planted", "--help", "-h"];
    let mut command = Command::new(release_dir().join("rerail-sim"));
    if !arguments.iter().any(|a| other.contains(&a.as_str())) {
        command.arg("--swarm");
    }
    command.arg("--out").arg(state_dir().join("swarm"));
    run_command(command.args(arguments))
}
