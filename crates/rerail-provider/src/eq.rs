//! `struct fid_eq`: event queues. Owns: the events that were not read yet.
//!
//! Endpoints here need no connection management, so what comes through is what the program writes itself (`fi_eq_write`) and the
//! insertions of address vectors that were opened with FI_EVENT ([`crate::av`]).

use crate::errno::{AGAIN, BUSY, Errno, INVALID, Result, describe};
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::wait::{Deadline, Wait};
use crate::waitset::Member;
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;

/// Events that may wait to be read. An insertion never fails for want of room here; a program that writes hears -FI_EAGAIN.
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
}

enum Item {
    Event { kind: u32, bytes: Box<[u8]> },
    Failure(Failure),
}

/// What those who report events keep of a queue.
pub struct Shared {
    items: Mutex<VecDeque<Item>>,
    wait: Wait,
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

    /// The event at the head: its kind, and as much of it as fits `room`. It stays with FI_PEEK.
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
        if room < bytes.len() {
            return Err(Errno(FI_ETOOSMALL));
        }
        if buf.is_null() && !bytes.is_empty() {
            return Err(INVALID);
        }
        let len = bytes.len();
        // SAFETY: there is room; the rest is the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), len);
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

    /// See [`crate::wait::trywait`].
    pub fn may_sleep(&self) -> Result<bool> {
        let bell = self.wait.bell_outside()?;
        let items = self.items.lock();
        if items.is_empty() {
            bell.silence();
        }
        Ok(items.is_empty())
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
    /// What those who report events keep.
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
                items: Mutex::default(),
                // SAFETY: libfabric passes the caller's wait set, which is of the same fabric.
                wait: unsafe { Wait::new(kind, set) }?,
            }),
        };
        eq.shared.wait.join(|| Member::Events(Arc::downgrade(&eq.shared)));
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
    guard(|| unsafe { object::<Eq, _>(eq)?.shared.read(event, buf, len, flags) })
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
            // SAFETY: as `read`.
            match unsafe { eq.read(event, buf, len, flags) } {
                Err(AGAIN) => {}
                done => return done,
            }
            let left = end.left().ok_or(AGAIN)?;
            let bell = eq.wait.bell()?;
            // Rung by whatever comes, under the same lock; another reader that takes it leaves only a bell to be silenced.
            let items = eq.items.lock();
            if items.is_empty() {
                bell.silence();
                drop(items);
                bell.wait(left);
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
        out.prov_errno = 0;
        // It may be a buffer of the caller: left alone, with nothing in it.
        if out.err_data_size == 0 {
            out.err_data = null_mut();
        }
        out.err_data_size = 0;
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
}

/// An event of the program itself, for whoever reads the queue.
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
