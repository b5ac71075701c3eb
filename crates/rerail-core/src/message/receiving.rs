//! The bytes of a granted message as they arrive at its receiver.
//!
//! Owns: which fragments are there, which part of the others, and which stream may write which of them. Source and
//! differences: see [`fragments`](crate::message::fragments).
//!
//! Invariants: a fragment is committed once (invariant 1); one reader has the lease of a fragment, the newest (hazard H2); a fragment that is
//! there is leased to none (invariant 4).

use crate::message::fragments::VFRAG_FRAGMENTS;
use crate::message::target::Target;
use crate::ranges::RangeSet;
use crate::types::StreamId;
use rustc_hash::FxHashMap;

/// A fragment being read straight into the application's memory (hazard H2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub frag: u64,
    pub stream: StreamId,
}

/// Reception of a granted message.
#[derive(Debug, Clone)]
pub(crate) struct Receiving {
    target: Target,
    granted: u64,
    granule: u64,
    masks: Vec<u64>,
    /// Fragments that are there.
    got: u64,
    /// Pieces of fragments that are not whole.
    partial: FxHashMap<u64, RangeSet>,
    leases: Vec<Lease>,
    /// Vfrags whose mask changed since it was last reported.
    untold: Vec<u32>,
}

/// Where a stream may read a fragment to.
#[derive(Debug)]
pub(crate) enum Leasing {
    /// Nowhere: it is there, or no whole fragment.
    None,
    /// Beside the memory, pieces of it are there.
    Beside { frag: u64 },
    /// Straight into the memory; these streams may not any more.
    Given { frag: u64, losers: Vec<StreamId> },
}

/// What a piece of a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Outside of the message, or of more than one fragment.
    Malformed,
    /// Of a fragment that is there.
    Duplicate,
    /// Wanted.
    Wanted { frag: u64 },
}

impl Receiving {
    pub fn new(target: Target, granted: u64, granule: u32) -> Self {
        let granule = u64::from(granule);
        Self {
            target,
            granted,
            granule,
            masks: vec![0; granted.div_ceil(granule).div_ceil(VFRAG_FRAGMENTS) as usize],
            got: 0,
            partial: FxHashMap::default(),
            leases: Vec::new(),
            untold: Vec::new(),
        }
    }

    /// Where it goes.
    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn into_target(self) -> Target {
        self.target
    }

    /// Bytes that were granted.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Whether nothing of it has arrived in full.
    pub fn is_untouched(&self) -> bool {
        self.got == 0
    }

    pub fn has(&self, frag: u64) -> bool {
        self.masks
            .get((frag / VFRAG_FRAGMENTS) as usize)
            .is_some_and(|m| m >> (frag % VFRAG_FRAGMENTS) & 1 == 1)
    }

    /// Whether the fragment that byte `at` is in is there; `None`: there is no such byte.
    pub fn has_byte(&self, at: u64) -> Option<bool> {
        (at < self.granted).then(|| self.has(at / self.granule))
    }

    /// What `[at, at + len)` is.
    pub fn piece(&self, at: u64, len: u64) -> Piece {
        let frag = at / self.granule;
        if at >= self.granted || at + len > self.end_of(frag) {
            return Piece::Malformed;
        }
        if self.has(frag) { Piece::Duplicate } else { Piece::Wanted { frag } }
    }

    /// What `[at, at + len)` is, if nothing but a whole fragment makes sense.
    pub fn whole_piece(&self, at: u64, len: u64) -> Piece {
        let whole = at % self.granule == 0 && at < self.granted && at + len == self.end_of(at / self.granule);
        if whole { self.piece(at, len) } else { Piece::Malformed }
    }

    fn end_of(&self, frag: u64) -> u64 {
        ((frag + 1) * self.granule).min(self.granted)
    }

    /// Notes that `[at, at + len)` of a fragment is there; it is committed when all of it is, or `whole` is not waited for.
    pub fn note_piece(&mut self, frag: u64, at: u64, len: u64, whole: bool) {
        let (low, high) = (frag * self.granule, self.end_of(frag));
        let part = self.partial.entry(frag).or_default();
        part.insert(at, at + len);
        if part.covers(low, high) || !whole {
            self.commit(frag);
        }
    }

