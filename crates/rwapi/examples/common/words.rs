//! Words of 64 bits in blocks. A block is read and written by copies, since other nodes write it at any time.

use rwapi::Block;

/// Bytes of a word.
pub const WORD: usize = 8;

/// Copies words out of a block.
pub fn read_words(block: &Block, offset: usize, words: usize) -> impl Iterator<Item = u64> + use<> {
    let mut bytes = vec![0; words * WORD];
    block.read_at(offset, &mut bytes);
    (0..words).map(move |i| u64::from_le_bytes(std::array::from_fn(|byte| bytes[i * WORD + byte])))
}

/// Copies words into a block.
pub fn write_words(block: &Block, offset: usize, words: impl Iterator<Item = u64>) {
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    block.write_at(offset, &bytes);
}
