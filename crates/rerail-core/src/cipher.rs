//! The keys of this process: those of its pairs, and those of encrypted sessions.
//!
//! Owns: what makes a session's key fresh. Every process has a key pair for life, of which its token is the hash. What two of them agree on are the
//! keys of the pair: connection ids, and the keyed hashes of the handshake. Where the processes encrypt, each also draws a key pair for its
//! part of each session, which is forgotten with it. The engine encrypts nothing itself: what it sends passes a layer over the ports
//! (`rerail-seal`), and what that must know leaves the engine as a [`KeysUpdate`].
//!
//! Invariants: a session that is forgotten and made again has a new key pair of this side, so that no key of AES-GCM comes again with its
//! counter; the key of the other side changes only by a word of its own that was proved (a hello with proof, an accept of our last question).
//! Whoever has not proved anything costs at most three agreements for its place in the list of those (`peer_of_hello`).

use crate::engine::Engine;
use crate::event::{Direction, EventKind, Witness};
use crate::peer::Gone;
use crate::responder::{ResponderUpdate, Whereabouts};
use crate::types::{Action, PeerId, Time};
use rerail_wire::packet::{PacketKind, peek};
use rerail_wire::{KeySource, PairKeys, PublicKey, Token};
use std::fmt;

/// How two processes agree on a secret. Functions of their arguments alone: the runtime uses X25519, the simulator a cheap toy.
pub trait KeyAgreement: Send + Sync {
    /// The public half of a key pair.
    fn public_key(&self, secret: &SecretKey) -> PublicKey;

    /// What the owner of `secret` and the owner of `peer` agree on. `None`: `peer` is not a proper key, and the result would be known
    /// to everybody.
    fn agree(&self, secret: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]>;

    /// The token of the process with this public key.
    fn token(&self, public: &PublicKey) -> Token;
}

/// The secret half of a key pair, or a secret that keys are derived from.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretKey(pub [u8; 32]);

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

/// The key pair of a process, and where its later keys come from.
#[derive(Clone)]
pub struct Identity {
    agreement: &'static dyn KeyAgreement,
    secret: SecretKey,
    public: PublicKey,
    source: KeySource,
}

impl Identity {
    /// From a secret and other 32 random bytes.
    pub fn new(agreement: &'static dyn KeyAgreement, secret: SecretKey, random: [u8; 32]) -> Self {
        Self { agreement, public: agreement.public_key(&secret), secret, source: KeySource::new(random) }
    }

    /// What the peers are told.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// The token of this process.
    pub fn token(&self) -> Token {
        self.agreement.token(&self.public)
    }

    /// The token of the process with this public key.
    pub fn token_of(&self, public: &PublicKey) -> Token {
        self.agreement.token(public)
    }

    /// The keys of this process and the one with that public key. `None`: it is not a proper one.
    pub fn pair(&self, peer: &PublicKey) -> Option<PairKeys> {
        let agreed = self.agreement.agree(&self.secret, peer)?;
        Some(PairKeys::derive(&agreed, &self.public, peer))
    }

    /// Begins this side of a session.
    pub fn begin_session(&mut self) -> Session {
        let secret = SecretKey(self.source.draw());
        Session { public: self.agreement.public_key(&secret), secret, peer: None }
    }

    /// Random bytes that a copy of this process does not have, after a restore: all that is drawn from now on depends on them.
    pub fn renew(&mut self, random: &[u8; 32]) {
        self.source.renew(random);
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// This side of an encrypted session with one peer.
#[derive(Clone)]
pub struct Session {
    secret: SecretKey,
    public: PublicKey,
    /// The peer's side, and whether it was a proper key.
    peer: Option<(PublicKey, bool)>,
}

impl Session {
    /// What the peer is told.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Takes the peer's key. The secret of the session, or `None`: it is not a proper key.
    pub fn join(&mut self, identity: &Identity, keys: &PairKeys, peer: PublicKey) -> Option<SecretKey> {
        let agreed = identity.agreement.agree(&self.secret, &peer);
        if agreed.is_some() || self.peer.is_none() {
            self.peer = Some((peer, agreed.is_some()));
        }
        Some(SecretKey(keys.session_secret(&agreed?, &self.public, &peer)))
    }
}

/// What connection ids a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionIds {
    /// Of packets that are sent.
    pub out: u64,
    /// Of packets that arrive.
    pub incoming: u64,
    /// Of accepts that are sent, with which streams of the session begin.
    pub accept_out: u64,
    /// Of accepts that arrive.
    pub accept_in: u64,
}

/// What the layer that encrypts must know. To be applied before anything that the engine gives out later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeysUpdate {
    /// There is a session with a peer, or another one in the place of the one that there is: then its counters go on.
    Establish {
        /// Its connection ids.
        ids: SessionIds,
        /// What its keys are derived from.
        secret: SecretKey,
    },
    /// Nothing more comes from this peer, or goes to it, before there is another session. That has another secret.
    Forget {
        /// See `Establish`.
        ids: SessionIds,
    },
}

impl Engine {
    /// The next change of the keys. To be asked for before anything is sent, and before anything is read that may be encrypted.
    pub fn poll_keys(&mut self) -> Option<KeysUpdate> {
        self.output.next_keys()
    }

    /// Whether [`Engine::poll_keys`] has something.
    #[inline]
    pub fn has_keys(&self) -> bool {
        self.output.has_keys()
    }

