//! Sources that are registered with an adapter, so that a message registers its memory once, and a buffer that is sent again
//! and again not at all. Owns: the registrations of sources, and how long each is kept.
//!
//! A registration lets the adapter read physical pages. Which they are is fixed when it is made, so one that is kept beyond
//! its message is right only while the same addresses mean the same pages. There are two ways to know that:
//!
//! * **The memory is lent.** While a write out of a message is under way, all memory of that message stays as it is
//!   ([`Place::whole`]). So another part of the same message may use the registration, whatever memory it is.
//! * **The memory is watched** ([`Watcher`]): private anonymous memory, where the kernel allows it. Then the registration is
//!   kept when its message is over, until an event of that memory, or until it makes room for others. It is used again only
//!   while the watcher is quiet, and otherwise as if it were not there.
//!
//! Registrations of *targets* are not kept: a key that outlives its message would let a peer write into memory that was
//! given for that message only (hazard H21).
//!
//! Only pages of the message are registered, in blocks: not what lies beside it, because a range that is not lent may lose its pages just
//! after the event of that was processed (MADV_DONTNEED reports before it does its work). Overlapping ranges are registrations
//! of their own, and the first that contains a part serves it.
//!
//! `gone` is called by the thread for which a program that unmaps may wait. So under the lock of the slots nothing is
//! allocated, freed, registered or released: what is to be released stays in its slot until the manager's thread takes it.

use crate::adapter::{Adapter, Registration};
use crate::watcher::{Watch, WatchError, Watcher};
use rerail_rail::{IoVec, Place};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Registrations of a set of rails, at most. What finds no slot is registered for one write.
const SLOTS: usize = 256;
/// Slots that are made free before they are needed, because the manager's thread frees them.
const SLOTS_FREE: usize = 8;
/// Bytes that are registered at once, from the beginning of a message: a message of a gigabyte must not hold up the engine
/// until all of its pages are found.
const BLOCK_BYTES: usize = 4 << 20;
/// Bytes that are kept registered, at most: they cannot be swapped out.
const KEPT_BYTES_MAX: usize = 1 << 30;
/// Of what may be locked (`ulimit -l`) one part in so many is for what is kept. Targets and connections need the rest.
const LOCKED_PART: u64 = 4;

/// How often it is asked whether the watcher is quiet. It needs a microsecond for an event, a registration many.
const QUIET_TRIES: usize = 16;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Nothing.
    Free,
    /// A registration of watched memory.
    Kept,
    /// One that goes with its last user.
    Lent,
    /// One that has no user any more, and is to be released.
    Over,
}

struct Slot {
    life: Life,
    /// What is registered.
    range: Range<usize>,
    /// Memory of the message that uses it, which is the same as long as one of its writes is under way; `None`: there are
    /// several messages, or there is none.
    lent: Option<Range<usize>>,
    /// The adapter, by its address.
    adapter: usize,
    /// Writes that are under way.
    users: u32,
    /// When it was used last.
    used: u64,
    /// `None`: it is being made.
    registration: Option<Registration>,
}

impl Slot {
    /// One more write, out of a message of which `block` is a part.
    fn add_user(&mut self, block: &Range<usize>, now: u64) -> u32 {
        if self.users == 0 {
            // kept, so this one is what it is lent for now
            self.lent = Some(block.clone());
        } else if self.lent.as_ref() != Some(block) {
            // Whose memory stays lent is not known when one of them is over.
            self.lent = None;
        }
        self.users += 1;
        self.used = now;
        self.registration.as_ref().expect("it was found").local_key()
    }

    fn is_idle(&self) -> bool {
        self.life == Life::Kept && self.users == 0
    }
}

struct Slots {
    all: Box<[Slot]>,
    /// The slot that was used last: the parts of a message find it first.
    last: usize,
    /// Counts uses.
    now: u64,
}

