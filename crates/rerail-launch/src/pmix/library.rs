//! The functions of libpmix that a server uses. Source: PMIx standard 4.1, chapters "Server-specific interfaces" and "Data access".

use crate::message::{Bytes, PmixLibrary};
use crate::pmix::host::{Module, Response};
use rerail_pmix::abi::{Info, Proc, Status, Value};
use rerail_pmix::library::{FILE, Handle, places};
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// `pmix_op_cbfunc_t`.
pub type Done = unsafe extern "C" fn(Status, *mut c_void);

rerail_pmix::functions! {
    /// The functions. They stay: the library is never unloaded.
    Library {
        version = c"PMIx_Get_version": fn() -> *const c_char;
        error_string = c"PMIx_Error_string": fn(Status) -> *const c_char;
        info_load = c"PMIx_Info_load": fn(*mut Info, *const c_char, *const c_void, u16) -> Status;
        value_destruct = c"PMIx_Value_destruct": fn(*mut Value) -> ();
        init = c"PMIx_server_init": fn(*mut Module, *mut Info, usize) -> Status;
        finalize = c"PMIx_server_finalize": fn() -> Status;
        hosts_regex = c"PMIx_generate_regex": fn(*const c_char, *mut *mut c_char) -> Status;
        ranks_regex = c"PMIx_generate_ppn": fn(*const c_char, *mut *mut c_char) -> Status;
        register_job = c"PMIx_server_register_nspace": fn(*const c_char, c_int, *mut Info, usize, Option<Done>, *mut c_void) -> Status;
        register_rank = c"PMIx_server_register_client": fn(*const Proc, u32, u32, *mut c_void, Option<Done>, *mut c_void) -> Status;
        forget_rank = c"PMIx_server_deregister_client": fn(*const Proc, Option<Done>, *mut c_void) -> ();
        setup_fork = c"PMIx_server_setup_fork": fn(*const Proc, *mut *mut *mut c_char) -> Status;
        request = c"PMIx_server_dmodex_request": fn(*const Proc, Response, *mut c_void) -> Status;
    }
}

/// The files that may be the library.
fn files(place: &PmixLibrary) -> Vec<PathBuf> {
    let path = |bytes: &Bytes| PathBuf::from(OsString::from_vec(bytes.clone()));
    match place {
        PmixLibrary::In(directory) => {
            let directory = path(directory);
            places([directory.clone()]).into_iter().chain([directory.join(FILE)]).collect()
        }
        PmixLibrary::Found(prefixes) => places(prefixes.iter().map(path)),
    }
}

impl Library {
    /// # Errors
    /// A sentence for the user.
    pub fn load(place: &PmixLibrary) -> Result<Self, String> {
        let loader = matches!(place, PmixLibrary::Found(_));
        let found = Handle::load(&files(place), loader).and_then(|handle| Self::of(&handle));
        found.map_err(|why| {
            format!(
                "no {FILE} of Open MPI 5 or of PMIx 4.2 or later can be used ({why}): name the directory where Open MPI is installed on this host with --pmix"
            )
        })
    }

    /// What a function returned, as a result: a sentence for the user.
    ///
    /// # Errors
    /// That it failed.
    pub fn check(&self, function: &str, status: Status) -> Result<(), String> {
        if status == rerail_pmix::abi::SUCCESS {
            return Ok(());
        }
        // SAFETY: it takes every number, and returns a constant string.
        let why = unsafe { (self.error_string)(status).as_ref().map(|why| CStr::from_ptr(why)) };
        let why = why.map_or_else(|| "unknown".into(), |why| why.to_string_lossy().into_owned());
        // SAFETY: it returns a constant string.
        let version = unsafe { (self.version)().as_ref().map(|text| CStr::from_ptr(text)) };
        let version = version.map_or_else(|| "libpmix".into(), |text| text.to_string_lossy().into_owned());
        let version = version.split(',').next().unwrap_or_default().to_owned();
        Err(format!(
            "{function} of {version} failed ({why}, {status}): name the directory of another Open MPI 5 or PMIx with --pmix"
        ))
    }
}
