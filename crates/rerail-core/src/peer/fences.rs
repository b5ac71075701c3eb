//! Streams whose adapters may still write: at the peer, what we wrote; here, what it wrote (hazard H19).
//!
//! Owns: what was written on streams that were given up and is not acknowledged, and the streams that the peer wants to be fenced. Invariant: what
//! is in doubt goes again only when its stream is fenced.

use crate::lane::name::LaneName;
use crate::message::item::Item;
use crate::rest::give_back_list;

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fences {
    doubts: Vec<(LaneName, Vec<Item>)>,
    asked: Vec<LaneName>,
}

impl Fences {
    // ---- what we wrote -----------------------------------------------------------------------------------------

    /// A stream was given up on which these items were written.
    pub fn doubt(&mut self, lane: LaneName, items: Vec<Item>) {
        self.doubts.push((lane, items));
    }

    /// Whether anything is in doubt that was written on that stream.
    pub fn is_in_doubt(&self, lane: LaneName) -> bool {
        self.doubts.iter().any(|d| d.0 == lane)
    }

    /// It is fenced. Returns what was written on it, if that was in doubt.
    pub fn take_doubt(&mut self, lane: LaneName) -> Option<Vec<Item>> {
        let at = self.doubts.iter().position(|d| d.0 == lane)?;
        Some(self.doubts.swap_remove(at).1)
    }

    // ---- what the peer wrote -----------------------------------------------------------------------------------

    /// The peer wants that stream to be fenced.
    pub fn ask(&mut self, lane: LaneName) {
        if !self.asked.contains(&lane) {
            self.asked.push(lane);
        }
    }

    /// How many it wants to be fenced.
    pub fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Takes those that are `closed` now.
    pub fn take_closed(&mut self, mut closed: impl FnMut(LaneName) -> bool) -> Vec<LaneName> {
        let mut taken = Vec::new();
        self.asked.retain(|lane| {
            let over = closed(*lane);
            if over {
                taken.push(*lane);
            }
            !over
        });
        taken
    }

    /// All operations with the peer have failed: nothing is in doubt, and the peer waits for no answer.
    pub fn drop_all(&mut self) {
        *self = Self::default();
    }

    /// Gives back what empty lists hold.
    pub fn rest(&mut self) {
        give_back_list(&mut self.doubts);
        give_back_list(&mut self.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, LaneId, PathId};

    fn lane(number: u64) -> LaneName {
        LaneName::new(PathId(1), Epoch(2), LaneId::FIRST, number)
    }

    #[test]
    fn what_is_in_doubt_is_given_back_once_when_its_stream_is_fenced() {
        let mut f = Fences::default();
        f.doubt(lane(1), vec![Item::Rts { seq: 1 }]);
        f.doubt(lane(3), vec![Item::Rts { seq: 3 }]);
        assert!(f.is_in_doubt(lane(1)) && !f.is_in_doubt(lane(2)));
        assert_eq!(f.take_doubt(lane(2)), None);
        assert_eq!(f.take_doubt(lane(1)), Some(vec![Item::Rts { seq: 1 }]));
        assert!(!f.is_in_doubt(lane(1)) && f.take_doubt(lane(1)).is_none() && f.is_in_doubt(lane(3)));
    }

    #[test]
    fn a_stream_is_asked_about_once_and_answered_when_it_is_closed() {
        let mut f = Fences::default();
        for number in [1, 3, 1, 5] {
            f.ask(lane(number));
        }
        assert_eq!(f.asked(), 3);
        assert_eq!(f.take_closed(|l| l != lane(3)), [lane(1), lane(5)]);
        assert_eq!((f.asked(), f.take_closed(|_| true), f.asked()), (1, vec![lane(3)], 0));
    }
}
