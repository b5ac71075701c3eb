//! How often the service thread checks whether the application still makes progress. Owns: the time until which it
//! checks often, and how long the thread itself waits for a core.
//!
//! A large message needs progress on both sides, so the thread must notice soon when an application posts one and then
//! computes. An application that polls needs few checks, and every check takes a core from another thread. So the
//! thread checks often for a while after a large operation was posted, and after the application came back from an
//! absence, since it is likely to go away again.
//!
//! With more ranks than cores, an application that polls does not run for milliseconds at a time, and a thread that
//! takes over for it only delays all ranks: with 64 ranks on two cores, checks every 5 ms made an exchange among all
//! take two to four times as long. The thread detects this by its own late wake-ups, and then checks less often.

use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the thread checks the counter of an active application: bounds how long a query waits when the application
/// has just gone away.
const TICK: Duration = Duration::from_millis(5);
/// The same in haste. Two checks without progress in between are an absence.
const TICK_IN_HASTE: Duration = Duration::from_micros(500);
/// How long the haste lasts. An application that still polls after that only waits for its message.
const HASTE: Duration = Duration::from_millis(5);
/// Operations of this many bytes are large: they take longer than the checks that they cause. (With 16 KiB the
/// bandwidth of 64 KiB messages lost about a tenth on an unshaped rail, and half a millisecond of computing hides
/// nothing of them.)
const LARGE_BYTES: usize = 128 << 10;

/// Whether an operation of so many bytes is large.
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= LARGE_BYTES
}

/// Waking up by so much late is usual. (Two ranks that poll on two cores: 50 to 200 µs.)
const LATE_USUAL: Duration = Duration::from_micros(250);
/// A check is later by this many times the excess of the thread's smoothed delay over [`LATE_USUAL`]. (64 ranks on two
/// cores: 1 to 3 ms of waiting.)
const LATE_FACTOR: u32 = 32;
/// Most that a check is later; [`LATE_MOST_IN_HASTE`] in haste, when the application may have posted something and
/// compute.
const LATE_MOST: Duration = Duration::from_millis(45);
const LATE_MOST_IN_HASTE: Duration = Duration::from_millis(4);
/// Most that one delay counts: the process may have been stopped.
const LATE_ONCE: Duration = Duration::from_millis(10);

/// How often to check.
pub(crate) struct Haste {
    /// Until when the service thread checks often (ns of the monotonic clock).
    until: AtomicU64,
    /// By how much the service thread wakes up late, smoothed (ns). Only it writes and reads this.
    late: AtomicU64,
}

impl Haste {
    pub fn new() -> Self {
        Self { until: AtomicU64::new(0), late: AtomicU64::new(0) }
    }

    /// The application posts an operation of `bytes` bytes. Returns whether the service thread must be woken: it may sleep for a whole
    /// [`TICK`].
    ///
    /// That is so when less than half of the haste is left: the thread may read the clock a little later, and the word
    /// a little sooner, than the caller.
    #[must_use]
    pub fn post(&self, bytes: usize, now: u64) -> bool {
        is_large(bytes) && self.hold(now)
    }

    /// The same for a message that was held back (`burst`), however small.
    #[must_use]
    pub fn hold(&self, now: u64) -> bool {
        let late = self.until.load(Ordering::Relaxed) < now + HASTE.as_nanos() as u64 / 2;
        if late {
            self.begin(now);
        }
        late
    }

    /// The service thread found that the application makes progress again.
    pub fn begin(&self, now: u64) {
        self.until.store(now + HASTE.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The service thread slept for a whole tick, and woke up `by` late.
    pub fn woke_late(&self, by: Duration) {
        let late = self.late.load(Ordering::Relaxed);
        let by = by.min(LATE_ONCE);
        self.late.store((3 * late + by.as_nanos() as u64) / 4, Ordering::Relaxed);
    }

    /// Time until the next check.
    pub fn tick(&self, now: u64) -> Duration {
        let late = Duration::from_nanos(self.late.load(Ordering::Relaxed));
        let later = late.saturating_sub(LATE_USUAL) * LATE_FACTOR;
        if now < self.until.load(Ordering::Relaxed) {
            TICK_IN_HASTE + later.min(LATE_MOST_IN_HASTE)
        } else {
            TICK + later.min(LATE_MOST)
        }
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

    #[test]
    fn who_waits_for_a_core_looks_less_often() {
        let h = Haste::new();
        h.woke_late(LATE_USUAL);
        assert_eq!(h.tick(0), TICK, "usual");
        for _ in 0..20 {
            h.woke_late(2 * LATE_USUAL);
        }
        assert!(h.tick(0) > TICK + LATE_USUAL * (LATE_FACTOR - 1), "{:?}", h.tick(0));
        assert!(h.tick(0) <= TICK + LATE_USUAL * LATE_FACTOR, "{:?}", h.tick(0));
        h.woke_late(Duration::from_secs(10));
        assert_eq!(h.tick(0), TICK + LATE_MOST);
        h.begin(0);
        assert_eq!(h.tick(0), TICK_IN_HASTE + LATE_MOST_IN_HASTE);
        for _ in 0..50 {
            h.woke_late(Duration::ZERO);
        }
        assert_eq!((h.tick(0), h.tick(6 * MS)), (TICK_IN_HASTE, TICK), "forgotten");
    }
}
