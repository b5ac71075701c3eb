//! Adapters: rails of the simulator that move memory by themselves. Owns: writes that are under way, and the memory that peers may write.
//!
//! As unkind as the contract of a rail allows (hazards H19 to H22). A write is read from its source and lands at its target in parts, at any
//! time between its posting and the arrival of the byte of its stream that follows it; when its stream breaks it goes on landing, long after
//! both sides know, until the *target's* end is closed or its region invalid; and it goes on being read until the *source's* end is
//! closed. Closing and invalidating take time, and what is under way meanwhile lands. What touches memory is checked at that moment against what the applications
//! have lent ([`Memory::check_window`](crate::memory::Memory::check_window)): no operation may be reported before.

use super::stream::{EndState, Notice};
use super::{Ev, World};
use crate::link::{Carries, MS, US};
use crate::memory::Use;
use crate::rng::Rng;
use rerail_core::{CloseReason, IoVec, MemId, Place, RailId, RemoteKey, StreamId, WorkId};
use rerail_driver::{Posted, StreamEvent};
use std::cell::Cell;
use std::collections::BTreeMap;

/// How often it is looked whether the adapters of a process write that is to exit then.
pub(crate) const LOOKS_FOR_WRITES: u32 = 1_000;
/// And at which intervals.
const LOOK_NS: u64 = 50 * US;

/// A write that is under way.
#[derive(Debug)]
struct Flight {
    work: WorkId,
    /// Connection, and the end that posted it.
    c: usize,
    side: usize,
    source: IoVec,
    /// The message that it is a part of.
    whole: IoVec,
    key: RemoteKey,
    /// The registration that the key named when it was posted.
    meant: Option<u64>,
    offset: u64,
    /// Bytes that have landed.
    landed: usize,
    /// Position in the stream of the byte that follows it.
    follower: u64,
    /// What is left of it has left the source, which is not read any more.
    on_the_wire: Option<Vec<u8>>,
}

/// Memory that may be written by a key.
#[derive(Debug, Clone, Copy)]
struct Region {
    p: usize,
    id: MemId,
    memory: IoVec,
    /// Which registration it is, of all that ever were.
    number: u64,
}

/// See above.
#[derive(Debug)]
pub struct Adapters {
    flights: BTreeMap<u64, Flight>,
    regions: BTreeMap<RemoteKey, Region>,
    /// The key of each name of a region, by process. A rail may make the one of the other, as real adapters leave a part of the key to
    /// their users: the same name has the same key.
    keys: BTreeMap<(usize, MemId), RemoteKey>,
    named: u64,
    rng: Rng,
    /// What is drawn for path migration, of a source of its own.
    pub(super) loads: Rng,
    /// Bytes that landed, and of those the bytes that did when the stream was broken.
    pub landed: (u64, u64),
    /// Writes that came when their region was over.
    pub too_late: u64,
    /// How often one was asked to write from memory that it could not read.
    pub unreadable: u64,
}

