//! How a thread sleeps until an adapter has something. Owns: the completion queues of the lanes, because a thread that is
//! going to sleep looks into them without the engine's lock.
//!
//! A completion queue reports only entries that come after it was armed, so it is armed, and then looked into. What is
//! found so is kept in front of what comes later: entries of a lane are handled in their order.
//!
//! The end of a message that was sent wakes no sleeper. The end of a write does, and so does that of a message for which the
//! engine waits: [`Sleep::expect_sends`]. What has come and is not read lies in no queue: [`Sleep::keep_awake`].

use crate::abi::ibv_wc;
use crate::completions::Completions;
use parking_lot::Mutex;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Entries of a completion queue that are taken at once.
const AT_ONCE: usize = 32;

/// See the module.
pub struct Sleep {
    queues: Vec<Arc<Completions>>,
    /// Found by a thread that was going to sleep.
    early: Mutex<Vec<ibv_wc>>,
    /// Threads that sleep, or are going to.
    sleepers: AtomicU32,
    /// The ends of what is sent are to end a sleep.
    sends: AtomicBool,
    /// Something has come that the engine has not taken.
    untaken: AtomicBool,
    epoll: OwnedFd,
}

/// A descriptor that is readable when one of these is.
pub fn any_of<'a>(all: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in all {
        epoll::add(&any, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(any)
}

impl Sleep {
    /// With the descriptor of the manager's news.
    pub fn new(queues: Vec<Arc<Completions>>, news: BorrowedFd<'_>) -> io::Result<Sleep> {
        let epoll = any_of(queues.iter().map(|q| q.fd()).chain([news]))?;
        Ok(Sleep {
            queues,
            early: Mutex::default(),
            sleepers: AtomicU32::new(0),
            sends: AtomicBool::new(false),
            untaken: AtomicBool::new(false),
            epoll,
        })
    }

    /// A thread is going to sleep. [`Sleep::leave`] follows.
    pub fn enter(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// It is awake.
    pub fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// It is going to wait for lanes too; whether there is something already.
    pub fn before(&self) -> bool {
        // What a queue reported before is looked for below. Not by every poll: it is a system call.
        self.queues.iter().for_each(|q| q.silence());
        // Either this sees what is expected, or the thread that expects it sees that it sleeps.
        fence(Ordering::SeqCst);
        let sends = self.sends.load(Ordering::Relaxed);
        self.queues.iter().for_each(|q| q.arm(sends));
        // Arming without them may have undone what such a thread did meanwhile.
        if !sends && self.sends.load(Ordering::Acquire) {
            self.queues.iter().for_each(|q| q.arm(true));
        }
        let mut early = self.early.lock();
        self.fill(&mut early);
        !early.is_empty() || self.untaken.load(Ordering::Acquire)
    }

    /// From now on the end of what is sent ends a sleep, also one that has begun. To be called before it is sent.
    pub fn expect_sends(&self) {
        self.sends.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.queues.iter().for_each(|q| q.arm(true));
        }
    }

    /// Whether it does.
    #[cfg(test)]
    pub fn expects_sends(&self) -> bool {
        self.sends.load(Ordering::Acquire)
    }

    /// Whether something has come that the engine has not taken: no thread goes to sleep then.
    pub fn keep_awake(&self, untaken: bool) {
        self.untaken.store(untaken, Ordering::Release);
    }

    /// The end of what is sent ends no sleep from now on.
    pub fn expect_no_sends(&self) {
        self.sends.store(false, Ordering::Relaxed);
    }

    fn fill(&self, into: &mut Vec<ibv_wc>) {
        for queue in &self.queues {
            let mut entries = [ibv_wc::default(); AT_ONCE];
            let n = queue.poll(&mut entries);
            into.extend_from_slice(&entries[..n]);
        }
    }

    /// Appends what has come, in order. No system call.
    pub fn take(&self, into: &mut Vec<ibv_wc>) {
        let mut early = self.early.lock();
        into.append(&mut early);
        self.fill(into);
    }

    /// The queues.
    pub fn queues(&self) -> &[Arc<Completions>] {
        &self.queues
    }

    /// Readable when there is something, after [`Sleep::before`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
