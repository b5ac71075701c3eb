//! Rails of several kinds as one: the rails of one kind behind those of the other. Owns: which kind a rail, a stream and a region belong to.
//!
//! Every call that names a rail, a stream or a region goes to its kind, every other call to all kinds. Nothing else changes: a stream
//! belongs to one kind, and rails of two kinds never meet ([`Kind`](crate::Kind)). A single kind is handed on as it is, and costs nothing.

use crate::{
    Alternate, Arrived, ArrivedTrain, CloseReason, Closing, DatagramPort, FarKernel, IoVec, LinkWatch,
    Locator, MemId, Moved, Place, Posted, RailDesc, RailId, Rails, SendOutcome, StreamEvent, StreamId,
    StreamPort, TrainOutcome,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Joins rails of several kinds, in this order; [`RailId`] counts through.
///
/// # Errors
/// There are no rails or too many, rails of two kinds have one name, or the system gives no descriptor.
pub fn join(kinds: Vec<Rails>) -> io::Result<Rails> {
    let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    let rails: Vec<_> = kinds.iter().flat_map(|k| k.rails.clone()).collect();
    if rails.is_empty() || rails.len() > u8::MAX.into() {
        return wrong(format!("{} rails cannot be used", rails.len()));
    }
    let twice = |r: &RailDesc| rails.iter().any(|x| x.name == r.name && x.kind() != r.kind());
    if let Some(r) = rails.iter().find(|r| twice(r)) {
        return wrong(format!("rails of two kinds are named \"{}\"", r.name));
    }
    let mut kinds = kinds;
    if kinds.len() == 1 {
        return Ok(kinds.remove(0));
    }
    let mut datagrams = JoinedDatagrams {
        epoll: any_of(kinds.iter().map(|k| k.datagrams.fd()))?,
        kinds: Kinds(Vec::new()),
        turn: AtomicUsize::new(0),
    };
    let mut streams = JoinedStreams {
        epoll: any_of(kinds.iter().map(|k| k.streams.fd()))?,
        kinds: Kinds(Vec::new()),
        of_stream: HashMap::new(),
        of_region: HashMap::new(),
        events: Vec::new(),
        turn: 0,
    };
    let mut links =
        JoinedLinks { epoll: any_of(kinds.iter().map(|k| k.links.fd()))?, kinds: Kinds(Vec::new()) };
    let (mut first, mut notes) = (0, Vec::new());
    for kind in kinds {
        datagrams.kinds.0.push((first, kind.datagrams));
        streams.kinds.0.push((first, kind.streams));
        links.kinds.0.push((first, kind.links));
        notes.extend(kind.notes);
        first += kind.rails.len() as u8;
    }
    Ok(Rails {
        rails,
        datagrams: Arc::new(datagrams),
        streams: Box::new(streams),
        links: Box::new(links),
        notes,
    })
}

/// A descriptor that is readable when one of these is.
fn any_of<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<OwnedFd> {
    // SAFETY: no memory is taken.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    for fd in fds {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event is valid for the call.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) }
            < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}

/// The number of a rail when those of its own kind come behind `first` others.
fn behind(first: u8, rail: RailId) -> RailId {
    RailId(first + rail.0)
}

/// The ports of all kinds, each with the number of its first rail.
struct Kinds<P>(Vec<(u8, P)>);

impl<P> Kinds<P> {
    /// The kind of a rail, and the rail's number in it. A rail that does not exist has none in the last kind.
    fn of(&self, rail: RailId) -> (usize, RailId) {
        let kind = self.0.iter().rposition(|(first, _)| *first <= rail.0).expect("the first is 0");
        (kind, RailId(rail.0 - self.0[kind].0))
    }

    fn ports(&self) -> impl Iterator<Item = &P> {
        self.0.iter().map(|(_, port)| port)
    }

    /// All of them, from the one at `turn`.
    fn in_turn(&self, turn: usize) -> impl Iterator<Item = usize> + use<P> {
        let n = self.0.len();
        (0..n).map(move |i| (turn + i) % n)
    }
}

struct JoinedDatagrams {
    kinds: Kinds<Arc<dyn DatagramPort>>,
    epoll: OwnedFd,
    /// The kind that is looked at first: the one behind that which had something.
    turn: AtomicUsize,
}

impl JoinedDatagrams {
    /// What the first kind that has something gives.
    fn first<T>(
        &self,
        mut receive: impl FnMut(&dyn DatagramPort, u8) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        for kind in self.kinds.in_turn(self.turn.load(Ordering::Relaxed)) {
            let (first, port) = &self.kinds.0[kind];
            if let Some(got) = receive(&**port, *first)? {
                self.turn.store(kind + 1, Ordering::Relaxed);
                return Ok(Some(got));
            }
        }
        Ok(None)
    }

    fn first_train(
        &self,
        mut receive: impl FnMut(&dyn DatagramPort) -> io::Result<Option<ArrivedTrain>>,
    ) -> io::Result<Option<ArrivedTrain>> {
        self.first(
            |port, first| Ok(receive(port)?.map(|t| ArrivedTrain { rail: behind(first, t.rail), ..t })),
        )
    }
}

impl DatagramPort for JoinedDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        let (kind, rail) = self.kinds.of(rail);
        self.kinds.0[kind].1.send(rail, to, bytes)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        self.first(|port, first| Ok(port.recv(buf)?.map(|a| Arrived { rail: behind(first, a.rail), ..a })))
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        let (kind, rail) = self.kinds.of(rail);
        self.kinds.0[kind].1.send_train(rail, to, bytes, segment)
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.first_train(|port| port.recv_train(buf))
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.first_train(|port| port.recv_train_eagerly(buf))
    }

    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        let (kind, rail) = self.kinds.of(rail);
        self.kinds.0[kind].1.keep_neighbour(rail, to);
    }

    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        let (kind, rail) = self.kinds.of(rail);
        self.kinds.0[kind].1.lead(rail, to, route);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn before_sleep(&self, streams: bool) -> bool {
        // every kind must be called, whatever another one returns
        self.kinds.ports().fold(false, |some, port| port.before_sleep(streams) | some)
    }

    fn after_sleep(&self) {
        self.kinds.ports().for_each(|port| port.after_sleep());
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.as_raw_fd());
        self.kinds.ports().for_each(|port| port.descriptors(out));
    }
}

