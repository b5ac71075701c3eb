//! A process that encrypts: which peers it communicates with, and when their keys are known. The engine is real;
//! nothing is encrypted.

mod alone;

use rerail_core::wire::hello::{Accept, EPOCH_PROVE, Hello, Proof};
use rerail_core::wire::packet::{PacketKind, peek};
use rerail_core::wire::{Address, PairKeys, PublicKey, Token};
use rerail_core::{
    CompletionLevel, Datagram, EndpointId, Engine, EpId, EventKind, Health, Identity, KeysUpdate, Locator,
    Options, PostError, Protocol, RailId, RecvOp, SecretKey, SendOp, Session, Time,
};

const OWN: Token = Token([9; 16]);
const PEER: Token = Token([1; 16]);
const PEER_KEY: PublicKey = PublicKey([4; 32]);
/// A multiple of the toy's prime in every word: with it no process agrees on anything.
const NO_KEY: PublicKey = PublicKey(NONE);
const NONE: [u8; 32] = {
    let word = (u64::MAX - 58).to_le_bytes();
    let mut all = [0; 32];
    let mut i = 0;
    while i < 32 {
        all[i] = word[i % 8];
        i += 1;
    }
    all
};

struct Process {
    engine: Engine,
    /// What the layer that encrypts has received.
    sessions: Vec<(u64, SecretKey)>,
    now: Time,
}

fn addr(last: u8) -> Locator {
    Locator::ip([10, 0, 0, last].into(), 4000)
}

fn peer(encrypts: bool) -> Address {
    Address { token: PEER, endpoint: 0, encrypts, rails: vec![addr(2)] }
}

/// The peer: its keys with the process, and its part of a session.
struct Other {
    identity: Identity,
    part: Session,
}

impl Other {
    fn new() -> Self {
        let mut identity = Identity::toy(PEER);
        let part = identity.begin_session();
        Self { identity, part }
    }

    fn keys(&self) -> PairKeys {
        self.identity.pair(&Identity::toy(OWN).public_key()).expect("proper keys")
    }

    fn key(&self) -> PublicKey {
        self.part.public_key()
    }

    /// It begins another session.
    fn begin_anew(&mut self) {
        self.part = self.identity.begin_session();
    }

    fn hello(&self, from: Address, epoch: u32, session_key: Option<PublicKey>, proved: bool) -> Vec<u8> {
        let public_key = self.identity.public_key();
        Hello { path: 0, epoch, stream: 0, lane: 0, nonce: [epoch as u8; 16], from, public_key, session_key }
            .to_bytes(&OWN, proved.then(|| self.keys()).as_ref())
            .to_vec()
    }

    fn accept(&self, h: &Hello, session_key: Option<PublicKey>) -> Vec<u8> {
        let public_key = self.identity.public_key();
        let (epoch, nonce, answer) = (h.epoch, h.nonce, [0; 16]);
        Accept { path: h.path, epoch, stream: 0, lane: 0, nonce, public_key, session_key, answer }
            .to_bytes(&PEER, &OWN, &self.keys(), h.session_key.as_ref())
            .to_vec()
    }

    /// The secret of its session with a process that named this key.
    fn secret(&mut self, key: Option<PublicKey>) -> SecretKey {
        let keys = self.keys();
        self.part.join(&self.identity, &keys, key.expect("it encrypts")).expect("a proper key")
    }
}

fn process(encrypts: bool) -> Process {
    let (engine, _, _, now) = alone::engine(OWN, Options::default(), encrypts);
    Process { engine, sessions: vec![], now }
}

impl Process {
    fn gets(&mut self, bytes: &[u8]) {
        let from = addr(2);
        self.engine.handle_datagram(RailId(0), from, bytes, self.now);
    }

    fn says(&mut self) -> Vec<Vec<u8>> {
        self.engine.handle_timeout(self.now);
        let mut all = vec![];
        let mut out = Datagram::default();
        while self.engine.poll_datagram(self.now, &mut out) {
            all.push(out.bytes.clone());
        }
        while self.engine.poll_action().is_some() {}
        all
    }

    /// The secrets of the sessions that are known before anything is sent.
    fn known(&mut self) -> Vec<SecretKey> {
        while let Some(update) = self.engine.poll_keys() {
            match update {
                KeysUpdate::Establish { ids, secret } => {
                    self.sessions.retain(|s| s.0 != ids.incoming);
                    self.sessions.push((ids.incoming, secret));
                }
                KeysUpdate::Forget { ids } => self.sessions.retain(|s| s.0 != ids.incoming),
            }
        }
        self.sessions.iter().map(|s| s.1.clone()).collect()
    }

