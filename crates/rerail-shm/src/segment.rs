//! Memory that two processes have mapped. Owns: the mapping, and where in it the two rings are.
//!
//! Nothing in it is trusted: the other process may write anything at any time. What is read from it is copied first and then checked, and
//! its size cannot change, because the file is sealed: a mapping of a file that shrinks would kill the process.

use crate::ring::{CONTROL_BYTES, Ring};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of one ring. As much as stays in a processor's second cache between the writer and the reader.
pub(crate) const RING_BYTES: usize = 256 << 10;
/// Both controls, then both rings.
const SEGMENT_BYTES: usize = 2 * CONTROL_BYTES + 2 * RING_BYTES;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Which of the two rings a process writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// That of the process that made the memory.
    Maker,
    /// That of the process that was given it.
    Guest,
}

pub(crate) struct Segment {
    base: NonNull<u8>,
}

// SAFETY: the memory is only reached through `Ring`, whose words are atomics and whose bytes are copied by pointer.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Fresh memory, and the file by which another process gets it.
    pub fn make() -> io::Result<(Arc<Segment>, OwnedFd)> {
        let file = memfd_create("rerail", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, SEGMENT_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file)?, file))
    }

    /// The memory of another process; an error when it is not of the kind that [`Segment::make`] makes.
    pub fn join(file: impl AsFd) -> io::Result<Arc<Segment>> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        if !fcntl_get_seals(&file)?.contains(SEALS) || fstat(&file)?.st_size != SEGMENT_BYTES as i64 {
            return Err(odd());
        }
        Self::map(file)
    }

    fn map(file: impl AsFd) -> io::Result<Arc<Segment>> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                SEGMENT_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let segment = Segment { base };
        // The neighbour is connected to the parent, not to a forked child (hazard H16).
        // SAFETY: exactly the mapping made above.
        unsafe { madvise(segment.start(), SEGMENT_BYTES, Advice::LinuxDontFork)? };
        Ok(Arc::new(segment))
    }

    fn start(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    /// The ring that `side` writes to.
    pub fn ring(self: &Arc<Self>, side: Side) -> Ring {
        let i = usize::from(side == Side::Guest);
        // SAFETY: both lie within the mapping, which lives as long as the ring's share of the segment; a fresh file is all zeros,
        // and the mapping begins at a page, so the control is aligned.
        unsafe {
            let words = self.base.add(i * CONTROL_BYTES);
            let data = self.base.add(2 * CONTROL_BYTES + i * RING_BYTES);
            Ring::new(self.clone(), words.cast(), data)
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `map`; every ring keeps the segment alive.
        let _ = unsafe { munmap(self.start(), SEGMENT_BYTES) };
    }
}
