//! What a small message costs the engine alone: two engines joined by memory send eight bytes to and fro, as a ping-pong under an MPI
//! does: a receive is posted, the message sent, the datagram handed over, the completion taken.
//!
//!     cargo run --release -p rerail-core --example engine_messages [-- RAILS]
//!     valgrind --tool=callgrind target/release/examples/engine_messages 1 20000
//!
//! Prints ns for each message, the best of several turns: processor time only, no system call but the clock before and after each turn.
//! `crates/rerail-ip/examples/small_messages.rs` has the runtime and the sockets besides.

use rerail_core::wire::Token;
use rerail_core::{
    Action, CloseReason, CompletionLevel, CqId, Datagram, EndpointId, Engine, EngineConfig, EpId, Identity,
    IoVec, Options, Protocol, RailDesc, RecvOp, Remedies, SendOp, Time,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

struct Side {
    engine: Engine,
    cq: CqId,
    ep: EpId,
    other: Option<EndpointId>,
    datagram: Datagram,
}

fn address(rail: u8, side: u8) -> SocketAddr {
    SocketAddr::from(([10, rail, 0, 1 + side], 4000))
}

impl Side {
    fn new(side: u8, rails: u8, now: Time) -> Side {
        let rail = |r| RailDesc {
            speed_mbps: 10_000,
            ..RailDesc::ip(&format!("net{r}"), address(r, side), 24, 1500)
        };
        let config = EngineConfig {
            identity: Identity::toy(Token([side + 1; 16])),
            rails: (0..rails).map(rail).collect(),
            options: Options::default(),
            encrypts: false,
            seed: u64::from(side),
            host: u64::from(side),
            boot: 1,
            remedies: Remedies::default(),
        };
        let mut engine = Engine::new(config, now).expect("valid");
        let cq = engine.open_cq(1024);
        let ep = engine.open_endpoint(cq, cq).expect("the first");
        Side { engine, cq, ep, other: None, datagram: Datagram::default() }
    }

    /// Hands over what this side has to send.
    fn flush(&mut self, other: &mut Side, now: Time) {
        while self.engine.poll_datagram(now, &mut self.datagram) {
            let rail = self.datagram.rail;
            // the source is not looked at here
            let from = self.datagram.to;
            other.engine.handle_datagram(rail, from, &self.datagram.bytes, now);
        }
        while let Some(a) = self.engine.poll_action() {
            if let Action::CloseStream { stream } = a {
                self.engine.stream_closed(stream, CloseReason::Requested, now);
            }
        }
        while self.engine.poll_event().is_some() {}
    }

    fn post(&mut self, bytes: &mut [u8; 8], now: Time) {
        let op = RecvOp {
            ep: self.ep,
            protocol: Protocol::Tagged,
            tag: 1,
            ignore: 0,
            src: self.other,
            iov: &[IoVec::from_mut(bytes)],
            context: 1,
            completion: true,
            multi: false,
        };
        // SAFETY: the bytes live until the completion, which is taken before anything else is done with them.
        unsafe { self.engine.recv(&op, now) }.expect("a receive");
    }

    fn send(&mut self, bytes: &[u8; 8], now: Time) {
        let op = SendOp {
            ep: self.ep,
            dest: self.other.expect("the other side is known"),
            protocol: Protocol::Tagged,
            tag: 1,
            data: Some(1),
            iov: &[IoVec::from_ref(bytes)],
            context: 0,
            completion: false,
            inject: true,
            level: CompletionLevel::Buffered,
        };
        // SAFETY: injected bytes are copied before the call returns.
        unsafe { self.engine.send(&op, now) }.expect("room for one message");
    }
}

/// A message from `a` to `b`, which arrives 2 µs later.
fn message(a: &mut Side, b: &mut Side, now: &mut Time) {
    let (bytes, mut room) = ([7; 8], [0; 8]);
    b.post(&mut room, *now);
    a.send(&bytes, *now);
    loop {
        a.flush(b, *now);
        *now = *now + Duration::from_micros(2);
        if b.engine.poll_timeout().is_some_and(|t| t <= *now) {
            b.engine.handle_timeout(*now);
        }
        if b.engine.cq_pop(b.cq).is_some() {
            break;
        }
        // only during the first contact of the two
        b.flush(a, *now);
        if a.engine.poll_timeout().is_some_and(|t| t <= *now) {
            a.engine.handle_timeout(*now);
        }
    }
    assert_eq!(room, bytes);
}

fn main() {
    let number = |n| std::env::args().nth(n).and_then(|n| n.parse::<u32>().ok());
    let (rails, messages) = (number(1).unwrap_or(1) as u8, number(2).unwrap_or(200_000));
    let mut now = Time::from_ns(1_000_000_000);
    let (mut a, mut b) = (Side::new(0, rails, now), Side::new(1, rails, now));
    let address_of = |s: &Side| s.engine.address(s.ep);
    let (to_b, to_a) = (address_of(&b), address_of(&a));
    a.other = Some(a.engine.endpoint_of(&to_b));
    b.other = Some(b.engine.endpoint_of(&to_a));
    let mut turn = |messages: u32| {
        let begun = Instant::now();
        for _ in 0..messages / 2 {
            message(&mut a, &mut b, &mut now);
            message(&mut b, &mut a, &mut now);
        }
        begun.elapsed().as_nanos() as f64 / f64::from(messages.max(1))
    };
    turn(1000);
    let best = (0..5).map(|_| turn(messages / 5)).fold(f64::INFINITY, f64::min);
    println!("{best:.0} ns for each message, {rails} rails");
}
