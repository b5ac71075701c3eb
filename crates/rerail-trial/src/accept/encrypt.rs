//! Encryption of all traffic (`FI_RERAIL_ENCRYPT=1`): the programs run as well, over cuts and over a wire that corrupts; who encrypts
//! and who does not refuse each other in one sentence; and what it costs.

use super::lossy::{self, Bad};
use super::protection::{latency_us, median, stream};
use super::{Campaign, Target, data};
use crate::lab::why_no_wire;
use anyhow::Result;
use std::time::Duration;

const ENCRYPT: (&str, &str) = ("FI_RERAIL_ENCRYPT", "1");

/// The case.
pub fn encrypt(campaign: &mut Campaign) -> Result<()> {
    for (name, bulk) in [("cuts", "auto"), ("cuts, bulk over UDP", "udp")] {
        let program = campaign.program("checked");
        let (schedule, seconds) = data::every_kind_once(campaign);
        let (seconds, seed) = (seconds.to_string(), (campaign.seed * 1000 + 700).to_string());
        let arguments =
            [&program, "--seconds", &seconds, "--seed", &seed, "--max", "4MiB", "--watchdog", "60"];
        let mut run = campaign.new_run(&format!("cuts-{bulk}"), &arguments).env(ENCRYPT.0, ENCRYPT.1);
        run = run.env("FI_RERAIL_BULK", bulk);
        run.schedule = schedule;
        run.patience = Duration::from_secs(120);
        let ran = run.run()?;
        campaign.check_run(&format!("checked, {name}"), &run, &ran, data::RIGHT);
    }
    let probe = campaign.new_run("probe", &["true"]).dir;
    match why_no_wire(&probe) {
        Some(reason) => campaign.skip("lossy rails", &format!("no wire on this machine: {reason}")),
        None => {
            let mut program = lossy::checked(campaign);
            program.env.push((ENCRYPT.0, ENCRYPT.1.into()));
            lossy::one(campaign, &program, Bad::One, 1)?;
        }
    }
    unlike(campaign)?;
    cost(campaign)
}

/// One rank encrypts, the other does not.
fn unlike(campaign: &mut Campaign) -> Result<()> {
    let (tool, program) = (campaign.tool("unlike.sh"), campaign.program("latency"));
    let arguments = ["sh", &tool, &program, "--iterations", "10"];
    let mut run = campaign.new_run("unlike", &arguments);
    run.patience = Duration::from_secs(40);
    let ran = run.run()?;
    let all = format!("{}\n{}", ran.stdout, ran.stderr);
    let told = all.lines().any(|line| line.starts_with("rerail: FI_RERAIL_ENCRYPT is"));
    campaign.check(
        "a job in which only one process encrypts ends at once, and a sentence says why",
        told && !ran.hung && ran.code != Some(0) && !all.contains("panicked"),
        format!("sentence: {told}, hung: {}, exit code {:?}", ran.hung, ran.code),
    );
    Ok(())
}

/// Latency of 8 bytes and bandwidth of 1 MiB, with and without, in turn.
fn cost(campaign: &mut Campaign) -> Result<()> {
    let turns = campaign.by_scale(1, 3, 9);
    let mut latency: [Vec<f64>; 2] = Default::default();
    let mut bandwidth: [Vec<f64>; 2] = Default::default();
    for turn in 0..turns {
        for (i, value) in ["0", "1"].into_iter().enumerate() {
            let setting = [(ENCRYPT.0, value)];
            latency[i].extend(latency_us(campaign, &format!("latency-{value}-{turn}"), &setting)?);
            bandwidth[i].extend(stream(campaign, &format!("bandwidth-{value}-{turn}"), "1MiB", &setting)?);
        }
    }
    for (values, what, unit) in
        [(latency, "8 B half round trip", "us"), (bandwidth, "1 MiB, two rails", "MB/s")]
    {
        let [clear, sealed] = values.map(median);
        campaign.figure(&format!("{what}, in clear"), clear, unit, Target::None);
        campaign.figure(&format!("{what}, encrypted"), sealed, unit, Target::None);
        campaign.figure(
            &format!("{what}, encrypted against clear"),
            100.0 * sealed / clear,
            "%",
            Target::None,
        );
    }
    Ok(())
}
