//! H9, H10, H11: pieces, masks and repetitions.

use super::{Story, received, sent, warm_up};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::{Config, Verdict};
use rerail_wire::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameType};
use rerail_wire::packet::PACKET_HEADER_BYTES;

/// Whether a datagram holds a frame of this kind.
pub(crate) fn holds(bytes: &[u8], kind: FrameType) -> bool {
    holds_one(bytes, |f| f.kind == kind)
}

/// Whether a datagram holds a frame like this.
pub(crate) fn holds_one(bytes: &[u8], is_it: impl Fn(&FrameHeader) -> bool) -> bool {
    if rerail_wire::packet::peek(bytes).is_none_or(|p| p.1 != rerail_wire::packet::PacketKind::Data) {
        return false;
    }
    let mut rest = &bytes[PACKET_HEADER_BYTES..];
    while let Ok(f) = FrameHeader::parse(rest) {
        if is_it(&f) {
            return true;
        }
        let Some(r) = rest.get(FRAME_HEADER_BYTES + f.len as usize..) else { break };
        rest = r;
    }
    false
}

/// H9. A message is under way as fragments of 64 KiB over a stream when streams are filtered: the rest arrives in pieces of
/// a datagram's size.
pub fn fragment_moves_to_datagrams(story: &Story) {
    for seed in 0..3 {
        let mut cfg = Config::quiet(seed, 1);
        cfg.nets[0].mbps = 1000;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.recv(RecvSpec { pieces: 3, ..RecvSpec::class(1, 1, 1_000_000) });
        let before = w.delivered(0, 0);
        let id =
            w.send(SendSpec { pieces: 3, ..SendSpec::tagged(0, 1, 1, 1_000_000) }).expect("there is room");
        w.run_finely(100 * MS, |w| w.delivered(0, 0) > before + 300_000);
        w.begin(Fault::TcpBlocked { host: 0, net: 0 });
        assert!(
            w.run_finely(10_000 * MS, |w| received(w, id) && sent(w, id)),
            "live: a message does not arrive without streams: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
}

/// H9. The receiver has not read what a stream brought when streams are filtered; the sender gives the stream up and sends
/// pieces, of which some are acknowledged. Then the receiver reads on: a whole fragment begins on the old stream, and never
/// ends. The pieces that were acknowledged must not be forgotten. (Regression: seed 47.)
pub fn late_stream(story: &Story) {
    let mut overlapped = 0;
    for (seed, datagrams) in (60..140).step_by(5).enumerate() {
        let mut cfg = Config::quiet(seed as u64, 1);
        cfg.nets[0].mbps = 200;
        cfg.options[0].fragment_bytes = 16_384;
        let mut w = story.world(cfg);
        warm_up(&mut w);
        w.recv(RecvSpec::class(1, 1, 400_000));
        let before = w.delivered(0, 0);
        let id = w.send(SendSpec::tagged(0, 1, 1, 400_000)).expect("there is room");
        w.run_finely(100 * MS, |w| w.delivered(0, 0) > before + 20_000);
        let (c, side) = w.stream_of(1, 0).expect("there is a stream");
        w.conns[c].ends[side].rest_until = u64::MAX;
        w.run_finely(100 * MS, |w| w.delivered(0, 0) > before + 130_000);
        w.begin(Fault::TcpBlocked { host: 0, net: 0 });
        let so_far = w.counters(1).datagrams_received;
        w.run_finely(2_000 * MS, |w| w.counters(1).datagrams_received > so_far + datagrams);
        w.conns[c].ends[side].rest_until = 0;
        w.list_readable(c, side);
        overlapped += u64::from(!received(&w, id));
        assert!(
            w.run_finely(10_000 * MS, |w| received(w, id) && sent(w, id)),
            "live: a message does not arrive without streams: {}",
            w.describe()
        );
        w.heal_and_finish();
    }
    assert!(overlapped > 0, "simulator: the story did not come about: the pieces were faster");
}

/// H10. Masks of a large message overtake each other: every third comes much later.
pub fn masks_cross(story: &Story) {
    for seed in 0..4 {
        let mut cfg = Config::quiet(seed, 2);
        cfg.options[0].fragment_bytes = 4096;
        cfg.nets.iter_mut().for_each(|n| n.mbps = 1000);
        let mut w = story.world(cfg);
        warm_up(&mut w);
        let mut n = 0;
        w.filter = Some(Box::new(move |d| {
            if d.src == 1 && holds(d.bytes, FrameType::Vack) {
                n += 1;
                if n % 3 == 1 {
                    return Verdict::Delay(2 * MS);
                }
            }
            Verdict::Pass
        }));
        w.recv(RecvSpec::class(1, 1, 1 << 20));
        let id = w.send(SendSpec::tagged(0, 1, 1, 1 << 20)).expect("there is room");
        assert!(
            w.run_finely(3_000 * MS, |w| received(w, id) && sent(w, id)),
            "live: a send does not complete although every mask arrived: {}",
            w.describe()
        );
        w.filter = None;
        w.heal_and_finish();
    }
}

/// H11. Messages arrive over rail 0, what comes back over it is lost: they are sent again over rail 1, where more receives
/// stand than messages were sent.
pub fn forgotten_duplicate(story: &Story) {
    let mut duplicates = 0;
    for seed in 0..4 {
        let mut w = story.world(Config::quiet(seed, 2));
        warm_up(&mut w);
        for net in 0..2 {
            for _ in 0..20 {
                w.recv(RecvSpec::class(1, 1, 4000));
            }
            let f = w.begin(Fault::Dark { host: 0, net, inward: true, outward: false });
            for k in 0..10 {
                w.send(SendSpec::tagged(0, 1, 1, 100 + 300 * k)).expect("there is room");
            }
            w.run_for(200 * MS);
            w.end_fault(f);
            w.run_for(300 * MS);
        }
        w.heal_and_finish();
        duplicates += w.counters(1).duplicates;
    }
    assert!(duplicates > 0, "simulator: the story did not come about: nothing arrived twice");
}
