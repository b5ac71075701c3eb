//! Whether this process encrypts, and which keys two processes share.
//!
//! The engine encrypts nothing itself: what it sends passes a layer over the ports (`rerail-seal`), which needs the keys of the peers.
//! The engine does the handshake: each side tells its public key in the hello or the accept, under the keyed hash, and a process that
//! encrypts talks only to those that do. What the layer must know leaves the engine as a [`KeysUpdate`].

use crate::engine::Engine;
use crate::event::EventKind;
use crate::peer::Gone;
use rerail_wire::packet::{PacketKind, peek};
use rerail_wire::{PublicKey, SessionKeys};
use std::fmt;

/// How two processes agree on a secret. Functions of their arguments alone: the runtime uses X25519, the simulator a cheap toy.
pub trait KeyAgreement: Send + Sync {
    /// The public half of a key pair.
    fn public_key(&self, secret: &SecretKey) -> PublicKey;

    /// What the owner of `secret` and the owner of `peer` agree on. `None`: `peer` is not a proper key, and the result would be known
    /// to everybody.
    fn agree(&self, secret: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]>;
}

/// The secret half of a key pair, or a secret that keys are derived from.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(pub [u8; 32]);

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

/// The key pair of a process.
#[derive(Clone)]
pub struct Identity {
    agreement: &'static dyn KeyAgreement,
    secret: SecretKey,
    public: PublicKey,
}

impl Identity {
    /// From 32 random bytes.
    pub fn new(agreement: &'static dyn KeyAgreement, secret: SecretKey) -> Self {
        Self { agreement, public: agreement.public_key(&secret), secret }
    }

    /// What the peers are told.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }

    /// The secret of the traffic with a peer. `None`: its key is not a proper one.
    pub fn traffic_secret(&self, keys: &SessionKeys, peer: &PublicKey) -> Option<SecretKey> {
        let agreed = self.agreement.agree(&self.secret, peer)?;
        Some(SecretKey(keys.traffic_secret(&agreed, &self.public, peer)))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// What the layer that encrypts must know. To be applied before anything that the engine gives out later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeysUpdate {
    /// There is a session with a peer.
    Establish {
        /// Connection id of what is sent.
        cid_out: u64,
        /// Connection id of what arrives.
        cid_in: u64,
        /// What its keys are derived from.
        secret: SecretKey,
    },
    /// Nothing more comes from this peer, or goes to it.
    Forget {
        /// See `Establish`.
        cid_out: u64,
        /// See `Establish`.
        cid_in: u64,
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

    /// What this process says in a handshake.
    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.encryption.as_ref().map(Identity::public_key)
    }

    /// Whether a handshake may go on in which the peer named this key. The first key of an incarnation is its only one.
    pub(crate) fn meet(&mut self, pi: usize, named: Option<PublicKey>) -> bool {
        let p = &mut self.peers[pi];
        let fits = match (&self.encryption, named, p.public_key.as_deref()) {
            (None, None, _) => true,
            (Some(_), Some(key), Some(known)) => key == *known,
            (Some(own), Some(key), None) => match own.traffic_secret(&p.keys, &key) {
                Some(secret) => {
                    let (cid_out, cid_in) = (p.keys.cid_out, p.keys.cid_in);
                    self.output.renew_keys(KeysUpdate::Establish { cid_out, cid_in, secret });
                    p.public_key = Some(Box::new(key));
                    true
                }
                None => false,
            },
            _ => false,
        };
        if !fits {
            self.counters.strangers += 1;
        }
        fits
    }

    /// A peer that encrypts when this process does not, or the other way round, is out of reach for good.
    pub(crate) fn part_if_unlike(&mut self, pi: usize) {
        let p = &self.peers[pi];
        if p.address.encrypts != self.encryption.is_some() && !p.is_self && p.gone.is_none() {
            self.entomb(pi, Gone::Lost, EventKind::EncryptionDiffers { peer_encrypts: p.address.encrypts });
        }
    }

    /// The keys of a peer are of no use any more.
    pub(crate) fn forget_keys(&mut self, pi: usize) {
        let p = &mut self.peers[pi];
        if p.public_key.take().is_some() {
            let (cid_out, cid_in) = (p.keys.cid_out, p.keys.cid_in);
            self.output.renew_keys(KeysUpdate::Forget { cid_out, cid_in });
            // what was still to be said to it cannot be said any more; a handshake needs no key
            self.output.drop_datagrams(
                |d| matches!(peek(&d.bytes), Some((cid, kind)) if cid == cid_out && kind != PacketKind::Accept),
            );
        }
    }
}
