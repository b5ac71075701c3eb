//! The rail over IP: one wildcard UDP socket and one TCP listener for all rails of the process, and per-rail sockets to
//! send and connect from.

use rerail_transport::Rails;

/// Why no rails could be attached. Each is one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nothing usable, or the selection makes no sense.
    #[error("{0}")]
    Selection(String),
    /// The system refused something.
    #[error("rerail could not {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        why: std::io::Error,
    },
}

/// Finds the interfaces to use (`selection` is the option `rails`: names in order, empty to choose) and opens their
/// sockets.
///
/// # Errors
/// See [`AttachError`].
pub fn attach(selection: &[String]) -> Result<Rails, AttachError> {
    let _ = selection;
    todo!()
}
