//! A process that encrypts: whom it talks to, and when its peers' keys are known. The engine is real; nothing is encrypted.

mod alone;

use rerail_core::wire::hello::{Accept, Hello};
use rerail_core::wire::packet::{PacketKind, peek};
use rerail_core::wire::{Address, PublicKey, SessionKeys, Token};
use rerail_core::{
    CompletionLevel, Datagram, EndpointId, Engine, EpId, EventKind, Health, Identity, KeyAgreement,
    KeysUpdate, Locator, Options, PostError, Protocol, RailId, RecvOp, SecretKey, SendOp, Time,
};

const OWN: Token = Token([9; 16]);
const PEER: Token = Token([1; 16]);
const OWN_KEY: PublicKey = PublicKey([3; 32]);
const PEER_KEY: PublicKey = PublicKey([4; 32]);
/// A key that is none.
const NO_KEY: PublicKey = PublicKey([0xee; 32]);

/// Public keys are secrets here, and what two processes agree on is the other's key: so the tests see whose it was.
struct Open;

impl KeyAgreement for Open {
    fn public_key(&self, secret: &SecretKey) -> PublicKey {
        PublicKey(secret.0)
    }

    fn agree(&self, _: &SecretKey, peer: &PublicKey) -> Option<[u8; 32]> {
        (*peer != NO_KEY).then_some(peer.0)
    }
}

struct Process {
    engine: Engine,
    /// What the layer that encrypts was told.
    sessions: Vec<(u64, SecretKey)>,
    now: Time,
}

fn addr(last: u8) -> Locator {
    Locator::ip([10, 0, 0, last].into(), 4000)
}

fn peer(encrypts: bool) -> Address {
    Address { token: PEER, endpoint: 0, encrypts, rails: vec![addr(2)] }
}

fn identity() -> Identity {
    Identity::new(&Open, SecretKey(OWN_KEY.0))
}

/// The session that there is with the peer, if that named this key.
fn session(peer: PublicKey) -> (u64, SecretKey) {
    let keys = SessionKeys::derive(&OWN, &PEER);
    (keys.cid_in, identity().traffic_secret(&keys, &peer).expect("a proper key"))
}

fn process(encrypts: bool) -> Process {
    let (engine, _, _, now) = alone::engine(OWN, Options::default(), encrypts.then(identity));
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

    /// The sessions that are known before anything is sent.
    fn known(&mut self) -> Vec<(u64, SecretKey)> {
        while let Some(update) = self.engine.poll_keys() {
            match update {
                KeysUpdate::Establish { cid_in, secret, .. } => self.sessions.push((cid_in, secret)),
                KeysUpdate::Forget { cid_in, .. } => self.sessions.retain(|s| s.0 != cid_in),
            }
        }
        self.sessions.clone()
    }

    fn events(&mut self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.engine.poll_event()).map(|e| e.kind).collect()
    }
}

fn hello(from: Address, epoch: u32, public_key: Option<PublicKey>) -> Vec<u8> {
    Hello { path: 0, epoch, stream: 0, lane: 0, nonce: [epoch as u8; 16], from, public_key }
        .to_bytes(&OWN)
        .to_vec()
}

fn accept_in(said: &[Vec<u8>]) -> Option<Accept> {
    let keys = SessionKeys::derive(&PEER, &OWN);
    said.iter().find_map(|b| Accept::parse(b, &keys).ok())
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
    let mut p = process(true);
    assert!(p.engine.address(EpId(0)).encrypts, "its address says so");
    p.gets(&hello(peer(true), 2, Some(PEER_KEY)));
    assert_eq!(p.known(), [session(PEER_KEY)]);
    let said = p.says();
    assert_eq!(accept_in(&said).expect("it accepts").public_key, Some(OWN_KEY));
    assert!(said.iter().all(|b| peek(b).is_some_and(|(_, kind)| kind == PacketKind::Accept)));
    // the next epoch, with the same key: nothing new
    p.gets(&hello(peer(true), 4, Some(PEER_KEY)));
    assert_eq!(p.known(), [session(PEER_KEY)]);
}

#[test]
fn who_begins_learns_the_key_from_the_accept_and_says_nothing_else_before() {
    let mut p = process(true);
    let dest = p.engine.endpoint_of(&peer(true));
    let op = empty(dest);
    // SAFETY: there is no memory.
    unsafe { p.engine.send(&op, p.now) }.expect("the send is taken");
    let said = p.says();
    let hello = said.iter().find_map(|b| Hello::parse(b, &PEER).ok()).expect("it says hello");
    assert_eq!((hello.public_key, said.len()), (Some(OWN_KEY), 1));
    let answer = |public_key| {
        Accept { path: hello.path, epoch: hello.epoch, stream: 0, lane: 0, nonce: hello.nonce, public_key }
            .to_bytes(&SessionKeys::derive(&PEER, &OWN))
    };
    for none in [None, Some(NO_KEY)] {
        p.gets(&answer(none));
        assert_eq!((p.known().len(), p.engine.paths()[0].health), (0, Health::Connecting));
    }
    p.gets(&answer(Some(PEER_KEY)));
    assert_eq!((p.known(), p.engine.paths()[0].health), (vec![session(PEER_KEY)], Health::Up));
    assert!(p.says().iter().any(|b| peek(b).is_some_and(|(_, kind)| kind == PacketKind::Data)));
}

#[test]
fn a_second_key_of_one_process_is_refused() {
    let mut p = process(true);
    p.gets(&hello(peer(true), 2, Some(PEER_KEY)));
    p.says();
    let before = p.engine.counters().strangers;
    p.gets(&hello(peer(true), 4, Some(PublicKey([5; 32]))));
    assert_eq!((p.known(), accept_in(&p.says()).is_some()), (vec![session(PEER_KEY)], false));
    assert_eq!(p.engine.counters().strangers, before + 1);
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
        p.gets(&hello(peer(theirs), 2, key));
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
    p.gets(&hello(peer(true), 2, Some(PEER_KEY)));
    p.says();
    let cid = SessionKeys::derive(&OWN, &PEER).cid_in;
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
    p.gets(&hello(peer(true), 2, Some(PEER_KEY)));
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
