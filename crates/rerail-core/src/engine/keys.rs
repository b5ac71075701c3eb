//! The keys of pairs and of sessions: when they come and go.

use super::Engine;
use crate::cipher::{KeysUpdate, SessionIds};
use crate::event::{Direction, EventKind, Witness};
use crate::peer::Gone;
use crate::responder::{ResponderUpdate, Whereabouts};
use crate::types::{Action, PeerId, Time};
use rerail_wire::PublicKey;
use rerail_wire::packet::{PacketKind, peek};

impl Engine {
    /// The next change of the keys. Poll it before anything is sent, and before anything is read that may be encrypted.
    pub fn poll_keys(&mut self) -> Option<KeysUpdate> {
        self.output.next_keys()
    }

    /// Whether [`Engine::poll_keys`] has something.
    #[inline]
    pub fn has_keys(&self) -> bool {
        self.output.has_keys()
    }

    /// Replaces every encrypted session, with key pairs that depend on `random`: after a restore, before anything is
    /// sent, and when the counters of a session come to their end. The paths reconnect, in larger epochs; no message is
    /// lost.
    pub fn renew_sessions(&mut self, random: &[u8; 32], now: Time) {
        self.tick(now);
        self.identity.renew(random);
        for peer in self.peers.ids() {
            if self.peers[peer].credentials.session().is_none() || self.peers[peer].gone().is_some() {
                continue;
            }
            let mut accepted = false;
            for index in 0..self.peers[peer].paths.len() {
                // the peer may be sending in an epoch that was accepted under the old key
                accepted |= self.peers[peer].paths[index].epochs.forget_accepted();
                self.fail_path(peer, index, Witness::NewEpoch, Direction::Both);
            }
            self.forget_keys(peer);
            if accepted {
                self.want(peer);
            }
            self.mark(peer);
        }
    }

    /// The part of this process in its session with a peer, for a handshake; `None`: it does not encrypt.
    pub(crate) fn session_key(&mut self, peer: PeerId) -> Option<PublicKey> {
        if !self.encrypts {
            return None;
        }
        let p = &mut self.peers[peer];
        let session = p.credentials.session_or(|| self.identity.begin_session());
        Some(session.public_key())
    }

    /// The public key of a peer is known, which was compared with its token: from now on there are keys of the pair.
    pub(crate) fn know(&mut self, peer: PeerId, key: &PublicKey) {
        if self.peers[peer].credentials.keys().is_some() {
            return;
        }
        // An improper key gives keys that no other process can have: it is looked at once.
        let keys = self.identity.pair(key).unwrap_or_else(|| self.identity.pair_with_nobody(key));
        let p = &self.peers[peer];
        if !p.gone().is_some_and(Gone::is_final) {
            let at = Whereabouts::new(p.address(), p.own_is_high());
            let u = ResponderUpdate::Add { cid_in: keys.cid_in, cid_out: keys.cid_out, at };
            self.responder.update(u);
            self.output.act(Action::Responder(u));
        }
        self.peers.know(peer, keys);
    }

    /// Whether a handshake names the key of the session that there is. Where there is none yet, every key does.
    pub(crate) fn is_of_session(&self, peer: PeerId, key: Option<PublicKey>) -> bool {
        let theirs = self.peers[peer].credentials.session().and_then(|s| s.peer());
        theirs.is_none_or(|(known, _)| key == Some(known))
    }

    /// Takes the key that a peer names for the session: the first one, or one in a handshake that is proved. False: it is none, and the
    /// handshake is over.
    pub(crate) fn join_session(&mut self, peer: PeerId, key: Option<PublicKey>) -> bool {
        let (true, Some(key)) = (self.encrypts, key) else {
            return !self.encrypts && key.is_none();
        };
        self.session_key(peer);
        let ids = self.session_ids(peer);
        let p = &mut self.peers[peer];
        let Some((session, keys)) = p.credentials.joining() else { return false };
        let before = session.peer();
        if let Some((_, proper)) = before.filter(|b| b.0 == key) {
            return proper;
        }
        let Some(secret) = session.join(&self.identity, keys, key) else { return false };
        self.output.renew_keys(KeysUpdate::Establish { ids, secret });
        if before.is_some() {
            // hellos sent before may be answered by the session that is over: they are repeated with new nonces
            for index in 0..self.peers[peer].paths.len() {
                let nonce = self.rng.nonce();
                self.peers[peer].paths[index].epochs.ask_anew(nonce);
                for a in self.peers[peer].paths[index].lane.connection().attempts().to_vec() {
                    self.drop_attempt(a);
                }
            }
        }
        true
    }

    fn session_ids(&self, peer: PeerId) -> SessionIds {
        let p = &self.peers[peer];
        let (out, incoming) = p.credentials.keys().map_or((0, 0), |k| (k.cid_out, k.cid_in));
        let (own, theirs) = (&self.token, &p.address().token);
        SessionIds { out, incoming, accept_out: own.accept_cid(theirs), accept_in: theirs.accept_cid(own) }
    }

    /// A peer that encrypts when this process does not, or the other way round, is out of reach for good.
    pub(crate) fn part_if_unlike(&mut self, peer: PeerId) {
        let p = &self.peers[peer];
        if p.address().encrypts != self.encrypts && !p.is_self() && p.gone().is_none() {
            self.entomb(
                peer,
                Gone::Lost,
                EventKind::EncryptionDiffers { peer_encrypts: p.address().encrypts },
            );
        }
    }

    /// The session with a peer is over.
    pub(crate) fn forget_keys(&mut self, peer: PeerId) {
        let ids = self.session_ids(peer);
        let p = &mut self.peers[peer];
        // planted: the next session begins with the same key
        let over = match self.remedies.sessions_are_fresh() {
            true => p.credentials.end_session(),
            false => p.credentials.repeat_session(),
        };
        if over.is_some_and(|s| s.is_joined()) {
            self.output.renew_keys(KeysUpdate::Forget { ids });
            // what still waits for it cannot be sent any more; a handshake needs no key
            self.output.drop_datagrams(
                |d| matches!(peek(&d.bytes), Some((cid, kind)) if cid == ids.out && kind != PacketKind::Accept),
            );
        }
    }
}
