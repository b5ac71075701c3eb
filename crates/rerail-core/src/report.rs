//! What can be seen from outside: counters, paths, what is under way, and whether every invariant holds.

use crate::engine::Engine;
use crate::health::Health;
use crate::lane::Channel;
use crate::message::item::Item;
use crate::migration::Migration;
use crate::node::FarRail;
use crate::peer::Peer;
use crate::types::*;
use rerail_wire::Coverage;
use std::time::Duration;

/// Counters of one engine. All only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages posted.
    pub messages_sent: u64,
    /// Messages completed at the receiver.
    pub messages_received: u64,
    /// One-sided operations posted.
    pub orders_sent: u64,
    /// Orders and answers of peers that were carried out.
    pub orders_received: u64,
    /// Payload bytes handed to rails, again-sent ones included.
    pub bytes_sent: u64,
    /// Payload bytes sent again.
    pub bytes_resent: u64,
    /// Payload bytes sent a second time on suspicion.
    pub bytes_hedged: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Trains of bulk datagrams built.
    pub trains_sent: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Frames received on streams.
    pub stream_frames_received: u64,
    /// Pieces of messages that adapters of ours were to write into peers' memory.
    pub pieces_placed: u64,
    /// Fences that peers were asked for, because an adapter might still write.
    pub fences_asked: u64,
    /// Frames dropped as duplicates.
    pub duplicates: u64,
    /// Datagrams and streams of strangers, garbage, failed authentication.
    pub strangers: u64,
    /// Replayed or outdated packets and hellos of known peers.
    pub replays: u64,
    /// Payloads refused over the memory bound.
    pub refused: u64,
    /// Datagrams, stream headers and payloads of known peers that failed their checksum. Of each path: [`PathReport::corrupt`].
    pub corrupt: u64,
    /// Frames of known peers that make no sense although nothing was damaged on the way.
    pub malformed: u64,
    /// Packets and frames that claimed less coverage than was agreed.
    pub downgrades: u64,
    /// Paths quarantined for corruption, on this side's or the peer's evidence.
    pub quarantines: u64,
    /// Frames that ended in ABORT.
    pub aborted: u64,
    /// Queries sent.
    pub pings: u64,
    /// Paths taken out of service.
    pub paths_down: u64,
    /// Paths brought into service.
    pub paths_up: u64,
    /// Streams replaced.
    pub streams_replaced: u64,
    /// Partitions.
    pub partitions: u64,
    /// Peers that were silent while their kernel answered for them.
    pub peers_stopped: u64,
    /// Peers whose process ended without a goodbye.
    pub peers_died: u64,
    /// Times this process had been away (hazard H12).
    pub absences: u64,
    /// Datagrams that timed out or were overtaken and were sent again.
    pub datagrams_lost: u64,
    /// Paths on which long datagrams were found to vanish (RFC 8899).
    pub black_holes: u64,
    /// Channels of paths through which nothing passed although the path worked (`blocked`).
    pub channels_blocked: u64,
    /// Alternates that were loaded (APM §3.1.2).
    pub alternates_armed: u64,
    /// Migrations because a path broke.
    pub migrations_fault: u64,
    /// Migrations on request.
    pub migrations_request: u64,
    /// Migrations back home.
    pub migrations_return: u64,
}

impl Counters {
    /// Every counter by name, for logs and exporters.
    pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
        let Self {
            messages_sent,
            messages_received,
            orders_sent,
            orders_received,
            bytes_sent,
            bytes_resent,
            bytes_hedged,
            datagrams_sent,
            trains_sent,
            datagrams_received,
            stream_frames_received,
            pieces_placed,
            fences_asked,
            duplicates,
            strangers,
            replays,
            refused,
            corrupt,
            malformed,
            downgrades,
            quarantines,
            aborted,
            pings,
            paths_down,
            paths_up,
            streams_replaced,
            partitions,
            peers_stopped,
            peers_died,
            absences,
            datagrams_lost,
            black_holes,
            channels_blocked,
            alternates_armed,
            migrations_fault,
            migrations_request,
            migrations_return,
        } = *self;
        f("messages_sent", messages_sent);
        f("messages_received", messages_received);
        f("orders_sent", orders_sent);
        f("orders_received", orders_received);
        f("bytes_sent", bytes_sent);
        f("bytes_resent", bytes_resent);
        f("bytes_hedged", bytes_hedged);
        f("datagrams_sent", datagrams_sent);
        f("trains_sent", trains_sent);
        f("datagrams_received", datagrams_received);
        f("stream_frames_received", stream_frames_received);
        f("pieces_placed", pieces_placed);
        f("fences_asked", fences_asked);
        f("duplicates", duplicates);
        f("strangers", strangers);
        f("replays", replays);
        f("refused", refused);
        f("corrupt", corrupt);
        f("malformed", malformed);
        f("downgrades", downgrades);
        f("quarantines", quarantines);
        f("aborted", aborted);
        f("pings", pings);
        f("paths_down", paths_down);
        f("paths_up", paths_up);
        f("streams_replaced", streams_replaced);
        f("partitions", partitions);
        f("peers_stopped", peers_stopped);
        f("peers_died", peers_died);
        f("absences", absences);
        f("datagrams_lost", datagrams_lost);
        f("black_holes", black_holes);
        f("channels_blocked", channels_blocked);
        f("alternates_armed", alternates_armed);
        f("migrations_fault", migrations_fault);
        f("migrations_request", migrations_request);
        f("migrations_return", migrations_return);
    }
}

