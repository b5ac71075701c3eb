//! Reports that memory of this process is unmapped, moved or emptied, before the program can use what comes in its place.
//! Owns: the userfaultfd of the process (userfaultfd(2), ioctl_userfaultfd(2)), and the thread that reads its events.
//!
//! Ranges are registered for write protection and never protected, so no access ever waits. munmap, mremap, madvise, brk and
//! mmap over a watched range wait until their event is *read*. What is kept about memory is right under three rules:
//!
//! * **An event on its way is seen.** The kernel counts an operation as one that changes the memory map from before its lock
//!   on the map is released until its event has been read. Meanwhile another thread may already be given the same address.
//!   So [`Watcher::is_quiet`] asks for that count: an ioctl that takes no lock. Kernels count right since 5.15.
//! * **An event that is read is processed.** The thread that unmaps goes on when its event is read. So `busy` is set before
//!   the read, and cleared when every [`Watch`] knows. A thread that finds the count at 0 and then `busy` unset knows that all events
//!   of operations that were begun before are processed.
//! * **The thread never waits for a thread that unmaps.** It allocates and frees nothing: a thread may hold a lock of
//!   `malloc` while it shrinks the heap. It takes only locks of the standard library, which do not allocate, and whose
//!   holders neither allocate nor unmap.
//!
//! The thread lives as long as the process: a child that is not made by fork(3) may keep a copy of the descriptor, with
//! which the kernel would go on asking. The alternatives: hooks for the functions of the C library miss what the library does
//! itself and calls of the kernel by hand; MMU notifiers are the kernel's (on-demand paging).
//!
//! No event comes of a file that another descriptor shortens, so only private anonymous memory is watched. None comes
//! either of `MADV_GUARD_INSTALL` with `MADV_GUARD_REMOVE`, and of `shmat` with `SHM_REMAP`: docs/rdma.md names these limits.

use rerail_rail::thread::spawn;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::ioctl::opcode::read_write;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Watches, at most.
const WATCHES_MAX: usize = 64;
/// Events that are read at once.
const AT_ONCE: usize = 16;
/// The first kernel that counts changes of the map by number, and whose forks leave every page that an adapter knows with
/// the parent (5.12).
const KERNEL_LEAST: (u32, u32) = (5, 15);

/// Of `linux/userfaultfd.h`.
const UFFD_USER_MODE_ONLY: c_int = 1;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_EVENT_REMAP: u64 = 1 << 2;
const UFFD_FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const UFFD_FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const UFFD_EVENT_REMAP: u8 = 0x14;
const UFFD_EVENT_REMOVE: u8 = 0x15;
const UFFD_EVENT_UNMAP: u8 = 0x16;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// Only its size is of interest here.
#[repr(C)]
struct UffdioWriteprotect([u64; 3]);

const UFFDIO_API: u64 = read_write::<UffdioApi>(0xaa, 0x3f) as u64;
const UFFDIO_REGISTER: u64 = read_write::<UffdioRegister>(0xaa, 0x00) as u64;
const UFFDIO_WRITEPROTECT: u64 = read_write::<UffdioWriteprotect>(0xaa, 0x06) as u64;

/// `struct uffd_msg`: what happened, and up to three numbers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}

const NOTHING: Message = Message { event: 0, reserved: [0; 7], arg: [0; 3] };

const _: () = assert!(size_of::<Message>() == 32);

/// Keeps something about memory.
pub trait Watch: Send + Sync {
    /// What was at these addresses is there no more, or will not be when the program goes on. Called by the thread that the
    /// program waits for: must not allocate, free or unmap, nor wait for a thread that does.
    fn gone(&self, addresses: Range<usize>);
}

/// See the module.
pub struct Watcher {
    fd: OwnedFd,
    /// An event may have been read that is not processed.
    busy: AtomicBool,
    /// With room for all: adding one allocates nothing while it is locked.
    watches: Mutex<Vec<Arc<dyn Watch>>>,
    /// The process that it was made in.
    process: u32,
}

/// Why memory cannot be watched; each is a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// Too old.
    #[error(
        "memory is registered with the RDMA adapters for each message: Linux {0} is too old, 5.15 is needed"
    )]
    Kernel(String),
    /// The system call fails.
    #[error(
        "memory is registered with the RDMA adapters for each message: userfaultfd cannot be used here ({0}); the \
         seccomp profile of a container, for instance, may forbid it"
    )]
    Userfaultfd(String),
    /// A forked child shares the descriptor of its parent.
    #[error(
        "memory is registered with the RDMA adapters for each message: the parent of this process has used them"
    )]
    Forked,
    /// There are more endpoints than [`WATCHES_MAX`].
    #[error("memory is registered with the RDMA adapters for each message: too many sets of rails are open")]
    Crowded,
}

