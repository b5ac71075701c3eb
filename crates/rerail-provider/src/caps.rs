//! Capabilities: what the provider can do, and what follows from which a program asks for.

use crate::ffi::*;

/// Everything the provider can do in this version.
pub const CAPS: u64 = PRIMARY | SECONDARY;
/// Capabilities that cost something or change behaviour: returned only when asked for.
pub const PRIMARY: u64 = FI_MSG
    | FI_TAGGED
    | SENT_OR_RECEIVED
    | FI_DIRECTED_RECV
    | FI_RMA
    | FI_ATOMIC
    | READ_OR_WRITTEN
    | FI_COLLECTIVE;
/// What restricts messages to one direction …
pub const SENT_OR_RECEIVED: u64 = FI_SEND | FI_RECV;
/// … and one-sided operations to some of them.
pub const READ_OR_WRITTEN: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities that come for nothing: always returned.
pub const SECONDARY: u64 = FI_MULTI_RECV | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Those of what an endpoint sends …
pub const TX_CAPS: u64 =
    FI_MSG | FI_TAGGED | FI_SEND | FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_COLLECTIVE;
/// … of what it receives …
pub const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RECV
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA
    | FI_ATOMIC
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_COLLECTIVE;
/// … and of a domain.
pub const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// What capabilities mean: none is all, neither direction of messages both, and no sort of access to memory every one
/// (fi_getinfo(3)).
pub fn all_named(caps: u64) -> u64 {
    if caps == 0 {
        return CAPS;
    }
    let unless_restricted = |of: u64, to: u64| if caps & of != 0 && caps & to == 0 { to } else { 0 };
    caps | unless_restricted(FI_MSG | FI_TAGGED, SENT_OR_RECEIVED)
        | unless_restricted(FI_RMA | FI_ATOMIC, READ_OR_WRITTEN)
}
