//! Joins the engine and the rails of one process: progress, the service thread, options, events.
//!
//! [`Runtime::start`] takes the options and the rails (made by a rail crate; this crate names none) and gives one
//! [`Runtime`] for the process. Everything else goes through it:
//!
//! * [`Runtime::with`] posts operations and opens objects: it gives the closure the engine, and afterwards sends at once
//!   what became sendable;
//! * [`Runtime::progress_and_pop`] and [`Runtime::progress_with`] make progress and look at the result under one lock;
//! * [`Runtime::close_endpoint`] lingers until everything that was sent has arrived, [`Runtime::shutdown`] says goodbye.
//!
//! Completions refer to memory of the user; what the engine promises about it is said at [`Engine::send`] and
//! [`Engine::recv`].
//!
//! # After a fork
//!
//! In a child process every call returns [`RuntimeError::Forked`] and sends nothing: the sockets are the parent's
//! (hazard H16).

#![warn(missing_docs)]
#![allow(unused_variables)]

pub use rerail_core as core;
pub use rerail_transport as transport;

use rerail_core::{Completion, CqId, Engine, EpId, LocalRail, OptionError, OptionRow, Options, Time};
use rerail_transport::Rails;
use std::sync::Arc;
use std::time::Duration;

/// How important a log line is. The provider maps it to the levels of `fi_log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something broke, or came back after it had broken.
    Warn,
    /// Worth knowing when looking for a cause.
    Info,
}

/// Takes log lines: lower-case, without a newline. Called from the service thread, and from a thread that closes or shuts
/// down; never under the engine's lock.
pub type LogSink = Arc<dyn Fn(LogLevel, &str) + Send + Sync>;

/// What a runtime is made from.
pub struct Setup {
    /// Options, for instance from [`read_options`].
    pub options: Options,
    /// The rails, for instance from `rerail_ip::attach`.
    pub rails: Rails,
    /// Where log lines go; `None`: to standard error when the environment has `RERAIL_LOG=1`, else nowhere.
    pub log: Option<LogSink>,
}

/// Why a runtime could not be started. Each is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine refused the rails.
    #[error("rerail cannot use these rails: {0}")]
    Engine(String),
    /// The system refused something.
    #[error("rerail could not {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        why: std::io::Error,
    },
}

/// Why a call did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// This process is a child of the one that started the runtime.
    #[error("this is a forked child: the endpoints belong to its parent")]
    Forked,
    /// [`Runtime::shutdown`] was called. Start a new runtime.
    #[error("the runtime is shut down")]
    Closed,
    /// An invariant of the engine broke (a bug, which was logged): nothing may touch it any more.
    #[error("the engine stopped after an internal error")]
    Failed,
}

/// What [`Runtime::progress_and_pop`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Popped {
    /// Entries that were appended.
    pub count: usize,
    /// The next entry is an error: fetch it with `with(|e, _| e.cq_pop(cq))`.
    pub error_next: bool,
}

/// Reads the options: asks `lookup` for every row of the table (the variable is `FI_RERAIL_` and the row's name in upper
/// case; a provider asks `fi_param_get`), and takes the default where it answers `None`.
///
/// # Errors
/// A value that does not fit; the sentence names the variable and what it takes.
pub fn read_options(mut lookup: impl FnMut(&OptionRow) -> Option<String>) -> Result<Options, OptionError> {
    let mut options = Options::default();
    for row in rerail_core::OPTION_TABLE {
        if let Some(value) = lookup(row) {
            options.set(row.name, &value)?;
        }
    }
    Ok(options)
}

/// The engine, the rails and the service thread of this process. One at a time; shared by everything that is open.
pub struct Runtime {}

#[allow(clippy::missing_errors_doc)]
impl Runtime {
    /// Makes the engine (with a fresh random token) and starts the service thread.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(setup: Setup) -> Result<Arc<Runtime>, StartError> {
        todo!()
    }

    /// Gives `f` the engine and the time, then sends at once what became sendable: for posting operations, opening and
    /// closing objects, asking for addresses. Waits for the lock, which others hold only briefly. `f` must not call the
    /// runtime.
    ///
    /// # Errors
    /// [`RuntimeError`]: `f` was not called.
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine, Time) -> R) -> Result<R, RuntimeError> {
        todo!()
    }

    /// Gives `f` the engine, and neither sends nor receives anything: for addresses, counters, [`Engine::cq_head`].
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn inspect<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Result<R, RuntimeError> {
        todo!()
    }

    /// A bounded piece of progress: takes what arrived, does what is due, sends what can be sent. Never sleeps.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn progress(&self) -> Result<(), RuntimeError> {
        todo!()
    }

    /// Makes progress, then gives `f` the engine, under one lock.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn progress_with<R>(&self, f: impl FnOnce(&mut Engine, Time) -> R) -> Result<R, RuntimeError> {
        todo!()
    }

    /// Makes progress, then moves up to `max` successful completions of `cq` to `out`, under one lock; stops in front of an
    /// error entry. When entries are waiting already, they are given out first, and progress is made only every now and
    /// then. This is `fi_cq_read`.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn progress_and_pop(
        &self,
        cq: CqId,
        max: usize,
        out: &mut Vec<Completion>,
    ) -> Result<Popped, RuntimeError> {
        todo!()
    }

    /// Sleeps until something arrived, something is due, or `max` has passed, without holding the lock. For blocking waits
    /// (`fi_cq_sread`, `fi_wait`): call [`Runtime::progress_and_pop`], and this when it gave nothing, in turn. May return
    /// early.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn wait_input(&self, max: Duration) -> Result<(), RuntimeError> {
        todo!()
    }

    /// Opens an endpoint and counts it. The same as [`Engine::open_endpoint`] otherwise.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn open_endpoint(&self, tx_cq: CqId, rx_cq: CqId) -> Result<EpId, RuntimeError> {
        todo!()
    }

    /// Closes an endpoint: blocks, making progress, until the peers have acknowledged what it sent, at most for the linger
    /// time. When it was the last one, shuts the runtime down ([`Runtime::shutdown`]) and returns `true`: the provider then
    /// forgets this runtime and starts a new one when another endpoint is opened.
    ///
    /// # Errors
    /// As [`Runtime::with`]. In a forked child nothing happens.
    pub fn close_endpoint(&self, ep: EpId) -> Result<bool, RuntimeError> {
        todo!()
    }

    /// Says goodbye to all peers, waits (bounded) until they have answered, closes everything, stops the service thread and
    /// writes the last events. Afterwards every call says [`RuntimeError::Closed`]. A second call does nothing.
    pub fn shutdown(&self) {
        todo!()
    }

    /// Whether calls can still do something.
    ///
    /// # Errors
    /// Why not.
    pub fn check_usable(&self) -> Result<(), RuntimeError> {
        todo!()
    }

    /// The rails, as they were found when the runtime was started.
    pub fn rails(&self) -> &[LocalRail] {
        todo!()
    }

    /// The monotonic time that the engine is given.
    pub fn now(&self) -> Time {
        todo!()
    }
}
