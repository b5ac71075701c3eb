//! `cargo xtask setup`: what the other commands need, installed once.
//!
//! System packages only where a tool is missing, because that alone needs root. The MPIs are wheels, each in a prefix of its
//! own: `mpich` and `impi-rt` bring files of the same names (`lib/libmpi.so.12`, `bin/mpiexec`), and in one prefix the later
//! silently replaces the earlier; what then calls itself MPICH is Intel MPI. So setup also asks the result what it is.

use crate::programs;
use crate::workspace::{
    has_program, impi_prefix, is_root, mpich_prefix, output, run as run_command, state_dir,
};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// A tool, and the Debian package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("iperf3", "iperf3"),
    ("fi_info", "libfabric-bin"),
    ("gcc", "gcc"),
    ("python3", "python3"),
    ("git", "git"),
];

const MPICH_VERSION: &str = "5.0.2";
const MPICH_WHEELS: &[&str] = &["mpich==5.0.2", "mpi4py==4.1.2", "numpy==2.4.6"];
const IMPI_WHEELS: &[&str] = &["impi-rt==2021.18.1"];

/// Installs what is missing.
pub fn run() -> Result<()> {
    install_tools()?;
    install_wheels(&mpich_prefix(), MPICH_WHEELS)?;
    install_wheels(&impi_prefix(), IMPI_WHEELS)?;
    expect_mpich(&mpich_prefix())?;
    programs::build()
}

fn install_tools() -> Result<()> {
    let mut packages: Vec<&str> =
        TOOLS.iter().filter(|(tool, _)| !has_program(tool)).map(|&(_, package)| package).collect();
    // A Python without `ensurepip` cannot make an environment; Debian ships that part by itself.
    let can_make_venv = Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output()
        .is_ok_and(|o| o.status.success());
    if !can_make_venv {
        packages.push("python3-venv");
    }
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let by_hand = format!("install these packages and try again: {list}");
    if !has_program("apt-get") {
        bail!("some tools are missing and this system has no apt-get; {by_hand}");
    }
    let sudo = !is_root();
    if sudo && !Command::new("sudo").args(["-n", "true"]).output().is_ok_and(|o| o.status.success()) {
        bail!("some tools are missing and installing them needs root; {by_hand}");
    }
    eprintln!("setup: installing {list}");
    let apt = |arguments: &[&str]| {
        let mut command = if sudo { Command::new("sudo") } else { Command::new("apt-get") };
        if sudo {
            command.args(["-n", "apt-get"]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
        run_command(&mut command)
    };
    apt(&["-qq", "update"]).with_context(|| by_hand.clone())?;
    apt(&[&["-qq", "-y", "--no-install-recommends", "install"], packages.as_slice()].concat())
        .with_context(|| by_hand.clone())
}

fn install_wheels(prefix: &Path, wheels: &[&str]) -> Result<()> {
    let stamp = prefix.join("rerail-wheels");
    let wanted = wheels.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    eprintln!("setup: installing {} into {}", wheels.join(" "), prefix.display());
    std::fs::create_dir_all(state_dir()).context("could not make .rerail")?;
    // Anew, so that nothing of other versions stays behind.
    run_command(Command::new("python3").args(["-m", "venv", "--clear"]).arg(prefix))?;
    run_command(
        Command::new(prefix.join("bin/python"))
            .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
            .args(wheels),
    )
    .with_context(|| {
        format!("could not install {}; is a Python package index within reach?", wheels.join(" "))
    })?;
    std::fs::write(&stamp, wanted).with_context(|| format!("could not write {}", stamp.display()))
}

fn expect_mpich(prefix: &Path) -> Result<()> {
    let text = output(&mut Command::new(prefix.join("bin/mpichversion")))?;
    let version = text.lines().find_map(|line| line.strip_prefix("MPICH Version:")).map(str::trim);
    if version != Some(MPICH_VERSION) {
        bail!(
            "{} should have MPICH {MPICH_VERSION}, but it says `{}`: remove that directory and run `cargo xtask setup` again",
            prefix.display(),
            text.lines().next().unwrap_or_default()
        );
    }
    Ok(())
}
