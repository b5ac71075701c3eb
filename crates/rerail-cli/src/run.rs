//! `rerail run`: an MPI launcher, set to use Rerail, and nothing between it and the terminal.
//!
//! It finds out which MPI the command belongs to, sets the variables, says so, and becomes the command: exit code, signals
//! and standard streams are the launcher's own.

use crate::settings::{Settings, is_preference, settings};
use clap::{Args, ValueEnum};
use rerail_lab::launch::{find_provider, provider_directory};
use rerail_lab::mpi::{Family, Identity, Installation};
use rerail_lab::{LabError, find_program};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The exit code of a command that cannot be started, as in a shell.
const EXIT_NOT_STARTED: i32 = 127;
/// Launchers begin like this; a suffix such as `.openmpi` may follow.
const LAUNCHERS: [&str; 4] = ["mpiexec", "mpirun", "prterun", "orterun"];

/// Options of `rerail run`.
#[derive(Args)]
pub struct RunArgs {
    /// The MPI that the ranks use [default: that of the launcher]
    #[arg(long, value_enum)]
    mpi: Option<MpiName>,
    /// The provider librerail-fi.so [default: beside this executable or in ../lib/rerail, then in target/release]
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
    /// Print only which of your settings were overridden, not what was set
    #[arg(long, short)]
    quiet: bool,
    /// The launcher and its arguments, as you would type them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// The MPIs that can be set.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MpiName {
    /// MPICH, and what is derived from it
    Mpich,
    /// Open MPI, 4 or 5
    #[value(name = "openmpi")]
    OpenMpi,
    /// Intel MPI
    Intel,
}

impl MpiName {
    /// The family, as far as settings go: Open MPI's versions need the same.
    pub fn family(self) -> Family {
        match self {
            MpiName::Mpich => Family::Mpich,
            MpiName::OpenMpi => Family::OpenMpi5,
            MpiName::Intel => Family::Intel,
        }
    }

    fn is(self, family: Family) -> bool {
        self.family() == family || (self == MpiName::OpenMpi && family.is_open_mpi())
    }
}

/// Becomes the command; returns an exit code only on failure.
pub fn run(args: RunArgs) -> i32 {
    match prepare(&args) {
        Ok(mut command) => {
            let error = command.exec();
            eprintln!("rerail run: cannot start `{}`: {error}", command.get_program().to_string_lossy());
            EXIT_NOT_STARTED
        }
        Err(error) => {
            eprintln!("rerail run: {error}");
            match error {
                LabError::System { source, .. } if source.kind() == ErrorKind::NotFound => EXIT_NOT_STARTED,
                _ => 2,
            }
        }
    }
}

fn prepare(args: &RunArgs) -> Result<Command, LabError> {
    let launcher = find_launcher(&args.command)?;
    let (family, name) = match (&launcher, args.mpi) {
        (Some((_, installation)), Some(mpi)) if !mpi.is(installation.family()) => {
            return Err(LabError::Input(format!(
                "`{}` is the launcher of {}: leave --mpi out, or use the launcher of the MPI that the program is built for",
                installation.launcher.display(),
                installation.identity
            )));
        }
        (Some((_, installation)), _) => (installation.family(), installation.identity.to_string()),
        (None, Some(mpi)) => {
            (mpi.family(), mpi.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned()))
        }
        (None, None) => return Err(who_is(&args.command)),
    };
    let installation = launcher.as_ref().map(|(_, installation)| installation);
    if let Some(why) = installation.and_then(Installation::lacks_libfabric) {
        return Err(LabError::Input(why));
    }
    let provider = find_provider(args.provider.as_deref())?;
    let library = installation.and_then(Installation::library_dir);
    let settings =
        settings(family, &provider_directory(&provider), library, |variable| env::var_os(variable));

    let mut arguments = args.command.clone();
    let mut added = Vec::new();
    if let Some((at, _)) = &launcher {
        added = additions(family, &settings, &arguments[at + 1..]);
        insert(&mut arguments, *at, &added);
    }
    if !args.quiet {
        eprintln!("rerail run: {}", what_was_done(&name, &settings, &added));
    }
    for remark in settings.remarks.iter().chain(&overruled(family, &settings, &args.command)) {
        eprintln!("rerail run: {remark}");
    }
    for sentence in crate::config::unknown() {
        eprintln!("rerail run: warning: {sentence}");
    }
    let mut command = Command::new(&arguments[0]);
    command.args(&arguments[1..]).envs(settings.changes);
    Ok(command)
}

