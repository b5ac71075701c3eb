//! The networks: one switch for each, or a fabric of them, one link between it and each host. Owns: what is wrong with every
//! link now.
//!
//! A fault is counted, not set, so that faults may overlap. Serialization is charged at both ends of a passage when it
//! begins; what is in flight when a link goes dark is lost at its arrival.

use crate::fabric::routing::Flow;
use crate::fabric::{Fabric, FabricSpec};
use crate::rng::{Rng, mix};

/// Nanoseconds in a microsecond.
pub const US: u64 = 1_000;
/// Nanoseconds in a millisecond.
pub const MS: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const SEC: u64 = 1_000_000_000;

/// Longest queue of a link, as time: beyond it datagrams are dropped.
const QUEUE_NS_MAX: u64 = 20 * MS;

/// Whether a datagram that would wait this long finds no room. Others take a share of the buffer that changes, so it is a
/// little longer at times; without that, two senders can fall into step, and one of them always find it full (Floyd and
/// Jacobson, "On Traffic Phase Effects in Packet-Switched Gateways", 1992).
fn overflows(waits_ns: u64, rng: &mut Rng) -> bool {
    const SURE: u64 = QUEUE_NS_MAX / 4 * 3;
    waits_ns > SURE && waits_ns > SURE + rng.below(QUEUE_NS_MAX / 4)
}

/// A stream sends no more while the queues before it are longer: what congestion control comes to.
pub const TCP_QUEUE_NS_MAX: u64 = 5 * MS;

/// In a fabric a stream sends little at a time while the queues before it are longer, so that hundreds that meet on a link all
/// have some of it: what a congestion window of a few segments comes to.
pub const TCP_CROWDED_NS: u64 = 4 * MS;
/// See [`TCP_CROWDED_NS`].
pub const TCP_CROWDED_BYTES: u64 = 4096;

/// Bytes of bulk datagrams that a host keeps for a link that is busy: what does not fit is refused, not lost.
const BULK_BUFFER_BYTES: u64 = 512 * 1024;

/// What a passage carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// A datagram, that goes by this route: hosts choose it by its source port.
    Udp(u8),
    /// A segment of the connection of that number: by its ports a fabric chooses its route.
    Tcp(usize),
}

/// Some routes of a fabric are dark: connections, and datagrams by direction and source port, that are led over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DarkRoutes {
    /// Share of them, in percent.
    pub percent: u32,
    /// Which ones.
    pub salt: u64,
}

/// Tells datagrams from connections where both choose routes.
const DATAGRAMS: u64 = 0xda7a << 48;

impl DarkRoutes {
    /// Whether a connection takes one of them, or what datagrams from one host to another take by a number.
    pub fn lead(self, src: usize, dst: usize, what: Carries) -> bool {
        let flow = match what {
            Carries::Tcp(connection) => connection as u64,
            Carries::Udp(route) => mix(((src << 32) ^ (dst << 16)) as u64 ^ u64::from(route) ^ DATAGRAMS),
        };
        mix(self.salt ^ flow) % 100 < u64::from(self.percent)
    }
}

/// Some routes of a fabric are crowded by others: connections over them share what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrowdedRoutes {
    /// Which.
    pub routes: DarkRoutes,
    /// A byte takes so many times as long as on the link.
    pub times: u64,
}

/// Datagrams of one kind that fare badly: what a broken middlebox, a filter, or bad luck does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picky {
    /// Which.
    pub victims: Victims,
    /// What becomes of them.
    pub fate: Misfortune,
    /// Chance, in millionths.
    pub ppm: u32,
}

/// Kinds of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victims {
    /// Handshakes, and their answers.
    Handshakes,
    /// Queries.
    Queries,
    /// Answers to queries.
    Answers,
    /// Nothing but acknowledgements.
    Acks,
    /// Grants, refusals, verdicts, goodbyes.
    Control,
    /// All.
    All,
}

/// What becomes of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfortune {
    /// It is lost.
    Lost,
    /// It comes, and comes again up to seconds later.
    Twice,
    /// It comes up to seconds later.
    Late,
}

