//! Vectors of memory that is not the engine's own.
//!
//! Invariant: an [`Iov`] carries the promise of [`Iov::new`], which is unsafe and the only way to make one. Its methods rely on it.

use crate::types::IoVec;

/// Memory that the engine may touch: nearly always one piece.
#[derive(Debug, Clone)]
pub(crate) struct Iov(Pieces);

#[derive(Debug, Clone)]
enum Pieces {
    One(IoVec),
    Many(Box<[IoVec]>),
}

impl Iov {
    /// # Safety
    /// As long as this value or a clone of it is used, every piece is memory that may be read. If it is scattered into, or given to a
    /// rail to read into, it may be written too, and nothing else uses it meanwhile. For an operation of the application, the safety
    /// section of the posting call asks for this until the completion. The engine reports the completion, or closes the region, only
    /// when it no longer uses such a value (invariants 4 and 5).
    pub unsafe fn new(v: &[IoVec]) -> Self {
        Iov(match v {
            [one] => Pieces::One(*one),
            _ => Pieces::Many(v.into()),
        })
    }

    /// No memory at all.
    #[cfg(test)]
    pub fn none() -> Self {
        // SAFETY: there are no bytes.
        unsafe { Self::new(&[]) }
    }

    pub fn as_slice(&self) -> &[IoVec] {
        match &self.0 {
            Pieces::One(v) => std::slice::from_ref(v),
            Pieces::Many(v) => v,
        }
    }

    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(|v| v.len).sum()
    }

    /// The piece in which the byte `at` lies.
    pub fn around(&self, at: usize) -> IoVec {
        let mut end = 0;
        let holds = |v: &&IoVec| {
            end += v.len;
            at < end
        };
        *self.as_slice().iter().find(holds).expect("inside the vectors")
    }

    /// Calls `each(pointer, length)` for the pieces that make up `[at, at + len)`.
    pub fn pieces(&self, mut at: usize, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        for v in self.as_slice() {
            if len == 0 {
                return;
            }
            if at >= v.len {
                at -= v.len;
                continue;
            }
            let n = (v.len - at).min(len);
            // SAFETY: at < v.len, so the result stays inside the piece, which is valid by the promise of `Iov::new`.
            each(unsafe { v.ptr.add(at) }, n);
            len -= n;
            at = 0;
        }
        debug_assert_eq!(len, 0, "range outside the vectors");
    }

    /// Copies `bytes` to offset `at`.
    pub fn scatter(&self, at: usize, bytes: &[u8]) {
        let mut from = 0;
        self.pieces(at, bytes.len(), |p, n| {
            // SAFETY: by the promise of `Iov::new` the `n` bytes at `p` may be written and nothing else uses them, so they do not
            // overlap `bytes`. The pieces together are no longer than `bytes`, so `from + n` is within it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), p, n) };
            from += n;
        });
    }

    /// Appends `[at, at + len)` to `out`.
    pub fn gather(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        self.pieces(at, len, |p, n| {
            // SAFETY: by the promise of `Iov::new` the `n` bytes at `p` may be read.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_walked_in_order() {
        let (mut a, mut b) = ([0u8; 3], [0u8; 4]);
        // SAFETY: both arrays live to the end of the test, and are read only when nothing is scattered any more.
        let iov = unsafe { Iov::new(&[IoVec::from_mut(&mut a), IoVec::from_mut(&mut b)]) };
        iov.scatter(2, &[7, 8, 9]);
        assert_eq!((a, b), ([0, 0, 7], [8, 9, 0, 0]));
        let mut out = vec![];
        iov.gather(1, 4, &mut out);
        assert_eq!(out, [0, 7, 8, 9]);
        assert_eq!([0, 2, 3, 6].map(|at| iov.around(at).len), [3, 3, 4, 4]);
    }
}
