//! What the kernel knows of the way to a peer, its link-layer address, is not lost in the dark.
//!
//! A kernel that hears nothing from a neighbour forgets it after half a minute or sooner, and then asks for it once a second (RFC 4861 §7.3.3
//! `RETRANS_TIMER`, §10; arp(7)): after a repair nothing can be sent for up to that second, although the address is what it was. Whoever
//! talks over UDP may say that a neighbour is there (`MSG_CONFIRM`, send(2)), and keeps what is known.
//!
//! That is true while questions are answered. It is a claim while they are not: the address may be another by now. Whoever gets a new one
//! asks for ours before its first word, and our kernel learns it from that; should all that have failed, it is left alone after
//! [`KEPT_FOR`], and finds out by itself.
//!
//! Owns: when a neighbour is to be kept.

use crate::types::Time;
use std::time::Duration;

/// A neighbour is kept so often. Linux waits 5 s (`delay_first_probe_time`) before it doubts what it knows.
const KEPT_EVERY: Duration = Duration::from_secs(1);
/// For so long after the first question that was not answered.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// What a path has to remember for it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Neighbour {
    /// When the first question was asked of those that are not answered; of all, if they are.
    asked_at: Option<Time>,
    /// When the neighbour was last kept.
    kept_at: Option<Time>,
}

impl Neighbour {
    /// A question goes out on the path, and all before it were answered.
    pub fn asks_anew(&mut self, now: Time) {
        self.asked_at = Some(now);
    }

    /// Something goes out on the path that is to be answered; whether the neighbour is to be kept now.
    pub fn keep(&mut self, now: Time) -> bool {
        let known = self.asked_at.is_some_and(|t| now.since(t) < KEPT_FOR);
        let keeps = known && self.kept_at.is_none_or(|t| now.since(t) >= KEPT_EVERY);
        if keeps {
            self.kept_at = Some(now);
        }
        keeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_is_kept_once_a_second_while_there_is_a_question_that_is_not_too_old() {
        let at = |s| Time::ORIGIN + Duration::from_secs(s);
        let mut n = Neighbour::default();
        assert!(!n.keep(at(1)), "nothing was asked");
        n.asks_anew(at(2));
        assert!(n.keep(at(2)) && !n.keep(at(2)) && n.keep(at(3)));
        assert!(n.keep(at(601)) && !n.keep(at(602)), "it finds out by itself");
        n.asks_anew(at(603));
        assert!(n.keep(at(603)));
    }
}
