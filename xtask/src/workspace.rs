//! Where things are, and how other programs are run.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the checkout. Cargo names the directory of the package that it runs, so a moved checkout works without a new build.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = package.ancestors().find(|dir| dir.join("xtask/Cargo.toml").is_file());
    root.map(Path::to_path_buf).unwrap_or(package)
}

/// Cargo's output directory: CARGO_TARGET_DIR if set, else `target`.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The directory of the release build, where the provider and the command are.
pub fn release_dir() -> PathBuf {
    target_dir().join("release")
}

/// Everything that the commands install or write: ignored by git.
pub fn state_dir() -> PathBuf {
    root().join(".rerail")
}

/// The command `rerail` of the release build.
pub fn rerail() -> PathBuf {
    release_dir().join("rerail")
}

/// Cargo, as it was called.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // Cargo sets these for us; a nested cargo would take them for the user's wishes.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    command
}

/// `rerail-trial`, built if need be, ready for its arguments.
pub fn trial() -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "-p", "rerail-trial", "--"]);
    // the user's paths are meant from where the user is
    command.current_dir(std::env::current_dir().unwrap_or_else(|_| root()));
    command
}

/// Runs a command to its end with our own terminal, and fails if it does.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs a command and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("could not start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name is in PATH (or in the sbin directories, which a plain user's PATH may lack).
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(name).is_file())
}

/// Whether we are root.
pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}
