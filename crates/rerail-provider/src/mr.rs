//! `struct fid_mr`: memory regions. Bookkeeping only: sends and receives need no registration here, but programs register
//! all the same.

use crate::domain;
use crate::errno::INVALID;
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use libc::{c_int, c_void, iovec};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[repr(C)]
struct Mr {
    fid: fid_mr,
    _domain: Arc<domain::Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Mr {
    const CLASS: usize = FI_CLASS_MR;
}

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), control: Some(control), ..ops(close) };

/// Registration calls of a domain.
pub static OPS: fi_ops_mr =
    fi_ops_mr { size: size_of::<fi_ops_mr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

/// Registers: gives the region a key.
///
/// # Safety
/// `fid` is a domain's handle, `out` the caller's place for the region.
unsafe fn register(
    fid: *mut fid,
    requested_key: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> crate::errno::Result<c_int> {
    // SAFETY: the caller's promise.
    let domain = unsafe { object::<domain::Domain, _>(fid) }?.shared();
    let chosen_here = domain.mr_mode & (FI_MR_PROV_KEY | FI_MR_BASIC) != 0;
    let key = if chosen_here { domain.next_key.fetch_add(1, Ordering::Relaxed) } else { requested_key };
    let mr = Mr {
        fid: fid_mr { fid: head(FI_CLASS_MR, context, &FID_OPS), mem_desc: null_mut(), key },
        _domain: domain,
    };
    // SAFETY: the caller's promise.
    let done = unsafe { give(mr, out) }?;
    // A descriptor that is not null, for programs that take null for "not registered". It is never read.
    // SAFETY: `give` has just written the pointer.
    unsafe { (**out).mem_desc = (*out).cast() };
    Ok(done)
}

unsafe extern "C" fn reg(
    fid: *mut fid,
    _buf: *const c_void,
    _len: usize,
    _access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as libfabric documents the call.
    guard(|| unsafe { register(fid, requested_key, out, context) })
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    _iov: *const iovec,
    _count: usize,
    _access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as libfabric documents the call.
    guard(|| unsafe { register(fid, requested_key, out, context) })
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    _flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    guard(|| {
        // Only fields of 1.17 are looked at. Device memory was refused when the hints were met (no FI_HMEM).
        // SAFETY: the caller's attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        // SAFETY: as libfabric documents the call.
        unsafe { register(fid, attr.requested_key, out, attr.context) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Mr>(fid, || {
        // SAFETY: a handle of ours, given up.
        drop(unsafe { take_back::<Mr, _>(fid) }?);
        Ok(0)
    })
}

/// Endpoints and counters may be bound; a local region does nothing with them.
unsafe extern "C" fn bind(fid: *mut fid, with: *mut fid, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (_, with): (&Mr, _) = unsafe { (object(fid)?, with.as_ref().ok_or(INVALID)?) };
        if matches!(with.fclass, FI_CLASS_EP | FI_CLASS_CNTR) { Ok(0) } else { Err(INVALID) }
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let _: &Mr = unsafe { object(fid) }?;
        match command {
            FI_ENABLE | FI_REFRESH => Ok(0),
            _ => Err(crate::errno::NOT_IMPLEMENTED),
        }
    })
}
