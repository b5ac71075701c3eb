//! What is started in the nodes: an MPI program through its launcher, or one plain process per node.

use crate::control::{CONTROL_ENV, inside_path};
use crate::enter::in_guest;
use crate::error::Attempt;
use crate::guest::EVENTS_LINK;
use crate::mpi::{Family, Installation, fabric_settings, one_sided_settings};
use crate::node::Node;
use crate::rdma::{KINDS_ENV, Rdma};
use crate::sys;
use crate::topology::{MGMT, Topology, node_name, rail_name};
use crate::{LabError, RUN_DIR};
use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file name under which libfabric looks for the provider.
pub const PROVIDER_FILE: &str = "librerail-fi.so";
/// The provider's name in libfabric.
pub const PROVIDER_NAME: &str = "rerail";
/// Names the file whose creation starts the schedule's clock.
pub const START_ENV: &str = "RERAIL_LAB_START";
/// Names the directory in which a program announces a phase: it creates a file of that name there, which starts the phase's
/// clock. When the lab has done what was due at once it adds a file `NAME.done`, so a program can wait until a cut is in place.
pub const PHASES_ENV: &str = "RERAIL_LAB_PHASES";

/// How the program is started.
#[derive(Clone, Debug)]
pub enum Launcher {
    /// By the launcher of an MPI.
    Mpi {
        /// The MPI.
        installation: Installation,
        /// Ranks in all.
        ranks: usize,
        /// Ranks per node.
        ranks_per_node: usize,
        /// Whether `rerail launch` starts the ranks, in place of the MPI's own launcher.
        by_rerail: bool,
        /// Further arguments of the launcher.
        arguments: Vec<String>,
        /// What the ranks talk through.
        transport: Transport,
    },
    /// One process per node, without MPI.
    EachNode,
}

/// What carries the messages of an MPI.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Rerail: the provider's file.
    Rerail(PathBuf),
    /// Whatever the MPI chooses by itself, kept to the rails.
    Own,
    /// Another libfabric provider that the MPI brings, by its name in libfabric.
    Fabric(String),
}

/// A program to run in a lab.
#[derive(Clone, Debug)]
pub struct Job {
    /// How.
    pub launcher: Launcher,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Variables set for it, over all others.
    pub env: Vec<(String, String)>,
}

/// Where the program starts the schedule's clock: it creates this file.
pub(crate) fn start_path() -> PathBuf {
    Path::new(RUN_DIR).join("start")
}

/// Where programs announce phases.
pub(crate) fn phases_dir() -> PathBuf {
    Path::new(RUN_DIR).join("phases")
}

/// Finds the provider: the file or directory given, or as it lies beside this executable, or in the checkout's build.
pub fn find_provider(given: Option<&Path>) -> Result<PathBuf, LabError> {
    if let Some(given) = given {
        let inside = given.join(PROVIDER_FILE);
        let file = if given.is_dir() { &inside } else { given };
        let refused = |what: &str| {
            LabError::Input(format!("{what} `{}`: give the path of {PROVIDER_FILE}", file.display()))
        };
        let found = file.canonicalize().map_err(|_| refused("there is no provider at"))?;
        if !is_provider(&found) {
            return Err(refused("this is no libfabric provider:"));
        }
        return Ok(found);
    }
    let candidates = provider_places();
    candidates.iter().find_map(|file| file.canonicalize().ok()).ok_or_else(|| {
        let looked: Vec<String> = candidates.iter().map(|file| format!("`{}`", file.display())).collect();
        LabError::Input(format!(
            "the provider was not found at {}: build it with `cargo xtask build`, or name it with --provider",
            looked.join(" or ")
        ))
    })
}

/// Whether a file is a shared object that has the one symbol by which libfabric knows a provider.
fn is_provider(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF") && holds_name(&bytes, b"fi_prov_ini"))
}

/// Whether a binary has a string that ends with this name. Linkers store a string that is the end of another only once, so
/// what stands before it says nothing.
pub fn holds_name(binary: &[u8], name: &[u8]) -> bool {
    let wanted = [name, &[0]].concat();
    binary.windows(wanted.len()).any(|window| window == wanted)
}

/// Names the rails that ranks use.
const RAILS_ENV: &str = "FI_RERAIL_RAILS";

