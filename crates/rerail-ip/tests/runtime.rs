//! Engine, runtime and the rail over IP together: two runtimes in one process, over loopback or between two namespaces.

mod lab;
mod two;

use lab::{Lab, ip};
use rerail_core::{Health, Options};
use rerail_rail::Rails;
use rerail_runtime::control::{self, Request};
use rerail_runtime::{Runtime, RuntimeError, Setup};
use std::sync::Arc;
use std::time::{Duration, Instant};
use two::{NEVER, Node, bytes, collect, eventually};

fn loopback() -> (Node, Node) {
    pair(&Options::default())
}

fn pair(o: &Options) -> (Node, Node) {
    let a = Node::new(rerail_ip::attach_loopback(1..3).unwrap(), o.clone());
    let b = Node::new(rerail_ip::attach_loopback(11..13).unwrap(), o.clone());
    (a, b)
}

#[test]
fn a_forked_child_is_refused_and_harms_nothing() {
    let (a, b) = loopback();
    let dest = a.knows(&b);
    let (mut first, mut second) = ([0u8; 100_000].to_vec(), [0u8; 100_000].to_vec());
    b.recv(1, &mut first);
    b.recv(2, &mut second);
    let sent = bytes(4, 100_000);
    a.send(dest, 1, &sent);
    collect(&[&a, &b], 2);
    // SAFETY: the child calls only what touches no lock before it has seen that it is a child, then leaves.
    let status = unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let refused = a.rt.progress() == Err(RuntimeError::Forked)
                && a.rt.with(|_, _| ()) == Err(RuntimeError::Forked)
                && a.rt.close_endpoint(a.ep) == Err(RuntimeError::Forked)
                && a.rt.wait_input(Duration::ZERO) == Err(RuntimeError::Forked);
            a.rt.shutdown();
            drop(Arc::from_raw(Arc::into_raw(a.rt.clone())));
            libc::_exit(i32::from(!refused));
        }
        let mut status = 0;
        libc::waitpid(pid, &raw mut status, 0);
        status
    };
    assert_eq!(status, 0);
    a.send(dest, 2, &sent);
    collect(&[&a, &b], 2);
    assert!(first == sent && second == sent);
}

#[test]
fn events_are_logged_and_written_as_json_lines() {
    let file = std::env::temp_dir().join(format!("rerail-runtime-test-{}", std::process::id()));
    let mut o = Options::default();
    o.set("events", file.to_str().unwrap()).unwrap();
    let (a, b) = pair(&o);
    let dest = a.knows(&b);
    let mut got = [0u8; 8];
    b.recv(1, &mut got);
    a.send(dest, 1, &[7; 8]);
    collect(&[&a, &b], 2);
    a.rt.close_endpoint(a.ep).unwrap();
    b.rt.close_endpoint(b.ep).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(text.lines().count() >= 2, "{text}");
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let own = |name: &str, value: serde_json::Value| assert_eq!(event[name], value, "{line}");
        own("source", "rerail".into());
        own("pid", std::process::id().into());
        assert!(
            event["t_unix_ns"].is_u64() && event["event"].is_string() && event["host"].is_string(),
            "{line}"
        );
    }
    assert!(text.contains("\"event\":\"path_up\",\"rail\":\"lo\""), "{text}");
}

#[test]
fn a_process_sends_to_itself() {
    let (a, _b) = loopback();
    let own = a.knows(&a);
    let sent = bytes(1, 200_000);
    let mut got = vec![0u8; 200_000];
    a.recv(1, &mut got);
    a.send(own, 1, &sent);
    collect(&[&a], 2);
    assert!(sent == got);
}

