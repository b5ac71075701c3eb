//! Whether a small message that was just posted may wait for those that follow it. Owns: what the application did after its last bursts.
//!
//! Every datagram is a system call on both sides, and a dozen small messages to one peer fit into one. An application that posts many and then waits for
//! them (MPI_Isend, MPI_Isend, …, MPI_Waitall) makes progress microseconds after the last, and that sends what was held back. One that posts two
//! and then computes does not; so nothing is held back before the application has shown that it makes progress, never the first message
//! after progress (a ping-pong knows no other), and never for longer than some microseconds of posting. Where the application breaks its
//! habit, the service thread sends what was held within about a millisecond (`haste`), and nothing is held for many bursts to come.

/// Messages beyond this are sent at once: few of them fit into a datagram.
const SMALL_BYTES: usize = 512;
/// What a message takes in a datagram beside its payload, about.
const FRAME_BYTES: usize = 56;
/// As much makes a datagram.
const FULL_BYTES: usize = 1300;
/// Posts of one burst follow each other within this time, in ns.
const GAP: u64 = 5_000;
/// Nothing is held for longer while posts follow each other.
const HELD: u64 = 20_000;
/// The application made progress this long ago at most: it is not away.
const PRESENT: u64 = 200_000;
/// Progress that follows a burst within this time counts as a habit.
const SOON: u64 = 100_000;
/// Bursts in a row that progress must have followed, and how many are remembered.
const HABIT: i32 = 8;
const HABIT_MAX: i32 = 64;
/// What a burst costs that no progress followed: as many good ones until anything is held again.
const PENALTY: i32 = 64;

/// The posts since the last progress, and the habit. Times are ns of one clock.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    progress_at: u64,
    posted_at: u64,
    posts: u32,
    /// The peer of the last post.
    peer: u32,
    held_bytes: usize,
    held_since: u64,
    habit: i32,
}

impl Burst {
    /// A message of `bytes` bytes to a peer was posted. Returns whether it may wait; if not, everything is to be sent now.
    pub fn holds(&mut self, peer: u32, bytes: usize, now: u64) -> bool {
        // messages to several peers share nothing
        let first = self.posts == 0 || self.peer != peer;
        self.peer = peer;
        let gap = now.saturating_sub(self.posted_at);
        self.posts += 1;
        self.posted_at = now;
        let in_burst = !first && gap <= GAP && bytes <= SMALL_BYTES;
        let present = now.saturating_sub(self.progress_at) <= PRESENT;
        if !in_burst || !present || self.habit < HABIT {
            self.held_bytes = 0;
            return false;
        }
        if self.held_bytes == 0 {
            self.held_since = now;
        }
        self.held_bytes += bytes + FRAME_BYTES;
        let enough = self.held_bytes >= FULL_BYTES || now - self.held_since > HELD;
        if enough {
            self.held_bytes = 0;
        }
        !enough
    }

    /// Something waits.
    pub fn is_held(&self) -> bool {
        self.held_bytes > 0
    }

    /// Everything was sent for another reason.
    pub fn flushed(&mut self) {
        self.held_bytes = 0;
    }

    /// Whether the next progress says something about the habit, so that its time is wanted.
    pub fn is_burst(&self) -> bool {
        self.posts > 1
    }

    /// The application makes progress after a burst.
    pub fn judge(&mut self, now: u64) {
        if now.saturating_sub(self.posted_at) <= SOON {
            self.habit = (self.habit + 1).min(HABIT_MAX);
        } else {
            self.habit = (self.habit.min(0) - PENALTY).max(-4 * PENALTY);
        }
    }

    /// It made progress, and everything was sent.
    pub fn progressed(&mut self, now: u64) {
        self.progress_at = now;
        self.posts = 0;
        self.held_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` posts of 64 bytes, 200 ns apart, from `now` on; which were held, and the time after them.
    fn posts(b: &mut Burst, n: usize, mut now: u64) -> (Vec<bool>, u64) {
        let held = (0..n)
            .map(|_| {
                now += 200;
                b.holds(7, 64, now)
            })
            .collect();
        (held, now)
    }

    fn progress(b: &mut Burst, now: u64) {
        if b.is_burst() {
            b.judge(now);
        }
        b.progressed(now);
    }

    /// Bursts that progress follows at once.
    fn with_habit() -> (Burst, u64) {
        let (mut b, mut now) = (Burst::default(), 1_000_000);
        progress(&mut b, now);
        for _ in 0..HABIT {
            let (held, end) = posts(&mut b, 4, now);
            assert!(!held.contains(&true), "nothing is held before there is a habit");
            now = end + 1_000;
            progress(&mut b, now);
        }
        (b, now)
    }

    #[test]
    fn what_follows_the_first_waits_until_a_datagram_is_full() {
        let (mut b, now) = with_habit();
        let (held, _) = posts(&mut b, 24, now);
        let sent: Vec<_> = held.iter().enumerate().filter(|(_, h)| !**h).map(|(i, _)| i).collect();
        assert_eq!(sent, [0, 11, 22], "the first at once, then eleven of 120 bytes together");
        assert!(b.is_held());
        progress(&mut b, now + 20_000);
        assert!(!b.is_held());
    }

    #[test]
    fn a_ping_pong_never_waits() {
        let (mut b, mut now) = with_habit();
        for _ in 0..100 {
            now += 3_000;
            assert!(!b.holds(7, 8, now));
            now += 100;
            progress(&mut b, now);
        }
    }

    #[test]
    fn slow_posts_large_ones_and_long_bursts_are_not_held() {
        let (mut b, now) = with_habit();
        assert!(!b.holds(7, 64, now + 100));
        assert!(!b.holds(7, 64, now + 100 + GAP + 1), "the next came late");
        assert!(!b.holds(7, SMALL_BYTES + 1, now + 200 + GAP), "large");
        assert!(b.holds(7, 1, now + 300 + GAP));
        let sent = (1..20).find(|k| !b.holds(7, 1, now + 300 + GAP + k * 4_000)).unwrap();
        assert_eq!(sent, 6, "20 us after the first that was held");
    }

    #[test]
    fn who_computes_after_a_burst_is_not_trusted_for_long() {
        let (mut b, mut now) = with_habit();
        let (held, end) = posts(&mut b, 3, now);
        assert_eq!(held, [false, true, true]);
        now = end + 2 * SOON;
        progress(&mut b, now);
        for good in 0..PENALTY + HABIT {
            let (held, end) = posts(&mut b, 3, now);
            assert!(!held.contains(&true), "after {good} good bursts");
            now = end + 1_000;
            progress(&mut b, now);
        }
        assert!(posts(&mut b, 3, now).0.contains(&true), "then it is again");
    }

    #[test]
    fn messages_to_several_peers_do_not_wait_for_each_other() {
        let (mut b, now) = with_habit();
        let held: Vec<bool> = (0..6).map(|k| b.holds(k as u32 % 3, 64, now + 100 * k)).collect();
        assert_eq!(held, [false; 6]);
        assert!(b.holds(2, 64, now + 700));
    }

    #[test]
    fn an_application_that_was_away_is_not_trusted_either() {
        let (mut b, now) = with_habit();
        assert!(!posts(&mut b, 5, now + PRESENT).0.contains(&true));
    }
}
