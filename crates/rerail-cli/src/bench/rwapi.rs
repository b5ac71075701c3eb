//! The programs of `--rwapi`: one source, compiled over RWAPI and over the MPI.

use super::program::{BY_MPICC, compile, place};
use super::test::Test;
use rerail_lab::LabError;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const SOURCES: [(&str, &str); 3] = [
    ("figures.c", include_str!("rwapi/figures.c")),
    ("over_rwapi.h", include_str!("rwapi/over_rwapi.h")),
    ("over_mpi.h", include_str!("rwapi/over_mpi.h")),
];

const BY_CC: &str = "install a C compiler, or name one by the variable CC";

/// What a prefix of RWAPI must have.
const PARTS: [&str; 2] = ["include/rwapi_ext.h", "lib/librwapi.so"];

/// Where RWAPI is: the directory given, or as it lies beside this executable, or in the checkout's build.
pub fn prefix(given: Option<&Path>) -> Result<PathBuf, LabError> {
    let candidates = match given {
        Some(given) => vec![given.to_path_buf()],
        None => {
            let exe = env::current_exe().ok();
            let beside = exe.as_deref().and_then(Path::parent);
            let dirs = beside.into_iter().flat_map(|dir| [dir.join("rwapi"), dir.join("..")]);
            dirs.chain(["target/release/rwapi".into()]).collect()
        }
    };
    let is_whole = |dir: &&PathBuf| PARTS.iter().all(|part| dir.join(part).is_file());
    let found = candidates.iter().find(is_whole).and_then(|dir| dir.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<String> = candidates.iter().map(|dir| format!("`{}`", dir.display())).collect();
        LabError::Input(format!(
            "RWAPI ({}) was not found in {}: build it with `cargo xtask build`, or name its prefix by --rwapi-prefix",
            PARTS.join(" and "),
            looked.join(" or ")
        ))
    })
}

/// The program over RWAPI, and over the MPI.
pub struct Programs {
    over_rwapi: PathBuf,
    over_mpi: PathBuf,
}

/// Compiles both into `dir`.
pub fn build(mpicc: &Path, prefix: &Path, dir: &Path) -> Result<Programs, LabError> {
    let dir = place(dir, &SOURCES)?;
    let source = dir.join("figures.c");
    let programs = Programs { over_rwapi: dir.join("figures-rwapi"), over_mpi: dir.join("figures-mpi") };
    let cc = env::var_os("CC").filter(|cc| !cc.is_empty()).unwrap_or_else(|| "cc".into());
    let with = |flag: &str, dir: &str| {
        let mut word = OsString::from(flag);
        word.push(prefix.join(dir));
        word
    };
    let more = [with("-I", "include"), with("-L", "lib"), with("-Wl,-rpath,", "lib"), "-lrwapi".into()];
    compile(Path::new(&cc), &source, &programs.over_rwapi, &more, BY_CC)?;
    compile(mpicc, &source, &programs.over_mpi, &["-DOVER_MPI".into()], BY_MPICC)?;
    Ok(programs)
}

impl Programs {
    /// A program and its arguments.
    pub fn words(&self, over_rwapi: bool, tests: &[Test], ms: u32, cuts: bool) -> Vec<OsString> {
        let program = if over_rwapi { &self.over_rwapi } else { &self.over_mpi };
        let names: Vec<&str> = tests.iter().map(|test| test.kind.name()).collect();
        // all of them have the same
        let sizes: Vec<String> =
            tests.iter().take(1).flat_map(|test| test.sizes.iter().map(usize::to_string)).collect();
        let mut words = vec![program.clone().into_os_string()];
        let mut option = |name: &str, value: String| words.extend([name.into(), value.into()]);
        option("--test", names.join(","));
        option("--size", sizes.join(","));
        option("--ms", ms.to_string());
        option("--cuts", u8::from(cuts).to_string());
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::test::chosen_of_rwapi;

    #[test]
    fn the_program_learns_what_to_measure() {
        let programs = Programs { over_rwapi: "r".into(), over_mpi: "m".into() };
        let tests = chosen_of_rwapi(&["put".into(), "one-way".into()], &[4, 64]).unwrap();
        let words = |over_rwapi, cuts| {
            let words = programs.words(over_rwapi, &tests, 20, cuts);
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(true, false), "r --test one-way,put --size 4,64 --ms 20 --cuts 0");
        assert_eq!(words(false, true), "m --test one-way,put --size 4,64 --ms 20 --cuts 1");
    }

    #[test]
    fn a_prefix_that_lacks_a_part_is_refused_with_what_to_do() {
        let why = prefix(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(
            why.contains("librwapi.so") && why.contains("`/nowhere`") && why.contains("--rwapi-prefix"),
            "{why}"
        );
    }
}
