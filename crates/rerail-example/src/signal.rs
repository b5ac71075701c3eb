//! A descriptor that is readable while something holds.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. Invariant: it is changed under the lock of what it reports, so `Relaxed` is enough.
pub(crate) struct Signal {
    fd: OwnedFd,
    up: AtomicBool,
}

impl Signal {
    /// Not readable.
    pub fn new() -> Result<Signal, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Signal { fd, up: AtomicBool::new(false) })
    }

    /// Readable from now on, or not. A system call only when that is a change.
    pub fn set(&self, up: bool) {
        if self.up.swap(up, Ordering::Relaxed) == up {
            return;
        }
        // Neither can fail: the counter is 0 when it is written, and 1 when it is read.
        if up {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
