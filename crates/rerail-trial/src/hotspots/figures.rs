//! What the simulator has measured. Owns: the reading of its lines.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// One step with one number of lanes.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Lanes for each rail.
    pub lanes: u8,
    /// A displacement, a draw, or the senders of an incast.
    pub step: u32,
    /// Megabytes per second of a process.
    pub mean: f64,
    /// The same, of the slowest.
    pub slowest: f64,
    /// Connections of all processes.
    pub connections: u32,
    /// Those of them that took the place of another.
    pub replaced: u32,
    /// Times that a lane left a crowded route.
    pub moved: u32,
    /// Seconds that the simulation took.
    pub seconds: f64,
    /// Share of its capacity that each link carried, by its name.
    pub loads: Vec<(String, f64)>,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Megabytes per second of a pair that is alone.
    pub alone: f64,
    /// The number of a step is that of the senders to one receiver.
    pub incast: bool,
    steps: BTreeMap<(u8, u32), Step>,
}

/// What came of one number of lanes, over all steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Sum {
    /// Lanes for each rail.
    pub lanes: u8,
    /// Megabytes per second of a process, mean over the steps.
    pub mean: f64,
    /// The slowest process of all steps.
    pub slowest: f64,
    /// Mean over the steps of the share of what would be best.
    pub share: f64,
    /// Steps in which the mean is lower than with one lane by more than [`SLOWER`].
    pub slower: Option<usize>,
    /// Mean compared with one lane.
    pub ratio: Option<f64>,
    /// Connections of all processes, in the step that has the most.
    pub connections: u32,
    /// Connections that took the place of another, over all steps.
    pub replaced: u32,
    /// Times that a lane left a crowded route, over all steps.
    pub moved: u32,
}

/// Two steps differ when they do by more than this share: a step ends a little earlier or later with each seed.
pub const SLOWER: f64 = 0.01;

impl Figures {
    /// Nothing yet.
    pub fn new(incast: bool) -> Self {
        Self { incast, ..Self::default() }
    }

    /// Takes a line; returns the step that it reports, if it does.
    pub fn take(&mut self, line: &str) -> Result<Option<&Step>> {
        let words: Vec<&str> = line.split('\t').collect();
        let wrong = || format!("the simulator printed {line:?}");
        match words[..] {
            ["alone", rate] => self.alone = rate.parse().with_context(wrong)?,
            ["step", lanes, step, mean, slowest, connections, replaced, moved, seconds] => {
                let step = Step {
                    lanes: lanes.parse().with_context(wrong)?,
                    step: step.parse().with_context(wrong)?,
                    mean: mean.parse().with_context(wrong)?,
                    slowest: slowest.parse().with_context(wrong)?,
                    connections: connections.parse().with_context(wrong)?,
                    replaced: replaced.parse().with_context(wrong)?,
                    moved: moved.parse().with_context(wrong)?,
                    seconds: seconds.parse().with_context(wrong)?,
                    loads: Vec::new(),
                };
                let key = (step.lanes, step.step);
                self.steps.insert(key, step);
                return Ok(self.steps.get(&key));
            }
            ["link", lanes, step, name, load] => {
                let key = (lanes.parse().with_context(wrong)?, step.parse().with_context(wrong)?);
                let step = self.steps.get_mut(&key).with_context(wrong)?;
                step.loads.push((name.to_owned(), load.parse().with_context(wrong)?));
            }
            _ => bail!(wrong()),
        }
        Ok(None)
    }

    /// The numbers of lanes, in order.
    pub fn lanes(&self) -> Vec<u8> {
        let mut lanes: Vec<u8> = self.steps.keys().map(|key| key.0).collect();
        lanes.dedup();
        lanes
    }

    /// The steps with a number of lanes, in order.
    pub fn of_lanes(&self, lanes: u8) -> impl Iterator<Item = &Step> {
        self.steps.range((lanes, 0)..=(lanes, u32::MAX)).map(|(_, step)| step)
    }

