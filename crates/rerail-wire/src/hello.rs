//! The authenticated handshake that agrees on an epoch of a path, and attaches a stream to it.
//!
//! A hello proves that its sender knows the target's token, and carries the sender's address and public key (masked), so that the
//! target can answer a process that it does not know yet (hazard H18). A second keyed hash, under the keys of the pair
//! ([`PairKeys`]), proves the sender. For it the sender needs the target's public key, which an accept or a hello of
//! the target contains. An accept is always under the keys of the pair. The same bytes travel as a datagram or as the
//! first bytes of a stream. Both carry a key of the session when the processes encrypt; they themselves are never
//! encrypted, because the keys come from them.
//!
//! | hello | accept | |
//! |---|---|---|
//! | 0..8 | 0..8 | connection id |
//! | 8, 9 | 8, 9 | version, [`PacketKind`] |
//! | 10..12 | 10..12 | path |
//! | 12..16 | 12..16 | epoch |
//! | 16..23 | 16..23 | stream |
//! | 23 | 23 | lane |
//! | 24..40 | 24..40 | nonce (of the hello) |
//! | address | | address of the initiator, masked |
//! | 32 bytes | 32 bytes | public key, masked |
//! | 32 bytes | 32 bytes | key of the session, or zeros |
//! | | 16 bytes | nonce of the acceptor |
//! | 16 bytes | | keyed hash of all before it under the keys of the pair, or zeros: those are not known yet |
//! | 16 bytes | | keyed hash of all before it under the target's token |
//! | | 16 bytes | keyed hash of all before it, and of the hello's key of the session, under the keys of the pair |
//!
//! Replay: epochs of a path only grow between two processes, so an old hello is refused; a hello of the current epoch
//! repeated is answered again and changes nothing. An accept echoes the nonce of the hello it answers.

use crate::WireError;
use crate::address::{ADDRESS_BYTES, Address};
use crate::auth::{KEY_BYTES, MAC_BYTES, PairKeys, PublicKey, Token, mac_equal};
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::packet::PacketKind;
use std::ops::Range;

/// Where the nonce is, in both.
pub const NONCE: Range<usize> = 24..40;
/// Address and public key of the initiator, masked together.
const HELLO_MASKED: Range<usize> = NONCE.end..NONCE.end + ADDRESS_BYTES + KEY_BYTES;
const HELLO_SESSION: Range<usize> = HELLO_MASKED.end..HELLO_MASKED.end + KEY_BYTES;
const HELLO_PROOF: Range<usize> = HELLO_SESSION.end..HELLO_SESSION.end + MAC_BYTES;
const HELLO_MAC: Range<usize> = HELLO_PROOF.end..HELLO_PROOF.end + MAC_BYTES;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = HELLO_MAC.end;
const ACCEPT_MASKED: Range<usize> = NONCE.end..NONCE.end + KEY_BYTES;
const ACCEPT_SESSION: Range<usize> = ACCEPT_MASKED.end..ACCEPT_MASKED.end + KEY_BYTES;
/// Where the nonce of the acceptor is.
pub const ACCEPT_NONCE: Range<usize> = ACCEPT_SESSION.end..ACCEPT_SESSION.end + 16;
const ACCEPT_MAC: Range<usize> = ACCEPT_NONCE.end..ACCEPT_NONCE.end + MAC_BYTES;
/// Bytes of an accept: shorter than a hello, so that it cannot be used to amplify.
pub const ACCEPT_BYTES: usize = ACCEPT_MAC.end;
const _: () = assert!(ACCEPT_BYTES < HELLO_BYTES && HELLO_BYTES <= 256);

/// In the place of the epoch of an accept: the hello had no proof. Send it again with the proof, which the accept makes
/// possible.
pub const EPOCH_PROVE: u32 = u32::MAX;
/// The epoch of a hello without proof is at most this: a hello that any process can send must leave larger ones to the process that it names.
pub const EPOCH_UNPROVED_MAX: u32 = 1 << 28;

