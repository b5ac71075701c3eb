//! The messages of one peer that are known and not done.
//!
//! Owns: the next number of the sequence, the messages, how much payload they hold, and how many are being received. Invariants: a number
//! below [`Incoming::next`] was executed, a repetition is only acknowledged (hazard H11); the sums of what is held are exact
//! ([`Incoming::check`], invariant 7).

use crate::message::envelope::{Envelope, Role, counted};
use crate::message::receiving::{Lease, Receiving};
use crate::message::rx::{RxMsg, RxState};
use crate::message::target::{Landing, Target};
use crate::rest::give_back_map;
use crate::types::{EpId, StreamId};
use rustc_hash::FxHashMap;

/// Unacknowledged rejections without a match that are kept of one peer. A goodbye lists them, and has to fit any datagram.
const UNMATCHED_MAX: usize = 32;

#[derive(Clone, Default)]
pub(crate) struct Incoming {
    next: u64,
    messages: FxHashMap<u64, RxMsg>,
    /// Payload bytes that are held and count against the bound. Orders do not: the sender bounds them.
    held_bytes: usize,
    /// Orders that wait for their turn, in bytes with their records.
    waiting: usize,
    /// Messages being received under a grant.
    receiving: usize,
    /// Messages that were rejected without a match, as long as the sender may not know it.
    unmatched: Vec<u64>,
    /// There were more than [`UNMATCHED_MAX`] at a time: the list is not complete.
    unmatched_overflowed: bool,
}

/// What a message that was received under a grant was for.
pub(crate) enum Ended {
    /// It was an order, which keeps its place in the sequence until its turn.
    Order,
    /// It goes, or would have gone, here.
    Message(Envelope, Target),
}

/// What the withdrawal of a message by its sender meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// Its envelope is not here yet.
    Unknown,
    /// A receive waits for it, which fails.
    Awaited,
    /// Nothing waits for it.
    Noted,
}

impl Incoming {
    /// Number of the next message that is executed.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether a number was executed.
    #[inline]
    pub fn is_past(&self, seq: u64) -> bool {
        seq < self.next
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    #[inline]
    pub fn contains(&self, seq: u64) -> bool {
        self.messages.contains_key(&seq)
    }

    #[inline]
    pub fn get(&self, seq: u64) -> Option<&RxMsg> {
        self.messages.get(&seq)
    }

    /// What arrives of a message.
    #[inline]
    pub fn receiving(&self, seq: u64) -> Option<&Receiving> {
        self.messages.get(&seq)?.receiving()
    }

    /// The same, to note what arrives.
    #[inline]
    pub fn receiving_mut(&mut self, seq: u64) -> Option<&mut Receiving> {
        self.messages.get_mut(&seq)?.receiving_mut()
    }

    /// All messages, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &RxMsg)> {
        self.messages.iter().map(|(seq, m)| (*seq, m))
    }

    /// Payload bytes that are held and count against the bound.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Bytes of orders that wait for their turn, with their records.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether so much payload may be held besides what is.
    #[inline]
    pub fn has_room(&self, bytes: usize, held_bytes_max: usize) -> bool {
        let counts = counted(bytes);
        counts == 0 || self.held_bytes + counts <= held_bytes_max
    }

    /// Messages being received under a grant.
    #[inline]
    pub fn receiving_count(&self) -> usize {
        self.receiving
    }

