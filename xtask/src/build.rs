//! `cargo xtask build`: the provider and the command, optimized, under the names that users need.

use crate::workspace::{cargo, release_dir, root, run as run_command};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Builds what a run in the lab needs: the command, and the provider unless it is to be left out.
pub fn for_lab(provider: bool) -> Result<()> {
    if provider { run() } else { run_command(cargo().args(["build", "--release", "-p", "rerail-cli"])) }
}

/// Builds; afterwards `target/release` has `librerail-fi.so` and `rerail`, `target/release/lib/rerail` the former again, and
/// `target/release/rwapi` what programs of RWAPI are compiled with.
pub fn run() -> Result<()> {
    run_command(cargo().args([
        "build",
        "--release",
        "-p",
        "rerail-provider",
        "-p",
        "rerail-cli",
        "-p",
        "rwapi",
    ]))?;
    rwapi()?;
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

/// A prefix of RWAPI, which may be moved: headers, library, and what pkg-config reads.
fn rwapi() -> Result<()> {
    let prefix = release_dir().join("rwapi");
    let place = |from: &Path, to: &str| -> Result<()> {
        let to = prefix.join(to);
        std::fs::create_dir_all(to.parent().unwrap_or(&prefix))?;
        // by a rename, as above
        let fresh = to.with_extension("new");
        std::fs::copy(from, &fresh)?;
        Ok(std::fs::rename(&fresh, &to)?)
    };
    let source = root().join("crates/rwapi");
    [
        (release_dir().join("librwapi.so"), "lib/librwapi.so"),
        (source.join("rwapi.pc"), "lib/pkgconfig/rwapi.pc"),
        (source.join("include/rwapi.h"), "include/rwapi.h"),
        (source.join("include/rwapi_ext.h"), "include/rwapi_ext.h"),
    ]
    .iter()
    .try_for_each(|(from, to)| place(from, to).with_context(|| format!("could not place {to}")))
}