/// State of one path, for people and tests.
#[derive(Debug, Clone)]
pub struct PathReport {
    /// Peer.
    pub peer: PeerId,
    /// Public name of the peer's token.
    pub peer_name: u32,
    /// Path.
    pub path: PathId,
    /// Own rail.
    pub rail: RailId,
    /// Remote rail's address.
    pub remote: Locator,
    /// What the peer calls that rail; `-` until it has told.
    pub remote_name: String,
    /// Epoch.
    pub epoch: Epoch,
    /// State.
    pub health: Health,
    /// Streams that are attached.
    pub streams: usize,
    /// Lanes: each has a stream, or is to get one.
    pub lanes: usize,
    /// Whether datagrams were seen to make the round trip in this epoch, and still do.
    pub datagrams: bool,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Estimated rate of the stream, bytes per second.
    pub rate: u64,
    /// Payload bytes sent on it.
    pub bytes_sent: u64,
    /// What came over it and failed its checksum, since the path was made.
    pub corrupt: u64,
    /// It was quarantined for corruption, and has not yet proved itself.
    pub quarantined: bool,
    /// What this side's checksums cover on it now.
    pub coverage: Coverage,
}

/// One carrier of traffic, for people and tests: which path it uses, and which it would migrate to.
#[derive(Debug, Clone)]
pub struct CarrierReport {
    /// Peer.
    pub peer: PeerId,
    /// Public name of the peer's token.
    pub peer_name: u32,
    /// Rail of the path that the policy gives it.
    pub home: RailId,
    /// Path in use, and its rail.
    pub path: (PathId, RailId),
    /// Alternate, and its rail.
    pub alternate: Option<(PathId, RailId)>,
    /// State.
    pub state: Migration,
    /// Since when, engine time.
    pub since: Time,
    /// Moved here on request.
    pub pinned: bool,
}

impl Engine {
    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// State of every path.
    pub fn paths(&self) -> Vec<PathReport> {
        let mut v = Vec::new();
        for p in &self.peers {
            for (i, x) in p.paths.iter().enumerate() {
                v.push(PathReport {
                    peer: p.id,
                    peer_name: p.name,
                    path: x.id,
                    rail: x.rail,
                    remote: x.remote,
                    remote_name: p.far(x).map_or("-", FarRail::name).to_owned(),
                    epoch: x.epoch,
                    health: x.health,
                    streams: x.streams().count(),
                    lanes: x.lane_count(),
                    datagrams: x.datagrams_usable(),
                    rtt: x.lane.rtt().smoothed(),
                    rate: x.rate() as u64,
                    bytes_sent: x.bytes_sent,
                    corrupt: x.integrity.faults,
                    quarantined: x.integrity.proof.is_some(),
                    coverage: self.coverage_out(p.id.0 as usize, i),
                });
            }
        }
        v
    }

    /// The numbers of the next message to a peer and of the next one from it. For tests that play the peer.
    pub fn sequence(&self, peer: PeerId) -> (u64, u64) {
        let p = &self.peers[peer.0 as usize];
        (p.outgoing.next(), p.incoming.next())
    }

    /// State of every carrier.
    pub fn carriers(&self) -> Vec<CarrierReport> {
        let mut v = Vec::new();
        for p in &self.peers {
            let name = |i: usize| (p.paths[i].id, p.paths[i].rail);
            v.extend(p.carriers.iter().map(|c| CarrierReport {
                peer: p.id,
                peer_name: p.name,
                home: p.paths[c.home].rail,
                path: name(c.path),
                alternate: c.alternate.map(name),
                state: c.state,
                since: c.since,
                pinned: c.pinned,
            }));
        }
        v
    }

