//! A process: one engine, its clock, and what its kernel keeps for it. Owns: when the engine is called, and with what.
//!
//! A process runs, computes (only the service thread calls the engine, late), is locked (hazard H17: the service thread
//! answers queries from the responder and cannot call the engine), or is stopped (nothing runs; the kernel still takes
//! what fits into its buffers).

use super::app::{App, Phase};
use super::ports::{INBOX_OVERHEAD, SimPorts, StandingClock};
use super::stream::{Conn, Notice};
use super::{Ev, World};
use crate::cipher::{Book, Seal};
use crate::link::{MS, US};
use crate::trace::packet_text;
use rerail_core::{
    Answerer, CloseReason, Counters, CqId, Datagram, DeathProof, EndpointId, Engine, EpId, Epoch, EventKind,
    Locator, PathId, RailEvent, RailId, Respond, Responder, StreamId, Time, Train, Witness,
};
use rerail_driver::{Driver, ProgressOptions, STASH_MAX};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Refused connects that an engine takes for a death when there is no other proof: `REFUSALS_ALONE_MAX` of its `liveness`.
const REFUSALS_ALONE: usize = 8;
/// Longest time between two calls of a running engine (half the absence of hazard H12).
pub const TICK_NS: u64 = 10 * MS;
/// What an engine may keep of anything that is not a message: a window of datagrams, and the frames of a stream that may be under
/// way, for one path.
const LIST_MAX: usize = 2048;
/// What the kernel keeps of datagrams for a process that does not read.
const INBOX_BYTES_MAX: usize = 212_992;
/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The application calls the engine all the time.
    Running,
    /// The application computes; the service thread calls the engine within this time.
    Computing {
        /// Longest reaction.
        react_ns: u64,
    },
    /// An application thread holds the engine's lock and does not run.
    Locked,
    /// Nothing runs.
    Stopped,
}

/// A monotonic clock with an origin and a speed of its own.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// What it showed when its speed last changed.
    pub origin: u64,
    /// How much faster than the world's it is, in millionths.
    pub drift_ppm: i64,
    /// World time when its speed last changed.
    pub since: u64,
}

impl Clock {
    /// What it shows at `world` time.
    pub fn local(&self, world: u64) -> Time {
        let passed = world - self.since;
        let d = (passed as i128 * i128::from(self.drift_ppm) / 1_000_000) as i64;
        Time::from_ns((self.origin + passed).wrapping_add_signed(d))
    }

    /// When it shows `local`, or a little later.
    pub fn world(&self, local: Time) -> u64 {
        let x = local.ns().saturating_sub(self.origin) as i128;
        self.since + ((x * 1_000_000) / (1_000_000 + i128::from(self.drift_ppm))) as u64 + 1
    }

    /// From `world` time on it runs at another speed, after a leap forward.
    pub fn change(&mut self, world: u64, drift_ppm: i64, leap: u64) {
        self.origin = self.local(world).ns() + leap;
        self.since = world;
        self.drift_ppm = drift_ppm;
    }

    /// It stood still since `from`, and goes on now.
    pub fn stood_still(&mut self, from: u64, world: u64) {
        self.origin = self.local(from).ns();
        self.since = world;
    }
}

