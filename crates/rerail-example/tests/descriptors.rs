//! The descriptors of a process, all of them: so in a file, and a process, of its own.

use rerail_rail::conformance::{at, eventually};
use rerail_rail::{RailId, Rails, StreamEvent, StreamId};
use std::collections::BTreeSet;
use std::os::fd::RawFd;

fn open() -> BTreeSet<RawFd> {
    let named = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let all: Vec<RawFd> =
        std::fs::read_dir("/proc/self/fd").unwrap().map(|e| named(e).parse().unwrap()).collect();
    // the directory itself was open while it was read
    // SAFETY: F_GETFD takes no memory.
    all.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn descriptors(side: &Rails, out: &mut Vec<RawFd>) {
    side.datagrams.descriptors(out);
    side.streams.descriptors(out);
    side.links.descriptors(out);
}

#[test]
fn every_descriptor_is_named_and_closed_on_exec_and_all_is_gone_with_the_rails() {
    let (before, threads_before) = (open(), threads());
    let (mut a, mut b) = (rerail_example::attach(2).unwrap(), rerail_example::attach(2).unwrap());
    for i in 0..3 {
        // the last one is not accepted
        a.streams.open(StreamId(i), RailId(1), at(&b, 1));
        eventually("it comes in", || {
            let mut out = Vec::new();
            b.streams.poll(&mut out);
            out.contains(&StreamEvent::Incoming).then_some(())
        });
        assert!(i == 2 || b.streams.accept(&mut |_, _| StreamId(100 + i)));
    }
    let mut named = Vec::new();
    descriptors(&a, &mut named);
    descriptors(&b, &mut named);
    let ours: BTreeSet<RawFd> = open().difference(&before).copied().collect();
    assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), ours, "what a forked child closes");
    assert_eq!(named.len(), ours.len(), "each is named once");
    for fd in ours {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
    }
    drop((a, b));
    assert_eq!((open(), threads()), (before, threads_before));
}