/// The launcher in a command, with its position: the first word, or a later one (`env A=B mpiexec …`).
pub fn find_launcher(command: &[OsString]) -> Result<Option<(usize, Installation)>, LabError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_launcher = |word: &OsString| {
        let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.split('.').next().unwrap_or_default();
        LAUNCHERS.contains(&stem)
    };
    let Some(at) = command.iter().position(is_launcher) else { return Ok(None) };
    let Some(launcher) = find_program(&command[at].to_string_lossy(), &path) else {
        return Err(no_program(&command[at]));
    };
    // Some launchers do not say what they are; the `mpiexec` beside them does.
    let candidates = [launcher.clone(), launcher.with_file_name("mpiexec")];
    for candidate in candidates.iter().filter(|candidate| candidate.is_file()) {
        if let Some(identity) = Identity::of(candidate)? {
            return Ok(Some((at, Installation::of_launcher(&launcher, identity)?)));
        }
    }
    Ok(None)
}

fn no_program(word: &OsStr) -> LabError {
    let advice = "there is no such program: load your MPI's module, or write the path of its launcher";
    let what = format!("start `{}`", word.to_string_lossy());
    LabError::System { what, source: Error::new(ErrorKind::NotFound, advice) }
}

/// Why the MPI is not known, and what to do.
fn who_is(command: &[OsString]) -> LabError {
    let word = command[0].to_string_lossy();
    if Path::new(&command[0]).file_name() == Some(OsStr::new("srun")) {
        return LabError::Input("srun starts ranks of any MPI, so the MPI cannot be found out: name it with --mpi mpich, openmpi or intel (srun hands the variables on to all nodes)".into());
    }
    if find_program(&word, &env::var_os("PATH").unwrap_or_default()).is_none() {
        return no_program(&command[0]);
    }
    LabError::Input(format!(
        "cannot find out which MPI `{word}` belongs to: give mpiexec or mpirun as the command, or name the MPI with --mpi mpich, openmpi or intel"
    ))
}

/// Arguments for the launcher, for what it would not hand on to other nodes by itself.
fn additions(family: Family, settings: &Settings, given: &[OsString]) -> Vec<String> {
    let given: Vec<_> = given.iter().map(|word| word.to_string_lossy()).collect();
    if family.is_open_mpi() {
        // Only OMPI_MCA_* goes to other nodes unasked; the user's own settings of libfabric and Rerail are to go as well.
        let mut names: Vec<String> = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        names.extend(settings.all.iter().map(|(name, _)| name.to_string()));
        names.retain(|name| name.starts_with("FI_"));
        names.sort();
        names.dedup();
        let has =
            |name: &str| given.windows(2).any(|two| two[0] == "-x" && two[1].split('=').next() == Some(name));
        return names.iter().filter(|name| !has(name)).flat_map(|name| ["-x".into(), name.clone()]).collect();
    }
    // Hydra hands everything on, unless told otherwise.
    let restricted = ["genvnone", "genvlist", "genvexcl", "envnone", "envlist", "envexcl"];
    if given.iter().any(|word| restricted.contains(&word.trim_start_matches('-'))) {
        let words = |(name, value): &(&str, String)| ["-genv".to_string(), name.to_string(), value.clone()];
        return settings.all.iter().flat_map(words).collect();
    }
    Vec::new()
}

/// Puts arguments behind the launcher, and for Open MPI's `-x`, which holds for one program of several, behind each colon.
pub fn insert(arguments: &mut Vec<OsString>, launcher: usize, added: &[String]) {
    let mut result = Vec::new();
    for (at, word) in arguments.drain(..).enumerate() {
        let begins = at == launcher
            || (at > launcher && word == ":" && added.first().is_some_and(|first| first == "-x"));
        result.push(word);
        if begins {
            result.extend(added.iter().map(OsString::from));
        }
    }
    *arguments = result;
}

