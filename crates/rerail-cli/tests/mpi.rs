//! `rerail lab run` starts real programs on every MPI that `cargo xtask setup` installs.
//!
//! A test of an MPI that is not there, or where no lab can be made, says SKIPPED on standard error; with
//! `RERAIL_REQUIRE_LAB=1` a lab that cannot be made is a failure.

#[macro_use]
mod common;

use common::{Mpi, lab, mpis, setup, succeeds, text};
use std::fs;
use std::process::Command;

fn lab_on(mpi: &Mpi, arguments: &[&str]) -> Command {
    let mut command = lab(mpi.option, arguments);
    command.arg("--mpi-prefix").arg(&mpi.prefix);
    command
}

fn survives_a_cut(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("events");
    let schedule = "0.7s cut rail1 down; 1.4s heal rail1";
    let rails = ["--rail", "1gbit", "--rail", "1gbit", "-n", "4", "--ppn", "2"];
    let mut command = lab_on(mpi, &rails);
    command.args(["--schedule-on-start", "--schedule", schedule, "--events"]).arg(&events);
    command.arg("--provider").arg(provider).arg("--").arg(program);
    command.args(["--seconds", "2.5", "--max", "1MiB", "--watchdog", "60"]);
    let stdout = succeeds(&command.output().unwrap());
    assert!(stdout.contains("4 ranks") && stdout.contains("every byte right"), "{stdout}");
    assert!(stdout.contains(mpi.library), "not on {}: {stdout}", mpi.library);
    // Both nodes used Rerail, and saw what happened: otherwise another transport did the work.
    let told = fs::read_to_string(&events).unwrap();
    fs::remove_file(&events).unwrap();
    for host in ["n0", "n1"] {
        for name in ["path_up", "path_down"] {
            let lines = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            let mut of_host = lines.filter(|event| event["host"] == host);
            assert!(of_host.any(|event| event["event"] == name), "no {name} from {host}: {told}");
        }
    }
}

/// Every link of a leaf goes dark for a while, one after the other, behind ports that stay up: each connection and each direction of datagrams is led over
/// one of them, so each is hit once at least, and the only path goes on by other routes.
fn leaves_dark_routes(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("routes");
    let links: Vec<String> = (0..4)
        .map(|n| {
            let at = 0.7 + 0.8 * f64::from(n);
            format!("{at:.1}s cut rail0/leaf0-spine{n} dark; {:.1}s heal rail0", at + 0.5)
        })
        .collect();
    let fabric = ["--rails", "1", "--fabric", "leaf-spine:2x4,1gbit", "-n", "2", "--ppn", "1"];
    let mut command = lab_on(mpi, &fabric);
    command.args(["--schedule-on-start", "--schedule", &links.join("; "), "--events"]).arg(&events);
    command.arg("--provider").arg(provider).arg("--").arg(program);
    command.args(["--seconds", "4.5", "--max", "1MiB", "--watchdog", "60"]);
    let stdout = succeeds(&command.output().unwrap());
    assert!(stdout.contains("2 ranks") && stdout.contains("every byte right"), "{stdout}");
    let told = fs::read_to_string(&events).unwrap();
    fs::remove_file(&events).unwrap();
    let names: Vec<String> = told
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| event["event"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.iter().any(|name| name == "datagrams_led"), "no route was left: {told}");
    assert!(
        names.iter().all(|name| name != "path_down" && name != "partition"),
        "a path was given up: {told}"
    );
}