/// Epochs are at most this, and numbers of streams at most [`STREAM_MAX`]: a path that reconnects every millisecond
/// reaches it after 24 days. A larger one is invalid: it would leave no larger one to agree on.
pub const EPOCH_MAX: u32 = 1 << 31;
/// See [`EPOCH_MAX`].
pub const STREAM_MAX: u64 = 1 << 55;
/// Most lanes of a path.
pub const LANES_MAX: u8 = 64;
/// Where number and lane of a stream are.
const STREAM: usize = 16;
/// The bit at which the lane begins.
const LANE_SHIFT: u32 = 56;

fn put_stream(b: &mut [u8], stream: u64, lane: u8) {
    put_u64(b, STREAM, stream | u64::from(lane) << LANE_SHIFT);
}

/// Number and lane of the stream, of numbers that an honest process reaches.
fn get_stream(b: &[u8], epoch: u32) -> Result<(u64, u8), WireError> {
    let both = get_u64(b, STREAM);
    let (stream, lane) = (both & ((1 << LANE_SHIFT) - 1), (both >> LANE_SHIFT) as u8);
    if epoch > EPOCH_MAX || stream > STREAM_MAX {
        return Err(WireError::Field("epoch or stream number"));
    }
    // a datagram belongs to no lane but the first
    if lane >= LANES_MAX || (stream == 0 && lane != 0) {
        return Err(WireError::Field("lane"));
    }
    Ok((stream, lane))
}

fn put_key(room: &mut [u8], key: Option<PublicKey>) {
    room.copy_from_slice(&key.map_or([0; KEY_BYTES], |k| k.0));
}

fn nonce_at(b: &[u8], at: Range<usize>) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&b[at]);
    nonce
}

fn mac_at(b: &[u8], at: Range<usize>) -> [u8; MAC_BYTES] {
    nonce_at(b, at)
}

/// What a hello proves of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Nothing: its sender did not know the keys of the pair.
    None,
    /// It is from the process that it names.
    Right,
    /// It is not.
    Wrong,
}

fn get_key(b: &[u8]) -> Option<PublicKey> {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(b);
    (key != [0; KEY_BYTES]).then_some(PublicKey(key))
}

/// Start of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Path that is to be connected.
    pub path: u16,
    /// Epoch that is proposed, or that the stream belongs to.
    pub epoch: u32,
    /// 0: a datagram. Otherwise the number of this stream within the epoch and the lane, counted by the initiator from 1.
    pub stream: u64,
    /// Lane that the stream is for; 0 for a datagram.
    pub lane: u8,
    /// Fresh for each hello.
    pub nonce: [u8; 16],
    /// Address of the initiator (its endpoint index has no meaning here).
    pub from: Address,
    /// Public key of the initiator, of which its token is the hash: the receiver has to check that.
    pub public_key: PublicKey,
    /// Its part of the keys of the session; `None`: it does not encrypt.
    pub session_key: Option<PublicKey>,
}

impl Hello {
    /// The bytes, for the process that holds `target`; with a proof when the keys of the pair are known.
    pub fn to_bytes(&self, target: &Token, keys: Option<&PairKeys>) -> [u8; HELLO_BYTES] {
        let mut b = [0; HELLO_BYTES];
        put_u64(&mut b, 0, target.hello_cid());
        b[8] = crate::VERSION;
        b[9] = PacketKind::Hello as u8;
        put_u16(&mut b, 10, self.path);
        put_u32(&mut b, 12, self.epoch);
        put_stream(&mut b, self.stream, self.lane);
        b[NONCE].copy_from_slice(&self.nonce);
        let (address, key) = b[HELLO_MASKED].split_at_mut(ADDRESS_BYTES);
        address.copy_from_slice(&self.from.to_bytes());
        key.copy_from_slice(&self.public_key.0);
        target.mask_hello(&self.nonce, &mut b[HELLO_MASKED]);
        put_key(&mut b[HELLO_SESSION], self.session_key);
        if let Some(keys) = keys {
            let proof = keys.mac(&[&b[..HELLO_PROOF.start]]);
            b[HELLO_PROOF].copy_from_slice(&proof);
        }
        let mac = target.hello_mac(&b[..HELLO_MAC.start]);
        b[HELLO_MAC].copy_from_slice(&mac);
        b
    }

