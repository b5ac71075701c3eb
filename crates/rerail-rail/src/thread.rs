//! What rails need that move bytes by threads of their own: a thread that no signal reaches, a descriptor that such a thread makes readable, and
//! links that never change.

use crate::{LinkWatch, RailId};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Starts a thread on which no handler of the application runs: it could call into the engine with a lock of the rail held.
///
/// # Errors
/// The system gives no thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(move || {
        // SAFETY: the set is filled before it is used.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        run();
    })
}

/// A descriptor that is readable while something holds. Invariant: it is changed under the lock of what it reports, so `Relaxed` is enough.
pub struct Signal {
    counter: File,
    up: AtomicBool,
}

impl Signal {
    /// Not readable.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Signal> {
        // SAFETY: no memory is taken.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let counter = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Signal { counter, up: AtomicBool::new(false) })
    }

    /// Readable from now on, or not. A system call only when that is a change.
    pub fn set(&self, up: bool) {
        if self.up.swap(up, Ordering::Relaxed) == up {
            return;
        }
        // Neither can fail: the counter is 0 when it is written, and 1 when it is read.
        let _ =
            if up { (&self.counter).write(&1u64.to_ne_bytes()) } else { (&self.counter).read(&mut [0; 8]) };
    }

    /// Whether it is readable.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }
}

/// Links that never change.
pub struct SteadyLinks(Signal);

impl SteadyLinks {
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<SteadyLinks> {
        Ok(SteadyLinks(Signal::new()?))
    }
}

impl LinkWatch for SteadyLinks {
    fn drain(&mut self, _out: &mut Vec<(RailId, bool)>) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.0.as_fd().as_raw_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_signal_is_readable_while_it_is_up() {
        let signal = Signal::new().unwrap();
        let readable = || {
            let mut p = libc::pollfd { fd: signal.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd.
            unsafe { libc::poll(&raw mut p, 1, 0) == 1 }
        };
        for up in [false, true, true, false, false, true] {
            signal.set(up);
            assert_eq!((signal.is_up(), readable()), (up, up));
        }
    }

    #[test]
    fn no_signal_reaches_a_thread_of_a_rail() {
        let (tell, told) = channel();
        let blocked = move || {
            // SAFETY: the set is written before it is read.
            let all = unsafe {
                let mut set = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
                [libc::SIGUSR1, libc::SIGPIPE, libc::SIGALRM].map(|s| libc::sigismember(&raw const set, s))
            };
            tell.send(all).unwrap();
        };
        spawn("test", blocked).unwrap().join().unwrap();
        assert_eq!(told.recv().unwrap(), [1; 3]);
    }
}
