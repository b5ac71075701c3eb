//! Connections of peers that the engine has not accepted. Owns: these, and which of them may be accepted.
//!
//! A lane of a peer may be accepted once its first message has come (hazard H23). One on which it does not come is ended. Both are
//! found without a look at all of them.

use crate::lane::{Lane, LaneNumber};
use rerail_rail::Locator;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Such connections at most. Peers open a connection again that was ended.
const MAX: usize = 1024;
/// How long the first message of a peer may take.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// A connection of a peer.
pub struct Newcomer {
    pub lane: Box<Lane>,
    pub from: Locator,
}

/// See the module.
#[derive(Default)]
pub struct Incoming {
    newcomers: FxHashMap<LaneNumber, Newcomer>,
    /// Those whose first message has come, in that order; also some that are gone.
    greeted: VecDeque<LaneNumber>,
    /// All of them in the order in which they came; also some that are gone.
    by_age: VecDeque<(Instant, LaneNumber)>,
}

impl Incoming {
    /// Gives the lane back where there are too many.
    pub fn add(&mut self, lane: Box<Lane>, from: Locator) -> Result<(), Box<Lane>> {
        if self.newcomers.len() >= MAX {
            return Err(lane);
        }
        self.by_age.push_back((Instant::now(), lane.number));
        self.newcomers.insert(lane.number, Newcomer { lane, from });
        Ok(())
    }

    pub fn contains(&self, number: LaneNumber) -> bool {
        self.newcomers.contains_key(&number)
    }

    /// Lets a completion change a lane. Gives the lane back when it is over.
    pub fn change(&mut self, number: LaneNumber, change: impl FnOnce(&mut Lane)) -> Option<Box<Lane>> {
        let lane = &mut self.newcomers.get_mut(&number)?.lane;
        let was_greeted = lane.is_greeted();
        change(lane);
        if lane.over().is_some() {
            return self.remove(number);
        }
        if lane.is_greeted() && !was_greeted {
            self.greeted.push_back(number);
        }
        None
    }

    pub fn remove(&mut self, number: LaneNumber) -> Option<Box<Lane>> {
        self.newcomers.remove(&number).map(|n| n.lane)
    }

    /// Whether there is one to accept.
    pub fn is_ready(&mut self) -> bool {
        while self.greeted.front().is_some_and(|number| !self.newcomers.contains_key(number)) {
            self.greeted.pop_front();
        }
        !self.greeted.is_empty()
    }

    /// The one to accept next.
    pub fn accept(&mut self) -> Option<Newcomer> {
        self.is_ready();
        self.newcomers.remove(&self.greeted.pop_front()?)
    }

    /// A lane whose first message has not come in time; to be called until there is none.
    pub fn next_silent(&mut self) -> Option<Box<Lane>> {
        loop {
            let &(since, number) = self.by_age.front()?;
            match self.newcomers.get(&number) {
                Some(n) if !n.lane.is_greeted() => {
                    if since.elapsed() <= GREETING_PATIENCE {
                        return None;
                    }
                    self.by_age.pop_front();
                    return self.remove(number);
                }
                _ => self.by_age.pop_front(),
            };
        }
    }

    /// All of them.
    pub fn drain(&mut self) -> impl Iterator<Item = Box<Lane>> + '_ {
        self.newcomers.drain().map(|(_, n)| n.lane)
    }

    /// As if time had passed.
    #[cfg(test)]
    pub fn age(&mut self) {
        self.by_age.iter_mut().for_each(|(since, _)| *since -= 2 * GREETING_PATIENCE);
    }
}
