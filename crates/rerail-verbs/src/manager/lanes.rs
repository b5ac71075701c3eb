//! The lanes of one purpose on a rail. Owns: how many there are, and the receive queues that they share.

use super::ENTRIES_MAX;
use crate::InOrderPlacement;
use crate::abi::{ibv_qp, ibv_qp_init_attr};
use crate::adapter::Adapter;
use crate::completions::Completions;
use crate::lane::{self, Lane, LaneNumber, Rings, Shape};
use crate::shared::{Pool, SURPLUS_MAX};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Shared receive queues of a rail: for all lanes that its completion queue allows, and some that take no more.
const POOLS_MAX: usize = 8;

/// The lanes of one purpose on a rail.
pub struct Lanes {
    shape: &'static Shape,
    /// Of all of them.
    completions: Arc<Completions>,
    /// How many there are.
    count: Arc<AtomicUsize>,
    /// Whether small datagrams go into rings.
    in_order: InOrderPlacement,
    /// Shared receive queues, while there are lanes that use them. `None`: each lane has receives of its own.
    pools: Option<Vec<Weak<Pool>>>,
    /// The adapter has refused to make another.
    no_more_pools: bool,
    /// Of the queue that is made next.
    next_pool: u32,
}

impl Lanes {
    /// None yet. The completion queue has room for [`ENTRIES_MAX`].
    pub fn new(shape: &'static Shape, completions: Arc<Completions>, in_order: InOrderPlacement) -> Lanes {
        let count = Arc::default();
        Lanes { shape, completions, count, in_order, pools: None, no_more_pools: false, next_pool: 0 }
    }

    /// They share receive queues, where the adapter has any. The completion queue was made for that.
    pub fn sharing(mut self) -> Lanes {
        self.pools = Some(Vec::new());
        self
    }

    /// The receive queue for one more lane. `None`: the lane has receives of its own.
    pub(super) fn pool(&mut self, adapter: &Arc<Adapter>) -> Option<Arc<Pool>> {
        let pools = self.pools.as_mut()?;
        pools.retain(|pool| pool.strong_count() > 0);
        if let Some(pool) = pools.iter().filter_map(Weak::upgrade).find(|pool| pool.is_open()) {
            return Some(pool);
        }
        if self.no_more_pools || pools.len() >= POOLS_MAX {
            return None;
        }
        self.next_pool += 1;
        match Pool::new(self.next_pool, adapter, self.shape) {
            Ok(pool) => {
                pools.push(Arc::downgrade(&pool));
                Some(pool)
            }
            Err(_) => {
                // That will not change. The others take lanes still, and what they may report still needs room.
                self.no_more_pools = true;
                None
            }
        }
    }

    /// The rings of a lane over this queue pair.
    ///
    /// # Safety
    /// It lives.
    pub(super) unsafe fn rings(&self, adapter: &Adapter, qp: *mut ibv_qp) -> Rings {
        let own = match self.in_order {
            InOrderPlacement::Off => false,
            InOrderPlacement::On => true,
            // SAFETY: the caller's promise.
            InOrderPlacement::Auto => unsafe { adapter.places_in_order(qp) },
        };
        // Whether the peer's adapter places in order the peer knows.
        Rings { own, far: self.in_order != InOrderPlacement::Off }
    }

    pub(super) fn shape(&self) -> &'static Shape {
        self.shape
    }

    /// What the queue pair of one more is to hold.
    pub(super) fn attributes(&self, pool: Option<&Pool>) -> ibv_qp_init_attr {
        lane::attributes(self.completions.queue(), self.shape, pool.map(Pool::queue))
    }

    /// A lane was made.
    ///
    /// # Safety
    /// Its queue pair lives.
    pub(super) unsafe fn add(&self, lane: &Lane, pool: Option<&Arc<Pool>>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(pool) = pool {
            // SAFETY: the caller's promise.
            let pair = unsafe { lane.number_of_pair() };
            self.completions.at_desk(|desk, poll| desk.admit(pair, (lane.number, pool), poll));
        }
    }

    /// A lane is over, and its queue pair is to be destroyed.
    ///
    /// # Safety
    /// That lives.
    pub(super) unsafe fn leaving(&self, lane: &Lane) -> Leaving {
        // SAFETY: the caller's promise.
        let shared = lane.shares().then(|| (lane.number, unsafe { lane.number_of_pair() }));
        Leaving { count: self.count.clone(), completions: self.completions.clone(), shared }
    }

    /// What they may report fits their completion queue.
    pub(super) fn is_full(&self) -> bool {
        // What is posted to a shared queue for no lane is reported as well.
        let more = if self.pools.is_some() { POOLS_MAX * SURPLUS_MAX } else { 0 };
        (self.count.load(Ordering::Relaxed) + 1) * self.shape.entries() + more > ENTRIES_MAX
    }
}

