//! Rails that are wires do to packets what they are told, count it, and leave nothing behind.

#[path = "common/world.rs"]
#[macro_use]
mod world;

use serde_json::Value;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;
use world::*;

const PORT: u16 = 4000;
/// Datagrams of a volley: so many that each share of some per cent is met.
const VOLLEY: u32 = 1500;

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
        ["count", address] => {
            let socket = UdpSocket::bind((*address, PORT)).unwrap();
            say("ready");
            count(&socket);
        }
        ["volley", from, to] => {
            let socket = UdpSocket::bind(*from).unwrap();
            let to: SocketAddr = to.parse().unwrap();
            for number in 0..VOLLEY {
                socket.send_to(&datagram(number), to).unwrap();
                if number % 16 == 15 {
                    // the receiver must lose none by itself
                    thread::sleep(Duration::from_millis(2));
                }
            }
            say("sent");
        }
        ["hear"] => {
            let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
            say("ready");
            let mut buffer = [0; 256];
            loop {
                let size = socket.recv(&mut buffer).unwrap();
                say(&format!("heard {}", text(&buffer[..size])));
            }
        }
        ["tell", word, to] => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(word.as_bytes(), (*to, PORT)).unwrap();
            say("sent");
        }
        ["take", bytes] => {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
            say("ready");
            let mut stream = listener.accept().unwrap().0;
            let (mut got, mut buffer) = (0u64, vec![0; 1 << 16]);
            let mut right = true;
            loop {
                let size = stream.read(&mut buffer).unwrap();
                if size == 0 {
                    break;
                }
                right &= buffer[..size].iter().enumerate().all(|(i, &byte)| byte == pattern(got + i as u64));
                got += size as u64;
            }
            say(&format!("right {}", right && got == bytes.parse::<u64>().unwrap()));
        }
        ["give", bytes, to] => {
            let mut stream = TcpStream::connect((*to, PORT)).unwrap();
            let total: u64 = bytes.parse().unwrap();
            let all: Vec<u8> = (0..total).map(pattern).collect();
            stream.write_all(&all).unwrap();
            say("sent");
        }
        other => panic!("no such role: {other:?}"),
    }
}

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// A datagram that tells its number, and whether it is whole.
fn datagram(number: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..400).map(|at| pattern(u64::from(number) * 1000 + at)).collect();
    bytes.splice(0..4, number.to_le_bytes());
    let sum: u32 = bytes.iter().fold(1, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Takes a volley, until nothing comes any more.
fn count(socket: &UdpSocket) {
    let (mut all, mut spoilt, mut twice, mut overtaken) = (0, 0, 0, 0);
    let (mut seen, mut highest) = (BTreeSet::new(), 0);
    let mut buffer = [0; 1024];
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    while let Ok(size) = socket.recv(&mut buffer) {
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        all += 1;
        let number = u32::from_le_bytes(buffer[..4].try_into().unwrap());
        if number >= VOLLEY || buffer[..size] != datagram(number) {
            spoilt += 1;
            continue;
        }
        twice += u32::from(!seen.insert(number));
        overtaken += u32::from(number < highest);
        highest = highest.max(number);
    }
    say(&format!("counted {all} {spoilt} {twice} {overtaken}"));
}

// ---------------------------------------------------------------- tests

/// What the wire of rail0 has done.
fn counts(lab: &Lab) -> impl Fn(&str) -> u64 {
    let status = lab.command("status --json");
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let counts = status["rails"][0]["wire"]["counts"].clone();
    move |name| counts[name].as_u64().unwrap_or_else(|| panic!("{name} in {counts}"))
}

#[test]
fn what_a_wire_counts_is_what_happened_over_ipv4_and_ipv6() {
    need_lab!("wire");
    let lab = Lab::up(&["--rail", "wire:loss=4%,corrupt=4%,dup=4%,reorder=4%/20ms,from=n0,seed=5"]);
    let scope = lab.read(0, &["cat", "/sys/class/net/rail0/ifindex"]);
    let mut before = [0; 3];
    for (listen, from, to) in [
        ("0.0.0.0", "0.0.0.0:0".to_string(), "10.1.0.2:4000".to_string()),
        ("::", "[::]:0".to_string(), format!("[fe80::52:52ff:fe01:2%{scope}]:4000")),
    ] {
        let mut counter = lab.play(1, &format!("count {listen}"));
        assert_eq!(counter.hear(), "ready");
        assert_eq!(lab.play(0, &format!("volley {from} {to}")).hear(), "sent");
        let said = counter.hear();
        let numbers: Vec<u64> = said.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
        let [all, spoilt, twice, overtaken] = numbers[..] else { panic!("{said}") };
        let counts = counts(&lab);
        let now = ["lost", "corrupted", "duplicated"].map(&counts);
        let [lost, corrupted, duplicated] = [0, 1, 2].map(|i| now[i] - before[i]);
        before = now;
        for (what, count) in [("lost", lost), ("corrupted", corrupted), ("duplicated", duplicated)] {
            assert!((30..=90).contains(&count), "{what}: {count} of {VOLLEY} at 4 %");
        }
        // A datagram that is spoilt and doubled arrives spoilt twice.
        assert_eq!(all, u64::from(VOLLEY) - lost + duplicated, "{said}");
        assert!(
            (corrupted..=corrupted + duplicated).contains(&spoilt),
            "{said}: the kernel let {corrupted} through"
        );
        assert!(twice <= duplicated && twice + (spoilt - corrupted) == duplicated, "{said}");
        assert!(overtaken > 0 && counts("reordered") > 0, "{said}");
    }
    assert_eq!(counts(&lab)("overflowed"), 0);
}

#[test]
fn faults_change_while_a_wire_is_in_use() {
    need_lab!("wire");
    let lab = Lab::up(&["--rail", "wire:100mbit", "--rail", "unshaped"]);
    let mut listener = lab.play(1, "hear");
    assert_eq!(listener.hear(), "ready");
    let tell = |word: &str| assert_eq!(lab.play(0, &format!("tell {word} 10.1.0.2")).hear(), "sent");
    let came = |what: &str| counts(&lab)(what);
    tell("plain");
    assert_eq!(listener.hear(), "heard plain");
    lab.act("wire rail0 dark from=n0");
    tell("unheard");
    eventually("the dark takes it", || came("dark") > 0);
    lab.act("wire rail0 loss=100% from=n0");
    tell("lost");
    eventually("the loss takes it", || came("lost") > 0);
    lab.act("wire all stall");
    tell("late");
    eventually("the stall holds it", || came("stalled") > 0);
    lab.act("wire rail0 delay=2ms");
    assert_eq!(listener.hear(), "heard late");
    lab.act("wire rail0 clean");
    tell("again");
    assert_eq!(listener.hear(), "heard again");
    let status = text(&lab.command("status").stdout);
    assert!(status.contains("rail0  100mbit  whole\n  wire  clean"), "{status}");
    let refused = lab.command("wire rail1 loss=1%");
    assert!(text(&refused.stderr).contains("`rail1` is no wire"), "{}", text(&refused.stderr));
    let wrong = lab.command("wire rail0 loss=1% lots");
    assert!(text(&wrong.stderr).contains("`lots` is no fault of a wire"), "{}", text(&wrong.stderr));
}

#[test]
fn large_segments_pass_whole_and_cuts_work_on_wires_as_well() {
    need_lab!("wire");
    for nodes in [2, 3] {
        let lab = Lab::up(&["--nodes", &nodes.to_string(), "--rail", "wire"]);
        let to = format!("10.1.0.{nodes}");
        for (faults, bytes) in [("clean", 64 << 20), ("loss=0.5%,dup=1%,reorder=1%/1ms", 4 << 20)] {
            lab.act(&format!("wire rail0 {faults}"));
            let mut taker = lab.play(nodes - 1, &format!("take {bytes}"));
            assert_eq!(taker.hear(), "ready");
            assert_eq!(lab.play(0, &format!("give {bytes} {to}")).hear(), "sent");
            assert_eq!(taker.hear(), "right true", "{faults}");
        }
        lab.act("wire rail0 clean");
        let carrier = |node| lab.read(node, &["cat", "/sys/class/net/rail0/carrier"]);
        assert_eq!(carrier(0), "1");
        lab.act("cut rail0 down --node 1");
        // Behind a switch the others' links stay; a cable takes the far end's along.
        let far = if nodes == 2 { "0" } else { "1" };
        assert_eq!(carrier(0), far);
        lab.act("heal rail0");
        eventually("the link is back", || carrier(0) == "1" && carrier(1) == "1");
        let mut listener = lab.play(1, "hear");
        assert_eq!(listener.hear(), "ready");
        assert_eq!(lab.play(0, "tell back 10.1.0.2").hear(), "sent");
        assert_eq!(listener.hear(), "heard back");
    }
}

#[test]
fn a_schedule_changes_wires_and_the_events_tell_what_they_did() {
    need_lab!("wire");
    let events = temporary("wire").join("events.jsonl");
    let events_path = events.to_str().unwrap();
    let name = unique("wire");
    let run = output(&[
        "run",
        "--mpi",
        "none",
        "--name",
        &name,
        "--rail",
        "wire:1gbit,seed=9",
        "--events",
        events_path,
        "--schedule",
        "0s wire rail0 loss=10% from=n1",
        "--",
        "sleep",
        "0.5",
    ]);
    let stderr = text(&run.stderr);
    assert!(run.status.success(), "{stderr}");
    assert!(stderr.contains("rail0 wire:1gbit,seed=9"), "{stderr}");
    assert!(stderr.contains("wire rail0 loss=10%,from=n1\n") && stderr.contains(" wire rail0: "), "{stderr}");
    let lines: Vec<Value> = fs::read_to_string(&events)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let event =
        |name: &str| lines.iter().find(|line| line["event"] == name).unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(event("wire")["faults"], "loss=10%,from=n1");
    assert_eq!(event("wire")["rail"], "rail0");
    assert!(event("wire-counts")["frames"].is_u64());
}

#[test]
fn nothing_is_left_of_a_wire_after_sigkill() {
    need_lab!("wire");
    let links = host_links();
    let (mut child, name, word) = endless(&["--rail", "wire:loss=1%", "--rail", "wire"], 2, |_| {});
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_is_left(&name, &word, &links);
}

#[test]
fn a_wire_that_is_killed_ends_the_lab_with_a_sentence() {
    need_lab!("wire");
    let (child, _, word) = endless(&["--rail", "wire"], 1, |command| {
        command.stderr(std::process::Stdio::piped());
    });
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let supervisor = fs::read_to_string(children).unwrap().trim().to_string();
    // Of the supervisor's children the wire is the last that still runs the lab's own program: holders sleep in pause.
    let wire = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
    let wire = wire.split_whitespace().find(|pid| {
        fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut fds| {
            fds.any(|fd| fs::read_link(fd.unwrap().path()).is_ok_and(|path| path.ends_with("net/tun")))
        })
    });
    let killed =
        std::process::Command::new("kill").args(["-KILL", wire.expect("the wire's process")]).status();
    assert!(killed.unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(125));
    assert!(text(&ended.stderr).contains("the wire rail0 broke by itself"), "{}", text(&ended.stderr));
    eventually("no process is left", || processes_with(&word) == 0);
}