    /// What is kept for living peers although nothing is under way, in words; empty when nothing is. For the simulator: a process
    /// that has received everything and whose sends were all acknowledged holds no message, no byte and no right to write.
    /// `unasked`: how many messages of the peer of that name nobody ever asked for; so many may lie here.
    pub fn remains(&self, unasked: impl Fn(u32) -> usize) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for p in self.peers.iter().filter(|p| p.gone.is_none_or(|g| !g.is_final())) {
            let mut say = |what: &str, n: usize| {
                if n > 0 {
                    let _ = write!(out, "; for peer {:08x}: {n} {what}", p.name);
                }
            };
            say("sent messages", p.outgoing.iter().filter(|(seq, _)| *seq < p.goodbye_from).count());
            let unasked = unasked(p.name);
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
            let rejects = p.control.iter().filter(|i| closing && matches!(i, Item::Reject { .. })).count();
            say(
                "control items beyond those of messages",
                p.control.len().saturating_sub(2 * under_way + rejects),
            );
            for x in &p.paths {
                say("unanswered queries", x.evidence.kept().0);
                say("answers", x.evidence.kept().1);
                for (_, lane) in x.lanes() {
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
        self.peers.iter().filter(|p| !p.is_self).fold((0, 0), |a, p| {
            let (bytes, envelopes) = p.outgoing.retained();
            (a.0.max(bytes).max(envelopes), a.1.max(p.incoming.held_bytes()))
        })
    }

    /// What is under way, in words, for a person who looks for the reason of a standstill.
    pub fn describe(&self) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        self.describe_groups(&mut out);
        for p in &self.peers {
            let _ = writeln!(
                out,
                "peer {:08x} gone {:?} tx_next {} rx_next {} waiting: control {:?} resend {:?} small {:?} eager {:?} \
                 resend_bulk {} bulk {:?} dirty {} timer {:?} now {:?} query {:?}",
                p.name,
                p.gone,
                p.outgoing.next(),
                p.incoming.next(),
                p.control,
                p.resend,
                p.small,
                p.eager_bulk,
                p.resend_bulk.len(),
                p.bulk,
                p.dirty.is_set(),
                p.timer,
                self.clock.now(),
                p.query,
            );
            for (seq, m) in p.outgoing.iter().take(8) {
                let _ = writeln!(out, "  tx {seq}: {}", m.describe());
            }
            for (seq, m) in p.incoming.iter().take(8) {
                let _ = writeln!(out, "  rx {seq}: {}", m.describe());
            }
            for x in &p.paths {
                let _ = writeln!(
                    out,
                    "  path {:?} {} {:?} since {:?} inflight {} window {} usable {} open {} stream {:?} attempts {:?} \
                     draining {:?} retry {:?} rtt {:?} rate {:.0} bulk {:?}",
                    x.id,
                    x.health.name(),
                    x.epoch,
                    x.since,
                    x.lane.datagrams().flight().0,
                    x.lane.datagrams().flight().1,
                    x.datagrams_usable(),
                    x.evidence.kept().0,
                    x.streams()
                        .filter_map(|s| self.streams.get(s))
                        .map(|s| {
                            (
                                s.lane().0,
                                s.number,
                                s.tx.len(),
                                s.tx_full,
                                s.bytes_in_flight,
                                s.reader.reading,
                                s.unread().len(),
                            )
                        })
                        .collect::<Vec<_>>(),
                    x.attempts(),
                    x.lanes().flat_map(|(_, l)| l.connection().draining()).collect::<Vec<_>>(),
                    x.retry.at(),
                    x.lane.rtt().smoothed(),
                    x.rate(),
                    x.lane.bulk().describe(),
                );
            }
            for c in &p.carriers {
                let _ = writeln!(
                    out,
                    "  carrier {} home {} path {} alternate {:?} since {:?} pinned {}",
                    c.state.name(),
                    c.home,
                    c.path,
                    c.alternate,
                    c.since,
                    c.pinned
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
            if !p.is_self {
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
            assert_eq!(
                p.outgoing.unsent_bytes(),
                p.bulk_bytes,
                "bulk bytes are what was granted and never sent"
            );
            let eager: u64 = p.eager_bulk.iter().map(|e| e.1).sum();
            assert_eq!(eager, p.eager_bulk_bytes, "eager bytes are what waits");
            self.check_carriers(p);
            for x in &p.paths {
                for id in x.streams() {
                    let s = self.streams.get(id).expect("an attached stream exists");
                    let sum: u64 = s.records.iter().map(|r| u64::from(r.bytes)).sum();
                    assert_eq!(sum, s.bytes_in_flight, "bytes in flight are the sum of the records");
                    assert!(x.health.connected(), "only a connected path has a stream");
                }
                if matches!(x.health, Health::Down | Health::Recovering | Health::Idle) {
                    assert!(!x.is_draining(), "invariant 4: a path is down only when it is fenced");
                }
            }
        }
    }

    /// What carriers promise, when they have seen all that happened.
    fn check_carriers(&self, p: &Peer) {
        if p.unsettled || p.gone.is_some() || p.is_self {
            return;
        }
        for c in &p.carriers {
            assert_ne!(c.alternate, Some(c.path), "a carrier's alternate is another path");
            assert_eq!(c.alternate.is_none(), c.state == Migration::Migrated, "{c:?}");
            if let (Migration::Armed, Some(a)) = (c.state, c.alternate) {
                let x = &p.paths[a];
                assert!(
                    matches!(x.health, Health::Up | Health::Standby) && x.evidence.is_proven(),
                    "an armed alternate could carry at once: {}",
                    x.health.name()
                );
            }
        }
        let some = |h: Health| p.paths.iter().any(|x| x.health == h);
        assert!(
            !some(Health::Standby) || some(Health::Up),
            "invariant 6: nothing is kept in standby while nothing is in service"
        );
    }
}
