//! An adapter of tests, which keeps what is posted to it. Owns: what was posted in this thread.

#[cfg(test)]
pub mod node;

use crate::abi::*;
use crate::adapter::Adapter;
#[cfg(test)]
use crate::completions::Completions;
use crate::lane::{Lane, LaneNumber, Rings, Shape};
use crate::library::Library;
use crate::message::{HEADER_BYTES, Header};
use crate::registrations::Registrations;
use crate::shared::Pool;
use crate::work::SHARED;
use rerail_rail::{Kind, RailId};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// What was posted to the adapter of this test.
#[derive(Debug, PartialEq)]
pub enum Work {
    /// The slot.
    Receive(u64),
    /// The header, the bytes behind it, whether its end is reported, its number.
    Send(Header, Vec<u8>, bool, u32),
    /// The bytes, whether its end is reported, its number.
    Datagram(Vec<u8>, bool, u32),
    /// Where to, how many bytes, whether its end is reported, its number.
    Write(u64, u32, usize, bool, u32),
    /// Into the peer's ring: where to, the bytes, whether its end is reported, its number.
    Slot(u64, Vec<u8>, bool, u32),
}

/// Calls in which something was posted.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    pub sends: usize,
    pub receives: usize,
}

thread_local! {
    static POSTED: RefCell<Vec<Work>> = const { RefCell::new(Vec::new()) };
    /// How many requests the adapter takes before it refuses; `None`: all.
    static REFUSES_AFTER: RefCell<Option<usize>> = const { RefCell::new(None) };
    /// Calls for sends and for receives.
    static CALLS: RefCell<(usize, usize)> = const { RefCell::new((0, 0)) };
    static REPORTED: RefCell<Vec<ibv_wc>> = const { RefCell::new(Vec::new()) };
    /// The adapter places in order.
    static IN_ORDER: RefCell<bool> = const { RefCell::new(false) };
    static NO_SHARED_QUEUES: RefCell<bool> = const { RefCell::new(false) };
    static SHARED_QUEUES: RefCell<isize> = const { RefCell::new(0) };
    /// Shared receive queues of queue pairs that live.
    static USED_QUEUES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static REGIONS: RefCell<isize> = const { RefCell::new(0) };
    /// Address handles that live, and the last that was made.
    static HANDLES: RefCell<(isize, usize)> = const { RefCell::new((0, 0)) };
    /// The last byte of a place to which no way is found.
    static CANNOT_REACH: RefCell<Option<u8>> = const { RefCell::new(None) };
    /// No memory may be locked.
    static LOCKS_NONE: RefCell<bool> = const { RefCell::new(false) };
}

/// What was posted since the last call.
pub fn posted() -> Vec<Work> {
    POSTED.with_borrow_mut(std::mem::take)
}

/// Whether the adapter takes one more request.
fn takes() -> bool {
    REFUSES_AFTER.with_borrow_mut(|left| match left {
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
        None => true,
    })
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut work: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    CALLS.with_borrow_mut(|calls| calls.0 += 1);
    while !work.is_null() {
        if !takes() {
            // SAFETY: of the caller, as for all adapters.
            unsafe { *bad = work };
            return libc::ENOMEM;
        }
        // SAFETY: what the lane posts.
        let w = unsafe { &*work };
        let reports = w.send_flags & IBV_SEND_SIGNALED != 0;
        let number = w.wr_id as u32;
        // SAFETY: as above.
        let e = unsafe { &*w.sg_list };
        let posted = if w.opcode == IBV_WR_RDMA_WRITE {
            // SAFETY: the target of a write.
            let rdma = unsafe { w.wr.rdma };
            if rdma.rkey == FAR_RING {
                // SAFETY: a slot.
                let bytes = unsafe { std::slice::from_raw_parts(e.addr as *const u8, e.length as usize) };
                Work::Slot(rdma.remote_addr, bytes.to_vec(), reports, number)
            } else {
                Work::Write(rdma.remote_addr, rdma.rkey, e.length as usize, reports, number)
            }
        } else {
            // SAFETY: a slot.
            let message = unsafe { std::slice::from_raw_parts(e.addr as *const u8, e.length as usize) };
            // SAFETY: of this file.
            if unsafe { (*qp).qp_num } == DATAGRAMS {
                Work::Datagram(message.to_vec(), reports, number)
            } else {
                let header = Header::read(message).expect("what is sent is well-formed");
                Work::Send(header, message[HEADER_BYTES..].to_vec(), reports, number)
            }
        };
        POSTED.with_borrow_mut(|all| all.push(posted));
        work = w.next;
    }
    0
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    mut work: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    CALLS.with_borrow_mut(|calls| calls.1 += 1);
    while !work.is_null() {
        if !takes() {
            // SAFETY: of the caller, as for all adapters.
            unsafe { *bad = work };
            return libc::ENOMEM;
        }
        // SAFETY: what the lane posts.
        let w = unsafe { &*work };
        POSTED.with_borrow_mut(|all| all.push(Work::Receive(w.wr_id & (SHARED - 1))));
        work = w.next;
    }
    0
}

