//! The carriers of one peer: what is spread over its paths, and how it may move (see `migration`).
//!
//! Owns: the carriers, for how many paths they were made, whether some path has none because it leaves its port to another,
//! and whether something changed that they have not seen.

use crate::migration::Carrier;
use std::ops::{Deref, DerefMut};

/// See above. Reads as the list of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carriers {
    list: Vec<Carrier>,
    /// Paths there were when they were made.
    made_for: usize,
    seconds: bool,
    unsettled: bool,
}

impl Carriers {
    /// These are the carriers from now on, for so many paths. `seconds`: some of them leave their port to another.
    pub fn make(&mut self, list: Vec<Carrier>, paths: usize, seconds: bool) {
        (self.list, self.made_for, self.seconds) = (list, paths, seconds);
    }

    /// They are to be made again.
    pub fn forget(&mut self) {
        self.made_for = 0;
    }

    /// Whether some path leaves its port to another.
    #[inline]
    pub fn have_seconds(&self) -> bool {
        self.seconds
    }

    /// Whether they were made for so many paths.
    pub fn fit(&self, paths: usize) -> bool {
        self.made_for == paths
    }

    /// Something changed that matters to them.
    #[inline]
    pub fn unsettle(&mut self) {
        self.unsettled = true;
    }

    /// They have seen all that happened.
    pub fn settle(&mut self) {
        self.unsettled = false;
    }

    /// Whether something changed that they have not seen.
    #[inline]
    pub fn are_unsettled(&self) -> bool {
        self.unsettled
    }
}

impl Deref for Carriers {
    type Target = [Carrier];

    fn deref(&self) -> &[Carrier] {
        &self.list
    }
}

impl DerefMut for Carriers {
    fn deref_mut(&mut self) -> &mut [Carrier] {
        &mut self.list
    }
}
