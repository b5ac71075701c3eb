//! Makes a failing case smaller. Owns: which cuts are tried, in what order.
//!
//! A cut is kept when the case still breaks the same promise ([`Failure::kind`]), so that a liveness failure does not turn into
//! an unrelated one on the way. Lists (faults, sends) are cut as in delta debugging: halves first, then ever smaller pieces.
//! Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002); differs: one pass of
//! each list for every size, because a run costs tens of milliseconds.

use crate::case::{Case, PLAIN};
use crate::draw::config_of;
use crate::ordinals::Ordinals;
use crate::run::{Failure, run_case};
use std::time::{Duration, Instant};

/// What was spent, and what came of it.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The smallest case that was found.
    pub case: Case,
    /// How it fails.
    pub failure: Failure,
    /// Runs it took.
    pub runs: u32,
}

struct Shrinker {
    best: Case,
    failure: Failure,
    runs: u32,
    until: Instant,
    runs_max: u32,
}

/// Makes `case`, which fails with `failure`, smaller, for at most this long and with at most so many runs.
pub fn shrink(case: &Case, failure: &Failure, most: Duration, runs_max: u32) -> Shrunk {
    let until = Instant::now() + most;
    let mut s = Shrinker { best: case.clone(), failure: failure.clone(), runs: 0, until, runs_max };
    loop {
        let before = s.best.clone();
        s.frames();
        s.messages();
        s.plain();
        s.faults();
        s.processes();
        s.networks();
        s.endpoints();
        s.sends();
        if s.best == before || s.over() {
            break;
        }
    }
    Shrunk { case: s.best, failure: s.failure, runs: s.runs }
}

impl Shrinker {
    fn over(&self) -> bool {
        self.runs >= self.runs_max || Instant::now() >= self.until
    }

    /// Whether the case with this change still fails in the same way; then it is the best one.
    fn try_cut(&mut self, change: impl FnOnce(&mut Case)) -> bool {
        if self.over() {
            return false;
        }
        let mut c = self.best.clone();
        change(&mut c);
        if c == self.best {
            return false;
        }
        self.runs += 1;
        match run_case(&c, false) {
            Err(f) if f.kind() == self.failure.kind() => {
                self.best = c;
                self.failure = f;
                true
            }
            _ => false,
        }
    }

    fn frames(&mut self) {
        while self.best.frames > 50 {
            let less = self.best.frames / 4;
            if !self.try_cut(|c| c.frames = less) {
                break;
            }
        }
    }

    fn plain(&mut self) {
        let all: Vec<&'static str> = PLAIN.iter().map(|p| p.0).collect();
        if self.best.plain.is_empty() && self.try_cut(|c| c.plain = all) {
            return;
        }
        for (name, _) in PLAIN {
            if !self.best.plain.contains(name) {
                self.try_cut(|c| c.plain.push(name));
            }
        }
    }

    fn faults(&mut self) {
        let begun = self.failure.facts.faults;
        // whatever would come after the failure
        self.try_cut(|c| c.skip_faults = c.skip_faults.with(begun, 1_000_000));
        let set = |c: &mut Case, o| c.skip_faults = o;
        self.thin_out(begun, |c| &c.skip_faults, set);
    }

    fn sends(&mut self) {
        let drawn = self.failure.facts.sends;
        let set = |c: &mut Case, o| c.skip_sends = o;
        self.thin_out(drawn, |c| &c.skip_sends, set);
    }

    /// Skips ever smaller pieces of a list of `n`.
    fn thin_out(&mut self, n: u64, get: fn(&Case) -> &Ordinals, set: fn(&mut Case, Ordinals)) {
        let mut left = get(&self.best).missing_below(n);
        let mut size = left.len();
        while size > 0 && !self.over() {
            let mut at = 0;
            while at < left.len() {
                let piece = &left[at..(at + size).min(left.len())];
                let mut skipped = get(&self.best).clone();
                for &x in piece {
                    skipped = skipped.with(x, x + 1);
                }
                if self.try_cut(|c| set(c, skipped)) {
                    let end = (at + size).min(left.len());
                    left.drain(at..end);
                } else {
                    at += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2).min(size - 1) };
        }
    }

    fn processes(&mut self) {
        let drawn = config_of(self.best.seed, self.best.remedies()).procs.len();
        let mut keep = self.best.processes.clone().unwrap_or_else(|| (0..drawn).collect());
        // two of many, before one by one
        for (a, b) in [(0, 1), (0, drawn - 1), (drawn / 2, drawn - 1)] {
            if keep.len() > 3 && a < b && self.try_cut(|c| c.processes = Some(vec![a, b])) {
                return;
            }
        }
        let mut i = 0;
        while keep.len() > 2 && i < keep.len() {
            let mut less = keep.clone();
            less.remove(i);
            if self.try_cut(|c| c.processes = Some(less.clone())) {
                keep = less;
            } else {
                i += 1;
            }
        }
    }

    fn networks(&mut self) {
        let drawn = config_of(self.best.seed, self.best.remedies()).nets.len();
        let mut keep = self.best.networks.clone().unwrap_or_else(|| (0..drawn).collect());
        let mut i = 0;
        while keep.len() > 1 && i < keep.len() {
            let mut less = keep.clone();
            less.remove(i);
            if self.try_cut(|c| c.networks = Some(less.clone())) {
                keep = less;
            } else {
                i += 1;
            }
        }
    }

    fn endpoints(&mut self) {
        if self.best.endpoints != Some(1) && config_of(self.best.seed, self.best.remedies()).eps > 1 {
            self.try_cut(|c| c.endpoints = Some(1));
        }
    }

    fn messages(&mut self) {
        let (mut low, mut high) =
            (0, self.best.messages.unwrap_or(u64::MAX).min(self.failure.facts.messages));
        if self.best.messages.is_none_or(|m| m > high) && !self.try_cut(|c| c.messages = Some(high)) {
            return;
        }
        while low < high && !self.over() {
            let middle = low + (high - low) / 2;
            if self.try_cut(|c| c.messages = Some(middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
    }
}
