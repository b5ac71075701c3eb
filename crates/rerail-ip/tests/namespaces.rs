//! The rail over IP between two network namespaces, with two veth rails: devices, routes and link events as between hosts.
//!
//! Needs the right to make namespaces; without it the tests say so and pass.

use rerail_transport::{
    CloseReason, IoVec, LinkWatch, Moved, RailId, Rails, SendOutcome, StreamEvent, StreamId, StreamPort,
    conformance_tests,
};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

fn ip(args: &str) -> bool {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    out.is_ok_and(|o| o.status.success())
}

/// Two namespaces joined by two links, removed when dropped.
struct Lab {
    names: [String; 2],
}

impl Lab {
    fn new() -> Option<Lab> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("rrip{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = [format!("{tag}a"), format!("{tag}b")];
        let lab = Lab { names };
        for n in &lab.names {
            if !ip(&format!("netns add {n}")) || !ip(&format!("-n {n} link set lo up")) {
                eprintln!("skipped: network namespaces cannot be made here");
                return None;
            }
        }
        let [a, b] = &lab.names;
        for rail in 0..2 {
            assert!(ip(&format!("-n {a} link add rail{rail} type veth peer name rail{rail} netns {b}")));
            for (host, n) in lab.names.iter().enumerate() {
                assert!(ip(&format!("-n {n} addr add 10.77.{rail}.{}/24 dev rail{rail}", host + 1)));
                assert!(ip(&format!("-n {n} link set rail{rail} up")));
            }
        }
        Some(lab)
    }

    /// Attaches inside a namespace: sockets stay where they were made, and those made later are made there too.
    fn attach(&self, host: usize) -> Rails {
        let there = Namespace::of(&self.names[host]);
        let inside = there.clone();
        inside.run(|| {
            let deadline = Instant::now() + Duration::from_secs(5);
            loop {
                // A new link takes a moment until it runs.
                let mut rails = rerail_ip::attach(&["rail0".into(), "rail1".into()]).unwrap();
                if rails.rails.iter().all(|r| r.up) {
                    rails.streams = Box::new(Inside(there.clone(), rails.streams));
                    rails.links = Box::new(Inside(there, rails.links));
                    return rails;
                }
                assert!(Instant::now() < deadline, "the links never come up");
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    }
}

#[derive(Clone)]
struct Namespace(Arc<File>);

impl Namespace {
    fn of(name: &str) -> Self {
        Self(Arc::new(File::open(format!("/run/netns/{name}")).unwrap()))
    }

    /// Runs `f` with this thread inside the namespace.
    fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        let enter = |file: &File| {
            // SAFETY: moves only this thread, between namespaces that are held open.
            assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        };
        let home = File::open("/proc/thread-self/ns/net").unwrap();
        enter(&self.0);
        let r = f();
        enter(&home);
        r
    }
}

/// A port whose calls run inside a namespace, as all of a process does.
struct Inside<T>(Namespace, T);

impl StreamPort for Inside<Box<dyn StreamPort>> {
    fn open(&mut self, stream: StreamId, rail: RailId, to: SocketAddr) {
        self.0.run(|| self.1.open(stream, rail, to));
    }
    fn accept(&mut self, name: &mut dyn FnMut(RailId, SocketAddr) -> StreamId) -> bool {
        self.1.accept(name)
    }
    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: promised by the caller.
        unsafe { self.1.read(stream, pieces) }
    }
    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: promised by the caller.
        unsafe { self.1.write(stream, pieces) }
    }
    fn want_writable(&mut self, stream: StreamId) {
        self.1.want_writable(stream);
    }
    fn close(&mut self, stream: StreamId) {
        self.1.close(stream);
    }
    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        self.1.poll(out);
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.1.fd()
    }
}

impl LinkWatch for Inside<Box<dyn LinkWatch>> {
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
        self.0.run(|| self.1.drain(out));
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.1.fd()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for n in &self.names {
            ip(&format!("netns del {n}"));
        }
    }
}

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