/// A process.
pub struct Process {
    /// Its engine, until it exits.
    pub engine: Option<Box<Engine>>,
    /// What drives the engine, the same as in the product.
    pub(crate) driver: Option<Box<Driver>>,
    /// Its keys for each peer, if it encrypts.
    pub book: Option<Book>,
    /// Routes that it leads datagrams over: from which rail, to which place; the others go by the usual one.
    pub led: FxHashMap<(RailId, Locator), u8>,
    /// When it exited without closing.
    pub exited_at: Option<Time>,
    /// Its host.
    pub host: usize,
    /// Port of everything.
    pub port: u16,
    /// Networks, by rail.
    pub nets: Vec<usize>,
    /// Clock.
    pub clock: Clock,
    /// What it is doing.
    pub mode: Mode,
    /// Changes with every mode, so that an end that was planned for an earlier one is ignored.
    pub mode_number: u32,
    /// The service thread's table for when the engine is locked.
    pub responder: Responder,
    /// Datagrams in the kernel's buffer.
    pub inbox: VecDeque<(RailId, Locator, Vec<u8>)>,
    pub(crate) inbox_bytes: usize,
    /// Datagrams that the service thread has read while the engine was locked.
    pub stash: VecDeque<(RailId, Locator, Vec<u8>)>,
    /// Changes of its interfaces that the service thread has read.
    pub link_changes: VecDeque<(RailId, RailEvent)>,
    /// Connections that wait to be accepted: which, on which rail, from where.
    pub incoming: VecDeque<(usize, RailId, Locator)>,
    /// News of the kernel.
    pub notices: VecDeque<Notice>,
    /// Ends with unread bytes.
    pub readable: VecDeque<(usize, usize)>,
    /// Streams by name.
    pub streams: FxHashMap<StreamId, (usize, usize)>,
    /// Own endpoints.
    pub eps: Vec<EpId>,
    /// Completion queues to be read.
    pub cqs: Vec<CqId>,
    /// How this engine calls the endpoints of the world.
    pub ids: Vec<Option<EndpointId>>,
    /// The other way round.
    pub known: FxHashMap<EndpointId, usize>,
    /// When it connected to each address within the last second.
    pub connects: FxHashMap<Locator, VecDeque<Time>>,
    /// When a connection of its was reset by the network, lately; times of the world.
    pub resets: VecDeque<u64>,
    /// Paths that came into service, and in which epochs: peer, path, epoch. Only where no path may go out of service.
    pub ups: Vec<(u32, PathId, Epoch)>,
    /// Counters of an engine that has exited.
    pub last: Counters,
    /// When the last event of each rail was reported.
    pub rail_told: Vec<u64>,
    /// It was killed.
    pub killed: bool,
    /// The application.
    pub app: App,
    wake_at: u64,
    wakes: u32,
}

impl Process {
    pub(crate) fn new(
        host: usize,
        port: u16,
        nets: Vec<usize>,
        clock: Clock,
        now: Time,
        engine: Box<Engine>,
        app: App,
    ) -> Self {
        Self {
            engine: Some(engine),
            driver: Some(Box::new(Driver::new(now))),
            book: None,
            led: FxHashMap::default(),
            exited_at: None,
            host,
            port,
            last: Counters::default(),
            rail_told: vec![0; nets.len()],
            nets,
            clock,
            mode: Mode::Running,
            mode_number: 0,
            responder: Responder::default(),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            stash: VecDeque::new(),
            link_changes: VecDeque::new(),
            incoming: VecDeque::new(),
            notices: VecDeque::new(),
            readable: VecDeque::new(),
            streams: FxHashMap::default(),
            eps: Vec::new(),
            cqs: Vec::new(),
            ids: Vec::new(),
            known: FxHashMap::default(),
            connects: FxHashMap::default(),
            resets: VecDeque::new(),
            ups: Vec::new(),
            killed: false,
            app,
            wake_at: u64::MAX,
            wakes: 0,
        }
    }
}

impl Process {
    /// Whether something waits to be read.
    fn has_input(&self) -> bool {
        !(self.inbox.is_empty()
            && self.stash.is_empty()
            && self.link_changes.is_empty()
            && self.incoming.is_empty()
            && self.notices.is_empty()
            && self.readable.is_empty())
    }
}

impl World {
    /// Puts a process into another mode.
    pub fn set_mode(&mut self, p: usize, mode: Mode) {
        self.procs[p].mode = mode;
        self.procs[p].mode_number += 1;
        self.trace(|| format!("p{p} is {mode:?}"));
        if !matches!(mode, Mode::Stopped | Mode::Locked) {
            self.wake(p, self.now);
        }
    }

