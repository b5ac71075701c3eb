//! The guard: the agent's parent, which kills what ranks leave behind when the agent ends, however that ends. Owns: which processes there are above
//! the agent, and that none below them outlives it.
//!
//! With a process-id namespace there are three processes: the guard, which stays in the host's namespace and tells the remote shell the exit code; the
//! namespace's process 1, which buries orphans; and the agent. When process 1 ends, the kernel kills all that is in the namespace. Without one there are
//! two, and the guard adopts what ranks leave behind (`PR_SET_CHILD_SUBREAPER`) and kills it.
//!
//! The agent itself is not process 1. That has to bury children that it has not started, and tokio waits for the agent's: a reaper in the
//! same process would take ranks' exit states away from it. And process 1 ignores signals that it does not handle.
//!
//! Invariant: the agent's end ends process 1, and process 1 ends with every other end of the guard: it gets SIGTERM then, which it hands to the agent.

use crate::{namespace, pmix::serving};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The exit code of an agent that cannot do its work.
pub const EXIT_FAILED: i32 = 125;

/// Whether the ranks of a host get a process-id namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidNamespace {
    /// Where the system allows it, which takes `CAP_SYS_ADMIN`.
    Auto,
    /// No.
    Off,
}

impl PidNamespace {
    /// As a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }

    /// Reads a word; `None`: it is none.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Auto, Self::Off].into_iter().find(|one| one.word() == word)
    }
}

/// What a process is after [`split`].
pub enum Role {
    /// This is the agent.
    Agent,
    /// This is the guard, and the agent has ended so.
    Ended(i32),
    /// There is no agent.
    Failed(Error),
}

/// Becomes several processes. There must be one thread yet, so that a fork is safe. The directory is the agent's, which may be killed.
pub fn split(wish: PidNamespace, directory: &Path) -> Role {
    // SAFETY: these calls take no pointers, and no other thread runs.
    unsafe {
        // a signal of the terminal is the launcher's; and an end of it, which the remote shell passes on, too
        libc::setsid();
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) != 0 {
            return Role::Failed(Error::last_os_error());
        }
    }
    let role = match wish {
        PidNamespace::Auto => in_namespace(),
        PidNamespace::Off => None,
    };
    let role = role.unwrap_or_else(here);
    if let Role::Ended(_) = role {
        serving::remove(directory);
    }
    role
}

/// The agent in the guard's own namespace.
fn here() -> Role {
    // SAFETY: these calls take no pointers, and no other thread runs.
    unsafe {
        let guard = libc::getpid();
        match libc::fork() {
            -1 => Role::Failed(Error::last_os_error()),
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                // in case that the guard goes first
                libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
                if libc::getppid() != guard {
                    libc::_exit(EXIT_FAILED);
                }
                Role::Agent
            }
            agent => Role::Ended(watch(agent)),
        }
    }
}

/// The agent in a namespace of its own; `None`: the system does not allow one, and nothing has happened.
///
/// Only the first process changes its mounts. The guard stays with those of the host, where `/proc` shows it to itself.
fn in_namespace() -> Option<Role> {
    let own = File::open("/proc/self/ns/pid").ok()?;
    let (mut ours, theirs) = UnixStream::pair().ok()?;
    // SAFETY: these calls take no pointers, and no other thread runs.
    let first = unsafe {
        if libc::unshare(libc::CLONE_NEWPID) != 0 {
            return None;
        }
        libc::fork()
    };
    if first == 0 {
        drop(ours);
        be_first(theirs);
        return Some(Role::Agent);
    }
    drop(theirs);
    if first > 0 {
        if ours.read_exact(&mut [0]).is_ok() {
            return Some(Role::Ended(watch(first)));
        }
        // it could not mount /proc, and has ended
        wait(first);
    }
    // children are not to be born into a namespace without a process 1, where none can be
    // SAFETY: no pointers, one thread; the descriptor is open.
    let back = unsafe { libc::setns(own.as_raw_fd(), libc::CLONE_NEWPID) };
    (back != 0).then(|| Role::Failed(Error::last_os_error()))
}

/// Process 1 of a namespace. Returns in the agent only. Tells the guard when the agent is there.
fn be_first(mut guard: UnixStream) {
    // SAFETY: the sets are valid, the calls take no other pointers, and no other thread runs.
    unsafe {
        let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGCHLD);
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGTERM);
        // process 1 loses signals that it neither blocks nor handles
        libc::sigprocmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        // the guard's session has no number here
        libc::setsid();
        if namespace::show_own_processes().is_err() {
            libc::_exit(EXIT_FAILED);
        }
        let agent = libc::fork();
        match agent {
            -1 => libc::_exit(EXIT_FAILED),
            0 => {
                libc::sigprocmask(libc::SIG_UNBLOCK, signals.as_ptr(), std::ptr::null_mut());
                return;
            }
            _ => {}
        }
        // it fails when the guard has ended before it could be waited for
        if guard.write_all(&[1]).is_err() {
            libc::_exit(EXIT_FAILED);
        }
        drop(guard);
        loop {
            let mut status = 0;
            match libc::waitpid(-1, &raw mut status, libc::WNOHANG) {
                0 => {}
                gone if gone == agent => libc::_exit(code_of(status)),
                // an orphan
                gone if gone > 0 => continue,
                _ => libc::_exit(EXIT_FAILED),
            }
            if libc::sigwaitinfo(signals.as_ptr(), std::ptr::null_mut()) == libc::SIGTERM {
                libc::kill(agent, libc::SIGTERM);
            }
        }
    }
}

/// Waits for the agent, or for process 1 of its namespace, then kills what is left of its ranks.
fn watch(agent: libc::pid_t) -> i32 {
    // SAFETY: it takes no pointer. A signal that ends the guard ends the agent by the parent-death signal of its child.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
    let Some(status) = wait(agent) else { return EXIT_FAILED };
    kill_rest();
    code_of(status)
}

/// Waits for a child, and buries others meanwhile; `None`: there is none.
fn wait(child: libc::pid_t) -> Option<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a local variable.
        let gone = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if gone == child {
            return Some(status);
        }
        if gone == -1 && Error::last_os_error().kind() != ErrorKind::Interrupted {
            return None;
        }
    }
}

fn code_of(status: libc::c_int) -> i32 {
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// Kills every child of this process, and what they leave behind: that becomes a child as well.
pub fn kill_rest() {
    loop {
        let children = children();
        if children.is_empty() {
            return;
        }
        // SAFETY: both take no memory of ours.
        unsafe {
            children.iter().for_each(|child| {
                libc::kill(*child, libc::SIGKILL);
            });
            libc::waitpid(-1, std::ptr::null_mut(), 0);
        }
    }
}

/// The children of this process.
fn children() -> Vec<libc::pid_t> {
    let own = std::process::id();
    let text = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
    text.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
