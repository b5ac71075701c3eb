//! Datagrams over connections, where the network has no others (iWARP). Owns: a lane for each peer to which this process
//! sends, and those that peers have opened.
//!
//! Both sides send over the same lane. When both have opened one, that of the smaller locator stays, and the other side
//! closes its own. A lane that finds no room loses the datagram, as every network may.
//!
//! An adapter does not report that a cable is dark: TCP repeats, more and more rarely. A lane on which nothing comes back
//! for [`QUIET_MAX`] after something was sent is therefore replaced by a new one. Something always comes back: a
//! process that receives answers before it sleeps, or after [`ANSWER_AFTER`].
//!
//! Where adapters place in order, small datagrams of the peers from which most comes are written into rings (`ring.rs`), into
//! which each look for datagrams looks. It is bounded ([`OPEN_MAX`]), whatever the number of peers. While a thread sleeps
//! on the descriptor none is open.
//!
//! A thread takes the news of lanes, so that what waits for one is sent although no other thread calls.

use crate::abi::ibv_wc;
use crate::completions::Completions;
use crate::hello::Purpose;
use crate::lane::{DATAGRAM_BYTES_MAX, Lane, LaneNumber, is_receive, lane_of};
use crate::mailbox::News;
use crate::manager::{Manager, Order, first_number, next_number};
use crate::sleep::{Sleep, any_of};
use parking_lot::Mutex;
use rerail_rail::thread::spawn;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome, receive_one,
    send_one_by_one,
};
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Datagrams that wait for a lane, per peer.
const WAITING_MAX: usize = 8;
/// How long nothing may come back on a lane after something was sent, and how long the first attempt to connect may take.
/// Peers answer within milliseconds; a busy one within tenths of a second.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// How often that time is doubled for the attempts that follow: a peer on an overloaded machine may need longer, and would
/// never be reached. A dark path is found again by TCP's repetitions.
const DOUBLINGS_MAX: u32 = 2;
/// How long an answer may wait for a datagram that carries it.
const ANSWER_AFTER: Duration = Duration::from_millis(20);
/// Time from one attempt to connect to the next.
const PAUSE: Duration = Duration::from_millis(50);
/// Connections of peers whose first message has not come, at most.
const UNGREETED_MAX: usize = 64;
/// How long that may take.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// Entries of a completion queue that are taken at once.
const AT_ONCE: usize = 16;

/// Rings into which this process looks at once.
const OPEN_MAX: usize = 8;

/// A rail of this process, and a peer's.
type Pair = (RailId, Locator);

/// A lane, and how it is doing.
struct Link {
    pair: Pair,
    /// `None`: it is not made yet.
    lane: Option<Box<Lane>>,
    /// It may be sent on.
    connected: bool,
    since: Instant,
    /// How long it may take to be connected.
    patience: Duration,
    /// For a lane that is not connected.
    waiting: VecDeque<Vec<u8>>,
    /// When the first datagram was sent of those that came after the last receive.
    unanswered: Option<Instant>,
}

impl Link {
    fn new(pair: Pair, lane: Option<Box<Lane>>) -> Link {
        let since = Instant::now();
        Link {
            pair,
            lane,
            connected: false,
            since,
            patience: QUIET_MAX,
            waiting: VecDeque::new(),
            unanswered: None,
        }
    }

    /// It has had its time.
    fn is_stuck(&self, now: Instant) -> bool {
        let (since, most) = match self.connected {
            true => (self.unanswered, QUIET_MAX),
            false => (Some(self.since), self.patience),
        };
        since.is_some_and(|since| now.saturating_duration_since(since) > most)
    }

    /// Whether it found room.
    fn wait(&mut self, bytes: &[u8]) -> bool {
        let room = self.waiting.len() < WAITING_MAX;
        if room {
            self.waiting.push_back(bytes.to_vec());
        }
        room
    }

    /// Sends as many as find room, by one call of the adapter for several; how many.
    fn send<'a>(&mut self, datagrams: impl IntoIterator<Item = &'a [u8]>, now: Instant) -> usize {
        let Some(lane) = &mut self.lane else { return 0 };
        let queued = datagrams.into_iter().take_while(|bytes| lane.queue_datagram(bytes)).count();
        let sent = queued - lane.flush().messages;
        if sent > 0 {
            self.unanswered.get_or_insert(now);
        }
        sent
    }

    fn is_over(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.over().is_some())
    }
}

/// The lanes of a pair.
#[derive(Default)]
struct Peer {
    opened: Option<LaneNumber>,
    accepted: Option<LaneNumber>,
    /// When this process opened the last.
    tried: Option<Instant>,
    /// How many it has opened since one was connected.
    attempts: u32,
}

