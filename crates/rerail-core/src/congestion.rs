//! Congestion control of bulk datagrams, one for each path.
//!
//! CUBIC (RFC 9438) with slow start by HyStart++ (RFC 9406), counted in bytes of datagrams, losses taken as in RFC 9002 §7:
//! one reduction for everything that was in flight when the first loss was noticed. Chosen because the TCP streams that share
//! a rail with it are CUBIC as a rule, and a window of the same shape is what takes a fair share beside them.
//! Owns: the window, and nothing of what is in flight. No clock: time is an argument.

use crate::types::Time;
use std::time::Duration;

/// Window at the start, in datagrams (RFC 6928).
const WINDOW_START: u64 = 10;
/// Smallest window, in datagrams.
const WINDOW_MIN: u64 = 2;
/// Largest window, in bytes: 40 Gbit/s over 1.6 ms.
const WINDOW_MAX: u64 = 8 << 20;
/// RFC 9438 §4.6: what is left of the window after a loss.
const BETA: f64 = 0.7;
/// RFC 9438 §5.1: how aggressive the growth is, in segments per second cubed.
const C: f64 = 0.4;
/// RFC 9438 §4.3: growth per round trip at which Reno's window and this one have the same average.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// RFC 9406 §4.3: bounds of the increase of the round-trip time that ends slow start, and the share of it.
const RTT_THRESHOLD: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
const RTT_THRESHOLD_DIVISOR: u32 = 8;
/// RFC 9406 §4.3: samples of a round before it is judged.
const ROUND_SAMPLES: u32 = 8;
/// RFC 9406 §4.3: conservative slow start grows by this much less, for this many rounds.
const CSS_DIVISOR: f64 = 4.0;
const CSS_ROUNDS: u32 = 5;

/// Slow start by HyStart++: rounds are counted by packet numbers.
#[derive(Debug, Clone, Default)]
struct Rounds {
    /// The round ends when this number is acknowledged.
    end: u64,
    last_min: Option<Duration>,
    min: Option<Duration>,
    samples: u32,
    /// Conservative slow start: the smallest round-trip time when it began, and its rounds.
    conservative: Option<(Duration, u32)>,
}

/// An acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    /// Bytes that were not acknowledged before.
    pub bytes: u64,
    /// Number of the newest of them.
    pub newest: u64,
    /// Number that will be used next.
    pub next: u64,
    /// Round-trip time, if it gives a good sample.
    pub rtt: Option<Duration>,
}

/// The window of one path.
#[derive(Debug, Clone)]
pub(crate) struct Cubic {
    datagram: f64,
    window: f64,
    threshold: f64,
    /// Window before the last reduction, with fast convergence (RFC 9438 §4.7).
    w_max: f64,
    /// Window before the last reduction.
    w_prior: f64,
    /// Window that Reno would have.
    w_est: f64,
    /// When this stage of congestion avoidance began, and the time until the plateau, in seconds.
    stage: Option<(Time, f64)>,
    rounds: Rounds,
    /// Losses below this number belong to the reduction that was made already.
    recovery: u64,
    /// Reductions without anything acknowledged in between.
    fruitless: u32,
    /// Window, threshold, `w_max` and `w_prior` before the last reduction.
    before: (f64, f64, f64, f64),
}

