//! A process's place in its job. Owns: rank and size. Invariant: rank < size <= [`SIZE_MAX`].

use crate::error::JoinError;

/// Most processes of a job. A launcher's number above it is an error, so that it bounds what is read and allocated.
pub const SIZE_MAX: usize = 65_536;

/// A process's place in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    rank: usize,
    size: usize,
}

impl Place {
    /// The only process of a job.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// As a launcher gives it.
    pub fn new(rank: u64, size: u64) -> Result<Self, JoinError> {
        match rank < size && size <= SIZE_MAX as u64 {
            true => Ok(Self { rank: rank as usize, size: size as usize }),
            false => Err(JoinError::Place { rank, size }),
        }
    }

    /// The number of the process, from 0.
    pub fn rank(self) -> usize {
        self.rank
    }

    /// How many processes the job has.
    pub fn size(self) -> usize {
        self.size
    }
}
