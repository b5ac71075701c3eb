//! Engine, runtime and adapter together: what holds between two processes over IP holds over rails that write into memory by themselves.

#[path = "../../rerail-ip/tests/two/mod.rs"]
mod two;

use rerail_core::Options;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use two::Node;

fn pair(o: &Options) -> (Node, Node) {
    let node = || Node::new(rerail_example::attach(2).unwrap(), o.clone());
    (node(), node())
}

/// Else the tests above have tried copies only.
#[test]
fn large_messages_are_written_by_the_adapter() {
    let (a, b) = pair(&Options::default());
    let dest = a.knows(&b);
    // the streams of both paths are made meanwhile; a message that is granted before has copies only
    let (early, mut first) = (two::bytes(0, 4 << 20), vec![0; 4 << 20]);
    b.recv(0, &mut first);
    a.send(dest, 0, &early);
    two::collect(&[&a, &b], 2);
    let sent = two::bytes(1, 16 << 20);
    let mut got = vec![0; sent.len()];
    let loans = |n: &Node| n.rt.inspect(|e| e.loan_counts()).unwrap();
    let (mut works, mut regions, mut done) = (0, 0, 0);
    b.recv(1, &mut got);
    a.send(dest, 1, &sent);
    // no sleep: what is lent is seen only while it is
    let start = Instant::now();
    while done < 2 {
        done += a.pop().len();
        works = works.max(loans(&a).0);
        done += b.pop().len();
        regions = regions.max(loans(&b).1);
        assert!(start.elapsed() < two::NEVER, "it never arrives");
    }
    assert!(got == sent && works > 0 && regions > 0, "{works} writes, {regions} regions");
    two::eventually("nothing is lent any more", || {
        done += a.pop().len() + b.pop().len();
        (loans(&a), loans(&b)) == ((0, 0), (0, 0))
    });
    assert_eq!(done, 2);
}

/// Connections break again and again while an adapter writes by them. What it may still write is fenced, and no byte is wrong: each buffer is
/// watched for a while after it was given back: what a connection has under way needs 4 ms to land.
#[test]
fn what_is_late_when_connections_break_lands_in_no_buffer_that_was_given_back() {
    // not so often that three in a row break before any write is acknowledged: then copies are sent
    let options = Options { faults: "all: reset=60ms".to_owned(), ..Options::default() };
    let node = || {
        let late = Duration::from_micros(300);
        Node::new(rerail_example::attach_with(2, move |_| std::thread::sleep(late)).unwrap(), options.clone())
    };
    let (a, b) = (node(), node());
    let dest = a.knows(&b);
    let counters = |n: &Node| n.rt.inspect(|e| e.counters()).unwrap();
    let sent: Vec<_> = (0..2).map(|i| two::bytes(i, 2 << 20)).collect();
    let mut got: Vec<_> = sent.iter().map(|s| vec![0; s.len()]).collect();
    let (start, mut round) = (Instant::now(), 0);
    while counters(&a).fences_asked < 40 || counters(&a).pieces_placed < 100 {
        for (i, (sent, got)) in sent.iter().zip(&mut got).enumerate() {
            got.fill(0xee);
            b.recv(round * 2 + i as u64, got);
            a.send(dest, round * 2 + i as u64, sent);
        }
        two::collect(&[&a, &b], 4);
        for (sent, got) in sent.iter().zip(&mut got) {
            assert!(sent == got, "round {round}");
            // the application uses its buffer again
            got.fill(0xdd);
        }
        let until = Instant::now() + Duration::from_millis(5);
        while Instant::now() < until {
            assert!(a.pop().is_empty() && b.pop().is_empty());
        }
        assert!(got.iter().flatten().all(|byte| *byte == 0xdd), "something was late in round {round}");
        round += 1;
        assert!(start.elapsed() < two::NEVER, "{:?}", counters(&a));
    }
}

