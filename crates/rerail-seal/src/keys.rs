//! Keys. Owns: a session for each peer, as the engine says.
//!
//! Looking up a session never waits: the thread that answers queries must not depend on another one that was stopped inside a
//! lock (hazard H17). So the table is replaced as a whole when a peer comes or goes.

use arc_swap::ArcSwap;
use rerail_core::{KeyAgreement, KeysUpdate, SecretKey};
use rerail_wire::PublicKey;
use rerail_wire::sealed::{COUNTER_MAX, TAG_BYTES};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustc_hash::FxHashMap;
use std::ops::RangeFrom;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use x25519_dalek::StaticSecret;

/// A key is used for so many messages (as a power of two), then comes the next. RFC 9001 §6.6 allows 2^23.
const GENERATION_BITS: u32 = 22;

/// The agreement of RFC 7748.
pub struct X25519;

impl KeyAgreement for X25519 {
    fn public_key(&self, secret: &SecretKey) -> PublicKey {
        PublicKey(x25519_dalek::PublicKey::from(&StaticSecret::from(secret.0)).to_bytes())
    }

    fn agree(&self, secret: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]> {
        let agreed = StaticSecret::from(secret.0).diffie_hellman(&x25519_dalek::PublicKey::from(peer.0));
        // a point of small order: the result would be known to everybody
        agreed.was_contributory().then(|| agreed.to_bytes())
    }
}

/// The sessions of this process.
#[derive(Default)]
pub struct Keyring {
    /// By both connection ids of each peer.
    sessions: ArcSwap<FxHashMap<u64, Arc<Session>>>,
    /// Held by whoever replaces the table.
    changing: Mutex<()>,
}

impl Keyring {
    /// The session that a connection id belongs to, of either direction.
    pub(crate) fn session(&self, cid: u64) -> Option<Arc<Session>> {
        self.sessions.load().get(&cid).cloned()
    }

    /// Does what the engine says. The table is replaced once, however many changes there are.
    pub fn apply(&self, updates: impl IntoIterator<Item = KeysUpdate>) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sessions = FxHashMap::clone(&self.sessions.load());
        for update in updates {
            match update {
                KeysUpdate::Establish { cid_out, cid_in, secret } => {
                    let session = Arc::new(Session::new(secret.0, cid_out, cid_in));
                    sessions.insert(cid_out, session.clone());
                    sessions.insert(cid_in, session);
                }
                KeysUpdate::Forget { cid_out, cid_in } => {
                    sessions.remove(&cid_out);
                    sessions.remove(&cid_in);
                }
            }
        }
        self.sessions.store(Arc::new(sessions));
    }
}

/// Why a message could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forged;

/// A key that changes with the counter.
pub(crate) struct Ratchet {
    secret: [u8; 32],
    newest: ArcSwap<Generation>,
}

struct Generation {
    number: u64,
    key: LessSafeKey,
}

impl Ratchet {
    /// For one direction: `secret` is known to both sides.
    pub fn new(secret: [u8; 32]) -> Ratchet {
        let newest = ArcSwap::from_pointee(Generation::new(&secret, 0));
        Ratchet { secret, newest }
    }

    /// Calls `f` with the key for message `counter`. The newest is kept once `f` says that it was the right one: what is forged must not
    /// put another in its place.
    fn with<R>(&self, counter: u64, f: impl FnOnce(&LessSafeKey) -> Result<R, Forged>) -> Result<R, Forged> {
        let number = counter >> GENERATION_BITS;
        let newest = self.newest.load();
        if newest.number == number {
            return f(&newest.key);
        }
        let other = Generation::new(&self.secret, number);
        let done = f(&other.key)?;
        if number > newest.number {
            self.newest.store(Arc::new(other));
        }
        Ok(done)
    }

    /// Encrypts in place; `counter` is never to be used again.
    pub fn seal(&self, counter: u64, clear: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let sealed = self.with(counter, |key| {
            key.seal_in_place_separate_tag(nonce(counter), Aad::from(clear), bytes).map_err(|_| Forged)
        });
        let mut tag = [0; TAG_BYTES];
        // it fails for more bytes than 64 GiB only
        tag.copy_from_slice(sealed.expect("a message is shorter than what the cipher takes").as_ref());
        tag
    }

