//! The ports of a simulated process, as the driver of the product calls them. Owns: what the kernel gives and takes, and when it
//! cuts a read or a write short.
//!
//! The order and the bounds of a piece of progress are the driver's, and so the product's. What is drawn here is what a kernel may
//! do at any time: a read ends early, a write takes a part, a connection that broke is told by an event or by the next read or
//! write, and what came before it broke may still be read, or not; a close is over at once, or later.

use super::stream::{EndState, Notice};
use super::{Ev, World};
use crate::link::{MS, US};
use crate::memory::Use;
use crate::moment::Moment;
use rerail_core::{
    Alternate, CloseReason, Event, FarKernel, IoVec, KeysUpdate, Locator, MemId, Place, RailId,
    ResponderUpdate, StreamId, Time,
};
use rerail_driver::{
    ArrivedTrain, Clock, Closing, Condition, Moved, Ports, Posted, SendOutcome, StreamEvent, TrainOutcome,
    Waiting,
};
use std::time::Duration;

/// What the kernel charges for each datagram besides its bytes.
pub(crate) const INBOX_OVERHEAD: usize = 768;

/// The clock of a process within a piece of progress, which takes no virtual time.
pub(crate) struct StandingClock(pub Time);

impl Clock for StandingClock {
    fn now(&self) -> Time {
        self.0
    }
}

/// The ports of process `p`.
pub(crate) struct SimPorts<'a> {
    pub world: &'a mut World,
    pub p: usize,
}

