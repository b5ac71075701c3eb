//! The calls of the engine. Owns: the lanes that are connected or on the way to be, and how the engine names them. What
//! takes a system call is left to the [manager](crate::manager).
//!
//! A poll costs as much as has happened, not as many streams as there are: completions name their lane, and what changes a
//! stream puts it on the list of those at which the next poll looks.

use crate::abi::ibv_wc;
use crate::alternate::{Effect, is_ours};
use crate::hello::Purpose;
use crate::incoming::{Incoming, Newcomer};
use crate::lane::{Lane, LaneNumber, lane_of};
use crate::mailbox::{Mailbox, News};
use crate::manager::{Manager, Order, first_number, next_number};
use crate::sleep::Sleep;
use rerail_rail::{
    Alternate, CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId,
    StreamEvent, StreamId, StreamPort,
};
use rustc_hash::FxHashMap;
use std::mem::take;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A stream, as the engine names it.
struct Stream {
    number: LaneNumber,
    rail: RailId,
    /// `None`: it is not made yet.
    lane: Option<Box<Lane>>,
    connected: bool,
    wants_room: bool,
    end_is_reported: bool,
    /// The next poll looks at it.
    listed: bool,
    /// The end of what it has sent is to end a sleep, as the last poll has found.
    expects_sends: bool,
    /// Number of the last order to load an alternate path.
    load: u32,
}

impl Stream {
    /// With a lane it is one that a peer has opened, which is connected.
    fn new(number: LaneNumber, rail: RailId, lane: Option<Box<Lane>>) -> Stream {
        let connected = lane.is_some();
        Stream {
            number,
            rail,
            lane,
            connected,
            wants_room: false,
            end_is_reported: false,
            listed: false,
            expects_sends: false,
            load: 0,
        }
    }

    /// Reports what is to be reported of it, and returns whether it has bytes that are not read: then it is to be looked at
    /// again although nothing changes it.
    fn report(&mut self, name: StreamId, out: &mut Vec<StreamEvent>) -> bool {
        self.expects_sends = false;
        let Some(lane) = self.lane.as_mut().filter(|_| self.connected) else { return false };
        // What was placed and not announced.
        lane.flush();
        let has_input = lane.has_input();
        out.extend(has_input.then_some(StreamEvent::Readable(name)));
        match lane.over() {
            Some(why) if !self.end_is_reported => {
                self.end_is_reported = true;
                out.push(StreamEvent::Closed(name, why));
            }
            None if self.wants_room && lane.has_room() => {
                self.wants_room = false;
                out.push(StreamEvent::Writable(name));
            }
            None => self.expects_sends = self.wants_room || lane.lends(),
            Some(_) => {}
        }
        has_input
    }
}

/// The streams at which the next poll looks, once each.
#[derive(Default)]
struct List {
    names: Vec<StreamId>,
    /// At how many streams polls have looked.
    #[cfg(test)]
    looks: usize,
}

impl List {
    fn add(&mut self, name: StreamId, stream: &mut Stream) {
        if !stream.listed {
            stream.listed = true;
            self.names.push(name);
        }
    }
}

/// How a read or a write ends that has moved so many bytes.
fn moved(bytes: usize) -> Moved {
    if bytes == 0 { Moved::Blocked } else { Moved::Bytes(bytes) }
}

