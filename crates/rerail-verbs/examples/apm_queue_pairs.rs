//! What each transition of a carrier costs over queue pairs, against their number: figures 5 to 8 of the APM paper, on whatever adapters
//! two hosts have.
//!
//! ```text
//! apm_queue_pairs answer                   on one host
//! apm_queue_pairs measure HOST [PEERS…]    on the other; HOST is the one that answers
//! ```
//!
//! One process with N peers, two rails, `primary-standby` with an alternate: N queue pairs on each rail. Where an adapter migrates by
//! itself it is armed as well; elsewhere a second queue pair is the alternate, under the same three modules. On standard output it asks for a
//! cable to be cut and repaired and reads a line from standard input when that is done (`cargo xtask trial migrations` does it in a
//! lab of guests). Options are read from `FI_RERAIL_*`; the kind of rail is the first of `FI_RERAIL_KINDS`.

#[path = "../../rerail-ip/examples/node/mod.rs"]
mod node;

use node::Node;
use rerail_core::wire::Address;
use rerail_core::{Completion, CompletionKind, EndpointId, Migration, RailId};
use rerail_runtime::read_options;
use rerail_verbs::Settings;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where the two hosts arrange what follows.
const PORT: u16 = 7471;
/// How many peers there are in turn, without an argument.
const PEERS: [usize; 3] = [1, 4, 16];
/// Bytes of the messages of figure 7, and those of figure 8.
const BYTES: usize = 128;
const SIZES: [usize; 5] = [8, 128, 1024, 8192, 32_768];
/// Rounds over all peers whose half round trips count as undisturbed.
const ROUNDS: usize = 5;
/// The first message that makes a queue pair, because it is placed.
const LARGE: usize = 256 << 10;
/// What anything may take in emulation, and a cut by hand.
const PATIENCE: Duration = Duration::from_secs(120);
const THERE: u64 = 1;
const BACK: u64 = 2;
/// What the answering host's processes are called with.
const PEER: &str = "--peer";

fn start() -> Node {
    let look = |name: &str| std::env::var(format!("FI_RERAIL_{}", name.to_uppercase())).ok();
    let mut options = read_options(|row| look(row.name)).unwrap_or_else(|e| panic!("{e}"));
    let kind = options.kinds[0];
    let rails = rerail_verbs::attach(kind, &Settings::default(), &|_| true);
    let rails = rails.unwrap_or_else(|e| panic!("rails of the kind {}: {e}", kind.name()));
    let names: Vec<String> = rails.rails.iter().map(|r| r.name.clone()).collect();
    assert!(names.len() >= 2, "two rails of the kind {} are needed; there are: {names:?}", kind.name());
    let alternate = format!("{}>{}", names[0], names[1]);
    for (name, value) in
        [("policy", "primary-standby"), ("alternate", alternate.as_str()), ("control", "off")]
    {
        options.set(name, value).unwrap_or_else(|e| panic!("{e}"));
    }
    Node::new(options, rails)
}

impl Node {
    fn address(&self) -> String {
        let bytes = self.rt.inspect(|e| e.address(self.ep)).unwrap().to_bytes();
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Takes what is done; whether there was anything. A completion with an error ends the program.
    fn take(&mut self, sends: &mut usize, receives: &mut Option<Completion>) -> bool {
        self.done.clear();
        let popped = self.rt.progress_and_pop(self.cq, 16, &mut self.done).unwrap();
        assert!(!popped.error_next, "{:?}", self.rt.with(|e, _| e.cq_pop(self.cq)));
        for c in &self.done {
            match c.kind {
                CompletionKind::Send => *sends = sends.saturating_sub(1),
                _ => *receives = Some(*c),
            }
        }
        popped.count > 0
    }
}

// ---- the host that answers -------------------------------------------------------------------------------------

/// Starts as many peers as the other host names, says where they are, and ends them when it goes.
fn answer() {
    let listener = TcpListener::bind(("::", PORT)).unwrap_or_else(|e| panic!("port {PORT}: {e}"));
    let (stream, _) = listener.accept().expect("the measuring host");
    let mut lines = BufReader::new(stream.try_clone().expect("a connection")).lines();
    let mut line = || lines.next().and_then(Result::ok);
    let peers = line().and_then(|l| l.parse().ok()).expect("a number of peers");
    // Processes of their own: librdmacm opens a device once for all of a process, and what happens to its port is then told once.
    let program = std::env::current_exe().expect("its own file");
    let mut children: Vec<Child> = (0..peers)
        .map(|_| {
            let mut command = Command::new(&program);
            command.arg(PEER).env_remove("RERAIL_NODE").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("a peer");
            let mut address = String::new();
            BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut address).expect("an address");
            write!(&stream, "{address}").expect("the measuring host");
            child
        })
        .collect();
    while line().is_some() {}
    children.iter_mut().for_each(|c| drop(c.stdin.take()));
    for mut child in children {
        assert!(child.wait().expect("a peer").success(), "a peer failed");
    }
}

