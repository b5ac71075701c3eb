//! Several work requests in one call: a chain, and how much of it the adapter took. Owns: the chain until it is posted.
//!
//! A call may fail in the middle. What is in front of the request that the adapter names was posted, and that one and what
//! follows was not. An adapter that fails without naming one of the chain is taken to have all of it: memory that it might
//! touch is not reused.

use crate::abi::*;
use crate::adapter::done;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Work requests of one call at most.
pub const AT_ONCE: usize = 16;

/// A work request and the memory that it names.
pub trait Request {
    fn chain(&mut self, next: *mut Self);
}

/// Something to be sent.
#[repr(C)]
pub struct Send {
    work: ibv_send_wr,
    element: ibv_sge,
}

/// Something to be received.
#[repr(C)]
pub struct Receive {
    work: ibv_recv_wr,
    element: ibv_sge,
}

impl Request for Send {
    fn chain(&mut self, next: *mut Self) {
        (self.work.sg_list, self.work.next) = (&raw mut self.element, next.cast());
    }
}

impl Request for Receive {
    fn chain(&mut self, next: *mut Self) {
        (self.work.sg_list, self.work.next) = (&raw mut self.element, next.cast());
    }
}

/// Requests that are posted together, in order.
pub struct Chain<R> {
    requests: [MaybeUninit<R>; AT_ONCE],
    count: usize,
}

/// Requests to send.
pub type Sends = Chain<Send>;
/// Requests to receive.
pub type Receives = Chain<Receive>;

impl<R: Request> Chain<R> {
    /// Empty.
    pub fn new() -> Chain<R> {
        Chain { requests: [const { MaybeUninit::uninit() }; AT_ONCE], count: 0 }
    }

    pub fn is_full(&self) -> bool {
        self.count == AT_ONCE
    }

    fn push(&mut self, request: R) {
        self.requests[self.count].write(request);
        self.count += 1;
    }

    /// Calls `post` with the first and with where it names the one that it refused. How many were posted, and why not the
    /// others. The chain is empty afterwards.
    fn post(&mut self, post: impl FnOnce(*mut R, *mut *mut R) -> i32) -> (usize, io::Result<()>) {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return (0, Ok(()));
        }
        let first = self.requests.as_mut_ptr().cast::<R>();
        for i in 0..count {
            // SAFETY: the first `count` were written.
            unsafe { (*first.add(i)).chain(if i + 1 < count { first.add(i + 1) } else { null_mut() }) };
        }
        let mut bad = null_mut();
        let result = done(post(first, &raw mut bad));
        let posted = match &result {
            Ok(()) => count,
            Err(_) => (0..count).find(|i| first.wrapping_add(*i) == bad).unwrap_or(count),
        };
        (posted, result)
    }
}

impl Sends {
    /// Adds a request. The adapter's structure says what it is, but for its memory and what follows it.
    pub fn add(&mut self, mut work: ibv_send_wr, element: ibv_sge) {
        work.num_sge = (element.length > 0).into();
        self.push(Send { work, element });
    }

    /// Posts all of them by one call; how many were posted, and why not the others.
    ///
    /// # Safety
    /// The queue pair lives; the memory of the elements is registered, and stays until the work is over.
    pub unsafe fn post_to(&mut self, qp: *mut ibv_qp) -> (usize, io::Result<()>) {
        // SAFETY: the caller's promise. A request begins with the adapter's structure.
        self.post(|first, bad| unsafe { ((*(*qp).context).ops.post_send)(qp, first.cast(), bad.cast()) })
    }
}

impl Receives {
    /// Adds a request of this name.
    pub fn add(&mut self, id: u64, into: ibv_sge) {
        let work = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        self.push(Receive { work, element: into });
    }

