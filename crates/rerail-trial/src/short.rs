//! `rerail-trial short`: what `cargo xtask test` runs besides the tests of the workspace, each part even after a failure of another.

use crate::accept::{self, Scale};
use crate::{campaign, fuzz, migrations};
use anyhow::{Result, bail};
use std::fmt::Display;
use std::time::Duration;
use xtask::mpi::Mpi;
use xtask::{build, setup};

/// Fuzzing, all targets together: enough to meet again what is easily met.
const FUZZ: Duration = Duration::from_secs(40);

/// What is run of the acceptance campaign on each MPI: everything on MPICH, and on the others what has a way of its own there, as
/// far as there is time. The fault campaign covers them all besides.
const ACCEPTANCE: [(Mpi, &[&str]); 4] = [
    (Mpi::Mpich, &[]),
    (Mpi::Open5, &["options", "data", "lossy", "encrypt", "kinds", "blackout", "stopped", "killed"]),
    (Mpi::Intel, &["options", "data", "lossy", "encrypt", "kinds", "blackout", "stopped", "killed"]),
    (Mpi::Open4, &["options", "blackout"]),
];

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    fn add(&mut self, (passed, failed, skipped): (usize, usize, usize)) {
        self.passed += passed;
        self.failed += failed;
        self.skipped += skipped;
    }

    fn fail(&mut self, what: &str, why: impl Display) {
        println!("{what} FAILED: {why:#}");
        self.failed += 1;
    }
}

/// Runs everything; the last line counts it.
pub fn run() -> Result<()> {
    setup::run()?;
    build::run()?;
    let mut counts = Counts::default();
    for (mpi, only) in ACCEPTANCE {
        match accept::campaign(mpi, Scale::Quick, only, true, 1) {
            Ok(tally) => counts.add((tally.passed, tally.failed, tally.skipped)),
            Err(error) => counts.fail("acceptance", error),
        }
    }
    match fuzz::short(FUZZ) {
        Ok(Some(targets)) => counts.passed += targets,
        Ok(None) => {
            println!(
                "skipped: no nightly compiler here, so nothing is fuzzed; an ordinary test replays the seeds"
            );
            counts.skipped += 1;
        }
        Err(error) => counts.fail("fuzz", error),
    }
    match migrations::short() {
        Ok(Some(())) => counts.passed += 1,
        Ok(None) => {
            println!(
                "SKIPPED: migrations over queue pairs: no lab of guests on this machine; the reason is above"
            );
            counts.skipped += 1;
        }
        Err(error) => counts.fail("migrations over queue pairs", error),
    }
    match campaign::short() {
        // a case that did not meet its fault is no proof, and on a slow machine no failure either: it was printed as UNPROVED
        Ok(tally) => counts.add((tally.passed, tally.failed, tally.skipped + tally.unproved)),
        Err(error) => counts.fail("campaign", error),
    }
    println!("{} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    if counts.failed > 0 {
        bail!("{} checks failed", counts.failed);
    }
    Ok(())
}
