//! What rails promise that write into the memory of peers by themselves ([`StreamPort::place`](crate::StreamPort::place)): order, and the
//! moments from which memory is not touched any more. Rails that do not place have nothing to try here, and each test prints that.

use super::{Factory, at_once, close, connect, ended, ending, eventually, pattern, poll, read, say, write};
use crate::{
    Closing, IoVec, Kind, MemId, Moved, Place, Posted, RailId, Rails, RemoteKey, StreamEvent, StreamId,
    WorkId,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long memory is watched that must not change any more: long enough for what is under way between two sockets or adapters.
const WATCHED: Duration = Duration::from_millis(20);
/// What a source is overwritten with when it is not lent any more.
const POISON: u8 = 0xee;
/// What surrounds the places in a region.
const GUARD: u8 = 0xc3;
/// Bytes of a write that is to be under way for a while.
const LONG_BYTES: usize = 256 << 10;
/// Bytes behind a region that are watched.
const BEHIND_BYTES: usize = 8 << 10;

/// Memory that adapters touch at any time, so no reference to it is made. Never freed: a test that fails takes nothing back.
#[derive(Clone, Copy)]
struct Lent(IoVec);

impl Lent {
    fn new(bytes: Vec<u8>) -> Lent {
        Lent(IoVec::from_mut(bytes.leak()))
    }

    fn filled(byte: u8, len: usize) -> Lent {
        Self::new(vec![byte; len])
    }

    fn piece(self, from: usize, len: usize) -> IoVec {
        assert!(from + len <= self.0.len);
        IoVec::new(self.0.ptr.wrapping_add(from), len)
    }

    fn at(self, i: usize) -> u8 {
        // SAFETY: the piece is one byte inside the memory, which is never freed. An adapter may write it now, so the read is volatile.
        unsafe { self.piece(i, 1).ptr.read_volatile() }
    }

    fn copy(self) -> Vec<u8> {
        (0..self.0.len).map(|i| self.at(i)).collect()
    }

    /// From the end, which an adapter would read last.
    fn fill(self, byte: u8) {
        for i in (0..self.0.len).rev() {
            // SAFETY: as above.
            unsafe { self.piece(i, 1).ptr.write_volatile(byte) };
        }
    }
}

/// The rails that place, on both sides.
fn placing(a: &Rails, b: &Rails) -> Vec<usize> {
    let both = a.rails.iter().zip(&b.rails).map(|(x, y)| x.places_max.min(y.places_max));
    let those: Vec<usize> = both.enumerate().filter(|(_, most)| *most > 0).map(|(i, _)| i).collect();
    if those.is_empty() {
        println!("no rail here places: nothing was tried");
    }
    those
}

fn next_work() -> WorkId {
    static WORKS: AtomicU64 = AtomicU64::new(1);
    WorkId(WORKS.fetch_add(1, Ordering::Relaxed))
}

/// Lets peers write into `memory`.
fn register(side: &mut Rails, rail: usize, memory: IoVec) -> (MemId, RemoteKey) {
    static REGIONS: AtomicU32 = AtomicU32::new(1);
    let region = MemId(REGIONS.fetch_add(1, Ordering::Relaxed));
    // SAFETY: the memory is never freed.
    unsafe { side.streams.register(RailId(rail as u8), region, memory) };
    let key = eventually("memory is registered", || {
        poll(side).into_iter().find_map(|e| match e {
            StreamEvent::Registered(id, key) => Some((id, key)),
            _ => None,
        })
    });
    assert_eq!(key.0, region);
    key
}

fn wait_until_invalid(side: &mut Rails, region: MemId) {
    at_once("a region is invalid", || poll(side).contains(&StreamEvent::Invalidated(region)).then_some(()));
}

fn invalidate(side: &mut Rails, region: MemId) {
    side.streams.invalidate(region);
    wait_until_invalid(side, region);
}

fn place(
    side: &mut Rails,
    s: StreamId,
    source: IoVec,
    key: RemoteKey,
    offset: u64,
) -> Result<WorkId, Posted> {
    let place = Place { work: next_work(), source, whole: source, key, offset };
    // SAFETY: the source is never freed. Where a test writes to it, that is after the adapter has given it back.
    match unsafe { side.streams.place(s, &place) } {
        Posted::Lent => Ok(place.work),
        refused => Err(refused),
    }
}

/// The works that are reported as done.
fn placed(side: &mut Rails) -> Vec<WorkId> {
    let of = |e| match e {
        StreamEvent::Placed(work) => Some(work),
        _ => None,
    };
    poll(side).into_iter().filter_map(of).collect()
}

/// Reads exactly so many bytes.
fn read_all(side: &mut Rails, s: StreamId, bytes: &mut [u8]) {
    let mut got = 0;
    while got < bytes.len() {
        got += eventually("bytes come", || match read(side, s, &mut bytes[got..]) {
            Moved::Bytes(n) => Some(n),
            Moved::Blocked => None,
            Moved::Closed(why) => panic!("closed: {why:?}"),
        });
    }
}

/// A stream on which about as many long writes as the rail takes are always under way. They go to the same place, with two patterns in turn, so
/// memory that is written changes.
struct Flood {
    stream: StreamId,
    key: RemoteKey,
    sources: [Lent; 2],
    posted: usize,
    done: usize,
    places_max: usize,
}

impl Flood {
    fn new(side: &Rails, rail: usize, stream: StreamId, key: RemoteKey) -> Flood {
        let sources = [0x55, 0xaa].map(|byte| Lent::filled(byte, LONG_BYTES));
        // An odd number: a batch that an adapter does at once, between two looks, leaves the other pattern.
        let places_max = usize::from(side.rails[rail].places_max - 1) | 1;
        Flood { stream, key, sources, posted: 0, done: 0, places_max }
    }

    /// Posts what there is room for.
    fn go_on(&mut self, side: &mut Rails) {
        self.done += placed(side).len();
        while self.posted - self.done < self.places_max {
            let source = self.sources[self.posted % 2];
            if place(side, self.stream, source.0, self.key, 0).is_err() {
                break;
            }
            self.posted += 1;
        }
    }

    /// Goes on until `target` is being written.
    fn reaches(&mut self, side: &mut Rails, target: Lent) {
        let middle = LONG_BYTES / 2;
        let before = target.at(middle);
        eventually("writes land", || {
            self.go_on(side);
            (target.at(middle) != before).then_some(())
        });
    }

    /// Goes on for a while, in which `target` must stay as it is.
    fn does_not_reach(&mut self, side: &mut Rails, target: Lent, when: &str) {
        let (before, start) = (target.copy(), Instant::now());
        while start.elapsed() < WATCHED {
            self.go_on(side);
            std::thread::sleep(Duration::from_micros(200));
        }
        let changed = target.copy().iter().zip(&before).filter(|(x, y)| x != y).count();
        assert_eq!(changed, 0, "bytes that were written after {when}");
    }
}

/// Writes of many sizes, one or several between bytes of the stream: when a byte is read, all that was placed before it is in memory.
pub fn what_was_placed_is_in_memory_when_the_next_byte_is_read(factory: Factory) {
    const SIZES: [usize; 14] =
        [1, 2, 63, 4096, 300_000, 64, 65, 16_383, 16_384, 16_385, 3, 65_536, 1_000_003, 1000];
    // how many bytes of the stream follow the write of the same number
    const BYTES: [usize; 14] = [1, 100, 0, 7, 1, 3000, 0, 0, 70_000, 1, 0, 1, 500, 9];
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        let (sa, sb) = connect(&mut a, &mut b, rail, 1 + rail as u32);
        let places_max = usize::from(a.rails[rail].places_max);
        for round in 0..6 {
            let sources: Vec<Lent> = (0..SIZES.len())
                .map(|i| Lent::new((0..SIZES[i]).map(|at| pattern((round * 100 + i) as u64, at)).collect()))
                .collect();
            // each behind a guard of one byte; the last ends with the region
            let offsets: Vec<usize> = SIZES
                .iter()
                .scan(0, |end, n| {
                    Some({
                        *end += n + 1;
                        *end - n
                    })
                })
                .collect();
            let target = Lent::filled(GUARD, offsets[SIZES.len() - 1] + SIZES[SIZES.len() - 1]);
            let (region, key) = register(&mut b, rail, target.0);
            let starts: Vec<usize> = BYTES
                .iter()
                .scan(0, |end, n| {
                    Some({
                        *end += n;
                        *end - n
                    })
                })
                .collect();
            let bytes: Vec<u8> = (0..BYTES.iter().sum()).map(|at| pattern(round as u64, at)).collect();
            let (mut posted, mut under_way, mut sent, mut got, mut checked) = (0, Vec::new(), 0, 0, 0);
            let mut buf = vec![0; 61 + 997 * round];
            at_once("all is placed and read", || {
                for work in placed(&mut a) {
                    let at = under_way.iter().position(|w| *w == work);
                    under_way.swap_remove(at.expect("a work is reported once"));
                }
                // in turn: the write, and the bytes that follow it
                if posted < SIZES.len() && sent == starts[posted] && under_way.len() < places_max {
                    let work = place(&mut a, sa, sources[posted].0, key, offsets[posted] as u64);
                    under_way.push(work.expect("there is room"));
                    posted += 1;
                }
                let next_place = starts.get(posted).copied().unwrap_or(bytes.len());
                if sent < next_place {
                    match write(&mut a, sa, &bytes[sent..next_place]) {
                        Moved::Bytes(n) => sent += n,
                        Moved::Blocked => {}
                        Moved::Closed(why) => panic!("closed: {why:?}"),
                    }
                }
                match read(&mut b, sb, &mut buf) {
                    Moved::Bytes(n) => {
                        assert!(buf[..n] == bytes[got..got + n], "the stream has its own bytes");
                        got += n;
                    }
                    Moved::Blocked => {}
                    Moved::Closed(why) => panic!("closed: {why:?}"),
                }
                while checked < SIZES.len() && got > starts[checked] {
                    let here = Lent(target.piece(offsets[checked], SIZES[checked]));
                    assert!(
                        here.copy() == sources[checked].copy(),
                        "{} bytes are in memory when byte {got} of the stream is read, on rail {rail}",
                        SIZES[checked]
                    );
                    checked += 1;
                }
                (got == bytes.len() && checked == SIZES.len() && under_way.is_empty()).then_some(())
            });
            assert!(
                offsets.iter().all(|at| target.at(at - 1) == GUARD),
                "nothing is written beside its place"
            );
            invalidate(&mut b, region);
        }
    }
}