struct State {
    links: FxHashMap<LaneNumber, Link>,
    peers: FxHashMap<Pair, Peer>,
    /// Lanes of peers whose first message has not come.
    ungreeted: Vec<LaneNumber>,
    /// Lanes with datagrams that are not received, once each.
    arrived: VecDeque<LaneNumber>,
    /// Lanes on which an answer may be due, and since when the first of them is.
    owing: Vec<LaneNumber>,
    owing_since: Instant,
    /// Lanes into whose rings this process looks.
    open: Vec<LaneNumber>,
    next: LaneNumber,
}

impl State {
    fn new() -> State {
        State {
            links: FxHashMap::default(),
            peers: FxHashMap::default(),
            ungreeted: Vec::new(),
            arrived: VecDeque::new(),
            owing: Vec::new(),
            owing_since: Instant::now(),
            open: Vec::new(),
            next: first_number(Purpose::Datagrams),
        }
    }

    fn answer(&mut self) {
        for number in self.owing.drain(..) {
            if let Some(lane) = self.links.get_mut(&number).and_then(|link| link.lane.as_mut()) {
                lane.answer();
            }
        }
    }
}

/// What the thread shares with the port.
struct Shared {
    own: Vec<Locator>,
    manager: Arc<Manager>,
    queues: Vec<Arc<Completions>>,
    /// Threads that sleep on the descriptor, or are going to.
    sleepers: AtomicUsize,
    state: Mutex<State>,
}

/// See the module.
pub struct ConnectedDatagrams {
    shared: Arc<Shared>,
    sleep: Arc<Sleep>,
    epoll: OwnedFd,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ConnectedDatagrams {
    /// # Errors
    /// The system gives no descriptor, or no thread.
    pub fn new(
        own: Vec<Locator>,
        manager: Arc<Manager>,
        queues: Vec<Arc<Completions>>,
        sleep: Arc<Sleep>,
    ) -> io::Result<ConnectedDatagrams> {
        let epoll = any_of(queues.iter().map(|q| q.fd()))?;
        let shared = Arc::new(Shared {
            own,
            manager,
            queues,
            sleepers: AtomicUsize::new(0),
            state: Mutex::new(State::new()),
        });
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (theirs, until) = (shared.clone(), stop.clone());
        let thread = Some(spawn("rerail-verbs", move || theirs.take_news_until(&until))?);
        Ok(ConnectedDatagrams { shared, sleep, epoll, stop, thread })
    }
}

impl Shared {
    /// The thread.
    fn take_news_until(&self, stop: &OwnedFd) {
        let mailbox = self.manager.mailbox(Purpose::Datagrams);
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(mailbox.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut ready, None);
            if !ready[0].revents().is_empty() {
                return;
            }
            self.read_news(&mut self.state.lock());
        }
    }

    /// Takes what the manager and the adapters have reported.
    fn refresh(&self, state: &mut State) {
        self.read_news(state);
        for queue in &self.queues {
            // Until there are no more: those that came before a queue was armed end no sleep. Credits bound them.
            loop {
                let mut entries = [ibv_wc::default(); AT_ONCE];
                let n = queue.poll(&mut entries);
                for entry in &entries[..n] {
                    // A lane is made before its first completion can come, but that may lie in the mailbox.
                    if !state.links.contains_key(&lane_of(entry)) {
                        self.read_news(state);
                    }
                    self.complete(state, entry);
                }
                if n < AT_ONCE {
                    break;
                }
            }
        }
        self.look_at_rings(state);
        if !state.ungreeted.is_empty() {
            self.end_silent(state);
        }
    }

    fn look_at_rings(&self, state: &mut State) {
        let mut i = 0;
        while let Some(&number) = state.open.get(i) {
            self.change(state, number, Lane::look_at_ring);
            // One that is over is not open any more.
            i += usize::from(state.open.get(i) == Some(&number));
        }
    }

    /// A thread is going to sleep, and looks into no ring. Whether all peers are told.
    fn close_rings(&self, state: &mut State) -> bool {
        let open = std::mem::take(&mut state.open);
        for &number in &open {
            let lane = state.links.get_mut(&number).and_then(|link| link.lane.as_mut());
            if lane.is_some_and(|lane| !lane.close_ring()) {
                state.open.push(number);
            }
        }
        // What a peer writes from now on without knowing it sends a message for. What it has written until now is here.
        open.into_iter().for_each(|number| self.change(state, number, Lane::look_at_ring));
        state.open.is_empty()
    }

    fn complete(&self, state: &mut State, entry: &ibv_wc) {
        self.change(state, lane_of(entry), |lane| {
            lane.complete(entry, |_| {});
            is_receive(entry)
        });
    }

