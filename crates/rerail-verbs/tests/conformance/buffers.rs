//! A program that maps, unmaps, moves and empties its buffers between messages, and forks, over real adapters: what arrives is what is
//! in its memory, not what was there before.

use rerail_rail::conformance::{connect, eventually, poll};
use rerail_rail::{
    IoVec, Kind, MemId, Moved, Place, Posted, RailId, Rails, RemoteKey, StreamEvent, StreamId, WorkId,
};
use rerail_verbs::{Settings, registration_counts};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const BUFFER_BYTES: usize = 4 * PAGE;
/// Several registrations long.
const LARGE_BYTES: usize = 9 << 20;
/// What the engine cuts messages into.
const PART_BYTES: usize = 64 << 10;
const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Two processes' rails in one process, a stream on each rail, and memory of the one that the other may write.
struct Two {
    from: Rails,
    to: Rails,
    streams: Vec<(StreamId, StreamId, RemoteKey)>,
    target: &'static [u8],
    works: u64,
    /// Works that are reported as over.
    placed: Vec<WorkId>,
}

impl Two {
    fn new((mut from, mut to): (Rails, Rails)) -> Two {
        let target = IoVec::from_mut(vec![0; LARGE_BYTES].leak());
        let mut streams = Vec::new();
        for rail in 0..from.rails.len() {
            let (name, number) = (RailId(rail as u8), 1 + rail as u32);
            let (out, into) = connect(&mut from, &mut to, rail, number);
            // SAFETY: never freed.
            unsafe { to.streams.register(name, MemId(number), target) };
            let key = eventually("memory is registered", || {
                poll(&mut to).into_iter().find_map(|e| match e {
                    StreamEvent::Registered(_, key) => Some(key),
                    _ => None,
                })
            });
            streams.push((out, into, key));
        }
        // SAFETY: never freed. It is looked at when nothing writes to it.
        let target = unsafe { std::slice::from_raw_parts(target.ptr, target.len) };
        Two { from, to, streams, target, works: 0, placed: Vec::new() }
    }

    fn poll_from(&mut self) {
        self.placed.extend(poll(&mut self.from).into_iter().filter_map(|e| match e {
            StreamEvent::Placed(work) => Some(work),
            _ => None,
        }));
    }

    /// Writes a message in parts, and compares what has arrived.
    fn send(&mut self, rail: usize, message: &Range<usize>, part_bytes: usize, when: &str) {
        let (out, into, key) = self.streams[rail];
        let memory = |r: &Range<usize>| IoVec::new(r.start as *mut u8, r.len());
        let mut under_way = Vec::new();
        for start in message.clone().step_by(part_bytes) {
            let part = start..(start + part_bytes).min(message.end);
            self.works += 1;
            let place = Place {
                work: WorkId(self.works),
                source: memory(&part),
                whole: memory(message),
                key,
                offset: (start - message.start) as u64,
            };
            while under_way.len() == usize::from(self.from.rails[rail].places_max) {
                self.poll_from();
                under_way.retain(|w| !self.placed.contains(w));
                self.placed.clear();
            }
            // SAFETY: the memory changes when all is over, below.
            let posted = unsafe { self.from.streams.place(out, &place) };
            assert_eq!(posted, Posted::Lent, "{when}: there is room");
            under_way.push(place.work);
        }
        eventually("there is room for a byte", || {
            self.poll_from();
            // SAFETY: a constant.
            let written = unsafe { self.from.streams.write(out, &[IoVec::from_ref(b".")]) };
            (written == Moved::Bytes(1)).then_some(())
        });
        eventually("a byte comes", || {
            poll(&mut self.to);
            let mut byte = [0];
            // SAFETY: memory of this call.
            let read = unsafe { self.to.streams.read(into, &[IoVec::from_mut(&mut byte)]) };
            (read == Moved::Bytes(1)).then_some(())
        });
        // SAFETY: mapped, and filled by the caller.
        let sent = unsafe { std::slice::from_raw_parts(message.start as *const u8, message.len()) };
        assert!(self.target[..sent.len()] == *sent, "wrong bytes {when}");
        eventually("the source is given back", || {
            self.poll_from();
            under_way.retain(|w| !self.placed.contains(w));
            under_way.is_empty().then_some(())
        });
        self.placed.clear();
    }
}

