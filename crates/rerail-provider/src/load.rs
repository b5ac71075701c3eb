//! Being loaded: `fi_prov_ini`, which gives libfabric the calls that everything else is reached by.

use crate::ffi::{fi_provider, host};
use crate::provider::provider;
use crate::{fabric, info, params, world};
use std::panic::catch_unwind;
use std::ptr::null_mut;

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
            unsafe {
                (*provider()).fi_version = (host.version)();
                (*provider()).getinfo = Some(info::getinfo);
                (*provider()).fabric = Some(fabric::ops::open);
                (*provider()).cleanup = Some(cleanup);
            }
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
