//! The name of a stream that is attached or is to be, as both sides use it.

use crate::types::{Epoch, LaneId, PathId};
use rerail_wire::hello::LANES_MAX;
use rerail_wire::{FrameHeader, FrameType};

/// See above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneName {
    path: PathId,
    epoch: Epoch,
    lane: LaneId,
    /// Number of the stream within epoch and lane.
    number: u64,
}

impl LaneName {
    /// Of stream `number` of a lane in an epoch of a path.
    pub fn new(path: PathId, epoch: Epoch, lane: LaneId, number: u64) -> Self {
        Self { path, epoch, lane, number }
    }

    #[inline]
    pub fn path(self) -> PathId {
        self.path
    }

    #[inline]
    pub fn lane(self) -> LaneId {
        self.lane
    }

    #[inline]
    pub fn epoch(self) -> Epoch {
        self.epoch
    }

    /// Number of the stream within epoch and lane.
    #[inline]
    pub fn number(self) -> u64 {
        self.number
    }

    /// The same stream of that lane, in another epoch.
    pub fn in_epoch(self, epoch: Epoch) -> Self {
        Self { epoch, ..self }
    }

    /// As frames carry it.
    pub fn header(self, kind: FrameType) -> FrameHeader {
        FrameHeader {
            aux: self.path.0,
            a: u64::from(self.epoch.0),
            b: self.number,
            x: u32::from(self.lane.0),
            ..FrameHeader::new(kind)
        }
    }

    /// What a frame carries; `None`: no epoch is that large, or no path has so many lanes.
    pub fn of(f: &FrameHeader) -> Option<Self> {
        let epoch = Epoch(u32::try_from(f.a).ok()?);
        let lane = LaneId(u8::try_from(f.x).ok().filter(|&l| l < LANES_MAX)?);
        Some(Self { path: PathId(f.aux), epoch, lane, number: f.b })
    }
}
