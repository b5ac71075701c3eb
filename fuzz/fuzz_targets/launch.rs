#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rerail_hostile::parsers::launch(bytes));
