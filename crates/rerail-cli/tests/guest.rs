//! Nodes as guests: an MPI job over soft-RoCE, between two kernels that boot for it.
//!
//! Where there is no lab, or nothing that guests could boot from, the test says SKIPPED on standard error.

#[path = "common/mod.rs"]
#[macro_use]
mod common;

use common::*;
use std::fs;
use std::io::Write;

on_every_mpi! {
    over_roce_between_guests_every_byte_is_right_while_a_rail_is_dark: over_roce(0);
}

fn over_roce(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("guest-events");
    let (program, provider) = (program.to_str().unwrap(), provider.to_str().unwrap());
    let schedule = "1s cut rail0 dark node 1; 4s heal rail0";
    let mut command = lab(mpi.option, &["--rdma", "roce", "--schedule-on-start", "--schedule", schedule]);
    command.args(["--provider", provider, "--events", events.to_str().unwrap()]);
    command.args(["--mpi-prefix", mpi.prefix.to_str().unwrap()]);
    command.args(["--", program, "--seconds", "8", "--max", "64KiB"]).env_remove("FI_RERAIL_KINDS");
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    if output.status.code() == Some(125) && said.contains("nothing that guests could boot from") {
        let _ = std::io::stderr().write_all(format!("SKIPPED: {said}").as_bytes());
        return;
    }
    let printed = succeeds(&output);
    assert!(printed.contains("every byte right") && printed.contains(mpi.library), "{printed}");
    let events = fs::read_to_string(events).unwrap();
    // In one node the other has gone dark on that rail, and comes back; both say so of an adapter and not of an interface.
    for event in ["path_down", "path_up", "migrated"] {
        let wanted = format!("\"event\":\"{event}\",\"rail\":\"rxe");
        assert!(events.contains(&wanted), "no {event} of a rail over RoCE:\n{events}");
    }
    for node in ["n0", "n1"] {
        assert!(events.contains(&format!("\"host\":\"{node}\"")), "no event of {node}:\n{events}");
    }
}
