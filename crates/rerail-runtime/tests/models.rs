//! Every order in which two threads can pass through what the service thread and the application share without a lock: the watch
//! (`watch.rs`), the flags of queues (`flag.rs`), what a fork takes in hand (`hand.rs`) and the numbers of a process and its children
//! (`lineage.rs`). The files themselves are compiled here, with loom's atomics.
//!
//! What is shared under the engine's lock needs no model: its order is the lock's.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../src/flag.rs"]
mod flag;
#[path = "../src/hand.rs"]
mod hand;
#[path = "../src/lineage.rs"]
mod lineage;
#[path = "../src/watch.rs"]
mod watch;

use flag::Flag;
use hand::{Hand, Holding};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

/// The thread watches once, is woken by something else, and checks for a sleeper outside before it goes back to its
/// ticks; meanwhile the application goes to sleep. One of them must see the other, or the network is left unwatched.
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

/// A runtime as a fork sees it: a lock, and the descriptors that it guards, which loom watches.
struct Sockets {
    lock: AtomicBool,
    open: UnsafeCell<Vec<i32>>,
}

impl Sockets {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: AtomicBool::new(false), open: UnsafeCell::new(vec![3, 4]) })
    }

    fn open(&self) -> Vec<i32> {
        // SAFETY: loom reports a concurrent write.
        self.open.with(|open| unsafe { (*open).clone() })
    }

    /// The service thread closes one socket and opens another, if it gets the lock.
    fn replace(&self, old: i32, new: i32) -> bool {
        let got = self.try_lock();
        if got {
            // SAFETY: as above.
            self.open.with_mut(|open| unsafe {
                (*open).retain(|fd| *fd != old);
                (*open).push(new);
            });
            self.lock.store(false, Ordering::Release);
        }
        got
    }

    fn try_lock(&self) -> bool {
        self.lock.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl Holding for Arc<Sockets> {
    fn take(&self) -> bool {
        self.try_lock()
    }

    fn give_back(&self) {
        self.lock.store(false, Ordering::Release);
    }

    fn note(&self, out: &mut Vec<i32>) {
        out.extend(self.open());
    }
}

/// A thread forks while another changes the descriptors: the child closes precisely what its parent had at that moment, or nothing, and the
/// parent goes on.
#[test]
fn a_child_closes_what_its_parent_had_at_the_fork() {
    loom::model(|| {
        let sockets = Sockets::new();
        let service = {
            let s = sockets.clone();
            thread::spawn(move || s.replace(4, 5))
        };
        let hand = Hand::take(std::iter::once(sockets.clone()));
        // What the child finds in its copy of the memory is what stands there now. It takes nothing, and so closes nothing, or everything.
        let mut closed = Vec::new();
        hand.in_child(|fd| closed.push(fd));
        assert!(closed.is_empty() || closed == sockets.open(), "{closed:?}");
        hand.in_parent();
        service.join().unwrap();
        assert!(sockets.try_lock(), "it was not given back");
    });
}

/// Two threads fork at the same time, each with what the other may have in hand.
#[test]
fn two_forks_at_once_give_back_what_they_took() {
    loom::model(|| {
        let (a, b) = (Sockets::new(), Sockets::new());
        let fork = |all: [Arc<Sockets>; 2]| {
            let hand = Hand::take(all.into_iter());
            thread::yield_now();
            hand.in_parent();
        };
        let other = {
            let all = [b.clone(), a.clone()];
            thread::spawn(move || fork(all))
        };
        fork([a.clone(), b.clone()]);
        other.join().unwrap();
        assert!(a.try_lock() && b.try_lock(), "a lock was lost");
    });
}

/// Threads request the number of their process for the first time, together. A child, with a wiped word and the
/// inherited count, gets another.
#[test]
fn all_threads_know_one_number_and_a_child_another() {
    loom::model(|| {
        let process = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let ask = |p: &(AtomicU32, AtomicU32)| lineage::number(&p.0, &p.1);
        let other = {
            let p = process.clone();
            thread::spawn(move || ask(&p))
        };
        let (here, there) = (ask(&process), other.join().unwrap());
        assert!(here != 0 && here == there && here == ask(&process));
        let child = (AtomicU32::new(0), AtomicU32::new(process.1.load(Ordering::Relaxed)));
        assert!(ask(&child) > here);
    });
}
