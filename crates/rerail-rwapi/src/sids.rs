//! Send identifiers. Owns: which writes are under way, and which have failed.
//!
//! Invariant: an identifier names one write for the life of the process. So one that is neither under way nor failed, and was
//! given out, is done; nothing is kept of it.

use crate::Failure;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Names a write (RWAPI paper, section 2). Counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sid(pub u64);

/// Failed writes that were not looked at: beyond that no new write begins. So many that were looked at are remembered as well.
pub const FAILURES_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Clone)]
pub struct Sids<W> {
    given: u64,
    under_way: FxHashMap<u64, W>,
    failed: FxHashMap<u64, Failure>,
    /// Those of them that were looked at, oldest first.
    looked_at: VecDeque<u64>,
    /// Planted: identifiers are used again after so many.
    again_after: Option<u64>,
}

impl<W> Default for Sids<W> {
    fn default() -> Self {
        Self {
            given: 0,
            under_way: FxHashMap::default(),
            failed: FxHashMap::default(),
            looked_at: VecDeque::new(),
            again_after: None,
        }
    }
}

impl<W> Sids<W> {
    /// The identifier that the next write gets.
    pub fn next(&self) -> Sid {
        match self.again_after {
            Some(most) => Sid(self.given % most + 1),
            None => Sid(self.given + 1),
        }
    }

    /// That write has begun.
    pub fn begin(&mut self, write: W) -> Sid {
        let sid = self.next();
        self.given += 1;
        self.under_way.insert(sid.0, write);
        sid
    }

    /// A write is over.
    pub fn end(&mut self, sid: Sid, failure: Option<Failure>) -> Option<W> {
        let write = self.under_way.remove(&sid.0)?;
        if let Some(why) = failure {
            self.failed.insert(sid.0, why);
        }
        Some(write)
    }

    /// Whether a write is done.
    ///
    /// # Errors
    /// [`Failure`]; `None`: no write had this identifier.
    pub fn is_done(&mut self, sid: Sid) -> Result<bool, Option<Failure>> {
        if sid.0 == 0 || sid.0 > self.given {
            return Err(None);
        }
        let Some(&why) = self.failed.get(&sid.0) else { return Ok(!self.under_way.contains_key(&sid.0)) };
        if !self.looked_at.contains(&sid.0) {
            self.looked_at.push_back(sid.0);
            if self.looked_at.len() > FAILURES_MAX {
                self.looked_at.pop_front().and_then(|oldest| self.failed.remove(&oldest));
            }
        }
        Err(Some(why))
    }

    /// Whether too many failures wait to be looked at.
    pub fn is_full(&self) -> bool {
        self.failed.len() - self.looked_at.len() >= FAILURES_MAX
    }

    /// Writes that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Plants the bug that identifiers are used again early.
    #[cfg(feature = "planted-bugs")]
    pub fn use_again_after(&mut self, writes: u64) {
        self.again_after = Some(writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_done_once_it_is_over_and_ever_after() {
        let mut sids = Sids::default();
        let (a, b) = (sids.begin('a'), sids.begin('b'));
        assert_eq!((sids.is_done(a), sids.is_done(b)), (Ok(false), Ok(false)));
        assert_eq!(sids.end(a, None), Some('a'));
        assert_eq!(sids.end(a, None), None);
        assert_eq!((sids.is_done(a), sids.is_done(b), sids.under_way()), (Ok(true), Ok(false), 1));
        assert_eq!(sids.is_done(Sid(0)), Err(None));
        assert_eq!(sids.is_done(sids.next()), Err(None));
    }

    #[test]
    fn failures_are_remembered_and_bounded() {
        let mut sids = Sids::default();
        for _ in 0..FAILURES_MAX {
            assert!(!sids.is_full());
            let sid = sids.begin(());
            sids.end(sid, Some(Failure::Refused));
        }
        assert!(sids.is_full());
        for _ in 0..2 {
            assert_eq!(sids.is_done(Sid(7)), Err(Some(Failure::Refused)));
            assert!(!sids.is_full());
        }
        for n in 1..=FAILURES_MAX as u64 {
            let sid = sids.begin(());
            sids.end(sid, Some(Failure::Gone));
            assert!(sids.is_done(Sid(n)).is_err() && sids.is_done(sid).is_err());
        }
        assert!(sids.failed.len() <= 2 * FAILURES_MAX && sids.looked_at.len() <= FAILURES_MAX);
    }
}
