//! `struct fi_ops_collective`: collective operations. Each call gathers its arguments for one operation of the engine, which carries it
//! out ([`rerail_core`]: `engine/collective.rs`); it completes in the queue of the endpoint's sends.
//!
//! fi_collective(3) leaves two things open. `count` is here the number of values in one member's part, as with libfabric's `tcp`: the
//! result of an all-gather, or the source of a scatter, has as many for every member. A root is an address of the vector, as the manual
//! says (`tcp` takes it for a rank; both are the same where the set is the whole vector).

use crate::domain::Domain;
use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::limits::MESSAGE_BYTES_MAX;
use crate::log;
use crate::mc::group_of;
use crate::object::{guard, object, refuse};
use crate::transfer::Posting;
use libc::{c_int, c_void};
use rerail_core::atomic::{op, size_of as engine_size_of};
use rerail_core::{AtomicKind, CollectiveKind, CollectiveOp, IoVec, MEMBERS_MAX, reduction};
use std::ptr::null_mut;

/// The calls.
pub static OPS: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(exchange),
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    reduce_scatter: Some(reduce_scatter),
    reduce: Some(reduce),
    scatter: Some(scatter),
    gather: Some(gather),
    msg: Some(msg),
    barrier2: Some(barrier2),
};

type Buf = *mut c_void;

/// Values of a type, and how they are combined, if they are.
#[derive(Clone, Copy)]
struct Values {
    datatype: u8,
    op: u8,
    count: usize,
    /// Bytes of one.
    size: usize,
}

impl Values {
    /// None at all.
    const NONE: Values = Values { datatype: 0, op: 0, count: 0, size: 1 };

    /// Values that only move.
    fn moved(datatype: fi_datatype, count: usize) -> Result<Self> {
        let number = u8::try_from(datatype).ok();
        let known = number.and_then(|d| Some((d, engine_size_of(d, op::ATOMIC_WRITE, AtomicKind::Update)?)));
        let (datatype, size) = known.ok_or(Errno(FI_EOPNOTSUPP))?;
        Ok(Self { datatype, op: 0, count, size })
    }

    /// Values that are combined.
    fn combined(datatype: fi_datatype, op: fi_op, count: usize) -> Result<Self> {
        let numbers = u8::try_from(datatype).ok().zip(u8::try_from(op).ok());
        let known = numbers.and_then(|(d, o)| Some((d, o, reduction(d, o)?)));
        let (datatype, op, size) = known.ok_or(Errno(FI_EOPNOTSUPP))?;
        Ok(Self { datatype, op, count, size })
    }
}

/// The operands of a call, its group, and its flags.
struct Call {
    input: *const c_void,
    result: Buf,
    group: fi_addr_t,
    flags: u64,
    context: Buf,
}

/// Posts an operation; `kind` makes it from the rank of the root, or from 0 where there is none.
///
/// # Safety
/// The memory is as libfabric documents the call, until the completion.
unsafe fn post(
    ep: *mut fid_ep,
    call: &Call,
    values: Values,
    root: Option<fi_addr_t>,
    kind: impl FnOnce(usize) -> CollectiveKind,
) -> Result<isize> {
    // SAFETY: the caller's promise.
    let how = unsafe { Posting::added("a collective operation", ep, call.flags) }?;
    how.check_caps(FI_COLLECTIVE)?;
    let group = group_of(call.group)?;
    let root = root.map(|root| how.peer(root)).transpose()?;
    let bytes = values.count.checked_mul(values.size).filter(|b| *b <= MESSAGE_BYTES_MAX);
    let bytes = bytes.ok_or(Errno(FI_EMSGSIZE))?;
    how.active.rt.with(|e, now| {
        let (rank, members) = e.group_shape(group).ok_or(INVALID)?;
        let root = match root {
            Some(root) => e.rank_in(group, root).ok_or(INVALID)?,
            None => 0,
        };
        let kind = kind(root);
        let (gives, takes) = kind.memory(rank, members, bytes);
        if (gives > 0 && call.input.is_null()) || (takes > 0 && call.result.is_null()) {
            return Err(INVALID);
        }
        let op = CollectiveOp {
            group,
            kind,
            bytes,
            datatype: values.datatype,
            op: values.op,
            input: IoVec::new(call.input.cast_mut().cast(), gives),
            result: IoVec::new(call.result.cast(), takes),
            context: call.context as usize,
            completion: how.completion,
        };
        // SAFETY: the program keeps the memory until the completion; that is libfabric's contract for every operation.
        Ok(unsafe { e.collective(&op, now) }?)
    })??;
    Ok(0)
}

unsafe extern "C" fn barrier(ep: *mut fid_ep, group: fi_addr_t, context: Buf) -> isize {
    // SAFETY: the same arguments.
    unsafe { barrier2(ep, group, 0, context) }
}

unsafe extern "C" fn barrier2(ep: *mut fid_ep, group: fi_addr_t, flags: u64, context: Buf) -> isize {
    let call = Call { input: null_mut(), result: null_mut(), group, flags, context };
    // SAFETY: a handle of ours, and memory as libfabric documents the call; the same in all calls below.
    guard(|| unsafe { post(ep, &call, Values::NONE, None, |_| CollectiveKind::Barrier) })
}

