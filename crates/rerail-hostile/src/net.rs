//! Two engines and the network between them, in virtual time, with every byte in reach of a third party.
//!
//! Owns: the engines, datagrams on their way, the bytes of every connection, the memory of every posted operation.
//! Promises that are checked here whatever happens outside: nothing is written beside a posted buffer or a registered region,
//! nothing is written to a buffer after its completion, nothing to a region after it was closed, each operation completes
//! once, and a process that has not proved anything is never sent more than was received from it.
//!
//! Much smaller than the simulator on purpose: a fuzzer runs it thousands of times a second.

use crate::frames;
use rerail_core::atomic::{datatype, op};
use rerail_core::{
    Action, AtomicKind, AtomicOp, CloseReason, CollectiveKind, CollectiveOp, Completion, CompletionKind,
    CompletionLevel, CqId, Datagram, EndpointId, Engine, EngineConfig, EpId, GroupId, Health, Identity,
    IoVec, JoinOp, Locator, MemId, Options, Place, Protocol, RailDesc, RailId, RecvOp, Region, Remedies,
    RemoteKey, RemotePiece, RmaOp, SendOp, StreamId, Time, Train, Window,
};
use rerail_wire::frame::{FRAME_HEADER_BYTES, flags};
use rerail_wire::hello::{ACCEPT_BYTES, HELLO_BYTES};
use rerail_wire::packet::{PacketHeader, PacketKind};
use rerail_wire::{FrameHeader, PairKeys, Token};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) const PORT: u16 = 4000;
const RAILS: u8 = 2;
/// Lanes of each path.
pub(crate) const LANES: usize = 2;
const TAG: u64 = 7;
/// Guard bytes on either side of a posted buffer, which must stay untouched.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
/// Captured datagrams that are kept.
const CAPTURED_MAX: usize = 64;
/// The largest message.
const MESSAGE_MAX: usize = 150_000;
/// Bytes between the places of two messages in the table that all are cut from.
const MESSAGE_APART: usize = 251;
/// What is written over memory when a completion, or the closing of its region, says that it may be.
const REUSED: u8 = 0xee;
/// Bytes of a region. A large read or write is of all of them: too many for an order.
pub(crate) const REGION_BYTES: usize = 9000;
/// What a closed region holds. Compared as a whole, because a loop over bytes is slow when every round of it is counted.
static CLOSED: [u8; REGION_BYTES] = [REUSED; REGION_BYTES];
/// Tags of collective messages that are remembered.
const TAGS_MAX: usize = 16;

/// A datagram on its way.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    pub to: usize,
    pub rail: u8,
    pub from: Locator,
    pub bytes: Vec<u8>,
}

/// A connection. Ends without an engine belong to the third party.
#[derive(Clone)]
pub(crate) struct Connection {
    pub ends: [Option<(usize, StreamId)>; 2],
    /// Bytes on their way to each end.
    pub pipes: [VecDeque<u8>; 2],
}

/// A posted operation and its memory.
#[derive(Clone)]
struct Posted {
    memory: Vec<u8>,
    bytes: usize,
    done: Option<Completion>,
}

impl Posted {
    fn new(content: &[u8]) -> Self {
        let mut memory = vec![GUARD_BYTE; content.len() + 2 * GUARD];
        memory[GUARD..GUARD + content.len()].copy_from_slice(content);
        Self { memory, bytes: content.len(), done: None }
    }

    fn content(&self) -> &[u8] {
        &self.memory[GUARD..GUARD + self.bytes]
    }

    fn iov(&mut self) -> IoVec {
        IoVec::from_mut(&mut self.memory[GUARD..GUARD + self.bytes])
    }

    fn guards_hold(&self) -> bool {
        let (before, rest) = self.memory.split_at(GUARD);
        before.iter().chain(&rest[self.bytes..]).all(|&b| b == GUARD_BYTE)
    }
}

/// Registered memory of a host, under the key that is its place in the list and one.
#[derive(Clone)]
struct Lent {
    memory: Posted,
    open: bool,
}

/// A one-sided operation of a host: its memory here. Their ids count from 1, in the order of the list.
#[derive(Clone)]
struct Asked {
    memory: Posted,
    /// Bytes of it were read from the peer, or are to be.
    reads: bool,
}

/// A collective operation of a host, or the making of a group.
#[derive(Clone)]
struct Share {
    input: Posted,
    result: Posted,
}

