//! Loans: memory of the application that a rail may touch outside of a call.
//!
//! Owns: the writes that were posted and are not over, the regions whose keys peers may have, and the operations that
//! wait for the end of both. Two kinds of loan: the source of a posted write, which ends when the rail reports that the
//! work is done or its stream closed; the target of a peer's writes, which ends when the rail reports that its region
//! is invalid. (That all writes of a message have landed ends it as well: each fragment is written once, and its notice
//! follows on the same stream.)
//!
//! Invariant 4: an operation whose memory is lent is not reported before its loans have ended, unless every byte that was granted has landed.
//! Names of works and regions are never used twice in the life of a process (hazard H21).

use crate::api::completion::CompletionError;
use crate::message::envelope::Envelope;
use crate::message::target::Target;
use crate::message::tx::TxMsg;
use crate::types::{EpId, MemId, PathId, PeerId, StreamId, Time, WorkId};
#[cfg(feature = "planted-bugs")]
use crate::types::{Place, Window};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::time::Duration;

/// A message that is over and whose source is still read makes its streams close after this time. When the peer has
/// acknowledged a write, an adapter needs microseconds to report it as done; while its answers are lost it reports
/// nothing.
pub(crate) const LOAN_PATIENCE: Duration = Duration::from_millis(20);

/// A message of a peer.
type Message = (PeerId, u64);

/// A send that is over and waits for the end of its loans.
#[derive(Debug, Clone)]
pub(crate) struct EndingSend {
    pub seq: u64,
    pub message: TxMsg,
    pub error: Option<CompletionError>,
    pub since: Time,
}

/// A receive that has failed and waits until nothing writes into its memory any more.
#[derive(Debug, Clone)]
pub(crate) struct EndingReceive {
    pub envelope: Envelope,
    pub target: Target,
    /// How it is reported; `None`: not at all, its endpoint is closed.
    pub error: Option<CompletionError>,
}

/// A write that is under way.
#[derive(Debug, Clone, Copy)]
struct Work {
    message: Message,
    stream: StreamId,
}

/// Memory that a peer may write by a key.
#[derive(Debug, Clone, Copy)]
struct Lent {
    message: Message,
    path: PathId,
    /// It is registered, so the peer may have the key.
    known: bool,
    /// It is to end.
    ending: bool,
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loans {
    works: FxHashMap<WorkId, Work>,
    /// How many works read each message.
    sources: FxHashMap<Message, u32>,
    works_named: u64,
    regions: FxHashMap<MemId, Lent>,
    targets: FxHashMap<Message, SmallVec<[MemId; 2]>>,
    regions_named: u32,
    sends: FxHashMap<Message, EndingSend>,
    receives: FxHashMap<Message, EndingReceive>,
    /// Planted: writes whose notices went ahead of them.
    #[cfg(feature = "planted-bugs")]
    held: FxHashMap<StreamId, SmallVec<[Place; 2]>>,
    /// Planted: names of regions that are over, and whether they are used again.
    #[cfg(feature = "planted-bugs")]
    spent: (Vec<MemId>, bool),
}

impl Loans {
    // ---- sources -----------------------------------------------------------------------------------------------

    /// A part of a message is going to be written on a stream: the name of the work.
    pub fn lend(&mut self, peer: PeerId, seq: u64, stream: StreamId) -> WorkId {
        self.works_named += 1;
        let id = WorkId(self.works_named);
        self.works.insert(id, Work { message: (peer, seq), stream });
        *self.sources.entry((peer, seq)).or_default() += 1;
        id
    }

    /// A work is over. Its stream, and the send that ends with it. `None`: it was over before.
    pub fn done(&mut self, work: WorkId) -> Option<(StreamId, Option<(PeerId, EndingSend)>)> {
        let w = self.works.remove(&work)?;
        Some((w.stream, self.less(w.message)))
    }

    /// A stream is closed, and reads nothing any more: the sends that end with that.
    pub fn closed(&mut self, stream: StreamId) -> Vec<(PeerId, EndingSend)> {
        #[cfg(feature = "planted-bugs")]
        self.held.remove(&stream);
        if self.works.is_empty() {
            return Vec::new();
        }
        let mut over: Vec<(WorkId, Message)> =
            self.works.iter().filter(|(_, w)| w.stream == stream).map(|(id, w)| (*id, w.message)).collect();
        over.sort_unstable();
        over.into_iter()
            .filter_map(|(id, message)| {
                self.works.remove(&id);
                self.less(message)
            })
            .collect()
    }

    fn less(&mut self, message: Message) -> Option<(PeerId, EndingSend)> {
        let n = self.sources.get_mut(&message).expect("the works of a message are counted");
        *n -= 1;
        if *n > 0 {
            return None;
        }
        self.sources.remove(&message);
        self.sends.remove(&message).map(|s| (message.0, s))
    }

