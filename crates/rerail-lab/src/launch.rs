//! What is started in the nodes: an MPI program through its launcher, or one plain process per node.

use crate::control::{CONTROL_ENV, inside_path};
use crate::error::Attempt;
use crate::node::Node;
use crate::tool::find_program;
use crate::topology::{MGMT, Topology, node_name, rail_name};
use crate::{LabError, RUN_DIR};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file name under which libfabric looks for the provider.
pub const PROVIDER_FILE: &str = "librerail-fi.so";
/// Names the directory of the MPI library when `--mpi-prefix` does not.
pub const PREFIX_ENV: &str = "RERAIL_MPI_PREFIX";
/// Names the file whose creation starts the schedule's clock.
pub const START_ENV: &str = "RERAIL_LAB_START";
/// Names the directory in which a program announces a phase: it creates a file of that name there, which starts the phase's
/// clock. When the lab has done what was due at once it adds a file `NAME.done`, so a program can wait until a cut is in place.
pub const PHASES_ENV: &str = "RERAIL_LAB_PHASES";

/// How the program is started.
#[derive(Clone, Debug)]
pub enum Launcher {
    /// MPICH's Hydra, installed under this directory.
    Mpich {
        /// Holds `bin/mpiexec` and `lib`.
        prefix: PathBuf,
        /// Ranks in all.
        ranks: usize,
        /// Ranks per node.
        ranks_per_node: usize,
        /// Further arguments of `mpiexec`.
        arguments: Vec<String>,
        /// The provider; `None` runs the MPI on its own transports.
        provider: Option<PathBuf>,
    },
    /// One process per node, without MPI.
    EachNode,
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

/// Finds the MPI: the directory given, or `RERAIL_MPI_PREFIX`, `./.rerail/venv`, PATH.
pub fn find_mpich(given: Option<&Path>) -> Result<PathBuf, LabError> {
    let has_launcher = |prefix: &Path| prefix.join("bin/mpiexec").is_file();
    let named = given.map(|path| (path.to_path_buf(), "--mpi-prefix"));
    let named = named.or_else(|| Some((env::var_os(PREFIX_ENV)?.into(), PREFIX_ENV)));
    let prefix = match named {
        Some((prefix, _)) if has_launcher(&prefix) => prefix,
        Some((prefix, origin)) => {
            return Err(LabError::Input(format!(
                "there is no bin/mpiexec in `{}`: point {origin} at the directory MPICH is installed in",
                prefix.display()
            )));
        }
        None => {
            let project = PathBuf::from(".rerail/venv");
            let path = env::var_os("PATH").unwrap_or_default();
            let in_path = || {
                let mpiexec = find_program("mpiexec", &path)?;
                Some(mpiexec.parent()?.parent()?.to_path_buf())
            };
            Some(project)
                .filter(|prefix| has_launcher(prefix))
                .or_else(in_path)
                .ok_or_else(|| {
                    LabError::Input(format!(
                        "no mpiexec was found in .rerail/venv or PATH: install MPICH (`pip install mpich` in a virtual environment) and point --mpi-prefix or {PREFIX_ENV} at it, or run without MPI by `--mpi none`"
                    ))
                })?
        }
    };
    let prefix = prefix.canonicalize().attempt(|| format!("resolve `{}`", prefix.display()))?;
    check_is_mpich(&prefix)?;
    Ok(prefix)
}

/// Intel's launcher has the same file name but other options, and fails in ways that do not say so.
fn check_is_mpich(prefix: &Path) -> Result<(), LabError> {
    let mpiexec = prefix.join("bin/mpiexec");
    let output = Command::new(&mpiexec)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .attempt(|| format!("run `{} --version`", mpiexec.display()))?;
    if String::from_utf8_lossy(&output.stdout).contains("HYDRA build details") {
        return Ok(());
    }
    Err(LabError::Input(format!(
        "`{}` is not MPICH's launcher: point --mpi-prefix at an MPICH (the wheels mpich and impi-rt overwrite each other: keep them in separate environments)",
        mpiexec.display()
    )))
}

/// Finds the provider: the file or directory given, or next to this executable, or in `target/release`.
pub fn find_provider(given: Option<&Path>) -> Result<PathBuf, LabError> {
    if let Some(given) = given {
        let inside = given.join(PROVIDER_FILE);
        let file = if given.is_dir() { &inside } else { given };
        return file.canonicalize().map_err(|_| {
            LabError::Input(format!(
                "there is no provider at `{}`: give the path of {PROVIDER_FILE}, or --no-provider to run the MPI on its own transports",
                file.display()
            ))
        });
    }
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(PROVIDER_FILE)));
    let built = Path::new("target/release").join(PROVIDER_FILE);
    let candidates: Vec<PathBuf> = beside.into_iter().chain([built]).collect();
    candidates
        .iter()
        .find_map(|file| file.canonicalize().ok())
        .ok_or_else(|| {
            let looked: Vec<String> = candidates
                .iter()
                .map(|file| format!("`{}`", file.display()))
                .collect();
            LabError::Input(format!(
                "the provider was not found at {}: build it with `cargo xtask build`, name it with --provider, or run the MPI on its own transports with --no-provider",
                looked.join(" or ")
            ))
        })
}

