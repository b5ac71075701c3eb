//! `rerail run`, `rerail env` and `rerail info` as a user meets them, the first two with every MPI.
//!
//! The commands are run inside a lab, where the MPI's launcher reaches the other node by what stands in for `ssh` there. Like
//! ssh that hands on no variables, so a variable that `rerail run` forgot is missed by the ranks of the other node.

#[macro_use]
mod common;

use common::{Mpi, RERAIL, lab, mpis, setup, succeeds, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The stand-in for ssh, inside a lab.
const WRAPPER: &str = "/dev/shm/rerail-lab/ssh";

/// What a user types behind the launcher for two ranks, one on each node.
fn placement(mpi: &Mpi) -> String {
    match (mpi.option, mpi.programs) {
        ("mpich", _) => {
            format!("-launcher ssh -launcher-exec {WRAPPER} -iface mgmt -hosts n0,n1 -ppn 1 -n 2")
        }
        ("intel", _) => {
            format!("-bootstrap ssh -bootstrap-exec {WRAPPER} -iface mgmt -hosts n0,n1 -ppn 1 -n 2")
        }
        (_, "openmpi4") => format!(
            "--mca plm_rsh_agent {WRAPPER} --mca oob_tcp_if_include mgmt --mca orte_tmpdir_base /dev/shm --host n0:1,n1:1 -n 2"
        ),
        _ => format!(
            "--prtemca plm_ssh_agent {WRAPPER} --prtemca prte_if_include mgmt --prtemca prte_tmpdir_base /dev/shm --host n0:1,n1:1 -n 2"
        ),
    }
}

/// Runs a script in node 0 of a lab, with PATH leading to the MPI, `rerail` and `$PLACE` set.
fn in_lab(mpi: &Mpi, env: &[(&str, &str)], script: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", mpi.prefix.join("bin").display());
    let mut command = lab("none", &["--rails", "2", "--env"]);
    command.arg(format!("PATH={path}"));
    for (name, value) in env {
        command.arg("--env").arg(format!("{name}={value}"));
    }
    // As root, which Open MPI refuses otherwise; and Intel's launcher would put both nodes on the same core.
    for settings in ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "I_MPI_PIN=0"] {
        command.args(["--env", settings]);
    }
    command.args(["--env", &format!("PLACE={}", placement(mpi)), "--env", &format!("RERAIL={RERAIL}")]);
    command.args(["--", "sh", "-c", &format!("test $RERAIL_NODE = 0 || exit 0; {script}")]);
    command.output().unwrap()
}

/// The hosts from which Rerail reported a path.
fn hosts_with_paths(events: &Path) -> Vec<String> {
    let told = fs::read_to_string(events).unwrap_or_default();
    let _ = fs::remove_file(events);
    let events = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut hosts: Vec<String> = events
        .filter(|event| event["event"] == "path_up")
        .map(|event| event["host"].as_str().unwrap().to_owned())
        .collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// The user had chosen another provider; `rerail run` takes Rerail, on both nodes, and says what it replaced.
fn uses_rerail(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("run-events");
    let script = format!(
        "$RERAIL run --provider {} -- mpiexec $PLACE {} --rounds 40 --max 64KiB --watchdog 60",
        provider.display(),
        program.display()
    );
    let env = [
        ("FI_PROVIDER", "tcp"),
        ("FI_RERAIL_RAILS", "rail0,rail1"),
        ("FI_RERAIL_EVENTS", events.to_str().unwrap()),
    ];
    let output = in_lab(mpi, &env, &script);
    let stdout = succeeds(&output);
    assert!(stdout.contains("every byte right") && stdout.contains(mpi.library), "{stdout}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("set FI_PROVIDER=rerail"), "{stderr}");
    assert!(stderr.contains("FI_PROVIDER was `tcp`"), "{stderr}");
    assert_eq!(hosts_with_paths(&events), ["n0", "n1"], "{stderr}");
}

/// The exit code is the launcher's own.
fn passes_the_exit_code(mpi: &Mpi) {
    let Some((_, provider)) = setup(mpi) else { return };
    let script = format!("$RERAIL run -q --provider {} mpiexec $PLACE sh -c 'exit 7'", provider.display());
    let output = in_lab(mpi, &[], &script);
    match mpi.option {
        // Its launcher ends all ranks when one fails, and may give a code of that instead.
        "intel" => assert!(!output.status.success()),
        _ => assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr)),
    }
    assert!(!text(&output.stderr).contains("rerail run:"), "{}", text(&output.stderr));
}

