//! Starting a command in a node of a lab that runs: as the launcher's `ssh`, or from another terminal.

use crate::LabError;
use crate::control::{self, Request};
use crate::error::Attempt;
use crate::node::{self, RosterEntry};
use crate::sys::{self, Signals};
use std::env;
use std::ffi::OsString;
use std::fs;
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
    let roster = fs::read(node::roster_path()).map_err(|_| {
        LabError::Input("`lab-ssh` works inside a lab only: use `rerail lab exec` from outside".into())
    })?;
    let roster: Vec<RosterEntry> = serde_json::from_slice(&roster)
        .map_err(std::io::Error::from)
        .attempt(|| "read the list of nodes".into())?;
    let entry = roster.iter().find(|entry| entry.name == host || entry.address == host).ok_or_else(|| {
        let names: Vec<&str> = roster.iter().map(|entry| entry.name.as_str()).collect();
        LabError::Input(format!("there is no node `{host}` in this lab: choose {}", names.join(", ")))
    })?;
    let what = || format!("enter node {host}");
    let namespaces = node::open_namespaces(entry.holder).attempt(what)?;
    // The far end of ssh hands the words, joined by blanks, to a shell, and launchers quote for that.
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command.join(" "));
    shell.env_clear().envs(KEPT_OVER_SSH.iter().filter_map(|name| Some((name, env::var_os(name)?))));
    node::place(&mut shell, &namespaces, entry.cores.clone()).attempt(what)?;
    Err(shell.exec()).attempt(what)
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
    child.args(&command[1..]).envs(reply.env);
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
