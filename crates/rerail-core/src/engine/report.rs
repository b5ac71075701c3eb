//! What the engine reports of itself: counters, paths, what is under way.

use super::Engine;
use crate::health::Health;
use crate::lane::Channel;
use crate::lane::name::LaneName;
use crate::message::item::Item;
use crate::migration::Migration;
use crate::node::FarRail;
use crate::peer::Peer;
use crate::types::*;

use crate::report::{CarrierReport, Counters, PathReport};

impl Engine {
    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// State of every path.
    pub fn paths(&self) -> Vec<PathReport> {
        let mut v = Vec::new();
        for p in &self.peers {
            for (i, path) in p.paths.iter().enumerate() {
                v.push(PathReport {
                    peer: p.id(),
                    peer_name: p.name(),
                    path: path.id(),
                    rail: path.rail(),
                    remote: path.remote(),
                    remote_name: p.far(path).map_or("-", FarRail::name).to_owned(),
                    epoch: path.epoch(),
                    health: path.health(),
                    stands_by_for: self.stands_by_for(p, i),
                    streams: path.streams().count(),
                    lanes: path.lane_count(),
                    lane_rates: path
                        .lanes()
                        .map(|(_, lane)| lane.stream().map(|_| lane.rate() as u64))
                        .collect(),
                    route: path.detour.route(),
                    datagrams: path.datagrams_usable(),
                    rtt: path.lane.rtt().smoothed(),
                    rate: path.rate() as u64,
                    bytes_sent: path.bytes_sent(),
                    corrupt: path.integrity.faults(),
                    quarantined: path.integrity.owes_proof(),
                    coverage: self.coverage_out(p.id(), i),
                });
            }
        }
        v
    }

    /// The numbers of the next message to a peer and of the next one from it. For tests that play the peer.
    pub fn sequence(&self, peer: PeerId) -> (u64, u64) {
        let p = &self.peers[peer];
        (p.outgoing.next(), p.incoming.next())
    }

    /// State of every carrier.
    pub fn carriers(&self) -> Vec<CarrierReport> {
        let mut v = Vec::new();
        for p in &self.peers {
            let name = |i: usize| (p.paths[i].id(), p.paths[i].rail());
            v.extend(p.carriers.iter().map(|c| CarrierReport {
                peer: p.id(),
                peer_name: p.name(),
                home: p.paths[c.home()].rail(),
                path: name(c.path()),
                alternate: c.alternate().map(name),
                state: c.state(),
                since: c.since(),
                pinned: c.is_pinned(),
                adapter: self.in_adapter(p, c.path()),
            }));
        }
        v
    }

