//! What protection costs, in one run: `FI_RERAIL_PROTECTION=off` against the default, and checksums against none by fragment size (figure 5
//! of the PML DR paper). Figure 7 of the paper, bandwidth over time around a failover, is what `cargo xtask demo` draws.

use super::{Campaign, Target};
use anyhow::{Context, Result};
use std::time::Duration;

/// Names and settings that are compared; the first is the yardstick.
const YARDSTICKS: [(&str, &str, &str); 4] = [
    ("protection off", "FI_RERAIL_PROTECTION", "off"),
    ("checksum off", "FI_RERAIL_CHECKSUM", "off"),
    ("checksum header", "FI_RERAIL_CHECKSUM", "header"),
    ("default", "FI_RERAIL_CHECKSUM", "on"),
];

/// Latency of 8 bytes and bandwidth of 1 MiB on unshaped rails, with less and less protection, in turn.
pub fn cost(campaign: &mut Campaign) -> Result<()> {
    let turns = campaign.by_scale(1, 3, 9);
    let mut latency: [Vec<f64>; 4] = Default::default();
    let mut bandwidth: [Vec<f64>; 4] = Default::default();
    for turn in 0..turns {
        for (i, (_, variable, value)) in YARDSTICKS.into_iter().enumerate() {
            let label = format!("latency-{i}-{turn}");
            latency[i].extend(latency_us(campaign, &label, &[(variable, value)])?);
            bandwidth[i].extend(stream(
                campaign,
                &format!("bandwidth-{i}-{turn}"),
                "1MiB",
                &[(variable, value)],
            )?);
        }
    }
    for (values, what, unit) in
        [(latency, "8 B half round trip", "us"), (bandwidth, "1 MiB, two rails", "MB/s")]
    {
        let medians = values.map(median);
        for (i, (name, _, _)) in YARDSTICKS.into_iter().enumerate() {
            campaign.figure(&format!("{what}, {name}"), medians[i], unit, Target::None);
            if i > 0 {
                let ratio = 100.0 * medians[i] / medians[0];
                campaign.figure(&format!("{what}, {name} against protection off"), ratio, "%", Target::None);
            }
        }
    }
    Ok(())
}

/// Bandwidth by fragment size, with checksums on, of headers, and off.
pub fn fragments(campaign: &mut Campaign) -> Result<()> {
    let turns = campaign.by_scale(1, 1, 5);
    let sizes: &[&str] = campaign.by_scale(
        &["65536"],
        &["4096", "16384", "65536"],
        &["4096", "8192", "16384", "32768", "65536"],
    );
    for size in sizes {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for turn in 0..turns {
            for (i, mode) in ["off", "header", "on"].into_iter().enumerate() {
                let settings = [("FI_RERAIL_CHECKSUM", mode), ("FI_RERAIL_FRAGMENT_SIZE", *size)];
                rates[i].extend(stream(campaign, &format!("{size}-{mode}-{turn}"), "4MiB", &settings)?);
            }
        }
        let [off, header, on] = rates.map(median);
        for (mode, rate) in [("off", off), ("header", header), ("on", on)] {
            campaign.figure(&format!("fragments of {size} B, checksum {mode}"), rate, "MB/s", Target::None);
        }
        campaign.figure(
            &format!("fragments of {size} B, on against off"),
            100.0 * on / off,
            "%",
            Target::None,
        );
    }
    Ok(())
}

/// Half round trip of 8 bytes over two unshaped rails, in microseconds; `None` when it failed, which is in the report.
pub(super) fn latency_us(
    campaign: &mut Campaign,
    name: &str,
    settings: &[(&str, &str)],
) -> Result<Option<f64>> {
    let program = campaign.program("latency");
    let iterations = campaign.by_scale("500", "5000", "20000");
    let mut run = campaign.new_run(name, &[&program, "--size", "8", "--iterations", iterations]);
    for (variable, value) in settings {
        run = run.env(variable, value);
    }
    run.rails = vec!["unshaped", "unshaped"];
    let ran = run.run()?;
    if !campaign.check_run(&format!("{name}: runs to its end"), &run, &ran, "latency: 8") {
        return Ok(None);
    }
    let median = ran.stdout.split_once("median ").and_then(|(_, r)| r.split_once(','));
    Ok(Some(median.and_then(|m| m.0.parse().ok()).context("latency prints a median")?))
}

/// MB/s of a stream of windows over two unshaped rails; `None` when it failed, which is in the report.
pub(super) fn stream(
    campaign: &mut Campaign,
    name: &str,
    size: &str,
    settings: &[(&str, &str)],
) -> Result<Option<f64>> {
    let program = campaign.program("stream");
    let seconds = campaign.by_scale("1", "3", "8");
    let mut run = campaign.new_run(name, &[&program, "--bw", "--size", size, "--seconds", seconds]);
    for (variable, value) in settings {
        run = run.env(variable, value);
    }
    run.rails = vec!["unshaped", "unshaped"];
    run.patience = Duration::from_secs(60);
    let ran = run.run()?;
    if !campaign.check_run(&format!("{name}: windows of {size} run to their end"), &run, &ran, "MB/s over") {
        return Ok(None);
    }
    let rate = ran.stdout.split(" MB/s over").next().and_then(|text| text.rsplit(' ').next()?.parse().ok());
    Ok(Some(rate.context("the stream printed no bandwidth")?))
}

pub(super) fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}
