//! The faults of a process: which plan is in force, since when, and what was done by it.

use crate::plan::Plan;
use rerail_rail::RailId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// What was done to a rail. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams that were lost, in the dark included.
    pub lost: u64,
    /// Datagrams and blocks of streams in which a bit was flipped.
    pub corrupted: u64,
    /// Datagrams that were sent or handed over twice.
    pub duplicated: u64,
    /// Datagrams that were held back.
    pub reordered: u64,
    /// Datagrams that were delayed or waited out a stall.
    pub delayed: u64,
    /// Reads and writes of streams that were refused because the stream was to stand still.
    pub stood: u64,
    /// Streams that were reset.
    pub reset: u64,
}

impl Counts {
    /// Every counter by name.
    pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
        let Self { lost, corrupted, duplicated, reordered, delayed, stood, reset } = *self;
        f("lost", lost);
        f("corrupted", corrupted);
        f("duplicated", duplicated);
        f("reordered", reordered);
        f("delayed", delayed);
        f("stood", stood);
        f("reset", reset);
    }

    /// Whether nothing was done.
    pub fn is_zero(&self) -> bool {
        *self == Counts::default()
    }
}

#[derive(Default)]
pub(super) struct Tally {
    pub lost: AtomicU64,
    pub corrupted: AtomicU64,
    pub duplicated: AtomicU64,
    pub reordered: AtomicU64,
    pub delayed: AtomicU64,
    pub stood: AtomicU64,
    pub reset: AtomicU64,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A plan, and when it came into force.
pub(super) struct InForce {
    pub plan: Plan,
    since: Instant,
}

impl InForce {
    /// The plan's time.
    pub fn at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// The faults of a process, shared by the layers over its ports and the code that changes them.
pub struct Injector {
    /// There is a plan: looked at by every call, so that without one the rest costs nothing.
    on: AtomicBool,
    current: RwLock<Arc<InForce>>,
    rails: Vec<String>,
    tallies: Vec<Tally>,
}

impl Injector {
    /// Without a plan, for the rails of these names.
    pub fn new(rails: Vec<String>) -> Arc<Injector> {
        Arc::new(Injector {
            on: AtomicBool::new(false),
            current: RwLock::new(Arc::new(InForce { plan: Plan::default(), since: Instant::now() })),
            tallies: rails.iter().map(|_| Tally::default()).collect(),
            rails,
        })
    }

    /// Puts a plan into force; its time begins now. An empty plan ends all faults; what was held goes on its way.
    pub fn set(&self, plan: Plan) {
        let on = !plan.is_empty();
        let next = Arc::new(InForce { plan, since: Instant::now() });
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        self.on.store(on, Ordering::Release);
    }

    /// The plan in force, as it is written; empty when there is none.
    pub fn text(&self) -> String {
        self.in_force().plan.to_string()
    }

    /// For how long it has been in force.
    pub fn age(&self) -> Duration {
        self.in_force().at(Instant::now())
    }

    /// What was done so far, by rail.
    pub fn counts(&self) -> impl Iterator<Item = (&str, Counts)> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.rails.iter().zip(&self.tallies).map(move |(rail, t)| {
            let counts = Counts {
                lost: load(&t.lost),
                corrupted: load(&t.corrupted),
                duplicated: load(&t.duplicated),
                reordered: load(&t.reordered),
                delayed: load(&t.delayed),
                stood: load(&t.stood),
                reset: load(&t.reset),
            };
            (rail.as_str(), counts)
        })
    }

    /// Whether there is a plan.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    pub(super) fn in_force(&self) -> Arc<InForce> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters of a rail; `None`: there is no such rail, and nothing is done to what goes there.
    pub(super) fn tally(&self, rail: RailId) -> Option<&Tally> {
        self.tallies.get(usize::from(rail.0))
    }

    pub(super) fn rails(&self) -> usize {
        self.rails.len()
    }
}
