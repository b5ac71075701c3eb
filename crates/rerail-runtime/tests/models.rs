//! Every order in which two threads can pass through what the service thread and the application share without a lock: the watch
//! (`watch.rs`) and the flags of queues (`flag.rs`). The files themselves are compiled here, with loom's atomics.
//!
//! What is shared under the engine's lock needs no model: its order is the lock's.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}
#[path = "../src/flag.rs"]
mod flag;
#[path = "../src/watch.rs"]
mod watch;

use flag::Flag;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use watch::Watch;

/// What both have: the engine's next deadline and its lock, the watch, the count of progress, and the bell of the thread.
struct Shared {
    due: Mutex<u64>,
    watch: Watch,
    bell: AtomicBool,
}

impl Shared {
    fn new(due: u64) -> Arc<Self> {
        Arc::new(Self { due: Mutex::new(due), watch: Watch::new(), bell: AtomicBool::new(false) })
    }

    /// The thread goes to sleep until the deadline that it finds, which is returned.
    fn begin(&self) -> u64 {
        let due = self.due.lock().unwrap();
        self.watch.begin(*due);
        *due
    }

    fn ring(&self) {
        self.bell.store(true, Ordering::SeqCst);
    }
}

/// The thread watches once, is woken by something else, and asks whether anybody sleeps outside before it goes back to its ticks;
/// meanwhile the application goes to sleep. One of them must know of the other, or nobody looks after the network.
#[test]
fn who_goes_to_sleep_is_seen_or_wakes_the_thread() {
    loom::model(|| {
        let shared = Shared::new(100);
        let service = {
            let s = shared.clone();
            thread::spawn(move || {
                s.begin();
                // woken by its control socket, say
                s.watch.end();
                s.watch.is_armed(0)
            })
        };
        if !shared.watch.arm(0) {
            shared.ring();
        }
        let seen = service.join().unwrap();
        assert!(seen || shared.bell.load(Ordering::SeqCst), "it sleeps, and nobody watches");
    });
}

/// The thread goes to sleep until the deadline that it found; the application brings the deadline forward. The thread sleeps no
/// longer than to the new one, or is woken.
#[test]
fn a_deadline_that_comes_forward_is_not_overslept() {
    loom::model(|| {
        let shared = Shared::new(100);
        let service = {
            let s = shared.clone();
            thread::spawn(move || s.begin())
        };
        let mut due = shared.due.lock().unwrap();
        *due = 10;
        if shared.watch.oversleeps(|| Some(*due)) {
            shared.ring();
        }
        drop(due);
        let until = service.join().unwrap();
        assert!(until <= 10 || shared.bell.load(Ordering::SeqCst), "it sleeps until {until}");
    });
}

/// An application that sleeps, makes progress, and sleeps again: the thread takes the first sleep for over.
#[test]
fn progress_ends_a_sleep() {
    loom::model(|| {
        let watch = Watch::new();
        let _ = watch.arm(7);
        assert!(watch.is_armed(7) && !watch.is_armed(8));
        let _ = watch.arm(8);
        assert!(watch.is_armed(8) && !watch.is_armed(7));
        let last = Watch::new();
        assert!(!last.is_armed(u64::MAX), "never armed is not armed, whatever the count");
    });
}

/// One thread puts two things in, the other takes out what it finds, twice at most: what is left has its flag up.
#[test]
fn a_queue_that_has_something_has_its_flag_up() {
    loom::model(|| {
        let shared = Arc::new((Flag::new(), Mutex::new(0)));
        let putting = {
            let s = shared.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let mut queue = s.1.lock().unwrap();
                    *queue += 1;
                    s.0.raise();
                }
            })
        };
        let mut taken = 0;
        for _ in 0..2 {
            if shared.0.is_up() {
                shared.0.lower();
                taken += std::mem::take(&mut *shared.1.lock().unwrap());
            }
        }
        putting.join().unwrap();
        let left = *shared.1.lock().unwrap();
        assert_eq!(taken + left, 2);
        assert!(left == 0 || shared.0.is_up(), "{left} things lie there, and nobody is told");
    });
}
