//! The proof that the seeds hunt: every planted bug, and the first seed that finds it.

use crate::swarm::{Hunt, first_line, hunt};
use rerail_core::Remedies;
use std::time::Duration;

/// For each bug the first seed from 0 on that breaks a promise; prints a table. False when a bug was not found within `seeds`.
pub fn table(only: &[&'static str], seeds: u64, jobs: usize) -> bool {
    let mut all = true;
    println!("| bug: without | found at seed | promise | what was seen |\n|---|---|---|---|");
    for &name in Remedies::NAMES.iter().filter(|n| only.is_empty() || only.contains(n)) {
        let mut h = Hunt::from_seed(0);
        (h.to, h.jobs, h.without, h.progress) = (seeds, jobs, Some(name), false);
        h.shrink = Duration::ZERO;
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