#[derive(Clone)]
pub(crate) struct Host {
    pub engine: Engine,
    pub token: Token,
    cq: CqId,
    ep: EpId,
    other: EndpointId,
    sends: Vec<Posted>,
    receives: Vec<Posted>,
    /// What receives held when they completed.
    kept: BTreeMap<usize, Vec<u8>>,
    regions: Vec<Lent>,
    asked: Vec<Asked>,
    /// What the memory of reads held when they completed.
    read: BTreeMap<usize, Vec<u8>>,
    groups: Vec<GroupId>,
    shares: Vec<Share>,
}

#[derive(Clone)]
pub(crate) struct Net {
    pub hosts: [Host; 2],
    /// What a broken peer in the place of host 1 has in its hands.
    pub keys: PairKeys,
    /// What datagrams with a secret begin with.
    secrets: [u64; 6],
    pub air: VecDeque<Flight>,
    pub captured: VecDeque<Flight>,
    pub connections: Vec<Connection>,
    /// Memory that adapters may write, by key: its host, its name, and where it is.
    regions: BTreeMap<u128, (usize, MemId, IoVec)>,
    regions_made: u64,
    /// Bytes that came in the name of an address that belongs to neither host, and bytes sent there.
    pub strangers: BTreeMap<Locator, (u64, u64)>,
    /// Tags of collective messages that were under way.
    pub tags: VecDeque<u64>,
    pub now: Time,
    window: Window,
    out: Option<Datagram>,
    train: Option<Train>,
}

fn rail_socket(host: usize, rail: u8) -> SocketAddr {
    SocketAddr::from(([10, rail, 0, host as u8 + 1], PORT))
}

/// Where a rail of a host is reached.
pub(crate) fn rail_addr(host: usize, rail: u8) -> Locator {
    rail_socket(host, rail).into()
}

fn place(addr: Locator) -> Option<(usize, u8)> {
    (0..2).find_map(|h| (0..RAILS).find(|&r| rail_addr(h, r).same_place(&addr)).map(|r| (h, r)))
}

/// Message `n` of `host`: its bytes tell messages and positions apart. A piece of one table, because a loop over bytes is most of
/// a fuzzer's time when every round of it is counted.
fn pattern(host: usize, n: usize, bytes: usize) -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56) as u8
        };
        (0..MESSAGE_MAX + 2 * 64 * MESSAGE_APART).map(|_| next()).collect()
    });
    &table[(2 * (n % 64) + host) * MESSAGE_APART..][..bytes]
}

impl Host {
    fn new(index: usize, bulk: &str, fragment: &str, now: Time) -> Self {
        let token = Token([0x41 + index as u8; 16]);
        let rails = (0..RAILS).map(|r| RailDesc {
            speed_mbps: 1000,
            lanes_max: LANES as u8,
            routes_max: 8,
            // the last rail is one of adapters
            places_max: if r == RAILS - 1 { 4 } else { 0 },
            streams_on_demand: false,
            sums_end_to_end: false,
            ..RailDesc::ip(&format!("rail{r}"), rail_socket(index, r), 24, 1500)
        });
        let mut options = Options::default();
        let values = [
            ("unexpected_max", "131072"),
            ("retained_max", "131072"),
            ("bulk", bulk),
            ("fragment_size", fragment),
            ("lanes", "64"),
        ];
        for (name, value) in values {
            options.set(name, value).expect("valid values");
        }
        let config = EngineConfig {
            identity: Identity::toy(token),
            rails: rails.collect(),
            options,
            encrypts: false,
            seed: 1 + index as u64,
            host: index as u64,
            boot: index as u64,
            remedies: remedies(index),
        };
        let mut engine = Engine::new(config, now).expect("a valid configuration");
        let cq = engine.open_cq(64);
        let ep = engine.open_endpoint(cq, cq).expect("the first");
        let other = EndpointId { peer: rerail_core::PeerId(0), ep: 0 };
        Self {
            engine,
            token,
            cq,
            ep,
            other,
            sends: vec![],
            receives: vec![],
            kept: BTreeMap::new(),
            regions: vec![],
            asked: vec![],
            read: BTreeMap::new(),
            groups: vec![],
            shares: vec![],
        }
    }