/// One write is held in the adapter of the receiver while its stream is replaced. Until it has landed the fence has no answer, and the
/// message is not complete, however many messages pass by; when it has landed, the buffer is the application's.
#[test]
fn a_fence_is_answered_when_what_the_adapter_holds_has_landed() {
    let (release, gate) = channel::<()>();
    let (gate, holds) = (Mutex::new(Some(gate)), Arc::new(AtomicBool::new(false)));
    let held = holds.clone();
    // the first part that is to land waits
    let before_landing = move |_| {
        let first = gate.lock().unwrap().take();
        if let Some(gate) = first {
            held.store(true, Ordering::Relaxed);
            // it fails when the test has failed
            let _ = gate.recv();
        }
    };
    let a = Node::new(rerail_example::attach(2).unwrap(), Options::default());
    let b = Node::new(rerail_example::attach_with(2, before_landing).unwrap(), Options::default());
    // dropped before the nodes, whose adapters end with them
    let release = release;
    let dest = a.knows(&b);
    let counters = |n: &Node| n.rt.inspect(|e| e.counters()).unwrap();
    // never freed: when the test fails the nodes still use them
    let sent = [0, 1].map(|i| &*two::bytes(i, 4 << 20).leak());
    let [watched, other] = sent.map(|s| vec![0; s.len()].leak());
    // until one is written, and not copied
    let mut tag = 0;
    let replaced = loop {
        b.recv(tag, watched);
        a.send(dest, tag, sent[0]);
        let (start, mut done) = (Instant::now(), 0);
        while done < 2 && !holds.load(Ordering::Relaxed) {
            done += a.pop().len() + b.pop().len();
            assert!(start.elapsed() < two::NEVER, "message {tag} never arrives");
        }
        if done < 2 {
            break counters(&b).streams_replaced;
        }
        tag += 1;
    };
    let done = || a.pop().len() + b.pop().len();
    two::eventually("the stream is fenced", || {
        assert_eq!(done(), 0, "a message is complete of which a write is held");
        counters(&a).fences_asked > 0 && counters(&b).streams_replaced > replaced
    });
    for later in 1..=20 {
        b.recv(tag + later, other);
        a.send(dest, tag + later, sent[1]);
        let all = two::collect(&[&a, &b], 2);
        assert!(
            all.iter().all(|c| c.context as u64 == tag + later),
            "a message is complete of which a write is held"
        );
        assert!(other == sent[1]);
    }
    release.send(()).unwrap();
    assert!(two::collect(&[&a, &b], 2).iter().all(|c| c.context as u64 == tag));
    assert!(watched == sent[0]);
    watched.fill(0xdd);
    b.recv(tag, other);
    a.send(dest, tag, sent[1]);
    two::collect(&[&a, &b], 2);
    assert!(watched.iter().all(|byte| *byte == 0xdd), "something was late");
}

/// Rails of two kinds carry one message together, each to the rail of its own kind.
#[test]
fn rails_of_two_kinds_carry_one_message() {
    let node = || {
        let kinds = vec![rerail_ip::attach_loopback(1..2).unwrap(), rerail_example::attach(1).unwrap()];
        Node::new(rerail_rail::join(kinds).unwrap(), Options::default())
    };
    let (a, b) = (node(), node());
    let dest = a.knows(&b);
    let paths = |n: &Node| n.rt.inspect(|e| e.paths()).unwrap();
    let (sent, mut got) = (two::bytes(3, 32 << 20), vec![0; 32 << 20]);
    let carried = |n: &Node| paths(n).iter().filter(|p| p.bytes_sent > 4 << 20).count();
    let (start, mut tag) = (Instant::now(), 0);
    while carried(&a) < 2 {
        b.recv(tag, &mut got);
        a.send(dest, tag, &sent);
        two::collect(&[&a, &b], 2);
        assert!(got == sent);
        got.fill(0);
        tag += 1;
        assert!(start.elapsed() < two::NEVER, "{:?}", paths(&a));
    }
    let rails = a.rt.rails();
    let kinds: Vec<_> =
        paths(&a).iter().map(|p| (rails[usize::from(p.rail.0)].kind(), p.remote.kind())).collect();
    assert_eq!(kinds.len(), 2);
    assert!(kinds.iter().all(|(own, far)| own == far), "{kinds:?}");
    // the peer has reported the names of its rails, and both sides use the same names
    assert!(paths(&a).iter().all(|p| rails[usize::from(p.rail.0)].name == p.remote_name), "{:?}", paths(&a));
}
