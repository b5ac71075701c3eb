//! The memory of this node that others may write. Owns: the blocks, and which of them are read by writes of our own.

use crate::net::{BlockName, Names, Net};
use std::collections::BTreeMap;

/// A block.
#[derive(Debug, Clone, Copy)]
struct Block {
    ptr: *mut u8,
    bytes: usize,
    /// Writes of ours that read it.
    read_by: u64,
    /// The program has given it back.
    freed: bool,
}

// SAFETY: the pointer is an address here; this file never goes through it.
unsafe impl Send for Block {}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Blocks {
    names: Names,
    all: BTreeMap<BlockName, Block>,
}

/// Memory that the program has given back and that nothing reads any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unused {
    /// Its first byte.
    pub ptr: *mut u8,
    /// Its size.
    pub bytes: usize,
}

// SAFETY: as above.
unsafe impl Send for Unused {}

impl Blocks {
    /// A new block. `None`: it is too large, or there are too many.
    pub fn add(&mut self, ptr: *mut u8, bytes: usize) -> Option<BlockName> {
        let name = self.names.take(bytes as u64)?;
        self.all.insert(name, Block { ptr, bytes, read_by: 0, freed: false });
        Some(name)
    }

    /// The block that begins at this pointer.
    pub fn at(&self, ptr: *mut u8) -> Option<BlockName> {
        self.all.iter().find(|(_, b)| b.ptr == ptr && !b.freed).map(|(name, _)| *name)
    }

    /// Where a range of a block is. `None`: the address is in no block, or the range leaves its block.
    pub fn find(&self, net: Net, bytes: usize) -> Option<(BlockName, *mut u8)> {
        let block = self.all.get(&net.block()).filter(|b| !b.freed)?;
        let offset = usize::try_from(net.offset()).ok()?;
        offset.checked_add(bytes).filter(|end| *end <= block.bytes)?;
        Some((net.block(), block.ptr.wrapping_add(offset)))
    }

    /// A write of ours reads a block.
    pub fn lend(&mut self, name: BlockName) {
        if let Some(block) = self.all.get_mut(&name) {
            block.read_by += 1;
        }
    }

    /// A write of ours is over.
    #[must_use]
    pub fn end_loan(&mut self, name: BlockName) -> Option<Unused> {
        self.all.get_mut(&name)?.read_by -= 1;
        self.drop_unused(name)
    }

    /// The program gives a block back.
    #[must_use]
    pub fn free(&mut self, name: BlockName) -> Option<Unused> {
        self.all.get_mut(&name)?.freed = true;
        self.drop_unused(name)
    }

    fn drop_unused(&mut self, name: BlockName) -> Option<Unused> {
        let Block { ptr, bytes, .. } = *self.all.get(&name).filter(|b| b.freed && b.read_by == 0)?;
        self.all.remove(&name);
        self.names.give(name);
        Some(Unused { ptr, bytes })
    }

    /// The names of the blocks that others may write.
    pub fn names(&self) -> impl Iterator<Item = BlockName> + '_ {
        self.all.iter().filter(|(_, b)| !b.freed).map(|(name, _)| *name)
    }

    /// All blocks, for the end of a job: those that the program has given back, and those that it has not.
    pub fn take_all(&mut self) -> (Vec<Unused>, Vec<Unused>) {
        let all = std::mem::take(&mut self.all).into_values();
        let (freed, owned): (Vec<Block>, Vec<Block>) = all.partition(|b| b.freed);
        let unused = |all: Vec<Block>| all.iter().map(|b| Unused { ptr: b.ptr, bytes: b.bytes }).collect();
        (unused(freed), unused(owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_only_inside_its_block() {
        let mut memory = [0u8; 64];
        let mut blocks = Blocks::default();
        let name = blocks.add(memory.as_mut_ptr(), 64).unwrap();
        let net = name.net(3);
        let at = |offset: u64| Net(net.0.wrapping_add(offset));
        assert_eq!(blocks.find(at(10), 54), Some((name, memory.as_mut_ptr().wrapping_add(10))));
        for (offset, bytes) in [(10, 55), (0, 65), (65, 0), (0, usize::MAX), (u64::MAX, 1), (1 << 20, 1)] {
            assert_eq!(blocks.find(at(offset), bytes), None, "{offset} {bytes}");
        }
    }

    #[test]
    fn memory_that_a_write_reads_is_kept_until_it_is_over() {
        let mut memory = [0u8; 8];
        let mut blocks = Blocks::default();
        let name = blocks.add(memory.as_mut_ptr(), 8).unwrap();
        blocks.lend(name);
        blocks.lend(name);
        assert_eq!((blocks.free(name), blocks.find(name.net(0), 1)), (None, None));
        assert_eq!(blocks.at(memory.as_mut_ptr()), None);
        assert_eq!(blocks.end_loan(name), None);
        assert_eq!(blocks.end_loan(name), Some(Unused { ptr: memory.as_mut_ptr(), bytes: 8 }));
        assert_eq!(blocks.end_loan(name), None);
    }
}
