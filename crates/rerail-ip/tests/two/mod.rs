//! Two runtimes in one process, over rails that `super::pair` makes: what must hold whatever the rails are. The tests of other kinds of
//! rail include this file.

use rerail_core::wire::Address;
use rerail_core::{
    BulkMode, Completion, CompletionKind, CompletionLevel, CqId, EndpointId, EpId, Health, IoVec, Options,
    PostError, Protocol, RecvOp, SendOp,
};
use rerail_rail::Rails;
use rerail_runtime::{Bell, LogLevel, Runtime, RuntimeError, Setup};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After this long, what has not happened never will.
pub const NEVER: Duration = Duration::from_secs(60);

pub struct Node {
    pub rt: Arc<Runtime>,
    pub cq: CqId,
    pub ep: EpId,
    pub log: Arc<Mutex<Vec<String>>>,
}

impl Node {
    pub fn new(rails: Rails, options: Options) -> Node {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = log.clone();
        let log_sink = Arc::new(move |_: LogLevel, line: &str| sink.lock().unwrap().push(line.to_owned()));
        let rt = Runtime::start(Setup { options, rails, log: Some(log_sink) }).unwrap();
        let cq = rt.inspect(|e| e.open_cq(1024)).unwrap();
        let ep = rt.open_endpoint(cq, cq).unwrap();
        Node { rt, cq, ep, log }
    }

    pub fn address(&self) -> Address {
        self.rt.inspect(|e| e.address(self.ep)).unwrap()
    }

    pub fn knows(&self, other: &Node) -> EndpointId {
        let a = other.address();
        self.rt.with(|e, _| e.endpoint_of(&a)).unwrap()
    }

    /// The buffer must live until the completion: tests keep it in a variable that outlives the wait.
    pub fn send(&self, dest: EndpointId, tag: u64, bytes: &[u8]) {
        let op = SendOp {
            ep: self.ep,
            dest,
            protocol: Protocol::Tagged,
            tag,
            data: Some(!tag),
            iov: &[IoVec::from_ref(bytes)],
            context: tag as usize,
            completion: true,
            inject: false,
            level: CompletionLevel::Buffered,
        };
        loop {
            // SAFETY: see above.
            match self.rt.with(|e, now| unsafe { e.send(&op, now) }).unwrap() {
                Ok(()) => return,
                Err(PostError::Again) => self.rt.progress().unwrap(),
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// As for `send`.
    pub fn recv(&self, tag: u64, bytes: &mut [u8]) {
        let op = RecvOp {
            ep: self.ep,
            protocol: Protocol::Tagged,
            tag,
            ignore: 0,
            src: None,
            iov: &[IoVec::from_mut(bytes)],
            context: tag as usize,
            completion: true,
            multi: false,
        };
        // SAFETY: see above.
        self.rt.with(|e, now| unsafe { e.recv(&op, now) }).unwrap().unwrap();
    }

    pub fn pop(&self) -> Vec<Completion> {
        let mut out = Vec::new();
        let popped = self.rt.progress_and_pop(self.cq, 64, &mut out).unwrap();
        assert!(!popped.error_next, "{:?}", self.rt.inspect(|e| e.cq_pop(self.cq)));
        out
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.rt.inspect(|e| (e.counters(), e.paths())));
            for l in self.log.lock().unwrap().iter() {
                eprintln!("{l}");
            }
        }
    }
}

/// Collects `want` completions from the nodes together, making progress on all.
pub fn collect(nodes: &[&Node], want: usize) -> Vec<Completion> {
    let start = Instant::now();
    let mut all = Vec::new();
    while all.len() < want {
        for n in nodes {
            all.extend(n.pop());
        }
        assert!(start.elapsed() < NEVER, "{} of {want} completions came", all.len());
    }
    assert_eq!(all.len(), want);
    all
}

pub fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < NEVER, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn bytes(seed: usize, n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8).collect()
}

const SIZES: &[usize] =
    &[0, 1, 8, 100, 1400, 1500, 4096, 16_384, 16_385, 65_536, 100_000, 1 << 20, 5_000_001];

#[test]
fn messages_of_every_size_arrive_intact_both_ways() {
    let (a, b) = super::pair(&Options::default());
    every_size(&a, &b);
    let trains = a.rt.inspect(|e| e.counters().trains_sent).unwrap();
    assert_eq!(trains, 0, "bulk goes over TCP where that works");
}

