//! What every rail must do, as tests. A rail crate calls [`conformance_tests!`](crate::conformance_tests) with a function
//! that makes two sets of rails which reach each other, rail *i* of the one to rail *i* of the other.
//!
//! The tests wait for what must happen, with a bound that only tells "never" from "late", and assert nothing about time.
//!
//! Rails that write into the memory of peers have more to promise: [`placing`].

mod placing;

pub use placing::*;

use crate::{
    Affinity, Arrived, CloseReason, Closing, IoVec, Kind, Locator, Moved, RailId, Rails, SendOutcome,
    StreamEvent, StreamId,
};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Makes the two sides of a test.
pub type Factory = fn() -> (Rails, Rails);

/// One test of the suite.
pub type Requirement = fn(Factory);

/// The whole suite with the names of the tests, for a program that runs them by itself.
pub const REQUIREMENTS: &[(&str, Requirement)] = crate::conformance_tests!(list);

/// A datagram of this length fits on every rail: a handshake does.
const DATAGRAM_BYTES_LEAST: u16 = 512;
/// After this long, what has not happened never will.
const NEVER: Duration = Duration::from_secs(20);
/// A rail that has reported nothing of the far kernel for so long never does.
const NOT_REPORTED: Duration = Duration::from_millis(500);

/// Defines one `#[test]` for each requirement; `$factory` is a [`Factory`].
#[macro_export]
macro_rules! conformance_tests {
    (list) => {
        $crate::conformance_tests! { @with list () }
    };
    ($factory:expr) => {
        $crate::conformance_tests! { @with each ($factory) }
    };
    (@with $what:ident $with:tt) => {
        $crate::conformance_tests! { @$what $with;
            rails_are_described,
            datagrams_arrive_intact_and_name_their_rail,
            an_empty_port_says_so_and_its_descriptor_sleeps,
            a_datagram_longer_than_the_buffer_is_dropped,
            a_datagram_to_nobody_harms_nothing,
            a_waiting_datagram_wakes_the_sleeper,
            trains_arrive_whole_and_in_order,
            a_train_may_be_received_one_by_one,
            a_train_on_no_rail_is_not_sent,
            datagrams_arrive_by_every_route,
            connecting_names_the_rail_on_both_sides,
            an_incoming_connection_wakes_the_sleeper,
            bytes_that_are_not_read_keep_the_sleeper_awake,
            bytes_arrive_in_order_over_partial_reads_and_writes,
            bytes_that_stay_where_they_are_arrive_in_order,
            many_streams_do_not_mix,
            closing_is_abortive_and_seen_by_the_other_side,
            a_full_stream_closes_at_once,
            writing_to_a_closed_peer_ends_the_stream,
            a_refused_connection_is_reported_by_the_next_poll,
            a_connection_that_is_given_up_leaves_nothing_behind,
            a_stream_that_broke_is_closed_once,
            what_a_rail_reports_of_the_far_kernel_is_right,
            names_that_are_not_known_harm_nothing,
            links_without_changes_say_nothing,
            what_was_placed_is_in_memory_when_the_next_byte_is_read,
            a_source_may_change_when_its_place_is_reported,
            a_source_may_change_when_its_stream_is_closed,
            as_many_places_as_a_rail_says_are_under_way_at_once,
            a_place_on_a_stream_that_is_over_is_refused,
            nothing_lands_after_a_stream_is_closed,
            nothing_lands_after_a_region_is_invalid,
            a_place_outside_of_what_was_granted_writes_nothing,
            keys_are_never_used_twice,
        }
    };
    (@each ($factory:expr); $($name:ident,)*) => {
        $(#[test] fn $name() { $crate::conformance::$name($factory); })*
    };
    (@list (); $($name:ident,)*) => {
        &[$((stringify!($name), $crate::conformance::$name as $crate::conformance::Requirement)),*]
    };
}

fn readable(fd: BorrowedFd<'_>, max: Duration) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut p, 1, max.as_millis() as libc::c_int) == 1 }
}

/// Whether a thread that goes to sleep on `fd`, as it should, wakes up.
fn wakes(side: &Rails, fd: BorrowedFd<'_>, max: Duration) -> bool {
    let woken = side.datagrams.before_sleep(true) || readable(fd, max);
    side.datagrams.after_sleep();
    woken
}

/// What `f` finds, once it finds something; panics when it never does.
pub fn eventually<T>(what: &str, f: impl FnMut() -> Option<T>) -> T {
    repeat(what, || std::thread::sleep(Duration::from_micros(200)), f)
}

/// The same without a sleep, for what must be seen the moment it is reported: the end of a loan.
fn at_once<T>(what: &str, f: impl FnMut() -> Option<T>) -> T {
    repeat(what, std::thread::yield_now, f)
}

fn repeat<T>(what: &str, pause: impl Fn(), mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(t) = f() {
            return t;
        }
        assert!(start.elapsed() < NEVER, "never happened: {what}");
        pause();
    }
}