    /// Posts all of them by one call; how many were posted, and why not the others.
    ///
    /// # Safety
    /// As for sends.
    pub unsafe fn post_to(&mut self, qp: *mut ibv_qp) -> (usize, io::Result<()>) {
        // SAFETY: as for sends.
        self.post(|first, bad| unsafe { ((*(*qp).context).ops.post_recv)(qp, first.cast(), bad.cast()) })
    }

    /// The same to a shared receive queue.
    ///
    /// # Safety
    /// As for sends; the queue lives.
    pub unsafe fn post_to_shared(&mut self, srq: *mut ibv_srq) -> (usize, io::Result<()>) {
        // SAFETY: as for sends.
        self.post(|first, bad| unsafe {
            ((*(*srq).context).ops.post_srq_recv)(srq, first.cast(), bad.cast())
        })
    }
}

/// A request to send, without memory.
pub fn send_work(id: u64, flags: u32) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode: IBV_WR_SEND,
        send_flags: flags,
        imm_data: 0,
        wr: Target { longest: [0; 4] },
        rest: [0; 7],
    }
}

/// Posts receives of these slots, [`AT_ONCE`] by each call, and takes those that were posted off the list.
///
/// # Safety
/// As for [`Sends::post_to`].
pub unsafe fn post_receives(
    qp: *mut ibv_qp,
    slots: &mut Vec<usize>,
    request: impl Fn(usize) -> (u64, ibv_sge),
) -> io::Result<()> {
    let mut chain = Receives::new();
    while !slots.is_empty() {
        for slot in slots.iter().take(AT_ONCE) {
            let (id, into) = request(*slot);
            chain.add(id, into);
        }
        // SAFETY: the caller's promise.
        let (posted, result) = unsafe { chain.post_to(qp) };
        slots.drain(..posted);
        result?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    const ELEMENT: ibv_sge = ibv_sge { addr: 0, length: 1, lkey: 0 };

    fn receives(count: usize) -> Vec<u64> {
        fake::posted()
            .iter()
            .map(|w| if let fake::Work::Receive(n) = w { *n } else { panic!() })
            .take(count)
            .collect()
    }

    #[test]
    fn what_an_adapter_took_before_it_refused_is_known_exactly() {
        for took in 0..=20 {
            fake::posted();
            fake::refuses_after(Some(took));
            let mut slots: Vec<usize> = (0..20).collect();
            // SAFETY: the queue pair of the tests, which touches nothing.
            let result =
                unsafe { post_receives(fake::queue_pair(), &mut slots, |slot| (slot as u64, ELEMENT)) };
            fake::refuses_after(None);
            assert_eq!(receives(100), (0..took as u64).collect::<Vec<_>>());
            assert_eq!(slots, (took..20).collect::<Vec<_>>(), "those that were not posted, in order");
            assert_eq!(result.is_ok(), took == 20);
            // SAFETY: as above.
            unsafe { post_receives(fake::queue_pair(), &mut slots, |slot| (slot as u64, ELEMENT)) }.unwrap();
            assert_eq!(receives(100), (took as u64..20).collect::<Vec<_>>(), "each is posted once");
        }
    }

    #[test]
    fn an_adapter_that_does_not_say_what_it_refused_is_taken_to_have_all() {
        let mut chain = Receives::new();
        (0..3).for_each(|id| chain.add(id, ELEMENT));
        let (posted, result) = chain.post(|_, _| libc::ENOMEM);
        assert_eq!((posted, result.is_err()), (3, true));
        assert_eq!(chain.count, 0);
    }

    #[test]
    fn a_call_takes_as_many_as_a_chain_has() {
        let before = fake::calls();
        let mut slots: Vec<usize> = (0..2 * AT_ONCE + 1).collect();
        // SAFETY: as above.
        unsafe { post_receives(fake::queue_pair(), &mut slots, |slot| (slot as u64, ELEMENT)) }.unwrap();
        assert_eq!(fake::calls().receives - before.receives, 3);
        assert_eq!(receives(100).len(), 2 * AT_ONCE + 1);
    }
}
