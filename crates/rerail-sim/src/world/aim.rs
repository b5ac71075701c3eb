//! A fault that is aimed: it comes with the n-th occurrence of something, not at a time. Owns: what it waits for.
//!
//! A handshake of three messages is over in a tenth of a millisecond, and a fault that comes at a random time rarely
//! comes between two of them. (One that did hung a real program in three of nineteen runs, and no random seed had found
//! it.) Some seeds therefore have one aimed fault beside their random ones; it lasts for as long as a partition,
//! outlasts storms, and in half of these seeds only one process sends by itself, so that no other traffic hides what
//! was lost.
//!
//! Other seeds have aims of more kinds (`draw_more`): what is waited for is a [`Moment`] of a datagram, a stream, an engine or an
//! application, and what comes then is any [`Blow`]. A second aim may begin to count when the first has struck, because what follows a
//! fault (a second handshake, a failover, a repair) is as short as what came before it.

use super::fault::{self, Fault};
use super::process::Mode;
use super::{Config, Ev, Verdict, World};
use crate::link::{MS, SEC};
use crate::moment::Moment;
use crate::rng::Rng;
use rerail_core::Event;
use rerail_core::wire::FrameType;
use rerail_core::wire::packet::PacketKind;
use std::time::Duration;

/// What happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// One of the two hosts loses all its networks.
    Blackout,
    /// What one of the two processes sends to the other is lost, on all networks that they share.
    OneWay,
    /// One of the two processes is stopped.
    Stop,
    /// An application thread of one of the two holds the engine's lock and does not run.
    Lock,
    /// The machine of one of the two is suspended.
    Suspend,
    /// One of the two hosts loses the network on which it came.
    Rail,
    /// What one of the two sends to the other is lost on that network.
    RailOneWay,
    /// The interface goes down, and the processes are notified.
    LinkDown,
    /// All interfaces of one of the two hosts go down, and the processes are notified.
    LinksDown,
    /// Streams are filtered on that network.
    NoStreams,
    /// Datagrams are filtered on that network.
    NoDatagrams,
    /// The stream on which it came is reset; where it came in a datagram, all streams of that host on that network.
    Break,
    /// All streams of one of the two hosts are reset.
    BreakAll,
    /// A firewall begins to reset and refuse streams, and to filter datagrams, on all networks of one of the two hosts.
    Wall,
    /// A firewall begins to reset and refuse streams on that network.
    HalfWall,
    /// The same, and one of the two processes is stopped.
    StopBehindHalfWall,
    /// The same on all networks of the host.
    StopBehindWall,
    /// The streams of one of the two hosts stand still on that network and its datagrams are filtered, as a full queue does it.
    Hold,
    /// One of the two processes is killed.
    Kill,
    /// One of the two processes is killed, and another begins in its place, on the same port.
    Restart,
    /// One of the two processes exits without closing.
    Exit,
    /// This datagram is lost, and the next of the kind. (A stream that it came on is reset.)
    Lost,
    /// This datagram comes again, later.
    Twice,
    /// This datagram comes late.
    Late,
}

/// When it comes, and what it is.
#[derive(Debug, Clone)]
pub struct Aim {
    /// What it waits for.
    pub moment: Moment,
    /// How many of them pass before.
    pub skip: u32,
    /// From the moment itself.
    pub delay_ns: u64,
    /// What.
    pub blow: Blow,
    /// It hits the process at which it happens (the sender of a datagram), not the other.
    pub at_sender: bool,
    /// How long.
    pub ns: u64,
    /// How many more of the kind are lost, if they are.
    pub more: u32,
    /// No application begins anything new after it.
    pub hush: bool,
    /// The aim that is taken next.
    pub then: Option<Box<Aim>>,
}

/// Where it happened.
#[derive(Debug, Clone, Copy)]
struct Place {
    p: usize,
    q: usize,
    net: Option<usize>,
    conn: Option<usize>,
}

