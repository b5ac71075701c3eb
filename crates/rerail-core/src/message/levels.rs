//! Retransmission levels, as in PML DR §3.3: how often parts of one vfrag had to be sent again because of one rail.
//!
//! Owns: which path lost which fragment of one message. Only fragments that went once and on streams count: a stream loses nothing, so a
//! fragment that was overtaken on it was damaged there. Lost datagrams are normal under incast and no evidence against a path (design,
//! "The rail over IP").

use crate::message::fragments::VFRAG_FRAGMENTS;
use rustc_hash::{FxHashMap, FxHashSet};

/// Losses of one message. Paths are places in the peer's list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    /// Fragments lost, and where.
    lost: FxHashSet<(u64, usize)>,
    /// Losses of each vfrag on each path.
    levels: FxHashMap<(u64, usize), u32>,
    /// Fragments that went, or go, more than once: two copies displace each other at the receiver (hazard H2), and the
    /// one that loses it is not acknowledged, which is no evidence about its rail.
    again: FxHashSet<u64>,
}

impl Levels {
    /// Notes a loss; returns the level that the fragment's vfrag has reached on that path.
    pub fn note(&mut self, frag: u64, path: usize, counts: bool) -> u32 {
        self.lost.insert((frag, path));
        let level = self.levels.entry((frag / VFRAG_FRAGMENTS, path)).or_default();
        *level += u32::from(counts && !self.again.contains(&frag));
        *level
    }

    /// Whether a fragment was lost on a path.
    pub fn was_lost(&self, frag: u64, path: usize) -> bool {
        self.lost.contains(&(frag, path))
    }

    /// A fragment goes again.
    pub fn goes_again(&mut self, frag: u64) {
        self.again.insert(frag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_counts_the_losses_of_one_vfrag_on_one_path() {
        let mut l = Levels::default();
        assert_eq!(l.note(0, 0, true), 1);
        assert_eq!(l.note(63, 0, true), 2);
        assert_eq!(l.note(64, 0, true), 1, "another vfrag");
        assert_eq!(l.note(0, 1, true), 1, "another path");
        assert_eq!(l.note(1, 0, false), 2, "a datagram is no evidence");
        assert_eq!(l.note(0, 0, true), 3);
        l.goes_again(0);
        assert_eq!(l.note(0, 0, true), 3, "of two copies only one is acknowledged");
    }
}
