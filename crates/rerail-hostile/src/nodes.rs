//! A node of RWAPI, three ranks that send what they like, and the program of the node.
//!
//! Owns: the node, its blocks, and what is known of the messages sent to it. The bytes are a list of steps. Some are those of honest
//! ranks and of the node's program: without them little lies behind the first look at a message. The others send any word, any size,
//! any range. Promises that are checked: messages of a rank come in the order in which it sent them, no more than a window of them
//! waits, none comes after the report that the rank is gone, that report comes once; a message comes after the honest write before it;
//! nothing is written beside a block, or into one that was freed; what waits for room is bounded.

use crate::draw::Draw;
use crate::net::Net;
use crate::tally::Tally;
use arbitrary::Unstructured;
use rerail_core::{
    CompletionLevel, CqId, EndpointId, EpId, IoVec, Protocol, RecvOp, RemotePiece, RmaOp, SendOp,
};
use rerail_rwapi::{Kind, Net as Place, Node, Port, Received, SMALL_BYTES, Sid, WINDOW, word};
use std::cell::RefCell;
use std::time::Duration;

/// Ranks beside the node, which is rank 0.
const RANKS: usize = 3;
/// Steps at most.
const STEPS_MAX: usize = 64;
/// Blocks at most, and their sizes.
const BLOCKS_MAX: usize = 4;
const SIZES: [usize; 4] = [64, 4096, 9000, 20_000];
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
/// Honest writes go to places of their own in the first half of a block, hostile ones to the second.
const PLACES: usize = 4;
/// Bytes that a rank has for all its receives.
const LISTEN_BYTES: usize = 65_536;
/// Messages of the node's own that may wait for room: one of each kind for each rank, and the reports of deaths.
const LATE_MAX: usize = RANKS * (3 + RANKS) + WINDOW_LATE;
/// Messages behind writes for which there was room when the write began.
const WINDOW_LATE: usize = STEPS_MAX;

/// What is to be reached.
const ROWS: [&str; 13] = [
    "none",
    "small",
    "credit",
    "obituary",
    "arrived",
    "release",
    "query",
    "held behind a write",
    "obituary of the node itself",
    "barrier passed",
    "message after an honest write",
    "write of a rank refused",
    "rank reported gone",
];
/// How often it was.
pub static TALLY: Tally<{ ROWS.len() }> = Tally::new(ROWS);

/// A block of the node, or one that it had.
struct Block {
    memory: Vec<u8>,
    bytes: usize,
    net: Place,
    /// What it held when it was freed.
    freed: Option<Vec<u8>>,
    /// Places of honest writes that are used up.
    places: usize,
}

impl Block {
    fn content(&self) -> &[u8] {
        &self.memory[GUARD..GUARD + self.bytes]
    }

    fn check(&self) {
        let (before, after) = (&self.memory[..GUARD], &self.memory[GUARD + self.bytes..]);
        assert!(before.iter().chain(after).all(|b| *b == GUARD_BYTE), "nothing is written beside a block");
        if let Some(held) = &self.freed {
            assert!(held == self.content(), "nothing is written into a block that was freed");
        }
    }
}

/// A rank that sends.
struct Rank {
    ep: EpId,
    /// Small messages sent, and the number of the last one that the node's program took.
    sent: u64,
    received: u64,
    /// Barriers that it has arrived at as an honest rank.
    arrived: u64,
    gone: bool,
    /// Honest writes: the number of the message behind each, its block, offset, bytes and value.
    writes: Vec<(u64, usize, usize, usize, u8)>,
}

struct Job<'a> {
    net: Net,
    node: Option<Node>,
    u: Unstructured<'a>,
    ranks: Vec<Rank>,
    cq: CqId,
    /// The node as the ranks see it.
    to: EndpointId,
    blocks: Vec<Block>,
    /// Memory that the engines read, or write to the ranks.
    lent: Vec<Vec<u8>>,
    sids: Vec<Sid>,
}

