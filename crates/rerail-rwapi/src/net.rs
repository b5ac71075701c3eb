//! Network addresses: what names a byte of the memory of a job. Owns: their layout, and the numbers of blocks.
//!
//! An address is a number of 64 bits, so that it fits a small message beside something else, and so that arithmetic inside a
//! block works. From the top:
//!
//! | bits | |
//! |---|---|
//! | 16 | the node |
//! | 2 | how large the block may be |
//! | 46 | the number of the block, then the offset in it |
//!
//! Between two blocks lies a range of addresses as long as the largest block of its kind, which names nothing: an address
//! that has run past the end of a block does not name the next one. A number is used again only when all others were, so an
//! address of a freed block names nothing for a long time.
//!
//! Source: RWAPI paper, section 2 ("network" addresses); the layout is our own.

use std::collections::BTreeSet;
use std::ops::Add;

/// Bits of the part of an address that belongs to its node.
const OWN_BITS: u32 = 48;
/// Bits of it that the kind does not take.
const PLACE_BITS: u32 = OWN_BITS - 2;
/// Bits of the offset, by the kind of a block: up to 1 MiB, 256 MiB, 64 GiB, 8 TiB.
const OFFSET_BITS: [u32; 4] = [20, 28, 36, 43];

/// Most nodes of a job.
pub const NODES_MAX: usize = 1 << (64 - OWN_BITS);

/// A network address. See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Net(pub u64);

/// A block of a node, as all nodes name it. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName(u64);

impl BlockName {
    /// As the key of a memory region.
    pub fn key(self) -> u64 {
        self.0
    }

    fn new(kind: usize, number: u64) -> Self {
        Self((kind as u64) << PLACE_BITS | number << OFFSET_BITS[kind])
    }

    /// The address of its first byte.
    pub fn net(self, node: usize) -> Net {
        Net((node as u64) << OWN_BITS | self.0)
    }
}

impl Net {
    /// The node that it belongs to. There may be none of this number.
    pub fn node(self) -> usize {
        (self.0 >> OWN_BITS) as usize
    }

    fn offset_bits(self) -> u32 {
        OFFSET_BITS[(self.0 >> PLACE_BITS & 3) as usize]
    }

    /// The block that it is in, if there is one of this name.
    pub fn block(self) -> BlockName {
        BlockName(self.0 & ((1 << OWN_BITS) - 1) & !((1 << self.offset_bits()) - 1))
    }

    /// Bytes from the beginning of its block.
    pub fn offset(self) -> u64 {
        self.0 & ((1 << self.offset_bits()) - 1)
    }
}

/// So many bytes further in the same block.
impl Add<u64> for Net {
    type Output = Net;

    /// It wraps: an address that a peer sent is any number, and one that names nothing is refused where it is used.
    fn add(self, bytes: u64) -> Net {
        Net(self.0.wrapping_add(bytes))
    }
}

/// The names of a node's blocks.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// By the kind: those in use.
    used: [BTreeSet<u64>; 4],
    /// By the kind: the next number is looked for from here.
    next: [u64; 4],
}

impl Names {
    /// A name for a block of so many bytes. `None`: it is too large, or there are too many of its size.
    pub fn take(&mut self, bytes: u64) -> Option<BlockName> {
        let kind = OFFSET_BITS.iter().position(|bits| bytes <= 1 << bits)?;
        // odd numbers are the gaps, and the first is none because address 0 is none
        let numbers = 1 << (PLACE_BITS - OFFSET_BITS[kind] - 1);
        let all = (0..numbers).map(|i| (self.next[kind] + i) % numbers);
        let free = all.filter(|n| *n > 0).find(|n| !self.used[kind].contains(n))?;
        self.used[kind].insert(free);
        self.next[kind] = free + 1;
        Some(BlockName::new(kind, free * 2))
    }

    /// A block is gone.
    pub fn give(&mut self, name: BlockName) {
        let kind = (name.0 >> PLACE_BITS) as usize;
        let number = (name.0 & ((1 << PLACE_BITS) - 1)) >> OFFSET_BITS[kind];
        self.used[kind].remove(&(number / 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_node_block_and_offset() {
        let mut names = Names::default();
        for (node, bytes) in [(0, 1), (7, 1 << 20), (65_535, (1 << 20) + 1), (3, 1 << 36), (1, 1 << 43)] {
            let block = names.take(bytes).unwrap();
            let first = block.net(node);
            let last = first + (bytes - 1);
            for (net, offset) in [(first, 0), (last, bytes - 1)] {
                assert_eq!((net.node(), net.block(), net.offset()), (node, block, offset));
            }
            assert_ne!(block.key(), 0);
        }
        assert_eq!(names.take((1 << 43) + 1), None);
    }

    #[test]
    fn past_the_end_of_a_block_lies_no_other_block() {
        let mut names = Names::default();
        let blocks: Vec<BlockName> = (0..100).map(|_| names.take(1 << 20).unwrap()).collect();
        for block in &blocks {
            for past in [1 << 20, (1 << 20) + 77, (2 << 20) - 1] {
                assert!(!blocks.contains(&Net(block.net(5).0 + past).block()));
            }
        }
    }

    #[test]
    fn a_name_is_used_again_only_after_all_others() {
        let mut names = Names::default();
        // three of the largest kind, because number 0 is none
        let all: Vec<BlockName> = (0..3).map(|_| names.take(1 << 43).unwrap()).collect();
        assert_eq!(names.take(1 << 43), None);
        names.give(all[0]);
        names.give(all[1]);
        assert_eq!(names.take(1 << 43), Some(all[0]));
        names.give(all[0]);
        assert_eq!(names.take(1 << 43), Some(all[1]), "the one that was free for longer");
    }
}
