//! Memory for copies of sent messages, and of those that arrive before their receive is posted. Owns: the memory that no message needs at the moment.
//!
//! The copy of a sent message lives until the acknowledgement, and many are given back at once. Left to the C library, what lies at the end of its heap goes
//! back to the kernel with every acknowledgement, and comes page by page, each one cleared, with the next sends: 16 KiB there and
//! back took 2.6 µs longer one way. So some is kept, the last used first, because that is still in the processor's cache.

use crate::memory::spare::Spare;

/// Shorter copies are the C library's business, which keeps them at hand by itself.
const SHORTEST: usize = 1025;
/// Copies of up to twice as many bytes share a class; these are the capacities.
const CAPACITIES: [usize; 6] = [1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16];
/// Memory kept for one class, in bytes: what a window of messages takes until it is acknowledged.
const KEPT_BYTES: usize = 512 * 1024;

/// Memory for copies that no message needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copies([Spare; CAPACITIES.len()]);

fn class(bytes: usize) -> Option<usize> {
    (bytes >= SHORTEST).then(|| CAPACITIES.iter().position(|&c| bytes <= c)).flatten()
}

impl Copies {
    /// Empty, with room for so many bytes.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let Some(i) = class(bytes) else { return Vec::with_capacity(bytes) };
        self.0[i].take().unwrap_or_else(|| Vec::with_capacity(CAPACITIES[i]))
    }

    /// A copy of these.
    pub fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.take(bytes.len());
        copy.extend_from_slice(bytes);
        copy
    }

    /// Is not needed any more.
    pub fn put(&mut self, mut copy: Vec<u8>) {
        let Some(i) = CAPACITIES.iter().position(|&c| c == copy.capacity()) else { return };
        copy.clear();
        self.0[i].put(copy, KEPT_BYTES / CAPACITIES[i]);
    }

    /// Gives back what was not needed since this was last done.
    pub fn tidy(&mut self) {
        self.0.iter_mut().for_each(Spare::tidy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_by_copies_of_its_size() {
        let mut copies = Copies::default();
        let mut a = copies.take(16_384);
        a.extend_from_slice(&[7; 16_384]);
        let at = a.as_ptr();
        copies.put(a);
        let other = copies.take(4_096);
        assert_ne!(other.as_ptr(), at, "of another size");
        let b = copies.take(9_000);
        assert_eq!((b.as_ptr(), b.len()), (at, 0));
        assert!(copies.take(9_000).capacity() >= 9_000, "there is no other, and a new one serves as well");
    }

    #[test]
    fn short_copies_and_more_than_a_window_are_not_kept() {
        let mut copies = Copies::default();
        let short = copies.take(100);
        assert_eq!(short.capacity(), 100);
        copies.put(short);
        let many: Vec<_> = (0..100).map(|_| copies.take(16_384)).collect();
        many.into_iter().for_each(|c| copies.put(c));
        assert_eq!(copies.0[3].len(), KEPT_BYTES / 16_384);
        assert!(copies.0.iter().map(Spare::len).sum::<usize>() == copies.0[3].len(), "and nothing else");
    }

    #[test]
    fn what_is_not_needed_for_a_while_is_given_back() {
        let mut copies = Copies::default();
        let many: Vec<_> = (0..8).map(|_| copies.take(16_384)).collect();
        many.into_iter().for_each(|c| copies.put(c));
        copies.tidy();
        let (a, b) = (copies.take(16_384), copies.take(16_384));
        copies.put(a);
        copies.put(b);
        copies.tidy();
        assert_eq!(copies.0[3].len(), 2, "two were needed at a time");
        copies.tidy();
        assert!(copies.0.iter().all(|c| c.len() == 0));
    }
}