/// See the module.
///
/// # Panics
/// A promise was broken.
pub fn nodes(b: &[u8]) {
    let mut job = Job::new(b);
    for _ in 0..STEPS_MAX {
        if job.u.is_empty() {
            break;
        }
        job.step();
        job.advance();
    }
    job.net.settle(Duration::from_millis(20), |_| false);
    job.advance();
    job.receive(usize::MAX);
    job.end();
}

impl<'a> Draw<'a> for Job<'a> {
    fn input(&mut self) -> &mut Unstructured<'a> {
        &mut self.u
    }
}

impl<'a> Job<'a> {
    fn new(b: &'a [u8]) -> Self {
        thread_local!(static CONNECTED: RefCell<Option<Net>> = const { RefCell::new(None) });
        let mut net = CONNECTED
            .with_borrow_mut(|known| known.get_or_insert_with(|| Net::connected("tcp", "4096")).clone());
        let now = net.now;
        let [own, theirs] = &mut net.hosts;
        let port = Port::open(&mut own.engine).expect("there is room");
        let address = own.engine.address(port.endpoint());
        let cq = theirs.engine.open_cq(64);
        let to = theirs.engine.endpoint_of(&address);
        let mut addresses = vec![address];
        let mut ranks = Vec::new();
        for _ in 0..RANKS {
            let ep = theirs.engine.open_endpoint(cq, cq).expect("there is room");
            theirs.engine.set_domain(ep, 1);
            addresses.push(theirs.engine.address(ep));
            ranks.push(Rank { ep, sent: 0, received: 0, arrived: 0, gone: false, writes: Vec::new() });
        }
        let node = Node::join(&mut own.engine, port, 0, &addresses, now).expect("a valid job");
        Self {
            net,
            node: Some(node),
            u: Unstructured::new(b),
            ranks,
            cq,
            to,
            blocks: Vec::new(),
            lent: Vec::new(),
            sids: Vec::new(),
        }
    }

    /// A number near those that matter.
    fn number(&mut self) -> u64 {
        let fine = u64::from(self.byte());
        match fine % 6 {
            0 => fine / 6,
            1 => self.u.arbitrary::<u16>().unwrap_or(0).into(),
            2 => self.u.arbitrary().unwrap_or(0),
            3 => u64::MAX - fine / 6,
            4 => (1 << 56) - 1 - fine / 6,
            _ => WINDOW - 20 + fine / 6,
        }
    }

    fn node(&mut self) -> (&mut Node, &mut rerail_core::Engine, rerail_core::Time) {
        let node = self.node.as_mut().expect("until the end");
        (node, &mut self.net.hosts[0].engine, self.net.now)
    }

    fn step(&mut self) {
        match self.byte() % 20 {
            0 => self.alloc(),
            1 => self.free(),
            2 => self.send(),
            3 => self.write(),
            4 => {
                let most = self.below(64);
                self.receive(most);
            }
            5 => self.arrive(),
            6 => self.look(),
            7 => self.leave(),
            8 => self.honest_message(1),
            9 | 10 => self.honest_write(),
            11 => self.honest_report(),
            12 => self.listen(),
            13 | 14 => self.any_word(),
            15 => self.any_message(),
            16 => self.any_write(),
            17 => self.flood(),
            18 => self.close(),
            _ => {
                let ms = [0, 1, 3, 40][self.below(4)];
                self.net.settle(Duration::from_millis(ms), |_| false);
            }
        }
    }

    // ---- the program of the node -------------------------------------------------------------------------------

    fn alloc(&mut self) {
        let bytes = SIZES[self.below(SIZES.len())];
        if self.blocks.len() == BLOCKS_MAX {
            return;
        }
        let mut memory = vec![GUARD_BYTE; bytes + 2 * GUARD];
        memory[GUARD..GUARD + bytes].fill(0);
        let ptr = memory[GUARD..].as_mut_ptr();
        let (node, engine, _) = self.node();
        // SAFETY: the memory is kept until the engines are dropped.
        let net = unsafe { node.add_block(engine, ptr, bytes) }.expect("a valid block");
        self.blocks.push(Block { memory, bytes, net, freed: None, places: 0 });
    }