/// What has become of sources that were to be registered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RegistrationCounts {
    /// Writes whose source was registered already.
    pub found: u64,
    /// Registrations that were made.
    pub made: u64,
    /// Registrations that ended because their memory was unmapped, moved or emptied.
    pub gone: u64,
}

/// Those of this process.
static COUNTERS: Counters =
    Counters { found: AtomicU64::new(0), made: AtomicU64::new(0), gone: AtomicU64::new(0) };

struct Counters {
    found: AtomicU64,
    made: AtomicU64,
    gone: AtomicU64,
}

/// Of this process, until now.
pub fn registration_counts() -> RegistrationCounts {
    let Counters { found, made, gone } = &COUNTERS;
    RegistrationCounts { found: found.load(Relaxed), made: made.load(Relaxed), gone: gone.load(Relaxed) }
}

/// See the module.
pub struct Registrations {
    slots: Mutex<Slots>,
    watcher: Option<&'static Watcher>,
    kept_bytes_max: usize,
    /// Wakes the thread that calls [`Registrations::release`].
    wake: Arc<OwnedFd>,
}

/// The right of an adapter to read a source; it ends when this is dropped.
pub struct Source {
    key: u32,
    of: Of,
}

enum Of {
    Slot(Arc<Registrations>, usize),
    /// No slot was free.
    Own {
        _registration: Registration,
    },
}

/// A part of a message, and the adapter that is to read it.
struct Request {
    /// The adapter, by its address.
    adapter: usize,
    part: Range<usize>,
    /// What of the message is registered with it.
    block: Range<usize>,
}

impl Source {
    /// By which this process names it.
    pub fn local_key(&self) -> u32 {
        self.key
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Of::Slot(all, at) = &self.of {
            all.give_back(*at);
        }
    }
}