impl Ports for SimPorts<'_> {
    /// The service thread is woken by every change, and has looked already.
    fn look_at_links(&mut self) {}

    fn has_waiting(&self) -> bool {
        let q = &self.world.procs[self.p];
        !q.link_changes.is_empty() || !q.stash.is_empty()
    }

    fn take_waiting(&mut self, mut take: impl FnMut(Waiting<'_>)) {
        let (w, p) = (&mut *self.world, self.p);
        while let Some((rail, event)) = w.procs[p].link_changes.pop_front() {
            w.trace(|| format!("p{p} {rail:?} {event:?}"));
            take(Waiting::Link(rail, event));
        }
        while let Some((rail, from, bytes)) = w.procs[p].stash.pop_front() {
            take(Waiting::Datagram { rail, from, bytes: &bytes });
            w.recycle(bytes);
        }
    }

    fn receive(&mut self, _eagerly: bool, buf: &mut [u8]) -> Option<ArrivedTrain> {
        let (w, p) = (&mut *self.world, self.p);
        let (rail, from, bytes) = w.take_datagram(p)?;
        let segment = bytes.len();
        buf[..segment].copy_from_slice(&bytes);
        w.recycle(bytes);
        // no datagram is as short: this is what is left of a damaged one
        let damaged = |len: usize| len == 8;
        let condition = if damaged(segment) { Condition::Damaged } else { Condition::Whole };
        let mut len = segment;
        // the kernel joins what came of one sender, if the last is no longer than the others
        let mut joins = condition == Condition::Whole;
        while joins {
            let fits = |(r, f, b): &(RailId, Locator, Vec<u8>)| {
                (*r, *f) == (rail, from)
                    && b.len() <= segment
                    && !damaged(b.len())
                    && len + b.len() <= buf.len()
            };
            if !w.procs[p].inbox.front().is_some_and(fits) || w.net_rng.percent(50) {
                break;
            }
            let Some((_, _, bytes)) = w.take_datagram(p) else { break };
            let n = bytes.len();
            buf[len..len + n].copy_from_slice(&bytes);
            len += n;
            w.recycle(bytes);
            // a shorter one is the last
            joins = n == segment;
        }
        Some(ArrivedTrain { rail, from, len, segment, condition })
    }

    fn send(&mut self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        let w = &mut *self.world;
        if w.send_datagram(self.p, rail, to, bytes) || !w.cfg.send_errors {
            SendOutcome::Sent
        } else {
            SendOutcome::RailBroken
        }
    }

    /// As the kernel would: what finds room, and no more.
    fn send_train(&mut self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        let (w, p) = (&mut *self.world, self.p);
        let count = bytes.len().div_ceil(segment);
        assert!(
            !bytes.is_empty() && bytes.len() <= 65_507 && count <= 64,
            "p{p}: a train of {count} datagrams and {} bytes",
            bytes.len()
        );
        let net = w.procs[p].nets[usize::from(rail.0)];
        let mut room = w.nets[net].bulk_room(w.procs[p].host, w.now);
        for (sent, one) in bytes.chunks(segment).enumerate() {
            let by_chance = w.net_rng.ppm(w.cfg.chop * 100);
            if one.len() > room || by_chance {
                w.trace(|| format!("p{p} {rail:?}: {sent} of {count} datagrams of a train find room"));
                return TrainOutcome { sent, rest: SendOutcome::Full };
            }
            room -= one.len();
            if !w.send_datagram(p, rail, to, one) && w.cfg.send_errors {
                return TrainOutcome { sent, rest: SendOutcome::RailBroken };
            }
        }
        w.trains += 1;
        TrainOutcome { sent: count, rest: SendOutcome::Sent }
    }

    /// Addresses of the simulated network are known to all.
    fn keep_neighbour(&mut self, _rail: RailId, _to: Locator) {}

    fn lead(&mut self, rail: RailId, to: Locator, route: u8) {
        self.world.procs[self.p].led.insert((rail, to), route);
    }

    fn poll_streams(&mut self, ready: &mut Vec<StreamEvent>) {
        let (w, p) = (&mut *self.world, self.p);
        if !w.procs[p].incoming.is_empty() {
            ready.push(StreamEvent::Incoming);
        }
        while let Some(n) = w.procs[p].notices.pop_front() {
            let s = match n {
                Notice::Connected(s) | Notice::Closed(s, _) | Notice::Writable(s) => s,
                Notice::Adapter(event) => {
                    // nothing is told of a stream that is closed
                    let of = event.stream().map(|s| w.procs[p].streams.get(&s));
                    let closing = |&(c, side): &(usize, usize)| w.conns[c].ends[side].closing;
                    if of.is_none_or(|end| end.is_some_and(|end| !closing(end))) {
                        ready.push(event);
                    }
                    continue;
                }
            };
            let Some(&(c, side)) = w.procs[p].streams.get(&s) else { continue };
            match n {
                Notice::Adapter(_) => unreachable!("told above"),
                Notice::Connected(s) => {
                    if !w.conns[c].ends[side].closing {
                        ready.push(StreamEvent::Connected(s));
                    }
                }
                Notice::Writable(s) => ready.push(StreamEvent::Writable(s)),
                Notice::Closed(s, CloseReason::Requested) => {
                    w.forget_stream(p, s);
                    ready.push(StreamEvent::Closed(s, CloseReason::Requested));
                }
                // the engine has closed it meanwhile: the notice of that follows
                Notice::Closed(..) if w.conns[c].ends[side].closing => {}
                Notice::Closed(s, why) => {
                    let was_open =
                        matches!(why, CloseReason::Reset | CloseReason::Eof | CloseReason::Damaged);
                    if was_open && w.net_rng.percent(50) {
                        // the reads find what came before it, and then the end
                        w.conns[c].ends[side].broken = Some(why);
                        w.list_readable(c, side);
                    } else {
                        w.forget_broken(p, s);
                        ready.push(StreamEvent::Closed(s, why));
                    }
                }
            }
        }
        for i in 0..w.procs[p].readable.len() {
            let (c, side) = w.procs[p].readable[i];
            if w.conns[c].ends[side].rest_until <= w.now && w.is_readable(c, side) {
                ready.extend(w.conns[c].ends[side].stream.map(StreamEvent::Readable));
            }
        }
    }

    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        self.world.tcp_open(self.p, stream, rail, to);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let (w, p) = (&mut *self.world, self.p);
        let Some((c, rail, from)) = w.procs[p].incoming.pop_front() else { return false };
        let s = name(rail, from);
        w.trace(|| format!("p{p} accepts {s:?} conn {c} from {from}"));
        w.conns[c].ends[1].stream = Some(s);
        let old = w.procs[p].streams.insert(s, (c, 1));
        assert!(old.is_none(), "p{p}: stream id {s:?} was given twice");
        w.aim_at_conn(Moment::Accepted, p, c);
        if w.conns[c].ends[1].state == EndState::Closed {
            // it was reset while it waited to be accepted
            w.procs[p].notices.push_back(Notice::Closed(s, CloseReason::Reset));
        }
        true
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let (w, p) = (&mut *self.world, self.p);
        let Some(&(c, side)) = w.procs[p].streams.get(&stream) else {
            panic!("p{p} reads {stream:?}, which is over");
        };
        let offered: usize = pieces.iter().map(|x| x.len).sum();
        assert!(offered > 0, "p{p}: {stream:?} offers an empty window for reading");
        if let Err((buf, e)) = w.memory.check_window(pieces, Use::Recv) {
            let last = w.oracle.recvs.iter().rev().find(|r| r.buf == buf);
            panic!("p{p} {stream:?}: {e}; window {pieces:?}\n  {last:?}");
        }
        let have = w.conns[c].dirs[1 - side].rx.len();
        if have == 0 {
            let Some(why) = w.conns[c].ends[side].broken else { return Moved::Blocked };
            w.forget_broken(p, stream);
            return Moved::Closed(why);
        }
        let most = offered.min(have);
        let n = if w.net_rng.percent(w.cfg.chop) {
            (w.net_rng.log_range(1, most as u64) as usize).min(most)
        } else {
            most
        };
        let rx = &mut w.conns[c].dirs[1 - side].rx;
        let mut left = n;
        for piece in pieces {
            let want = piece.len.min(left);
            let mut at = 0;
            while at < want {
                let (x, _) = rx.as_slices();
                let k = x.len().min(want - at);
                // SAFETY: the caller promises `piece.len` writable bytes at `piece.ptr`, `at + k` is within them, and the
                // kernel's buffer is not part of any process's memory.
                unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), piece.ptr.add(at), k) };
                rx.drain(..k);
                at += k;
            }
            left -= want;
            if left == 0 {
                break;
            }
        }
        w.note(0x52 ^ (n as u64) << 8);
        if w.follows {
            w.aim_at_read(p, c, side, n);
        }
        w.tcp_read(c, side, have);
        Moved::Bytes(n)
    }

    fn goes_on(&mut self, stream: StreamId) -> bool {
        let (w, p) = (&mut *self.world, self.p);
        let Some(&(c, side)) = w.procs[p].streams.get(&stream) else { return false };
        !w.conns[c].dirs[1 - side].rx.is_empty() && !w.net_rng.percent(w.cfg.chop)
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let (w, p) = (&mut *self.world, self.p);
        let Some(&(c, side)) = w.procs[p].streams.get(&stream) else {
            panic!("p{p} writes {stream:?}, which is over");
        };
        let offered: usize = pieces.iter().map(|x| x.len).sum();
        assert!(offered > 0, "p{p}: {stream:?} offers an empty window for writing");
        if let Err((_, e)) = w.memory.check_window(pieces, Use::Send) {
            panic!("p{p} {stream:?}: {e}; window {pieces:?}");
        }
        if let Some(why) = w.broken_for_writes(c, side) {
            w.forget_broken(p, stream);
            return Moved::Closed(why);
        }
        if side == 1 {
            w.acceptor_sends(c, w.now);
        }
        let room = w.tcp_room(c, side);
        let mut n = offered.min(room);
        if n > 1 && w.net_rng.percent(w.cfg.chop) {
            n = w.net_rng.log_range(1, n as u64) as usize;
        }
        let buf = &mut w.conns[c].dirs[side].buf;
        let mut left = n;
        for piece in pieces {
            let k = piece.len.min(left);
            // SAFETY: the caller promises `piece.len` readable bytes at `piece.ptr` for the call.
            buf.extend(unsafe { std::slice::from_raw_parts(piece.ptr, k) });
            left -= k;
            if left == 0 {
                break;
            }
        }
        w.conns[c].dirs[side].written += n as u64;
        w.note(0x57 ^ (n as u64) << 8);
        if w.follows {
            w.aim_at_written(p, c, side, n, n < offered);
        }
        w.tcp_pump(c, side);
        if n > 0 { Moved::Bytes(n) } else { Moved::Blocked }
    }

    fn want_writable(&mut self, stream: StreamId) {
        let (w, p) = (&mut *self.world, self.p);
        let Some(&(c, side)) = w.procs[p].streams.get(&stream) else { return };
        if w.tcp_room(c, side) > 0 {
            // it took a part only by chance
            let after = w.net_rng.log_range(US, 500 * US);
            w.after(after, Ev::Writable { p, stream });
        } else {
            w.conns[c].ends[side].full = true;
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        self.world.place(self.p, stream, place)
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        self.world.register_memory(self.p, rail, region, memory);
    }

    fn invalidate(&mut self, region: MemId) {
        self.world.invalidate_memory(self.p, region);
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        self.world.load_alternate(self.p, stream, alternate);
    }

    fn migrate(&mut self, stream: StreamId) {
        self.world.migrate_stream(self.p, stream);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        let (w, p) = (&mut *self.world, self.p);
        if !w.procs[p].streams.contains_key(&stream) {
            // it ended by itself, and the engine has been told so
            w.trace(|| format!("p{p} closes {stream:?}, which is over"));
            return Closing::Done;
        }
        w.tcp_close(p, stream);
        let (c, _) = w.procs[p].streams[&stream];
        if w.is_adapter(c) {
            w.close_adapter(p, stream);
            return Closing::Pending;
        }
        if w.net_rng.percent(50) {
            w.forget_stream(p, stream);
            return Closing::Done;
        }
        let after = w.net_rng.below(2 * MS);
        w.after(after, Ev::CloseDone { p, stream });
        Closing::Pending
    }

    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        let w = &*self.world;
        w.procs[self.p].streams.get(&stream).map(|&(c, side)| {
            let k = &w.conns[c];
            FarKernel {
                heard: Duration::from_nanos(w.now - k.ends[side].heard_at),
                has_all: k.dirs[side].buf.is_empty(),
                // an adapter waits for the other one's process, and reports nothing of what is on the way
                segments: if w.is_adapter(c) { 0 } else { k.dirs[side].segments() },
                acked: k.dirs[side].acked(),
                sent: Duration::from_nanos(w.now - k.dirs[side].sent_at),
                usual: Duration::from_nanos(k.dirs[side].usual_ns()),
            }
        })
    }

    fn update_keys(&mut self, updates: &mut dyn Iterator<Item = KeysUpdate>) {
        let book = self.world.procs[self.p].book.as_mut().expect("it encrypts");
        updates.for_each(|update| book.apply(update));
    }

    fn update_responder(&mut self, update: ResponderUpdate) {
        self.world.procs[self.p].responder.update(update);
    }

    fn report(&mut self, event: Event) {
        self.world.on_engine_event(self.p, &event);
    }
}

