//! Streams over the adapter of tests.

use super::*;
use crate::fake::{self, Work};
use crate::lane::Shape;
use crate::lane::tests::{breaks, is_sent, receives, returns, sent};
use rerail_rail::Kind;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;

/// The streams of a process, over an adapter that reports what a test tells it to.
struct Fixture {
    streams: VerbsStreams,
    ordered: Receiver<Order>,
    looks: usize,
}

fn peer() -> Locator {
    Locator::of_ip(Kind::ROCE, [10, 0, 0, 9].into(), 7)
}

fn fixture() -> Fixture {
    let (manager, ordered) = Manager::of_test();
    let manager = Arc::new(manager);
    let queues = vec![Arc::new(fake::completions())];
    let sleep = Sleep::new(queues, manager.mailbox(Purpose::Stream).as_fd()).expect("a descriptor");
    sent();
    Fixture { streams: VerbsStreams::new(manager, Arc::new(sleep)), ordered, looks: 0 }
}

impl Fixture {
    fn news(&self, news: News) {
        self.streams.mailbox().put(news);
    }

    fn made(&self, number: LaneNumber, from: Option<Locator>) {
        let lane = Box::new(fake::lane(number, &Shape::STREAM));
        self.news(News::Made { lane, from });
    }

    /// Streams that this process has opened and that are connected, and their lanes.
    fn connected(&mut self, count: u32) -> Vec<(StreamId, LaneNumber)> {
        self.connected_from(1, count)
    }

    fn connected_from(&mut self, first: u32, count: u32) -> Vec<(StreamId, LaneNumber)> {
        let mut all = Vec::new();
        for name in (first..first + count).map(StreamId) {
            self.streams.open(name, RailId(0), peer());
            let Ok(Order::Open { lane, .. }) = self.ordered.try_recv() else { panic!("none was opened") };
            self.made(lane, None);
            self.news(News::Established { lane });
            all.push((name, lane));
        }
        let connected = all.iter().map(|(name, _)| StreamEvent::Connected(*name)).collect::<Vec<_>>();
        assert_eq!(self.poll(), (connected, all.len()));
        all
    }

    /// What a poll reports, and at how many streams it looks.
    fn poll(&mut self) -> (Vec<StreamEvent>, usize) {
        let mut out = Vec::new();
        self.streams.poll(&mut out);
        let looks =
            self.streams.changed.looks - std::mem::replace(&mut self.looks, self.streams.changed.looks);
        (out, looks)
    }

    /// The lane's adapter reports something in the next poll.
    fn reports(&mut self, number: LaneNumber, what: impl FnOnce(&mut Lane) -> ibv_wc) {
        self.streams.read_news();
        let name = self.streams.names.get(&number);
        let entry = match name.and_then(|name| self.streams.streams.get_mut(name)) {
            Some(s) => what(s.lane.as_mut().unwrap()),
            None => {
                let mut entry = None;
                self.streams.incoming.change(number, |lane| entry = Some(what(lane)));
                entry.expect("the lane is here")
            }
        };
        fake::reports(entry);
    }