fn what_was_done(name: &str, settings: &Settings, added: &[String]) -> String {
    let mut text = format!("{name}: ");
    if settings.changes.is_empty() {
        text.push_str("everything was set already");
    } else {
        let changes = settings.changes.iter().map(|(name, value)| format!("{name}={value}"));
        text.push_str(&format!("set {}", changes.collect::<Vec<_>>().join(" ")));
    }
    if !added.is_empty() {
        text.push_str(&format!("; added to the command: {}", added.join(" ")));
    }
    text
}

/// Arguments of the user's that win over the variables.
fn overruled(family: Family, settings: &Settings, command: &[OsString]) -> Vec<String> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut remarks = Vec::new();
    for at in 0..words.len() {
        let word = |offset: usize| words.get(at + offset).map_or("", |word| word.as_ref());
        let (length, name, value) = match word(0).trim_start_matches('-') {
            "mca" | "gmca" => (3, format!("OMPI_MCA_{}", word(1)), word(2)),
            "genv" | "env" => (3, word(1).to_string(), word(2)),
            "x" => match word(1).split_once('=') {
                Some((name, value)) => (2, name.to_string(), value),
                None => continue,
            },
            _ => continue,
        };
        let wanted =
            settings.all.iter().find(|(wanted, _)| *wanted == name && !is_preference(family, wanted));
        if let Some((_, wanted)) = wanted.filter(|(_, wanted)| wanted != value) {
            remarks.push(format!(
                "`{}` in the command wins over {name}={wanted}: leave it out, or the job does not use Rerail",
                words[at..(at + length).min(words.len())].join(" ")
            ));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn some_settings() -> Settings {
        settings(Family::OpenMpi5, Path::new("/p"), None, |_| None)
    }

    #[test]
    fn open_mpi_hands_on_what_the_user_has_not_asked_for() {
        let added = additions(Family::OpenMpi5, &some_settings(), &words("-x FI_PROVIDER -n 2 a.out"));
        assert!(added.join(" ").contains("-x FI_PROVIDER_PATH"));
        assert!(!added.contains(&"FI_PROVIDER".to_string()));
        let mut command = words("env A=B mpirun -n 1 a : -n 1 b");
        insert(&mut command, 2, &["-x".into(), "FI_PROVIDER".into()]);
        assert_eq!(command, words("env A=B mpirun -x FI_PROVIDER -n 1 a : -x FI_PROVIDER -n 1 b"));
    }

    #[test]
    fn hydra_is_told_only_when_it_hands_nothing_on() {
        let settings = settings(Family::Mpich, Path::new("/p"), None, |_| None);
        assert_eq!(additions(Family::Mpich, &settings, &words("-n 2 a.out")), [""; 0]);
        let added = additions(Family::Mpich, &settings, &words("-genvnone -n 2 a.out")).join(" ");
        assert_eq!(
            added,
            "-genv FI_PROVIDER rerail -genv MPIR_CVAR_CH4_NETMOD ofi -genv FI_PROVIDER_PATH /p"
        );
    }

    #[test]
    fn an_argument_that_wins_over_a_variable_is_named() {
        for (command, words_named) in [
            ("mpirun --mca pml ob1 -n 2 a.out", "`--mca pml ob1`"),
            ("mpirun -x FI_PROVIDER=tcp -n 2 a.out", "`-x FI_PROVIDER=tcp`"),
            ("mpiexec -genv FI_PROVIDER tcp -n 2 a.out", "`-genv FI_PROVIDER tcp`"),
        ] {
            let remarks = overruled(Family::OpenMpi5, &some_settings(), &words(command));
            assert_eq!(remarks.len(), 1, "{command}: {remarks:?}");
            assert!(remarks[0].contains(words_named), "{}", remarks[0]);
        }
        let fine = "mpirun --mca pml cm --mca btl ofi -x FI_PROVIDER -genv A b -n 2 a.out -x";
        assert_eq!(overruled(Family::OpenMpi5, &some_settings(), &words(fine)), [""; 0]);
    }
}