    /// One step.
    pub fn step(&self, lanes: u8, step: u32) -> Option<&Step> {
        self.steps.get(&(lanes, step))
    }

    /// What a process would have in a step if it were alone; of an incast its part of the receiver's link.
    pub fn best(&self, step: u32) -> f64 {
        if self.incast { self.alone / f64::from(step.max(1)) } else { self.alone }
    }

    /// One for each number of lanes.
    pub fn sums(&self) -> Vec<Sum> {
        let mean_of = |lanes: u8, f: &dyn Fn(&Step) -> f64| {
            self.of_lanes(lanes).map(f).sum::<f64>() / self.of_lanes(lanes).count().max(1) as f64
        };
        let one = self.lanes().contains(&1).then(|| mean_of(1, &|s| s.mean));
        let is_slower =
            |s: &&Step| self.step(1, s.step).is_some_and(|one| s.mean < one.mean * (1.0 - SLOWER));
        let sum = |lanes: u8| Sum {
            lanes,
            mean: mean_of(lanes, &|s| s.mean),
            slowest: self.of_lanes(lanes).map(|s| s.slowest).fold(f64::INFINITY, f64::min),
            share: mean_of(lanes, &|s| s.mean / self.best(s.step)),
            slower: one.map(|_| self.of_lanes(lanes).filter(is_slower).count()),
            ratio: one.map(|one| mean_of(lanes, &|s| s.mean) / one),
            connections: self.of_lanes(lanes).map(|s| s.connections).max().unwrap_or(0),
            replaced: self.of_lanes(lanes).map(|s| s.replaced).sum(),
            moved: self.of_lanes(lanes).map(|s| s.moved).sum(),
        };
        self.lanes().into_iter().map(sum).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two steps with one lane and with four.
    pub fn sample() -> Figures {
        let mut f = Figures::new(false);
        let lines = "alone\t100\nstep\t4\t2\t90.0\t80.0\t16\t3\t1\t0.5\nlink\t4\t2\tleaf0>spine1.0\t0.9\n\
             step\t1\t1\t100.0\t99.0\t4\t0\t0\t0.5\nstep\t1\t2\t50.0\t25.0\t4\t0\t0\t0.5\nlink\t1\t2\tleaf0>spine1.0\t1.0\n\
             link\t1\t2\tspine1.0>leaf1\t0.5\nstep\t4\t1\t98.0\t97.0\t16\t2\t6\t0.5";
        for line in lines.lines() {
            f.take(line).unwrap();
        }
        f
    }

    #[test]
    fn lines_in_any_order_become_means_ratios_and_shares() {
        let sums = sample().sums();
        assert_eq!((sums.len(), sums[0].lanes, sums[1].lanes), (2, 1, 4));
        let four = &sums[1];
        assert_eq!((four.mean, four.slowest, four.connections), (94.0, 80.0, 16));
        assert_eq!((four.replaced, four.moved), (5, 7));
        assert_eq!((four.share, four.slower), (0.94, Some(1)));
        assert!((four.ratio.unwrap() - 94.0 / 75.0).abs() < 1e-9);
        assert_eq!((sums[0].ratio, sums[0].slower), (Some(1.0), Some(0)));
        assert_eq!(sample().step(1, 2).unwrap().loads.len(), 2);
    }

    #[test]
    fn the_best_of_an_incast_is_a_part_of_the_receivers_link() {
        let mut f = Figures::new(true);
        f.take("alone\t100").unwrap();
        assert_eq!((f.best(4), sample().best(4)), (25.0, 100.0));
        f.take("step\t2\t4\t20\t20\t1\t0\t0\t1").unwrap();
        let sums = f.sums();
        assert_eq!((sums[0].share, sums[0].ratio, sums[0].slower), (0.8, None, None));
    }

    #[test]
    fn a_line_that_is_none_is_an_error() {
        for line in ["", "step\t1", "link\t1\t1\tx\t0.5", "alone\tfast", "step\tx\t1\t1\t1\t1\t1\t1"] {
            assert!(Figures::default().take(line).is_err(), "{line}");
        }
    }
}
