//! `rerail-trial migrations`: what each transition of a carrier costs over queue pairs, between two guests: figures 5 to 8 of the APM paper.
//!
//! The program that measures is an example of `rerail-verbs`, which runs on any two hosts with adapters. It asks for cables to be cut;
//! here the lab's are.

use crate::child::end_with_us;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rerail_lab::EXIT_LAB_FAILED;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::build;
use xtask::workspace::{cargo, release_dir, rerail, root, run as run_command, target_dir};

const PROGRAM: &str = "apm_queue_pairs";
/// Before what it asks for.
const ASKS: &str = "ASK ";
/// Its last words.
const WELL: &str = "well done";
/// A guest that hangs as a whole must not hang this, s.
const GUEST_S_MAX: &str = "900";

/// Adapters that guests have in software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// Soft-RoCE
    Roce,
    /// Soft-iWARP
    Iwarp,
}

/// What path migration costs over queue pairs, in guests: time by number of queue pairs, latency while it happens
#[derive(Debug, clap::Args)]
pub struct Options {
    /// What the guests have
    #[arg(long, value_enum, default_value = "roce")]
    rdma: Device,
    /// Queue pairs on each rail, one number after the other: 1 to 64
    #[arg(long, value_name = "N,N,...", default_value = "1,4,16", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=64))]
    pairs: Vec<u8>,
}

/// Builds, runs, and prints the tables.
pub fn run(options: &Options) -> Result<()> {
    build::for_lab(false)?;
    run_command(cargo().args(["build", "--release", "--quiet", "-p", "rerail-verbs", "--example", PROGRAM]))?;
    match in_guests(&release_dir(), options)? {
        Some(EXIT_LAB_FAILED) => bail!("there is no lab of guests; the reason is above"),
        Some(0) => Ok(()),
        code => bail!("the program failed ({code:?}); what it says is above"),
    }
}

/// One and two queue pairs, for the tests, with the build that they have; `None` if there is no lab of guests.
pub fn short() -> Result<Option<()>> {
    run_command(cargo().args(["build", "--quiet", "-p", "rerail-verbs", "--example", PROGRAM]))?;
    match in_guests(&target_dir().join("debug"), &Options { rdma: Device::Roce, pairs: vec![1, 2] })? {
        Some(EXIT_LAB_FAILED) => Ok(None),
        Some(0) => Ok(Some(())),
        code => bail!("the program failed ({code:?}); what it says is above"),
    }
}

/// The exit code of the lab, which is the program's; a program that said nothing at its end has failed.
fn in_guests(built: &Path, options: &Options) -> Result<Option<i32>> {
    let program: PathBuf = built.join("examples").join(PROGRAM);
    let name = format!("migrations-{}", std::process::id());
    let mut command = Command::new("timeout");
    command.arg(GUEST_S_MAX).arg(rerail());
    command.args(["lab", "run", "--quiet", "--name", &name, "--nodes", "2", "--mpi", "none"]);
    command.args(["--rail", "unshaped", "--rail", "unshaped", "--rdma"]);
    command.arg(if options.rdma == Device::Roce { "roce" } else { "iwarp" }).arg("--").arg(program);
    command.args(options.pairs.iter().map(u8::to_string));
    command.current_dir(root()).stdin(Stdio::piped()).stdout(Stdio::piped());
    end_with_us(&mut command);
    let mut child = command.spawn().context("could not start `rerail lab`")?;
    let mut answers = child.stdin.take().context("a pipe")?;
    let mut is_well = false;
    for line in BufReader::new(child.stdout.take().context("a pipe")?).lines() {
        let line = line.context("could not read what the program prints")?;
        let Some(wish) = line.strip_prefix(ASKS) else {
            is_well |= line == WELL;
            println!("{line}");
            continue;
        };
        let mut lab = Command::new(rerail());
        run_command(lab.args(["lab"]).args(wish.split(' ')).args(["--name", &name]).stdout(Stdio::null()))?;
        // a program that has ended takes no answer; its code says why
        let _ = writeln!(answers, "done");
    }
    let code = child.wait().context("could not wait for the lab")?.code();
    if code == Some(0) && !is_well {
        bail!("the program ended without having measured everything");
    }
    Ok(code)
}
