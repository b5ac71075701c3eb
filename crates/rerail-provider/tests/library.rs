//! The built library in the hands of real libfabrics: Debian's `fi_info`, the copies in the MPI wheels, and a C program that
//! makes the calls that MPIs make. What is not on this machine is skipped, loudly.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The built provider: the one that `cargo xtask test` has just built and names in RERAIL_PROVIDER, or what `cargo build` left in
/// this profile. `cargo test` alone does not build a cdylib for the tests beside it.
fn library() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("RERAIL_PROVIDER") {
        let library = PathBuf::from(named);
        assert!(library.is_file(), "RERAIL_PROVIDER names {}, which is not there", library.display());
        return Some(library);
    }
    let exe = std::env::current_exe().expect("a test has a path");
    let profile = exe.parent().and_then(Path::parent).expect("target/<profile>/deps");
    Some(profile.join("librerail_fi.so")).filter(|l| l.is_file())
}

/// A directory that holds the provider under the name that libfabric looks for; `None`, with a loud word, when it is not built.
fn provider_dir() -> Option<PathBuf> {
    let Some(library) = library() else {
        eprintln!(
            "SKIPPED: the provider is not built: run `cargo build -p rerail-provider`, or `cargo xtask test`"
        );
        return None;
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("provider-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the provider");
    let link = dir.join("librerail-fi.so");
    if !link.exists() {
        // Another test of this process may have been quicker.
        let _ = std::os::unix::fs::symlink(library, link);
    }
    Some(dir)
}

/// Runs a program with the provider in its path; `None`, with a loud word, when there is no such program.
fn run(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).env("FI_PROVIDER_PATH", provider_dir()?);
    for name in ["FI_PROVIDER", "FI_LOG_LEVEL", "FI_RERAIL_RAILS", "FI_RERAIL_EVENTS"] {
        command.env_remove(name);
    }
    command.envs(env.iter().copied());
    match command.output() {
        Ok(out) => Some(out),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("SKIPPED: no {} on this machine", program.display());
            None
        }
        Err(e) => panic!("{}: {e}", program.display()),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shows_rerail(out: &Output) {
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{shown}{}", text(&out.stderr));
    for line in ["provider: rerail", "fabric: rerail", "domain: rerail", "type: FI_EP_RDM"] {
        assert!(shown.contains(line), "no \"{line}\" in:\n{shown}");
    }
    assert_eq!(shown.matches("provider:").count(), 1, "one offer, and nothing layered on it:\n{shown}");
}

#[test]
fn fi_info_lists_one_offer() {
    let Some(out) = run(Path::new("fi_info"), &["-p", "rerail"], &[]) else { return };
    shows_rerail(&out);
    let Some(out) = run(Path::new("fi_info"), &["-v", "-p", "rerail"], &[]) else { return };
    let shown = text(&out.stdout);
    for word in ["FI_TAGGED", "FI_DIRECTED_RECV", "FI_MULTI_RECV", "src_addr"] {
        assert!(shown.contains(word), "no {word} in:\n{shown}");
    }
    assert!(!shown.contains("src_addrlen: 0"), "{shown}");
}

/// Cargo joins the features of all crates that it builds at once: a simulator that asked for planted bugs would give them to the provider.
#[test]
fn the_library_has_no_planted_bugs() {
    let Some(library) = library() else {
        eprintln!(
            "SKIPPED: the provider is not built: run `cargo build -p rerail-provider`, or `cargo xtask test`"
        );
        return;
    };
    let bytes = std::fs::read(&library).expect("a built library can be read");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|w| w == text);
    assert!(has(b"fi_prov_ini"), "{} is no provider", library.display());
    assert!(!has(b"planted bugs and is not to be used"), "{} has planted bugs", library.display());
}

#[test]
fn fi_info_explains_every_option() {
    let Some(out) = run(Path::new("fi_info"), &["-e", "-g", "FI_RERAIL"], &[]) else { return };
    let shown = text(&out.stdout);
    for row in rerail_core::OPTION_TABLE {
        let name = format!("FI_RERAIL_{}", row.name.to_uppercase());
        assert!(shown.contains(&name), "no {name} in:\n{shown}");
    }
}

#[test]
fn a_wrong_option_is_one_clear_sentence() {
    let env = [("FI_RERAIL_HEDGE", "lots")];
    let Some(out) = run(Path::new("fi_info"), &["-p", "rerail"], &env) else { return };
    let said = text(&out.stderr);
    assert!(!out.status.success());
    assert_eq!(said.matches("rerail: ").count(), 1, "{said}");
    assert!(said.contains("FI_RERAIL_HEDGE") && said.contains("0 to 100"), "{said}");
}

#[test]
fn an_option_that_is_none_is_named_once_with_the_one_that_was_meant() {
    let env = [("FI_RERAIL_POLCY", "even")];
    let Some(out) = run(Path::new("fi_info"), &["-p", "rerail"], &env) else { return };
    let said = text(&out.stderr);
    shows_rerail(&out);
    let sentence =
        "rerail: warning: FI_RERAIL_POLCY is no option and is ignored: did you mean FI_RERAIL_POLICY?\n";
    assert_eq!(said.matches(sentence).count(), 1, "{said}");
    // one process of a node says it
    let Some(out) = run(Path::new("fi_info"), &["-p", "rerail"], &[env[0], ("MPI_LOCALRANKID", "3")]) else {
        return;
    };
    assert!(!text(&out.stderr).contains("POLCY"), "{}", text(&out.stderr));
}