    fn events(&mut self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.engine.poll_event()).map(|e| e.kind).collect()
    }
}

/// The accept for the peer.
fn accept_in(said: &[Vec<u8>]) -> Option<Accept> {
    said.iter().find_map(|b| Accept::parse(b, &OWN, &PEER).ok())
}

/// A message without bytes.
fn empty(dest: EndpointId) -> SendOp<'static> {
    SendOp {
        ep: EpId(0),
        dest,
        protocol: Protocol::Tagged,
        tag: 7,
        data: None,
        iov: &[],
        context: 1,
        completion: true,
        inject: false,
        level: CompletionLevel::Delivered,
    }
}

#[test]
fn the_keys_are_exchanged_in_hello_and_accept_and_known_before_anything_else_is_said() {
    let (mut p, mut o) = (process(true), Other::new());
    assert!(p.engine.address(EpId(0)).encrypts, "its address says so");
    p.gets(&o.hello(peer(true), 2, Some(o.key()), false));
    let known = p.known();
    let said = p.says();
    let accept = accept_in(&said).expect("it accepts");
    assert_eq!(known, [o.secret(accept.session_key)]);
    assert!(said.iter().all(|b| peek(b).is_some_and(|(_, kind)| kind == PacketKind::Accept)));
    // the next epoch, with the same key: nothing new
    p.gets(&o.hello(peer(true), 4, Some(o.key()), true));
    assert_eq!(p.known(), known);
}

fn begin(p: &mut Process) -> Hello {
    let dest = p.engine.endpoint_of(&peer(true));
    let op = empty(dest);
    // SAFETY: there is no memory.
    unsafe { p.engine.send(&op, p.now) }.expect("the send is taken");
    let said = p.says();
    assert_eq!(said.len(), 1, "it says nothing before there are keys");
    said.iter().find_map(|b| Hello::parse(b, &PEER).ok()).expect("it says hello")
}

#[test]
fn who_begins_learns_the_key_from_the_accept_and_says_nothing_else_before() {
    let (mut p, mut o) = (process(true), Other::new());
    let hello = begin(&mut p);
    p.gets(&o.accept(&hello, None));
    assert_eq!((p.known().len(), p.engine.paths()[0].health), (0, Health::Connecting));
    p.gets(&o.accept(&hello, Some(NO_KEY)));
    assert_eq!((p.known().len(), p.engine.paths()[0].health), (0, Health::Connecting));
    p.gets(&o.accept(&hello, Some(o.key())));
    assert_eq!((p.known(), p.engine.paths()[0].health), (vec![o.secret(hello.session_key)], Health::Up));
    assert!(p.says().iter().any(|b| peek(b).is_some_and(|(_, kind)| kind == PacketKind::Data)));
}

#[test]
fn another_key_of_the_session_is_taken_with_a_proof_only() {
    let (mut p, mut o) = (process(true), Other::new());
    p.gets(&o.hello(peer(true), 2, Some(o.key()), false));
    let (known, own) = (p.known(), accept_in(&p.says()).expect("it accepts").session_key);
    o.begin_anew();
    p.gets(&o.hello(peer(true), 4, Some(o.key()), false));
    let asks = accept_in(&p.says()).expect("it asks for the proof");
    assert_eq!((p.known(), asks.epoch), (known.clone(), EPOCH_PROVE));
    p.gets(&o.hello(peer(true), 4, Some(o.key()), true));
    assert_eq!(accept_in(&p.says()).map(|a| (a.epoch, a.session_key)), Some((4, own)));
    let replaced = p.known();
    assert_eq!(replaced, [o.secret(own)]);
    assert_ne!(replaced, known);
}

#[test]
fn who_is_asked_for_a_proof_gives_it_at_once() {
    let (mut p, o) = (process(true), Other::new());
    let hello = begin(&mut p);
    let asks = Hello { epoch: EPOCH_PROVE, ..hello.clone() };
    p.gets(&o.accept(&asks, Some(o.key())));
    assert_eq!((p.known().len(), p.engine.paths()[0].health), (0, Health::Connecting));
    let again: Vec<_> =
        p.says().into_iter().filter(|b| Hello::parse(b, &PEER) == Ok(hello.clone())).collect();
    assert!(!again.is_empty() && again.iter().all(|b| Hello::proof(b, &o.keys()) == Proof::Right));
}

