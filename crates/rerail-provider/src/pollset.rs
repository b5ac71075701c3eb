//! `struct fid_poll`: poll sets, with which a program looks at many queues and counters in one call.

use crate::domain;
use crate::errno::{Errno, INVALID};
use crate::ffi::*;
use crate::log;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::{cntr, cq};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use std::sync::Arc;

enum Watched {
    Queue(Arc<cq::Shared>),
    /// With its value when it was reported last.
    Counter(Arc<cntr::Shared>, cntr::Value),
}

/// A queue or counter of a set.
struct Member {
    /// Its handle, as a number.
    fid: usize,
    /// The context it was opened with: what the program gets.
    context: usize,
    watched: Watched,
}

#[repr(C)]
struct PollSet {
    fid: fid_poll,
    _domain: Arc<domain::Shared>,
    members: Mutex<Vec<Member>>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for PollSet {
    const CLASS: usize = FI_CLASS_POLL;
}

static FID_OPS: fi_ops = ops(close);
static OPS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(add),
    poll_del: Some(del),
};

/// `fi_poll_open`.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_poll_attr,
    out: *mut *mut fid_poll,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let domain = unsafe { object::<domain::Domain, _>(domain) }?.shared();
        // SAFETY: null or the caller's attributes.
        if let Some(a) = unsafe { attr.as_ref() }.filter(|a| a.flags != 0) {
            return Err(log::refused("fi_poll_open", a.flags, Errno(FI_EBADFLAGS)));
        }
        let set = PollSet {
            fid: fid_poll {
                fid: head(FI_CLASS_POLL, std::ptr::null_mut(), &FID_OPS),
                ops: (&raw const OPS).cast_mut(),
            },
            _domain: domain,
            members: Mutex::default(),
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(set, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<PollSet>(fid, || {
        // SAFETY: a handle of ours, given up.
        drop(unsafe { take_back::<PollSet, _>(fid) }?);
        Ok(0)
    })
}

unsafe extern "C" fn add(set: *mut fid_poll, member: *mut fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (set, head): (&PollSet, _) = unsafe { (object(set)?, member.as_ref().ok_or(INVALID)?) };
        if flags != 0 {
            return Err(log::refused("fi_poll_add", flags, Errno(FI_EBADFLAGS)));
        }
        let watched = match head.fclass {
            // SAFETY: the class says so.
            FI_CLASS_CQ => Watched::Queue(unsafe { object::<cq::Cq, _>(member) }?.shared()),
            FI_CLASS_CNTR => {
                // SAFETY: as above.
                let counter = unsafe { object::<cntr::Cntr, _>(member) }?.shared();
                Watched::Counter(counter, cntr::Value::default())
            }
            _ => return Err(INVALID),
        };
        let mut members = set.members.lock();
        if members.iter().all(|m| m.fid != member as usize) {
            members.push(Member { fid: member as usize, context: head.context as usize, watched });
        }
        Ok(0)
    })
}

unsafe extern "C" fn del(set: *mut fid_poll, member: *mut fid, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let set: &PollSet = unsafe { object(set) }?;
        let mut members = set.members.lock();
        let at = members.iter().position(|m| m.fid == member as usize).ok_or(INVALID)?;
        members.swap_remove(at);
        Ok(0)
    })
}

/// The contexts of those that have something.
unsafe extern "C" fn poll(set: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let set: &PollSet = unsafe { object(set) }?;
        let room = usize::try_from(count).map_err(|_| INVALID)?;
        if contexts.is_null() && room > 0 {
            return Err(INVALID);
        }
        let mut found = 0;
        for member in set.members.lock().iter_mut() {
            let some = match &mut member.watched {
                Watched::Queue(cq) => cq.has_some()?,
                // A change without room for it counts as not reported.
                Watched::Counter(counter, reported) if found < room => {
                    let now = counter.progress_and_look();
                    std::mem::replace(reported, now) != now
                }
                Watched::Counter(..) => false,
            };
            if some && found < room {
                // SAFETY: within the caller's array.
                unsafe { contexts.add(found).write(member.context as *mut c_void) };
                found += 1;
            }
        }
        Ok(found as c_int)
    })
}
