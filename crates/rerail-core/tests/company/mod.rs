#![allow(dead_code)] // each test program uses its part
//! A process and its peers, joined by two rails that carry datagrams at once and can be dark; streams never connect.
//! The tests count the queries.

use rerail_core::wire::Token;
use rerail_core::wire::packet::{PacketKind, peek};
use rerail_core::{
    Action, CloseReason, CompletionLevel, Datagram, Engine, EngineConfig, EpId, Identity, IoVec, Locator,
    Options, Protocol, RailDesc, RecvOp, Remedies, SendOp, Time, Train,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// A query that was sent, or another request of an engine about a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    pub at: Time,
    pub from: usize,
    pub to: usize,
    pub rail: u8,
}

/// Process 0 and its peers.
pub struct Company {
    pub engines: Vec<Engine>,
    pub endpoints: Vec<EpId>,
    pub now: Time,
    pub asked: Vec<Asked>,
    /// Streams that were opened, in vain.
    pub opened: Vec<Asked>,
    /// Neighbours that the network was requested to keep.
    pub kept: Vec<Asked>,
    /// Process and rail whose datagrams are lost, in both directions.
    pub dark: Vec<(usize, u8)>,
    under_way: VecDeque<(Time, usize, Datagram)>,
}

/// Time that a datagram takes.
const LATENCY: Duration = Duration::from_micros(20);

fn address(rail: u8, process: usize) -> SocketAddr {
    SocketAddr::from(([10, rail, (process / 250) as u8, (process % 250 + 1) as u8], 4000))
}

/// A rail of a process.
pub fn rail(process: usize, rail: u8) -> RailDesc {
    RailDesc { speed_mbps: 10_000, ..RailDesc::ip(&format!("eth{rail}"), address(rail, process), 16, 1500) }
}

/// The process that has this address.
fn process_at(to: Locator) -> usize {
    let &[_, _, high, low] = to.place() else { unreachable!("only IPv4 here") };
    usize::from(high) * 250 + usize::from(low) - 1
}

impl Company {
    /// Process 0 has sent a message to each of its peers, and all paths have answered.
    pub fn new(peers: usize, options: impl Fn(usize) -> Options) -> Company {
        Self::with_rails(peers, options, |i| (0..2).map(|r| rail(i, r)).collect())
    }

    /// The same with other rails.
    pub fn with_rails(
        peers: usize,
        options: impl Fn(usize) -> Options,
        rails: impl Fn(usize) -> Vec<RailDesc>,
    ) -> Company {
        let now = Time::from_ns(1_000_000_000);
        let mut c = Company {
            engines: Vec::new(),
            endpoints: Vec::new(),
            now,
            asked: Vec::new(),
            opened: Vec::new(),
            kept: Vec::new(),
            dark: Vec::new(),
            under_way: VecDeque::new(),
        };
        for i in 0..=peers {
            let mut token = [0; 16];
            token[2..6].copy_from_slice(&(i as u32 + 1).to_le_bytes());
            let config = EngineConfig {
                identity: Identity::toy(Token(token)),
                rails: rails(i),
                options: options(i),
                encrypts: false,
                seed: i as u64,
                host: i as u64,
                boot: 1,
                remedies: Remedies::default(),
            };
            let mut e = Engine::new(config, now).expect("a valid configuration");
            let cq = e.open_cq(16);
            c.endpoints.push(e.open_endpoint(cq, cq).expect("the first"));
            c.engines.push(e);
        }
        for p in 1..=peers {
            c.send(p);
        }
        c.pass(Duration::from_millis(100));
        c.asked.clear();
        c
    }

    /// A small message from process 0.
    pub fn send(&mut self, to: usize) {
        // SAFETY: an inject copies before it returns.
        unsafe { self.post(to, &[7; 8], true) };
    }

