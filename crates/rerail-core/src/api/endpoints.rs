//! Endpoints of one process.
//!
//! Owns: the endpoints by their numbers, which are never used again; which of them wait for room in a completion queue.

use crate::api::endpoint::Endpoint;
use crate::remedies::Remedies;
use crate::types::{CqId, EpId, PeerId, PostError};
use std::time::Duration;

/// Endpoints that an engine can open: their numbers have 16 bits on the wire.
pub const ENDPOINTS_MAX: usize = u16::MAX as usize;

/// The endpoints of an engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Endpoints {
    table: Vec<Endpoint>,
    /// Those whose multi-receives wait for room in their queue, in the order in which they began to.
    stalled: Vec<EpId>,
}

impl Endpoints {
    /// Makes an endpoint that reports to these queues. Its number is never used again.
    pub fn open(&mut self, tx_cq: CqId, rx_cq: CqId, remedies: Remedies) -> Result<EpId, PostError> {
        if self.table.len() >= ENDPOINTS_MAX {
            return Err(PostError::Exhausted(
                "this process has opened 65535 endpoints, the most it can: each number is used once, so that a \
                 late message reaches no other endpoint",
            ));
        }
        let id = EpId(self.table.len() as u16);
        self.table.push(Endpoint::new(id, tx_cq, rx_cq, remedies));
        Ok(id)
    }

    #[inline]
    pub fn get(&self, ep: EpId) -> Option<&Endpoint> {
        self.table.get(usize::from(ep.0))
    }

    #[inline]
    pub fn get_mut(&mut self, ep: EpId) -> Option<&mut Endpoint> {
        self.table.get_mut(usize::from(ep.0))
    }

    /// Whether there is such an endpoint, and it is not closing.
    #[inline]
    pub fn is_open(&self, ep: EpId) -> bool {
        self.get(ep).is_some_and(|e| !e.is_closing())
    }

    /// The endpoint, unless it is closing.
    #[inline]
    pub fn open_mut(&mut self, ep: EpId) -> Option<&mut Endpoint> {
        self.get_mut(ep).filter(|e| !e.is_closing())
    }

    /// All of them, those that close among them.
    pub fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.table.iter()
    }

    /// The numbers of all of them, those that close among them.
    pub fn ids(&self) -> impl Iterator<Item = EpId> + use<> {
        (0..self.table.len()).map(|i| EpId(i as u16))
    }

    /// The peers that posted receives name, endpoint by endpoint, oldest first.
    pub fn awaited(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.table.iter().flat_map(|e| e.matcher().awaited())
    }

    /// Operations of an endpoint are over. One that is not there has none.
    #[inline]
    pub fn settle(&mut self, ep: EpId, operations: u64) {
        if let Some(e) = self.get_mut(ep) {
            e.settle(operations);
        }
    }

    /// The linger times of all endpoints that close end later by so much.
    pub fn extend_lingering(&mut self, by: Duration) {
        self.table.iter_mut().for_each(|e| e.extend_lingering(by));
    }

    // ---- waiting for room --------------------------------------------------------------------------------------

    /// A message of this endpoint waits for room in its queue.
    pub fn stall(&mut self, ep: EpId) {
        self.stalled.push(ep);
    }

    /// No message of this endpoint waits any more.
    pub fn resume(&mut self, ep: EpId) {
        self.stalled.retain(|e| *e != ep);
    }

    /// Whether a message of this endpoint waits for room in its queue.
    #[inline]
    pub fn is_stalled(&self, ep: EpId) -> bool {
        self.stalled.contains(&ep)
    }

    /// Whether any endpoint waits.
    #[inline]
    pub fn any_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Takes all that wait, because there may be room now.
    pub fn take_stalled(&mut self) -> Vec<EpId> {
        std::mem::take(&mut self.stalled)
    }

    /// Gives back most of the memory of queues that are nearly empty.
    pub fn tidy(&mut self) {
        self.table.iter_mut().for_each(|e| e.matcher_mut().tidy());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Time;

    #[test]
    fn numbers_go_on_and_closing_endpoints_are_not_open() {
        let mut all = Endpoints::default();
        let (a, b) = (
            all.open(CqId(0), CqId(0), Remedies::default()).unwrap(),
            all.open(CqId(0), CqId(0), Remedies::default()).unwrap(),
        );
        assert_ne!(a, b);
        all.get_mut(a).unwrap().close(Time::ORIGIN);
        assert!(!all.is_open(a) && all.is_open(b) && !all.is_open(EpId(7)));
        assert!(all.open_mut(a).is_none() && all.get_mut(a).is_some());
        assert!(!all.ids().any(|ep| ep == EpId(2)) && all.ids().count() == 2);
    }

    #[test]
    fn numbers_are_used_once_and_then_refused() {
        let mut all = Endpoints::default();
        for n in 0..ENDPOINTS_MAX {
            assert_eq!(all.open(CqId(0), CqId(0), Remedies::default()), Ok(EpId(n as u16)));
        }
        all.get_mut(EpId(0)).unwrap().close(Time::ORIGIN);
        let next = all.open(CqId(0), CqId(0), Remedies::default());
        assert!(matches!(next, Err(PostError::Exhausted(_))));
    }

    #[test]
    fn what_waits_for_room_waits_until_it_resumes() {
        let mut all = Endpoints::default();
        all.stall(EpId(3));
        all.stall(EpId(1));
        all.stall(EpId(3));
        assert!(all.any_stalled() && all.is_stalled(EpId(3)) && !all.is_stalled(EpId(2)));
        all.resume(EpId(3));
        assert_eq!(all.take_stalled(), [EpId(1)]);
        assert!(!all.any_stalled());
    }
}
