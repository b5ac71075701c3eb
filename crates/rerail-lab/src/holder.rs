//! A process that does nothing but hold the namespaces of a node or of a switch.
//!
//! Invariant: the holder is a child of the supervisor, so it ends with it.

use crate::LabError;
use crate::error::Attempt;
use crate::sys::{self, Forked, Mailbox};

/// Starts one, in which `hold` makes the namespaces and what is in them. Gives its id in the lab's PID namespace.
///
/// # Errors
/// `hold` failed, or the process could not be started.
pub fn start(name: &str, hold: impl FnOnce() -> Result<(), LabError>) -> Result<libc::pid_t, LabError> {
    let what = || format!("make {name}");
    let (ours, theirs) = Mailbox::pair().attempt(what)?;
    let holder = match sys::fork().attempt(what)? {
        Forked::Child => {
            drop(ours);
            let made = sys::die_with_parent().attempt(|| "tie it to its lab".into()).and_then(|()| hold());
            theirs.send(&made.map_err(|error| error.to_string()));
            drop(theirs);
            sys::sleep_until_killed()
        }
        Forked::Parent(pid) => pid,
    };
    drop(theirs);
    let made = ours.receive::<Result<(), String>>();
    made.unwrap_or_else(|| Err("its process was killed".into()))
        .map_err(|error| LabError::Refused(format!("{name} could not be made: {error}")))?;
    Ok(holder)
}
