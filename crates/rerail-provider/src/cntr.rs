//! `struct fid_cntr`: counters. Bound for FI_SEND and FI_RECV they count the endpoint's operations, told through a queue or not;
//! the engine has those numbers, so a counter is a sum over its endpoints and what the program has added. Bound for reads and
//! writes they stay at what the program sets: there are none in this version, and MPICH binds counters to nothing else. Reading
//! one makes progress, as programs rely on.

use crate::domain;
use crate::errno::{BUSY, Errno, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rerail_core::{EpId, OpCounts};
use rerail_runtime::Runtime;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A blocked waiter looks this often whether another thread has changed the counter.
const CHANGE_POLL: Duration = Duration::from_millis(1);

/// An endpoint that is counted.
struct Source {
    rt: Arc<Runtime>,
    ep: EpId,
    /// FI_SEND, FI_RECV.
    directions: u64,
}

impl Source {
    fn sum(&self, c: &OpCounts) -> Value {
        let send = u64::from(self.directions & FI_SEND != 0);
        let recv = u64::from(self.directions & FI_RECV != 0);
        Value {
            done: send * c.sent + recv * c.received,
            failed: send * c.sends_failed + recv * c.receives_failed,
        }
    }
}

/// The two numbers of a counter. They wrap, as those of `fi_cntr(3)` do.
#[derive(Clone, Copy, Default)]
struct Value {
    done: u64,
    failed: u64,
}

impl Value {
    fn plus(self, other: Value) -> Value {
        Value { done: self.done.wrapping_add(other.done), failed: self.failed.wrapping_add(other.failed) }
    }
}

#[derive(Default)]
struct State {
    /// What the program has set or added, and what endpoints counted that are closed.
    own: Value,
    sources: Vec<Source>,
}

impl State {
    fn value(&self) -> Value {
        self.sources.iter().fold(self.own, |sum, s| {
            // A runtime that has ended counts nothing any more.
            let counts = s.rt.inspect(|e| e.op_counts(s.ep)).unwrap_or_default();
            sum.plus(s.sum(&counts))
        })
    }
}

/// What endpoints keep of a counter.
pub struct Shared {
    _domain: Arc<domain::Shared>,
    state: Mutex<State>,
}

impl Shared {
    /// The counter counts operations of `ep` from now on.
    pub fn attach(&self, rt: &Arc<Runtime>, ep: EpId, directions: u64) {
        let mut state = self.state.lock();
        match state.sources.iter_mut().find(|s| s.ep == ep && Arc::ptr_eq(&s.rt, rt)) {
            Some(known) => known.directions |= directions,
            None => state.sources.push(Source { rt: rt.clone(), ep, directions }),
        }
    }

    /// `ep` closes: what it has counted stays.
    pub fn detach(&self, rt: &Arc<Runtime>, ep: EpId) {
        let mut state = self.state.lock();
        let Some(at) = state.sources.iter().position(|s| s.ep == ep && Arc::ptr_eq(&s.rt, rt)) else {
            return;
        };
        let gone = state.sources.swap_remove(at);
        let counts = rt.inspect(|e| e.op_counts(ep)).unwrap_or_default();
        state.own = state.own.plus(gone.sum(&counts));
    }

    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.state.lock().sources.first().map(|s| s.rt.clone())
    }

    fn progress(&self) {
        if let Some(rt) = self.runtime() {
            // What goes wrong here is told by the operations.
            let _ = rt.progress();
        }
    }

    fn value(&self) -> Value {
        self.state.lock().value()
    }

    /// Adds to what the program has given, or makes the whole be what it says.
    fn change(&self, how: impl FnOnce(&mut Value, Value)) {
        let mut state = self.state.lock();
        let now = state.value();
        how(&mut state.own, now);
    }

    fn wait(&self, threshold: u64, timeout_ms: c_int) -> Result<c_int> {
        let end = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        let failed = self.value().failed;
        loop {
            self.progress();
            let now = self.value();
            if now.done >= threshold {
                return Ok(0);
            }
            if now.failed != failed {
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
            shared: Arc::new(Shared { _domain: domain, state: Mutex::default() }),
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(cntr, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Cntr>(fid, || {
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
        Ok(Count(cntr.value().done))
    })
    .0
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    guard(|| {
        // SAFETY: a handle of ours.
        Ok(Count(unsafe { object::<Cntr, _>(cntr) }?.shared.value().failed))
    })
    .0
}

/// Changes one number of a counter: `how` gets what the program has given, and the whole as it is.
///
/// # Safety
/// `cntr` is a handle of ours.
unsafe fn change(cntr: *mut fid_cntr, how: impl FnOnce(&mut Value, Value)) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { object::<Cntr, _>(cntr) }?.shared.change(how);
        Ok(0)
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the handle, as libfabric documents the call; the same below.
    unsafe { change(cntr, |own, _| own.done = own.done.wrapping_add(value)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `add`.
    unsafe { change(cntr, |own, now| own.done = own.done.wrapping_add(value.wrapping_sub(now.done))) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `add`.
    unsafe { change(cntr, |own, _| own.failed = own.failed.wrapping_add(value)) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `add`.
    unsafe { change(cntr, |own, now| own.failed = own.failed.wrapping_add(value.wrapping_sub(now.failed))) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        unsafe { object::<Cntr, _>(cntr) }?.shared.wait(threshold, timeout_ms)
    })
}
