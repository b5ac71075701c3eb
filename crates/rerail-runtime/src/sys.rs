//! The system calls of the runtime. Owns: its `unsafe`, except the reads and writes of user memory.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rerail_core::Time;

/// CLOCK_MONOTONIC. It stands still while the machine is suspended (hazard H12).
pub(crate) fn now() -> Time {
    // SAFETY: all zeros is a valid timespec, which the call fills; it cannot fail for this clock.
    let t = unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t);
        t
    };
    Time::from_ns(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The same, as of the kernel's last tick: up to 10 ms old (4 ms where it ticks 250 times a second), for a fifth of the price.
pub(crate) fn tick_before() -> Time {
    // SAFETY: as in `now`.
    let t = unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut t);
        t
    };
    Time::from_ns(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Fills `b` with random bytes of the kernel.
pub(crate) fn random(b: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < b.len() {
        // SAFETY: the kernel writes at most the rest of `b`.
        let n = unsafe { libc::getrandom(b[at..].as_mut_ptr().cast(), b.len() - at, 0) };
        match usize::try_from(n) {
            Ok(n) => at += n,
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

/// Sends what fits at once. A reader that is gone is an error and never a signal: the program is not ours to end.
pub(crate) fn send_now(socket: RawFd, bytes: &[u8]) {
    // SAFETY: the kernel reads `bytes`, which lives through the call.
    unsafe {
        libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    }
}

/// The effective user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: a plain system call that cannot fail.
    unsafe { libc::geteuid() }
}

/// When a process was started, in the kernel's ticks since the boot; `None` when it does not exist or cannot be seen.
/// Together with its number it identifies a process: numbers are reused, in a container soon.
pub(crate) fn started_at(pid: u32) -> Option<u64> {
    started_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of a line of `/proc/PID/stat` (proc_pid_stat(5)). The second is a name in parentheses, in which there may be anything.
fn started_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Connects to a socket by its path, without waiting: a full queue of a process that is stopped is `WouldBlock`.
pub(crate) fn connect_now(path: &std::path::Path) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Number of the process that listens at a path, as this process sees it; `None` when it cannot be seen from here.
/// `ConnectionRefused`: no process listens there.
pub(crate) fn listener_at(path: &std::path::Path) -> io::Result<Option<u32>> {
    let socket = connect_now(path)?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a structure of that size.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    // 0: the process is in a namespace that cannot be seen from this one; rustix's type has no 0
    Ok(if got == 0 { u32::try_from(peer.pid).ok().filter(|pid| *pid != 0) } else { None })
}

/// Name of this node (of its UTS namespace).
pub(crate) fn host_name() -> String {
    let mut b = [0u8; 256];
    // SAFETY: the call writes at most the length given, and the last byte stays zero.
    unsafe { libc::gethostname(b.as_mut_ptr().cast(), b.len() - 1) };
    let end = b.iter().position(|&c| c == 0).unwrap_or(b.len());
    String::from_utf8_lossy(&b[..end]).into_owned()
}

/// Wakes a sleeper: a descriptor that is readable from when it is rung until it is silenced.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent one.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the new descriptor has no other owner.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// The descriptor, which stays this one's.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from `one`.
        unsafe { libc::write(self.raw(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable.
    pub fn silence(&self) {
        let mut n = 0u64;
        // SAFETY: eight bytes are written to `n`.
        unsafe { libc::read(self.raw(), (&raw mut n).cast(), 8) };
    }

    /// Sleeps until it is rung, or `max` has passed.
    pub fn wait(&self, max: Duration) {
        sleep_on([self.raw()], Some(max));
    }
}

/// Sleeps until one of `fds` is readable or `max` has passed; bit i of the result says that `fds[i]` is.
pub(crate) fn sleep_on<const N: usize>(fds: [RawFd; N], max: Option<Duration>) -> u32 {
    let mut p = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let t = max.map(|d| libc::timespec {
        tv_sec: d.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: d.subsec_nanos() as libc::c_long,
    });
    let t = t.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: N valid pollfds, and a timespec that lives through the call or none.
    let n = unsafe { libc::ppoll(p.as_mut_ptr(), N as libc::nfds_t, t, std::ptr::null()) };
    if n <= 0 {
        return 0;
    }
    p.iter().enumerate().filter(|(_, p)| p.revents != 0).fold(0, |m, (i, _)| m | 1 << i)
}

/// Blocks every signal for the calling thread and its future children while `f` runs: the application's handlers never run
/// on the service thread.
pub(crate) fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: plain calls on a local signal set; the old mask is put back below.
    let old = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    };
    let r = f();
    // SAFETY: `old` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
    r
}

/// A number that a forked child reads as zero: the kernel wipes its page there (hazard H16). So one load tells a child from
/// its parent, whichever way it was forked.
pub(crate) struct ForkWord(NonNull<AtomicU32>);

const PAGE: usize = 4096;

impl ForkWord {
    /// Not yet set: reads as zero.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a fresh private mapping, to which there is no other pointer.
        unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if p == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            if libc::madvise(p, PAGE, libc::MADV_WIPEONFORK) != 0 {
                let e = io::Error::last_os_error();
                libc::munmap(p, PAGE);
                return Err(e);
            }
            Ok(Self(NonNull::new_unchecked(p.cast())))
        }
    }

    /// The word itself, for [`crate::lineage`].
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as self, is zeroed (a valid AtomicU32), and only ever accessed as one.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub fn get(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    pub fn set(&self, v: u32) {
        self.word().store(v, Ordering::Release);
    }
}

// SAFETY: the word is atomic, and the mapping belongs to no thread.
unsafe impl Send for ForkWord {}
// SAFETY: as above.
unsafe impl Sync for ForkWord {}

impl Drop for ForkWord {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// Has the functions called around every `fork` of this process, for the rest of its life. (`vfork` and `posix_spawn` do not
/// call them, and need not: their children only execute another program, and every descriptor is closed then.)
pub(crate) fn at_fork(prepare: extern "C" fn(), in_parent: extern "C" fn(), in_child: extern "C" fn()) {
    // SAFETY: the functions are never unloaded (the provider is linked with `nodelete`), and take nothing. The call fails only
    // without memory; then children keep their copies of the sockets.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

/// Closes a forked child's copy of a descriptor whose owner is never dropped there.
pub(crate) fn close_copy(fd: RawFd) {
    // SAFETY: the caller guarantees that nothing in this process uses the descriptor.
    unsafe { libc::close(fd) };
}

/// Bounds the queue of a listener.
#[cfg(test)]
pub(crate) fn listen_for(listener: RawFd, queue: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::listen(listener, queue) }, 0);
}

/// Sets when a file was written last.
#[cfg(test)]
pub(crate) fn set_modified(path: &std::path::Path, at: std::time::SystemTime) {
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    let at = libc::timespec { tv_sec: since.as_secs() as libc::time_t, tv_nsec: 0 };
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with zero, and two times.
    assert_eq!(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), [at, at].as_ptr(), 0) }, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process_is_read_whatever_its_name_is() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("7 (a) 1 ) b) S {}\n", numbers.join(" "));
        assert_eq!(started_in(&stat), Some(22));
        assert_eq!((started_in(""), started_in("7 (x) S 1 2")), (None, None));
        let own = std::process::id();
        assert!(started_at(own).is_some() && started_at(own) == started_at(own));
        assert_eq!(started_at(1 << 30), None);
    }

    #[test]
    fn a_forked_child_reads_zero() {
        let b = ForkWord::new().unwrap();
        b.set(7);
        assert_eq!(b.get(), 7);
        // SAFETY: the child only reads one byte and leaves without running anything else.
        let status = unsafe {
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                libc::_exit(b.get() as i32);
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            status
        };
        assert_eq!((libc::WEXITSTATUS(status), b.get()), (0, 7));
    }

    #[test]
    fn a_rung_bell_ends_the_sleep_until_it_is_silenced() {
        let (a, b) = (Bell::new().unwrap(), Bell::new().unwrap());
        b.ring();
        assert_eq!(sleep_on([a.raw(), b.raw()], None), 2);
        b.silence();
        assert_eq!(sleep_on([a.raw(), b.raw()], Some(Duration::ZERO)), 0);
    }
}