#[test]
fn a_cut_rail_is_failed_over_and_taken_back() {
    let Some(lab) = Lab::new() else { return };
    let (a, b) = (Node::new(lab.attach(0), Options::default()), Node::new(lab.attach(1), Options::default()));
    let dest = a.knows(&b);
    let sent: Vec<_> = (0..8).map(|i| bytes(i, 500_000)).collect();
    let mut round = 0;
    let mut exchange = |until: &mut dyn FnMut() -> bool| {
        let start = Instant::now();
        loop {
            let mut got: Vec<_> = (0..8).map(|_| vec![0u8; 500_000]).collect();
            for (i, g) in got.iter_mut().enumerate() {
                b.recv(i as u64, g);
            }
            for (i, s) in sent.iter().enumerate() {
                a.send(dest, i as u64, s);
            }
            collect(&[&a, &b], 16);
            assert!(sent == got, "round {round}");
            round += 1;
            if until() {
                return;
            }
            assert!(start.elapsed() < NEVER, "never happened");
        }
    };
    let up =
        |n: &Node| n.rt.inspect(|e| e.paths().iter().filter(|p| p.health == Health::Up).count()).unwrap();
    exchange(&mut || up(&a) == 2 && up(&b) == 2);
    let said = |n: &Node, start: &str, part: &str| {
        n.log.lock().unwrap().iter().any(|l| l.starts_with(start) && l.contains(part))
    };
    assert!(ip(&format!("-n {} link set rail1 down", lab.names[0])));
    exchange(&mut || {
        said(&a, "path down: rail=rail1", "witness=") && said(&b, "path down: rail=rail1", "witness=")
    });
    assert!(said(&a, "path down: rail=rail1", "witness=link"), "the own port is the first to know");
    exchange(&mut || up(&a) == 1);
    assert!(ip(&format!("-n {} link set rail1 up", lab.names[0])));
    exchange(&mut || up(&a) == 2 && up(&b) == 2);
    assert!(!said(&a, "partition", "") && !said(&b, "partition", ""));
    let c = b.rt.inspect(|e| e.counters()).unwrap();
    assert_eq!((c.corrupt, c.strangers), (0, 0));
}

#[test]
fn messages_travel_over_ipv6_and_over_rails_that_share_a_network() {
    for lab in [Lab::v6(), Lab::one_network()] {
        let Some(lab) = lab else { return };
        let a = Node::new(lab.attach(0), Options::default());
        let b = Node::new(lab.attach(1), Options::default());
        let dest = a.knows(&b);
        let sent: Vec<_> = (0..20).map(|i| bytes(i, 400_000)).collect();
        let mut got: Vec<_> = (0..20).map(|_| vec![0u8; 400_000]).collect();
        for (i, g) in got.iter_mut().enumerate() {
            b.recv(i as u64, g);
        }
        for (i, s) in sent.iter().enumerate() {
            a.send(dest, i as u64, s);
        }
        collect(&[&a, &b], 40);
        assert!(sent == got);
        eventually("both rails are up", || {
            let _ = (a.rt.progress(), b.rt.progress());
            a.rt.inspect(|e| {
                e.paths().iter().filter(|p| p.health == Health::Up && p.streams > 0).count() == 2
            })
            .unwrap()
        });
    }
}

/// A directory for control sockets, removed when dropped.
struct Sockets(std::path::PathBuf);

impl Sockets {
    fn new(word: &str) -> Sockets {
        Sockets(std::env::temp_dir().join(format!("rerail-runtime-{word}-{}", std::process::id())))
    }

    fn options(&self) -> Options {
        let mut o = Options::default();
        o.set("control", self.0.to_str().unwrap()).unwrap();
        o
    }