unsafe extern "C" fn broadcast(
    ep: *mut fid_ep,
    buf: Buf,
    count: usize,
    _desc: Buf,
    group: fi_addr_t,
    root: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: Buf,
) -> isize {
    let call = Call { input: buf, result: buf, group, flags, context };
    // SAFETY: see `barrier2`.
    guard(|| unsafe {
        let values = Values::moved(datatype, count)?;
        post(ep, &call, values, Some(root), |root| CollectiveKind::Broadcast { root })
    })
}

unsafe extern "C" fn allreduce(
    ep: *mut fid_ep,
    input: *const c_void,
    count: usize,
    _desc: Buf,
    result: Buf,
    _result_desc: Buf,
    group: fi_addr_t,
    datatype: fi_datatype,
    op: fi_op,
    flags: u64,
    context: Buf,
) -> isize {
    let call = Call { input, result, group, flags, context };
    // SAFETY: see `barrier2`.
    guard(|| unsafe {
        let values = Values::combined(datatype, op, count)?;
        post(ep, &call, values, None, |_| CollectiveKind::AllReduce)
    })
}

unsafe extern "C" fn allgather(
    ep: *mut fid_ep,
    input: *const c_void,
    count: usize,
    _desc: Buf,
    result: Buf,
    _result_desc: Buf,
    group: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: Buf,
) -> isize {
    let call = Call { input, result, group, flags, context };
    // SAFETY: see `barrier2`.
    guard(|| unsafe {
        let values = Values::moved(datatype, count)?;
        post(ep, &call, values, None, |_| CollectiveKind::AllGather)
    })
}

unsafe extern "C" fn reduce(
    ep: *mut fid_ep,
    input: *const c_void,
    count: usize,
    _desc: Buf,
    result: Buf,
    _result_desc: Buf,
    group: fi_addr_t,
    root: fi_addr_t,
    datatype: fi_datatype,
    op: fi_op,
    flags: u64,
    context: Buf,
) -> isize {
    let call = Call { input, result, group, flags, context };
    // SAFETY: see `barrier2`.
    guard(|| unsafe {
        let values = Values::combined(datatype, op, count)?;
        post(ep, &call, values, Some(root), |root| CollectiveKind::Reduce { root })
    })
}

unsafe extern "C" fn scatter(
    ep: *mut fid_ep,
    input: *const c_void,
    count: usize,
    _desc: Buf,
    result: Buf,
    _result_desc: Buf,
    group: fi_addr_t,
    root: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: Buf,
) -> isize {
    let call = Call { input, result, group, flags, context };
    // SAFETY: see `barrier2`.
    guard(|| unsafe {
        let values = Values::moved(datatype, count)?;
        post(ep, &call, values, Some(root), |root| CollectiveKind::Scatter { root })
    })
}

unsafe extern "C" fn gather(
    ep: *mut fid_ep,
    input: *const c_void,
    count: usize,
    _desc: Buf,
    result: Buf,
    _result_desc: Buf,
    group: fi_addr_t,
    root: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: Buf,
) -> isize {
    let call = Call { input, result, group, flags, context };
    // SAFETY: see `barrier2`.
    guard(|| unsafe {
        let values = Values::moved(datatype, count)?;
        post(ep, &call, values, Some(root), |root| CollectiveKind::Gather { root })
    })
}

/// `fi_query_collective`: what there is, and its limits.
pub unsafe extern "C" fn query(
    domain: *mut fid_domain,
    collective: fi_collective_op,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and the caller's structure.
        let (_, attr): (&Domain, _) = unsafe { (object(domain)?, attr.as_mut().ok_or(INVALID)?) };
        if attr.mode != 0 {
            return Err(INVALID);
        }
        let values = match collective {
            _ if flags != 0 => {
                return Err(log::refused("fi_query_collective", flags, Errno(FI_EOPNOTSUPP)));
            }
            FI_BARRIER => Values::NONE,
            FI_BROADCAST | FI_ALLGATHER | FI_SCATTER | FI_GATHER => Values::moved(attr.datatype, 0)?,
            FI_ALLREDUCE | FI_REDUCE => Values::combined(attr.datatype, attr.op, 0)?,
            _ => return Err(Errno(FI_EOPNOTSUPP)),
        };
        attr.datatype_attr = match collective {
            FI_BARRIER => fi_atomic_attr { count: 0, size: 0 },
            _ => fi_atomic_attr { count: MESSAGE_BYTES_MAX / values.size, size: values.size },
        };
        attr.max_members = MEMBERS_MAX;
        Ok(0)
    })
}

refuse! {
    fn exchange(*mut fid_ep, *const c_void, usize, Buf, Buf, Buf, fi_addr_t, fi_datatype, u64, Buf) -> isize = FI_ENOSYS;
    fn reduce_scatter(*mut fid_ep, *const c_void, usize, Buf, Buf, Buf, fi_addr_t, fi_datatype, fi_op, u64, Buf) -> isize = FI_ENOSYS;
    fn msg(*mut fid_ep, *const fi_msg_collective, *mut fi_ioc, *mut Buf, usize, u64) -> isize = FI_ENOSYS;
}
