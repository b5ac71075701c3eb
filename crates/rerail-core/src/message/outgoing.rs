//! The messages that were sent to one peer and are not acknowledged in full.
//!
//! Owns: their numbers, the messages, and how much memory they keep. Message numbers are 64 bits, one per message, so
//! they cannot wrap in the life of a process. Invariant 7: the sums of what is kept are exact ([`Outgoing::check`]),
//! and bounded by the code that posts, which checks before it does.

use crate::message::body::Body;
use crate::message::envelope::Role;
use crate::message::fragments::{Cut, Fragments};
use crate::message::kept::Kept;
use crate::message::tx::{Draft, TxMsg, Withdrawal};
use crate::rest::give_back_map;
use crate::types::{PathId, RemoteKey};
use rustc_hash::FxHashMap;

#[derive(Clone, Default)]
pub(crate) struct Outgoing {
    /// Number of the next message.
    next: u64,
    messages: FxHashMap<u64, TxMsg>,
    /// What all of them keep together.
    kept: Kept,
    /// Finished messages whose half-written frames go on reading memory: the bug of hazard H1, planted.
    #[cfg(feature = "planted-bugs")]
    zombies: FxHashMap<u64, TxMsg>,
}

impl Outgoing {
    /// Number of the next message.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    #[inline]
    pub fn get(&self, seq: u64) -> Option<&TxMsg> {
        self.messages.get(&seq)
    }

