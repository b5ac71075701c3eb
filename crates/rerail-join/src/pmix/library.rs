//! The functions of libpmix that a client uses. Owns: where the library is looked for.
//!
//! The launcher's own library comes first, because client and server of different releases may misunderstand each other (a client of release 4.2
//! makes a server of 5.0 print errors). It is beside the launcher, which its variables or the parent process show. Debian keeps it in
//! `lib/<triple>/pmix2/lib`, and there the loader finds it by its name.

use crate::error::JoinError;
use rerail_pmix::abi::{Info, Proc, Scope, Status, Value};
use rerail_pmix::library::{Handle, places as below};
use std::ffi::c_char;
use std::path::{Path, PathBuf};

/// Variables of a launcher that name where it is installed.
const PREFIXES: [&str; 3] = ["PMIX_PREFIX", "PRTE_PREFIX", "OPAL_PREFIX"];
/// Variable of Open MPI's launcher that names the directory of its libraries, directly below where it is installed.
const LIBRARIES: &str = "OMPI_LIBDIR_LOC";

rerail_pmix::functions! {
    /// The functions. They stay: the library is never unloaded.
    Library {
        init = c"PMIx_Init": fn(*mut Proc, *mut Info, usize) -> Status;
        get = c"PMIx_Get": fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
        put = c"PMIx_Put": fn(Scope, *const c_char, *mut Value) -> Status;
        commit = c"PMIx_Commit": fn() -> Status;
        fence = c"PMIx_Fence": fn(*const Proc, usize, *const Info, usize) -> Status;
        finalize = c"PMIx_Finalize": fn(*const Info, usize) -> Status;
        error_string = c"PMIx_Error_string": fn(Status) -> *const c_char;
    }
}

/// Where the launcher's own library may be, the likeliest first.
fn places(get: &dyn Fn(&str) -> Option<PathBuf>, parent: Option<&Path>) -> Vec<PathBuf> {
    let libraries = get(LIBRARIES).and_then(|directory| Some(directory.parent()?.to_path_buf()));
    // the parent is the launcher, or its agent, in the directory bin; or a script, which the variables are for
    let above = parent.and_then(|program| program.parent()?.parent()).map(Path::to_path_buf);
    below(PREFIXES.iter().filter_map(|name| get(name)).chain(libraries).chain(above))
}

impl Library {
    /// The one that is loaded already, that of the launcher, or the one that the loader finds, in this order.
    pub fn load() -> Result<Self, JoinError> {
        let parent = rustix::process::getppid()
            .and_then(|parent| std::fs::read_link(format!("/proc/{}/exe", parent.as_raw_nonzero())).ok());
        let places = places(&|name| std::env::var_os(name).map(PathBuf::from), parent.as_deref());
        // an MPI library in this process may have loaded it: a second one would be a second client
        let handle = Handle::loaded().map_or_else(|| Handle::load(&places, true), Ok);
        handle.and_then(|handle| Self::of(&handle)).map_err(|why| JoinError::Library { why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_beside_the_launcher() {
        let of = |variables: &[(&str, &str)], parent: Option<&str>| {
            let get = |name: &str| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, value)| PathBuf::from(value))
            };
            places(&get, parent.map(Path::new))
        };
        let prefixes = |all: &[&str]| below(all.iter().map(PathBuf::from));
        assert!(of(&[], None).is_empty());
        assert_eq!(of(&[("PMIX_PREFIX", "/ompi")], None), prefixes(&["/ompi"]));
        assert_eq!(of(&[("OPAL_PREFIX", "/ompi")], Some("/ompi/bin/prterun")), prefixes(&["/ompi"]), "once");
        assert_eq!(of(&[("OMPI_LIBDIR_LOC", "/ompi/lib")], None), prefixes(&["/ompi"]));
        assert_eq!(of(&[], Some("/usr/bin/prted")), prefixes(&["/usr"]));
        let both = of(&[("PMIX_PREFIX", "/pmix"), ("OPAL_PREFIX", "/ompi")], Some("/usr/sbin/slurmstepd"));
        assert_eq!(both, prefixes(&["/pmix", "/ompi", "/usr"]));
        assert!(of(&[("PMIX_PREFIX", ""), ("OPAL_PREFIX", "here")], Some("/x")).is_empty());
    }
}
