//! The Intel MPI benchmarks in full: every benchmark that the five programs know, by their own list, runs up to its largest size, plain
//! and while a rail breaks every two seconds.
//!
//! They are compiled for MPICH's ABI, and so run on MPICH and Intel MPI.

use super::{Campaign, KINDS, Scale};
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::Duration;
use xtask::mpi::Mpi;

/// One of the programs.
struct Part {
    name: &'static str,
    /// Ranks per node, on two nodes: what its benchmarks need.
    per_node: usize,
    /// Further arguments.
    arguments: &'static [&'static str],
    /// Bytes of the largest size that a benchmark reaches with them.
    largest: u64,
    /// Arguments of the short form.
    short: &'static [&'static str],
    /// The same for the short form.
    short_largest: u64,
    /// What it prints at the end; the one with threads has no last words.
    says: &'static str,
}

const END: &str = "All processes entering MPI_Finalize";
/// So many repetitions of every size: left to its clock, IMB skips large sizes.
const ALL_SIZES: &[&str] = &["-iter", "20", "-iter_policy", "off"];
const SHORT: &[&str] = &["-iter", "30", "-iter_policy", "off", "-msglog", "4:18"];
const LARGEST: u64 = 4 << 20;
const SHORT_LARGEST: u64 = 1 << 18;

const PARTS: [Part; 5] = [
    Part { name: "IMB-MPI1", ..USUAL },
    Part { name: "IMB-NBC", ..USUAL },
    Part { name: "IMB-RMA", ..USUAL },
    // its stencil in three dimensions needs eight ranks
    Part {
        name: "IMB-P2P",
        per_node: 4,
        arguments: &["-iter", "20"],
        short: &["-iter", "2"],
        short_largest: LARGEST,
        ..USUAL
    },
    // the windows of its bandwidth benchmarks, four threads and 16 MiB would be 300 GB
    Part {
        name: "IMB-MT",
        arguments: &["-thread_level", "multiple", "-repeat", "20", "-count", "1,16,256,4096,65536"],
        largest: 65536 * MT_UNIT,
        short: &["-thread_level", "multiple", "-repeat", "4", "-count", "1,4096"],
        short_largest: 4096 * MT_UNIT,
        says: "(threads: 4)",
        ..USUAL
    },
];

/// Bytes that each thread of IMB-MT sends for a count of one, four threads together.
const MT_UNIT: u64 = 16;

const USUAL: Part = Part {
    name: "",
    per_node: 1,
    arguments: ALL_SIZES,
    largest: LARGEST,
    short: SHORT,
    short_largest: SHORT_LARGEST,
    says: END,
};

/// The benchmarks in what a program prints when it is asked for its list: alone on their lines, but for a word in brackets.
fn listed(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim_start_matches('#').trim());
    let names = lines.map(|line| line.strip_suffix("(non-default)").map_or(line, str::trim_end));
    names
        .filter(|name| {
            name.starts_with(|c: char| c.is_ascii_uppercase())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        })
        .map(ToString::to_string)
        .collect()
}

/// What is missing in the output: benchmarks without a section, and sections that have sizes but not the largest.
///
/// Two benchmarks know one size only, that of an integer.
fn missing(wanted: &[String], output: &str, largest: u64) -> Vec<String> {
    let mut found: Vec<(&str, bool, u64)> = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("# Benchmarking ") {
            found.push((rest.split(' ').next().unwrap_or(""), false, 0));
        } else if let Some(section) = found.last_mut() {
            let first = line.split_whitespace().next().unwrap_or("");
            section.1 |= first == "#bytes";
            section.2 = section.2.max(first.parse().unwrap_or(0));
        }
    }
    let mut missing: Vec<String> = wanted
        .iter()
        .filter(|name| found.iter().all(|(found, ..)| *found != name.as_str()))
        .map(|name| format!("{name} was not run"))
        .collect();
    for (name, has_sizes, reached) in found {
        let end = if matches!(name, "Compare_and_swap" | "Fetch_and_op") { 4 } else { largest };
        if has_sizes && reached != end {
            missing.push(format!("{name} ended at {reached} bytes, not at {end}"));
        }
    }
    missing
}

/// A rail breaks every so many milliseconds, and is well again after half of them, in all kinds in turn, for as long as anything here runs.
fn cuts(every_ms: usize) -> String {
    let items = (0..900).map(|i| {
        let (at, rail) = (every_ms / 2 + every_ms * i, (i / KINDS.len()) % 2);
        let healed = at + every_ms / 2;
        format!("{at}ms cut rail{rail} {}; {healed}ms heal rail{rail}", KINDS[i % KINDS.len()])
    });
    items.collect::<Vec<_>>().join("; ")
}

