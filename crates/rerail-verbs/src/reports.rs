//! What the thread that reads an adapter's events reports to the connection manager. Owns: the reports that the manager has not taken, and
//! waking it.

use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. An event is acknowledged before it is reported: nothing is destroyed before its events are acknowledged, and the manager
/// is the one that destroys. So a number or an address in a report may mean something newer when the manager looks at it.
pub struct Reports<T> {
    all: Mutex<Vec<T>>,
    some: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl<T> Reports<T> {
    /// `wake` wakes the manager.
    pub fn new(wake: Arc<OwnedFd>) -> Reports<T> {
        Reports { all: Mutex::default(), some: AtomicBool::new(false), wake }
    }

    /// One more, which `add` puts to those that wait.
    pub fn put(&self, add: impl FnOnce(&mut Vec<T>)) {
        add(&mut self.all.lock());
        self.some.store(true, Ordering::Release);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Those that came since the last call; `None`: there were none.
    pub fn take(&self) -> Option<Vec<T>> {
        let some = self.some.swap(false, Ordering::Acquire);
        some.then(|| std::mem::take(&mut *self.all.lock()))
    }
}
