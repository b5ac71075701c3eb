//! The words in which the two sides of a ring publish how far they are, and whether they sleep. Owns: the order in
//! which these are read and written. `tests/models.rs` tries every order in which two processes, or two threads of one,
//! can pass through them.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A word on cache lines of its own: two, because processors fetch them in pairs.
#[derive(Default)]
#[repr(C, align(128))]
struct Own<T>(T);

/// What both sides see of a ring. All zeros at first.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Control {
    /// Bytes written so far. The writer's.
    tail: Own<AtomicU64>,
    /// Bytes read so far. The reader's.
    head: Own<AtomicU64>,
    /// The reader sleeps: the writer makes it 0 again, and rings its bell.
    reader_sleeps: Own<AtomicU32>,
    /// The writer sleeps and waits for room.
    writer_sleeps: Own<AtomicU32>,
    /// The writer has closed: what is in the ring is void.
    closed: Own<AtomicU32>,
    /// The other side reads this ring.
    read: Own<AtomicU32>,
}

impl Control {
    // --- the writer's side ---

    /// How far the writer is, for the writer.
    pub fn written(&self) -> u64 {
        self.tail.0.load(Ordering::Relaxed)
    }

    /// How far the reader is, for the writer: what is before is read, and may be written over.
    pub fn freed(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// Everything before `tail` is written.
    pub fn publish(&self, tail: u64) {
        self.tail.0.store(tail, Ordering::Release);
    }

    /// Whether the reader went to sleep before it could see what was published last: ring its bell. True once.
    pub fn reader_to_wake(&self) -> bool {
        // Between the tail and this: either the sleeper sees the tail, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        let sleeps = &self.reader_sleeps.0;
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// The writer sleeps from now on, or does not. A fence must follow before it looks once more.
    pub fn writer_sleeps(&self, sleeps: bool) {
        self.writer_sleeps.0.store(u32::from(sleeps), Ordering::Relaxed);
    }

    /// Whether the other side reads this ring.
    pub fn has_reader(&self) -> bool {
        self.read.0.load(Ordering::Acquire) != 0
    }

    /// Nothing more will be written, and what was is void.
    pub fn close(&self) {
        self.closed.0.store(1, Ordering::Release);
    }

    // --- the reader's side ---

    /// How far the reader is, for the reader.
    pub fn taken(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// How far the writer is, for the reader: what is before is there.
    pub fn ready(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// Everything before `head` is read. For a ring with one reading thread.
    pub fn release(&self, head: u64) {
        self.head.0.store(head, Ordering::Release);
    }

    /// Takes what is between `head` and `end`, which the caller has copied. False: another thread was faster, and the
    /// copy is void, because it may have been overwritten.
    pub fn claim(&self, head: u64, end: u64) -> bool {
        self.head.0.compare_exchange(head, end, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the writer sleeps, and `has_room`: ring its bell. True once. `has_room` is called after the fence: by
    /// then the writer has seen everything that was read, or it is seen here that it sleeps.
    pub fn writer_to_wake(&self, has_room: impl FnOnce() -> bool) -> bool {
        fence(Ordering::SeqCst);
        let sleeps = &self.writer_sleeps.0;
        sleeps.load(Ordering::Relaxed) != 0 && has_room() && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// The reader sleeps from now on, or does not. A fence must follow before it looks once more.
    pub fn reader_sleeps(&self, sleeps: bool) {
        self.reader_sleeps.0.store(u32::from(sleeps), Ordering::Relaxed);
    }

    /// This side reads the ring from now on.
    pub fn begin_to_read(&self) {
        self.read.0.store(1, Ordering::Release);
    }

    /// Whether the writer has closed.
    pub fn is_closed(&self) -> bool {
        self.closed.0.load(Ordering::Acquire) != 0
    }
}
