//! What breaks, when, for how long. Owns: the faults that are active, and their undoing.

use super::process::Mode;
use super::stream::EndState;
use super::{Ev, World};
use crate::fabric::topology::LinkId;
use crate::link::{CrowdedRoutes, DarkRoutes, Link, MS, Misfortune, Picky, SEC, US, Victims};
use crate::rng::Rng;
use rerail_core::RailId;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The interface goes down; the host's processes are notified, after a while. With `peers`, the others lose their
    /// carrier.
    IfDown {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Whether the other hosts are notified of a lost carrier (a cable, not a switch).
        peers: bool,
    },
    /// Nothing gets in or out, and no process is notified.
    Dark {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Nothing comes in.
        inward: bool,
        /// Nothing gets out.
        outward: bool,
    },
    /// The physical port behind a network fails, and so every network that goes through it: silently, or with its links.
    Port {
        /// Host.
        host: usize,
        /// One of its networks.
        net: usize,
        /// Its links go down.
        down: bool,
    },
    /// Nothing gets from one host to another.
    PairDark {
        /// From.
        from: usize,
        /// To.
        to: usize,
        /// Network.
        net: usize,
    },
    /// Chance of loss.
    Loss {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// In millionths.
        ppm: u32,
    },
    /// Chance of a datagram arriving twice.
    Dup {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// In millionths.
        ppm: u32,
    },
    /// Chance of flipped bits in a datagram.
    Corrupt {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// In millionths.
        ppm: u32,
    },
    /// Chance of a flipped bit in a segment.
    StreamCorrupt {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// In millionths.
        ppm: u32,
    },
    /// Datagrams overtake each other.
    Jitter {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Largest delay.
        ns: u64,
    },
    /// Everything is late.
    Delay {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Delay.
        ns: u64,
    },
    /// Some routes are dark: connections and datagrams that are led over them carry nothing, the others pass.
    Routes {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Which.
        dark: DarkRoutes,
    },
    /// Some routes are crowded: connections over them have a fraction of the link.
    Crowd {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Which.
        crowd: CrowdedRoutes,
    },
    /// A link between two switches of a fabric is dark, in one direction: what is led over it is lost, and no host sees a port go down.
    Link {
        /// Network, which has a fabric.
        net: usize,
        /// Which link.
        link: LinkId,
    },
    /// Streams stand still, datagrams pass.
    Stall {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
    },
    /// Datagrams are filtered.
    UdpBlocked {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
    },
    /// Streams are filtered.
    TcpBlocked {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
    },
    /// Connects are refused.
    TcpRefused {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
    },
    /// The host is cut off.
    Blackout {
        /// Host.
        host: usize,
    },
    /// Streams of the host on the network are reset, each with this chance.
    Reset {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// In percent.
        percent: u32,
    },
    /// Packets above a size vanish without a word.
    MtuHole {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Largest IP packet that gets through.
        bytes: u16,
    },
    /// Datagrams of one kind fare badly.
    Picky {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Which, and how.
        picky: Picky,
    },
    /// Streams are reset while the adapter of this link writes.
    Writes {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
        /// Share of the writes that it happens to, in percent.
        percent: u32,
    },
    /// Every write into memory of this host is refused, as with a wrong key.
    WritesRefused {
        /// Host.
        host: usize,
        /// Network.
        net: usize,
    },
    /// The clock of a process runs at another speed, after a leap forward.
    Clock {
        /// Process.
        p: usize,
        /// How much faster than the world's, in millionths.
        ppm: i64,
        /// The leap.
        leap_ns: u64,
    },
    /// The machine is suspended: nothing on it runs, kernels included.
    Suspend {
        /// Host.
        host: usize,
        /// Clocks stand still meanwhile.
        frozen: bool,
        /// Since when.
        at: u64,
    },
    /// The process is stopped.
    Stop {
        /// Process.
        p: usize,
    },
    /// The process computes.
    Compute {
        /// Process.
        p: usize,
        /// Reaction time of its service thread.
        react_ns: u64,
    },
    /// The process's engine is locked.
    Lock {
        /// Process.
        p: usize,
    },
}

