//! The one table of options. `FI_RERAIL_*`, the manual page and `rerail config` are made from it.

use crate::checksum::Checksums;
use crate::policy::Policy;
use rerail_rail::{InOrderPlacement, Kind};
use rerail_wire::hello::LANES_MAX;
use rerail_wire::{FrameHeader, FrameType};
use std::time::Duration;

/// Lanes of a path, at most, where traffic decides: with four a fabric's random routes give 88 % of what there is, with eight 94 %
/// (docs/notes/lanes.md), and each costs a connection.
const LANES_AUTO: u8 = 4;

/// Where a process listens for requests of its user (`rerail migrate`, `rerail paths`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// In the user's own directory for such things.
    Auto,
    /// Nowhere.
    Off,
    /// In this directory.
    Directory(String),
}

/// How bulk travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkMode {
    /// Over the stream of each path, as datagrams over a path that can have none.
    Auto,
    /// Over streams, as datagrams only when no path can have one.
    Tcp,
    /// As datagrams, over streams where datagrams are blocked.
    Udp,
}

/// How processes on one host communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShmMode {
    /// Through memory that both have mapped.
    Rings,
    /// The same; large pieces are copied right out of the sender's memory.
    SingleCopy,
    /// As with processes elsewhere.
    Off,
}

/// See [`Options::silent_probe_max`].
const SILENT_PROBE_MAX: Duration = Duration::from_millis(500);

/// Values of all options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Kinds of rail to use, in order.
    pub kinds: Vec<Kind>,
    /// Interfaces to use as rails, in order; empty: choose.
    pub rails: Vec<String>,
    /// See [`Policy`].
    pub policy: Policy,
    /// Weights of rails by name, for [`Policy::Weighted`]; empty: their speeds.
    pub weights: Vec<(String, u32)>,
    /// Rails by name, each with the one that is to take its traffic over (APM §3.1.1); empty: chosen.
    pub alternates: Vec<(String, String)>,
    /// Rank of this process on its node, for [`Policy::Binding`]; `None`: not known.
    pub local_rank: Option<u32>,
    /// Whether the process listens for requests of its user, and where; see [`Control`].
    pub control: Control,
    /// Largest message that is sent without a grant, in bytes.
    pub eager_bytes_max: usize,
    /// Largest message that is copied when it is sent without a grant, in bytes. Its send is complete at once; a larger
    /// one goes out of the user's memory, and its send is complete when the peer has it.
    pub copied_bytes_max: usize,
    /// Messages of at least this many bytes are striped over all paths; smaller ones go over one as a whole.
    pub stripe_bytes_min: usize,
    /// Lanes of each path, at most, if the rails at both ends have as many.
    pub lanes: u8,
    /// A path begins with one, and has more while traffic pays for them; otherwise with all.
    pub lanes_auto: bool,
    /// See [`BulkMode`].
    pub bulk: BulkMode,
    /// Congestion control of connections: `auto`, `system`, or a name that the kernel knows. The code that opens them
    /// applies it.
    pub tcp_congestion: String,
    /// Size of a fragment, in bytes.
    pub fragment_bytes: usize,
    /// Copies of eager payload kept for one peer until acknowledged, in bytes.
    pub retained_bytes_max: usize,
    /// Payload of one peer that waits for a receive or for an earlier message, in bytes.
    pub unexpected_bytes_max: usize,
    /// Share of the bytes sent to a peer that may be sent a second time on suspicion, in per cent.
    pub hedge_percent: u32,
    /// How long a peer may be unreachable on every path before its operations fail; `None`: for ever.
    pub partition_timeout: Option<Duration>,
    /// How long connections must be refused, on every rail that answers at all, until a peer counts as dead without further
    /// proof; `None`: never.
    pub refused_timeout: Option<Duration>,
    /// Longest interval of fresh streams to a silent peer. No option of the user: RWAPI chooses it, so that the eight refusals that
    /// `refused_timeout` needs come within it.
    pub silent_probe_max: Duration,
    /// How long closing waits for what the peer has not acknowledged.
    pub linger: Duration,
    /// Whether a program that requests delivery-complete as a default of its sends is given it back (hazard H14).
    pub echo_delivery: bool,
    /// Interval of queries on paths without traffic.
    pub idle_probe: Duration,
    /// Most such queries a second, to all peers together.
    pub probe_budget: u32,
    /// What is summed, by rail.
    pub checksum: Checksums,
    /// Faults of a path within `corrupt_window` for which it is quarantined; 0: never.
    pub corrupt_threshold: u32,
    /// See `corrupt_threshold`.
    pub corrupt_window: Duration,
    /// How long a path is held down after its first quarantine.
    pub quarantine: Duration,
    /// Whether everything that is sent is encrypted.
    pub encrypt: bool,
    /// How processes on one host communicate.
    pub shm: ShmMode,
    /// Whether sources stay registered with an adapter when their messages are over.
    pub keep_registrations: bool,
    /// See [`InOrderPlacement`].
    pub in_order_placement: InOrderPlacement,
    /// Off: nothing is protected; a yardstick.
    pub protection: bool,
    /// A stream with bytes in flight and no acknowledgement for this long starts a query.
    pub ack_timeout: Duration,
    /// A stream that stands still for this long, although the peer's engine answers over its path, is replaced.
    pub local_timeout: Duration,
    /// Most unacknowledged bytes of one stream.
    pub window_bytes_max: usize,
    /// Losses of one vfrag on one stream after which its path is taken out of service; 0: never.
    pub retransmit_level: u32,
    /// File to which events are appended, one JSON object a line; empty: none.
    pub events: String,
    /// Faults that this process plants in its own rails, as they were written; empty: none. The transport understands them.
    pub faults: String,
}

