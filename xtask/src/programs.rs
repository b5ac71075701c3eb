//! The MPI programs of tests/mpi, compiled with MPICH's `mpicc`.

use crate::workspace::{mpich_prefix, programs_dir, root, run};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

const PROGRAMS: &[&str] = &["stream", "checked", "compute", "latency", "nas"];
/// Libraries to preload: `plant` breaks what a program receives, `phase` tells the lab where a program is.
const LIBRARIES: &[&str] = &["plant", "phase"];

/// Compiles what is older than its source.
pub fn build() -> Result<()> {
    let sources = root().join("tests/mpi");
    std::fs::create_dir_all(programs_dir()).context("could not make .rerail/bin")?;
    let common = changed(&sources.join("common.h"));
    for name in PROGRAMS.iter().chain(LIBRARIES) {
        let source = sources.join(format!("{name}.c"));
        let is_library = LIBRARIES.contains(name);
        let made = programs_dir().join(if is_library { format!("lib{name}.so") } else { name.to_string() });
        if changed(&made) > changed(&source).max(common) {
            continue;
        }
        let mut compiler = if *name == "phase" {
            // Preloaded into shells and launchers as well: it must not bring an MPI with it, nor look for one at once.
            let mut compiler = Command::new("gcc");
            compiler.arg("-I").arg(mpich_prefix().join("include")).arg("-Wl,-z,lazy");
            compiler
        } else {
            Command::new(mpich_prefix().join("bin/mpicc"))
        };
        compiler.args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-function"]);
        if is_library {
            compiler.args(["-shared", "-fPIC"]);
        }
        run(compiler.arg("-o").arg(&made).arg(&source))?;
    }
    Ok(())
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}
