//! Lanes over the adapter of tests.

use super::rings::BUSY_AFTER;
use super::*;
use crate::agreement;
use crate::fake::{self, Work, posted, regions};
use crate::message::{RING_BYTES, ring_to_bytes};
use crate::ring;
use rerail_rail::RemoteKey;

/// The bytes of the messages that were posted since the last call.
pub fn sent() -> Vec<Vec<u8>> {
    let bytes = |work| match work {
        Work::Send(_, bytes, ..) => Some(bytes),
        _ => None,
    };
    posted().into_iter().filter_map(bytes).collect()
}

/// Puts a message of the peer into a slot that receives; the completion that reports it.
pub fn receives(lane: &mut Lane, nth: usize, bytes: &[u8]) -> ibv_wc {
    let slot = lane.shape.messages() + SPARE + nth;
    let message = message(0, bytes);
    lane.fill(slot, &message);
    let wr_id = u64::from(lane.number) << 32 | RECEIVE | slot as u64;
    ibv_wc { wr_id, status: IBV_WC_SUCCESS, byte_len: message.len() as u32, ..ibv_wc::default() }
}

#[test]
fn what_is_about_alternate_paths_takes_a_credit_and_is_not_of_the_stream() {
    let mut lane = lane();
    posted();
    let said = Message::Refused { number: 9 };
    assert_eq!(
        write(&mut lane, &vec![0; MESSAGES * MESSAGE_BYTES]),
        MESSAGES * (MESSAGE_BYTES - HEADER_BYTES)
    );
    lane.send_about_alternates(said);
    assert_eq!(sent().len(), MESSAGES, "there is no credit for it");
    let returns = Header { credits: 1, ..Header::default() };
    comes(&mut lane, FIRST, &returns.to_bytes());
    assert_eq!(sent(), [] as [Vec<u8>; 0], "nor a slot that is free");
    lane.complete(&entry(3, IBV_WC_SUCCESS, 0), |_| unreachable!());
    assert_eq!(sent(), [said.to_bytes()]);
    let header = Header { kind: MessageKind::Alternate, bytes: agreement::BYTES as u32, ..Header::default() };
    let message = [&header.to_bytes()[..], &said.to_bytes()].concat();
    comes(&mut lane, FIRST + 1, &message);
    assert_eq!(
        (lane.receive_about_alternates(), lane.receive_about_alternates(), lane.has_input()),
        (Some(said), None, false)
    );
    assert_eq!(lane.unposted_credits, 1, "its credit goes back with the others");
    let malformed = [&header.to_bytes()[..], &[0xff; agreement::BYTES]].concat();
    comes(&mut lane, FIRST + 2, &malformed);
    assert_eq!(lane.over(), Some(CloseReason::Damaged));
    let mut datagrams = lane_of_shape(&Shape::DATAGRAMS);
    let first = datagrams.shape.messages() + SPARE;
    comes(&mut datagrams, first, &message);
    assert_eq!(datagrams.over(), Some(CloseReason::Damaged), "only streams have any");
}

/// As [`receives`]: a message without bytes that returns credits.
pub fn returns(lane: &mut Lane, credits: u16) -> ibv_wc {
    let slot = lane.shape.messages() + SPARE;
    let message = message(credits, b"");
    lane.fill(slot, &message);
    let wr_id = u64::from(lane.number) << 32 | RECEIVE | slot as u64;
    ibv_wc { wr_id, status: IBV_WC_SUCCESS, byte_len: message.len() as u32, ..ibv_wc::default() }
}

/// The completion that reports the end of the message with this number, and of those before it.
pub fn is_sent(lane: &Lane, number: u32) -> ibv_wc {
    let wr_id = u64::from(lane.number) << 32 | u64::from(number);
    ibv_wc { wr_id, status: IBV_WC_SUCCESS, ..ibv_wc::default() }
}

/// The completion that reports the end of the connection.
pub fn breaks(lane: &Lane) -> ibv_wc {
    let wr_id = u64::from(lane.number) << 32 | RECEIVE;
    ibv_wc { wr_id, status: IBV_WC_SUCCESS + 5, ..ibv_wc::default() }
}

/// A lane over an adapter that keeps what is posted.
fn lane() -> Lane {
    lane_of_shape(&Shape::STREAM)
}

fn lane_of_shape(shape: &'static Shape) -> Lane {
    fake::lane(2, shape)
}

fn entry(id: u64, status: u32, bytes: usize) -> ibv_wc {
    let wr_id = 2 << 32 | id;
    ibv_wc { wr_id, status, byte_len: bytes as u32, ..ibv_wc::default() }
}

/// A message of the peer comes into a slot.
fn comes(lane: &mut Lane, slot: usize, message: &[u8]) {
    lane.fill(slot, message);
    lane.complete(&entry(RECEIVE | slot as u64, IBV_WC_SUCCESS, message.len()), |_| unreachable!());
}

/// A message with so many credits and these bytes.
pub fn message(credits: u16, bytes: &[u8]) -> Vec<u8> {
    let header = Header { credits, bytes: bytes.len() as u32, ..Header::default() };
    [&header.to_bytes()[..], bytes].concat()
}

/// The second word is the region's base.
fn place(source: &[u8], work: u64) -> Place {
    Place {
        work: WorkId(work),
        source: IoVec::from_ref(source),
        whole: IoVec::from_ref(source),
        key: RemoteKey::of(0x1234, 0x5000),
        offset: 16,
    }
}

fn write(lane: &mut Lane, bytes: &[u8]) -> usize {
    // SAFETY: a slice that lives through the call.
    unsafe { lane.write(&[IoVec::from_ref(bytes)]) }
}

fn read(lane: &mut Lane, room: usize) -> Vec<u8> {
    let mut bytes = vec![0; room];
    // SAFETY: as above.
    let n = unsafe { lane.read(&[IoVec::from_mut(&mut bytes)]) };
    bytes.truncate(n);
    bytes
}

