//! Keys. Owns: a session for each peer, as the engine says.
//!
//! Looking up a session never waits: the thread that answers queries must not depend on another one that was stopped inside a
//! lock (hazard H17). So the table is replaced as a whole when a peer comes or goes.

use arc_swap::ArcSwap;
use rerail_core::{KeyAgreement, KeysUpdate, SecretKey, SessionIds};
use rerail_wire::sealed::{COUNTER_MAX, TAG_BYTES};
use rerail_wire::{PublicKey, Token};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustc_hash::FxHashMap;
use std::ops::RangeFrom;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use x25519_dalek::StaticSecret;

/// A key is used for so many messages (as a power of two), then comes the next. RFC 9001 §6.6 allows 2^23.
const GENERATION_BITS: u32 = 22;
/// From here on a session is to be renewed: at 10^8 datagrams a second half a month before there are no more counters.
const COUNTER_WORN: u64 = COUNTER_MAX / 2;

/// The agreement of RFC 7748.
pub struct X25519;

impl KeyAgreement for X25519 {
    fn public_key(&self, secret: &SecretKey) -> PublicKey {
        PublicKey(x25519_dalek::PublicKey::from(&StaticSecret::from(secret.0)).to_bytes())
    }

    fn agree(&self, secret: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]> {
        let agreed = StaticSecret::from(secret.0).diffie_hellman(&x25519_dalek::PublicKey::from(peer.0));
        // a point of small order: the result would be no secret
        agreed.was_contributory().then(|| agreed.to_bytes())
    }

    fn token(&self, public: &PublicKey) -> Token {
        Token::of(public)
    }
}

/// The sessions of this process.
#[derive(Default)]
pub struct Keyring {
    /// By all ids of each: connection ids, and that of the datagrams that arrive.
    sessions: ArcSwap<FxHashMap<u64, Arc<Session>>>,
    /// Held while the table is replaced.
    changing: Mutex<()>,
}

impl Keyring {
    /// The session that an id belongs to.
    pub(crate) fn session(&self, id: u64) -> Option<Arc<Session>> {
        self.sessions.load().get(&id).cloned()
    }

    /// Whether the counter of a session comes to its end, so that the engine is to renew its sessions.
    pub fn is_worn(&self) -> bool {
        self.sessions.load().values().any(|s| s.counter.load(Ordering::Relaxed) >= COUNTER_WORN)
    }

