//! The project's commands, `cargo xtask COMMAND`: build, setup, test, check; and by one line each what `rerail-trial` does.

mod border;
mod check;
mod source;
mod test;

use anyhow::{Context, anyhow};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use xtask::workspace::trial;
use xtask::{build, setup};

const AFTER_HELP: &str = "\
demo, accept, campaign, swarm, hotspots, migrations, fuzz, fabtests and bench are commands of rerail-trial: `cargo xtask accept --only data`,
or `cargo xtask trial accept ...`, runs `cargo run -p rerail-trial -- accept --only data`; `cargo xtask accept --help` its options.";

/// The project's commands.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The provider (librerail-fi.so) and the command `rerail`, in target/release
    Build,
    /// What the other commands need: tools, MPI wheels, the MPI programs of tests/mpi
    Setup,
    /// All tests of the workspace, then in the lab a short acceptance, fuzzing and fault campaign
    Test,
    /// Formatting, lints, documentation, licences, borders between crates and files, stray paths
    Check,
    #[command(external_subcommand)]
    Trial(Vec<OsString>),
}

/// What is handed over to `rerail-trial`.
const TRIALS: &str = "trial demo accept campaign swarm hotspots migrations fuzz fabtests bench";

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Build => build::run(),
        Command::Setup => setup::run(),
        Command::Test => test::run(),
        Command::Check => check::run(),
        Command::Trial(words) if TRIALS.split(' ').any(|name| words[0] == *name) => hand_over(&words),
        Command::Trial(words) => Err(anyhow!("there is no command {:?}; --help names them", words[0])),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes `rerail-trial`: signals and exit code are its own.
fn hand_over(words: &[OsString]) -> anyhow::Result<()> {
    Err(trial().args(&words[usize::from(words[0] == "trial")..]).exec()).context("could not start cargo")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn options_of_a_trial_pass_through_untouched() {
        let words = ["accept", "--only", "data", "--help", "--", "-x"];
        let cli = Cli::try_parse_from([&["xtask"][..], &words].concat()).unwrap();
        assert!(matches!(cli.command, Command::Trial(found) if found == words));
        Cli::command().debug_assert();
    }
}
