//! One side: its posted operations, its regions, and what it has to tell. Only here is memory touched.

use crate::packet::{Goes, Last, Packet};
use crate::{Landing, Network};
use rerail_rail::{
    AdapterEvent, AdapterPort, AdapterRail, Caps, IoVec, Kind, LaneId, Locator, MemId, Op, PortGroup, Posted,
    RailId, RemoteKey, RemotePlace, Rights, WorkId,
};
use std::collections::VecDeque;

/// Operations posted on one lane and not over, of each direction.
const POSTED_MAX: usize = 16;

/// The port of one side.
pub struct ExamplePort {
    network: Network,
    index: usize,
    rails: Vec<AdapterRail>,
}

#[derive(Default)]
pub(crate) struct Side {
    outgoing: Vec<Outgoing>,
    receives: Vec<Receive>,
    regions: Vec<Region>,
    fences: VecDeque<LaneId>,
    invalidations: VecDeque<MemId>,
    registrations: VecDeque<(MemId, RemoteKey)>,
    events: Vec<AdapterEvent>,
}

/// A send or a write.
struct Outgoing {
    lane: LaneId,
    work: WorkId,
    pieces: Vec<IoVec>,
    bytes: usize,
    /// Bytes that have left.
    gone: usize,
    to: Option<RemotePlace>,
    notice: Option<u32>,
    /// All have left; the other side has not got all.
    left: bool,
}

struct Receive {
    lane: LaneId,
    work: WorkId,
    pieces: Vec<IoVec>,
    filled: usize,
}

struct Region {
    id: MemId,
    memory: IoVec,
    rights: Rights,
    key: RemoteKey,
}

fn total(pieces: &[IoVec]) -> usize {
    pieces.iter().map(|p| p.len).sum()
}

/// The parts of `pieces` that hold `len` bytes from `from`, each as address and length.
fn parts(pieces: &[IoVec], mut from: usize, mut len: usize) -> Vec<(*mut u8, usize)> {
    let mut found = Vec::new();
    for piece in pieces {
        let here = piece.len.saturating_sub(from).min(len);
        if here > 0 {
            found.push((piece.ptr.wrapping_add(from), here));
            len -= here;
        }
        from = from.saturating_sub(piece.len);
    }
    found
}

// SAFETY: the pieces are numbers; whoever posts them promises that the memory is valid until the operation's end, on any thread.
unsafe impl Send for Outgoing {}
// SAFETY: as above.
unsafe impl Send for Receive {}

impl Side {
    pub fn say(&mut self, event: AdapterEvent) {
        self.events.push(event);
    }

    fn is_registered(&self, piece: &IoVec) -> bool {
        self.regions.iter().any(|r| {
            let (start, at) = (r.memory.ptr as usize, piece.ptr as usize);
            at >= start && at + piece.len <= start + r.memory.len
        })
    }

    /// Everything posted on a lane is over.
    pub fn fail_posted(&mut self, lane: LaneId) {
        let works = self.outgoing.iter().filter(|o| o.lane == lane).map(|o| o.work);
        let works: Vec<WorkId> =
            works.chain(self.receives.iter().filter(|r| r.lane == lane).map(|r| r.work)).collect();
        self.outgoing.retain(|o| o.lane != lane);
        self.receives.retain(|r| r.lane != lane);
        works.into_iter().for_each(|work| self.say(AdapterEvent::Failed { lane, work }));
    }

    /// The next part of the first operation of a lane that has not left.
    pub fn take_part(&mut self, lane: LaneId, bytes_max: usize) -> Option<Packet> {
        let o = self.outgoing.iter_mut().find(|o| o.lane == lane && !o.left)?;
        let len = bytes_max.min(o.bytes - o.gone);
        let mut bytes = Vec::with_capacity(len);
        for (at, n) in parts(&o.pieces, o.gone, len) {
            // SAFETY: the operation is not over, so its memory is lent, and nobody writes to it.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, n) });
        }
        let goes = match o.to {
            Some(to) => {
                let place = RemotePlace { offset: to.offset.wrapping_add(o.gone as u64), ..to };
                Goes::ToMemory(place, o.bytes - o.gone)
            }
            None => Goes::ToReceive,
        };
        o.gone += len;
        o.left = o.gone == o.bytes;
        let last = o.left.then_some(Last { work: o.work, notice: o.notice });
        Some(Packet { bytes, goes, last })
    }

    /// The other side has got all of an operation.
    pub fn finish(&mut self, lane: LaneId, work: WorkId) {
        if let Some(i) = self.outgoing.iter().position(|o| (o.lane, o.work) == (lane, work)) {
            let bytes = self.outgoing.remove(i).bytes;
            self.say(AdapterEvent::Done { lane, work, bytes });
        }
    }