/// Sends every message back until its standard input ends. It sleeps meanwhile: there are many of it on one host.
fn echo() {
    let mut node = start();
    println!("{}", node.address());
    stdout().flush().expect("standard output");
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    thread::spawn(move || {
        let _ = stdin().read_line(&mut String::new());
        ends.store(true, Ordering::Relaxed);
    });
    let over = || over.load(Ordering::Relaxed);
    let mut buffer = vec![0; LARGE];
    while !over() {
        let (mut sends, mut got) = (0, None);
        node.recv(THERE, &mut buffer);
        while got.is_none() && !over() {
            if !node.take(&mut sends, &mut got) {
                node.rt.wait_input(Duration::from_millis(20)).unwrap();
            }
        }
        let Some(message) = got else { break };
        sends = 1;
        node.send(message.src.expect("a source"), BACK, &buffer[..message.len]);
        while sends > 0 && !over() {
            if !node.take(&mut sends, &mut got) {
                node.rt.wait_input(Duration::from_millis(20)).unwrap();
            }
        }
    }
    node.rt.shutdown();
}

// ---- the host that measures ------------------------------------------------------------------------------------

/// A carrier: the rail that it goes over, and its state.
type Carrier = (RailId, Migration);

/// What was seen from the message during which something began until it was over.
struct Seen {
    took: Duration,
    /// Half round trips, µs.
    halves: Vec<f64>,
}

impl Seen {
    fn time(&self) -> String {
        format!("{:.1} ms", self.took.as_secs_f64() * 1e3)
    }

    fn latency(&self) -> String {
        let most = self.halves.iter().copied().fold(0.0, f64::max);
        let mean = self.halves.iter().sum::<f64>() / self.halves.len().max(1) as f64;
        format!("{mean:.0} ({most:.0}; {})", self.halves.len())
    }
}

struct Measure {
    node: Node,
    peers: Vec<EndpointId>,
    next: usize,
    buffer: Vec<u8>,
}

impl Measure {
    fn new(addresses: &[Address]) -> Measure {
        let node = start();
        let of = |a| node.rt.with(|e, _| e.endpoint_of(a)).unwrap();
        let peers = addresses.iter().map(of).collect();
        Measure { node, peers, next: 0, buffer: vec![0; LARGE] }
    }

    /// Sends to the next peer and takes its answer; half the time, µs.
    fn ping(&mut self, bytes: usize) -> f64 {
        let out = vec![7; bytes];
        let (begun, mut sends, mut got) = (Instant::now(), 1, None);
        self.node.recv(BACK, &mut self.buffer);
        self.node.send(self.peers[self.next], THERE, &out);
        self.next = (self.next + 1) % self.peers.len();
        while sends > 0 || got.is_none() {
            self.node.take(&mut sends, &mut got);
            assert!(begun.elapsed() < PATIENCE, "no answer for {PATIENCE:?}: is the other host there?");
        }
        begun.elapsed().as_secs_f64() * 1e6 / 2.0
    }

    fn carriers(&self) -> Vec<Carrier> {
        self.node.rt.inspect(|e| e.carriers()).unwrap().iter().map(|c| (c.path.1, c.state)).collect()
    }

    /// Talks with each peer in turn until `done`, and keeps what it saw from the beginning on.
    fn until(&mut self, what: &str, bytes: usize, done: impl Fn(&[Carrier]) -> bool) -> Seen {
        self.since(what, bytes, |_, _| 0, done)
    }

