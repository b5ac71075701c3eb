//! The structure by which libfabric knows the provider, in the log and for its parameters too.

use crate::ffi::{fi_context, fi_provider};
use std::cell::UnsafeCell;
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
    getinfo: None,
    fabric: None,
    cleanup: None,
}));

/// The provider's structure. libfabric keeps its own things in it; the calls come into it with `fi_prov_ini`.
pub fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}
