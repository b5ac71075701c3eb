//! `rerail lab`: the command line of the crate rerail-lab.

use clap::{Args, Subcommand, ValueEnum};
use rerail_lab::control::{self, Reply, Request, Status};
use rerail_lab::cut::CutKind;
use rerail_lab::fabric::FabricPlan;
use rerail_lab::guest::agent_main;
use rerail_lab::launch::{self, Job, Launcher, Transport};
use rerail_lab::mpi::{self, Wanted};
use rerail_lab::rate::Rate;
use rerail_lab::rdma::Rdma;
use rerail_lab::schedule::{Action, Power, Schedule};
use rerail_lab::session::{self, Session};
use rerail_lab::topology::{MGMT, RailPlan, Topology, mgmt_address, node_name, rail_address};
use rerail_lab::wire::faults::Faults;
use rerail_lab::{LabError, enter_as_ssh, enter_guest, exec_in_lab};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Subcommands of `rerail lab`.
#[derive(Subcommand)]
pub enum LabCommand {
    /// Start a program across the nodes; the lab ends with it
    ///
    /// The exit code is the program's; 125 if the lab itself failed, 2 for bad input, 127 if the program cannot be
    /// started (without MPI). Standard input and output are the program's; the lab's own lines go to standard
    /// error. SIGTERM is passed on, and ends the lab after 5 s at the latest; so do two interrupts within 2 s.
    ///
    /// A schedule is a list of `TIME cut RAIL KIND [node N]`, `TIME heal RAIL`, `TIME shape RAIL RATE` and
    /// `TIME wire RAIL FAULT…`, separated by `;` or line ends, with `#` before comments. RAIL is rail0, rail1, … or all; TIME is such as 250ms, 2s or
    /// 1min. `TIME flap RAIL KIND [node N] for DOWN every PERIOD times COUNT` stands for COUNT cuts, each healed after
    /// DOWN; RAIL may then be `alternating`, and the rails take turns.
    ///
    /// PHASE+TIME counts from the moment at which the program announces PHASE: it creates a file of that name in the
    /// directory RERAIL_LAB_PHASES, and may wait for the file PHASE.done, which says that all that was due at once is done.
    ///
    /// Kinds of cut: down (the interface), dark (silent drop both ways), dark-in and dark-out (one way, as seen from
    /// the node), reset (TCP connections are reset), routes (half of all TCP connections, by their ports, carry nothing).
    ///
    /// With --fabric RAIL may also be a link inside a fabric (rail0/leaf0-spine1) or all links of a switch (all/spine1). Kinds
    /// there: down (the switches notice, and route around it), dark, dark-in (nothing arrives at the leaf) and dark-out (no
    /// switch notices).
    ///
    /// With --rdma the nodes are guests, and a schedule may also have `TIME pause node N`, `resume node N`, `kill node N` (its
    /// power is cut) and `boot node N`. Cut down is then a pulled cable, which both of two nodes see.
    ///
    /// A rail that is a wire (--rail wire:1gbit) can also do worse. Faults: loss=1% corrupt=0.1% dup=0.1% reorder=1%/2ms delay=5ms
    /// stall dark, from=n0 (only what this node sends), seed=7; clean: none. Corruption changes payload and mends the checksums, so
    /// that the kernel lets it through. What a wire did is printed at the end.
    Run(Box<RunArgs>),
    /// Bring up a lab without a program, until Ctrl-C or `rerail lab down`
    Up(UpArgs),
    /// End a lab; returns when it is gone
    Down {
        /// The lab's name; not needed when only one runs
        #[arg(value_name = "NAME", conflicts_with = "name")]
        lab: Option<String>,
        #[command(flatten)]
        which: Which,
    },
    /// List the labs that run
    List,
    /// Show nodes, rails, cuts and traffic of a lab
    Status {
        #[command(flatten)]
        which: Which,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Break a rail
    Cut {
        /// rail0, rail1, … or all; behind a fabric also rail0/leaf0-spine1, or rail0/spine1 for all links of a switch
        rail: String,
        /// down, dark, dark-in, dark-out, reset or routes
        #[arg(value_name = "KIND", value_parser = parse::<CutKind>)]
        kind: Option<CutKind>,
        /// The node at which it happens [default: 0 for down, dark-in and dark-out; all for dark, reset and routes]
        #[arg(long, value_parser = parse_node)]
        node: Option<usize>,
        #[command(flatten)]
        which: Which,
    },
    /// Undo every cut of a rail
    Heal {
        /// rail0, rail1, … or all
        rail: String,
        #[command(flatten)]
        which: Which,
    },
    /// Change the rate of a rail
    Shape {
        /// rail0, rail1, … or all
        rail: String,
        /// Such as 1gbit or 200mbit, or `unshaped`
        #[arg(value_parser = parse::<Rate>)]
        rate: Rate,
        #[command(flatten)]
        which: Which,
    },
    /// Change what a wire does to frames
    Wire {
        /// rail0, rail1, … or all; only rails that were started with --rail wire
        rail: String,
        /// loss=1%, corrupt=0.1%, dup=0.1%, reorder=1%/2ms, delay=5ms, stall, dark, from=n0, seed=7; or clean
        #[arg(required = true, value_name = "FAULT")]
        faults: Vec<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Stop a node that is a guest; it knows nothing of it
    Pause(NodeArgs),
    /// Let a paused node go on
    Resume(NodeArgs),
    /// Cut the power of a node that is a guest
    Kill(NodeArgs),
    /// Give a killed node its power back; it boots without the programs that it had
    Boot(NodeArgs),
    /// Run a command in a node of a lab
    Exec {
        /// The node: its number, or its name (n0, n1, …)
        #[arg(value_parser = parse_node)]
        node: usize,
        #[command(flatten)]
        which: Which,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// Which of the labs that run.
#[derive(Args)]
pub struct Which {
    /// The lab's name; not needed when only one runs
    #[arg(long)]
    name: Option<String>,
}

/// A node of one of the labs that run.
#[derive(Args)]
pub struct NodeArgs {
    /// The node: its number, or its name (n0, n1, …)
    #[arg(value_parser = parse_node)]
    node: usize,
    #[command(flatten)]
    which: Which,
}

/// The shape of a lab.
#[derive(Args)]
pub struct ShapeArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    /// A rail and its rate: 1gbit, 200mbit, unshaped, …; a wire that plants faults: wire, wire,loss=1%,
    /// wire:1gbit,loss=1%,corrupt=0.1%; repeat it for each rail [default: two unshaped rails]
    #[arg(long = "rail", value_name = "RAIL", value_parser = parse::<RailPlan>)]
    rail: Vec<RailPlan>,
    /// Number of rails, all of the one --rail given, or unshaped
    #[arg(long, value_name = "N")]
    rails: Option<usize>,
    /// Congestion control of connections over the rails [default: the machine's]
    #[arg(long, value_name = "NAME")]
    congctl: Option<String>,
    /// Make the nodes QEMU guests with an RDMA device on each rail: roce (soft-RoCE) or iwarp (soft-iWARP). FI_RERAIL_KINDS is
    /// the same word unless you set it; `ip,roce` uses network interfaces as well. Booting takes half a minute; the first time
    /// a kernel is fetched by apt. No wires, and no cut of the kind reset
    #[arg(long, value_name = "KIND", value_parser = parse::<Rdma>)]
    rdma: Option<Rdma>,
    /// Put a fabric behind each rail: leaf-spine:LEAVESxSPINES, and the rate of its links if they have one, such as
    /// leaf-spine:2x4,200mbit. Nodes hang on the leaves in blocks; a leaf sends each connection over one spine by a hash of
    /// addresses and ports. Its links are cut, healed and shaped as rails are, by names such as rail0/leaf0-spine1, or
    /// rail0/spine1 for all of a switch. No wires, and not with --rdma
    #[arg(long, value_name = "FABRIC", value_parser = parse::<FabricPlan>)]
    fabric: Option<FabricPlan>,
    /// Give each node processor cores of its own
    #[arg(long)]
    pin: bool,
    /// Name of the lab [default: lab, or the next free of lab2, lab3, …]
    #[arg(long)]
    name: Option<String>,
    /// Keep the lab's own lines off the terminal
    #[arg(long, short)]
    quiet: bool,
}

/// Options of `rerail lab run`.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Number of ranks [default: one per node]
    #[arg(short = 'n', value_name = "RANKS")]
    ranks: Option<usize>,
    /// Ranks per node [default: as few as hold all ranks]
    #[arg(long, value_name = "K")]
    ppn: Option<usize>,
    /// What happens to the rails, such as "2s cut rail1 down; 5s heal rail1; 8s shape all 200mbit"
    #[arg(long, value_name = "TEXT", conflicts_with = "schedule_file")]
    schedule: Option<String>,
    /// The same from a file
    #[arg(long, value_name = "FILE")]
    schedule_file: Option<PathBuf>,
    /// Start the schedule's clock when the program creates the file named by RERAIL_LAB_START, not at its launch
    #[arg(long)]
    schedule_on_start: bool,
    /// The MPI library of the program; `none` runs the program once in each node
    #[arg(long, value_enum, default_value_t = MpiChoice::Mpich)]
    mpi: MpiChoice,
    /// Where the MPI is installed [default: RERAIL_MPI_PREFIX, then where `cargo xtask setup` puts it, then PATH]
    #[arg(long, value_name = "DIR")]
    mpi_prefix: Option<PathBuf>,
    /// Start the ranks by `rerail launch` in place of the MPI's own launcher
    #[arg(long)]
    by_rerail: bool,
    /// A further argument of the launcher; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mpi_arg: Vec<String>,
    /// The provider librerail-fi.so [default: beside this executable, then in target/release]
    #[arg(long, value_name = "PATH", conflicts_with = "no_provider")]
    provider: Option<PathBuf>,
    /// Run the MPI on the transports that it chooses by itself, for comparison
    #[arg(long, conflicts_with = "libfabric")]
    no_provider: bool,
    /// Run the MPI over another libfabric provider that it brings, such as tcp, for comparison (tcp uses rail0 only)
    #[arg(long, value_name = "NAME", conflicts_with = "provider")]
    libfabric: Option<String>,
    /// Set a variable for the program; may be repeated
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Append a line of JSON for every event, the provider's included
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Write the lab's log and the final counters into this directory
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Options of `rerail lab up`.
#[derive(Args)]
pub struct UpArgs {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Return when the lab is up
    #[arg(long)]
    detach: bool,
}

/// MPI libraries that the lab can launch.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum MpiChoice {
    /// MPICH, through its launcher Hydra
    Mpich,
    /// Open MPI, 5 or 4
    #[value(name = "openmpi")]
    OpenMpi,
    /// Intel MPI
    Intel,
    /// No MPI: the program runs once in each node, with RERAIL_NODE and RERAIL_NODES set
    None,
}

/// Runs a subcommand and gives the exit code.
pub fn run(command: LabCommand) -> i32 {
    dispatch(command).unwrap_or_else(|error| session::report(&error))
}

/// Runs the launcher's wrapper and gives the exit code.
pub fn ssh(arguments: &[String]) -> i32 {
    enter_as_ssh(arguments).unwrap_or_else(|error| session::report(&error))
}

/// Runs a command in the guest of a node and gives the exit code.
pub fn enter(node: &str, command: &[OsString]) -> i32 {
    enter_guest(node, command).unwrap_or_else(|error| session::report(&error))
}

/// Is process 1 of a guest.
pub fn be_node(number: usize) -> i32 {
    agent_main(number).unwrap_or_else(|error| session::report(&error))
}

fn dispatch(command: LabCommand) -> Result<i32, LabError> {
    match command {
        LabCommand::Run(args) => run_program(*args),
        LabCommand::Up(args) => {
            let detach = args.detach;
            Session { detach, ..session_of(args.shape)? }.run()
        }
        LabCommand::Down { lab, which } => control::down(lab.or(which.name).as_deref()).map(|()| 0),
        LabCommand::List => {
            let labs = control::list()?;
            print(&labs.iter().map(|lab| format!("{lab}\n")).collect::<String>());
            Ok(0)
        }
        LabCommand::Status { which, json } => {
            let (reply, _) = control::ask(which.name.as_deref(), &Request::Status)?;
            let Reply { status: Some(status), .. } = reply else {
                return Err(LabError::Refused(
                    "the lab did not report its status: start it again with this version of `rerail`".into(),
                ));
            };
            print(&if json { status.to_json() } else { describe(&status) });
            Ok(0)
        }
        LabCommand::Cut { rail, kind, node, which } => {
            let kind = kind.ok_or_else(|| {
                LabError::Input(format!(
                    "how is `{rail}` to be cut? write `rerail lab cut {rail} down`, or dark, dark-in, dark-out, reset or routes in its place"
                ))
            })?;
            act(&which, Action::Cut { rail, kind, node })
        }
        LabCommand::Heal { rail, which } => act(&which, Action::Heal { rail }),
        LabCommand::Shape { rail, rate, which } => act(&which, Action::Shape { rail, rate }),
        LabCommand::Wire { rail, faults, which } => {
            let words = faults.iter().flat_map(|word| word.split([',', ' '])).filter(|word| !word.is_empty());
            let faults = Faults::parse(words).map_err(|(_, message)| LabError::Input(message))?;
            act(&which, Action::Wire { rail, faults })
        }
        LabCommand::Pause(args) => power(&args, Power::Pause),
        LabCommand::Resume(args) => power(&args, Power::Resume),
        LabCommand::Kill(args) => power(&args, Power::Kill),
        LabCommand::Boot(args) => power(&args, Power::Boot),
        LabCommand::Exec { node, which, command } => exec_in_lab(which.name.as_deref(), node, &command),
    }
}

fn act(which: &Which, action: Action) -> Result<i32, LabError> {
    tell(which, &Request::Act { action })
}

fn power(args: &NodeArgs, what: Power) -> Result<i32, LabError> {
    act(&args.which, Action::Node { node: args.node, what })
}

fn tell(which: &Which, request: &Request) -> Result<i32, LabError> {
    control::ask(which.name.as_deref(), request).map(|_| 0)
}

fn session_of(shape: ShapeArgs) -> Result<Session, LabError> {
    let rails = match (shape.rails, shape.rail.as_slice()) {
        (None, []) => vec![RailPlan::veth(Rate::Unshaped); 2],
        (None, rails) => rails.to_vec(),
        (Some(count), []) => vec![RailPlan::veth(Rate::Unshaped); count],
        (Some(count), [rail]) => vec![rail.clone(); count],
        (Some(count), rails) if rails.len() == count => rails.to_vec(),
        (Some(count), rails) => {
            return Err(LabError::Input(format!(
                "--rails {count} contradicts {} times --rail: give --rail once for all rails, or once for each",
                rails.len()
            )));
        }
    };
    let topology = Topology {
        nodes: shape.nodes,
        rails,
        congctl: shape.congctl,
        rdma: shape.rdma,
        fabric: shape.fabric,
    };
    topology.check()?;
    Ok(Session {
        topology,
        name: shape.name,
        job: None,
        schedule: Schedule::default(),
        schedule_on_start: false,
        events: None,
        log: None,
        quiet: shape.quiet,
        detach: false,
        pin: shape.pin,
    })
}

fn run_program(args: RunArgs) -> Result<i32, LabError> {
    let mut session = session_of(args.shape)?;
    let schedule = match (args.schedule, args.schedule_file) {
        (Some(text), _) => text,
        (None, Some(path)) => fs::read_to_string(&path).map_err(|error| {
            LabError::Input(format!(
                "the schedule `{}` cannot be read ({error}): name a readable file",
                path.display()
            ))
        })?,
        (None, None) => String::new(),
    };
    session.schedule = Schedule::parse(&schedule, &session.topology)?;
    session.schedule_on_start = args.schedule_on_start;
    session.events = args.events;
    session.log = args.log;
    let nodes = session.topology.nodes;
    let launcher = match args.mpi {
        MpiChoice::None => {
            let ranks = args.ranks.is_some_and(|ranks| ranks != nodes);
            if ranks || args.ppn.is_some_and(|ppn| ppn != 1) {
                return Err(LabError::Input(
                    "with `--mpi none` the program runs once in each node: leave out -n and --ppn".into(),
                ));
            }
            Launcher::EachNode
        }
        MpiChoice::Mpich | MpiChoice::OpenMpi | MpiChoice::Intel => {
            let ranks = args.ranks.unwrap_or(nodes * args.ppn.unwrap_or(1));
            if ranks == 0 || args.ppn == Some(0) {
                return Err(LabError::Input(
                    "no ranks would be started: give -n and --ppn at least 1".into(),
                ));
            }
            if let Some(ppn) = args.ppn.filter(|ppn| ranks > ppn.saturating_mul(nodes)) {
                return Err(LabError::Input(format!(
                    "{ranks} ranks do not fit on {nodes} nodes with {ppn} each: raise --ppn or --nodes, or leave --ppn out"
                )));
            }
            let wanted = match args.mpi {
                MpiChoice::OpenMpi => Wanted::OpenMpi,
                MpiChoice::Intel => Wanted::Intel,
                MpiChoice::Mpich | MpiChoice::None => Wanted::Mpich,
            };
            let installation = mpi::find(wanted, args.mpi_prefix.as_deref())?;
            if let Some(name) = &args.libfabric {
                installation.check_fabric(name)?;
            }
            Launcher::Mpi {
                ranks,
                ranks_per_node: args.ppn.unwrap_or(ranks.div_ceil(nodes)),
                installation,
                by_rerail: args.by_rerail,
                arguments: args.mpi_arg,
                transport: match (args.no_provider, args.libfabric) {
                    (true, _) => Transport::Own,
                    (false, Some(name)) => Transport::Fabric(name),
                    (false, None) => Transport::Rerail(launch::find_provider(args.provider.as_deref())?),
                },
            }
        }
    };
    session.job = Some(Job { launcher, program: args.program, env: args.env });
    session.run()
}

fn describe(status: &Status) -> String {
    let mut text = format!("lab {}\n", status.name);
    for node in 0..status.topology.nodes {
        text.push_str(&format!("{}  {MGMT} {}", node_name(node), mgmt_address(node)));
        for (rail, at) in status.rails.iter().enumerate() {
            text.push_str(&format!("  {} {}", at.rail, rail_address(rail, node)));
        }
        text.push('\n');
    }
    for rail in &status.rails {
        text.push_str(&format!("{}  {}  {}\n", rail.rail, rail.rate, rail.state));
        if let Some(wire) = &rail.wire {
            text.push_str(&format!("  wire  {}  {}\n", wire.faults, wire.counts));
        }
        for (node, traffic) in rail.traffic.iter().enumerate() {
            text.push_str(&format!(
                "  {}  received {} bytes  sent {} bytes\n",
                node_name(node),
                traffic.received_bytes,
                traffic.sent_bytes
            ));
        }
    }
    for link in &status.links {
        text.push_str(&format!(
            "{}  {}  {}  up {} bytes  down {} bytes\n",
            link.link, link.rate, link.state, link.up_bytes, link.down_bytes
        ));
    }
    text
}

/// Prints to standard output; a reader that has gone (`| head`) is no error.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn parse<T: std::str::FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

fn parse_node(text: &str) -> Result<usize, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number.parse().map_err(|_| format!("`{text}` is no node: write its number or name, such as 1 or n1"))
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as NAME=VALUE".into()),
    }
}