    fn free(&mut self) {
        let n = self.below(self.blocks.len());
        let Some(block) = self.blocks.get_mut(n).filter(|b| b.freed.is_none()) else { return };
        let ptr = block.memory[GUARD..].as_mut_ptr();
        block.freed = Some(block.content().to_vec());
        let (node, engine, now) = self.node();
        node.free(engine, ptr, now).expect("it is a block");
        self.blocks[n].freed = Some(self.blocks[n].content().to_vec());
    }

    fn send(&mut self) {
        let (to, count) = (self.below(RANKS + 2), [1, 1, 30, 520][self.below(4)]);
        for n in 0..count {
            let (node, engine, now) = self.node();
            if node.send(engine, to, &[n as u8; SMALL_BYTES], now).is_err() {
                break;
            }
        }
    }

    fn write(&mut self) {
        let (to, notifies) = (self.below(RANKS + 1), self.byte() & 1 == 1);
        let n = self.below(self.blocks.len());
        let Some(local) = self.blocks.get(n).map(|b| b.net) else { return };
        let local = Place(local.0.wrapping_add(u64::from(self.byte())));
        let remote = if self.byte() & 3 == 0 { self.number() } else { (to as u64) << 48 | 1 << 40 };
        let bytes = [0, 1, 64, 2000, 9000, usize::MAX][self.below(6)];
        let (node, engine, now) = self.node();
        let sid = if notifies {
            node.write_notify(engine, to, local, Place(remote), bytes, &[7; SMALL_BYTES], now)
        } else {
            node.write(engine, to, local, Place(remote), bytes, now)
        };
        self.sids.extend(sid.ok());
    }

    fn arrive(&mut self) {
        let (node, engine, now) = self.node();
        node.arrive(engine, now);
    }

    fn look(&mut self) {
        let n = self.below(self.sids.len());
        let sid = self.sids.get(n).copied().unwrap_or(Sid(self.number()));
        let _ = self.node().0.is_sent(sid);
    }

    fn leave(&mut self) {
        if self.byte() & 7 == 0 {
            self.node().0.leave();
        }
    }

    fn receive(&mut self, most: usize) {
        let mut waiting = [0; RANKS + 1];
        for _ in 0..most {
            let (node, engine, now) = self.node();
            let Some(found) = node.receive(engine, now) else { return };
            match found {
                Received::Gone(rank) => {
                    assert!((1..=RANKS).contains(&rank), "the node itself is never gone");
                    let gone = std::mem::replace(&mut self.ranks[rank - 1].gone, true);
                    assert!(!gone, "the end of a rank is reported once");
                    TALLY.count("rank reported gone", 1);
                }
                // of the node's own to itself
                Received::Message(0, _) => {}
                Received::Message(rank, small) => {
                    waiting[rank] += 1;
                    assert!(
                        most != usize::MAX || waiting[rank] <= WINDOW,
                        "no more than a window of messages waits"
                    );
                    self.received(rank, &small);
                }
            }
        }
    }

    fn received(&mut self, from: usize, small: &[u8; SMALL_BYTES]) {
        let rank = &mut self.ranks[from - 1];
        let number = u64::from_le_bytes(small[..8].try_into().expect("eight bytes"));
        assert!(!rank.gone, "no message comes after the report that its rank is gone");
        assert!(
            number > rank.received && number <= rank.sent,
            "messages come in their order, once: {number} after {} of {}",
            rank.received,
            rank.sent
        );
        rank.received = number;
        let before = |write: &&(u64, usize, usize, usize, u8)| write.0 <= number;
        for (_, block, offset, bytes, value) in rank.writes.iter().take_while(before) {
            let block = &self.blocks[*block];
            let place = &block.content()[*offset..offset + bytes];
            assert!(
                block.freed.is_some() || place.iter().all(|b| b == value),
                "a message comes after the write before it"
            );
            TALLY.count("message after an honest write", 1);
        }
        rank.writes.retain(|write| write.0 > number);
    }

