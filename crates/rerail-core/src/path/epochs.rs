//! The epochs of a path: the one that is agreed, and those that either side has proposed.
//!
//! Owns: the numbers of epochs, our own handshake, and the peer's that was accepted. Invariants: of our own proposal and of an accepted one of the
//! peer at most one stands; no number is proposed that is not above every known one (hazard H8).

use crate::types::{Epoch, Time, ms};
use rerail_wire::hello::EPOCH_MAX;
use std::time::Duration;

/// First interval between hellos, and the largest.
pub(crate) const HELLO_INTERVAL: (Duration, Duration) = (ms(20), ms(100));
/// Datagrams unanswered for this long: try the handshake over a stream as well.
const STREAM_AFTER: Duration = ms(150);
/// A handshake over a stream that was refused is tried again after this long: of eight refusals that prove a death by themselves
/// (`engine/liveness`), the last comes within the 3 s for which they must go on.
const STREAM_AGAIN: Duration = ms(300);
/// How long we wait for the first packet in an accepted epoch before we begin one ourselves, if we want to. The peer
/// sends it as soon as it has our answer, and repeats its hello if it has not.
const ACCEPTED: Duration = ms(1000);

/// A handshake that we began.
#[derive(Debug, Clone)]
struct Proposal {
    epoch: Epoch,
    nonce: [u8; 16],
    next_send: Time,
    interval: Duration,
    give_up: Time,
    begun: Time,
    /// When a stream is tried as well, because datagrams go unanswered; [`Time::NEVER`] while nothing is known of the last one.
    stream_at: Time,
}

/// What is due of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// It took too long, and is over.
    GiveUp,
    /// Hello as a datagram, and over a stream in this epoch.
    Hello { datagram: bool, stream: Option<Epoch> },
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Epochs {
    agreed: Epoch,
    /// Largest that either side ever proposed.
    largest: Epoch,
    /// One that we accepted and in which nothing has arrived yet (hazard H8), and until when we wait for that before we begin
    /// one ourselves.
    accepted: Option<(Epoch, Time)>,
    proposal: Option<Box<Proposal>>,
    /// Nonce of the last hello that went out on a stream: the answer may be a datagram, and come when the stream is over.
    asked: Option<[u8; 16]>,
}

impl Epochs {
    /// The one that is agreed, or was last; zero before the first.
    #[inline]
    pub fn agreed(&self) -> Epoch {
        self.agreed
    }

    /// Largest that either side ever proposed.
    pub fn largest(&self) -> Epoch {
        self.largest
    }

    /// The next that this side may propose: above every known one, its lowest bit naming the side.
    pub fn next(&self, own_is_high: bool) -> Epoch {
        let bit = u32::from(own_is_high);
        let mut e = (self.largest.0 | 1) + 1 + bit;
        if self.largest.0 == 0 {
            e = 2 + bit;
        }
        assert!(e < u32::MAX - 4, "epochs of a path are used up");
        Epoch(e)
    }

    /// The peer has gone as far as that, or reports that we must go above it.
    pub fn learn(&mut self, epoch: Epoch) {
        self.largest = self.largest.max(epoch);
    }

    /// The epoch is of a session that the peer has forgotten: the next must be above it. Returns what it must be above.
    pub fn go_above(&mut self, epoch: Epoch) -> Epoch {
        self.learn(Epoch((epoch.0 + 1).min(EPOCH_MAX)));
        self.largest
    }

    // ---- our own handshake -------------------------------------------------------------------------------------

    /// A handshake for that epoch begins, which goes on until it succeeds or `patience` is over.
    pub fn propose(&mut self, epoch: Epoch, nonce: [u8; 16], patience: Duration, now: Time) {
        self.largest = epoch;
        self.accepted = None;
        self.proposal = Some(Box::new(Proposal {
            epoch,
            nonce,
            next_send: now,
            interval: HELLO_INTERVAL.0,
            give_up: now + patience,
            begun: now,
            stream_at: now + STREAM_AFTER,
        }));
    }

    /// Epoch and nonce of our own handshake, if one is under way.
    pub fn proposed(&self) -> Option<(Epoch, [u8; 16])> {
        self.proposal.as_ref().map(|pr| (pr.epoch, pr.nonce))
    }