/// Where one side's rail is reached.
pub fn at(side: &Rails, rail: usize) -> Locator {
    side.rails[rail].locator
}

fn receive(side: &Rails, buf: &mut [u8]) -> Arrived {
    eventually("a datagram arrives", || side.datagrams.recv(buf).expect("the port works"))
}

/// Bytes that differ at every position and with every seed, as far as a byte can.
fn pattern(seed: u64, at: usize) -> u8 {
    let x = (at as u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x >> 32) as u8
}

/// What has happened to the streams of a side.
pub fn poll(side: &mut Rails) -> Vec<StreamEvent> {
    let mut out = Vec::new();
    side.streams.poll(&mut out);
    out
}

/// Whether the rail keeps the name of a stream that was connected and broke until it is closed.
fn places(side: &Rails, rail: usize) -> bool {
    side.rails[rail].places_max > 0
}

/// Closes a stream. When that takes time, the end of it is reported once; and nothing else is reported of the stream.
fn close(side: &mut Rails, s: StreamId) {
    if side.streams.close(s) == Closing::Pending {
        at_once("the stream is closed", || {
            let of_it: Vec<_> = poll(side).into_iter().filter(|e| e.stream() == Some(s)).collect();
            if of_it.is_empty() {
                return None;
            }
            assert_eq!(of_it, [StreamEvent::Closed(s, CloseReason::Requested)]);
            Some(())
        });
    }
    assert_eq!(side.streams.close(s), Closing::Done, "{s:?} is closed, and its name forgotten");
    let told: Vec<_> = poll(side).into_iter().filter(|e| e.stream() == Some(s)).collect();
    assert_eq!(told, [], "nothing is told of a stream that is closed");
}

/// Connects stream `name` of `a` to stream `name + 1000` of `b` on one rail.
pub fn connect(a: &mut Rails, b: &mut Rails, rail: usize, name: u32) -> (StreamId, StreamId) {
    let (sa, sb) = (StreamId(name), StreamId(name + 1000));
    a.streams.open(sa, RailId(rail as u8), at(b, rail));
    let from = eventually("the connection comes in", || {
        let incoming = poll(b).contains(&StreamEvent::Incoming);
        let mut who = None;
        if incoming {
            b.streams.accept(&mut |rail, from| {
                who = Some((rail, from));
                sb
            });
        }
        who
    });
    assert_eq!(from.0, RailId(rail as u8), "an accepted connection names its rail");
    assert!(from.1.same_place(&at(a, rail)), "it comes from the rail it was opened on");
    eventually("the connection is made", || poll(a).contains(&StreamEvent::Connected(sa)).then_some(()));
    (sa, sb)
}

fn write(side: &mut Rails, s: StreamId, bytes: &[u8]) -> Moved {
    // SAFETY: the bytes are borrowed through the call.
    unsafe { side.streams.write(s, &[IoVec::from_ref(bytes)]) }
}

/// A short write, as soon as the stream takes it. A planted fault may hold a sound stream for a moment.
fn say(side: &mut Rails, s: StreamId, bytes: &[u8]) {
    eventually("a short write is taken", || match write(side, s, bytes) {
        Moved::Blocked => None,
        moved => {
            assert_eq!(moved, Moved::Bytes(bytes.len()));
            Some(())
        }
    });
}

fn read(side: &mut Rails, s: StreamId, bytes: &mut [u8]) -> Moved {
    // SAFETY: the bytes are borrowed exclusively through the call.
    unsafe { side.streams.read(s, &[IoVec::from_mut(bytes)]) }
}

