//! `ip`, `tc` and `nft`: found, and run in a chosen network namespace.
//!
//! Shelling out rather than speaking netlink: the commands are what a reader can repeat by hand, and a lab changes
//! its network a few times per run, not thousands of times per second.

use crate::LabError;
use crate::error::Attempt;
use crate::sys;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The tools, and the Debian package of each.
const TOOLS: [(&str, &str); 3] = [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")];
/// Plain users often lack these in PATH, and the tools live there.
const SYSTEM_DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where the tools are.
#[derive(Clone)]
pub struct Tools(BTreeMap<&'static str, PathBuf>);

impl Tools {
    /// Looks for all of them, and names the package of the first that is missing.
    pub fn find() -> Result<Tools, LabError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> = env::split_paths(&path).collect();
        dirs.extend(SYSTEM_DIRS.map(PathBuf::from));
        Tools::find_in(&dirs)
    }

    fn find_in(dirs: &[PathBuf]) -> Result<Tools, LabError> {
        let mut found = BTreeMap::new();
        for (tool, package) in TOOLS {
            let at = dirs.iter().map(|dir| dir.join(tool)).find(|at| is_executable(at));
            let at = at.ok_or_else(|| {
                LabError::Refused(format!(
                    "the lab needs the command `{tool}`, which is not installed: install the package {package} (Debian: `apt-get install {package}`)"
                ))
            })?;
            found.insert(tool, at);
        }
        Ok(Tools(found))
    }

    /// Starts a tool in a network namespace (`None`: in the caller's) and feeds it `input`.
    pub fn start(
        &self,
        tool: &'static str,
        arguments: &[&str],
        input: &str,
        network: Option<BorrowedFd<'_>>,
    ) -> Result<RunningTool, LabError> {
        let mut command = Command::new(&self.0[tool]);
        command
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(network) = network {
            let network = network.as_raw_fd();
            // SAFETY: the closure makes one system call, which is async-signal-safe; the descriptor is open in
            // the parent until after spawn, hence in the child as well.
            unsafe {
                command.pre_exec(move || sys::setns(BorrowedFd::borrow_raw(network), libc::CLONE_NEWNET));
            }
        }
        let mut child = command.spawn().attempt(|| format!("start `{tool}`"))?;
        // A tool that has failed already does not read; its message says more than the broken pipe.
        let _ = child.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
        let command = format!("{tool} {}", arguments.join(" "));
        let input = input.to_string();
        Ok(RunningTool { child, command, input })
    }

    /// Runs a tool to its end.
    pub fn run(
        &self,
        tool: &'static str,
        arguments: &[&str],
        input: &str,
        network: Option<BorrowedFd<'_>>,
    ) -> Result<(), LabError> {
        self.start(tool, arguments, input, network)?.finish()
    }
}

/// A tool that is at work; several can be, so that both ends of a rail are cut at nearly the same moment.
pub struct RunningTool {
    child: Child,
    command: String,
    input: String,
}

impl RunningTool {
    /// Waits for it.
    pub fn finish(mut self) -> Result<(), LabError> {
        let mut message = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut message);
        }
        let status = self.child.wait().attempt(|| format!("wait for `{}`", self.command))?;
        if status.success() {
            return Ok(());
        }
        let message = message.trim().replace('\n', "; ");
        Err(LabError::Tool { command: format!("{} <<< {:?}", self.command, self.input), message })
    }
}

/// Waits for all of them; the first failure counts.
pub fn finish_all(running: Vec<RunningTool>) -> Result<(), LabError> {
    let results: Vec<_> = running.into_iter().map(RunningTool::finish).collect();
    results.into_iter().collect()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Looks a program up as `exec` would.
pub fn find_program(program: &str, path: &OsString) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|at| is_executable(at));
    }
    env::split_paths(path).map(|dir| dir.join(program)).find(|at| is_executable(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_answered_by_its_package() {
        let Err(error) = Tools::find_in(&[PathBuf::from("/nowhere")]) else {
            panic!("found tools in a directory that does not exist");
        };
        assert!(error.to_string().contains("apt-get install iproute2"));
    }
}