/// A script takes the settings from `rerail env` and starts the launcher itself.
fn env_is_enough(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = mpi.temporary("env-events");
    let hand_on = match mpi.option {
        "openmpi" => "-x FI_PROVIDER -x FI_PROVIDER_PATH -x FI_RERAIL_RAILS -x FI_RERAIL_EVENTS",
        _ => "",
    };
    let script = format!(
        "eval \"$($RERAIL env --mpi {} --provider {})\" && exec mpiexec {hand_on} $PLACE {} --rounds 40 --max 64KiB --watchdog 60",
        mpi.option,
        provider.display(),
        program.display()
    );
    let env = [("FI_RERAIL_RAILS", "rail0,rail1"), ("FI_RERAIL_EVENTS", events.to_str().unwrap())];
    let stdout = succeeds(&in_lab(mpi, &env, &script));
    assert!(stdout.contains("every byte right") && stdout.contains(mpi.library), "{stdout}");
    assert_eq!(hosts_with_paths(&events), ["n0", "n1"]);
}

on_every_mpi! {
    run_puts_mpich_on_rerail: uses_rerail(0);
    run_puts_open_mpi_5_on_rerail: uses_rerail(1);
    run_puts_intel_mpi_on_rerail: uses_rerail(2);
    run_puts_open_mpi_4_on_rerail: uses_rerail(3);
    run_passes_the_exit_code_of_mpich: passes_the_exit_code(0);
    run_passes_the_exit_code_of_open_mpi_5: passes_the_exit_code(1);
    run_passes_the_failure_of_intel_mpi: passes_the_exit_code(2);
    run_passes_the_exit_code_of_open_mpi_4: passes_the_exit_code(3);
    env_is_enough_for_mpich: env_is_enough(0);
    env_is_enough_for_open_mpi_5: env_is_enough(1);
    env_is_enough_for_intel_mpi: env_is_enough(2);
    env_is_enough_for_open_mpi_4: env_is_enough(3);
}

/// Hydra can be told to hand nothing on; then Rerail's settings go by its own argument.
#[test]
fn run_reaches_the_ranks_of_a_launcher_that_hands_nothing_on() {
    for mpi in [&mpis()[0], &mpis()[2]] {
        let Some((_, provider)) = setup(mpi) else { return };
        let script = format!(
            "$RERAIL run -q --provider {} -- mpiexec -genvnone $PLACE sh -c 'echo $FI_PROVIDER $WORDS.'",
            provider.display()
        );
        let stdout = succeeds(&in_lab(mpi, &[("WORDS", "held-back")], &script));
        assert!(
            stdout.lines().count() == 2 && stdout.lines().all(|line| line.starts_with("rerail ")),
            "{stdout}"
        );
        // Ranks beside the launcher may have its environment all the same; those of the other node have not.
        assert!(stdout.contains("rerail .\n"), "nothing was held back: {stdout}");
    }
}

fn rerail(words: &[&str]) -> Command {
    let mut command = Command::new(RERAIL);
    command.args(words);
    // Whatever MPI the machine has, these tests bring their own.
    command.env("PATH", "/usr/bin:/bin");
    command
}

/// A directory with programs that say what they are told to.
fn fake_launchers(name: &str, programs: &[(&str, &str)]) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let dir =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id())).join("bin");
    fs::create_dir_all(&dir).unwrap();
    for (program, says) in programs {
        let path = dir.join(program);
        fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(dir.join("librerail-fi.so"), b"\x7fELF\0fi_prov_ini\0").unwrap();
    dir
}

