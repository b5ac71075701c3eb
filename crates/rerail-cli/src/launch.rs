//! `rerail launch`: ranks on several hosts, by agents that a remote shell starts. What it does is in `rerail-launch`.

use crate::env::in_path;
use crate::run::MpiName;
use crate::settings::settings;
use clap::Args;
use rerail_lab::launch::{find_provider, holds_name, provider_directory};
use rerail_launch::hosts::{self, Host};
use rerail_launch::launcher::{self, EXIT_FAILED, Spec};
use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Variables that belong to a host or to another launcher, and stay where they are.
const OWN: [&str; 12] = [
    "HOSTNAME",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "PMI_FD",
    "PMI_RANK",
    "PMI_ID",
    "PMI_SIZE",
    "PMI_PORT",
];

/// Options of `rerail launch`.
#[derive(Args)]
pub struct LaunchArgs {
    /// Number of ranks
    #[arg(short = 'n', long = "np", value_name = "N")]
    ranks: usize,
    /// Hosts, each with the ranks that it takes if that matters: a,b:4 [default: those of Slurm or PBS, then this one]
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// The same from a file: a host in each line, as `a`, `a:4`, `a slots=4` or `a 4`
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Ranks of each host [default: what hosts take, or as many as make it even]
    #[arg(long, value_name = "K")]
    ppn: Option<usize>,
    /// The remote shell and its arguments; a host and a command follow [default: ssh, and none for this host]
    #[arg(long, value_name = "COMMAND")]
    rsh: Option<String>,
    /// This command on the hosts [default: the same path as here]
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// An address of this host for the agents to call; repeat it for several [default: all]
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Directory of the ranks [default: this one]
    #[arg(long, value_name = "DIR")]
    wdir: Option<PathBuf>,
    /// A variable for the ranks: NAME=VALUE, or NAME to take it away; repeat it for several. The rest of the environment goes along
    #[arg(long = "env", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Begin each line of output with the rank
    #[arg(long)]
    prefix: bool,
    /// When a rank dies, let the others go on
    #[arg(long)]
    keep_going: bool,
    /// Seconds to wait for a host that cannot be reached; its ranks go on meanwhile
    #[arg(long, value_name = "S", default_value_t = 300)]
    patience: u64,
    /// Seconds that ranks have to end when the job ends, before they are killed
    #[arg(long, value_name = "S", default_value_t = 5)]
    grace: u64,
    /// The MPI of the program, to set it to use Rerail: mpich or intel [default: that of mpiexec in PATH, or mpich]
    #[arg(long, value_enum)]
    mpi: Option<MpiName>,
    /// The provider librerail-fi.so [default: beside this executable or in ../lib/rerail, then in target/release]
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
    /// Leave the MPI's transport as it is set
    #[arg(long, conflicts_with = "provider")]
    no_provider: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

/// Runs a job; returns the exit code: that of the rank that ended it, 2 for bad input, 125 if the launcher itself failed.
pub fn run(args: LaunchArgs) -> i32 {
    let spec = match prepare(&args) {
        Ok(spec) => spec,
        Err(why) => {
            eprintln!("rerail launch: {why}");
            return 2;
        }
    };
    launcher::run(spec).unwrap_or_else(|why| {
        eprintln!("rerail launch: {why}");
        EXIT_FAILED
    })
}

fn find_hosts(args: &LaunchArgs) -> Result<Vec<Host>, String> {
    if let Some(list) = &args.hosts {
        return hosts::list(list);
    }
    if let Some(path) = &args.hostfile {
        let text = std::fs::read_to_string(path)
            .map_err(|why| format!("the host file {} cannot be read: {why}", path.display()))?;
        return hosts::file(&text, &path.display().to_string());
    }
    let batch = hosts::batch(|name| env::var(name).ok(), |path| std::fs::read_to_string(path))?;
    // a batch system's numbers are bounds, those of this host are not
    Ok(batch.unwrap_or_else(|| vec![Host { name: "localhost".into(), slots: None }]))
}

fn prepare(args: &LaunchArgs) -> Result<Spec, String> {
    let placed = hosts::place(args.ranks, args.ppn, &find_hosts(args)?)?;
    let mut variables: Vec<(OsString, OsString)> =
        env::vars_os().filter(|(name, _)| !OWN.iter().any(|own| name == own)).collect();
    let mut set = |name: OsString, value: Option<OsString>| {
        variables.retain(|(known, _)| *known != name);
        variables.extend(value.map(|value| (name, value)));
    };
    if !args.no_provider {
        let say = |error: rerail_lab::LabError| error.to_string();
        let installation = in_path().map_err(say)?.filter(|found| !found.family().is_open_mpi());
        let family = match (args.mpi, &installation) {
            (Some(mpi), _) => mpi.family(),
            (None, Some(found)) => found.family(),
            (None, None) => MpiName::Mpich.family(),
        };
        if family.is_open_mpi() || args.mpi.is_none() && is_of_open_mpi(&args.program[0]) {
            return Err("Open MPI's programs want another conversation with their launcher (PMIx), which rerail launch does not speak yet: start them with `rerail run -- mpirun …`".into());
        }
        let library = installation.filter(|i| i.family() == family).and_then(|i| i.library_dir());
        let provider = find_provider(args.provider.as_deref()).map_err(say)?;
        let settings = settings(family, &provider_directory(&provider), library, |name| env::var_os(name));
        for remark in &settings.remarks {
            eprintln!("rerail launch: {remark}");
        }
        for (name, value) in settings.changes {
            set(name.into(), Some(value.into()));
        }
    }
    for variable in &args.variables {
        match variable.split_once('=') {
            Some(("", _)) => return Err(format!("--env {variable}: write NAME=VALUE")),
            Some((name, value)) => set(name.into(), Some(value.into())),
            None => set(variable.into(), None),
        }
    }
    let rsh = match &args.rsh {
        None => None,
        Some(text) => {
            let words: Vec<String> = text.split_whitespace().map(String::from).collect();
            if words.is_empty() {
                return Err(
                    "--rsh names no command: write such as --rsh \"ssh -p 2222\", or leave it out".into()
                );
            }
            Some(words)
        }
    };
    let here = env::current_dir()
        .map_err(|why| format!("there is no current directory: {why}; name one with --wdir"))?;
    let directory = here.join(args.wdir.clone().unwrap_or_default());
    let executable = match &args.agent {
        Some(path) => path.clone(),
        None => env::current_exe()
            .map_err(|why| format!("cannot find this command: {why}; name it with --agent"))?,
    };
    let bytes = |text: &OsString| text.as_bytes().to_vec();
    Ok(Spec {
        placed,
        program: args.program.iter().map(bytes).collect(),
        directory: directory.as_os_str().as_bytes().to_vec(),
        env: variables.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        rsh,
        executable,
        addresses: if args.address.is_empty() { own_addresses()? } else { args.address.clone() },
        prefix: args.prefix,
        keep_going: args.keep_going,
        patience: Duration::from_secs(args.patience),
        grace: Duration::from_secs(args.grace),
    })
}

/// The addresses of this host that others may reach: all but the loopback's and those of one link.
fn own_addresses() -> Result<Vec<IpAddr>, String> {
    let found = rerail_ip::survey(&[]).map_err(|why| why.to_string())?;
    let all = found.interfaces.into_iter().flat_map(|interface| interface.addresses);
    let of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut all: Vec<IpAddr> = all.map(|(ip, _)| ip).filter(|ip| !ip.is_loopback() && !of_link(ip)).collect();
    all.sort_by_key(IpAddr::is_ipv6);
    Ok(all)
}

/// Whether a program was linked with Open MPI's library; one that is not found, or no binary, was not.
fn is_of_open_mpi(program: &OsString) -> bool {
    let path = rerail_lab::find_program(&program.to_string_lossy(), &env::var_os("PATH").unwrap_or_default());
    path.and_then(|path| std::fs::read(path).ok())
        .is_some_and(|bytes| bytes.starts_with(b"\x7fELF") && holds_name(&bytes, b"libmpi.so.40"))
}