    /// A hello went out. Returns when something is due next; only while a handshake is under way.
    pub fn hello_sent(&mut self, now: Time) -> Option<Time> {
        let pr = self.proposal.as_mut()?;
        pr.next_send = now + pr.interval;
        pr.interval = (pr.interval * 3 / 2).min(HELLO_INTERVAL.1);
        Some(pr.next_send.min(pr.give_up))
    }

    /// Whether our own handshake should have been answered by now: one of its datagrams may be lost on its route. Hellos that are sent
    /// early, because something of the peer arrived, do not count.
    pub fn is_unanswered(&self, now: Time) -> bool {
        self.proposal.as_ref().is_some_and(|pr| now >= pr.begun + HELLO_INTERVAL.0)
    }

    /// Whether the peer should have received by now that we have accepted its proposal, and confirmed it by a packet.
    pub fn is_unconfirmed(&self, now: Time) -> bool {
        self.accepted.is_some_and(|(_, until)| now + ACCEPTED >= until + HELLO_INTERVAL.0)
    }

    /// The next hello goes now, if a handshake is under way: there is reason to think that it arrives. Returns whether
    /// one is.
    pub fn hurry(&mut self, now: Time) -> bool {
        let Some(pr) = &mut self.proposal else { return false };
        (pr.next_send, pr.interval) = (now, HELLO_INTERVAL.0);
        true
    }

    /// What is due now of our own handshake, if one is under way.
    pub fn due(&mut self, now: Time) -> Option<Due> {
        let pr = self.proposal.as_mut()?;
        if now >= pr.give_up {
            self.proposal = None;
            return Some(Due::GiveUp);
        }
        let stream = now >= pr.stream_at;
        if stream {
            pr.stream_at = Time::NEVER;
        }
        Some(Due::Hello { datagram: now >= pr.next_send, stream: stream.then_some(pr.epoch) })
    }

    /// When something is due next of our own handshake, if one is under way.
    pub fn next_due(&self) -> Option<Time> {
        let pr = self.proposal.as_ref()?;
        Some(pr.next_send.min(pr.stream_at).min(pr.give_up))
    }

    /// The handshake over a stream was refused. Returns when the next one is due, if ours is under way.
    pub fn stream_refused(&mut self, now: Time) -> Option<Time> {
        let pr = self.proposal.as_mut()?;
        pr.stream_at = pr.stream_at.min(now + STREAM_AGAIN);
        Some(pr.stream_at)
    }

    /// Hellos sent before may be answered by a session that is over: our own handshake goes on with that nonce.
    pub fn ask_anew(&mut self, nonce: [u8; 16]) {
        if let Some(pr) = &mut self.proposal {
            pr.nonce = nonce;
        }
    }

    /// A handshake that is under way repeats its hello, as a datagram and then over a stream: the peer requests a
    /// proof.
    pub fn say_again(&mut self, now: Time) {
        if self.hurry(now) {
            let pr = self.proposal.as_mut().expect("it is under way");
            pr.stream_at = pr.stream_at.min(pr.begun + STREAM_AFTER);
        }
    }

    /// Our own handshake is given up.
    pub fn withdraw(&mut self) {
        self.proposal = None;
    }

    /// A hello with that nonce goes out on a stream.
    pub fn asked_by_stream(&mut self, nonce: [u8; 16]) {
        self.asked = Some(nonce);
    }

    /// The nonces of our hellos that may still be answered: of the handshake, and of the last stream.
    pub fn nonces(&self) -> (Option<[u8; 16]>, Option<[u8; 16]>) {
        (self.proposal.as_ref().map(|pr| pr.nonce), self.asked)
    }

    // ---- the peer's --------------------------------------------------------------------------------------------

    /// The peer's proposal is accepted, and takes the place of our own.
    pub fn accept(&mut self, epoch: Epoch, now: Time) {
        self.learn(epoch);
        self.proposal = None;
        self.accepted = Some((epoch, now + ACCEPTED));
    }

    /// Whether this epoch was accepted, and nothing has arrived in it yet.
    #[inline]
    pub fn is_accepted(&self, epoch: Epoch) -> bool {
        self.accepted.is_some_and(|a| a.0 == epoch)
    }

    /// Until when we wait for the first packet in an accepted epoch.
    pub fn accepted_until(&self) -> Option<Time> {
        self.accepted.map(|a| a.1)
    }

    /// What was accepted does not count any more. Returns whether something was.
    pub fn forget_accepted(&mut self) -> bool {
        self.accepted.take().is_some()
    }