const MESSAGES: usize = Shape::STREAM.messages();
const MESSAGE_BYTES: usize = Shape::STREAM.message_bytes();
const FIRST: usize = MESSAGES + SPARE;

#[test]
fn no_message_is_sent_for_which_the_peer_has_no_receive() {
    let mut lane = lane();
    assert_eq!(posted().len(), MESSAGES + SPARE, "all receives are posted first");
    let payload = MESSAGE_BYTES - HEADER_BYTES;
    let bytes = vec![5; MESSAGES * payload + 1];
    assert_eq!(write(&mut lane, &bytes), MESSAGES * payload);
    assert!(!lane.has_room() && write(&mut lane, &bytes) == 0);
    let sent = posted();
    assert_eq!(sent.len(), MESSAGES);
    // Their ends are reported, and still the peer has no room.
    let ends = |w: &Work| match w {
        Work::Send(_, _, true, number) => Some(*number),
        _ => None,
    };
    let last = sent.iter().rev().find_map(ends).expect("some report their end");
    lane.complete(&entry(last.into(), IBV_WC_SUCCESS, 0), |_| unreachable!());
    assert!(!lane.has_room());
    comes(&mut lane, FIRST, &message(1, b""));
    assert_eq!(posted(), [Work::Receive(FIRST as u64)], "its slot receives again at once");
    assert_eq!(write(&mut lane, &bytes), payload, "one was returned");
}

#[test]
fn credits_are_returned_when_half_of_them_are_owed() {
    let mut lane = lane();
    posted();
    for i in 0..MESSAGES / 2 {
        comes(&mut lane, FIRST + i, &message(0, &[i as u8; 3]));
    }
    assert_eq!(posted(), [], "nothing is returned that is not read");
    let before = fake::calls();
    assert_eq!(read(&mut lane, 4), [0, 0, 0, 1]);
    assert_eq!(posted(), [], "a receive waits for others");
    write(&mut lane, b"x");
    let bytes = |credits| Header { credits, bytes: 1, ..Header::default() };
    assert!(matches!(&posted()[..], [Work::Send(h, ..)] if *h == bytes(0)), "its credit waits for it");
    assert_eq!(read(&mut lane, 100).len(), 3 * MESSAGES / 2 - 4);
    let half = MESSAGES as u16 / 2;
    let all = posted();
    let (last, receives) = all.split_last().expect("all was read");
    let expected: Vec<_> = (FIRST..FIRST + MESSAGES / 2).map(|slot| Work::Receive(slot as u64)).collect();
    assert_eq!(receives, expected, "the receives are there before the credits are returned");
    let returned = Header { credits: half, ..Header::default() };
    assert!(matches!(last, Work::Send(h, _, true, _) if *h == returned));
    let calls = fake::calls();
    assert_eq!((calls.receives - before.receives, calls.sends - before.sends), (1, 2), "one for all");
    let few = Shape::STREAM.receives_at_once();
    (0..few).for_each(|n| comes(&mut lane, FIRST + n, &message(0, b"x")));
    assert_eq!(read(&mut lane, few).len(), few);
    assert_eq!(posted().len(), few, "so many do not wait");
    write(&mut lane, b"y");
    assert!(matches!(&posted()[..], [Work::Send(h, b, ..)] if *h == bytes(few as u16) && b == b"y"));
}

#[test]
fn what_one_call_of_the_engine_sends_is_posted_by_one_call_of_the_adapter() {
    let mut lane = lane();
    posted();
    let before = fake::calls();
    let source = [1; 100];
    // SAFETY: the source lives as long as the lane.
    unsafe { assert_eq!([1, 2, 3].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 3]) };
    assert_eq!(posted(), [], "they wait for the message that announces them");
    let bytes = vec![7; 3 * MESSAGE_BYTES];
    assert_eq!(write(&mut lane, &bytes), bytes.len());
    assert_eq!(fake::calls().sends - before.sends, 1);
    let all = posted();
    let reports: Vec<bool> = all
        .iter()
        .map(|w| match w {
            Work::Write(.., reports, _) | Work::Send(_, _, reports, _) => *reports,
            _ => unreachable!("nothing came"),
        })
        .collect();
    // three writes and four messages, of which the fifth work is a fourth message
    assert_eq!(reports, [false, false, false, false, true, false, false]);
    let mut over = Vec::new();
    lane.complete(&entry(4, IBV_WC_SUCCESS, 0), |work| over.push(work));
    assert_eq!(over, [1, 2, 3].map(WorkId), "the message behind them reports their ends");
    // more than a call takes
    let before = fake::calls();
    assert_eq!(write(&mut lane, &vec![7; 20 * MESSAGE_BYTES]), 12 * (MESSAGE_BYTES - HEADER_BYTES));
    assert_eq!(fake::calls().sends - before.sends, 1, "{MESSAGES} messages are under way at most");
    posted();
    // without a message behind it the last write reports the end
    // SAFETY: as above.
    unsafe { assert_eq!([4, 5].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 2]) };
    assert_eq!(lane.flush(), Refused::default());
    assert!(matches!(posted()[..], [Work::Write(.., false, _), Work::Write(.., true, _)]));
}

