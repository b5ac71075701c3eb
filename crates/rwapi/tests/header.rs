//! The headers are what cbindgen makes of `src/capi.rs`. After a change: `RWAPI_HEADERS=write cargo test -p rwapi --test header`.

use cbindgen::{Builder, Config, DocumentationLength, DocumentationStyle, Language, Style};
use std::fs;
use std::path::Path;

/// What is not among the calls of the paper.
const EXTENSIONS: [&str; 4] = ["rwapi_write_notify", "rwapi_wait", "rwapi_barrier", "rwapi_error_string"];
/// What is.
const CALLS: [&str; 10] = [
    "rwapi_init",
    "rwapi_finalize",
    "rwapi_rank",
    "rwapi_size",
    "rwapi_alloc",
    "rwapi_free",
    "rwapi_send",
    "rwapi_receive",
    "rwapi_write",
    "rwapi_issent",
];
const TYPES: [&str; 3] = ["rwapi_net_t", "rwapi_sid_t", "rwapi_small_t"];

fn generate(guard: &str, head: &str, includes: &[&str], without: &[&str]) -> String {
    let config = Config {
        language: Language::C,
        style: Style::Both,
        cpp_compat: true,
        include_guard: Some(guard.into()),
        header: Some(head.into()),
        no_includes: true,
        sys_includes: includes.iter().filter(|i| !i.starts_with("rwapi")).map(|i| (*i).into()).collect(),
        includes: includes.iter().filter(|i| i.starts_with("rwapi")).map(|i| (*i).into()).collect(),
        documentation_style: DocumentationStyle::Doxy,
        documentation_length: DocumentationLength::Full,
        usize_is_size_t: true,
        line_length: 100,
        ..Config::default()
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/capi.rs");
    let mut builder = Builder::new().with_config(config).with_src(source);
    for name in without {
        builder = builder.exclude_item(name);
    }
    let mut text = Vec::new();
    builder.generate().expect("capi.rs is understood").write(&mut text);
    // a heading of rustdoc
    String::from_utf8(text).unwrap().replace(" * # Safety\n", "")
}

fn compare(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include").join(name);
    if std::env::var("RWAPI_HEADERS").is_ok_and(|v| v == "write") {
        fs::write(&path, made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "{name} is not what capi.rs says: RWAPI_HEADERS=write cargo test -p rwapi --test header"
    );
}

#[test]
fn the_headers_are_those_of_the_library() {
    let head = "/* RWAPI: remote write over every network interface at once. Semantics: docs/rwapi.md.\n \
        * Made by cbindgen from crates/rwapi/src/capi.rs. License: Apache-2.0 OR MIT. */";
    compare("rwapi.h", &generate("RWAPI_H", head, &["stddef.h", "stdint.h"], &EXTENSIONS));
    let head = "/* What RWAPI has beyond the ten calls of the paper.\n \
        * Made by cbindgen from crates/rwapi/src/capi.rs. License: Apache-2.0 OR MIT. */";
    let without: Vec<&str> = CALLS.iter().chain(&TYPES).copied().collect();
    compare("rwapi_ext.h", &generate("RWAPI_EXT_H", head, &["rwapi.h"], &without));
}
