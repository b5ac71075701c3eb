//! The command `rerail`. Each subcommand has a file of its own.

mod adapters;
mod bench;
mod config;
mod env;
mod faults;
mod info;
mod lab;
mod launch;
mod man;
mod migrate;
mod run;
mod settings;
mod target;

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
    /// Start an MPI program over Rerail: rerail run -- mpiexec -n 4 ./program
    ///
    /// Finds out which MPI the launcher belongs to, sets what that needs, says on standard error what it set, and becomes the
    /// launcher: the exit code is the program's. 2 for bad input, 127 if the launcher cannot be started. The provider must be
    /// at the same path on every node.
    Run(run::RunArgs),
    /// Start a program on several hosts, without an MPI's launcher: rerail launch -n 4 --hosts a,b -- ./program
    ///
    /// Programs of MPICH, Intel MPI and Open MPI are set to use Rerail; others run as they are. One agent on each host is started through ssh. It goes on
    /// when the launcher cannot be reached for a while. The job ends with the first rank that fails, and with its exit code; 2 for bad input,
    /// 125 if the launcher itself failed, 127 for a program that is not there.
    Launch(launch::LaunchArgs),
    /// Print what `rerail run` would set, for scripts: eval "$(rerail env --mpi mpich)"
    Env(env::EnvArgs),
    /// Show this node: its rails and why the others are none, the provider, the MPIs
    Info(info::InfoArgs),
    /// Measure an MPI over Rerail and over what it would use without it: rerail bench -- mpiexec -n 2 -hosts a,b
    ///
    /// The transports take turns, so that other load of the machine meets all of them. The results are medians, their spread and
    /// ratios. Needs the MPI's compiler. The exit code is 1 when a turn failed, 2 for bad input.
    ///
    /// With --rwapi RWAPI takes its turns too, in the benchmarks of its paper, and so do RWAPI and the MPI over Rerail while rails are cut:
    /// rerail bench --rwapi --lab mpich. Needs a C compiler (`cc`, or the variable CC) and librwapi.so.
    Bench(Box<bench::BenchArgs>),
    /// Nodes and rails on this machine, to run programs on and to cut
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Every option, with its variable, default and meaning
    Config,
    /// Print the manual page fi_rerail(7): rerail man | man -l -
    Man,
    /// Paths of running processes: their state, what carries, and what would take over
    Paths(migrate::PathsArgs),
    /// Move the traffic of a running process from one rail to another
    Migrate(migrate::MigrateArgs),
    /// Plant faults in running processes, to see what they do about them
    #[command(subcommand)]
    Faults(faults::FaultsCommand),
    /// The way of a command into the guest of a node, from the node's namespaces
    #[command(hide = true, disable_help_flag = true)]
    LabEnter {
        node: String,
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// The agent of `rerail launch` on a host
    #[command(hide = true)]
    LaunchAgent,
    /// The PMIx server of `rerail launch` on a host
    #[command(hide = true)]
    LaunchPmix,
    /// Process 1 of a node that is a guest
    #[command(hide = true)]
    LabNode { number: usize },
    /// The way of an MPI launcher into a node of a lab
    #[command(hide = true, disable_help_flag = true)]
    LabSsh {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() {
    let code = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Lab(command) => lab::run(command),
        Command::Run(args) => run::run(args),
        Command::Launch(args) => launch::run(args),
        Command::LaunchAgent => rerail_launch::agent::run(),
        Command::LaunchPmix => rerail_launch::pmix::server::run(),
        Command::Env(args) => env::run(args),
        Command::Info(args) => info::run(&args),
        Command::Config => config::run(),
        Command::Man => man::run(),
        Command::Paths(args) => migrate::paths(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::Faults(command) => faults::run(&command),
        Command::LabSsh { arguments } => lab::ssh(&arguments),
        Command::LabEnter { node, command } => lab::enter(&node, &command),
        Command::LabNode { number } => lab::be_node(number),
    };
    std::process::exit(code);
}