fn map(at: usize, len: usize, flags: c_int) -> usize {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: with MAP_FIXED only over buffers of this test.
    let memory = unsafe { libc::mmap(at as *mut c_void, len, rights, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory as usize
}

fn unmap(memory: &Range<usize>) {
    // SAFETY: buffers of this test, which nothing uses any more.
    assert_eq!(unsafe { libc::munmap(memory.start as *mut c_void, memory.len()) }, 0);
}

fn advise(memory: &Range<usize>, advice: c_int) {
    // SAFETY: buffers of this test, which are filled again.
    assert_eq!(unsafe { libc::madvise(memory.start as *mut c_void, memory.len(), advice) }, 0);
}

fn fill(memory: &Range<usize>, number: u64) {
    for at in memory.clone().step_by(8) {
        // SAFETY: buffers of this test.
        unsafe { (at as *mut u64).write(number << 16 | (at as u64 & 0xffff)) };
    }
}

/// To another address; `None`: it lies in several mappings.
fn moved(memory: &Range<usize>) -> Option<Range<usize>> {
    // SAFETY: buffers of this test, which nothing uses any more.
    let to = unsafe {
        let into = map(0, memory.len(), PRIVATE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(memory.start as *mut c_void, memory.len(), memory.len(), flags, into)
    };
    (to != libc::MAP_FAILED).then(|| to as usize..to as usize + memory.len())
}

/// Shrinks the heap and lets it grow again: other pages at the same addresses. `None`: something else is on top.
fn heap_again(memory: &Range<usize>) -> Option<()> {
    // SAFETY: only what is on top, and belongs to this test, is given back.
    unsafe {
        let len = memory.len() as isize;
        if libc::sbrk(0) as usize != memory.end || libc::sbrk(-len) as usize != memory.end {
            return None;
        }
        (libc::sbrk(len) as usize == memory.start).then_some(())
    }
}

/// A child with a copy of all memory, which waits until it is ended.
struct Child(i32);

impl Child {
    fn new() -> Child {
        // SAFETY: the child does nothing but wait.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                loop {
                    libc::pause();
                }
            }
            Child(child)
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the process that was made above.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// `count` rounds, of which each changes a buffer in some way, fills and sends it.
pub fn rounds(sides: (Rails, Rails), count: u64) {
    const BUFFERS: usize = 6;
    let mut two = Two::new(sides);
    let before = registration_counts();
    let over = Arc::new(AtomicBool::new(false));
    // Another thread gives addresses back and takes them all the time.
    let other = {
        let over = over.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let start = map(0, BUFFER_BYTES, PRIVATE);
                fill(&(start..start + BUFFER_BYTES), u64::MAX >> 16);
                unmap(&(start..start + BUFFER_BYTES));
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        })
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) as usize % n
    };
    let new = || {
        let start = map(0, BUFFER_BYTES, PRIVATE);
        start..start + BUFFER_BYTES
    };
    let grow = || {
        // SAFETY: the heap grows, at a page, by what this test uses from now on.
        let start = unsafe { libc::sbrk(BUFFER_BYTES as isize) } as usize;
        start..start + BUFFER_BYTES
    };
    let (mut heap, mut heaps) = (grow(), 0);
    let mut buffers: [Range<usize>; BUFFERS] = std::array::from_fn(|_| new());
    for round in 1..=count {
        let buffer = &mut buffers[below(BUFFERS)];
        let mut child = None;
        let change = match below(14) {
            0..=2 => {
                unmap(buffer);
                *buffer = new();
                "after munmap"
            }
            3 => {
                map(buffer.start, buffer.len(), PRIVATE | libc::MAP_FIXED);
                "after MAP_FIXED"
            }
            4 => {
                map(buffer.start + PAGE, PAGE, PRIVATE | libc::MAP_FIXED);
                "after MAP_FIXED over one page"
            }
            5 => {
                advise(buffer, libc::MADV_DONTNEED);
                "after MADV_DONTNEED"
            }
            6 => {
                advise(buffer, libc::MADV_FREE);
                "after MADV_FREE"
            }
            7 => {
                if let Some(to) = moved(buffer) {
                    *buffer = to;
                }
                "after mremap"
            }
            8 if round % 8 == 0 => {
                child = Some(Child::new());
                "after fork"
            }
            9 => {
                fill(&heap, round << 8);
                two.send(0, &heap, PART_BYTES, "before brk");
                match heap_again(&heap) {
                    Some(()) => heaps += 1,
                    None => heap = grow(),
                }
                fill(&heap, round << 8 | 1);
                two.send(0, &heap, PART_BYTES, "after brk");
                "beside brk"
            }
            _ => "unchanged",
        };
        fill(buffer, round);
        let end = buffer.len() - below(buffer.len() / 2);
        let message = buffer.start + below(end / 2)..buffer.start + end;
        two.send(below(two.streams.len()), &message, PAGE + below(BUFFER_BYTES), change);
        drop(child);
    }
    over.store(true, Ordering::Relaxed);
    other.join().unwrap();
    let now = registration_counts();
    let (found, made, gone) = (now.found - before.found, now.made - before.made, now.gone - before.gone);
    println!(
        "{count} rounds: {found} sources were registered, {made} were not; {gone} went; {heaps} times brk"
    );
    // the guest's kernel can watch memory
    assert!(found > count / 10 && gone > count / 20 && (heaps > 0 || count < 100));
}

/// Each 4 MiB of it, and nothing when it is sent again: at the latest when no event of other memory comes between.
pub fn a_large_message_registers_its_blocks_once(sides: (Rails, Rails)) {
    const ROUNDS: u64 = 20;
    let mut two = Two::new(sides);
    let start = map(0, LARGE_BYTES, PRIVATE);
    let message = start..start + LARGE_BYTES;
    let made: Vec<u64> = (0..ROUNDS)
        .map(|round| {
            fill(&message, round);
            let before = registration_counts();
            two.send(0, &message, PART_BYTES, "of a large message");
            registration_counts().made - before.made
        })
        .collect();
    println!("registrations of a message of 9 MiB, one round after the other: {made:?}");
    assert!(made[0] >= 3 && made[0] < (LARGE_BYTES / PART_BYTES) as u64 / 4);
    assert!(made.contains(&0), "it is kept");
    unmap(&message);
}

/// This process may lock 64 KiB only, and is not privileged to lock more.
pub fn little_may_be_locked(kind: Kind) {
    let opened = rerail_verbs::attach(kind, &Settings::default(), &|_| true);
    let why = opened.err().expect("an adapter needs more").to_string();
    assert!(why.contains("ulimit -l") && !why.contains('\n'), "{why}");
}
