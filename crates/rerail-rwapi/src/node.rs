//! One process of a job. Owns: what completions mean, and which nodes are gone.

use crate::Failure;
use crate::barrier::{Barrier, Message};
use crate::blocks::{Blocks, Unused};
use crate::inbox::{Inbox, Small, WINDOW};
use crate::net::{BlockName, NODES_MAX, Net};
use crate::sids::{Sid, Sids};
use crate::word::{Kind, SMALL_BYTES, parse, replaces, word};
use rerail_core::wire::Address;
use rerail_core::{
    Completion, CompletionError, CompletionKind, CompletionLevel, CqId, EndpointId, Engine, EpId, IoVec,
    PeerId, PostError, Protocol, RecvOp, Region, RemotePiece, RmaOp, SendOp, Time,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Buffers for messages that arrive. While one is being read the other takes more.
const BUFFERS: usize = 2;
/// Bytes of each.
const BUFFER_BYTES: usize = 8192;
/// Entries of the completion queue from which on messages wait.
const QUEUE_ENTRIES: usize = 4096;
/// The domain of the blocks.
const DOMAIN: u32 = 1;
/// Contexts of sends: this, and the node. Those of writes are their identifiers.
const SEND: usize = 1 << (usize::BITS - 1);

/// Why a call did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no room for it now.
    #[error("no room for more now: receive messages, and try again")]
    Again,
    /// No node has this number.
    #[error("no node has this number")]
    NoSuchNode,
    /// A write of no bytes, or a block of none.
    #[error("the size is 0")]
    Empty,
    /// The local address is in no block of this process, or the range leaves its block.
    #[error("the local range is not inside a block of this process")]
    Local,
    /// The remote address is not one of that node, or the range leaves any block.
    #[error("the remote range is not inside a block of that node")]
    Remote,
    /// The node is gone.
    #[error("the node is gone")]
    Gone,
    /// Too many writes have failed, and the program has not looked at their identifiers.
    #[error("4096 writes have failed and were not looked at: call rwapi_issent for them")]
    Failures,
    /// There is no such block, or it is too large.
    #[error("there is no such block, or there can be none of this size")]
    Block,
}

/// What [`Node::receive`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A small message of a node.
    Message(usize, Small),
    /// A node is gone. Reported once, after its last message.
    Gone(usize),
}

/// The memory of a node at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// What the program has given back.
    pub freed: Vec<Unused>,
    /// What it has not.
    pub owned: Vec<Unused>,
}

/// An endpoint whose address can be exchanged before the others are known.
#[derive(Debug)]
pub struct Port {
    ep: EpId,
    cq: CqId,
}

impl Port {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// See [`Engine::open_endpoint`].
    pub fn open(engine: &mut Engine) -> Result<Self, PostError> {
        let cq = engine.open_cq(QUEUE_ENTRIES);
        let ep = engine.open_endpoint(cq, cq)?;
        engine.set_domain(ep, DOMAIN);
        engine.set_multi_recv_min(ep, SMALL_BYTES);
        Ok(Self { ep, cq })
    }

    /// The endpoint, whose address the others need.
    pub fn endpoint(&self) -> EpId {
        self.ep
    }
}

/// A node of the job, as this one sees it.
#[derive(Debug, Clone)]
struct Peer {
    name: EndpointId,
    gone: bool,
    /// A completion comes when it is gone.
    watched: bool,
    /// Small messages sent to it, and of these those that its program has taken.
    sent: u64,
    taken: u64,
}

/// A write under way.
#[derive(Debug, Clone, Copy)]
struct Write {
    node: usize,
    source: BlockName,
}

/// Memory that the engine writes into.
#[derive(Debug)]
struct Buffer(*mut u8);