/// Waits until the stream ends, and says how. The caller closes it where the rail keeps its name.
fn ending(side: &mut Rails, s: StreamId) -> CloseReason {
    eventually("the stream ends", || ended(side, s))
}

/// How the stream ended, if it says so now.
fn ended(side: &mut Rails, s: StreamId) -> Option<CloseReason> {
    let mut buf = [0; 4096];
    for e in poll(side) {
        match e {
            StreamEvent::Closed(x, why) if x == s => return Some(why),
            StreamEvent::Readable(x) if x == s => {
                if let Moved::Closed(why) = read(side, s, &mut buf) {
                    return Some(why);
                }
            }
            _ => {}
        }
    }
    None
}

/// There are rails, their numbers make sense, and each says that it reaches its counterpart and not what is of no kind.
pub fn rails_are_described(factory: Factory) {
    let (a, b) = factory();
    for side in [&a, &b] {
        assert!(!side.rails.is_empty());
        for r in &side.rails {
            assert!(!r.name.is_empty() && !r.locator.place().is_empty() && r.locator.service() != 0, "{r:?}");
            assert!(r.datagram_bytes_safe >= DATAGRAM_BYTES_LEAST, "{r:?}");
            assert!(r.datagram_bytes_max >= r.datagram_bytes_safe, "{r:?}");
            let same = side.rails.iter().filter(|x| x.locator.same_place(&r.locator));
            assert_eq!(same.count(), 1, "rails have places of their own");
        }
    }
    for (i, r) in a.rails.iter().enumerate() {
        assert!(b.rails.iter().all(|x| x.locator != r.locator), "processes have services of their own");
        assert!(r.reach.affinity(&at(&b, i)) >= Affinity::Routed, "rails that reach each other say so");
        assert_eq!(r.reach.affinity(&Locator::NOWHERE), Affinity::Unreachable);
    }
}

/// Every size up to the MTU, on every rail, both ways.
pub fn datagrams_arrive_intact_and_name_their_rail(factory: Factory) {
    let (a, b) = factory();
    let mut buf = vec![0; 65_536];
    for rail in 0..a.rails.len() {
        let most = usize::from(a.rails[rail].datagram_bytes_max.min(b.rails[rail].datagram_bytes_max));
        for size in [1, 32, 80, 500, most] {
            for (from, to) in [(&a, &b), (&b, &a)] {
                let sent: Vec<u8> = (0..size).map(|i| pattern(size as u64, i)).collect();
                assert_eq!(from.datagrams.send(RailId(rail as u8), at(to, rail), &sent), SendOutcome::Sent);
                let got = receive(to, &mut buf);
                assert_eq!((got.rail, got.len), (RailId(rail as u8), size));
                assert!(got.from.same_place(&at(from, rail)));
                assert!(buf[..size] == sent[..], "{size} bytes on rail {rail} arrive intact");
            }
        }
    }
}

/// Nothing there: said without blocking, and a sleeper would sleep.
pub fn an_empty_port_says_so_and_its_descriptor_sleeps(factory: Factory) {
    let (mut a, _b) = factory();
    assert!(a.datagrams.recv(&mut [0; 64]).unwrap().is_none());
    assert!(poll(&mut a).is_empty());
    let mut changes = Vec::new();
    a.links.drain(&mut changes);
    assert!(!wakes(&a, a.datagrams.fd(), Duration::ZERO));
    assert!(!wakes(&a, a.streams.fd(), Duration::ZERO));
    assert!(!readable(a.links.fd(), Duration::ZERO));
}

/// A cut datagram is never handed out; the next one is.
pub fn a_datagram_longer_than_the_buffer_is_dropped(factory: Factory) {
    let (a, b) = factory();
    a.datagrams.send(RailId(0), at(&b, 0), &[1; 200]);
    a.datagrams.send(RailId(0), at(&b, 0), &[2; 50]);
    let mut buf = [0; 100];
    let got = receive(&b, &mut buf);
    assert_eq!((got.len, buf[0]), (50, 2));
    assert!(b.datagrams.recv(&mut buf).unwrap().is_none());
}

