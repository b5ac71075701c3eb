//! A process that has no descriptors left. In a file, and so a process, of its own: the limit is the process's.

use rerail_rail::conformance::{at, eventually};
use rerail_rail::{RailId, Rails, StreamEvent, StreamId};
use std::os::fd::AsRawFd;

fn side() -> Rails {
    let rails = rerail_ip::attach_loopback(1..3).unwrap();
    rerail_shm::over(rails, false).map_err(|(_, why)| why).unwrap()
}

fn has(side: &mut Rails, event: StreamEvent) -> Option<()> {
    let mut out = Vec::new();
    side.streams.poll(&mut out);
    out.contains(&event).then_some(())
}

/// Sets the number of descriptors that the process may have; what it was.
fn limit(to: libc::rlim_t) -> libc::rlim_t {
    let mut l = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one valid place.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut l) }, 0);
    let before = std::mem::replace(&mut l.rlim_cur, to);
    // SAFETY: one valid place.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const l) }, 0);
    before
}

fn readable(side: &Rails) -> bool {
    let mut p = libc::pollfd { fd: side.streams.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    let n = unsafe { libc::poll(&raw mut p, 1, 0) };
    assert!(n >= 0);
    n == 1
}

#[test]
fn who_has_no_descriptors_left_sleeps_and_takes_the_neighbour_later() {
    let (mut a, mut b) = (side(), side());
    a.streams.open(StreamId(1), RailId(0), at(&b, 0));
    eventually("it is made", || has(&mut a, StreamEvent::Connected(StreamId(1))));
    eventually("it comes in", || has(&mut b, StreamEvent::Incoming));
    assert!(readable(&b));
    // not 0: poll(2) refuses more places than that
    let before = limit(1);
    assert!(!b.streams.accept(&mut |_, _| panic!("there is no descriptor for it")));
    let awake = readable(&b);
    limit(before);
    assert!(!awake, "a sleeper would be woken for nothing again and again");
    eventually("it is taken", || {
        has(&mut b, StreamEvent::Incoming)?;
        b.streams.accept(&mut |_, _| StreamId(2)).then_some(())
    });
}
