//! A message that was sent in full is announced afterwards: the stream it went over is gone, its acknowledgement never came, and
//! datagrams are too short for it. The receiver, which has had it all along, must say so, or the sender waits for a grant for ever.

use rerail_core::wire::hello::Hello;
use rerail_core::wire::packet::{PACKET_HEADER_BYTES, PacketHeader, PacketKind};
use rerail_core::wire::{Address, Coverage, FrameHeader, FrameType, SessionKeys, Token};
use rerail_core::{Datagram, Engine, EngineConfig, LocalRail, Options, RailId, Remedies, Time};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const OWN: Token = Token([9; 16]);
const PEER: Token = Token([1; 16]);
const EPOCH: u32 = 103;
const FRAME_HEADER_BYTES: usize = 48;

fn addr(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

struct Receiver {
    engine: Engine,
    now: Time,
    number: u64,
}

impl Receiver {
    fn new() -> Self {
        let rail = LocalRail {
            name: "eth0".into(),
            addr: addr(1),
            prefix_bits: 24,
            speed_mbps: 1000,
            mtu: 1500,
            up: true,
        };
        let config = EngineConfig {
            token: OWN,
            port: 4000,
            rails: vec![rail],
            options: Options::default(),
            encryption: None,
            seed: 1,
            host: 1,
            boot: 1,
            remedies: Remedies::default(),
        };
        let now = Time(1_000_000_000);
        let mut engine = Engine::new(config, now).expect("a valid configuration");
        let cq = engine.open_cq(16);
        engine.open_endpoint(cq, cq);
        let mut r = Self { engine, now, number: 0 };
        let from = Address { token: PEER, port: 4000, endpoint: 0, encrypts: false, rails: vec![addr(2)] };
        r.engine.endpoint_of(&from);
        let hello = Hello { path: 0, epoch: EPOCH, stream: 0, nonce: [1; 16], from, public_key: None };
        r.gets(&hello.to_bytes(&OWN));
        r
    }

    fn gets(&mut self, bytes: &[u8]) {
        self.engine.handle_datagram(RailId(0), SocketAddr::from((addr(2), 4000)), bytes, self.now);
    }

    /// A packet with one frame arrives.
    fn frame(&mut self, h: FrameHeader, payload: &[u8]) {
        let mut b = vec![0; PACKET_HEADER_BYTES + FRAME_HEADER_BYTES];
        h.write(&mut b[PACKET_HEADER_BYTES..]);
        b.extend_from_slice(payload);
        let cid = SessionKeys::derive(&PEER, &OWN).cid_out;
        let (kind, number, coverage) = (PacketKind::Data, self.number, Coverage::Full);
        PacketHeader { cid, kind, path: 0, epoch: EPOCH, number, flags: 0, entries: 0, coverage }
            .seal(&mut b);
        self.number += 1;
        self.gets(&b);
    }

    /// Frames that are said within a while, by kind, sequence number and what is granted.
    fn says(&mut self) -> Vec<(FrameType, u64, u64)> {
        let mut all = vec![];
        let mut out = Datagram::default();
        for _ in 0..20 {
            self.now = self.now + Duration::from_millis(1);
            self.engine.handle_timeout(self.now);
            while self.engine.poll_action().is_some() {}
            while self.engine.poll_datagram(self.now, &mut out) {
                let Ok((h, mut rest)) = PacketHeader::parse(&out.bytes) else { continue };
                while h.kind == PacketKind::Data && !rest.is_empty() {
                    let f = FrameHeader::parse(rest).expect("our own frame");
                    all.push((f.kind, f.seq, f.total));
                    rest = &rest[FRAME_HEADER_BYTES + f.len as usize..];
                }
            }
        }
        all
    }
}

#[test]
fn who_announces_what_has_arrived_in_full_is_told_so() {
    let mut r = Receiver::new();
    let eager = FrameHeader { seq: 0, total: 5, len: 5, x: 65_536, ..FrameHeader::new(FrameType::Eager) };
    r.frame(eager, b"hello");
    assert!(!r.says().iter().any(|f| f.0 == FrameType::Cts), "nobody has asked for a grant");
    // no receive is posted: the payload waits here
    r.frame(FrameHeader { kind: FrameType::Rts, len: 0, ..eager }, b"");
    let said = r.says();
    assert!(said.contains(&(FrameType::Cts, 0, 0)), "granted nothing more, so it is done: {said:?}");
}
