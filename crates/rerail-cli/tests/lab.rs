//! The lab does what it says: real namespaces, real cuts. Programs in the nodes are this test executable itself, in the role
//! named by `RERAIL_TEST_ROLE`.

#[path = "common/world.rs"]
#[macro_use]
mod world;

use std::env;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use world::*;

const PORT: u16 = 4000;

/// What the tests of cuts ask a lab.
trait Listen {
    fn listeners(&self) -> [Actor; 2];
    fn arrives(&self, from: usize, listeners: &mut [Actor; 2]) -> bool;
}

impl Listen for Lab {
    /// Two servers, one per node of a pair, that report every datagram.
    fn listeners(&self) -> [Actor; 2] {
        [0, 1].map(|node| {
            let mut actor = self.play(node, "listen");
            assert_eq!(actor.hear(), "ready");
            actor
        })
    }

    /// Whether what `from` sends on rail0 arrives at the other node. The marker on rail1 ends the wait: it is sent
    /// later, and a veth pair hands over at once.
    fn arrives(&self, from: usize, listeners: &mut [Actor; 2]) -> bool {
        let tag = unique("tag");
        let to = 1 - from;
        let role = format!("send {tag} 10.1.0.{} 10.2.0.{}", to + 1, to + 1);
        assert_eq!(self.play(from, &role).hear(), "sent");
        let mut arrived = false;
        loop {
            let said = listeners[to].hear();
            arrived |= said == format!("got {tag} rail0");
            if said == format!("got {tag} marker") {
                return arrived;
            }
        }
    }
}

// ---------------------------------------------------------------- roles

/// Not a test: what runs inside the nodes.
#[test]
#[ignore = "runs inside the nodes, started by the other tests"]
fn role_in_a_node() {
    let Ok(role) = env::var("RERAIL_TEST_ROLE") else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    match words.as_slice() {
        ["listen"] => {
            let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
            say("ready");
            let mut buffer = [0; 256];
            loop {
                let (size, _) = socket.recv_from(&mut buffer).unwrap();
                say(&format!("got {}", text(&buffer[..size])));
            }
        }
        ["send", tag, rail, marker] => {
            for (address, word) in [(rail, "rail0"), (marker, "marker")] {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                // A rail that is down has no route and says so; for the test that is the same as silence.
                let _ = socket.send_to(format!("{tag} {word}").as_bytes(), (*address, PORT));
            }
            say("sent");
        }
        ["serve"] => {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
            say("ready");
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut reader = stream.try_clone().unwrap();
                    let _ = std::io::copy(&mut reader, &mut stream);
                });
            }
        }
        ["talk", address] => {
            let mut stream = match TcpStream::connect((*address, PORT)) {
                Ok(stream) => stream,
                Err(error) => return say(&format!("refused {:?}", error.kind())),
            };
            let mut byte = [1];
            for count in 0.. {
                let result = stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte));
                if let Err(error) = result {
                    // Which call sees the reset first is a matter of timing.
                    let broken = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                    let reset = broken.contains(&error.kind());
                    return say(&format!("broken {reset}"));
                }
                if count == 0 {
                    say("talking");
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        // Counts what arrives on the slow rail while a fixed amount arrives on the fast one.
        ["count", slow, fast, bytes] => {
            let enough: usize = bytes.parse().unwrap();
            let listeners = [slow, fast].map(|address| TcpListener::bind((*address, PORT)).unwrap());
            say("ready");
            let [mut slow, mut fast] = listeners.map(|listener| listener.accept().unwrap().0);
            slow.set_nonblocking(true).unwrap();
            let mut buffer = vec![0; 1 << 16];
            let (mut slow_bytes, mut fast_bytes) = (0, 0);
            while fast_bytes < enough {
                fast_bytes += fast.read(&mut buffer).unwrap();
                while let Ok(size @ 1..) = slow.read(&mut buffer) {
                    slow_bytes += size;
                }
            }
            say(&format!("counted {slow_bytes}"));
        }
        ["flood", slow, fast] => {
            let streams = [slow, fast].map(|address| TcpStream::connect((*address, PORT)).unwrap());
            let threads = streams
                .map(|mut stream| thread::spawn(move || while stream.write_all(&[0; 1 << 14]).is_ok() {}));
            for thread in threads {
                thread.join().unwrap();
            }
        }
        other => panic!("no such role: {other:?}"),
    }
}

