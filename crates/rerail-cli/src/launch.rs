//! `rerail launch`: ranks on several hosts, by agents that a remote shell starts. What it does is in `rerail-launch`.

use crate::env::in_path;
use crate::run::MpiName;
use crate::settings::settings;
use clap::Args;
use rerail_lab::launch::{find_provider, holds_name, provider_directory};
use rerail_lab::mpi::{Family, Installation};
use rerail_launch::guard::PidNamespace;
use rerail_launch::hosts::{self, Host};
use rerail_launch::launcher::{self, EXIT_FAILED, Spec};
use rerail_launch::message::PmixLibrary;
use std::env;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
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
    /// Whether the ranks of each host get process ids of their own: where the agent has the right to it (root), or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pid_namespace: When,
    /// The MPI of the program [default: Open MPI if the program is linked with it, else that of mpiexec in PATH, or mpich]
    #[arg(long, value_enum)]
    mpi: Option<MpiName>,
    /// Where Open MPI is installed on the hosts, for its library libpmix.so.2 [default: found by the program's own directory, by
    /// OPAL_PREFIX, by mpiexec in PATH, by LD_LIBRARY_PATH, then by the loader]
    #[arg(long, value_name = "DIR")]
    pmix: Option<PathBuf>,
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

/// Whether there is a process-id namespace.
#[derive(Clone, Copy, clap::ValueEnum)]
enum When {
    /// Where the system allows it
    Auto,
    /// Never
    Off,
}

