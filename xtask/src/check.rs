//! `cargo xtask check`: what can be judged without running anything. Every step runs, and the failed ones are named at the end.

use crate::licence;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::Command;
use xtask::workspace::{cargo, output, root, run as run_command};

/// Who may use whom inside the workspace: the layers of the design, as a table. What is not here is not allowed. Development
/// dependencies obey it too, apart from [`TEST_EDGES`].
///
/// The reasons: the contract of a rail is a leaf, because the engine and the rails both use it; the engine (core) has no I/O, so that the
/// simulator runs the same code; a rail knows the contract and not the engine; the driver joins engine and
/// ports and knows neither threads nor a clock, so that the simulator can make progress by the same code as the runtime; the runtime names no rail, because rails are injected;
/// whoever starts everything injects them. The lab plants faults with the words and the dice of `rerail-fault`. The command may look the rails of a node up, with the rules that the provider will apply.
const EDGES: &[(&str, &[&str])] = &[
    ("rerail-wire", &[]),
    ("rerail-rail", &[]),
    ("rerail-core", &["rerail-rail", "rerail-wire"]),
    ("rerail-fault", &["rerail-rail"]),
    ("rerail-ip", &["rerail-rail", "rerail-wire"]),
    ("rerail-shm", &["rerail-rail"]),
    ("rerail-seal", &["rerail-rail", "rerail-core", "rerail-wire"]),
    ("rerail-driver", &["rerail-rail", "rerail-core"]),
    ("rerail-sim", &["rerail-core", "rerail-wire"]),
    (
        "rerail-runtime",
        &["rerail-driver", "rerail-core", "rerail-wire", "rerail-rail", "rerail-fault", "rerail-seal"],
    ),
    (
        "rerail-provider",
        &["rerail-runtime", "rerail-core", "rerail-wire", "rerail-rail", "rerail-ip", "rerail-shm"],
    ),
    ("rerail-lab", &["rerail-fault"]),
    // every parser, wherever it is
    ("rerail-hostile", &["rerail-wire", "rerail-core", "rerail-fault", "rerail-runtime", "rerail-lab"]),
    (
        "rerail-cli",
        &["rerail-lab", "rerail-runtime", "rerail-sim", "rerail-core", "rerail-wire", "rerail-ip"],
    ),
    ("rerail-trial", &["rerail-lab", "xtask"]),
    // every command begins by compiling it
    ("xtask", &[]),
];

/// What a layer below the runtime may name of `rerail_core`. A layer that reached the engine itself could decide what is the engine's
/// to decide.
const TYPES_ONLY: (&[&str], &[&str]) =
    (&["rerail-seal"], &["Identity", "KeyAgreement", "KeysUpdate", "SecretKey", "Session", "SessionIds"]);

/// Edges that only tests may have.
const TEST_EDGES: &[(&str, &[&str])] = &[
    // the real rail is what the runtime is tried with; the library itself does not know it
    ("rerail-ip", &["rerail-core", "rerail-fault", "rerail-runtime"]),
    // and what the layer that encrypts is tried over
    ("rerail-seal", &["rerail-fault", "rerail-ip"]),
    // and the shortcut, with the runtime's tests of two processes
    ("rerail-shm", &["rerail-core", "rerail-ip", "rerail-runtime"]),
];

/// Directories of one machine. Written in two parts, so that this file does not find itself.
const MACHINE_PATHS: &[&str] = &["root", "work", "opt", "home"];

/// Hosts and settings of package registries: where packages come from is the user's own configuration.
const REGISTRY_WORDS: &[&[&str]] = &[
    &["index", "-url"],
    &["pypi", ".org"],
    &["files.python", "hosted.org"],
    &["static.crates", ".io"],
    &["index.crates", ".io"],
    &["proxy.golang", ".org"],
    &["replace", "-with"],
];

/// Bytes of the largest file that git may know. The largest that somebody wrote has 133 KiB.
const LARGEST_FILE: u64 = 1 << 20;

