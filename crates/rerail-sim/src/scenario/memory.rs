//! H1, H2: memory that changes hands while a frame is half-written or half-read.

use super::{Story, sent, until_event, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::{Config, Family, NetSpec};
use rerail_core::EventKind;

const FRAGMENT: usize = 65_536;

fn two_unequal_rails(seed: u64, slow_mbps: u64) -> Config {
    let mut cfg = Config::quiet(seed, 2);
    cfg.nets = vec![
        NetSpec { latency_ns: 20_000, mbps: 10_000, mtu: 1500, family: Family::V4 },
        NetSpec { latency_ns: 30_000, mbps: slow_mbps, mtu: 1500, family: Family::V4 },
    ];
    // adapters' keys come after the bytes, which go as copies
    cfg.register_ns = (20 * MS, 30 * MS);
    cfg.chop = 0;
    cfg.sndbuf = 2 << 20;
    cfg.rcvbuf = 2 << 20;
    cfg
}

/// H1. A message is written to fast rail 0 in full; what comes back over rail 0 is lost. Rail 0 is given up, and everything is
/// written again to slow rail 1, whose kernel takes only part of a frame. Then the peer's late acknowledgement of the
/// old epoch arrives over rail 1: the send completes, the application overwrites its buffer, and the frame on rail 1 is
/// half-written.
pub fn half_written_frame(story: &Story) {
    let mut aborted = 0;
    for seed in 0..6 {
        let mut w = story.world(two_unequal_rails(seed, 100));
        warm_up(&mut w);
        for k in 0..w.conns.len() {
            if w.conns[k].net == 1 {
                w.conns[k].dirs.iter_mut().for_each(|d| d.cap = 16 * 1024);
            }
        }
        w.recv(RecvSpec::class(1, 1, 8 * FRAGMENT));
        let before: u64 = w.written(0, 0);
        let id = w.send(SendSpec::tagged(0, 1, 1, 8 * FRAGMENT)).expect("there is room");
        w.run_finely(100 * MS, |w| w.written(0, 0) - before > FRAGMENT as u64);
        w.begin_for(Fault::Dark { host: 0, net: 0, inward: true, outward: false }, 300 * MS);
        until_event(&mut w, 0, 200 * MS, |e| matches!(e, EventKind::PathSuspect));
        w.begin_for(Fault::Dark { host: 0, net: 0, inward: false, outward: true }, 300 * MS);
        w.run_finely(1_000 * MS, |w| sent(w, id));
        w.run_for(100 * MS);
        w.heal_and_finish();
        aborted += w.aborted();
    }
    assert!(
        aborted > 0,
        "simulator: the story did not come about: no frame was half-written when its memory was given back"
    );
}

/// H2. A fragment is half-read from rail 0 when rail 0 stalls; its hedge arrives over rail 1 while the message is far from
/// complete. Then rail 0 goes on, with flipped bits.
pub fn half_read_frame(story: &Story) {
    let mut hedged = 0;
    for seed in 0..6 {
        let mut w = story.world(two_unequal_rails(seed, 4000));
        warm_up(&mut w);
        w.recv(RecvSpec::class(1, 1, 128 * FRAGMENT));
        let id = w.send(SendSpec::tagged(0, 1, 1, 128 * FRAGMENT)).expect("there is room");
        // some fragments into the message, rail 0 stands still in the middle of one
        let read = w.delivered(0, 0);
        w.run_finely(100 * MS, |w| w.delivered(0, 0) > read + 20 * FRAGMENT as u64 + 30_000);
        let stall = w.begin(Fault::Stall { host: 0, net: 0 });
        let mute = w.begin(Fault::UdpBlocked { host: 0, net: 0 });
        until_event(&mut w, 0, 200 * MS, |e| matches!(e, EventKind::PathSuspect));
        w.run_for(3 * MS);
        w.begin_for(Fault::StreamCorrupt { host: 0, net: 0, ppm: 1_000_000 }, 5 * MS);
        w.end_fault(stall);
        w.end_fault(mute);
        w.run_finely(2_000 * MS, |w| sent(w, id));
        w.heal_and_finish();
        hedged += w.counters(0).bytes_hedged;
    }
    assert!(hedged > 0, "simulator: the story did not come about: nothing was hedged");
}
