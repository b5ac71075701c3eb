//! The one runtime of this process. Owns: which runtime is in use, and the rails that `fi_getinfo` talks about.
//!
//! Invariant: all enabled endpoints of the process use the same runtime (hazard H18: listeners and connections are shared).

use crate::errno::{Errno, Result};
use crate::ffi::{FI_EINVAL, FI_EIO};
use crate::{log, params};
use parking_lot::Mutex;
use rerail_kinds::{KindError, Looked, Place};
use rerail_runtime::fork::generation;
use rerail_runtime::{Runtime, RuntimeError, Setup};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);
/// Generation of the process that started it; zero before that.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// The runtime in use, started if there is none.
///
/// # Errors
/// A wrong option, no usable interface, or the system refused something; the user was told.
pub fn runtime() -> Result<Arc<Runtime>> {
    let mut current = RUNTIME.lock();
    if let Some(rt) = current.take() {
        match rt.check_usable() {
            Ok(()) => return Ok(current.insert(rt).clone()),
            // A forked child makes its own; the parent's must not even be dropped here, its sockets are shared (H16).
            Err(RuntimeError::Forked) => std::mem::forget(rt),
            Err(RuntimeError::Closed) => drop(rt),
            Err(why @ (RuntimeError::Failed | RuntimeError::Refused(_))) => {
                *current = Some(rt);
                return Err(why.into());
            }
        }
    }
    let options = params::options()?;
    let rails = rerail_kinds::attach_with_shm(&options).map_err(explain)?;
    let rt = Runtime::start(Setup { options, rails, log: Some(log::sink()) }).map_err(|e| {
        log::complain(&e.to_string());
        Errno::from(&e)
    })?;
    STARTED_BY.store(generation(), Ordering::Release);
    Ok(current.insert(rt).clone())
}

/// The process exits: if there is a runtime still, its endpoints were not closed (hazard H5). A forked child has none.
pub fn exit() {
    if STARTED_BY.load(Ordering::Acquire) != generation() {
        return;
    }
    // Held only for a moment by others; by a thread that `exit` has interrupted, for good.
    let Some(rt) = RUNTIME.try_lock_for(Duration::from_secs(1)).and_then(|mut current| current.take()) else {
        return;
    };
    rt.exit();
}

/// Forgets a runtime that is shut down.
pub fn forget(rt: &Arc<Runtime>) {
    let mut current = RUNTIME.lock();
    if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, rt)) {
        *current = None;
    }
}

/// The rails that a runtime would use and that have an IP address, without starting one: others have no address that a program
/// could name. Looked up once.
///
/// # Errors
/// A wrong option is -FI_EINVAL, no usable interface -FI_ENODATA; the user was told.
pub fn rails() -> Result<&'static [Place]> {
    static RAILS: OnceLock<Vec<Place>> = OnceLock::new();
    if let Some(rails) = RAILS.get() {
        return Ok(rails);
    }
    let options = params::options()?;
    let Looked { names, places } = rerail_kinds::look(&options).map_err(explain)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    options.check_rails(&names).map_err(|e| {
        log::complain(&e);
        Errno(FI_EINVAL)
    })?;
    rerail_runtime::check_faults(&options, &names).map_err(|e| {
        log::complain(&e);
        Errno(FI_EINVAL)
    })?;
    Ok(RAILS.get_or_init(|| places))
}

fn explain(e: KindError) -> Errno {
    log::complain(&e.to_string());
    match e {
        KindError::Ip(e) => Errno::from(&e),
        KindError::Other(_) => Errno(FI_EIO),
    }
}