    /// Sets the bit of a fragment; invariant 1: it was not set.
    pub fn commit(&mut self, frag: u64) {
        assert!(!self.has(frag), "a fragment is committed once");
        let vfrag = (frag / VFRAG_FRAGMENTS) as usize;
        self.masks[vfrag] |= 1 << (frag % VFRAG_FRAGMENTS);
        self.got += 1;
        self.partial.remove(&frag);
        if !self.untold.contains(&(vfrag as u32)) {
            self.untold.push(vfrag as u32);
        }
    }

    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.got == self.granted.div_ceil(self.granule)
    }

    // ---- leases ------------------------------------------------------------------------------------------------

    /// Gives a stream the right to write `[at, at + len)` into the memory. The newest reader gets it (hazard H2). Without `exclusive`,
    /// planted, several have it.
    pub fn lease(&mut self, at: u64, len: u64, stream: StreamId, exclusive: bool) -> Leasing {
        let frag = at / self.granule;
        let whole = at % self.granule == 0 && at < self.granted && len == self.granule.min(self.granted - at);
        if !whole || (self.has(frag) && exclusive) {
            return Leasing::None;
        }
        if exclusive && self.partial.contains_key(&frag) {
            return Leasing::Beside { frag };
        }
        let mut losers = Vec::new();
        if exclusive {
            losers.extend(self.leases.iter().filter(|l| l.frag == frag).map(|l| l.stream));
            self.leases.retain(|l| l.frag != frag);
        }
        self.leases.push(Lease { frag, stream });
        Leasing::Given { frag, losers }
    }

    /// A stream has read a fragment, and has its lease no more.
    pub fn end_lease(&mut self, frag: u64, stream: StreamId) {
        self.leases.retain(|l| !(l.frag == frag && l.stream == stream));
    }

    /// Revokes the leases of a fragment, and returns them.
    pub fn revoke(&mut self, frag: u64) -> Vec<Lease> {
        if !self.leases.iter().any(|l| l.frag == frag) {
            return Vec::new();
        }
        let (holders, others): (Vec<Lease>, Vec<Lease>) = self.leases.drain(..).partition(|l| l.frag == frag);
        self.leases = others;
        holders
    }

    /// Revokes all leases, and returns them.
    pub fn revoke_all(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.leases)
    }

    /// A stream is no more.
    pub fn forget_stream(&mut self, stream: StreamId) {
        self.leases.retain(|l| l.stream != stream);
    }

    // ---- masks -------------------------------------------------------------------------------------------------

    /// The next vfrag whose mask was not reported to the sender, and the mask.
    pub fn next_untold(&mut self) -> Option<(u32, u64)> {
        let v = self.untold.pop()?;
        Some((v, self.masks[v as usize]))
    }

    /// What was reported to the sender may be lost.
    pub fn tell_again(&mut self) {
        self.untold = (0..self.masks.len() as u32).filter(|&v| self.masks[v as usize] != 0).collect();
    }

    /// Checks the invariants; `exclusive`: with those of leases.
    pub fn check(&self, exclusive: bool) {
        let bits: u64 = self.masks.iter().map(|x| u64::from(x.count_ones())).sum();
        assert_eq!(bits, self.got, "invariant 1: received fragments are the bits of the masks");
        if exclusive {
            for (i, l) in self.leases.iter().enumerate() {
                assert!(!self.has(l.frag), "invariant 4: no lease on a fragment that is there");
                assert!(!self.leases[i + 1..].iter().any(|o| o.frag == l.frag), "one lease per fragment");
            }
        }
    }

    /// How far it is, in words.
    pub fn describe(&self) -> String {
        format!(
            "{} fragments of {} bytes, {} leases, {} in pieces",
            self.got,
            self.granted,
            self.leases.len(),
            self.partial.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::iov::Iov;
    use crate::message::target::Landing;
    use crate::types::{EpId, Protocol};

    fn receiving(granted: u64) -> Receiving {
        let target = Target {
            ep: EpId(0),
            protocol: Protocol::Msg,
            context: 0,
            completion: true,
            iov: Iov::none(),
            cap: granted,
            multi: None,
            landing: Landing::Receive,
        };
        Receiving::new(target, granted, 100)
    }

    #[test]
    fn the_newest_reader_of_a_fragment_has_its_lease() {
        let mut r = receiving(250);
        let (old, new) = (StreamId(1), StreamId(2));
        assert!(matches!(r.lease(0, 100, old, true), Leasing::Given { frag: 0, .. }));
        let Leasing::Given { losers, .. } = r.lease(0, 100, new, true) else { panic!("it is wanted") };
        assert_eq!(losers, [old]);
        r.check(true);
        r.end_lease(0, old);
        assert_eq!(r.revoke(0), [Lease { frag: 0, stream: new }], "the loser cannot end it");
        assert!(matches!(r.lease(200, 100, old, true), Leasing::None), "longer than the message");
        assert!(matches!(r.lease(10, 90, old, true), Leasing::None), "no whole fragment");
    }

    #[test]
    fn a_fragment_of_which_pieces_are_there_is_read_beside_the_memory() {
        let mut r = receiving(250);
        assert_eq!(r.piece(200, 51), Piece::Malformed);
        assert_eq!(r.piece(90, 20), Piece::Malformed, "of two fragments");
        assert_eq!(r.piece(200, 20), Piece::Wanted { frag: 2 });
        r.note_piece(2, 200, 20, true);
        assert!(matches!(r.lease(200, 50, StreamId(1), true), Leasing::Beside { frag: 2 }));
        r.note_piece(2, 220, 30, true);
        assert_eq!(
            (r.piece(200, 20), r.has_byte(249), r.has_byte(250)),
            (Piece::Duplicate, Some(true), None)
        );
        assert!(matches!(r.lease(200, 50, StreamId(1), true), Leasing::None));
        r.check(true);
    }

    #[test]
    fn a_mask_is_told_when_it_changes_and_again_when_that_may_be_lost() {
        let mut r = receiving(100 * 130);
        for frag in [3, 5, 128] {
            r.commit(frag);
        }
        assert_eq!(r.next_untold(), Some((2, 1)));
        assert_eq!(r.next_untold(), Some((0, 0b10_1000)), "of both at once");
        assert_eq!(r.next_untold(), None);
        r.tell_again();
        assert_eq!((r.next_untold(), r.next_untold(), r.next_untold()).2, None);
        (0..130).filter(|f| ![3, 5, 128].contains(f)).for_each(|f| r.commit(f));
        assert!(r.is_complete());
        r.check(true);
    }
}
