//! Engine, runtime and adapter together: what holds between two processes over IP holds over rails that write into memory by themselves.

#[path = "../../rerail-ip/tests/two/mod.rs"]
mod two;

use rerail_core::Options;
use std::time::Instant;
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
