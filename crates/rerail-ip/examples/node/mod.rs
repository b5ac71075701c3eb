//! One runtime with an endpoint, which sends and receives by tag. Examples of other kinds of rail include this file.

use rerail_core::{
    Completion, CompletionLevel, CqId, EndpointId, EpId, IoVec, Options, PostError, Protocol, RecvOp, SendOp,
};
use rerail_rail::Rails;
use rerail_runtime::{Runtime, Setup};
use std::sync::Arc;

/// See above.
pub struct Node {
    pub rt: Arc<Runtime>,
    pub cq: CqId,
    pub ep: EpId,
    /// What was taken from the queue last.
    pub done: Vec<Completion>,
}

impl Node {
    pub fn new(options: Options, rails: Rails) -> Node {
        let rt = Runtime::start(Setup { options, rails, log: None }).unwrap_or_else(|e| panic!("{e}"));
        let cq = rt.inspect(|e| e.open_cq(1024)).unwrap();
        let ep = rt.open_endpoint(cq, cq).unwrap();
        Node { rt, cq, ep, done: Vec::new() }
    }

    pub fn send(&self, dest: EndpointId, tag: u64, bytes: &[u8]) {
        let op = SendOp {
            ep: self.ep,
            dest,
            protocol: Protocol::Tagged,
            tag,
            data: None,
            iov: &[IoVec::from_ref(bytes)],
            context: 0,
            completion: true,
            inject: false,
            level: CompletionLevel::Buffered,
        };
        loop {
            // SAFETY: every caller waits for the completion before it touches the buffer.
            match self.rt.with(|e, now| unsafe { e.send(&op, now) }).unwrap() {
                Ok(()) => return,
                Err(PostError::Again) => self.rt.progress().unwrap(),
                Err(e) => panic!("{e}"),
            }
        }
    }

    pub fn recv(&self, tag: u64, bytes: &mut [u8]) {
        let op = RecvOp {
            ep: self.ep,
            protocol: Protocol::Tagged,
            tag,
            ignore: 0,
            src: None,
            iov: &[IoVec::from_mut(bytes)],
            context: 0,
            completion: true,
            multi: false,
        };
        // SAFETY: every caller waits for the completion before it touches the buffer.
        self.rt.with(|e, now| unsafe { e.recv(&op, now) }).unwrap().unwrap();
    }
}