fn range(memory: IoVec) -> Range<usize> {
    let start = memory.ptr as usize;
    start..start + memory.len
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The part of a message that is registered for `part`.
fn block(part: &Range<usize>, whole: &Range<usize>) -> Range<usize> {
    debug_assert!(contains(whole, part));
    let start = whole.start + (part.start - whole.start) / BLOCK_BYTES * BLOCK_BYTES;
    start..(start + BLOCK_BYTES).max(part.end).min(whole.end)
}

/// The whole pages in which it lies.
fn pages(range: &Range<usize>) -> Range<usize> {
    let page = rustix::param::page_size();
    range.start / page * page..range.end.div_ceil(page) * page
}

/// How much may be kept.
fn kept_bytes_max() -> usize {
    let locked = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    locked.map_or(KEPT_BYTES_MAX, |most| KEPT_BYTES_MAX.min((most / LOCKED_PART) as usize))
}

impl Registrations {
    /// None yet. With `keep` they outlive their messages, or the error says why not. `wake` is written to when there is
    /// something to [release](Registrations::release).
    pub fn new(keep: bool, wake: &Arc<OwnedFd>) -> (Arc<Registrations>, Option<WatchError>) {
        if !keep {
            return (Self::with(None, wake), None);
        }
        let kept = Watcher::of_process().and_then(|watcher| {
            let registrations = Self::with(Some(watcher), wake);
            watcher.join(registrations.clone())?;
            Ok(registrations)
        });
        match kept {
            Ok(registrations) => (registrations, None),
            Err(why) => (Self::with(None, wake), Some(why)),
        }
    }

    fn with(watcher: Option<&'static Watcher>, wake: &Arc<OwnedFd>) -> Arc<Registrations> {
        let free = |_| Slot {
            life: Life::Free,
            range: 0..0,
            lent: None,
            adapter: 0,
            users: 0,
            used: 0,
            registration: None,
        };
        Arc::new(Registrations {
            slots: Mutex::new(Slots { all: (0..SLOTS).map(free).collect(), last: 0, now: 0 }),
            watcher,
            kept_bytes_max: kept_bytes_max(),
            wake: wake.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// The descriptor of the watcher, which a forked child closes.
    pub fn fd(&self) -> Option<std::os::fd::RawFd> {
        self.watcher.map(Watcher::fd)
    }

    /// Lets an adapter read the source of a write.
    ///
    /// # Errors
    /// It cannot be registered: no more memory may be locked, for instance.
    ///
    /// # Safety
    /// As for [`rerail_rail::StreamPort::place`], until what is returned is dropped. The adapter reads no more then.
    pub unsafe fn source(self: &Arc<Self>, adapter: &Arc<Adapter>, place: &Place) -> io::Result<Source> {
        let (part, whole) = (range(place.source), range(place.whole));
        let request = Request { adapter: Arc::as_ptr(adapter) as usize, block: block(&part, &whole), part };
        let is_lent = |s: &Slot| s.users > 0 && s.lent.as_ref() == Some(&request.block);
        if let Some(source) = self.find(&request, is_lent) {
            return Ok(source);
        }
        // Asked before the slots are looked through: then each of them knows of all that can have happened to this memory
        // before it was lent.
        let watcher = self.watcher.filter(|w| (0..QUIET_TRIES).any(|_| w.is_quiet()));
        if watcher.is_some() {
            if let Some(source) = self.find(&request, |s| s.life == Life::Kept) {
                return Ok(source);
            }
        }
        COUNTERS.made.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.make(adapter, &request, watcher) }
    }

    fn find(self: &Arc<Self>, request: &Request, may: impl Fn(&Slot) -> bool) -> Option<Source> {
        let slots = &mut *self.lock();
        let serves = |s: &Slot| {
            let is_there = s.registration.is_some() && s.life != Life::Over;
            is_there && s.adapter == request.adapter && contains(&s.range, &request.part) && may(s)
        };
        let at = match serves(&slots.all[slots.last]) {
            true => slots.last,
            false => slots.all.iter().position(serves)?,
        };
        slots.last = at;
        slots.now += 1;
        let key = slots.all[at].add_user(&request.block, slots.now);
        COUNTERS.found.fetch_add(1, Relaxed);
        Some(Source { key, of: Of::Slot(self.clone(), at) })
    }

    /// Registers a block with an adapter.
    ///
    /// # Safety
    /// As for [`Registrations::source`].
    unsafe fn make(
        self: &Arc<Self>,
        adapter: &Arc<Adapter>,
        request: &Request,
        watcher: Option<&Watcher>,
    ) -> io::Result<Source> {
        let register = |bytes: &Range<usize>| {
            let memory = IoVec::new(bytes.start as *mut u8, bytes.len());
            // SAFETY: the caller's promise. What is kept longer, and may be unmapped meanwhile, is read only for writes
            // whose memory is the same.
            unsafe { adapter.register(memory, bytes.start as u64, false) }
        };
        let pages = pages(&request.block);
        let Some((at, watcher)) = self.reserve(request, &pages, watcher) else {
            let registration = register(&request.part)?;
            return Ok(Source { key: registration.local_key(), of: Of::Own { _registration: registration } });
        };
        // Events find the slot from here on, also before the memory is registered.
        let is_watched = watcher.is_some_and(|w| w.watch(&pages));
        let bytes = if is_watched { &pages } else { &request.block };
        let made = register(bytes).map(|made| (made, bytes, true)).or_else(|_| {
            // What is kept may be all that may be locked.
            self.end_idle();
            self.release();
            register(&request.part).map(|made| (made, &request.part, false))
        });
        let slot = &mut self.lock().all[at];
        match made {
            Ok((registration, bytes, is_whole)) => {
                if !is_watched || !is_whole {
                    slot.life = Life::Lent;
                }
                if !is_whole {
                    slot.lent = None;
                }
                slot.range = bytes.clone();
                let key = registration.local_key();
                slot.registration = Some(registration);
                Ok(Source { key, of: Of::Slot(self.clone(), at) })
            }
            Err(why) => {
                (slot.life, slot.users) = (Life::Free, 0);
                Err(why)
            }
        }
    }

    /// Takes a slot for a block; `None`: there is none. The watcher, if the block may be kept.
    fn reserve<'a>(
        &self,
        request: &Request,
        pages: &Range<usize>,
        watcher: Option<&'a Watcher>,
    ) -> Option<(usize, Option<&'a Watcher>)> {
        let slots = &mut *self.lock();
        slots.now += 1;
        let before = slots.count(Life::Over);
        // What the new one contains is of no more use.
        let contained = |s: &Slot| s.adapter == request.adapter && contains(pages, &s.range);
        slots.all.iter_mut().filter(|s| s.is_idle() && contained(s)).for_each(|s| s.life = Life::Over);
        while slots.count(Life::Free) + slots.count(Life::Over) < SLOTS_FREE && slots.end_oldest() {}
        let watcher = watcher.filter(|_| {
            while slots.kept_bytes() + pages.len() > self.kept_bytes_max && slots.end_oldest() {}
            slots.kept_bytes() + pages.len() <= self.kept_bytes_max
        });
        if slots.count(Life::Over) > before {
            self.wake();
        }
        let at = slots.all.iter().position(|s| s.life == Life::Free)?;
        slots.last = at;
        slots.all[at] = Slot {
            life: if watcher.is_some() { Life::Kept } else { Life::Lent },
            range: pages.clone(),
            lent: Some(request.block.clone()),
            adapter: request.adapter,
            users: 1,
            used: slots.now,
            registration: None,
        };
        Some((at, watcher))
    }

    fn give_back(&self, at: usize) {
        let mut slots = self.lock();
        let slot = &mut slots.all[at];
        slot.users -= 1;
        if slot.users == 0 && slot.life == Life::Lent {
            slot.life = Life::Over;
            drop(slots);
            self.wake();
        }
    }

    fn end_idle(&self) {
        self.lock().all.iter_mut().filter(|s| s.is_idle()).for_each(|s| s.life = Life::Over);
    }

    /// Releases what is over.
    pub fn release(&self) {
        loop {
            let mut slots = self.lock();
            let Some(slot) = slots.all.iter_mut().find(|s| s.life == Life::Over) else { return };
            slot.life = Life::Free;
            let registration = slot.registration.take();
            drop(slots);
            drop(registration);
        }
    }

    /// Releases everything that no write uses, and knows of nothing any more.
    pub fn close(self: &Arc<Self>) {
        if let Some(watcher) = self.watcher {
            let this: Arc<dyn Watch> = self.clone();
            watcher.leave(&this);
        }
        self.end_idle();
        self.release();
    }
}

impl Slots {
    fn count(&self, life: Life) -> usize {
        self.all.iter().filter(|s| s.life == life).count()
    }

    fn kept_bytes(&self) -> usize {
        self.all.iter().filter(|s| s.life == Life::Kept).map(|s| s.range.len()).sum()
    }

    /// Ends what was not used for the longest time. Whether there is such a thing.
    fn end_oldest(&mut self) -> bool {
        let oldest = self.all.iter_mut().filter(|s| s.is_idle()).min_by_key(|s| s.used);
        oldest.map(|s| s.life = Life::Over).is_some()
    }
}

impl Watch for Registrations {
    fn gone(&self, addresses: Range<usize>) {
        let mut slots = self.lock();
        let mut some = false;
        for slot in slots.all.iter_mut().filter(|s| s.life == Life::Kept) {
            if slot.range.start < addresses.end && addresses.start < slot.range.end {
                // One that is used goes with its last user, and serves nothing else.
                slot.life = if slot.users == 0 { Life::Over } else { Life::Lent };
                slot.lent = None;
                some = true;
                COUNTERS.gone.fetch_add(1, Relaxed);
            }
        }
        drop(slots);
        if some {
            self.wake();
        }
    }
}

#[cfg(test)]
mod tests;
