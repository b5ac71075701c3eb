//! Memory that others may write. Owns: how it is got from the system and given back.

use crate::error::Error;
use crate::job::Shared;
use rerail_rwapi::{Net, Unused};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// Zeroed, page-aligned memory.
///
/// # Errors
/// [`Error::NoMemory`].
pub(crate) fn map(bytes: usize) -> Result<*mut u8, Error> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory at an address of the kernel's choice.
    let ptr = unsafe { libc::mmap(null_mut(), bytes, prot, flags, -1, 0) };
    if ptr == libc::MAP_FAILED { Err(Error::NoMemory) } else { Ok(ptr.cast()) }
}

/// Gives back what [`map`] gave.
pub(crate) fn unmap(memory: Vec<Unused>) {
    for Unused { ptr, bytes } in memory {
        // SAFETY: `map` gave it with this size, and the node has said that nothing uses it any more. It fails only for what is no memory.
        unsafe { libc::munmap(ptr.cast(), bytes) };
    }
}

/// A block of memory of this node that all nodes may write.
///
/// Other nodes write at any time, so the memory is never lent out as a slice: the methods copy. That what was written is there in full is certain
/// once a later message of the writer was received. When the block is dropped no node can write it any more; the memory is given back
/// when no write of this node reads it.
pub struct Block {
    shared: Arc<Shared>,
    ptr: *mut u8,
    bytes: usize,
    net: Net,
}

// SAFETY: the memory is touched by copies of atomic bytes only.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn new(shared: Arc<Shared>, ptr: *mut u8, bytes: usize, net: Net) -> Self {
        Self { shared, ptr, bytes, net }
    }

    /// The network address of its first byte. The address of byte `n` is `block.net() + n`.
    pub fn net(&self) -> Net {
        self.net
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte. Other nodes write this memory at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    fn cells(&self, offset: usize, bytes: usize) -> &[AtomicU8] {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes);
        assert!(end.is_some(), "{bytes} bytes at {offset} are not inside a block of {} bytes", self.bytes);
        // SAFETY: inside the block, which lives as long as `self`; all of this process that touch it through references do so atomically.
        unsafe { std::slice::from_raw_parts(self.ptr.add(offset).cast(), bytes) }
    }

    /// Copies bytes out of the block.
    ///
    /// # Panics
    /// The range is not inside the block.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        let cells = self.cells(offset, out.len());
        for (to, from) in out.iter_mut().zip(cells) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    /// Copies bytes into the block.
    ///
    /// # Panics
    /// The range is not inside the block.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        fence(Ordering::Release);
        for (to, from) in self.cells(offset, bytes.len()).iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.shared.free(self.ptr) {
            Ok(()) => {}
            // nothing is known of what a broken engine still does: better to keep the memory
            Err(Error::Failed) => {}
            // the job is over: nothing uses the block
            Err(_) => unmap(vec![Unused { ptr: self.ptr, bytes: self.bytes }]),
        }
    }
}
