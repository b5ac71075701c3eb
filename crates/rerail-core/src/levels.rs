//! Retransmission levels, as in PML DR §3.3: how often parts of one vfrag had to be sent again because of one rail.
//!
//! Owns: which rail lost which fragment. What was lost on a rail goes over another, if there is one, and a rail at which a vfrag
//! reaches the level is taken out. Only fragments that went once and on streams count: a stream loses nothing, so a fragment that was overtaken on
//! it was damaged there. Lost datagrams are normal under incast and no evidence against a path (design, "The rail over IP").
//! Differs from the paper: a timer never sends anything again by itself (hazard H3), so levels count losses that are known.

use crate::engine::Engine;
use crate::event::{Direction, Witness};
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::sent::Sent;
use crate::path::Path;
use crate::peer::Peer;
use crate::rendezvous::{Item, VFRAG_FRAGMENTS};
use rustc_hash::{FxHashMap, FxHashSet};

/// Losses of one message. Paths are places in the peer's list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    /// Fragments lost, and where.
    lost: FxHashSet<(u64, usize)>,
    /// Losses of each vfrag on each path.
    levels: FxHashMap<(u64, usize), u32>,
    /// Fragments that went, or go, more than once: two copies take the place from each other at the receiver (hazard H2), and the
    /// one that loses it is not acknowledged, which says nothing about its rail.
    again: FxHashSet<u64>,
}

impl Levels {
    /// Notes a loss; returns the level that the fragment's vfrag has reached on that path.
    fn note(&mut self, frag: u64, path: usize, counts: bool) -> u32 {
        self.lost.insert((frag, path));
        let level = self.levels.entry((frag / VFRAG_FRAGMENTS, path)).or_default();
        *level += u32::from(counts && !self.again.contains(&frag));
        *level
    }

    /// A fragment goes again.
    pub fn goes_again(&mut self, frag: u64) {
        self.again.insert(frag);
    }
}

/// The message of an item that carries payload, and where in it the item begins.
fn place(item: &Item) -> Option<(u64, u64)> {
    match *item {
        Item::Eager { seq } | Item::Rts { seq } => Some((seq, 0)),
        Item::Frag { seq, at, .. } => Some((seq, at)),
        _ => None,
    }
}

impl Peer {
    /// Whether an item was lost on path `xi` before.
    fn was_lost_on(&self, item: &Item, xi: usize) -> bool {
        let Some((seq, at)) = place(item) else { return false };
        self.tx.get(&seq).is_some_and(|m| {
            m.levels.as_ref().is_some_and(|l| l.lost.contains(&(at / u64::from(m.granule), xi)))
        })
    }

    /// The path over which a lost small item should go in the place of `xi`, where it was lost.
    pub fn datagram_path_instead(&self, item: &Item, xi: usize) -> Option<usize> {
        let fit =
            |x: &Path| x.health == Health::Up && x.datagrams_usable() && x.lane.datagrams().has_window();
        if !self.was_lost_on(item, xi) {
            return None;
        }
        (0..self.paths.len()).find(|&i| i != xi && fit(&self.paths[i]) && !self.was_lost_on(item, i))
    }
}

impl Engine {
    /// Whether bulk that waits should rather go over another path than `xi`, because it was lost there.
    pub(crate) fn avoids_path(&self, p: &Peer, item: &Item, xi: usize) -> bool {
        p.was_lost_on(item, xi)
            && p.paths.iter().enumerate().any(|(i, x)| {
                i != xi
                    && x.health == Health::Up
                    && self.takes_bulk(p, i).is_some()
                    && !p.was_lost_on(item, i)
            })
    }

    /// What these records carried was lost on a path.
    pub(crate) fn blame(&mut self, pi: usize, xi: usize, lost: &[Sent], channel: Channel) {
        if !self.remedies.retransmit_levels() {
            return;
        }
        let most = self.options.retransmit_level;
        let mut level = 0;
        let p = &mut self.peers[pi];
        for s in lost.iter().filter(|s| !s.hedged) {
            for item in s.items.as_slice() {
                let Some((seq, at)) = place(item) else { continue };
                if !p.needs(item) {
                    continue;
                }
                let Some(m) = p.tx.get_mut(&seq) else { continue };
                let counts = channel == Channel::Stream && matches!(item, Item::Frag { .. });
                let frag = at / u64::from(m.granule);
                level = level.max(m.levels.get_or_insert_default().note(frag, xi, counts));
            }
        }
        if most > 0 && level >= most && self.another_works(pi, xi) {
            self.fail_path(pi, xi, Witness::Level, Direction::Out);
        }
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
