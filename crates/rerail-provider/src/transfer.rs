//! From libfabric's many ways to send and receive to the engine's few operations. Owns: what operation flags mean.
//!
//! * Calls without flags use the endpoint's defaults; calls with flags (`fi_sendmsg` and its like) use those instead.
//! * A completion is written unless the queue is bound with FI_SELECTIVE_COMPLETION and the flags lack FI_COMPLETION. The
//!   `fi_inject` family never completes.
//! * FI_TRANSMIT_COMPLETE and FI_DELIVERY_COMPLETE both complete when the message has reached the peer's engine: a weaker
//!   "on the wire" would say nothing while rails may break. Without them a send completes when it is buffered.

use crate::ep::{Active, Ep};
use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::info::{IOV_MAX, MESSAGE_BYTES_MAX};
use libc::{c_void, iovec};
use rerail_core::{EndpointId, IoVec, PeekOp, Protocol, RecvOp, SendOp};

/// Completion levels that need the peer's word.
const DELIVERY: u64 = FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
/// Flags of sends that promise something which is not kept here.
const UNSUPPORTED_TX: u64 = FI_FENCE | FI_COMMIT_COMPLETE | FI_MATCH_COMPLETE | FI_TRIGGER;
const UNSUPPORTED_RX: u64 = FI_TRIGGER;

/// Pieces of a message.
pub struct Pieces {
    pieces: [IoVec; IOV_MAX],
    count: usize,
}

impl Pieces {
    /// One piece.
    #[inline(always)]
    pub fn one(buf: *const c_void, len: usize) -> Self {
        let mut pieces = [IoVec::new(std::ptr::null_mut(), 0); IOV_MAX];
        pieces[0] = IoVec::new(buf.cast_mut().cast(), len);
        Self { pieces, count: 1 }
    }

    /// From C.
    ///
    /// # Safety
    /// `iov` has `count` elements; it may be null when that is zero.
    pub unsafe fn from_c(iov: *const iovec, count: usize) -> Result<Self> {
        if count > IOV_MAX || (iov.is_null() && count > 0) {
            return Err(INVALID);
        }
        let mut pieces = [IoVec::new(std::ptr::null_mut(), 0); IOV_MAX];
        for (i, piece) in pieces.iter_mut().enumerate().take(count) {
            // SAFETY: `i < count`.
            let v = unsafe { iov.add(i).read() };
            *piece = IoVec::new(v.iov_base.cast(), v.iov_len);
        }
        Ok(Self { pieces, count })
    }

    #[inline(always)]
    fn get(&self) -> &[IoVec] {
        &self.pieces[..self.count]
    }

    #[inline(always)]
    fn bytes(&self) -> usize {
        self.get().iter().fold(0, |sum, p| sum.saturating_add(p.len))
    }
}

/// A send, as any of the calls describes it.
pub struct Outgoing<'a> {
    pub protocol: Protocol,
    pub dest: fi_addr_t,
    pub tag: u64,
    pub data: Option<u64>,
    pub pieces: &'a Pieces,
    pub context: *mut c_void,
}

/// A send with the endpoint's default flags.
///
/// # Safety
/// The pieces stay valid until the completion, as for `fi_send`.
#[inline(always)]
pub unsafe fn send(ep: &Ep, op: &Outgoing<'_>) -> Result<isize> {
    let active = ep.active()?;
    let flags = ep.tx_flags();
    // SAFETY: the caller's promise.
    unsafe { post(ep, active, op, flags, active.tx_completes(flags)) }
}

/// A send with flags of its own.
///
/// # Safety
/// As [`send`].
pub unsafe fn send_msg(ep: &Ep, op: &Outgoing<'_>, flags: u64) -> Result<isize> {
    if flags & UNSUPPORTED_TX != 0 {
        return Err(Errno(FI_EOPNOTSUPP));
    }
    let active = ep.active()?;
    // SAFETY: the caller's promise.
    unsafe { post(ep, active, op, flags, active.tx_completes(flags)) }
}

/// A send whose buffer is free when the call returns, and that never completes.
///
/// # Safety
/// The pieces are valid during the call.
#[inline(always)]
pub unsafe fn inject(ep: &Ep, op: &Outgoing<'_>) -> Result<isize> {
    let active = ep.active()?;
    // SAFETY: the caller's promise; with FI_INJECT the engine copies.
    unsafe { post(ep, active, op, FI_INJECT, false) }
}