/// Writes what the launchers need into the lab's directory.
pub(crate) fn prepare(job: &Job) -> Result<(), LabError> {
    let exe = env::current_exe().attempt(|| "find this executable".into())?;
    let wrapper = wrapper_path();
    let quoted = exe.to_string_lossy().replace('\'', r"'\''");
    fs::write(&wrapper, format!("#!/bin/sh\nexec '{quoted}' lab-ssh \"$@\"\n"))
        .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)))
        .attempt(|| format!("write {}", wrapper.display()))?;
    if let Launcher::Mpich { provider: Some(provider), .. } = &job.launcher {
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
    vec![
        ("RERAIL_LAB".into(), name.into()),
        ("RERAIL_NODES".into(), topology.nodes.to_string()),
        (CONTROL_ENV.into(), inside_path().to_string_lossy().into_owned()),
        (START_ENV.into(), start_path().to_string_lossy().into_owned()),
        (PHASES_ENV.into(), phases_dir().to_string_lossy().into_owned()),
    ]
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
                if node > 0 {
                    // One reader of the terminal is enough.
                    command.stdin(Stdio::null());
                }
                command
            })
            .collect(),
        Launcher::Mpich { .. } => vec![hydra(job, topology, events)],
    };
    for (node, command) in commands.iter_mut().enumerate() {
        command.envs(lab_env(lab, topology));
        command.envs(job.env.iter().map(|(name, value)| (name, value)));
        nodes[node].place(command, cores[node].clone()).attempt(|| "place the program in its node".into())?;
    }
    Ok(commands)
}

fn hydra(job: &Job, topology: &Topology, events: Option<&Path>) -> Command {
    let Launcher::Mpich { prefix, ranks, ranks_per_node, arguments, provider } = &job.launcher else {
        unreachable!("called for MPICH only");
    };
    let hosts: Vec<String> = (0..topology.nodes).map(node_name).collect();
    let mut command = Command::new(prefix.join("bin/mpiexec"));
    command
        .args(["-launcher", "ssh", "-launcher-exec"])
        .arg(wrapper_path())
        .args(["-iface", MGMT, "-hosts", &hosts.join(",")])
        .args(["-ppn", &ranks_per_node.to_string()])
        .args(["-n", &ranks.to_string()])
        .args(arguments)
        .args(&job.program)
        .env("PATH", prepended("PATH", &prefix.join("bin")))
        .env("LD_LIBRARY_PATH", prepended("LD_LIBRARY_PATH", &prefix.join("lib")));
    let rails = topology.rail_list(",");
    match provider {
        Some(_) => {
            command
                .env("FI_PROVIDER", "rerail")
                .env("FI_PROVIDER_PATH", provider_dir())
                .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                .env("FI_RERAIL_RAILS", rails);
            if let Some(events) = events {
                command.env("FI_RERAIL_EVENTS", events);
            }
        }
        None => {
            // A fair comparison keeps the other transports off the management network as well.
            command.env("FI_TCP_IFACE", rail_name(0)).env("UCX_NET_DEVICES", rails);
        }
    }
    command
}

fn prepended(variable: &str, dir: &Path) -> OsString {
    let mut value = OsString::from(dir);
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(rest);
    }
    value
}
