//! Programs of RWAPI as their users start them: the examples in C and Python, by `rerail launch` in the lab and by the launchers of MPIs, without
//! faults and with them; wrong calls; receivers that sleep; nodes that die.

#[path = "common/mod.rs"]
#[allow(dead_code, unused_macros)]
mod common;
#[path = "common/guests.rs"]
mod guests;

use common::*;
use guests::has_no_guests;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The program of `rerail bench --rwapi`.
const FIGURES: &str = "crates/rerail-cli/src/bench/rwapi/figures";

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What `cargo xtask build` leaves for programs of RWAPI, beside the provider.
fn prefix(provider: &Path) -> PathBuf {
    provider.with_file_name("rwapi")
}

/// Compiles the C programs, once. Where they are.
fn programs(provider: &Path) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let compile = || {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rwapi-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let prefix = prefix(provider);
        for source in ["examples/rwapi/c/ring", "examples/rwapi/c/heat", "examples/rwapi/c/workqueue"]
            .iter()
            .chain(&["tests/rwapi/sleeper", "tests/rwapi/wrong", FIGURES, "tests/rwapi/random"])
        {
            let source = checkout().join(source).with_extension("c");
            let mut gcc = Command::new("gcc");
            gcc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
                .arg(dir.join(source.file_stem().unwrap()));
            gcc.arg(&source).arg(format!("-I{}", prefix.join("include").display()));
            let lib = prefix.join("lib");
            gcc.arg(format!("-L{}", lib.display()))
                .arg(format!("-Wl,-rpath,{}", lib.display()))
                .arg("-lrwapi");
            succeeds(&gcc.output().unwrap());
        }
        dir
    };
    DIR.get_or_init(compile).clone()
}

/// The program of an example in Python, as arguments of a launcher.
fn python(example: &str) -> [PathBuf; 2] {
    [checkout().join(".rerail/venv/bin/python"), checkout().join("examples/rwapi/python").join(example)]
}

fn with_python(command: &mut Command, provider: &Path) {
    command
        .env("PYTHONPATH", checkout().join("python"))
        .env("RWAPI_LIBRARY", prefix(provider).join("lib/librwapi.so"));
}

/// Runs a program on three nodes with two rails, by `rerail launch`.
fn on_three_nodes(
    mpi: &Mpi,
    provider: &Path,
    arguments: &[&str],
    program: &[&Path],
    more: &[&str],
) -> Output {
    on_nodes(mpi, provider, "3", &[&["--by-rerail"], arguments].concat(), program, more)
}

/// The same on so many, by the launcher of the MPI unless the arguments name another.
fn on_nodes(
    mpi: &Mpi,
    provider: &Path,
    nodes: &str,
    arguments: &[&str],
    program: &[&Path],
    more: &[&str],
) -> Output {
    let mut command = lab(mpi.option, &["--nodes", nodes, "--rails", "2"]);
    command.arg("--provider").arg(provider).arg("--mpi-prefix").arg(&mpi.prefix).args(arguments);
    command.arg("--").args(program).args(more);
    with_python(&mut command, provider);
    command.output().unwrap()
}

#[test]
fn examples_are_right_on_several_nodes() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let dir = programs(&provider);
    for (nodes, example) in [("2", "ring"), ("3", "heat"), ("5", "workqueue"), ("8", "ring")] {
        let c = on_three_nodes(mpi, &provider, &["-n", nodes], &[&dir.join(example)], &[]);
        let [interpreter, script] = python(&format!("{example}.py"));
        let py = on_three_nodes(mpi, &provider, &["-n", nodes], &[&interpreter, &script], &[]);
        for output in [c, py] {
            let out = succeeds(&output);
            assert!(
                out.starts_with(&format!("{example}: {nodes} nodes")) && out.trim_end().ends_with("right"),
                "{out}"
            );
        }
    }
}

/// An example in Rust: `cargo test --workspace` compiles examples before it runs tests.
fn in_rust(example: &str) -> Option<PathBuf> {
    let program = Path::new(RERAIL).parent().unwrap().join("examples").join(example);
    if program.is_file() {
        return Some(program);
    }
    skip(&format!("no {} (made by `cargo test --workspace`)", program.display()));
    None
}

#[test]
fn examples_in_rust_are_right_on_several_nodes() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    for (nodes, example) in [("2", "ring"), ("3", "heat"), ("5", "workqueue")] {
        let Some(program) = in_rust(example) else { return };
        let output = on_three_nodes(mpi, &provider, &["-n", nodes], &[&program], &[]);
        let out = succeeds(&output);
        assert!(
            out.starts_with(&format!("{example}: {nodes} nodes")) && out.trim_end().ends_with("right"),
            "{out}"
        );
    }
}

