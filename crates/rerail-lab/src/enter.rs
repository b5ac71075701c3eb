//! Starting a command in a node of a lab that runs: as the launcher's `ssh`, or from another terminal.

use crate::LabError;
use crate::control::{self, Request};
use crate::error::Attempt;
use crate::guest::{Call, call_guest, off_path};
use crate::node::{self, RosterEntry};
use crate::rdma::KINDS_ENV;
use crate::sys::{self, Signals};
use crate::topology::node_name;
use std::env;
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Options of `ssh` that take a value, which must not be taken for the host.
const SSH_OPTIONS_WITH_VALUE: &str = "BbcDEeFIiJLlmOopQRSWw";

/// What a login on another machine has of the caller's environment. All else a launcher must hand on itself, as on a cluster;
/// a lab that let it through would hide a forgotten variable.
const KEPT_OVER_SSH: [&str; 7] = ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TZ", "USER"];

/// Does what `ssh [options] host command…` would, inside a lab; returns only on failure.
pub fn enter_as_ssh(arguments: &[String]) -> Result<i32, LabError> {
    let (host, command) = split_ssh_arguments(arguments).ok_or_else(|| {
        LabError::Input("this is the launcher's way into a node: write `lab-ssh HOST COMMAND`".into())
    })?;
    let entry = entry_of(host)?;
    let what = || format!("enter node {host}");
    // The far end of ssh hands the words, joined by blanks, to a shell, and launchers quote for that.
    let words = ["/bin/sh".into(), "-c".into(), OsString::from(command.join(" "))];
    let kept = KEPT_OVER_SSH.iter().filter_map(|name| Some((OsString::from(name), env::var_os(name)?)));
    if entry.guest {
        let dir = env::current_dir().attempt(what)?;
        let call = Call { command: words.into(), env: kept.collect(), dir };
        return call_guest(&entry.name, address_of(&entry)?, None, &call);
    }
    let namespaces = node::open_namespaces(entry.holder).attempt(what)?;
    let mut shell = Command::new(&words[0]);
    shell.args(&words[1..]).env_clear().envs(kept);
    node::place(&mut shell, &namespaces, entry.cores.clone()).attempt(what)?;
    Err(shell.exec()).attempt(what)
}

/// Runs a command in the guest of a node, with this environment and working directory. This process stands in the node's
/// namespaces, and has a single thread. Returns the exit code.
pub fn enter_guest(node: &str, command: &[OsString]) -> Result<i32, LabError> {
    let entry = entry_of(node)?;
    let dir = env::current_dir().attempt(|| "find the working directory".into())?;
    let call = Call { command: command.to_vec(), env: env::vars_os().collect(), dir };
    call_guest(&entry.name, address_of(&entry)?, Some(&off_path(&entry.name)), &call)
}

/// The command that runs another one in the guest of a node, when it is started in the node's namespaces.
pub(crate) fn in_guest(node: usize, command: &Command) -> Result<Command, LabError> {
    let exe = env::current_exe().attempt(|| "find this executable".into())?;
    let mut outer = Command::new(exe);
    outer.arg("lab-enter").arg(node_name(node)).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    Ok(outer)
}

/// A node by its name or address, from inside the lab.
fn entry_of(host: &str) -> Result<RosterEntry, LabError> {
    let mut roster = node::read_roster().map_err(|_| {
        LabError::Input("this works inside a lab only: use `rerail lab exec` from outside".into())
    })?;
    let at =
        roster.iter().position(|entry| entry.name == host || entry.address == host).ok_or_else(|| {
            let names: Vec<&str> = roster.iter().map(|entry| entry.name.as_str()).collect();
            LabError::Input(format!("there is no node `{host}` in this lab: choose {}", names.join(", ")))
        })?;
    Ok(roster.swap_remove(at))
}

fn address_of(entry: &RosterEntry) -> Result<IpAddr, LabError> {
    entry.address.parse().map_err(io::Error::other).attempt(|| format!("read the address of {}", entry.name))
}

fn split_ssh_arguments(arguments: &[String]) -> Option<(&str, &[String])> {
    let mut at = 0;
    while let Some(option) = arguments.get(at)?.strip_prefix('-') {
        let takes_value = option.len() == 1 && SSH_OPTIONS_WITH_VALUE.contains(option);
        at += if takes_value { 2 } else { 1 };
    }
    let host = arguments.get(at)?;
    let host = host.split_once('@').map_or(host.as_str(), |(_, host)| host);
    Some((host, &arguments[at + 1..]))
}

/// Runs a command in a node of a lab, from outside; returns its exit code.
///
/// Must be called while the process has a single thread.
pub fn exec_in_lab(name: Option<&str>, node: usize, command: &[OsString]) -> Result<i32, LabError> {
    let (reply, mut fds) = control::ask(name, &Request::Enter { node })?;
    let own = if reply.rootless { 2 } else { 1 };
    if fds.len() != own + node::NAMESPACES.len() {
        return Err(LabError::Refused(
            "the lab did not hand over its namespaces: start it again with this version of `rerail`".into(),
        ));
    }
    let what = || format!("enter node {node}");
    let namespaces = fds.split_off(own);
    if reply.rootless {
        sys::setns(fds[0].as_fd(), libc::CLONE_NEWUSER).attempt(what)?;
    }
    sys::setns(fds[own - 1].as_fd(), libc::CLONE_NEWPID).attempt(what)?;
    let signals = Signals::block().attempt(what)?;
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]);
    // What the caller has set himself is his own choice.
    child.envs(reply.env.into_iter().filter(|(name, _)| name != KINDS_ENV || env::var_os(name).is_none()));
    if reply.guest {
        child = in_guest(node, &child)?;
    }
    node::place(&mut child, &namespaces, reply.cores).attempt(what)?;
    // SAFETY: one system call, async-signal-safe.
    unsafe { child.pre_exec(sys::die_with_parent) };
    let child = child.spawn().attempt(|| format!("start `{}`", command[0].to_string_lossy()))?;
    let pid = child.id() as libc::pid_t;
    loop {
        sys::wait_readable(&[signals.as_fd()], None);
        while let Some(signal) = signals.next() {
            if signal.number != libc::SIGCHLD && !signal.from_terminal {
                sys::kill(pid, signal.number);
            }
        }
        if let Some((_, code)) = sys::reap_any() {
            return Ok(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_found_behind_the_options_of_ssh() {
        for line in [
            "n1 echo a",
            "-x n1 echo a",
            "-o BatchMode=yes -x root@n1 echo a",
            "-p 22 -oBatchMode=yes n1 echo a",
        ] {
            let words: Vec<String> = line.split(' ').map(String::from).collect();
            let (host, command) = split_ssh_arguments(&words).unwrap();
            assert_eq!((host, command.join(" ").as_str()), ("n1", "echo a"), "{line}");
        }
        assert!(split_ssh_arguments(&["-x".to_string()]).is_none());
    }
}
