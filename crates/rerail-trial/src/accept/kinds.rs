//! Rails of other kinds than IP, between ranks of one node: alone, and beside rails over IP.
//!
//! The example rail writes into the memory of peers by itself. Its connections are reset again and again, so what it still writes has to be
//! fenced. A run in which nothing was written or reset does not pass; where the example rail is alone and carries everything, neither
//! does one in which nothing was fenced. Beside rails over IP it carries too little for a reset to meet a write in every run.

use super::{Campaign, data};
use crate::lab::Ran;
use anyhow::Result;
use std::time::Duration;

/// The case.
pub fn kinds(campaign: &mut Campaign) -> Result<()> {
    let written = ("pieces_placed", "adapters wrote messages");
    let fenced = ("fences_asked", "what broke in the middle of writes was fenced");
    let alone = "example0: reset=50ms; example1: reset=70ms flap=1s/200ms";
    one(campaign, "example", 1, alone, &[written, fenced])?;
    let beside = "example0: reset=50ms; rail0: flap=1s/200ms; example1: flap=2s/300ms";
    one(campaign, "ip,example", 2, beside, &[written])
}

/// `seen`: counters that must not stay zero in all processes, with what they show.
fn one(
    campaign: &mut Campaign,
    kinds: &str,
    nodes: usize,
    faults: &str,
    seen: &[(&str, &str)],
) -> Result<()> {
    let program = campaign.program("checked");
    let (seconds, seed) = (campaign.by_scale("5", "15", "60"), (campaign.seed * 1000 + 800).to_string());
    let arguments = [&program, "--seconds", seconds, "--seed", &seed, "--max", "4MiB", "--watchdog", "60"];
    let mut run = campaign.new_run(&kinds.replace(',', "-"), &arguments);
    run = run.env("FI_RERAIL_KINDS", kinds).env("FI_RERAIL_FAULTS", faults);
    // MPICH and Intel MPI would go past libfabric inside a node
    run = run.env("MPIR_CVAR_NOLOCAL", 1).env("I_MPI_FABRICS", "ofi");
    (run.nodes, run.per_node) = (nodes, 3);
    run.patience = Duration::from_secs(campaign.by_scale(100, 150, 250));
    let ran = run.run()?;
    let what = format!("checked, kinds {kinds}, {nodes} nodes");
    campaign.check_run(&what, &run, &ran, data::RIGHT);
    for (counter, promise) in seen {
        let total = counted(&ran, counter);
        campaign.check(&format!("{what}: {promise}"), total > 0, format!("{counter} is 0 in every process"));
    }
    let resets: u64 = (ran.events.iter())
        .filter(|e| e.name() == "faults_counted" && e.concerns("example0"))
        .map(|e| e.number("reset"))
        .sum();
    campaign.check(&format!("{what}: connections were reset"), resets > 0, "no process counted a reset");
    Ok(())
}

fn counted(ran: &Ran, counter: &str) -> u64 {
    ran.events.iter().filter(|e| e.name() == "closed").map(|e| e.number(counter)).sum()
}
