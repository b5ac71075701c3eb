//! The need of a path for a stream: when it opens the first one, and since when bulk has waited for one.
//!
//! Invariant: before the first stream bulk waits for none, because datagrams carry it; afterwards it waits for
//! [`PATIENCE`] before datagrams do.

use crate::types::Time;
use std::time::Duration;

/// How long bulk waits for a stream before it goes as datagrams.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// When a path opens its first stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum First {
    /// When it is connected; or there was one.
    #[default]
    AtOnce,
    /// When something large is to go.
    Saved,
    /// Something large is to go.
    Awaited,
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Demand {
    first: First,
    since: Option<Time>,
}

impl Demand {
    /// No stream is opened before [`Demand::arises`].
    pub fn save(&mut self) {
        self.first = First::Saved;
    }

    /// Whether none is opened.
    #[inline]
    pub fn is_saved(&self) -> bool {
        self.first == First::Saved
    }

    /// Something large is to go to the peer, or to come.
    pub fn arises(&mut self) {
        if self.is_saved() {
            self.first = First::Awaited;
        }
    }

    /// A stream is attached.
    pub fn is_met(&mut self) {
        *self = Self::default();
    }

    /// No bulk waits for one.
    pub fn ends(&mut self) {
        self.since = None;
    }

    /// Bulk waits (`waits`), or waited before. Returns until when it does.
    pub fn note(&mut self, waits: bool, now: Time) -> Option<Time> {
        (waits || self.since.is_some()).then(|| *self.since.get_or_insert(now) + PATIENCE)
    }

    /// Whether bulk waits.
    pub fn waits(&self) -> bool {
        self.since.is_some()
    }

    /// Whether bulk has waited for long enough, or need not wait for the first stream.
    pub fn has_waited(&self, now: Time) -> bool {
        self.first != First::AtOnce || self.since.is_some_and(|t| now.since(t) >= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_waits_for_a_stream_that_was_there_and_not_for_the_first() {
        let (mut d, now) = (Demand::default(), Time::ORIGIN);
        assert!(!d.is_saved() && !d.has_waited(now));
        assert_eq!((d.note(false, now), d.note(true, now)), (None, Some(now + PATIENCE)));
        assert!(d.waits() && !d.has_waited(now) && d.has_waited(now + PATIENCE));
        d.ends();
        d.arises();
        assert!(!d.waits() && !d.has_waited(now), "one that was there is not awaited like the first");
        d.save();
        assert!(d.is_saved() && d.has_waited(now), "datagrams carry meanwhile");
        d.arises();
        assert!(!d.is_saved() && d.has_waited(now));
        d.is_met();
        assert!(!d.has_waited(now), "from now on a stream is missed");
    }
}
