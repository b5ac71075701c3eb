//! Pacing of bulk datagrams: a token bucket for each path, so that a window does not go out in one burst.
//!
//! The rate is a little above a window for each round-trip time (RFC 9002 §7.7), twice that while the window is
//! searched for. Bursts suit the sending side: a train that the kernel cuts is one call, and a thread makes progress
//! only a few hundred times a second at worst, so time that passed unseen may be made up for. Invariant: in any time
//! `t` no more goes out than `rate × t` and one burst.

use crate::types::Time;
use std::time::Duration;

/// How much faster than a window for each round trip, and the same in slow start.
const GAIN: (f64, f64) = (1.25, 2.0);
/// Time that may be made up for at once: the usual granularity of a thread that sleeps.
const CATCH_UP: Duration = Duration::from_millis(1);
/// Longest burst, whatever the rate: four trains.
const BURST_MAX: f64 = 256_000.0;
/// Largest quantum: a train as long as the kernel takes.
const QUANTUM_MAX: f64 = 64_000.0;

/// Windows up to this are kept by acknowledgements alone: they are a burst that every queue takes, less than one train. Pacing by the
/// smoothed round trip would hold a small window back in the quick rounds and could not make up for the slow ones, where threads
/// wait for a core and round trips differ by a factor of ten.
const UNPACED_MAX: u64 = 48_000;

/// The bucket of one path.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    tokens: f64,
    at: Time,
    rate: f64,
    quantum: f64,
}

impl Pacer {
    /// Full, and without a limit until the first [`Pacer::set`].
    pub fn new(now: Time) -> Self {
        Self { tokens: QUANTUM_MAX, at: now, rate: f64::INFINITY, quantum: QUANTUM_MAX }
    }

    /// Window and round-trip time have changed; `datagram` is the size of one.
    pub fn set(&mut self, window: u64, rtt: Duration, slow_start: bool, datagram: usize, now: Time) {
        self.refill(now);
        let gain = if slow_start { GAIN.1 } else { GAIN.0 };
        let rtt_s = rtt.as_secs_f64();
        self.rate =
            if rtt_s > 0.0 && window > UNPACED_MAX { gain * window as f64 / rtt_s } else { f64::INFINITY };
        // a quarter of the window: bursts, but never the window in one
        self.quantum = (window as f64 / 4.0).clamp(2.0 * datagram as f64, QUANTUM_MAX);
        self.tokens = self.tokens.min(self.burst());
    }

    /// Most bytes that go out at once.
    pub fn burst(&self) -> f64 {
        (self.rate * CATCH_UP.as_secs_f64()).clamp(self.quantum, BURST_MAX)
    }

    /// Bytes that are best sent together.
    pub fn quantum(&self) -> u64 {
        self.quantum as u64
    }

    fn refill(&mut self, now: Time) {
        let passed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = if self.rate.is_finite() {
            (self.tokens + passed * self.rate).min(self.burst())
        } else {
            QUANTUM_MAX
        };
    }

    /// How many bytes may go now.
    ///
    /// # Errors
    /// Fewer than `need`: when to call again.
    pub fn allowance(&mut self, need: u64, now: Time) -> Result<u64, Time> {
        self.refill(now);
        let need = (need as f64).min(self.burst());
        if self.tokens >= need {
            return Ok(self.tokens as u64);
        }
        let wait = (need - self.tokens) / self.rate;
        Err(now + Duration::from_secs_f64(wait.min(1.0)) + Duration::from_nanos(1))
    }

    /// `bytes` went out.
    pub fn took(&mut self, bytes: u64) {
        self.tokens -= bytes as f64;
    }

    /// `bytes` did not go out after all.
    pub fn give_back(&mut self, bytes: u64) {
        self.tokens = (self.tokens + bytes as f64).min(self.burst());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_rate_and_one_burst_however_often_it_is_asked() {
        for step_ns in [1_000, 70_000, 900_000, 20_000_000] {
            let mut p = Pacer::new(Time::ORIGIN);
            // 100 kB for each ms and a gain of 1.25: 125 MB/s
            p.set(100_000, Duration::from_millis(1), false, 1000, Time::ORIGIN);
            let (mut sent, mut t) = (0u64, 0u64);
            while t < 200_000_000 {
                t += step_ns;
                while let Ok(n) = p.allowance(25_000, Time::from_ns(t)) {
                    p.took(n.min(25_000));
                    sent += n.min(25_000);
                }
                let bound = 125e6 * t as f64 / 1e9 + p.burst() + 1.0;
                assert!(sent as f64 <= bound, "{sent} after {t} ns");
            }
            if step_ns < 1_000_000 {
                assert!(sent as f64 >= 0.98 * 125e6 * 0.2, "the rate is reached: {sent} at {step_ns}");
            }
        }
    }

    #[test]
    fn the_time_to_ask_again_is_when_there_is_enough() {
        let mut p = Pacer::new(Time::ORIGIN);
        p.set(100_000, Duration::from_millis(1), false, 1000, Time::ORIGIN);
        let all = p.allowance(1000, Time::ORIGIN).unwrap();
        p.took(all);
        let at = p.allowance(10_000, Time::ORIGIN).unwrap_err();
        assert!(p.allowance(10_000, Time::from_ns(at.ns() - 1000)).is_err());
        assert!(p.allowance(10_000, at).is_ok());
    }
}