thread_local! {
    static EVERYWHERE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with adapters as the rails of every world that it makes on this thread and that says nothing of rails itself.
pub fn everywhere<T>(f: impl FnOnce() -> T) -> T {
    EVERYWHERE.set(true);
    let out = f();
    EVERYWHERE.set(false);
    out
}

pub(crate) fn are_everywhere() -> bool {
    EVERYWHERE.get()
}

/// What became of a write that was to land.
enum Landing {
    Done,
    /// Its region is invalid: the adapter breaks the stream.
    Refused,
}

impl Adapters {
    /// None yet; what they do is drawn by this seed.
    pub fn new(seed: u64) -> Self {
        Self {
            flights: BTreeMap::new(),
            regions: BTreeMap::new(),
            keys: BTreeMap::new(),
            named: 0,
            rng: Rng::new(seed, 0xada),
            loads: Rng::new(seed, 0xa93),
            landed: (0, 0),
            too_late: 0,
            unreadable: 0,
        }
    }

    /// Whether a write is under way.
    pub(crate) fn is_writing(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Whether one is on this connection.
    pub(super) fn is_writing_on(&self, c: usize) -> bool {
        self.flights.values().any(|f| f.c == c)
    }

    fn name(&mut self) -> u64 {
        self.named += 1;
        self.named
    }
}

/// Whether `part` lies in `whole`.
fn contains(whole: IoVec, part: IoVec) -> bool {
    let from = (part.ptr as usize).wrapping_sub(whole.ptr as usize);
    from.checked_add(part.len).is_some_and(|end| end <= whole.len)
}

impl World {
    /// Whether a connection is one of adapters.
    pub(crate) fn is_adapter(&self, c: usize) -> bool {
        self.places_max(self.conns[c].home) > 0
    }

    /// Bits of what a connection carries were flipped. The path is blamed, wherever its adapters lead it.
    pub(crate) fn corrupts(&mut self, c: usize) {
        let (net, home) = (self.conns[c].net, self.conns[c].home);
        self.corrupted[net] += 1;
        self.corrupted[home] += u64::from(home != net);
    }

    /// Writes that may be under way on one stream on a network; 0: its rails are no adapters.
    pub(crate) fn places_max(&self, net: usize) -> u16 {
        if self.cfg.encrypt { 0 } else { self.cfg.adapters.get(net).copied().unwrap_or(0) }
    }

    /// Whether an adapter has a write under way on a stream of this network's paths.
    pub(crate) fn is_writing(&self, home: usize) -> bool {
        self.adapters.flights.values().any(|f| self.conns[f.c].home == home)
    }

    /// Whether its rails open streams only for something large.
    pub(crate) fn saves_streams(&self, net: usize) -> bool {
        self.cfg.streams_on_demand && self.places_max(net) > 0
    }

    pub(crate) fn place(&mut self, p: usize, stream: StreamId, place: &Place) -> Posted {
        let Some(&(c, side)) = self.procs[p].streams.get(&stream) else { return Posted::Refused };
        if let Err((_, e)) = self.memory.check_window(&[place.whole], Use::Send) {
            panic!("p{p} {stream:?}: {e}; {place:?}");
        }
        assert!(contains(place.whole, place.source), "p{p} {stream:?}: a part that lies outside: {place:?}");
        let most = usize::from(self.places_max(self.conns[c].home));
        let under_way = self.adapters.flights.values().filter(|f| (f.c, f.side) == (c, side)).count();
        assert!(under_way < most, "bounded: p{p} posts more writes on {stream:?} than its rail takes");
        if self.conns[c].ends[side].state != EndState::Open || self.conns[c].ends[side].closing {
            return Posted::Refused;
        }
        let unreadable = self.cfg.unreadable_percent;
        if unreadable > 0 && self.adapters.rng.percent(unreadable) {
            self.adapters.unreadable += 1;
            return Posted::Unreadable;
        }
        let flight = Flight {
            work: place.work,
            c,
            side,
            source: place.source,
            whole: place.whole,
            key: place.key,
            meant: self.adapters.regions.get(&place.key).map(|r| r.number),
            offset: place.offset,
            landed: 0,
            follower: self.conns[c].dirs[side].end(),
            on_the_wire: None,
        };
        self.trace(|| format!("p{p} {stream:?} conn {c} places {place:?}"));
        let id = self.adapters.name();
        self.adapters.flights.insert(id, flight);
        let after = self.adapters.rng.log_range(2 * US, 2 * MS);
        self.after(after, Ev::Flight { id });
        let k = &self.conns[c];
        let broken = self.nets[k.net].links[k.ends[side].host].broken_writes;
        if broken > 0 && self.adapters.rng.percent(broken) {
            self.reset_stream(c);
        }
        Posted::Lent
    }

    pub(crate) fn register_memory(&mut self, p: usize, rail: RailId, id: MemId, memory: IoVec) {
        if let Err((_, e)) = self.memory.check_window(&[memory], Use::Recv) {
            panic!("p{p} registers on {rail:?}: {e}; {memory:?}");
        }
        let Adapters { keys, rng, .. } = &mut self.adapters;
        let key = *keys.entry((p, id)).or_insert_with(|| {
            let low: u64 = rng.draw();
            RemoteKey::of(low, !low)
        });
        let number = self.adapters.name();
        self.adapters.regions.insert(key, Region { p, id, memory, number });
        let (least, most) = self.cfg.register_ns;
        let after = self.adapters.rng.log_range(least, most);
        self.after(after, Ev::Adapter { p, event: StreamEvent::Registered(id, key) });
    }

    pub(crate) fn invalidate_memory(&mut self, p: usize, id: MemId) {
        let after = self.adapters.rng.log_range(US, 3 * MS);
        self.after(after, Ev::Adapter { p, event: StreamEvent::Invalidated(id) });
    }

    /// An adapter has done what it was asked.
    pub(crate) fn on_adapter(&mut self, p: usize, event: StreamEvent) {
        match event {
            StreamEvent::Invalidated(id) => self.adapters.regions.retain(|_, r| (r.p, r.id) != (p, id)),
            StreamEvent::Placed(work) => {
                let done = |f: &Flight| f.work == work && f.landed == f.source.len;
                let w = &*self;
                let found =
                    w.adapters.flights.iter().find(|(_, f)| done(f) && w.conns[f.c].ends[f.side].proc == p);
                let Some((&id, f)) = found else { return };
                // the acknowledgement of the other adapter takes the way back, while there is one
                let k = &self.conns[f.c];
                let (from, to) = (k.ends[1 - f.side].host, k.ends[f.side].host);
                let over = k.ends[f.side].over.is_some() || k.ends[f.side].closing;
                if over || !self.nets[k.net].open(from, to, Carries::Tcp(f.c)) {
                    if !over {
                        self.after(MS, Ev::Adapter { p, event });
                    }
                    return;
                }
                let f = self.adapters.flights.remove(&id).expect("it was just found");
                // until now it might have read the source again
                self.must_be_lent(&f);
            }
            _ => {}
        }
        self.notice(p, Notice::Adapter(event));
    }

    /// A part of a write lands, or all that is left of it.
    pub(crate) fn on_flight(&mut self, id: u64) {
        let Some(f) = self.adapters.flights.get(&id) else { return };
        let rest = f.source.len - f.landed;
        if rest == 0 {
            return;
        }
        let (c, side, wired) = (f.c, f.side, f.on_the_wire.is_some());
        let k = &self.conns[c];
        let whole =
            k.ends[0].over.is_none() && k.ends[1].over.is_none() && !k.ends[0].closing && !k.ends[1].closing;
        let open = self.nets[k.net].open(k.ends[side].host, k.ends[1 - side].host, Carries::Tcp(c));
        if open || wired || !whole {
            let some = 1 + self.adapters.rng.index(rest);
            let all = self.adapters.rng.percent(40);
            self.land(id, if all { rest } else { some });
        }
        // after a break it takes its time
        let most = if whole { MS } else { self.cfg.late_writes_ns };
        let after = self.adapters.rng.log_range(2 * US, most);
        self.after(after, Ev::Flight { id });
    }

    /// The byte of the stream that follows it is about to arrive: what was posted before is in memory. False: it cannot be.
    pub(crate) fn land_before(&mut self, c: usize, side: usize, position: u64) -> bool {
        let before =
            |f: &Flight| (f.c, f.side) == (c, side) && f.follower < position && f.landed < f.source.len;
        let due: Vec<u64> =
            self.adapters.flights.iter().filter(|(_, f)| before(f)).map(|(id, _)| *id).collect();
        for id in due {
            let rest = self.adapters.flights.get(&id).map_or(0, |f| f.source.len - f.landed);
            if let Landing::Refused = self.land(id, rest) {
                return false;
            }
        }
        true
    }

    /// Moves the next `bytes` of a write.
    fn land(&mut self, id: u64, bytes: usize) -> Landing {
        let Some(f) = self.adapters.flights.get_mut(&id) else { return Landing::Done };
        let (c, side, p) = (f.c, f.side, self.conns[f.c].ends[f.side].proc);
        let q = self.conns[c].ends[1 - side].proc;
        let at = f.landed;
        let read = IoVec { ptr: f.source.ptr.wrapping_add(at), len: bytes };
        let region = self.adapters.regions.get(&f.key).copied().filter(|r| r.p == q);
        let place = f.offset.checked_add(at as u64);
        let inside = |r: &Region| {
            place.and_then(|a| a.checked_add(bytes as u64)).is_some_and(|e| e <= r.memory.len as u64)
        };
        // through an end that is closed nothing is written, whatever its other end believes
        let k = &self.conns[c];
        let refused = self.nets[k.net].links[k.ends[1 - side].host].refused_writes > 0;
        let open = !k.ends[1 - side].fenced && !refused;
        let Some(r) = region.filter(|r| inside(r) && open) else {
            self.adapters.too_late += u64::from(f.meant.is_some() && region.is_none());
            self.adapters.flights.remove(&id);
            self.conns[c].dirs[side].refuse();
            self.break_adapters(c);
            return Landing::Refused;
        };
        assert_eq!(
            f.meant,
            Some(r.number),
            "fenced: an adapter of p{p} writes into memory of p{q} for which it has no key: conn {c}, {:?} from {at}, {:?}",
            f.work,
            r.id
        );
        let to = IoVec { ptr: r.memory.ptr.wrapping_add(place.expect("inside") as usize), len: bytes };
        let mut copy = match &mut f.on_the_wire {
            Some(wire) => wire.drain(..bytes).collect::<Vec<u8>>(),
            None => {
                if let Err((_, e)) = self.memory.check_window(&[read], Use::Send) {
                    panic!("p{p}: an adapter reads what is not lent: {e}; conn {c}");
                }
                // SAFETY: the memory is one of `Memory`'s buffers, which live as long as the world, or the engine's while it says so.
                unsafe { std::slice::from_raw_parts(read.ptr, bytes) }.to_vec()
            }
        };
        f.landed += bytes;
        let (work, complete) = (f.work, f.landed == f.source.len);
        if let Err((_, e)) = self.memory.check_window(&[to], Use::Recv) {
            panic!(
                "p{q}: an adapter writes what is not lent: {e}; conn {c}, {work:?} from {at}, key {:#x}, {:?}",
                self.adapters.flights[&id].key.0, r.id
            );
        }
        let k = &self.conns[c];
        let (a, b) = (k.ends[0].host, k.ends[1].host);
        let corrupt =
            self.nets[k.net].links[a].stream_corrupt_ppm + self.nets[k.net].links[b].stream_corrupt_ppm;
        if self.adapters.rng.ppm(corrupt) {
            let bit = self.adapters.rng.index(8 * bytes);
            copy[bit / 8] ^= 1 << (bit % 8);
            self.corrupts(c);
        }
        let broken = self.conns[c].ends.iter().any(|e| e.over.is_some() || e.closing);
        // SAFETY: as above, and no engine runs meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), to.ptr, bytes) };
        self.adapters.landed.0 += bytes as u64;
        self.adapters.landed.1 += if broken { bytes as u64 } else { 0 };
        self.note(0xad ^ (bytes as u64) << 8);
        if complete {
            let after = self.adapters.rng.log_range(US, 2 * MS);
            self.after(after, Ev::Adapter { p, event: StreamEvent::Placed(work) });
        }
        Landing::Done
    }

    /// A write into memory that is invalid: both adapters break the stream.
    fn break_adapters(&mut self, c: usize) {
        for side in 0..2 {
            self.after(self.now % 1000, Ev::Rst { c, side, forged: true });
        }
    }

    /// The source of a write is lent until the adapter says that it is done with it, and so is the rest of its message, which
    /// may be registered with it.
    fn must_be_lent(&self, f: &Flight) {
        let p = self.conns[f.c].ends[f.side].proc;
        if let Err((_, e)) = self.memory.check_window(&[f.whole], Use::Send) {
            panic!("p{p}: an adapter may read what is not lent: {e}; conn {}, {:?}", f.c, f.work);
        }
    }

    /// One end of a connection is closed, and its adapter lets go of its memory.
    pub(crate) fn fence_end(&mut self, c: usize, side: usize) {
        if self.conns[c].ends[side].closing {
            self.adapters
                .flights
                .values()
                // what is on the wire is read no more
                .filter(|f| (f.c, f.side) == (c, side) && f.on_the_wire.is_none())
                .for_each(|f| self.must_be_lent(f));
        }
        self.conns[c].ends[side].fenced = true;
        let rng = &mut self.adapters.rng;
        self.adapters.flights.retain(|_, f| {
            if f.c != c {
                return true;
            }
            if f.side != side || f.landed == f.source.len {
                // into this end nothing arrives any more
                return false;
            }
            if f.on_the_wire.is_none() && rng.percent(50) {
                // SAFETY: the source is lent until the process is told that the end is closed, which comes next.
                let rest =
                    unsafe { std::slice::from_raw_parts(f.source.ptr, f.source.len) }[f.landed..].to_vec();
                f.on_the_wire = Some(rest);
            }
            f.on_the_wire.is_some()
        });
    }

    /// A process exits without closing as soon as its adapters write, or when that does not come about.
    pub(crate) fn leave_writing(&mut self, p: usize, looks: u32) {
        let writes = |f: &Flight| self.conns[f.c].ends[f.side].proc == p;
        if looks == 0 || self.adapters.flights.values().any(writes) {
            self.exit(p);
        } else {
            self.after(LOOK_NS, Ev::Leave { p, looks: looks - 1 });
        }
    }

    /// A process is gone, and its memory with it.
    pub(crate) fn fence_process(&mut self, p: usize) {
        let ends: Vec<(usize, usize)> = (0..self.conns.len())
            .flat_map(|c| [(c, 0), (c, 1)])
            .filter(|&(c, side)| self.conns[c].ends[side].proc == p && self.is_adapter(c))
            .collect();
        for (c, side) in ends {
            self.fence_end(c, side);
        }
        self.adapters.regions.retain(|_, r| r.p != p);
        // another that takes its place draws its own
        self.adapters.keys.retain(|of, _| of.0 != p);
    }

    /// An adapter's end is closed: its process is told when nothing touches memory any more.
    pub(crate) fn close_adapter(&mut self, p: usize, stream: StreamId) {
        let (least, most) = self.cfg.close_ns;
        let after = self.adapters.rng.log_range(least, most);
        self.after(after, Ev::CloseDone { p, stream });
    }

    /// See [`World::close_adapter`].
    pub(crate) fn adapter_is_closed(&mut self, p: usize, stream: StreamId) {
        if let Some(&(c, side)) = self.procs[p].streams.get(&stream) {
            if self.is_adapter(c) {
                self.fence_end(c, side);
            }
        }
        self.notice(p, Notice::Closed(stream, CloseReason::Requested));
    }
}
