//! The service thread: keeps the process alive on the network while the application does something else.
//!
//! Three situations, told apart without a lock:
//!
//! * **The application makes progress** (its counter moves, or it sleeps on the sockets in a call of ours). The thread only
//!   *ticks*: it waits for link events and its bell, and looks at the counter now and then ([`crate::haste`]). Packets do not wake it.
//! * **The application has been away for a tick** (it computes), **or sleeps outside** (on a descriptor of ours). The thread
//!   *takes over*: it sleeps on the sockets and on the engine's next deadline, and makes progress under `Inner::try_enter`, in bounded
//!   pieces, until the counter moves.
//! * **The application keeps the lock** (preempted or stopped inside a call, hazard H17). The thread reads datagrams
//!   itself, answers queries through the shared responder and marks the answers (*bypass*), and keeps everything else
//!   for the next thread that gets the lock.
//!
//! It never waits for the engine's lock, and it never spins for more than [`TRY_PATIENCE`](crate::TRY_PATIENCE).

use crate::control::Server;
use crate::progress::SMALL_LOCK_PATIENCE;
use crate::{Inner, sys};
use parking_lot::MutexGuard;
use rerail_core::{Answerer, Datagram, Respond, Time};
use rerail_driver::ProgressOptions;
use rerail_rail::Condition;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Shortest sleep when the engine's deadline has passed and nothing arrives: a deadline that stays in the past must not
/// become a busy loop.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// Longest sleep; only a bound against a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// First and longest pause between attempts at a lock that is held on to.
const BYPASS_SLEEP: Duration = Duration::from_millis(1);
const BYPASS_SLEEP_MAX: Duration = Duration::from_millis(20);
/// Datagrams read in one go without the engine.
const BYPASS_DATAGRAMS_MAX: usize = 256;

/// How often it checks whether an encrypted session is worn: the check reads a word of each session.
const WEAR_INTERVAL: Duration = Duration::from_secs(1);

/// When to look for worn sessions next.
struct Wear(Time);

impl Wear {
    /// Renews the sessions of this process when the counter of one of them is worn (`rerail_seal`).
    fn look(&mut self, inner: &Inner) {
        let now = sys::now();
        if now < self.0 {
            return;
        }
        self.0 = now + WEAR_INTERVAL;
        if !inner.outside.keys.as_ref().is_some_and(|keys| keys.is_worn()) {
            return;
        }
        let mut random = [0; 32];
        // without random bytes, or the lock, it retries a second later: the counters last for days
        if let (Ok(()), Some(mut state)) = (sys::random(&mut random), inner.try_enter()) {
            state.engine.renew_sessions(&random, now);
            state.progress(&inner.outside, ProgressOptions::default());
        }
    }
}

/// The life of the thread.
pub(crate) fn run(inner: &Arc<Inner>, mut control: Option<Server>) {
    let bell = inner.outside.bell.raw();
    let links = inner.outside.inbox.links_fd;
    let mut seen = inner.moves();
    let mut wear = Wear(sys::now());
    while !inner.stop.load(Ordering::Acquire) {
        wear.look(inner);
        // An application that sleeps outside makes no progress: no tick is needed to detect that.
        let begin = sys::now();
        let tick = if inner.asleep() { Duration::ZERO } else { inner.haste.tick(begin.ns()) };
        let woken = sys::sleep_on([bell, links, control_fd(control.as_ref())], Some(tick));
        if woken == 0 && !tick.is_zero() {
            inner.haste.woke_late(sys::now().since(begin).saturating_sub(tick));
        }
        if woken & 1 != 0 {
            inner.outside.bell.silence();
        }
        if woken & 2 != 0 && inner.outside.inbox.look_at_links() {
            // An active application takes them with its next call; this covers an inactive or slow one.
            if let Some(mut state) = inner.try_enter() {
                state.progress(&inner.outside, ProgressOptions::default());
            }
        }
        if let Some(c) = control.as_mut().filter(|c| woken & 4 != 0 || c.has_client()) {
            c.serve(inner);
        }
        inner.outside.events.write();
        let moves = inner.moves();
        if moves != seen || inner.waiting.load(Ordering::Relaxed) > 0 {
            seen = moves;
        } else if woken == 0 {
            take_over(inner, &mut control, &mut wear, seen);
            inner.haste.begin(sys::now().ns());
            seen = inner.moves();
        }
    }
    inner.outside.events.write();
}