impl Default for Options {
    fn default() -> Self {
        let mut o = Self {
            kinds: Vec::new(),
            rails: Vec::new(),
            policy: Policy::Adaptive,
            weights: Vec::new(),
            alternates: Vec::new(),
            local_rank: None,
            control: Control::Auto,
            eager_bytes_max: 0,
            copied_bytes_max: 0,
            tcp_congestion: String::new(),
            stripe_bytes_min: 0,
            lanes: LANES_AUTO,
            lanes_auto: true,
            bulk: BulkMode::Auto,
            fragment_bytes: 0,
            retained_bytes_max: 0,
            unexpected_bytes_max: 0,
            hedge_percent: 0,
            partition_timeout: None,
            refused_timeout: None,
            silent_probe_max: SILENT_PROBE_MAX,
            linger: Duration::ZERO,
            echo_delivery: false,
            idle_probe: Duration::ZERO,
            probe_budget: 0,
            checksum: Checksums::default(),
            corrupt_threshold: 0,
            corrupt_window: Duration::ZERO,
            quarantine: Duration::ZERO,
            encrypt: false,
            shm: ShmMode::Rings,
            keep_registrations: true,
            in_order_placement: InOrderPlacement::Auto,
            protection: true,
            ack_timeout: Duration::ZERO,
            local_timeout: Duration::ZERO,
            window_bytes_max: 0,
            retransmit_level: 0,
            events: String::new(),
            faults: String::new(),
        };
        for row in OPTION_TABLE {
            o.set(row.name, row.default).expect("every default in the table is valid");
        }
        o
    }
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    /// Name in lower case; the variable is `FI_RERAIL_` and this in upper case.
    pub name: &'static str,
    /// Default, as a user would write it.
    pub default: &'static str,
    /// Unit or form of the value.
    pub unit: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// Every option: name, default, unit, help.
pub const OPTION_TABLE: &[OptionRow] = &[
    OptionRow {
        name: "kinds",
        default: "ip",
        unit: Kind::LIST,
        help: "Kinds of rail to use together; their rails are numbered in this order. ip: network interfaces. ib: ports of \
               InfiniBand, with and without IPoIB. roce: RDMA adapters with RoCE v2; roce-nocm: the same without \
               RDMA-CM, for containers that lack it. iwarp: RDMA adapters with iWARP. FI_RERAIL_RAILS selects some. \
               See docs/rdma.md. Rails of one kind connect to rails of the same kind only, so processes \
               that talk to each other need a kind in common. For the other kinds see docs/adding-a-rail.md.",
    },
    OptionRow {
        name: "rails",
        default: "",
        unit: "names of interfaces and adapters, comma-separated",
        help: "What to use as rails: interfaces, in this order, and RDMA adapters by names such as mlx5_0. An interface \
               stands for its adapters too, unless an adapter is named. Empty: every adapter, and every interface that \
               is up and has a usable address, without container bridges and the like; loopback only when there is \
               nothing else.",
    },
    OptionRow {
        name: "policy",
        default: "adaptive",
        unit: "adaptive | even | weighted | round-robin | binding | primary-standby",
        help: "How traffic is spread over the rails. adaptive: each fragment goes to the rail that is expected to \
               finish it first. even: every rail gets the same share of each large message. weighted: shares by \
               FI_RERAIL_WEIGHTS. round-robin: whole messages in turn. binding: one rail for each process, by its \
               rank on the node. primary-standby: one rail carries, the others are ready. Under every policy a \
               broken rail is left out, and used again after the repair.",
    },
    OptionRow {
        name: "weights",
        default: "",
        unit: "interface=weight for every rail, comma-separated, weights 1 to 1000000",
        help: "Shares of the rails under FI_RERAIL_POLICY=weighted. Empty: the link speeds; if one is unknown, \
               equal shares.",
    },
    OptionRow {
        name: "alternate",
        default: "",
        unit: "interface>interface, comma-separated",
        help: "For a rail the one that takes its traffic over when it breaks, for instance eth0>eth1. A rail that is named first \
               behind a > carries nothing until then. Empty: the best of the other rails.",
    },
    OptionRow {
        name: "local_rank",
        default: "",
        unit: "number, 0 to 65535",
        help: "Rank of this process on its node, for FI_RERAIL_POLICY=binding. Empty: from the launcher \
               (MPI_LOCALRANKID, OMPI_COMM_WORLD_LOCAL_RANK, MV2_COMM_WORLD_LOCAL_RANK, PALS_LOCAL_RANKID or \
               SLURM_LOCALID), or a random one if the launcher sets none of them.",
    },
    OptionRow {
        name: "control",
        default: "auto",
        unit: "auto | off | an absolute directory of your own",
        help: "Directory of the socket through which `rerail migrate` and `rerail paths` reach this process; only \
               its own user can connect. auto: rerail in XDG_RUNTIME_DIR, or /tmp/rerail-UID. off: no socket.",
    },
    OptionRow {
        name: "eager_size",
        default: "65536",
        unit: "bytes, 0 to 65536",
        help: "Largest message that is sent without asking the receiver first.",
    },
    OptionRow {
        name: "copy_size",
        default: "16384",
        unit: "bytes, 0 to 65536",
        help: "Largest eager message that is copied when it is sent, so that its send completes at once. Larger \
               ones are sent from the program's memory, which saves the copy; their sends complete when the \
               receiving process has them.",
    },
    OptionRow {
        name: "stripe_threshold",
        default: "65536",
        unit: "bytes",
        help: "Messages of at least this size are striped over all rails. A smaller one goes over one rail as a whole: under \
               `adaptive` over the rail that would have it there first, and over others when many wait; under other policies \
               over the primary one.",
    },
    OptionRow {
        name: "lanes",
        default: "auto",
        unit: "auto | 1 to 64",
        help: "TCP connections side by side on each rail to each peer on another host, every one from a port of its own, so that \
               a fabric that chooses routes by ports (ECMP) may use several. Large messages are spread over them; one that \
               breaks or stands still is replaced while the others go on. auto: one, and up to four while traffic pays for \
               them; each process decides for what it sends. A number: so many, or as many as the peer allows.",
    },
    OptionRow {
        name: "bulk",
        default: "auto",
        unit: "auto | tcp | udp",
        help: "How large messages travel. auto: over TCP, and as paced datagrams over a path that blocks TCP. tcp: \
               over TCP, and as datagrams only when every path blocks TCP. udp: as datagrams, and over TCP only \
               while UDP is blocked or not yet proved to pass.",
    },
    OptionRow {
        name: "tcp_congestion",
        default: "auto",
        unit: "auto | system | a name that the kernel allows",
        help: "Congestion control of TCP connections. auto: the system's; where that is BBR, which throttles links \
               with round trips of microseconds, Reno, until a connection loses more than 0.3 % of its data. \
               system: the system's.",
    },
    OptionRow {
        name: "fragment_size",
        default: "65536",
        unit: "bytes, 4096 to 65536",
        help: "Size of the fragments that large messages are cut into.",
    },
    OptionRow {
        name: "retained_max",
        default: "16777216",
        unit: "bytes per peer, at least 131072",
        help: "Copies of sent payload kept for one peer until it acknowledges; beyond it sends wait for the receiver.",
    },
    OptionRow {
        name: "unexpected_max",
        default: "16777216",
        unit: "bytes per peer, at least 131072",
        help: "Payload from one peer that waits for its receive; beyond it only the envelopes are kept, and the payload \
               stays with the sender.",
    },
    OptionRow {
        name: "hedge",
        default: "10",
        unit: "per cent, 0 to 100",
        help: "Share of the sent bytes that may be sent a second time over another rail once a rail is suspected.",
    },
    OptionRow {
        name: "partition_timeout",
        default: "600",
        unit: "seconds, 0 = never",
        help: "How long a peer may be unreachable over every rail before its operations end in an error.",
    },
    OptionRow {
        name: "refused_timeout",
        default: "3",
        unit: "seconds, 0 = never",
        help: "How long a peer's host must refuse every connection, with no sign of life from the peer, until the \
               peer counts as dead without other proof. Choose it longer than any temporary firewall rule.",
    },
    OptionRow {
        name: "linger",
        default: "30",
        unit: "seconds",
        help: "How long closing an endpoint waits until the peers have acknowledged everything that was sent. Time \
               in which a peer cannot be reached does not count; partition_timeout bounds it. 0: do not wait.",
    },
    OptionRow {
        name: "delivery",
        default: "asked",
        unit: "asked | echo",
        help: "When a send completes for a program that takes its defaults from fi_getinfo, as MPICH does. asked: \
               when it is buffered; FI_DELIVERY_COMPLETE is honoured where an operation or an endpoint asks for it, \
               and not echoed. echo: when the peer has it; larger messages wait for a round trip, up to 16 KiB are \
               injected.",
    },
    OptionRow {
        name: "idle_probe",
        default: "400",
        unit: "milliseconds, 10 to 60000",
        help: "Interval of the queries on paths without traffic: a fault there is found within this time plus about \
               100 ms. With many peers the interval grows: FI_RERAIL_PROBE_BUDGET.",
    },
    OptionRow {
        name: "probe_budget",
        default: "100",
        unit: "queries a second, 1 to 1000000",
        help: "Queries per second that a process spends on paths without traffic, for all peers together. Where \
               FI_RERAIL_IDLE_PROBE would need more (by default with more than 40 paths), the interval grows with \
               the number of paths; of two processes the longer interval counts. A peer that an operation or a \
               posted receive waits for is still queried at FI_RERAIL_IDLE_PROBE, and when one peer on a rail falls \
               silent the others on it are queried at once.",
    },
    OptionRow {
        name: "checksum",
        default: "auto",
        unit: "auto | on | header | off, and interface=mode, comma-separated",
        help: "What CRC32C checksums cover. on: everything. header: headers and control, not the payload of \
               messages. off: nothing. auto: header where the network sums every byte from adapter to adapter by itself \
               (InfiniBand, RoCE), elsewhere on. For single rails: eth0=off,eth1=on (unnamed rails: auto), or header,eth0=off. \
               Both sides of a path announce their setting, and the stronger one applies.",
    },
    OptionRow {
        name: "corrupt_threshold",
        default: "8",
        unit: "faults, 0 to 1000, 0 = never",
        help: "How many failed checksums within FI_RERAIL_CORRUPT_WINDOW put a rail into quarantine on the path to \
               that peer, if another rail works: it is held down, and must carry full-length queries without a \
               fault before it carries traffic. Damaged data is always dropped and sent again.",
    },
    OptionRow {
        name: "corrupt_window",
        default: "10",
        unit: "seconds, 1 to 3600",
        help: "Time within which failed checksums are counted together.",
    },
    OptionRow {
        name: "quarantine",
        default: "2000",
        unit: "milliseconds, 0 to 60000",
        help: "How long a rail is held down after its first corruption; doubled each further time, up to 60 \
               seconds. Every 2 minutes without corruption forgive one time.",
    },
    OptionRow {
        name: "ack_timeout",
        default: "10",
        unit: "milliseconds, 1 to 10000",
        help: "How long data on a stream may remain unacknowledged (at least three round trips) until the rails are \
               queried; three fifths of it for datagrams. The answers to the queries decide what is sent again; the \
               timer alone never does.",
    },
    OptionRow {
        name: "local_timeout",
        default: "100",
        unit: "milliseconds, 20 to 60000",
        help: "How long a connection may stand still (its send queue does not drain, or nothing on it is \
               acknowledged) although the peer answers queries over the same rail, until it is replaced. Slow rails \
               get the time that their rate needs; the time is ten times as long when the peer's kernel has \
               acknowledged everything and only its process has not read it.",
    },
    OptionRow {
        name: "window",
        default: "6291456",
        unit: "bytes, 65536 to 1073741824",
        help: "Most unacknowledged bytes on one rail to one peer. Below it the rail's rate decides.",
    },
    OptionRow {
        name: "encrypt",
        default: "0",
        unit: "0 | 1",
        help: "1: everything that is sent is encrypted and authenticated (AES-256-GCM; keys agreed by X25519 and the secrets in the addresses that \
               the launcher carries). To be set for all processes of a job: one that encrypts and one that does not refuse each other. The \
               tags take the place of FI_RERAIL_CHECKSUM.",
    },
    OptionRow {
        name: "shm",
        default: "on",
        unit: "on | single-copy | off",
        help: "Whether processes of one user on one host exchange through shared memory what they send over the \
               rails. The rails, their names and their failover stay the same. on: through rings that both have \
               mapped. single-copy: the receiver copies pieces of 16 KiB and more from the sender's memory \
               (process_vm_readv) if the kernel permits it (not with kernel.yama.ptrace_scope above 0, nor in a \
               container without that right); slower than the rings in every measurement so far \
               (docs/performance.md). off: through the kernel's sockets. Processes with different values \
               interoperate.",
    },
    OptionRow {
        name: "registration_cache",
        default: "on",
        unit: "on | off",
        help: "Whether memory stays registered with an RDMA adapter after it was sent, so that the same buffer is sent again \
               without registering it. Rerail notices by userfaultfd when the program unmaps, moves or empties such \
               memory; where the system does not allow that, the log says so, and memory is registered for each \
               message. off: always for each message, as a program needs that watches the same memory by a \
               userfaultfd of its own.",
    },
    OptionRow {
        name: "in_order_placement",
        default: "auto",
        unit: "auto | on | off",
        help: "Whether adapters for iWARP write small datagrams of busy peers into memory of the receiver, which finds \
               them by looking there, without a completion. auto: where the receiver's adapter guarantees that it \
               places bytes in order (ibv_query_qp_data_in_order). on: with any adapter. off: this process has no such \
               memory and writes into none. A checksum keeps half a datagram from being taken in any case. Processes \
               with different values interoperate. Kinds with datagrams of their own (RoCE) do not use it.",
    },
    OptionRow {
        name: "protection",
        default: "on",
        unit: "on | off",
        help: "off is for measuring only: it shows what protection costs. No checksums, no queries and probes, no \
               retransmission, no retained large messages, no failover; a rail that breaks ends all operations with \
               its peers in an error (FI_EHOSTUNREACH), and a silent fault goes undetected. Never use it for \
               results that matter. Set it for all processes of a job.",
    },
    OptionRow {
        name: "retransmit_level",
        default: "16",
        unit: "losses, 0 to 1000, 0 = never",
        help: "How many fragments of one vfrag (64 fragments) may need retransmission because of one rail until the \
               rail is taken out of service, if another works. Only fragments on streams count, which lose nothing \
               unless it is damaged.",
    },
    OptionRow {
        name: "events",
        default: "",
        unit: "file name",
        help: "File to which every event (fault, recovery, partition) is appended, one JSON object per line.",
    },
    OptionRow {
        name: "faults",
        default: "",
        unit: "RAIL: FAULT… separated by ;",
        help: "Faults to plant in this process's own rails, for tests: loss=1% corrupt=0.1% dup=1% reorder=1%/2ms \
               delay=5ms stall dark flap=2s/300ms reset=5s, with dir=send or recv, on=datagrams or streams, seed=7, \
               from=5s, until=9s or for=10s. RAIL is an interface or all. For instance eth0: loss=1%, corrupt=0.1%; \
               all: dark from=5s for=1s. `rerail faults` changes them while the process runs.",
    },
];

/// An option that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No row has this name.
    #[error("there is no option \"{0}\"; `rerail config` lists them all")]
    Unknown(String),
    /// The value does not fit the row.
    #[error("FI_RERAIL_{upper}=\"{value}\" is not valid: give {unit}", upper = .name.to_uppercase())]
    Value {
        /// Option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is wanted.
        unit: &'static str,
    },
}

