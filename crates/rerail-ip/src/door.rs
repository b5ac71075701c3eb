//! How fast connections are let in, and how many descriptors they may take. Owns: the allowance, and the pause when it is used up.
//!
//! Any process that reaches the port can open connections without limit, and send nothing. The engine keeps few of
//! those, for a short time. This bounds the processor time and the descriptors that accepting takes from the program:
//! the rest waits in the kernel's queue, and is dropped there when that is full.

use std::time::{Duration, Instant};

/// Connections that may be taken in one go. At start-up all peers of a job may come at once.
const BURST: u32 = 4096;
/// Connections that may be taken in a second on average: some per cent of one processor's time.
const PER_SECOND: u32 = 2000;
/// How long no connection is accepted when the allowance or the descriptors are used up.
const PAUSE: Duration = Duration::from_millis(20);
/// Descriptors that strangers leave to the program, at most; of a small table an eighth.
const SPARE_DESCRIPTORS: u64 = 64;

/// Whether a connection may be accepted now.
pub(crate) struct Door {
    left: u32,
    filled: Instant,
    closed_until: Option<Instant>,
}

impl Door {
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, filled: now, closed_until: None }
    }

    /// Takes one from the allowance; false: there is nothing left of it.
    pub fn admit(&mut self, now: Instant) -> bool {
        let gained =
            now.saturating_duration_since(self.filled).as_micros() * u128::from(PER_SECOND) / 1_000_000;
        if gained > 0 {
            self.left = u128::from(self.left).saturating_add(gained).min(u128::from(BURST)) as u32;
            self.filled = now;
        }
        let some = self.left > 0;
        self.left -= u32::from(some);
        some
    }

    /// No connection is accepted for a while.
    pub fn close(&mut self, now: Instant) {
        self.closed_until = Some(now + PAUSE);
    }

    pub fn is_closed(&self) -> bool {
        self.closed_until.is_some()
    }

    /// Whether a pause was on, and is over now.
    pub fn reopens(&mut self, now: Instant) -> bool {
        let over = self.closed_until.is_some_and(|t| now >= t);
        if over {
            self.closed_until = None;
        }
        over
    }
}

/// Whether a connection with this descriptor leaves the program enough of a table of `limit`. The kernel gives the lowest free
/// number, so a high one says that the table is nearly full.
pub(crate) fn leaves_enough(descriptor: u64, limit: u64) -> bool {
    descriptor < limit - SPARE_DESCRIPTORS.min(limit / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_the_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut d = Door::new(start);
        assert_eq!((0..10_000).filter(|_| d.admit(start)).count(), BURST as usize);
        let later = start + Duration::from_millis(500);
        assert_eq!((0..10_000).filter(|_| d.admit(later)).count(), PER_SECOND as usize / 2);
        // asked without pause it still comes to no more
        let mut taken = 0;
        for us in (0..100_000).step_by(10) {
            taken += u32::from(d.admit(later + Duration::from_micros(us)));
        }
        assert!((195..=200).contains(&taken), "{taken}");
        assert_eq!((0..10_000).filter(|_| d.admit(later + Duration::from_secs(60))).count(), BURST as usize);
    }

    #[test]
    fn a_closed_door_opens_again_once() {
        let now = Instant::now();
        let mut d = Door::new(now);
        assert!(!d.reopens(now + PAUSE));
        d.close(now);
        assert!(d.is_closed() && !d.reopens(now + PAUSE / 2));
        assert!(d.reopens(now + PAUSE) && !d.is_closed() && !d.reopens(now + PAUSE));
    }

    #[test]
    fn the_program_keeps_some_descriptors() {
        assert!(leaves_enough(959, 1024) && !leaves_enough(960, 1024));
        assert!(leaves_enough(55, 64) && !leaves_enough(56, 64));
        assert!(leaves_enough(1_000_000, u64::MAX));
    }
}
