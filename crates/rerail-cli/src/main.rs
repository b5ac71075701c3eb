//! The command `rerail`. Each subcommand has a file of its own.

mod config;
mod lab;

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
        Command::LabSsh { arguments } => lab::ssh(&arguments),
    };
    std::process::exit(code);
}
