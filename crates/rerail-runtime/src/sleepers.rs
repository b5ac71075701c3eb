//! Sleepers: threads and programs that sleep until the engine has something. Owns: what each sleeper waits for, and the
//! [`Bell`] that is rung when it is there.
//!
//! All of it is under the engine's lock: a thread that changes the engine rings the bells of the sleepers that have something to read now, and
//! disarms them. So no wake-up is lost between looking and sleeping. A process without sleepers pays for one look at an
//! empty list.

use crate::sys::Bell;
use rerail_core::Engine;
use std::sync::Arc;

/// What a sleeper waits for.
pub(crate) type Ready = Box<dyn Fn(&Engine) -> bool + Send>;

struct Sleeper {
    id: u64,
    bell: Arc<Bell>,
    ready: Ready,
    /// Outside of the runtime's calls.
    alone: bool,
}

/// All sleepers.
#[derive(Default)]
pub(crate) struct Sleepers {
    all: Vec<Sleeper>,
    next: u64,
}

impl Sleepers {
    pub fn add(&mut self, bell: &Arc<Bell>, ready: Ready, alone: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        self.all.push(Sleeper { id, bell: bell.clone(), ready, alone });
        id
    }

    /// Removes one sleeper.
    pub fn remove(&mut self, id: u64) {
        self.all.retain(|s| s.id != id);
    }

    /// Removes all sleepers of `bell`.
    pub fn remove_bell(&mut self, bell: &Arc<Bell>) {
        self.all.retain(|s| !Arc::ptr_eq(&s.bell, bell));
    }

    /// Removes the sleepers of `bell` outside of the runtime's calls.
    pub fn remove_alone(&mut self, bell: &Arc<Bell>) {
        self.all.retain(|s| !(s.alone && Arc::ptr_eq(&s.bell, bell)));
    }

    /// The engine has changed.
    #[inline]
    pub fn look(&mut self, engine: &Engine) {
        if !self.all.is_empty() {
            self.wake(|s| (s.ready)(engine));
        }
    }

    /// Wakes all: the engine will not change any more.
    pub fn wake_all(&mut self) {
        self.wake(|_| true);
    }

    #[cold]
    fn wake(&mut self, due: impl Fn(&Sleeper) -> bool) {
        self.all.retain(|s| {
            let due = due(s);
            if due {
                s.bell.ring();
            }
            !due
        });
    }
}
