//! `struct fid_cntr`: counters. They count the operations of the endpoints they are bound to, reported through a queue
//! or not: sends and receives, reads and writes of peers' memory, and what peers do to ours. An atomic operation counts
//! as a write, and as a read when it gives values back. The engine has those numbers, so a counter is a sum over its
//! endpoints and what the program has added. Reading one makes progress, as programs rely on.

use crate::deadline::{Deadline, GIVE_UP};
use crate::domain;
use crate::errno::{BUSY, Errno, Result};
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::wait::Wait;
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rerail_core::{Engine, EpId, OpCounts};
use rerail_runtime::{Runtime, RuntimeError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An endpoint that is counted.
struct Source {
    rt: Arc<Runtime>,
    ep: EpId,
    /// FI_SEND, FI_RECV, FI_READ, …
    directions: u64,
}

/// What an endpoint's operations in these directions add to a counter.
fn sum(directions: u64, c: &OpCounts) -> Value {
    let counted = [
        (FI_SEND, c.sent, c.sends_failed),
        (FI_RECV, c.received, c.receives_failed),
        (FI_WRITE, c.written, c.writes_failed),
        (FI_READ, c.read, c.reads_failed),
        // A refused operation of a peer took no effect, and is reported to the peer alone.
        (FI_REMOTE_WRITE, c.remote_written, 0),
        (FI_REMOTE_READ, c.remote_read, 0),
    ];
    let bound = counted.into_iter().filter(|(direction, ..)| directions & direction != 0);
    bound.fold(Value::default(), |sum, (_, done, failed)| sum.plus(Value { done, failed }))
}

/// The two numbers of a counter. They wrap, as those of `fi_cntr(3)` do.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Value {
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
    /// What the program has read last: anything else is news to it.
    read: Value,
    /// How often the program has changed the counter itself.
    changes: Arc<AtomicU64>,
}

impl State {
    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.sources.first().map(|s| s.rt.clone())
    }

    /// A check, to be run on the engine, whether the counter is not `value` any more.
    fn changed_from(&self, value: Value) -> impl Fn(&Engine) -> bool + Send + 'static {
        let (own, changes) = (self.own, self.changes.clone());
        let before = changes.load(Ordering::Acquire);
        let sources: Vec<(EpId, u64)> = self.sources.iter().map(|s| (s.ep, s.directions)).collect();
        move |e| {
            let now = sources
                .iter()
                .fold(own, |all, (ep, directions)| all.plus(sum(*directions, &e.op_counts(*ep))));
            now != value || changes.load(Ordering::Acquire) != before
        }
    }
    fn value(&self) -> Value {
        self.sources.iter().fold(self.own, |sum, s| {
            // A runtime that has ended counts nothing any more.
            let counts = s.rt.inspect(|e| e.op_counts(s.ep)).unwrap_or_default();
            sum.plus(self::sum(s.directions, &counts))
        })
    }
}

/// What endpoints keep of a counter.
pub struct Shared {
    _domain: Arc<domain::Shared>,
    state: Mutex<State>,
    wait: Wait,
}

impl Shared {
    /// The counter counts operations of `ep` from now on.
    pub fn attach(&self, rt: &Arc<Runtime>, ep: EpId, directions: u64) {
        let mut state = self.state.lock();
        match state.sources.iter_mut().find(|s| s.ep == ep && Arc::ptr_eq(&s.rt, rt)) {
            Some(known) => known.directions |= directions,
            None => state.sources.push(Source { rt: rt.clone(), ep, directions }),
        }
        // Wakes the sleepers: they must arm again, with the endpoint.
        self.wait.ring();
    }

