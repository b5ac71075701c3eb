//! A received message that is known by its envelope and is not done.
//!
//! Owns: vfrag masks, placement leases. Source and differences: see [`fragments`](crate::message::fragments).

use crate::message::envelope::Role;
use crate::message::fragments::VFRAG_FRAGMENTS;
use crate::message::iov::Iov;
use crate::message::target::{Landing, Target};
use crate::ranges::RangeSet;
use crate::types::{EpId, Protocol, StreamId};
use rustc_hash::FxHashMap;

/// What is there of a received message.
#[derive(Debug, Clone)]
pub(crate) enum RxBody {
    /// The payload waits in our memory.
    Eager(Vec<u8>),
    /// Announced, or refused: the payload is with the sender.
    Remote,
    /// Announced, and then withdrawn by the sender.
    Withdrawn,
    /// A message to ourselves: the payload is in the sender's memory, and these are the sender's wishes.
    Local { iov: Iov, tx_ep: EpId, context: usize, completion: bool },
}

/// A fragment being read straight into the user's memory (hazard H2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub frag: u64,
    pub stream: StreamId,
    /// Number of the stream frame: a later frame of the same stream is another reader.
    pub frame: u64,
}

/// Reception of a granted message.
#[derive(Debug, Clone)]
pub(crate) struct Receiving {
    pub target: Target,
    pub granted: u64,
    pub masks: Vec<u64>,
    pub got: u64,
    pub partial: FxHashMap<u64, RangeSet>,
    pub leases: Vec<Lease>,
    /// Vfrags whose mask changed since it was last told.
    pub dirty: Vec<u32>,
}

/// A message known by its envelope and not done.
#[derive(Debug, Clone)]
pub(crate) struct RxMsg {
    pub src_ep: u16,
    pub dst_ep: u16,
    pub protocol: Protocol,
    pub role: Role,
    pub tag: u64,
    pub data: Option<u64>,
    pub total: u64,
    pub granule: u32,
    pub body: RxBody,
    /// Refused over the bound: the sender must not take our silence for delivery.
    pub refused: bool,
    pub receiving: Option<Receiving>,
}

impl RxMsg {
    /// All of its payload is here, and no receive has asked for it yet.
    pub fn is_whole(&self) -> bool {
        matches!(self.body, RxBody::Eager(_))
    }
}

impl Receiving {
    pub fn new(target: Target, granted: u64, granule: u32) -> Self {
        let frags = granted.div_ceil(u64::from(granule));
        Self {
            target,
            granted,
            masks: vec![0; frags.div_ceil(VFRAG_FRAGMENTS) as usize],
            got: 0,
            partial: FxHashMap::default(),
            leases: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// It goes into the buffer of a receive.
    pub fn is_receive(&self) -> bool {
        matches!(self.target.landing, Landing::Receive)
    }

    pub fn has(&self, frag: u64) -> bool {
        self.masks
            .get((frag / VFRAG_FRAGMENTS) as usize)
            .is_some_and(|m| m >> (frag % VFRAG_FRAGMENTS) & 1 == 1)
    }

    /// Sets the bit of a fragment; invariant 1: it was not set.
    pub fn commit(&mut self, frag: u64) {
        assert!(!self.has(frag), "a fragment is committed once");
        let vfrag = (frag / VFRAG_FRAGMENTS) as usize;
        self.masks[vfrag] |= 1 << (frag % VFRAG_FRAGMENTS);
        self.got += 1;
        self.partial.remove(&frag);
        if !self.dirty.contains(&(vfrag as u32)) {
            self.dirty.push(vfrag as u32);
        }
    }

    pub fn complete(&self, granule: u32) -> bool {
        self.got == self.granted.div_ceil(u64::from(granule))
    }
}
