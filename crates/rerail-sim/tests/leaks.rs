//! Nothing leaks: after ten thousand cuts an engine holds what it held after a hundred, and has as many streams open; moves of lanes leave
//! nothing behind either.
//!
//! An engine's memory is what dropping it gives back, as counted by the allocator; the world's own history grows with time and
//! is not counted. One test in this file: the counter serves the whole process.

use rerail_core::{Health, Options};
use rerail_sim::app::{RecvSpec, SendSpec};
use rerail_sim::fault::Fault;
use rerail_sim::link::{CrowdedRoutes, DarkRoutes};
use rerail_sim::stream::EndState;
use rerail_sim::world::one_lane;
use rerail_sim::world::{Config, World};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

static LIVE: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        LIVE.fetch_add(l.size() as i64, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(l) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        LIVE.fetch_sub(l.size() as i64, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(p, l) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MS: u64 = 1_000_000;
/// Of lanes. (10,000 take ten minutes.)
const MOVES: u64 = 200;

struct Held {
    bytes: i64,
    streams: usize,
}

/// Two processes with two rails, cut `cuts` times while messages are under way.
fn after(cuts: u64) -> Held {
    let mut w = World::new(Config::quiet(7, 2));
    w.send(SendSpec::tagged(0, 1, 1, 10)).expect("the first message is accepted");
    w.recv(RecvSpec::class(1, 1, 10));
    let mut done = 0;
    let mut round = 0u64;
    while done < cuts {
        let before = w.path_downs;
        for (from, to) in [(0, 1), (1, 0)] {
            w.recv(RecvSpec::class(to, 2, 150_000));
            w.send_soon(SendSpec::tagged(from, to, 2, (round * 7_919 % 150_000) as usize));
        }
        w.run_for(30_000 + round % 11 * 10_000);
        let net = (round % 2) as usize;
        let host = (round / 2 % 2) as usize;
        let fault = match round % 5 {
            0 => Fault::IfDown { host, net, peers: true },
            1 => Fault::Dark { host, net, inward: true, outward: true },
            2 => Fault::Dark { host, net, inward: true, outward: false },
            3 => Fault::Dark { host, net, inward: false, outward: true },
            _ => Fault::Blackout { host },
        };
        w.begin_for(fault, 120 * MS);
        w.run_for(121 * MS);
        let healed = w.run_until(60_000 * MS, |w| {
            w.oracle.pending_count() == 0
                && w.procs.iter().all(|p| {
                    let paths = p.engine.as_ref().expect("it runs").paths();
                    paths.iter().all(|x| x.health == Health::Up && x.streams > 0)
                })
        });
        assert!(healed, "live: after cut {round} ({fault:?}) not everything works: {}", w.describe());
        // a blackout takes no path out of service: no working path is left to prove anything by
        done += u64::from(w.path_downs > before || round % 5 == 4);
        round += 1;
    }
    w.run_for(3_000 * MS);
    held(&mut w)
}

/// Two processes with four lanes, which leave crowded routes until so many moves are made: others are crowded all the time.
fn after_moves(moves: u64) -> Held {
    let mut cfg = Config::quiet(7, 1);
    cfg.nets[0].mbps = 200;
    (cfg.sndbuf, cfg.rcvbuf, cfg.check_every) = (256 << 10, 512 << 10, 4096);
    cfg.options = vec![Options { lanes: 4, ..one_lane() }];
    let mut w = World::new(cfg);
    let mut pending: Vec<u64> = Vec::new();
    let mut salt = 0;
    while w.counters(0).lanes_moved < moves {
        let routes = DarkRoutes { percent: 50, salt };
        w.begin_for(Fault::Crowd { host: 0, net: 0, crowd: CrowdedRoutes { routes, times: 4 } }, 400 * MS);
        let end = w.now + 400 * MS;
        while w.now < end {
            pending.retain(|id| w.oracle.msgs[*id as usize].taken.is_none());
            for _ in pending.len()..8 {
                w.recv(RecvSpec::class(1, 1, 1 << 20));
                pending.push(w.send_soon(SendSpec::tagged(0, 1, 1, 1 << 20)));
            }
            w.run_for(MS);
        }
        salt += 1;
        assert!(salt < 40 * moves, "live: lanes do not move: {}", w.describe());
    }
    let healed = w.run_until(60_000 * MS, |w| {
        w.oracle.pending_count() == 0 && w.paths(0).iter().all(|x| x.streams == 4)
    });
    assert!(healed, "live: not everything arrives: {}", w.describe());
    w.run_for(3_000 * MS);
    held(&mut w)
}

/// What the engines hold, which are dropped.
fn held(w: &mut World) -> Held {
    let streams = w.conns.iter().flat_map(|c| &c.ends).filter(|e| e.state == EndState::Open).count();
    let before = LIVE.load(Ordering::Relaxed);
    for p in &mut w.procs {
        drop(p.engine.take());
    }
    Held { bytes: before - LIVE.load(Ordering::Relaxed), streams }
}

#[test]
fn cuts_and_moves_of_lanes_leave_memory_and_streams_as_they_were() {
    let (few, many) = (after_moves(20), after_moves(MOVES));
    assert_eq!((few.streams, many.streams), (8, 8), "four lanes, each with one stream, each with two ends");
    let more = many.bytes - few.bytes;
    assert!(more <= 2 << 10, "the engines hold {more} bytes more after {MOVES} moves than after 20");
    println!("bytes held: {} after 20 moves, {} after {MOVES}", few.bytes, many.bytes);

    let few = after(100);
    let many = after(10_000);
    assert_eq!(few.streams, 4, "two paths, each with one stream, each with two ends");
    assert_eq!(many.streams, few.streams, "streams are left over");
    assert!(
        many.bytes <= few.bytes + (1 << 20),
        "the engines hold {} bytes after 100 cuts and {} after 10,000",
        few.bytes,
        many.bytes
    );
    println!("bytes held: {} after 100 cuts, {} after 10,000", few.bytes, many.bytes);
}