#[test]
fn what_an_adapter_refuses_in_the_middle_of_a_call_is_neither_sent_nor_counted() {
    let payload = MESSAGE_BYTES - HEADER_BYTES;
    let source = [1; 100];
    for took in 0..=6 {
        let mut lane = lane();
        let registrations = lane.registrations.clone();
        posted();
        // SAFETY: the source lives as long as the lane.
        unsafe { assert_eq!([1, 2].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 2]) };
        fake::refuses_after(Some(took));
        let taken = write(&mut lane, &vec![7; 4 * payload]);
        fake::refuses_after(None);
        let is_over = took < 6;
        assert_eq!(lane.over().is_some(), is_over, "{took}");
        assert_eq!(taken, took.saturating_sub(2) * payload, "{took}: the bytes of messages that were posted");
        assert_eq!(posted().len(), took);
        let slots = lane.sent.iter().filter(|(_, what)| matches!(what, Sent::Message(..))).count();
        assert_eq!(slots, took.saturating_sub(2), "{took}: the slots of messages that were posted");
        assert_eq!(lane.free.len(), MESSAGES + SPARE - slots, "{took}: the others are free");
        let before = regions();
        registrations.release();
        assert_eq!(
            (lane.writes, regions()),
            (2, before),
            "{took}: what was lent stays so, also if not posted"
        );
        // nothing more is posted to it, and ends that the adapter reports are taken
        assert_eq!((write(&mut lane, b"x"), posted().len()), (usize::from(!is_over), usize::from(!is_over)));
        let mut over = 0;
        if took > 0 {
            lane.complete(&entry(took as u64 - 1, IBV_WC_SUCCESS, 0), |_| over += 1);
        }
        assert_eq!(over, took.min(2), "{took}");
    }
}

#[test]
fn a_receive_that_is_refused_ends_the_lane_and_returns_no_credit() {
    let mut lane = lane();
    posted();
    (0..MESSAGES / 2).for_each(|n| comes(&mut lane, FIRST + n, &message(0, b"x")));
    fake::refuses_after(Some(3));
    assert_eq!(read(&mut lane, 100).len(), MESSAGES / 2);
    fake::refuses_after(None);
    assert_eq!(posted(), [0, 1, 2].map(|n| Work::Receive((FIRST + n) as u64)));
    assert_eq!((lane.over(), lane.owed), (Some(CloseReason::Reset), 0));
}

#[test]
fn a_datagram_is_answered_once_and_an_answer_is_not() {
    let mut lane = lane_of_shape(&Shape::DATAGRAMS);
    let first = Shape::DATAGRAMS.messages() + SPARE;
    posted();
    let mut buf = [0; DATAGRAM_BYTES_MAX];
    for (slot, datagram) in [&b"one"[..], b"two"].iter().enumerate() {
        comes(&mut lane, first + slot, &message(0, datagram));
    }
    assert!(lane.owes_answer());
    assert_eq!(lane.receive_datagram(&mut buf).map(|n| buf[..n].to_vec()), Some(b"one".to_vec()));
    posted();
    lane.answer();
    lane.answer();
    let answer = Header { kind: MessageKind::Answer, ..Header::default() };
    assert!(matches!(&posted()[..], [Work::Send(h, ..)] if *h == answer), "one for both");
    assert_eq!(lane.credits, Shape::DATAGRAMS.messages() - 1, "it takes a credit");
    // Of the peer's each takes a credit, which is returned, but not by an answer.
    let few = Shape::DATAGRAMS.receives_at_once();
    for n in 0..few - 1 {
        comes(&mut lane, first + n, &answer.to_bytes());
    }
    assert_eq!(posted().len(), few, "with that of the datagram");
    assert!(!lane.owes_answer());
    assert!(lane.send_datagram(b"x"));
    assert!(matches!(&posted()[..], [Work::Send(h, ..)] if h.credits == few as u16));
    // a datagram that is sent is an answer too
    comes(&mut lane, first, &message(0, b"three"));
    assert!(lane.owes_answer() && lane.send_datagram(b"y") && !lane.owes_answer());
}

#[test]
fn datagrams_keep_their_borders_and_one_without_room_is_not_sent() {
    let mut lane = lane_of_shape(&Shape::DATAGRAMS);
    let first = Shape::DATAGRAMS.messages() + SPARE;
    posted();
    let longest = [7; DATAGRAM_BYTES_MAX];
    for _ in 0..Shape::DATAGRAMS.messages() {
        assert!(lane.send_datagram(&longest));
    }
    assert!(!lane.send_datagram(b"x"), "the peer has no room");
    assert!(posted().iter().all(|w| matches!(w, Work::Send(_, bytes, ..) if *bytes == longest)));
    let mut buf = [0; 4];
    for (slot, datagram) in [&b"long."[..], b"abcd", b"e"].iter().enumerate() {
        comes(&mut lane, first + slot, &message(0, datagram));
    }
    assert_eq!(lane.receive_datagram(&mut buf), Some(4), "one that is too long is dropped");
    assert_eq!(&buf, b"abcd");
    assert_eq!(lane.receive_datagram(&mut buf), Some(1));
    assert_eq!(lane.receive_datagram(&mut buf), None);
    assert_eq!(lane.empty, [first, first + 1, first + 2], "their slots receive again");
}

#[test]
fn what_a_peer_must_not_send_ends_the_lane_and_is_not_read() {
    let wrong: [(&str, Vec<u8>); 5] = [
        ("too short", message(0, b"")[..7].to_vec()),
        ("longer than it says", [message(0, b"abc"), vec![0]].concat()),
        ("shorter than it says", message(0, b"abc")[..18].to_vec()),
        ("another version", [&[1][..], &message(0, b"abc")[1..]].concat()),
        ("credits that it was not given", message(1, b"abc")),
    ];
    for (what, bytes) in wrong {
        let mut lane = lane();
        comes(&mut lane, FIRST, &message(0, b"before"));
        comes(&mut lane, FIRST + 1, &bytes);
        assert_eq!(lane.over(), None, "{what}: what came before is read first");
        assert_eq!(read(&mut lane, 100), b"before", "{what}");
        assert_eq!(lane.over(), Some(CloseReason::Damaged), "{what}");
        posted();
        assert_eq!(write(&mut lane, b"x"), 0, "{what}");
        assert_eq!(posted(), [], "{what}");
    }
}

