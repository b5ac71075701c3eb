//! Our goodbye to one peer (hazard H5).
//!
//! Owns: whether it is to be sent, when it went out, and whether it was answered.

use crate::types::Time;

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Farewell {
    /// The first message after it. What follows can only be answers to orders that came later, which the peer does not take.
    from: Option<u64>,
    /// When it went out, and not into a path that broke.
    out_at: Option<Time>,
    answered: bool,
}

impl Farewell {
    /// It is to be sent, after all messages before `from`.
    pub fn say(&mut self, from: u64) {
        self.from = Some(from);
    }

    pub fn is_said(&self) -> bool {
        self.from.is_some()
    }

    /// Whether a message was sent before it.
    pub fn is_after(&self, seq: u64) -> bool {
        self.from.is_none_or(|from| seq < from)
    }

    /// It goes out.
    pub fn goes_out(&mut self, now: Time) {
        self.out_at = Some(now);
    }

    /// It was lost, and goes out again.
    pub fn lost(&mut self) {
        self.out_at = None;
    }

    /// Until now it could not be answered: that time does not count.
    pub fn excuse(&mut self, now: Time) {
        self.out_at = self.out_at.map(|_| now);
    }

    /// When it went out.
    pub fn out_at(&self) -> Option<Time> {
        self.out_at
    }

    /// The peer has it.
    pub fn acked(&mut self) {
        self.answered = true;
    }

    /// Whether the peer has it.
    pub fn is_answered(&self) -> bool {
        self.answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_does_not_count_begins_anew_only_for_what_is_out() {
        let (mut f, at) = (Farewell::default(), |t: u64| Time::from_ns(t * 1_000_000));
        assert!(f.is_after(7) && !f.is_said());
        f.say(7);
        assert!(f.is_after(6) && !f.is_after(7) && f.is_said());
        f.excuse(at(1));
        assert_eq!(f.out_at(), None, "it is not out");
        f.goes_out(at(2));
        f.excuse(at(3));
        assert_eq!(f.out_at(), Some(at(3)));
        f.lost();
        f.excuse(at(4));
        assert_eq!((f.out_at(), f.is_answered()), (None, false));
    }
}
