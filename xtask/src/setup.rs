//! `cargo xtask setup`: what the other commands need, installed once.
//!
//! System packages only where a tool is missing, because that alone needs root. The MPIs are wheels, each in a prefix of its
//! own: `mpich` and `impi-rt` bring files of the same names (`lib/libmpi.so.12`, `bin/mpiexec`), and in one prefix the later
//! silently replaces the earlier; what then calls itself MPICH is Intel MPI. So setup also checks what the result is.

use crate::mpi::Mpi;
use crate::programs;
use crate::workspace::{has_program, is_root, output, run as run_command, state_dir};
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

/// Open MPI 4 with libfabric 1.17.
const OPEN_MPI_4: &[(&str, &str)] =
    &[("mpiexec.openmpi", "openmpi-bin"), ("mpicc.openmpi", "libopenmpi-dev")];

/// A scheduler, and what lets Intel MPI speak to it.
const SLURM: &[(&str, &str)] = &[("slurmctld", "slurm-wlm"), ("mungekey", "munge")];
const SLURM_PMI: (&str, &str) = ("/usr/lib/x86_64-linux-gnu/libpmi2.so.0", "libpmi2-0");

/// Installs what is missing.
pub fn run() -> Result<()> {
    install_tools()?;
    install_extras();
    for mpi in Mpi::WHEELS {
        install_wheels(mpi)?;
        expect(mpi)?;
    }
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
    if packages.is_empty() { Ok(()) } else { install_packages(&packages) }
}

/// What is not to be had everywhere: tests that need it are skipped where it is missing.
fn install_extras() {
    let tools = OPEN_MPI_4.iter().chain(SLURM);
    let mut packages: Vec<&str> = tools.filter(|(tool, _)| !has_program(tool)).map(|t| t.1).collect();
    packages.extend((!Path::new(SLURM_PMI.0).exists()).then_some(SLURM_PMI.1));
    // for the C programs that try the provider call by call
    packages.extend((!programs::has_fabric_headers()).then_some("libfabric-dev"));
    // one by one, so that one that is not to be had takes none with it
    for package in packages.into_iter().filter(|_| has_program("apt-get")) {
        if let Err(error) = install_packages(&[package]) {
            eprintln!("setup: without {package}, whose tests will be skipped: {error:#}");
        }
    }
}

fn install_packages(packages: &[&str]) -> Result<()> {
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
        let words = ["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
        let words = if sudo { &words[..] } else { &words[2..] };
        run_command(Command::new(words[0]).args(&words[1..]).args(arguments))
    };
    apt(&["-qq", "update"]).with_context(|| by_hand.clone())?;
    apt(&[&["-qq", "-y", "--no-install-recommends", "install"], packages].concat())
        .with_context(|| by_hand.clone())
}

fn install_wheels(mpi: Mpi) -> Result<()> {
    let (prefix, wheels) = (mpi.prefix(), mpi.wheels());
    let stamp = prefix.join("rerail-wheels");
    let wanted = wheels.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    eprintln!("setup: installing {} into {}", wheels.join(" "), prefix.display());
    std::fs::create_dir_all(state_dir()).context("could not make .rerail")?;
    // Emptied first, so that nothing of other versions stays behind.
    run_command(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&prefix))?;
    run_command(
        Command::new(prefix.join("bin/python"))
            .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
            .args(wheels),
    )
    .with_context(|| format!("could not install {wheels:?}; is a Python package index within reach?"))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("could not write {}", stamp.display()))
}

/// Checks that what was installed is what it should be.
fn expect(mpi: Mpi) -> Result<()> {
    let (program, arguments): (_, &[&str]) = match mpi {
        // The library itself answers, not the launcher.
        Mpi::Mpich => ("mpichversion", &[]),
        _ => ("mpiexec", &["--version"]),
    };
    let text = output(Command::new(mpi.prefix().join("bin").join(program)).args(arguments))?;
    let version = mpi.wheels()[0].rsplit("==").next().unwrap_or_default();
    let name = match mpi {
        Mpi::Mpich => "MPICH Version:",
        Mpi::Intel => "Intel(R) MPI Library",
        Mpi::Open5 | Mpi::Open4 => "(Open MPI)",
    };
    let is_it =
        text.lines().any(|line| line.contains(name) && line.split([' ', ',']).any(|word| word == version));
    if !is_it {
        let (prefix, wheel, first) = (mpi.prefix(), mpi.wheels()[0], text.lines().next().unwrap_or_default());
        bail!(
            "{prefix:?} should have {wheel}, but it says `{first}`: remove it and run `cargo xtask setup` again"
        );
    }
    Ok(())
}
