#![no_main]

extern "C" fn tell() {
    eprintln!("{}", rerail_hostile::nodes::TALLY.line());
}

unsafe extern "C" {
    fn atexit(call: extern "C" fn()) -> std::ffi::c_int;
}

libfuzzer_sys::fuzz_target!(
    init: {
        // SAFETY: the function is there for the life of the process, and does not unwind.
        unsafe { atexit(tell) };
    },
    |bytes: &[u8]| rerail_hostile::nodes::nodes(bytes)
);
