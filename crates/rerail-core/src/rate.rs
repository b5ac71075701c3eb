//! Round-trip time and rate of a path, measured by its acknowledgements.
//!
//! Round trip: smoothed as in RFC 6298 §2. Rate: bytes acknowledged over intervals in which the stream was never idle.
//! What was sent twice gives no sample (Karn's rule; hazard H10), which is the caller's duty.

use crate::types::Time;
use std::time::Duration;

/// Round-trip time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    min_ns: u64,
    latest_ns: u64,
}

impl Rtt {
    /// Takes one sample.
    pub fn sample(&mut self, d: Duration) {
        let ns = (d.as_nanos() as u64).max(1);
        self.latest_ns = ns;
        if self.smoothed_ns == 0 {
            self.smoothed_ns = ns;
            self.variation_ns = ns / 2;
            self.min_ns = ns;
            return;
        }
        self.min_ns = self.min_ns.min(ns);
        let diff = self.smoothed_ns.abs_diff(ns);
        self.variation_ns = (3 * self.variation_ns + diff) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
    }

    /// Smoothed value; zero before the first sample.
    pub fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.smoothed_ns)
    }

    /// What the next one may take: a queue that grows shows in the newest sample long before it shows in the smoothed value
    /// (RFC 9002 §6.1.2). Zero before the first sample.
    pub fn expected(&self) -> Duration {
        Duration::from_nanos(self.smoothed_ns.max(self.latest_ns))
    }

    /// Smallest value seen; `None` before the first sample.
    pub fn min(&self) -> Option<Duration> {
        (self.min_ns > 0).then(|| Duration::from_nanos(self.min_ns))
    }

    /// Time after which an answer is late enough for what does no harm if it is wrong: the retransmission time-out of RFC 6298 §2, at least `floor`.
    pub fn timeout(&self, floor: Duration) -> Duration {
        Duration::from_nanos(self.smoothed_ns + 4 * self.variation_ns).max(floor)
    }

    /// Time after which an answer is late: three times the smoothed value and four times its variation, at least `floor`.
    pub fn patience(&self, floor: Duration) -> Duration {
        Duration::from_nanos(3 * self.smoothed_ns + 4 * self.variation_ns).max(floor)
    }
}

/// More than this is not a queue: the peer was busy. (A switch's buffer holds some milliseconds at the rate of its port.)
const QUEUE_MAX: Duration = Duration::from_millis(50);
/// More than this is an outage, of which nothing is learned.
const OUTAGE: Duration = Duration::from_millis(200);

/// How long things take on one of our own rails, whose queues all its paths share: the longest recent time, to any
/// peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    longest: Duration,
    at: Time,
    /// A time counts for so long.
    lasts: Duration,
}

impl Crowd {
    /// Of round trips, in which no time counts that the peer took: how full the queues are.
    pub fn of_round_trips() -> Self {
        Self { longest: Duration::ZERO, at: Time::ORIGIN, lasts: Duration::from_millis(100) }
    }

    /// Of the waits for acknowledgements, in which all time counts: where more processes than cores take turns, the others' turns are most
    /// of it. It lasts longer, because collective operations make pauses between their crowds.
    pub fn of_waits() -> Self {
        Self { lasts: Duration::from_millis(300), ..Self::of_round_trips() }
    }

    /// Something over the rail took `d`.
    pub fn sample(&mut self, d: Duration, now: Time) {
        if d >= self.longest || now.since(self.at) > self.lasts {
            (self.longest, self.at) = (d, now);
        }
    }

    /// The same for what may have been held up by an outage.
    pub fn sample_wait(&mut self, d: Duration, now: Time) {
        if d < OUTAGE {
            self.sample(d, now);
        }
    }

    /// Time after which an answer over this rail is late, whatever its own path has measured: half as much again as
    /// others took.
    pub fn patience(&self, now: Time) -> Duration {
        if now.since(self.at) > self.lasts { Duration::ZERO } else { self.longest.min(QUEUE_MAX) * 3 / 2 }
    }
}

/// With fewer bytes in flight the rail may have been idle: what is measured then is the traffic, not the rail. Such a
/// sample may raise the estimate and must not lower it, or a rail that is given little would be given ever less.
pub(crate) const BACKLOG_MIN: u64 = 128 * 1024;
/// Intervals shorter than this give no rate.
const RATE_INTERVAL_MIN: Duration = Duration::from_millis(4);

/// Rate of a stream in bytes per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    bytes_per_s: f64,
    measured: bool,
    mark: Option<Time>,
    acked: u64,
    /// Fewest bytes that were in flight in the running interval.
    low_water: u64,
    /// Throughout it more waited than the window let out.
    blocked: bool,
    /// Intervals in which it was never idle, since they were last counted.
    samples: u8,
}

impl Rate {
    /// Starts from the nominal speed; 0 when unknown.
    pub fn nominal(mbps: u32) -> Self {
        let guess = if mbps == 0 { 1e9 } else { f64::from(mbps) * 1e6 / 8.0 };
        Self {
            bytes_per_s: guess,
            measured: false,
            mark: None,
            acked: 0,
            low_water: 0,
            blocked: false,
            samples: 0,
        }
    }

