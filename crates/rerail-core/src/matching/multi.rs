//! A buffer that takes many messages (FI_MULTI_RECV).
//!
//! Owns: what of it is used, and how many messages are under way in it. Invariant 4: the buffer is given back once, and only when it is
//! no longer posted and the last message in it is done.

use crate::api::completion::{Completion, CompletionError, CompletionKind};
use crate::types::{EpId, IoVec, Protocol, RecvOp};

/// Messages in a buffer begin at multiples of this.
const ALIGN: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It takes messages.
    Posted,
    /// It takes no more, and is given back with the last message in it.
    Retired,
    /// It was cancelled, or its only source is gone: reported when the last message in it is done.
    Ended(CompletionError),
}

#[derive(Debug, Clone)]
pub(crate) struct Multi {
    base: IoVec,
    used: usize,
    /// Messages placed in it whose bytes are not all there.
    pending: usize,
    state: State,
    context: usize,
    protocol: Protocol,
    completion: bool,
}

impl Multi {
    /// A buffer that was posted with `op`.
    pub fn new(op: &RecvOp<'_>, base: IoVec) -> Self {
        Self {
            base,
            used: 0,
            pending: 0,
            state: State::Posted,
            context: op.context,
            protocol: op.protocol,
            completion: op.completion,
        }
    }

    pub fn context(&self) -> usize {
        self.context
    }

    pub fn completion(&self) -> bool {
        self.completion
    }

    /// Whether messages are under way in it.
    pub fn is_in_use(&self) -> bool {
        self.pending > 0
    }

    /// Whether it takes a message of `total` bytes. One that would be cut goes to the next buffer, unless this one is empty.
    pub fn takes(&self, total: u64) -> bool {
        self.used == 0 || total <= (self.base.len - self.used) as u64
    }

    /// The place of a message of `total` bytes, which is under way from now on.
    pub fn place(&mut self, total: u64) -> IoVec {
        let len = (total as usize).min(self.base.len - self.used);
        // in the posted buffer, or at its end: used <= base.len
        let place = IoVec { ptr: self.base.ptr.wrapping_add(self.used), len };
        self.used = (self.used + len).next_multiple_of(ALIGN).min(self.base.len);
        self.pending += 1;
        place
    }

    /// Whether less is left than the next message needs at least.
    pub fn is_full(&self, bytes_min: usize) -> bool {
        self.base.len - self.used < bytes_min.max(1)
    }

    /// It is not posted any more.
    pub fn retire(&mut self) {
        self.state = State::Retired;
    }

    /// It is not posted any more, and ends with `error` when the last message in it is done.
    pub fn end(&mut self, error: CompletionError) {
        self.state = State::Ended(error);
    }

    /// A message in it is done. Whether the buffer is over; `waits`: only with the last message.
    pub fn leave(&mut self, waits: bool) -> bool {
        self.pending -= 1;
        self.state != State::Posted && (self.pending == 0 || !waits)
    }

    /// What gives the buffer back to the application, if that does not ride on the completion of its last message.
    pub fn end_of_ended(&self, ep: EpId) -> Option<Completion> {
        let State::Ended(error) = self.state else { return None };
        Some(Completion {
            multi: true,
            multi_released: true,
            error: Some(error),
            ..Completion::new(CompletionKind::Recv, self.protocol, ep, self.context)
        })
    }

    /// What gives the buffer back to the application without a message.
    pub fn release(&self, ep: EpId) -> Completion {
        Completion {
            multi: true,
            multi_released: true,
            released_only: true,
            ..Completion::new(CompletionKind::Recv, self.protocol, ep, self.context)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multi(memory: &mut [u8]) -> Multi {
        let base = IoVec::from_mut(memory);
        let op = RecvOp {
            ep: EpId(0),
            protocol: Protocol::Msg,
            tag: 0,
            ignore: 0,
            src: None,
            iov: &[base],
            context: 77,
            completion: true,
            multi: true,
        };
        Multi::new(&op, base)
    }

    #[test]
    fn messages_lie_one_behind_the_other_and_are_not_cut_unless_the_buffer_is_empty() {
        let mut memory = [0; 100];
        let mut m = multi(&mut memory);
        assert!(m.takes(1000), "an empty buffer takes the beginning of a long message");
        let first = m.place(50);
        let second = m.place(30);
        assert_eq!((first.len, second.len), (50, 30));
        assert_eq!(second.ptr as usize - first.ptr as usize, 56, "the next multiple of 8");
        assert!(m.takes(12) && !m.takes(13));
        assert!(m.is_full(13) && !m.is_full(12));
    }

    #[test]
    fn the_last_message_gives_a_retired_buffer_back() {
        let mut memory = [0; 100];
        let mut m = multi(&mut memory);
        m.place(8);
        m.place(8);
        m.place(8);
        assert!(!m.leave(true), "it is still posted");
        m.retire();
        assert!(!m.leave(true), "a message is under way in it");
        assert!(m.leave(true) && !m.is_in_use());
        assert!(m.end_of_ended(EpId(0)).is_none(), "that rides on the completion of the message");
    }

    #[test]
    fn a_cancelled_buffer_ends_with_its_error_when_its_last_message_is_done() {
        let mut memory = [0; 100];
        let mut m = multi(&mut memory);
        m.place(8);
        m.end(CompletionError::Canceled);
        assert!(m.leave(true));
        let c = m.end_of_ended(EpId(0)).expect("it was cancelled");
        assert_eq!((c.context, c.error, c.multi_released), (77, Some(CompletionError::Canceled), true));
    }
}