#[test]
fn a_write_is_over_when_the_adapter_reports_it_and_stays_lent_when_the_lane_breaks() {
    let mut lane = lane();
    let before = regions();
    let source = [1; 100];
    posted();
    // SAFETY: the source lives as long as the lane.
    unsafe { assert_eq!([1, 2].map(|work| lane.place(&place(&source, work))), [Posted::Lent; 2]) };
    lane.flush();
    let [Work::Write(0x5010, 0x1234, 100, false, first), Work::Write(.., true, second)] = posted()[..] else {
        panic!("two writes, behind the base address")
    };
    // SAFETY: as above.
    unsafe { assert_eq!(lane.place(&place(&source, 3)), Posted::Lent) };
    lane.flush();
    let mut over = Vec::new();
    lane.complete(&entry(second.into(), IBV_WC_SUCCESS, 0), |work| over.push(work));
    assert_eq!(over, [WorkId(1), WorkId(2)], "{first} was posted before {second}");
    let registrations = lane.registrations.clone();
    registrations.release();
    assert_eq!(regions(), before + 1, "one registration for all parts of a message");
    lane.complete(&entry(u64::from(second) + 1, IBV_WC_SUCCESS + 12, 0), |_| unreachable!());
    assert_eq!((lane.over(), lane.lends()), (Some(CloseReason::Reset), true));
    registrations.release();
    assert_eq!(regions(), before + 1, "its source is registered until the queue pair is gone");
    // SAFETY: as above.
    assert_eq!(unsafe { lane.place(&place(&source, 4)) }, Posted::Refused);
    drop(lane);
    registrations.release();
    assert_eq!(regions(), before - 1, "what is over is not registered any more");
}

#[test]
fn the_peers_adapter_is_asked_by_a_write_of_nothing_and_its_answer_is_as_old_as_the_question() {
    let mut lane = lane();
    posted();
    assert_eq!(lane.far_adapter(), None, "nothing is known before the first question");
    let [Work::Write(0, 0, 0, true, question)] = posted()[..] else { panic!("a question") };
    assert_eq!(lane.far_adapter(), None);
    assert_eq!(posted(), [], "one at a time");
    write(&mut lane, b"x");
    posted();
    let before = Instant::now();
    lane.complete(&entry(question.into(), IBV_WC_SUCCESS, 0), |_| unreachable!("nothing is lent"));
    let told = lane.far_adapter().expect("it was acknowledged");
    assert!(told.heard >= before.elapsed(), "not from when the answer was read");
    assert!(!told.has_all, "a message was sent behind the question");
    let [Work::Write(0, 0, 0, true, question)] = posted()[..] else { panic!("the next question") };
    lane.complete(&entry(question.into(), IBV_WC_SUCCESS, 0), |_| unreachable!());
    assert!(lane.far_adapter().is_some_and(|told| told.has_all), "all before it has arrived");
    posted();
    lane.disconnected();
    assert_eq!((lane.far_adapter(), posted()), (None, vec![]), "it is over");
}

/// Two lanes, and what an adapter does between them.
struct Pair {
    lanes: [Lane; 2],
    /// Slots that receive, in order.
    receives: [VecDeque<u64>; 2],
    /// What each side has posted and that has not arrived.
    under_way: [VecDeque<Work>; 2],
}

impl Pair {
    fn new() -> Pair {
        posted();
        let mut receives = [VecDeque::new(), VecDeque::new()];
        let lanes = [0, 1].map(|side| {
            let rings = Rings { own: true, far: true };
            let lane = fake::lane_with(2, &Shape::DATAGRAMS, rings);
            receives[side] =
                posted().iter().map(|w| if let Work::Receive(n) = w { *n } else { panic!() }).collect();
            lane
        });
        Pair { lanes, receives, under_way: [VecDeque::new(), VecDeque::new()] }
    }

    /// Lets a lane do something. What it posts is under way, and its ends are reported.
    fn act<T>(&mut self, side: usize, act: impl FnOnce(&mut Lane) -> T) -> T {
        let result = act(&mut self.lanes[side]);
        loop {
            let mut last = None;
            for work in posted() {
                match work {
                    Work::Receive(slot) => self.receives[side].push_back(slot),
                    Work::Send(_, _, reports, n) | Work::Slot(_, _, reports, n) => {
                        last = if reports { Some(n) } else { last };
                        self.under_way[side].push_back(work);
                    }
                    _ => unreachable!("datagrams only"),
                }
            }
            let Some(n) = last else { return result };
            self.lanes[side].complete(&entry(n.into(), IBV_WC_SUCCESS, 0), |_| unreachable!());
        }
    }

    /// The next that a side has posted arrives; whether there was something, and whether it is reported.
    fn arrives(&mut self, from: usize) -> Option<bool> {
        let to = 1 - from;
        Some(match self.under_way[from].pop_front()? {
            Work::Send(header, bytes, ..) => {
                let slot = self.receives[to].pop_front().expect("a message meets a receive");
                let message = [&header.to_bytes()[..], &bytes].concat();
                self.act(to, |lane| comes(lane, slot as usize, &message));
                true
            }
            Work::Slot(at, bytes, ..) => {
                let (_, base) = self.lanes[to].ring.as_ref().expect("it has one").place();
                let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
                assert_eq!(at - base, u64::from((number - 1) % ring::SLOTS) * ring::SLOT_BYTES as u64);
                self.lanes[to].fill_ring(number, 0, &bytes);
                false
            }
            _ => unreachable!("datagrams only"),
        })
    }

    fn all_arrives(&mut self) {
        while self.arrives(0).is_some() || self.arrives(1).is_some() {}
    }

    fn send(&mut self, side: usize, bytes: &[u8]) -> bool {
        self.act(side, |lane| lane.send_datagram(bytes))
    }

    /// What a side finds, when it looks.
    fn receive(&mut self, side: usize) -> Option<Vec<u8>> {
        let mut buf = [0; DATAGRAM_BYTES_MAX];
        self.act(side, |lane| {
            lane.look_at_ring();
            lane.receive_datagram(&mut buf)
        })
        .map(|len| buf[..len].to_vec())
    }

