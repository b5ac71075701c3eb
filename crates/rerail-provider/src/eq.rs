//! `struct fid_eq`: event queues. Owns: the events that were not read yet.
//!
//! Endpoints here need no connection management, so what comes through is what the program writes itself (`fi_eq_write`), the
//! insertions of address vectors that were opened with FI_EVENT ([`crate::av`]), and groups that are made ([`crate::mc`]).

use crate::deadline::Deadline;
use crate::errno::{self, AGAIN, BUSY, Errno, INVALID, Result, describe};
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::wait::Wait;
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use rerail_core::{CqId, Engine};
use rerail_runtime::{Runtime, RuntimeError};
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// Events that may wait to be read. An insertion never fails for want of room here; a program that writes gets
/// -FI_EAGAIN.
const WRITTEN_MAX: usize = 4096;
/// Longest event that a program may write.
const EVENT_BYTES_MAX: usize = 4096;

/// A failed operation.
#[derive(Clone, Copy)]
pub struct Failure {
    /// Handle of the object whose operation it was, as a number.
    pub fid: usize,
    /// Context of the operation.
    pub context: usize,
    /// What failed within it: of an insertion the index of the address.
    pub data: u64,
    /// Why.
    pub error: Errno,
    /// What [`describe`] has a sentence for; 0: nothing.
    pub prov_errno: c_int,
}

enum Item {
    Event { kind: u32, bytes: Box<[u8]> },
    Failure(Failure),
}

/// The part of a queue that reporters of events keep.
pub struct Shared {
    items: Arc<Mutex<VecDeque<Item>>>,
    wait: Wait,
    joins: Mutex<Joins>,
}

/// Groups that are being made. This lock is never held during a call of the engine. Lock order: engine, `items`, this
/// one.
#[derive(Default)]
struct Joins {
    /// Where the engine reports them.
    live: Option<(Arc<Runtime>, CqId)>,
    /// Ticket, handle and context of each.
    expected: Vec<(usize, usize, usize)>,
    ticket_next: usize,
}

impl Shared {
    fn put(&self, item: Item) {
        let mut items = self.items.lock();
        items.push_back(item);
        self.wait.ring();
    }

    /// The operation with `context` of the object `fid` is done.
    pub fn report(&self, kind: u32, fid: usize, context: usize, data: u64) {
        // As `struct fi_eq_entry` lies in memory.
        const _: () = assert!(size_of::<fi_eq_entry>() == 24);
        let bytes = [fid as u64, context as u64, data].map(u64::to_ne_bytes).concat();
        self.put(Item::Event { kind, bytes: bytes.into() });
    }

    /// A part of an operation has failed.
    pub fn report_failure(&self, failure: Failure) {
        self.put(Item::Failure(failure));
    }

    /// The engine's queue for groups that are being made in `rt`.
    ///
    /// # Errors
    /// The runtime does not work any more.
    pub fn joins(&self, rt: &Arc<Runtime>) -> Result<CqId> {
        let known =
            |joins: &Joins| joins.live.as_ref().filter(|(live, _)| Arc::ptr_eq(live, rt)).map(|(_, id)| *id);
        if let Some(id) = known(&self.joins.lock()) {
            return Ok(id);
        }
        let id = rt.inspect(|e| e.open_cq(1))?;
        let mut joins = self.joins.lock();
        if let Some(quicker) = known(&joins) {
            drop(joins);
            rt.inspect(|e| e.close_cq(id))?;
            return Ok(quicker);
        }
        joins.live = Some((rt.clone(), id));
        Ok(id)
    }

    /// The group behind the handle `fid` will be reported under the ticket that this returns.
    pub fn expect(&self, fid: usize, context: usize) -> usize {
        let mut joins = self.joins.lock();
        joins.ticket_next += 1;
        let ticket = joins.ticket_next;
        joins.expected.push((ticket, fid, context));
        drop(joins);
        // Wakes the sleepers: they must watch the engine from now on.
        let _items = self.items.lock();
        self.wait.ring();
        ticket
    }

    /// This group is not reported any more.
    pub fn forget(&self, ticket: usize) {
        self.joins.lock().expected.retain(|(t, ..)| *t != ticket);
    }

    /// Where the engine reports groups, if any are being made.
    fn awaited(&self) -> Option<(Arc<Runtime>, CqId)> {
        let joins = self.joins.lock();
        if joins.expected.is_empty() { None } else { joins.live.clone() }
    }