    /// The process is to be run at `at` or earlier.
    pub(crate) fn wake(&mut self, p: usize, at: u64) {
        let at = at.max(self.now);
        if at < self.procs[p].wake_at {
            self.procs[p].wake_at = at;
            self.at(at, Ev::Wake { p });
        }
    }

    /// Input is there: the process is to run after its reaction time.
    fn wake_for_input(&mut self, p: usize) {
        let after = match self.procs[p].mode {
            Mode::Running => self.net_rng.range(300, 3 * US),
            Mode::Computing { react_ns } => 20 * US + self.net_rng.below(react_ns),
            Mode::Locked | Mode::Stopped => return,
        };
        self.wake(p, self.now + after);
    }

    /// Whether there is a process that can be told anything.
    fn listens(&self, p: usize) -> bool {
        p != usize::MAX && (self.procs[p].engine.is_some() || self.running(p))
    }

    pub(crate) fn notice(&mut self, p: usize, n: Notice) {
        if self.listens(p) {
            self.procs[p].notices.push_back(n);
            self.wake_for_input(p);
        }
    }

    /// A connection waits to be accepted.
    pub(crate) fn offer(&mut self, p: usize, c: usize, rail: RailId, from: Locator) {
        if self.listens(p) {
            self.procs[p].incoming.push_back((c, rail, from));
            self.wake_for_input(p);
        }
    }

    /// Tells one process about a rail at once.
    pub fn tell_rail(&mut self, p: usize, rail: u8, event: RailEvent) {
        if self.listens(p) {
            self.procs[p].link_changes.push_back((RailId(rail), event));
            self.wake_for_input(p);
        }
    }

    pub(crate) fn list_readable(&mut self, c: usize, side: usize) {
        let e = &mut self.conns[c].ends[side];
        if e.listed || e.unwanted || e.closing {
            return;
        }
        e.listed = true;
        let p = e.proc;
        self.procs[p].readable.push_back((c, side));
        self.wake_for_input(p);
    }

    /// A datagram arrives at a process.
    pub(crate) fn receive_datagram(
        &mut self,
        p: usize,
        rail: RailId,
        from: Locator,
        bytes: Vec<u8>,
        seal: &Seal,
    ) {
        if self.procs[p].engine.is_none() {
            self.recycle(bytes);
            return;
        }
        if bytes.len() > 8 && self.procs[p].book.as_ref().is_some_and(|b| !b.opens(&bytes, seal)) {
            // no key opens it (yet)
            self.recycle(bytes);
            return;
        }
        if self.procs[p].mode == Mode::Locked {
            let mut out = std::mem::take(&mut self.scratch);
            let what = self.procs[p].responder.respond(rail, &bytes, Answerer::Bypass, &mut out);
            if what == Respond::Answered {
                self.send_datagram(p, out.rail, out.to, &out.bytes);
            }
            self.scratch = out;
            if what == Respond::ForEngine && self.procs[p].stash.len() < STASH_MAX {
                self.procs[p].stash.push_back((rail, from, bytes));
            } else {
                self.recycle(bytes);
            }
            return;
        }
        let q = &mut self.procs[p];
        if q.inbox_bytes + bytes.len() + INBOX_OVERHEAD > INBOX_BYTES_MAX {
            self.overruns += 1;
            self.recycle(bytes);
            return;
        }
        q.inbox_bytes += bytes.len() + INBOX_OVERHEAD;
        q.inbox.push_back((rail, from, bytes));
        self.wake_for_input(p);
    }

    pub(crate) fn on_wake(&mut self, p: usize) {
        if self.procs[p].wake_at != self.now {
            return;
        }
        self.procs[p].wake_at = u64::MAX;
        if matches!(self.procs[p].mode, Mode::Stopped | Mode::Locked) {
            return;
        }
        self.progress(p);
    }