    /// Lets something change a lane. It returns whether something of the peer has come.
    fn change(&self, state: &mut State, number: LaneNumber, change: impl FnOnce(&mut Lane) -> bool) {
        let Some(link) = state.links.get_mut(&number) else { return };
        let Some(lane) = link.lane.as_mut() else { return };
        let (had, greeted, owed) = (lane.has_input(), lane.is_greeted(), lane.owes_answer());
        if change(lane) {
            link.unanswered = None;
        }
        let looks = self.sleepers.load(Ordering::SeqCst) == 0 && state.open.len() < OPEN_MAX;
        if lane.is_busy() && looks && lane.open_ring() {
            state.open.push(number);
        }
        if lane.owes_answer() && !owed {
            if state.owing.is_empty() {
                state.owing_since = Instant::now();
            }
            state.owing.push(number);
        }
        if lane.has_input() && !had {
            state.arrived.push_back(number);
        }
        let greets = lane.is_greeted() && !greeted;
        if lane.over().is_some() {
            self.end(state, number);
        } else if greets && state.ungreeted.contains(&number) {
            self.accept(state, number);
        }
    }

    fn read_news(&self, state: &mut State) {
        for news in self.manager.mailbox(Purpose::Datagrams).take() {
            match news {
                News::Made { lane, from: Some(from) } if state.ungreeted.len() < UNGREETED_MAX => {
                    let (number, pair) = (lane.number, (lane.rail, from));
                    state.links.insert(number, Link::new(pair, Some(lane)));
                    state.ungreeted.push(number);
                }
                News::Made { lane, .. } => match state.links.get_mut(&lane.number) {
                    Some(link) => link.lane = Some(lane),
                    // It was closed meanwhile, or there are too many.
                    None => self.manager.order(Order::Return(lane)),
                },
                News::Established { lane } => self.connect(state, lane),
                News::Ended { lane, .. } => {
                    // What has come before is received still.
                    let link = state.links.get_mut(&lane);
                    let lane_of_link = link.and_then(|link| link.lane.as_mut());
                    lane_of_link.into_iter().for_each(|lane| lane.disconnected());
                    if state.links.get(&lane).is_some_and(|link| link.lane.is_none() || link.is_over()) {
                        self.end(state, lane);
                    }
                }
                // No caller waits for it.
                News::Destroyed { .. }
                | News::Registered { .. }
                | News::Invalidated { .. }
                | News::Alternate { .. } => {}
            }
        }
    }

    /// A lane that this process has opened is connected.
    fn connect(&self, state: &mut State, number: LaneNumber) {
        let Some(link) = state.links.get_mut(&number) else { return };
        link.connected = true;
        link.lane.as_mut().into_iter().for_each(|lane| lane.start());
        if let Some(peer) = state.peers.get_mut(&link.pair) {
            peer.attempts = 0;
        }
        let now = Instant::now();
        let waiting = std::mem::take(&mut link.waiting);
        link.send(waiting.iter().map(Vec::as_slice), now);
    }

    /// The first message of a peer's lane has come.
    fn accept(&self, state: &mut State, number: LaneNumber) {
        state.ungreeted.retain(|n| *n != number);
        let Some(link) = state.links.get_mut(&number) else { return };
        link.connected = true;
        let pair = link.pair;
        let peer = state.peers.entry(pair).or_default();
        peer.attempts = 0;
        let older = peer.accepted.replace(number);
        let own = peer.opened.filter(|_| !self.own_stays(pair));
        if let Some(older) = older {
            self.end(state, older);
        }
        if let Some(own) = own {
            let waiting = state.links.get_mut(&own).map(|link| std::mem::take(&mut link.waiting));
            self.end(state, own);
            let now = Instant::now();
            let link = state.links.get_mut(&number).expect("only others were ended");
            link.send(waiting.iter().flatten().map(Vec::as_slice), now);
        }
    }

    /// Whether the lane that this process opens is the one that stays when there are two.
    fn own_stays(&self, (rail, to): Pair) -> bool {
        self.own[usize::from(rail.0)] < to
    }

    /// Gives a lane back.
    fn end(&self, state: &mut State, number: LaneNumber) {
        let Some(link) = state.links.remove(&number) else { return };
        state.ungreeted.retain(|n| *n != number);
        state.arrived.retain(|n| *n != number);
        state.open.retain(|n| *n != number);
        if let Some(peer) = state.peers.get_mut(&link.pair) {
            peer.opened.take_if(|n| *n == number);
            peer.accepted.take_if(|n| *n == number);
            // A peer to which nothing was ever sent is known by its lane only.
            if peer.opened.is_none() && peer.accepted.is_none() && peer.tried.is_none() {
                state.peers.remove(&link.pair);
            }
        }
        self.manager.order(match link.lane {
            Some(lane) => Order::Return(lane),
            None => Order::Close { lane: number },
        });
    }

