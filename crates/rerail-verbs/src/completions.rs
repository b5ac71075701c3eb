//! A completion queue of an adapter. Owns: the queue, the descriptor that reports its entries to a sleeper, and the desk at which
//! those of shared receive queues get their lanes.

use crate::abi::*;
use crate::adapter::{Adapter, made};
use crate::desk::Desk;
use parking_lot::Mutex;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;

/// A completion queue, and the descriptor that reports its entries to a sleeper.
pub struct Completions {
    adapter: Arc<Adapter>,
    channel: *mut ibv_comp_channel,
    queue: *mut ibv_cq,
    /// `None`: no shared receive queue reports here.
    desk: Option<Mutex<Desk>>,
}

// SAFETY: as for `Adapter`.
unsafe impl Send for Completions {}
// SAFETY: as for `Adapter`.
unsafe impl Sync for Completions {}

impl Completions {
    /// One that is never used, nor dropped.
    #[cfg(test)]
    pub fn of_nothing(adapter: &Arc<Adapter>) -> Completions {
        Completions { adapter: adapter.clone(), channel: null_mut(), queue: null_mut(), desk: None }
    }

    /// Shared receive queues may report here too.
    pub fn of_shared(mut self) -> Completions {
        self.desk = Some(Mutex::default());
        self
    }

    /// Lets something change the desk, if it has one, with a function by which that takes off what has come.
    pub fn at_desk(&self, change: impl FnOnce(&mut Desk, &dyn Fn(&mut [ibv_wc]) -> usize)) {
        if let Some(desk) = &self.desk {
            change(&mut desk.lock(), &|entries| self.poll_queue(entries));
        }
    }

    /// With room for `entries`.
    pub fn new(adapter: &Arc<Adapter>, entries: usize) -> io::Result<Completions> {
        let library = adapter.library;
        // SAFETY: the context lives.
        let channel = made(unsafe { (library.ibv_create_comp_channel)(adapter.context) })?;
        let mut made_now = Completions { adapter: adapter.clone(), channel, queue: null_mut(), desk: None };
        // SAFETY: as above.
        let queue =
            unsafe { (library.ibv_create_cq)(adapter.context, entries as i32, null_mut(), channel, 0) };
        made_now.queue = made(queue)?;
        // SAFETY: its descriptor, which lives as long as the channel.
        let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
        rustix::io::ioctl_fionbio(fd, true)?;
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(made_now)
    }

    /// For the making of queue pairs.
    pub fn queue(&self) -> *mut ibv_cq {
        self.queue
    }

    /// Takes entries off, and returns how many. No system call.
    pub fn poll(&self, entries: &mut [ibv_wc]) -> usize {
        match &self.desk {
            Some(desk) => desk.lock().poll(entries, |entries| self.poll_queue(entries)),
            None => self.poll_queue(entries),
        }
    }

    fn poll_queue(&self, entries: &mut [ibv_wc]) -> usize {
        // SAFETY: the queue lives, and there is room for as many entries as are named.
        let n = unsafe {
            ((*self.adapter.context).ops.poll_cq)(self.queue, entries.len() as i32, entries.as_mut_ptr())
        };
        // It is negative when the queue is broken; the device event that comes with it ends the rail.
        usize::try_from(n).unwrap_or(0)
    }

    /// The next entry makes the descriptor readable. Those that came before it may not. Without `sends` the ends of what
    /// this process sends do not, unless they are errors.
    pub fn arm(&self, sends: bool) {
        let solicited_only = !sends && self.adapter.tells_solicited();
        // SAFETY: the queue lives.
        unsafe { ((*self.adapter.context).ops.req_notify_cq)(self.queue, i32::from(solicited_only)) };
    }

    /// Makes the descriptor unreadable.
    pub fn silence(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel lives and does not block.
        while unsafe {
            (self.adapter.library.ibv_get_cq_event)(self.channel, &raw mut queue, &raw mut context)
        } == 0
        {
            // SAFETY: the queue that was reported.
            unsafe { (self.adapter.library.ibv_ack_cq_events)(queue, 1) };
        }
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: no queue pair uses it any more: those of lanes are destroyed before the manager's thread ends, which has an
        // `Arc` of this, and that of datagrams before the queues of its port.
        unsafe {
            if !self.queue.is_null() {
                (self.adapter.library.ibv_destroy_cq)(self.queue);
            }
            (self.adapter.library.ibv_destroy_comp_channel)(self.channel);
        }
    }
}
