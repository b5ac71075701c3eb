//! The fragments of a granted message at its sender.
//!
//! A message is cut into fragments of a granule fixed when it is announced (hazard H9); 64 fragments are a vfrag, whose
//! mask is the unit of acknowledgement. Source: PML DR §3.3; differs: acknowledgements may cross paths, so masks are
//! only ever OR-ed (hazard H10), and packet numbers, not masks, judge the paths.
//!
//! Owns: what was cut, what was acknowledged. Invariant 1: the number of acknowledged fragments is that of the bits in the masks.

use crate::ranges::RangeSet;
use rustc_hash::FxHashMap;

/// Fragments of a vfrag.
pub(crate) const VFRAG_FRAGMENTS: u64 = 64;
/// Paths by which the taken bytes are told apart.
const PATHS: usize = 16;

#[derive(Debug, Clone)]
pub(crate) struct Fragments {
    granule: u64,
    granted: u64,
    /// First byte never sent.
    next: u64,
    acked: u64,
    /// Bits of those that were acknowledged.
    masks: Vec<u64>,
    /// Bytes taken by each path's place in the peer's list, for striping by shares.
    taken: [u64; PATHS],
    /// Pieces acknowledged one by one, when fragments travel as datagrams.
    partial: FxHashMap<u64, RangeSet>,
}

/// A fragment that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub at: u64,
    pub len: u64,
    /// Nothing is left to be cut.
    pub last: bool,
}

impl Fragments {
    /// Those of the first `granted` bytes.
    pub fn new(granted: u64, granule: u32) -> Self {
        let mut f = Self {
            granule: u64::from(granule),
            granted: 0,
            next: 0,
            acked: 0,
            masks: Vec::new(),
            taken: [0; PATHS],
            partial: FxHashMap::default(),
        };
        f.grant_again(granted);
        f
    }

    /// Planted: a grant that comes again counts again.
    pub fn grant_again(&mut self, granted: u64) {
        self.granted = granted;
        self.masks = vec![0; self.count().div_ceil(VFRAG_FRAGMENTS) as usize];
    }

    /// Bytes that were granted.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// First byte that was never sent.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes that were never sent.
    pub fn unsent(&self) -> u64 {
        self.granted - self.next
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.granted.div_ceil(self.granule)
    }

    /// How many were acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Bytes taken by the path in place `i`.
    pub fn taken(&self, i: usize) -> u64 {
        self.taken[i % PATHS]
    }

    /// Bytes of the next fragment.
    pub fn next_len(&self) -> u64 {
        ((self.next / self.granule + 1) * self.granule).min(self.granted) - self.next
    }

    /// Cuts the next fragment for the path in place `i`.
    pub fn cut(&mut self, i: usize) -> Cut {
        let (at, len) = (self.next, self.next_len());
        self.next += len;
        self.taken[i % PATHS] += len;
        Cut { at, len, last: self.next == self.granted }
    }

    /// Where the fragment begins that byte `at` is in, and its length.
    pub fn whole(&self, at: u64) -> (u64, u64) {
        let low = at / self.granule * self.granule;
        (low, self.granule.min(self.granted - low))
    }

    fn is_acked(&self, frag: u64) -> bool {
        self.masks
            .get((frag / VFRAG_FRAGMENTS) as usize)
            .is_some_and(|m| m >> (frag % VFRAG_FRAGMENTS) & 1 == 1)
    }

    /// ORs bits into a vfrag's mask.
    pub fn ack_mask(&mut self, vfrag: u64, mask: u64) {
        let count = self.count();
        let Some(m) = self.masks.get_mut(vfrag as usize) else { return };
        let in_this = (count - vfrag * VFRAG_FRAGMENTS).min(VFRAG_FRAGMENTS);
        let valid = if in_this == 64 { u64::MAX } else { (1 << in_this) - 1 };
        let fresh = mask & valid & !*m;
        *m |= fresh;
        self.acked += u64::from(fresh.count_ones());
    }

    /// Planted: an older mask that arrives later takes bits back.
    pub fn replace_mask(&mut self, vfrag: u64, mask: u64) {
        let Some(m) = self.masks.get_mut(vfrag as usize) else { return };
        *m = mask;
        self.acked = self.bits();
    }

    /// Notes that `[at, at + len)` arrived.
    pub fn ack_bytes(&mut self, at: u64, len: u64) {
        let frag = at / self.granule;
        let (low, frag_len) = self.whole(at);
        if len < frag_len {
            let p = self.partial.entry(frag).or_default();
            p.insert(at, at + len);
            if !p.covers(low, low + frag_len) {
                return;
            }
            self.partial.remove(&frag);
        }
        self.ack_mask(frag / VFRAG_FRAGMENTS, 1 << (frag % VFRAG_FRAGMENTS));
    }

    /// Whether `[at, at + len)` still has to arrive.
    pub fn needs(&self, at: u64, len: u64) -> bool {
        let frag = at / self.granule;
        at < self.granted
            && !self.is_acked(frag)
            && !self.partial.get(&frag).is_some_and(|p| p.covers(at, at + len))
    }

    pub fn all_acked(&self) -> bool {
        self.acked == self.count()
    }

    fn bits(&self) -> u64 {
        self.masks.iter().map(|x| u64::from(x.count_ones())).sum()
    }

    /// Checks the invariant.
    pub fn check(&self) {
        assert_eq!(self.bits(), self.acked, "invariant 1: acknowledged fragments are the bits of the masks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_ored_and_bits_beyond_the_end_do_not_count() {
        let mut f = Fragments::new(70 * 100 - 50, 100);
        f.ack_mask(0, 0b1010);
        f.ack_mask(0, 0b0010); // an older mask that arrives later
        assert_eq!(f.acked(), 2);
        f.ack_mask(0, u64::MAX);
        f.ack_mask(1, u64::MAX);
        f.ack_mask(9, u64::MAX);
        assert_eq!(f.acked(), 70);
        assert!(f.all_acked());
        f.check();
    }

    #[test]
    fn pieces_of_a_fragment_make_it_whole() {
        let mut f = Fragments::new(250, 100);
        f.ack_bytes(100, 40);
        f.ack_bytes(160, 40);
        assert!(f.needs(140, 20) && !f.needs(100, 40));
        f.ack_bytes(140, 20);
        assert!(!f.needs(100, 100));
        f.ack_bytes(200, 50);
        f.ack_bytes(0, 100);
        assert!(f.all_acked());
        f.check();
    }

    #[test]
    fn every_byte_is_cut_once_and_counts_for_the_path_that_takes_it() {
        let mut f = Fragments::new(250, 100);
        assert_eq!(f.cut(0), Cut { at: 0, len: 100, last: false });
        assert_eq!((f.unsent(), f.next_len()), (150, 100));
        assert_eq!(f.cut(1), Cut { at: 100, len: 100, last: false });
        assert_eq!(f.cut(0), Cut { at: 200, len: 50, last: true });
        assert_eq!((f.taken(0), f.taken(1), f.unsent()), (150, 100, 0));
        assert_eq!((f.whole(130), f.whole(249)), ((100, 100), (200, 50)));
    }
}
