//! The system calls of the lab, each behind a safe function. The only module with `unsafe` beside `pre_exec` and the TAP
//! interfaces of a wire.
//!
//! Invariant: a process that forks is single-threaded (session and supervisor never start a thread).

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::{CStr, CString, c_int};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;
use std::time::Duration;

/// The longest message between session and supervisor, and between client and supervisor.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The process that `fork` returned in.
pub enum Forked {
    /// In the new process.
    Child,
    /// In the old one, with the new one's id.
    Parent(libc::pid_t),
}

/// Splits the process. The child may run any code, because the process is single-threaded.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: fork has no preconditions; the process has one thread (module invariant), so no lock is held by
    // a thread that the child lacks.
    Ok(match check(unsafe { libc::fork() })? {
        0 => Forked::Child,
        pid => Forked::Parent(pid),
    })
}

/// Ends the process at once, without running destructors that belong to the parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Moves this process into new namespaces.
pub fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: unshare has no memory preconditions, and CLONE_FILES is never among the flags.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves this process into an existing namespace.
pub fn setns(namespace: BorrowedFd<'_>, kind: c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open; setns has no memory preconditions.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }).map(drop)
}

/// Mounts a new file system of type `kind`.
pub fn mount_new(kind: &CStr, target: &Path, options: &CStr) -> io::Result<()> {
    let target = c_path(target)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: all pointers are NUL-terminated strings that outlive the call.
    check(unsafe {
        libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    })
    .map(drop)
}

/// Shows `source` at `target` as well.
pub fn mount_bind(source: &Path, target: &Path) -> io::Result<()> {
    let (source, target) = (c_path(source)?, c_path(target)?);
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: both paths are NUL-terminated strings that outlive the call; the rest may be null for MS_BIND.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), null(), flags, null()) }).map(drop)
}

/// Keeps the mounts of this mount namespace from spreading to others.
pub fn make_mounts_private() -> io::Result<()> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the path is a NUL-terminated constant; the rest may be null for a change of propagation.
    check(unsafe { libc::mount(null(), c"/".as_ptr(), null(), flags, null()) }).map(drop)
}

/// Names this UTS namespace.
pub fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe `name`.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Asks the kernel to kill this process when its parent goes.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Leaves the terminal.
pub fn new_session() -> io::Result<()> {
    // SAFETY: setsid has no preconditions.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Points standard input, output and error elsewhere.
pub fn replace_stdio(fd: BorrowedFd<'_>) -> io::Result<()> {
    for standard in 0..3 {
        // SAFETY: replacing the standard descriptors is the purpose; nothing else owns them.
        check(unsafe { libc::dup2(fd.as_raw_fd(), standard) })?;
    }
    Ok(())
}

/// Sends a signal; a process that is gone already is no error.
pub fn kill(pid: libc::pid_t, signal: c_int) {
    debug_assert!(pid > 1, "0, -1 and 1 would signal a group, everyone or the supervisor");
    // SAFETY: kill has no memory preconditions.
    unsafe { libc::kill(pid, signal) };
}

/// Sends a signal to a group of processes; one that is gone already is no error.
pub fn kill_group(group: libc::pid_t, signal: c_int) {
    debug_assert!(group > 1, "0 and 1 would signal this process's own group, or everyone");
    // SAFETY: kill has no memory preconditions.
    unsafe { libc::kill(-group, signal) };
}

/// The effective user of this process.
pub fn effective_uid() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// The effective group of this process.
pub fn effective_gid() -> u32 {
    // SAFETY: getegid has no preconditions.
    unsafe { libc::getegid() }
}

/// How a child ended, as a shell would say it: its code, or 128 and the signal.
pub fn exit_code(status: c_int) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// A child that has ended, if any: its id and exit code.
pub fn reap_any() -> Option<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then(|| (pid, exit_code(status)))
}

/// Waits until any child has ended, and tells which; `None` when a signal came first.
pub fn wait_for_any() -> Option<libc::pid_t> {
    // SAFETY: the status may be null.
    let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) };
    (pid > 0).then_some(pid)
}

