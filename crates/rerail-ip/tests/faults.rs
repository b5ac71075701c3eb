//! The layer that plants faults, over the ports of the rail over IP: without a plan it changes nothing, with one it does what the
//! plan says, counts it, and keeps the contract as far as the plan leaves it.

use rerail_fault::{Counts, Injector, Plan, with_faults};
use rerail_rail::conformance::{at, eventually};
use rerail_rail::{
    Arrived, CloseReason, IoVec, Moved, RailId, Rails, SendOutcome, StreamEvent, StreamId, conformance_tests,
};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After this long, what has not happened never will.
const NEVER: Duration = Duration::from_secs(20);

fn plain() -> (Rails, Rails) {
    (rerail_ip::attach_loopback(1..3).unwrap(), rerail_ip::attach_loopback(11..13).unwrap())
}

fn with_plan(rails: Rails, plan: &str) -> (Rails, Arc<Injector>) {
    let names: Vec<String> = rails.rails.iter().map(|rail| rail.name.clone()).collect();
    let injector = Injector::new(names.clone());
    if !plan.is_empty() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        injector.set(Plan::parse(plan, &names).unwrap());
    }
    (with_faults(rails, &injector).unwrap(), injector)
}

fn both_with(plan: &str) -> (Rails, Rails) {
    let (a, b) = plain();
    (with_plan(a, plan).0, with_plan(b, plan).0)
}

mod without_a_plan {
    use super::*;

    conformance_tests!(|| both_with(""));
}

/// Late datagrams, and streams that stand still again and again: the contract says nothing about time, so all of it holds.
mod with_what_the_contract_survives {
    use super::*;

    conformance_tests!(|| both_with("all: delay=2ms dir=recv; all: flap=30ms/10ms on=streams"));
}

// ---- what a plan does --------------------------------------------------------------------------------------------

fn readable(fd: BorrowedFd<'_>, max: Duration) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut p, 1, max.as_millis() as libc::c_int) == 1 }
}

/// What was done to rail 0.
fn counts(injector: &Injector) -> Counts {
    injector.counts().next().unwrap().1
}

fn end(injector: &Injector) {
    injector.set(Plan::default());
}

/// One side with a plan, the other without.
fn pair(plan: &str) -> (Rails, Arc<Injector>, Rails) {
    let (a, b) = plain();
    let (a, injector) = with_plan(a, plan);
    (a, injector, b)
}

fn take(side: &Rails, buf: &mut [u8]) -> Option<Arrived> {
    side.datagrams.recv(buf).expect("the port works")
}

/// Sends numbered datagrams one by one, and gives what arrives, as numbers, and whether each was as it was sent.
fn exchange(from: &Rails, to: &Rails, count: u32, injector: &Injector) -> Vec<(u32, bool)> {
    let body = |number: u32| [number.to_le_bytes(), (!number).to_le_bytes()].concat();
    let mut got = Vec::new();
    let mut buf = [0; 100];
    let mut collect = || {
        while let Some(arrived) = take(to, &mut buf) {
            let number = u32::from_le_bytes(buf[..4].try_into().unwrap());
            got.push((number, arrived.len == 8 && buf[..8] == body(number)[..]));
        }
    };
    for number in 0..count {
        let bytes = body(number);
        assert_eq!(from.datagrams.send(RailId(0), at(to, 0), &bytes), SendOutcome::Sent);
        assert_eq!(bytes, body(number), "the sender's bytes are its own");
        collect();
    }
    end(injector);
    let done = Instant::now();
    while done.elapsed() < Duration::from_millis(100) {
        // what is held leaves with any call
        take(from, &mut [0; 100]);
        collect();
    }
    got
}

#[test]
fn what_is_counted_is_what_happened_to_datagrams_either_way() {
    const SENT: u32 = 2000;
    for way in ["send", "recv"] {
        let plan = format!("all: loss=5% corrupt=5% dup=5% reorder=5%/2ms dir={way} seed=3");
        let (a, injector, b) = pair(&plan);
        let got =
            if way == "send" { exchange(&a, &b, SENT, &injector) } else { exchange(&b, &a, SENT, &injector) };
        let c = counts(&injector);
        for count in [c.lost, c.corrupted, c.duplicated, c.reordered] {
            assert!((60..140).contains(&count), "{c:?}");
        }
        assert_eq!(got.len() as u64, u64::from(SENT) - c.lost + c.duplicated, "{way}: {c:?}");
        let spoilt = got.iter().filter(|(_, whole)| !whole).count() as u64;
        assert!((c.corrupted..=c.corrupted + c.duplicated).contains(&spoilt), "{way}: {spoilt} of {c:?}");
        let overtaken = got.windows(2).filter(|pair| pair[0].1 && pair[1].1 && pair[0].0 > pair[1].0).count();
        assert!(overtaken > 0, "{way}: nothing was overtaken");
    }
}

