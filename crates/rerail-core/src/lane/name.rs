//! The name of a stream that was attached, as both sides use it.

use crate::types::{Epoch, PathId};
use rerail_wire::{FrameHeader, FrameType};

/// See above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneName {
    path: PathId,
    epoch: Epoch,
    /// Number of the stream within the epoch.
    number: u64,
}

impl LaneName {
    /// Of stream `number` in an epoch of a path.
    pub fn new(path: PathId, epoch: Epoch, number: u64) -> Self {
        Self { path, epoch, number }
    }

    pub fn path(self) -> PathId {
        self.path
    }

    /// As frames carry it.
    pub fn header(self, kind: FrameType) -> FrameHeader {
        FrameHeader { aux: self.path.0, a: u64::from(self.epoch.0), b: self.number, ..FrameHeader::new(kind) }
    }

    /// What a frame carries; `None`: no epoch is that large.
    pub fn of(f: &FrameHeader) -> Option<Self> {
        let epoch = Epoch(u32::try_from(f.a).ok()?);
        Some(Self { path: PathId(f.aux), epoch, number: f.b })
    }
}