/// See the module.
pub struct VerbsStreams {
    streams: FxHashMap<StreamId, Stream>,
    names: FxHashMap<LaneNumber, StreamId>,
    incoming: Incoming,
    changed: List,
    /// Streams with [`Stream::expects_sends`].
    expecting_sends: usize,
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
            incoming: Incoming::default(),
            changed: List::default(),
            expecting_sends: 0,
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
        // The call may change it.
        self.changed.add(stream, s);
        let Some(lane) = s.lane.as_mut().filter(|_| s.connected) else { return Err(Moved::Blocked) };
        match lane.over() {
            None => Ok(lane),
            Some(why) => {
                s.end_is_reported = true;
                Err(Moved::Closed(why))
            }
        }
    }

    /// Whether a lane is here.
    fn has(&self, number: LaneNumber) -> bool {
        match self.names.get(&number) {
            Some(name) => self.streams.get(name).is_some_and(|s| s.lane.is_some()),
            None => self.incoming.contains(number),
        }
    }

    /// Lets something change a lane, if it is here.
    fn change(&mut self, number: LaneNumber, change: impl FnOnce(&mut Lane)) {
        let Some(&name) = self.names.get(&number) else {
            let over = self.incoming.change(number, change);
            over.into_iter().for_each(|lane| self.manager.order(Order::Return(lane)));
            return;
        };
        let Some(s) = self.streams.get_mut(&name) else { return };
        if let Some(lane) = &mut s.lane {
            change(lane);
            self.changed.add(name, s);
        }
    }

    /// Tells the peer of a lane to give back what it does not use.
    fn recall(&mut self, idle: Option<LaneNumber>) {
        if let Some(idle) = idle {
            self.change(idle, Lane::recall);
        }
    }

    /// Takes what the manager has reported, and returns whether there was anything.
    fn read_news(&mut self) -> bool {
        let all = self.mailbox().take();
        let some = !all.is_empty();
        for news in all {
            match news {
                News::Made { lane, from: Some(from) } => {
                    if let Err(lane) = self.incoming.add(lane, from) {
                        self.manager.order(Order::Return(lane));
                    }
                }
                News::Made { lane, from: None } => {
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
                        self.mailbox().expect_end(false);
                        self.events.push(StreamEvent::Closed(name, CloseReason::Requested));
                    }
                }
                News::Registered { region, key } => self.events.push(StreamEvent::Registered(region, key)),
                News::Invalidated { region } => self.events.push(StreamEvent::Invalidated(region)),
                News::Alternate { lane, effect } => self.alternate(lane, effect),
            }
        }
        some
    }

    /// What concerns the alternate path of a lane.
    fn alternate(&mut self, number: LaneNumber, effect: Effect) {
        if let Effect::Send(message) = effect {
            self.change(number, |lane| lane.send_about_alternates(message));
            return;
        }
        let Some(&name) = self.names.get(&number) else { return };
        let Some(s) = self.streams.get(&name) else { return };
        // what is reported of an order that was overtaken means nothing; of a lane that the peer opened the peer gives the orders
        let is_last = |order: u32| !is_ours(number) || order == s.load;
        self.events.extend(match effect {
            Effect::Armed(order, rail) if is_last(order) => Some(StreamEvent::Armed(name, rail)),
            Effect::Unloaded(order) if is_last(order) => Some(StreamEvent::Unloaded(name)),
            Effect::Migrated(rail) => Some(StreamEvent::Migrated(name, rail)),
            _ => None,
        });
    }

    fn establish(&mut self, number: LaneNumber) {
        let Some(&name) = self.names.get(&number) else { return };
        let Some(s) = self.streams.get_mut(&name) else { return };
        if let Some(lane) = s.lane.as_mut().filter(|_| !s.connected) {
            s.connected = true;
            lane.start();
            self.changed.add(name, s);
            self.events.push(StreamEvent::Connected(name));
        }
    }

    fn end(&mut self, number: LaneNumber, why: CloseReason) {
        if let Some(lane) = self.incoming.remove(number) {
            self.manager.order(Order::Return(lane));
            return;
        }
        let Some(&name) = self.names.get(&number) else { return };
        if self.streams.get(&name).is_some_and(|s| s.connected && s.lane.is_some()) {
            self.change(number, Lane::disconnected);
        } else {
            // It was never connected: its name is forgotten with this event.
            self.forget(name);
            self.events.push(StreamEvent::Closed(name, why));
        }
    }

    /// Forgets a stream, and has it destroyed. Its number, if it was known.
    fn forget(&mut self, name: StreamId) -> Option<LaneNumber> {
        let s = self.streams.remove(&name)?;
        self.names.remove(&s.number);
        self.expecting_sends -= usize::from(s.expects_sends);
        if s.listed {
            self.changed.names.retain(|n| *n != name);
        }
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
        if entries.iter().any(|e| !self.has(lane_of(e))) {
            self.read_news();
        }
        let mut events = take(&mut self.events);
        for entry in entries {
            // Those of a lane that was given back mean nothing any more.
            let number = lane_of(entry);
            let (mut received, mut hangs_up) = (Vec::new(), false);
            self.change(number, |lane| {
                lane.complete(entry, |work| events.push(StreamEvent::Placed(work)));
                received.extend(std::iter::from_fn(|| lane.receive_about_alternates()));
                hangs_up = lane.take_hang_up();
            });
            // One that was not accepted is given back already.
            if hangs_up && self.names.contains_key(&number) {
                self.manager.order(Order::HangUp { lane: number });
            }
            received
                .into_iter()
                .for_each(|message| self.manager.order(Order::PeerMessage { lane: number, message }));
        }
        self.events = events;
    }

    /// Ends connections of peers that do not greet. Whether there is one to accept.
    fn look_at_incoming(&mut self) -> bool {
        while let Some(lane) = self.incoming.next_silent() {
            self.manager.order(Order::Return(lane));
        }
        self.incoming.is_ready()
    }

    /// Looks at the streams that have changed. Whether one has bytes that are not read.
    fn look_at_changed(&mut self, out: &mut Vec<StreamEvent>) -> bool {
        let mut names = take(&mut self.changed.names);
        #[cfg(test)]
        {
            self.changed.looks += names.len();
        }
        names.retain(|&name| {
            let s = self.streams.get_mut(&name).expect("one that is forgotten is not listed");
            let expected = s.expects_sends;
            s.listed = s.report(name, out);
            self.expecting_sends += usize::from(s.expects_sends);
            self.expecting_sends -= usize::from(expected);
            s.listed
        });
        self.changed.names = names;
        !self.changed.names.is_empty()
    }
}