/// Where the provider may lie: installed, beside this executable, or in the checkout's build.
fn provider_places() -> Vec<PathBuf> {
    let exe = env::current_exe().ok();
    let beside = exe.as_deref().and_then(Path::parent);
    let dirs = beside.into_iter().flat_map(|dir| [dir.to_path_buf(), dir.join("../lib/rerail")]);
    let dirs = dirs.chain(["target/release".into()]);
    dirs.map(|dir| dir.join(PROVIDER_FILE)).collect()
}

/// The directory to name in FI_PROVIDER_PATH for a provider that was found. In Cargo's directory lies `librerail_fi.so` as well,
/// which libfabric would load too; `cargo xtask build` links the provider into a directory of its own below.
pub fn provider_directory(provider: &Path) -> PathBuf {
    let dir = provider.parent().unwrap_or(Path::new("/")).to_path_buf();
    let alone = dir.join("lib/rerail");
    let inode = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    // The same file, so that an old link is never taken for the new build.
    match (inode(provider), inode(&alone.join(PROVIDER_FILE))) {
        (Some(one), Some(other)) if one == other => alone,
        _ => dir,
    }
}

/// Writes what the launchers need into the lab's directory.
pub(crate) fn prepare(job: &Job) -> Result<(), LabError> {
    let exe = env::current_exe().attempt(|| "find this executable".into())?;
    let wrapper = wrapper_path();
    let quoted = exe.to_string_lossy().replace('\'', r"'\''");
    fs::write(&wrapper, format!("#!/bin/sh\nexec '{quoted}' lab-ssh \"$@\"\n"))
        .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)))
        .attempt(|| format!("write {}", wrapper.display()))?;
    if let Launcher::Mpi { transport: Transport::Rerail(provider), .. } = &job.launcher {
        // A directory with nothing else in it: libfabric opens every provider it finds beside the one wanted.
        let dir = provider_dir();
        fs::create_dir(&dir)
            .and_then(|()| symlink(provider, dir.join(PROVIDER_FILE)))
            .attempt(|| format!("fill {}", dir.display()))?;
    }
    Ok(())
}

fn wrapper_path() -> PathBuf {
    Path::new(RUN_DIR).join("ssh")
}

fn provider_dir() -> PathBuf {
    Path::new(RUN_DIR).join("provider")
}

/// Variables that tell any process of a lab where it is.
pub(crate) fn lab_env(name: &str, topology: &Topology) -> Vec<(String, String)> {
    let mut variables = vec![
        ("RERAIL_LAB".into(), name.into()),
        ("RERAIL_NODES".into(), topology.nodes.to_string()),
        (CONTROL_ENV.into(), inside_path().to_string_lossy().into_owned()),
        (START_ENV.into(), start_path().to_string_lossy().into_owned()),
        (PHASES_ENV.into(), phases_dir().to_string_lossy().into_owned()),
    ];
    variables.extend(topology.rdma.map(|kind| (KINDS_ENV.into(), kinds(kind, env::var(KINDS_ENV).ok()))));
    variables
}

/// The kinds of rail that the programs of a lab of guests use: those of the RDMA devices, unless the user's environment names
/// others. These are among the lab's variables too, because Open MPI hands those on to the other nodes.
fn kinds(asked: Rdma, given: Option<String>) -> String {
    given.unwrap_or_else(|| asked.name().into())
}

/// The processes to start, each with its node, placed there and ready to spawn.
pub(crate) fn commands(
    job: &Job,
    lab: &str,
    topology: &Topology,
    events: Option<&Path>,
    nodes: &[Node],
    cores: &[Option<Vec<usize>>],
) -> Result<Vec<Command>, LabError> {
    let mut commands = match &job.launcher {
        Launcher::EachNode => (0..nodes.len())
            .map(|node| {
                let mut command = Command::new(&job.program[0]);
                command.args(&job.program[1..]);
                command.env("RERAIL_NODE", node.to_string());
                command
            })
            .collect(),
        Launcher::Mpi { .. } => vec![mpiexec(job, lab, topology, events)],
    };
    for (node, command) in commands.iter_mut().enumerate() {
        command.envs(lab_env(lab, topology));
        command.envs(job.env.iter().map(|(name, value)| (name, value)));
        if topology.rdma.is_some() {
            *command = in_guest(node, command)?;
        }
        if node > 0 {
            // One reader of the terminal is enough.
            command.stdin(Stdio::null());
        }
        nodes[node].place(command, cores[node].clone()).attempt(|| "place the program in its node".into())?;
    }
    Ok(commands)
}