/// Whether a child has ended. It stays to be reaped.
pub fn has_ended(pid: libc::pid_t) -> bool {
    // SAFETY: a zeroed siginfo is valid to be written, and WNOWAIT leaves the child as it is.
    unsafe {
        let mut info: libc::siginfo_t = zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) == 0 && info.si_pid() == pid
    }
}

/// Lets this process and those that it starts lock any amount of memory.
pub fn lock_any_memory() -> io::Result<()> {
    let any = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is read only.
    check(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &any) }).map(drop)
}

/// Waits until this process alone holds the file's lock; it ends with the descriptor.
pub fn lock_file(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: flock has no memory preconditions.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }).map(drop)
}

/// Waits for one child.
pub fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writing.
        let result = unsafe { libc::waitpid(pid, &mut status, 0) };
        if result == pid {
            return exit_code(status);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 0;
        }
    }
}

/// Signals that the lab handles itself.
pub const HANDLED_SIGNALS: [c_int; 7] =
    [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Signals delivered through a descriptor.
pub struct Signals(OwnedFd);

/// One signal that arrived.
pub struct Signal {
    /// Its number.
    pub number: c_int,
    /// Whether the terminal sent it, and hence sent it to every process of the foreground group as well.
    pub from_terminal: bool,
}

impl Signals {
    /// Blocks `HANDLED_SIGNALS` and opens a descriptor for them. (Children started by `Command` get an empty
    /// mask: see [`reset_signals`].)
    pub fn block() -> io::Result<Signals> {
        // SAFETY: an all-zero sigset is a valid value for sigemptyset to overwrite; every pointer is to it.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut set);
            for signal in HANDLED_SIGNALS {
                libc::sigaddset(&mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let fd = check(libc::signalfd(-1, &set, flags))?;
            Ok(Signals(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next signal, if one is pending for this process.
    pub fn next(&self) -> Option<Signal> {
        // SAFETY: signalfd_siginfo is plain data, and read gets its exact size.
        unsafe {
            let mut info: libc::signalfd_siginfo = zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            let read = libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size);
            (read == size as isize).then_some(Signal {
                number: info.ssi_signo as c_int,
                from_terminal: info.ssi_code == libc::SI_KERNEL,
            })
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Gives a child about to `exec` an empty signal mask. Async-signal-safe.
pub fn reset_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut())).map(drop)
    }
}

/// Blocks every signal and sleeps until killed.
pub fn sleep_until_killed() -> ! {
    // SAFETY: the set is initialised by sigfillset before it is used; pause has no preconditions.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        loop {
            libc::pause();
        }
    }
}

/// Changes to a directory. Async-signal-safe.
pub fn change_dir(path: &CStr) -> io::Result<()> {
    // SAFETY: `path` is NUL-terminated.
    check(unsafe { libc::chdir(path.as_ptr()) }).map(drop)
}

/// Confines this process to some processor cores. Async-signal-safe.
pub fn set_affinity(cores: &[usize]) -> io::Result<()> {
    // SAFETY: a zeroed cpu_set_t is an empty set; CPU_SET stays inside it because cores come from the same type.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        for &core in cores {
            libc::CPU_SET(core, &mut set);
        }
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)).map(drop)
    }
}

/// Lets this process have a core as soon as it wants one: by the lowest real-time priority, else by the best of the
/// ordinary ones. Without the right to either, nothing changes.
pub fn go_first() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: both calls take numbers, and a struct that outlives the call.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest) == -1 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

/// The processor cores this process may use.
pub fn affinity() -> Vec<usize> {
    // SAFETY: the zeroed set is valid for writing, and CPU_ISSET stays inside it.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == -1 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}

/// Waits until one of `fds` is readable (or hung up), or for `timeout`; returns which are.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: pointer and length describe `polled`; the time-out is null or valid. ppoll rather than poll, whose
    // milliseconds would make a scheduled cut late by up to one.
    let result = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as _, timeout, null()) };
    if result <= 0 {
        // Interrupted counts as a time-out: every caller looks at its clock again.
        return vec![false; fds.len()];
    }
    polled.iter().map(|polled| polled.revents != 0).collect()
}

