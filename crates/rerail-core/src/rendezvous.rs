//! Messages on their way: what the sender keeps until it is acknowledged, and what the receiver has of it.
//!
//! Owns: the retained copy or the user's vectors of a sent message, vfrag masks on both sides, placement leases.
//! A message is cut into fragments of a granule fixed when it is announced (hazard H9); 64 fragments are a vfrag, whose
//! mask is the unit of acknowledgement. Source: PML DR §3.3; differs: acknowledgements may cross paths, so masks are
//! only ever OR-ed (hazard H10), and packet numbers, not masks, judge the paths.

use crate::copies::Copies;
use crate::event::Witness;
use crate::levels::Levels;
use crate::ranges::RangeSet;
use crate::types::{CompletionLevel, EpId, Epoch, IoVec, PathId, Protocol, StreamId};
use rerail_wire::frame::flags;
use rustc_hash::FxHashMap;

/// Fragments of a vfrag.
pub(crate) const VFRAG_FRAGMENTS: u64 = 64;

/// Something that one packet or stream frame carries and that must arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    /// A whole eager message.
    Eager { seq: u64 },
    /// The announcement of a message.
    Rts { seq: u64 },
    /// Our grant for the peer's message.
    Cts { seq: u64 },
    /// We keep the envelope of the peer's message, not its payload.
    Refuse { seq: u64 },
    /// We do not want the peer's message at all. `taken`: the application has received it, or looked at it and thrown it away.
    Reject { seq: u64, taken: bool },
    /// Our announced message will not come.
    Withdraw { seq: u64 },
    /// Bytes of a message: a fragment, or a piece of one.
    Frag { seq: u64, at: u64, len: u32 },
    /// A path is out of service.
    Verdict { path: PathId, epoch: Epoch, witness: Witness },
    /// Our node configuration.
    Config,
    /// We close for good.
    Goodbye,
}

/// The user's vectors: nearly always one piece.
#[derive(Debug, Clone)]
pub(crate) enum Iov {
    One(IoVec),
    Many(Box<[IoVec]>),
}

impl Iov {
    pub fn from_slice(v: &[IoVec]) -> Self {
        match v {
            [one] => Iov::One(*one),
            _ => Iov::Many(v.into()),
        }
    }

    pub fn as_slice(&self) -> &[IoVec] {
        match self {
            Iov::One(v) => std::slice::from_ref(v),
            Iov::Many(v) => v,
        }
    }

    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(|v| v.len).sum()
    }

    /// Calls `each(pointer, length)` for the pieces that make up `[at, at + len)`.
    pub fn pieces(&self, mut at: usize, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        for v in self.as_slice() {
            if len == 0 {
                return;
            }
            if at >= v.len {
                at -= v.len;
                continue;
            }
            let n = (v.len - at).min(len);
            // SAFETY: at < v.len, so the result stays inside the piece that the poster promised to be valid.
            each(unsafe { v.ptr.add(at) }, n);
            len -= n;
            at = 0;
        }
        debug_assert_eq!(len, 0, "range outside the vectors");
    }

    /// Copies `bytes` to offset `at`.
    pub fn scatter(&self, at: usize, bytes: &[u8]) {
        let mut from = 0;
        self.pieces(at, bytes.len(), |p, n| {
            // SAFETY: the poster of the receive promised valid, unshared memory until the completion, which has not been
            // reported; `bytes` is ours and cannot overlap it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), p, n) };
            from += n;
        });
    }

    /// Appends `[at, at + len)` to `out`.
    pub fn gather(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        self.pieces(at, len, |p, n| {
            // SAFETY: the poster of the send promised valid memory until the completion, which has not been reported.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
        });
    }
}

/// Bytes of a copy that is kept in the record of its message: most small messages need no memory of their own.
pub(crate) const SHORT_BYTES: usize = 46;

/// Where the bytes of a sent message are.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Copied: ours until acknowledged. This many bytes.
    Short([u8; SHORT_BYTES], u8),
    /// The same, of more bytes.
    Retained(Vec<u8>),
    /// The user's memory, ours to read until the completion.
    User(Iov),
    /// Nowhere: it was announced, never granted, and the endpoint is closed. Only the envelope is still to arrive, because the
    /// messages behind it wait for that.
    Withdrawn,
}

impl Body {
    /// A copy of `total` bytes, in memory of `copies` if it takes some.
    pub fn copy_of(iov: &Iov, total: usize, copies: &mut Copies) -> Self {
        if total <= SHORT_BYTES {
            let mut short = [0; SHORT_BYTES];
            let mut filled = 0;
            iov.pieces(0, total, |p, n| {
                // SAFETY: the poster of the send promised valid memory until the completion, which has not been reported.
                short[filled..filled + n].copy_from_slice(unsafe { std::slice::from_raw_parts(p, n) });
                filled += n;
            });
            return Body::Short(short, total as u8);
        }
        let mut copy = copies.take(total);
        iov.gather(0, total, &mut copy);
        Body::Retained(copy)
    }

