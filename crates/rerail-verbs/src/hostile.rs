//! A peer that sends anything, against the parsers of this crate and against a lane.
//!
//! Source: hazard H30. Owns: a model of what the peer may have been promised.

use crate::abi::{IBV_MIG_ARMED, IBV_WC_SUCCESS, ibv_wc};
use crate::agreement::{self, Message};
use crate::alternate::{Alternates, Effect, mock};
use crate::fake::{self, Work, posted};
use crate::hello::Hello;
use crate::lane::{Lane, RECEIVE, Rings, SPARE, Shape};
use crate::message::{
    GIVEN_BACK_BYTES, HEADER_BYTES, Header, MessageKind, RING_BYTES, ring_from_bytes, ring_to_bytes,
};
use crate::ring::{HEADER_BYTES as SLOT_HEADER_BYTES, SLOT_BYTES, SLOTS, SlotHeader};
use crate::setup::Setup;
use crate::shared::Pool;
use rerail_rail::{Alternate, IoVec, Kind, Locator, RailId};
use std::collections::VecDeque;
use std::sync::Arc;

mod exchange;

pub use exchange::{Exchanged, exchange};

/// The number of the lane.
const LANE: u32 = 2;

/// The private data of a connection, and the header of a message: what is taken is written back as it was.
pub fn headers(bytes: &[u8]) {
    if let Some(hello) = Hello::read(bytes) {
        assert_eq!(hello.to_bytes()[..], bytes[..hello.to_bytes().len()]);
    }
    if let Some((token, setup)) = Setup::read(bytes) {
        assert_eq!(setup.to_bytes(token), bytes);
    }
    if let Some(header) = Header::read(bytes) {
        assert_eq!(header.to_bytes()[..], bytes[..HEADER_BYTES]);
        assert_eq!(header.bytes as usize, bytes.len() - HEADER_BYTES);
    }
}

/// What happened to a lane, so that a test sees that inputs reach it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// Messages of the peer that were taken.
    pub messages: u32,
    /// Messages that this side sent.
    pub sent: u32,
    /// Bytes or datagrams that were read.
    pub read: u32,
    /// Messages about alternate paths that were received or sent.
    pub about: u32,
    /// The peer broke a rule, and the lane ended.
    pub refused: u32,
    /// Datagrams that the peer wrote into the ring.
    pub taken: u32,
    /// Datagrams that this side wrote into the peer's.
    pub written: u32,
    /// Sleepers that this side woke beside what is in their rings.
    pub woken: u32,
    /// Credits that the peer got more than at first.
    pub grown: u32,
    /// Messages by which this side gave credits back.
    pub given: u32,
    /// Credits that the peer gave back.
    pub taken_back: u32,
}

/// The bytes of the input, one by one.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0)) << 8 | usize::from(self.byte().unwrap_or(0))
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Something that came and is not read.
struct Unread {
    bytes: VecDeque<u8>,
    /// It came by the ring, and takes no credit.
    by_ring: bool,
}

/// What both sides know, computed apart from the lane.
struct Model {
    lane: Lane,
    shape: &'static Shape,
    /// Its shared receive queue.
    pool: Option<Arc<Pool>>,
    /// Credits of the peer, with those that it has used and those that are owed.
    limit: usize,
    /// Slots that receive for no lane, or for this one.
    surplus: usize,
    /// A message that brings nothing has come.
    bare: bool,
    /// The peer was told to give credits back, and may answer as often as it has any.
    recalled: bool,
    /// Slots that receive, in the order in which the adapter fills them.
    receives: VecDeque<u64>,
    /// Messages that take a credit and that the peer has room for.
    room: usize,
    /// The same of the peer, as it knows. Below 0: it has sent more than it may.
    allowed: isize,
    /// Messages that were read and not returned.
    owed: usize,
    /// Messages that came and are not read, as far as they are not.
    unread: VecDeque<Unread>,
    /// Numbers of sends whose end the adapter reports.
    under_way: VecDeque<u32>,
    /// The bytes of the lane's ring, and the slots of it that were taken and given back.
    ring: Vec<u8>,
    taken: u32,
    given_back: u32,
    /// Messages with a credit that have come.
    counted: u32,
    /// Where the peer's ring is, while it looks; slots of it that were written, and that it has given back.
    far: Option<u64>,
    far_written: u32,
    far_given_back: u32,
    /// It sleeps beside something in its ring.
    sleeps: bool,
    ended: bool,
    reached: Reached,
}

