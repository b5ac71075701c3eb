//! Collective operations of libfabric itself (FI_COLLECTIVE), which no MPI here uses: a program of its own in each of four nodes, while rails
//! break.

use super::{Campaign, KINDS};
use crate::lab::Transport;
use anyhow::Result;
use std::time::Duration;
use xtask::programs;
use xtask::workspace::release_dir;

/// What the program of each node says when every result was right.
const RIGHT: &str = "operations, every byte right";
const NODES: usize = 4;

/// Some rail breaks every second, in all kinds in turn; now and then both.
fn cuts() -> String {
    let items = (0..900).map(|i| {
        let (at, kind) = (1000 + 1000 * i, KINDS[i % KINDS.len()]);
        let rail = ["rail0", "rail1", "rail0", "rail1", "all"][(i / KINDS.len()) % 5];
        format!("{at}ms cut {rail} {kind}; {}ms heal {rail}", at + 400)
    });
    items.collect::<Vec<_>>().join("; ")
}

pub fn right(campaign: &mut Campaign) -> Result<()> {
    if !campaign.has_events("collective operations") {
        return Ok(());
    }
    let program = programs::fabric("collective");
    if !program.is_file() {
        campaign.skip("collective operations", "libfabric's headers are missing (Debian: libfabric-dev)");
        return Ok(());
    }
    let seconds = campaign.by_scale("8", "40", "300");
    for (name, schedule) in [("plain", String::new()), ("cuts", cuts())] {
        let mut run = campaign.new_run(name, &[]);
        let meeting = run.dir.join("meeting").to_string_lossy().into_owned();
        let nodes = NODES.to_string();
        run.program =
            [&*program.to_string_lossy(), &meeting, &nodes, seconds].map(ToString::to_string).into();
        run.mpi = None;
        run.transport = Transport::Rerail;
        run.nodes = NODES;
        run.rails = vec!["unshaped", "unshaped"];
        run.schedule = schedule;
        (run.on_start, run.unending) = (false, true);
        run.patience = Duration::from_secs(campaign.by_scale(60, 120, 600));
        // Without an MPI the lab leaves libfabric alone.
        let events = run.dir.join("events.jsonl");
        let run = run
            .env("FI_PROVIDER", "rerail")
            .env("FI_PROVIDER_PATH", release_dir().display())
            .env("FI_RERAIL_EVENTS", events.display());
        let ran = run.run()?;
        let what = format!("collective operations of {NODES} nodes, {name}");
        if campaign.check_run(&what, &run, &ran, RIGHT) {
            let right = ran.stdout.matches(RIGHT).count();
            campaign.check(&format!("{what}: at every node"), right == NODES, format!("at {right}"));
            let count = ran.stdout.split(' ').find_map(|word| word.parse::<u64>().ok().filter(|n| *n > 8));
            println!("  ({} operations of each)", count.unwrap_or(0));
        }
        if !run.schedule.is_empty() {
            let cut = ran.events.iter().filter(|e| e.is_lab() && e.name() == "cut").count();
            campaign.check(&format!("{what}: rails were cut"), cut > 2, format!("{cut} times"));
        }
    }
    Ok(())
}
