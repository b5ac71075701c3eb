//! Joins the engine and the rails of one process: progress, the service thread, options, events.
//!
//! [`Runtime::start`] takes the options and the rails (made by a rail crate; this crate names none) and gives one
//! [`Runtime`] for the process. Everything else goes through it:
//!
//! * [`Runtime::with`] posts operations and opens objects: it gives the closure the engine, and afterwards sends at once
//!   what became sendable;
//! * [`Runtime::progress_and_pop`] and [`Runtime::progress_with`] make progress and look at the result under one lock;
//! * [`Runtime::arm`] and [`Runtime::wait_for`] sleep until there is something;
//! * [`Runtime::close_endpoint`] lingers until everything that was sent has arrived, [`Runtime::shutdown`] says goodbye.
//!
//! Completions refer to memory of the user; what the engine promises about it is said at [`Engine::send`] and
//! [`Engine::recv`].
//!
//! # After a fork
//!
//! In a child process every call returns [`RuntimeError::Forked`] and sends nothing: the sockets are the parent's
//! (hazard H16). See [`fork`].
//!
//! # When the process exits without closing
//!
//! [`Runtime::exit`] delivers what was completed, and says goodbye.

#![warn(missing_docs)]

mod burst;
pub mod control;
mod events;
mod faults;
mod flag;
pub mod fork;
mod hand;
mod haste;
mod host;
mod lineage;
mod progress;
mod service;
mod sleepers;
mod sys;
mod wait;
mod watch;

/// The atomics of what is shared without a lock: `tests/models.rs` compiles the same files with loom's.
mod sync {
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}

pub use rerail_core as core;
pub use sys::Bell;

use parking_lot::{Condvar, Mutex, MutexGuard};
use progress::{Inbox, Outside, State};
use rerail_core::wire::sealed::SEALED_EXTRA_BYTES;
use rerail_core::{
    Completion, CqId, Engine, EngineConfig, EpId, Identity, OptionError, OptionRow, Options, PeerId,
    PostError, RailDesc, Remedies, Responder, SecretKey, Time,
};
use rerail_driver::ProgressOptions;
use rerail_rail::Rails;
use rerail_seal::{Keyring, X25519};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// The option `faults` is wrong.
    #[error("FI_RERAIL_FAULTS: {0}")]
    Faults(String),
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
    /// The engine refuses what the call asks for.
    #[error(transparent)]
    Refused(PostError),
}

/// What [`Runtime::progress_and_pop`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Popped {
    /// Entries that were appended.
    pub count: usize,
    /// The next entry is an error: fetch it with `with(|e, _| e.cq_pop(cq))`.
    pub error_next: bool,
}

/// Reads the options: calls `lookup` for every row of the table (the variable is `FI_RERAIL_` and the row's name in
/// upper case; a provider calls `fi_param_get`), and takes the default where it returns `None`.
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

/// Rank of this process on its node, if its launcher sets it.
pub fn local_rank() -> Option<u32> {
    host::local_rank(|name| std::env::var(name).ok())
}

/// Whether the option `faults` can be understood, for rails of these names.
///
/// # Errors
/// A sentence for the user.
pub fn check_faults(options: &Options, rails: &[&str]) -> Result<(), String> {
    faults::planned(&options.faults, rails).map(drop).map_err(|why| StartError::Faults(why).to_string())
}

/// How long closing may exceed the linger time, and how long a goodbye may take, before the process goes on regardless: an
/// exit never hangs.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// Longer than any job.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Longest sleep of a call that blocks until something is done: it looks again at least this often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Calls of [`Runtime::progress_and_pop`] that only give out what waits, for one that also makes progress.
const POPS_PER_PROGRESS: u32 = 4;
/// How long an exit waits for a lock before it takes its holder for interrupted: much longer than any call holds one.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);
/// How long the service thread tries the lock before it gives way: longer than a usual call of the application.
const TRY_PATIENCE: Duration = Duration::from_micros(50);
/// Stack of the threads that [`spawn`] starts.
const THREAD_STACK_BYTES: usize = 512 * 1024;

