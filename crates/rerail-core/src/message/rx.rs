//! A received message that is known by its envelope and is not done.
//!
//! Changed only by [`Incoming`](crate::message::incoming::Incoming), which counts what it keeps.

use crate::message::body::Body;
use crate::message::envelope::{Envelope, RECORD_BYTES, Role};
use crate::message::receiving::Receiving;
use crate::types::{CompletionLevel, EpId, SendOp};

/// A message of this process to itself whose send completes when it is matched. The payload is in the sender's memory, or a copy.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    body: Body,
    level: CompletionLevel,
    tx_ep: EpId,
    context: usize,
    completion: bool,
}

impl Local {
    /// The message of `op`, which keeps the promise `level`.
    pub fn new(op: &SendOp<'_>, level: CompletionLevel, body: Body) -> Self {
        Self { body, level, tx_ep: op.ep, context: op.context, completion: op.completion }
    }

    pub fn body(&self) -> &Body {
        &self.body
    }

    pub fn tx_ep(&self) -> EpId {
        self.tx_ep
    }

    /// The send may succeed only when a receive has matched.
    pub fn promises_match(&self) -> bool {
        self.level == CompletionLevel::Matched
    }

    pub fn context(&self) -> usize {
        self.context
    }

    /// The application is told when the send completes.
    pub fn completion(&self) -> bool {
        self.completion
    }
}

/// What is there of a received message.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // the large one is that of a message that is being received: a box for it would be one more allocation
pub(crate) enum RxState {
    /// The payload waits in our memory.
    Whole(Vec<u8>),
    /// Announced, or refused: the payload is with the sender.
    Remote,
    /// Granted: the payload is arriving.
    Receiving(Receiving),
    /// Announced, and then withdrawn by the sender.
    Withdrawn,
    /// A message to ourselves.
    Local(Local),
}

#[derive(Debug, Clone)]
pub(crate) struct RxMsg {
    pub(super) envelope: Envelope,
    /// Refused over the bound: the sender must not take our silence for delivery.
    pub(super) refused: bool,
    pub(super) state: RxState,
}

impl RxMsg {
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// All of its payload is here, and no receive has asked for it yet.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, RxState::Whole(_))
    }

    /// Its payload, if all of it is here.
    pub fn payload(&self) -> Option<&[u8]> {
        match &self.state {
            RxState::Whole(b) => Some(b),
            _ => None,
        }
    }

    /// What an order that waits for its turn costs, in bytes.
    pub(super) fn waiting_cost(&self) -> usize {
        if self.envelope.role != Role::Order {
            return 0;
        }
        let bytes = match &self.state {
            RxState::Whole(b) => b.len(),
            RxState::Receiving(_) => self.envelope.total as usize,
            RxState::Remote | RxState::Withdrawn | RxState::Local(_) => 0,
        };
        RECORD_BYTES + bytes
    }

    /// Its payload is here: in our memory, or in that of the sender, which is ours.
    pub fn is_here(&self) -> bool {
        matches!(self.state, RxState::Whole(_) | RxState::Local(_))
    }

    /// Its payload is with the sender, and was not asked for.
    pub fn is_remote(&self) -> bool {
        matches!(self.state, RxState::Remote)
    }

    /// What arrives of it, if it is granted.
    pub fn receiving(&self) -> Option<&Receiving> {
        match &self.state {
            RxState::Receiving(r) => Some(r),
            _ => None,
        }
    }

    /// What was there of a message that is done.
    pub fn into_state(self) -> RxState {
        self.state
    }

    pub(super) fn receiving_mut(&mut self) -> Option<&mut Receiving> {
        match &mut self.state {
            RxState::Receiving(r) => Some(r),
            _ => None,
        }
    }

    /// How far it is, in words.
    pub fn describe(&self) -> String {
        let e = &self.envelope;
        let receiving = self.receiving().map(Receiving::describe);
        format!("{} bytes tag {} refused {} receiving {receiving:?}", e.total, e.tag, self.refused)
    }
}
