//! `rerail launch`: on this host with plain programs, and in the lab with real MPIs on several nodes.

#[path = "common/mod.rs"]
#[macro_use]
mod common;

use common::*;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

fn launch(arguments: &[&str]) -> Command {
    let mut command = Command::new(RERAIL);
    command.args(["launch", "--no-provider"]).args(arguments).stdin(Stdio::null());
    command
}

/// The program of the ranks is a line of the shell.
fn shell(arguments: &[&str], script: &str) -> Output {
    launch(arguments).args(["--", "sh", "-c", script]).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

#[test]
fn ranks_know_their_place_and_lines_say_whose_they_are() {
    let output =
        shell(&["-n", "3", "--prefix"], "echo $RERAIL_RANK of $PMI_SIZE; printf 'no end'; echo wrong >&2");
    let out = succeeds(&output);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let wanted: Vec<String> =
        (0..3).flat_map(|n| [format!("[{n}] {n} of 3"), format!("[{n}] no end")]).collect();
    assert_eq!(lines, wanted);
    assert_eq!(text(&output.stderr).matches("] wrong").count(), 3);
}

#[test]
fn variables_and_the_directory_go_along() {
    let mut command = launch(&["-n", "1", "--env", "ADDED=a b=c", "--env", "TAKEN", "--wdir", "/usr"]);
    command.env("TAKEN", "x").env("GIVEN", "y").args([
        "--",
        "sh",
        "-c",
        "echo \"$ADDED/$TAKEN/$GIVEN\"; pwd; ls /proc/self/fd | wc -w",
    ]);
    // three standard streams, the pair to the launcher, and what ls has open
    assert_eq!(succeeds(&command.output().unwrap()), "a b=c//y\n/usr\n5\n");
}

#[test]
fn rank_0_reads_the_input_and_much_output_comes_whole() {
    let mut child = launch(&["-n", "2"])
        .args(["--", "sh", "-c", "if [ $RERAIL_RANK = 0 ]; then cat; else head -c 20000000 /dev/zero; fi"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&vec![b'x'; 3_000_000]).unwrap());
    // more than agents keep: they wait for the reader
    std::thread::sleep(Duration::from_millis(1500));
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    let count = |byte| all.iter().filter(|b| **b == byte).count();
    assert_eq!((count(b'x'), count(0), all.len()), (3_000_000, 20_000_000, 23_000_000));
}

#[test]
fn the_first_rank_that_fails_ends_the_job_with_its_code() {
    let fails =
        |how: &str| shell(&["-n", "3"], &format!("if [ $RERAIL_RANK = 1 ]; then {how}; fi; exec sleep 60"));
    for (how, wanted, word) in
        [("exit 7", 7, "exit code 7"), ("kill -9 $$", 137, "SIGKILL"), ("kill -SEGV $$", 139, "SIGSEGV")]
    {
        let output = fails(how);
        assert_eq!(code(&output), wanted, "{how}");
        let said = text(&output.stderr);
        assert!(
            said.contains("rank 1 on localhost") && said.contains(word) && said.lines().count() == 1,
            "{how}: {said}"
        );
    }
    let output =
        shell(&["-n", "3", "--keep-going"], "if [ $RERAIL_RANK = 1 ]; then exit 7; fi; sleep 1; echo done");
    assert_eq!((code(&output), text(&output.stdout).as_str()), (7, "done\ndone\n"));
}

#[test]
fn a_rank_that_aborts_or_leaves_without_a_word_ends_the_job() {
    let says = |words: &str| {
        let script =
            format!("if [ $RERAIL_RANK = 1 ]; then echo '{words}' >&$PMI_FD; exit 0; fi; exec sleep 60");
        launch(&["-n", "2", "--", "bash", "-c", &script]).output().unwrap()
    };
    for (words, wanted, word) in [
        ("cmd=abort exitcode=9", 9, "rank 1 on localhost aborts the job with exit code 9"),
        (
            "cmd=init pmi_version=1 pmi_subversion=1",
            1,
            "rank 1 on localhost ended before its part of the job",
        ),
        ("GET / HTTP/1.1", 1, "rank 1 wrote no request to its launcher"),
    ] {
        let output = says(words);
        assert_eq!(code(&output), wanted, "{words}");
        assert!(text(&output.stderr).contains(word), "{words}: {}", text(&output.stderr));
    }
    // what is put is there after the barrier, at every rank
    let script = "read_line() { read -r line <&$PMI_FD; }; say() { echo \"$1\" >&$PMI_FD; read_line; }
        say \"cmd=put kvsname=x key=k$PMI_RANK value=v $PMI_RANK\"; say cmd=barrier_in
        say 'cmd=get kvsname=x key=k2'; echo \"$line\"; say cmd=finalize";
    let output = launch(&["-n", "3", "--", "bash", "-c", script]).output().unwrap();
    assert_eq!(succeeds(&output), "cmd=get_result rc=0 value=v 2\n".repeat(3));
}

#[test]
fn what_cannot_be_started_is_said_in_one_sentence() {
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hosts-{}", std::process::id()));
    fs::write(&file, "localhost slots=2\n").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, wanted, word) in [
        (&["-n", "2", "--", "nosuchprogram"][..], 127, "there is no such program"),
        (&["-n", "1", "--", "/etc/passwd"], 126, "Permission denied"),
        (&["-n", "1", "--wdir", "/no/such", "--", "true"], 127, "no directory `/no/such`"),
        (&["-n", "3", "--hostfile", file, "--", "true"], 2, "1 host takes 2"),
        (&["-n", "1", "--hostfile", "/no/such", "--", "true"], 2, "cannot be read"),
        (&["-n", "0", "--", "true"], 2, "1 to"),
        (&["-n", "1", "--hosts", "a b", "--", "true"], 2, "no name of a host"),
        (&["-n", "1", "--env", "=x", "--", "true"], 2, "NAME=VALUE"),
        (&["-n", "1", "--hosts", "far", "--rsh", "nosuchshell", "--", "true"], 125, "no `nosuchshell`"),
        (
            &["-n", "1", "--hosts", "far", "--rsh", "sh -c false", "--", "true"],
            125,
            "on far: the remote shell ended",
        ),
    ] {
        let output = launch(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(code(&output), wanted, "{arguments:?}: {said}");
        assert!(said.contains(word) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    fs::remove_file(file).unwrap();
}

#[test]
fn a_signal_of_the_launcher_reaches_the_ranks() {
    let script = "trap 'echo interrupted; exit 3' INT; echo up; while :; do sleep 0.1; done";
    let mut child = launch(&["-n", "2", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!([out.next(), out.next()], [Some("up".into()), Some("up".into())]);
    kill(child.id(), "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(out.collect::<Vec<_>>(), ["interrupted", "interrupted"]);
}

/// Processes with a mark in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let env = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        env.split(|b| *b == 0).any(|variable| variable == format!("MARK={mark}").as_bytes())
    })
    .collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether agents can make a process-id namespace here, by another program that makes one.
fn has_namespaces() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let made = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
        made.is_ok_and(|output| output.status.success())
    });
    *HAS
}

/// The same for a test that has nothing to do without one, which then says so.
fn needs_namespaces() -> bool {
    if !has_namespaces() {
        skip("no process-id namespace can be made: unshare --pid --fork --mount-proc");
    }
    has_namespaces()
}

/// A job of four ranks, which are up; each has started one more process that has left its session, and both ignore what can be ignored.
fn stubborn(mark: &str) -> Child {
    let script = "trap '' TERM INT HUP; setsid sh -c \"trap '' TERM INT HUP; while :; do sleep 1; done\" & while :; do sleep 1; done";
    let mut command = launch(&["-n", "4", "--grace", "1"]);
    command
        .env("MARK", mark)
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let child = command.spawn().unwrap();
    // launcher, guard, perhaps process 1 of a namespace, agent, and for each rank two shells and two sleeps
    let above = 3 + usize::from(has_namespaces());
    eventually("the ranks run", || marked(mark).len() >= above + 4 * 4);
    child
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// The agent's processes: those of the job that run this command and are not the launcher. The guard comes first.
fn agents(mark: &str, launcher: u32) -> Vec<u32> {
    let is_ours =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.to_str() == Some(RERAIL));
    let mut all: Vec<u32> = marked(mark).into_iter().filter(|pid| *pid != launcher && is_ours(pid)).collect();
    all.sort_unstable();
    all
}

#[test]
fn nothing_is_left_however_a_job_ends() {
    for (n, (what, signals)) in [
        ("ctrl-c", &["-INT"][..]),
        ("ctrl-c twice", &["-INT", "-INT"]),
        ("a closed terminal", &["-HUP"]),
        ("a polite end", &["-TERM"]),
        ("a killed launcher", &["-KILL"]),
    ]
    .into_iter()
    .enumerate()
    {
        let mark = format!("left-{}-{n}", std::process::id());
        let mut child = stubborn(&mark);
        for signal in signals {
            kill(child.id(), signal);
            std::thread::sleep(Duration::from_millis(200));
        }
        child.wait().unwrap();
        eventually(&format!("nothing is left after {what}"), || marked(&mark).is_empty());
    }
    // a guard, perhaps process 1 of a namespace, and an agent
    let processes = 2 + usize::from(has_namespaces());
    for of in 0..processes {
        let mark = format!("left-{}-agent{of}", std::process::id());
        let mut child = stubborn(&mark);
        let all = agents(&mark, child.id());
        assert_eq!(all.len(), processes);
        kill(all[of], "-KILL");
        // a guard that is killed takes the agent with it, which ends the ranks first
        let mut ended = None;
        eventually("the launcher ends", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        let code = ended.unwrap().code();
        assert!([Some(125), Some(137)].contains(&code), "{code:?}");
        eventually("nothing is left after a killed agent or guard", || marked(&mark).is_empty());
    }
}

/// What ranks print of their namespace and of what they see of themselves.
const SEES_ITSELF: &str =
    "readlink /proc/self/ns/pid; read -r own rest < /proc/self/stat; [ $own = $$ ] && echo own";

fn own_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap().to_owned()
}

#[test]
fn ranks_of_a_host_share_a_process_id_namespace_and_bury_their_orphans_in_it() {
    if !needs_namespaces() {
        return;
    }
    let out = succeeds(&shell(&["-n", "2"], SEES_ITSELF));
    let namespaces: Vec<&str> = out.lines().filter(|line| line.starts_with("pid:")).collect();
    assert!(namespaces.len() == 2 && namespaces[0] == namespaces[1], "they share it: {out}");
    assert_ne!(namespaces[0], own_namespace());
    assert_eq!(out.matches("own\n").count(), 2, "/proc is that of the namespace: {out}");
    let off = succeeds(&shell(&["-n", "1", "--pid-namespace", "off"], SEES_ITSELF));
    assert_eq!(off, format!("{}\nown\n", own_namespace()));
    // killed, it stays as a zombie until a parent waits for it; not longer than 30 s
    let script = "(sh -c 'echo $$; kill -9 $$' &) | { read -r orphan; n=0
        while [ -e /proc/$orphan ] && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.05; done
        [ -e /proc/$orphan ] || echo buried; }; true";
    assert_eq!(succeeds(&shell(&["-n", "1"], script)), "buried\n");
}