    fn read(&mut self, stream: StreamId) -> Moved {
        let mut buf = [0; 100];
        // SAFETY: memory of this call.
        unsafe { self.streams.read(stream, &[IoVec::from_mut(&mut buf)]) }
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> Moved {
        // SAFETY: as above.
        unsafe { self.streams.write(stream, &[IoVec::from_ref(bytes)]) }
    }

    fn returned(&self) -> LaneNumber {
        match self.ordered.try_recv() {
            Ok(Order::Return(lane)) => lane.number,
            _ => panic!("no lane was given back"),
        }
    }
}

#[test]
fn a_poll_in_which_nothing_happened_looks_at_none_of_a_thousand_lanes() {
    let mut f = fixture();
    let all = f.connected(1000);
    assert_eq!(f.poll(), (vec![], 0));
    // one of them has something: only that is looked at, for as long as it has
    let (name, lane) = all[500];
    f.reports(lane, |lane| receives(lane, 0, b"abc"));
    assert_eq!(f.poll(), (vec![StreamEvent::Readable(name)], 1));
    assert_eq!(f.poll(), (vec![StreamEvent::Readable(name)], 1), "as long as it is not read");
    assert_eq!(f.read(name), Moved::Bytes(3));
    assert_eq!(f.poll(), (vec![], 1), "the read changed it");
    assert_eq!(f.poll(), (vec![], 0));
}

#[test]
fn room_is_reported_once_and_a_stream_that_waits_for_it_costs_nothing() {
    let mut f = fixture();
    let all = f.connected(3);
    let (name, lane) = all[1];
    let bytes = vec![1; 16 * (8 << 10)];
    let Moved::Bytes(taken) = f.write(name, &bytes) else { panic!("there is room") };
    assert!(taken < bytes.len());
    assert_eq!(f.write(name, &bytes), Moved::Blocked);
    f.streams.want_writable(name);
    assert_eq!((f.poll(), f.poll()), ((vec![], 1), (vec![], 0)));
    assert!(f.streams.sleep.expects_sends(), "the end of what was sent ends a sleep");
    // a credit comes back and the sends are over
    f.reports(lane, |lane| is_sent(lane, 12));
    assert_eq!(f.poll(), (vec![], 1), "the peer has no room");
    f.reports(lane, |lane| returns(lane, 1));
    assert_eq!(f.poll(), (vec![StreamEvent::Writable(name)], 1));
    assert_eq!(f.poll(), (vec![], 0), "once");
    assert!(!f.streams.sleep.expects_sends());
    f.reports(lane, |lane| receives(lane, 1, b"abc"));
    assert_eq!(f.poll(), (vec![StreamEvent::Readable(name)], 1), "also when it is looked at again");
}

#[test]
fn what_is_placed_is_posted_with_its_notice_or_by_the_next_poll_and_its_end_ends_a_sleep() {
    let mut f = fixture();
    let (name, lane) = f.connected(2)[1];
    let source = [1; 100];
    let place = |work| rerail_rail::Place {
        work: rerail_rail::WorkId(work),
        source: IoVec::from_ref(&source),
        whole: IoVec::from_ref(&source),
        key: rerail_rail::RemoteKey::of(1, 0),
        offset: 0,
    };
    fake::posted();
    // SAFETY: the source lives as long as the lane.
    assert_eq!(unsafe { f.streams.place(name, &place(1)) }, Posted::Lent);
    assert_eq!(fake::posted(), []);
    assert_eq!(f.write(name, b"notice"), Moved::Bytes(6));
    assert!(matches!(fake::posted()[..], [Work::Write(.., 0), Work::Send(.., true, 1)]));
    // SAFETY: as above.
    assert_eq!(unsafe { f.streams.place(name, &place(2)) }, Posted::Lent);
    assert_eq!(f.poll(), (vec![], 1));
    assert!(matches!(fake::posted()[..], [Work::Write(.., true, 2)]));
    assert!(f.streams.sleep.expects_sends());
    f.reports(lane, |lane| is_sent(lane, 2));
    let placed = [1, 2].map(|work| StreamEvent::Placed(rerail_rail::WorkId(work)));
    assert_eq!(f.poll(), (placed.to_vec(), 1));
    assert!(!f.streams.sleep.expects_sends());
    // one that cannot be registered: what was placed before it is posted all the same
    // SAFETY: as above.
    assert_eq!(unsafe { f.streams.place(name, &place(3)) }, Posted::Lent);
    let other = [2; 100];
    let other =
        rerail_rail::Place { source: IoVec::from_ref(&other), whole: IoVec::from_ref(&other), ..place(4) };
    fake::may_lock(false);
    // SAFETY: it is not lent.
    assert_eq!(unsafe { f.streams.place(name, &other) }, Posted::Unreadable);
    fake::may_lock(true);
    assert!(matches!(fake::posted()[..], [Work::Write(.., true, 3)]));
}

#[test]
fn a_stream_that_breaks_in_a_call_is_reported_by_the_next_poll() {
    let mut f = fixture();
    let (name, _) = f.connected(2)[1];
    fake::refuses_after(Some(0));
    assert_eq!(f.write(name, b"abc"), Moved::Blocked);
    fake::refuses_after(None);
    assert_eq!(f.poll(), (vec![StreamEvent::Closed(name, CloseReason::Reset)], 1));
}

#[test]
fn an_end_is_reported_once_and_after_what_came_before_it() {
    let mut f = fixture();
    let all = f.connected(3);
    let (name, lane) = all[1];
    f.reports(lane, |lane| receives(lane, 0, b"abc"));
    f.reports(lane, |lane| breaks(lane));
    assert_eq!(f.poll(), (vec![StreamEvent::Readable(name)], 1));
    let told = f.ordered.try_recv();
    assert!(matches!(told, Ok(Order::HangUp { lane: n }) if n == lane), "the peer may not know it");
    assert_eq!(f.read(name), Moved::Bytes(3));
    assert_eq!(f.poll(), (vec![StreamEvent::Closed(name, CloseReason::Reset)], 1));
    assert_eq!(f.poll(), (vec![], 0));
    // one that the connection manager reports
    let (name, lane) = all[2];
    f.news(News::Ended { lane, why: CloseReason::Reset });
    assert_eq!(f.poll(), (vec![StreamEvent::Closed(name, CloseReason::Reset)], 1));
    assert_eq!(f.streams.close(name), Closing::Pending);
    assert_eq!(f.returned(), lane);
    assert_eq!(f.poll(), (vec![], 0));
    // one that waits for room and is closed
    let (waits, _) = f.connected_from(4, 1)[0];
    while let Moved::Bytes(_) = f.write(waits, &[1; 8 << 10]) {}
    f.streams.want_writable(waits);
    f.poll();
    assert!(f.streams.sleep.expects_sends());
    f.streams.close(waits);
    f.poll();
    assert!(!f.streams.sleep.expects_sends(), "it waits no more");
    // of one that is closed while it has something nothing is reported
    let (name, lane) = all[0];
    f.reports(lane, |lane| receives(lane, 0, b"abc"));
    assert_eq!(f.poll(), (vec![StreamEvent::Readable(name)], 1));
    f.streams.close(name);
    assert_eq!(f.poll(), (vec![], 0));
}

#[test]
fn a_connection_of_a_peer_is_accepted_after_its_first_message_and_ended_without_one() {
    // Hazard H23.
    let mut f = fixture();
    for n in 0..100 {
        f.made(3 + 2 * n, Some(peer()));
    }
    assert_eq!(f.poll(), (vec![], 0));
    assert!(!f.streams.accept(&mut |_, _| unreachable!("nothing has come")));
    f.reports(51, |lane| receives(lane, 0, b""));
    f.reports(51, |lane| receives(lane, 1, b"at once"));
    assert_eq!(f.poll(), (vec![StreamEvent::Incoming], 0));
    assert!(f.streams.accept(&mut |_, _| StreamId(1)));
    assert_eq!(f.poll(), (vec![StreamEvent::Readable(StreamId(1))], 1), "more than the first has come");
    // one that breaks
    f.reports(7, |lane| breaks(lane));
    f.poll();
    assert_eq!(f.returned(), 7);
    // one that has greeted and is not accepted yet is not silent
    f.reports(9, |lane| receives(lane, 0, b""));
    f.poll();
    f.streams.incoming.age();
    assert_eq!(f.poll().0, [StreamEvent::Incoming, StreamEvent::Readable(StreamId(1))]);
    let mut ended: Vec<_> = (0..97).map(|_| f.returned()).collect();
    ended.sort_unstable();
    let others: Vec<_> = (0..100).map(|n| 3 + 2 * n).filter(|n| ![7, 9, 51].contains(n)).collect();
    assert_eq!(ended, others);
}

#[test]
fn a_lane_with_its_own_receives_grants_them_when_it_is_connected() {
    let mut f = fixture();
    f.streams.open(StreamId(1), RailId(0), peer());
    let Ok(Order::Open { lane, .. }) = f.ordered.try_recv() else { panic!("none was opened") };
    let made = fake::new_lane(lane, &Shape::STREAM, None, crate::lane::Rings::default());
    fake::posted();
    f.news(News::Made { lane: Box::new(made), from: None });
    f.poll();
    assert_eq!(fake::posted(), [], "not before");
    f.news(News::Established { lane });
    f.poll();
    let more = (Shape::STREAM.messages() - Shape::STREAM.start()) as u16;
    assert!(matches!(&fake::posted()[..], [Work::Send(header, ..)] if header.credits == more));
}

/// Streams that share their receives.
struct Sharing {
    f: Fixture,
    pool: Arc<crate::shared::Pool>,
    /// Slots that receive.
    has: VecDeque<u64>,
    recalls: usize,
}

impl Sharing {
    fn look(&mut self) {
        for work in fake::posted() {
            match work {
                Work::Receive(slot) => self.has.push_back(slot),
                Work::Send(header, ..) => {
                    self.recalls += usize::from(header.kind == crate::message::MessageKind::Recall);
                }
                _ => unreachable!("nothing is placed"),
            }
        }
    }

