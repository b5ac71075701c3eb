//! `rerail env`: what `rerail run` would set, for scripts.

use crate::run::MpiName;
use crate::settings::settings;
use clap::{Args, ValueEnum};
use rerail_lab::launch::{find_provider, provider_directory};
use rerail_lab::mpi::{Identity, Installation};
use rerail_lab::{LabError, find_program};
use std::env;
use std::io::Write;
use std::path::PathBuf;

/// Options of `rerail env`.
#[derive(Args)]
pub struct EnvArgs {
    /// The MPI that the ranks use [default: that of mpiexec in PATH]
    #[arg(long, value_enum)]
    mpi: Option<MpiName>,
    /// The shell that will read it
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    shell: Shell,
    /// The provider librerail-fi.so [default: beside this executable or in ../lib/rerail, then in target/release]
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
}

/// Shells that differ in how a variable is set.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// sh, bash, zsh, ksh: eval "$(rerail env)"
    Sh,
    /// csh, tcsh: eval "`rerail env --shell csh`"
    Csh,
    /// fish: rerail env --shell fish | source
    Fish,
}

impl Shell {
    fn line(self, name: &str, value: &str) -> String {
        match self {
            Shell::Sh => format!("export {name}='{}';\n", value.replace('\'', r"'\''")),
            // History is replaced even inside quotes.
            Shell::Csh => {
                format!("setenv {name} '{}';\n", value.replace('\'', r"'\''").replace('!', r"\!"))
            }
            Shell::Fish => {
                format!("set -gx {name} '{}';\n", value.replace('\\', r"\\").replace('\'', r"\'"))
            }
        }
    }
}

/// Prints the settings; the exit code.
pub fn run(args: EnvArgs) -> i32 {
    match print(&args) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("rerail env: {error}");
            2
        }
    }
}

fn print(args: &EnvArgs) -> Result<(), LabError> {
    let installation = in_path()?;
    let family = match (args.mpi, &installation) {
        (Some(mpi), _) => mpi.family(),
        (None, Some(installation)) => installation.family(),
        (None, None) => {
            return Err(LabError::Input(
                "no mpiexec in PATH reports its MPI: name it with --mpi mpich, openmpi or intel".into(),
            ));
        }
    };
    let library = installation.filter(|i| i.family() == family).and_then(|i| i.library_dir());
    let provider = find_provider(args.provider.as_deref())?;
    let settings =
        settings(family, &provider_directory(&provider), library, |variable| env::var_os(variable));
    let text: String = settings.all.iter().map(|(name, value)| args.shell.line(name, value)).collect();
    // A closed pipe is the reader's choice, not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    for remark in &settings.remarks {
        eprintln!("rerail env: {remark}");
    }
    if family.is_open_mpi() {
        eprintln!(
            "rerail env: Open MPI hands these on to other nodes only on request: `mpirun -x FI_PROVIDER -x FI_PROVIDER_PATH …`, or start it by `rerail run`"
        );
    }
    Ok(())
}

/// The MPI of `mpiexec` in PATH.
pub fn in_path() -> Result<Option<Installation>, LabError> {
    let Some(launcher) = find_program("mpiexec", &env::var_os("PATH").unwrap_or_default()) else {
        return Ok(None);
    };
    Identity::of(&launcher)?.map(|identity| Installation::of_launcher(&launcher, identity)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Every shell that is on this machine reads back what was written.
    #[test]
    fn values_survive_the_shell() {
        let value = r#"/a b/it's "$HOME" \ `x` #!"#;
        for (shell, program) in [(Shell::Sh, "sh"), (Shell::Csh, "csh"), (Shell::Fish, "fish")] {
            let script = format!("{}printenv WORDS", shell.line("WORDS", value));
            match Command::new(program).arg("-c").arg(&script).output() {
                Ok(output) => {
                    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{value}\n"), "{program}");
                }
                Err(_) => assert!(shell != Shell::Sh, "every system has sh"),
            }
        }
    }
}