impl From<When> for PidNamespace {
    fn from(when: When) -> Self {
        match when {
            When::Auto => Self::Auto,
            When::Off => Self::Off,
        }
    }
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
        env::vars_os().filter(|(name, _)| !is_own(&name.to_string_lossy())).collect();
    let mut set = |name: OsString, value: Option<OsString>| {
        variables.retain(|(known, _)| *known != name);
        variables.extend(value.map(|value| (name, value)));
    };
    let say = |error: rerail_lab::LabError| error.to_string();
    let program = Program::of(&args.program[0]);
    let is_open_mpi = args.mpi.is_some_and(|mpi| mpi.family().is_open_mpi());
    // it takes the time to start it
    let installation = match args.no_provider && program == Program::Other && !is_open_mpi {
        true => None,
        false => in_path().map_err(say)?,
    };
    let family = family(args.mpi, &program, installation.as_ref().map(Installation::family));
    let pmix = match family.is_open_mpi() {
        true => Some(pmix_library(args, installation.as_ref())?),
        false => None,
    };
    if args.pmix.is_some() && pmix.is_none() {
        return Err("--pmix is for Open MPI: add --mpi openmpi, or leave --pmix out".into());
    }
    if !args.no_provider {
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
        pmix,
        pid_namespace: args.pid_namespace.into(),
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

/// Whether a variable stays where it is.
fn is_own(name: &str) -> bool {
    // those of a client of another launcher's PMIx server; not the user's settings of the library
    let pmix =
        name.starts_with("PMIX_") && !["PMIX_MCA_", "PMIX_PREFIX"].iter().any(|own| name.starts_with(own));
    OWN.contains(&name) || pmix || name.starts_with("OMPI_COMM_WORLD_")
}

/// The MPI of the program. Open MPI has to be certain, because its ranks need another server: by the option, by the program itself, or by
/// the launcher in PATH where the program is an interpreter or a script, which does not show what it loads.
fn family(option: Option<MpiName>, program: &Program, in_path: Option<Family>) -> Family {
    if let Some(mpi) = option {
        return mpi.family();
    }
    match (program, in_path) {
        (Program::OfOpenMpi, _) => MpiName::OpenMpi.family(),
        (Program::Interpreted, Some(family)) => family,
        (Program::Other, Some(family)) if !family.is_open_mpi() => family,
        _ => MpiName::Mpich.family(),
    }
}

/// Where the PMIx library of the ranks' Open MPI is.
fn pmix_library(args: &LaunchArgs, installation: Option<&Installation>) -> Result<PmixLibrary, String> {
    if let Some(given) = &args.pmix {
        let given = std::path::absolute(given).map_err(|why| format!("--pmix {}: {why}", given.display()))?;
        return Ok(PmixLibrary::In(given.into_os_string().into_vec()));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let program = rerail_lab::find_program(&args.program[0].to_string_lossy(), &path);
    let own = program.as_deref().and_then(above_bin);
    let old = installation.is_some_and(|found| found.family() == Family::OpenMpi4);
    if old && !own.as_ref().is_some_and(|own| rerail_launch::pmix::is_below(own)) {
        return Err("mpiexec in PATH is that of Open MPI 4, whose programs rerail launch cannot start: use `rerail run -- mpirun …`; for a program of Open MPI 5 name the directory where that is installed with --pmix".into());
    }
    let places = own.into_iter().chain(pmix_places(|name| env::var_os(name), installation));
    Ok(PmixLibrary::Found(places.map(|path| path.into_os_string().into_vec()).collect()))
}

/// The directory that has the program's directory `bin`: an environment of Python, or an installation.
fn above_bin(program: &Path) -> Option<PathBuf> {
    let program = std::path::absolute(program).ok()?;
    program.parent()?.parent().map(Path::to_path_buf)
}

/// Directories below which the library may be, the likeliest first.
fn pmix_places(
    variable: impl Fn(&str) -> Option<OsString>,
    installation: Option<&Installation>,
) -> Vec<PathBuf> {
    let prefixes = ["OPAL_PREFIX", "PMIX_PREFIX"].iter().filter_map(|name| variable(name).map(PathBuf::from));
    let installed = installation.filter(|found| found.family() == Family::OpenMpi5).map(|i| i.prefix.clone());
    let libraries = variable("LD_LIBRARY_PATH").unwrap_or_default();
    let above = env::split_paths(&libraries).filter_map(|lib| lib.parent().map(Path::to_path_buf));
    let all = prefixes.chain(installed).chain(above.collect::<Vec<_>>());
    all.filter(|path| path.is_absolute()).collect()
}

/// What a program is, as far as that says which MPI it uses.
#[derive(Debug, PartialEq, Eq)]
enum Program {
    /// It was linked with Open MPI's library.
    OfOpenMpi,
    /// A script, or Python, which load a library by themselves.
    Interpreted,
    /// Anything else.
    Other,
}

impl Program {
    fn of(program: &OsStr) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let found = rerail_lab::find_program(&program.to_string_lossy(), &path);
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("python") {
            return Self::Interpreted;
        }
        match found.and_then(|path| std::fs::read(path).ok()) {
            Some(bytes) if bytes.starts_with(b"#!") => Self::Interpreted,
            Some(bytes) if bytes.starts_with(b"\x7fELF") && holds_name(&bytes, b"libmpi.so.40") => {
                Self::OfOpenMpi
            }
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_show_their_mpi_or_are_interpreted() {
        let directory = env::temp_dir().join(format!("rerail-programs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let of = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            Program::of(path.as_os_str())
        };
        assert_eq!(of("linked", b"\x7fELF..\0libmpi.so.40\0"), Program::OfOpenMpi);
        assert_eq!(of("other", b"\x7fELF..\0libmpi.so.12\0"), Program::Other);
        assert_eq!(of("script", b"#!/bin/sh\n"), Program::Interpreted);
        assert_eq!(of("python3.11", b"\x7fELF"), Program::Interpreted);
        assert_eq!(Program::of(OsStr::new("no-such-program")), Program::Other);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_mpi_is_that_of_the_option_then_of_the_program_then_of_the_path() {
        let (open, intel, mpich) = (Family::OpenMpi5, Family::Intel, Family::Mpich);
        for (option, program, in_path, wanted) in [
            (Some(MpiName::Mpich), Program::OfOpenMpi, Some(open), mpich),
            (Some(MpiName::OpenMpi), Program::Other, None, open),
            (None, Program::OfOpenMpi, Some(intel), open),
            (None, Program::Interpreted, Some(open), open),
            (None, Program::Interpreted, None, mpich),
            (None, Program::Other, Some(intel), intel),
            // a program without an MPI needs no other server than PMI-1
            (None, Program::Other, Some(open), mpich),
        ] {
            assert_eq!(family(option, &program, in_path), wanted, "{program:?} {in_path:?}");
        }
    }

    #[test]
    fn variables_of_another_launcher_stay_and_the_users_settings_go_along() {
        for own in ["PMIX_NAMESPACE", "PMIX_SERVER_URI41", "PMI_FD", "OMPI_COMM_WORLD_RANK", "HOSTNAME"] {
            assert!(is_own(own), "{own}");
        }
        for other in ["PMIX_MCA_gds", "PMIX_PREFIX", "OMPI_MCA_pml", "FI_PROVIDER", "PMIXED"] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn the_library_of_pmix_is_looked_for_where_open_mpi_is() {
        let variables = [("OPAL_PREFIX", "/opal"), ("LD_LIBRARY_PATH", "/a/lib:here:/b/lib64")];
        let of = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        assert_eq!(pmix_places(of, None), ["/opal", "/a", "/b"].map(PathBuf::from));
        assert_eq!(above_bin(Path::new("/venv/bin/python")), Some("/venv".into()));
    }
}