impl Aim {
    /// Gives the seed an aim, or none.
    pub fn draw(seed: u64, cfg: &mut Config) {
        // of a source of its own, so that the other seeds are as they were before there were aims
        let mut r = Rng::new(seed, 0xa1);
        if !r.percent(12) || cfg.no_path_down || cfg.peers_may_be_lost {
            return Self::draw_more(seed, cfg);
        }
        let latency = cfg.nets.iter().map(|n| n.latency_ns).max().unwrap_or(MS);
        let delay_ns = r.below(3 * latency);
        let longest = longest_ms(cfg);
        if r.percent(40) {
            // a first contact that only one of the two processes has a reason to begin, and an outage longer than any
            // process waits
            (cfg.alone, cfg.traffic.directed) = (Some(r.index(cfg.procs.len())), 0);
            cfg.aim = Some(Self {
                moment: Moment::Packet(PacketKind::Accept),
                skip: r.below(2 * cfg.nets.len() as u64) as u32,
                delay_ns,
                blow: r.pick(&[Blow::Blackout, Blow::OneWay]),
                at_sender: false,
                ns: r.range(900, longest) * MS,
                more: 0,
                hush: false,
                then: None,
            });
            return;
        }
        cfg.alone = r.percent(50).then(|| r.index(cfg.procs.len()));
        use PacketKind::{Accept, Data, Hello, Ping};
        cfg.aim = Some(Self {
            moment: Moment::Packet(r.pick(&[Accept, Accept, Hello, Ping, Data])),
            skip: r.log_range(1, 16) as u32 - 1,
            delay_ns,
            blow: r.pick(&[Blow::Blackout, Blow::Blackout, Blow::OneWay, Blow::Stop]),
            at_sender: r.percent(50),
            ns: r.log_range(MS, longest * MS),
            more: 0,
            hush: false,
            then: None,
        });
    }

    /// Gives a seed that has none an aim of another kind, or none.
    fn draw_more(seed: u64, cfg: &mut Config) {
        // of a source of its own again: seeds with an aim of the first kind, and most of those without, are as they were
        let mut r = Rng::new(seed, 0xa2);
        if !r.percent(25) {
            return;
        }
        if r.percent(40) {
            cfg.alone = Some(r.index(cfg.procs.len()));
        }
        if r.percent(40) && !cfg.no_path_down && !cfg.peers_may_be_lost {
            // what a random fault repairs beside what it breaks (a new epoch, a new stream) must not be needed
            calm(cfg);
        }
        let plain = !cfg.no_path_down && !cfg.peers_may_be_lost;
        let setting = if plain { r.below(8) } else { u64::MAX };
        match setting {
            0 => only_processes(cfg),
            1 => firewall(&mut r, cfg),
            2 => half_read(&mut r, cfg),
            3 => calm(cfg),
            _ => {}
        }
        let mut chain = vec![Self::draw_one(&mut r, cfg)];
        while chain.len() < 4 && r.percent(40) {
            chain.push(Self::draw_one(&mut r, cfg));
        }
        // what only follows a fault is waited for when there was one
        let first = chain[0].moment;
        if let Some((causes, low, high)) = cause_of(first).filter(|_| r.percent(80)) {
            if !cfg.no_path_down || causes == [Blow::Stop] {
                let mut cause = Self::draw_one(&mut r, cfg);
                if cause_of(cause.moment).is_some() {
                    cause.moment = Moment::Packet(PacketKind::Data);
                }
                cause.blow = r.pick(causes);
                cause.ns = r.range(low, high.min(longest_ms(cfg)).max(low)) * MS;
                chain[0].skip = chain[0].skip.min(r.below(4) as u32);
                chain.insert(0, cause);
            }
        }
        for a in &mut chain {
            match setting {
                1 => {
                    use Blow::{HalfWall, StopBehindHalfWall, Wall};
                    a.blow =
                        r.pick(&[HalfWall, StopBehindHalfWall, StopBehindHalfWall, StopBehindHalfWall, Wall]);
                    a.ns = r.range(300, 1_200) * MS;
                }
                // an outage in a farewell
                3 => {
                    a.moment = r.pick(&[Moment::Drains, Moment::Drains, Moment::Closes]);
                    a.blow = r.pick(&[Blow::Blackout, Blow::OneWay, Blow::LinksDown]);
                    (a.ns, a.skip) = (r.range(1_500, longest_ms(cfg)) * MS, r.below(3) as u32);
                }
                2 => (a.moment, a.blow, a.ns) = (Moment::HalfRead, Blow::Hold, r.range(12, 80) * MS),
                _ => {}
            }
        }
        // no new traffic after the last of them has struck: what was lost then must be noticed without it
        let hush = r.percent(40);
        let leaps = ["clock", "suspend"].iter().any(|k| weight(cfg, k) > 0);
        if cfg.no_path_down && (setting == 0 || !leaps) {
            // a process may be stopped for longer than the deadline of a partition, while its kernel answers. At a first contact the
            // kernel is queried soon after datagrams go unanswered, which is too early to count, and again after two
            // seconds. A shorter deadline gives up a process that is stopped in the middle of its first handshake (seed
            // 899)
            for o in &mut cfg.options {
                o.partition_timeout = Some(Duration::from_millis(r.range(3_000, 4_000)));
            }
        }
        if cfg.peers_may_be_lost {
            cfg.together = r.percent(70);
        }
        if chain.iter().any(|a| a.blow == Blow::Restart) {
            for o in &mut cfg.options {
                o.partition_timeout = Some(Duration::from_secs(12));
            }
        }
        if chain
            .iter()
            .any(|a| matches!(a.moment, Moment::Drains | Moment::Closes | Moment::Frame(FrameType::Goodbye)))
        {
            cfg.leave_under_faults_ns = cfg.leave_under_faults_ns.max(r.range(2, 8) * SEC);
            // an outage that is longer than closing may take. Not with a locked engine: it answers, so its time counts
            // as lingering
            let answers = chain.iter().any(|a| a.blow == Blow::Lock);
            if (setting == 3 || r.percent(50)) && !answers {
                for o in &mut cfg.options {
                    o.linger = Duration::from_millis(r.range(1_000, 2_000));
                }
            }
        }
        cfg.aim = chain.into_iter().rev().fold(None, |then: Option<Self>, a| {
            let hush = hush && then.is_none();
            Some(Self { then: then.map(Box::new), hush, ..a })
        });
    }