    /// All messages, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &TxMsg)> {
        self.messages.iter().map(|(seq, m)| (*seq, m))
    }

    /// Bytes of retained payload, and of retained envelopes.
    #[inline]
    pub fn retained(&self) -> (usize, usize) {
        self.kept.retained()
    }

    /// Bytes of what serves the peer, with records, and of those the copies.
    #[inline]
    pub fn serving(&self) -> (usize, usize) {
        self.kept.serving()
    }

    /// Whether a copy of a message of `total` bytes may be kept besides those that are.
    #[inline]
    pub fn has_room(&self, total: usize, retained_bytes_max: usize) -> bool {
        self.kept.has_room(total, retained_bytes_max)
    }

    /// Whether an order with `payload` bytes may be kept besides those that are.
    pub fn has_room_for_order(&self, payload: usize, order_bytes_max: usize) -> bool {
        self.kept.has_room_for_order(payload, order_bytes_max)
    }

    // ---- a message's life --------------------------------------------------------------------------------------

    /// Gives a message the next number.
    #[inline]
    pub fn post(&mut self, d: Draft) -> u64 {
        let seq = self.next;
        self.next += 1;
        self.kept += d.kept();
        // made where it goes: what is made, looked at and handed on is copied once more
        self.messages.insert(seq, TxMsg::new(d));
        seq
    }

    /// The number that an own message would have, which takes no place here: those to this process itself do not travel.
    pub fn skip(&mut self) -> u64 {
        let seq = self.next;
        self.next += 1;
        seq
    }

    /// An eager message is announced instead. False: it was not eager, and stays what it is.
    pub fn announce(&mut self, seq: u64) -> bool {
        self.messages.get_mut(&seq).is_some_and(TxMsg::announce)
    }

    /// The peer takes the first `bytes` of a message. How many that are; `None`: there is no such message, it was withdrawn, or it is granted
    /// already. `again`: planted, a grant that comes again grants again.
    pub fn grant(&mut self, seq: u64, bytes: u64, again: bool) -> Option<u64> {
        self.messages.get_mut(&seq)?.grant(bytes, again)
    }

    fn fragments_mut(&mut self, seq: u64) -> Option<&mut Fragments> {
        self.messages.get_mut(&seq)?.fragments_mut()
    }

    /// Cuts the next fragment of a granted message for the path in place `i`.
    pub fn cut(&mut self, seq: u64, i: usize) -> Cut {
        self.fragments_mut(seq).expect("only granted messages are cut").cut(i)
    }

    /// The receiver's memory for a message may be written on a path.
    pub fn set_key(&mut self, seq: u64, path: PathId, key: RemoteKey) {
        if let Some(m) = self.messages.get_mut(&seq) {
            m.set_key(path, key);
        }
    }

    /// The fragment that byte `at` is in goes by a way on which the receiver's engine puts it into its place.
    pub fn set_copied(&mut self, seq: u64, at: u64) {
        if let Some(m) = self.messages.get_mut(&seq) {
            m.set_copied(at);
        }
    }

    /// It is the turn of the path in place `i` to carry a message.
    pub fn set_turn(&mut self, seq: u64, i: usize) {
        if let Some(m) = self.messages.get_mut(&seq) {
            m.takes_turn(i);
        }
    }

    /// Bytes of a message have arrived. Whether all have now.
    pub fn acknowledge(&mut self, seq: u64, at: u64, len: u64) -> bool {
        let Some(f) = self.fragments_mut(seq) else { return false };
        if !f.needs(at, len) {
            return false;
        }
        f.ack_bytes(at, len);
        f.all_acked()
    }

    /// Fragments of a vfrag have arrived. Whether all of the message has now. `replace`: planted, the mask takes the place of the older one.
    pub fn acknowledge_mask(&mut self, seq: u64, vfrag: u64, mask: u64, replace: bool) -> bool {
        let Some(f) = self.fragments_mut(seq) else { return false };
        if replace {
            f.replace_mask(vfrag, mask);
        } else {
            f.ack_mask(vfrag, mask);
        }
        f.all_acked()
    }

    /// What byte `at` belongs to was lost on the path in place `i`. The level that its vfrag has reached there.
    pub fn note_loss(&mut self, seq: u64, at: u64, i: usize, counts: bool) -> u32 {
        self.messages.get_mut(&seq).map_or(0, |m| m.note_loss(at, i, counts))
    }

    /// The fragment that byte `at` is in goes again.
    pub fn goes_again(&mut self, seq: u64, at: u64) {
        if let Some(m) = self.messages.get_mut(&seq) {
            m.goes_again(at);
        }
    }

    /// The memory of a message is not read any more: it goes on from a copy.
    pub fn copy_memory(&mut self, seq: u64) {
        let Some(m) = self.messages.get_mut(&seq) else { return };
        debug_assert!(m.envelope().role != Role::Message, "copies of messages have a bound of their own");
        let before = m.kept();
        m.copy_memory();
        self.kept -= before;
        self.kept += m.kept();
    }

    /// The memory of a message, of which there is no copy, is taken back, and no completion is reported.
    pub fn withdraw(&mut self, seq: u64) -> Option<Withdrawal> {
        self.messages.get_mut(&seq).map(TxMsg::withdraw)
    }

    /// A message is done: acknowledged in full, rejected, or failed.
    #[inline]
    pub fn finish(&mut self, seq: u64) -> Option<TxMsg> {
        // looked at where it is returned: what is handed on after a look is copied once more
        let done = self.messages.remove(&seq);
        if let Some(m) = &done {
            self.kept -= m.kept();
        }
        done
    }

    // ---- the planted bug of hazard H1 --------------------------------------------------------------------------

    /// Planted: half-written frames of a finished message go on reading its memory.
    #[cfg(feature = "planted-bugs")]
    pub fn keep_zombie(&mut self, seq: u64, m: TxMsg) {
        self.zombies.insert(seq, m);
    }

    /// The memory of a message that is not finished.
    #[inline]
    pub fn body(&self, seq: u64) -> Option<&Body> {
        #[cfg(feature = "planted-bugs")]
        if let Some(m) = self.zombies.get(&seq) {
            return Some(m.body());
        }
        self.messages.get(&seq).map(TxMsg::body)
    }

    // ---- keeping house -----------------------------------------------------------------------------------------

    /// Gives back memory that is kept for nothing.
    pub fn rest(&mut self) {
        give_back_map(&mut self.messages);
    }

    /// Bytes that were granted and never sent.
    pub fn unsent_bytes(&self) -> u64 {
        self.messages.values().filter_map(TxMsg::fragments).map(Fragments::unsent).sum()
    }

    /// Checks the invariants.
    pub fn check(&self) {
        let mut kept = Kept::default();
        self.messages.values().for_each(|m| kept += m.kept());
        assert_eq!(kept, self.kept, "what is kept is the sum of what the messages keep");
        self.messages.values().filter_map(TxMsg::fragments).for_each(Fragments::check);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::envelope::{Envelope, RECORD_BYTES};
    use crate::message::iov::Iov;
    use crate::message::tx::Report;
    use crate::types::{CompletionLevel, IoVec, Protocol};

    fn draft(role: Role, body: Body, total: u64) -> Draft {
        Draft {
            envelope: Envelope {
                src_ep: 0,
                dst_ep: 0,
                protocol: Protocol::Msg,
                role,
                tag: 0,
                data: None,
                total,
                granule: 1000,
            },
            eager: body.copied().is_some(),
            body,
            context: 0,
            report: Report::Always,
            level: CompletionLevel::Buffered,
        }
    }

    fn user(memory: &[u8]) -> Body {
        // SAFETY: the memory outlives the body in every test, and nothing writes to it.
        Body::User(unsafe { Iov::new(&[IoVec::from_ref(memory)]) })
    }

    #[test]
    fn copies_count_until_their_message_is_done() {
        let mut out = Outgoing::default();
        let long = out.post(draft(Role::Message, Body::Retained(vec![0; 5000]), 5000));
        let short = out.post(draft(Role::Message, Body::Retained(vec![0; 100]), 100));
        out.post(draft(Role::Message, user(&[0; 9000]), 9000));
        assert_eq!(out.retained(), (5000, RECORD_BYTES + 100));
        assert!(out.has_room(2000, 7000) && !out.has_room(2001, 7000));
        assert!(!out.has_room(100, RECORD_BYTES), "envelopes have a bound of their own");
        out.check();
        assert!(out.finish(long).is_some() && out.finish(short).is_some() && out.finish(long).is_none());
        assert_eq!((out.retained(), out.len()), ((0, 0), 1));
        out.check();
    }

    #[test]
    fn orders_count_by_themselves_and_a_read_that_goes_on_from_a_copy_counts_it() {
        let mut out = Outgoing::default();
        let memory = [7; 3000];
        let order = out.post(draft(Role::Order, Body::Retained(vec![0; 50]), 50));
        let read = out.post(draft(Role::Data, user(&memory), 3000));
        assert_eq!(out.retained(), (0, 0));
        let kept = 2 * RECORD_BYTES + 50;
        assert!(out.has_room_for_order(10, kept + RECORD_BYTES + 10));
        assert!(!out.has_room_for_order(11, kept + RECORD_BYTES + 10));
        out.copy_memory(read);
        assert_eq!(out.get(read).unwrap().body().copied(), Some(&memory[..]));
        assert!(!out.has_room_for_order(0, kept + 3000 + RECORD_BYTES - 1));
        out.check();
        out.finish(read);
        out.finish(order);
        assert!(out.has_room_for_order(0, RECORD_BYTES) && out.is_empty());
        out.check();
    }

    #[test]
    fn answers_and_reads_count_as_serving_the_peer() {
        let mut out = Outgoing::default();
        let memory = [7; 3000];
        out.post(draft(Role::Order, Body::Retained(vec![0; 50]), 50));
        assert_eq!(out.serving(), (0, 0));
        let answer = out.post(draft(Role::Answer, Body::Retained(vec![0; 60]), 60));
        let mut read = draft(Role::Data, user(&memory), 3000);
        read.envelope.data = Some(0);
        let read = out.post(read);
        assert_eq!(out.serving(), (2 * RECORD_BYTES + 60, 60));
        out.copy_memory(read);
        assert_eq!(out.serving(), (2 * RECORD_BYTES + 3060, 3060));
        out.check();
        out.finish(answer);
        out.finish(read);
        assert_eq!(out.serving(), (0, 0));
        out.check();
    }

    #[test]
    fn a_message_is_granted_once_cut_and_acknowledged_to_its_end() {
        let mut out = Outgoing::default();
        let seq = out.post(draft(Role::Message, user(&[0; 2500]), 2500));
        assert!(!out.announce(seq), "it was announced from the beginning");
        let eager = out.post(draft(Role::Message, Body::Retained(vec![0; 100]), 100));
        assert!(out.announce(eager) && !out.announce(eager));
        assert_eq!(out.grant(seq, 9999, false), Some(2500), "no more than there is");
        assert_eq!(out.grant(seq, 10, false), None, "a grant that comes again grants nothing more");
        assert_eq!(out.unsent_bytes(), 2500);
        while !out.cut(seq, 0).last {}
        assert_eq!(out.unsent_bytes(), 0);
        assert!(!out.acknowledge(seq, 0, 1000) && !out.acknowledge(seq, 0, 1000));
        assert!(!out.acknowledge_mask(seq, 0, 0b010, false));
        assert!(out.acknowledge(seq, 2000, 500));
        out.check();
    }

    #[test]
    fn of_a_withdrawn_message_only_the_envelope_is_left() {
        let mut out = Outgoing::default();
        let mut eager = draft(Role::Message, user(&[0; 100]), 100);
        eager.eager = true;
        let eager = out.post(eager);
        let announced = out.post(draft(Role::Message, user(&[0; 100]), 100));
        let granted = out.post(draft(Role::Message, user(&[0; 100]), 100));
        out.grant(granted, 100, false);
        assert_eq!(out.withdraw(eager), Some(Withdrawal::Announced { was_eager: true }));
        assert_eq!(out.withdraw(announced), Some(Withdrawal::Announced { was_eager: false }));
        assert_eq!(out.withdraw(granted), Some(Withdrawal::Granted));
        for seq in [eager, announced] {
            let m = out.get(seq).unwrap();
            assert!(m.is_announced() && matches!(m.body(), Body::Withdrawn) && m.report() == Report::Never);
            assert_eq!(out.grant(seq, 100, false), None);
        }
        out.check();
    }
}
