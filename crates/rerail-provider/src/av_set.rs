//! `struct fid_av_set`: ordered subsets of an address vector, from which groups for collective operations are made
//! (fi_av_set(3)). Owns: their members. Nothing here communicates.

use crate::av::{self, Av};
use crate::errno::{Errno, INVALID, Result};
use crate::ffi::*;
use crate::log;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use rerail_core::MEMBERS_MAX;
use std::sync::Arc;

/// Address of every set: a join names its members by the set itself.
pub const SET_ADDR: fi_addr_t = 1 << 61;
/// Collectives that are not there, as a set asks for them.
const UNSUPPORTED: u64 = FI_ALLTOALL_SET | FI_REDUCE_SCATTER_SET;
const SUPPORTED: u64 = FI_UNIVERSE
    | FI_BARRIER_SET
    | FI_BROADCAST_SET
    | FI_ALLREDUCE_SET
    | FI_ALLGATHER_SET
    | FI_REDUCE_SET
    | FI_SCATTER_SET
    | FI_GATHER_SET;

/// A set.
#[repr(C)]
pub struct AvSet {
    fid: fid_av_set,
    av: Arc<av::Shared>,
    /// Most members.
    room: usize,
    members: Mutex<Vec<fi_addr_t>>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for AvSet {
    const CLASS: usize = FI_CLASS_AV_SET;
}

impl AvSet {
    /// The address vector of the members.
    pub fn av(&self) -> &Arc<av::Shared> {
        &self.av
    }

    /// The members, in order.
    pub fn members(&self) -> Vec<fi_addr_t> {
        self.members.lock().clone()
    }

    fn insert(&self, addr: fi_addr_t) -> Result<c_int> {
        let mut members = self.members.lock();
        if !self.av.holds(addr) || members.contains(&addr) {
            return Err(INVALID);
        }
        if members.len() >= self.room {
            return Err(Errno(FI_ENOMEM));
        }
        members.push(addr);
        Ok(0)
    }

    fn remove(&self, addr: fi_addr_t) -> Result<c_int> {
        let mut members = self.members.lock();
        let at = members.iter().position(|m| *m == addr).ok_or(INVALID)?;
        members.remove(at);
        Ok(0)
    }
}

static FID_OPS: fi_ops = ops(close);
static OPS: fi_ops_av_set = fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: Some(unite),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(addr),
};

/// `fi_av_set`.
pub unsafe extern "C" fn open(
    av: *mut fid_av,
    attr: *mut fi_av_set_attr,
    out: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and the caller's attributes.
        let (av, attr) = unsafe { (object::<Av, _>(av)?.shared(), attr.as_ref().ok_or(INVALID)?) };
        // A key comes from a manager of groups in the network, and there is none.
        if attr.comm_key_size != 0 {
            return Err(Errno(FI_EOPNOTSUPP));
        }
        if attr.flags & UNSUPPORTED != 0 {
            return Err(log::refused("fi_av_set", attr.flags & UNSUPPORTED, Errno(FI_EOPNOTSUPP)));
        }
        if attr.flags & !SUPPORTED != 0 {
            return Err(log::refused("fi_av_set", attr.flags & !SUPPORTED, Errno(FI_EBADFLAGS)));
        }
        let all = attr.flags & FI_UNIVERSE != 0;
        let members = match (attr.start_addr, attr.end_addr) {
            _ if all => av.within(0, u64::MAX - 1, 1),
            (FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL) => Vec::new(),
            (FI_ADDR_NOTAVAIL, _) | (_, FI_ADDR_NOTAVAIL) => return Err(INVALID),
            (start, end) if start > end || (attr.stride == 0 && start < end) => return Err(INVALID),
            (start, end) => av.within(start, end, attr.stride.max(1)),
        };
        let room = if attr.count == 0 { MEMBERS_MAX } else { attr.count.min(MEMBERS_MAX) };
        if members.len() > room {
            return Err(INVALID);
        }
        let set = AvSet {
            fid: fid_av_set {
                fid: head(FI_CLASS_AV_SET, context, &FID_OPS),
                ops: (&raw const OPS).cast_mut(),
            },
            av,
            room,
            members: Mutex::new(members),
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(set, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<AvSet>(fid, || {
        // SAFETY: a handle of ours, which the caller gives up; groups that were made from it keep nothing of it.
        drop(unsafe { take_back::<AvSet, _>(fid) }?);
        Ok(0)
    })
}

/// Changes the members of one set by those of another, of the same vector.
///
/// # Safety
/// Both are null or handles of ours.
unsafe fn change(
    dst: *mut fid_av_set,
    src: *const fid_av_set,
    how: impl FnOnce(&mut Vec<fi_addr_t>, &[fi_addr_t]),
) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let (dst, src): (&AvSet, &AvSet) = unsafe { (object(dst)?, object(src)?) };
    if !Arc::ptr_eq(&dst.av, &src.av) {
        return Err(INVALID);
    }
    // One after the other: both may be the same.
    let with = src.members();
    let mut members = dst.members.lock();
    let mut changed = members.clone();
    how(&mut changed, &with);
    if changed.len() > dst.room {
        return Err(Errno(FI_ENOMEM));
    }
    *members = changed;
    Ok(0)
}

unsafe extern "C" fn unite(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    let add = |members: &mut Vec<fi_addr_t>, with: &[fi_addr_t]| {
        let new: Vec<_> = with.iter().copied().filter(|m| !members.contains(m)).collect();
        members.extend(new);
    };
    // SAFETY: handles of ours; the same in all calls below.
    guard(|| unsafe { change(dst, src, add) })
}

unsafe extern "C" fn intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: see `unite`.
    guard(|| unsafe { change(dst, src, |members, with| members.retain(|m| with.contains(m))) })
}

unsafe extern "C" fn diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: see `unite`.
    guard(|| unsafe { change(dst, src, |members, with| members.retain(|m| !with.contains(m))) })
}

unsafe extern "C" fn insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    // SAFETY: see `unite`.
    guard(|| unsafe { object::<AvSet, _>(set) }?.insert(addr))
}

unsafe extern "C" fn remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    // SAFETY: see `unite`.
    guard(|| unsafe { object::<AvSet, _>(set) }?.remove(addr))
}

unsafe extern "C" fn addr(set: *mut fid_av_set, out: *mut fi_addr_t) -> c_int {
    guard(|| {
        // SAFETY: see `unite`, and the caller's place for the address.
        let (_, out): (&AvSet, _) = unsafe { (object(set)?, out.as_mut().ok_or(INVALID)?) };
        *out = SET_ADDR;
        Ok(0)
    })
}
