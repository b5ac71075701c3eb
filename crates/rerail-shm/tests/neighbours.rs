//! What goes through memory and what does not, and which connections are accepted.

use rerail_rail::conformance::{at, eventually};
use rerail_rail::{
    Arrived, ArrivedTrain, CloseReason, DatagramPort, IoVec, Locator, Moved, RailId, Rails, SendOutcome,
    StreamEvent, StreamId, TrainOutcome, receive_one, send_one_by_one,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, connect, recv, sendmsg, socket,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what goes the long way.
struct Counted {
    inner: Arc<dyn DatagramPort>,
    sent: Arc<AtomicUsize>,
}

impl DatagramPort for Counted {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.inner.send(rail, to, bytes)
    }
    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        self.inner.recv(buf)
    }
    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        send_one_by_one(self, rail, to, bytes, segment)
    }
    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }
    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }
    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        self.inner.keep_neighbour(rail, to);
    }

    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        self.inner.lead(rail, to, route);
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
    fn before_sleep(&self, streams: bool) -> bool {
        self.inner.before_sleep(streams)
    }

    fn after_sleep(&self) {
        self.inner.after_sleep();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
    }
}

fn plain() -> Rails {
    rerail_ip::attach_loopback(1..3).unwrap()
}

/// With the shortcut; and how many datagrams it has left to the rail.
fn quick() -> (Rails, Arc<AtomicUsize>) {
    let mut rails = plain();
    let sent = Arc::new(AtomicUsize::new(0));
    rails.datagrams = Arc::new(Counted { inner: rails.datagrams, sent: sent.clone() });
    (rerail_shm::over(rails, true).map_err(|(_, why)| why).unwrap(), sent)
}

/// With the shortcut, and nothing else of interest.
fn side(single_copy: bool) -> Rails {
    rerail_shm::over(plain(), single_copy).map_err(|(_, why)| why).unwrap()
}

fn events(side: &mut Rails) -> Vec<StreamEvent> {
    let mut out = Vec::new();
    side.streams.poll(&mut out);
    out
}

/// A stream from `a` to `b` on rail 0: 1 there, 2 here.
fn join(a: &mut Rails, b: &mut Rails) {
    a.streams.open(StreamId(1), RailId(0), at(b, 0));
    eventually("it comes in", || {
        events(b);
        b.streams.accept(&mut |_, _| StreamId(2)).then_some(())
    });
    eventually("it is made", || events(a).contains(&StreamEvent::Connected(StreamId(1))).then_some(()));
}

/// The other side accepts the link with its next look.
fn take_link(side: &mut Rails) {
    eventually("the link is there", || events(side).contains(&StreamEvent::Incoming).then_some(()));
    assert!(!side.streams.accept(&mut |_, _| panic!("no stream has come")));
}

fn write(side: &mut Rails, s: u32, bytes: &[u8]) -> Moved {
    // SAFETY: borrowed through the call.
    unsafe { side.streams.write(StreamId(s), &[IoVec::from_ref(bytes)]) }
}

fn read(side: &mut Rails, s: u32) -> Result<Vec<u8>, Moved> {
    let mut room = vec![0; 1000];
    // SAFETY: borrowed through the call.
    match unsafe { side.streams.read(StreamId(s), &[IoVec::from_mut(&mut room)]) } {
        Moved::Bytes(n) => Ok(room[..n].to_vec()),
        other => Err(other),
    }
}

fn receive(side: &Rails) -> (Vec<u8>, Arrived) {
    let mut room = vec![0; 65_536];
    let got = eventually("a datagram arrives", || side.datagrams.recv(&mut room).unwrap());
    (room[..got.len].to_vec(), got)
}

