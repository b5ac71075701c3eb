//! This program in a guest: the lab boots a node, which has this program as its process 1 too.

use rerail_lab::guest::{DIR_ENV, agent_main};
use rerail_lab::launch::{Job, Launcher};
use rerail_lab::rate::Rate;
use rerail_lab::rdma::Rdma;
use rerail_lab::schedule::Schedule;
use rerail_lab::session::{Session, report};
use rerail_lab::topology::{RailPlan, Topology};
use rerail_lab::{EXIT_LAB_FAILED, enter_guest};
use std::env::{args_os, current_exe};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Time for the whole suite in a guest, s. It takes half a minute on an idle machine.
const GUEST_S_MAX: u32 = 900;
/// Behind it the kind of device: makes the lab.
const LAB: &str = "--lab";

/// What this process is when it is not the suite: the lab's own words are those of the command `rerail`.
pub fn role() -> Option<ExitCode> {
    let words: Vec<OsString> = args_os().skip(1).collect();
    let text: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let result = match text[..] {
        [LAB, kind, ..] => boot(kind.parse().expect("a kind of device"), words[2..].to_vec()),
        ["lab-node", number] => agent_main(number.parse().expect("the number of a node")),
        ["lab-enter", node, "--", ..] => enter_guest(node, &words[3..]),
        _ => return None,
    };
    Some(ExitCode::from(result.unwrap_or_else(|error| report(&error)) as u8))
}

/// Runs this program in a guest.
fn boot(kind: Rdma, arguments: Vec<OsString>) -> Result<i32, rerail_lab::LabError> {
    let rails = vec![RailPlan::veth(Rate::Unshaped); 2];
    let mut program = vec![current_exe().expect("its own file").into_os_string()];
    program.extend(arguments);
    let session = Session {
        topology: Topology { nodes: 1, rails, congctl: None, rdma: Some(kind), fabric: None },
        name: Some(format!("conformance-{}", std::process::id())),
        job: Some(Job { launcher: Launcher::EachNode, program, env: vec![] }),
        schedule: Schedule::default(),
        schedule_on_start: false,
        events: None,
        log: None,
        quiet: true,
        detach: false,
        pin: false,
    };
    session.run()
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout")
}

/// In a guest for each kind of device. The error says why there is none.
pub fn run_in_guests(wanted: &[String], rounds: u64) -> Result<ExitCode, String> {
    let kit = project().join(".rerail/guest");
    let run = |kind: Rdma| {
        // A guest that hangs as a whole must not hang the tests.
        let mut command = Command::new("timeout");
        command.arg(GUEST_S_MAX.to_string()).arg(current_exe().expect("its own file"));
        command.args([LAB, kind.name()]).args(wanted).arg(format!("--rounds={rounds}"));
        command.env(DIR_ENV, &kit).current_dir(project());
        command.status().map_err(|why| format!("timeout: {why}"))
    };
    let status = run(Rdma::Roce)?;
    if status.code() == Some(EXIT_LAB_FAILED) {
        return Err("the reason is above".into());
    }
    if !status.success() {
        eprintln!("over soft-RoCE: {status}");
        return Ok(ExitCode::FAILURE);
    }
    // Debian's kernel has no soft-iWARP, and building it takes minutes: this test does not.
    if !kit.join("kernel/lib/modules/siw.ko").exists() {
        eprintln!("SKIPPED: iWARP: there is no siw.ko; `rerail lab up --rdma iwarp` makes it");
        println!("test result: ok. 0 passed; 0 failed; 1 ignored");
        return Ok(ExitCode::SUCCESS);
    }
    let status = run(Rdma::Iwarp)?;
    if !status.success() {
        eprintln!("over soft-iWARP: {status}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
