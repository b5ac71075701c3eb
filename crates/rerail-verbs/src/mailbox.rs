//! What the connection manager reports to the streams. Owns: the news that have not been taken.

use crate::alternate::Effect;
use crate::lane::{Lane, LaneNumber};
use parking_lot::Mutex;
use rerail_rail::thread::Signal;
use rerail_rail::{CloseReason, Locator, MemId, RemoteKey};
use std::io;
use std::mem::take;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What has become of an order, or of a connection.
pub enum News {
    /// A lane, not connected yet. `from`: the peer that opened it; `None`: this process did.
    Made {
        lane: Box<Lane>,
        from: Option<Locator>,
    },
    /// A lane that this process opened is connected.
    Established {
        lane: LaneNumber,
    },
    /// It is not, or is over.
    Ended {
        lane: LaneNumber,
        why: CloseReason,
    },
    /// Nothing touches memory for the lane any more.
    Destroyed {
        lane: LaneNumber,
    },
    Registered {
        region: MemId,
        key: RemoteKey,
    },
    Invalidated {
        region: MemId,
    },
    /// What concerns the alternate path of a lane: what is to be sent, or has happened.
    Alternate {
        lane: LaneNumber,
        effect: Effect,
    },
}

/// News, and a descriptor that is readable while there are some for which a sleeper is to wake up.
pub struct Mailbox {
    news: Mutex<Vec<News>>,
    some: AtomicBool,
    /// Lanes of which the end is waited for.
    ends_expected: AtomicUsize,
    signal: Signal,
}

impl Mailbox {
    /// Empty.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            news: Mutex::default(),
            some: AtomicBool::new(false),
            ends_expected: AtomicUsize::new(0),
            signal: Signal::new()?,
        })
    }

    /// Adds news.
    pub fn put(&self, news: News) {
        let wakes = match news {
            // A lane that is not connected is of no use to a sleeper.
            News::Made { .. } => false,
            News::Destroyed { .. } => self.ends_expected.load(Ordering::Acquire) > 0,
            _ => true,
        };
        self.add(news, wakes);
    }

    /// The end of one more lane is waited for, or of one less. Without any the news of one wakes no sleeper.
    pub fn expect_end(&self, more: bool) {
        match more {
            true => self.ends_expected.fetch_add(1, Ordering::AcqRel),
            false => self.ends_expected.fetch_sub(1, Ordering::AcqRel),
        };
    }

    /// Adds news for which no sleeper needs to wake up.
    pub fn put_quietly(&self, news: News) {
        self.add(news, false);
    }

    fn add(&self, news: News, wakes: bool) {
        let mut all = self.news.lock();
        all.push(news);
        self.some.store(true, Ordering::Release);
        if wakes {
            self.signal.set(true);
        }
    }

    /// Wakes sleepers without news, until they are taken.
    pub fn ring(&self) {
        let _all = self.news.lock();
        self.some.store(true, Ordering::Release);
        self.signal.set(true);
    }

    /// All that is there. Cheap when there is nothing.
    pub fn take(&self) -> Vec<News> {
        if !self.some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut all = self.news.lock();
        self.some.store(false, Ordering::Relaxed);
        self.signal.set(false);
        take(&mut all)
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_lane_wakes_a_sleeper_only_while_one_is_waited_for() {
        let mailbox = Mailbox::new().expect("a descriptor");
        let wakes = || {
            mailbox.put(News::Destroyed { lane: 2 });
            let woken = mailbox.signal.is_up();
            assert_eq!(mailbox.take().len(), 1, "it is there in any case");
            woken
        };
        assert!(!wakes());
        mailbox.expect_end(true);
        assert!(wakes());
        mailbox.expect_end(false);
        assert!(!wakes());
    }
}