    /// Whether a message is still read.
    pub fn is_read(&self, peer: PeerId, seq: u64) -> bool {
        !self.sources.is_empty() && self.sources.contains_key(&(peer, seq))
    }

    /// The streams that read a message.
    pub fn readers(&self, peer: PeerId, seq: u64) -> Vec<StreamId> {
        let mut of: Vec<StreamId> =
            self.works.values().filter(|w| w.message == (peer, seq)).map(|w| w.stream).collect();
        of.sort_unstable();
        of.dedup();
        of
    }

    /// A message is over, and reported when nothing reads it any more.
    pub fn end_send(&mut self, peer: PeerId, send: EndingSend) {
        debug_assert!(self.is_read(peer, send.seq), "else it is reported at once");
        self.sends.insert((peer, send.seq), send);
    }

    /// Messages to a peer that have been over for too long and are still read, and when the next one is.
    pub fn overdue(&self, peer: PeerId, now: Time) -> (Vec<u64>, Time) {
        let (mut late, mut next) = (Vec::new(), Time::NEVER);
        for ((to, seq), send) in &self.sends {
            match send.since + LOAN_PATIENCE {
                _ if *to != peer => {}
                at if at <= now => late.push(*seq),
                at => next = next.min(at),
            }
        }
        late.sort_unstable();
        (late, next)
    }

    /// Planted: the writes of a window go with the next one, behind the frames that report them.
    #[cfg(feature = "planted-bugs")]
    pub fn hold_back(&mut self, stream: StreamId, window: &mut Window) {
        window.swap_places(self.held.entry(stream).or_default());
    }

    // ---- targets -----------------------------------------------------------------------------------------------

    /// Memory of a message is going to be registered for writes by a path: its name.
    pub fn offer(&mut self, peer: PeerId, seq: u64, path: PathId) -> MemId {
        let id = self.name_region();
        self.regions.insert(id, Lent { message: (peer, seq), path, known: false, ending: false });
        self.targets.entry((peer, seq)).or_default().push(id);
        id
    }

    fn name_region(&mut self) -> MemId {
        #[cfg(feature = "planted-bugs")]
        if let (spent, true) = &mut self.spent {
            if let Some(id) = spent.pop() {
                return id;
            }
        }
        self.regions_named = self.regions_named.checked_add(1).expect("fewer than 2^32 regions in a life");
        MemId(self.regions_named)
    }

    /// Planted: the names of regions that are over are used again.
    #[cfg(feature = "planted-bugs")]
    pub fn use_names_again(&mut self) {
        self.spent.1 = true;
    }

    /// A region can be written now, and its key is sent: for which message, and on which path. `None`: that is over.
    pub fn registered(&mut self, region: MemId) -> Option<(PeerId, u64, PathId)> {
        let r = self.regions.get_mut(&region).filter(|r| !r.ending)?;
        r.known = true;
        Some((r.message.0, r.message.1, r.path))
    }

    /// The paths for which memory of a message was offered that cannot be written yet.
    pub fn unregistered(&self, peer: PeerId, seq: u64) -> impl Iterator<Item = PathId> {
        let of = self.targets.get(&(peer, seq)).into_iter().flatten();
        of.filter_map(|id| self.regions.get(id)).filter(|r| !r.known).map(|r| r.path)
    }

    /// Whether the peer may have a key for a message on a path.
    pub fn is_lent(&self, peer: PeerId, seq: u64, path: PathId) -> bool {
        let of = self.targets.get(&(peer, seq));
        let lent = |id: &MemId| self.regions.get(id).is_some_and(|r| r.path == path && r.known);
        of.is_some_and(|of| of.iter().any(lent))
    }

    /// Whether a peer may be writing on a path: it may have a key for a message that is not over.
    pub fn may_write(&self, peer: PeerId, path: PathId) -> bool {
        self.regions.values().any(|r| r.message.0 == peer && r.path == path && r.known && !r.ending)
    }

    /// A message is over: the regions to be made invalid, and whether the peer may know a key of one.
    pub fn take_back(&mut self, peer: PeerId, seq: u64) -> (SmallVec<[MemId; 2]>, bool) {
        let mut taken = SmallVec::new();
        let mut known = false;
        for id in self.targets.get(&(peer, seq)).into_iter().flatten() {
            let r = self.regions.get_mut(id).expect("a region of a message is known");
            if !std::mem::replace(&mut r.ending, true) {
                taken.push(*id);
            }
            known |= r.known;
        }
        (taken, known)
    }

    /// A receive has failed, and is reported when nothing writes into it any more.
    pub fn end_receive(&mut self, peer: PeerId, seq: u64, receive: EndingReceive) {
        debug_assert!(self.targets.contains_key(&(peer, seq)), "else it is reported at once");
        self.receives.insert((peer, seq), receive);
    }