#[test]
fn sessions_that_are_begun_anew_have_other_keys_on_paths_that_are_connected_anew() {
    let (mut p, mut o) = (process(true), Other::new());
    let hello = begin(&mut p);
    p.gets(&o.accept(&hello, Some(o.key())));
    let known = p.known();
    p.engine.renew_sessions(&[1; 32], p.now);
    assert_eq!((p.known().len(), p.engine.paths()[0].health.connected()), (0, false));
    let next = (0..400).find_map(|_| {
        p.now = p.now + std::time::Duration::from_millis(5);
        p.says().iter().find_map(|b| Hello::parse(b, &PEER).ok())
    });
    let next = next.expect("it says hello");
    assert!(next.epoch > hello.epoch && next.session_key != hello.session_key);
    p.gets(&o.accept(&next, Some(o.key())));
    assert_eq!(p.known(), [o.secret(next.session_key)]);
    assert_ne!(p.known(), known);
}

#[test]
fn who_encrypts_and_who_does_not_never_connect() {
    for (own, theirs, key) in [
        (true, false, None),
        (true, true, None),
        (true, false, Some(PEER_KEY)),
        (false, true, Some(PEER_KEY)),
        (false, false, Some(PEER_KEY)),
    ] {
        let mut p = process(own);
        p.gets(&Other::new().hello(peer(theirs), 2, key, false));
        assert!(accept_in(&p.says()).is_none(), "{own} {theirs} {key:?}");
        assert!(p.known().is_empty());
        assert_eq!(p.engine.counters().strangers, 1);
    }
}

#[test]
fn an_address_that_does_not_fit_is_told_at_once_and_operations_end_in_an_error() {
    for own in [true, false] {
        let mut p = process(own);
        let dest = p.engine.endpoint_of(&peer(!own));
        assert_eq!(p.events(), [EventKind::EncryptionDiffers { peer_encrypts: !own }]);
        let op = empty(dest);
        // SAFETY: there is no memory.
        let posted = unsafe { p.engine.send(&op, p.now) };
        assert!(matches!(posted, Err(PostError::PeerGone)), "{posted:?}");
        assert!(p.says().is_empty(), "nothing is said to it");
        p.engine.endpoint_of(&peer(!own));
        assert!(p.events().is_empty(), "it is said once");
    }
}

#[test]
fn damage_that_a_tag_tells_counts_against_the_rail_it_came_on() {
    let mut p = process(true);
    p.engine.endpoint_of(&peer(true));
    let o = Other::new();
    p.gets(&o.hello(peer(true), 2, Some(o.key()), false));
    p.says();
    let cid = o.keys().cid_out;
    let from = addr;
    p.engine.handle_damaged(RailId(0), from(2), cid, p.now);
    assert_eq!(p.engine.counters().corrupt, 1);
    p.engine.handle_damaged(RailId(0), from(66), cid, p.now);
    p.engine.handle_damaged(RailId(0), from(2), cid ^ 1, p.now);
    assert_eq!((p.engine.counters().corrupt, p.engine.counters().strangers), (1, 2));
    p.engine.handle_unsealed(p.now);
    assert_eq!(p.engine.counters().downgrades, 1);
}

#[test]
fn the_keys_of_a_peer_that_is_given_up_are_forgotten() {
    let mut p = process(true);
    let id = p.engine.endpoint_of(&peer(true));
    let o = Other::new();
    p.gets(&o.hello(peer(true), 2, Some(o.key()), false));
    p.says();
    let op = RecvOp {
        ep: EpId(0),
        protocol: Protocol::Tagged,
        tag: 1,
        ignore: 0,
        src: Some(id),
        iov: &[],
        context: 1,
        completion: true,
        multi: false,
    };
    // SAFETY: there is no memory.
    unsafe { p.engine.recv(&op, p.now) }.expect("a receive is always taken");
    for _ in 0..200_000 {
        p.now = p.now + std::time::Duration::from_millis(5);
        p.says();
        if p.events().iter().any(|e| matches!(e, EventKind::PeerLost { .. })) {
            assert!(p.known().is_empty());
            return;
        }
    }
    panic!("a peer that is silent for ten minutes is given up");
}