    fn draw_one(r: &mut Rng, cfg: &Config) -> Self {
        let (moment, most) = draw_moment(r, cfg);
        let blow = draw_blow(r, cfg);
        let latency = cfg.nets.iter().map(|n| n.latency_ns).max().unwrap_or(MS);
        let longest = match blow {
            // in the bounds of `refused_timeout`, with what random faults add to it
            Blow::Wall | Blow::HalfWall | Blow::StopBehindHalfWall | Blow::StopBehindWall => 1_200,
            Blow::Hold => 100,
            Blow::Late | Blow::Twice => 5_000,
            _ if cfg.no_path_down => 7_000,
            _ if cfg.peers_may_be_lost => 6_000,
            _ => longest_ms(cfg),
        };
        Self {
            moment,
            skip: r.log_range(1, most) as u32 - 1,
            delay_ns: if r.percent(40) { 0 } else { r.below(3 * latency) },
            blow,
            at_sender: r.percent(50),
            ns: if r.percent(30) {
                r.range(longest / 3, longest) * MS
            } else {
                r.log_range(MS, longest * MS)
            },
            more: if r.percent(50) { 0 } else { r.log_range(1, 20) as u32 },
            hush: false,
            then: None,
        }
    }
}

/// Nothing else breaks.
fn calm(cfg: &mut Config) {
    (cfg.faults.interval_ns, cfg.faults.from_start) = (3600 * SEC, 0);
}

/// Only processes misbehave, so that no path may be called broken (invariant 8).
fn only_processes(cfg: &mut Config) {
    calm(cfg);
    cfg.no_path_down = true;
}

/// Processes that have a neighbour on their host, and often nothing to send.
fn firewall(r: &mut Rng, cfg: &mut Config) {
    calm(cfg);
    if cfg.procs.len() < 5 {
        let host = r.index(cfg.hosts.len());
        let p = cfg.procs.iter().position(|&h| h == host).expect("each host has a process");
        cfg.procs.push(host);
        cfg.options.push(cfg.options[p].clone());
    }
    if r.percent(50) {
        cfg.traffic.think_ns = r.log_range(MS, 100 * MS);
    }
}

/// Messages of a few fragments over several rails, one of which stands still in the middle of one.
fn half_read(r: &mut Rng, cfg: &mut Config) {
    cfg.traffic.sizes = [0, 1, 1, 1, 6, 2];
    for o in &mut cfg.options {
        (o.hedge_percent, o.stripe_bytes_min) = (100, r.pick(&[0, 20_000]));
    }
}

/// Where connections are refused now and then, an outage of `refused_timeout` looks like a death.
fn longest_ms(cfg: &Config) -> u64 {
    if weight(cfg, "reset") > 0 || weight(cfg, "tcp-refused") > 0 { 2_400 } else { 3_500 }
}

