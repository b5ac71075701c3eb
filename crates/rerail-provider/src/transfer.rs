//! From libfabric's many ways to send and receive to the engine's few operations. Owns: what operation flags mean, of one-sided
//! operations too ([`Posting`]).
//!
//! * Calls without flags use the endpoint's defaults; calls with flags (`fi_sendmsg` and its like) use those instead.
//! * A completion is written unless the queue is bound with FI_SELECTIVE_COMPLETION and the flags lack FI_COMPLETION. The
//!   `fi_inject` family never completes.
//! * FI_TRANSMIT_COMPLETE and FI_DELIVERY_COMPLETE both complete when the message has reached the peer's engine: a weaker
//!   "on the wire" would say nothing while rails may break. FI_MATCH_COMPLETE completes when a receive of the peer has taken the
//!   message. Without them a send completes when it is buffered. One-sided operations meet any level, because they complete only when
//!   they have taken effect.
//! * A flag that is refused leaves a line in the log ([`log::refused`]).

use crate::ep::{Active, Ep};
use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::log;
use crate::object::object;
use crate::pieces::Pieces;
use libc::c_void;
use rerail_core::{CompletionLevel, EndpointId, PeekOp, Protocol, RecvOp, SendOp};

/// Flags of sends that promise something which is not kept here.
const UNSUPPORTED_TX: u64 = FI_FENCE | FI_COMMIT_COMPLETE | FI_TRIGGER;
const UNSUPPORTED_RX: u64 = FI_TRIGGER;

/// How an operation that sends is posted: by which endpoint, with which flags, and whether it completes.
pub struct Posting<'a> {
    ep: &'a Ep,
    /// The endpoint, enabled.
    pub active: &'a Active,
    /// Flags of the operation.
    pub flags: u64,
    /// Whether success is reported through the queue.
    pub completion: bool,
}

impl<'a> Posting<'a> {
    /// With the endpoint's default flags.
    ///
    /// # Safety
    /// As for [`object`].
    #[inline(always)]
    pub unsafe fn by_default(ep: *mut fid_ep) -> Result<Self> {
        // SAFETY: the caller's promise.
        let ep: &Ep = unsafe { object(ep) }?;
        let active = ep.active()?;
        let flags = ep.tx_flags();
        Ok(Self { ep, active, flags, completion: active.tx_completes(flags) })
    }

    /// With flags of its own, which came with `call`.
    ///
    /// # Safety
    /// As for [`object`].
    pub unsafe fn flagged(call: &'static str, ep: *mut fid_ep, flags: u64) -> Result<Self> {
        if flags & UNSUPPORTED_TX != 0 {
            return Err(log::refused(call, flags & UNSUPPORTED_TX, Errno(FI_EOPNOTSUPP)));
        }
        // SAFETY: the caller's promise.
        let ep: &Ep = unsafe { object(ep) }?;
        let active = ep.active()?;
        Ok(Self { ep, active, flags, completion: active.tx_completes(flags) })
    }

    /// With flags beside the endpoint's default flags.
    ///
    /// # Safety
    /// As for [`object`].
    pub unsafe fn added(call: &'static str, ep: *mut fid_ep, flags: u64) -> Result<Self> {
        // SAFETY: the caller's promise, in both calls.
        unsafe { Self::flagged(call, ep, object::<Ep, _>(ep)?.tx_flags() & !UNSUPPORTED_TX | flags) }
    }

    /// The buffer is free when the call returns, and nothing ever completes.
    ///
    /// # Safety
    /// As for [`object`].
    #[inline(always)]
    pub unsafe fn injected(ep: *mut fid_ep) -> Result<Self> {
        // SAFETY: the caller's promise.
        let ep: &Ep = unsafe { object(ep) }?;
        Ok(Self { ep, active: ep.active()?, flags: FI_INJECT, completion: false })
    }

    /// Whether the buffer is free when the call returns.
    #[inline(always)]
    pub fn inject(&self) -> bool {
        self.flags & FI_INJECT != 0
    }

    /// Refuses more bytes than can be sent, or injected.
    #[inline(always)]
    pub fn check_bytes(&self, bytes: usize, inject: bool) -> Result<()> {
        let limit = if inject { self.ep.inject_bytes } else { MESSAGE_BYTES_MAX };
        if bytes > limit { Err(Errno(FI_EMSGSIZE)) } else { Ok(()) }
    }

    /// Refuses an operation that the endpoint was not opened for.
    #[inline(always)]
    pub fn check_caps(&self, caps: u64) -> Result<()> {
        if self.ep.caps & caps == caps { Ok(()) } else { Err(Errno(FI_EOPNOTSUPP)) }
    }

    /// The peer behind an address.
    #[inline(always)]
    pub fn peer(&self, addr: fi_addr_t) -> Result<EndpointId> {
        self.active.av.endpoint(addr).ok_or(Errno(FI_EADDRNOTAVAIL))
    }
}

/// When a send with these flags completes: the strongest promise counts.
#[inline(always)]
fn level(flags: u64) -> CompletionLevel {
    if flags & (FI_MATCH_COMPLETE | FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE) == 0 {
        CompletionLevel::Buffered
    } else if flags & FI_MATCH_COMPLETE == 0 {
        CompletionLevel::Delivered
    } else {
        CompletionLevel::Matched
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

/// Sends.
///
/// # Safety
/// The pieces stay valid until the completion, as for `fi_send`; when it is injected, during the call.
#[inline(always)]
pub unsafe fn send(how: &Posting<'_>, op: &Outgoing<'_>) -> Result<isize> {
    how.check_bytes(op.pieces.bytes(), how.inject())?;
    let send = SendOp {
        ep: how.active.id,
        dest: how.peer(op.dest)?,
        protocol: op.protocol,
        tag: op.tag,
        data: op.data,
        iov: op.pieces.get(),
        context: op.context as usize,
        completion: how.completion,
        inject: how.inject(),
        level: level(how.flags),
    };
    let bytes = op.pieces.bytes();
    how.active.rt.post_message(send.dest.peer, bytes, |e, now| {
        // SAFETY: the program keeps the memory until the completion; that is libfabric's contract for every send.
        unsafe { e.send(&send, now) }
    })??;
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
    unsafe { recv_msg("a receive", ep, op, ep.rx_flags()) }
}

/// A receive with flags of its own, which came with `call`: posts a buffer, looks for a message (FI_PEEK), receives one that was reserved
/// (FI_CLAIM), or throws one away (FI_DISCARD).
///
/// # Safety
/// As [`recv`].
#[inline(always)]
pub unsafe fn recv_msg(call: &'static str, ep: &Ep, op: &Incoming<'_>, flags: u64) -> Result<isize> {
    if flags & UNSUPPORTED_RX != 0 {
        return Err(log::refused(call, flags & UNSUPPORTED_RX, Errno(FI_EOPNOTSUPP)));
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
    // a multi-receive waits for nothing in particular
    let bytes = if recv.multi { 0 } else { op.pieces.bytes() };
    active.rt.post_receive(bytes, |e, now| {
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
