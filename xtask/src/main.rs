//! The project's commands, `cargo xtask COMMAND`: build, setup, test, check; and by one line each what `rerail-trial` does.

mod check;
mod licence;
mod test;

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use xtask::workspace::trial;
use xtask::{build, setup};

/// The project's commands.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
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
    /// An MPI program streams while rails break and are repaired (rerail-trial demo)
    Demo(Forward),
    /// The acceptance campaign with its figures (rerail-trial accept)
    Accept(Forward),
    /// Random cuts into every program under every MPI (rerail-trial campaign)
    Campaign(Forward),
    /// Random worlds in the simulator (rerail-trial swarm)
    Swarm(Forward),
    /// Hostile bytes for every parser and for whole conversations (rerail-trial fuzz)
    Fuzz(Forward),
    /// libfabric's own tests (rerail-trial fabtests)
    Fabtests(Forward),
    /// Rerail beside other transports (rerail-trial bench)
    Bench(Forward),
}

/// Options are those of `rerail-trial`, which explains them: `--help` goes there too.
#[derive(Args)]
#[command(disable_help_flag = true)]
struct Forward {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    options: Vec<OsString>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Build => build::run(),
        Command::Setup => setup::run(),
        Command::Test => test::run(),
        Command::Check => check::run(),
        Command::Demo(forward) => return hand_over("demo", forward),
        Command::Accept(forward) => return hand_over("accept", forward),
        Command::Campaign(forward) => return hand_over("campaign", forward),
        Command::Swarm(forward) => return hand_over("swarm", forward),
        Command::Fuzz(forward) => return hand_over("fuzz", forward),
        Command::Fabtests(forward) => return hand_over("fabtests", forward),
        Command::Bench(forward) => return hand_over("bench", forward),
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
fn hand_over(command: &str, forward: Forward) -> ExitCode {
    let error = trial().arg(command).args(forward.options).exec();
    eprintln!("xtask: could not start cargo for rerail-trial: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn options_of_a_trial_pass_through_untouched() {
        let words = ["xtask", "accept", "--only", "data", "--help", "--", "-x"];
        let Command::Accept(forward) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        assert_eq!(forward.options, ["--only", "data", "--help", "--", "-x"]);
        Cli::command().debug_assert();
    }
}