impl Model {
    fn new(shape: &'static Shape, shared: bool) -> Model {
        posted();
        let pool = shared.then(|| fake::pool(1));
        let start = if shared { shape.start() } else { shape.messages() };
        let lane = match &pool {
            Some(pool) => fake::lane_of(LANE, pool),
            None => fake::lane_with(LANE, shape, Rings { own: has_rings(shape), far: has_rings(shape) }),
        };
        let mut model = Model {
            lane,
            shape,
            pool,
            limit: start,
            surplus: 0,
            bare: false,
            recalled: false,
            receives: VecDeque::new(),
            room: start,
            allowed: start as isize,
            owed: 0,
            unread: VecDeque::new(),
            under_way: VecDeque::new(),
            ring: vec![0; if has_rings(shape) { SLOTS as usize * SLOT_BYTES } else { 0 }],
            taken: 0,
            given_back: 0,
            counted: 0,
            far: None,
            far_written: 0,
            far_given_back: 0,
            sleeps: false,
            ended: false,
            reached: Reached::default(),
        };
        model.look();
        model
    }

    /// Looks at what the lane has posted.
    fn look(&mut self) {
        for work in posted() {
            match work {
                Work::Receive(slot) => {
                    assert!(!self.receives.contains(&slot), "a slot receives twice");
                    self.receives.push_back(slot);
                }
                Work::Send(header, bytes, reports, number) => {
                    assert!(!self.ended, "a lane that is over sends nothing");
                    let counted = header.is_counted();
                    assert!(!counted || self.room > 0, "the peer has no room for a message");
                    self.room -= usize::from(counted);
                    let credits = usize::from(header.credits);
                    let more = credits.saturating_sub(self.owed);
                    assert!(counted || 2 * (credits - more) >= self.limit, "it has no receive for so many");
                    self.returns(credits);
                    if header.kind == MessageKind::Recall {
                        assert!(self.pool.is_some(), "it has all of them in any case");
                        self.recalled = true;
                    }
                    if header.kind == MessageKind::GivenBack {
                        let credits = usize::from(u16::from_le_bytes(bytes[..].try_into().expect("two")));
                        assert!((1..=self.room).contains(&credits), "it has not so many");
                        self.room -= credits;
                        self.reached.given += 1;
                    }
                    assert_eq!((header.written, header.given_back), (self.far_written, self.given_back));
                    self.reached.sent += 1;
                    self.reached.woken += u32::from(self.sleeps);
                    self.sleeps = false;
                    self.under_way.extend(reports.then_some(number));
                }
                Work::Slot(at, bytes, reports, number) => {
                    assert!(!self.ended, "a lane that is over writes nothing");
                    let base = self.far.expect("the peer looks into no ring");
                    assert!(
                        self.far_written.wrapping_sub(self.far_given_back) < SLOTS,
                        "it is not given back"
                    );
                    let place = u64::from(self.far_written % SLOTS) * SLOT_BYTES as u64;
                    assert_eq!(at, base.wrapping_add(place));
                    self.far_written = self.far_written.wrapping_add(1);
                    let slot = slot_in(&bytes).expect("what is written is whole");
                    assert_eq!((slot.number, slot.given_back), (self.far_written, self.given_back));
                    self.returns(slot.credits.into());
                    self.reached.written += 1;
                    self.under_way.extend(reports.then_some(number));
                }
                Work::Write(..) | Work::Datagram(..) => unreachable!("nothing is placed here"),
            }
        }
        assert!(self.receives.len() <= self.shape.messages() + SPARE + self.surplus);
        assert!(!self.sleeps || self.ended || !self.lane.has_room(), "a sleeper is not woken");
    }

    /// Credits are returned to the peer.
    fn returns(&mut self, credits: usize) {
        // Of a shared queue the peer gets more now and then.
        let more = credits.saturating_sub(self.owed);
        self.owed -= credits - more;
        self.limit += more;
        self.surplus = self.surplus.saturating_sub(more);
        self.reached.grown += more as u32;
        assert!(self.pool.is_some() || more == 0, "more is returned than was read");
        assert!(self.limit <= self.shape.messages(), "more than there are in all");
        self.allowed += credits as isize;
        let expected = self.allowed + SPARE as isize;
        assert!(expected <= self.receives.len() as isize, "a message may find no receive");
    }

