//! How the processes of a trial end.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets a child get SIGTERM when this process dies: it ends with us, though it is no longer in the terminal's group.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: prctl is a system call that touches nothing of this process's memory.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}