    /// One round of a process: a piece of progress, and the application.
    pub(crate) fn progress(&mut self, p: usize) {
        let Some(mut engine) = self.procs[p].engine.take() else { return };
        let mut driver = self.take_driver(p);
        self.busy = Some(p);
        let now = self.procs[p].clock.local(self.now);
        let clock = StandingClock(now);
        let options = self.progress_options(p);
        let done = driver.progress(&mut *engine, &mut SimPorts { world: self, p }, &clock, options);
        self.check_nothing_forgotten(p, &engine, done.more, now);
        let mut more = done.more;
        if self.procs[p].mode == Mode::Running {
            self.app_run(p, &mut engine, now);
            let flushed = driver.flush(&mut *engine, &mut SimPorts { world: self, p }, &clock, now);
            self.check_nothing_forgotten(p, &engine, flushed, now);
            more |= flushed;
        }
        self.rounds += 1;
        self.procs[p].wakes += 1;
        if self.cfg.check_every > 0 && self.procs[p].wakes % self.cfg.check_every == 0 {
            self.check_engine(p, &engine);
        }
        self.busy = None;
        if self.app_gone(p) {
            self.retire(p, engine);
            return;
        }
        let mut at = self.now + TICK_NS;
        if let Some(t) = engine.poll_timeout() {
            at = at.min(self.procs[p].clock.world(t));
        }
        if self.procs[p].mode == Mode::Running {
            at = at.min(self.procs[p].app.next_step);
        }
        // a deadline that is never served would stop the world's clock
        at = at.max(self.now + 100);
        self.settle_readable(p);
        if more {
            // a process that makes progress runs again at once
            at = at.min(self.now + self.net_rng.range(300, 3 * US));
        } else if self.procs[p].has_input() {
            at = at.min(self.now + self.net_rng.range(500, 20 * US));
        }
        self.procs[p].engine = Some(engine);
        self.procs[p].driver = Some(driver);
        self.wake(p, at);
    }

    /// Lets a script call the engine of a process.
    pub fn with_engine<T>(&mut self, p: usize, f: impl FnOnce(&mut World, &mut Engine, Time) -> T) -> T {
        let mut engine = self.procs[p].engine.take().expect("the process has not exited");
        let mut driver = self.take_driver(p);
        self.busy = Some(p);
        let now = self.procs[p].clock.local(self.now);
        let out = f(self, &mut engine, now);
        let clock = StandingClock(now);
        let more = driver.flush(&mut *engine, &mut SimPorts { world: self, p }, &clock, now);
        self.check_nothing_forgotten(p, &engine, more, now);
        self.busy = None;
        self.procs[p].engine = Some(engine);
        self.procs[p].driver = Some(driver);
        self.wake(p, self.now);
        out
    }

    fn take_driver(&mut self, p: usize) -> Box<Driver> {
        self.procs[p].driver.take().expect("engine and driver come and go together")
    }

    /// An application reads one completion queue after the other, and makes progress until there is an entry; the service thread
    /// waits for nothing in particular.
    fn progress_options(&self, p: usize) -> ProgressOptions {
        let q = &self.procs[p];
        match q.mode {
            Mode::Running if !q.cqs.is_empty() => {
                ProgressOptions { streams: false, until: Some(q.cqs[q.wakes as usize % q.cqs.len()]) }
            }
            _ => ProgressOptions { streams: true, until: None },
        }
    }

    /// What the engine has to send after a piece of progress is sent soon, because the driver says that there is more.
    fn check_nothing_forgotten(&self, p: usize, engine: &Engine, more: bool, now: Time) {
        if !more && engine.has_output() {
            panic!(
                "live: p{p} stops sending and does not say that there is more: {}",
                left_behind(engine, now)
            );
        }
    }

    pub(crate) fn running(&self, p: usize) -> bool {
        self.busy == Some(p)
    }

