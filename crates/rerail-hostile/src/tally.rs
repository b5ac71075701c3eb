//! How often a run has reached what it is to reach: what it never reached it has not tested.
//!
//! Owns: the counters of one target, for the life of the process.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter for each of these rows.
pub struct Tally<const N: usize> {
    rows: [&'static str; N],
    counts: [AtomicU64; N],
}

impl<const N: usize> Tally<N> {
    pub(crate) const fn new(rows: [&'static str; N]) -> Self {
        Self { rows, counts: [const { AtomicU64::new(0) }; N] }
    }

    /// The row was reached `n` times more.
    pub(crate) fn count(&self, row: &str, n: u64) {
        let at = self.rows.iter().position(|r| *r == row).expect("every row is in the table");
        self.counts[at].fetch_add(n, Ordering::Relaxed);
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.rows.iter().zip(&self.counts).map(|(row, n)| (*row, n.load(Ordering::Relaxed)))
    }

    /// What was counted so far: one line, for the fuzzer's output.
    pub fn line(&self) -> String {
        let mut out = "taken:".to_owned();
        for (row, n) in self.each() {
            let _ = write!(out, " {row} {n};");
        }
        out
    }

    /// What was never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        self.each().filter(|(_, n)| *n == 0).map(|(row, _)| row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reached_is_in_the_line_and_the_rest_is_missing() {
        let t = Tally::new(["grant", "key"]);
        t.count("key", 2);
        assert_eq!((t.line().as_str(), t.missing()), ("taken: grant 0; key 2;", vec!["grant"]));
    }
}