struct JoinedStreams {
    kinds: Kinds<Box<dyn StreamPort>>,
    epoll: OwnedFd,
    /// The kind of every stream whose name its port knows.
    of_stream: HashMap<StreamId, usize>,
    of_region: HashMap<MemId, usize>,
    /// Events of a poll; empty between polls, and kept for its room.
    events: Vec<StreamEvent>,
    /// The kind that is first to accept.
    turn: usize,
}

impl JoinedStreams {
    fn port(&self, stream: StreamId) -> Option<&dyn StreamPort> {
        self.of_stream.get(&stream).map(|kind| &*self.kinds.0[*kind].1)
    }

    fn port_mut(&mut self, stream: StreamId) -> Option<&mut dyn StreamPort> {
        let kind = self.of_stream.get(&stream)?;
        Some(&mut *self.kinds.0[*kind].1)
    }

    /// A stream ended by itself: its name is forgotten where its port has forgotten it. One that is being closed is known to the end.
    fn ended(&mut self, stream: StreamId, why: CloseReason) {
        if why == CloseReason::Requested || self.port(stream).is_some_and(|p| p.rail_of(stream).is_none()) {
            self.of_stream.remove(&stream);
        }
    }

    fn moved(&mut self, stream: StreamId, how: impl FnOnce(&mut dyn StreamPort) -> Moved) -> Moved {
        let Some(port) = self.port_mut(stream) else { return Moved::Closed(CloseReason::Requested) };
        let moved = how(port);
        if let Moved::Closed(why) = moved
            && why != CloseReason::Requested
        {
            self.ended(stream, why);
        }
        moved
    }
}

