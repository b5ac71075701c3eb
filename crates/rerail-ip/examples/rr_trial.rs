//! Trials of runtime and rails by hand, without MPI: latency, bandwidth, and what the engine says while rails are cut.
//!
//! ```text
//! rr_trial serve ADDRESS_FILE                     in one namespace
//! rr_trial latency   ADDRESS_FILE BYTES COUNT     in the other
//! rr_trial bandwidth ADDRESS_FILE BYTES COUNT [WINDOW]
//! rr_trial checked   ADDRESS_FILE BYTES COUNT     echoes and compares every byte
//! rr_trial idle      ADDRESS_FILE SECONDS          what the service threads cost while nothing happens
//! rr_trial udp-serve PORT | udp-latency HOST:PORT BYTES COUNT      plain sockets, for the ratio
//! ```
//!
//! Options are read from `FI_RERAIL_*`; `RERAIL_LOG=1` shows the log.

mod node;

use node::Node;
use rerail_core::{Completion, CompletionKind};
use rerail_runtime::read_options;
use std::net::UdpSocket;
use std::time::Instant;

const CONTROL: u64 = 1;
const DATA: u64 = 2;
const ECHO: u64 = 3;

fn start() -> Node {
    let options = read_options(|row| std::env::var(format!("FI_RERAIL_{}", row.name.to_uppercase())).ok());
    let options = options.unwrap_or_else(|e| panic!("{e}"));
    let rails = rerail_ip::attach(&options.rails).unwrap_or_else(|e| panic!("{e}"));
    Node::new(options, rails)
}

impl Node {
    /// Waits for `sends` and `recvs` completions; returns the last receive.
    fn wait(&mut self, mut sends: usize, mut recvs: usize) -> Option<Completion> {
        let mut last = None;
        let mut since = Some(Instant::now());
        while sends > 0 || recvs > 0 {
            if since.is_some_and(|s| s.elapsed().as_secs() >= 3) {
                eprintln!("no completion for 3 s ({sends} sends and {recvs} receives wait)");
                self.report();
                since = None;
            }
            self.done.clear();
            let p = self.rt.progress_and_pop(self.cq, 16, &mut self.done).unwrap();
            for c in &self.done {
                match c.kind {
                    CompletionKind::Send => sends -= 1,
                    _ => {
                        recvs -= 1;
                        last = Some(*c);
                    }
                }
            }
            if p.error_next {
                panic!("{:?}", self.rt.with(|e, _| e.cq_pop(self.cq)));
            }
        }
        last
    }

    fn report(&self) {
        let (c, paths) = self.rt.inspect(|e| (e.counters(), e.paths())).unwrap();
        eprintln!("{c:?}");
        for p in paths {
            eprintln!(
                "{:?} {:?} {:?} stream={} rtt={:?} rate={} MB/s sent={}",
                p.path,
                p.rail,
                p.health,
                p.streams > 0,
                p.rtt,
                p.rate / 1_000_000,
                p.bytes_sent
            );
        }
    }
}

fn serve(file: &str) {
    let mut n = start();
    let address = n.rt.inspect(|e| e.address(n.ep)).unwrap().to_bytes();
    std::fs::write(format!("{file}.new"), address).unwrap();
    std::fs::rename(format!("{file}.new"), file).unwrap();
    let mut ask = [0u8; 32];
    n.recv(CONTROL, &mut ask);
    let src = n.wait(0, 1).unwrap().src.unwrap();
    let number = |i: usize| u64::from_le_bytes(ask[i * 8..i * 8 + 8].try_into().unwrap()) as usize;
    let (mode, bytes, count, window) = (number(0), number(1), number(2), number(3));
    let mut bufs = vec![vec![0u8; bytes]; window];
    if mode == 2 {
        idle(count);
    } else if mode == 0 {
        for _ in 0..count {
            n.recv(DATA, &mut bufs[0]);
            n.wait(0, 1);
            n.send(src, ECHO, &bufs[0]);
            n.wait(1, 0);
        }
    } else {
        for b in &mut bufs {
            n.recv(DATA, b);
        }
        for _ in 0..count {
            n.wait(0, window);
            for b in &mut bufs {
                n.recv(DATA, b);
            }
            n.send(src, ECHO, &[1]);
            n.wait(1, 0);
        }
    }
    n.report();
    n.rt.close_endpoint(n.ep).unwrap();
}

/// Leaves everything to the service thread, and says what that costs.
fn idle(seconds: usize) {
    let used = || {
        // SAFETY: all zeros is a valid rusage, which the call fills.
        let u = unsafe {
            let mut u: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut u);
            u
        };
        let s = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        (s(u.ru_utime) + s(u.ru_stime), u.ru_nvcsw)
    };
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (a, n) = used();
    std::thread::sleep(std::time::Duration::from_secs(seconds as u64));
    let (b, m) = used();
    let seconds = seconds as f64;
    eprintln!(
        "idle: {:.3} % of a core, {:.0} wake-ups a second",
        (b - a) / seconds * 100.0,
        (m - n) as f64 / seconds
    );
}

