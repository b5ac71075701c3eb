//! The rail over IP between two network namespaces, with two veth rails: devices, routes and link events as between hosts.
//!
//! Needs the right to make namespaces; without it the tests say so and pass.

mod lab;

use lab::{Lab, Namespace, ip};
use rerail_rail::{CloseReason, IoVec, Locator, Moved, RailId, Rails, SendOutcome, StreamEvent, StreamId};
use std::mem::ManuallyDrop;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Labs for the conformance tests of this process, removed at exit.
static LABS: [OnceLock<Option<Lab>>; 4] = [const { OnceLock::new() }; 4];

fn hosts(which: usize, make: fn() -> Option<Lab>) -> (Rails, Rails) {
    extern "C" fn remove() {
        for lab in LABS.iter().filter_map(|l| l.get()?.as_ref()) {
            for n in &lab.names {
                ip(&format!("netns del {n}"));
            }
        }
    }
    let lab = LABS[which].get_or_init(|| {
        // SAFETY: registers a function that outlives the process's exit.
        unsafe { libc::atexit(remove) };
        make()
    });
    match lab {
        Some(lab) => (lab.attach(0), lab.attach(1)),
        None => (rerail_ip::attach_loopback(1..3).unwrap(), rerail_ip::attach_loopback(11..13).unwrap()),
    }
}

mod v4 {
    rerail_rail::conformance_tests!(|| super::hosts(0, super::Lab::new));
}

mod v6 {
    rerail_rail::conformance_tests!(|| super::hosts(1, super::Lab::v6));
}

mod one_network {
    rerail_rail::conformance_tests!(|| super::hosts(2, super::Lab::one_network));
}

mod mixed_families {
    rerail_rail::conformance_tests!(|| super::hosts(3, super::Lab::mixed));
}

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

fn port(side: &Rails, rail: usize) -> Locator {
    side.rails[rail].locator
}

/// Where a rail is, whatever the port.
fn place(side: &Rails, rail: usize) -> Locator {
    port(side, rail).with_service(0)
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

/// Whether a connection can be made and carries bytes from the accepting side.
fn connects(a: &mut Rails, b: &mut Rails, rail: usize) -> bool {
    static NAMES: AtomicU32 = AtomicU32::new(100);
    let n = NAMES.fetch_add(2, Ordering::Relaxed);
    a.streams.open(StreamId(n), RailId(rail as u8), port(b, rail));
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut buf = [0; 8];
    while Instant::now() < deadline {
        let mut out = Vec::new();
        b.streams.poll(&mut out);
        if out.contains(&StreamEvent::Incoming)
            && b.streams.accept(&mut |r, _| StreamId(if r.0 == rail as u8 { n + 1 } else { 1 }))
        {
            // SAFETY: the bytes are static.
            unsafe { b.streams.write(StreamId(n + 1), &[IoVec::from_ref(b"hello")]) };
        }
        a.streams.poll(&mut out);
        // SAFETY: the buffer is borrowed exclusively through the call.
        let got = unsafe { a.streams.read(StreamId(n), &[IoVec::from_mut(&mut buf)]) };
        if got == Moved::Bytes(5) {
            return true;
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
    assert!(connects(&mut a, &mut b, 1) && connects(&mut b, &mut a, 1));
}

#[test]
fn a_route_is_a_source_port_of_its_own_and_survives_its_device() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, b) = (lab.attach(0), lab.attach(1));
    let [na, nb] = &lab.names;
    let mut descriptors = Vec::new();
    a.datagrams.descriptors(&mut descriptors);
    let before = descriptors.len();
    let source = |a: &Rails, route: u8| {
        a.datagrams.lead(RailId(1), port(&b, 1), route);
        let mut found = None;
        let deadline = Instant::now() + Duration::from_secs(10);
        while found.is_none() && Instant::now() < deadline {
            a.datagrams.send(RailId(1), port(&b, 1), b"ping");
            std::thread::sleep(Duration::from_millis(5));
            found = b.datagrams.recv(&mut [0; 64]).unwrap();
        }
        while let Ok(Some(_)) = b.datagrams.recv(&mut [0; 64]) {}
        found.expect("it arrives").from.socket().expect("it is IP").port()
    };
    let ports: Vec<u16> = (0..8).map(|route| source(&a, route)).collect();
    let mut different = ports.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 8, "a fabric tells them apart: {ports:?}");
    assert_eq!((source(&a, 3), source(&a, 0)), (ports[3], ports[0]), "a route keeps its port");
    let mut count = |a: &Rails| {
        descriptors.clear();
        a.datagrams.descriptors(&mut descriptors);
        descriptors.len()
    };
    assert_eq!(count(&a), before, "nothing is led elsewhere, so nothing is kept");
    source(&a, 5);
    assert_eq!(count(&a), before + 2, "a forked child closes those of the route in use");
    // another destination of the rail takes a route of its own
    a.datagrams.lead(RailId(1), port(&b, 0), 6);
    assert_eq!((count(&a), source(&a, 5)), (before + 4, ports[5]));
    a.datagrams.lead(RailId(1), port(&b, 0), 0);
    assert_eq!(count(&a), before + 2);
    assert!(ip(&format!("-n {na} link del rail1")));
    changes(&mut a, &[(1, false)]);
    assert!(ip(&format!("-n {na} link add rail1 type veth peer name rail1 netns {nb}")));
    for (host, n) in [(1, na), (2, nb)] {
        assert!(ip(&format!("-n {n} link set rail1 up")));
        assert!(ip(&format!("-n {n} addr add 10.77.1.{host}/24 dev rail1")));
    }
    changes(&mut a, &[(1, true)]);
    assert!(works(&a, &b, 1), "the sockets of a device that is gone are not used");
    while let Ok(Some(_)) = b.datagrams.recv(&mut [0; 64]) {}
    assert_ne!(source(&a, 5), source(&a, 0), "a route of the new device has a port of its own");
}

