//! Whether a stream that makes no progress is stuck, as far as the kernel's reports show it.
//!
//! Owns: since when the engine has seen no progress, and what the kernel at the other end had acknowledged then. The engine hears of whole frames
//! only: where hundreds of streams share a link, what waits in the kernel takes longer than its patience, and a fresh stream would wait
//! at the end of the same queue, with everything to be sent again.

use crate::types::{FarKernel, Time};
use std::time::Duration;

/// See above.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standstill {
    since: Time,
    /// How long it may last.
    patience: Duration,
    /// A report is requested.
    asked: bool,
    /// Bytes that the peer's kernel had acknowledged by the last report, and since when it has not acknowledged more.
    acked: Option<(u64, Time)>,
}

impl Standstill {
    pub fn new(since: Time, patience: Duration) -> Self {
        Self { since, patience, asked: true, acked: None }
    }

    /// It goes on: another report is requested.
    pub fn goes_on(&mut self, since: Time, patience: Duration) {
        // what was noted before the stream moved on does not count
        let acked = self.acked.filter(|_| since <= self.since);
        *self = Self { acked, ..Self::new(since, patience) };
    }

    /// A report is here, `None` where the rail has none. `unread`: how long it may last if the peer's kernel has every byte: its process does not read,
    /// and a fresh stream would not help. Returns whether the stream is stuck.
    pub fn is_stuck(&mut self, told: Option<&FarKernel>, unread: Duration, now: Time) -> bool {
        if !std::mem::take(&mut self.asked) {
            return false;
        }
        let Some(told) = told else { return true };
        if told.has_all {
            return now.since(self.since) > unread;
        }
        if told.acked == 0 {
            return true;
        }
        let still = match self.acked {
            Some((acked, at)) if acked == told.acked => at,
            Some(_) => now,
            None => (now - told.heard).max(self.since),
        };
        self.acked = Some((told.acked, still));
        now.since(still) > self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ms;

    fn at(t: u64) -> Time {
        Time::from_ns(t * 1_000_000)
    }

    fn told(heard: u64, acked: u64) -> FarKernel {
        FarKernel { segments: 9, acked, ..FarKernel::new(ms(heard), false) }
    }

    #[test]
    fn a_stream_whose_kernel_goes_on_is_not_stuck() {
        let mut s = Standstill::new(at(100), ms(50));
        assert!(!s.is_stuck(Some(&told(10, 7)), ms(900), at(200)), "it was heard at 190");
        assert!(!s.is_stuck(Some(&told(900, 7)), ms(900), at(1_000)), "this report was not requested");
        for t in [250, 310, 400, 600] {
            s.goes_on(at(100), ms(50));
            assert!(!s.is_stuck(Some(&told(1, t)), ms(900), at(t)), "it has acknowledged more at {t}");
        }
        // it is heard, and acknowledges nothing
        s.goes_on(at(100), ms(50));
        assert!(!s.is_stuck(Some(&told(0, 600)), ms(900), at(650)));
        s.goes_on(at(100), ms(50));
        assert!(s.is_stuck(Some(&told(0, 600)), ms(900), at(651)));
        // what was noted before it moved on does not count
        s.goes_on(at(640), ms(50));
        assert!(!s.is_stuck(Some(&told(0, 600)), ms(900), at(700)));
    }

    #[test]
    fn a_kernel_that_is_not_heard_or_tells_nothing_leaves_a_stream_stuck() {
        let stuck = |told: Option<FarKernel>| {
            Standstill::new(at(100), ms(50)).is_stuck(told.as_ref(), ms(900), at(200))
        };
        assert!(stuck(None), "the rail knows nothing");
        assert!(stuck(Some(told(51, 7))) && !stuck(Some(told(50, 7))));
        assert!(stuck(Some(told(0, 0))), "it does not tell how much it has");
        assert!(stuck(Some(FarKernel { segments: 0, ..told(60, 7) })), "its window is closed");
        assert!(
            !stuck(Some(FarKernel { segments: 0, ..told(9, 7) })),
            "the kernel here has not had its turn"
        );
        assert!(!stuck(Some(FarKernel::new(ms(70), true))), "its process does not read");
        let mut long = Standstill::new(at(100), ms(50));
        assert!(long.is_stuck(Some(&FarKernel::new(ms(0), true)), ms(900), at(1_001)));
    }
}
