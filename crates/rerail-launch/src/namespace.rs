//! What process 1 of a process-id namespace makes of its mounts. Owns: `/proc` there, and where the numbers of processes begin.
//!
//! `/proc` has to be mounted again, because the host's shows the host's numbers. What the host has mounted below `/proc` (containers and labs replace
//! single files by it) is carried over.

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount,
    open_tree,
};
use std::io::Result;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const PROC: &str = "/proc";
/// The lowest number at which those of processes may begin: the kernel leaves out those below 300 when it begins again.
const FIRST_MIN: u32 = 1000;

/// Gives this process, which has one thread and is process 1 of its namespace, mounts of its own with a `/proc` of its namespace. What the host mounts later
/// appears in them; what is mounted in them does not appear on the host.
///
/// # Errors
/// That of the system; the process is of no use then.
pub fn show_own_processes() -> Result<()> {
    // SAFETY: it takes no pointer, and no other thread shares what it takes apart.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let kept = mounts_below(&std::fs::read("/proc/self/mountinfo")?, PROC);
    let kept: Vec<(PathBuf, OwnedFd)> = kept
        .into_iter()
        .map(|path| {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE
                | OpenTreeFlags::AT_NO_AUTOMOUNT;
            let tree = open_tree(CWD, &path, flags)?;
            Ok((path, tree))
        })
        .collect::<Result<_>>()?;
    mount("proc", PROC, "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    for (path, tree) in kept {
        move_mount(tree, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    number_from_elsewhere();
    Ok(())
}

/// Lets the numbers of processes begin at a random one. Two jobs on one host then have different ones almost always: some libraries name shared memory
/// of the host by the number of a process. Where the kernel cannot do it they begin at 2.
fn number_from_elsewhere() {
    let max = std::fs::read_to_string("/proc/sys/kernel/pid_max");
    let Some(max) = max.ok().and_then(|max| max.trim().parse::<u32>().ok()) else { return };
    let random = u32::from_le_bytes(crate::link::random());
    // the upper half is left for the ranks' own
    let room = (max / 2).saturating_sub(FIRST_MIN).max(1);
    let _ = std::fs::write("/proc/sys/kernel/ns_last_pid", (FIRST_MIN + random % room).to_string());
}

/// Where something is mounted on the mount that is seen at `at`, by the text of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
fn mounts_below(mountinfo: &[u8], at: &str) -> Vec<PathBuf> {
    struct Mount {
        id: u32,
        on: u32,
        place: PathBuf,
    }
    let all: Vec<Mount> = mountinfo
        .split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut words = line.split(|b| *b == b' ');
            let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
            let (id, on) = (number()?, number()?);
            let place = unescaped(words.nth(2)?);
            Some(Mount { id, on, place })
        })
        .collect();
    // one hides another that is mounted at the same place
    let here = |mount: &&Mount| mount.place == Path::new(at);
    let hidden = |id| all.iter().filter(here).any(|above| above.on == id);
    let Some(seen) = all.iter().filter(here).rfind(|mount| !hidden(mount.id)) else { return Vec::new() };
    let mut places: Vec<PathBuf> =
        all.iter().filter(|mount| mount.on == seen.id).map(|mount| mount.place.clone()).collect();
    places.sort();
    places.dedup();
    places
}

/// A path of mountinfo: blanks and backslashes are octal numbers there.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_on_the_proc_that_is_seen_is_carried_over_and_nothing_else() {
        let text = b"\
20 1 8:1 / / rw shared:1 - ext4 /dev/root rw
21 20 0:5 / /proc rw,nosuid shared:2 - proc proc rw
22 21 0:30 / /proc/sys/fs/binfmt_misc rw shared:3 - autofs systemd-1 rw
23 20 0:6 / /sys rw - sysfs sysfs rw
30 21 0:7 / /proc rw,nosuid - proc proc rw
31 30 0:8 /lab/boot_id.1 /proc/sys/kernel/random/boot_id rw - tmpfs none rw
32 30 0:9 / /proc/a\\040b rw - tmpfs none rw
33 32 0:9 / /proc/a\\040b/c rw - tmpfs none rw
34 30 0:9 / /proc/a\\040b rw - tmpfs none rw
not a line
";
        let places = |at| mounts_below(text, at);
        assert_eq!(places("/proc"), ["/proc/a b", "/proc/sys/kernel/random/boot_id"].map(PathBuf::from));
        assert_eq!(places("/sys"), [] as [PathBuf; 0]);
        assert_eq!(places("/nowhere"), [] as [PathBuf; 0]);
    }

    #[test]
    fn only_whole_numbers_are_escapes() {
        for (text, path) in [("/a\\134b", "/a\\b"), ("/a\\04", "/a\\04"), ("/a\\999", "/a\\999"), ("/", "/")]
        {
            assert_eq!(unescaped(text.as_bytes()), Path::new(path));
        }
    }
}