#[test]
fn ipv6_rails_lose_and_regain_their_link() {
    let Some(lab) = Lab::v6() else { return };
    let (mut a, b) = (lab.attach(0), lab.attach(1));
    assert!(works(&a, &b, 0) && works(&b, &a, 1));
    // The peer's side: the own interface stays up and keeps its address, only the carrier goes.
    assert!(ip(&format!("-n {} link set rail1 down", lab.names[1])));
    changes(&mut a, &[(1, false)]);
    assert!(ip(&format!("-n {} link set rail1 up", lab.names[1])));
    changes(&mut a, &[(1, true)]);
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
fn a_lost_address_is_noticed_when_its_news_found_no_room() {
    let Some(lab) = Lab::new() else { return };
    let mut a = lab.attach(0);
    // as small as the kernel makes it
    set_receive_buffer(a.links.fd(), 1);
    for n in 0..60 {
        for what in ["add", "del"] {
            assert!(ip(&format!("-n {} addr {what} 10.78.{n}.1/24 dev rail0", lab.names[0])));
        }
    }
    assert!(ip(&format!("-n {} addr del 10.77.1.1/24 dev rail1", lab.names[0])));
    changes(&mut a, &[(1, false)]);
    assert!(ip(&format!("-n {} addr add 10.77.1.1/24 dev rail1", lab.names[0])));
    changes(&mut a, &[(1, true)]);
}

fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) {
    socket2::SockRef::from(&socket).set_recv_buffer_size(bytes).unwrap();
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

/// Where the connected UDP sockets of a side are connected to.
fn connected(side: &Rails) -> Vec<Locator> {
    let mut fds = Vec::new();
    side.datagrams.descriptors(&mut fds);
    // SAFETY: the port keeps the descriptor open, and `ManuallyDrop` does not close it.
    let socket = |fd| ManuallyDrop::new(unsafe { UdpSocket::from_raw_fd(fd) });
    fds.into_iter().filter(|&fd| is_connection(fd)).map(|fd| socket(fd).peer_addr().unwrap().into()).collect()
}

/// Datagrams that lie at a side, until there are `n`: rail, sender's address and text of each.
fn arrivals(side: &Rails, n: usize) -> Vec<(u8, Locator, String)> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut found, mut buf) = (Vec::new(), [0; 256]);
    while found.len() < n && Instant::now() < deadline {
        if let Some(a) = side.datagrams.recv(&mut buf).unwrap() {
            found.push((
                a.rail.0,
                a.from.with_service(0),
                String::from_utf8_lossy(&buf[..a.len]).into_owned(),
            ));
        }
    }
    found
}

/// A ping-pong long enough to be worth a socket on both sides.
fn talk(a: &Rails, b: &Rails, rail: usize) {
    for i in 0..300 {
        for (from, to) in [(a, b), (b, a)] {
            let text = format!("{i}");
            assert_eq!(
                from.datagrams.send(RailId(rail as u8), port(to, rail), text.as_bytes()),
                SendOutcome::Sent
            );
            assert_eq!(arrivals(to, 1), [(rail as u8, place(from, rail), text)]);
        }
    }
}