impl Cubic {
    /// For datagrams of at most this many bytes.
    pub fn new(datagram_bytes: usize) -> Self {
        let datagram = datagram_bytes as f64;
        Self {
            datagram,
            window: WINDOW_START as f64 * datagram,
            threshold: f64::INFINITY,
            w_max: 0.0,
            w_prior: 0.0,
            w_est: 0.0,
            stage: None,
            rounds: Rounds::default(),
            recovery: 0,
            fruitless: 0,
            before: (0.0, f64::INFINITY, 0.0, 0.0),
        }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u64 {
        self.window as u64
    }

    /// Whether the window is still being searched for.
    pub fn slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// The size of datagrams has changed.
    pub fn resize(&mut self, datagram_bytes: usize) {
        self.datagram = datagram_bytes as f64;
        self.window = self.window.max(WINDOW_MIN as f64 * self.datagram);
    }

    /// Datagrams were acknowledged; `smoothed` is the round-trip time; `limited`: whether the window held the sender
    /// back.
    pub fn acked(&mut self, news: Acked, smoothed: Duration, limited: bool, now: Time) {
        let Acked { bytes, newest, next, rtt } = news;
        self.fruitless = 0;
        if self.slow_start() {
            self.round(newest, next, rtt);
        }
        if newest < self.recovery {
            // sent before the reduction: proves nothing about the present window
            return;
        }
        if !limited {
            // the curve goes on from here when the window matters again (RFC 9438 §5.8)
            self.stage = None;
            return;
        }
        if self.slow_start() {
            let divisor = if self.rounds.conservative.is_some() { CSS_DIVISOR } else { 1.0 };
            self.window += bytes as f64 / divisor;
        } else {
            self.avoid(bytes as f64, smoothed, now);
        }
        self.window = self.window.min(WINDOW_MAX as f64);
    }

    /// RFC 9406 §4.2.
    fn round(&mut self, newest: u64, next: u64, rtt: Option<Duration>) {
        let r = &mut self.rounds;
        if let Some(t) = rtt {
            r.min = Some(r.min.map_or(t, |m| m.min(t)));
            r.samples += 1;
        }
        if r.samples >= ROUND_SAMPLES {
            match (r.conservative, r.min, r.last_min) {
                (None, Some(min), Some(last)) => {
                    let step = (last / RTT_THRESHOLD_DIVISOR).clamp(RTT_THRESHOLD.0, RTT_THRESHOLD.1);
                    if min >= last + step {
                        r.conservative = Some((min, 0));
                    }
                }
                // it was no queue after all
                (Some((baseline, _)), Some(min), _) if min < baseline => r.conservative = None,
                _ => {}
            }
        }
        if newest >= r.end {
            r.end = next;
            (r.last_min, r.min, r.samples) = (r.min.or(r.last_min), None, 0);
            if let Some((_, rounds)) = &mut r.conservative {
                *rounds += 1;
                if *rounds >= CSS_ROUNDS {
                    self.threshold = self.window;
                }
            }
        }
    }

    /// RFC 9438 §4.2 to §4.5, in datagrams.
    fn avoid(&mut self, bytes: f64, smoothed: Duration, now: Time) {
        let (start, k) = *self.stage.get_or_insert_with(|| {
            if self.w_max < self.window {
                self.w_max = self.window;
            }
            self.w_est = self.window;
            (now, ((self.w_max - self.window) / self.datagram / C).cbrt())
        });
        let curve = |t: f64| C * (t - k).powi(3) * self.datagram + self.w_max;
        let t = now.since(start).as_secs_f64();
        let alpha = if self.w_est >= self.w_prior { 1.0 } else { ALPHA };
        self.w_est += alpha * self.datagram * bytes / self.window;
        if curve(t) < self.w_est {
            self.window = self.window.max(self.w_est);
        } else {
            let target = curve(t + smoothed.as_secs_f64()).clamp(self.window, 1.5 * self.window);
            self.window += (target - self.window) * bytes / self.window;
        }
    }

    /// The last reduction was a mistake: what was thought lost had only been overtaken (RFC 9438 §4.9.2).
    pub fn undo(&mut self) {
        if self.before.0 > self.window {
            (self.window, self.threshold, self.w_max, self.w_prior) = self.before;
            self.stage = None;
        }
    }

    /// A datagram was lost, number `number`; `next` is the number that is used next.
    pub fn lost(&mut self, number: u64, next: u64) {
        if number < self.recovery {
            return;
        }
        self.before = (self.window, self.threshold, self.w_max, self.w_prior);
        self.recovery = next;
        self.stage = None;
        self.w_prior = self.window;
        // fast convergence: a flow that shrinks twice in a row makes room for others
        self.w_max = if self.window < self.w_max { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.fruitless += 1;
        let least = WINDOW_MIN as f64 * self.datagram;
        // RFC 9002 §7.6: when nothing gets through for long, start again from the least window
        self.window = if self.fruitless > 2 { least } else { (self.window * BETA).max(least) };
        if self.w_prior > least {
            // a window that cannot shrink does not show where the loss began
            self.threshold = (self.w_prior * BETA).max(least);
        }
        self.rounds.conservative = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Windows of 1000-byte datagrams, all acknowledged after one round-trip time, for `rounds` rounds.
    fn run(c: &mut Cubic, number: &mut u64, now: &mut u64, rtt_ns: u64, rounds: usize) {
        for _ in 0..rounds {
            *now += rtt_ns;
            let n = (c.window() / 1000).max(1);
            let rtt = Duration::from_nanos(rtt_ns);
            for _ in 0..n {
                *number += 1;
                let news = Acked { bytes: 1000, newest: *number - 1, next: *number + n, rtt: Some(rtt) };
                c.acked(news, rtt, true, Time::from_ns(*now));
            }
        }
    }

    #[test]
    fn slow_start_doubles_until_a_loss_and_one_window_of_losses_counts_once() {
        let mut c = Cubic::new(1000);
        let (mut n, mut t) = (0, 0);
        run(&mut c, &mut n, &mut t, MS, 3);
        assert!((79_000..=81_000).contains(&c.window()), "{}", c.window());
        c.lost(n, n + 80);
        assert!((55_000..=57_000).contains(&c.window()), "{}", c.window());
        c.lost(n + 50, n + 80);
        assert!((55_000..=57_000).contains(&c.window()));
        assert!(!c.slow_start());
    }

    #[test]
    fn slow_start_ends_when_the_round_trip_grows() {
        let mut c = Cubic::new(1000);
        let (mut n, mut t) = (0, 0);
        run(&mut c, &mut n, &mut t, 10 * MS, 3);
        let before = c.window();
        run(&mut c, &mut n, &mut t, 20 * MS, 8);
        assert!(!c.slow_start(), "conservative slow start has an end");
        assert!(c.window() < before * 8, "and it grew less: {} from {before}", c.window());
    }

    #[test]
    fn the_window_returns_to_where_the_loss_was_in_the_time_that_the_curve_says() {
        // 1000 datagrams, round trip 100 ms: K = cbrt(1000 * 0.3 / 0.4) = 9.1 s, and Reno would need 56 s
        let mut c = Cubic::new(1000);
        c.window = 1_000_000.0;
        c.lost(0, 1);
        let (mut n, mut t) = (1, 0);
        run(&mut c, &mut n, &mut t, 100 * MS, 45);
        assert!(c.window() < 1_000_000, "concave up to the plateau: {}", c.window());
        run(&mut c, &mut n, &mut t, 100 * MS, 55);
        assert!((990_000..1_060_000).contains(&c.window()), "{}", c.window());
    }

    #[test]
    fn at_a_short_round_trip_it_grows_as_reno_would() {
        let mut c = Cubic::new(1000);
        c.window = 100_000.0;
        c.lost(0, 1);
        let (mut n, mut t) = (1, 0);
        run(&mut c, &mut n, &mut t, MS / 5, 20);
        // 70 datagrams and 20 rounds of 0.53
        assert!((79_000..=82_000).contains(&c.window()), "{}", c.window());
    }

    #[test]
    fn a_sender_with_little_to_send_does_not_grow_its_window() {
        let mut c = Cubic::new(1000);
        let before = c.window();
        for n in 0..100 {
            let news = Acked { bytes: 1000, newest: n, next: n + 1, rtt: None };
            c.acked(news, Duration::from_millis(1), false, Time::from_ns(n * MS));
        }
        assert_eq!(c.window(), before);
    }

    #[test]
    fn a_reduction_that_was_a_mistake_is_taken_back_once() {
        let mut c = Cubic::new(1000);
        c.window = 100_000.0;
        c.lost(0, 100);
        assert_eq!(c.window(), 70_000);
        c.undo();
        assert_eq!((c.window(), c.slow_start()), (100_000, true));
        c.undo();
        assert_eq!(c.window(), 100_000);
        c.lost(99, 200);
        assert_eq!(c.window(), 100_000, "one reduction for what was in flight, taken back or not");
        c.lost(100, 200);
        assert_eq!(c.window(), 70_000);
    }

    #[test]
    fn when_nothing_gets_through_the_window_becomes_the_smallest() {
        let mut c = Cubic::new(1000);
        c.window = 1e6;
        for n in 0..4 {
            c.lost(n * 10, n * 10 + 10);
        }
        assert_eq!(c.window(), 2000);
        assert!(c.slow_start(), "and it is searched for again");
    }
}
