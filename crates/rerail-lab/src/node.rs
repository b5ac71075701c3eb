//! A node: a [holder] of a network, mount, host-name and IPC namespace.
//!
//! Owns: the namespaces' descriptors.

use crate::error::Attempt;
use crate::sys;
use crate::topology::{hosts_file, mgmt_address, node_name};
use crate::{LabError, RUN_DIR, holder};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The namespaces of a node: kind and name under `/proc/PID/ns`. The mount namespace comes last, because entering
/// it changes what paths mean.
pub const NAMESPACES: [(i32, &str); 4] = [
    (libc::CLONE_NEWNET, "net"),
    (libc::CLONE_NEWUTS, "uts"),
    (libc::CLONE_NEWIPC, "ipc"),
    (libc::CLONE_NEWNS, "mnt"),
];

/// The namespaces of one node, open.
pub struct Node {
    /// The holder, in the lab's PID namespace.
    pub holder: libc::pid_t,
    /// In the order of [`NAMESPACES`].
    pub namespaces: Vec<OwnedFd>,
}

/// A node as the launcher's wrapper finds it, in [`roster_path`].
#[derive(Serialize, Deserialize)]
pub struct RosterEntry {
    /// The host name.
    pub name: String,
    /// The management address.
    pub address: String,
    /// The holder's id in the lab's PID namespace.
    pub holder: libc::pid_t,
    /// The cores of the node, when nodes are pinned.
    pub cores: Option<Vec<usize>>,
    /// Whether the node is a guest.
    pub guest: bool,
}

/// The nodes of the lab that this process is in.
pub fn read_roster() -> io::Result<Vec<RosterEntry>> {
    Ok(serde_json::from_slice(&fs::read(roster_path())?)?)
}

/// Where the roster is inside the lab.
pub fn roster_path() -> std::path::PathBuf {
    Path::new(RUN_DIR).join("nodes.json")
}

impl Node {
    /// Makes node `number` of `nodes`.
    pub fn create(number: usize, nodes: usize) -> Result<Node, LabError> {
        let holder = holder::start(&format!("node {number}"), || hold(number, nodes))?;
        let namespaces =
            open_namespaces(holder).attempt(|| format!("open the namespaces of node {number}"))?;
        Ok(Node { holder, namespaces })
    }

    /// The network namespace.
    pub fn network(&self) -> BorrowedFd<'_> {
        self.namespaces[0].as_fd()
    }

    /// Makes `command` start inside this node.
    pub fn place(&self, command: &mut Command, cores: Option<Vec<usize>>) -> io::Result<()> {
        place(command, &self.namespaces, cores)
    }
}

/// Opens the namespaces of a process of the lab.
pub fn open_namespaces(pid: libc::pid_t) -> io::Result<Vec<OwnedFd>> {
    NAMESPACES
        .iter()
        .map(|(_, name)| File::open(format!("/proc/{pid}/ns/{name}")).map(OwnedFd::from))
        .collect()
}

/// Makes `command` start in the namespaces (in the order of [`NAMESPACES`]), with the caller's working directory.
pub fn place(command: &mut Command, namespaces: &[OwnedFd], cores: Option<Vec<usize>>) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let raw: Vec<_> = namespaces.iter().map(|fd| fd.as_raw_fd()).collect();
    let here = CString::new(std::env::current_dir()?.as_os_str().as_bytes())?;
    // SAFETY: the closure makes system calls only (nothing is allocated or locked); the descriptors stay open in
    // the caller until after spawn, hence are open in the child as well.
    unsafe {
        command.pre_exec(move || {
            sys::reset_signals()?;
            for (&fd, (kind, _)) in raw.iter().zip(NAMESPACES) {
                sys::setns(BorrowedFd::borrow_raw(fd), kind)?;
            }
            // Entering a mount namespace moves the working directory to its root.
            sys::change_dir(&here)?;
            cores.as_deref().map_or(Ok(()), sys::set_affinity)
        });
    }
    Ok(())
}

/// Runs in the holder: makes the namespaces and what is private to the node in them.
fn hold(number: usize, nodes: usize) -> Result<(), LabError> {
    let kinds = NAMESPACES.iter().fold(0, |kinds, (kind, _)| kinds | kind);
    sys::unshare(kinds).attempt(|| "make the namespaces of a node".into())?;
    sys::make_mounts_private().attempt(|| "make the node's mounts private".into())?;
    sys::set_hostname(&node_name(number)).attempt(|| "name the node".into())?;

    // Shared memory of its own: nodes must not meet there, and what a killed program leaves goes with the lab.
    let shared = File::open(RUN_DIR).attempt(|| format!("open {RUN_DIR}"))?;
    let shm = Path::new("/dev/shm");
    sys::mount_new(c"tmpfs", shm, c"mode=1777").attempt(|| "mount the node's /dev/shm".into())?;
    fs::create_dir(RUN_DIR).attempt(|| format!("make {RUN_DIR}"))?;
    let shared = format!("/proc/self/fd/{}", shared.as_raw_fd());
    sys::mount_bind(Path::new(&shared), Path::new(RUN_DIR))
        .attempt(|| format!("show {RUN_DIR} in the node"))?;

    let hosts = format!("{RUN_DIR}/hosts");
    fs::write(&hosts, hosts_file(nodes)).attempt(|| format!("write {hosts}"))?;
    sys::mount_bind(Path::new(&hosts), Path::new("/etc/hosts"))
        .attempt(|| "give the node its /etc/hosts".into())?;

    // From here on everything is for realism, and a machine that refuses still gives a usable lab.
    show_own_interfaces();
    disguise_boot_id(number);
    for (setting, value) in [
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
    ] {
        let _ = fs::write(format!("/proc/sys/net/{setting}"), value);
    }
    Ok(())
}

/// A fresh /sys lists the interfaces of this network namespace; the old one those of the host.
fn show_own_interfaces() {
    let cgroups = File::open("/sys/fs/cgroup");
    let sys_dir = Path::new("/sys");
    let mounted = sys::mount_new(c"sysfs", sys_dir, c"");
    if let (Ok(()), Ok(cgroups)) = (mounted, cgroups) {
        let cgroups = format!("/proc/self/fd/{}", cgroups.as_raw_fd());
        let _ = sys::mount_bind(Path::new(&cgroups), Path::new("/sys/fs/cgroup"));
    }
}

/// Programs recognise their machine by the kernel's boot id; nodes are to look like different machines.
fn disguise_boot_id(number: usize) {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let Ok(real) = fs::read_to_string(BOOT_ID) else {
        return;
    };
    let real = real.trim_end();
    // Keep the shape of a UUID: only the last four digits tell the node.
    let Some(kept) = real.len().checked_sub(4).and_then(|end| real.get(..end)) else {
        return;
    };
    let path = format!("{RUN_DIR}/boot_id.{number}");
    if fs::write(&path, format!("{kept}{number:04x}\n")).is_ok() {
        let _ = sys::mount_bind(Path::new(&path), Path::new(BOOT_ID));
    }
}

/// What the launcher's wrapper needs to know of a node.
pub fn roster(nodes: &[Node], cores: &[Option<Vec<usize>>], guest: bool) -> Vec<RosterEntry> {
    let entries = nodes.iter().zip(cores).enumerate();
    entries
        .map(|(number, (node, cores))| RosterEntry {
            name: node_name(number),
            address: mgmt_address(number).to_string(),
            holder: node.holder,
            cores: cores.clone(),
            guest,
        })
        .collect()
}