    /// The second side looks into its ring.
    fn opened() -> Pair {
        let mut p = Pair::new();
        for n in 0..BUSY_AFTER as u8 {
            assert!(!p.lanes[1].is_busy());
            assert!(p.send(0, &[n]));
            p.all_arrives();
            assert_eq!(p.receive(1), Some(vec![n]));
        }
        assert!(p.lanes[1].is_busy());
        assert!(p.act(1, Lane::open_ring));
        assert!(!p.lanes[1].is_busy() && !p.lanes[1].open_ring(), "once");
        p.all_arrives();
        p
    }
}

fn is_slot(work: Option<&Work>) -> bool {
    matches!(work, Some(Work::Slot(..)))
}

#[test]
fn a_busy_side_opens_its_ring_and_small_datagrams_go_into_it_without_credits() {
    let mut p = Pair::opened();
    let credits = p.lanes[0].credits;
    for n in 0..100_u8 {
        assert!(p.send(0, &[n; 200]));
        assert!(is_slot(p.under_way[0].back()));
        assert_eq!(p.receive(1), None, "it has not arrived");
        p.all_arrives();
        assert_eq!(p.receive(1), Some(vec![n; 200]));
        // what comes back by messages gives the slots back
        assert!(p.lanes[1].owes_answer() && p.send(1, b"reply") && !p.lanes[1].owes_answer());
        p.all_arrives();
        assert_eq!(p.receive(0), Some(b"reply".to_vec()));
    }
    assert!(p.lanes[0].credits >= credits);
    assert!(p.send(0, &[1; ring::DATAGRAM_BYTES_MAX + 1]));
    assert!(!is_slot(p.under_way[0].back()), "it does not fit");
}

#[test]
fn datagrams_are_taken_in_the_order_in_which_they_were_sent_whichever_way_they_go() {
    let mut p = Pair::opened();
    let mut sent = VecDeque::new();
    for n in 0..60_u8 {
        let datagram = vec![n; if n % 3 == 0 { 300 } else { 3 }];
        assert!(p.send(0, &datagram));
        sent.push_back(datagram);
    }
    let slots = p.under_way[0].iter().filter(|w| is_slot(Some(w))).count();
    assert_eq!(slots, ring::SLOTS as usize, "where the ring is full they go as messages");
    // Every second look finds something that was written and no message yet.
    while p.arrives(0).is_some() {
        if sent.len() % 2 == 0 {
            if let Some(found) = p.receive(1) {
                assert_eq!(Some(found), sent.pop_front());
            }
        } else {
            p.lanes[1].look_at_ring();
        }
    }
    while let Some(found) = p.receive(1) {
        assert_eq!(Some(found), sent.pop_front());
    }
    assert!(sent.is_empty());
}

#[test]
fn a_slot_that_is_seen_before_the_message_in_front_of_it_waits() {
    let mut p = Pair::opened();
    assert!(p.send(0, &[1; 300]) && p.send(0, &[2]));
    let message = p.under_way[0].pop_front().unwrap();
    p.arrives(0);
    assert_eq!(p.receive(1), None, "the adapter has written it; the message is not reported yet");
    p.under_way[0].push_front(message);
    p.arrives(0);
    assert_eq!((p.receive(1), p.receive(1)), (Some(vec![1; 300]), Some(vec![2])));
}

#[test]
fn a_sleeper_is_woken_beside_what_was_written_before_its_peer_knew_of_the_sleep() {
    let mut p = Pair::opened();
    assert!(p.send(0, b"seen"));
    p.all_arrives();
    assert_eq!(p.receive(1), Some(b"seen".to_vec()));
    // The write is under way when the other side looks for the last time, and the peer does not know.
    assert!(p.send(0, b"late"));
    assert!(p.act(1, Lane::close_ring));
    assert!(!p.lanes[1].look_at_ring());
    assert_eq!(p.arrives(0), Some(false), "no completion wakes the sleeper");
    assert_eq!(p.arrives(1), Some(true), "it says that it sleeps");
    assert_eq!(p.arrives(0), Some(true), "which is answered by a message");
    assert_eq!(p.receive(1), Some(b"late".to_vec()));
    assert!(p.send(0, b"then") && !is_slot(p.under_way[0].back()), "messages from now on");
    p.all_arrives();
    assert_eq!(p.receive(1), Some(b"then".to_vec()));
    // a peer that has written nothing more sends nothing
    for _ in 0..BUSY_AFTER {
        assert!(p.send(0, b"x"));
        p.all_arrives();
        p.receive(1);
    }
    assert!(p.act(1, Lane::open_ring));
    p.all_arrives();
    assert!(p.send(0, b"x") && p.send(1, b"y"));
    p.all_arrives();
    p.receive(1);
    p.act(1, Lane::close_ring);
    p.all_arrives();
    let woken = p.under_way[0].len();
    assert_eq!(woken, 0);
}

#[test]
fn the_end_of_looking_is_told_although_all_credits_are_used_and_the_peer_wakes_when_it_has_one() {
    let mut p = Pair::opened();
    while p.send(1, &[7; 300]) {}
    assert_eq!(p.lanes[1].credits, 1, "one is kept");
    // The peer has none either, and something of its is in the ring.
    while p.send(0, &[8; 300]) {}
    assert!(p.send(0, b"late") && is_slot(p.under_way[0].back()));
    assert!(p.act(1, Lane::close_ring));
    while p.arrives(1).is_some() {}
    assert!(p.lanes[0].wake_is_due);
    let last = p.under_way[0].len();
    // When the messages are read the credits come back, and the ring is looked at behind each of them.
    while p.arrives(0).is_some() {}
    let mut found = Vec::new();
    while let Some(datagram) = p.receive(1) {
        found.push(datagram);
    }
    assert_eq!((found.len(), found.last()), (last, Some(&b"late".to_vec())));
    p.all_arrives();
    assert!(!p.lanes[0].wake_is_due);
}