unsafe extern "C" fn create_srq(_: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if NO_SHARED_QUEUES.with_borrow(|none| *none) {
        return null_mut();
    }
    SHARED_QUEUES.with_borrow_mut(|n| *n += 1);
    Box::into_raw(Box::new(ibv_srq { context: FAKE.get_or_init(fake).adapter.context }))
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    if USED_QUEUES.with_borrow(|used| used.contains(&srq.addr())) {
        return libc::EBUSY;
    }
    SHARED_QUEUES.with_borrow_mut(|n| *n -= 1);
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(srq) });
    0
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    work: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as for those of a queue pair, which is not looked at.
    unsafe { post_recv(null_mut(), work, bad) }
}

/// The key of all memory that is registered, and so of rings. What else is written to has another in the tests.
pub const FAR_RING: u32 = 8;
/// The number of queue pairs for datagrams.
const DATAGRAMS: u32 = 2;
/// That of others.
const CONNECTED: u32 = 3;

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: of the caller.
    let a = unsafe { &*attributes };
    let number = if a.qp_type == IBV_QPT_UD { DATAGRAMS } else { CONNECTED };
    if !a.srq.is_null() {
        USED_QUEUES.with_borrow_mut(|used| used.push(a.srq.addr()));
    }
    Box::into_raw(Box::new(ibv_qp {
        context: FAKE.get_or_init(fake).adapter.context,
        qp_context: null_mut(),
        pd,
        send_cq: a.send_cq,
        recv_cq: a.recv_cq,
        srq: a.srq,
        handle: 0,
        qp_num: number,
    }))
}

unsafe extern "C" fn modify_qp(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: made above.
    let qp = unsafe { Box::from_raw(qp) };
    USED_QUEUES.with_borrow_mut(|used| {
        let at = used.iter().position(|srq| *srq == qp.srq.addr());
        at.into_iter().for_each(|at| _ = used.swap_remove(at));
    });
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller's structure.
    unsafe { (*attr).state = IBV_PORT_ACTIVE };
    0
}

unsafe extern "C" fn create_ah(_: *mut ibv_pd, to: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's structure.
    let last = unsafe { (*to).grh.dgid.raw[15] };
    if CANNOT_REACH.with_borrow(|place| *place == Some(last)) {
        return null_mut();
    }
    HANDLES.with_borrow_mut(|(alive, next)| {
        *alive += 1;
        *next += 1;
        // never followed
        std::ptr::without_provenance_mut(*next)
    })
}

unsafe extern "C" fn destroy_ah(_: *mut ibv_ah) -> c_int {
    HANDLES.with_borrow_mut(|(alive, _)| *alive -= 1);
    0
}