    /// Nothing writes into a region any more: the receive that ends with that.
    pub fn invalidated(&mut self, region: MemId) -> Option<(PeerId, EndingReceive)> {
        let r = self.regions.remove(&region)?;
        #[cfg(feature = "planted-bugs")]
        self.spent.0.push(region);
        let of = self.targets.get_mut(&r.message).expect("a region is one of its message's");
        of.retain(|id| *id != region);
        if !of.is_empty() {
            return None;
        }
        self.targets.remove(&r.message);
        self.receives.remove(&r.message).map(|receive| (r.message.0, receive))
    }

    // ---- all ---------------------------------------------------------------------------------------------------

    /// Whether memory of operations that are over, of endpoint `ep` or of any, may still be touched.
    pub fn is_ending(&self, ep: Option<EpId>) -> bool {
        let counts = |of: EpId| ep.is_none_or(|ep| ep == of);
        self.sends.values().any(|s| counts(EpId(s.message.envelope().src_ep)))
            || self.receives.values().any(|r| counts(r.target.ep))
    }

    /// Loans that are open: sources, and targets.
    pub fn count(&self) -> (usize, usize) {
        (self.works.len(), self.regions.len())
    }

    /// Checks the invariants.
    pub fn check(&self) {
        assert_eq!(self.sources.values().map(|n| *n as usize).sum::<usize>(), self.works.len());
        assert_eq!(self.targets.values().map(SmallVec::len).sum::<usize>(), self.regions.len());
        assert!(self.sends.keys().all(|m| self.sources.contains_key(m)), "a send that waits is read");
        assert!(self.receives.keys().all(|m| self.targets.contains_key(m)), "a receive that waits is lent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::iov::Iov;
    use crate::message::target::Landing;
    use crate::types::Protocol;

    const PEER: PeerId = PeerId(3);

    fn receive() -> EndingReceive {
        let envelope = Envelope {
            src_ep: 0,
            dst_ep: 0,
            protocol: Protocol::Msg,
            role: crate::message::envelope::Role::Message,
            tag: 0,
            data: None,
            total: 10,
            granule: 1024,
        };
        let target = Target {
            ep: EpId(7),
            protocol: Protocol::Msg,
            context: 0,
            completion: true,
            iov: Iov::none(),
            cap: 10,
            multi: None,
            landing: Landing::Receive,
        };
        EndingReceive { envelope, target, error: None }
    }

    #[test]
    fn a_source_is_read_until_the_last_work_is_over_or_its_stream_closed() {
        let mut l = Loans::default();
        let (a, b) = (StreamId(1), StreamId(2));
        let works = [l.lend(PEER, 5, a), l.lend(PEER, 5, b), l.lend(PEER, 6, b)];
        assert_eq!((l.readers(PEER, 5), l.count()), (vec![a, b], (3, 0)));
        assert!(l.done(works[0]).is_some_and(|(s, ended)| s == a && ended.is_none()));
        assert!(l.done(works[0]).is_none() && l.is_read(PEER, 5));
        assert!(l.closed(a).is_empty() && l.is_read(PEER, 5));
        l.closed(b);
        assert!(!l.is_read(PEER, 5) && !l.is_read(PEER, 6));
        l.check();
    }

    #[test]
    fn a_receive_waits_for_all_of_its_regions_and_a_late_key_is_not_sent() {
        let mut l = Loans::default();
        let (one, two) = (l.offer(PEER, 5, PathId(0)), l.offer(PEER, 5, PathId(1)));
        assert_eq!(l.registered(one), Some((PEER, 5, PathId(0))));
        assert_eq!(l.unregistered(PEER, 5).collect::<Vec<_>>(), [PathId(1)]);
        assert!(l.is_lent(PEER, 5, PathId(0)) && !l.is_lent(PEER, 5, PathId(1)));
        assert!(l.may_write(PEER, PathId(0)) && !l.may_write(PEER, PathId(1)));
        assert_eq!(l.take_back(PEER, 5), ([one, two].into(), true));
        assert_eq!(l.take_back(PEER, 5), (SmallVec::new(), true), "asked for once");
        assert_eq!(l.registered(two), None, "too late");
        assert!(!l.may_write(PEER, PathId(0)), "what comes now comes in vain");
        l.end_receive(PEER, 5, receive());
        assert!(l.is_ending(Some(EpId(7))) && l.is_ending(None) && !l.is_ending(Some(EpId(8))));
        assert!(l.invalidated(two).is_none() && l.invalidated(two).is_none());
        l.check();
        assert!(l.invalidated(one).is_some_and(|(peer, _)| peer == PEER) && !l.is_ending(None));
        l.check();
    }
}