    /// Makes progress if groups are being made, and reports those that are.
    fn look_at_joins(&self) -> Result<()> {
        let Some((rt, cq)) = self.awaited() else { return Ok(()) };
        let mut made = Vec::new();
        let looked = rt.progress_with(|e, _| made.extend(std::iter::from_fn(|| e.cq_pop(cq))));
        match looked {
            // Every endpoint is closed: nothing more will come.
            Err(RuntimeError::Closed) => {
                let mut joins = self.joins.lock();
                if joins.live.as_ref().is_some_and(|(live, _)| Arc::ptr_eq(live, &rt)) {
                    joins.expected.clear();
                }
                return Ok(());
            }
            looked => looked?,
        }
        for c in made {
            let mut joins = self.joins.lock();
            let Some(at) = joins.expected.iter().position(|(ticket, ..)| *ticket == c.context) else {
                continue;
            };
            let (_, fid, context) = joins.expected.remove(at);
            drop(joins);
            match c.error {
                None => self.report(FI_JOIN_COMPLETE, fid, context, 0),
                Some(error) => {
                    let (error, prov_errno) = errno::of_completion(error);
                    self.report_failure(Failure { fid, context, data: 0, error, prov_errno });
                }
            }
        }
        Ok(())
    }

    /// What a sleeper waits for: an event, or that the engine has made a group.
    fn ready(&self, cq: CqId) -> impl Fn(&Engine) -> bool + Send + use<> {
        let items = self.items.clone();
        move |e| e.cq_head(cq).is_some() || !items.lock().is_empty()
    }

    /// Sleeps until there may be an event, or `max` has passed; may return early.
    fn sleep(&self, max: Duration) -> Result<()> {
        let bell = self.wait.bell()?;
        if let Some((rt, cq)) = self.awaited() {
            match rt.wait_for(bell, max, self.ready(cq)) {
                Err(RuntimeError::Closed) => {}
                slept => return Ok(slept?),
            }
        }
        // Events and joins ring the bell under this lock: a bell without an event rang for one that another reader
        // took.
        let items = self.items.lock();
        if items.is_empty() && self.awaited().is_none() {
            bell.silence();
            drop(items);
            bell.wait(max);
        }
        Ok(())
    }

    /// The event at the head: its kind, and the rest of it unless `buf` is null, as with libfabric's own providers. It stays with FI_PEEK.
    ///
    /// # Safety
    /// `event` is null or can be written, `buf` has `room` bytes.
    unsafe fn read(&self, event: *mut u32, buf: *mut c_void, room: usize, flags: u64) -> Result<isize> {
        let mut items = self.items.lock();
        let (kind, bytes) = match items.front() {
            None => return Err(AGAIN),
            Some(Item::Failure(_)) => return Err(Errno(FI_EAVAIL)),
            Some(Item::Event { kind, bytes }) => (*kind, bytes),
        };
        let len = if buf.is_null() { 0 } else { bytes.len() };
        if room < len {
            return Err(Errno(FI_ETOOSMALL));
        }
        // SAFETY: there is room; the rest is the caller's promise.
        unsafe {
            if len > 0 {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), len);
            }
            if !event.is_null() {
                event.write(kind);
            }
        }
        if flags & FI_PEEK == 0 {
            items.pop_front();
        }
        Ok(len as isize)
    }

    fn take_failure(&self, flags: u64) -> Result<Failure> {
        let mut items = self.items.lock();
        let Some(Item::Failure(failure)) = items.front() else { return Err(AGAIN) };
        let failure = *failure;
        if flags & FI_PEEK == 0 {
            items.pop_front();
        }
        Ok(failure)
    }

    /// Whether the program may sleep on the descriptor (`fi_trywait`).
    pub fn may_sleep(&self) -> Result<bool> {
        let bell = self.wait.bell_outside()?;
        self.look_at_joins()?;
        if let Some((rt, cq)) = self.awaited() {
            match rt.arm(bell, self.ready(cq)) {
                Err(RuntimeError::Closed) => {}
                armed => return Ok(armed?),
            }
        }
        let items = self.items.lock();
        let quiet = items.is_empty() && self.awaited().is_none();
        if quiet {
            bell.silence();
        }
        Ok(quiet)
    }

    fn detach(&self) {
        let live = self.joins.lock().live.take();
        if let Some((rt, cq)) = live {
            if let Some(bell) = self.wait.bell_if_made() {
                rt.disarm(bell);
            }
            let _ = rt.inspect(|e| e.close_cq(cq));
        }
    }
}

