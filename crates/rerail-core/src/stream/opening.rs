//! What a connection needs until it is attached to a path, and its hello or accept is written.
//!
//! Owns: the place of the other end, the answer that is expected and its deadline, and the bytes that go before any frame. Invariant: each
//! of those bytes is written once.

use crate::rest::rests;
use crate::types::{Locator, PeerId, Time};

/// See above.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Opening {
    asks: Option<PeerId>,
    from: Option<Locator>,
    nonce: [u8; 16],
    deadline: Option<Time>,
    /// Hello or accept.
    preamble: Vec<u8>,
    preamble_written: usize,
}

rests! {
    Opening = Opening {
        asks: None,
        from: None,
        nonce: [0; 16],
        deadline: None,
        preamble: Vec::new(),
        preamble_written: 0,
    };
}

impl Opening {
    /// A connection that came from there.
    pub(super) fn stranger(from: Locator) -> Self {
        Self { from: Some(from), ..Self::default() }
    }

    /// A connection that sends `hello`, and is answered with its nonce before the deadline, or closed.
    pub(super) fn hello(to: Locator, nonce: [u8; 16], hello: Vec<u8>, deadline: Time) -> Self {
        Self { from: Some(to), nonce, preamble: hello, deadline: Some(deadline), ..Self::default() }
    }

    /// A connection that only shows whether this peer's kernel accepts it.
    pub(super) fn question(to: Locator, peer: PeerId) -> Self {
        Self { from: Some(to), asks: Some(peer), ..Self::default() }
    }

    /// The peer whose kernel it tests, if it is for nothing else.
    pub fn asks(&self) -> Option<PeerId> {
        self.asks
    }

    /// Whether the other end is there: a connection, unlike a datagram, proves its source.
    pub fn is_with(&self, place: &Locator) -> bool {
        self.from.is_some_and(|f| f.same_place(place))
    }

    /// The nonce of our hello.
    pub fn nonce(&self) -> [u8; 16] {
        self.nonce
    }

    /// When it is given up if there is no answer.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// The kernel has connected it: the answer to the hello has until then.
    pub(super) fn connects(&mut self, deadline: Time) {
        self.deadline = self.deadline.map(|d| d.max(deadline));
    }

    /// It is attached.
    pub(super) fn succeeds(&mut self) {
        self.deadline = None;
    }

    /// Whether a hello or accept was written, or is to be.
    pub fn has_spoken(&self) -> bool {
        !self.preamble.is_empty()
    }

    /// This is written before any frame.
    pub(super) fn answer(&mut self, accept: Vec<u8>) {
        (self.preamble, self.preamble_written) = (accept, 0);
    }

    /// What of it is not written.
    #[inline]
    pub fn preamble(&self) -> &[u8] {
        &self.preamble[self.preamble_written..]
    }

    /// The kernel took so many of these bytes.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.preamble_written = (self.preamble_written + bytes).min(self.preamble.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_are_said_once_whatever_the_kernel_takes_at_a_time() {
        let to = Locator::ip([10, 0, 0, 1].into(), 1);
        let mut o = Opening::hello(to, [7; 16], vec![1, 2, 3], Time::from_ns(5));
        assert!(o.has_spoken() && o.deadline().is_some());
        o.wrote(2);
        assert_eq!(o.preamble(), [3]);
        o.wrote(1);
        o.succeeds();
        assert_eq!((o.preamble(), o.deadline(), o.has_spoken()), (&[][..], None, true));
        let mut o = Opening::stranger(to);
        let elsewhere = Locator::ip([10, 0, 0, 2].into(), 1);
        assert!(o.is_with(&to) && !o.is_with(&elsewhere) && !Opening::default().is_with(&to));
        assert!(!o.has_spoken() && o.preamble().is_empty());
        o.answer(vec![4, 5]);
        assert_eq!(o.preamble(), [4, 5]);
        o.wrote(2);
        o.answer(vec![6]);
        assert_eq!(o.preamble(), [6], "the next answer is said in full");
    }
}
