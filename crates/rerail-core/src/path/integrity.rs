//! The integrity of a path: the faults counted against it, quarantine, and the proof that it owes after that.

use crate::rest::rests;
use crate::types::{Time, ms};
use std::collections::VecDeque;
use std::time::Duration;

/// Longest quarantine.
pub(crate) const QUARANTINE_MAX: Duration = Duration::from_secs(60);
/// One quarantine is forgiven for each such time without another.
const FORGIVEN_AFTER: Duration = Duration::from_secs(120);
/// Datagrams of full length that must go there and back without a fault, after the first quarantine; twice as many after each
/// further one.
const PROOF_DATAGRAMS: u32 = 128;
/// The same for stream frames of full length.
const PROOF_FRAMES: u32 = 8;
/// Doublings of both at most: 4096 datagrams (6 MB at 1500 bytes) and 256 frames (16 MiB), each way.
const PROOF_DOUBLINGS: u32 = 5;
/// A channel that has not come to life this long after the new epoch began proves nothing, and is not waited for.
const PROOF_CHANNEL: Duration = ms(1000);

/// The integrity of a path, if there was ever reason to doubt it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Integrity {
    /// Faults counted on the path, since it was made.
    faults: u64,
    /// When the newest came, oldest first; never more than the threshold.
    recent: VecDeque<Time>,
    /// When the last event about it was given out.
    told_at: Option<Time>,
    /// Quarantines that are not forgiven.
    quarantines: u32,
    quarantined_at: Time,
    /// What it owes before it carries traffic again.
    proof: Option<Proof>,
}

rests! {
    Integrity = Integrity {
        faults: 0,
        recent: VecDeque::new(),
        told_at: None,
        quarantines: 0,
        quarantined_at: Time::ORIGIN,
        proof: None,
    };
}

/// Full-length queries that must still be answered without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Proof {
    queries: u32,
    frames: u32,
    /// Newest query that was counted, by datagram and by stream: an answer counts once, however often it comes.
    counted: [u64; 2],
    /// A long query is on the stream.
    asked_stream: bool,
    since: Time,
}

impl Proof {
    fn new(quarantines: u32, now: Time) -> Self {
        let doublings = quarantines.saturating_sub(1).min(PROOF_DOUBLINGS);
        Self {
            queries: PROOF_DATAGRAMS << doublings,
            frames: PROOF_FRAMES << doublings,
            counted: [0; 2],
            asked_stream: false,
            since: now,
        }
    }

    /// Whether it is rendered, given which channels the path has.
    fn rendered(&self, datagrams_work: bool, has_stream: bool, now: Time) -> bool {
        let waited = now.since(self.since) >= PROOF_CHANNEL;
        (self.queries == 0 || (waited && !datagrams_work)) && (self.frames == 0 || (waited && !has_stream))
    }
}

impl Integrity {
    /// A new epoch begins: what is owed is owed in full.
    pub fn renew(&mut self, now: Time) {
        if self.proof.is_some() {
            self.proof = Some(Proof::new(self.quarantines, now));
        }
    }

    /// The path has a new stream: queries on the old one will not be answered.
    pub fn new_stream(&mut self) {
        if let Some(p) = &mut self.proof {
            p.asked_stream = false;
        }
    }

    /// Faults since the path was made.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// Whether it was quarantined, and has not proved itself since.
    pub fn owes_proof(&self) -> bool {
        self.proof.is_some()
    }

    /// Whether a fault is to be reported: one that had consequences, or the first after a while.
    pub fn tells(&mut self, had_consequences: bool, window: Duration, now: Time) -> bool {
        let tells = had_consequences || self.told_at.is_none_or(|t| now.since(t) > window);
        if tells {
            self.told_at = Some(now);
        }
        tells
    }

    /// The path is held down, which is reported; `owes`: it has to prove itself then.
    pub fn hold(&mut self, owes: bool, now: Time) {
        self.told_at = Some(now);
        if owes {
            self.proof = Some(Proof::new(self.quarantines, now));
        }
    }

    /// The path carries traffic again: nothing is owed.
    pub fn trust(&mut self) {
        self.proof = None;
    }

    /// A query of the proof was answered, with padding of full length or not; whether the next one may go. Only on a path in probation.
    pub fn answered(&mut self, id: u64, by_stream: bool, is_long: bool) -> bool {
        let Some(proof) = &mut self.proof else { return false };
        let counted = &mut proof.counted[usize::from(by_stream)];
        if id <= *counted {
            return false;
        }
        if by_stream {
            // a short answer: the peer is short of room, and is queried again at the next tick
            proof.asked_stream = false;
        }
        if !is_long {
            return false;
        }
        *counted = id;
        if by_stream {
            proof.frames = proof.frames.saturating_sub(1);
            return true;
        }
        proof.queries = proof.queries.saturating_sub(1);
        proof.queries > 0
    }

    /// Whether a long query is to go out on the stream now; if so, it counts as sent.
    pub fn asks_stream(&mut self) -> bool {
        let Some(proof) = &mut self.proof else { return false };
        let asks = proof.frames > 0 && !proof.asked_stream;
        proof.asked_stream |= asks;
        asks
    }

