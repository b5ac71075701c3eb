//! The calls of the engine. Owns: the lanes that are connected or on the way to be, and how the engine names them. What
//! takes a system call is left to the [manager](crate::manager).

use crate::abi::ibv_wc;
use crate::hello::Purpose;
use crate::lane::{Lane, LaneNumber, lane_of};
use crate::mailbox::{Mailbox, News};
use crate::manager::{Manager, Order, first_number, next_number};
use crate::sleep::Sleep;
use rerail_rail::{
    CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId, StreamEvent,
    StreamId, StreamPort,
};
use rustc_hash::FxHashMap;
use std::mem::take;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections of peers whose first message has not come, or which the engine has not accepted, at most. Peers open a
/// connection again that was ended.
const UNNAMED_MAX: usize = 1024;
/// How long the first message of a peer may take.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// A stream, as the engine names it.
struct Stream {
    number: LaneNumber,
    rail: RailId,
    /// `None`: it is not made yet.
    lane: Option<Box<Lane>>,
    connected: bool,
    wants_room: bool,
    end_is_reported: bool,
}

impl Stream {
    /// With a lane it is one that a peer has opened, which is connected.
    fn new(number: LaneNumber, rail: RailId, lane: Option<Box<Lane>>) -> Stream {
        let connected = lane.is_some();
        Stream { number, rail, lane, connected, wants_room: false, end_is_reported: false }
    }
}

/// How a read or a write ends that has moved so many bytes.
fn moved(bytes: usize) -> Moved {
    if bytes == 0 { Moved::Blocked } else { Moved::Bytes(bytes) }
}

/// A connection of a peer that has no name yet.
struct Unnamed {
    lane: Box<Lane>,
    from: Locator,
    since: Instant,
}

/// See the module.
pub struct VerbsStreams {
    streams: FxHashMap<StreamId, Stream>,
    names: FxHashMap<LaneNumber, StreamId>,
    unnamed: FxHashMap<LaneNumber, Unnamed>,
    /// Those that the engine has closed, until the manager confirms it.
    closing: FxHashMap<LaneNumber, StreamId>,
    /// Of the lane that this process opens next.
    next: LaneNumber,
    events: Vec<StreamEvent>,
    /// Memory for completions.
    entries: Vec<ibv_wc>,
    sleep: Arc<Sleep>,
    manager: Arc<Manager>,
}

impl VerbsStreams {
    pub fn new(manager: Arc<Manager>, sleep: Arc<Sleep>) -> VerbsStreams {
        VerbsStreams {
            streams: FxHashMap::default(),
            names: FxHashMap::default(),
            unnamed: FxHashMap::default(),
            closing: FxHashMap::default(),
            next: first_number(Purpose::Stream),
            events: Vec::new(),
            entries: Vec::new(),
            sleep,
            manager,
        }
    }

    fn mailbox(&self) -> &Mailbox {
        self.manager.mailbox(Purpose::Stream)
    }

    /// A stream that is connected and not over, or else what a call returns. `ready`: the call has something to do. If
    /// not, the adapter is asked first.
    fn live(&mut self, stream: StreamId, ready: impl Fn(&Lane) -> bool) -> Result<&mut Lane, Moved> {
        let is_ready = |s: &Stream| s.lane.as_ref().is_some_and(|lane| ready(lane));
        let news = self.read_news();
        let reports = !self.streams.get(&stream).is_some_and(is_ready) && self.read_completions();
        if news || reports {
            // It would have ended a sleep, and is to be polled.
            self.mailbox().ring();
        }
        let s = self.streams.get_mut(&stream).ok_or(Moved::Closed(CloseReason::Requested))?;
        let Some(lane) = s.lane.as_mut().filter(|_| s.connected) else { return Err(Moved::Blocked) };
        match lane.over() {
            None => Ok(lane),
            Some(why) => {
                s.end_is_reported = true;
                Err(Moved::Closed(why))
            }
        }
    }

    fn lane_mut(&mut self, number: LaneNumber) -> Option<&mut Lane> {
        match self.names.get(&number) {
            Some(name) => self.streams.get_mut(name)?.lane.as_deref_mut(),
            None => self.unnamed.get_mut(&number).map(|u| &mut *u.lane),
        }
    }

