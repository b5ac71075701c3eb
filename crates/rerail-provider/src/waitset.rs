//! `struct fid_wait`: wait sets, on which a program sleeps until any of many queues and counters has something (`fi_poll(3)`).
//!
//! A set is an epoll descriptor with the bells of its members in it. Members join when they are opened with FI_WAIT_SET, leave when
//! they are closed, and keep the set: it cannot be closed before them.

use crate::deadline::{Deadline, GIVE_UP};
use crate::errno::{BUSY, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::log;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rerail_runtime::Bell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Returns whether the program may sleep on a queue or counter of a set; `None`: it is closed, and no member any more.
pub type Member = Box<dyn Fn() -> Option<Result<bool>> + Send>;

/// What members keep of a set.
pub struct Shared {
    kind: fi_wait_obj,
    epoll: OwnedFd,
    members: Mutex<Vec<Member>>,
}

impl Shared {
    fn new(kind: fi_wait_obj) -> Result<Self> {
        // SAFETY: a plain system call; the new descriptor has no other owner.
        let epoll = unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                fd if fd < 0 => return Err(last_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Ok(Self { kind, epoll, members: Mutex::default() })
    }

    /// The descriptor that is readable when a member's is.
    pub fn raw(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// `bell` is a member's. It leaves with its last owner: the kernel forgets what is closed.
    ///
    /// # Errors
    /// The user has too many descriptors in such sets, or the kernel no memory.
    pub fn watch(&self, bell: &Bell) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the event is read only.
        match unsafe { libc::epoll_ctl(self.raw(), libc::EPOLL_CTL_ADD, bell.raw(), &raw mut event) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }

    /// A queue or counter joins.
    pub fn join(&self, member: Member) {
        self.members.lock().push(member);
    }

    /// Whether no member has anything, so that a program may sleep on the set's descriptor. Makes progress.
    ///
    /// # Errors
    /// The error of a member.
    pub fn may_sleep(&self) -> Result<bool> {
        let (mut quiet, mut failed) = (true, None);
        // All members are checked, so that each bell is silent or rung.
        self.members.lock().retain(|m| {
            match m() {
                None => return false,
                Some(Ok(may)) => quiet &= may,
                Some(Err(e)) => failed = Some(e),
            }
            true
        });
        failed.map_or(Ok(quiet), Err)
    }

    fn wait(&self, timeout_ms: c_int) -> Result<c_int> {
        let end = Deadline::after(timeout_ms);
        while self.may_sleep()? {
            let left = end.left().ok_or(GIVE_UP)?;
            self.sleep(left)?;
        }
        Ok(0)
    }

    /// Sleeps until a member's bell rings or `max` has passed. May return early.
    fn sleep(&self, max: Duration) -> Result<()> {
        // Rounded up: a sleep of nothing would spin through the last millisecond.
        let ms = max.as_nanos().div_ceil(1_000_000).min(c_int::MAX as u128) as c_int;
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for one event.
        match unsafe { libc::epoll_wait(self.raw(), &raw mut event, 1, ms) } {
            n if n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
                Err(last_error())
            }
            _ => Ok(()),
        }
    }
}

fn last_error() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(FI_ENOMEM))
}

/// A wait set.
#[repr(C)]
pub struct WaitSet {
    fid: fid_wait,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for WaitSet {
    const CLASS: usize = FI_CLASS_WAIT;
}

impl WaitSet {
    /// What members keep.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

static FID_OPS: fi_ops = fi_ops { control: Some(control), ..ops(close) };
static OPS: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait: Some(wait_for) };

/// `fi_wait_open`.
pub unsafe extern "C" fn open(
    _fabric: *mut fid_fabric,
    attr: *mut fi_wait_attr,
    out: *mut *mut fid_wait,
) -> c_int {
    guard(|| {
        // SAFETY: null or the caller's attributes.
        let attr = unsafe { attr.as_ref() };
        if let Some(a) = attr.filter(|a| a.flags != 0) {
            return Err(log::refused("fi_wait_open", a.flags, Errno(FI_EBADFLAGS)));
        }
        let kind = attr.map_or(FI_WAIT_UNSPEC, |a| a.wait_obj);
        if !matches!(kind, FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD) {
            return Err(NOT_IMPLEMENTED);
        }
        let set = WaitSet {
            fid: fid_wait {
                fid: head(FI_CLASS_WAIT, std::ptr::null_mut(), &FID_OPS),
                ops: (&raw const OPS).cast_mut(),
            },
            shared: Arc::new(Shared::new(kind)?),
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(set, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<WaitSet>(fid, || {
        // SAFETY: a handle of ours.
        let set: &WaitSet = unsafe { object(fid) }?;
        if Arc::strong_count(&set.shared) > 1 {
            return Err(BUSY);
        }
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<WaitSet, _>(fid) }?);
        Ok(0)
    })
}

unsafe extern "C" fn wait_for(set: *mut fid_wait, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        unsafe { object::<WaitSet, _>(set) }?.shared.wait(timeout_ms)
    })
}

/// FI_GETWAIT (the descriptor) and FI_GETWAITOBJ (its kind).
unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let set = &unsafe { object::<WaitSet, _>(fid) }?.shared;
        // SAFETY: what libfabric passes with the command.
        unsafe { tell(command, arg, set.kind, || Ok(set.raw())) }
    })
}

/// Answers FI_GETWAIT with a descriptor, and FI_GETWAITOBJ with its kind.
///
/// # Errors
/// -FI_EINVAL without a place for it, -FI_ENOSYS for any other command, and what `descriptor` says.
///
/// # Safety
/// `arg` is null, or has the place that the command needs.
pub unsafe fn tell(
    command: c_int,
    arg: *mut c_void,
    kind: fi_wait_obj,
    descriptor: impl FnOnce() -> Result<RawFd>,
) -> Result<c_int> {
    match command {
        FI_GETWAIT | FI_GETWAITOBJ if arg.is_null() => return Err(INVALID),
        // SAFETY: FI_GETWAIT comes with a place for a descriptor.
        FI_GETWAIT => unsafe { arg.cast::<c_int>().write(descriptor()?) },
        // SAFETY: FI_GETWAITOBJ comes with a place for an `enum fi_wait_obj`.
        FI_GETWAITOBJ => unsafe { arg.cast::<fi_wait_obj>().write(kind) },
        _ => return Err(NOT_IMPLEMENTED),
    }
    Ok(0)
}