    /// Everything that has to hold for its memory.
    fn check_memory(&self) {
        for p in self.sends.iter().chain(&self.receives) {
            assert!(p.guards_hold(), "nothing is written beside a posted buffer");
        }
        for (i, kept) in &self.kept {
            assert!(self.receives[*i].content() == kept, "nothing is written after the completion");
        }
        for l in &self.regions {
            assert!(l.memory.guards_hold(), "nothing is written beside a region");
            let untouched = l.open || l.memory.content() == CLOSED;
            assert!(untouched, "nothing is written to a region after it is closed");
        }
        for a in &self.asked {
            assert!(a.memory.guards_hold(), "nothing is written beside the memory of a one-sided operation");
        }
        for (i, read) in &self.read {
            assert!(self.asked[*i].memory.content() == read, "nothing is written after a read is done");
        }
        for s in &self.shares {
            let hold = s.input.guards_hold() && s.result.guards_hold();
            assert!(hold, "nothing is written beside the memory of a collective operation");
        }
    }
}

/// The remedies of a host. With the feature `planted-bugs` the variable RERAIL_FUZZ_WITHOUT names one that the first host, the one that is
/// lied to, lacks.
fn remedies(index: usize) -> Remedies {
    #[cfg(feature = "planted-bugs")]
    if let (0, Ok(name)) = (index, std::env::var("RERAIL_FUZZ_WITHOUT")) {
        return Remedies::without(&name).expect("the feature is on");
    }
    let _ = index;
    Remedies::default()
}

impl Net {
    /// Two engines that have connected and exchanged nothing else; bulk travels as the option of that name says, in fragments
    /// of so many bytes.
    pub fn connected(bulk: &str, fragment: &str) -> Self {
        let now = Time::from_ns(1_000_000_000);
        let mut hosts = [Host::new(0, bulk, fragment, now), Host::new(1, bulk, fragment, now)];
        for h in 0..2 {
            let address = hosts[1 - h].engine.address(EpId(0));
            hosts[h].other = hosts[h].engine.endpoint_of(&address);
        }
        let [a, b] = [hosts[0].token, hosts[1].token];
        let keys = Identity::toy(b).pair(&Identity::toy(a).public_key()).expect("proper keys");
        let accepts = [a.accept_cid(&b), b.accept_cid(&a)];
        let secrets = [keys.cid_in, keys.cid_out, a.hello_cid(), b.hello_cid(), accepts[0], accepts[1]];
        let mut net = Self {
            hosts,
            keys,
            secrets,
            air: VecDeque::new(),
            captured: VecDeque::new(),
            connections: Vec::new(),
            regions: BTreeMap::new(),
            regions_made: 0,
            strangers: BTreeMap::new(),
            tags: VecDeque::new(),
            now,
            window: Window::default(),
            out: Some(Datagram::default()),
            train: Some(Train::default()),
        };
        net.send(1, 8, CompletionLevel::Buffered);
        net.receive(0, 8);
        // until nothing that was posted is open: a clone would share its memory
        let ready = |n: &Self| n.is_connected() && n.has_all_streams() && n.is_done();
        net.settle(Duration::from_millis(60), ready);
        assert!(ready(&net), "two engines that are left alone connect");
        net
    }

    /// Whether every lane has its stream.
    fn has_all_streams(&self) -> bool {
        self.hosts.iter().all(|h| h.engine.paths().iter().all(|p| (p.streams, p.lanes) == (LANES, LANES)))
    }

    fn is_connected(&self) -> bool {
        self.hosts.iter().all(|h| h.engine.paths().iter().all(|p| p.health == Health::Up))
    }

    /// Whether a datagram begins with a secret: strangers cannot guess 64 bits, whatever a fuzzer finds out.
    pub fn knows_a_secret(&self, bytes: &[u8]) -> bool {
        bytes.len() >= 8 && self.secrets.contains(&rerail_wire::bytes::get_u64(bytes, 0))
    }

    // ---- operations --------------------------------------------------------------------------------------------

    /// Posts the next send of a host.
    pub fn send(&mut self, host: usize, bytes: usize, level: CompletionLevel) {
        let h = &mut self.hosts[host];
        let n = h.sends.len();
        let mut p = Posted::new(pattern(host, n, bytes));
        let iov = [p.iov()];
        let op = SendOp {
            ep: h.ep,
            dest: h.other,
            protocol: Protocol::Tagged,
            tag: TAG,
            data: None,
            iov: &iov,
            context: n,
            completion: true,
            inject: false,
            level,
        };
        // SAFETY: the memory is kept until the net is dropped, and changed only after the completion.
        if unsafe { h.engine.send(&op, self.now) }.is_ok() {
            h.sends.push(p);
        }
    }

