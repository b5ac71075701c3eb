//! The MPI programs of tests/mpi, compiled once for each ABI: `.rerail/bin/mpich` (Intel MPI's too), `openmpi`, `openmpi4`. Those of
//! tests/fabric, which use libfabric without an MPI: `.rerail/bin/fabric`.

use crate::mpi::Mpi;
use crate::workspace::{root, run, state_dir};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

const PROGRAMS: &[&str] =
    &["stream", "checked", "compute", "latency", "nas", "onesided", "overlap", "fork", "death", "known"];

/// Compiles what is older than its source, for every MPI that is there. Two are libraries to preload: `plant` breaks what a program receives,
/// `phase` tells the lab where a program is. Where libfabric's headers are missing its programs are, too; what needs them says so.
pub fn build() -> Result<()> {
    let source = |name: &str| root().join("tests").join(name).with_extension("c");
    let gcc = Path::new("gcc");
    for mpi in [Mpi::Mpich, Mpi::Open5, Mpi::Open4] {
        let (compiler, _) = mpi.compiler();
        if !compiler.is_file() {
            continue;
        }
        for name in PROGRAMS {
            compile(&compiler, &[], &source(&format!("mpi/{name}")), &mpi.program(name), &[])?;
        }
        compile(&compiler, &["-shared", "-fPIC"], &source("mpi/plant"), &mpi.program("libplant.so"), &[])?;
        // Preloaded into shells and launchers as well: it must not bring an MPI with it, nor look for one at once. So the MPI's
        // compiler, which knows where the headers are, does not link it.
        let object = mpi.program("libphase.o");
        compile(&compiler, &["-fPIC", "-c"], &source("mpi/phase"), &object, &[])?;
        compile(gcc, &["-shared", "-Wl,-z,lazy"], &object, &mpi.program("libphase.so"), &[])?;
    }
    if has_fabric_headers() {
        compile(gcc, &[], &source("fabric/collective"), &fabric("collective"), &["-lfabric"])?;
    }
    Ok(())
}

/// The path of a program of tests/fabric.
pub fn fabric(name: &str) -> PathBuf {
    state_dir().join("bin/fabric").join(name)
}

/// Whether C programs can be compiled against libfabric.
pub fn has_fabric_headers() -> bool {
    let mut probe = Command::new("gcc");
    probe.args(["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null"]);
    probe.output().is_ok_and(|out| out.status.success())
}

/// Compiles or links one file, unless what it makes is newer than its source and the header beside it.
fn compile(compiler: &Path, flags: &[&str], source: &Path, made: &Path, libraries: &[&str]) -> Result<()> {
    if changed(made) > changed(source).max(changed(&source.with_file_name("common.h"))) {
        return Ok(());
    }
    let dir = made.parent().context("a program lies in a directory")?;
    std::fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
    let mut command = Command::new(compiler);
    command.args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-function"]).args(flags);
    run(command.arg("-o").arg(made).arg(source).args(libraries))
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}
