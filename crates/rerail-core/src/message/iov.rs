//! Vectors of the application's memory.

use crate::types::IoVec;

/// The user's vectors: nearly always one piece.
#[derive(Debug, Clone)]
pub(crate) enum Iov {
    One(IoVec),
    Many(Box<[IoVec]>),
}

impl Iov {
    pub fn from_slice(v: &[IoVec]) -> Self {
        match v {
            [one] => Iov::One(*one),
            _ => Iov::Many(v.into()),
        }
    }

    pub fn as_slice(&self) -> &[IoVec] {
        match self {
            Iov::One(v) => std::slice::from_ref(v),
            Iov::Many(v) => v,
        }
    }

    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(|v| v.len).sum()
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
            // SAFETY: at < v.len, so the result stays inside the piece that the poster promised to be valid.
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
            // SAFETY: the poster of the receive promised valid, unshared memory until the completion, which has not been
            // reported; `bytes` is ours and cannot overlap it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), p, n) };
            from += n;
        });
    }

    /// Appends `[at, at + len)` to `out`.
    pub fn gather(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        self.pieces(at, len, |p, n| {
            // SAFETY: the poster of the send promised valid memory until the completion, which has not been reported.
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
        let iov = Iov::from_slice(&[IoVec::from_mut(&mut a), IoVec::from_mut(&mut b)]);
        iov.scatter(2, &[7, 8, 9]);
        assert_eq!((a, b), ([0, 0, 7], [8, 9, 0, 0]));
        let mut out = vec![];
        iov.gather(1, 4, &mut out);
        assert_eq!(out, [0, 7, 8, 9]);
    }
}
