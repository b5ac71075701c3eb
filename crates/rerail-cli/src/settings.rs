//! What an MPI must be told to run over Rerail, set against what the user has set already.
//!
//! Owns the comparison: every value that is replaced is told, and a value that is right already is left alone.

use rerail_lab::launch::PROVIDER_NAME;
use rerail_lab::mpi::{Family, fabric_settings, one_sided_settings};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variables that choose another provider or transport than FI_PROVIDER, and win over it.
const RIVALS: [(&str, Family); 3] = [
    ("MPIR_CVAR_OFI_USE_PROVIDER", Family::Mpich),
    ("OMPI_MCA_mtl_ofi_provider_include", Family::OpenMpi5),
    ("OMPI_MCA_mtl_ofi_provider_include", Family::OpenMpi4),
];

/// What is to be set, and what has to be said about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// All variables that must have these values, whether they have them already or not.
    pub all: Vec<(&'static str, String)>,
    /// Those of them that do not have them yet.
    pub changes: Vec<(&'static str, String)>,
    /// Sentences for the user, on what of his was replaced.
    pub remarks: Vec<String>,
}

impl Settings {
    fn set(&mut self, name: &'static str, value: String, before: Option<String>) {
        if before.as_deref() != Some(value.as_str()) {
            self.changes.push((name, value.clone()));
        }
        self.all.push((name, value));
    }

    /// The user's own value stays.
    fn prefer(&mut self, name: &'static str, value: String, before: Option<String>) {
        match before.filter(|before| !before.is_empty()) {
            None => self.set(name, value, None),
            Some(before) => {
                let (ofi, tcp) = (before.contains("ofi"), before.contains("tcp"));
                let ours = if before.starts_with('^') { tcp && !ofi } else { ofi && !tcp };
                if name == "OMPI_MCA_btl" && !ours {
                    self.remarks.push(format!(
                        "with {name}={before} one-sided communication (MPI windows) goes past Rerail; leave it out, or let it have ofi and not tcp"
                    ));
                }
            }
        }
    }

    fn replace(&mut self, name: &'static str, value: String, before: Option<String>) {
        if let Some(before) = before.as_deref().filter(|before| !before.is_empty() && *before != value) {
            self.remarks.push(format!("{name} was `{before}`, which is not Rerail; it is `{value}` now"));
        }
        self.set(name, value, before);
    }
}

/// Compares with the environment. `directory` has the provider, `library` the MPI library of Intel MPI.
pub fn settings(
    family: Family,
    directory: &Path,
    library: Option<PathBuf>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Settings {
    let before = |name: &str| environment(name).map(|value| value.to_string_lossy().into_owned());
    let mut settings = Settings::default();
    for (name, value) in fabric_settings(family, PROVIDER_NAME) {
        settings.replace(name, value, before(name));
    }
    let path = provider_path(&mut settings, family, directory, before("FI_PROVIDER_PATH"));
    settings.set("FI_PROVIDER_PATH", path, before("FI_PROVIDER_PATH"));
    for (name, _) in RIVALS.iter().filter(|(_, of)| *of == family) {
        let value = before(name);
        if value.as_ref().is_some_and(|value| !value.is_empty()) {
            settings.replace(name, PROVIDER_NAME.into(), value);
        }
    }
    if family == Family::Intel {
        let fabrics = before("I_MPI_FABRICS").filter(|fabrics| !fabrics.is_empty());
        if fabrics.as_ref().is_some_and(|fabrics| !fabrics.contains("ofi")) {
            settings.replace("I_MPI_FABRICS", "shm:ofi".into(), fabrics);
        }
        library_path(&mut settings, library, before("LD_LIBRARY_PATH"));
    }
    for (name, value) in one_sided_settings(family) {
        settings.prefer(name, value, before(name));
    }
    settings
}

/// Whether a variable is a preference, which a user's own value overrules without a loss of Rerail for messages.
pub fn is_preference(family: Family, name: &str) -> bool {
    one_sided_settings(family).iter().any(|(preference, _)| *preference == name)
}

/// Our directory first, and the user's after it: the variable replaces libfabric's own directory, and others may be needed.
fn provider_path(
    settings: &mut Settings,
    family: Family,
    directory: &Path,
    before: Option<String>,
) -> String {
    let ours = directory.to_string_lossy().into_owned();
    let before = before.unwrap_or_default();
    let theirs: Vec<&str> = before.split(':').filter(|dir| !dir.is_empty() && *dir != ours).collect();
    if theirs.is_empty() {
        return ours;
    }
    if family == Family::Intel {
        settings.remarks.push(format!(
            "Intel MPI looks into the first directory of FI_PROVIDER_PATH only, which is `{ours}` now: the providers in `{}` are not to be had in this job",
            theirs.join(":")
        ));
    }
    format!("{ours}:{}", theirs.join(":"))
}

/// Intel MPI's programs are linked without a path of their library. `vars.sh` sets it; where it was not sourced, we do.
fn library_path(settings: &mut Settings, library: Option<PathBuf>, before: Option<String>) {
    let before = before.unwrap_or_default();
    let dirs = before.split(':').filter(|dir| !dir.is_empty());
    if dirs.clone().any(|dir| Path::new(dir).join("libmpi.so.12").exists()) {
        return;
    }
    if let Some(library) = library {
        let library = library.to_string_lossy();
        let all: Vec<&str> = std::iter::once(&*library).chain(dirs).collect();
        settings.set("LD_LIBRARY_PATH", all.join(":"), Some(before.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(family: Family, environment: &[(&str, &str)]) -> Settings {
        settings(family, Path::new("/p/rerail"), None, |name| {
            environment.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into())
        })
    }

    fn names(pairs: &[(&'static str, String)]) -> Vec<&'static str> {
        pairs.iter().map(|(name, _)| *name).collect()
    }

    const OPEN_MPI: &[&str] =
        &["FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_mtl", "FI_PROVIDER_PATH", "OMPI_MCA_btl", "OMPI_MCA_osc"];

    #[test]
    fn each_mpi_is_told_what_it_needs_and_no_more() {
        for (family, wanted) in [
            (Family::Mpich, &["FI_PROVIDER", "MPIR_CVAR_CH4_NETMOD", "FI_PROVIDER_PATH"][..]),
            (Family::OpenMpi5, OPEN_MPI),
            (Family::OpenMpi4, OPEN_MPI),
            (
                Family::Intel,
                &["FI_PROVIDER", "I_MPI_OFI_PROVIDER", "FI_PROVIDER_PATH", "MPIR_CVAR_CH4_OFI_ENABLE_RMA"],
            ),
        ] {
            let settings = with(family, &[]);
            assert_eq!(names(&settings.all), wanted);
            assert_eq!(settings.changes, settings.all);
            assert_eq!(settings.remarks, [""; 0]);
        }
    }

    #[test]
    fn what_is_right_already_is_left_alone_and_without_a_word() {
        let right = [
            ("FI_PROVIDER", "rerail"),
            ("FI_PROVIDER_PATH", "/p/rerail"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("I_MPI_FABRICS", "ofi"),
            ("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "0"),
        ];
        let settings = with(Family::Mpich, &right);
        assert_eq!((settings.changes.len(), settings.all.len(), settings.remarks.len()), (0, 3, 0));
        let settings = with(Family::Intel, &right);
        assert_eq!((names(&settings.changes), settings.remarks.len()), (vec!["I_MPI_OFI_PROVIDER"], 0));
    }

    #[test]
    fn what_chooses_something_else_is_replaced_and_named() {
        let rivals = [
            ("FI_PROVIDER", "tcp"),
            ("MPIR_CVAR_OFI_USE_PROVIDER", "verbs"),
            ("OMPI_MCA_pml", "ob1"),
            ("OMPI_MCA_mtl_ofi_provider_include", "psm2"),
            ("I_MPI_FABRICS", "shm"),
        ];
        for (family, replaced) in [
            (Family::Mpich, &["FI_PROVIDER", "MPIR_CVAR_OFI_USE_PROVIDER"][..]),
            (Family::OpenMpi5, &["FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_mtl_ofi_provider_include"]),
            (Family::Intel, &["FI_PROVIDER", "I_MPI_FABRICS"]),
        ] {
            let remarks = with(family, &rivals).remarks;
            assert_eq!(remarks.len(), replaced.len(), "{remarks:?}");
            for (name, remark) in replaced.iter().zip(&remarks) {
                assert!(remark.starts_with(&format!("{name} was ")), "{remark}");
            }
        }
    }

    #[test]
    fn a_users_own_way_of_one_sided_communication_stays_and_a_way_past_us_is_named() {
        for (btl, remarks) in [
            ("ofi,self", 0),
            ("tcp,self", 1),
            ("^ofi,tcp", 1),
            ("^tcp", 0),
            ("^openib", 1),
            ("self,ofi,sm", 0),
        ] {
            let settings = with(Family::OpenMpi5, &[("OMPI_MCA_btl", btl)]);
            assert!(!names(&settings.all).contains(&"OMPI_MCA_btl"), "{btl}");
            assert_eq!(settings.remarks.len(), remarks, "{btl}: {:?}", settings.remarks);
        }
        let settings = with(Family::Intel, &[("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "1")]);
        assert!(!names(&settings.all).contains(&"MPIR_CVAR_CH4_OFI_ENABLE_RMA"));
        assert_eq!(settings.remarks, [""; 0]);
    }

    #[test]
    fn the_users_provider_directories_stay_behind_ours() {
        let path = |family, before| {
            let settings = with(family, &[("FI_PROVIDER_PATH", before)]);
            let value = settings.all.iter().find(|(name, _)| *name == "FI_PROVIDER_PATH").unwrap().1.clone();
            (value, settings.remarks.len())
        };
        assert_eq!(path(Family::Mpich, "/a:/b"), ("/p/rerail:/a:/b".into(), 0));
        assert_eq!(path(Family::Mpich, "/a:/p/rerail"), ("/p/rerail:/a".into(), 0));
        assert_eq!(path(Family::Intel, "/a"), ("/p/rerail:/a".into(), 1));
    }

    #[test]
    fn intels_library_is_shown_to_the_loader_only_where_nobody_did() {
        let directory = std::env::temp_dir().join(format!("rerail-settings-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("libmpi.so.12"), "").unwrap();
        let path = |before: &str| {
            let settings = settings(Family::Intel, Path::new("/p"), Some("/intel/lib".into()), |name| {
                (name == "LD_LIBRARY_PATH").then(|| before.into())
            });
            settings.changes.into_iter().find(|(name, _)| *name == "LD_LIBRARY_PATH").map(|(_, value)| value)
        };
        assert_eq!(path(""), Some("/intel/lib".into()));
        assert_eq!(path("/x"), Some("/intel/lib:/x".into()));
        assert_eq!(path(directory.to_str().unwrap()), None);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
