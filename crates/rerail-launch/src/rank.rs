//! A rank: a process with a socket pair to its agent, and pipes for its standard streams. Owns: how one is started, signalled, and waited for.
//!
//! Each rank leads a process group of its own, so that what it has started is signalled with it, and is killed by the kernel when its agent dies
//! (`PR_SET_PDEATHSIG`). Nothing but its three standard streams and its end of the pair is inherited.

use crate::message::{Bytes, Ended, Start};
use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// A rank that was started.
pub struct Rank {
    /// The process; its pipes are taken out by the agent.
    pub child: Child,
    /// The agent's end of the pair.
    pub pmi: UnixStream,
}

/// Variables that a rank has from its host; all others are those of the launcher.
const OF_HOST: [&str; 4] = ["HOSTNAME", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"];

fn text(bytes: &Bytes) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Variables with the place of a process in its job. They override the user's.
fn place(start: &Start, local: usize, pmi: i32) -> Vec<(&'static str, String)> {
    let rank = start.first + local;
    vec![
        ("PMI_FD", pmi.to_string()),
        ("PMI_RANK", rank.to_string()),
        ("PMI_ID", rank.to_string()),
        ("PMI_SIZE", start.size.to_string()),
        ("MPI_LOCALRANKID", local.to_string()),
        ("MPI_LOCALNRANKS", start.count.to_string()),
        ("RERAIL_JOB", start.job.clone()),
        ("RERAIL_RANK", rank.to_string()),
        ("RERAIL_SIZE", start.size.to_string()),
        ("RERAIL_LOCAL_RANK", local.to_string()),
        ("RERAIL_LOCAL_SIZE", start.count.to_string()),
    ]
}

/// Variables by which scripts for Open MPI know the place of a process.
fn place_of_open_mpi(start: &Start, local: usize) -> Vec<(&'static str, String)> {
    vec![
        ("OMPI_COMM_WORLD_RANK", (start.first + local).to_string()),
        ("OMPI_COMM_WORLD_SIZE", start.size.to_string()),
        ("OMPI_COMM_WORLD_LOCAL_RANK", local.to_string()),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", start.count.to_string()),
        ("OMPI_COMM_WORLD_NODE_RANK", local.to_string()),
    ]
}

/// Starts a rank of this host, with the variables that its PMIx server wants, if there is one.
///
/// # Errors
/// That of the system; a program that is not there is `NotFound`.
pub fn start(start: &Start, local: usize, pmix: Option<&[(Bytes, Bytes)]>) -> Result<Rank> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    let (fd, agent) = (theirs.as_raw_fd(), std::process::id());
    let program = start.program.first().ok_or(ErrorKind::InvalidInput)?;
    let mut command = Command::new(text(program));
    command.args(start.program[1..].iter().map(text));
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| OF_HOST.iter().any(|own| name == own)));
    command.envs(start.env.iter().map(|(name, value)| (text(name), text(value))));
    command.env_remove("PMI_PORT").envs(place(start, local, fd));
    if let Some(variables) = pmix {
        command.envs(place_of_open_mpi(start, local));
        command.envs(variables.iter().map(|(name, value)| (text(name), text(value))));
    }
    command.current_dir(text(&start.directory));
    let reads = start.first + local == 0;
    command.stdin(if reads { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    // SAFETY: only calls that are safe between fork and exec (signal-safety(7)), and no memory is taken.
    unsafe {
        command.pre_exec(move || {
            // the agent ignores them, which a program would inherit
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            // what the agent has inherited is for no rank; a kernel before 5.11 has no such call
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                || libc::fcntl(fd, libc::F_SETFD, 0) != 0
            {
                return Err(Error::last_os_error());
            }
            // the agent may have died before that
            if libc::getppid() as u32 != agent {
                return Err(ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    ours.set_nonblocking(true)?;
    Ok(Rank { child, pmi: UnixStream::from_std(ours)? })
}

/// Sends a signal to a rank and to what it has started. One that is gone is not an error.
pub fn signal(group: u32, signal: i32) {
    if let Ok(group) = libc::pid_t::try_from(group) {
        if group > 1 {
            // SAFETY: it takes no pointer.
            unsafe { libc::killpg(group, signal) };
        }
    }
}

/// How a process has ended.
pub fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, signal) => Ended::Signal(signal.unwrap_or(libc::SIGKILL)),
    }
}

/// The name of a signal, as `kill -l` has it.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