/// Values of the status word. A forked child reads [`sys::ForkWord`] as zero.
mod status {
    pub const FORKED: u32 = 0;
    pub const RUNNING: u32 = 1;
    pub const CLOSED: u32 = 2;
    pub const FAILED: u32 = 3;
}

/// A counter on a cache line of its own: written by every call, read by the service thread.
#[repr(align(64))]
struct OnOwnLine<T>(T);

/// What the runtime shares with its service thread.
struct Inner {
    state: Mutex<State>,
    outside: Outside,
    status: sys::ForkWord,
    /// Pieces of progress that the application made. Written under the lock.
    moves: OnOwnLine<AtomicU64>,
    /// Threads that wait for the lock.
    wanted: AtomicU32,
    /// Threads that sleep on the sockets.
    waiting: AtomicU32,
    /// Those of them that wait for any input.
    at_door: AtomicU32,
    /// Wakes those.
    doorbell: Bell,
    /// Coordinates the service thread and applications that sleep outside.
    watch: watch::Watch,
    haste: haste::Haste,
    /// The stream port's descriptor, which lives as long as `state`. Another one once faults were planted.
    streams_fd: AtomicI32,
    /// The service thread is to end, and has.
    stop: AtomicBool,
    ended: (Mutex<bool>, Condvar),
    rails: Vec<RailDesc>,
    endpoints: AtomicU32,
    /// The engine decides how long closing takes; this bounds it.
    linger: Duration,
    /// The control socket: its file, and its descriptor, which lives as long as the service thread.
    control: Option<(std::path::PathBuf, RawFd)>,
    closing: Mutex<()>,
}

/// The lock, held for the application. When it is released, verdicts go to the file of events before the application
/// gets the results.
struct Entered<'a> {
    /// `None` only during the drop.
    state: Option<MutexGuard<'a, State>>,
    outside: &'a Outside,
}

impl Deref for Entered<'_> {
    type Target = State;

    #[inline(always)]
    fn deref(&self) -> &State {
        self.state.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Entered<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held until it is dropped")
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        drop(self.state.take());
        self.outside.events.write_verdicts();
    }
}

/// Marks the runtime as failed when the engine panics.
struct Alarm<'a>(&'a Inner);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.0.status.get() == status::RUNNING {
            self.0.status.set(status::FAILED);
        }
    }
}

impl Inner {
    fn usable(&self) -> Result<(), RuntimeError> {
        match self.status.get() {
            status::RUNNING => Ok(()),
            status::FORKED => Err(RuntimeError::Forked),
            status::CLOSED => Err(RuntimeError::Closed),
            _ => Err(RuntimeError::Failed),
        }
    }

    /// Takes the lock for the application.
    fn enter(&self) -> Result<Entered<'_>, RuntimeError> {
        self.usable()?;
        let state = self.state.try_lock().unwrap_or_else(|| {
            self.wanted.fetch_add(1, Ordering::Relaxed);
            let state = self.state.lock();
            self.wanted.fetch_sub(1, Ordering::Relaxed);
            state
        });
        // Another thread may have failed or closed while this one waited.
        self.usable()?;
        Ok(Entered { state: Some(state), outside: &self.outside })
    }

    /// Takes the lock for the service thread, which never waits for it.
    fn try_enter(&self) -> Option<MutexGuard<'_, State>> {
        let start = sys::now();
        loop {
            if let Some(state) = self.state.try_lock() {
                return Some(state);
            }
            if sys::now().since(start) > TRY_PATIENCE {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// Makes a piece of progress for the application, and counts it, so that the service thread sees an active
    /// application. Posting alone does not count: an application that only posts receives nothing.
    fn step(&self, state: &mut State, options: ProgressOptions) {
        // Under the lock, so that no read-modify-write is needed.
        self.moves.0.store(self.moves().wrapping_add(1), Ordering::Relaxed);
        if state.burst.is_burst() {
            state.burst.judge(sys::now().ns());
        }
        if state.progress(&self.outside, options).input {
            self.wake_waiters();
        }
        state.burst.progressed(state.last().ns());
    }

    /// Wakes the threads in `wait_input`: what they wait for may have come through another thread.
    fn wake_waiters(&self) {
        if self.at_door.load(Ordering::Relaxed) > 0 {
            self.doorbell.ring();
        }
    }

    /// Appends the descriptors that are not the stream port's.
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.outside.datagrams().descriptors(out);
        out.extend(&self.outside.inbox.links_descriptors);
        out.extend([self.outside.bell.raw(), self.doorbell.raw()]);
        if self.status.get() == status::RUNNING {
            out.extend(self.control.as_ref().map(|c| c.1));
        }
    }

    fn streams_fd(&self) -> RawFd {
        self.streams_fd.load(Ordering::Acquire)
    }

    fn moves(&self) -> u64 {
        self.moves.0.load(Ordering::Relaxed)
    }
}

