//! Faults of streams. Owns: what each stream has moved, and the events that are kept back while it stands still.
//!
//! Invariants: memory that is written from is never changed (a corrupted write goes through a buffer of this layer); an
//! event that was kept back is reported when its stream moves again, unless the stream was closed meanwhile; the
//! descriptor to sleep on is not readable because of a stream that stands still.

use crate::injector::{InForce, Injector, count};
use crate::rule::Way;
use rerail_rail::alarm::Alarm;
use rerail_rail::{
    Alternate, CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId,
    StreamEvent, StreamId, StreamPort,
};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The unit of shares on a stream: about what a packet on Ethernet carries.
const BLOCK_BYTES: u64 = 1400;
/// Most bytes of one write that is corrupted.
const BOUNCE_BYTES_MAX: usize = 256 * 1024;
/// How often what stands still is looked at, and whether a reset is due.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A stream.
struct Line {
    rail: RailId,
    read_bytes: u64,
    written_bytes: u64,
    /// Room was requested, and not reported.
    wants_room: bool,
    /// From when what has arrived may be read, under a delay.
    ready_at: Option<Instant>,
}

/// Bytes that are being moved.
struct Moving {
    rail: RailId,
    way: Way,
    stream: StreamId,
    /// Bytes that were moved before on this stream, this way.
    from: u64,
}

/// A port for streams with faults.
pub struct FaultyStreams {
    // before `inner`, whose descriptor it refers to
    alarm: Alarm,
    inner: Box<dyn StreamPort>,
    injector: Arc<Injector>,
    lines: HashMap<StreamId, Line>,
    /// Events of streams that stand still: connected, or closed by the other side.
    kept: Vec<StreamEvent>,
    /// Streams of adapters that were reset here, whose close the port below has not confirmed.
    ending: HashSet<StreamId>,
    /// Writes into the memory of peers that are not posted yet, because their streams stand still; in their order.
    held: Vec<(StreamId, Place)>,
    /// Resets that were carried out, by rail.
    resets: Vec<u64>,
    /// Events of the inner port's poll; empty between polls, and kept for its room.
    said: Vec<StreamEvent>,
    bounce: Vec<u8>,
    /// The alarm may be set, or the inner descriptor be ignored.
    alarmed: bool,
}

impl FaultyStreams {
    /// Over a port, which may have streams already.
    ///
    /// # Errors
    /// The system gives no descriptor for the time at which a stream moves again; the port is given back.
    pub fn new(
        inner: Box<dyn StreamPort>,
        injector: Arc<Injector>,
    ) -> Result<FaultyStreams, (Box<dyn StreamPort>, io::Error)> {
        let alarm = match Alarm::new(inner.fd()) {
            Ok(alarm) => alarm,
            Err(why) => return Err((inner, why)),
        };
        Ok(FaultyStreams {
            alarm,
            inner,
            lines: HashMap::new(),
            kept: Vec::new(),
            ending: HashSet::new(),
            held: Vec::new(),
            resets: vec![0; injector.rails()],
            said: Vec::new(),
            bounce: Vec::new(),
            alarmed: false,
            injector,
        })
    }

    fn is_idle(&self) -> bool {
        !self.injector.is_on()
            && !self.alarmed
            && self.kept.is_empty()
            && self.ending.is_empty()
            && self.held.is_empty()
    }

    /// Posts the writes of streams that do not stand still any more.
    fn post_held(&mut self, current: &InForce, now: Instant) {
        if self.held.is_empty() {
            return;
        }
        for (stream, place) in std::mem::take(&mut self.held) {
            if self.ending.contains(&stream) {
                continue;
            }
            if self.stands(current, now, stream, Way::Send) {
                self.held.push((stream, place));
            } else {
                // SAFETY: the source is lent since `place` said so, until `Placed` or until the stream is closed, when it is forgotten here.
                // Refused is what comes too late: the stream is over, and lends until it is closed.
                let posted = unsafe { self.inner.place(stream, &place) };
                if posted == Posted::Unreadable {
                    // it was said to be lent, and what reports it must not follow
                    let over = self.reset(stream);
                    self.kept.push(over);
                }
            }
        }
    }