/// The descriptor of the control socket; without one -1, which `poll` ignores.
fn control_fd(control: Option<&Server>) -> RawFd {
    control.map_or(-1, Server::fd)
}

/// Makes progress until the application does (its counter leaves `seen`, and it does not sleep outside) or the thread is to stop.
fn take_over(inner: &Arc<Inner>, control: &mut Option<Server>, wear: &mut Wear, mut seen: u64) {
    let bell = inner.outside.bell.raw();
    let links = inner.outside.inbox.links_fd;
    let mut pause = BYPASS_SLEEP;
    loop {
        wear.look(inner);
        // Read each time: planting faults replaces the port.
        let datagrams = inner.outside.datagrams().fd().as_raw_fd();
        let woken = if let Some(mut state) = inner.try_enter() {
            pause = BYPASS_SLEEP;
            let mut done = state.progress(&inner.outside, ProgressOptions { streams: true, until: None });
            // More pieces at once, but in between the lock goes to a thread that waits for it.
            while done.more
                && inner.wanted.load(Ordering::Relaxed) == 0
                && !inner.stop.load(Ordering::Relaxed)
            {
                MutexGuard::bump(&mut state);
                done = state.progress(&inner.outside, ProgressOptions { streams: true, until: None });
            }
            let now = sys::now();
            let sleep =
                state.engine.poll_timeout().map_or(SLEEP_MAX, |t| t.since(now).clamp(SLEEP_MIN, SLEEP_MAX));
            inner.watch.begin((now + sleep).ns());
            drop(state);
            if done.input {
                inner.wake_waiters();
            }
            inner.outside.events.write();
            let woken = inner.outside.sleep_on(
                [bell, links, control_fd(control.as_ref()), datagrams, inner.streams_fd()],
                sleep,
                true,
            );
            inner.watch.end();
            woken
        } else {
            bypass(inner);
            inner.outside.events.write();
            // Without the streams: they stay readable until a thread with the lock reads them.
            let fds = [bell, links, control_fd(control.as_ref()), datagrams];
            let woken = inner.outside.sleep_on(fds, pause, false);
            pause = (pause * 2).min(BYPASS_SLEEP_MAX);
            woken
        };
        if woken & 1 != 0 {
            inner.outside.bell.silence();
        }
        if woken & 2 != 0 {
            inner.outside.inbox.look_at_links();
        }
        if let Some(c) = control.as_mut().filter(|c| woken & 4 != 0 || c.has_client()) {
            c.serve(inner);
        }
        if inner.asleep() {
            // The application made progress, and sleeps again.
            seen = inner.moves();
        }
        let active = inner.moves() != seen || inner.waiting.load(Ordering::Relaxed) > 0;
        if active || inner.stop.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Reads datagrams without the engine: answers the queries, keeps the rest.
fn bypass(inner: &Inner) {
    let mut buf = vec![0; 65_536];
    let mut answer = Datagram::default();
    for _ in 0..BYPASS_DATAGRAMS_MAX {
        let Ok(Some(t)) = inner.outside.datagrams().recv_train(&mut buf) else { return };
        if t.condition != Condition::Whole {
            // it is useless, and the engine, which counts such datagrams, is locked
            continue;
        }
        for bytes in buf[..t.len].chunks(t.segment) {
            // Held for a moment only, but the holder may be the very thread that is stopped.
            let Some(mut responder) = inner.outside.responder.try_lock_for(SMALL_LOCK_PATIENCE) else {
                inner.outside.inbox.stash(t.rail, t.from, bytes);
                continue;
            };
            let what = responder.respond(t.rail, bytes, Answerer::Bypass, &mut answer);
            drop(responder);
            match what {
                Respond::Answered => {
                    inner.outside.datagrams().send(answer.rail, answer.to, &answer.bytes);
                }
                Respond::ForEngine => inner.outside.inbox.stash(t.rail, t.from, bytes),
                Respond::Dropped => {}
            }
        }
    }
}
