//! Access to a process, and proof of a sender: the token of its address, the public key behind the token, the keys of a
//! pair.
//!
//! Each process draws a key pair when it starts. Its token, the 16 bytes in its [`crate::Address`], is a hash of its public key, and reaches its
//! peers out of band, through the launcher. A process that holds the token may send a hello. The keys of a pair come
//! from what two key pairs agree on (X25519 in the product), so that no other process has them, whatever tokens it
//! holds. Keys are derived by BLAKE3's keyed hash and key derivation (the BLAKE3 paper, §2.2, §6.2); nothing here is
//! our own cryptography. On request [`crate::sealed`] hides the traffic.

use std::fmt;

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;
/// Bytes of a keyed hash on the wire.
pub const MAC_BYTES: usize = 16;
/// Bytes of a public key (X25519, RFC 7748).
pub const KEY_BYTES: usize = 32;

/// The public half of a key pair: of a process, or of its part of one session. Never all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

/// Name and capability of one process, a hash of its public key: a process that holds it may send that process a hello.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    /// Shows a short public name of the token (a hash), never the secret itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token#{:08x}", self.public_name())
    }
}

impl Token {
    /// The token of the process with this public key. To find another key with the same token takes 2^128 attempts.
    pub fn of(key: &PublicKey) -> Self {
        let h = blake3::derive_key("rerail 2026 token", &key.0);
        let mut t = [0; TOKEN_BYTES];
        t.copy_from_slice(&h[..TOKEN_BYTES]);
        Self(t)
    }

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

    /// Masks (or unmasks) in a hello what reveals the initiator's token: its address and its public key. `nonce` must
    /// be fresh for each hello.
    pub fn mask_hello(&self, nonce: &[u8; 16], bytes: &mut [u8]) {
        self.mask("rerail 2026 hello mask", nonce, bytes);
    }

    /// The same for the public key of the acceptor, whose token this is, in an accept: the initiator has the token.
    pub fn mask_accept(&self, nonce: &[u8; 16], bytes: &mut [u8]) {
        self.mask("rerail 2026 accept mask", nonce, bytes);
    }

    fn mask(&self, context: &str, nonce: &[u8; 16], bytes: &mut [u8]) {
        let mut h = blake3::Hasher::new_keyed(&self.key(context));
        h.update(nonce);
        let mut pad = [0u8; 128];
        assert!(bytes.len() <= pad.len(), "only an address and a key are masked");
        h.finalize_xof().fill(&mut pad);
        for (b, p) in bytes.iter_mut().zip(pad) {
            *b ^= p;
        }
    }

    /// The connection id of an accept from the process with this token to the process with `to`: it is known before
    /// there are keys.
    pub fn accept_cid(&self, to: &Token) -> u64 {
        let mut material = [0u8; 2 * TOKEN_BYTES];
        material[..TOKEN_BYTES].copy_from_slice(&self.0);
        material[TOKEN_BYTES..].copy_from_slice(&to.0);
        first_word(&blake3::derive_key("rerail 2026 accept connection id", &material))
    }
}

fn first_word(b: &[u8; 32]) -> u64 {
    u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

fn truncate(h: blake3::Hash) -> [u8; MAC_BYTES] {
    let mut m = [0; MAC_BYTES];
    m.copy_from_slice(&h.as_bytes()[..MAC_BYTES]);
    m
}

/// Compares two keyed hashes in a time that does not reveal where they differ.
pub fn mac_equal(a: &[u8; MAC_BYTES], b: &[u8; MAC_BYTES]) -> bool {
    let mut diff = 0;
    for (x, y) in a.iter().zip(b) {
        diff |= x ^ y;
    }
    std::hint::black_box(diff) == 0
}

/// The keys of one pair of processes, as long as both live. A third process cannot derive them: that takes the secret of one of the two.
#[derive(Clone)]
pub struct PairKeys {
    key: [u8; 32],
    /// Connection id in packets that we send.
    pub cid_out: u64,
    /// Connection id in packets that we receive.
    pub cid_in: u64,
}

impl fmt::Debug for PairKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairKeys(..)")
    }
}

/// A secret from several secrets and two public keys, the same on both sides.
fn joint(context: &str, secrets: [&[u8; 32]; 2], own: &PublicKey, peer: &PublicKey) -> [u8; 32] {
    let (low, high) = if own < peer { (own, peer) } else { (peer, own) };
    let mut material = [0; 128];
    for (room, part) in material.chunks_exact_mut(32).zip([secrets[0], secrets[1], &low.0, &high.0]) {
        room.copy_from_slice(part);
    }
    blake3::derive_key(context, &material)
}

