//! The program that measures: made from its source, and run.

use rerail_lab::LabError;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SOURCE: &str = include_str!("program.c");

/// How often a running program is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Compiles the program into `dir`, for this MPI; returns where it is.
pub fn build(compiler: &Path, dir: &Path) -> Result<PathBuf, LabError> {
    let dir = place(dir, &[("bench.c", SOURCE)])?;
    compile(compiler, &dir.join("bench.c"), &dir.join("bench"), &[], BY_MPICC)?;
    Ok(dir.join("bench"))
}

/// What to do when the MPI's compiler is the wrong one.
pub const BY_MPICC: &str = "name the MPI's compiler by --mpicc";

/// Writes sources into `dir`, and returns its absolute path.
pub fn place(dir: &Path, sources: &[(&str, &str)]) -> Result<PathBuf, LabError> {
    let at = |what: &str, why: &dyn std::fmt::Display| {
        LabError::Input(format!(
            "{what} in `{}` failed ({why}): name another directory by --dir",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(|why| at("making a place for the program", &why))?;
    let absolute = dir.canonicalize().map_err(|why| at("finding the program's place", &why))?;
    for (name, text) in sources {
        std::fs::write(absolute.join(name), text).map_err(|why| at("writing the program's source", &why))?;
    }
    Ok(absolute)
}

/// Compiles a program from one source. `remedy` is what to do when the compiler cannot.
pub fn compile(
    compiler: &Path,
    source: &Path,
    program: &Path,
    more: &[OsString],
    remedy: &str,
) -> Result<(), LabError> {
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(program).arg(source).args(more);
    let output = command.output().map_err(|why| {
        LabError::Input(format!("`{}` cannot be started ({why}): {remedy}", compiler.display()))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LabError::Input(format!(
        "`{}` could not compile the program: {remedy}; it said:\n{said}",
        compiler.display()
    )))
}

/// Runs one turn, and returns what the program printed.
///
/// # Errors
/// A sentence: how it ended, or that it was ended after `patience`.
pub fn measure(mut command: Command, patience: Duration) -> Result<String, String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|why| {
            format!("`{}` cannot be started: {why}", command.get_program().to_string_lossy())
        })?;
    let mut stdout = child.stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stdout.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let begin = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < patience => std::thread::sleep(LOOK_AGAIN),
            Ok(None) => {
                // the launcher's own way to end its ranks; a killed launcher would leave them running
                terminate(child.id());
                let _ = child.wait();
                return Err(format!(
                    "it was ended because it took longer than {} s (--patience)",
                    patience.as_secs()
                ));
            }
            Err(why) => return Err(format!("it cannot be waited for: {why}")),
        }
    };
    let text = reader.join().unwrap_or_default();
    if status.success() { Ok(text) } else { Err(format!("it failed ({status})")) }
}

/// SIGTERM, by the system's own command.
fn terminate(pid: u32) {
    let _ = Command::new("kill").arg(pid.to_string()).status();
}