/// Kinds of random faults, for their weights.
pub const KINDS: [&str; 31] = [
    "if-down",
    "dark",
    "dark-in",
    "dark-out",
    "pair-dark",
    "flap",
    "loss",
    "dup",
    "corrupt",
    "stream-corrupt",
    "jitter",
    "delay",
    "stall",
    "udp-blocked",
    "tcp-blocked",
    "tcp-refused",
    "blackout",
    "reset",
    "process",
    "mtu-hole",
    "picky",
    "clock",
    "suspend",
    "handshake",
    "stop",
    "routes",
    "writes",
    "port",
    "refused-writes",
    "crowd",
    "link",
];
/// As many of them every swarm draws; the others are drawn where they have something to meet.
const COMMON: usize = KINDS.len() - 6;

/// Where the weight of a fault is.
pub fn kind(name: &str) -> usize {
    KINDS.iter().position(|k| *k == name).unwrap_or_else(|| panic!("no fault is called {name}"))
}

/// Which faults come by themselves, and how often.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    /// Mean time between two faults; 0: none come.
    pub interval_ns: u64,
    /// Shortest and longest fault.
    pub duration_ns: (u64, u64),
    /// Weights, by [`KINDS`].
    pub weights: [u32; KINDS.len()],
    /// Faults that may be active together.
    pub most: usize,
    /// Faults come in storms of this length; after each everything is well for a while.
    pub storm_ns: u64,
    /// How long it is well.
    pub calm_ns: u64,
    /// Chance in percent that an interface is broken from the beginning.
    pub from_start: u32,
    /// Shortest and longest delay of everything on a link.
    pub delay_ns: (u64, u64),
}

impl FaultPlan {
    /// Nothing breaks by itself.
    pub fn none() -> Self {
        Self {
            interval_ns: 0,
            duration_ns: (MS, MS),
            weights: [0; KINDS.len()],
            most: 1,
            storm_ns: 0,
            calm_ns: 0,
            from_start: 0,
            delay_ns: (10 * US, 50 * MS),
        }
    }

    /// A swarm: some kinds are left out altogether, the others have unequal weights (Groce and others, "Swarm testing").
    pub fn swarm(rng: &mut Rng) -> Self {
        let mut weights = [0; KINDS.len()];
        let keep = rng.range(15, 80) as u32;
        for w in &mut weights[..COMMON] {
            if rng.percent(keep) {
                *w = rng.range(1, 10) as u32;
            }
        }
        if weights.iter().all(|&w| w == 0) {
            weights[1] = 1;
        }
        Self {
            interval_ns: rng.log_range(2 * MS, 60 * MS),
            duration_ns: (MS / 2, rng.log_range(5 * MS, 400 * MS)),
            weights,
            most: rng.range(1, 5) as usize,
            storm_ns: rng.log_range(20 * MS, 500 * MS),
            calm_ns: rng.log_range(5 * MS, 150 * MS),
            from_start: if rng.percent(20) { rng.range(5, 60) as u32 } else { 0 },
            delay_ns: (10 * US, 50 * MS),
        }
    }

    /// Only these kinds.
    pub fn only(kinds: &[&str], interval_ns: u64, duration_ns: (u64, u64)) -> Self {
        let mut weights = [0; KINDS.len()];
        for k in kinds {
            weights[kind(k)] = 1;
        }
        Self {
            interval_ns,
            duration_ns,
            weights,
            most: 3,
            storm_ns: 200 * MS,
            calm_ns: 50 * MS,
            from_start: 0,
            delay_ns: (10 * US, 50 * MS),
        }
    }
}

