//! `rerail-trial bench`: Rerail beside other transports, measured in labs on this machine. docs/performance.md has figures of some of the sets.
//!
//! Each set is one run of `rerail bench`, so what it compares took turns. Tables go to the terminal, figures and pictures to `target/bench`.

use crate::lab;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use xtask::mpi::Mpi;
use xtask::workspace::{rerail, run as run_command, state_dir, target_dir};
use xtask::{build, setup};

/// Rerail against sockets and the MPIs' own transports: tables, figures and pictures in target/bench
#[derive(Debug, clap::Args)]
pub struct Options {
    /// mpich, openmpi or intel; may be repeated [default: all three]
    #[arg(long = "mpi", value_name = "NAME", value_parser = measurable)]
    mpis: Vec<Mpi>,
    /// Only the sets whose name contains NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Turns of each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// With what was built last
    #[arg(long)]
    no_build: bool,
    /// Print the names of the sets
    #[arg(long)]
    list: bool,
}

fn measurable(name: &str) -> Result<Mpi, String> {
    let found = Mpi::WHEELS.into_iter().find(|mpi| mpi.name() == name);
    found.ok_or_else(|| format!("choose from {}", Mpi::WHEELS.map(Mpi::name).join(", ")))
}

/// One run of `rerail bench`.
struct Set {
    name: &'static str,
    /// Rails, with commas.
    rails: &'static str,
    tests: &'static str,
    sizes: &'static str,
    /// Peers; `best` stands for all transports that the MPI has, `near` for libfabric's shared memory, where it has that.
    peers: &'static str,
    more: &'static [&'static str],
    /// Variables for all contenders.
    env: &'static [(&'static str, &'static str)],
}

/// What most sets have in common.
const PLAIN: Set = Set { name: "", rails: "", tests: "", sizes: "", peers: "best", more: &[], env: &[] };

/// What can be measured. Not every set has its figures in docs/performance.md yet.
const SETS: &[Set] = &[
    Set {
        name: "one-rail",
        rails: "unshaped",
        tests: "latency,bandwidth,bidirectional,rate",
        sizes: "",
        peers: "best,sockets",
        ..PLAIN
    },
    Set {
        name: "one-rail-cubic",
        rails: "unshaped",
        tests: "bandwidth",
        sizes: "64K,1M,4M",
        peers: "best,sockets",
        more: &["--congctl", "cubic"],
        ..PLAIN
    },
    Set {
        name: "round-trip",
        rails: "unshaped",
        tests: "latency",
        sizes: "8,1K,2K,4K,8K,16K,32K,64K,256K,1M",
        peers: "best,sockets",
        more: &["--congctl", "cubic"],
        ..PLAIN
    },
    Set {
        name: "four-rails",
        rails: "unshaped,unshaped,unshaped,unshaped",
        tests: "latency,bandwidth",
        sizes: "8,1M",
        peers: "best",
        ..PLAIN
    },
    Set {
        name: "protection",
        rails: "unshaped",
        tests: "latency,bandwidth",
        sizes: "8,64K,1M",
        peers: "rerail:FI_RERAIL_PROTECTION=off,rerail:FI_RERAIL_CHECKSUM=off",
        ..PLAIN
    },
    Set {
        name: "shaped",
        rails: "1gbit,1gbit",
        tests: "bandwidth",
        sizes: "64K,1M,4M",
        peers: "best",
        ..PLAIN
    },
    Set {
        name: "unequal",
        rails: "2gbit,200mbit",
        tests: "bandwidth",
        sizes: "64K,1M,4M",
        peers: "best",
        ..PLAIN
    },
    Set { name: "overlap", rails: "1gbit,1gbit", tests: "overlap", sizes: "", ..PLAIN },
    Set {
        name: "failover",
        rails: "1gbit,1gbit",
        tests: "failover",
        sizes: "",
        peers: "best",
        more: &["--patience", "90"],
        ..PLAIN
    },
    // RWAPI's paper, section 4, and through cuts
    Set {
        name: "rwapi",
        rails: "unshaped,unshaped",
        tests: "all",
        sizes: "",
        peers: "own,best,cut",
        more: &["--rwapi"],
        ..PLAIN
    },
    // Every link of both leaves is dark for a second, one after the other, behind ports that stay up: what its routes stand still.
    Set {
        name: "routes",
        rails: "unshaped",
        tests: "failover",
        sizes: "256K",
        peers: "tcp,rerail:FI_RERAIL_LANES=1,rerail:FI_RERAIL_LANES=4",
        more: &[
            "--fabric",
            "leaf-spine:2x4,200mbit",
            "--stream-s",
            "19",
            "--schedule",
            "2s cut rail0/leaf0-spine0 dark; 3s heal rail0; 4s cut rail0/leaf0-spine1 dark; 5s heal rail0; \
             6s cut rail0/leaf0-spine2 dark; 7s heal rail0; 8s cut rail0/leaf0-spine3 dark; 9s heal rail0; \
             10s cut rail0/leaf1-spine0 dark; 11s heal rail0; 12s cut rail0/leaf1-spine1 dark; 13s heal rail0; \
             14s cut rail0/leaf1-spine2 dark; 15s heal rail0; 16s cut rail0/leaf1-spine3 dark; 17s heal rail0",
        ],
        ..PLAIN
    },
    Set {
        name: "collectives",
        rails: "unshaped,unshaped",
        tests: "barrier,bcast,allreduce,alltoall",
        sizes: "",
        peers: "best",
        more: &["-n", "4"],
        ..PLAIN
    },
    Set {
        name: "adapters",
        rails: "unshaped",
        tests: "latency,bandwidth",
        sizes: "8,1M",
        peers: "verbs,rerail:FI_RERAIL_CHECKSUM=on",
        more: &["--rdma", "roce", "--ms", "2000"],
        ..PLAIN
    },
    // MN-uDAPL, figures 15, 17 and 21: one rail over an adapter and one over an interface; each is lost for a while, then both. The
    // rates are below what emulation can carry, so that they and not the processor make the shape.
    Set {
        name: "mixture",
        rails: "80mbit,40mbit",
        tests: "failover",
        sizes: "64K",
        peers: "none",
        more: &[
            "--rdma",
            "roce",
            "--stream-s",
            "34",
            "--schedule",
            "5s cut rail0 dark; 10s heal rail0; 15s cut rail1 dark; 20s heal rail1; 25s cut all down; 28s heal all",
        ],
        env: &[("FI_RERAIL_KINDS", "ip,roce"), ("FI_RERAIL_RAILS", "rxe0,rail1")],
    },
    Set {
        name: "one-node",
        rails: "unshaped",
        tests: "latency,rate,bandwidth",
        sizes: "8,64,64K,1M,4M",
        peers: "own,near,rerail:FI_RERAIL_SHM=off",
        more: &["--nodes", "1", "--inside-nodes"],
        ..PLAIN
    },
];