    /// The bytes, if they are a copy.
    pub fn copied(&self) -> Option<&[u8]> {
        match self {
            Body::Short(b, n) => Some(&b[..usize::from(*n)]),
            Body::Retained(b) => Some(b),
            Body::User(_) | Body::Withdrawn => None,
        }
    }

    pub fn pieces(&self, at: usize, len: usize, mut each: impl FnMut(*const u8, usize)) {
        match self {
            Body::Short(..) | Body::Retained(_) => {
                if len > 0 {
                    let b = self.copied().expect("a copy");
                    each(b[at..at + len].as_ptr(), len);
                }
            }
            Body::User(v) => v.pieces(at, len, |p, n| each(p.cast_const(), n)),
            Body::Withdrawn => unreachable!("what was withdrawn is never granted"),
        }
    }

    pub fn gather(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        match self {
            Body::Short(..) | Body::Retained(_) => {
                out.extend_from_slice(&self.copied().expect("a copy")[at..at + len]);
            }
            Body::User(v) => v.gather(at, len, out),
            Body::Withdrawn => unreachable!("what was withdrawn is never granted"),
        }
    }
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Something for a posted receive.
    Message,
    /// An order for the peer's engine (`onesided`).
    Order,
    /// The bytes of a write or a read, beside an order.
    Data,
}

impl Role {
    pub fn of_flags(f: u8) -> Self {
        match (f & flags::ONE_SIDED != 0, f & flags::TAGGED != 0) {
            (false, _) => Role::Message,
            (true, false) => Role::Order,
            (true, true) => Role::Data,
        }
    }
}

/// How far a sent message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxState {
    /// Sent without asking; waits for its acknowledgement.
    Eager,
    /// Announced (or refused); waits for the grant.
    Announced,
    /// Granted; fragments are on their way.
    Granted,
}

/// A sent message that is not acknowledged in full.
#[derive(Debug, Clone)]
pub(crate) struct TxMsg {
    pub ep: EpId,
    pub dst_ep: u16,
    pub protocol: Protocol,
    pub role: Role,
    pub tag: u64,
    pub data: Option<u64>,
    pub total: u64,
    pub body: Body,
    pub state: TxState,
    pub granule: u32,
    pub context: usize,
    pub completion: bool,
    /// The user was told, or will never be.
    pub reported: bool,
    pub level: CompletionLevel,

    pub granted: u64,
    pub acked_frags: u64,
    /// First byte never sent.
    pub next: u64,
    /// Place of the path whose turn this message is, under `round-robin`.
    pub turn: Option<u8>,
    /// Its fragments, once they are granted.
    pub fragments: Option<Box<Fragments>>,
    /// What was lost of it, and where.
    pub levels: Option<Box<Levels>>,
}

/// What became of the fragments of a granted message. Apart, because most messages have none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fragments {
    /// Bits of those that were acknowledged.
    pub masks: Vec<u64>,
    /// Bytes taken by each path's place in the peer's list, for striping by shares.
    pub taken: [u64; 16],
    /// Pieces acknowledged one by one, when fragments travel as datagrams.
    pub partial: FxHashMap<u64, RangeSet>,
}

impl TxMsg {
    /// The masks of acknowledged fragments.
    pub fn masks(&self) -> &[u64] {
        self.fragments.as_ref().map_or(&[], |f| &f.masks)
    }

    /// Bytes taken by the path in place `i`.
    pub fn taken(&self, i: usize) -> u64 {
        self.fragments.as_ref().map_or(0, |f| f.taken[i & 15])
    }

    /// The path in place `i` takes so many bytes.
    pub fn take(&mut self, i: usize, bytes: u64) {
        self.fragments.get_or_insert_default().taken[i & 15] += bytes;
    }

    /// It is the answer to a read: its bytes are in registered memory.
    pub fn is_read(&self) -> bool {
        self.role == Role::Data && self.data.is_some()
    }

    /// What it counts against the bound of one-sided operations, in bytes.
    pub fn order_cost(&self) -> usize {
        match self.role {
            Role::Message => 0,
            _ => crate::engine::RECORD_BYTES + self.body.copied().map_or(0, <[u8]>::len),
        }
    }

    pub fn frags(&self) -> u64 {
        self.granted.div_ceil(u64::from(self.granule))
    }

    pub fn frag_acked(&self, frag: u64) -> bool {
        self.masks()
            .get((frag / VFRAG_FRAGMENTS) as usize)
            .is_some_and(|m| m >> (frag % VFRAG_FRAGMENTS) & 1 == 1)
    }

    /// ORs bits into a vfrag's mask.
    pub fn ack_mask(&mut self, vfrag: u64, mask: u64) {
        let frags = self.frags();
        let masks = self.fragments.as_mut().map(|f| &mut f.masks);
        let Some(m) = masks.and_then(|all| all.get_mut(vfrag as usize)) else { return };
        let in_this = (frags - vfrag * VFRAG_FRAGMENTS).min(VFRAG_FRAGMENTS);
        let valid = if in_this == 64 { u64::MAX } else { (1 << in_this) - 1 };
        let fresh = mask & valid & !*m;
        *m |= fresh;
        self.acked_frags += u64::from(fresh.count_ones());
    }