    /// Posts the next receive of a host.
    pub fn receive(&mut self, host: usize, bytes: usize) {
        let h = &mut self.hosts[host];
        let mut p = Posted::new(&vec![0; bytes]);
        let iov = [p.iov()];
        let op = RecvOp {
            ep: h.ep,
            protocol: Protocol::Tagged,
            tag: TAG,
            ignore: 0,
            src: None,
            iov: &iov,
            context: h.receives.len(),
            completion: true,
            multi: false,
        };
        // SAFETY: the memory is kept until the net is dropped, and nothing else changes it before the completion.
        unsafe { h.engine.recv(&op, self.now) }.expect("a receive from anybody is always taken");
        h.receives.push(p);
    }

    /// Registers a region of a host, at most so many in all.
    pub fn open_region(&mut self, host: usize, most: usize) {
        let h = &mut self.hosts[host];
        if h.regions.len() >= most {
            return;
        }
        let mut memory = Posted::new(pattern(host, h.regions.len(), REGION_BYTES));
        let (pieces, key) = ([memory.iov()], h.regions.len() as u64 + 1);
        let region = Region { domain: 0, key, pieces: &pieces, origin: 0, readable: true, writable: true };
        // SAFETY: the memory is kept until the net is dropped, and touched only after the region is closed.
        unsafe { h.engine.register(&region) }.expect("each key is used once");
        h.regions.push(Lent { memory, open: true });
    }

    /// Closes a region, and uses its memory for something else.
    pub fn close_region(&mut self, host: usize, which: usize) {
        let h = &mut self.hosts[host];
        let Some(l) = h.regions.get_mut(which).filter(|l| l.open) else { return };
        h.engine.unregister(0, which as u64 + 1, self.now);
        l.open = false;
        l.memory.memory[GUARD..GUARD + REGION_BYTES].fill(REUSED);
    }

    /// The numbers of the next messages from host 0 to the other, and back, as host 0 has them.
    pub fn sequence(&self) -> (u64, u64) {
        let h = &self.hosts[0];
        h.engine.sequence(h.other.peer)
    }

    /// One-sided operations that a host has posted.
    pub fn asked(&self, host: usize) -> u64 {
        self.hosts[host].asked.len() as u64
    }

    /// Reads or writes a region of the other host.
    pub fn rma(&mut self, host: usize, read: bool, key: u64, bytes: usize) {
        let h = &mut self.hosts[host];
        let content = if read { vec![0; bytes] } else { pattern(host, h.asked.len(), bytes).to_vec() };
        let mut memory = Posted::new(&content);
        let (iov, remote) = ([memory.iov()], [RemotePiece { addr: 0, len: bytes, key }]);
        let op = RmaOp {
            ep: h.ep,
            dest: h.other,
            read,
            iov: &iov,
            remote: &remote,
            data: None,
            context: h.asked.len(),
            completion: true,
            inject: false,
        };
        // SAFETY: the memory is kept until the net is dropped, and changed only after the completion.
        if unsafe { h.engine.rma(&op, self.now) }.is_ok() {
            h.asked.push(Asked { memory, reads: read });
        }
    }

    /// Adds to a value in a region of the other host, and fetches what it was.
    pub fn fetch_and_add(&mut self, host: usize, key: u64) {
        let h = &mut self.hosts[host];
        let mut memory = Posted::new(&[0; 8]);
        let (operand, remote) = ([IoVec::from_ref(&[1; 8])], [RemotePiece { addr: 8, len: 8, key }]);
        let op = AtomicOp {
            ep: h.ep,
            dest: h.other,
            kind: AtomicKind::Fetch,
            datatype: datatype::UINT64,
            op: op::SUM,
            operand: &operand,
            compare: &[],
            result: &[memory.iov()],
            remote: &remote,
            context: h.asked.len(),
            completion: true,
            inject: false,
        };
        // SAFETY: as for reads.
        if unsafe { h.engine.atomic(&op, self.now) }.is_ok() {
            h.asked.push(Asked { memory, reads: true });
        }
    }