/// No port there, no such rail: at most lost, and the port goes on working.
pub fn a_datagram_to_nobody_harms_nothing(factory: Factory) {
    let (a, b) = factory();
    let nobody = {
        let (c, _) = factory();
        at(&c, 0)
    };
    for _ in 0..5 {
        assert_ne!(a.datagrams.send(RailId(0), nobody, b"x"), SendOutcome::RailBroken);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(a.datagrams.send(RailId(200), at(&b, 0), b"x"), SendOutcome::Sent);
    assert_eq!(a.datagrams.send(RailId(0), at(&b, 0), b"here"), SendOutcome::Sent);
    let mut buf = [0; 100];
    let got = receive(&b, &mut buf);
    assert_eq!(&buf[..got.len], b"here");
    assert!(a.datagrams.recv(&mut buf).unwrap().is_none());
}

/// The descriptor becomes readable, and stays so until the datagram is taken. Where datagrams go over connections, a new connection may wake
/// the sleeper before the datagram is there.
pub fn a_waiting_datagram_wakes_the_sleeper(factory: Factory) {
    let (a, b) = factory();
    a.datagrams.send(RailId(0), at(&b, 0), b"wake");
    assert!(wakes(&b, b.datagrams.fd(), NEVER));
    if b.rails[0].kind() == Kind::IWARP {
        eventually("the datagram wakes", || wakes(&b, b.datagrams.fd(), Duration::ZERO).then_some(()));
    }
    for _ in 0..3 {
        assert!(wakes(&b, b.datagrams.fd(), Duration::ZERO), "it is not taken");
    }
    receive(&b, &mut [0; 64]);
    assert!(!wakes(&b, b.datagrams.fd(), Duration::ZERO));
}

/// Sends trains until one of `datagrams` full datagrams and a shorter one has gone out whole.
fn send_whole_train(from: &Rails, to: &Rails, rail: usize, segment: usize, datagrams: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..segment * datagrams + segment / 2).map(|i| pattern(segment as u64, i)).collect();
    let mut left = &bytes[..];
    eventually("the train is sent", || {
        let out = from.datagrams.send_train(RailId(rail as u8), at(to, rail), left, segment);
        assert_ne!(out.rest, SendOutcome::RailBroken);
        left = &left[(out.sent * segment).min(left.len())..];
        left.is_empty().then_some(())
    });
    bytes
}

/// Of every length and size of datagram, on every rail: the datagrams come in order, each with its own bounds.
pub fn trains_arrive_whole_and_in_order(factory: Factory) {
    let (a, b) = factory();
    let mut buf = vec![0; 65_536];
    for rail in 0..a.rails.len() {
        let most = usize::from(a.rails[rail].datagram_bytes_max.min(b.rails[rail].datagram_bytes_max));
        for (segment, datagrams) in [(1, 1), (500, 3), (most.min(1000), 40), (most.min(6000), 10)] {
            let sent = send_whole_train(&a, &b, rail, segment, datagrams);
            let mut got: Vec<u8> = Vec::new();
            let mut sizes = Vec::new();
            while got.len() < sent.len() {
                let t = eventually("the train arrives", || {
                    b.datagrams.recv_train(&mut buf).expect("the port works")
                });
                assert_eq!(t.rail, RailId(rail as u8));
                assert!(t.from.same_place(&at(&a, rail)));
                assert!(t.len > 0 && t.segment > 0);
                for d in buf[..t.len].chunks(t.segment) {
                    sizes.push(d.len());
                    got.extend_from_slice(d);
                }
            }
            assert!(got == sent, "{datagrams} datagrams of {segment} bytes on rail {rail} arrive intact");
            let mut expected = vec![segment; datagrams];
            expected.extend((segment / 2 > 0).then_some(segment / 2));
            assert_eq!(sizes, expected, "each datagram keeps its bounds");
        }
    }
    assert!(b.datagrams.recv_train(&mut buf).unwrap().is_none());
}