    /// The peer gives credits and slots back; `false`: more than it can have.
    fn is_given(&mut self, credits: u16, slots: u32) -> bool {
        let room = self.room + usize::from(credits);
        let back = slots.wrapping_sub(self.far_given_back);
        if room > self.shape.messages() || back > self.far_written.wrapping_sub(self.far_given_back) {
            self.reached.refused += 1;
            self.ended = true;
            return false;
        }
        (self.room, self.far_given_back) = (room, slots);
        true
    }

    /// What the lane is to find in its ring.
    fn take_slots(&mut self) {
        while !self.ended && !self.ring.is_empty() && self.taken.wrapping_sub(self.given_back) < SLOTS {
            let next = self.taken.wrapping_add(1);
            let at = (self.taken % SLOTS) as usize * SLOT_BYTES;
            let Some(slot) = slot_in(&self.ring[at..][..SLOT_BYTES]) else { return };
            if slot.number != next || slot.behind.wrapping_sub(self.counted) as i32 > 0 {
                return;
            }
            self.taken = next;
            if !self.is_given(slot.credits, slot.given_back) {
                return;
            }
            let bytes = self.ring[at + SLOT_HEADER_BYTES..][..slot.bytes.into()].iter().copied().collect();
            self.unread.push_back(Unread { bytes, by_ring: true });
            self.reached.taken += 1;
        }
    }

    /// The peer's adapter writes into the ring.
    fn is_written(&mut self, at: usize, bytes: &[u8]) {
        if self.ring.is_empty() || self.ended {
            return;
        }
        let (slot, at) = (at / SLOT_BYTES % SLOTS as usize, at % SLOT_BYTES);
        let bytes = &bytes[..bytes.len().min(SLOT_BYTES - at)];
        self.ring[slot * SLOT_BYTES + at..][..bytes.len()].copy_from_slice(bytes);
        self.lane.fill_ring(slot as u32 + 1, at, bytes);
        self.lane.look_at_ring();
        self.take_slots();
    }

    /// Whether the peer has a credit for a message that takes one, or brings something by another.
    fn may_come(&self, header: &Header) -> bool {
        if header.is_counted() { self.allowed > 0 } else { header.credits > 0 || !self.bare }
    }

    /// A message comes, whatever it is.
    fn comes(&mut self, message: &[u8]) {
        // Without a receive the adapter ends the connection. What comes behind a broken rule is not looked at.
        let Some(slot) = self.receives.pop_front().filter(|_| !self.ended) else { return };
        let message = &message[..message.len().min(self.shape.message_bytes())];
        if let Some(pool) = &self.pool {
            pool.taken(slot as usize, Some(LANE));
        }
        self.lane.fill(slot as usize, message);
        let wr_id = u64::from(LANE) << 32 | RECEIVE | slot;
        let entry =
            ibv_wc { wr_id, status: IBV_WC_SUCCESS, byte_len: message.len() as u32, ..ibv_wc::default() };
        self.lane.complete(&entry, |_| unreachable!("nothing is placed here"));
        self.take_slots();
        if self.ended {
            return;
        }
        let read = Header::read(message).filter(|h| h.written == self.taken && self.may_come(h));
        let Some(header) = read else {
            self.reached.refused += 1;
            self.ended = true;
            return;
        };
        if !self.is_given(header.credits, header.given_back) {
            return;
        }
        self.reached.messages += 1;
        self.counted = self.counted.wrapping_add(header.is_counted().into());
        self.allowed -= isize::from(header.is_counted());
        self.bare |= !header.is_counted() && header.credits == 0;
        match header.kind {
            MessageKind::Data if header.bytes > 0 => {
                let bytes = message[HEADER_BYTES..].iter().copied().collect();
                self.unread.push_back(Unread { bytes, by_ring: false });
                return;
            }
            MessageKind::RingOpened => {
                let (_, place) = ring_from_bytes(&message[HEADER_BYTES..]).expect("it was checked");
                self.far = has_rings(self.shape).then_some(place);
            }
            MessageKind::RingClosed => {
                self.far = None;
                self.sleeps = self.far_written != self.far_given_back;
            }
            MessageKind::Alternate => {
                let bytes = message[HEADER_BYTES..].first_chunk().expect("it is as long as that");
                let Some(said) = Message::read(bytes).filter(|_| self.shape == &Shape::STREAM) else {
                    self.reached.refused += 1;
                    self.ended = true;
                    return;
                };
                assert_eq!(self.lane.receive_about_alternates(), Some(said), "what came is received");
                self.reached.about += 1;
            }
            MessageKind::GivenBack => {
                let credits = u16::from_le_bytes(message[HEADER_BYTES..].try_into().expect("two"));
                let most = (self.allowed as usize).min(self.limit - self.shape.start());
                if !self.recalled || usize::from(credits) > most {
                    self.reached.refused += 1;
                    self.ended = true;
                    return;
                }
                self.limit -= usize::from(credits);
                self.allowed -= isize::try_from(credits).expect("few");
                self.surplus += usize::from(credits);
                self.reached.taken_back += u32::from(credits);
            }
            MessageKind::Data | MessageKind::Answer | MessageKind::Recall => {}
        }
        self.owed += usize::from(header.is_counted());
    }

