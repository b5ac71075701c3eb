//! What it costs to keep FI_DELIVERY_COMPLETE as the default of all sends (hazard H14): MPICH asks for it, and gets it back with
//! `FI_RERAIL_DELIVERY=echo`. The two settings in turn, in one run, over unshaped rails.

use super::{Campaign, Target};
use anyhow::{Context, Result};

/// The settings that are compared: what is the default, and what keeps the promise.
const SETTINGS: [&str; 2] = ["asked", "echo"];

/// Half round trips by size.
pub fn cost(campaign: &mut Campaign) -> Result<()> {
    let turns = campaign.by_scale(1, 5, 9);
    let sizes: &[&str] = campaign.by_scale(
        &["16KiB"],
        &["8", "1KiB", "8KiB", "16KiB", "20000", "64KiB"],
        &["8", "1KiB", "2KiB", "8KiB", "16KiB", "20000", "32KiB", "64KiB"],
    );
    for size in sizes {
        let mut medians = [Vec::new(), Vec::new()];
        for turn in 0..turns {
            for (i, setting) in SETTINGS.into_iter().enumerate() {
                let program = campaign.program("latency");
                let name = format!("{size}-{setting}-{turn}");
                let iterations = campaign.by_scale("500", "5000", "20000");
                let mut run =
                    campaign.new_run(&name, &[&program, "--size", size, "--iterations", iterations]);
                run.rails = vec!["unshaped", "unshaped"];
                run = run.env("FI_RERAIL_DELIVERY", setting);
                let ran = run.run()?;
                let says = format!("latency: {}", bytes(size));
                if !campaign.check_run(&format!("{size} with {setting}"), &run, &ran, &says) {
                    return Ok(());
                }
                let median = ran.stdout.split_once("median ").and_then(|(_, r)| r.split_once(','));
                let median = median.and_then(|(m, _)| m.parse::<f64>().ok());
                medians[i].push(median.context("latency prints a median")?);
            }
        }
        let [asked, echo] = medians.map(|mut m| {
            m.sort_by(f64::total_cmp);
            m[m.len() / 2]
        });
        campaign.figure(&format!("{size} B half round trip, asked"), asked, "us", Target::None);
        campaign.figure(&format!("{size} B half round trip, echo"), echo, "us", Target::None);
        campaign.figure(&format!("{size} B, echo against asked"), 100.0 * echo / asked, "%", Target::None);
    }
    Ok(())
}

/// What `latency` calls a size.
fn bytes(size: &str) -> usize {
    match size.strip_suffix("KiB") {
        Some(k) => k.parse::<usize>().unwrap_or(0) * 1024,
        None => size.parse().unwrap_or(0),
    }
}