fn mpiexec(job: &Job, lab: &str, topology: &Topology, events: Option<&Path>) -> Command {
    let Launcher::Mpi { installation, ranks, ranks_per_node, by_rerail, arguments, transport } =
        &job.launcher
    else {
        unreachable!("called for MPI only");
    };
    let family = installation.family();
    let settings = settings(installation, *ranks, topology, transport, events);
    let hosts = (0..topology.nodes).map(node_name);
    let list = |hosts: Vec<String>| hosts.join(",");
    if *by_rerail {
        let mut command = Command::new(env::current_exe().unwrap_or_else(|_| "rerail".into()));
        command.args(["launch", "--no-provider", "--rsh"]).arg(wrapper_path());
        command.args(["--hosts", &list(hosts.collect()), "--ppn", &ranks_per_node.to_string()]);
        let name = match family {
            Family::Mpich => "mpich",
            Family::Intel => "intel",
            Family::OpenMpi5 | Family::OpenMpi4 => "openmpi",
        };
        command.args(["--mpi", name, "-n", &ranks.to_string()]).args(arguments).arg("--").args(&job.program);
        command.envs(settings);
        return command;
    }
    let mut command = Command::new(&installation.launcher);
    match family {
        Family::Mpich => {
            command.args(["-launcher", "ssh", "-launcher-exec"]).arg(wrapper_path());
        }
        Family::Intel => {
            command.args(["-bootstrap", "ssh", "-bootstrap-exec"]).arg(wrapper_path());
        }
        // Session directories are named by host and process number, and labs have both in common: hence not in /tmp.
        Family::OpenMpi5 => {
            command
                .args(["--prtemca", "plm_ssh_agent"])
                .arg(wrapper_path())
                .args(["--prtemca", "prte_if_include", MGMT])
                .args(["--prtemca", "prte_tmpdir_base", "/dev/shm"])
                .args(["--map-by", ":OVERSUBSCRIBE"]);
        }
        Family::OpenMpi4 => {
            command
                .args(["--mca", "plm_rsh_agent"])
                .arg(wrapper_path())
                .args(["--mca", "oob_tcp_if_include", MGMT])
                .args(["--mca", "orte_tmpdir_base", "/dev/shm"])
                .arg("--oversubscribe");
        }
    }
    match family {
        Family::Mpich | Family::Intel => {
            command.args(["-iface", MGMT, "-hosts", &list(hosts.collect())]);
            command.args(["-ppn", &ranks_per_node.to_string()]);
        }
        Family::OpenMpi5 | Family::OpenMpi4 => {
            let slots = hosts.map(|host| format!("{host}:{ranks_per_node}"));
            // Cores are the business of `--pin`, which the launcher's daemons inherit.
            command.args(["--host", &list(slots.collect()), "--bind-to", "none"]);
            let lab_env = lab_env(lab, topology);
            let names = settings.iter().map(|(name, _)| name.as_str());
            let names = names.chain(lab_env.iter().chain(&job.env).map(|(name, _)| name.as_str()));
            for name in forwarded(names) {
                command.args(["-x", name]);
            }
        }
    }
    command.args(["-n", &ranks.to_string()]).args(arguments).args(&job.program);
    command.envs(settings);
    command
}

/// The variables that Open MPI must be told to hand on: those that it does not hand on by itself, each once.
fn forwarded<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    names.filter(|name| !["OMPI_", "PRTE_", "PMIX_"].iter().any(|prefix| name.starts_with(prefix))).collect()
}

