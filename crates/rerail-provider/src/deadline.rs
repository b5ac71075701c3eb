//! When a call that blocks gives up.

use crate::errno::Errno;
use crate::ffi::FI_ETIMEDOUT;
use libc::c_int;
use std::time::{Duration, Instant};

/// What a call says that has waited as long as it was told, unless it is one that reads.
pub const GIVE_UP: Errno = Errno(FI_ETIMEDOUT);

/// When a call that blocks is to give up.
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout_ms` from now; negative: never.
    pub fn after(timeout_ms: c_int) -> Self {
        let length = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self(length.map(|l| Instant::now() + l))
    }

    /// What is left, `None` when it is over.
    pub fn left(&self) -> Option<Duration> {
        let left = self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        (!left.is_zero()).then_some(left)
    }
}
