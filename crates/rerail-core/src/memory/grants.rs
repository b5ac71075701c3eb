//! Grants that wait until the memory of their messages is registered with the adapters.
//!
//! Owns: which they are, and since when. What a peer may send before it has the key goes as copies, so a grant that goes at once costs more
//! than it saves. Invariant: no grant waits longer than [`GRANT_PATIENCE`]; after one that waited in vain none waits for a while, because an adapter
//! that may lock no more memory reports nothing.

use crate::types::{PeerId, Time};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// How long a grant waits. Registering a megabyte takes an adapter's driver a tenth of a millisecond.
pub(crate) const GRANT_PATIENCE: Duration = Duration::from_millis(5);
/// How long none waits after one that waited in vain.
const PAUSE: Duration = Duration::from_secs(1);

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldGrants {
    since: FxHashMap<(PeerId, u64), Time>,
    paused_until: Option<Time>,
}

impl HeldGrants {
    /// A grant is to wait; false: it goes at once.
    pub fn hold(&mut self, peer: PeerId, seq: u64, now: Time) -> bool {
        if self.paused_until.is_some_and(|until| now < until) {
            return false;
        }
        self.since.insert((peer, seq), now);
        true
    }

    /// It waits no longer. Returns whether it did.
    pub fn release(&mut self, peer: PeerId, seq: u64) -> bool {
        self.since.remove(&(peer, seq)).is_some()
    }

    /// Takes those of a peer that have waited in vain; and when the next one has.
    pub fn overdue(&mut self, peer: PeerId, now: Time) -> (Vec<u64>, Time) {
        if self.since.is_empty() {
            return (Vec::new(), Time::NEVER);
        }
        let of_peer = self.since.iter().filter(|((of, _), _)| *of == peer);
        let due: Vec<(u64, Time)> = of_peer.map(|((_, seq), at)| (*seq, *at + GRANT_PATIENCE)).collect();
        let next = due.iter().map(|d| d.1).filter(|at| *at > now).min().unwrap_or(Time::NEVER);
        let mut late: Vec<u64> = due.iter().filter(|d| d.1 <= now).map(|d| d.0).collect();
        late.sort_unstable();
        for seq in &late {
            self.since.remove(&(peer, *seq));
            self.paused_until = Some(now + PAUSE);
        }
        (late, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(3);

    #[test]
    fn a_grant_waits_for_its_keys_and_not_for_ever() {
        let (mut held, now) = (HeldGrants::default(), Time::ORIGIN);
        assert!(held.hold(PEER, 7, now) && held.hold(PEER, 8, now + GRANT_PATIENCE / 2));
        assert!(held.hold(PeerId(4), 7, now));
        assert!(held.release(PeerId(4), 7) && !held.release(PeerId(4), 7));
        assert_eq!(held.overdue(PEER, now), (vec![], now + GRANT_PATIENCE));
        let later = now + GRANT_PATIENCE;
        assert_eq!(held.overdue(PEER, later), (vec![7], later + GRANT_PATIENCE / 2));
        assert!(!held.hold(PEER, 9, later), "one waited in vain");
        assert!(held.release(PEER, 8), "the other still waits");
        assert!(held.hold(PEER, 10, later + PAUSE));
    }
}