    /// Does what the engine says. The table is replaced once, however many changes there are.
    pub fn apply(&self, updates: impl IntoIterator<Item = KeysUpdate>) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sessions = FxHashMap::clone(&self.sessions.load());
        for update in updates {
            match update {
                KeysUpdate::Establish { ids, secret } => {
                    let before = sessions.get(&ids.out).cloned();
                    let mut session = Session::new(secret.0, ids);
                    if let Some(before) = before {
                        // this side's part of the session may be the same: its counters are not used again
                        session.counter = before.counter.clone();
                        sessions.remove(&before.arrives);
                    }
                    let session = Arc::new(session);
                    for id in session.all_ids() {
                        sessions.insert(id, session.clone());
                    }
                }
                KeysUpdate::Forget { ids } => {
                    let all = sessions.get(&ids.out).map(|s| s.all_ids());
                    for id in all.into_iter().flatten() {
                        sessions.remove(&id);
                    }
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
    ids: SessionIds,
    /// Id of the datagrams that are sent, and of those that arrive. Another session of the same two has others, so that what was sent under keys
    /// that are over is a stranger's, and not damaged.
    pub leaves: u64,
    arrives: u64,
    /// Shared with the session before this one, if that was replaced.
    counter: Arc<AtomicU64>,
    pub out: Ratchet,
    pub incoming: Ratchet,
}

impl Session {
    fn new(secret: [u8; 32], ids: SessionIds) -> Session {
        let of = |cid| Ratchet::new(direction(&secret, b"datagrams", cid, &[]));
        let id = |cid| {
            let h = direction(&secret, b"id", cid, &[]);
            u64::from_le_bytes([h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]])
        };
        Session {
            leaves: id(ids.out),
            arrives: id(ids.incoming),
            out: of(ids.out),
            incoming: of(ids.incoming),
            counter: Arc::default(),
            secret,
            ids,
        }
    }

    /// Under which it is looked for.
    fn all_ids(&self) -> [u64; 5] {
        let SessionIds { out, incoming, accept_out, accept_in } = self.ids;
        [out, incoming, accept_out, accept_in, self.arrives]
    }

    /// Whether packets with this connection id are sent in it.
    pub fn is_out(&self, cid: u64) -> bool {
        cid == self.ids.out
    }

    /// The connection id of the packets that arrive in it.
    pub fn cid_in(&self) -> u64 {
        self.ids.incoming
    }

    /// Whether datagrams with this id arrive in it.
    pub fn is_in(&self, id: u64) -> bool {
        id == self.arrives
    }

    /// Whether a stream belongs to it that begins with an accept with this connection id.
    pub fn is_accept(&self, cid: u64, arrives: bool) -> bool {
        cid == if arrives { self.ids.accept_in } else { self.ids.accept_out }
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

    /// The keys of a stream, out and in, from the nonces of hello and accept: each side has drawn one of them for this stream.
    pub fn stream(&self, nonces: &[[u8; 16]; 2]) -> (Ratchet, Ratchet) {
        let of = |cid| Ratchet::new(direction(&self.secret, b"stream", cid, nonces.as_flattened()));
        (of(self.ids.out), of(self.ids.incoming))
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
    use proptest::prelude::*;
    use rerail_core::{Identity, Session as Part};
    use rerail_wire::PairKeys;
    use std::collections::HashSet;

    pub fn identity(n: u8) -> Identity {
        Identity::new(&X25519, SecretKey([n; 32]), [n; 32])
    }

    pub fn ids(keys: &PairKeys) -> SessionIds {
        let (out, incoming) = (keys.cid_out, keys.cid_in);
        SessionIds { out, incoming, accept_out: !out, accept_in: !incoming }
    }

    /// What a process does that meets another, which names this key for the session.
    pub fn met(own: &Identity, part: &mut Part, keys: &PairKeys, peer: PublicKey) -> Arc<Keyring> {
        let ring = Keyring::default();
        let secret = part.join(own, keys, peer).expect("a proper key");
        ring.apply([KeysUpdate::Establish { ids: ids(keys), secret }]);
        Arc::new(ring)
    }

    /// Two processes that have met, and the keys of the first.
    pub fn pair() -> (Arc<Keyring>, Arc<Keyring>, PairKeys) {
        let (mut a, mut b) = (identity(3), identity(4));
        let ka = a.pair(&b.public_key()).expect("a proper key");
        let kb = b.pair(&a.public_key()).expect("a proper key");
        let (mut pa, mut pb) = (a.begin_session(), b.begin_session());
        let (ea, eb) = (pa.public_key(), pb.public_key());
        (met(&a, &mut pa, &ka, eb), met(&b, &mut pb, &kb, ea), ka)
    }

    #[test]
    fn both_sides_have_the_same_keys_and_each_direction_its_own() {
        let (a, b, keys) = pair();
        let (a, b) = (a.session(keys.cid_out).unwrap(), b.session(keys.cid_out).unwrap());
        assert!(a.is_out(keys.cid_out) && b.cid_in() == keys.cid_out && b.is_in(a.leaves));
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
    fn public_keys_alone_do_not_give_the_keys_and_neither_do_the_keys_of_the_pair() {
        let (a, _, keys) = pair();
        let heard = {
            let mut bytes = *b"secret";
            let tag = a.session(keys.cid_out).unwrap().out.seal(0, b"", &mut bytes);
            [&bytes[..], &tag].concat()
        };
        // a third that knows every public key, and one that has got the keys of the pair from a core dump after the session was forgotten
        let third = identity(9);
        let wrong = third.pair(&identity(3).public_key()).expect("a proper key");
        let a_named = identity(3).begin_session().public_key();
        for keys in [&wrong, &keys] {
            let theirs = met(&third, &mut third.clone().begin_session(), keys, a_named);
            let theirs = theirs.session(keys.cid_out).unwrap();
            for ratchet in [&theirs.out, &theirs.incoming] {
                assert_eq!(ratchet.open(0, b"", &mut heard.clone(), 0..), Err(Forged));
            }
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
        let mut one = [0; 32];
        one[0] = 1;
        for key in [[0; 32], one] {
            assert!(identity(3).pair(&PublicKey(key)).is_none(), "a point of small order");
        }
    }

    #[test]
    fn a_token_is_the_hash_of_the_public_key() {
        let a = identity(3);
        assert_eq!(a.token(), Token::of(&a.public_key()));
        assert_ne!(a.token(), identity(4).token());
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
        let arrives = a.session(keys.cid_in).unwrap().arrives;
        a.apply([KeysUpdate::Forget { ids: ids(&keys) }]);
        let all = [keys.cid_in, keys.cid_out, !keys.cid_in, !keys.cid_out, arrives];
        assert!(all.into_iter().all(|id| a.session(id).is_none()));
    }

    #[test]
    fn a_session_that_replaces_another_goes_on_with_its_counter_and_is_known_by_other_ids() {
        let (a, _, keys) = pair();
        let before = a.session(keys.cid_out).unwrap();
        assert_eq!((before.count(), before.count(), a.is_worn()), (Some(0), Some(1), false));
        a.apply([KeysUpdate::Establish { ids: ids(&keys), secret: SecretKey([7; 32]) }]);
        let after = a.session(keys.cid_out).unwrap();
        // a thread that still has the session before counts with the same counter
        assert_eq!((after.count(), before.count(), after.count()), (Some(2), Some(3), Some(4)));
        assert!(after.leaves != before.leaves && a.session(before.arrives).is_none());
        after.counter.store(COUNTER_WORN, Ordering::Relaxed);
        assert!(a.is_worn());
    }

    /// What happens to a process.
    #[derive(Debug, Clone)]
    enum Step {
        /// It takes a key that the other side has named, now or long ago.
        Establish { named: usize },
        /// It seals datagrams.
        Datagrams { count: usize },
        /// It seals the first record of a stream. Its own nonce is fresh; the other one's may be replayed.
        Stream { opens: bool, other: u8 },
        /// The session is forgotten.
        Forget,
        /// Its counter comes to the end.
        Exhaust,
        /// A checkpoint is taken, from which it may be restored.
        Checkpoint,
        /// It is restored from its checkpoint, and begins new sessions.
        Restore,
        /// It forks: the copy begins new sessions before it seals anything.
        Fork,
    }

    fn step() -> impl Strategy<Value = (usize, Step)> {
        let what = prop_oneof![
            4 => (0usize..8).prop_map(|named| Step::Establish { named }),
            4 => (1usize..4).prop_map(|count| Step::Datagrams { count }),
            3 => (any::<bool>(), 0u8..3).prop_map(|(opens, other)| Step::Stream { opens, other }),
            1 => Just(Step::Forget),
            1 => Just(Step::Exhaust),
            1 => Just(Step::Checkpoint),
            1 => Just(Step::Restore),
            1 => Just(Step::Fork),
        ];
        (0usize..LIVES_MAX, what)
    }

    /// Processes at most, forked ones among them.
    const LIVES_MAX: usize = 5;

    /// What the engine of a process keeps.
    #[derive(Clone)]
    struct Kept {
        identity: Identity,
        keys: PairKeys,
        part: Option<Part>,
        established: bool,
    }

    impl Kept {
        fn forget(&mut self, ring: &Keyring) {
            self.part = None;
            if std::mem::take(&mut self.established) {
                ring.apply([KeysUpdate::Forget { ids: ids(&self.keys) }]);
            }
        }

        /// As `renew_sessions` does.
        fn renew(&mut self, ring: &Keyring, random: &[u8; 32]) {
            self.identity.renew(random);
            self.forget(ring);
        }
    }

    /// One process: which of the two sides it is, what its engine keeps, and the layer that encrypts.
    struct Life {
        side: usize,
        kept: Kept,
        checkpoint: Kept,
        ring: Keyring,
    }

    impl Life {
        /// One that goes on from what an engine kept. The layer has nothing yet: what was sealed is the former life's.
        fn from(side: usize, kept: &Kept, random: &[u8; 32]) -> Self {
            let ring = Keyring::default();
            let mut kept = kept.clone();
            kept.established = false;
            kept.renew(&ring, random);
            Self { side, checkpoint: kept.clone(), kept, ring }
        }
    }

    /// Every seal of one clear text so far. Two under one key and one counter would be the same bytes.
    #[derive(Default)]
    struct Seals(HashSet<([u8; 16], [u8; TAG_BYTES])>);

    impl Seals {
        fn is_new(&mut self, by: &Ratchet, counter: u64) -> bool {
            let mut bytes = [0; 16];
            let tag = by.seal(counter, b"", &mut bytes);
            self.0.insert((bytes, tag))
        }
    }

    proptest! {
        #[test]
        fn no_key_meets_a_counter_twice(steps in proptest::collection::vec(step(), 1..80)) {
            let toys = [1, 2].map(|n| Identity::toy(Token([n; 16])));
            let mut lives: Vec<Life> = (0..2).map(|side| {
                let identity = toys[side].clone();
                let keys = identity.pair(&toys[1 - side].public_key()).unwrap();
                let kept = Kept { identity, keys, part: None, established: false };
                Life { side, checkpoint: kept.clone(), kept, ring: Keyring::default() }
            }).collect();
            let mut named: [Vec<PublicKey>; 2] = Default::default();
            let (mut seals, mut fresh) = (Seals::default(), 0u64);
            for (n, step) in steps {
                fresh += 1;
                let mut random = [0; 32];
                random[..8].copy_from_slice(&fresh.to_le_bytes());
                let n = n % lives.len();
                let others = lives.len();
                let Life { side, kept, checkpoint, ring } = &mut lives[n];
                let session = ring.session(kept.keys.cid_out);
                match (step, session) {
                    (Step::Establish { named: which }, _) => {
                        let part = kept.part.get_or_insert_with(|| kept.identity.begin_session());
                        named[*side].push(part.public_key());
                        let theirs = &named[1 - *side];
                        if !theirs.is_empty() {
                            let key = theirs[theirs.len() - 1 - which % theirs.len()];
                            let secret = part.join(&kept.identity, &kept.keys, key).unwrap();
                            ring.apply([KeysUpdate::Establish { ids: ids(&kept.keys), secret }]);
                            kept.established = true;
                        }
                    }
                    (Step::Datagrams { count }, Some(s)) => {
                        for counter in (0..count).filter_map(|_| s.count()) {
                            prop_assert!(seals.is_new(&s.out, counter), "a datagram");
                        }
                    }
                    (Step::Stream { opens, other }, Some(s)) => {
                        let mut own = [n as u8; 16];
                        own[..8].copy_from_slice(&fresh.to_le_bytes());
                        let nonces = if opens { [own, [other; 16]] } else { [[other; 16], own] };
                        prop_assert!(seals.is_new(&s.stream(&nonces).0, 0), "a stream");
                    }
                    (Step::Exhaust, Some(s)) => {
                        s.counter.store(COUNTER_MAX - 1, Ordering::Relaxed);
                        prop_assert!(ring.is_worn());
                        kept.renew(ring, &random);
                    }
                    (Step::Forget, _) => kept.forget(ring),
                    (Step::Checkpoint, _) => *checkpoint = kept.clone(),
                    (Step::Restore, _) => lives[n] = Life::from(*side, checkpoint, &random),
                    (Step::Fork, _) if others < LIVES_MAX => {
                        let child = Life::from(*side, kept, &random);
                        lives.push(child);
                    }
                    _ => {}
                }
            }
        }
    }
}