/// A call for one datagram returns one, however many came together, and none is lost in between.
pub fn a_train_may_be_received_one_by_one(factory: Factory) {
    let (a, b) = factory();
    let mut buf = vec![0; 65_536];
    let sent = send_whole_train(&a, &b, 0, 500, 8);
    let mut expected = sent.chunks(500);
    // half of them in one way, the rest in the other
    for datagram in expected.by_ref().take(4) {
        let got = receive(&b, &mut buf);
        assert!(buf[..got.len] == *datagram, "each arrives by itself, and in its turn");
    }
    while expected.len() > 0 {
        let t = eventually("the rest arrives", || b.datagrams.recv_train(&mut buf).expect("the port works"));
        for datagram in buf[..t.len].chunks(t.segment) {
            assert_eq!(Some(datagram), expected.next(), "the rest arrives in its turn");
        }
    }
    assert!(b.datagrams.recv(&mut buf).unwrap().is_none());
}

/// Nothing of it is, and the port says so.
pub fn a_train_on_no_rail_is_not_sent(factory: Factory) {
    let (a, b) = factory();
    let out = a.datagrams.send_train(RailId(200), at(&b, 0), &[1; 1000], 300);
    assert_eq!(out.sent, 0);
    assert_ne!(out.rest, SendOutcome::Sent);
    assert!(b.datagrams.recv(&mut [0; 2000]).unwrap().is_none());
}

/// Small ones and trains, on every rail, from the same place whichever route they are led over; and by the usual one again.
pub fn datagrams_arrive_by_every_route(factory: Factory) {
    let (a, b) = factory();
    let mut buf = vec![0; 65_536];
    for rail in 0..a.rails.len() {
        let (id, to) = (RailId(rail as u8), at(&b, rail));
        for route in (0..a.rails[rail].routes_max).chain([0, 0]) {
            a.datagrams.lead(id, to, route);
            assert_eq!(a.datagrams.send(id, to, b"by this way"), SendOutcome::Sent);
            let got = receive(&b, &mut buf);
            assert_eq!((&buf[..got.len], got.rail), (&b"by this way"[..], id));
            assert!(got.from.same_place(&at(&a, rail)));
            let sent = send_whole_train(&a, &b, rail, 300, 4);
            let mut come = Vec::new();
            while come.len() < sent.len() {
                let t = eventually("the train arrives", || {
                    b.datagrams.recv_train(&mut buf).expect("the port works")
                });
                assert!(t.from.same_place(&at(&a, rail)));
                come.extend_from_slice(&buf[..t.len]);
            }
            assert!(come == sent, "a train on rail {rail} by route {route} arrives intact");
        }
    }
    a.datagrams.lead(RailId(200), at(&b, 0), 1);
}

/// On every rail, in both roles.
pub fn connecting_names_the_rail_on_both_sides(factory: Factory) {
    let (mut a, mut b) = factory();
    for rail in 0..a.rails.len() {
        connect(&mut a, &mut b, rail, 1 + rail as u32);
        connect(&mut b, &mut a, rail, 101 + rail as u32);
    }
}

/// The descriptor of the stream port becomes readable.
pub fn an_incoming_connection_wakes_the_sleeper(factory: Factory) {
    let (mut a, mut b) = factory();
    a.streams.open(StreamId(1), RailId(0), at(&b, 0));
    assert!(wakes(&b, b.streams.fd(), NEVER));
    assert!(poll(&mut b).contains(&StreamEvent::Incoming));
    assert!(b.streams.accept(&mut |_, _| StreamId(2)));
    assert!(!b.streams.accept(&mut |_, _| panic!("there is only one")));
    assert!(wakes(&a, a.streams.fd(), NEVER), "the connecting side wakes too");
}

/// Also when what has come was seen before: a poll that reports it, or a read that leaves some of it, takes nothing away.
pub fn bytes_that_are_not_read_keep_the_sleeper_awake(factory: Factory) {
    let (mut a, mut b) = factory();
    let (sa, sb) = connect(&mut a, &mut b, 0, 1);
    say(&mut a, sa, b"abc");
    let comes =
        |b: &mut Rails| eventually("it comes", || poll(b).contains(&StreamEvent::Readable(sb)).then_some(()));
    comes(&mut b);
    assert!(wakes(&b, b.streams.fd(), NEVER), "nothing was read");
    let mut byte = [0];
    eventually("a byte is read", || (read(&mut b, sb, &mut byte) == Moved::Bytes(1)).then_some(()));
    assert!(wakes(&b, b.streams.fd(), NEVER), "one byte of three was read");
    comes(&mut b);
    assert!(wakes(&b, b.streams.fd(), NEVER), "two are there still");
}