    /// Makes a group of the two hosts.
    pub fn join(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let own = h.engine.address(h.ep);
        let own = h.engine.endpoint_of(&own);
        let members = if host == 0 { [own, h.other] } else { [h.other, own] };
        let op = JoinOp { ep: h.ep, members: &members, cq: h.cq, context: h.shares.len() };
        if let Ok(group) = h.engine.join(&op, self.now) {
            h.groups.push(group);
            h.shares.push(Share { input: Posted::new(&[]), result: Posted::new(&[]) });
        }
    }

    /// Begins an operation of the newest group.
    pub fn collective(&mut self, host: usize, what: usize, bytes: usize) {
        let h = &mut self.hosts[host];
        let Some(&group) = h.groups.last() else { return };
        let kind = [
            CollectiveKind::Barrier,
            CollectiveKind::Broadcast { root: 0 },
            CollectiveKind::AllReduce,
            CollectiveKind::AllGather,
            CollectiveKind::Reduce { root: 1 },
            CollectiveKind::Scatter { root: 0 },
            CollectiveKind::Gather { root: 1 },
        ][what % 7];
        let (gives, takes) = kind.memory(host, 2, bytes);
        let mut input = Posted::new(pattern(host, h.shares.len(), gives));
        let mut result = Posted::new(&vec![0; takes]);
        let op = CollectiveOp {
            group,
            kind,
            bytes,
            datatype: datatype::UINT8,
            op: op::BXOR,
            input: input.iov(),
            result: result.iov(),
            context: h.shares.len(),
            completion: true,
        };
        // SAFETY: the memory is kept until the net is dropped.
        if unsafe { h.engine.collective(&op, self.now) }.is_ok() {
            h.shares.push(Share { input, result });
        }
    }

    fn complete(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        while let Some(c) = h.engine.cq_pop(h.cq) {
            match c.kind {
                CompletionKind::Send | CompletionKind::Recv => {}
                CompletionKind::Write
                | CompletionKind::Read
                | CompletionKind::AtomicWrite
                | CompletionKind::AtomicRead => {
                    let a = h.asked.get_mut(c.context).expect("only what was posted completes");
                    assert!(a.memory.done.replace(c).is_none(), "an operation completes once");
                    let memory = &mut a.memory.memory[GUARD..GUARD + a.memory.bytes];
                    if c.error.is_some() || !a.reads {
                        memory.fill(REUSED);
                    }
                    if a.reads {
                        h.read.insert(c.context, memory.to_vec());
                    }
                    continue;
                }
                CompletionKind::Collective => {
                    let s = h.shares.get_mut(c.context).expect("only what was posted completes");
                    assert!(s.input.done.replace(c).is_none(), "an operation completes once");
                    continue;
                }
                CompletionKind::RemoteWrite => continue,
                CompletionKind::Peek => panic!("only what was posted completes"),
            }
            let list = if c.kind == CompletionKind::Send { &mut h.sends } else { &mut h.receives };
            let p = list.get_mut(c.context).expect("only what was posted completes");
            assert!(p.done.replace(c).is_none(), "an operation completes once");
            if c.kind == CompletionKind::Send {
                // the memory is the application's again: an engine that still reads it sends foreign bytes
                p.memory[GUARD..GUARD + p.bytes].fill(REUSED);
            } else {
                assert!(c.len <= p.bytes, "no completion claims more than fits");
                h.kept.insert(c.context, p.content().to_vec());
            }
        }
    }

    /// Whether everything that can complete has.
    pub fn is_done(&self) -> bool {
        (0..2).all(|h| {
            let (sends, receives) = (&self.hosts[h].sends, &self.hosts[1 - h].receives);
            let both = sends.len().min(receives.len());
            sends[..both].iter().chain(&receives[..both]).all(|p| p.done.is_some())
        })
    }

