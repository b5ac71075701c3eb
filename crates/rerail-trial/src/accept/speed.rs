//! Whether `rerail bench` does what it says, and the ratios of a short run of it.

use super::{Campaign, RATIO, Target};
use crate::bench;
use anyhow::Result;
use serde_json::Value;

/// What is wanted of a ratio, with its name: test, bytes, peer. From the table of targets in docs/performance.md.
const TARGETS: [(&str, u64, &str, Target); 5] = [
    ("latency", 8, "tcp", Target::AtMost(0.75)),
    ("latency", 8, "sockets", Target::None),
    ("rate", 64, "tcp", Target::AtLeast(1.5)),
    ("bandwidth", 1 << 20, "tcp", Target::AtLeast(3.0)),
    ("bandwidth", 1 << 20, "sockets", Target::None),
];

/// Slices of 50 ms in a stream of two seconds, less one for the end.
const STREAM_SLICES_MIN: usize = 39;

/// Latency, rate and bandwidth over one unshaped rail, against libfabric's tcp and plain sockets.
pub fn bench(campaign: &mut Campaign) -> Result<()> {
    let rounds = campaign.by_scale(2, 5, 10);
    let ms = campaign.by_scale(50, 200, 500);
    let all = match bench::short(campaign.mpi, rounds, ms) {
        Ok(all) => all,
        Err(why) => {
            campaign.check("rerail bench measures all contenders", false, format!("{why:#}"));
            return Ok(());
        }
    };
    let figures = all["figures"].as_array().map_or(&[][..], Vec::as_slice);
    let mut missing = Vec::new();
    for (test, bytes, peer, target) in TARGETS {
        let is_it = |f: &&Value| f["test"] == test && f["bytes"] == bytes && f["contender"] == peer;
        match figures.iter().find(is_it).and_then(|f| f["rerail_ratio"].as_f64()) {
            Some(ratio) => {
                campaign.figure(&format!("{test}, {bytes} bytes, Rerail / {peer}"), ratio, RATIO, target);
            }
            None => missing.push(format!("{test} of {bytes} bytes against {peer}")),
        }
    }
    let whole = missing.is_empty();
    campaign.check(
        "rerail bench measures all contenders",
        whole,
        format!("no figure for {}", missing.join(", ")),
    );
    failover(campaign);
    Ok(())
}

/// A stream that outlives a dark rail, told slice by slice.
fn failover(campaign: &mut Campaign) {
    let told = match bench::short_failover(campaign.mpi) {
        Ok(all) => {
            let slices = all["timelines"][0]["mb_per_s"].as_array().map_or(0, Vec::len);
            match all["figures"][0]["median"].as_f64() {
                Some(ms) if slices >= STREAM_SLICES_MIN => {
                    campaign.figure("failover, 64 KiB: longest standstill", ms, "ms", Target::None);
                    Ok(())
                }
                _ => Err(format!("{slices} slices, and this was told: {all:#}")),
            }
        }
        Err(why) => Err(format!("{why:#}")),
    };
    let whole = told.is_ok();
    campaign.check(
        "rerail bench tells what arrives while a rail is dark",
        whole,
        told.err().unwrap_or_default(),
    );
}