fn every_fault_was_in_time(output: &Output) {
    let missed = text(&output.stderr).contains("items of the schedule");
    assert!(!missed, "the program ended before the last fault: {}", text(&output.stderr));
}

/// The options of a launcher of an MPI that lets ranks have the variables which the Python package needs; Open MPI passes on what it is told.
fn for_python(mpi: &Mpi) -> &'static [&'static str] {
    match mpi.option {
        "openmpi" => &["--mpi-arg=-x", "--mpi-arg=PYTHONPATH", "--mpi-arg=-x", "--mpi-arg=RWAPI_LIBRARY"],
        _ => &[],
    }
}

#[test]
fn examples_are_right_while_rails_break_and_through_a_blackout() {
    let [mpich, open, _, _] = &mpis();
    let Some((_, provider)) = setup(mpich) else { return };
    let Some(_) = setup(open) else { return };
    let dir = programs(&provider);
    let schedule = "300ms cut rail0 down; 800ms heal rail0; 1300ms cut rail1 dark; 1800ms heal rail1; \
        2300ms cut rail0 dark-in node 1; 2800ms heal rail0; 3300ms cut rail1 reset; 3800ms heal rail1; \
        4300ms cut all dark; 9300ms heal all";
    let [interpreter, script] = python("ring.py");
    let heat = dir.join("heat");
    let Some(ring) = in_rust("ring") else { return };
    type Run<'a> = (&'a Mpi, &'a [&'a str], &'a [&'a Path], &'a [&'a str]);
    let runs: [Run; 3] = [
        (mpich, &["--by-rerail"], &[&heat], &["--cells", "256", "--steps", "60000"]),
        (mpich, &[], &[&ring], &["--rounds", "40000"]),
        (open, for_python(open), &[&interpreter, &script], &["--rounds", "12000"]),
    ];
    for (mpi, launcher, program, more) in runs {
        let arguments = ["-n", "3", "--ppn", "1", "--schedule", schedule];
        let output = on_nodes(mpi, &provider, "3", &[launcher, &arguments].concat(), program, more);
        assert!(succeeds(&output).trim_end().ends_with("right"), "{}, {program:?}", mpi.option);
        every_fault_was_in_time(&output);
    }
}

/// All nodes check every message, and every byte after each barrier, against what the seeds say.
#[test]
fn random_programs_keep_every_promise_while_rails_break() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let program = programs(&provider).join("random");
    let each = "200ms cut rail0 down; 600ms heal rail0; 900ms cut rail1 dark; 1400ms heal rail1; \
        1700ms cut rail0 dark-in node 1; 2200ms heal rail0; 2500ms cut rail1 reset; 2800ms heal rail1; \
        3100ms cut rail1 dark-out node 2; 3600ms heal rail1; 3900ms cut all dark; 4900ms heal all";
    let overlapping = "200ms cut rail0 dark-out node 0; 400ms cut rail1 reset; 600ms heal all; \
        900ms cut rail1 down; 1000ms cut rail0 dark; 1800ms heal rail0; 2200ms heal rail1; \
        2500ms cut all reset; 2600ms heal all; 2900ms cut rail0 down node 1; 3100ms cut rail1 dark node 2; \
        3900ms heal all";
    // with more ranks, some are neighbours on one node, and write through shared memory
    for (ranks, first, ms, schedule) in [("3", "0", "5100", each), ("5", "1000", "4100", overlapping)] {
        let arguments = ["-n", ranks, "--schedule", schedule];
        let more = ["--first", first, "--seeds", "20", "--ms", ms];
        let output = on_three_nodes(mpi, &provider, &arguments, &[&program], &more);
        let out = succeeds(&output);
        assert_eq!(out.lines().filter(|l| l.contains(" right: ")).count().to_string(), ranks, "{out}");
        every_fault_was_in_time(&output);
    }
}