    fn check_engine(&mut self, p: usize, engine: &Engine) {
        engine.check();
        let (what, n) = engine.longest_list();
        assert!(n <= LIST_MAX, "bounded: p{p} keeps {n} {what}");
        let (retained, unexpected) = engine.memory_of_peer_max();
        let o = &self.procs[p].app.options;
        // one message may straddle each bound, and the next in sequence always has room (hazard H4)
        let slack = 2 * 65_536 + o.eager_bytes_max;
        assert!(
            retained <= o.retained_bytes_max + slack,
            "bounded: p{p} retains {retained} bytes for one peer, {} are allowed",
            o.retained_bytes_max
        );
        assert!(
            unexpected <= o.unexpected_bytes_max + slack,
            "bounded: p{p} keeps {unexpected} unexpected bytes of one peer, {} are allowed",
            o.unexpected_bytes_max
        );
    }

    pub(crate) fn on_engine_event(&mut self, p: usize, e: &rerail_core::Event) {
        self.trace(|| format!("p{p} event {:?} path {:?} peer {:?}", e.kind, e.path, e.peer));
        self.note(0xe0 ^ mix_str(e.kind.name()) ^ (p as u64) << 32);
        self.aim_at_event(p, e);
        match &e.kind {
            EventKind::PathUp { .. } => {
                if let (true, Some((path, _, epoch))) = (self.cfg.no_path_down, e.path) {
                    self.procs[p].ups.push((e.peer_name, path, epoch));
                }
            }
            EventKind::PathDown { witness, .. } => {
                self.path_downs += 1;
                if self.cfg.no_path_down
                    && self.began_at_both_ends(p, e)
                    && !self.storm(p, e.peer_name, *witness)
                {
                    panic!(
                        "a busy peer is not a broken path: p{p} took {:?} out of service: {:?}",
                        e.path, e.kind
                    );
                }
                self.check_witness(p, *witness, e);
            }
            EventKind::StreamReplaced { witness, .. } => self.check_witness(p, *witness, e),
            EventKind::Corruption { .. } => self.check_witness(p, Witness::Corruption, e),
            EventKind::PeerLost { .. }
            | EventKind::PeerDied { .. }
            | EventKind::PeerGaveUp
            | EventKind::Unprotected => {
                let q = self.addresses.iter().position(|a| a.token.public_name() == e.peer_name);
                let gone = q.is_some_and(|ep| self.procs[self.owner(ep)].app.phase == Phase::Gone);
                let refused = matches!(e.kind, EventKind::PeerDied { proof: DeathProof::Refused, .. });
                if refused && q.is_some_and(|ep| self.refused_by_faults(p, self.owner(ep))) {
                    // from here on this is a world in which peers may be lost
                    self.cfg.peers_may_be_lost = true;
                }
                if let (Some(ep), true) = (q, self.cfg.peers_may_be_lost && !gone) {
                    self.part(p, self.owner(ep));
                }
                assert!(
                    gone || self.cfg.peers_may_be_lost,
                    "live: p{p} gave up a peer that lives: {:?}",
                    e.kind
                );
            }
            _ => {}
        }
        if self.keep_events {
            self.events.push((self.now, p, e.clone()));
        }
    }

    /// Whether faults alone refused the last connects of `p` to `q`, as many as an engine takes for a death without
    /// other proof. Such a `q` looks like a process that is gone: `FI_RERAIL_REFUSED_TIMEOUT` warns of that.
    fn refused_by_faults(&self, p: usize, q: usize) -> bool {
        let options = &self.cfg.options[p.min(self.cfg.options.len() - 1)];
        let Some(timeout) = options.refused_timeout else { return false };
        let since = self.now.saturating_sub(2 * timeout.as_nanos() as u64);
        let refused = |k: &&Conn| {
            (k.ends[0].proc, k.ends[1].proc) == (p, q)
                && k.ends[0].over == Some(CloseReason::Refused)
                && k.begun >= since
        };
        let last = self.conns.iter().rev().filter(refused).take(REFUSALS_ALONE);
        last.filter(|k| k.refused_by_fault).count() == REFUSALS_ALONE
    }

