//! Nothing leaks: many quick cuts into one long job, and what each rank holds before and after.

use super::directory;
use super::evidence::{holdings, ranks_of};
use super::job::{Fabric, Job, Launcher, Met, patience, wait};
use super::program::MPIS;
use crate::record::read_events;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use xtask::mpi::Mpi;

/// A cut, and the time to the next. Rails take turns, so each has twice the period, and the provider's patience with a rail that
/// flaps (it is held down for longer each time) must not make no cuts of these: see [`run`].
const DOWN_MS: u32 = 120;
const PERIOD_MS: u32 = 300;
/// Cuts before the first look: buffers, connections and the allocator's pools have then reached their sizes.
const WARM_UP: u32 = 30;
/// What memory may grow by.
const GROWTH_KIB_MAX: u64 = 1024;
/// The most sockets that a process gives its most frequent peers (`rerail-ip`, connected.rs): it makes and closes them with the traffic.
const CONNECTED_SOCKETS: u64 = 4;
/// Time after the last cut until the second look: what was broken is whole again, and what was replaced is gone.
const CALM: Duration = Duration::from_secs(12);
/// The second look is repeated for so long while something has grown. Datagrams that take another route than the usual one have sockets of their own
/// until they come home (`rerail-ip`, detours.rs): after a trial in vain, during the cuts, that takes up to 18 s, and a machine with more work than
/// processors makes detours at any time. What leaked stays.
const GOES_HOME: Duration = Duration::from_secs(20);

/// Cuts so often into a job of each MPI, and fails if a rank has more of anything afterwards.
pub fn run(cuts: u32, mpis: &[Mpi]) -> Result<()> {
    let mut grown = Vec::new();
    for &mpi in MPIS.iter().filter(|mpi| mpis.contains(mpi)) {
        grown.extend(of_one(cuts, mpi)?);
    }
    if !grown.is_empty() {
        bail!("{}", grown.join("; "));
    }
    Ok(())
}

