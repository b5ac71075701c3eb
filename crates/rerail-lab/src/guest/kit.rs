//! What guests boot from: Debian's kernel and an initial disk, fetched and made on first use by `build.sh`.
//!
//! Owns the folder that keeps them. Nothing in it belongs to one lab, and labs only read it.

use crate::LabError;
use crate::error::Attempt;
use crate::rdma::Rdma;
use std::env;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the folder in place of the usual one.
pub const DIR_ENV: &str = "RERAIL_GUEST_DIR";

const BUILD: &str = include_str!("build.sh");
const INIT: &str = include_str!("init.sh");

/// The files to boot from.
#[derive(Debug)]
pub struct Kit {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial disk.
    pub initrd: PathBuf,
    /// The folder of all its modules.
    pub modules: PathBuf,
}

impl Kit {
    /// Finds them, or fetches and makes them, which takes a minute. Must be called outside the lab: it needs the network.
    pub fn prepare(kind: Rdma) -> Result<Kit, LabError> {
        if env::consts::ARCH != "x86_64" {
            return Err(LabError::Refused(
                "nodes as guests (--rdma) are for machines with x86_64 only: leave --rdma out".into(),
            ));
        }
        let dir = folder(|name| env::var_os(name).map(PathBuf::from), env::current_exe().ok().as_deref())?;
        if let Some(kit) = Kit::find(&dir, kind) {
            return Ok(kit);
        }
        fs::create_dir_all(&dir).attempt(|| format!("make `{}`", dir.display()))?;
        // Two labs that start at once must not both build.
        let what = || format!("lock `{}`", dir.display());
        let lock = fs::File::create(dir.join("lock")).attempt(what)?;
        crate::sys::lock_file(lock.as_fd()).attempt(what)?;
        if Kit::find(&dir, kind).is_none() {
            build(&dir, kind)?;
        }
        Kit::find(&dir, kind).ok_or_else(|| {
            LabError::Refused(format!("`{}` is incomplete: remove it and try again", dir.display()))
        })
    }

    /// What is there, if it is complete and made by this version.
    fn find(dir: &Path, kind: Rdma) -> Option<Kit> {
        let modules = dir.join("kernel/lib/modules");
        // A module fits one kernel only.
        let release = fs::read_to_string(dir.join("lab/release")).ok()?;
        let kernel = dir.join("kernel/boot").join(format!("vmlinuz-{}", release.trim_end()));
        let initrd = dir.join("lab.img");
        let current = fs::read_to_string(dir.join("lab/init")).is_ok_and(|init| init == INIT);
        let complete = kind == Rdma::Roce || modules.join("siw.ko").exists();
        (current && complete && kernel.exists() && initrd.exists()).then_some(Kit { kernel, initrd, modules })
    }
}

fn build(dir: &Path, kind: Rdma) -> Result<(), LabError> {
    let text = format!("rerail lab: making what guests boot from in {} (once)\n", dir.display());
    let _ = std::io::stderr().write_all(text.as_bytes());
    let mut command = Command::new("bash");
    command.arg("-c").arg(BUILD).arg("build.sh").arg(dir).env("init", INIT);
    if kind == Rdma::Iwarp {
        command.arg("siw");
    }
    let output = command.stdin(Stdio::null()).output().attempt(|| "run bash".into())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    let why: Vec<&str> = last.into_iter().rev().collect();
    Err(LabError::Refused(format!("there is nothing that guests could boot from: {}", why.join("; "))))
}

/// Where it is: as the variable says, in the checkout whose build runs, else in the user's cache.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>, exe: Option<&Path>) -> Result<PathBuf, LabError> {
    if let Some(dir) = variable(DIR_ENV) {
        return std::path::absolute(&dir).attempt(|| format!("resolve {DIR_ENV}"));
    }
    let state = exe.and_then(|exe| exe.ancestors().nth(3)).map(|checkout| checkout.join(".rerail"));
    if let Some(state) = state.filter(|state| state.is_dir()) {
        return Ok(state.join("guest"));
    }
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    cache.filter(|cache| cache.is_absolute()).map(|cache| cache.join("rerail/guest")).ok_or_else(|| {
        LabError::Input(format!("there is no HOME to keep the guests' kernel in: set {DIR_ENV} to a folder"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_users_choice_then_the_checkouts_then_the_cache() {
        let of = |pairs: &[(&str, &str)], exe: &Path| {
            let variable = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
            folder(variable, Some(exe))
        };
        let checkout = env::temp_dir().join(format!("rerail-kit-{}", std::process::id()));
        fs::create_dir_all(checkout.join(".rerail")).unwrap();
        let (built, installed) = (checkout.join("target/release/rerail"), Path::new("/usr/bin/rerail"));
        assert_eq!(of(&[(DIR_ENV, "/a"), ("HOME", "/h")], &built).unwrap(), Path::new("/a"));
        assert_eq!(of(&[("HOME", "/h")], &built).unwrap(), checkout.join(".rerail/guest"));
        assert_eq!(of(&[("HOME", "/h")], installed).unwrap(), Path::new("/h/.cache/rerail/guest"));
        let both = [("HOME", "/h"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(of(&both, installed).unwrap(), Path::new("/c/rerail/guest"));
        assert!(of(&[], installed).unwrap_err().to_string().contains(DIR_ENV));
        fs::remove_dir_all(checkout).unwrap();
    }

    #[test]
    fn an_incomplete_folder_is_made_anew() {
        let dir = env::temp_dir().join(format!("rerail-kit-find-{}", std::process::id()));
        for folder in ["kernel/boot", "kernel/lib/modules", "lab"] {
            fs::create_dir_all(dir.join(folder)).unwrap();
        }
        for file in ["kernel/boot/vmlinuz-6.1", "lab.img"] {
            fs::write(dir.join(file), "").unwrap();
        }
        fs::write(dir.join("lab/init"), "of an older version").unwrap();
        fs::write(dir.join("lab/release"), "6.1\n").unwrap();
        assert!(Kit::find(&dir, Rdma::Roce).is_none());
        fs::write(dir.join("lab/init"), INIT).unwrap();
        assert_eq!(Kit::find(&dir, Rdma::Roce).unwrap().kernel, dir.join("kernel/boot/vmlinuz-6.1"));
        assert!(Kit::find(&dir, Rdma::Iwarp).is_none(), "the module of soft-iWARP is missing");
        fs::write(dir.join("lab/release"), "6.0\n").unwrap();
        assert!(Kit::find(&dir, Rdma::Roce).is_none(), "the initial disk is for another kernel");
        fs::remove_dir_all(dir).unwrap();
    }
}