    fn is_read(&mut self) -> Option<VecDeque<u8>> {
        let Unread { bytes, by_ring } = self.unread.pop_front()?;
        if by_ring {
            self.given_back = self.given_back.wrapping_add(1);
        } else {
            self.owed += 1;
        }
        Some(bytes)
    }

    fn read(&mut self, room: usize) {
        let mut buf = vec![0; room];
        let expected: Vec<u8>;
        let n;
        if self.shape == &Shape::STREAM {
            // SAFETY: memory of this call.
            n = unsafe { self.lane.read(&[IoVec::from_mut(&mut buf)]) };
            let mut bytes = Vec::new();
            while bytes.len() < room && !self.unread.is_empty() {
                let message = &mut self.unread.front_mut().expect("it is not empty").bytes;
                let k = message.len().min(room - bytes.len());
                bytes.extend(message.drain(..k));
                if message.is_empty() {
                    self.is_read();
                }
            }
            expected = bytes;
        } else {
            n = self.lane.receive_datagram(&mut buf).unwrap_or(0);
            let mut found = Vec::new();
            while let Some(message) = self.is_read() {
                if message.len() <= room {
                    found = message.into();
                    break;
                }
            }
            expected = found;
        }
        assert_eq!(buf[..n], expected, "what was sent is read, in order");
        self.reached.read += u32::from(n > 0);
    }
}

/// Only datagrams go by rings.
fn has_rings(shape: &'static Shape) -> bool {
    shape == &Shape::DATAGRAMS
}

/// A slot of a ring that is whole, read apart from the lane.
fn slot_in(slot: &[u8]) -> Option<SlotHeader> {
    let word = |at: usize| u32::from_le_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]]);
    let (bytes, credits) = (word(4) as u16, (word(4) >> 16) as u16);
    let end = SLOT_HEADER_BYTES + usize::from(bytes);
    if bytes == 0 || end > slot.len() || word(20) != 0 {
        return None;
    }
    let summed = [&slot[..16], &slot[SLOT_HEADER_BYTES..end]].concat();
    let header = SlotHeader { number: word(0), bytes, credits, given_back: word(8), behind: word(12) };
    (crc32c::crc32c(&summed) == word(16)).then_some(header)
}

