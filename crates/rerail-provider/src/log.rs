//! Log lines through libfabric (`FI_LOG_LEVEL`), and the one sentence on standard error that a user must see.

use crate::errno::Errno;
use crate::ffi::{FI_LOG_CORE, FI_LOG_INFO, FI_LOG_WARN, fi_log_level, host};
use crate::provider::provider;
use crate::refused;
use rerail_runtime::{LogLevel, LogSink};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes `text` at `level` if that level is on.
pub fn write(level: LogLevel, text: &str) {
    let level: fi_log_level = match level {
        LogLevel::Warn => FI_LOG_WARN,
        LogLevel::Info => FI_LOG_INFO,
    };
    let Some(host) = host::get() else { return };
    // SAFETY: the provider structure is the one that libfabric knows.
    if unsafe { (host.log_enabled)(provider(), level, FI_LOG_CORE) } == 0 {
        return;
    }
    let Ok(text) = CString::new(text) else { return };
    // SAFETY: as above; the format takes one string, and gets one.
    unsafe {
        (host.log)(provider(), level, FI_LOG_CORE, c"rerail".as_ptr(), 0, c"%s\n".as_ptr(), text.as_ptr());
    }
}

/// At level info. The text is built even when the level is off: these lines are rare.
pub fn info(text: &str) {
    write(LogLevel::Info, text);
}

/// At level warn.
pub fn warn(text: &str) {
    write(LogLevel::Warn, text);
}

/// The error for `flags` of `call`, after the log has a line on them.
#[cold]
pub fn refused(call: &'static str, flags: u64, error: Errno) -> Errno {
    if let Some(sentence) = refused::news(call, flags) {
        warn(&sentence);
    }
    error
}

/// The sink for the runtime.
pub fn sink() -> LogSink {
    Arc::new(write)
}

/// Tells the user why Rerail cannot be used: on standard error once per process, because libfabric itself would only say
/// "no provider found", and in the log every time.
pub fn complain(sentence: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        rerail_runtime::tell(&format!("rerail: {sentence}"));
    }
    write(LogLevel::Warn, sentence);
}