// SAFETY: the memory belongs to the node, and only the engine that was given it and this node touch it, under one lock.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new() -> Self {
        Self(Box::into_raw(Box::new([0u8; BUFFER_BYTES])).cast())
    }

    fn iov(&self) -> IoVec {
        IoVec { ptr: self.0, len: BUFFER_BYTES }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    rank: usize,
    port: Port,
    peers: Vec<Peer>,
    by_name: FxHashMap<EndpointId, usize>,
    blocks: Blocks,
    sids: Sids<Write>,
    inbox: Inbox,
    barrier: Barrier,
    /// Nodes whose end the program has not been told.
    unreported: Vec<usize>,
    /// Messages that found no room: to which node, the word, the rest.
    late: VecDeque<(usize, u64, Small)>,
    /// Memory that the program has given back, and that nothing uses now.
    unused: Vec<Unused>,
    /// Never freed: the engine may write into it for as long as it lives.
    buffers: [Buffer; BUFFERS],
    /// This node leaves: that others do as well is no news.
    leaving: bool,
    changes: u64,
    /// Planted: messages do not wait for the writes before them.
    overtakes: bool,
    /// How often a message of each kind was taken; first, what was none.
    #[cfg(feature = "hostile")]
    taken: [u64; 7],
}

impl Node {
    /// Joins a job as the process of this rank. `addresses`: of all, by rank.
    ///
    /// # Errors
    /// The number of nodes or the rank is not possible, two have one address, or see [`PostError`].
    pub fn join(
        engine: &mut Engine,
        port: Port,
        rank: usize,
        addresses: &[Address],
        now: Time,
    ) -> Result<Self, PostError> {
        let nodes = addresses.len();
        if nodes > NODES_MAX || rank >= nodes {
            return Err(PostError::Invalid("a job has at most 65536 nodes, and ranks below their number"));
        }
        let peer = |address| Peer {
            name: engine.endpoint_of(address),
            gone: false,
            watched: false,
            sent: 0,
            taken: 0,
        };
        let peers: Vec<Peer> = addresses.iter().map(peer).collect();
        let by_name: FxHashMap<EndpointId, usize> =
            peers.iter().enumerate().map(|(node, p)| (p.name, node)).collect();
        if by_name.len() < nodes {
            return Err(PostError::Invalid("two processes of the job have one address"));
        }
        let mut node = Self {
            rank,
            port,
            by_name,
            blocks: Blocks::default(),
            sids: Sids::default(),
            inbox: Inbox::new(nodes),
            barrier: Barrier::new(rank, nodes),
            unreported: Vec::new(),
            late: VecDeque::new(),
            unused: Vec::new(),
            buffers: std::array::from_fn(|_| Buffer::new()),
            leaving: false,
            changes: 0,
            overtakes: false,
            #[cfg(feature = "hostile")]
            taken: [0; 7],
            peers,
        };
        for buffer in 0..BUFFERS {
            node.post_buffer(engine, buffer, now)?;
        }
        node.keep_watch(engine, now)?;
        Ok(node)
    }

    fn post_buffer(&self, engine: &mut Engine, buffer: usize, now: Time) -> Result<(), PostError> {
        let op = RecvOp {
            ep: self.port.ep,
            protocol: Protocol::Msg,
            tag: 0,
            ignore: 0,
            src: None,
            iov: &[self.buffers[buffer].iov()],
            context: buffer,
            completion: true,
            multi: true,
        };
        // SAFETY: the memory is never freed, and is read only where the engine reports that it has written there.
        unsafe { engine.recv(&op, now) }
    }

    /// Watches the nodes at the distances 1, 2, 4, …, and in the place of one that is gone the next that is not: few for each node, and news of
    /// a death reaches all in few steps. Each node is watched by the one before it, so none that is gone is missed, whatever else is.
    fn keep_watch(&mut self, engine: &mut Engine, now: Time) -> Result<(), PostError> {
        let nodes = self.size();
        for distance in (0..).map_while(|k| 1usize.checked_shl(k)).take_while(|d| *d < nodes) {
            let mut from = (distance..nodes).map(|d| (self.rank + d) % nodes);
            if let Some(node) = from.find(|node| !self.peers[*node].gone) {
                self.watch(engine, node, now)?;
            }
        }
        Ok(())
    }