impl PairKeys {
    /// From what the key pairs of two processes agree on.
    pub fn derive(agreed: &[u8; 32], own: &PublicKey, peer: &PublicKey) -> Self {
        let key = joint("rerail 2026 pair", [agreed, &[0; 32]], own, peer);
        let cid = |label: &[u8]| first_word(blake3::keyed_hash(&key, label).as_bytes());
        let low_to_high = cid(b"low to high");
        let high_to_low = cid(b"high to low");
        let (cid_out, cid_in) =
            if own < peer { (low_to_high, high_to_low) } else { (high_to_low, low_to_high) };
        Self { key, cid_out, cid_in }
    }

    /// What the keys of an encrypted session are derived from: what the key pairs of the session agree on, which are forgotten with it, and
    /// the keys of the pair, so that no third process can be in the middle.
    pub fn session_secret(&self, agreed: &[u8; 32], own: &PublicKey, peer: &PublicKey) -> [u8; 32] {
        joint("rerail 2026 session", [&self.key, agreed], own, peer)
    }

    /// Keyed hash that proves that its sender is one of the two.
    pub fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        let mut h = blake3::Hasher::new_keyed(&self.key);
        for part in parts {
            h.update(part);
        }
        truncate(h.finalize())
    }
}

/// Random bytes from random bytes, without end: each is of use once, and what is kept does not reveal what came before.
#[derive(Clone)]
pub struct KeySource([u8; 32]);

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySource(..)")
    }
}

impl KeySource {
    /// From 32 random bytes.
    pub fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// The next 32 bytes.
    pub fn draw(&mut self) -> [u8; 32] {
        let drawn = blake3::derive_key("rerail 2026 source draw", &self.0);
        self.0 = blake3::derive_key("rerail 2026 source next", &self.0);
        drawn
    }

    /// Mixes fresh random bytes in: what is drawn from now on is not what a copy of this source draws.
    pub fn renew(&mut self, random: &[u8; 32]) {
        self.0 = *blake3::keyed_hash(random, &self.0).as_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_derive_the_same_keys_and_a_third_does_not() {
        let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let (ka, kb) = (PairKeys::derive(&[7; 32], &a, &b), PairKeys::derive(&[7; 32], &b, &a));
        assert_eq!((ka.cid_out, ka.cid_in), (kb.cid_in, kb.cid_out));
        assert_ne!(ka.cid_in, ka.cid_out);
        assert_eq!(ka.mac(&[b"x", b"y"]), kb.mac(&[b"xy"]));
        assert_eq!(ka.session_secret(&[3; 32], &b, &a), kb.session_secret(&[3; 32], &a, &b));
        assert_ne!(ka.session_secret(&[3; 32], &b, &a), kb.session_secret(&[4; 32], &a, &b));
        // both public keys are known to all, and what they agree on is not
        let third = PairKeys::derive(&[8; 32], &a, &b);
        assert!(
            third.cid_out != ka.cid_out && third.cid_in != ka.cid_in && third.mac(&[b"x"]) != ka.mac(&[b"x"])
        );
    }

    #[test]
    fn a_token_is_the_hash_of_a_public_key() {
        let t = Token::of(&PublicKey([1; 32]));
        assert_eq!(t, Token::of(&PublicKey([1; 32])));
        assert_ne!(t, Token::of(&PublicKey([2; 32])));
    }

    #[test]
    fn masks_are_their_own_inverse_and_depend_on_nonce_and_use() {
        let t = Token([7; 16]);
        let mut x = [3u8; 88];
        t.mask_hello(&[1; 16], &mut x);
        assert_ne!(x, [3u8; 88]);
        let y = x;
        t.mask_hello(&[1; 16], &mut x);
        assert_eq!(x, [3u8; 88]);
        t.mask_hello(&[2; 16], &mut x);
        assert_ne!(x, y);
        let mut z = [3u8; 88];
        t.mask_accept(&[1; 16], &mut z);
        assert_ne!(z, y);
    }

    #[test]
    fn a_source_does_not_repeat_itself_and_its_copy_goes_another_way_when_renewed() {
        let mut s = KeySource::new([1; 32]);
        let drawn: Vec<_> = (0..4).map(|_| s.draw()).collect();
        assert!((1..4).all(|i| !drawn[..i].contains(&drawn[i])));
        let mut copy = s.clone();
        copy.renew(&[2; 32]);
        assert_ne!(s.draw(), copy.draw());
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        assert!(!format!("{:?}", Token([0xab; 16])).contains("abab"));
    }
}
