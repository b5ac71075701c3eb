//! Which lane's stream, or which path's datagrams, takes the next fragment.
//!
//! Carriers of bulk pull: a stream that has room (or a path whose window for datagrams has) requests what it may take.
//! Under `adaptive` it takes a fragment only if it is expected to finish it before the other lanes and paths have
//! worked through everything that waits; so a slow rail gets its share of a long backlog, and nothing of a short one
//! (multirail slides, "Adaptive Striping": weights from feedback; differs: the feedback is the acknowledged rate, and
//! the decision is made for each fragment). `even` and `weighted` give every usable path its share of each message,
//! whatever the path makes of it; `round-robin` gives whole messages to the paths in turn. Under `binding` and
//! `primary-standby` only one path is usable (`migration`), and everything above is the same for it. A path that breaks
//! is not usable, so under every policy the others take its share. Sources: see `policy`.

use super::Engine;
use crate::health::Health;
use crate::lane::Lane;
use crate::message::item::Item;
use crate::message::tx::TxMsg;
use crate::path::{Carry, Path};
use crate::peer::Peer;
use crate::peer::turns::Turn;
use crate::policy::Policy;
use crate::rate::BACKLOG_MIN;
use crate::stream::Stream;
use crate::streams::Streams;
use crate::types::{LaneId, PeerId, Time};
use std::cell::OnceCell;

/// Unacknowledged bytes that a stream may always have, if the option `window` allows as much.
const INFLIGHT_MIN: f64 = 384.0 * 1024.0;
/// Time that unacknowledged bytes of a stream may take at its rate: enough to keep it busy between acknowledgements, little
/// enough to be sent again quickly when it breaks.
const INFLIGHT_S: f64 = 0.012;
/// Messages that are looked at for one that a stream may take.
const LOOK_AHEAD: usize = 16;

/// Seconds until a carrier of bulk of a path has delivered what it holds and `more` bytes: the stream of a lane, or without one bulk datagrams.
/// What the first lane has measured of the round trip counts for all.
fn finish_s(path: &Path, lane: &Lane, by: Carry, streams: &Streams, more: f64) -> f64 {
    let rtt = path.lane.rtt().min().map_or(0.0, |d| d.as_secs_f64());
    (held(lane, by, streams) as f64 + more) / lane.rate() + rtt / 2.0
}

/// Bytes that a carrier of bulk holds: the stream of a lane, or without one bulk datagrams.
fn held(lane: &Lane, by: Carry, streams: &Streams) -> u64 {
    match by {
        Carry::Streams => {
            let s = lane.stream().and_then(|s| streams.get(s));
            s.map_or(0, Stream::backlog)
        }
        Carry::Datagrams => lane.bulk().backlog(),
    }
}

/// The lanes that carry the bulk of a path like this.
fn carriers(path: &Path, by: Carry, now: Time) -> impl Iterator<Item = (LaneId, &Lane)> {
    path.lanes().filter(move |(id, lane)| match by {
        Carry::Streams => lane.stream().is_some() && !path.is_left(*id, now),
        Carry::Datagrams => *id == LaneId::FIRST,
    })
}

impl Engine {
    /// What carries the bulk of path `index` now; `None`: it takes none. Paths in service do, and suspected ones when there is nothing
    /// better.
    pub(crate) fn takes_bulk(&self, p: &Peer, index: usize) -> Option<Carry> {
        let (mode, now) = (self.options.bulk, self.clock.now());
        let path = &p.paths[index];
        let better = |o: &Path| o.health() == Health::Up && p.carry(o, mode, now).is_some();
        match path.health() {
            Health::Up => p.carry(path, mode, now),
            Health::Suspect if !p.paths.iter().any(better) => p.carry(path, mode, now),
            _ => None,
        }
    }