// ---------------------------------------------------------------- topology

#[test]
fn every_rail_joins_every_pair_of_nodes() {
    need_lab!();
    for nodes in [2, 3] {
        let lab = Lab::up(&["--nodes", &nodes.to_string(), "--rails", "3"]);
        let last = nodes - 1;
        let mut server = lab.play(last, "serve");
        assert_eq!(server.hear(), "ready");
        for from in 0..last {
            for rail in 1..=3 {
                let mut client = lab.play(from, &format!("talk 10.{rail}.0.{nodes}"));
                assert_eq!(client.hear(), "talking");
            }
            let mut client = lab.play(from, &format!("talk 10.250.0.{nodes}"));
            assert_eq!(client.hear(), "talking");
        }
    }
}

#[test]
fn a_node_has_its_own_name_hosts_interfaces_and_shared_memory() {
    need_lab!();
    let lab = Lab::up(&["--nodes", "3"]);
    assert_eq!(lab.read(2, &["hostname"]), "n2");
    assert!(lab.read(0, &["cat", "/etc/hosts"]).contains("10.250.0.3 n2"));
    let interfaces = lab.read(1, &["ls", "/sys/class/net"]);
    assert_eq!(interfaces, "lo\nmgmt\nrail0\nrail1");
    lab.read(0, &["touch", "/dev/shm/mine"]);
    assert!(!lab.read(1, &["ls", "/dev/shm"]).contains("mine"));
    assert!(!Path::new("/dev/shm/mine").exists());
    let ids = [0, 1].map(|node| lab.read(node, &["cat", "/proc/sys/kernel/random/boot_id"]));
    assert_ne!(ids[0], ids[1]);
}

// ---------------------------------------------------------------- cuts

#[test]
fn dark_drops_both_ways_and_heal_restores() {
    need_lab!();
    let lab = Lab::up(&[]);
    let mut listeners = lab.listeners();
    let both = |listeners: &mut _| [lab.arrives(0, listeners), lab.arrives(1, listeners)];
    assert_eq!(both(&mut listeners), [true, true]);
    lab.act("cut rail0 dark");
    assert_eq!(both(&mut listeners), [false, false]);
    lab.act("heal rail0");
    assert_eq!(both(&mut listeners), [true, true]);
}

#[test]
fn dark_in_and_dark_out_drop_one_way_only() {
    need_lab!();
    let lab = Lab::up(&[]);
    let mut listeners = lab.listeners();
    // Both know each other's Ethernet address before the way back is cut.
    assert!(lab.arrives(0, &mut listeners) && lab.arrives(1, &mut listeners));
    for (cut, expected) in [
        ("cut rail0 dark-in", [true, false]),
        ("cut rail0 dark-out", [false, true]),
        ("cut rail0 dark-in --node 1", [false, true]),
        ("cut rail0 dark-out --node 1", [true, false]),
    ] {
        lab.act(cut);
        let seen = [lab.arrives(0, &mut listeners), lab.arrives(1, &mut listeners)];
        assert_eq!(seen, expected, "{cut}");
        lab.act("heal rail0");
    }
}

#[test]
fn dark_at_one_of_three_nodes_leaves_the_others_joined() {
    need_lab!();
    let lab = Lab::up(&["--nodes", "3"]);
    let mut server = lab.play(2, "serve");
    assert_eq!(server.hear(), "ready");
    lab.act("cut rail0 dark --node 0");
    assert_eq!(lab.play(1, "talk 10.1.0.3").hear(), "talking");
    // The cut-off node gets no answer to its ARP request, and the kernel says so after a while.
    assert!(lab.play(0, "talk 10.1.0.3").hear().starts_with("refused"));
}

