//! `struct fid_eq`: event queues. Some programs open one and bind it; no event is ever put into it, because endpoints here
//! need no connection management and addresses are inserted at once.

use crate::errno::{AGAIN, INVALID};
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, refuse, take_back};
use libc::{c_char, c_int, c_void};
use std::time::Duration;

#[repr(C)]
struct Eq {
    fid: fid_eq,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Eq {
    const CLASS: usize = FI_CLASS_EQ;
}

static FID_OPS: fi_ops = ops(close);
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
        let wait = unsafe { attr.as_ref() }.map_or(FI_WAIT_UNSPEC, |a| a.wait_obj);
        if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD) {
            return Err(crate::errno::NOT_IMPLEMENTED);
        }
        let eq = Eq {
            fid: fid_eq { fid: head(FI_CLASS_EQ, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(eq, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Eq>(fid, || {
        // SAFETY: a handle of ours, given up.
        unsafe { take_back::<Eq, _>(fid) }?;
        Ok(0)
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    _len: usize,
    timeout_ms: c_int,
    _flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: a handle of ours.
        let _: &Eq = unsafe { object(eq) }?;
        if event.is_null() || buf.is_null() {
            return Err(INVALID);
        }
        // Waiting for ever for what never comes would hang the program; -FI_EAGAIN lets it look around.
        std::thread::sleep(Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(100)));
        Err(AGAIN)
    })
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    crate::errno::describe(prov_errno).as_ptr()
}

refuse! {
    fn read(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize = FI_EAGAIN;
    fn readerr(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize = FI_EAGAIN;
    fn write(*mut fid_eq, u32, *const c_void, usize, u64) -> isize = FI_ENOSYS;
}