    /// Messages whose turn has come and whose bytes are not here.
    pub fn undelivered(&self) -> impl Iterator<Item = u64> + '_ {
        let remote = |m: &RxMsg| matches!(m.state(), RxState::Remote | RxState::Receiving(_));
        self.iter().filter(move |(seq, m)| *seq < self.next && remote(m)).map(|(seq, _)| seq)
    }

    /// Whether the sender still needs a grant: until the first byte of the message shows that it arrived, and when it
    /// requests one for a message that is here.
    pub fn needs_grant(&self, seq: u64) -> bool {
        match self.messages.get(&seq) {
            Some(m) => m.is_whole() || m.receiving().is_some_and(Receiving::is_untouched),
            None => seq < self.next,
        }
    }

    /// Whether the sender still needs to know that its payload was refused.
    pub fn needs_refusal(&self, seq: u64) -> bool {
        self.messages.get(&seq).is_some_and(RxMsg::needs_refusal)
    }

    // ---- a message's life --------------------------------------------------------------------------------------

    /// A message is known from now on.
    #[inline]
    pub fn insert(&mut self, seq: u64, envelope: Envelope, state: RxState) {
        if let RxState::Whole(b) = &state {
            self.held_bytes += cost(&envelope, b);
        }
        let m = RxMsg::new(envelope, state);
        self.waiting += m.waiting_cost();
        self.messages.insert(seq, m);
    }

    /// A message is known whose payload was refused over the bound.
    pub fn refuse(&mut self, seq: u64, envelope: Envelope) {
        self.messages.insert(seq, RxMsg::refused(envelope));
    }

    /// The next message of the sequence is executed.
    #[inline]
    pub fn pass(&mut self) {
        self.next += 1;
    }

    /// The next message of the sequence, if it is known.
    #[inline]
    pub fn head(&self) -> Option<(u64, &RxMsg)> {
        self.messages.get(&self.next).map(|m| (self.next, m))
    }

    /// A message is received from now on, up to `granted` bytes.
    pub fn grant(&mut self, seq: u64, target: Target, granted: u64) {
        let m = self.messages.get_mut(&seq).expect("a granted message is known");
        self.waiting -= m.waiting_cost();
        m.grant(target, granted);
        self.waiting += m.waiting_cost();
        self.receiving += 1;
    }

    /// Forgets a message.
    #[inline]
    pub fn remove(&mut self, seq: u64) -> Option<RxMsg> {
        let m = self.messages.remove(&seq)?;
        self.waiting -= m.waiting_cost();
        match m.state() {
            RxState::Whole(b) => self.held_bytes -= cost(m.envelope(), b),
            RxState::Receiving(_) => self.receiving -= 1,
            RxState::Remote | RxState::Withdrawn | RxState::Local(_) => {}
        }
        Some(m)
    }

    fn end(&mut self, seq: u64) -> (Envelope, Target) {
        let m = self.remove(seq).expect("a message that ends is known");
        let (envelope, r) = m.into_receiving().expect("only granted messages end");
        (envelope, r.into_target())
    }

    /// Every byte of a granted message is there. An order keeps its place, with its bytes.
    pub fn finish(&mut self, seq: u64) -> Ended {
        let (envelope, target) = self.end(seq);
        match target.landing {
            Landing::Assembly(bytes) => {
                self.insert(seq, envelope, RxState::Whole(bytes.into_vec()));
                Ended::Order
            }
            _ => Ended::Message(envelope, target),
        }
    }

    /// The rest of a granted message will not come. An order keeps its place, and is passed over when its turn comes.
    pub fn fail(&mut self, seq: u64) -> Ended {
        let (envelope, target) = self.end(seq);
        if envelope.role == Role::Order && !matches!(target.landing, Landing::Receive) {
            self.insert(seq, envelope, RxState::Withdrawn);
            return Ended::Order;
        }
        Ended::Message(envelope, target)
    }

    /// The sender takes an announced message back.
    pub fn withdraw(&mut self, seq: u64) -> Withdrawn {
        match self.messages.get_mut(&seq) {
            None if seq < self.next => Withdrawn::Noted,
            None => Withdrawn::Unknown,
            Some(m) if m.receiving().is_some() => Withdrawn::Awaited,
            Some(m) => {
                m.withdraw();
                Withdrawn::Noted
            }
        }
    }

    /// The memory of messages that an endpoint has sent to this process itself is taken back; of what was copied the copy stays. How many
    /// there were.
    pub fn withdraw_local(&mut self, ep: EpId) -> u64 {
        let mut withdrawn = 0;
        for m in self.messages.values_mut() {
            if m.withdraw_local(ep) {
                self.held_bytes += m.payload().map_or(0, |b| cost(m.envelope(), b));
                withdrawn += 1;
            }
        }
        withdrawn
    }

    /// A message is rejected, and no receive has matched it.
    pub fn reject_unmatched(&mut self, seq: u64) {
        if self.unmatched.len() < UNMATCHED_MAX {
            self.unmatched.push(seq);
        } else {
            self.unmatched_overflowed = true;
        }
    }

    /// The sender knows that a message was rejected.
    pub fn rejection_arrived(&mut self, seq: u64) {
        self.unmatched.retain(|s| *s != seq);
    }

    /// Messages that were rejected without a match, as long as the sender may not know it; `None`: the list is not complete.
    pub fn unmatched(&self) -> Option<&[u64]> {
        (!self.unmatched_overflowed).then_some(&self.unmatched)
    }

    /// Revokes the leases of a message, and returns them.
    pub fn revoke_leases(&mut self, seq: u64) -> Vec<Lease> {
        self.receiving_mut(seq).map_or_else(Vec::new, Receiving::revoke_all)
    }

    // ---- all messages ------------------------------------------------------------------------------------------

    /// A stream is no more: it has no lease.
    pub fn forget_stream(&mut self, stream: StreamId) {
        self.messages.values_mut().filter_map(RxMsg::receiving_mut).for_each(|r| r.forget_stream(stream));
    }

    /// The masks that were reported to the sender may be lost.
    pub fn tell_again(&mut self) {
        self.messages.values_mut().filter_map(RxMsg::receiving_mut).for_each(Receiving::tell_again);
    }

    /// Calls `tell(message, vfrag, mask)` for at most so many masks that were not reported to the sender.
    pub fn tell_masks(&mut self, mut most: usize, mut tell: impl FnMut(u64, u64, u64)) {
        for (&seq, m) in &mut self.messages {
            let Some(r) = m.receiving_mut() else { continue };
            while most > 0 {
                let Some((v, mask)) = r.next_untold() else { break };
                tell(seq, u64::from(v), mask);
                most -= 1;
            }
        }
    }

    /// Gives back memory that is kept for nothing.
    pub fn rest(&mut self) {
        give_back_map(&mut self.messages);
        self.unmatched.shrink_to_fit();
    }

    /// Checks the invariants; `exclusive`: with those of leases.
    pub fn check(&self, exclusive: bool) {
        let held: usize = self
            .messages
            .values()
            .map(|m| if let RxState::Whole(b) = m.state() { cost(m.envelope(), b) } else { 0 })
            .sum();
        assert_eq!(held, self.held_bytes, "held bytes are the sum of what waits");
        let waiting: usize = self.messages.values().map(RxMsg::waiting_cost).sum();
        assert_eq!(waiting, self.waiting, "what orders cost is the sum of those that wait");
        let receiving = || self.messages.values().filter_map(RxMsg::receiving);
        assert_eq!(self.receiving, receiving().count());
        receiving().for_each(|r| r.check(exclusive));
    }
}