    /// Every message arrived exactly as it was sent, in order and without interference.
    ///
    /// # Panics
    /// When it has not.
    pub fn check_all_right(&self) {
        assert!(self.is_done(), "{}\n{}", self.hosts[0].engine.describe(), self.hosts[1].engine.describe());
        for to in 0..2 {
            let sizes = self.hosts[1 - to].sends.iter().map(|p| p.bytes);
            for (n, (p, sent)) in self.hosts[to].receives.iter().zip(sizes).enumerate() {
                let c = p.done.expect("everything is done");
                let len = sent.min(p.bytes);
                assert_eq!(c.len, len, "receive {n} of host {to}");
                match c.error {
                    None => assert!(sent <= p.bytes),
                    Some(rerail_core::CompletionError::Truncated { over }) => {
                        assert_eq!(over, sent - p.bytes);
                    }
                    Some(e) => panic!("receive {n} of host {to} failed: {e:?}"),
                }
                let (got, right) = (&p.content()[..len], pattern(1 - to, n, len));
                if got != right {
                    let wrong = got.iter().zip(right).position(|(a, b)| a != b);
                    panic!("receive {n} of host {to}: first wrong byte at {wrong:?}");
                }
            }
            let failed = self.hosts[to].sends.iter().filter_map(|p| p.done).find_map(|c| c.error);
            assert_eq!(failed, None, "no send of host {to} fails");
        }
    }

    // ---- the world ---------------------------------------------------------------------------------------------

    /// Lets both engines work, and everything arrive, until nothing is left to do just now.
    pub fn work(&mut self) {
        for _ in 0..64 {
            let mut busy = false;
            for h in 0..2 {
                busy |= self.work_of(h);
            }
            while let Some(f) = self.air.pop_front() {
                busy = true;
                self.arrive(&f);
            }
            for c in 0..self.connections.len() {
                busy |= self.read(c, 0) | self.read(c, 1);
            }
            self.connections.retain(|c| c.ends.iter().any(Option::is_some));
            if !busy {
                break;
            }
        }
        for h in 0..2 {
            self.complete(h);
        }
    }

    /// A datagram arrives.
    pub fn arrive(&mut self, f: &Flight) {
        self.hosts[f.to].engine.handle_datagram(RailId(f.rail), f.from, &f.bytes, self.now);
    }

    /// A datagram of the third party's arrives at host 0: what it carries is counted when the engine takes it.
    pub fn arrive_forged(&mut self, f: &Flight, frames: &[FrameHeader], payloads: &[Vec<u8>]) {
        let before = self.refusals();
        self.arrive(f);
        if self.refusals() == before {
            frames.iter().zip(payloads).for_each(|(f, payload)| frames::count(f, payload));
        }
    }

    /// A frame of the third party's is in a connection: it is read, and counted when the engine takes it.
    pub fn read_forged(&mut self, connection: usize, end: usize, f: &FrameHeader, payload: &[u8]) {
        let frames = |n: &Net| n.hosts[0].engine.counters().stream_frames_received;
        let before = (self.refusals(), frames(self));
        self.read(connection, end);
        if self.refusals() == before.0 && frames(self) > before.1 {
            frames::count(f, payload);
        }
    }

    /// How often host 0 took something for broken, old or foreign.
    fn refusals(&self) -> u64 {
        let c = self.hosts[0].engine.counters();
        c.malformed + c.strangers + c.replays + c.corrupt + c.downgrades
    }

