//! One-sided operations between this process and one peer that are not over.
//!
//! Owns: operations of ours without an answer, writes of the peer that were allowed and have not arrived, reads of the peer that are being
//! served from registered memory. Invariant 10: the ids of orders are the peer's choice; an order gives its memory to one message, the first
//! that names it (hazard H30).

use crate::api::completion::CompletionKind;
use crate::memory::regions::RegionId;
use crate::message::iov::Iov;
use crate::message::target::Landing;
use crate::rest::{OnDemand, rests};
use crate::types::EpId;
use rustc_hash::{FxBuildHasher, FxHashMap};

/// Operations on one peer that may wait for their answers. The peer has bounds of its own ([`served`](crate::memory::served)).
pub(crate) const ORDERS_MAX: usize = 1024;

/// Writes up to this size always travel inside their order: copied once here and once there, and no grant is waited for. They take
/// effect in their turn; larger ones do when their bytes are there.
pub const INLINE_MAX: usize = 8192;

/// Longest write with `inject`: it travels inside its order, too.
pub(crate) const INJECT_MAX: usize = 32 * 1024;

/// The same for a write while no operation on its peer waits for an answer: what waits for it, waits for this one write, and a message
/// beside the order costs more than two copies. Of many at once the copies cost more.
pub(crate) const LONE_INLINE_MAX: usize = INJECT_MAX;

/// An operation of ours, and how it is reported.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub ep: EpId,
    pub kind: CompletionKind,
    pub context: usize,
    pub completion: bool,
    pub bytes: usize,
    /// Where what comes back goes.
    pub result: Option<Iov>,
}

/// An operation of ours that was not answered.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    op: Operation,
    beside: Beside,
}

/// The message beside the order of an operation.
#[derive(Debug, Clone, Copy)]
enum Beside {
    /// There is none, or not yet.
    None,
    /// Ours, with the bytes of a write.
    Body(u64),
    /// The peer's, which brings the bytes of a read. No other is taken.
    Landing(u64),
}

impl Pending {
    /// Where what comes back goes.
    pub fn result(&self) -> Option<&Iov> {
        self.op.result.as_ref()
    }

    /// Our message with the bytes of a write.
    pub fn body(&self) -> Option<u64> {
        if let Beside::Body(seq) = self.beside { Some(seq) } else { None }
    }

    /// The peer's message that brings the bytes of a read.
    pub fn landing(&self) -> Option<u64> {
        if let Beside::Landing(seq) = self.beside { Some(seq) } else { None }
    }
}

/// A write of the peer that is allowed.
#[derive(Debug, Clone)]
pub(crate) struct AllowedWrite {
    pub memory: Iov,
    pub regions: Box<[RegionId]>,
    /// The endpoint that is written to, and the one that writes.
    pub ep: EpId,
    pub asker: u16,
    pub data: Option<u64>,
    pub bytes: u64,
}

/// The same, while its bytes are on the way.
#[derive(Debug, Clone)]
struct Expected {
    write: AllowedWrite,
    /// The peer's message that has got the memory. No other does.
    landing: Option<u64>,
}

rests! {
    empty
    FxHashMap<u64, Pending> = FxHashMap::with_hasher(FxBuildHasher);
    FxHashMap<u64, Expected> = FxHashMap::with_hasher(FxBuildHasher);
    FxHashMap<u64, Box<[RegionId]>> = FxHashMap::with_hasher(FxBuildHasher);
}

#[derive(Clone, Default)]
pub(crate) struct Orders {
    /// Operations that were begun. Ids count from 1.
    begun: u64,
    pending: OnDemand<FxHashMap<u64, Pending>>,
    expected: OnDemand<FxHashMap<u64, Expected>>,
    /// The latest operation of the peer whose turn has come. They come in their order.
    carried_out: u64,
    /// The first of them whose bytes never come, because the peer is gone.
    lost_from: Option<u64>,
    /// Messages that read registered memory, and its regions.
    serving: OnDemand<FxHashMap<u64, Box<[RegionId]>>>,
}

/// What a message beside an order gets.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Nothing: no order waits for it.
    Unknown,
    /// Nothing: another message has got the memory.
    Taken,
    /// The memory.
    Memory { ep: EpId, iov: Iov, landing: Landing },
}

