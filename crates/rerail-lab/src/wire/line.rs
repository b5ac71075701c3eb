//! Frames under way. Owns: those that have not arrived yet.
//!
//! Invariants: at most [`HELD_BYTES_MAX`] are held, what comes on top is lost and counted; frames that are not held back leave in
//! the order in which they came, also when the delay gets shorter.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// As much as a long line at 10 Gbit/s holds in 50 ms.
pub(super) const HELD_BYTES_MAX: usize = 64 << 20;

/// A frame under way.
#[derive(PartialEq, Eq)]
struct Held {
    due: Instant,
    turn: u64,
    /// Its bytes, the TAP's header included.
    bytes: Vec<u8>,
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        (self.due, self.turn).cmp(&(other.due, other.turn))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The frames of one sender.
#[derive(Default)]
pub(super) struct Line {
    frames: BinaryHeap<Reverse<Held>>,
    bytes: usize,
    turn: u64,
    /// When the last frame leaves that was not held back.
    last: Option<Instant>,
}

impl Line {
    /// Whether no frame is under way.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes a frame that leaves `delay` after `now`, and `held_back` later. Returns whether there was room.
    pub fn push(&mut self, now: Instant, delay: Duration, held_back: Duration, bytes: &[u8]) -> bool {
        if self.bytes + bytes.len() > HELD_BYTES_MAX {
            return false;
        }
        let in_order = self.last.map_or(now + delay, |last| last.max(now + delay));
        self.last = Some(in_order);
        self.turn += 1;
        self.bytes += bytes.len();
        self.frames.push(Reverse(Held { due: in_order + held_back, turn: self.turn, bytes: bytes.to_vec() }));
        true
    }

    /// The next frame whose time has come.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.frames.peek()?.0.due > now {
            return None;
        }
        let Reverse(frame) = self.frames.pop()?;
        self.bytes -= frame.bytes.len();
        if self.frames.is_empty() {
            self.last = None;
        }
        Some(frame.bytes)
    }

    /// When the next frame leaves.
    pub fn next(&self) -> Option<Instant> {
        self.frames.peek().map(|frame| frame.0.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn leaving(line: &mut Line, at: Instant) -> Vec<u8> {
        std::iter::from_fn(|| line.pop(at)).map(|frame| frame[0]).collect()
    }

    #[test]
    fn frames_leave_in_order_though_the_delay_shrinks() {
        let (mut line, t) = (Line::default(), Instant::now());
        assert!(line.push(t, 10 * MS, Duration::ZERO, &[1]));
        assert!(line.push(t, 2 * MS, Duration::ZERO, &[2]));
        assert!(line.push(t + MS, Duration::ZERO, Duration::ZERO, &[3]));
        assert_eq!((leaving(&mut line, t + 9 * MS), line.next()), (vec![], Some(t + 10 * MS)));
        assert_eq!(leaving(&mut line, t + 10 * MS), [1, 2, 3]);
        // nothing of the old delay is left once the line is empty
        line.push(t + 11 * MS, MS, Duration::ZERO, &[4]);
        assert_eq!(line.next(), Some(t + 12 * MS));
    }

    #[test]
    fn what_is_held_back_is_overtaken_and_holds_up_nobody() {
        let (mut line, t) = (Line::default(), Instant::now());
        line.push(t, Duration::ZERO, 5 * MS, &[1]);
        line.push(t, Duration::ZERO, Duration::ZERO, &[2]);
        assert_eq!(leaving(&mut line, t), [2]);
        line.push(t + MS, Duration::ZERO, Duration::ZERO, &[3]);
        assert_eq!(leaving(&mut line, t + 5 * MS), [3, 1]);
        assert!(line.is_empty());
    }

    #[test]
    fn a_full_line_takes_no_more_until_something_left() {
        let (mut line, t) = (Line::default(), Instant::now());
        let block = vec![0; 1 << 20];
        let taken = (0..100).filter(|_| line.push(t, MS, Duration::ZERO, &block)).count();
        assert_eq!(taken, HELD_BYTES_MAX >> 20);
        assert!(line.pop(t + MS).is_some() && line.push(t, MS, Duration::ZERO, &block));
    }
}