type Step = (&'static str, fn() -> Result<()>);

/// Runs every check.
pub fn run() -> Result<()> {
    let steps: &[Step] = &[
        ("paths", stray_text),
        ("sizes", large_files),
        ("edges", || edges(&metadata()?)),
        ("types", types_only),
        ("licences", || licences(&metadata()?)),
        ("fmt", || run_command(cargo().args(["fmt", "--all", "--check"]))),
        ("clippy", || {
            run_command(cargo().args([
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]))
        }),
        // the documentation is for those who work on the house, so it shows private items and may link to them
        ("doc", || {
            let mut command = cargo();
            command
                .args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"])
                .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
            run_command(&mut command)
        }),
    ];
    let mut failed = Vec::new();
    for (name, step) in steps {
        println!("check: {name}");
        if let Err(error) = step() {
            println!("check: {name} FAILED: {error:#}");
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), steps.len(), failed.join(", "));
    }
    println!("check: all {} passed", steps.len());
    Ok(())
}

fn metadata() -> Result<Value> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--locked"]))
        .context("cargo metadata failed; if Cargo.lock is out of date, run `cargo check` and commit it")?;
    serde_json::from_str(&text).context("cargo metadata printed no JSON")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn allowed(table: &[(&str, &[&str])], from: &str, to: &str) -> bool {
    table.iter().any(|(crate_name, uses)| *crate_name == from && uses.contains(&to))
}

