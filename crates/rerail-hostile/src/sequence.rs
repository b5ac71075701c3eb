//! Whole conversations with a third party in them.
//!
//! The first byte says how bulk travels, and how long and large it all may get: in seven of eight values [`Pace::brief`],
//! because a fuzzer finds more in ten short conversations than in a long one; in one of eight as large as in life, for seconds;
//! in one of 128 for as long as it says, because minutes of virtual time cost as much as a hundred short conversations. The
//! rest is a list of steps, chosen by a byte each; what a step needs is taken from the bytes behind it. Both targets use the
//! same two engines and the same honest traffic; they differ in what the third party knows.
//!
//! Where the first byte has the bit [`AIMED`], the insider also makes frames that fit the moment: the next message of the
//! sequence, orders on regions that are registered, answers to operations that were posted, messages of groups that are
//! being made. Random numbers alone reach little of what lies behind the sequence.

use crate::draw::Draw;
use crate::net::{Connection, Flight, Net, PORT, REGION_BYTES, rail_addr};
use crate::parsers::sealed;
use arbitrary::Unstructured;
use rerail_core::{CloseReason, CompletionLevel, Health, Identity, Locator};
use rerail_wire::ack::{RANGE_BYTES, RANGES_MAX};
use rerail_wire::bulk::{BULK_HEADER_BYTES, BulkHeader};
use rerail_wire::bytes::{put_u16, put_u32, put_u64};
use rerail_wire::config::{NodeConfig, RailConfig};
use rerail_wire::frame::{FRAME_HEADER_BYTES, FRAME_PAYLOAD_MAX, flags};
use rerail_wire::hello::{Accept, Hello};
use rerail_wire::onesided::{Order, OrderKind, OrderPiece};
use rerail_wire::packet::{PACKET_HEADER_BYTES, PING_UNANSWERED, PacketHeader, PacketKind};
use rerail_wire::stream::{STREAM_HEADER_BYTES, Trailer};
use rerail_wire::{Address, Coverage, FrameHeader, FrameType, Token, crc32c_append};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps of one conversation at most: what matters happens early, and speed finds more than length.
const STEPS_MAX: usize = 48;
/// Bit of the first byte: the insider aims.
const AIMED: u8 = 0x10;
/// Granule of the messages that the insider announces.
const GRANULE: usize = 4096;
/// Regions of a host at most. The third party knows their keys: 1, 2, …
const REGIONS_MAX: usize = 3;
/// Ids of orders that the third party uses.
const IDS: usize = 3;
/// Messages that it remembers to have announced.
const ANNOUNCED_MAX: usize = 4;
/// How long and large a conversation may get.
struct Pace {
    /// Bytes of a fragment, as the option.
    fragment: &'static str,
    /// Sizes of messages: around every limit of the engine.
    sizes: [usize; 10],
    /// Time that the honest may let pass between steps, in all.
    waits: Duration,
    /// Time that passes after the last step, when nothing has to be delivered.
    end: Duration,
}

impl Pace {
    fn whole() -> Self {
        Self {
            fragment: "65536",
            sizes: [0, 1, 100, 1024, 1025, 1400, 9000, 65_536, 65_537, 150_000],
            waits: Duration::from_secs(3),
            end: Duration::from_millis(500),
        }
    }

    fn long() -> Self {
        Self { waits: Duration::MAX, end: Duration::from_secs(3), ..Self::whole() }
    }

    /// Fragments are small, so that few bytes are many of them; time is enough for every timer of a path to run out twice.
    fn brief() -> Self {
        Self {
            fragment: "4096",
            sizes: [0, 1, 100, 1024, 1025, 1400, 4096, 4097, 9000, 20_000],
            waits: Duration::from_millis(600),
            end: Duration::from_millis(200),
        }
    }
}
/// Operations of each kind that one host posts.
const OPERATIONS_MAX: u32 = 6;

struct Story<'a> {
    net: Net,
    pace: Pace,
    u: Unstructured<'a>,
    sends: [u32; 2],
    receives: [u32; 2],
    /// One-sided and collective operations posted by each host.
    asks: [u32; 2],
    /// Packet numbers and frame numbers that the third party uses next.
    number: u64,
    /// The third party makes frames that fit the moment.
    aims: bool,
    /// What it has announced, newest first: number and bytes.
    announced: Vec<(u64, usize)>,
}

impl<'a> Draw<'a> for Story<'a> {
    fn input(&mut self) -> &mut Unstructured<'a> {
        &mut self.u
    }
}

