//! What all objects share: the guard at the C ABI, handles, and closing.

use crate::errno::{Errno, INVALID, Result};
use crate::ffi::fid;
use libc::c_int;
use rerail_runtime::fork::generation;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a C entry returns: negative error numbers.
pub trait Reply {
    /// The reply that reports `e`.
    fn failed(e: Errno) -> Self;
}

impl Reply for c_int {
    fn failed(e: Errno) -> Self {
        -e.0
    }
}

impl Reply for isize {
    fn failed(e: Errno) -> Self {
        -(e.0 as isize)
    }
}

/// Runs the body of a C entry. A panic ends the process: see the crate's documentation.
#[inline(always)]
pub fn guard<T: Reply>(body: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(v)) => v,
        Ok(Err(e)) => T::failed(e),
        Err(_) => die(),
    }
}

/// Runs the body of a C entry that has not touched anything yet: a panic becomes -FI_EOTHER.
pub fn guard_harmless<T: Reply>(body: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(v)) => v,
        Ok(Err(e)) => T::failed(e),
        Err(_) => T::failed(Errno(crate::ffi::FI_EOTHER)),
    }
}

#[cold]
fn die() -> ! {
    rerail_runtime::tell(
        "rerail: internal error (described above); ending the process, because going on could damage data",
    );
    std::process::abort()
}

/// A structure that begins with a `struct fid`, so that its address is the handle.
///
/// # Safety
/// The type is `repr(C)`, its first field is `struct fid` or begins with one, and objects whose `fclass` is `CLASS` under
/// this provider are of this type.
pub unsafe trait Object {
    /// `FI_CLASS_*`.
    const CLASS: usize;
}

/// An object as it lies in memory: the handle is its address. It belongs to the process that opened it (hazard H16): a
/// forked child has a stale copy, with locks that threads of the parent may have held.
#[repr(C)]
struct Held<T> {
    object: T,
    generation: u32,
}

/// The object behind a handle.
///
/// # Errors
/// -FI_EINVAL for another class, -FI_EOPNOTSUPP in a forked child.
///
/// # Safety
/// `handle` is null, or a handle that this provider gave out and that is not closed. The result must not be used after the
/// object is closed.
#[inline(always)]
pub unsafe fn object<'a, T: Object, H>(handle: *const H) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    let held = unsafe { held::<T, H>(handle) }?;
    if held.generation != generation() {
        return Err(inherited());
    }
    Ok(&held.object)
}

/// As [`object`], also for an object of another process generation.
///
/// # Safety
/// As for [`object`].
#[inline(always)]
unsafe fn held<'a, T: Object, H>(handle: *const H) -> Result<&'a Held<T>> {
    let f = handle.cast::<fid>();
    // SAFETY: every handle begins with a `struct fid`.
    if f.is_null() || unsafe { (*f).fclass } != T::CLASS {
        return Err(INVALID);
    }
    // SAFETY: the class says that this is a `T`, by the contract of `Object`, and `give` put it into a `Held`.
    Ok(unsafe { &*handle.cast::<Held<T>>() })
}

/// A call on a handle that was opened before the fork.
#[cold]
fn inherited() -> Errno {
    // The generation that has logged this: a child of a child logs it again.
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let own = generation();
    if TOLD.swap(own, Ordering::Relaxed) != own {
        crate::log::warn(
            "a forked child cannot use the endpoints of its parent: every call on them is refused; open new ones, or execute \
             another program",
        );
    }
    Errno(crate::ffi::FI_EOPNOTSUPP)
}

/// Runs the body of a `close`. In a forked child there is nothing to close: the object is its parent's, and what the child has
/// is a copy.
pub fn guard_close<T: Object>(handle: *mut fid, body: impl FnOnce() -> Result<c_int>) -> c_int {
    guard(|| {
        // SAFETY: libfabric passes a handle of ours.
        let held = unsafe { held::<T, fid>(handle) }?;
        if held.generation != generation() {
            return Ok(0);
        }
        body()
    })
}

/// Gives an object to the caller through `out`.
///
/// # Safety
/// `out` is null or can be written.
pub unsafe fn give<T: Object, H>(object: T, out: *mut *mut H) -> Result<c_int> {
    if out.is_null() {
        return Err(INVALID);
    }
    // SAFETY: checked for null; the caller vouches for the rest.
    unsafe { *out = Box::into_raw(Box::new(Held { object, generation: generation() })).cast() };
    Ok(0)
}

/// Takes back what [`give`] gave.
///
/// # Safety
/// As for [`object`], and this is the last use of the handle.
pub unsafe fn take_back<T: Object, H>(handle: *mut H) -> Result<T> {
    // SAFETY: the caller's promise.
    unsafe { object::<T, H>(handle) }?;
    // SAFETY: `give` made the pointer from a box of this type, and the caller gives up the handle.
    Ok(unsafe { Box::from_raw(handle.cast::<Held<T>>()) }.object)
}

/// Defines C entries that only return an error: the pointers must be set, because libfabric's inline functions do not
/// check them.
macro_rules! refuse {
    ($( fn $name:ident($($t:ty),* $(,)?) -> $ret:ty = $err:expr; )*) => {
        $(
            unsafe extern "C" fn $name($(_: $t),*) -> $ret {
                -($err as $ret)
            }
        )*
    };
}
pub(crate) use refuse;

/// The four calls of `struct fi_ops` that most objects do not have.
pub mod no {
    use super::*;
    use crate::ffi::*;
    use libc::{c_char, c_void};

    /// `bind` where there is nothing to bind.
    pub unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
        -FI_EINVAL
    }
    /// `control` without commands.
    pub unsafe extern "C" fn control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
        -FI_ENOSYS
    }
    /// `ops_open` without extensions.
    pub unsafe extern "C" fn ops_open(
        _: *mut fid,
        _: *const c_char,
        _: u64,
        _: *mut *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        -FI_ENOSYS
    }
    /// `tostr`.
    pub unsafe extern "C" fn tostr(_: *const fid, _: *mut c_char, _: usize) -> c_int {
        -FI_ENOSYS
    }
    /// `ops_set`.
    pub unsafe extern "C" fn ops_set(
        _: *mut fid,
        _: *const c_char,
        _: u64,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        -FI_ENOSYS
    }
}

/// A `struct fi_ops` of an object that can be closed and nothing else.
pub const fn ops(close: unsafe extern "C" fn(*mut fid) -> c_int) -> crate::ffi::fi_ops {
    crate::ffi::fi_ops {
        size: size_of::<crate::ffi::fi_ops>(),
        close: Some(close),
        bind: Some(no::bind),
        control: Some(no::control),
        ops_open: Some(no::ops_open),
        tostr: Some(no::tostr),
        ops_set: Some(no::ops_set),
    }
}

/// A `struct fid` at the head of an object. libfabric's type makes the table writable, but nothing writes to it.
pub const fn head(class: usize, context: *mut libc::c_void, ops: &'static crate::ffi::fi_ops) -> fid {
    fid { fclass: class, context, ops: std::ptr::from_ref(ops).cast_mut() }
}
