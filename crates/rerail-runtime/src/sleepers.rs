//! Who sleeps until the engine has something. Owns: what each waits for, and the [`Bell`] that is rung when it is there.
//!
//! All of it is under the engine's lock: a thread that changes the engine rings the bells of the sleepers that have something to read now, and
//! disarms them. So nothing is missed between looking and sleeping, and a process without sleepers pays for one look at an empty list.

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

/// Who sleeps.
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

    /// This one sleeps no more.
    pub fn remove(&mut self, id: u64) {
        self.all.retain(|s| s.id != id);
    }

    /// Nobody sleeps on `bell` any more.
    pub fn remove_bell(&mut self, bell: &Arc<Bell>) {
        self.all.retain(|s| !Arc::ptr_eq(&s.bell, bell));
    }

    /// Nobody sleeps on `bell` alone any more.
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

    /// Nobody will change the engine any more.
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