/// A lane that is over, until its queue pair is destroyed.
pub(super) struct Leaving {
    count: Arc<AtomicUsize>,
    completions: Arc<Completions>,
    /// With a shared receive queue: the lane and its queue pair.
    shared: Option<(LaneNumber, u32)>,
}

impl Leaving {
    /// Before its queue pair is destroyed. From now on that takes nothing out of a shared queue, and what it has reported is known.
    ///
    /// # Safety
    /// The queue pair lives.
    pub(super) unsafe fn stop(&self, lane: &Lane) {
        if self.shared.is_some() {
            // SAFETY: the caller's promise.
            unsafe { lane.stop() };
            self.completions.at_desk(|desk, poll| desk.collect(poll));
        }
    }

    /// It is destroyed.
    pub(super) fn end(self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some((lane, pair)) = self.shared {
            self.completions.at_desk(|desk, poll| desk.dismiss(pair, lane, poll));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::library::Library;
    use rerail_rail::Kind;

    #[test]
    fn a_lane_has_a_ring_where_the_option_or_else_the_adapter_says_so() {
        // Hazard H22.
        let rings = |option, adapter: &Adapter| {
            let lanes = Lanes::new(&Shape::DATAGRAMS, Arc::new(fake::completions()), option);
            // SAFETY: the queue pair of the tests.
            unsafe { lanes.rings(adapter, fake::queue_pair()) }
        };
        for in_order in [false, true] {
            fake::places_in_order(in_order);
            assert_eq!(rings(InOrderPlacement::Auto, fake::adapter()), Rings { own: in_order, far: true });
            assert_eq!(rings(InOrderPlacement::On, fake::adapter()), Rings { own: true, far: true });
            assert_eq!(rings(InOrderPlacement::Off, fake::adapter()), Rings::default());
        }
        // a library that cannot be asked
        let old = Library { ibv_query_qp_data_in_order: None, ..fake::library() };
        let context = fake::adapter().context;
        // SAFETY: the context of the tests lives for ever.
        let adapter = unsafe { Adapter::new(Box::leak(Box::new(old)), context, 1, 0, Kind::IWARP) };
        let adapter = adapter.expect("nothing fails here");
        assert_eq!(rings(InOrderPlacement::Auto, &adapter), Rings { own: false, far: true });
    }

    #[test]
    fn lanes_share_queues_where_the_adapter_has_them_and_a_bounded_number_of_them() {
        let adapter = fake::adapter();
        let lanes = || Lanes::new(&Shape::STREAM, Arc::new(fake::completions()), InOrderPlacement::Off);
        assert!(lanes().pool(adapter).is_none(), "it was not asked for");
        let mut sharing = lanes().sharing();
        let first = sharing.pool(adapter).unwrap();
        assert!(Arc::ptr_eq(&first, &sharing.pool(adapter).unwrap()));
        let mut pools = vec![first];
        for n in 1..POOLS_MAX {
            fill(&pools[n - 1]);
            pools.push(sharing.pool(adapter).unwrap());
            assert_eq!(pools[n].number() as usize, n + 1, "numbers are not used again");
        }
        fill(&pools[POOLS_MAX - 1]);
        assert!(sharing.pool(adapter).is_none(), "there are enough");
        pools.remove(3);
        assert_eq!(sharing.pool(adapter).unwrap().number() as usize, POOLS_MAX + 1, "one is gone");
        // an adapter without
        fake::has_shared_queues(false);
        let mut none = lanes().sharing();
        assert!(none.pool(adapter).is_none());
        fake::has_shared_queues(true);
        assert!(none.pool(adapter).is_none(), "it is not tried for each lane");
    }

    #[test]
    fn an_adapter_that_has_no_more_shared_queues_keeps_those_that_it_has() {
        let adapter = fake::adapter();
        let completions = Arc::new(fake::completions());
        let mut lanes = Lanes::new(&Shape::STREAM, completions, InOrderPlacement::Off).sharing();
        let pool = lanes.pool(adapter).unwrap();
        fill(&pool);
        fake::has_shared_queues(false);
        assert!(lanes.pool(adapter).is_none());
        fake::has_shared_queues(true);
        assert!(lanes.pool(adapter).is_none(), "it is not tried for each lane");
        pool.leave(2);
        assert!(lanes.pool(adapter).is_some_and(|again| Arc::ptr_eq(&again, &pool)), "a lane is gone");
        let room = (ENTRIES_MAX - POOLS_MAX * SURPLUS_MAX) / Shape::STREAM.entries();
        lanes.count.store(room, Ordering::Relaxed);
        assert!(lanes.is_full(), "what is posted for no lane is reported still");
    }

    fn fill(pool: &Pool) {
        let mut lane = 2;
        while pool.is_open() {
            pool.join(lane).unwrap();
            lane += 4;
        }
    }
}
