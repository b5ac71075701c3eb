//! Registered memory.
//!
//! Owns: the regions by domain and key. Invariant 10: a peer reaches memory only through [`Regions::resolve`], which gives it nothing outside
//! of a region and nothing that the region does not allow.

use crate::message::iov::Iov;
use crate::types::{IoVec, Region};
use rerail_wire::onesided::{Status, pieces};
use rustc_hash::FxHashMap;

/// A domain, and a key in it.
pub(crate) type RegionId = (u32, u64);

#[derive(Debug, Clone)]
struct Registered {
    memory: Iov,
    bytes: u64,
    /// The address by which peers name its first byte.
    origin: u64,
    readable: bool,
    writable: bool,
}

/// What an order does with memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub read: bool,
    pub write: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Regions(FxHashMap<RegionId, Registered>);

impl Regions {
    /// Adds a region. False: its key is in use in that domain, and nothing was changed.
    ///
    /// # Safety
    /// The memory stays valid, and may be written if the region is writable, until the region is removed and nothing uses what
    /// [`Regions::resolve`] gave of it.
    pub unsafe fn add(&mut self, region: &Region<'_>) -> bool {
        let id = (region.domain, region.key);
        if self.0.contains_key(&id) {
            return false;
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { Iov::new(region.pieces) };
        let bytes = memory.bytes() as u64;
        let Region { origin, readable, writable, .. } = *region;
        self.0.insert(id, Registered { memory, bytes, origin, readable, writable });
        true
    }

    /// Forgets a region.
    pub fn remove(&mut self, id: RegionId) {
        self.0.remove(&id);
    }

    /// Forgets all regions.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The memory behind the pieces of an order. Planted, without `checked`: what sticks out of a region is silently
    /// cut off.
    pub fn resolve(&self, domain: u32, list: &[u8], access: Access, checked: bool) -> Result<Iov, Status> {
        let mut memory = Vec::with_capacity(1);
        for piece in pieces(list) {
            let r = self.0.get(&(domain, piece.key)).ok_or(Status::Key)?;
            if (access.read && !r.readable) || (access.write && !r.writable) {
                return Err(Status::Permission);
            }
            let at = piece.addr.wrapping_sub(r.origin);
            let inside =
                piece.addr >= r.origin && at.checked_add(piece.len).is_some_and(|end| end <= r.bytes);
            if !inside && (checked || at > r.bytes) {
                return Err(Status::Bounds);
            }
            let len = if inside { piece.len } else { r.bytes - at };
            r.memory.pieces(at as usize, len as usize, |ptr, len| memory.push(IoVec { ptr, len }));
        }
        // SAFETY: every piece is a part of a registered region. `Engine::unregister` ends every use that lasts longer than the call.
        Ok(unsafe { Iov::new(&memory) })
    }
}

/// The regions that the pieces of an order lie in.
pub(crate) fn regions_of(domain: u32, list: &[u8]) -> Box<[RegionId]> {
    pieces(list).map(|p| (domain, p.key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_wire::onesided::{Order, OrderKind, OrderPiece};

    const READ: Access = Access { read: true, write: false };
    const WRITE: Access = Access { read: false, write: true };

    /// What an order finds that names these pieces.
    fn resolve(
        regions: &Regions,
        domain: u32,
        list: &[OrderPiece],
        access: Access,
    ) -> Result<Vec<usize>, Status> {
        let total = list.iter().map(|p| p.len).sum();
        let bytes = Order { total, ..Order::new(OrderKind::Read, 1) }.to_bytes(list, 0);
        let (_, list, _) = Order::parse(&bytes).expect("we wrote it");
        let memory = regions.resolve(domain, list, access, true)?;
        Ok(memory.as_slice().iter().map(|v| v.len).collect())
    }

    #[test]
    fn nothing_outside_of_a_region_is_reached() {
        let (mut a, mut b) = ([0u8; 100], [0u8; 50]);
        let pieces = [IoVec::from_mut(&mut a), IoVec::from_mut(&mut b)];
        let mut regions = Regions::default();
        let region =
            Region { domain: 3, key: 9, pieces: &pieces, origin: 1000, readable: true, writable: false };
        // SAFETY: both arrays outlive the regions, and nothing reads or writes them.
        let mut add = || unsafe { regions.add(&region) };
        assert!(add() && !add(), "the key is in use");
        let piece = |addr, len| OrderPiece { addr, len, key: 9 };
        assert_eq!(resolve(&regions, 3, &[piece(1000, 150)], READ), Ok(vec![100, 50]));
        assert_eq!(resolve(&regions, 3, &[piece(1090, 20), piece(1149, 1)], READ), Ok(vec![10, 10, 1]));
        for (addr, len) in [(999, 1), (1000, 151), (1150, 1), (u64::MAX, 2), (1001, u64::MAX)] {
            assert_eq!(resolve(&regions, 3, &[piece(addr, len)], READ), Err(Status::Bounds), "{addr} {len}");
        }
        assert_eq!(resolve(&regions, 3, &[piece(1000, 1)], WRITE), Err(Status::Permission));
        assert_eq!(resolve(&regions, 4, &[piece(1000, 1)], READ), Err(Status::Key), "another domain");
    }

    #[test]
    fn a_region_that_was_given_up_is_not_found() {
        let mut memory = [0u8; 100];
        let pieces = [IoVec::from_mut(&mut memory)];
        let mut regions = Regions::default();
        for key in [1, 2] {
            let r = Region { domain: 0, key, pieces: &pieces, origin: 0, readable: true, writable: true };
            // SAFETY: the array outlives the regions, and nothing reads or writes it.
            assert!(unsafe { regions.add(&r) });
        }
        let named = |key| OrderPiece { addr: 0, len: 1, key };
        regions.remove((0, 1));
        assert_eq!(resolve(&regions, 0, &[named(1)], READ), Err(Status::Key));
        assert_eq!(resolve(&regions, 0, &[named(2)], READ), Ok(vec![1]));
        regions.clear();
        assert_eq!(resolve(&regions, 0, &[named(2)], READ), Err(Status::Key));
    }
}
