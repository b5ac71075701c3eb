//! Wait objects: what a program can sleep on until a queue or a counter has something. Owns: which kinds there are, and the bell
//! behind each.
//!
//! The descriptor that a program gets is readable until `fi_trywait` permits a sleep. Then it becomes readable when
//! there may be something, or when the sleeper must look again. So a program that does not call `fi_trywait` misses
//! nothing; it only wakes too often.

use crate::errno::{Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::object::object;
use crate::waitset;
use libc::{c_int, c_void};
use rerail_runtime::Bell;
use std::sync::{Arc, OnceLock};

/// The wait object of one queue or counter.
pub struct Wait {
    kind: fi_wait_obj,
    /// With FI_WAIT_SET: where the bell hangs.
    set: Option<Arc<waitset::Shared>>,
    /// Made when it is first needed: a queue without sleepers costs no descriptor.
    bell: OnceLock<Arc<Bell>>,
}

impl Wait {
    /// From the attributes of a queue or counter; `set` is used with FI_WAIT_SET only.
    ///
    /// # Errors
    /// Pairs of mutex and condition, and lists of descriptors, are not supported. FI_WAIT_SET without a set, or no
    /// descriptors left.
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

    /// `owner`, whose wait object this is, is complete now and takes its place in the set, if there is one. It leaves when it is closed.
    pub fn join<T: Send + Sync + 'static>(&self, owner: &Arc<T>, may_sleep: fn(&T) -> Result<bool>) {
        if let Some(set) = &self.set {
            let owner = Arc::downgrade(owner);
            set.join(Box::new(move || owner.upgrade().map(|owner| may_sleep(&owner))));
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

    /// The bell, if it was ever needed.
    pub fn bell_if_made(&self) -> Option<&Arc<Bell>> {
        self.bell.get()
    }

    /// Wakes all sleepers.
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
        unsafe { waitset::tell(command, arg, self.kind, descriptor) }
    }
}