    /// Whether a host at either end was suspended so often of late that every query that counts can have been lost by a suspension
    /// of its own. What a host is sent while it is suspended is lost, so this is a broken path by any measure that an engine has.
    fn storm(&mut self, p: usize, peer: u32, witness: Witness) -> bool {
        let Some(ep) = self.addresses.iter().position(|a| a.token.public_name() == peer) else {
            return false;
        };
        let q = self.owner(ep);
        let since = self.now.saturating_sub(STORM_NS);
        while self.suspensions.front().is_some_and(|s| s.0 < since) {
            self.suspensions.pop_front();
        }
        let pair = (p.min(q), p.max(q));
        match witness {
            Witness::Query => {
                let hosts = [self.cfg.procs[p], self.cfg.procs[q]];
                let storm =
                    self.suspensions.iter().filter(|s| hosts.contains(&s.1)).count() >= STORM_SUSPENSIONS;
                if storm {
                    self.excused.push(pair);
                }
                storm
            }
            // what follows from the other side's verdict
            Witness::Peer | Witness::NewEpoch => self.excused.contains(&pair),
            _ => false,
        }
    }

    /// Whether the peer, too, has ever had the path of an event in service in that epoch. A process that is stopped
    /// between the answer to its hello and its first packet may wake up in an epoch that the peer has given up for a
    /// higher one. The peer never had the path in that epoch, so none is lost when both begin another.
    fn began_at_both_ends(&self, p: usize, e: &rerail_core::Event) -> bool {
        let Some((path, _, epoch)) = e.path else { return true };
        let own = self.addresses[self.endpoint(p, 0)].token.public_name();
        let Some(ep) = self.addresses.iter().position(|a| a.token.public_name() == e.peer_name) else {
            return true;
        };
        self.procs[self.owner(ep)].ups.contains(&(own, path, epoch))
    }

    /// A process that accuses a rail of corruption must be right about the rail.
    fn check_witness(&self, p: usize, w: Witness, e: &rerail_core::Event) {
        if w != Witness::Corruption {
            return;
        }
        let net = e.path.map(|(_, rail, _)| self.procs[p].nets[rail.0 as usize]);
        assert!(
            net.is_some_and(|n| self.corrupted[n] > 0),
            "intact: p{p} accuses the rail on network {net:?} of corruption, but no bit was flipped there"
        );
    }

    /// The process is killed: it sends nothing more, and its kernel closes what it had open.
    pub fn kill(&mut self, p: usize) {
        let Some(engine) = self.procs[p].engine.take() else { return };
        self.procs[p].app.phase = Phase::Gone;
        self.procs[p].killed = true;
        self.procs[p].mode_number += 1;
        self.retire(p, engine);
        for ep in 0..self.cfg.eps {
            let ep = self.endpoint(p, ep);
            self.oracle.bury(ep);
        }
        self.abandon_asks(p);
        self.abandon_shares(p);
    }

    /// One process has given another up: nothing is promised between them any more.
    fn part(&mut self, p: usize, q: usize) {
        for pair in [(p, q), (q, p)] {
            if !self.parted.contains(&pair) {
                self.parted.push(pair);
            }
        }
        for id in 0..self.oracle.msgs.len() {
            let m = &self.oracle.msgs[id];
            let pair = (self.owner(m.src), self.owner(m.dst));
            if pair == (p, q) || pair == (q, p) {
                self.oracle.give_up(id as u64);
            }
        }
    }

    /// The process exits without closing anything: its memory is no more.
    pub fn exit(&mut self, p: usize) {
        if self.procs[p].engine.is_none() || self.procs[p].app.phase >= Phase::Closing {
            return;
        }
        self.trace(|| format!("p{p} exits without closing"));
        if self.procs[p].mode != Mode::Running {
            self.set_mode(p, Mode::Running);
        }
        self.procs[p].exited_at = Some(self.procs[p].clock.local(self.now));
        self.with_engine(p, |w, e, now| {
            e.abandon(now);
            w.procs[p].app.phase = Phase::Exiting;
            w.procs[p].app.next_step = w.now;
            w.app_exits(p);
            if !e.lends(None) {
                w.leave_memory(p);
            }
        });
    }

