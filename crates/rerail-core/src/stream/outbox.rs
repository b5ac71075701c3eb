//! The frames that wait to be written on a stream, or are being written.
//!
//! Owns: them, their numbers, whether the kernel takes more, and which writes of an adapter are under way. Invariants:
//! frames are numbered in the order in which they are written, without a gap between those that are written; a window
//! offers whole frames one after the other, and the writes of an adapter go ahead of the bytes that report them.

use super::frame::{Payload, TxFrame};
use crate::message::body::Body;
use crate::message::item::Item;
use crate::rest::give_back;
use crate::types::{Place, Time, Window, WorkId};
use rerail_wire::{Coverage, FrameHeader};
use std::collections::VecDeque;

/// Bytes of frames that are cut for one write.
const WRITE_BATCH_BYTES: usize = 1024 * 1024;
/// The same in frames.
const FRAMES_CUT_MAX: usize = 24;
/// Pieces of a window that a frame needs: header, payload, trailer, and one more of a payload in pieces.
const FRAME_PIECES: usize = 4;

/// See above.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    frames: VecDeque<TxFrame>,
    number_next: u64,
    /// The kernel took less than it was offered, and has not reported room since.
    full: bool,
    /// Bytes that the last window offered.
    offered: usize,
    /// When the kernel last took bytes.
    written_at: Time,
    /// Writes of an adapter that are under way.
    lent: u16,
}

impl Outbox {
    pub fn new(now: Time) -> Self {
        Self { frames: VecDeque::new(), number_next: 0, full: false, offered: 0, written_at: now, lent: 0 }
    }

    /// Appends a frame.
    pub fn push(
        &mut self,
        h: &FrameHeader,
        coverage: Coverage,
        item: Option<Item>,
        payload: Payload,
        hedged: bool,
    ) {
        let number = self.number_next;
        self.number_next += 1;
        self.frames.push_back(TxFrame::new(number, h, coverage, item, payload, hedged));
    }

    /// Whether there ever was a frame of this number.
    #[inline]
    pub fn was_numbered(&self, number: u64) -> bool {
        number < self.number_next
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Bytes that are not written, with those that an adapter is to write.
    pub fn bytes(&self) -> usize {
        self.frames.iter().map(TxFrame::bytes_left).sum()
    }

    /// Whether there is enough for one write.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.bytes() >= WRITE_BATCH_BYTES || self.frames.len() >= FRAMES_CUT_MAX
    }

    pub fn carries(&self, item: &Item) -> bool {
        self.frames.iter().any(|f| f.item().as_ref() == Some(item))
    }

    // ---- writing -----------------------------------------------------------------------------------------------

    /// Takes note of messages whose memory was given back (`is_gone`): of frames that were not begun only those stay that something `needs`.
    #[inline]
    pub fn settle(&mut self, needs: impl Fn(&Item) -> bool, is_gone: impl Fn(u64) -> bool) {
        self.frames.retain_mut(|f| f.settle(&needs, &is_gone));
    }

