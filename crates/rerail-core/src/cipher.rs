//! Whether this process encrypts, and who is told which keys two processes share.
//!
//! The engine encrypts nothing itself: what it sends passes a layer over the ports (`rerail-seal`), which needs to know the peers.
//! What the engine does is the handshake: each side tells its public key in the hello or the accept, under the keyed hash, and
//! a process that encrypts talks only to those that do.

use crate::engine::Engine;
use crate::event::EventKind;
use crate::peer::Gone;
use rerail_wire::packet::{PacketKind, peek};
use rerail_wire::{PublicKey, SessionKeys};
use std::fmt;
use std::sync::Arc;

/// What turns the keys of a handshake into those of the traffic.
pub trait Cipher: Send + Sync {
    /// The sessions with this peer are known from now on, under both connection ids of `keys`. False: its key is none.
    fn establish(&self, keys: &SessionKeys, peer: &PublicKey) -> bool;

    /// Nothing more comes from this peer, or goes to it.
    fn forget(&self, keys: &SessionKeys);
}

/// The encryption of a process.
#[derive(Clone)]
pub struct Encryption {
    /// What it tells its peers.
    pub public_key: PublicKey,
    /// Who is told of the peers.
    pub cipher: Arc<dyn Cipher>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encryption(..)")
    }
}

impl Engine {
    /// What this process says in a handshake.
    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.encryption.as_ref().map(|e| e.public_key)
    }

    /// Whether a handshake may go on in which the peer named this key. The first key of an incarnation is its only one.
    pub(crate) fn meet(&mut self, pi: usize, named: Option<PublicKey>) -> bool {
        let p = &mut self.peers[pi];
        let fits = match (&self.encryption, named, p.public_key.as_deref()) {
            (None, None, _) => true,
            (Some(_), Some(key), Some(known)) => key == *known,
            (Some(own), Some(key), None) => {
                let proper = own.cipher.establish(&p.keys, &key);
                p.public_key = proper.then(|| Box::new(key));
                proper
            }
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
        if let (Some(own), Some(_)) = (&self.encryption, p.public_key.take()) {
            own.cipher.forget(&p.keys);
            // what was still to be said to it cannot be said any more; a handshake needs no key
            let ours = p.keys.cid_out;
            self.output.drop_datagrams(
                |d| matches!(peek(&d.bytes), Some((cid, kind)) if cid == ours && kind != PacketKind::Accept),
            );
        }
    }
}
