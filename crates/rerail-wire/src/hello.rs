//! The authenticated handshake that agrees on an epoch of a path, and attaches a stream to it.
//!
//! A hello proves that its sender knows the target's token, and carries the sender's own address (masked), so that the
//! target can answer a process it has never heard of (hazard H18). An accept proves knowledge of both tokens. The same
//! bytes travel as a datagram or as the first bytes of a stream. Both carry the public key of their sender, under the
//! keyed hash, when the processes encrypt; they themselves are never encrypted, because the keys come from them.
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
//! | 40..96 | | address of the initiator, masked |
//! | 96..128 | 40..72 | public key, or zeros |
//! | 128..144 | 72..88 | keyed hash of all before it |
//!
//! Replay: epochs of a path only grow between two processes, so an old hello is refused; a hello of the current epoch
//! repeated is answered again and changes nothing. An accept echoes the nonce of the hello it answers.

use crate::WireError;
use crate::address::{ADDRESS_BYTES, Address};
use crate::auth::{KEY_BYTES, MAC_BYTES, PublicKey, SessionKeys, Token, mac_equal};
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::packet::PacketKind;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 144;
/// Bytes of an accept: shorter than a hello, so that nobody can use it to amplify.
pub const ACCEPT_BYTES: usize = 88;
/// Where the nonce is, in both.
pub const NONCE: std::ops::Range<usize> = 24..40;
const HELLO_KEY: usize = 96;
const HELLO_MAC: usize = HELLO_KEY + KEY_BYTES;
const ACCEPT_KEY: usize = 40;
const ACCEPT_MAC: usize = ACCEPT_KEY + KEY_BYTES;
const _: () = assert!(HELLO_MAC + MAC_BYTES == HELLO_BYTES && ACCEPT_MAC + MAC_BYTES == ACCEPT_BYTES);

/// Epochs are at most this, and numbers of streams at most [`STREAM_MAX`]: a path that is connected anew every millisecond
/// reaches it after 24 days. Whoever names a larger one lies, and would leave no larger one to agree on.
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
fn get_stream(b: &[u8]) -> Result<(u64, u8), WireError> {
    let both = get_u64(b, STREAM);
    let (stream, lane) = (both & ((1 << LANE_SHIFT) - 1), (both >> LANE_SHIFT) as u8);
    if get_u32(b, 12) > EPOCH_MAX || stream > STREAM_MAX {
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
    /// For encryption; `None`: the initiator does not encrypt.
    pub public_key: Option<PublicKey>,
}

impl Hello {
    /// The bytes, for the process that holds `target`.
    pub fn to_bytes(&self, target: &Token) -> [u8; HELLO_BYTES] {
        let mut b = [0; HELLO_BYTES];
        put_u64(&mut b, 0, target.hello_cid());
        b[8] = crate::VERSION;
        b[9] = PacketKind::Hello as u8;
        put_u16(&mut b, 10, self.path);
        put_u32(&mut b, 12, self.epoch);
        put_stream(&mut b, self.stream, self.lane);
        b[NONCE].copy_from_slice(&self.nonce);
        let mut blob = self.from.to_bytes();
        target.mask(&self.nonce, &mut blob);
        b[40..96].copy_from_slice(&blob);
        put_key(&mut b[HELLO_KEY..HELLO_MAC], self.public_key);
        let mac = target.hello_mac(&b[..HELLO_MAC]);
        b[HELLO_MAC..].copy_from_slice(&mac);
        b
    }

    /// Parses and checks a hello to the process that holds `own`.
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
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&b[HELLO_MAC..]);
        if get_u64(b, 0) != own.hello_cid() || !mac_equal(&mac, &own.hello_mac(&b[..HELLO_MAC])) {
            return Err(WireError::Auth);
        }
        let (stream, lane) = get_stream(b)?;
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&b[NONCE]);
        let mut blob = [0; ADDRESS_BYTES];
        blob.copy_from_slice(&b[40..96]);
        own.mask(&nonce, &mut blob);
        Ok(Self {
            path: get_u16(b, 10),
            epoch: get_u32(b, 12),
            stream,
            lane,
            nonce,
            from: Address::parse(&blob)?,
            public_key: get_key(&b[HELLO_KEY..HELLO_MAC]),
        })
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
    /// For encryption; `None`: the acceptor does not encrypt.
    pub public_key: Option<PublicKey>,
}

