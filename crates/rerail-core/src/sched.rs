//! Which stream takes the next fragment.
//!
//! Streams pull: a stream that has room asks what it may take. Under `adaptive` it takes a fragment only if it is expected
//! to finish it before the other paths have worked through everything that waits; so a slow rail gets its share of a long
//! backlog, and nothing of a short one (multirail slides, "Adaptive Striping": weights from feedback; differs: the feedback
//! is the acknowledged rate, and the decision is made for each fragment). `even` and `weighted` give every usable path its share of
//! each message, whatever the path makes of it; `round-robin` gives whole messages to the paths in turn. Under `binding` and
//! `primary-standby` only one path is usable (`migration`), and everything above is the same for it. A path that breaks is not
//! usable, so under every policy the others take its share. Sources: see `policy`.

use crate::engine::Engine;
use crate::health::Health;
use crate::path::Path;
use crate::peer::Peer;
use crate::policy::{Plan, Policy};
use crate::rendezvous::Item;
use crate::stream::Stream;
use crate::types::{PeerId, StreamId};
use rustc_hash::FxHashMap;

/// Unacknowledged bytes that a stream may always have.
const INFLIGHT_MIN: f64 = 384.0 * 1024.0;
/// Unacknowledged bytes that a stream never exceeds.
const INFLIGHT_MAX: f64 = 6.0 * 1024.0 * 1024.0;
/// Time that unacknowledged bytes of a stream may take at its rate: enough to keep it busy between acknowledgements, little
/// enough to be sent again quickly when it breaks.
const INFLIGHT_S: f64 = 0.012;
/// Messages that are looked at for one that a stream may take.
const LOOK_AHEAD: usize = 16;

/// Whether a path takes bulk now: in service, or suspected with nothing better there.
pub(crate) fn takes_bulk(p: &Peer, x: &Path) -> bool {
    x.stream.is_some()
        && (x.health == Health::Up
            || (x.health == Health::Suspect
                && !p.paths.iter().any(|o| o.health == Health::Up && o.stream.is_some())))
}

/// Seconds until a stream has delivered what it holds and `more` bytes.
fn finish_s(x: &Path, s: &Stream, more: f64) -> f64 {
    let rtt = x.rtt.min().map_or(0.0, |d| d.as_secs_f64());
    (s.bytes_in_flight as f64 + s.bytes_queued() as f64 + more) / x.rate.get() + rtt / 2.0
}

impl Engine {
    /// The next fragment or eager message that the stream of path `xi` may take.
    pub(crate) fn next_bulk(&mut self, pi: usize, xi: usize, stream: StreamId) -> Option<(Item, bool)> {
        let p = &self.peers[pi];
        if !takes_bulk(p, &p.paths[xi]) {
            return None;
        }
        let x = &p.paths[xi];
        let s = &self.streams[&stream];
        let cap = (x.rate.get() * INFLIGHT_S).clamp(INFLIGHT_MIN, INFLIGHT_MAX);
        if s.bytes_in_flight as f64 + s.bytes_queued() as f64 >= cap {
            return None;
        }
        let home = home_path(p);
        // lost fragments first: somebody has waited for them longest
        let p = &mut self.peers[pi];
        let mut k = 0;
        while let Some(&(item, hedged)) = p.resend_bulk.get(k).filter(|_| k < LOOK_AHEAD) {
            if !p.needs(&item) {
                p.resend_bulk.remove(k);
            } else if p.avoids_stream(&item, xi) {
                k += 1;
            } else {
                p.resend_bulk.remove(k);
                return Some((p.whole_fragment(item), hedged));
            }
        }
        let policy = self.plan.policy;
        let by_share = matches!(policy, Policy::Even | Policy::Weighted);
        while let Some(&(seq, bytes)) = self.peers[pi].eager_bulk.front() {
            let p = &self.peers[pi];
            let mine = if policy == Policy::RoundRobin {
                self.turn_of(pi, seq) == Some(xi)
            } else if bytes < self.options.stripe_bytes_min as u64 {
                home == Some(xi)
            } else if by_share {
                // these cannot be striped: the shares are kept over many of them
                next_by_share(p, &self.plan, |i| p.whole[i & 15], bytes) == Some(xi)
            } else {
                worthwhile(p, xi, &self.streams)
            };
            if !mine {
                break;
            }
            let p = &mut self.peers[pi];
            p.eager_bulk.pop_front();
            p.eager_bulk_bytes -= bytes;
            if by_share {
                p.whole[xi & 15] += bytes;
            }
            if !p.eager_bulk.is_empty() {
                // what comes next may be for others, which have been asked already
                self.mark_streams(PeerId(pi as u32));
            }
            let p = &self.peers[pi];
            let item = Item::Eager { seq };
            if p.needs(&item) {
                return Some((item, false));
            }
        }
        let worthwhile = policy == Policy::Adaptive || policy.single();
        let worthwhile = worthwhile && self::worthwhile(&self.peers[pi], xi, &self.streams);
        for k in 0..self.peers[pi].bulk.len().min(LOOK_AHEAD) {
            let p = &self.peers[pi];
            let seq = p.bulk[k];
            let m = &p.tx[&seq];
            let striped = m.granted >= self.options.stripe_bytes_min as u64;
            let g = u64::from(m.granule);
            let at = m.next;
            let end = ((at / g + 1) * g).min(m.granted);
            let mine = if policy == Policy::RoundRobin {
                self.turn_of(pi, seq) == Some(xi)
            } else if !striped {
                home == Some(xi)
            } else if by_share {
                next_by_share(p, &self.plan, |i| m.taken[i & 15], end - at) == Some(xi)
            } else {
                worthwhile
            };
            if !mine {
                continue;
            }
            let p = &mut self.peers[pi];
            let m = p.tx.get_mut(&seq).expect("looked up above");
            m.next = end;
            m.taken[xi & 15] += end - at;
            p.bulk_bytes -= end - at;
            if end == m.granted {
                p.bulk.remove(k);
            }
            if by_share {
                // the next fragment may be another's, which has been asked already
                self.mark_streams(PeerId(pi as u32));
            }
            let p = &mut self.peers[pi];
            // when a piece went out as a datagram its fragment goes again as a whole
            return Some((p.whole_fragment(Item::Frag { seq, at, len: (end - at) as u32 }), false));
        }
        None
    }