fn edges(metadata: &Value) -> Result<()> {
    let members = list(metadata, "workspace_members");
    let packages: Vec<&Value> =
        list(metadata, "packages").iter().filter(|p| members.contains(&p["id"])).collect();
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut wrong = Vec::new();
    for package in &packages {
        let from = package["name"].as_str().unwrap_or_default();
        if !EDGES.iter().any(|(name, _)| *name == from) {
            wrong
                .push(format!("{from} is not in the table of xtask/src/check.rs: say there what it may use"));
        }
        for dependency in list(package, "dependencies") {
            let to = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            if names.contains(&to)
                && !allowed(EDGES, from, to)
                && !(for_tests && allowed(TEST_EDGES, from, to))
            {
                wrong.push(format!(
                    "{from} must not use {to}{}",
                    if for_tests { ", not even in tests" } else { "" }
                ));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n  "));
    }
    Ok(())
}

/// Looks at what the crates of [`TYPES_ONLY`] name of `rerail_core`.
fn types_only() -> Result<()> {
    let (crates, names) = TYPES_ONLY;
    let mut wrong = Vec::new();
    for crate_name in crates {
        let mut directories = vec![root().join("crates").join(crate_name).join("src")];
        while let Some(directory) = directories.pop() {
            let entries = std::fs::read_dir(&directory)
                .with_context(|| format!("could not read {}", directory.display()))?;
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = std::fs::read_to_string(&path)
                        .with_context(|| format!("could not read {}", path.display()))?;
                    for name in
                        named_of_core(&text).into_iter().filter(|name| !names.contains(&name.as_str()))
                    {
                        let shown = path.strip_prefix(root()).unwrap_or(&path).display();
                        wrong.push(format!(
                            "{shown} names rerail_core::{name}, but may use only its plain types"
                        ));
                    }
                }
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n  "));
    }
    Ok(())
}

/// The first names after `rerail_core::`, lists in braces included.
fn named_of_core(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    let first = |text: &str| text.trim_start().chars().take_while(|&c| is_name(c)).collect::<String>();
    let mut names = Vec::new();
    for rest in text.split("rerail_core::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            names.push(first(rest));
            continue;
        };
        let mut depth = 0;
        let mut item_begins = true;
        for (at, c) in list.char_indices() {
            if item_begins && !c.is_whitespace() {
                names.push(first(&list[at..]));
                item_begins = false;
            }
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => item_begins = true,
                _ => {}
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn licences(metadata: &Value) -> Result<()> {
    let mut wrong = Vec::new();
    for package in list(metadata, "packages") {
        let name = package["name"].as_str().unwrap_or_default();
        let text = package["license"].as_str().unwrap_or_default();
        if text.is_empty() {
            wrong.push(format!("{name} names no licence"));
        } else if !licence::is_allowed(text) {
            wrong.push(format!("{name} has the licence `{text}`"));
        }
    }
    if !wrong.is_empty() {
        bail!("not among the licences of xtask/src/licence.rs:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// Looks for files that git knows and that are larger than anything people write: a core dump, a capture, a binary.
fn large_files() -> Result<()> {
    let files = output(Command::new("git").args(["ls-files", "-z"]).current_dir(root()))?;
    let mut found = Vec::new();
    for file in files.split('\0').filter(|name| !name.is_empty()) {
        let Ok(metadata) = std::fs::symlink_metadata(root().join(file)) else { continue }; // deleted, not yet committed
        if metadata.len() > LARGEST_FILE {
            found.push(format!("{file}: {} KiB", metadata.len() / 1024));
        }
    }
    if !found.is_empty() {
        bail!(
            "larger than {} KiB, and every clone would carry them for ever; `git rm --cached` them:\n  {}",
            LARGEST_FILE / 1024,
            found.join("\n  ")
        );
    }
    Ok(())
}

/// Looks for paths of one machine and for registries, in every text that git knows.
fn stray_text() -> Result<()> {
    let files = output(Command::new("git").args(["ls-files", "-z"]).current_dir(root()))?;
    let mut found = Vec::new();
    for file in files.split('\0').filter(|name| !name.is_empty()) {
        let Ok(bytes) = std::fs::read(root().join(file)) else { continue }; // deleted, not yet committed
        let Ok(text) = String::from_utf8(bytes) else { continue }; // no text
        for (number, line) in text.lines().enumerate() {
            if let Some(what) = stray(line) {
                found.push(format!("{file}:{}: {what}", number + 1));
            }
        }
    }
    if !found.is_empty() {
        bail!("these belong to one machine, not to the project:\n  {}", found.join("\n  "));
    }
    Ok(())
}

fn stray(line: &str) -> Option<String> {
    for parts in REGISTRY_WORDS {
        let word = parts.concat();
        if line.contains(&word) {
            return Some(word);
        }
    }
    for name in MACHINE_PATHS {
        let path = format!("/{name}");
        for (at, _) in line.match_indices(&path) {
            let before = line[..at].chars().next_back();
            let after = line[at + path.len()..].chars().next();
            // The beginning of a path, not a part of a longer one or of a web address.
            let begins = before.is_none_or(|c| !c.is_alphanumeric() && !"/._-~}*)$>".contains(c));
            let is_directory = after == Some('/');
            if begins && is_directory {
                return Some(format!("{path}/"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_machines_path_is_found_and_a_web_address_is_not() {
        for name in MACHINE_PATHS {
            assert!(stray(&format!("see `/{name}/someone/file`")).is_some());
            assert!(stray(&format!("/{name}/x")).is_some());
            assert_eq!(stray(&format!("https://example.net/{name}/x")), None);
            assert_eq!(stray(&format!("target/{name}/x and $HOME/{name}/y")), None);
        }
        assert_eq!(stray("tests/mpi/stream.c and/or /proc/net/udp"), None);
    }

    #[test]
    fn an_edge_outside_the_table_is_refused() {
        let package = |name: &str, uses: &[&str]| {
            let dependencies: Vec<Value> = uses.iter().map(|to| json!({"name": to, "kind": null})).collect();
            json!({"id": name, "name": name, "dependencies": dependencies})
        };
        let workspace = |uses: &[&str]| {
            json!({
                "workspace_members": ["rerail-runtime", "rerail-core", "rerail-ip"],
                "packages": [package("rerail-runtime", uses), package("rerail-core", &[]), package("rerail-ip", &["serde"])],
            })
        };
        edges(&workspace(&["rerail-core"])).unwrap();
        let error = edges(&workspace(&["rerail-core", "rerail-ip"])).unwrap_err().to_string();
        assert_eq!(error, "rerail-runtime must not use rerail-ip");
    }

    #[test]
    fn what_is_named_of_the_engine_is_found() {
        let text = "use rerail_core::{\n    RailId, wire::{a, b},\n    Engine,\n};\nfn f(x: &rerail_core::IoVec) {}\nuse rerail_core::*;";
        assert_eq!(named_of_core(text), ["RailId", "wire", "Engine", "IoVec", "*"]);
    }

    #[test]
    fn the_table_has_no_cycle() {
        // Peel off crates that use nothing that is left; a cycle would never be peeled.
        let mut left: Vec<_> = EDGES.to_vec();
        while !left.is_empty() {
            let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, uses)| uses.iter().any(|to| names.contains(to)));
            assert!(left.len() < before, "a cycle among {names:?}");
        }
    }
}