/// Prepares and measures.
pub fn run(options: &Options) -> Result<()> {
    let Options { only, rounds, .. } = options;
    if options.list {
        SETS.iter().for_each(|set| println!("{}", set.name));
        return Ok(());
    }
    let mpis = if options.mpis.is_empty() { &Mpi::WHEELS[..] } else { &options.mpis };
    let sets: Vec<&Set> = SETS
        .iter()
        .filter(|set| only.is_empty() || only.iter().any(|o| set.name.contains(o.as_str())))
        .collect();
    if sets.is_empty() {
        bail!("no set is called so; `cargo xtask bench --list` names them");
    }
    setup::run()?;
    if !options.no_build {
        build::for_lab(true)?;
    }
    if let Some(reason) = lab::why_impossible(&state_dir().join("bench-probe")) {
        bail!("measuring needs the lab, and this machine cannot have one: {reason}");
    }
    for &mpi in mpis {
        for set in &sets {
            println!("\n## {} ({})\n", set.name, name(mpi));
            measure(mpi, set, *rounds, 200)?;
        }
    }
    Ok(())
}

/// A short run over one rail, against libfabric's tcp and plain sockets; returns its figures as `rerail bench --json` writes them.
pub fn short(mpi: Mpi, rounds: u32, ms: u32) -> Result<Value> {
    let set = Set {
        name: "short",
        rails: "unshaped",
        tests: "latency,bandwidth,rate",
        sizes: "8,1M",
        peers: "tcp,sockets",
        ..PLAIN
    };
    measure(mpi, &set, rounds, ms)
}

/// A stream of two seconds over two rails, one of which is dark for a while; returns the figures and the timeline.
pub fn short_failover(mpi: Mpi) -> Result<Value> {
    let set = Set {
        name: "short-failover",
        rails: "1gbit,1gbit",
        tests: "failover",
        sizes: "",
        peers: "none",
        more: &[
            "--stream-s",
            "2",
            "--schedule",
            "600ms cut rail1 dark; 1200ms heal rail1",
            "--patience",
            "60",
        ],
        ..PLAIN
    };
    measure(mpi, &set, 1, 50)
}

fn name(mpi: Mpi) -> &'static str {
    match mpi {
        Mpi::Mpich => "mpich",
        Mpi::Open5 | Mpi::Open4 => "openmpi",
        Mpi::Intel => "intel",
    }
}

fn peers(mpi: Mpi, peers: &str) -> String {
    let best = match mpi {
        Mpi::Mpich => "tcp,ucx",
        Mpi::Open5 | Mpi::Open4 => "ob1,tcp,ucx",
        Mpi::Intel => "tcp",
    };
    // Open MPI's wheel has no shm of libfabric, and Intel MPI crashes with its own.
    let near = if mpi == Mpi::Mpich { "shm" } else { "none" };
    peers.replace("best", best).replace("near", near)
}

/// One set; returns its figures.
fn measure(mpi: Mpi, set: &Set, rounds: u32, ms: u32) -> Result<Value> {
    let dir = target_dir().join("bench").join(format!("{}-{}", set.name, name(mpi)));
    let json = dir.join("figures.json");
    let mut command = Command::new(rerail());
    command.args(["bench", "--lab", name(mpi), "--mpi-prefix"]).arg(mpi.prefix());
    command.args(["--rounds", &rounds.to_string(), "--test", set.tests]);
    if !set.more.contains(&"--ms") {
        command.args(["--ms", &ms.to_string()]);
    }
    command.args(["--peer", &peers(mpi, set.peers)]).args(set.more);
    if !set.sizes.is_empty() {
        command.args(["--size", set.sizes]);
    }
    command.envs(set.env.iter().copied());
    for rail in set.rails.split(',') {
        command.args(["--rail", rail]);
    }
    command.arg("--mpicc").arg(mpi.compiler().0);
    command.arg("--dir").arg(dir.join("program")).arg("--json").arg(&json).arg("--svg").arg(&dir);
    if set.tests == "failover" {
        // that another transport does not outlive it is a result
        let status = command.status().context("could not start rerail bench")?;
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("rerail bench ended with {status}");
        }
    } else {
        run_command(&mut command)?;
    }
    read(&json)
}

fn read(json: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(json).with_context(|| format!("could not read {}", json.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", json.display()))
}