/// A source is given back by `Placed`: its next content does not reach the peer. Between the writes are bytes of the stream, and the other
/// side reads them only when nothing moves any more: so the adapter is stopped again and again in the middle of a write.
pub fn a_source_may_change_when_its_place_is_reported(factory: Factory) {
    const WRITES: usize = 24;
    const BYTES: usize = 1 << 20;
    const BETWEEN: usize = 48 << 10;
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        let (sa, sb) = connect(&mut a, &mut b, rail, 1 + rail as u32);
        let places_max = usize::from(a.rails[rail].places_max);
        let target = Lent::filled(GUARD, WRITES * BYTES);
        let (_, key) = register(&mut b, rail, target.0);
        let mut under_way: Vec<(WorkId, Lent)> = Vec::new();
        let (mut posted, mut done, mut owed, mut got) = (0, 0, 0, 0);
        let (between, mut buf) = (vec![0; BETWEEN], vec![0; BETWEEN]);
        let mut moved = Instant::now();
        at_once("each is reported, and all is read", || {
            for work in placed(&mut a) {
                let at = under_way.iter().position(|(w, _)| *w == work).expect("a work is reported once");
                under_way.swap_remove(at).1.fill(POISON);
                done += 1;
                moved = Instant::now();
            }
            if owed == 0 && posted < WRITES && under_way.len() < places_max {
                let source = Lent::filled(posted as u8, BYTES);
                let work = place(&mut a, sa, source.0, key, (posted * BYTES) as u64);
                under_way.push((work.expect("there is room"), source));
                posted += 1;
                owed = BETWEEN;
            }
            if owed > 0 {
                if let Moved::Bytes(n) = write(&mut a, sa, &between[..owed]) {
                    owed -= n;
                    moved = Instant::now();
                }
            }
            if moved.elapsed() > Duration::from_millis(1) {
                if let Moved::Bytes(n) = read(&mut b, sb, &mut buf) {
                    got += n;
                }
            }
            (done == WRITES && got == WRITES * BETWEEN).then_some(())
        });
        let wrong =
            target.copy().chunks(BYTES).enumerate().position(|(i, c)| c.iter().any(|x| *x != i as u8));
        assert_eq!(
            wrong, None,
            "the write whose source was read after it had been given back, on rail {rail}"
        );
    }
}

