//! Names of what an adapter does with memory.

/// A write that was posted, as the caller numbers it: never used twice by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// A piece of memory that peers may write, as the caller numbers it: never used twice by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemId(pub u32);

/// What names such memory to a peer: chosen by the adapter, hard to guess, never used twice (hazard H21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u64);

/// What became of a write that was to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The memory is lent from now on.
    Lent,
    /// The stream is over, or its rail does not place. Nothing is lent.
    Refused,
}
