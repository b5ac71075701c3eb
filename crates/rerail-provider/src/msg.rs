//! `struct fi_ops_msg`: untagged messages. Each call gathers its arguments for [`transfer`].

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
pub static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
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

fn incoming(pieces: &Pieces, src: fi_addr_t, context: *mut c_void) -> Incoming<'_> {
    Incoming { protocol: Protocol::Msg, src, tag: 0, ignore: 0, pieces, context }
}

fn outgoing(pieces: &Pieces, dest: fi_addr_t, data: Option<u64>, context: *mut c_void) -> Outgoing<'_> {
    Outgoing { protocol: Protocol::Msg, dest, tag: 0, data, pieces, context }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: a handle of ours, and memory as libfabric documents the call; the same in all calls below.
        unsafe { transfer::recv(object::<Ep, _>(ep)?, &incoming(&pieces, src, context)) }
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let pieces = Pieces::from_c(iov, count)?;
        transfer::recv(object::<Ep, _>(ep)?, &incoming(&pieces, src, context))
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let pieces = Pieces::from_c(m.msg_iov, m.iov_count)?;
        transfer::recv_msg("fi_recvmsg", object::<Ep, _>(ep)?, &incoming(&pieces, m.addr, m.context), flags)
    })
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe { transfer::send(&Posting::by_default(ep)?, &outgoing(&pieces, dest, None, context)) }
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let pieces = Pieces::from_c(iov, count)?;
        transfer::send(&Posting::by_default(ep)?, &outgoing(&pieces, dest, None, context))
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: see `recv`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let pieces = Pieces::from_c(m.msg_iov, m.iov_count)?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
        transfer::send(
            &Posting::flagged("fi_sendmsg", ep, flags)?,
            &outgoing(&pieces, m.addr, data, m.context),
        )
    })
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe { transfer::send(&Posting::injected(ep)?, &outgoing(&pieces, dest, None, null_mut())) }
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: fi_addr_t,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe { transfer::send(&Posting::by_default(ep)?, &outgoing(&pieces, dest, Some(data), context)) }
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: fi_addr_t,
) -> isize {
    guard(|| {
        let pieces = Pieces::one(buf, len);
        // SAFETY: see `recv`.
        unsafe { transfer::send(&Posting::injected(ep)?, &outgoing(&pieces, dest, Some(data), null_mut())) }
    })
}
