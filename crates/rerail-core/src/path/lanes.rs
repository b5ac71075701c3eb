//! The lanes of a path: what concerns all of them.
//!
//! The first lane carries what every path has: control, small messages, queries, bulk datagrams, and a stream. Each other lane has a stream, from another
//! port, so that a fabric may lead it over another route. A verdict is one on the path; what breaks on one lane is replaced there. Source: HSAM §3
//! (several paths to a port, each a connection of its own).

use super::Path;
use crate::lane::Lane;
use crate::lane::name::LaneName;
use crate::types::{LaneId, StreamId, Time};

impl Path {
    /// All lanes, the first one first.
    pub fn lanes(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        (0..).map(LaneId).zip(std::iter::once(&self.lane).chain(&self.others))
    }

    /// The same, to be changed.
    pub fn lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        std::iter::once(&mut self.lane).chain(&mut self.others)
    }

    /// How many there are: at least one.
    pub fn lane_count(&self) -> usize {
        1 + self.others.len()
    }

    /// That lane, if there is one of this number.
    #[inline]
    pub fn lane_of(&self, id: LaneId) -> Option<&Lane> {
        if id == LaneId::FIRST { Some(&self.lane) } else { self.others.get(usize::from(id.0) - 1) }
    }

    /// The same, to be changed.
    #[inline]
    pub fn lane_of_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        if id == LaneId::FIRST { Some(&mut self.lane) } else { self.others.get_mut(usize::from(id.0) - 1) }
    }

    /// From now on there are at least so many, of a rail of that nominal speed. Lanes are never taken away: the peer
    /// may still name them.
    pub fn grow_lanes(&mut self, count: usize, mbps: u32, now: Time) {
        if self.lane_count() < count {
            self.others.reserve_exact(count - self.lane_count());
            self.others.resize_with(count - 1, || Lane::new(self.datagrams.bytes_max(), mbps, now));
        }
    }

    /// The streams that are attached.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.lanes().filter_map(|(_, l)| l.stream())
    }

    /// Whether any is.
    #[inline]
    pub fn has_stream(&self) -> bool {
        self.lane.stream().is_some()
            || (!self.others.is_empty() && self.others.iter().any(|l| l.stream().is_some()))
    }

    /// Whether a stream of that name is attached.
    pub fn has_stream_of(&self, name: LaneName) -> bool {
        let lane = self.lane_of(name.lane()).filter(|l| l.stream().is_some());
        self.epoch() == name.epoch() && lane.is_some_and(|l| l.connection().number() == name.number())
    }

    /// Whether the stream of a lane takes nothing new, because the lane is to take another route, or is one too many. Some lane always takes what is
    /// new.
    #[inline]
    pub fn is_left(&self, id: LaneId, now: Time) -> bool {
        let takes = |(other, lane): (LaneId, &Lane)| {
            lane.stream().is_some() && self.breadth.carries(other) && !self.is_moving(other, now)
        };
        (!self.breadth.carries(id) || self.is_moving(id, now)) && self.lanes().any(takes)
    }

    #[inline]
    fn is_moving(&self, id: LaneId, now: Time) -> bool {
        self.moves.awake().is_some_and(|m| m.is_left(id, now))
    }

    /// The most that may be under way on a lane, because its stream is fresh; `None`: it is not.
    #[inline]
    pub fn fresh(&self, id: LaneId) -> Option<u64> {
        self.moves.awake().and_then(|m| m.fresh(id)).or_else(|| self.breadth.fresh(id))
    }

    /// So many lanes are there, and wanted by this side.
    #[inline]
    pub fn wanted_lanes(&self) -> u8 {
        self.breadth.lanes().min(self.lane_count() as u8)
    }

    /// The attempts at streams.
    pub fn attempts(&self) -> Vec<StreamId> {
        self.lanes().flat_map(|(_, l)| l.connection().attempts()).copied().collect()
    }

    /// Whether streams of this path are still to be closed.
    pub fn is_draining(&self) -> bool {
        self.lanes().any(|(_, l)| !l.connection().draining().is_empty())
    }

    /// Whether an acknowledgement of something that came in this epoch must go.
    #[inline]
    pub fn acks_are_due(&self, now: Time) -> bool {
        self.lane.acks().are_due(now) || self.others.iter().any(|l| l.acks().are_due(now))
    }

    /// The same of the epoch before.
    #[inline]
    pub fn old_acks_are_due(&self, now: Time) -> bool {
        self.lane.acks().old_are_due(now) || self.others.iter().any(|l| l.acks().old_are_due(now))
    }

    /// Bytes per second that the path makes: of those lanes together that have a stream.
    pub fn rate(&self) -> f64 {
        let others: f64 = self.others.iter().filter(|l| l.stream().is_some()).map(Lane::rate).sum();
        self.lane.rate() + others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Locator, PathId, RailId};

    #[test]
    fn lanes_grow_and_are_found_by_their_numbers() {
        let at = Locator::ip([10, 0, 0, 1].into(), 1);
        let mut x = Path::new(PathId(0), RailId(0), at, 1400, 1000, 4, Time::ORIGIN);
        let one = x.rate();
        assert_eq!((x.lane_count(), x.lane_of(LaneId(1)).is_none(), x.has_stream()), (1, true, false));
        x.grow_lanes(4, 1000, Time::ORIGIN);
        x.grow_lanes(2, 1000, Time::ORIGIN);
        assert_eq!(
            (x.lane_count(), x.lane_of(LaneId(3)).is_some(), x.lane_of(LaneId(4)).is_none()),
            (4, true, true)
        );
        x.lane_of_mut(LaneId(2)).unwrap().connection_mut().attach(StreamId(7), 2);
        assert_eq!((x.streams().collect::<Vec<_>>(), x.has_stream()), (vec![StreamId(7)], true));
        assert_eq!(x.rate(), 2.0 * one, "a lane without a stream makes nothing");
        assert_eq!(x.lanes().map(|(id, _)| id.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        x.lane_of_mut(LaneId(2)).unwrap().connection_mut().closing(StreamId(7));
        assert!(x.is_draining() && !x.has_stream());
    }
}
