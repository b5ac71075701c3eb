//! What can be seen of an engine from outside: counters, paths, carriers.

use crate::health::Health;
use crate::migration::Migration;
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
    /// Payload bytes of these.
    pub bytes_received: u64,
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
    /// Of messages that were received, bytes that adapters of peers wrote into their place: no processor copied them.
    pub bytes_placed: u64,
    /// Pieces of messages that adapters of ours were to write into peers' memory.
    pub pieces_placed: u64,
    /// Pieces that an adapter was to write and could not read, and that went as copies.
    pub pieces_unreadable: u64,
    /// Fences that were requested from peers, because an adapter might still write.
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
    /// Paths taken out of service; those that broke with their physical port count once.
    pub paths_down: u64,
    /// Paths brought into service.
    pub paths_up: u64,
    /// Streams replaced.
    pub streams_replaced: u64,
    /// Times that peers requested to be called again at once without end, and had to wait until what had arrived was read. A fault of ours.
    pub timer_storms: u64,
    /// Lanes that took another route because theirs was crowded.
    pub lanes_moved: u64,
    /// Lanes that were added because traffic paid for them, and that were merged with the others.
    pub lanes_added: u64,
    /// See `lanes_added`.
    pub lanes_merged: u64,
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
    /// Times that datagrams of a path were led over another route.
    pub detours: u64,
    /// Alternates that were loaded (APM §3.1.2).
    pub alternates_armed: u64,
    /// Migrations because a path broke.
    pub migrations_fault: u64,
    /// Migrations on request.
    pub migrations_request: u64,
    /// Migrations back home.
    pub migrations_return: u64,
    /// Times that the adapters of a stream had loaded an alternate path.
    pub streams_armed: u64,
    /// Times that an adapter moved a stream.
    pub streams_migrated: u64,
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
            bytes_received,
            bytes_placed,
            pieces_placed,
            pieces_unreadable,
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
            timer_storms,
            lanes_moved,
            lanes_added,
            lanes_merged,
            partitions,
            peers_stopped,
            peers_died,
            absences,
            datagrams_lost,
            black_holes,
            channels_blocked,
            detours,
            alternates_armed,
            migrations_fault,
            migrations_request,
            migrations_return,
            streams_armed,
            streams_migrated,
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
        f("bytes_received", bytes_received);
        f("bytes_placed", bytes_placed);
        f("pieces_placed", pieces_placed);
        f("pieces_unreadable", pieces_unreadable);
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
        f("timer_storms", timer_storms);
        f("lanes_moved", lanes_moved);
        f("lanes_added", lanes_added);
        f("lanes_merged", lanes_merged);
        f("partitions", partitions);
        f("peers_stopped", peers_stopped);
        f("peers_died", peers_died);
        f("absences", absences);
        f("datagrams_lost", datagrams_lost);
        f("black_holes", black_holes);
        f("channels_blocked", channels_blocked);
        f("detours", detours);
        f("alternates_armed", alternates_armed);
        f("migrations_fault", migrations_fault);
        f("migrations_request", migrations_request);
        f("migrations_return", migrations_return);
        f("streams_armed", streams_armed);
        f("streams_migrated", streams_migrated);
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
    /// What the peer calls that rail; `-` until it has reported it.
    pub remote_name: String,
    /// Epoch.
    pub epoch: Epoch,
    /// State.
    pub health: Health,
    /// In standby because a better kind of rail carries on the same physical port: that rail.
    pub stands_by_for: Option<RailId>,
    /// Streams that are attached.
    pub streams: usize,
    /// Lanes: each has a stream, or is to get one.
    pub lanes: usize,
    /// Estimated rate of each lane, bytes per second, the first one first; `None`: it has no stream now.
    pub lane_rates: Vec<Option<u64>>,
    /// Route that its datagrams are led over; 0 is the usual one.
    pub route: u8,
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
    /// What the adapters have of it.
    pub adapter: InAdapter,
}

/// Path migration in the adapters of a path's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InAdapter {
    /// Some stream can be moved to this own rail at once.
    pub armed: Option<RailId>,
    /// Some stream is being loaded.
    pub loading: bool,
    /// Adapters or peer have refused an alternate path.
    pub refused: bool,
    /// The adapter leads some stream over this rail, and not over that of its path.
    pub away: Option<RailId>,
}
