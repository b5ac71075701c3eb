//! A key agreement for simulators and tests: the algebra of a real one, next to no cost, and no secrecy at all.
//!
//! Both sides come to the same from their own secret and the other's public key: word by word secret × secret × base, modulo a
//! prime. The token of a key is its first half, so that a test can choose the tokens of its processes.

use crate::cipher::{Identity, KeyAgreement, SecretKey};
use rerail_wire::{PublicKey, Token};

/// The largest prime below 2^64.
const PRIME: u64 = u64::MAX - 58;
/// The public key of secret 1, in each word.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the module.
struct Toy;

type Words = [u64; 4];

fn words(b: &[u8; 32]) -> Words {
    let mut all = [0; 4];
    for (w, b) in all.iter_mut().zip(b.chunks_exact(8)) {
        *w = u64::from_le_bytes(b.try_into().expect("eight bytes"));
    }
    all
}

fn bytes(words: Words) -> [u8; 32] {
    let mut all = [0; 32];
    for (b, w) in all.chunks_exact_mut(8).zip(words) {
        b.copy_from_slice(&w.to_le_bytes());
    }
    all
}

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64
}

/// What `BASE` has to be multiplied by to get 1 (Fermat).
fn base_inverse() -> u64 {
    let (mut result, mut square, mut exponent) = (1, BASE, PRIME - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = times(result, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    result
}

impl KeyAgreement for Toy {
    fn public_key(&self, secret: &SecretKey) -> PublicKey {
        PublicKey(bytes(words(&secret.0).map(|w| times(w, BASE))))
    }

    fn agree(&self, secret: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]> {
        let (own, theirs) = (words(&secret.0), words(&peer.0));
        let agreed = std::array::from_fn(|i| times(own[i], theirs[i]));
        (agreed != [0; 4]).then(|| bytes(agreed))
    }

    fn token(&self, public: &PublicKey) -> Token {
        let mut token = [0; 16];
        token.copy_from_slice(&public.0[..16]);
        Token(token)
    }
}

impl Identity {
    /// That of a process in a simulation or a test, with this token.
    ///
    /// # Panics
    /// One token in 2^58 cannot be had.
    pub fn toy(token: Token) -> Self {
        let mut public = [0x5a; 32];
        public[..16].copy_from_slice(&token.0);
        // processes with similar tokens have nothing in common beyond them
        public[16..24].copy_from_slice(&token.public_name().to_le_bytes().repeat(2));
        let inverse = base_inverse();
        let secret = SecretKey(bytes(words(&public).map(|w| times(w, inverse))));
        let identity = Self::new(&Toy, secret, public);
        assert_eq!(identity.token(), token, "the words of a token are below the prime");
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_agree_and_a_third_does_not() {
        let [a, b, c] = [1, 2, 3].map(|n| Identity::toy(Token([n; 16])));
        let keys =
            |own: &Identity, peer: &Identity| own.pair(&peer.public_key()).expect("proper keys").mac(&[b"x"]);
        assert_eq!(keys(&a, &b), keys(&b, &a));
        assert_ne!(keys(&a, &c), keys(&a, &b));
        assert_ne!(keys(&c, &b), keys(&a, &b));
        assert!(a.pair(&PublicKey([0; 32])).is_none());
    }
}