/// Whatever of it was still to be sent: when its stream is closed, a source is read no more.
pub fn a_source_may_change_when_its_stream_is_closed(factory: Factory) {
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        for round in 0..8 {
            let (sa, sb) = connect(&mut a, &mut b, rail, 1 + 8 * rail as u32 + round);
            let places_max = usize::from(a.rails[rail].places_max);
            let target = Lent::filled(GUARD, places_max * LONG_BYTES);
            let (region, key) = register(&mut b, rail, target.0);
            let source = Lent::filled(1, LONG_BYTES);
            for i in 0..places_max {
                place(&mut a, sa, source.0, key, (i * LONG_BYTES) as u64).expect("there is room");
            }
            // the first rounds are early, the last may be late
            std::thread::sleep(Duration::from_micros(100) * round);
            close(&mut a, sa);
            source.fill(POISON);
            std::thread::sleep(WATCHED);
            let read_late = target.copy().iter().filter(|x| **x == POISON).count();
            assert_eq!(read_late, 0, "bytes that were read after the stream was closed");
            ending(&mut b, sb);
            close(&mut b, sb);
            invalidate(&mut b, region);
        }
    }
}

/// Without a poll in between; each is reported once.
pub fn as_many_places_as_a_rail_says_are_under_way_at_once(factory: Factory) {
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        let (sa, sb) = connect(&mut a, &mut b, rail, 1 + rail as u32);
        let target = Lent::filled(GUARD, LONG_BYTES);
        let (_, key) = register(&mut b, rail, target.0);
        let source = Lent::filled(1, LONG_BYTES);
        for _ in 0..3 {
            let mut works: Vec<WorkId> = (0..a.rails[rail].places_max)
                .map(|i| {
                    place(&mut a, sa, source.0, key, 0).unwrap_or_else(|_| panic!("place {i} finds room"))
                })
                .collect();
            eventually("there is room for a byte", || {
                (write(&mut a, sa, b".") == Moved::Bytes(1)).then_some(())
            });
            eventually("each is reported", || {
                for work in placed(&mut a) {
                    works
                        .swap_remove(works.iter().position(|w| *w == work).expect("a work is reported once"));
                }
                works.is_empty().then_some(())
            });
            read_all(&mut b, sb, &mut [0]);
        }
    }
}

