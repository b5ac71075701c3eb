//! The keys of this process: those of its pairs, and those of encrypted sessions.
//!
//! Owns: what makes a session's key fresh. Every process has a key pair for life, of which its token is the hash. Two
//! processes agree on the keys of their pair: connection ids, and the keyed hashes of the handshake. Where the
//! processes encrypt, each also draws a key pair for its part of each session, which is forgotten with it. The engine
//! encrypts nothing itself: what it sends passes a layer over the ports (`rerail-seal`), and what that layer must know
//! leaves the engine as a [`KeysUpdate`].
//!
//! Invariants: a session that is forgotten and made again has a new key pair of this side, so that no key of AES-GCM
//! comes again with its counter; the key of the other side changes only by a proved handshake of its own (a hello with
//! proof, an accept of our last hello). A peer that has not proved anything costs at most three agreements for its
//! place in the list of unproven peers (`peer_of_hello`).

use rerail_wire::{KeySource, PairKeys, PublicKey, Token};
use std::fmt;

/// How two processes agree on a secret. Functions of their arguments alone: the runtime uses X25519, the simulator a cheap toy.
pub trait KeyAgreement: Send + Sync {
    /// The public half of a key pair.
    fn public_key(&self, secret: &SecretKey) -> PublicKey;

    /// What the owner of `secret` and the owner of `peer` agree on. `None`: `peer` is not a proper key, and every
    /// process could compute the result.
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

    /// The public key that peers receive.
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

    /// Keys in the place of those with a peer whose key is not a proper one: no other process can derive them.
    pub fn pair_with_nobody(&mut self, peer: &PublicKey) -> PairKeys {
        PairKeys::derive(&self.source.draw(), &self.public, peer)
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
    /// The public key that the peer receives.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// The peer's part, and whether that was a proper key; `None`: it has named none.
    pub fn peer(&self) -> Option<(PublicKey, bool)> {
        self.peer
    }

    /// Whether there are keys of the session.
    pub fn is_joined(&self) -> bool {
        self.peer.is_some_and(|(_, is_proper)| is_proper)
    }

    /// Ends the session, and begins the next one with the same key of this side: the planted fault of
    /// [`Remedies`](crate::Remedies)`::sessions_are_fresh`.
    pub(crate) fn repeat(&mut self) -> Session {
        Session { peer: self.peer.take(), ..self.clone() }
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

/// The connection ids of a session.
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