    /// Puts what arrived into memory. On a broken lane a write lands all the same, and nothing is said of it.
    pub fn land(&mut self, lane: LaneId, packet: &Packet, broken: bool) -> Landing {
        let len = packet.bytes.len();
        let places = match packet.goes {
            Goes::ToMemory(to, rest) => {
                let granted = |r: &&Region| r.key == to.key && r.rights == Rights::RemoteWrite;
                let Some(region) = self.regions.iter().find(granted) else { return Landing::Refused };
                let fits =
                    to.offset.checked_add(rest as u64).is_some_and(|end| end <= region.memory.len as u64);
                if !fits {
                    return Landing::Refused;
                }
                parts(&[region.memory], to.offset as usize, len)
            }
            Goes::ToReceive => {
                let Some(r) = self.receives.iter_mut().find(|r| r.lane == lane) else {
                    return if broken { Landing::Landed } else { Landing::Waits };
                };
                if r.filled + len > total(&r.pieces) {
                    return Landing::Refused;
                }
                r.filled += len;
                parts(&r.pieces, r.filled - len, len)
            }
        };
        let mut from = packet.bytes.as_slice();
        for (at, n) in places {
            let (now, rest) = from.split_at(n);
            // SAFETY: the receive is not over, or the region not invalid, so the memory is lent and as long as was checked.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), at, n) };
            from = rest;
        }
        let Some(last) = packet.last else { return Landing::Landed };
        match packet.goes {
            Goes::ToMemory(..) => {
                if let (Some(notice), false) = (last.notice, broken) {
                    self.say(AdapterEvent::Written { lane, notice });
                }
            }
            Goes::ToReceive => {
                let i = self.receives.iter().position(|r| r.lane == lane).expect("it has just been filled");
                let r = self.receives.remove(i);
                self.say(AdapterEvent::Done { lane, work: r.work, bytes: r.filled });
            }
        }
        Landing::Landed
    }

    pub fn next_fence(&mut self) -> Option<LaneId> {
        self.fences.pop_front()
    }

    /// A registration or an invalidation takes effect.
    pub fn settle_regions(&mut self) {
        if let Some((region, key)) = self.registrations.pop_front() {
            self.say(AdapterEvent::Registered { region, key });
        } else if let Some(region) = self.invalidations.pop_front() {
            self.regions.retain(|r| r.id != region);
            self.say(AdapterEvent::Invalidated { region });
        }
    }
}

impl ExamplePort {
    pub(crate) fn new(network: Network, number: u32) -> Self {
        let locator = Locator::new(Kind::EXAMPLE, b"memory", number).expect("a short place");
        let rail = AdapterRail {
            name: format!("example{number}"),
            locator,
            caps: Caps::WRITE | Caps::NEEDS_REGISTRATION,
            group: PortGroup(0),
        };
        Self { network, index: number as usize - 1, rails: vec![rail] }
    }
}

impl AdapterPort for ExamplePort {
    fn rails(&self) -> &[AdapterRail] {
        &self.rails
    }

    fn connect(&mut self, lane: LaneId, rail: RailId, to: &Locator) {
        let same = rail == RailId(0) && to.same_place(&self.rails[0].locator);
        self.network.lock().connect(self.index, lane, if same { to.service() } else { 0 });
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> LaneId) -> bool {
        let own = self.rails[0].locator;
        self.network.lock().accept(self.index, &mut |rail, number| name(rail, own.with_service(number)))
    }

    unsafe fn register(&mut self, region: MemId, memory: IoVec, rights: Rights) {
        let mut state = self.network.lock();
        let key = state.fresh_key();
        let side = &mut state.sides[self.index];
        side.regions.push(Region { id: region, memory, rights, key });
        side.registrations.push_back((region, key));
    }

    fn invalidate(&mut self, region: MemId) {
        self.network.lock().sides[self.index].invalidations.push_back(region);
    }

    unsafe fn post(&mut self, lane: LaneId, work: WorkId, op: Op<'_>) -> Posted {
        let mut state = self.network.lock();
        let alive = state.find(self.index, lane).is_some_and(|(c, _)| !state.connections[c].broken);
        let side = &mut state.sides[self.index];
        let (Op::Send(pieces) | Op::Recv(pieces) | Op::Write { pieces, .. }) = op;
        if !alive || !pieces.iter().all(|p| side.is_registered(p)) {
            return Posted::Refused;
        }
        let pieces = pieces.to_vec();
        let (to, notice) = match op {
            Op::Recv(_) => {
                if side.receives.iter().filter(|r| r.lane == lane).count() == POSTED_MAX {
                    return Posted::Full;
                }
                side.receives.push(Receive { lane, work, pieces, filled: 0 });
                return Posted::Lent;
            }
            Op::Send(_) => (None, None),
            Op::Write { to, notice, .. } => (Some(to), notice),
        };
        if side.outgoing.iter().filter(|o| o.lane == lane).count() == POSTED_MAX {
            return Posted::Full;
        }
        let bytes = total(&pieces);
        side.outgoing.push(Outgoing { lane, work, pieces, bytes, gone: 0, to, notice, left: false });
        Posted::Lent
    }

    fn fence(&mut self, lane: LaneId) {
        self.network.lock().sides[self.index].fences.push_back(lane);
    }

    fn poll(&mut self, out: &mut Vec<AdapterEvent>) {
        let mut state = self.network.lock();
        state.advance();
        out.append(&mut state.sides[self.index].events);
    }
}