impl Accept {
    /// The bytes, under the keys of the pair.
    pub fn to_bytes(&self, keys: &SessionKeys) -> [u8; ACCEPT_BYTES] {
        let mut b = [0; ACCEPT_BYTES];
        put_u64(&mut b, 0, keys.cid_out);
        b[8] = crate::VERSION;
        b[9] = PacketKind::Accept as u8;
        put_u16(&mut b, 10, self.path);
        put_u32(&mut b, 12, self.epoch);
        put_stream(&mut b, self.stream, self.lane);
        b[NONCE].copy_from_slice(&self.nonce);
        put_key(&mut b[ACCEPT_KEY..ACCEPT_MAC], self.public_key);
        let mac = keys.mac(&b[..ACCEPT_MAC]);
        b[ACCEPT_MAC..].copy_from_slice(&mac);
        b
    }

    /// Parses and checks an accept.
    ///
    /// # Errors
    /// Truncated input, version, a hash that proves nothing, or numbers that no honest process reaches.
    pub fn parse(b: &[u8], keys: &SessionKeys) -> Result<Self, WireError> {
        if b.len() != ACCEPT_BYTES {
            return Err(WireError::Truncated { need: ACCEPT_BYTES, have: b.len() });
        }
        if b[8] != crate::VERSION {
            return Err(WireError::Version(b[8]));
        }
        if b[9] != PacketKind::Accept as u8 {
            return Err(WireError::Field("packet kind"));
        }
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&b[ACCEPT_MAC..]);
        // the hash covers the direction's connection id, so an accept cannot be reflected to its sender
        if get_u64(b, 0) != keys.cid_in || !mac_equal(&mac, &keys.mac(&b[..ACCEPT_MAC])) {
            return Err(WireError::Auth);
        }
        let (stream, lane) = get_stream(b)?;
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&b[NONCE]);
        Ok(Self {
            path: get_u16(b, 10),
            epoch: get_u32(b, 12),
            stream,
            lane,
            nonce,
            public_key: get_key(&b[ACCEPT_KEY..ACCEPT_MAC]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            public_key: Some(PublicKey([6; KEY_BYTES])),
        }
    }

    #[test]
    fn only_who_holds_the_token_reads_and_writes_a_hello() {
        let target = Token([2; 16]);
        let b = hello().to_bytes(&target);
        assert_eq!(Hello::parse(&b, &target), Ok(hello()));
        assert_eq!(Hello::parse(&b, &Token([3; 16])), Err(WireError::Auth));
        assert!(!b.windows(16).any(|w| w == [1; 16]), "the initiator's token must not travel in clear");
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
            let h = Hello::parse(&Hello { stream, lane, ..hello() }.to_bytes(&target), &target)?;
            Ok((h.stream, h.lane))
        };
        assert_eq!(read(STREAM_MAX, LANES_MAX - 1), Ok((STREAM_MAX, LANES_MAX - 1)));
        assert_eq!(read(1, LANES_MAX), Err(WireError::Field("lane")));
        assert_eq!(read(0, 1), Err(WireError::Field("lane")));
        assert_eq!(read(STREAM_MAX + 1, 0), Err(WireError::Field("epoch or stream number")));
    }

    #[test]
    fn an_accept_cannot_be_reflected() {
        let (a, b) = (Token([1; 16]), Token([2; 16]));
        let (ka, kb) = (SessionKeys::derive(&a, &b), SessionKeys::derive(&b, &a));
        let acc = Accept { path: 1, epoch: 2, stream: 7, lane: 63, nonce: [5; 16], public_key: None };
        let bytes = acc.to_bytes(&kb);
        assert_eq!(Accept::parse(&bytes, &ka), Ok(acc));
        assert_eq!(Accept::parse(&bytes, &kb), Err(WireError::Auth));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_without_panic(b in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = Hello::parse(&b, &Token([0; 16]));
            let _ = Accept::parse(&b, &SessionKeys::derive(&Token([0; 16]), &Token([1; 16])));
        }
    }
}