/// Whether a process may be restarted. The new process on its port accepts connections and knows no peer, so the old
/// one is never declared dead: it counts as a partition, and no other fault may reach the deadline of a partition. The
/// words of registered memory are counted by process from the beginning.
fn may_restart(cfg: &Config) -> bool {
    cfg.one_sided.is_none() && weight(cfg, "clock") == 0 && cfg.faults.duration_ns.1 <= SEC
}

/// What brings a moment about that nothing but a fault does, and for how many milliseconds it must last.
fn cause_of(moment: Moment) -> Option<(&'static [Blow], u64, u64)> {
    use Blow::*;
    let paths: &[Blow] = &[Rail, RailOneWay, LinkDown, LinksDown, Blackout, BreakAll];
    Some(match moment {
        Moment::Again | Moment::Event("path_down" | "migrated") | Moment::Frame(FrameType::Verdict) => {
            (paths, 20, 600)
        }
        Moment::Event("path_suspect" | "path_cleared") | Moment::Aborted => {
            (&[Hold, Rail, RailOneWay], 12, 60)
        }
        Moment::Event("partition" | "partition_end") => (&[Blackout, LinksDown], 1_100, 2_400),
        Moment::Event("peer_stopped") => (&[Stop], 1_100, 3_000),
        Moment::Event("stream_replaced") => (&[Hold, NoStreams, Break], 100, 400),
        _ => return None,
    })
}

fn weight(cfg: &Config, kind: &str) -> u32 {
    cfg.faults.weights[fault::kind(kind)]
}

/// A moment, and up to which of them the aim is taken.
fn draw_moment(r: &mut Rng, cfg: &Config) -> (Moment, u64) {
    use Moment::*;
    if cfg.one_sided.is_some() && r.percent(25) {
        return (Order, 300);
    }
    r.pick(&[
        (Packet(PacketKind::Hello), 16),
        (Packet(PacketKind::Accept), 16),
        (Packet(PacketKind::Ping), 64),
        (Packet(PacketKind::Pong), 64),
        (Packet(PacketKind::Bulk), 200),
        (Again, 16),
        (Again, 16),
        (Frame(FrameType::Config), 12),
        (Frame(FrameType::Eager), 300),
        (Frame(FrameType::Rts), 64),
        (Frame(FrameType::Cts), 64),
        (Frame(FrameType::Frag), 300),
        (Frame(FrameType::Vack), 64),
        (Frame(FrameType::Refuse), 16),
        (Frame(FrameType::Reject), 8),
        (Frame(FrameType::Withdraw), 8),
        (Frame(FrameType::Verdict), 8),
        (Frame(FrameType::Goodbye), 6),
        (Frame(FrameType::Goodbye), 6),
        (Closes, 4),
        (Drains, 3),
        (Drains, 3),
        (Ack, 300),
        (Connect, 16),
        (Accepted, 12),
        (Greeting, 12),
        (FirstFrame, 12),
        (HalfWritten, 64),
        (HalfWritten, 64),
        (HalfRead, 64),
        (Aborted, 3),
        (Event("path_up"), 12),
        (Event("path_suspect"), 8),
        (Event("path_cleared"), 8),
        (Event("path_down"), 8),
        (Event("stream_replaced"), 4),
        (Event("migrated"), 6),
        (Event("armed"), 6),
        (Event("partition"), 3),
        (Event("partition_end"), 3),
        (Event("peer_stopped"), 2),
    ])
}

fn draw_blow(r: &mut Rng, cfg: &Config) -> Blow {
    use Blow::*;
    if cfg.no_path_down {
        return r.pick(&[Stop, Stop, Stop, Lock]);
    }
    if cfg.peers_may_be_lost {
        return r.pick(&[Blackout, Blackout, OneWay, LinksDown, Rail, Stop]);
    }
    // one process that ends in the middle is enough
    if cfg.kill.is_none() && cfg.exit.is_none() && r.percent(10) {
        let blow = r.pick(&[Kill, Kill, Exit, Restart, Restart]);
        return if blow == Restart && !may_restart(cfg) { Kill } else { blow };
    }
    r.pick(&[
        Blackout,
        Blackout,
        OneWay,
        OneWay,
        Stop,
        Stop,
        Lock,
        Suspend,
        Rail,
        Rail,
        RailOneWay,
        RailOneWay,
        LinkDown,
        LinkDown,
        LinksDown,
        NoStreams,
        NoDatagrams,
        Break,
        Break,
        Break,
        BreakAll,
        Wall,
        HalfWall,
        StopBehindHalfWall,
        StopBehindWall,
        Hold,
        Hold,
        Lost,
        Lost,
        Lost,
        Twice,
        Twice,
        Late,
    ])
}

