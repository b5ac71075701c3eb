//! The C interface: `rwapi.h` and `rwapi_ext.h`, which cbindgen makes from this file (`tests/header.rs`).
//!
//! No panic crosses it: a panic is a broken invariant, so the process is aborted with a sentence.

use crate::block;
use crate::error::Error;
use crate::job::Job;
use arc_swap::ArcSwapOption;
use libc::{c_char, c_int, c_void, size_t};
use parking_lot::Mutex;
use rerail_rwapi::{Net, Received, Refused, Sid};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

/// A network address: names a byte of a block everywhere in the job. 0 names nothing. Adding n moves n bytes further in the same
/// block.
#[allow(non_camel_case_types)]
pub type rwapi_net_t = u64;

/// Names a write; greater than 0, and never used twice by a process.
#[allow(non_camel_case_types)]
pub type rwapi_sid_t = i64;

/// A small message.
#[allow(non_camel_case_types)]
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct rwapi_small_t {
    /// What it carries.
    pub bytes: [u8; 16],
}

static JOB: ArcSwapOption<Job> = ArcSwapOption::const_empty();
/// Held while a job begins or ends.
static CHANGE: Mutex<()> = Mutex::new(());

fn set_errno(value: c_int) {
    // SAFETY: the location of this thread's errno is valid as long as the thread.
    unsafe { *libc::__errno_location() = value };
}

/// Runs a call; an error sets errno and gives `failed`.
fn guard<T>(failed: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(why)) => {
            set_errno(why.errno());
            failed
        }
        Err(_) => {
            rerail_runtime::tell(
                "rwapi: an invariant is broken (above): the process ends, because its memory may be wrong",
            );
            std::process::abort();
        }
    }
}

fn with<T>(f: impl FnOnce(&Job) -> Result<T, Error>) -> Result<T, Error> {
    let job = JOB.load();
    f(job.as_deref().ok_or(Error::NoJob)?)
}

fn node(number: c_int) -> Result<usize, Error> {
    usize::try_from(number).map_err(|_| Refused::NoSuchNode.into())
}

extern "C" fn at_exit() {
    if let Some(job) = JOB.load().as_deref() {
        let _ = catch_unwind(AssertUnwindSafe(|| job.exit()));
    }
}

/// Joins the job that this process was started for: by `rerail launch`, `mpiexec`, `mpirun`, `srun --mpi=pmi2`, or alone. To be
/// called before all others, by all nodes. Which network interfaces are used, and how, the variables FI_RERAIL_… decide.
///
/// \param argc, argv the arguments of main; they are not read.
/// \return 0; -1 and errno: EALREADY it was called before; ENETDOWN the job cannot begin (standard error says why).
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_init(argc: c_int, argv: *mut *mut c_char) -> c_int {
    let _ = (argc, argv);
    guard(-1, || {
        let _one = CHANGE.lock();
        if JOB.load().is_some() {
            return Err(Error::Already);
        }
        let job = Job::init().inspect_err(|why| rerail_runtime::tell(&format!("rwapi: {why}")))?;
        JOB.store(Some(Arc::new(job)));
        static AT_EXIT: Once = Once::new();
        // SAFETY: the handler is a function of this library, which stays loaded. If there is no room for it, an exit without
        // rwapi_finalize delivers less.
        AT_EXIT.call_once(|| unsafe {
            libc::atexit(at_exit);
        });
        Ok(0)
    })
}

/// Ends this node's part of the job. Collective: delivers what is under way, waits until all living nodes have called it. No node writes
/// into blocks any more; those that were not freed stay memory of the process.
///
/// \return 0; -1 and errno: ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_finalize() -> c_int {
    guard(-1, || {
        let _one = CHANGE.lock();
        let left = with(Job::end)?;
        // what the program has not given back it may still read
        block::unmap(left.freed);
        JOB.store(None);
        Ok(0)
    })
}

/// The number of this node, from 0. -1 and ENOTCONN outside a job.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_rank() -> c_int {
    guard(-1, || with(|job| Ok(job.rank() as c_int)))
}

/// The number of nodes, those that are gone among them. -1 and ENOTCONN outside a job.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_size() -> c_int {
    guard(-1, || with(|job| Ok(job.size() as c_int)))
}

/// Allocates a block that all nodes may write: zeroed, and aligned to a page.
///
/// \param size bytes, 1 to 8 TiB.
/// \param net where the network address of its first byte goes.
/// \return the block; NULL and errno: EINVAL the size is 0, or net is NULL; ENOMEM; EFAULT too large, or too many blocks; ENOTCONN.
///
/// # Safety
/// `net` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwapi_alloc(size: size_t, net: *mut rwapi_net_t) -> *mut c_void {
    guard(std::ptr::null_mut(), || {
        if net.is_null() {
            return Err(Refused::Empty.into());
        }
        let (ptr, first) = with(|job| job.alloc_raw(size))?;
        // SAFETY: the caller's promise.
        unsafe { *net = first.0 };
        Ok(ptr.cast())
    })
}

/// Gives a block back. When the call returns no node can write it any more.
///
/// \return 0; -1 and errno: EFAULT it is no block of rwapi_alloc; ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_free(block: *mut c_void) -> c_int {
    guard(-1, || with(|job| job.free_raw(block.cast()).map(|()| 0)))
}

