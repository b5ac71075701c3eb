//! Link arguments of `librerail_fi.so`.

fn main() {
    // libfabric closes provider libraries at exit while threads and thread-locals of ours may still be alive.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Nothing of libfabric is linked: its functions are found at load time (see `src/ffi/host.rs`). Anything else that is
    // left undefined is a mistake that must show here, not when an MPI job starts.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo:rerun-if-changed=build.rs");
}