    /// Notes that `[at, at + len)` arrived.
    pub fn ack_bytes(&mut self, at: u64, len: u64) {
        let g = u64::from(self.granule);
        let frag = at / g;
        let frag_len = g.min(self.granted - frag * g);
        if len < frag_len {
            let partial = &mut self.fragments.get_or_insert_default().partial;
            let p = partial.entry(frag).or_default();
            p.insert(at, at + len);
            if !p.covers(frag * g, frag * g + frag_len) {
                return;
            }
            partial.remove(&frag);
        }
        self.ack_mask(frag / VFRAG_FRAGMENTS, 1 << (frag % VFRAG_FRAGMENTS));
    }

    /// Whether `[at, at + len)` still has to arrive.
    pub fn needs(&self, at: u64, len: u64) -> bool {
        let g = u64::from(self.granule);
        let frag = at / g;
        at < self.granted
            && !self.frag_acked(frag)
            && !self.partial(frag).is_some_and(|p| p.covers(at, at + len))
    }

    /// What was acknowledged of a fragment that is not whole.
    fn partial(&self, frag: u64) -> Option<&RangeSet> {
        self.fragments.as_ref()?.partial.get(&frag)
    }

    pub fn all_acked(&self) -> bool {
        self.state == TxState::Granted && self.acked_frags == self.frags()
    }
}

/// Where a matched message goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub ep: EpId,
    pub protocol: Protocol,
    pub context: usize,
    pub completion: bool,
    pub iov: Iov,
    /// Bytes the buffer takes.
    pub cap: u64,
    /// Multi-receive buffer it is part of.
    pub multi: Option<usize>,
    pub landing: Landing,
}

/// What is done when the bytes of a message are in their place.
#[derive(Debug, Clone)]
pub(crate) enum Landing {
    /// A receive completes.
    Receive,
    /// This memory holds an order, to be carried out when its turn comes.
    Assembly(Box<[u8]>),
    /// A read of ours completes.
    Result { order: u64 },
    /// A write of the peer's is in our memory.
    Placed { order: u64 },
}

/// What is there of a received message.
#[derive(Debug, Clone)]
pub(crate) enum RxBody {
    /// The payload waits in our memory.
    Eager(Vec<u8>),
    /// Announced, or refused: the payload is with the sender.
    Remote,
    /// Announced, and then withdrawn by the sender.
    Withdrawn,
    /// A message to ourselves that completes when it is matched: the payload is in the sender's memory, or copied, and these are the
    /// sender's wishes.
    Local { body: Body, tx_ep: EpId, context: usize, completion: bool, level: CompletionLevel },
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

#[cfg(test)]
mod tests {
    use super::*;

    fn msg(granted: u64, granule: u32) -> TxMsg {
        let frags = granted.div_ceil(u64::from(granule));
        TxMsg {
            ep: EpId(0),
            dst_ep: 0,
            protocol: Protocol::Msg,
            role: Role::Message,
            tag: 0,
            data: None,
            total: granted,
            body: Body::Retained(Vec::new()),
            state: TxState::Granted,
            granule,
            context: 0,
            completion: true,
            reported: false,
            level: CompletionLevel::Delivered,
            granted,
            acked_frags: 0,
            next: 0,
            turn: None,
            fragments: Some(Box::new(Fragments {
                masks: vec![0; frags.div_ceil(64) as usize],
                ..Fragments::default()
            })),
            levels: None,
        }
    }

    #[test]
    fn masks_are_ored_and_bits_beyond_the_end_do_not_count() {
        let mut m = msg(70 * 100 - 50, 100);
        m.ack_mask(0, 0b1010);
        m.ack_mask(0, 0b0010); // an older mask that arrives later
        assert_eq!(m.acked_frags, 2);
        m.ack_mask(0, u64::MAX);
        m.ack_mask(1, u64::MAX);
        m.ack_mask(9, u64::MAX);
        assert_eq!(m.acked_frags, 70);
        assert!(m.all_acked());
    }

    #[test]
    fn pieces_of_a_fragment_make_it_whole() {
        let mut m = msg(250, 100);
        m.ack_bytes(100, 40);
        m.ack_bytes(160, 40);
        assert!(m.needs(140, 20) && !m.needs(100, 40));
        m.ack_bytes(140, 20);
        assert!(m.frag_acked(1));
        m.ack_bytes(200, 50);
        m.ack_bytes(0, 100);
        assert!(m.all_acked());
    }

    #[test]
    fn vectors_are_walked_in_order() {
        let (mut a, mut b) = ([0u8; 3], [0u8; 4]);
        let iov = Iov::from_slice(&[IoVec::from_mut(&mut a), IoVec::from_mut(&mut b)]);
        iov.scatter(2, &[7, 8, 9]);
        assert_eq!((a, b), ([0, 0, 7], [8, 9, 0, 0]));
        let mut out = vec![];
        iov.gather(1, 4, &mut out);
        assert_eq!(out, [0, 7, 8, 9]);
    }
}