/// One rail is an Ethernet interface of 20 Mbit/s, the other an adapter for RoCE of 40.
#[test]
fn random_programs_keep_every_promise_over_rails_of_two_kinds() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let program = programs(&provider).join("random");
    let events = mpi.temporary("two-kinds");
    let schedule = "2s cut rail0 dark node 1; 4s heal rail0; 6s cut rail1 down; 8s heal rail1";
    let mut command = lab(mpi.option, &["--by-rerail", "--rdma", "roce", "--nodes", "2"]);
    command.args(["--rail", "20mbit", "--rail", "40mbit", "--schedule-on-start", "--schedule", schedule]);
    command.args(["--env", "FI_RERAIL_KINDS=ip,roce", "--env", "FI_RERAIL_RAILS=rail0,rxe1"]);
    command
        .arg("--provider")
        .arg(&provider)
        .arg("--mpi-prefix")
        .arg(&mpi.prefix)
        .arg("--events")
        .arg(&events);
    command.arg("--").arg(&program).args(["--first", "5000", "--seeds", "2", "--ms", "9500"]);
    let output = command.env_remove("FI_RERAIL_KINDS").env_remove("FI_RERAIL_RAILS").output().unwrap();
    if has_no_guests(&output) {
        return;
    }
    let out = succeeds(&output);
    assert_eq!(out.lines().filter(|l| l.contains(" right: ")).count(), 2, "{out}");
    every_fault_was_in_time(&output);
    let events = std::fs::read_to_string(events).unwrap();
    for (event, rail) in
        [("path_up", "rail0"), ("path_up", "rxe1"), ("path_down", "rail0"), ("path_down", "rxe1")]
    {
        let words = [event, rail].map(|word| format!("\"{word}\""));
        assert!(
            events.lines().any(|line| words.iter().all(|word| line.contains(word))),
            "no {event} of {rail}:\n{events}"
        );
    }
}

#[test]
fn launchers_of_mpis_start_programs_of_rwapi() {
    for mpi in &mpis()[..3] {
        let Some((_, provider)) = setup(mpi) else { return };
        let ring = programs(&provider).join("ring");
        let [interpreter, heat] = python("heat.py");
        let Some(workqueue) = in_rust("workqueue") else { return };
        let runs: [(&str, &[&Path], &str); 3] = [
            ("4", &[&ring], "ring: 4 nodes, 100 rounds, right"),
            ("3", &[&interpreter, &heat], "heat: 3 nodes"),
            ("5", &[&workqueue], "workqueue: 5 nodes, 200 tasks, right"),
        ];
        for (ranks, program, wanted) in runs {
            let arguments = [&["-n", ranks], for_python(mpi)].concat();
            let out = succeeds(&on_nodes(mpi, &provider, "2", &arguments, program, &[]));
            assert!(
                out.contains(wanted) && out.trim_end().ends_with("right"),
                "{}, {program:?}: {out}",
                mpi.option
            );
        }
    }
}

#[test]
fn calls_that_make_no_sense_are_refused_and_touch_nothing() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let dir = programs(&provider);
    let output = on_three_nodes(mpi, &provider, &["-n", "3", "--ppn", "1"], &[&dir.join("wrong")], &[]);
    let out = succeeds(&output);
    assert_eq!(out.matches("all refused").count(), 3, "{out}{}", text(&output.stderr));
}

#[test]
fn a_receiver_that_sleeps_slows_its_senders_down_and_loses_nothing() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let dir = programs(&provider);
    let program = dir.join("sleeper");
    let output = on_three_nodes(mpi, &provider, &["-n", "3", "--ppn", "1"], &[&program], &["100000", "2"]);
    assert!(succeeds(&output).contains("100000 messages to each of 2 nodes"));
}

#[test]
fn the_death_of_a_node_is_reported_and_the_others_go_on() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let dir = programs(&provider);
    let arguments = ["-n", "6", "--mpi-arg=--keep-going"];
    let output = on_three_nodes(mpi, &provider, &arguments, &[&dir.join("workqueue")], &["--die", "3"]);
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(all.contains("node 3 is gone") && all.contains("workqueue: 6 nodes, 200 tasks, right"), "{all}");
}

#[test]
fn the_python_package_keeps_its_promises_over_the_real_library() {
    let Some((_, provider)) = setup(&mpis()[0]) else { return };
    let mut command = Command::new(checkout().join(".rerail/venv/bin/python"));
    command.args(["-m", "unittest", "-q"]).current_dir(checkout().join("python/tests"));
    with_python(&mut command, &provider);
    let output = command.output().unwrap();
    succeeds(&output);
    assert!(text(&output.stderr).contains("Ran 33 tests"), "{}", text(&output.stderr));
}

/// Every line of the benchmark's program: its test, its size and its figure.
fn figures(out: &str) -> Vec<(String, String, f64)> {
    let words = out.lines().filter_map(|line| line.strip_prefix("bench ")).map(|line| line.split(' '));
    words
        .map(|mut words| {
            let mut next = || words.next().unwrap().to_string();
            (next(), next(), next().parse().unwrap())
        })
        .collect()
}