#[test]
fn an_agent_without_the_right_to_a_namespace_starts_its_ranks_as_before() {
    if !needs_namespaces() {
        return;
    }
    // another user
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", RERAIL, "launch", "--no-provider", "-n", "2"]);
    command.args(["--wdir", "/", "--", "sh", "-c", SEES_ITSELF]).stdin(Stdio::null());
    let output = command.output().unwrap();
    let out = succeeds(&output);
    assert_eq!(out.matches(&own_namespace()).count(), 2, "{out}");
    assert_eq!(text(&output.stderr), "");
    // a mount on /proc that a /proc of another namespace has no place for
    let script = format!(
        "mount --bind /etc/hostname /proc/$$/comm && {RERAIL} launch --no-provider -n 2 -- sh -c '{SEES_ITSELF}; exit 3'"
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(code(&output), 3, "{}", text(&output.stderr));
    assert!(out.contains(&own_namespace()), "{out}");
}

#[test]
fn what_a_host_has_mounted_on_its_proc_is_there_in_the_namespace() {
    if !needs_namespaces() {
        return;
    }
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("boot {}", std::process::id()));
    fs::write(&file, "another machine\n").unwrap();
    let file = file.to_str().unwrap();
    let boot = "/proc/sys/kernel/random/boot_id";
    let script = format!(
        "mount --bind '{file}' {boot} && {RERAIL} launch --no-provider -n 1 -- sh -c 'cat {boot}; readlink /proc/self/ns/pid'"
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    fs::remove_file(file).unwrap();
    let out = succeeds(&output);
    assert!(out.starts_with("another machine\npid:") && !out.contains(&own_namespace()), "{out}");
}

/// The port on which a process listens.
fn port_of(pid: u32) -> Option<u16> {
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .flatten()
        .filter_map(|fd| {
            Some(
                fs::read_link(fd.path())
                    .ok()?
                    .to_str()?
                    .strip_prefix("socket:[")?
                    .trim_end_matches(']')
                    .to_owned(),
            )
        })
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens = words[3] == "0A" && sockets.iter().any(|inode| inode == words[9]);
        listens.then(|| u16::from_str_radix(words[1].rsplit(':').next()?, 16).ok())?
    })
}