fn frequent_peers(lab: &Lab) {
    let (a, b) = (lab.attach(0), lab.attach(1));
    talk(&a, &b, 0);
    assert_eq!((connected(&a), connected(&b)), (vec![port(&b, 0)], vec![port(&a, 0)]));

    // others are received as before: on the other rail, from another process of the peer's host, and trains
    let c = lab.attach(1);
    for rail in [0, 1] {
        for from in [&b, &c] {
            let text = format!("rail {rail}");
            assert_eq!(
                from.datagrams.send(RailId(rail as u8), port(&a, rail), text.as_bytes()),
                SendOutcome::Sent
            );
            assert_eq!(arrivals(&a, 1), [(rail as u8, place(from, rail), text)]);
        }
    }
    assert_eq!(b.datagrams.send_train(RailId(0), port(&a, 0), b"aabbc", 2).sent, 3);
    let texts: Vec<String> = arrivals(&a, 3).into_iter().map(|a| a.2).collect();
    assert_eq!(texts, ["aa", "bb", "c"]);

    // after a pause, when everything is cold
    while let Ok(Some(_)) = a.datagrams.recv(&mut [0; 8]) {}
    for _ in 0..2000 {
        assert_eq!(a.datagrams.recv(&mut [0; 8]).unwrap(), None);
    }
    for from in [&b, &c] {
        assert_eq!(from.datagrams.send(RailId(0), port(&a, 0), b"late"), SendOutcome::Sent);
        assert!(readable(&a), "a sleeper is woken, whichever socket it came by");
        assert_eq!(arrivals(&a, 1), [(0, place(from, 0), "late".into())]);
    }
    assert!(!readable(&a));
}

/// Whether the descriptor of a side's datagrams wakes a sleeper.
fn readable(side: &Rails) -> bool {
    let mut p = libc::pollfd { fd: side.datagrams.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let at_once = side.datagrams.before_sleep(false);
    // SAFETY: one valid pollfd, which lives through the call.
    let woken = at_once || unsafe { libc::poll(&raw mut p, 1, 100) == 1 };
    side.datagrams.after_sleep();
    woken
}

#[test]
fn frequent_peers_have_sockets_of_their_own_and_others_are_heard_as_before() {
    let Some(lab) = Lab::new() else { return };
    frequent_peers(&lab);
}

#[test]
fn so_have_they_over_ipv6() {
    let Some(lab) = Lab::v6() else { return };
    frequent_peers(&lab);
}

#[test]
fn so_have_they_where_rails_are_of_both_families() {
    let Some(lab) = Lab::mixed() else { return };
    frequent_peers(&lab);
    let (a, b) = (lab.attach(0), lab.attach(1));
    talk(&a, &b, 1);
    assert_eq!((connected(&a), connected(&b)), (vec![port(&b, 1)], vec![port(&a, 1)]));
}

#[test]
fn a_peer_that_answers_on_another_rail_has_a_socket_there_too() {
    let Some(lab) = Lab::new() else { return };
    let (a, b) = (lab.attach(0), lab.attach(1));
    for k in 0..400 {
        assert_eq!(a.datagrams.send(RailId(0), port(&b, 0), b"to b"), SendOutcome::Sent);
        assert_eq!(arrivals(&b, 1), [(0, place(&a, 0), "to b".into())], "{k}");
        assert_eq!(b.datagrams.send(RailId(1), port(&a, 1), b"to a"), SendOutcome::Sent);
        assert_eq!(arrivals(&a, 1), [(1, place(&b, 1), "to a".into())], "{k}");
    }
    for (side, peer) in [(&a, &b), (&b, &a)] {
        let mut whom = connected(side);
        whom.sort();
        assert_eq!(whom, [port(peer, 0), port(peer, 1)]);
    }
    for rail in 0..2 {
        talk(&a, &b, rail);
    }
}

#[test]
fn only_a_few_peers_have_sockets_of_their_own() {
    let Some(lab) = Lab::new() else { return };
    let a = lab.attach(0);
    let others: Vec<Rails> = (0..5).map(|_| lab.attach(1)).collect();
    for b in &others {
        talk(&a, b, 0);
    }
    let mut whom = connected(&a);
    whom.sort();
    let mut first: Vec<Locator> = others[..4].iter().map(|b| port(b, 0)).collect();
    first.sort();
    assert_eq!(whom, first);
    for (i, b) in others.iter().enumerate() {
        talk(&a, b, i % 2);
    }
}

#[test]
fn a_flood_by_one_socket_keeps_nobody_from_being_heard() {
    let Some(lab) = Lab::new() else { return };
    let (a, b, c) = (lab.attach(0), lab.attach(1), lab.attach(1));
    talk(&a, &b, 0);
    talk(&a, &c, 0);
    let stranger = lab.attach(1);
    for from in [&b, &c, &stranger] {
        let mut buf = [0; 8];
        for k in 0.. {
            // there is always something of the other two
            for flood in [&b, &c].iter().filter(|f| !std::ptr::eq(**f, from)) {
                flood.datagrams.send(RailId(0), port(&a, 0), b"flood");
            }
            if k == 10 {
                from.datagrams.send(RailId(0), port(&a, 0), b"word");
            }
            let a = a.datagrams.recv(&mut buf).unwrap().expect("there is always something");
            if &buf[..a.len] == b"word" {
                break;
            }
            assert!(k < 100, "it is not received");
        }
        while readable(&a) {
            let _ = a.datagrams.recv(&mut buf);
        }
    }
}

#[test]
fn a_connected_socket_of_a_device_that_was_made_anew_is_given_up() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, mut b) = (lab.attach(0), lab.attach(1));
    let [na, nb] = &lab.names;
    talk(&a, &b, 1);
    assert!(ip(&format!("-n {na} link del rail1")));
    changes(&mut a, &[(1, false)]);
    changes(&mut b, &[(1, false)]);
    assert_eq!(a.datagrams.send(RailId(1), port(&b, 1), b"x"), SendOutcome::RailBroken);
    assert_eq!(connected(&a), []);
    assert!(ip(&format!("-n {na} link add rail1 type veth peer name rail1 netns {nb}")));
    for (host, n) in [(1, na), (2, nb)] {
        assert!(ip(&format!("-n {n} link set rail1 up")));
        assert!(ip(&format!("-n {n} addr add 10.77.1.{host}/24 dev rail1")));
    }
    changes(&mut a, &[(1, true)]);
    changes(&mut b, &[(1, true)]);
    assert!(works(&a, &b, 1) && works(&b, &a, 1));
    for side in [&a, &b] {
        // what was sent before it worked
        while readable(side) {
            let _ = side.datagrams.recv(&mut [0; 64]);
        }
    }
    talk(&a, &b, 1);
    assert_eq!((connected(&a), connected(&b)), (vec![port(&b, 1)], vec![port(&a, 1)]));
}

