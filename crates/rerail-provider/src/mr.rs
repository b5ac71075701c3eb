//! `struct fid_mr`: memory regions. Sends and receives need none; a region is what peers may read and write ([`crate::rma`],
//! [`crate::atomic`]). The domain keeps them ([`crate::regions`]).

use crate::domain;
use crate::errno::{Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::log;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::pieces::Pieces;
use libc::{c_int, c_void, iovec};
use std::ptr::null_mut;
use std::sync::Arc;

#[repr(C)]
struct Mr {
    fid: fid_mr,
    domain: Arc<domain::Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Mr {
    const CLASS: usize = FI_CLASS_MR;
}

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), control: Some(control), ..ops(close) };

/// Registration calls of a domain.
pub static OPS: fi_ops_mr =
    fi_ops_mr { size: size_of::<fi_ops_mr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

/// Refuses an offset, which is reserved and must be zero (fi_mr(3)), and flags, which all ask for what is not kept here.
fn check(offset: u64, flags: u64) -> Result<()> {
    match (offset, flags) {
        (0, 0) => Ok(()),
        (0, _) => Err(log::refused("a registration of memory", flags, Errno(FI_EBADFLAGS))),
        _ => Err(INVALID),
    }
}

/// Registers memory.
///
/// # Safety
/// `fid` is a domain's handle, `out` the caller's place for the region; the memory stays valid until the region is closed.
unsafe fn register(
    fid: *mut fid,
    memory: &Pieces,
    access: u64,
    requested_key: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> Result<c_int> {
    if out.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let domain = unsafe { object::<domain::Domain, _>(fid) }?.shared();
    // SAFETY: the caller's promise.
    let key = unsafe { domain.regions.add(memory.get(), access, requested_key) }?;
    let mr =
        Mr { fid: fid_mr { fid: head(FI_CLASS_MR, context, &FID_OPS), mem_desc: null_mut(), key }, domain };
    // SAFETY: the caller's promise.
    let done = unsafe { give(mr, out) }?;
    // A descriptor that is not null, for programs that take null for "not registered". It is never read.
    // SAFETY: `give` has just written the pointer.
    unsafe { (**out).mem_desc = (*out).cast() };
    Ok(done)
}

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        check(offset, flags)?;
        // SAFETY: as libfabric documents the call.
        unsafe { register(fid, &Pieces::one(buf, len), access, requested_key, out, context) }
    })
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as libfabric documents the call.
    guard(|| unsafe {
        check(offset, flags)?;
        register(fid, &Pieces::from_c(iov, count)?, access, requested_key, out, context)
    })
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    // Only fields of 1.4 are looked at. Device memory was refused when the hints were met (no FI_HMEM).
    // SAFETY: as libfabric documents the call.
    guard(|| unsafe {
        let attr = attr.as_ref().ok_or(INVALID)?;
        check(attr.offset, flags)?;
        let memory = Pieces::from_c(attr.mr_iov, attr.iov_count)?;
        register(fid, &memory, attr.access, attr.requested_key, out, attr.context)
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Mr>(fid, || {
        // SAFETY: a handle of ours, given up.
        let mr = unsafe { take_back::<Mr, _>(fid) }?;
        mr.domain.regions.remove(mr.fid.key);
        Ok(0)
    })
}

/// Endpoints may be bound: the region is theirs anyway, as that of all of its domain. Counters may not: what peers do is counted for
/// each endpoint, not for each region.
unsafe extern "C" fn bind(fid: *mut fid, with: *mut fid, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (_, with): (&Mr, _) = unsafe { (object(fid)?, with.as_ref().ok_or(INVALID)?) };
        match with.fclass {
            FI_CLASS_EP => Ok(0),
            FI_CLASS_CNTR => Err(NOT_IMPLEMENTED),
            _ => Err(INVALID),
        }
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let _: &Mr = unsafe { object(fid) }?;
        match command {
            FI_ENABLE | FI_REFRESH => Ok(0),
            _ => Err(NOT_IMPLEMENTED),
        }
    })
}