/// A fault that was begun.
#[derive(Debug, Clone, Copy)]
pub struct Active {
    /// What.
    pub fault: Fault,
    /// Not undone yet.
    pub on: bool,
    /// Outlasts storms.
    pub lasting: bool,
    /// It was cut out of the plan: it takes its place and does nothing.
    pub muted: bool,
}

fn add_or_remove<T: PartialEq>(list: &mut Vec<T>, x: T, on: bool) {
    if on {
        list.push(x);
    } else if let Some(i) = list.iter().position(|y| *y == x) {
        list.swap_remove(i);
    }
}

impl World {
    fn link(&mut self, host: usize, net: usize) -> &mut Link {
        &mut self.nets[net].links[host]
    }

    /// Begins a fault; returns its number, for [`World::end_fault`].
    pub fn begin(&mut self, fault: Fault) -> usize {
        let i = self.active.len();
        let muted = self.cfg.skip_faults.contains(i as u64);
        self.active.push(Active { fault, on: true, lasting: false, muted });
        if !muted {
            self.trace(|| format!("fault {i} {fault:?}"));
            self.change(fault, true);
        }
        i
    }

    /// Begins a fault that ends after `ns`.
    pub fn begin_for(&mut self, fault: Fault, ns: u64) -> usize {
        let i = self.begin(fault);
        self.after(ns, Ev::FaultEnd { i });
        i
    }

    /// What is broken from the beginning: some interfaces are down or dark, for longer than a handshake is tried.
    pub(crate) fn begin_broken(&mut self) {
        let percent = self.cfg.faults.from_start;
        for host in 0..self.cfg.hosts.len() {
            for net in self.cfg.hosts[host].clone() {
                if !self.fault_rng.percent(percent) {
                    continue;
                }
                let ns = self.fault_rng.log_range(MS / 10, 3_500 * MS);
                let fault = match self.fault_rng.below(3) {
                    0 => Fault::Dark { host, net, inward: true, outward: true },
                    _ => Fault::IfDown { host, net, peers: false },
                };
                let i = self.begin_for(fault, ns);
                self.active[i].lasting = true;
            }
        }
    }

    /// Ends a fault.
    pub fn end_fault(&mut self, i: usize) {
        if !self.active[i].on {
            return;
        }
        self.active[i].on = false;
        let Active { fault, muted, .. } = self.active[i];
        if muted {
            return;
        }
        self.trace(|| format!("healed {fault:?}"));
        self.change(fault, false);
    }

    /// Ends every fault; no more come by themselves.
    pub fn heal(&mut self) {
        self.cfg.faults.interval_ns = 0;
        for i in 0..self.active.len() {
            self.end_fault(i);
        }
    }

