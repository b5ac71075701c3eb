//! The memory of a domain that peers may read and write. Owns: the regions of each domain, and their keys.
//!
//! Regions outlive runtimes: a program registers memory before its first endpoint is enabled, and keeps it when it closes the last.
//! So each domain keeps its own list, and an engine learns it when an endpoint of the domain is enabled ([`Regions::attach`]).
//!
//! Invariant: what is in the list of a domain is known to the engine of its live runtime, and to no other.

use crate::errno::{Errno, Result, of_system};
use crate::ffi::*;
use libc::c_int;
use parking_lot::Mutex;
use rerail_core::{IoVec, Region};
use rerail_runtime::{Runtime, RuntimeError};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A key names nothing when it is `FI_KEY_NOTAVAIL`, all ones: keys chosen here lack the highest bit.
const CHOSEN_KEYS: u64 = u64::MAX >> 1;

/// Most draws for a key that is not taken. A draw hits a taken key once in 2^62, so several in a row mean that the
/// draws are not random.
const DRAWS_MAX: usize = 8;

/// A key that names no region. Only a peer that received a key should know it: each is drawn by itself, so that one key
/// reveals nothing of another, and none is used again (hazard H21).
fn fresh_key(taken: impl Fn(u64) -> bool, mut draw: impl FnMut() -> Result<u64>) -> Result<u64> {
    for _ in 0..DRAWS_MAX {
        let key = draw()? & CHOSEN_KEYS;
        if !taken(key) {
            return Ok(key);
        }
    }
    Err(Errno(FI_ENOKEY))
}

/// Random bits of the system.
fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rerail_runtime::random(&mut bytes).map_err(|e| of_system(&e))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The regions of one domain.
pub struct Regions {
    /// The domain's number, by which engines tell keys of different domains apart.
    pub domain: u32,
    /// Peers name places by our addresses, not by their distance from the beginning.
    by_address: bool,
    /// The program takes the keys that it is given.
    keys_chosen_here: bool,
    state: Mutex<State>,
}

struct State {
    regions: FxHashMap<u64, Registered>,
    /// The runtime whose engine knows them. Not kept alive: its sockets close with the last endpoint.
    live: Weak<Runtime>,
}

struct Registered {
    pieces: Box<[IoVec]>,
    origin: u64,
    access: u64,
}

impl Registered {
    fn region(&self, domain: u32, key: u64) -> Region<'_> {
        Region {
            domain,
            key,
            pieces: &self.pieces,
            origin: self.origin,
            readable: self.access & FI_REMOTE_READ != 0,
            writable: self.access & FI_REMOTE_WRITE != 0,
        }
    }
}

impl Regions {
    /// No regions yet, in a domain that was opened with this registration mode.
    pub fn new(mr_mode: c_int) -> Self {
        static DOMAINS: AtomicU32 = AtomicU32::new(1);
        Self {
            domain: DOMAINS.fetch_add(1, Ordering::Relaxed),
            by_address: mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) != 0,
            keys_chosen_here: mr_mode & (FI_MR_PROV_KEY | FI_MR_BASIC) != 0,
            state: Mutex::new(State { regions: FxHashMap::default(), live: Weak::new() }),
        }
    }

    /// Makes the regions known to `rt`, if they are not.
    ///
    /// # Errors
    /// The runtime does not work any more.
    pub fn attach(&self, rt: &Arc<Runtime>) -> Result<()> {
        let mut state = self.state.lock();
        let live = Arc::downgrade(rt);
        if state.live.ptr_eq(&live) {
            return Ok(());
        }
        rt.inspect(|e| {
            // SAFETY: the program keeps the memory until it closes the region, which takes it from the engine.
            state.regions.iter().try_for_each(|(key, r)| unsafe { e.register(&r.region(self.domain, *key)) })
        })??;
        state.live = live;
        Ok(())
    }

    /// Adds a region and gives its key.
    ///
    /// # Safety
    /// The memory stays valid until [`Regions::remove`].
    pub unsafe fn add(&self, memory: &[IoVec], access: u64, requested_key: u64) -> Result<u64> {
        let state = &mut *self.state.lock();
        let key = match self.keys_chosen_here {
            true => fresh_key(|k| state.regions.contains_key(&k), random)?,
            false => requested_key,
        };
        if state.regions.contains_key(&key) {
            return Err(Errno(FI_ENOKEY));
        }
        let first = memory.first().map_or(0, |m| m.ptr as u64);
        let origin = if self.by_address { first } else { 0 };
        let new = Registered { pieces: memory.into(), origin, access };
        if let Some(rt) = state.live.upgrade() {
            // SAFETY: the caller's promise.
            match rt.inspect(|e| unsafe { e.register(&new.region(self.domain, key)) }) {
                Ok(done) => done?,
                // It had its last endpoint; the next runtime learns of the region when it has one.
                Err(RuntimeError::Closed) => {}
                Err(e) => return Err(e.into()),
            }
        }
        state.regions.insert(key, new);
        Ok(key)
    }

    /// Takes a region away: nothing reads or writes it any more.
    pub fn remove(&self, key: u64) {
        let mut state = self.state.lock();
        state.regions.remove(&key);
        if let Some(rt) = state.live.upgrade() {
            // A runtime that has ended touches no memory.
            let _ = rt.with(|e, now| e.unregister(self.domain, key, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_say_nothing_of_each_other() {
        let regions = Regions::new(FI_MR_PROV_KEY);
        let byte = 0u8;
        let memory = [IoVec::from_ref(std::slice::from_ref(&byte))];
        // SAFETY: the byte lives until the end of the test, and no peer is connected.
        let keys: Vec<u64> = (0..200).map(|_| unsafe { regions.add(&memory, 0, 0) }.unwrap()).collect();
        let steps: HashSet<u64> = keys.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
        assert_eq!(steps.len(), keys.len() - 1, "two steps from key to key are equal");
        assert!(keys.iter().all(|k| *k <= CHOSEN_KEYS));
    }

    #[test]
    fn a_key_that_is_taken_is_drawn_again() {
        let mut draws = [7, 7 | !CHOSEN_KEYS, 8, 9].into_iter();
        assert_eq!(fresh_key(|k| k == 7, || Ok(draws.next().unwrap())), Ok(8));
        assert_eq!(fresh_key(|_| true, || Ok(1)), Err(Errno(FI_ENOKEY)), "a draw that is not random");
    }
}