    fn all(&self) -> Vec<std::path::PathBuf> {
        control::list(Some(&self.0)).into_iter().map(|process| process.socket).collect()
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Rails with names that a user would tell apart.
fn named(range: std::ops::Range<u8>) -> Rails {
    let mut rails = rerail_ip::attach_loopback(range).unwrap();
    for (i, r) in rails.rails.iter_mut().enumerate() {
        r.name = format!("rail{i}");
    }
    rails
}

#[test]
fn faults_are_planted_and_cleared_while_messages_flow_and_blamed_on_their_rail() {
    let sockets = Sockets::new("faults");
    let events = std::env::temp_dir().join(format!("rerail-faults-{}.jsonl", std::process::id()));
    let mut o = sockets.options();
    o.set("events", events.to_str().unwrap()).unwrap();
    let a = Node::new(named(1..3), o);
    let socket = sockets.all().pop().expect("the process listens");
    let b = Node::new(named(11..13), Options::default());
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    let exchange = |rounds: std::ops::Range<u64>| {
        for tag in rounds {
            let sizes = [300, 20_000, 400_000];
            let sent: Vec<_> = sizes.iter().map(|&n| bytes(tag as usize, n)).collect();
            let mut got: Vec<_> = sizes.iter().flat_map(|&n| [vec![0u8; n], vec![0u8; n]]).collect();
            for (i, message) in sent.iter().enumerate() {
                let tag = tag * 10 + i as u64;
                let [there, back] = &mut got[2 * i..2 * i + 2] else { unreachable!() };
                b.recv(tag, there);
                a.recv(tag, back);
                a.send(to_b, tag, message);
                b.send(to_a, tag, message);
            }
            collect(&[&a, &b], 12);
            assert!(got.iter().enumerate().all(|(i, message)| *message == sent[i / 2]));
        }
    };
    let ask = |request| control::ask(&socket, &request);
    exchange(0..5);
    assert_eq!(ask(Request::FaultsShow).unwrap(), "faults none\n");
    let why = ask(Request::FaultsSet("rail7: loss=1%".into())).unwrap_err();
    assert_eq!(why, "`rail7` is no rail of this process: write all or one of rail0, rail1");
    assert_eq!(ask(Request::FaultsShow).unwrap(), "faults none\n", "what is wrong changes nothing");
    let plan = "rail1: loss=3% corrupt=3% dup=3% reorder=3%/1ms seed=5";
    assert!(ask(Request::FaultsSet(plan.into())).unwrap().starts_with(&format!("faults {plan}\n")));
    let mut round = 5;
    eventually("everything has happened", || {
        exchange(round..round + 5);
        round += 5;
        let shown = ask(Request::FaultsShow).unwrap();
        let rail1 = shown.lines().find(|line| line.starts_with("rail=rail1")).unwrap().to_owned();
        ["lost", "corrupted", "duplicated", "reordered"]
            .iter()
            .all(|what| !rail1.contains(&format!(" {what}=0")))
    });
    let shown = ask(Request::FaultsShow).unwrap();
    assert!(shown.contains("rail=rail0 lost=0 corrupted=0 duplicated=0 reordered=0"), "{shown}");
    let damaged =
        || a.rt.inspect(|e| e.counters().corrupt).unwrap() + b.rt.inspect(|e| e.counters().corrupt).unwrap();
    eventually("the damage is noticed", || {
        exchange(round..round + 1);
        round += 1;
        damaged() > 0
    });
    assert!(ask(Request::FaultsClear).unwrap().starts_with("faults none\nrail=rail0 "));
    exchange(round..round + 5);
    let log = || a.log.lock().unwrap().join("\n");
    assert!(log().contains(&format!("faults are planted in this process from now on: {plan}")), "{}", log());
    assert!(log().contains("no faults are planted in this process any more"));
    for blamed in ["path down: rail=rail0", "corruption: rail=rail0"] {
        assert!(!log().contains(blamed), "the good rail is not blamed: {}", log());
    }
    a.rt.shutdown();
    assert!(log().contains("faults that were planted: rail=rail1 lost="), "{}", log());
    let told = std::fs::read_to_string(&events).unwrap();
    std::fs::remove_file(&events).unwrap();
    for event in ["faults_planted", "faults_cleared", "faults_counted"] {
        assert!(told.contains(&format!("\"event\":\"{event}\"")), "{event}: {told}");
    }
}

#[test]
fn faults_that_the_option_plants_are_there_from_the_first_message_on() {
    let mut o = Options::default();
    o.set("faults", "rail0: dark").unwrap();
    let a = Node::new(named(1..3), o);
    let b = Node::new(named(11..13), Options::default());
    let dest = a.knows(&b);
    let sent = bytes(1, 300_000);
    let mut got = vec![0u8; sent.len()];
    b.recv(1, &mut got);
    a.send(dest, 1, &sent);
    collect(&[&a, &b], 2);
    assert!(sent == got);
    let up: Vec<bool> = a.rt.inspect(|e| e.paths().iter().map(|p| p.health == Health::Up).collect()).unwrap();
    assert_eq!(up, [false, true], "nothing passes the dark rail");
    let mut wrong = Options::default();
    wrong.set("faults", "rail0: lots").unwrap();
    let why =
        Runtime::start(Setup { options: wrong, rails: named(1..3), log: None }).err().unwrap().to_string();
    assert!(why.starts_with("FI_RERAIL_FAULTS: `lots` is not understood: write loss=1%"), "{why}");
}

#[test]
fn a_running_process_migrates_when_its_user_asks() {
    let sockets = Sockets::new("migrate");
    let mut o = sockets.options();
    o.set("policy", "primary-standby").unwrap();
    let a = Node::new(named(1..3), o.clone());
    let socket = sockets.all().pop().expect("the process listens");
    let b = Node::new(named(11..13), o);
    let dest = a.knows(&b);
    let exchange = |tag: u64| {
        let sent = bytes(tag as usize, 700_000);
        let mut got = vec![0u8; sent.len()];
        b.recv(tag, &mut got);
        a.send(dest, tag, &sent);
        collect(&[&a, &b], 2);
        assert!(sent == got);
    };
    exchange(1);
    // neither application makes progress from here on: the service thread answers
    let paths = || control::ask(&socket, &Request::Paths).unwrap();
    eventually("the alternate is armed", || paths().contains("rail=rail0 alternate=rail1 state=ARMED"));
    let migrate =
        |from: &str, to: &str| control::ask(&socket, &Request::Migrate { from: from.into(), to: to.into() });
    assert_eq!(migrate("rail0", "rail1").unwrap(), "moved=1 peers=1 refused=0\n");
    let sent_on_0 = || a.rt.inspect(|e| e.paths()[0].bytes_sent).unwrap();
    let before = sent_on_0();
    exchange(2);
    assert_eq!(sent_on_0(), before, "what was migrated uses the other rail");
    assert!(paths().contains("home=rail0 rail=rail1") && paths().contains("requested=yes"), "{}", paths());
    let why = migrate("rail0", "rail1").unwrap_err();
    assert!(why.contains("rail \"rail0\" carries nothing now"), "{why}");
    let why = migrate("rail0", "ib9").unwrap_err();
    assert_eq!(why, "there is no rail \"ib9\": the rails of this process are rail0, rail1");
    assert_eq!(control::ask(&socket, &Request::Home).unwrap(), "moved=1 peers=1 refused=0\n");
    exchange(3);
    assert!(sent_on_0() > before);
    let log = a.log.lock().unwrap().join("\n");
    assert!(log.contains("migrated: rail=rail1") && log.contains("from=rail0 cause=request"), "{log}");
    // an application that was stopped in the middle holds the lock: reported, not waited for
    let refused = a.rt.inspect(|_| control::ask(&socket, &Request::Paths)).unwrap();
    assert_eq!(refused.unwrap_err(), "the process is busy: try again");
    assert!(a.rt.close_endpoint(a.ep).unwrap());
    assert!(!socket.exists(), "the socket goes with the runtime");
    assert_eq!(
        control::ask(&socket, &Request::Paths).unwrap_err(),
        format!("no process listens at {}: it has ended", socket.display())
    );
}

#[test]
fn garbage_on_the_control_socket_is_answered_or_dropped_and_holds_up_nobody() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let sockets = Sockets::new("garbage");
    let (a, b) = pair(&sockets.options());
    for socket in sockets.all() {
        let say = |bytes: &[u8]| {
            let mut s = UnixStream::connect(&socket).unwrap();
            let _ = s.write_all(bytes);
            let _ = s.shutdown(std::net::Shutdown::Write);
            let mut answer = String::new();
            s.read_to_string(&mut answer).map(|_| answer).unwrap_or_default()
        };
        assert!(say(b"GET / HTTP/1.1\r\n\r\n").starts_with("rerail 1 error a request is a line"));
        assert!(say(b"rerail 99 paths\n").starts_with("rerail 1 error this process understands version 1"));
        assert!(say(&[0xff; 40]).starts_with("rerail 1 error the request ends without a newline"));
        say(&vec![b'x'; 1 << 20]);
        say(b"");
        // connections that send nothing, and some that close before they get a reply
        let silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        for _ in 0..20 {
            UnixStream::connect(&socket).unwrap().write_all(b"rerail 1 paths\n").unwrap();
        }
        drop(silent);
        eventually("the next is served", || control::ask(&socket, &Request::Paths).is_ok());
    }
    let dest = a.knows(&b);
    let mut got = [0u8; 8];
    b.recv(1, &mut got);
    a.send(dest, 1, &[7; 8]);
    collect(&[&a, &b], 2);
}

#[test]
fn without_a_control_socket_there_is_none_and_a_bad_place_is_said() {
    let sockets = Sockets::new("off");
    let mut o = sockets.options();
    o.set("control", "off").unwrap();
    let a = Node::new(rerail_ip::attach_loopback(1..3).unwrap(), o.clone());
    assert!(sockets.all().is_empty() && !sockets.0.exists());
    drop(a);
    o.set("control", "/nonexistent/x").unwrap();
    let a = Node::new(rerail_ip::attach_loopback(1..3).unwrap(), o);
    assert!(
        a.log.lock().unwrap().iter().any(|l| l.contains("no control socket: cannot make /nonexistent/x"))
    );
    assert!(a.rt.check_usable().is_ok());
}
