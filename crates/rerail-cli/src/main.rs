//! The command `rerail`. Each subcommand has a file of its own.

mod config;
mod lab;
mod migrate;

use clap::{Parser, Subcommand};

/// Rerail: MPI over several rails that survives their failures
#[derive(Parser)]
#[command(name = "rerail", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Nodes and rails on this machine, to run programs on and to cut
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Every option, with its variable, default and meaning
    Config,
    /// Paths of running processes: their state, what carries, and what would take over
    Paths(migrate::PathsArgs),
    /// Move the traffic of a running process from one rail to another
    Migrate(migrate::MigrateArgs),
    /// The way of an MPI launcher into a node of a lab
    #[command(hide = true, disable_help_flag = true)]
    LabSsh {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() {
    let code = match Cli::parse().command {
        Command::Lab(command) => lab::run(command),
        Command::Config => config::run(),
        Command::Paths(args) => migrate::paths(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::LabSsh { arguments } => lab::ssh(&arguments),
    };
    std::process::exit(code);
}