    /// Begins every encrypted session anew, with key pairs that depend on `random`: after a restore, before anything is sent, and when the
    /// counters of a session come to their end. The paths are connected anew, in larger epochs; no message is lost.
    pub fn renew_sessions(&mut self, random: &[u8; 32], now: Time) {
        self.tick(now);
        self.identity.renew(random);
        for pi in 0..self.peers.len() {
            if self.peers[pi].session.is_none() || self.peers[pi].gone.is_some() {
                continue;
            }
            let mut accepted = false;
            for xi in 0..self.peers[pi].paths.len() {
                // the peer may be sending in an epoch that was accepted under the old key
                accepted |= self.peers[pi].paths[xi].half_open.take().is_some();
                self.fail_path(pi, xi, Witness::NewEpoch, Direction::Both);
            }
            self.forget_keys(pi);
            if accepted {
                self.want(pi);
            }
            self.mark(PeerId(pi as u32));
        }
    }

    /// The part of this process in its session with a peer, for a handshake; `None`: it does not encrypt.
    pub(crate) fn session_key(&mut self, pi: usize) -> Option<PublicKey> {
        if !self.encrypts {
            return None;
        }
        let p = &mut self.peers[pi];
        let session = p.session.get_or_insert_with(|| Box::new(self.identity.begin_session()));
        Some(session.public)
    }

    /// The public key of a peer is known, which was compared with its token: from now on there are keys of the pair.
    pub(crate) fn know(&mut self, pi: usize, key: &PublicKey) {
        if self.peers[pi].keys.is_some() {
            return;
        }
        // Of an improper key come keys that nobody else can have: it is looked at once.
        let keys = self.identity.pair(key).unwrap_or_else(|| {
            let nobody = self.identity.source.draw();
            PairKeys::derive(&nobody, &self.identity.public, key)
        });
        let p = &self.peers[pi];
        if !p.gone.is_some_and(Gone::is_final) {
            let at = Whereabouts::new(&p.address, p.own_is_high);
            let u = ResponderUpdate::Add { cid_in: keys.cid_in, cid_out: keys.cid_out, at };
            self.responder.update(u);
            self.output.act(Action::Responder(u));
        }
        self.peers.know(PeerId(pi as u32), keys);
    }

    /// Whether a handshake names the key of the session that there is. Where there is none yet, every key does.
    pub(crate) fn is_of_session(&self, pi: usize, key: Option<PublicKey>) -> bool {
        let theirs = self.peers[pi].session.as_ref().and_then(|s| s.peer);
        theirs.is_none_or(|(known, _)| key == Some(known))
    }

    /// Takes the key that a peer names for the session: the first one, or one in a handshake that is proved. False: it is none, and the
    /// handshake is over.
    pub(crate) fn join_session(&mut self, pi: usize, key: Option<PublicKey>) -> bool {
        let (true, Some(key)) = (self.encrypts, key) else {
            return !self.encrypts && key.is_none();
        };
        self.session_key(pi);
        let ids = self.session_ids(pi);
        let p = &mut self.peers[pi];
        let (Some(session), Some(keys)) = (&mut p.session, &p.keys) else { return false };
        let before = session.peer;
        if let Some((_, proper)) = before.filter(|b| b.0 == key) {
            return proper;
        }
        let Some(secret) = session.join(&self.identity, keys, key) else { return false };
        self.output.renew_keys(KeysUpdate::Establish { ids, secret });
        if before.is_some() {
            // what was asked before may be answered by the session that is over: it is asked anew
            for xi in 0..self.peers[pi].paths.len() {
                let nonce = self.rng.nonce();
                if let Some(pr) = &mut self.peers[pi].paths[xi].proposal {
                    pr.nonce = nonce;
                }
                for a in self.peers[pi].paths[xi].lane.connection().attempts().to_vec() {
                    self.close_attempt(a);
                }
            }
        }
        true
    }

    fn session_ids(&self, pi: usize) -> SessionIds {
        let p = &self.peers[pi];
        let (out, incoming) = p.keys.as_ref().map_or((0, 0), |k| (k.cid_out, k.cid_in));
        let (own, theirs) = (&self.token, &p.address.token);
        SessionIds { out, incoming, accept_out: own.accept_cid(theirs), accept_in: theirs.accept_cid(own) }
    }

    /// A peer that encrypts when this process does not, or the other way round, is out of reach for good.
    pub(crate) fn part_if_unlike(&mut self, pi: usize) {
        let p = &self.peers[pi];
        if p.address.encrypts != self.encrypts && !p.is_self && p.gone.is_none() {
            self.entomb(pi, Gone::Lost, EventKind::EncryptionDiffers { peer_encrypts: p.address.encrypts });
        }
    }

    /// The session with a peer is over.
    pub(crate) fn forget_keys(&mut self, pi: usize) {
        let ids = self.session_ids(pi);
        let p = &mut self.peers[pi];
        // planted: the next session begins with the same key
        let over = match self.remedies.sessions_are_fresh() {
            true => p.session.take(),
            false => p.session.as_mut().map(|s| Box::new(Session { peer: s.peer.take(), ..(**s).clone() })),
        };
        if over.is_some_and(|s| s.peer.is_some_and(|(_, proper)| proper)) {
            self.output.renew_keys(KeysUpdate::Forget { ids });
            // what was still to be said to it cannot be said any more; a handshake needs no key
            self.output.drop_datagrams(
                |d| matches!(peek(&d.bytes), Some((cid, kind)) if cid == ids.out && kind != PacketKind::Accept),
            );
        }
    }
}