#[test]
fn down_takes_the_carrier_away_and_heal_gives_address_and_route_back() {
    need_lab!();
    let lab = Lab::up(&["--congctl", "reno"]);
    let carrier = ["cat", "/sys/class/net/rail0/carrier"];
    let route = |node| lab.read(node, &["ip", "route", "show", "10.1.0.0/24"]);
    let before = route(0);
    assert!(before.contains("congctl lock reno"), "{before}");
    lab.act("cut rail0 down");
    assert_eq!(lab.read(1, &carrier), "0");
    assert_eq!(route(0), "");
    assert!(!lab.read(0, &["ip", "-br", "link", "show", "rail0"]).contains("LOWER_UP"));
    lab.act("heal all");
    assert_eq!(lab.read(1, &carrier), "1");
    assert_eq!(route(0), before);
    let mut listeners = lab.listeners();
    assert!(lab.arrives(0, &mut listeners));
}

#[test]
fn reset_breaks_connections_old_and_new_but_not_datagrams_or_the_other_rail() {
    need_lab!();
    let lab = Lab::up(&[]);
    let mut server = lab.play(1, "serve");
    assert_eq!(server.hear(), "ready");
    let mut old = lab.play(0, "talk 10.1.0.2");
    assert_eq!(old.hear(), "talking");
    lab.act("cut rail0 reset");
    assert_eq!(old.hear(), "broken true");
    let new = lab.play(0, "talk 10.1.0.2").hear();
    assert_eq!(new, "refused ConnectionRefused");
    assert_eq!(lab.play(0, "talk 10.2.0.2").hear(), "talking");
    let mut listeners = lab.listeners();
    assert!(lab.arrives(0, &mut listeners));
    lab.act("heal rail0");
    assert_eq!(lab.play(0, "talk 10.1.0.2").hear(), "talking");
}

/// Rail 1 carries ten times as much as rail 0 from node 0 to node 1.
fn assert_tenfold(lab: &Lab) {
    let mut counter = lab.play(1, "count 10.1.0.2 10.2.0.2 20000000");
    assert_eq!(counter.hear(), "ready");
    let _flood = lab.play(0, "flood 10.1.0.2 10.2.0.2");
    let counted = counter.hear();
    let slow: f64 = counted.rsplit(' ').next().unwrap().parse().unwrap();
    let ratio = 20_000_000.0 / slow;
    assert!((5.0..20.0).contains(&ratio), "10 : 1 gave {ratio} : 1");
}

#[test]
fn shape_gives_rails_the_ratio_of_their_rates() {
    need_lab!();
    for nodes in ["2", "3"] {
        let lab = Lab::up(&["--nodes", nodes, "--rail", "1gbit", "--rail", "200mbit"]);
        lab.act("shape rail0 20mbit");
        assert_tenfold(&lab);
    }
}

#[test]
fn shape_gives_links_of_a_fabric_the_ratio_of_their_rates() {
    need_lab!();
    let lab = Lab::up(&["--nodes", "2", "--fabric", "leaf-spine:2x2,200mbit"]);
    lab.act("shape rail0/leaf1 20mbit");
    assert_tenfold(&lab);
    let status = text(&lab.command("status").stdout);
    for line in ["rail0/leaf1-spine0  20mbit  whole", "rail1/leaf1-spine0  200mbit  whole"] {
        assert!(status.contains(line), "{status}");
    }
}

#[test]
fn cuts_add_up_and_status_tells_them() {
    need_lab!();
    let lab = Lab::up(&["--rail", "1gbit", "--rail", "unshaped"]);
    lab.act("cut all reset");
    lab.act("cut rail1 down --node 1");
    lab.act("shape rail0 200mbit");
    let status = text(&lab.command("status").stdout);
    assert!(status.contains("rail0  200mbit  reset at n0 n1"), "{status}");
    assert!(status.contains("rail1  unshaped  down at n1, reset at n0 n1"), "{status}");
    lab.act("heal all");
    let json: serde_json::Value = serde_json::from_slice(&lab.command("status --json").stdout).unwrap();
    assert_eq!(json["rails"][1]["state"]["down"], serde_json::json!([]));
    assert_eq!(json["rails"][0]["rate"], "200mbit");
}

// ---------------------------------------------------------------- run

#[test]
fn the_exit_code_is_the_programs() {
    need_lab!();
    let run = |program: &str| {
        let name = unique("code");
        let arguments = ["run", "-q", "--mpi", "none", "--name", &name, "--", "sh", "-c", program];
        output(&arguments).status.code()
    };
    assert_eq!(run("exit 0"), Some(0));
    assert_eq!(run("exit 42"), Some(42));
    assert_eq!(run("kill -ABRT $$"), Some(128 + 6));
    assert_eq!(run("test $RERAIL_NODE = 0 || exit 9; sleep 1000"), Some(9));
}