    /// The same; the beginning is the message with the number that `first` finds, at the end, from half round trips and from the number of the
    /// message during which some carrier changed.
    fn since(
        &mut self,
        what: &str,
        bytes: usize,
        first: impl Fn(&[f64], usize) -> usize,
        done: impl Fn(&[Carrier]) -> bool,
    ) -> Seen {
        let (start, before) = (Instant::now(), self.carriers());
        let (mut begun, mut halves, mut change) = (Vec::new(), Vec::new(), None);
        loop {
            begun.push(Instant::now());
            halves.push(self.ping(bytes));
            let carriers = self.carriers();
            if carriers != before {
                change.get_or_insert(halves.len() - 1);
            }
            if done(&carriers) {
                let first = first(&halves, change.unwrap_or(halves.len() - 1));
                return Seen { took: begun[first].elapsed(), halves: halves.split_off(first) };
            }
            self.fail_after(start, what);
        }
    }

    fn all_armed(&self, on: u8) -> impl Fn(&[Carrier]) -> bool + use<> {
        let peers = self.peers.len();
        move |c| c.len() == peers && c.iter().all(|c| *c == (RailId(on), Migration::Armed))
    }

    /// Traffic to the first rail, and an alternate for all.
    fn settle(&mut self) {
        let armed = self.all_armed(0);
        let begun = Instant::now();
        while !armed(&self.carriers()) {
            // each goes when its path works again
            self.node.rt.with(|e, now| e.migrate_home(now)).unwrap();
            self.ping(BYTES);
            self.fail_after(begun, "all armed on the first rail");
        }
    }

    fn fail_after(&self, begun: Instant, what: &str) {
        if begun.elapsed() > PATIENCE {
            let (carriers, seen) = (self.carriers(), self.node.rt.inspect(|e| e.describe()).unwrap());
            panic!("after {PATIENCE:?} not yet: {what}. Carriers: {carriers:?}\n{seen}");
        }
    }

    /// A request for all, and what followed until they had an alternate again.
    fn request(&mut self, bytes: usize) -> (Duration, Seen) {
        self.settle();
        let begun = Instant::now();
        let report = self.node.rt.with(|e, now| e.migrate(None, RailId(0), RailId(1), now)).unwrap();
        let took = begun.elapsed();
        assert_eq!(report.map(|r| r.moved), Ok(self.peers.len()), "a request moves every carrier");
        let armed = self.all_armed(1);
        (took, self.until("armed again after a request", bytes, armed))
    }

    /// A cut of the first rail until all have left it; then its repair until all have an alternate.
    fn cut(&mut self, kind: &str, bytes: usize) -> (Seen, Seen) {
        let peers = self.peers.len();
        let cut = ask(&format!("cut rail0 {kind}"));
        let left = |c: &[Carrier]| c.len() == peers && c.iter().all(|c| c.0 == RailId(1));
        let seen = self.since("all migrated", bytes, longest_or_change, left);
        while !cut.load(Ordering::Relaxed) {
            self.ping(bytes);
        }
        let healed = ask("heal rail0");
        let armed = |c: &[Carrier]| c.len() == peers && c.iter().all(|c| c.1 == Migration::Armed);
        let back = self.since("all armed after the repair", bytes, |_, change| change, armed);
        while !healed.load(Ordering::Relaxed) {
            self.ping(bytes);
        }
        (seen, back)
    }
}

/// The message that met a cut: the longest, or an earlier one during which a carrier changed. When a cable was cut nothing here can know.
fn longest_or_change(halves: &[f64], change: usize) -> usize {
    let longest = (0..halves.len()).max_by(|a, b| halves[*a].total_cmp(&halves[*b]));
    longest.unwrap_or(change).min(change)
}

/// Asks whatever holds the cables; becomes true when it says that it is done.
fn ask(what: &str) -> Arc<AtomicBool> {
    println!("ASK {what}");
    stdout().flush().expect("standard output");
    let done = Arc::new(AtomicBool::new(false));
    let told = done.clone();
    thread::spawn(move || {
        let mut line = String::new();
        stdin().read_line(&mut line).expect("standard input");
        assert!(!line.is_empty(), "standard input has ended: it says when a cable is cut or repaired");
        told.store(true, Ordering::Relaxed);
    });
    done
}

fn undisturbed(m: &mut Measure, bytes: usize) -> Seen {
    let begun = Instant::now();
    let halves = (0..ROUNDS * m.peers.len()).map(|_| m.ping(bytes)).collect();
    Seen { took: begun.elapsed(), halves }
}

fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