    /// `bytes` were acknowledged, `in_flight` still are. `blocked`: more waits than the window lets out. Then the rail is busy however
    /// small its window: an adapter that has room for 128 KiB never has a backlog, and would be taken for as fast as its nominal
    /// speed for ever, so that slower rails beside it get nothing. It counts for the first sample only;
    /// to count it for all was tried, and carried less (docs/notes/rdma.md).
    pub fn acked(&mut self, bytes: u64, in_flight: u64, blocked: bool, now: Time) {
        self.acked += bytes;
        self.low_water = self.low_water.min(in_flight);
        self.blocked &= blocked;
        let Some(mark) = self.mark else {
            if in_flight > 0 {
                self.begin(in_flight, blocked, now);
            }
            return;
        };
        let d = now.since(mark);
        if d >= RATE_INTERVAL_MIN {
            let sample = self.acked as f64 / d.as_secs_f64();
            let busy = self.low_water >= BACKLOG_MIN || self.blocked;
            self.samples = self.samples.saturating_add(u8::from(busy));
            if !self.measured && busy {
                (self.bytes_per_s, self.measured) = (sample, true);
            } else if sample > self.bytes_per_s || self.low_water >= BACKLOG_MIN {
                self.bytes_per_s = 0.7 * self.bytes_per_s + 0.3 * sample;
            }
            self.bytes_per_s = self.bytes_per_s.max(1e4);
            self.begin(in_flight, blocked, now);
        }
        if in_flight == 0 {
            self.mark = None;
        }
    }

    fn begin(&mut self, in_flight: u64, blocked: bool, now: Time) {
        (self.mark, self.acked, self.low_water, self.blocked) = (Some(now), 0, in_flight, blocked);
    }

    /// Bytes per second.
    pub fn get(&self) -> f64 {
        self.bytes_per_s
    }

    /// Intervals since the last call in which the rail was never idle: with none of them the rate is what was before, or a guess.
    pub fn take_samples(&mut self) -> u8 {
        std::mem::take(&mut self.samples)
    }

    /// What is measured from now on is another route: the next sample counts, whatever was before.
    pub fn begins_anew(&mut self) {
        (self.mark, self.measured, self.samples) = (None, false, 0);
    }

    /// A break in traffic: the running interval gives no rate.
    pub fn pause(&mut self) {
        self.mark = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_converges_to_what_is_acknowledged() {
        let mut r = Rate::nominal(10_000);
        let mut t = Time::ORIGIN;
        for _ in 0..2000 {
            t = t + Duration::from_millis(1);
            r.acked(25_000, 1 << 20, false, t);
        }
        assert!((r.get() - 25e6).abs() < 1e6, "{}", r.get());
    }

    #[test]
    fn idle_time_does_not_lower_the_rate() {
        let mut r = Rate::nominal(0);
        let mut t = Time::ORIGIN;
        for _ in 0..100 {
            t = t + Duration::from_millis(1);
            r.acked(25_000, 1 << 20, false, t);
        }
        r.acked(25_000, 0, false, t + Duration::from_millis(1));
        let before = r.get();
        r.acked(1000, 0, false, t + Duration::from_secs(9));
        assert!(r.get() >= before * 0.9);
    }

    #[test]
    fn a_rail_that_is_given_little_is_not_thought_slow() {
        let mut r = Rate::nominal(1000);
        let mut t = Time::ORIGIN;
        for _ in 0..500 {
            t = t + Duration::from_millis(2);
            r.acked(25_000, 65_536, false, t);
        }
        assert!(r.get() >= 125e6);
    }

    #[test]
    fn a_rail_with_a_small_window_is_measured_when_more_waits() {
        let rate = |blocked| {
            let mut r = Rate::nominal(2500);
            for ms in 1..500 {
                r.acked(10_000, 65_536, blocked, Time::from_ns(ms * 1_000_000));
            }
            r.get()
        };
        assert!((rate(true) - 10e6).abs() < 1e6, "{}", rate(true));
        assert!(rate(false) > 300e6, "it may be given little");
    }

    #[test]
    fn a_crowded_rail_gives_patience_for_a_while() {
        let at = |ms: u64| Time::from_ns(ms * 1_000_000);
        let d = Duration::from_millis;
        let mut c = Crowd::of_round_trips();
        assert_eq!(c.patience(at(1000)), Duration::ZERO);
        c.sample(d(20), at(1000));
        c.sample(d(1), at(1050));
        assert_eq!(c.patience(at(1100)), d(30), "the longest of the last ones");
        assert_eq!(c.patience(at(1101)), Duration::ZERO);
        c.sample(d(2), at(1101));
        assert_eq!(c.patience(at(1101)), d(3));
        c.sample(d(900), at(1102));
        assert_eq!(c.patience(at(1102)), d(75), "a peer that takes that long was busy");
    }

    #[test]
    fn waits_last_longer_and_outages_are_none() {
        let at = |ms: u64| Time::from_ns(ms * 1_000_000);
        let d = Duration::from_millis;
        let mut c = Crowd::of_waits();
        c.sample_wait(d(20), at(1000));
        c.sample_wait(d(200), at(1001));
        assert_eq!(c.patience(at(1300)), d(30));
        assert_eq!(c.patience(at(1301)), Duration::ZERO);
    }

    #[test]
    fn patience_has_a_floor_and_grows_with_the_round_trip() {
        let mut r = Rtt::default();
        assert_eq!(r.patience(Duration::from_millis(25)), Duration::from_millis(25));
        for _ in 0..20 {
            r.sample(Duration::from_millis(40));
        }
        assert!(r.patience(Duration::from_millis(25)) >= Duration::from_millis(120));
        assert_eq!(r.min(), Some(Duration::from_millis(40)));
    }
}
