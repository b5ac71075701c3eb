//! What idle peers hold: queues and tables that are empty keep room for what was once in them, and with thousands of
//! peers that is most of an engine's memory. A peer that is silent for long enough to be queried gives it back, and on
//! that occasion the engine gives back what bursts have left behind in its own queues.
//!
//! Whole groups of fields are at rest in nearly every peer and path. They stand in memory of their own, which is there only while they are
//! not: [`OnDemand`].
//!
//! Invariant: nothing but memory changes; what rests behaves as what is new.

use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Room that a queue may keep for nothing.
const ROOM: usize = 32;

/// Gives back most of the room of a queue that is nearly empty.
pub(crate) fn fit<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > ROOM && queue.len() < queue.capacity() / 8 {
        queue.shrink_to(ROOM);
    }
}

/// What is at rest nearly always. Without memory it reads as at rest; the first write makes some, and [`OnDemand::rest`] gives it back.
///
/// Any mutable access allocates, even one that changes nothing: frequent accesses go by [`OnDemand::awake`].
#[derive(Clone)]
pub(crate) struct OnDemand<T>(Option<Box<T>>);

/// What can be kept [`OnDemand`].
pub(crate) trait Rests: Default + 'static {
    /// One that is at rest, as a new one is.
    fn at_rest() -> &'static Self;

    /// Whether a new one would behave the same.
    fn is_at_rest(&self) -> bool;
}

impl<T: Rests> OnDemand<T> {
    /// The value, unless it is at rest without memory: for frequent reads that need nothing else.
    #[inline]
    pub fn awake(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// The same, to change such a value only.
    #[inline]
    pub fn awake_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Whether it is at rest: of a collection, whether nothing is in it.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.0.as_ref().is_none_or(|t| t.is_at_rest())
    }

    /// Gives the memory back if nothing needs it.
    pub fn rest(&mut self) {
        if self.is_at_rest() {
            self.0 = None;
        }
    }
}

impl<T: Rests + fmt::Debug> fmt::Debug for OnDemand<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Rests> Deref for OnDemand<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0 {
            Some(t) => t,
            None => T::at_rest(),
        }
    }
}

impl<T: Rests> DerefMut for OnDemand<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

/// Defines what types are at rest: a constant expression, equal to the default. Those that compare are at rest when
/// they are equal to it, and collections (`empty`) when nothing is in them.
macro_rules! rests {
    ($($t:ty = $at_rest:expr;)*) => {$(
        impl $crate::rest::Rests for $t {
            fn at_rest() -> &'static Self {
                static AT_REST: $t = $at_rest;
                &AT_REST
            }

            fn is_at_rest(&self) -> bool {
                *self == *Self::at_rest()
            }
        }
    )*};
    (empty $($t:ty = $at_rest:expr;)*) => {$(
        impl $crate::rest::Rests for $t {
            fn at_rest() -> &'static Self {
                static AT_REST: $t = $at_rest;
                &AT_REST
            }

            fn is_at_rest(&self) -> bool {
                self.is_empty()
            }
        }
    )*};
}
pub(crate) use rests;

/// Gives back the memory of a queue if it is empty.
pub(crate) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > 0 {
        *queue = VecDeque::new();
    }
}

/// Gives back the memory of a list if it is empty.
pub(crate) fn give_back_list<T>(list: &mut Vec<T>) {
    if list.is_empty() && list.capacity() > 0 {
        *list = Vec::new();
    }
}

/// Gives back the memory of a table if it is empty.
pub(crate) fn give_back_map<K, V>(table: &mut FxHashMap<K, V>) {
    if table.is_empty() && table.capacity() > 0 {
        *table = FxHashMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Default)]
    struct Cold {
        faults: u32,
        names: Vec<u8>,
    }

    rests! {
        Cold = Cold { faults: 0, names: Vec::new() };
    }

    #[test]
    fn what_is_on_demand_has_memory_only_while_it_is_not_at_rest() {
        let mut c = OnDemand::<Cold>::default();
        assert!(c.faults == 0 && c.names.is_empty() && c.awake_mut().is_none());
        c.rest();
        c.faults += 1;
        c.rest();
        assert_eq!(c.awake_mut(), Some(&mut Cold { faults: 1, names: vec![] }));
        c.faults -= 1;
        c.names.reserve(100);
        c.rest();
        assert!(c.awake_mut().is_none());
    }

    #[test]
    fn what_is_empty_gives_its_memory_back_and_what_is_not_keeps_all() {
        let mut q: VecDeque<u32> = (0..100).collect();
        let mut t: FxHashMap<u32, u32> = (0..100).map(|i| (i, i)).collect();
        give_back(&mut q);
        give_back_map(&mut t);
        assert_eq!((q.len(), t.len()), (100, 100));
        q.clear();
        t.clear();
        give_back(&mut q);
        give_back_map(&mut t);
        assert_eq!((q.capacity(), t.capacity()), (0, 0));
    }
}
