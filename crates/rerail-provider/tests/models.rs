//! Every order in which a thread that waits at a queue and one that signals it can meet (`signal.rs`). The file itself is compiled here,
//! with loom's atomics.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, Ordering};
}
#[path = "../src/signal.rs"]
mod signal;

use loom::sync::{Arc, Mutex};
use loom::thread;
use signal::Signal;

/// A queue that stays empty. The bell is as an eventfd, rung until it is silenced, with the kernel's lock around each call.
#[derive(Default)]
struct Queue {
    signal: Signal,
    bell: Mutex<bool>,
}

#[derive(Debug, PartialEq)]
enum Wait {
    /// The signal has ended it.
    Over,
    /// It looks once more.
    Again,
    /// It sleeps until the bell is rung.
    Asleep,
}

impl Queue {
    /// One turn of `fi_cq_sread`.
    fn wait(&self) -> Wait {
        if self.signal.take() {
            return Wait::Over;
        }
        *self.bell.lock().unwrap() = false;
        if self.signal.is_up() { Wait::Again } else { Wait::Asleep }
    }

    fn signal(&self) {
        self.signal.raise(|| *self.bell.lock().unwrap() = true);
    }
}

/// Whenever the signal comes, the call that waits ends: it has seen it, will see it, or is woken by the bell and then sees it.
#[test]
fn a_signal_ends_a_wait_whenever_it_comes() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let waiting = {
            let q = queue.clone();
            thread::spawn(move || q.wait())
        };
        queue.signal();
        let last = waiting.join().unwrap();
        if last == Wait::Asleep {
            assert!(*queue.bell.lock().unwrap(), "it sleeps, and nobody wakes it");
        }
        assert_eq!(queue.signal.is_up(), last != Wait::Over, "it wakes one call, once");
    });
}

/// Two threads wait, one signals: one of them has it, and the other sleeps or looks again, and does not end.
#[test]
fn a_signal_ends_one_wait() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let q = queue.clone();
                thread::spawn(move || q.wait())
            })
            .collect();
        queue.signal();
        let over = others.into_iter().map(|t| t.join().unwrap());
        let over = over.filter(|w| *w == Wait::Over).count();
        assert_eq!(over + usize::from(queue.signal.is_up()), 1);
    });
}