/// Watches a directory for files that appear.
pub fn watch_dir(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path is NUL-terminated; the new descriptor has no other owner.
    unsafe {
        let flags = libc::IN_CLOEXEC | libc::IN_NONBLOCK;
        let fd = OwnedFd::from_raw_fd(check(libc::inotify_init1(flags))?);
        let events = libc::IN_CREATE | libc::IN_MOVED_TO;
        check(libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), events))?;
        Ok(fd)
    }
}

/// Throws away what a watch has reported.
pub fn drain(watch: BorrowedFd<'_>) {
    let mut buffer = [0u8; 4096];
    // SAFETY: pointer and length describe `buffer`.
    while unsafe { libc::read(watch.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
}

/// One end of a connection that keeps message boundaries and reports the other end's death.
pub struct Mailbox(OwnedFd);

impl Mailbox {
    /// Two connected ends.
    pub fn pair() -> io::Result<(Mailbox, Mailbox)> {
        let mut fds = [0 as RawFd; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `fds` is valid for writing two descriptors, which have no other owner.
        unsafe {
            check(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
            let [one, two] = fds.map(|fd| OwnedFd::from_raw_fd(fd));
            Ok((Mailbox(one), Mailbox(two)))
        }
    }

    /// Sends one message. If the other end is gone, the message is not needed.
    pub fn send(&self, message: &impl Serialize) {
        let bytes = serde_json::to_vec(message).expect("messages are plain data");
        // SAFETY: pointer and length describe `bytes`.
        unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    }

    /// Waits for one message; `None` when the other end is gone.
    pub fn receive<T: DeserializeOwned>(&self) -> Option<T> {
        let mut buffer = vec![0u8; MESSAGE_BYTES_MAX];
        // SAFETY: pointer and length describe `buffer`.
        let read = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if read <= 0 {
            return None;
        }
        serde_json::from_slice(&buffer[..read as usize]).ok()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The user at the other end of a Unix socket.
pub fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: ucred is plain data; the length tells its size.
    unsafe {
        let mut credentials: libc::ucred = zeroed();
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        check(libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut size,
        ))?;
        Ok(credentials.uid)
    }
}

/// A descriptor of this process, readable once it has ended. For the first process of a PID namespace that is after every
/// other process in it (pid_namespaces(7)).
pub fn own_pidfd() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers; the descriptor it gives has no other owner.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        check(fd as c_int)?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// The most descriptors in one message: the namespaces of a node.
const DESCRIPTORS_MAX: usize = 8;

/// Room for the control message, aligned as its header wants it.
#[repr(C)]
union ControlBuffer {
    header: libc::cmsghdr,
    bytes: [u8; 128],
}

/// Sends bytes with descriptors attached.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(fds.len() <= DESCRIPTORS_MAX);
    let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let size = size_of_val(raw.as_slice());
    // SAFETY: the control buffer is aligned for a header and larger than CMSG_SPACE of DESCRIPTORS_MAX
    // descriptors; all pointers in `message` outlive the call.
    unsafe {
        let mut control = ControlBuffer { bytes: [0; 128] };
        let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if !raw.is_empty() {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size as u32) as _;
            std::ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(header), size);
        }
        let sent = libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
        if sent == -1 {
            return Err(io::Error::last_os_error());
        }
        if sent as usize != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Receives up to a buffer of bytes and the descriptors attached to them.
pub fn receive_with_fds(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0u8; MESSAGE_BYTES_MAX];
    let mut fds = Vec::new();
    // SAFETY: all pointers in `message` outlive the call; the kernel fills at most the lengths given; each
    // received descriptor is new and has no other owner.
    unsafe {
        let mut control = ControlBuffer { bytes: [0; 128] };
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<ControlBuffer>() as _;
        let read = libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC);
        if read == -1 {
            return Err(io::Error::last_os_error());
        }
        bytes.truncate(read as usize);
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let size = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..size / size_of::<RawFd>() {
                    let at = libc::CMSG_DATA(header).cast::<RawFd>().add(index);
                    fds.push(OwnedFd::from_raw_fd(at.read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok((bytes, fds))
}
