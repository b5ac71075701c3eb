//! Wait objects: what a program can sleep on until a queue or a counter has something. Owns: which kinds there are, and the bell
//! behind each.
//!
//! The descriptor that a program is given is readable unless [`trywait`] has said that it may sleep: then it becomes readable when there
//! may be something, or when somebody wants the sleeper's attention. So a program that forgets to ask never misses anything, it only
//! wakes too often.

use crate::errno::{AGAIN, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::object::object;
use crate::{cntr, cq, eq, waitset};
use libc::{c_int, c_void};
use rerail_runtime::Bell;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The wait object of one queue or counter.
pub struct Wait {
    kind: fi_wait_obj,
    /// With FI_WAIT_SET: where the bell hangs.
    set: Option<Arc<waitset::Shared>>,
    /// Made when it is first needed: a queue on which nobody sleeps costs no descriptor.
    bell: OnceLock<Arc<Bell>>,
}

impl Wait {
    /// As the attributes of a queue or counter say; `set` counts with FI_WAIT_SET alone.
    ///
    /// # Errors
    /// Pairs of mutex and condition, and lists of descriptors, are not there. FI_WAIT_SET without a set, or no descriptors left.
    ///
    /// # Safety
    /// With FI_WAIT_SET, `set` is null or a wait set of ours.
    pub unsafe fn new(kind: fi_wait_obj, set: *mut fid_wait) -> Result<Self> {
        match kind {
            FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD => {
                Ok(Self { kind, set: None, bell: OnceLock::new() })
            }
            FI_WAIT_SET => {
                // SAFETY: the caller's promise.
                let set = unsafe { object::<waitset::WaitSet, _>(set) }?.shared();
                let wait = Self { kind, set: Some(set.clone()), bell: OnceLock::new() };
                set.watch(wait.bell()?)?;
                Ok(wait)
            }
            _ => Err(NOT_IMPLEMENTED),
        }
    }

    /// Whoever has this is complete now, and takes its place in the set, if it has one.
    pub fn join(&self, member: impl FnOnce() -> waitset::Member) {
        if let Some(set) = &self.set {
            set.join(member());
        }
    }

    /// What calls that block sleep on.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn bell(&self) -> Result<&Arc<Bell>> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell);
        }
        let fresh = Bell::new().map_err(|e| Errno(e.raw_os_error().unwrap_or(FI_ENOMEM)))?;
        fresh.ring();
        // Another thread may have been quicker: its bell is the one.
        Ok(self.bell.get_or_init(|| Arc::new(fresh)))
    }

    /// As [`Wait::bell`], for a program that sleeps by its own means.
    ///
    /// # Errors
    /// As [`Wait::bell`], and -FI_EINVAL without a wait object.
    pub fn bell_outside(&self) -> Result<&Arc<Bell>> {
        if self.kind == FI_WAIT_NONE { Err(INVALID) } else { self.bell() }
    }

    /// The bell, if anybody ever wanted it.
    pub fn bell_if_made(&self) -> Option<&Arc<Bell>> {
        self.bell.get()
    }

    /// Wakes whoever sleeps.
    pub fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    /// The commands FI_GETWAIT (the descriptor) and FI_GETWAITOBJ (its kind).
    ///
    /// # Safety
    /// `arg` is null, or has the place that the command needs.
    pub unsafe fn control(&self, command: c_int, arg: *mut c_void) -> Result<c_int> {
        let descriptor = || match (self.kind, &self.set) {
            (FI_WAIT_NONE, _) => Err(Errno(FI_ENODATA)),
            (_, Some(set)) => Ok(set.raw()),
            (_, None) => Ok(self.bell()?.raw()),
        };
        // SAFETY: the caller's promise.
        unsafe { tell(command, arg, self.kind, descriptor) }
    }
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

/// What a call says that has waited as long as it was told, unless it is one that reads.
pub const GIVE_UP: Errno = Errno(FI_ETIMEDOUT);

/// When a call that blocks is to give up.
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout_ms` from now; negative: never.
    pub fn after(timeout_ms: c_int) -> Self {
        let length = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self(length.map(|l| Instant::now() + l))
    }

    /// What is left, `None` when it is over.
    pub fn left(&self) -> Option<Duration> {
        let left = self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        (!left.is_zero()).then_some(left)
    }
}

/// Whether the program may sleep on the descriptors of all these.
///
/// # Errors
/// -FI_EAGAIN when one of them may have something, -FI_EINVAL when one has nothing to sleep on.
///
/// # Safety
/// `fids` has `count` handles of ours.
pub unsafe fn trywait(fids: *mut *mut fid, count: usize) -> Result<c_int> {
    let mut quiet = true;
    for i in 0..count {
        // SAFETY: the caller's promise, here and below.
        let fid = unsafe { fids.add(i).read() };
        // SAFETY: as above.
        let class = unsafe { fid.as_ref() }.ok_or(INVALID)?.fclass;
        // Every one is asked, so that each descriptor is readable or will be.
        // SAFETY: the class says so.
        quiet &= unsafe {
            match class {
                FI_CLASS_CQ => object::<cq::Cq, _>(fid)?.shared().may_sleep()?,
                FI_CLASS_CNTR => object::<cntr::Cntr, _>(fid)?.shared().may_sleep()?,
                FI_CLASS_EQ => object::<eq::Eq, _>(fid)?.shared().may_sleep()?,
                FI_CLASS_WAIT => object::<waitset::WaitSet, _>(fid)?.shared().may_sleep()?,
                _ => return Err(INVALID),
            }
        };
    }
    if quiet { Ok(0) } else { Err(AGAIN) }
}
