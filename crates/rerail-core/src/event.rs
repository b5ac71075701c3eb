//! Events for people: every fault leaves one that names its first witness, the direction, and the cost.

use crate::migration::MigrationCause;
use crate::types::{Epoch, LaneId, PathId, PeerId, RailId};
use std::time::Duration;

/// The first witness of a fault (design, "Detecting faults").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Witness {
    /// Link state of the own port.
    Link = 1,
    /// The transport broke the connection or refused to send.
    Transport = 2,
    /// Queries went unanswered here while another path answered.
    Query = 3,
    /// The peer reported it on another path.
    Peer = 4,
    /// Bytes on the stream were malformed or failed their checksum.
    Corruption = 5,
    /// The peer started a newer epoch.
    NewEpoch = 6,
    /// The path never answered at all.
    Connect = 7,
    /// Parts of one vfrag had to be sent again too often because of the path (PML DR §3.3).
    Level = 8,
    /// Memory that an adapter had was wanted back.
    Fence = 9,
    /// The peer's kernel acknowledged nothing on one connection while the path answered: a route through the fabric is dead.
    Route = 10,
}

impl Witness {
    /// Name in logs and event files.
    pub fn name(self) -> &'static str {
        match self {
            Witness::Link => "link",
            Witness::Transport => "transport",
            Witness::Query => "query",
            Witness::Peer => "peer",
            Witness::Corruption => "corruption",
            Witness::NewEpoch => "new-epoch",
            Witness::Connect => "connect",
            Witness::Level => "level",
            Witness::Fence => "fence",
            Witness::Route => "route",
        }
    }
}

/// In which direction a path is broken, seen from this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Not known.
    Unknown,
    /// What we send does not arrive.
    Out,
    /// What the peer sends does not arrive.
    In,
    /// Neither direction.
    Both,
}

impl Direction {
    /// Name in logs and event files.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Unknown => "unknown",
            Direction::Out => "out",
            Direction::In => "in",
            Direction::Both => "both",
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// A path carries traffic.
    PathUp {
        /// How long it had been out of service; zero the first time.
        outage: Duration,
    },
    /// Evidence gathers against a path: new traffic avoids it.
    PathSuspect,
    /// The suspicion was wrong.
    PathCleared,
    /// A path is out of service.
    PathDown {
        /// Its first witness.
        witness: Witness,
        /// In which direction.
        direction: Direction,
        /// Bytes that have to be sent again on other paths.
        resent_bytes: u64,
        /// Time since the path last made progress.
        stalled: Duration,
        /// The port failed, and this is not the first of its paths: the rail that broke before. One failure, reported by each path.
        with: Option<RailId>,
    },
    /// Something that came over a path failed its checksum. Given out with the first fault of a while, and when the threshold is
    /// reached.
    Corruption {
        /// Faults counted on the path so far, by the side that saw them.
        faults: u64,
        /// `In`: this process saw them; `Out`: the peer did, in what this process sent.
        direction: Direction,
        /// For how long the path is quarantined; `None`: its faults are only counted, because there are few, or nothing else
        /// works.
        held: Option<Duration>,
    },
    /// The stream of a path was replaced by a fresh one, the path itself is in service.
    StreamReplaced {
        /// What was wrong with it.
        witness: Witness,
        /// Bytes that have to be sent again.
        resent_bytes: u64,
    },
    /// A lane took another route, because the one before was crowded: it was much slower than another lane of its path.
    LaneMoved {
        /// Which.
        lane: LaneId,
        /// Bytes per second that it made before, and makes now.
        before: u64,
        /// See `before`.
        after: u64,
    },
    /// A path has one lane more: all together make more with it, and it takes nothing from the others.
    LaneAdded {
        /// Which.
        lane: LaneId,
        /// Bytes per second that the path made without it, and makes with it.
        before: u64,
        /// See `before`.
        after: u64,
    },
    /// A lane was merged with the others: it shares their bottleneck, or all together make no more with it.
    LaneMerged {
        /// Which.
        lane: LaneId,
        /// Bytes per second that the path made with it, and makes without it.
        before: u64,
        /// See `before`.
        after: u64,
    },
    /// Datagrams vanish on a path that works otherwise: they go over its stream, or over other paths.
    DatagramsBlocked {
        /// Only those of bulk do.
        bulk_only: bool,
        /// Bytes that have to be sent again.
        resent_bytes: u64,
    },
    /// Datagrams of a path go another way through the fabric, from another source port: queries were not answered on the one before.
    DatagramsLed {
        /// Steps that it took until one was answered. 0: the peer has no answers from here, and requests another way for them.
        steps: u32,
    },
    /// Datagrams that were blocked pass again.
    DatagramsPass,
    /// An alternate is specified for the traffic of a path, and being loaded (APM §3.1.2).
    Rearm {
        /// Its rail.
        alternate: RailId,
    },
    /// The alternate can take over at once.
    Armed {
        /// Its rail.
        alternate: RailId,
    },
    /// Traffic moved to this path.
    Migrated {
        /// Rail that it used before.
        from: RailId,
        /// Why it moved.
        cause: MigrationCause,
    },
    /// The adapters of a stream can move it to this rail at once.
    AdapterArmed {
        /// The rail.
        alternate: RailId,
    },
    /// They cannot, or not any more: one of them or the peer refused, or the alternate was given up.
    AdapterUnloaded,
    /// An adapter has moved a stream of this path.
    AdapterMigrated {
        /// Rail that it went over.
        from: RailId,
        /// Rail that it goes over now.
        to: RailId,
        /// This process requested it; otherwise the adapter, or the peer, did it.
        requested: bool,
    },
    /// A path broke while `FI_RERAIL_PROTECTION=off`: every operation with the peer ends in an error.
    Unprotected,
    /// No path to the peer answers: operations are parked.
    Partition,
    /// Some path answers again.
    PartitionEnd {
        /// How long it lasted.
        outage: Duration,
    },
    /// The deadline of a partition passed: the peer is entombed.
    PeerLost {
        /// How long it had been silent.
        silent: Duration,
    },
    /// The peer is silent, and its host's kernel answers for it: the process is stopped or starved. Nothing is given up.
    PeerStopped,
    /// The peer's process ended without a goodbye: it is entombed.
    PeerDied {
        /// How long it had been silent.
        silent: Duration,
        /// What proves it.
        proof: DeathProof,
    },
    /// One of the two encrypts, the other does not: they cannot communicate.
    EncryptionDiffers {
        /// Which.
        peer_encrypts: bool,
    },
    /// The peer has given this process up, and reports it.
    PeerGaveUp,
    /// The peer said goodbye.
    PeerGoodbye,
}