#[test]
fn what_lies_in_a_ring_is_read_when_the_connection_has_ended() {
    let mut p = Pair::opened();
    assert!(p.send(0, b"goodbye"));
    p.all_arrives();
    p.lanes[1].disconnected();
    assert_eq!(p.lanes[1].over(), None);
    assert_eq!(p.receive(1), Some(b"goodbye".to_vec()));
    assert_eq!(p.lanes[1].over(), Some(CloseReason::Reset));
    assert!(!p.lanes[1].open_ring());
}

#[test]
fn a_ring_that_is_not_wanted_is_not_written_and_a_peer_that_tells_wrong_numbers_is_ended() {
    let opened = |lane: &mut Lane, header: Header| {
        let header = Header { kind: MessageKind::RingOpened, bytes: RING_BYTES as u32, ..header };
        comes(lane, 66, &[&header.to_bytes()[..], &ring_to_bytes((fake::FAR_RING, 0x1000))].concat());
    };
    let mut lane = fake::lane_with(2, &Shape::DATAGRAMS, Rings { own: true, far: false });
    opened(&mut lane, Header::default());
    posted();
    assert!(lane.send_datagram(b"x"));
    assert!(matches!(posted()[..], [Work::Send(..)]));
    let wrong = [Header { written: 1, ..Header::default() }, Header { given_back: 1, ..Header::default() }];
    for header in wrong {
        let mut lane = fake::lane_with(2, &Shape::DATAGRAMS, Rings { own: true, far: true });
        opened(&mut lane, header);
        assert_eq!(lane.over(), Some(CloseReason::Damaged), "{header:?}");
        posted();
        assert!(!lane.send_datagram(b"x"));
    }
}

#[test]
fn a_datagram_that_an_adapter_refuses_to_write_into_a_ring_is_not_sent() {
    let mut p = Pair::opened();
    fake::refuses_after(Some(1));
    let sent = p.act(0, |lane| {
        assert!(lane.queue_datagram(b"one") && lane.queue_datagram(b"two"));
        lane.flush().messages
    });
    fake::refuses_after(None);
    assert_eq!((sent, p.lanes[0].over()), (1, Some(CloseReason::Reset)));
}

#[test]
fn a_source_that_may_not_be_registered_does_not_end_the_lane() {
    let mut lane = lane();
    let source = [1; 10];
    let (work, source) = (WorkId(1), IoVec::from_ref(&source));
    let place = Place { work, source, whole: source, key: RemoteKey::of(1, 0), offset: 0 };
    posted();
    fake::may_lock(false);
    // SAFETY: the source lives as long as the lane.
    let result = unsafe { lane.place(&place) };
    fake::may_lock(true);
    assert_eq!((result, posted(), lane.lends(), lane.over()), (Posted::Unreadable, vec![], false, None));
    // SAFETY: as above.
    assert_eq!(unsafe { lane.place(&place) }, Posted::Lent);
}

#[test]
fn a_lane_takes_no_more_writes_than_its_rail_says() {
    let mut lane = lane();
    let source = [1; 10];
    for work in 0..=PLACES_MAX {
        let place = Place {
            work: WorkId(work.into()),
            source: IoVec::from_ref(&source),
            whole: IoVec::from_ref(&source),
            key: RemoteKey::of(1, 0),
            offset: 0,
        };
        // SAFETY: the source lives as long as the lane.
        assert_eq!(unsafe { lane.place(&place) } == Posted::Lent, work < PLACES_MAX);
    }
}

/// Two streams, of which the first shares its receives if it has a pool, and the adapter between them.
struct Streams {
    lanes: [Lane; 2],
    pools: [Option<Arc<Pool>>; 2],
    receives: [VecDeque<u64>; 2],
    under_way: [VecDeque<(Header, Vec<u8>)>; 2],
}

impl Streams {
    fn new(pools: [Option<Arc<Pool>>; 2]) -> Streams {
        posted();
        let lanes = [0, 1].map(|side| {
            let number = 2 + 4 * side as u32;
            fake::new_lane(number, &Shape::STREAM, pools[side].as_ref(), Rings::default())
        });
        let mut s = Streams { lanes, pools, receives: Default::default(), under_way: Default::default() };
        // those of the first were posted first
        let all: Vec<u64> =
            posted().iter().map(|w| if let Work::Receive(n) = w { *n } else { panic!() }).collect();
        let first = if s.lanes[0].shares() { 4 } else { FIRST };
        s.receives = [all[..first].iter().copied().collect(), all[first..].iter().copied().collect()];
        s.under_way[0].push_back((Header::default(), Vec::new()));
        s.act(0, Lane::start);
        s.all_arrives();
        s
    }

    fn act<T>(&mut self, side: usize, act: impl FnOnce(&mut Lane) -> T) -> T {
        let result = act(&mut self.lanes[side]);
        loop {
            let mut last = None;
            for work in posted() {
                match work {
                    Work::Receive(slot) => self.receives[side].push_back(slot),
                    Work::Send(header, bytes, reports, n) => {
                        last = if reports { Some(n) } else { last };
                        self.under_way[side].push_back((header, bytes));
                    }
                    _ => unreachable!("nothing is placed"),
                }
            }
            let Some(n) = last else { return result };
            let wr_id = u64::from(self.lanes[side].number) << 32 | u64::from(n);
            self.lanes[side].complete(&ibv_wc { wr_id, ..ibv_wc::default() }, |_| unreachable!());
        }
    }

    fn arrives(&mut self, from: usize) -> bool {
        let Some((header, bytes)) = self.under_way[from].pop_front() else { return false };
        self.comes(1 - from, &[&header.to_bytes()[..], &bytes].concat());
        true
    }

    fn comes(&mut self, to: usize, message: &[u8]) {
        let slot = self.receives[to].pop_front().expect("a message meets a receive");
        let number = self.lanes[to].number;
        if let Some(pool) = &self.pools[to] {
            pool.taken(slot as usize, Some(number));
        }
        let wr_id = u64::from(number) << 32 | RECEIVE | slot;
        let entry = ibv_wc { wr_id, byte_len: message.len() as u32, ..ibv_wc::default() };
        self.act(to, |lane| {
            lane.fill(slot as usize, message);
            lane.complete(&entry, |_| unreachable!());
        });
    }