    /// Parses and checks a hello to the process that holds `own`. This does not prove its sender: see [`Hello::proof`].
    ///
    /// # Errors
    /// Truncated input, version, a hash that does not prove knowledge of `own`, or numbers that no honest process reaches.
    pub fn parse(b: &[u8], own: &Token) -> Result<Self, WireError> {
        if b.len() != HELLO_BYTES {
            return Err(WireError::Truncated { need: HELLO_BYTES, have: b.len() });
        }
        if b[8] != crate::VERSION {
            return Err(WireError::Version(b[8]));
        }
        if b[9] != PacketKind::Hello as u8 {
            return Err(WireError::Field("packet kind"));
        }
        let mac = mac_at(b, HELLO_MAC);
        if get_u64(b, 0) != own.hello_cid() || !mac_equal(&mac, &own.hello_mac(&b[..HELLO_MAC.start])) {
            return Err(WireError::Auth);
        }
        let (stream, lane) = get_stream(b, get_u32(b, 12))?;
        let nonce = nonce_at(b, NONCE);
        let mut masked = [0; ADDRESS_BYTES + KEY_BYTES];
        masked.copy_from_slice(&b[HELLO_MASKED]);
        own.mask_hello(&nonce, &mut masked);
        let (address, key) = masked.split_at(ADDRESS_BYTES);
        Ok(Self {
            path: get_u16(b, 10),
            epoch: get_u32(b, 12),
            stream,
            lane,
            nonce,
            from: Address::parse(address)?,
            public_key: get_key(key).ok_or(WireError::Field("public key"))?,
            session_key: get_key(&b[HELLO_SESSION]),
        })
    }

    /// Whether a hello that was parsed from `b` is from the process that shares `keys` with its receiver.
    pub fn proof(b: &[u8], keys: &PairKeys) -> Proof {
        let (Some(before), Some(_)) = (b.get(..HELLO_PROOF.start), b.get(HELLO_PROOF)) else {
            return Proof::None;
        };
        match mac_at(b, HELLO_PROOF) {
            none if none == [0; MAC_BYTES] => Proof::None,
            proof if mac_equal(&proof, &keys.mac(&[before])) => Proof::Right,
            _ => Proof::Wrong,
        }
    }
}

/// Answer to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// Path, as in the hello.
    pub path: u16,
    /// Epoch that is now agreed. Larger than the proposed one when the acceptor knows of a larger: propose again above.
    pub epoch: u32,
    /// Stream number, as in the hello.
    pub stream: u64,
    /// Lane, as in the hello.
    pub lane: u8,
    /// Nonce of the hello.
    pub nonce: [u8; 16],
    /// Public key of the acceptor, of which its token is the hash: the receiver has to check that.
    pub public_key: PublicKey,
    /// Its part of the keys of the session; `None`: it does not encrypt.
    pub session_key: Option<PublicKey>,
    /// Fresh for each accept.
    pub answer: [u8; 16],
}

impl Accept {
    /// The bytes, from the process that holds `from` to the one that holds `to`, under the keys of the two. `asked`: the key of the session
    /// in the hello.
    pub fn to_bytes(
        &self,
        from: &Token,
        to: &Token,
        keys: &PairKeys,
        asked: Option<&PublicKey>,
    ) -> [u8; ACCEPT_BYTES] {
        let mut b = [0; ACCEPT_BYTES];
        put_u64(&mut b, 0, from.accept_cid(to));
        b[8] = crate::VERSION;
        b[9] = PacketKind::Accept as u8;
        put_u16(&mut b, 10, self.path);
        put_u32(&mut b, 12, self.epoch);
        put_stream(&mut b, self.stream, self.lane);
        b[NONCE].copy_from_slice(&self.nonce);
        b[ACCEPT_MASKED].copy_from_slice(&self.public_key.0);
        from.mask_accept(&self.nonce, &mut b[ACCEPT_MASKED]);
        put_key(&mut b[ACCEPT_SESSION], self.session_key);
        b[ACCEPT_NONCE].copy_from_slice(&self.answer);
        let mac = keys.mac(&[&b[..ACCEPT_MAC.start], &asked.map_or([0; KEY_BYTES], |k| k.0)]);
        b[ACCEPT_MAC].copy_from_slice(&mac);
        b
    }

