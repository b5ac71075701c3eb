//! Proof that both sides of a handshake hold the capability of the address.
//!
//! The 16-byte token of an [`crate::Address`] is random for every process and reaches its peers out of band, through the
//! launcher. Keys come from BLAKE3's keyed hash and key derivation (the BLAKE3 paper, §2.2, §6.2); nothing here is our
//! own cryptography. It does not hide or sign the traffic after the handshake: that is [`crate::sealed`], where it is asked for.

use std::fmt;

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;
/// Bytes of a keyed hash on the wire.
pub const MAC_BYTES: usize = 16;
/// Bytes of a public key (X25519, RFC 7748).
pub const KEY_BYTES: usize = 32;

/// The public half of a key pair that a process draws when it starts and encrypts. Never all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

/// The capability of one process: who holds it may open a session with that process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    /// Shows a short public name of the token (a hash), never the secret itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token#{:08x}", self.public_name())
    }
}

impl Token {
    /// A short name for logs that does not give the token away.
    pub fn public_name(&self) -> u32 {
        let h = blake3::derive_key("rerail 2026 token public name", &self.0);
        u32::from_le_bytes([h[0], h[1], h[2], h[3]])
    }

    fn key(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }

    /// The connection id that every hello to the process with this token carries: a stranger's datagram is refused by
    /// one comparison.
    pub fn hello_cid(&self) -> u64 {
        let k = self.key("rerail 2026 hello connection id");
        u64::from_le_bytes([k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]])
    }

    /// Keyed hash over a hello that proves that its sender knows this token.
    pub fn hello_mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        truncate(blake3::keyed_hash(&self.key("rerail 2026 hello mac"), bytes))
    }

    /// Covers (or uncovers) the initiator's address inside a hello, so that its own token does not travel in clear.
    /// `nonce` must be fresh for each hello.
    pub fn mask(&self, nonce: &[u8; 16], bytes: &mut [u8]) {
        let mut h = blake3::Hasher::new_keyed(&self.key("rerail 2026 hello mask"));
        h.update(nonce);
        let mut pad = [0u8; 64];
        assert!(bytes.len() <= pad.len(), "only an address is masked");
        h.finalize_xof().fill(&mut pad);
        for (b, p) in bytes.iter_mut().zip(pad) {
            *b ^= p;
        }
    }
}

fn truncate(h: blake3::Hash) -> [u8; MAC_BYTES] {
    let mut m = [0; MAC_BYTES];
    m.copy_from_slice(&h.as_bytes()[..MAC_BYTES]);
    m
}

/// Compares two keyed hashes without telling by the time it takes where they differ.
pub fn mac_equal(a: &[u8; MAC_BYTES], b: &[u8; MAC_BYTES]) -> bool {
    let mut diff = 0;
    for (x, y) in a.iter().zip(b) {
        diff |= x ^ y;
    }
    std::hint::black_box(diff) == 0
}

/// The keys of one pair of processes. Both sides derive the same from the two tokens.
#[derive(Clone)]
pub struct SessionKeys {
    key: [u8; 32],
    /// Connection id in packets that we send.
    pub cid_out: u64,
    /// Connection id in packets that we receive.
    pub cid_in: u64,
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

impl SessionKeys {
    /// Derives the keys between the process with token `own` and the one with token `peer`.
    pub fn derive(own: &Token, peer: &Token) -> Self {
        let (low, high) = if own < peer { (own, peer) } else { (peer, own) };
        let mut material = [0u8; 2 * TOKEN_BYTES];
        material[..TOKEN_BYTES].copy_from_slice(&low.0);
        material[TOKEN_BYTES..].copy_from_slice(&high.0);
        let key = blake3::derive_key("rerail 2026 session", &material);
        let cid = |label: &[u8]| {
            let h = blake3::keyed_hash(&key, label);
            let b = h.as_bytes();
            u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
        };
        let low_to_high = cid(b"low to high");
        let high_to_low = cid(b"high to low");
        let (cid_out, cid_in) =
            if own < peer { (low_to_high, high_to_low) } else { (high_to_low, low_to_high) };
        Self { key, cid_out, cid_in }
    }

    /// What the keys of an encrypted session are derived from: what the two public keys agree on, and both tokens, so that nobody
    /// without them can be in the middle.
    pub fn traffic_secret(&self, agreed: &[u8; 32], own: &PublicKey, peer: &PublicKey) -> [u8; 32] {
        let (low, high) = if own.0 < peer.0 { (own, peer) } else { (peer, own) };
        let tokens = blake3::derive_key("rerail 2026 encryption", &self.key);
        let mut material = [0; 128];
        for (room, part) in material.chunks_exact_mut(32).zip([&tokens, agreed, &low.0, &high.0]) {
            room.copy_from_slice(part);
        }
        blake3::derive_key("rerail 2026 traffic", &material)
    }

    /// Keyed hash that proves knowledge of both tokens.
    pub fn mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        truncate(blake3::keyed_hash(&self.key, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_derive_the_same_session() {
        let (a, b) = (Token([1; 16]), Token([2; 16]));
        let (ka, kb) = (SessionKeys::derive(&a, &b), SessionKeys::derive(&b, &a));
        assert_eq!(ka.cid_out, kb.cid_in);
        assert_eq!(ka.cid_in, kb.cid_out);
        assert_ne!(ka.cid_in, ka.cid_out);
        assert_eq!(ka.mac(b"x"), kb.mac(b"x"));
    }

    #[test]
    fn mask_is_its_own_inverse_and_depends_on_the_nonce() {
        let t = Token([7; 16]);
        let mut x = [3u8; 56];
        t.mask(&[1; 16], &mut x);
        assert_ne!(x, [3u8; 56]);
        let y = x;
        t.mask(&[1; 16], &mut x);
        assert_eq!(x, [3u8; 56]);
        t.mask(&[2; 16], &mut x);
        assert_ne!(x, y);
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        assert!(!format!("{:?}", Token([0xab; 16])).contains("abab"));
    }
}