/// What a verdict on a process rests on, besides its silence and refused connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeathProof {
    /// A stream ended in order without a goodbye. A firewall resets; only the kernel that closes a process's sockets does this.
    EndOfStream,
    /// Another process on the same boot of the same host answers over the rail that refuses.
    Neighbour,
    /// Nothing but the refusals themselves, for longer than `FI_RERAIL_REFUSED_TIMEOUT`.
    Refused,
}

impl DeathProof {
    /// Name in logs and event files.
    pub fn name(self) -> &'static str {
        match self {
            DeathProof::EndOfStream => "end-of-stream",
            DeathProof::Neighbour => "neighbour",
            DeathProof::Refused => "refused",
        }
    }
}

impl EventKind {
    /// Name in logs and event files.
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::PathUp { .. } => "path_up",
            EventKind::PathSuspect => "path_suspect",
            EventKind::PathCleared => "path_cleared",
            EventKind::PathDown { .. } => "path_down",
            EventKind::Corruption { .. } => "corruption",
            EventKind::StreamReplaced { .. } => "stream_replaced",
            EventKind::LaneMoved { .. } => "lane_moved",
            EventKind::LaneAdded { .. } => "lane_added",
            EventKind::LaneMerged { .. } => "lane_merged",
            EventKind::DatagramsBlocked { .. } => "datagrams_blocked",
            EventKind::DatagramsLed { .. } => "datagrams_led",
            EventKind::DatagramsPass => "datagrams_pass",
            EventKind::Rearm { .. } => "rearm",
            EventKind::Armed { .. } => "armed",
            EventKind::Migrated { .. } => "migrated",
            EventKind::AdapterArmed { .. } => "adapter_armed",
            EventKind::AdapterUnloaded => "adapter_unloaded",
            EventKind::AdapterMigrated { .. } => "adapter_migrated",
            EventKind::Unprotected => "unprotected",
            EventKind::Partition => "partition",
            EventKind::PartitionEnd { .. } => "partition_end",
            EventKind::PeerLost { .. } => "peer_lost",
            EventKind::PeerStopped => "peer_stopped",
            EventKind::PeerDied { .. } => "peer_died",
            EventKind::EncryptionDiffers { .. } => "encryption_differs",
            EventKind::PeerGaveUp => "peer_gave_up",
            EventKind::PeerGoodbye => "peer_goodbye",
        }
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which peer.
    pub peer: PeerId,
    /// Public name of the peer's token.
    pub peer_name: u32,
    /// On which path and own rail, if on one.
    pub path: Option<(PathId, RailId, Epoch)>,
}
