//! Bulk over UDP: what a shaped rail gives it beside TCP, with losses, without TCP, and next to a TCP flow.

use super::data::RIGHT;
use super::goodput::{iperf3, rate_of};
use super::{Campaign, Target};
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

const UDP: (&str, &str) = ("FI_RERAIL_BULK", "udp");
const RAIL: [&str; 1] = ["1gbit"];

/// Goodput on one rail of 1 Gbit/s, against what iperf3 gets from it over TCP.
pub fn goodput(campaign: &mut Campaign) -> Result<()> {
    let alone = iperf3(campaign, &RAIL)?[0] / 1e6;
    campaign.figure("iperf3 over TCP on the rail alone", alone, "MB/s", Target::None);
    let seconds = campaign.by_scale("3", "6", "10");
    let stream = campaign.program("stream");
    let program = [stream.as_str(), "--bw", "--size", "1MiB", "--seconds", seconds];
    let filter = campaign.tool("filtered.sh");
    let whole = measure(campaign, "udp", &program, Some(UDP))?;
    let Some(whole) = whole else { return Ok(()) };
    campaign.figure("bulk over UDP, of iperf3", 100.0 * whole / alone, "%", Target::AtLeast(90.0));
    let lossy = [&[filter.as_str(), "1"][..], &program].concat();
    if let Some(rate) = measure(campaign, "lossy", &lossy, Some(UDP))? {
        let share = 100.0 * rate / whole;
        campaign.figure("with 0.1 % of the datagrams lost, of that", share, "%", Target::AtLeast(85.0));
    }
    let without = [&[filter.as_str(), "tcp"][..], &program].concat();
    if let Some(rate) = measure(campaign, "no-tcp", &without, None)? {
        let share = 100.0 * rate / alone;
        campaign.figure("where TCP is filtered, of iperf3", share, "%", Target::AtLeast(90.0));
    }
    share(campaign, alone, &program)?;
    cuts(campaign)
}

/// One run of `program`; its rate in MB/s, if it ended well.
fn measure(
    campaign: &mut Campaign,
    name: &str,
    program: &[&str],
    set: Option<(&str, &str)>,
) -> Result<Option<f64>> {
    let mut run = campaign.new_run(name, program);
    run.rails = RAIL.to_vec();
    run.patience = Duration::from_secs(90);
    if let Some((variable, value)) = set {
        run = run.env(variable, value);
    }
    let ran = run.run()?;
    if !campaign.check_run(&format!("{name}: windows of 1MiB run to their end"), &run, &ran, "MB/s over") {
        return Ok(None);
    }
    let rate = rate_of(&ran.stdout)?;
    campaign.figure(&format!("{name}: 1MiB messages"), rate, "MB/s", Target::None);
    Ok(Some(rate))
}

/// Next to one TCP flow from the same node over the same rail.
fn share(campaign: &mut Campaign, alone: f64, program: &[&str]) -> Result<()> {
    let tool = campaign.tool("beside.sh");
    let seconds = campaign.by_scale("4", "10", "20");
    let mut run = campaign.new_run("beside", &[]);
    let dir = run.dir.to_string_lossy().into_owned();
    let length = (seconds.parse::<u32>().context("seconds are a number")? + 4).to_string();
    let mut arguments = [&[tool.as_str(), &dir, seconds][..], program].concat();
    *arguments.last_mut().expect("the program has arguments") = &length;
    run.program = arguments.iter().map(ToString::to_string).collect();
    run.rails = RAIL.to_vec();
    run.patience = Duration::from_secs(90);
    let run = run.env(UDP.0, UDP.1);
    let ran = run.run()?;
    if !campaign.check_run("beside a TCP flow the program runs to its end", &run, &ran, "MB/s over") {
        return Ok(());
    }
    let text = std::fs::read_to_string(run.dir.join("beside.json")).context("iperf3 left no report")?;
    let report: Value = serde_json::from_str(&text).context("iperf3's report is no JSON")?;
    let bits = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    let tcp = bits.context("iperf3's report has no sum")? / 8e6;
    campaign.figure("TCP flow beside bulk over UDP", tcp, "MB/s", Target::None);
    // what TCP has of its half: more than 125 % and bulk has starved, less than 75 % and TCP has
    let share = 200.0 * tcp / alone;
    campaign.figure("of half the rail, at least", share, "%", Target::AtLeast(75.0));
    campaign.figure("of half the rail, at most", share, "%", Target::AtMost(125.0));
    Ok(())
}

/// Every byte right while both rails are cut in turn.
fn cuts(campaign: &mut Campaign) -> Result<()> {
    let program = campaign.program("checked");
    let seconds = campaign.by_scale("6", "12", "30");
    let arguments = [program.as_str(), "--seconds", seconds, "--max", "4MiB", "--watchdog", "60"];
    let mut run = campaign.new_run("checked", &arguments);
    run.schedule = "1s cut rail0 dark; 2s heal rail0; 3s cut rail1 down; 4s heal rail1".into();
    let run = run.env(UDP.0, UDP.1);
    let ran = run.run()?;
    campaign.check_run("checked over UDP while rails break", &run, &ran, RIGHT);
    Ok(())
}
