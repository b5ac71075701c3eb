//! A descriptor that is readable when another one is, or when a time has come: what a port with held datagrams or stalled streams
//! lets its callers sleep on. Owns: an epoll and a timer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// See the module.
pub struct Alarm {
    epoll: OwnedFd,
    timer: OwnedFd,
    inner: RawFd,
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Alarm {
    /// Over `inner`, which must live as long as this.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new(inner: BorrowedFd<'_>) -> io::Result<Alarm> {
        // SAFETY: neither call takes memory.
        let (epoll, timer) = unsafe {
            let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))?,
            )
        };
        let alarm = Alarm { epoll, timer, inner: inner.as_raw_fd() };
        alarm.control(libc::EPOLL_CTL_ADD, alarm.inner, true)?;
        alarm.control(libc::EPOLL_CTL_ADD, alarm.timer.as_raw_fd(), true)?;
        Ok(alarm)
    }

    fn control(&self, what: libc::c_int, fd: RawFd, listen: bool) -> io::Result<()> {
        let events = if listen { libc::EPOLLIN as u32 } else { 0 };
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: the event is valid for the call.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the inner descriptor counts: not while what it says is to be ignored, or the sleeper would spin.
    pub fn listen(&self, listen: bool) {
        // It was added and is open, so it can be changed.
        let _ = self.control(libc::EPOLL_CTL_MOD, self.inner, listen);
    }

    /// Rings after so long; `None`: not at all. A ring lasts until this is called again.
    pub fn ring_after(&self, after: Option<Duration>) {
        // SAFETY: all-zero is a valid value, and means: never.
        let mut spec: libc::itimerspec = unsafe { std::mem::zeroed() };
        if let Some(after) = after {
            spec.it_value.tv_sec = after.as_secs() as libc::time_t;
            // zero would disarm it
            spec.it_value.tv_nsec = after.subsec_nanos().max(1) as libc::c_long;
        }
        // SAFETY: the new value is valid, an old one is not asked for.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) };
    }

    /// The descriptor to sleep on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Appends its own descriptors.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.epoll.as_raw_fd(), self.timer.as_raw_fd()]);
    }
}