    fn all_arrives(&mut self) {
        while self.arrives(0) || self.arrives(1) {}
    }

    /// Bytes that a side may send at once.
    fn burst(&mut self, from: usize) -> usize {
        let bytes = vec![from as u8; 20 * MESSAGE_BYTES];
        self.act(from, |lane| write(lane, &bytes)).div_ceil(MESSAGE_BYTES - HEADER_BYTES)
    }

    fn reads_all(&mut self, side: usize) -> usize {
        self.act(side, |lane| read(lane, 30 * MESSAGE_BYTES)).len()
    }
}

#[test]
fn a_side_with_its_own_receives_grants_all_of_them_at_once_and_one_that_shares_does_not() {
    let mut s = Streams::new([None, None]);
    assert_eq!([s.burst(0), s.burst(1)], [MESSAGES; 2]);
    let mut s = Streams::new([Some(fake::pool(1)), None]);
    assert_eq!([s.burst(0), s.burst(1)], [MESSAGES, 2]);
    let mut s = Streams::new([None, Some(fake::pool(1))]);
    assert_eq!([s.burst(0), s.burst(1)], [2, MESSAGES]);
    let mut s = Streams::new([Some(fake::pool(1)), Some(fake::pool(2))]);
    assert_eq!([s.burst(0), s.burst(1)], [2, 2]);
}

#[test]
fn a_lane_with_long_messages_gets_all_credits_at_once_and_one_with_short_ones_after_many() {
    let mut s = Streams::new([Some(fake::pool(1)), Some(fake::pool(2))]);
    for _ in 0..30 {
        assert!(s.act(0, |lane| write(lane, b"short")) > 0);
        s.all_arrives();
        assert_eq!(s.reads_all(1), 5);
        s.all_arrives();
    }
    let mut bursts = Vec::new();
    for _ in 0..6 {
        bursts.push(s.burst(0));
        s.all_arrives();
        s.reads_all(1);
        s.all_arrives();
    }
    assert_eq!(bursts, [2, 4, 8, 16, 16, 16]);
    let mut short = Streams::new([None, Some(fake::pool(3))]);
    let mut limits = Vec::new();
    for n in 1..=100 {
        assert!(short.act(0, |lane| write(lane, b"short")) > 0);
        short.all_arrives();
        assert_eq!(short.reads_all(1), 5);
        short.all_arrives();
        if n % 20 == 0 {
            limits.push(short.lanes[1].limit);
        }
    }
    assert_eq!(limits, [2, 4, 4, 8, 16]);
    let lane = &s.lanes[0];
    assert_eq!((lane.lent_slots, lane.free.len()), (0, 2 + SPARE), "slots go back when all is sent");
    let (may, posted, _) = s.pools[1].as_ref().unwrap().counts();
    assert_eq!((may, posted), (MESSAGES as isize + SPARE as isize, MESSAGES + SPARE));
}

#[test]
fn a_peer_gives_back_what_it_does_not_use_when_told_and_gets_it_again_when_it_does() {
    let pool = fake::pool(1);
    let mut s = Streams::new([None, Some(pool.clone())]);
    let busy = |s: &mut Streams| {
        for _ in 0..4 {
            s.burst(0);
            s.all_arrives();
            s.reads_all(1);
            s.all_arrives();
        }
    };
    busy(&mut s);
    assert_eq!(s.lanes[0].credits, MESSAGES);
    s.act(1, Lane::recall);
    s.all_arrives();
    assert_eq!(
        (s.lanes[0].credits, s.lanes[1].limit),
        (1, 2),
        "the message took one, which goes with the next"
    );
    assert_eq!((pool.counts().0, pool.counts().1), (17, 17), "they are posted still, for others");
    for _ in 0..2 {
        assert_eq!(s.act(0, |lane| write(lane, b"short")), 5);
        s.all_arrives();
        s.reads_all(1);
        s.all_arrives();
    }
    assert_eq!(s.lanes[1].limit, 2, "what came before does not count");
    busy(&mut s);
    assert_eq!(s.lanes[1].limit, MESSAGES);
    // what was not asked for, and more than it has
    let header = Header { kind: MessageKind::GivenBack, bytes: 2, ..Header::default() };
    let mut s = Streams::new([None, Some(fake::pool(1))]);
    busy(&mut s);
    s.comes(1, &[&header.to_bytes()[..], &[1, 0]].concat());
    assert_eq!(s.lanes[1].over(), Some(CloseReason::Damaged));
    let mut s = Streams::new([None, Some(fake::pool(1))]);
    busy(&mut s);
    s.act(1, Lane::recall);
    s.comes(1, &[&header.to_bytes()[..], &[16, 0]].concat());
    assert_eq!(s.lanes[1].over(), Some(CloseReason::Damaged));
    // of receives of its own nothing is recalled
    let mut s = Streams::new([None, None]);
    s.act(1, Lane::recall);
    s.comes(1, &[&header.to_bytes()[..], &[1, 0]].concat());
    assert_eq!(s.lanes[1].over(), Some(CloseReason::Damaged));
}