/// The link of one host to one network.
#[derive(Debug, Clone, Default)]
pub struct Link {
    /// Whether the host is attached at all.
    pub attached: bool,
    /// Causes for the interface being down.
    pub down: u32,
    /// Other interfaces whose fall was seen here as the loss of the carrier.
    pub carrier_lost: u32,
    /// Causes for nothing coming in.
    pub dark_in: u32,
    /// Causes for nothing getting out.
    pub dark_out: u32,
    /// Causes for datagrams being filtered.
    pub udp_blocked: u32,
    /// Causes for streams being filtered.
    pub tcp_blocked: u32,
    /// Causes for connects being refused.
    pub tcp_refused: u32,
    /// Causes for segments of streams being held back.
    pub tcp_stalled: u32,
    /// Chance of loss.
    pub loss_ppm: u32,
    /// Chance of a datagram arriving twice.
    pub dup_ppm: u32,
    /// Chance of a flipped bit in a datagram.
    pub corrupt_ppm: u32,
    /// Chance of a flipped bit in a segment that the kernel's checksum does not notice.
    pub stream_corrupt_ppm: u32,
    /// Datagrams are delayed by up to this much, each by another time.
    pub jitter_ns: u64,
    /// Everything is delayed by this much.
    pub delay_ns: u64,
    /// Largest IP packets that get through, one for each cause.
    pub holes: Vec<u16>,
    /// Routes that are dark, one entry for each cause.
    pub dark_routes: Vec<DarkRoutes>,
    /// Routes that are crowded, one entry for each cause.
    pub crowded_routes: Vec<CrowdedRoutes>,
    /// Chance in percent that a stream is reset while a write goes out over it.
    pub broken_writes: u32,
    /// Causes for writes into the host's memory being refused.
    pub refused_writes: u32,
    /// Kinds of datagrams that fare badly.
    pub picky: Vec<Picky>,
    busy_out: u64,
    busy_in: u64,
    /// Until when what is left of crowded routes is busy.
    busy_crowd: u64,
}

impl Link {
    /// Whether the host's processes have been (or will be) told that the interface is of no use.
    pub fn believed_down(&self) -> bool {
        self.down + self.carrier_lost > 0
    }
}

/// What the kernel of a host knows of the link-layer address of another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Neighbour {
    /// Nothing.
    #[default]
    Unknown,
    /// It asks, so often again, the next time then.
    Asked { left: u32, next: u64 },
    /// A kernel that asks for an address tells its own.
    Known,
}

/// A kernel asks so often for a link-layer address, and so long lies between (RFC 4861 §10; arp(7): `mcast_solicit`, `retrans_time_ms`).
const ASKS: (u32, u64) = (3, SEC);

/// One network.
#[derive(Debug, Clone)]
pub struct Net {
    /// One-way latency between two hosts.
    pub latency_ns: u64,
    /// Picoseconds for a byte.
    pub byte_ps: u64,
    /// Largest IP packet.
    pub mtu: u16,
    /// Links, by host.
    pub links: Vec<Link>,
    /// Causes for nothing passing from one host to another: `[from * hosts + to]`.
    pub pair_dark: Vec<u32>,
    /// What kernels know of one another, by the same place; empty: everything, for ever.
    neighbours: Vec<Neighbour>,
    /// Its switches; `None`: one, that is never crowded inside.
    fabric: Option<Box<Fabric>>,
}

impl Net {
    /// A healthy network.
    pub fn new(hosts: usize, latency_ns: u64, mbps: u64, mtu: u16) -> Self {
        Self {
            latency_ns,
            byte_ps: 8_000_000 / mbps.max(1),
            mtu,
            links: vec![Link { attached: true, ..Link::default() }; hosts],
            pair_dark: vec![0; hosts * hosts],
            neighbours: Vec::new(),
            fabric: None,
        }
    }

