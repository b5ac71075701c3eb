//! Keeps the kernel's ARP/ND entry for a peer alive while nothing arrives.
//!
//! A kernel that receives nothing from a neighbour forgets its link-layer address after half a minute or sooner, and
//! then requests it once a second (RFC 4861 §7.3.3 `RETRANS_TIMER`, §10; arp(7)): after a repair nothing can be sent
//! for up to that second, although the address has not changed. A program that sends over UDP may confirm that a
//! neighbour is there (`MSG_CONFIRM`, send(2)), and so keep the entry.
//!
//! While queries are answered, the confirmation is true. While they are not, it is only a claim: the address may have
//! changed. A neighbour with a new address requests ours before its first packet, and our kernel learns it from that;
//! should that fail too, the kernel is left alone after [`KEPT_FOR`], and finds out by itself.
//!
//! Owns: when a neighbour is to be kept.

use crate::types::Time;
use std::time::Duration;

/// Interval of the confirmations. Linux waits 5 s (`delay_first_probe_time`) before it doubts an entry.
const KEPT_EVERY: Duration = Duration::from_secs(1);
/// They continue for so long after the first unanswered query.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// What a path has to remember for it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Neighbour {
    /// When the first of the unanswered queries was sent; if all are answered, the last that was sent while none was
    /// open.
    asked_at: Option<Time>,
    /// When the neighbour was last kept.
    kept_at: Option<Time>,
}

impl Neighbour {
    /// A query goes out on the path, and all before it were answered.
    pub fn asks_anew(&mut self, now: Time) {
        self.asked_at = Some(now);
    }

    /// A packet that expects an answer goes out on the path; whether the neighbour is to be kept now.
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