    /// A receive that nothing matches: it ends when the node is gone, and until then its life is looked after.
    fn watch(&mut self, engine: &mut Engine, node: usize, now: Time) -> Result<(), PostError> {
        if std::mem::replace(&mut self.peers[node].watched, true) {
            return Ok(());
        }
        let op = RecvOp {
            ep: self.port.ep,
            protocol: Protocol::Tagged,
            tag: 0,
            ignore: 0,
            src: Some(self.peers[node].name),
            iov: &[],
            context: node,
            completion: true,
            multi: false,
        };
        // SAFETY: there is no memory.
        unsafe { engine.recv(&op, now) }
    }

    /// Its rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Nodes of the job, those that are gone among them.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> EpId {
        self.port.ep
    }

    /// The queue that [`Node::advance`] reads.
    pub fn queue(&self) -> CqId {
        self.port.cq
    }

    /// Grows with everything that may let a waiting program go on.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether [`Node::receive`] would find something.
    pub fn has_news(&self) -> bool {
        self.inbox.has_message() || self.reportable().is_some()
    }

    // ---- memory ------------------------------------------------------------------------------------------------

    /// Makes memory a block that other nodes may write.
    ///
    /// # Safety
    /// The memory is valid until [`Node::take_unused`] gives it back.
    ///
    /// # Errors
    /// [`Refused::Empty`], [`Refused::Block`].
    pub unsafe fn add_block(
        &mut self,
        engine: &mut Engine,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<Net, Refused> {
        if bytes == 0 {
            return Err(Refused::Empty);
        }
        let name = self.blocks.add(ptr, bytes).ok_or(Refused::Block)?;
        let region = Region {
            domain: DOMAIN,
            key: name.key(),
            pieces: &[IoVec { ptr, len: bytes }],
            origin: 0,
            readable: false,
            writable: true,
        };
        // SAFETY: the caller's promise; the region is taken away before the memory is given back.
        unsafe { engine.register(&region) }.expect("the name of a block is given once");
        Ok(name.net(self.rank))
    }

    /// The program gives a block back: nothing writes it when the call returns. Its memory is in [`Node::take_unused`] when no write
    /// reads it.
    ///
    /// # Errors
    /// [`Refused::Block`]: no block begins there.
    pub fn free(&mut self, engine: &mut Engine, ptr: *mut u8, now: Time) -> Result<(), Refused> {
        let name = self.blocks.at(ptr).ok_or(Refused::Block)?;
        engine.unregister(DOMAIN, name.key(), now);
        self.unused.extend(self.blocks.free(name));
        Ok(())
    }

    /// Memory that nothing uses any more.
    pub fn take_unused(&mut self) -> Vec<Unused> {
        std::mem::take(&mut self.unused)
    }

    // ---- messages and writes -----------------------------------------------------------------------------------

    fn living(&self, node: usize) -> Result<&Peer, Refused> {
        let peer = self.peers.get(node).ok_or(Refused::NoSuchNode)?;
        if peer.gone { Err(Refused::Gone) } else { Ok(peer) }
    }

    /// The name of a node that may be sent a small message.
    fn room_for_message(&self, node: usize) -> Result<EndpointId, Refused> {
        let peer = self.living(node)?;
        // what waits for room goes first
        let waits = self.late.iter().any(|(to, ..)| *to == node);
        if waits || peer.sent - peer.taken >= WINDOW { Err(Refused::Again) } else { Ok(peer.name) }
    }

    /// Sends a small message.
    ///
    /// # Errors
    /// [`Refused::Again`], [`Refused::NoSuchNode`], [`Refused::Gone`].
    pub fn send(
        &mut self,
        engine: &mut Engine,
        node: usize,
        small: &Small,
        now: Time,
    ) -> Result<(), Refused> {
        let name = self.room_for_message(node)?;
        let behind = engine.operations_begun(name.peer);
        self.post(engine, node, word(Kind::Small, behind), small, now)?;
        self.peers[node].sent += 1;
        Ok(())
    }

    fn post(
        &mut self,
        engine: &mut Engine,
        node: usize,
        word: u64,
        payload: &Small,
        now: Time,
    ) -> Result<(), Refused> {
        let op = SendOp {
            ep: self.port.ep,
            dest: self.peers[node].name,
            protocol: Protocol::Msg,
            tag: 0,
            data: Some(word),
            iov: &[IoVec::from_ref(payload)],
            context: SEND | node,
            completion: false,
            inject: true,
            level: CompletionLevel::Buffered,
        };
        // SAFETY: what is injected is copied in the call.
        let posted = unsafe { engine.send(&op, now) };
        self.posted(engine, node, posted, now)
    }

    fn posted(
        &mut self,
        engine: &mut Engine,
        node: usize,
        posted: Result<(), PostError>,
        now: Time,
    ) -> Result<(), Refused> {
        match posted {
            Ok(()) => Ok(()),
            Err(PostError::Again) => Err(Refused::Again),
            // the endpoint is open and the operation well formed: what is left is that the node is gone. Why, the next completion says: to take it
            // for unreachable here would keep a death from the others
            Err(_) => {
                let _ = self.watch(engine, node, now);
                Err(Refused::Gone)
            }
        }
    }

    /// Writes a range of a block of this process into a range of a block of a node.
    ///
    /// # Errors
    /// See [`Refused`]. That the target refuses, [`Node::is_sent`] reports.
    pub fn write(
        &mut self,
        engine: &mut Engine,
        node: usize,
        local: Net,
        remote: Net,
        bytes: usize,
        now: Time,
    ) -> Result<Sid, Refused> {
        self.living(node)?;
        if bytes == 0 {
            return Err(Refused::Empty);
        }
        let (source, ptr) = Some(local)
            .filter(|local| local.node() == self.rank)
            .and_then(|local| self.blocks.find(local, bytes))
            .ok_or(Refused::Local)?;
        let end = remote.0.checked_add(bytes as u64 - 1).map(Net);
        if remote.node() != node || end.map(Net::block) != Some(remote.block()) {
            return Err(Refused::Remote);
        }
        if self.sids.is_full() {
            return Err(Refused::Failures);
        }
        let sid = self.sids.next();
        let op = RmaOp {
            ep: self.port.ep,
            dest: self.peers[node].name,
            read: false,
            iov: &[IoVec { ptr, len: bytes }],
            remote: &[RemotePiece { addr: remote.offset(), len: bytes, key: remote.block().key() }],
            data: None,
            context: sid.0 as usize,
            completion: true,
            inject: false,
        };
        // SAFETY: the block is lent until the completion, and memory that is lent is not given back.
        let posted = unsafe { engine.rma(&op, now) };
        self.posted(engine, node, posted, now)?;
        self.blocks.lend(source);
        Ok(self.sids.begin(Write { node, source }))
    }

    /// Writes, and sends a small message behind the write: both or neither.
    ///
    /// # Errors
    /// As [`Node::write`].
    #[allow(clippy::too_many_arguments)]
    pub fn write_notify(
        &mut self,
        engine: &mut Engine,
        node: usize,
        local: Net,
        remote: Net,
        bytes: usize,
        small: &Small,
        now: Time,
    ) -> Result<Sid, Refused> {
        self.room_for_message(node)?;
        let sid = self.write(engine, node, local, remote, bytes, now)?;
        let behind = engine.operations_begun(self.peers[node].name.peer);
        self.post_or_keep(engine, node, word(Kind::Small, behind), small, now);
        self.peers[node].sent += 1;
        Ok(sid)
    }

    /// Whether a write is done: its bytes are in place, and the local memory may be used again.
    ///
    /// # Errors
    /// As [`Sids::is_done`].
    pub fn is_sent(&mut self, sid: Sid) -> Result<bool, Option<Failure>> {
        self.sids.is_done(sid)
    }

    /// Writes that are under way.
    pub fn writes_under_way(&self) -> usize {
        self.sids.under_way()
    }

    /// Whether messages have arrived that stand behind writes which are not in place.
    pub fn holds_messages(&self) -> bool {
        self.inbox.holding().next().is_some()
    }

    /// The oldest small message, or the news that a node is gone.
    pub fn receive(&mut self, engine: &mut Engine, now: Time) -> Option<Received> {
        let found = self.take();
        self.post_credits(engine, now);
        found
    }

    /// The same without the engine. [`Node::owes_credit`] says whether the owner should call [`Node::post_credits`] soon.
    pub fn take(&mut self) -> Option<Received> {
        if let Some(i) = self.reportable() {
            return Some(Received::Gone(self.unreported.remove(i)));
        }
        self.inbox.take().map(|(node, small)| Received::Message(node, small))
    }

    /// Whether a sender waits to be told that there is room again.
    pub fn owes_credit(&self) -> bool {
        self.inbox.owes_credit()
    }

    /// Reports to senders what the program has taken.
    pub fn post_credits(&mut self, engine: &mut Engine, now: Time) {
        while let Some((node, taken)) = self.inbox.credit() {
            if !self.peers[node].gone {
                self.post_or_keep(engine, node, word(Kind::Credit, taken), &[0; SMALL_BYTES], now);
            }
        }
    }

    /// The messages that wait for writes: of which peer, and how many of its operations have to be in place.
    pub fn held(&self) -> Vec<(PeerId, u64)> {
        let holding = self.inbox.holding();
        holding
            .filter_map(|n| self.inbox.held_behind(n).map(|behind| (self.peers[n].name.peer, behind)))
            .collect()
    }

    /// A node as the engine numbers it.
    pub fn peer(&self, node: usize) -> Option<PeerId> {
        self.peers.get(node).map(|p| p.name.peer)
    }

    fn reportable(&self) -> Option<usize> {
        self.unreported.iter().position(|node| self.inbox.has_none_of(*node))
    }

    /// Sends a message now, or as soon as there is room. To a node that is gone nothing is sent.
    fn post_or_keep(&mut self, engine: &mut Engine, node: usize, word: u64, payload: &Small, now: Time) {
        // a peer that sends queries and takes no answers must not make this grow
        let older = self.late.iter_mut().find(|(to, kept, _)| *to == node && replaces(*kept, word));
        if let Some((_, kept, rest)) = older {
            (*kept, *rest) = (word, *payload);
            return;
        }
        let waits = self.late.iter().any(|(to, ..)| *to == node);
        if waits || self.post(engine, node, word, payload, now) == Err(Refused::Again) {
            self.late.push_back((node, word, *payload));
        }
    }

    fn post_late(&mut self, engine: &mut Engine, now: Time) {
        // all are taken out, so that none waits for one behind it; what finds no room stays in its order
        for (node, word, payload) in std::mem::take(&mut self.late) {
            if !self.peers[node].gone {
                self.post_or_keep(engine, node, word, &payload, now);
            }
        }
    }

    /// Sends what the barrier wants to be sent.
    fn post_all(&mut self, engine: &mut Engine, messages: Vec<Message>, now: Time) {
        for Message { node, kind, value, more } in messages {
            let mut payload = [0; SMALL_BYTES];
            payload[..8].copy_from_slice(&more.to_le_bytes());
            self.post_or_keep(engine, node, word(kind, value), &payload, now);
        }
    }

    // ---- barriers ----------------------------------------------------------------------------------------------

    /// Arrives at the next barrier. Its number.
    pub fn arrive(&mut self, engine: &mut Engine, now: Time) -> u64 {
        let mut out = Vec::new();
        self.barrier.arrive(&mut out);
        self.post_all(engine, out, now);
        self.barrier.arrived()
    }

    /// Barriers that all living nodes have arrived at.
    pub fn passed(&self) -> u64 {
        self.barrier.passed()
    }

    /// The program ends its part: from now on the end of other nodes is no news.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Whether all that was to be sent was given to the engine.
    pub fn is_flushed(&self) -> bool {
        self.late.is_empty() && self.sids.under_way() == 0
    }

    // ---- what happens ------------------------------------------------------------------------------------------

    /// Takes what has completed. To be called after each piece of progress.
    pub fn advance(&mut self, engine: &mut Engine, now: Time) {
        while let Some(c) = engine.cq_pop(self.port.cq) {
            match (c.kind, c.protocol) {
                (CompletionKind::Recv, Protocol::Msg) => self.arrived(engine, &c, now),
                (CompletionKind::Recv, _) => self.lose(engine, c.context, is_death(&c), now),
                (CompletionKind::Write, _) => self.written(engine, &c, now),
                (CompletionKind::Send, _) if c.error.is_some() => {
                    self.lose(engine, c.context & !SEND, is_death(&c), now);
                }
                _ => {}
            }
        }
        self.post_credits(engine, now);
        self.post_late(engine, now);
        let holding: Vec<usize> = self.inbox.holding().collect();
        for node in holding {
            self.let_pass(engine, node);
        }
    }

    /// Lets messages pass whose writes are in place.
    fn let_pass(&mut self, engine: &Engine, node: usize) {
        let peer = self.peers[node].name.peer;
        let overtakes = self.overtakes;
        let passed = self.inbox.pass(node, |behind| overtakes || !engine.awaits_write(peer, behind));
        self.changes += passed as u64;
    }

    fn written(&mut self, engine: &mut Engine, c: &Completion, now: Time) {
        let failure = c.error.map(|e| match e {
            CompletionError::Access(_) => Failure::Refused,
            _ => Failure::Gone,
        });
        let Some(write) = self.sids.end(Sid(c.context as u64), failure) else { return };
        self.changes += 1;
        self.unused.extend(self.blocks.end_loan(write.source));
        if failure == Some(Failure::Gone) {
            self.lose(engine, write.node, is_death(c), now);
        }
    }

    fn arrived(&mut self, engine: &mut Engine, c: &Completion, now: Time) {
        if !c.released_only {
            self.message(engine, c, now);
        }
        if c.multi_released {
            // refused only when the endpoint is closed
            let _ = self.post_buffer(engine, c.context, now);
        }
    }

    /// A message of a node. What makes no sense comes from no node of the job, or from a broken one, and is dropped.
    fn message(&mut self, engine: &mut Engine, c: &Completion, now: Time) {
        let Some(node) = c.src.and_then(|src| self.by_name.get(&src)).copied() else { return };
        let parsed = c.data.and_then(parse).filter(|_| c.len == SMALL_BYTES);
        #[cfg(feature = "hostile")]
        {
            self.taken[parsed.map_or(0, |(kind, _)| kind as usize)] += 1;
        }
        let Some((kind, value)) = parsed else { return };
        let begin = self.buffers[c.context].0;
        let offset = (c.buf).wrapping_sub(begin as usize);
        assert!(offset + SMALL_BYTES <= BUFFER_BYTES, "a message lies in the buffer that took it");
        let mut small = [0; SMALL_BYTES];
        // SAFETY: inside the buffer; the engine has reported these bytes, and does not write them again before the buffer is posted.
        unsafe { std::ptr::copy_nonoverlapping(begin.add(offset), small.as_mut_ptr(), SMALL_BYTES) };
        let more = u64::from_le_bytes(small[..8].try_into().expect("eight bytes"));
        let mut out = Vec::new();
        match kind {
            // its end was reported: this node believed a report of another one
            Kind::Small if self.peers[node].gone && !self.unreported.contains(&node) => {}
            Kind::Small => {
                if !self.inbox.arrive(node, small, value) {
                    // it keeps no window: none of the job's
                    return self.lose(engine, node, false, now);
                }
                self.let_pass(engine, node);
                if self.peers[node].gone {
                    // it was taken later than the news of the end
                    self.inbox.drop_held(node);
                }
            }
            Kind::Credit => {
                let peer = &mut self.peers[node];
                peer.taken = peer.taken.max(value.min(peer.sent));
                self.changes += 1;
            }
            Kind::Obituary => {
                if let Some(dead) = usize::try_from(value).ok().filter(|dead| *dead < self.peers.len()) {
                    self.lose(engine, dead, true, now);
                }
            }
            Kind::Arrived => self.barrier.reported(node, value, more, &mut out),
            Kind::Release => self.barrier.released(value),
            Kind::Query => self.barrier.queried(node, &mut out),
        }
        self.changes += u64::from(matches!(kind, Kind::Arrived | Kind::Release));
        self.post_all(engine, out, now);
    }

    /// A node is gone. `died`: for all others as well.
    fn lose(&mut self, engine: &mut Engine, node: usize, died: bool, now: Time) {
        if node >= self.peers.len() || node == self.rank || self.peers[node].gone {
            return;
        }
        // what has arrived of it is not lost
        self.let_pass(engine, node);
        self.inbox.drop_held(node);
        self.peers[node].gone = true;
        self.late.retain(|(to, ..)| *to != node);
        self.changes += 1;
        if !self.leaving {
            self.unreported.push(node);
        }
        if died && !self.leaving {
            let distances = (0..).map_while(|k| 1usize.checked_shl(k)).take_while(|d| *d < self.size());
            let size = self.size();
            let circle: Vec<usize> =
                distances.flat_map(|d| [(self.rank + d) % size, (self.rank + size - d) % size]).collect();
            for other in circle {
                if !self.peers[other].gone && other != self.rank {
                    self.post_or_keep(
                        engine,
                        other,
                        word(Kind::Obituary, node as u64),
                        &[0; SMALL_BYTES],
                        now,
                    );
                }
            }
        }
        if !self.leaving {
            // refused only when the endpoint is closed
            let _ = self.keep_watch(engine, now);
        }
        let mut out = Vec::new();
        self.barrier.lose(node, &mut out);
        self.post_all(engine, out, now);
    }

    /// The end of the job for this node: all its memory, which no other node may write any more, and which nothing uses once the endpoint is
    /// closed.
    pub fn end(&mut self, engine: &mut Engine, now: Time) -> Left {
        for name in self.blocks.names() {
            engine.unregister(DOMAIN, name.key(), now);
        }
        let (mut freed, owned) = self.blocks.take_all();
        freed.extend(self.take_unused());
        Left { freed, owned }
    }

    /// How often a message of each [`Kind`] was taken, by its number; at 0, what was no message.
    #[cfg(feature = "hostile")]
    pub fn taken(&self) -> [u64; 7] {
        self.taken
    }

    /// Messages that wait for room.
    #[cfg(feature = "hostile")]
    pub fn late(&self) -> usize {
        self.late.len()
    }

    /// Frees the buffers, for runs of many nodes in one process.
    ///
    /// # Safety
    /// The engine was dropped.
    #[cfg(feature = "hostile")]
    pub unsafe fn free_buffers(self) {
        for Buffer(ptr) in self.buffers {
            // SAFETY: from `Buffer::new`, and by the caller's promise no engine writes there any more.
            drop(unsafe { Box::from_raw(ptr.cast::<[u8; BUFFER_BYTES]>()) });
        }
    }

    /// Plants the bug that messages do not wait for the writes before them.
    #[cfg(feature = "planted-bugs")]
    pub fn plant_overtaking(&mut self) {
        self.overtakes = true;
    }

    /// Plants the bug that identifiers are used again early.
    #[cfg(feature = "planted-bugs")]
    pub fn plant_early_reuse(&mut self, writes: u64) {
        self.sids.use_again_after(writes);
    }
}

fn is_death(c: &Completion) -> bool {
    c.error == Some(CompletionError::PeerDied)
}
