//! Two processes. The other one is this program again, started to run one test that is ignored otherwise.

use rerail_rail::conformance::{at, eventually};
use rerail_rail::{
    CloseReason, Closing, IoVec, MemId, Moved, Place, Posted, RailId, Rails, RemoteKey, StreamEvent,
    StreamId, WorkId,
};
use std::process::{Child, Command};
use std::time::Duration;

/// The service of the process that is to be written to.
const SERVICE: &str = "RERAIL_EXAMPLE_SERVICE";
const BYTES: usize = 1 << 20;
/// What the target holds at first; the writes hold 1 and above.
const UNTOUCHED: u8 = 0;

fn poll(side: &mut Rails) -> Vec<StreamEvent> {
    let mut out = Vec::new();
    side.streams.poll(&mut out);
    out
}

fn wait_for(side: &mut Rails, event: StreamEvent) {
    eventually(&format!("{event:?}"), || poll(side).contains(&event).then_some(()));
}

fn read_all(side: &mut Rails, stream: StreamId, bytes: &mut [u8]) {
    let mut got = 0;
    while got < bytes.len() {
        got += eventually("bytes come", || {
            let piece = IoVec::from_mut(&mut bytes[got..]);
            // SAFETY: the bytes are borrowed exclusively through the call.
            match unsafe { side.streams.read(stream, &[piece]) } {
                Moved::Bytes(n) => Some(n),
                Moved::Blocked => None,
                Moved::Closed(why) => panic!("closed: {why:?}"),
            }
        });
    }
}

fn write_all(side: &mut Rails, stream: StreamId, bytes: &[u8]) {
    // SAFETY: the bytes are borrowed through the call.
    assert_eq!(unsafe { side.streams.write(stream, &[IoVec::from_ref(bytes)]) }, Moved::Bytes(bytes.len()));
}

/// Reads the key, writes the region twice with different bytes, reports that, and then goes on writing until it is killed.
#[test]
#[ignore = "the other process of the test below"]
fn writes_into_the_process_that_started_this() {
    let Ok(service) = std::env::var(SERVICE) else { return };
    // never freed: when this process is killed its adapter still reads them
    let sources = [1, 2].map(|byte| IoVec::from_mut(vec![byte; BYTES].leak()));
    let mut own = rerail_example::attach(1).unwrap();
    let stream = StreamId(1);
    let to = at(&own, 0).with_service(service.parse().unwrap());
    own.streams.open(stream, RailId(0), to);
    wait_for(&mut own, StreamEvent::Connected(stream));
    let mut key = [0; 16];
    read_all(&mut own, stream, &mut key);
    let key = RemoteKey(u128::from_le_bytes(key));
    for n in 0.. {
        let source = sources[n as usize % 2];
        let place = Place { work: WorkId(n), source, whole: source, key, offset: 0 };
        // SAFETY: the sources are never freed, and nothing writes to them.
        eventually("there is room", || match unsafe { own.streams.place(stream, &place) } {
            Posted::Lent => Some(()),
            Posted::Refused | Posted::Unreadable => {
                poll(&mut own);
                own.streams.rail_of(stream).is_none().then_some(())
            }
        });
        if n < 2 {
            write_all(&mut own, stream, &[n as u8]);
            // the other process has looked
            read_all(&mut own, stream, &mut [0]);
        }
    }
}

fn start_other(own: &Rails) -> Child {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "writes_into_the_process_that_started_this", "--ignored", "--test-threads=1"]);
    other.env(SERVICE, at(own, 0).service().to_string()).spawn().unwrap()
}

/// Another process's writes are in memory when the byte after them is read. When it is killed in the middle of
/// others, the stream ends; when that is closed, the memory stays as it is.
#[test]
fn another_process_writes_into_our_memory_until_it_is_killed() {
    let target = IoVec::from_mut(vec![UNTOUCHED; BYTES].leak());
    // SAFETY: inside the memory, which is never freed. The adapter may write it now, so the read is volatile.
    let all = || (0..BYTES).map(|i| unsafe { target.ptr.add(i).read_volatile() }).collect::<Vec<u8>>();
    let mut own = rerail_example::attach(1).unwrap();
    // SAFETY: it is never freed.
    unsafe { own.streams.register(RailId(0), MemId(1), target) };
    let key = eventually("it is registered", || match poll(&mut own)[..] {
        [StreamEvent::Registered(MemId(1), key)] => Some(key),
        _ => None,
    });
    let mut other = start_other(&own);
    let stream = StreamId(1);
    wait_for(&mut own, StreamEvent::Incoming);
    assert!(own.streams.accept(&mut |rail, from| {
        assert_eq!((rail, from.service() != 0), (RailId(0), true));
        stream
    }));
    write_all(&mut own, stream, &key.0.to_le_bytes());
    for n in 0..2 {
        let mut number = [9];
        read_all(&mut own, stream, &mut number);
        assert_eq!(number, [n]);
        assert!(
            all().iter().all(|byte| *byte == n + 1),
            "write {n} is in memory when the byte after it is read"
        );
        write_all(&mut own, stream, b".");
    }
    // SAFETY: as above.
    let now = || unsafe { target.ptr.add(BYTES / 2).read_volatile() };
    let before = now();
    eventually("others land", || (now() != before).then_some(()));
    other.kill().unwrap();
    wait_for(&mut own, StreamEvent::Closed(stream, CloseReason::Reset));
    if own.streams.close(stream) == Closing::Pending {
        wait_for(&mut own, StreamEvent::Closed(stream, CloseReason::Requested));
    }
    let left = all();
    std::thread::sleep(Duration::from_millis(20));
    assert!(left == all(), "nothing lands any more");
    other.wait().unwrap();
    own.streams.open(StreamId(2), RailId(0), at(&own, 0).with_service(1));
    wait_for(&mut own, StreamEvent::Closed(StreamId(2), CloseReason::Refused));
}