    fn change(&mut self, fault: Fault, on: bool) {
        let count = |x: &mut u32| if on { *x += 1 } else { *x -= 1 };
        let add = |x: &mut u32, v: u32| if on { *x += v } else { *x -= v };
        let add64 = |x: &mut u64, v: u64| if on { *x += v } else { *x -= v };
        match fault {
            Fault::IfDown { host, net, peers } => {
                let before = self.link(host, net).believed_down();
                count(&mut self.link(host, net).down);
                if self.link(host, net).believed_down() != before {
                    self.tell_rails(host, net, !on);
                }
                for h in (0..self.cfg.hosts.len()).filter(|&h| peers && h != host) {
                    let before = self.link(h, net).believed_down();
                    count(&mut self.link(h, net).carrier_lost);
                    if self.link(h, net).believed_down() != before {
                        self.tell_rails(h, net, !on);
                    }
                }
            }
            Fault::Dark { host, net, inward, outward } => {
                let l = self.link(host, net);
                if inward {
                    count(&mut l.dark_in);
                }
                if outward {
                    count(&mut l.dark_out);
                }
            }
            Fault::Port { host, net, down } => {
                let attached = self.cfg.hosts[host].clone();
                for net in self.nets_of_port(net).into_iter().filter(|n| attached.contains(n)) {
                    let fault = match down {
                        true => Fault::IfDown { host, net, peers: false },
                        false => Fault::Dark { host, net, inward: true, outward: true },
                    };
                    self.change(fault, on);
                }
            }
            Fault::PairDark { from, to, net } => {
                let hosts = self.cfg.hosts.len();
                count(&mut self.nets[net].pair_dark[from * hosts + to]);
            }
            Fault::Loss { host, net, ppm } => add(&mut self.link(host, net).loss_ppm, ppm),
            Fault::Dup { host, net, ppm } => add(&mut self.link(host, net).dup_ppm, ppm),
            Fault::Corrupt { host, net, ppm } => add(&mut self.link(host, net).corrupt_ppm, ppm),
            Fault::StreamCorrupt { host, net, ppm } => add(&mut self.link(host, net).stream_corrupt_ppm, ppm),
            Fault::Jitter { host, net, ns } => add64(&mut self.link(host, net).jitter_ns, ns),
            Fault::Delay { host, net, ns } => add64(&mut self.link(host, net).delay_ns, ns),
            Fault::Writes { host, net, percent } => add(&mut self.link(host, net).broken_writes, percent),
            Fault::WritesRefused { host, net } => count(&mut self.link(host, net).refused_writes),
            Fault::Routes { host, net, dark } => {
                add_or_remove(&mut self.link(host, net).dark_routes, dark, on)
            }
            Fault::Crowd { host, net, crowd } => {
                add_or_remove(&mut self.link(host, net).crowded_routes, crowd, on)
            }
            Fault::Link { net, link } => {
                let fabric =
                    self.nets[net].fabric_mut().expect("simulator: a link of a network without a fabric");
                if on { fabric.darken(link) } else { fabric.lighten(link) }
            }
            Fault::Stall { host, net } => count(&mut self.link(host, net).tcp_stalled),
            Fault::UdpBlocked { host, net } => count(&mut self.link(host, net).udp_blocked),
            Fault::TcpBlocked { host, net } => count(&mut self.link(host, net).tcp_blocked),
            Fault::TcpRefused { host, net } => count(&mut self.link(host, net).tcp_refused),
            Fault::Blackout { host } => {
                for net in 0..self.nets.len() {
                    let l = self.link(host, net);
                    count(&mut l.dark_in);
                    count(&mut l.dark_out);
                }
            }
            Fault::Reset { host, net, percent } => {
                if on {
                    self.reset_streams(host, net, percent);
                }
            }
            Fault::MtuHole { host, net, bytes } => add_or_remove(&mut self.link(host, net).holes, bytes, on),
            Fault::Picky { host, net, picky } => add_or_remove(&mut self.link(host, net).picky, picky, on),
            Fault::Clock { p, ppm, leap_ns } => {
                let now = self.now;
                let (ppm, leap) = if on { (ppm, leap_ns) } else { (0, 0) };
                self.procs[p].clock.change(now, ppm, leap);
                self.wake(p, now);
            }
            Fault::Suspend { host, frozen, at } => {
                self.change(Fault::Blackout { host }, on);
                if on {
                    self.suspensions.push_back((self.now, host));
                }
                for p in (0..self.procs.len()).filter(|&p| self.cfg.procs[p] == host).collect::<Vec<_>>() {
                    let asleep = self.procs[p].mode == Mode::Stopped;
                    if !on && frozen && asleep && at >= self.procs[p].clock.since {
                        let now = self.now;
                        self.procs[p].clock.stood_still(at, now);
                    }
                    self.change_mode(p, Mode::Stopped, on);
                }
            }
            Fault::Stop { p } => self.change_mode(p, Mode::Stopped, on),
            Fault::Compute { p, react_ns } => self.change_mode(p, Mode::Computing { react_ns }, on),
            Fault::Lock { p } => self.change_mode(p, Mode::Locked, on),
        }
    }

