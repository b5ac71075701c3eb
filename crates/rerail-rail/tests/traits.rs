//! What holds of every trait of the contract, read from its source.

use std::path::Path;

/// Calls of traits in `source` that have a body.
fn calls_with_a_body(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_trait = false;
    let mut call: Option<String> = None;
    for line in source.lines() {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        if code.starts_with("pub trait ") {
            in_trait = true;
        } else if in_trait && code == "}" {
            in_trait = false;
        } else if in_trait {
            let words = code.trim_start();
            if let Some((_, rest)) = words.split_once("fn ") {
                call = Some(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            }
            if let Some(name) = call.take() {
                match code {
                    _ if code.ends_with(';') => {}
                    _ if code.contains('{') => found.push(name),
                    // the signature goes on
                    _ => call = Some(name),
                }
            }
        }
    }
    found
}

/// A layer that does not mention a call would inherit its default body, and lose what the rail below it does.
#[test]
fn no_call_of_the_contract_has_a_default_body() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut traits = 0;
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        // the folder of the conformance suite has no traits
        if path.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        traits += text.lines().filter(|l| l.starts_with("pub trait ")).count();
        assert_eq!(calls_with_a_body(&text), Vec::<String>::new(), "{}", path.display());
    }
    assert!(traits >= 3, "the traits are in these files");
}

#[test]
fn a_body_is_found_however_the_call_is_written() {
    let text = "pub trait A {\n    /// Says {\n    fn a(&self);\n    fn b(&self) -> bool {\n        false\n    }\n    unsafe fn c(\n        \
                &self,\n    ) -> bool {\n        true\n    }\n    fn d(&self) {}\n    fn e(\n        &self,\n    );\n}\nfn f() {}\n";
    assert_eq!(calls_with_a_body(text), ["b", "c", "d"]);
}