/// The variables of launcher and ranks, the user's and the lab's own excepted.
fn settings(
    installation: &Installation,
    ranks: usize,
    topology: &Topology,
    transport: &Transport,
    events: Option<&Path>,
) -> Vec<(String, OsString)> {
    let mut settings: Vec<(String, OsString)> = Vec::new();
    let mut set = |name: &str, value: OsString| settings.push((name.into(), value));
    set("PATH", prepended("PATH", &installation.prefix.join("bin")));
    if let Some(dir) = installation.library_dir() {
        set("LD_LIBRARY_PATH", prepended("LD_LIBRARY_PATH", &dir));
    }
    match installation.family() {
        Family::Mpich => {}
        // In a lab every user is root, if only inside.
        Family::OpenMpi5 | Family::OpenMpi4 => {
            for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
                set(name, "1".into());
                set(&format!("{name}_CONFIRM"), "1".into());
            }
            // It cannot know that its nodes share this machine's cores: it would spin where others have work to do.
            if ranks > sys::affinity().len() {
                set("OMPI_MCA_mpi_yield_when_idle", "1".into());
            }
        }
        // It would give every node the same cores; the lab's `--pin` does it right.
        Family::Intel => set("I_MPI_PIN", "0".into()),
    }
    if let Transport::Rerail(_) = transport {
        set("FI_PROVIDER_PATH", provider_dir().into());
        // as for the kinds, the user's environment may name others
        let given = env::var_os(RAILS_ENV).filter(|names| !names.is_empty());
        set(RAILS_ENV, given.unwrap_or_else(|| topology.rail_list(",").into()));
        if let Some(events) = events {
            // A guest cannot reach every file of this machine; the lab collects what is written in each.
            let events = topology.rdma.map_or(events, |_| Path::new(EVENTS_LINK));
            set("FI_RERAIL_EVENTS", events.into());
        }
    } else {
        // A fair comparison keeps the other transports off the management network as well.
        let rails = topology.rail_list(",");
        set("FI_TCP_IFACE", rail_name(0).into());
        if installation.family().is_open_mpi() {
            set("OMPI_MCA_btl_tcp_if_include", rails.clone().into());
        }
        set("UCX_NET_DEVICES", rails.into());
        if let Some(dir) = installation.own_providers() {
            set("FI_PROVIDER_PATH", dir.into());
        }
    }
    let provider = match transport {
        Transport::Rerail(_) => Some(PROVIDER_NAME),
        Transport::Fabric(provider) => Some(provider.as_str()),
        Transport::Own => None,
    };
    for (name, value) in provider.map_or_else(Vec::new, |p| fabric_settings(installation.family(), p)) {
        set(name, value.into());
    }
    if let Transport::Rerail(_) = transport {
        for (name, value) in one_sided_settings(installation.family()) {
            if env::var_os(name).is_none() {
                set(name, value.into());
            }
        }
    }
    settings
}

fn prepended(variable: &str, dir: &Path) -> OsString {
    let mut value = OsString::from(dir);
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(rest);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_known_by_its_symbol() {
        assert!(!is_provider(Path::new("/etc/passwd")));
        assert!(!is_provider(Path::new("/bin/sh")), "a program is no provider");
        let dir = env::temp_dir().join(format!("rerail-provider-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join(PROVIDER_FILE);
        fs::write(&file, b"\x7fELF....\0fi_prov_ini\0").unwrap();
        assert_eq!(find_provider(Some(&dir)).unwrap(), file.canonicalize().unwrap());
        fs::write(&file, b"\x7fELF....\0fi_prov_initial\0").unwrap();
        assert!(find_provider(Some(&dir)).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_lab_of_guests_names_its_kind_of_rail_unless_the_user_does() {
        let mut topology = Topology { nodes: 2, rails: Vec::new(), congctl: None, rdma: None, fabric: None };
        let named = |topology: &Topology| {
            let variables = lab_env("lab", topology);
            variables.into_iter().find(|(name, _)| name == KINDS_ENV).map(|(_, value)| value)
        };
        assert_eq!(named(&topology), None, "namespaces have no RDMA device");
        topology.rdma = Some(Rdma::Iwarp);
        assert_eq!(named(&topology), Some(kinds(Rdma::Iwarp, env::var(KINDS_ENV).ok())));
        assert_eq!(kinds(Rdma::Iwarp, None), "iwarp");
        assert_eq!(kinds(Rdma::Roce, Some("ip,roce".into())), "ip,roce");
    }

    #[test]
    fn a_command_for_a_guest_keeps_its_words_and_variables() {
        let mut command = Command::new("mpiexec");
        command.args(["-n", "2", "./a.out", "--help"]).env("FI_PROVIDER", "rerail");
        let outer = in_guest(1, &command).unwrap();
        let words: Vec<_> = outer.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words.join(" "), "lab-enter n1 -- mpiexec -n 2 ./a.out --help");
        assert!(outer.get_envs().any(|pair| pair == (OsStr::new("FI_PROVIDER"), Some(OsStr::new("rerail")))));
    }
}