    /// Takes what the manager has reported, and returns whether there was anything.
    fn read_news(&mut self) -> bool {
        let all = self.mailbox().take();
        let some = !all.is_empty();
        for news in all {
            match news {
                News::Made { lane, from: Some(from) } if self.unnamed.len() < UNNAMED_MAX => {
                    let since = Instant::now();
                    self.unnamed.insert(lane.number, Unnamed { lane, from, since });
                }
                News::Made { lane, .. } => {
                    let name = self.names.get(&lane.number);
                    match name.and_then(|name| self.streams.get_mut(name)) {
                        Some(s) => s.lane = Some(lane),
                        // The engine has closed it meanwhile.
                        None => self.manager.order(Order::Return(lane)),
                    }
                }
                News::Established { lane } => self.establish(lane),
                News::Ended { lane, why } => self.end(lane, why),
                News::Destroyed { lane } => {
                    if let Some(name) = self.closing.remove(&lane) {
                        self.events.push(StreamEvent::Closed(name, CloseReason::Requested));
                    }
                }
                News::Registered { region, key } => self.events.push(StreamEvent::Registered(region, key)),
                News::Invalidated { region } => self.events.push(StreamEvent::Invalidated(region)),
            }
        }
        some
    }

    fn establish(&mut self, number: LaneNumber) {
        let Some(&name) = self.names.get(&number) else { return };
        let Some(s) = self.streams.get_mut(&name) else { return };
        if !s.connected && s.lane.is_some() {
            s.connected = true;
            self.events.push(StreamEvent::Connected(name));
        }
    }

    fn end(&mut self, number: LaneNumber, why: CloseReason) {
        if let Some(u) = self.unnamed.remove(&number) {
            self.manager.order(Order::Return(u.lane));
            return;
        }
        let Some(&name) = self.names.get(&number) else { return };
        match self.streams.get_mut(&name) {
            Some(Stream { connected: true, lane: Some(lane), .. }) => lane.disconnected(),
            _ => {
                // It was never connected: its name is forgotten with this event.
                self.forget(name);
                self.events.push(StreamEvent::Closed(name, why));
            }
        }
    }

    /// Forgets a stream, and has it destroyed. Its number, if it was known.
    fn forget(&mut self, name: StreamId) -> Option<LaneNumber> {
        let s = self.streams.remove(&name)?;
        self.names.remove(&s.number);
        self.manager.order(match s.lane {
            Some(lane) => Order::Return(lane),
            None => Order::Close { lane: s.number },
        });
        Some(s.number)
    }

    /// Takes what the adapters have reported, and returns whether there was anything.
    fn read_completions(&mut self) -> bool {
        let mut entries = take(&mut self.entries);
        self.sleep.take(&mut entries);
        self.handle_completions(&entries);
        let some = !entries.is_empty();
        entries.clear();
        self.entries = entries;
        some
    }

    fn handle_completions(&mut self, entries: &[ibv_wc]) {
        // A lane is made before its first completion can come, but that may lie in the mailbox.
        if entries.iter().any(|e| self.lane_mut(lane_of(e)).is_none()) {
            self.read_news();
        }
        let mut events = take(&mut self.events);
        for entry in entries {
            // Those of a lane that was given back mean nothing any more.
            if let Some(lane) = self.lane_mut(lane_of(entry)) {
                lane.complete(entry, |work| events.push(StreamEvent::Placed(work)));
            }
        }
        self.events = events;
    }

    /// Ends connections of peers that do not greet. Whether there is one to accept.
    fn look_at_unnamed(&mut self) -> bool {
        if self.unnamed.is_empty() {
            return false;
        }
        let over: Vec<_> = self
            .unnamed
            .iter()
            .filter(|(_, u)| {
                u.lane.over().is_some() || !u.lane.is_greeted() && u.since.elapsed() > GREETING_PATIENCE
            })
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.end(number, CloseReason::Reset);
        }
        self.unnamed.values().any(|u| u.lane.is_greeted())
    }
}

