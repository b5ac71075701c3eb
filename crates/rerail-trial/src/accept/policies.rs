//! Every policy under a real MPI program: each survives a cut, uses the rails it promises, and a user can move the traffic.

use super::data::RIGHT;
use super::{Campaign, provider_events};
use crate::lab::{Run, wait};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use xtask::workspace::rerail;

/// A policy and how it is run.
struct Case {
    policy: &'static str,
    /// The rest of its options.
    set: &'static [(&'static str, &'static str)],
    /// The rail that carries before the cut; `None`: both do.
    carries: Option<&'static str>,
}

const CASES: [Case; 6] = [
    Case { policy: "adaptive", set: &[], carries: None },
    Case { policy: "even", set: &[], carries: None },
    Case { policy: "weighted", set: &[("FI_RERAIL_WEIGHTS", "rail0=3,rail1=1")], carries: None },
    Case { policy: "round-robin", set: &[], carries: None },
    Case { policy: "binding", set: &[("FI_RERAIL_LOCAL_RANK", "1")], carries: Some("rail1") },
    Case {
        policy: "primary-standby",
        set: &[("FI_RERAIL_ALTERNATE", "rail0>rail1")],
        carries: Some("rail0"),
    },
];

/// The rail that carries is cut and repaired, once for each policy, each time in another way.
pub fn cuts(campaign: &mut Campaign) -> Result<()> {
    let seconds = campaign.by_scale("2.8", "4", "6");
    for (i, Case { policy, set, carries }) in CASES.into_iter().enumerate() {
        let program = campaign.program("stream");
        let size = ["64KiB", "300000", "1MiB"][i % 3];
        let mut run =
            campaign.new_run(policy, &[&program, "--seconds", seconds, "--size", size, "--baseline", "0.3"]);
        let rail = carries.unwrap_or(["rail0", "rail1"][i % 2]);
        let kind = super::KINDS[i % super::KINDS.len()];
        run = run.env("FI_RERAIL_POLICY", policy);
        for (name, value) in set {
            run = run.env(name, value);
        }
        run.schedule = format!("500ms cut {rail} {kind}; 2s heal {rail}");
        run.patience = Duration::from_secs(60);
        let ran = run.run()?;
        if !campaign.check_run(&format!("{policy}: {rail} goes {kind} and comes back"), &run, &ran, RIGHT)
            || !campaign.provider
        {
            continue;
        }
        let away = if rail == "rail0" { "rail1" } else { "rail0" };
        if kind == "reset" {
            // it breaks connections, and the path replaces them: nothing has to move
            continue;
        }
        let moved: Vec<String> = provider_events(&ran.events, "migrated", away)
            .filter(|e| e.text("from") == rail && e.text("cause") == "fault")
            .map(|e| e.text("host").to_owned())
            .collect();
        campaign.check(
            &format!("{policy}: the traffic of {rail} migrated to {away}, at both ends"),
            ["n0", "n1"].iter().all(|h| moved.iter().any(|m| m == h)),
            format!("events migrated from {moved:?}"),
        );
    }
    Ok(())
}

fn ask(arguments: &[&str], run: &Run) -> Result<Output> {
    let mut command = Command::new(rerail());
    command.args(arguments).arg("--dir").arg(sockets(run));
    command.output().context("could not start rerail")
}

fn sockets(run: &Run) -> PathBuf {
    run.dir.join("control")
}

/// While a program runs its user moves its traffic to the other rail, and back.
pub fn request(campaign: &mut Campaign) -> Result<()> {
    let what = "rerail migrate moves the traffic of a running program";
    if !campaign.has_events(what) {
        return Ok(());
    }
    let program = campaign.program("stream");
    let mut run = campaign.new_run("request", &[&program, "--seconds", "3", "--size", "256KiB"]);
    run = run.env("FI_RERAIL_POLICY", "primary-standby");
    let control = sockets(&run);
    run = run.env("FI_RERAIL_CONTROL", control.display());
    let begun = Instant::now();
    let mut child = run.start()?;
    // the processes listen as soon as they are started; their carriers are armed a moment later
    let armed = |text: &str| text.matches("state=ARMED").count() >= 2;
    let mut seen = String::new();
    while !armed(&seen) && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
        seen = String::from_utf8_lossy(&ask(&["paths"], &run)?.stdout).into_owned();
    }
    // one line for each process names its socket
    let socket = |line: &str| Some(PathBuf::from(line.strip_prefix("process ")?.split_once(" socket=")?.1));
    let files: Vec<PathBuf> = seen.lines().filter_map(socket).collect();
    let mut said = Vec::new();
    for file in &files {
        for words in
            [&["--from", "rail0", "--to", "rail1"][..], &["--from", "rail0", "--to", "rail1"], &["--home"]]
        {
            let mut command = Command::new(rerail());
            command.arg("migrate").args(words).arg("--socket").arg(file);
            let output = command.output().context("could not start rerail")?;
            said.push((output.status.code(), String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
    }
    let (code, hung) = wait(&mut child, Duration::from_secs(60))?;
    let ran = run.collect(code, hung, begun.elapsed());
    campaign.check_run("a program runs while its traffic is moved", &run, &ran, RIGHT);
    let refused = |why: &str| why.contains("rail \"rail0\" carries nothing now");
    let holds = files.len() == 2
        && said
            .chunks(3)
            .all(|s| s[0].0 == Some(0) && s[1].0 == Some(1) && refused(&s[1].1) && s[2].0 == Some(0));
    campaign.check(
        "rerail migrate: done, then refused with the reason, then taken back",
        holds,
        format!("{} sockets, answers {said:?}; paths said {seen:?}", files.len()),
    );
    let moved = |cause: &str| {
        let all = ran.events.iter().filter(|e| e.name() == "migrated" && e.text("cause") == cause);
        all.map(|e| e.text("host").to_owned()).collect::<Vec<_>>()
    };
    let (there, back) = (moved("request"), moved("return"));
    let both = |hosts: &[String]| ["n0", "n1"].iter().all(|h| hosts.iter().any(|x| x == h));
    campaign.check(
        what,
        both(&there) && both(&back),
        format!("events migrated by request {there:?}, back {back:?}"),
    );
    let left = std::fs::read_dir(sockets(&run)).map(|d| d.flatten().count()).unwrap_or(0);
    campaign.check("no control socket is left behind", left == 0, format!("{left} files"));
    Ok(())
}
