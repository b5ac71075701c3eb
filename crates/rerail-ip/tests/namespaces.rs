//! The rail over IP between two network namespaces, with two veth rails: devices, routes and link events as between hosts.
//!
//! Needs the right to make namespaces; without it the tests say so and pass.

mod lab;

use lab::{Lab, Namespace, ip};
use rerail_transport::{CloseReason, RailId, Rails, SendOutcome, StreamEvent, StreamId, conformance_tests};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// One lab for all conformance tests of this process, removed at exit.
fn two_hosts() -> (Rails, Rails) {
    static LAB: OnceLock<Option<Lab>> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(Some(lab)) = LAB.get() {
            for n in &lab.names {
                ip(&format!("netns del {n}"));
            }
        }
    }
    let lab = LAB.get_or_init(|| {
        // SAFETY: registers a function that outlives the process's exit.
        unsafe { libc::atexit(remove) };
        Lab::new()
    });
    match lab {
        Some(lab) => (lab.attach(0), lab.attach(1)),
        None => (rerail_ip::attach_loopback(1..3).unwrap(), rerail_ip::attach_loopback(11..13).unwrap()),
    }
}

conformance_tests!(two_hosts);

fn changes(side: &mut Rails, want: &[(u8, bool)]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    while seen.len() < want.len() && Instant::now() < deadline {
        side.links.drain(&mut seen);
        std::thread::sleep(Duration::from_millis(1));
    }
    let seen: Vec<(u8, bool)> = seen.iter().map(|(r, up)| (r.0, *up)).collect();
    assert_eq!(seen, want);
}

fn port(side: &Rails, rail: usize) -> SocketAddr {
    SocketAddr::new(side.rails[rail].addr, side.port)
}

fn works(from: &Rails, to: &Rails, rail: usize) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        from.datagrams.send(RailId(rail as u8), port(to, rail), b"ping");
        std::thread::sleep(Duration::from_millis(5));
        if let Ok(Some(a)) = to.datagrams.recv(&mut [0; 64]) {
            return a.rail == RailId(rail as u8);
        }
    }
    false
}

#[test]
fn without_a_selection_both_veth_rails_are_found() {
    let Some(lab) = Lab::new() else { return };
    drop(lab.attach(0)); // waits until both run
    let found = Namespace::of(&lab.names[0]).run(|| rerail_ip::discover(&[]).unwrap());
    let names: Vec<&str> = found.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["rail0", "rail1"]);
    assert!(found.iter().all(|i| i.mtu == 1500 && i.prefix_bits == 24 && i.speed_mbps > 0), "{found:?}");
}

#[test]
fn a_cut_cable_is_told_on_both_sides_and_the_broken_rail_says_so() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, mut b) = (lab.attach(0), lab.attach(1));
    assert!(works(&a, &b, 0) && works(&a, &b, 1));
    assert!(ip(&format!("-n {} link set rail1 down", lab.names[0])));
    changes(&mut a, &[(1, false)]);
    changes(&mut b, &[(1, false)]);
    assert_eq!(a.datagrams.send(RailId(1), port(&b, 1), b"x"), SendOutcome::RailBroken);
    assert_eq!(a.datagrams.send(RailId(0), port(&b, 0), b"x"), SendOutcome::Sent);
    a.streams.open(StreamId(1), RailId(1), port(&b, 1));
    let mut out = Vec::new();
    a.streams.poll(&mut out);
    assert!(matches!(out[..], [StreamEvent::Closed(StreamId(1), CloseReason::Unreachable)]), "{out:?}");
    assert!(ip(&format!("-n {} link set rail1 up", lab.names[0])));
    changes(&mut a, &[(1, true)]);
    changes(&mut b, &[(1, true)]);
    while let Ok(Some(_)) = b.datagrams.recv(&mut [0; 64]) {}
    assert!(works(&a, &b, 1) && works(&b, &a, 1));
}

#[test]
fn a_flap_that_nobody_watched_is_told_in_full() {
    let Some(lab) = Lab::new() else { return };
    let mut a = lab.attach(0);
    assert!(ip(&format!("-n {} link set rail0 down", lab.names[0])));
    assert!(ip(&format!("-n {} link set rail0 up", lab.names[0])));
    changes(&mut a, &[(0, false), (0, true)]);
}

#[test]
fn an_interface_that_is_removed_and_made_again_comes_back_with_its_address() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, mut b) = (lab.attach(0), lab.attach(1));
    let [na, nb] = &lab.names;
    assert!(ip(&format!("-n {na} link del rail1")));
    changes(&mut a, &[(1, false)]);
    changes(&mut b, &[(1, false)]);
    assert_eq!(a.datagrams.send(RailId(1), port(&b, 1), b"x"), SendOutcome::RailBroken);
    assert!(ip(&format!("-n {na} link add rail1 type veth peer name rail1 netns {nb}")));
    for (host, n) in [(1, na), (2, nb)] {
        assert!(ip(&format!("-n {n} link set rail1 up")));
        assert!(ip(&format!("-n {n} addr add 10.77.1.{host}/24 dev rail1")));
    }
    changes(&mut a, &[(1, true)]);
    changes(&mut b, &[(1, true)]);
    assert!(works(&a, &b, 1) && works(&b, &a, 1));
}

#[test]
fn a_lost_address_is_a_broken_rail() {
    let Some(lab) = Lab::new() else { return };
    let mut a = lab.attach(0);
    assert!(ip(&format!("-n {} addr del 10.77.1.1/24 dev rail1", lab.names[0])));
    changes(&mut a, &[(1, false)]);
    assert!(ip(&format!("-n {} addr add 10.77.1.1/24 dev rail1", lab.names[0])));
    changes(&mut a, &[(1, true)]);
}

#[test]
fn processes_of_one_host_reach_each_other_on_every_rail() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, mut b) = (lab.attach(0), lab.attach(0));
    assert!(works(&a, &b, 0) && works(&a, &b, 1));
    a.streams.open(StreamId(1), RailId(1), port(&b, 1));
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut rail = None;
    while rail.is_none() && Instant::now() < deadline {
        b.streams.accept(&mut |r, _| {
            rail = Some(r);
            StreamId(2)
        });
    }
    assert_eq!(rail, Some(RailId(1)));
}