impl Drop for VerbsStreams {
    fn drop(&mut self) {
        for (_, s) in self.streams.drain() {
            if let Some(lane) = s.lane {
                self.manager.order(Order::Return(lane));
            }
        }
        self.incoming.drain().for_each(|lane| self.manager.order(Order::Return(lane)));
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
        let Some(Newcomer { lane, from }) = self.incoming.accept() else { return false };
        let (number, rail) = (lane.number, lane.rail);
        let stream = name(rail, from);
        let mut s = Stream::new(number, rail, Some(lane));
        // More than its first message may have come.
        self.changed.add(stream, &mut s);
        self.streams.insert(stream, s);
        self.names.insert(number, stream);
        true
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let lane = match self.live(stream, Lane::has_input) {
            Ok(lane) => lane,
            Err(end) => return end,
        };
        // SAFETY: the caller's promise is handed on.
        let bytes = unsafe { lane.read(pieces) };
        let idle = lane.take_recall();
        self.recall(idle);
        moved(bytes)
    }

    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let lane = match self.live(stream, Lane::has_room) {
            Ok(lane) => lane,
            Err(end) => return end,
        };
        // SAFETY: the caller's promise is handed on.
        let bytes = unsafe { lane.write(pieces) };
        let idle = lane.take_recall();
        self.recall(idle);
        moved(bytes)
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.wants_room = true;
            if let Some(lane) = &mut s.lane {
                lane.flush();
            }
            self.changed.add(stream, s);
            self.sleep.expect_sends();
            // What has come before that call ends no sleep: it is to be polled.
            if self.read_completions() {
                self.mailbox().ring();
            }
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        self.sleep.expect_sends();
        let Ok(lane) = self.live(stream, Lane::may_place) else { return Posted::Refused };
        // SAFETY: the caller's promise is handed on.
        let posted = unsafe { lane.place(place) };
        if posted != Posted::Lent {
            // No message follows those that were placed before.
            lane.flush();
        }
        posted
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        self.manager.order(Order::Register { rail, region, memory });
    }

    fn invalidate(&mut self, region: MemId) {
        self.manager.order(Order::Invalidate { region });
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        let Some(s) = self.streams.get_mut(&stream) else { return };
        s.load = s.load.wrapping_add(1);
        let (lane, number) = (s.number, s.load);
        let earlier = |e: &StreamEvent| matches!(*e, StreamEvent::Armed(n, _) | StreamEvent::Unloaded(n) if n == stream);
        self.events.retain(|e| !earlier(e));
        self.manager.order(Order::LoadAlternate { lane, number, alternate });
    }

    fn migrate(&mut self, stream: StreamId) {
        if let Some(s) = self.streams.get(&stream) {
            self.manager.order(Order::Migrate { lane: s.number });
        }
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        self.events.retain(|e| e.stream() != Some(stream));
        // before the order that leads to it
        self.mailbox().expect_end(true);
        if let Some(number) = self.forget(stream) {
            self.closing.insert(number, stream);
            return Closing::Pending;
        }
        self.mailbox().expect_end(false);
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
        // What is in no queue any more and still to be taken: a connection, and bytes that are not read.
        let connects = self.look_at_incoming();
        out.extend(connects.then_some(StreamEvent::Incoming));
        out.append(&mut self.events);
        let untaken = self.look_at_changed(out) | connects;
        self.sleep.keep_awake(untaken);
        if self.expecting_sends == 0 {
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

#[cfg(test)]
mod tests;
