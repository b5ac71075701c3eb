//! Several lanes on one rail, of which some lose their route.

use super::Campaign;
use super::data::RIGHT;
use anyhow::Result;
use std::time::Duration;

/// How many lanes.
const LANES: &str = "4";

/// A job over one rail. Half of its connections go dark inside the fabric, twice, and the rail's interfaces notice nothing.
pub fn dark_routes(campaign: &mut Campaign) -> Result<()> {
    let checked = campaign.program("checked");
    let (cuts, whole) = campaign.by_scale((2, 1.0), (4, 2.0), (20, 2.0));
    let seconds = 1.0 + f64::from(cuts) * 2.0 * whole;
    let schedule: Vec<String> = (0..cuts)
        .map(|k| {
            let at = 1.0 + f64::from(k) * 2.0 * whole;
            format!("{at:.3}s cut rail0 routes; {:.3}s heal rail0", at + whole)
        })
        .collect();
    let text = (seconds + 1.0).to_string();
    let arguments = [checked.as_str(), "--seconds", &text, "--max", "4MiB", "--watchdog", "60"];
    let mut run = campaign.new_run("routes", &arguments);
    run.rails = vec!["1gbit"];
    run.schedule = schedule.join("; ");
    run.patience = Duration::from_secs_f64(seconds + 90.0);
    let run = run.env("FI_RERAIL_LANES", LANES);
    let ran = run.run()?;
    let what = format!("checked over {LANES} lanes of one rail, routes dark {cuts} times");
    if !campaign.check_run(&what, &run, &ran, RIGHT) {
        return Ok(());
    }
    let count = |kind: &str| ran.events.iter().filter(|e| !e.is_lab() && e.name() == kind).count();
    let (replaced, down) = (count("stream_replaced"), count("path_down"));
    campaign.check("lanes are led over other routes", replaced > 0, "no connection was replaced".to_owned());
    let detail = format!("{down} times a path was called broken; {replaced} connections were replaced");
    campaign.check("no path is called broken for its lanes", down == 0, detail);
    Ok(())
}
