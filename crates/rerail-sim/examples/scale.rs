//! What peers cost: memory of an engine for each idle peer, and a job of ten thousand processes that loses a rail.
//!
//! `cargo run --release -p rerail-sim --example scale [-- PROCESSES…]`
//!
//! Every process talks to process 0 and to the next one, over two rails of 10 Gbit/s. Then all are silent for a minute of virtual
//! time, and the heap of process 0's engine is what is given back when it is dropped: all that it keeps for its peers, connected
//! streams included, the kernel's buffers not. Then, in a second world, a rail of process 0 is dark for half a second
//! while all processes exchange messages once more.

use rerail_sim::app::{RecvSpec, SendSpec};
use rerail_sim::fault::Fault;
use rerail_sim::link::MS;
use rerail_sim::world::{Config, Verdict, World};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The system's allocator, which counts what is in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting changes nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        IN_USE.fetch_add(l.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(l) }
    }

    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        IN_USE.fetch_sub(l.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, l) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Hosts; the processes of a host share its links.
const HOSTS: usize = 64;
/// Virtual time that anything may take.
const NEVER_NS: u64 = 120_000 * MS;
/// Virtual time of silence; with many peers a path is asked every some ten seconds.
const IDLE_NS: u64 = 60_000 * MS;

fn world(processes: usize) -> World {
    let mut cfg = Config::quiet(1, 2);
    let hosts = HOSTS.min(processes);
    cfg.hosts = vec![vec![0, 1]; hosts];
    cfg.procs = (0..processes).map(|p| p % hosts).collect();
    cfg.check_every = 0;
    let mut w = World::new(cfg);
    w.keep_events = false;
    w
}

/// One message both ways between every process and process 0, and every process and the next; `later` runs when all of
/// them are under way.
fn talk(w: &mut World, len: usize, later: impl FnOnce(&mut World)) {
    let n = w.procs.len();
    let pairs = (1..n).map(|p| (0, p)).chain((1..n - 1).map(|p| (p, p + 1)));
    for (a, b) in pairs.flat_map(|(a, b)| [(a, b), (b, a)]) {
        w.recv(RecvSpec::class(b, 200, len));
        w.send_soon(SendSpec::tagged(a, b, 200, len));
    }
    later(w);
    assert!(w.run_finely(NEVER_NS, |w| w.oracle.pending_count() == 0), "never: {}", w.describe());
}

fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![17, 257, 1_025, 10_000];
    }
    println!(
        "| processes | first messages, all, ms | heap of an idle engine, bytes for each peer | idle datagrams, a second and peer | of process 0 in its busiest second | all again, 500 ms of them dark, ms | simulated in, s |"
    );
    println!("|---|---|---|---|---|---|---|");
    for n in sizes {
        let begun = Instant::now();
        let mut w = world(n);
        talk(&mut w, 64, |_| {});
        let first = w.now;
        w.run_for(1_000 * MS);
        let from = w.now;
        let seconds = vec![0u64; (IDLE_NS / 1_000_000_000) as usize + 1];
        let seen = Rc::new(RefCell::new(seconds));
        let count = Rc::clone(&seen);
        w.filter = Some(Box::new(move |d| {
            let second = ((d.now - from) / 1_000_000_000) as usize;
            count.borrow_mut()[second] += u64::from(d.src == 0 || d.dst == 0);
            Verdict::Pass
        }));
        w.run_for(IDLE_NS);
        let all: u64 = seen.borrow().iter().sum();
        let busiest = seen.borrow().iter().max().copied().unwrap_or(0);
        let datagrams = all as f64 / (IDLE_NS as f64 / 1e9) / (n - 1) as f64;
        let working = w.paths(0).iter().filter(|x| x.health.connected()).count();
        assert_eq!(working, 2 * (n - 1), "process 0 is connected to every process over both rails");
        let before = IN_USE.load(Ordering::Relaxed);
        drop(w.procs[0].engine.take());
        let heap = (before - IN_USE.load(Ordering::Relaxed)) / (n - 1);
        drop(w);

        let mut w = world(n);
        talk(&mut w, 64, |_| {});
        w.run_for(100 * MS);
        let from = w.now;
        talk(&mut w, 3_000, |w| {
            w.begin_for(Fault::Dark { host: 0, net: 0, inward: true, outward: true }, 500 * MS);
        });
        let again = w.now - from;
        println!(
            "| {n} | {:.1} | {heap} | {datagrams:.2} | {busiest} | {:.1} | {:.1} |",
            first as f64 / 1e6,
            again as f64 / 1e6,
            begun.elapsed().as_secs_f64()
        );
    }
}
