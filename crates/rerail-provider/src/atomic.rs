//! `struct fi_ops_atomic`: atomic operations on remote memory. Each call gathers its arguments for one operation of the engine,
//! which knows what goes together ([`rerail_core::atomic`]) and carries it out in the peer's process. Operations of one endpoint
//! on one peer take effect in the order in which they were posted.

use crate::ep::Ep;
use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::log;
use crate::object::{guard, object};
use crate::pieces::{Pieces, Remote};
use crate::transfer::Posting;
use libc::{c_int, c_void};
use rerail_core::atomic::{ATOMIC_BYTES_MAX, size_of as engine_size_of};
use rerail_core::{AtomicKind, AtomicOp};
use std::ptr::null_mut;

/// The calls.
pub static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

type Desc = *mut *mut c_void;

/// Flags that say nothing here: no data comes with an atomic operation, and none works on tagged messages.
const UNSUPPORTED: u64 = FI_REMOTE_CQ_DATA | FI_TAGGED;

/// What is to be done.
#[derive(Clone, Copy)]
pub struct Operation {
    kind: AtomicKind,
    datatype: u8,
    op: u8,
    /// Bytes of one value.
    pub size: usize,
}

impl Operation {
    /// An operation on values of a datatype.
    ///
    /// # Errors
    /// -FI_EOPNOTSUPP when they do not go together.
    pub fn new(kind: AtomicKind, datatype: fi_datatype, op: fi_op) -> Result<Self> {
        let known = || {
            let (datatype, op) = (u8::try_from(datatype).ok()?, u8::try_from(op).ok()?);
            Some(Self { kind, datatype, op, size: engine_size_of(datatype, op, kind)? })
        };
        known().ok_or(Errno(FI_EOPNOTSUPP))
    }

    /// Most values of one operation.
    pub fn values_max(&self) -> usize {
        ATOMIC_BYTES_MAX / self.size
    }

    /// Values at one place here.
    fn local(&self, buf: *const c_void, count: usize) -> Pieces {
        Pieces::one(buf, count.saturating_mul(self.size))
    }

    /// Operands at one place. A read has none, whatever the program points to.
    fn operand(&self, buf: *const c_void, count: usize) -> Pieces {
        if self.reads_only() { Pieces::none() } else { self.local(buf, count) }
    }

    /// Operands at several places.
    ///
    /// # Safety
    /// As for [`Pieces::from_c`].
    unsafe fn operands(&self, ioc: *const fi_ioc, count: usize) -> Result<Pieces> {
        // SAFETY: the caller's promise.
        if self.reads_only() { Ok(Pieces::none()) } else { unsafe { self.locals(ioc, count) } }
    }

    /// Values at several places here.
    ///
    /// # Safety
    /// As for [`Pieces::from_c`].
    unsafe fn locals(&self, ioc: *const fi_ioc, count: usize) -> Result<Pieces> {
        // SAFETY: the caller's promise.
        unsafe { Pieces::from_values(ioc, count, self.size) }
    }

    fn reads_only(&self) -> bool {
        fi_op::from(self.op) == FI_ATOMIC_READ
    }
}

/// What it works on.
struct Operands<'a> {
    operand: &'a Pieces,
    compare: &'a Pieces,
    result: &'a Pieces,
    peer: fi_addr_t,
    remote: &'a Remote,
    context: *mut c_void,
}