#[test]
fn strangers_get_nothing_and_disturb_no_job() {
    let mut child = launch(&["-n", "2"])
        .args(["--", "sh", "-c", "sleep 3; echo fine"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = None;
    eventually("the launcher listens", || {
        port = port_of(child.id());
        port.is_some()
    });
    let connect = || TcpStream::connect(("127.0.0.1", port.unwrap())).unwrap();
    // silence, garbage, and the first words of an agent without the secret
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    let mut garbage = connect();
    garbage.write_all(&[b'x'; 4096]).unwrap();
    garbage.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut got = Vec::new();
    let _ = garbage.read_to_end(&mut got);
    assert!(got.is_empty(), "{got:?}");
    let mut other = connect();
    let hello = [&b"rerail\x00\x01"[..], &[0; 4], &[7; 16]].concat();
    other.write_all(&hello).unwrap();
    let mut answer = [0; 48];
    other.read_exact(&mut answer).unwrap();
    other.write_all(&[0; 32]).unwrap();
    assert_eq!(other.read(&mut [0; 1]).unwrap_or(0), 0, "a stranger is dropped");
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(out, "fine\nfine\n");
    drop(silent);
}

/// MPICH tells its launcher of MPI_Finalize when the process exits, and by `_exit` not at all.
fn may_end_by_exit(mpi: &Mpi) {
    if setup(mpi).is_none() {
        return;
    }
    let python = std::path::absolute(mpi.prefix.join("bin/python")).unwrap();
    let program = "import os\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nMPI.Finalize()\nos._exit(0)";
    let mut command = launch(&["-n", "2", "--mpi", mpi.option, "--"]);
    let output = command.arg(python).arg("-c").arg(program).output().unwrap();
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
}

/// On three nodes, with ranks on the same node and on others.
fn starts_under_rerail(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    for ranks in ["1", "2", "5"] {
        let events = mpi.temporary("launched");
        let mut command = lab(mpi.option, &["--by-rerail", "--nodes", "3", "--rails", "2", "-n", ranks]);
        command.args(["--provider", provider.to_str().unwrap(), "--events"]).arg(&events);
        command
            .args(["--mpi-prefix", mpi.prefix.to_str().unwrap(), "--"])
            .arg(&program)
            .args(["--seconds", "2"]);
        let out = succeeds(&command.output().unwrap());
        assert!(out.contains("every byte right") && out.contains(mpi.library), "{out}");
        let told = fs::read_to_string(&events).unwrap();
        fs::remove_file(&events).unwrap();
        let own = told.lines().filter(|line| line.contains("\"path_up\"")).count();
        assert!(ranks == "1" || own > 0, "the ranks do not use Rerail: {told}");
    }
}

/// Two jobs at once, each with two ranks on two nodes, whose processes share a directory of sockets. Each agent has a namespace of its own.
fn is_seen_from_outside(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let sockets = mpi.temporary("sockets");
    fs::create_dir_all(&sockets).unwrap();
    fs::set_permissions(&sockets, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let start = |name: &str| {
        let arguments = ["--name", name, "--by-rerail", "--nodes", "2", "--rails", "2", "-n", "4"];
        let mut command = lab(mpi.option, &arguments);
        command.arg("--provider").arg(&provider).arg("--mpi-prefix").arg(&mpi.prefix).arg("--");
        command.arg(&program).args(["--seconds", "600"]).env("FI_RERAIL_CONTROL", &sockets);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).env("MARK", name).spawn().unwrap()
    };
    // what `rerail paths` prints of processes
    let listed = || -> Vec<(String, String)> {
        let output = Command::new(RERAIL).args(["paths", "--dir"]).arg(&sockets).output().unwrap();
        let out = text(&output.stdout);
        let process = |line: &str| {
            let (pid, socket) = line.strip_prefix("process pid=")?.split_once(" socket=")?;
            Some((pid.to_owned(), socket.to_owned()))
        };
        out.lines().filter_map(process).collect()
    };
    let name = |n| format!("seen{}-{}-{n}", std::process::id(), mpi.option);
    let is_rank = |name: &str, pid: &str| {
        let known = Command::new("kill").args(["-0", pid]).output().unwrap().status.success();
        let env = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        known && text(&env).contains(&format!("MARK={name}")) && text(&env).contains("RERAIL_RANK=")
    };
    let ranks = |name: &str| listed().iter().filter(|(pid, _)| is_rank(name, pid)).count();
    let mut jobs = [0, 1].map(|n| start(&name(n)));
    eventually("all ranks of both jobs are listed", || [0, 1].iter().all(|n| ranks(&name(*n)) == 4));
    let all = listed();
    let mut pids: Vec<&String> = all.iter().map(|(pid, _)| pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 8, "each has a number of its own: {all:?}");
    for (pid, socket) in &all {
        let output =
            Command::new(RERAIL).args(["paths", "--pid", pid, "--dir"]).arg(&sockets).output().unwrap();
        assert!(succeeds(&output).starts_with(&format!("process pid={pid} socket={socket}\n")));
    }
    // one job is killed, and the other's sockets stay
    let rank = all.iter().map(|(pid, _)| pid).find(|pid| is_rank(&name(0), pid)).unwrap();
    let status = fs::read_to_string(format!("/proc/{rank}/status")).unwrap();
    let agent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    kill(agent.trim().parse().unwrap(), "-KILL");
    assert!(!jobs[0].wait().unwrap().success());
    eventually("nothing is left of the first job", || marked(&name(0)).is_empty());
    assert_eq!((listed().len(), ranks(&name(1))), (4, 4));
    kill(jobs[1].id(), "-INT");
    jobs[1].wait().unwrap();
    eventually("nothing is left of the second job", || marked(&name(1)).is_empty());
    assert_eq!(listed(), []);
    fs::remove_dir_all(&sockets).unwrap();
}

/// Four ranks on two nodes make communicators of groups, without MPI_COMM_WORLD; the arguments are those of the program.
fn makes_groups(mpi: &Mpi, program: &[&str]) -> Option<()> {
    let (_, provider) = setup(mpi)?;
    let python = std::path::absolute(mpi.prefix.join("bin/python")).unwrap();
    let sessions =
        std::path::absolute(format!("{}/../../tests/mpi/sessions.py", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let events = mpi.temporary("groups");
    let mut command = lab(mpi.option, &["--by-rerail", "--nodes", "2", "--rails", "2", "-n", "4"]);
    command.args(["--provider", provider.to_str().unwrap(), "--events"]).arg(&events);
    command.args(["--mpi-prefix", mpi.prefix.to_str().unwrap(), "--"]);
    let output = command.arg(python).arg(sessions).args(program).output().unwrap();
    let told = fs::read_to_string(&events).unwrap_or_default();
    let _ = fs::remove_file(&events);
    let said = succeeds(&output);
    assert_eq!(said.matches("groups as they should be").count(), 4, "{said}{}", text(&output.stderr));
    assert!(told.contains("\"path_up\""), "the ranks do not use Rerail: {told}");
    Some(())
}

/// All, disjoint and overlapping ones, several times by the same names.
fn makes_groups_in_sessions(mpi: &Mpi) {
    makes_groups(mpi, &[]);
}

/// A group with a rank that ends is an error for its members on other hosts, and they make another one without it.
#[test]
fn ranks_of_open_mpi_do_not_wait_for_one_that_has_ended() {
    for without in ["3", "0"] {
        if makes_groups(&mpis()[1], &["--without", without]).is_none() {
            return;
        }
    }
}

/// The launcher's only network is down for longer than a connection lasts, in the middle of a job: the agents come back, and the job ends well.
fn outlives_its_network(mpi: &Mpi) {
    let Some((program, provider)) = setup(mpi) else { return };
    let name = format!("mgmt{}", std::process::id());
    let arguments = [
        "--name",
        &name,
        "--by-rerail",
        "--nodes",
        "2",
        "--rails",
        "2",
        "-n",
        "2",
        "--mpi-arg=--address=10.250.0.1",
    ];
    let mut command = lab(mpi.option, &arguments);
    command.args([
        "--provider",
        provider.to_str().unwrap(),
        "--mpi-prefix",
        mpi.prefix.to_str().unwrap(),
        "--",
    ]);
    command.arg(&program).args(["--seconds", "14"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let link = |state: &str| {
        let mut command = Command::new(RERAIL);
        command.args(["lab", "exec", "--name", &name, "n1", "--", "ip", "link", "set", "mgmt", state]);
        command.output().unwrap().status.success()
    };
    std::thread::sleep(Duration::from_secs(3));
    eventually("the network is cut", || link("down"));
    std::thread::sleep(Duration::from_secs(8));
    assert!(link("up"));
    let output = child.wait_with_output().unwrap();
    assert!(succeeds(&output).contains("every byte right"));
    assert!(text(&output.stderr).contains("the agent on n1 is reached again"), "{}", text(&output.stderr));
}

/// Python of the environment that has Open MPI 5, with mpi4py.
fn open_mpi_python() -> Option<std::path::PathBuf> {
    let python = mpis()[1].prefix.join("bin/python");
    if python.is_file() {
        return Some(std::path::absolute(python).unwrap());
    }
    skip(&format!("no {} (made by `cargo xtask setup`)", python.display()));
    None
}

/// The directory that ranks of Open MPI print, and which the job must not leave.
fn is_removed(out: &str) {
    let directory = out.lines().find_map(|line| line.strip_prefix("in ")).expect(out);
    assert!(directory.contains("rerail-launch"), "{directory}");
    eventually("the ranks' directory is removed", || !std::path::Path::new(directory).exists());
}

#[test]
fn ranks_of_open_mpi_end_a_job_as_others_do() {
    let Some(python) = open_mpi_python() else { return };
    // before the barrier: after it the other rank may end the job first
    let begin = "import os, time\nfrom mpi4py import MPI\nc = MPI.COMM_WORLD
if c.rank == 0: print('in', os.environ['PMIX_SERVER_TMPDIR'], flush=True)
c.Barrier()
";
    for (how, wanted, word) in [
        // one write: lines of two ranks must not mix
        ("os.write(1, b'sum %d\\n' % c.allreduce(c.rank + 1))", 0, ""),
        (
            "c.rank == 1 and c.Abort(9); time.sleep(60)",
            9,
            "rank 1 on localhost aborts the job with exit code 9",
        ),
        (
            "c.rank == 1 and os.kill(os.getpid(), 9); time.sleep(60)",
            137,
            "rank 1 on localhost was killed by SIGKILL",
        ),
        (
            "c.rank == 1 and os._exit(0); time.sleep(60)",
            1,
            "rank 1 on localhost ended before its part of the job",
        ),
        ("c.rank == 1 and os._exit(3); time.sleep(60)", 3, "rank 1 on localhost ended with exit code 3"),
    ] {
        let mut command = launch(&["-n", "2", "--mpi", "openmpi", "--"]);
        let output = command.arg(&python).arg("-c").arg(format!("{begin}{how}")).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(code(&output), wanted, "{how}: {said}");
        let own: Vec<&str> = said.lines().filter(|line| line.starts_with("rerail launch")).collect();
        assert_eq!(own.len(), usize::from(wanted != 0), "one sentence after {how}: {said}");
        assert!(own.iter().all(|line| line.contains(word)), "{how}: {said}");
        let out = text(&output.stdout);
        is_removed(&out);
        assert!(wanted != 0 || out.matches("sum 3\n").count() == 2, "they are no job: {out}");
    }
}

#[test]
fn what_is_not_served_to_open_mpi_is_an_error_at_once() {
    let Some(python) = open_mpi_python() else { return };
    // a rank that waits is killed, and the job ends with another code
    let program =
        "import signal, os\nsignal.alarm(60)\nfrom mpi4py import MPI\nown, c = MPI.COMM_SELF, MPI.COMM_WORLD
own.Set_errhandler(MPI.ERRORS_RETURN); c.Set_errhandler(MPI.ERRORS_RETURN)
for call in (lambda: own.Spawn('true'), lambda: c.Spawn('true'), lambda: MPI.Publish_name('a', 'b'),
             lambda: MPI.Lookup_name('a'), lambda: MPI.Unpublish_name('a', 'b')):
    try: call()
    except MPI.Exception: continue
    c.Abort(9)
c.Barrier()
os.write(1, b'errors\\n')";
    let mut command = launch(&["-n", "2", "--mpi", "openmpi", "--"]);
    let output = command.arg(&python).arg("-c").arg(program).output().unwrap();
    assert_eq!(succeeds(&output).matches("errors\n").count(), 2);
}

/// The PMIx server, which is a program that others wrote, and the agent, are killed in the middle of a job.
#[test]
fn a_killed_server_of_pmix_or_agent_leaves_nothing() {
    let Some(python) = open_mpi_python() else { return };
    let program = "import os, time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0: print('in', os.environ['PMIX_SERVER_TMPDIR'], flush=True)
time.sleep(60)";
    for (of, word) in [("launch-pmix", "the PMIx server of this host has ended"), ("launch-agent", "is gone")]
    {
        let mark = format!("pmix-{of}-{}", std::process::id());
        let mut child = launch(&["-n", "2", "--mpi", "openmpi", "--"])
            .arg(&python)
            .args(["-c", program])
            .env("MARK", &mark)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut out).unwrap();
        // of the agent and the processes above it the latest one is the agent
        let is_it = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| text(&c).contains(of));
        let pid = marked(&mark).into_iter().filter(is_it).max().expect(of);
        kill(pid, "-KILL");
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(code(&output), 125, "{of}: {said}");
        assert!(said.contains(word), "{of}: {said}");
        is_removed(&out);
        eventually("nothing is left", || marked(&mark).is_empty());
    }
}

#[test]
fn a_library_of_pmix_that_cannot_be_used_is_said_in_one_sentence() {
    let own = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pmix-{}", std::process::id()));
    fs::create_dir_all(&own).unwrap();
    fs::copy("/proc/self/exe", own.join("libpmix.so.2")).unwrap();
    for (directory, word) in
        [("/no/such", "there is no /no/such/lib/libpmix.so.2"), (own.to_str().unwrap(), "libpmix.so.2")]
    {
        let output =
            launch(&["-n", "2", "--mpi", "openmpi", "--pmix", directory, "--", "true"]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(code(&output), 125, "{directory}: {said}");
        assert!(said.contains(word) && said.contains("--pmix") && said.lines().count() == 1, "{said}");
    }
    fs::remove_dir_all(own).unwrap();
    let output = launch(&["-n", "1", "--pmix", "/usr", "--", "true"]).output().unwrap();
    assert!(code(&output) == 2 && text(&output.stderr).contains("--mpi openmpi"), "an option without use");
}

on_every_mpi! {
    open_mpi_starts_under_rerail_on_three_nodes: starts_under_rerail(1);
    mpich_starts_under_rerail_on_three_nodes: starts_under_rerail(0);
    intel_mpi_starts_under_rerail_on_three_nodes: starts_under_rerail(2);
    open_mpi_makes_groups_in_sessions: makes_groups_in_sessions(1);
    mpich_makes_groups_in_sessions: makes_groups_in_sessions(0);
    intel_mpi_makes_groups_in_sessions: makes_groups_in_sessions(2);
    ranks_of_mpich_that_have_finalized_may_end_by_exit: may_end_by_exit(0);
    a_job_outlives_the_network_of_its_launcher: outlives_its_network(0);
    ranks_of_two_jobs_are_seen_under_the_numbers_of_the_host: is_seen_from_outside(0);
}