    fn work_of(&mut self, h: usize) -> bool {
        let mut busy = false;
        let now = self.now;
        if self.hosts[h].engine.poll_timeout().is_some_and(|t| t <= now) {
            self.hosts[h].engine.handle_timeout(now);
        }
        while let Some(action) = self.hosts[h].engine.poll_action() {
            busy = true;
            match action {
                Action::OpenStream { stream, rail, to } => self.open(h, stream, rail, to),
                Action::CloseStream { stream } => self.close(h, stream),
                Action::InspectStream { stream } => {
                    self.hosts[h].engine.stream_inspected(stream, None, now);
                }
                Action::Register { region, memory, .. } => {
                    self.regions_made += 1;
                    let key = RemoteKey(u128::from(self.regions_made).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    self.regions.insert(key.0, (h, region, memory));
                    self.hosts[h].engine.registered(region, key, now);
                }
                Action::Invalidate { region } => {
                    self.regions.retain(|_, r| (r.0, r.1) != (h, region));
                    self.hosts[h].engine.invalidated(region, now);
                }
                // no rail here names an adapter that migrates
                Action::LoadAlternate { .. } | Action::MigrateStream { .. } => unreachable!("{action:?}"),
                Action::Lead { .. } => frames::led(),
                Action::Responder(_) | Action::KeepNeighbour { .. } => {}
            }
        }
        let mut out = self.out.take().unwrap_or_default();
        while self.hosts[h].engine.poll_datagram(now, &mut out) {
            busy = true;
            self.send_off(h, out.rail, out.to, &out.bytes);
        }
        self.out = Some(out);
        let mut train = self.train.take().unwrap_or_default();
        while self.hosts[h].engine.poll_train(now, &mut train) {
            busy = true;
            for one in train.bytes.chunks(train.segment) {
                self.send_off(h, train.rail, train.to, one);
            }
        }
        self.train = Some(train);
        while let Some(s) = self.hosts[h].engine.poll_writable(now) {
            busy |= self.write(h, s);
        }
        while self.hosts[h].engine.poll_event().is_some() {}
        busy
    }

    /// A datagram leaves a host.
    fn send_off(&mut self, h: usize, rail: RailId, to: Locator, bytes: &[u8]) {
        match place(to) {
            Some((host, at)) if host != h => {
                assert_eq!(to.service(), u32::from(PORT), "datagrams go to the published port");
                let from = rail_addr(h, rail.0).with_service(50_000);
                let f = Flight { to: host, rail: at, from, bytes: bytes.to_vec() };
                self.note_tags(bytes);
                self.capture(f.clone());
                self.air.push_back(f);
            }
            _ => self.strangers.entry(to).or_default().1 += bytes.len() as u64,
        }
    }

    fn capture(&mut self, f: Flight) {
        if self.captured.len() == CAPTURED_MAX {
            // what came first shows the handshake: the newest of the rest makes room
            self.captured.truncate(CAPTURED_MAX / 2);
        }
        self.captured.push_back(f);
    }

    /// Remembers the tags of collective messages in a packet: a broken peer knows them.
    fn note_tags(&mut self, bytes: &[u8]) {
        if self.hosts.iter().all(|h| h.shares.is_empty()) {
            return;
        }
        let Ok((PacketHeader { kind: PacketKind::Data, .. }, mut rest)) = PacketHeader::parse(bytes) else {
            return;
        };
        while let Ok(f) = FrameHeader::parse(rest) {
            if f.flags & flags::COLLECTIVE != 0 && !self.tags.contains(&f.a) {
                self.tags.truncate(TAGS_MAX - 1);
                self.tags.push_front(f.a);
            }
            rest = rest.get(FRAME_HEADER_BYTES + f.len as usize..).unwrap_or_default();
        }
    }

    fn open(&mut self, h: usize, stream: StreamId, rail: RailId, to: Locator) {
        let now = self.now;
        let Some((target, at)) = place(to).filter(|p| p.0 != h && to.service() == u32::from(PORT)) else {
            // a connection costs its target more than a hello: none is made to an address that has proved nothing
            assert!(!self.strangers.contains_key(&to), "no connection to a stranger");
            self.hosts[h].engine.stream_closed(stream, CloseReason::Unreachable, now);
            return;
        };
        let from = rail_addr(h, rail.0).with_service(50_001);
        let accepted = self.hosts[target].engine.stream_accepted(RailId(at), from, now);
        self.connections.push(Connection {
            ends: [Some((h, stream)), Some((target, accepted))],
            pipes: Default::default(),
        });
        self.hosts[h].engine.stream_connected(stream, now);
    }

    /// The third party connects to a host; returns the connection, whose end 0 is the third party's.
    pub fn stray(&mut self, host: usize, rail: u8, from: Locator) -> usize {
        let id = self.hosts[host].engine.stream_accepted(RailId(rail), from, self.now);
        self.connections.push(Connection { ends: [None, Some((host, id))], pipes: Default::default() });
        self.connections.len() - 1
    }

    fn close(&mut self, h: usize, stream: StreamId) {
        let now = self.now;
        self.hosts[h].engine.stream_closed(stream, CloseReason::Requested, now);
        let Some(c) = self.connections.iter_mut().find(|c| c.ends.contains(&Some((h, stream)))) else {
            return;
        };
        let ends = std::mem::take(&mut c.ends);
        for (host, s) in ends.into_iter().flatten().filter(|e| *e != (h, stream)) {
            self.hosts[host].engine.stream_closed(s, CloseReason::Reset, now);
        }
    }

    /// A connection breaks.
    pub fn cut(&mut self, connection: usize, reason: CloseReason) {
        let Some(c) = self.connections.get_mut(connection) else { return };
        let ends = std::mem::take(&mut c.ends);
        for (host, s) in ends.into_iter().flatten() {
            self.hosts[host].engine.stream_closed(s, reason, self.now);
        }
    }

    fn write(&mut self, h: usize, s: StreamId) -> bool {
        let now = self.now;
        let mut window = std::mem::take(&mut self.window);
        let some = self.hosts[h].engine.stream_tx_window(s, &mut window, now);
        let placed = window.places().iter().all(|p| self.write_memory(h, p));
        if some && !placed {
            // an adapter refuses a key that a peer has made up, and its stream is over
            self.hosts[h].engine.stream_tx_done(s, 0, now);
            if let Some(c) = self.connections.iter().position(|c| c.ends.contains(&Some((h, s)))) {
                self.cut(c, CloseReason::Reset);
            }
        } else if some {
            let engine = &mut self.hosts[h].engine;
            let end = self.connections.iter_mut().find_map(|c| {
                let i = c.ends.iter().position(|e| *e == Some((h, s)))?;
                Some((&mut c.pipes[1 - i], c.ends[1 - i]))
            });
            let (pipe, other) = end.expect("only what is connected is written to");
            for piece in window.pieces() {
                // SAFETY: the engine has just given these pieces out, and nothing was asked of it since.
                pipe.extend(unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) });
            }
            engine.stream_tx_done(s, window.bytes(), now);
            window.places().iter().for_each(|p| engine.placed(p.work, now));
            if let (HELLO_BYTES | ACCEPT_BYTES, Some((to, _))) = (window.bytes(), other) {
                let bytes = pipe.iter().copied().collect();
                self.capture(Flight { to, rail: 0, from: rail_addr(h, 0).with_service(50_001), bytes });
            }
        }
        self.window = window;
        some
    }

    /// An adapter writes into the memory of the other host. False: it may not.
    fn write_memory(&self, h: usize, place: &Place) -> bool {
        let Some(&(_, _, memory)) = self.regions.get(&place.key.0).filter(|r| r.0 != h) else { return false };
        let end = usize::try_from(place.offset).ok().and_then(|at| at.checked_add(place.source.len));
        if end.is_none_or(|end| end > memory.len) {
            return false;
        }
        // SAFETY: both engines have just said that this memory may be read, and written, and nothing was asked of them since.
        unsafe {
            std::ptr::copy(place.source.ptr, memory.ptr.add(place.offset as usize), place.source.len);
        }
        true
    }

    fn read(&mut self, connection: usize, end: usize) -> bool {
        let mut any = false;
        loop {
            let c = &mut self.connections[connection];
            let Some((host, s)) = c.ends[end] else {
                c.pipes[end].clear();
                return any;
            };
            if c.pipes[end].is_empty() {
                return any;
            }
            let engine = &mut self.hosts[host].engine;
            if !engine.stream_rx_window(s, &mut self.window) {
                return any;
            }
            // SAFETY: the engine has leased the pieces for this read, and they are none of the pipe's memory.
            let n = unsafe { IoVec::scatter(&mut c.pipes[end], self.window.pieces()) };
            engine.stream_rx_done(s, n, self.now);
            if n == 0 {
                return any;
            }
            any = true;
        }
    }

    /// Time passes, from deadline to deadline, until `enough`.
    pub fn settle(&mut self, at_most: Duration, enough: impl Fn(&Net) -> bool) {
        let end = self.now + at_most;
        self.work();
        while self.now < end && !enough(self) {
            let due = self.hosts.iter().filter_map(|h| h.engine.poll_timeout()).min().unwrap_or(end);
            // a deadline in the past must not stop time
            self.now = due.max(self.now + Duration::from_micros(200)).min(end);
            self.work();
        }
    }

    /// What must hold of the memory at the end: a byte that was written where none may be stays there.
    ///
    /// # Panics
    /// When it does not.
    pub fn check_memory(&self) {
        for h in &self.hosts {
            h.check_memory();
        }
    }

    /// What must hold at any time, whatever was thrown at the engines.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        for h in &self.hosts {
            h.engine.check();
        }
        // All together: answers to a peer go where its first hello said, whatever its later ones say.
        let sum = |which: fn(&(u64, u64)) -> u64| self.strangers.values().map(which).sum::<u64>();
        let (came, went) = (sum(|s| s.0), sum(|s| s.1));
        assert!(
            went <= came,
            "addresses that have proved nothing were sent {went} bytes for {came}: {:?}",
            self.strangers
        );
    }
}
