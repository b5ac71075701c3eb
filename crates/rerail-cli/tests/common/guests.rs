//! Labs whose nodes are guests.

use crate::common::{skip, text};
use std::process::Output;

/// Whether a lab of guests could not be made on this machine; the test says so, and has nothing to do.
pub fn has_no_guests(output: &Output) -> bool {
    const WORDS: [&str; 2] = ["nothing that guests could boot from", "guests need /dev/net/tun"];
    let said = text(&output.stderr);
    let impossible = output.status.code() == Some(125) && WORDS.iter().any(|words| said.contains(words));
    if impossible {
        skip(&said);
    }
    impossible
}