/// Vectors of every shape, more than fits any buffer.
pub fn bytes_arrive_in_order_over_partial_reads_and_writes(factory: Factory) {
    bytes_arrive(factory, false);
}

/// The same bytes are offered until they are taken; now and then they are cut in another way.
pub fn bytes_that_stay_where_they_are_arrive_in_order(factory: Factory) {
    bytes_arrive(factory, true);
}

fn bytes_arrive(factory: Factory, lasting: bool) {
    const TOTAL: usize = 24 << 20;
    let (mut a, mut b) = factory();
    let (sa, sb) = connect(&mut a, &mut b, 0, 1);
    let source: Vec<u8> = (0..TOTAL).map(|i| pattern(7, i)).collect();
    let mut target = vec![0u8; TOTAL];
    let (mut sent, mut got, mut full, mut waits) = (0, 0, false, 0);
    let mut lcg = 12345u64;
    let mut random = move |most: usize| {
        lcg = lcg.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        1 + (lcg >> 33) as usize % most
    };
    let mut cut = |mut from: usize, end: usize, base: *mut u8| -> Vec<IoVec> {
        let mut v = Vec::new();
        while from < end && v.len() < 16 {
            let n = random(200_000).min(end - from);
            // SAFETY: `from` is inside the buffer that starts at `base`.
            v.push(IoVec::new(unsafe { base.add(from) }, n));
            from += n;
        }
        v
    };
    eventually("all bytes arrive", || {
        if !full && sent < TOTAL {
            let mut pieces = cut(sent, TOTAL, source.as_ptr().cast_mut());
            if lasting && sent % 3 != 0 {
                // large and small ones in turn, with the same ends each time, as frames have them
                pieces.clear();
                let mut from = sent;
                while from < TOTAL && pieces.len() < 16 {
                    let end = if from % 65_536 < 65_400 {
                        from - from % 65_536 + 65_400
                    } else {
                        from - from % 65_536 + 65_536
                    };
                    // SAFETY: `from` is inside the buffer.
                    pieces.push(IoVec::new(
                        unsafe { source.as_ptr().cast_mut().add(from) },
                        end.min(TOTAL) - from,
                    ));
                    from = end.min(TOTAL);
                }
            }
            let offered: usize = pieces.iter().map(|p| p.len).sum();
            // SAFETY: the pieces lie in `source`, which is only read.
            let moved = unsafe {
                if lasting { a.streams.write_lasting(sa, &pieces) } else { a.streams.write(sa, &pieces) }
            };
            match moved {
                Moved::Bytes(n) => {
                    sent += n;
                    full = n < offered;
                }
                Moved::Blocked => full = true,
                Moved::Closed(why) => panic!("closed: {why:?}"),
            }
            if full {
                waits += 1;
                a.streams.want_writable(sa);
            }
        }
        full &= !poll(&mut a).contains(&StreamEvent::Writable(sa));
        if poll(&mut b).contains(&StreamEvent::Readable(sb)) {
            let pieces = cut(got, TOTAL, target.as_mut_ptr());
            // SAFETY: the pieces lie in `target`, which nothing else touches.
            match unsafe { b.streams.read(sb, &pieces) } {
                Moved::Bytes(n) => got += n,
                Moved::Blocked => {}
                Moved::Closed(why) => panic!("closed: {why:?}"),
            }
        }
        (got == TOTAL).then_some(())
    });
    assert!(waits > 0, "the test must have filled the stream");
    assert!(source == target);
}

/// Each byte on the stream it was written to.
pub fn many_streams_do_not_mix(factory: Factory) {
    let (mut a, mut b) = factory();
    let rails = a.rails.len();
    let pairs: Vec<_> = (0..20).map(|i| connect(&mut a, &mut b, i as usize % rails, i)).collect();
    for (i, (sa, _)) in pairs.iter().enumerate() {
        say(&mut a, *sa, &[i as u8; 100]);
    }
    for (i, (_, sb)) in pairs.iter().enumerate() {
        let (mut got, mut buf) = (0, [0; 200]);
        eventually("the bytes arrive", || {
            if let Moved::Bytes(n) = read(&mut b, *sb, &mut buf) {
                assert!(buf[..n].iter().all(|&x| x == i as u8));
                got += n;
            }
            (got == 100).then_some(())
        });
    }
}