impl Drop for VerbsStreams {
    fn drop(&mut self) {
        for (_, s) in self.streams.drain() {
            if let Some(lane) = s.lane {
                self.manager.order(Order::Return(lane));
            }
        }
        for (_, u) in self.unnamed.drain() {
            self.manager.order(Order::Return(u.lane));
        }
    }
}

impl StreamPort for VerbsStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        if usize::from(rail.0) >= self.sleep.queues().len() {
            self.events.push(StreamEvent::Closed(stream, CloseReason::Unreachable));
            self.mailbox().ring();
            return;
        }
        let number = self.next;
        self.next = next_number(number);
        self.streams.insert(stream, Stream::new(number, rail, None));
        self.names.insert(number, stream);
        self.manager.order(Order::Open { lane: number, rail, to });
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let ready = self.unnamed.iter().find(|(_, u)| u.lane.is_greeted()).map(|(number, _)| *number);
        let Some(number) = ready else { return false };
        let Unnamed { lane, from, .. } = self.unnamed.remove(&number).expect("it was found");
        let rail = lane.rail;
        let stream = name(rail, from);
        self.streams.insert(stream, Stream::new(number, rail, Some(lane)));
        self.names.insert(number, stream);
        true
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        match self.live(stream, Lane::has_input) {
            // SAFETY: the caller's promise is handed on.
            Ok(lane) => moved(unsafe { lane.read(pieces) }),
            Err(end) => end,
        }
    }

    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        match self.live(stream, Lane::has_room) {
            // SAFETY: the caller's promise is handed on.
            Ok(lane) => moved(unsafe { lane.write(pieces) }),
            Err(end) => end,
        }
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.wants_room = true;
            self.sleep.expect_sends();
            // What has come before that call ends no sleep: it is to be polled.
            if self.read_completions() {
                self.mailbox().ring();
            }
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        self.sleep.expect_sends();
        // SAFETY: the caller's promise is handed on.
        self.live(stream, Lane::may_place).map_or(Posted::Refused, |lane| unsafe { lane.place(place) })
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        self.manager.order(Order::Register { rail, region, memory });
    }

    fn invalidate(&mut self, region: MemId) {
        self.manager.order(Order::Invalidate { region });
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        self.events.retain(|e| e.stream() != Some(stream));
        if let Some(number) = self.forget(stream) {
            self.closing.insert(number, stream);
            return Closing::Pending;
        }
        match self.closing.values().any(|name| *name == stream) {
            true => Closing::Pending,
            false => Closing::Done,
        }
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.streams.get(&stream).map(|s| s.rail)
    }

    /// The peer's adapter acknowledges as long as its process exists.
    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        // what has come since the last question
        let lane = self.live(stream, |_| false).ok()?;
        lane.far_adapter()
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        self.read_news();
        self.read_completions();
        // Whether something is in no queue any more and still to be taken: a connection, and below bytes that are not read.
        let mut untaken = self.look_at_unnamed();
        out.extend(untaken.then_some(StreamEvent::Incoming));
        out.append(&mut take(&mut self.events));
        let mut sends = false;
        for (&name, s) in &mut self.streams {
            let Some(lane) = s.lane.as_ref().filter(|_| s.connected) else { continue };
            if lane.has_input() {
                untaken = true;
                out.push(StreamEvent::Readable(name));
            }
            match lane.over() {
                Some(why) if !s.end_is_reported => {
                    s.end_is_reported = true;
                    out.push(StreamEvent::Closed(name, why));
                }
                None if s.wants_room && lane.has_room() => {
                    s.wants_room = false;
                    out.push(StreamEvent::Writable(name));
                }
                None => sends |= s.wants_room || lane.lends(),
                Some(_) => {}
            }
        }
        self.sleep.keep_awake(untaken);
        if !sends {
            self.sleep.expect_no_sends();
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.sleep.fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.manager.descriptors(out);
        out.push(self.sleep.fd().as_raw_fd());
        out.extend(self.sleep.queues().iter().map(|q| q.fd().as_raw_fd()));
    }
}