    /// Ends lanes of peers whose first message does not come.
    fn end_silent(&self, state: &mut State) {
        let late =
            |n: &&LaneNumber| state.links.get(n).is_none_or(|link| link.since.elapsed() > GREETING_PATIENCE);
        let late: Vec<LaneNumber> = state.ungreeted.iter().filter(late).copied().collect();
        late.into_iter().for_each(|number| self.end(state, number));
    }

    /// The datagram that arrived next.
    fn take(&self, state: &mut State, buf: &mut [u8]) -> Option<Arrived> {
        while let Some(number) = state.arrived.pop_front() {
            let Some(link) = state.links.get_mut(&number) else { continue };
            let Some(lane) = link.lane.as_mut() else { continue };
            let (rail, from) = link.pair;
            let len = lane.receive_datagram(buf);
            if lane.has_input() {
                state.arrived.push_back(number);
            } else if lane.over().is_some() {
                self.end(state, number);
            }
            if let Some(len) = len {
                return Some(Arrived { rail, from, len, condition: Condition::Whole });
            }
        }
        if !state.owing.is_empty() && state.owing_since.elapsed() > ANSWER_AFTER {
            state.answer();
        }
        None
    }

    /// The lane over which datagrams go to a peer now. Those that are over, or stuck, are ended.
    fn connected(&self, state: &mut State, pair: Pair, now: Instant) -> Option<LaneNumber> {
        let peer = state.peers.get(&pair)?;
        let (opened, accepted) = (peer.opened, peer.accepted);
        for number in [opened, accepted].into_iter().flatten() {
            if state.links.get(&number).is_none_or(|link| link.is_stuck(now) || link.is_over()) {
                self.end(state, number);
            }
        }
        let in_order = if self.own_stays(pair) { [opened, accepted] } else { [accepted, opened] };
        let mut links = in_order.into_iter().flatten();
        links.find(|n| state.links.get(n).is_some_and(|link| link.connected))
    }

    /// Whether a rail sends to such a locator.
    fn reaches(&self, rail: RailId, to: &Locator) -> bool {
        let own = self.own.get(usize::from(rail.0));
        own.is_some_and(|own| to.kind() == own.kind() && to.place().len() == own.place().len())
    }

    fn send_train_to(&self, state: &mut State, pair: Pair, bytes: &[u8], segment: usize) -> TrainOutcome {
        let now = Instant::now();
        let (mut sent, count) = (0, bytes.len().div_ceil(segment));
        if let Some(number) = self.connected(state, pair, now) {
            let link = state.links.get_mut(&number).expect("it was found");
            sent = link.send(bytes.chunks(segment), now);
        } else {
            // They wait for a lane.
            let waits = |bytes: &&[u8]| self.send_to(state, pair, bytes) == SendOutcome::Sent;
            sent += bytes.chunks(segment).take_while(waits).count();
        }
        TrainOutcome { sent, rest: if sent == count { SendOutcome::Sent } else { SendOutcome::Full } }
    }

    fn send_to(&self, state: &mut State, pair: Pair, bytes: &[u8]) -> SendOutcome {
        let now = Instant::now();
        if let Some(number) = self.connected(state, pair, now) {
            let link = state.links.get_mut(&number).expect("it was found");
            return if link.send([bytes], now) == 1 { SendOutcome::Sent } else { SendOutcome::Full };
        }
        let peer = state.peers.entry(pair).or_default();
        let (opened, tried) = (peer.opened, peer.tried);
        if let Some(link) = opened.and_then(|number| state.links.get_mut(&number)) {
            return if link.wait(bytes) { SendOutcome::Sent } else { SendOutcome::Full };
        }
        if tried.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            return SendOutcome::Full;
        }
        let number = state.next;
        state.next = next_number(number);
        let peer = state.peers.entry(pair).or_default();
        let mut link = Link::new(pair, None);
        link.patience = QUIET_MAX * (1 << peer.attempts.min(DOUBLINGS_MAX));
        link.wait(bytes);
        (peer.opened, peer.tried) = (Some(number), Some(now));
        peer.attempts += 1;
        state.links.insert(number, link);
        self.manager.order(Order::Open { lane: number, rail: pair.0, to: pair.1 });
        SendOutcome::Sent
    }
}