    /// The next fragment or eager message that `by`, of that lane of path `index`, may take.
    pub(crate) fn next_bulk(
        &mut self,
        peer: PeerId,
        index: usize,
        id: LaneId,
        by: Carry,
    ) -> Option<(Item, bool)> {
        let p = &self.peers[peer];
        if self.takes_bulk(p, index) != Some(by) {
            return None;
        }
        let path = &p.paths[index];
        if by == Carry::Streams {
            let lane = path.lane_of(id)?;
            let s = &self.streams[lane.stream()?];
            if path.is_left(id, self.clock.now()) {
                return None;
            }
            let most = self.options.window_bytes_max as f64;
            // a slow lane must not hold the end of a message for long; together they have more all the same
            let least = if path.wanted_lanes() > 1 { INFLIGHT_MIN / 2.0 } else { INFLIGHT_MIN };
            let cap = (lane.rate() * INFLIGHT_S).clamp(least.min(most), most);
            let cap = path.fresh(id).map_or(cap, |most| cap.min(most as f64));
            if s.backlog() as f64 >= cap {
                return None;
            }
        }
        // searched only where a message is below the striping threshold
        let home = OnceCell::new();
        // lost fragments first: they have waited longest
        let mut k = 0;
        while let Some((item, hedged)) = self.peers[peer].backlog.lost(k).filter(|_| k < LOOK_AHEAD) {
            let p = &self.peers[peer];
            let (needed, avoided) = (p.needs(&item), self.avoids_path(p, &item, index));
            let p = &mut self.peers[peer];
            if !needed {
                p.backlog.take_lost(k);
            } else if avoided {
                k += 1;
            } else {
                p.backlog.take_lost(k);
                return Some((p.as_carried(item, by), hedged));
            }
        }
        let policy = self.plan.policy();
        let by_share = matches!(policy, Policy::Even | Policy::Weighted);
        while let Some((seq, bytes)) = self.peers[peer].backlog.first_eager() {
            let p = &self.peers[peer];
            let mine = if policy == Policy::RoundRobin {
                self.turn_of(peer, seq) == Some(index)
            } else if bytes < self.options.stripe_bytes_min as u64 {
                self.takes_whole(p, *home.get_or_init(|| self.home_path(p)), index, id)
            } else if by_share {
                // these cannot be striped: the shares are kept over many of them
                self.next_by_share(p, |i| p.turns.share(i), bytes) == Some(index)
            } else {
                self.worthwhile(p, index, id)
            };
            if !mine {
                break;
            }
            let p = &mut self.peers[peer];
            let others = p.backlog.take_eager();
            if by_share {
                p.turns.give(index, bytes);
            }
            if others {
                // what comes next may be for others, which were polled already
                self.mark_streams(peer);
            }
            let p = &self.peers[peer];
            let item = Item::Eager { seq };
            if p.needs(&item) {
                return Some((item, false));
            }
        }
        let worthwhile = policy == Policy::Adaptive || policy.single();
        let worthwhile = worthwhile && self.worthwhile(&self.peers[peer], index, id);
        for k in 0..self.peers[peer].backlog.granted_count().min(LOOK_AHEAD) {
            let p = &self.peers[peer];
            let seq = p.backlog.granted_at(k);
            let f = p.outgoing.get(seq).and_then(TxMsg::fragments).expect("what waits here is granted");
            let striped = f.granted() >= self.options.stripe_bytes_min as u64;
            let mine = if policy == Policy::RoundRobin {
                self.turn_of(peer, seq) == Some(index)
            } else if !striped {
                self.takes_whole(p, *home.get_or_init(|| self.home_path(p)), index, id)
            } else if by_share {
                self.next_by_share(p, |i| f.taken(i), f.next_len()) == Some(index)
            } else {
                worthwhile
            };
            if !mine {
                continue;
            }
            let p = &mut self.peers[peer];
            let cut = p.outgoing.cut(seq, index);
            p.backlog.cut(k, cut.len, cut.last);
            if by_share {
                // the next fragment may be another's, which was polled already
                self.mark_streams(peer);
            }
            let p = &mut self.peers[peer];
            // when a piece went out as a datagram its fragment goes again as a whole
            return Some((p.as_carried(Item::Frag { seq, at: cut.at, len: cut.len as u32 }, by), false));
        }
        None
    }

    /// The path that has message `seq` as its turn: chosen once, and again when that path takes nothing any more.
    fn turn_of(&mut self, peer: PeerId, seq: u64) -> Option<usize> {
        let p = &self.peers[peer];
        if let Some(t) = p.outgoing.get(seq).and_then(TxMsg::turn) {
            if t < p.paths.len() && self.takes_bulk(p, t).is_some() {
                return Some(t);
            }
        }
        let n = p.paths.len();
        let next = p.turns.order(Turn::Message, n).find(|&i| self.takes_bulk(p, i).is_some())?;
        let p = &mut self.peers[peer];
        p.turns.had(Turn::Message, next, n);
        p.outgoing.set_turn(seq, next);
        // it may have been polled, and have declined, before it was its turn
        self.mark_streams(peer);
        Some(next)
    }