unsafe extern "C" fn query_in_order(_: *mut ibv_qp, operation: c_uint, flags: u32) -> c_int {
    assert_eq!((operation, flags), (IBV_WR_RDMA_WRITE, 0));
    IN_ORDER.with_borrow(|yes| i32::from(*yes))
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    _: c_int,
) -> *mut ibv_mr {
    if LOCKS_NONE.with_borrow(|none| *none) {
        return null_mut();
    }
    REGIONS.with_borrow_mut(|n| *n += 1);
    Box::into_raw(Box::new(ibv_mr {
        context: null_mut(),
        pd,
        addr,
        length,
        handle: 0,
        lkey: 7,
        rkey: FAR_RING,
    }))
}

unsafe extern "C" fn dereg_mr(region: *mut ibv_mr) -> c_int {
    REGIONS.with_borrow_mut(|n| *n -= 1);
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(region) });
    0
}

unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    std::ptr::NonNull::dangling().as_ptr()
}

unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, room: c_int, entries: *mut ibv_wc) -> c_int {
    REPORTED.with_borrow_mut(|all| {
        let n = all.len().min(room as usize);
        for (i, entry) in all.drain(..n).enumerate() {
            // SAFETY: the caller has room for so many.
            unsafe { entries.add(i).write(entry) };
        }
        n as c_int
    })
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor").into_raw_fd();
    Box::into_raw(Box::new(ibv_comp_channel { context, fd, refcnt: 0 }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: made above.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: its own.
    drop(unsafe { OwnedFd::from_raw_fd(channel.fd) });
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    _: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    Box::into_raw(Box::new(ibv_cq { context }))
}

unsafe extern "C" fn destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(queue) });
    0
}

unsafe extern "C" fn get_cq_event(
    _: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    -1
}

unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    0
}

/// From now on the adapter of this thread takes so many requests and refuses the next; `None`: it takes all.
#[cfg(test)]
pub fn refuses_after(requests: Option<usize>) {
    REFUSES_AFTER.with_borrow_mut(|left| *left = requests);
}

/// Calls of this thread until now.
#[cfg(test)]
pub fn calls() -> Calls {
    CALLS.with_borrow(|&(sends, receives)| Calls { sends, receives })
}

/// Whether the adapter guarantees in this thread that it places in order.
#[cfg(test)]
pub fn places_in_order(yes: bool) {
    IN_ORDER.with_borrow_mut(|in_order| *in_order = yes);
}

/// The adapter.
#[cfg(test)]
pub fn adapter() -> &'static Arc<Adapter> {
    &FAKE.get_or_init(fake).adapter
}

/// The queue pair.
#[cfg(test)]
pub fn queue_pair() -> *mut ibv_qp {
    FAKE.get_or_init(fake).qp
}

/// A completion queue, of which the entries are those of [`reports`].
#[cfg(test)]
pub fn completions() -> Completions {
    Completions::new(adapter(), 1).expect("nothing fails here")
}

/// The next that the completion queues of this thread report.
#[cfg(test)]
pub fn reports(entry: ibv_wc) {
    REPORTED.with_borrow_mut(|all| all.push(entry));
}

/// Whether memory may be locked in this thread from now on.
#[cfg(test)]
pub fn may_lock(may: bool) {
    LOCKS_NONE.with_borrow_mut(|none| *none = !may);
}

/// Address handles of this thread that live.
#[cfg(test)]
pub fn handles() -> isize {
    HANDLES.with_borrow(|handles| handles.0)
}

/// From now on this thread finds no way to places that end in this byte.
#[cfg(test)]
pub fn cannot_reach(place: Option<u8>) {
    CANNOT_REACH.with_borrow_mut(|byte| *byte = place);
}

/// Regions that are registered in this thread.
#[cfg(test)]
pub fn regions() -> isize {
    REGIONS.with_borrow(|n| *n)
}

/// Whether the adapter has shared receive queues in this thread from now on.
#[cfg(test)]
pub fn has_shared_queues(has: bool) {
    NO_SHARED_QUEUES.with_borrow_mut(|none| *none = !has);
}

/// Shared receive queues that there are in this thread.
#[cfg(test)]
pub fn shared_queues() -> isize {
    SHARED_QUEUES.with_borrow(|n| *n)
}

