//! The calls of a domain: what a program opens in it, and what it asks of it.

use super::{Domain, Shared};
use crate::errno::{BUSY, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::log;
use crate::names::Format;
use crate::object::{give, guard, guard_close, head, object, ops, refuse, take_back};
use crate::regions::Regions;
use crate::{atomic, av, cntr, collective, cq, ep, fabric, mr, pollset};
use libc::{c_int, c_void};
use std::sync::Arc;

/// The registration mode of an open domain; `None`: it is not one of ours.
///
/// # Safety
/// `handle` is null, or an open domain of any provider.
pub unsafe fn open_mr_mode(handle: *const fid_domain) -> Option<c_int> {
    // Domains of all providers are of one class; only ours have these calls.
    // SAFETY: every handle begins with a `struct fid`.
    let fid = unsafe { handle.cast::<fid>().as_ref() }.filter(|f| std::ptr::eq(f.ops, &raw const FID_OPS))?;
    // SAFETY: it is ours, and open.
    unsafe { object::<Domain, _>(fid) }.ok().map(|d| d.shared.mr_mode)
}

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), ..ops(close) };
static OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av::ops::open),
    cq_open: Some(cq::open),
    endpoint: Some(ep::ops::open),
    scalable_ep: Some(scalable_ep),
    cntr_open: Some(cntr::open),
    poll_open: Some(pollset::open),
    stx_ctx: Some(stx_ctx),
    srx_ctx: Some(srx_ctx),
    query_atomic: Some(atomic::query),
    query_collective: Some(collective::query),
    endpoint2: Some(endpoint2),
};

/// Opens a domain.
///
/// # Safety
/// `info` and `out` come from `fi_domain`.
pub unsafe fn open(
    fabric: Arc<fabric::Shared>,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller's info, which has a domain attribute or not.
    let (info, attr) =
        unsafe { info.as_ref().and_then(|i| Some((i, i.domain_attr.as_ref()?))) }.ok_or(INVALID)?;
    let format = Format::of(info.addr_format).ok_or(INVALID)?;
    let domain = Domain {
        fid: fid_domain {
            fid: head(FI_CLASS_DOMAIN, context, &FID_OPS),
            ops: (&raw const OPS).cast_mut(),
            mr: (&raw const mr::OPS).cast_mut(),
        },
        shared: Arc::new(Shared {
            fabric,
            mr_mode: attr.mr_mode,
            format,
            regions: Regions::new(attr.mr_mode),
        }),
    };
    // SAFETY: the caller's place for the handle.
    unsafe { give(domain, out) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Domain>(fid, || {
        // SAFETY: a handle of ours.
        let domain: &Domain = unsafe { object(fid) }?;
        if Arc::strong_count(&domain.shared) > 1 {
            return Err(BUSY);
        }
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Domain, _>(fid) }?);
        Ok(0)
    })
}

/// An event queue may be bound; nothing is ever reported through it.
unsafe extern "C" fn bind(fid: *mut fid, with: *mut fid, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (_, with): (&Domain, _) = unsafe { (object(fid)?, with.as_ref().ok_or(INVALID)?) };
        if with.fclass == FI_CLASS_EQ { Ok(0) } else { Err(INVALID) }
    })
}

unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // The flags ask for peer endpoints, which are for providers that cooperate.
    if flags != 0 {
        return guard(|| Err(log::refused("fi_endpoint2", flags, NOT_IMPLEMENTED)));
    }
    // SAFETY: the same arguments.
    unsafe { ep::ops::open(domain, info, out, context) }
}

refuse! {
    fn scalable_ep(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int = FI_ENOSYS;
    fn stx_ctx(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) -> c_int = FI_ENOSYS;
    fn srx_ctx(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int = FI_ENOSYS;
}