/// The engine, the rails and the service thread of this process. One at a time; shared by everything that is open.
pub struct Runtime {
    /// Never dropped in a forked child.
    inner: Arc<Inner>,
}

#[allow(clippy::missing_errors_doc)]
impl Runtime {
    /// Makes the engine (with a fresh key pair, and so a fresh token) and starts the service thread.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(setup: Setup) -> Result<Arc<Runtime>, StartError> {
        let system = |what| move |why| StartError::System { what, why };
        let Setup { mut options, mut rails, log } = setup;
        options.local_rank = options.local_rank.or_else(local_rank);
        let log = log.or_else(default_log);
        let mut random = [0; 72];
        sys::random(&mut random).map_err(system("get random bytes"))?;
        let (mut secret, mut later, mut seed) = ([0; 32], [0; 32], [0; 8]);
        secret.copy_from_slice(&random[..32]);
        later.copy_from_slice(&random[32..64]);
        seed.copy_from_slice(&random[64..]);
        let identity = Identity::new(&X25519, SecretKey(secret), later);

        let events = events::Sink::new(log, &options.events, &rails.rails, sys::host_name());
        for note in &rails.notes {
            events.say(LogLevel::Warn, note);
        }
        if !options.protection {
            let warning = "FI_RERAIL_PROTECTION=off: nothing is protected, and faults may go unnoticed; for measuring only";
            events.say(LogLevel::Warn, warning);
        }
        for r in &rails.rails {
            let state = if r.up { "up" } else { "down" };
            events.say(
                LogLevel::Info,
                &format!(
                    "rail: rail={} kind={} at={} datagram_bytes={} speed_mbps={} state={state}",
                    r.name,
                    r.kind().name(),
                    r.locator,
                    r.datagram_bytes_max,
                    r.speed_mbps
                ),
            );
        }
        let keys = match options.encrypt {
            true => {
                // a sealed datagram is longer and must fit the rail as well; writes of an adapter would bypass the
                // encryption
                for rail in &mut rails.rails {
                    rail.places_max = 0;
                    for bytes in [&mut rail.datagram_bytes_max, &mut rail.datagram_bytes_safe] {
                        *bytes = bytes.saturating_sub(SEALED_EXTRA_BYTES as u16);
                    }
                }
                events.say(
                    LogLevel::Info,
                    "everything that is sent is encrypted: cipher=AES-256-GCM agreement=X25519",
                );
                Some(Arc::new(Keyring::default()))
            }
            false => None,
        };
        let planned = options.faults.clone();
        let now = sys::now();
        // while a peer cannot be reached closing waits, at most until the partition's own deadline (`partition_timeout`)
        let linger = match options.linger {
            Duration::ZERO => Duration::ZERO,
            t => t + options.partition_timeout.unwrap_or(FOR_EVER),
        };
        // without it everything works but `rerail migrate`, so it is no reason not to start
        let control = control::Server::open(&options.control).unwrap_or_else(|why| {
            events.say(LogLevel::Warn, &why);
            None
        });
        let control_at = control.as_ref().map(|c| (c.path().to_owned(), c.listener_fd()));
        let engine = Engine::new(
            EngineConfig {
                identity,
                rails: rails.rails.clone(),
                options,
                encrypts: keys.is_some(),
                seed: u64::from_le_bytes(seed),
                host: host::host(),
                boot: host::boot(),
                remedies: Remedies::default(),
            },
            now,
        )
        .map_err(StartError::Engine)?;
        let state = State::new(engine, rails.streams, now);
        let streams_fd = AtomicI32::new(state.streams_fd());
        let inner = Arc::new(Inner {
            state: Mutex::new(state),
            outside: Outside {
                plain: rails.datagrams,
                planted: OnceLock::new(),
                sealed: OnceLock::new(),
                keys: keys.clone(),
                inbox: Inbox::new(rails.links),
                responder: Mutex::new(Responder::default()),
                events,
                bell: Bell::new().map_err(system("make an eventfd"))?,
            },
            status: sys::ForkWord::new().map_err(system("prepare for forks"))?,
            moves: OnOwnLine(AtomicU64::new(0)),
            wanted: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            at_door: AtomicU32::new(0),
            watch: watch::Watch::new(),
            haste: haste::Haste::new(),
            doorbell: Bell::new().map_err(system("make an eventfd"))?,
            streams_fd,
            stop: AtomicBool::new(false),
            ended: (Mutex::new(false), Condvar::new()),
            rails: rails.rails,
            endpoints: AtomicU32::new(0),
            linger,
            control: control_at,
            closing: Mutex::new(()),
        });
        faults::plant_at_start(&inner, &planned, keys.as_ref())?;
        inner.status.set(status::RUNNING);
        fork::watch(&inner);
        let service = inner.clone();
        spawn("rerail", move || {
            let life = std::panic::AssertUnwindSafe(|| {
                let _alarm = Alarm(&service);
                service::run(&service, control);
            });
            if std::panic::catch_unwind(life).is_err() {
                service.outside.events.say(LogLevel::Warn, "the service thread ended by an internal error");
                // Wakes all sleepers, so that their next call returns the failure.
                if let Some(mut state) = service.state.try_lock_for(EXIT_PATIENCE) {
                    state.sleepers.wake_all();
                }
            }
            *service.ended.0.lock() = true;
            service.ended.1.notify_all();
        })
        .map_err(system("start the service thread"))?;
        Ok(Arc::new(Runtime { inner }))
    }

    /// Gives `f` the engine and the time, then sends at once what became sendable: for posting operations, opening and
    /// closing objects, asking for addresses. Waits for the lock, which others hold only briefly. `f` must not call the
    /// runtime.
    ///
    /// # Errors
    /// [`RuntimeError`]: `f` was not called.
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine, Time) -> R) -> Result<R, RuntimeError> {
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let _alarm = Alarm(inner);
        let now = sys::now();
        let r = f(&mut state.engine, now);
        state.flush(&inner.outside, now);
        inner.hurry_watch(&state.engine);
        Ok(r)
    }

    /// The same for posting an operation of `bytes` bytes: the service thread shall notice soon when the application
    /// then computes.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn post<R>(&self, bytes: usize, f: impl FnOnce(&mut Engine, Time) -> R) -> Result<R, RuntimeError> {
        let mut posted = Time::ORIGIN;
        let r = self.with(|engine, now| {
            posted = now;
            f(engine, now)
        })?;
        if self.inner.haste.post(bytes, posted.ns()) {
            self.inner.outside.bell.ring();
        }
        Ok(r)
    }

    /// The same for posting a receive of `bytes` bytes, which sends nothing as a rule and then needs no exact time.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn post_receive<R>(
        &self,
        bytes: usize,
        f: impl FnOnce(&mut Engine, Time) -> R,
    ) -> Result<R, RuntimeError> {
        if haste::is_large(bytes) {
            return self.post(bytes, f);
        }
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let _alarm = Alarm(inner);
        let about = state.about_now();
        let r = f(&mut state.engine, about);
        if state.engine.has_output() {
            // a grant, for instance, whose round trip is measured
            state.flush(&inner.outside, sys::now());
        } else {
            state.look_for_sleepers();
        }
        inner.hurry_watch(&state.engine);
        Ok(r)
    }

    /// The same for posting a message of `bytes` bytes to a peer, which may wait some microseconds for others that are posted right after it
    /// ([`burst`]): until the next piece of progress at the latest.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn post_message<R>(
        &self,
        peer: PeerId,
        bytes: usize,
        f: impl FnOnce(&mut Engine, Time) -> R,
    ) -> Result<R, RuntimeError> {
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let _alarm = Alarm(inner);
        let now = sys::now();
        let r = f(&mut state.engine, now);
        // a message is held only while no thread sleeps: a sleeper could not send it
        let awake = inner.waiting.load(Ordering::Relaxed) == 0 && !inner.asleep();
        let holds = state.burst.holds(peer.0, bytes, now.ns()) && awake;
        if holds {
            state.look_for_sleepers();
        } else {
            state.burst.flushed();
            state.flush(&inner.outside, now);
        }
        inner.hurry_watch(&state.engine);
        drop(state);
        if inner.haste.post(bytes, now.ns()) || (holds && inner.haste.hold(now.ns())) {
            inner.outside.bell.ring();
        }
        Ok(r)
    }

    /// Gives `f` the engine, and neither sends nor receives anything: for addresses, counters, [`Engine::cq_head`].
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn inspect<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Result<R, RuntimeError> {
        let mut state = self.inner.enter()?;
        let _alarm = Alarm(&self.inner);
        let r = f(&mut state.engine);
        state.look_for_sleepers();
        Ok(r)
    }

    /// A bounded piece of progress: takes what arrived, does what is due, sends what can be sent. Never sleeps.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn progress(&self) -> Result<(), RuntimeError> {
        self.progress_with(|_, _| ())
    }

    /// Makes progress, then gives `f` the engine, under one lock. What `f` posts is sent with the next call.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn progress_with<R>(&self, f: impl FnOnce(&mut Engine, Time) -> R) -> Result<R, RuntimeError> {
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let _alarm = Alarm(inner);
        inner.step(&mut state, ProgressOptions::default());
        let now = state.last();
        let r = f(&mut state.engine, now);
        state.look_for_sleepers();
        Ok(r)
    }

    /// The same for a program that polls for the completions of one queue: streams are read only when something is expected of them, and
    /// reading ends when the queue has an entry.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn progress_for<R>(
        &self,
        cq: CqId,
        f: impl FnOnce(&mut Engine, Time) -> R,
    ) -> Result<R, RuntimeError> {
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let _alarm = Alarm(inner);
        inner.step(&mut state, ProgressOptions { streams: false, until: Some(cq) });
        let now = state.last();
        let r = f(&mut state.engine, now);
        state.look_for_sleepers();
        Ok(r)
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
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let _alarm = Alarm(inner);
        let state = &mut *state;
        if state.engine.cq_head(cq).is_none() || state.pops >= POPS_PER_PROGRESS {
            state.pops = 0;
            inner.step(state, ProgressOptions { streams: false, until: Some(cq) });
        } else {
            state.pops += 1;
            if state.burst.is_held() {
                // an application that reads completions one by one makes no progress meanwhile
                state.flush(&inner.outside, sys::now());
                state.burst.flushed();
            }
        }
        let mut popped = Popped::default();
        while let Some(head) = state.engine.cq_head(cq) {
            if head.error.is_some() {
                popped.error_next = true;
                break;
            }
            if popped.count == max {
                break;
            }
            out.extend(state.engine.cq_pop(cq));
            popped.count += 1;
        }
        // Room in one queue may let a message into another.
        state.look_for_sleepers();
        Ok(popped)
    }

    /// Sleeps until something arrived, something is due, or `max` has passed, without holding the lock. For blocking waits that
    /// depend on more than can be seen in the engine: make progress and look, and call this when there was nothing, in turn. May
    /// return early.
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn wait_input(&self, max: Duration) -> Result<(), RuntimeError> {
        let inner = &*self.inner;
        let due = inner.enter()?.engine.poll_timeout();
        let sleep = due.map_or(max, |t| t.since(sys::now()).min(max)).min(LOOK_AGAIN);
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        inner.at_door.fetch_add(1, Ordering::Relaxed);
        let datagrams = inner.outside.datagrams().fd().as_raw_fd();
        let woken =
            inner.outside.sleep_on([inner.doorbell.raw(), datagrams, inner.streams_fd()], sleep, true);
        if woken & 1 != 0 {
            inner.doorbell.silence();
        }
        inner.at_door.fetch_sub(1, Ordering::Relaxed);
        inner.waiting.fetch_sub(1, Ordering::Relaxed);
        // The next piece of progress looks at the streams.
        if let Ok(mut state) = inner.enter() {
            state.look_at_streams();
        }
        Ok(())
    }

    /// Opens an endpoint and counts it. The same as [`Engine::open_endpoint`] otherwise.
    ///
    /// # Errors
    /// As [`Runtime::with`], and [`RuntimeError::Refused`] when the numbers of endpoints are used up.
    pub fn open_endpoint(&self, tx_cq: CqId, rx_cq: CqId) -> Result<EpId, RuntimeError> {
        self.open_endpoint_by(|e| e.open_endpoint(tx_cq, rx_cq))
    }

    /// The same where something else opens the endpoint. One that is not counted ends without a goodbye: peers would wait for it, and then take
    /// its process for dead.
    ///
    /// # Errors
    /// As [`Runtime::open_endpoint`].
    pub fn open_endpoint_by<T>(
        &self,
        open: impl FnOnce(&mut Engine) -> Result<T, PostError>,
    ) -> Result<T, RuntimeError> {
        let opened = self.inspect(open)?.map_err(RuntimeError::Refused)?;
        self.inner.endpoints.fetch_add(1, Ordering::Relaxed);
        Ok(opened)
    }

    /// Closes an endpoint: blocks, making progress, until the peers have acknowledged what it sent, at most for the linger
    /// time. When it was the last one, shuts the runtime down ([`Runtime::shutdown`]) and returns `true`: the provider then
    /// forgets this runtime and starts a new one when another endpoint is opened.
    ///
    /// # Errors
    /// As [`Runtime::with`]. In a forked child nothing happens.
    pub fn close_endpoint(&self, ep: EpId) -> Result<bool, RuntimeError> {
        self.with(|e, now| e.close_endpoint(ep, now))?;
        self.until(self.inner.linger + CLOSE_PATIENCE, |e, now| e.linger_done(ep, now));
        // Returns the memory of the sends that are not complete after the linger time.
        self.with(|e, now| e.withdraw_sends(ep, now))?;
        // The adapters of this process release it by themselves; no peer has to answer.
        self.until(CLOSE_PATIENCE, |e, _| !e.lends(Some(ep)));
        let last = self.inner.endpoints.fetch_sub(1, Ordering::Relaxed) == 1;
        if last {
            self.shutdown();
        }
        Ok(last)
    }

    /// Sends a goodbye to all peers, waits (bounded) for their answers, stops the service thread and writes the last
    /// events. Afterwards every call returns [`RuntimeError::Closed`]. A second call does nothing. The sockets are
    /// closed when the runtime is dropped.
    pub fn shutdown(&self) {
        let inner = &*self.inner;
        if inner.status.get() == status::FORKED {
            return;
        }
        let _one = inner.closing.lock();
        let mut counters = None;
        if inner.status.get() == status::RUNNING {
            let _ = self.with(|e, now| e.shutdown(now));
            self.until(inner.linger + CLOSE_PATIENCE, |e, now| e.shutdown_done(now));
            counters = self.inspect(|e| e.counters()).ok();
            inner.status.set(status::CLOSED);
        }
        inner.stop.store(true, Ordering::Release);
        inner.outside.bell.ring();
        let (ended, bell) = &inner.ended;
        let mut ended = ended.lock();
        if !*ended {
            // A thread that is stuck in the log must not hold up the exit; it touches nothing that goes away.
            bell.wait_for(&mut ended, Duration::from_secs(1));
        }
        drop(ended);
        inner.outside.events.write();
        if let Some(c) = counters {
            inner.outside.events.summary(&c);
            faults::sum_up(inner);
        }
    }

    /// The process exits (`exit`, or the end of `main`) and has not closed its endpoints. Completed operations are
    /// delivered, within the linger time. The others are withdrawn at once, because their memory may be a stack frame
    /// that is gone. Then the peers get a goodbye, and the file of the control socket is removed. Does nothing in a
    /// forked child, after [`Runtime::shutdown`], and (but for the file) when the thread that exits was interrupted
    /// inside a call.
    pub fn exit(&self) {
        let inner = &*self.inner;
        if inner.status.get() == status::FORKED {
            return;
        }
        if inner.status.get() == status::RUNNING {
            self.deliver_and_part();
        }
        // The service thread does this as a rule, but it is not waited for without bound.
        if let Some((path, _)) = &inner.control {
            let _ = std::fs::remove_file(path);
        }
    }

    fn deliver_and_part(&self) {
        let inner = &*self.inner;
        // A signal handler that calls `exit` may have interrupted the holder of either lock, which will then never let go.
        let (Some(closing), Some(state)) =
            (inner.closing.try_lock_for(EXIT_PATIENCE), inner.state.try_lock_for(EXIT_PATIENCE))
        else {
            let line = "exit from within a call: what was sent last may be lost";
            inner.outside.events.say(LogLevel::Warn, line);
            return;
        };
        drop((closing, state));
        let _ = self.with(|e, now| e.abandon(now));
        self.until(CLOSE_PATIENCE, |e, _| !e.lends(None));
        self.until(inner.linger + CLOSE_PATIENCE, Engine::abandoned);
        self.shutdown();
    }

    /// Makes progress until `done` returns true, `most` has passed, or the runtime is unusable.
    fn until(&self, most: Duration, done: impl Fn(&Engine, Time) -> bool) {
        let end = sys::now() + most;
        loop {
            match self.progress_with(|e, now| done(e, now) || now >= end) {
                Ok(false) => {}
                Ok(true) | Err(_) => return,
            }
            if self.wait_input(LOOK_AGAIN).is_err() {
                return;
            }
        }
    }

    /// Whether calls can still do something.
    ///
    /// # Errors
    /// Why not.
    pub fn check_usable(&self) -> Result<(), RuntimeError> {
        self.inner.usable()
    }

    /// The rails, as they were found when the runtime was started.
    pub fn rails(&self) -> &[RailDesc] {
        &self.inner.rails
    }

    /// The monotonic time that the engine is given.
    pub fn now(&self) -> Time {
        sys::now()
    }
}