/// What a peer does with rings.
fn ring_step(m: &mut Model, what: u8, input: &mut Input<'_>) {
    let header = Header { written: m.taken, given_back: m.far_given_back, ..Header::default() };
    match what >> 4 {
        0x8 => {
            m.lane.open_ring();
        }
        0x9 => {
            m.lane.close_ring();
        }
        0xa => {
            let bytes = ring_to_bytes((fake::FAR_RING, input.number() as u64));
            let header = Header { kind: MessageKind::RingOpened, bytes: RING_BYTES as u32, ..header };
            m.comes(&[&header.to_bytes()[..], &bytes].concat());
            m.look();
            (0..input.byte().unwrap_or(0) % 8).for_each(|_| _ = m.lane.send_datagram(&[9; 50]));
        }
        0xb => {
            // seldom with a number that is wrong, and mostly before all is read
            let given_back = match input.byte().unwrap_or(0) {
                wrong if wrong >= 0xfe => m.far_written.wrapping_add(wrong.into()),
                all if all >= 0xc0 => m.far_written,
                _ => m.far_given_back,
            };
            m.comes(&Header { kind: MessageKind::RingClosed, given_back, ..header }.to_bytes());
        }
        0xc => {
            // any bytes anywhere
            let (at, len) = (input.number(), usize::from(input.byte().unwrap_or(0)));
            let bytes = input.take(len);
            m.is_written(at, bytes);
        }
        0xd => {
            // now and then a message that is not behind all that was written
            let written = m.taken.wrapping_add(u32::from(input.byte().unwrap_or(0) >= 0xfc));
            m.comes(&Header { kind: MessageKind::Answer, written, ..header }.to_bytes());
        }
        // the next slots, as a peer should, and seldom with too many credits or slots that were not written
        _ => {
            for _ in 0..=input.byte().unwrap_or(0) % 4 {
                let odd = input.byte().unwrap_or(0);
                let most = (m.shape.messages() - m.room + usize::from(odd >= 0xfc)) as u16;
                let bytes = 1 + input.number() % (SLOT_BYTES - SLOT_HEADER_BYTES);
                let header = SlotHeader {
                    number: m.taken.wrapping_add(1),
                    bytes: bytes as u16,
                    credits: most.min(u16::from(odd) % 4),
                    given_back: match odd {
                        0xfb => m.far_written.wrapping_add(1),
                        0x80.. => m.far_written,
                        _ => m.far_given_back,
                    },
                    behind: m.counted.wrapping_add(u32::from(odd == 0xfa)),
                };
                let mut slot = vec![odd; SLOT_HEADER_BYTES + bytes];
                header.write(&mut slot);
                let at = (m.taken % SLOTS) as usize * SLOT_BYTES;
                // in two parts, the last first
                let cut = usize::from(odd) % slot.len();
                m.is_written(at + cut, &slot[cut..]);
                m.is_written(at, &slot[..cut]);
            }
        }
    }
}

/// A lane, and what its user and its peer do: whatever the peer sends, what is read is what came, no message is sent for which
/// the peer has no receive, and a broken rule ends the lane.
pub fn lane(bytes: &[u8]) -> Reached {
    let mut input = Input(bytes);
    let first = input.byte().unwrap_or(0);
    let shape = if first & 1 == 0 { &Shape::STREAM } else { &Shape::DATAGRAMS };
    let mut m = Model::new(shape, first & 3 == 2);
    while let Some(what) = input.byte() {
        match what % 8 {
            2 | 7 if what >= 0x80 && has_rings(shape) => ring_step(&mut m, what, &mut input),
            3 if what >= 0xe0 => {
                let len = usize::from(input.byte().unwrap_or(0));
                let message = input.take(len);
                m.comes(message);
            }
            // about alternate paths: well-formed, or nearly
            2 if what & 0x18 == 0x18 => {
                let header = Header {
                    kind: MessageKind::Alternate,
                    bytes: agreement::BYTES as u32,
                    written: m.taken,
                    given_back: m.far_given_back,
                    ..Header::default()
                };
                m.comes(&[&header.to_bytes()[..], &message(&mut input)].concat());
            }
            1 if what & 0x38 == 0x38 => {
                if let Some(said) = Message::read(&message(&mut input)).filter(|_| shape == &Shape::STREAM) {
                    m.lane.send_about_alternates(said);
                    m.reached.about += 1;
                }
            }
            // a lane that gets no more recalls what this one has, and the peer gives back, or more than it has
            4 if what >= 0xc0 && m.pool.is_some() => {
                m.lane.recall();
                m.look();
                if what & 0x10 == 0 {
                    let most = m.allowed.max(1) as usize - 1;
                    let most = most.min(m.limit - shape.start()) + usize::from(what >= 0xf8);
                    let header = Header {
                        kind: MessageKind::GivenBack,
                        bytes: GIVEN_BACK_BYTES as u32,
                        ..Header::default()
                    };
                    m.comes(&[&header.to_bytes()[..], &(most as u16).to_le_bytes()].concat());
                }
            }
            2 if what & 0x38 == 0x20 => {
                m.comes(
                    &Header {
                        kind: MessageKind::Recall,
                        written: m.taken,
                        given_back: m.far_given_back,
                        ..Header::default()
                    }
                    .to_bytes(),
                );
            }
            // as a peer should, and seldom with too many credits
            0..=3 => {
                let most = shape.messages() - m.room + usize::from(what >= 0xf0);
                let credits = (usize::from(input.byte().unwrap_or(0)) % 4).min(most) as u16;
                let answers = what & 0x30 == 0x30;
                let most = shape.message_bytes() - HEADER_BYTES;
                let len = match input.number() {
                    _ if answers => 0,
                    n if n % 3 == 0 => most,
                    n => n % (most + 1),
                };
                let kind = if answers { MessageKind::Answer } else { MessageKind::Data };
                let (bytes, written, given_back) = (len as u32, m.taken, m.far_given_back);
                let header = Header { credits, bytes, kind, written, given_back };
                if what >= 0xf0 || m.may_come(&header) {
                    let payload = vec![what; len];
                    m.comes(&[&header.to_bytes()[..], &payload].concat());
                } else {
                    m.read(20_000);
                }
            }
            4 => {
                let room = input.number() % 20_000;
                m.read(room);
            }
            5 => {
                // now and then more than the peer has room for
                let payload = vec![7; input.number() % 20_000 * if what >= 0xa0 { 8 } else { 1 }];
                // SAFETY: memory of this call.
                unsafe { m.lane.write(&[IoVec::from_ref(&payload)]) };
            }
            6 if shape == &Shape::DATAGRAMS => {
                let most = if what & 0x20 == 0 { 200 } else { shape.message_bytes() - HEADER_BYTES };
                let payload = vec![9; 1 + input.number() % most];
                if what & 0x10 == 0 {
                    m.lane.answer();
                } else {
                    (0..=what >> 6).for_each(|_| _ = m.lane.send_datagram(&payload));
                }
            }
            _ => {
                let over = if what >= 0xa0 { m.under_way.len() } else { 1.min(m.under_way.len()) };
                for number in m.under_way.drain(..over) {
                    let wr_id = u64::from(LANE) << 32 | u64::from(number);
                    m.lane.complete(&ibv_wc { wr_id, ..ibv_wc::default() }, |_| unreachable!());
                }
            }
        }
        m.look();
        if m.ended && m.unread.is_empty() {
            assert!(m.lane.over().is_some(), "a broken rule ends the lane");
        }
    }
    m.reached
}

