//! A fault that is aimed: it comes with the n-th datagram of a kind, not at a time. Owns: what it waits for.
//!
//! A handshake of three words is over in a tenth of a millisecond, and a fault that comes at a random time rarely comes between
//! two of them. (One that did hung a real program in three of nineteen runs, and no random seed had found it.) Some seeds therefore
//! have one aimed fault beside their random ones; it lasts for as long as a partition, outlasts storms, and in half of these seeds only
//! one process sends by itself, so that nobody else's traffic hides what was lost.

use crate::fault::{Fault, KINDS};
use crate::link::MS;
use crate::rng::Rng;
use crate::world::{Config, Ev, World};
use rerail_core::wire::packet::{PacketKind, peek};

/// What happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// One of the two hosts loses all its networks.
    Blackout,
    /// What one of the two processes sends to the other is lost, on all networks that they share.
    OneWay,
    /// One of the two processes is stopped.
    Stop,
}

/// When it comes, and what it is.
#[derive(Debug, Clone)]
pub struct Aim {
    /// The kind of datagram that it waits for.
    pub kind: PacketKind,
    /// How many of them pass before.
    pub skip: u32,
    /// From the moment when the datagram leaves.
    pub delay_ns: u64,
    /// What.
    pub blow: Blow,
    /// It hits the sender of the datagram, not its receiver.
    pub at_sender: bool,
    /// How long.
    pub ns: u64,
}

impl Aim {
    /// Gives the seed an aim, or none.
    pub fn draw(seed: u64, cfg: &mut Config) {
        // of a source of its own, so that the other seeds are as they were before there were aims
        let mut r = Rng::new(seed, 0xa1);
        if !r.percent(12) || cfg.no_path_down || cfg.peers_may_be_lost {
            return;
        }
        let latency = cfg.nets.iter().map(|n| n.latency_ns).max().unwrap_or(MS);
        let delay_ns = r.below(3 * latency);
        // where connections are refused now and then, a darkness of `refused_timeout` cannot be told from a death
        let refuses = |k: &str| KINDS.iter().position(|x| *x == k).is_some_and(|i| cfg.faults.weights[i] > 0);
        let longest = if refuses("reset") || refuses("tcp-refused") { 2_400 } else { 3_500 };
        if r.percent(40) {
            // a first contact between processes one of which has no other reason to know the other, and longer than anybody waits
            (cfg.alone, cfg.traffic.directed) = (Some(r.index(cfg.procs.len())), 0);
            cfg.aim = Some(Self {
                kind: PacketKind::Accept,
                skip: r.below(2 * cfg.nets.len() as u64) as u32,
                delay_ns,
                blow: r.pick(&[Blow::Blackout, Blow::OneWay]),
                at_sender: false,
                ns: r.range(900, longest) * MS,
            });
            return;
        }
        cfg.alone = r.percent(50).then(|| r.index(cfg.procs.len()));
        use PacketKind::{Accept, Data, Hello, Ping};
        cfg.aim = Some(Self {
            kind: r.pick(&[Accept, Accept, Hello, Ping, Data]),
            skip: r.log_range(1, 16) as u32 - 1,
            delay_ns,
            blow: r.pick(&[Blow::Blackout, Blow::Blackout, Blow::OneWay, Blow::Stop]),
            at_sender: r.percent(50),
            ns: r.log_range(MS, longest * MS),
        });
    }
}

impl World {
    /// A datagram leaves process `p` for process `q`: is it the one?
    pub(crate) fn take_aim(&mut self, p: usize, q: usize, bytes: &[u8]) {
        let Some(aim) = &mut self.cfg.aim else { return };
        if !peek(bytes).is_some_and(|(_, kind)| kind == aim.kind) {
            return;
        }
        if aim.skip > 0 {
            aim.skip -= 1;
            return;
        }
        let aim = self.cfg.aim.take().expect("it is there");
        let (victim, other) = if aim.at_sender { (p, q) } else { (q, p) };
        let (host, peer) = (self.procs[victim].host, self.procs[other].host);
        let faults: Vec<Fault> = match aim.blow {
            Blow::Blackout => vec![Fault::Blackout { host }],
            Blow::Stop => vec![Fault::Stop { p: victim }],
            Blow::OneWay => {
                let nets = self.cfg.hosts[host].iter().filter(|n| self.cfg.hosts[peer].contains(n));
                nets.map(|&net| Fault::PairDark { from: host, to: peer, net }).collect()
            }
        };
        for fault in faults {
            self.after(aim.delay_ns, Ev::Blow { fault, ns: aim.ns });
        }
    }

    /// The aimed fault begins, unless everything was healed meanwhile.
    pub(crate) fn on_blow(&mut self, fault: Fault, ns: u64) {
        if self.cfg.faults.interval_ns > 0 {
            let i = self.begin_for(fault, ns);
            self.active[i].lasting = true;
        }
    }
}
