//! Being loaded: `fi_prov_ini`, and the structure by which libfabric knows the provider.

use crate::ffi::{fi_context, fi_provider, host};
use crate::{fabric, info, params, world};
use std::cell::UnsafeCell;
use std::panic::catch_unwind;
use std::ptr::null_mut;

/// Name of the provider, of its fabric and of its domain.
pub const NAME: &std::ffi::CStr = c"rerail";

/// Version of the provider as libfabric writes versions.
pub const VERSION: u32 = crate::ffi::version(major(), minor());

const fn digits(text: &str) -> u32 {
    let bytes = text.as_bytes();
    let (mut i, mut n) = (0, 0);
    while i < bytes.len() {
        n = n * 10 + (bytes[i] - b'0') as u32;
        i += 1;
    }
    n
}
const fn major() -> u32 {
    digits(env!("CARGO_PKG_VERSION_MAJOR"))
}
const fn minor() -> u32 {
    digits(env!("CARGO_PKG_VERSION_MINOR"))
}

struct Provider(UnsafeCell<fi_provider>);

// SAFETY: written only in `fi_prov_ini`, before libfabric has the pointer, and by libfabric, under its own lock.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: VERSION,
    fi_version: 0,
    context: fi_context { internal: [null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// The provider's structure. libfabric keeps its own things in it.
pub fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// What a library says that was built together with the feature `planted-bugs`. `tests/library.rs` looks for it in the built one.
const PLANTED: &str = "rerail: the provider has the simulator's planted bugs and is not to be used: build it without `planted-bugs`";

/// libfabric calls this when it has loaded the library. Null: not to be used.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    if rerail_core::PLANTED_BUGS {
        rerail_runtime::tell(PLANTED);
        return null_mut();
    }
    catch_unwind(|| match host::find() {
        Ok(host) => {
            // SAFETY: libfabric has not got the pointer yet, or is inside this call. `fi_version` takes nothing.
            unsafe { (*provider()).fi_version = (host.version)() };
            params::define(host);
            provider()
        }
        Err(e) => {
            let why = match e {
                host::HostError::NoCaller => "cannot find the libfabric that loaded it".to_owned(),
                host::HostError::Missing(name) => format!("the library that loaded it has no {name:?}"),
                host::HostError::Second => {
                    "is in use by another libfabric of this process already; set FI_PROVIDER_PATH for one only".to_owned()
                }
            };
            rerail_runtime::tell(&format!("rerail: the provider {why}"));
            null_mut()
        }
    })
    .unwrap_or(null_mut())
}

/// libfabric is about to close the library (which stays mapped: `-z nodelete`), as a rule from its destructor when the process
/// exits: after everything that the program and its MPI do at exit. Endpoints that are open still were left so.
unsafe extern "C" fn cleanup() {
    // Nothing may unwind into libfabric's destructor; a panic was printed, and the process ends anyway.
    let _ = catch_unwind(world::exit);
    host::leave();
}
