//! Names of what an adapter does with memory.

/// A write that was posted, as the caller numbers it: never used twice by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// A piece of memory that peers may write, as the caller numbers it: never used twice by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemId(pub u32);

/// What names such memory to a peer: chosen by the adapter, hard to guess, never used twice (hazard H21). Opaque to the
/// engine; long enough for an adapter whose peers need a key and an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteKey(pub u128);

impl RemoteKey {
    /// Of two words.
    pub fn of(low: u64, high: u64) -> RemoteKey {
        RemoteKey(u128::from(high) << 64 | u128::from(low))
    }

    /// Its low and its high word.
    pub fn words(self) -> (u64, u64) {
        (self.0 as u64, (self.0 >> 64) as u64)
    }
}

/// What became of a write that was to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The memory is lent from now on.
    Lent,
    /// The adapter cannot read this memory: no more may be locked, for instance. Nothing is lent, and the stream goes on: the
    /// bytes can be written to it instead.
    Unreadable,
    /// The stream is over, or its rail does not place. Nothing is lent.
    Refused,
}
