//! Pieces of memory.

use std::fmt;

/// A piece of memory that belongs to the user of the engine.
///
/// Whoever posts an operation promises that the memory stays valid (and for receives, unshared) until the operation's
/// completion; the engine promises not to touch it afterwards (invariants 4 and 5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IoVec {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl IoVec {
    /// A piece over `bytes`, for receives.
    pub fn from_mut(bytes: &mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// A piece over `bytes`, for sends only.
    pub fn from_ref(bytes: &[u8]) -> Self {
        Self { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    /// A piece over memory of another owner.
    pub fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }
}

impl fmt::Debug for IoVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoVec({:p}, {})", self.ptr, self.len)
    }
}

// SAFETY: an IoVec is only a pair of numbers; the promises about the memory are made by whoever posts the operation, and
// are independent of the thread.
unsafe impl Send for IoVec {}
// SAFETY: as above.
unsafe impl Sync for IoVec {}