    fn change_mode(&mut self, p: usize, mode: Mode, on: bool) {
        if on && self.procs[p].mode == Mode::Running {
            self.set_mode(p, mode);
        } else if !on && self.procs[p].mode == mode {
            self.set_mode(p, Mode::Running);
        }
    }

    fn nets_with_fabrics(&self) -> Vec<usize> {
        (0..self.nets.len()).filter(|n| self.nets[*n].fabric().is_some()).collect()
    }

    fn tell_rails(&mut self, host: usize, net: usize, up: bool) {
        for p in 0..self.procs.len() {
            if self.procs[p].host != host {
                continue;
            }
            let Some(r) = self.procs[p].nets.iter().position(|&n| n == net) else { continue };
            // late, but in order
            let at =
                (self.now + self.net_rng.log_range(150 * US, 4 * MS)).max(self.procs[p].rail_told[r] + 1);
            self.procs[p].rail_told[r] = at;
            self.at(at, Ev::Rail { p, rail: RailId(r as u8), up });
        }
    }

    fn reset_streams(&mut self, host: usize, net: usize, percent: u32) {
        for c in 0..self.conns.len() {
            let k = &self.conns[c];
            if k.net != net || (k.ends[0].host != host && k.ends[1].host != host) {
                continue;
            }
            if k.ends.iter().all(|e| e.state == EndState::Closed) || !self.net_rng.percent(percent) {
                continue;
            }
            self.reset_stream(c);
        }
    }

    /// The network resets a stream: both ends are notified, one a little later than the other.
    pub(crate) fn reset_stream(&mut self, c: usize) {
        for side in 0..2 {
            // it may not have been accepted yet
            if let Some(q) = self.procs.get_mut(self.conns[c].ends[side].proc) {
                q.resets.push_back(self.now);
            }
            let late = self.net_rng.log_range(1, MS);
            self.after(late, Ev::Rst { c, side, forged: true });
        }
    }