impl Orders {
    // ---- operations of ours ------------------------------------------------------------------------------------

    /// Whether no more operations may wait for their answers.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= ORDERS_MAX
    }

    /// Whether no operation waits for its answer.
    pub fn is_idle(&self) -> bool {
        self.pending.is_at_rest()
    }

    /// An operation begins. Its id.
    pub fn begin(&mut self, op: Operation) -> u64 {
        self.begun += 1;
        self.pending.insert(self.begun, Pending { op, beside: Beside::None });
        self.begun
    }

    /// Operations that were begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// The bytes of a write were posted as this message.
    pub fn body_is_posted(&mut self, id: u64, seq: u64) {
        if let Some(p) = self.pending.awake_mut().and_then(|all| all.get_mut(&id)) {
            debug_assert!(matches!(p.beside, Beside::None), "an order has one message beside it");
            p.beside = Beside::Body(seq);
        }
    }

    /// An operation that waits for its answer.
    pub fn pending(&self, id: u64) -> Option<&Pending> {
        self.pending.awake()?.get(&id)
    }

    /// The ids of all operations that wait, in order.
    pub fn pending_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.pending.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// An operation is over.
    pub fn end(&mut self, id: u64) -> Option<Operation> {
        Some(self.pending.awake_mut()?.remove(&id)?.op)
    }

    /// The operations of an endpoint are over. How many.
    pub fn end_all_of(&mut self, ep: EpId) -> u64 {
        let Some(all) = self.pending.awake_mut() else { return 0 };
        let before = all.len();
        all.retain(|_, p| p.op.ep != ep);
        (before - all.len()) as u64
    }

    // ---- writes of the peer ------------------------------------------------------------------------------------

    /// Whether a write with this id was allowed and has not arrived.
    pub fn is_expected(&self, id: u64) -> bool {
        self.expected.awake().is_some_and(|all| all.contains_key(&id))
    }

    /// The turn of an operation of the peer has come.
    pub fn carry_out(&mut self, id: u64) {
        self.carried_out = self.carried_out.max(id);
    }

    /// Whether one of the peer's first so many operations has not had its turn, or is a write that was allowed and has not arrived, or was lost
    /// with the peer.
    pub fn expects_any_of(&self, operations: u64) -> bool {
        operations > self.carried_out
            || self.lost_from.is_some_and(|id| id <= operations)
            || self.expected.awake().is_some_and(|all| all.keys().any(|id| *id <= operations))
    }

    /// A write is allowed.
    pub fn expect(&mut self, id: u64, write: AllowedWrite) {
        self.expected.insert(id, Expected { write, landing: None });
    }

    /// A write has arrived, or is not taken.
    pub fn end_expected(&mut self, id: u64) -> Option<AllowedWrite> {
        Some(self.expected.awake_mut()?.remove(&id)?.write)
    }

    /// A write is not allowed any more; with it the message that has got its memory.
    pub fn refuse_expected(&mut self, id: u64) -> Option<(AllowedWrite, Option<u64>)> {
        let e = self.expected.awake_mut()?.remove(&id)?;
        Some((e.write, e.landing))
    }

    /// The ids of those writes that were allowed and have not arrived, in order.
    pub fn expected_where(&self, which: impl Fn(&AllowedWrite) -> bool) -> Vec<u64> {
        let found = self.expected.iter().filter(|(_, e)| which(&e.write));
        let mut ids: Vec<u64> = found.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Gives the memory of order `id` to message `seq` of `total` bytes, which is the answer to a read (`result`) or the bytes of a write.
    /// Without `once`, planted, several messages get it.
    pub fn claim(&mut self, seq: u64, id: u64, result: bool, total: u64, once: bool) -> Claim {
        if result {
            let read = self.pending.awake_mut().and_then(|all| all.get_mut(&id));
            let fits = |p: &&mut Pending| p.op.kind == CompletionKind::Read && p.op.bytes as u64 == total;
            let Some(p) = read.filter(fits) else { return Claim::Unknown };
            let Some(iov) = p.op.result.clone() else { return Claim::Unknown };
            if p.landing().is_some() && once {
                return Claim::Taken;
            }
            p.beside = Beside::Landing(seq);
            return Claim::Memory { ep: p.op.ep, iov, landing: Landing::Result { order: id } };
        }
        let write = self.expected.awake_mut().and_then(|all| all.get_mut(&id));
        let Some(e) = write.filter(|e| e.write.bytes == total) else { return Claim::Unknown };
        if e.landing.is_some() && once {
            return Claim::Taken;
        }
        e.landing = Some(seq);
        let AllowedWrite { ep, memory, .. } = &e.write;
        Claim::Memory { ep: *ep, iov: memory.clone(), landing: Landing::Placed { order: id } }
    }

    // ---- reads of the peer -------------------------------------------------------------------------------------

    /// Message `seq` reads these regions.
    pub fn serve(&mut self, seq: u64, regions: Box<[RegionId]>) {
        self.serving.insert(seq, regions);
    }

    /// A message reads nothing any more.
    pub fn end_serving(&mut self, seq: u64) {
        if let Some(all) = self.serving.awake_mut() {
            all.remove(&seq);
        }
    }

    /// The messages that read a region, which they do no more, in order.
    pub fn end_serving_from(&mut self, region: RegionId) -> Vec<u64> {
        let Some(all) = self.serving.awake_mut() else { return Vec::new() };
        let readers = all.iter().filter(|(_, r)| r.contains(&region)).map(|(seq, _)| *seq);
        let mut readers: Vec<u64> = readers.collect();
        readers.sort_unstable();
        all.retain(|_, r| !r.contains(&region));
        readers
    }

    // ---- all of them -------------------------------------------------------------------------------------------

    /// The peer is gone, and this operation of its is never carried out in full.
    pub fn lose(&mut self, id: u64) {
        self.lost_from = Some(self.lost_from.map_or(id, |first| first.min(id)));
    }

    /// The peer is gone: nothing of it arrives or is read any more.
    pub fn abandon_peer(&mut self) {
        if let Some(first) = self.expected.keys().min().copied() {
            self.lose(first);
        }
        self.expected = OnDemand::default();
        self.serving = OnDemand::default();
    }

    /// Operations without an answer, writes that have not arrived, reads that are being served.
    pub fn len(&self) -> (usize, usize, usize) {
        (self.pending.len(), self.expected.len(), self.serving.len())
    }

    /// The message to which an order has given its memory.
    pub fn landing_of(&self, landing: &Landing) -> Option<u64> {
        match landing {
            Landing::Placed { order } => self.expected.get(order)?.landing,
            Landing::Result { order } => self.pending.get(order)?.landing(),
            Landing::Receive | Landing::Assembly(_) => None,
        }
    }

    /// All messages to which orders have given their memory.
    pub fn landings(&self) -> impl Iterator<Item = u64> + '_ {
        let writes = self.expected.values().filter_map(|e| e.landing);
        writes.chain(self.pending.values().filter_map(Pending::landing))
    }

    /// Gives back memory that is kept for nothing.
    pub fn rest(&mut self) {
        self.pending.rest();
        self.expected.rest();
        self.serving.rest();
    }

    /// Checks what can be seen here.
    pub fn check(&self) {
        assert!(self.pending.len() <= ORDERS_MAX, "invariant 7: operations without an answer are bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Iov {
        Iov::none()
    }

    fn read(ep: u16) -> Operation {
        Operation {
            ep: EpId(ep),
            kind: CompletionKind::Read,
            context: 0,
            completion: true,
            bytes: 5000,
            result: Some(memory()),
        }
    }

    fn write(region: u64) -> AllowedWrite {
        AllowedWrite {
            memory: memory(),
            regions: [(0, region)].into(),
            ep: EpId(0),
            asker: 0,
            data: None,
            bytes: 5000,
        }
    }

    #[test]
    fn what_a_peer_that_is_gone_left_unfinished_is_awaited_for_ever() {
        let mut orders = Orders::default();
        assert!(!orders.expects_any_of(0) && orders.expects_any_of(1), "its turn has not come");
        orders.carry_out(1);
        orders.carry_out(2);
        orders.expect(2, write(1));
        assert!(!orders.expects_any_of(1) && orders.expects_any_of(2));
        orders.abandon_peer();
        assert!(!orders.expects_any_of(1) && orders.expects_any_of(2), "its bytes never come");
        assert!(orders.expects_any_of(3));
    }

    #[test]
    fn a_write_of_ours_has_its_bytes_beside_it_and_gives_its_memory_to_no_message() {
        let mut orders = Orders::default();
        let id = orders.begin(Operation { kind: CompletionKind::Write, result: None, ..read(1) });
        orders.body_is_posted(id, 9);
        assert!(matches!(orders.claim(3, id, true, 5000, true), Claim::Unknown));
        let p = orders.pending(id).unwrap();
        assert_eq!((p.body(), p.landing()), (Some(9), None));
        orders.body_is_posted(id + 1, 10);
        assert!(orders.pending(id + 1).is_none(), "an operation that is over has no message");
    }

    #[test]
    fn a_write_that_is_refused_names_the_message_that_has_its_memory() {
        let mut orders = Orders::default();
        for id in [70, 71] {
            orders.expect(id, write(1));
        }
        orders.claim(5, 70, false, 5000, true);
        assert_eq!(orders.refuse_expected(70).map(|(w, landing)| (w.bytes, landing)), Some((5000, Some(5))));
        assert_eq!(orders.refuse_expected(71).map(|(_, landing)| landing), Some(None));
        assert!(orders.refuse_expected(70).is_none() && orders.landings().next().is_none());
    }

    #[test]
    fn an_order_gives_its_memory_to_the_first_message_that_names_it() {
        let mut orders = Orders::default();
        let id = orders.begin(read(1));
        orders.expect(70, write(1));
        assert!(matches!(orders.claim(3, id, true, 4999, true), Claim::Unknown), "another length");
        assert!(matches!(orders.claim(3, id, true, 5000, true), Claim::Memory { ep: EpId(1), .. }));
        assert!(matches!(orders.claim(4, id, true, 5000, true), Claim::Taken));
        assert!(matches!(orders.claim(5, 70, false, 5000, true), Claim::Memory { .. }));
        assert!(matches!(orders.claim(6, 70, false, 5000, true), Claim::Taken));
        assert!(matches!(orders.claim(7, 70, true, 5000, true), Claim::Unknown), "a write is no read");
        assert_eq!(orders.landings().collect::<Vec<_>>(), [5, 3]);
        assert_eq!(orders.landing_of(&Landing::Placed { order: 70 }), Some(5));
        assert!(orders.end_expected(70).is_some() && !orders.is_expected(70));
        assert!(matches!(orders.claim(8, 70, false, 5000, true), Claim::Unknown));
    }

    #[test]
    fn so_many_operations_may_wait_and_each_ends_once() {
        let mut orders = Orders::default();
        for i in 0..ORDERS_MAX {
            assert!(!orders.is_full());
            orders.begin(read((i % 2) as u16));
        }
        assert!(orders.is_full());
        orders.check();
        assert!(orders.end(7).is_some() && orders.end(7).is_none() && !orders.is_full());
        assert_eq!(orders.end_all_of(EpId(1)), ORDERS_MAX as u64 / 2);
        assert_eq!(orders.pending_ids().first(), Some(&1));
        assert_eq!(orders.begin(read(0)), ORDERS_MAX as u64 + 1, "ids are not used again");
    }

    #[test]
    fn a_region_that_is_given_up_names_what_reads_and_writes_it() {
        let mut orders = Orders::default();
        orders.serve(4, [(0, 1), (0, 2)].into());
        orders.serve(5, [(0, 2)].into());
        orders.expect(11, write(1));
        orders.expect(12, write(2));
        assert_eq!(orders.end_serving_from((0, 1)), [4]);
        assert_eq!(orders.end_serving_from((0, 1)), []);
        assert_eq!(orders.expected_where(|e| e.regions.contains(&(0, 1))), [11]);
        orders.end_serving(5);
        assert_eq!(orders.len(), (0, 2, 0));
        orders.abandon_peer();
        orders.rest();
        assert!(orders.len() == (0, 0, 0) && orders.is_idle());
    }
}