fn client(mode: &str, file: &str, bytes: usize, count: usize, window: usize) {
    let mut n = start();
    let address = std::fs::read(file).expect("the address file of the server");
    let address = rerail_core::wire::Address::parse(&address).unwrap();
    let dest = n.rt.with(|e, _| e.endpoint_of(&address)).unwrap();
    let mut ask = [0u8; 32];
    let code = match mode {
        "bandwidth" => 1,
        "idle" => 2,
        _ => 0,
    };
    for (i, v) in [code, bytes as u64, count as u64, window as u64].iter().enumerate() {
        ask[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
    }
    n.send(dest, CONTROL, &ask);
    n.wait(1, 0);
    let mut bufs = vec![vec![1u8; bytes]; window];
    if mode == "idle" {
        idle(count);
    } else if mode == "bandwidth" {
        let mut rates = Vec::new();
        let mut longest = 0.0f64;
        for _ in 0..count {
            let t = Instant::now();
            let mut ack = [0];
            n.recv(ECHO, &mut ack);
            for b in &bufs {
                n.send(dest, DATA, b);
            }
            n.wait(window, 1);
            let s = t.elapsed().as_secs_f64();
            longest = longest.max(s);
            rates.push((bytes * window) as f64 / s / 1e6);
        }
        rates.sort_by(f64::total_cmp);
        println!(
            "{bytes} B x {window}: median {:.0} MB/s, p10 {:.0}, longest window {:.1} ms",
            rates[count / 2],
            rates[count / 10],
            longest * 1e3
        );
    } else {
        let (mut out, mut back) = (std::mem::take(&mut bufs[0]), vec![0u8; bytes]);
        let mut times = Vec::new();
        let begin = Instant::now();
        for i in 0..count {
            if mode == "checked" {
                for (k, b) in out.iter_mut().enumerate() {
                    *b = (k.wrapping_mul(31) ^ i.wrapping_mul(17) ^ (k >> 8)) as u8;
                }
            }
            let t = Instant::now();
            n.recv(ECHO, &mut back);
            n.send(dest, DATA, &out);
            n.wait(1, 1);
            let ms = t.elapsed();
            times.push(ms.as_secs_f64() * 1e6 / 2.0);
            if mode == "checked" {
                assert!(out == back, "message {i} came back changed");
                if ms.as_millis() > 100 {
                    println!(
                        "{:.3} s: message {i} took {} ms",
                        begin.elapsed().as_secs_f64(),
                        ms.as_millis()
                    );
                }
            }
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{bytes} B: half round trip median {:.2} us, p10 {:.2}, p99 {:.2}, max {:.0}",
            times[count / 2],
            times[count / 10],
            times[count * 99 / 100],
            times[count - 1]
        );
    }
    n.report();
    n.rt.close_endpoint(n.ep).unwrap();
}

fn udp_serve(port: &str) {
    let s = UdpSocket::bind(format!("0.0.0.0:{port}")).unwrap();
    s.set_nonblocking(true).unwrap();
    let mut b = [0; 65536];
    loop {
        if let Ok((n, from)) = s.recv_from(&mut b) {
            s.send_to(&b[..n], from).unwrap();
            if n == 1 {
                return;
            }
        }
    }
}

fn udp_latency(to: &str, bytes: usize, count: usize) {
    let s = UdpSocket::bind("0.0.0.0:0").unwrap();
    s.set_nonblocking(true).unwrap();
    let out = vec![0; bytes];
    let mut b = [0; 65536];
    let mut times = Vec::new();
    for _ in 0..count {
        let t = Instant::now();
        s.send_to(&out, to).unwrap();
        while s.recv_from(&mut b).is_err() {}
        times.push(t.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    s.send_to(&[0], to).unwrap();
    times.sort_by(f64::total_cmp);
    println!(
        "udp {bytes} B: half round trip median {:.2} us, p99 {:.2}",
        times[count / 2],
        times[count * 99 / 100]
    );
}

fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let a: Vec<&str> = a.iter().map(String::as_str).collect();
    let n = |s: &str| s.parse::<usize>().expect("a number");
    match a[..] {
        ["serve", file] => serve(file),
        ["udp-serve", port] => udp_serve(port),
        ["udp-latency", to, bytes, count] => udp_latency(to, n(bytes), n(count)),
        [mode @ ("latency" | "checked"), file, bytes, count] => client(mode, file, n(bytes), n(count), 1),
        ["idle", file, seconds] => client("idle", file, 0, n(seconds), 1),
        ["bandwidth", file, bytes, count] => client("bandwidth", file, n(bytes), n(count), 16),
        ["bandwidth", file, bytes, count, window] => {
            client("bandwidth", file, n(bytes), n(count), n(window));
        }
        _ => eprintln!("see the head of rr_trial.rs"),
    }
}
