//! Encryption, as far as the protocol sees it: which process has keys for which peer, and what a tag would show.
//!
//! Nothing is encrypted here. The layer that does it lets a packet out when the engine has met the peer, lets it in when the tag
//! matches, and ends a stream whose bytes were damaged; that is what the simulator does as well.

use rerail_core::wire::packet::{PacketKind, peek};
use rerail_core::{KeysUpdate, SecretKey};
use rustc_hash::FxHashMap;

/// The sessions of a process, and what it has sealed with.
#[derive(Default)]
pub struct Book {
    /// By connection id of what is sent: the secret, and the next counter.
    out: FxHashMap<u64, (SecretKey, u64)>,
    /// By connection id of what arrives.
    incoming: FxHashMap<u64, SecretKey>,
    /// The first counter that was not used with each secret.
    unused: FxHashMap<SecretKey, u64>,
}

/// What a datagram is sealed under; `None`: a handshake, in clear.
pub type Seal = Option<SecretKey>;

impl Book {
    /// Seals what is sent. `None`: there is no session for it.
    pub fn seal(&mut self, bytes: &[u8]) -> Option<Seal> {
        let cid = match peek(bytes)? {
            (_, PacketKind::Hello | PacketKind::Accept) => return Some(None),
            (cid, _) => cid,
        };
        let (secret, counter) = self.out.get_mut(&cid)?;
        let unused = self.unused.entry(secret.clone()).or_insert(0);
        assert!(*counter >= *unused, "sealed: a key meets counter {counter} for the second time");
        *counter += 1;
        *unused = *counter;
        Some(Some(secret.clone()))
    }

    /// Whether what arrives can be opened.
    pub fn opens(&self, bytes: &[u8], seal: &Seal) -> bool {
        match (peek(bytes), seal) {
            (Some((_, PacketKind::Hello | PacketKind::Accept)), _) => true,
            (Some((cid, _)), Some(secret)) => self.incoming.get(&cid) == Some(secret),
            _ => false,
        }
    }

    /// Applies an update from the engine.
    pub fn apply(&mut self, update: KeysUpdate) {
        match update {
            KeysUpdate::Establish { ids, secret } => {
                let counter = self.out.get(&ids.out).map_or(0, |before| before.1);
                self.out.insert(ids.out, (secret.clone(), counter));
                self.incoming.insert(ids.incoming, secret);
            }
            KeysUpdate::Forget { ids } => {
                assert!(self.out.remove(&ids.out).is_some() && self.incoming.remove(&ids.incoming).is_some());
            }
        }
    }
}

/// A datagram that was damaged: what the layer gives on is its connection id, if that was spared. A handshake is in clear.
pub fn damaged(bytes: &mut Vec<u8>) {
    if !matches!(peek(bytes), Some((_, PacketKind::Hello | PacketKind::Accept))) {
        bytes.truncate(8);
    }
}