impl StreamPort for JoinedStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        let (kind, rail) = self.kinds.of(rail);
        self.of_stream.insert(stream, kind);
        self.kinds.0[kind].1.open(stream, rail, to);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        for kind in self.kinds.in_turn(self.turn) {
            let (first, port) = &mut self.kinds.0[kind];
            let (first, of_stream) = (*first, &mut self.of_stream);
            let taken = port.accept(&mut |rail, from| {
                let stream = name(behind(first, rail), from);
                of_stream.insert(stream, kind);
                stream
            });
            if taken {
                self.turn = kind + 1;
                return true;
            }
        }
        false
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        self.moved(stream, |port| unsafe { port.read(stream, pieces) })
    }

    fn goes_on(&self, stream: StreamId) -> bool {
        self.port(stream).is_some_and(|port| port.goes_on(stream))
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        self.moved(stream, |port| unsafe { port.write(stream, pieces) })
    }

    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        self.moved(stream, |port| unsafe { port.write_lasting(stream, pieces) })
    }

    fn want_writable(&mut self, stream: StreamId) {
        if let Some(port) = self.port_mut(stream) {
            port.want_writable(stream);
        }
    }

    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        match self.port_mut(stream) {
            // SAFETY: the caller's promise is handed on.
            Some(port) => unsafe { port.place(stream, place) },
            None => Posted::Refused,
        }
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        let (kind, rail) = self.kinds.of(rail);
        self.of_region.insert(region, kind);
        // SAFETY: the caller's promise is handed on.
        unsafe { self.kinds.0[kind].1.register(rail, region, memory) }
    }

    fn invalidate(&mut self, region: MemId) {
        if let Some(kind) = self.of_region.get(&region) {
            self.kinds.0[*kind].1.invalidate(region);
        }
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        let Some(&kind) = self.of_stream.get(&stream) else { return };
        let (first, port) = &mut self.kinds.0[kind];
        // a rail of another kind has a number that no rail of this kind has, so the port refuses it
        let within = |a: Alternate| Alternate { rail: RailId(a.rail.0.wrapping_sub(*first)), ..a };
        port.load_alternate(stream, alternate.map(within));
    }

    fn migrate(&mut self, stream: StreamId) {
        if let Some(port) = self.port_mut(stream) {
            port.migrate(stream);
        }
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        let closing = self.port_mut(stream).map_or(Closing::Done, |port| port.close(stream));
        if closing == Closing::Done {
            self.of_stream.remove(&stream);
        }
        closing
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        let (first, port) = &self.kinds.0[*self.of_stream.get(&stream)?];
        port.rail_of(stream).map(|rail| behind(*first, rail))
    }

    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        self.port_mut(stream)?.far_kernel(stream)
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        let mut events = std::mem::take(&mut self.events);
        for (first, port) in &mut self.kinds.0 {
            let begin = events.len();
            port.poll(&mut events);
            for event in &mut events[begin..] {
                if let StreamEvent::Armed(_, rail) | StreamEvent::Migrated(_, rail) = event {
                    *rail = behind(*first, *rail);
                }
            }
        }
        for event in events.drain(..) {
            match event {
                StreamEvent::Closed(stream, why) => self.ended(stream, why),
                StreamEvent::Invalidated(region) => {
                    self.of_region.remove(&region);
                }
                _ => {}
            }
            out.push(event);
        }
        self.events = events;
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.as_raw_fd());
        self.kinds.ports().for_each(|port| port.descriptors(out));
    }
}

struct JoinedLinks {
    kinds: Kinds<Box<dyn LinkWatch>>,
    epoll: OwnedFd,
}

