//! Encryption, as far as the protocol sees it: which process has keys for whom, and what a tag would tell.
//!
//! Nothing is encrypted here. The layer that does it lets a packet out when the engine has met the peer, lets it in when the tag
//! matches, and ends a stream whose bytes were damaged; that is what the simulator does as well.

use rerail_core::wire::packet::{PacketKind, peek};
use rerail_core::wire::{PublicKey, SessionKeys};
use rerail_core::{Cipher, Encryption};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The sessions of a process, by connection id.
#[derive(Default)]
pub struct Book(Mutex<HashMap<u64, PublicKey>>);

impl Book {
    /// For process `p`, whose key is like no other's.
    pub fn of(p: usize) -> (Arc<Book>, Encryption) {
        let book = Arc::new(Book::default());
        let mut key = [0x11; 32];
        key[..8].copy_from_slice(&(p as u64 + 1).to_le_bytes());
        (book.clone(), Encryption { public_key: PublicKey(key), cipher: book })
    }

    /// Whether there is a session for what a datagram carries; a handshake needs none.
    pub fn passes(&self, bytes: &[u8]) -> bool {
        match peek(bytes) {
            Some((_, PacketKind::Hello | PacketKind::Accept)) => true,
            Some((cid, _)) => self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&cid),
            None => false,
        }
    }
}

impl Cipher for Book {
    fn establish(&self, keys: &SessionKeys, peer: &PublicKey) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for cid in [keys.cid_in, keys.cid_out] {
            let before = known.insert(cid, *peer);
            assert_eq!(before, None, "sealed: a peer has one key as long as it lives");
        }
        true
    }

    fn forget(&self, keys: &SessionKeys) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(known.remove(&keys.cid_in).is_some() && known.remove(&keys.cid_out).is_some());
    }
}

/// A datagram that was damaged: what the layer gives on is its connection id, if that was spared. A handshake is in clear.
pub fn damaged(bytes: &mut Vec<u8>) {
    if !matches!(peek(bytes), Some((_, PacketKind::Hello | PacketKind::Accept))) {
        bytes.truncate(8);
    }
}