    // ---- the ranks ---------------------------------------------------------------------------------------------

    fn behind(&self) -> u64 {
        self.net.hosts[1].engine.operations_begun(self.to.peer)
    }

    fn post(&mut self, rank: usize, protocol: Protocol, data: Option<u64>, payload: Vec<u8>) -> bool {
        // as a node sends: others may be announced in the place of being sent, and then come later than those behind them
        let inject = payload.len() == SMALL_BYTES;
        self.lent.push(payload);
        let payload = self.lent.last_mut().expect("just pushed");
        let op = SendOp {
            ep: self.ranks[rank].ep,
            dest: self.to,
            protocol,
            tag: 0,
            data,
            iov: &[IoVec::from_mut(payload)],
            context: 0,
            completion: false,
            inject,
            level: CompletionLevel::Buffered,
        };
        // SAFETY: the memory is kept until the engines are dropped.
        unsafe { self.net.hosts[1].engine.send(&op, self.net.now) }.is_ok()
    }

    /// Small messages have numbers, so that their order can be seen.
    fn small(&mut self, rank: usize, word: u64) -> bool {
        let number = self.ranks[rank].sent + 1;
        let mut payload = vec![0; SMALL_BYTES];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        let sent = self.post(rank, Protocol::Msg, Some(word), payload);
        self.ranks[rank].sent += u64::from(sent);
        sent
    }

    fn honest_message(&mut self, times: usize) {
        let rank = self.below(RANKS);
        for _ in 0..times {
            let behind = self.behind();
            if !self.small(rank, word(Kind::Small, behind)) {
                break;
            }
        }
    }

    fn put(&mut self, rank: usize, remote: RemotePiece, value: u8) -> bool {
        self.lent.push(vec![value; remote.len]);
        let payload = self.lent.last_mut().expect("just pushed");
        let op = RmaOp {
            ep: self.ranks[rank].ep,
            dest: self.to,
            read: false,
            iov: &[IoVec::from_mut(payload)],
            remote: &[remote],
            data: None,
            context: 0,
            completion: true,
            inject: false,
        };
        // SAFETY: the memory is kept until the engines are dropped.
        unsafe { self.net.hosts[1].engine.rma(&op, self.net.now) }.is_ok()
    }

    fn honest_write(&mut self) {
        let (rank, n) = (self.below(RANKS), self.below(self.blocks.len()));
        let Some(block) = self.blocks.get_mut(n).filter(|b| b.freed.is_none() && b.places < PLACES) else {
            return;
        };
        let bytes = block.bytes / (2 * PLACES);
        let (offset, key) = (block.places * bytes, block.net.block().key());
        block.places += 1;
        let value = 1 + self.ranks[rank].sent as u8 % 200;
        if !self.put(rank, RemotePiece { addr: offset as u64, len: bytes, key }, value) {
            return;
        }
        let behind = self.behind();
        if self.small(rank, word(Kind::Small, behind)) {
            let sent = self.ranks[rank].sent;
            self.ranks[rank].writes.push((sent, n, offset, bytes, value));
        }
    }

    fn honest_report(&mut self) {
        let rank = self.below(RANKS);
        let kind = [Kind::Arrived, Kind::Credit, Kind::Query, Kind::Release][self.below(4)];
        let value = match kind {
            Kind::Arrived => {
                self.ranks[rank].arrived += 1;
                self.ranks[rank].arrived
            }
            Kind::Release => self.node.as_ref().map_or(0, Node::passed) + 1,
            _ => self.byte().into(),
        };
        self.post(rank, Protocol::Msg, Some(word(kind, value)), vec![0; SMALL_BYTES]);
    }