pub fn all(campaign: &mut Campaign) -> Result<()> {
    if matches!(campaign.mpi, Mpi::Open5 | Mpi::Open4) {
        println!("  (IMB's binaries follow MPICH's ABI; nothing of this is for this MPI)");
        return Ok(());
    }
    let intel = Mpi::Intel.prefix();
    let library = campaign.mpi.prefix().join("lib").to_string_lossy().into_owned();
    for part in PARTS {
        let program = intel.join("bin").join(part.name);
        let output = Command::new(&program)
            .arg("-list")
            .env("LD_LIBRARY_PATH", intel.join("lib"))
            .output()
            .with_context(|| format!("could not ask {} for its benchmarks", part.name))?;
        let wanted = listed(&String::from_utf8_lossy(&output.stdout));
        if wanted.is_empty() {
            bail!("{} lists no benchmark: has `cargo xtask setup` been run?", part.name);
        }
        let ranks = (2 * part.per_node).to_string();
        for (name, schedule) in [("plain", String::new()), ("cuts", cuts(campaign.by_scale(600, 2000, 2000)))]
        {
            let quick = campaign.scale == Scale::Quick;
            if quick && schedule.is_empty() {
                continue;
            }
            let path = program.to_string_lossy();
            let mut arguments = vec![&*path];
            arguments.extend(wanted.iter().map(String::as_str));
            arguments.extend(if quick { part.short } else { part.arguments });
            if part.name != "IMB-MT" {
                arguments.extend(["-npmin", &ranks]);
            }
            let mut run = campaign
                .new_run(&format!("{}-{name}", part.name), &arguments)
                .env("LD_LIBRARY_PATH", &library);
            if part.name == "IMB-MT" {
                // only this one library is Intel's: the MPI beside it may be another
                let openmp = intel.join("lib/libiomp5.so");
                run = run.env("OMP_NUM_THREADS", 4).env("LD_PRELOAD", openmp.display());
            }
            run.rails = vec!["unshaped", "unshaped"];
            run.per_node = part.per_node;
            run.schedule = schedule;
            (run.on_start, run.unending) = (false, true);
            run.patience = Duration::from_secs(campaign.by_scale(300, 900, 1800));
            let ran = run.run()?;
            let what = format!("{}, all its {} benchmarks, {name}", part.name, wanted.len());
            if campaign.check_run(&what, &run, &ran, part.says) {
                let largest = if quick { part.short_largest } else { part.largest };
                let absent = missing(&wanted, &ran.stdout, largest);
                campaign.check(
                    &format!("{what}: each up to {largest} bytes"),
                    absent.is_empty(),
                    absent.join(", "),
                );
                if !run.schedule.is_empty() {
                    let cut = ran.events.iter().filter(|e| e.is_lab() && e.name() == "cut").count();
                    println!("  ({cut} cuts in {:.0} s)", ran.took.as_secs_f64());
                    campaign.check(
                        &format!("{what}: rails were cut"),
                        cut > 0,
                        "it was over before the first",
                    );
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_a_program_is_read() {
        let rma = "Intel(R) MPI Benchmarks 2021.11\nList of benchmarks:\nIMB-RMA:\n    Accumulate\n    Compare_and_swap\n        \
                   Uses MPI_INT data type\n    Get_local (non-default)\n";
        assert_eq!(listed(rma), ["Accumulate", "Compare_and_swap", "Get_local"]);
        let p2p = "#-----\n#    Intel(R) MPI Benchmarks 2021.11, IMB-P2P part\n# List of Benchmarks to run:\n#\n# PingPong\n# Stencil2D\n";
        assert_eq!(listed(p2p), ["PingPong", "Stencil2D"]);
    }

    #[test]
    fn a_benchmark_that_was_not_run_or_ended_early_is_missed() {
        let wanted = ["Get".to_string(), "Get_local".into(), "Stencil2D".into(), "Barrier".into()];
        let output = "# Benchmarking Get_local \n       #bytes #repetitions\n            0  20\n           64  20\n\
                      # Benchmarking Barrier \n #repetitions  t_min\n           20  14.2\n\
                      # Benchmarking Fetch_and_op \n       #bytes #repetitions\n            4  20\n\
                      # Benchmarking Stencil2D (2 x 4)\n       #bytes #repetitions\n           32  20\n";
        assert_eq!(
            missing(&wanted, output, 64),
            ["Get was not run", "Stencil2D ended at 32 bytes, not at 64"]
        );
    }
}