#[test]
fn messages_of_every_size_arrive_intact_as_datagrams() {
    let o = Options { bulk: BulkMode::Udp, ..Options::default() };
    let (a, b) = super::pair(&o);
    let dest = a.knows(&b);
    let mut got = [0];
    b.recv(99, &mut got);
    a.send(dest, 99, &[1]);
    collect(&[&a, &b], 2);
    // until datagrams are seen to pass on a path, its stream carries what there is
    eventually("datagrams pass on both paths", || {
        [&a, &b].iter().all(|n| {
            n.rt.progress().unwrap();
            n.rt.inspect(|e| e.paths().iter().filter(|p| p.datagrams).count()).unwrap() == 2
        })
    });
    let before = [&a, &b].map(|n| n.rt.inspect(|e| e.counters()).unwrap());
    every_size(&a, &b);
    // what fits no datagram, all sizes together, in trains and not one by one
    let bulk = SIZES.iter().filter(|&&n| n > 1400).sum::<usize>() as u64;
    for (n, before) in [&a, &b].into_iter().zip(before) {
        let c = n.rt.inspect(|e| e.counters()).unwrap();
        // Where a thread has to wait for a processor, a query is repeated on the stream; bulk would be a frame for each 64 KiB.
        let frames = c.stream_frames_received - before.stream_frames_received;
        assert!(
            frames < bulk / 65_536 / 4 || c.channels_blocked > 0,
            "nothing goes over TCP: {frames} frames"
        );
        assert!(c.trains_sent > 0 && c.trains_sent < bulk / 1400 / 4, "{} trains", c.trains_sent);
    }
}

fn every_size(a: &Node, b: &Node) {
    for (from, to) in [(a, b), (b, a)] {
        let dest = from.knows(to);
        let sent: Vec<_> = SIZES.iter().enumerate().map(|(i, &n)| bytes(i, n)).collect();
        let mut got: Vec<_> = SIZES.iter().map(|&n| vec![0u8; n + 7]).collect();
        for (i, g) in got.iter_mut().enumerate() {
            to.recv(i as u64, g);
        }
        for (i, s) in sent.iter().enumerate() {
            from.send(dest, i as u64, s);
        }
        for c in collect(&[a, b], 2 * SIZES.len()) {
            assert_eq!(c.error, None);
            if c.kind == CompletionKind::Recv {
                let i = c.tag as usize;
                assert_eq!((c.len, c.data, c.context), (SIZES[i], Some(!c.tag), i));
                assert!(got[i][..SIZES[i]] == sent[i][..] && got[i][SIZES[i]..] == [0; 7], "message {i}");
            }
        }
    }
    let (ca, cb) = (a.rt.inspect(|e| e.counters()).unwrap(), b.rt.inspect(|e| e.counters()).unwrap());
    assert_eq!((ca.corrupt, cb.corrupt, ca.strangers, cb.strangers), (0, 0, 0, 0));
}

#[test]
fn many_large_messages_at_once_use_both_rails() {
    let (a, b) = super::pair(&Options::default());
    let dest = a.knows(&b);
    let sent: Vec<_> = (0..40).map(|i| bytes(i, 1_000_000 + i)).collect();
    let mut got: Vec<_> = (0..40).map(|i| vec![0u8; 1_000_000 + i]).collect();
    for (i, g) in got.iter_mut().enumerate() {
        b.recv(i as u64, g);
    }
    for (i, s) in sent.iter().enumerate() {
        a.send(dest, i as u64, s);
    }
    collect(&[&a, &b], 80);
    assert!(sent == got);
    let paths = a.rt.inspect(|e| e.paths()).unwrap();
    assert!(paths.iter().filter(|p| p.bytes_sent > 1_000_000).count() >= 2, "{paths:#?}");
}

#[test]
fn the_service_thread_carries_a_message_while_both_applications_compute() {
    let (a, b) = super::pair(&Options::default());
    let dest = a.knows(&b);
    let sent = bytes(1, 3_000_000);
    let mut got = vec![0u8; sent.len()];
    b.recv(5, &mut got);
    a.send(dest, 5, &sent);
    // Neither makes progress any more; only the service threads do.
    eventually("the message arrives", || b.rt.inspect(|e| e.cq_head(b.cq).is_some()).unwrap());
    eventually("the send completes", || a.rt.inspect(|e| e.cq_head(a.cq).is_some()).unwrap());
    collect(&[&a, &b], 2);
    assert!(sent == got);
}

#[test]
fn a_blocked_wait_ends_when_a_message_comes() {
    let (a, b) = super::pair(&Options::default());
    let dest = a.knows(&b);
    let mut got = vec![0u8; 100_000];
    b.recv(1, &mut got);
    let receiver = std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            let start = Instant::now();
            loop {
                let done = b.pop();
                if let Some(c) = done.first() {
                    return *c;
                }
                assert!(start.elapsed() < NEVER);
                b.rt.wait_input(Duration::from_secs(5)).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(30));
        let sent = bytes(3, 100_000);
        a.send(dest, 1, &sent);
        let c = waiting.join().unwrap();
        collect(&[&a], 1);
        assert_eq!(c.len, sent.len());
        sent
    });
    assert!(receiver == got);
}

