//! `struct fi_ops_rma`: reads and writes of remote memory. Each call gathers its arguments for one operation of the engine.
//!
//! A write completes when its bytes are in the peer's memory, a read when they are here, so every completion level is met.

use crate::errno::{INVALID, Result};
use crate::ffi::*;
use crate::object::guard;
use crate::pieces::{Pieces, Remote};
use crate::transfer::Posting;
use libc::{c_void, iovec};
use rerail_core::RmaOp;
use std::ptr::null_mut;

/// The calls.
pub static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// A read or a write, as any of the calls describes it.
struct Access<'a> {
    read: bool,
    peer: fi_addr_t,
    pieces: &'a Pieces,
    remote: &'a Remote,
    data: Option<u64>,
    context: *mut c_void,
}

fn reading<'a>(pieces: &'a Pieces, remote: &'a Remote, peer: fi_addr_t, context: *mut c_void) -> Access<'a> {
    Access { read: true, peer, pieces, remote, data: None, context }
}

fn writing<'a>(
    pieces: &'a Pieces,
    remote: &'a Remote,
    peer: fi_addr_t,
    data: Option<u64>,
    context: *mut c_void,
) -> Access<'a> {
    Access { read: false, peer, pieces, remote, data, context }
}

/// Posts it.
///
/// # Safety
/// The pieces stay valid (for a read: and unshared) until the completion, as for `fi_read` and `fi_write`; when a write is
/// injected, during the call.
#[inline(always)]
unsafe fn post(how: &Posting<'_>, op: &Access<'_>) -> Result<isize> {
    how.check_caps(FI_RMA)?;
    // A buffer that is read into is never free at once: the endpoint's default flags may say FI_INJECT all the same.
    let inject = how.inject() && !op.read;
    let bytes = op.pieces.bytes();
    how.check_bytes(bytes, inject)?;
    if op.remote.bytes() != bytes {
        return Err(INVALID);
    }
    let rma = RmaOp {
        ep: how.active.id,
        dest: how.peer(op.peer)?,
        read: op.read,
        iov: op.pieces.get(),
        remote: op.remote.get(),
        data: op.data,
        context: op.context as usize,
        completion: how.completion,
        inject,
    };
    // SAFETY: the program keeps the memory until the completion; that is libfabric's contract for every operation.
    how.active.rt.post(bytes, |e, now| unsafe { e.rma(&rma, now) })??;
    Ok(0)
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let (pieces, remote) = (Pieces::one(buf, len), Remote::one(addr, len, key));
        let op = reading(&pieces, &remote, peer, context);
        // SAFETY: a handle of ours, and memory as libfabric documents the call; the same in all calls below.
        unsafe { post(&Posting::by_default(ep)?, &op) }
    })
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `read`.
    guard(|| unsafe {
        let pieces = Pieces::from_c(iov, count)?;
        let remote = Remote::one(addr, pieces.bytes(), key);
        let op = reading(&pieces, &remote, peer, context);
        post(&Posting::by_default(ep)?, &op)
    })
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: see `read`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let pieces = Pieces::from_c(m.msg_iov, m.iov_count)?;
        let remote = Remote::from_c(m.rma_iov, m.rma_iov_count)?;
        let op = reading(&pieces, &remote, m.addr, m.context);
        post(&Posting::flagged("fi_readmsg", ep, flags)?, &op)
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let (pieces, remote) = (Pieces::one(buf, len), Remote::one(addr, len, key));
        let op = writing(&pieces, &remote, peer, None, context);
        // SAFETY: see `read`.
        unsafe { post(&Posting::by_default(ep)?, &op) }
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `read`.
    guard(|| unsafe {
        let pieces = Pieces::from_c(iov, count)?;
        let remote = Remote::one(addr, pieces.bytes(), key);
        let op = writing(&pieces, &remote, peer, None, context);
        post(&Posting::by_default(ep)?, &op)
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: see `read`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let pieces = Pieces::from_c(m.msg_iov, m.iov_count)?;
        let remote = Remote::from_c(m.rma_iov, m.rma_iov_count)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
        let op = writing(&pieces, &remote, m.addr, data, m.context);
        post(&Posting::flagged("fi_writemsg", ep, flags)?, &op)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    guard(|| {
        let (pieces, remote) = (Pieces::one(buf, len), Remote::one(addr, len, key));
        let op = writing(&pieces, &remote, peer, None, null_mut());
        // SAFETY: see `read`.
        unsafe { post(&Posting::injected(ep)?, &op) }
    })
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let (pieces, remote) = (Pieces::one(buf, len), Remote::one(addr, len, key));
        let op = writing(&pieces, &remote, peer, Some(data), context);
        // SAFETY: see `read`.
        unsafe { post(&Posting::by_default(ep)?, &op) }
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    guard(|| {
        let (pieces, remote) = (Pieces::one(buf, len), Remote::one(addr, len, key));
        let op = writing(&pieces, &remote, peer, Some(data), null_mut());
        // SAFETY: see `read`.
        unsafe { post(&Posting::injected(ep)?, &op) }
    })
}