#[test]
fn one_way_in_the_dark_and_the_other_not_and_rails_apart() {
    let (a, b) = plain();
    let injector = Injector::new(vec!["first".into(), "second".into()]);
    let a = with_faults(a, &injector).unwrap();
    injector.set(Plan::parse("first: dark dir=send", &["first", "second"]).unwrap());
    let mut buf = [0; 100];
    for rail in [0, 1] {
        a.datagrams.send(RailId(rail), at(&b, usize::from(rail)), b"out");
        b.datagrams.send(RailId(rail), at(&a, usize::from(rail)), b"in");
        eventually("what comes in comes", || take(&a, &mut buf));
    }
    let came = eventually("the other rail's datagram comes", || take(&b, &mut buf));
    assert_eq!(came.rail, RailId(1));
    assert_eq!(take(&b, &mut buf), None);
    assert_eq!(injector.counts().map(|(_, c)| c.lost).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn the_descriptor_wakes_the_sleeper_when_what_is_late_is_due() {
    let (a, injector, b) = pair("all: delay=30ms dir=recv");
    b.datagrams.send(RailId(0), at(&a, 0), b"late");
    let mut buf = [0; 100];
    assert!(wakes(&a, NEVER));
    assert_eq!(take(&a, &mut buf), None, "it is not due yet");
    assert!(wakes(&a, NEVER));
    eventually("it is due", || take(&a, &mut buf));
    assert!(!wakes(&a, Duration::ZERO));
    assert_eq!(counts(&injector).delayed, 1);
}

#[test]
fn what_stalls_is_not_lost() {
    let (a, injector, b) = pair("all: stall");
    let mut buf = [0; 100];
    for _ in 0..3 {
        a.datagrams.send(RailId(0), at(&b, 0), b"out");
        b.datagrams.send(RailId(0), at(&a, 0), b"in");
    }
    for _ in 0..20 {
        assert_eq!((take(&a, &mut buf), take(&b, &mut buf)), (None, None));
        std::thread::sleep(Duration::from_millis(1));
    }
    end(&injector);
    for _ in 0..3 {
        eventually("what came in comes", || take(&a, &mut buf));
        eventually("what went out comes", || take(&b, &mut buf));
    }
    assert!(!wakes(&a, Duration::ZERO));
}

/// Whether the descriptor of the datagrams wakes a sleeper.
fn wakes(side: &Rails, max: Duration) -> bool {
    let woken = side.datagrams.before_sleep(false) || readable(side.datagrams.fd(), max);
    side.datagrams.after_sleep();
    woken
}

// ---- streams -------------------------------------------------------------------------------------------------------

fn poll(side: &mut Rails) -> Vec<StreamEvent> {
    let mut out = Vec::new();
    side.streams.poll(&mut out);
    out
}

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

fn connect(a: &mut Rails, b: &mut Rails) {
    a.streams.open(A, RailId(0), at(b, 0));
    eventually("the connection comes in", || poll(b).contains(&StreamEvent::Incoming).then_some(()));
    assert!(b.streams.accept(&mut |_, _| B));
    eventually("the connection is made", || poll(a).contains(&StreamEvent::Connected(A)).then_some(()));
}

fn write(side: &mut Rails, s: StreamId, bytes: &[u8]) -> Moved {
    // SAFETY: the bytes are borrowed through the call.
    unsafe { side.streams.write(s, &[IoVec::from_ref(bytes)]) }
}

fn read(side: &mut Rails, s: StreamId, bytes: &mut [u8]) -> Moved {
    // Two pieces, so that places are found across them.
    let half = bytes.len() / 2;
    let (one, two) = bytes.split_at_mut(half);
    // SAFETY: the bytes are borrowed exclusively through the call.
    unsafe { side.streams.read(s, &[IoVec::from_mut(one), IoVec::from_mut(two)]) }
}

#[test]
fn a_corrupted_stream_differs_where_it_is_counted_and_never_in_the_senders_memory() {
    const TOTAL: usize = 6 << 20;
    let whole: Vec<u8> = (0..TOTAL).map(|i| ((i * 31) >> 3) as u8).collect();
    for way in ["send", "recv"] {
        let (mut a, injector, mut b) = pair(&format!("all: corrupt=5% dir={way} seed=11"));
        connect(&mut a, &mut b);
        // The faulty side sends, or receives.
        let (from, to, out, into) =
            if way == "send" { (&mut a, &mut b, A, B) } else { (&mut b, &mut a, B, A) };
        let source = whole.clone();
        let mut target = vec![0; TOTAL];
        let (mut sent, mut got) = (0, 0);
        eventually("all bytes come", || {
            poll(from);
            poll(to);
            if let Moved::Bytes(n) = write(from, out, &source[sent..(sent + 1_000_003).min(TOTAL)]) {
                sent += n;
            }
            if let Moved::Bytes(n) = read(to, into, &mut target[got..(got + 700_001).min(TOTAL)]) {
                got += n;
            }
            (got == TOTAL).then_some(())
        });
        assert!(source == whole, "{way}: the sender's memory was touched");
        let flipped = (0..TOTAL).filter(|&i| source[i] != target[i]);
        assert!(flipped.clone().all(|i| (source[i] ^ target[i]).count_ones() == 1));
        let (flipped, blocks) = (flipped.count() as u64, TOTAL as u64 / 1400);
        assert_eq!(flipped, counts(&injector).corrupted, "{way}");
        assert!((blocks / 30..blocks / 15).contains(&flipped), "{way}: {flipped} of {blocks} blocks at 5 %");
    }
}

#[test]
fn a_stream_that_stands_still_loses_nothing_and_wakes_nobody() {
    let (mut a, injector, mut b) = pair("all: loss=1%"); // streams do not care
    connect(&mut a, &mut b);
    let mut buf = [0; 100];
    injector.set(Plan::parse("all: dark on=streams", &[]).unwrap());
    assert_eq!(write(&mut b, B, b"in"), Moved::Bytes(2));
    assert_eq!(write(&mut a, A, b"out"), Moved::Blocked);
    a.streams.want_writable(A);
    assert!(readable(a.streams.fd(), NEVER));
    for _ in 0..20 {
        assert_eq!(poll(&mut a), [], "nothing is to be done");
        assert!(!readable(a.streams.fd(), Duration::ZERO), "the sleeper would spin");
        assert_eq!(read(&mut a, A, &mut buf), Moved::Blocked);
    }
    assert_eq!(a.streams.far_kernel(A), None, "in the dark the kernel's word does not count");
    assert!(counts(&injector).stood > 0);
    end(&injector);
    let mut said = Vec::new();
    eventually("it moves again", || {
        said.extend(poll(&mut a));
        (said.contains(&StreamEvent::Writable(A)) && said.contains(&StreamEvent::Readable(A))).then_some(())
    });
    assert_eq!(read(&mut a, A, &mut buf), Moved::Bytes(2));
    assert_eq!(write(&mut a, A, b"out"), Moved::Bytes(3));
    assert!(a.streams.far_kernel(A).is_some());
}

#[test]
fn an_end_in_the_dark_is_told_afterwards_and_not_of_a_stream_that_was_closed_meanwhile() {
    for closes in [false, true] {
        let (mut a, injector, mut b) = pair("");
        connect(&mut a, &mut b);
        injector.set(Plan::parse("all: dark", &[]).unwrap());
        b.streams.close(B);
        for _ in 0..20 {
            assert_eq!(poll(&mut a), []);
            std::thread::sleep(Duration::from_millis(1));
        }
        if closes {
            a.streams.close(A);
        }
        end(&injector);
        if closes {
            for _ in 0..20 {
                assert_eq!(poll(&mut a), []);
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            eventually("the end is told", || {
                let readable = |e: &StreamEvent| *e == StreamEvent::Readable(A);
                let ended = |e: &StreamEvent| *e == StreamEvent::Closed(A, CloseReason::Reset);
                let said = poll(&mut a);
                let found =
                    said.iter().any(readable) && matches!(read(&mut a, A, &mut [0; 8]), Moved::Closed(_));
                (found || said.iter().any(ended)).then_some(())
            });
        }
    }
}

#[test]
fn resets_come_in_their_period_and_are_seen_by_both_sides() {
    let (mut a, injector, mut b) = pair("");
    connect(&mut a, &mut b);
    // a stream is known once something was done with it under a plan
    injector.set(Plan::parse("all: reset=50ms for=75ms", &[]).unwrap());
    let why = eventually("the stream is reset", || {
        poll(&mut a).into_iter().find_map(|e| match e {
            StreamEvent::Closed(A, why) => Some(why),
            _ => None,
        })
    });
    assert_eq!(why, CloseReason::Reset);
    eventually("the other side sees it", || {
        poll(&mut b);
        matches!(read(&mut b, B, &mut [0; 8]), Moved::Closed(_)).then_some(())
    });
    assert_eq!(counts(&injector).reset, 1);
    assert_eq!(write(&mut a, A, b"x"), Moved::Closed(CloseReason::Requested), "the name is forgotten");
}