#[test]
fn standard_streams_are_the_programs() {
    need_lab!();
    let name = unique("streams");
    let program = "test $RERAIL_NODE = 1 || { cat; echo $RERAIL_NODES; }";
    let mut child = rerail(&["run", "--mpi", "none", "--name", &name, "--", "sh", "-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "hello\n2\n");
    assert!(text(&output.stderr).starts_with("rerail lab: "));
}

#[test]
fn the_schedule_is_kept_in_order_and_written_down() {
    need_lab!();
    let dir = temporary("schedule");
    let events = dir.join("events.jsonl");
    let name = unique("schedule");
    // The clock starts when the program says so, and the program ends when it has seen the last item.
    let program = "test $RERAIL_NODE = 1 && exit; touch $RERAIL_LAB_START; \
                   while [ $(cat /sys/class/net/rail1/operstate) = up ]; do sleep 0.01; done";
    let run = output(&[
        "run",
        "--mpi",
        "none",
        "--name",
        &name,
        "--schedule",
        "40ms cut rail1 down; 20ms shape rail0 1gbit; 10ms cut all dark-in node 1; 1min heal all",
        "--schedule-on-start",
        "--events",
        events.to_str().unwrap(),
        "--log",
        dir.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        program,
    ]);
    let stderr = text(&run.stderr);
    assert!(run.status.success(), "{stderr}");
    for line in ["schedule starts", "cut all dark-in node 1", "before 1 items"] {
        assert!(stderr.contains(line), "{stderr}");
    }
    let events: Vec<serde_json::Value> = fs::read_to_string(&events)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let seen: Vec<String> = events
        .iter()
        .map(|event| {
            assert_eq!(event["source"], "lab");
            assert!(event["t_unix_ns"].as_u64().unwrap() > 0);
            let word = |key: &str| event[key].as_str().unwrap_or("-").to_string();
            format!("{} {} {} {}", word("event"), word("rail"), word("kind"), word("rate"))
        })
        .collect();
    assert_eq!(
        seen,
        [
            "start - - -",
            "cut rail0 dark-in -",
            "cut rail1 dark-in -",
            "shape rail0 - 1gbit",
            "cut rail1 down -",
            "end - - -",
        ]
    );
    assert_eq!(events[1]["node"], 1);
    let times: Vec<u64> = events.iter().map(|event| event["t_unix_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted());
    assert!(dir.join("lab.log").exists() && dir.join("status.json").exists());
}

#[test]
fn a_cut_is_in_place_when_an_announced_phase_goes_on() {
    need_lab!();
    let dir = temporary("phases");
    let events = dir.join("events.jsonl");
    let name = unique("phases");
    // Without waiting for anything but the lab's answer, the program must find its rail cut; and an announced phase that the
    // schedule does not know is answered as well.
    let program = "test $RERAIL_NODE = 1 && exit; cd $RERAIL_LAB_PHASES; \
                   announce() { touch $1; while ! test -e $1.done; do sleep 0.005; done; }; \
                   test $(cat /sys/class/net/rail1/operstate) = up || exit 3; \
                   announce unheard-of; announce first; test $(cat /sys/class/net/rail1/operstate) = down || exit 4; \
                   while [ $(cat /sys/class/net/rail1/operstate) = down ]; do sleep 0.01; done";
    let run = output(&[
        "run",
        "--mpi",
        "none",
        "--name",
        &name,
        "--schedule",
        "never+0s cut rail0 down; first+0s flap alternating down for 30ms every 60ms times 3; first+0s cut rail1 down",
        "--events",
        events.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        program,
    ]);
    let stderr = text(&run.stderr);
    assert!(run.status.success(), "{stderr}");
    assert!(stderr.contains("phase first begins"), "{stderr}");
    let events: Vec<serde_json::Value> = fs::read_to_string(&events)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let phases: Vec<&str> = events.iter().filter_map(|event| event["phase"].as_str()).collect();
    assert_eq!(phases, ["unheard-of", "first"]);
    let cuts: Vec<&str> = events
        .iter()
        .filter(|event| event["event"] == "cut")
        .map(|event| event["rail"].as_str().unwrap())
        .collect();
    assert_eq!(cuts[..3], ["rail0", "rail1", "rail1"], "the flap's first two cuts around the other");
}

#[test]
fn a_program_in_the_lab_can_cut_its_own_rails() {
    need_lab!();
    let name = unique("self");
    let program = format!(
        "test $RERAIL_NODE = 1 && exit; '{RERAIL}' lab cut rail0 down && test $(cat /sys/class/net/rail0/operstate) = down"
    );
    let run = output(&["run", "-q", "--mpi", "none", "--name", &name, "--", "sh", "-c", &program]);
    assert!(run.status.success(), "{}", text(&run.stderr));
}

// ---------------------------------------------------------------- nothing is left

fn signal(pid: u32, name: &str) {
    let kill = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(kill.unwrap().success());
}

#[test]
fn nothing_is_left_after_sigkill() {
    need_lab!();
    let links = host_links();
    let (mut child, name, word) = endless(&[], 0, |_| {});
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_is_left(&name, &word, &links);
}

#[test]
fn nothing_is_left_after_sigkill_of_the_supervisor() {
    need_lab!();
    let links = host_links();
    let (mut child, name, word) = endless(&[], 0, |_| {});
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let supervisor: u32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    signal(supervisor, "KILL");
    assert_eq!(child.wait().unwrap().code(), Some(125));
    nothing_is_left(&name, &word, &links);
}

#[test]
fn two_interrupts_end_even_a_stubborn_program() {
    need_lab!();
    let links = host_links();
    let (mut child, name, word) = endless(&[], 0, |_| {});
    // Two that arrive before the first is looked at count as one, hence not exactly two.
    eventually("the lab ends", || {
        signal(child.id(), "INT");
        thread::sleep(Duration::from_millis(50));
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    nothing_is_left(&name, &word, &links);
}

#[test]
fn a_termination_ends_even_a_stubborn_program() {
    need_lab!();
    let links = host_links();
    let events = temporary("termination").join("events.jsonl");
    let (mut child, name, word) = endless(&["--events", events.to_str().unwrap()], 0, |_| {});
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    nothing_is_left(&name, &word, &links);
    let events = fs::read_to_string(&events).unwrap();
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["code"]), (&"end".into(), &143.into()), "{events}");
}

#[test]
fn down_ends_a_lab_and_its_program() {
    need_lab!();
    let links = host_links();
    let (mut child, name, word) = endless(&[], 0, |_| {});
    assert!(output(&["down", "--name", &name]).status.success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    nothing_is_left(&name, &word, &links);
}

#[test]
fn a_lab_is_gone_when_down_returns() {
    need_lab!();
    let name = unique("again");
    for _ in 0..10 {
        let up = output(&["up", "-q", "--detach", "--name", &name]);
        assert!(up.status.success(), "{}", text(&up.stderr));
        let down = output(&["down", &name]);
        assert!(down.status.success(), "{}", text(&down.stderr));
        assert!(!text(&output(&["list"]).stdout).lines().any(|lab| lab == name), "its name is still taken");
    }
}

#[test]
fn signals_reach_the_program() {
    need_lab!();
    let name = unique("signals");
    let program = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = rerail(&["run", "-q", "--mpi", "none", "--name", &name, "--", "sh", "-c"])
        .arg(program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut both = [0; 12];
    child.stdout.as_mut().unwrap().read_exact(&mut both).unwrap();
    signal(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_plain_user_can_have_a_lab_and_control_it() {
    need_lab!();
    let as_root = fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0\t0\t0");
    if !as_root {
        // Then every other test has shown it.
        return;
    }
    const NOBODY: u32 = 65534;
    let plain = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    };
    let name = unique("plain");
    let mut probe = rerail(&["run", "-q", "--mpi", "none", "--name", &name, "--", "true"]);
    plain(&mut probe);
    match probe.output() {
        Ok(output) if output.status.success() => {}
        other => {
            let note = format!("SKIPPED: a plain user can have a lab: {other:?}\n");
            let _ = std::io::stderr().write_all(note.as_bytes());
            return;
        }
    }
    let links = host_links();
    let (mut child, name, word) = endless(&[], 0, plain);
    let as_plain = |words: &[&str]| {
        let mut command = rerail(words);
        plain(&mut command);
        command.output().unwrap()
    };
    let cut = as_plain(&["cut", "rail0", "dark", "--name", &name]);
    assert!(cut.status.success(), "{}", text(&cut.stderr));
    let host = as_plain(&["exec", "1", "--name", &name, "--", "hostname"]);
    assert_eq!(text(&host.stdout), "n1\n", "{}", text(&host.stderr));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("no process is left", || processes_with(&word) == 0);
    // A process lets go of its sockets a moment after its command line.
    eventually("no socket is left", || as_plain(&["list"]).stdout.is_empty());
    assert_eq!(host_links(), links);
}

// ---------------------------------------------------------------- answers to bad input

#[test]
fn bad_input_is_answered_by_a_sentence_that_says_what_to_do() {
    for (words, code, sentence) in [
        (&["run", "--rail", "fast", "--", "true"][..], 2, "such as 1gbit or 200mbit"),
        (
            &["run", "--mpi", "none", "--schedule", "2s cut rail9 down", "--", "true"],
            2,
            "schedule, line 1, column 1: there is no rail `rail9` in this lab: choose rail0, rail1 or all",
        ),
        (&["run", "--mpi", "none", "--nodes", "0", "--", "true"], 2, "1 to 64 nodes"),
        (
            &["run", "--mpi", "none", "--rails", "3", "--rail", "1gbit", "--rail", "2gbit", "--", "true"],
            2,
            "give --rail once",
        ),
        (&["run", "--mpi", "none", "-n", "7", "--", "true"], 2, "leave out -n"),
        (&["run", "--mpi-prefix", "/nowhere", "--", "true"], 2, "there is no bin/mpiexec in `/nowhere`"),
        (&["run", "--mpi", "none", "--name", "a b", "--", "true"], 2, "cannot name a lab"),
        (&["cut", "rail0", "dark", "--name", "no-such-lab"], 2, "there is no lab named `no-such-lab`"),
        (&["cut", "rail0"], 2, "write `rerail lab cut rail0 down`"),
        (&["exec", "node1", "--", "true"], 2, "such as 1 or n1"),
        (&["down", "no-such-lab"], 2, "there is no lab named `no-such-lab`"),
        (
            &["run", "--mpi", "none", "--schedule", "2s heal rail1; 3s cut rail1 down", "--", "true"],
            2,
            "line 1, column 1: `heal rail1` comes before its cut",
        ),
        (&["run", "-n", "3", "--ppn", "1", "--", "true"], 2, "3 ranks do not fit on 2 nodes with 1 each"),
    ] {
        let output = output(words);
        let stderr = text(&output.stderr);
        assert!(stderr.contains(sentence), "{words:?}: {stderr}");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_a_lab_cannot_do_is_refused_by_a_sentence() {
    need_lab!();
    let lab = Lab::up(&[]);
    let second = output(&["up", "--detach", "--name", &lab.name]);
    assert!(text(&second.stderr).contains("is running already"));
    let exec = lab.exec(7, &["true"]).output().unwrap();
    assert!(text(&exec.stderr).contains("choose 0 to 1"));
    let by_name = output(&["exec", "n1", "--name", &lab.name, "--", "hostname"]);
    assert_eq!(text(&by_name.stdout), "n1\n", "{}", text(&by_name.stderr));
    let run = ["run", "-q", "--mpi", "none"];
    let fails = |more: &[&str]| output(&[&run[..], more].concat());
    let no_program = fails(&["--name", &unique("none"), "--", "no-such-program"]);
    assert_eq!(no_program.status.code(), Some(127));
    assert!(text(&no_program.stderr).contains("cannot start `no-such-program`"));
    let no_control = fails(&["--name", &unique("none"), "--congctl", "nosuch", "--", "true"]);
    assert_eq!(no_control.status.code(), Some(125));
    assert!(text(&no_control.stderr).contains("choose one of"));
    let cut = lab.command("cut rail5 dark");
    assert!(text(&cut.stderr).contains("choose rail0, rail1 or all"));
}
