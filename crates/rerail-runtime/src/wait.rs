//! Sleeping until the engine has something, without calling into it.
//!
//! A sleeper *arms* a [`Bell`], under the engine's lock, with what it waits for ([`Sleepers`](crate::sleepers::Sleepers)).
//!
//! Two kinds of sleepers: a thread inside [`Runtime::wait_for`] sleeps on the sockets too and makes progress itself when it wakes; a
//! program that sleeps on the bell's descriptor by its own means ([`Runtime::arm`]) leaves the network to the service thread, which
//! takes over at once instead of waiting for the program's absence to show.

use crate::progress::State;
use crate::sleepers::Ready;
use crate::sys::Bell;
use crate::{Inner, LOOK_AGAIN, Runtime, RuntimeError, sys};
use rerail_core::{Engine, Time};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Inner {
    /// Whether the application sleeps outside: since it was armed it has made no progress, and none of its threads
    /// sleeps in a call.
    pub fn asleep(&self) -> bool {
        self.watch.is_armed(self.moves()) && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Wakes the service thread when it sleeps past the engine's next deadline.
    #[inline]
    pub fn hurry_watch(&self, engine: &Engine) {
        if self.watch.oversleeps(|| engine.poll_timeout().map(Time::ns)) {
            self.outside.bell.ring();
        }
    }

    /// Arms `bell`; when `ready` is true already, rings it instead and returns `None`.
    fn arm(&self, state: &mut State, bell: &Arc<Bell>, ready: Ready, alone: bool) -> Option<u64> {
        bell.silence();
        if ready(&state.engine) {
            bell.ring();
            return None;
        }
        Some(state.sleepers.add(bell, ready, alone))
    }
}

#[allow(clippy::missing_errors_doc)]
impl Runtime {
    /// Whether the caller may sleep on the descriptor of `bell`. `true`: the bell is silent, and will be rung when
    /// `ready` becomes true; the service thread makes progress in the meantime. `false`: `ready` is true now, and the
    /// bell is rung. Makes no progress. Arming a bell again replaces what it was armed for.
    ///
    /// `ready` is called often, under the engine's lock: it must be quick and must not call the runtime.
    ///
    /// # Errors
    /// As [`Runtime::with`]; the bell is left as it was.
    pub fn arm(
        &self,
        bell: &Arc<Bell>,
        ready: impl Fn(&Engine) -> bool + Send + 'static,
    ) -> Result<bool, RuntimeError> {
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        state.sleepers.remove_alone(bell);
        if inner.arm(&mut state, bell, Box::new(ready), true).is_none() {
            return Ok(false);
        }
        if inner.watch.arm(inner.moves()) {
            inner.hurry_watch(&state.engine);
        } else {
            inner.outside.bell.ring();
        }
        Ok(true)
    }

    /// Removes all sleepers of `bell`: what it was armed for goes away.
    pub fn disarm(&self, bell: &Arc<Bell>) {
        if let Ok(mut state) = self.inner.enter() {
            state.sleepers.remove_bell(bell);
        }
    }

    /// Sleeps until `ready` is true, `bell` is rung, something arrived, something is due, or `max` has passed, without
    /// holding the lock. For blocking waits (`fi_cq_sread`, `fi_cntr_wait`): make progress and look, and call this when
    /// there was nothing, in turn. May return early. `ready` is as for [`Runtime::arm`].
    ///
    /// # Errors
    /// As [`Runtime::with`].
    pub fn wait_for(
        &self,
        bell: &Arc<Bell>,
        max: Duration,
        ready: impl Fn(&Engine) -> bool + Send + 'static,
    ) -> Result<(), RuntimeError> {
        let inner = &*self.inner;
        let mut state = inner.enter()?;
        let Some(id) = inner.arm(&mut state, bell, Box::new(ready), false) else { return Ok(()) };
        let due = state.engine.poll_timeout();
        // Counted before the lock is released: the next holder sees that this thread watches the network.
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        drop(state);
        let sleep = due.map_or(max, |t| t.since(sys::now()).min(max)).min(LOOK_AGAIN);
        let datagrams = inner.outside.datagrams().fd().as_raw_fd();
        inner.outside.sleep_on([bell.raw(), datagrams, inner.streams_fd()], sleep, true);
        inner.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut state = inner.enter()?;
        state.sleepers.remove(id);
        // The next piece of progress looks at the streams.
        state.look_at_streams();
        Ok(())
    }
}