    // ---- both --------------------------------------------------------------------------------------------------

    /// Both sides have answered in that epoch: it begins.
    pub fn agree(&mut self, epoch: Epoch) {
        self.agreed = epoch;
        self.learn(epoch);
        (self.accepted, self.proposal) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: u64) -> Time {
        Time::from_ns(t * 1_000_000)
    }

    #[test]
    fn every_proposal_is_above_all_that_is_known_and_names_its_side() {
        let mut e = Epochs::default();
        assert_eq!((e.next(false), e.next(true)), (Epoch(2), Epoch(3)));
        for known in 1..40 {
            e.learn(Epoch(known));
            for own_is_high in [false, true] {
                let next = e.next(own_is_high);
                assert!(next.0 > known && (next.0 & 1 == 1) == own_is_high, "{next:?} after {known}");
            }
        }
        e.learn(Epoch(3));
        assert_eq!(e.largest(), Epoch(39), "what is older is no news");
        assert_eq!(e.go_above(Epoch(50)), Epoch(51));
        assert_eq!(e.go_above(Epoch(EPOCH_MAX)), Epoch(EPOCH_MAX));
    }

    #[test]
    fn of_the_own_handshake_and_an_accepted_one_at_most_one_stands() {
        let mut e = Epochs::default();
        e.propose(Epoch(2), [7; 16], ms(300), at(0));
        assert_eq!(e.proposed(), Some((Epoch(2), [7; 16])));
        e.accept(Epoch(5), at(1));
        assert!(e.proposed().is_none() && e.is_accepted(Epoch(5)) && !e.is_accepted(Epoch(2)));
        assert_eq!((e.accepted_until(), e.agreed(), e.next(false)), (Some(at(1001)), Epoch(0), Epoch(6)));
        e.propose(Epoch(6), [8; 16], ms(300), at(2));
        assert!(!e.is_accepted(Epoch(5)));
        e.accept(Epoch(9), at(3));
        e.agree(Epoch(9));
        assert!(!e.forget_accepted() && e.proposed().is_none());
        assert_eq!((e.agreed(), e.largest()), (Epoch(9), Epoch(9)));
    }

    #[test]
    fn hellos_go_out_ever_slower_then_over_a_stream_once_and_are_given_up() {
        let mut e = Epochs::default();
        assert_eq!(
            (e.due(at(0)), e.next_due(), e.hello_sent(at(0)), e.hurry(at(0))),
            (None, None, None, false)
        );
        e.propose(Epoch(2), [7; 16], ms(300), at(0));
        assert_eq!(e.due(at(0)), Some(Due::Hello { datagram: true, stream: None }));
        let sent: Vec<_> = [0, 20, 50].map(|t| e.hello_sent(at(t)).unwrap()).into();
        assert_eq!(sent, [at(20), at(50), at(95)]);
        assert_eq!(
            (e.due(at(90)), e.next_due()),
            (Some(Due::Hello { datagram: false, stream: None }), Some(at(95)))
        );
        assert!(e.hurry(at(91)));
        assert_eq!(e.hello_sent(at(91)), Some(at(111)), "from the beginning");
        assert_eq!(e.hello_sent(at(140)), Some(at(170)));
        assert_eq!(e.next_due(), Some(at(150)), "the stream");
        let stream = Some(Epoch(2));
        assert_eq!(e.due(at(150)), Some(Due::Hello { datagram: false, stream }));
        assert_eq!(e.due(at(160)), Some(Due::Hello { datagram: false, stream: None }), "once");
        assert_eq!((e.next_due(), e.hello_sent(at(280))), (Some(at(170)), Some(at(300))));
        assert_eq!(e.stream_refused(at(170)), Some(at(470)), "as long as the handshake lasts");
        assert_eq!((e.due(at(300)), e.due(at(300)), e.next_due()), (Some(Due::GiveUp), None, None));
        assert_eq!(e.stream_refused(at(301)), None);
        e.propose(Epoch(4), [7; 16], ms(2000), at(400));
        e.due(at(550));
        e.stream_refused(at(560));
        e.hello_sent(at(850));
        assert_eq!(e.due(at(859)), Some(Due::Hello { datagram: false, stream: None }));
        assert_eq!(e.due(at(860)), Some(Due::Hello { datagram: false, stream: Some(Epoch(4)) }), "once more");
    }
}