/// A reset, not an end of stream: the reader must not take what it has for all there was.
pub fn closing_is_abortive_and_seen_by_the_other_side(factory: Factory) {
    let (mut a, mut b) = factory();
    let (sa, sb) = connect(&mut a, &mut b, 0, 1);
    close(&mut a, sa);
    assert!(wakes(&b, b.streams.fd(), NEVER));
    assert_eq!(ending(&mut b, sb), CloseReason::Reset);
    close(&mut b, sb);
    // The other way round, with bytes under way in both directions.
    let (sa, sb) = connect(&mut a, &mut b, 0, 2);
    say(&mut a, sa, &[1; 1000]);
    say(&mut b, sb, &[2; 1000]);
    eventually("bytes wait to be read", || poll(&mut b).contains(&StreamEvent::Readable(sb)).then_some(()));
    close(&mut b, sb);
    assert_eq!(ending(&mut a, sa), CloseReason::Reset);
    close(&mut a, sa);
    assert!(poll(&mut b).is_empty() && poll(&mut a).is_empty());
}

/// What found no room is lost, and closing does not wait for a reader.
pub fn a_full_stream_closes_at_once(factory: Factory) {
    let (mut a, mut b) = factory();
    let (sa, sb) = connect(&mut a, &mut b, 0, 1);
    let block = vec![5; 1 << 20];
    while matches!(write(&mut a, sa, &block), Moved::Bytes(_)) {}
    a.streams.want_writable(sa);
    close(&mut a, sa);
    assert!(poll(&mut a).is_empty());
    assert_eq!(ending(&mut b, sb), CloseReason::Reset);
}

/// Without a signal, and without a poll in between.
pub fn writing_to_a_closed_peer_ends_the_stream(factory: Factory) {
    let (mut a, mut b) = factory();
    let (sa, sb) = connect(&mut a, &mut b, 0, 1);
    close(&mut b, sb);
    let why = eventually("the write fails", || match write(&mut a, sa, b"anybody there") {
        Moved::Closed(why) => Some(why),
        _ => None,
    });
    assert_eq!(why, CloseReason::Reset);
    if places(&a, 0) {
        close(&mut a, sa);
    }
    assert_eq!(write(&mut a, sa, b"x"), Moved::Closed(CloseReason::Requested), "the name is forgotten");
}

/// A rail that touches memory inside of calls only forgets the stream when it has reported its end. A rail that places may still touch memory for
/// it, and keeps the name until it is closed; meanwhile its end is not reported again.
pub fn a_stream_that_broke_is_closed_once(factory: Factory) {
    let (mut a, mut b) = factory();
    let (mut streams, mut woken) = (0, 0);
    for rail in 0..a.rails.len() {
        for by_write in [false, true] {
            let (sa, sb) = connect(&mut a, &mut b, rail, 1 + 2 * rail as u32 + u32::from(by_write));
            close(&mut b, sb);
            if by_write {
                eventually("the write fails", || match write(&mut a, sa, b"anybody there") {
                    Moved::Closed(why) => Some(why),
                    _ => None,
                });
            } else {
                ending(&mut a, sa);
            }
            streams += 1;
            for _ in 0..5 {
                assert_eq!(poll(&mut a), [], "its end is told once");
                woken += u32::from(wakes(&a, a.streams.fd(), Duration::from_millis(1)));
            }
            // a layer that uses an adapter without its writes closes the stream below, and that reports its end later: to the layer only
            let is_layer = a.rails[rail].kind() == Kind::EXAMPLE && !places(&a, rail);
            assert!(
                woken <= if is_layer { streams } else { 0 },
                "rail {rail}, by_write {by_write}: a sleeper was woken {woken} times for nothing"
            );
            // a layer that plants faults may delay its report
            let after = eventually("a read says it too", || {
                Some(read(&mut a, sa, &mut [0; 8])).filter(|moved| *moved != Moved::Blocked)
            });
            if places(&a, rail) {
                assert!(matches!(after, Moved::Closed(why) if why != CloseReason::Requested), "{after:?}");
                assert_eq!(a.streams.rail_of(sa), Some(RailId(rail as u8)), "its name is known");
                close(&mut a, sa);
            } else {
                assert_eq!(after, Moved::Closed(CloseReason::Requested), "its name is forgotten");
            }
            assert_eq!(a.streams.close(sa), Closing::Done);
            assert_eq!((poll(&mut a), a.streams.rail_of(sa)), (Vec::new(), None));
        }
    }
}

