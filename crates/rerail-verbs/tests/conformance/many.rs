//! Many connections of one rail at once: they share memory, and none loses anything by that, nor its bandwidth.

use rerail_rail::conformance::{connect, eventually, poll};
use rerail_rail::{IoVec, Moved, Rails, StreamId};
use std::time::Instant;

/// More than share the memory of connections that are busy.
const STREAMS: u32 = 24;
/// Bytes of a burst on each: more than may be under way.
const BURST_BYTES: usize = 300_000;
/// Messages with bytes that may be under way on a busy connection, and the bytes of each.
const FULL_BYTES: usize = 16 * (8192 - 16);
/// Of what is measured.
const ROUNDS: usize = 300;
const FLOOD_BYTES: usize = 16 << 20;

fn write(side: &mut Rails, stream: StreamId, bytes: &[u8]) -> usize {
    // SAFETY: the bytes are borrowed through the call.
    match unsafe { side.streams.write(stream, &[IoVec::from_ref(bytes)]) } {
        Moved::Bytes(n) => n,
        Moved::Blocked => 0,
        Moved::Closed(why) => panic!("{stream:?} is closed: {why:?}"),
    }
}

fn read(side: &mut Rails, stream: StreamId, bytes: &mut [u8]) -> usize {
    // SAFETY: the bytes are borrowed exclusively through the call.
    match unsafe { side.streams.read(stream, &[IoVec::from_mut(bytes)]) } {
        Moved::Bytes(n) => n,
        Moved::Blocked => 0,
        Moved::Closed(why) => panic!("{stream:?} is closed: {why:?}"),
    }
}

fn bytes_of(stream: usize, at: usize) -> u8 {
    (at / 7 + 31 * stream) as u8
}

/// Writes as much on each of these at once, and reads all of it.
fn burst(from: &mut Rails, to: &mut Rails, ends: &[(StreamId, StreamId)]) {
    let source: Vec<Vec<u8>> =
        (0..ends.len()).map(|n| (0..BURST_BYTES).map(|at| bytes_of(n, at)).collect()).collect();
    let (mut sent, mut got) = (vec![0; ends.len()], vec![Vec::new(); ends.len()]);
    let mut buf = vec![0; 1 << 16];
    eventually("all bytes of all connections arrive", || {
        for (n, (out, into)) in ends.iter().enumerate() {
            sent[n] += write(from, *out, &source[n][sent[n]..]);
            let read = read(to, *into, &mut buf);
            got[n].extend_from_slice(&buf[..read]);
        }
        poll(from);
        poll(to);
        got.iter().all(|got| got.len() == BURST_BYTES).then_some(())
    });
    assert!(got == source, "every byte on its connection, in order");
}

/// Whether more is taken on a connection than half of what may be under way, while nothing is read: the peer returns credits by
/// halves, and one that has not all of them takes half at most. What was written is read then.
fn takes_all(from: &mut Rails, to: &mut Rails, (out, into): (StreamId, StreamId)) {
    let bytes = vec![5; 2 * FULL_BYTES];
    eventually("a connection that is busy gets all that it may have", || {
        let mut taken = 0;
        // Returns of the peer may be on their way.
        for _ in 0..20 {
            taken += write(from, out, &bytes[taken..]);
            poll(from);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(taken <= FULL_BYTES, "{taken} B: more than the peer has receives for");
        let (mut left, mut buf) = (taken, vec![0; 1 << 16]);
        eventually("what was taken arrives", || {
            poll(to);
            left -= read(to, into, &mut buf);
            (left == 0).then_some(())
        });
        (taken > FULL_BYTES / 2).then_some(())
    });
}

pub fn a_burst_of_many_loses_nothing_and_a_busy_one_gets_all((mut from, mut to): (Rails, Rails)) {
    let ends: Vec<_> = (1..=STREAMS).map(|name| connect(&mut from, &mut to, 0, name)).collect();
    for _ in 0..3 {
        burst(&mut from, &mut to, &ends);
    }
    // one after the other: those that were busy before and are idle now give theirs to the next
    ends.iter().for_each(|ends| takes_all(&mut from, &mut to, *ends));
    for (out, into) in ends {
        from.streams.close(out);
        to.streams.close(into);
    }
}

/// What a connection does; times are those of the machine, and nothing is required of them.
pub fn what_a_connection_does((mut from, mut to): (Rails, Rails)) -> String {
    let (out, into) = connect(&mut from, &mut to, 0, 1);
    let mut buf = vec![0; 1 << 16];
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(write(&mut from, out, &[7; 64]), 64);
            while read(&mut to, into, &mut buf) == 0 {}
            while write(&mut to, into, &[8; 64]) == 0 {}
            while read(&mut from, out, &mut buf) == 0 {}
            start.elapsed() / 2
        })
        .collect();
    times.sort();
    let block = vec![9; 1 << 16];
    let (mut sent, mut got, start) = (0, 0, Instant::now());
    while got < FLOOD_BYTES {
        if sent < FLOOD_BYTES {
            sent += write(&mut from, out, &block[..block.len().min(FLOOD_BYTES - sent)]);
        }
        got += read(&mut to, into, &mut buf);
    }
    let rate = got as f64 / start.elapsed().as_secs_f64() / 1e6;
    format!("half round trip of 64 B, median of {ROUNDS}: {:?}; flood: {rate:.1} MB/s", times[ROUNDS / 2])
}