#[inline(always)]
unsafe fn post(ep: &Ep, active: &Active, op: &Outgoing<'_>, flags: u64, completion: bool) -> Result<isize> {
    let inject = flags & FI_INJECT != 0;
    let limit = if inject { ep.inject_bytes } else { MESSAGE_BYTES_MAX };
    if op.pieces.bytes() > limit {
        return Err(Errno(FI_EMSGSIZE));
    }
    let dest = active.av.endpoint(op.dest).ok_or(Errno(FI_EADDRNOTAVAIL))?;
    let send = SendOp {
        ep: active.id,
        dest,
        protocol: op.protocol,
        tag: op.tag,
        data: op.data,
        iov: op.pieces.get(),
        context: op.context as usize,
        completion,
        inject,
        delivery: flags & DELIVERY != 0,
    };
    // SAFETY: the program keeps the memory until the completion; that is libfabric's contract for every send.
    active.rt.with(|e, now| unsafe { e.send(&send, now) })??;
    Ok(0)
}

/// A receive, as any of the calls describes it.
pub struct Incoming<'a> {
    pub protocol: Protocol,
    pub src: fi_addr_t,
    pub tag: u64,
    pub ignore: u64,
    pub pieces: &'a Pieces,
    pub context: *mut c_void,
}

/// A receive with the endpoint's default flags.
///
/// # Safety
/// The pieces stay valid and unshared until the completion, as for `fi_recv`.
#[inline(always)]
pub unsafe fn recv(ep: &Ep, op: &Incoming<'_>) -> Result<isize> {
    // SAFETY: the caller's promise.
    unsafe { recv_msg(ep, op, ep.rx_flags()) }
}

/// A receive with flags of its own: posts a buffer, looks for a message (FI_PEEK), receives one that was reserved
/// (FI_CLAIM), or throws one away (FI_DISCARD).
///
/// # Safety
/// As [`recv`].
#[inline(always)]
pub unsafe fn recv_msg(ep: &Ep, op: &Incoming<'_>, flags: u64) -> Result<isize> {
    if flags & UNSUPPORTED_RX != 0 {
        return Err(Errno(FI_EOPNOTSUPP));
    }
    let active = ep.active()?;
    // What is claimed was matched already: neither tag nor source are looked at.
    let claimed = flags & (FI_CLAIM | FI_PEEK) == FI_CLAIM;
    let src = if claimed { None } else { source(ep, active, op.src)? };
    if flags & (FI_PEEK | FI_DISCARD) != 0 {
        return look(active, op, src, flags);
    }
    let recv = RecvOp {
        ep: active.id,
        protocol: op.protocol,
        tag: op.tag,
        ignore: op.ignore,
        src,
        iov: op.pieces.get(),
        context: op.context as usize,
        completion: active.rx_completes(flags),
        multi: flags & FI_MULTI_RECV != 0 && op.protocol == Protocol::Msg,
    };
    active.rt.with(|e, now| {
        // SAFETY: the program keeps the memory, and keeps away from it, until the completion; that is libfabric's
        // contract for every receive.
        unsafe { if claimed { e.recv_claimed(&recv, now) } else { e.recv(&recv, now) } }
    })??;
    Ok(0)
}

/// The sender that a receive is restricted to.
#[inline(always)]
fn source(ep: &Ep, active: &Active, src: fi_addr_t) -> Result<Option<EndpointId>> {
    if src == FI_ADDR_UNSPEC || ep.caps & FI_DIRECTED_RECV == 0 {
        return Ok(None);
    }
    active.av.endpoint(src).map(Some).ok_or(Errno(FI_EADDRNOTAVAIL))
}

/// FI_PEEK and FI_DISCARD. The answer comes through the queue, "nothing there" as an error entry with FI_ENOMSG, never as
/// the value of the call: MPIs wait for it there.
#[cold]
fn look(active: &Active, op: &Incoming<'_>, src: Option<EndpointId>, flags: u64) -> Result<isize> {
    let context = op.context as usize;
    if flags & FI_PEEK == 0 {
        // FI_CLAIM | FI_DISCARD: the reserved message is not wanted after all.
        if flags & FI_CLAIM == 0 {
            return Err(INVALID);
        }
        active.rt.with(|e, now| e.discard_claimed(active.id, op.protocol, context, now))??;
        return Ok(0);
    }
    let peek = PeekOp {
        ep: active.id,
        protocol: op.protocol,
        tag: op.tag,
        ignore: op.ignore,
        src,
        context,
        claim: flags & FI_CLAIM != 0,
        discard: flags & FI_DISCARD != 0,
    };
    // What has arrived in the meantime counts: a program that only looks, and reads no queue, must see it one day.
    active.rt.progress_with(|e, now| e.peek(&peek, now))??;
    Ok(0)
}