fn of_one(cuts: u32, mpi: Mpi) -> Result<Vec<String>> {
    let period = Duration::from_millis(PERIOD_MS.into());
    let begin = Duration::from_secs(2);
    let warm = begin + period * WARM_UP + CALM;
    let end = warm + CALM / 4 + period * cuts;
    let look = end + CALM;
    let at = |time: Duration| format!("message-1+{}ms", time.as_millis());
    let flap = |from: Duration, kind: &str, times: u32| {
        format!("{} flap alternating {kind} for {DOWN_MS}ms every {PERIOD_MS}ms times {times}; ", at(from))
    };
    // All sorts, in turns: each third of the time one of them.
    let mut schedule = flap(begin, "dark", WARM_UP / 3)
        + &flap(begin + period * (WARM_UP / 3), "down", WARM_UP / 3)
        + &flap(begin + period * (WARM_UP / 3 * 2), "reset", WARM_UP / 3);
    let mut from = warm + CALM / 4;
    for (turn, kind) in ["dark", "down", "reset", "dark-in", "dark-out"].into_iter().enumerate() {
        let times = cuts / 5 + u32::from((turn as u32) < cuts % 5);
        if times > 0 {
            schedule += &flap(from, kind, times);
        }
        from += period * times;
    }
    let last = look + GOES_HOME;
    let seconds = (last + CALM / 4).as_secs_f64();
    let dir = directory().join(format!("leaks-{}", mpi.name()));
    let arguments = ["nas", "mg", "--seconds", &seconds.to_string()].map(String::from);
    let mut arguments = arguments.to_vec();
    arguments[0] = mpi.program("nas").to_string_lossy().into_owned();
    let job = Job {
        name: format!("leaks-{}", std::process::id()),
        mpi,
        fabric: Fabric::Rerail,
        launcher: Launcher::Own,
        ranks: 2,
        rails: &["1gbit", "1gbit"],
        schedule: schedule.trim_end_matches("; "),
        env: vec![
            ("RERAIL_PHASES".into(), "message-1".into()),
            ("LD_PRELOAD".into(), mpi.program("libphase.so").to_string_lossy().into_owned()),
        ],
        arguments: &arguments,
    };
    println!("leaks: {cuts} cuts after {WARM_UP} to warm up, {}, {seconds:.0} s", mpi.name());
    let mut child = job.start(&dir)?;
    let begun = wait_for_start(&dir, &mut child)?;
    let mut at_moment = |moment: Duration| {
        while begun.elapsed() < moment {
            if child.try_wait().context("could not wait for the lab")?.is_some() {
                bail!("the job ended too early: see {}", dir.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let all = ranks_of(&job.name).into_iter().filter_map(|pid| Some((pid, holdings(pid)?)));
        Ok(all.collect::<Holdings>())
    };
    let before = at_moment(warm)?;
    let mut after = at_moment(look)?;
    while !grown(&before, &after).is_empty() && begun.elapsed() < last {
        after = at_moment(begun.elapsed() + Duration::from_secs(1))?;
    }
    let (code, hung) = wait(&mut child, patience(10.0, 0.0), || {
        super::evidence::collect(&job.name, &dir);
    })?;
    if code != Some(0) {
        bail!("the job {}: see {}", if hung { "hung" } else { "failed" }, dir.display());
    }
    let events = read_events(&dir.join("events.jsonl"));
    let made = Met::of(&events).cuts;
    let lost = events.iter().filter(|event| !event.is_lab() && event.name() == "path_down").count();
    println!(
        "  {made} cuts were made; the provider took a path out of service {lost} times, counted at both ends"
    );
    // Without the cuts there was nothing to leak over.
    let wanted = (WARM_UP + cuts) as usize;
    if made < wanted {
        bail!("only {made} of {wanted} cuts were made: see {}", dir.display());
    }
    if before.len() != job.ranks || before.keys().ne(after.keys()) {
        bail!("the ranks could not be found: {} and {} processes", before.len(), after.len());
    }
    for (pid, before) in &before {
        for (what, was) in before {
            println!("  process {pid}: {what} {was} before, {} after", after[pid][what]);
        }
    }
    let grown = grown(&before, &after);
    Ok(grown.into_iter().map(|what| format!("{}: {what}", mpi.name())).collect())
}

/// What each rank holds, by its process.
type Holdings = BTreeMap<u32, BTreeMap<&'static str, u64>>;

/// What a rank has more of than before.
fn grown(before: &Holdings, after: &Holdings) -> Vec<String> {
    let mut grown = Vec::new();
    for (pid, before) in before {
        for (what, &was) in before {
            let bound = match *what {
                "memory_kib" => was + GROWTH_KIB_MAX,
                "connected_sockets" => CONNECTED_SOCKETS,
                _ => was,
            };
            let is = after.get(pid).map_or(0, |after| after[what]);
            if is > bound {
                grown.push(format!("{what} of a rank grew from {was} to {is}"));
            }
        }
    }
    grown
}

/// Waits until the job has announced its first message.
fn wait_for_start(dir: &std::path::Path, child: &mut std::process::Child) -> Result<Instant> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let begun = read_events(&dir.join("events.jsonl")).iter().any(|event| event.name() == "phase");
        if begun {
            return Ok(Instant::now());
        }
        if child.try_wait().context("could not wait for the lab")?.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the job did not start: see {}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_grown_is_named_and_what_may_change_is_not() {
        let held = |descriptors, connected, kib| -> Holdings {
            let of_one =
                [("descriptors", descriptors), ("connected_sockets", connected), ("memory_kib", kib)];
            [(7, of_one.into())].into()
        };
        let before = held(40, 0, 5000);
        assert!(grown(&before, &held(39, CONNECTED_SOCKETS, 5000 + GROWTH_KIB_MAX)).is_empty());
        assert_eq!(grown(&before, &held(41, 0, 5000)), ["descriptors of a rank grew from 40 to 41"]);
        assert_eq!(grown(&before, &held(40, CONNECTED_SOCKETS + 1, 5000 + GROWTH_KIB_MAX + 1)).len(), 2);
    }
}