    /// Resets a stream; returns what is to be told of that.
    fn reset(&mut self, stream: StreamId) -> StreamEvent {
        if self.inner.close(stream) == Closing::Pending {
            self.ending.insert(stream);
        }
        self.forget(stream);
        StreamEvent::Closed(stream, CloseReason::Reset)
    }

    /// A stream's line; made at its first use.
    fn line(&mut self, stream: StreamId) -> Option<&mut Line> {
        if !self.lines.contains_key(&stream) {
            let rail = self.inner.rail_of(stream)?;
            self.lines.insert(stream, Line::new(rail));
        }
        self.lines.get_mut(&stream)
    }

    /// Whether a stream stands still in a direction.
    fn stands(&mut self, current: &InForce, now: Instant, stream: StreamId, way: Way) -> bool {
        self.line(stream).is_some_and(|line| current.plan.stands(line.rail, way, current.at(now)))
    }

    /// Whether what has arrived on a stream is not to be read yet.
    fn is_early(&mut self, current: &InForce, now: Instant, stream: StreamId) -> bool {
        let Some(line) = self.line(stream) else { return false };
        let delay = current.plan.stream_delay(line.rail, current.at(now));
        if delay.is_zero() {
            line.ready_at = None;
            return false;
        }
        now < *line.ready_at.get_or_insert(now + delay)
    }

    fn count_stood(&self, rail: Option<RailId>) {
        if let Some(tally) = rail.and_then(|rail| self.injector.tally(rail)) {
            count(&tally.stood);
        }
    }

    fn forget(&mut self, stream: StreamId) {
        self.lines.remove(&stream);
        self.held.retain(|(s, _)| *s != stream);
        let is_about = |event: &StreamEvent| matches!(event, StreamEvent::Connected(s) | StreamEvent::Closed(s, _) if *s == stream);
        self.kept.retain(|event| !is_about(event));
    }

    /// The blocks that a move of `bytes` touches, which are to be corrupted: where the bit is that flips, counted from the move's
    /// beginning, and which bit. A block is corrupted where its chosen byte is moved, so once.
    fn spoilt(current: &InForce, at: Duration, moving: &Moving, bytes: usize) -> Vec<(usize, u8)> {
        let (from, to) = (moving.from, moving.from + bytes as u64);
        (from / BLOCK_BYTES..=to.saturating_sub(1) / BLOCK_BYTES)
            .filter_map(|block| {
                let source =
                    current.plan.corrupts_block(moving.rail, moving.way, moving.stream.0, block, at)?;
                let place = block * BLOCK_BYTES + (source >> 16) % BLOCK_BYTES;
                (from..to).contains(&place).then(|| ((place - from) as usize, 1 << (source & 7)))
            })
            .collect()
    }

    /// Resets the streams of every rail for which it is time.
    fn reset_due(&mut self, current: &InForce, at: Duration, out: &mut Vec<StreamEvent>) {
        for rail in 0..self.resets.len() {
            let due = current.plan.resets_due(RailId(rail as u8), at);
            if due > self.resets[rail] {
                let of_rail: Vec<StreamId> = self
                    .lines
                    .iter()
                    .filter(|(_, line)| usize::from(line.rail.0) == rail)
                    .map(|(&s, _)| s)
                    .collect();
                for stream in of_rail {
                    let over = self.reset(stream);
                    if let Some(tally) = self.injector.tally(RailId(rail as u8)) {
                        count(&tally.reset);
                    }
                    out.push(over);
                }
            }
            self.resets[rail] = due;
        }
    }
}

impl Line {
    fn new(rail: RailId) -> Line {
        Line { rail, read_bytes: 0, written_bytes: 0, wants_room: false, ready_at: None }
    }
}

