//! A case: a seed, and what was cut off the run it means. Owns: the text of a case, so that a failure can be kept and replayed.
//!
//! A seed draws a plan: processes, networks, options, traffic, faults. A case takes parts of that plan away without disturbing the
//! rest: faults keep their places in the order (a muted one is begun and does nothing), so those that stay come when they
//! came before. What follows from the traffic may change, because later draws depend on what happened; that is why every cut
//! is tried ([`crate::shrink`]) and never assumed to fail.

use crate::draw::config_of;
use crate::ordinals::Ordinals;
use crate::world::one_lane;
use crate::world::{CLOSE_NS, Config};
use rerail_core::{Policy, Remedies};
use std::fmt;
use std::str::FromStr;

/// Something that makes a world less peculiar: its name, and how.
type Plain = (&'static str, fn(&mut Config));

/// What can be made plain.
pub const PLAIN: &[Plain] = &[
    ("kill", |c| c.kill = None),
    ("aim", |c| c.aim = None),
    ("second-aim", |c| c.aim.iter_mut().for_each(|a| a.then = None)),
    ("all-send", |c| c.alone = None),
    ("exit", |c| c.exit = None),
    ("no-leaves", |c| (c.leaves, c.close_ns) = (None, CLOSE_NS)),
    ("two-sided", |c| c.one_sided = None),
    ("no-groups", |c| c.collective = None),
    ("any-order", |c| c.strict = false),
    ("leave-early", |c| c.leave_under_faults_ns = 0),
    ("compute", |c| c.traffic.compute = 0),
    ("migrate", |c| c.traffic.migrate = 0),
    ("peek", |c| c.traffic.peek = 0),
    ("cancel", |c| c.traffic.cancel = 0),
    ("multi", |c| c.traffic.multi = 0),
    ("inject", |c| c.traffic.inject = 0),
    ("delivery", |c| c.traffic.delivery = 0),
    ("no-match", |c| c.traffic.matched = 0),
    ("pieces", |c| c.traffic.pieces = 0),
    ("short", |c| c.traffic.short = 0),
    ("wild", |c| c.traffic.wild = 0),
    ("directed", |c| c.traffic.directed = 0),
    ("lazy", |c| c.traffic.lazy = 0),
    ("tagged-only", |c| c.traffic.tagged = 100),
    ("one-class", |c| c.traffic.classes = 1),
    ("no-large", |c| (c.traffic.sizes[4], c.traffic.sizes[5]) = (0, 0)),
    ("no-small", |c| (c.traffic.sizes[0], c.traffic.sizes[1], c.traffic.sizes[2]) = (0, 0, 1)),
    ("send-one", |c| c.traffic.burst = 1),
    ("few-waiting", |c| c.traffic.window = c.traffic.window.min(8)),
    ("whole-reads", |c| c.chop = 0),
    ("true-clocks", |c| c.drift_ppm = 0),
    ("large-queues", |c| c.cq_size = 4096),
    ("one-queue", |c| c.one_cq = true),
    ("large-buffers", |c| (c.sndbuf, c.rcvbuf) = (512 * 1024, 512 * 1024)),
    ("all-summed", |c| c.sums_end_to_end = false),
    ("no-migration", |c| c.devices.clear()),
    ("equal-networks", |c| {
        for n in &mut c.nets {
            (n.latency_ns, n.mbps, n.mtu) = (20_000, 10_000, 1500);
        }
    }),
    ("adaptive", |c| c.options.iter_mut().for_each(|o| o.policy = Policy::Adaptive)),
    ("default-options", |c| c.options.iter_mut().for_each(|o| *o = one_lane())),
];

/// A seed and its cuts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// Frames after which the first phase ends.
    pub frames: u64,
    /// Remedy that is switched off.
    pub without: Option<&'static str>,
    /// Processes that stay, by their place in the drawn plan.
    pub processes: Option<Vec<usize>>,
    /// Networks that stay.
    pub networks: Option<Vec<usize>>,
    /// Endpoints of each process.
    pub endpoints: Option<usize>,
    /// Messages after which nothing more is sent.
    pub messages: Option<u64>,
    /// Names of [`PLAIN`].
    pub plain: Vec<&'static str>,
    /// Faults that do nothing.
    pub skip_faults: Ordinals,
    /// Sends that are drawn and not made.
    pub skip_sends: Ordinals,
}

impl Case {
    /// All of a seed.
    pub fn whole(seed: u64, frames: u64, without: Option<&'static str>) -> Self {
        Self {
            seed,
            frames,
            without,
            processes: None,
            networks: None,
            endpoints: None,
            messages: None,
            plain: Vec::new(),
            skip_faults: Ordinals::default(),
            skip_sends: Ordinals::default(),
        }
    }

    /// Remedies that are on.
    pub fn remedies(&self) -> Remedies {
        self.without.map_or_else(Remedies::default, crate::remedy::without)
    }