/// And where the rail does not place at all.
pub fn a_place_on_a_stream_that_is_over_is_refused(factory: Factory) {
    let (mut a, mut b) = factory();
    let source = Lent::filled(1, 100);
    let refused = |side: &mut Rails, s| {
        assert_eq!(place(side, s, source.0, RemoteKey(1), 0), Err(Posted::Refused));
    };
    refused(&mut a, StreamId(77));
    for rail in 0..a.rails.len() {
        let (sa, sb) = connect(&mut a, &mut b, rail, 1 + 2 * rail as u32);
        if a.rails[rail].places_max == 0 {
            refused(&mut a, sa);
            // that harms nothing
            say(&mut a, sa, b"x");
            continue;
        }
        close(&mut b, sb);
        ending(&mut a, sa);
        refused(&mut a, sa);
        close(&mut a, sa);
        refused(&mut a, sa);
        let (sa, _) = connect(&mut a, &mut b, rail, 2 + 2 * rail as u32);
        let closing = a.streams.close(sa);
        refused(&mut a, sa);
        if closing == Closing::Pending {
            ending(&mut a, sa);
        }
        assert_eq!(a.streams.rail_of(sa), None);
    }
}

/// The fence of a target: the peer writes and goes on writing, the region stays registered, and the end of the stream alone stops it.
pub fn nothing_lands_after_a_stream_is_closed(factory: Factory) {
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        let target = Lent::filled(GUARD, LONG_BYTES);
        let (_, key) = register(&mut b, rail, target.0);
        for round in 0..8 {
            let (sa, sb) = connect(&mut a, &mut b, rail, 1 + 8 * rail as u32 + round);
            let mut flood = Flood::new(&a, rail, sa, key);
            flood.reaches(&mut a, target);
            std::thread::sleep(Duration::from_micros(100) * round);
            close(&mut b, sb);
            flood.does_not_reach(&mut a, target, "its stream was closed");
            close(&mut a, sa);
        }
    }
}

/// The fence of a region: the peer writes and goes on writing.
pub fn nothing_lands_after_a_region_is_invalid(factory: Factory) {
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        let target = Lent::filled(GUARD, LONG_BYTES);
        for round in 0..8 {
            let (region, key) = register(&mut b, rail, target.0);
            let (sa, sb) = connect(&mut a, &mut b, rail, 1 + 8 * rail as u32 + round);
            let mut flood = Flood::new(&a, rail, sa, key);
            flood.reaches(&mut a, target);
            std::thread::sleep(Duration::from_micros(100) * round);
            b.streams.invalidate(region);
            wait_until_invalid(&mut b, region);
            flood.does_not_reach(&mut a, target, "its region was invalid");
            close(&mut a, sa);
            close(&mut b, sb);
        }
    }
}