impl World {
    /// A datagram leaves process `p` for process `q` over `net`: is it the one, and what becomes of it then?
    pub(crate) fn take_aim(&mut self, p: usize, q: usize, net: usize, bytes: &[u8]) -> Verdict {
        if self.cfg.aim.as_ref().is_none_or(|a| !a.moment.is_of(bytes)) {
            return Verdict::Pass;
        }
        self.strike(Place { p, q, net: Some(net), conn: None })
    }

    /// Something happens at process `p` on connection `c`.
    pub(crate) fn aim_at_conn(&mut self, moment: Moment, p: usize, c: usize) {
        if self.cfg.aim.as_ref().is_none_or(|a| a.moment != moment) {
            return;
        }
        let k = &self.conns[c];
        let q = if k.ends[0].proc == p { k.ends[1].proc } else { k.ends[0].proc };
        if q < self.procs.len() {
            self.strike(Place { p, q, net: Some(k.net), conn: Some(c) });
        }
    }

    /// Whether streams are to be followed.
    pub(crate) fn follows(aim: Option<&Aim>) -> bool {
        aim.is_some_and(|a| a.moment.is_of_bytes() || Self::follows(a.then.as_deref()))
    }

    /// Process `p` has written `n` bytes to connection `c`, the last of what is there, and may write more of it now or later.
    pub(crate) fn aim_at_written(&mut self, p: usize, c: usize, side: usize, n: usize, short: bool) {
        let d = &mut self.conns[c].dirs[side];
        let bytes: Vec<u8> = d.buf.iter().skip(d.buf.len() - n).copied().collect();
        let mut seen = Vec::new();
        d.follower.write(side, &bytes, |m| seen.push(m));
        if short && d.follower.is_half_written() {
            seen.push(Moment::HalfWritten);
        }
        for m in seen {
            self.aim_at_conn(m, p, c);
        }
    }

    /// Process `p` has read `n` bytes of connection `c`.
    pub(crate) fn aim_at_read(&mut self, p: usize, c: usize, side: usize, n: usize) {
        let d = &mut self.conns[c].dirs[1 - side];
        if d.follower.reads(n) && d.rx.is_empty() {
            self.aim_at_conn(Moment::HalfRead, p, c);
        }
    }

    /// The engine of process `p` reports an event.
    pub(crate) fn aim_at_event(&mut self, p: usize, e: &Event) {
        if self.cfg.aim.as_ref().is_none_or(|a| a.moment != Moment::Event(e.kind.name())) {
            return;
        }
        let Some(ep) = self.addresses.iter().position(|a| a.token.public_name() == e.peer_name) else {
            return;
        };
        let net = e.path.map(|(_, rail, _)| self.procs[p].nets[rail.0 as usize]);
        self.strike(Place { p, q: self.owner(ep), net, conn: None });
    }

    /// Process `p` stops sending, or closes its endpoints.
    pub(crate) fn aim_at_app(&mut self, moment: Moment, p: usize) {
        if self.cfg.aim.as_ref().is_some_and(|a| a.moment == moment) {
            let q = (p + 1) % self.procs.len();
            self.strike(Place { p, q, net: None, conn: None });
        }
    }

    /// One more of what the aim waits for.
    fn strike(&mut self, at: Place) -> Verdict {
        let Some(aim) = &mut self.cfg.aim else { return Verdict::Pass };
        if aim.skip > 0 {
            aim.skip -= 1;
            return Verdict::Pass;
        }
        let (struck, again) = (aim.clone(), aim.blow == Blow::Lost && at.conn.is_none() && aim.more > 0);
        if again {
            aim.more -= 1;
        } else {
            self.cfg.aim = struck.then.as_deref().cloned();
        }
        self.struck += 1;
        self.enough |= struck.hush && !again;
        self.trace(|| {
            format!("aim: {:?} {:?} at {at:?} for {} us", struck.moment, struck.blow, struck.ns / 1000)
        });
        self.hit(&struck, at)
    }

