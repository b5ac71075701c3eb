//! What can go wrong with a lab, told in one sentence that says what to do.

use std::io;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// What the user asked for makes no sense; the sentence says what would.
    #[error("{0}")]
    Input(String),
    /// This machine does not allow or cannot do it; the sentence says what to change.
    #[error("{0}")]
    Refused(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted, to follow "cannot".
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `ip`, `tc` or `nft` failed.
    #[error("`{command}` failed: {message}")]
    Tool {
        /// The command and its arguments or its batch.
        command: String,
        /// What it printed.
        message: String,
    },
}

/// Adds what was attempted to an `io::Error`.
pub(crate) trait Attempt<T> {
    /// `what` follows the word "cannot".
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|source| LabError::System { what: what(), source })
    }
}
