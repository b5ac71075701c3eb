//! The libfabric that loaded this provider.
//!
//! A provider that is linked against libfabric binds the symbol versions of the headers it was built with, which in a newer
//! library are shims for old structure layouts. So nothing is linked: when libfabric calls `fi_prov_ini`, the return address
//! names the library, and its functions are looked up in it, unversioned, which gives the newest. (`RTLD_DEFAULT` would not
//! do: MPI wheels load libfabric privately.)
//!
//! The return address comes from one step of the unwinder instead of `__builtin_return_address`, which only C has: the
//! provider then needs no C compiler.

use super::{fi_info, fi_log_level, fi_log_subsys, fi_param_type, fi_provider};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

type LogFn = unsafe extern "C" fn(
    *const fi_provider,
    fi_log_level,
    fi_log_subsys,
    *const c_char,
    c_int,
    *const c_char,
    ...
);
type ParamDefineFn =
    unsafe extern "C" fn(*const fi_provider, *const c_char, fi_param_type, *const c_char, ...) -> c_int;

type DupInfoFn = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type FreeInfoFn = unsafe extern "C" fn(*mut fi_info);
type LogEnabledFn = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type ParamGetFn = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
type VersionFn = unsafe extern "C" fn() -> u32;

/// Functions of the running libfabric.
pub struct Host {
    /// `fi_dupinfo`: with a null pointer it allocates.
    pub dupinfo: DupInfoFn,
    /// `fi_freeinfo`.
    pub freeinfo: FreeInfoFn,
    /// `fi_log`.
    pub log: LogFn,
    /// `fi_log_enabled`.
    pub log_enabled: LogEnabledFn,
    /// `fi_param_define`.
    pub param_define: ParamDefineFn,
    /// `fi_param_get`.
    pub param_get: ParamGetFn,
    /// `fi_version`.
    pub version: VersionFn,
    /// Where the library is mapped: tells one libfabric from another.
    base: usize,
}

static HOST: OnceLock<Host> = OnceLock::new();
static GONE: AtomicBool = AtomicBool::new(false);

/// The libfabric that loaded the provider; `None` before that (unit tests) and after it said goodbye.
pub fn get() -> Option<&'static Host> {
    if GONE.load(Ordering::Relaxed) { None } else { HOST.get() }
}

/// libfabric is about to be unloaded: its functions must not be called any more.
pub fn leave() {
    GONE.store(true, Ordering::Relaxed);
}

/// Why the provider cannot work with the library that loaded it.
#[derive(Debug)]
pub enum HostError {
    /// The caller could not be found.
    NoCaller,
    /// The caller lacks a function that every libfabric has.
    Missing(&'static CStr),
    /// Another libfabric of this process has loaded the provider already; what one allocates the other must not free.
    Second,
}

/// Finds the functions in the library of our caller. To be called from `fi_prov_ini`.
pub fn find() -> Result<&'static Host, HostError> {
    let caller = caller_outside().ok_or(HostError::NoCaller)?;
    let host = open(&caller)?;
    let kept = HOST.get_or_init(|| host);
    // The second load by the same library (after its own unload) is fine.
    if kept.base == caller.dli_fbase as usize { Ok(kept) } else { Err(HostError::Second) }
}

/// The functions of the library at `path`, for tests.
#[cfg(test)]
pub fn open_for_test(path: &CStr) -> Option<&'static Host> {
    // SAFETY: `path` is a C string; loading libfabric runs only its own constructors.
    let lib = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if lib.is_null() {
        return None;
    }
    // SAFETY: `lib` is open and the name is a C string.
    let symbol = unsafe { libc::dlsym(lib, c"fi_version".as_ptr()) };
    let info = library_of(symbol)?;
    Some(HOST.get_or_init(|| open(&info).expect("libfabric has its functions")))
}

fn open(of: &libc::Dl_info) -> Result<Host, HostError> {
    // SAFETY: dladdr gave a C string; RTLD_NOLOAD only finds what is loaded. The handle is never closed, so the library
    // stays at least until it unloads itself together with us.
    let lib = unsafe { libc::dlopen(of.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if lib.is_null() {
        return Err(HostError::NoCaller);
    }
    let symbol = |name: &'static CStr| {
        // SAFETY: `lib` is open and `name` is a C string.
        let p = unsafe { libc::dlsym(lib, name.as_ptr()) };
        if p.is_null() { Err(HostError::Missing(name)) } else { Ok(p) }
    };
    macro_rules! function {
        ($name:literal: $type:ty) => {
            // SAFETY: libfabric's public headers give the function this type, and have since 1.0.
            unsafe { std::mem::transmute::<*mut c_void, $type>(symbol($name)?) }
        };
    }
    Ok(Host {
        dupinfo: function!(c"fi_dupinfo": DupInfoFn),
        freeinfo: function!(c"fi_freeinfo": FreeInfoFn),
        log: function!(c"fi_log": LogFn),
        log_enabled: function!(c"fi_log_enabled": LogEnabledFn),
        param_define: function!(c"fi_param_define": ParamDefineFn),
        param_get: function!(c"fi_param_get": ParamGetFn),
        version: function!(c"fi_version": VersionFn),
        base: of.dli_fbase as usize,
    })
}

fn library_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: an all-zero Dl_info is valid, and dladdr takes any address.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let found = unsafe { libc::dladdr(address, &mut info) };
    (found != 0 && !info.dli_fname.is_null()).then_some(info)
}

/// The first library on the call stack that is not this one.
fn caller_outside() -> Option<libc::Dl_info> {
    #[repr(C)]
    struct UnwindContext {
        _private: [u8; 0],
    }
    // From the unwinder that every Rust library links; the C++ ABI fixes both.
    unsafe extern "C" {
        fn _Unwind_Backtrace(
            visit: extern "C" fn(*mut UnwindContext, *mut c_void) -> c_int,
            arg: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIP(context: *mut UnwindContext) -> usize;
    }
    const GO_ON: c_int = 0;
    const STOP: c_int = 4;

    struct Search {
        own: usize,
        found: Option<libc::Dl_info>,
    }
    extern "C" fn visit(context: *mut UnwindContext, arg: *mut c_void) -> c_int {
        // SAFETY: `arg` is the `Search` below, alive and not otherwise used during the walk.
        let search = unsafe { &mut *arg.cast::<Search>() };
        // SAFETY: `context` is the unwinder's.
        let ip = unsafe { _Unwind_GetIP(context) };
        match library_of(ip as *const c_void) {
            Some(info) if info.dli_fbase as usize == search.own => GO_ON,
            found => {
                search.found = found;
                STOP
            }
        }
    }
    let own = library_of(visit as *const c_void)?.dli_fbase as usize;
    let mut search = Search { own, found: None };
    // SAFETY: `visit` does not unwind, and `search` outlives the walk.
    unsafe { _Unwind_Backtrace(visit, (&raw mut search).cast()) };
    search.found
}
