//! How often the service thread looks whether the application is still there. Owns: the time until which it looks often.
//!
//! A large message needs both sides to go on making progress, so an application that posts one and then computes must be noticed soon. One
//! that polls need not be watched closely, and every look takes a core from somebody. So the thread looks often for a while after a large
//! operation was posted, and after the application came back from an absence, since it is likely to go away again.

use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the counter of an active application is looked at: bounds how long a query waits when it has just gone away.
const TICK: Duration = Duration::from_millis(5);
/// The same in haste. Two looks without a move in between are an absence.
const TICK_IN_HASTE: Duration = Duration::from_micros(500);
/// How long the haste lasts. Whoever still polls after that waits for nothing else than its message.
const HASTE: Duration = Duration::from_millis(5);
/// Operations of this many bytes are large: they take longer than the looks that they cause. (With 16 KiB the bandwidth of 64 KiB messages lost about a
/// tenth on an unshaped rail, and half a millisecond of computing hides nothing of them.)
const LARGE_BYTES: usize = 128 << 10;

/// Until when the service thread looks often (ns of the monotonic clock).
pub(crate) struct Haste(AtomicU64);

impl Haste {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The application posts an operation of `bytes` bytes. Returns whether the service thread must be woken: it may sleep for a whole
    /// [`TICK`].
    ///
    /// Half of the haste is kept in hand, because the thread may have read the clock a little later and the word a little sooner than we.
    #[must_use]
    pub fn post(&self, bytes: usize, now: u64) -> bool {
        bytes >= LARGE_BYTES && self.hold(now)
    }

    /// The same for a message that was held back (`burst`), however small.
    #[must_use]
    pub fn hold(&self, now: u64) -> bool {
        let late = self.0.load(Ordering::Relaxed) < now + HASTE.as_nanos() as u64 / 2;
        if late {
            self.begin(now);
        }
        late
    }

    /// The service thread found the application back.
    pub fn begin(&self, now: u64) {
        self.0.store(now + HASTE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Until the next look.
    pub fn tick(&self, now: u64) -> Duration {
        if now < self.0.load(Ordering::Relaxed) { TICK_IN_HASTE } else { TICK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_large_operation_wakes_the_thread_once_in_a_while() {
        let h = Haste::new();
        assert_eq!(h.tick(MS), TICK);
        assert!(!h.post(LARGE_BYTES - 1, MS));
        assert!(h.post(LARGE_BYTES, MS));
        assert!(!h.post(LARGE_BYTES, 2 * MS), "it looks often already");
        assert_eq!((h.tick(2 * MS), h.tick(6 * MS)), (TICK_IN_HASTE, TICK));
        assert!(h.post(LARGE_BYTES, 4 * MS), "and is told in time that it shall go on");
        assert_eq!(h.tick(6 * MS), TICK_IN_HASTE);
    }
}
