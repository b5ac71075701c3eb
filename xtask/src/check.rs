//! `cargo xtask check`: what can be judged without running anything. Every step runs, and the failed ones are named at the end.

use crate::border;
use crate::source::{read, sources};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use std::process::Command;
use xtask::workspace::{cargo, has_program, output, root, run as run_command, state_dir};

/// Which crate may use which inside the workspace: the layers of the design, as a table. What is not here is not
/// allowed; an entry that is not used is an error. Development dependencies obey it too, apart from [`TEST_EDGES`].
///
/// The reasons: the contract of a rail is a leaf, because the engine and the rails both use it; the engine (core) has no I/O, so that the
/// simulator runs the same code; a rail knows the contract and not the engine; the driver joins engine and ports and knows neither threads
/// nor a clock, so that the simulator makes progress by the same code as the runtime; the runtime names no rail, because the provider
/// injects them. The lab plants faults with the words and the dice of `rerail-fault`. The command may look the rails of a node
/// up, with the rules that the provider will apply.
const EDGES: &[(&str, &[&str])] = &[
    ("rerail-wire", &["rerail-rail"]),
    ("rerail-rail", &[]),
    ("rerail-core", &["rerail-rail", "rerail-wire"]),
    ("rerail-fault", &["rerail-rail"]),
    ("rerail-ip", &["rerail-rail", "rerail-wire"]),
    ("rerail-shm", &["rerail-rail"]),
    ("rerail-example", &["rerail-rail"]),
    ("rerail-verbs", &["rerail-rail"]),
    ("rerail-seal", &["rerail-rail", "rerail-core", "rerail-wire"]),
    ("rerail-driver", &["rerail-rail", "rerail-core"]),
    ("rerail-sim", &["rerail-driver", "rerail-core", "rerail-rwapi", "rerail-wire"]),
    ("rerail-rwapi", &["rerail-core"]),
    ("rerail-runtime", &["rerail-driver", "rerail-core", "rerail-rail", "rerail-fault", "rerail-seal"]),
    // every kind of rail
    ("rerail-kinds", KINDS),
    ("rerail-provider", PROVIDER),
    ("rwapi", &["rerail-rwapi", "rerail-join", "rerail-kinds", "rerail-runtime", "rerail-core"]),
    ("rerail-lab", &["rerail-fault"]),
    // every parser, wherever it is
    (
        "rerail-hostile",
        &[
            "rerail-wire",
            "rerail-core",
            "rerail-fault",
            "rerail-runtime",
            "rerail-lab",
            "rerail-launch",
            "rerail-verbs",
            "rerail-rwapi",
            "rerail-join",
        ],
    ),
    // libpmix: a leaf, because servers and clients of it use it
    ("rerail-pmix", &[]),
    ("rerail-launch", &["rerail-pmix"]),
    // part of programs that are no part of the provider
    ("rerail-join", &["rerail-pmix"]),
    (
        "rerail-cli",
        &["rerail-lab", "rerail-launch", "rerail-runtime", "rerail-core", "rerail-ip", "rerail-verbs"],
    ),
    ("rerail-trial", &["rerail-lab", "xtask"]),
    // every command begins by compiling it
    ("xtask", &[]),
];

/// See [`EDGES`].
const PROVIDER: &[&str] = &["rerail-runtime", "rerail-core", "rerail-wire", "rerail-rail", "rerail-kinds"];

/// See [`EDGES`].
const KINDS: &[&str] =
    &["rerail-core", "rerail-rail", "rerail-ip", "rerail-shm", "rerail-example", "rerail-verbs"];

/// What a layer below the runtime may name of `rerail_core`. A layer that reached the engine itself could decide what is the engine's
/// to decide.
const TYPES_ONLY: (&[&str], &[&str]) =
    (&["rerail-seal"], &["Identity", "KeyAgreement", "KeysUpdate", "SecretKey", "Session", "SessionIds"]);

