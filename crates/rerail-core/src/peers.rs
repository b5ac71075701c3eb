//! All processes that this one knows, by number, token and connection id.
//!
//! Owns: the table and its indices, which peers are known only from a hello, and the peers because of which streams are
//! worth a look (`engine/expect`). Invariants: a number is given once, except that of a peer that was never proved; of
//! those at most [`UNPROVEN_MAX`] are kept; a peer with bulk is listed.

use crate::peer::Peer;
use crate::types::{PeerId, Time};
use rerail_wire::{PairKeys, Token};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::time::Duration;

/// Peers that are known only from a hello, at most; a few KiB each. The peers of a job that starts are proved within a
/// round trip, and repeat their hello when there was no room.
const UNPROVEN_MAX: usize = 1024;
/// How long such a peer keeps its place when others want it.
const UNPROVEN: Duration = Duration::from_secs(2);

/// See above.
#[derive(Clone, Default)]
pub(crate) struct Peers {
    list: Vec<Peer>,
    by_token: FxHashMap<Token, PeerId>,
    /// By the connection id of their packets, once there are keys.
    by_cid: FxHashMap<u64, PeerId>,
    /// By that of their accepts.
    by_accept: FxHashMap<u64, PeerId>,
    /// Peers that are known only from a hello, oldest first.
    unproven: VecDeque<(Time, PeerId)>,
    /// Those that had bulk when that was last checked, or got some since.
    busy: Vec<PeerId>,
}

/// Where a peer that sent a hello, and was never named here, may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    /// In the place of this one, which has to be forgotten.
    Of(PeerId),
    None,
}

impl Peers {
    /// The number of the next peer.
    pub fn next_id(&self) -> PeerId {
        PeerId(u32::try_from(self.list.len()).expect("fewer than 2^32 peers"))
    }

    /// A peer becomes known, under its number: the next one, or that of one that was forgotten.
    pub fn add(&mut self, peer: Peer, accept_cid: u64) {
        let id = peer.id();
        if !peer.is_self() {
            self.by_accept.insert(accept_cid, id);
        }
        self.by_token.insert(peer.address().token, id);
        if let Some(place) = self.list.get_mut(id.0 as usize) {
            *place = peer;
            return;
        }
        if self.list.len() == self.list.capacity() {
            // an eighth at a time: doubled, as many peers as there are would be room for more
            self.list.reserve_exact((self.list.len() / 8).max(4));
        }
        self.list.push(peer);
    }

    pub fn of_token(&self, token: &Token) -> Option<PeerId> {
        self.by_token.get(token).copied()
    }

    /// The peer to which packets under this connection id belong.
    #[inline]
    pub fn of_cid(&self, cid: u64) -> Option<PeerId> {
        self.by_cid.get(&cid).copied()
    }

    /// The peer to which accepts under this connection id belong.
    pub fn of_accept(&self, cid: u64) -> Option<PeerId> {
        self.by_accept.get(&cid).copied()
    }

    /// There are keys of the pair.
    pub fn know(&mut self, id: PeerId, keys: PairKeys) {
        self.by_cid.insert(keys.cid_in, id);
        self.list[id.0 as usize].credentials.know(keys);
    }

    // ---- known only from a hello -------------------------------------------------------------------------------

    /// Where the next peer that is known only from a hello may be kept.
    pub fn room_for_hello(&self, now: Time) -> Room {
        match self.unproven.front() {
            Some(&(since, id)) if self.unproven.len() >= UNPROVEN_MAX => {
                if now.since(since) < UNPROVEN {
                    Room::None
                } else {
                    Room::Of(id)
                }
            }
            _ => Room::Free,
        }
    }

    /// A peer is known only from its hello.
    pub fn is_unproven(&mut self, id: PeerId, now: Time) {
        self.list[id.0 as usize].meet_by_hello();
        self.unproven.push_back((now, id));
    }

    /// It is known from elsewhere too, or has proved its address. Returns whether that was news.
    pub fn is_proven(&mut self, id: PeerId) -> bool {
        let news = self.list[id.0 as usize].confirm();
        if news {
            self.unproven.retain(|u| u.1 != id);
        }
        news
    }

    /// Makes the place of one of them free. Returns the keys of the pair, if there were any.
    pub fn forget_unproven(&mut self, id: PeerId, accept_cid: u64) -> Option<PairKeys> {
        self.unproven.retain(|u| u.1 != id);
        let p = &mut self.list[id.0 as usize];
        assert!(
            p.is_unproven() && !p.is_wanted() && p.outgoing.is_empty() && p.incoming.is_empty(),
            "nothing is kept of an unproven peer"
        );
        self.by_token.remove(&p.address().token);
        self.by_accept.remove(&accept_cid);
        // its place counts as one of a peer that is known until another has it
        p.confirm();
        let keys = p.credentials.forget();
        if let Some(keys) = &keys {
            self.by_cid.remove(&keys.cid_in);
        }
        keys
    }

    // ---- peers with bulk ---------------------------------------------------------------------------------------

    /// The peer has bulk now, one way or the other.
    #[inline]
    pub fn expect_bulk(&mut self, peer: PeerId) {
        let p = &mut self.list[peer.0 as usize];
        if p.list() {
            self.busy.push(p.id());
        }
    }