    /// The path whose turn message `seq` is: given once, and anew when that path takes nothing any more.
    fn turn_of(&mut self, pi: usize, seq: u64) -> Option<usize> {
        let p = &mut self.peers[pi];
        if let Some(t) = p.tx.get(&seq).and_then(|m| m.turn).map(usize::from) {
            if p.paths.get(t).is_some_and(|x| takes_bulk(p, x)) {
                return Some(t);
            }
        }
        let n = p.paths.len();
        let next = (0..n).map(|k| (p.turn[0] + k) % n).find(|&i| takes_bulk(p, &p.paths[i]))?;
        p.turn[0] = (next + 1) % n;
        if let Some(m) = p.tx.get_mut(&seq) {
            m.turn = Some(next as u8);
        }
        // it may have been asked, and have declined, before it was its turn
        self.mark_streams(PeerId(pi as u32));
        Some(next)
    }

    /// The path on which the next small messages go: `best`, or under `round-robin` the one whose turn it is.
    pub(crate) fn small_path(&mut self, pi: usize, best: usize) -> Option<usize> {
        let p = &mut self.peers[pi];
        if self.plan.policy != Policy::RoundRobin {
            return p.paths[best].has_window().then_some(best);
        }
        let n = p.paths.len();
        let up = |x: &Path| x.health == Health::Up && x.datagrams_usable() && x.has_window();
        let next = (0..n).map(|k| (p.turn[1] + k) % n).find(|&i| up(&p.paths[i]));
        if let Some(i) = next {
            p.turn[1] = (i + 1) % n;
            return next;
        }
        p.paths[best].has_window().then_some(best)
    }
}

/// The usable path that is furthest behind its share when `taken` bytes were given to each and `more` are to be.
fn next_by_share(p: &Peer, plan: &Plan, taken: impl Fn(usize) -> u64, more: u64) -> Option<usize> {
    let filled = |i: usize| (taken(i) + more) as f64 / plan.weights[p.paths[i].rail.0 as usize];
    (0..p.paths.len())
        .filter(|&i| takes_bulk(p, &p.paths[i]))
        .min_by(|&a, &b| filled(a).total_cmp(&filled(b)))
}

/// The path that messages below the striping threshold use: the primary one, or the first that takes bulk.
fn home_path(p: &Peer) -> Option<usize> {
    p.primary
        .filter(|&i| takes_bulk(p, &p.paths[i]))
        .or_else(|| (0..p.paths.len()).find(|&i| takes_bulk(p, &p.paths[i])))
}

/// Whether one more fragment on path `xi` is expected to be done before the other paths have done everything that waits.
fn worthwhile(p: &Peer, xi: usize, streams: &FxHashMap<StreamId, Stream>) -> bool {
    let Some(own) = p.paths[xi].stream.and_then(|s| streams.get(&s)) else { return false };
    // never more than what waits: the best of all paths must always find it worthwhile
    let waits = (p.bulk_bytes + p.eager_bulk_bytes) as f64;
    let mine = finish_s(&p.paths[xi], own, waits.min(65536.0));
    let mut best = f64::INFINITY;
    for (i, x) in p.paths.iter().enumerate() {
        if i == xi || !takes_bulk(p, x) {
            continue;
        }
        if let Some(s) = x.stream.and_then(|s| streams.get(&s)) {
            best = best.min(finish_s(x, s, waits));
        }
    }
    mine <= best
}
