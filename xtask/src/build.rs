//! `cargo xtask build`: the provider and the command, optimized, under the names that users need.

use crate::workspace::{cargo, release_dir, run as run_command};
use anyhow::{Context, Result, bail};

/// Builds what a run in the lab needs: the command, and the provider unless it is to be left out.
pub fn for_lab(provider: bool) -> Result<()> {
    if provider { run() } else { run_command(cargo().args(["build", "--release", "-p", "rerail-cli"])) }
}

/// Builds; afterwards `target/release` has `librerail-fi.so` and `rerail`, and `target/release/lib/rerail` the former again.
pub fn run() -> Result<()> {
    run_command(cargo().args(["build", "--release", "-p", "rerail-provider", "-p", "rerail-cli"]))?;
    // libfabric loads files that end in `fi.so`, by custom `-fi.so`; Cargo refuses a hyphen in a library's name.
    let built = release_dir().join("librerail_fi.so");
    let wanted = release_dir().join("librerail-fi.so");
    if !built.is_file() {
        bail!(
            "the build left no {built:?}: is the library of rerail-provider still named `rerail_fi`, a cdylib?"
        );
    }
    // By a rename, so that a running MPI program keeps the file that it has mapped.
    let fresh = release_dir().join(".librerail-fi.so.new");
    std::fs::copy(&built, &fresh).with_context(|| format!("could not copy {}", built.display()))?;
    std::fs::rename(&fresh, &wanted).with_context(|| format!("could not write {}", wanted.display()))?;
    // And where nothing else ends in `fi.so`: a directory to name in FI_PROVIDER_PATH.
    let alone = release_dir().join("lib/rerail");
    std::fs::create_dir_all(&alone).with_context(|| format!("could not make {}", alone.display()))?;
    let linked = alone.join(".librerail-fi.so.new");
    let _ = std::fs::remove_file(&linked);
    std::fs::hard_link(&wanted, &linked).with_context(|| format!("could not write {}", linked.display()))?;
    let place = alone.join("librerail-fi.so");
    std::fs::rename(&linked, &place).with_context(|| format!("could not write {}", place.display()))
}