/// Posts it.
///
/// # Safety
/// The results stay valid and unshared until the completion, the other pieces are valid during the call.
unsafe fn post(how: &Posting<'_>, what: Operation, on: &Operands<'_>) -> Result<isize> {
    how.check_caps(FI_ATOMIC)?;
    if how.flags & UNSUPPORTED != 0 {
        let bits = how.flags & UNSUPPORTED;
        return Err(log::refused("an atomic operation", bits, Errno(FI_EOPNOTSUPP)));
    }
    let bytes = on.remote.bytes();
    if bytes > ATOMIC_BYTES_MAX {
        return Err(Errno(FI_EMSGSIZE));
    }
    let inject = how.inject() && what.kind == AtomicKind::Update;
    how.check_bytes(bytes, inject)?;
    let if_any = |there: bool| if there { bytes } else { 0 };
    if on.operand.bytes() != if_any(!what.reads_only())
        || on.compare.bytes() != if_any(what.kind == AtomicKind::Compare)
        || on.result.bytes() != if_any(what.kind != AtomicKind::Update)
    {
        return Err(INVALID);
    }
    let op = AtomicOp {
        ep: how.active.id,
        dest: how.peer(on.peer)?,
        kind: what.kind,
        datatype: what.datatype,
        op: what.op,
        operand: on.operand.get(),
        compare: on.compare.get(),
        result: on.result.get(),
        remote: on.remote.get(),
        context: on.context as usize,
        completion: how.completion,
        inject,
    };
    // SAFETY: the program keeps the memory until the completion; that is libfabric's contract for every operation.
    how.active.rt.with(|e, now| unsafe { e.atomic(&op, now) })??;
    Ok(0)
}

/// Operations that give nothing back.
///
/// # Safety
/// As for [`post`].
unsafe fn update(
    how: &Posting<'_>,
    what: Operation,
    operand: &Pieces,
    peer: fi_addr_t,
    remote: &Remote,
    context: *mut c_void,
) -> Result<isize> {
    let none = Pieces::none();
    let on = Operands { operand, compare: &none, result: &none, peer, remote, context };
    // SAFETY: the caller's promise.
    unsafe { post(how, what, &on) }
}

/// Operations that give the former values back.
///
/// # Safety
/// As for [`post`].
unsafe fn fetch(
    how: &Posting<'_>,
    what: Operation,
    operand: &Pieces,
    result: &Pieces,
    peer: fi_addr_t,
    remote: &Remote,
    context: *mut c_void,
) -> Result<isize> {
    let on = Operands { operand, compare: &Pieces::none(), result, peer, remote, context };
    // SAFETY: the caller's promise.
    unsafe { post(how, what, &on) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let what = Operation::new(AtomicKind::Update, datatype, op)?;
        let operand = what.operand(buf, count);
        let remote = Remote::one(addr, operand.bytes(), key);
        // SAFETY: a handle of ours, and memory as libfabric documents the call; the same in all calls below.
        unsafe { update(&Posting::by_default(ep)?, what, &operand, peer, &remote, context) }
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: Desc,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `write`.
    guard(|| unsafe {
        let what = Operation::new(AtomicKind::Update, datatype, op)?;
        let operand = what.operands(iov, count)?;
        let remote = Remote::one(addr, operand.bytes(), key);
        update(&Posting::by_default(ep)?, what, &operand, peer, &remote, context)
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: see `write`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let what = Operation::new(AtomicKind::Update, m.datatype, m.op)?;
        let operand = what.operands(m.msg_iov, m.iov_count)?;
        let remote = Remote::from_values(m.rma_iov, m.rma_iov_count, what.size)?;
        update(&Posting::flagged("fi_atomicmsg", ep, flags)?, what, &operand, m.addr, &remote, m.context)
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    guard(|| {
        let what = Operation::new(AtomicKind::Update, datatype, op)?;
        let operand = what.operand(buf, count);
        let remote = Remote::one(addr, operand.bytes(), key);
        // SAFETY: see `write`.
        unsafe { update(&Posting::injected(ep)?, what, &operand, peer, &remote, null_mut()) }
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let what = Operation::new(AtomicKind::Fetch, datatype, op)?;
        let (operand, result) = (what.operand(buf, count), what.local(result, count));
        let remote = Remote::one(addr, result.bytes(), key);
        // SAFETY: see `write`.
        unsafe { fetch(&Posting::by_default(ep)?, what, &operand, &result, peer, &remote, context) }
    })
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: Desc,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `write`.
    guard(|| unsafe {
        let what = Operation::new(AtomicKind::Fetch, datatype, op)?;
        let (operand, result) = (what.operands(iov, count)?, what.locals(resultv, result_count)?);
        let remote = Remote::one(addr, result.bytes(), key);
        fetch(&Posting::by_default(ep)?, what, &operand, &result, peer, &remote, context)
    })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: see `write`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let what = Operation::new(AtomicKind::Fetch, m.datatype, m.op)?;
        let operand = what.operands(m.msg_iov, m.iov_count)?;
        let result = what.locals(resultv, result_count)?;
        let remote = Remote::from_values(m.rma_iov, m.rma_iov_count, what.size)?;
        fetch(
            &Posting::flagged("fi_fetch_atomicmsg", ep, flags)?,
            what,
            &operand,
            &result,
            m.addr,
            &remote,
            m.context,
        )
    })
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let what = Operation::new(AtomicKind::Compare, datatype, op)?;
        let on = Operands {
            operand: &what.operand(buf, count),
            compare: &what.local(compare, count),
            result: &what.local(result, count),
            peer,
            remote: &Remote::one(addr, count.saturating_mul(what.size), key),
            context,
        };
        // SAFETY: see `write`.
        unsafe { post(&Posting::by_default(ep)?, what, &on) }
    })
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: Desc,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: Desc,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: see `write`.
    guard(|| unsafe {
        let what = Operation::new(AtomicKind::Compare, datatype, op)?;
        let result = what.locals(resultv, result_count)?;
        let on = Operands {
            operand: &what.operands(iov, count)?,
            compare: &what.locals(comparev, compare_count)?,
            result: &result,
            peer,
            remote: &Remote::one(addr, result.bytes(), key),
            context,
        };
        post(&Posting::by_default(ep)?, what, &on)
    })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: Desc,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: Desc,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: see `write`.
    guard(|| unsafe {
        let m = msg.as_ref().ok_or(INVALID)?;
        let what = Operation::new(AtomicKind::Compare, m.datatype, m.op)?;
        let on = Operands {
            operand: &what.operands(m.msg_iov, m.iov_count)?,
            compare: &what.locals(comparev, compare_count)?,
            result: &what.locals(resultv, result_count)?,
            peer: m.addr,
            remote: &Remote::from_values(m.rma_iov, m.rma_iov_count, what.size)?,
            context: m.context,
        };
        post(&Posting::flagged("fi_compare_atomicmsg", ep, flags)?, what, &on)
    })
}