    /// Decrypts what begins at `at` in `bytes`, with its tag at the end, and moves it to the beginning of `bytes`; returns how much
    /// it is.
    pub fn open(
        &self,
        counter: u64,
        clear: &[u8],
        bytes: &mut [u8],
        at: RangeFrom<usize>,
    ) -> Result<usize, Forged> {
        self.with(counter, |key| {
            let opened = key.open_within(nonce(counter), Aad::from(clear), bytes, at);
            opened.map(|plain| plain.len()).map_err(|_| Forged)
        })
    }
}

impl Generation {
    fn new(secret: &[u8; 32], number: u64) -> Generation {
        let key = blake3::keyed_hash(secret, &number.to_le_bytes());
        let key = UnboundKey::new(&AES_256_GCM, key.as_bytes()).expect("a key of 32 bytes");
        Generation { number, key: LessSafeKey::new(key) }
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut n = [0; 12];
    n[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(n)
}

/// What is shared with one peer.
pub(crate) struct Session {
    secret: [u8; 32],
    /// Connection id of what is sent.
    cid_out: u64,
    /// Connection id of what arrives.
    cid_in: u64,
    counter: AtomicU64,
    pub out: Ratchet,
    pub incoming: Ratchet,
}

impl Session {
    fn new(secret: [u8; 32], cid_out: u64, cid_in: u64) -> Session {
        let of = |cid| Ratchet::new(direction(&secret, b"datagrams", cid, &[]));
        let (out, incoming) = (of(cid_out), of(cid_in));
        Session { secret, cid_out, cid_in, counter: AtomicU64::new(0), out, incoming }
    }

    pub fn is_out(&self, cid: u64) -> bool {
        cid == self.cid_out
    }

    pub fn is_in(&self, cid: u64) -> bool {
        cid == self.cid_in
    }

    /// A number that was never given out before; `None`: there are no more.
    pub fn count(&self) -> Option<u64> {
        let n = self.counter.fetch_add(1, Ordering::Relaxed);
        if n < COUNTER_MAX {
            return Some(n);
        }
        self.counter.store(COUNTER_MAX, Ordering::Relaxed);
        None
    }

    /// The keys of a stream, out and in; `nonce` is that of its hello.
    pub fn stream(&self, nonce: &[u8; 16]) -> (Ratchet, Ratchet) {
        let of = |cid| Ratchet::new(direction(&self.secret, b"stream", cid, nonce));
        (of(self.cid_out), of(self.cid_in))
    }
}

fn direction(secret: &[u8; 32], what: &[u8], cid: u64, nonce: &[u8]) -> [u8; 32] {
    let mut h = blake3::Hasher::new_keyed(secret);
    h.update(what).update(&cid.to_le_bytes()).update(nonce);
    *h.finalize().as_bytes()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rerail_core::Identity;
    use rerail_wire::{SessionKeys, Token};

    pub fn identity(n: u8) -> Identity {
        Identity::new(&X25519, SecretKey([n; 32]))
    }

    /// What a process with this key pair does that meets another.
    pub fn met(own: &Identity, keys: &SessionKeys, peer: &PublicKey) -> Arc<Keyring> {
        let ring = Keyring::default();
        let secret = own.traffic_secret(keys, peer).expect("a proper key");
        ring.apply([KeysUpdate::Establish { cid_out: keys.cid_out, cid_in: keys.cid_in, secret }]);
        Arc::new(ring)
    }

    /// Two processes that have met.
    pub fn pair() -> (Arc<Keyring>, Arc<Keyring>, SessionKeys) {
        let (a, b) = (Token([1; 16]), Token([2; 16]));
        let (ka, kb) = (SessionKeys::derive(&a, &b), SessionKeys::derive(&b, &a));
        let (ia, ib) = (identity(3), identity(4));
        (met(&ia, &ka, &ib.public_key()), met(&ib, &kb, &ia.public_key()), ka)
    }

    #[test]
    fn both_sides_have_the_same_keys_and_each_direction_its_own() {
        let (a, b, keys) = pair();
        let (a, b) = (a.session(keys.cid_out).unwrap(), b.session(keys.cid_out).unwrap());
        assert!(a.is_out(keys.cid_out) && b.is_in(keys.cid_out));
        let sealed = |by: &Ratchet| {
            let mut bytes = *b"hello";
            let tag = by.seal(7, b"clear", &mut bytes);
            [&bytes[..], &tag].concat()
        };
        let mut there = sealed(&a.out);
        assert_ne!(&there[..5], b"hello");
        assert_ne!(there, sealed(&b.out), "what one side says is not what the other would");
        assert_eq!(b.out.open(7, b"clear", &mut there.clone(), 0..), Err(Forged), "reflected");
        assert_eq!(b.incoming.open(8, b"clear", &mut there.clone(), 0..), Err(Forged), "another number");
        assert_eq!(b.incoming.open(7, b"other", &mut there.clone(), 0..), Err(Forged), "another header");
        for bit in 0..there.len() * 8 {
            let mut changed = there.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(b.incoming.open(7, b"clear", &mut changed, 0..), Err(Forged), "bit {bit}");
        }
        assert_eq!(b.incoming.open(7, b"clear", &mut there, 0..), Ok(5));
        assert_eq!(&there[..5], b"hello");
    }

    #[test]
    fn tokens_alone_do_not_give_the_keys() {
        let (a, _, keys) = pair();
        let listener = met(&identity(9), &keys, &identity(3).public_key());
        let mut bytes = *b"secret";
        let tag = a.session(keys.cid_out).unwrap().out.seal(0, b"", &mut bytes);
        let heard = [&bytes[..], &tag].concat();
        let theirs = listener.session(keys.cid_out).unwrap();
        for ratchet in [&theirs.out, &theirs.incoming] {
            assert_eq!(ratchet.open(0, b"", &mut heard.clone(), 0..), Err(Forged));
        }
    }

    #[test]
    fn a_key_is_replaced_and_what_is_forged_replaces_none() {
        let (a, b, keys) = pair();
        let (a, b) = (a.session(keys.cid_out).unwrap(), b.session(keys.cid_out).unwrap());
        let last = (1 << GENERATION_BITS) - 1;
        let mut seen = Vec::new();
        for counter in [last, last + 1, last - 1, 3 << GENERATION_BITS] {
            let mut bytes = [0; 32];
            let tag = a.out.seal(counter, b"", &mut bytes);
            let mut message = [&bytes[..], &tag].concat();
            let before = b.incoming.newest.load().number;
            assert_eq!(
                b.incoming.open(counter + (9 << GENERATION_BITS), b"", &mut message.clone(), 0..),
                Err(Forged)
            );
            assert_eq!(b.incoming.newest.load().number, before);
            assert_eq!(b.incoming.open(counter, b"", &mut message, 0..), Ok(32));
            seen.push(b.incoming.newest.load().number);
        }
        assert_eq!(seen, [0, 1, 1, 3]);
    }

    #[test]
    fn a_public_key_that_agrees_on_nothing_is_refused() {
        let keys = SessionKeys::derive(&Token([1; 16]), &Token([2; 16]));
        let mut one = [0; 32];
        one[0] = 1;
        for key in [[0; 32], one] {
            assert!(identity(3).traffic_secret(&keys, &PublicKey(key)).is_none(), "a point of small order");
        }
    }

    #[test]
    fn numbers_run_out_instead_of_coming_again() {
        let (a, _, keys) = pair();
        let s = a.session(keys.cid_out).unwrap();
        assert_eq!((s.count(), s.count()), (Some(0), Some(1)));
        s.counter.store(COUNTER_MAX - 1, Ordering::Relaxed);
        assert_eq!((s.count(), s.count(), s.count()), (Some(COUNTER_MAX - 1), None, None));
    }

    #[test]
    fn a_peer_that_is_forgotten_has_no_session() {
        let (a, _, keys) = pair();
        a.apply([KeysUpdate::Forget { cid_out: keys.cid_out, cid_in: keys.cid_in }]);
        assert!(a.session(keys.cid_in).is_none() && a.session(keys.cid_out).is_none());
    }
}