#[test]
fn what_cannot_be_run_is_refused_by_a_sentence_that_says_what_to_do() {
    let dir = fake_launchers(
        "refused",
        &[
            ("mpiexec", "HYDRA build details:\n    Version: 4.0.2\n"),
            ("mpichversion", "MPICH Version: 4.0.2\nMPICH Device: ch3:nemesis"),
        ],
    );
    let open = fake_launchers("refused-open", &[("mpirun", "mpirun (Open MPI) 5.0.3"), ("ompi_info", "")]);
    let open_mpirun = open.join("mpirun").to_string_lossy().into_owned();
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let provider = dir.to_string_lossy().into_owned();
    let missing = "there is no such program: load your MPI's module";
    for (code, words, sentence) in [
        (2, vec!["srun".to_string(), "./a".into()], "name it with --mpi mpich, openmpi or intel"),
        (2, vec!["true".into()], "give mpiexec or mpirun as the command"),
        (127, vec!["no-such-launcher".into(), "./a".into()], missing),
        (127, vec!["no/such/mpirun".into(), "./a".into()], missing),
        (2, vec![at("mpiexec"), "./a".into()], "built without libfabric (its device is ch3:nemesis)"),
        (2, vec![open_mpirun, "./a".into()], "built without libfabric (it has no `mtl ofi`)"),
        (
            2,
            vec!["--mpi".into(), "intel".into(), at("mpiexec"), "./a".into()],
            "is the launcher of MPICH 4.0.2",
        ),
    ] {
        let mut command = rerail(&["run", "--provider", &provider]);
        let output = command.args(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(sentence), "{words:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let missing =
        rerail(&["run", "--mpi", "mpich", "--provider", "/no/such", "--", "true"]).output().unwrap();
    assert!(text(&missing.stderr).contains("there is no provider at `/no/such`"));
    // With --mpi any command will do; it is not asked what it is.
    let run = rerail(&["run", "--mpi", "openmpi", "--provider", &provider, "printenv", "OMPI_MCA_mtl"]);
    let output = { run }.output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "ofi\n".into()));
    let gone =
        rerail(&["run", "--mpi", "mpich", "--provider", &provider, "no-such-program"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(127));
    for dir in [dir, open] {
        fs::remove_dir_all(dir.parent().unwrap()).unwrap();
    }
}

#[test]
fn an_option_of_the_users_that_wins_over_rerail_is_named() {
    let dir = fake_launchers("wins", &[("mpirun", "mpirun (Open MPI) 5.0.11")]);
    let launcher = dir.join("mpirun").to_string_lossy().into_owned();
    let provider = dir.to_string_lossy().into_owned();
    let words = ["run", "--provider", &provider, "--", &launcher, "--mca", "pml", "ob1", "./a"];
    let output = rerail(&words).output().unwrap();
    assert!(output.status.success());
    let stderr = text(&output.stderr);
    assert!(stderr.contains("`--mca pml ob1` in the command wins over OMPI_MCA_pml=cm"), "{stderr}");
    fs::remove_dir_all(dir.parent().unwrap()).unwrap();
}

#[test]
fn info_shows_which_interfaces_are_rails_and_why_not() {
    let Some((_, provider)) = setup(&mpis()[0]) else { return };
    let info = |env: &[&str]| -> serde_json::Value {
        let mut command = lab("none", &["--nodes", "1", "--rail", "1gbit", "--rail", "unshaped"]);
        for variable in env {
            command.args(["--env", variable]);
        }
        command.args(["--", RERAIL, "info", "--json", "--provider"]).arg(&provider);
        serde_json::from_str(&succeeds(&command.output().unwrap())).unwrap()
    };
    let of = |info: &serde_json::Value, name: &str| -> serde_json::Value {
        let all = info["interfaces"].as_array().unwrap();
        all.iter().find(|i| i["name"] == name).unwrap_or_else(|| panic!("no {name}: {info}")).clone()
    };
    let all = info(&[]);
    assert_eq!(all["host"], "n0");
    let rail0 = of(&all, "rail0");
    assert_eq!((&rail0["rail"], &rail0["kind"], &rail0["up"]), (&true.into(), &"veth".into(), &true.into()));
    assert_eq!(rail0["rail_address"], "10.1.0.1");
    assert!(rail0["addresses"].as_array().unwrap().contains(&"10.1.0.1/24".into()));
    assert_eq!(rail0["mtu"], 1500);
    assert!(of(&all, "lo")["why_not"].as_str().unwrap().contains("loopback"));
    assert_eq!(all["provider"], provider.canonicalize().unwrap().to_str().unwrap());

    let chosen = info(&["FI_RERAIL_RAILS=rail1,rail0"]);
    assert_eq!(chosen["rails"], serde_json::json!(["rail1", "rail0"]));
    assert!(of(&chosen, "mgmt")["why_not"].as_str().unwrap().contains("FI_RERAIL_RAILS"));
    assert_eq!(chosen["options"]["FI_RERAIL_RAILS"], "rail1,rail0");

    let table = lab("none", &["--nodes", "1"])
        .args(["--env", "FI_RERAIL_HEDGE=7", "--", RERAIL, "info", "--provider"])
        .arg(&provider)
        .output()
        .unwrap();
    let table = succeeds(&table);
    let line = table.lines().find(|line| line.starts_with("rail1")).unwrap();
    assert!(
        line.contains("veth") && line.contains("10.2.0.1/24") && line.ends_with("yes, 10.2.0.1"),
        "{table}"
    );
    assert!(table.contains("set here: FI_RERAIL_HEDGE=7"), "{table}");
}

#[test]
fn info_tells_what_is_wrong_by_its_exit_code() {
    let dir = fake_launchers("info", &[]);
    let provider = dir.to_string_lossy().into_owned();
    let with = |variable: &str, value: &str| {
        rerail(&["info", "--provider", &provider]).env(variable, value).output().unwrap()
    };
    let wrong = with("FI_RERAIL_HEDGE", "much");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("FI_RERAIL_HEDGE=\"much\" is not valid"));
    let none = with("FI_RERAIL_RAILS", "nosuch0");
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stdout).contains("no rails: FI_RERAIL_RAILS names the interface \"nosuch0\""));
    let lost = rerail(&["info", "--provider", "/no/such"]).output().unwrap();
    assert_eq!(lost.status.code(), Some(1));
    assert!(text(&lost.stdout).contains("no provider: there is no provider at `/no/such`"));
    fs::remove_dir_all(dir.parent().unwrap()).unwrap();
}