impl World {
    /// Takes a datagram out of the kernel's buffer.
    fn take_datagram(&mut self, p: usize) -> Option<(RailId, Locator, Vec<u8>)> {
        let q = &mut self.procs[p];
        let found = q.inbox.pop_front()?;
        q.inbox_bytes -= found.2.len() + INBOX_OVERHEAD;
        Some(found)
    }

    /// A stream broke, and its name means nothing any more; that of an adapter's does until it is closed.
    fn forget_broken(&mut self, p: usize, stream: StreamId) {
        let adapter =
            |&(c, side): &(usize, usize)| self.is_adapter(c) && self.conns[c].ends[side].established;
        if !self.procs[p].streams.get(&stream).is_some_and(adapter) {
            self.forget_stream(p, stream);
        }
    }

    /// The name of a stream means nothing any more.
    fn forget_stream(&mut self, p: usize, stream: StreamId) {
        if let Some((c, side)) = self.procs[p].streams.remove(&stream) {
            self.conns[c].ends[side].unwanted = true;
            self.conns[c].dirs[1 - side].rx.clear();
        }
    }

    /// Whether a read of a connection that was accepted finds bytes or its end.
    fn is_readable(&self, c: usize, side: usize) -> bool {
        let e = &self.conns[c].ends[side];
        e.stream.is_some()
            && !e.closing
            && !e.unwanted
            && (e.broken.is_some() || !self.conns[c].dirs[1 - side].rx.is_empty())
    }

    /// How a write finds a connection broken: it was reset, and the process may not know it yet. After the other side
    /// has ended its stream a write is still taken, without effect.
    fn broken_for_writes(&self, c: usize, side: usize) -> Option<CloseReason> {
        let e = &self.conns[c].ends[side];
        let reset = e.over.filter(|why| matches!(why, CloseReason::Reset | CloseReason::Damaged));
        reset.filter(|_| !e.closing)
    }

    /// After a piece of progress: ends that have nothing to read leave the list. An end that rests is listed again
    /// after its rest.
    pub(crate) fn settle_readable(&mut self, p: usize) {
        let mut list = std::mem::take(&mut self.procs[p].readable);
        list.retain(|&(c, side)| {
            let e = &self.conns[c].ends[side];
            let waits_to_be_accepted = e.stream.is_none() && e.state != EndState::Closed;
            let rests = e.rest_until > self.now;
            let stays = !rests && (waits_to_be_accepted || self.is_readable(c, side));
            let until = e.rest_until;
            self.conns[c].ends[side].listed = stays;
            if rests && until < u64::MAX {
                self.at(until, Ev::Readable { c, side });
            }
            stays
        });
        self.procs[p].readable = list;
    }
}