    /// Whether it owes nothing any more, given which channels the path has.
    pub fn has_rendered(&self, datagrams_work: bool, has_stream: bool, now: Time) -> bool {
        self.proof.is_none_or(|proof| proof.rendered(datagrams_work, has_stream, now))
    }

    /// Notes a fault; true when there were `threshold` within `window`.
    pub fn note(&mut self, now: Time, threshold: u32, window: Duration) -> bool {
        self.faults += 1;
        if threshold == 0 {
            return false;
        }
        while self.recent.front().is_some_and(|t| now.since(*t) > window) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        if self.recent.len() < threshold as usize {
            return false;
        }
        self.recent.clear();
        true
    }

    /// Counts a quarantine, forgiving old ones; returns for how long the path is held down.
    pub fn convict(&mut self, now: Time, first: Duration) -> Duration {
        let forgiven = now.since(self.quarantined_at).as_secs() / FORGIVEN_AFTER.as_secs();
        self.quarantines =
            self.quarantines.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)).saturating_add(1);
        self.quarantined_at = now;
        self.recent.clear();
        first.saturating_mul(1 << (self.quarantines - 1).min(16)).min(QUARANTINE_MAX)
    }
}

/// Padding of a long query: no two are alike, and over a few of them every bit is both set and clear beside every other.
pub(crate) fn padding(id: u64, out: &mut [u8]) {
    let mut x = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for c in out.chunks_mut(8) {
        // xorshift64 (Marsaglia 2003)
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let word = match id % 4 {
            0 => 0xaaaa_aaaa_aaaa_aaaa,
            1 => 0x5555_5555_5555_5555,
            _ => x,
        };
        c.copy_from_slice(&u64::to_le_bytes(word)[..c.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(s: u64) -> Time {
        Time::ORIGIN + S * s as u32
    }

    #[test]
    fn faults_count_within_the_window_only() {
        let mut i = Integrity::default();
        assert!(!i.note(at(0), 3, S * 10));
        assert!(!i.note(at(5), 3, S * 10));
        // the first is forgotten by now
        assert!(!i.note(at(11), 3, S * 10));
        assert!(i.note(at(12), 3, S * 10));
        assert_eq!(i.faults, 4);
        // and the count restarts
        assert!(!i.note(at(12), 3, S * 10));
        // 0: never
        assert!((0..100).all(|_| !i.note(at(12), 0, S * 10)));
    }

    #[test]
    fn each_quarantine_is_longer_asks_for_more_and_is_forgiven_slowly() {
        let mut i = Integrity::default();
        let mut held = vec![];
        for k in 0..7 {
            held.push(i.convict(at(1000 + k), S * 2).as_secs());
        }
        assert_eq!(held, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(Proof::new(1, at(0)).queries, PROOF_DATAGRAMS);
        assert_eq!(Proof::new(7, at(0)).queries, PROOF_DATAGRAMS << PROOF_DOUBLINGS);
        // one for every two minutes
        assert_eq!(i.convict(at(1006 + 6 * 120), S * 2).as_secs(), 4);
    }

    #[test]
    fn an_answer_counts_once_and_only_in_full_length() {
        let mut i = Integrity::default();
        assert!(!i.answered(1, false, true), "nothing is owed");
        i.convict(at(1), S);
        i.hold(true, at(1));
        assert!(i.asks_stream() && !i.asks_stream());
        assert!(!i.answered(1, true, false), "short: it is asked again");
        assert!(i.asks_stream() && i.answered(2, true, true) && !i.answered(2, true, true));
        assert!(!i.answered(1, false, false));
        let datagrams = (1..=u64::from(PROOF_DATAGRAMS)).filter(|&id| i.answered(id, false, true)).count();
        assert_eq!(datagrams as u32, PROOF_DATAGRAMS - 1, "after the last one none is asked");
        assert!(!i.has_rendered(true, true, at(100)), "frames are owed");
        assert!((3..2 + u64::from(PROOF_FRAMES)).all(|id| i.answered(id, true, true)));
        assert!(i.has_rendered(true, true, at(1)));
    }

    #[test]
    fn a_channel_that_is_not_there_is_not_waited_for_for_ever() {
        let p = Proof { queries: 0, ..Proof::new(1, at(0)) };
        assert!(!p.rendered(true, false, Time::ORIGIN + ms(10)));
        assert!(p.rendered(true, false, at(1)));
        assert!(!p.rendered(true, true, at(100)));
        assert!(Proof { frames: 0, ..p }.rendered(true, true, Time::ORIGIN));
    }

    #[test]
    fn padding_sets_and_clears_every_bit() {
        let (mut ones, mut zeros) = ([0u8; 24], [0u8; 24]);
        for id in 0..8 {
            let mut b = [0; 24];
            padding(id, &mut b);
            for k in 0..24 {
                ones[k] |= b[k];
                zeros[k] |= !b[k];
            }
        }
        assert_eq!((ones, zeros), ([255; 24], [255; 24]));
    }
}