/// Calls `f` with the piece and the place in it of the byte `at` of `pieces`.
fn find(pieces: &[IoVec], mut at: usize) -> Option<(IoVec, usize)> {
    for piece in pieces {
        if at < piece.len {
            return Some((*piece, at));
        }
        at -= piece.len;
    }
    None
}

impl StreamPort for FaultyStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        self.lines.insert(stream, Line::new(rail));
        self.inner.open(stream, rail, to);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let lines = &mut self.lines;
        self.inner.accept(&mut |rail, from| {
            let stream = name(rail, from);
            lines.insert(stream, Line::new(rail));
            stream
        })
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        if self.is_idle() {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.inner.read(stream, pieces) };
        }
        let (now, current) = (Instant::now(), self.injector.in_force());
        let rail = self.line(stream).map(|line| line.rail);
        if self.stands(&current, now, stream, Way::Receive) || self.is_early(&current, now, stream) {
            self.count_stood(rail);
            return Moved::Blocked;
        }
        let offered: usize = pieces.iter().map(|piece| piece.len).sum();
        // SAFETY: the caller's promise is handed on.
        let moved = unsafe { self.inner.read(stream, pieces) };
        let Some(line) = self.line(stream) else { return moved };
        match moved {
            Moved::Bytes(bytes) => {
                let (rail, from) = (line.rail, line.read_bytes);
                line.read_bytes += bytes as u64;
                if bytes < offered {
                    line.ready_at = None;
                }
                let moving = Moving { rail, way: Way::Receive, stream, from };
                for (at, mask) in Self::spoilt(&current, current.at(now), &moving, bytes) {
                    let Some((piece, place)) = find(pieces, at) else { continue };
                    // SAFETY: the place is inside the piece, which the caller promises to be valid for writes, and
                    // nothing else touches it during this call.
                    unsafe { *piece.ptr.add(place) ^= mask };
                    if let Some(tally) = self.injector.tally(rail) {
                        count(&tally.corrupted);
                    }
                }
            }
            Moved::Blocked => line.ready_at = None,
            Moved::Closed(_) => self.forget(stream),
        }
        moved
    }

    fn goes_on(&self, stream: StreamId) -> bool {
        self.inner.goes_on(stream)
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        if self.is_idle() {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.inner.write(stream, pieces) };
        }
        let (now, current) = (Instant::now(), self.injector.in_force());
        if self.stands(&current, now, stream, Way::Send) {
            let rail = self.line(stream).map(|line| line.rail);
            self.count_stood(rail);
            return Moved::Blocked;
        }
        // they were posted before what is written now
        self.post_held(&current, now);
        let offered: usize = pieces.iter().map(|piece| piece.len).sum();
        let Some((rail, from)) = self.line(stream).map(|line| (line.rail, line.written_bytes)) else {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.inner.write(stream, pieces) };
        };
        let moving = Moving { rail, way: Way::Send, stream, from };
        let spoilt = Self::spoilt(&current, current.at(now), &moving, offered);
        let moved = if spoilt.is_empty() {
            // SAFETY: the caller's promise is handed on.
            unsafe { self.inner.write(stream, pieces) }
        } else {
            // The user may read these bytes, and they may have to be sent again: so a copy of them is corrupted.
            self.bounce.clear();
            // SAFETY: the caller promises that every piece is valid for reads, and is not written meanwhile.
            unsafe { IoVec::gather(pieces, BOUNCE_BYTES_MAX, &mut self.bounce) };
            for (at, mask) in &spoilt {
                if let Some(byte) = self.bounce.get_mut(*at) {
                    *byte ^= mask;
                }
            }
            // SAFETY: the buffer is ours, and nothing writes to it during the call.
            unsafe { self.inner.write(stream, &[IoVec::from_ref(&self.bounce)]) }
        };
        match moved {
            Moved::Bytes(bytes) => {
                if let Some(line) = self.line(stream) {
                    line.written_bytes += bytes as u64;
                }
                if let Some(tally) = self.injector.tally(rail) {
                    spoilt.iter().filter(|(at, _)| *at < bytes).for_each(|_| count(&tally.corrupted));
                }
            }
            Moved::Blocked => {}
            Moved::Closed(_) => self.forget(stream),
        }
        moved
    }

    /// With faults planted, bytes are copied: what stands between the two sides must be able to spoil them.
    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        if self.is_idle() {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.inner.write_lasting(stream, pieces) };
        }
        // SAFETY: as above.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        if !self.is_idle() {
            let (now, current) = (Instant::now(), self.injector.in_force());
            if self.stands(&current, now, stream, Way::Send) {
                if let Some(line) = self.line(stream) {
                    line.wants_room = true;
                }
                self.alarmed = true;
                self.alarm.ring_after(Some(LOOK_EVERY));
                return;
            }
        }
        self.inner.want_writable(stream);
    }

    /// While its stream stands still nothing of a write leaves. What the peer places is not held back: an adapter writes by itself, and its rail
    /// must be dark at the peer for that.
    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        if !self.is_idle() {
            let (now, current) = (Instant::now(), self.injector.in_force());
            self.post_held(&current, now);
            if self.stands(&current, now, stream, Way::Send) {
                self.count_stood(self.inner.rail_of(stream));
                self.held.push((stream, *place));
                self.alarmed = true;
                self.alarm.ring_after(Some(LOOK_EVERY));
                return Posted::Lent;
            }
        }
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.place(stream, place) }
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.register(rail, region, memory) }
    }

    fn invalidate(&mut self, region: MemId) {
        self.inner.invalidate(region);
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        self.inner.load_alternate(stream, alternate);
    }

    fn migrate(&mut self, stream: StreamId) {
        self.inner.migrate(stream);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        self.forget(stream);
        // reset here, and its close is on its way
        if self.ending.contains(&stream) { Closing::Pending } else { self.inner.close(stream) }
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.inner.rail_of(stream)
    }

    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        if self.injector.is_on() {
            let current = self.injector.in_force();
            let rail = self.inner.rail_of(stream)?;
            if current.plan.is_deaf(rail, current.at(Instant::now())) {
                // What the kernel receives must not get through to the engine.
                return None;
            }
        }
        self.inner.far_kernel(stream)
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        if self.is_idle() {
            self.inner.poll(out);
            return;
        }
        let (now, current) = (Instant::now(), self.injector.in_force());
        let at = current.at(now);
        let mut said = std::mem::take(&mut self.said);
        said.append(&mut self.kept);
        self.inner.poll(&mut said);
        let mut ignored = false;
        for event in said.drain(..) {
            match event {
                StreamEvent::Incoming
                | StreamEvent::Placed(_)
                | StreamEvent::Registered(..)
                | StreamEvent::Invalidated(_)
                | StreamEvent::Armed(..)
                | StreamEvent::Unloaded(_)
                | StreamEvent::Migrated(..) => out.push(event),
                StreamEvent::Readable(stream) => {
                    let waits = self.stands(&current, now, stream, Way::Receive)
                        || self.is_early(&current, now, stream);
                    // It is reported again at the next poll.
                    ignored |= waits;
                    if !waits {
                        out.push(event);
                    }
                }
                StreamEvent::Writable(stream) => {
                    if self.stands(&current, now, stream, Way::Send) {
                        if let Some(line) = self.line(stream) {
                            line.wants_room = true;
                        }
                    } else {
                        out.push(event);
                    }
                }
                StreamEvent::Connected(stream) | StreamEvent::Closed(stream, _) => {
                    // Of a stream that has ended only its line still knows the rail.
                    let rail = self.lines.get(&stream).map(|line| line.rail);
                    if rail.is_some_and(|rail| current.plan.stands(rail, Way::Receive, at)) {
                        self.kept.push(event);
                        continue;
                    }
                    if matches!(event, StreamEvent::Closed(..)) {
                        self.forget(stream);
                        self.ending.remove(&stream);
                    }
                    out.push(event);
                }
            }
        }
        self.said = said;
        self.post_held(&current, now);
        let mut waits = ignored || !self.kept.is_empty() || !self.held.is_empty();
        for (stream, line) in &mut self.lines {
            if !line.wants_room {
                continue;
            }
            if current.plan.stands(line.rail, Way::Send, at) {
                waits = true;
            } else {
                line.wants_room = false;
                out.push(StreamEvent::Writable(*stream));
            }
        }
        self.reset_due(&current, at, out);
        waits |= current.plan.may_reset();
        // While something is ignored the inner descriptor would be readable all the time, and the sleeper would spin.
        self.alarm.listen(!ignored);
        self.alarm.ring_after(waits.then_some(LOOK_EVERY));
        self.alarmed = waits;
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.alarm.fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
        self.alarm.descriptors(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use rerail_rail::{RemoteKey, WorkId};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    const STREAM: StreamId = StreamId(7);

    /// A port of an adapter with one stream, which confirms a close when the test says so.
    struct Adapter {
        fd: UnixStream,
        seen: Arc<Mutex<Seen>>,
    }

    #[derive(Default)]
    struct Seen {
        events: Vec<StreamEvent>,
        closes: u32,
        /// Works that were placed, and 0 for a write.
        calls: Vec<u64>,
        /// The sources of others cannot be read.
        reads_none: bool,
    }

    impl StreamPort for Adapter {
        fn open(&mut self, _: StreamId, _: RailId, _: Locator) {}
        fn accept(&mut self, _: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
            false
        }
        unsafe fn read(&mut self, _: StreamId, _: &[IoVec]) -> Moved {
            Moved::Blocked
        }
        fn goes_on(&self, _: StreamId) -> bool {
            false
        }
        unsafe fn write(&mut self, _: StreamId, _: &[IoVec]) -> Moved {
            self.seen.lock().unwrap().calls.push(0);
            Moved::Bytes(1)
        }
        unsafe fn write_lasting(&mut self, _: StreamId, _: &[IoVec]) -> Moved {
            Moved::Blocked
        }
        fn want_writable(&mut self, _: StreamId) {}
        unsafe fn place(&mut self, _: StreamId, place: &Place) -> Posted {
            let mut seen = self.seen.lock().unwrap();
            if seen.reads_none {
                return Posted::Unreadable;
            }
            seen.calls.push(place.work.0);
            Posted::Lent
        }
        unsafe fn register(&mut self, _: RailId, _: MemId, _: IoVec) {}
        fn invalidate(&mut self, _: MemId) {}
        fn load_alternate(&mut self, _: StreamId, _: Option<Alternate>) {}
        fn migrate(&mut self, _: StreamId) {}
        fn close(&mut self, _: StreamId) -> Closing {
            self.seen.lock().unwrap().closes += 1;
            Closing::Pending
        }
        fn rail_of(&self, _: StreamId) -> Option<RailId> {
            Some(RailId(0))
        }
        fn far_kernel(&mut self, _: StreamId) -> Option<FarKernel> {
            None
        }
        fn poll(&mut self, out: &mut Vec<StreamEvent>) {
            out.append(&mut self.seen.lock().unwrap().events);
        }
        fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
        fn descriptors(&self, _: &mut Vec<RawFd>) {}
    }

    fn port() -> (FaultyStreams, Arc<Injector>, Arc<Mutex<Seen>>) {
        let injector = Injector::new(vec!["eth0".to_owned()]);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let adapter = Adapter { fd: UnixStream::pair().unwrap().0, seen: seen.clone() };
        let mut port =
            FaultyStreams::new(Box::new(adapter), injector.clone()).map_err(|(_, why)| why).unwrap();
        port.open(STREAM, RailId(0), Locator::NOWHERE);
        (port, injector, seen)
    }

    fn plan(text: &str) -> Plan {
        Plan::parse(text, &["eth0"]).unwrap()
    }

    fn place(port: &mut FaultyStreams, work: u64) -> Posted {
        let source = IoVec::from_ref(&[1]);
        let place = Place { work: WorkId(work), source, whole: source, key: RemoteKey(1), offset: 0 };
        // SAFETY: the source is static, and the adapter above reads nothing.
        unsafe { port.place(STREAM, &place) }
    }

    #[test]
    fn nothing_is_placed_on_a_rail_in_the_dark_and_all_of_it_in_turn_afterwards() {
        let (mut port, injector, seen) = port();
        assert_eq!(place(&mut port, 1), Posted::Lent);
        injector.set(plan("eth0: dark"));
        assert_eq!((place(&mut port, 2), place(&mut port, 3)), (Posted::Lent, Posted::Lent));
        port.poll(&mut Vec::new());
        assert_eq!(seen.lock().unwrap().calls, [1]);
        let byte = [7];
        // SAFETY: the byte is borrowed through the calls.
        let write = |port: &mut FaultyStreams| unsafe { port.write(STREAM, &[IoVec::from_ref(&byte)]) };
        assert_eq!(write(&mut port), Moved::Blocked);
        injector.set(Plan::default());
        assert_eq!(write(&mut port), Moved::Bytes(1));
        assert_eq!(place(&mut port, 4), Posted::Lent);
        assert_eq!(seen.lock().unwrap().calls, [1, 2, 3, 0, 4]);
        // without a write behind it a place is posted by the next poll
        injector.set(plan("eth0: dark"));
        place(&mut port, 5);
        injector.set(Plan::default());
        port.poll(&mut Vec::new());
        assert_eq!(seen.lock().unwrap().calls[5..], [5]);
    }

    #[test]
    fn a_stream_ends_when_what_was_held_back_cannot_be_read() {
        let (mut port, injector, seen) = port();
        injector.set(plan("eth0: dark"));
        assert_eq!((place(&mut port, 1), place(&mut port, 2)), (Posted::Lent, Posted::Lent));
        injector.set(Plan::default());
        seen.lock().unwrap().reads_none = true;
        let mut out = Vec::new();
        (0..2).for_each(|_| port.poll(&mut out));
        assert_eq!(
            out,
            [StreamEvent::Closed(STREAM, CloseReason::Reset)],
            "what reports them does not follow"
        );
        assert_eq!(seen.lock().unwrap().closes, 1);
        assert_eq!(port.close(STREAM), Closing::Pending);
    }

    #[test]
    fn what_is_held_back_is_not_placed_after_its_stream_is_closed() {
        let (mut port, injector, seen) = port();
        injector.set(plan("eth0: dark"));
        place(&mut port, 1);
        port.close(STREAM);
        injector.set(Plan::default());
        port.poll(&mut Vec::new());
        assert_eq!(seen.lock().unwrap().calls, []);
    }

    #[test]
    fn a_stream_of_an_adapter_that_is_reset_here_is_closed_when_the_adapter_says_so() {
        let (mut port, injector, seen) = port();
        injector.set(plan("eth0: reset=1ms"));
        let mut out = Vec::new();
        while out.is_empty() {
            port.poll(&mut out);
        }
        assert_eq!(out, [StreamEvent::Closed(STREAM, CloseReason::Reset)]);
        assert_eq!(port.close(STREAM), Closing::Pending, "the adapter may still touch memory");
        assert_eq!(seen.lock().unwrap().closes, 1, "it was closed by the reset");
        injector.set(Plan::default());
        let confirmed = StreamEvent::Closed(STREAM, CloseReason::Requested);
        seen.lock().unwrap().events.push(confirmed);
        out.clear();
        port.poll(&mut out);
        assert_eq!(out, [confirmed]);
        assert_eq!(port.close(STREAM), Closing::Pending);
        assert_eq!(seen.lock().unwrap().closes, 2, "the name is the port's again");
    }
}