#[test]
fn a_missing_interface_is_named() {
    let env = [("FI_RERAIL_RAILS", "nosuch7")];
    let Some(out) = run(Path::new("fi_info"), &["-p", "rerail"], &env) else { return };
    let said = text(&out.stderr);
    assert!(!out.status.success());
    assert!(said.contains("nosuch7"), "{said}");
}

#[test]
fn other_endpoint_types_are_left_to_others() {
    for kind in ["FI_EP_MSG", "FI_EP_DGRAM"] {
        let Some(out) = run(Path::new("fi_info"), &["-p", "rerail", "-t", kind], &[]) else { return };
        assert!(!out.status.success(), "{}", text(&out.stdout));
    }
}

/// Where `cargo xtask setup` puts the MPIs.
fn wheels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.rerail")
}

/// The libfabrics that the MPI wheels bring are newer and loaded under no name that the linker knows. Debian's `fi_info`
/// runs on each of them by way of the library path.
#[test]
fn the_libfabrics_of_the_mpis_load_it_too() {
    for place in ["venv/lib/mpich", "impi/lib"] {
        let dir = wheels().join(place);
        if !dir.join("libfabric.so.1").exists() {
            eprintln!("SKIPPED: no {} (made by `cargo xtask setup`)", dir.display());
            continue;
        }
        let dir = dir.to_string_lossy().into_owned();
        let Some(out) = run(Path::new("fi_info"), &["-p", "rerail"], &[("LD_LIBRARY_PATH", &dir)]) else {
            return;
        };
        shows_rerail(&out);
    }
}

/// Compiles a C program of this directory and runs it with the provider, over loopback.
fn run_program(name: &str) {
    if let Some(out) = output_of_program(name, &[], &[]) {
        assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    }
}

/// The same with arguments and an environment; `None`, with a loud word, when that cannot be done on this machine.
fn output_of_program(name: &str, args: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
    let headers =
        Command::new("gcc").args(["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null"]).output();
    if !headers.is_ok_and(|out| out.status.success()) {
        eprintln!("SKIPPED: no gcc, or no headers of libfabric on this machine (Debian: gcc, libfabric-dev)");
        return None;
    }
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-o"])
        .args([&program, &source])
        .args(["-lfabric", "-lpthread"])
        .output();
    let built = built.expect("gcc was there a moment ago");
    assert!(built.status.success(), "{}", text(&built.stderr));
    let all = [&[("FI_PROVIDER", "rerail"), ("FI_RERAIL_RAILS", "lo")], env].concat();
    let out = run(&program, args, &all);
    let _ = std::fs::remove_file(&program);
    out
}

#[test]
fn the_calls_of_mpis_do_what_they_must() {
    run_program("calls");
}

/// Flags that `refusals.c` has refused.
const REFUSALS: usize = 29;

/// An MPI says "operation not supported" and ends; the log has to say what it asked for.
#[test]
fn every_refused_flag_is_named_in_the_log_once() {
    let Some(out) = output_of_program("refusals", &[], &[("FI_LOG_LEVEL", "warn")]) else { return };
    let (told, log) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{told}{log}");
    let sentences: Vec<&str> = told.lines().collect();
    assert_eq!(sentences.len(), REFUSALS, "{told}");
    for sentence in sentences {
        assert_eq!(log.matches(&format!("{sentence}\n")).count(), 1, "`{sentence}` in\n{log}");
    }
    assert_eq!(log.matches("Rerail refuses").count(), REFUSALS, "{log}");
}

/// The MPI prints the number's text and nothing else: "No such device" sends its user to look for a device.
#[test]
fn too_few_descriptors_are_called_so() {
    let mut told = Vec::new();
    for limit in 6..40 {
        let limit = format!("prlimit:{limit}");
        let args = [limit.as_str(), "address_vector"];
        let Some(out) = output_of_program("calls", &args, &[]) else { return };
        told.push(format!("{limit}: {}{}", text(&out.stdout), text(&out.stderr)));
    }
    let wrong: Vec<&String> = told.iter().filter(|t| t.contains("No such device")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let enabled = "fi_enable(s->ep) gave -24 (Too many open files)";
    assert!(told.iter().any(|t| t.contains(enabled)), "no limit met the start of the runtime: {told:#?}");
}

/// Registered memory, read, written and updated atomically.
#[test]
fn one_sided_operations_do_what_they_must() {
    run_program("onesided");
}

/// Groups of processes that do collective operations together.
#[test]
fn collective_operations_do_what_they_must() {
    run_program("collective");
}

/// Forks, exits without closing, completion levels, operations in flight, names, counters, a lost peer: between processes.
#[test]
fn two_processes_keep_what_they_promise_each_other() {
    run_program("pair");
}

/// Wait objects of queues and counters, event queues, poll sets, aliases: asleep while another process or thread sends.
#[test]
fn sleepers_miss_nothing() {
    run_program("waits");
}

/// Endpoints that are known by IP address and port, and processes that come and go under one name.
#[test]
fn two_who_know_only_a_port_find_each_other() {
    run_program("names");
}

/// When all endpoint numbers are used up, the next endpoint is refused, and the process goes on.
#[test]
fn seventy_thousand_endpoints_end_no_process() {
    run_program("endpoints");
}
