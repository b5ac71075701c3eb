//! Nodes as guests: an MPI job over soft-RoCE, between two kernels that boot for it.
//!
//! Where there is no lab, or nothing that guests could boot from, the test says SKIPPED on standard error.

#[path = "common/mod.rs"]
#[macro_use]
mod common;
#[path = "common/guests.rs"]
mod guests;

use common::*;
use guests::has_no_guests;
use std::fs;

on_every_mpi! {
    over_roce_between_guests_every_byte_is_right_while_rails_break: over_roce(0);
}

fn over_roce(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("guest-events");
    let (program, provider) = (program.to_str().unwrap(), provider.to_str().unwrap());
    let schedule = "4s cut rail0 dark node 1; 7s heal rail0; 9s cut rail1 down; 11s heal rail1";
    let mut command = lab(mpi.option, &["--rdma", "roce", "--schedule-on-start", "--schedule", schedule]);
    // several queue pairs for each path
    command.args(["--env", "FI_RERAIL_LANES=3"]);
    command.args(["--provider", provider, "--events", events.to_str().unwrap()]);
    command.args(["--mpi-prefix", mpi.prefix.to_str().unwrap()]);
    command.args(["--", program, "--seconds", "13", "--max", "64KiB"]).env_remove("FI_RERAIL_KINDS");
    let output = command.output().unwrap();
    if has_no_guests(&output) {
        return;
    }
    let printed = succeeds(&output);
    assert!(printed.contains("every byte right") && printed.contains(mpi.library), "{printed}");
    let events = fs::read_to_string(events).unwrap();
    // What broke are the rails of the adapters, in the eyes of both nodes.
    let is_down = |rail: &str, word: &str| {
        let words = ["path_down", rail, word].map(|word| format!("\"{word}\""));
        events.lines().any(|line| words.iter().all(|word| line.contains(word)))
    };
    for rail in ["rxe0", "rxe1"] {
        for node in ["n0", "n1"] {
            assert!(is_down(rail, node), "{rail} broke unseen by {node}:\n{events}");
        }
    }
    // An adapter reports a pulled cable; one node may hear of it from the other first.
    assert!(is_down("rxe1", "link"), "no adapter has seen the cable pulled:\n{events}");
}