#[test]
fn datagrams_take_the_shortcut_once_a_stream_has_been_opened() {
    let ((mut a, long_a), (mut b, long_b)) = (quick(), quick());
    assert_eq!(a.datagrams.send(RailId(1), at(&b, 1), b"before"), SendOutcome::Sent);
    assert_eq!((receive(&b).0, long_a.load(Ordering::Relaxed)), (b"before".to_vec(), 1));
    join(&mut a, &mut b);
    // Until it has taken the link, the other side gets everything the long way.
    a.datagrams.send(RailId(1), at(&b, 1), b"early");
    assert_eq!((receive(&b).0, long_a.swap(1, Ordering::Relaxed)), (b"early".to_vec(), 2));
    take_link(&mut b);
    for i in 0..100u8 {
        a.datagrams.send(RailId(1), at(&b, 1), &[i; 100]);
        let (bytes, got) = receive(&b);
        assert_eq!((bytes, got.rail), (vec![i; 100], RailId(1)));
        assert!(got.from.same_place(&a.rails[1].locator));
        // The side that opens makes the link, and it carries both ways.
        b.datagrams.send(RailId(0), at(&a, 0), &[i; 50]);
        assert_eq!(receive(&a).0, [i; 50]);
    }
    assert_eq!((long_a.load(Ordering::Relaxed), long_b.load(Ordering::Relaxed)), (1, 0));
    // What is too long for it, and what finds it full, goes the long way.
    a.datagrams.send(RailId(0), at(&b, 0), &[1; 40_000]);
    assert_eq!((receive(&b).0.len(), long_a.load(Ordering::Relaxed)), (40_000, 2));
    for _ in 0..20 {
        assert_eq!(a.datagrams.send(RailId(0), at(&b, 0), &[2; 30_000]), SendOutcome::Sent);
    }
    assert!(long_a.load(Ordering::Relaxed) > 2);
    for _ in 0..20 {
        assert_eq!(receive(&b).0, vec![2; 30_000]);
    }
}

#[test]
fn a_neighbour_without_the_shortcut_is_reached_the_long_way() {
    for quick_opens in [true, false] {
        let ((mut q, _), mut p) = (quick(), plain());
        let (a, b) = if quick_opens { (&mut q, &mut p) } else { (&mut p, &mut q) };
        join(a, b);
        assert_eq!(write(a, 1, b"there"), Moved::Bytes(5));
        eventually("bytes come", || read(b, 2).ok().filter(|r| r == b"there"));
        b.datagrams.send(RailId(0), at(a, 0), b"back");
        assert_eq!(receive(a).0, b"back");
    }
}

#[test]
fn when_a_neighbour_goes_its_streams_end_and_datagrams_find_the_long_way() {
    let ((mut a, long_a), (mut b, _)) = (quick(), quick());
    join(&mut a, &mut b);
    take_link(&mut b);
    assert!(a.streams.far_kernel(StreamId(1)).is_some());
    drop(b);
    let over = StreamEvent::Closed(StreamId(1), CloseReason::Reset);
    eventually("the stream ends", || events(&mut a).contains(&over).then_some(()));
    assert_eq!(read(&mut a, 1), Err(Moved::Closed(CloseReason::Requested)));
    let before = long_a.load(Ordering::Relaxed);
    let (c, _) = quick();
    eventually("the link is forgotten", || {
        events(&mut a);
        a.datagrams.send(RailId(0), at(&c, 0), b"x");
        (long_a.load(Ordering::Relaxed) > before).then_some(())
    });
    assert_eq!(a.streams.far_kernel(StreamId(1)), None);
}

#[test]
fn a_process_that_is_killed_leaves_what_it_wrote_and_an_end_of_stream() {
    let ((mut a, _), (mut b, _)) = (quick(), quick());
    join(&mut a, &mut b);
    assert_eq!(write(&mut b, 2, b"last words"), Moved::Bytes(10));
    // Only the kernel's part of an end: sockets are closed, nothing is written in memory.
    let mut fds = Vec::new();
    b.streams.descriptors(&mut fds);
    b.datagrams.descriptors(&mut fds);
    fds.sort_unstable();
    fds.dedup();
    for fd in fds {
        // SAFETY: the other side's own descriptors, which nothing uses any more: it is never dropped.
        unsafe { libc::close(fd) };
    }
    std::mem::forget(b);
    assert_eq!(eventually("the last words", || read(&mut a, 1).ok()), b"last words");
    let over = StreamEvent::Closed(StreamId(1), CloseReason::Eof);
    eventually("the end", || events(&mut a).contains(&over).then_some(()));
}