/// A key that is unknown, invalid, another process's or another rail's, and a place that is not all inside of the region: not a byte is written, not even of
/// the part that would fit, the stream ends on both sides, and what follows on it is not read. An adapter for iWARP checks each packet by itself (RFC 5041
/// §7.2), so the part inside of the region may be written; it was granted to the same peer.
pub fn a_place_outside_of_what_was_granted_writes_nothing(factory: Factory) {
    let (mut a, mut b) = factory();
    let rails = placing(&a, &b);
    for &rail in &rails {
        let len = LONG_BYTES as u64;
        let (target, own, source) = (
            Lent::filled(GUARD, LONG_BYTES + BEHIND_BYTES),
            Lent::filled(GUARD, LONG_BYTES),
            Lent::filled(1, LONG_BYTES),
        );
        let granted = target.piece(0, LONG_BYTES);
        let by_packet = a.rails[rail].kind() == Kind::IWARP;
        let (_, key) = register(&mut b, rail, granted);
        let (old, invalid) = register(&mut b, rail, granted);
        invalidate(&mut b, old);
        let (_, of_another) = register(&mut a, rail, own.0);
        let other_rail = rails.iter().find(|other| **other != rail);
        let of_another_rail = other_rail.map(|other| register(&mut b, *other, granted).1);
        let mut cases = vec![
            ("an unknown key", RemoteKey(key.0 ^ 1), 0, LONG_BYTES),
            ("a key that is far off", RemoteKey(key.0 ^ 1 << 127), 0, LONG_BYTES),
            ("no key", RemoteKey(0), 0, 1),
            ("an invalid key", invalid, 0, LONG_BYTES),
            ("another process's key", of_another, 0, LONG_BYTES),
            ("a place at the end", key, len, 1),
            ("a place behind the end", key, len + 4096, 100),
            ("a place that ends a byte too late", key, 1, LONG_BYTES),
            ("a short place that ends a byte too late", key, len - 9, 10),
            ("a place beyond all memory", key, u64::MAX - 9, 10),
            ("a place that would come round", key, u64::MAX - 9, 100),
        ];
        cases.extend(of_another_rail.map(|key| ("a key of another rail", key, 0, LONG_BYTES)));
        let right = key;
        for (i, (what, key, offset, bytes)) in cases.into_iter().enumerate() {
            let (sa, sb) = connect(&mut a, &mut b, rail, 1 + 20 * rail as u32 + i as u32);
            say(&mut a, sa, b"before");
            read_all(&mut b, sb, &mut [0; 6]);
            place(&mut a, sa, source.piece(0, bytes), key, offset).expect("its own adapter cannot know");
            let mut over = matches!(write(&mut a, sa, b"after"), Moved::Closed(_));
            eventually("the receiver's end is over", || {
                // what a planted fault holds goes on when its own side looks
                over |= ended(&mut a, sa).is_some();
                match read(&mut b, sb, &mut [0; 8]) {
                    Moved::Bytes(_) => panic!("{what}: what follows is not read"),
                    Moved::Blocked => None,
                    Moved::Closed(_) => Some(()),
                }
            });
            if !over {
                ending(&mut a, sa);
            }
            close(&mut b, sb);
            close(&mut a, sa);
            let begins_inside = key == right && offset < len && by_packet;
            let written = |m: Lent, from: usize| m.copy()[from..].iter().filter(|x| **x != GUARD).count();
            let from = if begins_inside { LONG_BYTES } else { 0 };
            assert_eq!((written(target, from), written(own, 0)), (0, 0), "{what}: nothing is written");
            Lent(target.piece(0, from)).fill(GUARD);
        }
        let (sa, sb) = connect(&mut a, &mut b, rail, 19 + 20 * rail as u32);
        place(&mut a, sa, source.0, key, 0).expect("there is room");
        say(&mut a, sa, b".");
        read_all(&mut b, sb, &mut [0]);
        assert!(target.copy()[..LONG_BYTES] == source.copy(), "the right key is still good");
    }
}

/// Not for the same memory either, and not by the other side.
pub fn keys_are_never_used_twice(factory: Factory) {
    let (mut a, mut b) = factory();
    for rail in placing(&a, &b) {
        let memory = Lent::filled(GUARD, 4096);
        let mut keys = Vec::new();
        for _ in 0..50 {
            for side in [&mut a, &mut b] {
                let (one, two) = (register(side, rail, memory.0), register(side, rail, memory.0));
                keys.extend([one.1.0, two.1.0]);
                invalidate(side, one.0);
                invalidate(side, two.0);
            }
        }
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "each registration has a key of its own");
    }
}
