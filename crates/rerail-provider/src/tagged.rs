//! `struct fi_ops_tagged`: tagged messages. Each call gathers its arguments for [`transfer`].

use crate::ep::Ep;
use crate::errno::INVALID;
use crate::ffi::*;
use crate::object::{guard, object};
use crate::pieces::Pieces;
use crate::transfer::{self, Incoming, Outgoing, Posting};
use libc::{c_void, iovec};
use rerail_core::Protocol;
use std::ptr::null_mut;

/// The calls.
pub static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

fn incoming(pieces: &Pieces, src: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> Incoming<'_> {
    Incoming { protocol: Protocol::Tagged, src, tag, ignore, pieces, context }
}

fn outgoing(
    pieces: &Pieces,
    dest: fi_addr_t,
    tag: u64,
    data: Option<u64>,
    context: *mut c_void,
) -> Outgoing<'_> {
    Outgoing { protocol: Protocol::Tagged, dest, tag, data, pieces, context }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: a handle of ours, and memory as libfabric documents the call; the same in all calls below.
        unsafe { transfer::recv(object::<Ep, _>(ep)?, &incoming(&pieces, src, tag, ignore, context)) }
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let pieces = Pieces::from_c(iov, count)?;
        transfer::recv(object::<Ep, _>(ep)?, &incoming(&pieces, src, tag, ignore, context))
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        // A look brings no buffer, whatever its count says.
        let count = if m.msg_iov.is_null() { 0 } else { m.iov_count };
        let pieces = Pieces::from_c(m.msg_iov, count)?;
        let op = incoming(&pieces, m.addr, m.tag, m.ignore, m.context);
        transfer::recv_msg("fi_trecvmsg", object::<Ep, _>(ep)?, &op, flags)
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe { transfer::send(&Posting::by_default(ep)?, &outgoing(&pieces, dest, tag, None, context)) }
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let pieces = Pieces::from_c(iov, count)?;
        transfer::send(&Posting::by_default(ep)?, &outgoing(&pieces, dest, tag, None, context))
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let pieces = Pieces::from_c(m.msg_iov, m.iov_count)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
        let op = outgoing(&pieces, m.addr, m.tag, data, m.context);
        transfer::send(&Posting::flagged("fi_tsendmsg", ep, flags)?, &op)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest: fi_addr_t,
    tag: u64,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe { transfer::send(&Posting::injected(ep)?, &outgoing(&pieces, dest, tag, None, null_mut())) }
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe {
            transfer::send(&Posting::by_default(ep)?, &outgoing(&pieces, dest, tag, Some(data), context))
        }
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
    tag: u64,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe {
            transfer::send(&Posting::injected(ep)?, &outgoing(&pieces, dest, tag, Some(data), null_mut()))
        }
    })
}
