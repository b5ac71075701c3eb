//! What rails need that move bytes by threads of their own: a thread that no signal reaches, a descriptor that such a thread makes readable,
//! the events that it reports, and links that never change.

use crate::{LinkWatch, RailId, StreamEvent};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// What threads of a rail report to the engine, and a descriptor that is readable while there is something to poll.
pub struct Reports {
    events: Mutex<Vec<StreamEvent>>,
    signal: Signal,
}

impl Reports {
    /// None.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Reports> {
        Ok(Reports { events: Mutex::default(), signal: Signal::new()? })
    }

    /// Changes the events, or anything else that a poll looks at. The next poll looks.
    pub fn update<R>(&self, f: impl FnOnce(&mut Vec<StreamEvent>) -> R) -> R {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut events);
        self.signal.set(true);
        result
    }

    /// Adds an event.
    pub fn report(&self, event: StreamEvent) {
        self.update(|events| events.push(event));
    }

    /// For [`StreamPort::poll`](crate::StreamPort::poll): appends the events to `out`. Then `look` appends what else
    /// there is, and returns whether the descriptor is to stay readable. Does nothing when nothing was updated.
    pub fn poll(&self, out: &mut Vec<StreamEvent>, look: impl FnOnce(&mut Vec<StreamEvent>) -> bool) {
        if self.signal.is_up() {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            out.append(&mut events);
            self.signal.set(look(out));
        }
    }

    /// An event that is reported when what is returned is dropped. The promise that an adapter touches memory no more
    /// is kept so: everything that may touch it shares the returned value by an `Arc`.
    pub fn report_on_drop(self: &Arc<Self>, event: StreamEvent) -> ReportOnDrop {
        ReportOnDrop(self.clone(), event)
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// See [`Reports::report_on_drop`].
pub struct ReportOnDrop(Arc<Reports>, StreamEvent);

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        self.0.report(self.1);
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
    use crate::MemId;
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
    fn what_is_reported_is_polled_once_and_the_descriptor_is_readable_until_then() {
        let reports = Arc::new(Reports::new().unwrap());
        let poll = |again: bool| {
            let (mut out, mut looked) = (Vec::new(), false);
            reports.poll(&mut out, |_| {
                looked = true;
                again
            });
            (out, looked, reports.signal.is_up())
        };
        assert_eq!(poll(true), (vec![], false, false), "there is nothing to look at");
        let held = [(); 2].map(|()| Arc::new(reports.report_on_drop(StreamEvent::Invalidated(MemId(1)))));
        let [first, second] = held;
        let shared = first.clone();
        drop(first);
        assert_eq!(poll(false), (vec![], false, false), "the other may touch the memory");
        drop((shared, second));
        reports.report(StreamEvent::Incoming);
        let invalidated = StreamEvent::Invalidated(MemId(1));
        assert_eq!(poll(true), (vec![invalidated, invalidated, StreamEvent::Incoming], true, true));
        assert_eq!(poll(false), (vec![], true, false), "the last look has left something");
        reports.update(|events| events.clear());
        assert_eq!(poll(false), (vec![], true, false));
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
