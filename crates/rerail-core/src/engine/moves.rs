//! Lanes that leave crowded routes: looks, and the way of one from stream to stream. What decides is `path/moves`.

use super::Engine;
use super::deliver::Taken;
use crate::event::EventKind;
use crate::lane::name::LaneName;
use crate::message::item::Item;
use crate::path::moves::{Due, Moves, SAMPLES};
use crate::types::{LaneId, PeerId, Time};
use rerail_wire::{FrameHeader, FrameType};

impl Engine {
    /// So many bytes were acknowledged on a lane of a path with several.
    pub(crate) fn look_at_lanes(&mut self, peer: PeerId, index: usize, (id, bytes): (LaneId, u64)) {
        if !self.options.protection {
            // what is under way is not known then
            return;
        }
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        let round_trip = path.lane.rtt().smoothed();
        path.breadth.acked(id, bytes);
        if path.breadth.looks(round_trip, now) && !path.moves.awake().is_some_and(Moves::is_busy) {
            self.try_lanes(peer, index);
        }
        let path = &mut self.peers[peer].paths[index];
        if path.lane_count() == 1 {
            return;
        }
        path.moves.acked(id, bytes);
        if path.moves.looks(round_trip, now) {
            let mut rates = Vec::with_capacity(path.lane_count());
            for id in (0..path.lane_count() as u8).map(LaneId) {
                let carries = path.breadth.carries(id);
                let lane = path.lane_of_mut(id).expect("lanes stay");
                // what is counted here has to be counted anew, known or not
                let known = lane.rate_mut().take_samples() >= SAMPLES;
                if known && carries && lane.stream().is_some() {
                    rates.push((id, lane.rate()));
                }
            }
            for &(lane, rate) in &rates {
                if let Some(before) = self.peers[peer].paths[index].moves.judge(lane, now) {
                    let event = EventKind::LaneMoved { lane, before: before as u64, after: rate as u64 };
                    self.event(event, peer, Some(index));
                }
            }
            let path = &mut self.peers[peer].paths[index];
            if !path.breadth.is_busy() {
                if let Some(id) = path.moves.compare(&rates, now) {
                    self.leave_route(peer, index, id);
                }
            }
        }
        self.lane_timer(peer, index);
    }

    /// A lane is to take another route.
    pub(crate) fn leave_route(&mut self, peer: PeerId, index: usize, id: LaneId) {
        let now = self.clock.now();
        let path = &mut self.peers[peer].paths[index];
        let stream = path.lane_of(id).and_then(|l| l.stream());
        let Some(lane) = stream.and_then(|s| self.streams[s].name()) else { return };
        path.moves.leaves(id, lane.number(), now);
        self.peers[peer].backlog.tell(Item::Leave { lane });
        self.mark(peer);
    }

    /// The peer leaves a stream, or has nothing under way on one that this side leaves.
    pub(crate) fn on_leave(&mut self, peer: PeerId, f: &FrameHeader) -> Taken {
        let Some(lane) = LaneName::of(f) else { return Taken::Malformed };
        let Some(index) = self.peers[peer].path_index(lane.path()) else { return Taken::Malformed };
        let now = self.clock.now();
        let (first, protects) = (self.opens_streams(peer, index), self.options.protection);
        let path = &mut self.peers[peer].paths[index];
        // a stream that was replaced meanwhile is left already
        if path.lane_count() > 1 && path.has_stream_of(lane) && protects {
            if f.kind == FrameType::Leave && !self.remedies.left_lanes_keep_records() {
                // planted: they are forgotten
                let stream = path.lane_of(lane.lane()).and_then(|l| l.stream()).expect("it has one");
                drop(self.streams[stream].take_all());
            }
            match f.kind {
                FrameType::Leave => path.moves.peer_leaves(lane.lane(), lane.number(), first, now),
                _ => path.moves.peer_left(lane.lane(), lane.number()),
            }
            self.schedule(peer, now);
        }
        Taken::Yes
    }

    /// Brings the moves of a path further. Returns when it is to be called next.
    pub(crate) fn lane_timer(&mut self, peer: PeerId, index: usize) -> Time {
        let now = self.clock.now();
        let mut next = Time::NEVER;
        let path = &mut self.peers[peer].paths[index];
        if let Some(at) = path.breadth.idle_at() {
            if now >= at {
                let count = path.breadth.idles();
                (1..count).rev().for_each(|id| self.part_lane(peer, index, LaneId(id)));
            } else {
                next = at;
            }
        }
        let Some(moves) = self.peers[peer].paths[index].moves.awake() else { return next };
        for id in moves.busy().collect::<Vec<_>>() {
            let path = &mut self.peers[peer].paths[index];
            let stream = path.lane_of(id).and_then(|l| l.stream()).and_then(|s| self.streams.get(s));
            let name = stream.and_then(|s| s.name());
            let under_way = stream.is_some_and(|s| s.has_under_way());
            match path.moves.due(id, name.map(LaneName::number), under_way, now) {
                Due::Wait(at) => next = next.min(at),
                Due::Open if !path.breadth.has(id) => {
                    path.moves.parts(id);
                    let stream = path.lane_of(id).and_then(|l| l.stream()).expect("it was left with one");
                    self.drop_stream(stream);
                }
                Due::Open => {
                    let epoch = path.epoch();
                    self.counters.lanes_moved += 1;
                    self.open_stream(peer, index, id, epoch);
                }
                Due::TellLeft => {
                    let lane = name.expect("it has a stream");
                    self.peers[peer].backlog.tell(Item::Left { lane });
                    self.mark(peer);
                }
                // one that is not wanted goes as soon as the peer lets it
                Due::Stay if !path.breadth.has(id) => self.part_lane(peer, index, id),
                Due::Stay => self.mark_streams(peer),
            }
        }
        next
    }
}