/// The parts of a list that a user wrote.
fn parts(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|s| !s.is_empty())
}

impl Options {
    /// Whether the sender of this frame waits for its acknowledgement, because it has no copy: by our own `copy_size`,
    /// because it does not report its own. An error costs a packet, or a millisecond.
    pub(crate) fn frees_its_sender(&self, f: &FrameHeader) -> bool {
        f.kind == FrameType::Eager && f.len as usize > self.copied_bytes_max
    }

    /// Whether every rail that an option names is one of `rails`.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check_rails(&self, rails: &[&str]) -> Result<(), String> {
        let missing = |variable: &str, name: &str| {
            format!(
                "{variable} names \"{name}\", which is no rail of this process: its rails are {}",
                rails.join(", ")
            )
        };
        if let Some((name, _)) = self.weights.iter().find(|(n, _)| !rails.contains(&n.as_str())) {
            return Err(missing("FI_RERAIL_WEIGHTS", name));
        }
        let unweighted = rails.iter().find(|r| !self.weights.iter().any(|(n, _)| n == *r));
        if let (Some(rail), false) = (unweighted, self.weights.is_empty()) {
            return Err(format!(
                "FI_RERAIL_WEIGHTS gives rail \"{rail}\" no weight: give one to each of {}",
                rails.join(", ")
            ));
        }
        if let Some((name, _)) = self.checksum.rails.iter().find(|(n, _)| !rails.contains(&n.as_str())) {
            return Err(missing("FI_RERAIL_CHECKSUM", name));
        }
        let mut named = self.alternates.iter().flat_map(|(a, b)| [a, b]);
        named
            .find(|n| !rails.contains(&n.as_str()))
            .map_or(Ok(()), |name| Err(missing("FI_RERAIL_ALTERNATE", name)))
    }

    /// Sets the option `name` from what a user wrote.
    ///
    /// # Errors
    /// An unknown name, or a value that does not parse or is out of its range; the sentence names the variable and what
    /// it takes.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let row = OPTION_TABLE
            .iter()
            .find(|r| r.name == name)
            .ok_or_else(|| OptionError::Unknown(name.to_owned()))?;
        let bad = || OptionError::Value { name: row.name, value: value.to_owned(), unit: row.unit };
        let number = |low: u64, high: u64| -> Result<u64, OptionError> {
            let v: u64 = value.trim().parse().map_err(|_| bad())?;
            if (low..=high).contains(&v) { Ok(v) } else { Err(bad()) }
        };
        let size = |low: usize, high: usize| number(low as u64, high as u64).map(|v| v as usize);
        match row.name {
            "kinds" => {
                let mut kinds = Vec::new();
                for part in parts(value) {
                    let kind = Kind::named(part).filter(|kind| !kinds.contains(kind)).ok_or_else(bad)?;
                    kinds.push(kind);
                }
                if kinds.is_empty() {
                    return Err(bad());
                }
                self.kinds = kinds;
            }
            "rails" => {
                self.rails = parts(value).map(str::to_owned).collect();
            }
            "policy" => {
                self.policy = Policy::named(value.trim()).ok_or_else(bad)?;
            }
            "weights" => {
                let mut weights: Vec<(String, u32)> = Vec::new();
                for part in parts(value) {
                    let (rail, weight) = part.split_once('=').ok_or_else(bad)?;
                    let weight: u32 = weight.trim().parse().map_err(|_| bad())?;
                    let rail = rail.trim();
                    let twice = weights.iter().any(|(r, _)| r == rail);
                    if rail.is_empty() || twice || !(1..=1_000_000).contains(&weight) {
                        return Err(bad());
                    }
                    weights.push((rail.to_owned(), weight));
                }
                self.weights = weights;
            }
            "alternate" => {
                let mut pairs: Vec<(String, String)> = Vec::new();
                for part in parts(value) {
                    let chain: Vec<&str> = part.split('>').map(str::trim).collect();
                    if chain.len() < 2 || chain.contains(&"") {
                        return Err(bad());
                    }
                    for pair in chain.windows(2) {
                        if pair[0] == pair[1] || pairs.iter().any(|(of, _)| of == pair[0]) {
                            return Err(bad());
                        }
                        pairs.push((pair[0].to_owned(), pair[1].to_owned()));
                    }
                }
                self.alternates = pairs;
            }
            "local_rank" => {
                self.local_rank = match value.trim() {
                    "" => None,
                    _ => Some(number(0, 65_535)? as u32),
                };
            }
            "control" => {
                self.control = match value.trim() {
                    "auto" => Control::Auto,
                    "off" => Control::Off,
                    d if d.starts_with('/') => Control::Directory(d.to_owned()),
                    _ => return Err(bad()),
                };
            }
            "eager_size" => self.eager_bytes_max = size(0, 65536)?,
            "copy_size" => self.copied_bytes_max = size(0, 65536)?,
            "tcp_congestion" => {
                let name = value.trim();
                // as long as the kernel's own names may be
                let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
                if name.is_empty() || name.len() > 15 || !name.bytes().all(plain) {
                    return Err(bad());
                }
                self.tcp_congestion = name.to_owned();
            }
            "lanes" => {
                (self.lanes, self.lanes_auto) = match value.trim() {
                    "auto" => (LANES_AUTO, true),
                    _ => (number(1, u64::from(LANES_MAX))? as u8, false),
                };
            }
            "stripe_threshold" => self.stripe_bytes_min = size(0, usize::MAX)?,
            "bulk" => {
                self.bulk = match value.trim() {
                    "auto" => BulkMode::Auto,
                    "tcp" => BulkMode::Tcp,
                    "udp" => BulkMode::Udp,
                    _ => return Err(bad()),
                };
            }
            "fragment_size" => self.fragment_bytes = size(4096, 65536)?,
            "retained_max" => self.retained_bytes_max = size(131_072, usize::MAX)?,
            "unexpected_max" => self.unexpected_bytes_max = size(131_072, usize::MAX)?,
            "hedge" => self.hedge_percent = number(0, 100)? as u32,
            "partition_timeout" => {
                let s = number(0, 1 << 32)?;
                self.partition_timeout = (s > 0).then(|| Duration::from_secs(s));
            }
            "refused_timeout" => {
                let s = number(0, 1 << 32)?;
                self.refused_timeout = (s > 0).then(|| Duration::from_secs(s));
            }
            "delivery" => {
                self.echo_delivery = match value.trim() {
                    "asked" => false,
                    "echo" => true,
                    _ => return Err(bad()),
                };
            }
            "linger" => self.linger = Duration::from_secs(number(0, 1 << 32)?),
            "idle_probe" => self.idle_probe = Duration::from_millis(number(10, 60_000)?),
            "probe_budget" => self.probe_budget = number(1, 1_000_000)? as u32,
            "checksum" => self.checksum = Checksums::parse(value).ok_or_else(bad)?,
            "corrupt_threshold" => self.corrupt_threshold = number(0, 1000)? as u32,
            "corrupt_window" => self.corrupt_window = Duration::from_secs(number(1, 3600)?),
            "quarantine" => self.quarantine = Duration::from_millis(number(0, 60_000)?),
            "ack_timeout" => self.ack_timeout = Duration::from_millis(number(1, 10_000)?),
            "local_timeout" => self.local_timeout = Duration::from_millis(number(20, 60_000)?),
            "window" => self.window_bytes_max = size(65_536, 1 << 30)?,
            "encrypt" => {
                self.encrypt = match value.trim() {
                    "0" => false,
                    "1" => true,
                    _ => return Err(bad()),
                };
            }
            "shm" => {
                self.shm = match value.trim() {
                    "on" => ShmMode::Rings,
                    "single-copy" => ShmMode::SingleCopy,
                    "off" => ShmMode::Off,
                    _ => return Err(bad()),
                };
            }
            "registration_cache" => {
                self.keep_registrations = match value.trim() {
                    "on" => true,
                    "off" => false,
                    _ => return Err(bad()),
                };
            }
            "in_order_placement" => {
                self.in_order_placement = match value.trim() {
                    "auto" => InOrderPlacement::Auto,
                    "on" => InOrderPlacement::On,
                    "off" => InOrderPlacement::Off,
                    _ => return Err(bad()),
                };
            }
            "protection" => {
                self.protection = match value.trim() {
                    "on" => true,
                    "off" => false,
                    _ => return Err(bad()),
                };
            }
            "retransmit_level" => self.retransmit_level = number(0, 1000)? as u32,
            "events" => self.events = value.to_owned(),
            "faults" => self.faults = value.trim().to_owned(),
            _ => unreachable!("every row of the table has an arm"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_valid_default_and_help() {
        let _ = Options::default();
        for r in OPTION_TABLE {
            assert!(!r.help.is_empty() && !r.unit.is_empty());
        }
    }

    #[test]
    fn wrong_values_name_the_variable_and_what_it_takes() {
        let mut o = Options::default();
        let e = o.set("stripe_threshold", "abc").unwrap_err().to_string();
        assert!(e.contains("FI_RERAIL_STRIPE_THRESHOLD") && e.contains("bytes"), "{e}");
        assert!(o.set("hedge", "101").is_err());
        assert!(o.set("nosuch", "1").is_err());
        assert!(o.set("policy", "fast").unwrap_err().to_string().contains("adaptive | even"));
    }

    #[test]
    fn lists_of_rails_are_read_with_blanks_and_refused_with_gaps() {
        let mut o = Options::default();
        o.set("weights", " eth0=3, eth1 = 1 ").unwrap();
        assert_eq!(o.weights, [("eth0".to_owned(), 3), ("eth1".to_owned(), 1)]);
        o.set("alternate", "eth0>eth1>eth2, eth3 > eth0").unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(o.alternates, [pair("eth0", "eth1"), pair("eth1", "eth2"), pair("eth3", "eth0")]);
        for (name, wrong) in [
            ("weights", "eth0"),
            ("weights", "eth0=0"),
            ("weights", "eth0=1,eth0=2"),
            ("weights", "=1"),
            ("alternate", "eth0"),
            ("alternate", "eth0>"),
            ("alternate", "eth0>eth0"),
            ("alternate", "eth0>eth1,eth0>eth2"),
            ("local_rank", "-1"),
            ("control", "here"),
            ("checksum", "maybe"),
            ("corrupt_window", "0"),
            ("bulk", "quic"),
            ("protection", "0"),
            ("registration_cache", "1"),
            ("in_order_placement", "yes"),
            ("encrypt", "yes"),
            ("shm", "1"),
            ("kinds", "ip,verbs"),
            ("kinds", "ip,ip"),
            ("kinds", " , "),
            ("window", "1000"),
        ] {
            assert!(o.set(name, wrong).is_err(), "{name}={wrong}");
        }
    }

    #[test]
    fn kinds_are_read_in_order_and_a_wrong_one_is_answered_with_those_there_are() {
        let mut o = Options::default();
        assert_eq!(o.kinds, [Kind::IP]);
        o.set("kinds", " example, ip").unwrap();
        assert_eq!(o.kinds, [Kind::EXAMPLE, Kind::IP]);
        let why = o.set("kinds", "verbs").unwrap_err().to_string();
        assert_eq!(why, format!("FI_RERAIL_KINDS=\"verbs\" is not valid: give {}", Kind::LIST));
    }

    #[test]
    fn every_policy_is_known_by_its_name_and_the_table_lists_it() {
        let row = OPTION_TABLE.iter().find(|r| r.name == "policy").unwrap();
        let names: Vec<&str> = Policy::NAMES.iter().map(|n| n.0).collect();
        assert_eq!(row.unit, names.join(" | "));
        let mut o = Options::default();
        for (name, policy) in Policy::NAMES {
            o.set("policy", name).unwrap();
            assert_eq!((o.policy, policy.name()), (*policy, *name));
            assert!(row.help.contains(name), "{name} is explained");
        }
    }
}
