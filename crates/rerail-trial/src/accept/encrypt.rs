//! Encryption of all traffic (`FI_RERAIL_ENCRYPT=1`): the programs run as well, over cuts and over a wire that
//! corrupts; a process that encrypts and one that does not refuse each other with one sentence; and what it costs.

use super::lossy::{self, Bad};
use super::protection::{latency_us, median, stream};
use super::{Campaign, Target, data};
use crate::lab::why_no_wire;
use anyhow::Result;
use serde_json::Value;
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
    for bulk in ["auto", "udp"] {
        for encrypted in [true, false] {
            wire(campaign, bulk, encrypted)?;
        }
    }
    unlike(campaign)?;
    cost(campaign)
}

/// Packets with payload that an eavesdropper must have seen of each protocol, for its report to count.
const PACKETS_MIN: u64 = 50;

/// Known words are sent while every packet is looked at. In clear they must be found: an eavesdropper that never finds
/// anything proves nothing.
fn wire(campaign: &mut Campaign, bulk: &str, encrypted: bool) -> Result<()> {
    let (tool, program) = (campaign.tool("wire.py"), campaign.program("known"));
    let name = format!("wire-{bulk}-{}", if encrypted { "encrypted" } else { "clear" });
    let mut run = campaign.new_run(&name, &[]).env("FI_RERAIL_BULK", bulk);
    let report = run.dir.join("wire").to_string_lossy().into_owned();
    run.program = ["python3", &tool, &report, &program, "--rounds", "20"].map(String::from).to_vec();
    run.patience = Duration::from_secs(60);
    let run = run.env(ENCRYPT.0, u8::from(encrypted));
    let ran = run.run()?;
    let what = format!("known words, bulk {bulk}, {}", if encrypted { "encrypted" } else { "in clear" });
    campaign.check_run(&format!("{what}: the program runs to its end"), &run, &ran, data::RIGHT);
    // small messages are datagrams; large ones are streams unless set otherwise
    let protocols: &[&str] = if bulk == "udp" { &["udp"] } else { &["udp", "tcp"] };
    for rank in 0..run.nodes {
        let text = std::fs::read_to_string(format!("{report}.{rank}")).unwrap_or_default();
        let heard = overheard(&text, protocols, encrypted);
        let promise = if encrypted { "nothing of them can be read" } else { "they can be read" };
        campaign.check(
            &format!("{what}: {promise} on the wire of rank {rank}"),
            heard.is_ok(),
            heard.err().unwrap_or_default(),
        );
    }
    Ok(())
}

/// Whether a report of wire.py is as it must be.
fn overheard(report: &str, protocols: &[&str], encrypted: bool) -> Result<(), String> {
    let counts: Value = serde_json::from_str(report).map_err(|_| format!("wire.py reported `{report}`"))?;
    for protocol in protocols {
        let count = |what: &str| counts[protocol][what].as_u64().unwrap_or(0);
        let (packets, readable) = (count("packets"), count("readable"));
        if packets < PACKETS_MIN {
            return Err(format!("only {packets} packets of {protocol} were seen: {report}"));
        }
        if (readable == 0) != encrypted {
            return Err(format!("the words were in {readable} of {packets} packets of {protocol}"));
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::overheard;

    #[test]
    fn an_eavesdropper_must_have_seen_packets_and_words_only_in_clear() {
        let report = |packets: u32, readable: u32| {
            format!(
                r#"{{"udp": {{"packets": {packets}, "readable": {readable}}}, "tcp": {{"packets": 900, "readable": {readable}}}}}"#
            )
        };
        let both = ["udp", "tcp"];
        assert_eq!(overheard(&report(900, 0), &both, true), Ok(()));
        assert_eq!(overheard(&report(900, 40), &both, false), Ok(()));
        for (report, encrypted) in [
            (report(900, 1), true),
            (report(900, 0), false),
            (report(3, 0), true),
            (report(3, 3), false),
            (String::new(), true),
        ] {
            assert!(overheard(&report, &both, encrypted).is_err(), "{report} {encrypted}");
        }
    }
}