    /// Takes what the node sends.
    fn listen(&mut self) {
        let rank = self.below(RANKS);
        self.lent.push(vec![0; LISTEN_BYTES]);
        let memory = self.lent.last_mut().expect("just pushed");
        let op = RecvOp {
            ep: self.ranks[rank].ep,
            protocol: Protocol::Msg,
            tag: 0,
            ignore: 0,
            src: None,
            iov: &[IoVec::from_mut(memory)],
            context: 0,
            completion: true,
            multi: true,
        };
        // SAFETY: the memory is kept until the engines are dropped.
        let _ = unsafe { self.net.hosts[1].engine.recv(&op, self.net.now) };
    }

    fn any_word(&mut self) {
        let rank = self.below(RANKS);
        let kinds = [Kind::Small, Kind::Credit, Kind::Obituary, Kind::Arrived, Kind::Release, Kind::Query];
        let kind = kinds[self.below(kinds.len())];
        let value = self.number();
        let times = [1, 1, 1, 200][self.below(4)];
        let more = self.number();
        for _ in 0..times {
            if kind == Kind::Small {
                self.small(rank, word(kind, value));
                continue;
            }
            if kind == Kind::Obituary && value == 0 {
                TALLY.count("obituary of the node itself", 1);
            }
            let mut payload = vec![0; SMALL_BYTES];
            payload[..8].copy_from_slice(&more.to_le_bytes());
            self.post(rank, Protocol::Msg, Some(word(kind, value)), payload);
        }
    }

    fn any_message(&mut self) {
        let rank = self.below(RANKS);
        let protocol = if self.byte() & 3 == 0 { Protocol::Tagged } else { Protocol::Msg };
        let data = (self.byte() & 3 != 0).then(|| self.number());
        let bytes = [0, 1, 15, 17, 1000, 8191, 8192, 8193, 20_000][self.below(9)];
        self.post(rank, protocol, data, vec![0x5a; bytes]);
    }

    fn any_write(&mut self) {
        let (rank, n) = (self.below(RANKS), self.below(self.blocks.len()));
        let bytes = [0, 1, 64, 2000, 10_000][self.below(5)];
        let (chance, number) = (self.byte(), self.number());
        let (addr, key) = match self.blocks.get(n) {
            Some(b) if chance & 3 != 0 => ((b.bytes / 2) as u64 + number % 10_000, b.net.block().key()),
            // behind every block, whatever its size
            _ => (number | 1 << 40, self.number()),
        };
        self.put(rank, RemotePiece { addr, len: bytes, key }, 0xee);
    }

    fn flood(&mut self) {
        let rank = self.below(RANKS);
        let behind = self.behind() + u64::from(self.byte() & 1);
        for _ in 0..WINDOW + 20 {
            if !self.small(rank, word(Kind::Small, behind)) {
                break;
            }
        }
    }

    fn close(&mut self) {
        let rank = self.below(RANKS);
        let (ep, now) = (self.ranks[rank].ep, self.net.now);
        self.net.hosts[1].engine.close_endpoint(ep, now);
    }

    // ---- what happens ------------------------------------------------------------------------------------------

    fn advance(&mut self) {
        self.net.work();
        while let Some(c) = self.net.hosts[1].engine.cq_pop(self.cq) {
            TALLY.count("write of a rank refused", c.error.is_some().into());
        }
        let (node, engine, now) = self.node();
        let (before, passed, held) = (node.taken(), node.passed(), node.holds_messages());
        node.advance(engine, now);
        for (row, (is, was)) in ROWS.iter().zip(node.taken().iter().zip(before)) {
            TALLY.count(row, is - was);
        }
        TALLY.count("held behind a write", u64::from(!held && node.holds_messages()));
        TALLY.count("barrier passed", node.passed() - passed);
        assert!(node.late() <= LATE_MAX, "{} messages wait for room", node.late());
        self.net.work();
        self.net.check();
    }

    fn end(self) {
        let Self { net, node, blocks, lent, .. } = self;
        net.check_memory();
        blocks.iter().for_each(Block::check);
        drop(net);
        if let Some(node) = node {
            // SAFETY: the engine was dropped.
            unsafe { node.free_buffers() };
        }
        drop(lent);
    }
}
