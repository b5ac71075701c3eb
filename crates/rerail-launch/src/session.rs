//! Messages between two ends that outlive their connection: each arrives once and in order, whatever connections break meanwhile.
//!
//! Owns: the numbers of messages, and what was sent and not acknowledged yet. A frame is the number of a message (0: none), the number up to which
//! everything has arrived, and the message. When a connection is made again both ends begin with a frame without a message, with the number of what has
//! arrived; the rest goes again.
//!
//! Invariant: what was acknowledged is never sent again; what was not is kept.

use std::collections::VecDeque;

/// Bytes before a message.
pub const FRAME_BYTES: usize = 16;
/// While so many bytes are not acknowledged, an end should produce no more.
pub const KEPT_BYTES_MAX: usize = 1 << 20;

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Too short.
    #[error("a frame without its numbers")]
    Short,
    /// A message is missing before this one, or something was acknowledged that was never sent.
    #[error("numbers that do not follow")]
    Order,
}

/// One end.
#[derive(Debug, Default)]
pub struct Session {
    /// The last number that was given.
    last: u64,
    /// Not acknowledged yet, in order.
    kept: VecDeque<(u64, Vec<u8>)>,
    kept_bytes: usize,
    /// The next of these that goes over the connection there is.
    next: usize,
    /// What has arrived.
    arrived: u64,
    /// What of it this end has acknowledged.
    answered: u64,
}

impl Session {
    /// A message is to be sent.
    pub fn push(&mut self, message: Vec<u8>) {
        self.last += 1;
        self.kept_bytes += message.len();
        self.kept.push_back((self.last, message));
    }

    /// There is a new connection: what is not known to have arrived goes again.
    pub fn connected(&mut self) {
        self.next = 0;
    }

    /// The next frame to be sent, if there is one: a message, or an acknowledgement that is due.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        if let Some((number, message)) = self.kept.get(self.next) {
            let frame = frame(*number, self.arrived, message);
            self.next += 1;
            self.answered = self.arrived;
            return Some(frame);
        }
        (self.answered < self.arrived).then(|| self.greeting())
    }

    /// Whether [`Session::poll`] has something.
    pub fn wants(&self) -> bool {
        self.next < self.kept.len() || self.answered < self.arrived
    }

    /// A frame without a message: what has arrived. It begins a connection, and shows that this end is there.
    pub fn greeting(&mut self) -> Vec<u8> {
        self.answered = self.arrived;
        frame(0, self.arrived, &[])
    }

    /// A frame has arrived. Returns its message, if it is a new one.
    ///
    /// # Errors
    /// What is wrong with it: the connection is of no use.
    pub fn arrived<'a>(&mut self, frame: &'a [u8]) -> Result<Option<&'a [u8]>, Wrong> {
        let (head, message) = frame.split_at_checked(FRAME_BYTES).ok_or(Wrong::Short)?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
        let (number, acknowledged) = (number(0), number(8));
        if acknowledged > self.last {
            return Err(Wrong::Order);
        }
        while self.kept.front().is_some_and(|kept| kept.0 <= acknowledged) {
            let (_, message) = self.kept.pop_front().expect("there is one");
            self.kept_bytes -= message.len();
            self.next = self.next.saturating_sub(1);
        }
        if number > self.arrived + 1 {
            return Err(Wrong::Order);
        }
        if number <= self.arrived {
            return Ok(None);
        }
        self.arrived = number;
        Ok(Some(message))
    }

    /// Whether so much waits that this end should produce no more.
    pub fn is_full(&self) -> bool {
        self.kept_bytes >= KEPT_BYTES_MAX
    }

    /// Whether everything was acknowledged.
    pub fn is_idle(&self) -> bool {
        self.kept.is_empty()
    }
}

fn frame(number: u64, acknowledged: u64, message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_BYTES + message.len());
    frame.extend(number.to_le_bytes());
    frame.extend(acknowledged.to_le_bytes());
    frame.extend(message);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that waits at one end goes to the other, unless the connection breaks after so many frames.
    fn pass(from: &mut Session, to: &mut Session, frames: usize) -> Vec<u8> {
        let mut got = Vec::new();
        for _ in 0..frames {
            let Some(frame) = from.poll() else { break };
            got.extend(to.arrived(&frame).unwrap().unwrap_or_default());
        }
        got
    }

    #[test]
    fn every_message_arrives_once_and_in_order_whatever_breaks() {
        for broken_after in 0..6 {
            for acks in 0..3 {
                let (mut a, mut b) = (Session::default(), Session::default());
                (0..5).for_each(|n| a.push(vec![n]));
                let mut got = pass(&mut a, &mut b, broken_after);
                // and some is under way when the connection breaks
                (0..acks).for_each(|_| drop(a.poll()));
                // some of what b acknowledges is lost as well
                pass(&mut b, &mut a, acks);
                a.connected();
                b.connected();
                let (of_a, of_b) = (a.greeting(), b.greeting());
                assert_eq!((a.arrived(&of_b), b.arrived(&of_a)), (Ok(None), Ok(None)));
                a.push(vec![5]);
                got.extend(pass(&mut a, &mut b, 99));
                assert_eq!(got, [0, 1, 2, 3, 4, 5], "broken after {broken_after}");
                pass(&mut b, &mut a, 99);
                assert!(a.is_idle() && a.kept_bytes == 0 && a.poll().is_none() && b.poll().is_none());
            }
        }
    }

    #[test]
    fn an_end_that_is_not_read_is_full_and_numbers_that_do_not_follow_are_refused() {
        let mut a = Session::default();
        a.push(vec![0; KEPT_BYTES_MAX]);
        assert!(a.is_full() && !a.is_idle());
        assert_eq!(a.arrived(&frame(2, 0, b"x")), Err(Wrong::Order), "one is missing");
        assert_eq!(a.arrived(&frame(1, 2, b"x")), Err(Wrong::Order), "never sent");
        assert_eq!(a.arrived(&[0; FRAME_BYTES - 1]), Err(Wrong::Short));
        assert_eq!(a.arrived(&frame(1, 1, b"x")), Ok(Some(&b"x"[..])));
        assert!(!a.is_full() && a.is_idle());
        assert_eq!(a.arrived(&frame(1, 1, b"x")), Ok(None), "again");
    }
}
