//! Grants that wait until the memory of their messages is registered with the adapters.
//!
//! Owns: which they are and since when, and which rails none waits for. What a peer sends before it has the key goes as copies, so a grant that
//! is sent at once costs more than it saves. Invariants: no grant waits longer than [`GRANT_PATIENCE`]; after one that waited for a rail in
//! vain, none waits for that rail for a while, because an adapter that may lock no more memory reports nothing. The grants of other
//! rails wait as before.

use crate::types::{PeerId, RailId, Time};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// How long a grant waits. Registering a megabyte takes an adapter's driver a tenth of a millisecond.
pub(crate) const GRANT_PATIENCE: Duration = Duration::from_millis(5);
/// How long none waits for a rail for which one waited in vain.
const PAUSE: Duration = Duration::from_secs(1);

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldGrants {
    since: FxHashMap<(PeerId, u64), Time>,
    paused_until: FxHashMap<RailId, Time>,
}

impl HeldGrants {
    /// Whether grants wait for the keys of a rail.
    pub fn waits_for(&self, rail: RailId, now: Time) -> bool {
        self.paused_until.get(&rail).is_none_or(|until| now >= *until)
    }

    /// A grant has waited for this rail in vain.
    pub fn pause(&mut self, rail: RailId, now: Time) {
        self.paused_until.insert(rail, now + PAUSE);
    }

    /// A grant is to wait.
    pub fn hold(&mut self, peer: PeerId, seq: u64, now: Time) {
        self.since.insert((peer, seq), now);
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
        held.hold(PEER, 7, now);
        held.hold(PEER, 8, now + GRANT_PATIENCE / 2);
        held.hold(PeerId(4), 7, now);
        assert!(held.release(PeerId(4), 7) && !held.release(PeerId(4), 7));
        assert_eq!(held.overdue(PEER, now), (vec![], now + GRANT_PATIENCE));
        let later = now + GRANT_PATIENCE;
        assert_eq!(held.overdue(PEER, later), (vec![7], later + GRANT_PATIENCE / 2));
        assert!(!held.release(PEER, 7) && held.release(PEER, 8), "the other still waits");
    }

    #[test]
    fn a_rail_for_which_one_waited_in_vain_is_not_waited_for_and_the_others_are() {
        let (mut held, now) = (HeldGrants::default(), Time::ORIGIN);
        held.pause(RailId(1), now);
        assert!(!held.waits_for(RailId(1), now) && held.waits_for(RailId(0), now));
        assert!(held.waits_for(RailId(1), now + PAUSE));
    }
}