/// What held payload counts against the bound.
fn cost(envelope: &Envelope, payload: &[u8]) -> usize {
    if envelope.role == Role::Order { 0 } else { counted(payload.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::body::Body;
    use crate::message::envelope::RECORD_BYTES;
    use crate::message::iov::Iov;
    use crate::message::rx::Local;
    use crate::types::{CompletionLevel, EndpointId, PeerId, Protocol, SendOp};

    fn envelope(role: Role, total: u64) -> Envelope {
        Envelope {
            src_ep: 0,
            dst_ep: 0,
            protocol: Protocol::Msg,
            role,
            tag: 0,
            data: None,
            total,
            granule: 1000,
        }
    }

    fn target(landing: Landing) -> Target {
        Target {
            ep: EpId(0),
            protocol: Protocol::Msg,
            context: 0,
            completion: true,
            iov: Iov::none(),
            cap: 5000,
            multi: None,
            landing,
        }
    }

    #[test]
    fn payload_is_held_until_its_message_is_taken() {
        let mut all = Incoming::default();
        all.insert(0, envelope(Role::Message, 5000), RxState::Whole(vec![0; 5000]));
        all.insert(1, envelope(Role::Message, 100), RxState::Whole(vec![0; 100]));
        all.insert(2, envelope(Role::Order, 6000), RxState::Whole(vec![0; 6000]));
        assert_eq!(all.held_bytes(), 5000, "neither envelopes nor orders count");
        assert!(all.has_room(2000, 7000) && !all.has_room(2001, 7000) && all.has_room(100, 0));
        all.check(true);
        assert!(all.remove(0).is_some_and(|m| m.is_whole()) && all.remove(0).is_none());
        assert_eq!((all.held_bytes(), all.len()), (0, 2));
        all.check(true);
    }

    #[test]
    fn messages_are_received_from_the_grant_to_the_last_byte() {
        let mut all = Incoming::default();
        all.insert(0, envelope(Role::Message, 5000), RxState::Remote);
        all.refuse(1, envelope(Role::Message, 5000));
        assert!(all.needs_refusal(1) && !all.needs_refusal(0));
        for seq in [0, 1] {
            all.grant(seq, target(Landing::Receive), 5000);
            assert!(all.needs_grant(seq) && !all.needs_refusal(seq));
        }
        assert_eq!(all.receiving_count(), 2);
        all.receiving_mut(0).unwrap().commit(0);
        assert!(!all.needs_grant(0), "the first byte shows that it arrived");
        assert!(matches!(all.finish(0), Ended::Message(..)) && matches!(all.fail(1), Ended::Message(..)));
        assert_eq!((all.receiving_count(), all.len()), (0, 0));
        all.check(true);
    }

    #[test]
    fn an_order_that_was_fetched_keeps_its_place() {
        let mut all = Incoming::default();
        for seq in [0, 1] {
            all.insert(seq, envelope(Role::Order, 3), RxState::Remote);
            all.grant(seq, target(Landing::Assembly(vec![1, 2, 3].into())), 3);
        }
        assert!(matches!(all.finish(0), Ended::Order) && matches!(all.fail(1), Ended::Order));
        assert!(matches!(all.get(0).unwrap().state(), RxState::Whole(b) if *b == [1, 2, 3]));
        assert!(matches!(all.get(1).unwrap().state(), RxState::Withdrawn));
        assert_eq!(
            all.waiting(),
            2 * RECORD_BYTES + 3,
            "what was fetched counts, what was withdrawn does not"
        );
        all.check(true);
        assert!(all.remove(0).is_some() && all.remove(1).is_some());
        assert_eq!(all.waiting(), 0);
    }

    #[test]
    fn what_is_withdrawn_stays_known_and_its_receive_is_named() {
        let mut all = Incoming::default();
        all.insert(0, envelope(Role::Message, 5000), RxState::Remote);
        all.insert(1, envelope(Role::Message, 5000), RxState::Remote);
        all.grant(1, target(Landing::Receive), 5000);
        let results = [0, 1, 2].map(|seq| all.withdraw(seq));
        assert_eq!(results, [Withdrawn::Noted, Withdrawn::Awaited, Withdrawn::Unknown]);
        assert_eq!(all.undelivered().count(), 0, "their turn has not come");
        all.pass();
        all.pass();
        assert_eq!(all.undelivered().collect::<Vec<_>>(), [1], "nothing more comes of the other");
        let local = |ep, body| {
            let level = CompletionLevel::Matched;
            let op = SendOp {
                ep: EpId(ep),
                dest: EndpointId { peer: PeerId(0), ep },
                protocol: Protocol::Msg,
                tag: 0,
                data: None,
                iov: &[],
                context: 0,
                completion: true,
                inject: false,
                level,
            };
            RxState::Local(Local::new(&op, level, body))
        };
        let user = || Body::User(Iov::none());
        all.insert(5, envelope(Role::Message, 1), local(1, user()));
        all.insert(6, envelope(Role::Message, 1), local(2, user()));
        all.insert(7, envelope(Role::Message, 2000), local(1, Body::Retained(vec![7; 2000])));
        assert_eq!((all.withdraw_local(EpId(1)), all.withdraw_local(EpId(1))), (2, 0));
        assert!(all.get(7).is_some_and(RxMsg::is_whole), "the copy stays");
        assert_eq!((all.withdraw(7), all.held_bytes()), (Withdrawn::Noted, 2000));
        assert!(all.get(7).is_some_and(RxMsg::is_whole), "what is here is not withdrawn");
        all.check(true);
    }
}
