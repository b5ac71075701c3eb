//! Options: every row of the one table is a libfabric parameter `FI_RERAIL_*`.
//!
//! All are defined as strings, whatever they hold: libfabric's own parsers would take a wrong number for "not set" with
//! only a line in the log, ours says what is wrong.

use crate::errno::{Errno, Result};
use crate::ffi::{FI_EINVAL, FI_PARAM_STRING, host, host::Host};
use crate::log;
use crate::provider::provider;
use libc::c_char;
use rerail_core::{OPTION_TABLE, OptionRow, Options, unknown_options};
use std::ffi::{CStr, CString};
use std::sync::Once;

/// Tells libfabric about every option, with the text that `fi_info -e` shows.
pub fn define(host: &Host) {
    for row in OPTION_TABLE {
        let (Ok(name), Ok(help)) = (CString::new(row.name), CString::new(help(row))) else { continue };
        // SAFETY: the provider structure is ours, the names are C strings, and the format takes one string.
        unsafe {
            (host.param_define)(provider(), name.as_ptr(), FI_PARAM_STRING, c"%s".as_ptr(), help.as_ptr());
        }
    }
}

fn help(row: &OptionRow) -> String {
    let default = if row.default.is_empty() { "empty" } else { row.default };
    format!("{} ({}; default: {default})", row.help, row.unit)
}

/// Reads the options.
///
/// # Errors
/// A value that does not fit, after the user was told.
pub fn options() -> Result<Options> {
    static WARNED: Once = Once::new();
    WARNED.call_once(warn_of_unknown);
    rerail_runtime::read_options(lookup).map_err(|e| {
        log::complain(&e.to_string());
        Errno(FI_EINVAL)
    })
}

/// Mistyped options: in the log of every process, and on standard error of one on each node, where its user sees it.
fn warn_of_unknown() {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let first = rerail_runtime::local_rank().is_none_or(|rank| rank == 0);
    for sentence in unknown_options(variables) {
        if first {
            rerail_runtime::tell(&format!("rerail: warning: {sentence}"));
        }
        log::warn(&sentence);
    }
}

fn lookup(row: &OptionRow) -> Option<String> {
    let Some(host) = host::get() else {
        return std::env::var(format!("FI_RERAIL_{}", row.name.to_uppercase())).ok();
    };
    let name = CString::new(row.name).ok()?;
    let mut value: *mut c_char = std::ptr::null_mut();
    // SAFETY: the parameter was defined as a string, so a pointer is what is written. The string stays libfabric's.
    let found = unsafe { (host.param_get)(provider(), name.as_ptr(), (&raw mut value).cast()) };
    if found != 0 || value.is_null() {
        return None;
    }
    // SAFETY: libfabric gave a C string.
    Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}