/// Bytes that the kernel has not sent once on a connection, and segments in flight.
fn pending(fd: RawFd) -> (i32, u32) {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    let mut unsent = 0;
    // SAFETY: all zeros is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes an int, and at most `length` bytes of `info`; all live through the calls.
    let failed = unsafe {
        libc::ioctl(fd, SIOCOUTQNSD, &raw mut unsent)
            | libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    assert_eq!(failed, 0);
    (unsent, info.tcpi_unacked)
}

/// The node's own queue refuses the first segment of a message while nothing is in flight: TCP would wait for its probe timer, here
/// made to be a minute.
#[test]
fn what_a_full_queue_refused_goes_out_when_there_is_room() {
    const BYTES: usize = 30_000;
    let Some(lab) = Lab::new() else { return };
    let [na, _] = &lab.names;
    assert!(ip(&format!("-n {na} route replace 10.77.0.0/24 dev rail0 src 10.77.0.1 rto_min 60s")));
    let (mut a, mut b) = (lab.attach(0), lab.attach(1));
    assert!(connects(&mut a, &mut b, 0));
    let deadline = Instant::now() + Duration::from_secs(30);
    let (ours, theirs) = (StreamId(1), StreamId(2));
    a.streams.open(ours, RailId(0), port(&b, 0));
    let (mut made, mut taken) = (false, false);
    while !(made && taken) {
        assert!(Instant::now() < deadline, "no connection");
        let mut out = Vec::new();
        b.streams.poll(&mut out);
        taken |= out.contains(&StreamEvent::Incoming) && b.streams.accept(&mut |_, _| theirs);
        out.clear();
        a.streams.poll(&mut out);
        made |= out.contains(&StreamEvent::Connected(ours));
    }
    let shape = "tc qdisc add dev rail0 root tbf rate 40mbit burst 80kb limit 100kb";
    let shaped = std::process::Command::new("ip").args(["netns", "exec", na]).args(shape.split(' ')).status();
    assert!(shaped.is_ok_and(|s| s.success()), "tc cannot shape");

    let message = vec![7; BYTES];
    let mut room = vec![0; BYTES];
    let mut stood = false;
    while !stood {
        assert!(Instant::now() < deadline, "the queue never refused a segment");
        // three times what the queue holds
        for _ in 0..200 {
            a.datagrams.send(RailId(0), port(&b, 0), &[1; 1400]);
        }
        // SAFETY: the bytes are borrowed through the call.
        assert_eq!(unsafe { a.streams.write(ours, &[IoVec::from_ref(&message)]) }, Moved::Bytes(BYTES));
        let mut descriptors = Vec::new();
        a.streams.descriptors(&mut descriptors);
        stood = descriptors.iter().any(|&fd| is_connection(fd) && matches!(pending(fd), (1.., 0)));
        let mut arrived = 0;
        while arrived < BYTES {
            assert!(Instant::now() < deadline, "{arrived} of {BYTES} bytes arrived");
            a.streams.poll(&mut Vec::new());
            // SAFETY: the buffer is borrowed exclusively through the call.
            if let Moved::Bytes(n) = unsafe { b.streams.read(theirs, &[IoVec::from_mut(&mut room)]) } {
                arrived += n;
            }
        }
    }
}

/// Whether a descriptor is a TCP connection, and not a listener or a bell.
fn is_connection(fd: RawFd) -> bool {
    // SAFETY: all zeros is a valid address; the kernel writes at most `length` bytes, all of which live through the call.
    unsafe {
        let mut to: libc::sockaddr_storage = std::mem::zeroed();
        let mut length = size_of_val(&to) as libc::socklen_t;
        libc::getpeername(fd, (&raw mut to).cast(), &raw mut length) == 0
    }
}

/// What a host's kernel knows of the only neighbour on a rail.
fn neighbour(name: &str, rail: usize, family: &str) -> String {
    let args = format!("-n {name} {family} neigh show dev rail{rail}");
    let out = std::process::Command::new("ip").args(args.split_whitespace()).output().unwrap();
    let told = String::from_utf8(out.stdout).unwrap();
    // IPv6 knows the link-local address of the other side too
    told.lines().filter(|l| !l.starts_with("fe80")).collect::<String>()
}

/// The other host's addresses are gone, and nothing answers for them. On one rail the neighbour's entry is kept alive.
fn kept_in_the_dark(lab: &Lab, family: &str, kind: &str, bits: u8) {
    let [here, there] = &lab.names;
    // the kernel's half minutes become half seconds
    Namespace::of(here).run(|| {
        for rail in 0..2 {
            for (name, value) in
                [("base_reachable_time_ms", 400), ("delay_first_probe_time", 1), ("retrans_time_ms", 200)]
            {
                let path = format!("/proc/sys/net/{kind}/neigh/rail{rail}/{name}");
                std::fs::write(path, value.to_string()).unwrap();
            }
        }
    });
    let (a, b) = (lab.attach(0), lab.attach(1));
    assert!(works(&a, &b, 0) && works(&a, &b, 1));
    let to = [port(&b, 0), port(&b, 1)];
    for (rail, to) in to.iter().enumerate() {
        assert!(ip(&format!("-n {there} addr del {}/{bits} dev rail{rail}", to.socket().unwrap().ip())));
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while !neighbour(here, 1, family).contains("FAILED") {
        assert!(Instant::now() < deadline, "the kernel keeps the entry: {}", neighbour(here, 1, family));
        for (rail, to) in to.iter().enumerate() {
            a.datagrams.send(RailId(rail as u8), *to, b"is anybody there?");
        }
        a.datagrams.keep_neighbour(RailId(0), to[0]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let known = neighbour(here, 0, family);
    assert!(known.contains("lladdr") && !known.contains("FAILED"), "{known}");
    let nobody = to[0].with_service(1);
    a.datagrams.keep_neighbour(RailId(0), nobody);
    a.datagrams.keep_neighbour(RailId(9), nobody);
}

#[test]
fn what_the_kernel_knows_of_a_neighbour_is_kept_in_the_dark() {
    let Some(lab) = Lab::new() else { return };
    kept_in_the_dark(&lab, "-4", "ipv4", 24);
}

#[test]
fn so_it_is_over_ipv6() {
    let Some(lab) = Lab::v6() else { return };
    kept_in_the_dark(&lab, "-6", "ipv6", 64);
}