#[test]
fn who_sleeps_outside_is_woken_though_nobody_calls_the_runtime() {
    let (a, b) = super::pair(&Options::default());
    let dest = a.knows(&b);
    let bell = Arc::new(Bell::new().unwrap());
    let cq = b.cq;
    let arm = || b.rt.arm(&bell, move |e| e.cq_head(cq).is_some()).unwrap();
    let mut got = vec![0u8; 100_000];
    for round in 0..200 {
        // small ones, and some that need streams and a grant
        let sent = bytes(round, if round % 20 == 0 { 100_000 } else { 100 });
        b.recv(1, &mut got);
        assert!(arm(), "there is nothing yet");
        a.send(dest, 1, &sent);
        // b's own thread does all there is to do for b
        let start = Instant::now();
        bell.wait(NEVER);
        assert!(start.elapsed() < NEVER);
        assert!(!arm(), "it is there now");
        bell.wait(NEVER);
        let c = b.pop();
        assert_eq!((c.len(), c[0].len), (1, sent.len()));
        assert!(got[..sent.len()] == sent);
        collect(&[&a], 1);
    }
    assert!(arm());
    b.rt.disarm(&bell);
}

#[test]
fn closing_lingers_until_the_peer_has_everything() {
    let (a, b) = super::pair(&Options::default());
    let dest = a.knows(&b);
    let sent: Vec<_> = (0..50).map(|i| bytes(i, 1000)).collect();
    for (i, s) in sent.iter().enumerate() {
        a.send(dest, i as u64, s);
    }
    // B's application does not look; its service thread takes what comes.
    assert!(a.rt.close_endpoint(a.ep).unwrap(), "it was the last endpoint");
    assert_eq!(a.rt.progress(), Err(RuntimeError::Closed));
    let mut got: Vec<_> = (0..50).map(|_| vec![0u8; 1000]).collect();
    for (i, g) in got.iter_mut().enumerate() {
        b.recv(i as u64, g);
    }
    collect(&[&b], 50);
    assert!(sent == got);
    eventually("the goodbye is logged", || {
        b.log.lock().unwrap().iter().any(|l| l.starts_with("peer goodbye"))
    });
    assert!(!b.log.lock().unwrap().iter().any(|l| l.starts_with("path down") || l.starts_with("partition")));
    assert!(b.rt.close_endpoint(b.ep).unwrap());
}

#[test]
fn closing_without_peers_is_immediate_and_final() {
    let (a, _b) = super::pair(&Options::default());
    let second = a.rt.open_endpoint(a.cq, a.cq).unwrap();
    assert!(!a.rt.close_endpoint(second).unwrap());
    assert!(a.rt.check_usable().is_ok());
    assert!(a.rt.close_endpoint(a.ep).unwrap());
    assert_eq!(a.rt.check_usable(), Err(RuntimeError::Closed));
    assert_eq!(a.rt.with(|_, _| ()), Err(RuntimeError::Closed));
    a.rt.shutdown();
}

#[test]
fn an_application_stopped_inside_a_call_is_no_broken_path() {
    let mut o = Options::default();
    o.set("idle_probe", "20").unwrap();
    let (a, b) = super::pair(&o);
    let dest = a.knows(&b);
    let mut got = [0u8; 8];
    b.recv(1, &mut got);
    a.send(dest, 1, &[7; 8]);
    collect(&[&a, &b], 2);
    eventually("both paths are up", || {
        a.rt.inspect(|e| e.paths().iter().filter(|p| p.health == Health::Up).count() == 2).unwrap()
    });
    let pings = a.rt.inspect(|e| e.counters().pings).unwrap();
    // B holds its engine's lock; A keeps sending queries, and B's service thread answers without the engine.
    b.rt.inspect(|_| std::thread::sleep(Duration::from_millis(1500))).unwrap();
    let after = a.rt.inspect(|e| (e.counters(), e.paths())).unwrap();
    assert!(after.0.pings > pings + 4, "{after:#?}");
    assert_eq!((after.0.paths_down, after.0.partitions), (0, 0), "{after:#?}");
    assert!(after.1.iter().all(|p| p.health == Health::Up), "{after:#?}");
    // What came meanwhile is not lost either.
    let mut got = [0u8; 8];
    b.recv(2, &mut got);
    a.send(dest, 2, &[9; 8]);
    collect(&[&a, &b], 2);
    assert_eq!(got, [9; 8]);
}