/// Says how many values one operation takes.
///
/// # Safety
/// `ep` is a handle of ours, `count` null or the caller's place for the answer.
unsafe fn valid(
    ep: *mut fid_ep,
    kind: AtomicKind,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (ep, count): (&Ep, _) = unsafe { (object(ep)?, count.as_mut().ok_or(INVALID)?) };
        if ep.caps & FI_ATOMIC == 0 {
            return Err(Errno(FI_EOPNOTSUPP));
        }
        *count = Operation::new(kind, datatype, op)?.values_max();
        Ok(0)
    })
}

unsafe extern "C" fn writevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same arguments; the same below.
    unsafe { valid(ep, AtomicKind::Update, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: see `writevalid`.
    unsafe { valid(ep, AtomicKind::Fetch, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: see `writevalid`.
    unsafe { valid(ep, AtomicKind::Compare, datatype, op, count) }
}

/// `fi_query_atomic`: as the three `*valid` calls, before there is an endpoint.
pub unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    guard(|| {
        let kind = match flags {
            0 => AtomicKind::Update,
            FI_FETCH_ATOMIC => AtomicKind::Fetch,
            FI_COMPARE_ATOMIC => AtomicKind::Compare,
            _ => return Err(log::refused("fi_query_atomic", flags, Errno(FI_EOPNOTSUPP))),
        };
        // SAFETY: a handle of ours, and the caller's place for the answer.
        let (_, attr): (&crate::domain::Domain, _) =
            unsafe { (object(domain)?, attr.as_mut().ok_or(INVALID)?) };
        let what = Operation::new(kind, datatype, op)?;
        (attr.count, attr.size) = (what.values_max(), what.size);
        Ok(0)
    })
}
