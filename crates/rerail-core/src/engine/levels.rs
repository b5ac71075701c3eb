//! What becomes of the losses of a path: what was lost on a rail goes over another, if there is one, and a rail at which a vfrag reaches the
//! level is taken out. Differs from PML DR §3.3: a timer never sends anything again by itself (hazard H3), so levels count losses that are
//! known.

use crate::engine::Engine;
use crate::event::{Direction, Witness};
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::sent::Sent;
use crate::message::item::Item;
use crate::path::Path;
use crate::peer::Peer;
use crate::types::PeerId;

impl Peer {
    /// Whether an item was lost on path `index` before.
    fn was_lost_on(&self, item: &Item, index: usize) -> bool {
        let Some((seq, at)) = item.place() else { return false };
        self.outgoing.get(seq).is_some_and(|m| m.was_lost_on(at, index))
    }

    /// The path over which a lost small item should go in the place of `index`, where it was lost.
    pub fn datagram_path_instead(&self, item: &Item, index: usize) -> Option<usize> {
        let fit = |path: &Path| {
            path.health() == Health::Up && path.datagrams_usable() && path.lane.datagrams().has_window()
        };
        if !self.was_lost_on(item, index) {
            return None;
        }
        (0..self.paths.len()).find(|&i| i != index && fit(&self.paths[i]) && !self.was_lost_on(item, i))
    }
}

impl Engine {
    /// Whether bulk that waits should rather go over another path than `index`, because it was lost there.
    pub(crate) fn avoids_path(&self, p: &Peer, item: &Item, index: usize) -> bool {
        p.was_lost_on(item, index)
            && p.paths.iter().enumerate().any(|(i, path)| {
                i != index
                    && path.health() == Health::Up
                    && self.takes_bulk(p, i).is_some()
                    && !p.was_lost_on(item, i)
            })
    }

    /// What these records carried was lost on a path.
    pub(crate) fn blame(&mut self, peer: PeerId, index: usize, lost: &[Sent], channel: Channel) {
        if !self.remedies.retransmit_levels() {
            return;
        }
        let most = self.options.retransmit_level;
        let mut level = 0;
        let p = &mut self.peers[peer];
        for s in lost.iter().filter(|s| !s.is_hedged()) {
            for item in s.items() {
                let Some((seq, at)) = item.place() else { continue };
                if !p.needs(item) {
                    continue;
                }
                let counts = channel == Channel::Stream && matches!(item, Item::Frag { .. });
                level = level.max(p.outgoing.note_loss(seq, at, index, counts));
            }
        }
        if most > 0 && level >= most && self.another_works(peer, index) {
            self.fail_path(peer, index, Witness::Level, Direction::Out);
        }
    }
}