    /// What is kept for living peers although nothing is under way, in words; empty when nothing is. For the simulator:
    /// a process that has received everything and whose sends were all acknowledged holds no message, no byte and no
    /// right to write. `unasked`: how many messages of the peer of that name no receive ever matched; so many may lie
    /// here.
    pub fn remains(&self, unasked: impl Fn(u32) -> usize) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for p in self.peers.iter().filter(|p| p.gone().is_none_or(|g| !g.is_final())) {
            let mut say = |what: &str, n: usize| {
                if n > 0 {
                    let _ = write!(out, "; for peer {:08x}: {n} {what}", p.name());
                }
            };
            say("sent messages", p.outgoing.iter().filter(|(seq, _)| p.farewell.is_after(*seq)).count());
            let unasked = unasked(p.name());
            say("received messages", p.incoming.len().saturating_sub(unasked));
            let (bytes, envelopes) = p.outgoing.retained();
            say("retained bytes", bytes + envelopes);
            if unasked == 0 {
                say("held bytes", p.incoming.held_bytes());
            }
            say("messages being received", p.incoming.receiving_count());
            let (operations, writes, reads) = p.orders.len();
            say("one-sided operations", operations);
            say("writes that did not arrive", writes);
            say("reads being served", reads);
        }
        out
    }

    /// The longest of the lists that must not grow with the age of a peer: its name and length.
    pub fn longest_list(&self) -> (&'static str, usize) {
        let mut most = ("", 0);
        let mut say = |what: &'static str, n: usize| {
            if n > most.1 {
                most = (what, n);
            }
        };
        let closing = self.endpoints.iter().any(|e| e.is_closing());
        for p in &self.peers {
            let under_way = p.outgoing.len() + p.incoming.len();
            // whatever lay there for an endpoint that is closed is rejected: as many as there were messages
            let rejects = p.backlog.control().filter(|i| closing && matches!(i, Item::Reject { .. })).count();
            say(
                "control items beyond those of messages",
                p.backlog.control().count().saturating_sub(2 * under_way + rejects),
            );
            for path in &p.paths {
                say("unanswered queries", path.evidence.kept().0);
                say("answers", path.evidence.kept().1);
                for (_, lane) in path.lanes() {
                    say("records of dead epochs", lane.ghosts());
                    say("attempts at a stream", lane.connection().attempts().len());
                    say("streams being closed", lane.connection().draining().len());
                    for a in [Channel::Datagram, Channel::Stream] {
                        say("ranges of received packets", lane.acks().of(a).ranges().count());
                    }
                }
            }
        }
        say("strangers", self.streams.strangers());
        most
    }

    /// Bytes of retained copies and of payload that waits for a receive or an earlier message: the largest of any peer.
    pub fn memory_of_peer_max(&self) -> (usize, usize) {
        self.peers.iter().filter(|p| !p.is_self()).fold((0, 0), |a, p| {
            let (bytes, envelopes) = p.outgoing.retained();
            (a.0.max(bytes).max(envelopes), a.1.max(p.incoming.held_bytes()))
        })
    }

    /// What is under way, in words, to find the reason of a standstill.
    pub fn describe(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        self.describe_groups(&mut out);
        for p in &self.peers {
            let _ = writeln!(
                out,
                "peer {:08x} gone {:?} tx_next {} rx_next {} waiting: {} dirty {} timer {:?} now {:?} query {:?}",
                p.name(),
                p.gone(),
                p.outgoing.next(),
                p.incoming.next(),
                p.backlog.describe(),
                p.dirty.is_set(),
                p.timer,
                self.clock.now(),
                p.questions,
            );
            for (seq, m) in p.outgoing.iter().take(8) {
                let _ = writeln!(out, "  tx {seq}: {}", m.describe());
            }
            for (seq, m) in p.incoming.iter().take(8) {
                let _ = writeln!(out, "  rx {seq}: {}", m.describe());
            }
            for path in &p.paths {
                let _ = writeln!(
                    out,
                    "  path {:?} {} {:?} since {:?} inflight {} window {} usable {} open {} stream {:?} attempts {:?} \
                     draining {:?} retry {:?} rtt {:?} rate {:.0} bulk {:?}",
                    path.id(),
                    path.health().name(),
                    path.epoch(),
                    path.since(),
                    path.lane.datagrams().flight().0,
                    path.lane.datagrams().flight().1,
                    path.datagrams_usable(),
                    path.evidence.kept().0,
                    path.streams()
                        .filter_map(|s| self.streams.get(s))
                        .map(|s| {
                            (
                                s.lane().0,
                                s.name().map_or(0, LaneName::number),
                                s.outbox().len(),
                                s.outbox().is_full(),
                                s.flight().bytes(),
                                s.reader().reading(),
                                s.reader().unread().len(),
                            )
                        })
                        .collect::<Vec<_>>(),
                    path.attempts(),
                    path.lanes().flat_map(|(_, l)| l.connection().draining()).collect::<Vec<_>>(),
                    path.retry.at(),
                    path.lane.rtt().smoothed(),
                    path.rate(),
                    path.lane.bulk().describe(),
                );
            }
            for c in p.carriers.iter() {
                let _ = writeln!(
                    out,
                    "  carrier {} home {} path {} alternate {:?} since {:?} pinned {}",
                    c.state().name(),
                    c.home(),
                    c.path(),
                    c.alternate(),
                    c.since(),
                    c.is_pinned()
                );
            }
        }
        out
    }

    /// Checks every invariant that can be seen from one side. For tests and the simulator.
    ///
    /// # Panics
    /// With a description of what is broken.
    pub fn check(&self) {
        self.peers.check();
        self.streams.check();
        self.loans.check();
        self.check_groups();
        self.check_probes();
        self.check_sweeps();
        self.check_served();
        for p in &self.peers {
            p.outgoing.check();
            p.incoming.check(self.remedies.placement_lease());
            self.check_landings(p);
            if !p.is_self() {
                let (bytes, envelopes) = p.outgoing.retained();
                assert!(
                    bytes.max(envelopes) <= self.options.retained_bytes_max,
                    "invariant 7: retained payload is bounded"
                );
                assert!(
                    p.incoming.held_bytes()
                        <= self.options.unexpected_bytes_max + rerail_wire::frame::FRAME_PAYLOAD_MAX,
                    "invariant 7: unexpected payload is bounded"
                );
            }
            p.orders.check();
            p.backlog.check(p.outgoing.unsent_bytes());
            self.check_carriers(p);
            if !p.carriers.are_unsettled() && p.gone().is_none() {
                self.check_adapters(p);
            }
            for path in &p.paths {
                for id in path.streams() {
                    let s = self.streams.get(id).expect("an attached stream exists");
                    s.flight().check();
                    assert!(path.health().connected(), "only a connected path has a stream");
                }
                if matches!(path.health(), Health::Down | Health::Recovering | Health::Idle) {
                    assert!(!path.is_draining(), "invariant 4: a path is down only when it is fenced");
                }
            }
        }
    }

    /// What carriers promise, when they have seen all that happened.
    fn check_carriers(&self, p: &Peer) {
        if p.carriers.are_unsettled() || p.gone().is_some() || p.is_self() {
            return;
        }
        for c in p.carriers.iter() {
            assert_ne!(c.alternate(), Some(c.path()), "a carrier's alternate is another path");
            if let (Migration::Armed, Some(a)) = (c.state(), c.alternate()) {
                let path = &p.paths[a];
                assert!(
                    matches!(path.health(), Health::Up | Health::Standby) && path.evidence.is_proven(),
                    "an armed alternate could carry at once: {}",
                    path.health().name()
                );
            }
        }
        let some = |h: Health| p.paths.iter().any(|path| path.health() == h);
        assert!(
            !some(Health::Standby) || some(Health::Up),
            "invariant 6: nothing is kept in standby while nothing is in service"
        );
    }
}
