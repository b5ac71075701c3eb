//! Whether the route of a stream through the fabric carries, as far as the kernel's reports show it.
//!
//! Owns: since when the kernel at the other end has acknowledged nothing of what is on the way to it. That kernel acknowledges without its process,
//! so a process that is busy or stopped is not taken for a dead route: it closes its window, and nothing is on the way then. Source:
//! Protective ReRoute §3 (Wetherall et al., SIGCOMM 2023), which moves at TCP's time-out; differs: the time-out here has no lower bound of 200 ms,
//! because a query that is answered on the same path shows that the peer is there.

use crate::types::{FarKernel, Time, ms};
use std::time::Duration;

/// Silence that counts, whatever the usual round trip, of which it must be half as much again: some turns of a kernel that hands packets on in its
/// spare time.
const SILENCE: Duration = ms(10);
/// The same when a single segment is under way: its acknowledgement may be delayed (Linux `TCP_DELACK_MIN` is 40 ms).
const SILENCE_OF_ONE: Duration = ms(45);
/// Kernels count the time since an acknowledgement in ticks of up to 4 ms, so that two reports of the same one differ.
const TICK: Duration = ms(5);
/// Time between two reports that lead to nothing: as long as it has lasted until then, within these.
const LOOK_AGAIN: (Duration, Duration) = (ms(10), ms(1000));

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
    /// Bytes that were acknowledged before.
    acked: u64,
    /// That was too long, and the path is to answer a query from after that.
    awaits: bool,
    look_at: Option<Time>,
}

impl Route {
    /// When the next report is due on a stream that makes no progress since `stood_since`, if its path has answered a query that was sent then.
    pub fn look_at(&self, stood_since: Time, answered: Option<Time>) -> Time {
        match self.look_at {
            Some(_) if self.awaits && answered > self.silent_since => Time::ORIGIN,
            Some(at) => at,
            None => stood_since,
        }
    }

    /// Everything on the stream is acknowledged: what was noted does not count any more.
    pub fn is_cleared(&mut self) {
        *self = Self::default();
    }

    /// A report is here. The silence begins when the kernel was last heard, or with the last segment that was sent after that; later reports end it or
    /// find it too long. When something was written proves nothing: it may wait in the kernel here. On a path where a query takes `round_trip` now,
    /// twice that is waited for at least: kernels that are short of processors are late with everything.
    pub fn report(&mut self, told: &FarKernel, round_trip: Duration, stood_since: Time, now: Time) -> Sight {
        let again = |since: Time| now + now.since(since).clamp(LOOK_AGAIN.0, LOOK_AGAIN.1);
        let heard_at = now - told.heard;
        self.awaits = false;
        if told.segments == 0 {
            (self.silent_since, self.look_at) = (None, Some(again(stood_since)));
            return Sight::Carries(again(stood_since));
        }
        let since = match self.silent_since {
            Some(since) if told.acked == self.acked && heard_at <= since + TICK => since.max(heard_at),
            _ => heard_at.max(now - told.sent),
        };
        (self.silent_since, self.acked) = (Some(since), told.acked);
        let least = if told.segments == 1 { SILENCE_OF_ONE } else { SILENCE };
        let until = since + least.max(told.usual * 3 / 2).max(2 * round_trip);
        if now >= until {
            (self.awaits, self.look_at) = (true, Some(again(since)));
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

    fn told(heard: u64, sent: u64, segments: u32, usual: u64) -> FarKernel {
        FarKernel { segments, sent: ms(sent), usual: ms(usual), ..FarKernel::new(ms(heard), false) }
    }

    #[test]
    fn a_kernel_that_acknowledges_nothing_of_what_is_on_the_way_is_silent() {
        let mut r = Route::default();
        assert_eq!(r.look_at(at(60), None), at(60));
        // heard long ago, and sent lately
        assert_eq!(r.report(&told(50, 3, 20, 1), ms(1), at(50), at(100)), Sight::Doubtful(at(107)));
        assert_eq!(r.look_at(at(60), Some(at(99))), at(107));
        // what is sent once more does not begin it anew
        assert_eq!(r.report(&told(57, 0, 20, 1), ms(1), at(50), at(107)), Sight::Silent(at(97)));
        assert_eq!(r.look_at(at(60), Some(at(97))), at(117), "no answer to what was asked since");
        assert_eq!(r.look_at(at(60), Some(at(98))), Time::ORIGIN, "the path answers");
        let mut r = Route::default();
        assert_eq!(
            r.report(&told(10, 12, 20, 1), ms(1), at(50), at(100)),
            Sight::Silent(at(90)),
            "one may be enough"
        );
        assert_eq!(r.report(&told(910, 900, 20, 1), ms(1), at(50), at(1_000)), Sight::Silent(at(90)));
        assert_eq!(r.look_at(at(60), None), at(1_910), "ever later while nothing comes of it");
    }

    #[test]
    fn an_acknowledgement_begins_the_silence_anew() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(9, 9, 20, 1), ms(1), at(50), at(100)), Sight::Doubtful(at(101)));
        assert_eq!(r.report(&told(2, 1, 20, 1), ms(1), at(50), at(101)), Sight::Doubtful(at(110)));
        assert_eq!(r.report(&told(11, 10, 20, 1), ms(1), at(50), at(110)), Sight::Silent(at(100)));
    }

    #[test]
    fn a_kernel_that_counts_in_ticks_is_silent_all_the_same() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(1, 0, 20, 1), ms(1), at(50), at(100)), Sight::Doubtful(at(110)));
        // it was heard at 102 by this report, and at 104 by the next
        assert_eq!(r.report(&told(8, 8, 20, 1), ms(1), at(50), at(110)), Sight::Doubtful(at(112)));
        assert_eq!(r.report(&told(8, 8, 20, 1), ms(1), at(50), at(112)), Sight::Doubtful(at(114)));
        assert_eq!(r.report(&told(12, 12, 20, 1), ms(1), at(50), at(114)), Sight::Silent(at(104)));
    }

    #[test]
    fn what_was_acknowledged_within_a_tick_ends_the_silence() {
        let mut r = Route::default();
        let after = |heard, sent, acked| FarKernel { acked, ..told(heard, sent, 20, 1) };
        assert_eq!(r.report(&after(1, 1, 7), ms(1), at(50), at(100)), Sight::Doubtful(at(109)));
        // at 102 everything was, and what is on the way now was sent at 110
        assert_eq!(r.report(&after(9, 1, 8), ms(1), at(50), at(111)), Sight::Doubtful(at(120)));
    }

    #[test]
    fn a_slow_route_and_a_delayed_acknowledgement_get_their_time() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(30, 25, 20, 40), ms(1), at(50), at(100)), Sight::Doubtful(at(135)));
        let mut r = Route::default();
        assert_eq!(r.report(&told(30, 25, 20, 2), ms(20), at(50), at(100)), Sight::Doubtful(at(115)));
        let mut r = Route::default();
        assert_eq!(r.report(&told(30, 25, 1, 2), ms(1), at(50), at(100)), Sight::Doubtful(at(120)));
    }

    #[test]
    fn a_process_that_reads_nothing_is_no_dead_route() {
        let mut r = Route::default();
        assert_eq!(r.report(&told(500, 500, 0, 1), ms(1), at(50), at(600)), Sight::Carries(at(1150)));
        // what is written then has not been on the way for long
        assert_eq!(r.report(&told(510, 0, 5, 1), ms(1), at(50), at(610)), Sight::Doubtful(at(620)));
        r.is_cleared();
        assert_eq!(r, Route::default());
    }
}