/// There is no listener: a poll reports it, never `open` itself. Where a process is reached by its queue pairs alone, nothing answers for
/// one that is gone, and the rail gives up.
pub fn a_refused_connection_is_reported_by_the_next_poll(factory: Factory) {
    let (mut a, _b) = factory();
    let nobody = {
        let (_, d) = factory();
        at(&d, 0)
    };
    a.streams.open(StreamId(1), RailId(0), nobody);
    assert!(wakes(&a, a.streams.fd(), NEVER));
    let answers = ![Kind::IB, Kind::ROCE_NO_CM].contains(&a.rails[0].kind());
    let why = if answers { CloseReason::Refused } else { CloseReason::Unreachable };
    assert_eq!(ending(&mut a, StreamId(1)), why);
    a.streams.open(StreamId(2), RailId(200), nobody);
    assert!(wakes(&a, a.streams.fd(), Duration::ZERO), "what is known at once wakes at once");
    assert_eq!(ending(&mut a, StreamId(2)), CloseReason::Unreachable);
    assert!(poll(&mut a).is_empty() && !wakes(&a, a.streams.fd(), Duration::ZERO));
}

/// Closed while it is being made, or before its failure was reported.
pub fn a_connection_that_is_given_up_leaves_nothing_behind(factory: Factory) {
    let (mut a, mut b) = factory();
    a.streams.open(StreamId(1), RailId(0), at(&b, 0));
    close(&mut a, StreamId(1));
    a.streams.open(StreamId(2), RailId(200), at(&b, 0));
    close(&mut a, StreamId(2));
    for _ in 0..20 {
        assert!(poll(&mut a).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    // The other side may have seen it come and go.
    poll(&mut b);
    while b.streams.accept(&mut |_, _| StreamId(9)) {}
    let (sa, _) = connect(&mut a, &mut b, 0, 3);
    say(&mut a, sa, b"x");
}

/// The kernel at the other end acknowledges although its process reads nothing: so the engine recognizes a stopped
/// process. A rail may report nothing of it; what a rail reports must be right.
pub fn what_a_rail_reports_of_the_far_kernel_is_right(factory: Factory) {
    let (mut a, mut b) = factory();
    let (sa, _) = connect(&mut a, &mut b, 0, 1);
    std::thread::sleep(Duration::from_millis(60));
    let before = std::time::Instant::now();
    say(&mut a, sa, b"anybody there");
    let mut reports = false;
    eventually("the other end's kernel acknowledges", || {
        let told = a.streams.far_kernel(sa);
        reports |= told.is_some();
        let right = told.is_some_and(|told| told.heard <= before.elapsed() && told.has_all);
        (right || !reports && before.elapsed() > NOT_REPORTED).then_some(())
    });
    assert_eq!(a.streams.far_kernel(StreamId(77)), None, "a name that is not known has no signs");
}

/// Names that were never given or are over.
pub fn names_that_are_not_known_harm_nothing(factory: Factory) {
    let (mut a, _b) = factory();
    a.streams.close(StreamId(77));
    a.streams.want_writable(StreamId(77));
    assert_eq!(write(&mut a, StreamId(77), b"x"), Moved::Closed(CloseReason::Requested));
    assert_eq!(read(&mut a, StreamId(77), &mut [0; 8]), Moved::Closed(CloseReason::Requested));
    assert!(!a.streams.accept(&mut |_, _| panic!("there is no connection")));
    assert!(poll(&mut a).is_empty());
}

/// Only changes are reported.
pub fn links_without_changes_say_nothing(factory: Factory) {
    let (mut a, _b) = factory();
    let mut changes = Vec::new();
    a.links.drain(&mut changes);
    a.links.drain(&mut changes);
    assert!(changes.is_empty(), "{changes:?}");
}