struct Fake {
    adapter: Arc<Adapter>,
    qp: *mut ibv_qp,
}

// SAFETY: the queue pair is only handed on, and never changed.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

/// For the whole process: what it leaks stays reachable.
static FAKE: OnceLock<Fake> = OnceLock::new();

/// Its functions.
pub fn library() -> Library {
    Library {
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr_iova: reg_mr,
        ibv_dereg_mr: dereg_mr,
        ibv_query_qp_data_in_order: Some(query_in_order),
        ibv_create_srq: create_srq,
        ibv_destroy_srq: destroy_srq,
        ibv_query_port: query_port,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_create_ah: create_ah,
        ibv_destroy_ah: destroy_ah,
        ibv_create_comp_channel: create_comp_channel,
        ibv_destroy_comp_channel: destroy_comp_channel,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_get_cq_event: get_cq_event,
        ..Library::of_nothing()
    }
}

/// An open device, for ever.
pub fn new_context() -> &'static mut ibv_context {
    let mut context = MaybeUninit::<ibv_context>::zeroed();
    // SAFETY: every function pointer is written; for all else 0 is valid.
    Box::leak(Box::new(unsafe {
        let ops = &raw mut (*context.as_mut_ptr()).ops;
        (&raw mut (*ops).poll_cq).write(poll_cq);
        (&raw mut (*ops).req_notify_cq).write(req_notify_cq);
        (&raw mut (*ops).post_send).write(post_send);
        (&raw mut (*ops).post_recv).write(post_recv);
        (&raw mut (*ops).post_srq_recv).write(post_srq_recv);
        context.assume_init()
    }))
}

fn fake() -> Fake {
    let context = new_context();
    // SAFETY: the context lives for ever.
    let adapter = unsafe { Adapter::new(Box::leak(Box::new(library())), context, 1, 0, Kind::ROCE) };
    let adapter = Arc::new(adapter.expect("nothing fails here"));
    let qp = Box::leak(new_queue_pair(context, 1));
    Fake { adapter, qp }
}

/// A queue pair with this number.
pub fn new_queue_pair(context: *mut ibv_context, number: u32) -> Box<ibv_qp> {
    Box::new(ibv_qp {
        context,
        qp_context: null_mut(),
        pd: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        handle: 0,
        qp_num: number,
    })
}

/// A completion queue that is never asked.
#[cfg(test)]
pub fn no_completions(adapter: &Arc<Adapter>) -> std::mem::ManuallyDrop<Completions> {
    std::mem::ManuallyDrop::new(Completions::of_nothing(adapter))
}

/// A lane over it, without rings.
#[cfg(test)]
pub fn lane(number: LaneNumber, shape: &'static Shape) -> Lane {
    lane_with(number, shape, Rings::default())
}

/// A lane over it, on which both sides have sent their first messages.
pub fn lane_with(number: LaneNumber, shape: &'static Shape, rings: Rings) -> Lane {
    let mut lane = new_lane(number, shape, None, rings);
    lane.is_begun();
    lane
}

/// A lane over it that shares its receives.
pub fn lane_of(number: LaneNumber, pool: &Arc<Pool>) -> Lane {
    new_lane(number, &Shape::STREAM, Some(pool), Rings::default())
}

/// A shared receive queue for streams.
pub fn pool(number: u32) -> Arc<Pool> {
    Pool::new(number, &FAKE.get_or_init(fake).adapter, &Shape::STREAM).expect("nothing fails here")
}

/// A lane over it that is new.
pub fn new_lane(number: LaneNumber, shape: &'static Shape, pool: Option<&Arc<Pool>>, rings: Rings) -> Lane {
    let wake = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
    let (registrations, _) = Registrations::new(false, &Arc::new(wake));
    let fake = FAKE.get_or_init(fake);
    // SAFETY: the queue pair lives for ever.
    unsafe { Lane::new(number, RailId(0), &fake.adapter, &registrations, (fake.qp, 0), (shape, pool), rings) }
        .expect("nothing fails here")
}
