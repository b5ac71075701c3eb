//! Links: whether a rail's own attachment is up.

use crate::RailId;
use std::os::fd::{BorrowedFd, RawFd};

/// Tells when a rail's own link goes away and comes back.
pub trait LinkWatch: Send {
    /// Appends every change since the last call to `out`: the rail, and whether it is up now. Only changes: neither the
    /// same state twice, nor a pair that came and went unseen. Never blocks.
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>);

    /// Readable when [`LinkWatch::drain`] may have something.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Appends every descriptor; see [`DatagramPort::descriptors`](crate::DatagramPort::descriptors).
    fn descriptors(&self, out: &mut Vec<RawFd>);
}
