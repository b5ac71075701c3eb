//! Errors that an adapter reports of single queue pairs and shared receive queues. Owns: those that the connection manager has not seen.
//!
//! Most errors of a queue pair end a piece of work, whose completion tells of them. What has no work under way, or fails where
//! work is fetched or reported, is told by an asynchronous event alone (InfiniBand specification, 11.6.3.1). A shared queue in error
//! gives no receive to any of its lanes, and never recovers, so new lanes must not join it.

use crate::reports::Reports;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// A queue pair, by its number.
    QueuePair(u32),
    /// A shared receive queue, by its address in libibverbs. It is only compared.
    SharedQueue(usize),
}

/// On their way to the connection manager. What is named by a number or an address that has come to mean something newer is ended without
/// need, and made again.
pub struct Failures(Reports<Failed>);

impl Failures {
    /// `wake` wakes the manager.
    pub fn new(wake: Arc<OwnedFd>) -> Failures {
        Failures(Reports::new(wake))
    }

    /// One more. What is reported again and again is kept once, so there are never more than queues.
    pub fn put(&self, failed: Failed) {
        self.0.put(|all| {
            if !all.contains(&failed) {
                all.push(failed);
            }
        });
    }

    /// Those that came since the last call.
    pub fn take(&self) -> Vec<Failed> {
        self.0.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn the_manager_is_woken_and_gets_each_failure_once() {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let failures = Failures::new(wake.clone());
        assert_eq!(failures.take(), []);
        let both = [Failed::QueuePair(7), Failed::SharedQueue(7)];
        (0..100).for_each(|i| failures.put(both[i % 2]));
        assert!(rustix::io::read(&*wake, &mut [0; 8][..]).is_ok(), "it is woken");
        assert_eq!((failures.take(), failures.take()), (both.to_vec(), vec![]));
    }
}
