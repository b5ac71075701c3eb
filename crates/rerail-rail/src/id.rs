//! Names that the engine and its rails share.

/// Index of a local rail: its place in the process's own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailId(pub u8);

/// One attempt at a stream connection. Never reused in the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);