    /// The path on which the next small messages go: `best`, or under `round-robin` the one whose turn it is.
    pub(crate) fn small_path(&mut self, peer: PeerId, best: usize) -> Option<usize> {
        let p = &self.peers[peer];
        if self.plan.policy() != Policy::RoundRobin {
            return p.paths[best].lane.datagrams().has_window().then_some(best);
        }
        let n = p.paths.len();
        let up = |path: &Path| {
            path.health() == Health::Up
                && path.datagrams_usable()
                && path.lane.datagrams().has_window()
                && !self.avoids(path)
        };
        let next = p.turns.order(Turn::Small, n).find(|&i| up(&p.paths[i]));
        let p = &mut self.peers[peer];
        if let Some(i) = next {
            p.turns.had(Turn::Small, i, n);
            return next;
        }
        p.paths[best].lane.datagrams().has_window().then_some(best)
    }

    /// The usable path that is furthest behind its share when `taken` bytes were given to each and `more` are to be.
    fn next_by_share(&self, p: &Peer, taken: impl Fn(usize) -> u64, more: u64) -> Option<usize> {
        let filled = |i: usize| (taken(i) + more) as f64 / self.plan.weight(p.paths[i].rail());
        (0..p.paths.len())
            .filter(|&i| self.takes_bulk(p, i).is_some())
            .min_by(|&a, &b| filled(a).total_cmp(&filled(b)))
    }

    /// The path that messages below the striping threshold use: the primary one, or the first that takes bulk. The primary path was chosen by
    /// round trips alone, often before any rate was known: one that would have such a message there in less than half the time
    /// takes its place.
    fn home_path(&self, p: &Peer) -> Option<usize> {
        let takes = |i: usize| self.takes_bulk(p, i).is_some();
        let primary = p.primary().filter(|&i| takes(i)).or_else(|| (0..p.paths.len()).find(|&i| takes(i)))?;
        if self.plan.policy() != Policy::Adaptive {
            return Some(primary);
        }
        let alone = (0..p.paths.len()).filter_map(|i| Some((i, self.alone_s(p, i)?)));
        let (best, least) = alone.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let replaced = self.alone_s(p, primary).is_some_and(|s| least * 2.0 < s);
        Some(if replaced { best } else { primary })
    }

    /// Seconds that a message just below the striping threshold would take over path `index`, if it held nothing else; `None`: it takes no
    /// bulk.
    fn alone_s(&self, p: &Peer, index: usize) -> Option<f64> {
        let path = &p.paths[index];
        let by = self.takes_bulk(p, index)?;
        let rates = carriers(path, by, self.clock.now()).map(|(_, lane)| lane.rate());
        let rtt = path.lane.rtt().min().map_or(0.0, |d| d.as_secs_f64());
        Some(rtt / 2.0 + self.options.stripe_bytes_min as f64 / rates.fold(1.0, f64::max))
    }

    /// Whether that lane of path `index` takes a message that is not striped. It goes by `home`; when that holds enough to be busy and
    /// more waits, others take such messages as they would fragments.
    fn takes_whole(&self, p: &Peer, home: Option<usize>, index: usize, id: LaneId) -> bool {
        let Some(h) = home else { return false };
        if self.plan.policy() != Policy::Adaptive {
            return h == index;
        }
        let Some(by) = self.takes_bulk(p, h) else { return false };
        let busy = carriers(&p.paths[h], by, self.clock.now())
            .any(|(_, lane)| held(lane, by, &self.streams) >= BACKLOG_MIN);
        if busy { self.worthwhile(p, index, id) } else { h == index }
    }

    /// Whether one more fragment on a lane of path `index` is expected to be done before the other lanes and paths have done everything that waits.
    fn worthwhile(&self, p: &Peer, index: usize, id: LaneId) -> bool {
        let Some(own) = self.takes_bulk(p, index) else { return false };
        let Some(lane) = p.paths[index].lane_of(id) else { return false };
        // never more than what waits: the best of all must always find it worthwhile
        let waits = p.backlog.bulk_bytes() as f64;
        let mine = finish_s(&p.paths[index], lane, own, &self.streams, waits.min(65536.0));
        let mut best = f64::INFINITY;
        for (i, path) in p.paths.iter().enumerate() {
            let by = if i == index { Some(own) } else { self.takes_bulk(p, i) };
            let Some(by) = by else { continue };
            for (_, other) in carriers(path, by, self.clock.now()).filter(|c| (i, c.0) != (index, id)) {
                best = best.min(finish_s(path, other, by, &self.streams, waits));
            }
        }
        mine <= best
    }
}