    /// The world it means.
    pub fn config(&self) -> Config {
        let mut c = config_of(self.seed, self.remedies());
        if let Some(keep) = &self.processes {
            let keep: Vec<usize> = keep.iter().copied().filter(|&p| p < c.procs.len()).collect();
            if keep.len() >= 2 {
                let place = |(p, ns): (usize, u64)| Some((keep.iter().position(|&k| k == p)?, ns));
                (c.kill, c.exit) = (c.kill.and_then(place), c.exit.and_then(place));
                c.leaves = c.leaves.and_then(place);
                c.alone = c.alone.and_then(|p| Some(place((p, 0))?.0));
                c.options = keep.iter().map(|&p| c.options[p.min(c.options.len() - 1)].clone()).collect();
                c.procs = keep.iter().map(|&p| c.procs[p]).collect();
            }
        }
        if let Some(keep) = &self.networks {
            for attached in &mut c.hosts {
                let less: Vec<usize> = attached.iter().copied().filter(|n| keep.contains(n)).collect();
                if !less.is_empty() {
                    *attached = less;
                }
            }
            let name = |n: &String| keep.iter().any(|k| *n == format!("net{k}"));
            for o in &mut c.options {
                o.weights.retain(|(n, _)| name(n));
                o.alternates.retain(|(a, b)| name(a) && name(b));
                o.checksum.rails.retain(|(n, _)| name(n));
            }
        }
        if let Some(n) = self.endpoints {
            c.eps = n.clamp(1, c.eps);
        }
        for name in &self.plain {
            if let Some((_, f)) = PLAIN.iter().find(|p| p.0 == *name) {
                f(&mut c);
            }
        }
        c.messages_max = self.messages.unwrap_or(u64::MAX);
        c.skip_faults = self.skip_faults.clone();
        c.skip_sends = self.skip_sends.clone();
        c
    }
}

fn list(v: &[usize]) -> String {
    v.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "frames {}", self.frames)?;
        if let Some(w) = self.without {
            writeln!(f, "without {w}")?;
        }
        if let Some(v) = &self.processes {
            writeln!(f, "processes {}", list(v))?;
        }
        if let Some(v) = &self.networks {
            writeln!(f, "networks {}", list(v))?;
        }
        if let Some(n) = self.endpoints {
            writeln!(f, "endpoints {n}")?;
        }
        if let Some(n) = self.messages {
            writeln!(f, "messages {n}")?;
        }
        if !self.plain.is_empty() {
            writeln!(f, "plain {}", self.plain.join(" "))?;
        }
        if !self.skip_faults.is_empty() {
            writeln!(f, "skip-faults {}", self.skip_faults)?;
        }
        if !self.skip_sends.is_empty() {
            writeln!(f, "skip-sends {}", self.skip_sends)?;
        }
        Ok(())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut case = Case::whole(0, crate::run::FRAMES_MIN, None);
        let mut seen = false;
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let number = |s: &str| s.parse::<u64>().map_err(|_| format!("{word}: \"{s}\" is not a number"));
            let numbers = || rest.split(' ').map(|s| number(s).map(|n| n as usize)).collect::<Result<_, _>>();
            match word {
                "seed" => {
                    case.seed = number(rest)?;
                    seen = true;
                }
                "frames" => case.frames = number(rest)?,
                "without" => {
                    let name = Remedies::NAMES.iter().find(|n| **n == rest);
                    case.without = Some(name.ok_or_else(|| format!("no remedy is called {rest}"))?);
                }
                "processes" => case.processes = Some(numbers()?),
                "networks" => case.networks = Some(numbers()?),
                "endpoints" => case.endpoints = Some(number(rest)? as usize),
                "messages" => case.messages = Some(number(rest)?),
                "plain" => {
                    for name in rest.split(' ') {
                        let known = PLAIN.iter().find(|p| p.0 == name);
                        case.plain.push(known.ok_or_else(|| format!("nothing plain is called {name}"))?.0);
                    }
                }
                "skip-faults" => case.skip_faults = rest.parse()?,
                "skip-sends" => case.skip_sends = rest.parse()?,
                _ => return Err(format!("a case has no line \"{word}\"")),
            }
        }
        if seen { Ok(case) } else { Err("a case names its seed: seed N".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_join_and_tell_what_is_missing() {
        let o: Ordinals = "0-3,7".parse().unwrap();
        assert_eq!(o.with(4, 7).to_string(), "0-7");
        assert_eq!(o.with(9, 9), o);
        assert_eq!(o.missing_below(9), [4, 5, 6, 8]);
        assert_eq!(Ordinals::of(vec![7, 1, 2, 0, 3]), o);
        assert!("1-x".parse::<Ordinals>().is_err());
    }

    #[test]
    fn a_case_survives_its_text() {
        let case = Case {
            processes: Some(vec![0, 2]),
            networks: Some(vec![1]),
            endpoints: Some(1),
            messages: Some(33),
            plain: vec!["peek", "kill"],
            skip_faults: Ordinals::of(vec![1, 2, 5]),
            skip_sends: Ordinals::of(vec![0]),
            ..Case::whole(17, 500, Some("watermarks"))
        };
        let text = format!("# why it was kept\n{case}");
        assert_eq!(text.parse::<Case>(), Ok(case));
        assert!("frames 3".parse::<Case>().is_err(), "a case without a seed is none");
        assert!("seed 1\nplain nonsense".parse::<Case>().is_err());
    }
}
