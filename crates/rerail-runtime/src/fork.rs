//! What becomes of a runtime when the process forks (hazard H16). Owns: the process's generation, and the handlers of `fork`.
//!
//! A child shares the sockets of its parent and has a copy of its memory, but none of its threads. It must not send as
//! its parent, and must not wait for a lock that a thread of the parent held at the moment of the fork. Two means:
//!
//! * **The generation** is a number in a page that the kernel wipes in a child, whichever way it was made (`fork`, `_Fork`,
//!   `clone`). An object of another generation is not touched: one load detects it, before any lock.
//! * **Handlers of `fork`** close the child's copies of the sockets. Without them the connections of a killed parent
//!   would stay open as long as a child lives. The descriptors must be known exactly, so the parent holds the lock of
//!   every runtime during the fork. When it cannot get a lock soon (its holder was interrupted, or forks itself from a
//!   signal handler), the child keeps the copies; the only cost is that peers detect the parent's death later.
//!
//! The alternative, a comparison of process ids, costs a system call at every entry, and fails when an id is reused.

use crate::hand::{Hand, Holding};
use crate::sys::ForkWord;
use crate::{Inner, lineage, sys};
use parking_lot::MutexGuard;
use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, Once, OnceLock, TryLockError, Weak};
use std::time::Duration;

/// How long a fork waits for the lock of a runtime.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);

/// Numbers given to the ancestors of this process, and to itself.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The generation of this process: different in a child from that of every ancestor, and the same for the whole life of a
/// process otherwise. Never zero.
#[inline]
pub fn generation() -> u32 {
    static WORD: OnceLock<Option<ForkWord>> = OnceLock::new();
    match WORD.get_or_init(|| ForkWord::new().ok()) {
        Some(word) => match word.get() {
            0 => first_asked(word),
            n => n,
        },
        // A kernel that cannot wipe a page: the process id is the next best.
        None => std::process::id(),
    }
}

#[cold]
fn first_asked(word: &ForkWord) -> u32 {
    lineage::number(word.word(), &COUNT)
}

/// The runtimes of this process. The lock of the standard library, because a child can release it although threads that
/// do not exist in the child wait for it; `parking_lot` keeps a table of waiters that a fork can leave in any state.
static RUNTIMES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// A runtime was made.
pub(crate) fn watch(inner: &Arc<Inner>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| sys::at_fork(prepare, in_parent, in_child));
    let mut all = RUNTIMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.retain(|r| r.strong_count() > 0);
    all.push(Arc::downgrade(inner));
}

impl Holding for Arc<Inner> {
    fn take(&self) -> bool {
        self.state.try_lock_for(LOCK_PATIENCE).map(MutexGuard::leak).is_some()
    }

    fn give_back(&self) {
        // SAFETY: `take` took this lock on this thread and leaked its guard.
        unsafe { self.state.force_unlock() };
    }

    fn note(&self, out: &mut Vec<RawFd>) {
        // SAFETY: this thread holds the lock, and nothing else on it refers to what the lock guards during a fork.
        unsafe { &*self.state.data_ptr() }.descriptors(out);
        self.descriptors(out);
    }
}

/// What the forking thread holds during the fork.
struct InHand {
    all: std::sync::MutexGuard<'static, Vec<Weak<Inner>>>,
    hand: Hand<Arc<Inner>>,
}

thread_local! {
    static IN_HAND: RefCell<Option<InHand>> = const { RefCell::new(None) };
}

extern "C" fn prepare() {
    let Some(all) = lock_runtimes() else { return };
    let hand = Hand::take(all.iter().filter_map(Weak::upgrade));
    IN_HAND.with(|h| *h.borrow_mut() = Some(InHand { all, hand }));
}

fn lock_runtimes() -> Option<std::sync::MutexGuard<'static, Vec<Weak<Inner>>>> {
    let end = sys::now() + LOCK_PATIENCE;
    loop {
        match RUNTIMES.try_lock() {
            Ok(all) => return Some(all),
            Err(TryLockError::Poisoned(all)) => return Some(all.into_inner()),
            Err(TryLockError::WouldBlock) if sys::now() > end => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

extern "C" fn in_parent() {
    if let Some(in_hand) = IN_HAND.with(|h| h.borrow_mut().take()) {
        in_hand.hand.in_parent();
    }
}

extern "C" fn in_child() {
    let Some(mut in_hand) = IN_HAND.with(|h| h.borrow_mut().take()) else { return };
    in_hand.hand.in_child(sys::close_copy);
    // What is left of the parent's runtimes is never locked, never dropped: see `Inner::usable` and `Runtime::drop`.
    std::mem::forget(in_hand.hand);
    std::mem::forget(std::mem::take(&mut *in_hand.all));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks; the child leaves at once with what `f` says.
    fn in_a_child(f: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child runs only `f`, which takes no lock of another thread, and leaves without running anything else.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                libc::_exit(f());
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn every_descendant_has_a_generation_of_its_own() {
        let own = generation();
        assert_eq!(own, generation());
        let odd = in_a_child(|| {
            let child = generation();
            let stable = child == generation();
            let grandchild = in_a_child(|| i32::from(generation() != child && generation() != own));
            i32::from(child != own && stable) + 2 * grandchild
        });
        assert_eq!(odd, 3);
        assert_eq!(own, generation());
    }
}
