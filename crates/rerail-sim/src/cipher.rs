//! Encryption, as far as the protocol sees it: which process has keys for whom, and what a tag would tell.
//!
//! Nothing is encrypted here. The layer that does it lets a packet out when the engine has met the peer, lets it in when the tag
//! matches, and ends a stream whose bytes were damaged; that is what the simulator does as well.

use rerail_core::wire::PublicKey;
use rerail_core::wire::packet::{PacketKind, peek};
use rerail_core::{Identity, KeyAgreement, KeysUpdate, SecretKey};
use rustc_hash::FxHashMap;

/// An agreement with the algebra of a real one, and no secrecy: both sides come to the same, each from its own secret and the other's
/// public key.
pub struct Toy;

/// Multiplied by the secret it is the public key, word by word.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

fn times(a: &[u8; 32], b: impl Fn(usize) -> u64) -> [u8; 32] {
    let mut out = [0; 32];
    for (i, (from, to)) in a.chunks_exact(8).zip(out.chunks_exact_mut(8)).enumerate() {
        let word = u64::from_le_bytes(from.try_into().expect("eight bytes"));
        to.copy_from_slice(&word.wrapping_mul(b(i)).to_le_bytes());
    }
    out
}

impl KeyAgreement for Toy {
    fn public_key(&self, secret: &SecretKey) -> PublicKey {
        PublicKey(times(&secret.0, |_| BASE))
    }

    fn agree(&self, secret: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]> {
        let word = |i: usize| u64::from_le_bytes(peer.0[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        Some(times(&secret.0, word)).filter(|agreed| *agreed != [0; 32])
    }
}

/// The key pair of process `p`, like no other's.
pub fn identity(p: usize) -> Identity {
    let mut secret = [0x11; 32];
    secret[..8].copy_from_slice(&(2 * p as u64 + 1).to_le_bytes());
    Identity::new(&Toy, SecretKey(secret))
}

/// The sessions of a process, by connection id.
#[derive(Default)]
pub struct Book(FxHashMap<u64, SecretKey>);

impl Book {
    /// Whether there is a session for what a datagram carries; a handshake needs none.
    pub fn passes(&self, bytes: &[u8]) -> bool {
        match peek(bytes) {
            Some((_, PacketKind::Hello | PacketKind::Accept)) => true,
            Some((cid, _)) => self.0.contains_key(&cid),
            None => false,
        }
    }

    /// Does what the engine says.
    pub fn apply(&mut self, update: KeysUpdate) {
        match update {
            KeysUpdate::Establish { cid_out, cid_in, secret } => {
                for cid in [cid_in, cid_out] {
                    let before = self.0.insert(cid, secret.clone());
                    assert_eq!(before, None, "sealed: a peer has one key as long as it lives");
                }
            }
            KeysUpdate::Forget { cid_out, cid_in } => {
                assert!(self.0.remove(&cid_in).is_some() && self.0.remove(&cid_out).is_some());
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