/// Sends a small message. Never blocks. It arrives after the bytes of all writes that this node has made to the same node before.
///
/// \return 0; -1 and errno: EAGAIN there is no room now (the node has not received 512 messages of this one): receive, and try
/// again; EINVAL there is no such node; EHOSTDOWN the node is gone; ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_send(to: c_int, small: rwapi_small_t) -> c_int {
    guard(-1, || with(|job| job.send(node(to)?, &small.bytes).map(|()| 0)))
}

/// Takes the oldest small message that has arrived. Never blocks.
///
/// \return 1: *from and *small are set; 0: there is none; -1 and errno: EHOSTDOWN the node *from is gone (reported once for each,
/// after its last message; the others go on); EINVAL a pointer is NULL; ENOTCONN.
///
/// # Safety
/// The pointers are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwapi_receive(from: *mut c_int, small: *mut rwapi_small_t) -> c_int {
    guard(-1, || {
        if from.is_null() || small.is_null() {
            return Err(Refused::Empty.into());
        }
        match with(Job::receive)? {
            None => Ok(0),
            // SAFETY: the caller's promise.
            Some(Received::Message(node, bytes)) => unsafe {
                *from = node as c_int;
                *small = rwapi_small_t { bytes };
                Ok(1)
            },
            // SAFETY: the caller's promise.
            Some(Received::Gone(node)) => unsafe {
                *from = node as c_int;
                Err(Error::Gone(node))
            },
        }
    })
}

/// Writes a range of a block of this process into a range of a block of a node. Never blocks. Up to 8 KiB are copied in the call; of more, the
/// local memory must not change until rwapi_issent gives 1.
///
/// \param local where the bytes are: an address in a block of this process.
/// \param remote where they go: an address of that node.
/// \return the identifier of the write; -1 and errno: EAGAIN there is no room now; EINVAL no such node, or the size is 0; EFAULT local is in no
/// block of this process, remote is no address of that node, or a range leaves its block: no byte is touched; EHOSTDOWN the node is
/// gone; ENOBUFS 4096 writes have failed and rwapi_issent was not called for them; ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_write(
    to: c_int,
    local: rwapi_net_t,
    remote: rwapi_net_t,
    size: size_t,
) -> rwapi_sid_t {
    guard(-1, || with(|job| Ok(job.write(node(to)?, Net(local), Net(remote), size)?.0 as rwapi_sid_t)))
}

/// Whether a write is done: its bytes are in place at the target, and the local memory may be used again.
///
/// \return 1; 0: not yet; -1 and errno: EFAULT the target refused it (it has no such block, or the range leaves the block): no byte was
/// touched; EHOSTDOWN the target is gone: some bytes may be in place; EINVAL no write had this identifier; ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_issent(sid: rwapi_sid_t) -> c_int {
    guard(-1, || {
        let sid = u64::try_from(sid).map_err(|_| Error::NoSuchSid)?;
        with(|job| job.is_sent(Sid(sid)).map(c_int::from))
    })
}

/// Writes as rwapi_write, and sends a small message behind it: both, or neither.
///
/// \return as rwapi_write.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_write_notify(
    to: c_int,
    local: rwapi_net_t,
    remote: rwapi_net_t,
    size: size_t,
    small: rwapi_small_t,
) -> rwapi_sid_t {
    guard(-1, || {
        let write = |job: &Job| job.write_notify(node(to)?, Net(local), Net(remote), size, &small.bytes);
        Ok(with(write)?.0 as rwapi_sid_t)
    })
}

/// Sleeps until something has arrived or changed since the last call of it returned: a message, a write that is done, room for more, a
/// node that is gone.
///
/// \param timeout_ms longest time; negative: no bound.
/// \return 1; 0: the time is over; -1 and errno: ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_wait(timeout_ms: c_int) -> c_int {
    let most = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    guard(-1, || with(|job| job.wait(most).map(c_int::from)))
}

/// Waits until all living nodes have called it, and the bytes of all writes that they made before are in place.
///
/// \return 0; -1 and errno: ENOTCONN.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_barrier() -> c_int {
    guard(-1, || with(|job| job.barrier().map(|()| 0)))
}

/// What a value of errno means after one of these calls: a sentence.
#[unsafe(no_mangle)]
pub extern "C" fn rwapi_error_string(error: c_int) -> *const c_char {
    let sentence = match error {
        0 => c"no error",
        libc::EAGAIN => c"there is no room now: receive messages, and try again",
        libc::EINVAL => {
            c"an argument is wrong: no such node, no such identifier, a size of 0, or a null pointer"
        }
        libc::EFAULT => {
            c"an address is in no block of its node, or the range leaves its block; no byte was touched"
        }
        libc::EHOSTDOWN => c"the node is gone",
        libc::ENOBUFS => c"4096 writes have failed and were not looked at: call rwapi_issent for them",
        libc::ENOMEM => c"the system has no memory for a block of this size",
        libc::ENOTCONN => c"there is no job: call rwapi_init first, and nothing after rwapi_finalize",
        libc::EALREADY => c"rwapi_init was called before",
        libc::EPERM => c"this is a forked child: the job belongs to its parent",
        libc::ENETDOWN => c"the job cannot begin; standard error says why",
        libc::EIO => c"the engine stopped after an internal error",
        _ => c"not an error of these calls",
    };
    sentence.as_ptr()
}
