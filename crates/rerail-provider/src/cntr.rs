//! `struct fid_cntr`: counters. They count RMA and atomic operations only (MPICH binds them to nothing else), so in this
//! version they stay at what the program sets; reading one makes progress, as programs rely on.

use crate::domain;
use crate::errno::{BUSY, Errno, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::object::{Object, give, guard, head, object, ops, take_back};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rerail_runtime::Runtime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A blocked waiter looks this often whether another thread has changed the counter.
const CHANGE_POLL: Duration = Duration::from_millis(1);

/// What endpoints keep of a counter.
pub struct Shared {
    _domain: Arc<domain::Shared>,
    value: AtomicU64,
    errors: AtomicU64,
    runtime: Mutex<Option<Arc<Runtime>>>,
}

impl Shared {
    /// An endpoint of `rt` uses the counter from now on.
    pub fn attach(&self, rt: &Arc<Runtime>) {
        *self.runtime.lock() = Some(rt.clone());
    }

    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.lock().clone()
    }

    fn progress(&self) {
        if let Some(rt) = self.runtime() {
            // What goes wrong here is told by the operations.
            let _ = rt.progress();
        }
    }

    fn wait(&self, threshold: u64, timeout_ms: c_int) -> Result<c_int> {
        let end = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        let errors = self.errors.load(Ordering::Acquire);
        loop {
            self.progress();
            if self.value.load(Ordering::Acquire) >= threshold {
                return Ok(0);
            }
            if self.errors.load(Ordering::Acquire) != errors {
                return Err(Errno(FI_EAVAIL));
            }
            let left = end.map_or(CHANGE_POLL, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Errno(FI_ETIMEDOUT));
            }
            let slice = left.min(CHANGE_POLL);
            match self.runtime() {
                Some(rt) => rt.wait_input(slice)?,
                None => std::thread::sleep(slice),
            }
        }
    }
}

/// A counter.
#[repr(C)]
pub struct Cntr {
    fid: fid_cntr,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Cntr {
    const CLASS: usize = FI_CLASS_CNTR;
}

impl Cntr {
    /// What endpoints keep.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

static FID_OPS: fi_ops = ops(close);
static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};

/// `fi_cntr_open`.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let domain = unsafe { object::<domain::Domain, _>(domain) }?.shared();
        // SAFETY: null or the caller's attributes.
        let wait = unsafe { attr.as_ref() }.map_or(FI_WAIT_UNSPEC, |a| a.wait_obj);
        if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD) {
            return Err(NOT_IMPLEMENTED);
        }
        let cntr = Cntr {
            fid: fid_cntr { fid: head(FI_CLASS_CNTR, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
            shared: Arc::new(Shared {
                _domain: domain,
                value: AtomicU64::new(0),
                errors: AtomicU64::new(0),
                runtime: Mutex::new(None),
            }),
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(cntr, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let cntr: &Cntr = unsafe { object(fid) }?;
        if Arc::strong_count(&cntr.shared) > 1 {
            return Err(BUSY);
        }
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Cntr, _>(fid) }?);
        Ok(0)
    })
}

/// The value as a reply: a counter has no way to say that something is wrong.
struct Count(u64);

impl crate::object::Reply for Count {
    fn failed(_: Errno) -> Self {
        Count(0)
    }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    guard(|| {
        // SAFETY: a handle of ours.
        let cntr = &unsafe { object::<Cntr, _>(cntr) }?.shared;
        cntr.progress();
        Ok(Count(cntr.value.load(Ordering::Acquire)))
    })
    .0
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    guard(|| {
        // SAFETY: a handle of ours.
        Ok(Count(unsafe { object::<Cntr, _>(cntr) }?.shared.errors.load(Ordering::Acquire)))
    })
    .0
}

/// Changes one number of a counter.
///
/// # Safety
/// `cntr` is a handle of ours.
unsafe fn change(cntr: *mut fid_cntr, how: impl FnOnce(&Shared)) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        how(&unsafe { object::<Cntr, _>(cntr) }?.shared);
        Ok(0)
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the handle, as libfabric documents the call; the same below.
    unsafe { change(cntr, |c| _ = c.value.fetch_add(value, Ordering::AcqRel)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `add`.
    unsafe { change(cntr, |c| c.value.store(value, Ordering::Release)) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `add`.
    unsafe { change(cntr, |c| _ = c.errors.fetch_add(value, Ordering::AcqRel)) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `add`.
    unsafe { change(cntr, |c| c.errors.store(value, Ordering::Release)) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        unsafe { object::<Cntr, _>(cntr) }?.shared.wait(threshold, timeout_ms)
    })
}