    /// A large message from process 0, of bytes that live for ever.
    pub fn send_large(&mut self, to: usize, bytes: &'static [u8]) {
        // SAFETY: the bytes are valid and do not change.
        unsafe { self.post(to, bytes, false) };
    }

    /// # Safety
    /// The bytes outlive the send.
    unsafe fn post(&mut self, to: usize, bytes: &[u8], inject: bool) {
        let address = self.engines[to].address(self.endpoints[to]);
        let dest = self.engines[0].endpoint_of(&address);
        let send = SendOp {
            ep: self.endpoints[0],
            dest,
            protocol: Protocol::Tagged,
            tag: 1,
            data: None,
            iov: &[IoVec::from_ref(bytes)],
            context: 0,
            completion: false,
            inject,
            level: CompletionLevel::Buffered,
        };
        // SAFETY: the caller's promise.
        unsafe { self.engines[0].send(&send, self.now) }.expect("there is room");
        self.collect(0);
    }

    /// Process 0 waits for a message from this peer.
    pub fn wait_for(&mut self, from: usize) {
        let address = self.engines[from].address(self.endpoints[from]);
        let src = self.engines[0].endpoint_of(&address);
        let receive = RecvOp {
            ep: self.endpoints[0],
            protocol: Protocol::Tagged,
            tag: 2,
            ignore: 0,
            src: Some(src),
            iov: &[],
            context: 0,
            completion: true,
            multi: false,
        };
        // SAFETY: it has no memory.
        unsafe { self.engines[0].recv(&receive, self.now) }.expect("a receive is always accepted");
    }

    /// Takes what an engine wants to send, and does what it wants done.
    fn collect(&mut self, i: usize) {
        let now = self.now;
        let mut d = Datagram::default();
        loop {
            while self.engines[i].poll_datagram(now, &mut d) {
                let (to, rail) = (process_at(d.to), d.rail.0);
                if matches!(peek(&d.bytes), Some((_, PacketKind::Ping))) {
                    self.asked.push(Asked { at: now, from: i, to, rail });
                }
                if !self.dark.iter().any(|&(p, r)| r == rail && (p == i || p == to)) {
                    self.under_way.push_back((now + LATENCY, i, std::mem::take(&mut d)));
                }
            }
            match self.engines[i].poll_action() {
                Some(Action::OpenStream { stream, rail, to }) => {
                    self.opened.push(Asked { at: now, from: i, to: process_at(to), rail: rail.0 });
                    self.engines[i].stream_closed(stream, CloseReason::Reset, now);
                }
                Some(Action::KeepNeighbour { rail, to }) => {
                    self.kept.push(Asked { at: now, from: i, to: process_at(to), rail: rail.0 });
                }
                Some(_) => {}
                None => break,
            }
        }
        while self.engines[i].poll_event().is_some() {}
    }

    /// Bulk of process 0 is on its way, and lost.
    pub fn lose_bulk(&mut self) {
        while self.engines[0].poll_train(self.now, &mut Train::default()) {}
        self.collect(0);
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let due = self.engines.iter().filter_map(Engine::poll_timeout).min();
            let next = self.under_way.front().map(|u| u.0).into_iter().chain(due).min().unwrap_or(end);
            self.now = self.now.max(next).min(end);
            while self.under_way.front().is_some_and(|u| u.0 <= self.now) {
                let (_, from, d) = self.under_way.pop_front().expect("there is a front");
                let to = process_at(d.to);
                let source = address(d.rail.0, from).into();
                self.engines[to].handle_datagram(d.rail, source, &d.bytes, self.now);
                self.collect(to);
            }
            for i in 0..self.engines.len() {
                if self.engines[i].poll_timeout().is_some_and(|t| t <= self.now) {
                    self.engines[i].handle_timeout(self.now);
                    self.collect(i);
                }
            }
            if self.now >= end {
                self.engines.iter().for_each(Engine::check);
            }
            if self.now >= end && self.under_way.front().is_none_or(|u| u.0 > end) {
                return;
            }
        }
    }
}
