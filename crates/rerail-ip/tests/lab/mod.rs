#![allow(dead_code)] // each test program uses its part
//! Two network namespaces joined by two veth rails, for the tests.

use rerail_rail::{
    Alternate, Arrived, ArrivedTrain, Closing, DatagramPort, FarKernel, IoVec, LinkWatch, Locator, MemId,
    Moved, Place, Posted, RailId, Rails, SendOutcome, StreamEvent, StreamId, StreamPort, TrainOutcome,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Runs the tool `ip`; whether it succeeded.
pub fn ip(args: &str) -> bool {
    let out = Command::new("ip").args(args.split_whitespace()).output();
    out.is_ok_and(|o| o.status.success())
}

/// Two namespaces joined by two links, removed when dropped.
pub struct Lab {
    pub names: [String; 2],
}

impl Lab {
    pub fn new() -> Option<Lab> {
        Self::with(|rail, host| format!("10.77.{rail}.{host}/24"))
    }

    /// With addresses of IPv6 only.
    pub fn v6() -> Option<Lab> {
        Self::with(|rail, host| format!("fd77:{rail}::{host}/64 nodad"))
    }

    /// The first rail over IPv4, the second over IPv6.
    pub fn mixed() -> Option<Lab> {
        Self::with(|rail, host| match rail {
            0 => format!("10.77.0.{host}/24"),
            _ => format!("fd77::{host}/64 nodad"),
        })
    }

    /// Both rails in one network: routes and address resolution alone do not tell them apart.
    pub fn one_network() -> Option<Lab> {
        Self::with(|rail, host| format!("10.78.0.{}/24", 10 * host + rail))
    }

    fn with(address: fn(usize, usize) -> String) -> Option<Lab> {
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
                assert!(ip(&format!("-n {n} addr add {} dev rail{rail}", address(rail, host + 1))));
                assert!(ip(&format!("-n {n} link set rail{rail} up")));
            }
        }
        Some(lab)
    }

    /// Attaches inside a namespace: sockets stay where they were made, and those made later are made there too.
    pub fn attach(&self, host: usize) -> Rails {
        let there = Namespace::of(&self.names[host]);
        let inside = there.clone();
        inside.run(|| {
            let deadline = Instant::now() + Duration::from_secs(5);
            loop {
                // A new link takes a moment until it runs.
                let mut rails = rerail_ip::attach(&["rail0".into(), "rail1".into()]).unwrap();
                if rails.rails.iter().all(|r| r.up) {
                    rails.datagrams = Arc::new(Inside(there.clone(), rails.datagrams));
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
pub struct Namespace(Arc<File>);

impl Namespace {
    pub fn of(name: &str) -> Self {
        Self(Arc::new(File::open(format!("/run/netns/{name}")).unwrap()))
    }

    /// Runs `f` with this thread inside the namespace.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
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

impl DatagramPort for Inside<Arc<dyn DatagramPort>> {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        self.0.run(|| self.1.send(rail, to, bytes))
    }
    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        self.0.run(|| self.1.recv(buf))
    }
    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        self.0.run(|| self.1.send_train(rail, to, bytes, segment))
    }
    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.0.run(|| self.1.recv_train(buf))
    }
    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.0.run(|| self.1.recv_train_eagerly(buf))
    }
    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        self.0.run(|| self.1.keep_neighbour(rail, to));
    }
    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        self.0.run(|| self.1.lead(rail, to, route));
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.1.fd()
    }
    fn before_sleep(&self, streams: bool) -> bool {
        self.1.before_sleep(streams)
    }
    fn after_sleep(&self) {
        self.1.after_sleep();
    }
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.1.descriptors(out);
    }
}

impl StreamPort for Inside<Box<dyn StreamPort>> {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        self.0.run(|| self.1.open(stream, rail, to));
    }
    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
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
    fn goes_on(&self, stream: StreamId) -> bool {
        self.1.goes_on(stream)
    }
    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: promised by the caller.
        unsafe { self.1.write_lasting(stream, pieces) }
    }
    fn want_writable(&mut self, stream: StreamId) {
        self.1.want_writable(stream);
    }
    unsafe fn place(&mut self, stream: StreamId, place: &Place) -> Posted {
        // SAFETY: promised by the caller.
        unsafe { self.1.place(stream, place) }
    }
    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        // SAFETY: promised by the caller.
        unsafe { self.1.register(rail, region, memory) }
    }
    fn invalidate(&mut self, region: MemId) {
        self.1.invalidate(region);
    }
    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        self.1.load_alternate(stream, alternate);
    }
    fn migrate(&mut self, stream: StreamId) {
        self.1.migrate(stream);
    }
    fn close(&mut self, stream: StreamId) -> Closing {
        self.1.close(stream)
    }
    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.1.rail_of(stream)
    }
    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        self.1.far_kernel(stream)
    }
    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        self.1.poll(out);
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.1.fd()
    }
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.1.descriptors(out);
    }
}

impl LinkWatch for Inside<Box<dyn LinkWatch>> {
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
        self.0.run(|| self.1.drain(out));
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.1.fd()
    }
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.1.descriptors(out);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for n in &self.names {
            ip(&format!("netns del {n}"));
        }
    }
}