    /// Parses an accept from the process that holds `from` to the one that holds `to`. Do not trust any of it before
    /// its public key was compared with `from`, and [`Accept::is_proved`].
    ///
    /// # Errors
    /// Truncated input, version, another connection id, or numbers that no honest process reaches.
    pub fn parse(b: &[u8], from: &Token, to: &Token) -> Result<Self, WireError> {
        if b.len() != ACCEPT_BYTES {
            return Err(WireError::Truncated { need: ACCEPT_BYTES, have: b.len() });
        }
        if b[8] != crate::VERSION {
            return Err(WireError::Version(b[8]));
        }
        if b[9] != PacketKind::Accept as u8 {
            return Err(WireError::Field("packet kind"));
        }
        // each direction has its own, and the hash covers it, so an accept cannot be reflected to its sender
        if get_u64(b, 0) != from.accept_cid(to) {
            return Err(WireError::Auth);
        }
        let epoch = get_u32(b, 12);
        let (stream, lane) = get_stream(b, if epoch == EPOCH_PROVE { 0 } else { epoch })?;
        let nonce = nonce_at(b, NONCE);
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&b[ACCEPT_MASKED]);
        from.mask_accept(&nonce, &mut key);
        Ok(Self {
            path: get_u16(b, 10),
            epoch,
            stream,
            lane,
            nonce,
            public_key: get_key(&key).ok_or(WireError::Field("public key"))?,
            session_key: get_key(&b[ACCEPT_SESSION]),
            answer: nonce_at(b, ACCEPT_NONCE),
        })
    }

    /// The path of an accept, unverified.
    pub fn path_of(b: &[u8]) -> Option<u16> {
        (b.len() == ACCEPT_BYTES).then(|| get_u16(b, 10))
    }

    /// Whether an accept that was parsed from `b` is from the process that shares `keys` with its receiver, and answers a hello with
    /// this key of the session.
    pub fn is_proved(b: &[u8], keys: &PairKeys, asked: Option<&PublicKey>) -> bool {
        let (Some(before), Some(_)) = (b.get(..ACCEPT_MAC.start), b.get(ACCEPT_MAC)) else { return false };
        mac_equal(&mac_at(b, ACCEPT_MAC), &keys.mac(&[before, &asked.map_or([0; KEY_BYTES], |k| k.0)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: PublicKey = PublicKey([6; KEY_BYTES]);
    const OTHER: PublicKey = PublicKey([8; KEY_BYTES]);

    fn hello() -> Hello {
        Hello {
            path: 1,
            epoch: 9,
            stream: 0,
            lane: 0,
            nonce: [4; 16],
            from: Address {
                token: Token([1; 16]),
                endpoint: 0,
                encrypts: true,
                rails: vec![rerail_rail::Locator::ip([10, 0, 0, 1].into(), 9)],
            },
            public_key: PublicKey([5; KEY_BYTES]),
            session_key: Some(KEY),
        }
    }

    fn keys(agreed: u8) -> (PairKeys, PairKeys) {
        let agreed = [agreed; 32];
        (PairKeys::derive(&agreed, &KEY, &OTHER), PairKeys::derive(&agreed, &OTHER, &KEY))
    }

    #[test]
    fn only_who_holds_the_token_reads_and_writes_a_hello() {
        let target = Token([2; 16]);
        let b = hello().to_bytes(&target, None);
        assert_eq!(Hello::parse(&b, &target), Ok(hello()));
        assert_eq!(Hello::parse(&b, &Token([3; 16])), Err(WireError::Auth));
        assert!(!b.windows(16).any(|w| w == [1; 16]), "the initiator's token must not travel in clear");
        assert!(!b.windows(16).any(|w| w == [5; 16]), "nor the key of which it is the hash");
        for bit in 0..b.len() * 8 {
            let mut c = b;
            c[bit / 8] ^= 1 << (bit % 8);
            assert!(Hello::parse(&c, &target).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_stream_is_for_a_lane_and_a_datagram_for_none_but_the_first() {
        let target = Token([2; 16]);
        let read = |stream, lane| {
            let h = Hello::parse(&Hello { stream, lane, ..hello() }.to_bytes(&target, None), &target)?;
            Ok((h.stream, h.lane))
        };
        assert_eq!(read(STREAM_MAX, LANES_MAX - 1), Ok((STREAM_MAX, LANES_MAX - 1)));
        assert_eq!(read(1, LANES_MAX), Err(WireError::Field("lane")));
        assert_eq!(read(0, 1), Err(WireError::Field("lane")));
        assert_eq!(read(STREAM_MAX + 1, 0), Err(WireError::Field("epoch or stream number")));
    }

    #[test]
    fn only_one_of_the_pair_proves_who_a_hello_is_from() {
        let target = Token([2; 16]);
        let (ours, theirs) = keys(1);
        let (third, _) = keys(2);
        let plain = hello().to_bytes(&target, None);
        assert_eq!(Hello::proof(&plain, &theirs), Proof::None);
        let proved = hello().to_bytes(&target, Some(&ours));
        assert_eq!(Hello::parse(&proved, &target), Ok(hello()));
        assert_eq!(Hello::proof(&proved, &theirs), Proof::Right);
        assert_eq!(Hello::proof(&proved, &third), Proof::Wrong);
    }

    #[test]
    fn what_speaks_another_version_is_refused_with_one_sentence() {
        let target = Token([2; 16]);
        let mut b = hello().to_bytes(&target, None);
        for version in [1, crate::VERSION - 1, crate::VERSION + 1] {
            b[8] = version;
            let said = Hello::parse(&b, &target).unwrap_err().to_string();
            let own = crate::VERSION;
            assert_eq!(
                said,
                format!("protocol version {version} is not supported (this build speaks {own})")
            );
        }
    }

    fn accept() -> Accept {
        Accept {
            path: 1,
            epoch: 2,
            stream: 7,
            lane: 63,
            nonce: [5; 16],
            public_key: KEY,
            session_key: Some(OTHER),
            answer: [9; 16],
        }
    }

    #[test]
    fn an_accept_is_believed_from_the_pair_only_and_cannot_be_reflected() {
        let (a, b) = (Token([1; 16]), Token([2; 16]));
        let (ours, theirs) = keys(1);
        let asked = Some(&KEY);
        let bytes = accept().to_bytes(&b, &a, &theirs, asked);
        assert_eq!(Accept::parse(&bytes, &b, &a), Ok(accept()));
        assert_eq!(Accept::parse(&bytes, &a, &b), Err(WireError::Auth), "reflected");
        assert!(
            !bytes.windows(16).any(|w| w == [6; 16]),
            "the key of which the token is the hash must not travel in clear"
        );
        assert!(Accept::is_proved(&bytes, &ours, asked));
        assert!(!Accept::is_proved(&bytes, &keys(2).0, asked), "a third");
        assert!(!Accept::is_proved(&bytes, &ours, Some(&OTHER)), "of another hello");
        for bit in 0..bytes.len() * 8 {
            let mut c = bytes;
            c[bit / 8] ^= 1 << (bit % 8);
            assert!(Accept::parse(&c, &b, &a).is_err() || !Accept::is_proved(&c, &ours, asked), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(b in proptest::collection::vec(any::<u8>(), 0..256)) {
            let (a, own) = (Token([1; 16]), Token([0; 16]));
            let _ = Hello::parse(&b, &own);
            let _ = Hello::proof(&b, &keys(1).0);
            let _ = Accept::parse(&b, &a, &own);
            let _ = Accept::is_proved(&b, &keys(1).0, None);
        }
    }
}