    /// Whether any peer has bulk. Takes as long as there are peers that had some at the last call, or got some since.
    pub fn any_bulk(&mut self) -> bool {
        let list = &mut self.list;
        self.busy.retain(|id| {
            let p = &mut list[id.0 as usize];
            p.stays_listed()
        });
        !self.busy.is_empty()
    }

    /// Checks the invariants.
    pub fn check(&self) {
        assert!(self.list.iter().all(|p| p.is_listed() || !p.has_bulk()), "a peer with bulk is listed");
        assert!(
            self.unproven.len() <= UNPROVEN_MAX,
            "invariant 7: peers that are known from a hello are bounded"
        );
        assert_eq!(self.unproven.len(), self.list.iter().filter(|p| p.is_unproven()).count());
        assert!(
            self.list.iter().enumerate().all(|(i, p)| p.id().0 as usize == i),
            "a peer stands under its number"
        );
    }

    // ---- a list ------------------------------------------------------------------------------------------------

    /// The numbers of those that there are now.
    pub fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.list.len() as u32).map(PeerId)
    }

    pub fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.list.get(peer.0 as usize)
    }

    #[inline]
    pub fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(peer.0 as usize)
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.list.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Peer> {
        self.list.iter_mut()
    }
}

impl<'a> IntoIterator for &'a Peers {
    type Item = &'a Peer;
    type IntoIter = std::slice::Iter<'a, Peer>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: PeerId) -> &Peer {
        &self.list[peer.0 as usize]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.list[peer.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Locator;
    use rerail_wire::{Address, PublicKey};

    fn peer(id: PeerId, n: u32) -> Peer {
        let mut token = Token([0; 16]);
        token.0[..4].copy_from_slice(&n.to_le_bytes());
        let address = Address {
            token,
            endpoint: 0,
            encrypts: false,
            rails: vec![Locator::ip([10, 0, 0, 1].into(), 1)],
        };
        Peer::new(id, address, false, true, Time::ORIGIN)
    }

    fn accept_cid(peer: &Peer) -> u64 {
        peer.address().token.accept_cid(&Token([1; 16]))
    }

    fn add(peers: &mut Peers, id: PeerId, n: u32) {
        let peer = peer(id, n);
        let cid = accept_cid(&peer);
        peers.add(peer, cid);
        let mut agreed = [0; 32];
        agreed[..4].copy_from_slice(&n.to_le_bytes());
        peers.know(id, PairKeys::derive(&agreed, &PublicKey([1; 32]), &PublicKey([2; 32])));
    }

    fn cids(peers: &Peers, id: PeerId) -> (u64, u64) {
        (peers[id].credentials.keys().expect("known").cid_in, accept_cid(&peers[id]))
    }

    fn hello(peers: &mut Peers, n: u32, now: Time) -> PeerId {
        let id = match peers.room_for_hello(now) {
            Room::Of(id) => {
                let cid = accept_cid(&peers[id]);
                assert!(peers.forget_unproven(id, cid).is_some());
                id
            }
            room => {
                assert_eq!(room, Room::Free);
                peers.next_id()
            }
        };
        add(peers, id, n);
        peers.is_unproven(id, now);
        peers.check();
        id
    }

    #[test]
    fn who_is_forgotten_is_found_no_more_and_who_takes_the_place_is() {
        let (mut peers, start) = (Peers::default(), Time::ORIGIN);
        for n in 0..UNPROVEN_MAX as u32 {
            hello(&mut peers, n, start);
        }
        assert_eq!(peers.room_for_hello(start + UNPROVEN - Duration::from_nanos(1)), Room::None);
        let (old_token, old) = (peers[PeerId(0)].address().token, cids(&peers, PeerId(0)));
        assert_eq!((peers.of_cid(old.0), peers.of_accept(old.1)), (Some(PeerId(0)), Some(PeerId(0))));
        assert!(peers.is_proven(PeerId(1)) && !peers.is_proven(PeerId(1)));
        assert_eq!(peers.room_for_hello(start), Room::Free, "one has proved itself");
        hello(&mut peers, 5000, start);
        let later = start + UNPROVEN;
        assert_eq!(hello(&mut peers, 6000, later), PeerId(0));
        let all = |peers: &Peers, token, (cid, accept)| {
            [peers.of_token(&token), peers.of_cid(cid), peers.of_accept(accept)]
        };
        assert_eq!(all(&peers, old_token, old), [None; 3]);
        let (token, now) = (peers[PeerId(0)].address().token, cids(&peers, PeerId(0)));
        assert_eq!(all(&peers, token, now), [Some(PeerId(0)); 3]);
    }

    #[test]
    fn peers_are_busy_while_they_have_bulk() {
        let mut peers = Peers::default();
        add(&mut peers, PeerId(0), 1);
        assert!(!peers.any_bulk());
        peers[PeerId(0)].backlog.granted(7, 1);
        peers.expect_bulk(PeerId(0));
        peers.check();
        assert!(peers.any_bulk());
        peers[PeerId(0)].backlog.cut(0, 1, true);
        assert!(!peers.any_bulk() && !peers[PeerId(0)].is_listed());
    }
}