    /// An exit delivers what was completed for as long as `linger` says. What a receiver has not asked for by then may be lost.
    fn lingered(&mut self, p: usize) {
        let linger = self.cfg.options[p.min(self.cfg.options.len() - 1)].linger;
        // by its own clock, which may leap
        let now = self.procs[p].clock.local(self.now);
        if self.procs[p].exited_at.is_none_or(|t| now.since(t) < linger - linger / 50) {
            return;
        }
        for id in 0..self.oracle.msgs.len() {
            if self.owner(self.oracle.msgs[id].src) == p {
                self.oracle.give_up(id as u64);
            }
        }
    }

    /// How many messages of the exited process `name` lie at process `p` and were given up before a receive took them.
    /// With one-sided operations or groups there may be any number: the orders of a process that exits without closing
    /// arrive after our goodbye, and out of order. So does the report that a process could not make a group, which it
    /// sends whenever it learns of that.
    fn never_asked_for(&self, p: usize, name: u32) -> usize {
        let gone = |q: usize| {
            self.procs[q].exited_at.is_some()
                && self.addresses[self.endpoint(q, 0)].token.public_name() == name
        };
        let orders = self.cfg.one_sided.is_some() || self.cfg.collective.is_some();
        if self.groups.some_failed() || (orders && (0..self.procs.len()).any(gone)) {
            return usize::MAX;
        }
        let from = |ep: usize| {
            self.procs[self.owner(ep)].app.exited && self.addresses[ep].token.public_name() == name
        };
        self.oracle
            .msgs
            .iter()
            .filter(|m| m.buried && m.taken.is_none() && self.owner(m.dst) == p && from(m.src))
            .count()
    }

    /// The process has exited: the kernel closes what it had open.
    fn retire(&mut self, p: usize, engine: Box<Engine>) {
        self.trace(|| format!("p{p} exits"));
        engine.check();
        if !self.procs[p].killed && !self.cfg.peers_may_be_lost && self.procs[p].app.left_in_peace {
            let remains = engine.remains(|name| self.never_asked_for(p, name));
            assert!(remains.is_empty(), "at rest: p{p} has left, and kept{remains}\n{}", engine.describe());
        }
        self.absorb(p, &engine);
        drop(engine);
        self.end_regions(p);
        self.lingered(p);
        self.procs[p].inbox.clear();
        let q = &mut self.procs[p];
        q.driver = None;
        q.stash.clear();
        q.link_changes.clear();
        q.incoming.clear();
        q.notices.clear();
        q.readable.clear();
        self.fence_process(p);
        self.leave_memory(p);
        self.tcp_orphan_all(p);
    }
}

/// What an engine has to send, in words.
fn left_behind(engine: &Engine, now: Time) -> String {
    // the engine itself stays as it is, for the report
    let mut e = engine.clone();
    let mut datagram = Datagram::default();
    if e.poll_datagram(now, &mut datagram) {
        return format!("a datagram, {}", packet_text(&datagram.bytes));
    }
    if e.poll_train(now, &mut Train::default()) {
        return "a train".to_owned();
    }
    format!("action {:?}, stream {:?}, event {:?}", e.poll_action(), e.poll_writable(now), e.poll_event())
}

fn mix_str(s: &str) -> u64 {
    s.bytes().fold(0, |h, b| crate::rng::mix(h ^ u64::from(b)))
}

/// As many suspensions as queries without an answer condemn a path.
const STORM_SUSPENSIONS: usize = 4;
/// Within this time. A query is forgotten sooner.
const STORM_NS: u64 = 500 * MS;
