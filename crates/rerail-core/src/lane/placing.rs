//! Whether the streams of a lane are trusted with writes into the peer's memory.
//!
//! Owns: how many streams in a row broke with writes unresolved, and until when fragments go as copies because of that. One break says
//! nothing: cables break, too. A rail that refuses every write (a wrong key, an adapter without the right) breaks each stream that
//! writes, and each break costs a fence; copies need neither. The contract of a rail has no word for "refused by the peer", because adapters
//! report that and a broken cable alike. What the own adapter cannot read ([`Posted::Unreadable`](rerail_rail::Posted)) pauses at once. Invariants: an
//! acknowledged write restores trust in the peer's rail; it does not end the pause that the own adapter made, because it was of other memory.

use crate::types::Time;
use std::time::Duration;

/// Streams in a row that may break with writes unresolved before fragments go as copies.
const BREAKS_MAX: u32 = 3;
/// How long they do: at first, and at most. The pause doubles with each stream that breaks at its end.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// See above.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Placing {
    breaks: u32,
    paused_until: Option<Time>,
    /// The own adapter reads nothing until then.
    unreadable_until: Option<Time>,
}

impl Placing {
    /// A stream broke with writes unresolved.
    pub fn breaks(&mut self, now: Time) {
        self.breaks = self.breaks.saturating_add(1);
        if let Some(more) = self.breaks.checked_sub(BREAKS_MAX) {
            self.paused_until = Some(now + (PAUSE.0 * (1 << more.min(16))).min(PAUSE.1));
        }
    }

    /// The adapter could not read a source: for a while none is tried.
    pub fn read_nothing(&mut self, now: Time) {
        self.unreadable_until = Some(now + PAUSE.0);
    }

    /// A write was acknowledged.
    #[inline]
    pub fn works(&mut self) {
        (self.breaks, self.paused_until) = (0, None);
    }

    /// Whether fragments go as copies.
    #[inline]
    pub fn is_paused(&self, now: Time) -> bool {
        let paused = |until: Option<Time>| until.is_some_and(|until| now < until);
        paused(self.paused_until) || paused(self.unreadable_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::ORIGIN + Duration::from_secs(s)
    }

    #[test]
    fn the_third_break_in_a_row_pauses_and_each_trial_in_vain_doubles_the_pause() {
        let mut p = Placing::default();
        p.breaks(at(0));
        p.breaks(at(0));
        assert!(!p.is_paused(at(0)));
        let mut now = 0;
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            p.breaks(at(now));
            assert!(p.is_paused(at(now + pause - 1)) && !p.is_paused(at(now + pause)), "{pause} s");
            now += pause;
        }
    }

    #[test]
    fn an_acknowledged_write_restores_trust() {
        let mut p = Placing::default();
        (0..5).for_each(|_| p.breaks(at(0)));
        p.works();
        p.breaks(at(0));
        p.breaks(at(0));
        assert!(!p.is_paused(at(0)));
        p.breaks(at(0));
        assert!(p.is_paused(at(0)) && !p.is_paused(at(1)), "the pause is the first again");
    }

    #[test]
    fn an_acknowledged_write_says_nothing_of_memory_that_could_not_be_read() {
        let mut p = Placing::default();
        p.read_nothing(at(0));
        p.works();
        assert!(p.is_paused(at(0)) && !p.is_paused(at(1)));
    }
}