/// Connects by hand, as any other program could.
fn intruder(side: &Rails, hello: &[u8], file: Option<BorrowedFd<'_>>) -> OwnedFd {
    let s = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let name = format!("rerail/{}", side.rails[0].locator.service());
    connect(&s, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(&s, &[IoSlice::new(hello)], &mut control, SendFlags::NOSIGNAL).unwrap();
    s
}

/// A hello for a stream to rail 0, as `hello.rs` writes it.
fn hello(side: &Rails) -> [u8; 64] {
    let mut b = [0; 64];
    b[..8].copy_from_slice(b"rerailSM");
    (b[8], b[9]) = (2, 1);
    b[12..16].copy_from_slice(&4711u32.to_le_bytes());
    for at in [16, 36] {
        (b[at], b[at + 1]) = (1, 4);
        b[at + 2..at + 6].copy_from_slice(side.rails[0].locator.place());
    }
    b
}

#[test]
fn who_says_no_proper_hello_is_shown_out_and_harms_nothing() {
    let ((mut a, _), (mut b, _)) = (quick(), quick());
    let unsealed = memfd_create("odd", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&unsealed, 4096 + 2 * (256 << 10)).unwrap();
    let small = memfd_create("odd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&small, 4096).unwrap();
    fcntl_add_seals(&small, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let good = hello(&b);
    let mut newer = good;
    newer[8] = 9;
    let odd = [
        intruder(&b, b"GET / HTTP/1.1\r\n\r\n", None),
        intruder(&b, &[0xff; 200], None),
        intruder(&b, &good, None),
        intruder(&b, &newer, Some(unsealed.as_fd())),
        intruder(&b, &good, Some(unsealed.as_fd())),
        intruder(&b, &good, Some(small.as_fd())),
    ];
    for (i, s) in odd.iter().enumerate() {
        eventually("it is shown out", || {
            if events(&mut b).contains(&StreamEvent::Incoming) {
                assert!(!b.streams.accept(&mut |_, _| panic!("no proper hello has come")));
            }
            match recv(s, &mut [0; 8][..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => Some(()),
                Err(rustix::io::Errno::AGAIN) => None,
                other => panic!("{i}: {other:?}"),
            }
        });
    }
    join(&mut a, &mut b);
    assert_eq!(write(&mut a, 1, b"well"), Moved::Bytes(4));
}

#[test]
fn the_name_taken_means_no_shortcut_and_the_rails_as_they_were() {
    let rails = plain();
    let port = rails.rails[0].locator.service();
    let s = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let name = format!("rerail/{port}");
    rustix::net::bind(&s, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let (rails, why) = rerail_shm::over(rails, true).err().expect("the name is taken");
    assert_eq!((why.kind(), rails.rails[0].locator.service()), (io::ErrorKind::AddrInUse, port));
}

fn lend(side: &mut Rails, pieces: &[IoVec]) -> Moved {
    // SAFETY: the tests keep the bytes, and where they change them they do not look at what was read.
    unsafe { side.streams.write_lasting(StreamId(1), pieces) }
}

/// Two neighbours with a stream (1 there, 2 here), over which something has gone, so that the reader has tried to read
/// the writer's memory.
fn acquainted(single_copy: [bool; 2]) -> (Rails, Rails) {
    let (mut a, mut b) = (side(single_copy[0]), side(single_copy[1]));
    join(&mut a, &mut b);
    assert_eq!(lend(&mut a, &[IoVec::from_ref(b"hello")]), Moved::Bytes(5));
    assert_eq!(eventually("it comes", || read(&mut b, 2).ok()), b"hello");
    (a, b)
}

/// Reads `n` bytes.
fn read_all(side: &mut Rails, n: usize) -> Vec<u8> {
    let mut all = Vec::new();
    eventually("all comes", || {
        all.extend(read(side, 2).unwrap_or_default());
        (all.len() >= n).then_some(())
    });
    assert_eq!(all.len(), n);
    all
}

#[test]
fn what_is_large_is_taken_only_when_the_reader_has_it() {
    let (mut a, mut b) = acquainted([true; 2]);
    let large: Vec<u8> = (0..60_000).map(|i| (i * 7) as u8).collect();
    let pieces = [IoVec::from_ref(b"head"), IoVec::from_ref(&large), IoVec::from_ref(b"tail")];
    assert_eq!(lend(&mut a, &pieces), Moved::Bytes(4), "the large one is lent, and nothing comes behind it");
    assert_eq!(lend(&mut a, &pieces[1..]), Moved::Blocked);
    a.streams.want_writable(StreamId(1));
    assert_eq!(read(&mut b, 2), Ok(b"head".to_vec()), "where the next goes is said after this was read");
    assert!(events(&mut b).contains(&StreamEvent::Readable(StreamId(2))));
    assert_eq!(read(&mut b, 2).unwrap(), large[..1000]);
    assert!(!events(&mut a).contains(&StreamEvent::Writable(StreamId(1))), "it is not back yet");
    let rest = [IoVec::from_ref(&large[1000..]), pieces[2]];
    assert_eq!(lend(&mut a, &pieces[1..]), Moved::Bytes(1000));
    assert_eq!(read_all(&mut b, 59_000), large[1000..]);
    assert_eq!(read(&mut b, 2), Err(Moved::Blocked));
    assert!(events(&mut a).contains(&StreamEvent::Writable(StreamId(1))));
    assert_eq!(lend(&mut a, &rest), Moved::Bytes(59_004));
    assert_eq!(read(&mut b, 2), Ok(b"tail".to_vec()));
}

#[test]
fn what_is_lent_may_be_called_in() {
    let (mut a, mut b) = acquainted([true; 2]);
    let (large, zeros) = (vec![7; 60_000], vec![0; 100_000]);
    assert_eq!(lend(&mut a, &[IoVec::from_ref(&large)]), Moved::Blocked);
    assert_eq!(read(&mut b, 2).unwrap(), large[..1000]);
    // the engine's ABORT: as many bytes as were to come, from elsewhere, and a word
    let others = [IoVec::from_ref(&zeros[..60_000]), IoVec::from_ref(b"void")];
    assert_eq!(lend(&mut a, &others), Moved::Bytes(1000), "so much was read before");
    drop(large);
    let others = [IoVec::from_ref(&zeros[1000..60_000]), others[1]];
    assert_eq!(lend(&mut a, &others), Moved::Blocked);
    assert_eq!(read_all(&mut b, 59_000), zeros[1000..60_000]);
    assert_eq!(lend(&mut a, &others), Moved::Bytes(59_004));
    assert_eq!(lend(&mut a, &[others[0]]), Moved::Blocked);
    assert_eq!(lend(&mut a, &[others[1], others[0]]), Moved::Bytes(4), "something else comes first");
    // and by the way that copies
    // SAFETY: borrowed through the call.
    let copied = unsafe { a.streams.write(StreamId(1), &others) };
    assert_eq!(copied, Moved::Bytes(59_004));
    let all = read_all(&mut b, 8 + 59_004);
    assert_eq!((&all[..8], &all[59_008..]), (&b"voidvoid"[..], &b"void"[..]));
}

#[test]
fn memory_that_cannot_be_read_goes_through_the_ring() {
    let (mut a, mut b) = acquainted([true; 2]);
    // no such memory: the kernel reports that to the reader
    let nowhere = IoVec::new(std::ptr::without_provenance_mut(4096), 60_000);
    assert_eq!(lend(&mut a, &[nowhere]), Moved::Blocked);
    assert_eq!(read(&mut b, 2), Err(Moved::Blocked));
    assert!(!events(&mut b).contains(&StreamEvent::Readable(StreamId(2))), "it is not tried again and again");
    a.streams.want_writable(StreamId(1));
    assert!(events(&mut a).contains(&StreamEvent::Writable(StreamId(1))));
    let large = vec![3; 60_000];
    assert_eq!(lend(&mut a, &[IoVec::from_ref(&large)]), Moved::Bytes(60_000), "copied");
    assert_eq!(read_all(&mut b, 60_000), large);
}

#[test]
fn without_single_copies_on_one_side_there_are_none_there() {
    let large = vec![3; 60_000];
    for (single_copy, moved) in [
        ([false, true], Moved::Bytes(60_000)),
        // the reader copies
        ([true, false], Moved::Bytes(60_000)),
        ([true, true], Moved::Blocked),
    ] {
        let (mut a, mut b) = acquainted(single_copy);
        assert_eq!(lend(&mut a, &[IoVec::from_ref(&large)]), moved, "{single_copy:?}");
        assert_eq!(read_all(&mut b, 60_000), large);
    }
}

/// Whether a thread that sleeps on this side would be woken within `ms` milliseconds.
fn rings(side: &Rails, ms: i32) -> bool {
    let mut p = libc::pollfd { fd: side.streams.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut p, 1, ms) == 1 }
}

#[test]
fn a_thread_is_not_woken_by_the_connection_that_it_made_itself() {
    let (mut a, b) = (side(true), side(true));
    for name in (1..20).step_by(2) {
        // The first poll looks at everything, so soon after it the second does not do so for the time that has passed.
        events(&mut a);
        a.streams.open(StreamId(name), RailId(0), at(&b, 0));
        assert_eq!(events(&mut a), [StreamEvent::Connected(StreamId(name))]);
        assert!(!rings(&a, 0), "stream {name}");
    }
}

#[test]
fn a_sleeper_is_woken_for_what_is_lent_and_when_it_is_back() {
    let (mut a, mut b) = acquainted([true; 2]);
    let large = vec![3; 60_000];
    let asleep = |side: &Rails| !side.datagrams.before_sleep(true);
    let woken = |side: &Rails| {
        eventually("the bell rings", || rings(side, 10).then_some(()));
        side.datagrams.after_sleep();
    };
    assert!(asleep(&b));
    assert_eq!(lend(&mut a, &[IoVec::from_ref(&large)]), Moved::Blocked);
    woken(&b);
    a.streams.want_writable(StreamId(1));
    assert!(asleep(&a));
    assert_eq!(read_all(&mut b, 60_000), large);
    woken(&a);
    assert!(events(&mut a).contains(&StreamEvent::Writable(StreamId(1))));
}

#[test]
fn a_stream_that_closes_takes_back_what_it_lent() {
    let (mut a, mut b) = acquainted([true; 2]);
    let large = vec![3; 60_000];
    assert_eq!(lend(&mut a, &[IoVec::from_ref(&large)]), Moved::Blocked);
    a.streams.close(StreamId(1));
    drop(large);
    assert_eq!(read(&mut b, 2), Err(Moved::Closed(CloseReason::Reset)));
}

#[test]
fn the_memory_of_a_process_that_is_gone_is_not_taken_for_anothers() {
    let mut b = side(true);
    let to = at(&b, 0);
    // SAFETY: the child makes a side of its own, and leaves without touching what it has from here.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let left = std::panic::catch_unwind(|| {
            let mut a = side(true);
            a.streams.open(StreamId(1), RailId(0), to);
            eventually("it is made", || {
                events(&mut a).contains(&StreamEvent::Connected(StreamId(1))).then_some(())
            });
            let large = vec![3; 60_000];
            let mut pieces = vec![IoVec::from_ref(b"hello"), IoVec::from_ref(&large)];
            eventually("it is lent", || match lend(&mut a, &pieces) {
                Moved::Bytes(5) => {
                    pieces.remove(0);
                    None
                }
                // not yet acquainted: copied, and once more
                Moved::Bytes(n) => (n < 60_000).then_some(()),
                _ => Some(()),
            });
        });
        // SAFETY: nothing of the parent's is run down here.
        unsafe { libc::_exit(i32::from(left.is_err())) };
    }
    eventually("it comes in", || {
        events(&mut b);
        b.streams.accept(&mut |_, _| StreamId(2)).then_some(())
    });
    let mut all = 0;
    let end = eventually("the end", || match read(&mut b, 2) {
        Ok(bytes) => {
            // the child that lent it keeps its process ID until `waitpid` below
            all += bytes.len();
            None
        }
        Err(Moved::Blocked) => None,
        Err(end) => Some(end),
    });
    assert!(matches!(end, Moved::Closed(CloseReason::Reset | CloseReason::Eof)), "{end:?} after {all}");
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}