    /// The same with a fabric: the host of each number is at the port of that number.
    pub fn with_fabric(mut self, spec: &FabricSpec) -> Self {
        assert!(self.links.len() <= spec.topology.hosts(), "simulator: a fabric with too few ports");
        self.fabric = Some(Box::new(Fabric::new(spec)));
        self
    }

    /// Its fabric.
    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_deref()
    }

    /// The same, to be changed.
    pub fn fabric_mut(&mut self) -> Option<&mut Fabric> {
        self.fabric.as_deref_mut()
    }

    /// From now on kernels have to ask for link-layer addresses, and know none yet.
    pub fn forget_neighbours(&mut self) {
        self.neighbours = vec![Neighbour::Unknown; self.links.len() * self.links.len()];
    }

    /// Whether the kernel of `src` knows the address of `dst`, or learns it now.
    fn resolves(&mut self, src: usize, dst: usize, now: u64) -> bool {
        let hosts = self.links.len();
        let open = self.open(src, dst, Carries::Udp(0)) && self.open(dst, src, Carries::Udp(0));
        let Some(n) = self.neighbours.get_mut(src * hosts + dst) else { return true };
        match *n {
            Neighbour::Known => return true,
            Neighbour::Asked { next, .. } if now < next => return false,
            Neighbour::Asked { left, next } => {
                *n = match left {
                    0 => Neighbour::Unknown,
                    left => Neighbour::Asked { left: left - 1, next: next + ASKS.1 },
                };
            }
            Neighbour::Unknown => *n = Neighbour::Asked { left: ASKS.0 - 1, next: now + ASKS.1 },
        }
        if open && *n != Neighbour::Unknown {
            self.neighbours[src * hosts + dst] = Neighbour::Known;
            self.neighbours[dst * hosts + src] = Neighbour::Known;
        }
        open
    }

    /// Nominal speed.
    pub fn mbps(&self) -> u32 {
        (8_000_000 / self.byte_ps.max(1)) as u32
    }

    /// Whether something can leave `src`, or arrive at `dst`, now.
    pub fn open(&self, src: usize, dst: usize, what: Carries) -> bool {
        let (s, d) = (&self.links[src], &self.links[dst]);
        let blocked = match what {
            Carries::Udp(_) => s.udp_blocked + d.udp_blocked,
            Carries::Tcp(_) => s.tcp_blocked + d.tcp_blocked,
        };
        if s.dark_routes.iter().chain(&d.dark_routes).any(|r| r.lead(src, dst, what)) {
            return false;
        }
        if self.fabric.as_ref().is_some_and(|f| !f.open(&flow(f, src, dst, what))) {
            return false;
        }
        s.attached
            && d.attached
            && s.down
                + d.down
                + s.dark_out
                + d.dark_in
                + blocked
                + self.pair_dark[src * self.links.len() + dst]
                == 0
    }

    /// Whether segments between the two are held back now.
    pub fn stalled(&self, src: usize, dst: usize) -> bool {
        self.links[src].tcp_stalled + self.links[dst].tcp_stalled > 0
    }

    /// How long what is sent now would wait in queues: those of its route, where there is a fabric.
    pub fn queue_ns(&self, src: usize, dst: usize, now: u64, what: Carries) -> u64 {
        if let Some(fabric) = &self.fabric {
            let out = self.links[src].busy_out.max(now);
            return fabric.free_at(&flow(fabric, src, dst, what), out) - now;
        }
        let crowd = self.crowd(src, dst, what).map_or(0, |(host, _)| self.links[host].busy_crowd);
        (self.links[src].busy_out.saturating_sub(now) + self.links[dst].busy_in.saturating_sub(now))
            .max(crowd.saturating_sub(now))
    }

    /// The host before which others crowd the route of a connection, and how many times as long a byte takes there.
    fn crowd(&self, src: usize, dst: usize, what: Carries) -> Option<(usize, u64)> {
        let crowded = |host: usize| {
            let causes = self.links[host].crowded_routes.iter();
            causes.filter(|c| c.routes.lead(src, dst, what)).map(move |c| (host, c.times)).max_by_key(|c| c.1)
        };
        // datagrams are few, and have the right of way
        matches!(what, Carries::Tcp(_)).then(|| crowded(src).or_else(|| crowded(dst)))?
    }

    /// Bytes of bulk datagrams that `src` may still hand to its kernel: what waits on its link is counted.
    pub fn bulk_room(&self, src: usize, now: u64) -> usize {
        let waiting = self.links[src].busy_out.saturating_sub(now) * 1000 / self.byte_ps.max(1);
        BULK_BUFFER_BYTES.saturating_sub(waiting) as usize
    }

    /// Until when the links between two hosts are busy: out of the one, into the other.
    pub fn busy(&self, src: usize, dst: usize) -> (u64, u64) {
        (self.links[src].busy_out, self.links[dst].busy_in)
    }

    /// The same links are busy until then, with what goes over another network.
    pub fn is_busy(&mut self, src: usize, dst: usize, until: (u64, u64)) {
        (self.links[src].busy_out, self.links[dst].busy_in) = until;
    }

    /// Sends `bytes`; returns when they arrive, or `None` when they are lost on the way out. What is lost by chance on a
    /// stream comes later: the kernel sends it again.
    pub fn pass(
        &mut self,
        src: usize,
        dst: usize,
        bytes: usize,
        now: u64,
        what: Carries,
        rng: &mut Rng,
    ) -> Option<u64> {
        if !self.resolves(src, dst, now) || !self.open(src, dst, what) {
            return None;
        }
        // a large write is cut by the adapter: what counts is the size of a packet
        let packet = (bytes as u64).min(u64::from(self.mtu) + 14);
        let mut holes = self.links[src].holes.iter().chain(&self.links[dst].holes);
        if holes.any(|&h| packet > u64::from(h) + 14) {
            return None;
        }
        let took = bytes as u64 * self.byte_ps / 1000;
        let s = &mut self.links[src];
        let start = s.busy_out.max(now);
        if matches!(what, Carries::Udp(_)) && overflows(start - now, rng) {
            return None;
        }
        s.busy_out = start + took;
        let mut extra = s.delay_ns;
        let mut loss = s.loss_ppm;
        let mut jitter = s.jitter_ns;
        let at = s.busy_out + self.latency_ns;
        let d = &mut self.links[dst];
        extra += d.delay_ns;
        loss += d.loss_ppm;
        jitter += d.jitter_ns;
        let mut end = if let Some(fabric) = &mut self.fabric {
            let flow = flow(fabric, src, dst, what);
            let fits = |waits| matches!(what, Carries::Tcp(_)) || !overflows(waits, rng);
            fabric.carry(&flow, bytes, at, now, fits)? + extra
        } else {
            // the last byte reaches the switch's port as the first may already leave it: only a queue adds time
            let end = d.busy_in.max(at.saturating_sub(took)) + took;
            if matches!(what, Carries::Udp(_)) && overflows(end - at, rng) {
                return None;
            }
            d.busy_in = end;
            end + extra
        };
        if let Some((host, times)) = self.crowd(src, dst, what) {
            let busy = &mut self.links[host].busy_crowd;
            *busy = end.max(*busy) + took * times;
            end = *busy;
        }
        if matches!(what, Carries::Udp(_)) && jitter > 0 {
            end += rng.below(jitter);
        }
        if rng.ppm(loss) {
            match what {
                Carries::Udp(_) => return None,
                Carries::Tcp(_) => end += 2 * (self.latency_ns + extra) + rng.below(5 * MS),
            }
        }
        Some(end)
    }
}

/// What switches see of a passage.
fn flow(fabric: &Fabric, src: usize, dst: usize, what: Carries) -> Flow {
    match what {
        Carries::Tcp(connection) => {
            Flow { src, dst, ports: connection as u64, lane: fabric.lane_of(connection) }
        }
        Carries::Udp(route) => Flow { src, dst, ports: DATAGRAMS | u64::from(route), lane: route.into() },
    }
}
