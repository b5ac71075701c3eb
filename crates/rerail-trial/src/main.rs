//! The command `rerail-trial`; `cargo xtask COMMAND` forwards to it.

use clap::{Parser, Subcommand};
use rerail_trial::{accept, bench, campaign, demo, fabtests, fuzz, hotspots, migrations, short, swarm};
use std::process::ExitCode;

/// Trials of Rerail: real programs under real faults.
#[derive(Parser)]
#[command(disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Accept(accept::Options),
    Campaign(campaign::Options),
    Bench(bench::Options),
    Fabtests(fabtests::Options),
    Fuzz(fuzz::Options),
    Swarm(swarm::Options),
    Hotspots(hotspots::Options),
    Migrations(migrations::Options),
    Demo(demo::Options),
    /// What `cargo xtask test` runs: the quick acceptance on every MPI, a little fuzzing, a minute of the fault campaign
    Short,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Accept(options) => accept::run(&options),
        Command::Campaign(options) => campaign::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Fabtests(options) => fabtests::run(options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Swarm(options) => swarm::run(&options),
        Command::Hotspots(options) => hotspots::run(&options),
        Command::Migrations(options) => migrations::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Short => short::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rerail-trial: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
