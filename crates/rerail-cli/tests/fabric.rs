//! A fabric behind the rails does what it says: connections go by the links of a real fabric of namespaces, and its links are really cut.
//! Programs in the nodes are this test executable itself, in the role named by `RERAIL_TEST_ROLE`.

#[path = "common/world.rs"]
#[macro_use]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod world;

use std::env;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};
use world::*;

const PORT: u16 = 4000;
/// Connections that are tried: with two routes, all of them take one and the same once in 2^63 times.
const SOURCES: usize = 64;
/// Two leaves with two nodes each, and two spines.
const SMALL: [&str; 6] = ["--nodes", "4", "--rails", "1", "--fabric", "leaf-spine:2x2"];

/// Not a test: what runs inside the nodes.
#[test]
#[ignore = "runs inside the nodes, started by the other tests"]
fn role_in_a_node() {
    let Ok(role) = env::var("RERAIL_TEST_ROLE") else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words.as_slice() {
        ["echo"] => {
            let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
            say("ready");
            let mut byte = [0; 16];
            loop {
                let (size, from) = socket.recv_from(&mut byte).unwrap();
                let _ = socket.send_to(&byte[..size], from);
            }
        }
        // How many sources get an answer.
        ["ask", address] => {
            let sources: Vec<UdpSocket> = (0..SOURCES)
                .map(|_| {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.set_nonblocking(true).unwrap();
                    socket
                })
                .collect();
            let mut answered = [false; SOURCES];
            // what one attempt loses by chance, another does not; what is dark stays dark
            for _ in 0..3 {
                let round = Instant::now();
                for source in (0..SOURCES).filter(|&source| !answered[source]) {
                    // an interface that is down has no route and says so
                    let _ = sources[source].send_to(b"?", (*address, PORT));
                }
                while answered.contains(&false) && round.elapsed() < Duration::from_millis(200) {
                    for (source, answered) in sources.iter().zip(&mut answered) {
                        *answered |= source.recv(&mut [0; 16]).is_ok();
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }
            say(&format!("{}", answered.iter().filter(|answered| **answered).count()));
        }
        other => panic!("no such role: {other:?}"),
    }
}

/// How many of the sources at node 0 get an answer from another node.
fn answered(lab: &Lab, from: usize, to: usize) -> usize {
    lab.play(from, &format!("ask 10.1.0.{}", to + 1)).hear().parse().unwrap()
}

/// Nodes that answer.
fn echoes(lab: &Lab, nodes: std::ops::Range<usize>) -> Vec<Actor> {
    nodes
        .map(|node| {
            let mut actor = lab.play(node, "echo");
            assert_eq!(actor.hear(), "ready");
            actor
        })
        .collect()
}

/// What each link has carried in both directions, by name.
fn carried(lab: &Lab) -> Vec<(String, u64)> {
    let told = lab.command("status --json");
    let status: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let links = status["links"].as_array().unwrap().iter();
    let bytes = |link: &serde_json::Value, way: &str| link[way].as_u64().unwrap();
    links
        .map(|link| {
            (link["link"].as_str().unwrap().into(), bytes(link, "up_bytes") + bytes(link, "down_bytes"))
        })
        .collect()
}

#[test]
fn a_fabric_joins_every_pair_of_nodes_and_uses_every_link() {
    need_lab!();
    let lab = Lab::up(&["--nodes", "4", "--rails", "2", "--fabric", "leaf-spine:2x2"]);
    let _echoes = echoes(&lab, 1..4);
    let before = carried(&lab);
    assert_eq!(before.len(), 8, "two rails with a fabric each: {before:?}");
    for to in 1..4 {
        assert_eq!(answered(&lab, 0, to), SOURCES, "node {to}");
    }
    let after = carried(&lab);
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        // 128 sources cross the fabric; a datagram and its answer have 43 bytes each on the link
        let enough = after - before > 10 * 43;
        assert_eq!(enough, name.starts_with("rail0/"), "{name} carried {} bytes", after - before);
    }
}

#[test]
fn a_dark_link_drops_what_takes_it_and_a_link_that_is_down_is_left_out() {
    need_lab!();
    let lab = Lab::up(&SMALL);
    let _echoes = echoes(&lab, 1..3);
    for cut in ["rail0/leaf0-spine1 dark", "rail0/leaf1-spine0 dark-in", "all/spine1 dark-out"] {
        lab.act(&format!("cut {cut}"));
        let across = answered(&lab, 0, 2);
        assert!(across > 0 && across < SOURCES, "{cut}: {across} of {SOURCES}");
        assert_eq!(answered(&lab, 0, 1), SOURCES, "{cut}: one leaf needs no spine");
        lab.act("heal rail0");
        assert_eq!(answered(&lab, 0, 2), SOURCES, "{cut}, healed");
    }
    // at the leaf of the sender, and at the other one, of which the sender's leaf has to hear
    for cut in ["rail0/leaf0-spine1 down", "rail0/leaf1-spine1 down"] {
        lab.act(&format!("cut {cut}"));
        let before = carried(&lab);
        assert_eq!(answered(&lab, 0, 2), SOURCES, "{cut}");
        // what asks for neighbours may still pass; half of the sources would bring some thousand bytes
        let by_spine1 = |all: Vec<(String, u64)>| {
            all.into_iter().filter(|(name, _)| name.ends_with("spine1")).map(|(_, bytes)| bytes).sum::<u64>()
        };
        assert!(by_spine1(carried(&lab)) - by_spine1(before) < 400, "{cut}: spine1 carries nothing");
        lab.act(&format!("heal {}", cut.split_once(' ').unwrap().0));
    }
    let before = carried(&lab);
    assert_eq!(answered(&lab, 0, 2), SOURCES);
    let after = carried(&lab);
    assert!(
        before.iter().zip(&after).all(|(b, a)| a.1 - b.1 > 5 * 43),
        "all carry again: {before:?} {after:?}"
    );
    lab.act("cut rail0/leaf0 down");
    assert_eq!(answered(&lab, 0, 2), 0, "no way out of the leaf");
    let told = text(&lab.command("status").stdout);
    assert!(told.contains("rail0/leaf0-spine1  unshaped  down"), "{told}");
}

#[test]
fn a_node_behind_a_fabric_is_cut_off_as_without_one() {
    need_lab!();
    let lab = Lab::up(&SMALL);
    let _echoes = echoes(&lab, 1..3);
    for (cut, far) in [
        ("cut rail0 dark-out --node 0", [0, SOURCES]),
        ("cut rail0 dark-in --node 0", [0, SOURCES]),
        ("cut rail0 dark --node 3", [SOURCES, 0]),
        ("cut rail0 down --node 3", [SOURCES, 0]),
    ] {
        lab.act(cut);
        let seen = [answered(&lab, 0, 2), answered(&lab, 3, 2)];
        assert_eq!(seen, far, "{cut}");
        lab.act("heal rail0");
        assert_eq!([answered(&lab, 0, 2), answered(&lab, 3, 2)], [SOURCES; 2], "{cut}, healed");
    }
}

#[test]
fn what_is_no_fabric_is_answered_by_what_is_one() {
    for (arguments, says) in [
        (&["--fabric", "tcp"][..], "write leaf-spine:LEAVESxSPINES"),
        (&["--fabric", "leaf-spine:0x4"], "1 to 16 leaves"),
        (&["--fabric", "leaf-spine:4x2"], "4 leaves are more than the 2 nodes"),
        (&["--fabric", "leaf-spine:2x2", "--rail", "wire"], "leave out --rdma, and the word wire"),
        (&["--schedule", "1s cut rail0/spine0 dark"], "start it with --fabric"),
    ] {
        let run = [&["run", "-q", "--mpi", "none"], arguments, &["--", "true"]].concat();
        let run = output(&run);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        let told = text(&run.stderr);
        assert!(told.contains(says), "{arguments:?}: {told}");
    }
}