fn measure(host: &str, counts: &[usize]) {
    let most = counts.iter().copied().max().expect("at least one number");
    let begun = Instant::now();
    let stream = loop {
        match TcpStream::connect((host, PORT)) {
            Ok(stream) => break stream,
            Err(e) => assert!(begun.elapsed() < PATIENCE, "{host}, port {PORT}: {e}: run `answer` there"),
        }
        thread::sleep(Duration::from_millis(100));
    };
    writeln!(&stream, "{most}").expect("the other host");
    let addresses: Vec<Address> = BufReader::new(stream.try_clone().expect("a connection"))
        .lines()
        .take(most)
        .map(|line| {
            let line = line.expect("the other host");
            let byte = |i| u8::from_str_radix(&line[i..i + 2], 16).expect("an address in hexadecimal");
            let bytes: Vec<u8> = (0..line.len() / 2).map(|i| byte(2 * i)).collect();
            Address::parse(&bytes).expect("an address of this version of Rerail")
        })
        .collect();
    assert_eq!(addresses.len(), most, "the other host has ended: look at what it says");

    let (mut times, mut latencies) = (Vec::new(), Vec::new());
    for &peers in counts {
        let mut m = Measure::new(&addresses[..peers]);
        let begun = Instant::now();
        (0..peers).for_each(|_| _ = m.ping(LARGE));
        let armed = m.all_armed(0);
        let mut load = m.until("armed for the first time", BYTES, armed);
        load.took = begun.elapsed();
        let rest = undisturbed(&mut m, BYTES);
        let (call, again) = m.request(BYTES);
        m.settle();
        let (down, down_back) = m.cut("down", BYTES);
        m.settle();
        let (dark, dark_back) = m.cut("dark", BYTES);
        m.settle();
        let call = format!("{:.2} ms", call.as_secs_f64() * 1e3);
        let t =
            [load.time(), call, again.time(), down.time(), down_back.time(), dark.time(), dark_back.time()];
        times.push([&[peers.to_string()][..], &t].concat());
        let l = [&rest, &load, &again, &down, &dark].map(Seen::latency);
        latencies.push([&[peers.to_string()][..], &l].concat());
        finish(m);
    }
    println!("\nTime for all (figures 5 and 6)\n");
    println!(
        "| queue pairs on each rail | a first message of 256 KiB to each → all ARMED | request → MIGRATED | → ARMED again | link down: message that met it → all MIGRATED | repair: first REARM → all ARMED | silent cut: message that met it → all MIGRATED | repair: first REARM → all ARMED |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    times.iter().for_each(|t| row(t));
    println!(
        "\nHalf round trip of {BYTES} B with each peer in turn, µs: mean (longest; messages) until the transition is over for all (figure 7)\n"
    );
    println!("| queue pairs on each rail | undisturbed | load | request | link down | silent cut |");
    println!("|---|---|---|---|---|---|");
    latencies.iter().for_each(|l| row(l));

    let mut m = Measure::new(&addresses);
    (0..most).for_each(|_| _ = m.ping(LARGE));
    m.settle();
    println!("\nThe same with {} queue pairs on each rail, by size (figure 8)\n", m.peers.len());
    println!("| bytes | undisturbed | request | link down | silent cut |");
    println!("|---|---|---|---|---|");
    for bytes in SIZES {
        let rest = undisturbed(&mut m, bytes);
        let (_, again) = m.request(bytes);
        m.settle();
        let (down, _) = m.cut("down", bytes);
        m.settle();
        let (dark, _) = m.cut("dark", bytes);
        m.settle();
        row(&[&[bytes.to_string()][..], &[rest, again, down, dark].map(|s| s.latency())].concat());
    }
    finish(m);
    println!("\nwell done");
}

fn finish(m: Measure) {
    m.node.rt.close_endpoint(m.node.ep).unwrap();
    m.node.rt.shutdown();
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let numbers = |words: &[&str]| -> Vec<usize> {
        let number =
            |w: &&str| w.parse().ok().filter(|n| *n > 0).expect("numbers of peers are whole and not 0");
        if words.is_empty() { PEERS.to_vec() } else { words.iter().map(number).collect() }
    };
    // in a lab the program is the same in each node
    let node = std::env::var("RERAIL_NODE").ok();
    match (node.as_deref(), &words[..]) {
        (None, [PEER]) => echo(),
        (_, ["answer"]) | (Some("1"), _) => answer(),
        (_, ["measure", host, peers @ ..]) => measure(host, &numbers(peers)),
        (Some("0"), peers) => measure("n1", &numbers(peers)),
        _ => {
            eprintln!("apm_queue_pairs answer | apm_queue_pairs measure HOST [PEERS...]");
            std::process::exit(2);
        }
    }
}