/// One spine after the other has a tenth of its rate for a while, so every lane is on a crowded route once at least, beside lanes that are not: it
/// leaves, and the path goes on.
fn leaves_crowded_routes(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("crowded");
    let spines: Vec<String> = (0..4)
        .map(|n| {
            let at = 0.5 + 1.5 * f64::from(n);
            format!("{at:.1}s shape rail0/spine{n} 20mbit; {:.1}s shape rail0/spine{n} 200mbit", at + 1.5)
        })
        .collect();
    let fabric = ["--rails", "1", "--fabric", "leaf-spine:2x4,200mbit", "-n", "2", "--ppn", "1"];
    let mut command = lab_on(mpi, &fabric);
    command.args(["--schedule-on-start", "--schedule", &spines.join("; "), "--events"]).arg(&events);
    command.args(["--env", "FI_RERAIL_LANES=4", "--provider"]).arg(provider);
    command.arg("--").arg(program.with_file_name("stream"));
    command.args(["--seconds", "7", "--size", "1MiB", "--window", "16"]);
    let stdout = succeeds(&command.output().unwrap());
    assert!(stdout.contains("every byte right"), "{stdout}");
    let told = fs::read_to_string(&events).unwrap();
    fs::remove_file(&events).unwrap();
    let read = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let of = |name: &str| told.lines().map(read).filter(|event| event["event"] == name).collect::<Vec<_>>();
    let moved = of("lane_moved");
    assert!(!moved.is_empty(), "no lane left a crowded route: {told}");
    for event in moved {
        let made = ["before_bytes_s", "after_bytes_s"].map(|name| event[name].as_u64());
        assert!(event["lane"].as_u64() < Some(4) && made.iter().all(|rate| *rate > Some(0)), "{event}");
    }
    assert!(of("path_down").is_empty(), "a path was given up: {told}");
}

/// Ports of 800 Mbit/s before four spines of 200: a path gets lanes without any setting. Where the port is the bottleneck lanes are
/// tried, and merged again.
fn gets_lanes_while_they_pay(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let behind = ["--rail", "800mbit", "--fabric", "leaf-spine:2x4,200mbit", "-n", "2", "--ppn", "1"];
    for (rails, pays) in [(&behind[..], true), (&["--rail", "400mbit", "-n", "2", "--ppn", "1"], false)] {
        let events = mpi.temporary("tried");
        let mut command = lab_on(mpi, rails);
        command.arg("--events").arg(&events).args(["--provider"]).arg(&provider);
        command.arg("--").arg(program.with_file_name("stream"));
        command.args(["--seconds", "5", "--size", "1MiB", "--window", "16"]);
        let stdout = succeeds(&command.output().unwrap());
        assert!(stdout.contains("every byte right"), "{stdout}");
        let told = fs::read_to_string(&events).unwrap();
        fs::remove_file(&events).unwrap();
        let read = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let of =
            |name: &str| told.lines().map(read).filter(|event| event["event"] == name).collect::<Vec<_>>();
        let made = |event: &serde_json::Value| {
            ["before_bytes_s", "after_bytes_s"].map(|name| event[name].as_f64().unwrap_or_default())
        };
        let added: Vec<[f64; 2]> = of("lane_added").iter().map(made).collect();
        if pays {
            assert!(!added.is_empty(), "no lane was added: {told}");
            assert!(added.iter().all(|[before, after]| after > before), "{told}");
        } else {
            assert!(!of("lane_merged").is_empty(), "no lane was tried: {told}");
        }
        assert!(of("path_down").is_empty(), "a path was given up: {told}");
    }
}