    /// Offers the next bytes; false: there are none. `body` finds the bytes of a message, and `lend` names the work of an adapter that reads it.
    #[inline]
    pub fn offer<'a>(
        &mut self,
        window: &mut Window,
        body: impl Fn(u64) -> &'a Body,
        mut lend: impl FnMut(u64) -> WorkId,
    ) -> bool {
        for f in &mut self.frames {
            if window.room() < FRAME_PIECES || window.bytes() >= WRITE_BATCH_BYTES {
                break;
            }
            if let Some(seq) = f.to_be_posted() {
                f.post(lend(seq), body(seq), window);
                self.lent += 1;
            }
            if !f.offer(window, &body) {
                break;
            }
        }
        self.offered = window.bytes();
        window.bytes() > 0
    }

    /// The kernel took `bytes` of what was offered. The frames of which it took the last go to `ended`.
    #[inline]
    pub fn wrote(&mut self, bytes: usize, now: Time, mut ended: impl FnMut(TxFrame)) {
        let mut left = bytes;
        while left > 0 {
            let Some(f) = self.frames.front_mut() else { break };
            if !f.write(&mut left) {
                break;
            }
            ended(self.frames.pop_front().expect("there is a front"));
        }
        self.full = bytes < self.offered;
        if bytes > 0 {
            self.written_at = now;
        }
    }

    /// The kernel took of what goes before any frame, `all` or not.
    pub fn wrote_preamble(&mut self, all: bool) {
        self.full = !all;
    }

    /// Whether the kernel takes nothing for the moment.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The kernel takes bytes again.
    pub fn becomes_writable(&mut self) {
        self.full = false;
    }

    #[inline]
    pub fn written_at(&self) -> Time {
        self.written_at
    }

    /// It begins to carry frames.
    pub fn begins(&mut self, now: Time) {
        self.written_at = now;
    }

    // ---- writes of an adapter ----------------------------------------------------------------------------------

    /// Writes of an adapter that are under way.
    pub fn lent(&self) -> u16 {
        self.lent
    }

    /// The same, and those that are still to be posted to it.
    pub fn places(&self) -> usize {
        usize::from(self.lent) + self.frames.iter().filter(|f| f.to_be_posted().is_some()).count()
    }

    /// One of them is over.
    pub fn place_ended(&mut self) {
        self.lent -= 1;
    }

    /// Takes out the frames that would report these works, which are not to be done, and those whose works were not posted yet.
    pub fn take_unplaced(&mut self, works: &[Place], items: &mut Vec<(Item, bool)>) {
        self.frames.retain(|f| {
            let undone = f.work().is_some_and(|work| works.iter().any(|place| place.work == work));
            match f.item().filter(|_| undone || f.to_be_posted().is_some()) {
                Some(item) => {
                    items.push((item, f.is_hedged()));
                    false
                }
                None => true,
            }
        });
    }

    // ---- other ways --------------------------------------------------------------------------------------------

    /// Frames that were not begun go elsewhere (`moved`, and whether they were copies already); of the one that was, a copy does if the
    /// budget allows it.
    pub fn hedge(&mut self, budget: &mut u64, moved: &mut Vec<(Item, bool)>, copies: &mut Vec<Item>) {
        self.frames.retain_mut(|f| match f.item() {
            Some(item) if !f.is_begun() => {
                moved.push((item, f.is_hedged()));
                false
            }
            _ => {
                f.hedge(budget, copies);
                true
            }
        });
    }

    /// Takes all frames out.
    pub fn take_all(&mut self) -> Vec<TxFrame> {
        self.frames.drain(..).collect()
    }

    /// Nothing is written any more.
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    pub fn rest(&mut self) {
        give_back(&mut self.frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RemoteKey;
    use rerail_wire::FrameType;
    use rerail_wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES};

    const NOW: Time = Time::ORIGIN;
    const EMPTY_FRAME: usize = STREAM_HEADER_BYTES + TRAILER_BYTES;

    fn push(o: &mut Outbox, seq: u64, payload: Payload) {
        let h = FrameHeader::new(FrameType::Config);
        o.push(&h, Coverage::Full, Some(Item::Cts { seq }), payload, false);
    }

    /// An outbox with so many frames without payload.
    fn outbox(frames: u64) -> Outbox {
        let mut o = Outbox::new(NOW);
        (0..frames).for_each(|seq| push(&mut o, seq, Payload::Owned(Vec::new())));
        o
    }

    fn offer(o: &mut Outbox, body: &Body) -> Window {
        let mut window = Window::default();
        o.offer(&mut window, |_| body, |seq| WorkId(100 + seq));
        window
    }

    #[test]
    fn the_stream_is_full_when_the_kernel_takes_less_than_it_was_offered() {
        let mut o = outbox(3);
        let later = Time::from_ns(9);
        assert_eq!(offer(&mut o, &Body::Withdrawn).bytes(), 3 * EMPTY_FRAME);
        let mut ended = Vec::new();
        o.wrote(EMPTY_FRAME + 1, later, |f| ended.push(f.item()));
        assert_eq!(
            (&ended[..], o.is_full(), o.written_at()),
            (&[Some(Item::Cts { seq: 0 })][..], true, later)
        );
        assert_eq!((o.len(), o.bytes()), (2, 2 * EMPTY_FRAME - 1));
        o.becomes_writable();
        assert_eq!(offer(&mut o, &Body::Withdrawn).bytes(), o.bytes());
        o.wrote(o.bytes(), NOW, |f| ended.push(f.item()));
        assert!(ended.len() == 3 && o.is_empty() && !o.is_full());
        o.wrote(0, later, |_| unreachable!());
        assert_eq!(o.written_at(), NOW, "nothing was taken");
        assert!(o.was_numbered(2) && !o.was_numbered(3));
    }

    #[test]
    fn an_adapter_is_asked_once_for_each_write_before_its_frame_is_offered() {
        let (mut o, body) = (outbox(0), Body::Retained(vec![0; 8]));
        let key = RemoteKey(5);
        for seq in 0..2 {
            push(&mut o, seq, Payload::Placed { seq, at: 0, len: 8, key, work: None });
        }
        assert_eq!((o.lent(), o.places()), (0, 2));
        let asked = |w: Window| w.places().iter().map(|p| p.work.0).collect::<Vec<_>>();
        assert_eq!(asked(offer(&mut o, &body)), [100, 101]);
        assert_eq!((asked(offer(&mut o, &body)).len(), o.lent(), o.places()), (0, 2, 2));
        o.place_ended();
        assert_eq!(o.places(), 1);
    }

    #[test]
    fn what_cannot_be_read_goes_otherwise_and_so_does_what_was_to_be_posted_behind_it() {
        let (mut o, body) = (outbox(0), Body::Retained(vec![0; 8]));
        let place = |seq| Payload::Placed { seq, at: 0, len: 8, key: RemoteKey(5), work: None };
        (0..2).for_each(|seq| push(&mut o, seq, place(seq)));
        let window = offer(&mut o, &body);
        push(&mut o, 2, Payload::Owned(Vec::new()));
        push(&mut o, 3, place(3));
        let mut items = Vec::new();
        o.take_unplaced(&window.places()[1..], &mut items);
        assert_eq!(items, [1, 3].map(|seq| (Item::Cts { seq }, false)));
        assert_eq!((o.len(), o.places()), (2, 2), "the first is under way, and neither of the others waits");
    }

    #[test]
    fn frames_that_were_not_begun_move_and_the_begun_one_is_copied_once() {
        let mut o = outbox(3);
        offer(&mut o, &Body::Withdrawn);
        o.wrote(1, NOW, |_| unreachable!());
        let (mut moved, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            o.hedge(&mut 0, &mut moved, &mut copies);
        }
        assert_eq!(moved, [(Item::Cts { seq: 1 }, false), (Item::Cts { seq: 2 }, false)]);
        assert_eq!(copies, [Item::Cts { seq: 0 }]);
        assert_eq!((o.len(), o.take_all().len(), o.carries(&Item::Cts { seq: 0 })), (1, 1, false));
    }

    #[test]
    fn the_copy_of_a_begun_frame_costs_its_bytes() {
        let h = FrameHeader { len: 8, ..FrameHeader::new(FrameType::Config) };
        let hedge = |mut budget| {
            let (mut o, mut copies) = (Outbox::new(NOW), Vec::new());
            o.push(&h, Coverage::Full, Some(Item::Cts { seq: 0 }), Payload::Owned(vec![0; 8]), false);
            offer(&mut o, &Body::Withdrawn);
            o.wrote(1, NOW, |_| unreachable!());
            o.hedge(&mut budget, &mut Vec::new(), &mut copies);
            (copies.len(), budget)
        };
        assert_eq!([7, 8, 20].map(hedge), [(0, 7), (1, 0), (1, 12)]);
    }

    #[test]
    fn a_write_is_filled_by_bytes_or_by_frames() {
        assert!(outbox(FRAMES_CUT_MAX as u64).is_filled() && !outbox(FRAMES_CUT_MAX as u64 - 1).is_filled());
        let mut o = outbox(1);
        let h = FrameHeader { len: WRITE_BATCH_BYTES as u32, ..FrameHeader::new(FrameType::Frag) };
        o.push(&h, Coverage::Full, None, Payload::Message { seq: 1, at: 0 }, false);
        assert!(o.is_filled());
        o.settle(|_| false, |_| true);
        assert_eq!(o.len(), 2, "a frame without an item stays, and so does one that has its payload itself");
    }
}
