//! The proof that the seeds hunt: planted bugs, each with a seed that finds it.

use crate::run::first_line;
use crate::swarm::{Hunt, hunt};
use rerail_core::Remedies;
use std::time::Duration;

/// What `cargo xtask swarm --planted` found: bug (the remedy that is off), seed, and the promise that it breaks. The promise is a
/// name, or the sentence of an invariant.
pub const FOUND: &[(&str, u64, &str)] = &[
    ("abort_trailer", 7, "no false completion"),
    ("differential_query", 56, "a busy peer is not a broken path"),
    ("refuse_over_bound", 61, "live"),
    ("envelopes_grow", 61, "live"),
    ("farewell", 17, "at rest"),
    ("patient_farewell", 774, "at rest"),
    ("death_verdict", 8, "live"),
    ("death_needs_proof", 134, "live"),
    ("death_needs_questions", 160, "live"),
    ("death_asks_kernels", 456, "live"),
    ("kernel_witness", 322, "live"),
    ("agreed_epoch", 12, "live"),
    ("fixed_granule", 1, "intact"),
    ("or_masks", 50, "live"),
    ("watermarks", 26, "exactly once"),
    ("cancel_only_unmatched", 1, "exactly once"),
    ("truncation_waits", 1, "intact"),
    ("agreed_coverage", 6, "intact"),
    ("delivery_waits", 0, "no false completion"),
    ("match_waits", 8, "no false completion"),
    ("endpoints_differ", 7, "in order"),
    ("acks_end_exactly", 2, "live"),
    ("acks_name_their_epoch", 49, "intact"),
    ("acks_name_their_lane", 30, "live"),
    ("replaced_streams_end", 82, "live"),
    ("left_lanes_keep_records", 75, "live"),
    ("lanes_fail_with_their_path", 0, "only a connected path has a stream"),
    ("lost_hedges_are_sent", 564, "live"),
    ("retries_go_on", 31, "live"),
    ("control_survives", 3, "live"),
    ("retained_is_bounded", 6, "retained payload is bounded"),
    ("unexpected_is_bounded", 10, "unexpected payload is bounded"),
    ("refused_is_kept", 10, "live"),
    ("sequence_first", 0, "in order"),
    ("unexpected_in_order", 0, "in order"),
    ("full_queue_resumes", 4, "in order"),
    ("multi_waits", 2, "fenced"),
    ("cancelled_multi_waits", 3, "exactly once"),
    ("claims_reserve", 1, "a matched message is known"),
    ("payload_is_checked", 325, "intact"),
    ("grants_are_idempotent", 15, "bulk bytes are what was granted and never sent"),
    ("grants_are_cut", 2, "range outside the vectors"),
    ("link_up_is_heard", 20, "live"),
    ("writable_resumes", 1, "live"),
    ("half_written_is_sent", 2, "live"),
    ("exits_deliver", 22, "live"),
    ("orders_in_sequence", 7, "intact"),
    ("bounds_are_checked", 10, "fenced"),
    ("writes_are_placed", 4, "intact"),
    ("regions_are_fenced", 7, "fenced"),
    ("armed_paths_are_probed", 3, "armed"),
    ("doubts_are_fenced", 53, "fenced"),
    ("fences_are_waited_for", 78, "fenced"),
    ("fragments_are_placed_once", 181, "fenced"),
    ("notices_follow_writes", 1, "intact"),
    ("sources_are_waited_for", 1, "no false completion"),
    ("keys_are_used_once", 20, "fenced"),
    ("client_speaks_first", 322, "live"),
    ("reads_are_copied", 7, "intact"),
];

/// For each bug the first seed from 0 on that breaks a promise; prints a table. False when a bug was not found within `seeds`.
pub fn table(only: &[&'static str], seeds: u64, jobs: usize, aimed: bool) -> bool {
    let mut all = true;
    println!("| bug: without | found at seed | promise | what was seen |\n|---|---|---|---|");
    for &name in Remedies::NAMES.iter().filter(|n| only.is_empty() || only.contains(n)) {
        let mut h = Hunt::from_seed(0);
        (h.to, h.jobs, h.without, h.progress) = (seeds, jobs, Some(name), false);
        (h.shrink, h.aimed) = (Duration::ZERO, aimed);
        match hunt(&h).failures.first() {
            Some(f) => {
                println!("| `{name}` | {} | {} | {} |", f.seed, f.kind(), clip(first_line(&f.message)));
            }
            None => {
                all = false;
                println!("| `{name}` | none below {} | | |", seeds);
            }
        }
    }
    all
}

/// As much of a sentence as fits into a table.
fn clip(s: &str) -> String {
    let mut t: String = s.replace('|', "/").chars().take(110).collect();
    if t.len() < s.len() {
        t.push('…');
    }
    t
}
