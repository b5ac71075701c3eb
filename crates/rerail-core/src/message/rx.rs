//! A received message that is known by its envelope and is not done.
//!
//! Changed only by [`Incoming`](crate::message::incoming::Incoming), which counts what it keeps.

use crate::message::body::Body;
use crate::message::envelope::{Envelope, RECORD_BYTES, Role};
use crate::message::receiving::Receiving;
use crate::message::target::Target;
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

    /// Whether the success of the send is reported to the application.
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
    envelope: Envelope,
    /// Refused over the bound: until the sender knows it, an acknowledgement would count as delivery.
    refused: bool,
    state: RxState,
}

impl RxMsg {
    #[inline]
    pub(super) fn new(envelope: Envelope, state: RxState) -> Self {
        Self { envelope, refused: false, state }
    }

    /// One whose payload was refused over the bound.
    pub(super) fn refused(envelope: Envelope) -> Self {
        Self { envelope, refused: true, state: RxState::Remote }
    }

    #[inline]
    pub(super) fn state(&self) -> &RxState {
        &self.state
    }

    #[inline]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// All of its payload is here, and no receive has taken it yet.
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

    /// Its payload is with the sender, and is not granted.
    pub fn is_remote(&self) -> bool {
        matches!(self.state, RxState::Remote)
    }

    /// Its payload was refused, and the sender needs to know it: no grant has taken the refusal back.
    pub(super) fn needs_refusal(&self) -> bool {
        self.refused && self.receiving().is_none()
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

    /// What was received of it under a grant.
    pub(super) fn into_receiving(self) -> Option<(Envelope, Receiving)> {
        match self.state {
            RxState::Receiving(r) => Some((self.envelope, r)),
            _ => None,
        }
    }

    // ---- what happens to it ------------------------------------------------------------------------------------

    /// It is received from now on, up to `granted` bytes.
    pub(super) fn grant(&mut self, target: Target, granted: u64) {
        debug_assert!(matches!(self.state, RxState::Remote | RxState::Withdrawn), "it is granted once");
        self.state = RxState::Receiving(Receiving::new(target, granted, self.envelope.granule));
        self.refused = false;
    }

    /// The sender takes it back, and nothing waits for it: a payload that is here stays.
    pub(super) fn withdraw(&mut self) {
        if self.is_remote() {
            self.state = RxState::Withdrawn;
        }
    }

    /// Endpoint `ep` takes its memory back, if it sent this message to ourselves; a copy stays. False: it did not.
    pub(super) fn withdraw_local(&mut self, ep: EpId) -> bool {
        let RxState::Local(l) = &self.state else { return false };
        if l.tx_ep != ep {
            return false;
        }
        let copy = l.body.copied().map(<[u8]>::to_vec);
        self.state = copy.map_or(RxState::Withdrawn, RxState::Whole);
        true
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