impl LinkWatch for JoinedLinks {
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
        for (first, links) in &mut self.kinds.0 {
            let begin = out.len();
            links.drain(out);
            out[begin..].iter_mut().for_each(|(rail, _)| *rail = behind(*first, *rail));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.as_raw_fd());
        self.kinds.ports().for_each(|links| links.descriptors(out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Condition;
    use crate::thread::Signal;
    use std::net::SocketAddr;
    use std::sync::Mutex;

    const STREAM: StreamId = StreamId(7);

    /// The calls that one kind got, and the events that it reports.
    #[derive(Default)]
    struct Kind {
        slept: u32,
        woke: u32,
        closes: u32,
        loads: Vec<Alternate>,
        migrations: u32,
        events: Vec<StreamEvent>,
        /// A stream is known to its port.
        known: bool,
    }

    struct Port(Arc<Mutex<Kind>>, Signal);

    impl Port {
        fn new(kind: &Arc<Mutex<Kind>>) -> Port {
            Port(kind.clone(), Signal::new().unwrap())
        }

        fn kind(&self) -> std::sync::MutexGuard<'_, Kind> {
            self.0.lock().unwrap()
        }
    }

    impl DatagramPort for Port {
        fn send(&self, _: RailId, _: Locator, _: &[u8]) -> SendOutcome {
            SendOutcome::Sent
        }
        fn recv(&self, _: &mut [u8]) -> io::Result<Option<Arrived>> {
            let (rail, condition) = (RailId(0), Condition::Whole);
            Ok(Some(Arrived { rail, from: Locator::NOWHERE, len: 0, condition }))
        }
        fn send_train(&self, _: RailId, _: Locator, _: &[u8], _: usize) -> TrainOutcome {
            TrainOutcome { sent: 0, rest: SendOutcome::Full }
        }
        fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
            crate::receive_one(self, buf)
        }
        fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
            crate::receive_one(self, buf)
        }
        fn keep_neighbour(&self, _: RailId, _: Locator) {}
        fn lead(&self, _: RailId, _: Locator, _: u8) {}
        fn fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
        fn before_sleep(&self, _: bool) -> bool {
            self.kind().slept += 1;
            true
        }
        fn after_sleep(&self) {
            self.kind().woke += 1;
        }
        fn descriptors(&self, _: &mut Vec<RawFd>) {}
    }

    impl StreamPort for Port {
        fn open(&mut self, _: StreamId, _: RailId, _: Locator) {
            self.kind().known = true;
        }
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
            Moved::Blocked
        }
        unsafe fn write_lasting(&mut self, _: StreamId, _: &[IoVec]) -> Moved {
            Moved::Blocked
        }
        fn want_writable(&mut self, _: StreamId) {}
        unsafe fn place(&mut self, _: StreamId, _: &Place) -> Posted {
            Posted::Refused
        }
        unsafe fn register(&mut self, _: RailId, _: MemId, _: IoVec) {}
        fn invalidate(&mut self, _: MemId) {}
        fn load_alternate(&mut self, _: StreamId, alternate: Option<Alternate>) {
            self.kind().loads.extend(alternate);
        }
        fn migrate(&mut self, _: StreamId) {
            self.kind().migrations += 1;
        }
        fn close(&mut self, _: StreamId) -> Closing {
            self.kind().closes += 1;
            self.kind().known = false;
            Closing::Pending
        }
        fn rail_of(&self, _: StreamId) -> Option<RailId> {
            self.kind().known.then_some(RailId(0))
        }
        fn far_kernel(&mut self, _: StreamId) -> Option<FarKernel> {
            None
        }
        fn poll(&mut self, out: &mut Vec<StreamEvent>) {
            out.append(&mut self.kind().events);
        }
        fn fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
        fn descriptors(&self, _: &mut Vec<RawFd>) {}
    }

    /// Says once at each look that its rail is down.
    impl LinkWatch for Port {
        fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
            out.push((RailId(0), false));
        }
        fn fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
        fn descriptors(&self, out: &mut Vec<RawFd>) {
            out.push(self.1.as_fd().as_raw_fd());
        }
    }

    /// Two kinds of two rails each.
    fn two() -> (Rails, [Arc<Mutex<Kind>>; 2]) {
        let kinds: [Arc<Mutex<Kind>>; 2] = Default::default();
        let at: SocketAddr = ([10, 0, 0, 1], 1).into();
        let rails = kinds.iter().map(|kind| Rails {
            rails: vec![RailDesc::ip("a", at, 24, 1500), RailDesc::ip("b", at, 24, 1500)],
            datagrams: Arc::new(Port::new(kind)),
            streams: Box::new(Port::new(kind)),
            links: Box::new(Port::new(kind)),
            notes: Vec::new(),
        });
        (join(rails.collect()).unwrap(), kinds)
    }

    #[test]
    fn every_kind_is_told_who_sleeps_whatever_another_one_says() {
        let (rails, kinds) = two();
        assert!(rails.datagrams.before_sleep(true));
        rails.datagrams.after_sleep();
        for kind in &kinds {
            let kind = kind.lock().unwrap();
            assert_eq!((kind.slept, kind.woke), (1, 1));
        }
    }

    #[test]
    fn kinds_have_their_turns_and_their_rails_count_through() {
        let (mut rails, _) = two();
        let mut buf = [0; 8];
        let mut rail = || rails.datagrams.recv_train(&mut buf).unwrap().unwrap().rail.0;
        assert_eq!([rail(), rail(), rail(), rail()], [0, 2, 0, 2]);
        let mut changes = Vec::new();
        rails.links.drain(&mut changes);
        assert_eq!(changes, [(RailId(0), false), (RailId(2), false)]);
        let mut descriptors = Vec::new();
        rails.links.descriptors(&mut descriptors);
        assert_eq!(descriptors.len(), 3, "its own, and one of each kind");
    }

    #[test]
    fn a_stream_is_known_until_its_port_has_forgotten_it() {
        let (mut rails, [_, kind]) = two();
        let said = |rails: &mut Rails, event| {
            kind.lock().unwrap().events.push(event);
            let mut out = Vec::new();
            rails.streams.poll(&mut out);
            assert_eq!(out, [event]);
        };
        let broke = StreamEvent::Closed(STREAM, CloseReason::Reset);
        // an adapter keeps it
        rails.streams.open(STREAM, RailId(3), Locator::NOWHERE);
        said(&mut rails, broke);
        assert_eq!(rails.streams.rail_of(STREAM), Some(RailId(2)));
        assert_eq!(rails.streams.close(STREAM), Closing::Pending);
        assert_eq!(rails.streams.close(STREAM), Closing::Pending, "it may still touch memory");
        said(&mut rails, StreamEvent::Closed(STREAM, CloseReason::Requested));
        assert_eq!(rails.streams.close(STREAM), Closing::Done);
        // sockets do not
        rails.streams.open(STREAM, RailId(3), Locator::NOWHERE);
        kind.lock().unwrap().known = false;
        said(&mut rails, broke);
        assert_eq!(rails.streams.close(STREAM), Closing::Done);
        assert_eq!(kind.lock().unwrap().closes, 2);
    }

    #[test]
    fn rails_of_an_alternate_count_through_and_one_of_another_kind_exists_in_neither() {
        let (mut rails, [first, second]) = two();
        let alternate = |rail| Some(Alternate { rail: RailId(rail), to: Locator::NOWHERE });
        rails.streams.open(STREAM, RailId(2), Locator::NOWHERE);
        [3, 1].into_iter().for_each(|rail| rails.streams.load_alternate(STREAM, alternate(rail)));
        rails.streams.load_alternate(STREAM, None);
        rails.streams.migrate(STREAM);
        let mut kind = second.lock().unwrap();
        assert_eq!(kind.loads.iter().map(|a| a.rail.0).collect::<Vec<_>>(), [1, u8::MAX]);
        assert_eq!((kind.migrations, first.lock().unwrap().migrations), (1, 0));
        kind.events = vec![StreamEvent::Armed(STREAM, RailId(1)), StreamEvent::Migrated(STREAM, RailId(0))];
        drop(kind);
        let mut out = Vec::new();
        rails.streams.poll(&mut out);
        assert_eq!(out, [StreamEvent::Armed(STREAM, RailId(3)), StreamEvent::Migrated(STREAM, RailId(2))]);
    }
}