    fn hit(&mut self, aim: &Aim, at: Place) -> Verdict {
        let (victim, other) = if aim.at_sender { (at.p, at.q) } else { (at.q, at.p) };
        let (host, peer) = (self.procs[victim].host, self.procs[other].host);
        let nets = self.cfg.hosts[host].clone();
        let shared: Vec<usize> = nets.iter().copied().filter(|n| self.cfg.hosts[peer].contains(n)).collect();
        let net = at.net.filter(|n| nets.contains(n)).unwrap_or(shared[0]);
        let dark = |net| Fault::PairDark { from: host, to: peer, net };
        let reset = |net| Fault::Reset { host, net, percent: 100 };
        let refuse = |net| [reset(net), Fault::TcpRefused { host, net }];
        let faults: Vec<Fault> = match aim.blow {
            Blow::Blackout => vec![Fault::Blackout { host }],
            Blow::Stop => vec![Fault::Stop { p: victim }],
            Blow::Lock => vec![Fault::Lock { p: victim }],
            Blow::Suspend => {
                vec![Fault::Suspend { host, frozen: aim.ns % 2 == 0, at: self.now + aim.delay_ns }]
            }
            Blow::OneWay => shared.into_iter().map(dark).collect(),
            Blow::Rail => vec![Fault::Dark { host, net, inward: true, outward: true }],
            Blow::RailOneWay => vec![dark(net)],
            Blow::LinkDown => vec![Fault::IfDown { host, net, peers: false }],
            Blow::LinksDown => nets.iter().map(|&net| Fault::IfDown { host, net, peers: false }).collect(),
            Blow::NoStreams => vec![Fault::TcpBlocked { host, net }],
            Blow::NoDatagrams => vec![Fault::UdpBlocked { host, net }],
            Blow::Break | Blow::Lost if at.conn.is_some() => {
                for side in 0..2 {
                    let c = at.conn.expect("asked before");
                    self.after(aim.delay_ns, Ev::Rst { c, side, forged: true });
                }
                return Verdict::Pass;
            }
            Blow::Break => vec![reset(net)],
            Blow::BreakAll => nets.into_iter().map(reset).collect(),
            Blow::Wall => {
                let all = nets.iter().flat_map(|&net| refuse(net));
                all.chain(nets.iter().map(|&net| Fault::UdpBlocked { host, net })).collect()
            }
            Blow::HalfWall => refuse(net).to_vec(),
            Blow::StopBehindHalfWall => refuse(net).into_iter().chain([Fault::Stop { p: victim }]).collect(),
            Blow::StopBehindWall => {
                let all = nets.iter().flat_map(|&net| refuse(net));
                all.chain([Fault::Stop { p: victim }]).collect()
            }
            Blow::Hold => vec![Fault::Stall { host, net }, Fault::UdpBlocked { host, net }],
            how @ (Blow::Kill | Blow::Restart | Blow::Exit) => {
                self.after(aim.delay_ns, Ev::BlowEnds { p: victim, how });
                return Verdict::Pass;
            }
            Blow::Lost => return Verdict::Drop,
            Blow::Twice => return Verdict::Again(aim.ns),
            Blow::Late => return Verdict::Delay(aim.ns),
        };
        for fault in faults {
            self.after(aim.delay_ns, Ev::Blow { fault, ns: aim.ns });
        }
        Verdict::Pass
    }

    /// The aimed fault begins, unless everything was healed meanwhile.
    pub(crate) fn on_blow(&mut self, fault: Fault, ns: u64) {
        if self.cfg.faults.interval_ns > 0 {
            let i = self.begin_for(fault, ns);
            self.active[i].lasting = true;
        }
    }

    /// The aimed fault is the end of a process.
    pub(crate) fn on_blow_ends(&mut self, p: usize, how: Blow) {
        if self.cfg.faults.interval_ns == 0 || self.procs[p].engine.is_none() {
            return;
        }
        let runs = self.procs[p].mode == Mode::Running;
        if how == Blow::Exit {
            self.exit(p);
        } else {
            self.kill(p);
        }
        if how == Blow::Restart && runs {
            self.begin_anew(p);
        }
        // nothing more happens when a single process is left
        let left = self.procs.iter().filter(|p| p.engine.is_some() && !p.app.exited).count();
        self.enough |= left < 2;
    }
}