impl Drop for ConnectedDatagrams {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // One that panicked has printed why.
            drop(thread.join());
        }
        for (_, link) in self.shared.state.lock().links.drain() {
            link.lane.into_iter().for_each(|lane| self.shared.manager.order(Order::Return(lane)));
        }
    }
}

impl DatagramPort for ConnectedDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        if usize::from(rail.0) >= self.shared.own.len() {
            return SendOutcome::RailBroken;
        }
        if !self.shared.reaches(rail, &to) || bytes.len() > DATAGRAM_BYTES_MAX || bytes.is_empty() {
            return SendOutcome::Full;
        }
        let mut state = self.shared.state.lock();
        self.shared.refresh(&mut state);
        self.shared.send_to(&mut state, (rail, to), bytes)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let mut state = self.shared.state.lock();
        self.shared.refresh(&mut state);
        Ok(self.shared.take(&mut state, buf))
    }
    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        if !self.shared.reaches(rail, &to) || segment > DATAGRAM_BYTES_MAX {
            return send_one_by_one(self, rail, to, bytes, segment);
        }
        let mut state = self.shared.state.lock();
        self.shared.refresh(&mut state);
        self.shared.send_train_to(&mut state, (rail, to), bytes, segment)
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    /// The kernel's TCP does it.
    fn keep_neighbour(&self, _rail: RailId, _to: Locator) {}

    fn lead(&self, _rail: RailId, _to: Locator, _route: u8) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn before_sleep(&self, streams: bool) -> bool {
        self.sleep.enter();
        // Before the lock: a thread that opens a ring sees it, or the ring is closed below.
        self.shared.sleepers.fetch_add(1, Ordering::SeqCst);
        // What a queue reported before is looked for below.
        self.shared.queues.iter().for_each(|q| q.silence());
        self.shared.queues.iter().for_each(|q| q.arm(false));
        let mut state = self.shared.state.lock();
        self.shared.refresh(&mut state);
        let all_closed = self.shared.close_rings(&mut state);
        state.answer();
        let found = !state.arrived.is_empty() || !all_closed;
        drop(state);
        (streams && self.sleep.before()) | found
    }

    fn after_sleep(&self) {
        self.shared.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.sleep.leave();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.epoll.as_raw_fd(), self.stop.as_raw_fd()]);
        out.extend(self.shared.queues.iter().map(|q| q.fd().as_raw_fd()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::lane::tests::{breaks, receives, sent};
    use crate::lane::{Rings, Shape};
    use crate::message::MessageKind;
    use rerail_rail::{CloseReason, Kind};
    use std::sync::mpsc::Receiver;

    /// A process with one rail; a second, whose locator is larger, and a third, whose locator is smaller.
    struct Fixture {
        shared: Shared,
        ordered: Receiver<Order>,
        larger: Pair,
        smaller: Pair,
    }

    fn fixture() -> Fixture {
        let at = |last| Locator::of_ip(Kind::IWARP, [10, 0, 0, last].into(), 7);
        let (manager, ordered) = Manager::of_test();
        let state = Mutex::new(State::new());
        let (own, manager, sleepers) = (vec![at(5)], Arc::new(manager), AtomicUsize::new(0));
        let shared = Shared { own, manager, queues: Vec::new(), sleepers, state };
        sent();
        Fixture { shared, ordered, larger: (RailId(0), at(9)), smaller: (RailId(0), at(1)) }
    }

    impl Fixture {
        fn send(&self, pair: Pair, bytes: &[u8]) -> SendOutcome {
            self.shared.send_to(&mut self.shared.state.lock(), pair, bytes)
        }

        fn news(&self, news: News) {
            self.shared.manager.mailbox(Purpose::Datagrams).put(news);
            self.shared.read_news(&mut self.shared.state.lock());
        }

        /// The number of the lane that this process has ordered.
        fn opened(&self) -> LaneNumber {
            match self.ordered.try_recv() {
                Ok(Order::Open { lane, .. }) => lane,
                _ => panic!("no lane was opened"),
            }
        }

        fn made(&self, number: LaneNumber, from: Option<Locator>) {
            let rings = Rings { own: true, far: true };
            let lane = Box::new(fake::lane_with(number, &Shape::DATAGRAMS, rings));
            self.news(News::Made { lane, from });
        }

        /// So much comes on a lane that its ring is worth a look.
        fn is_busy(&self, number: LaneNumber) {
            for nth in 0..40 {
                self.comes(number, nth % 8, b"x");
                self.taken();
            }
        }

        fn open(&self) -> Vec<LaneNumber> {
            self.shared.state.lock().open.clone()
        }

        /// A lane that this process has opened and that is connected.
        fn connected(&self, pair: Pair) -> LaneNumber {
            assert_eq!(self.send(pair, b"first"), SendOutcome::Sent);
            let number = self.opened();
            self.made(number, None);
            self.news(News::Established { lane: number });
            assert_eq!(sent(), [b"first"]);
            number
        }

        /// A lane that a peer has opened, with its first message.
        fn accepted(&self, number: LaneNumber, pair: Pair) {
            self.made(number, Some(pair.1));
            self.comes(number, 0, b"");
        }

        /// The lane of this number has something to report.
        fn reports(&self, number: LaneNumber, what: impl FnOnce(&mut Lane) -> ibv_wc) {
            let mut state = self.shared.state.lock();
            let entry = what(state.links.get_mut(&number).unwrap().lane.as_mut().unwrap());
            self.shared.complete(&mut state, &entry);
        }

        fn comes(&self, number: LaneNumber, nth: usize, bytes: &[u8]) {
            self.reports(number, |lane| receives(lane, nth, bytes));
        }

        fn taken(&self) -> Option<(Locator, Vec<u8>)> {
            let mut buf = [0; 100];
            let arrived = self.shared.take(&mut self.shared.state.lock(), &mut buf)?;
            Some((arrived.from, buf[..arrived.len].to_vec()))
        }

        /// The lane that was given back.
        fn returned(&self) -> LaneNumber {
            match self.ordered.try_recv() {
                Ok(Order::Return(lane)) => lane.number,
                Ok(Order::Close { lane }) => lane,
                _ => panic!("no lane was given back"),
            }
        }

        fn nothing_is_ordered(&self) -> bool {
            self.ordered.try_recv().is_err()
        }

        /// As if time had passed for a lane.
        fn ages(&self, number: LaneNumber) {
            let mut state = self.shared.state.lock();
            let link = state.links.get_mut(&number).unwrap();
            link.since -= 2 * GREETING_PATIENCE;
            link.unanswered = link.unanswered.map(|at| at - 2 * QUIET_MAX);
            let pair = link.pair;
            if let Some(peer) = state.peers.get_mut(&pair) {
                peer.tried = peer.tried.map(|at| at - 2 * PAUSE);
            }
        }
    }

    #[test]
    fn what_waits_for_a_lane_is_sent_in_order_when_it_is_connected() {
        let f = fixture();
        for n in 0..WAITING_MAX as u8 {
            assert_eq!(f.send(f.larger, &[n]), SendOutcome::Sent);
        }
        assert_eq!(f.send(f.larger, b"x"), SendOutcome::Full, "what waits is bounded");
        let number = f.opened();
        assert!(f.nothing_is_ordered(), "one lane for all");
        f.made(number, None);
        assert_eq!(sent(), [b""; 0]);
        f.news(News::Established { lane: number });
        assert_eq!(sent(), (0..WAITING_MAX as u8).map(|n| vec![n]).collect::<Vec<_>>());
        assert_eq!(f.send(f.larger, b"then"), SendOutcome::Sent);
        assert_eq!(sent(), [b"then"]);
    }

    #[test]
    fn a_train_is_posted_by_few_calls_and_what_finds_no_room_is_named() {
        let f = fixture();
        let number = f.connected(f.larger);
        let bytes: Vec<u8> = (0..70).flat_map(|n| [n; 100]).collect();
        let train = |bytes: &[u8]| {
            let now = &mut f.shared.state.lock();
            f.shared.send_train_to(now, f.larger, bytes, 100)
        };
        let before = fake::calls().sends;
        assert_eq!(train(&bytes[..3250]), TrainOutcome { sent: 33, rest: SendOutcome::Sent });
        assert_eq!(fake::calls().sends - before, 3, "16 by each call at most");
        assert_eq!(sent(), bytes[..3250].chunks(100).map(<[u8]>::to_vec).collect::<Vec<_>>());
        // 64 less the first datagram of all and those 33
        assert_eq!(train(&bytes), TrainOutcome { sent: 30, rest: SendOutcome::Full });
        assert_eq!(sent().len(), 30);
        assert_eq!(train(&bytes), TrainOutcome { sent: 0, rest: SendOutcome::Full });
        // an adapter that refuses in the middle
        f.ages(number);
        let second = {
            assert_eq!(train(&bytes[..200]), TrainOutcome { sent: 2, rest: SendOutcome::Sent }, "they wait");
            assert_eq!(f.returned(), number);
            f.opened()
        };
        f.made(second, None);
        f.news(News::Established { lane: second });
        assert_eq!(sent().len(), 2);
        fake::refuses_after(Some(5));
        assert_eq!(train(&bytes), TrainOutcome { sent: 5, rest: SendOutcome::Full });
        fake::refuses_after(None);
        assert_eq!(sent().len(), 5);
    }

    #[test]
    fn a_peer_that_has_opened_a_lane_is_answered_on_it() {
        let f = fixture();
        f.made(3, Some(f.larger.1));
        assert_eq!(f.taken(), None);
        f.comes(3, 0, b"");
        f.comes(3, 1, b"ask");
        assert_eq!(f.taken(), Some((f.larger.1, b"ask".to_vec())));
        assert_eq!(f.send(f.larger, b"reply"), SendOutcome::Sent);
        assert_eq!(sent(), [b"reply"]);
        assert!(f.nothing_is_ordered(), "no second lane is opened");
    }

    #[test]
    fn the_side_that_accepts_sends_nothing_before_the_first_message_of_the_other() {
        // Hazard H23.
        let f = fixture();
        f.made(3, Some(f.larger.1));
        assert_eq!(f.send(f.larger, b"too early"), SendOutcome::Sent);
        assert_eq!(sent(), [b""; 0]);
        f.shared.state.lock().answer();
        assert_eq!(sent(), [b""; 0]);
        f.opened();
    }

    #[test]
    fn of_two_lanes_that_of_the_smaller_locator_stays_on_both_sides() {
        let f = fixture();
        let own = f.connected(f.larger);
        f.accepted(3, f.larger);
        assert!(f.nothing_is_ordered(), "the peer closes its own");
        f.send(f.larger, b"x");
        assert_eq!(f.shared.state.lock().peers[&f.larger].opened, Some(own), "it stays");
        assert_eq!(sent(), [b"x"]);

        let f = fixture();
        f.send(f.smaller, b"waits");
        let own = f.opened();
        f.accepted(3, f.smaller);
        assert_eq!(f.returned(), own, "the peer's stays");
        assert_eq!(sent(), [b"waits"], "what waited goes over it");
        f.send(f.smaller, b"x");
        assert_eq!(sent(), [b"x"]);
        assert!(f.nothing_is_ordered());
    }

    #[test]
    fn a_lane_on_which_nothing_comes_back_is_replaced_and_an_idle_one_is_not() {
        let f = fixture();
        let first = f.connected(f.larger);
        f.comes(first, 0, b"");
        f.ages(first);
        f.send(f.larger, b"all is answered");
        assert!(f.nothing_is_ordered());
        f.ages(first);
        assert_eq!(f.send(f.larger, b"dark"), SendOutcome::Sent);
        assert_eq!(f.returned(), first);
        let second = f.opened();
        // one that is not connected in time
        f.ages(second);
        f.send(f.larger, b"still dark");
        assert_eq!(f.returned(), second);
        f.opened();
    }

    #[test]
    fn a_peer_that_is_slow_to_connect_is_given_more_time() {
        let f = fixture();
        let is_ended_after = |number, time: Duration| {
            let mut state = f.shared.state.lock();
            state.links.get_mut(&number).unwrap().since -= time;
            state.peers.get_mut(&f.larger).unwrap().tried = Some(Instant::now() - 2 * PAUSE);
            drop(state);
            f.send(f.larger, b"x");
            !f.shared.state.lock().links.contains_key(&number)
        };
        let next = || {
            f.send(f.larger, b"x");
            f.opened()
        };
        let just = Duration::from_millis(100);
        for patience in [1, 2, 4, 4].map(|times| times * QUIET_MAX) {
            let number = next();
            assert!(!is_ended_after(number, patience - just), "{patience:?}");
            assert!(is_ended_after(number, just), "{patience:?}");
            assert_eq!(f.returned(), number);
        }
        let number = next();
        f.made(number, None);
        f.news(News::Established { lane: number });
        f.ages(number);
        f.send(f.larger, b"dark");
        assert_eq!(f.returned(), number);
        let first = next();
        assert!(is_ended_after(first, QUIET_MAX + just), "once connected it begins again");
    }

    #[test]
    fn rings_are_looked_into_of_busy_lanes_only_of_a_bounded_number_and_of_none_beside_a_sleeper() {
        let f = fixture();
        let count = OPEN_MAX as LaneNumber + 2;
        let lanes: Vec<LaneNumber> = (0..count).map(|n| 3 + 2 * n).collect();
        for (n, &lane) in lanes.iter().enumerate() {
            let at = Locator::of_ip(Kind::IWARP, [10, 0, 1, n as u8].into(), 7);
            f.accepted(lane, (RailId(0), at));
        }
        assert!(f.open().is_empty());
        f.shared.sleepers.fetch_add(1, Ordering::SeqCst);
        f.is_busy(lanes[0]);
        assert!(f.open().is_empty(), "a thread sleeps");
        f.shared.sleepers.fetch_sub(1, Ordering::SeqCst);
        lanes.iter().for_each(|&lane| f.is_busy(lane));
        assert_eq!(f.open(), lanes[..OPEN_MAX]);
        // one that ends is not open any more, and another has its place
        f.reports(lanes[0], |lane| breaks(lane));
        assert_eq!(f.returned(), lanes[0]);
        f.is_busy(lanes[OPEN_MAX]);
        assert_eq!(f.open(), lanes[1..=OPEN_MAX]);
        // what is found in a ring is received, and is a sign of life
        let mut state = f.shared.state.lock();
        let link = state.links.get_mut(&lanes[1]).unwrap();
        link.unanswered = Some(Instant::now());
        link.lane.as_mut().unwrap().fill_ring(1, 0, &crate::ring::tests::slot(1, b"written"));
        f.shared.look_at_rings(&mut state);
        assert!(state.links[&lanes[1]].unanswered.is_none());
        drop(state);
        assert_eq!(f.taken().map(|t| t.1), Some(b"written".to_vec()));
        // before a sleep each is told, and what was written until then is found
        fake::posted();
        let mut state = f.shared.state.lock();
        let lane = state.links.get_mut(&lanes[2]).unwrap().lane.as_mut().unwrap();
        lane.fill_ring(1, 0, &crate::ring::tests::slot(1, b"last"));
        assert!(f.shared.close_rings(&mut state) && state.open.is_empty());
        assert!(!state.arrived.is_empty());
        let told = |w: &fake::Work| matches!(w, fake::Work::Send(h, ..) if h.kind == MessageKind::RingClosed);
        assert_eq!(fake::posted().iter().filter(|w| told(w)).count(), OPEN_MAX);
    }

    #[test]
    fn attempts_to_connect_have_pauses() {
        let f = fixture();
        f.send(f.larger, b"x");
        let number = f.opened();
        f.news(News::Ended { lane: number, why: CloseReason::Refused });
        assert_eq!(f.returned(), number);
        assert_eq!(f.send(f.larger, b"x"), SendOutcome::Full);
        assert!(f.nothing_is_ordered());
        let mut state = f.shared.state.lock();
        let tried = &mut state.peers.get_mut(&f.larger).unwrap().tried;
        *tried = tried.map(|at| at - 2 * PAUSE);
        drop(state);
        assert_eq!(f.send(f.larger, b"x"), SendOutcome::Sent);
        f.opened();
    }

    #[test]
    fn what_came_before_a_lane_broke_is_received() {
        let f = fixture();
        f.accepted(3, f.larger);
        f.comes(3, 1, b"goodbye");
        f.reports(3, |lane| breaks(lane));
        assert!(f.nothing_is_ordered());
        assert_eq!(f.taken(), Some((f.larger.1, b"goodbye".to_vec())));
        assert_eq!(f.returned(), 3);
        f.accepted(5, f.larger);
        f.news(News::Ended { lane: 5, why: CloseReason::Reset });
        assert_eq!(f.returned(), 5, "nothing is left to receive");
        let state = f.shared.state.lock();
        assert!(state.peers.is_empty() && state.links.is_empty() && state.arrived.is_empty());
    }

    #[test]
    fn peers_that_do_not_greet_are_bounded_and_ended() {
        let f = fixture();
        for n in 0..UNGREETED_MAX as LaneNumber {
            f.made(3 + 2 * n, Some(f.larger.1));
        }
        assert!(f.nothing_is_ordered());
        f.made(1001, Some(f.larger.1));
        assert_eq!(f.returned(), 1001, "there are too many");
        f.ages(3);
        f.shared.refresh(&mut f.shared.state.lock());
        assert_eq!(f.returned(), 3);
        assert!(f.nothing_is_ordered());
    }

    #[test]
    fn what_has_come_is_answered_before_a_sleep() {
        let f = fixture();
        f.accepted(3, f.larger);
        f.comes(3, 1, b"ask");
        f.shared.state.lock().answer();
        assert_eq!(sent(), [b""], "a message without bytes");
        f.shared.state.lock().answer();
        assert_eq!(sent(), [b""; 0]);
        f.taken();
        f.shared.state.lock().owing_since -= 2 * ANSWER_AFTER;
        f.comes(3, 2, b"again");
        f.taken();
        assert_eq!(f.taken(), None);
        assert_eq!(sent(), [b""; 0], "not at once: a datagram may carry it");
        f.shared.state.lock().owing_since -= 2 * ANSWER_AFTER;
        assert_eq!(f.taken(), None);
        assert_eq!(sent(), [b""], "but in time");
    }
}
