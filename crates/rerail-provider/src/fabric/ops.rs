//! The calls of a fabric: what a program opens with it, and `fi_trywait`.

use super::{Fabric, Shared};
use crate::errno::{AGAIN, BUSY, INVALID, NOT_IMPLEMENTED};
use crate::ffi::*;
use crate::log;
use crate::object::{give, guard, guard_close, head, object, ops, refuse, take_back};
use crate::provider::NAME;
use crate::{cntr, cq, domain, eq, waitset};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::Arc;

static FID_OPS: fi_ops = ops(close);
static OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(open_domain),
    passive_ep: Some(passive_ep),
    eq_open: Some(eq::open),
    wait_open: Some(waitset::open),
    trywait: Some(trywait),
    domain2: Some(domain2),
};

/// `fi_fabric`.
pub unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric passes the caller's attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(INVALID)?;
        // SAFETY: null or a C string.
        if !attr.name.is_null() && unsafe { CStr::from_ptr(attr.name) } != NAME {
            return Err(INVALID);
        }
        let api_version = attr.api_version;
        let fabric = Fabric {
            fid: fid_fabric {
                fid: head(FI_CLASS_FABRIC, context, &FID_OPS),
                ops: (&raw const OPS).cast_mut(),
                api_version,
            },
            shared: Arc::new(Shared { api_version }),
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(fabric, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Fabric>(fid, || {
        // SAFETY: a handle of ours.
        let fabric: &Fabric = unsafe { object(fid) }?;
        if Arc::strong_count(&fabric.shared) > 1 {
            return Err(BUSY);
        }
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Fabric, _>(fid) }?);
        Ok(0)
    })
}

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, the caller's info, and its place for the handle.
        unsafe { domain::ops::open(object::<Fabric, _>(fabric)?.shared.clone(), info, out, context) }
    })
}

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // The only flag there is asks for a peer domain, which is for providers that cooperate.
    if flags != 0 {
        return guard(|| Err(log::refused("fi_domain2", flags, NOT_IMPLEMENTED)));
    }
    // SAFETY: as `open_domain`.
    unsafe { open_domain(fabric, info, out, context) }
}

/// Whether the program may sleep on the descriptors of all these: -FI_EAGAIN when one of them may have something, -FI_EINVAL when
/// one has nothing to sleep on.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let _: &Fabric = unsafe { object(fabric) }?;
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        if fids.is_null() && count > 0 {
            return Err(INVALID);
        }
        let mut quiet = true;
        for i in 0..count {
            // SAFETY: the caller's array of `count` handles of ours.
            let fid = unsafe { fids.add(i).read() };
            // SAFETY: as above.
            let class = unsafe { fid.as_ref() }.ok_or(INVALID)?.fclass;
            // All are checked, so that each descriptor is readable or will be.
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
    })
}

refuse! {
    fn passive_ep(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int = FI_ENOSYS;
}
