//! Whether the route of a stream through the fabric carries, as far as the kernel's reports show it.
//!
//! Owns: since when the kernel at the other end has acknowledged nothing of what is on the way to it. That kernel acknowledges without its process,
//! so a process that is busy or stopped is not taken for a dead route: it closes its window, and nothing is on the way then. Source:
//! Protective ReRoute §3 (Wetherall et al., SIGCOMM 2023), which moves at TCP's time-out; differs: the time-out here has no lower bound of 200 ms,
//! because a query that is answered on the same path shows that the peer is there.

use crate::types::{FarKernel, Time, ms};
use std::time::Duration;

/// Silence that counts, whatever the usual round trip: some turns of a kernel that hands packets on in its spare time.
const SILENCE: Duration = ms(10);
/// The same when a single segment is under way: its acknowledgement may be delayed (Linux `TCP_DELACK_MIN` is 40 ms).
const SILENCE_OF_ONE: Duration = ms(45);
/// Kernels count the time since an acknowledgement in ticks of up to 4 ms, so that two reports of the same one differ.
const TICK: Duration = ms(5);
/// Time between two reports while all is well.
const LOOK_EVERY: Duration = ms(10);

/// What a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Nothing against the route; the next report is due then.
    Carries(Time),
    /// Nothing was acknowledged for a while; the next report is due then.
    Doubtful(Time),
    /// Nothing was acknowledged since then, for longer than an acknowledgement takes.
    Silent(Time),
}

/// See above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Route {
    silent_since: Option<Time>,
    look_at: Option<Time>,
}

impl Route {
    /// Whether the next report is due: the first at once.
    pub fn is_looked_at(&self, now: Time) -> bool {
        self.look_at.is_none_or(|at| now >= at)
    }

    /// Everything on the stream is acknowledged: what was noted does not count any more.
    pub fn is_cleared(&mut self) {
        *self = Self::default();
    }

    /// A report is here. What is on the way now was sent at this time at the latest, whenever it was written: the first report begins the
    /// silence, and another one ends it or finds it too long.
    pub fn report(&mut self, told: &FarKernel, now: Time) -> Sight {
        let heard_at = now - told.heard;
        if told.segments == 0 {
            *self = Self { silent_since: None, look_at: Some(now + LOOK_EVERY) };
            return Sight::Carries(now + LOOK_EVERY);
        }
        let since = match self.silent_since {
            Some(since) if heard_at <= since + TICK => since.max(heard_at),
            _ => now,
        };
        self.silent_since = Some(since);
        let least = if told.segments == 1 { SILENCE_OF_ONE } else { SILENCE };
        let until = since + least.max(told.usual);
        if now >= until {
            return Sight::Silent(since);
        }
        self.look_at = Some(until);
        Sight::Doubtful(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: u64) -> Time {
        Time::from_ns(t * 1_000_000)
    }

    fn told(heard: u64, segments: u32, usual: u64) -> FarKernel {
        FarKernel { segments, usual: ms(usual), ..FarKernel::new(ms(heard), false) }
    }

    #[test]
    fn a_kernel_that_acknowledges_nothing_of_what_is_on_the_way_is_silent() {
        let mut r = Route::default();
        assert!(r.is_looked_at(at(100)));
        // what is on the way may have been sent only now
        assert_eq!(r.report(&told(50, 20, 1), at(100)), Sight::Doubtful(at(110)));
        assert!(!r.is_looked_at(at(109)) && r.is_looked_at(at(110)));
        assert_eq!(r.report(&told(60, 20, 1), at(110)), Sight::Silent(at(100)));
    }

    #[test]
    fn an_acknowledgement_begins_the_silence_anew() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(9, 20, 1), at(100)), Sight::Doubtful(at(110)));
        assert_eq!(r.report(&told(1, 20, 1), at(110)), Sight::Doubtful(at(120)));
        assert_eq!(r.report(&told(11, 20, 1), at(120)), Sight::Silent(at(110)));
    }

    #[test]
    fn a_kernel_that_counts_in_ticks_is_silent_all_the_same() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(1, 20, 1), at(100)), Sight::Doubtful(at(110)));
        // it was heard at 102 by this report, and at 104 by the next
        assert_eq!(r.report(&told(8, 20, 1), at(110)), Sight::Doubtful(at(112)));
        assert_eq!(r.report(&told(8, 20, 1), at(112)), Sight::Doubtful(at(114)));
        assert_eq!(r.report(&told(12, 20, 1), at(114)), Sight::Silent(at(104)));
    }

    #[test]
    fn a_slow_route_and_a_delayed_acknowledgement_get_their_time() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(30, 20, 40), at(100)), Sight::Doubtful(at(140)));
        let mut r = Route::default();
        assert_eq!(r.report(&told(30, 1, 2), at(100)), Sight::Doubtful(at(145)));
    }

    #[test]
    fn a_process_that_reads_nothing_is_no_dead_route() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(500, 0, 1), at(600)), Sight::Carries(at(610)));
        // what is written then has not been on the way for long
        assert_eq!(r.report(&told(510, 5, 1), at(610)), Sight::Doubtful(at(620)));
        r.is_cleared();
        assert_eq!(r, Route::default());
    }
}