fn kernel() -> Result<(), WatchError> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match release_numbers(&release) {
        Some(numbers) if numbers >= KERNEL_LEAST => Ok(()),
        _ => Err(WatchError::Kernel(release.trim().to_owned())),
    }
}

fn release_numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: a system call that takes flags only.
    let fd = unsafe {
        libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
    let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
    // SAFETY: the structure that the request takes.
    unsafe { control(&fd, UFFDIO_API, (&raw mut api).cast()) }?;
    Ok(fd)
}

/// # Safety
/// The argument is what the request takes.
unsafe fn control(fd: &OwnedFd, request: u64, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether no operation changes the map of watched memory.
fn is_still(fd: &OwnedFd) -> bool {
    // Without an argument the request fails in any case. EAGAIN is looked for first, without a lock.
    // SAFETY: the kernel reads nothing at the address 0.
    let result = unsafe { control(fd, UFFDIO_WRITEPROTECT, null_mut()) };
    result.is_err_and(|why| why.raw_os_error() == Some(libc::EFAULT))
}

/// Whether memory can be watched here.
///
/// # Errors
/// It cannot.
pub fn check() -> Result<(), WatchError> {
    kernel()?;
    let cannot = |why: io::Error| WatchError::Userfaultfd(why.to_string());
    let fd = open().map_err(cannot)?;
    match is_still(&fd) {
        true => Ok(()),
        false => Err(cannot(io::ErrorKind::Unsupported.into())),
    }
}

impl Watcher {
    /// That of this process.
    ///
    /// # Errors
    /// Memory cannot be watched here.
    pub fn of_process() -> Result<&'static Watcher, WatchError> {
        static WATCHER: OnceLock<Result<&Watcher, WatchError>> = OnceLock::new();
        let watcher = WATCHER.get_or_init(Watcher::start).clone()?;
        // A descendant with the same number would have to outlive this process, whose memory is then gone: the kernel
        // refuses to watch.
        if watcher.process == std::process::id() { Ok(watcher) } else { Err(WatchError::Forked) }
    }

    fn start() -> Result<&'static Watcher, WatchError> {
        let watcher = Watcher::new()?;
        // The provider is never unloaded (`nodelete`), so its thread may go on.
        match spawn("rerail-memory", || watcher.run()) {
            Ok(_) => Ok(watcher),
            Err(why) => Err(WatchError::Userfaultfd(why.to_string())),
        }
    }

    /// One without a thread, which lives for ever.
    fn new() -> Result<&'static Watcher, WatchError> {
        check()?;
        let fd = open().map_err(|why| WatchError::Userfaultfd(why.to_string()))?;
        Ok(Box::leak(Box::new(Watcher {
            fd,
            busy: AtomicBool::new(false),
            watches: Mutex::new(Vec::with_capacity(WATCHES_MAX)),
            process: std::process::id(),
        })))
    }

    /// For tests: one that reads nothing, and a function by which it waits for something and reads.
    #[cfg(test)]
    pub fn by_hand() -> Option<(&'static Watcher, impl Fn() + Send + Copy + 'static)> {
        let watcher = Watcher::new().ok()?;
        Some((watcher, || watcher.turn(&mut [NOTHING; AT_ONCE])))
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Arc<dyn Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells `watch` from now on.
    ///
    /// # Errors
    /// [`WatchError::Crowded`].
    pub fn join(&self, watch: Arc<dyn Watch>) -> Result<(), WatchError> {
        let mut all = self.watches();
        if all.len() == WATCHES_MAX {
            // what would be freed with it is freed behind the lock
            drop(all);
            return Err(WatchError::Crowded);
        }
        all.push(watch);
        Ok(())
    }

    /// Tells it no more.
    pub fn leave(&self, watch: &Arc<dyn Watch>) {
        let mut all = self.watches();
        let at = all.iter().position(|w| Arc::ptr_eq(w, watch));
        let left = at.map(|at| all.remove(at));
        drop(all);
        drop(left);
    }

    /// Watches whole pages; returns whether that can be done.
    ///
    /// The whole mappings in which they lie are watched: the kernel would split them, and mremap moves no memory that lies in
    /// several. There is no way back: events of memory that nothing is known about cost the program a wait of microseconds,
    /// and other users of a mapping need not be known.
    pub fn watch(&self, pages: &Range<usize>) -> bool {
        let Some(mappings) = private_mappings(pages) else { return false };
        let (start, len) = (mappings.start as u64, mappings.len() as u64);
        let mut register = UffdioRegister { start, len, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        // A userfaultfd of the program may have the memory already.
        // SAFETY: the structure that the request takes.
        unsafe { control(&self.fd, UFFDIO_REGISTER, (&raw mut register).cast()) }.is_ok()
    }

    /// Whether every [`Watch`] knows of all operations on watched memory that were begun before this call.
    pub fn is_quiet(&self) -> bool {
        if !is_still(&self.fd) {
            return false;
        }
        // `busy` was set before the read that ended the operation, so it is seen after that end was.
        fence(Ordering::SeqCst);
        !self.busy.load(Ordering::SeqCst)
    }

    /// The descriptor, which a forked child closes.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn run(&self) {
        let mut messages = [NOTHING; AT_ONCE];
        loop {
            self.turn(&mut messages);
        }
    }

    /// Waits for something, and processes it.
    fn turn(&self, messages: &mut [Message; AT_ONCE]) {
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)], None);
        self.busy.store(true, Ordering::SeqCst);
        while let Some(n) = self.read(messages) {
            messages[..n].iter().for_each(|m| self.tell(m));
        }
        self.busy.store(false, Ordering::SeqCst);
    }

    /// Reads what has come; `None`: nothing.
    fn read(&self, messages: &mut [Message; AT_ONCE]) -> Option<usize> {
        // SAFETY: messages are numbers, of which any are valid.
        let n = unsafe {
            libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), size_of::<[Message; AT_ONCE]>())
        };
        usize::try_from(n).ok().map(|bytes| bytes / size_of::<Message>()).filter(|n| *n > 0)
    }

    fn tell(&self, message: &Message) {
        let [a, b, c] = message.arg.map(|n| n as usize);
        let gone = match message.event {
            UFFD_EVENT_UNMAP | UFFD_EVENT_REMOVE => [a..b, 0..0],
            // from, to, and how many bytes: what was at the new address is gone too
            UFFD_EVENT_REMAP => [a..a.saturating_add(c), b..b.saturating_add(c)],
            _ => return,
        };
        for watch in self.watches().iter() {
            gone.iter().filter(|r| !r.is_empty()).for_each(|r| watch.gone(r.clone()));
        }
    }
}