#[test]
fn the_benchmark_checks_every_message() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let dir = programs(&provider);
    let output = on_three_nodes(
        mpi,
        &provider,
        &["-n", "3", "--ppn", "1"],
        &[&dir.join("figures")],
        &["--ms", "20", "--size", "16,9000,65536", "--sleep", "1"],
    );
    let out = succeeds(&output);
    let all = figures(&out);
    assert_eq!(all.len(), 4 * 3, "{out}");
    assert!(all.iter().all(|(_, _, us)| *us > 0.0), "{out}");
}

#[test]
fn the_benchmark_runs_the_same_tests_over_an_mpi() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let program = programs(&provider).join("figures-mpi");
    let mut mpicc = Command::new(mpi.prefix.join("bin/mpicc"));
    mpicc.args(["-DOVER_MPI", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    succeeds(&mpicc.arg(checkout().join(FIGURES).with_extension("c")).output().unwrap());
    let mut command = lab(mpi.option, &["--nodes", "2", "--rails", "2", "-n", "2", "--provider"]);
    command.arg(&provider).arg("--mpi-prefix").arg(&mpi.prefix).arg("--").arg(&program);
    let out = succeeds(&command.args(["--ms", "20", "--size", "1,9000,65536"]).output().unwrap());
    let all = figures(&out);
    assert_eq!(all.len(), 4 * 3, "{out}");
    assert!(all.iter().all(|(_, _, us)| *us > 0.0), "{out}");
}

/// The second did not: node 0 remembered that the first was over.
#[test]
fn measurements_with_cuts_end_when_their_first_messages_take_all_the_time() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let program = programs(&provider).join("figures");
    let mut command = lab(mpi.option, &["--nodes", "2", "--rails", "2", "-n", "2", "--provider"]);
    command.arg(&provider).arg("--mpi-prefix").arg(&mpi.prefix).args(["--", "timeout", "60"]).arg(&program);
    let all = figures(&succeeds(
        &command.args(["--cuts", "1", "--ms", "0.05", "--test", "put", "--size", "4,64"]).output().unwrap(),
    ));
    assert_eq!(all.len(), 2);
}

#[test]
fn rerail_bench_measures_rwapi_beside_the_mpi_and_through_cuts() {
    let mpi = &mpis()[0];
    let Some((_, provider)) = setup(mpi) else { return };
    let dir = mpi.temporary("bench-rwapi");
    let json = dir.join("figures.json");
    let mut command = Command::new(RERAIL);
    command.args(["bench", "--rwapi", "--lab", mpi.option, "--mpi-prefix"]).arg(&mpi.prefix);
    command.arg("--provider").arg(&provider).arg("--rwapi-prefix").arg(prefix(&provider));
    command.args([
        "--rounds",
        "1",
        "--ms",
        "20",
        "--size",
        "4,64K",
        "--test",
        "one-way,put",
        "--patience",
        "60",
    ]);
    command.args(["--peer", "own,tcp,cut", "--dir"]).arg(&dir).arg("--json").arg(&json);
    let out = succeeds(&command.arg("--svg").arg(&dir).output().unwrap());
    let contenders = ["rwapi", "rerail", "own", "tcp", "rwapi+cut", "rerail+cut"];
    let all: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(all["contenders"], serde_json::json!(contenders));
    assert_eq!(all["failures"], serde_json::json!([]));
    let mut seen = Vec::new();
    for figure in all["figures"].as_array().unwrap() {
        let is_cut = figure["contender"].as_str().unwrap().ends_with("+cut");
        for key in ["median", "mb_per_s"] {
            assert!(figure[key].as_f64().unwrap() > 0.0, "{key}: {figure}");
        }
        assert!(figure["standstill_ms"][0].as_f64().unwrap() > 0.0, "{figure}");
        assert_eq!(figure["cuts"], serde_json::json!([if is_cut { 2 } else { 0 }]), "{figure}");
        assert_eq!(figure["rwapi_ratio"].is_null(), figure["contender"] == "rwapi", "{figure}");
        seen.push(format!("{} {} {}", figure["test"], figure["bytes"], figure["contender"]));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2 * 2 * contenders.len(), "{seen:?}");
    assert!(!out.contains('–') && out.contains("Longest time without a message"), "{out}");
    for picture in ["one-way.svg", "one-way-throughput.svg", "put.svg", "put-throughput.svg"] {
        assert!(dir.join(picture).is_file(), "{picture}");
    }
}
