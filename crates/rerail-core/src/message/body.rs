//! Where the bytes of a sent message are.

use crate::memory::copies::Copies;
use crate::message::iov::Iov;
use crate::types::IoVec;

/// Bytes of a copy that is kept in the record of its message: most small messages need no memory of their own.
pub(crate) const SHORT_BYTES: usize = 46;

/// Where the bytes of a sent message are.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Copied: ours until acknowledged. This many bytes.
    Short([u8; SHORT_BYTES], u8),
    /// The same, of more bytes.
    Retained(Vec<u8>),
    /// The user's memory, ours to read until the completion.
    User(Iov),
    /// Nowhere: it was announced, never granted, and the endpoint is closed. Only the envelope is still to arrive, because the
    /// messages behind it wait for that.
    Withdrawn,
}

impl Body {
    /// A copy of `total` bytes, in memory of `copies` if it takes some.
    pub fn copy_of(iov: &Iov, total: usize, copies: &mut Copies) -> Self {
        if total <= SHORT_BYTES {
            let mut short = [0; SHORT_BYTES];
            let mut filled = 0;
            iov.pieces(0, total, |p, n| {
                // SAFETY: by the promise of `Iov::new` the `n` bytes at `p` may be read.
                short[filled..filled + n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
                filled += n;
            });
            return Body::Short(short, total as u8);
        }
        let mut copy = copies.take(total);
        iov.gather(0, total, &mut copy);
        Body::Retained(copy)
    }

    /// The bytes, if they are a copy.
    pub fn copied(&self) -> Option<&[u8]> {
        match self {
            Body::Short(b, n) => Some(&b[..usize::from(*n)]),
            Body::Retained(b) => Some(b),
            Body::User(_) | Body::Withdrawn => None,
        }
    }

    pub fn pieces(&self, at: usize, len: usize, mut each: impl FnMut(*const u8, usize)) {
        match self {
            Body::Short(..) | Body::Retained(_) => {
                if len > 0 {
                    let b = self.copied().expect("a copy");
                    each(b[at..at + len].as_ptr(), len);
                }
            }
            Body::User(v) => v.pieces(at, len, |p, n| each(p.cast_const(), n)),
            Body::Withdrawn => unreachable!("what was withdrawn is never granted"),
        }
    }

    /// The piece of memory in which the byte `at` lies.
    pub fn around(&self, at: usize) -> IoVec {
        match self {
            Body::Short(..) | Body::Retained(_) => IoVec::from_ref(self.copied().expect("a copy")),
            Body::User(v) => v.around(at),
            Body::Withdrawn => unreachable!("what was withdrawn is never granted"),
        }
    }

    pub fn gather(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        match self {
            Body::Short(..) | Body::Retained(_) => {
                out.extend_from_slice(&self.copied().expect("a copy")[at..at + len]);
            }
            Body::User(v) => v.gather(at, len, out),
            Body::Withdrawn => unreachable!("what was withdrawn is never granted"),
        }
    }
}
