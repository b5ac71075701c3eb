//! Datagrams that arrived together with others and have not been given out. Owns: their order, and the flag that says that there are some.
//!
//! Receiving is the way of every message, and nearly always there are none: then one load says so. The flag is set and lowered under the
//! lock, so that what lies there is never without it. `tests/models.rs` tries every order of two threads.

use crate::Arrived;
use crate::sync::{AtomicBool, Mutex, Ordering};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Datagrams that wait to be asked for. For ports that get several at once and are asked for one.
#[derive(Default)]
pub struct Rest {
    all: Mutex<VecDeque<(Arrived, Box<[u8]>)>>,
    some: AtomicBool,
}

impl Rest {
    /// Behind what waits.
    pub fn append<'a>(&self, those: impl IntoIterator<Item = (Arrived, &'a [u8])>) {
        self.change(|all| all.extend(those.into_iter().map(|(a, bytes)| (a, bytes.into()))));
    }

    /// Before what waits, in the order in which they come.
    pub fn put_first<'a>(&self, those: impl DoubleEndedIterator<Item = (Arrived, &'a [u8])>) {
        self.change(|all| {
            for (a, bytes) in those.rev() {
                all.push_front((a, bytes.into()));
            }
        });
    }

    fn change(&self, f: impl FnOnce(&mut VecDeque<(Arrived, Box<[u8]>)>)) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut all);
        if !all.is_empty() {
            self.some.store(true, Ordering::Release);
        }
    }

    /// The next one, into `buf`. One that is longer is thrown away, as every port does.
    #[inline]
    pub fn take(&self, buf: &mut [u8]) -> Option<Arrived> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        self.take_one(buf)
    }

    #[cold]
    fn take_one(&self, buf: &mut [u8]) -> Option<Arrived> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some((a, bytes)) = all.pop_front() else {
                self.some.store(false, Ordering::Release);
                return None;
            };
            if let Some(room) = buf.get_mut(..bytes.len()) {
                room.copy_from_slice(&bytes);
                return Some(a);
            }
        }
    }
}