/// A message about alternate paths, most of them well-formed and about a rail that exists.
fn message(input: &mut Input<'_>) -> [u8; agreement::BYTES] {
    let mut b = [0; agreement::BYTES];
    let taken = input.take(12);
    b[..taken.len()].copy_from_slice(taken);
    b[0] = if b[0] < 0xe0 { 1 + b[0] % 4 } else { b[0] };
    b[1] = u8::from(b[1] == 255);
    b[5..8].fill(0);
    let known = b[11] % 4 > 0;
    b[8..12].fill(0);
    if b[0] > 2 {
        b[2..4].fill(0);
    }
    if b[0] == 1 && known {
        let rail = [1, 1, 0, 2][usize::from(b[4] % 4)];
        b[24..28].copy_from_slice(&[10, rail, 0, 2]);
        b[42] = 70 + rail;
    }
    b
}

/// What happened to the alternate paths of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paths {
    /// Answers of this side.
    pub said: u32,
    /// Times that it was armed.
    pub armed: u32,
    /// Times that its adapter migrated.
    pub migrated: u32,
}

/// A peer that says anything about alternate paths, over the mock of the verbs calls: this side's queue pair is only ever led over the ports of
/// its own adapter, an order is answered once at most, and what is reported has happened.
pub fn alternates(bytes: &[u8]) -> Paths {
    let mut input = Input(bytes);
    let ours = input.byte().unwrap_or(0) & 1 == 0;
    mock::manners(false, bytes.len() % 3 == 0);
    mock::events();
    let [near, far] = mock::connected();
    // SAFETY: just made.
    let number = unsafe { (*near).qp_num };
    let lane = if ours { 4 } else { 5 };
    let mut side = Alternates::new(mock::ports(2));
    // SAFETY: they live until the end of this function.
    unsafe { side.made(lane, RailId(0), near) };
    let (mut reached, mut order, mut open) = (Paths::default(), 0, None);
    let mut now = std::time::Instant::now();
    while let Some(what) = input.byte() {
        let effects = match what % 8 {
            0..=3 => {
                let mut b = message(&mut input);
                if what & 0x40 != 0 {
                    // about the last order
                    b[4] = order as u8;
                }
                Message::read(&b).map_or(Vec::new(), |message| side.receive(lane, message))
            }
            4 if ours => {
                order += 1;
                open = (what & 0x30 != 0).then_some(order);
                let to = Locator::of_ip(Kind::ROCE, [10, what >> 6, 0, 1].into(), 70);
                side.load(lane, order, open.map(|_| Alternate { rail: RailId(what >> 6), to }))
            }
            5 => {
                side.migrate(lane);
                Vec::new()
            }
            6 if what & 0x10 == 0 => {
                // the other end is loaded as well, whatever it sent
                mock::rearm(far);
                mock::traffic(number);
                Vec::new()
            }
            6 => {
                if what & 0x20 == 0 {
                    mock::fault(number)
                } else {
                    mock::fails_to_migrate(number)
                }
                Vec::new()
            }
            _ => {
                now += std::time::Duration::from_secs(2);
                let events = side.events(Some(mock::events()), now);
                let asked = side.ask(now);
                events.into_iter().chain(asked).map(|(_, effect)| effect).collect()
            }
        };
        let taken_back = effects.iter().any(|effect| matches!(effect, Effect::Unloaded(_)));
        for effect in effects {
            match effect {
                Effect::Send(said) => {
                    assert_eq!(Message::read(&said.to_bytes()), Some(said));
                    reached.said += 1;
                }
                Effect::Armed(n, rail) => {
                    let state = mock::paths(number).2;
                    assert!(taken_back || state == IBV_MIG_ARMED, "it is reported when it is so");
                    assert!(rail.0 < 2 && (!ours || open == Some(n)), "{rail:?} for the order that is open");
                    reached.armed += 1;
                }
                Effect::Unloaded(n) => assert!(!ours || n == order, "of no earlier order"),
                Effect::Migrated(rail) => {
                    assert_eq!(mock::paths(number).0.0, rail.0 + 1, "the port that it goes over");
                    reached.migrated += 1;
                }
            }
        }
        let (primary, alternate, _) = mock::paths(number);
        assert!([primary, alternate].iter().all(|way| way.0 <= 2), "a port of another adapter");
    }
    side.forget(lane);
    for qp in [near, far] {
        // SAFETY: made by the mock, and forgotten.
        unsafe { mock::destroy(qp) };
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of so many bytes.
    fn inputs(count: usize, bytes: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut byte = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 24) as u8
        };
        (0..count).map(move |_| (0..bytes).map(|_| byte()).collect())
    }

    #[test]
    fn whatever_peers_send_a_connection_is_theirs_alone_and_made_once() {
        let mut sum = Exchanged::default();
        for bytes in inputs(4000, 400) {
            let reached = exchange(&bytes);
            for (sum, n) in sum.seen.iter_mut().zip(reached.seen) {
                *sum += n;
            }
            for (sum, n) in sum.reported.iter_mut().zip(reached.reported) {
                *sum += n;
            }
        }
        let least = sum.seen.into_iter().chain(sum.reported).min();
        assert!(least > Some(100), "the inputs reach little: {sum:?}");
    }

    #[test]
    fn whatever_a_peer_sends_credits_hold_and_bytes_are_right() {
        let (mut sum, mut paths) = (Reached::default(), Paths::default());
        for bytes in inputs(500, 2000) {
            let p = alternates(&bytes);
            paths.said += p.said;
            paths.armed += p.armed;
            paths.migrated += p.migrated;
            headers(&bytes);
            let r = lane(&bytes);
            sum.messages += r.messages;
            sum.sent += r.sent;
            sum.read += r.read;
            sum.refused += r.refused;
            sum.taken += r.taken;
            sum.written += r.written;
            sum.woken += r.woken;
            sum.about += r.about;
            sum.grown += r.grown;
            sum.given += r.given;
            sum.taken_back += r.taken_back;
        }
        let least =
            [sum.messages, sum.sent, sum.read, sum.refused, sum.taken, sum.written, sum.about, sum.grown]
                .into_iter()
                .min();
        let seldom = sum.woken.min(sum.given).min(sum.taken_back);
        assert!(least > Some(200) && seldom > 10, "the inputs reach little: {sum:?}");
        let least = [paths.said, paths.armed, paths.migrated].into_iter().min();
        assert!(least > Some(100), "the inputs reach little: {paths:?}");
    }
}
