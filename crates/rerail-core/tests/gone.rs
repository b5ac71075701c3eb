//! A peer that is gone: what ends, with which error, and what stays. One engine whose peer never answers is enough.

mod alone;

use rerail_core::wire::{Address, Token};
use rerail_core::{
    Completion, CompletionError, CompletionLevel, CqId, EndpointId, Engine, EpId, IoVec, Locator, Options,
    PeekOp, PostError, Protocol, RecvOp, SendOp, Time,
};
use std::time::Duration;

struct Alone {
    engine: Engine,
    cq: CqId,
    ep: EpId,
    now: Time,
}

impl Alone {
    fn new() -> Self {
        let mut options = Options::default();
        options.set("partition_timeout", "2").expect("two seconds are valid");
        let (engine, cq, ep, now) = alone::engine(Token([1; 16]), options, false);
        Self { engine, cq, ep, now }
    }

    fn peer(&mut self, name: u8) -> EndpointId {
        let rails = vec![Locator::ip([10, 0, 0, 2].into(), 4000)];
        self.engine.endpoint_of(&Address { token: Token([name; 16]), endpoint: 0, encrypts: false, rails })
    }

    /// Posts a receive of nothing; a multi-receive when `area` is given.
    fn recv(&mut self, src: Option<EndpointId>, context: usize, area: Option<&mut [u8]>) {
        let multi = area.is_some();
        let iov = [IoVec::from_mut(area.unwrap_or_default())];
        let protocol = if multi { Protocol::Msg } else { Protocol::Tagged };
        let op = RecvOp {
            ep: self.ep,
            protocol,
            tag: 7,
            ignore: 0,
            src,
            iov: &iov,
            context,
            completion: true,
            multi,
        };
        // SAFETY: the areas of the tests live until their end.
        unsafe { self.engine.recv(&op, self.now) }.expect("a receive is always accepted");
    }

    fn send(&mut self, dest: EndpointId, context: usize) -> Result<(), PostError> {
        self.send_bytes(dest, context, &[], true, false)
    }

    fn send_bytes(
        &mut self,
        dest: EndpointId,
        context: usize,
        bytes: &'static [u8],
        delivery: bool,
        inject: bool,
    ) -> Result<(), PostError> {
        let iov = [IoVec::new(bytes.as_ptr().cast_mut(), bytes.len())];
        let op = SendOp {
            ep: self.ep,
            dest,
            protocol: Protocol::Tagged,
            tag: 7,
            data: None,
            iov: if bytes.is_empty() { &[] } else { &iov },
            context,
            completion: !inject,
            inject,
            level: if delivery { CompletionLevel::Delivered } else { CompletionLevel::Buffered },
        };
        // SAFETY: the bytes live as long as the program.
        unsafe { self.engine.send(&op, self.now) }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(5);
            self.engine.handle_timeout(self.now);
            let mut out = rerail_core::Datagram::default();
            while self.engine.poll_datagram(self.now, &mut out) {}
            while self.engine.poll_action().is_some() {}
        }
    }

    fn completed(&mut self) -> Vec<(usize, Option<CompletionError>)> {
        let mut all: Vec<Completion> = std::iter::from_fn(|| self.engine.cq_pop(self.cq)).collect();
        all.sort_by_key(|c| c.context);
        all.iter().map(|c| (c.context, c.error)).collect()
    }
}

const UNREACHABLE: Option<CompletionError> = Some(CompletionError::PeerUnreachable);

#[test]
fn operations_that_need_a_lost_peer_end_and_others_stay() {
    let mut a = Alone::new();
    let (lost, other) = (a.peer(2), a.peer(3));
    let mut area = vec![0u8; 4096];
    a.recv(Some(lost), 1, None);
    a.recv(None, 3, None);
    a.recv(Some(lost), 4, Some(&mut area));
    a.send(lost, 5).expect("it is not known to be lost yet");
    a.pass(Duration::from_millis(1500));
    assert_eq!(a.completed(), [], "before the deadline everything waits");
    // this one has a deadline of its own
    a.recv(Some(other), 2, None);
    a.pass(Duration::from_millis(1500));
    assert_eq!(a.completed(), [(1, UNREACHABLE), (4, UNREACHABLE), (5, UNREACHABLE)]);

    // the others stand, and can be cancelled
    assert!(a.engine.cancel(a.ep, 2) && a.engine.cancel(a.ep, 3));
    assert!(!a.engine.cancel(a.ep, 1) && !a.engine.cancel(a.ep, 4));
    let canceled = Some(CompletionError::Canceled);
    assert_eq!(a.completed(), [(2, canceled), (3, canceled)]);
}

#[test]
fn what_is_posted_for_a_lost_peer_ends_at_once() {
    let mut a = Alone::new();
    let lost = a.peer(2);
    a.send(lost, 1).expect("it is not known to be lost yet");
    a.pass(Duration::from_secs(3));
    assert_eq!(a.completed(), [(1, UNREACHABLE)]);
    let mut area = vec![0u8; 4096];
    a.recv(Some(lost), 2, None);
    a.recv(Some(lost), 3, Some(&mut area));
    a.recv(None, 4, None);
    assert_eq!(a.completed(), [(2, UNREACHABLE), (3, UNREACHABLE)]);
    assert_eq!(a.send(lost, 5), Err(PostError::PeerGone));
    let peek = PeekOp {
        ep: a.ep,
        protocol: Protocol::Tagged,
        tag: 7,
        ignore: 0,
        src: Some(lost),
        context: 6,
        claim: false,
        discard: false,
    };
    a.engine.peek(&peek, a.now).expect("a look is always accepted");
    assert_eq!(a.completed(), [(6, UNREACHABLE)]);
    a.engine.peek(&PeekOp { src: None, ..peek }, a.now).expect("a look is always accepted");
    assert_eq!(a.completed(), [(6, Some(CompletionError::NoMessage))]);
}

#[test]
fn a_receive_from_a_peer_that_was_never_met_ends_as_well() {
    let mut a = Alone::new();
    let (lost, other) = (a.peer(2), a.peer(3));
    a.recv(Some(lost), 1, None);
    a.recv(None, 2, None);
    a.pass(Duration::from_secs(3));
    assert_eq!(a.completed(), [(1, UNREACHABLE)]);
    // nothing waits for this one
    assert!(a.send(other, 3).is_ok());
}

#[test]
fn small_messages_to_a_dark_peer_are_completed_within_a_bound() {
    let mut a = Alone::new();
    let dark = a.peer(2);
    // each is complete when it is copied, so that nothing but a bound would ever stop a sender
    let accepted = (0..).take_while(|&i| a.send_bytes(dark, i, b"a line", false, true).is_ok()).count();
    assert!((10_000..100_000).contains(&accepted), "{accepted} messages were taken");
    assert_eq!(a.send_bytes(dark, 0, b"", false, false), Err(PostError::Again));
    assert_eq!(a.completed(), [], "an inject says nothing");
    // what has a buffer of its own may be posted, and waits there
    a.send_bytes(dark, 1, b"a line", false, false).expect("the buffer stays with its owner");
    assert_eq!(a.completed(), []);
    a.pass(Duration::from_secs(3));
    assert_eq!(a.completed(), [(1, UNREACHABLE)]);
    assert_eq!(a.engine.memory_of_peer_max(), (0, 0), "nothing is kept for a lost peer");
}
