//! `struct fid_mc`: groups that do collective operations together (`fi_join_collective`). Owns: what a program holds of a group; the
//! group itself is the engine's.

use crate::av_set::{AvSet, SET_ADDR};
use crate::ep::{Active, Ep};
use crate::eq;
use crate::errno::{BUSY, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::log;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use libc::{c_int, c_void};
use rerail_core::{GroupId, JoinOp, PostError};
use std::sync::{Arc, OnceLock, Weak};

/// Marks the address of a group.
const GROUP_ADDR: fi_addr_t = 1 << 62;

/// The address of a group.
pub fn addr_of(group: GroupId) -> fi_addr_t {
    GROUP_ADDR | fi_addr_t::from(group.0)
}

/// The group behind an address.
pub fn group_of(addr: fi_addr_t) -> Result<GroupId> {
    let number = u32::try_from(addr ^ GROUP_ADDR).map_err(|_| INVALID)?;
    Ok(GroupId(number))
}

/// A group, as one endpoint joined it.
#[repr(C)]
pub struct Mc {
    fid: fid_mc,
    group: GroupId,
    /// The endpoint, and the queue that the join is reported in; they may be closed before.
    active: Weak<OnceLock<Active>>,
    eq: Weak<eq::Shared>,
    /// What the event of the join is known by.
    ticket: usize,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Mc {
    const CLASS: usize = FI_CLASS_MC;
}

static FID_OPS: fi_ops = ops(close);

/// `fi_join_collective`: begins to make a group of the members of a set. `fi_join` for multicast is not there.
pub unsafe extern "C" fn join(
    ep: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        if flags & FI_COLLECTIVE == 0 {
            return Err(NOT_IMPLEMENTED);
        }
        // SAFETY: a handle of ours, and with FI_COLLECTIVE the address is this structure.
        let (ep, to): (&Ep, _) =
            unsafe { (object(ep)?, addr.cast::<fi_collective_addr>().as_ref().ok_or(INVALID)?) };
        let others = flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV);
        if others != 0 {
            return Err(log::refused("fi_join_collective", others, Errno(FI_EBADFLAGS)));
        }
        if ep.caps & FI_COLLECTIVE == 0 {
            return Err(Errno(FI_EOPNOTSUPP));
        }
        let active = ep.active()?;
        let eq = active.eq.as_ref().ok_or(Errno(FI_ENOEQ))?;
        // SAFETY: a handle of ours.
        let set = unsafe { object::<AvSet, _>(to.set) }?;
        if !std::ptr::eq(&raw const **set.av(), &raw const *active.av) || out.is_null() {
            return Err(INVALID);
        }
        // Whatever the group is part of, its members are those of the set.
        let known = |group| active.rt.inspect(|e| e.group_shape(group).is_some());
        if !matches!(to.coll_addr, FI_ADDR_NOTAVAIL | SET_ADDR) && !known(group_of(to.coll_addr)?)? {
            return Err(INVALID);
        }
        let members: Result<Vec<_>> =
            set.members().into_iter().map(|m| active.av.endpoint(m).ok_or(Errno(FI_EADDRNOTAVAIL))).collect();
        let members = members?;
        let cq = eq.joins(&active.rt)?;
        // SAFETY: checked for null above.
        unsafe { give(Mc::new(ep, eq, context), out) }?;
        // SAFETY: the handle was written a moment ago.
        let handle = unsafe { *out };
        let ticket = eq.expect(handle as usize, context as usize);
        let begun = active.rt.with(|e, now| {
            let op = JoinOp { ep: active.id, members: &members, cq, context: ticket };
            let group = e.join(&op, now).inspect_err(|why| {
                if let PostError::Invalid(what) = why {
                    log::complain(&format!("fi_join_collective: {what}"));
                }
            })?;
            // Written before the group can be reported as made.
            // SAFETY: ours, made above; nothing else has used it yet.
            unsafe {
                (*handle).fi_addr = addr_of(group);
                let mc = handle.cast::<Mc>();
                ((*mc).group, (*mc).ticket) = (group, ticket);
            }
            Ok::<_, PostError>(())
        });
        match begun.map_err(Errno::from).and_then(|begun| Ok(begun?)) {
            Ok(()) => Ok(0),
            Err(why) => {
                eq.forget(ticket);
                // SAFETY: as above.
                drop(unsafe { take_back::<Mc, _>(handle) }?);
                // SAFETY: the caller's place for the handle.
                unsafe { *out = std::ptr::null_mut() };
                Err(why)
            }
        }
    })
}

impl Mc {
    fn new(ep: &Ep, eq: &Arc<eq::Shared>, context: *mut c_void) -> Self {
        Self {
            fid: fid_mc { fid: head(FI_CLASS_MC, context, &FID_OPS), fi_addr: FI_ADDR_NOTAVAIL },
            group: GroupId(u32::MAX),
            active: ep.watch(),
            eq: Arc::downgrade(eq),
            ticket: 0,
        }
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Mc>(fid, || {
        // SAFETY: a handle of ours.
        let mc: &Mc = unsafe { object(fid) }?;
        if let Some(active) = mc.active.upgrade().as_ref().and_then(|active| active.get()) {
            // With the runtime it has gone already.
            if let Ok(Err(PostError::Again)) = active.rt.inspect(|e| e.leave(mc.group)) {
                return Err(BUSY);
            }
        }
        if let Some(eq) = mc.eq.upgrade() {
            eq.forget(mc.ticket);
        }
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Mc, _>(fid) }?);
        Ok(0)
    })
}