    /// The next random fault.
    pub(crate) fn on_fault_tick(&mut self) {
        let plan = self.cfg.faults.clone();
        if plan.interval_ns == 0 {
            return;
        }
        if self.now >= self.storm_end {
            for i in 0..self.active.len() {
                if !self.active[i].lasting {
                    self.end_fault(i);
                }
            }
            self.fault_generation += 1;
            let calm = self.fault_rng.range(plan.calm_ns / 2, plan.calm_ns * 2);
            let storm = self.fault_rng.range(plan.storm_ns / 2, plan.storm_ns * 2);
            self.storm_end = self.now + calm + storm;
            self.after(calm, Ev::FaultTick);
            return;
        }
        if self.active.iter().filter(|a| a.on && !a.lasting).count() >= plan.most {
            self.next_fault(plan.interval_ns);
            return;
        }
        let mut r = self.fault_rng.clone();
        let host = r.index(self.cfg.hosts.len());
        let net = r.pick(&self.cfg.hosts[host]);
        let p = r.index(self.procs.len());
        let mut ns = r.log_range(plan.duration_ns.0, plan.duration_ns.1);
        let ppm = r.log_range(1_000, 300_000) as u32;
        let fault = match KINDS[r.weighted(&plan.weights)] {
            "if-down" => Fault::IfDown { host, net, peers: r.percent(30) },
            "dark" => Fault::Dark { host, net, inward: true, outward: true },
            "dark-in" => Fault::Dark { host, net, inward: true, outward: false },
            "dark-out" => Fault::Dark { host, net, inward: false, outward: true },
            "pair-dark" => Fault::PairDark { from: host, to: r.index(self.cfg.hosts.len()), net },
            "flap" => {
                let down = r.percent(50);
                let fault = if down {
                    Fault::IfDown { host, net, peers: false }
                } else {
                    Fault::Dark { host, net, inward: true, outward: true }
                };
                let mut at = 0;
                for _ in 0..r.range(2, 6) {
                    self.after(at, Ev::FaultBegin { fault, ns, generation: self.fault_generation });
                    at += ns + r.log_range(plan.duration_ns.0, plan.duration_ns.1) / 2;
                    ns = r.log_range(plan.duration_ns.0, plan.duration_ns.1) / 2;
                }
                self.fault_rng = r;
                self.next_fault(plan.interval_ns * 2);
                return;
            }
            "loss" => Fault::Loss { host, net, ppm },
            "dup" => Fault::Dup { host, net, ppm },
            "corrupt" => Fault::Corrupt { host, net, ppm: ppm / 4 },
            "stream-corrupt" => Fault::StreamCorrupt { host, net, ppm: ppm / 10 },
            "jitter" => Fault::Jitter { host, net, ns: r.log_range(10 * US, 10 * MS) },
            "delay" => Fault::Delay { host, net, ns: r.log_range(plan.delay_ns.0, plan.delay_ns.1) },
            "routes" => {
                let dark = DarkRoutes { percent: r.range(10, 80) as u32, salt: r.draw() };
                Fault::Routes { host, net, dark }
            }
            "crowd" => {
                let routes = DarkRoutes { percent: r.range(20, 70) as u32, salt: r.draw() };
                Fault::Crowd { host, net, crowd: CrowdedRoutes { routes, times: r.range(3, 30) } }
            }
            "link" => {
                let net = r.pick(&self.nets_with_fabrics());
                let inside = self.nets[net].fabric().expect("it has one").topology().inside();
                Fault::Link { net, link: LinkId((inside.start + r.index(inside.len())) as u32) }
            }
            "port" => Fault::Port { host, net, down: r.percent(40) },
            "writes" => Fault::Writes { host, net, percent: r.range(5, 60) as u32 },
            "refused-writes" => Fault::WritesRefused { host, net },
            "stall" => Fault::Stall { host, net },
            "udp-blocked" => Fault::UdpBlocked { host, net },
            "tcp-blocked" => Fault::TcpBlocked { host, net },
            "tcp-refused" => Fault::TcpRefused { host, net },
            "blackout" => Fault::Blackout { host },
            "reset" => Fault::Reset { host, net, percent: r.range(30, 100) as u32 },
            "mtu-hole" => Fault::MtuHole { host, net, bytes: r.range(200, 1800) as u16 },
            "picky" => {
                use Victims::*;
                let victims = r.pick(&[Handshakes, Queries, Answers, Acks, Control, All]);
                let fate = r.pick(&[Misfortune::Lost, Misfortune::Twice, Misfortune::Late]);
                Fault::Picky {
                    host,
                    net,
                    picky: Picky { victims, fate, ppm: r.log_range(50_000, 1_000_000) as u32 },
                }
            }
            "handshake" => {
                let fate = r.pick(&[Misfortune::Lost, Misfortune::Twice, Misfortune::Late]);
                let picky =
                    Picky { victims: Victims::Handshakes, fate, ppm: r.log_range(100_000, 1_000_000) as u32 };
                Fault::Picky { host, net, picky }
            }
            "stop" => Fault::Stop { p },
            "clock" => Fault::Clock {
                p,
                ppm: r.below(100_001) as i64 - 50_000,
                leap_ns: if r.percent(50) { 0 } else { r.log_range(MS, 100 * SEC) },
            },
            "suspend" => Fault::Suspend { host, frozen: r.percent(50), at: self.now },
            _ => match r.below(3) {
                0 => Fault::Stop { p },
                1 => Fault::Compute { p, react_ns: r.log_range(20 * US, 9 * MS) },
                _ => Fault::Lock { p },
            },
        };
        self.fault_rng = r;
        self.begin_for(fault, ns);
        self.next_fault(plan.interval_ns);
    }

    fn next_fault(&mut self, mean: u64) {
        let ns = self.fault_rng.range(mean / 10, mean * 2);
        self.after(ns, Ev::FaultTick);
    }
}