/// Every rank gets the user's variables as they are, and the exit code comes back.
fn hands_on(mpi: &Mpi) {
    let Some((_, provider)) = setup(mpi) else { return };
    let script = "echo \"$(hostname) $WORDS $RERAIL_NODES\"; test \"$FI_PROVIDER\" = rerail";
    let mut command = lab_on(mpi, &["--env", "WORDS=a 'b';c,d=$e"]);
    command.arg("--provider").arg(&provider).args(["--", "sh", "-c", script]);
    let stdout = succeeds(&command.output().unwrap());
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["n0 a 'b';c,d=$e 2", "n1 a 'b';c,d=$e 2"]);
    // The rails are those of the lab, unless the user's environment names others.
    for (named, used) in [(None, "rail0,rail1"), (Some("rail1"), "rail1"), (Some(""), "rail0,rail1")] {
        let mut command = lab_on(mpi, &["-n", "1"]);
        command.env_remove("FI_RERAIL_RAILS").envs(named.map(|names| ("FI_RERAIL_RAILS", names)));
        command.arg("--provider").arg(&provider).args(["--", "sh", "-c", "echo $FI_RERAIL_RAILS"]);
        assert_eq!(succeeds(&command.output().unwrap()).trim(), used, "{named:?}");
    }
    // Intel's Hydra ends all ranks when one fails, and gives a code of that; so it starts one.
    let ranks = if mpi.option == "intel" { "1" } else { "2" };
    let mut command = lab_on(mpi, &["--no-provider", "-n", ranks]);
    let failed = command.args(["--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(7), "{}", text(&failed.stderr));
}

/// Without Rerail the same programs run on what the MPI brings.
fn runs_on_its_own_tcp(mpi: &Mpi) {
    let Some((program, _)) = setup(mpi) else { return };
    let latency = program.with_file_name("latency");
    for transport in [&["--no-provider"][..], &["--libfabric", "tcp"]] {
        let mut command = lab_on(mpi, transport);
        let script = "test \"$FI_PROVIDER\" != rerail && exec \"$0\" --iterations 2000";
        command.args(["--", "sh", "-c", script]).arg(&latency);
        let stdout = succeeds(&command.output().unwrap());
        assert!(stdout.contains("half round trip") && stdout.contains(mpi.library), "{stdout}");
    }
}

on_every_mpi! {
    mpich_survives_a_cut: survives_a_cut(0);
    open_mpi_5_survives_a_cut: survives_a_cut(1);
    intel_mpi_survives_a_cut: survives_a_cut(2);
    open_mpi_4_survives_a_cut: survives_a_cut(3);
    mpich_gets_lanes_while_they_pay: gets_lanes_while_they_pay(0);
    open_mpi_5_gets_lanes_while_they_pay: gets_lanes_while_they_pay(1);
    mpich_leaves_dark_routes: leaves_dark_routes(0);
    open_mpi_5_leaves_dark_routes: leaves_dark_routes(1);
    intel_mpi_leaves_dark_routes: leaves_dark_routes(2);
    open_mpi_4_leaves_dark_routes: leaves_dark_routes(3);
    mpich_leaves_crowded_routes: leaves_crowded_routes(0);
    open_mpi_5_leaves_crowded_routes: leaves_crowded_routes(1);
    mpich_hands_on_variables_and_the_exit_code: hands_on(0);
    open_mpi_5_hands_on_variables_and_the_exit_code: hands_on(1);
    intel_mpi_hands_on_variables_and_the_exit_code: hands_on(2);
    open_mpi_4_hands_on_variables_and_the_exit_code: hands_on(3);
    mpich_runs_on_its_own_tcp: runs_on_its_own_tcp(0);
    open_mpi_5_runs_on_its_own_tcp: runs_on_its_own_tcp(1);
    intel_mpi_runs_on_its_own_tcp: runs_on_its_own_tcp(2);
    open_mpi_4_runs_on_its_own_tcp: runs_on_its_own_tcp(3);
}

#[test]
fn a_launcher_of_another_mpi_is_refused_by_its_name() {
    let [mpich, open_mpi, ..] = mpis();
    if setup(&mpich).is_none() || setup(&open_mpi).is_none() {
        return;
    }
    for (option, prefix, name) in [
        ("intel", &mpich.prefix, "Intel MPI"),
        ("openmpi", &mpich.prefix, "Open MPI"),
        ("mpich", &open_mpi.prefix, "MPICH"),
    ] {
        let output = lab(option, &["--no-provider", "--mpi-prefix"])
            .arg(prefix)
            .args(["--", "true"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let stderr = text(&output.stderr);
        assert!(stderr.contains(&format!("is not the launcher of {name}")), "{stderr}");
    }
}