/// The mappings in which these pages lie, if all of them are private anonymous memory. What a file or other processes can
/// change is not watched. Private memory with huge pages of its own counts as a file's, as the kernel lists it.
fn private_mappings(pages: &Range<usize>) -> Option<Range<usize>> {
    let maps = std::fs::File::open("/proc/self/maps").ok()?;
    let mut found: Option<Range<usize>> = None;
    for line in io::BufRead::lines(io::BufReader::with_capacity(1 << 16, maps)) {
        let map = Map::read(&line.ok()?)?;
        if map.addresses.end <= pages.start {
            continue;
        }
        let follows = match &found {
            Some(before) => before.end == map.addresses.start,
            None => map.addresses.start <= pages.start,
        };
        if !follows || !map.is_private {
            return None;
        }
        let all = found.map_or(map.addresses.start, |before| before.start)..map.addresses.end;
        if all.end >= pages.end {
            return Some(all);
        }
        found = Some(all);
    }
    None
}

/// A line of `/proc/self/maps` (proc_pid_maps(5)).
struct Map {
    addresses: Range<usize>,
    is_private: bool,
}

impl Map {
    fn read(line: &str) -> Option<Map> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |hex| usize::from_str_radix(hex, 16).ok();
        let (rights, inode) = (words.next()?, words.nth(2)?);
        let is_private = rights.ends_with('p') && inode == "0";
        Some(Map { addresses: number(start)?..number(end)?, is_private })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let read = |line: &str| Map::read(line).map(|m| (m.addresses, m.is_private));
        let heap = "55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(read(heap), Some((0x55d0_c0a0_0000..0x55d0_c0a2_1000, true)));
        let plain = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ";
        assert_eq!(read(plain), Some((0x7f00_0000_0000..0x7f00_0000_1000, true)));
        let file = "7f0000000000-7f0000001000 rw-p 00002000 fe:00 1234 /a b";
        assert_eq!(read(file), Some((0x7f00_0000_0000..0x7f00_0000_1000, false)));
        let shared = "7f0000000000-7f0000001000 rw-s 00000000 00:00 0 ";
        assert_eq!(read(shared), Some((0x7f00_0000_0000..0x7f00_0000_1000, false)));
        assert_eq!(read("x"), None);
    }

    #[test]
    fn versions_of_kernels_are_compared_as_numbers() {
        assert_eq!(release_numbers("6.1.0-39-amd64\n"), Some((6, 1)));
        assert_eq!(release_numbers("5.15-rc3"), Some((5, 15)));
        assert!(release_numbers("5.9.1").unwrap() < KERNEL_LEAST);
        assert_eq!(release_numbers(""), None);
    }

    #[test]
    fn every_reason_is_one_sentence() {
        let reasons = [
            WatchError::Kernel("5.10.0".into()),
            WatchError::Userfaultfd("Operation not permitted".into()),
            WatchError::Forked,
            WatchError::Crowded,
        ];
        for why in reasons.map(|why| why.to_string()) {
            assert!(!why.contains('\n') && !why.contains("  ") && why.len() < 250, "{why}");
        }
    }
}