#[test]
fn a_peer_that_is_told_again_before_its_first_answer_has_come_may_answer_twice() {
    let pool = fake::pool(1);
    let mut s = Streams::new([None, Some(pool.clone())]);
    for _ in 0..4 {
        s.burst(0);
        s.all_arrives();
        s.reads_all(1);
        s.all_arrives();
    }
    // some of its credits are in use when it is told first, and are back when it is told again
    assert_eq!((s.lanes[0].credits, s.lanes[1].limit), (MESSAGES, MESSAGES));
    for _ in 0..10 {
        assert_eq!(s.act(0, |lane| write(lane, b"short")), 5);
    }
    s.act(1, Lane::recall);
    assert!(s.arrives(1), "the peer is told, and answers");
    while s.under_way[0].len() > 1 {
        s.arrives(0);
    }
    s.reads_all(1);
    while s.arrives(1) {}
    s.act(1, Lane::recall);
    assert!(s.arrives(1), "it is told again, and answers again");
    let answers = s.under_way[0].iter().filter(|(header, _)| header.kind == MessageKind::GivenBack).count();
    assert_eq!(answers, 2, "both are under way");
    s.all_arrives();
    assert_eq!(
        (s.lanes[1].over(), s.lanes[1].limit),
        (None, Shape::STREAM.start() + 1),
        "one was under way with the first answer"
    );
    assert_eq!(pool.counts().0, pool.counts().1 as isize, "each credit was given back once");
}

#[test]
fn a_peer_that_sends_more_than_it_may_is_ended_and_what_it_used_receives_again() {
    let pool = fake::pool(1);
    let mut s = Streams::new([None, Some(pool.clone())]);
    for _ in 0..2 {
        s.comes(1, &message(0, b"x"));
    }
    assert_eq!(s.lanes[1].ended, None);
    let before = pool.counts().1;
    s.comes(1, &message(0, b"y"));
    assert_eq!(s.lanes[1].ended, Some(CloseReason::Damaged));
    assert_eq!(pool.counts().1, before, "its slot is posted again");
    s.comes(1, &message(0, b"z"));
    assert_eq!(pool.counts().1, before, "so are those of what comes behind it");
    // messages that bring nothing are no way around it: there is one, the greeting
    let mut s = Streams::new([None, Some(fake::pool(1))]);
    s.comes(1, &message(0, b""));
    assert_eq!(s.lanes[1].ended, Some(CloseReason::Damaged));
}

#[test]
fn a_lane_that_gets_no_more_names_an_idle_one_that_should_give_back() {
    let pool = fake::pool(1);
    let mut idle = Streams::new([None, Some(pool.clone())]);
    while pool.counts().2 > 0 {
        pool.take(idle.lanes[1].number, 1);
    }
    let mut lane = fake::new_lane(10, &Shape::STREAM, Some(&pool), Rings::default());
    while pool.counts().2 > 0 {
        pool.take(10, 1);
    }
    posted();
    pool.hold(6);
    let mut named = Vec::new();
    for _ in 0..3 {
        lane.filled = true;
        lane.owed = 2;
        lane.give_back();
        named.push(lane.take_recall());
    }
    assert_eq!(named, [None, Some(6), None], "when it was not active meanwhile");
    idle.lanes[1].end(CloseReason::Requested);
}

#[test]
fn a_lane_that_should_give_back_is_named_again_until_it_has_given_all() {
    let pool = fake::pool(1);
    let mut s = Streams::new([None, Some(pool.clone())]);
    let (idle, other) = (s.lanes[1].number, 100);
    for _ in 0..4 {
        s.burst(0);
        s.all_arrives();
        s.reads_all(1);
        s.all_arrives();
    }
    pool.join(other).unwrap();
    posted();
    let named = || (0..2).find_map(|_| pool.grow(other, 0).recall);
    assert_eq!((named(), named()), (Some(idle), None), "it is named once");
    // it has no credit to be told with
    let credits = std::mem::take(&mut s.lanes[1].credits);
    s.act(1, Lane::recall);
    s.lanes[1].credits = credits;
    assert_eq!((s.under_way[1].len(), named(), named()), (0, Some(idle), None));
    // the lane that should have told it got something meanwhile, or another one was named
    let mut asks = fake::new_lane(10, &Shape::STREAM, Some(&pool), Rings::default());
    posted();
    asks.to_recall = Some(idle);
    (asks.filled, asks.owed) = (true, 2);
    asks.give_back();
    assert!(asks.limit > Shape::STREAM.start());
    assert_eq!((asks.take_recall(), named()), (Some(idle), Some(10)), "that has more now");
    // or it is over
    asks.to_recall = Some(idle);
    drop(asks);
    assert_eq!((named(), named()), (Some(idle), None));
    // its peer uses some
    posted();
    for _ in 0..10 {
        assert_eq!(s.act(0, |lane| write(lane, b"short")), 5);
    }
    s.act(1, Lane::recall);
    s.all_arrives();
    assert!(s.lanes[1].limit < MESSAGES && s.lanes[1].limit > Shape::STREAM.start());
    assert_eq!((named(), named()), (Some(idle), None));
}

#[test]
fn credits_that_found_no_slot_are_returned_when_the_adapter_has_sent_something() {
    let mut s = Streams::new([Some(fake::pool(1)), None]);
    let lane = &mut s.lanes[0];
    write(lane, &[1; MESSAGE_BYTES]);
    posted();
    let last = lane.next - 1;
    lane.free.clear();
    s.comes(0, &message(0, b"x"));
    s.comes(0, &message(0, b"y"));
    assert_eq!(s.reads_all(0), 2);
    assert_eq!((s.under_way[0].len(), s.lanes[0].owed), (0, 2));
    s.act(0, |lane| lane.complete(&is_sent(lane, last), |_| unreachable!()));
    assert_eq!(s.under_way[0].iter().map(|(header, _)| header.credits).collect::<Vec<_>>(), [2]);
}

#[test]
fn an_answer_returns_the_credit_of_a_short_message_and_nothing_else_is_sent() {
    let mut s = Streams::new([Some(fake::pool(1)), Some(fake::pool(2))]);
    for _ in 0..50 {
        for side in [0, 1] {
            assert_eq!(s.act(side, |lane| write(lane, b"short")), 5);
            assert_eq!(s.under_way[side].len(), 1, "one message for one");
            s.all_arrives();
            assert_eq!(s.reads_all(1 - side), 5);
            assert_eq!(s.under_way[1 - side].len(), 0);
        }
    }
}