impl Drop for Runtime {
    /// Ends the service thread without a goodbye when [`Runtime::shutdown`] was not called. In a forked child nothing is
    /// touched: the connections are the parent's.
    fn drop(&mut self) {
        if self.inner.status.get() == status::FORKED {
            std::mem::forget(self.inner.clone());
            return;
        }
        self.inner.stop.store(true, Ordering::Release);
        self.inner.outside.bell.ring();
    }
}

/// Starts a thread on which no signal handler of the program runs, with a small stack.
///
/// # Errors
/// The system has no room for a thread.
pub fn spawn(
    name: &str,
    life: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    sys::without_signals(|| {
        std::thread::Builder::new().name(name.into()).stack_size(THREAD_STACK_BYTES).spawn(life)
    })
}

/// Fills `bytes` with random bits of the system.
///
/// # Errors
/// The system has none.
pub fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    sys::random(bytes)
}

/// Writes a line to standard error, in one piece: the processes of a job share it, and pieces of their lines would mix.
/// A failed write is ignored.
pub fn tell(line: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Standard error, when the environment asks for it.
fn default_log() -> Option<LogSink> {
    if std::env::var_os("RERAIL_LOG").is_some_and(|v| v != "0" && !v.is_empty()) {
        Some(Arc::new(|level, line| {
            let level = if level == LogLevel::Warn { "warn" } else { "info" };
            tell(&format!("rerail:{}: {level}: {line}", std::process::id()));
        }))
    } else {
        None
    }
}