    /// `ep` closes: what it has counted stays.
    pub fn detach(&self, rt: &Arc<Runtime>, ep: EpId) {
        let mut state = self.state.lock();
        let Some(at) = state.sources.iter().position(|s| s.ep == ep && Arc::ptr_eq(&s.rt, rt)) else {
            return;
        };
        let gone = state.sources.swap_remove(at);
        let counts = rt.inspect(|e| e.op_counts(ep)).unwrap_or_default();
        state.own = state.own.plus(sum(gone.directions, &counts));
        if let Some(bell) = self.wait.bell_if_made() {
            rt.disarm(bell);
            bell.ring();
        }
    }

    fn progress(&self) {
        let rt = self.state.lock().runtime();
        if let Some(rt) = rt {
            // Errors here are reported by the operations.
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
        state.changes.fetch_add(1, Ordering::Release);
        self.wait.ring();
    }

    fn wait(&self, threshold: u64, timeout_ms: c_int) -> Result<c_int> {
        let end = Deadline::after(timeout_ms);
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
            self.sleep(now, end.left().ok_or(GIVE_UP)?)?;
        }
    }

    /// Sleeps until the counter is not `value`, or `max` has passed; may return early.
    fn sleep(&self, value: Value, max: Duration) -> Result<()> {
        let bell = self.wait.bell()?;
        let state = self.state.lock();
        let live = state.runtime().filter(|rt| rt.check_usable() != Err(RuntimeError::Closed));
        let Some(rt) = live else {
            // Under the lock, under which it is rung when something changes.
            bell.silence();
            let changed = state.value() != value;
            drop(state);
            if !changed {
                bell.wait(max);
            }
            return Ok(());
        };
        let changed = state.changed_from(value);
        drop(state);
        match rt.wait_for(bell, max, changed) {
            Err(RuntimeError::Closed) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Makes progress, and returns the counter's value.
    pub fn progress_and_look(&self) -> Value {
        self.progress();
        self.value()
    }

    /// Whether the program may sleep on the descriptor (`fi_trywait`).
    pub fn may_sleep(&self) -> Result<bool> {
        let bell = self.wait.bell_outside()?;
        self.progress();
        // Held to the end: otherwise the ring for a change in between could be lost.
        let state = self.state.lock();
        match state.runtime().map(|rt| rt.arm(bell, state.changed_from(state.read))) {
            None | Some(Err(RuntimeError::Closed)) => {
                bell.silence();
                let news = state.value() != state.read;
                if news {
                    bell.ring();
                }
                Ok(!news)
            }
            Some(armed) => Ok(armed?),
        }
    }

    fn look(&self, which: impl FnOnce(&mut Value, Value) -> u64) -> u64 {
        let mut state = self.state.lock();
        let now = state.value();
        which(&mut state.read, now)
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

static FID_OPS: fi_ops = fi_ops { control: Some(control), ..ops(close) };
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
        let (kind, set) = unsafe { attr.as_ref() }
            .map_or((FI_WAIT_UNSPEC, std::ptr::null_mut()), |a| (a.wait_obj, a.wait_set));
        // SAFETY: libfabric passes the caller's wait set, which is of the same fabric.
        let wait = unsafe { Wait::new(kind, set) }?;
        let cntr = Cntr {
            fid: fid_cntr { fid: head(FI_CLASS_CNTR, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
            shared: Arc::new(Shared { _domain: domain, state: Mutex::default(), wait }),
        };
        cntr.shared.wait.join(&cntr.shared, Shared::may_sleep);
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

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a handle of ours, and what libfabric passes with the command.
    guard(|| unsafe { object::<Cntr, _>(fid)?.shared.wait.control(command, arg) })
}

/// The value as a reply: a counter cannot report an error.
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
        Ok(Count(cntr.look(|read, now| {
            read.done = now.done;
            now.done
        })))
    })
    .0
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    guard(|| {
        // SAFETY: a handle of ours.
        let cntr = &unsafe { object::<Cntr, _>(cntr) }?.shared;
        Ok(Count(cntr.look(|read, now| {
            read.failed = now.failed;
            now.failed
        })))
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