/// Edges that only tests may have.
const TEST_EDGES: &[(&str, &[&str])] = &[
    // the real rail is what the runtime is tried with; the library itself does not know it
    ("rerail-ip", &["rerail-core", "rerail-fault", "rerail-runtime"]),
    // and what the layer that encrypts is tried over
    ("rerail-seal", &["rerail-fault", "rerail-ip", "rerail-example"]),
    // and the shortcut, with the runtime's tests of two processes
    ("rerail-shm", &["rerail-core", "rerail-ip", "rerail-runtime"]),
    // without an adapter its conformance program runs in a guest; what a migration costs is measured with the layers over it
    ("rerail-verbs", &["rerail-core", "rerail-lab", "rerail-runtime"]),
    // the runtime's tests of two processes again, over an adapter; and kinds that are joined, with the layers over them
    ("rerail-example", &["rerail-core", "rerail-runtime", "rerail-ip", "rerail-shm", "rerail-fault"]),
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

/// Bytes of the largest file that git may know. The largest that was written by hand has 133 KiB.
const LARGEST_FILE: usize = 1 << 20;

type Step = (&'static str, fn() -> Result<()>);

/// Runs every check.
pub fn run() -> Result<()> {
    let steps: &[Step] = &[
        ("strays", strays),
        ("edges", || edges(&metadata()?, EDGES, TEST_EDGES)),
        ("types", types_only),
        ("borders", border::run),
        ("dependencies", dependencies),
        ("fmt", || run_command(cargo().args(["fmt", "--all", "--check"]))),
        ("clippy", || {
            let words = "clippy --quiet --workspace --all-targets -- -D warnings";
            run_command(cargo().args(words.split(' ')))
        }),
        // the documentation is for contributors, so it shows private items and may link to them
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

/// Fails with what was found, if anything was.
fn refuse(found: Vec<String>, words: &str) -> Result<()> {
    if found.is_empty() { Ok(()) } else { Err(anyhow!("{words}{}", found.join("\n  "))) }
}

fn metadata() -> Result<Value> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--locked"]))
        .context("cargo metadata failed; if Cargo.lock is out of date, run `cargo check` and commit it")?;
    serde_json::from_str(&text).context("cargo metadata printed no JSON")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn allowed(table: Table<'_>, from: &str, to: &str) -> bool {
    table.iter().any(|(crate_name, uses)| *crate_name == from && uses.contains(&to))
}

/// A table of which crate may use which.
type Table<'a> = &'a [(&'a str, &'a [&'a str])];

/// Holds the crates to a table of edges and one of those that only tests may have, and the tables to the crates.
fn edges(metadata: &Value, for_all: Table<'_>, for_tests: Table<'_>) -> Result<()> {
    let members = list(metadata, "workspace_members");
    let packages: Vec<&Value> =
        list(metadata, "packages").iter().filter(|p| members.contains(&p["id"])).collect();
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut wrong = Vec::new();
    let (mut used, mut used_by_tests) = (Vec::new(), Vec::new());
    for package in &packages {
        let from = package["name"].as_str().unwrap_or_default();
        if !for_all.iter().any(|(name, _)| *name == from) {
            wrong
                .push(format!("{from} is not in the table of xtask/src/check.rs: say there what it may use"));
        }
        let by_default = package["features"]["default"].as_array().map_or(&[][..], Vec::as_slice);
        if by_default.iter().any(is_planted) {
            wrong.push(format!("{from} has planted bugs by default"));
        }
        for dependency in list(package, "dependencies") {
            let to = dependency["name"].as_str().unwrap_or_default();
            // cargo joins the features of all that it builds at once: the provider would have them too
            if list(dependency, "features").iter().any(is_planted) {
                wrong.push(format!(
                    "{from} must not ask {to} for planted bugs, except by a feature of its own"
                ));
            }
            let by_tests = dependency["kind"] == "dev";
            if names.contains(&to) {
                used.push((from, to));
                used_by_tests.extend(by_tests.then_some((from, to)));
                if !(allowed(for_all, from, to) || by_tests && allowed(for_tests, from, to)) {
                    let even = if by_tests { ", not even in tests" } else { "" };
                    wrong.push(format!("{from} must not use {to}{even}"));
                }
            }
        }
    }
    for (table, used) in [(for_all, used), (for_tests, used_by_tests)] {
        for (from, to) in table.iter().flat_map(|(from, all)| all.iter().map(move |to| (*from, *to))) {
            if !used.contains(&(from, to)) {
                wrong.push(format!("{from} may use {to}, and does not: take that out of the table"));
            }
        }
    }
    refuse(wrong, "")
}

/// A feature that plants bugs, of the crate itself (`planted-bugs`) or of another (`rerail-core/planted-bugs`).
fn is_planted(feature: &Value) -> bool {
    feature.as_str().is_some_and(|f| f == "planted-bugs" || f.ends_with("/planted-bugs"))
}

/// Looks at what the crates of [`TYPES_ONLY`] name of `rerail_core`.
fn types_only() -> Result<()> {
    let (crates, names) = TYPES_ONLY;
    let mut wrong = Vec::new();
    for crate_name in crates {
        for (path, text) in sources(&root().join("crates").join(crate_name).join("src"))? {
            for item in read(&text)?.items.iter().filter(|item| item.path[0] == "rerail_core") {
                if item.path.get(1).is_none_or(|name| !names.contains(&name.as_str())) {
                    wrong.push(format!(
                        "{path} names {}, but may use only its plain types",
                        item.path.join("::")
                    ));
                }
            }
        }
    }
    refuse(wrong, "")
}

/// The version of cargo-deny that is installed where there is none.
const DENY: &str = "0.20.2";

/// What dependencies may be, after deny.toml.
fn dependencies() -> Result<()> {
    let (place, program) = (state_dir().join("cargo"), "cargo-deny");
    let own = place.join("bin").join(program);
    if !own.is_file() && !has_program(program) {
        println!("check: installing {program} {DENY}, once (a minute)");
        let mut install = cargo();
        // unoptimized, and without what asks networks: it runs for a second, and is built a third as long
        install.args([
            "install",
            "--quiet",
            "--locked",
            "--debug",
            "--no-default-features",
            "--version",
            DENY,
        ]);
        install.args([program, "--root"]).arg(&place).env("CARGO_PROFILE_DEV_DEBUG", "0");
        run_command(&mut install).context("could not install it; is a registry of crates within reach?")?;
    }
    let mut deny = Command::new(if own.is_file() { own.as_os_str() } else { program.as_ref() });
    run_command(
        deny.args(["--log-level", "error", "check", "licenses", "bans", "sources"]).current_dir(root()),
    )
}

/// The files that git knows.
fn tracked() -> Result<Vec<String>> {
    let files = output(Command::new("git").args(["ls-files", "-z"]).current_dir(root()))?;
    Ok(files.split('\0').filter(|name| !name.is_empty()).map(String::from).collect())
}

/// Looks for what does not belong to the project, in every file that git knows: paths of one machine, registries, and what is larger than
/// anything people write, such as a core dump.
fn strays() -> Result<()> {
    let mut found = Vec::new();
    for file in &tracked()? {
        let Ok(bytes) = std::fs::read(root().join(file)) else { continue }; // deleted, not yet committed
        if bytes.len() > LARGEST_FILE {
            let size = bytes.len() / 1024;
            found.push(format!(
                "{file}: {size} KiB, which every clone would carry for ever: `git rm --cached` it"
            ));
        }
        let Ok(text) = String::from_utf8(bytes) else { continue }; // no text
        for (number, line) in text.lines().enumerate() {
            found.extend(stray(line).map(|what| format!("{file}:{}: {what}", number + 1)));
        }
    }
    refuse(found, "these do not belong to the project:\n  ")
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
        let package = |name: &str, uses: &[&str], kind: Option<&str>| {
            let dependencies: Vec<Value> = uses.iter().map(|to| json!({"name": to, "kind": kind})).collect();
            json!({"id": name, "name": name, "dependencies": dependencies})
        };
        let told = |a: &[&str], b: &[&str]| {
            let packages =
                [package("a", a, None), package("b", b, Some("dev")), package("c", &["serde"], None)];
            let workspace = json!({"workspace_members": ["a", "b", "c"], "packages": packages});
            let result = edges(&workspace, &[("a", &["b"]), ("b", &[]), ("c", &[])], &[("b", &["c"])]);
            result.err().map(|why| why.to_string())
        };
        assert_eq!(told(&["b"], &["c"]), None);
        assert_eq!(told(&["b", "c"], &["c"]).unwrap(), "a must not use c");
        assert_eq!(told(&["b"], &["c", "a"]).unwrap(), "b must not use a, not even in tests");
        assert_eq!(told(&["b"], &[]).unwrap(), "b may use c, and does not: take that out of the table");
        assert!(told(&[], &["c"]).unwrap().starts_with("a may use b, and does not"));
    }

    #[test]
    fn planted_bugs_that_the_provider_would_get_are_refused() {
        let told = |wish: Value, default: Value| {
            let uses = json!([{"name": "b", "kind": null, "features": wish}]);
            let a = json!({"id": "a", "name": "a", "dependencies": uses, "features": {"default": default}});
            let b = json!({"id": "b", "name": "b", "dependencies": []});
            let workspace = json!({"workspace_members": ["a", "b"], "packages": [a, b]});
            edges(&workspace, &[("a", &["b"]), ("b", &[])], &[]).err().map(|why| why.to_string())
        };
        assert_eq!(told(json!([]), json!([])), None);
        let asked = told(json!(["planted-bugs"]), json!([])).unwrap();
        assert!(asked.starts_with("a must not ask b for planted bugs"), "{asked}");
        assert_eq!(told(json!([]), json!(["b/planted-bugs"])).unwrap(), "a has planted bugs by default");
    }
}
