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
/// Programs that use libfabric without an MPI.
const FABRIC_PROGRAMS: &[&str] = &["collective"];
/// Libraries to preload: `plant` breaks what a program receives, `phase` tells the lab where a program is.
const LIBRARIES: &[&str] = &["plant", "phase"];

/// Compiles what is older than its source, for every MPI that is there.
pub fn build() -> Result<()> {
    for mpi in [Mpi::Mpich, Mpi::Open5, Mpi::Open4] {
        let (compiler, _) = mpi.compiler();
        if compiler.is_file() {
            build_with(&compiler, |name| mpi.program(name))?;
        }
    }
    build_fabric()
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

/// Where libfabric's headers are missing these programs are, too; what needs them says so.
fn build_fabric() -> Result<()> {
    if !has_fabric_headers() {
        return Ok(());
    }
    for name in FABRIC_PROGRAMS {
        let (source, made) = (root().join(format!("tests/fabric/{name}.c")), fabric(name));
        if changed(&made) > changed(&source) {
            continue;
        }
        let dir = made.parent().context("a program lies in a directory")?;
        std::fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
        let mut command = Command::new("gcc");
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-o"]).arg(&made).arg(&source).arg("-lfabric");
        run(&mut command)?;
    }
    Ok(())
}

fn build_with(compiler: &Path, place: impl Fn(&str) -> PathBuf) -> Result<()> {
    let sources = root().join("tests/mpi");
    let common = changed(&sources.join("common.h"));
    for name in PROGRAMS.iter().chain(LIBRARIES) {
        let source = sources.join(format!("{name}.c"));
        let is_library = LIBRARIES.contains(name);
        let made = place(&if is_library { format!("lib{name}.so") } else { name.to_string() });
        if changed(&made) > changed(&source).max(common) {
            continue;
        }
        let dir = made.parent().context("a program lies in a directory")?;
        std::fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
        let mut command = Command::new(compiler);
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-function"]);
        if *name == "phase" {
            // Preloaded into shells and launchers as well: it must not bring an MPI with it, nor look for one at once. So the
            // MPI's compiler, which knows where the headers are, does not link it.
            let object = made.with_extension("o");
            run(command.args(["-fPIC", "-c", "-o"]).arg(&object).arg(&source))?;
            run(Command::new("gcc").args(["-shared", "-Wl,-z,lazy", "-o"]).arg(&made).arg(&object))?;
            continue;
        }
        if is_library {
            command.args(["-shared", "-fPIC"]);
        }
        run(command.arg("-o").arg(&made).arg(&source))?;
    }
    Ok(())
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}