impl<'a> Story<'a> {
    fn new(b: &'a [u8]) -> Self {
        let (first, rest) = b.split_first().unwrap_or((&0, b));
        let pace = match first & 0xfe {
            0xf0 => Pace::long(),
            x if x & 0b1110 == 0 => Pace::whole(),
            _ => Pace::brief(),
        };
        // Every conversation begins with two engines that have connected, which takes longer than what a short input does to
        // them: a clone saves it.
        thread_local!(static CONNECTED: RefCell<BTreeMap<(&'static str, &'static str), Net>> = const { RefCell::new(BTreeMap::new()) });
        let begin = (["tcp", "udp"][usize::from(first & 1)], pace.fragment);
        let net = CONNECTED.with_borrow_mut(|known| {
            known.entry(begin).or_insert_with(|| Net::connected(begin.0, begin.1)).clone()
        });
        Self {
            net,
            pace,
            u: Unstructured::new(rest),
            sends: [0; 2],
            receives: [0; 2],
            asks: [0; 2],
            number: 1 << 20,
            aims: first & AIMED != 0,
            announced: Vec::new(),
        }
    }

    /// A number near those that matter.
    fn number(&mut self) -> u64 {
        let fine = u64::from(self.byte());
        match fine & 7 {
            0 => 0,
            1 => fine >> 3,
            2 => u64::from(self.u.arbitrary::<u16>().unwrap_or(0)),
            3 => u64::from(self.u.arbitrary::<u32>().unwrap_or(0)),
            4 => self.u.arbitrary().unwrap_or(0),
            5 => u64::MAX - (fine >> 3),
            6 => (fine >> 3) * 65_536,
            _ => (1 << 48) - (fine >> 3),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let n = usize::from(self.u.arbitrary::<u16>().unwrap_or(0)) % (most + 1);
        let n = n.min(self.u.len());
        self.u.bytes(n).unwrap_or_default().to_vec()
    }

    /// The part of the honest.
    fn honest(&mut self, what: u8) {
        let host = self.below(2);
        match what {
            0 if self.sends[host] < OPERATIONS_MAX => {
                self.sends[host] += 1;
                let size = self.pace.sizes[self.below(10)];
                let level = match self.byte() & 3 {
                    1 => CompletionLevel::Delivered,
                    3 => CompletionLevel::Matched,
                    _ => CompletionLevel::Buffered,
                };
                self.net.send(host, size, level);
            }
            1 if self.receives[host] < OPERATIONS_MAX => {
                self.receives[host] += 1;
                let size = self.pace.sizes[self.below(10)];
                self.net.receive(host, size);
            }
            2 => self.net.work(),
            _ => {
                let time = [1, 2, 5, 7, 20, 50, 160, 400, 1100, 2100][self.below(10)];
                let time = Duration::from_millis(time).min(self.pace.waits);
                self.pace.waits -= time;
                self.net.settle(time, |_| false);
            }
        }
    }

    /// What any attacker on the path can do: lose, repeat, delay, send back, break.
    fn network(&mut self, what: u8) {
        match what {
            0 => {
                let n = self.below(self.net.captured.len());
                let Some(mut f) = self.net.captured.get(n).cloned() else { return };
                match self.byte() % 4 {
                    // to the other rail, to its own sender, in another's name
                    1 => f.rail ^= 1,
                    2 => f.to ^= 1,
                    3 => f.from = Locator::ip([10, 77, 0, 1].into(), 77),
                    _ => {}
                }
                self.net.arrive(&f);
            }
            1 => {
                // at most three bits: what CRC32C is sure to notice at these lengths (Koopman 2002, table 1)
                let n = self.below(self.net.captured.len());
                let Some(mut f) = self.net.captured.get(n).cloned() else { return };
                for _ in 0..=self.below(3) {
                    let at = usize::from(self.u.arbitrary::<u16>().unwrap_or(0)) % (f.bytes.len() * 8);
                    f.bytes[at / 8] ^= 1 << (at % 8);
                }
                if !self.net.captured.iter().any(|c| c.bytes == f.bytes) {
                    self.net.arrive(&f);
                }
            }
            2 => {
                let n = self.below(self.net.captured.len());
                let Some(mut f) = self.net.captured.get(n).cloned() else { return };
                let len = usize::from(self.u.arbitrary::<u16>().unwrap_or(0)) % f.bytes.len();
                f.bytes.truncate(len);
                self.net.arrive(&f);
            }
            3 => {
                let n = self.below(self.net.connections.len());
                let reason = [CloseReason::Reset, CloseReason::Eof][self.below(2)];
                self.net.cut(n, reason);
            }
            _ => {
                let to = self.below(2);
                let rail = self.below(2) as u8;
                let mut bytes = self.bytes(1500);
                if self.byte() & 1 == 1 {
                    bytes = sealed(&bytes).unwrap_or(bytes);
                }
                if !self.net.knows_a_secret(&bytes) {
                    let from = Locator::ip([10, 77, 0, 1].into(), 77);
                    self.net.arrive(&Flight { to, rail, from, bytes });
                }
            }
        }
    }

    /// Connections of strangers: silent ones, garbage, and what was captured from others.
    fn stray(&mut self, host: usize) {
        let rail = self.below(2) as u8;
        let n = self.net.stray(host, rail, Locator::ip([10, 77, 0, 1].into(), 77));
        let bytes = match self.byte() % 3 {
            0 => Vec::new(),
            1 => self.bytes(400),
            _ => {
                let n = self.below(self.net.captured.len());
                self.net.captured.get(n).map(|f| f.bytes.clone()).unwrap_or_default()
            }
        };
        if !self.net.knows_a_secret(&bytes) || self.net.captured.iter().any(|f| f.bytes == bytes) {
            self.net.connections[n].pipes[1].extend(&bytes);
        }
    }

    // ---- with the keys -----------------------------------------------------------------------------------------

    /// Path and epoch as host 0 has them, or nearly.
    fn path(&mut self) -> (u16, u32) {
        let paths = self.net.hosts[0].engine.paths();
        let n = self.below(paths.len());
        let p = &paths[n];
        match self.byte() % 8 {
            0 => (self.number() as u16, p.epoch.0),
            1 => (p.path.0, self.number() as u32),
            2 => (p.path.0, p.epoch.0.wrapping_add(u32::from(self.byte()))),
            _ => (p.path.0, p.epoch.0),
        }
    }

    fn frame(&mut self) -> (FrameHeader, Vec<u8>) {
        let mut b = [0u8; FRAME_HEADER_BYTES];
        // the kinds that there are, and some beyond
        b[0] = self.byte() % 24;
        // without aims as it was before there were one-sided and collective frames
        b[1] = self.byte() & if self.aims { flags::ALL } else { 15 };
        let (dst, src, aux) = (self.number() as u16, self.number() as u16, self.number() as u16);
        put_u16(&mut b, 2, dst);
        put_u16(&mut b, 4, src);
        put_u16(&mut b, 6, aux);
        for at in [8, 16, 24, 32] {
            let v = self.number();
            put_u64(&mut b, at, v);
        }
        let (path, epoch) = self.path();
        let x = [65_536, 4096, self.number() as u32, 0][self.below(4)];
        put_u32(&mut b, 44, x);
        let beside = (FrameType::Key as u8..=FrameType::Left as u8).contains(&b[0]);
        let payload = match self.byte() % 4 {
            _ if beside => Vec::new(),
            0 => Vec::new(),
            1 => vec![0x5a; [1, 100, 1024, 4096, FRAME_PAYLOAD_MAX][self.below(5)]],
            2 => {
                // ranges of an acknowledgement
                let n = self.below(RANGES_MAX + 2);
                let mut v = vec![0; n * RANGE_BYTES];
                for c in v.chunks_exact_mut(4) {
                    let x = self.number() as u32;
                    put_u32(c, 0, x);
                }
                v
            }
            _ => self.bytes(300),
        };
        put_u32(&mut b, 40, payload.len() as u32);
        if b[0] == FrameType::Placed as u8 {
            let total = [FRAME_PAYLOAD_MAX as u64, 4096, 1024, self.number()][self.below(4)];
            put_u64(&mut b, 32, total);
        } else if self.byte() & 1 == 1 {
            put_u64(&mut b, 32, payload.len() as u64);
        }
        if (FrameType::Fence as u8..=FrameType::Left as u8).contains(&b[0]) {
            // a stream of now, or of some time
            put_u16(&mut b, 6, path);
            put_u64(&mut b, 16, u64::from(epoch));
            let number = self.byte() & 7;
            put_u64(&mut b, 24, number.into());
            let lane = self.lane();
            put_u32(&mut b, 44, lane.into());
        }
        if b[0] == 5 {
            let (channel, lane) = (u64::from(self.byte() & 1), u64::from(self.lane()));
            put_u64(&mut b, 24, u64::from(epoch) << 32 | lane << 24 | channel << 16 | u64::from(path));
        }
        let h = FrameHeader::parse(&b).unwrap_or(FrameHeader {
            len: payload.len() as u32,
            x: 4096,
            ..FrameHeader::new(FrameType::Rts)
        });
        (h, payload)
    }

    /// A lane of a path, or one that no path here has.
    fn lane(&mut self) -> u8 {
        [0, 0, 1, 1, 1, 2, 63, 64][self.below(8)]
    }

    /// Mostly what was agreed.
    fn coverage(&mut self) -> Coverage {
        match self.byte() & 15 {
            0 => Coverage::None,
            1 => Coverage::Header,
            _ => Coverage::Full,
        }
    }

    fn packet_number(&mut self) -> u64 {
        self.number += 1;
        if self.byte() & 7 == 0 { self.number() } else { self.number }
    }

    fn forge_datagram(&mut self) {
        let (path, epoch) = self.path();
        let kind = [PacketKind::Data, PacketKind::Data, PacketKind::Ping, PacketKind::Pong, PacketKind::Bulk]
            [self.below(5)];
        let mut bytes = vec![0; PACKET_HEADER_BYTES];
        let mut entries = 0;
        let (mut frames, mut payloads) = (Vec::new(), Vec::new());
        match kind {
            PacketKind::Data => {
                for _ in 0..=self.below(3) {
                    let (h, payload) = self.frame();
                    append(&mut bytes, &h, &payload);
                    frames.push(h);
                    payloads.push(payload);
                }
            }
            PacketKind::Bulk => {
                let (seq, at) = (self.number(), self.number() & ((1 << 48) - 1));
                let piece = vec![0x5a; 1 + [0, 99, 1023, 1399, 4095][self.below(5)]];
                bytes.resize(PACKET_HEADER_BYTES + BULK_HEADER_BYTES, 0);
                BulkHeader { seq, at, len: piece.len() as u16 }.write(&mut bytes[PACKET_HEADER_BYTES..]);
                bytes.extend(piece);
                bytes.resize(bytes.len() + self.below(3), 0);
            }
            PacketKind::Ping => {
                let pad = self.below(4) * 16;
                bytes.resize(PACKET_HEADER_BYTES + pad, 0);
            }
            _ => {
                entries = self.below(18) as u8;
                for _ in 0..usize::from(entries) * 2 {
                    let v = self.number();
                    bytes.extend(v.to_le_bytes());
                }
            }
        }
        let flag = if kind == PacketKind::Ping { PING_UNANSWERED } else { 1 };
        let (number, flags) = (self.packet_number(), flag * (self.byte() & 1));
        let cid = self.net.keys.cid_out;
        let coverage = if kind.carries_data() { self.coverage() } else { Coverage::Full };
        PacketHeader { cid, kind, path, epoch, number, flags, entries, coverage }.seal(&mut bytes);
        let rail = self.below(2) as u8;
        let f = Flight { to: 0, rail, from: rail_addr(1, rail).with_service(50_000), bytes };
        self.net.arrive_forged(&f, &frames, &payloads);
    }

    fn forge_stream_bytes(&mut self) {
        let n = self.below(self.net.connections.len());
        let Some(end) = self
            .net
            .connections
            .get(n)
            .and_then(|c| c.ends.iter().position(|e| e.is_some_and(|(host, _)| host == 0)))
        else {
            return;
        };
        let (h, payload) = self.frame();
        let number = self.packet_number();
        let mut bytes = vec![0; STREAM_HEADER_BYTES];
        let coverage = self.coverage();
        rerail_wire::stream::write_header(&mut bytes, number, &h, coverage);
        bytes.extend(&payload);
        let valid = self.byte() & 3 != 0;
        let crc = crc32c_append(0, &payload) ^ u32::from(self.byte() & 7 == 1);
        bytes.extend(Trailer { crc, valid }.to_bytes());
        if self.byte() & 7 == 1 {
            // only a part of it, and perhaps never the rest
            let part = usize::from(self.u.arbitrary::<u16>().unwrap_or(0)) % bytes.len();
            bytes.truncate(part);
        }
        self.net.connections[n].pipes[end].extend(&bytes);
        self.net.read_forged(n, end, &h, &payload);
    }

    fn forge_hello(&mut self) {
        let (path, epoch) = self.path();
        let stream = if self.byte() & 1 == 1 { self.number() } else { 0 };
        let lane = if stream > 0 { self.lane() } else { 0 };
        let other = self.byte() & 1 == 1;
        let token = if other { Token([self.byte() & 0x7f; 16]) } else { self.net.hosts[1].token };
        let away = Locator::ip([10, 66, 0, self.byte() & 3].into(), PORT);
        let rails = if other { vec![away] } else { vec![rail_addr(1, 0), rail_addr(1, 1)] };
        let mut nonce = [0; 16];
        nonce[0] = self.byte();
        let from = Address { token, endpoint: 0, encrypts: false, rails };
        let identity = Identity::toy(token);
        let public_key = identity.public_key();
        let target = self.net.hosts[0].token;
        let proof = match self.byte() & 3 {
            0 => None,
            // of another pair
            1 => Identity::toy(Token([0x77; 16])).pair(&Identity::toy(target).public_key()),
            _ => identity.pair(&Identity::toy(target).public_key()),
        };
        let session_key = (self.byte() & 15 == 1).then_some(public_key);
        let bytes = Hello { path, epoch, stream, lane, nonce, from, public_key, session_key }
            .to_bytes(&target, proof.as_ref())
            .to_vec();
        let rail = self.below(2) as u8;
        let source = Locator::ip([10, 77, 0, 1].into(), 77);
        if other {
            self.net.strangers.entry(away).or_default().0 += bytes.len() as u64;
        }
        if self.byte() & 1 == 1 {
            let n = self.net.stray(0, rail, source);
            self.net.connections[n].pipes[1].extend(&bytes);
        } else {
            self.net.arrive(&Flight { to: 0, rail, from: source, bytes });
        }
    }

    fn forge_accept(&mut self) {
        let (path, epoch) = self.path();
        let (stream, mut nonce) = (self.number(), [0; 16]);
        let lane = if stream > 0 { self.lane() } else { 0 };
        // the nonce of a hello that is under way, when one was captured
        let n = self.below(self.net.captured.len());
        if let Some(seen) = self.net.captured.get(n).and_then(|f| f.bytes.get(24..40)) {
            nonce.copy_from_slice(seen);
        }
        let [to, from] = [self.net.hosts[0].token, self.net.hosts[1].token];
        let public_key = Identity::toy(from).public_key();
        let session_key = (self.byte() & 15 == 1).then_some(public_key);
        let bytes = Accept { path, epoch, stream, lane, nonce, public_key, session_key, answer: [0; 16] }
            .to_bytes(&from, &to, &self.net.keys, None)
            .to_vec();
        let rail = self.below(2) as u8;
        self.net.arrive(&Flight { to: 0, rail, from: rail_addr(1, rail).with_service(50_000), bytes });
    }

    // ---- aimed: frames that fit the moment ---------------------------------------------------------------------

    /// A frame in a packet of its own, over a path that carries.
    fn arrive(&mut self, h: FrameHeader, payload: Vec<u8>) {
        let paths = self.net.hosts[0].engine.paths();
        let Some(p) = paths.iter().find(|p| p.health == Health::Up).or(paths.first()) else { return };
        let (path, epoch, rail) = (p.path.0, p.epoch.0, p.rail.0);
        let h = FrameHeader { len: payload.len() as u32, ..h };
        let mut bytes = vec![0; PACKET_HEADER_BYTES];
        append(&mut bytes, &h, &payload);
        self.number += 1;
        let (cid, number, kind) = (self.net.keys.cid_out, self.number, PacketKind::Data);
        let header =
            PacketHeader { cid, kind, path, epoch, number, flags: 0, entries: 0, coverage: Coverage::Full };
        header.seal(&mut bytes);
        let f = Flight { to: 0, rail, from: rail_addr(1, rail).with_service(50_000), bytes };
        self.net.arrive_forged(&f, &[h], &[payload]);
    }

    /// A number of the sequence of messages: the next as a rule, or one near it.
    fn near(&mut self, next: u64) -> u64 {
        match self.byte() & 15 {
            0 => next + 1,
            1 => next.saturating_sub(1),
            2 => next + u64::from(self.byte()),
            _ => next,
        }
    }

    /// The third party's next message, with its bytes or announced.
    fn message(&mut self, h: FrameHeader, payload: Vec<u8>, announced: bool) {
        let next = self.net.sequence().1;
        let seq = self.near(next);
        let h = FrameHeader { seq, total: payload.len() as u64, x: GRANULE as u32, ..h };
        if announced {
            self.announced.truncate(ANNOUNCED_MAX - 1);
            self.announced.insert(0, (seq, payload.len()));
            self.arrive(FrameHeader { kind: FrameType::Rts, ..h }, Vec::new());
        } else {
            self.arrive(FrameHeader { kind: FrameType::Eager, ..h }, payload);
        }
    }

    /// An id that the third party has chosen for its orders.
    fn id(&mut self) -> u64 {
        self.below(IDS) as u64 + 1
    }

    /// The id of an operation that host 0 has posted, or nearly.
    fn id_of_ask(&mut self) -> u64 {
        let asked = self.net.asked(0) as usize;
        self.below(asked + 1) as u64 + u64::from(asked > 0)
    }

    fn aim_order(&mut self) {
        let what = self.byte();
        let kind = [OrderKind::WriteMessage, OrderKind::Write, OrderKind::Read, OrderKind::Atomic]
            [usize::from(what & 3)];
        let large = [REGION_BYTES, REGION_BYTES, 8192, 100];
        let len = match kind {
            OrderKind::WriteMessage | OrderKind::Read => large[self.below(4)],
            OrderKind::Write => [8, 100, 8192][self.below(3)],
            _ => [8, 16, 64][self.below(3)],
        };
        let places = [0, 0, 0, 8, REGION_BYTES - len];
        let addr = if what & 0x70 == 0x70 { self.number() } else { places[self.below(5)] as u64 };
        let key = self.below(REGIONS_MAX) as u64 + 1;
        // several pieces are the same one: an order may name a place twice
        let pieces = vec![OrderPiece { addr, len: len as u64, key }; 1 + usize::from(what & 0x8c == 0x8c)];
        let total = len * pieces.len();
        let id = self.id();
        let data = (what & 16 != 0).then_some(77);
        let mut order = Order { total: total as u64, data, ..Order::new(kind, id) };
        let mut payload = 0;
        match kind {
            OrderKind::Write => payload = total,
            OrderKind::Atomic => {
                (order.datatype, order.op) = (self.byte() % 16, self.byte() % 20);
                order.form = self.byte() % 3;
                payload = total * (1 + usize::from(order.form == 2));
                if order.op == rerail_core::atomic::op::ATOMIC_READ {
                    payload -= total;
                }
            }
            _ => {}
        }
        let mut bytes = order.to_bytes(&pieces, payload);
        bytes.resize(bytes.len() + payload, 0x5a);
        let h = FrameHeader { flags: flags::ONE_SIDED, ..FrameHeader::new(FrameType::Eager) };
        let announced = self.byte() & 7 == 0;
        self.message(h, bytes, announced);
    }

    fn aim_answer(&mut self) {
        let id = self.id_of_ask();
        let former = [0, 8, 8192, REGION_BYTES][self.below(4)];
        let form = if self.byte() & 1 == 0 { 0 } else { self.byte() % 6 };
        let mut bytes =
            Order { form, total: former as u64, ..Order::new(OrderKind::Answer, id) }.to_bytes(&[], former);
        bytes.resize(bytes.len() + former, 0x5a);
        let h = FrameHeader { flags: flags::ONE_SIDED, ..FrameHeader::new(FrameType::Eager) };
        self.message(h, bytes, false);
    }

    /// The bytes of a write, or of a read.
    fn aim_data(&mut self, answers_a_read: bool) {
        let a = if answers_a_read { self.id_of_ask() } else { self.id() };
        let more = if answers_a_read { flags::CQ_DATA } else { 0 };
        let total = [REGION_BYTES, REGION_BYTES, REGION_BYTES, 8192][self.below(4)];
        let flags = flags::ONE_SIDED | flags::TAGGED | more;
        let announced = self.byte() & 3 != 0;
        self.message(
            FrameHeader { flags, a, ..FrameHeader::new(FrameType::Eager) },
            vec![0x5a; total],
            announced,
        );
    }

    /// Fragments of a message that was announced: all, or one.
    fn aim_fragments(&mut self) {
        let which = self.below(self.announced.len());
        let Some(&(seq, bytes)) = self.announced.get(which) else { return };
        let frags = bytes.div_ceil(GRANULE);
        let (from, to) = match self.byte() {
            b if b & 3 == 0 => {
                let n = self.below(frags);
                (n, n + 1)
            }
            _ => (0, frags),
        };
        for n in from..to {
            let at = n * GRANULE;
            let h = FrameHeader { seq, a: at as u64, ..FrameHeader::new(FrameType::Frag) };
            self.arrive(h, vec![0x5a; GRANULE.min(bytes - at)]);
        }
    }

    fn aim_collective(&mut self) {
        let n = self.below(self.net.tags.len());
        let mut a = self.net.tags.get(n).copied().unwrap_or(1 << 63);
        match self.byte() & 7 {
            0 => a |= 1 << 62,
            1 => a = self.number(),
            2 => a ^= u64::from(self.byte()),
            3 => a = u64::from(self.byte()) | u64::from(self.byte() & 1) << 32,
            _ => {}
        }
        let what = self.byte();
        let more = if what & 3 == 0 { flags::CQ_DATA } else { 0 };
        let payload = vec![0x5a; [0, 4, 8, 100, 5000][self.below(5)]];
        let h = FrameHeader {
            flags: flags::COLLECTIVE | more,
            a,
            b: u64::from(what >> 4),
            ..FrameHeader::new(FrameType::Eager)
        };
        let announced = self.byte() & 3 == 0;
        self.message(h, payload, announced);
    }

    /// A message for a receive.
    fn aim_message(&mut self) {
        let size = self.pace.sizes[self.below(10)].min(FRAME_PAYLOAD_MAX);
        let announced = self.byte() & 1 == 0;
        let h = FrameHeader { flags: flags::TAGGED, a: 7, ..FrameHeader::new(FrameType::Eager) };
        self.message(h, vec![0x5a; size], announced);
    }

    /// What a peer says of messages: of its own, and of those of host 0.
    fn aim_control(&mut self) {
        let (to, from) = self.net.sequence();
        let back = u64::from(self.byte() & 7) + 1;
        let (ours, theirs) = (to.saturating_sub(back), (from + 2).saturating_sub(back));
        let total = [8, 5000, REGION_BYTES as u64, u64::MAX][self.below(4)];
        let kinds = [
            FrameType::Cts,
            FrameType::Refuse,
            FrameType::Reject,
            FrameType::Vack,
            FrameType::Withdraw,
            FrameType::Ping,
            FrameType::Pong,
            FrameType::Key,
            FrameType::Fence,
            FrameType::Fenced,
            FrameType::Leave,
            FrameType::Left,
        ];
        let kind = kinds[self.below(kinds.len())];
        let h = FrameHeader { seq: ours, total, ..FrameHeader::new(kind) };
        let h = match kind {
            FrameType::Withdraw => FrameHeader { seq: theirs, ..h },
            // of a stream, or nearly
            FrameType::Key | FrameType::Fence | FrameType::Fenced | FrameType::Leave | FrameType::Left => {
                let paths = self.net.hosts[0].engine.paths();
                let n = self.below(paths.len() + 1);
                let (aux, epoch) = paths.get(n).map_or((9, 1), |p| (p.path.0, p.epoch.0));
                let a = if kind == FrameType::Key { self.number() } else { u64::from(epoch) };
                FrameHeader { aux, a, b: u64::from(self.byte() & 7), ..h }
            }
            // matched or not, over or granted
            FrameType::Cts | FrameType::Reject => FrameHeader { x: u32::from(self.byte() & 1), ..h },
            _ => FrameHeader { b: u64::from(self.byte()), ..h },
        };
        self.arrive(h, Vec::new());
    }

    /// A message is announced for which there is a receive, so that the memory of that is lent to adapters.
    fn aim_lent(&mut self) {
        let size = self.pace.sizes[self.below(10)];
        if self.receives[0] < OPERATIONS_MAX {
            self.receives[0] += 1;
            self.net.receive(0, size);
        }
        let h = FrameHeader { flags: flags::TAGGED, a: 7, ..FrameHeader::new(FrameType::Eager) };
        self.message(h, vec![0; size], true);
        self.net.work();
    }

    /// On a stream, the notice that an adapter has written a part of a message that was announced.
    fn aim_placed(&mut self) {
        let to_host = |c: &Connection| c.ends.iter().position(|e| e.is_some_and(|(host, _)| host == 0));
        let ends: Vec<(usize, usize)> =
            self.net.connections.iter().enumerate().filter_map(|(n, c)| Some((n, to_host(c)?))).collect();
        let which = self.below(ends.len());
        let Some(&(n, end)) = ends.get(which) else { return };
        let which = self.below(self.announced.len());
        let Some(&(seq, bytes)) = self.announced.get(which) else { return };
        let at = self.below(bytes.div_ceil(GRANULE).max(1)) * GRANULE;
        let rest = bytes.saturating_sub(at).min(GRANULE);
        let total = [rest, rest, GRANULE, 1][self.below(4)];
        // the memory of a receive is zero before something is written
        let x = if self.byte() & 7 == 0 { 0 } else { crc32c_append(0, &vec![0; total]) };
        let h =
            FrameHeader { seq, a: at as u64, total: total as u64, x, ..FrameHeader::new(FrameType::Placed) };
        self.number += 1;
        let mut bytes = vec![0; STREAM_HEADER_BYTES];
        rerail_wire::stream::write_header(&mut bytes, self.number, &h, Coverage::Full);
        bytes.extend(Trailer { crc: 0, valid: self.byte() & 7 != 0 }.to_bytes());
        self.net.connections[n].pipes[end].extend(&bytes);
        self.net.read_forged(n, end, &h, &[]);
    }

    /// A verdict, a configuration, or a goodbye.
    fn aim_word(&mut self) {
        let what = self.byte();
        let paths = self.net.hosts[0].engine.paths();
        let n = self.below(paths.len());
        let Some(p) = paths.get(n) else { return };
        let (path, epoch) = (p.path.0, p.epoch.0);
        match what & 7 {
            0 => {
                let (to, from) = self.net.sequence();
                // the first of its sequence are missing, and the last of the list were not matched
                let listed = self.below(3);
                let list = (0..listed as u64).flat_map(u64::to_le_bytes).collect();
                let (total, x) = (self.below(listed + 1) as u64, u32::from(what >> 3 & 3));
                let h = FrameHeader { a: from, b: to, total, x, ..FrameHeader::new(FrameType::Goodbye) };
                self.arrive(h, list);
            }
            1..=3 => {
                let datagram_bytes = [0, 548, 1472, 8972, u16::MAX][self.below(5)];
                let rails = vec![RailConfig { datagram_bytes, ..RailConfig::default() }; self.below(3)];
                let c = NodeConfig { host: u64::from(what), boot: 1, rails };
                self.arrive(FrameHeader::new(FrameType::Config), c.to_bytes());
            }
            _ => {
                let x = u32::from(self.byte() & 15);
                let (total, b) = (self.number(), self.number());
                let h = FrameHeader {
                    aux: path,
                    a: u64::from(epoch),
                    b,
                    total,
                    x,
                    ..FrameHeader::new(FrameType::Verdict)
                };
                self.arrive(h, Vec::new());
            }
        }
    }

    /// What the hosts do with each other's memory.
    fn honest_memory(&mut self, what: u8) {
        let host = self.below(2);
        match what {
            0 => self.net.open_region(host, REGIONS_MAX),
            1 | 2 => {
                let which = self.below(REGIONS_MAX);
                self.net.close_region(host, which);
            }
            _ if self.asks[host] >= OPERATIONS_MAX => {}
            3 => {
                self.asks[host] += 1;
                let how = self.byte();
                let key = u64::from(how >> 4) % REGIONS_MAX as u64 + 1;
                match how & 7 {
                    0 => self.net.fetch_and_add(host, key),
                    1 => self.net.rma(host, false, key, REGION_BYTES),
                    2 => self.net.rma(host, false, key, 64),
                    3 => self.net.rma(host, true, key, 64),
                    _ => self.net.rma(host, true, key, REGION_BYTES),
                }
            }
            4 => {
                self.asks[host] += 1;
                self.net.join(host);
            }
            _ => {
                self.asks[host] += 1;
                let (what, bytes) = (self.below(7), [0, 8, 5000][self.below(3)]);
                self.net.collective(host, what, bytes);
            }
        }
    }
}

/// Appends a frame to a packet.
fn append(bytes: &mut Vec<u8>, h: &FrameHeader, payload: &[u8]) {
    let at = bytes.len();
    bytes.resize(at + FRAME_HEADER_BYTES, 0);
    h.write(&mut bytes[at..]);
    bytes.extend(payload);
}

/// A third party that has no secret and sees everything: it replays, cuts, repeats, sends back, changes, connects and says
/// nothing. The application notices nothing: every message arrives, right, in order, and exactly once.
pub fn outsider(b: &[u8]) {
    let mut s = Story::new(b);
    for _ in 0..STEPS_MAX {
        if s.u.is_empty() {
            break;
        }
        let step = s.byte() % 12;
        match step {
            0..=3 => s.honest(step),
            4..=8 => s.network(step - 4),
            9 => s.network(4),
            10 => s.stray(0),
            _ => s.stray(1),
        }
        s.net.check();
    }
    s.net.settle(Duration::from_secs(30), Net::is_done);
    s.net.check();
    s.net.check_memory();
    s.net.check_all_right();
}

/// A peer that holds every key and says anything at all. It may spoil its own conversation; it must not make the other
/// process fail, write where it may not, complete what was not posted, or send to others.
pub fn insider(b: &[u8]) {
    let mut s = Story::new(b);
    if s.aims {
        for host in [0, 0, 1] {
            s.net.open_region(host, REGIONS_MAX);
        }
    }
    for _ in 0..STEPS_MAX {
        if s.u.is_empty() {
            break;
        }
        let step = s.byte() % if s.aims { 48 } else { 16 };
        match step {
            0..=3 => s.honest(step),
            4..=7 => s.forge_datagram(),
            8..=10 => s.forge_stream_bytes(),
            11 => s.forge_hello(),
            12 => s.forge_accept(),
            13 => s.network(0),
            14 => s.network(3),
            15 => s.stray(0),
            16..=19 => s.aim_order(),
            20..=22 => s.aim_data(false),
            23..=25 => s.aim_data(true),
            26..=29 => s.aim_fragments(),
            30 | 31 => s.aim_answer(),
            32 | 33 => s.aim_collective(),
            34 => s.aim_message(),
            35 => s.aim_control(),
            36 => s.aim_word(),
            37..=42 => s.honest_memory(step - 37),
            43 => s.honest_memory(3),
            44 => s.aim_lent(),
            45 => s.honest_memory(1),
            46 => s.aim_placed(),
            _ => s.net.work(),
        }
        s.net.check();
    }
    s.net.settle(s.pace.end, |_| false);
    s.net.check();
    s.net.check_memory();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames;

    #[test]
    fn a_notice_of_placed_bytes_reaches_memory_that_is_lent_and_is_counted() {
        // a receive of 20,000 bytes and the announcement of its message, and the notice of its last bytes on each stream
        let notices = (0..4).map(|stream| vec![stream, 9, 9, 9, 9, 9]);
        let inputs = [vec![AIMED | 2, 9, 9]].into_iter().chain(notices).collect::<Vec<_>>().concat();
        let mut s = Story::new(&inputs);
        s.aim_lent();
        assert_eq!(s.net.hosts[0].engine.loan_counts(), (0, 1), "a region is lent");
        for _ in 0..s.net.connections.len() {
            s.aim_placed();
        }
        assert!(!frames::TALLY.missing().contains(&"notice of placed bytes"));
    }
}
