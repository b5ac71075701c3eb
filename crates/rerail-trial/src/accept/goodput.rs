//! What several rails carry together, as per cent of what iperf3 gets from each alone in the same campaign.

use super::{Campaign, Scale, Target};
use crate::lab::Transport;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;

pub fn goodput(campaign: &mut Campaign) -> Result<()> {
    let shapes: [(&str, &[&'static str], f64); 3] = [
        ("1 + 1 Gbit/s", &["1gbit", "1gbit"], 98.0),
        ("2 Gbit/s + 200 Mbit/s", &["2gbit", "200mbit"], 97.0),
        ("2 + 1 + 0.5 + 0.2 Gbit/s", &["2gbit", "1gbit", "500mbit", "200mbit"], 96.0),
    ];
    let sizes: &[&str] = if campaign.scale == Scale::Quick { &["1MiB"] } else { &["1MiB", "4MiB"] };
    let repeats = campaign.by_scale(1, 1, 3);
    for (index, (shape, rails, target)) in shapes.into_iter().enumerate() {
        for _ in 0..repeats {
            let alone = best_iperf3(campaign, rails)?;
            let sum: f64 = alone.iter().sum();
            for (rail, rate) in alone.iter().enumerate() {
                campaign.figure(
                    &format!("{shape}: iperf3 on rail{rail} alone"),
                    rate / 1e6,
                    "MB/s",
                    Target::None,
                );
            }
            for size in sizes {
                let program = campaign.program("stream");
                let seconds = campaign.by_scale("3", "6", "10");
                let arguments = [program.as_str(), "--bw", "--size", size, "--seconds", seconds];
                let mut run = campaign.new_run(&format!("shape{index}-{size}"), &arguments);
                run.rails = rails.to_vec();
                run.patience = Duration::from_secs(90);
                let ran = run.run()?;
                if !campaign.check_run(
                    &format!("{shape}: windows of {size} run to their end"),
                    &run,
                    &ran,
                    "MB/s over",
                ) {
                    continue;
                }
                let rate = rate_of(&ran.stdout)?;
                let share = 100.0 * rate * 1e6 / sum;
                campaign.figure(&format!("{shape}: {size} messages"), rate, "MB/s", Target::None);
                let target = if campaign.provider { Target::AtLeast(target) } else { Target::None };
                campaign.figure(
                    &format!("{shape}: {size} messages, of the sum of all rails"),
                    share,
                    "%",
                    target,
                );
            }
        }
    }
    Ok(())
}

/// The megabytes a second that tests/mpi/stream.c printed.
pub fn rate_of(stdout: &str) -> Result<f64> {
    let text = stdout.split(" MB/s over").next().and_then(|text| text.rsplit(' ').next());
    text.and_then(|text| text.parse().ok()).context("the stream printed no bandwidth")
}

/// The better of two runs of iperf3 on each rail: under BBR it sometimes keeps a third of the rate for all of its seconds.
fn best_iperf3(campaign: &mut Campaign, rails: &[&'static str]) -> Result<Vec<f64>> {
    let (one, other) = (iperf3(campaign, rails)?, iperf3(campaign, rails)?);
    Ok(one.iter().zip(&other).map(|(a, b)| a.max(*b)).collect())
}

/// Bytes per second that iperf3 gets from each rail alone.
pub fn iperf3(campaign: &mut Campaign, rails: &[&'static str]) -> Result<Vec<f64>> {
    let tool = campaign.tool("goodput.sh");
    let seconds = campaign.by_scale("2", "3", "5");
    let mut run = campaign.new_run("iperf3", &[]);
    let dir = run.dir.to_string_lossy().into_owned();
    let names: Vec<String> = (0..rails.len()).map(|rail| format!("rail{rail}")).collect();
    run.program = [tool, dir, seconds.into()].into_iter().chain(names.iter().cloned()).collect();
    run.mpi = None;
    run.transport = Transport::Own;
    run.rails = rails.to_vec();
    run.patience = Duration::from_secs(60);
    let ran = run.run()?;
    if ran.code != Some(0) {
        bail!("iperf3 in the lab failed ({:?}): {}; by hand: {}", ran.code, ran.stderr.trim(), ran.command);
    }
    let read = |rail: &str| -> Result<f64> {
        let text =
            std::fs::read_to_string(run.dir.join(format!("{rail}.json"))).context("iperf3 left no report")?;
        let report: Value = serde_json::from_str(&text).context("iperf3's report is no JSON")?;
        let bits = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
        Ok(bits.context("iperf3's report has no sum")? / 8.0)
    };
    names.iter().map(|name| read(name)).collect()
}