    fn stream(&mut self, name: u32) -> (StreamId, LaneNumber) {
        self.f.streams.open(StreamId(name), RailId(0), peer());
        let Ok(Order::Open { lane, .. }) = self.f.ordered.try_recv() else { panic!("none was opened") };
        self.f.news(News::Made { lane: Box::new(fake::lane_of(lane, &self.pool)), from: None });
        self.f.news(News::Established { lane });
        self.f.poll();
        self.look();
        (StreamId(name), lane)
    }

    /// As many long messages as its peer has credits at first come, and are read.
    fn is_busy(&mut self, (name, lane): (StreamId, LaneNumber)) {
        let message = crate::lane::tests::message(0, &vec![1; Shape::STREAM.message_bytes() - 16]);
        for _ in 0..Shape::STREAM.start() {
            let slot = self.has.pop_front().expect("some are posted");
            self.pool.taken(slot as usize, Some(lane));
            self.f.reports(lane, |lane| {
                lane.fill(slot as usize, &message);
                let wr_id = u64::from(lane.number) << 32 | crate::lane::RECEIVE | slot;
                ibv_wc { wr_id, byte_len: message.len() as u32, ..ibv_wc::default() }
            });
        }
        self.f.poll();
        while self.f.read(name) != Moved::Blocked {}
        self.look();
    }
}

#[test]
fn a_stream_that_gets_no_more_has_an_idle_one_give_back() {
    let pool = fake::pool(1);
    let mut s = Sharing { f: fixture(), pool: pool.clone(), has: VecDeque::new(), recalls: 0 };
    fake::posted();
    let (first, second) = (s.stream(1), s.stream(2));
    s.is_busy(first);
    // nothing is left
    while pool.counts().2 > 0 {
        pool.take(first.1, 1);
    }
    s.is_busy(second);
    assert_eq!(s.recalls, 0, "the first was active");
    s.is_busy(second);
    assert_eq!(s.recalls, 1, "and is not any more");
    s.is_busy(second);
    assert_eq!(s.recalls, 1, "once");
}
