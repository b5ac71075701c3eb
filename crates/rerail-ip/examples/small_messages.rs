//! What a small message costs this library in user space, without an MPI: two processes' worth of Rerail in one thread, which send
//! eight bytes to and fro over the loopback device.
//!
//!     cargo build --release -p rerail-ip --example small_messages
//!     perf stat -e instructions:u target/release/examples/small_messages 200000
//!     valgrind --tool=callgrind target/release/examples/small_messages 20000
//!
//! A second number adds so many polls that find nothing. Instructions hardly depend on the machine's mood: compare two versions by
//! them. Run it with zeros too, and subtract.

use rerail_core::{
    Completion, CompletionLevel, CqId, EndpointId, EpId, IoVec, Options, Protocol, RecvOp, SendOp,
};
use rerail_runtime::{Runtime, Setup};
use std::sync::Arc;

struct Side {
    rt: Arc<Runtime>,
    cq: CqId,
    ep: EpId,
    other: Option<EndpointId>,
    /// Empty polls.
    polls: u64,
}

impl Side {
    fn new(last: std::ops::Range<u8>) -> Side {
        let rails = rerail_ip::attach_loopback(last).expect("loopback rails");
        let rt = Runtime::start(Setup { options: Options::default(), rails, log: None }).expect("a runtime");
        let cq = rt.inspect(|e| e.open_cq(1024)).expect("a queue");
        let ep = rt.open_endpoint(cq, cq).expect("an endpoint");
        Side { rt, cq, ep, other: None, polls: 0 }
    }

    fn knows(&mut self, other: &Side) {
        let address = other.rt.inspect(|e| e.address(other.ep)).expect("an address");
        self.other = Some(self.rt.with(|e, _| e.endpoint_of(&address)).expect("a peer"));
    }

    fn send(&self, bytes: &[u8; 8]) {
        let dest = self.other.expect("the other side is known");
        let op = SendOp {
            ep: self.ep,
            dest,
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
        let posted = self.rt.post_message(dest.peer, 8, |e, now| unsafe { e.send(&op, now) });
        posted.expect("a live runtime").expect("room for one message");
    }

    fn receive(&mut self, bytes: &mut [u8; 8], scratch: &mut Vec<Completion>, from: &Side) {
        let op = RecvOp {
            ep: self.ep,
            protocol: Protocol::Tagged,
            tag: 1,
            ignore: 0,
            src: None,
            iov: &[IoVec::from_mut(bytes)],
            context: 1,
            completion: true,
            multi: false,
        };
        // SAFETY: `bytes` lives until the completion below.
        let posted = self.rt.post_receive(8, |e, now| unsafe { e.recv(&op, now) });
        posted.expect("a live runtime").expect("room for one receive");
        scratch.clear();
        while self.rt.progress_and_pop(self.cq, 8, scratch).expect("a live runtime").count == 0 {
            self.polls += 1;
            // only at the start, while the two get to know each other
            from.rt.progress().expect("a live runtime");
        }
    }
}

fn main() {
    let number = |n| std::env::args().nth(n).and_then(|n| n.parse::<u64>().ok());
    let (messages, polls) = (number(1).unwrap_or(100_000), number(2).unwrap_or(0));
    let (mut a, mut b) = (Side::new(1..2), Side::new(11..12));
    a.knows(&b);
    b.knows(&a);
    let (mut bytes, mut scratch) = ([7; 8], Vec::new());
    for _ in 0..messages.div_ceil(2) + 50 {
        a.send(&bytes);
        b.receive(&mut bytes, &mut scratch, &a);
        b.send(&bytes);
        a.receive(&mut bytes, &mut scratch, &b);
    }
    for _ in 0..polls {
        a.rt.progress_and_pop(a.cq, 8, &mut scratch).expect("a live runtime");
    }
    println!("{messages} messages, {} empty polls", a.polls + b.polls + polls);
}
