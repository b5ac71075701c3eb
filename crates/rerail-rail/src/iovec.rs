//! Pieces of memory.

use std::collections::VecDeque;
use std::fmt;
use std::io::Read;

/// A piece of memory that belongs to the user of the engine.
///
/// The caller that posts an operation promises that the memory stays valid (and for receives, unshared) until the
/// operation's completion; the engine promises not to touch it afterwards (invariants 4 and 5).
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

    /// Appends the first bytes of `pieces` to `out`, at most `most`.
    ///
    /// # Safety
    /// Every piece is valid for reads, and nothing writes to it during the call.
    pub unsafe fn gather(pieces: &[IoVec], mut most: usize, out: &mut Vec<u8>) {
        for piece in pieces {
            let n = piece.len.min(most);
            // SAFETY: inside the piece, by the caller's promise.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.ptr, n) });
            most -= n;
        }
    }

    /// Moves bytes from the front of `bytes` into `pieces`, as many as there are or fit; returns how many.
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it during the call.
    pub unsafe fn scatter(bytes: &mut VecDeque<u8>, pieces: &[IoVec]) -> usize {
        let before = bytes.len();
        for piece in pieces {
            let n = piece.len.min(bytes.len());
            // SAFETY: inside the piece, by the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(piece.ptr, n) };
            bytes.read_exact(to).expect("so many are there");
        }
        before - bytes.len()
    }
}

impl fmt::Debug for IoVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoVec({:p}, {})", self.ptr, self.len)
    }
}

// SAFETY: an IoVec is only a pair of numbers; the caller that posts the operation makes the promises about the memory,
// and they do not depend on the thread.
unsafe impl Send for IoVec {}
// SAFETY: as above.
unsafe impl Sync for IoVec {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_filled_and_read_in_order_and_no_further_than_they_go() {
        let (mut a, mut b) = ([0; 3], [9; 4]);
        let mut bytes: VecDeque<u8> = (1..6).collect();
        let pieces = [IoVec::from_mut(&mut a), IoVec::from_mut(&mut []), IoVec::from_mut(&mut b)];
        // SAFETY: the arrays live, and are not used otherwise.
        let moved = unsafe { (IoVec::scatter(&mut bytes, &pieces), IoVec::scatter(&mut bytes, &pieces)) };
        assert_eq!((moved, bytes.len()), ((5, 0), 0));
        let mut out = vec![7];
        // SAFETY: as above.
        unsafe { IoVec::gather(&pieces, 6, &mut out) };
        assert_eq!((a, b, out), ([1, 2, 3], [4, 5, 9, 9], vec![7, 1, 2, 3, 4, 5, 9]));
    }
}