/// An event queue.
#[repr(C)]
pub struct Eq {
    fid: fid_eq,
    may_write: bool,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Eq {
    const CLASS: usize = FI_CLASS_EQ;
}

impl Eq {
    /// What reporters of events keep.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

static FID_OPS: fi_ops = fi_ops { control: Some(control), ..ops(close) };
static OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

/// `fi_eq_open`.
pub unsafe extern "C" fn open(
    _fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: null or the caller's attributes.
        let attr = unsafe { attr.as_ref() };
        let (kind, set) = attr.map_or((FI_WAIT_UNSPEC, null_mut()), |a| (a.wait_obj, a.wait_set));
        let eq = Eq {
            fid: fid_eq { fid: head(FI_CLASS_EQ, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
            may_write: attr.is_some_and(|a| a.flags & FI_WRITE != 0),
            shared: Arc::new(Shared {
                items: Arc::default(),
                joins: Mutex::default(),
                // SAFETY: libfabric passes the caller's wait set, which is of the same fabric.
                wait: unsafe { Wait::new(kind, set) }?,
            }),
        };
        eq.shared.wait.join(&eq.shared, Shared::may_sleep);
        // SAFETY: the caller's place for the handle.
        unsafe { give(eq, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Eq>(fid, || {
        // SAFETY: a handle of ours.
        let eq: &Eq = unsafe { object(fid) }?;
        if Arc::strong_count(&eq.shared) > 1 {
            return Err(BUSY);
        }
        eq.shared.detach();
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Eq, _>(fid) }?);
        Ok(0)
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a handle of ours, and what libfabric passes with the command.
    guard(|| unsafe { object::<Eq, _>(fid)?.shared.wait.control(command, arg) })
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: a handle of ours, and room as libfabric documents the call.
    guard(|| unsafe {
        let eq = &object::<Eq, _>(eq)?.shared;
        eq.look_at_joins()?;
        eq.read(event, buf, len, flags)
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: a handle of ours.
        let eq = &unsafe { object::<Eq, _>(eq) }?.shared;
        let end = Deadline::after(timeout_ms);
        loop {
            eq.look_at_joins()?;
            // SAFETY: as `read`.
            match unsafe { eq.read(event, buf, len, flags) } {
                Err(AGAIN) => eq.sleep(end.left().ok_or(AGAIN)?)?,
                done => return done,
            }
        }
    })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, out: *mut fi_eq_err_entry, flags: u64) -> isize {
    guard(|| {
        // SAFETY: a handle of ours, and the caller's entry.
        let (eq, out) = unsafe { (&object::<Eq, _>(eq)?.shared, out.as_mut().ok_or(INVALID)?) };
        let failure = eq.take_failure(flags)?;
        out.fid = failure.fid as fid_t;
        out.context = failure.context as *mut c_void;
        out.data = failure.data;
        out.err = failure.error.0;
        out.prov_errno = failure.prov_errno;
        // It may be a buffer of the caller: left alone, with nothing in it.
        if out.err_data_size == 0 {
            out.err_data = null_mut();
        }
        out.err_data_size = 0;
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
}

/// An event of the program itself, for the readers of the queue.
unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: a handle of ours.
        let eq: &Eq = unsafe { object(eq) }?;
        if !eq.may_write || len > EVENT_BYTES_MAX || (buf.is_null() && len > 0) {
            return Err(INVALID);
        }
        if eq.shared.items.lock().len() >= WRITTEN_MAX {
            return Err(AGAIN);
        }
        let bytes: Box<[u8]> = match len {
            0 => Box::default(),
            // SAFETY: the caller has `len` bytes there.
            _ => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.into(),
        };
        eq.shared.put(Item::Event { kind: event, bytes });
        Ok(len as isize)
    })
}

/// The numbers of failures here are libfabric's own: there is no other sentence for them.
unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = describe(prov_errno);
    // SAFETY: the caller's room.
    unsafe { crate::errno::copy(text, buf, len) };
    text.as_ptr()
}
